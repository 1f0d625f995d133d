"""The flags of a run, written once: `fedactors run` and every scenario script have exactly these."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, NoReturn

from fedactors.errors import BadInput
from fedactors.options import FORMATS, MOST_WORKERS, RUNTIMES, SPREADS, RunOptions


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


def add_format_flag(parser: argparse.ArgumentParser) -> None:
    """Add ``--format``."""
    parser.add_argument(
        "--format", choices=FORMATS, default="text", help="json: the last line on standard output is one JSON object"
    )


def add_trust_flag(parser: argparse.ArgumentParser) -> None:
    """Add ``--trust``."""
    parser.add_argument(
        "--trust",
        type=_addresses,
        default=(),
        metavar="CODE",
        help="code that a run folder names (package.module:function, commas between several) and that may be imported",
    )


def add_words(parser: argparse.ArgumentParser) -> None:
    """Add the ``key=value`` words."""
    parser.add_argument("words", nargs="*", metavar="key=value", help="config values, for example batch_size=256")


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Add every flag of a run, and the ``key=value`` words."""
    add_words(parser)
    parser.add_argument(
        "--data",
        metavar="NAME|FILE",
        help="a data set, or a description of your own data (.toml), which --resume asks for again",
    )
    add_place_flags(parser)
    parser.add_argument(
        "--pool",
        type=_workers,
        metavar="N",
        help="simulated runtime: N processes for computes (default 0: none)",
    )
    parser.add_argument(
        "--emulate",
        type=_positive,
        metavar="S",
        help="ray: emulate the protocol's links and compute times, S wall seconds for each second of theirs",
    )
    parser.add_argument(
        "--lease",
        type=_positive,
        metavar="S",
        help="ray: seconds without a sign of life after which a process counts as lost (default 15)",
    )
    seeds = parser.add_mutually_exclusive_group()
    seeds.add_argument("--seed", type=_seed, metavar="N", help="seed of the run (default 0)")
    seeds.add_argument("--seeds", type=_seeds, metavar="0,1,2", help="one run per seed, with mean and deviation")
    parser.add_argument("--out", default="runs", metavar="DIR", help="parent of run folders (default: runs)")
    parser.add_argument(
        "--resume", action=_Once, metavar="RUN", help="go on from the last checkpoint of this run folder"
    )
    add_trust_flag(parser)
    parser.add_argument("--smoke", action="store_true", help="the smallest run that means something")
    parser.add_argument("--full", action="store_true", help="the setting of the paper")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument(
        "--track", type=_names, default=(), metavar="NAMES", help="also log to tensorboard, mlflow or wandb"
    )
    add_state_flags(parser)
    parser.add_argument("--spread", choices=SPREADS, help="how actors are laid over the cluster's hosts")
    add_format_flag(parser)


def add_place_flags(parser: argparse.ArgumentParser) -> None:
    """Add what says where actors run: ``--runtime``, ``--address`` and ``--place``."""
    parser.add_argument("--runtime", choices=RUNTIMES, help="ray (default) or simulated (virtual clock, one process)")
    parser.add_argument("--address", metavar="A", help="Ray cluster (default: RAY_ADDRESS, else Ray in this process)")
    parser.add_argument(
        "--place",
        type=_place,
        action="extend",
        default=[],
        metavar="PARTY=LABEL",
        help="put a party's actors on hosts that have this label (ray start --resources='{\"LABEL\": 1}'); repeatable",
    )


def add_federation_flags(parser: argparse.ArgumentParser) -> None:
    """Add what runs a protocol between sites that share no cluster."""
    parser.add_argument(
        "--federation",
        metavar="FILE",
        help="run at the sites of several organisations: the federation.toml in your own site's folder; --data is then "
        "SITE=NAME,SITE=NAME",
    )
    parser.add_argument(
        "--share-seed",
        action="store_true",
        help="federation: a test, whose seed all sites take; without it each has its own, unknown to the others",
    )
    parser.add_argument(
        "--go-on",
        action="store_true",
        help="federation: when a site was lost and is back, propose to go on from the last checkpoint, by itself",
    )
    parser.add_argument(
        "--budget",
        type=_pair("site=epsilon:delta"),
        action="append",
        default=[],
        metavar="SITE=EPSILON:DELTA",
        help="federation: what the run takes at most of a site's privacy budget, where its data have one; repeatable",
    )


def add_state_flags(parser: argparse.ArgumentParser) -> None:
    """Add ``--state`` and ``--state-key``."""
    parser.add_argument(
        "--state",
        type=_pair("party=place"),
        action="append",
        default=[],
        metavar="PARTY=PLACE",
        help="keep a party's checkpoints in a folder of its host, or at an address, not in the run folder; repeatable",
    )
    parser.add_argument(
        "--state-key",
        type=_pair("party=file:PATH or party=env:NAME"),
        action="append",
        default=[],
        metavar="PARTY=KEY",
        help="encrypt them (AES-256-GCM) with the key in file:PATH or env:NAME, as the party's process finds it",
    )


def run_options(args: argparse.Namespace) -> RunOptions:
    """Return the options that `add_run_flags` parsed."""
    names = RunOptions.__dataclass_fields__
    values: dict[str, Any] = {name: value for name, value in vars(args).items() if name in names}
    for pairs in ("place", "state", "state_key"):
        values[pairs] = tuple(values.get(pairs, ()))
    return RunOptions(**values)


def run_words(options: RunOptions, words: Sequence[str]) -> list[str]:
    """Return the command line that gives these options and words again, all but ``--address`` and ``--format``."""
    given: list[str] = []
    for field in fields(RunOptions):
        value = getattr(options, field.name)
        if field.name in ("address", "format") or value == field.default:
            continue
        flag = f"--{field.name.replace('_', '-')}"
        if value is True:
            given.append(flag)
        elif isinstance(value, tuple) and isinstance(value[0], tuple):
            for pair in value:
                given += [flag, "=".join(pair)]
        elif isinstance(value, tuple):
            given += [flag, ",".join(map(str, value))]
        else:
            given += [flag, str(value)]
    return [*given, *words]


def _whole(text: str, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) <= most):
        raise argparse.ArgumentTypeError(f"{text[:200]!r} is not allowed: a whole number from 0 to {most}")
    return int(text)


def _seed(text: str) -> int:
    return _whole(text, 2**32 - 1)


def _workers(text: str) -> int:
    return _whole(text, MOST_WORKERS)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: a number above 0")
    return number


def _seeds(text: str) -> tuple[int, ...]:
    seeds = tuple(_seed(part.strip()) for part in text.split(","))
    if len(set(seeds)) != len(seeds):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: a seed is given twice")
    return seeds


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


class _Once(argparse.Action):
    """A flag that a later one of the same name does not overrule in silence."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if getattr(namespace, self.dest) is not None:
            raise argparse.ArgumentError(self, "is given twice")
        setattr(namespace, self.dest, values)


def _addresses(text: str) -> tuple[str, ...]:
    found = _names(text)
    for address in found or ("",):
        module, _, name = address.partition(":")
        if not (name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
            raise argparse.ArgumentTypeError(f"{address[:200]!r} is not allowed: write package.module:function")
    return found


def _pair(form: str) -> Callable[[str], tuple[str, str]]:
    def parse(text: str) -> tuple[str, str]:
        party, equals, value = (word.strip() for word in text.partition("="))
        if not (party and equals and value):
            raise argparse.ArgumentTypeError(f"{text!r} is not of the form {form}")
        return party, value

    return parse


def _place(text: str) -> list[tuple[str, str]]:
    pairs = []
    for part in text.split(","):
        party, equals, label = (word.strip() for word in part.partition("="))
        if not (party and equals and label):
            raise argparse.ArgumentTypeError(f"{part!r} is not of the form party=label")
        pairs.append((party, label))
    return pairs
