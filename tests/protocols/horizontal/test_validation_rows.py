"""Rows that clients hold out and measure on themselves: they choose the round, and nobody trains on them."""

from __future__ import annotations

import csv

import numpy as np
import pytest

import fedactors
from fedactors.cli.main import main
from fedactors.config import build
from fedactors.errors import BadInput
from fedactors.learning.local_training import evaluate_model
from fedactors.protocols.horizontal import serving
from fedactors.protocols.horizontal.algorithm import mean_scores
from fedactors.protocols.horizontal.config import HorizontalConfig
from fedactors.protocols.horizontal.data import load_data
from tests.protocols.horizontal.federation import play, state_of

TASK = '[task]\ntype = "{kind}"\nlayout = "horizontal"\ntest = "test.csv"\n'
WORDS = {"model": "linear", "num_rounds": "6", "learning_rate": "1.0", "batch_size": "8", "float64": "true"}
SIZES = {"north": 30, "south": 50, "test": 40}


def write(folder, kind="binary", flip=0.0):
    """Two clients; north's validation rows are otherwise than its training rows by `flip`, so that more is worse."""
    rng = np.random.default_rng(7)
    text = TASK.format(kind=kind)
    for name, size in SIZES.items():
        x = rng.normal(size=(size, 2))
        part = np.where(np.arange(size) % 3, "train", "validation")
        score = x[:, 0] - x[:, 1] + rng.normal(size=size) * 0.5
        score = np.where((part == "validation") & (rng.random(size) < flip), -score, score)
        y = score if kind == "regression" else (score > 0).astype(int)
        with (folder / f"{name}.csv").open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["a", "b", "y", "part"] if name != "test" else ["a", "b", "y"])
            out.writerows(
                [*row, label, *([one] if name != "test" else [])] for row, label, one in zip(x, y, part, strict=True)
            )
        if name != "test":
            text += f'[parties.{name}]\npath = "{name}.csv"\nlabel = "y"\nsplit = "part"\n'
    (folder / "parties.toml").write_text(text)
    return folder / "parties.toml"


def config(**more):
    return build(HorizontalConfig, WORDS | more)


def rows_of(folder, name, part):
    with (folder / f"{name}.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["part"] == part]
    x = np.array([[row["a"], row["b"]] for row in rows], np.float32)
    return x, np.array([float(row["y"]) for row in rows])


@pytest.mark.parametrize("kind", ["binary", "regression"])
def test_clients_rows_choose_the_round_and_the_model_that_is_kept(tmp_path, kind):
    settings = config(learning_rate="0.3") if kind == "regression" else config()
    file = write(tmp_path, kind, flip=0.5)
    result, recorder, _ = play(settings, name=str(file))
    metric = "validation/rmse" if kind == "regression" else "validation/accuracy"
    found = [entry[metric] for entry in recorder.rounds]
    best = (min if kind == "regression" else max)(found)
    assert result.metrics["best_round"] == 1 + found.index(best)
    assert result.metrics[metric] == best
    # as if all clients' held-out rows were at one place
    data = load_data(settings, str(file), 0)
    part = serving.part(settings, "server", recorder.checkpoints["final"].actors)
    model = part.models["bottom"]
    assert np.array_equal(model.vector, state_of(recorder)["best"])
    held = [rows_of(tmp_path, name, "validation") for name in data.parties]
    x, y = (np.concatenate(arrays) for arrays in zip(*held, strict=True))
    x = part.preprocessing.finish(x)
    y = y.astype(np.float32 if kind == "regression" else np.int64)
    unit = part.label_deviation  # the model's outputs are standardised, as the targets of a regression are
    clear = evaluate_model(model.spec, model.vector, x, (y - part.label_mean) / unit, task=part.task)
    assert unit * clear[metric.partition("/")[2]] == pytest.approx(best, abs=1e-6)
    measured = load_data(settings, str(file), 0).test().load()
    rows, labels = part.preprocessing.finish(measured.features), (measured.labels - part.label_mean) / unit
    test = evaluate_model(model.spec, model.vector, rows, labels, task=part.task)
    name = metric.partition("/")[2]
    assert result.metrics[f"test/{name}"] == pytest.approx(unit * test[name], abs=1e-6)


@pytest.mark.slow
def test_nobody_trains_on_rows_that_are_held_out(tmp_path):
    """What stands in them changes the measurements and no parameter."""
    file = write(tmp_path)
    _, recorder, _ = play(config(), name=str(file))
    before = state_of(recorder)["model"]["vector"]
    text = (tmp_path / "north.csv").read_text().splitlines()
    flipped = [
        line.replace(",0,val", ",9,val").replace(",1,val", ",0,val").replace(",9,val", ",1,val") for line in text
    ]
    (tmp_path / "north.csv").write_text("\n".join(flipped))
    _, other, _ = play(config(), name=str(file))
    assert np.array_equal(before, state_of(other)["model"]["vector"])
    assert other.rounds != recorder.rounds


def test_a_share_is_drawn_where_no_column_tells_and_stops_early(tmp_path):
    file = write(tmp_path)
    text = file.read_text()
    file.write_text(text.replace('split = "part"\n', 'features = ["a", "b"]\n'))
    settings = config(validation_fraction="0.2", patience="2", num_rounds="40")
    part = load_data(settings, str(file), 3).part([0])
    train, held = part.clients[0].load(), part.validation[0].load()
    assert (len(train.labels), len(held.labels)) == (24, 6)
    assert not set(map(tuple, train.features.tolist())) & set(map(tuple, held.features.tolist()))
    result, _, _ = play(settings, name=str(file))
    assert result.rounds - result.metrics["best_round"] == 2


def test_means_over_rows_are_those_of_all_rows():
    found = mean_scores([(3, {"accuracy": 1.0, "rmse": 2.0, "auc": 0.5}), (1, {"accuracy": 0.0, "rmse": 4.0})])
    assert found == {"accuracy": 0.75, "rmse": pytest.approx(np.sqrt((3 * 4 + 16) / 4))}
    assert mean_scores([]) == {}


@pytest.mark.parametrize(
    ("old", "new", "words", "named"),
    [
        (
            "",
            "",
            ["secure_aggregation=true"],
            ("secure_aggregation: True is not allowed with validation rows of the clients"),
        ),
        ("", "", ["validation_fraction=0.1"], "validation_fraction: 0.1 is not allowed: column 'part' tells the rows"),
        (
            'label = "y"\nsplit = "part"\n[parties.south]',
            'label = "y"\n[parties.south]',
            [],
            "parties.north.split: missing",
        ),
        ('test = "test.csv"', 'test = "./north.csv"', [], "task.test: './north.csv' is not allowed: parties.north"),
        ('split = "part"', 'split = "gone"', [], "split: 'gone' is not a column"),
        ('split = "part"\n', "", ["patience=2"], "patience: stopping early on test rows is not allowed"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path, capsys, old, new, words, named):
    file = write(tmp_path)
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    run = ["run", "horizontal", "--data", str(file), "--runtime", "simulated", "--quiet", "num_rounds=1", *words]
    assert main([*run, "--out", str(tmp_path / "runs")]) == 2
    assert named in capsys.readouterr().err


def test_test_rows_at_a_client_and_two_kinds_of_validation_rows_are_refused(tmp_path):
    file = write(tmp_path)
    (tmp_path / "south.csv").write_text((tmp_path / "south.csv").read_text().replace("validation", "test", 1))
    with pytest.raises(BadInput, match=r"column part: 'test' is not allowed: task\.test has such rows"):
        load_data(config(), str(file), 0).client(1).load()
    with pytest.raises(BadInput, match=r"validation_fraction: 0\.2 is not allowed with num_validation"):
        load_data(config(validation_fraction="0.2", num_validation="9"), "digits", 0)


def test_each_client_s_metrics_and_their_spread_are_recorded(tmp_path):
    data = write(tmp_path)
    found = fedactors.simulate("horizontal", data, num_rounds=2)
    last = list(found.rounds)[-1]
    scores = [last[f"validation/{name}/accuracy"] for name in ("north", "south")]
    assert last["validation/lowest_accuracy"] == min(scores)
    assert last["validation/highest_accuracy"] == max(scores)
    assert last["validation/spread_accuracy"] == pytest.approx(abs(scores[0] - scores[1]) / 2)
    assert "validation/lowest_accuracy" in found.metrics
