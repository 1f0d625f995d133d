"""Sites that come and go in a horizontal run with a quorum: the run goes on, and who was lost returns by itself."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedactors.cli.main import main
from fedactors.config import as_dict, build
from fedactors.errors import BadInput, Refused
from fedactors.federation.approval import check_proposal, kept_proposals, make_proposal
from fedactors.federation.audit_log import Journal
from fedactors.federation.hosting import SiteContext
from fedactors.federation.operations import compare
from fedactors.federation.site_folder import SITE, as_logged, taken_by
from fedactors.plugins import find_protocol
from fedactors.protocols.horizontal import client_dp
from fedactors.protocols.horizontal.config import HorizontalConfig
from fedactors.runs.folder import ROUND_METRICS
from tests.campaign.sites import Sites, until
from tests.federation.test_going_on import after_rounds, rounds_of
from tests.federation.test_runs import OF_THREE, command, federated, last_line
from tests.federation.world import BANK, CLINIC, DATA, SHOP, World

pytestmark = [pytest.mark.slow, pytest.mark.drawn(3, family="quorum")]
THREE = (BANK, SHOP, CLINIC)
QUORUM = ("hidden_size=4", "min_sites=2", "client_timeout=20", "quorum_timeout=60")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from World.running(tmp_path, THREE)


def away(rounds: list[dict[str, Any]], name: str) -> list[int]:
    return [one["round"] for one in rounds if f"{name}/away" in one]


def restarted(world: World, name: str) -> Callable[[], None]:
    def act() -> None:
        world.end(name)
        world.start(name)

    return act


def test_a_site_that_is_restarted_misses_some_rounds_and_takes_part_again(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    acting = after_rounds(world, 3, restarted(world, CLINIC))
    assert federated(world, ("num_rounds=120", *QUORUM), protocol="horizontal") == 0, capsys.readouterr().err
    acting.join(60)
    found = last_line(capsys)
    rounds = rounds_of(found["run"])
    assert len(rounds) == 120
    assert rounds[-1]["sites"] == 3
    missed = away(rounds, CLINIC)
    assert missed
    assert all(one["sites"] == (2 if one["round"] in missed else 3) for one in rounds)


def hospitals(folder: Path, count: int) -> tuple[World, str]:
    """So many sites with rows of the same columns, and what ``--data`` names of them."""
    more = [f"h{number}" for number in range(count - 2)]
    DATA.update(dict.fromkeys(more, DATA[CLINIC]))
    made = World(folder, (BANK, SHOP, *more))
    rows = (folder / SHOP / "patients.csv").read_text()
    for name in more:
        (folder / name / "patients.csv").write_text(rows)
    return made, f"{BANK}=patients,{SHOP}=cases,{','.join(f'{name}=cured' for name in more)}"


NOISED = (
    "secure_aggregation=true", "client_clip_norm=1.0", "client_noise_multiplier=4.0", "weighting=uniform",
    "standardisation=none", "model=linear",
)  # fmt: skip


def test_under_masks_and_a_budget_each_pays_for_the_rounds_that_it_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world, data = hospitals(tmp_path, 5)
    world.give_budgets(200.0)
    for name in world.names:
        world.start(name)
    budgets = [word for name in world.names for word in ("--budget", f"{name}=100:1e-5")]
    words = ("num_rounds=60", "min_sites=4", "client_timeout=20", "quorum_timeout=60", *NOISED)
    flags = ["--federation", str(tmp_path / BANK / "federation.toml"), "--data", data, "--out", str(tmp_path / "runs")]
    try:
        acting = after_rounds(world, 3, restarted(world, "h0"))
        again = after_rounds(world, 20, restarted(world, "h1"))
        answering = world.answer()
        code = main(["run", "horizontal", *flags, *budgets, "--format", "json", "--quiet", *words])
        for thread in (answering, acting, again):
            thread.join(60)
        assert code == 0, capsys.readouterr().err
        found = last_line(capsys)
        rounds = rounds_of(found["run"])
        assert rounds[-1]["sites"] == 5
        config = build(HorizontalConfig, dict(word.split("=") for word in ("num_rounds=60", *NOISED)))
        for name in world.names:
            answered = 60 - len(away(rounds, name))
            # of a round in which it was lost its answer may have left
            allowed = [charged(config, name, answered + late) for late in range(2)]
            assert ended(world, name)[-1]["taken"] in allowed, (name, answered)
        assert [one["status"] for one in ended(world, "h0")][-1] == "finished"
        seen = world.audit("h2")
        assert {line["site"] for line in seen if line["what"] == "returned"} == {"h0", "h1"}
        without_end = [line for line in world.audit("h0") if line["what"] != "ended"]
        assert [one.verdict for one in compare("h2", seen, "h0", without_end)] == ["differ"], "it was there at the end"
    finally:
        world.stop()


def test_rounds_beyond_a_budget_are_refused_before_anything_is_taken_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world, data = hospitals(tmp_path, 3)
    world.give_budgets(20.0)
    for name in world.names:
        world.start(name)

    def train(num_rounds: int, epsilon: float) -> int:
        budgets = [word for name in world.names for word in ("--budget", f"{name}={epsilon}:1e-5")]
        answering = world.answer()
        file, out = str(tmp_path / BANK / "federation.toml"), str(tmp_path / "runs")
        flags = ["--federation", file, "--data", data, "--out", out, *budgets, "--format", "json", "--quiet"]
        code = main(["run", "horizontal", *flags, f"num_rounds={num_rounds}", *NOISED])
        answering.join(60)
        return code

    try:
        assert train(60, 15) == 3
        told = capsys.readouterr().err
        assert "the run would take epsilon 23.3463 at delta 1e-05 by its approved settings of the budget of" in told
        assert "had announced epsilon 15 at delta 1e-05: announce more (--budget" in told
        for name in world.names:
            assert until(partial(has_ended, world, name, 1))
            assert ended(world, name)[-1]["taken"] == {}
        assert train(5, 5) == 0, capsys.readouterr().err
        capsys.readouterr()
        config = build(HorizontalConfig, dict(word.split("=") for word in ("num_rounds=5", *NOISED)))
        for name in world.names:
            taken = charged(config, name, 5)
            assert until(partial(has_ended, world, name, 2))
            assert ended(world, name)[-1]["taken"] == taken
            assert main(["audit", *map(str, sorted((tmp_path / name / "runs").iterdir())[-1:])]) == 0
            assert f"{taken['client'][0]:.4g}"[:4] in capsys.readouterr().out
        assert train(40, 18) in (2, 3)
        assert "epsilon 18 at delta 1e-05 is not allowed: " in capsys.readouterr().err
    finally:
        world.stop()


def has_ended(world: World, name: str, times: int) -> bool:
    return len(ended(world, name)) == times


def charged(config: HorizontalConfig, name: str, num_rounds: int) -> dict[str, list[float | None]]:
    """What so many rounds take of a site's budget."""
    made = client_dp.record(config, name, num_rounds, is_restored=False, is_server=False)
    return as_logged(taken_by(name, [made]))


def ended(world: World, name: str) -> list[dict[str, Any]]:
    return [line for line in world.audit(name) if line["what"] == "ended" and line["who"] == "site"]


def test_a_person_takes_their_site_out_and_the_run_goes_on(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    def stop() -> None:
        run = world.run(SHOP)
        assert run is not None
        words = ("site", "stop", run.proposal.run, "--folder", str(world.path / SHOP), "--why", "a holiday")
        assert main(words) == 0

    acting = after_rounds(world, 2, stop)
    assert federated(world, ("num_rounds=100", *QUORUM), protocol="horizontal") == 0, capsys.readouterr().err
    acting.join(60)
    found = last_line(capsys)
    rounds = rounds_of(found["run"])
    assert away(rounds, SHOP)[-1] == 100
    assert {one["sites"] for one in rounds} == {2, 3}
    assert [one["status"] for one in ended(world, SHOP)] == ["stopped"]
    assert any("shop: left the run: a holiday" in line for line in world.refusals(SHOP))
    assert f"{SHOP} had no part in" in str(found)


def test_without_a_quorum_a_lost_site_ends_the_run_as_before(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    acting = after_rounds(world, 2, restarted(world, SHOP))
    assert federated(world, ("num_rounds=300", "hidden_size=4"), protocol="horizontal") == 3
    acting.join(60)
    assert "shop: its site shop was lost" in capsys.readouterr().err


def test_below_the_quorum_the_run_ends_and_goes_on_with_those_who_are_there(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("num_rounds=60", "hidden_size=4", "min_sites=2", "client_timeout=20", "quorum_timeout=3")

    def lose() -> None:
        world.end(SHOP)
        world.end(CLINIC)

    acting = after_rounds(world, 2, lose)
    assert federated(world, words, protocol="horizontal") == 3
    acting.join(60)
    told = capsys.readouterr().err
    assert "1 of 3 sites take part, and a round needs 2 (min_sites)" in told
    cut = re.search(r"resume with: .* --resume (\S+)", told)
    assert cut is not None
    world.start(SHOP)  # the clinic comes later
    answering = world.answer(names=(BANK, SHOP))
    later = after_rounds(world, 8, lambda: world.start(CLINIC))
    flags = ("--federation", str(world.path / BANK / "federation.toml"), "--out", str(world.path / "runs"))
    clinic = world.answer(names=(CLINIC,))
    code = main(["run", "horizontal", *flags, "--resume", cut[1], "--format", "json", "--quiet"])
    for thread in (answering, later, clinic):
        thread.join(60)
    assert code == 0, capsys.readouterr().err
    found = last_line(capsys)
    rounds = rounds_of(found["run"])
    assert rounds[-1]["round"] == 60
    assert rounds[-1]["sites"] == 3


def test_what_left_before_a_restart_is_not_asked_for_again(tmp_path: Path) -> None:
    path = tmp_path / "journals" / "run.json"
    journal = Journal(path)
    journal.add("shop", "train", 7)
    journal.add("shop", "train", 8)
    again = Journal(path)
    assert again.left("shop") == {"train": (2, 8)}
    assert again.left("bank") == {}
    # an actor that was restored from a checkpoint before round 8
    context: Any = SimpleNamespace(name="shop", _site=SimpleNamespace(journal=again))
    asked: Any = SimpleNamespace(
        endpoint=SimpleNamespace(name="train", bound=SimpleNamespace(of="round")), sender="server"
    )
    for number in (7, 8):
        with pytest.raises(
            Refused, match=f"shop.train with round {number}, where 8 has left; approved: each round once"
        ):
            SiteContext._number_of(context, asked, SimpleNamespace(round=number))
    assert SiteContext._number_of(context, asked, SimpleNamespace(round=9)) == 9


def test_a_site_reads_before_it_approves_what_a_lost_site_means(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    answering = world.answer(approved=False)
    main([*command(world, "horizontal"), *QUORUM])
    answering.join(30)
    (run,) = kept_proposals(world.folder(SHOP))
    capsys.readouterr()
    assert main(["site", "show", run, "--folder", str(world.path / SHOP)]) == 0
    shown = capsys.readouterr().out
    assert "a round counts with 2 of 3 sites (min_sites) that answer within 20 s (client_timeout)" in shown
    assert "asked for no round twice" in shown


def test_a_policy_of_many_colluders_needs_a_large_quorum(tmp_path: Path) -> None:
    world, data = hospitals(tmp_path, 6)
    file = tmp_path / SHOP / SITE
    file.write_text(file.read_text() + "\n[policy]\ncolluders = 2\n")
    folder, protocol = world.folder(BANK), find_protocol("horizontal")
    said = "shop: min_sites: of 4 of 6 sites a sum may have two sets of survivors, if 2 of them help"
    for fewest, why in ((4, said), (5, "")):
        words = {"secure_aggregation": "true", "min_sites": str(fewest)}
        config = as_dict(build(protocol.Config, words))
        with pytest.raises(BadInput, match=why) if why else contextlib.nullcontext():
            check_proposal(make_proposal(folder, protocol, config, data, None), world.folder(SHOP))


def test_a_killed_site_and_a_frozen_one_come_back(tmp_path: Path) -> None:
    """Real processes; each step waits for what it is about, however busy the machine is."""
    sites = Sites(tmp_path)
    words = ("num_rounds=100000", "hidden_size=4", "min_sites=1", "client_timeout=5", "quorum_timeout=300")
    driver = sites.drive("horizontal", "--data", OF_THREE["horizontal"], *words)
    try:

        def last() -> dict[str, Any]:
            (run,) = sites.runs.iterdir()
            lines = (run / ROUND_METRICS).read_text().splitlines()
            found: dict[str, Any] = json.loads(lines[-1] if lines else '{"sites": 0}')
            return found

        def becomes(num_sites: int, *gone: str) -> bool:
            def holds() -> bool:
                assert driver.poll() is None, driver.communicate()[1]
                found = last()
                return found["sites"] == num_sites and all(f"{name}/away" in found for name in gone)

            return until(holds, 240.0)

        assert becomes(3)
        sites.started[CLINIC].kill()
        sites.started[CLINIC].wait(30)
        assert becomes(2, CLINIC)
        sites.started[SHOP].send_signal(signal.SIGSTOP)
        assert becomes(1, CLINIC, SHOP)
        sites.begin(CLINIC)
        assert becomes(2, SHOP)
        sites.started[SHOP].send_signal(signal.SIGCONT)
        assert becomes(3)
        driver.send_signal(signal.SIGINT)
        _, err = driver.communicate(timeout=120)
        assert driver.returncode == 130, err
    finally:
        driver.kill()
        driver.communicate()
        sites.end()


def test_answers_that_leave_at_once_are_all_in_the_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journals" / "run.json")

    def leave(endpoint: str) -> None:
        for number in range(1, 60):
            journal.add("shop/client", endpoint, number)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(leave, ("train", "measure", "sum", "weight")))
    read = Journal(tmp_path / "journals" / "run.json").left("shop/client")
    assert read == dict.fromkeys(("train", "measure", "sum", "weight"), (59, 59))
