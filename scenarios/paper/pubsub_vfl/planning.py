"""The planner's prediction beside the measured epoch of every point of a grid (Section 4.3).

Predicted from the committed cost model alone; measured by `comparison.py` in simulation, whose links are not shared (so
bandwidth is left out). `epoch` is the default objective, `decoupled` that in which the parties' workers may differ in
number. Neither models the links' latency, nor a window too small to hide it.
"""

from __future__ import annotations

import json

from _study import parser

from fedactors.config import build
from fedactors.records.metrics import Summary
from fedactors.runtime.base import Work
from protocols.pubsub_vfl import models, planner
from protocols.pubsub_vfl.config import PubSubVflConfig
from protocols.pubsub_vfl.costs import default_costs
from protocols.pubsub_vfl.planner import PartyProfile, PowerLaw

FEATURES = 20


def profiles(config: PubSubVflConfig, cores: dict[str, int]) -> tuple[PartyProfile, PartyProfile]:
    """Return both parties' profiles as the cost model states them."""
    costs, hidden, cut = default_costs(config), config.hidden_size, config.embedding_size
    bottom = FEATURES * hidden + (config.num_layers - 2) * hidden * hidden + hidden * cut
    top = 2 * cut * hidden + hidden

    def law(kind: str, parameters: int, updates: bool) -> tuple[PowerLaw, PowerLaw]:
        fixed = costs.seconds("any", Work(kind, models.operations(0, parameters, updates=updates)))
        one = costs.seconds("any", Work(kind, models.operations(1, parameters, updates=updates)))
        return PowerLaw(fixed, 0.0), PowerLaw(one - fixed, 1.0)

    nothing = PowerLaw(0.0, 1.0)
    active = PartyProfile("active", cores["active"], law("active-step", bottom + top, True), 0, nothing, 1, 0.0)
    phases = (*law("bottom-forward", bottom, False), *law("bottom-backward", bottom, True))
    return active, PartyProfile("passive", cores["passive"], phases, 0, nothing, 1, 0.0)


def main() -> None:
    given = flags(__doc__).parse_intermixed_args()
    for folder in sorted(given.out.glob("grid-*")):
        for file in sorted(folder.glob("*.json")):
            values = json.loads(file.read_text())
            settings = {k: v for k, v in values["extra"]["settings"].items() if v is not None}
            config = build(PubSubVflConfig, settings)
            active, passive = profiles(config, values["extra"]["cores"])
            problem = planner.Problem(
                active=active,
                passive=passive,
                num_rows=values["extra"]["num_rows"],
            )
            setting = (config.num_active_workers, config.num_passive_workers, config.batch_size)
            measured = values["metrics"]["epoch_seconds"]
            predicted = {name: planner.cost(problem, *setting, name) for name in ("epoch", "decoupled")}  # type: ignore[arg-type]
            metrics = {"measured": measured, **predicted, "measured_over_decoupled": measured / predicted["decoupled"]}
            made = Summary.from_dict({**values, "metrics": metrics, "extra": {}}).as_dict()
            print(json.dumps({"point": file.stem, **metrics}))
            if not given.smoke:
                target = given.out / folder.name.replace("grid", "planning") / file.name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
