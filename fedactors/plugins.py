"""The contract of a protocol and how protocols are found: entry points in the group ``fedactors.protocols``.

Listing protocols must be fast, so a plugin's entry point names a light object, usually a `LazyProtocol` in a module
that imports neither torch nor ray; what is heavy is named by address (``"package.module:attribute"``) and imported when
it is used.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import json
import os
import sys
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import unquote, urlsplit

from fedactors.errors import BadInput
from fedactors.validation import suggested

if TYPE_CHECKING:
    from fedactors.data.layouts.vertical import Neighbour
    from fedactors.runs.metrics import RunResult

GROUP = "fedactors.protocols"
PARTY_LOSS = ("stop", "continue", "restart")
_OPTIONAL = (
    "messages",
    "actors",
    "load_data",
    "load_new",
    "measure",
    "plan",
    "predict",
    "predictors",
    "export",
    "network",
    "neighbours",
    "surface",
    "emulate",
)
"""Parts of a protocol that may be None."""


Actors = Callable[[Any], Mapping[str, type]]
"""``actors(config)``: what each kind of actor is called ("active party's workers") to its class."""
Run = Callable[[Any, Any, Any], Awaitable["RunResult"]]
"""``run(config, data, runtime)``: the protocol itself, an ``async`` function."""
LoadData = Callable[[Any, Any, int], Any]
"""``load_data(config, name_or_file, seed)``: the partition for ``run``; one that is described already is checked."""
Plan = Callable[[Any, Sequence[Mapping[str, Any]], "Planning"], Mapping[str, Any]]
"""``plan(config, profiles, planning)``: planned settings and what they are predicted to cost, JSON-ready."""
Measure = Callable[[Any, Any, Any], Awaitable[Sequence[Mapping[str, Any]]]]
"""``measure(config, data, runtime)``: an ``async`` function like ``run``, which spawns actors that measure the parties'
machines and returns the profiles for `Plan`."""
Predict = Callable[[Any, Any, Any, Any], Awaitable[Sequence[Any]]]
"""``predict(config, data, runtime, asked)``: an ``async`` function like ``run``, which spawns the parties' actors with
their trained states and gives `Outcomes` of `fedactors.serving.predictions`; ``asked`` is an `Application` of it."""
Export = Callable[[Any, str, Mapping[str, bytes]], Any]
"""``export(config, party, states)``: the party's part of the model, a `fedactors.serving.parts.Part`, or its
parts by name where it has several."""
Network = Callable[[Any], Any]
"""``network(part)``: a module of torch that applies a part whose models are none by themselves."""


Neighbours = Callable[[Any, Any, str, int, int], Sequence["Neighbour"]]
"""``neighbours(config, data, party, count, seed)``: about `count` neighbours of the data, typical and extreme ones."""

Surface = Callable[[Any, Any, Mapping[str, bytes], int], Any]
"""``surface(config, data, states, seed)``: a `fedactors.auditing.attacks.Surface` from the actors' checkpointed
states."""


Aim = Literal["target", "epoch"]
"""What a plan is the cheapest for: the model that reaches the target, or an epoch."""


def _keep_quiet(line: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True, kw_only=True)
class Planning:
    """Options of a planner, besides the settings and profiles that it plans for."""

    aim: Aim = "target"
    data: Any = None
    """Rows that pilots train on: a partition as `LoadData` returns it; None: rows are generated."""
    seed: int = 0
    """Of the pilots; the same plan comes from the same seed."""
    jobs: int = 1
    """Processes in which pilots run."""
    time_limit: float = 600.0
    """Seconds after which no pilot begins, and none goes on."""
    tell: Callable[[str], None] = _keep_quiet
    """Hears what is tried and what came out."""


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The main metric of a protocol, and its direction: higher or lower is better."""

    name: str
    mode: Literal["max", "min"] = "max"


class Protocol(typing.Protocol):
    """The interface of a protocol; a scenario has it too."""

    @property
    def name(self) -> str:
        """Name on the command line, with hyphens."""

    @property
    def summary(self) -> str:
        """One line for `fedactors list`."""

    @property
    def partition(self) -> str:
        """Layout of the data it trains on: vertical, horizontal, graph or relational."""

    @property
    def default_data(self) -> str:
        """Default data set; it must need no download."""

    @property
    def headline(self) -> Headline:
        """The main metric."""

    @property
    def party_loss(self) -> frozenset[str]:
        """Supported reactions to a lost process: some of stop, continue, restart."""

    @property
    def default_party_loss(self) -> str:
        """Default reaction to a lost process."""

    @property
    def predicts_within_account(self) -> bool:
        """Whether, where the account of a training covers its rows, noise hides them in all that predictions read."""

    @property
    def smoke(self) -> Mapping[str, Any]:
        """Config values of the smallest meaningful run, for ``--smoke``."""

    @property
    def paper(self) -> Mapping[str, Any]:
        """Config values of the paper's setting, for ``--paper``."""

    @property
    def Config(self) -> type[Any]:  # noqa: N802
        """The config dataclass."""

    @property
    def run(self) -> Run:
        """The protocol itself."""

    @property
    def messages(self) -> ModuleType | None:
        """The module that declares everything that leaves a party.

        Three functions of it are used where it has them: ``shapes(config)``, from a message's name to the shapes of
        its fields; ``sent(config)``, the message classes, the frame's among them, that a run with this configuration
        can send; and ``left_open(config, purpose)``, what a coordinator may still do in a run between sites that
        trains, goes on or predicts (``purpose``), a sentence each for who approves it.
        """

    @property
    def actors(self) -> Actors | None:
        """The classes of its actors in a configuration; `fedactors inspect` reads their endpoints."""

    @property
    def load_data(self) -> LoadData | None:
        """Load and partition data; None: ``run`` receives the whole data set."""

    @property
    def load_new(self) -> LoadData | None:
        """Load rows to predict, which need fewer columns than rows to train on; None: `load_data` loads them."""

    @property
    def plan(self) -> Plan | None:
        """The planner, or None."""

    @property
    def measure(self) -> Measure | None:
        """Measure the parties for the planner, or None."""

    @property
    def predict(self) -> Predict | None:
        """Prediction, or None."""

    @property
    def predictors(self) -> Actors | None:
        """The classes of the actors that predict in a configuration; `fedactors inspect` reads their endpoints too."""

    @property
    def export(self) -> Export | None:
        """Export of one party's part of the model, or None."""

    @property
    def network(self) -> Network | None:
        """Build a torch module from a part's arrays and settings, for models that are no torch modules."""

    @property
    def neighbours(self) -> Neighbours | None:
        """The neighbouring data sets of its privacy claims; required for a protocol that claims a budget."""

    @property
    def surface(self) -> Surface | None:
        """The view of its attackers, for `fedactors audit RUN --attacks`."""

    @property
    def takes_queries(self) -> bool:
        """Whether it trains on a query's joined rows as well as on files (`fedactors.data.alignment.rows`)."""

    @property
    def takes_nodes(self) -> bool:
        """Whether it trains on graphs whose nodes lie in tables (`fedactors.data.alignment.nodes`)."""

    @property
    def between_sites(self) -> Mapping[str, Any]:
        """Default config values of a run between sites."""

    @property
    def problem(self) -> str:
        """The problem it solves, as `fedactors list` prints it."""

    @property
    def emulate(self) -> float | None:
        """Scale at which a run on embedded Ray emulates links and costs by default: for protocols of hours."""


def _part(name: str, default: str) -> Any:
    """Return a property that imports a part of a protocol: from `NAME_at`, or from its customary file."""

    def get(self: LazyProtocol) -> Any:
        return self._imported(getattr(self, f"{name}_at"), default)

    return property(get)


@dataclass(frozen=True, kw_only=True)
class ProtocolFacts:
    """Facts about a protocol, without its parts; see `Protocol`."""

    name: str
    summary: str
    partition: str
    default_data: str
    headline: Headline
    party_loss: frozenset[str] = frozenset({"stop"})
    default_party_loss: str = "stop"
    predicts_within_account: bool = False
    smoke: Mapping[str, Any] = field(default_factory=dict)
    paper: Mapping[str, Any] = field(default_factory=dict)
    takes_queries: bool = False
    takes_nodes: bool = False
    between_sites: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""
    emulate: float | None = None


@dataclass(frozen=True)
class LazyProtocol(ProtocolFacts):
    """A `Protocol` whose heavy parts are imported at first use.

        PROTOCOL = LazyProtocol("acme.ring", name="ring", ...)

    Each part has its customary file in `package`: ``run:run`` and ``run:actors``, ``data:load_data``, ... (below). A
    part whose file or attribute is missing is not offered. `NAME_at` gives another address; an empty one: no such
    part.
    """

    package: str = ""
    _: KW_ONLY
    config_at: str | None = None
    run_at: str | None = None
    messages_at: str | None = None
    actors_at: str | None = None
    load_data_at: str | None = None
    load_new_at: str | None = None
    plan_at: str | None = None
    measure_at: str | None = None
    predict_at: str | None = None
    predictors_at: str | None = None
    export_at: str | None = None
    network_at: str | None = None
    neighbours_at: str | None = None
    surface_at: str | None = None

    @property
    def Config(self) -> type[Any]:  # noqa: N802
        """The config dataclass: the one class of the package's ``config`` whose name ends so."""
        if self.config_at is not None:
            return cast(type[Any], resolve_address(self.config_at))
        module = importlib.import_module(f"{self.package}.config")
        configs = [value for name, value in vars(module).items() if name.endswith("Config")]
        (found,) = (value for value in configs if value.__module__ == module.__name__)
        return cast(type[Any], found)

    run = _part("run", "run:run")
    messages = _part("messages", "messages")
    actors = _part("actors", "run:actors")
    load_data = _part("load_data", "data:load_data")
    load_new = _part("load_new", "data:load_new")
    plan = _part("plan", "planner:plan")
    measure = _part("measure", "profiler:measure")
    predict = _part("predict", "serving:predict")
    predictors = _part("predictors", "serving:predictors")
    export = _part("export", "serving:part")
    network = _part("network", "exported:network_of")
    neighbours = _part("neighbours", "privacy:neighbours")
    surface = _part("surface", "privacy:surface")

    def _imported(self, address: str | None, default: str) -> Any:
        if address is not None:
            return resolve_address(address) if address else None
        file, _, attribute = default.partition(":")
        if not self.package or importlib.util.find_spec(f"{self.package}.{file}") is None:
            return None
        module = importlib.import_module(f"{self.package}.{file}")
        return getattr(module, attribute, None) if attribute else module


@dataclass(frozen=True, kw_only=True)
class PluginEntry:
    """One entry point of the group: the protocol, or why it could not be loaded."""

    name: str
    package: str
    protocol: Protocol | None = None
    error: str | None = None
    hidden_by: str | None = None
    """Folder or file that stands before the plugin's own package on the path, if that is why."""


def canonical(name: str) -> str:
    """Return a protocol's name with hyphens, in lower case."""
    return name.strip().lower().replace("_", "-")


def discover() -> list[PluginEntry]:
    """Return every protocol that is installed, by name; a broken plugin appears with its error and hides no other."""
    found = []
    for point in _points():
        package = point.dist.name if point.dist is not None else point.value.partition(".")[0]
        try:
            protocol = _load(point)
        except BadInput as error:
            hidden_by = _hidden_by(point)
            found.append(
                PluginEntry(name=canonical(point.name), package=package, error=str(error), hidden_by=hidden_by)
            )
        else:
            found.append(PluginEntry(name=canonical(point.name), package=package, protocol=protocol))
    return found


def loader(protocol: Protocol, *, is_new: bool) -> LoadData | None:
    """Return the function that loads a protocol's data: rows to train on, or to predict."""
    return protocol.load_new or protocol.load_data if is_new else protocol.load_data


def protocol_names() -> list[str]:
    """Return the names of all protocols that are installed, without importing any."""
    return [canonical(point.name) for point in _points()]


def find_protocol(name: str) -> Protocol:
    """Return the protocol called `name` (hyphens or underscores).

    Raises:
        BadInput: no such protocol (with the nearest name), or its plugin is broken.
    """
    points = {canonical(point.name): point for point in _points()}
    wanted = canonical(name)
    if wanted not in points:
        raise BadInput(f"protocol: unknown protocol {name!r}{suggested(wanted, points)}")
    return _load(points[wanted])


def resolve_address(address: str) -> Any:
    """Import ``package.module:attribute``, or ``package.module``."""
    module, _, attribute = address.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def _points() -> tuple[EntryPoint, ...]:
    entries: list[tuple[str, int, int]] = []
    for entry in sys.path:
        with contextlib.suppress(OSError):
            found = os.stat(entry or ".")
            entries.append((entry, found.st_ino, found.st_mtime_ns))
    return _points_in(tuple(entries))


@functools.lru_cache(maxsize=1)
def _points_in(entries: tuple[tuple[str, int, int], ...]) -> tuple[EntryPoint, ...]:
    """Return the entry points while the folders of the path are as they were: to find them, every package is read.

    To install or remove a package changes the folder that it lies in.
    """
    unique = {(canonical(point.name), point.value): point for point in entry_points(group=GROUP)}
    by_name: dict[str, EntryPoint] = {}
    for (name, _), point in sorted(unique.items()):
        by_name.setdefault(name, point)
    return tuple(by_name.values())


def _load(point: EntryPoint) -> Protocol:
    if shadow := _hidden_by(point):
        raise BadInput(
            f"protocol {canonical(point.name)}: {shadow} hides its module {point.module!r}: "
            "rename it, or start from another folder"
        )
    try:
        loaded = point.load()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise BadInput(f"protocol {canonical(point.name)}: its plugin {point.value!r} is broken: {reason}") from error
    check_contract(loaded, f"protocol {canonical(point.name)}: its plugin {point.value!r}")
    protocol: Protocol = loaded
    return protocol


def _hidden_by(point: EntryPoint) -> str | None:
    """Return the folder or file that stands before a plugin's own package on the path, if there is one.

    The working directory counts wherever it stands: Ray puts it on the path of each worker process.
    """
    if point.dist is None or not _holds(point.dist, point.module):
        return None
    folders = ["", *sys.path]
    last = None
    # an editable install may find what no folder of the path holds
    others = [finder for finder in sys.meta_path if finder is not PathFinder]
    parts = point.module.split(".")
    for end, part in enumerate(parts, start=1):
        spec = PathFinder.find_spec(part, folders)
        for finder in others if spec is None else []:
            spec = spec or finder.find_spec(".".join(parts[:end]), folders)
        if spec is None:
            return last
        folders = list(spec.submodule_search_locations or ())
        last = folders[0] if folders else spec.origin
    return None


def _holds(distribution: Distribution, module: str) -> bool:
    """Say whether a distribution, installed as a copy or as a link to its sources, has the file of a module."""
    roots = [Path(str(distribution.locate_file("")))]
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        source = Path(unquote(urlsplit(origin["url"]).path))
        roots += [source, source / "src"]
    file = f"{module.replace('.', '/')}.py"
    return any((root / file).is_file() for root in roots)


def check_contract(candidate: Any, who: str) -> None:
    """Check that `candidate` has what `Protocol` asks, without importing anything heavy.

    Raises:
        BadInput: names what is missing or not allowed.
    """
    required = [name for name, value in vars(Protocol).items() if isinstance(value, property)]
    missing = [name for name in required if inspect.getattr_static(candidate, name, None) is None]
    missing = [name for name in missing if name not in _OPTIONAL]
    if missing:
        raise BadInput(f"{who} lacks {', '.join(missing)}")
    unknown = set(candidate.party_loss) - set(PARTY_LOSS)
    if unknown or candidate.default_party_loss not in candidate.party_loss:
        raise BadInput(
            f"{who} has party_loss {sorted(candidate.party_loss)} with default {candidate.default_party_loss!r}: "
            f"some of {', '.join(PARTY_LOSS)}, the default among them"
        )
