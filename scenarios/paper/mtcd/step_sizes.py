"""How many rounds to a gap of 1e-3 each step size takes, from SVFL to two tokens: the choice behind Figures 4 and 5.

Token-per-cluster on the path graph, each cluster swept once a round, Q = 20; seed 0, by the training objective.

    python scenarios/paper/mtcd/step_sizes.py
"""

from __future__ import annotations

from _study import MtcdStudy

STEPS = (2e-6, 4e-6, 6e-6, 8e-6, 1e-5, 1.4e-5, 2e-5, 2.2e-5, 2.8e-5, 4e-5)


def main() -> None:
    """Run every method at every step size; one that diverges is a row that says so."""
    study = MtcdStudy.of(__doc__, seeds=(0,))
    common = {"num_clients": 40, "topology": "path", "local_arithmetic": "gram", "target_gap": 1e-3, "num_rounds": 600}
    rows = {}
    for tokens in (40, 20, 10, 8, 4, 2):
        for step in STEPS:
            settings = {**common, "num_local_steps": 20, "learning_rate": step}
            if tokens == 40:
                settings["algorithm"] = "svfl"
            else:
                settings |= {"num_tokens": tokens, "num_hops": 40 // tokens - 1, "walk": "sweep"}
            rows[f"{tokens:02}-tokens-{step:g}"] = settings
    study.record("step-sizes", rows)


if __name__ == "__main__":
    main()
