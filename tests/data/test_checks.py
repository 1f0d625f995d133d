"""What `data check` finds in each party's data, and that its suggestions are what a run takes."""

from __future__ import annotations

import json
import random
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedactors
from fedactors.cli import main as cli
from fedactors.data import checks
from fedactors.data.checks import check_data, edits_of, warnings_of
from fedactors.data.description import load_description
from fedactors.errors import BadInput

ROWS = 60
IDS = [f"c{row:03d}" for row in range(ROWS)]
NOISE = [f"{random.Random(row).random():.4f}" for row in range(ROWS)]
HEAD = '[task]\ntype = "binary"\nalignment = "hash"\n'
BANK = '[parties.bank]\npath = "bank.csv"\nid = "id"\nlabel = "y"\n'
SHOP = '[parties.shop]\npath = "shop.csv"\nid = "id"\n'


def write_csv(path, **columns):
    rows = [",".join(columns), *map(",".join, zip(*(map(str, values) for values in columns.values()), strict=True))]
    path.write_text("\n".join(rows) + "\n")


@pytest.fixture
def described(tmp_path):
    """Write a description of a bank and a shop; the shop has further columns, and rules."""

    def write(rules="", ids=IDS, labels=None, **columns):
        write_csv(tmp_path / "bank.csv", id=IDS, age=NOISE, y=labels or [row % 2 for row in range(ROWS)])
        write_csv(tmp_path / "shop.csv", id=ids, noise=NOISE, **columns)
        (tmp_path / "parties.toml").write_text(HEAD + BANK + SHOP + rules)
        return tmp_path / "parties.toml"

    return write


def edited(path):
    """Return the description with all suggestions put in."""
    whole = tomllib.loads(path.read_text())

    def merge(into, given):
        for key, value in given.items():
            if isinstance(value, dict) and isinstance(into.get(key), dict) and key in ("task", "parties", "columns"):
                merge(into[key], value)
            elif isinstance(value, dict) and isinstance(into.get(key), dict):
                into[key] = into[key] | value
            else:
                into[key] = value

    edits = tomllib.loads(edits_of(check_data(path)))
    merge(whole.setdefault("task", {}), edits.get("task", {}))
    for name, party in edits.get("parties", {}).items():
        for column, rule in party.pop("columns", {}).items():
            whole["parties"][name].setdefault("columns", {})[column] = rule
        merge(whole["parties"][name], party)
    made = path.with_suffix(".json")
    made.write_text(json.dumps(whole))
    return made


def with_gaps(values, every=9, gap=""):
    return [gap if row % every == 4 else value for row, value in enumerate(values)]


DATES = [f"2024-{1 + row % 12:02d}-{1 + row % 28:02d}" for row in range(ROWS)]
GERMAN = [f"{1 + row % 28:02d}.{1 + row % 12:02d}.2024" for row in range(ROWS)]
COLORS = [["red", "green", "blue"][row % 3] for row in range(ROWS)]


@pytest.mark.parametrize(
    ("column", "values", "level", "said"),
    [
        ("v", with_gaps(NOISE), "error", "7 of 60 values are missing (first in row 5)"),
        ("v", [""] * ROWS, "error", "no row has a value"),
        ("v", ["7"] * ROWS, "warning", "every value is 7"),
        ("v", range(ROWS), "warning", "it counts rows"),
        ("v", range(1, ROWS + 1), "warning", "it counts rows"),
        ("Unnamed: 0", range(ROWS), "error", "it is pandas' index"),
        ("order_id", random.Random(1).sample(range(9999), ROWS), "warning", "another whole number"),
        ("v", [1_700_000_000 + row * 7 % 60 for row in range(ROWS)], "warning", "single precision merges values"),
        ("v", with_gaps(NOISE, gap="inf"), "error", "7 values are infinite"),
        ("v", with_gaps(NOISE, gap="?"), "error", "such as '?', which may mean that one is missing"),
        ("v", COLORS, "error", "60 of 60 values are no numbers, such as 'red'"),
        ("v", [f"name {row}" for row in range(ROWS)], "error", "nearly every row has a text of its own"),
        ("v", DATES, "error", "date"),
        ("v", GERMAN, "error", "dates"),
    ],
)
def test_columns_of_numbers_are_looked_at_and_the_suggestion_helps(described, column, values, level, said):
    path = described(**{column: values})
    found = check_data(path)
    assert said in "; ".join(one.text for one in found if one.level == level)
    assert {one.party for one in found} == {"shop"}
    assert not [one for one in check_data(edited(path)) if one.level == "error" or said in one.text]


@pytest.mark.parametrize(
    ("rule", "values", "level", "said"),
    [
        ('v = { type = "categorical" }', with_gaps(COLORS), "error", "7 of 60 values are missing"),
        ('v = { type = "categorical" }', [*COLORS[1:], "once"], "warning", "1 of 4 categories occur once"),
        ('v = { type = "categorical" }', with_gaps(COLORS, gap="Red"), "warning", "are different categories"),
        ('v = { type = "datetime" }', with_gaps(DATES), "error", "7 of 60 values are missing"),
        ('v = { type = "datetime" }', GERMAN, "error", "60 values are no dates (ISO 8601)"),
        ('v = { missing = "indicator" }', with_gaps(with_gaps(NOISE), 7, "inf"), "error", "values are infinite"),
    ],
)
def test_columns_with_rules_are_looked_at_and_the_suggestion_keeps_the_rest_of_the_rule(
    described, rule, values, level, said
):
    path = described(f"[parties.shop.columns]\n{rule}\n", v=values)
    (found,) = (one for one in check_data(path) if said in one.text)
    assert (found.level, found.column, found.table) == (level, "v", "parties.shop.columns")
    assert not [one for one in check_data(edited(path)) if one.level == "error" or said in one.text]


def test_a_column_listed_under_categorical_leaves_the_list(described):
    path = described('categorical = ["v", "w"]\n', v=with_gaps(COLORS), w=COLORS)
    assert '\ncategorical = ["w"]' in edits_of(check_data(path))
    assert not check_data(edited(path))


def test_two_formats_of_dates_are_told(described):
    path = described('[parties.shop.columns]\nv = { type = "datetime" }\n', v=DATES[:30] + GERMAN[30:])
    assert "dates of several formats" in check_data(path)[0].text


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1"])
@pytest.mark.parametrize("once", ["Münster", "Ação", "日本", "naïve “x”"])
def test_utf_8_that_was_encoded_twice_is_told(described, once, encoding):
    try:
        twice = once.encode().decode(encoding)
    except UnicodeDecodeError:
        pytest.skip("not every byte is a letter of cp1252")
    path = described('[parties.shop.columns]\nv = { type = "categorical" }\n', v=[once, twice] * (ROWS // 2))
    (found,) = (one for one in check_data(path) if "encoded twice" in one.text)
    assert (found.party, found.level, found.column) == ("shop", "warning", "v")
    assert f"{twice!r} is {once!r}" in found.text
    named = described(**{"v": [1.5, 2, 4] * (ROWS // 3), twice.replace(" ", ""): [3, 9, 2] * (ROWS // 3)})
    assert "encoded twice" in texts_of(named)


@pytest.mark.parametrize("text", ["Ã", "São Tomé", "Âge", "â", "50 €", "Ünal", "Ægir", "£5"])
def test_letters_with_accents_are_not_taken_for_utf_8_that_was_encoded_twice(described, text):
    path = described('[parties.shop.columns]\nv = { type = "categorical" }\n', v=[text, "b"] * (ROWS // 2))
    assert "encoded twice" not in texts_of(path)


def texts_of(path):
    return "\n".join(one.text for one in check_data(path))


@pytest.mark.parametrize(
    ("ids", "level", "said"),
    [
        ([*IDS[1:], IDS[1]], "error", "1 ids stand in several rows, such as 'c001'"),
        (["", *IDS[1:]], "error", "1 rows have no id"),
        ([name.upper() if row % 2 else name for row, name in enumerate(IDS)], "warning", "large and small"),
        ([f"ﬁ{row}" for row in range(ROWS)], "warning", "not in the usual Unicode form (NFKC)"),
        ([str(7 * row).zfill(2) for row in range(ROWS)], "warning", "begin with 0 and are of other lengths"),
    ],
)
def test_ids_that_will_not_meet_others_are_told(described, ids, level, said):
    found = check_data(described(ids=ids))
    assert [one.level for one in found if said in one.text] == [level]


@pytest.mark.parametrize(
    ("labels", "level", "said"),
    [
        (with_gaps([row % 2 for row in range(ROWS)]), "error", "7 of 60 rows have none"),
        ([int(row == 7 or row == 9) for row in range(ROWS)], "warning", "'1' has 2 of 60 rows"),
        ([["Yes", "no", "yes"][row % 3] for row in range(ROWS)], "error", "differ in letters' case"),
        ([row % 3 for row in range(ROWS)], "error", "3 classes (0, 1, 2), 2 are expected"),
    ],
)
def test_labels_are_looked_at(described, labels, level, said):
    found = check_data(described(labels=labels))
    assert [one.level for one in found if said in one.text] == [level]
    assert {one.party for one in found} == {"bank"}


def test_everything_is_found_at_once_and_clean_data_have_no_finding(described):
    assert check_data(described(v=NOISE)) == []
    path = described(a=COLORS, b=with_gaps(NOISE), c=["1"] * ROWS, ids=[*IDS[1:], IDS[1]], labels=[""] * ROWS)
    found = check_data(path)
    assert {(one.party, one.column) for one in found} >= {("shop", name) for name in "abc"} | {
        ("bank", ""),
        ("shop", ""),
    }
    assert {one.party for one in check_data(path, "shop")} == {"shop"}
    with pytest.raises(BadInput, match="--party: 'nobody' is not allowed: the parties are bank, shop"):
        check_data(path, "nobody")


def test_what_pandas_calls_an_index_is_no_feature_and_is_told(tmp_path, described):
    described()
    frame = pa.table({"id": IDS, "noise": np.linspace(0, 1, ROWS), "__index_level_0__": range(ROWS)})
    text = (tmp_path / "parties.toml").read_text().replace("shop.csv", "shop.parquet")
    (tmp_path / "parties.toml").write_text(text)
    pq.write_table(frame, tmp_path / "shop.parquet")
    data = load_description(tmp_path / "parties.toml")
    with pytest.raises(BadInput, match="column __index_level_0__: is called as pandas calls an index"):
        data.load("shop")
    pandas = json.dumps({"index_columns": ["__index_level_0__"]}).encode()
    pq.write_table(frame.replace_schema_metadata({b"pandas": pandas}), tmp_path / "shop.parquet")
    assert data.load("shop").feature_names == ("noise",)
    assert warnings_of(data) == ["shop: column __index_level_0__ is the index that pandas wrote, and no feature"]
    listed = replace(data.sources[1], features=("noise", "__index_level_0__"))
    assert listed.load().feature_names == listed.features  # who lists it means it


def horizontal(tmp_path, *scales):
    for name, scale in zip(("north", "south", "test"), scales, strict=True):
        income = [f"{scale * (1000 + 900 * float(value)):.2f}" for value in NOISE]
        write_csv(tmp_path / f"{name}.csv", income=income, share=NOISE, y=[row % 2 for row in range(ROWS)])
    parties = "".join(f'[parties.{name}]\npath = "{name}.csv"\nlabel = "y"\n' for name in ("north", "south"))
    path = tmp_path / "parties.toml"
    path.write_text('[task]\ntype = "binary"\nlayout = "horizontal"\ntest = "test.csv"\nclasses = [0, 1]\n' + parties)
    return path


def test_scales_of_clients_are_compared(tmp_path):
    path = horizontal(tmp_path, 1, 1000, 1)
    assert "another unit?" in "; ".join(one.text for one in check_data(path))
    path = horizontal(tmp_path, 1, 1, 1)
    found = check_data(path)
    assert {one.column for one in found if "numbers as they are" in one.text} == {"income", "share"}
    assert any("take numbers as they are" in note for note in warnings_of(load_description(path)))
    assert not check_data(edited(path))


def test_images_and_queries_are_read_as_a_run_does(tmp_path):
    write_csv(tmp_path / "orders.csv", key=with_gaps(IDS), spent=with_gaps(NOISE, 7), y=NOISE)
    write_csv(tmp_path / "areas.csv", key=IDS, size=["1"] * ROWS)
    path = tmp_path / "parties.toml"
    query = "SELECT orders.y, orders.spent, areas.size FROM orders JOIN areas ON orders.key = areas.key"
    path.write_text(
        f'[task]\ntype = "regression"\nlayout = "relational"\nlabel = "orders.y"\nsql = "{query}"\n'
        '[parties.orders]\npath = "orders.csv"\n[parties.areas]\npath = "areas.csv"\n'
    )
    said = [one.line for one in check_data(path)]
    assert any(one.startswith("orders: 7 of 60 rows have no value in key: they join with nothing") for one in said)
    assert any(one.startswith("orders: column spent: ") and "are missing" in one for one in said)
    assert any(one.startswith("areas: column size: every value is 1") for one in said)
    assert not [one for one in check_data(edited(path)) if one.level == "error"]
    path.write_text(path.read_text().replace("areas.size", "areas.width"))
    (one,) = check_data(path)
    assert one.level == "error"
    assert "width" in one.text


def test_the_command_and_the_library_say_the_same(described, capsys):
    path = described(v=with_gaps(NOISE), w=["1"] * ROWS)
    assert cli.main(["data", "check", str(path)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "error: shop: column v: 7 of 60 values are missing (first in row 5)"
    assert 'v = { missing = "median" }' in lines
    assert cli.main(["data", "check", str(path), "--party", "bank"]) == 0
    assert "nothing wrong or odd" in capsys.readouterr().out
    assert cli.main(["data", "check", str(path), "--format", "json"]) == 2
    found, made = json.loads(capsys.readouterr().out), fedactors.check_data(path)
    assert found == {"errors": list(made.errors), "warnings": list(made.warnings), "edits": made.edits}
    assert [one["column"] for one in found["errors"]] == ["v"]
    assert "error: shop: column v" in repr(made)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check"], "needs a description"),
        (["list", "--party", "bank"], "--party"),
        (["check", "none.toml"], "none.toml"),
    ],
)
def test_wrong_words_are_named(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["data", *words]) == 2
    heard = capsys.readouterr()
    assert said in heard.out + heard.err


def test_a_run_tells_what_is_odd(described):
    path = described(v=range(ROWS), age=NOISE)
    run = fedactors.simulate("pubsub-vfl", path, num_epochs=1, batch_size=16, validation_fraction=0.4)
    assert any("column v: it counts rows" in note for note in run.summary.extra["notes"])


def test_a_few_numbers_far_from_all_others_hide_no_merges(tmp_path: Path) -> None:
    """Seconds since 1970 beside the 0 of who was never seen, which makes the deviation."""
    seen = [0 if row % 10 == 0 else 1_700_000_000 + row % 59 for row in range(240)]
    found = checked(tmp_path, seen)
    assert "single precision merges" in found
    assert "1700000000 and 17000000" in found
    assert "single precision" not in checked(tmp_path, [0 if row % 10 == 0 else row * 1.1 for row in range(240)])


@pytest.mark.parametrize("text", ["3_000", "(500)", "<5"])
def test_a_number_in_another_writing_is_not_advised_as_missing(tmp_path: Path, text: str) -> None:
    assert "null" not in checked(tmp_path, [text if row % 5 == 0 else row + 0.5 for row in range(240)])


def checked(folder: Path, values: list[object]) -> str:
    """Return what the check says of a column."""
    rows = "".join(f"c{row},{value},{row % 2}\n" for row, value in enumerate(values))
    (folder / "shop.csv").write_text(f"id,v,y\n{rows}")
    (folder / "bank.csv").write_text("id,w\n" + "".join(f"c{row},{row * row}\n" for row in range(len(values))))
    description = folder / "parties.toml"
    shop, bank = 'path = "shop.csv"\nid = "id"\nlabel = "y"', 'path = "bank.csv"\nid = "id"'
    description.write_text(f'[task]\ntype = "binary"\n[parties.shop]\n{shop}\n[parties.bank]\n{bank}\n')
    return str(fedactors.check_data(description))


def test_objects_are_checked_as_files_are() -> None:
    shop = {"id": [f"c{row}" for row in range(60)], "v": [1.0] * 60, "y": [row % 2 for row in range(60)]}
    bank = {"id": shop["id"], "w": [float(row * row) for row in range(60)]}
    data = fedactors.vertical({"shop": shop, "bank": bank}, id="id", label=("shop", "y"))
    assert "every value is 1" in str(fedactors.check_data(data))


# --- graphs in arrays -------------------------------------------------------------------------------------------------


def arrays(folder, names=("bank", "shop"), scales=(1.0, 50.0), seed=0, **changed):
    """Write a graph of two parties with as many columns each, whose edges join nodes of one class more often."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 3, 120)
    parts = np.array_split(draw.permutation(120), 3)
    np.savez(folder / "nodes.npz", labels=labels, train=parts[0], validation=parts[1], test=parts[2])
    for name, scale in zip(names, scales, strict=True):
        pairs = draw.integers(0, 120, (2, 2000))
        kept = (labels[pairs[0]] == labels[pairs[1]]) | (draw.random(2000) < 0.3)
        features = scale * (10 + draw.normal(size=(120, 4)) + labels[:, None])
        np.savez(folder / f"{name}.npz", **{"edges": pairs[:, kept], "features": features, **changed.get(name, {})})
    path = folder / "graph.toml"
    parties = "".join(
        f'[parties.{one}]\nfile = "{name}.npz"\n' for one, name in zip(("bank", "shop"), names, strict=True)
    )
    path.write_text(f'[task]\nlayout = "graph"\nnodes = "nodes.npz"\n{parties}')
    return path, labels


def test_arrays_of_a_graph_are_looked_at_by_the_check_and_in_a_run(tmp_path):
    path, labels = arrays(tmp_path)
    assert check_data(path) == []
    found = {name: dict(np.load(tmp_path / f"{name}.npz")) for name in ("bank", "shop")}
    odd = {
        "its features are those of bank, number by number": {"features": found["bank"]["features"]},
        "2 of 4 columns of features have one value, such as column 1": {
            "features": found["shop"]["features"] * [1.0, 0.0, 1.0, 0.0]
        },
        "column 2 of features tells the class of every node: is it the label?": {
            "features": np.insert(found["shop"]["features"], 2, 7 - labels, axis=1)
        },
        "does it number the nodes as the labels do?": {
            "edges": np.random.default_rng(3).permutation(120)[found["shop"]["edges"]]
        },
    }
    for told, changed in odd.items():
        path, _ = arrays(tmp_path, shop=changed)
        (one,) = check_data(path)
        assert told in one.text
        assert (one.party, one.level) == ("shop", "warning")
        assert [one.line] == warnings_of(load_description(path))
    assert cli.main(["data", "check", str(path)]) == 0
    notes = fedactors.simulate("glasu", path, num_clients=2, num_rounds=1, hidden_size=4).summary.extra["notes"]
    assert any("number the nodes as the labels do" in note for note in notes)


def test_swapped_arrays_of_one_width_are_told_where_they_are_far_from_those_trained_on(tmp_path, caplog):
    path, _ = arrays(tmp_path)
    run = fedactors.simulate("glasu", path, num_clients=2, num_rounds=1, hidden_size=4)
    for names, seed in ((("bank", "shop"), 1), (("shop", "bank"), 1)):
        caplog.clear()
        new, _ = arrays(tmp_path, seed=seed)
        parties = "".join(
            f'[parties.{one}]\nfile = "{name}.npz"\n' for one, name in zip(("bank", "shop"), names, strict=True)
        )
        new.write_text(f'[task]\nlayout = "graph"\nnodes = "nodes.npz"\n{parties}')
        run.predict(new, tmp_path / "predicted.csv")
        told = [line for line in caplog.messages if "is more than 5 deviations from training's" in line]
        assert len(told) == (0 if names[0] == "bank" else 2)
    assert any(line.startswith("features of bank: the mean of 4 of 4 columns") for line in told)


@pytest.mark.parametrize(("factor", "columns"), [(1, 0), (100, 1)])
def test_rows_to_predict_in_another_unit_are_told_to_their_party(described, tmp_path, caplog, factor, columns):
    run = fedactors.simulate("pubsub-vfl", described(), num_epochs=1, batch_size=16, validation_fraction=0.3)
    write_csv(tmp_path / "shop.csv", id=IDS, noise=[f"{factor * float(text):.4f}" for text in NOISE])
    run.predict(tmp_path / "parties.toml", tmp_path / "predicted.csv")
    told = [line for line in caplog.messages if "deviations from training's, such as noise" in line]
    assert len(told) == columns
    assert all("shop.csv: the mean of 1 of 1 columns is more than 5" in line for line in told)


def odd_columns():
    """Return columns of which something is to be said, and others that are like them."""
    draw = np.random.default_rng(4)
    noise = draw.normal(0, 3, (12, ROWS))
    seconds = 1.7e9 + draw.integers(0, 60, ROWS)
    made = {f"n{number}": values.round(3) for number, values in enumerate(noise)}
    made |= {
        "w0": draw.integers(0, 5, ROWS),
        "w1": 2.0**60 + 512 * np.arange(ROWS),
        "customer_id": draw.permutation(ROWS),
    }
    made |= {"c0": np.full(ROWS, 4.5), "c1": np.arange(ROWS), "c2": np.arange(ROWS) + 1, "c3": np.arange(ROWS) + 7}
    made |= {"t0": seconds, "t1": np.where(np.arange(ROWS) == 3, 0, seconds), "t2": 1e5 + noise[0], "t3": seconds * 1e3}
    made |= {
        "s0": 1e-310 * draw.integers(1, 9, ROWS),
        "s1": 1e39 * noise[1],
        "s2": noise[2] * 1e20,
        "s3": noise[3] * 1e-40,
    }
    made |= {"i0": np.where(np.arange(ROWS) == 5, np.inf, noise[4]), "Unnamed: 0": np.arange(ROWS)}
    gaps = {f"g{number}": np.where(draw.random(ROWS) < 0.2, np.nan, noise[number]) for number in range(4)}
    gaps |= {
        "g4": np.where(np.arange(ROWS) > 0, np.nan, 1.0),
        "g5": np.full(ROWS, np.nan),
        "g6": np.where(seconds % 2, np.nan, seconds),
    }
    written = {name: [f"{value:.17g}" for value in values] for name, values in (made | gaps).items()}
    return (
        written
        | {"x0": ["a"] * 30 + ["1"] * 30}
        | {name: [one.replace("nan", "") for one in written[name]] for name in gaps}
    )


@pytest.mark.parametrize("rules", ["", '[parties.shop.columns]\n"*" = { missing = "median" }\n'])
@pytest.mark.parametrize("is_public", [False, True])
def test_columns_that_are_looked_at_together_say_what_each_says_alone(
    described, tmp_path, monkeypatch, rules, is_public
):
    path = described(rules, **odd_columns())
    if is_public:
        for name in ("north", "south"):
            write_csv(tmp_path / f"{name}.csv", **odd_columns(), y=[row % 2 for row in range(ROWS)])
        parties = "".join(f'[parties.{one}]\npath = "{one}.csv"\nlabel = "y"\n' for one in ("north", "south"))
        constant = '"*" = { missing = "constant", fill = 0 }\n' if rules else ""
        path.write_text(
            f'[task]\ntype = "binary"\nlayout = "horizontal"\nclasses = [0, 1]\n[task.columns]\n{constant}{parties}'
        )
    looked: list[str] = []
    numbers = checks._numbers

    def seen(party, column, rule):
        looked.append(column.name)
        numbers(party, column, rule)

    monkeypatch.setattr(checks, "_numbers", seen)
    together = check_data(path)
    assert not set(looked) & {f"n{number}" for number in range(12)}
    monkeypatch.setattr(checks, "_CLEAR_CELLS", 0)
    assert check_data(path) == together
    assert {"n0", "n11"} <= set(looked)
    told = {one.column for one in together}
    assert {"c0", "c1", "c2", "w1", "t0", "t1", "s1", "i0"} <= told or any(
        "columns, such as" in one.text for one in together
    )
