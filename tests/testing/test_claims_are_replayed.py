"""The kit replays what a protocol claims: sound claims pass; asserted ones, missing neighbours, wrong sums do not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fedactors.protocols.pubsub_vfl import privacy
from fedactors.protocols.pubsub_vfl.plugin import PROTOCOL
from fedactors.testing.conformance import remarks_on_claims
from fedactors.testing.runs import Subject, simulate

COVERED = {"embedding_mu": 2.0, "bottom_training": "frozen", "standardisation": "private"}


def remarks(protocol: Any = PROTOCOL, **changes: Any) -> list[str]:
    subject = Subject(protocol=protocol, config={**COVERED, **changes}, data="breast-cancer", on_ray=False)
    return list(remarks_on_claims(subject, simulate(subject)))


@pytest.mark.slow
def test_a_claim_that_holds_passes() -> None:
    assert remarks() == []


@pytest.mark.slow
def test_a_claim_that_is_asserted_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy, "_reads_rows", lambda config: [])
    (remark,) = remarks(standardisation="measured")
    assert "what is sent moves by mu" in remark


@pytest.mark.slow
def test_a_claim_without_neighbours_cannot_be_replayed() -> None:
    (remark,) = remarks(dataclasses.replace(PROTOCOL, neighbours_at=""))
    assert "give it a function `neighbours`" in remark
    assert remarks(dataclasses.replace(PROTOCOL, neighbours_at=""), bottom_training="plain") == []


@pytest.mark.slow
def test_a_figure_that_does_not_follow_is_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    def halved(*args: Any) -> Any:
        return (dataclasses.replace(line, epsilon=(line.epsilon or 0) / 2) for line in honest(*args))

    honest = privacy.passive_records
    monkeypatch.setattr("fedactors.protocols.pubsub_vfl.actors.passive_records", halved)
    assert any("epsilon" in remark and "is stated" in remark for remark in remarks())
