"""Figure 6: split networks, MTCD with two clusters against SVFL, accuracy against sync rounds and weighted cost.

The paper trains a multi-view CNN on ModelNet10 (12 views, 2 clusters of 6) and ResNet-18 on quadrants of CIFAR-10 (4
clients, 2 clusters of 2). Here: generated objects seen from 12 sides; quadrants of scikit-learn's digits (8 x 8) with
a narrow ResNet-18; and, as a table, Fashion-MNIST's pixels dealt to 8 clients with an MLP each (2 clusters of 4; needs
the data set). Both methods at the same step: the protocol's default of 0.05, for the views 0.1 (of 0.1, 0.2 and 0.5
the one at which both learn, on objects of another seed). Q = 2; each cluster is swept once a round.

    python scenarios/paper/mtcd/networks.py             5 seeds for the MLP, 2 for the others; sum aggregation
    python scenarios/paper/mtcd/networks.py --full      besides, concatenation, and ResNet-18 at full width on CIFAR-10
"""

from __future__ import annotations

import dataclasses
from typing import Any

from _study import MtcdStudy

COMMON: dict[str, Any] = {
    **{"problem": "network", "topology": "complete", "learning_rate": 0.05},
    **{"schedule": "step", "decay_every": 20, "decay_factor": 0.5},
}
Q = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A network on its data: `epochs` of `rounds_per_epoch` mini-batches, on as many seeds."""

    settings: dict[str, Any]
    data: str
    rounds_per_epoch: int
    epochs: int
    num_seeds: int


TASKS = {
    "table": Task(
        settings={"network": "mlp", "num_clients": 8, "num_features": 784, "batch_size": 256},
        data="fashion-mnist",
        rounds_per_epoch=164,
        epochs=3,
        num_seeds=5,
    ),
    "views": Task(
        settings={"network": "multi-view-cnn", "num_clients": 12, "num_samples": 600, "network_width": 8}
        | {"batch_size": 64, "learning_rate": 0.1},
        data="synthetic",
        rounds_per_epoch=6,
        epochs=26,
        num_seeds=2,
    ),
    "quadrants": Task(
        settings={"network": "resnet18", "num_clients": 4, "network_width": 8, "batch_size": 64},
        data="digits",
        rounds_per_epoch=22,
        epochs=4,
        num_seeds=2,
    ),
}
CIFAR = Task(
    settings={"network": "resnet18", "num_clients": 4, "network_width": 64, "batch_size": 64},
    data="cifar10",
    rounds_per_epoch=781,
    epochs=100,
    num_seeds=5,
)


def main() -> None:
    """Train each network with both methods."""
    study = MtcdStudy.of(__doc__)
    tasks = {**TASKS, "cifar": CIFAR} if study.full else TASKS
    for name, task in tasks.items():
        if study.smoke and task.data == "fashion-mnist":
            task = dataclasses.replace(task, data="digits")
        shared = {**COMMON, **task.settings, "record_every": max(1, task.rounds_per_epoch // 2)}
        shared["num_rounds"] = task.epochs * task.rounds_per_epoch
        hops = int(shared["num_clients"]) // 2 - 1
        rows = {}
        for aggregation in ("sum", "concatenation") if study.full or study.smoke else ("sum",):
            mtcd = {**shared, "num_tokens": 2, "num_hops": hops, "walk": "sweep"}
            for method, settings in (("mtcd", mtcd), ("svfl", {**shared, "algorithm": "svfl"})):
                rows[f"{method}-{aggregation}"] = {**settings, "aggregation": aggregation, "num_local_steps": Q}
        study.record(f"networks-{name}", rows, data=task.data, seeds=study.seeds[: task.num_seeds])


if __name__ == "__main__":
    main()
