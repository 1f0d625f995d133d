from __future__ import annotations

import numpy as np

from protocols.tablepuppet.algorithm import centralised_ridge, score, trivial_score
from protocols.tablepuppet.encoding import column_facts, design_matrix
from protocols.tablepuppet.generated import ENCODINGS, LABEL, QUERY, generate_tables
from protocols.tablepuppet.mapping import hash_keys, table_mapping
from protocols.tablepuppet.plan import make_plan
from protocols.tablepuppet.sources import ArrowSource, describe
from protocols.tablepuppet.sql import parse_query


def test_the_generated_join_is_larger_than_its_tables_and_worth_learning():
    tables = generate_tables(4000, seed=0)
    schemas = {name: describe(ArrowSource(t)) for name, t in tables.items()}
    plan = make_plan(parse_query(QUERY), schemas, LABEL, ENCODINGS)
    by_alias = {"o": tables["orders"], "i": tables["items"], "c": tables["cards"]}
    hashes = {n: [hash_keys(t, e, n, b"k") for e in plan.edges_of(n)] for n, t in by_alias.items()}
    mapping = table_mapping(plan, hashes)
    assert mapping.num_joined > 1.5 * tables["orders"].num_rows
    assert 0 < mapping.num_matched()[0] < tables["orders"].num_rows
    x = [
        design_matrix(by_alias[t.name], t.features, column_facts(by_alias[t.name], t.features), t.label is not None)
        for t in plan.tables
    ]
    X = np.hstack([a[r] for a, r in zip(x, mapping.rows, strict=True)])
    y = tables["orders"].column("amount").to_numpy()[mapping.rows[0]]
    rmse = score("squared", X @ centralised_ridge(X, y[:, None], 1e-6), y)
    assert rmse < 0.75 * trivial_score("squared", y, y)


def test_the_same_seed_gives_the_same_tables():
    one, two, other = (generate_tables(50, seed) for seed in (1, 1, 2))
    assert one == two
    assert one != other
