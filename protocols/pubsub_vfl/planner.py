"""Which (w_a, w_p, B) to train with: the paper's cost model, and one of whole epochs (Section 4, Algorithm 2).

`fedactors plan pubsub-vfl` goes from the parties' profile files to a setting, with what it is predicted to cost.

    literal    max(T_A, T_P) + (E + G) / bandwidth of one iteration (Eq. 14), T = (sum of lambda B^gamma) w / C
    epoch      ceil(n/B) (max(T_A, T_P) / min(w_a, w_p) + (E + G) / bandwidth) + synchronisation
    pipeline   ceil(n/B) max(T_A / w_a, T_P / w_p, max(E, G) / bandwidth, S) + synchronisation

The literal cost grows with w and so always asks for the fewest workers. In `epoch` and `pipeline` T is the time of one
worker that computes on one core, and w/C times that when more workers than cores share them. Both also count what the
paper's model leaves out: the processor time of a batch's messages and, where a latency is stated, an epoch's beginning
and end, and a window too small to hide the hops of a batch. `pipeline`, by which the command chooses, is what the
runtime does: everything goes on at once, embeddings and gradients in opposite directions of the link, and S is the time
of a batch's steps at a parameter server that steps for its workers one gradient after the other. The search tries all
settings (the paper calls it dynamic programming); ties go to fewer workers, then to the smaller batch.

Symbols: n rows, B batch size, w workers, C cores, E and G bytes of a batch's embedding and gradient.
"""

from __future__ import annotations

import dataclasses
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
"""Those of the paper."""
ALL_WORKERS = range(1, 51)
_SHOWN = 10
HOPS_PER_BATCH: Mapping[str, int] = {"fetched": 8, "sent": 2}
"""Messages between parties, one after another, for which a batch counts as in flight, by `payloads`."""
HOPS_PER_EPOCH: Mapping[str, int] = {"fetched": 10, "sent": 5}
"""Likewise the first order (where it is asked for, that too), all of one batch's hops, and the word of the end."""
Objective = Literal["epoch", "pipeline", "literal", "literal-per-sample"]


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
    server_step_seconds: float = 0.0
    """Seconds of a step at the parameter server."""


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
    payloads: str = "fetched"
    """How embeddings and gradients travel."""
    steps_at_server: bool = False
    """Whether the parameter servers of parties of several workers step."""

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
    way = _way(problem, t_a + t_p + transfer)
    window = way / (problem.in_flight_per_worker * w_p) if problem.latency else 0.0
    ends = HOPS_PER_EPOCH[problem.payloads] * problem.latency + t_a + t_p + transfer if problem.latency else 0.0
    busy = transfer if problem.shared_link else 0.0
    if objective == "epoch":
        return num_batches * max(max(t_a, t_p) / min(w_a, w_p) + busy, window) + ends + synchronisation
    steps = max(_server_seconds(problem, active, w_a), _server_seconds(problem, passive, w_p))
    return num_batches * max(t_a / w_a, t_p / w_p, busy / 2, steps, window) + ends + synchronisation


def _way(problem: Problem, seconds_of_batch: float) -> float:
    """Return the seconds for which a batch counts as in flight."""
    return HOPS_PER_BATCH[problem.payloads] * problem.latency + seconds_of_batch


def _server_seconds(problem: Problem, profile: PartyProfile, workers: int) -> float:
    return profile.server_step_seconds if problem.steps_at_server and workers > 1 else 0.0


def window(problem: Problem, made: Plan) -> int:
    """Return how many batches must be in flight so that what is under way does not hold up who could compute."""
    t_a, t_p = (batch_seconds(profile, made.batch_size) for profile in (problem.active, problem.passive))
    unbounded = dataclasses.replace(problem, in_flight_per_worker=math.inf, latency=0.0)
    counts = (made.num_active_workers, made.num_passive_workers)
    least = cost(unbounded, *counts, made.batch_size, "pipeline") / math.ceil(problem.num_rows / made.batch_size)
    way = _way(problem, t_a + t_p + problem.communication(made.batch_size))
    # one more for each worker, so that who is done finds the next batch there
    return math.ceil(way / least) + sum(counts)


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
    if missing := sorted(names - {"message_seconds", "server_step_seconds"} - values.keys()):
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
            server_step_seconds=float(values.get("server_step_seconds", 0.0)),
        )
    except (TypeError, KeyError, ValueError) as error:
        raise BadInput(f"profile: a value is not a number or a table: {error}") from None


def row_bytes(config: PubSubVflConfig) -> float:
    """Return the bytes of a row's embedding and gradient together."""
    bits = config.cut_bits or (64 if config.float64 else 32)
    return 2.0 * config.embedding_size * bits / 8


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
    problem = Problem(
        active=active[0],
        passive=weakest(passive),
        num_rows=int(max(values.get("num_rows", 0) for values in profiles) or 100_000),
        row_bytes=row_bytes(config),
        bandwidth=float(min(values.get("bandwidth", LAN.bandwidth) for values in profiles)),
        latency=float(max(values.get("latency", 0.0) for values in profiles)),
        payloads=config.payloads,
        steps_at_server=config.steps_at_server,
    )
    found: dict[str, Any] = {}
    objectives: dict[Objective, range] = {"pipeline": ALL_WORKERS, "epoch": WORKERS, "literal": WORKERS}
    for objective, workers in objectives.items():
        plans = search(problem, objective, workers=workers)
        found[objective] = [asdict(made) for made in plans[:_SHOWN]]
    best = Plan(**found["pipeline"][0])
    return {
        "num_active_workers": best.num_active_workers,
        "num_passive_workers": best.num_passive_workers,
        "batch_size": best.batch_size,
        "max_in_flight": window(problem, best),
        "predicted_epoch_seconds": best.cost,
        "max_batch_size": max_batch_size((problem.active, problem.passive)),
        "num_rows": problem.num_rows,
        "bandwidth": problem.bandwidth,
        "latency": problem.latency,
        "best_by_objective": found,
    }
