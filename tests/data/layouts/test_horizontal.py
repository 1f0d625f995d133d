"""What columns mean in clients' own tables: said once for all, measured of nobody, kept with the model."""

from __future__ import annotations

import csv
import sqlite3
from contextlib import closing

import numpy as np
import pytest
import torch

from fedactors.api import load_part
from fedactors.cli.main import main
from fedactors.data.description import load_description
from fedactors.data.layouts.horizontal import HorizontalFile
from fedactors.data.values import CsvFormat
from fedactors.errors import BadInput

RULES = """
[task.columns]
job = { type = "text", categories = ["Nurse", "clerk", "student"], missing = "indicator" }
country = { type = "categorical", categories = ["NA", "DE"], missing = "drop" }
income = { scaling = "range", range = [0, 5000], missing = "constant", fill = 2500 }
[task.columns.since]
type = "datetime"
format = "%d.%m.%Y"
scaling = "range"
range = [16000, 20000]
parts = ["days", "weekday"]
"""
TASK = """
[task]
layout = "horizontal"
type = "binary"
classes = ["no", "yes"]
test = "test.csv"
"""
JOBS, COUNTRIES = ["nurse", "CLERK ", "Student", "pilot", ""], ["NA", "DE", "FR", ""]
NEBULAFL = ["num_containers=2", "num_centers=2", "active_per_center=1", "num_rounds=1", "rotation_interval=1",
            "evaluation_interval=1", "catalogue=scarce", "duration=900", "dirichlet=null"]  # fmt: skip


def party(name: str, path: str) -> str:
    features = '["job", "country", "income", "since"]'
    known = f'label = "bad"\nfeatures = {features}\ncsv = {{ null = [] }}\n'
    return f'[parties.{name}]\npath = "{path}"\n{known}'


def write(folder, name, count, countries=COUNTRIES):
    draw = np.random.default_rng(count)
    rows = [["job", "country", "income", "since", "bad"]]
    for row in range(count):
        income = draw.uniform(-100, 6000)
        told = f"{income:.2f}" if row % 9 else ""
        day = f"{draw.integers(1, 28):02}.{draw.integers(1, 12):02}.{draw.integers(2012, 2024)}"
        rows.append([JOBS[row % 5], countries[row % len(countries)], told, day, "yes" if income > 2500 else "no"])
    with (folder / name).open("w", newline="") as file:
        csv.writer(file).writerows(rows)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clients")
    for name, count in (("a.csv", 60), ("b.csv", 44), ("test.csv", 30), ("new-a.csv", 20), ("new-b.csv", 17)):
        write(folder, name, count, COUNTRIES[:2] if name == "b.csv" else COUNTRIES)
    (folder / "parties.toml").write_text(TASK + RULES + party("a", "a.csv") + party("b", "b.csv"))
    other = RULES.replace('["NA", "DE"]', '["DE", "NA"]')  # what training was told holds
    (folder / "new.toml").write_text(TASK + other + party("a", "new-a.csv") + party("b", "new-b.csv"))
    return folder


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def expected(row):
    """Return a row's numbers, worked out from the rules."""
    job, income = row["job"].strip().lower(), float(row["income"] or 2500)
    day, month, year = map(int, row["since"].split("."))
    days = int(np.datetime64(f"{year}-{month:02}-{day:02}").astype(int))
    angle = 2 * np.pi * ((days + 3) % 7) / 7
    jobs = [job == one for one in ("nurse", "clerk", "student", "")]
    countries = [row["country"] == one for one in ("NA", "DE")]
    scaled = [min(max(income, 0), 5000) / 5000, min(max(days, 16000), 20000) / 4000 - 4]
    return [*jobs, *countries, *scaled, np.sin(angle), np.cos(angle)]


def test_every_client_makes_the_same_columns_of_the_same_values(data_dir):
    data = load_description(data_dir / "parties.toml")
    assert data.shape == (10,)
    for name, file in zip(("a", "b"), data.files, strict=True):
        assert isinstance(file, HorizontalFile)
        kept = [row for row in rows(data_dir / f"{name}.csv") if row["country"]]
        np.testing.assert_allclose(file.load().features, [expected(row) for row in kept], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "words", "holder"),
    [("horizontal", ["num_rounds=2", "learning_rate=0.5"], "server"), ("nebulafl", NEBULAFL, "virginia")],
)
def test_new_rows_are_read_as_training_read_them_whatever_their_description_says(
    data_dir, protocol, words, holder, tmp_path
):
    flags = ["--data", str(data_dir / "parties.toml"), "--runtime", "simulated", "--quiet"]
    assert main(["run", protocol, *flags, *words, "--out", str(tmp_path / "runs")]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert main(["predict", str(run), "--data", str(data_dir / "new.toml"), "--output", str(tmp_path / "p.csv")]) == 0
    assert main(["export", str(run), "--output", str(tmp_path / "model")]) == 0
    part = load_part(tmp_path / "model" / holder)
    for name in ("a", "b"):
        new, said = rows(data_dir / f"new-{name}.csv"), rows(tmp_path / f"p-{name}.csv")
        assert [one["reason"] for one in said] == ["" if one["country"] else "country: missing" for one in new]
        known = [one for one in new if one["country"]]
        columns = {key: [one[key] or None for one in known] for key in ("job", "country", "since")}
        columns["income"] = [float(one["income"] or "nan") for one in known]
        x = part.preprocess(columns)
        np.testing.assert_allclose(x, [expected(row) for row in known], atol=1e-6)
        if protocol == "horizontal":  # NebulaFL predicts with the mean of the centers' models
            with torch.no_grad():
                output = torch.sigmoid(part.bottom(x))[:, -1]
            shares = [float(one["probability_yes"]) for one in said if not one["reason"]]
            np.testing.assert_allclose(output, shares, atol=1e-6)


BARE = """
[task]
layout = "horizontal"
type = "multiclass"
[parties.a]
path = "a-new.csv"
id = "name"
"""


@pytest.mark.parametrize(
    ("protocol", "words", "holder"),
    [("horizontal", ["num_rounds=1"], "server"), ("nebulafl", NEBULAFL, "virginia")],
)
def test_new_rows_need_a_file_and_the_model_knows_the_rest(tmp_path, protocol, words, holder):
    """The description names a file and an id; format, columns, their order and the classes are those of training."""
    draw = np.random.default_rng(0)
    for file, order in (("a.csv", "pq"), ("b.csv", "pq"), ("test.csv", "pq"), ("a-new.csv", "qp")):
        x = {"p": draw.normal(size=24), "q": draw.normal(size=24)}
        told = ["yes" if one > 0 else "no" for one in x["p"]]
        table = [[*order, "name", *(["bad"] if order == "pq" else [])]]
        for row in range(24):
            numbers = [f"{x[name][row]:.3f}".replace(".", ",") for name in order]
            table.append([*numbers, f"c{row // 2}", *([told[row]] if order == "pq" else [])])
        with (tmp_path / file).open("w", newline="") as opened:
            csv.writer(opened, delimiter="\t" if file == "b.csv" else ";").writerows(table)
    text = TASK.lstrip()
    for name, separator in (("a", ";"), ("b", "\\t")):
        text += f'[parties.{name}]\npath = "{name}.csv"\nid = "name"\nlabel = "bad"\n'
        text += f'csv = {{ separator = "{separator}", decimal = "," }}\n'
    (tmp_path / "parties.toml").write_text(text)
    (tmp_path / "new.toml").write_text(BARE)
    flags = ["--data", str(tmp_path / "parties.toml"), "--runtime", "simulated", "--quiet"]
    assert main(["run", protocol, *flags, *words, "--out", str(tmp_path / "runs")]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert main(["predict", str(run), "--data", str(tmp_path / "new.toml"), "--output", str(tmp_path / "p.csv")]) == 0
    said = rows(tmp_path / "p.csv")
    assert [one["id"] for one in said] == [f"c{row // 2}" for row in range(24)]  # a name need not be unique
    assert list(said[0]) == ["id", "prediction", "probability_no", "probability_yes", "reason"]
    assert main(["export", str(run), "--output", str(tmp_path / "model")]) == 0
    part = load_part(tmp_path / "model" / holder)
    assert part.preprocessing is not None
    assert part.preprocessing.feature_names == ("p", "q")
    assert part.class_names == ("no", "yes")
    if protocol == "horizontal":  # NebulaFL predicts with the mean of the centers' models
        with torch.no_grad():
            how = CsvFormat(separator=";", decimal=",")
            output = torch.sigmoid(part.bottom(part.preprocess(tmp_path / "a-new.csv", csv=how)))[:, -1]
        np.testing.assert_allclose(output, [float(one["probability_yes"]) for one in said], atol=1e-6)


def test_other_classes_than_those_trained_on_are_refused(data_dir, tmp_path, capsys):
    flags = ["--data", str(data_dir / "parties.toml"), "--runtime", "simulated", "--quiet"]
    assert main(["run", "horizontal", *flags, "num_rounds=1", "--out", str(tmp_path / "runs")]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    (data_dir / "other.toml").write_text((data_dir / "new.toml").read_text().replace('"no", "yes"', '"no", "maybe"'))
    assert main(["predict", str(run), "--data", str(data_dir / "other.toml"), "--output", str(tmp_path / "p.csv")]) == 2
    assert "task.classes: no, maybe is not allowed: the model was trained on no, yes" in capsys.readouterr().err


def test_columns_in_another_order_are_refused_unless_they_are_listed(tmp_path, capsys):
    for name, header in (("a", "p,q,bad"), ("b", "q,p,bad"), ("test", "p,q,bad")):
        lines = [f"{row},{row % 3},{row % 2}" for row in range(12)]
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *lines]))
    parties = [f'[parties.{name}]\npath = "{name}.csv"\nlabel = "bad"\n' for name in ("a", "b")]
    text = '[task]\nlayout = "horizontal"\ntype = "binary"\ntest = "test.csv"\n'
    (tmp_path / "parties.toml").write_text(text + "".join(parties))
    flags = ["--data", str(tmp_path / "parties.toml"), "--runtime", "simulated", "--quiet", "--out", str(tmp_path)]
    assert main(["run", "horizontal", *flags, "num_rounds=1"]) == 2
    assert "b has 'q' where test has 'p'; list them under features, at every client" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('categories = ["NA", "DE"], ', "", "task.columns.country: categories is not allowed with layout=horizontal"),
        ('"constant", fill = 2500', '"mean"', "task.columns.income: missing = 'mean' is not allowed with layout=hor"),
        ('scaling = "range"\nrange = [16000, 20000]\n', "", "task.columns.since: days without a range is not allowed"),
        ("[task.columns]", "[task.columns]\nbad = {}", "task.columns.bad: it is the label: a rule is for labels"),
        ("[task.columns]", "[task.columns]\nwidth = {}", "task.columns: 'width' is not allowed: list it under feat"),
        ("[task.columns]", '[task.columns]\n"w*" = {}', "task.columns: 'w*' is not allowed: list it under features"),
        ('["NA", "DE"]', '["NA", "NA"]', "categories: ['NA', 'NA'] is not allowed: one is there twice"),
        ('"DE"], missing', '"DE"], rare = 2, missing', "rare: 2 is not allowed with categories"),
        ('"drop"', '"constant", fill = "XX"', "fill: 'XX' is not allowed: it is none of the categories"),
        ('missing = "drop"', 'unknown = "refuse"', "a: "),
        ('"a.csv"', '"a.csv"\ncolumns = {}', "parties.a: unknown key 'columns'"),
        ('type = "binary"', 'type = "binary"\nshape = [1, 2, 2]', "not allowed for images"),
    ],
)
def test_what_each_client_would_find_for_itself_is_refused(data_dir, tmp_path, old, new, named):
    text = (data_dir / "parties.toml").read_text()
    assert old in text
    (data_dir / "other.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(BadInput) as refused:
        load_description(data_dir / "other.toml").files[0].load()
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_vertical_task_has_no_columns(tmp_path):
    text = (
        '[task]\ntype = "binary"\ncolumns = {}\n[parties.a]\npath = "a.csv"\nlabel = "y"\n[parties.b]\npath = "b.csv"\n'
    )
    (tmp_path / "parties.toml").write_text(text)
    with pytest.raises(BadInput, match="task: unknown key 'columns'"):
        load_description(tmp_path / "parties.toml")


def test_a_clients_rows_may_be_what_a_select_gives_of_its_database(data_dir, tmp_path):
    for name in ("a", "b"):
        with closing(sqlite3.connect(tmp_path / f"{name}.sqlite")) as base:
            head, *found = csv.reader((data_dir / f"{name}.csv").read_text().splitlines())
            base.execute(f"CREATE TABLE clients ({', '.join(f'{one} TEXT' for one in head)})")
            base.executemany("INSERT INTO clients VALUES (?, ?, NULLIF(?, ''), ?, ?)", found)
            base.commit()
    text = TASK.replace("test.csv", str(data_dir / "test.csv"))
    for name in ("a", "b"):
        text += f'[parties.{name}]\ntables = {{ clients = "{name}.sqlite" }}\nlabel = "bad"\n'
        text += 'sql = "SELECT income, bad FROM clients WHERE income IS NOT NULL"\n'
    (tmp_path / "parties.toml").write_text(text)
    data = load_description(tmp_path / "parties.toml")
    for number, name in enumerate(("a", "b")):
        block = data.files[number].load()
        kept = [row for row in rows(data_dir / f"{name}.csv") if row["income"]]
        assert block.features[:, 0].tolist() == np.asarray([row["income"] for row in kept], np.float32).tolist()
        assert [data.files[number].classes[label] for label in block.labels] == [row["bad"] for row in kept]
