"""The command line: ``fedactors COMMAND``. Only flags live here; what a command does is in `commands`.

Importing this module loads neither torch nor ray nor pydantic, so that ``--help`` and ``list`` answer at once.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from fedactors import __version__
from fedactors.cli.commands import SUMMARY as SWEEP
from fedactors.cli.commands import add_sweep_flags
from fedactors.cli.flags import (
    SHELLS,
    VARIABLE,
    Parser,
    add_federation_flags,
    add_flags,
    add_run_flags,
    add_words,
    print_candidates,
)
from fedactors.cli.sites import FEDERATION_ACTIONS, SITE_ACTIONS, help_of
from fedactors.cli.terminal import end_process, guarded
from fedactors.plugins import Protocol, canonical, find_protocol, protocol_names

_EPILOG = (
    "exit codes: 0 success, 1 internal error, 2 bad input, 3 a party failed, 4 data missing, "
    "5 an audit refutes a claim, "
    "130 interrupted, 143 terminated (both write a checkpoint first)"
)


def command() -> NoReturn:
    """Run the command of this process's words."""
    end_process(main())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""

    def action() -> int:
        parser, commands = _parsers()
        words = list(sys.argv[1:] if argv is None else argv)
        if VARIABLE in os.environ:
            return print_candidates(commands, words)
        # key=value words may stand between flags, which argparse understands only in a parser without sub-commands
        if words and words[0] in commands:
            asks = bool({"-h", "--help"} & set(words))
            commands[words[0]].explained = _protocol_of(commands[words[0]], words[1:]) if asks else None
            if asks and (one := help_of(commands[words[0]], words)) is not None:
                one.print_help()
                return 0
            args = commands[words[0]].parse_intermixed_args(words[1:], argparse.Namespace(command=words[0]))
        else:
            args = parser.parse_args(words)
        from fedactors.cli import commands as handlers

        code: int = getattr(handlers, f"{args.command.replace('-', '_')}_command")(args)
        return code

    try:
        return guarded(action)
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


@functools.cache
def _parsers() -> tuple[Parser, dict[str, Parser]]:
    parser = Parser(prog="fedactors", description="Federated learning across organisations on Ray.", epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"fedactors {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    made: dict[str, Parser] = {}

    def add(name: str, text: str) -> Parser:
        made[name] = commands.add_parser(name, help=text, description=text, epilog=_EPILOG, allow_abbrev=False)
        return made[name]

    add_flags(add("list", "protocols that are installed, data sets, and which fit which"), "format")

    run = add("run", "run a protocol")
    run.add_argument(
        "protocol",
        metavar="PROTOCOL",
        help="name of a protocol, see fedactors list; PROTOCOL --help explains its settings",
    )
    add_run_flags(run)
    add_federation_flags(run)

    site = add("site", "an organisation's own process: make it, start it, answer what others propose to run")
    site.add_argument("action", choices=SITE_ACTIONS, help="fedactors site ACTION --help says what it does")
    site.add_argument("name", nargs="?", metavar="NAME|RUN", help="of the site that init makes; else the run's id")
    site.add_argument("--folder", metavar="DIR", help="the site's folder (default: here; init: a new one, NAME)")
    site.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="init: address and port of this host that the site listens at, 0.0.0.0:7443 for all of its addresses; the "
        "firewall must let the other sites in; the name that they dial is federation admit --address",
    )
    site.add_argument("--relay", metavar="HOST:PORT", help="init, start: nobody can dial the site; it is called there")
    site.add_argument("--why", metavar="TEXT", help="approve, reject, stop: goes to the coordinator and the log")
    site.add_argument("--verify", action="store_true", help="audit: only say whether the site's signed log is whole")
    site.add_argument(
        "--against", metavar="LOG", help="audit: another site's audit.log: do they agree on what crossed?"
    )
    add_flags(site, "format")

    federation = add("federation", "the sites that may work together: make a federation, admit a site, see a demo")
    federation.add_argument(
        "action", choices=FEDERATION_ACTIONS, help="init FOLDER, admit FOLDER REQUEST, demo [FOLDER]"
    )
    federation.add_argument("name", nargs="?", metavar="FOLDER", help="of whoever organises it; its name is the name")
    federation.add_argument("request", nargs="?", metavar="REQUEST", help="admit: the site's .csr file")
    federation.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="admit: name or address, and port, by which the others dial the site: bank.example:7443; not 0.0.0.0",
    )
    federation.add_argument("--relay", metavar="HOST:PORT", help="admit: nobody can dial the site; it is called there")
    federation.add_argument("--renew", action="store_true", help="admit: the site has a new key (fedactors site renew)")
    federation.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="PARTY",
        help="admit: the site hosts this party, which is nobody's data (a broker); else the coordinator's site does",
    )
    add_flags(federation, "format")

    relay = add("relay", "a process that sites dial out to, of which one or both cannot be dialled")
    relay.add_argument(
        "--federation", metavar="FILE", required=True, help="whose sites it admits: their federation.toml"
    )
    relay.add_argument("--listen", metavar="HOST:PORT", required=True, help="where the sites dial it")
    add_flags(relay, "format")

    add_sweep_flags(add("sweep", SWEEP))

    submit = add("submit", "run a protocol or a scenario script on a Ray cluster, as a job")
    submit.add_argument("target", metavar="PROTOCOL|SCRIPT", help="name of a protocol, or path of a scenario script")
    add_run_flags(submit)
    submit.add_argument(
        "--runtime-env",
        metavar="FILE",
        help="JSON of what the job needs besides: pip, uv, conda, env_vars, as Ray has it",
    )
    submit.add_argument("--wait", action="store_true", help="follow the log, fetch the run folder; exit with its code")
    submit.add_argument(
        "--working-dir", metavar="DIR", help="folder to send along (default: the present one for a script, else none)"
    )

    fetch = add("fetch", "bring the run folder of an ended job here, if its --out was not a shared place")
    fetch.add_argument("job", metavar="JOB", help="id of the job, as submit names it")
    fetch.add_argument("--address", metavar="A", help="dashboard of the cluster: http://HEAD:8265")
    fetch.add_argument("--wait", action="store_true", help="follow the log until the job has ended")
    fetch.add_argument("--out", default="runs", metavar="DIR", help="parent of run folders (default: runs)")
    add_flags(fetch, "format")

    doctor = add("doctor", "say what this installation has, and what a cluster leaves open")
    doctor.add_argument("--address", metavar="A", help="dashboard of a cluster: http://HEAD:8265")
    add_flags(doctor, "format")

    compare = add("compare", "put runs side by side: mean and deviation over seeds, differences")
    either = "run folders, or tables of sweeps"
    compare.add_argument("runs", nargs="+", metavar="RUN", help=f"{either}; the first group is the baseline")
    compare.add_argument("--plot", metavar="FILE", help="also draw the main metric against the rounds (.png)")
    compare.add_argument(
        "--report", metavar="FILE", help="also write a page: paired differences, curves, each run (.html)"
    )
    compare.add_argument("--metric", metavar="NAME", help="metric of the plot (default: the protocol's main one)")
    add_flags(compare, "format")

    report = add("report", "write one self-contained HTML page about runs")
    report.add_argument("runs", nargs="+", metavar="RUN", help=either)
    report.add_argument("--output", metavar="FILE", help="the page (default: in the run folder, or beside the table)")
    report.add_argument("--figures", metavar="DIR", help="also write every curve as SVG, PDF and CSV into this folder")
    add_flags(report, "format")

    plan = add("plan", "choose settings by what parties, links and graph are like, and predict what they cost")
    plan.add_argument("protocol", metavar="PROTOCOL")
    plan.add_argument(
        "--profile", nargs="+", action="extend", default=[], metavar="FILE", help=".toml or .json: what a party has"
    )
    plan.add_argument(
        "--measure", action="store_true", help="let each party measure its machine and links, in a process of its own"
    )
    plan.add_argument("--data", metavar="NAME|FILE", help="with --measure: the data set, or a description of your own")
    add_flags(plan, "runtime", "address", "placement")
    add_words(plan)
    add_flags(plan, "format")

    inspect = add("inspect", "show every message that would leave a party, before anything runs")
    inspect.add_argument("protocol", metavar="PROTOCOL")
    add_words(inspect)
    add_flags(inspect, "format")

    predict = add("predict", "use the trained model of a run")
    predict.add_argument("run", metavar="RUN", help="run folder with a checkpoint")
    predict.add_argument("--data", required=True, metavar="NAME|FILE", help="new rows: nobody needs labels")
    predict.add_argument("--checkpoint", metavar="LABEL", help="default: best, else the newest")
    predict.add_argument(
        "--output",
        default="predictions.parquet",
        metavar="FILE",
        help="where the party that owns the labels writes them (.parquet or .csv; default: predictions.parquet); over "
        "a federation a name: the file is predictions/RUN/NAME in the folder of that party's site",
    )
    predict.add_argument(
        "--federation",
        metavar="FILE",
        help="of a run over a federation: your site's federation.toml; --data is then SITE=NAME,SITE=NAME",
    )
    add_flags(predict, "runtime", "address", "placement")
    add_flags(predict, "checkpoint_dir", "checkpoint_key")
    add_flags(predict, "allow_import")
    add_flags(predict, "format")

    export = add("export", "write the parties' parts of the trained model, to be used without fedactors' actors")
    export.add_argument("run", metavar="RUN", help="run folder with a checkpoint")
    export.add_argument("--party", metavar="P", help="name of the party (default: all)")
    export.add_argument("--checkpoint", metavar="LABEL", help="default: best, else the newest")
    export.add_argument(
        "--output", metavar="DIR", help=("each party gets a folder in it (default: exported/ in the run's)")
    )
    add_flags(export, "checkpoint_dir", "checkpoint_key")
    add_flags(export, "allow_import")
    add_flags(export, "format")

    audit = add("audit", "recompute every privacy figure of a run, replay it with one record otherwise, attack it")
    audit.add_argument("run", metavar="RUN", help="run folder")
    audit.add_argument("--replay", action="store_true", help="replay each party with one record otherwise (simulated)")
    audit.add_argument(
        "--neighbours", type=int, default=10, metavar="N", help="records to replace, of each kind (default: 10)"
    )
    audit.add_argument("--party", metavar="P", help="replay this party only")
    audit.add_argument("--attacks", action="store_true", help="attack the trained model of the run's checkpoint")
    audit.add_argument(
        "--data", metavar="NAME|FILE", help="the data now (default: the data set that the run had; own data: name them)"
    )
    add_flags(audit, "allow_import")
    add_words(audit)
    add_flags(audit, "format")

    new = add("new", "write a working start: a protocol in a package of its own, or a scenario script")
    new.add_argument("what", choices=("protocol", "scenario"))
    new.add_argument("name", metavar="NAME", help="lower-case, for example secure-mean")
    new.add_argument("--protocol", metavar="P", help="protocol that a scenario runs (default: the first installed)")
    new.add_argument("--output", default=".", metavar="DIR", help="folder that it is written into (default: here)")
    add_flags(new, "format")

    data = add("data", "data sets: list them, fetch one")
    data.add_argument("action", choices=("list", "fetch"))
    data.add_argument("name", nargs="?", metavar="NAME", help="data set to fetch")
    add_flags(data, "format")

    completion = add("completion", "print a script that completes commands, settings and names at the Tab key")
    completion.add_argument("shell", choices=SHELLS, help="for example: source <(fedactors completion bash)")
    return parser, made


if __name__ == "__main__":
    sys.exit(main())
