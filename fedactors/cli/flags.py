"""The words of the command line: flags, help on settings, and completion.

Flags are made from the fields of `fedactors.options.RunOptions`; `fedactors run` and scenario scripts share them.
For completion a shell calls the command itself, with `VARIABLE` set and the words up to the cursor, and reads one
candidate a line. No candidate means a file name, or that nothing can stand there.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from fedactors.cli.terminal import say
from fedactors.errors import BadInput
from fedactors.options import FLAGS, Flag, Read, RunOptions, flag_of
from fedactors.plugins import Protocol, canonical, find_protocol, protocol_names
from fedactors.validation import suggested


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one `BadInput` line, and whose help may explain a config's settings."""

    explained: Any = None
    """The `fedactors.plugins.Protocol` whose settings ``--help`` explains, if it has one to explain."""

    def format_help(self) -> str:
        """Return the help."""
        if self.explained is None:
            return super().format_help()

        return f"{super().format_help()}\n{protocol_help(self.explained)}"

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        unknown = re.match(r"unrecognized arguments: (--[a-z-]+)", message)
        hint = suggested(unknown[1], self._flags()) if unknown else ""
        # argparse counts the words, which may be none, among what is required
        raise BadInput(f"{message.replace(', key=value', '')}{hint} (see {self.prog} --help)")

    def _flags(self) -> set[str]:
        """Return the long flags of this parser and of its commands."""
        found = {flag for flag in self._option_string_actions if flag.startswith("--")}
        commands = [one for one in self._actions if isinstance(one, argparse._SubParsersAction)]
        return found.union(*(parser._flags() for one in commands for parser in one.choices.values()))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            is_command = isinstance(action, argparse._SubParsersAction)
            what = f"unknown command {value!r}" if is_command else f"invalid choice: {value!r}"
            hint = suggested(str(value), map(str, action.choices))
            raise argparse.ArgumentError(None if is_command else action, f"{what}{hint}")


def add_flags(parser: argparse._ActionsContainer, *names: str, **changes: Any) -> None:
    """Add the flags of these options.

    Args:
        parser: or a group of one.
        names: of the options.
        changes: what argparse is told otherwise: another ``help``, ``required``.
    """
    for name in names:
        flag = FLAGS[name]
        parser.add_argument(flag_of(name), **{**_arguments(name, flag), **changes})


def _arguments(name: str, flag: Flag) -> dict[str, Any]:
    """Return what argparse is told of an option."""
    default = RunOptions.__dataclass_fields__[name].default
    told: dict[str, Any] = {"help": flag.help, "default": default}
    if default is False:
        return {**told, "action": "store_true"}
    if flag.choices is not None:
        return {**told, "choices": flag.choices}
    told["metavar"] = flag.metavar
    if flag.read is not None:
        told["type"] = argument(flag.read)
    if default == ():
        return {**told, "action": "extend", "default": []}
    return {**told, "action": _Once} if name in ("resume", "seeds") else told


def argument(read: Read) -> Callable[[str], Any]:
    """Return what reads the text of an argument as argparse wants it."""

    def typed(text: str) -> Any:
        try:
            return read(text)
        except BadInput as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return typed


def add_words(parser: argparse.ArgumentParser) -> None:
    """Add the ``key=value`` words."""
    parser.add_argument("words", nargs="*", metavar="key=value", help="config values, for example batch_size=256")


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Add every flag of a run but those of a federation, and the ``key=value`` words."""
    add_words(parser)
    seeds = parser.add_mutually_exclusive_group()
    for name, flag in FLAGS.items():
        if name in ("seed", "seeds"):
            add_flags(seeds, name)
        elif name != "federation" and flag.federation != "only":
            add_flags(parser, name)


def add_federation_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a run between sites that share no cluster."""
    for name, flag in FLAGS.items():
        if name == "federation" or flag.federation == "only":
            add_flags(parser, name)


def given_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options among parsed arguments, by name."""
    found = {name: value for name, value in vars(args).items() if name in FLAGS}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}


def run_options(args: argparse.Namespace) -> RunOptions:
    """Return the options that `add_run_flags` parsed."""
    return RunOptions(**given_options(args))


class _Once(argparse.Action):
    """A flag that a later one of the same name does not overrule in silence."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if getattr(namespace, self.dest) is not self.default:
            raise argparse.ArgumentError(self, "is given twice")
        setattr(namespace, self.dest, values)


def protocol_help(protocol: Protocol, width: int = 80) -> str:
    """Return the text of ``--help`` about a protocol's settings, at most `width` columns wide."""
    from fedactors.inspection import by_section, preset_words

    wrap = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    lines = wrap.wrap(f"{protocol.name}: {protocol.summary or 'a scenario'}. Its settings, given as key=value:")
    wrap.subsequent_indent = " " * 6
    for section, settings in by_section(protocol.Config).items():
        lines += ["", *([f"{section}:"] if section else [])]
        for setting in settings:
            lines += wrap.wrap(f"  {setting.name}={setting.default}  ({setting.allowed})")
            lines += wrap.wrap(" " * 6 + re.sub(r"`+", "", setting.meaning))
    for flag, preset in (("--smoke", protocol.smoke), ("--paper", protocol.paper)):
        lines += ["", *wrap.wrap(f"{flag}: {preset_words(preset) or 'the defaults'}")]
    return "\n".join(lines) + "\n"


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
        positionals = [action for action in actions if not action.option_strings]
        asked = next(
            iter(positionals[len(given) :]),
            positionals[-1] if positionals and positionals[-1].nargs in ("*", "+") else None,
        )
    return [] if asked is None else _values(asked, given, current)


def _values(action: argparse.Action, given: Sequence[str], current: str) -> Iterable[str]:
    if action.choices:
        return list(action.choices)
    if action.dest in ("protocol", "target"):
        return protocol_names()
    if action.dest == "words" and given and canonical(given[0]) in protocol_names():
        return _settings(given[0], given[1:], current)
    if action.dest == "data" or (action.dest == "name" and given[:1] == ["fetch"]):
        from fedactors.data.datasets.catalogue import catalogue

        return [dataset.name for dataset in catalogue()]
    return []


def _settings(protocol: str, given: Sequence[str], current: str) -> Iterable[str]:
    try:
        config = find_protocol(protocol).Config
    except BadInput:
        return []
    from fedactors.inspection import settings_of

    settings = {setting.name: setting for setting in settings_of(config)}
    name, equals, _ = current.partition("=")
    if equals:
        return [f"{name}={choice}" for choice in settings[name].choices] if name in settings else []
    done = {word.partition("=")[0] for word in given}
    return [f"{name}=" for name in settings if name not in done]
