"""Table I: accuracy after the same virtual time, for three label distributions, of NebulaFL and every baseline.

python scenarios/paper/nebulafl/table_1.py [--only dirichlet-0.5] [--full]

Every method has the settings that `choose.py` found on validation rows. Baselines train on the fastest free hardware,
which gives each of them the most trainings in the time; NebulaFL is shown with its own assignment and with that policy.
"""

from _study import BASELINES, Row, chosen, measure

from fedactors.records.compare import difference_row

METHODS = {"nebulafl": {}, "nebulafl-fastest": {"resource_policy": "fastest"}} | {
    name: {"resource_policy": "fastest"} for name in BASELINES
}
ROWS = {
    f"dirichlet-{alpha:g}/{name}": Row({"dirichlet": alpha, **chosen(name.removesuffix("-fastest")), **settings})
    for alpha in (0.1, 0.5, 1.0)
    for name, settings in METHODS.items()
}

if __name__ == "__main__":
    given = measure(__doc__, "table-1", ROWS, seeds=(0, 1, 2, 3, 4))
    for study in dict.fromkeys(f"table-1/{name.partition('/')[0]}" for name in ROWS):
        for name in ("nebulafl", *BASELINES):
            row = difference_row(given.rows(study, "nebulafl-fastest"), given.rows(study, name), "test/accuracy")
            if row is not None:
                given.put(f"{study}-differences", f"nebulafl-fastest - {name}", [row])
