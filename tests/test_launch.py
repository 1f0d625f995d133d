from __future__ import annotations

import json
from pathlib import Path

import pytest

import fedactors.sweeps
import fedactors.trained  # noqa: F401  (likewise)
from fedactors import launch as launch_module
from fedactors.errors import BadInput, DataMissing, PartyFailed, Stopped
from fedactors.launch import launch, load_data, resolve
from fedactors.options import RunOptions
from fedactors.runs.folder import RunFolder
from fedactors.runs.metrics import combine, read_rounds
from fedactors.runtime.snapshots import seal_driver
from tests import tiny
from tests.tiny import PROTOCOL


@pytest.fixture(autouse=True)
def tiny_runtime(monkeypatch):
    monkeypatch.setattr(launch_module, "make_runtime", tiny.make_runtime)
    pytest.importorskip("fedactors.data.datasets.catalogue")


def go(tmp_path: Path, *words: str, **flags):
    options = RunOptions(out=str(tmp_path / "runs"), quiet=True, **flags)
    config, options = resolve(PROTOCOL, words, options)
    return launch(PROTOCOL, config, options)


def folders(tmp_path: Path) -> list[Path]:
    runs = tmp_path / "runs"
    return sorted(runs.iterdir()) if runs.exists() else []


def test_run_leaves_a_complete_folder_and_returns_its_summary(tmp_path):
    (summary,) = go(tmp_path, "num_rounds=3", seed=5)
    folder = RunFolder.open(summary.run)
    folder.verify()
    assert folder.manifest["status"] == "finished"
    assert (summary.protocol, summary.seed, summary.rounds, summary.runtime) == ("tiny-one", 5, 3, "ray")
    assert (summary.bytes, summary.messages, summary.seconds, summary.idle_seconds) == (4500, 6, 3.0, 0.75)
    assert (summary.cost_usd, summary.header_bytes) == (0.75, 384)
    assert summary.extra == {"data": "breast-cancer/5"}
    assert folder.config["config"]["num_rounds"] == 3
    assert [line["round"] for line in read_rounds(folder)] == [1, 2, 3]
    names = {"config.json", "environment.json", "events.jsonl", "ledger.parquet", "metrics/summary.json"}
    assert names <= folder.manifest["files"].keys()


def test_same_seed_gives_identical_metrics_and_another_does_not(tmp_path):
    runs = [go(tmp_path, seed=seed)[0].run for seed in (0, 0, 1)]
    contents = [(Path(run) / "metrics/round_metrics.jsonl").read_bytes() for run in runs]
    assert contents[0] == contents[1] != contents[2]


def test_seeds_run_one_by_one_with_mean_and_deviation(tmp_path):
    summaries = go(tmp_path, seeds=(0, 1, 2))
    both = combine(summaries)
    scores = [summary.metrics["score"] for summary in summaries]
    assert [run["seed"] for run in both["runs"]] == [0, 1, 2]
    assert both["mean"]["metrics"]["score"] == pytest.approx(sum(scores) / 3)
    assert both["std"]["metrics"]["score"] > 0
    assert both["mean"]["bytes"] == 6000
    assert "seed" not in both["mean"]


def test_smoke_and_full_are_presets_that_words_override(tmp_path):
    assert go(tmp_path, smoke=True)[0].rounds == 2
    assert go(tmp_path, paper=True)[0].rounds == 6
    assert go(tmp_path, "num_rounds=3", smoke=True)[0].rounds == 3


@pytest.mark.parametrize(
    ("words", "flags", "message"),
    [
        (("batch_sise=4",), {}, "batch_sise: unknown key; did you mean batch_size"),
        (("batch_size=0",), {}, "batch_size: '0' is not allowed"),
        ((), {"data": "breast-cancr"}, "unknown data set 'breast-cancr'; did you mean breast-cancer"),
        ((), {"data": "karate"}, "tiny-one needs vertical data, this can be graph"),
        ((), {"data": "nowhere.toml"}, "'nowhere.toml' does not exist"),
        ((), {"smoke": True, "paper": True}, "--smoke is not allowed with --paper"),
        ((), {"track": ("excel",)}, "'excel' is not allowed"),
        ((), {"runtime": "simulated", "address": "10.0.0.1:6379"}, "--address: needs --runtime ray"),
        (("trouble=input",), {}, "num_cpus: 64 is not allowed: the cluster has 2"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_folder(tmp_path, words, flags, message):
    with pytest.raises(BadInput, match=message) as caught:
        go(tmp_path, *words, **flags)
    assert "\n" not in str(caught.value)
    assert folders(tmp_path) == []


PATHS = {
    "zzzz.npz": "'zzzz.npz' does not exist$",
    "nope.csv": "'nope.csv' does not exist; did you mean shop.csv\\?$",
    "shpo.csv": "'shpo.csv' does not exist; did you mean shop.csv\\?$",
    "rows/partys.toml": "'rows/partys.toml' does not exist; did you mean rows/parties.toml\\?$",
    "row/parties.toml": "'row/parties.toml' does not exist: there is no folder 'row'$",
    "SHOP.CSV.GZ": "'SHOP.CSV.GZ' does not exist",
    "s3://bucket/shop.parquet": "'s3://bucket/shop.parquet' is an address, which does not say whose rows",
    "shop.csv": "'shop.csv' is a file of rows, which does not say whose rows .* and give that; in Python",
    "rows": "'rows' is a folder, which does not say whose rows",
    "rows/bank": "'rows/bank' does not exist",
    "bank.of.names": "unknown data set 'bank.of.names'",
    "row": "unknown data set 'row'",
}


@pytest.mark.parametrize("data", PATHS)
def test_a_path_that_is_no_description_is_said_to_be_one(tmp_path, monkeypatch, data):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows").mkdir()
    for name in ("shop.csv", "rows/parties.toml"):
        (tmp_path / name).write_text("")
    with pytest.raises(BadInput, match=f"^(--)?data: {PATHS[data]}") as caught:
        go(tmp_path, data=data)
    assert "\n" not in str(caught.value)


def test_data_missing_leaves_no_folder(tmp_path):
    with pytest.raises(DataMissing):
        go(tmp_path, "trouble=data")
    assert folders(tmp_path) == []


def test_failed_party_keeps_folder_checkpoint_and_original_traceback(tmp_path):
    with pytest.raises(PartyFailed) as caught:
        go(tmp_path, "trouble=party@3")
    (path,) = folders(tmp_path)
    folder = RunFolder.open(path)
    folder.verify()
    assert folder.manifest["status"] == "failed"
    assert (path / "error.txt").read_text() == 'shop/worker-0: ValueError\n  File "shop.py", line 7, in load\n'
    # neither what the party's exception said nor what its cause did
    assert all(b"hush" not in f.read_bytes() and b"no such column" not in f.read_bytes() for f in files_of(path))
    assert caught.value.__notes__ == [
        f"details: {path / 'error.txt'}",
        f"resume with: fedactors.load_run('{path}').resume()",
    ]
    assert [line["round"] for line in read_rounds(folder)] == [1, 2]


def files_of(path: Path) -> list[Path]:
    return [file for file in path.rglob("*") if file.is_file()]


@pytest.mark.parametrize(("trouble", "code"), [("interrupt", 130), ("terminate", 143)])
def test_signal_writes_a_checkpoint_and_the_resumed_run_is_identical(tmp_path, trouble, code):
    whole = go(tmp_path, "num_rounds=4", f"trouble={trouble}@9", seed=3)[0].run
    with pytest.raises(Stopped) as caught:
        go(tmp_path, "num_rounds=4", f"trouble={trouble}@2", seed=3)
    assert caught.value.exit_code == code
    stopped = next(p for p in folders(tmp_path) if RunFolder.open(p).manifest["status"] == "stopped")
    assert [line["round"] for line in read_rounds(RunFolder.open(stopped))] == [1, 2]

    (resumed,) = go(tmp_path, resume=str(stopped), runtime="simulated")
    assert (resumed.seed, resumed.runtime, resumed.rounds) == (3, "simulated", 4)
    child = RunFolder.open(resumed.run)
    assert child.path != stopped
    assert child.manifest["parent"] == stopped.name
    same = "metrics/round_metrics.jsonl"
    assert (child.path / same).read_bytes() == (Path(whole) / same).read_bytes()
    assert child.config["config"] == RunFolder.open(stopped).config["config"]


@pytest.mark.parametrize(
    ("words", "flags", "message"),
    [
        (("batch_size=4",), {}, "key=value words given"),
        ((), {"seed": 0}, "--seed given"),
        ((), {"seeds": (1,), "smoke": True}, "--seeds, --smoke given"),
        ((), {"data": "bank"}, "--data given"),
    ],
)
def test_resume_takes_no_overrides(tmp_path, words, flags, message):
    run = go(tmp_path)[0].run
    with pytest.raises(BadInput, match=f"--resume takes no overrides of what is trained: {message}"):
        go(tmp_path, *words, resume=run, **flags)


def test_resume_of_a_run_of_another_version_names_both(tmp_path, monkeypatch):
    run = go(tmp_path)[0].run
    here = RunFolder.open(run).environment["packages"]["fedactors"]
    monkeypatch.setattr("fedactors.runs.folder._version", lambda name: "9.9" if name == "fedactors" else "1")
    with pytest.raises(BadInput, match=rf"are of fedactors {here}, this is 9\.9: resume it with that version"):
        go(tmp_path, resume=run)


def test_resume_of_a_damaged_or_foreign_folder_is_bad_input(tmp_path):
    run = Path(go(tmp_path)[0].run)
    config = json.loads((run / "config.json").read_text())
    with pytest.raises(BadInput, match="not a run folder"):
        go(tmp_path, resume=str(tmp_path))
    with pytest.raises(BadInput, match="no such run folder"):
        go(tmp_path, resume=str(tmp_path / "none"))
    (run / "config.json").write_text(json.dumps({**config, "seed": 99}))
    with pytest.raises(BadInput, match=r"config\.json is damaged"):
        go(tmp_path, resume=str(run))
    other = RunFolder.create(tmp_path, "other", 0, {**config, "protocol": "mtcd"})
    with pytest.raises(BadInput, match="is a run of 'mtcd', not of 'tiny-one'"):
        go(tmp_path, resume=str(other.path))
    changed = RunFolder.create(tmp_path, "changed", 0, {**config, "config": {"gone": 1}})
    changed.save_checkpoint("r1", {}, seal_driver({}, ()))
    with pytest.raises(BadInput, match=r"config\.json does not fit tiny-one: gone"):
        go(tmp_path, resume=str(changed.path))
    assert len(folders(tmp_path)) == 1


def test_user_data_description_reaches_the_protocol(tmp_path):
    local = tmp_path / "parties.toml"
    local.write_text("")
    assert load_data(PROTOCOL, tiny.TinyConfig(), str(local), 1) == f"{local}/1"


def test_config_with_infinity_and_commas_survives_a_resume(tmp_path):
    with pytest.raises(PartyFailed):
        go(tmp_path, "trouble=party@2")
    (path,) = folders(tmp_path)
    config, _ = resolve(PROTOCOL, [], RunOptions(resume=str(path)))
    assert (config.epsilon, config.names) == (float("inf"), "a, b")


def stored(tmp_path, name, **options):
    """A run folder on Ray whose options are these."""
    config = json.loads((Path(go(tmp_path)[0].run) / "config.json").read_text())
    folder = RunFolder.create(tmp_path, name, 0, {**config, "runtime": "ray", "options": options})
    folder.save_checkpoint("r1", {}, seal_driver({}, ()))
    return str(folder.path)


def test_what_decides_a_run_is_restored_unless_the_command_says_otherwise(tmp_path):
    run = stored(tmp_path, "whole", emulate=0.002, placement={"bank": "a"}, spread="spread", heartbeat_timeout=3.0)
    _, options = resolve(PROTOCOL, [], RunOptions(resume=run))
    found = (options.emulate, options.placement, options.spread, options.heartbeat_timeout)
    assert found == (0.002, (("bank", "a"),), "spread", 3.0)
    _, options = resolve(PROTOCOL, [], RunOptions(resume=run, emulate=0.5, heartbeat_timeout=9.0))
    assert (options.emulate, options.spread, options.heartbeat_timeout) == (0.5, "spread", 9.0)


@pytest.mark.parametrize(
    ("options", "location"),
    [
        ({"emulate": "fast"}, "emulate"),
        ({"emulate": -1.0}, "emulate"),
        ({"pool": 1.5}, "pool"),
        ({"spread": "everywhere"}, "spread"),
        ({"placement": ["bank"]}, "placement"),
        ({"command": "rm"}, "command"),
        ([], ""),
    ],
)
def test_options_of_a_run_folder_that_are_none_are_refused(tmp_path, options, location):
    run = stored(tmp_path, "odd") if not isinstance(options, dict) else stored(tmp_path, "odd", **options)
    if not isinstance(options, dict):
        folder = RunFolder.open(run)
        folder.write_json("config.json", {**folder.config, "options": options})
        folder.write_manifest()
    with pytest.raises(BadInput, match=rf"config\.json.*: options.*{location}"):
        resolve(PROTOCOL, [], RunOptions(resume=run))


@pytest.mark.parametrize("flag", ["out", "data", "address", "resume"])
@pytest.mark.parametrize("value", ["", "  "])
def test_a_flag_that_names_nothing_is_refused(flag, value):
    with pytest.raises(BadInput, match=f"--{flag}: .* is not allowed: it names nothing"):
        resolve(PROTOCOL, [], RunOptions(**{flag: value}))


def test_a_pool_is_refused_where_it_would_be_ignored():
    for runtime in ("ray", None):
        with pytest.raises(BadInput, match="--pool: needs --runtime simulated"):
            resolve(PROTOCOL, [], RunOptions(runtime=runtime, pool=2))
