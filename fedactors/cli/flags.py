"""Flags of the command line, made from the fields of `fedactors.options.RunOptions`.

`fedactors run` and every scenario script have exactly the same ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn

from fedactors.errors import BadInput
from fedactors.options import FLAGS, Flag, Read, RunOptions, flag_of


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one `BadInput` line, and whose help may explain a config's settings."""

    explained: Any = None
    """The `fedactors.plugins.Protocol` whose settings ``--help`` explains, if it has one to explain."""

    def format_help(self) -> str:
        """Return the help."""
        if self.explained is None:
            return super().format_help()
        from fedactors.cli.help import protocol_help

        return f"{super().format_help()}\n{protocol_help(self.explained)}"

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        # argparse counts the words, which may be none, among what is required
        raise BadInput(f"{message.replace(', key=value', '')} (see {self.prog} --help)")


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
    if flag.repeats:
        return {**told, "action": "extend", "default": []}
    return {**told, "action": _Once} if name == "resume" else told


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
    return {name: tuple(value) if FLAGS[name].repeats else value for name, value in found.items()}


def run_options(args: argparse.Namespace) -> RunOptions:
    """Return the options that `add_run_flags` parsed."""
    return RunOptions(**given_options(args))


class _Once(argparse.Action):
    """A flag that a later one of the same name does not overrule in silence."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if getattr(namespace, self.dest) is not None:
            raise argparse.ArgumentError(self, "is given twice")
        setattr(namespace, self.dest, values)
