"""The commands that run something on a cluster as a job and bring its run folder here.

Own data in a job: its description goes along, the files that it names stay where they are.

    fedactors submit pubsub-vfl --data parties.toml --placement bank=bank,shop=shop --address ...

Each party's files lie on the host that the party is placed on, at the whole path that the description says.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedactors.cli.flags import run_options
from fedactors.cli.terminal import print_json, say
from fedactors.errors import BadInput
from fedactors.plugins import find_protocol
from fedactors.validation import read_tree, reading, shown

_ADDRESS = re.compile(r"(env:|[a-z0-9+.-]+://)", re.IGNORECASE)


def named_locations(description: Path) -> dict[str, str]:
    """Return the files and folders that a description names, by the field that does; addresses are none.

    Raises:
        BadInput: it cannot be read, or is not TOML.
    """
    from fedactors.data.schema import locations

    given = read_tree(description, "data")
    tables = {"task": (given.get("task"), locations(of_party=False))}
    for name, party in _table(given.get("parties")).items():
        tables[f"parties.{name}"] = (party, locations(of_party=True))
    named: dict[str, str] = {}
    for where, (table, known) in tables.items():
        for key, given_there in _table(table).items():
            several = {f".{name}": one for name, one in _table(given_there).items()} or {"": given_there}
            for name, value in several.items() if key in known else ():
                if isinstance(value, str):
                    named[f"{where}.{key}{name}"] = value.removeprefix("file:")
    return {field: value for field, value in named.items() if not _ADDRESS.match(value)}


def check_paths(description: Path) -> None:
    """Check that each file is named as its own host finds it.

    Raises:
        BadInput: a path that is relative: the description is somewhere else then.
    """
    for field, path in named_locations(description).items():
        if not Path(path).is_absolute():
            raise BadInput(
                f"{field}: {shown(path)} is not allowed in a job: give the whole path that the file has on its "
                "party's host, no raw file is sent"
            )


def lay_out(description: Path, folder: Path) -> str:
    """Put the description alone into a folder that is sent; return its path there, the given one if that is inside."""
    is_inside = not description.is_absolute() and ".." not in description.parts
    there = description if is_inside else Path(description.name)
    (folder / there).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(description, folder / there)
    return str(there)


def staying(description: Path, folder: Path) -> Iterator[str]:
    """Yield patterns, as in a .gitignore, of named files in a folder that is sent, by whatever name."""
    paths = [description.parent / Path(path).expanduser() for path in named_locations(description).values()]
    kept = {_identity(path) for path in paths if path.exists()}
    for parent, folders, files in os.walk(folder, followlinks=True):
        for name in (*folders, *files):
            path = Path(parent, name)
            if path.exists() and _identity(path) in kept:
                yield "/" + re.sub(r"([\\*?\[\]!# ])", r"\\\1", path.relative_to(folder).as_posix())


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


NEEDS = ("pip", "uv", "conda", "env_vars")
"""What of Ray's runtime_env a job may ask for."""


def submit_command(args: argparse.Namespace) -> int:
    """Run something on a cluster, as a job."""
    script = args.target.endswith(".py")
    if script and not Path(args.target).is_file():
        raise BadInput(f"{args.target!r}: no such script")
    if args.working_dir and not Path(args.working_dir).is_dir():
        raise BadInput(f"--working-dir: {args.working_dir!r} is no folder")
    needs = {} if args.runtime_env is None else _needs(args.runtime_env)
    options = run_options(args)
    if not script and not args.working_dir:
        from fedactors.launch import check

        check(find_protocol(args.target), args.words, options)
    home = None if is_shared(options.out) else Path(options.out)
    run = options.resume if options.resume and not is_shared(options.resume) else None
    if run is not None:
        from fedactors.launch import data_to_resume
        from fedactors.runs.folder import RunFolder

        sent_along = RunFolder.open(run)
        sent_along.verify()
        data_to_resume(sent_along, options.data)
    from fedactors.runtime.ray.jobs import Jobs, last_json, sending, wrapped

    described = Path(options.data) if options.data and options.data.endswith(".toml") else None
    description = None if described is None or is_shared(str(described)) else described
    if description is not None:
        check_paths(description)
    jobs = Jobs(args.address)
    with tempfile.TemporaryDirectory(prefix="fedactors-") as alone:
        given, data = args.working_dir or ("." if script else None), options.data
        if description is not None and given is None:
            given, data = alone, lay_out(description, Path(alone))
            if run is not None:
                run = str(shutil.copytree(run, Path(alone, Path(run).resolve().name), symlinks=True))
        folder, left_out, inside = sending(given, run)
        if described is not None and described.is_file() and given is not None:
            left_out = [*left_out, *staying(described, Path(given))]
        out = "runs" if home else options.out
        sent = dataclasses.replace(options, out=out, resume=inside or options.resume, data=data)
        command = ["python", args.target] if script else ["python", "-m", "fedactors", "run", args.target]
        command += [*sent.words(args.words), "--format", args.format]
        job = jobs.submit(wrapped(command) if home else command, working_dir=folder, left_out=left_out, needs=needs)
    fetch = f"fedactors fetch {job} --address {jobs.address} --out {options.out}"
    if not args.wait:
        if args.format == "json":
            print_json({"job": job, "address": jobs.address})
        else:
            say(f"job: {job}\nfollow it: ray job logs --follow --address {jobs.address} {job}")
            if home:
                say(f"fetch its run folder when it has ended: {fetch}")
        return 0
    log: list[str] = []

    def show(text: str) -> None:
        log.append(text)
        if args.format == "json":
            say(text, end="", file=sys.stderr, flush=True)
        else:
            # where the job wrote its run folder is said when the folder is here
            lines = (line for line in text.splitlines(keepends=True) if not (home and line.startswith("run: ")))
            say("".join(lines), end="", flush=True)

    try:
        end = jobs.follow(job, show)
    except KeyboardInterrupt:
        say(f"fedactors: the job goes on; stop it: ray job stop --address {jobs.address} {job}", file=sys.stderr)
        if home:
            say(f"fedactors: then fetch its run folder: {fetch}", file=sys.stderr)
        raise
    fetched: list[str] = []
    try:
        fetched = [str(path) for path in jobs.fetch(job, home)] if home else []
    except BadInput as error:
        if end.exit_code == 0:
            raise
        say(f"fedactors: {error}", file=sys.stderr)
    if args.format == "json":
        found = next(last_json("".join(log)), None)
        result = None if found is None else _brought_home(json.loads(found), fetched)
        facts = {"job": job, "status": end.status, "exit_code": end.exit_code, "result": result}
        print_json({**facts, "fetched": fetched})
        return end.exit_code
    for path in fetched:
        say(f"run: {path}")
    if end.exit_code:
        say(f"fedactors: the job ended with code {end.exit_code} ({end.status})", file=sys.stderr)
    return end.exit_code


def fetch_command(args: argparse.Namespace) -> int:
    """Bring the run folders of an ended job here."""
    from fedactors.runs.storage import local_path
    from fedactors.runtime.ray.jobs import Jobs

    out = local_path(args.out)
    jobs = Jobs(args.address)
    if args.wait:
        jobs.follow(args.job, lambda text: say(text, end="", file=sys.stderr, flush=True))
    fetched = [str(path) for path in jobs.fetch(args.job, out)]
    if args.format == "json":
        print_json({"job": args.job, "fetched": fetched})
    else:
        say("\n".join(fetched))
    return 0


def is_shared(location: str) -> bool:
    """Say whether hosts of a cluster and a submitter can share a location: an address, or an absolute path."""
    return "://" in location or Path(location).is_absolute()


def _brought_home(result: dict[str, Any], fetched: Sequence[str]) -> dict[str, Any]:
    """Return a job's result, naming its run folders where they are now."""
    here = {Path(path).name: path for path in fetched}
    runs = [{**run, "run": here.get(Path(run["run"]).name, run["run"])} for run in result.get("runs", [result])]
    return {**result, "runs": runs} if "runs" in result else runs[0]


def _needs(path: str) -> dict[str, Any]:
    """Read what a job needs on its hosts; nothing in it sends a folder, since own data might lie there.

    Raises:
        BadInput: no JSON object of `NEEDS`.
    """
    with reading("--runtime-env", path):
        found = json.loads(Path(path).read_text())
    if not isinstance(found, dict) or (other := next((name for name in found if name not in NEEDS), None)) is not None:
        told = repr(other) if isinstance(found, dict) else type(found).__name__
        raise BadInput(
            f"--runtime-env: {told} is not allowed: an object of {', '.join(NEEDS)}; a folder goes by --working-dir"
        )
    variables = found.get("env_vars", {})
    if not isinstance(variables, dict) or not all(isinstance(value, str) for value in variables.values()):
        raise BadInput("--runtime-env: env_vars is not allowed: an object of texts")
    return found
