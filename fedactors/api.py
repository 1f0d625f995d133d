"""The public API: run a protocol and use its results.

    import fedactors

    run = fedactors.simulate("pubsub-vfl", num_epochs=3)
    run.metrics["test/auc"], run.rounds.to_pandas()

Settings of a protocol are keyword arguments, checked by its config. All of it works inside a running event loop, such
as a notebook's: a run then gets a thread of its own. The commands call this module. Importing it loads nothing heavy.
It is one file because its page of the reference is: all that a script or a notebook calls.
"""

from __future__ import annotations

import dataclasses
import functools
import html
import json
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from fedactors.errors import BadInput
from fedactors.options import RunOptions
from fedactors.plugins import Aim, Protocol, discover, find_protocol
from fedactors.validation import suggested

if TYPE_CHECKING:
    from fedactors.data.checks import DataFinding
    from fedactors.data.objects import Objects
    from fedactors.launch import Words
    from fedactors.network.links import Network
    from fedactors.runs.folder import RunFolder
    from fedactors.runs.metrics import Summary
    from fedactors.runtime.ray.doctor import Finding
    from fedactors.runtime.snapshots import HeldObject
    from fedactors.serving.parts import Part
    from fedactors.trained import Audit, Predictions

    Data = str | Path | Objects


# --- runs -----------------------------------------------------------------------------------------------------------


def run(
    protocol: str | Protocol,
    data: Data | None = None,
    *,
    runtime: str = "ray",
    seed: int = 0,
    out: str | Path = "runs",
    address: str | None = None,
    callbacks: Sequence[Any] = (),
    **settings: Any,
) -> Run:
    """Run a protocol and return the finished run.

    Args:
        protocol: its name (see `list_protocols`), or a protocol of your own.
        data: name of a data set (see `list_datasets`), path of a description of your own data, ``parties.toml``, or
            what `vertical`, `horizontal`, `relational` or `graph` made of objects; by default the protocol's own data
            set.
        runtime: ``ray``, or ``simulated`` for a virtual clock in this process.
        seed: decides everything that is random.
        out: parent of the run's folder.
        address: of a Ray cluster; by default Ray is started on this machine.
        callbacks: objects with ``begin(run, config)``, ``round(number, metrics)`` or ``end(run)``, or a function of a
            round's number and metrics, called in this process; ``run`` is the path of the run's folder.
        settings: of the protocol (see `settings`); a model may be an object: a `torch.nn.Module`, a function or class.

    Raises:
        BadInput: a setting, the data or an option is not allowed; the message names it.
        Stopped: you pressed Ctrl-C; the run's folder has a checkpoint.
        FedactorsError: anything else foreseen that went wrong.
    """
    options = RunOptions.checked(
        data=_data(data), runtime=runtime, seed=seed, out=str(out), address=address, quiet=_is_quiet()
    )
    return _of(data, execute(_protocol(protocol), settings, options, callbacks=callbacks)[0])


def simulate(
    protocol: str | Protocol,
    data: Data | None = None,
    *,
    seed: int = 0,
    network: Network | str | None = None,
    faults: Mapping[str, float] | None = None,
    out: str | Path | None = None,
    callbacks: Sequence[Any] = (),
    **settings: Any,
) -> Run:
    """Run a protocol on a virtual clock, in this process.

    Args:
        protocol: its name (see `list_protocols`), or a protocol of your own.
        data: as `run` takes it.
        seed: decides everything that is random.
        network: links between the parties' hosts; by default the protocol's. A text is the protocol's own setting of
            that name (``nebulafl``, ``mtcd``).
        faults: virtual time at which an actor is lost, by its name.
        out: parent of the run's folder; by default nothing is kept: the folder goes with the returned `Run`.
        callbacks: as `run` takes them.
        settings: of the protocol (see `settings`).

    Raises:
        FedactorsError: as `run`.
    """
    if isinstance(network, str):
        settings, network = {**settings, "network": network}, None
    options = RunOptions.checked(data=_data(data), runtime="simulated", seed=seed, quiet=_is_quiet())
    given = {"network": network, "faults": faults}
    simulated = {name: value for name, value in given.items() if value is not None}
    return _of(data, _execute_in(out, _protocol(protocol), settings, options, simulated, callbacks))


def execute(
    protocol: Protocol,
    settings: Words,
    options: RunOptions,
    simulated: Mapping[str, Any] | None = None,
    callbacks: Sequence[Any] = (),
    command: str | None = None,
) -> list[Run]:
    """Run a protocol once for each seed of the options; `run` and `simulate` are short forms of it.

    Args:
        protocol: what to run.
        settings: its settings, by name or as ``key=value`` words.
        options: where and how to run.
        simulated: ``network`` and ``faults`` of a simulated run.
        callbacks: as `run` takes them.
        command: that begins such a run, for what tells how to resume it; None: a call from Python.

    Raises:
        FedactorsError: as `run`.
    """
    from fedactors.launch import in_thread_if_needed, launch, launch_with_retries, resolve

    settings, kept = _hold_code(protocol, settings)
    config, options = resolve(protocol, settings, options)
    start: Callable[..., list[Summary]] = functools.partial(launch, callbacks=callbacks, **(simulated or {}))
    if options.federation is not None:
        start = functools.partial(launch_with_retries, callbacks=callbacks)
    summaries = in_thread_if_needed(lambda signals: start(protocol, config, options, command=command, signals=signals))
    runs = [Run(summary.run, summary, simulated) for summary in summaries]
    for made in runs:
        made._code = kept
    return runs


def _execute_in(
    out: str | Path | None,
    protocol: Protocol,
    settings: Words,
    options: RunOptions,
    simulated: Mapping[str, Any],
    callbacks: Sequence[Any] = (),
) -> Run:
    """Execute one run in a folder under `out`, or in a temporary one that goes with the run."""
    from dataclasses import replace

    if out is not None:
        return execute(protocol, settings, replace(options, out=str(out)), simulated, callbacks)[0]
    folder = tempfile.mkdtemp(prefix="fedactors-")
    try:
        made = execute(protocol, settings, replace(options, out=folder), simulated, callbacks)[0]
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        getattr(error, "__notes__", []).clear()  # they name what was in the folder
        raise
    made._temporary = weakref.finalize(made, shutil.rmtree, folder, ignore_errors=True)
    return made


class Run:
    """A run that has ended: its metrics, its records, and methods to use them.

    Args:
        location: its folder, or the address of one.
        summary: of the run, where it is known.
        simulated: ``network`` and ``faults`` that it was given, for `resume`.
    """

    def __init__(
        self, location: str | Path, summary: Summary | None = None, simulated: Mapping[str, Any] | None = None
    ) -> None:
        self._location = str(location)
        self._summary = summary
        self._simulated = simulated or {}
        self._temporary: Any = None
        self._objects: Objects | None = None
        self._code: list[HeldObject] = []

    @functools.cached_property
    def folder(self) -> RunFolder:
        """The run's folder, opened."""
        from fedactors.runs.folder import RunFolder

        return RunFolder.open(self._location)

    @property
    def path(self) -> Path:
        """Path of the folder; for a remote folder, path of its copy."""
        return self.folder.path

    @property
    def config(self) -> dict[str, Any]:
        """The protocol's settings."""
        return dict(self.folder.config.get("config", {}))

    @property
    def protocol(self) -> str:
        """Name of the protocol."""
        return str(self.folder.config.get("protocol"))

    @property
    def status(self) -> str:
        """``finished``, ``stopped``, ``failed`` or ``running``."""
        return self.folder.status

    @property
    def summary(self) -> Summary:
        """Final metrics, and what the run used: bytes, messages, seconds.

        Raises:
            BadInput: the run has not finished.
        """
        if self._summary is None:
            from fedactors.runs.metrics import read_summary

            self._summary = read_summary(self.folder)
        return self._summary

    @property
    def metrics(self) -> dict[str, Any]:
        """The final metrics, by name."""
        return dict(self.summary.metrics)

    @property
    def rounds(self) -> Table:
        """The metrics of every round."""
        from fedactors.runs.metrics import read_rounds

        return Table(read_rounds(self.folder))

    @property
    def ledger(self) -> Table:
        """Every message that was sent: time, sender, receiver, kind, type, bytes."""
        from fedactors.runs.recorder import read_ledger

        return Table(read_ledger(self.folder))

    @property
    def privacy(self) -> Table:
        """Each party's releases, with mechanism and privacy cost."""
        from fedactors.runs import schemas
        from fedactors.runs.folder import PRIVACY
        from fedactors.runs.metrics import read_lines

        return Table(list(read_lines(self.folder, PRIVACY, schemas.PrivacyLine)))

    @property
    def timeline(self) -> Table:
        """Each actor's activities, in seconds of the run's clock."""
        from fedactors.runs.metrics import read_events

        spans = (line for line in read_events(self.folder) if line["type"] == "span")
        return Table([{name: value for name, value in line.items() if name != "type"} for line in spans])

    def resume(self, *, out: str | Path | None = None, **where: Any) -> Run:
        """Resume from the last checkpoint, in a new folder.

        Args:
            out: parent of the new folder; by default beside this one.
            where: options that hold instead of the run's own, such as ``runtime`` or ``address``, and what must be
                given again: ``data`` that are a description or objects of yours, ``allow_import`` for code that the
                settings name, and objects that they were given, by setting: ``model=net``.

        Raises:
            FedactorsError: as `run`.
        """
        where = self._with_code(where)
        data = where.pop("data", None) or self._objects
        options = RunOptions.checked(quiet=_is_quiet(), resume=self._location, **_where({**where, "data": data}))
        is_temporary = self._temporary is not None and out is None
        parent = (
            None if is_temporary else out if out is not None else self._location.rstrip("/").rpartition("/")[0] or "."
        )
        runtime = options.runtime or self.folder.config.get("runtime")
        given = self._simulated if runtime == "simulated" else {}
        made = _of(data, _execute_in(parent, _protocol(self.protocol), {}, options, given))
        made._code = self._code
        return made

    def _with_code(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return options without the objects among them that the run's settings were given; these are held from now on.

        Raises:
            BadInput: one is not what the run had.
        """
        from fedactors.config import code_fields

        if not (further := set(given) - set(RunOptions.__dataclass_fields__)):
            return dict(given)
        names = code_fields(_protocol(self.protocol).Config) & further
        settings, kept = _hold_code(_protocol(self.protocol), {name: given[name] for name in names})
        assert isinstance(settings, Mapping)
        for name, address in settings.items():
            if address != self.config.get(name):
                raise BadInput(
                    f"{name}: differs from the run's: in its code, its parameters, or the version of Python; "
                    f"the run had {self.config.get(name)!r}"
                )
        self._code = [*self._code, *kept]
        return {name: value for name, value in given.items() if name not in names}

    def predict(
        self, data: Data, to: str | Path = "predictions.parquet", *, checkpoint: str | None = None, **where: Any
    ) -> Predictions:
        """Predict on new rows; the predictions stay with the party that owns the labels.

        Args:
            data: the new rows, as `run` takes data.
            to: file that the party that owns the labels writes.
            checkpoint: label of the model's checkpoint; by default ``best``, else the newest.
            where: options that hold instead of the run's own, such as ``runtime`` or ``address``, ``allow_import``, and
                objects that the settings were given (``model=net``).

        Raises:
            BadInput: the protocol cannot predict, or the rows do not fit the model.
        """
        from fedactors.launch import in_thread_if_needed
        from fedactors.trained import predict

        where = self._with_code(where)
        new = data if isinstance(data, (str, Path)) else data.to_predict(self.folder.config)
        options = RunOptions.checked(**_where({**where, "data": new}))
        return in_thread_if_needed(lambda _: predict(self.folder, str(to), options, checkpoint))

    def parts(self, checkpoint: str | None = None, **where: Any) -> tuple[dict[str, Part], str]:
        """Return the parties' parts of the trained model that this folder has, and which model they are of.

        Args:
            checkpoint: see `predict`.
            where: see `predict`.

        Raises:
            BadInput: there is none.
        """
        from fedactors.trained import parts_of

        options = RunOptions.checked(**_where(self._with_code(where)))
        return parts_of(self.folder, options, checkpoint)

    def export(
        self,
        to: str | Path | None = None,
        *,
        party: str | None = None,
        checkpoint: str | None = None,
        **where: Any,
    ) -> dict[str, list[Path]]:
        """Write the parties' parts of the model, for `load_part`; return the files by party.

        Args:
            to: each party gets a folder in it; by default ``exported`` in the run's folder.
            party: the only one to export; by default all.
            checkpoint: label of the model's checkpoint; by default ``best``, else the newest.
            where: places and keys of the parties' states, ``allow_import``, and objects that the settings were given.

        Raises:
            BadInput: the protocol cannot export, or there is no such party.
        """
        from fedactors.trained import export

        options = RunOptions.checked(**_where(self._with_code(where)))
        location = None if to is None else str(to)
        return export(self.folder, location, options, party=party, label=checkpoint)

    def audit(
        self,
        *,
        replay: bool = False,
        attacks: bool = False,
        neighbours: int = 10,
        party: str | None = None,
        data: Data | None = None,
        allow_import: Sequence[str] = (),
        settings: Words = (),
        **code: Any,
    ) -> Audit:
        """Recompute every privacy figure of the run; `refuted` of the result lists the claims that do not hold.

        Args:
            replay: also replay each party with one record changed, in simulation.
            attacks: also attack the trained model.
            neighbours: number of records to change, of each kind.
            party: replay this party only.
            data: the data now; by default the data set that the run had.
            allow_import: code that the settings name and that may be imported.
            settings: of the replays, by name: they may run smaller than the run did.
            code: objects that the settings of the run were given, by setting.

        Raises:
            BadInput: the run or the arguments allow none of that.
        """
        if unknown := next(iter(self._with_code(code)), None):
            raise BadInput(f"{unknown}: unknown argument")
        from fedactors.launch import in_thread_if_needed
        from fedactors.trained import audit

        return in_thread_if_needed(
            lambda _: audit(
                self.folder,
                settings=settings,
                replay=replay,
                attacks=attacks,
                neighbours=neighbours,
                party=party,
                data=_data(data),
                allow_import=allow_import,
            )
        )

    def report(self, to: str | Path | None = None) -> Path:
        """Write one self-contained HTML page about the run and return its path.

        Args:
            to: the page; by default ``report.html`` in the run's folder.
        """
        return write_report([self], to)[0]

    def __repr__(self) -> str:
        if self.status != "finished":
            return f"<Run {self.protocol} {self.status} at {self._location}>"
        return f"<Run {self.protocol} seed {self.summary.seed} at {self._location}: {_metrics_text(self.metrics)}>"

    def _repr_html_(self) -> str:
        facts: dict[str, Any] = {"status": self.status, "path": self._location}
        if self.status == "finished":
            used = self.summary
            facts |= {"runtime": used.runtime, "seed": used.seed, "rounds": used.rounds}
            facts |= {"seconds": _text(used.seconds), "messages": f"{used.messages:,}", "bytes": f"{used.bytes:,}"}
            facts |= {name: _text(value) for name, value in self.metrics.items()}
        rows = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(str(v))}</td></tr>" for k, v in facts.items())
        return f"<table><caption>{html.escape(self.protocol)}</caption>{rows}</table>{self._picture()}"

    def _picture(self) -> str:
        """Return the curve of the main metric over the rounds as a picture; nothing of fewer than two."""
        from fedactors.report.charts import inline_chart
        from fedactors.runs.compare import Group, LoadedRun, make_curve, shared_metrics

        if self.status != "finished":
            return ""
        loaded = LoadedRun(summary=self.summary, config=self.folder.config, folder=self.folder)
        group = Group(label=self.protocol, runs=(loaded,))
        metric = next(iter(shared_metrics([group])), None)
        curve = None if metric is None else make_curve(group, metric)
        return "" if metric is None or curve is None or len(curve.x) < 2 else inline_chart(curve, metric)


def load_run(path: str | Path) -> Run:
    """Open the folder of a run, finished or not.

    Raises:
        BadInput: there is no run folder, or it is damaged.
    """
    found = Run(path)
    found.folder.verify()
    return found


def write_report(
    runs: Sequence[Run | str | Path], to: str | Path | None = None, figures: str | Path | None = None
) -> tuple[Path, list[Path]]:
    """Write one self-contained HTML page about runs; return its path and those of the figures.

    Args:
        runs: runs, or paths of run folders and of sweeps' tables.
        to: the page; by default in the first run's folder, or beside the first table.
        figures: folder for every curve as SVG, PDF and CSV; by default none is written.

    Raises:
        BadInput: a run is unfinished or damaged, or the page cannot be written there.
    """
    from fedactors.report.page import render_report
    from fedactors.runs.compare import load_runs
    from fedactors.runs.folder import apart_from_records
    from fedactors.runs.storage import is_remote, local_path, write_atomic

    locations = [_location(one) for one in runs]
    loaded = load_runs(locations)
    folder = loaded[0].folder
    if not to and folder is not None and is_remote(folder.location):
        raise BadInput(f"--output: give a file of this machine, {folder.location} is an address")
    beside = Path(locations[0]).with_suffix(".html") if folder is None else folder.path / "report.html"
    path = local_path(to, "--output") if to is not None else beside
    if path.is_dir():
        raise BadInput(f"--output: {str(to)!r} is a folder; give the name of the page")
    apart_from_records(path, "--output")
    drawn = None if figures is None else _page(figures, "--figures")
    write_atomic(path, render_report(loaded).encode(), "--output")
    if drawn is None:
        return path, []
    from fedactors.report.charts import write_figures

    return path, list(write_figures(loaded, drawn))


# --- several runs ---------------------------------------------------------------------------------------------------


def sweep(
    protocol: str | Protocol,
    space: Mapping[str, Any],
    *,
    seeds: Sequence[int] = (0,),
    jobs: int = 1,
    data: Data | None = None,
) -> Table:
    """Simulate a protocol with every combination of settings, and return a row for each run.

    Args:
        protocol: its name.
        space: settings; a list has the values to try: ``{"batch_size": [32, 64], "num_epochs": 3}``.
        seeds: of each combination.
        jobs: number of processes.
        data: as `run` takes it.

    Raises:
        BadInput: a setting that the protocol does not allow.
    """
    import itertools

    from fedactors.launch import in_thread_if_needed
    from fedactors.sweeps import plan
    from fedactors.sweeps import sweep as run_trials

    options = RunOptions.checked(data=_data(data), runtime="simulated", seeds=tuple(seeds), quiet=True)
    lists = [value if isinstance(value, list) else [value] for value in space.values()]
    settings = [dict(zip(space, values, strict=True)) for values in itertools.product(*lists)]
    trials = plan(_protocol(protocol), settings, options)
    with tempfile.TemporaryDirectory(prefix="fedactors-") as folder:
        found = in_thread_if_needed(lambda _: run_trials(trials, Path(folder, "sweep.parquet"), jobs=jobs))
    tried = {trial.digest: trial.settings for trial in trials}
    return Table(
        [
            {**tried[row.digest], "seed": row.seed, "status": row.status, "failure": row.failure}
            | {**row.metrics, **row.usage}
            for row in found.rows
        ]
    )


def compare(*runs: Run | str | Path) -> Comparison:
    """Compare runs: mean and standard deviation over seeds, and differences from the first group.

    Args:
        runs: runs, or paths of run folders and of sweeps' tables; those that differ in the seed alone are one group.

    Raises:
        BadInput: a run is unfinished or damaged, or is given twice.
    """
    from fedactors.runs.compare import load_runs

    if not runs:
        raise BadInput("compare: give at least one run")
    return Comparison(load_runs([_location(one) for one in runs]))


class Comparison:
    """Groups of runs that differ in the seed only; the first group is the baseline.

    Args:
        runs: as `fedactors.runs.compare.load_runs` gives them.
    """

    def __init__(self, runs: Sequence[Any]) -> None:
        from fedactors.runs.compare import compare

        self.runs = runs
        self._found = compare(runs)

    @property
    def groups(self) -> Table:
        """Mean, standard deviation and 95 % interval of each metric of each group."""
        return self._rows("groups", ("label", "protocol"))

    @property
    def differences(self) -> Table:
        """Mean difference of each metric of each group from the baseline, with its 95 % interval."""
        return self._rows("differences", ("label", "baseline"))

    @property
    def notes(self) -> list[str]:
        """Notes on the differences."""
        return list(self._found["notes"])

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        return dict(self._found)

    def plot(self, to: str | Path, metric: str | None = None) -> Path:
        """Draw a metric (by default the protocol's main one) against the rounds, into a .png file."""
        from fedactors.report.charts import plot_comparison

        path = _page(to, "--plot")
        plot_comparison(self.runs, path, metric=metric)
        return path

    def report(self, to: str | Path) -> Path:
        """Write a page: paired differences, curves, and each run."""
        from fedactors.report.page import render_report
        from fedactors.runs.storage import write_atomic

        path = _page(to, "--report")
        write_atomic(path, render_report(self.runs).encode(), "--report")
        return path

    def _rows(self, part: str, names: Sequence[str]) -> Table:
        return Table(
            [
                {**{name: entry[name] for name in names}, "metric": metric, **values}
                for entry in self._found[part]
                for metric, values in entry["metrics"].items()
            ]
        )

    def __repr__(self) -> str:
        return repr(self.groups)

    def _repr_html_(self) -> str:
        parts = [self.groups._repr_html_(), *([self.differences._repr_html_()] if self._found["differences"] else [])]
        return "".join([*parts, *(f"<p>{html.escape(note)}</p>" for note in self.notes)])


def plan(
    protocol: str | Protocol,
    profiles: Sequence[str | Path] = (),
    *,
    measure: bool = False,
    aim: Aim = "target",
    data: Data | None = None,
    seed: int = 0,
    jobs: int = 1,
    time_limit: float = 600.0,
    tell: Callable[[str], None] | None = None,
    settings: Words = (),
    **where: Any,
) -> dict[str, Any]:
    """Recommend settings for your machines, links and topology, with estimated cost.

    Args:
        protocol: which one; see `list_protocols`.
        profiles: files (.toml or .json) that say what a party has.
        measure: let each party measure its machine and links instead, in a process of its own.
        aim: what is to cost the least: the model that reaches the ``target``, or an ``epoch``.
        data: rows that pilots train on, all of them in this process; without them rows are generated.
        seed: of the pilots.
        jobs: processes in which pilots run.
        time_limit: seconds after which no pilot goes on.
        tell: hears what is tried.
        settings: that are not to be chosen.
        where: for `measure`: ``runtime``, ``address`` or ``placement``.

    Raises:
        BadInput: the protocol has no planner, profiles and options do not go together, or no pilot reaches the target.
    """
    from fedactors.config import build_given, with_contents
    from fedactors.launch import in_thread_if_needed, load_data
    from fedactors.launch import measure as measured
    from fedactors.plugins import Planning
    from fedactors.runs.metrics import jsonable
    from fedactors.validation import choice_of, number_of, read_tree

    known = _protocol(protocol)
    if known.plan is None:
        raise BadInput(f"protocol: {known.name} has no planner")
    choice_of(aim, get_args(Aim), "--aim")
    number_of(time_limit, "--time-limit", above=0.0)
    config = with_contents(build_given(known.Config, settings))
    found = [read_tree(path, "--profile") for path in profiles]
    for path, one in zip(profiles, found, strict=True):
        if not isinstance(one, dict):
            raise BadInput(f"--profile: {path!r} is not a table of names and values")
    options = RunOptions.checked(**_where({**where, "data": data}))
    if measure:
        if found:
            raise BadInput("--measure: not together with --profile: it makes all of them")
        found = in_thread_if_needed(lambda _: measured(known, config, options))
    elif given := [name for name in ("runtime", "address", "placement") if where.get(name)]:
        raise BadInput(f"--{given[0]}: needs --measure")
    if options.data and known.measure and not found:
        raise BadInput("--data: pilots on it need each party's machine: give --profile FILE for each, or --measure")
    # rows at other machines stay there: pilots then train on generated ones
    named = options.data if aim == "target" and not options.address else None
    rows = load_data(known, config, named, seed) if named else None
    quiet: dict[str, Any] = {} if tell is None else {"tell": tell}
    planning = Planning(aim=aim, data=rows, seed=seed, jobs=jobs, time_limit=time_limit, **quiet)
    make = known.plan
    return dict(jsonable(in_thread_if_needed(lambda _: make(config, found, planning))))


def doctor(
    address: str | None = None, tell: Callable[[str], None] = lambda text: None
) -> tuple[list[Finding], list[Finding]]:
    """Check this installation, and the settings of a cluster.

    Args:
        address: of the cluster's dashboard, ``http://HEAD:8265``; by default only what is started from here is.
        tell: hears what is looked at.

    Returns:
        Whether this machine can run fedactors; who can reach it and the cluster.
    """
    tell("looking at this machine")
    from fedactors.runtime.ray.doctor import examine_cluster, examine_here, examine_machine
    from fedactors.runtime.ray.jobs import job_address

    cluster = None if address is None else job_address(address)
    machine, others = examine_machine(tell), examine_here()
    if cluster is not None:
        tell(f"looking at {cluster}")
        others += examine_cluster(cluster)
    return machine, others


# --- what there is --------------------------------------------------------------------------------------------------


def inspect(protocol: str | Protocol, **settings: Any) -> Messages:
    """Return every message that would leave a party with these settings, before anything runs.

    Raises:
        BadInput: a setting is not allowed, or the protocol declares no messages.
    """
    return Messages(_protocol(protocol), settings)


class Messages:
    """The messages that would leave a party, and the protections that are on.

    Args:
        protocol: which one.
        settings: its settings, by name or as ``key=value`` words.
    """

    def __init__(self, protocol: Protocol, settings: Words) -> None:
        from fedactors.config import build_given, with_contents
        from fedactors.inspection import describe_joins, describe_messages, describe_predictions, describe_protections

        config = with_contents(build_given(protocol.Config, settings))
        self.protocol = protocol.name
        self.messages = describe_messages(protocol, config)
        """In training, JSON-ready: sender, receiver, what it reveals, fields."""
        self.protections = describe_protections(protocol, config)
        self.predictions = describe_predictions(protocol, config)
        self.joins = describe_joins(protocol)
        """Where a query joins rows, or nodes lie in tables."""

    @property
    def table(self) -> Table:
        """The messages of training and of predictions, a row each."""
        stages = {"training": self.messages, "predictions": self.predictions, "joins": self.joins}
        names = ("message", "sender", "receiver", "reveals")
        return Table(
            [
                {"stage": stage, **{name: one[name] for name in names}}
                for stage, found in stages.items()
                for one in found
            ]
        )

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        from fedactors.runs.metrics import jsonable

        told = {"protections": jsonable(self.protections), "messages": self.messages, "predictions": self.predictions}
        return {"protocol": self.protocol, **told, **({"joins": self.joins} if self.joins else {})}

    def __repr__(self) -> str:
        return repr(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


def list_protocols() -> Table:
    """Return the protocols that are installed: what each is for, its data layout, and the data sets that fit."""
    from fedactors.data.datasets.catalogue import catalogue

    rows = []
    for found in discover():
        known = found.protocol
        facts: dict[str, Any] = dict.fromkeys(("summary", "problem", "partition", "default_data", "data", "party_loss"))
        if known is not None:
            facts = {
                "summary": known.summary,
                "problem": getattr(known, "problem", ""),
                "partition": known.partition,
                "default_data": known.default_data,
                "data": [one.name for one in catalogue() if known.partition in one.layouts],
                "party_loss": sorted(known.party_loss),
            }
        rows.append(
            {"name": found.name, "package": found.package, "error": found.error, **facts, "hidden_by": found.hidden_by}
        )
    return Table(rows)


def list_datasets() -> Table:
    """Return the named data sets: task, size, layouts, terms, and whether their files are here."""
    from fedactors.data.datasets.catalogue import catalogue, is_present

    return Table(
        [
            {
                "name": one.name,
                "kind": one.kind,
                "task": one.task,
                "layouts": list(one.layouts),
                "rows": one.rows,
                "columns": one.columns,
                "terms": one.terms,
                "present": is_present(one),
                "summary": one.summary,
            }
            for one in catalogue()
        ]
    )


def fetch(dataset: str) -> list[Path]:
    """Download the files of a named data set, unless they are here, and return them.

    Raises:
        BadInput: there is no such data set, or what came is another file.
        DataMissing: a file could not be downloaded.
    """
    from fedactors.data.datasets.catalogue import fetch

    return list(fetch(dataset))


def check_data(data: Data, *, party: str | None = None) -> DataCheck:
    """Check each party's data, in its own files, and return errors and warnings; nothing is trained.

    Args:
        data: path of a description of your own data, ``parties.toml``, or objects as `vertical` and its like take them.
        party: the only one whose files are read; by default all parties, whose files must be on this machine.

    Raises:
        BadInput: there is no such party.
    """
    from fedactors.data.checks import check_data

    return DataCheck(check_data(Path(_data(data) or ""), party))


class DataCheck:
    """Findings on your own data: `errors`, which end a run, and `warnings`; both are tables.

    Args:
        findings: as `fedactors.data.checks` has them.
    """

    def __init__(self, findings: Sequence[DataFinding]) -> None:
        self._findings = list(findings)

    @property
    def errors(self) -> Table:
        """Findings that end a run."""
        return self._table("error")

    @property
    def warnings(self) -> Table:
        """Findings that do not end a run, but may make its result wrong."""
        return self._table("warning")

    @property
    def edits(self) -> str:
        """TOML lines that answer the findings, by table: check each one, then add it to the description."""
        from fedactors.data.checks import edits_of

        return edits_of(self._findings)

    def _table(self, *levels: str) -> Table:
        from dataclasses import asdict

        return Table([asdict(one) for one in self._findings if one.level in levels])

    def __repr__(self) -> str:
        lines = [f"{one.level}: {one.line}" for one in self._findings]
        return "\n".join([*lines, *(["", self.edits] if self.edits else [])]) or "nothing wrong or odd is found"


def settings(protocol: str | Protocol) -> Table:
    """Return a protocol's settings: default, allowed values and meaning."""
    from fedactors.inspection import settings_of

    names = ("name", "default", "allowed", "meaning", "section")
    return Table([{name: getattr(one, name) for name in names} for one in settings_of(_protocol(protocol).Config)])


def load_part(path: str | Path, allow_import: Collection[str] = (), *, model: Any = None) -> Part:
    """Return the part of a model that `Run.export` wrote: module and preprocessing of one party.

        part = fedactors.load_part("model/shop")
        x = part.preprocess("new.csv")
        z = part.bottom(x)

    Args:
        path: the party's folder.
        allow_import: the code that its models name, ``package.module:function``, and that may be imported.
        model: the object that the run was given as its model.

    Raises:
        BadInput: nothing of that kind is there, it is damaged, or it names code that is not trusted.
    """
    from fedactors.serving.parts import read_part

    return read_part(path, allow_import, model)


# --- tables ---------------------------------------------------------------------------------------------------------


class Table:
    """A small table. Iterate over its rows, or take it to pandas, Polars or Arrow.

    Args:
        content: rows by column name, or a `pyarrow.Table`.
    """

    def __init__(self, content: Any) -> None:
        self._content = content

    @functools.cached_property
    def _arrow(self) -> Any:
        if not isinstance(self._content, list):
            return self._content
        import pyarrow

        names = dict.fromkeys(name for row in self._content for name in row)
        return pyarrow.table({name: _column([row.get(name) for row in self._content]) for name in names})

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._arrow.column_names)

    def __len__(self) -> int:
        return len(self._content)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._content if isinstance(self._content, list) else self._content.to_pylist())

    def __getitem__(self, name: str) -> list[Any]:
        if name not in self.columns:
            raise KeyError(f"no column {name!r}: there are {', '.join(self.columns)}")
        found: list[Any] = self._arrow.column(name).to_pylist()
        return found

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._arrow.__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> Any:
        """Return a `pyarrow.Table`."""
        return self._arrow

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame`; pandas must be installed."""
        _installed("pandas")
        return self._arrow.to_pandas()

    def to_polars(self) -> Any:
        """Return a `polars.DataFrame`; Polars must be installed."""
        return _installed("polars").from_arrow(self._arrow)

    def __repr__(self) -> str:
        shown = [self.columns, *([_text(value) for value in row.values()] for row in self._first())]
        widths = [max(len(row[index]) for row in shown) for index in range(len(self.columns))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in shown]
        return "\n".join([*(line.rstrip() for line in lines), f"[{len(self)} rows]"])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        rows = ("".join(f"<td>{html.escape(_text(value))}</td>" for value in row.values()) for row in self._first())
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{len(self)} rows</p>"

    def _first(self, count: int = 10) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._arrow.slice(0, count).to_pylist()
        return found


def _column(values: list[Any]) -> Any:
    """Return values as an Arrow column; values of several types as JSON text."""
    import pyarrow

    try:
        return pyarrow.array(values)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):
        return pyarrow.array([None if value is None else json.dumps(value) for value in values])


def _installed(package: str) -> Any:
    from importlib import import_module

    try:
        return import_module(package)
    except ImportError:
        raise BadInput(f"{package} is not installed: pip install {package}") from None


# --- arguments ------------------------------------------------------------------------------------------------------


def _protocol(given: str | Protocol) -> Protocol:
    return find_protocol(given) if isinstance(given, str) else given


def _data(given: Data | None) -> str | None:
    """Return data as the options name them; the one place where it is decided what data may be."""
    found = str(given) if isinstance(given, (str, Path)) else getattr(given, "address", None)
    if given is None or isinstance(found, str):
        return found
    raise BadInput(
        f"data: {type(given).__name__} is not allowed: give the name of a data set, the path of a parties.toml, or "
        "objects: fedactors.vertical(...), horizontal, relational or graph"
    )


_ARGUMENTS = ("data", "runtime", "seed", "out", "address", "callbacks", "network", "faults")
"""What `run` or `simulate` take beside settings."""


def _hold_code(protocol: Protocol, settings: Words) -> tuple[Words, list[HeldObject]]:
    """Return settings with addresses in place of objects, and the objects, which live as long as they are kept."""
    if isinstance(settings, Mapping):
        fields = [one.name for one in dataclasses.fields(protocol.Config)]
        for name in settings:
            if name not in fields:
                known = [*fields, *(one for one in _ARGUMENTS if one != name)]
                raise BadInput(f"{name}: unknown key{suggested(name, known)}")
    if not isinstance(settings, Mapping) or all(isinstance(one, (str, int, float)) for one in settings.values()):
        return settings, []
    from fedactors.config import code_fields

    marked = code_fields(protocol.Config) & set(settings)
    if all(settings[name] is None or isinstance(settings[name], str) for name in marked):
        return settings, []
    from fedactors.learning.user_models import hold_code

    return hold_code(protocol.Config, settings)


def _of(data: Data | None, made: Run) -> Run:
    """Return a run that keeps the objects that it was of, to go on with them."""
    made._objects = None if data is None or isinstance(data, (str, Path)) else data
    return made


def _where(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options that a method took as keyword arguments."""
    known = RunOptions.__dataclass_fields__
    if unknown := next((name for name in given if name not in known), None):
        raise BadInput(f"{unknown}: unknown option{suggested(unknown, known)}")
    return {**given, "data": _data(given.get("data"))}


def _page(given: str | Path, field: str) -> Path:
    """Return the path of a page, picture or folder that is to be written; it is no part of a run's record."""
    from fedactors.runs.folder import apart_from_records
    from fedactors.runs.storage import local_path

    return apart_from_records(local_path(given, field), field)


def _location(given: Run | str | Path) -> str:
    return given._location if isinstance(given, Run) else str(given)


def _is_quiet() -> bool:
    """Whether no progress is shown: it is for terminals and notebooks."""
    from fedactors.runs.progress import in_notebook

    return not sys.stderr.isatty() and not in_notebook()


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _metrics_text(metrics: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_text(value)}" for name, value in list(metrics.items())[:4])
