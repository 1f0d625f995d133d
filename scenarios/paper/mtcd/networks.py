"""Figure 6: split networks, MTCD with two clusters against SVFL, accuracy against iterations and weighted cost.

The paper trains a multi-view CNN on ModelNet10 (12 views, 2 clusters of 6) and ResNet-18 on quadrants of CIFAR-10 (4
clients, 2 clusters of 2). Here: generated objects seen from 12 sides, and quadrants of scikit-learn's digits (8x8) with
a narrow ResNet-18; --full takes CIFAR-10's quadrants (the subset of 10,000 images) at the paper's width.

    python scenarios/paper/mtcd/networks.py             3 seeds
    python scenarios/paper/mtcd/networks.py --full      5 seeds, CIFAR-10 (needs the data set)
"""

from __future__ import annotations

import argparse
from typing import Any

import series

Q, S = 2, 1


def main() -> None:
    """Train each network with both methods."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()
    seeds = range(5 if args.full else 3)
    views: dict[str, Any] = {
        "problem": "network",
        "network": "multi-view-cnn",
        "num_clients": 12,
        "num_samples": 1500,
        "network_width": 8,
        "topology": "complete",
        "batch_size": 64,
        "learning_rate": 0.05,
        "halve_every": 20,
    }
    quadrants = {**views, "network": "resnet18", "num_clients": 4, "network_width": 8}
    data = "digits"
    if args.full:
        quadrants |= {"network_width": 64}
        data = "cifar10-subset"
    for name, settings, source, num_samples in (
        ("views", views, "synthetic", 1050),
        ("quadrants", quadrants, data, 10_000 if args.full else 1437),
    ):
        per_epoch = num_samples // 64
        for aggregation in ("sum", "concatenation"):
            shared = {**settings, "aggregation": aggregation, "record_every": per_epoch}
            shared["num_rounds"] = args.epochs * per_epoch
            # the tokens' clusters are swept half way or whole: every block gets Q steps per visit
            hops = settings["num_clients"] // 2 - 1
            mtcd = {**shared, "num_tokens": 2, "num_hops": hops, "num_local_steps": Q, "walk": "sweep"}
            svfl = {**shared, "algorithm": "svfl", "num_local_steps": Q}
            series.record(f"networks-{name}", f"mtcd-{aggregation}", mtcd, seeds, data=source)
            series.record(f"networks-{name}", f"svfl-{aggregation}", svfl, seeds, data=source)


if __name__ == "__main__":
    main()
