"""What a protocol can be told: its config's fields with default, allowed values and docstring, for help and pages.

A config may order its settings into sections with a class attribute that says which title begins at which field; a
title that begins again goes on with its section:

    sections: ClassVar = {"num_rounds": "Training", "clip_norm": "Privacy"}

What a scenario's config adds to its protocol's is a section of its own, the first one.

Completion at the Tab key: scripts for the shells, and the words that may stand where the cursor is.

A shell calls the command itself, with `VARIABLE` set and the words up to the cursor, and reads one candidate a line.
No candidate means a file name, or that nothing can stand there.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from fedactors.cli.terminal import say
from fedactors.config import meaning_of
from fedactors.data.datasets.catalogue import catalogue
from fedactors.errors import BadInput
from fedactors.plugins import Protocol, canonical, find_protocol, protocol_names

ADDED = "Of this scenario"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One field of a config."""

    name: str
    section: str
    """Title of its section; empty where there is none."""
    default: str
    """As it is written after ``name=``."""
    allowed: str
    """Type, range or choices, in words."""
    choices: tuple[str, ...]
    """Words that may be given, where they can be listed."""
    meaning: str
    """Its docstring on one line, with the marks of code that it has."""


class _Schema(GenerateJsonSchema):
    """JSON schema that leaves open what JSON cannot say, such as a class of a third party."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:
        return {}

    def emit_warning(self, kind: Any, detail: str) -> None:
        """Defaults without a form in JSON are no news here."""


def settings_of(config: type[Any]) -> list[Setting]:
    """Return the settings of a config dataclass, in the order of its fields."""
    schema = TypeAdapter(config).json_schema(schema_generator=_Schema)
    definitions = schema.get("$defs", {})
    described: Mapping[str, FieldInfo] = getattr(config, "__pydantic_fields__", {})
    made = []
    for name, section in _sections(config).items():
        value = _resolved(schema.get("properties", {}).get(name, {}), definitions)
        required = name in schema.get("required", ())
        allowed = _allowed(value, definitions)
        made.append(
            Setting(
                name=name,
                section=section,
                default="" if required else _word(_default(config, name, described.get(name))),
                allowed=f"{allowed}; required" if required else allowed,
                choices=tuple(_choices(value, definitions)),
                meaning=meaning_of(config, name),
            )
        )
    return made


def protocol_help(protocol: Protocol, width: int = 80) -> str:
    """Return the text of ``--help`` about a protocol's settings, at most `width` columns wide."""
    wrap = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    lines = wrap.wrap(f"{protocol.name}: {protocol.summary or 'a scenario'}. Its settings, given as key=value:")
    wrap.subsequent_indent = " " * 6
    for section, settings in by_section(protocol.Config).items():
        lines += ["", *([f"{section}:"] if section else [])]
        for setting in settings:
            lines += wrap.wrap(f"  {setting.name}={setting.default}  ({setting.allowed})")
            lines += wrap.wrap(" " * 6 + re.sub(r"`+", "", setting.meaning))
    for flag, preset in (("--smoke", protocol.smoke), ("--full", protocol.full)):
        lines += ["", *wrap.wrap(f"{flag}: {preset_words(preset) or 'the defaults'}")]
    return "\n".join(lines) + "\n"


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


def preset_words(preset: Mapping[str, Any]) -> str:
    """Return the values of ``--smoke`` or ``--full`` as they would be given by hand."""
    return " ".join(f"{name}={_word(value)}" for name, value in preset.items())


def by_section(config: type[Any]) -> dict[str, list[Setting]]:
    """Return the settings under their sections' titles, in the order in which the config names these."""
    home = _home(config)
    found: dict[str, list[Setting]] = {} if home is None else {title: [] for title in home.sections.values()}
    for setting in settings_of(config):
        found.setdefault(setting.section, []).append(setting)
    return {title: settings for title, settings in found.items() if settings}


def _home(config: type[Any]) -> Any:
    """Return the class that orders the settings into sections; None: none does."""
    return next((cls for cls in config.__mro__ if isinstance(vars(cls).get("sections"), Mapping)), None)


def _sections(config: type[Any]) -> dict[str, str]:
    """Return the name of each field, in the order in which they were written, and the title of its section."""
    fields = {field.name for field in dataclasses.fields(config)}
    annotated = (name for cls in reversed(config.__mro__) for name in vars(cls).get("__annotations__", ()))
    order = [name for name in dict.fromkeys(annotated) if name in fields]
    home = _home(config)
    if home is None:
        return dict.fromkeys(order, "")
    known = {field.name for field in dataclasses.fields(home)}
    titled = {name: ADDED for name in order if name not in known}
    title = ""
    for name in order:
        if name in known:
            title = titled[name] = home.sections.get(name, title)
    return titled


def _default(config: type[Any], name: str, info: FieldInfo | None) -> Any:
    if info is not None:
        return info.get_default(call_default_factory=True)
    field = next(field for field in dataclasses.fields(config) if field.name == name)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _word(value: Any) -> str:
    """Return a value as the command line takes it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        nested = not value or any(isinstance(item, (tuple, list)) for item in value)
        return json.dumps(value) if nested else ",".join(_word(item) for item in value)
    return str(value)


def _plural(word: re.Match[str]) -> str:
    return f"{word[0]}s"


def _resolved(value: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in value:
        value = definitions[value["$ref"].rpartition("/")[2]]
    return value


def _choices(value: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterable[str]:
    """Yield the words that a schema lists, among them those beside a number, as in ``auto`` or a step size."""
    value = _resolved(value, definitions)
    for option in value.get("anyOf", ()):
        yield from _choices(option, definitions)
    if value.get("type") == "boolean":
        yield from ("true", "false")
    elif value.get("type") == "null":
        yield "none"
    else:
        yield from (_word(word) for word in value.get("enum", [value["const"]] if "const" in value else []))


def _allowed(value: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Return in words what a JSON schema allows."""
    value = _resolved(value, definitions)
    if "anyOf" in value:
        return " | ".join(dict.fromkeys(_allowed(option, definitions) for option in value["anyOf"]))
    if words := list(_choices(value, definitions)):
        return " | ".join(words)
    kind = value.get("type")
    if kind in ("integer", "number"):
        marks = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
        limits = [f"{mark} {value[key]}" for key, mark in marks.items() if key in value]
        return " ".join([kind, *limits[:1]]) + "".join(f" and {limit}" for limit in limits[1:])
    if kind == "array":
        if "prefixItems" in value:
            return ",".join(_allowed(item, definitions) for item in value["prefixItems"])
        item = _allowed(value.get("items", {}), definitions)
        return f"list of {re.sub('^(list|integer|number|text)', _plural, item)}"
    if kind == "string":
        return f"text like {value['pattern']}" if "pattern" in value else "text"
    return {"object": "JSON object"}.get(str(kind), "any value")


VARIABLE = "_FEDACTORS_COMPLETE"

BASH = f"""\
_fedactors() {{
    local line=${{COMP_LINE:0:COMP_POINT}} words current IFS=$' \\t\\n'
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    current=${{words[${{#words[@]}} - 1]}}
    IFS=$'\\n'
    COMPREPLY=($({VARIABLE}=1 "$1" "${{words[@]:1}}" 2> /dev/null))
    [[ ${{COMPREPLY-}} == *= ]] && compopt -o nospace 2> /dev/null
    # where '=' divides words, readline replaces only what stands behind it
    if [[ $current == *=* && $COMP_WORDBREAKS == *=* ]]; then
        COMPREPLY=("${{COMPREPLY[@]#"${{current%"${{current##*=}}"}}"}}")
    fi
}}
complete -o default -F _fedactors fedactors
"""

ZSH = f"""\
#compdef fedactors
_fedactors() {{
    local -a found
    found=("${{(@f)$({VARIABLE}=1 "${{words[1]}}" "${{(@)words[2,CURRENT]}}" 2> /dev/null)}}")
    found=("${{(@)found:#}}")
    if (( $#found )); then
        compadd -S '' -- "${{(@M)found:#*=}}"
        compadd -- "${{(@)found:#*=}}"
    else
        _files
    fi
}}
compdef _fedactors fedactors
"""

FISH = f"""\
function __fedactors_complete
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    set -l found (env {VARIABLE}=1 $before "$current" 2> /dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path "$current"
    end
end
complete -c fedactors -f -a '(__fedactors_complete)'
"""

SHELLS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def print_candidates(commands: Mapping[str, argparse.ArgumentParser], words: Sequence[str]) -> int:
    """Print what may stand in place of the last word, one candidate a line."""
    for candidate in candidates(commands, words):
        say(candidate)
    return 0


def candidates(commands: Mapping[str, argparse.ArgumentParser], words: Sequence[str]) -> list[str]:
    """Return what may stand in place of the last of `words`, which is empty or was begun, after the others."""
    *before, current = words or [""]
    return [word for word in _expected(commands, before, current) if word.startswith(current)]


def _expected(commands: Mapping[str, argparse.ArgumentParser], before: Sequence[str], current: str) -> Iterable[str]:
    if not before:
        return ["--help", "--version"] if current.startswith("-") else list(commands)
    if before[0] not in commands:
        return []
    actions = commands[before[0]]._actions
    flags = {flag: action for action in actions for flag in action.option_strings}
    given: list[str] = []
    asked: argparse.Action | None = None
    for word in before[1:]:
        if word.startswith("-"):
            asked = flags.get(word)
            asked = None if asked is None or asked.nargs == 0 else asked
        elif asked is None:
            given.append(word)
        elif asked.nargs != "+":
            asked = None
    if current.startswith("-"):
        return list(flags)
    if asked is None:
        places = [action for action in actions if not action.option_strings]
        asked = next(iter(places[len(given) :]), places[-1] if places and places[-1].nargs in ("*", "+") else None)
    return [] if asked is None else _values(asked, given, current)


def _values(action: argparse.Action, given: Sequence[str], current: str) -> Iterable[str]:
    if action.choices:
        return list(action.choices)
    if action.dest in ("protocol", "target"):
        return protocol_names()
    if action.dest == "words" and given and canonical(given[0]) in protocol_names():
        return _settings(given[0], given[1:], current)
    if action.dest == "data" or (action.dest == "name" and given[:1] == ["fetch"]):
        return [dataset.name for dataset in catalogue()]
    return []


def _settings(protocol: str, given: Sequence[str], current: str) -> Iterable[str]:
    try:
        config = find_protocol(protocol).Config
    except BadInput:
        return []

    settings = {setting.name: setting for setting in settings_of(config)}
    name, equals, _ = current.partition("=")
    if equals:
        return [f"{name}={choice}" for choice in settings[name].choices] if name in settings else []
    done = {word.partition("=")[0] for word in given}
    return [f"{name}=" for name in settings if name not in done]
