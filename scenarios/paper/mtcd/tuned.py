"""Figures 4 and 5 where the number of local steps is tuned too, with 40 and 80 clients on the path graph.

Each method takes the step and the Q that need the fewest rounds to the gap in `step_sizes.py`, whose
seed is not one of these. Links cost as in `semi_decentralised.py`.

    python scenarios/paper/mtcd/tuned.py            after step_sizes.py, whose rows it reads
    python scenarios/paper/mtcd/tuned.py --paper     80 clients besides, after step_sizes.py --paper
"""

from __future__ import annotations

import math
from typing import Any

from _study import FEW, MtcdStudy
from step_sizes import TOKENS, setting

from fedactors.errors import BadInput

STUDIES = {40: ("step-sizes", "local-step-sizes"), 80: ("step-sizes-80", "local-step-sizes-80")}
GAPS = (1e-2, 1e-3)


def chosen(study: MtcdStudy, num_clients: int, tokens: int, gap: float) -> tuple[float, int]:
    """Return the step size and local steps with the fewest rounds to a gap; of equal ones the least that it moves.

    Raises:
        BadInput: nothing that was tried got there.
    """
    found = []
    for row in (row for name in STUDIES[num_clients] for row in study.rows(name)):
        rounds = row.metrics.get(f"rounds_to_{gap:g}", math.inf)
        if row.status == "finished" and row.name.startswith(f"{tokens:02}-tokens-") and rounds is not None:
            step, local_steps = row.config["learning_rate"], row.config["num_local_steps"]
            found.append((float(rounds), step * local_steps, step, local_steps))
    if not found or not math.isfinite(min(found)[0]):
        raise BadInput(f"{study.table}: no step of {tokens} tokens reached {gap:g}; step_sizes.py comes first")
    _, _, step, local_steps = min(found)
    return step, local_steps


def main() -> None:
    """Run every method at its best."""
    study = MtcdStudy.of(__doc__, seeds=(1, 2, 3, 4, 5))
    for num_clients, all_tokens in {40: FEW, 80: TOKENS[80]}.items() if study.paper else ((40, FEW),):
        for gap in GAPS:
            rows: dict[str, dict[str, Any]] = {}
            for tokens in all_tokens:
                step, local_steps = (1e-5, 20) if study.smoke else chosen(study, num_clients, tokens, gap)
                name = "svfl" if tokens == num_clients else f"mtcd-{tokens}-sweep"
                rows[name] = {**setting(num_clients, tokens, step, local_steps), "target_gap": gap, "num_rounds": 1500}
            study.record(f"best-{num_clients}-{gap:g}", rows)


if __name__ == "__main__":
    main()
