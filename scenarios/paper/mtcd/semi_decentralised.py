"""Figures 4 and 5: between server and peers, for links of different cost.

Every setting is run once; what it costs at a ratio rho of a client-server link to a client-client link is then
rho times its client-server vectors plus its client-client vectors. Figure 4: gap against weighted cost for some rho;
Figure 5: cost to reach a gap against rho, and the settings of S. On the path graph and an Erdos-Renyi graph.

    python scenarios/paper/mtcd/semi_decentralised.py          40 clients, 2 seeds
    python scenarios/paper/mtcd/semi_decentralised.py --full   5 seeds, and 80 clients besides
"""

from __future__ import annotations

import argparse
from typing import Any

import series

STEP = 1e-5
"""The paper's step size as recalled; one token at a time takes 1/L_block."""
TOGETHER = {"num_local_steps": 20, "local_arithmetic": "gram", "learning_rate": STEP}
ALONE = {"num_local_steps": 20, "local_arithmetic": "gram", "learning_rate": "auto"}


def settings_of(num_clients: int) -> dict[str, dict[str, Any]]:
    """Return every setting between the two extremes, by name."""
    cluster = num_clients // 4
    return {
        "svfl": {**TOGETHER, "algorithm": "svfl", "num_rounds": 3000, "record_every": 10},
        "mtcd-4-sweep": {
            **TOGETHER,
            "num_tokens": 4,
            "num_hops": cluster - 1,
            "walk": "sweep",
            "num_rounds": 2000,
            "record_every": 10,
        },
        "mtcd-8-sweep": {
            **TOGETHER,
            "learning_rate": 8e-6,
            "num_tokens": 8,
            "num_hops": num_clients // 8 - 1,
            "walk": "sweep",
            "num_rounds": 1000,
            "record_every": 5,
        },
        "mtcd-4-s4": {**TOGETHER, "num_tokens": 4, "num_hops": 4, "num_rounds": 4000, "record_every": 10},
        "mtcd-4-s19": {**TOGETHER, "num_tokens": 4, "num_hops": 19, "num_rounds": 2000, "record_every": 10},
        "mtcd-1-s1": {
            **ALONE,
            "num_tokens": 1,
            "clusters": "whole",
            "num_hops": 1,
            "num_rounds": 10_000,
            "record_every": 50,
        },
        "mtcd-1-s4": {
            **ALONE,
            "num_tokens": 1,
            "clusters": "whole",
            "num_hops": 4,
            "num_rounds": 4000,
            "record_every": 20,
        },
        "mtcd-1-s19": {
            **ALONE,
            "num_tokens": 1,
            "clusters": "whole",
            "num_hops": 19,
            "num_rounds": 1000,
            "record_every": 5,
        },
        "stcd": {**ALONE, "algorithm": "stcd", "num_hops": 99, "num_rounds": 400},
    }


def main() -> None:
    """Run all settings on both graphs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", nargs="+", help="names of settings")
    parser.add_argument("--graphs", nargs="+", default=("path", "erdos-renyi"))
    args = parser.parse_args()
    for num_clients in (40, 80) if args.full else (40,):
        for graph in args.graphs:
            common = {"num_clients": num_clients, "topology": graph, "edge_probability": 0.3, "target_gap": 1e-3}
            for name, settings in settings_of(num_clients).items():
                if args.only and name not in args.only:
                    continue
                suffix = "" if num_clients == 40 else f"-{num_clients}"
                series.record(
                    f"semi-{graph}{suffix}", name, {**common, **settings}, range(5 if args.full else args.seeds)
                )
    if not args.only or "reach" in args.only:
        reach = {**TOGETHER, "num_clients": 40, "topology": "complete", "target_gap": 1e-6, "record_every": 10}
        for tokens, hops, rounds in ((4, 9, 2000), (8, 4, 4000)):
            settings = {**reach, "num_tokens": tokens, "num_hops": hops, "num_rounds": rounds, "walk": "sweep"}
            series.record(
                "reach",
                f"mtcd-{tokens}-complete",
                settings,
                range(5 if args.full else 1),
                gaps=(1e-3, 1e-4, 1e-5, 1e-6),
            )


if __name__ == "__main__":
    main()
