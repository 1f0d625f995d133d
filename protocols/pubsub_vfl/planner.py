"""Which workers, batch size and rate reach a target the soonest; which finish an epoch the soonest (Section 4).

`fedactors plan pubsub-vfl` goes from the parties' profile files, rows and a target to a setting, and what it costs.

    all (w_a, w_p, B) --> few workers for their epoch --> x rates x windows --> halving of pilots --> finalists, seeds

The quickest epoch is not the quickest model: many workers and small batches move a model less for the same time. So
candidates train, on the virtual clock (`pilots`): all for a short time, the better half for three times as long, until
one reaches the target; the best then run with several seeds, and their neighbours as long as one of them is better. Of
the workers those are candidates at first whose epoch fewer workers do not finish in 1.25 times its time, and of the
batch sizes every second. A window that keeps all busy lets many batches share a link at first, and the first ones come
late; so each setting is tried with such a window and with a small one.

With ``--aim epoch`` the command goes by the paper's cost model, bounds of whole epochs, and dry runs:

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
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, cast

from fedactors.data.layouts.vertical import VerticalData
from fedactors.errors import BadInput
from fedactors.network.links import LAN
from fedactors.plugins import Planning
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.data import load_data
from fedactors.protocols.pubsub_vfl.dry_run import Problem, epoch_seconds, seconds_of
from fedactors.protocols.pubsub_vfl.messages import PartyProfile, PowerLaw
from fedactors.protocols.pubsub_vfl.pilots import Rehearsal, check_parties
from fedactors.sweeps import SEEDS, Outcome, Pilots, halve, rank, settle
from fedactors.validation import check_keys, choice_of, number_of

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
RATES = (1.0, 3.0, 10.0)
"""Candidates' learning rates, times the one that is set."""
WINDOWS = (1.0, 1 / 8)
"""Candidates' prefetch, as shares of the one that holds nobody up."""
_LIKE = 1.25
"""More workers are candidates at first only where fewer take this many times as long for an epoch."""
_RUNGS = (1 / 81, 1 / 27, 1 / 9, 1 / 3, 1.0, math.inf)
"""Limits of the pilots, as shares of the shortest whole training."""
_SHARE = 0.98
"""Share of what the settings as given gain that is the target where none is given."""
_COLUMNS = 10
"""Columns of generated rows for a party whose profile tells none."""
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


_OF_THE_LINK = ("num_rows", "num_features", "bandwidth", "latency", "price_per_core_hour", "price_per_gb")
_POSITIVE = ("cores", "local_bandwidth", "num_rows", "num_features", "bandwidth")
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
    `PartyProfile`, and for a plan to a target ``num_features``, ``price_per_core_hour`` and ``price_per_gb`` (dollars).

    Raises:
        BadInput: not exactly one active party, no passive one, or a profile that is incomplete.
    """
    parties = [profile_from(values) for values in profiles]
    active = [profile for profile in parties if profile.role == "active"]
    passive = [profile for profile in parties if profile.role == "passive"]
    if len(active) != 1 or not passive:
        raise BadInput(
            f"--profile: {len(active)} active and {len(passive)} passive given: one and at least one needed; "
            "--measure makes them"
        )
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


# --- the quickest model ---------------------------------------------------------------------------------------------


def plan(config: PubSubVflConfig, profiles: Sequence[Mapping[str, Any]], planning: Planning) -> dict[str, Any]:
    """Return the setting that reaches the target the soonest, or whose epoch is the shortest, and what it costs.

    Raises:
        BadInput: settings that are not planned for, profiles that do not fit, or a target that no candidate reaches.
    """
    if config.algorithm != "pubsub-vfl":
        raise BadInput(f"algorithm: {config.algorithm!r} is not planned for: pubsub-vfl is")
    if config.local_updates:
        raise BadInput(f"local_updates: {config.local_updates} is not allowed: local updates are not planned for")
    if planning.aim == "epoch":
        return quickest_epoch(config, profiles)
    problem = problem_of(config, profiles)
    data = planning.data or generated(config, profiles)
    check_parties(data, problem)
    rehearsal = Rehearsal(problem, data)
    problem = dataclasses.replace(problem, num_rows=rehearsal.num_rows(config))
    search = TargetSearch(config, problem, rehearsal, planning)
    best = search.best()
    return {**search.described(best, profiles), "rows": data.name, "num_rows": problem.num_rows}


def generated(config: PubSubVflConfig, profiles: Sequence[Mapping[str, Any]]) -> VerticalData:
    """Return generated rows of the parties' shape: as many rows and columns as their profiles tell."""
    problem = problem_of(config, profiles)
    ordered = sorted(profiles, key=lambda values: values["role"] != "active")
    columns = tuple(int(_number("num_features", values.get("num_features", _COLUMNS))) for values in ordered)
    whole = problem.num_rows / (1 - config.test_fraction) / (1 - config.validation_fraction)
    shaped = dataclasses.replace(config, num_parties=len(columns), feature_split=columns)
    return load_data(shaped, f"synthetic:{round(whole)}x{sum(columns)}", 0)


class TargetSearch:
    """Looks for the setting that reaches a target the soonest.

    Args:
        config: settings that are not chosen, the target and the middle of the rates among them.
        problem: machines, links and rows.
        rehearsal: runs the pilots.
        planning: seed, limit of time and processes.
    """

    def __init__(self, config: PubSubVflConfig, problem: Problem, rehearsal: Rehearsal, planning: Planning) -> None:
        self._rehearsal = rehearsal
        self._planning = planning
        self._pilots = Pilots(rehearsal, planning, short_name)
        target = self._default_target(config, problem) if config.target is None else config.target
        self.given = dataclasses.replace(config, target=target).at(problem.num_rows)
        self._config = dataclasses.replace(config, target=target)
        self.num_rows = problem.num_rows
        self._problem = dataclasses.replace(problem, num_epochs=min(self.given.epochs_per_round, self.given.num_epochs))

    def _default_target(self, config: PubSubVflConfig, problem: Problem) -> float:
        """Return what the settings as given nearly reach."""
        self._pilots.tell("no target given: the settings as they are train to their end")
        found = self._pilots.one(config.at(problem.num_rows), self._planning.seed, math.inf)
        first, best = (found.figures.get(name, math.nan) for name in ("first", "best"))
        if not math.isfinite(best - first) or best == first:
            raise BadInput("target: missing, and the settings as given reach none: give target=VALUE")
        return self._eased(first + _SHARE * (best - first))

    def _eased(self, value: float) -> float:
        """Return a target as a short number that is no harder than the value."""
        step = 10.0 ** (math.floor(math.log10(abs(value) or 1.0)) - 2)
        sign = self._rehearsal.sign
        return float(f"{sign * math.floor(sign * value / step) * step:.6g}")

    def best(self) -> list[PubSubVflConfig]:
        """Return the finalists, the best first.

        Raises:
            BadInput: no candidate reaches the target, or what was never trained does.
        """
        seed, candidates = self._planning.seed, self.candidates()
        shortest = min(self._bound(one) * one.num_epochs for one in candidates)
        left = halve(self._pilots, candidates, [share * shortest for share in _RUNGS], seed)
        found = self._pilots.one(left[0], seed, math.inf) if not self._pilots.is_late else Outcome()
        if found.cost is None and (found := self._pilots.best(seed)).cost is None:
            raise self._unreached(found)
        if not found.cost:
            raise BadInput(
                f"target: {self._config.target:g} is not allowed: models that were never trained reach it "
                f"({self._rehearsal.metric} {found.figures['first']:.4g}); give a harder one, or none"
            )
        return settle(self._pilots, left, seed, self.near)

    def _unreached(self, found: Outcome) -> BadInput:
        rehearsal, target = self._rehearsal, self._config.target
        late = f" within the limit of {self._planning.time_limit:g} s" if self._pilots.is_late else ""
        remedy = "give a larger --time-limit" if late else "leave target out"
        if math.isfinite(found.score):
            value = rehearsal.sign * found.score
            remedy = f"the nearest came to {value:.4g}: give target={self._eased(value):g}" + (
                ", or a larger --time-limit" if late else ", or settings that reach more (model, num_epochs)"
            )
        return BadInput(
            f"target: {target:g} is not allowed: none of {self._pilots.num_run} pilots came to validation/"
            f"{rehearsal.metric} {target:g}{late}; {remedy}"
        )

    def candidates(self) -> list[PubSubVflConfig]:
        """Return what is tried: each batch size with the workers that shorten its epoch, at each rate."""
        sizes = [size for size in BATCH_SIZES[::2] if size <= max(BATCH_SIZES[0], self._problem.num_rows // 2)]
        plans = search(self._problem, "pipeline", batch_sizes=sizes, workers=WORKER_STEPS)
        rates = [rate * self._config.learning_rate for rate in RATES]
        tried = itertools.product(without_idle(plans), rates, WINDOWS)
        return list(dict.fromkeys(self.setting(made, rate, share) for made, rate, share in tried))

    def near(self, config: PubSubVflConfig) -> list[PubSubVflConfig]:
        """Return candidates a step away: of the workers of one side or both, the batch size, the rate or the window."""
        w_a, w_p = config.num_active_workers, config.num_passive_workers
        limit = min(max_batch_size((self._problem.active, self._problem.passive)), self._problem.num_rows)
        size, rate = config.batch_size, config.learning_rate
        share = config.prefetch / self.setting(Plan(w_a, w_p, size, 0.0), rate).prefetch
        moves = [
            (beside(w_a, by_a), beside(w_p, by_p), size, rate, share)
            for by_a, by_p in ((-1, -1), (-1, 0), (0, -1), (0, 1), (1, 0), (1, 1))
        ]
        moves += [(w_a, w_p, round(size * by), rate, share) for by in (0.5, 2)]
        moves += [(w_a, w_p, size, rate * by, share) for by in (0.5, 2)]
        moves += [(w_a, w_p, size, rate, share * by) for by in (0.5, 2)]
        found = [self.setting(Plan(a, p, b, 0.0), r, by) for a, p, b, r, by in moves if b == size or 8 <= b <= limit]
        return [one for one in dict.fromkeys(found) if one != config]

    def setting(self, made: Plan, rate: float, share: float = 1.0) -> PubSubVflConfig:
        """Return the settings of a plan at a rate; the prefetch is a share of one that does not hold it up."""
        rate = float(f"{rate:.2g}")
        complete = with_plan(dataclasses.replace(self._config, learning_rate=rate), self._problem, made)
        prefetch = min(max(round(complete.prefetch * share), 1), complete.max_in_flight)
        return dataclasses.replace(complete, prefetch=prefetch).at(self._problem.num_rows)

    def _bound(self, config: PubSubVflConfig) -> float:
        counts = (config.num_active_workers, config.num_passive_workers)
        return cost(self._problem, *counts, config.batch_size, "pipeline")

    def described(self, finalists: Sequence[PubSubVflConfig], profiles: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the best setting and its figures, beside those of the other finalists and of the settings as given."""
        prices = Prices.of(profiles)
        if self._pilots.is_late:
            self._pilots.tell(f"ended by the limit of {self._planning.time_limit:g} s: give a larger --time-limit")
        lines = [self._line(config, prices) for config in finalists]
        chosen, limit = finalists[0], 10 * (lines[0]["seconds_to_target"] or math.inf)
        given = self._line(self.given, prices, limit)
        names = (*_CHOSEN, "target")
        figures = {name: value for name, value in lines[0].items() if name not in _CHOSEN}
        return {
            **{name: getattr(chosen, name) for name in names},
            "metric": f"validation/{self._rehearsal.metric}",
            **figures,
            "given_seconds_to_target": given["seconds_to_target"],
            "given_epoch_seconds": given["epoch_seconds"],
            "pilots": self._pilots.num_run,
            "is_complete": not self._pilots.is_late,
            "finalists": lines,
        }

    def _line(self, config: PubSubVflConfig, prices: Prices, limit: float = math.inf) -> dict[str, Any]:
        seeds = [self._planning.seed + index for index in range(SEEDS[0])]
        found = self._pilots.known(config) or self._pilots([config], seeds, limit)[0]
        missed, seconds, _ = rank(found)
        reached = [one.figures for one in found if one.cost is not None]
        num_bytes = statistics.fmean(one["bytes"] for one in reached) if reached else None
        line = {name: getattr(config, name) for name in _CHOSEN}
        line["seconds_to_target"] = seconds if reached and not missed else None
        line["seeds_reached"], line["seeds"] = len(reached), len(found)
        line["epochs_to_target"] = statistics.fmean(one["epochs"] for one in reached) if reached else None
        line["bytes_to_target"] = num_bytes
        line["dollars_to_target"] = prices.dollars(config, seconds, num_bytes) if num_bytes is not None else None
        line["epoch_seconds"] = predict(config, self._problem)
        return line


_CHOSEN = (
    "num_active_workers",
    "num_passive_workers",
    "batch_size",
    "learning_rate",
    "max_in_flight",
    "prefetch",
)


def short_name(config: PubSubVflConfig) -> str:
    """Return what is chosen of some settings, for who watches."""
    workers = f"{config.num_active_workers} x {config.num_passive_workers} workers"
    return f"{workers}, B = {config.batch_size}, rate {config.learning_rate:g}, prefetch {config.prefetch}"


def beside(workers: int, by: int) -> int:
    """Return the count of workers that many steps away, or the nearest to it."""
    steps = WORKER_STEPS
    index = min(range(len(steps)), key=lambda i: abs(steps[i] - workers))
    return steps[min(max(index + by, 0), len(steps) - 1)]


def without_idle(plans: Sequence[Plan]) -> list[Plan]:
    """Return the plans but those whose epoch fewer workers finish in about the same time, for each batch size."""
    kept: list[Plan] = []
    for made in sorted(plans, key=lambda one: (one.num_active_workers + one.num_passive_workers, one.cost)):
        fewer = (
            one
            for one in kept
            if one.batch_size == made.batch_size
            and one.num_active_workers <= made.num_active_workers
            and one.num_passive_workers <= made.num_passive_workers
        )
        if all(one.cost > made.cost * _LIKE for one in fewer):
            kept.append(made)
    return kept


@dataclass(frozen=True)
class Prices:
    """Dollars for an hour of a core, of the active party and of each passive one, and for 1e9 bytes; None: unknown."""

    active: float | None
    passive: tuple[float, ...]
    per_gb: float

    @classmethod
    def of(cls, profiles: Sequence[Mapping[str, Any]]) -> Prices:
        """Return what the profiles state.

        Raises:
            BadInput: some parties state a price of their cores, and others none.
        """
        hours: dict[bool, list[float]] = {True: [], False: []}
        for values in profiles:
            if "price_per_core_hour" in values:
                price = _number("price_per_core_hour", values["price_per_core_hour"])
                hours[values["role"] == "active"].append(price)
        stated = len(hours[True]) + len(hours[False])
        if stated not in (0, len(profiles)):
            raise BadInput(
                f"profile: price_per_core_hour: stated by {stated} of {len(profiles)} parties: by all, or by none"
            )
        per_gb = max(
            (_number("price_per_gb", one["price_per_gb"]) for one in profiles if "price_per_gb" in one), default=0.0
        )
        return cls(hours[True][0] if stated else None, tuple(hours[False]), per_gb)

    def dollars(self, config: PubSubVflConfig, seconds: float, num_bytes: float) -> float | None:
        """Return the price of a training: a core for each worker, and what was sent."""
        if self.active is None:
            return None
        hourly = self.active * config.num_active_workers + sum(self.passive) * config.num_passive_workers
        return hourly * seconds / 3600 + self.per_gb * num_bytes / 1e9


# --- the quickest epoch ---------------------------------------------------------------------------------------------


def quickest_epoch(config: PubSubVflConfig, profiles: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the setting of the shortest epoch for the profiles of the parties; see `problem_of`.

    `predicted_epoch_seconds` is that of the setting returned, `given_epoch_seconds` that of `config` as it stands.
    """
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
