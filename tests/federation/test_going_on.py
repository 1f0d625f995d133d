"""What goes on from a run between sites: a run whose sites or driver were killed, and predictions with its model."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedactors.cli.main import main
from fedactors.data.new_rows import StoredState
from fedactors.errors import BadInput, FedactorsError, Refused
from fedactors.federation import site_run
from fedactors.federation.approval import as_tree, check_proposal, continue_run, kept_proposals
from fedactors.federation.site_folder import SITE
from fedactors.federation.site_run import SiteRun
from fedactors.launch import prepare_prediction, restore_config
from fedactors.messages.codec import encode
from fedactors.options import RunOptions
from fedactors.plugins import find_protocol
from fedactors.runs.folder import ROUND_METRICS, RunFolder
from fedactors.serving.predictions import Application
from tests.federation.hostile_sites import Rogue, in_mid_run
from tests.federation.test_runs import DATA, OTHERS, SMALL, VERTICAL, federated, last_line, simulated
from tests.federation.world import BANK, LIMITS, SHOP, WAIT_SECONDS, World

pytestmark = [pytest.mark.slow, pytest.mark.drawn(3, family="going on")]
MANY = ("num_epochs=6", *SMALL[1:])


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[World, Callable[[], subprocess.Popen[str]]]]:
    """A bank that listens here, and what starts the shop as a process of its own."""
    world, started = World(tmp_path), []
    world.start(BANK)

    def start() -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "fedactors", "site", "start", "--folder", str(world.path / SHOP)]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        made = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        started.append(made)
        assert made.stdout is not None
        assert "shop: listens at" in made.stdout.readline()
        return made

    yield world, start
    world.stop()
    for process in started:
        process.kill()
        process.wait(10)
        process.stdout.close()  # type: ignore[union-attr]


def runs(world: World) -> list[Path]:
    """The coordinator's run folders, in their order."""
    found = world.path / "runs"
    return sorted(path for path in found.iterdir() if "federated" in (path / "config.json").read_text())


def after_rounds(world: World, count: int, act: Callable[[], None]) -> threading.Thread:
    """Do something once the coordinator has recorded so many rounds of its next run and taken their checkpoints."""
    before = set((world.path / "runs").glob("*"))

    def wait() -> None:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            with contextlib.suppress(OSError, ValueError, IndexError, BadInput):
                folder = RunFolder.open([run for run in runs(world) if run not in before][-1])
                lines = (folder.path / ROUND_METRICS).read_text().count("\n")
                if lines >= count and folder.manifest["checkpoints"]:
                    act()
                    return
            time.sleep(0.01)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def resumed(world: World, run: Path, protocol: str = "pubsub-vfl") -> int:
    file = str(world.path / BANK / "federation.toml")
    answering = world.answer()
    flags = ("--federation", file, "--resume", str(run), "--out", str(world.path / "runs"))
    code = main(["run", protocol, *flags, "--format", "json", "--quiet"])
    answering.join(30)
    return code


def rounds_of(run: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(run) / ROUND_METRICS).read_text().splitlines()]


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Metrics, each round's too, and traffic are those of a run that nobody cut."""
    assert found["metrics"] == pytest.approx(expected["metrics"], abs=1e-6)
    assert (found["bytes"], found["messages"]) == (expected["bytes"], expected["messages"])
    for one, other in zip(rounds_of(found["run"]), rounds_of(expected["run"]), strict=True):
        assert one == pytest.approx(other, abs=1e-6)


def test_a_site_that_was_killed_goes_on_exactly(
    site: tuple[World, Callable[[], subprocess.Popen[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    world, start = site
    words = (*MANY, "algorithm=vfl")
    assert simulated(world, words) == 0
    expected = last_line(capsys)
    process = start()
    killing = after_rounds(world, 2, lambda: process.send_signal(signal.SIGKILL))
    assert federated(world, words, "--share-seed", "--seed", "7") == 3
    killing.join(120)
    told = capsys.readouterr().err
    assert "its site shop was lost" in told
    cut = runs(world)[-1]
    assert f"--resume {cut}" in told
    assert 2 <= len(rounds_of(cut)) < 6
    start()
    earlier = RunFolder.open(cut).config["federation"]["run"]
    for name, data, file in ((SHOP, "orders", "orders.csv"), (BANK, "customers", "customers.csv")):
        path, heard = world.path / name / file, len(world.output[BANK])
        rows = path.read_text()
        path.write_text(re.sub(r"\nc7,(-?)", r"\nc7,\g<1>1", rows))  # one cell
        assert path.read_text() != rows
        assert resumed(world, cut) == 2
        (line,) = [text for text in capsys.readouterr().err.splitlines() if text.startswith("fedactors: ")]
        assert f"{name}: data.{data}: the rows are others, or read otherwise, than when run {earlier} began" in line
        assert str(path) not in line
        # and the coordinator's own site knows why the driver went
        end = time.monotonic() + 30
        while not any("the driver at" in one for one in world.output[BANK][heard:]) and time.monotonic() < end:
            time.sleep(0.05)
        (said,) = [one for one in world.output[BANK][heard:] if "the driver at bank ended it: " in one]
        assert f"{name}: data.{data}: the rows are others, or read otherwise, than when run {earlier} began" in said
        assert main(["site", "runs", "--folder", str(world.path / BANK), "--format", "json"]) == 0
        assert said.endswith(last_line(capsys)["runs"][-1]["status"].removeprefix("failed: "))
        path.write_text(rows)
    assert any("customers.csv: the file is another" in said for said in world.output[BANK])
    kept = site_run.find(world.folder(BANK), earlier, None).folder
    facts = kept.environment
    kept.write_json("environment.json", {**facts, "packages": {**facts["packages"], "fedactors": "0.0.9"}})
    kept.write_manifest()
    assert resumed(world, cut) != 0
    told = "its checkpoints are of fedactors 0.0.9, this is"
    end = time.monotonic() + 30
    while not any(told in one for one in world.output[BANK]) and time.monotonic() < end:
        time.sleep(0.05)
    assert any(told in one for one in world.output[BANK]), world.output[BANK][-5:]
    capsys.readouterr()
    kept.write_json("environment.json", facts)
    kept.write_manifest()
    assert resumed(world, cut) == 0, capsys.readouterr().err
    same(last_line(capsys), expected)
    # and each site's own records read as if nobody had cut them
    (parent, *_, child) = sorted((world.path / SHOP / "runs").iterdir(), key=lambda path: path.stat().st_ctime)
    assert RunFolder.open(child).manifest["parent"] == parent.name


def test_a_run_goes_on_by_itself_when_a_site_that_was_killed_is_back(
    site: tuple[World, Callable[[], subprocess.Popen[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    """The site is killed in mid-run and started again within the time that the coordinator waits for it."""
    world, start = site
    file = world.path / BANK / SITE
    file.write_text(file.read_text().replace(f"wait_seconds = {WAIT_SECONDS}", "wait_seconds = 100.0"))
    words = (*MANY, "algorithm=vfl")
    assert simulated(world, words) == 0
    expected = last_line(capsys)
    process = start()
    answering: list[threading.Thread] = []

    def kill() -> None:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        answering.append(world.answer())  # both are asked again
        start()

    killing = after_rounds(world, 2, kill)
    code = federated(world, words, "--share-seed", "--seed", "7", "--auto-resume")
    assert code == 0, capsys.readouterr().err
    killing.join(120)
    answering[0].join(30)
    same(last_line(capsys), expected)
    first, second = runs(world)
    assert RunFolder.open(second).manifest["parent"] == first.name
    assert [one["status"] for one in world.audit(BANK) if one["what"] == "ended" and one["who"] == "site"] == [
        "failed",
        "finished",
    ]


def test_a_run_that_would_go_on_by_itself_ends_where_the_site_is_not_back(
    site: tuple[World, Callable[[], subprocess.Popen[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    world, start = site
    process = start()
    killing = after_rounds(world, 2, lambda: process.send_signal(signal.SIGKILL))
    assert federated(world, (*MANY, "algorithm=vfl"), "--auto-resume") == 3
    killing.join(120)
    (line,) = [text for text in capsys.readouterr().err.splitlines() if text.startswith("fedactors: ")]
    assert "shop: its site does not answer at" in line


def test_a_coordinator_that_was_killed_goes_on_exactly(
    site: tuple[World, Callable[[], subprocess.Popen[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    world, _ = site
    for name in (BANK, SHOP):
        if name in world.processes:
            world.end(name)
        world.start(name, replace(LIMITS, away=600.0))
    words = (*MANY, "algorithm=pubsub-vfl", "max_in_flight=1")
    assert simulated(world, words) == 0
    expected = last_line(capsys)
    flags = ("--federation", str(world.path / BANK / "federation.toml"), "--data", f"{BANK}=customers,{SHOP}=orders")
    told = ("--out", str(world.path / "runs"), "--quiet", "--share-seed", "--seed", "7")
    answering = world.answer(seconds=60)
    driver = subprocess.Popen(
        [sys.executable, "-m", "fedactors", "run", "pubsub-vfl", *flags, *told, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        killing = after_rounds(world, 3, lambda: driver.send_signal(signal.SIGKILL))
        assert driver.wait(120) == -signal.SIGKILL
        killing.join(10)
        answering.join(60)
    finally:
        driver.kill()
        driver.wait(10)
    # no site waits any longer for the driver that is gone, once its site proposes anew
    assert resumed(world, runs(world)[-1]) == 0, capsys.readouterr().err
    statuses = [line["status"] for line in world.audit(SHOP) if line["what"] == "ended" and line["who"] == "site"]
    assert statuses == ["failed", "finished"]
    found = last_line(capsys)
    assert found["metrics"] == pytest.approx(expected["metrics"], abs=1e-6)
    for one, other in zip(rounds_of(found["run"]), rounds_of(expected["run"]), strict=True):
        assert one["training/loss"] == pytest.approx(other["training/loss"], abs=1e-6)


# --- a run that ended -----------------------------------------------------------------------------------------------

NEW_ROWS = 30


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Path, Path]]:
    """Two sites with new rows after a run; the coordinator's folder of it, and that of the simulated one."""
    world = World(tmp_path_factory.mktemp("ended"))
    rng = np.random.default_rng(6)
    values = rng.normal(size=(NEW_ROWS, 4))
    for name, file, columns, header in (
        (BANK, "arrivals", values[:, :2], "id,income,age"),
        (SHOP, "baskets", values[:, 2:], "id,orders,returns"),
    ):
        rows = [f"n{i},{one[0]:.4f},{one[1]:.4f}" for i, one in enumerate(columns)]
        (world.path / name / f"{file}.csv").write_text("\n".join([header, *rows, ""]))
        with (world.path / name / SITE).open("a") as text:
            text.write(f'\n[data.{file}]\npath = "{file}.csv"\nid = "id"\n')
    world.start(BANK)
    world.start(SHOP)
    assert federated(world, (*SMALL, "algorithm=vfl"), "--share-seed", "--seed", "7") == 0, world.output
    assert simulated(world, (*SMALL, "algorithm=vfl")) == 0
    (done,) = runs(world)
    (other,) = (path for path in (world.path / "runs").iterdir() if path != done)
    yield world, done, other
    world.stop()


def predicted(world: World, run: Path, *words: str, approved: bool = True) -> int:
    answering = world.answer(approved)
    flags = ("--federation", str(world.path / BANK / "federation.toml"), "--output", "said.csv", "--format", "json")
    code = main(["predict", str(run), *flags, *words])
    answering.join(30)
    return code


def test_new_rows_are_predicted_where_the_parts_of_the_model_are(
    ended: tuple[World, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    world, run, other = ended
    capsys.readouterr()
    assert predicted(world, run, "--data", f"{BANK}=arrivals,{SHOP}=baskets") == 0, capsys.readouterr().err
    out, err = capsys.readouterr()
    told = json.loads(out.splitlines()[-1])
    asked_run = next(reversed(kept_proposals(world.folder(SHOP))))
    assert f"waits for bank, shop; at each, fedactors site show {asked_run}, then site approve" in err.splitlines()
    (entry,) = told["predictions"]
    assert (entry["party"], entry["rows"], entry["predicted"]) == (BANK, NEW_ROWS, NEW_ROWS)
    found = list(csv.DictReader((world.path / BANK / entry["to"]).read_text().splitlines()))
    assert not (world.path / SHOP / "predictions").exists()  # they are the bank's
    parties = world.path / "new.toml"
    sides = ((BANK, "arrivals"), (SHOP, "baskets"))
    sections = [f'[parties.{name}]\npath = "{world.path / name / file}.csv"\nid = "id"' for name, file in sides]
    task = '[task]\ntype = "binary"\nalignment = "already-aligned"'
    sections[0] += '\nlabel = "bad"'  # which says whose the predictions are
    parties.write_text("\n".join([task, *sections]))
    local = world.path / "local.csv"
    assert main(["predict", str(other), "--data", str(parties), "--output", str(local), "--runtime", "simulated"]) == 0
    expected = list(csv.DictReader(local.read_text().splitlines()))
    assert [line["id"] for line in found] == [line["id"] for line in expected]
    for one, same in zip(found, expected, strict=True):
        assert float(one["probability_1"]) == pytest.approx(float(same["probability_1"]), abs=1e-6)
    # each site was asked, and has what crossed on its log
    asked = [line for line in world.audit(SHOP) if line["what"] in ("proposed", "approved", "ended")][-3:]
    assert [line["what"] for line in asked] == ["proposed", "approved", "ended"]
    assert {entry["type"] for entry in asked[-1]["left"]} >= {"Contribution"}


def test_who_says_no_predicts_nothing(ended: tuple[World, Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    world, run, _ = ended
    words = ("--data", f"{BANK}=arrivals,{SHOP}=baskets")
    assert predicted(world, run, *words, approved=False) == 3
    assert "rejected the run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--data", "bank=arrivals"), "give names of bank, shop"),
        (("--data", "bank=nothing,shop=baskets"), "bank: has no data named 'nothing' (its data: accounts, arrivals"),
        (
            ("--data", "bank=arrivals,shop=baskets", "--output", "../x.csv"),
            ("a name, for the folder of the party that owns them"),
        ),
        (("--data", "bank=arrivals,shop=baskets", "--runtime", "simulated"), "--runtime: is not allowed"),
    ],
)
def test_what_is_wrong_with_a_prediction_is_one_line(
    ended: tuple[World, Path, Path], capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    world, run, _ = ended
    flags = ("--federation", str(world.path / BANK / "federation.toml"))
    capsys.readouterr()
    assert main(["predict", str(run), *flags, "--output", "said.csv", *words]) == 2
    assert said in capsys.readouterr().err
    assert main(["predict", str(run), "--data", "bank=arrivals,shop=baskets"]) == 2
    assert "the run was over a federation: give --federation" in capsys.readouterr().err
    assert main(["export", str(run)]) == 2
    known = RunFolder.open(run).config["federation"]["run"]
    said = capsys.readouterr().err
    assert "the parts of the model are at the sites: each exports its own, in its site's folder" in said
    assert f"fedactors export runs/*-{known}-0" in said
    (local,) = (world.path / SHOP / "runs").glob(f"*-{known}-0")  # which is what a site finds by that
    assert main(["audit", str(run)]) == 2
    assert f"fedactors audit runs/*-{known}-0, and fedactors site audit {known}" in capsys.readouterr().err
    assert main(["audit", str(local)]) == 0
    assert main(["predict", str(local), *flags, "--data", "bank=arrivals,shop=baskets"]) == 2
    whose = "these are the records of the site shop alone: resume and predict from the run folder of its"
    assert f"{whose} coordinator, bank" in capsys.readouterr().err
    resume = ("run", "pubsub-vfl", *flags, "--resume", str(local), "--quiet")
    assert main(list(resume)) == 2
    assert f"{whose} coordinator, bank" in capsys.readouterr().err
    for command in ("report", "compare"):
        assert main([command, str(local)]) == 2
        assert (
            "of the site shop alone; the result is in the run folder of its coordinator, bank"
            in capsys.readouterr().err
        )


def test_who_asks_for_data_by_a_wrong_name_learns_no_other_names(
    ended: tuple[World, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    world, run, _ = ended
    before = len(world.refusals(SHOP))
    answering = world.answer(names=(BANK,))
    flags = ("--federation", str(world.path / BANK / "federation.toml"), "--output", "said.csv")
    assert main(["predict", str(run), *flags, "--data", "bank=arrivals,shop=basket"]) == 3
    answering.join(30)
    said = capsys.readouterr().err
    assert "shop: has no data named 'basket'" in said
    for name in ("baskets", "orders", "buyers", "sales", "cases"):
        assert f"{name}" not in said.replace("'basket'", "")
        assert name in world.refusals(SHOP)[before]


def test_what_goes_on_from_a_run_is_of_the_same_approval(ended: tuple[World, Path, Path]) -> None:
    world, run, _ = ended
    folder = world.folder(SHOP)
    number = RunFolder.open(run).load_checkpoint("final")
    earlier = RunFolder.open(run).config["federation"]["run"]
    made = continue_run(world.folder(BANK), earlier, 1, "resume")
    check_proposal(made, folder)
    assert number.actors.keys() >= {"bank/worker-0", "shop/worker-0"}
    wrong = {
        "coordinator": replace(made, coordinator=SHOP),
        "config": replace(made, config={**made.config, "num_epochs": 3}),
        "data": replace(made, data={BANK: "customers", SHOP: "baskets"}),
        "shared_seed": replace(made, shared_seed=8),
    }
    for name, one in wrong.items():
        with pytest.raises(BadInput, match=rf"shop: {name}: a run that goes on from {earlier} cannot have another one"):
            check_proposal(one, folder)
    with pytest.raises(BadInput, match="was never approved here"):
        check_proposal(replace(made, earlier="0" * 16), folder)
    rejected = [one for one in kept_proposals(folder).values() if one.purpose == "predict"]
    assert {one.earlier for one in rejected} <= {earlier}


def test_a_site_gives_its_states_to_its_own_actors_only(ended: tuple[World, Path, Path]) -> None:
    from fedactors.federation.site_run import built_with

    world, run, _ = ended
    checkpoint = RunFolder.open(run).load_checkpoint("final")
    proposal = continue_run(
        world.folder(BANK), RunFolder.open(run).config["federation"]["run"], _number(run), "predict",
        "bank=arrivals,shop=baskets",
    )  # fmt: skip
    shop = world.folder(SHOP)
    _, config = check_proposal(proposal, shop)
    kept = site_run.find(shop, proposal.earlier, proposal.number)
    digest = checkpoint.actors["shop/worker-0"]

    def spawned(state: StoredState) -> Any:
        frame = encode(((state,), {}), arguments=True)
        return built_with(SHOP, frame, shop, proposal, config, kept, 0)[0][0]

    local = spawned(StoredState(actor="shop/worker-0", frame=digest))
    assert local.frame == kept.states["shop/worker-0"]
    for wrong in (
        StoredState(actor="bank/worker-0", frame=checkpoint.actors["bank/worker-0"]),
        StoredState(actor="shop/worker-0", frame=b"\0" * 32),
        StoredState(actor="shop/worker-0", frame=digest, where="/etc/passwd"),
    ):
        with pytest.raises(Refused, match=r"shop with a state of 'bank/worker-0' that|'shop/worker-0' that shop"):
            spawned(wrong)
    with pytest.raises(BadInput, match=r"shop: has no checkpoint 99 of run"):
        site_run.find(shop, proposal.earlier, 99)


def test_a_coordinator_that_asks_for_anothers_checkpoint_is_refused(ended: tuple[World, Path, Path]) -> None:
    """It has been approved for a prediction, and spawns an actor with states of whom it likes."""
    world, run, _ = ended
    actors = RunFolder.open(run).load_checkpoint("final").actors
    local, anothers = (StoredState(actor=name, frame=actors[name]) for name in ("shop/worker-0", "bank/worker-0"))
    asked = {
        "another's": anothers,
        "another's, by the own name": replace(local, frame=anothers.frame),
        "no such state": replace(local, frame=b"\0" * 32),
        "a place": replace(local, where="/etc/passwd"),
    }
    for what, state in asked.items():
        rogue, before = Rogue(world), len(world.refusals(SHOP))
        earlier = RunFolder.open(run).config["federation"]["run"]
        names = f"{BANK}=arrivals,{SHOP}=baskets"
        rogue.proposal = continue_run(rogue.folder, earlier, _number(run), "predict", names)
        answering = world.answer(names=(SHOP,))
        actor_spec = ("shop", "PredictingPassive", encode(((state,), {}), arguments=True))
        with pytest.raises(Refused, match=r"spawns shop with a state of '.*' that shop"):
            rogue.say(("propose", (as_tree(rogue.proposal),)), ("prepare", ((actor_spec,),)))
        answering.join(30)
        assert "spawns shop with a state of" in world.refusals(SHOP)[before], what
    rogue = Rogue(world)
    rogue.proposal = replace(continue_run(rogue.folder, earlier, _number(run), "predict", names), number=99)
    answering = world.answer(names=(SHOP,))
    with pytest.raises(FedactorsError, match=r"shop: BadInput|has no checkpoint 99"):
        rogue.say(("propose", (as_tree(rogue.proposal),)), ("prepare", ((actor_spec,),)))
    answering.join(30)


def _number(run: Path) -> int:
    from fedactors.federation.runtime import checkpoint_number

    return checkpoint_number(RunFolder.open(run).load_checkpoint("final").driver)


def test_a_site_that_was_not_told_counts_on_what_all_have_written(ended: tuple[World, Path, Path]) -> None:
    world, run, _ = ended
    shop, earlier, number = world.folder(SHOP), RunFolder.open(run).config["federation"]["run"], _number(run)
    folder = site_run.find(shop, earlier, number).folder
    folder.relabel_checkpoint("final", "final.pending")  # the coordinator was killed before it told
    found = site_run.find(shop, earlier, number)
    assert "final" in [entry["label"] for entry in found.folder.manifest["checkpoints"]]
    assert set(found.states) == {"shop/worker-0"}


@pytest.mark.parametrize("what", ["mtcd", "glasu", "horizontal", "fedbn", "rfl-admm"])
def test_other_protocols_predict_what_the_simulated_run_predicts(
    ended: tuple[World, Path, Path], capsys: pytest.CaptureFixture[str], what: str
) -> None:
    world, _, _ = ended
    protocol, words = OTHERS[what]
    assert federated(world, words, "--share-seed", "--seed", "7", protocol=protocol) == 0, capsys.readouterr().err
    run = Path(last_line(capsys)["run"])
    assert simulated(world, words, protocol) == 0
    other = last_line(capsys)["run"]
    assert predicted(world, run, "--data", DATA.get(protocol, VERTICAL)) == 0, capsys.readouterr().err
    found = last_line(capsys)["predictions"]
    local = world.path / f"{what}.csv"
    data = ("--data", str(world.path / f"{protocol}.toml"), "--output", str(local), "--runtime", "simulated")
    assert main(["predict", other, *data, "--format", "json"]) == 0
    expected = last_line(capsys)["predictions"]
    assert [entry["party"] for entry in found] == [entry["party"] for entry in expected]
    for entry, same_one in zip(found, expected, strict=True):
        assert {**entry, "to": ""} == {**same_one, "to": "", "unpredicted": 0}, "classes without a row are not told"
        one = list(csv.DictReader((world.path / entry["party"] / entry["to"]).read_text().splitlines()))
        two = list(csv.DictReader(Path(same_one["to"]).read_text().splitlines()))
        for line, other_line in zip(one, two, strict=True):
            assert line.keys() == other_line.keys()
            for key, value in line.items():
                if key.startswith("probability") and value:
                    assert float(value) == pytest.approx(float(other_line[key]), abs=1e-6)
                else:
                    assert value == other_line[key]


def test_a_coordinator_names_files_and_checkpoints_and_no_places(ended: tuple[World, Path, Path]) -> None:
    world, run, _ = ended
    folder = RunFolder.open(run)
    checkpoint, protocol = folder.load_checkpoint("final"), find_protocol("pubsub-vfl")
    config = restore_config(protocol, folder, ())
    options = RunOptions(federation=str(world.path / BANK / "federation.toml"), data=f"{BANK}=arrivals,{SHOP}=baskets")
    prepared = prepare_prediction(protocol, config, folder, checkpoint.driver, options, 7)
    runtime, predict = prepared.make(None), protocol.predict
    assert predict is not None
    found = {name: StoredState(actor=name, frame=digest) for name, digest in checkpoint.actors.items()}
    asked = Application(stored=found, to="../../../stolen.csv")
    answering = world.answer()
    with pytest.raises(Refused, match=r"asks for a file '\.\./\.\./\.\./stolen\.csv': a name is allowed, no path"):
        runtime.execute(lambda: predict(config, prepared.data, runtime, asked))
    answering.join(30)
    assert not list(world.path.rglob("stolen.csv"))
    assert "a name is allowed, no path" in world.refusals(BANK)[-1]

    def ask(one: SiteRun) -> None:
        for label in ("../x", "a/b", "", "last.pending", "X"):
            with pytest.raises(Refused, match="asks for a checkpoint called"):
                one._snapshot(label, 1).send(None)
        with pytest.raises(Refused, match="counts on a checkpoint 'other' that was not just written"):
            one.control("commit", ("other",)).send(None)
        asked_for.append(one.proposal.run)

    asked_for: list[str] = []
    asking = in_mid_run(world, SHOP, ask)
    assert federated(world, SMALL) == 0, world.output
    asking.join(30)
    assert asked_for
