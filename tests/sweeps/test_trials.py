import dataclasses
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

import fedactors
from fedactors.config import as_dict, build, parse_words
from fedactors.errors import BadInput
from fedactors.options import RunOptions
from fedactors.plugins import find_protocol
from fedactors.sweeps import code_digest, data_digest, plan, run_trial

TINY = {"num_layers": "2", "hidden_size": "8", "embedding_size": "4", "batch_size": "64", "num_epochs": "2"}


def planned(settings, **options):
    return plan(find_protocol("pubsub-vfl"), settings, RunOptions(runtime="simulated", **options))


def digest(settings=TINY, **options):
    (trial,) = planned([settings], **options)
    return trial.digest


def test_the_digest_is_that_of_what_decides_the_result():
    first = digest()
    assert digest() == first
    # a value that is the default, or is written in another way, is no other setting
    assert digest({**TINY, "batch_size": "64 "}) == digest({**TINY, "learning_rate": "3e-3"}) == first
    others = [
        digest({**TINY, "batch_size": "65"}),
        digest(seed=1),
        digest(data="synthetic:200x6"),
        dataclasses.replace(planned([TINY])[0], runtime="ray").digest,
        dataclasses.replace(planned([TINY])[0], emulate=2.0).digest,
    ]
    assert len({first, *others}) == 6


def test_seeds_are_innermost_and_equal_settings_are_one():
    made = planned([{**TINY, "batch_size": "64"}, {**TINY, "batch_size": "32"}, dict(TINY)], seeds=(0, 1))
    assert [(trial.config["batch_size"], trial.seed) for trial in made] == [(64, 0), (64, 1), (32, 0), (32, 1)]


def test_a_changed_source_changes_the_digest(tmp_path, monkeypatch):
    package = tmp_path / "lone_protocol"
    package.mkdir()
    for name in ("__init__", "run", "algorithm"):
        (package / f"{name}.py").write_text('"""A protocol."""\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    protocol = SimpleNamespace(name="lone", run=SimpleNamespace(__module__="lone_protocol.run"))
    before = code_digest(protocol)
    assert code_digest(protocol) == before
    (package / "algorithm.py").write_text('"""Another algorithm."""\n')
    assert code_digest(protocol) != before


def test_a_changed_source_of_the_framework_changes_the_digest(tmp_path, monkeypatch):
    copy = tmp_path / "fedactors"
    shutil.copytree(Path(fedactors.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(fedactors, "__file__", str(copy / "__init__.py"))
    before = code_digest(find_protocol("glasu"))
    (copy / "errors.py").write_text((copy / "errors.py").read_text() + "\n")
    assert code_digest(find_protocol("glasu")) != before


def test_changed_data_change_the_digest(tmp_path):
    (tmp_path / "bank.csv").write_text("id,x\n1,2\n")
    (tmp_path / "data.toml").write_text('[parties.bank]\npath = "bank.csv"\n')
    name = str(tmp_path / "data.toml")
    before = data_digest(name)
    assert data_digest(name) == before
    (tmp_path / "bank.csv").write_text("id,x\n1,3\n")
    changed = data_digest(name)
    (tmp_path / "data.toml").write_text('[parties.shop]\npath = "bank.csv"\n')
    assert len({before, changed, data_digest(name)}) == 3
    with pytest.raises(BadInput, match="does not exist"):
        data_digest(str(tmp_path / "none.toml"))


def test_a_changed_file_of_a_data_set_changes_the_digest(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDACTORS_DATA", str(tmp_path))
    monkeypatch.setenv("FEDACTORS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "bank").mkdir()
    file = tmp_path / "bank" / "bank-additional.zip"
    file.write_bytes(b"one")
    before = data_digest("bank")
    file.write_bytes(b"two")
    assert data_digest("bank") != before


def test_the_command_gives_the_same_run_again():
    settings = {"layers": None}  # what no protocol has is refused before anything runs
    with pytest.raises(BadInput, match=r"layers: unknown key; did you mean num_layers\?"):
        planned([settings])
    (trial,) = planned([{"deadline": "inf", "feature_split": "[10,20]", "batch_size": 32}], smoke=True)
    words = shlex.split(trial.command)
    assert words[:3] == ["fedactors", "run", "pubsub-vfl"]
    assert "--smoke" in words
    given = parse_words([word for word in words if "=" in word])
    protocol = find_protocol("pubsub-vfl")
    assert as_dict(build(protocol.Config, {**protocol.smoke, **given})) == trial.config


@pytest.mark.slow
def test_a_finished_run_is_a_row_and_another_time_the_same():
    (trial,) = planned([TINY])
    row, again = run_trial(trial), run_trial(trial)
    assert (row.status, row.failure, row.digest) == ("finished", None, trial.digest)
    assert row.config == trial.config
    assert row.curve["round"] == [1, 2]
    assert row.curve["seconds"] == sorted(row.curve["seconds"])
    assert 0 < row.metrics["test/auc"] <= 1
    assert dataclasses.replace(row, wall_seconds=0.0) == dataclasses.replace(again, wall_seconds=0.0)


@pytest.mark.slow
def test_a_failed_run_is_a_row_that_says_why():
    settings = {"num_clients": 4, "num_tokens": 2, "num_samples": 60, "num_features": 24, "num_hops": 1}
    (trial,) = plan(
        find_protocol("mtcd"),
        [{**settings, "min_cluster_size": 1, "num_local_steps": 5, "num_rounds": 30, "learning_rate": 10.0}],
        RunOptions(runtime="simulated"),
    )
    row = run_trial(trial)
    assert (row.status, row.metrics) == ("failed", {})
    assert "learning_rate" in row.failure
    assert row.config["learning_rate"] == 10.0
