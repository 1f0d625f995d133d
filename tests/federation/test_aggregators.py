"""A tree of aggregators between sites: each is hosted by a site that is not the server's, which each site checks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedactors.cli.sites import _print_proposal, describe
from fedactors.config import as_dict, build, spell_infinities
from fedactors.errors import BadInput
from fedactors.federation.approval import Proposal, check_proposal, make_proposal
from fedactors.federation.operations import compare
from fedactors.federation.site_folder import SiteFolder
from fedactors.plugins import find_protocol
from tests.federation.test_going_on import rounds_of
from tests.federation.test_runs import OF_THREE, federated, last_line, last_run, simulated
from tests.federation.world import BANK, CLINIC, SHOP, World

pytestmark = [pytest.mark.slow, pytest.mark.drawn(2, family="aggregators")]
THREE = (BANK, SHOP, CLINIC)
WORDS = ("num_rounds=2", "hidden_size=4", "num_aggregators=1")


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


def proposed(world: World, num_aggregators: int) -> Proposal:
    """What a bank asks the others for whose own process refuses nothing."""
    protocol = find_protocol("horizontal")
    stated = spell_infinities(as_dict(build(protocol.Config, {"on_party_loss": "stop"})))
    made = make_proposal(world.folder(BANK), protocol, stated, OF_THREE["horizontal"], None)
    return replace(made, config={**made.config, "num_aggregators": num_aggregators})


@pytest.mark.parametrize("more", [(), ("secure_aggregation=true",)], ids=["open", "masked"])
def test_a_run_over_aggregators_at_other_sites_is_the_simulated_one(
    tmp_path: Path, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    world = world_of(tmp_path, {"aggregator-0": CLINIC})
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
        assert models == {(BANK, BANK): 0, (BANK, CLINIC): 2, (BANK, SHOP): 0}
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
    world = world_of(tmp_path, {})
    try:
        assert federated(world, WORDS, protocol="horizontal") != 0
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert "num_aggregators: 1 is not allowed while aggregator-0 is at the server's site, bank" in line
        assert "fedactors federation admit FOLDER REQUEST --renew --host aggregator-0" in line
    finally:
        world.stop()


def test_each_site_refuses_an_aggregator_at_the_servers_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a host in federation.toml it is the coordinator's, as the server is."""
    world = World(tmp_path, THREE)
    proposal, federation = proposed(world, num_aggregators=1), world.folder(CLINIC).federation
    for hosts in ({}, {"aggregator-0": BANK}):
        monkeypatch.setattr(SiteFolder, "federation", replace(federation, hosts=hosts))
        for name in THREE:
            with pytest.raises(BadInput, match="num_aggregators: 1 is not allowed while aggregator-0 is at the server"):
                check_proposal(proposal, world.folder(name))
    monkeypatch.setattr(SiteFolder, "federation", replace(federation, hosts={"aggregator-0": SHOP}))
    for name in THREE:
        check_proposal(proposal, world.folder(name))
    said: list[object] = []
    _print_proposal(describe(world.folder(CLINIC), proposal), said.append)
    assert "actors without data: aggregator-0 at shop, all others at bank" in said


def test_each_site_refuses_a_group_of_one_site(tmp_path: Path) -> None:
    world = World(tmp_path, THREE)
    proposal = proposed(world, num_aggregators=2)
    with pytest.raises(BadInput, match="num_aggregators: 2 is not allowed: there are 3 sites"):
        check_proposal(proposal, world.folder(SHOP))
