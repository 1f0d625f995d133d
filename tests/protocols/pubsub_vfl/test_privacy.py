"""What PubSub-VFL promises for a record, replayed: the paper's account is refuted, the covered settings are not."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fedactors.auditing.audit import one_run_epsilon
from fedactors.auditing.replay import ReplayAudit, audit_by_replay
from fedactors.data.layouts.vertical import Neighbour
from fedactors.data.sources import ArraySource
from fedactors.privacy.accounting import check_record, claims, epsilon_of_mu
from fedactors.protocols.pubsub_vfl import privacy
from fedactors.protocols.pubsub_vfl.data import load_data
from fedactors.protocols.pubsub_vfl.plugin import PROTOCOL
from fedactors.protocols.pubsub_vfl.run import run
from fedactors.runtime import snapshots
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.protocols.pubsub_vfl.runs import arrays, config_of, simulate

FROZEN: dict[str, Any] = {"embedding_mu": 2.0, "bottom_training": "frozen", "standardisation": "private"}
PRIVATE: dict[str, Any] = {**FROZEN, "bottom_training": "private"}


def audit(party: str = "passive", count: int = 5, data: Any = "breast-cancer", **changes: Any) -> ReplayAudit:
    config = config_of(**changes)
    loaded = load_data(config, data, 0) if isinstance(data, str) else data
    found: Sequence[Neighbour] = PROTOCOL.neighbours(config, loaded, party, count, 0)  # type: ignore[misc]
    return audit_by_replay(PROTOCOL, config, loaded, party, found)


@pytest.mark.slow
def test_the_papers_account_of_rows_is_refuted_and_nothing_is_promised() -> None:
    found = audit(privacy_mu=1.0)
    line = simulate(privacy_mu=1.0).runtime.privacy_records
    rows = next(record for record in line if record.message_type == "Embedding")
    claim = found.claims["row"]
    assert not claim.covered
    assert {"scale", "bottom"} <= {word for reason in claim.uncovered for word in reason.split()}
    assert found.worst["row"].mu > 1.5 * rows.rigorous_mu > 1.0
    assert not found.worst["row"].bare  # what leaves is noised: the noise is too little for what a row moves


@pytest.mark.slow
@pytest.mark.parametrize("settings", [FROZEN, PRIVATE], ids=["frozen", "private"])
@pytest.mark.parametrize("algorithm", ["pubsub-vfl", "vfl"])
def test_a_covered_claim_survives_every_neighbour(settings: dict[str, Any], algorithm: str) -> None:
    found = audit(count=10, algorithm=algorithm, **settings)
    claim, worst = found.claims["row"], found.worst["row"]
    assert claim.covered
    assert math.isfinite(claim.mu)
    assert found.refuted == []
    # the audit is worth something: an extreme row comes near what is claimed
    assert 0.3 * claim.mu < worst.mu <= claim.mu * (1 + 1e-5)
    assert {shift.release_name.split()[-1] for shift in worst.shifts} >= {"Embedding", "Standardisation"}


@pytest.mark.slow
def test_several_workers_and_regression_are_covered_alike() -> None:
    settings = {"num_active_workers": 2, "num_passive_workers": 2, "num_parties": 3}
    found = audit("passive-1", data=arrays("regression", 3, 200), **PRIVATE, **settings)
    assert found.claims["row"].covered
    assert found.refuted == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({**FROZEN, "standardisation": "measured"}, "scale"),
        ({**FROZEN, "bottom_training": "plain", "embedding_mu": 20.0, "batch_size": 16, "num_epochs": 8}, "bottom"),
    ],
)
def test_who_asserts_what_is_not_computed_is_refuted(
    settings: dict[str, Any], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert word in " ".join(audit(count=1, **settings).claims["row"].uncovered)
    monkeypatch.setattr(privacy, "_reads_rows", lambda config: [])
    found = audit(**settings)
    assert found.claims["row"].covered
    assert len(found.refuted) == 1


@pytest.mark.slow
def test_noise_that_is_less_than_its_line_says_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = privacy.bottom_sigma
    # the actors' own name of it: they draw a tenth of what the ledger states
    monkeypatch.setattr("fedactors.protocols.pubsub_vfl.actors.bottom_sigma", lambda config: honest(config) / 10)
    assert audit(**PRIVATE).refuted


@pytest.mark.slow
def test_exchanged_labels_are_covered_and_rows_of_the_active_party_are_not() -> None:
    found = audit("active", label_epsilon=1.0)
    assert found.claims["label"].covered
    assert found.claims["label"].epsilon == pytest.approx(1.0)
    assert not found.claims["row"].covered
    assert found.refuted == []
    assert found.worst["label"].epsilon(1e-5) == pytest.approx(1.0)
    assert found.worst["row"].bare


@pytest.mark.slow
def test_labels_without_exchange_leave_with_the_gradients() -> None:
    found = audit("active", count=3)
    assert "label" not in found.claims
    assert math.isinf(found.worst["label"].mu)
    assert any("Gradient" in transfer for transfer in found.worst["label"].bare)


@pytest.mark.slow
def test_noised_gradients_alone_cover_nothing() -> None:
    found = audit("active", count=3, gradient_mu=1.0)
    assert not found.claims["row"].covered
    assert found.worst["label"].mu > 1.0


@pytest.mark.slow
def test_lines_follow_from_what_was_released() -> None:
    for settings, released in ((PRIVATE, 3), (FROZEN, 1)):
        done = simulate(**settings)
        lines = {record.message_type: record for record in done.runtime.privacy_records if record.party == "passive"}
        assert lines["Embedding"].touched == lines["Embedding"].releases == released
        assert lines["Embedding"].rigorous_mu == pytest.approx(2.0)
        assert all(check_record(record).agrees and record.covered for record in lines.values())
        assert lines["column scale"].rigorous_mu == pytest.approx(0.5)
    assert "bottom gradients" not in lines


def test_a_frozen_bottom_releases_each_row_once_and_learns_nothing() -> None:
    done = simulate(**FROZEN, runtime={"reproducible_noise": True})
    assert (done.vectors(0, "passive/worker-0")[0] == done.vectors(-1, "passive/worker-0")[0]).all()
    assert not (done.vectors(0, "active/worker-0")[0] == done.vectors(-1, "active/worker-0")[0]).all()


@pytest.mark.slow
def test_a_restored_party_counts_what_it_may_have_forgotten() -> None:
    whole = simulate(**PRIVATE)
    resumed = simulate(**PRIVATE, resume=whole.recorder.all[1])
    claim = claims(resumed.runtime.privacy_records)["passive", "row"]
    assert not claim.covered
    assert any("restored" in reason for reason in claim.uncovered)
    frozen = simulate(**FROZEN, resume=simulate(**FROZEN).recorder.all[1])
    line = next(record for record in frozen.runtime.privacy_records if record.message_type == "Embedding")
    assert not line.covered  # it may have been restored from there before, and have released then too
    assert line.touched == 3  # before, perhaps after the checkpoint, and again
    state = snapshots.unseal(whole.recorder.all[1].actors["passive/worker-0"], "")["state"]
    assert "counts" in state


@pytest.mark.parametrize("factor", [1.0, 100.0])
def test_canaries_in_one_run_bound_epsilon_from_below(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the passive party's rows are one of two extreme rows by coin; who sees embeddings guesses which."""
    claimed = 0.5
    settings = {**FROZEN, "embedding_mu": claimed, "standardisation": "none", "num_epochs": 1, "test_fraction": 0.01}
    config, num_rows, rng = config_of(**settings), 400, np.random.default_rng(3)
    data = arrays("multiclass", 2, num_rows)
    coins = rng.integers(0, 2, (num_rows, 1))
    extreme = ArraySource(ids=np.arange(num_rows), features=np.where(coins, 1e3, -1e3).repeat(3, 1).astype(np.float32))
    data = dataclasses.replace(data, sources=(data.sources[0], extreme))
    sent: dict[int, np.ndarray] = {}
    exact: dict[int, np.ndarray] = {}
    monkeypatch.setattr(
        "fedactors.protocols.pubsub_vfl.actors.clip_and_noise",
        _listening(sent, exact, factor),
    )
    runtime = SimulatedRuntime(seed=0)
    runtime.execute(lambda: run(config, data, runtime))
    seen, true = np.concatenate(list(sent.values())), np.concatenate(list(exact.values()))
    # the attacker knows both embeddings; which row had which is the question
    heads = true @ (true[0] - true[np.argmin(true @ true[0])]) > 0
    scores = seen @ (true[heads].mean(axis=0) - true[~heads].mean(axis=0))
    found = one_run_epsilon(scores, heads.astype(int), delta=1e-5)
    promised = epsilon_of_mu(claimed, 1e-5)
    assert (found <= promised) == (factor == 1.0)


def _listening(sent: dict[int, np.ndarray], exact: dict[int, np.ndarray], factor: float) -> Any:
    from fedactors.privacy.mechanisms import clip_and_noise, clip_rows

    def listen(rows: np.ndarray, clip: float, sigma: float, rng: Any, name: str) -> np.ndarray:
        noisy = clip_and_noise(rows, clip, sigma / factor, rng, name)
        exact[len(exact)], sent[len(sent)] = clip_rows(rows, clip), noisy
        return noisy

    return listen
