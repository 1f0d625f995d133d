from __future__ import annotations

import hashlib
import hmac
from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from fedactors.data.join import EmptyJoinError, hash_keys, table_mapping
from fedactors.data.query import Edge, make_plan, parse_query

SECRET = b"s" * 32


def make(text, schemas, label, tables, threads=1, secret=SECRET):
    plan = make_plan(parse_query(text), schemas, label)
    hashes = {n: [hash_keys(t, e, n, secret) for e in plan.edges_of(n)] for n, t in tables.items()}
    return table_mapping(plan, hashes, threads=threads)


CHAIN = {
    "a": {"k": "integer", "y": "float"},
    "b": {"k": "integer", "m": "text", "n": "integer"},
    "c": {"m": "text", "n": "integer", "j": "integer"},
    "d": {"j": "integer"},
}
CHAIN_SQL = "SELECT y FROM a JOIN b ON a.k = b.k JOIN c ON b.m = c.m AND b.n = c.n JOIN d ON c.j = d.j"


def chain_tables(seed):
    rng = np.random.default_rng(seed)
    return {
        "a": pa.table({"k": rng.integers(0, 4, 9)}),
        "b": pa.table(
            {"k": rng.integers(0, 5, 11), "m": rng.choice(["x", "xx", "1"], 11), "n": rng.integers(0, 3, 11)}
        ),
        "c": pa.table({"m": rng.choice(["x", "xx", "1"], 7), "n": rng.integers(0, 3, 7), "j": rng.integers(0, 4, 7)}),
        "d": pa.table({"j": rng.integers(0, 4, 5)}),
    }


def brute_force(t):
    a, b, c, d = (t[n].to_pydict() for n in "abcd")
    sizes = [t[n].num_rows for n in "abcd"]
    return sorted(
        (i, j, k, m)
        for i, j, k, m in product(*map(range, sizes))
        if a["k"][i] == b["k"][j] and (b["m"][j], b["n"][j]) == (c["m"][k], c["n"][k]) and c["j"][k] == d["j"][m]
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_chain_of_many_to_many_joins_equals_the_nested_loops(seed):
    tables = chain_tables(seed)
    mapping = make(CHAIN_SQL, CHAIN, "y", tables)
    expected = brute_force(tables)
    assert sorted(zip(*(r.tolist() for r in mapping.rows), strict=True)) == expected
    for i, count in enumerate(mapping.duplicate_counts):
        assert count.sum() == len(expected)
        assert count.tolist() == [sum(row[i] == j for row in expected) for j in range(mapping.num_rows[i])]


@pytest.mark.slow
def test_the_order_does_not_depend_on_threads():
    one, two = (make(CHAIN_SQL, CHAIN, "y", chain_tables(1), threads=n) for n in (1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one.rows, two.rows, strict=True))


def test_the_mapping_is_read_only():
    mapping = make(CHAIN_SQL, CHAIN, "y", chain_tables(2))
    with pytest.raises(ValueError, match="read-only"):
        mapping.rows[0][0] = 1


def test_an_empty_join_is_a_named_error():
    schemas = {"a": {"k": "integer", "y": "float"}, "b": {"k": "integer"}}
    with pytest.raises(EmptyJoinError, match=r"a\.k = b\.k"):
        make("SELECT y FROM a JOIN b ON a.k = b.k", schemas, "y",
             {"a": pa.table({"k": [1, 2]}), "b": pa.table({"k": [3]})})  # fmt: skip


@pytest.mark.parametrize("empty", ["a", "b"])
def test_a_table_without_rows_makes_an_empty_join(empty):
    schemas = {"a": {"k": "integer", "y": "float"}, "b": {"k": "integer"}}
    tables = {n: pa.table({"k": pa.array([] if n == empty else [1, 1], pa.int64())}) for n in "ab"}
    with pytest.raises(EmptyJoinError):
        make("SELECT y FROM a JOIN b ON a.k = b.k", schemas, "y", tables)


def test_different_secrets_do_not_join():
    plan = make_plan(parse_query("SELECT y FROM a JOIN b ON a.k = b.k"),
                     {"a": {"k": "integer", "y": "float"}, "b": {"k": "integer"}}, "y")  # fmt: skip
    keys = pa.table({"k": [1, 2]})
    hashes = {n: [hash_keys(keys, plan.edges[0], n, bytes([i]) * 32)] for i, n in enumerate("ab")}
    with pytest.raises(EmptyJoinError):
        table_mapping(plan, hashes)


def test_hashes_are_truncated_hmac_sha256_of_edge_and_length_prefixed_keys():
    edge = Edge("a", "b", (("k", "q"), ("t", "u")), ("integer", "text"))
    keys = pa.table({"k": [12, 7, 12], "t": ["é", "", "é"]})
    made = hash_keys(keys, edge, "a", b"x" * 100)
    expected = [
        hmac.new(b"x" * 100, f"a.k = b.q and a.t = b.u{len(str(k))}:{k}{len(t)}:{t}".encode(), hashlib.sha256).digest()
        for k, t in ((12, "é"), (7, ""), (12, "é"))
    ]
    assert [bytes(row) for row in made] == [e[:16] for e in expected]


def test_keys_that_concatenate_alike_hash_apart_and_integer_widths_alike():
    edge = Edge("a", "b", (("k", "k"), ("t", "t")), ("text", "text"))
    made = hash_keys(pa.table({"k": ["a", "ab"], "t": ["bc", "c"]}), edge, "a", SECRET)
    assert bytes(made[0]) != bytes(made[1])
    edge = Edge("a", "b", (("k", "k"),), ("integer",))
    narrow, wide = (hash_keys(pa.table({"k": pa.array([3], t)}), edge, "a", SECRET) for t in (pa.int8(), pa.uint64()))
    assert np.array_equal(narrow, wide)


def test_equal_keys_on_different_edges_hash_apart():
    keys = pa.table({"k": [1]})
    one, two = (hash_keys(keys, Edge("a", other, (("k", "k"),), ("integer",)), "a", SECRET) for other in "bc")
    assert not np.array_equal(one, two)


def test_a_single_table_is_its_own_mapping():
    plan = make_plan(parse_query("SELECT y FROM a"), {"a": {"y": "float"}}, "y")
    mapping = table_mapping(plan, {}, num_rows={"a": 3})
    assert mapping.rows[0].tolist() == [0, 1, 2]
    assert mapping.duplicate_counts[0].tolist() == [1, 1, 1]
