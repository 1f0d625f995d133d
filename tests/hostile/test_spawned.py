"""Whom a run spawns follows from the approved proposal at each site; sums count organisations, not clients."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedactors.actors.remote import DRIVER
from fedactors.config import source_on_disk
from fedactors.errors import BadInput, Refused
from fedactors.federation import approval, operations
from fedactors.federation.approval import as_tree, check_proposal, make_proposal, spawned_by
from fedactors.federation.runtime import FederatedRuntime
from fedactors.federation.site_folder import SITE
from fedactors.messages.codec import encode
from fedactors.plugins import find_protocol
from fedactors.protocols.horizontal.actors import ClientProcess
from fedactors.runtime.interface import ActorSpec
from fedactors.secure_sums.messages import Identity, SumCall, parties_of
from fedactors.secure_sums.protocol import SecureSumClient, SecureSumError
from tests.federation.hostile_sites import Rogue
from tests.federation.test_centers import SMALL as CENTERS
from tests.federation.test_centers import flags, write_centers
from tests.federation.test_runs import OTHERS, SMALL, federated
from tests.federation.world import BANK, CLINIC, SHOP, World

pytestmark = [pytest.mark.slow, pytest.mark.drawn(3, family="hostile")]
HORIZONTAL = OTHERS["horizontal"][1]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("spawned"))
    made.start(BANK)
    made.start(SHOP)
    yield made
    made.stop()


Change = Callable[[list[ActorSpec]], list[ActorSpec]]


def with_ghosts(specs: list[ActorSpec]) -> list[ActorSpec]:
    shop = next(one for one in specs if one.name == SHOP)
    return [*specs, replace(shop, name="ghost-1"), replace(shop, name="ghost-2")]


def with_other_names(specs: list[ActorSpec]) -> list[ActorSpec]:
    """The shop believes that there are four of them: with whom it masks, and how many must be there."""
    sites = (BANK, SHOP, "ghost-1", "ghost-2")

    def told(one: ActorSpec) -> ActorSpec:
        return replace(one, args=tuple(sites if arg == (BANK, SHOP) else arg for arg in one.args))

    return [told(one) if one.name == SHOP else one for one in specs]


def with_another_class(specs: list[ActorSpec]) -> list[ActorSpec]:
    server = next(one for one in specs if one.name == "server")
    return [replace(one, cls=server.cls) if one.name == SHOP else one for one in specs]


def with_one_less(specs: list[ActorSpec]) -> list[ActorSpec]:
    return [one for one in specs if one.name != BANK]


CHANGES: dict[str, tuple[Change, str]] = {
    "ghosts": (with_ghosts, "spawns ghost-1 as ClientProcess; approved: bank (ClientProcess), shop (ClientProcess), "),
    "other names": (with_other_names, "spawns shop with other arguments than follow from the approved proposal"),
    "another class": (with_another_class, "spawns shop"),
    "one less": (with_one_less, "does not spawn bank; approved: bank (ClientProcess)"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_others_than_were_approved_are_not_spawned(world: World, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    change, said = CHANGES[what]
    honest = FederatedRuntime._take_new
    monkeypatch.setattr(FederatedRuntime, "_take_new", lambda self: change(honest(self)))
    before = {name: len(world.refusals(name)) for name in (BANK, SHOP)}
    assert federated(world, HORIZONTAL, protocol="horizontal") in (2, 3)
    # all sites look, and the first that refuses ends the run for the others
    shops, banks = (world.refusals(name)[before[name] :] for name in (SHOP, BANK))
    assert len(shops) == 1 or (shops, len(banks)) == ([], 1), (shops, banks)
    assert all(said in line for line in shops)


@pytest.mark.parametrize("what", ["pubsub-vfl", *OTHERS])
def test_each_site_finds_out_by_itself_whom_a_run_spawns(world: World, what: str) -> None:
    """Where the protocol needs two organisations; those of three, and with secrets, run in the tests of sites."""
    protocol, words = OTHERS.get(what, ("pubsub-vfl", SMALL))
    assert federated(world, words, protocol=protocol) == 0, world.output


def test_a_sum_of_two_is_refused_at_the_proposal(world: World) -> None:
    rogue, before = Rogue(world), len(world.refusals(SHOP))
    config = {"secure_aggregation": True, "on_party_loss": "stop"}
    task = world.folder(BANK).task("patients")
    proposal = {**as_tree(rogue.proposal), "protocol": "horizontal", "config": config, "task": task and vars(task)}
    proposal |= {"data": {BANK: "patients", SHOP: "cases"}, "source": source_of("horizontal")}
    with pytest.raises(Refused, match="proposes what cannot be") as told:
        rogue.say(("propose", (proposal,)))
    assert "2 sites are too few" in str(told.value)
    assert "2 sites are too few" in world.refusals(SHOP)[before]


def test_bytes_that_an_actor_is_built_with_follow_from_the_proposal() -> None:
    """Else a driver would choose a key, or whose parts these are."""
    spec = ActorSpec(ClientProcess, SHOP, (b"drawn at the site",), {}, ClientProcess.resources)
    approval.check_spawned({SHOP: spec}, [(SHOP, "ClientProcess", encode((spec.args, {}), arguments=True))], bool)
    chosen = encode(((b"chosen by another",), {}), arguments=True)
    with pytest.raises(Refused, match="spawns shop with other arguments than follow from the approved proposal"):
        approval.check_spawned({SHOP: spec}, [(SHOP, "ClientProcess", chosen)], bool)


def source_of(name: str) -> str:
    from fedactors.federation.approval import source_digest
    from fedactors.plugins import find_protocol

    return source_digest(find_protocol(name))


def test_a_sum_is_of_two_more_than_may_collude(tmp_path: Any) -> None:
    from fedactors.config import as_dict, build, spell_infinities
    from fedactors.federation.approval import make_proposal
    from fedactors.plugins import find_protocol

    world = World(tmp_path, (BANK, SHOP, CLINIC))
    protocol = find_protocol("horizontal")
    config = build(protocol.Config, {"on_party_loss": "stop", "secure_aggregation": True})
    data = f"{BANK}=patients,{SHOP}=cases,{CLINIC}=cured"
    proposal = make_proposal(world.folder(BANK), protocol, spell_infinities(as_dict(config)), data, None)
    assert [*spawned_by(protocol, config, proposal, {})] == [BANK, SHOP, CLINIC, "server"]
    check_proposal(proposal, world.folder(SHOP))
    file = world.path / SHOP / SITE
    file.write_text(f"{file.read_text()}\n[policy]\ncolluders = 2\n")
    with pytest.raises(BadInput, match=r"shop: secure_aggregation: sums are of 3 organisations .* at least 4"):
        check_proposal(proposal, world.folder(SHOP))


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("horizontal", {"dropout_rate": 0.7}, "dropout_rate: 0.7 is not allowed over a federation with secure"),
        (
            "nebulafl",
            {"algorithm": "fedavg-hierarchical", "num_centers": 3, "outages": "shop/0@1-1000 clinic/0@1-1000"},
            "outages: 'shop/0@1-1000 clinic/0@1-1000' is not allowed over a federation with secure",
        ),
    ],
)
def test_no_organisation_is_away_from_a_sum_because_the_proposal_says_so(
    tmp_path: Any, name: str, words: dict[str, Any], said: str
) -> None:
    """With seven in ten dropping out, many rounds' sums are of one organisation: its change, to the bit."""
    from fedactors.config import as_dict, build, spell_infinities
    from fedactors.federation.approval import make_proposal
    from fedactors.plugins import find_protocol

    world, protocol = World(tmp_path, (BANK, SHOP, CLINIC)), find_protocol(name)
    if name == "nebulafl":
        write_centers(world)
        words = {**dict(word.split("=", 1) for word in (*CENTERS, *flags(world))), **words}
    made_of: Any = build(protocol.Config, {"on_party_loss": "stop", **words})
    made_of = made_of.with_contents() if name == "nebulafl" else made_of
    config = spell_infinities(as_dict(made_of))
    data = f"{BANK}=patients,{SHOP}=cases,{CLINIC}=cured"
    made = make_proposal(world.folder(BANK), protocol, config, data, None)
    check_proposal(made, world.folder(SHOP))
    with pytest.raises(BadInput, match=re.escape(f"shop: {said}")):
        check_proposal(replace(made, config={**config, "secure_aggregation": True}), world.folder(SHOP))
    survives = {**config, "secure_aggregation": True, "on_party_loss": "continue"}
    with pytest.raises(BadInput, match="on_party_loss: 'continue' is not allowed"):  # whoever is called lost is read
        check_proposal(replace(made, config=survives), world.folder(SHOP))


def test_a_sum_counts_organisations_and_not_their_clients() -> None:
    names = ("bank/1", "bank/2", "bank/3", "clinic", "shop")
    entropy = np.random.default_rng(1).bytes
    keys = {name: Identity(entropy) for name in names}
    public = {name: key.public for name, key in keys.items()}
    client = SecureSumClient("shop", keys["shop"], public, num_clients=5, num_parties=3, entropy=entropy)
    with pytest.raises(SecureSumError, match="its clients are of bank, shop: 3 at least"):
        client.advertise(SumCall(1, 1, ("bank/1", "bank/2", "bank/3", "shop")))
    client.advertise(SumCall(2, 1, ("bank/1", "clinic", "shop")))
    assert parties_of(names) == {"bank", "clinic", "shop"}


def test_the_digest_is_of_a_plugins_whole_package_and_of_no_other_in_its_namespace(tmp_path, monkeypatch):
    files = {
        "acme/__init__.py": "",
        "acme/settings/__init__.py": "",
        "acme/settings/config.py": "",
        "acme/actors.py": "",
    }
    files |= {"shared/ours/__init__.py": "", "shared/theirs/__init__.py": ""}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    digest = source_on_disk
    before = digest("acme.settings"), digest("shared.ours")
    (tmp_path / "acme/actors.py").write_text("1")
    (tmp_path / "shared/theirs/__init__.py").write_text("1")
    assert digest("acme.settings") != before[0]
    assert digest("shared.ours") == before[1]


def test_code_that_was_upgraded_since_a_site_began_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process has what it has loaded; what it loads next, and what its Ray's processes load, lies on the disk."""
    world = World(tmp_path)
    folder, protocol = world.folder(SHOP), find_protocol("horizontal")
    made = make_proposal(world.folder(BANK), protocol, {"on_party_loss": "stop"}, f"{BANK}=patients,{SHOP}=cases", None)
    check_proposal(made, folder)
    monkeypatch.setattr(approval, "source_on_disk", lambda package: "another")
    with pytest.raises(BadInput, match="shop: the code of horizontal was upgraded since shop began: start it again"):
        check_proposal(made, folder)


def test_a_site_knows_its_code_from_its_start_on(tmp_path: Path) -> None:
    world = World(tmp_path)
    approval._source_digest.cache_clear()
    operations.installed.cache_clear()
    world.start(SHOP)
    try:
        assert approval._source_digest.cache_info().currsize >= 6
    finally:
        world.stop()


@pytest.mark.parametrize("who", ["sidecar", "actor", "neither"])
def test_processes_of_a_ray_run_the_code_that_was_approved(monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    """Each compares its own: a cluster has an installation of its own, and another one may lie on the disk."""
    hosting = pytest.importorskip("fedactors.federation.ray_hosting")

    async def nothing(*_: Any) -> list[Any]:
        return []

    monkeypatch.setattr(hosting.cluster, "hosts", nothing)
    monkeypatch.setattr(hosting.cluster, "check_resources", lambda *_: None)
    monkeypatch.setattr(hosting, "source_on_disk", lambda _: "another" if who == "sidecar" else "approved")
    sidecar = object.__new__(hosting.RaySidecar)
    sidecar._host = ""
    report = {"source": "another" if who == "actor" else "approved"}
    sidecar._processes = SimpleNamespace(
        prepare=nothing, reports={SHOP: report}, addresses={}, as_seen_by=lambda *_: {}
    )
    spawned = sidecar.spawn([], SimpleNamespace(package="fedactors.protocols.horizontal"), {}, "approved")
    if who == "neither":
        assert asyncio.run(spawned) == ({DRIVER: {}}, [report])
        return
    with pytest.raises(BadInput, match="its processes have other code, source another; the run asks for source appr"):
        asyncio.run(spawned)
