"""Every command's arguments and flags; `main` runs the commands.

Importing this module loads neither torch nor ray nor pydantic, so that ``--help`` and ``list`` answer at once.
"""

from __future__ import annotations

import argparse
import functools

from fedactors import __version__
from fedactors.cli.flags import SHELLS, Parser, add_federation_flags, add_flags, add_run_flags, add_words, argument
from fedactors.cli.sites import FEDERATION_ACTIONS, SITE_ACTIONS
from fedactors.options import RUNTIMES, read_seed

_EPILOG = (
    "exit codes: 0 success, 1 internal error, 2 bad input, 3 a party failed, 4 data missing, "
    "5 an audit refutes a claim, 129 the terminal closed, 130 interrupted, 143 terminated "
    "(all three write a checkpoint first)"
)

_SWEEP_WORDS = (
    "a=1,2 tries both values; two such lists try all pairs. A setting that is a list takes brackets: layers=[8,16] is "
    "one value, layers=[8,16],[32] are two. For random values give --draws and, in quotes, uniform(LOW,HIGH), "
    "loguniform(LOW,HIGH), integer(LOW,HIGH) or choice(A,B)"
)


@functools.cache
def parsers() -> tuple[Parser, dict[str, Parser]]:
    """Return the parser of all commands, and that of each."""
    parser = Parser(prog="fedactors", description="Federated learning across organisations on Ray.", epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"fedactors {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    made: dict[str, Parser] = {}

    def add(name: str, text: str) -> Parser:
        made[name] = commands.add_parser(name, help=text, description=text, epilog=_EPILOG, allow_abbrev=False)
        return made[name]

    add("list", "list the installed protocols, the data sets, and which fit together")

    run = add("run", "run a protocol")
    run.add_argument(
        "protocol",
        metavar="PROTOCOL",
        help="protocol name (see fedactors list); PROTOCOL --help explains its settings",
    )
    add_run_flags(run)
    add_federation_flags(run)

    site = add(
        "site", "set up and run your organisation's site: start its process, approve or reject runs, audit its log"
    )
    site.add_argument("action", choices=SITE_ACTIONS, help="what to do; fedactors site ACTION --help explains it")
    site.add_argument(
        "name", nargs="?", metavar="NAME|RUN", help="init: the new site's name; other actions: a run's id"
    )
    site.add_argument("--folder", metavar="DIR", help="the site's folder (default: the current one; init: NAME)")
    site.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="init: address and port of this host to listen on, 0.0.0.0:7443 for all its addresses. The firewall must "
        "let the other sites in. The name that they dial is set by federation admit --address",
    )
    site.add_argument(
        "--relay",
        metavar="HOST:PORT",
        help="init, start: the relay through which others reach a site behind a firewall",
    )
    site.add_argument(
        "--web",
        nargs="?",
        const="0",
        metavar="PORT",
        help="status: show it as a web page on this machine (127.0.0.1), at this port (default: any free one)",
    )
    _add_key_flags(site)
    site.add_argument(
        "--dns",
        action="append",
        default=[],
        metavar="NAME",
        help="init, renew: a DNS name for the certificate; repeatable",
    )
    site.add_argument(
        "--pkcs11", metavar="URI", help="init, renew: keep the key in this token, which gets a new key if it has none"
    )
    site.add_argument("--signing-key", metavar="FILE", help="sign-code: a person's key (openssl genpkey), or a token's")
    site.add_argument(
        "--why",
        metavar="TEXT",
        help="approve, reject, stop: a reason for the coordinator and the log; settle: for the log",
    )
    site.add_argument("--verify", action="store_true", help="audit: check the signed log only, without showing it")
    site.add_argument("--against", metavar="LOG", help="audit: compare with another site's audit.log")

    federation = add("federation", "set up a federation: create it, admit and remove sites, try a demo")
    federation.add_argument(
        "action", choices=FEDERATION_ACTIONS, help="what to do; fedactors federation ACTION --help explains it"
    )
    federation.add_argument(
        "name", nargs="?", metavar="FOLDER", help="the organiser's folder; its name is the federation's name"
    )
    said = "admit: the site's .csr file; remove: the site's name"
    federation.add_argument("request", nargs="?", metavar="REQUEST|SITE", help=said)
    federation.add_argument("--certificate", metavar="FILE", help="admit: the site's certificate, issued by another CA")
    federation.add_argument("--ca", metavar="FILE", help="admit: that CA's certificate; all sites then trust it")
    _add_key_flags(federation)
    federation.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="admit: host name or address, and port, at which the others reach the site, such as bank.example:7443; "
        "not 0.0.0.0",
    )
    federation.add_argument(
        "--relay", metavar="HOST:PORT", help="admit: the relay through which others reach a site behind a firewall"
    )
    federation.add_argument(
        "--renew", action="store_true", help="admit: replace the site's key (after fedactors site renew)"
    )
    federation.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="PARTY",
        help="admit: let this site host an actor without data, such as a broker (default: the coordinator's site); "
        "repeatable",
    )

    relay = add("relay", "run a relay for sites behind NAT or a firewall")
    relay.add_argument(
        "--federation", metavar="FILE", required=True, help="federation.toml of the sites that may use the relay"
    )
    relay.add_argument("--listen", metavar="HOST:PORT", required=True, help="address and port to listen on")
    relay.add_argument("--crl", metavar="FILE", help="revocation lists of the federation's CAs")
    relay.add_argument(
        "--address", metavar="HOST:PORT", help="this relay's entry in federation.toml, if it names several"
    )

    sweep = add(
        "sweep", "run a protocol with many settings and seeds, and write one table; finished runs are not repeated"
    )
    sweep.add_argument("protocol", metavar="PROTOCOL", help="protocol name; see fedactors list")
    sweep.add_argument("words", nargs="*", metavar="key=values", help=_SWEEP_WORDS)
    sweep.add_argument("--settings", metavar="FILE", help="list of settings: [[settings]] in .toml, [{...}] in .json")
    sweep.add_argument("--draws", type=_count, metavar="N", help="number of draws from each distribution")
    sweep.add_argument(
        "--draw-seed", type=argument(read_seed), default=0, metavar="N", help="seed of the draws (default 0)"
    )
    add_flags(sweep, "seeds", default=(0,), help="seeds of each setting (default 0)")
    sweep.add_argument("--data", metavar="NAME|FILE", help="data set name, or description of your data (.toml)")
    sweep.add_argument("--runtime", choices=RUNTIMES, default="simulated", help="simulated (default) or ray")
    sweep.add_argument(
        "--jobs", type=_count, default=1, metavar="N", help="parallel processes on this machine (default 1)"
    )
    sweep.add_argument("--address", metavar="A", help="run as tasks on this Ray cluster (host:port or auto)")
    sweep.add_argument("--smoke", action="store_true", help="start from the protocol's smallest preset")
    sweep.add_argument("--paper", action="store_true", help="start from the paper's preset")
    sweep.add_argument("--out", default="sweeps", metavar="DIR", help="folder for tables and cache (default: sweeps)")
    sweep.add_argument("--name", metavar="NAME", help="table name (default: the protocol's name)")
    sweep.add_argument(
        "--choose",
        metavar="METRIC:MODE",
        help="choose a setting by its mean over seeds, for example validation/loss:min",
    )
    sweep.add_argument("--again", action="store_true", help="repeat finished runs")
    sweep.add_argument("--dry-run", action="store_true", help="list the runs without starting them")
    add_flags(sweep, "quiet")

    submit = add("submit", "submit a protocol or a scenario script to a Ray cluster as a job")
    submit.add_argument("target", metavar="PROTOCOL|SCRIPT", help="protocol name, or path of a scenario script")
    add_run_flags(submit)
    submit.add_argument(
        "--runtime-env",
        metavar="FILE",
        help="Ray runtime environment of the job, as JSON: pip, uv, conda, env_vars",
    )
    submit.add_argument(
        "--wait", action="store_true", help="follow the log, fetch the run folder, exit with the job's code"
    )
    submit.add_argument(
        "--working-dir", metavar="DIR", help="folder to upload (default: the current one for a script, else none)"
    )

    fetch = add("fetch", "download the run folder of a finished job")
    fetch.add_argument("job", metavar="JOB", help="job id, printed by submit")
    fetch.add_argument("--address", metavar="A", help="the cluster's dashboard: http://HEAD:8265")
    fetch.add_argument("--wait", action="store_true", help="follow the log until the job ends")
    fetch.add_argument("--out", default="runs", metavar="DIR", help="parent folder of run folders (default: runs)")

    doctor = add("doctor", "check this installation, and a cluster's settings")
    doctor.add_argument("--address", metavar="A", help="a cluster's dashboard: http://HEAD:8265")

    compare = add("compare", "compare runs: mean and standard deviation over seeds, paired differences")
    either = "run folders, or tables of sweeps"
    compare.add_argument("runs", nargs="+", metavar="RUN", help=f"{either}; the first group is the baseline")
    compare.add_argument("--plot", metavar="FILE", help="plot the main metric against rounds (.png)")
    compare.add_argument(
        "--report", metavar="FILE", help="write a page with paired differences, curves and each run (.html)"
    )
    compare.add_argument("--metric", metavar="NAME", help="metric to plot (default: the protocol's main metric)")

    report = add("report", "write one self-contained HTML page about runs")
    report.add_argument("runs", nargs="+", metavar="RUN", help=either)
    report.add_argument(
        "--output", metavar="FILE", help="output file (default: in the run folder, or next to the table)"
    )
    report.add_argument("--figures", metavar="DIR", help="write every curve as SVG, PDF and CSV into this folder")

    plan = add("plan", "recommend settings for your machines, links and topology, with estimated cost")
    plan.add_argument("protocol", metavar="PROTOCOL", help="protocol name; see fedactors list")
    plan.add_argument(
        "--profile",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="a party's machine and links, .toml or .json",
    )
    plan.add_argument(
        "--measure", action="store_true", help="measure each party's machine and links, one process per party"
    )
    plan.add_argument(
        "--aim",
        choices=("target", "epoch"),
        default="target",
        help="minimise the time to the target (default), or the time of an epoch",
    )
    plan.add_argument(
        "--data",
        metavar="NAME|FILE",
        help="rows that pilots train on: data set name, or description of your data (default: generated)",
    )
    plan.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the pilot runs (default 0)")
    plan.add_argument("--jobs", type=_count, default=1, metavar="N", help="parallel pilot runs (default 1)")
    plan.add_argument(
        "--time-limit",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="seconds after which all pilot runs stop (default 600)",
    )
    add_flags(plan, "runtime", "address", "placement")
    add_words(plan)

    inspect = add("inspect", "list every message that would leave a party, before anything runs")
    inspect.add_argument("protocol", metavar="PROTOCOL", help="protocol name; see fedactors list")
    add_words(inspect)

    predict = add("predict", "predict new rows with the trained model of a run")
    predict.add_argument("run", metavar="RUN", help="run folder with a checkpoint")
    predict.add_argument("--data", required=True, metavar="NAME|FILE", help="new rows; labels are not needed")
    predict.add_argument("--checkpoint", metavar="LABEL", help="checkpoint to use (default: best, else the newest)")
    predict.add_argument(
        "--output",
        default="predictions.parquet",
        metavar="FILE",
        help="output file of the party with the labels, .parquet or .csv (default: predictions.parquet). With "
        "--federation only a name: the file is predictions/RUN/NAME in that party's site folder",
    )
    predict.add_argument(
        "--federation",
        metavar="FILE",
        help="for a run between sites: your site's federation.toml; --data is then SITE=NAME,SITE=NAME",
    )
    where = ("runtime", "address", "placement", "checkpoint_dir", "checkpoint_key", "allow_import", "queue_timeout")
    add_flags(predict, *where)

    serve = add("serve", "serve predictions for single rows over HTTP")
    serve.add_argument(
        "run", metavar="RUN", help="run folder with a checkpoint; at a site the site's run folder, runs/*-ID-0"
    )
    serve.add_argument(
        "--rows",
        action="append",
        required=True,
        metavar="FILE|PARTY=FILE|NAME",
        help="rows to answer for, by id: a file, or with --folder a data name in site.toml; repeatable",
    )
    serve.add_argument("--id", metavar="COLUMN", help="id column, if training had none")
    serve.add_argument(
        "--listen",
        default="127.0.0.1:7450",
        metavar="HOST:PORT",
        help="address and port to listen on (default: 127.0.0.1:7450)",
    )
    serve.add_argument(
        "--token-file",
        default="serve.token",
        metavar="FILE",
        help="file for the new access token (default: serve.token)",
    )
    serve.add_argument("--log", metavar="FILE", help="write one JSON line per request, without ids")
    serve.add_argument("--checkpoint", metavar="LABEL", help="checkpoint to use (default: best, else the newest)")
    serve.add_argument("--folder", metavar="DIR", help="your site's folder, if the parties serve at their own sites")
    serve.add_argument(
        "--from",
        dest="remote",
        action="append",
        default=[],
        metavar="SITE=HOST:PORT",
        help="at the site with the labels: address of another party's server; repeatable",
    )
    serve.add_argument(
        "--for",
        dest="label_site",
        metavar="SITE",
        help="at another party: the site with the labels, the only one that may ask",
    )
    serve.add_argument(
        "--most-rows",
        type=_count,
        metavar="N",
        help="with --for: maximum number of rows to answer; repeated questions count again",
    )
    add_flags(serve, "checkpoint_dir", "checkpoint_key", "allow_import")

    export = add("export", "write each party's part of the trained model, for use without actors")
    export.add_argument("run", metavar="RUN", help="run folder with a checkpoint")
    export.add_argument("--party", metavar="P", help="party name (default: all)")
    export.add_argument("--checkpoint", metavar="LABEL", help="checkpoint to use (default: best, else the newest)")
    export.add_argument(
        "--output", metavar="DIR", help="output folder, with a folder per party (default: exported/ in the run folder)"
    )
    add_flags(export, "checkpoint_dir", "checkpoint_key", "allow_import")

    audit = add("audit", "verify a run's privacy accounting: recompute it, replay with one record changed, run attacks")
    audit.add_argument("run", metavar="RUN", help="run folder")
    audit.add_argument("--replay", action="store_true", help="replay each party with one record changed (simulated)")
    audit.add_argument(
        "--neighbours", type=int, default=10, metavar="N", help="number of records to replace, per kind (default: 10)"
    )
    audit.add_argument("--party", metavar="P", help="replay only this party")
    audit.add_argument("--attacks", action="store_true", help="run attacks on the trained model of the checkpoint")
    audit.add_argument(
        "--data", metavar="NAME|FILE", help="data to use (default: the run's data set; required for your own data)"
    )
    add_flags(audit, "allow_import")
    add_words(audit)

    new = add("new", "create a protocol package or a scenario script from a working template")
    new.add_argument("what", choices=("protocol", "scenario"), help="what to create")
    new.add_argument("name", metavar="NAME", help="lower-case name, for example secure-mean")
    new.add_argument("--protocol", metavar="P", help="protocol of a scenario (default: the first installed)")
    new.add_argument("--output", default=".", metavar="DIR", help="output folder (default: the current one)")

    data = add("data", "list or download data sets; check your own data before a run")
    data.add_argument("action", choices=("list", "fetch", "check"), help="what to do")
    data.add_argument(
        "name", nargs="?", metavar="NAME|FILE", help="data set to download, or description to check (.toml)"
    )
    data.add_argument("--party", metavar="P", help="check: only this party's files")

    for name in made.keys() - {"run", "submit"}:  # these have every option of a run
        add_flags(made[name], "format")
    completion = add("completion", "print a shell script that completes commands, settings and names")
    completion.add_argument("shell", choices=SHELLS, help="shell, for example: source <(fedactors completion bash)")
    return parser, made


def _add_key_flags(parser: Parser) -> None:
    kinds = ("ed25519", "p256")
    parser.add_argument("--key-type", choices=kinds, help="type of a new key: ed25519 (default) or p256 (ECDSA P-256)")
    parser.add_argument("--passphrase-file", metavar="FILE", help="file with the key's passphrase")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: a whole number of 1 or more")
    return int(text)
