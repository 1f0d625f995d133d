"""Two messy files, an own module, new rows: what prediction writes, what export gives, and who opens which file."""

from __future__ import annotations

import csv
import json
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from fedactors.api import load_part
from fedactors.cli.main import main
from fedactors.errors import BadInput

USER_MODEL = "tests.learning.user_networks:good"
TOML = """
[task]
type = "binary"
positive = "yes"
alignment = "psi"
split = "stratified"

[parties.bank]
path = "{name}-bank.csv"
id = "customer"
label = "bad"
csv = {{ separator = ";", decimal = ",", null = ["?"] }}
[parties.bank.columns]
income = {{ missing = "indicator" }}
job = {{ type = "text" }}

[parties.shop]
path = "{name}-shop.csv"
id = "client"
csv = {{ null = [] }}
[parties.shop.columns]
since = {{ type = "datetime", missing = "median" }}
country = {{ type = "categorical", missing = "drop" }}
"""


def write(folder: Path, name: str, count: int, jobs: list[str], *, labelled: bool) -> None:
    """Write both files; customer 0 has no partner, the shop misses customer 1's country, customer 2's income is '?'."""
    draw = random.Random(count)
    bank, shop = ["customer;income;job" + ";bad" * labelled], ["client,since,country"]
    for row in range(count):
        income, year = draw.gauss(3000, 800), draw.randint(2010, 2023)
        told = "?" if row == 2 else f"{income:.2f}".replace(".", ",")
        label = ";" + ("yes" if income / 100 + year - 2046 > draw.gauss(0, 2) else "no")
        bank.append(f"{name}{row};{told};{draw.choice(jobs)}" + label * labelled)
        country = "" if row == 1 else draw.choice(["NA", "DE"])
        shop += [f"{name}{row},{year}-03-01,{country}"] * (row > 0)
    (folder / f"{name}-bank.csv").write_text("\n".join(bank) + "\n")
    (folder / f"{name}-shop.csv").write_text("\n".join([shop[0], *reversed(shop[1:])]) + "\n")
    (folder / f"{name}.toml").write_text(TOML.format(name=name))


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """A folder with a trained run, its new rows' predictions, and the exported parts."""
    folder = tmp_path_factory.mktemp("bank-and-shop")
    write(folder, "old", 300, ["nurse", "Clerk", "clerk"], labelled=True)
    write(folder, "new", 40, ["nurse", "astronaut"], labelled=False)
    words = [f"bottom_model={USER_MODEL}", "num_epochs=3", "batch_size=64", "embedding_size=4", "hidden_size=8"]
    words += ["learning_rate=0.02", "local_baseline=false"]
    train = ["run", "pubsub-vfl", "--data", str(folder / "old.toml"), "--runtime", "simulated", "--quiet", *words]
    assert main([*train, "--out", str(folder / "runs")]) == 0
    (run,) = (folder / "runs").iterdir()
    predict = ["predict", str(run), "--data", str(folder / "new.toml"), "--allow-import", USER_MODEL]
    assert main([*predict, "--output", str(folder / "said.csv")]) == 0
    assert main(["export", str(run), "--output", str(folder / "model"), "--allow-import", USER_MODEL]) == 0
    return folder


def predictions_in(folder: Path, name: str = "said.csv") -> dict[str, dict[str, str]]:
    with (folder / name).open() as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def test_every_row_of_the_owner_is_there_with_classes_or_a_reason(data_dir):
    rows = predictions_in(data_dir)
    assert list(rows) == [f"new{row}" for row in range(40)]
    assert list(rows["new0"]) == ["id", "prediction", "probability_no", "probability_yes", "reason"]
    rejections = {name: row["reason"] for name, row in rows.items() if row["reason"]}
    assert rejections == {"new0": "not at shop", "new1": "shop cannot use its row"}
    assert rows["new0"]["prediction"] == rows["new0"]["probability_yes"] == ""
    known = [row for name, row in rows.items() if name not in rejections]
    assert all(float(row["probability_no"]) + float(row["probability_yes"]) == pytest.approx(1) for row in known)
    assert {row["prediction"] == "yes" for row in known} == {True, False}
    assert all((row["prediction"] == "yes") == (float(row["probability_yes"]) > 0.5) for row in known)


def test_the_parts_together_say_what_prediction_says(data_dir):
    parts = {party: load_part(data_dir / "model" / party, allow_import=[USER_MODEL]) for party in ("bank", "shop")}
    with (data_dir / "new-bank.csv").open() as one, (data_dir / "new-shop.csv").open() as two:
        bank = {row["customer"]: row for row in csv.DictReader(one, delimiter=";")}
        shop = {row["client"]: row for row in csv.DictReader(two)}
    names = [f"new{row}" for row in range(2, 40)]

    def number(text: str) -> float:
        return float("nan") if text == "?" else float(text.replace(",", "."))

    x_bank = parts["bank"].preprocess(
        {"income": [number(bank[n]["income"]) for n in names], "job": [bank[n]["job"] for n in names]}
    )
    x_shop = parts["shop"].preprocess({key: [shop[n][key] for n in names] for key in ("since", "country")})
    with torch.no_grad():
        fused = torch.cat([parts["bank"].bottom(x_bank), parts["shop"].bottom(x_shop)], dim=1)
        found = torch.sigmoid(parts["bank"].top(fused))[:, 0].numpy()
    rows = predictions_in(data_dir)
    np.testing.assert_allclose(found, [float(rows[n]["probability_yes"]) for n in names], atol=1e-6)
    program = torch.export.load(data_dir / "model/shop/bottom.pt2").module()
    torch.testing.assert_close(program(x_shop), parts["shop"].bottom(x_shop))
    torch.testing.assert_close(parts["bank"].preprocess(data_dir / "new-bank.csv")[2:], x_bank)  # written as training's
    assert parts["bank"].ids(data_dir / "new-bank.csv")[2:] == names
    assert sorted(parts["shop"].ids(data_dir / "new-shop.csv")) == sorted(["new1", *names])
    columns = parts["bank"].preprocessing.feature_names
    assert columns == ("income", "income is missing", "job=clerk", "job=nurse")
    assert (x_bank[:, 2:].sum(1) == 0).sum() == sum(row["job"] == "astronaut" for row in list(bank.values())[2:])


def test_new_files_are_read_as_those_trained_on(data_dir, capsys):
    (run,) = (data_dir / "runs").iterdir()
    lines = (data_dir / "new.toml").read_text().splitlines(keepends=True)
    bare = data_dir / "bare.toml"
    bare.write_text("".join(line for line in lines if not line.startswith("csv")))
    predict = ["predict", str(run), "--data", str(bare), "--allow-import", USER_MODEL, "--output"]
    assert main([*predict, str(data_dir / "bare.csv")]) == 0
    found, expected = predictions_in(data_dir, "bare.csv"), predictions_in(data_dir)
    assert [one["reason"] for one in found.values()] == [one["reason"] for one in expected.values()]
    chances = [[float(one["probability_yes"] or -1) for one in rows.values()] for rows in (found, expected)]
    np.testing.assert_allclose(np.array(chances[0]), np.array(chances[1]), atol=1e-6)
    bare.write_text("".join("csv = {}\n" if 'decimal = ","' in line else line for line in lines))
    assert main([*predict, str(data_dir / "other.csv")]) == 2  # what the description says has precedence
    assert "bank" in capsys.readouterr().err


def spoil(data_dir: Path, name: str, **files: list[str]) -> Path:
    """Write the new rows again under another name, with lines at the end of the bank's and the shop's file."""
    for party, lines in {"bank": [], "shop": [], **files}.items():
        text = (data_dir / f"new-{party}.csv").read_text()
        (data_dir / f"{name}-{party}.csv").write_text(text + "".join(f"{line}\n" for line in lines))
    path = data_dir / f"{name}.toml"
    path.write_text(TOML.format(name=name))
    return path


def test_a_row_that_is_wrong_is_listed_and_the_others_are_predicted(data_dir, capsys):
    bank = ["new50;abc;nurse", ";12,5;nurse", "   ;12,5;nurse", "new51;1,5;nurse", "new51;2,5;nurse", "new52;9,5;clerk"]
    bank += ["new53;1.5;nurse", "new54;inf;nurse", "new55;1_0;nurse"]
    shop = ["new50,2020-01-01,DE", "new51,2020-01-01,DE", "new52,2020-13-01,DE", "new3,2020-01-01,DE"]
    shop += [",2020-01-01,DE", "new53,2020-01-01,DE"]
    path = spoil(data_dir, "spoilt", bank=bank, shop=shop)
    (run,) = (data_dir / "runs").iterdir()
    predict = [
        "predict",
        str(run),
        "--data",
        str(path),
        "--allow-import",
        USER_MODEL,
        "--output",
        str(data_dir / "spoilt.csv"),
    ]
    capsys.readouterr()
    assert main(predict) == 0
    with (data_dir / "spoilt.csv").open() as file:
        lines = [(row["id"], row["reason"]) for row in csv.DictReader(file)]
    wrong = [(name, reason) for name, reason in lines if reason]
    assert wrong == [
        ("new0", "not at shop"),
        ("new1", "shop cannot use its row"),
        ("new3", "shop cannot use its row"),
        ("new50", "income: 'abc' is no number"),
        ("", "no id"),
        ("", "no id"),
        ("new51", "its id stands in several rows"),
        ("new51", "its id stands in several rows"),
        ("new52", "shop cannot use its row"),
        ("new53", "income: '1.5' is no number"),
        ("new54", "income: infinite"),
        ("new55", "income: '1_0' is no number"),
    ]
    before, after = predictions_in(data_dir), predictions_in(data_dir, "spoilt.csv")
    for name in (f"new{row}" for row in (2, *range(4, 40))):  # of no other row anything changed
        assert float(after[name]["probability_yes"]) == pytest.approx(float(before[name]["probability_yes"]), abs=1e-6)
    told = capsys.readouterr().out
    assert "bank: 37 of 49 rows predicted, 1 without a partner, 11 refused, in " in told
    assert "bank: 3 rows without a prediction: values that are no numbers" in told
    assert "abc" not in told  # which value that is stays with the bank
    assert main([*predict, "--format", "json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["predictions"]
    assert (one["rows"], one["predicted"], one["without_partner"], one["refused"]) == (49, 37, 1, 11)
    assert sum(one["rejections"].values()) == 12


def test_a_file_of_which_no_row_can_be_used_is_one_line(data_dir, capsys):
    path = spoil(data_dir, "none")
    (data_dir / "none-bank.csv").write_text("customer;income;job\nnew3;n/a;nurse\nnew4;1.250,5;clerk\n")
    (run,) = (data_dir / "runs").iterdir()
    assert (
        main(
            [
                "predict",
                str(run),
                "--data",
                str(path),
                "--allow-import",
                USER_MODEL,
                "--output",
                str(data_dir / "none.csv"),
            ]
        )
        == 2
    )
    said_of_it = capsys.readouterr().err
    assert "none-bank.csv: none of 2 rows can be predicted, 2 of them for such as: income: 'n/a' is no" in said_of_it
    assert len(said_of_it.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("old", "new", "said_of_it"),
    [
        ('"psi"', '"hash"', "task.alignment: 'hash' is not allowed: the model was trained with 'psi'"),
        ('alignment = "psi"', "", "task.alignment: 'already-aligned' is not allowed: the model was trained with 'psi'"),
        ('"client"', '"country"', "parties.shop.id: 'country' is not allowed: training aligned rows by 'client'"),
    ],
)
def test_rows_to_predict_find_each_other_as_in_training(data_dir, capsys, old, new, said_of_it):
    (run,) = (data_dir / "runs").iterdir()
    path = data_dir / "otherwise.toml"
    path.write_text(TOML.format(name="new").replace(old, new))
    assert (
        main(
            [
                "predict",
                str(run),
                "--data",
                str(path),
                "--allow-import",
                USER_MODEL,
                "--output",
                str(data_dir / "o.csv"),
            ]
        )
        == 2
    )
    assert said_of_it in capsys.readouterr().err
    assert not (data_dir / "o.csv").exists()


@pytest.mark.slow
def test_a_class_that_is_never_predicted_is_told_with_what_to_try(data_dir, tmp_path, capsys):
    heavy = TOML.format(name="old").replace("[task]", "[task]\nclass_weights = { yes = 1e6 }")
    (data_dir / "heavy.toml").write_text(heavy)
    words = ["num_epochs=2", "batch_size=64", "learning_rate=0.01", "embedding_size=4", "hidden_size=8"]
    words += ["model=mlp", "num_layers=10", "schedule=constant", "keep=best"]
    train = ["run", "pubsub-vfl", "--data", str(data_dir / "heavy.toml"), "--runtime", "simulated", "--quiet", *words]
    assert main([*train, "--out", str(tmp_path / "runs")]) == 0
    note = "note: bank: 1 class is predicted for no test row; try num_layers=2 (it is 10), a larger learning_rate"
    assert note in capsys.readouterr().out
    (run,) = (tmp_path / "runs").iterdir()
    predict = ["predict", str(run), "--data", str(data_dir / "new.toml"), "--output", str(tmp_path / "p.csv")]
    assert main(predict) == 0
    assert "bank: 1 class is predicted for no row" in capsys.readouterr().out
    told = {row["prediction"] for row in predictions_in(tmp_path, "p.csv").values() if not row["reason"]}
    assert told == {"yes"}


def test_a_part_is_not_believed_unread(data_dir, tmp_path):
    with pytest.raises(BadInput, match=rf"names code, {USER_MODEL}"):
        load_part(data_dir / "model/bank")
    with pytest.raises(BadInput, match="cannot be read"):
        load_part(tmp_path)
    facts = json.loads((data_dir / "model/bank/part.json").read_text())
    for change in ({"task": "ordinal"}, {"colour": 1}, {"preprocessing": {"columns": []}}, {"num_classes": "2"}):
        (tmp_path / "part.json").write_text(json.dumps(facts | change))
        with pytest.raises(BadInput, match=r"damaged|cannot be read"):
            load_part(tmp_path, allow_import=[USER_MODEL])


def test_what_the_owner_lost_in_the_alignment_is_told_at_the_end_and_in_the_report(data_dir, capsys):
    (run,) = (data_dir / "runs").iterdir()
    told = "bank: 298 of 300 rows are used (2 not at shop, or missing values there)"
    assert json.loads((run / "metrics/summary.json").read_text())["extra"]["notes"] == [told]
    assert main(["report", str(run), "--output", str(data_dir / "page.html")]) == 0
    assert told in (data_dir / "page.html").read_text()


def test_what_prediction_sends_is_told_before(capsys):
    assert main(["inspect", "pubsub-vfl", "--format", "json"]) == 0
    told = {one["message"]: one for one in json.loads(capsys.readouterr().out)["predictions"]}
    assert "passive parties" in told["Contribution"]["sender"]
    assert told["Predicted"]["control"]
    assert main(["inspect", "mtcd", "relaxed_protocol=true", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["predictions"]
    assert main(["inspect", "glasu", "secure_aggregation=true", "--format", "json"]) == 0
    assert "Masked" in {one["message"] for one in json.loads(capsys.readouterr().out)["predictions"]}


HOOK = """
import os, sys
def watch(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
        path = os.fsdecode(arguments[0])
        if path.startswith({folder!r}) and path.endswith((".csv", ".ckpt")):
            line = os.getpid(), os.path.relpath(path, {folder!r})
            descriptor = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(descriptor, (str(line[0]) + " " + line[1] + "\\n").encode())
            os.close(descriptor)
sys.addaudithook(watch)
"""


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_process_of_one_party_opens_no_other_partys_file(data_dir, tmp_path):
    """An audit hook in every process, which sees each file that Python opens; the files are read through Python."""
    log = tmp_path / "opened"
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(HOOK.format(folder=str(data_dir), log=str(log))))
    (run,) = (data_dir / "runs").iterdir()
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    words = [
        "predict",
        str(run),
        "--data",
        str(data_dir / "new.toml"),
        "--allow-import",
        USER_MODEL,
        "--runtime",
        "ray",
    ]
    command = [sys.executable, "-m", "fedactors", *words, "--output", str(data_dir / "ray.csv"), "--format", "json"]
    kept = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=tmp_path, env=kept, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    driver = ""
    opened: dict[str, set[str]] = {}
    for line in log.read_text().splitlines():
        process, file = line.split(" ", 1)
        opened.setdefault(process, set()).add(file)
        driver = process if file.endswith(".ckpt") else driver
    data = {process: {file for file in files if file.startswith("new-")} for process, files in opened.items()}
    assert not data[driver]
    assert sorted(map(sorted, filter(None, data.values()))) == [["new-bank.csv"], ["new-shop.csv"]]
    # and it says what the simulated runtime says
    for one, other in zip(predictions_in(data_dir).values(), predictions_in(data_dir, "ray.csv").values(), strict=True):
        assert (one["id"], one["reason"]) == (other["id"], other["reason"])
        if not one["reason"]:
            assert float(one["probability_yes"]) == pytest.approx(float(other["probability_yes"]), abs=1e-6)
