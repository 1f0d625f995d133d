"""What secure sums cost beside the unprotected run, in processor seconds and bytes: GLASU, TablePuppet, sums alone.

Each setting is run once in the simulated runtime, in this process; seconds are the processor's, so that waiting for
others' load does not count, and all parties' work adds up. Bytes are the ledger's, all parties' together.

    python scenarios/benchmarks/secure_sums.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedactors.config import build
from fedactors.network.codec import measure
from fedactors.privacy.fixed_point import FixedPoint
from fedactors.privacy.neighbours import num_neighbours
from fedactors.privacy.secure_aggregation import SecureSumClient, SecureSumServer, unmasked_sum
from fedactors.privacy.secure_sessions import Identity, SumCall
from fedactors.runtime.simulated import SimulatedRuntime
from protocols.glasu.plugin import PROTOCOL as GLASU
from protocols.tablepuppet.plugin import PROTOCOL as TABLEPUPPET

NOISE = {"noise_multiplier": "4", "clip_norm": "1", "max_degree": "170"}
RUNS: tuple[tuple[str, Any, str, dict[str, str], tuple[tuple[str, dict[str, str]], ...]], ...] = (
    (
        "GLASU, Cora, 3 clients, 10 rounds",
        GLASU,
        "cora",
        {"num_rounds": "10", "evaluate_every": "10"},
        (
            ("open", {}),
            ("secure sums", {"secure_aggregation": "true"}),
            ("secure sums and noise", {"secure_aggregation": "true", **NOISE}),
        ),
    ),
    (
        "GLASU, Cora, 8 clients, 10 rounds",
        GLASU,
        "cora",
        {"num_rounds": "10", "evaluate_every": "10", "num_clients": "8"},
        (("open", {}), ("secure sums", {"secure_aggregation": "true"})),
    ),
    (
        "TablePuppet, orders:20000, ADMM, 10 rounds",
        TABLEPUPPET,
        "orders:20000",
        {"algorithm": "rfl-admm-v"},
        (("open", {}), ("secure sums", {"secure_sums": "true"})),
    ),
    (
        "TablePuppet, orders:20000, SGD, 2 epochs",
        TABLEPUPPET,
        "orders:20000",
        {"algorithm": "rfl-sgd-v", "rounds": "2"},
        (("open", {}), ("secure sums", {"secure_sums": "true"})),
    ),
)


def run_once(protocol: Any, data: str, words: dict[str, str]) -> tuple[float, int, int]:
    """Return processor seconds, bytes and messages of a run."""
    config = build(protocol.Config, words)
    source = protocol.load_data(config, data, 0)
    runtime = SimulatedRuntime(seed=0)
    start = time.process_time()
    runtime.execute(lambda: protocol.run(config, source, runtime))
    usage = runtime.usage()
    return time.process_time() - start, usage.bytes, usage.messages


def sums_alone(
    num_clients: int, length: int, num_sums: int = 8, num_lost: int = 0
) -> tuple[float, float, float, float]:
    """Return, for each client: seconds and bytes of preparing one sum, and of one sum; the server's part is in them."""
    names = tuple(f"c{place:03}" for place in range(num_clients))
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
    """Measure and print two tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=100_000, help="numbers in a vector of the sums alone")
    given = parser.parse_args(arguments)
    print("| run | protection | processor s | MB | messages |\n|---|---|---|---|---|")
    for title, protocol, data, words, modes in RUNS:
        for mode, more in modes:
            seconds, num_bytes, messages = run_once(protocol, data, {**words, **more})
            print(f"| {title} | {mode} | {seconds:.2f} | {num_bytes / 1e6:.2f} | {messages} |", flush=True)
    print(f"\n{given.length} numbers, {4 * given.length} bytes bare in 32 bits; for each client and sum:\n")
    print("| clients | neighbours | lost | prepare ms | bytes | sum ms | bytes |\n|---|---|---|---|---|---|---|")
    for count, lost in ((3, 0), (5, 0), (5, 2), (20, 0), (100, 0), (100, 10)):
        prepared, prepared_bytes, seconds, sum_bytes = sums_alone(count, given.length, num_lost=lost)
        cells = (f"{1e3 * prepared:.1f}", f"{prepared_bytes:.0f}", f"{1e3 * seconds:.1f}", f"{sum_bytes:.0f}")
        print(f"| {count} | {num_neighbours(count)} | {lost} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
