"""Rows that do not count alike, and rows without a label."""

import dataclasses

import numpy as np
import pytest

from fedactors.config import build
from fedactors.data.description import load_description
from fedactors.errors import BadInput
from fedactors.launch import load_data
from fedactors.plugins import find_protocol
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.simulation.runtime import SimulatedRuntime

VERTICAL = """[task]
type = "binary"
class_weights = { yes = 3.0 }
alignment = "hash"
split = "stratified"
[parties.bank]
path = "bank.csv"
id = "id"
label = "bad"
weight = "times"
unlabelled = "drop"
[parties.shop]
path = "shop.csv"
id = "id"
"""
HORIZONTAL = """[task]
type = "binary"
layout = "horizontal"
classes = ["no", "yes"]
class_weights = { yes = 3.0 }
test = "test.csv"
[parties.a]
path = "bank.csv"
features = ["x", "z"]
label = "bad"
weight = "times"
unlabelled = "drop"
[parties.b]
path = "other.csv"
features = ["x", "z"]
label = "bad"
weight = "times"
unlabelled = "drop"
"""


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["id,x,z,times,bad"]
    for row in range(60):
        x, z = rng.normal(size=2)
        label = "" if row == 7 else "yes" if x + z > 0 else "no"
        lines.append(f"{row},{x:.4f},{z:.4f},{row % 3},{label}")
    for name in ("bank", "other", "test"):
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    shop = ["id,u", *(f"{row},{value:.4f}" for row, value in enumerate(rng.normal(size=60)))]
    (tmp_path / "shop.csv").write_text("\n".join(shop) + "\n")
    (tmp_path / "vertical.toml").write_text(VERTICAL)
    (tmp_path / "horizontal.toml").write_text(HORIZONTAL)
    return tmp_path


def expected(labels):
    times = np.delete(np.arange(60) % 3, 7)
    return times * np.where(labels == 1, 3.0, 1.0)


def test_weights_of_rows_times_those_of_classes_and_rows_without_a_label(folder):
    block = load_description(folder / "vertical.toml").load("bank")
    assert block.feature_names == ("x", "z")
    assert block.class_names == ("no", "yes")
    assert block.rejected == (("7", "no label"),)
    assert len(block.labels) == len(block.features) == 59
    np.testing.assert_allclose(block.weights, expected(block.labels))
    assert load_description(folder / "vertical.toml").load("shop").weights is None


def test_of_clients_too(folder):
    found = load_description(folder / "horizontal.toml").client(0).load()
    assert found.features.shape == (59, 2)
    np.testing.assert_allclose(found.weights, expected(found.labels))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "file", "settings"),
    [
        ("pubsub-vfl", "vertical", {"num_epochs": 1, "num_layers": 1, "batch_size": 16}),
        ("pubsub-vfl", "vertical", {"num_epochs": 1, "num_layers": 1, "batch_size": 16, "algorithm": "vfl"}),
        ("horizontal", "horizontal", {"num_rounds": 1}),
        (
            "nebulafl", "horizontal",
            {"num_containers": 2, "num_centers": 2, "active_per_center": 1, "duration": 30.0, "rotation_interval": 10.0,
             "evaluation_interval": 30.0, "dirichlet": None, "local_epochs": 1},
        ),
    ],
)  # fmt: skip
def test_a_protocol_trains_by_them(folder, name, file, settings):
    protocol = find_protocol(name)
    known = {field.name for field in dataclasses.fields(protocol.Config)}
    config = build(protocol.Config, {key: value for key, value in settings.items() if key in known})
    path = folder / f"{file}.toml"

    def trained(text):
        path.write_text(text)
        data = load_data(protocol, config, str(path), 0)
        recorder = MemoryRecorder()
        runtime = SimulatedRuntime(seed=0, recorder=recorder, reproducible_noise=True)
        runtime.execute(lambda: protocol.run(config, data, runtime))
        return recorder.checkpoints["last"].actors

    text = path.read_text()
    alike = text.replace("class_weights = { yes = 3.0 }\n", "")
    by_class, weighted = trained(text), trained(alike)
    for name in ("bank", "other", "test"):  # the same rows, each of which counts once
        lines = (folder / f"{name}.csv").read_text().splitlines()
        rows = [line.split(",") for line in lines[1:]]
        (folder / f"{name}.csv").write_text("\n".join([lines[0], *(",".join([*r[:3], "1", r[4]]) for r in rows)]))
    once = trained(alike)
    assert by_class.keys() == weighted.keys() == once.keys()
    assert by_class != weighted != once != by_class
    assert trained(alike) == once


def test_where_weights_would_tell_of_hidden_labels_they_are_refused(folder):
    protocol = find_protocol("pubsub-vfl")
    config = build(protocol.Config, {"label_epsilon": 1.0})
    with pytest.raises(BadInput, match=r"parties.bank.weight: 'times' is not allowed with label_epsilon=1"):
        load_data(protocol, config, str(folder / "vertical.toml"), 0)
