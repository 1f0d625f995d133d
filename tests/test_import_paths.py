"""Code that a configuration names is imported when its user names it, and never because a run folder does."""

from __future__ import annotations

import json
import sys

import pytest

from fedactors.cli.main import main
from fedactors.config import code_named_in, config, load_code
from fedactors.errors import BadInput
from fedactors.protocols.horizontal.config import HorizontalConfig
from fedactors.protocols.nebulafl.config import NebulaFLConfig
from fedactors.protocols.nebulafl.data import load_data
from fedactors.protocols.nebulafl.serving import predict
from fedactors.runs.folder import MANIFEST, RunFolder
from fedactors.runtime import snapshots
from tests.protocols.nebulafl import runs
from tests.serving.predicting import predicted

TRAP = """
from pathlib import Path
Path("sprung").touch()

def net(inputs, outputs):
    from torch import nn
    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))

def attest(container, nonce):
    return True
"""


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A folder with a module whose import leaves a mark."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    name = f"trap_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(TRAP)
    yield name
    sys.modules.pop(name, None)


def run(*words):
    return main([words[0], *words[1:], "--format", "json"])


def folder_of(tmp_path):
    (folder,) = (tmp_path / "runs").iterdir()
    return folder


def rewritten(folder, **values):
    """Change the stored configuration as somebody does who can also rewrite the manifest."""
    opened = RunFolder.open(folder)
    stored = opened.config
    stored["config"] |= values
    opened.write_json("config.json", stored)
    opened.write_manifest()
    assert json.loads((folder / MANIFEST).read_text())["kind"]


def sprung(tmp_path, name):
    return (tmp_path / "sprung").exists() or name in sys.modules


@config
class Careless(HorizontalConfig):
    """A script's settings, which write the type of a field anew."""

    model: str = "mine:net"
    """A model."""


QUICK = {
    "pubsub-vfl": ["num_epochs=1", "num_layers=2"],
    "horizontal": ["num_rounds=1", "num_clients=2", "num_training=60", "model=linear"],
    "nebulafl": ["duration=300", "num_containers=4", "num_centers=2", "active_per_center=1", "num_training=60"],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "field", "function", "party"),
    [
        ("horizontal", "model", "net", "server"),
        ("nebulafl", "model", "net", "oregon"),
        ("nebulafl", "attestation", "attest", "oregon"),
        ("pubsub-vfl", "bottom_model", "net", "active"),
    ],
)
def test_a_strangers_folder_imports_nothing(trap, tmp_path, capsys, protocol, field, function, party):
    assert run("run", protocol, "--runtime", "simulated", "--quiet", *QUICK[protocol]) == 0
    folder = folder_of(tmp_path)
    rewritten(folder, **{field: f"{trap}:{function}"})
    capsys.readouterr()
    for words in (
        ["run", protocol, "--resume", str(folder), "--quiet"],
        ["predict", str(folder), "--data", "digits"],
        ["export", str(folder), "--party", party],
        ["predict", str(folder), "--data", "digits", "--allow-import", f"{trap}:other"],
        *(
            [["audit", str(folder), "--replay"], ["audit", str(folder), "--attacks"]]
            if protocol == "pubsub-vfl"
            else []
        ),
    ):
        assert run(*words) == 2, words
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert f"names code, {field}={trap}:{function}" in line
        assert f"give --allow-import {trap}:{function}" in line
        assert not sprung(tmp_path, trap)


@pytest.mark.slow
def test_what_its_user_names_again_is_imported(trap, tmp_path, capsys):
    address = f"{trap}:net"
    words = ["num_rounds=2", "num_clients=2", "num_training=60", f"model={address}"]
    assert run("run", "horizontal", "--runtime", "simulated", "--quiet", *words) == 0
    assert sprung(tmp_path, trap)
    folder = str(folder_of(tmp_path))
    capsys.readouterr()
    assert run("predict", folder, "--data", "digits", "--allow-import", address) == 0
    assert json.loads(capsys.readouterr().out)["predictions"][0]["predicted"] == 360
    assert run("export", folder, "--party", "server", "--allow-import", address) == 0
    assert run("run", "horizontal", "--resume", folder, "--quiet", "--allow-import", address) == 0


@pytest.mark.slow
def test_a_checkpoint_names_no_code(trap, tmp_path):
    config = runs.changed(duration=700.0)
    _, recorder, _ = runs.play(config)
    states = dict(recorder.checkpoints["final"].actors)
    data = load_data(config, "digits", 0)
    honest, _ = predicted(predict, config, data, states, tmp_path)
    for name, frame in states.items():
        value = snapshots.unseal(frame, name)
        if "model_facts" in value["state"]:
            facts = snapshots.unpack(value["state"]["model_facts"])
            crafted = (f"{trap}:net", *tuple(facts)[1:])
            value["state"]["model_facts"] = snapshots.pack(crafted, name)
            states[name] = snapshots.seal(value)
    assert predicted(predict, config, data, states, tmp_path)[0] == honest
    assert not sprung(tmp_path, trap)


def test_which_fields_name_code():
    assert code_named_in(HorizontalConfig()) == {}
    assert code_named_in(HorizontalConfig(model="a.b:c")) == {"model": "a.b:c"}
    assert code_named_in(NebulaFLConfig(attestation="x:y")) == {"attestation": "x:y"}
    assert code_named_in(Careless()) == {"model": "mine:net"}


def test_a_module_that_fails_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "broken_module_of_mine.py").write_text("1 / 0")
    with pytest.raises(BadInput, match=r"broken_module_of_mine cannot be imported \(ZeroDivisionError: division"):
        load_code("model", "broken_module_of_mine:net")


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_an_user_model_trains_alike_on_both_runtimes(capsys, tmp_path):
    words = ["num_rounds=2", "num_clients=2", "num_training=60", "model=tests.learning.user_networks:good"]
    found = {}
    for runtime in ("simulated", "ray"):
        assert run("run", "horizontal", "--runtime", runtime, "--quiet", "--out", str(tmp_path), *words) == 0
        found[runtime] = json.loads(capsys.readouterr().out.strip().splitlines()[-1])["metrics"]
    assert found["ray"]["test/loss"] == pytest.approx(found["simulated"]["test/loss"], rel=1e-6)
