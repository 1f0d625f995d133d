"""Figure 6: split networks, MTCD with two clusters against SVFL, accuracy against sync rounds and weighted cost.

The paper trains a multi-view CNN on ModelNet10 (12 views, 2 clusters of 6) and ResNet-18 on quadrants of CIFAR-10 (4
clients, 2 clusters of 2). Here: generated objects seen from 12 sides; quadrants of scikit-learn's digits (8 x 8) with
a narrow ResNet-18; and, as tables, the pixels of these digits and of Fashion-MNIST (needs the data set) dealt to 8
clients with an MLP each, in 2 clusters of 4. Each cluster is swept once a round, Q = 2.

SVFL at equal work twice: with Q local steps a round a client computes as much as with MTCD, with Q (S + 1) theta_0
takes as many steps, and a round as long.

Each method has six steps, of which seed 5, in no comparison, says the best: the least test loss after half the rounds.

    python scenarios/paper/mtcd/networks.py             the two tables, 5 seeds, sum aggregation
    python scenarios/paper/mtcd/networks.py --paper      the other two, concatenation, and CIFAR-10 at full width
"""

from __future__ import annotations

import dataclasses
from typing import Any

from _study import MtcdStudy

COMMON: dict[str, Any] = {
    **{"problem": "network", "topology": "complete"},
    **{"schedule": "step", "decay_every": 20, "decay_factor": 0.5},
}
Q = 2
STEPS = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8)
TUNING_SEED = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A network on its data: `epochs` of `rounds_per_epoch` mini-batches."""

    settings: dict[str, Any]
    data: str
    rounds_per_epoch: int
    epochs: int
    accuracies: tuple[float, ...] = ()
    """For which the bytes are measured."""


TASKS = {
    "digits": Task(
        settings={"network": "mlp", "num_clients": 8, "num_features": 64, "batch_size": 64},
        data="digits",
        rounds_per_epoch=20,
        epochs=6,
        accuracies=(0.9,),
    ),
    "table": Task(
        settings={"network": "mlp", "num_clients": 8, "num_features": 784, "batch_size": 256},
        data="fashion-mnist",
        rounds_per_epoch=164,
        epochs=2,
        accuracies=(0.84,),
    ),
    "views": Task(
        settings={"network": "multi-view-cnn", "num_clients": 12, "num_samples": 600, "hidden_size": 8}
        | {"batch_size": 64},
        data="synthetic",
        rounds_per_epoch=6,
        epochs=26,
        accuracies=(0.8,),
    ),
    "quadrants": Task(
        settings={"network": "resnet18", "num_clients": 4, "hidden_size": 8, "batch_size": 64},
        data="digits",
        rounds_per_epoch=22,
        epochs=4,
        accuracies=(0.8,),
    ),
}
CIFAR = Task(
    settings={"network": "resnet18", "num_clients": 4, "hidden_size": 64, "batch_size": 64},
    data="cifar10",
    rounds_per_epoch=781,
    epochs=100,
)


def methods(task: Task) -> dict[str, dict[str, Any]]:
    """Return MTCD, and SVFL with equal work of the clients and of theta_0."""
    shared = {**COMMON, **task.settings, "num_local_steps": Q, "record_every": max(1, task.rounds_per_epoch // 4)}
    shared["num_rounds"] = task.epochs * task.rounds_per_epoch
    hops = int(shared["num_clients"]) // 2 - 1
    svfl = {**shared, "algorithm": "svfl"}
    return {
        "mtcd": {**shared, "num_tokens": 2, "num_hops": hops, "walk": "sweep"},
        f"svfl-q{Q}": svfl,
        f"svfl-q{Q * (hops + 1)}": {**svfl, "num_local_steps": Q * (hops + 1)},
    }


def main() -> None:
    """Train each network with every method: at all steps with one seed, at the best with the others."""
    study = MtcdStudy.of(__doc__)
    tasks = {**TASKS, "cifar": CIFAR} if study.paper else {name: TASKS[name] for name in ("digits", "table")}
    for name, task in tasks.items():
        if study.smoke and task.data == "fashion-mnist":
            task = dataclasses.replace(task, data="digits")
        steps = {
            f"{method}-{step:g}": {**settings, "learning_rate": step, "num_rounds": settings["num_rounds"] // 2}
            for method, settings in methods(task).items()
            for step in STEPS[: 1 if study.smoke else None]
        }
        study.record(f"network-steps-{name}", steps, data=task.data, seeds=(TUNING_SEED,))
        rows = {}
        for method, settings in methods(task).items():
            tried = [f"{method}-{step:g}" for step in STEPS]
            step = study.best(f"network-steps-{name}", tried, "test/loss", STEPS[0])
            for aggregation in ("sum", "concatenation") if study.paper or study.smoke else ("sum",):
                rows[f"{method}-{aggregation}"] = {**settings, "aggregation": aggregation, "learning_rate": step}
        study.record(f"networks-{name}", rows, data=task.data, accuracies=task.accuracies)


if __name__ == "__main__":
    main()
