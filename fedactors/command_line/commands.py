"""What each command of the command line does; the heavy imports are inside, so that a command pays for its own only."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import sys
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedactors.command_line.audit import audit_command as audit_command
from fedactors.command_line.completion import SHELLS
from fedactors.command_line.federation import federation_command as federation_command
from fedactors.command_line.federation import site_command as site_command
from fedactors.command_line.options import RunOptions, run_options
from fedactors.command_line.relay import relay_command as relay_command
from fedactors.command_line.submission import fetch_command as fetch_command
from fedactors.command_line.submission import is_shared
from fedactors.command_line.submission import submit_command as submit_command
from fedactors.command_line.sweep import sweep_command as sweep_command
from fedactors.command_line.terminal import (
    format_value,
    moving_line,
    print_json,
    print_metrics,
    print_table,
    say,
    say_filled,
)
from fedactors.errors import BadInput
from fedactors.plugins import Protocol, discover, find_protocol

if TYPE_CHECKING:
    from fedactors.records.run_folder import Checkpoint, RunFolder
    from fedactors.records.states import FoundStates


def list_command(args: argparse.Namespace) -> int:
    """Print the protocols found, the data sets, and which fit which."""
    from fedactors.data.catalogue import catalogue

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
    from fedactors.launch import launch, resolve
    from fedactors.launch_again import launch_again
    from fedactors.records.metrics import combine

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
        from fedactors.records.environment import describe_environment
        from fedactors.runtime.ray.doctor import examine_cluster, examine_here
        from fedactors.runtime.ray.jobs import job_address
        from fedactors.runtime.ray.machine import examine_machine

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
    from fedactors.records.compare import compare, load_runs, table_rows
    from fedactors.records.outputs import apart_from_records
    from fedactors.records.storage import local_path

    for name in ("plot", "report"):
        if getattr(args, name) is not None:
            apart_from_records(local_path(getattr(args, name), f"--{name}"), f"--{name}")
    runs = load_runs(args.runs)
    comparison = compare(runs)
    if args.plot is not None:
        from fedactors.records.plots import plot_comparison

        plot_comparison(runs, local_path(args.plot, "--plot"), metric=args.metric)
    if args.report is not None:
        from fedactors.records.report import render_report
        from fedactors.records.storage import write_atomic

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
    from fedactors.records.compare import load_runs
    from fedactors.records.outputs import apart_from_records
    from fedactors.records.remote import is_remote
    from fedactors.records.report import render_report
    from fedactors.records.storage import local_path, write_atomic

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
        from fedactors.records.plots import write_figures

        figures = [str(figure) for figure in write_figures(runs, local_path(args.figures, "--figures"))]
    if args.format == "json":
        print_json({"report": str(path), "figures": figures})
    else:
        say("\n".join([str(path), *figures]))
    return 0


def plan_command(args: argparse.Namespace) -> int:
    """Choose settings from profiles."""
    from fedactors.config import build_given
    from fedactors.records.metrics import jsonable

    protocol = find_protocol(args.protocol)
    if protocol.plan is None:
        raise BadInput(f"protocol: {protocol.name} has no planner")
    config = build_given(protocol.Config, args.words)
    profiles = [_read_profile(path) for path in args.profile]
    if args.measure:
        from fedactors.launch import measure

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
    from fedactors.records.metrics import jsonable

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
    from fedactors.prediction.launch import predict
    from fedactors.records.outputs import apart_from_records
    from fedactors.records.storage import local_path
    from fedactors.runtime.restored import in_use

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
    from fedactors.learning.model_parts import write_part
    from fedactors.records.outputs import apart_from_records
    from fedactors.records.storage import local_path
    from fedactors.runtime.restored import in_use
    from fedactors.serving import NoPart

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
    from fedactors.command_line.scaffold import write_protocol, write_scenario
    from fedactors.records.outputs import apart_from_records
    from fedactors.records.storage import local_path

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
    from fedactors.data.catalogue import catalogue, describe

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
    from fedactors.data.storage import fetch

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
    from fedactors.data.storage import is_present

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
    from fedactors.launch import restore_config, states_of
    from fedactors.records.run_folder import RunFolder
    from fedactors.runtime.snapshot import check_actors

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
