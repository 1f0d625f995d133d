"""What the accountant charges is what was drawn, whatever was asked for: bounds aside, it counts what happens."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from fedactors.actors.remote import CallCounts
from fedactors.errors import Refused
from fedactors.privacy import mechanisms
from fedactors.protocols.glasu import actors as glasu
from fedactors.protocols.mtcd.actors import LinkedParty
from fedactors.protocols.mtcd.message_compression import Transforms
from fedactors.protocols.pubsub_vfl.actors import ActiveWorker, PassiveWorker
from fedactors.protocols.pubsub_vfl.data import PartyRows
from fedactors.protocols.pubsub_vfl.messages import EpochOrder
from fedactors.protocols.pubsub_vfl.run import Federation
from fedactors.protocols.tablepuppet import local_solvers
from fedactors.protocols.tablepuppet.actors import TableClient
from fedactors.runtime.rounds import Rounds
from tests.protocols.glasu import federation as graphs
from tests.protocols.glasu.test_privacy import NOISY
from tests.protocols.mtcd import running
from tests.protocols.pubsub_vfl.runs import simulate
from tests.protocols.tablepuppet.test_dp import execute

pytestmark = [pytest.mark.slow, pytest.mark.drawn(2, family="accounts")]


@pytest.mark.parametrize("aligned_anew", [False, True], ids=["honest", "aligned anew"])
@pytest.mark.parametrize("algorithm", ["pubsub-vfl", "vfl"])
def test_embeddings_and_scales_are_charged_as_they_were_drawn(
    monkeypatch: pytest.MonkeyPatch, algorithm: str, aligned_anew: bool
) -> None:
    drawn, scales = Counter[int](), []
    release, draw, train = PassiveWorker._release, PartyRows.draw, Federation.train

    def counted(self: PassiveWorker, part: str, positions: np.ndarray, values: np.ndarray) -> np.ndarray:
        if part == "train":
            drawn.update(self.rows.train_rows[positions].tolist())
        return release(self, part, positions, values)

    def scaled(self: PartyRows, *args: Any) -> Any:
        scales.append(self._data.party)
        return draw(self, *args)

    async def anew(self: Federation, order: EpochOrder, num_rows: int) -> dict[str, float]:
        if aligned_anew:
            await self.align()
        return await train(self, order, num_rows)

    monkeypatch.setattr(PassiveWorker, "_release", counted)
    monkeypatch.setattr(PartyRows, "draw", scaled)
    monkeypatch.setattr(Federation, "train", anew)
    words = {"embedding_mu": 4.0, "standardisation": "private", "num_epochs": 4, "algorithm": algorithm}
    records = {(one.party, one.message_type): one for one in simulate(**words).runtime.privacy_records}
    assert records["passive", "Embedding"].touched == max(drawn.values())
    assert max(drawn.values()) >= 4
    assert scales.count("passive") == (5 if aligned_anew else 1)
    assert records["passive", "column scale"].touched == mechanisms.NUM_RELEASES * scales.count("passive")


def longer(monkeypatch: pytest.MonkeyPatch, protocol: str, more: int) -> None:
    """Let a driver go on after the last round, and let nobody refuse that."""

    class Longer(Rounds[Any]):
        def __init__(self, *args: Any, num_rounds: int, **given: Any) -> None:
            super().__init__(*args, num_rounds=num_rounds + more, **given)

        def end_at(self, num_rounds: int, every: int = 1) -> None:
            super().end_at(num_rounds + more, every)

    monkeypatch.setattr(f"fedactors.protocols.{protocol}.run.Rounds", Longer)
    for counts in ("admit", "release"):
        monkeypatch.setattr(CallCounts, counts, lambda *_: None)


@pytest.mark.parametrize("more", [0, 3], ids=["honest", "more epochs"])
def test_gradients_are_charged_as_they_were_drawn(monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    """Those of the active party's rows, whose labels they tell of."""
    drawn, sanitise, under = Counter[int](), ActiveWorker._sanitise, list[np.ndarray]()
    pack = ActiveWorker._pack

    async def packed(self: ActiveWorker, gradients: Any, epoch: int, stamp: Any, positions: np.ndarray) -> Any:
        under[:] = [self.rows.train_rows[positions]]
        return await pack(self, gradients, epoch, stamp, positions)

    def counted(self: ActiveWorker, gradient: np.ndarray) -> np.ndarray:
        drawn.update(under[0].tolist())
        return sanitise(self, gradient)

    monkeypatch.setattr(ActiveWorker, "_pack", packed)
    monkeypatch.setattr(ActiveWorker, "_sanitise", counted)
    longer(monkeypatch, "pubsub_vfl", more)
    runtime = simulate(gradient_mu=4.0, num_epochs=3, algorithm="vfl").runtime
    (record,) = (one for one in runtime.privacy_records if one.message_type == "Gradient")
    assert record.touched == max(drawn.values())
    assert (record.touched > 3) == (more > 0)


@pytest.mark.parametrize("more", [0, 3], ids=["honest", "more rounds"])
@pytest.mark.parametrize("algorithm", ["mtcd", "svfl"])
def test_representations_and_changes_are_charged_as_they_were_drawn(
    monkeypatch: pytest.MonkeyPatch, algorithm: str, more: int
) -> None:
    drawn, by = Counter[str](), list[str]()
    noise_for, noised = LinkedParty._noise_for, Transforms.noised

    def drawing(self: LinkedParty, position: tuple[int, int, int]) -> np.random.Generator:
        by[:] = [self.party]
        return noise_for(self, position)

    def counted(self: Transforms, rows_BE: Any, rng: np.random.Generator) -> Any:
        drawn[by[0]] += len(rows_BE)
        return noised(self, rows_BE, rng)

    monkeypatch.setattr(LinkedParty, "_noise_for", drawing)
    monkeypatch.setattr(Transforms, "noised", counted)
    longer(monkeypatch, "mtcd", more)
    words = f"algorithm={algorithm} noise=gaussian noise_multiplier=4 num_rounds=2"
    _, _, runtime = running.simulate(words, reproducible_noise=False)
    charged = Counter[str]()
    for one in runtime.privacy_records:
        charged[one.party] += one.touched
    assert drawn
    assert +charged == drawn


@pytest.mark.parametrize("more", [0, 3], ids=["honest", "more rounds"])
def test_representations_of_nodes_are_charged_as_they_were_drawn(monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    """The first release moves the rows near a node only, where all are near on so small a graph."""
    drawn, add = Counter[int](), mechanisms.add_gaussian

    def counted(values: Any, sigma: float, rng: np.random.Generator, what: str) -> Any:
        drawn[id(rng)] += len(values)
        return add(values, sigma, rng, what)

    monkeypatch.setattr(glasu, "add_gaussian", counted)
    longer(monkeypatch, "glasu", more)
    config = graphs.settings(**{**NOISY, "num_rounds": "2", "evaluate_every": "100", "max_degree": "100000"})
    if more:
        with pytest.raises(Refused, match=r"round 3 with .*; approved: .* rounds 1 to 2"):
            graphs.simulate(config)
        return
    _, memory = graphs.simulate(config)
    charged = [one.touched for one in memory.records if one.message_type == "Representation"]
    assert sorted(charged) == sorted(drawn.values())
    assert len(charged) > 1


@pytest.mark.parametrize("more", [0, 8], ids=["honest", "more rounds"])
@pytest.mark.parametrize(
    "words",
    [
        {"algorithm": "rfl-sgd-v"},
        {"algorithm": "rfl-admm-v", "admm": "paper_sgd", "local_batch_size": 16},
        {"algorithm": "rfl-admm", "admm": "paper_sgd", "inner_rounds": 2, "local_batch_size": 16},
    ],
    ids=lambda words: words["algorithm"],
)
def test_steps_of_theta_are_charged_as_they_were_drawn(
    monkeypatch: pytest.MonkeyPatch, words: dict[str, Any], more: int
) -> None:
    steps = Counter[str]()
    noise = TableClient._noise_seed

    def counted(self: TableClient) -> tuple[int, ...]:
        steps[self.name] += local_solvers.local_steps(self._config, len(self._x))[0] if self._config.is_admm else 1
        return noise(self)

    monkeypatch.setattr(TableClient, "_noise_seed", counted)
    longer(monkeypatch, "tablepuppet", more)
    _, records, _ = execute(reproducible=False, model="linear", feature_dp=1.0, **words)
    charged = {party: one for (party, kind), one in records.items() if kind == "theta"}
    assert {party: one.touched for party, one in charged.items()} == {
        party: max(count for name, count in steps.items() if name.partition("/")[0] == party) for party in charged
    }
    assert all((one.epsilon > 1.0) == (more > 0) for one in charged.values())
