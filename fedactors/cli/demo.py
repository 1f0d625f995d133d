"""``fedactors federation demo``: a bank, a shop and a carrier on one machine, each with its own process, key and data.

Every step is a command that a person could have typed, and is shown as one.
"""

from __future__ import annotations

import functools
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedactors.cli.terminal import print_json, print_metrics, print_table, say
from fedactors.errors import BadInput, CallTimeout, PartyFailed
from fedactors.federation.operations import agree, learned
from fedactors.plugins import discover
from fedactors.runs.progress import format_bytes
from fedactors.testing.runs import START_SECONDS, Sites, environment
from fedactors.validation import writing

BANK, SHOP, CARRIER, FEDERATION = "bank", "shop", "carrier", "credit-risk"
SITES = (BANK, SHOP, CARRIER)
NUM_CUSTOMERS = 600
_NETWORK = ("num_parties=3", "num_layers=2", "hidden_size=16", "embedding_size=8")
SETTINGS = ("num_epochs=4", "learning_rate=0.03", "batch_size=64", *_NETWORK)
"""Short, and long enough that the model is better than one on the bank's columns alone."""
_RUN_SECONDS = 110.0
_SITE = {
    BANK: """
[data.customers]
path = "customers.csv"
id = "customer"
label = "defaulted"
task = { type = "binary", alignment = "psi" }
""",
    SHOP: """
[data.orders]
path = "orders.csv"
id = "customer"
""",
    CARRIER: """
[data.calls]
path = "calls.csv"
id = "customer"
""",
}


def demo(folder: Path, form: str) -> int:
    """Make a federation of three sites in `folder`, train between them, and show what each learned.

    Raises:
        BadInput: the folder is there already.
        PartyFailed: a command failed; what it said is in the error.
    """
    if folder.exists():
        raise BadInput(f"FOLDER: {folder} exists already: give another one, or remove it")
    with writing("FOLDER", folder):
        folder.mkdir(parents=True)
    protocol = _protocol()
    quiet = form == "json"
    tell = _say_nothing if quiet else functools.partial(say, flush=True)
    # nobody's data: where a broker runs, if the protocol has one, is agreed before
    sites = Sites(folder, SITES, FEDERATION, {BANK: "broker"}, tell)
    for name in SITES:
        with (folder / name / "site.toml").open("a") as file:
            file.write(_SITE[name])
    _write_data(folder)
    try:
        begun = time.monotonic()
        sites.start()
        took = time.monotonic() - begun
        tell(f"all three listen after {took:.1f} s")
        found = _train(folder, sites, protocol, tell)
        parts = {name: _export(sites, name) for name in SITES}
    finally:
        sites.end()
    run = _ended(folder / SHOP)
    paths = {name: folder / name for name in SITES}
    crossed = {name: learned(path, run) for name, path in paths.items()}
    if quiet:
        told = {"run": run, "metrics": found["metrics"], "parts": parts, "logs_agree": agree(paths, run)}
        print_json({**told, "learned": crossed, "start_seconds": round(took, 1)})
        return 0
    say()
    print_metrics("model", found["metrics"])
    for name, entries in crossed.items():
        say(f"\nWhat {name} learned from outside, by its own signed log ({folder / name / 'audit.log'})\n")
        rows = [[e["from"], e["sender"], e["type"], str(e["messages"]), format_bytes(e["bytes"])] for e in entries]
        print_table(["site", "from", "message", "times", "size"], rows)
    word = "agree" if agree(paths, run) else "DO NOT AGREE"
    say(f"\nThe logs of all three sites {word} on what crossed between them.")
    return 0


def _say_nothing(text: str) -> None:
    """Take the place of `say` where only JSON is printed."""


def _protocol() -> str:
    """Return the protocol that joins columns of two organisations and is installed."""
    names = [found.name for found in discover() if found.protocol is not None and found.hidden_by is None]
    if "pubsub-vfl" not in names:
        raise BadInput("demo: pubsub-vfl is not installed")
    return "pubsub-vfl"


def _write_data(folder: Path) -> None:
    """Write customers of all, drawn at random: the bank knows income and age, the others what people buy and call."""
    rng = np.random.default_rng(19)
    income, age, orders, returns, calls, minutes = rng.normal(size=(6, NUM_CUSTOMERS))
    risk = -income - 0.5 * age + returns - 0.7 * orders + 0.6 * calls + rng.logistic(size=NUM_CUSTOMERS)
    people = np.array([f"c{number:05d}" for number in rng.permutation(NUM_CUSTOMERS * 2)[:NUM_CUSTOMERS]])

    def write(path: Path, *columns: tuple[str, Any]) -> None:
        known = rng.permutation(np.flatnonzero(rng.random(NUM_CUSTOMERS) < 0.9))
        lines = [",".join([people[i], *(f"{values[i]:.4g}" for _, values in columns)]) for i in known]
        path.write_text("\n".join([",".join(["customer", *(name for name, _ in columns)]), *lines, ""]))

    write(folder / BANK / "customers.csv", ("income", income), ("age", age), ("defaulted", (risk > 0).astype(int)))
    write(folder / SHOP / "orders.csv", ("orders", orders), ("returns", returns))
    write(folder / CARRIER / "calls.csv", ("calls", calls), ("minutes", minutes))


def _train(folder: Path, sites: Sites, protocol: str, tell: Callable[[str], None]) -> dict[str, Any]:
    """Start the run at the bank, answer at both sites, and return its summary."""
    data = f"{BANK}=customers,{SHOP}=orders,{CARRIER}=calls"
    flags = ("--federation", str(folder / BANK / "federation.toml"), "--data", data, "--out", str(folder / "runs"))
    words = ("run", protocol, *flags, *SETTINGS)
    tell(f"$ fedactors {shlex.join(words)} &")
    driver = subprocess.Popen(
        [sys.executable, "-m", "fedactors", *words, "--quiet", "--format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        for name in reversed(SITES):
            site = str(folder / name)
            run = _pending(folder / name, driver)
            if name == SHOP:
                sites.type("site", "show", run, "--folder", site)
            sites.type("site", "approve", run, "--folder", site)
        out, said = driver.communicate(timeout=_RUN_SECONDS)
    except subprocess.TimeoutExpired:
        raise CallTimeout("demo", f"the run did not end within {_RUN_SECONDS:g} s") from None
    finally:
        driver.kill()
        driver.wait()
    if driver.returncode:
        raise PartyFailed("demo", said.strip().splitlines()[-1])
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def _pending(site: Path, driver: subprocess.Popen[str]) -> str:
    """Return the run that waits for this site's answer, once there is one."""
    from fedactors.federation.approval import kept_proposals
    from fedactors.federation.site_folder import SiteFolder

    end = time.monotonic() + START_SECONDS
    folder = SiteFolder(site)
    while not (known := kept_proposals(folder)):
        if driver.poll() is not None:
            said = driver.stderr.read() if driver.stderr is not None else ""
            raise PartyFailed("demo", said.strip().splitlines()[-1])
        if time.monotonic() > end:
            raise CallTimeout(folder.name, "no run was proposed")
        time.sleep(0.1)
    return next(reversed(known))


def _export(sites: Sites, name: str) -> list[str]:
    """Export a site's own part of the model from its own records."""
    site = sites.home(name)
    (run,) = (site / "runs").iterdir()
    found = sites.type("export", str(run), "--output", str(site / "model"))
    return [path for paths in found["files"].values() for path in paths]


def _ended(site: Path) -> str:
    """Return the run that a site's log says has ended."""
    from fedactors.federation.audit_log import AUDIT, read

    return str(next(line["run"] for line in reversed(read(site / AUDIT)) if line["what"] == "ended"))
