"""``fedactors site status``, ``check`` and ``renew``: what those do who keep a site running."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING, Any

from fedactors.command_line.terminal import print_json, print_table
from fedactors.errors import PartyLost

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
    print(f"{found['site']}: {found['doing']} since {found['since']}  (version {found['version']}, {found['listen']})")
    if (run := found["run"]) is not None:
        print(f"run {run['run']}: {run['protocol']} of {run['coordinator']}, {run['stage']}")
        for side, crossed in (run["crossed"] or {}).items():
            print(f"  {side}: {crossed['messages']} messages, {crossed['bytes']} bytes")
    certificate = found["certificate"]
    print(f"certificate: until {certificate['until']} ({certificate['days_left']:.0f} days)")
    if found["trouble"] is not None:
        print(f"TROUBLE: {found['trouble']}")
    rows = [[name, *map(_shown, one.values())] for name, one in found["peers"].items()]
    if rows:
        print_table(["site", "bytes sent", "bytes received", "clock ahead, s"], rows)
    return code


def check(folder: SiteFolder, args: argparse.Namespace) -> int:
    """Show whether each other site of the federation can be worked with."""
    from fedactors.runtime.federated.pieces import Limits
    from fedactors.runtime.federated.reach import check_site, installed

    own = installed()

    async def ask() -> list[dict[str, Any]]:
        others = [one for name, one in folder.federation.members.items() if name != folder.name]
        # one after the other: they are measured
        return [await check_site(folder, one, own, Limits(call=60.0)) for one in others]

    found = asyncio.run(ask())
    code = PartyLost.exit_code if any(one["problem"] for one in found) else 0
    if args.format == "json":
        print_json({"site": folder.name, "sites": found})
        return code
    names = ("address", "version", "round_trip_ms", "mb_per_second", "clock_seconds", "certificate_until")
    print_table(["site", *names], [[one["site"], *(_shown(one[name]) for name in names)] for one in found])
    for one in found:
        if one["problem"]:
            print(f"{one['site']}: {one['problem']}")
        elif one["other_code"]:
            print(f"{one['site']}: has other code for {', '.join(one['other_code'])}")
    return code


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
    print(f"{request}: send this to whoever organises the federation; {path} stays here")
    print("it is taken as soon as the federation.toml here certifies it; what runs goes on")
    return 0


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)
