"""Seconds of an epoch and to a target AUC on Ray, with and without 10 ms of emulated latency between the parties.

One worker a side, real processes on this machine; the broker runs at the active party. AVFL also with as wide a window
as PubSub-VFL has, so that not the window alone decides.
Reduced: synthetic data of 20,000 rows and 40 columns, a small network, 6 epochs; ``--full`` has the ten-layer network.
"""

from __future__ import annotations

import json
import os
import time

from _study import Point, _Clocked, parser, summarise

from fedactors.config import build
from fedactors.network.links import Link, Network
from fedactors.runtime.ray.runtime import RayRuntime
from protocols.pubsub_vfl.config import PubSubVflConfig
from protocols.pubsub_vfl.data import load_data
from protocols.pubsub_vfl.run import run

WINDOW = 32
METHODS = {
    "vfl": {"algorithm": "vfl"},
    "avfl": {"algorithm": "avfl"},
    "avfl-wide": {"algorithm": "avfl", "embedding_buffer": WINDOW},
    "pubsub-vfl": {"algorithm": "pubsub-vfl", "max_in_flight": WINDOW, "prefetch": WINDOW},
}
LINKS = {
    "00ms": None,
    "10ms": Network(default=Link(latency=0.01, bandwidth=1.25e8), hosts={"broker": "active"}),
}


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--method", choices=sorted(METHODS), action="append")
    given = flags.parse_args()
    small = {"num_layers": 4, "hidden_size": 32, "embedding_size": 16, "num_epochs": 6, "batch_size": 128}
    for latency, network in LINKS.items():
        for method in given.method or METHODS:
            path = given.to / "ray-latency" / f"{latency}-{method}.json"
            if path.is_file() and not given.again:
                continue
            full = {"num_epochs": 10, "batch_size": 256}
            settings = {**(full if given.full else small), "target": 0.93, **METHODS[method]}
            if given.smoke:
                settings["num_epochs"] = 1
            data_name = "breast-cancer" if given.smoke else f"synthetic:20000x{500 if given.full else 40}"
            point = Point(name=path.stem, data=data_name, settings=settings)
            config = build(PubSubVflConfig, settings)
            data = load_data(config, data_name, 0)
            recorder = _Clocked()
            runtime = recorder.runtime = RayRuntime(seed=0, recorder=recorder, network=network, num_cpus=2)
            start = time.perf_counter()
            result = runtime.execute(lambda c=config, d=data, r=runtime: run(c, d, r))  # type: ignore[misc]
            taken = time.perf_counter() - start
            summary = summarise(point, config, data.task, result, recorder, runtime, taken)
            values = summary.as_dict()
            values["extra"]["load_average"] = os.getloadavg()[0]
            print(json.dumps({"point": point.name, **values["metrics"], "load": os.getloadavg()[0]}), flush=True)
            if given.smoke:
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(values, indent=1) + "\n")


if __name__ == "__main__":
    main()
