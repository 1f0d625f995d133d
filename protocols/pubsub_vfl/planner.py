"""Which (w_a, w_p, B) to train with: the paper's cost model, bounds of whole epochs, and dry runs (Section 4).

`fedactors plan pubsub-vfl` goes from the parties' profile files to a setting, with what it is predicted to cost.

    literal    max(T_A, T_P) + (E + G) / bandwidth of one iteration (Eq. 14), T = (sum of lambda B^gamma) w / C
    epoch      ceil(n/B) (max(T_A, T_P) / min(w_a, w_p) + (E + G) / bandwidth) + synchronisation
    pipeline   max(b max(S, H), W + (b/w_a - 1) T_A, b/w_p T_P + ends, W + (b - 1) max(E, G) / bandwidth)
               + synchronisation, of b = floor(n/B) batches
    replay     `dry_run.epoch_seconds` + synchronisation: the run's actors on the simulated runtime

The literal cost grows with w and so always asks for the fewest workers. In the others T is the time of one worker that
computes on one core, and w/C times that when more workers than cores share them, with the processor time of a batch's
messages, which the paper leaves out. `pipeline` is a bound: all batches pass the active workers and the link, in one
direction, where the first comes and from where the last goes on its way W of computing, transfers and hops, and all
are at a passive worker before and after; S are a batch's steps at a parameter server that steps for its workers one
gradient after another, H the processor time of all processes of parties on one host, over its cores. It says which
settings are worth a dry run; the command chooses by the dry run. The search tries all settings (the paper calls it
dynamic programming); ties go to fewer workers, then to the smaller batch.

Symbols: n rows, B batch size, w workers, C cores, E and G bytes of a batch's embedding and gradient.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, cast

from fedactors.errors import BadInput
from fedactors.network.links import LAN
from fedactors.validation import check_keys, choice_of, number_of
from protocols.pubsub_vfl.config import PubSubVflConfig
from protocols.pubsub_vfl.dry_run import Problem, epoch_seconds, seconds_of
from protocols.pubsub_vfl.messages import PartyProfile, PowerLaw

BATCH_SIZES = (16, 32, 64, 128, 256, 512, 1024)
WORKERS = range(2, 51)
"""Those of the paper."""
WORKER_STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
"""Those that the command tries: counts between them differ by less than the costs of their dry runs."""
_WORTH = 0.01
"""Share of the seconds that is not worth further workers."""
_SHOWN = 10
_MOST_DRY_RUNS = 40
HOPS_OF_BATCH: Mapping[str, int] = {"pull": 8, "push": 4}
"""Messages between parties, one after another, for which a batch can take a place in the window, by `transfer`."""
HOPS_OF_TRAINING: Mapping[str, int] = {"pull": 8, "push": 5}
"""Likewise at least from the first order (where it is asked for, from that) to the word that all is done."""
HOPS_AT_ENDS = 3
"""Of these at least so many are before a passive worker begins and after it has ended."""
Objective = Literal["epoch", "pipeline", "literal", "literal-per-sample"]


@dataclass(frozen=True)
class Plan:
    """A setting and what it is predicted to cost, in seconds of `objective`."""

    num_active_workers: int
    num_passive_workers: int
    batch_size: int
    cost: float


def max_batch_size(profiles: Iterable[PartyProfile]) -> float:
    """Return B_max, the largest batch that fits every party's memory (Eq. 13)."""
    limits = []
    for profile in profiles:
        spare, law = profile.memory_available - profile.memory_base, profile.memory_per_batch
        limits.append(math.pow(max(spare, 0.0) / law.scale, 1 / law.exponent) if law.scale > 0 else math.inf)
    return min(limits)


def batch_seconds(profile: PartyProfile, batch_size: int, *, per_sample: bool = False) -> float:
    """Return the seconds of all phases of one batch on one core; `per_sample` laws are multiplied by B."""
    seconds = seconds_of(profile.phases, batch_size)
    return seconds * batch_size if per_sample else seconds


def cost(problem: Problem, w_a: int, w_p: int, batch_size: int, objective: Objective = "epoch") -> float:
    """Return the objective at one setting; see the module."""
    active, passive = problem.active, problem.passive
    transfer = problem.communication(batch_size)
    if objective in ("literal", "literal-per-sample"):
        per_sample = objective == "literal-per-sample"
        t_a = batch_seconds(active, batch_size, per_sample=per_sample)
        t_p = batch_seconds(passive, batch_size, per_sample=per_sample)
        return max(t_a * w_a / active.cores, t_p * w_p / passive.cores) + transfer
    t_a, t_p = _worker_seconds(problem, active, batch_size, w_a), _worker_seconds(problem, passive, batch_size, w_p)
    num_batches, busy = math.ceil(problem.num_rows / batch_size), transfer if problem.shared_link else 0.0
    synchronisation = max(active.sync_seconds * w_a, passive.sync_seconds * w_p)
    if objective == "epoch":
        slowest = max(t_a * max(1.0, w_a / active.cores), t_p * max(1.0, w_p / passive.cores))
        return num_batches * (slowest / min(w_a, w_p) + busy) + synchronisation
    # whole ones: the last of an epoch has the rows that are left
    all_batches = max(1, problem.num_rows // batch_size) * problem.num_epochs
    way = t_a + t_p + transfer + HOPS_OF_TRAINING[problem.transfer] * problem.latency
    active_turns, passive_turns = (
        math.ceil(all_batches / min(workers, profile.cores)) for workers, profile in ((w_a, active), (w_p, passive))
    )
    flow = max(
        way + (active_turns - 1) * t_a,
        way + (all_batches - 1) * busy / 2,
        passive_turns * t_p + HOPS_AT_ENDS * problem.latency,
    )
    server = max(_server_seconds(problem, active, w_a), _server_seconds(problem, passive, w_p))
    together = t_a + t_p * problem.num_passive if problem.one_host else 0.0
    host = together / max(active.cores, passive.cores)
    return max(flow, all_batches * server, all_batches * host) / problem.num_epochs + synchronisation


def _worker_seconds(problem: Problem, profile: PartyProfile, batch_size: int, workers: int) -> float:
    """Return the processor seconds of a worker for a batch."""
    steps_here = profile.step_seconds if _server_seconds(problem, profile, workers) else 0.0
    messages = profile.message_seconds + profile.message_row_seconds * batch_size
    return max(batch_seconds(profile, batch_size) - steps_here, 0.0) + messages


def _server_seconds(problem: Problem, profile: PartyProfile, workers: int) -> float:
    return profile.server_step_seconds if problem.steps_at_server and workers > 1 else 0.0


def window(problem: Problem, made: Plan) -> int:
    """Return how many batches must be in flight so that what is under way does not hold up who could compute."""
    counts, size = (made.num_active_workers, made.num_passive_workers), made.batch_size
    # a batch's time at the slowest station, as if there were no end of batches
    endless = dataclasses.replace(problem, num_rows=1000 * size, num_epochs=1, latency=0.0)
    least = cost(endless, *counts, size, "pipeline") / 1000
    computing = sum(batch_seconds(profile, size) for profile in (problem.active, problem.passive))
    way = HOPS_OF_BATCH[problem.transfer] * problem.latency + computing + problem.communication(size)
    # one more for each worker, so that who is done finds the next batch there
    return min(math.ceil(way / least) + sum(counts), math.ceil(problem.num_rows / size))


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
    """Build a profile from a table of names and values; those of the link and the rows may stand there too.

    Raises:
        BadInput: names what is missing, unknown or not allowed.
    """
    known = {field.name: field.default for field in fields(PartyProfile)}
    optional = {name: default for name, default in known.items() if default is not dataclasses.MISSING}
    if missing := sorted(known.keys() - optional.keys() - values.keys()):
        raise BadInput(f"profile: {', '.join(missing)} missing")
    check_keys(values, {*known, *_OF_THE_LINK}, "profile")
    role = choice_of(values["role"], ("active", "passive"), "profile: role")
    if not isinstance(values["phases"], Sequence) or not values["phases"]:
        raise BadInput(f"profile: phases: {values['phases']!r} is not allowed: a list of tables of scale and exponent")
    phases = tuple(_law("phases", law) for law in values["phases"])
    if not any(law.scale for law in phases):
        raise BadInput("profile: phases: every scale is 0: a batch takes some time")
    named = known.keys() & values.keys() - {"role", "phases", "memory_per_batch", "host"}
    numbers = {name: _number(name, values[name]) for name in named}
    if not (cores := numbers.pop("cores")).is_integer():
        raise BadInput(f"profile: cores: {values['cores']!r} is not allowed: it must be a whole number")
    memory = _law("memory_per_batch", values["memory_per_batch"])
    if memory.scale and memory.exponent <= 0:
        raise BadInput(f"profile: memory_per_batch: exponent {memory.exponent:g} is not allowed: it must be above 0")
    host = str(values.get("host", ""))
    return PartyProfile(role=role, cores=int(cores), phases=phases, memory_per_batch=memory, host=host, **numbers)


_OF_THE_LINK = ("num_rows", "bandwidth", "latency")
_POSITIVE = ("cores", "local_bandwidth", "num_rows", "bandwidth")
_ENDLESS = ("memory_available", "local_bandwidth")
_MOST = 1e18


def _number(name: str, value: Any) -> float:
    above, most = 0.0 if name in _POSITIVE else None, math.inf if name in _ENDLESS else _MOST
    return number_of(value, f"profile: {name}", above=above, most=most)


def _law(name: str, value: Any) -> PowerLaw:
    check_keys(value, ("scale", "exponent"), f"profile: {name}")
    if value.keys() != {"scale", "exponent"}:
        raise BadInput(f"profile: {name}: {value!r} is not allowed: a table of scale and exponent")
    exponent = number_of(value["exponent"], f"profile: {name}: exponent", least=-_STEEPEST, most=_STEEPEST)
    return PowerLaw(_number(f"{name}: scale", value["scale"]), exponent)


_STEEPEST = 10.0


def row_bytes(config: PubSubVflConfig) -> float:
    """Return the bytes of a row's embedding and gradient together."""
    bits = config.quantization_bits or (64 if config.float64 else 32)
    return 2.0 * config.embedding_size * bits / 8


def problem_of(config: PubSubVflConfig, profiles: Sequence[Mapping[str, Any]]) -> Problem:
    """Return what is planned for, from the profiles of one active and one or more passive parties.

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
    stated = {name: [_number(name, each[name]) for each in profiles if name in each] for name in _OF_THE_LINK}
    if min(stated["num_rows"], default=1) < 1:
        raise BadInput(f"profile: num_rows: {min(stated['num_rows']):g} is not allowed: it must be 1 or more")
    num_rows = int(max(stated["num_rows"], default=100_000))
    settled = config.at(num_rows)
    return Problem(
        active=active[0],
        passive=weakest(passive),
        num_passive=len(passive),
        one_host=bool(active[0].host) and len({profile.host for profile in parties}) == 1,
        num_rows=num_rows,
        row_bytes=row_bytes(config),
        bandwidth=min(stated["bandwidth"], default=LAN.bandwidth),
        latency=max(stated["latency"], default=0.0),
        transfer=config.transfer,
        num_epochs=min(settled.epochs_per_round, settled.num_epochs),
        steps_at_server=config.steps_at_server,
    )


def predict(config: PubSubVflConfig, problem: Problem) -> float:
    """Return the seconds of an epoch with the setting of `config`, averages included."""
    sides = ((problem.active, config.num_active_workers), (problem.passive, config.num_passive_workers))
    averages = [_average_seconds(profile, workers) for profile, workers in sides if workers > 1]
    return epoch_seconds(config, problem) + max(averages, default=0.0)


def _average_seconds(profile: PartyProfile, workers: int) -> float:
    """Return what an average of a party's workers takes, with the ways to the parameter server and back."""
    way = profile.local_latency + profile.parameter_bytes / profile.local_bandwidth
    return profile.sync_seconds * workers + 2 * way


def with_plan(config: PubSubVflConfig, problem: Problem, made: Plan) -> PubSubVflConfig:
    """Return the settings of a plan, with a window and a prefetch that do not hold it up."""
    in_flight = window(problem, made)
    return dataclasses.replace(
        config,
        algorithm="pubsub-vfl",
        num_active_workers=made.num_active_workers,
        num_passive_workers=made.num_passive_workers,
        batch_size=made.batch_size,
        max_in_flight=in_flight,
        prefetch=max(2, math.ceil(in_flight / min(made.num_active_workers, made.num_passive_workers))),
    )


def choose(
    config: PubSubVflConfig,
    problem: Problem,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    workers: Iterable[int] = WORKER_STEPS,
) -> list[Plan]:
    """Return the settings that were worth a dry run with what it says, the best first.

    A setting is run dry if its bound is below what is known by then. Of those that differ by 1 % from the best the
    one of fewest workers is the best.
    """
    found: list[Plan] = []
    for bound in search(problem, "pipeline", batch_sizes=batch_sizes, workers=workers):
        if len(found) == _MOST_DRY_RUNS or (found and bound.cost >= min(made.cost for made in found)):
            break
        found.append(dataclasses.replace(bound, cost=predict(with_plan(config, problem, bound), problem)))
    least = min(made.cost for made in found)
    return sorted(
        found,
        key=lambda made: (
            max(made.cost, least * (1 + _WORTH)),
            made.num_active_workers + made.num_passive_workers,
            made.cost,
        ),
    )


def plan(config: PubSubVflConfig, profiles: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the best setting for the profiles of one active and one or more passive parties; see `problem_of`.

    `predicted_epoch_seconds` is that of the setting returned, `given_epoch_seconds` that of `config` as it stands.

    Raises:
        BadInput: also of settings whose epochs are not worked out.
    """
    if config.algorithm != "pubsub-vfl":
        raise BadInput(f"algorithm: {config.algorithm!r} is not planned for: pubsub-vfl is")
    if config.local_updates:
        raise BadInput(f"local_updates: {config.local_updates} is not allowed: local updates are not planned for")
    problem = problem_of(config, profiles)
    found: dict[str, Any] = {"replay": [asdict(made) for made in choose(config, problem)[:_SHOWN]]}
    for objective, workers in (("pipeline", WORKER_STEPS), ("epoch", WORKERS), ("literal", WORKERS)):
        plans = search(problem, cast("Objective", objective), workers=workers)
        found[objective] = [asdict(made) for made in plans[:_SHOWN]]
    best = Plan(**found["replay"][0])
    chosen = with_plan(config, problem, best)
    settings = ("num_active_workers", "num_passive_workers", "batch_size", "max_in_flight", "prefetch")
    return {
        **{name: getattr(chosen, name) for name in settings},
        "predicted_epoch_seconds": best.cost,
        "given_epoch_seconds": predict(config, problem),
        "max_batch_size": max_batch_size((problem.active, problem.passive)),
        "num_rows": problem.num_rows,
        "bandwidth": problem.bandwidth,
        "latency": problem.latency,
        "best_by_objective": found,
    }
