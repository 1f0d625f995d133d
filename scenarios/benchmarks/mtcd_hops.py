"""Hops per second of MTCD's actors in the simulated runtime, against a plain numpy loop of the same arithmetic.

1,000 clients with 50 features each, 1,000 samples, ridge, full batch: both do the same walks, the same steps and, for
mtcd, the same syncs (a call and a representation for every client visited, beside the hops); stcd is the bare walk. In
svfl every client is visited in every round and sends its representation, and a hop is one such visit.
The loop has no actors, messages, ledger, virtual clock or checks. Seconds are those of the processor of this one
process, so that waiting for others' load does not count. Both are measured in the same process, by turns.

    python scenarios/benchmarks/mtcd_hops.py --local-steps 20
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedactors.actors.context import derived_seed
from fedactors.config import as_dict, build
from fedactors.protocols.mtcd import algorithm
from fedactors.protocols.mtcd.config import MtcdConfig
from fedactors.protocols.mtcd.data import GeneratedData, load_data
from fedactors.protocols.mtcd.objective import problem_of
from fedactors.protocols.mtcd.plugin import PROTOCOL
from fedactors.protocols.mtcd.roaming import Roaming, make_graph, next_client, plan_roaming, start_client, walk_seed
from fedactors.protocols.mtcd.run import run
from fedactors.runs.metrics import RunResult
from fedactors.runs.table import RunRow
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from fedactors.sweeps import code_digest, data_digest, versions

sys.path.insert(0, str(Path(__file__).parents[2]))

from scenarios.paper.study import put_rows


def plain_loop(config: MtcdConfig, data: GeneratedData, blocks: list[Any], seed: int) -> tuple[float, int, Any]:
    """Do Algorithm 1, Algorithm 2 or SVFL's rounds on arrays; return (processor seconds, visits, Z)."""
    problem, labels_N = problem_of(config), data.labels()[0]
    plan = plan_roaming(config, make_graph(config, seed), seed)
    roaming = Roaming(plan)
    links = [roaming.links(client, data.parties) for client in range(config.num_clients)]
    thetas = [np.zeros(x_ND.shape[1]) for x_ND in blocks]
    known: dict[int, Any] = {}
    z_N, num_visits = np.zeros(config.num_samples), 0
    options = algorithm.VisitOptions(float(config.learning_rate), config.num_local_steps, config.num_samples)
    # as the clients do, which take them when they are made, before the time that counts
    grams = [x_ND.T @ x_ND if algorithm.prefers_gram(config, *x_ND.shape) else None for x_ND in blocks]

    def visit(client: int, theta_D: Any, z_N: Any) -> tuple[Any, Any]:
        given = (problem, blocks[client], grams[client], labels_N, theta_D, z_N, None, options)
        theta_D, _, z_N = algorithm.visit_block(*given)
        return theta_D, z_N

    start = time.process_time()
    if config.algorithm == "stcd":
        walk = walk_seed(derived_seed(seed, "all parties", "walks"), 0, 0)
        client = start_client(walk, range(config.num_clients))
        for hop in range(config.num_rounds * (config.num_hops + 1)):
            if hop:
                client = next_client(walk, hop, links[client])
            thetas[client], z_N = visit(client, thetas[client], z_N)
        return time.process_time() - start, config.num_rounds * (config.num_hops + 1), z_N
    if config.algorithm == "svfl":
        for _ in range(config.num_rounds):
            moved = [visit(client, thetas[client], z_N)[0] for client in range(config.num_clients)]
            z_N = z_N.copy()
            for client, theta_D in enumerate(moved):
                thetas[client], h_N = theta_D, algorithm.represent(blocks[client], theta_D)
                z_N += h_N
                if client in known:
                    z_N -= known[client]
                known[client] = h_N
            problem.loss(z_N, labels_N, config.num_samples)
        return time.process_time() - start, config.num_rounds * config.num_clients, z_N
    for round_ in range(config.num_rounds):
        copies: dict[int, dict[int, Any]] = {}
        for issue in roaming.begin(round_):
            local_z_N, client = z_N, issue.start
            walk = walk_seed(plan.seed, round_, issue.token)
            for hop in range(issue.num_hops + 1):
                if hop:
                    client = next_client(walk, hop, links[client])
                mine = copies.setdefault(client, {})
                mine[issue.token], local_z_N = visit(client, mine.get(issue.token, thetas[client]), local_z_N)
                num_visits += 1
        z_N = z_N.copy()
        for client in sorted(copies):
            thetas[client] = algorithm.combine(thetas[client], copies[client], 1.0)
            h_N = algorithm.represent(blocks[client], thetas[client])
            z_N += h_N
            if client in known:
                z_N -= known[client]
            known[client] = h_N
        problem.loss(z_N, labels_N, config.num_samples)
    return time.process_time() - start, num_visits, z_N


def actors(config: MtcdConfig, data: GeneratedData, seed: int) -> tuple[float, RunResult]:
    """Run the protocol; return (processor seconds between the first record and the last, its result)."""

    class Stopwatch:
        """Takes the time at the first and the last record."""

        keeps_checkpoints = False

        def __init__(self) -> None:
            self.times: list[float] = []

        def record_round(self, index: int, metrics: Any) -> None:
            self.times.append(time.process_time())

        def record_span(self, *span: Any) -> None:
            """Leave the timeline out."""

        def ledger_sink(self, rows: list[Any]) -> None:
            """Leave the rows out: the ledger's totals are kept."""

        def privacy(self, records: list[Any]) -> None:
            """Leave the privacy ledger out: it is empty."""

        def save_checkpoint(self, label: str, actors: Any, driver: bytes) -> None:
            """Write nothing."""

    watch = Stopwatch()
    runtime = SimulatedRuntime(seed=seed, recorder=watch, checkpoint_every=0)
    result = runtime.execute(lambda: run(config, data, runtime))
    return watch.times[-1] - watch.times[0], result


def main() -> None:
    """Measure and print both, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=("stcd", "mtcd", "svfl"), default="stcd")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--features", type=int, default=50, help="per client")
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=4, help="of mtcd")
    parser.add_argument("--hops", type=int, default=99)
    parser.add_argument("--local-steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--topology", default="complete")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, metavar="FILE", help="put the row into this table of runs")
    args = parser.parse_args()
    walk = {"num_tokens": args.tokens if args.algorithm == "mtcd" else 1, "num_hops": args.hops}
    config = build(
        MtcdConfig,
        {
            "algorithm": args.algorithm,
            **({} if args.algorithm == "svfl" else walk),
            "num_clients": args.clients,
            "num_features": args.clients * args.features,
            "num_samples": args.samples,
            "num_local_steps": args.local_steps,
            "num_rounds": args.rounds,
            "record_every": args.rounds,
            "learning_rate": 1e-7,
            "measure_gap": False,
            "topology": args.topology,
        },
    )
    data = load_data(config, "synthetic", 0)
    assert isinstance(data, GeneratedData)
    blocks = [data.load(client).train for client in range(args.clients)]
    found = []
    for _ in range(args.repeats):
        loop_seconds, visits, z_N = plain_loop(config, data, blocks, 0)
        actor_seconds, result = actors(config, data, 0)
        loss = problem_of(config).loss(z_N, data.labels()[0], args.samples)
        found.append((visits / loop_seconds, visits / actor_seconds, result.metrics["training/objective"] - loss))
    loop, actor = (float(np.median([row[i] for row in found])) for i in (0, 1))
    ratios = [row[1] / row[0] for row in found]
    metrics = {
        "plain_loop_hops_per_second": round(loop),
        "actors_hops_per_second": round(actor),
        "ratio": round(float(np.median(ratios)), 3),
        "regulariser": float(found[0][2]),
    }
    row = RunRow(
        protocol="mtcd",
        study="speed",
        name=f"{args.algorithm}-q{args.local_steps:02}",
        seed=0,
        data="synthetic",
        config=as_dict(config),
        metrics=metrics,
        command=shlex.join(["python", "scenarios/benchmarks/mtcd_hops.py", *sys.argv[1:]]),
        code=code_digest(PROTOCOL),
        content=data_digest("synthetic"),
        versions=versions(),
        extra={"ratio_range": [round(min(ratios), 3), round(max(ratios), 3)], "features_per_client": args.features},
    )
    if args.output:
        put_rows(args.output, [row])
    print(json.dumps({**metrics, **row.extra}))


if __name__ == "__main__":
    main()
