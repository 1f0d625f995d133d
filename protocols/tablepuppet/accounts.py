"""What a run sent and what that guarantees: communication beside the paper's model, and the privacy ledger's lines."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from fedactors.privacy.accounting import (
    PrivacyRecord,
    dpsgd_epsilon,
    epsilon_of_mu,
    gaussian_mu,
    laplace_label_epsilon,
    laplace_value_epsilon,
)
from fedactors.runtime.base import Runtime
from protocols.tablepuppet import communication, updates
from protocols.tablepuppet.cast import Cast
from protocols.tablepuppet.config import TablePuppetConfig
from protocols.tablepuppet.data import Seat
from protocols.tablepuppet.privacy import compose_over_tables

TRAINING_MESSAGES = (
    "Predictions", "Derivatives", "Auxiliary", "PartialGradient", "AggregatedGradient", "Consensus", "LocalParameters",
)  # fmt: skip
"""Messages of training rounds; the others map tables once, or evaluate."""
NETWORKS = {"us-uk": communication.US_UK, "us-us": communication.US_US}


async def account_communication(config: TablePuppetConfig, state: dict[str, Any], runtime: Runtime) -> dict[str, Any]:
    """Return bytes by message type, bytes of an epoch, and the paper's model of an epoch on both of its networks.

    ``ledger_seconds`` applies the paper's formula (latency of its rounds, plus bytes over bandwidth) to the bytes that
    were really sent between organisations and server.
    """
    await runtime.settle()
    facts, rounds = state["facts"], max(state["round"], 1)
    by_type: dict[str, int] = {}
    for total in runtime.ledger.totals():
        if total.kind not in ("driver", "intra-party"):
            by_type[total.type] = by_type.get(total.type, 0) + total.bytes
    sent = sum(by_type.get(name, 0) for name in TRAINING_MESSAGES)
    joined = list(facts["rows_that_join"].values())
    num_joined = facts["joined_rows"]
    if config.is_admm:
        first = 8 * facts["outputs"] * (num_joined * len(joined) if config.is_vertical else sum(joined))
        sent -= first  # the predictions of the last round's theta, which the next round would use
    trips = communication.rounds_per_epoch(config.algorithm, num_joined, config.batch_size, config.inner_rounds)
    elements = communication.elements_per_epoch(config.algorithm, num_joined, joined)
    made: dict[str, Any] = {"bytes_by_message": by_type, "epoch_bytes": sent / rounds, "epoch_rounds": trips}
    for name, network in NETWORKS.items():
        cost = communication.epoch_cost(trips, elements, facts["outputs"], network)
        seconds = trips * network.latency_s + sent / rounds * 8 / (network.bandwidth_gbps * 2**30)
        made[name] = {"model_seconds": cost.seconds, "ledger_seconds": seconds}
    return made


async def account_privacy(config: TablePuppetConfig, cast: Cast, runtime: Runtime) -> dict[str, Any]:
    """Record what every client released and what it guarantees; return the budgets by client and for a joined tuple."""
    budgets: dict[str, Any] = {}
    for seat in cast.seats:
        found = await cast.clients[seat.name].privacy_facts()
        alone = sum(other.table == seat.table for other in cast.seats) == 1
        records = [_steps(config, seat, found, alone), _predictions(config, seat, found)]
        if found["has_label"]:
            records.append(_labels(config, cast, seat))
        for record in records:
            runtime.record_privacy(_stamp(record, runtime))
        budgets[seat.name] = {r.message_type: {"epsilon": r.epsilon, "covered": r.covered} for r in records}
    if config.feature_dp is not None:
        per_table = [config.feature_dp] * len({seat.table for seat in cast.seats})
        epsilon, delta = compose_over_tables(per_table, [config.feature_delta] * len(per_table))
        budgets["joined tuple"] = {"epsilon": epsilon, "delta": delta}
    if config.algorithm == "centralised":
        budgets["centralised"] = "every feature was given away"
    if runtime.reproducible_noise:
        budgets["reproducible_noise"] = "no privacy guarantee"
    return budgets


def _steps(config: TablePuppetConfig, seat: Seat, found: dict[str, float], alone: bool) -> PrivacyRecord:
    note = "one base row of the table added or removed; a joined tuple has a row in every table, whose budgets add up"
    note += "; categories, means and deviations used in encoding, and G_i, are not covered"
    if config.feature_dp is None or found["noise_multiplier"] == 0:
        return PrivacyRecord(party=seat.name, message_type="theta", mechanism="none", note=note)
    num_rows, num_joined = int(found["num_rows"]), int(found["num_joined"])
    steps, rate = updates.total_steps(config, num_rows, num_joined, alone)
    epsilon = dpsgd_epsilon(
        noise_multiplier=found["noise_multiplier"],
        steps=steps,
        delta=config.feature_delta,
        sampling="poisson" if config.is_admm else "full",
        sample_rate=rate,
    )
    return PrivacyRecord(
        party=seat.name,
        message_type="theta",
        mechanism="dp-sgd",
        clip_norm=config.clip,
        noise_scale=found["noise_multiplier"] * config.clip,
        releases=steps,
        sampling="poisson" if config.is_admm else "known-batches",
        epsilon=epsilon,
        delta=config.feature_delta,
        covered=True,
        note=note,
    )


def _predictions(config: TablePuppetConfig, seat: Seat, found: dict[str, float]) -> PrivacyRecord:
    note = "predictions read the table again: noise in theta does not cover them, and who sees both solves for the rows"
    clip, noise = config.prediction_clip, config.prediction_noise
    if config.feature_dp is None or clip is None or noise == 0:
        return PrivacyRecord(party=seat.name, message_type="Predictions", mechanism="none", note=f"not covered: {note}")
    releases = int(found["releases"])
    mu = gaussian_mu(clip_norm=clip, sigma=noise * clip, releases=releases)
    epsilon = epsilon_of_mu(mu, config.feature_delta)
    return PrivacyRecord(
        party=seat.name,
        message_type="Predictions",
        mechanism="gaussian",
        clip_norm=clip,
        noise_scale=noise * clip,
        releases=releases,
        rigorous_mu=mu,
        epsilon=epsilon,
        delta=config.feature_delta,
        covered=math.isfinite(epsilon),
        note=f"one base row replaced; budget of its own, on top of theta's; {note}",
    )


def _labels(config: TablePuppetConfig, cast: Cast, seat: Seat) -> PrivacyRecord:
    if config.label_dp is None:
        return PrivacyRecord(party=seat.name, message_type="Labels", mechanism="none", note="labels are sent as is")
    deviation = config.label_dp
    if cast.training.loss == "squared":
        assert config.label_range is not None
        low, high = config.label_range
        epsilon, mechanism = laplace_value_epsilon(high - low, deviation), "laplace"
    else:
        epsilon, mechanism = laplace_label_epsilon(deviation), "randomised-label"
    note = "one label replaced; sums of residuals and test scores come after it, or are the label owner's own"
    return PrivacyRecord(
        party=seat.name,
        message_type="Labels",
        mechanism=mechanism,
        noise_scale=deviation,
        epsilon=epsilon,
        covered=True,
        note=note,
    )


def _stamp(record: PrivacyRecord, runtime: Runtime) -> PrivacyRecord:
    if not runtime.reproducible_noise:
        return record
    return dataclasses.replace(record, covered=False, note=f"no privacy guarantee: reproducible noise; {record.note}")
