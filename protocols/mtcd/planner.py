"""Chooses how far to rely on the server: method, tokens, hops and walk, for a graph and what its links cost.

    fedactors plan mtcd topology=path num_clients=40 link_cost_ratio=10 target_gap=1e-2

    the server in every step   svfl | many small clusters | ... | one cluster | stcd   no server at all

What a round sends is known before it runs; how far it comes is not: that is the data's doing, which no planner sees. So
every candidate runs, simulated, on generated data of the configured shape (`problem`, `num_samples`, `num_features`)
until `target_gap` (1e-2 unless given), and the bytes that it sent are weighed as the paper weighs them: those of a
client-server link times `link_cost_ratio` (Section 5.1). A candidate ends once it has cost more than the best one, so
that an extreme may have no cost. All else (local steps, step size) is as configured, for every candidate the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import networkx as nx

from fedactors.errors import BadInput, Diverged
from fedactors.plugins import Planning
from fedactors.protocols.mtcd.config import MtcdConfig
from fedactors.protocols.mtcd.plugin import PROTOCOL
from fedactors.protocols.mtcd.roaming import Roaming, make_graph, plan_roaming
from fedactors.sweeps import CurveRecorder, Enough, Outcome, Pilot, Pilots, run_once

DEFAULT_GAP = 1e-2
MOST_ROUNDS = 5000


def plan(config: MtcdConfig, profiles: Sequence[Mapping[str, Any]], planning: Planning) -> dict[str, Any]:
    """Return the settings that reach the gap at the least weighted cost, that cost, and those of the two extremes.

    Costs are weighted bytes; an extreme that cannot run here, or was given up, has None.
    """
    _check(config, profiles, planning)
    gap, seed = config.target_gap or DEFAULT_GAP, planning.seed
    # small clusters are for the run that follows to warn of, once
    base = dataclasses.replace(config, target_gap=gap, measure_gap=True, record_every=1, min_cluster_size=1)
    pilots = Pilots(_pilot, planning, _name)
    costs: dict[str, float | None] = {"svfl": None, "stcd": None}
    best: tuple[float, MtcdConfig, int] | None = None
    for candidate in candidates(base, seed):
        found = pilots.one(candidate, seed, math.inf if best is None else best[0])
        _tell(pilots, candidate, found)
        if found.cost is None:
            continue
        if candidate.algorithm in costs:
            costs[candidate.algorithm] = found.cost
        if best is None or found.cost < best[0]:
            best = (found.cost, candidate, round(found.figures["rounds"]))
    if best is None:
        raise _unreached(gap, pilots.best(seed), planning if pilots.is_late else None)
    cost, chosen, rounds = best
    return {
        "algorithm": chosen.algorithm,
        "num_tokens": chosen.num_tokens,
        "num_hops": chosen.num_hops,
        "walk": chosen.walk,
        "rounds": rounds,
        "weighted_cost": cost,
        "weighted_cost_of_svfl": costs["svfl"],
        "weighted_cost_of_stcd": costs["stcd"],
        "tried": pilots.num_run,
        "is_complete": not pilots.is_late,
    }


def _unreached(gap: float, nearest: Outcome, late: Planning | None) -> BadInput:
    within = f"{MOST_ROUNDS} rounds" if late is None else f"the limit of {late.time_limit:g} s"
    remedy = "give a larger one" if late is None else "give a larger --time-limit"
    if math.isfinite(nearest.score):
        remedy += f", or target_gap={-nearest.score * 1.05:.3g}: the nearest came to {-nearest.score:.3g}"
    return BadInput(
        f"target_gap: {gap:g} is not allowed: no candidate reaches it within {within} on generated data; {remedy}"
    )


def _check(config: MtcdConfig, profiles: Sequence[Mapping[str, Any]], planning: Planning) -> None:
    if profiles:
        raise BadInput("--profile: mtcd's planner takes none: link_cost_ratio says what links cost")
    if planning.data is not None:
        raise BadInput("--data: mtcd's planner takes none: it generates rows, of which it knows the minimum")
    if planning.aim != "target":
        raise BadInput(f"--aim: {planning.aim!r} is not allowed with mtcd: target")
    for name, is_wrong, why in (
        ("problem", config.problem == "network", "only of generated linear problems is the minimum known"),
        ("mode", config.mode != "token-per-cluster", "it plans one token for each cluster"),
        ("clusters", config.clusters != "auto", "it cuts the graph itself"),
        ("algorithm", config.algorithm != "mtcd", "it chooses that itself; leave it out"),
        ("schedule", config.schedule != "constant", "a candidate that is given up must not have stepped otherwise"),
    ):
        if is_wrong:
            raise BadInput(f"{name}: {getattr(config, name)} is not allowed with plan: {why}")


def candidates(config: MtcdConfig, seed: int = 0) -> Iterator[MtcdConfig]:
    """Yield what can run on the graph, from the server in every step to no server at all.

    There are K / 2 clusters of two clients, K / 4 of four, ... and at last one; a token sweeps its cluster once where a
    route allows it, or walks lazily for as many hops or twice as many.
    """
    graph = make_graph(config, seed)
    num_clients = config.num_clients
    with_server, with_edges = bool(config.server_links), graph.number_of_edges() > 0
    if with_server:
        yield dataclasses.replace(config, algorithm="svfl", num_tokens=None, walk="lazy")
    counts = [max(1, num_clients // 2)]
    while counts[-1] > 1:
        counts.append(counts[-1] // 2)
    # sweeps first: they mostly are the cheaper ones, and what is dearer ends sooner
    walks: tuple[tuple[Literal["sweep", "lazy"], int], ...] = (("sweep", 1), ("lazy", 1), ("lazy", 2))
    for walk, share in walks if with_server and with_edges else ():
        for num_tokens in counts:
            num_hops = share * math.ceil(num_clients / num_tokens) - 1
            made = dataclasses.replace(config, num_tokens=num_tokens, walk=walk, num_hops=num_hops)
            if _fits(made, graph, seed):
                yield made
    if with_edges and nx.is_connected(graph):
        hops = num_clients - 1
        yield dataclasses.replace(config, algorithm="stcd", num_hops=hops, num_tokens=1, walk="lazy", start="uniform")


def _fits(config: MtcdConfig, graph: nx.Graph, seed: int) -> bool:
    """Say whether tokens can roam so: a sweep needs a route, a cluster a link to the server."""
    try:
        roaming = Roaming(plan_roaming(config, graph, seed))
        if config.walk == "sweep":
            for client in range(config.num_clients):
                roaming.links(client, [str(other) for other in range(config.num_clients)])
    except BadInput:
        return False
    return True


class CostLimit(CurveRecorder):
    """Ends a run that has cost more than its pilot may, or taken longer.

    Args:
        pilot: says what it may cost.
    """

    def __init__(self, pilot: Pilot[MtcdConfig]) -> None:
        super().__init__()
        self._pilot = pilot

    def record_round(self, index: int, metrics: Mapping[str, Any]) -> None:
        """Record a round, or end the run."""
        super().record_round(index, metrics)
        if metrics["weighted_cost"] > self._pilot.limit or time.monotonic() > self._pilot.until:
            raise Enough("dearer than another")


def _name(config: MtcdConfig) -> str:
    how = f"{config.tokens} tokens, {config.num_hops} hops, {config.walk}" if config.tokens else "no tokens"
    return f"{config.algorithm}, {how}"


def _tell(pilots: Pilots[MtcdConfig], config: MtcdConfig, found: Outcome) -> None:
    rounds = found.figures.get("rounds", 0)
    said = (
        "dearer than the best so far, or never there" if found.cost is None else f"{found.cost:.4g} in {rounds} rounds"
    )
    pilots.tell(f"{pilots.name(config)}: {said}")


def _pilot(pilot: Pilot[MtcdConfig]) -> Outcome:
    """Return the weighted cost and the rounds to the gap; no cost where it is not reached, or not for so much."""
    config, recorder = pilot.candidate, CostLimit(pilot)
    settings = {**dataclasses.asdict(config), "num_rounds": MOST_ROUNDS}
    with contextlib.suppress(Diverged, Enough):
        run_once(PROTOCOL, settings, "synthetic", pilot.seed, recorder=recorder)
    gaps = [line["gap"] for line in recorder.rounds if line.get("gap") is not None]
    if not gaps:
        return Outcome()
    last = recorder.rounds[-1]
    cost = (
        float(last["weighted_cost"]) if gaps[-1] <= config.target_gap and last["weighted_cost"] <= pilot.limit else None
    )
    return Outcome(cost=cost, score=-min(gaps), figures={"rounds": len(recorder.rounds) - 1})
