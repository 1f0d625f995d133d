"""What a site draws by itself between organisations, and what it holds others to of what all know alike."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedactors.actors.actor import Resources
from fedactors.api import simulate
from fedactors.config import as_dict, build, spell_infinities
from fedactors.data.alignment.ids import check_number
from fedactors.data.alignment.rows import JoinMember
from fedactors.data.layouts.relational import Schema, Schemas
from fedactors.errors import BadInput, FedactorsError, Refused
from fedactors.federation import ray_hosting
from fedactors.federation.approval import check_proposal, make_proposal, source_digest
from fedactors.federation.hosting import SiteContext
from fedactors.inspection import describe_protections
from fedactors.plugins import find_protocol
from fedactors.protocols.glasu.actors import GraphClient
from fedactors.protocols.mtcd.data import PartyRows as RoamingRows
from fedactors.protocols.pubsub_vfl.data import PartyRows as VerticalRows
from fedactors.runtime.compute import WallClock
from fedactors.runtime.interface import ActorSpec
from fedactors.runtime.ray.actor_process import RayContext, Settings, SharedParts
from fedactors.secure_sums.actors import SecureSummand
from tests.federation.world import BANK, CLINIC, SHOP, World

MASKED: dict[str, Any] = {"on_party_loss": "stop", "secure_aggregation": True}


def test_noise_and_masks_do_not_follow_from_the_seed_of_a_proposal(tmp_path: Any) -> None:
    """After a resume the same masks and noise would come again: the difference of two parts would be exact."""
    world, glasu = World(tmp_path, (BANK, SHOP, CLINIC)), find_protocol("glasu")
    data = f"{BANK}=patients,{SHOP}=cases,{CLINIC}=cured"
    made = make_proposal(world.folder(BANK), find_protocol("horizontal"), MASKED, data, None)
    settings = spell_infinities(as_dict(build(glasu.Config, {**MASKED, "reproducible_noise": True})))
    task = replace(made.task, layout="graph")
    proposal = replace(made, protocol="glasu", source=source_digest(glasu), config=settings, task=task)
    with pytest.raises(BadInput, match=r"config.reproducible_noise: noise and masks do not follow from the run's seed"):
        check_proposal(proposal, world.folder(SHOP))


def test_a_site_takes_secrets_from_its_system_whatever_a_setting_says() -> None:
    assert SiteContext.is_between_organisations
    for cls in (SecureSummand, GraphClient):
        client: Any = object.__new__(cls)
        client._config = SimpleNamespace(reproducible_noise=True)
        client._context = SimpleNamespace(reproducible_noise=True, is_between_organisations=True)
        assert client.entropy("secure sums") is os.urandom


def test_so_do_a_sites_actors_in_processes_of_its_own_ray() -> None:
    told: list[Any] = []

    async def ask(verb: str, *args: Any) -> Any:
        told.extend(args)
        raise Refused("shop", "this is as far as it goes")

    async def join() -> str:
        return "host"

    host: Any = object.__new__(ray_hosting.RayActorHost)
    gate = SimpleNamespace(book={})
    host._boundary, host._call_timeout, host._proxies = SimpleNamespace(gate=gate, unawaited=None), 1.0, {}
    host._ask, host._join, host._package, host._source = ask, join, "fedactors.protocols.horizontal", ""
    host._code = {}
    spec = ActorSpec(SecureSummand, "shop", (("shop", "bank", "clinic"),), {}, Resources())

    async def spawned() -> RayContext:
        with contextlib.suppress(Refused):
            await host.spawn([spec], 1, WallClock(0.0))
        settings = next(one for one in told if isinstance(one, Settings))
        return RayContext(spec, settings, SharedParts("shop", "host"))

    assert asyncio.run(spawned()).is_between_organisations


def test_what_whoever_knows_the_seed_takes_off_protects_nothing() -> None:
    glasu = find_protocol("glasu")
    words = {**MASKED, "noise_multiplier": 1.0, "clip_norm": 1.0, "max_degree": 5}
    for is_seeded in (False, True):
        found = describe_protections(glasu, build(glasu.Config, {**words, "reproducible_noise": is_seeded}))
        on = {one["kind"]: one["on"] for one in found}
        assert (on["secure sums"], on["noise"]) == (not is_seeded, not is_seeded)


def test_so_many_rows_as_are_approved_are_trained_on() -> None:
    """Of one row to train on, scale and first step would be that row's."""
    actor: Any = SimpleNamespace(name="shop", party="shop", caller="bank")
    with pytest.raises(Refused, match=r"has 9 rows of shop trained on; approved: at least 10 \(min_aligned_rows\)"):
        check_number(actor, np.arange(100), 10, 100, num_train=lambda: 9)
    assert len(check_number(actor, np.arange(100), 10, 100, num_train=lambda: 10)) == 100


@pytest.mark.parametrize("is_announced", [True, False])
def test_rows_to_train_on_are_counted_whoever_draws_them(is_announced: bool) -> None:
    """Of a share for the test of nearly 1, which a proposal has, all would draw few rows to train on."""
    words: dict[str, Any] = {"test_fraction": 0.9, "validation_fraction": 0.1} if not is_announced else {}
    vfl: Any = object.__new__(VerticalRows)
    vfl._config, vfl._run_seed = build(find_protocol("pubsub-vfl").Config, words), 5
    roaming: Any = object.__new__(RoamingRows)
    roaming._seed = 5
    announced = np.zeros(0, np.uint8)
    if is_announced:
        announced = np.full(100, 2, np.uint8)
        announced[:9], announced[9] = 0, 1
    assert vfl.count_train(100, announced) == 9
    assert roaming.count_train(100, announced) == (9 if is_announced else 70)


def renamed(schemas: Schemas, source: str) -> Schemas:
    """Return schemas in which a table has one column more than it has."""
    one = schemas.by_source[source]
    return Schemas({**schemas.by_source, source: Schema(("none", *one.columns), ("integer", *one.kinds))})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("whose", "said"),
    [
        ("own", "of other columns of its table than it has"),
        ("another's", "of different columns of the tables that are joined"),
    ],
)
def test_tables_are_told_of_the_same_columns(monkeypatch: pytest.MonkeyPatch, whose: str, said: str) -> None:
    """A name that two tables have would mean the one's column where it is told that the other has none of it."""
    honest = JoinMember.prepare

    @functools.wraps(honest)
    async def prepare(self: JoinMember, schemas: Schemas) -> None:
        if self.name == min(self.members):
            is_local = {name: one == self._schema for name, one in schemas.by_source.items()}
            told = next(name for name in is_local if is_local[name] == (whose == "own"))
            if whose == "own":
                await honest(self, renamed(schemas, told))
            self.__dict__["_resolve"] = lambda _, resolve=self._resolve: resolve(schemas)
            return await honest(self, renamed(schemas, told))
        return await honest(self, schemas)

    monkeypatch.setattr(JoinMember, "prepare", prepare)
    with pytest.raises(FedactorsError, match=said):
        simulate("tablepuppet", seed=1, **find_protocol("tablepuppet").smoke)
