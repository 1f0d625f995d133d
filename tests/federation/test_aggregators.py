"""A tree of aggregators between sites: each is hosted by a site that is not the server's, and numbers stay the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedactors.federation.operations import compare
from tests.federation.test_going_on import rounds_of
from tests.federation.test_runs import federated, last_line, last_run, simulated
from tests.federation.world import BANK, CLINIC, SHOP, World

pytestmark = [pytest.mark.slow, pytest.mark.drawn(2, family="aggregators")]
THREE = (BANK, SHOP, CLINIC)
WORDS = ("num_rounds=2", "hidden_size=4", "num_aggregators=2")


def world_of(folder: Path, hosts: dict[str, str]) -> World:
    """Three sites that run; a site is admitted again with the aggregators that it hosts."""
    world = World(folder, THREE)
    for aggregator, name in hosts.items():
        request = str(folder / name / f"{name}.csr")
        world.command("federation", "admit", str(folder / "credit"), request, "--renew", "--host", aggregator)
    world.share()
    for name in THREE:
        world.start(name)
    return world


@pytest.mark.parametrize("more", [(), ("secure_aggregation=true",)], ids=["open", "masked"])
def test_a_run_over_aggregators_at_other_sites_is_the_simulated_one(
    tmp_path: Path, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    world = world_of(tmp_path, {"aggregator-0": CLINIC, "aggregator-1": SHOP})
    try:
        assert federated(world, (*WORDS, *more), "--seed", "7", protocol="horizontal") == 0, world.output
        found = last_line(capsys)
        logs = {name: world.audit(name) for name in THREE}
        ended = [line for line in logs[BANK] if line["what"] == "ended" and line["run"] == last_run(world)]
        models = {("bank", site): 0 for site in THREE} | {
            (one["from"], one["to"]): one["messages"]
            for one in ended[0]["left"]
            if one["type"] in ("TrainOrder", "GroupOrder")
        }
        assert models == {(BANK, BANK): 0, (BANK, CLINIC): 2, (BANK, SHOP): 2}
        for one, other in ((BANK, SHOP), (BANK, CLINIC), (SHOP, CLINIC)):
            assert {line.verdict for line in compare(one, logs[one], other, logs[other])} == {"agree"}
    finally:
        world.stop()
    assert simulated(world, (*WORDS, *more), "horizontal") == 0
    alone = last_line(capsys)
    assert rounds_of(found["run"])[-1]["test/loss"] == pytest.approx(rounds_of(alone["run"])[-1]["test/loss"], abs=1e-5)


def test_an_aggregator_at_the_servers_site_is_refused_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = world_of(tmp_path, {"aggregator-1": SHOP})
    try:
        assert federated(world, WORDS, protocol="horizontal") != 0
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert "num_aggregators: 2 is not allowed while aggregator-0 is at the server's site, bank" in line
        assert "fedactors federation admit FOLDER REQUEST --renew --host aggregator-0" in line
    finally:
        world.stop()
