"""Runs on a real cluster of three hosts, made of network namespaces, with token authentication on.

One cluster serves all tests of this file; the last one cuts a host off.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from fedactors.messages.ledger import DRIVER
from fedactors.runs.folder import RunFolder
from fedactors.runs.metrics import read_rounds
from fedactors.runs.recorder import read_ledger
from tests.data.alignment import test_nodes
from tests.openers import openers
from tests.runtime.hosts import Hosts, whether_possible
from tests.test_docs import ON_HEAD, blocks, name_of

WHY_NOT = whether_possible()
pytestmark = [
    pytest.mark.walk,
    pytest.mark.ray,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("three hosts"),
    pytest.mark.skipif(WHY_NOT is not None, reason=f"three hosts cannot be made here: {WHY_NOT}"),
    pytest.mark.drawn(2, family="cluster"),
]
FEDACTORS = ("python", "-m", "fedactors")
PARTIES = ("--placement", "active=site-a", "--placement", "passive=site-b")
PLACEMENT = (*PARTIES, "--placement", "broker=site-c")
SYNCHRONOUS = ("algorithm=vfl", "float64=true", "num_layers=3", "hidden_size=16", "on_party_loss=stop")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    # the first two are the hosts of the page about clusters as well
    labels = [{"site-a": 1, "bank": 1}, {"site-b": 1, "shop": 1}, {"site-c": 1}]
    made = Hosts(tmp_path_factory.mktemp("hosts"), labels)
    yield made
    made.stop()


def submit(hosts: Hosts, *words: str, code: int = 0) -> dict:
    command = ["submit", *words, "--address", hosts.dashboard, "--wait", "--quiet", "--format", "json"]
    done = hosts.call(0, *FEDACTORS, *command, check=False)
    assert done.returncode == code, done.stderr[-4000:]
    return {**json.loads(done.stdout.splitlines()[-1]), "log": done.stderr}


def simulated(hosts: Hosts, *words: str) -> dict:
    command = ["run", *words, "--runtime", "simulated", "--quiet", "--out", "local", "--format", "json"]
    return json.loads(hosts.call(0, *FEDACTORS, *command).stdout.splitlines()[-1])


def test_the_asynchronous_protocol_trains_across_hosts(hosts):
    words = ["pubsub-vfl", "--smoke", "num_epochs=6", *PLACEMENT, "--out", str(hosts.folder / "shared")]
    assert submit(hosts, *words)["result"]["metrics"]["test/auc"] > 0.6


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mtcd", ["num_clients=2", "num_tokens=1"]),
        ("tablepuppet", []),
        ("glasu", ["num_rounds=2"]),
        # all containers train in each round, so that nothing depends on who is first
        (
            "nebulafl",
            [
                "algorithm=fedavg",
                "num_rounds=2",
                "num_centers=3",
                "num_containers=9",
                "active_per_center=3",
                "duration=100000",
            ],
        ),
    ],
)
def test_protocols_give_the_numbers_of_the_simulation(hosts, name, settings):
    words = [name, "--smoke", *settings]
    emulated = ["--emulate", "0.001"] if name == "nebulafl" else []
    spread = ["--spread", "strict-spread" if name == "mtcd" else "spread"]
    found = submit(hosts, *words, *emulated, *spread, "--out", str(hosts.folder / "shared"))["result"]
    expected = simulated(hosts, *words)
    numbers = {key: value for key, value in expected["metrics"].items() if isinstance(value, float)}
    for timed in ("hours", "dollars"):
        numbers.pop(timed, None)
    assert {key: found["metrics"][key] for key in numbers} == pytest.approx(numbers, rel=1e-6)
    crossed, should_cross = traffic(Path(found["run"])), traffic(hosts.folder / expected["run"])
    if name == "nebulafl":
        # the driver has the model measured at instants of the clock until training is over, and on Ray training takes
        # as long as the machine takes: each measurement is one question and one model
        for question in (("auditor", "exchange", "model()"), ("exchange", "auditor", "SharedModel")):
            (measured, num_bytes), (should, expected_bytes) = crossed.pop(question), should_cross.pop(question)
            assert (measured, should) == (found["rounds"], expected["rounds"])
            assert num_bytes * should == expected_bytes * measured
    assert crossed == should_cross


def test_user_data_are_opened_where_their_party_is_placed_and_no_raw_file_is_sent(hosts, tmp_path):
    rng = np.random.default_rng(0)
    x, ids = rng.normal(size=(400, 4)), np.arange(400)
    label = (x.sum(1) > 0).astype(int)
    secret = tmp_path / "of-the-parties"
    secret.mkdir()
    np.savetxt(secret / "bank.csv", np.c_[ids, x[:, :2], label], delimiter=",", header="id,a,b,y", comments="")
    np.savetxt(secret / "shop.csv", np.c_[ids, x[:, 2:]], delimiter=",", header="id,c,d", comments="")
    lines = ['[task]\ntype = "binary"\nalignment = "hash"']
    lines += [f'[parties.{name}]\npath = "{secret}/{name}.csv"\nid = "id"' for name in ("shop", "bank")]
    (hosts.folder / "parties.toml").write_text("\n".join([*lines, 'label = "y"']))
    placement = ("--placement", "bank=site-a", "--placement", "shop=site-b")
    words = ["pubsub-vfl", "--smoke", "--data", "parties.toml", *placement, "--out", str(hosts.folder / "shared")]
    with openers([secret / "bank.csv", secret / "shop.csv"]) as found:
        result = submit(hosts, *words)["result"]
    assert result["rounds"] == 2
    # one process each: nobody read a file to send it
    bank, shop = found.values()
    assert len(bank) == len(shop) == 1
    assert bank != shop


def test_a_graph_whose_files_only_the_host_of_their_party_has(hosts, tmp_path):
    """Nobody else has them, not even who submits."""
    test_nodes.make(tmp_path)
    for index, names in enumerate((("bank", "transfers"), ("shop", "friends", "words"))):
        for name in names:
            shutil.copy(tmp_path / f"{name}.csv", hosts.local_of(index))
    described = test_nodes.TASK + test_nodes.PARTIES.format(f"{hosts.local}/")
    (hosts.folder / "graph.toml").write_text(described)
    words = ["glasu", "num_clients=2", "num_rounds=1", "hidden_size=4", "--data", "graph.toml"]
    words += ["--out", str(hosts.folder / "shared"), "--placement", "bank=site-a"]
    assert submit(hosts, *words, "--placement", "shop=site-b")["result"]["rounds"] == 1
    lost = submit(hosts, *words, "--placement", "shop=site-c", code=2)["log"]
    assert "shop.csv is not a file" in lost.splitlines()[-1]


def traffic(run: Path) -> dict[tuple[str, str, str], tuple[int, int]]:
    """Return (messages, bytes) of a run by sender, receiver and message, without what the driver said and heard."""
    found: dict[tuple[str, str, str], tuple[int, int]] = {}
    for row in read_ledger(RunFolder.open(run)).to_pylist():
        if row["kind"] != DRIVER:
            key = (row["sender"], row["receiver"], row["type"])
            count, total = found.get(key, (0, 0))
            found[key] = (count + 1, total + row["bytes"])
    return found


def test_data_centers_rotate_their_models_across_three_hosts(hosts):
    words = ["nebulafl", "--smoke", "num_centers=3", "--spread", "spread", "--emulate", "0.002"]
    found = submit(hosts, *words, "--out", str(hosts.folder / "shared"))["result"]
    assert found["metrics"]["test/accuracy"] > 0.1
    assert found["metrics"]["transfers"] >= 3


def test_a_submitted_run_gives_the_numbers_of_the_simulation_and_what_crossed_the_wire_is_in_the_ledger(hosts):
    # small models: checkpoints go to the driver, which is control and not in the ledger; the code was sent to all hosts
    # with the first job of this file
    sizes = ["num_epochs=4", "batch_size=358", "embedding_size=2048", "hidden_size=8", "optimizer=sgd"]
    words = ["pubsub-vfl", *(word for word in SYNCHRONOUS if not word.startswith("hidden_size")), *sizes]
    before = hosts.bytes_between(1)
    found = submit(hosts, *words, *PARTIES, "--out", str(hosts.folder / "shared"))["result"]
    crossed = hosts.bytes_between(1) - before
    assert found["bytes"] > 40e6
    assert 1.0 <= crossed / found["bytes"] <= 1.25  # what Ray says by itself grows with the time it takes
    expected = simulated(hosts, *words)
    assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-6)
    assert (found["bytes"], found["messages"]) == (expected["bytes"], expected["messages"])
    RunFolder.open(found["run"]).verify()


def test_a_scenario_of_several_files_is_sent_along_and_has_the_variables_that_it_needs(hosts):
    folder = hosts.folder / "sent"
    folder.mkdir()
    (folder / "settings.py").write_text(
        "import os\nfrom fedactors.config import config\n"
        "from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig\n\n\n"
        "@config\nclass Config(PubSubVflConfig):\n    num_epochs: int = int(os.environ.get('OWN_EPOCHS', 7))\n"
    )
    (folder / "needs.json").write_text('{"env_vars": {"OWN_EPOCHS": "2"}}')
    (folder / "own.py").write_text(
        "from fedactors.plugins import Headline\nfrom fedactors.scenario import main\n"
        "from fedactors.protocols.pubsub_vfl.data import load_data\n"
        "from fedactors.protocols.pubsub_vfl.run import run\n"
        "from settings import Config\n\nif __name__ == '__main__':\n"
        "    main(Config, run, data='breast-cancer', partition='vertical', headline=Headline(name='auc'),\n"
        "         load_data=load_data, smoke={'num_layers': 3, 'hidden_size': 8})\n"
    )
    command = ["submit", "own.py", "--smoke", "--quiet", "--wait", "--address", hosts.dashboard, "--format", "json"]
    command += ["--runtime-env", "needs.json"]
    done = hosts.call(0, "env", "-C", str(folder), *FEDACTORS, *command, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    made = json.loads(done.stdout.splitlines()[-1])
    assert made["result"]["rounds"] == 2
    # no folder is shared: the run folder was fetched, and is whole
    (run,) = (folder / "runs").iterdir()
    assert made["fetched"] == [f"runs/{run.name}"] == [made["result"]["run"]]
    RunFolder.open(run).verify()


def test_a_stopped_job_whose_folder_is_not_shared_is_fetched_and_goes_on_where_it_was(hosts):
    words = ["pubsub-vfl", *SYNCHRONOUS, "num_epochs=80", "batch_size=64", "epochs_per_round=1"]
    where = ["--address", hosts.dashboard, "--format", "json"]
    job = json.loads(hosts.call(0, *FEDACTORS, "submit", *words, *PARTIES, *where).stdout)["job"]
    early = hosts.call(0, *FEDACTORS, "fetch", job, "--address", hosts.dashboard, check=False)
    assert early.returncode == 2
    assert "goes on (" in early.stderr
    wait_for_log(hosts, job, "round 3/80")
    hosts.call(0, "ray", "job", "stop", "--address", hosts.dashboard, job)
    (run,) = json.loads(hosts.call(0, *FEDACTORS, "fetch", job, *where, "--out", "home").stdout)["fetched"]
    folder = RunFolder.open(hosts.folder / run)
    folder.verify()
    assert folder.manifest["status"] == "stopped"
    done = len(read_rounds(folder))
    assert 3 <= done < 80
    again = hosts.call(0, *FEDACTORS, "fetch", job, *where, "--out", "home", check=False)
    assert "is there already" in again.stderr
    # the folder is sent along, without its neighbours
    out = str(hosts.folder / "continued")
    resumed = submit(hosts, "pubsub-vfl", "--resume", run, *PARTIES, "--out", out)["result"]
    assert resumed["rounds"] == 80
    assert resumed["metrics"] == pytest.approx(simulated(hosts, *words)["metrics"], rel=1e-6)


def test_what_cannot_be_submitted_or_fetched_is_one_line(hosts):
    where = ["--address", hosts.dashboard]
    for words, text in [
        (["submit", "no-such.py", *where], "'no-such.py': no such script"),
        (["submit", "pubsub-vfll", *where], "unknown protocol 'pubsub-vfll'; did you mean pubsub-vfl?"),
        (["submit", "pubsub-vfl", "--working-dir", "nowhere", *where], "--working-dir: 'nowhere' is no folder"),
        (["submit", "pubsub-vfl", "--resume", "nowhere", *where], "nowhere: no such run folder"),
        (["submit", "pubsub-vfl", "--address", f"{hosts.net}.1:6379"], "jobs go to http://HEAD:8265"),
        (["submit", "pubsub-vfl", "--address", f"http://{hosts.net}.1:6378"], "nobody answers at"),
        (["fetch", "no-such-job", *where], "does not know 'no-such-job'"),
    ]:
        done = hosts.call(0, *FEDACTORS, *words, check=False)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert text in done.stderr


def test_a_label_that_no_host_has_is_named_with_what_there_is(hosts):
    found = submit(hosts, "pubsub-vfl", "--smoke", "--placement", "active=site-x", "--out", "/tmp/none", code=2)
    assert "active/worker-0 asks CPU=0.1, site-x=0.001, which no host has" in found["log"]
    assert "site-b=1" in found["log"]


def test_a_client_without_the_token_is_refused(hosts):
    (hosts.folder / "other").write_text("0" * 64)
    command = [*FEDACTORS, "submit", "pubsub-vfl", "--smoke", "--address", hosts.dashboard]
    done = hosts.call(0, *command, check=False, RAY_AUTH_TOKEN_PATH=str(hosts.folder / "other"))
    assert done.returncode == 2
    assert "refuses jobs" in done.stderr


def test_the_doctor_says_what_is_open(hosts):
    done = hosts.call(0, *FEDACTORS, "doctor", "--address", hosts.dashboard, "--format", "json")
    states = {finding["what"]: finding["state"] for finding in json.loads(done.stdout)["findings"]}
    assert states["token required"] == "ok"
    assert states["encryption of the dashboard"] == "open"
    assert states["token, on this machine"] == "ok"
    assert "embedded Ray" in states


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", ON_HEAD, ids=name_of)
def test_commands_of_a_page_on_the_head(hosts, page):
    script = "set -euo pipefail\n" + "\n".join(text for on_head, text in blocks(page) if on_head)
    folder = hosts.folder / "page"
    shim, here = folder / "bin" / "fedactors", folder / "here"
    shim.parent.mkdir(parents=True)
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m fedactors "$@"\n')
    shim.chmod(0o755)
    here.mkdir()
    where = {
        "DASHBOARD": hosts.dashboard,
        "SHARED": str(folder / "shared"),
        "PATH": f"{shim.parent}:{hosts.env['PATH']}",
    }
    done = hosts.call(0, "env", "-C", str(here), "bash", "-c", script, check=False, **where)
    assert done.returncode == 0, f"{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
    # a job in words says what a run says, and where its folder is here
    lines = done.stdout.splitlines()
    assert any(line.startswith("round 1/2 ") for line in lines)
    assert any(line.startswith("pubsub-vfl (seed 0, ray): ") for line in lines)
    assert not any("fedactors-job-" in line for line in lines if line.startswith("run: "))
    assert len(list((folder / "shared" / "runs").iterdir())) == 2
    assert len(list(here.glob("*/*/manifest.json"))) == 2
    last = json.loads((here / "submitted.json").read_text())["job"]  # which nobody waits for
    hosts.call(0, "ray", "job", "stop", "--address", hosts.dashboard, last)


def test_a_host_that_is_cut_off_ends_the_run_with_the_name_of_the_party(hosts):
    """Last: the host does not come back."""
    out, words = hosts.folder / "cut", ["pubsub-vfl", *SYNCHRONOUS, "num_epochs=100000", "batch_size=64"]
    command = ["submit", *words, *PARTIES, "--quiet", "--wait", "--out", str(out), "--address", hosts.dashboard]
    process = hosts.start(0, *FEDACTORS, *command)
    run = wait_for_rounds(out, 2)
    assert "fedactors_metric_validation_auc{" in wait_for_metrics(hosts, "fedactors_metric_validation_auc")
    hosts.cut(1)
    log = "".join(process.communicate(timeout=180))
    assert process.returncode == 3, log[-3000:]
    assert "passive/worker-0" in log
    assert RunFolder.open(run).manifest["status"] == "failed"
    assert RunFolder.open(run).manifest["checkpoints"]
    # the hosts that are left take the lost one's party over
    done, again = len(read_rounds(RunFolder.open(run))), hosts.folder / "again"
    there = ["--placement", "active=site-a,passive=site-a", "--out", str(again), "--address", hosts.dashboard]
    command = ["submit", "pubsub-vfl", "--resume", str(run), *there, "--quiet", "--format", "json"]
    job = json.loads(hosts.call(0, *FEDACTORS, *command).stdout)["job"]
    wait_for_rounds(again, done + 1)
    hosts.call(0, "ray", "job", "stop", "--address", hosts.dashboard, job)


def wait_for_rounds(out: Path, count: int) -> Path:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        for metrics in out.glob("*/metrics/round_metrics.jsonl"):
            if len(metrics.read_text().splitlines()) >= count:
                return metrics.parents[1]
        time.sleep(0.1)
    raise AssertionError(f"{out} did not get {count} rounds")


def wait_for_log(hosts: Hosts, job: str, text: str) -> None:
    """Follow the job's log until the text is in it, with one process: each start of Ray's command loads all of Ray."""
    command = ("ray", "job", "logs", "--follow", "--address", hosts.dashboard, job)
    following = hosts.start(0, "env", "PYTHONUNBUFFERED=1", *command)
    limit = threading.Timer(300, following.kill)
    limit.start()
    try:
        assert following.stdout is not None
        assert any(text in line for line in following.stdout), f"no {text!r} in the log of {job}"
    finally:
        limit.cancel()
        following.kill()
        following.communicate()


def wait_for_metrics(hosts: Hosts, name: str) -> str:
    """Return what the head offers for scraping, once it holds the run's gauges."""
    fetch = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).read().decode())"
    until = time.monotonic() + 60
    text = ""
    while time.monotonic() < until:
        text = hosts.call(0, "python", "-c", fetch, f"http://{hosts.net}.1:8090/metrics", check=False).stdout
        if name in text:
            return text
        time.sleep(1.0)
    raise AssertionError(f"no {name} in {text[-2000:]}")
