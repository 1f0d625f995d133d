"""What each protection costs beside the unprotected run, in processor seconds, bytes and messages; and sums alone.

A row of ``runs`` is one protection and seed: the open run and the protected one in turns, in the simulated runtime, in
one process, of the same data and seed, after a pair that only warms up; seconds are the processor's, all parties' work
together. Bytes and messages are the ledger's. Three seeds are three pairs. A row of ``alone`` is a sum of so many
clients: milliseconds and bytes for each client.

    python scenarios/benchmarks/secure_sums.py          # into docs/results/privacy.parquet
    python -m scenarios.results docs/results            # the tables of the page
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedactors.config import as_dict, build, parse_words
from fedactors.launch import load_data
from fedactors.messages.codec import measure
from fedactors.plugins import find_protocol
from fedactors.protocols.pubsub_vfl.plugin import PUBLISHED
from fedactors.protocols.tablepuppet.plugin import PUBLISHED as TABLEPUPPET
from fedactors.runs.table import RunRow
from fedactors.runtime.compute import one_torch_thread
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from fedactors.secure_sums.messages import Identity, SumCall
from fedactors.secure_sums.primitives import FixedPoint, num_neighbours
from fedactors.secure_sums.protocol import SecureSumClient, SecureSumServer, unmasked_sum

sys.path.insert(0, str(Path(__file__).parents[2]))

from scenarios.paper.study import Study, study_flags

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
LENGTH = 100_000


class CostStudy(Study):
    """Rows of the table of privacy."""

    @property
    def table(self) -> Path:
        """The table that rows are put into."""
        return self.out / "privacy.parquet"


@dataclass(frozen=True)
class Cost:
    """A protection and the run that it is compared with."""

    protocol: str
    data: str
    common: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)


GLASU = {"num_rounds": 5, "evaluate_every": 5, "hidden_size": 64}
GLASU_NOISE = {"secure_aggregation": True, "noise_multiplier": 4.0, "clip_norm": 1.0, "max_degree": 170}
ADMM = {**TABLEPUPPET, "algorithm": "rfl-admm-v", "num_rounds": 5}
PAPER = {"admm": "paper_sgd", "local_epochs": 1}
SGD = {"algorithm": "rfl-sgd-v", "num_rounds": 2}
NOISE = {
    "feature_dp": 8.0,
    "prediction_clip": 1.0,
    "prediction_noise": 4.0,
    "label_dp": 1.0,
    "declared_facts": ("amount=0:3", "hour=0:23", "weight=0:3", "price=0:3", "credit_limit=0:3", "age=18:80"),
}
SPLIT = {**PUBLISHED, "num_epochs": 1, "num_layers": 2, "hidden_size": 32, "embedding_size": 8}
AVERAGES = {"num_rounds": 5, "model": "mlp", "evaluate_every": 5}
CENTERS = {
    "algorithm": "fedhisyn", "num_centers": 4, "num_rounds": 3, "duration": 20000.0,
    "on_party_loss": "stop",
}  # fmt: skip
TOKENS = {
    "problem": "sparse-logistic", "num_clients": 4, "num_tokens": 2, "num_hops": 2, "num_local_steps": 5,
    "num_rounds": 20, "learning_rate": 0.1, "record_every": 20, "walk": "lazy", "acceleration": False,
}  # fmt: skip
TOKEN_NOISE = {"noise": "gaussian", "noise_multiplier": 4.0}
RUNS: dict[str, Cost] = {
    "glasu-3-clients-sums": Cost("glasu", "cora", GLASU, {"secure_aggregation": True}),
    "glasu-3-clients-sums-and-noise": Cost("glasu", "cora", GLASU, GLASU_NOISE),
    "glasu-3-clients-noise": Cost("glasu", "cora", GLASU, {**GLASU_NOISE, "secure_aggregation": False}),
    "glasu-8-clients-sums": Cost("glasu", "cora", {**GLASU, "num_clients": 8}, {"secure_aggregation": True}),
    "tablepuppet-admm-sums": Cost("tablepuppet", "orders:20000", ADMM, {"secure_aggregation": True}),
    "tablepuppet-sgd-sums": Cost("tablepuppet", "orders:20000", SGD, {"secure_aggregation": True}),
    "tablepuppet-sgd-noise": Cost("tablepuppet", "orders:20000", SGD, NOISE),
    "tablepuppet-admm-noise": Cost("tablepuppet", "orders:20000", {**ADMM, **PAPER}, NOISE),
    "tablepuppet-admm-sums-and-noise": Cost(
        "tablepuppet", "orders:20000", {**ADMM, **PAPER}, {**NOISE, "secure_aggregation": True, "secure_range": 1000.0}
    ),
    "tablepuppet-sgd-labels": Cost("tablepuppet", "orders:20000", SGD, {"label_dp": 1.0}),
    "tablepuppet-sgd-facts": Cost("tablepuppet", "orders:20000", SGD, {"declared_facts": NOISE["declared_facts"]}),
    "horizontal-10-sites-sums": Cost("horizontal", "digits", AVERAGES, {"secure_aggregation": True}),
    "nebulafl-4-centers-sums": Cost("nebulafl", "digits", CENTERS, {"secure_aggregation": True}),
    "nebulafl-4-centers-average-sums": Cost(
        "nebulafl", "digits", {**CENTERS, "algorithm": "fedavg-hierarchical"}, {"secure_aggregation": True}
    ),
    "mtcd-4-clients-sums": Cost("mtcd", "bank", TOKENS, {"secure_aggregation": True}),
    "mtcd-4-clients-noise": Cost("mtcd", "bank", TOKENS, TOKEN_NOISE),
    "mtcd-4-clients-sums-and-noise": Cost("mtcd", "bank", TOKENS, {"secure_aggregation": True, **TOKEN_NOISE}),
    "pubsub-vfl-frozen": Cost(
        "pubsub-vfl", "bank", SPLIT, {"embedding_mu": 2.0, "bottom_training": "frozen", "standardisation": "private"}
    ),
    "pubsub-vfl-private": Cost(
        "pubsub-vfl", "bank", SPLIT, {"embedding_mu": 2.0, "bottom_training": "private", "standardisation": "private"}
    ),
    "pubsub-vfl-scale": Cost("pubsub-vfl", "bank", SPLIT, {"standardisation": "private"}),
    "pubsub-vfl-labels": Cost("pubsub-vfl", "bank", SPLIT, {"label_epsilon": 1.0}),
    "pubsub-vfl-gradients": Cost("pubsub-vfl", "bank", SPLIT, {"gradient_mu": 2.0}),
    "pubsub-vfl-paper-mu-1": Cost("pubsub-vfl", "bank", SPLIT, {"privacy_mu": 1.0}),
}
ALONE = {
    f"{count}-clients{f'-{lost}-lost' if lost else ''}": (count, lost)
    for count, lost in ((3, 0), (5, 0), (5, 2), (20, 0), (100, 0), (100, 10))
}


def run_once(protocol: Any, config: Any, data: Any, seed: int) -> tuple[float, int, int]:
    """Return processor seconds, bytes and messages of a run."""
    runtime = SimulatedRuntime(seed=seed)
    start = time.process_time()
    runtime.execute(lambda: protocol.run(config, data, runtime))
    usage = runtime.usage()
    return time.process_time() - start, usage.bytes, usage.messages


_warm: set[str] = set()
"""Protections whose code this process has run."""


def compared(cost: Cost, seed: int) -> RunRow:
    """Run open and protected in turns."""
    one_torch_thread()
    protocol = find_protocol(cost.protocol)
    configs = [build(protocol.Config, {**cost.common, **more}) for more in ({}, cost.settings)]
    for _ in range(1 if repr(cost) in _warm else 2):
        opened, protected = (
            run_once(protocol, one, load_data(protocol, one, cost.data, seed), seed) for one in configs
        )
    _warm.add(repr(cost))
    metrics = {
        "open_seconds": opened[0],
        "protected_seconds": protected[0],
        "times_the_seconds": protected[0] / opened[0],
        "open_bytes": opened[1],
        "protected_bytes": protected[1],
        "times_the_bytes": protected[1] / opened[1],
        "times_the_messages": protected[2] / opened[2],
    }
    # a clock decides it: `none` of the runtimes, so that nobody expects the same again
    return RunRow(
        protocol=protocol.name, seed=seed, data=cost.data, runtime="none", config=as_dict(configs[1]), metrics=metrics
    )


def alone(point: tuple[int, int], seed: int) -> RunRow:
    """Measure sums alone, the best of three."""
    count, lost = point
    made = [sums_alone(count, LENGTH, num_lost=lost) for _ in range(3)]
    metrics = {
        "neighbours": num_neighbours(count),
        "prepare_ms": 1e3 * min(one[0] for one in made),
        "prepare_bytes": made[0][1],
        "sum_ms": 1e3 * min(one[2] for one in made),
        "sum_bytes": made[0][3],
    }
    return RunRow(protocol="horizontal", seed=seed, metrics=metrics)


def sums_alone(
    num_clients: int, length: int, num_sums: int = 8, num_lost: int = 0
) -> tuple[float, float, float, float]:
    """Return, for each client: seconds and bytes of preparing one sum, and of one sum; the server's part is in them."""
    names = tuple(f"c{index:03}" for index in range(num_clients))
    identities = {name: Identity() for name in names}
    public = {name: one.public for name, one in identities.items()}
    clients = {name: SecureSumClient(name, identities[name], public, num_clients=num_clients) for name in names}
    server = SecureSumServer(SumCall(1, num_sums, names), num_clients)
    start = time.process_time()
    keys = {name: one.advertise(server.call) for name, one in clients.items()}
    roster = server.roster(keys)
    sealed = {name: one.share(roster) for name, one in clients.items()}
    delivered = server.deliver(sealed)
    for name, shares in delivered.items():
        clients[name].take(shares)
    prepared = time.process_time() - start
    sizes = measured(keys.values()) + num_clients * measure(roster) + measured(sealed.values())
    prepared_bytes = sizes + measured(delivered.values())
    values, point = np.random.default_rng(0).normal(size=length), FixedPoint(limit=8.0, num_clients=num_clients)
    start = time.process_time()
    masked = {name: clients[name].mask(values, point, "0") for name in names[num_lost:]}
    arrived = server.arrived(masked)
    confirmed = {name: clients[name].confirm(arrived) for name in masked}
    proof = server.confirmations(arrived, confirmed)
    unmaskings = {name: clients[name].unmask(proof) for name in masked}
    total = point.decode(unmasked_sum(server.session, masked, unmaskings))
    seconds = time.process_time() - start
    assert np.abs(total - len(masked) * values).max() <= 2 * point.error(num_clients)
    num_bytes = measured(masked.values()) + measured(confirmed.values()) + measured(unmaskings.values())
    num_bytes += len(masked) * (measure(arrived) + measure(proof))
    share = num_sums * num_clients
    return prepared / share, prepared_bytes / share, seconds / num_clients, num_bytes / num_clients


def measured(messages: Iterable[Any]) -> int:
    """Return the bytes of messages beside their headers."""
    return sum(measure(one) for one in messages)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is not in the table yet."""
    flags = study_flags(__doc__, "horizontal", RESULTS, seeds=(0, 1, 2))
    given: CostStudy = flags.parse_args(arguments, namespace=CostStudy())
    words = parse_words(given.words)
    runs = {name: Cost(one.protocol, one.data, {**one.common, **words}, one.settings) for name, one in RUNS.items()}
    for protocol in dict.fromkeys(one.protocol for one in runs.values()):
        given.protocol = protocol
        local = {name: one for name, one in runs.items() if one.protocol == protocol}
        given.measure("runs", local, compared, smoke_rows=1)
    given.protocol = "horizontal"
    given.measure("alone", ALONE, alone, seeds=(0,), smoke_rows=1)


if __name__ == "__main__":
    main()
