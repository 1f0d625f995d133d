"""Seconds of an epoch and to a target AUC on Ray, with and without 10 ms of emulated latency between the parties.

One worker a side (this machine has two cores), real processes; the broker runs at the active party. Each method is run
with two batch sizes and with narrow windows, whose gradients are fresh, and wide ones, which hide the latency: the way
of a batch over the broker has four times the hops of a direct call and back, so that PubSub-VFL needs wider ones.
Three seeds whose splits allow the target. Reduced: Bank, 4 epochs at most, validation AUC 0.935; ``--full`` trains 20
epochs of a million synthetic rows.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from _study import Clocked, Point, asked, one_cluster, row_of

from fedactors.config import parse_words
from fedactors.network.links import Link, Network
from fedactors.records.table import RunRow
from fedactors.runtime.ray.runtime import RayRuntime
from fedactors.sweeps.runs import run_once
from protocols.pubsub_vfl.plugin import PROTOCOL

WINDOW = 32
METHODS: dict[str, dict[str, Any]] = {
    "vfl": {"algorithm": "vfl"},
    "avfl": {"algorithm": "avfl"},
    "avfl-wide": {"algorithm": "avfl", "embedding_buffer": WINDOW},
    "pubsub-vfl-narrow": {"algorithm": "pubsub-vfl", "max_in_flight": 8, "prefetch": 4},
    "pubsub-vfl": {"algorithm": "pubsub-vfl", "max_in_flight": WINDOW, "prefetch": WINDOW},
    "pubsub-vfl-wide": {"algorithm": "pubsub-vfl", "max_in_flight": 2 * WINDOW, "prefetch": WINDOW},
}
LINKS = {
    "10ms": Network(default=Link(latency=0.01, bandwidth=1.25e8), hosts={"broker": "active"}),
    "00ms": None,
}
BATCH_SIZES = (256, 64)


def measure(point: Point, network: Network | None, seed: int) -> RunRow:
    """Run a point over Ray."""
    keywords = {"recorder": Clocked(), "network": network, "num_cpus": 2}
    row = row_of(point, run_once(PROTOCOL, point.settings, point.data, seed, make=RayRuntime, **keywords))
    return dataclasses.replace(row, extra={**row.extra, "load_average": os.getloadavg()[0]})


def main() -> None:
    given = asked(__doc__, (0, 1, 3))
    size = ("synthetic:1000000x500", 20, 0.91) if given.full else ("bank", 4, 0.935)
    data_name, num_epochs, target = ("breast-cancer", 1, 0.99) if given.smoke else size
    names = [(link, batch_size, method) for batch_size in BATCH_SIZES for link in LINKS for method in METHODS]
    with one_cluster():
        for link, batch_size, method in names[-1:] if given.smoke else names:
            name = f"{link}-{method}-b{batch_size:04d}"
            if not given.wants(name) or not given.lacks("ray-latency", name):
                continue
            settings = {"num_epochs": num_epochs, "batch_size": batch_size, "target": target, **METHODS[method]}
            point = Point(name=name, data=data_name, settings=settings | parse_words(given.words))
            seeds = given.seeds[:1] if given.smoke else given.seeds
            given.put("ray-latency", name, [measure(point, LINKS[link], seed) for seed in seeds])


if __name__ == "__main__":
    main()
