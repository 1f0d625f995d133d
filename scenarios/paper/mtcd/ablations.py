"""Figures 7 to 9: what the numbers of tokens, hops and local steps do, one at a time, around 4 tokens, S = 9, Q = 20.

Token-per-cluster on the path graph, ridge, 40 clients, the step size 1e-5; to a gap of 1e-2.

    python scenarios/paper/mtcd/ablations.py            2 seeds
    python scenarios/paper/mtcd/ablations.py --full     5 seeds
"""

from __future__ import annotations

import argparse

import series

BASE = {
    "num_clients": 40,
    "topology": "path",
    "num_tokens": 4,
    "num_hops": 9,
    "num_local_steps": 20,
    "local_arithmetic": "gram",
    "learning_rate": 1e-5,
    "num_rounds": 1500,
    "record_every": 3,
    "target_gap": 1e-2,
}


def main() -> None:
    """Run the three ablations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    args = parser.parse_args()
    seeds = range(5 if args.full else 2)
    for tokens in (1, 2, 4, 8):
        series.record("tokens", f"gamma-{tokens}", {**BASE, "num_tokens": tokens}, seeds)
    for hops in (0, 4, 9, 19):
        series.record("hops", f"s-{hops:02}", {**BASE, "num_hops": hops}, seeds)
    for steps in (5, 10, 20, 40):
        series.record("local-steps", f"q-{steps:02}", {**BASE, "num_local_steps": steps}, seeds)


if __name__ == "__main__":
    main()
