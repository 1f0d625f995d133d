"""What each command of the command line does; the heavy imports are inside, so that a command pays for its own only.

``fedactors audit RUN``: what a run claims, beside what its ledger, a replay and attackers say.

``fedactors sweep``: its flags, and what it says.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import shutil
import statistics
import sys
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedactors.cli.flags import _seed, _seeds, add_format_flag, run_options
from fedactors.cli.help import SHELLS
from fedactors.cli.jobs import fetch_command as fetch_command
from fedactors.cli.jobs import is_shared
from fedactors.cli.jobs import submit_command as submit_command
from fedactors.cli.sites import federation_command as federation_command
from fedactors.cli.sites import relay_command as relay_command
from fedactors.cli.sites import site_command as site_command
from fedactors.cli.terminal import format_value, moving_line, print_json, print_metrics, print_table, say, say_filled
from fedactors.errors import BadInput, Stopped
from fedactors.options import RUNTIMES, RunOptions
from fedactors.plugins import Protocol, discover, find_protocol
from fedactors.validation import PARTY_NAME, shown

if TYPE_CHECKING:
    from fedactors.auditing.audit import Attack, LedgerAudit
    from fedactors.auditing.replay import ReplayAudit
    from fedactors.privacy.accounting import Claim
    from fedactors.runs.folder import Checkpoint, RunFolder
    from fedactors.runs.party_states import FoundStates
    from fedactors.runs.table import RunRow
    from fedactors.sweeps import Sweep, Trial

REFUTED = 5
"""Exit code of an audit that refutes a claim."""


def audit_command(args: argparse.Namespace) -> int:
    """Recompute, replay, attack; the exit code says whether a claim is refuted.

    What a replay or attacks found is kept in the folder of a run that has ended, for its report.
    """
    from fedactors.auditing.audit import check_run
    from fedactors.runs.folder import AUDIT, RunFolder

    if args.neighbours < 1:
        raise BadInput(f"--neighbours: {args.neighbours} is not allowed: give at least 1")
    if args.words and not args.replay:
        raise BadInput(f"{args.words[0]}: settings are for --replay, which may run smaller than the run did")
    folder = RunFolder.open(args.run)
    if isinstance(known := folder.config.get("federation"), dict):
        run = known.get("run")
        raise BadInput(
            f"audit: {folder.path}: each site keeps its own account of the run; in its folder: fedactors audit "
            f"runs/*-{run}-0, and fedactors site audit {run} for what crossed"
        )
    ledger = check_run(folder)
    replays = _replays(folder, args) if args.replay else []
    attacks = _attacks(folder, args) if args.attacks else []
    refuted = [line for audit in replays for line in audit.refuted]
    refuted += ledger.refuted
    found = {
        "run": str(folder.path),
        "agrees": ledger.agrees,
        "refuted": refuted,
        "lines": [_line(line) for line in ledger.lines],
        "claims": [_claim(claim) for claim in ledger.claims],
        "predictions": [_line(line) for line in ledger.predictions],
        "prediction_claims": [_claim(claim) for claim in ledger.prediction_claims],
        "not_counted": list(ledger.not_counted),
        "replays": [_replay(audit) for audit in replays],
        "attacks": [{**dataclasses.asdict(one), "is_chance": one.is_chance} for one in attacks],
    }
    if (replays or attacks) and folder.status != "running":
        folder.write_json(AUDIT, found)
        folder.write_manifest()
    if args.format == "json":
        print_json(found)
    else:
        _print(ledger, replays, attacks, refuted)
    return REFUTED if refuted else 0


def _replays(folder: RunFolder, args: argparse.Namespace) -> list[ReplayAudit]:
    from fedactors.api import data_to_audit, load_data, restore_config
    from fedactors.auditing.replay import audit_by_replay, joined
    from fedactors.config import as_dict, build, parse_words
    from fedactors.plugins import find_protocol
    from fedactors.runtime.compute import one_torch_thread

    protocol = find_protocol(str(folder.config.get("protocol")))
    if getattr(protocol, "neighbours", None) is None:
        raise BadInput(f"--replay: {protocol.name} does not say what its neighbours are")
    config = restore_config(protocol, folder, args.trust)
    if args.words:
        config = build(protocol.Config, {**as_dict(config), **parse_words(args.words)})
    seed = folder.config["seed"]
    data = load_data(protocol, config, data_to_audit(folder, args.data), seed)
    parties = tuple(data.parties) if hasattr(data, "parties") else ()
    if args.party is not None and args.party not in parties:
        raise BadInput(f"--party: {args.party!r} is not allowed: one of {', '.join(parties)}")
    one_torch_thread()
    found = []
    for party in parties if args.party is None else (args.party,):
        assert protocol.neighbours is not None
        neighbours = protocol.neighbours(config, data, party, args.neighbours, seed)
        found.append(audit_by_replay(protocol, config, data, party, neighbours, seed=seed))
    whole = joined(found) if args.party is None else None
    return found if whole is None else [*found, whole]


def _attacks(folder: RunFolder, args: argparse.Namespace) -> list[Attack]:
    from fedactors.api import data_to_audit, load_data, restore_config
    from fedactors.auditing.attacks import run_attacks
    from fedactors.plugins import find_protocol

    protocol = find_protocol(str(folder.config.get("protocol")))
    surface = getattr(protocol, "surface", None)
    if surface is None:
        raise BadInput(f"--attacks: {protocol.name} does not say what its attackers see")
    config, seed = restore_config(protocol, folder, args.trust), folder.config["seed"]
    data = load_data(protocol, config, data_to_audit(folder, args.data), seed)
    return run_attacks(surface(config, data, folder.load_checkpoint(None).actors, seed), seed)


def _print(
    ledger: LedgerAudit, replays: Sequence[ReplayAudit], attacks: Sequence[Attack], refuted: Sequence[str]
) -> None:
    from fedactors.auditing.audit import table_of

    rows = [
        [
            line.record.party,
            line.record.message_type,
            line.record.neighbour,
            line.record.mechanism,
            _number(line.record.rigorous_mu),
            _number(line.mu),
            _number(line.record.epsilon),
            _number(line.epsilon),
            "agrees" if line.agrees else "DISAGREES",
        ]
        for line in (*ledger.lines, *ledger.predictions)
    ]
    if rows:
        print_table(["party", "release", "one", "mechanism", "mu", "recomputed", "epsilon", "recomputed", ""], rows)
    else:
        say("nothing is claimed: the ledger holds no line")
    say()
    spoken = [*((claim, "") for claim in ledger.claims)]
    spoken += [(claim, ", in all predictions together") for claim in ledger.prediction_claims]
    for claim, where in spoken:
        holds = f"mu {_number(claim.mu)}, epsilon {_number(claim.epsilon)} at delta {claim.delta:g}"
        said = holds if claim.covered else f"no guarantee ({'; '.join(claim.uncovered)})"
        say_filled(f"{claim.party}, one {claim.neighbour}{where}: {said}")
    for line in ledger.not_counted:
        say_filled(line)
    for audit in replays:
        for kind, worst in audit.worst.items():
            stated = audit.claims.get(kind)
            claimed = _number(stated.mu) if stated is not None and stated.covered else "nothing"
            more = f"; without noise: {', '.join(worst.bare[:3])}" if worst.bare else ""
            say_filled(
                f"{audit.party}, one {kind}, replayed: claimed {claimed}, moved mu {_number(worst.mu)} "
                f"({worst.neighbour}){more}"
            )
    if attacks:
        say()
        print_table(*table_of(attacks))
    for line in refuted:
        say_filled(f"REFUTED: {line}")


def _line(line: Any) -> dict[str, Any]:
    from fedactors.runs.metrics import jsonable

    told = ("party", "message_type", "mechanism", "neighbour", "uncovered", "note")
    stated = {name: getattr(line.record, name) for name in told}
    figures = {"stated_mu": line.record.rigorous_mu, "mu": line.mu, "stated_epsilon": line.record.epsilon}
    found: dict[str, Any] = jsonable(
        {**stated, **figures, "epsilon": line.epsilon, "agrees": line.agrees, "reason": line.reason}
    )
    return found


def _claim(claim: Claim) -> dict[str, Any]:
    from fedactors.runs.metrics import jsonable

    found: dict[str, Any] = jsonable(dataclasses.asdict(claim))
    return found


def _replay(audit: ReplayAudit) -> dict[str, Any]:
    from fedactors.runs.metrics import jsonable

    replays = [
        {
            "neighbour": one.neighbour,
            "kind": one.kind,
            "mu": one.mu,
            "bare": list(one.bare),
            "to_driver": list(one.to_driver),
            "moved": {shift.place: {"mu": shift.mu, "largest": shift.largest} for shift in one.shifts},
        }
        for one in audit.replays
    ]
    claimed = {kind: dataclasses.asdict(claim) for kind, claim in audit.claims.items()}
    found: dict[str, Any] = jsonable({"party": audit.party, "claims": claimed, "replays": replays})
    return found


def _number(value: float | None) -> str:
    return "-" if value is None else "none" if math.isinf(value) else f"{value:.4g}"


SUMMARY = "run a protocol with many settings and seeds; one table, and what is known is not run again"
_WORDS = (
    "a=1,2 tries both, two such lists all pairs. A field that holds a list takes brackets: layers=[8,16] is one value, "
    "layers=[8,16],[32] are two. Random: uniform(LOW,HIGH), loguniform(LOW,HIGH), integer(LOW,HIGH), choice(A,B) with "
    "--draws (in quotes, for the shell)"
)


def add_sweep_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("protocol", metavar="PROTOCOL", help="name of a protocol, see fedactors list")
    parser.add_argument("words", nargs="*", metavar="key=values", help=_WORDS)
    parser.add_argument("--settings", metavar="FILE", help="an explicit list: [[settings]] in .toml, [{...}] in .json")
    parser.add_argument("--draws", type=_count, metavar="N", help="draws from each distribution")
    parser.add_argument("--draw-seed", type=_seed, default=0, metavar="N", help="decides what is drawn (default 0)")
    parser.add_argument("--seeds", type=_seeds, default=(0,), metavar="0,1,2", help="seeds of each setting (default 0)")
    parser.add_argument("--data", metavar="NAME|FILE", help="a data set, or a description of your own data (.toml)")
    parser.add_argument("--runtime", choices=RUNTIMES, default="simulated", help="simulated (default) or ray")
    parser.add_argument("--jobs", type=_count, default=1, metavar="N", help="processes of this machine (default 1)")
    parser.add_argument("--address", metavar="A", help="run as tasks of this Ray cluster instead (host:port or auto)")
    parser.add_argument("--smoke", action="store_true", help="begin with the protocol's smallest setting")
    parser.add_argument("--full", action="store_true", help="begin with the setting of the paper")
    parser.add_argument("--out", default="sweeps", metavar="DIR", help="folder of tables and cache (default: sweeps)")
    parser.add_argument("--name", metavar="NAME", help="name of the table (default: the protocol's)")
    parser.add_argument(
        "--choose", metavar="METRIC:MODE", help="choose a setting by its mean over seeds, e.g. validation/loss:min"
    )
    parser.add_argument("--again", action="store_true", help="run also what is cached")
    parser.add_argument("--dry-run", action="store_true", help="list what would run, and run nothing")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    add_format_flag(parser)


def sweep_command(args: argparse.Namespace) -> int:
    """Plan, run, and print what was found."""
    from fedactors.runs.storage import local_path
    from fedactors.sweeps import Cache, Criterion, plan, read_settings, settings_of, sweep

    protocol = find_protocol(args.protocol)
    if args.address is not None and args.jobs != 1:
        raise BadInput("--jobs and --address exclude each other: the cluster runs as many as it has cores")
    if args.address is not None and args.runtime != "simulated":
        raise BadInput("--address: needs --runtime simulated; each run of a sweep is one task of the cluster")
    criterion = None if args.choose is None else Criterion.parse(args.choose)
    listed = () if args.settings is None else read_settings(args.settings)
    settings = settings_of(args.words, listed=listed, draws=args.draws, draw_seed=args.draw_seed)
    options = RunOptions(
        data=args.data, runtime=args.runtime, seeds=args.seeds, smoke=args.smoke, full=args.full, quiet=True
    )
    trials = plan(protocol, settings, options)
    if args.name is not None and not PARTY_NAME.fullmatch(args.name):
        raise BadInput(
            f"--name: {shown(args.name)} is not allowed: letters, digits, '.', '_' and '-', a letter or digit first; "
            "for the folder see --out"
        )
    table = local_path(args.out) / f"{args.name or protocol.name}.parquet"
    cache = Cache(table.parent / "cache")
    cached = {trial.digest for trial in trials if not args.again and cache.get(trial.digest) is not None}
    if args.dry_run:
        return _list(trials, cached, args.format)
    if not args.quiet:
        say(f"{len(trials)} runs, {len(cached)} of them cached", file=sys.stderr, flush=True)
    try:
        found = sweep(
            trials,
            table,
            jobs=args.jobs,
            address=args.address,
            again=args.again,
            criterion=criterion,
            told=None if args.quiet else _progress,
        )
    except KeyboardInterrupt:
        raise Stopped("interrupted; the same command goes on where it stopped", 130) from None
    _show(found, trials, args.format)
    return 3 if found.num_failed == len(found.rows) else 0


def _list(trials: list[Trial], cached: set[str], form: str) -> int:
    if form == "json":
        listed = [
            {"settings": dict(t.settings), "seed": t.seed, "digest": t.digest, "command": t.command}
            | {"cached": t.digest in cached}
            for t in trials
        ]
        print_json({"runs": listed, "cached": len(cached)})
        return 0
    for trial in trials:
        say(f"{'cached' if trial.digest in cached else 'to run'}  {trial.command}")
    say(f"{len(trials)} runs, {len(cached)} of them cached")
    return 0


def _progress(done: int, total: int, trial: Trial, row: RunRow) -> None:
    result = f"failed: {row.failure}" if row.status == "failed" else f"{_first(row)} ({row.wall_seconds:.1f} s)"
    say(f"[{done}/{total}] {trial.label}: {result}", file=sys.stderr, flush=True)


def _first(row: RunRow) -> str:
    return next((f"{name} {format_value(value)}" for name, value in row.metrics.items()), "no metrics")


def _show(found: Sweep, trials: list[Trial], form: str) -> None:
    from fedactors.runs.metrics import jsonable
    from fedactors.sweeps import by_setting

    settings = {trial.digest: trial.settings for trial in trials}
    groups: list[dict[str, Any]] = []
    for rows in by_setting(found.rows):
        finished = [row for row in rows if row.status == "finished"]
        names = [name for name, value in finished[0].metrics.items() if type(value) in (int, float)] if finished else []
        values = {name: [row.metrics[name] for row in finished if name in row.metrics] for name in names}
        groups.append(
            {
                "settings": dict(settings[rows[0].digest]),
                "seeds": [row.seed for row in finished],
                "failed": {row.seed: row.failure for row in rows if row.status == "failed"},
                "mean": {name: statistics.fmean(numbers) for name, numbers in values.items()},
                "std": {name: statistics.stdev(n) if len(n) > 1 else 0.0 for name, n in values.items()},
            }
        )
    if form == "json":
        counts = {"runs": len(found.rows), "cached": found.num_cached, "failed": found.num_failed}
        print_json(jsonable({"table": str(found.table), **counts, "settings": groups, "choice": found.choice}))
        return
    keys = list(dict.fromkeys(key for group in groups for key in group["settings"]))
    shown = list(dict.fromkeys(name for group in groups for name in group["mean"]))[:4]
    print_table([*keys, "seeds", "failed", *shown], [_sweep_line(group, keys, shown) for group in groups])
    say(f"{len(found.rows)} runs, {found.num_cached} of them cached, {found.num_failed} failed")
    say(f"table: {found.table}")
    if found.choice is not None:
        how = (
            f"chosen by {found.choice['metric']}:{found.choice['mode']} among {found.choice['settings_tried']} settings"
        )
        chosen = " ".join(f"{key}={value}" for key, value in found.choice["settings"].items())
        say(f"{how}: {chosen or 'the defaults'} ({format_value(found.choice['mean'])})")


def _sweep_line(group: dict[str, Any], keys: list[str], shown: list[str]) -> list[str]:
    cells = [str(group["settings"].get(key, "-")) for key in keys]
    cells += [str(len(group["seeds"])), str(len(group["failed"]))]
    for name in shown:
        spread = f" ± {format_value(group['std'][name])}" if len(group["seeds"]) > 1 else ""
        cells.append(f"{format_value(group['mean'][name])}{spread}" if name in group["mean"] else "-")
    return cells


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: a whole number of 1 or more")
    return int(text)


def list_command(args: argparse.Namespace) -> int:
    """Print the protocols found, the data sets, and which fit which."""
    from fedactors.data.datasets.catalogue import catalogue

    datasets = catalogue()
    protocols: list[dict[str, Any]] = []
    hidden: dict[str, list[str]] = {}
    for found in discover():
        if found.hidden_by is not None:
            hidden.setdefault(found.hidden_by, []).append(found.name)
        entry: dict[str, Any] = {"name": found.name, "package": found.package, "error": found.error}
        if found.protocol is not None:
            layout = found.protocol.partition
            entry |= {
                "summary": found.protocol.summary,
                "problem": getattr(found.protocol, "problem", ""),
                "partition": layout,
                "default_data": found.protocol.default_data,
                "data": [dataset.name for dataset in datasets if layout in dataset.layouts],
                "party_loss": sorted(found.protocol.party_loss),
            }
        protocols.append(entry)
    if args.format == "json":
        print_json({"protocols": protocols, "datasets": [_describe_dataset(dataset) for dataset in datasets]})
        return 0
    rows = [
        [entry["name"], entry["partition"], entry["problem"] or entry["summary"]]
        if entry["error"] is None
        else [entry["name"], "-", f"BROKEN: {entry['error']}"]
        for entry in protocols
        if not any(entry["name"] in names for names in hidden.values())
    ]
    print_table(["protocol", "data layout", "for"], rows, wrap=True)
    for place, names in hidden.items():
        say(f"{place} hides {', '.join(names)}: rename it, or start from another folder")
    say()
    _print_datasets(datasets)
    return 0


def run_command(args: argparse.Namespace) -> int:
    """Run a protocol."""
    return run_and_print(find_protocol(args.protocol), args.words, run_options(args))


def run_and_print(protocol: Protocol, words: Sequence[str], options: RunOptions) -> int:
    """Resolve, launch, and print the results; also what every scenario script does."""
    from fedactors.api import launch, launch_again, resolve
    from fedactors.runs.metrics import combine

    config, options = resolve(protocol, words, options)
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ and not is_shared(options.out):
        say(
            f"warning: --out {options.out} is relative: the run folder lies in the job's own directory, and goes with "
            "it; give a path that all hosts share, an address such as s3://bucket/runs, or use fedactors submit",
            file=sys.stderr,
        )
    several = len(options.seeds or ()) > 1
    summaries = (launch_again if options.go_on else launch)(protocol, config, options)
    if options.format == "json":
        if several:
            print_json(combine(summaries))
        else:
            print_json(summaries[0].as_dict())
        return 0
    for summary in summaries:
        print_metrics(f"{summary.protocol} (seed {summary.seed}, {summary.runtime})", summary.metrics)
        for note in summary.extra.get("notes", ()):
            say_filled(f"note: {note}")
        say(f"run: {summary.run}")
    if several:
        both = combine(summaries)
        say()
        deviations = both["std"]["metrics"]
        rows = [
            [name, f"{format_value(mean)} ± {format_value(deviations[name])}"]
            for name, mean in both["mean"]["metrics"].items()
        ]
        print_table([f"{len(summaries)} seeds", "mean ± standard deviation"], rows)
    return 0


def doctor_command(args: argparse.Namespace) -> int:
    """Look at this installation and at a cluster."""
    with moving_line() as show:
        show("looking at this machine")
        from fedactors.runs.folder import describe_environment
        from fedactors.runtime.ray.doctor import examine_cluster, examine_here, examine_machine
        from fedactors.runtime.ray.jobs import job_address

        address = None if args.address is None else job_address(args.address)
        machine = examine_machine(show)
        findings = [*machine, *examine_here()]
        if address is not None:
            show(f"looking at {address}")
            findings += examine_cluster(address)
    if args.format == "json":
        listed = [dataclasses.asdict(finding) for finding in findings]
        print_json({"environment": describe_environment(), "findings": listed})
        return 0
    rows = [[f.state, f.what, f"{f.found}{'. Do: ' if f.advice else ''}{f.advice}"] for f in findings]
    print_table(["", "", "found, and what to do"], rows, wrap=True)
    say()
    faults = [f.what for f in machine if f.state == "fault"]
    say(f"This machine cannot run fedactors yet: {', '.join(faults)}." if faults else "This machine can run fedactors.")
    say_filled("One Ray cluster is one trust domain: whoever can submit to it can run code in it.", indent="")
    return 0


def compare_command(args: argparse.Namespace) -> int:
    """Put runs side by side."""
    from fedactors.runs.compare import compare, load_runs, table_rows
    from fedactors.runs.folder import apart_from_records
    from fedactors.runs.storage import local_path

    for name in ("plot", "report"):
        if getattr(args, name) is not None:
            apart_from_records(local_path(getattr(args, name), f"--{name}"), f"--{name}")
    runs = load_runs(args.runs)
    comparison = compare(runs)
    if args.plot is not None:
        from fedactors.report.charts import plot_comparison

        plot_comparison(runs, local_path(args.plot, "--plot"), metric=args.metric)
    if args.report is not None:
        from fedactors.report.page import render_report
        from fedactors.runs.storage import write_atomic

        write_atomic(local_path(args.report, "--report"), render_report(runs).encode(), "--report")
    if args.format == "json":
        print_json({**comparison, "plot": args.plot, "report": args.report})
        return 0
    for index, (header, rows) in enumerate(table_rows(comparison)):
        if index:
            say()
        # a screen has room for a few groups side by side, not for all metrics
        if len(rows) <= 4:
            names, *metrics = [list(cells) for cells in zip(header, *rows, strict=True)]
            print_table(names, metrics)
        else:
            print_table(header, rows)
    for note in comparison["notes"]:
        print(textwrap.fill(note, shutil.get_terminal_size().columns))
    for name in ("plot", "report"):
        if getattr(args, name):
            say(f"{name}: {getattr(args, name)}")
    return 0


def report_command(args: argparse.Namespace) -> int:
    """Write the page."""
    from fedactors.report.page import render_report
    from fedactors.runs.compare import load_runs
    from fedactors.runs.folder import apart_from_records
    from fedactors.runs.storage import is_remote, local_path, write_atomic

    runs = load_runs(args.runs)
    folder = runs[0].folder
    if not args.to and folder is not None and is_remote(folder.place):
        raise BadInput(f"--to: give a file of this machine, {folder.place} is an address")
    beside = Path(args.runs[0]).with_suffix(".html") if folder is None else folder.path / "report.html"
    path = local_path(args.to, "--to") if args.to is not None else beside
    if path.is_dir():
        raise BadInput(f"--to: {args.to!r} is a folder; give the name of the page")
    apart_from_records(path, "--to")
    if args.figures:
        apart_from_records(local_path(args.figures, "--figures"), "--figures")
    write_atomic(path, render_report(runs).encode(), "--to")
    figures = []
    if args.figures:
        from fedactors.report.charts import write_figures

        figures = [str(figure) for figure in write_figures(runs, local_path(args.figures, "--figures"))]
    if args.format == "json":
        print_json({"report": str(path), "figures": figures})
    else:
        say("\n".join([str(path), *figures]))
    return 0


def plan_command(args: argparse.Namespace) -> int:
    """Choose settings from profiles."""
    from fedactors.config import build_given
    from fedactors.runs.metrics import jsonable

    protocol = find_protocol(args.protocol)
    if protocol.plan is None:
        raise BadInput(f"protocol: {protocol.name} has no planner")
    config = build_given(protocol.Config, args.words)
    profiles = [_read_profile(path) for path in args.profile]
    if args.measure:
        from fedactors.api import measure

        if profiles:
            raise BadInput("--measure: not together with --profile: it makes all of them")
        profiles = measure(protocol, config, run_options(args))
    elif given := [name for name in ("data", "runtime", "address", "place") if getattr(args, name)]:
        raise BadInput(f"--{given[0]}: needs --measure")
    planned = jsonable(protocol.plan(config, profiles))
    if args.format == "json":
        print_json(planned)
    else:
        print_table(["setting", "value"], [[key, format_value(value)] for key, value in planned.items()])
    return 0


def inspect_command(args: argparse.Namespace) -> int:
    """Show every message that would leave a party."""
    from fedactors.config import build_given
    from fedactors.inspection import describe_joins, describe_messages, describe_predictions, describe_protections
    from fedactors.runs.metrics import jsonable

    protocol = find_protocol(args.protocol)
    config = build_given(protocol.Config, args.words)
    messages, protections = describe_messages(protocol, config), describe_protections(protocol, config)
    predictions, joins = describe_predictions(protocol, config), describe_joins(protocol)
    if args.format == "json":
        told = {"protections": jsonable(protections), "messages": messages, "predictions": predictions}
        told |= {"joins": joins} if joins else {}
        print_json({"protocol": protocol.name, **told})
        return 0
    say("Protection\n")
    for one in protections:
        settings = ", ".join(f"{name}={value}" for name, value in one["settings"].items())
        say(f"{one['kind']}: {'ON' if one['on'] else 'off'}{f'  ({settings})' if settings else ''}")
        say_filled(f"  {one['means']}", indent="")
    say("" if protections else "the protocol says nothing about it\n")
    headings = {
        "Between parties": [entry for entry in messages if not entry["control"]],
        "What the run's driver learns": [entry for entry in messages if entry["control"]],
        "Where a query joins the rows, or nodes lie in tables, before training and predictions": joins,
        "In predictions with the trained model": predictions,
    }
    for heading, entries in headings.items():
        if entries:
            say(f"{heading}\n")
        for entry in entries:
            say_filled(f"{entry['message']} -> {entry['receiver']}", indent="    ")
            say_filled(f"  from: {entry['sender']}")
            say_filled(f"  reveals: {entry['reveals']}")
            for field in entry["fields"]:
                shape = "" if field["shape"] is None else f"  {field['shape']}"
                say(f"  {field['name']}: {field['type']}{shape}")
            say()
    return 0


def predict_command(args: argparse.Namespace) -> int:
    """Use the trained model of a run: the parties' actors predict, and the predictions stay with their owner."""
    from fedactors.api import predict
    from fedactors.runs.folder import apart_from_records
    from fedactors.runs.storage import local_path
    from fedactors.runtime.snapshots import in_use

    if "://" not in args.to:
        apart_from_records(local_path(args.to, "--to"), "--to")
    protocol, config, folder, checkpoint, states = _trained(args)
    options = run_options(args)
    with in_use(
        "" if folder.config.get("federation") else checkpoint.folder
    ):  # over a federation states are at the sites
        outcomes, privacy = predict(protocol, config, folder, checkpoint, states, options, args.to)
    if args.format == "json":
        told = [
            {"party": one.party, "to": one.to, "rows": one.counts.num_rows, "predicted": one.counts.num_predicted}
            | {"without_partner": one.counts.num_alone, "refused": one.counts.num_refused}
            | {"reasons": dict(one.counts.reasons), "unpredicted": one.counts.unpredicted}
            for one in outcomes
        ]
        print_json({"run": str(folder.path), "predictions": told, "privacy": privacy})
        return 0
    for one in outcomes:
        counts = one.counts
        others = f", {counts.num_alone} without a partner" if counts.num_alone else ""
        others += f", {counts.num_refused} refused" if counts.num_refused else ""
        say(f"{one.party}: {counts.num_predicted} of {counts.num_rows} rows predicted{others}, in {one.to}")
        for reason, number in one.counts.reasons:
            say(f"{one.party}: {number} rows without a prediction: {reason}")
        if counts.unpredicted:
            what = "1 class is" if counts.unpredicted == 1 else f"{counts.unpredicted} classes are"
            say(f"{one.party}: {what} predicted for no row: look at the run's test metrics before you use the model")
    for party, lines in privacy.items():
        for message, line in lines.items():
            if line["covered"]:
                what = f"one {line['neighbour']} in this prediction, not training rows"
                say(f"{party}: {message} under noise, mu {line['rigorous_mu']:.3g} for {what}")
    if privacy:
        say(f"counted in the run's folder: fedactors audit {args.run} composes all predictions")
    return 0


def export_command(args: argparse.Namespace) -> int:
    """Write the parties' parts of the trained model, each into a folder of its own."""
    from fedactors.data.new_rows import NoPart
    from fedactors.runs.folder import apart_from_records
    from fedactors.runs.storage import local_path
    from fedactors.runtime.snapshots import in_use
    from fedactors.serving.parts import write_part

    protocol, config, folder, checkpoint, states = _trained(args)
    if isinstance(known := folder.config.get("federation"), dict):
        raise BadInput(
            f"export: {folder.path}: the parts of the model are at the sites: each exports its own, in its site's "
            f"folder: fedactors export runs/*-{known.get('run')}-0"
        )
    if protocol.export is None:
        raise BadInput(f"export: {protocol.name} cannot export")
    parties = sorted({name.partition("/")[0] for name in states})
    if args.party is not None and args.party not in parties:
        raise BadInput(f"--party: {args.party!r} is not allowed: one of {', '.join(parties)}")
    target = local_path(args.to, "--to") if args.to is not None else folder.inside("exported")
    apart_from_records(target, "--to")
    if args.to is None and any(path.is_symlink() for path in target.rglob("*")):
        raise BadInput(f"export: {target} has links, which lead who knows where: give --to DIR")
    written: dict[str, list[str]] = {}
    for party in parties if args.party is None else [args.party]:
        try:
            with in_use(checkpoint.folder):
                found = protocol.export(config, party, states)
                parts = found if isinstance(found, Mapping) else {"": found}
                paths = [path for name, part in parts.items() for path in write_part(part, target / party / name)]
        except NoPart:
            if args.party is not None:
                raise
            continue  # a broker, say
        written[party] = [str(path) for path in paths]
    if args.format == "json":
        print_json({"run": str(folder.path), "files": written})
    else:
        say("\n".join(path for paths in written.values() for path in paths))
    return 0


def new_command(args: argparse.Namespace) -> int:
    """Write a working start."""
    from fedactors.cli.scaffold import write_protocol, write_scenario
    from fedactors.runs.folder import apart_from_records
    from fedactors.runs.storage import local_path

    parent = apart_from_records(local_path(args.to, "--to"), "--to", wholly=True)
    if args.what == "scenario":
        paths = write_scenario(args.name, parent, args.protocol)
    else:
        paths = write_protocol(args.name, parent)
    written = [str(path) for path in paths]
    if args.format == "json":
        print_json({"files": written})
    else:
        say("\n".join(written))
    return 0


def data_command(args: argparse.Namespace) -> int:
    """List the data sets, or fetch one."""
    from fedactors.data.datasets.catalogue import catalogue, describe

    if args.action == "list":
        if args.name is not None:
            raise BadInput(f"data list takes no name ({args.name!r} given)")
        if args.format == "json":
            print_json({"datasets": [_describe_dataset(dataset) for dataset in catalogue()]})
        else:
            _print_datasets(catalogue())
        return 0
    if args.name is None:
        raise BadInput("data fetch needs the name of a data set, see fedactors data list")
    from fedactors.data.datasets.download import fetch

    describe(args.name)
    paths = [str(path) for path in fetch(args.name)]
    if args.format == "json":
        print_json({"name": args.name, "files": paths})
    else:
        say("\n".join(paths) or f"{args.name} needs no download")
    return 0


def completion_command(args: argparse.Namespace) -> int:
    """Print the script for a shell."""
    say(SHELLS[args.shell], end="")
    return 0


def _describe_dataset(dataset: Any) -> dict[str, Any]:
    from fedactors.data.datasets.download import is_present

    return {
        "name": dataset.name,
        "kind": dataset.kind,
        "task": dataset.task,
        "layouts": list(dataset.layouts),
        "rows": dataset.rows,
        "columns": dataset.columns,
        "terms": dataset.terms,
        "present": is_present(dataset),
        "summary": dataset.summary,
    }


def _print_datasets(datasets: Sequence[Any]) -> None:
    rows, terms = [], defaultdict(list)
    for dataset in datasets:
        entry = _describe_dataset(dataset)
        here = "here" if entry["present"] else "fetch"
        rows.append([entry["name"], entry["task"], f"{entry['rows']:,}", here, ", ".join(entry["layouts"])])
        terms[entry["terms"]].append(entry["name"])
    print_table(["data set", "task", "rows", "files", "layouts"], rows)
    say()
    print_table(["terms", "of"], [[text, ", ".join(names)] for text, names in terms.items()], wrap=True)


def _trained(args: argparse.Namespace) -> tuple[Protocol, Any, RunFolder, Checkpoint, FoundStates]:
    from fedactors.api import restore_config, states_of
    from fedactors.runs.folder import RunFolder
    from fedactors.runtime.snapshots import check_actors

    folder = RunFolder.open(args.run)
    folder.verify()
    stored = folder.config
    protocol = find_protocol(str(stored.get("protocol")))
    labels = [entry["label"] for entry in folder.manifest["checkpoints"]]
    chosen = args.checkpoint if args.checkpoint is not None else "best" if "best" in labels else None
    config = restore_config(protocol, folder, args.trust)
    checkpoint = folder.load_checkpoint(chosen)
    check_actors(checkpoint.driver, checkpoint.actors)
    states = states_of(folder, checkpoint.actors, dict(args.state), dict(args.state_key))
    return protocol, config, folder, checkpoint, states


def _read_profile(path: str) -> Mapping[str, Any]:
    from fedactors.validation import read_tree

    made = read_tree(path, "--profile")
    if not isinstance(made, dict):
        raise BadInput(f"--profile: {path!r} is not a table of names and values")
    return made
