"""Real sweeps through the command line: with several processes, killed and gone on with, with failures."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from fedactors.cli import main as cli
from fedactors.runs.compare import NO_INTERVAL
from fedactors.runs.table import RunRow, read_facts, read_table
from fedactors.sweeps import Criterion, Sweep, choose

ROOT = Path(__file__).parents[2]
TINY = ["num_layers=2", "hidden_size=8", "embedding_size=4", "batch_size=64", "num_epochs=2"]


def run(capsys, *words):
    code = cli.main(["sweep", *words, "--format", "json", "--quiet"])
    printed = capsys.readouterr()
    return code, json.loads(printed.out.splitlines()[-1]) if code in (0, 3) else printed.err


@pytest.mark.slow
def test_two_processes_give_what_one_gives_and_the_cache_keeps_it(tmp_path, capsys):
    words = ["pubsub-vfl", *TINY, "learning_rate=0.01,0.03", "--seeds", "0,1", "--choose", "validation/loss:min"]
    code, found = run(capsys, *words, "--jobs", "2", "--out", str(tmp_path / "two"))
    assert (code, found["runs"], found["cached"], found["failed"]) == (0, 4, 0, 0)
    assert found["choice"]["settings_tried"] == 2
    rows = read_table(found["table"])
    assert [(row.config["learning_rate"], row.seed) for row in rows] == [(0.01, 0), (0.01, 1), (0.03, 0), (0.03, 1)]
    assert read_facts(found["table"])["choice"] == found["choice"]
    _, alone = run(capsys, *words, "--out", str(tmp_path / "one"))
    for one, two in zip(read_table(alone["table"]), rows, strict=True):
        assert {**one.as_dict(), "wall_seconds": 0} == {**two.as_dict(), "wall_seconds": 0}
    _, again = run(capsys, *words, "push_every=0", "--out", str(tmp_path / "one"))
    assert again["cached"] == 0
    _, more = run(capsys, *words[:6], "learning_rate=0.03,0.1", "--seeds", "0,1", "--out", str(tmp_path / "one"))
    assert (more["runs"], more["cached"]) == (4, 2)
    _, anew = run(capsys, *words, "--again", "--out", str(tmp_path / "one"))
    assert anew["cached"] == 0


@pytest.mark.slow
def test_the_row_of_a_sweep_is_what_its_command_gives(tmp_path, capsys):
    _, found = run(capsys, "pubsub-vfl", *TINY, "--out", str(tmp_path))
    (row,) = read_table(found["table"])
    words = row.command.split()[1:]
    assert cli.main([*words, "--out", str(tmp_path / "runs"), "--format", "json", "--quiet"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["metrics"] == row.metrics
    assert summary["bytes"] == row.usage["bytes"]


@pytest.mark.slow
def test_a_failed_run_is_a_row_and_the_others_go_on(tmp_path, capsys):
    words = [
        "mtcd",
        "--smoke",
        "num_rounds=30",
        "min_cluster_size=1",
        "learning_rate=10.0,1e-6",
        "--out",
        str(tmp_path),
    ]
    code, found = run(capsys, *words)
    assert (code, found["failed"]) == (0, 1)
    bad, good = read_table(found["table"])
    assert (bad.status, good.status) == ("failed", "finished")
    assert "learning_rate" in bad.failure
    assert "learning_rate" in found["settings"][0]["failed"]["0"]
    # a failure is tried again, what was finished is not
    _, again = run(capsys, *words)
    assert again["cached"] == 1
    assert run(capsys, *words[:4], "learning_rate=10.0", "--out", str(tmp_path))[0] == 3


def test_everything_is_checked_before_anything_runs(tmp_path, capsys):
    out = ["--out", str(tmp_path / "sweeps")]
    for words, message in (
        (["learning_rat=0.1,0.2"], "learning_rat: unknown key; did you mean learning_rate?"),
        (["batch_size=64,zero"], "batch_size: 'zero' is not allowed"),
        (["--choose", "auc"], "--choose: 'auc' is not allowed"),
        (["--jobs", "0"], "'0' is not allowed"),
        (["--jobs", "2", "--address", "auto"], "--jobs is not allowed with --address"),
        (["--runtime", "ray", "--address", "auto"], "--address: needs --runtime simulated"),
        (["--name", "a/b"], "--name: 'a/b' is not allowed"),
        (["--data", "cora"], "--data: 'cora' is not allowed: pubsub-vfl needs vertical data"),
    ):
        code, text = run(capsys, "pubsub-vfl", *words, *out)
        assert (code, message in text) == (2, True), text
    assert not (tmp_path / "sweeps").exists()


def test_a_dry_run_lists_and_runs_nothing(tmp_path, capsys):
    words = ["sweep", "pubsub-vfl", *TINY, "learning_rate=0.01,0.03", "--out", str(tmp_path), "--dry-run"]
    assert cli.main(words) == 0
    text = capsys.readouterr().out
    assert text.count("to run  fedactors run pubsub-vfl") == 2
    assert "2 runs, 0 of them cached" in text
    assert list(tmp_path.iterdir()) == []


def heed_interrupts():
    """Undo what tests that run in the background of a shell inherit: there an interrupt is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def begin(tmp_path, *epochs):
    """Start a sweep whose last run takes very long, and return it when the others are cached."""
    words = ["pubsub-vfl", *TINY[:-1], f"num_epochs={','.join(map(str, epochs))}", "--jobs", "2"]
    command = [sys.executable, "-m", "fedactors", "sweep", *words, "--quiet", "--out", str(tmp_path / "sweeps")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    )
    until = time.monotonic() + 120
    try:
        while len(list(tmp_path.glob("sweeps/cache/*.json"))) < len(epochs) - 1:
            assert time.monotonic() < until
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
    except AssertionError:
        process.kill()
        raise
    workers = [child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline())]
    assert len(workers) == 2
    return process, workers


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_sweep_that_is_ended_leaves_no_process_and_goes_on(tmp_path, capsys, number):
    process, workers = begin(tmp_path, 2, 3, 1_000_000)
    process.send_signal(number)
    try:
        _, text = process.communicate(timeout=60)
    finally:
        process.kill()
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "interrupted" in text
        assert len(read_table(tmp_path / "sweeps" / "pubsub-vfl.parquet")) == 2
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive
    words = ["pubsub-vfl", *TINY[:-1], "num_epochs=2,3,4", "--out", str(tmp_path / "sweeps")]
    _, found = run(capsys, *words)
    assert (found["runs"], found["cached"]) == (3, 2)


@pytest.mark.slow
def test_a_table_is_compared_and_reported(tmp_path, capsys):
    _, found = run(capsys, "pubsub-vfl", *TINY, "learning_rate=0.01,0.03", "--seeds", "0,1,2", "--out", str(tmp_path))
    plot = str(tmp_path / "plot.png")
    assert cli.main(["compare", found["table"], "--format", "json", "--plot", plot]) == 0
    comparison = json.loads(capsys.readouterr().out)
    assert [group["label"] for group in comparison["groups"]] == [
        "pubsub-vfl learning_rate=0.01",
        "pubsub-vfl learning_rate=0.03",
    ]
    (gap,) = comparison["differences"]
    low, high = gap["metrics"]["test/auc"]["ci95"]
    assert low <= gap["metrics"]["test/auc"]["difference"] <= high
    assert Path(plot).stat().st_size > 1000
    assert cli.main(["report", found["table"]]) == 0
    page = (tmp_path / "pubsub-vfl.html").read_text()
    assert "learning_rate=0.03" in page
    assert "fedactors run pubsub-vfl" in page
    assert page.count("<polyline") >= 2
    assert NO_INTERVAL not in page


@pytest.mark.slow
def test_a_page_of_two_seeds_a_setting_states_no_difference_and_says_why(tmp_path, capsys):
    _, found = run(capsys, "pubsub-vfl", *TINY, "learning_rate=0.01,0.03", "--seeds", "0,1", "--out", str(tmp_path))
    assert cli.main(["report", found["table"]]) == 0
    page = (tmp_path / "pubsub-vfl.html").read_text()
    (auc,) = re.findall("<tr><td>test/auc</td>.*?</tr>", page)
    assert auc.count("<td>") == 3, "the metric, and its values at either rate"
    assert f"{NO_INTERVAL}</p>" in page


def test_who_chooses_sees_validation_metrics_and_what_chose(capsys):
    metrics = {"test/auc": 0.9, "validation/f1": 0.5}
    rows = [
        RunRow(protocol="p", seed=seed, config={"a": 1}, digest=f"{seed}", metrics=metrics, curve=curve)
        for seed, curve in ((0, {"validation/auc": [0.6, 0.7]}), (1, {"validation/auc": [0.8, 0.5]}))
    ]
    trial = SimpleNamespace(digest="0", settings={"a": 1}, label="a=1 seed 0")
    trials = [trial, SimpleNamespace(digest="1", settings={"a": 1})]
    criterion = Criterion.parse("validation/auc:max")
    choice = choose(rows, criterion, {one.digest: one.settings for one in trials})
    cli._show(Sweep(table=Path("t"), rows=rows, num_cached=0, choice=choice), trials, "text")
    text = capsys.readouterr().out
    assert "validation/auc" in text.splitlines()[0]
    assert "validation/f1" in text
    assert "test/" not in text
    assert "0.7500 ± 0.0707" in text
    cli._progress(criterion, 1, 2, trial, rows[0])
    assert "a=1 seed 0: validation/auc 0.7000" in capsys.readouterr().err
    cli._progress(None, 1, 2, trial, rows[0])
    assert "test/auc 0.9000" in capsys.readouterr().err
