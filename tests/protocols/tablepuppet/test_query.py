from __future__ import annotations

import pytest
import sqlglot

from fedactors.data import query as faults
from fedactors.data.query import Feature, NotASelectError, QueryError, QuerySyntaxError, make_plan, parse_query
from fedactors.errors import BadInput

SCHEMAS = {
    "ratings": {"uid": "integer", "mid": "integer", "rating": "integer"},
    "movies": {"mid": "integer", "genre": "text", "year": "integer"},
    "users_north": {"uid": "integer", "age": "integer"},
    "users_south": {"uid": "integer", "age": "integer"},
    "texts": {"uid": "text", "age": "integer"},
    "flights": {"origin": "text", "year": "integer", "hour": "integer", "delay": "float"},
    "weather": {"origin": "text", "year": "integer", "hour": "integer", "wind": "float"},
    'odd "name': {"uid": "integer", "a b": "float"},
}
THREE = """
    SELECT r.rating, u.age, m.genre
    FROM ratings r JOIN movies m ON r.mid = m.mid
    JOIN (SELECT * FROM users_north UNION ALL SELECT * FROM users_south) u ON r.uid = u.uid
    WHERE u.age > 18 AND m.year BETWEEN 1990 AND 2000
"""


def plan(text, label="rating", **encodings):
    return make_plan(parse_query(text), SCHEMAS, label, encodings)


def test_a_join_with_a_union_becomes_tables_partitions_edges_and_roles():
    made = plan(THREE, genre="one_hot")
    assert [t.name for t in made.tables] == ["r", "m", "u"]
    assert [p.source for p in made.table("u").partitions] == ["users_north", "users_south"]
    assert made.table("u").partitions[1].where == ('"age" > 18',)
    assert made.table("m").partitions[0].where == ('"year" BETWEEN 1990 AND 2000',)
    assert made.table("m").features == (Feature("genre", "text", "one_hot"),)
    assert [(e.left, e.right, e.keys) for e in made.edges] == [
        ("r", "m", (("mid", "mid"),)),
        ("r", "u", (("uid", "uid"),)),
    ]
    assert made.label_table.name == "r"
    assert made.label_table.label == "rating"
    assert made.table("r").needed_columns() == ("mid", "uid", "rating")


def test_partitions_in_a_csv_file_and_in_a_database_are_one_table():
    written = SCHEMAS | {"users_south": {"uid": "numeral", "age": "numeral"}}
    for north, south in (("users_north", "users_south"), ("users_south", "users_north")):
        text = THREE.replace(
            "users_north UNION ALL SELECT * FROM users_south", f"{north} UNION ALL SELECT * FROM {south}"
        )
        made = make_plan(parse_query(text), written, "rating", {"genre": "one_hot"})
        assert [p.source for p in made.table("u").partitions] == [north, south]
        assert made.table("u").features == (Feature("age", "integer", "numeric"),)


def test_a_tree_of_sqlglot_gives_the_same_plan_as_the_sql():
    users = sqlglot.select("*").from_("users_north").union(sqlglot.select("*").from_("users_south"), distinct=False)
    tree = (
        sqlglot.select("r.rating", "u.age", "m.genre")
        .from_("ratings AS r")
        .join("movies AS m", on="r.mid = m.mid")
        .join(users.subquery("u"), on="r.uid = u.uid")
        .where("u.age > 18", "m.year BETWEEN 1990 AND 2000")
    )
    assert plan(tree, genre="one_hot") == plan(THREE, genre="one_hot")


def test_upper_and_lower_case_are_the_same_and_the_tables_own_names_are_kept():
    schemas = {"T": {"Key": "integer", "Y": "float"}, "u": {"KEY": "integer", "X": "float"}}
    text = 'SELECT y, x FROM t AS A JOIN U b ON a.KEY = B."key" WHERE X > 1'
    made = make_plan(parse_query(text).over({"t": ["T"], "U": ["u"]}), schemas, "a.y")
    assert made.edges[0].name == "A.Key = b.KEY"
    assert made.table("b").partitions[0].where == ('"X" > 1',)
    assert (made.table("b").features[0].column, made.label_table.label) == ("X", "Y")


def test_a_source_that_several_hold_is_the_union_of_their_partitions():
    query = parse_query("SELECT rating FROM ratings WHERE rating > 2").over({"ratings": ["ratings#0", "ratings#1"]})
    made = make_plan(query, dict.fromkeys(("ratings#0", "ratings#1"), SCHEMAS["ratings"]), "rating")
    assert [(p.source, p.where) for p in made.tables[0].partitions] == [
        (name, ('"rating" > 2',)) for name in ("ratings#0", "ratings#1")
    ]


def test_a_top_level_union_of_all_combinations_is_the_union_inside():
    branch = "SELECT r.rating, u.age FROM ratings r JOIN {} u ON r.uid = u.uid"
    made = plan(branch.format("users_north") + " UNION ALL " + branch.format("users_south"))
    inner = plan("SELECT r.rating, u.age FROM ratings r JOIN (SELECT * FROM users_north UNION ALL "
                 "SELECT * FROM users_south) u ON r.uid = u.uid")  # fmt: skip
    assert made == inner


def test_a_union_that_misses_a_combination_is_refused():
    one = "SELECT r.rating, u.age FROM {} r JOIN {} u ON r.uid = u.uid"
    schemas = {**SCHEMAS, "ratings2": SCHEMAS["ratings"]}
    text = " UNION ALL ".join([one.format("ratings", "users_north"), one.format("ratings2", "users_south")])
    with pytest.raises(faults.UnsupportedQueryError, match="every combination"):
        make_plan(parse_query(text), schemas, "rating")


def test_a_join_on_several_columns_is_one_edge_whatever_the_syntax():
    on = plan("SELECT delay, wind FROM flights f JOIN weather w ON f.origin = w.origin AND f.year = w.year"
              " AND w.hour = f.hour", "delay")  # fmt: skip
    using = plan("SELECT delay, wind FROM flights f JOIN weather w USING (origin, year, hour)", "delay")
    comma = plan("SELECT delay, wind FROM flights f, weather w WHERE f.origin = w.origin AND f.year = w.year"
                 " AND f.hour = w.hour", "delay")  # fmt: skip
    assert on == using == comma
    assert on.edges[0].keys == (("origin", "origin"), ("year", "year"), ("hour", "hour"))
    assert on.edges[0].kinds == ("text", "number", "number")


def test_a_star_brings_features_but_neither_keys_nor_the_label():
    made = plan("SELECT * FROM ratings JOIN users_north ON ratings.uid = users_north.uid")
    assert made.table("ratings").features == (Feature("mid", "integer"),)
    assert made.table("users_north").features == (Feature("age", "integer"),)


def test_odd_identifiers_stay_quoted():
    made = plan('SELECT rating, o."a b" FROM ratings r JOIN "odd ""name" o ON r.uid = o.uid WHERE o."a b" > 1')
    assert made.table("o").partitions[0].where == ('"a b" > 1',)


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("SELECT * FRO ratings", QuerySyntaxError, "line 1, column"),
        ("SELECT *\nFROM ratings r JOIN", QuerySyntaxError, "line 2, column"),
        ("SELECT 'abc", QuerySyntaxError, "line 1"),
        ("", NotASelectError, "0 statements"),
        ("DROP TABLE ratings", NotASelectError, "DROP"),
        ("INSERT INTO ratings VALUES (1, 2, 3)", NotASelectError, "INSERT"),
        ("ATTACH 'x' AS y", NotASelectError, "ATTACH"),
        ("COPY ratings TO 'x'", NotASelectError, "COPY"),
        ("SELECT 1; DROP TABLE ratings", NotASelectError, "2 statements"),
        ("SELECT * FROM ratings r LEFT JOIN movies m ON r.mid = m.mid", faults.UnsupportedQueryError, "LEFT JOIN"),
        ("SELECT * FROM ratings NATURAL JOIN movies", faults.UnsupportedQueryError, "NATURAL"),
        ("SELECT * FROM ratings r JOIN movies m ON r.mid + m.year = m.mid", faults.UnsupportedQueryError, "key = key"),
        ("SELECT * FROM ratings r JOIN movies m ON sqrt(r.mid) = m.mid", faults.UnsupportedQueryError, "join cond"),
        ("SELECT * FROM ratings r JOIN movies m ON r.mid < m.mid", faults.UnsupportedQueryError, "key = key"),
        ("SELECT * FROM main.ratings", faults.UnknownTableError, "names of schemas"),
        ("WITH a AS (SELECT * FROM ratings) SELECT * FROM a", faults.UnsupportedQueryError, "WITH a AS"),
        ("SELECT * FROM ratings WHERE rating > (SELECT 1)", faults.UnsupportedQueryError, "[(]subquery[)]"),
        ("SELECT * FROM ratings JOIN movies USING (mid) JOIN users USING (uid)", faults.UnsupportedQueryError,
         "after the first join"),
        ("SELECT count(*) FROM ratings GROUP BY uid", faults.UnsupportedQueryError, "GROUP BY"),
        ("SELECT * FROM ratings ORDER BY uid", faults.UnsupportedQueryError, "ORDER BY"),
        ("SELECT * FROM ratings LIMIT 3", faults.UnsupportedQueryError, "LIMIT"),
        ("SELECT DISTINCT uid FROM ratings", faults.UnsupportedQueryError, "DISTINCT"),
        ("WITH a AS (SELECT 1) SELECT * FROM a", faults.UnsupportedQueryError, "WITH"),
        ("SELECT * FROM ratings EXCEPT SELECT * FROM ratings", faults.UnsupportedQueryError, "EXCEPT"),
        ("SELECT * FROM read_csv('x')", faults.UnsupportedQueryError, "READ_CSV"),
        ("SELECT rating + 1 FROM ratings", faults.UnsupportedQueryError, "rating [+] 1"),
        ("SELECT * FROM ratings WHERE uid IN (SELECT uid FROM texts)", faults.UnsupportedQueryError, "subquery"),
        ("SELECT * FROM ratings WHERE rating > getenv('x')", faults.UnsupportedQueryError, "GETENV"),
        ("SELECT * FROM ratings r JOIN (SELECT * FROM users_north UNION SELECT * FROM users_south) u ON r.uid = u.uid",
         faults.UnsupportedQueryError, "UNION ALL"),
        ("SELECT * FROM ratings r JOIN users_north u ON r.uid = u.uid WHERE r.mid > u.age",
         faults.UnsupportedQueryError, "exactly one table"),
        ("SELECT * FROM nowhere", faults.UnknownTableError, "nowhere"),
        ("SELECT nothing FROM ratings", faults.UnknownColumnError, "nothing"),
        ("SELECT x.uid FROM ratings", faults.UnknownTableError, "x"),
        ("SELECT mid FROM ratings r JOIN movies m ON r.mid = m.mid", faults.AmbiguousColumnError, "r and m"),
        ("SELECT rating FROM ratings r JOIN movies m ON mid = m.mid", faults.AmbiguousColumnError, "mid"),
        ("SELECT rating FROM ratings r JOIN texts t ON r.uid = t.uid", faults.KeyTypeError, "integer.*text"),
        ("SELECT rating FROM ratings r JOIN movies m ON r.mid = m.mid JOIN users_north u ON r.uid = u.uid"
         " AND u.uid = m.mid", faults.CyclicJoinError, "cycle"),
        ("SELECT rating FROM ratings r JOIN movies m ON r.mid = m.mid, users_north", faults.DisconnectedJoinError,
         "users_north"),
        ("SELECT * FROM ratings r JOIN movies m ON r.mid = m.mid", faults.FeatureTypeError, "m.genre is text"),
        ("SELECT * FROM ratings r JOIN (SELECT * FROM users_north UNION ALL SELECT * FROM texts) u ON r.uid = u.uid",
         faults.SchemaMismatchError, "uid"),
        ("SELECT * FROM ratings r JOIN movies r ON r.mid = r.mid", QueryError, "twice"),
        ("SELECT * EXCLUDE (mid) FROM ratings", faults.UnsupportedQueryError, "name the columns"),
        ("SELECT rating AS stars FROM ratings", faults.UnsupportedQueryError, "columns keep their names"),
        ("SELECT a FROM ratings r(a, b, c)", faults.UnsupportedQueryError, "columns keep their names"),
        ("SELECT rating FROM ratings TABLESAMPLE 10%", faults.UnsupportedQueryError, "TABLESAMPLE"),
        ("SELECT rating FROM ratings QUALIFY rating > 1", faults.UnsupportedQueryError, "QUALIFY"),
        ("SELECT rating FROM (ratings r JOIN movies m ON r.mid = m.mid)", faults.UnsupportedQueryError, "parentheses"),
        ("SELECT rating FROM (SELECT * FROM ratings)", faults.UnsupportedQueryError, "needs a name"),
        ("SELECT rating FROM (SELECT r.rating FROM ratings r, movies m) x", faults.UnsupportedQueryError, "one table"),
        ("SELECT rating FROM ratings r JOIN movies m USING (mid) JOIN users_north u USING (uid)",
         faults.UnsupportedQueryError, "write ON"),
        ("SELECT r.rating.stars FROM ratings r", faults.UnsupportedQueryError, "write table.column"),
        ("SELECT rating FROM ratings r WHERE r.uid = r.mid", faults.UnsupportedQueryError, "stays within"),
        ("SELECT 1", faults.UnsupportedQueryError, "without FROM"),
    ],
)  # fmt: skip
def test_a_bad_query_is_a_named_error_with_exit_code_two(text, error, words):
    with pytest.raises(error, match=words) as caught:
        plan(text)
    assert isinstance(caught.value, BadInput)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("label", ["nothing", "uid", "movies.rating"])
def test_a_label_in_no_table_or_in_two_is_an_error(label):
    with pytest.raises(faults.LabelError, match=label.rpartition(".")[2]):
        plan("SELECT rating FROM ratings JOIN users_north ON ratings.uid = users_north.uid", label)
