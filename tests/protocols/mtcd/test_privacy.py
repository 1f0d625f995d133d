"""What MTCD's noise claims for one row of a party, and who tries to refute it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fedactors.auditing.replay import ReplayAudit, audit_by_replay
from fedactors.errors import BadInput
from fedactors.messages.compression import Noise
from fedactors.privacy.accounting import INTERRUPTED, claims
from fedactors.protocols.mtcd import actors, message_compression
from fedactors.protocols.mtcd.data import load_data
from fedactors.protocols.mtcd.plugin import PROTOCOL
from tests.protocols.mtcd.running import config_of, simulate
from tests.protocols.pubsub_vfl.runs import arrays

SMALL = (
    "num_clients=3 num_hops=1 num_local_steps=2 num_rounds=2 topology=complete noise=gaussian "
    "noise_multiplier=4 learning_rate="
)
NETWORK = "problem=network network=mlp representation_size=4 hidden_size=8"
SETS = {"binary": "problem=sparse-logistic", "regression": "problem=ridge", "multiclass": NETWORK}


def audit(words: str, task: str = "regression", count: int = 4, party: int = -1) -> ReplayAudit:
    rest, _, rate = words.partition(" learning_rate=")
    config, data = config_of(f"{SMALL}{rate or 0.1} {rest}"), arrays(task, 3, 60)
    name = data.parties[party]
    neighbours: Any = PROTOCOL.neighbours
    return audit_by_replay(PROTOCOL, config, data, name, neighbours(config, data, name, count, 0))


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", "secure_aggregation=true secure_range=1e4"], ids=["open", "sums"])
@pytest.mark.parametrize("task", SETS)
def test_no_row_moves_what_is_sent_by_more_than_is_claimed(task: str, more: str) -> None:
    found = audit(f"{SETS[task]} {more}", task)
    claim, worst = found.claims["row"], found.worst["row"]
    assert claim.covered
    assert found.refuted == []
    assert not worst.bare
    assert 0 < worst.mu <= claim.mu < math.inf
    assert {shift.release_name.split()[-1] for shift in worst.shifts} == {"release"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["algorithm=svfl", "algorithm=stcd", "batch_size=20", "compression=top-k", "compression=quantise"]
)
def test_no_way_of_travelling_leaves_the_noise_behind(words: str) -> None:
    found = audit(f"{SETS['regression']} {words}")
    assert found.claims["row"].covered
    assert found.refuted == []
    assert found.worst["row"].mu > 0


def test_the_label_partys_row_is_covered_too_though_not_its_label() -> None:
    found = audit(SETS["binary"], "binary", party=0)
    assert found.claims["row"].covered
    assert found.refuted == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "task", "word", "bare"),
    [
        ("problem=ridge learning_rate=auto", "regression", "step size", "SquaredNorm"),
        (f"{NETWORK} algorithm=stcd", "multiclass", "theta_0", "Token.theta_0"),
    ],
)
def test_what_leaves_beside_the_noise_leaves_nothing_covered(
    words: str, task: str, word: str, bare: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = audit(words, task)
    assert word in " ".join(found.claims["row"].uncovered)
    assert any(bare in transfer for transfer in found.worst["row"].bare)
    monkeypatch.setattr(actors, "uncovered", lambda config: [])  # as it was stated once
    assert audit(words, task, count=1).refuted


@pytest.mark.slow
def test_noise_that_is_less_than_its_line_says_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_compression, "Noise", lambda sigma: Noise(sigma=sigma / 100))
    assert audit(SETS["regression"]).refuted


def test_a_resumed_party_is_promised_nothing() -> None:
    words = "noise=gaussian learning_rate=0.1"
    _, half, _ = simulate(f"{words} num_rounds=2")
    _, kept, _ = simulate(words, resume=half.checkpoints[-1][1])
    assert all(INTERRUPTED in line.uncovered for line in kept.records)
    assert not any(claim.covered for claim in claims(kept.records, as_if_secret=True).values())


def test_public_data_has_no_neighbours() -> None:
    config = config_of(f"{SMALL}0.1")
    with pytest.raises(BadInput, match="client-0 has public data"):
        PROTOCOL.neighbours(config, load_data(config, "synthetic", 0), "client-0", 1, 0)  # type: ignore[misc]
