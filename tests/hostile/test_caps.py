"""A coordinator announces less than its run releases: nothing leaves beyond what was announced, by a recount of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedactors.actors.actor import Actor
from fedactors.federation.hosting import Gate
from fedactors.federation.site_folder import SITE, in_all, spent
from fedactors.protocols.glasu.messages import Representation as NodeRepresentation
from fedactors.protocols.mtcd.actors import LinkedParty
from fedactors.protocols.mtcd.messages import Representation, Token
from fedactors.protocols.pubsub_vfl.actors import PartyWorker, PassiveWorker
from fedactors.protocols.pubsub_vfl.messages import Embedding
from fedactors.protocols.tablepuppet.actors import TableClient
from fedactors.protocols.tablepuppet.messages import Predictions
from tests.federation.test_runs import DATA, GLASU, MTCD, SMALL, VERTICAL, federated
from tests.federation.world import BANK, SHOP, World
from tests.hostile.test_recounts import epsilon_at

pytestmark = [pytest.mark.slow, pytest.mark.drawn(4, family="accounts")]
DELTA = 1e-5
EPOCHS, MULTIPLIER = 4, 60.0


@dataclass(frozen=True)
class Case:
    """What is run, for how many releases the cap is, what counts as one, and what so many cost at least."""

    words: tuple[str, ...]
    allowed: int
    releases: Callable[[Sequence[Any]], int]
    mu: Callable[[int], float]
    protocol: str = "pubsub-vfl"


def epochs(left: Sequence[Any]) -> int:
    return len({one.epoch for one in left if isinstance(one, Embedding)})


def of_types(*types: type) -> Callable[[Sequence[Any]], int]:
    return lambda left: sum(isinstance(one, types) for one in left)


WORKERS: tuple[str, ...] = (
    f"num_epochs={EPOCHS}",
    *SMALL[1:],
    "embedding_mu=1",
    "bottom_training=private",
    "bottom_mu=1",
)
WORKERS = (*WORKERS, "standardisation=none", "delta=1e-5")
PAIRS = ("algorithm=vfl-ps", "num_active_workers=2", "num_passive_workers=2")
NOISE = ("noise=gaussian", f"noise_multiplier={MULTIPLIER}", "clip_norm=1", "learning_rate=0.01", "delta=1e-5")
TOKENS = (*MTCD, *NOISE)
FACTS = '["orders=-4:4","returns=-4:4","income=-4:4","age=-4:4","bad=0|1"]'
STEPS: tuple[str, ...] = ("num_rounds=6", "model=logistic", "algorithm=rfl-sgd-v", "batch_size=32", "feature_dp=0.01")
STEPS = (*STEPS, "learning_rate=0.1", "prediction_clip=1", "prediction_noise=8", "feature_delta=1e-5")
STEPS = (*STEPS, f"declared_facts={FACTS}")
SERVED = (*(word for word in MTCD if not word.startswith("num_tokens")), "algorithm=svfl", *NOISE)


def of_workers(times: int) -> float:
    return math.sqrt(2 * times / EPOCHS)  # embeddings and gradients of the bottom


def of_rows(times: int) -> float:
    return 2 * math.sqrt(128 * times) / MULTIPLIER  # 128 rows, of which each release counts all


def of_predictions(times: int) -> float:
    return 2 * math.sqrt(times) / 8


CASES = {
    "pubsub-vfl": Case((*WORKERS, "algorithm=pubsub-vfl"), 2, epochs, of_workers),
    "vfl": Case((*WORKERS, "algorithm=vfl"), 2, epochs, of_workers),
    "vfl, two workers": Case((*WORKERS, *PAIRS), 2, epochs, of_workers),
    "mtcd": Case(TOKENS, 2, of_types(Representation, Token), of_rows, "mtcd"),
    "svfl": Case(SERVED, 2, of_types(Representation), of_rows, "mtcd"),
    "tablepuppet": Case(STEPS, 5, of_types(Predictions), of_predictions, "tablepuppet"),
    "glasu": Case((*GLASU, "clip_norm=1", "noise_multiplier=9", "max_degree=90"), 0, of_types(NodeRepresentation),
                  lambda _: 1.0, "glasu"),
}  # fmt: skip


def arriving(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Note what arrives at the bank from the shop: calls, replies and payloads."""
    found: list[Any] = []
    for name in ("call_in", "reply_in", "payload_in"):

        def noted(self: Gate, *args: Any, honest: Any = getattr(Gate, name)) -> Any:
            if self._site == BANK:
                found.extend(one for one in args if hasattr(one, "__message__"))
            return honest(self, *args)

        monkeypatch.setattr(Gate, name, noted)
    return found


def with_budget(world: World, protocol: str) -> None:
    data = DATA.get(protocol, VERTICAL).partition(f"{SHOP}=")[2]
    file = world.path / SHOP / SITE
    table = f"[data.{data}]\n"
    assert table in file.read_text()
    file.write_text(file.read_text().replace(table, f"{table}budget = {{ epsilon = 60.0, delta = 1e-3 }}\n", 1))


@pytest.mark.parametrize("plans", [False, True], ids=["by releases", "by its plan"])
@pytest.mark.parametrize("name", CASES)
def test_nothing_leaves_beyond_what_was_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, plans: bool
) -> None:
    case = CASES[name]
    allowed = epsilon_at(case.mu(case.allowed), DELTA) * 1.02
    world = World(tmp_path)
    with_budget(world, case.protocol)
    if not plans:
        for cls in (Actor, PartyWorker, LinkedParty, TableClient):
            monkeypatch.setattr(cls, "planned_privacy", lambda self: (), raising=False)
    left = arriving(monkeypatch)
    world.start(BANK)
    world.start(SHOP)
    try:
        code = federated(world, case.words, "--budget", f"{SHOP}={allowed}:1e-4", protocol=case.protocol)
        told = capsys.readouterr().err
        assert code in (2, 3), told
        refused = [text for text in world.refusals(SHOP) if "and had announced" in text]
        charged = in_all(spent(world.folder(SHOP).log()).get(VERTICAL.partition(f"{SHOP}=")[2], {}))
    finally:
        world.stop()
    times = case.releases(left)
    assert len(refused) == 1, told
    assert f"and had announced epsilon {allowed:.6g}" in told
    assert times <= case.allowed
    if plans and name != "glasu":
        assert times == 0
        assert "by its approved settings" in refused[0]
    elif case.allowed:
        assert times > 0
    assert charged.epsilon <= allowed


def test_an_actor_that_cannot_say_what_it_released_lets_nothing_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A coordinator that brings a worker to where its account fails has stopped the count of all workers."""

    def none(self: PassiveWorker, counts: Any) -> Any:
        raise RuntimeError("rows are used before they are aligned")

    world, left = World(tmp_path), arriving(monkeypatch)
    with_budget(world, "pubsub-vfl")
    monkeypatch.setattr(PassiveWorker, "_records", none)
    monkeypatch.setattr(PartyWorker, "planned_privacy", lambda self: ())
    world.start(BANK)
    world.start(SHOP)
    try:
        assert federated(world, CASES["vfl"].words, "--budget", f"{SHOP}=50:1e-4") in (2, 3)
        refused = world.refusals(SHOP)
    finally:
        world.stop()
    assert epochs(left) == 0
    assert refused == [f"{SHOP}: cannot account for releases: rows are used before they are aligned"]
