"""From a protocol, its config and the options of a command to finished runs.

`resolve` turns words and flags into a config; `launch` runs it once per seed. Each run: load the data, make the run
folder, build the runtime, execute, write the summary. Where something goes wrong is written to ``error.txt`` there;
a run that never began leaves no folder.

A run over a federation that goes on by itself when a site was lost and is back.

A run over a federation, from a command's options: what is proposed to the sites, and the runtime that runs it.

From a finished run and new data to predictions: the parties' actors with their trained states, on either runtime.

What a user does with an exported part of a model; importing this loads nothing heavy.

Data that a run folder names: which of them may be opened because it does, and which only if the user names them too.

The name of a data set is harmless. A description of own data (``.toml``) is not: it names files, and databases to which
this process would send a password. So whoever uses a run of own data names the description again (``--data FILE``).

What Ctrl-C and a terminating signal do to a run: they ask it to stop, the second time at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field, PositiveFloat, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from fedactors.config import as_dict, build_given, check_trusted, named_files, spell_infinities, with_contents
from fedactors.data.new_rows import StoredState, check_ending
from fedactors.errors import BadInput, DataMissing, FedactorsError, PartyLost, Stopped
from fedactors.inspection import COUNTED, describe_protections
from fedactors.options import MOST_WORKERS, RunOptions
from fedactors.plugins import Protocol, loader
from fedactors.privacy.accounting import budgets
from fedactors.runs.folder import SUMMARY, Checkpoint, RunFolder
from fedactors.runs.metrics import Summary, json_line, jsonable
from fedactors.runs.party_states import FoundStates, StateLocations, make_places, proven_places
from fedactors.runs.progress import check_trackers, open_progress, open_trackers
from fedactors.runs.recorder import FolderRecorder, Recorder
from fedactors.runs.storage import local_path
from fedactors.runs.timeline import activities
from fedactors.runtime.addresses import check_reachable
from fedactors.runtime.failures import without_words
from fedactors.runtime.interface import Runtime, Snapshot
from fedactors.runtime.snapshots import check_actors, in_use
from fedactors.serving.predictions import Application, Outcomes
from fedactors.validation import read_text, shown, without_controls

if TYPE_CHECKING:
    from fedactors.federation.approval import Proposal
    from fedactors.federation.site_folder import SiteFolder
    from fedactors.serving.parts import Part

_ELSEWHERE = (
    "runtime",
    "address",
    "pool",
    "emulate",
    "lease",
    "place",
    "spread",
    "state",
    "state_key",
    "trust",
)


def resolve_federated(protocol: Protocol, words: Sequence[str], options: RunOptions) -> tuple[Any, RunOptions]:
    """Return the validated config and the options of a run over a federation.

    Raises:
        BadInput: a flag that has no meaning there, several seeds, or no data.
    """
    _refuse_elsewhere(options, "--federation")
    if options.smoke and options.full:
        raise BadInput("--smoke and --full exclude each other")
    if len(options.seeds or ()) > 1:
        raise BadInput("--seeds: is not allowed with --federation: each run is approved by itself")
    if options.data is None:
        raise BadInput("--data: missing: give SITE=NAME,SITE=NAME, the names that the sites have for their data")
    preset = protocol.smoke if options.smoke else protocol.full if options.full else {}
    if any(field.name == "on_party_loss" for field in dataclasses.fields(protocol.Config)):
        preset = {"on_party_loss": "stop", **preset}
    seeds = options.seeds or (options.seed or 0,)
    config = build_given(protocol.Config, words, preset)
    # no path of this host's is a setting that others could open
    return with_contents(config), dataclasses.replace(options, seeds=seeds, runtime="federated")


def resume_federated(options: RunOptions, stored: Mapping[str, Any]) -> RunOptions:
    """Return the options of a run over a federation that goes on.

    Args:
        options: of the command.
        stored: what the run was made with.

    Raises:
        BadInput: a flag that has no meaning there, or no federation is given.
    """
    _refuse_elsewhere(options, "--federation")
    if options.federation is None:
        raise BadInput("--resume: the run was over a federation: give --federation FILE")
    if options.data is not None:
        raise BadInput("--resume takes no overrides of what is trained: --data given")
    if options.budget or options.share_seed:
        raise BadInput("--resume takes no overrides of what was approved: --budget or --share-seed given")
    return dataclasses.replace(options, seeds=(stored["seed"],), data=stored["data"], runtime="federated")


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A run over a federation that is to be proposed."""

    proposal: Proposal
    data: Any
    """As the driver knows them, names only."""
    make: Callable[[Recorder | None], Runtime]


def prepare_federated(protocol: Protocol, config: Any, options: RunOptions, seed: int) -> Prepared:
    """Return what is proposed to the sites, and what makes the runtime.

    Raises:
        BadInput: the federation, the site beside its file, the data's names, or the run to go on from are wrong.
    """
    from fedactors.federation.approval import go_on, make_proposal
    from fedactors.federation.runtime import checkpoint_number
    from fedactors.federation.site_folder import parse_budgets

    folder = _site(options)
    if options.resume is not None:
        parent = RunFolder.open(options.resume)
        number = checkpoint_number(parent.checkpoint_to_resume().driver)
        return _prepared(folder, protocol, config, go_on(folder, _run_of(parent), number, "resume"), seed)
    settings = spell_infinities(as_dict(config))
    shared = seed if options.share_seed else None
    proposal = make_proposal(folder, protocol, settings, options.data or "", shared, parse_budgets(options.budget))
    return _prepared(folder, protocol, config, proposal, seed)


def prepare_prediction(
    protocol: Protocol, config: Any, run: RunFolder, driver: bytes, options: RunOptions, seed: int
) -> Prepared:
    """Return what is proposed to the sites that have the parts of a trained model.

    Args:
        protocol: of the run.
        config: of the run.
        run: its folder, at the coordinator.
        driver: the driver's part of one of its checkpoints.
        options: federation, and the names of each site's new rows.
        seed: of the run.

    Raises:
        BadInput: as `prepare_federated`.
    """
    from fedactors.federation.approval import go_on
    from fedactors.federation.runtime import checkpoint_number

    _refuse_elsewhere(options, "--federation")
    folder = _site(options)
    proposal = go_on(folder, _run_of(run), checkpoint_number(driver), "predict", options.data or "")
    return _prepared(folder, protocol, config, proposal, seed)


def _prepared(folder: SiteFolder, protocol: Protocol, config: Any, proposal: Proposal, seed: int) -> Prepared:
    from fedactors.federation.approval import classes_of
    from fedactors.federation.runtime import FederatedRuntime
    from fedactors.runs.recorder import FolderRecorder

    classes = classes_of(protocol, config, proposal.purpose).values()

    def make(recorder: Recorder | None) -> Runtime:
        assert recorder is None or isinstance(recorder, FolderRecorder)
        return FederatedRuntime(folder, proposal, classes, seed=seed, recorder=recorder)

    load = loader(protocol, is_new=proposal.purpose == "predict")
    assert load is not None
    return Prepared(proposal, load(config, proposal.described(), seed), make)


def _site(options: RunOptions) -> SiteFolder:
    from fedactors.federation.site_folder import FEDERATION, SITE, SiteFolder

    path = Path(options.federation or "")
    if path.name != FEDERATION:
        raise BadInput(
            f"--federation: {options.federation!r} is not allowed: give the {FEDERATION} in the folder of your site"
        )
    read_text(path, "--federation")
    if not (path.parent / SITE).is_file():
        raise BadInput(f"--federation: {shown(str(path))} is not allowed: no {SITE} lies beside it")
    return SiteFolder(path.parent)


def _run_of(folder: RunFolder) -> str:
    """Return by which id the sites know the run in a folder.

    Raises:
        BadInput: it was not over a federation.
    """
    if isinstance(own := folder.config.get("site"), dict):
        raise BadInput(
            f"{folder.path}: these are the records of the site {own.get('name')} alone: the run goes on, and predicts, "
            f"from the run folder of its coordinator, {own.get('coordinator')}"
        )
    found = (folder.config.get("federation") or {}).get("run")
    if not isinstance(found, str):
        raise BadInput(f"{folder.path}: this run was not over a federation")
    return found


def _refuse_elsewhere(options: RunOptions, why: str) -> None:
    for flag in _ELSEWHERE:
        if getattr(options, flag):
            raise BadInput(f"--{flag.replace('_', '-')}: is not allowed with {why}")


def is_description(name: str | None) -> bool:
    """Say whether data are a description of own data; of all else `launch.check_data` allows known names only."""
    return name is not None and name.endswith(".toml")


def way_on(place: str, data: str | None) -> str:
    """Return how to go on with the run at `place`, in the words of a command."""
    named = f" --data {shlex.quote(data or '')}" if is_description(data) else ""
    return f"--resume {place}{named}"


def data_to_resume(folder: RunFolder, given: str | None) -> str | None:
    """Return the data with which the run in `folder` goes on: those that it had; None: the protocol's.

    Args:
        folder: the run's; perhaps a stranger's.
        given: as ``--data`` says.

    Raises:
        BadInput: a data set is named anew, or a description is not, or is another one than the run's.
    """
    stored: str | None = folder.config.get("data")
    if stored is None or not is_description(stored):
        if given is not None:
            raise BadInput("--resume takes no overrides of what is trained: --data given")
        return stored
    if given is None:
        raise BadInput(
            f"--data: missing: the run was of own data, {shown(stored)}, "
            "which are opened only if you name them as well: "
            f"fedactors run {folder.config['protocol']} {way_on(folder.place, stored)}"
        )
    if "\0" in given + stored or os.path.realpath(given) != os.path.realpath(stored):
        raise BadInput(f"--data: {shown(given)} is not allowed: the run was of {shown(stored)}, and goes on with it")
    return given


def data_to_audit(folder: RunFolder, given: str | None) -> str:
    """Return the data with which the run in `folder` is replayed or attacked: those given, or the data set that it had.

    Raises:
        BadInput: it had own data, and none are given.
    """
    stored: str | None = folder.config.get("data")
    if given is None and is_description(stored):
        raise BadInput(
            f"--data: missing: the run was of own data, {shown(stored)}, which are opened only if you name them as well"
        )
    if (data := given or stored) is None:
        raise BadInput(f"{folder.path}: config.json is damaged (data missing)")
    return data


class StopSignals:
    """SIGINT and SIGTERM ask the runtime to stop; before there is one, or the second time, they stop at once."""

    def __init__(self) -> None:
        self.runtime: Runtime | None = None
        self._asked = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        code = 128 + number
        if self.runtime is None or self._asked:
            word = "interrupted" if number == signal.SIGINT else "terminated"
            raise Stopped(f"{word} {'without a new checkpoint' if self._asked else 'before the first round'}", code)
        self._asked = True
        self.runtime.request_stop(code)


@pydantic_dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))
class _StoredOptions:
    """Of a run's options those that decide it: a run that goes on goes on with them."""

    emulate: PositiveFloat | None = None
    pool: Annotated[int, Field(ge=0, le=MOST_WORKERS)] | None = None
    place: Mapping[str, str] = dataclasses.field(default_factory=dict)
    spread: Literal["pack", "spread", "strict-pack", "strict-spread"] | None = None
    lease: PositiveFloat | None = None
    state: Mapping[str, str] = dataclasses.field(default_factory=dict)
    state_key: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, options: RunOptions) -> _StoredOptions:
        """Return those of `options`."""
        return cls(
            emulate=options.emulate,
            pool=options.pool,
            place=dict(options.place),
            spread=options.spread,  # type: ignore[arg-type]
            lease=options.lease,
            state=dict(options.state),
            state_key=dict(options.state_key),
        )

    def given(self) -> dict[str, Any]:
        """Return them as fields of `RunOptions`."""
        pairs = {name: tuple(getattr(self, name).items()) for name in ("place", "state", "state_key")}
        return {**vars(self), **pairs}


def resolve(protocol: Protocol, words: Sequence[str], options: RunOptions) -> tuple[Any, RunOptions]:
    """Return the validated config and the options with everything filled in.

    Raises:
        BadInput: see `fedactors.config.build`; flags that exclude each other; a run folder that cannot be resumed.
    """
    check_trackers(options.track)
    _refuse_blanks(options)
    if options.federation is not None and options.resume is None:
        return resolve_federated(protocol, words, options)
    for flag in ("share_seed", "budget", "go_on"):
        if getattr(options, flag) and options.federation is None:
            raise BadInput(f"--{flag.replace('_', '-')}: needs --federation")
    if options.resume is not None:
        return _resolve_resume(protocol, words, options)
    if options.trust:
        raise BadInput("--trust: needs --resume; what a run's own words name is trusted as it is")
    check_runtime_flags(options, options.runtime or "ray")
    if options.smoke and options.full:
        raise BadInput("--smoke and --full exclude each other")
    preset = protocol.smoke if options.smoke else protocol.full if options.full else {}
    config = build_given(protocol.Config, words, preset)
    seeds = options.seeds or (options.seed or 0,)
    filled = dataclasses.replace(
        options, seeds=seeds, data=options.data or protocol.default_data, runtime=options.runtime or "ray"
    )
    filled = _with_states(filled, _described_states(filled.data or ""))
    if filled.runtime == "ray" and filled.emulate is None and is_here(filled):
        filled = dataclasses.replace(filled, emulate=getattr(protocol, "emulate", None))
    return config, filled


def check(protocol: Protocol, words: Sequence[str], options: RunOptions) -> None:
    """Check what can be checked of a run where nothing is started, such as one that goes to a cluster.

    Raises:
        BadInput: as `resolve`; a run folder or data are looked for where the run will be.
    """
    _refuse_blanks(options)
    there = dataclasses.replace(options, resume=None, address=None, trust=() if options.resume else options.trust)
    resolve(protocol, () if options.resume else words, there)


def _refuse_blanks(options: RunOptions) -> None:
    for flag in ("out", "data", "address", "resume", "federation"):
        value = getattr(options, flag)
        if value is not None and not value.strip():
            raise BadInput(f"--{flag}: {value!r} is not allowed: it names nothing")


def check_runtime_flags(options: RunOptions, runtime: str) -> None:
    """Refuse flags that the runtime would ignore."""
    on_ray = {
        "address": "the simulated runtime is one process",
        "place": "it has hosts",
        "spread": "it has hosts",
        "emulate": "the simulated runtime's clock is virtual",
        "lease": "in simulation no process can hang",
    }
    for flag, why in on_ray.items():
        if runtime == "simulated" and getattr(options, flag):
            raise BadInput(f"--{flag}: needs --runtime ray; {why}")
    if options.pool and runtime == "ray":
        raise BadInput("--pool: needs --runtime simulated; on Ray every actor has a process of its own")


def _described_states(data: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the places and keys of parties' states that a description of own data gives."""
    if not (data.endswith(".toml") and Path(data).is_file()):
        return {}, {}
    from fedactors.data.description import load_states

    return load_states(Path(data))


def _with_states(options: RunOptions, known: tuple[Mapping[str, str], Mapping[str, str]]) -> RunOptions:
    """Return the options with the places and keys of states that are known, below those that they have."""
    where, keys = {**known[0], **dict(options.state)}, {**known[1], **dict(options.state_key)}
    make_places(where, keys)
    return dataclasses.replace(options, state=tuple(where.items()), state_key=tuple(keys.items()))


def is_here(options: RunOptions) -> bool:
    """Say whether the parties of a run are on this machine."""
    return options.address is None and "RAY_ADDRESS" not in os.environ


def launch(protocol: Protocol, config: Any, options: RunOptions, *, scenario: str | None = None) -> list[Summary]:
    """Run `protocol` once per seed and return the summaries.

    Args:
        protocol: what to run.
        config: an instance of its config.
        options: as `resolve` returns them.
        scenario: name in the run folder's; the protocol's by default.

    Raises:
        Stopped: interrupted or terminated, after a checkpoint.
        FedactorsError: anything foreseen that went wrong.
    """
    if (options.runtime or "ray") == "ray" and (address := options.address or os.environ.get("RAY_ADDRESS")):
        check_reachable(address)
    config = with_contents(config)
    return [_run_once(protocol, config, options, seed, scenario or protocol.name) for seed in options.seeds or (0,)]


def make_runtime(options: RunOptions, seed: int, recorder: Recorder | None) -> Runtime:
    """Build the runtime that the options name; only here the two are told apart."""
    if options.runtime == "simulated":
        from fedactors.runtime.simulation.runtime import SimulatedRuntime

        return SimulatedRuntime(seed=seed, recorder=recorder, pool=options.pool or 0)
    from fedactors.runtime.ray.runtime import LEASE_SECONDS, RayRuntime

    return RayRuntime(
        seed=seed,
        recorder=recorder,
        address=options.address,
        labels=dict(options.place),
        placement=options.spread.upper().replace("-", "_") if options.spread else None,
        emulate=options.emulate is not None,
        scale=options.emulate or 1.0,
        lease=options.lease or LEASE_SECONDS,
    )


def measure(protocol: Protocol, config: Any, options: RunOptions) -> list[Mapping[str, Any]]:
    """Return the profiles that the parties of a run make of their machines, for the protocol's planner.

    Args:
        protocol: which one.
        config: its settings.
        options: data, and where the parties' actors run.

    Raises:
        BadInput: the protocol measures nothing, or flags, data and runtime do not go together.
    """
    if protocol.measure is None:
        raise BadInput(f"--measure: {protocol.name} measures no machines")
    _refuse_blanks(options)
    chosen = options.runtime or "ray"
    check_runtime_flags(options, chosen)
    options = dataclasses.replace(options, runtime=chosen)
    if chosen == "ray" and (address := options.address or os.environ.get("RAY_ADDRESS")):
        check_reachable(address)
    config, seed = with_contents(config), 0
    data = load_data(protocol, config, options.data or protocol.default_data, seed, is_here(options))
    runtime, made = make_runtime(options, seed, None), protocol.measure
    return list(runtime.execute(lambda: made(config, data, runtime)))


def load_data(protocol: Protocol, config: Any, name: str, seed: int, here: bool = True, *, is_new: bool = False) -> Any:
    """Load and partition the data set or own-data file `name` as the protocol wants it.

    Args:
        protocol: which one.
        config: its settings.
        name: data set or description file.
        seed: the run's seed.
        here: whether the parties run on this machine: then missing files are told before anything is started.
        is_new: rows to predict.

    Raises:
        BadInput: unknown name, a file that is not there, or data of another layout.
        DataMissing: the files of the data set are not on this machine.
    """
    check_data(protocol, name, here)
    if (own := loader(protocol, is_new=is_new)) is not None:
        return own(config, name, seed)
    from fedactors.data.datasets.load import load

    return load(name)


def check_data(protocol: Protocol, name: str, here: bool = True) -> None:
    """Check, without loading anything, what `load_data` does.

    Raises:
        BadInput: unknown name, a file that is not there, or data of another layout.
        DataMissing: the files of the data set are not on this machine.
    """
    if name.endswith(".toml"):
        if not os.path.isfile(name):
            raise BadInput(f"--data: {shown(name)} {'is no file' if os.path.exists(name) else 'does not exist'}")
    else:
        from fedactors.data.datasets.catalogue import describe
        from fedactors.data.datasets.download import require_files

        dataset = describe(name)
        layouts = dataset.layouts
        if protocol.partition not in layouts:
            raise BadInput(
                f"--data: {name!r} is not allowed: {protocol.name} needs {protocol.partition} data, "
                f"this can be {' or '.join(layouts)}"
            )
        if here:
            require_files(dataset)


def restore_config(protocol: Protocol, folder: RunFolder, trusted: Collection[str]) -> Any:
    """Return the config that the run in `folder` was made with.

    Args:
        protocol: whose run it is.
        folder: the run's; perhaps a stranger's.
        trusted: the code that the user has named now, which the config may name as well.

    Raises:
        BadInput: it is damaged, the protocol's config has changed since, or it names other code.
    """
    stored = folder.config
    if missing := [key for key in ("protocol", "config", "seed", "data", "runtime") if key not in stored]:
        raise BadInput(f"{folder.path}: config.json is damaged ({', '.join(missing)} missing)")
    try:
        config = TypeAdapter(protocol.Config).validate_python(stored["config"])
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{folder.path}: config.json does not fit {protocol.name}: {place}: {first['msg']}") from None
    for name, value in named_files(config).items():  # a run keeps contents
        raise BadInput(f"{folder.path}: config.json: {name}: {shown(value)} is not opened: a run folder names no files")
    check_trusted(config, trusted, str(folder.path))
    return config


def _resolve_resume(protocol: Protocol, words: Sequence[str], options: RunOptions) -> tuple[Any, RunOptions]:
    flags = {
        "key=value words": bool(words),
        "--seed": options.seed is not None,
        "--seeds": options.seeds is not None,
        "--smoke": options.smoke,
        "--full": options.full,
    }
    if refused := [flag for flag, given in flags.items() if given]:
        raise BadInput(f"--resume takes no overrides of what is trained: {', '.join(refused)} given")
    parent = RunFolder.open(options.resume or "")
    parent.verify()
    stored = parent.config
    if stored.get("protocol") != protocol.name:
        raise BadInput(f"--resume: {parent.path} is a run of {stored.get('protocol')!r}, not of {protocol.name!r}")
    checkpoint = parent.checkpoint_to_resume()
    check_actors(checkpoint.driver, checkpoint.actors)
    config = restore_config(protocol, parent, options.trust)
    if stored["runtime"] == "federated":
        return config, resume_federated(options, stored)
    if options.federation is not None:
        raise BadInput(f"--federation: {parent.path} is no run over a federation")
    runtime = options.runtime or ("ray" if options.address else stored["runtime"])
    check_runtime_flags(options, runtime)
    data = data_to_resume(parent, options.data)
    resumed = dataclasses.replace(options, seeds=(stored["seed"],), data=data, runtime=runtime)
    earlier = _options_of(parent)
    resumed = _with_states(resumed, _stored_states(earlier, checkpoint.actors))
    if runtime == stored["runtime"]:
        # what decides the run goes on as it was, unless this command says otherwise
        known = {name: value for name, value in earlier.items() if name not in ("state", "state_key")}
        resumed = dataclasses.replace(resumed, **{k: v for k, v in known.items() if not getattr(resumed, k)})
    elif runtime == "ray" and resumed.emulate is None and is_here(resumed):
        resumed = dataclasses.replace(resumed, emulate=getattr(protocol, "emulate", None))
    return config, resumed


def states_of(
    folder: RunFolder, frames: Mapping[str, bytes], state: Mapping[str, str], keys: Mapping[str, str]
) -> FoundStates:
    """Return the actors' states of a checkpoint, wherever their parties keep them.

    Args:
        folder: the run's.
        frames: of the checkpoint, by actor.
        state: party to place, where another one is given than the run's.
        keys: party to the name of its key, likewise.

    Raises:
        BadInput: a place or key is none.
    """
    where, known = _stored_states(_options_of(folder), frames)
    return FoundStates(frames, make_places({**where, **state}, {**known, **keys}))


def _stored_states(
    earlier: Mapping[str, Any], frames: Mapping[str, bytes]
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the places and keys that a run had for its parties' states, of those that its checkpoint confirms."""
    where = proven_places(dict(earlier["state"]), frames)
    return where, {party: key for party, key in earlier["state_key"] if party in where}


def _options_of(folder: RunFolder) -> dict[str, Any]:
    """Return the options that a run was started with, as `RunOptions` has them.

    Raises:
        BadInput: they are not what this version writes.
    """
    try:
        return TypeAdapter(_StoredOptions).validate_json(json.dumps(folder.config.get("options", {}))).given()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{folder.path}: config.json: options.{place}: {first['msg']}") from None


def _run_once(protocol: Protocol, config: Any, options: RunOptions, seed: int, scenario: str) -> Summary:
    parent = RunFolder.open(options.resume) if options.resume else None
    total = getattr(config, "num_rounds", getattr(config, "num_epochs", None))
    with (
        StopSignals() as signals,
        contextlib.closing(
            open_progress(quiet=options.quiet, total=total, headline=protocol.headline.name)
        ) as progress,
    ):
        name = options.data or protocol.default_data
        progress.phase(f"reading {name}")
        make: Callable[..., Runtime] = partial(make_runtime, options, seed)
        resolved = _resolved(protocol, config, options, seed, scenario)
        if options.federation is not None:
            prepared = prepare_federated(protocol, config, options, seed)
            data, make, resolved["federation"] = prepared.data, prepared.make, {"run": prepared.proposal.run}
        else:
            data = load_data(protocol, config, name, seed, is_here(options))
        folder = RunFolder.create(options.out, scenario, seed, resolved, parent=parent)
        recorder: FolderRecorder | None = None
        try:
            trackers = open_trackers(options.track, folder.path, as_dict(config))
            recorder = FolderRecorder(folder, parent=parent, progress=progress, trackers=trackers)
            runtime = make(recorder)
            recorder.usage, runtime.tell, runtime.way_on = runtime.usage, progress.phase, _way_on(folder, options)
            events = recorder.events
            runtime.watched = progress.watch(lambda: activities(runtime.ledger.totals(), events))
            signals.runtime = runtime
            if options.state:
                runtime.states = StateLocations(
                    make_places(dict(options.state), dict(options.state_key)), folder.path.name
                )
            checkpoint = recorder.load_checkpoint()
            snapshot = None if checkpoint is None else Snapshot(checkpoint.actors, checkpoint.driver, checkpoint.folder)
            # what a run that was resumed fails with in its first round is its checkpoint's
            with in_use(snapshot.folder if snapshot else "", lambda: recorder.num_rounds <= 1):
                result = runtime.execute(lambda: protocol.run(config, data, runtime), snapshot)
                kind = options.runtime or "ray"
                used, at = runtime.usage(), folder.place
                summary = Summary.of(result, used, run=at, protocol=protocol.name, runtime=kind, seed=seed)
                recorder.close()
                folder.write_json(SUMMARY, {**summary.as_dict(), "run": folder.path.name})
            folder.finish("finished")
        except BaseException as error:
            _close_failed(folder, options, recorder, error)
            raise
    return summary


def _close_failed(
    folder: RunFolder, options: RunOptions, recorder: FolderRecorder | None, error: BaseException
) -> None:
    """Leave a folder that says what happened, or none if nothing had happened yet."""
    never_began = recorder is None or recorder.num_rounds == 0
    code = error.exit_code if isinstance(error, FedactorsError) else 1
    if never_began and code in (BadInput.exit_code, DataMissing.exit_code):
        if recorder is not None:
            recorder.abandon()
        folder.discard()
        return
    status = "stopped" if isinstance(error, Stopped) else "failed"
    with contextlib.suppress(FedactorsError, OSError):
        if status == "failed":
            folder.write_bytes("error.txt", without_words(error).encode())
            error.add_note(f"details: {folder.place}/error.txt")
        if recorder is not None:
            recorder.close()
        folder.finish(status)
    if recorder is not None:
        recorder.abandon()
    folder.release()
    if folder.manifest["checkpoints"] and not isinstance(error, BadInput):
        error.add_note(_way_on(folder, options))
        if isinstance(error, PartyLost):
            error.run = folder.place


def _way_on(folder: RunFolder, options: RunOptions) -> str:
    return f"go on with {way_on(folder.place, options.data)}"


def _resolved(protocol: Protocol, config: Any, options: RunOptions, seed: int, scenario: str) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "scenario": scenario,
        "protocol": protocol.name,
        "runtime": options.runtime,
        "seed": seed,
        "data": options.data,
        "options": dataclasses.asdict(_StoredOptions.of(options)),  # type: ignore[call-overload]
        "headline": {"name": protocol.headline.name, "mode": protocol.headline.mode},
        "config": spell_infinities(as_dict(config)),
    }


def launch_again(protocol: Protocol, config: Any, options: RunOptions) -> list[Summary]:
    """Run, and go on from the last checkpoint each time that a site is lost; see `fedactors.api.launch`.

    That a site is lost is known once it is back without the run, or was away for longer than is waited for. Each time
    the sites are asked again, as by ``--resume``. A loss before a further checkpoint ends the run.

    Raises:
        PartyLost: a site that is not back, or was lost before anything more was done.
        FedactorsError: see `fedactors.api.launch`.
    """
    from fedactors.federation.runtime import checkpoint_number

    done = 0
    while True:
        try:
            return launch(protocol, config, options)
        except PartyLost as error:
            if error.run is None:
                raise
            number = checkpoint_number(RunFolder.open(error.run).checkpoint_to_resume().driver)
            if number <= done:
                raise
            done = number
            was_given = {"runtime": None, "seed": None, "seeds": None, "data": None, "smoke": False, "full": False}
            approved = {"share_seed": False, "budget": ()}
            again = dataclasses.replace(options, resume=error.run, **was_given, **approved)  # type: ignore[arg-type]
        config, options = resolve(protocol, (), again)


def predict(
    protocol: Protocol,
    config: Any,
    folder: RunFolder,
    checkpoint: Checkpoint,
    states: FoundStates,
    options: RunOptions,
    to: str,
) -> tuple[Outcomes, Any]:
    """Predict on new rows.

    Args:
        protocol: of the run.
        config: of the run.
        folder: of the run.
        checkpoint: one of its checkpoints.
        states: of it; each goes to its own actor only.
        options: new data, and where to run (on what the run was on, unless they say).
        to: where the party that owns the predictions writes them; over a federation the name of a file.

    Returns:
        What came of it, and what it cost in privacy, by party.

    Raises:
        BadInput: the protocol cannot predict, data, states or file are not what is needed, or what is released could
            not be counted in the run's folder.
    """
    if protocol.predict is None:
        raise BadInput(f"predict: {protocol.name} cannot predict")
    stored = folder.config
    if stored["runtime"] == "federated" or options.federation is not None:
        return _predict_federated(protocol, config, folder, checkpoint, options, to), {}
    chosen = options.runtime or ("ray" if options.address else stored["runtime"])
    options = dataclasses.replace(options, runtime=chosen)
    check_runtime_flags(options, chosen)
    if chosen == "ray" and (address := options.address or os.environ.get("RAY_ADDRESS")):
        check_reachable(address)
    here = is_here(options)
    data = load_data(protocol, config, options.data or "", stored["seed"], here, is_new=True)
    # on another host it is that host's own path
    place = str(local_path(check_ending(to), "--to").resolve()) if here else to
    found = {name: stored_state(states, name) for name in states}
    asked = Application(stored=found, to=place)
    if any(one["on"] and one["kind"] in COUNTED for one in describe_protections(protocol, config)):
        folder.check_countable()
    runtime = make_runtime(options, stored["seed"], None)
    made = protocol.predict
    try:
        outcomes = runtime.execute(lambda: made(config, data, runtime, asked))
    finally:  # what has been released is counted even if the prediction fails
        if runtime.privacy_records:
            folder.count([json_line(jsonable(record)) for record in runtime.privacy_records])
    return tuple(outcomes), budgets(runtime.privacy_records)


def _predict_federated(
    protocol: Protocol, config: Any, folder: RunFolder, checkpoint: Checkpoint, options: RunOptions, to: str
) -> Outcomes:
    """Predict at the sites that have the parts of the model: each counts what it releases, with its own part."""
    if options.federation is None:
        raise BadInput(f"{folder.path}: the run was over a federation: give --federation FILE")
    if check_ending(to) != Path(to).name:
        raise BadInput(f"--to: {to!r} is not allowed over a federation: a name, for the folder of whoever owns them")
    stored = folder.config
    prepared = prepare_prediction(protocol, config, folder, checkpoint.driver, options, stored["seed"])
    # what each site wrote then is known here by its digest
    found = {name: StoredState(actor=name, frame=digest) for name, digest in checkpoint.actors.items()}
    runtime, made = prepared.make(None), protocol.predict
    runtime.tell = lambda text: print(without_controls(text), file=sys.stderr, flush=True)
    assert made is not None
    asked = Application(stored=found, to=to)
    outcomes = tuple(runtime.execute(lambda: made(config, prepared.data, runtime, asked)))
    place = f"predictions/{prepared.proposal.run}"
    return tuple(dataclasses.replace(one, to=f"{place}/{one.to}") for one in outcomes)


def stored_state(states: FoundStates, actor: str) -> StoredState:
    """Return an actor's state as it is sent to its process: what the run folder holds, and where the rest is."""
    frame, place = states.stored(actor)
    if place is None:
        return StoredState(actor=actor, frame=frame)
    return StoredState(actor=actor, frame=frame, where=place.where, key=place.key)


def load_part(path: str | Path, trust: Collection[str] = ()) -> Part:
    """Return the part of a model that ``fedactors export`` wrote: module and preprocessing of one party.

        part = fedactors.load_part("model/shop")
        x = part.preprocess("new.csv")
        z = part.bottom(x)

    Args:
        path: the party's folder.
        trust: the code that its models name, ``package.module:function``, and that may be imported.

    Raises:
        BadInput: nothing of that kind is there, it is damaged, or it names code that is not trusted.
    """
    from fedactors.serving.parts import read_part

    return read_part(path, trust)
