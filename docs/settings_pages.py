"""Pages about the settings of installed protocols: ``python -m docs.settings_pages FOLDER [PROTOCOL ...]``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fedactors.cli.flags import settings_tables
from fedactors.cli.terminal import guarded
from fedactors.errors import BadInput
from fedactors.inspection import preset_words
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


def main(argv: Sequence[str] | None = None) -> int:
    """Write a page for each protocol and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)

    def action() -> int:
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

    return guarded(action)


if __name__ == "__main__":
    sys.exit(main())
