"""What a run costs and guarantees: bytes beside the paper's model of them, default seconds, privacy ledger lines.

The paper's model of an epoch's communication (Section 5.1, Table 6, Section 6.3):

    time = rounds * latency + elements * outputs * 8 bytes * 2 directions * 8 bits / (bandwidth * 2^30 bits/s)

The published curves obey it with a gibibit per second, and count sum n_i elements for RFL-SGD-V as well, though
Table 6 and the truth are sum alpha_i; `elements_per_epoch` gives either. What the inner loop sends (theta, w, u and
partial gradients, independent of the rows) is left out of the elements, as in the paper; its rounds are counted.

Privacy: labels have a mechanism of their own (Eq. 25). Noise in theta covers one base row of one table; a joined tuple
has a row in every table, so for one of these all lines of all tables compose (`fedactors.privacy.accounting`).
Predictions h = f(theta; T) read the table again and are *not* covered by the noise in theta: who sees theta and h
solves for the rows (`fedactors.auditing.attacks`). They need their own clipping, noise and budget; sums under masks
(`secure_aggregation`) hide whose part of a sum is whose from a server that follows the protocol, and bound nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

from fedactors.data.alignment.rows import COSTS as JOIN_COSTS
from fedactors.learning.metrics import LOCAL_BASELINE
from fedactors.privacy.accounting import (
    INTERRUPTED,
    PRESENCE,
    GaussianReleases,
    PrivacyRecord,
    dpsgd_epsilon,
    laplace_label_epsilon,
    laplace_value_epsilon,
)
from fedactors.protocols.tablepuppet.config import TablePuppetConfig
from fedactors.protocols.tablepuppet.local_solvers import total_steps
from fedactors.protocols.tablepuppet.messages import JoinFacts
from fedactors.runtime.interface import Costs, Runtime

Algorithm = Literal["rfl-sgd-v", "rfl-admm-v", "rfl-sgd", "rfl-admm", "vfl-sgd", "vfl-admm", "centralised"]


@dataclass(frozen=True)
class Network:
    """A wide-area link: one-way latency in seconds and bandwidth in Gbps as the paper quotes it."""

    latency_s: float
    bandwidth_gbps: float


US_UK = Network(latency_s=0.136, bandwidth_gbps=0.42)
US_US = Network(latency_s=0.067, bandwidth_gbps=1.15)
NETWORKS = {"us-uk": US_UK, "us-us": US_US}
TRAINING_MESSAGES = (
    "Predictions", "Derivatives", "Auxiliary", "PartialGradient", "AggregatedGradient", "Consensus", "LocalParameters",
)  # fmt: skip
"""Messages of training rounds; the others map tables once, or evaluate."""


@dataclass(frozen=True)
class EpochCost:
    """What the model says of one epoch."""

    rounds: int
    elements: int
    num_bytes: int
    seconds: float


def rounds_per_epoch(algorithm: Algorithm, num_joined: int, batch_size: int, inner_rounds: int) -> int:
    """Return communication rounds: ADMM 1, SGD one for each batch; partitions add the inner loop's (SGD 1, ADMM T')."""
    if algorithm == "centralised":
        return 0
    if algorithm in ("vfl-admm", "rfl-admm-v", "rfl-admm"):
        return 1 + (inner_rounds if algorithm == "rfl-admm" else 0)
    return ceil(num_joined / batch_size) * (2 if algorithm == "rfl-sgd" else 1)


def elements_per_epoch(
    algorithm: Algorithm, num_joined: int, joined_rows: Sequence[int], touched_rows: Sequence[int] | None = None
) -> int:
    """Return the rows whose values cross the network in one direction (Table 6).

    Args:
        algorithm: VFL sends M N rows, RFL the rows that join.
        num_joined: N.
        joined_rows: n_i of each table, counting only rows that join.
        touched_rows: alpha_i for SGD; None counts n_i, as the published curves do.
    """
    if algorithm == "centralised":
        return 0
    if algorithm.startswith("vfl"):
        return num_joined * len(joined_rows)
    if "sgd" in algorithm and touched_rows is not None:
        return sum(touched_rows)
    return sum(joined_rows)


def epoch_cost(rounds: int, elements: int, num_outputs: int, network: Network) -> EpochCost:
    """Return bytes (both directions) and seconds of an epoch."""
    num_bytes = elements * num_outputs * 8 * 2
    seconds = rounds * network.latency_s + num_bytes * 8 / (network.bandwidth_gbps * 2**30)
    return EpochCost(rounds=rounds, elements=elements, num_bytes=num_bytes, seconds=seconds)


async def account_communication(
    config: TablePuppetConfig, facts: JoinFacts, num_rounds: int, runtime: Runtime
) -> dict[str, Any]:
    """Return bytes by message type, bytes of an epoch, and the paper's model of an epoch on both of its networks.

    ``ledger_seconds`` applies the paper's formula (latency of its rounds, plus bytes over bandwidth) to the bytes that
    were really sent between organisations and server.
    """
    await runtime.settle()
    by_type: dict[str, int] = {}
    for total in runtime.ledger.totals():
        if total.kind not in ("driver", "intra-party"):
            by_type[total.type] = by_type.get(total.type, 0) + total.bytes
    sent = sum(by_type.get(name, 0) for name in TRAINING_MESSAGES)
    joined, num_joined = list(facts.rows_that_join.values()), facts.joined_rows
    if config.is_admm:
        first = 8 * facts.outputs * (num_joined * len(joined) if config.is_vertical else sum(joined))
        sent -= first  # the predictions of the last round's theta, which the next round would use
    trips = rounds_per_epoch(config.algorithm, num_joined, config.batch_of(num_joined), config.inner_rounds)
    elements = elements_per_epoch(config.algorithm, num_joined, joined)
    epoch_bytes = sent / max(num_rounds, 1)
    made: dict[str, Any] = {"bytes_by_message": by_type, "epoch_bytes": epoch_bytes, "epoch_rounds": trips}
    for name, network in NETWORKS.items():
        cost = epoch_cost(trips, elements, facts.outputs, network)
        seconds = trips * network.latency_s + epoch_bytes * 8 / (network.bandwidth_gbps * 2**30)
        made[name] = {"model_seconds": cost.seconds, "ledger_seconds": seconds}
    return made


@dataclass(frozen=True)
class Released:
    """What one client knows of what it released."""

    party: str
    num_rows: int
    num_joined: int
    alone: bool
    """Whether its table has one partition."""
    noise_multiplier: float
    steps: int
    """Noisy sums that each row may have been in."""
    predictions: int
    """How often each row's prediction was released."""
    label_loss: str | None
    """The loss, if the client has labels."""
    is_restored: bool
    """Whether it was restored from a checkpoint, after which it may have released more than it knows."""


def privacy_records(config: TablePuppetConfig, released: Released) -> Iterator[PrivacyRecord]:
    """Yield the ledger's lines of one client: its facts, its steps, its predictions, and its labels if it has any."""
    if not config.declared_facts:
        note = "categories, means and deviations by which rows are encoded are the table's own, without noise"
        yield _bare(released, "Facts", note)
    yield _steps(config, released)
    yield _predictions(config, released)
    if released.label_loss is not None:
        yield _labels(config, released)


def _bare(released: Released, message_type: str, note: str, **more: Any) -> PrivacyRecord:
    return PrivacyRecord(party=released.party, message_type=message_type, mechanism="none", note=note, **more)


def _steps(config: TablePuppetConfig, released: Released) -> PrivacyRecord:
    note = "one base row of the table added or removed; a joined tuple has a row in every table: see the joint account"
    note += "; G_i is not covered"
    if config.feature_dp is None or released.noise_multiplier == 0:
        return _bare(released, "theta", note, neighbour=PRESENCE)
    steps, (_, rate) = released.steps, total_steps(config, released.num_rows, released.num_joined, released.alone)
    is_sampled = config.is_admm and rate < 1  # a table of one batch is in every step
    epsilon = dpsgd_epsilon(
        noise_multiplier=released.noise_multiplier,
        steps=steps,
        delta=config.feature_delta,
        sampling="poisson" if is_sampled else "full",
        sample_rate=rate,
    )
    return PrivacyRecord(
        party=released.party,
        message_type="theta",
        mechanism="dp-sgd",
        neighbour=PRESENCE,
        clip_norm=config.clip,
        noise_scale=released.noise_multiplier * config.clip,
        releases=steps,
        sampling="poisson" if is_sampled else "known-batches",
        sensitivity=config.clip,
        touched=steps,
        sample_rate=rate if is_sampled else 1.0,
        epsilon=epsilon,
        delta=config.feature_delta,
        uncovered=(INTERRUPTED,) if released.is_restored else (),
        covered=False,
        note=f"{note}; predictions and facts read the same row: the joint account alone covers it",
    )


def _predictions(config: TablePuppetConfig, released: Released) -> PrivacyRecord:
    note = "predictions read the table again: noise in theta does not cover them, and who sees both solves for the rows"
    clip, noise = config.prediction_clip, config.prediction_noise
    if config.feature_dp is None or clip is None or noise == 0:
        return _bare(released, "Predictions", f"not covered: {note}")
    note = f"one base row replaced; budget of its own, on top of theta's: the joint account alone covers it; {note}"
    made = GaussianReleases("Predictions", clip_norm=clip, sigma=noise * clip, delta=config.feature_delta, note=note)
    made.add(times=released.predictions)
    unknown = (INTERRUPTED,) if released.is_restored else ()
    return dataclasses.replace(made.record(released.party, uncovered=unknown), covered=False)


def _labels(config: TablePuppetConfig, released: Released) -> PrivacyRecord:
    if config.label_dp is None:
        return _bare(released, "Labels", "labels are sent as is")
    deviation, moved = config.label_dp, 2.0
    if released.label_loss == "squared":
        low, high = config.label_range or (0.0, 0.0)
        epsilon, mechanism, moved = laplace_value_epsilon(high - low, deviation), "laplace", high - low
    else:
        epsilon, mechanism = laplace_label_epsilon(deviation), "randomised-label"
    # labels leave once, and are in every checkpoint, so a restored client knows what it released;
    # a class that one row alone has is told by its absence from a neighbour's
    is_told = released.label_loss == "softmax" and not config.declared_facts
    uncovered = ("which classes occur is told without noise: declare them in declared_facts",) if is_told else ()
    return PrivacyRecord(
        party=released.party,
        message_type="Labels",
        mechanism=mechanism,
        neighbour="label",
        noise_scale=deviation,
        sensitivity=moved,
        touched=1,
        epsilon=epsilon,
        uncovered=uncovered,
        covered=not uncovered,
        note="one label replaced, of a training or a test row; sums of residuals and test scores come after it",
    )


_OVERHEAD = 2e-5


def default_costs(config: TablePuppetConfig) -> Costs:
    """Return the default cost model of the simulated runtime: seconds on one core for each kind of work.

    Units are multiply-adds or rows times columns, counted by the actors; seconds a unit were measured with
    `scenarios/benchmarks/tablepuppet_training.py` (MovieLens-1M, float64, one thread) and rounded.
    """
    passes = float(config.local_epochs) if config.admm == "paper_sgd" else 1.0
    if config.model == "neural" and config.admm != "paper_sgd":
        passes = float(config.lbfgs_iterations)
    return Costs(
        {
            **JOIN_COSTS,
            LOCAL_BASELINE: (0.0, 0.0),
            "encode": (_OVERHEAD, 2e-8),
            "factorise": (_OVERHEAD, 5e-10),
            "predict": (_OVERHEAD, 1e-9),
            "gradient": (_OVERHEAD, 2e-9),
            "solve": (_OVERHEAD, 2e-9 * passes),
            "gather": (_OVERHEAD, 2e-8),
            "server-step": (_OVERHEAD, 3e-8),
            "scatter": (_OVERHEAD, 5e-9),
            "coordinate": (_OVERHEAD, 1e-9),
            "centralised": (_OVERHEAD, 3e-9),
        }
    )
