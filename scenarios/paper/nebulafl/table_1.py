"""Table I: accuracy after the same virtual time, for label distributions, of NebulaFL and every baseline.

python scenarios/paper/nebulafl/table_1.py [--only dirichlet-0.5] [--paper]

On cited hardware and links, with the bytes and work of ResNet-18, as in the cell 44.7-MB-x1 of `map.py`. Every method
has the settings that `choose.py` found on validation rows. Baselines train on the fastest free hardware, which gives
each of them the most trainings in the time; NebulaFL is shown with its own assignment and with that policy. Baselines
that send every container's model are also given twice the time, at Dirichlet 0.5. ``free-links`` are the same rows of
0.5 on the "market", whose links carry a model at no cost to speak of.
"""

from _study import BASELINES, DIGITS, FULL_IN_CLOUD, SPAN, Row, chosen, cloud, cloud_chosen, in_equal_time, measure

from fedactors.protocols.nebulafl.config import BY_CENTER
from scenarios.paper.pairs import difference_row

METHODS = {"nebulafl": {}, "nebulafl-fastest": {"resource_policy": "fastest"}} | {
    name: {"resource_policy": "fastest"} for name in BASELINES
}
ROWS = {
    f"dirichlet-{alpha:g}/{name}": Row({"dirichlet": alpha, **cloud_chosen(name.removesuffix("-fastest")), **settings})
    for alpha in (1.0, 0.5, 0.1)
    for name, settings in METHODS.items()
}
FLAT = [name for name in BASELINES if name not in BY_CENTER]
ROWS |= {
    f"dirichlet-0.5/{name}-twice": Row({**ROWS[f"dirichlet-0.5/{name}"].settings, "duration": 2 * SPAN})
    for name in FLAT
}
FREE = {
    **DIGITS, "catalogue": "market", "network": "market", "bytes_factor": 1.0, "work_factor": 1.0,
    "target_accuracy": None, "dirichlet": 0.5,
}  # fmt: skip
ROWS |= {
    f"free-links/{name}": Row({**FREE, **chosen(name.removesuffix("-fastest")), **settings})
    for name, settings in METHODS.items()
}
COMMON = {**cloud(), "stop_at_target": False, "duration": SPAN, "evaluation_interval": SPAN / 20}

if __name__ == "__main__":
    given = measure(
        __doc__, "table-1", ROWS, seeds=(0, 1, 2, 3, 4), times=(SPAN / 2,), common=COMMON, paper=FULL_IN_CLOUD
    )
    for study in dict.fromkeys(f"table-1/{name.partition('/')[0]}" for name in ROWS):
        found = {
            f"nebulafl-fastest - {name}": difference_row(
                in_equal_time(given.rows(study, "nebulafl-fastest")),
                in_equal_time(given.rows(study, name)),
                "test/accuracy",
            )
            for name in ("nebulafl", *BASELINES, *(f"{name}-twice" for name in FLAT))
        }
        given.replace(f"{study}-differences", {name: row for name, row in found.items() if row is not None})
