"""Rounds to gaps of 1e-3 and 1e-2 at each step size, from SVFL to two tokens: the choices behind Figures 4 and 5.

Token-per-cluster on the path graph, each cluster swept once a round; seed 0, by the training objective. With Q = 20
local steps (study step-sizes), and with other Q (local-step-sizes), where every method has the same sixteen products of
step and Q: what a block moves in a round.

    python scenarios/paper/mtcd/step_sizes.py
    python scenarios/paper/mtcd/step_sizes.py --paper     80 clients besides
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from _study import FEW, MtcdStudy

STEPS = (
    2e-6, 4e-6, 6e-6, 8e-6, 1e-5, 1.2e-5, 1.4e-5, 1.5e-5, 1.6e-5, 1.65e-5, 1.8e-5, 2e-5, 2.1e-5, 2.2e-5, 2.8e-5, 4e-5,
)  # fmt: skip
"""With Q = 20; close to one another before the first methods diverge, which they do sooner with Q = 1."""
TOKENS = {40: (40, 20, 10, 8, 4, 2), 80: (80, 40, 16)}
"""Tokens of the settings that are asked, by the number of clients; as many as clients stands for SVFL. With 80 clients
those whose clusters are as long as with 40 and 20 and 8 tokens."""
LOCAL_STEPS = (1, 80)
"""Beside 20."""


def setting(num_clients: int, tokens: int, step: float, local_steps: int) -> dict[str, Any]:
    """Return a run on the path to 1e-3."""
    made = {"num_clients": num_clients, "topology": "path", "local_arithmetic": "gram", "target_gap": 1e-3}
    made |= {"num_rounds": 600, "num_local_steps": local_steps, "learning_rate": float(f"{step:.6g}")}
    if tokens == num_clients:
        return {**made, "algorithm": "svfl"}
    return {**made, "num_tokens": tokens, "num_hops": num_clients // tokens - 1, "walk": "sweep"}


def other_local_steps(num_clients: int, all_tokens: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Return the runs with other Q, by name, at the same products of step and Q."""
    return {
        f"{g:02}-tokens-q{q:02}-{20 * step:.2g}": setting(num_clients, g, 20 * step / q, q)
        for g in all_tokens
        for q in LOCAL_STEPS
        for step in STEPS
    }


def main() -> None:
    """Run every method at every step size; one that diverges is a row that says so."""
    study = MtcdStudy.of(__doc__, seeds=(0,))
    rows = {f"{g:02}-tokens-{step:g}": setting(40, g, step, 20) for g in TOKENS[40] for step in STEPS}
    study.record("step-sizes", rows)
    study.record("local-step-sizes", other_local_steps(40, FEW))
    if study.paper:
        rows = {f"{g:02}-tokens-{step:g}": setting(80, g, step, 20) for g in TOKENS[80] for step in STEPS}
        study.record("step-sizes-80", rows)
        study.record("local-step-sizes-80", other_local_steps(80, TOKENS[80]))


if __name__ == "__main__":
    main()
