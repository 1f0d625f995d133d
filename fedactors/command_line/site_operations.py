"""``fedactors site status``, ``check``, ``renew``, ``audit`` and ``stop``: what those do who keep a site running."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from fedactors.command_line.terminal import print_json, print_table, say
from fedactors.errors import BadInput, CallTimeout, FedactorsError, PartyLost, Refused
from fedactors.validation import one_line, path_of

if TYPE_CHECKING:
    from fedactors.runtime.federated.folders import SiteFolder


def status(folder: SiteFolder, args: argparse.Namespace) -> int:
    """Show what the site's process does; the exit code says whether there is one."""
    from fedactors.runtime.federated.operations import read_status

    found = read_status(folder)
    code = PartyLost.exit_code if found["doing"] == "stopped" else 0
    if args.format == "json":
        print_json(found)
        return code
    say(f"{found['site']}: {found['doing']} since {found['since']}  (version {found['version']}, {found['listen']})")
    if (run := found["run"]) is not None:
        say(f"run {run['run']}: {run['protocol']} of {run['coordinator']}, {run['stage']}")
        for side, crossed in (run["crossed"] or {}).items():
            say(f"  {side}: {crossed['messages']} messages, {crossed['bytes']} bytes")
    certificate = found["certificate"]
    say(f"certificate: until {certificate['until']} ({certificate['days_left']:.0f} days)")
    if found["trouble"] is not None:
        say(f"TROUBLE: {found['trouble']}")
    rows = [[name, *map(_shown, one.values())] for name, one in found["peers"].items()]
    if rows:
        print_table(["site", "bytes sent", "bytes received", "clock ahead, s"], rows)
    return code


def check(folder: SiteFolder, args: argparse.Namespace) -> int:
    """Show whether each other site of the federation can be worked with."""
    from fedactors.runtime.federated.pieces import Limits
    from fedactors.runtime.federated.reach import check_site, installed

    own = installed()
    data = [_read(folder, name) for name in folder.names()]

    async def ask() -> list[dict[str, Any]]:
        others = [one for name, one in folder.federation.members.items() if name != folder.name]
        # one after the other: they are measured
        return [await check_site(folder, one, own, Limits(call=60.0)) for one in others]

    found = asyncio.run(ask())
    code = PartyLost.exit_code if any(one["problem"] or one["other_code"] for one in found) else 0
    code = BadInput.exit_code if any(one["problem"] for one in data) else code
    if args.format == "json":
        print_json({"site": folder.name, "data": data, "sites": found})
        return code
    for one in data:
        size = f"{one['rows']} rows, {one['columns']} columns{f'; {odd}' if (odd := one['odd']) else ''}"
        say(f"data.{one['name']}: {one['problem'] or size}")
    names = ("address", "version", "round_trip_ms", "mb_per_second", "clock_seconds", "certificate_until")
    print_table(["site", *names], [[one["site"], *(_shown(one[name]) for name in names)] for one in found])
    for one in found:
        if one["problem"]:
            say(f"{one['site']}: {one['problem']}")
        elif one["other_code"]:
            differ = ", ".join(one["other_code"])
            say(f"{one['site']}: has other code for {differ}: install the same wheel at both, start both sites again")
    return code


def _read(folder: SiteFolder, name: str) -> dict[str, Any]:
    """Return how many rows and columns data of the site's own have, or what is wrong with them, JSON-ready."""
    try:
        rows, columns, odd = folder.measure(name)
    except FedactorsError as error:
        return {"name": name, "rows": None, "columns": None, "odd": None, "problem": str(error)}
    return {"name": name, "rows": rows, "columns": columns, "odd": odd or None, "problem": None}


def renew(folder: SiteFolder, args: argparse.Namespace) -> int:
    """Make the site's next key, if there is none yet, and a request for its certificate."""
    from fedactors.runtime.federated.credentials import NEXT_KEY
    from fedactors.runtime.federated.identity import make_key, make_request, read_key

    path, request = folder.path / NEXT_KEY, folder.path / f"{folder.name}.csr"
    key = read_key(path) if path.exists() else make_key(path)
    request.write_bytes(make_request(key, folder.name))
    if args.format == "json":
        print_json({"site": folder.name, "key": str(path), "request": str(request)})
        return 0
    say(f"{request}: send this to whoever organises the federation; {path} stays here")
    say("it is taken as soon as the federation.toml here certifies it; what runs goes on")
    return 0


def one_run(given: str, known: Collection[str], otherwise: str) -> str:
    """Return the run whose id begins like that.

    Raises:
        BadInput: several do, or none; `otherwise` says then what is wrong.
    """
    found = [given] if given in known else [run for run in known if given and run.startswith(given)]
    if len(found) > 1:
        raise BadInput(f"run: {given!r} is the beginning of {', '.join(found)}: give more of it")
    if not found:
        raise BadInput(f"run: {given[:40]!r} {otherwise}")
    return found[0]


def audit(folder: SiteFolder, args: argparse.Namespace) -> int:
    """Check the site's log and show it, or compare it with another site's; the exit code says whether they agree."""
    from fedactors.runtime.federated.crossings import compare, read_others

    lines = folder.log()
    logs = {folder.name: lines}
    runs = []
    if args.name is not None:
        known = {line["run"] for line in lines if line.get("run")}
        args.name = one_run(args.name, known, f"is not in the log of {folder.name}")
    if args.against is not None:
        other, others = read_others(folder, path_of(args.against, "--against"))
        logs[other] = others
        runs = [one for one in compare(folder.name, lines, other, others) if args.name in (None, one.run)]
        if args.name is not None and not runs:
            raise BadInput(f"run: {args.name[:40]!r} is not in the logs of both {folder.name} and {other}")
    elif not args.verify:
        lines = [line for line in lines if args.name in (None, line.get("run"))]
    differ = any(one.verdict == "differ" for one in runs)
    whole = {name: {"lines": len(log), "until": log[-1]["time"] if log else None} for name, log in logs.items()}
    if args.format == "json":
        told = {} if args.verify or args.against else {"log": lines}
        print_json({"site": folder.name, "whole": whole, "runs": [vars(one) for one in runs], **told})
        return Refused.exit_code if differ else 0
    if not args.verify and args.against is None:
        for line in lines:
            facts = {key: value for key, value in line.items() if key not in _SHOWN_APART}
            say(f"{line['number']:>5} {line['time'][:19]} {line['what']:<11} {json.dumps(facts)}")
    for name, found in whole.items():
        say(f"{name}: {found['lines']} lines, each signed and bound to the one before, until {found['until']}")
    for one in runs:
        say(f"run {one.run}: {_VERDICTS[one.verdict]}: {one.messages} messages, {one.bytes} bytes left the two")
        for text in one.differences:
            say(f"  {text}")
    return Refused.exit_code if differ else 0


_SHOWN_APART = {"number", "time", "what", "before"}
_VERDICTS = {"agree": "agree", "cut": "agree as far as it came", "differ": "DO NOT AGREE"}


def stop(folder: SiteFolder, args: argparse.Namespace) -> int:
    """Stop a run that is under way at the site."""
    from fedactors.runtime.federated.operations import read_status
    from fedactors.runtime.federated.proposal import ask_to_stop

    found = read_status(folder)
    about = found["run"] or {}
    if not args.name:
        raise BadInput("RUN: missing")
    under_way = {about["run"]} if about and found["doing"] != "stopped" else ()
    args.name = one_run(args.name, under_way, f"is not under way at {folder.name}, which is {found['doing']}")
    if about["stage"] == "proposed":
        raise BadInput(f"run: {args.name} waits for an answer: fedactors site reject {args.name}")
    why = one_line(args.why or "")
    ask_to_stop(folder, args.name, why)
    end = time.monotonic() + _STOP_SECONDS
    while (read_status(folder)["run"] or {}).get("run") == args.name:
        if time.monotonic() > end:
            raise CallTimeout(folder.name, f"its process did not stop the run within {_STOP_SECONDS:g} s")
        time.sleep(0.1)
    if args.format == "json":
        print_json({"run": args.name, "stopped": True, "why": why})
    else:
        say(f"{args.name}: stopped")
    return 0


_STOP_SECONDS = 60.0


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)
