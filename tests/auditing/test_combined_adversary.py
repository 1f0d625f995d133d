"""Everything an adversary sees, put together: within an honest claim, beyond one whose noise is less than its law."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedactors.auditing.attacks import CombinedAdversary, combined_adversary, largest_auc
from fedactors.config import build
from fedactors.launch import load_data
from fedactors.privacy import mechanisms
from fedactors.privacy.accounting import Claim
from fedactors.protocols.pubsub_vfl.plugin import PROTOCOL
from fedactors.protocols.pubsub_vfl.privacy import neighbours

SMALL: dict[str, Any] = {"num_epochs": 1, "num_layers": 1, "hidden_size": 8, "embedding_size": 4, "batch_size": 256}
SMALL["local_baseline"] = False  # which takes longer than all the rest
FROZEN = {**SMALL, "bottom_training": "frozen", "embedding_mu": 0.4, "standardisation": "private"}


def claim(mu: float) -> Claim:
    return Claim(party="passive", neighbour="row", mu=mu, epsilon=1.0, delta=1e-5, covered=True, uncovered=())


def attacked(runs: int = 40, **settings: Any) -> CombinedAdversary:
    config = build(PROTOCOL.Config, settings)
    data = load_data(PROTOCOL, config, "breast-cancer", 0)
    million = next(one for one in neighbours(config, data, "passive", 4, 0) if "million" in one.label)
    return combined_adversary(PROTOCOL, config, data, "passive", million, runs=runs)


@pytest.mark.parametrize(("mu", "largest"), [(0.0, 0.5), (2.0, 0.92135), (float("inf"), 1.0)])
def test_what_a_claim_allows(mu: float, largest: float) -> None:
    assert largest_auc(claim(mu)) == pytest.approx(largest, abs=1e-5)


@pytest.mark.slow
def test_an_honest_claim_is_not_exceeded() -> None:
    found = attacked(**FROZEN, standardisation_mu=0.3)
    assert found.bare == ()
    assert not found.exceeds(claim(0.5))


@pytest.mark.slow
def test_noise_that_is_less_than_its_law_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledger, replay and claim all say mu 0.4; only what really leaves shows that it is not so."""
    honest = mechanisms.add_gaussian

    class Quiet:
        def __init__(self, rng: np.random.Generator) -> None:
            self._rng = rng

        def standard_normal(self, *shape: Any) -> Any:
            return self._rng.standard_normal(*shape) / 20

    def too_little(values: Any, sigma: float, rng: Any, name: str = "", *rest: Any, **more: Any) -> Any:
        return honest(values, sigma, Quiet(rng), name, *rest, **more)  # type: ignore[arg-type]

    quiet_scale = {**FROZEN, "standardisation": "none"}  # the embeddings' noise alone decides
    assert not attacked(**quiet_scale).exceeds(claim(0.4))
    monkeypatch.setattr(mechanisms, "add_gaussian", too_little)
    found = attacked(**quiet_scale)
    assert found.by_releases.low > largest_auc(claim(0.4))
    assert found.exceeds(claim(0.4))


@pytest.mark.slow
def test_what_leaves_without_noise_exceeds_any_claim() -> None:
    open_run = attacked(runs=8, **SMALL)
    assert open_run.bare
    assert open_run.exceeds(claim(5.0))
