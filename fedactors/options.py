"""Where and how a run runs. One list of fields, from which the flags of a command line are made too.

`RunOptions` has a field for each option. A field's `Flag` says how the option is written as text, what it means, and
beside which others it counts. Importing this module loads nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal

from fedactors.errors import BadInput

RUNTIMES = ("ray", "simulated")
FORMATS = ("text", "json")
SPREADS = ("pack", "spread", "strict-pack", "strict-spread")
MOST_WORKERS = 1024
"""Processes of a pool."""
LARGEST_SEED = 2**32 - 1
Read = Callable[[str], Any]


@dataclass(frozen=True, kw_only=True)
class Flag:
    """How one option is written, and where it counts."""

    help: str
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    read: Read | None = None
    """From text to the value; an option that `repeats` is read to a list."""
    repeats: bool = False
    """May be given several times: the value is all of them."""
    is_location: bool = False
    """Names data, a folder or an address: neither blank, nor with a password."""
    ray_only: str = ""
    """Why the simulated runtime has no use for it."""
    federation: Literal["", "only", "never"] = ""
    """Whether it is for runs over a federation only, or never for those."""
    decides: bool = False
    """Decides what is trained, so that a resumed run does not take it anew."""
    is_stored: bool = False
    """Is kept in the run folder, and holds when the run is resumed."""
    travels: bool = True
    """Goes along with a run that is started on another host."""


def whole_number(most: int) -> Read:
    """Return what reads a whole number from 0 to `most`."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) <= most):
            raise BadInput(f"{text[:200]!r} is not allowed: a whole number from 0 to {most}")
        return int(text)

    return read


read_seed = whole_number(LARGEST_SEED)


def read_seeds(text: str) -> tuple[int, ...]:
    """Read ``0,1,2``; a seed given twice is a `BadInput`."""
    seeds = tuple(read_seed(part.strip()) for part in text.split(","))
    if len(set(seeds)) != len(seeds):
        raise BadInput(f"{text!r} is not allowed: a seed is given twice")
    return seeds


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise BadInput(f"{text!r} is not allowed: a number above 0")
    return number


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _code(text: str) -> tuple[str, ...]:
    found = _names(text)
    for address in found or ("",):
        module, _, name = address.partition(":")
        if not (name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
            raise BadInput(f"{address[:200]!r} is not allowed: write package.module:function")
    return found


def _pair(form: str) -> Callable[[str], list[tuple[str, str]]]:
    def read(text: str) -> list[tuple[str, str]]:
        party, equals, value = (word.strip() for word in text.partition("="))
        if not (party and equals and value):
            raise BadInput(f"{text!r} is not of the form {form}")
        return [(party, value)]

    return read


def _pairs(form: str) -> Callable[[str], list[tuple[str, str]]]:
    one = _pair(form)
    return lambda text: [pair for part in text.split(",") for pair in one(part)]


def _option(default: Any, help: str, **more: Any) -> Any:
    return field(default=default, metadata={"flag": Flag(help=help, **more)})


_kept = partial(_option, federation="never", is_stored=True)
"""An option of the run's own processes, which hold when it is resumed."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where and how to run, beside the settings of the protocol; None means that the option was not given."""

    data: str | None = _option(
        None,
        "data set name, or description of your data (.toml); needed again with --resume",
        metavar="NAME|FILE",
        is_location=True,
    )
    runtime: str | None = _option(
        None, "ray (default) or simulated (virtual clock, one process)", choices=RUNTIMES, federation="never"
    )
    address: str | None = _option(
        None,
        "Ray cluster (default: RAY_ADDRESS, else a local Ray)",
        metavar="A",
        is_location=True,
        ray_only="the simulated runtime is one process",
        federation="never",
        travels=False,
    )
    placement: tuple[tuple[str, str], ...] = _kept(
        (),
        "run a party's actors on hosts with this label (ray start --resources='{\"LABEL\": 1}'); repeatable",
        metavar="PARTY=LABEL",
        read=_pairs("party=label"),
        repeats=True,
        ray_only="the simulated runtime has no hosts",
    )
    pool: int | None = _kept(
        None,
        "simulated runtime: number of worker processes for computations (default 0: none)",
        metavar="N",
        read=whole_number(MOST_WORKERS),
    )
    emulate: float | None = _kept(
        None,
        "ray: emulate the protocol's links and compute times, S wall seconds per emulated second",
        metavar="S",
        read=_positive,
        ray_only="the simulated runtime's clock is virtual",
    )
    heartbeat_timeout: float | None = _kept(
        None,
        "ray: seconds without a heartbeat after which a process counts as lost (default 15)",
        metavar="S",
        read=_positive,
        ray_only="in simulation no process can hang",
    )
    seed: int | None = _option(None, "seed of the run (default 0)", metavar="N", read=read_seed, decides=True)
    seeds: tuple[int, ...] | None = _option(
        None, "one run per seed, with mean and standard deviation", metavar="0,1,2", read=read_seeds, decides=True
    )
    out: str = _option("runs", "parent folder of run folders (default: runs)", metavar="DIR", is_location=True)
    resume: str | None = _option(
        None,
        "resume from the last checkpoint of this run folder; federation: auto resumes the newest interrupted run with "
        "these settings, or starts a new one",
        metavar="RUN",
        is_location=True,
    )
    allow_import: tuple[str, ...] = _option(
        (),
        "allow importing this code, named by a run folder (package.module:function, comma-separated)",
        metavar="CODE",
        read=_code,
        federation="never",
    )
    smoke: bool = _option(False, "use the protocol's smallest preset", decides=True)
    paper: bool = _option(False, "use the paper's preset", decides=True)
    quiet: bool = _option(False, "hide progress")
    track: tuple[str, ...] = _option(
        (), "log to tensorboard, mlflow or wandb (comma-separated)", metavar="NAMES", read=_names
    )
    checkpoint_dir: tuple[tuple[str, str], ...] = _kept(
        (),
        "store a party's checkpoints in a folder on its host, or at a URI, instead of the run folder; repeatable",
        metavar="PARTY=URI",
        read=_pair("party=uri"),
        repeats=True,
    )
    checkpoint_key: tuple[tuple[str, str], ...] = _kept(
        (),
        "encrypt a party's checkpoints (AES-256-GCM) with the key in file:PATH or env:NAME on its host; repeatable",
        metavar="PARTY=KEY",
        read=_pair("party=file:PATH or party=env:NAME"),
        repeats=True,
    )
    spread: str | None = _kept(
        None,
        "placement of actors on the cluster's hosts (default: as Ray schedules them)",
        choices=SPREADS,
        ray_only="the simulated runtime has no hosts",
    )
    format: str = _option(
        "text", "json: the last line on standard output is one JSON object", choices=FORMATS, travels=False
    )
    federation: str | None = _option(
        None,
        "run between sites: the federation.toml in your site's folder; --data is then SITE=NAME,SITE=NAME",
        metavar="FILE",
        is_location=True,
    )
    share_seed: bool = _option(
        False,
        "federation, for tests: all sites use the run's seed (default: each site draws its own secret seed)",
        federation="only",
    )
    auto_resume: bool = _option(
        False,
        "federation: resume from the last checkpoint when a lost site is back",
        federation="only",
    )
    queue_timeout: float | None = _option(
        None,
        "federation: wait up to S seconds for sites that are busy with other runs (default: a busy site refuses)",
        metavar="S",
        read=_positive,
        federation="only",
    )
    return_timeout: float | None = _option(
        None,
        "federation: pause for a lost site up to S seconds, then go on exactly, by the approval that the run has",
        metavar="S",
        read=_positive,
        federation="only",
    )
    code: tuple[str, ...] = _option(
        (),
        "federation: source files of a model, loss or metric of your own (FILE.py or a package's folder, "
        "comma-separated), which each site's person or policy allows",
        metavar="PATHS",
        read=_names,
        federation="only",
        travels=False,
    )
    budget: Sequence[tuple[str, str]] = _option(
        (),
        "federation: limit what the run spends of a site's privacy budget; repeatable",
        metavar="SITE=EPSILON:DELTA",
        read=_pair("site=epsilon:delta"),
        repeats=True,
        federation="only",
    )
    limit: Sequence[tuple[str, str]] = _option(
        (),
        "federation: most that the run may use of each site's machine: memory_gib, cpu_hours, hours, disk_gib, gpus, "
        "message_gib; repeatable",
        metavar="NAME=AMOUNT",
        read=_pair("name=amount"),
        repeats=True,
        federation="only",
    )

    def __post_init__(self) -> None:
        """Refuse passwords: options are kept in run folders, and a job's in its command line.

        Raises:
            BadInput: naming the flag.
        """
        from fedactors.validation import without_password

        for name, flag in FLAGS.items():
            if flag.is_location:
                without_password(getattr(self, name) or "", flag_of(name))
        for party, location in self.checkpoint_dir:
            without_password(location, f"--checkpoint-dir {party}")

    @classmethod
    def checked(cls, **values: Any) -> RunOptions:
        """Return options from Python values, each held to what its flag allows.

        Raises:
            BadInput: a value that is not allowed, with the option's name.
        """
        return cls(**{name: _checked(name, value) for name, value in values.items() if value is not None})

    def given(self, **facts: Any) -> Iterator[str]:
        """Yield the names of the options that are given and whose flag has these facts: ``given(decides=True)``."""
        for name, flag in FLAGS.items():
            if all(getattr(flag, fact) == value for fact, value in facts.items()) and self._is_given(name):
                yield name

    def _is_given(self, name: str) -> bool:
        value = getattr(self, name)
        return value is not None and value != _DEFAULTS[name] and value != ()

    def without(self, *names: str) -> RunOptions:
        """Return the options as if those had not been given."""
        return replace(self, **{name: _DEFAULTS[name] for name in names})

    def stored(self) -> dict[str, Any]:
        """Return the options that a run folder keeps, JSON-ready."""
        kept = {name: getattr(self, name) for name, flag in FLAGS.items() if flag.is_stored}
        return {name: dict(value) if FLAGS[name].repeats else value for name, value in kept.items()}

    @staticmethod
    def restored(found: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that `stored` gave, as this class has them.

        Raises:
            BadInput: they are not what this version writes.
        """
        kept = {name: _DEFAULTS[name] for name, flag in FLAGS.items() if flag.is_stored}
        for name, value in found.items():
            if name not in kept:
                raise BadInput(f"options.{name[:200]}: unknown")
            kept[name] = _restored(name, value)
        return kept

    def words(self, more: Sequence[str] = ()) -> list[str]:
        """Return the words of a command line that give these options on another host, and `more` behind them."""
        words: list[str] = []
        for name, flag in FLAGS.items():
            value = getattr(self, name)
            if not flag.travels or value == _DEFAULTS[name]:
                continue
            if flag.repeats:
                words += [word for pair in value for word in (flag_of(name), "=".join(pair))]
            elif value is True:
                words.append(flag_of(name))
            else:
                text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
                words += [flag_of(name), text]
        return [*words, *more]


FLAGS: Mapping[str, Flag] = {one.name: one.metadata["flag"] for one in fields(RunOptions)}
_DEFAULTS: Mapping[str, Any] = {one.name: one.default for one in fields(RunOptions) if one.default is not MISSING}


def flag_of(name: str) -> str:
    """Return an option as a command line writes it."""
    return f"--{name.replace('_', '-')}"


def _checked(name: str, value: Any) -> Any:
    flag = FLAGS[name]
    if flag.choices is not None and value not in flag.choices:
        raise BadInput(f"{name}: {str(value)[:200]!r} is not allowed: {', '.join(flag.choices)}")
    if flag.read is None or isinstance(value, (tuple, list, Mapping)):
        return value
    try:
        return flag.read(str(value))
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from None


def _restored(name: str, value: Any) -> Any:
    """Return a stored option's value; JSON has pairs as an object, and numbers as numbers."""
    if FLAGS[name].repeats:
        if not (isinstance(value, dict) and all(isinstance(one, str) for one in value.values())):
            raise BadInput(f"options.{name}: an object of texts is needed")
        return tuple(value.items())
    if value is None:
        return None
    kinds = (int, float) if FLAGS[name].choices is None else (str,)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise BadInput(f"options.{name}: {str(value)[:200]!r} is not allowed")
    try:
        return _checked(name, value)
    except BadInput as error:
        raise BadInput(f"options.{error}") from None
