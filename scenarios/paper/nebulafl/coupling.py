"""Why NebulaFL learns slower in the same time: what planets, masters and their mean know, by interval and time.

python scenarios/paper/nebulafl/coupling.py

GitFL is the same method with a master that is fresh at every pull and one center's worth of exchange.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from _study import Row, chosen, measure

from fedactors.data.layouts.horizontal import HorizontalData, rows_key
from fedactors.protocols.nebulafl.algorithm import master_model
from fedactors.protocols.nebulafl.config import NebulaFLConfig
from fedactors.protocols.nebulafl.training import evaluate, run_model
from fedactors.runtime import snapshots

FIXED = {"resource_policy": "fastest", "dirichlet": 0.1}
ROWS = {
    f"interval-{interval}": Row({**chosen("nebulafl"), **FIXED, "rotation_interval": float(interval)})
    for interval in (100, 250, 500, 1000)
}
TWICE = {"duration": 12000.0, "evaluation_interval": 1000.0}
ROWS["interval-500-twice-the-time"] = Row({**ROWS["interval-500"].settings, **TWICE})
ROWS["gitfl"] = Row({**chosen("gitfl"), **FIXED})


def knowledge(config: NebulaFLConfig, data: HorizontalData, states: Mapping[str, bytes]) -> dict[str, float]:
    """Return the mean accuracy of single planets (branches) and of single masters, and the planets' spread.

    The spread is the mean distance of a planet from the mean of all, relative to that mean's length.
    """
    planets, masters = [], []
    for name in sorted(states):
        state = snapshots.unseal(states[name], name)["state"]
        if "models" in state:
            models = snapshots.unpack(state["models"][1])
        elif "server" in state:
            method = snapshots.unpack(state["server"][1])["method"]
            models = {"planets": method["branches"], "versions": method["versions"]}
        else:
            continue
        planets += models["planets"]
        masters.append(master_model(models["planets"], models["versions"]))
    model, key = run_model(config, data), rows_key(data.test())
    mean_P = np.mean(masters, axis=0)
    return {
        "test/planet_accuracy": float(np.mean([evaluate(model, planet, key)["accuracy"] for planet in planets])),
        "test/master_accuracy": float(np.mean([evaluate(model, master, key)["accuracy"] for master in masters])),
        "spread": float(np.mean([np.linalg.norm(planet - mean_P) for planet in planets]) / np.linalg.norm(mean_P)),
    }


if __name__ == "__main__":
    measure(__doc__, "coupling", ROWS, seeds=(0, 1), more=knowledge)
