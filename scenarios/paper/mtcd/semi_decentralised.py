"""Figures 4 and 5: between server and peers, for links of different cost.

Every setting is run once; what it costs at a ratio rho of a client-server link to a client-client link is then rho
times its client-server vectors plus its client-client vectors. Figure 4: gap against weighted cost for some rho; Figure
5: cost to reach a gap against rho. On the path and on an Erdos-Renyi graph. `semi-*`: everybody at the paper's step
size as recalled; `tuned-*`: each at the step size that reaches 1e-3 in the fewest rounds (`step_sizes.py`); `coarse-*`:
to a gap of 1e-2, each at the step size that reaches that in the fewest rounds.

    python scenarios/paper/mtcd/semi_decentralised.py          40 clients, 5 seeds
    python scenarios/paper/mtcd/semi_decentralised.py --paper   80 clients besides
"""

from __future__ import annotations

from typing import Any

from _study import MtcdStudy

STEP = 1e-5
"""The paper's step size as recalled."""
TUNED = {"svfl": 2e-5, "mtcd-20-sweep": 1.4e-5, "mtcd-10-sweep": 1e-5, "mtcd-8-sweep": 8e-6, "mtcd-4-sweep": 6e-6}
"""Step sizes from `step_sizes.py`: the fewest rounds to 1e-3 on seed 0, by the training objective."""
COARSE = {"svfl": 2e-5, "mtcd-20-sweep": 2e-5, "mtcd-10-sweep": 2.2e-5, "mtcd-8-sweep": 2.2e-5, "mtcd-4-sweep": 1.65e-5}
"""The same for 1e-2."""
COMMON = {"edge_probability": 0.3, "target_gap": 1e-3, "num_local_steps": 20, "local_arithmetic": "gram"}


def settings_of(num_clients: int) -> dict[str, dict[str, Any]]:
    """Return every setting between the two extremes, by name."""
    found: dict[str, dict[str, Any]] = {"svfl": {"algorithm": "svfl", "num_rounds": 1500}}
    for tokens in (20, 10, 8, 4, 2):
        hops = num_clients // tokens - 1
        found[f"mtcd-{tokens}-sweep"] = {"num_tokens": tokens, "num_hops": hops, "walk": "sweep", "num_rounds": 1500}
    for hops in (4, 19):
        found[f"mtcd-4-s{hops}"] = {"num_tokens": 4, "num_hops": hops, "num_rounds": 4000, "record_every": 10}
    alone = {"num_tokens": 1, "clusters": "whole", "learning_rate": "auto"}
    found["mtcd-1-s1"] = {**alone, "num_hops": 1, "num_rounds": 10_000, "record_every": 50}
    found["mtcd-1-s19"] = {**alone, "num_hops": 19, "num_rounds": 1000, "record_every": 5}
    return {name: {"learning_rate": STEP, **COMMON, **settings} for name, settings in found.items()}


def main() -> None:
    """Run all settings on both graphs."""
    study = MtcdStudy.of(__doc__)
    for num_clients in (40, 80) if study.paper else (40,):
        for graph in ("path", "erdos-renyi"):
            where = {"num_clients": num_clients, "topology": graph}
            label = graph if num_clients == 40 else f"{graph}-{num_clients}"
            rows = {name: {**settings, **where} for name, settings in settings_of(num_clients).items()}
            if graph != "path":
                # clusters cut from a random graph: no route along edges need visit each client of a large one once
                for name in ("mtcd-4-sweep", "mtcd-2-sweep"):
                    rows[name.replace("sweep", "lazy")] = {**rows.pop(name), "walk": "lazy"}
            study.record(f"semi-{label}", rows)
            coarse = {
                name: {"learning_rate": step, "target_gap": 1e-2} for name, step in COARSE.items() if name in rows
            }
            study.record(f"coarse-{label}", {name: {**rows[name], **more} for name, more in coarse.items()})
            if graph == "path":
                study.record(f"tuned-{label}", {n: {**rows[n], "learning_rate": step} for n, step in TUNED.items()})


if __name__ == "__main__":
    main()
