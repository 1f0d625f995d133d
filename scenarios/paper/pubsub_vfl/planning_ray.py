"""The planner's prediction beside the measured epoch, over Ray on this machine, for ten settings (Section 4.3).

The machine has two cores, so that only one worker a side has a core to itself: the candidates are batch sizes. Both
parties are profiled first, each in a process of its own on one core; then one epoch after another is trained with each
setting over real processes, and the median after the first counts, without evaluation. The time of an epoch's batches
is what is planned; messages are not modelled.
Reduced: 60,000 synthetic rows with 100 columns.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import statistics
import time
from typing import Any

from _study import flags, write

from fedactors.config import build, parse_words
from fedactors.records.metrics import Summary
from fedactors.records.study import Study
from fedactors.runtime.ray.runtime import RayRuntime
from protocols.pubsub_vfl import cast, planner, run
from protocols.pubsub_vfl.config import PubSubVflConfig
from protocols.pubsub_vfl.data import load_data
from protocols.pubsub_vfl.planner import PartyProfile
from protocols.pubsub_vfl.profiler import profile_party

DATA = "synthetic:60000x100"
BATCH_SIZES = (64, 96, 128, 192, 256, 384, 512, 640, 768, 1024)
NUM_EPOCHS = 4


def profiles(config: PubSubVflConfig, data_name: str) -> dict[str, PartyProfile]:
    """Profile each party in a fresh process, for one core."""
    found = {}
    for party in ("active", "passive"):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found[party] = pool.apply(_profile, (config, data_name, party))
    return found


def _profile(config: PubSubVflConfig, data_name: str, party: str) -> PartyProfile:
    return profile_party(config, load_data(config, data_name, 0), party, num_cores=1, repetitions=20)


def measure(config: PubSubVflConfig, data_name: str, num_epochs: int) -> tuple[list[float], int, RayRuntime]:
    """Train some epochs over Ray; return the seconds of each, the number of training rows, and the runtime."""
    data = load_data(config, data_name, 0)
    runtime = RayRuntime(seed=0, num_cpus=2)
    taken: list[float] = []

    async def main() -> int:
        actors = cast.assemble(config, data, runtime)
        await runtime.start()
        num_rows = await actors.first_active.align(actors.first_passive)
        for epoch in range(1, num_epochs + 1):
            start = time.perf_counter()
            await run.train_epoch(config, epoch, num_rows, actors)
            taken.append(time.perf_counter() - start)
        return num_rows

    return taken, runtime.execute(main), runtime


def main() -> None:
    given = flags(__doc__).parse_intermixed_args(namespace=Study())
    data_name, num_epochs = ("synthetic:2000x10", 2) if given.smoke else (DATA, NUM_EPOCHS)
    words: dict[str, Any] = {"max_in_flight": 24, **parse_words(given.words)}
    made = profiles(build(PubSubVflConfig, words), data_name)
    sizes = BATCH_SIZES[-1:] if given.smoke else BATCH_SIZES
    for batch_size in sizes:
        path = given.out / "planning-ray" / f"w1-1-b{batch_size:04d}.json"
        if not given.wants(path.stem):
            continue
        config = build(PubSubVflConfig, {**words, "batch_size": batch_size})
        taken, num_rows, runtime = measure(config, data_name, num_epochs)
        problem = planner.Problem(active=made["active"], passive=made["passive"], num_rows=num_rows)
        predicted, measured = planner.cost(problem, 1, 1, batch_size), statistics.median(taken[1:])
        used = runtime.usage()
        summary = Summary(
            run=path.stem,
            protocol="pubsub-vfl",
            runtime="ray",
            seed=0,
            rounds=num_epochs,
            metrics={"predicted": predicted, "measured": measured, "measured_over_predicted": measured / predicted},
            extra={"epoch_seconds": taken, "profiles": {k: dataclasses.asdict(v) for k, v in made.items()}},
            bytes=used.bytes,
            messages=used.messages,
            seconds=used.seconds,
            wall_seconds=sum(taken),
            cpu_utilisation=used.cpu_utilisation,
            waiting_seconds=used.waiting_seconds,
        )
        write(path, [summary], load_average=os.getloadavg()[0])


if __name__ == "__main__":
    main()
