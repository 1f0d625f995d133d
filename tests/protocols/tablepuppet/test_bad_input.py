"""Every bad input through the command line: the exit code and one line that names what is wrong."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from fedactors.cli.main import main

SQL = "SELECT o.amount, i.price, c.age FROM orders o JOIN items i ON o.item = i.item JOIN cards c ON o.card = c.card"
TABLES = {
    "orders": {"item": [1, 2, 1, 3] * 10, "card": [7, 8, 9, 7] * 10, "amount": [1.0, 2.5, 3.0, 0.5] * 10},
    "items": {"item": [1, 2, 3], "price": [4.0, 5.0, 6.0], "kind": ["a", "b", "c"], "hole": [1.0, None, 2.0]},
    "cards": {"card": [7, 8, 9], "age": [30, 40, 50], "owner": ["x", "y", "z"], "name": ["1", "2", "3"]},
}


@pytest.fixture
def write(tmp_path):
    """Return a writer of a parties.toml over CSV files; a party's table may be replaced, its line too."""

    def write(sql=SQL, label="o.amount", tables=None, categorical=(), extra="", kind="regression"):
        lines = ["[task]", f'type = "{kind}"', 'layout = "relational"', f'sql = """{sql}"""', f'label = "{label}"']
        lines.append(f"categorical = {list(categorical)}")
        for name, columns in {**TABLES, **(tables or {})}.items():
            pyarrow.csv.write_csv(pa.table(columns), tmp_path / f"{name}.csv")
            lines += [f"[parties.{name}]", f'path = "{name}.csv"']
        (tmp_path / "parties.toml").write_text("\n".join([*lines, extra]))
        return tmp_path / "parties.toml"

    return write


def attempt(capsys, data, *words):
    """Run the command; return its exit code and what it printed as an error."""
    code = main(
        ["run", "tablepuppet", "--runtime", "simulated", "--quiet", "--data", str(data), "--out",
         str(data.parent / "runs"), "num_rounds=1", *words]
    )  # fmt: skip
    return code, capsys.readouterr().err


@pytest.mark.slow
def test_the_file_without_a_fault_runs(write, capsys):
    assert attempt(capsys, write())[0] == 0


JOINED = "FROM orders o JOIN items i ON o.item = i.item JOIN cards c ON o.card = c.card"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"sql": "SELECT o.amount, FROM orders o WHERE ("}, "line 1, column"),
        ({"sql": "SELECT count(*) " + JOINED}, "'COUNT(*)' in the select list is not supported"),
        ({"sql": "SELECT o.amount " + JOINED + " GROUP BY o.amount"}, "GROUP BY"),
        ({"sql": SQL.replace("JOIN cards", "LEFT JOIN cards")}, "LEFT JOIN"),
        ({"sql": "SELECT DISTINCT o.amount " + JOINED}, "DISTINCT"),
        ({"sql": "DELETE FROM orders"}, "only SELECT is allowed, not DELETE"),
        ({"sql": SQL + "; DROP TABLE orders"}, "exactly one SELECT"),
        ({"sql": SQL.replace("JOIN items", "JOIN goods")}, "goods"),
        ({"sql": SQL.replace("i.price", "i.prize")}, "no column 'prize'"),
        ({"sql": SQL.replace("i.price", "item")}, "column 'item' is in o and i"),
        ({"sql": SQL.replace("o.card = c.card", "o.card = c.owner")}, "i.item and o.card = c.owner"),
        ({"sql": SQL + " AND i.item = c.age"}, "closes a cycle"),
        ({"sql": "SELECT o.amount FROM orders o JOIN items i ON o.item = i.item, cards c"}, "is not joined"),
        ({"sql": SQL + " WHERE o.item = 99"}, "no row joins where"),
        ({"label": "o.total"}, "is in none of the tables"),
        ({"label": "item"}, "is in o and i"),
        ({"sql": SQL.replace("i.price", "i.kind")}, "i.kind is text, no number; name it in task.categorical"),
        ({"sql": SQL.replace("i.price", "i.hole")}, "no finite number in 1 of 3 rows"),
        ({"label": "c.name", "kind": "binary"}, "must hold 0 and 1"),
        ({"categorical": ["i.kinds"]}, "no column 'kinds'"),
        ({"sql": SQL + " WHERE random() > c.age"}, "is not supported"),
        ({"sql": SQL + " WHERE o.amount > c.age"}, "must concern exactly one table"),
        (
            {
                "sql": SQL.replace("JOIN cards c", "JOIN (SELECT * FROM cards UNION ALL SELECT * FROM south) c"),
                "tables": {"south": {"card": [1], "age": [2.5], "owner": ["u"], "name": ["3"]}},
            },
            "partitions 'cards' and 'south' of table 'c' differ in column 'age'",
        ),
    ],
)  # fmt: skip
def test_a_fault_of_the_query_or_the_tables_is_one_line_and_exit_code_2(given, named, write, capsys, tmp_path):
    code, printed = attempt(capsys, write(**given), "algorithm=rfl-admm")
    assert code == 2
    assert named in printed
    assert len(printed.strip().splitlines()) == 1
    assert not list((tmp_path / "runs").glob("*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["feature_dp=1"], "exact solves (admm=boyd) have no DP"),
        (["label_dp=0.5"], "numeric labels need a declared label_range"),
        (["server_in=shops"], "server_in: 'shops' is not allowed: one of the tables o, i, c"),
        (["algorithm=rfl"], "algorithm: 'rfl' is not allowed"),
        (["rh=1"], "did you mean rho"),
        (["test_fraction=0.999"], "none of 40 joined rows is a training row"),
        (["memory_limit=tiny"], "memory_limit"),
        (["num_partitions=2"], "num_partitions: 2 is not allowed: it is for named data sets"),
        (["task=regression"], "task: 'regression' is not allowed"),
    ],
)
def test_a_fault_of_the_settings_is_one_line_and_exit_code_2(words, named, write, capsys):
    code, printed = attempt(capsys, write(), *words)
    assert code == 2
    assert named in printed
    assert len(printed.strip().splitlines()) == 1


def test_partitions_need_an_algorithm_for_them(write, capsys):
    union = SQL.replace("JOIN cards c", "JOIN (SELECT * FROM cards UNION ALL SELECT * FROM south) c")
    given = write(union, tables={"south": {"card": [5], "age": [2], "owner": ["u"], "name": ["3"]}})
    code, printed = attempt(capsys, given, "algorithm=rfl-sgd-v")
    assert code == 2
    assert "table 'c' has 2 partitions; use rfl-sgd or centralised" in printed


def test_missing_files_are_exit_code_4(write, capsys, tmp_path, monkeypatch):
    given = write()
    (tmp_path / "cards.csv").unlink()
    code, printed = attempt(capsys, given)
    assert (code, "there is no file" in printed) == (4, True)
    monkeypatch.setenv("FEDACTORS_DATA", str(tmp_path))
    monkeypatch.setenv("FEDACTORS_CACHE", str(tmp_path))
    code = main(["run", "tablepuppet", "--runtime", "simulated", "--data", "movielens-1m", "--out", str(tmp_path)])
    assert (code, "fedactors data fetch movielens-1m" in capsys.readouterr().err) == (4, True)


def with_postgres(given, path):
    """Replace the cards' file of a parties.toml by a PostgreSQL address."""
    given.write_text(given.read_text().replace('path = "cards.csv"', f'path = "{path}"'))
    return given


@pytest.mark.slow
def test_an_unreachable_or_refusing_postgres_is_exit_code_2_and_names_no_password(
    write, capsys, monkeypatch, postgres, tmp_path
):
    host, port = postgres
    for address, named in (
        ("postgresql://org:hunter2@127.0.0.1:1/postgres", "127.0.0.1:1"),
        (f"postgresql://org:hunter2@{host}:{port}/postgres", "password authentication failed"),
    ):
        monkeypatch.setenv("CARDS_DATABASE", address)
        code, printed = attempt(capsys, with_postgres(write(), "env:CARDS_DATABASE"))
        assert code == 2
        assert named in printed
        assert "hunter2" not in printed
    code, printed = attempt(capsys, with_postgres(write(), "postgresql://org:hunter2@h/d"))
    assert (code, "a password is not allowed in a file" in printed, "hunter2" in printed) == (2, True, False)
    code, printed = attempt(capsys, with_postgres(write(), "env:NO_SUCH_VARIABLE"))
    assert (code, "no such environment variable" in printed) == (2, True)


@pytest.mark.ray
def test_a_fault_found_in_a_process_of_its_own_is_exit_code_2_as_well(write, capsys, ray_cluster):
    given = write(SQL.replace("i.price", "i.kind"))
    code = main(["run", "tablepuppet", "--runtime", "ray", "--quiet", "--data", str(given), "--out",
                 str(given.parent / "runs")])  # fmt: skip
    assert code == 2
    assert "i.kind is text, no number" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["rfl-sgd-v", "vfl-sgd"])
def test_a_rate_that_diverges_is_named(write, capsys, algorithm):
    code, error = attempt(capsys, write(), f"algorithm={algorithm}", "learning_rate=1e15", "batch_size=1")
    assert code == 2
    assert "learning_rate: 1e+15 diverges (training/loss" in error
    assert "try a smaller one" in error
