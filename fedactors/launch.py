"""From a protocol, its settings and the options of a run to finished runs in their folders.

`resolve` turns settings and options into a config; `launch` runs it once per seed. Each run: load the data, make the
run folder, build the runtime, execute, write the summary. A run that fails says why in ``error.txt`` of its folder; a
run that never began leaves no folder.

A run folder may come from someone else. The name of a data set in it is harmless. A description of your own data
(``.toml``) is not: it names files, and databases to which this process would send a password. So you name it again to
go on with such a run (``--data FILE``).

It is one file because all runs are resolved, prepared and launched in the same steps, wherever they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import difflib
import errno
import os
import re
import shlex
import signal
import termios
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from fedactors.config import (
    as_dict,
    build_given,
    check_trusted,
    code_named_in,
    named_files,
    spell_infinities,
    with_contents,
)
from fedactors.errors import BadInput, BudgetExceeded, DataMissing, FedactorsError, PartyLost, Stopped
from fedactors.options import FLAGS, RunOptions, flag_of
from fedactors.plugins import Protocol, loader
from fedactors.runs.folder import SUMMARY, RunFolder
from fedactors.runs.metrics import Summary, jsonable
from fedactors.runs.party_states import CheckpointStates, StateLocations, make_locations, proven_locations
from fedactors.runs.progress import CallbackTracker, check_callbacks, check_trackers, open_progress, open_trackers
from fedactors.runs.recorder import FolderRecorder, Recorder
from fedactors.runs.timeline import activities
from fedactors.runtime.addresses import check_cluster
from fedactors.runtime.failures import without_words
from fedactors.runtime.interface import Runtime, Snapshot
from fedactors.runtime.snapshots import check_actors, in_use, is_held, is_object, object_at
from fedactors.user_code import digest_in, digests, digests_in, files_of, packaged, read_files, read_signature
from fedactors.validation import is_in_library, read_text, shown

if TYPE_CHECKING:
    from fedactors.federation.approval import Proposal
    from fedactors.federation.site_folder import SiteFolder

T = TypeVar("T")
Words = Sequence[str] | Mapping[str, Any]
"""Settings of a protocol: ``key=value`` words, or values by name."""
NEWEST = "auto"
"""What to resume, where a command does not know the run folder."""
_DECIDED = ("data", "runtime", "seed", "seeds", "smoke", "paper", "share_seed", "budget", "limit", "return_timeout")
"""Options that a run over a federation has kept, and that are not given when it goes on."""


# --- settings and options -------------------------------------------------------------------------------------------


def resolve(protocol: Protocol, words: Words, options: RunOptions) -> tuple[Any, RunOptions]:
    """Return the validated config and the options with everything filled in.

    Raises:
        BadInput: see `fedactors.config.build`; flags that exclude each other; a run folder that cannot be resumed.
    """
    check_trackers(options.track)
    _refuse_blanks(options)
    if options.resume == NEWEST:
        return _resolve_newest(protocol, words, options)
    if options.federation is not None and options.resume is None:
        return resolve_federated(protocol, words, options)
    if options.federation is None:
        for name in options.given(federation="only"):
            raise BadInput(f"{flag_of(name)}: needs --federation")
    if options.resume is not None:
        return _resolve_resume(protocol, words, options)
    if options.allow_import:
        raise BadInput("--allow-import: needs --resume; code that you name on the command line needs no permission")
    check_runtime_flags(options, options.runtime or "ray")
    if options.smoke and options.paper:
        raise BadInput("--smoke is not allowed with --paper")
    preset = protocol.smoke if options.smoke else protocol.paper if options.paper else {}
    config = build_given(protocol.Config, words, preset)
    seeds = options.seeds or (options.seed or 0,)
    filled = dataclasses.replace(
        options, seeds=seeds, data=options.data or protocol.default_data, runtime=options.runtime or "ray"
    )
    filled = _with_states(filled, _described_states(filled.data or ""))
    if filled.runtime == "ray" and filled.emulate is None and is_here(filled):
        filled = dataclasses.replace(filled, emulate=protocol.emulate)
    return config, filled


def _resolve_newest(protocol: Protocol, words: Words, options: RunOptions) -> tuple[Any, RunOptions]:
    """Return what goes on with the newest run of these settings, if it broke off and has a checkpoint; else a new run.

    The same command is then right for the first start and for every restart of the coordinator.

    Raises:
        BadInput: see `resolve`; the run is not over a federation.
    """
    if options.federation is None:
        raise BadInput(f"--resume {NEWEST}: needs --federation; give the run folder to resume from")
    config, begun = resolve(protocol, words, dataclasses.replace(options, resume=None))
    for path in sorted(Path(options.out).glob(f"*-{protocol.name}-*"), reverse=True):
        with contextlib.suppress(BadInput):  # a folder that is being made, or is none
            folder = RunFolder.open(path)
            found = folder.config
            same = (found["protocol"], found["config"], found["data"]) == (
                protocol.name,
                jsonable(spell_infinities(as_dict(config))),
                begun.data,
            )
            if not same or found["runtime"] != "federated" or not folder.manifest["checkpoints"]:
                continue
            if folder.status == "finished":
                break
            return resolve(protocol, (), dataclasses.replace(options.without(*_DECIDED), resume=str(path)))
    return config, begun


def check(protocol: Protocol, words: Words, options: RunOptions) -> None:
    """Check what can be checked of a run where nothing is started, such as one that goes to a cluster.

    Raises:
        BadInput: as `resolve`; a run folder or data are looked for where the run will be.
    """
    _refuse_blanks(options)
    there = dataclasses.replace(
        options, resume=None, address=None, allow_import=() if options.resume else options.allow_import
    )
    resolve(protocol, () if options.resume else words, there)


def _refuse_blanks(options: RunOptions) -> None:
    for name, flag in FLAGS.items():
        value = getattr(options, name)
        if flag.is_location and value is not None and not value.strip():
            raise BadInput(f"{flag_of(name)}: {value!r} is not allowed: it names nothing")


def check_runtime_flags(options: RunOptions, runtime: str) -> None:
    """Refuse flags that the runtime would ignore."""
    if runtime == "simulated":
        for name in options.given():
            if why := FLAGS[name].ray_only:
                raise BadInput(f"{flag_of(name)}: needs --runtime ray; {why}")
    if options.pool and runtime == "ray":
        raise BadInput("--pool: needs --runtime simulated; on Ray every actor has a process of its own")


def _described_states(data: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the locations and keys of parties' states that a description of own data gives."""
    if not (is_object(data) or (data.endswith(".toml") and Path(data).is_file())):
        return {}, {}
    from fedactors.data.description import load_states

    return load_states(Path(data))


def _with_states(options: RunOptions, known: tuple[Mapping[str, str], Mapping[str, str]]) -> RunOptions:
    """Return the options with the locations and keys of states that are known, below those that they have."""
    where, keys = {**known[0], **dict(options.checkpoint_dir)}, {**known[1], **dict(options.checkpoint_key)}
    make_locations(where, keys)
    return dataclasses.replace(options, checkpoint_dir=tuple(where.items()), checkpoint_key=tuple(keys.items()))


def is_here(options: RunOptions) -> bool:
    """Say whether the parties of a run are on this machine."""
    return options.address is None and "RAY_ADDRESS" not in os.environ


def _resolve_resume(protocol: Protocol, words: Words, options: RunOptions) -> tuple[Any, RunOptions]:
    refused = [*(["key=value words"] if words else []), *map(flag_of, options.given(decides=True))]
    if refused:
        raise BadInput(f"--resume takes no overrides of what is trained: {', '.join(refused)} given")
    parent = RunFolder.open(options.resume or "")
    parent.verify()
    stored = parent.config
    if stored.get("protocol") != protocol.name:
        raise BadInput(f"--resume: {parent.path} is a run of {stored.get('protocol')!r}, not of {protocol.name!r}")
    checkpoint = parent.checkpoint_to_resume()
    check_actors(checkpoint.driver, checkpoint.actors)
    config = restore_config(protocol, parent, options.allow_import, options.federation)
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
        known = {name: value for name, value in earlier.items() if name not in ("checkpoint_dir", "checkpoint_key")}
        resumed = dataclasses.replace(resumed, **{k: v for k, v in known.items() if not getattr(resumed, k)})
    elif runtime == "ray" and resumed.emulate is None and is_here(resumed):
        resumed = dataclasses.replace(resumed, emulate=protocol.emulate)
    return config, resumed


def restore_config(
    protocol: Protocol, folder: RunFolder, trusted: Collection[str], federation: str | None = None
) -> Any:
    """Return the config that the run in `folder` was made with.

    Args:
        protocol: whose run it is.
        folder: the run's; it may come from someone else.
        trusted: the code that the user has named now, which the config may name as well.
        federation: file in the folder of a site, whose allowed code the config may name too.

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
        location = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{folder.path}: config.json does not fit {protocol.name}: {location}: {first['msg']}") from None
    for name, value in named_files(config).items():  # a run keeps contents
        raise BadInput(f"{folder.path}: config.json: {name}: {shown(value)} is not opened: a run folder names no files")
    objects = [address for field, address in code_named_in(config).items() if _object_is_here(folder, field, address)]
    allowed = [] if federation is None else _allowed_at(federation, config)
    check_trusted(config, [*trusted, *objects, *allowed], str(folder.path))
    return config


def _allowed_at(federation: str, config: Any) -> list[str]:
    """Return the addresses of a config that are in code which a site allows, without arguments of the config."""
    from fedactors.federation.site_code import is_allowed

    site, named = _site(federation), code_named_in(config).values()
    return [one for one in named if "(" not in one and (found := digest_in(one)) and is_allowed(site, found)]


def _object_is_here(folder: RunFolder, field: str, address: str) -> bool:
    """Say whether a setting names an object of Python; one that is not in this process is refused."""
    if not is_object(address):
        return False
    if not is_held(address):
        made = (folder.config.get("code") or {}).get(field) or {}
        version = f", Python {shown(str(made['python']))}" if "python" in made else ""
        raise BadInput(
            f"{field}: missing: the run used an object of Python ({shown(address.split(':')[1])}{version}); give it "
            f"again: fedactors.load_run({folder.location!r}).resume({field}=...), and so to predict, export and audit"
        )
    return True


def states_of(
    folder: RunFolder, frames: Mapping[str, bytes], checkpoint_dir: Mapping[str, str], keys: Mapping[str, str]
) -> CheckpointStates:
    """Return the actors' states of a checkpoint, wherever their parties keep them.

    Args:
        folder: the run's.
        frames: of the checkpoint, by actor.
        checkpoint_dir: party to location, where another one is given than the run's.
        keys: party to the name of its key, likewise.

    Raises:
        BadInput: a location or key is none.
    """
    where, known = _stored_states(_options_of(folder), frames)
    return CheckpointStates(frames, make_locations({**where, **checkpoint_dir}, {**known, **keys}))


def _stored_states(
    earlier: Mapping[str, Any], frames: Mapping[str, bytes]
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the locations and keys that a run had for its parties' states, of those that its checkpoint confirms."""
    where = proven_locations(dict(earlier["checkpoint_dir"]), frames)
    return where, {party: key for party, key in earlier["checkpoint_key"] if party in where}


def _options_of(folder: RunFolder) -> dict[str, Any]:
    """Return the options that a run was started with, as `RunOptions` has them.

    Raises:
        BadInput: they are not what this version writes.
    """
    found = folder.config.get("options", {})
    if not isinstance(found, dict):
        raise BadInput(f"{folder.path}: config.json: options: an object is needed")
    try:
        return RunOptions.restored(found)
    except BadInput as error:
        raise BadInput(f"{folder.path}: config.json: {error}") from None


# --- data -----------------------------------------------------------------------------------------------------------


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
    if (make_data := loader(protocol, is_new=is_new)) is not None:
        return make_data(config, name, seed)
    from fedactors.data.datasets.load import load

    return load(name)


_FILES = re.compile(
    r"(?i)\.(toml|csv|tsv|txt|data|dat|parquet|pq|feather|arrow|xlsx?|npy|npz|jsonl?|db|duckdb|sqlite)(\.(gz|bz2|zst|zip))?$"
)
"""How names end of what holds rows, or a description of them."""


def _may_be_path(name: str) -> bool:
    """Say whether what is given as data is meant as a path, and not as the name of a data set."""
    return (
        is_in_library(name) or "/" in name or os.sep in name or _FILES.search(name) is not None or os.path.exists(name)
    )


def _path_fault(name: str) -> str:
    """Return why a path is no description of data, with the files that may be meant."""
    is_address = "://" in name or is_in_library(name)
    if is_address or (not name.endswith(".toml") and os.path.exists(name)):
        what = "an address" if is_address else "a folder" if os.path.isdir(name) else "a file of rows"
        return (
            f"is {what}, which does not say whose rows they are and what is predicted: name it as path of a party in a "
            "parties.toml, and give that; in Python fedactors.vertical and fedactors.horizontal take tables"
        )
    if os.path.exists(name):
        return "is no file"
    folder, base = os.path.split(name)
    if not os.path.isdir(folder or "."):
        return f"does not exist: there is no folder {shown(folder)}"
    near = difflib.get_close_matches(base, sorted(os.listdir(folder or ".")), n=3)
    return "does not exist" + (
        f"; did you mean {' or '.join(os.path.join(folder, one) for one in near)}?" if near else ""
    )


def check_data(protocol: Protocol, name: str, here: bool = True) -> None:
    """Check, without loading anything, what `load_data` does.

    Raises:
        BadInput: unknown name, a file that is not there, or data of another layout.
        DataMissing: the files of the data set are not on this machine.
    """
    if is_object(name):
        object_at(name)
    elif name.endswith(".toml"):
        if not os.path.isfile(name):
            raise BadInput(f"--data: {shown(name)} {_path_fault(name)}")
    else:
        from fedactors.data.datasets.catalogue import describe, is_known, require_files

        if not is_known(name) and _may_be_path(name):
            raise BadInput(f"--data: {shown(name)} {_path_fault(name)}")
        dataset = describe(name)
        layouts = dataset.layouts
        if protocol.partition not in layouts:
            raise BadInput(
                f"--data: {name!r} is not allowed: {protocol.name} needs {protocol.partition} data, "
                f"this can be {' or '.join(layouts)}"
            )
        if here:
            require_files(dataset)


def is_description(name: str | None) -> bool:
    """Say whether data are a description of own data; of all else `launch.check_data` allows known names only."""
    return name is not None and name.endswith(".toml")


def resume_command(command: str | None, location: str, options: RunOptions, code: Iterable[str] = ()) -> str:
    """Return the whole command that resumes the run at `location`, or the call where Python began it.

    Args:
        command: how the run was begun, such as ``fedactors run mtcd``; None: from Python.
        location: its folder, or the address of one.
        options: those that it was begun with.
        code: the addresses of code that its settings name.
    """
    if command is None or is_object(options.data):
        data = "data=..." if is_object(options.data) else ""
        return f"fedactors.load_run({location!r}).resume({data})"
    words = [command, "--resume", shlex.quote(location)]
    if is_description(options.data) and options.federation is None:
        words += ["--data", shlex.quote(options.data or "")]
    for flag, value in (("--federation", options.federation), ("--address", options.address)):
        words += [flag, shlex.quote(value)] if value else []
    for address in () if options.federation else code:
        words += ["--allow-import", shlex.quote(address)]
    return " ".join(words)


def data_to_resume(folder: RunFolder, given: str | None) -> str | None:
    """Return the data with which the run in `folder` goes on: those that it had; None: the protocol's.

    Args:
        folder: the run's; it may come from someone else.
        given: as ``--data`` says.

    Raises:
        BadInput: a data set is named anew, or a description is not, or is another one than the run's.
    """
    stored: str | None = folder.config.get("data")
    if stored is None or not is_description(stored):
        if given is not None:
            raise BadInput("--resume takes no overrides of what is trained: --data given")
        return stored
    if is_object(stored):
        _check_objects(folder, stored, given)
        return given
    if given is None:
        raise BadInput(
            f"--data: missing: the run used your own data, {shown(stored)}, "
            "which are opened only if you name them as well: "
            + resume_command(f"fedactors run {folder.config['protocol']}", folder.location, RunOptions(data=stored))
        )
    if "\0" in given + stored or os.path.realpath(given) != os.path.realpath(stored):
        raise BadInput(f"--data: {shown(given)} is not allowed: the run used {shown(stored)}, and continues with it")
    return given


def _check_objects(folder: RunFolder, stored: str, given: str | None) -> None:
    """Refuse, by name, other objects than those that a run was of."""
    before = folder.config.get("objects") or {}
    if given is None:
        names = ", ".join(before.get("parties", ())) or stored
        raise BadInput(
            f"data: missing: the run used objects ({names}); give them again: "
            + resume_command(None, folder.location, RunOptions(data=stored))
        )
    if given == stored:
        return
    now = object_at(given) if is_object(given) else {}
    changed = sorted(_differences(before, now, ())) or [stored]
    raise BadInput(
        f"data: {', '.join(changed)}: differs from the run's: give the same objects again, with the same rules"
    )


def _differences(before: Any, now: Any, keys: tuple[str, ...]) -> Iterator[str]:
    """Yield where two descriptions differ, ``parties.bank.path``."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in {**before, **now}:
            yield from _differences(before.get(key), now.get(key), (*keys, str(key)))
    elif before != now:
        yield ".".join(keys)


def data_to_audit(folder: RunFolder, given: str | None) -> str:
    """Return the data with which the run in `folder` is replayed or attacked: those given, or the data set that it had.

    Raises:
        BadInput: it had own data, and none are given.
    """
    stored: str | None = folder.config.get("data")
    if given is None and is_description(stored):
        raise BadInput(
            f"--data: missing: the run used your own data, {shown(stored)}, opened only if you name them as well"
        )
    if (data := given or stored) is None:
        raise BadInput(f"{folder.path}: config.json is damaged (data missing)")
    return data


# --- runs ------------------------------------------------------------------------------------------------------------


class StopSignals:
    """What Ctrl-C, SIGTERM and SIGHUP do to a run: ask it to stop; before it began, or the second time, end it.

    Handlers are set by the main thread only; a run may be in another thread (see `in_thread_if_needed`).
    """

    def __init__(self) -> None:
        self.runtime: Runtime | None = None
        self.thread: threading.Thread | None = None
        """Of the run, where it is not the thread that has the handlers."""
        self._asked = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as with nohup
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        code = 128 + number
        if number == signal.SIGHUP:
            _leave_closed_terminal()
        if self.runtime is not None and not self._asked:
            self._asked = True
            self.runtime.request_stop(code)
            return
        word = "interrupted" if number == signal.SIGINT else "terminated"
        text = f"{word} {'without a new checkpoint' if self._asked else 'before the first round'}"
        if self.thread is None:
            raise Stopped(text, code)
        _raise_in(self.thread, text, code)


def _leave_closed_terminal() -> None:
    """Say nothing more where a terminal has closed: the error of who writes to it would end the run."""
    for output in (1, 2):
        try:
            termios.tcgetattr(output)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                with open(os.devnull, "wb") as nowhere:
                    os.dup2(nowhere.fileno(), output)


def _raise_in(thread: threading.Thread, text: str, code: int) -> None:
    """Raise `Stopped` in another thread, at its next step in Python."""

    class StoppedInThread(Stopped):
        def __init__(self) -> None:
            super().__init__(text, code)

    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(StoppedInThread))


def in_thread_if_needed(action: Callable[[StopSignals], T]) -> T:
    """Call `action` here, or in a thread of its own where an event loop runs already, as in a notebook.

    The calling thread takes the signals meanwhile: the run ends with a checkpoint, and `Stopped` is raised here.
    """
    with StopSignals() as signals:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return action(signals)
        done: list[T] = []
        failures: list[BaseException] = []

        def run() -> None:
            try:
                done.append(action(signals))
            except BaseException as error:
                failures.append(error)

        signals.thread = threading.Thread(target=run, name="fedactors run")
        signals.thread.start()
        signals.thread.join()
        if failures:
            raise failures[0]
        return done[0]


def launch(
    protocol: Protocol,
    config: Any,
    options: RunOptions,
    *,
    scenario: str | None = None,
    command: str | None = None,
    signals: StopSignals | None = None,
    callbacks: Sequence[Any] = (),
    wait_until: float | None = None,
    **simulated: Any,
) -> list[Summary]:
    """Run `protocol` once per seed and return the summaries.

    Args:
        protocol: what to run.
        config: an instance of its config.
        options: as `resolve` returns them.
        scenario: name in the run folder's; the protocol's by default.
        command: that begins such a run, as in ``fedactors run mtcd``; None: a call from Python.
        signals: what stops the run; by default the signals of this process, if this is its main thread.
        callbacks: objects with ``begin``, ``round`` or ``end``, called here.
        wait_until: on the clock of `time.monotonic`, by when the sites of a run that paused must be back; None: as long
            from now on as was approved.
        simulated: what the simulated runtime takes besides: ``network``, ``faults``.

    Raises:
        Stopped: interrupted or terminated, after a checkpoint.
        FedactorsError: anything foreseen that went wrong.
    """
    if (options.runtime or "ray") == "ray":
        check_cluster(options.address)
    check_callbacks(callbacks)
    config = with_contents(config)
    name = scenario or protocol.name
    with contextlib.nullcontext(signals) if signals is not None else StopSignals() as taken:
        seeds = options.seeds or (0,)
        one = partial(_run_once, signals=taken, simulated=simulated, callbacks=callbacks, command=command)
        one = partial(one, wait_until=wait_until)
        return [one(protocol, config, options, seed, name) for seed in seeds]


_BACK_SECONDS = 20.0
"""For which `auto_resume` dials a site again: a process that was killed may just be starting."""
_LONGEST_PAUSE = 3600.0
"""Between attempts to go on with a run that paused."""


def launch_with_retries(
    protocol: Protocol,
    config: Any,
    options: RunOptions,
    *,
    command: str | None = None,
    signals: StopSignals | None = None,
    callbacks: Sequence[Any] = (),
) -> list[Summary]:
    """Run over a federation, and go on from the last checkpoint each time that a site is lost; see `launch`.

    That a site is lost is known once it is back without the run, or was away for longer than is waited for. A run with
    a `return_timeout` pauses for so long, and goes on by the approval that it has; where sites are lost before all
    have opened it, it pauses on. With `auto_resume` the sites are asked again, as by ``--resume``. A loss before a
    further checkpoint ends the run.

    Raises:
        PartyLost: a site that is not back, or was lost before anything more was done.
        FedactorsError: see `launch`.
    """
    done, wait_until, began, pause = 0, None, time.monotonic(), 1.0
    while True:
        try:
            return launch(
                protocol, config, options, command=command, signals=signals, callbacks=callbacks, wait_until=wait_until
            )
        except PartyLost as error:
            last = options.resume if error.run is None else error.run
            seconds, number = (0.0, 0) if last is None else _pause_of(options, last)
            if error.run is None and seconds and time.monotonic() + pause < (until := wait_until or began + seconds):
                # no site has opened it, so that its approval is good for another attempt, which makes another folder
                wait_until = until
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            if error.run is None or number <= done or not (seconds or options.auto_resume):
                if error.run is None and options.resume is not None:
                    error.add_note(f"resume with: {resume_command(command, options.resume, options)}")
                raise
            done, wait_until, pause = number, time.monotonic() + (seconds or _BACK_SECONDS), 1.0
            again = dataclasses.replace(options.without(*_DECIDED), resume=error.run)
        config, options = resolve(protocol, (), again)


def _pause_of(options: RunOptions, run: str) -> tuple[float, int]:
    """Return for how long a run that lost a site pauses, and at which checkpoint; 0 s: by its approval it does not."""
    from fedactors.federation.runtime import checkpoint_number

    folder = RunFolder.open(run)
    number = checkpoint_number(folder.checkpoint_to_resume().driver)
    paused = _paused(_site(options.federation or ""), _run_of(folder), number)
    return (0.0 if paused is None else paused.return_timeout), number


def _run_once(
    protocol: Protocol,
    config: Any,
    options: RunOptions,
    seed: int,
    scenario: str,
    signals: StopSignals,
    simulated: Mapping[str, Any],
    callbacks: Sequence[Any],
    command: str | None,
    wait_until: float | None = None,
) -> Summary:
    parent = RunFolder.open(options.resume) if options.resume else None
    total = getattr(config, "num_rounds", getattr(config, "num_epochs", None)) or None
    signals.runtime = None
    with contextlib.closing(
        open_progress(quiet=options.quiet, total=total, headline=protocol.headline.name)
    ) as progress:
        name = options.data or protocol.default_data
        if options.federation is None:  # else it names data of sites
            check_data(protocol, name, is_here(options))
        progress.phase(f"reading {name}")
        make: Callable[..., Runtime] = partial(make_runtime, options, seed, **simulated)
        resolved = _resolved(protocol, config, options, seed, scenario)
        if options.federation is not None:
            prepared = prepare_federated(protocol, config, options, seed, wait_until)
            data, make, resolved["federation"] = prepared.data, prepared.make, {"run": prepared.proposal.run}
        else:
            data = load_data(protocol, config, name, seed, is_here(options))
        notes = _data_notes(data, name, options, is_scaled=getattr(config, "standardisation", "") == "sums")
        folder = RunFolder.create(options.out, scenario, seed, resolved, parent=parent)
        for digest in digests_in(code_named_in(config).values()):
            folder.keep_code(digest)
        code = [value for value in code_named_in(config).values() if isinstance(value, str)]
        again = _way_on(config, options, resume_command(command, folder.location, options, code))
        recorder: FolderRecorder | None = None
        try:
            trackers = open_trackers(options.track, folder.path, as_dict(config))
            trackers += [CallbackTracker(one, folder.path, as_dict(config)) for one in callbacks]
            recorder = FolderRecorder(folder, parent=parent, progress=progress, trackers=trackers)
            runtime = make(recorder)
            recorder.usage, runtime.tell, runtime.way_on = runtime.usage, progress.phase, again
            events = recorder.events
            runtime.watched = progress.watch(lambda: activities(runtime.ledger.totals(), events))
            signals.runtime = runtime
            if options.checkpoint_dir:
                runtime.states = StateLocations(
                    make_locations(dict(options.checkpoint_dir), dict(options.checkpoint_key)), folder.path.name
                )
            checkpoint = recorder.load_checkpoint()
            snapshot = None if checkpoint is None else Snapshot(checkpoint.actors, checkpoint.driver, checkpoint.folder)
            # what a run that was resumed fails with in its first round is its checkpoint's
            with in_use(snapshot.folder if snapshot else "", lambda: recorder.num_rounds <= 1):
                result = runtime.execute(lambda: protocol.run(config, data, runtime), snapshot)
                if notes:
                    said = [*result.extra.get("notes", ()), *notes]
                    result = dataclasses.replace(result, extra={**result.extra, "notes": said})
                kind = options.runtime or "ray"
                used, at = runtime.usage(), folder.location
                summary = Summary.of(result, used, run=at, protocol=protocol.name, runtime=kind, seed=seed)
                recorder.close()
                folder.write_json(SUMMARY, {**summary.as_dict(), "run": folder.path.name})
            folder.finish("finished")
        except BaseException as error:
            if options.federation is not None and options.budget:
                error.add_note("sites that had begun it count all that it announced: fedactors site budget")
            _close_failed(folder, recorder, error, again)
            raise
    return summary


def _way_on(config: Any, options: RunOptions, command: str) -> str:
    """Return what helps when a run has broken off after a checkpoint."""
    if options.federation is not None and options.budget and not options.return_timeout:
        from fedactors.federation.approval import has_quorum

        if not has_quorum(config):
            return (
                "it cannot be resumed: its sites have privacy budgets, and what left after its last checkpoint is not "
                "known. Start a new run, with --return-timeout SECONDS to go on after a loss"
            )
    return f"resume with: {command}"


def _data_notes(data: Any, name: str, options: RunOptions, *, is_scaled: bool) -> list[str]:
    """Return what is odd with user data of a simulated run; elsewhere only a party's process opens its files."""
    if options.runtime != "simulated" or not str(name).endswith(".toml"):
        return []
    from fedactors.data.checks import warnings_of

    return warnings_of(data, is_scaled=is_scaled)


def _close_failed(folder: RunFolder, recorder: FolderRecorder | None, error: BaseException, again: str) -> None:
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
            error.add_note(f"details: {folder.location}/error.txt")
        if recorder is not None:
            recorder.close(finished=False)
        folder.finish(status)
    if recorder is not None:
        recorder.abandon()
    folder.release()
    # what goes on from a checkpoint has announced no more, and its account has a gap
    if folder.manifest["checkpoints"] and not isinstance(error, (BadInput, BudgetExceeded)):
        error.add_note(again)
        if isinstance(error, PartyLost):
            error.run = folder.location


def _resolved(protocol: Protocol, config: Any, options: RunOptions, seed: int, scenario: str) -> dict[str, Any]:
    objects = {"objects": object_at(options.data or "")} if is_object(options.data) else {}
    if any(map(is_object, code_named_in(config).values())):
        from fedactors.learning.user_models import code_facts

        objects["code"] = code_facts(config)
    return {
        **objects,
        "schema_version": 1,
        "scenario": scenario,
        "protocol": protocol.name,
        "runtime": options.runtime,
        "seed": seed,
        "data": options.data,
        "options": options.stored(),
        "headline": {"name": protocol.headline.name, "mode": protocol.headline.mode},
        "config": spell_infinities(as_dict(config)),
    }


def make_runtime(options: RunOptions, seed: int, recorder: Recorder | None, **simulated: Any) -> Runtime:
    """Build the runtime that the options name; only here the two are told apart."""
    if options.runtime == "simulated":
        from fedactors.runtime.simulation.runtime import SimulatedRuntime

        return SimulatedRuntime(seed=seed, recorder=recorder, pool=options.pool or 0, **simulated)
    from fedactors.runtime.ray.runtime import HEARTBEAT_TIMEOUT, RayRuntime

    return RayRuntime(
        seed=seed,
        recorder=recorder,
        address=options.address,
        labels=dict(options.placement),
        placement=options.spread.upper().replace("-", "_") if options.spread else None,
        emulate=options.emulate is not None,
        scale=options.emulate or 1.0,
        heartbeat_timeout=options.heartbeat_timeout or HEARTBEAT_TIMEOUT,
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
    if chosen == "ray":
        check_cluster(options.address)
    config, seed = with_contents(config), 0
    data = load_data(protocol, config, options.data or protocol.default_data, seed, is_here(options))
    runtime, made = make_runtime(options, seed, None), protocol.measure
    return list(runtime.execute(lambda: made(config, data, runtime)))


# --- over a federation -----------------------------------------------------------------------------------------------


def resolve_federated(protocol: Protocol, words: Words, options: RunOptions) -> tuple[Any, RunOptions]:
    """Return the validated config and the options of a run over a federation.

    Raises:
        BadInput: a flag that has no meaning there, several seeds, or no data.
    """
    check_federated_flags(options)
    if options.smoke and options.paper:
        raise BadInput("--smoke is not allowed with --paper")
    if len(options.seeds or ()) > 1:
        raise BadInput("--seeds: is not allowed with --federation: each run is approved by itself")
    if options.data is None:
        raise BadInput("--data: missing: give SITE=NAME,SITE=NAME, the names that the sites have for their data")
    preset = protocol.smoke if options.smoke else protocol.paper if options.paper else {}
    named = set(words) if isinstance(words, Mapping) else {word.partition("=")[0] for word in words}
    if "min_sites" not in named and any(one.name == "on_party_loss" for one in dataclasses.fields(protocol.Config)):
        preset = {"on_party_loss": "stop", **preset}
    preset = {**protocol.between_sites, **preset}
    seeds = options.seeds or (options.seed or 0,)
    config = _with_code(build_given(protocol.Config, words, preset), options)
    # no path of this host's is a setting that others could open
    return with_contents(config), dataclasses.replace(options, seeds=seeds, runtime="federated")


def _with_code(config: Any, options: RunOptions) -> Any:
    """Return a config that names its code by the digest of its files, which this site may import from now on.

    Raises:
        BadInput: code of no file that the run brings, or files that no setting names.
    """
    files = read_files(options.code)
    found: dict[str, str] = {}
    for name, address in code_named_in(config).items():
        if is_object(address):
            raise BadInput(
                f"{name}: objects are not allowed between sites: a site approves no code that it cannot read; name a "
                f"class or function of a file, {name}=MODULE:NAME, and bring it with --code MODULE.py"
            )
        if (there := packaged(files, address)) is None:
            module = address.partition(":")[0].partition(".")[0]
            raise BadInput(f"{name}: {shown(address)} is code that the run does not bring: give --code {module}.py")
        found[name] = there
    if files and not found:
        raise BadInput(f"--code: no setting names it, such as model={Path(next(iter(files))).stem}:NAME")
    if found:
        from fedactors.federation.site_code import allow

        allow(_site(options.federation or ""), files, "brought by a run that this site coordinates")
    return dataclasses.replace(config, **found)


def resume_federated(options: RunOptions, stored: Mapping[str, Any]) -> RunOptions:
    """Return the options of a run over a federation that goes on.

    Args:
        options: of the command.
        stored: what the run was made with.

    Raises:
        BadInput: a flag that has no meaning there, or no federation is given.
    """
    check_federated_flags(options)
    if options.federation is None:
        raise BadInput("--resume: the run was over a federation: give --federation FILE")
    if options.data is not None:
        raise BadInput("--resume takes no overrides of what is trained: --data given")
    if options.budget or options.limit or options.share_seed or options.return_timeout:
        raise BadInput(
            "--resume takes no overrides of what was approved: --budget, --limit, --share-seed or --return-timeout "
            "given"
        )
    return dataclasses.replace(options, seeds=(stored["seed"],), data=stored["data"], runtime="federated")


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A run over a federation that is to be proposed."""

    proposal: Proposal
    data: Any
    """As the driver knows them, names only."""
    make: Callable[[Recorder | None], Runtime]


def prepare_federated(
    protocol: Protocol, config: Any, options: RunOptions, seed: int, wait_until: float | None = None
) -> Prepared:
    """Return what is proposed to the sites, and what makes the runtime.

    A run that paused is proposed as it was approved, which its sites know; see `launch`.

    Raises:
        BadInput: the federation, the site beside its file, the data's names, or the run to go on from are wrong.
    """
    from fedactors.federation.approval import continue_run, make_proposal
    from fedactors.federation.runtime import checkpoint_number
    from fedactors.federation.site_folder import parse_budgets, parse_limits

    folder = _site(options.federation or "")
    if options.resume is not None:
        parent = RunFolder.open(options.resume)
        number = checkpoint_number(parent.checkpoint_to_resume().driver)
        if (paused := _paused(folder, _run_of(parent), number)) is not None:
            until = time.monotonic() + paused.return_timeout if wait_until is None else wait_until
            return _prepared(folder, protocol, config, paused, seed, is_paused=True, wait_until=until)
        proposal = continue_run(folder, _run_of(parent), number, "resume")
        ways = {"queue_seconds": options.queue_timeout, "wait_until": wait_until or 0.0}
        return _prepared(folder, protocol, config, proposal, seed, **ways)
    settings = spell_infinities(as_dict(config))
    shared = seed if options.share_seed else None
    code: dict[str, str] = {}
    for digest in digests_in(code_named_in(config).values()):  # one, as `_with_code` has read it
        code |= digests(files_of(digest))
    budgets, limits = parse_budgets(options.budget), parse_limits(options.limit)
    signature = read_signature(options.code)
    data = options.data or ""
    proposal = make_proposal(
        folder, protocol, settings, data, shared, budgets, seed, limits, code, signature, options.return_timeout or 0.0
    )
    return _prepared(folder, protocol, config, proposal, seed, queue_seconds=options.queue_timeout)


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
    from fedactors.federation.approval import continue_run
    from fedactors.federation.runtime import checkpoint_number

    folder = _site(options.federation or "")
    proposal = continue_run(folder, _run_of(run), checkpoint_number(driver), "predict", options.data or "")
    return _prepared(folder, protocol, config, proposal, seed, queue_seconds=options.queue_timeout)


def _paused(folder: SiteFolder, run: str, number: int) -> Proposal | None:
    """Return the proposal of a run that goes on from a checkpoint by the approval that it has; None: by a new one."""
    from fedactors.federation.approval import kept_proposal, may_resume_itself

    found = kept_proposal(folder, run)
    return found if found is not None and may_resume_itself(folder, found, number) else None


def _prepared(
    folder: SiteFolder, protocol: Protocol, config: Any, proposal: Proposal, seed: int, **ways: Any
) -> Prepared:
    from fedactors.federation.approval import classes_of
    from fedactors.federation.runtime import FederatedRuntime
    from fedactors.runs.recorder import FolderRecorder

    classes = classes_of(protocol, config, proposal.purpose).values()

    def make(recorder: Recorder | None) -> Runtime:
        assert recorder is None or isinstance(recorder, FolderRecorder)
        return FederatedRuntime(folder, proposal, classes, seed=seed, recorder=recorder, **ways)

    load = loader(protocol, is_new=proposal.purpose == "predict")
    assert load is not None
    return Prepared(proposal, load(config, proposal.described(), seed), make)


def _site(federation: str) -> SiteFolder:
    from fedactors.federation.identity import FEDERATION
    from fedactors.federation.site_folder import SITE, SiteFolder

    path = Path(federation)
    if path.name != FEDERATION:
        raise BadInput(f"--federation: {federation!r} is not allowed: give the {FEDERATION} in the folder of your site")
    read_text(path, "--federation")
    if not (path.parent / SITE).is_file():
        raise BadInput(f"--federation: {shown(str(path))} is not allowed: no {SITE} lies beside it")
    return SiteFolder(path.parent)


def _run_of(folder: RunFolder) -> str:
    """Return by which id the sites know the run in a folder.

    Raises:
        BadInput: it was not over a federation.
    """
    if isinstance(site := folder.config.get("site"), dict):
        raise BadInput(
            f"{folder.path}: these are the records of the site {site.get('name')} alone: resume and "
            f"predict from the run folder of its coordinator, {site.get('coordinator')}"
        )
    found = (folder.config.get("federation") or {}).get("run")
    if not isinstance(found, str):
        raise BadInput(f"{folder.path}: this run was not over a federation")
    return found


def check_federated_flags(options: RunOptions) -> None:
    """Refuse flags that have no meaning between sites."""
    if is_object(options.data):
        raise BadInput("data: objects are not allowed between sites: each site names its own data in its site.toml")
    for name in options.given(federation="never"):
        raise BadInput(f"{flag_of(name)}: is not allowed with --federation")
