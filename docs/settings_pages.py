"""Pages about the settings of installed protocols: ``python -m docs.settings_pages FOLDER [PROTOCOL ...]``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedactors.cli.terminal import guarded
from fedactors.errors import BadInput
from fedactors.inspection import by_section, preset_words
from fedactors.plugins import Protocol, find_protocol, protocol_names


def settings_page(protocol: Protocol) -> str:
    """Return the page about a protocol's settings, in Markdown."""
    given = {"--smoke": protocol.smoke, "--paper": protocol.paper}
    presets = [f"`{flag}` means `{preset_words(values)}`." for flag, values in given.items() if values]
    parts = [
        f"# Settings of {protocol.name}",
        f"{protocol.summary[:1].upper()}{protocol.summary[1:]}. Given as `key=value` words after "
        f"`fedactors run {protocol.name}`; `fedactors run {protocol.name} --help` shows them in the terminal.",
        *presets,
        settings_tables(protocol.Config),
    ]
    return "\n\n".join(parts)


def settings_tables(config: type[Any]) -> str:
    """Return the settings of a config as Markdown tables, one a section."""
    lines: list[str] = []
    for section, settings in by_section(config).items():
        lines += ["", *([f"## {section}", ""] if section else []), "| setting | default | allowed | meaning |"]
        lines.append("|---|---|---|---|")
        for setting in settings:
            default = f"`{setting.default}`" if setting.default else ""
            cells = [f"`{setting.name}`", default, setting.allowed.replace(" | ", ", "), setting.meaning]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines).strip() + "\n"


@guarded()
def main(argv: Sequence[str] | None = None) -> int:
    """Write a page for each protocol and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)

    if not words:
        raise BadInput("give a folder for the pages, then names of protocols (default: all that are installed)")
    folder, *names = words
    for name in names or protocol_names():
        protocol = find_protocol(name)
        path = Path(folder) / f"{protocol.name.replace('-', '_')}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(settings_page(protocol))
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
