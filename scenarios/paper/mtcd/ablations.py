"""Figures 7 to 9: what the numbers of tokens, hops and local steps do, one at a time, around 4 tokens, S = 9, Q = 20.

Token-per-cluster on the path graph, ridge, 40 clients, the step size 4e-6; to a gap of 1e-2.

    python scenarios/paper/mtcd/ablations.py                      5 seeds
"""

from __future__ import annotations

from _study import MtcdStudy

BASE = {
    "num_clients": 40,
    "topology": "path",
    "num_tokens": 4,
    "num_hops": 9,
    "num_local_steps": 20,
    "local_arithmetic": "gram",
    "learning_rate": 4e-6,
    "num_rounds": 800,
    "record_every": 2,
    "target_gap": 1e-2,
}


def main() -> None:
    """Run the three ablations."""
    study = MtcdStudy.of(__doc__)
    study.record("tokens", {f"gamma-{n:02}": {**BASE, "num_tokens": n} for n in (1, 2, 4, 8, 20)})
    study.record("hops", {f"s-{n:02}": {**BASE, "num_hops": n} for n in (0, 4, 9, 19, 39)})
    study.record("local-steps", {f"q-{n:02}": {**BASE, "num_local_steps": n} for n in (1, 5, 10, 20, 40)})


if __name__ == "__main__":
    main()
