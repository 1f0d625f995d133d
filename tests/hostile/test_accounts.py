"""What the accountant charges is what was drawn, whatever was asked for: bounds aside, it counts what happens."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from fedactors.actors.remote import CallCounts
from fedactors.privacy import mechanisms
from fedactors.runtime.rounds import Rounds
from protocols.pubsub_vfl.actors import PassiveWorker
from protocols.pubsub_vfl.data import PartyRows
from protocols.pubsub_vfl.messages import EpochOrder
from protocols.pubsub_vfl.run import Federation
from protocols.tablepuppet import local_solvers
from protocols.tablepuppet.actors import TableClient
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
    class Longer(Rounds[Any]):
        def __init__(self, *args: Any, num_rounds: int, **given: Any) -> None:
            super().__init__(*args, num_rounds=num_rounds + more, **given)

    steps = Counter[str]()
    noise = TableClient._noise_seed

    def counted(self: TableClient) -> tuple[int, ...]:
        steps[self.name] += local_solvers.local_steps(self._config, len(self._x))[0] if self._config.is_admm else 1
        return noise(self)

    monkeypatch.setattr(TableClient, "_noise_seed", counted)
    monkeypatch.setattr("protocols.tablepuppet.run.Rounds", Longer)
    monkeypatch.setattr(CallCounts, "admit", lambda *_: None)
    _, records, _ = execute(reproducible=False, model="linear", feature_dp=1.0, **words)
    charged = {party: one for (party, kind), one in records.items() if kind == "theta"}
    assert {party: one.touched for party, one in charged.items()} == {
        party: max(count for name, count in steps.items() if name.partition("/")[0] == party) for party in charged
    }
    assert all((one.epsilon > 1.0) == (more > 0) for one in charged.values())
