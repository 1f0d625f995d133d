"""Ledger lines recomputed: what agrees, and whoever states more than their ingredients give."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedactors.auditing.audit import LedgerAudit, check_run
from fedactors.errors import BadInput
from fedactors.privacy.accounting import (
    PRESENCE,
    GaussianReleases,
    PrivacyRecord,
    check_record,
    claims,
    dpsgd_epsilon,
    epsilon_of_mu,
    record_from,
    without_guarantee,
)
from fedactors.privacy.mechanisms import flip_probability
from fedactors.privacy.noise import mu_of_epsilon
from fedactors.runs.folder import RunFolder
from fedactors.runs.metrics import json_line, jsonable


def gaussian(**changes: object) -> PrivacyRecord:
    made = GaussianReleases("Embedding", clip_norm=1.5, sigma=3.0, delta=1e-5)
    made.add(4)
    return dataclasses.replace(made.record("bank"), **changes)


def response(**changes: object) -> PrivacyRecord:
    settings = {
        "party": "bank",
        "message_type": "labels",
        "mechanism": "randomised-response",
        "neighbour": "label",
        "noise_scale": flip_probability(3, 1.5),
        "num_values": 3,
        "sensitivity": 1.0,
        "touched": 1,
        "epsilon": 1.5,
        "covered": True,
    }
    return PrivacyRecord(**{**settings, **changes})  # type: ignore[arg-type]


def dpsgd(**changes: object) -> PrivacyRecord:
    epsilon = dpsgd_epsilon(noise_multiplier=1.2, steps=100, delta=1e-5, sampling="poisson", sample_rate=0.02)
    settings = {
        "party": "bank",
        "message_type": "theta",
        "mechanism": "dp-sgd",
        "noise_scale": 2.4,
        "sensitivity": 2.0,
        "touched": 100,
        "sampling": "poisson",
        "sample_rate": 0.02,
        "epsilon": epsilon,
        "delta": 1e-5,
        "covered": True,
    }
    return PrivacyRecord(**{**settings, **changes})  # type: ignore[arg-type]


BARE = PrivacyRecord(party="bank", message_type="Report", mechanism="none", rigorous_mu=math.inf, epsilon=math.inf)


@pytest.mark.parametrize("make", [gaussian, response, dpsgd, lambda: BARE])
def test_what_follows_from_its_ingredients_agrees(make: Callable[[], PrivacyRecord]) -> None:
    assert check_record(make()).agrees


@pytest.mark.parametrize(
    ("make", "changes", "word"),
    [
        (gaussian, {"rigorous_mu": 1.0}, "rigorous_mu"),
        (gaussian, {"epsilon": 0.5}, "epsilon"),
        (gaussian, {"touched": 8}, "rigorous_mu"),
        (gaussian, {"noise_scale": 1.5}, "rigorous_mu"),
        (gaussian, {"sensitivity": 6.0}, "rigorous_mu"),
        (gaussian, {"sensitivity": None}, "without sensitivity"),
        (response, {"noise_scale": 0.1}, "epsilon"),
        (response, {"num_values": 2}, "epsilon"),
        (dpsgd, {"sample_rate": 0.04}, "epsilon"),
        (dpsgd, {"sampling": "known-batches"}, "epsilon"),
    ],
)
def test_who_states_more_than_follows_is_found_out(
    make: Callable[..., PrivacyRecord], changes: dict[str, Any], word: str
) -> None:
    found = check_record(make(**changes))
    assert not found.agrees
    assert word in found.reason


def test_lines_of_a_party_compose_and_one_without_noise_spoils_all() -> None:
    both = claims([gaussian(), gaussian(message_type="Scale"), response()])
    row, label = both["bank", "row"], both["bank", "label"]
    assert row.mu == pytest.approx(math.sqrt(2) * 2.0)
    assert row.epsilon == pytest.approx(epsilon_of_mu(row.mu, 1e-5))
    assert (label.epsilon, label.mu) == (pytest.approx(1.5), pytest.approx(mu_of_epsilon(1.5)))
    spoiled = claims([gaussian(), BARE])["bank", "row"]
    assert not spoiled.covered
    assert math.isinf(spoiled.mu)
    assert "Report" in spoiled.uncovered[0]


def test_a_replaced_row_is_promised_no_larger_delta_than_the_lines_state() -> None:
    """Group privacy alone would multiply it by e to the epsilon."""
    strong = dpsgd(neighbour=PRESENCE, noise_scale=4.0, sample_rate=0.25, touched=60, epsilon=None, covered=False)
    one = dpsgd_epsilon(noise_multiplier=2.0, steps=60, delta=1e-5, sampling="poisson", sample_rate=0.25)
    found = claims([strong, gaussian()])["bank", "row"]
    assert found.covered
    assert found.delta <= 2e-5
    every_step = math.hypot(2 * math.sqrt(60) / 2.0, 2.0)
    assert found.mu == pytest.approx(every_step)
    assert 2 * one < found.epsilon <= epsilon_of_mu(every_step, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.01, 0.25, 0.5])
def test_secret_samples_and_every_step_both_hold_and_the_less_is_promised(rate: float) -> None:
    line = dpsgd(neighbour=PRESENCE, noise_scale=3.0, sample_rate=rate, touched=40, epsilon=None, covered=False)
    found = claims([line])["bank", "row"]
    by_groups = 2 * min(
        epsilon
        for epsilon, small in (
            (dpsgd_epsilon(noise_multiplier=1.5, steps=40, delta=d, sampling="poisson", sample_rate=rate), d)
            for d in (1e-5 * math.exp(-step / 100) for step in range(10_000))
        )
        if (1 + math.exp(epsilon)) * small <= 1e-5
    )
    by_steps = epsilon_of_mu(2 * math.sqrt(40) / 1.5, 1e-5)
    assert found.epsilon == pytest.approx(min(by_groups, by_steps), rel=1e-3)
    assert found.delta == 1e-5


def test_reproducible_noise_covers_nothing_but_may_be_audited() -> None:
    line = without_guarantee(gaussian())
    assert not claims([line])["bank", "row"].covered
    assert claims([line], as_if_secret=True)["bank", "row"].covered
    with_reason = without_guarantee(gaussian(uncovered=("a model is trained on it",), covered=False))
    assert not claims([with_reason], as_if_secret=True)["bank", "row"].covered


def test_a_record_cannot_be_covered_and_not() -> None:
    with pytest.raises(ValueError, match="covered, yet not"):
        gaussian(uncovered=("a model is trained on it",))


def test_a_run_folders_ledger_is_read_as_it_was_written(tmp_path: Path) -> None:
    lines = [gaussian(), response(), dpsgd(), BARE]
    folder = RunFolder.create(tmp_path, "x", 0, {})

    def check(*lines: Any) -> LedgerAudit:
        folder.write_bytes("privacy.jsonl", "".join(f"{json_line(jsonable(line))}\n" for line in lines).encode())
        return check_run(folder)

    found = check(*lines)
    assert found.agrees
    assert [line.record.party for line in found.lines] == ["bank"] * 4
    assert record_from(json.loads(json_line(jsonable(response())))) == response()

    assert not check({**jsonable(gaussian()), "epsilon": 0.1}).agrees
    with pytest.raises(BadInput, match="who"):
        check({**jsonable(gaussian()), "who": "bank"})
