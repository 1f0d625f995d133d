"""A prediction between sites: who is spawned follows from the proposal; each party answers once, of its own rows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedactors.actors.remote import CallCounts, current_caller
from fedactors.config import build
from fedactors.data.alignment import ids
from fedactors.data.columns import ColumnRule, FittedColumn
from fedactors.errors import BadInput, Refused
from fedactors.federation.online import MOST_ALIGNMENTS
from fedactors.federation.runtime import FederatedRuntime
from fedactors.federation.site_folder import SITE
from fedactors.learning.models import ModelSpec
from fedactors.protocols.tablepuppet.actors import MaskedTable
from fedactors.protocols.tablepuppet.config import TablePuppetConfig
from fedactors.protocols.tablepuppet.messages import WantedRows
from fedactors.protocols.tablepuppet.serving import PredictingTable
from fedactors.runtime.interface import ActorSpec
from fedactors.serving.parts import Part, TrainedModel
from fedactors.serving.predictions import ModelServer, PredictingOwner
from tests.federation.test_going_on import predicted, runs
from tests.federation.test_online import given_by, ordered
from tests.federation.test_runs import OTHERS, SMALL, federated
from tests.federation.world import BANK, SHOP, World

pytestmark = [pytest.mark.slow, pytest.mark.drawn(2, family="hostile")]
NEW = ("--data", f"{BANK}=arrivals,{SHOP}=baskets")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Path]]:
    world = World(tmp_path_factory.mktemp("trained"))
    for name, file, header in ((BANK, "arrivals", "id,income,age"), (SHOP, "baskets", "id,orders,returns")):
        rows = [f"n{i},{i / 10},{1 - i / 20}" for i in range(20)]
        (world.path / name / f"{file}.csv").write_text("\n".join([header, *rows, ""]))
        with (world.path / name / SITE).open("a") as text:
            text.write(f'\n[data.{file}]\npath = "{file}.csv"\nid = "id"\n')
    world.start(BANK)
    world.start(SHOP)
    assert federated(world, (*SMALL, "algorithm=vfl")) == 0, world.output
    yield world, runs(world)[0]
    world.stop()


@pytest.fixture(scope="module")
def averaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Path]]:
    """A run of horizontal rows; new ones have a column that no model was trained on."""
    world = World(tmp_path_factory.mktemp("averaged"))
    persons = [f"{i / 10},{i / 9},{i / 8},{i / 7},{'rare' if i in (3, 7, 11) else 'none'}" for i in range(20)]
    for name in (BANK, SHOP):
        (world.path / name / "persons.csv").write_text("\n".join(["a,b,c,d,illness", *persons, ""]))
        with (world.path / name / SITE).open("a") as text:
            text.write('\n[data.persons]\npath = "persons.csv"\nfeatures = ["a", "b", "c", "d"]\n')
        world.start(name)
    assert federated(world, OTHERS["horizontal"][1], protocol="horizontal") == 0, world.output
    yield world, runs(world)[0]
    world.stop()


def refused(world: World, run: Path) -> str:
    before = len(world.refusals(SHOP))
    assert predicted(world, run, *NEW) in (2, 3)
    (found,) = world.refusals(SHOP)[before:]
    return found


def ghost(specs: list[ActorSpec]) -> list[ActorSpec]:
    return [*specs, replace(next(one for one in specs if one.name == SHOP), name=f"{SHOP}/2")]


def other_class(specs: list[ActorSpec]) -> list[ActorSpec]:
    owner = next(one for one in specs if one.name == BANK)
    return [replace(one, cls=owner.cls) if one.name == SHOP else one for one in specs]


@pytest.mark.parametrize(("change", "said"), [(ghost, "spawns shop/2 as "), (other_class, "spawns shop as ")])
def test_others_than_were_approved_do_not_predict(
    trained: tuple[World, Path], monkeypatch: pytest.MonkeyPatch, change: Any, said: str
) -> None:
    honest = FederatedRuntime._take_new
    monkeypatch.setattr(FederatedRuntime, "_take_new", lambda self: change(honest(self)))
    found = refused(*trained)
    assert said in found
    assert "; approved: " in found


def test_a_contribution_is_given_once(trained: tuple[World, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    count, honest = CallCounts.admit, PredictingOwner._contributions

    async def again(self: PredictingOwner, peers: Any, rows: Any) -> Any:
        await honest(self, peers, rows)
        return await honest(self, peers, rows)

    monkeypatch.setattr(PredictingOwner, "_contributions", again)
    monkeypatch.setattr(CallCounts, "admit", lambda self, *a: count(self, *a) if a[3].party == SHOP else None)
    assert "bank: calls shop.contribute for the 2nd time; approved: once" in refused(*trained)


@pytest.mark.parametrize("column", ["illness", "d"])
def test_no_model_says_which_columns_of_new_rows_are_read_or_how(
    averaged: tuple[World, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], column: str
) -> None:
    """Its holder learnt how many rows have a value of its choice in any column of the file: the others are refused."""
    (world, run), honest = averaged, ModelServer.load
    rule = ColumnRule(type="categorical", categories=("rare",), unknown="refuse")

    async def load(self: ModelServer) -> None:
        await honest(self)
        asked = FittedColumn(name=column, rule=rule, categories=rule.categories)
        self._reading = replace(self._reading, columns=(*self._reading.columns[:3], asked))

    monkeypatch.setattr(ModelServer, "load", load)
    capsys.readouterr()
    assert predicted(world, run, "--data", f"{BANK}=persons,{SHOP}=persons") == 0
    told = {one["party"]: one for one in json.loads(capsys.readouterr().out.splitlines()[-1])["predictions"]}
    assert (told[SHOP]["rows"], told[SHOP]["predicted"], told[SHOP]["rejections"]) == (20, 20, {})


@pytest.mark.parametrize("is_hostile", [False, True])
def test_no_model_asks_a_site_for_a_bit_of_its_rows(
    averaged: tuple[World, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_hostile: bool,
) -> None:
    """One that predicts a class from some bound on learnt, as which classes are predicted, where the largest row is."""
    (world, run), honest = averaged, ModelServer.load

    async def load(self: ModelServer) -> None:
        await honest(self)
        if is_hostile and self.part is not None:
            model = self.part.models["bottom"]
            nothing = replace(model, vector=np.zeros_like(model.vector))
            self.part = replace(self.part, models={"bottom": nothing})

    monkeypatch.setattr(ModelServer, "load", load)
    capsys.readouterr()
    assert predicted(world, run, "--data", f"{BANK}=persons,{SHOP}=persons") == 0
    told = {one["party"]: one for one in json.loads(capsys.readouterr().out.splitlines()[-1])["predictions"]}
    assert told[SHOP]["unpredicted"] == 0


def test_a_row_of_a_table_is_predicted_once_by_whatever_number() -> None:
    """The last row is -1 too: under both numbers it was drawn twice under the noise that is charged once."""
    table, token = PredictingTable.__new__(PredictingTable), current_caller.set("server")
    MaskedTable.__init__(table, (SHOP,), "server")
    table._has_predicted = False
    features = np.random.default_rng(1).normal(size=(5, 2))
    table._encoded = SimpleNamespace(features=features)  # type: ignore[assignment]
    models = {"bottom": TrainedModel(ModelSpec(name="linear", inputs=(2,), outputs=1, float64=True), np.ones(3))}
    noised = {"clip_norm": 1.0, "sigma": 3.0, "delta": 1e-5, "models": models}
    table.part = Part(
        protocol="tablepuppet", party=SHOP, task="regression", num_classes=1, parties=(SHOP,), class_names=(), **noised
    )
    table._config = build(TablePuppetConfig, {"algorithm": "rfl-sgd-v"})
    drawn = list[Any]()
    table._context = SimpleNamespace(  # type: ignore[assignment]
        name=SHOP,
        seed=0,
        reproducible_noise=False,
        record_privacy=drawn.append,
        compute=lambda function, args, work: asyncio.sleep(0, function(*args)),
    )
    try:
        with pytest.raises(Refused, match="server: asks shop for rows beyond 0 to 4"):
            asyncio.run(table.predict(WantedRows(np.array([4, -1], np.int32))))
    finally:
        current_caller.reset(token)
    assert drawn == []


def test_a_row_is_predicted_once() -> None:
    names = np.array(["a", "b", "c"])
    _, salt, digests = ids.announce_order(names, np.array([0, 1]), np.random.default_rng(1))
    with pytest.raises(BadInput, match="an id is announced twice"):
        ids.follow(names, ids.AlignmentOrder(salt, np.repeat(digests, 2, axis=0), np.zeros(0, np.uint8)), "hash")


def test_a_policy_allows_so_many_predictions_and_no_more(
    trained: tuple[World, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    world, run = trained
    file = world.path / SHOP / SITE
    before = file.read_text()
    done = sum(line["what"] == "predicted" for line in world.audit(SHOP))
    say(file, f'{before}\n[policy]\napprove = "policy"\ncoordinators = ["bank"]\ncontinuations = {done + 1}\n')
    try:
        assert predicted(world, run, *NEW) == 0, capsys.readouterr().err
        capsys.readouterr()
        assert predicted(world, run, *NEW) in (2, 3)
        said = f"predicts with run {line_of(world)} for the {done + 2}"
        assert said in capsys.readouterr().err + world.refusals(SHOP)[-1]
        assert "(policy.continuations) where the policy answers" in world.refusals(SHOP)[-1]
    finally:
        say(file, before)


def say(file: Path, text: str) -> None:
    """Change the site's file at once: its process reads it at any time."""
    part = file.with_suffix(".part")
    part.write_text(text)
    part.replace(file)


def line_of(world: World) -> str:
    return str(next(line["first"] for line in world.audit(SHOP) if line["what"] == "predicted"))


def test_orders_of_ids_that_were_made_up_are_few() -> None:
    """A peer that may ask for predictions would find out one by one which ids there are, without an alignment."""
    given = given_by(["r1", "r2"])
    for guess in range(MOST_ALIGNMENTS):
        with pytest.raises(BadInput, match="1 of the 1 announced ids are not among this party's ids"):
            ordered(given, [f"guess {guess}"])
    with pytest.raises(Refused, match="followed 10 orders: its person starts it again"):
        ordered(given, ["r1"])
