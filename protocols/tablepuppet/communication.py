"""The paper's model of communication per epoch (Section 5.1, Table 6, Section 6.3), beside the bytes of the ledger.

time = rounds * latency + elements * outputs * 8 bytes * 2 directions * 8 bits / (bandwidth * 2^30 bits/s)

The published curves obey this with a gibibit per second, and count sum n_i elements for RFL-SGD-V as well, though
Table 6 and the truth are sum alpha_i; `elements` gives either. What the inner loop sends (theta, w, u and partial
gradients, independent of the rows) is left out of the elements, as in the paper; its rounds are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

Algorithm = Literal["rfl-sgd-v", "rfl-admm-v", "rfl-sgd", "rfl-admm", "vfl-sgd", "vfl-admm", "centralised"]


@dataclass(frozen=True)
class Network:
    """A wide-area link: one-way latency in seconds and bandwidth in Gbps as the paper quotes it."""

    latency_s: float
    bandwidth_gbps: float


US_UK = Network(latency_s=0.136, bandwidth_gbps=0.42)
US_US = Network(latency_s=0.067, bandwidth_gbps=1.15)


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
