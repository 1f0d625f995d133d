"""Which (w_a, w_p, B) to train with: the paper's cost model, and one of whole epochs (Section 4, Algorithm 2).

`fedactors plan pubsub-vfl` goes from the parties' profile files to a setting, with what it is predicted to cost.

    literal    max(T_A, T_P) + (E + G) / bandwidth of one iteration (Eq. 14), T = (sum of lambda B^gamma) w / C
    epoch      ceil(n/B) (max(T_A, T_P) / min(w_a, w_p) + (E + G) / bandwidth) + synchronisation
    decoupled  ceil(n/B) max(T_A / w_a, T_P / w_p, (E + G) / bandwidth) + synchronisation

The literal cost grows with w and so always asks for the fewest workers. In `epoch` and `decoupled` T is the time of one
worker that computes on one core, and w/C times that when more workers than cores share them. Both also count what the
paper's model leaves out: the processor time of a batch's messages and, where a latency is stated, an epoch's beginning
and end, and a window too small to hide the hops of a batch. The search tries all settings (the paper calls it dynamic
programming); ties go to fewer workers, then to the smaller batch.

Symbols: n rows, B batch size, w workers, C cores, E and G bytes of a batch's embedding and gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from fedactors.errors import BadInput
from fedactors.network.codec import message
from fedactors.network.links import LAN
from protocols.pubsub_vfl.config import PubSubVflConfig

BATCH_SIZES = (16, 32, 64, 128, 256, 512, 1024)
WORKERS = range(2, 51)
_SHOWN = 10
HOPS_PER_BATCH = 8
"""Messages between parties, one after another, from a batch's assignment to its gradient's acknowledgement."""
HOPS_PER_EPOCH = 10
"""Likewise the first request for work, one batch's hops, and the word that the epoch is over."""
Objective = Literal["epoch", "decoupled", "literal", "literal-per-sample"]


@message(reveals="how fast the party's machine trains its models: fitted constants, no data")
class PowerLaw:
    """Seconds (or bytes) as ``scale * B ** exponent``."""

    scale: float
    exponent: float


@message(reveals="the party's cores, memory and fitted constants; nothing of its rows")
class PartyProfile:
    """What a party tells of its machine; `phases` are forward, backward and, of the active party, those of the top."""

    role: str
    cores: int
    phases: tuple[PowerLaw, ...]
    memory_base: float
    """Bytes of a worker without a batch (M_0)."""
    memory_per_batch: PowerLaw
    """Bytes more for a batch (rho B^chi)."""
    memory_available: float
    """Bytes that a worker may use."""
    sync_seconds: float
    """Seconds by which each worker lengthens an average of parameters."""
    message_seconds: float = 0.0
    """Processor seconds of a worker for the messages of a batch."""


@dataclass(frozen=True)
class Plan:
    """A setting and what it is predicted to cost, in seconds of `objective`."""

    num_active_workers: int
    num_passive_workers: int
    batch_size: int
    cost: float


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is planned for. `row_bytes` is what a row's embedding and gradient take together."""

    active: PartyProfile
    passive: PartyProfile
    num_rows: int = 1
    row_bytes: float = 0.0
    bandwidth: float = math.inf
    shared_link: bool = True
    """Whether batches in flight share the bandwidth; otherwise each has it, and a transfer only adds to its way."""
    latency: float = 0.0
    """Seconds of one hop between the parties."""
    in_flight_per_worker: float = math.inf
    """Batches in flight for each worker of the passive party."""

    def communication(self, batch_size: int) -> float:
        """Return (E + G) / bandwidth of a batch (Eq. 9)."""
        return self.row_bytes * batch_size / self.bandwidth


def max_batch_size(profiles: Iterable[PartyProfile]) -> float:
    """Return B_max, the largest batch that fits every party's memory (Eq. 13)."""
    limits = []
    for profile in profiles:
        spare, law = profile.memory_available - profile.memory_base, profile.memory_per_batch
        limits.append(math.pow(max(spare, 0.0) / law.scale, 1 / law.exponent) if law.scale > 0 else math.inf)
    return min(limits)


def batch_seconds(profile: PartyProfile, batch_size: int, *, per_sample: bool = False) -> float:
    """Return the seconds of all phases of one batch on one core; `per_sample` laws are multiplied by B."""
    seconds = sum(phase.scale * math.pow(batch_size, phase.exponent) for phase in profile.phases)
    return seconds * batch_size if per_sample else seconds


def cost(problem: Problem, w_a: int, w_p: int, batch_size: int, objective: Objective = "epoch") -> float:
    """Return the objective at one setting; see the module."""
    active, passive = problem.active, problem.passive
    per_sample = objective == "literal-per-sample"
    t_a = batch_seconds(active, batch_size, per_sample=per_sample)
    t_p = batch_seconds(passive, batch_size, per_sample=per_sample)
    transfer = problem.communication(batch_size)
    if objective in ("literal", "literal-per-sample"):
        return max(t_a * w_a / active.cores, t_p * w_p / passive.cores) + transfer
    t_a, t_p = t_a + active.message_seconds, t_p + passive.message_seconds
    t_a, t_p = t_a * max(1.0, w_a / active.cores), t_p * max(1.0, w_p / passive.cores)
    num_batches = math.ceil(problem.num_rows / batch_size)
    synchronisation = max(active.sync_seconds * w_a, passive.sync_seconds * w_p)
    window, ends = _hops(problem, w_p, t_a + t_p + transfer)
    busy = transfer if problem.shared_link else 0.0
    if objective == "epoch":
        return num_batches * max(max(t_a, t_p) / min(w_a, w_p) + busy, window) + ends + synchronisation
    return num_batches * max(t_a / w_a, t_p / w_p, busy, window) + ends + synchronisation


def _hops(problem: Problem, w_p: int, seconds_of_batch: float) -> tuple[float, float]:
    """Return the seconds per batch that the window allows, and those that an epoch takes beyond its batches."""
    if not problem.latency:
        return 0.0, 0.0
    way = HOPS_PER_BATCH * problem.latency + seconds_of_batch
    return way / (problem.in_flight_per_worker * w_p), HOPS_PER_EPOCH * problem.latency + seconds_of_batch


def epoch_cost_of_shared_cores(problem: Problem, w_a: int, w_p: int, batch_size: int) -> float:
    """Return the epoch with Eq. 7's assumption that a worker uses C/w cores, however many, without loss.

    Time is then T w / C per batch and w does not matter where the parties are balanced: settings tie.
    """
    t_a = batch_seconds(problem.active, batch_size, per_sample=True) * w_a / problem.active.cores
    t_p = batch_seconds(problem.passive, batch_size, per_sample=True) * w_p / problem.passive.cores
    return math.ceil(problem.num_rows / batch_size) * max(t_a, t_p) / min(w_a, w_p)


def search(
    problem: Problem,
    objective: Objective = "epoch",
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    workers: Iterable[int] = WORKERS,
) -> list[Plan]:
    """Return all feasible settings, the best first (Algorithm 2).

    Raises:
        BadInput: not even the smallest batch fits the memory.
    """
    limit = max_batch_size((problem.active, problem.passive))
    feasible = [size for size in batch_sizes if size <= limit]
    if not feasible:
        raise BadInput(f"profile: no batch size of {', '.join(map(str, batch_sizes))} fits the memory stated")
    counts = tuple(workers)
    plans = [
        Plan(w_a, w_p, size, cost(problem, w_a, w_p, size, objective))
        for size in feasible
        for w_a in counts
        for w_p in counts
    ]
    return sorted(
        plans, key=lambda plan: (plan.cost, plan.num_active_workers + plan.num_passive_workers, plan.batch_size)
    )


def weakest(passive: Sequence[PartyProfile], batch_size: int = 256) -> PartyProfile:
    """Return the passive party with the least throughput: several parties are planned against it (Appendix H)."""
    return min(passive, key=lambda profile: profile.cores / batch_seconds(profile, batch_size))


def profile_from(values: Mapping[str, Any]) -> PartyProfile:
    """Build a profile from a table of names and values.

    Raises:
        BadInput: names what is missing or not allowed.
    """
    names = {field.name for field in fields(PartyProfile)}
    if missing := sorted(names - {"message_seconds"} - values.keys()):
        raise BadInput(f"profile: {', '.join(missing)} missing")
    if values["role"] not in ("active", "passive"):
        raise BadInput(f"profile: role: {values['role']!r} is not allowed: active or passive")
    try:
        return PartyProfile(
            role=str(values["role"]),
            cores=int(values["cores"]),
            phases=tuple(PowerLaw(float(p["scale"]), float(p["exponent"])) for p in values["phases"]),
            memory_base=float(values["memory_base"]),
            memory_per_batch=PowerLaw(
                float(values["memory_per_batch"]["scale"]), float(values["memory_per_batch"]["exponent"])
            ),
            memory_available=float(values["memory_available"]),
            sync_seconds=float(values["sync_seconds"]),
            message_seconds=float(values.get("message_seconds", 0.0)),
        )
    except (TypeError, KeyError, ValueError) as error:
        raise BadInput(f"profile: a value is not a number or a table: {error}") from None


def plan(config: PubSubVflConfig, profiles: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the best setting for the profiles of one active and one or more passive parties.

    A profile may carry ``num_rows``, ``bandwidth`` (bytes per second) and ``latency`` (seconds) beside the fields of
    `PartyProfile`.

    Raises:
        BadInput: not exactly one active party, no passive one, or a profile that is incomplete.
    """
    parties = [profile_from(values) for values in profiles]
    active = [profile for profile in parties if profile.role == "active"]
    passive = [profile for profile in parties if profile.role == "passive"]
    if len(active) != 1 or not passive:
        raise BadInput(f"--profile: {len(active)} active and {len(passive)} passive given: one and at least one needed")
    itemsize = 8 if config.float64 else 4
    problem = Problem(
        active=active[0],
        passive=weakest(passive),
        num_rows=int(max(values.get("num_rows", 0) for values in profiles) or 100_000),
        row_bytes=2.0 * config.embedding_size * itemsize,
        bandwidth=float(min(values.get("bandwidth", LAN.bandwidth) for values in profiles)),
        latency=float(max(values.get("latency", 0.0) for values in profiles)),
    )
    found: dict[str, Any] = {}
    for objective in ("epoch", "decoupled", "literal"):
        plans = search(problem, objective)
        found[objective] = [asdict(made) for made in plans[:_SHOWN]]
    best = found["epoch"][0]
    return {
        "num_active_workers": best["num_active_workers"],
        "num_passive_workers": best["num_passive_workers"],
        "batch_size": best["batch_size"],
        "predicted_epoch_seconds": best["cost"],
        "max_batch_size": max_batch_size((problem.active, problem.passive)),
        "num_rows": problem.num_rows,
        "bandwidth": problem.bandwidth,
        "best_by_objective": found,
    }
