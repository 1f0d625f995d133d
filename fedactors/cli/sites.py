"""``fedactors site`` and ``fedactors federation``: organisations that share no cluster, and what each is asked.

``fedactors site status``, ``check``, ``renew``, ``audit`` and ``stop``: what those do who keep a site running.

``fedactors relay``: run a relay for sites behind NAT or a firewall. ``fedactors serve``: predictions online.

It is one file because an organisation's commands read, print and refuse alike.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedactors.cli.flags import Parser
from fedactors.cli.terminal import answer, print_json, print_table, say, say_filled
from fedactors.errors import BadInput, CallTimeout, FedactorsError, PartyLost, Refused, Stopped
from fedactors.validation import one_line, party_name, path_of, writing

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

    from fedactors.cli.operator_page import ShownProposal
    from fedactors.federation.approval import Proposal
    from fedactors.federation.identity import Federation, Member, Passphrase
    from fedactors.federation.site_folder import SiteFolder
    from fedactors.serving.parts import Part


def status(folder: SiteFolder, args: argparse.Namespace) -> int:
    """Show what the site's process does; the exit code says whether there is one."""
    from fedactors.federation.operations import read_status

    if args.web is not None:
        return _show_page(folder, args)
    found = read_status(folder)
    code = PartyLost.exit_code if found["state"] == "stopped" else 0
    if args.format == "json":
        print_json(found)
        return code
    say(f"{found['site']}: {found['state']} since {found['since']}  (version {found['version']}, {found['listen']})")
    for run in found["runs"]:
        say(f"run {run['run']}: {run['protocol']} of {run['coordinator']}, {run['stage']}")
        for side, crossed in (run["crossed"] or {}).items():
            say(f"  {side}: {crossed['messages']} messages, {crossed['bytes']} bytes")
        for one in run["waits"]:
            so_far = "" if one["seconds"] is None else f", {one['seconds']:g} s so far"
            say(f"  {one['who']} waits for {one['for']}: {one['what']}{so_far}")
    for one in found.get("queue", ()):
        about = f"{one['protocol']} of {one['coordinator']}, waits since {one['since']}, {one['state']}"
        about += f", priority {one['priority']}" if one.get("priority") else ""
        say(f"  {one['position']}: run {one['run']}: {about}")
    certificate = found["certificate"]
    say(f"certificate: until {certificate['until']} ({certificate['days_left']:.0f} days)")
    signed = "signed by its authority" if found["federation_signed"] else "not signed"
    version, digest = found["federation_version"], found["federation_digest"][:16]
    say(f"federation {found['federation']}: version {version}, {signed}, digest {digest}")
    if found["config_errors"] is not None:
        say(f"CONFIG ERRORS: {found['config_errors']}")
    rows = [[name, *map(_shown, one.values())] for name, one in found["peers"].items()]
    if rows:
        print_table(["site", "bytes sent", "bytes received", "clock ahead, s"], rows)
    return code


def check(folder: SiteFolder, args: argparse.Namespace) -> int:
    """Show whether each other site of the federation can be worked with."""
    from fedactors.federation.operations import check_site, installed
    from fedactors.federation.session import Limits

    here = installed()
    data = [_read(folder, name) for name in folder.names()]

    async def ask() -> list[dict[str, Any]]:
        others = [one for name, one in folder.federation.members.items() if name != folder.name]
        # one after the other: they are measured
        return [await check_site(folder, one, here, Limits(call=60.0)) for one in others]

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
    from fedactors.federation.identity import make_key, make_request, read_key
    from fedactors.federation.site_folder import NEXT_KEY

    path, request = folder.path / NEXT_KEY, folder.path / f"{folder.name}.csr"
    if path.exists():
        key = read_key(path, folder.passphrase)
    else:
        key = make_key(path, args.key_type, folder.passphrase, args.pkcs11)
    request.write_bytes(make_request(key, folder.name, args.dns))
    return answer(
        args.format,
        {"site": folder.name, "key": str(path), "request": str(request)},
        f"{request}: send this to the federation's organiser; {path} stays here",
        "it is taken as soon as the federation.toml here certifies it; what runs goes on",
    )


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
    from fedactors.federation.operations import compare, read_others

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
    """Stop a run that is under way at the site; one that is not, and has not finished, is closed."""
    from fedactors.federation.approval import ask_to_stop, unfinished_runs
    from fedactors.federation.operations import read_status

    found = read_status(folder)
    known = {run["run"]: run for run in found["runs"]} if found["state"] != "stopped" else {}
    if not args.name:
        raise BadInput("RUN: missing")
    otherwise = f"is not under way at {folder.name}, which is {found['state']}, and no approved run that is unfinished"
    args.name = one_run(args.name, {*known, *unfinished_runs(folder)}, otherwise)
    if args.name not in known:
        ask_to_stop(folder, args.name, why := one_line(args.why or ""))
        said = f"{args.name}: is not under way; this site comes back to it no more"
        return answer(args.format, {"run": args.name, "stopped": True, "why": why}, said)
    if known[args.name]["stage"] == "proposed":
        raise BadInput(f"run: {args.name} waits for an answer: fedactors site reject {args.name}")
    why = one_line(args.why or "")
    ask_to_stop(folder, args.name, why)
    end = time.monotonic() + _STOP_SECONDS
    while args.name in {run["run"] for run in read_status(folder)["runs"]}:
        if time.monotonic() > end:
            raise CallTimeout(folder.name, f"its process did not stop the run within {_STOP_SECONDS:g} s")
        time.sleep(0.1)
    return answer(args.format, {"run": args.name, "stopped": True, "why": why}, f"{args.name}: stopped")


_STOP_SECONDS = 60.0


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)


SITE_ACTIONS = {
    "init": "NAME: create a site's folder: its key, site.toml, and a certificate request (.csr) to send to the "
    "federation's organiser",
    "start": "run the site's process, which answers other sites and hosts this site's actors, until Ctrl-C or SIGTERM",
    "status": "show what the site's process is doing, --web: on a web page of this machine, where you can also answer "
    "proposals; exit code 3: no process is running",
    "check": "read all data in site.toml, and connect to every other site to compare versions, code and clocks; exit "
    "code 2: some of your data cannot be read, 3: a site cannot be used",
    "renew": "create the site's next key and a certificate request, for fedactors federation admit --renew",
    "pending": "list the proposed runs that wait for this site's answer",
    "show": "RUN: show a proposed run and everything that would leave this site, before you approve or reject it; the "
    "beginning of the run's id is enough",
    "approve": "RUN: allow a proposed run to start here; the beginning of its id is enough",
    "reject": "RUN: refuse a proposed run; the beginning of its id is enough",
    "stop": "RUN: stop a run that is under way, for all sites; close one that broke off: this site no longer returns "
    "to it, and a person answers for its continuations",
    "settle": "RUN: record (--why) that the proposal of an approved run is lost, so that the policy answers again. "
    "The policy no longer knows that run, for example which data it summed: judge that yourself",
    "code": "[RUN|DIGEST]: list the source files that runs may import here, or print those of a proposed run (its "
    "whole id)",
    "allow-code": "RUN|DIGEST|PATHS: allow runs to import these source files here, once you have read them; each run "
    "still needs its own approval",
    "remove-code": "DIGEST: stop runs from importing these source files here",
    "sign-code": "PATHS: sign source files with a person's key (--signing-key), for sites whose policy.code_signers "
    "names it; the signature is written beside the first, and fedactors run --code PATHS sends it along",
    "runs": "list all runs that were proposed here, and how each ended",
    "budget": "show the privacy budget of the data here, and how much of it runs have spent",
    "audit": "[RUN]: check and show the site's signed log, or compare it with another site's",
}
"""Help of each action."""
FEDERATION_ACTIONS = {
    "init": "FOLDER: create a federation: a small certificate authority, and federation.toml, which every site gets",
    "admit": "FOLDER REQUEST: sign a site's request and add the site to federation.toml. First compare the request's "
    "sha256sum with the site, by telephone for example. --certificate: another CA has signed the request already",
    "remove": "FOLDER SITE: remove a site from federation.toml; the others close its connections when they have the "
    "new file",
    "sign": "FOLDER: sign federation.toml after a manual change, as its next version",
    "demo": "[FOLDER]: create three sites on this machine and train between them, showing every command",
}
_AUTHORITY_KEY = "authority.pem"
_OF_SITE = {
    "name": "a word",
    "web": "--web",
    "listen": "--listen",
    "why": "--why",
    "verify": "--verify",
    "against": "--against",
    "relay": "--relay",
    "key_type": "--key-type",
    "passphrase_file": "--passphrase-file",
    "pkcs11": "--pkcs11",
    "dns": "--dns",
    "signing_key": "--signing-key",
}
_SITE_TAKES = {
    "init": ("name", "listen", "relay", "key_type", "passphrase_file", "pkcs11", "dns"),
    "renew": ("key_type", "pkcs11", "dns"),
    "start": ("relay",),
    "status": ("web",),
    "show": ("name",),
    "approve": ("name", "why"),
    "reject": ("name", "why"),
    "stop": ("name", "why"),
    "settle": ("name", "why"),
    "audit": ("name", "verify", "against"),
    "code": ("name",),
    "allow-code": ("name", "why"),
    "remove-code": ("name", "why"),
    "sign-code": ("name", "signing_key", "passphrase_file"),
}
_OPERATIONS = {"status": status, "check": check, "renew": renew, "stop": stop, "audit": audit}
_OF_FEDERATION = {
    "request": "a second word",
    "address": "--address",
    "relay": "--relay",
    "renew": "--renew",
    "host": "--host",
    "certificate": "--certificate",
    "ca": "--ca",
    "key_type": "--key-type",
    "passphrase_file": "--passphrase-file",
}
_FEDERATION_TAKES = {
    "init": ("key_type", "passphrase_file"),
    "admit": tuple(name for name in _OF_FEDERATION if name != "key_type"),
    "remove": ("request", "passphrase_file"),
    "sign": ("passphrase_file",),
}


def help_of(parser: Parser, words: Sequence[str]) -> Parser | None:
    """Return what prints the help of the one action that the words of a command name; None: they name none.

    Args:
        parser: of the command.
        words: the first is the command.
    """
    about = {"site": SITE_ACTIONS, "federation": FEDERATION_ACTIONS}.get(words[0], {})
    action = next((word for word in words[1:] if word in about), None)
    if action is None:
        return None
    takes = _SITE_TAKES if words[0] == "site" else _FEDERATION_TAKES
    what, colon, text = about[action].partition(": ")
    is_bare = not (colon and what.strip("[]").replace(" ", "").isupper())
    made = Parser(
        prog=" ".join([parser.prog, action, *([] if is_bare else [what])]),
        description=about[action] if is_bare else text,
        epilog=parser.epilog,
        usage="%(prog)s [flags]",
    )
    for one in parser._actions:
        if one.option_strings and (one.dest in takes.get(action, ()) or one.dest in ("folder", "format")):
            made._add_action(one)
    return made


def _refuse_others(args: argparse.Namespace, known: dict[str, str], takes: dict[str, tuple[str, ...]]) -> None:
    """Refuse words and flags that the action would ignore."""
    for name, flag in known.items():
        given = getattr(args, name)
        if given not in (None, False) and given != [] and name not in takes.get(args.action, ()):
            those = ", ".join(action for action, names in takes.items() if name in names)
            raise BadInput(f"{args.command} {args.action}: {flag} is not allowed ({given!r} given): it is for {those}")


def site_command(args: argparse.Namespace) -> int:
    """Do what one site is asked."""
    _refuse_others(args, _OF_SITE, _SITE_TAKES)
    if args.action == "init":
        return _init_site(args)
    if args.action == "sign-code":
        return _sign_code(args)
    from fedactors.federation.identity import parse_address
    from fedactors.federation.site_folder import SiteFolder

    folder = SiteFolder(path_of(args.folder or ".", "--folder"))
    if args.action == "start":
        if args.relay is not None:
            folder.relay = parse_address(args.relay, "--relay")
        return _start(folder, args.format)
    if args.action in _OPERATIONS:
        return _OPERATIONS[args.action](folder, args)
    if args.action in ("pending", "runs"):
        return _list(folder, args)
    if args.action == "budget":
        return _budget(folder, args)
    if args.action in ("code", "allow-code", "remove-code"):
        return _code(folder, args)
    return _about_run(folder, args)


def _need(value: str | None, what: str) -> str:
    if not value:
        raise BadInput(f"{what}: missing")
    return value


def _init_site(args: argparse.Namespace) -> int:
    from fedactors.federation.identity import check_name, make_key, make_request, parse_address, quoted
    from fedactors.federation.site_folder import KEY, SITE

    name = party_name(check_name(_need(args.name, "NAME"), "site"), "site")
    if args.relay is not None and args.listen is not None:
        raise BadInput("--relay: is not allowed with --listen: a site that is called through a relay listens nowhere")
    flag = "listen" if args.relay is None else "relay"
    address = _need(getattr(args, flag), f"--{flag}")
    parse_address(address, f"--{flag}")
    folder = path_of(args.folder or name, "--folder")
    if (folder / SITE).exists():
        raise BadInput(f"--folder: {folder} holds a site already")
    with writing("--folder", folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    request = folder / f"{name}.csr"
    key = make_key(folder / KEY, args.key_type, _passphrase(args), args.pkcs11)
    request.write_bytes(make_request(key, name, args.dns))
    where = [f"{flag} = {quoted(address)}"]
    if args.passphrase_file is not None:
        where += [f"key_passphrase_file = {quoted(str(Path(args.passphrase_file).expanduser().resolve()))}"]
    (folder / SITE).write_text(_SITE.format(name=quoted(name), where="\n".join(where)))
    return answer(
        args.format,
        {"site": name, "folder": str(folder), "request": str(request)},
        f"{folder / SITE}: say there which data the site has",
        f"{request}: send this to the federation's organiser; {folder / KEY} stays here",
    )


def _passphrase(args: argparse.Namespace) -> Passphrase:
    from fedactors.federation.identity import Passphrase

    given = args.passphrase_file
    return Passphrase(file=None if given is None else path_of(given, "--passphrase-file"))


_SITE = """name = {name}
{where}

# Data that a run may ask for by name, and by nothing else. The keys are those of a party in a parties.toml.
# [data.customers]
# path = "customers.csv"
# id = "customer"
# label = "defaulted"                        # only at the site that knows the answer, which says what the task is:
# task = {{ type = "binary", alignment = "psi" }}
"""


def _start(folder: SiteFolder, form: str) -> int:
    from fedactors.federation.site import SiteProcess
    from fedactors.runs.metrics import json_line

    async def listen() -> None:
        def tell(line: dict[str, Any]) -> None:
            say(json_line(line) if form == "json" else line["text"], flush=True)

        process = SiteProcess(folder, tell=tell)
        await process.start()
        await wait_for_stop()
        process.stop()

    gc.freeze()  # to look through all that is loaded for rubbish, again and again, would keep others waiting
    asyncio.run(listen())
    raise Stopped(f"the site {folder.name} was stopped", 143)


async def wait_for_stop() -> None:
    """Wait until somebody stops this process."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as with nohup
            loop.add_signal_handler(number, stopped.set)
    await stopped.wait()


def _status(folder: SiteFolder, proposal: Proposal, ended: dict[str, str]) -> str:
    from fedactors.federation.approval import decision

    found = decision(folder, proposal)
    if found is None:
        return "pending"
    if not found[0]:
        return f"rejected{f': {found[1]}' if found[1] else ''}"
    return ended.get(proposal.run, "approved")


def _runs(folder: SiteFolder) -> list[dict[str, Any]]:
    """Return every run that was proposed to a site, and how it stands, JSON-ready."""
    from fedactors.federation.approval import UNREADABLE, kept_proposals, settled_runs, unread_runs
    from fedactors.federation.audit_log import AUDIT, read

    lines = read(folder.path / AUDIT)
    unread, settled = unread_runs(folder, lines), settled_runs(lines)
    ended = {
        line["run"]: line["status"] + (f": {line['why']}" if line["status"] != "finished" and line.get("why") else "")
        for line in lines
        if line["what"] == "ended" and line.get("who") == "site" and {"run", "status"} <= line.keys()
    }
    rows, under_way = _queue(folder)
    queue, stages = {row["run"]: row for row in rows}, {row["run"]: row["stage"] for row in under_way}

    def turn(run: str) -> dict[str, Any]:
        row = queue.get(run, {})
        waits = {"position": row.get("position"), "priority": row.get("priority"), "waits_since": row.get("since")}
        return {"stage": stages.get(run), **waits}

    return [
        {
            "run": run,
            "coordinator": proposal.coordinator,
            "protocol": proposal.protocol,
            "purpose": proposal.purpose,
            "data": proposal.data.get(folder.name),
            "status": _status(folder, proposal, ended),
            **turn(run),
        }
        for run, proposal in kept_proposals(folder).items()
        if run not in unread
    ] + [
        {
            "run": run,
            "coordinator": known.get("coordinator"),
            "protocol": known.get("protocol"),
            "purpose": None,
            "data": None,
            "status": f"{UNREADABLE}; settled: {settled[run]}" if run in settled else UNREADABLE,
            **turn(run),
        }
        for run, known in unread.items()
    ]


def _queue(folder: SiteFolder) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the runs that wait for their turn, and those that the site is busy with; none where no process runs."""
    from fedactors.federation.operations import read_status

    try:
        found = read_status(folder)
    except BadInput:  # none ever ran
        return [], []
    return (found.get("queue", []), found["runs"]) if found["state"] != "stopped" else ([], [])


def _list(folder: SiteFolder, args: argparse.Namespace) -> int:
    found = _runs(folder)
    if args.action == "pending":
        found = [entry for entry in found if entry["status"] == "pending"]
    if args.format == "json":
        print_json({"site": folder.name, "runs": found})
        return 0
    if not found:
        say("nothing is proposed" if args.action == "pending" else "no runs")
        return 0
    rows = [["-" if value in (None, "") else str(value) for value in entry.values()] for entry in found]
    # another site may have written why a run ended: on a terminal it begins no line
    print_table(list(found[0]), rows, wrap=sys.stdout.isatty())
    return 0


def _budget(folder: SiteFolder, args: argparse.Namespace) -> int:
    from fedactors.federation.site_folder import as_logged, gone_from, opened_on, read_otherwise, spent, taken_of

    lines = folder.log()
    taken, gone = spent(lines), gone_from(folder, lines)
    caps = {name: cap for name in folder.names() if (cap := folder.budget(name)) is not None}
    if args.format == "json":
        logged: dict[str, Any] = {
            name: as_logged({"budget": cap, "taken": amount, "left": cap.less(amount), **taken.get(name, {})})
            for name, cap in caps.items()
            for amount in [taken_of(folder, name, lines)]
        }
        logged |= {
            name: {"budget": None, **as_logged({"taken": amount, **taken[name]})} for name, (amount, _) in gone.items()
        }
        print_json({"site": folder.name, "budgets": logged})
        return 0
    if not (caps or gone):
        say("no data here have a budget")
        return 0
    rows = []
    for name, cap in caps.items():
        others = {*folder.with_budget(name), *(line["data"] for line in opened_on(folder, name, lines))} - {name}
        amount = taken_of(folder, name, lines)
        rows.append([name, str(cap), str(amount), str(cap.less(amount)), ", ".join(sorted(others)) or "-"])
    rows += [[name, "none now", str(amount), "-", ", ".join(counts) or "-"] for name, (amount, counts) in gone.items()]
    print_table(["data", "budget", "taken", "left", "counted together with"], rows)
    for name in caps:
        if then := read_otherwise(folder, name, lines):
            say(f"of what is taken of {name} some is of runs before: {then}")
    return 0


def _sign_code(args: argparse.Namespace) -> int:
    from fedactors.federation.site_code import sign_code

    path, key = _need(args.name, "PATH"), _need(args.signing_key, "--signing-key")
    digest, file = sign_code(_paths(path), path_of(key, "--signing-key"), _passphrase(args))
    return answer(args.format, {"code": digest, "signature": str(file)}, f"{file}: signs code {digest}")


def _paths(given: str) -> list[str]:
    return [path for path in given.split(",") if path]  # as run --code takes them


def _code(folder: SiteFolder, args: argparse.Namespace) -> int:
    from fedactors.federation.site_code import allow, allowed_code, remove, source_files, waiting_files

    if args.action == "code" and args.name is None:
        return _list_code(folder, args.format)
    name, why = _need(args.name, "RUN, DIGEST or PATHS"), one_line(args.why or "")
    if args.action == "remove-code":
        digest = _code_meant(folder, name, of_runs=False)
        if digest not in allowed_code(folder):
            raise BadInput(f"DIGEST: {digest[:12]} is not allowed here: there is nothing to remove")
        remove(folder, digest, why)
        return answer(args.format, {"code": digest, "allowed": False, "why": why}, f"{digest}: removed")
    paths = _paths(name)
    if args.action == "allow-code" and paths and all(os.path.exists(os.path.expanduser(path)) for path in paths):
        files = source_files(paths)
    else:
        found = waiting_files(folder, digest := _code_meant(folder, name, of_runs=True))
        if found is None:
            raise BadInput(f"RUN: the files of its code {digest[:12]} are not here: ask its coordinator for them")
        files = found
        if args.action == "code":
            return _print_code(digest, files, args.format, is_allowed=digest in allowed_code(folder))
    digest = allow(folder, files, why)
    return answer(args.format, {"code": digest, "allowed": True, "why": why}, f"{digest}: allowed ({', '.join(files)})")


def _list_code(folder: SiteFolder, format: str) -> int:
    from fedactors.federation.site_code import allowed_code, proposed_code, waiting_files

    allowed, listed = allowed_code(folder), list[dict[str, Any]]()
    for one in (*allowed, *proposed_code(folder)):
        try:
            listed.append({"code": one, "allowed": one in allowed, "files": list(waiting_files(folder, one) or ())})
        except BadInput:
            listed.append({"code": one, "allowed": False, "files": ["damaged: remove it, and bring it again"]})
    if format == "json":
        print_json({"site": folder.name, "code": listed})
    elif listed:
        rows = [[one["code"][:12], "yes" if one["allowed"] else "no", ", ".join(one["files"])] for one in listed]
        print_table(["code", "allowed", "files"], rows, wrap=sys.stdout.isatty())
    else:
        say("no code is allowed here, and none waits")
    return 0


def _code_meant(folder: SiteFolder, name: str, *, of_runs: bool) -> str:
    """Return the digest that begins like that, or that of a run's code by the run's whole id.

    Raises:
        BadInput: there is none, or there are several.
    """
    from fedactors.federation.approval import kept_proposal
    from fedactors.federation.site_code import allowed_code, code_digest, proposed_code

    here = [*allowed_code(folder), *proposed_code(folder)]
    meant = {one for one in here if one.startswith(name)}
    # others choose the ids of runs, perhaps as another digest begins
    run = kept_proposal(folder, name) if of_runs else None
    meant |= {digest for digest in (None if run is None else code_digest(run),) if digest is not None}
    if len(meant) > 1:
        raise BadInput(f"{name[:40]!r} may be either code of {', '.join(sorted(meant))}: give the whole digest")
    if not meant:
        listed = ", ".join(one[:12] for one in here) or "none"
        raise BadInput(f"{name[:40]!r} is no code here, and no whole id of a run with code (code: {listed})")
    return meant.pop()


def _print_code(digest: str, files: Mapping[str, bytes], format: str, *, is_allowed: bool) -> int:
    from fedactors.federation.site_code import texts_of

    texts = texts_of(files)
    if format == "json":
        print_json({"code": digest, "allowed": is_allowed, "files": texts})
        return 0
    say(f"code {digest}: {'allowed' if is_allowed else 'not allowed'} here")
    for one, text in texts.items():
        say(f"\n--- {one}")
        for number, line in enumerate(text.split("\n"), start=1):  # no line of it looks like one of ours
            say(f"{number:5} {_escaped(line)}")
        for number, line in enumerate(text.split("\n"), start=1):
            if foreign := "".join(char for char in dict.fromkeys(line) if not char.isascii() and char.isprintable()):
                say(f"{one}: line {number} has letters that may look like others: {ascii(foreign)[1:-1]}")
    return 0


def _escaped(line: str) -> str:
    """Return a line of source with an escape for each character that a terminal would hide, or move text by."""
    return "".join(char if char.isprintable() or char == "\t" else ascii(char)[1:-1] for char in line)


def _about_run(folder: SiteFolder, args: argparse.Namespace) -> int:
    from fedactors.federation.approval import (
        UNREADABLE,
        decision,
        kept_proposals,
        settle,
        unanswered_proposals,
        unread_runs,
    )
    from fedactors.federation.audit_log import AUDIT, read

    known, unread = kept_proposals(folder), unread_runs(folder, read(folder.path / AUDIT))
    run = _need(args.name, "RUN")
    waiting = ", ".join(one.run for one in unanswered_proposals(folder))
    otherwise = f"was not proposed to {folder.name} (waiting for its answer: {waiting or 'none'})"
    run = one_run(run, {**known, **unread}, otherwise)
    if args.action == "settle":
        settle(folder, run, why := one_line(_need(args.why, "--why")))
        return answer(args.format, {"run": run, "settled": True, "why": why}, f"{run}: settled")
    if run in unread:
        raise BadInput(f"run: {run} {UNREADABLE}; what was logged of it: fedactors site audit {run}")
    proposal = known[run]
    if args.action == "show":
        shown = describe(folder, proposal)
        if args.format == "json":
            print_json(shown)
        else:
            _print_proposal(shown, _say_wrapped)
            if decision(folder, proposal) is None:
                say(f"\nto answer: fedactors site approve {run}, or fedactors site reject {run} --why TEXT")
        return 0
    approved = args.action == "approve"
    _answer(folder, proposal, approved, args.why or "")
    said = f"{run}: {'approved' if approved else 'rejected'}"
    return answer(args.format, {"run": run, "approved": approved, "why": args.why or ""}, said)


def _answer(folder: SiteFolder, proposal: Proposal, approved: bool, why: str) -> None:
    """Answer a proposal; one that this site cannot take part in can only be rejected."""
    from fedactors.federation.approval import check_proposal, decide

    if approved:
        check_proposal(proposal, folder)
    decide(folder, proposal, approved=approved, why=why)


class SiteSource:
    """What the operator's page shows of a site: read as a command reads it, whenever files of the site changed."""

    def __init__(self, folder: Path) -> None:
        self._path = folder
        self._seen: dict[str, tuple[object, list[dict[str, Any]]]] = {}

    def _unless_known(self, what: str, make: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Return what was made last, while neither the log, a proposal, an answer nor site.toml has changed."""
        from fedactors.federation.approval import PROPOSALS
        from fedactors.federation.audit_log import AUDIT
        from fedactors.federation.site_folder import SITE, stamp

        now = [stamp(self._path / name) for name in (AUDIT, PROPOSALS, SITE)]
        if what not in self._seen or self._seen[what][0] != now:
            self._seen[what] = now, make()
        return self._seen[what][1]

    @property
    def _folder(self) -> SiteFolder:
        from fedactors.federation.site_folder import SiteFolder

        return SiteFolder(self._path)

    def status(self) -> dict[str, Any]:
        """Return what `site status` prints."""
        from fedactors.federation.operations import read_status

        return read_status(self._folder)

    def runs(self) -> list[dict[str, Any]]:
        """Return what `site runs` prints."""
        return self._unless_known("runs", lambda: _runs(self._folder))

    def budgets(self) -> list[dict[str, Any]]:
        """Return of each of the data with a privacy budget its amounts."""
        return self._unless_known("budgets", self._budgets)

    def _budgets(self) -> list[dict[str, Any]]:
        from fedactors.federation.approval import kept_proposals
        from fedactors.federation.site_folder import gone_from, opened_on, taken_of

        folder = self._folder
        caps = {name: cap for name in folder.names() if (cap := folder.budget(name)) is not None}
        lines = folder.log()
        purposes = {run: one.purpose for run, one in kept_proposals(folder).items()}
        by_purpose = {
            purpose: [line for line in lines if purposes.get(str(line.get("run")), "train") == purpose]
            for purpose in dict.fromkeys((*purposes.values(), "train"))
        }
        return [
            {
                "data": name,
                "budget": cap,
                "left": cap.less(taken_of(folder, name, lines)),
                "taken": {
                    purpose: taken_of(folder, name, of)
                    for purpose, of in by_purpose.items()
                    if opened_on(folder, name, of)
                },
            }
            for name, cap in caps.items()
        ] + [
            {"data": name, "budget": None, "left": None, "taken": {"in all": amount}}
            for name, (amount, _) in gone_from(folder, lines).items()
        ]

    def show(self, run: str) -> ShownProposal | None:
        """Return a proposal as `site show` prints it."""
        from fedactors.cli.operator_page import ShownProposal
        from fedactors.federation.approval import UNREADABLE, check_proposal, classes_of, kept_proposals
        from fedactors.inspection import most_at_one_actor

        folder = self._folder
        proposal = kept_proposals(folder).get(run)
        status = next((one["status"] for one in _runs(folder) if one["run"] == run), None)
        if status is not None and status.startswith(UNREADABLE):
            return ShownProposal(run=run, digest="", status="cannot be read", text="", problem=f"it {status}")
        if proposal is None or status is None:
            return None
        sides = ("left", "arrived")
        ends = [one for one in folder.log() if one["what"] == "ended" and one.get("run") == run]
        crossed = {side: [row for one in ends for row in one[side]] for side in sides} if ends else None
        facts: dict[str, Any] = {"run": run, "digest": proposal.digest, "status": status, "crossed": crossed}
        lines: list[str] = []
        try:
            shown = describe(folder, proposal)
            protocol, config = check_proposal(proposal, folder)
            most = most_at_one_actor(classes_of(protocol, config, proposal.purpose).values(), config)
        except FedactorsError as error:
            return ShownProposal(text="", problem=str(error), **facts)
        _print_proposal(shown, lines.append)
        bounds = {one["message"]: one["bounds"] for one in shown["messages"]}
        return ShownProposal(text="\n".join(lines), bounds=bounds, most=most, **facts)

    def answer(self, run: str, digest: str, *, approved: bool, why: str) -> None:
        """Approve or reject the very proposal that was shown."""
        from fedactors.federation.approval import kept_proposals

        folder = self._folder
        proposal = kept_proposals(folder).get(run)
        if proposal is None or proposal.digest != digest:
            raise BadInput(f"run: {run} is another proposal than the one that was shown: open it again")
        _answer(folder, proposal, approved, why)


def _show_page(folder: SiteFolder, args: argparse.Namespace) -> int:
    from fedactors.cli.operator_page import LOOPBACK, listening, parse_port

    with listening(SiteSource(folder.path), folder.path, parse_port(args.web)) as server:
        url = f"http://{LOOPBACK}:{server.port}/"
        if args.format == "json":  # as a service has it, whose output others may read
            print_json({"site": folder.name, "url": url, "token_file": str(server.token_file)})
        else:
            say(f"{url}  (password: {server.token}, also in {server.token_file}; any user name; Ctrl-C ends it)")
        sys.stdout.flush()
        asyncio.run(wait_for_stop())
    raise Stopped("the page was stopped", 143)


def describe(folder: SiteFolder, proposal: Proposal) -> dict[str, Any]:
    """Return what a run would mean for a site, before anything runs, JSON-ready."""
    from fedactors.config import as_dict, spell_infinities
    from fedactors.federation.approval import (
        as_tree,
        check_proposal,
        left_open,
        num_continuations,
        num_predictions,
        on_loss,
    )
    from fedactors.federation.site_code import code_digest
    from fedactors.inspection import describe_messages, describe_predictions, describe_protections
    from fedactors.runs.metrics import jsonable

    protocol, config = check_proposal(proposal, folder)
    tell = describe_predictions if proposal.purpose == "predict" else describe_messages
    return {
        "site": folder.name,
        **as_tree(proposal),
        "code_digest": code_digest(proposal),
        "config": spell_infinities(as_dict(config)),  # as it is read, with what the proposal leaves out
        "hosts": dict(folder.federation.hosts),
        "most": vars(proposal.limits.within(folder.policy.run_limits, folder.name)),
        "site_budget": _budget_of_site(folder, proposal, config),
        "federation_version": folder.federation.version,
        "continuations": num_continuations(folder, proposal),
        "most_continuations": folder.policy.continuations,
        "predictions": num_predictions(folder, proposal),
        "on_loss": on_loss(config, proposal),
        "left_open": left_open(protocol, config, proposal, folder),
        "protections": jsonable(describe_protections(protocol, config)),
        "messages": tell(protocol, config),
    }


def _budget_of_site(folder: SiteFolder, proposal: Proposal, config: Any) -> dict[str, Any] | None:
    """Return what a run would take of the budget of the site's data, and what is left of it; None: they have none."""
    from fedactors.federation.approval import has_quorum
    from fedactors.federation.site_folder import taken_before

    name = proposal.data.get(folder.name)
    if name is None or (cap := folder.budget(name)) is None:
        return None
    amounts = {
        "takes": proposal.budget[folder.name],
        "budget": cap,
        "left": cap.less(taken_before(folder, name, proposal.run)),
    }
    # where sites may return, a journal tells what left
    counts_whole = not has_quorum(config) or proposal.purpose == "predict"
    return {"data": name, **{key: vars(one) for key, one in amounts.items()}, "counts_whole": counts_whole}


def _say_wrapped(text: object) -> None:
    """Print lines that go on indented, so that nothing of another site's in them begins a line of the terminal."""
    for line in str(text).split("\n"):
        say_filled(line, indent="    ")


def _print_proposal(shown: dict[str, Any], say: Callable[[str], object] = say) -> None:
    from fedactors.federation.site_folder import Amount

    mine = shown["data"].get(shown["site"])
    say(f"run {shown['run']}: {shown['coordinator']} proposes {shown['protocol']} {shown['version']}")
    if shown["purpose"] != "train":
        what = "goes on with" if shown["purpose"] == "resume" else "predicts with your part of the model of"
        say(f"it {what} run {shown['earlier']}, from checkpoint {shown['number']}")
    if shown["purpose"] == "resume":
        done, most = shown["continuations"], shown["most_continuations"]
        say(f"runs went on from there {done} times before; your policy allows {most}")
    if shown["purpose"] == "predict":
        say(f"that run predicted {shown['predictions']} times before")
    say(f"source {shown['source']}, the same as here; federation.toml is version {shown['federation_version']}")
    if shown["code"]:
        say(f"code of its own, which you have allowed here: {', '.join(shown['code'])}, SHA-256 {shown['code_digest']}")
        say("  it runs with all rights of this site's process: fedactors site code RUN prints it")
    say(f"data: {', '.join(f'{name} of {site}' for site, name in shown['data'].items())}; yours: {mine or 'none'}")
    task = shown["task"]
    skipped = () if task["layout"] == "vertical" else _ROWS
    # others wrote it: no value may look like a line of ours
    said = ", ".join(f"{name}={_word(value)}" for name, value in task.items() if value and name not in skipped)
    say(f"task: {said}; stated by {next(iter(shown['data']))}")
    hosts = ", ".join(f"{party} at {site}" for party, site in shown["hosts"].items())
    say(f"actors without data: {hosts + ', all others ' if hosts else ''}at {shown['coordinator']}")
    limits = ", ".join(f"{name} {most:g}" for name, most in shown["most"].items() if most is not None)
    say(f"it may take of this machine: {limits or 'what it likes: neither it nor policy.limits says how much'}")
    if (charged := shown["site_budget"]) is not None:
        takes, budget, left = (Amount(**charged[key]) for key in ("takes", "budget", "left"))
        counts = "; ALL OF THAT COUNTS IF THE RUN BREAKS OFF" if charged["counts_whole"] else ""
        of_data = f"your privacy budget of data.{charged['data']}, {budget}"
        say(f"it takes at most {takes} of {of_data}: {left} is left{counts}")
    if others := [f"{site} {Amount(**one)}" for site, one in shown["budget"].items() if site != shown["site"]]:
        say(f"of the budgets of others it takes at most: {', '.join(others)}")
    say(f"what all sites draw alike follows from seed {shown['seed']}, which {shown['coordinator']} proposes")
    if shown["shared_seed"] is not None:
        say("A TEST: the coordinator knows the seeds of your initial weights and shuffles")
    # what task and data say is no setting of a run of own data
    said_by_data = {*task, "num_parties", "num_clients"}
    settings = ", ".join(
        f"{name}={_word(value)}" for name, value in shown["config"].items() if name not in said_by_data
    )
    say(f"\nsettings: {settings}\n")
    for one in shown["protections"]:
        say(f"{one['kind']}: {'ON' if one['on'] else 'off'}; {one['means']}")
    say(f"lost sites: {shown['on_loss']}")
    say("\nWhat stays open\n")
    for sentence in shown["left_open"]:
        say(f"- {sentence}")
    for is_control, heading in ((False, "Between parties"), (True, "What the coordinator's driver learns")):
        say(f"\n{heading}\n")
        for entry in shown["messages"]:
            if entry["control"] == is_control:
                shapes = ", ".join(f"{f['name']} {f['shape']}" for f in entry["fields"] if f["shape"])
                say(f"{entry['message']}: {entry['sender']} -> {entry['receiver']}")
                say(f"  reveals: {entry['reveals']}{f'  ({shapes})' if shapes else ''}")
                if entry["bounds"]:
                    say(f"  at one actor: {'; '.join(entry['bounds'])}")


def _word(value: Any) -> str:
    """Return a value of somebody else's in one line, whole; in quotes where it could be taken for several."""
    text = str(value)
    is_word = not isinstance(value, str) or re.fullmatch(r"[\w.:/+-]*", text)
    return one_line(text if is_word else json.dumps(text, ensure_ascii=False), _LONGEST_PROPOSAL)


_LONGEST_PROPOSAL = 1 << 16
_ROWS = ("alignment", "split")
"""What a task says of vertical rows alone."""


def federation_command(args: argparse.Namespace) -> int:
    """Make a federation, admit a site, or show a demo."""
    _refuse_others(args, _OF_FEDERATION, _FEDERATION_TAKES)
    if args.action == "demo":
        from fedactors.cli.demo import demo

        return demo(path_of(args.name or "federation-demo", "FOLDER"), args.format)
    folder = path_of(_need(args.name, "FOLDER"), "FOLDER")
    return {"init": _init_federation, "admit": _admit, "remove": _remove, "sign": _sign}[args.action](folder, args)


def _init_federation(folder: Path, args: argparse.Namespace) -> int:
    from fedactors.federation.identity import (
        FEDERATION,
        Federation,
        as_pem,
        check_name,
        federation_text,
        make_authority,
        make_key,
    )

    name = check_name(folder.resolve().name, "federation")
    with writing("FOLDER", folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = make_key(folder / _AUTHORITY_KEY, args.key_type, _passphrase(args))
    made = Federation(name, as_pem(make_authority(key, name)), {}, {}, version=1)
    (folder / FEDERATION).write_text(federation_text(made, key))
    said = f"{folder / FEDERATION}: every site gets a copy; {folder / _AUTHORITY_KEY} signs, and stays here"
    return answer(args.format, {"federation": name, "file": str(folder / FEDERATION)}, said)


def _write_federation(folder: Path, changed: Federation, args: argparse.Namespace) -> int:
    """Sign a federation with its authority's key, as its next version, which this returns."""
    from dataclasses import replace

    from fedactors.federation.identity import FEDERATION, federation_text, read_key
    from fedactors.runs.storage import write_atomic

    key = read_key(folder / _AUTHORITY_KEY, _passphrase(args))
    text = federation_text(replace(changed, version=changed.version + 1), key)
    write_atomic(folder / FEDERATION, text.encode(), "FOLDER")  # sites may be reading it
    return changed.version + 1


def _certified(
    folder: Path, federation: Federation, args: argparse.Namespace
) -> tuple[str, Certificate, tuple[str, ...]]:
    """Return a site's name and certificate, which is made here or elsewhere, and the CAs other than the authority."""
    from fedactors.federation.identity import (
        SITE_URI,
        as_pem,
        check_name,
        holds,
        names_of,
        read_certificate,
        read_chain,
        read_key,
        sign_request,
    )
    from fedactors.validation import read_text

    if args.certificate is None:
        if args.ca is not None:
            raise BadInput("--ca: is not allowed without --certificate: it is the CA that signed that one")
        request = read_text(_need(args.request, "REQUEST"), "request")
        key = read_key(folder / _AUTHORITY_KEY, _passphrase(args))
        return *sign_request(request.encode(), key, federation.issuer), federation.issuers
    issuers = federation.issuers
    if args.ca is not None:
        made = as_pem(read_certificate(read_text(args.ca, "--ca"), "--ca", is_authority=True))
        issuers = issuers if made in issuers else (*issuers, made)
    authorities = [read_certificate(one, "--ca", is_authority=True) for one in (federation.authority, *issuers)]
    certificate, chain = read_chain(read_text(args.certificate, "--certificate"), "--certificate", authorities)
    for ca in chain:
        authorities.append(ca)
        issuers = issuers if as_pem(ca) in issuers else (*issuers, as_pem(ca))
    if not holds(certificate, chain[:1] or authorities):
        raise BadInput(
            "--certificate: it has ended, or none of the federation's CAs signed it: give its issuer's certificate "
            "with --ca FILE"
        )
    named = [uri.removeprefix(SITE_URI) for uri in names_of(certificate)[0] if uri.startswith(SITE_URI)]
    if args.request is None and len(named) != 1:
        raise BadInput(f"--certificate: it has no URI {SITE_URI}NAME: give the site's name after FOLDER")
    name = named[0] if args.request is None else args.request
    return party_name(check_name(name, "--certificate"), "--certificate"), certificate, issuers


def _admit(folder: Path, args: argparse.Namespace) -> int:
    from dataclasses import replace

    from fedactors.federation.identity import FEDERATION, Member, check_name, check_names, read_federation

    file = folder / FEDERATION
    federation = read_federation(file)
    name, certificate, issuers = _certified(folder, federation, args)
    known = federation.members.get(name)
    field = "request" if args.certificate is None else "--certificate"
    if known is not None and not args.renew:
        raise BadInput(f"{field}: {name} is in the federation already: --renew gives it a new certificate")
    if known is None and args.renew:
        raise BadInput(f"--renew: {name} is not in the federation (there are: {', '.join(federation.members)})")
    host, port, is_relayed, url = _address(known, args)
    check_names(certificate, name, host, field)
    # until the site has the new file, it shows the certificate of before
    previous = None if known is None else known.certificate
    member = Member(name, host, port, certificate, previous, is_relayed, url)
    sites = {**federation.members, name: member}
    hosts = {**federation.hosts, **{check_name(party, "--host"): name for party in args.host}}
    if taken := set(hosts) & set(sites):
        raise BadInput(f"--host: {min(taken)!r} is not allowed: it is the name of a site")
    changed = replace(federation, members=sites, hosts=hosts, issuers=issuers)
    version = _write_federation(folder, changed, args)
    first = (
        f"{name} gets {file}; others take it from a site that has it"
        if not known
        else (f"every other site gets the new {file}, or takes it from one that has it, and {name} after them")
    )
    said = f"{name} is {'certified anew' if known else 'admitted'} (version {version}): {first}"
    return answer(args.format, {"site": name, "file": str(file), "version": version}, said)


def _address(known: Member | None, args: argparse.Namespace) -> tuple[str, int, bool, str]:
    """Return host and port where a site is dialled, or called through a relay, whether that, and a WebSocket's URL."""
    from fedactors.federation.identity import parse_site_address

    if args.relay is not None and args.address is not None:
        raise BadInput("--relay: is not allowed with --address: a site is dialled, or called through a relay")
    flag = "relay" if args.relay is not None else "address"
    if known is not None and getattr(args, flag) is None:
        return known.host, known.port, known.is_relayed, known.url
    host, port, url = parse_site_address(_need(getattr(args, flag), f"--{flag}"), f"--{flag}")
    if url and flag == "relay":
        raise BadInput(f"--relay: {url} is not allowed: a relay is dialled by HOST:PORT")
    if host in ("0.0.0.0", "::", "[::]"):
        raise BadInput(f"--{flag}: {host} is not allowed: nobody can dial it; give the host's name, or its address")
    return host, port, flag == "relay", url


def _remove(folder: Path, args: argparse.Namespace) -> int:
    from dataclasses import replace

    from fedactors.federation.identity import FEDERATION, read_federation

    federation = read_federation(folder / FEDERATION)
    site = _need(args.request, "SITE")
    if site not in federation.members:
        raise BadInput(f"SITE: {site[:80]!r} is not in the federation: {', '.join(federation.members)}")
    members = {name: one for name, one in federation.members.items() if name != site}
    hosts = {party: where for party, where in federation.hosts.items() if where != site}
    version = _write_federation(folder, replace(federation, members=members, hosts=hosts), args)
    said = f"{site} is removed (version {version}): give {folder / FEDERATION} to a site; the others take it from there"
    return answer(args.format, {"site": site, "file": str(folder / FEDERATION), "version": version}, said)


def _sign(folder: Path, args: argparse.Namespace) -> int:
    from fedactors.federation.identity import FEDERATION, parse_federation
    from fedactors.validation import read_text

    file = folder / FEDERATION
    changed = parse_federation(read_text(file, "federation"), file, is_changed=True)
    version = _write_federation(folder, changed, args)
    said = f"{file}: version {version}, signed: give it to a site; the others take it from there"
    return answer(args.format, {"file": str(file), "version": version}, said)


def relay_command(args: argparse.Namespace) -> int:
    """Relay between the sites of a federation until it is stopped."""
    from fedactors.federation.identity import parse_address
    from fedactors.federation.relay import Relay
    from fedactors.runs.metrics import json_line

    def tell(line: dict[str, Any]) -> None:
        say(json_line(line) if args.format == "json" else line["text"], flush=True)

    host, port = parse_address(args.listen, "--listen")
    crl = None if args.crl is None else path_of(args.crl, "--crl")
    address = None if args.address is None else parse_address(args.address, "--address")
    relay = Relay(path_of(args.federation, "--federation"), tell=tell, crl=crl, address=address)

    async def listen() -> None:
        async with await relay.start(host, port):
            await wait_for_stop()

    asyncio.run(listen())
    raise Stopped("the relay was stopped", 143)


def serve_parts(parts: dict[str, Part], model: str, args: argparse.Namespace) -> int:
    """Answer for single rows with parts of a trained model until stopped."""
    from fedactors.federation.identity import parse_address
    from fedactors.federation.site_folder import SiteFolder

    if (args.label_site is not None or args.remote) and args.folder is None:
        raise BadInput("--folder: missing: the folder of this site, whose key the other sites know")
    if (args.label_site is None) != (args.most_rows is None):
        raise BadInput("--most-rows: goes with --for: how many rows that site may ask for")
    if args.label_site is not None and args.remote:
        raise BadInput("--from: is not allowed with --for: the site with the labels asks the others")
    address = parse_address(args.listen, "--listen")
    folder = None if args.folder is None else SiteFolder(path_of(args.folder, "--folder"))
    if folder is not None and args.label_site is not None:
        return _give(folder, parts, model, address, args)
    return _predict_online(folder, parts, model, address, args)


def _give(
    folder: SiteFolder, parts: dict[str, Part], model: str, address: tuple[str, int], args: argparse.Namespace
) -> int:
    from fedactors.api import Run
    from fedactors.federation.online import contributions
    from fedactors.plugins import find_protocol

    if len(args.rows) != 1:
        raise BadInput("--rows: give one name of data in site.toml")
    trained = Run(args.run)
    folder.check_predicts(find_protocol(trained.protocol), str(trained.folder.config.get("data", "")))
    if folder.name not in parts:
        raise BadInput(f"serve: {folder.name} has no part of this model: {', '.join(parts)}")
    before = sum(line["what"] == "serving" and line["model"] == model for line in folder.log())
    ends = {
        "to": args.label_site,
        "model": model,
        "most_rows": args.most_rows,
        "tell": lambda text: say(text, flush=True),
    }
    with contributions(folder, parts[folder.name], args.rows[0], address, **ends) as (port, given):
        noise = "no noise is added" if given.privacy is None else f"epsilon {given.privacy.epsilon:.4g} of one row"
        facts = {"party": folder.name, "to": args.label_site, "listen": f"{address[0]}:{port}", "served_before": before}
        said = (
            f"{folder.name}: answers {args.label_site} at {address[0]}:{port}, {args.most_rows} rows at most; {noise}"
        )
        answer(args.format, facts, said, f"these rows were served {before} times before, each under noise of its own")
        asyncio.run(wait_for_stop())
    raise Stopped(f"the server of {folder.name} was stopped", 143)


def _predict_online(
    folder: SiteFolder | None, parts: dict[str, Part], model: str, address: tuple[str, int], args: argparse.Namespace
) -> int:
    from dataclasses import replace

    from fedactors.federation.identity import parse_address
    from fedactors.federation.online import RemoteContributor, predictions
    from fedactors.federation.operations import token_in
    from fedactors.runs.metrics import json_line

    remote = []
    for pair in args.remote:
        name, equals, where = pair.partition("=")
        member = None if folder is None else folder.federation.members.get(name)
        if not equals or member is None or folder is None or name == folder.name:
            raise BadInput(f"--from: {pair[:80]!r} is not allowed: give SITE=HOST:PORT of another site")
        host, port = parse_address(where, "--from")
        remote.append(RemoteContributor(folder, replace(member, host=host, port=port, is_relayed=False, url=""), model))
    rows = _files_of_rows(folder, parts, args.rows)
    token_file = path_of(args.token_file, "--token-file")
    with contextlib.ExitStack() as stack:
        lines = None if args.log is None else stack.enter_context(_log_file(path_of(args.log, "--log")))

        def log(line: dict[str, Any]) -> None:
            if lines is not None:
                lines.write(f"{json_line(line)}\n")

        token = stack.enter_context(token_in(token_file))
        chosen = {name: parts[name] for name in rows}
        ends = {"id_column": args.id, "remote": remote, "tell": lambda text: say(text, flush=True), "log": log}
        server = stack.enter_context(predictions(chosen, rows, address, token, **ends))
        url = f"http://{address[0]}:{server.port}/predict"
        facts = {"url": url, "token_file": str(token_file)}
        answer(args.format, facts, f"{url}  (Authorization: Bearer TOKEN, which is in {token_file}; Ctrl-C ends it)")
        sys.stdout.flush()
        if folder is not None:
            folder.audit.add("serving", model=model, asks=[one.name for one in remote])
        asyncio.run(wait_for_stop())
        if folder is not None:
            folder.audit.add("served", model=model, **server.counts)
    raise Stopped("the server was stopped", 143)


def _log_file(path: Path) -> Any:
    with writing("--log", path):
        return open(path, "a", buffering=1, opener=lambda name, flags: os.open(name, flags, 0o600))


def _files_of_rows(folder: SiteFolder | None, parts: dict[str, Part], given: Sequence[str]) -> dict[str, Path]:
    """Return the file of each party's rows; a bare file is of the only part."""
    if folder is not None:
        if len(given) != 1 or folder.name not in parts:
            raise BadInput(f"--rows: give one name of data in site.toml, of {', '.join(parts)}")
        return {folder.name: folder.rows_file(given[0])}
    if len(given) == 1 and len(parts) == 1:
        only = next(iter(parts))
        return {only: path_of(given[0].removeprefix(f"{only}="), "--rows")}
    found: dict[str, Path] = {}
    for one in given:
        party, equals, file = one.partition("=")
        if not equals or party not in parts or party in found:
            raise BadInput(f"--rows: {one[:80]!r} is not allowed: give PARTY=FILE once for each of {', '.join(parts)}")
        found[party] = path_of(file, "--rows")
    return found
