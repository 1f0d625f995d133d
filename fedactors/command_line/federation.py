"""``fedactors site`` and ``fedactors federation``: organisations that share no cluster, and what each is asked."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedactors.command_line.options import Parser
from fedactors.command_line.site_operations import audit, check, one_run, renew, status, stop
from fedactors.command_line.terminal import print_json, print_table, say
from fedactors.errors import BadInput, Stopped
from fedactors.validation import one_line, party_name, path_of, writing

if TYPE_CHECKING:
    from fedactors.runtime.federated.folders import SiteFolder
    from fedactors.runtime.federated.proposal import Proposal

SITE_ACTIONS = {
    "init": "NAME: make a folder for a site: its key, site.toml, and a request for a certificate (.csr), which goes to "
    "whoever organises the federation",
    "start": "run the site's process, which answers other sites and hosts this site's actors, until it is stopped: "
    "Ctrl-C, or SIGTERM",
    "status": "say what the site's process does; exit code 3 where none runs",
    "check": "read all data that site.toml names, and dial every other site: is it reached, has it the same code, is "
    "the clock right? Exit code 2: own data cannot be read; 3: a site cannot be worked with",
    "renew": "make the site's next key, and a request for a certificate, for fedactors federation admit --renew",
    "pending": "list what was proposed and waits for this site's answer",
    "show": "RUN: show what a proposed run is and all that it would let out of this site, before you approve or reject "
    "it; the beginning of the run's id is enough",
    "approve": "RUN: let this very run begin here; the beginning of its id is enough",
    "reject": "RUN: do not let it begin; the beginning of its id is enough",
    "stop": "RUN: stop a run that is under way, for all sites",
    "runs": "list all runs that were ever proposed here, and how each ended",
    "budget": "show the privacy budget of the data here, and what runs have taken of it",
    "audit": "[RUN]: check the site's signed log and show it, or hold it against another site's",
}
"""What each does."""
FEDERATION_ACTIONS = {
    "init": "FOLDER: make a federation: a small certificate authority, and federation.toml, which every site gets",
    "admit": "FOLDER REQUEST: sign a site's request and put the site into federation.toml; ask the site, in a way that "
    "nobody else writes to, whether the request is its own",
    "demo": "[FOLDER]: make three sites on this machine and train between them, showing every command",
}
_AUTHORITY_KEY = "authority.pem"
_OF_SITE = {
    "name": "a word",
    "listen": "--listen",
    "why": "--why",
    "verify": "--verify",
    "against": "--against",
    "relay": "--relay",
}
_SITE_TAKES = {
    "init": ("name", "listen", "relay"),
    "start": ("relay",),
    "show": ("name",),
    "approve": ("name", "why"),
    "reject": ("name", "why"),
    "stop": ("name", "why"),
    "audit": ("name", "verify", "against"),
}
_OPERATIONS = {"status": status, "check": check, "renew": renew, "stop": stop, "audit": audit}
_OF_FEDERATION = {
    "request": "a second word",
    "address": "--address",
    "relay": "--relay",
    "renew": "--renew",
    "seat": "--seat",
}
_FEDERATION_TAKES = {"admit": tuple(_OF_FEDERATION)}


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
    from fedactors.runtime.federated.folders import SiteFolder, parse_address

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
    return _about_run(folder, args)


def _need(value: str | None, what: str) -> str:
    if not value:
        raise BadInput(f"{what}: missing")
    return value


def _init_site(args: argparse.Namespace) -> int:
    from fedactors.runtime.federated.credentials import KEY
    from fedactors.runtime.federated.folders import SITE, parse_address, quoted
    from fedactors.runtime.federated.identity import check_name, make_key, make_request

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
    request.write_bytes(make_request(make_key(folder / KEY), name))
    (folder / SITE).write_text(_SITE.format(name=quoted(name), where=f"{flag} = {quoted(address)}"))
    if args.format == "json":
        print_json({"site": name, "folder": str(folder), "request": str(request)})
        return 0
    say(f"{folder / SITE}: say there which data the site has")
    say(f"{request}: send this to whoever organises the federation; {folder / KEY} stays here")
    return 0


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
    from fedactors.records.metrics import json_line
    from fedactors.runtime.federated.site import SiteProcess

    async def listen() -> None:
        def tell(line: dict[str, Any]) -> None:
            say(json_line(line) if form == "json" else line["text"], flush=True)

        process = SiteProcess(folder, tell=tell)
        await process.start()
        await told_to_stop()
        process.stop()

    asyncio.run(listen())
    raise Stopped(f"the site {folder.name} was stopped", 143)


async def told_to_stop() -> None:
    """Wait until somebody stops this process."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    await stopped.wait()


def _status(folder: SiteFolder, proposal: Proposal, ended: dict[str, str]) -> str:
    from fedactors.runtime.federated.proposal import decision

    found = decision(folder, proposal)
    if found is None:
        return "pending"
    if not found[0]:
        return f"rejected{f': {found[1]}' if found[1] else ''}"
    return ended.get(proposal.run, "approved")


def _list(folder: SiteFolder, args: argparse.Namespace) -> int:
    from fedactors.runtime.federated.audit import AUDIT, read
    from fedactors.runtime.federated.proposal import kept_proposals

    ended = {
        line["run"]: line["status"] + (f": {line['why']}" if line["status"] != "finished" and line.get("why") else "")
        for line in read(folder.path / AUDIT)
        if line["what"] == "ended" and line.get("who") == "site" and {"run", "status"} <= line.keys()
    }
    found = [
        {
            "run": run,
            "coordinator": proposal.coordinator,
            "protocol": proposal.protocol,
            "purpose": proposal.purpose,
            "data": proposal.data.get(folder.name),
            "status": _status(folder, proposal, ended),
        }
        for run, proposal in kept_proposals(folder).items()
    ]
    if args.action == "pending":
        found = [entry for entry in found if entry["status"] == "pending"]
    if args.format == "json":
        print_json({"site": folder.name, "runs": found})
        return 0
    if not found:
        say("nothing is proposed" if args.action == "pending" else "no runs")
        return 0
    print_table(list(found[0]), [[str(value or "-") for value in entry.values()] for entry in found])
    return 0


def _budget(folder: SiteFolder, args: argparse.Namespace) -> int:
    from fedactors.runtime.federated.policy import as_logged, in_all, spent

    taken = spent(folder.log())
    caps = {name: cap for name in folder.names() if (cap := folder.budget(name)) is not None}
    if args.format == "json":
        logged = {name: as_logged({"budget": cap, **taken.get(name, {})}) for name, cap in caps.items()}
        print_json({"site": folder.name, "budgets": logged})
        return 0
    if not caps:
        say("no data here have a budget")
        return 0
    rows = [[name, str(cap), str(in_all(taken.get(name, {})))] for name, cap in caps.items()]
    print_table(["data", "budget", "taken"], rows)
    return 0


def _about_run(folder: SiteFolder, args: argparse.Namespace) -> int:
    from fedactors.runtime.federated.proposal import check_proposal, decide, decision, kept_proposals

    known = kept_proposals(folder)
    run = _need(args.name, "RUN")
    waiting = ", ".join(one for one, asked in known.items() if decision(folder, asked) is None)
    run = one_run(run, known, f"was not proposed to {folder.name} (waiting for its answer: {waiting or 'none'})")
    proposal = known[run]
    if args.action == "show":
        shown = describe(folder, proposal)
        if args.format == "json":
            print_json(shown)
        else:
            _print_proposal(shown)
            if decision(folder, proposal) is None:
                say(f"\nto answer: fedactors site approve {run}, or fedactors site reject {run} --why TEXT")
        return 0
    approved = args.action == "approve"
    if approved:
        check_proposal(proposal, folder)
    decide(folder, proposal, approved=approved, why=args.why or "")
    if args.format == "json":
        print_json({"run": run, "approved": approved, "why": args.why or ""})
    else:
        say(f"{run}: {'approved' if approved else 'rejected'}")
    return 0


def describe(folder: SiteFolder, proposal: Proposal) -> dict[str, Any]:
    """Return what a run would mean for a site, before anything runs, JSON-ready."""
    from fedactors.inspection import describe_messages, describe_predictions, describe_protections
    from fedactors.records.metrics import jsonable
    from fedactors.runtime.federated.proposal import as_tree, check_proposal

    protocol, config = check_proposal(proposal, folder)
    tell = describe_predictions if proposal.purpose == "predict" else describe_messages
    return {
        "site": folder.name,
        **as_tree(proposal),
        "seats": dict(folder.federation.seats),
        "protections": jsonable(describe_protections(protocol, config)),
        "messages": tell(protocol, config),
    }


def _print_proposal(shown: dict[str, Any]) -> None:
    mine = shown["data"].get(shown["site"])
    say(f"run {shown['run']}: {shown['coordinator']} proposes {shown['protocol']} {shown['version']}")
    if shown["purpose"] != "train":
        what = "goes on with" if shown["purpose"] == "resume" else "predicts with your part of the model of"
        say(f"it {what} run {shown['earlier']}, from checkpoint {shown['number']}")
    say(f"source {shown['source']}, the same as here")
    say(f"data: {', '.join(f'{name} of {site}' for site, name in shown['data'].items())}; yours: {mine or 'none'}")
    task = shown["task"]
    skipped = () if task["layout"] == "vertical" else _ROWS
    # others wrote it: no value may look like a line of ours
    said = ", ".join(f"{name}={_word(value)}" for name, value in task.items() if value and name not in skipped)
    say(f"task: {said}; stated by {next(iter(shown['data']))}")
    seats = ", ".join(f"{party} at {site}" for party, site in shown["seats"].items())
    say(f"whoever is nobody's data: {seats or 'at ' + shown['coordinator']}")
    if shown["shared_seed"] is not None:
        say("A TEST: the coordinator knows the seeds of your initial weights and shuffles")
    # what the task says is no setting of a run of own data
    settings = ", ".join(f"{name}={_word(value)}" for name, value in shown["config"].items() if name not in task)
    say(f"\nsettings: {settings}\n")
    for one in shown["protections"]:
        say(f"{one['kind']}: {'ON' if one['on'] else 'off'}; {one['means']}")
    for is_control, heading in ((False, "Between parties"), (True, "What the coordinator's driver learns")):
        say(f"\n{heading}\n")
        for entry in shown["messages"]:
            if entry["control"] == is_control:
                shapes = ", ".join(f"{f['name']} {f['shape']}" for f in entry["fields"] if f["shape"])
                say(f"{entry['message']}: {entry['sender']} -> {entry['receiver']}")
                say(f"  reveals: {entry['reveals']}{f'  ({shapes})' if shapes else ''}")


def _word(value: Any) -> str:
    return one_line(str(value), _LONGEST_WORD)


_LONGEST_WORD = 1000
_ROWS = ("alignment", "split")
"""What a task says of vertical rows alone."""


def federation_command(args: argparse.Namespace) -> int:
    """Do what whoever organises a federation is asked."""
    _refuse_others(args, _OF_FEDERATION, _FEDERATION_TAKES)
    if args.action == "demo":
        from fedactors.command_line.federation_demo import demo

        return demo(path_of(args.name or "federation-demo", "FOLDER"), args.format)
    folder = path_of(_need(args.name, "FOLDER"), "FOLDER")
    return _init_federation(folder, args) if args.action == "init" else _admit(folder, args)


def _init_federation(folder: Path, args: argparse.Namespace) -> int:
    from fedactors.runtime.federated.folders import FEDERATION, Federation, federation_text
    from fedactors.runtime.federated.identity import as_pem, check_name, make_authority, make_key

    name = check_name(folder.resolve().name, "federation")
    with writing("FOLDER", folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = make_authority(make_key(folder / _AUTHORITY_KEY), name)
    (folder / FEDERATION).write_text(federation_text(Federation(name, as_pem(authority), {}, {})))
    if args.format == "json":
        print_json({"federation": name, "file": str(folder / FEDERATION)})
    else:
        say(f"{folder / FEDERATION}: every site gets a copy; {folder / _AUTHORITY_KEY} signs, and stays here")
    return 0


def _admit(folder: Path, args: argparse.Namespace) -> int:
    from fedactors.records.storage import write_atomic
    from fedactors.runtime.federated.folders import (
        FEDERATION,
        Federation,
        Member,
        federation_text,
        parse_address,
        read_federation,
    )
    from fedactors.runtime.federated.identity import check_name, read_certificate, read_key, sign_request
    from fedactors.validation import read_text

    file = folder / FEDERATION
    federation = read_federation(file)
    request = read_text(_need(args.request, "REQUEST"), "request")
    authority = read_certificate(federation.authority, f"{file}: authority")
    name, certificate = sign_request(request.encode(), read_key(folder / _AUTHORITY_KEY), authority)
    known = federation.members.get(name)
    if known is not None and not args.renew:
        raise BadInput(f"request: {name} is in the federation already: --renew gives it a new certificate")
    if known is None and args.renew:
        raise BadInput(f"--renew: {name} is not in the federation (there are: {', '.join(federation.members)})")
    if args.relay is not None and args.address is not None:
        raise BadInput("--relay: is not allowed with --address: a site is dialled, or called through a relay")
    flag = "relay" if args.relay is not None else "address"
    if known is None or getattr(args, flag) is not None:
        host, port = parse_address(_need(getattr(args, flag), f"--{flag}"), f"--{flag}")
        if host in ("0.0.0.0", "::", "[::]"):
            raise BadInput(f"--{flag}: {host} is not allowed: nobody can dial it; give the host's name, or its address")
        is_relayed = flag == "relay"
    else:
        host, port, is_relayed = known.host, known.port, known.is_relayed
    # until the site has the new file, it shows the certificate of before
    member = Member(name, host, port, certificate, None if known is None else known.certificate, is_relayed)
    sites = {**federation.members, name: member}
    seats = {**federation.seats, **{check_name(party, "--seat"): name for party in args.seat}}
    if taken := set(seats) & set(sites):
        raise BadInput(f"--seat: {min(taken)!r} is not allowed: it is the name of a site")
    text = federation_text(Federation(federation.name, federation.authority, sites, seats))
    write_atomic(file, text.encode(), "FOLDER")  # sites may be reading it
    if args.format == "json":
        print_json({"site": name, "file": str(file)})
    else:
        first = f"every other site gets the new {file}, and {name} after them" if known else f"every site gets {file}"
        say(f"{name} is {'certified anew' if known else 'admitted'}: {first}")
    return 0
