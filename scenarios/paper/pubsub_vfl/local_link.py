"""Measures what a message between two processes of one party takes on Ray: latency and bandwidth of the local link.

One process asks another on the same machine for an average of its parameters, as the workers of `avfl-ps` do after
each batch. Half a round trip, less the averaging itself, is fitted as latency + bytes / bandwidth; the comparisons take
it as the link within a party. Usage: python scenarios/paper/pubsub_vfl/local_link.py [--smoke] [--out DIR]
"""

from __future__ import annotations

import os
import time

import numpy as np
from _study import study_of

from fedactors.actors.actor import Client, Resources
from fedactors.actors.remote import DRIVER, remote
from fedactors.messages.codec import message
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.messages import Parameters
from fedactors.protocols.pubsub_vfl.replicas import AveragingServer, weighted_mean
from fedactors.runs.table import RunRow
from fedactors.runtime.ray.runtime import RayRuntime

SIZES = (100, 10_000, 62_000, 250_000)
SERVER = "party/ps"


@message(reveals="nothing: how much to measure")
class Measure:
    """Calls to time, with so many parameters each way."""

    size: int
    repetitions: int


@message(reveals="how fast this machine is")
class Seconds:
    """The median of one call."""

    value: float


class Asker(Client):
    """Times its own calls to the parameter server."""

    @remote(caller=DRIVER)
    async def measure(self, order: Measure) -> Seconds:
        """Return the median seconds of one call."""
        server = self.peer(SERVER, AveragingServer)
        vector = np.zeros(order.size, np.float32)
        taken = []
        for index in range(order.repetitions + 5):
            start = time.perf_counter()
            await server.average(Parameters(order.size, index + 1, 1.0, (vector,)))
            taken.append(time.perf_counter() - start)
        return Seconds(float(np.median(taken[5:])))


def averaging_seconds(size: int) -> float:
    """Return the seconds of the server's own arithmetic."""
    vector, taken = np.zeros(size, np.float32), []
    for _ in range(20):
        start = time.perf_counter()
        weighted_mean([vector], [1.0])
        taken.append(time.perf_counter() - start)
    return float(np.median(taken))


def main() -> None:
    given = study_of(__doc__)
    repetitions = 2 if given.smoke else 200
    runtime = RayRuntime(seed=0, num_cpus=2)

    async def measure() -> list[float]:
        runtime.spawn(AveragingServer, SERVER, ("party/asker",), PubSubVflConfig(), resources=Resources(num_cpus=0.1))
        asker = runtime.spawn(Asker, "party/asker", resources=Resources(num_cpus=0.1))
        await runtime.start()
        return [(await asker.measure(Measure(size, repetitions))).value for size in SIZES]

    round_trips = runtime.execute(measure)
    one_way = [max(trip - averaging_seconds(size), 0.0) / 2 for size, trip in zip(SIZES, round_trips, strict=True)]
    num_bytes = np.array(SIZES, np.float64) * 4
    slope, latency = np.polyfit(num_bytes, one_way, 1, w=1 / np.maximum(one_way, 1e-9))
    metrics = {
        "latency": max(float(latency), 0.0),
        "bandwidth": 1 / max(float(slope), 1e-12),
        "load_average": os.getloadavg()[0],
    }
    curve = {"bytes": num_bytes.tolist(), "seconds_one_way": one_way}
    row = RunRow(protocol="pubsub-vfl", seed=0, runtime="ray", metrics=metrics, curve=curve)
    given.put("local-link", "local-link", [row])


if __name__ == "__main__":
    main()
