"""Modules of the user's own in each protocol that takes them: trained, used afterwards, refused before a run begins."""

from __future__ import annotations

import json
import shlex

import pytest

from fedactors.cli.main import main
from fedactors.launch import resume_command
from fedactors.options import RunOptions

HERE = "tests.learning.user_networks"
PUBSUB = ["pubsub-vfl", "num_epochs=2"]
MTCD = ["mtcd", "problem=network", "num_rounds=2", "num_clients=4", "num_samples=80", "num_features=8", "num_tokens=1"]
MARKET = """
[types.cpu]
price = 1.0
throughput = {{ "{here}:good" = 500.0 }}
[centers.oregon]
cpu = 2
[centers.virginia]
cpu = 2
"""
NEBULAFL = [
    "nebulafl", "catalogue=market.toml", "num_centers=2", "num_containers=4", "active_per_center=1", "duration=300",
    "evaluation_interval=150", "rotation_interval=100", "num_training=80",
]  # fmt: skip
TAKEN = {
    "horizontal": ["horizontal", "num_rounds=2", "num_training=80", f"model={HERE}:good"],
    "nebulafl": [*NEBULAFL, f"model={HERE}:good"],
    "bottoms of pubsub-vfl": [*PUBSUB, f"bottom_model={HERE}:good"],
    "top of pubsub-vfl": [*PUBSUB, f"top_model={HERE}:good"],
    "layers of glasu": ["glasu", "num_rounds=2", "hidden_size=8", "evaluate_every=1", f"user_layer={HERE}:sage"],
    "representations of mtcd": [*MTCD, f"user_network={HERE}:good"],
}


def run(*words):
    return main([*words, "--format", "json"])


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "market.toml").write_text(MARKET.format(here=HERE))


@pytest.mark.slow
@pytest.mark.parametrize("setting", TAKEN)
def test_a_module_of_ones_own_is_trained_and_used(setting, tmp_path, capsys):
    assert run("run", *TAKEN[setting], "--runtime", "simulated", "--quiet") == 0, capsys.readouterr().err
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    parties = {path.name.removesuffix(".ckpt") for path in (tmp_path / "runs").rglob("checkpoints/*/*")}
    assert parties
    data = json.loads((tmp_path / summary["run"] / "config.json").read_text())["data"]
    assert run("predict", summary["run"], "--data", data) == 2
    named = TAKEN[setting][-1].partition("=")[2]
    assert f"--allow-import {named}" in capsys.readouterr().err
    assert run("predict", summary["run"], "--data", data, "--allow-import", named) == 0, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)["predictions"][0]["predicted"] > 0


@pytest.mark.slow
def test_each_code_of_a_run_may_be_allowed_by_a_flag_of_its_own(tmp_path, capsys):
    named = [f"{HERE}:good", "torch.nn:CrossEntropyLoss"]
    settings = ["num_clients=2", "num_training=40", "num_rounds=2", f"model={named[0]}", f"loss={named[1]}"]
    assert run("run", "horizontal", *settings, "--runtime", "simulated", "--quiet") == 0, capsys.readouterr().err
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    options = RunOptions(seeds=(0,))
    again = shlex.split(resume_command("run horizontal", summary["run"], options, named))
    assert again.count("--allow-import") == 2
    assert run(*again, "--quiet") == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["horizontal", f"model={HERE}:too_wide"], "it returns (2, 11), not (2, 10)"),
        (["horizontal", "model=no_such_module:net"], "no_such_module cannot be imported"),
        (["horizontal", "--data", "breast-cancer", "model=no_such_module:net"], "no_such_module cannot be imported"),
        ([*NEBULAFL, f"model={HERE}:unused"], "has no throughput for model"),
        ([*PUBSUB, f"top_model={HERE}:normalised"], "in a split network: buffer"),
        ([*PUBSUB, "bottom_model=no_such_module:net"], "no_such_module cannot be imported"),
        ([*PUBSUB, "bottom_model=nlp"], "model: 'nlp' is not known"),
        ([*MTCD, "user_network=no_such_module:net"], "no_such_module cannot be imported"),
        (["glasu", "user_layer=no_such_module:net"], "no_such_module cannot be imported"),
        (["glasu", f"user_layer={HERE}:good"], "given 2 samples of shape (64,) it fails"),
        (["glasu", f"user_layer={HERE}:mixing"], "its output for a sample depends on the other samples"),
        (["glasu", "user_layer=gat"], "model: 'gat' is not known"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_a_run_begins(words, line, tmp_path, capsys):
    assert run("run", *words, "--runtime", "simulated", "--quiet") == 2
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert line in said
    assert not (tmp_path / "runs").exists()


def test_a_bottom_that_needs_other_columns_is_refused_by_its_party(tmp_path, capsys):
    assert run("run", *PUBSUB, f"bottom_model={HERE}:mismatch", "--runtime", "simulated", "--quiet") == 2
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert "given 2 samples of shape (15,) it fails: RuntimeError" in said
