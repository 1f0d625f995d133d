"""The planner's prediction beside the measured epoch, over Ray on this machine, for ten settings (Section 4.3).

The machine has two cores, so that only one worker a side has a core to itself: the candidates are batch sizes. Both
parties are profiled first, at the same time, each in a process of its own on one core. What the messages of a batch
cost is measured once, by epochs of networks so small that little else is left. Then one epoch after another is trained
with each setting over real processes, and the median after the first four counts, without evaluation.
Reduced: 60,000 synthetic rows with 100 columns.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import statistics
import time
from typing import Any

from _study import asked, one_cluster

from fedactors.config import as_dict, build, parse_words
from fedactors.records.table import RunRow
from fedactors.runtime.ray.runtime import RayRuntime
from fedactors.sweeps.study import Study
from protocols.pubsub_vfl import planner
from protocols.pubsub_vfl.config import PubSubVflConfig
from protocols.pubsub_vfl.data import load_data, num_batches
from protocols.pubsub_vfl.planner import PartyProfile
from protocols.pubsub_vfl.profiler import profile_party
from protocols.pubsub_vfl.run import assemble

DATA = "synthetic:60000x100"
BATCH_SIZES = (64, 96, 128, 192, 256, 384, 512, 640, 768, 1024)
NUM_EPOCHS, WARM_UP = 12, 4


def profiles(config: PubSubVflConfig, data_name: str) -> dict[str, PartyProfile]:
    """Profile both parties at once, each in a fresh process for one core: they share the machine as in training."""
    parties = ("active", "passive")
    with multiprocessing.get_context("spawn").Pool(len(parties)) as pool:
        asked = [(config, data_name, party) for party in parties]
        return dict(zip(parties, pool.starmap(_profile, asked, chunksize=1), strict=True))


def _profile(config: PubSubVflConfig, data_name: str, party: str) -> PartyProfile:
    return profile_party(config, load_data(config, data_name, 0), party, num_cores=1, repetitions=40)


def message_seconds(words: dict[str, Any], data_name: str) -> float:
    """Return what a batch takes beyond its computing, by epochs of the smallest networks that send as many bytes."""
    config = build(PubSubVflConfig, {**words, "num_layers": 1, "hidden_size": 1, "batch_size": BATCH_SIZES[0]})
    made = profiles(config, data_name)
    taken, num_rows, _ = measure(config, data_name, NUM_EPOCHS)
    batch = statistics.median(taken[WARM_UP:]) / num_batches(num_rows, config.batch_size)
    return max(0.0, batch - max(planner.batch_seconds(made[party], config.batch_size) for party in made))


def measure(config: PubSubVflConfig, data_name: str, num_epochs: int) -> tuple[list[float], int, RayRuntime]:
    """Train some epochs over Ray; return the seconds of each, the number of training rows, and the runtime."""
    data = load_data(config, data_name, 0)
    runtime = RayRuntime(seed=0, num_cpus=2)
    taken: list[float] = []

    async def main() -> int:
        actors = assemble(config, data, runtime)
        await runtime.start()
        num_rows = (await actors.align()).num_rows
        for epoch in range(1, num_epochs + 1):
            start = time.perf_counter()
            await actors.train_epoch(epoch, num_rows)
            taken.append(time.perf_counter() - start)
        return num_rows

    return taken, runtime.execute(main), runtime


def main() -> None:
    given = asked(__doc__)
    with one_cluster():
        compare(given)


def compare(given: Study) -> None:
    """Predict and measure what the flags ask for."""
    data_name, num_epochs = ("synthetic:2000x10", 2) if given.smoke else (DATA, NUM_EPOCHS)
    words: dict[str, Any] = {"max_in_flight": 24, **parse_words(given.words)}
    seconds = message_seconds(words, data_name)
    made = {
        party: dataclasses.replace(profile, message_seconds=seconds)
        for party, profile in profiles(build(PubSubVflConfig, words), data_name).items()
    }
    sizes = BATCH_SIZES[-1:] if given.smoke else BATCH_SIZES
    for batch_size in sizes:
        name = f"w1-1-b{batch_size:04d}"
        if not given.wants(name) or not given.lacks("planning-ray", name):
            continue
        config = build(PubSubVflConfig, {**words, "batch_size": batch_size})
        taken, num_rows, runtime = measure(config, data_name, num_epochs)
        problem = planner.Problem(active=made["active"], passive=made["passive"], num_rows=num_rows)
        predicted, measured = planner.cost(problem, 1, 1, batch_size), statistics.median(taken[WARM_UP:] or taken)
        used = runtime.usage()
        row = RunRow(
            protocol="pubsub-vfl",
            seed=0,
            data=data_name,
            runtime="ray",
            config=as_dict(config),
            metrics={"predicted": predicted, "measured": measured, "measured_over_predicted": measured / predicted},
            usage={name: getattr(used, name) for name in ("bytes", "messages", "seconds", "cpu_utilisation")}
            | {"rounds": num_epochs, "waiting_seconds": used.waiting_seconds},
            curve={"epoch_seconds": taken},
            extra={
                "profiles": {k: dataclasses.asdict(v) for k, v in made.items()},
                "load_average": os.getloadavg()[0],
            },
            wall_seconds=sum(taken),
        )
        given.put("planning-ray", name, [row])


if __name__ == "__main__":
    main()
