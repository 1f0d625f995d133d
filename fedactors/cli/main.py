"""The command line: ``fedactors COMMAND``. Each command calls the API and prints what it returns.

Importing this module loads neither torch nor ray nor pydantic, so that ``--help`` and ``list`` answer at once; imports
are inside the commands, each of which pays for its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import math
import os
import shutil
import statistics
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from fedactors.cli.flags import SHELLS, VARIABLE, Parser, given_options, print_candidates, run_options
from fedactors.cli.jobs import fetch_command as fetch_command
from fedactors.cli.jobs import is_shared
from fedactors.cli.jobs import submit_command as submit_command
from fedactors.cli.parsers import parsers
from fedactors.cli.sites import federation_command as federation_command
from fedactors.cli.sites import help_of
from fedactors.cli.sites import relay_command as relay_command
from fedactors.cli.sites import site_command as site_command
from fedactors.cli.terminal import (
    answer,
    end_process,
    format_value,
    guarded,
    moving_line,
    print_json,
    print_metrics,
    print_table,
    say,
    say_filled,
)
from fedactors.errors import BadInput, Stopped
from fedactors.options import RunOptions
from fedactors.plugins import Protocol, canonical, find_protocol, protocol_names
from fedactors.validation import PARTY_NAME, shown

if TYPE_CHECKING:
    from fedactors.auditing.audit import Attack, LedgerAudit
    from fedactors.auditing.replay import ReplayAudit
    from fedactors.runs.table import RunRow
    from fedactors.sweeps import Criterion, Sweep, Trial

REFUTED = 5
"""Exit code of an audit that refutes a claim."""


def command() -> NoReturn:
    """Run the command of this process's words."""
    end_process(main())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        with guarded():
            parser, commands = parsers()
            words = list(sys.argv[1:] if argv is None else argv)
            if VARIABLE in os.environ:
                return print_candidates(commands, words)
            # key=value words may stand between flags, which argparse takes only in a parser without sub-commands
            if words and words[0] in commands:
                asks = bool({"-h", "--help"} & set(words))
                commands[words[0]].explained = _protocol_of(commands[words[0]], words[1:]) if asks else None
                if asks and (one := help_of(commands[words[0]], words)) is not None:
                    one.print_help()
                    return 0
                args = commands[words[0]].parse_intermixed_args(words[1:], argparse.Namespace(command=words[0]))
            else:
                args = parser.parse_args(words)
            code: int = globals()[f"{args.command}_command"](args)
            return code
    except SystemExit as done:  # so argparse ends --help and --version
        return int(done.code or 0)


def _protocol_of(parser: Parser, words: Sequence[str]) -> Protocol | None:
    """Return the protocol that the words of a command name, if it takes one and they do."""
    dests = {action.dest for action in parser._actions}
    if "words" not in dests:
        return None
    named = [word for word in words if canonical(word) in protocol_names()]
    if not named and "protocol" in dests and not words[0].startswith("-"):
        named = [words[0]]
    return find_protocol(named[0]) if named else None


def audit_command(args: argparse.Namespace) -> int:
    """Recompute, replay, attack; the exit code says whether a claim is refuted."""
    from fedactors.api import Run

    found = Run(args.run).audit(
        replay=args.replay,
        attacks=args.attacks,
        neighbours=args.neighbours,
        party=args.party,
        data=args.data,
        allow_import=args.allow_import,
        settings=args.words,
    )
    if args.format == "json":
        print_json(found.as_dict())
    else:
        _print(found.ledger, found.replays, found.attacks, found.refuted)
    return REFUTED if found.refuted else 0


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
    elif ledger.charged:
        say_filled(ledger.charged)
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


def _number(value: float | None) -> str:
    return "-" if value is None else "none" if math.isinf(value) else f"{value:.4g}"


def sweep_command(args: argparse.Namespace) -> int:
    """Plan, run, and print what was found."""
    from fedactors.runs.storage import local_path
    from fedactors.sweeps import Cache, Criterion, plan, read_settings, settings_of, sweep

    protocol = find_protocol(args.protocol)
    if args.address is not None and args.jobs != 1:
        raise BadInput("--jobs is not allowed with --address: the cluster runs as many as it has cores")
    if args.address is not None and args.runtime != "simulated":
        raise BadInput("--address: needs --runtime simulated; each run of a sweep is one task of the cluster")
    criterion = None if args.choose is None else Criterion.parse(args.choose)
    listed = () if args.settings is None else read_settings(args.settings)
    settings = settings_of(args.words, listed=listed, draws=args.draws, draw_seed=args.draw_seed)
    options = RunOptions(
        data=args.data, runtime=args.runtime, seeds=args.seeds, smoke=args.smoke, paper=args.paper, quiet=True
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
            progress=None if args.quiet else functools.partial(_progress, criterion),
        )
    except KeyboardInterrupt:
        raise Stopped("interrupted; run the same command to continue", 130) from None
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


def _progress(criterion: Criterion | None, done: int, total: int, trial: Trial, row: RunRow) -> None:
    said = _first(row) if criterion is None else f"{criterion.metric} {format_value(criterion.value(row))}"
    result = f"failed: {row.failure}" if row.status == "failed" else f"{said} ({row.wall_seconds:.1f} s)"
    say(f"[{done}/{total}] {trial.label}: {result}", file=sys.stderr, flush=True)


def _first(row: RunRow) -> str:
    return next((f"{name} {format_value(value)}" for name, value in row.metrics.items()), "no metrics")


def _show(found: Sweep, trials: list[Trial], form: str) -> None:
    from fedactors.runs.metrics import jsonable
    from fedactors.sweeps import Criterion, by_setting

    chosen_by = None if found.choice is None else Criterion(metric=found.choice["metric"], mode=found.choice["mode"])
    settings = {trial.digest: trial.settings for trial in trials}
    groups: list[dict[str, Any]] = []
    for rows in by_setting(found.rows):
        finished = [row for row in rows if row.status == "finished"]
        names = [name for name, value in finished[0].metrics.items() if type(value) in (int, float)] if finished else []
        values = {name: [row.metrics[name] for row in finished if name in row.metrics] for name in names}
        if chosen_by is not None:
            known = [value for row in finished if (value := chosen_by.value(row)) is not None]
            values |= {chosen_by.metric: known} if known else {}
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
    measured = list(dict.fromkeys(name for group in groups for name in group["mean"]))
    if chosen_by is not None:  # who chooses looks at validation rows, and at what chose first
        measured = [chosen_by.metric, *(n for n in measured if n.startswith("validation/") and n != chosen_by.metric)]
    shown = measured[:4]
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


def list_command(args: argparse.Namespace) -> int:
    """Print the protocols found, the data sets, and which fit which."""
    from fedactors.api import list_datasets, list_protocols

    found = list(list_protocols())
    if args.format == "json":
        print_json({"protocols": [_entry(one) for one in found], "datasets": list(list_datasets())})
        return 0
    rows = [
        [one["name"], one["partition"], one["problem"] or one["summary"]]
        if one["error"] is None
        else [one["name"], "-", f"BROKEN: {one['error']}"]
        for one in found
        if one["hidden_by"] is None
    ]
    print_table(["protocol", "data layout", "for"], rows, wrap=True)
    hidden: dict[str, list[str]] = defaultdict(list)
    for one in found:
        if one["hidden_by"] is not None:
            hidden[one["hidden_by"]].append(one["name"])
    for package, names in hidden.items():
        say(f"{package} hides {', '.join(names)}: rename it, or start from another folder")
    say()
    _print_datasets(list_datasets())
    return 0


def _entry(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """Return a protocol as JSON has it: a broken one has no more than its error."""
    return {
        name: value
        for name, value in protocol.items()
        if name in ("name", "package", "error") or (name != "hidden_by" and protocol["error"] is None)
    }


def run_command(args: argparse.Namespace) -> int:
    """Run a protocol."""
    protocol = find_protocol(args.protocol)
    return run_and_print(protocol, args.words, run_options(args), f"fedactors run {protocol.name}")


def run_and_print(protocol: Protocol, words: Sequence[str], options: RunOptions, command: str) -> int:
    """Run a protocol and print the results, as every scenario script does; `command` begins such a run."""
    from fedactors.api import execute
    from fedactors.runs.metrics import combine

    if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ and not is_shared(options.out):
        say(
            f"warning: --out {options.out} is relative: the run folder lies in the job's own directory, and goes with "
            "it; give a path that all hosts share, an address such as s3://bucket/runs, or use fedactors submit",
            file=sys.stderr,
        )
    summaries = [run.summary for run in execute(protocol, words, options, command=command)]
    several = len(summaries) > 1
    if options.format == "json":
        print_json(combine(summaries) if several else summaries[0].as_dict())
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
    from fedactors.api import doctor

    with moving_line() as show:
        machine, others = doctor(args.address, show)
    findings = [*machine, *others]
    if args.format == "json":
        from fedactors.runs.folder import describe_environment

        listed = [dataclasses.asdict(finding) for finding in findings]
        print_json({"environment": describe_environment(), "findings": listed})
        return 0
    rows = [[f.state, f.what, f"{f.result}{'. Do: ' if f.advice else ''}{f.advice}"] for f in findings]
    print_table(["", "", "found, and what to do"], rows, wrap=True)
    say()
    faults = [f.what for f in machine if f.state == "fault"]
    say(f"This machine cannot run fedactors yet: {', '.join(faults)}." if faults else "This machine can run fedactors.")
    say_filled("One Ray cluster is one trust domain: anyone who can submit to it can run code in it.", indent="")
    return 0


def compare_command(args: argparse.Namespace) -> int:
    """Put runs side by side."""
    from fedactors.api import compare
    from fedactors.runs.compare import table_rows

    comparison = compare(*args.runs)
    if args.plot is not None:
        comparison.plot(args.plot, args.metric)
    if args.report is not None:
        comparison.report(args.report)
    if args.format == "json":
        print_json({**comparison.as_dict(), "plot": args.plot, "report": args.report})
        return 0
    for index, (header, rows) in enumerate(table_rows(comparison.as_dict())):
        if index:
            say()
        # a screen has room for a few groups side by side, not for all metrics
        if len(rows) <= 4:
            names, *metrics = [list(cells) for cells in zip(header, *rows, strict=True)]
            print_table(names, metrics)
        else:
            print_table(header, rows)
    for note in comparison.notes:
        print(textwrap.fill(note, shutil.get_terminal_size().columns))
    for name in ("plot", "report"):
        if getattr(args, name):
            say(f"{name}: {getattr(args, name)}")
    return 0


def report_command(args: argparse.Namespace) -> int:
    """Write the page."""
    from fedactors.api import write_report

    path, figures = write_report(args.runs, args.output, args.figures)
    return answer(args.format, {"report": str(path), "figures": list(map(str, figures))}, path, *figures)


def plan_command(args: argparse.Namespace) -> int:
    """Choose settings from profiles."""
    from fedactors.api import plan

    how = {"aim": args.aim, "seed": args.seed, "jobs": args.jobs, "time_limit": args.time_limit}
    where = {name: value for name, value in given_options(args).items() if name != "seed"}
    tell = lambda line: print(f"plan: {line}", file=sys.stderr, flush=True)  # noqa: E731
    planned = plan(args.protocol, args.profile, measure=args.measure, settings=args.words, tell=tell, **how, **where)
    if args.format == "json":
        print_json(planned)
        return 0
    tables = {key: value for key, value in planned.items() if isinstance(value, list) and value}
    groups = {key: value for key, value in planned.items() if isinstance(value, dict)}
    alone = [[key, format_value(value)] for key, value in planned.items() if key not in {*tables, *groups}]
    print_table(["setting", "value"], alone)
    tables |= {f"{key}: {name}": rows for key, group in groups.items() for name, rows in group.items()}
    for key, rows in tables.items():
        say(f"\n{key}")
        print_table(list(rows[0]), [[format_value(value) for value in row.values()] for row in rows])
    return 0


def inspect_command(args: argparse.Namespace) -> int:
    """Show every message that would leave a party."""
    from fedactors.api import Messages

    found = Messages(find_protocol(args.protocol), args.words)
    if args.format == "json":
        print_json(found.as_dict())
        return 0
    say("Protection\n")
    for one in found.protections:
        settings = ", ".join(f"{name}={value}" for name, value in one["settings"].items())
        say(f"{one['kind']}: {'ON' if one['on'] else 'off'}{f'  ({settings})' if settings else ''}")
        say_filled(f"  {one['means']}", indent="")
    say("" if found.protections else "the protocol says nothing about it\n")
    headings = {
        "Between parties": [entry for entry in found.messages if not entry["control"]],
        "What the run's driver learns": [entry for entry in found.messages if entry["control"]],
        "Where a query joins the rows, or nodes lie in tables, before training and predictions": found.joins,
        "In predictions with the trained model": found.predictions,
    }
    for heading, entries in headings.items():
        if entries:
            say(f"{heading}\n")
        for entry in entries:
            say_filled(f"{entry['message']} -> {entry['receiver']}", indent="    ")
            say_filled(f"  from: {entry['sender']}")
            say_filled(f"  reveals: {entry['reveals']}")
            if entry["bounds"]:
                say_filled(f"  at one actor: {'; '.join(entry['bounds'])}")
            for field in entry["fields"]:
                shape = "" if field["shape"] is None else f"  {field['shape']}"
                say(f"  {field['name']}: {field['type']}{shape}")
            say()
    return 0


def predict_command(args: argparse.Namespace) -> int:
    """Use the trained model of a run: the parties' actors predict, and the predictions stay with their owner."""
    from fedactors.api import Run

    found = Run(args.run).predict(to=args.output, checkpoint=args.checkpoint, **given_options(args))
    if args.format == "json":
        print_json(found.as_dict())
        return 0
    for one in found.outcomes:
        counts = one.counts
        others = f", {counts.num_alone} without a partner" if counts.num_alone else ""
        others += f", {counts.num_refused} refused" if counts.num_refused else ""
        say(f"{one.party}: {counts.num_predicted} of {counts.num_rows} rows predicted{others}, in {one.to}")
        for reason, number in one.counts.rejections:
            say(f"{one.party}: {number} rows without a prediction: {reason}")
        if counts.says_unpredicted:
            say(f"{one.party}: {counts.says_unpredicted}: look at the run's test metrics before you use the model")
    for party, lines in found.privacy.items():
        for message, line in lines.items():
            if line["covered"]:
                what = f"one {line['neighbour']} in this prediction, not training rows"
                say(f"{party}: {message} under noise, mu {line['rigorous_mu']:.3g} for {what}")
    if found.privacy:
        say(f"counted in the run's folder: fedactors audit {args.run} composes all predictions")
    return 0


def serve_command(args: argparse.Namespace) -> int:
    """Answer for single rows until stopped."""
    from fedactors.api import Run
    from fedactors.cli.sites import serve_parts

    given = given_options(args)
    if args.folder is not None:  # of a site, whose person has allowed the model's code, or not
        given["federation"] = os.path.join(args.folder, "federation.toml")
    parts, model = Run(args.run).parts(checkpoint=args.checkpoint, **given)
    return serve_parts(parts, model, args)


def export_command(args: argparse.Namespace) -> int:
    """Write the parties' parts of the trained model, each into a folder of its own."""
    from fedactors.api import Run

    run = Run(args.run)
    written = run.export(args.output, party=args.party, checkpoint=args.checkpoint, **given_options(args))
    files = {party: [str(path) for path in paths] for party, paths in written.items()}
    return answer(args.format, {"run": str(run.path), "files": files}, *itertools.chain(*files.values()))


def new_command(args: argparse.Namespace) -> int:
    """Write a working start."""
    from fedactors.cli.scaffold import write_protocol, write_scenario
    from fedactors.runs.folder import apart_from_records
    from fedactors.runs.storage import local_path

    parent = apart_from_records(local_path(args.output, "--output"), "--output", wholly=True)
    if args.what == "scenario":
        paths = write_scenario(args.name, parent, args.protocol)
    else:
        paths = write_protocol(args.name, parent)
    written = [str(path) for path in paths]
    return answer(args.format, {"files": written}, *written)


def data_command(args: argparse.Namespace) -> int:
    """List the data sets, fetch one, or check own data."""
    if args.action == "check":
        return _check_data(args)
    if args.party is not None:
        raise BadInput(f"--party: data {args.action} takes no party ({shown(args.party)} given)")
    if args.action == "list":
        if args.name is not None:
            raise BadInput(f"data list takes no name ({args.name!r} given)")
        from fedactors.api import list_datasets

        if args.format == "json":
            print_json({"datasets": list(list_datasets())})
        else:
            _print_datasets(list_datasets())
        return 0
    if args.name is None:
        raise BadInput("data fetch needs the name of a data set, see fedactors data list")
    from fedactors.api import fetch

    paths = [str(path) for path in fetch(args.name)]
    return answer(args.format, {"name": args.name, "files": paths}, *(paths or [f"{args.name} needs no download"]))


def _check_data(args: argparse.Namespace) -> int:
    """Print what is wrong or odd with own data; the code is that of bad input where a run would end."""
    if args.name is None:
        raise BadInput("data check needs a description of your own data, such as parties.toml")
    from fedactors.api import check_data

    found = check_data(args.name, party=args.party)
    errors, warnings = list(found.errors), list(found.warnings)
    if args.format == "json":
        print_json({"errors": errors, "warnings": warnings, "edits": found.edits})
    elif errors or warnings:
        for one in (*errors, *warnings):
            column = f"column {one['column']}" if one["column"] else ""
            say_filled(": ".join(filter(None, (one["level"], one["party"], column, one["text"]))))
        if found.edits:
            say(f"\nlines for {args.name}, which replace those of the same names; look at each:\n\n{found.edits}")
    else:
        say(f"{args.name}: nothing wrong or odd is found")
    return BadInput.exit_code if errors else 0


def completion_command(args: argparse.Namespace) -> int:
    """Print the script for a shell."""
    say(SHELLS[args.shell], end="")
    return 0


def _print_datasets(found: Iterable[Mapping[str, Any]]) -> None:
    rows, terms = [], defaultdict(list)
    for entry in found:
        here = "here" if entry["present"] else "fetch"
        rows.append([entry["name"], entry["task"], f"{entry['rows']:,}", here, ", ".join(entry["layouts"])])
        terms[entry["terms"]].append(entry["name"])
    print_table(["data set", "task", "rows", "files", "layouts"], rows)
    say()
    print_table(["terms", "of"], [[text, ", ".join(names)] for text, names in terms.items()], wrap=True)
