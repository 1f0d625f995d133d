"""Figure 4, top row: tokens that roam anywhere on the path and are averaged, against SVFL.

Starts uniform over the clients, lazy walks, 1/Gamma of each token's copy (Section 4.2), Q = 20. Each takes the step of
seven with the least training objective after 100 rounds on seed 0, which is not one of the five that follow; 1/L_block,
which is safe for tokens that are averaged, is about 6.5e-4. SVFL beside it is that of `tuned.py` to 1e-2.

    python scenarios/paper/mtcd/overlapping.py
"""

from __future__ import annotations

from typing import Any

from _study import MtcdStudy

BASE: dict[str, Any] = {
    **{"num_clients": 40, "topology": "path", "mode": "overlapping", "num_local_steps": 20},
    **{"local_arithmetic": "gram", "target_gap": 1e-2, "record_every": 5},
}
STEPS = (2e-6, 1e-5, 4e-5, 1e-4, 4e-4, 1e-3, 2e-3)
SHAPES = {(4, 9): 600, (4, 39): 300, (20, 9): 200, (40, 1): 200}
"""Rounds at most, by tokens and hops."""


def main() -> None:
    """Ask for the step of each number of tokens and hops, then run them over the seeds."""
    study = MtcdStudy.of(__doc__, seeds=(1, 2, 3, 4, 5))
    for (tokens, hops), rounds in SHAPES.items():
        name = f"mtcd-{tokens}-s{hops}"
        shape = {**BASE, "num_tokens": tokens, "num_hops": hops}
        steps = STEPS[: 1 if study.smoke else None]
        tried = {f"{name}-{step:g}": {**shape, "learning_rate": step, "num_rounds": 100} for step in steps}
        study.record("overlapping-steps", tried, seeds=(0,))
        step = study.best("overlapping-steps", tried, "training/objective", STEPS[0])
        study.record("overlapping", {name: {**shape, "learning_rate": step, "num_rounds": rounds}})


if __name__ == "__main__":
    main()
