from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import fedactors.sweeps
import fedactors.trained  # noqa: F401  (likewise)
from fedactors import launch as launch_module
from fedactors.api import load_part
from fedactors.cli import main as cli
from fedactors.cli.terminal import print_metrics
from fedactors.inspection import _type_text
from fedactors.runs.folder import RunFolder
from fedactors.runs.metrics import read_rounds
from tests import tiny
from tests.tiny import install_plugin

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def plugin(tmp_path, monkeypatch):
    install_plugin(tmp_path / "site", tiny_one="tests.tiny:PROTOCOL", broken="tests.no_such:PROTOCOL")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(launch_module, "make_runtime", tiny.make_runtime)
    monkeypatch.chdir(tmp_path)


def run_python(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(cwd / "site")])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["list"]])
def test_help_and_list_load_nothing_heavy(tmp_path, words):
    heavy = ["torch", "ray", "pandas", "sklearn"] + (["pydantic", "numpy"] if "--help" in words else [])
    code = (
        "import sys\nfrom fedactors.cli.main import main\n"
        f"code = main({words!r})\n"
        f"loaded = [name for name in {heavy!r} if name in sys.modules]\n"
        "assert not loaded, loaded\nsys.exit(code)"
    )
    # a fresh interpreter, without the protocol of these tests, which imports pydantic
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_import_of_the_package_is_light(tmp_path):
    done = run_python(
        "import sys, fedactors\nassert not {'torch', 'ray', 'pydantic', 'numpy'} & set(sys.modules)", tmp_path
    )
    assert done.returncode == 0, done.stderr


def last_json(capsys) -> dict:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_run_prints_one_json_object_last(capsys):
    assert cli.main(["run", "tiny_one", "num_rounds=2", "--seed", "4", "--format", "json", "batch_size=16"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out.splitlines()[-1])
    assert captured.out.count("\n") == 1
    keys = "run protocol runtime seed rounds metrics bytes messages seconds wall_seconds cpu_utilisation idle_seconds"
    assert set(keys.split()) <= result.keys()
    assert (result["protocol"], result["seed"], result["rounds"], result["runtime"]) == ("tiny-one", 4, 2, "ray")
    assert Path(result["run"]).parent.name == "runs"
    assert "round 1/2" in captured.err


def test_run_of_several_seeds_prints_runs_mean_and_std(capsys):
    assert cli.main(["run", "tiny-one", "--seeds", "0,1,2", "--smoke", "--quiet", "--format", "json"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert set(result) == {"runs", "mean", "std"}
    assert [run["seed"] for run in result["runs"]] == [0, 1, 2]
    assert captured.err == ""


def test_run_in_words_names_metric_and_folder(capsys):
    assert cli.main(["run", "tiny-one", "--quiet", "--seeds", "0,1"]) == 0
    out = capsys.readouterr().out
    assert "tiny-one (seed 0, ray): score 0." in out
    assert "run: runs/" in out
    assert "±" in out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["run", "tiny-two"], 2, "unknown protocol 'tiny-two'; did you mean tiny-one?"),
        (["run", "broken"], 2, "protocol broken: its plugin 'tests.no_such:PROTOCOL' is broken"),
        (["run", "tiny-one", "batch_size"], 2, "'batch_size' is not of the form key=value"),
        (["run", "tiny-one", "--runtime", "fast"], 2, "--runtime: invalid choice: 'fast'"),
        (["run", "tiny-one", "--seed", "-1"], 2, "--seed"),
        (["run", "tiny-one", "--seeds", "1,1"], 2, "a seed is given twice"),
        (["run", "tiny-one", "--seed", "1", "--seeds", "1,2"], 2, "not allowed with"),
        (["run", "tiny-one", "--no-such-flag"], 2, "--no-such-flag"),
        (["run"], 2, "PROTOCOL"),
        (["walk"], 2, "fedactors: unknown command 'walk' (nearest of 20: "),
        (["rn"], 2, "fedactors: unknown command 'rn'; did you mean run?"),
        (["run", "tiny-one", "--sed", "1"], 2, "unrecognized arguments: --sed 1; did you mean --seed?"),
        (["site", "strat"], 2, "invalid choice: 'strat'; did you mean start? (nearest of 18: start, "),
        (["run", "tiny-one", "trouble=bug@2"], 1, "internal error: RuntimeError: a bug"),
        (["run", "tiny-one", "trouble=party@2"], 3, "shop/worker-0: ValueError: no such column"),
        (["run", "tiny-one", "trouble=data"], 4, "bank: fedactors data fetch bank"),
        (["run", "tiny-one", "trouble=interrupt@2"], 130, "stopped on request"),
        (["run", "tiny-one", "trouble=terminate@2"], 143, "stopped on request"),
        (["run", "tiny-one", "--out", "tiny.txt"], 2, "--out: cannot write"),
        (["compare", "nowhere"], 2, "nowhere: no such run folder"),
        (["report", "."], 2, "not a run folder"),
        (["data", "fetch"], 2, "needs the name"),
        (["data", "fetch", "no-such-set"], 2, "unknown data set"),
        (["plan", "tiny-one", "--profile", "none.toml"], 2, "'none.toml' cannot be read"),
    ],
)
def test_exit_codes_and_one_clear_line(capsys, words, code, message):
    Path("tiny.txt").write_text("")
    assert cli.main([*words, *(["--quiet"] if words[0] == "run" else [])]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    first, *others = captured.err.splitlines()
    assert first.startswith("fedactors: ")
    assert message in first
    if code in (2, 4):
        assert others == []
        assert not list(Path("runs").glob("*")) if Path("runs").exists() else True


def test_failed_party_shows_its_original_traceback(capsys):
    assert cli.main(["run", "tiny-one", "trouble=party@2", "--quiet"]) == 3
    error = capsys.readouterr().err
    assert "ValueError: could not read" in error
    assert "resume with: fedactors run tiny-one --resume runs/" in error


def test_traceback_of_an_internal_error_is_in_the_folder_and_shown_on_request(capsys, monkeypatch):
    assert cli.main(["run", "tiny-one", "trouble=bug@2", "--quiet"]) == 1
    assert "Traceback" not in capsys.readouterr().err
    (path,) = Path("runs").iterdir()
    assert "make_trouble" in (path / "error.txt").read_text()
    monkeypatch.setenv("FEDACTORS_DEBUG", "1")
    cli.main(["run", "tiny-one", "trouble=bug@2", "--quiet"])
    assert "make_trouble" in capsys.readouterr().err


@pytest.mark.slow
def test_real_signals_end_the_process_with_the_documented_code(tmp_path):
    code = (
        "import sys\nfrom fedactors import launch\nfrom fedactors.cli import main as cli\n"
        "from tests import tiny\n"
        "launch.make_runtime = tiny.make_runtime\n"
        "sys.exit(cli.main(['run', 'tiny-one', 'trouble=terminate@2', '--quiet']))"
    )
    done = run_python(code, tmp_path)
    assert done.returncode == 143, done.stderr
    assert "--resume" in done.stderr


@pytest.mark.slow
def test_killed_run_is_resumed_to_the_same_metrics(tmp_path, capsys, monkeypatch):
    code = (
        "import sys\nfrom fedactors import launch\nfrom fedactors.cli import main as cli\n"
        "from tests import tiny\n"
        "launch.make_runtime = tiny.make_runtime\n"
        "cli.main(['run', 'tiny-one', 'trouble=kill@3', '--quiet'])"
    )
    assert run_python(code, tmp_path).returncode == -9
    (killed,) = Path("runs").iterdir()
    # the resumed config would kill this process too, at a round that is still to come
    monkeypatch.setattr(tiny, "make_trouble", lambda kind: None)
    assert cli.main(["run", "tiny-one", "--resume", str(killed), "--quiet", "--format", "json"]) == 0
    resumed = Path(last_json(capsys)["run"])
    assert cli.main(["run", "tiny-one", "--quiet", "--format", "json"]) == 0
    whole = Path(last_json(capsys)["run"])
    name = "metrics/round_metrics.jsonl"
    assert (resumed / name).read_bytes() == (whole / name).read_bytes()


def test_disk_that_fills_up_in_mid_run_keeps_the_last_checkpoint(capsys, monkeypatch):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(kind: str) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))

    monkeypatch.setattr(tiny, "make_trouble", fill)
    try:
        assert cli.main(["run", "tiny-one", "trouble=disk@3", "--quiet"]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "no space left" in capsys.readouterr().err.splitlines()[0]
    (path,) = Path("runs").iterdir()
    folder = RunFolder.open(path)
    folder.verify()
    assert folder.load_checkpoint().label == "round-2"
    assert [line["round"] for line in read_rounds(folder)] == [1, 2]


def test_list_tells_protocols_data_sets_and_which_fit(capsys):
    assert cli.main(["list", "--format", "json"]) == 0
    listed = last_json(capsys)
    by_name = {entry["name"]: entry for entry in listed["protocols"]}
    assert "breast-cancer" in by_name["tiny-one"]["data"]
    assert "karate" not in by_name["tiny-one"]["data"]
    assert "broken" in by_name["broken"]["error"]
    assert any(entry["name"] == "karate" and entry["present"] for entry in listed["datasets"])
    assert cli.main(["list"]) == 0
    assert "tiny-one" in capsys.readouterr().out


def test_lists_fit_80_columns_and_say_what_each_protocol_is_for(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for words in (["list"], ["data", "list"]):
        assert cli.main(words) == 0
        out = capsys.readouterr().out
        assert max(len(line) for line in out.splitlines() if "BROKEN" not in line) <= 80
    assert cli.main(["list", "--format", "json"]) == 0
    built_in = [entry for entry in last_json(capsys)["protocols"] if entry["package"] == "fedactors"]
    assert len(built_in) == 6
    assert all(entry["problem"] for entry in built_in)


def test_data_list(capsys):
    assert cli.main(["data", "list", "--format", "json"]) == 0
    assert "breast-cancer" in {entry["name"] for entry in last_json(capsys)["datasets"]}
    assert cli.main(["data", "fetch", "breast-cancer"]) == 0
    assert "needs no download" in capsys.readouterr().out


def test_plan_reads_profiles(capsys):
    Path("a.toml").write_text("speed = 2.0\n")
    Path("b.json").write_text('{"speed": 3.5}')
    words = ["plan", "tiny-one", "--profile", "a.toml", "b.json", "--format", "json"]
    assert cli.main(words) == 0
    assert last_json(capsys) == {"batch_size": 8, "num_profiles": 2, "speeds": [2.0, 3.5]}


def trained(capsys) -> str:
    assert cli.main(["run", "tiny-one", "--smoke", "--quiet", "--format", "json"]) == 0
    return last_json(capsys)["run"]


@pytest.mark.slow
def test_predict_and_export_use_the_checkpoint(capsys):
    run = trained(capsys)
    ask = ["predict", run, "--data", "breast-cancer", "--runtime", "simulated"]
    assert cli.main([*ask, "--output", "p.csv", "--format", "json"]) == 0
    (told,) = last_json(capsys)["predictions"]
    assert told == {"party": "bank", "to": str(Path("p.csv").resolve()), "rows": 3, "predicted": 2} | {
        **{"without_partner": 1, "refused": 0, "unpredicted": 0},
        "rejections": {"not at shop": 1},
    }
    assert Path("p.csv").read_text() == "breast-cancer/0 ['bank', 'shop/worker-0']"
    assert cli.main(ask) == 0
    assert Path("predictions.parquet").is_file()
    said = capsys.readouterr().out
    assert "bank: 2 of 3 rows predicted" in said
    assert "1 rows without a prediction: not at shop" in said
    assert cli.main([*ask, "--output", "p.npy"]) == 2
    assert cli.main(["export", run, "--party", "shop", "--output", "one"]) == 0
    assert [path.name for path in Path("one").iterdir()] == ["shop"]
    assert cli.main(["export", run, "--output", "out"]) == 0
    assert load_part("out/shop").bottom(torch.ones(1, 1)).item() == 1
    assert sorted(path.name for path in Path("out").iterdir()) == ["bank", "shop"]
    capsys.readouterr()
    assert cli.main(["export", run, "--party", "shoop"]) == 2
    assert "'shoop' is not allowed: one of bank, shop" in capsys.readouterr().err
    assert cli.main(["predict", run, "--data", "breast-cancer", "--checkpoint", "r9"]) == 2


@pytest.mark.slow
def test_compare_and_report_of_real_runs(capsys):
    for size in (8, 16):
        assert cli.main(["run", "tiny-one", f"batch_size={size}", "--seeds", "0,1,2", "--smoke", "--quiet"]) == 0
    runs = sorted(str(path) for path in Path("runs").iterdir())
    capsys.readouterr()
    assert cli.main(["compare", *runs, "--plot", "plot.png", "--format", "json"]) == 0
    made = last_json(capsys)
    assert {group["label"] for group in made["groups"]} == {"tiny-one batch_size=8", "tiny-one batch_size=16"}
    score = made["differences"][0]["metrics"]["score"]
    assert score["ci95"][0] <= score["difference"] <= score["ci95"][1]
    assert Path("plot.png").stat().st_size > 1000
    assert cli.main(["compare", *runs, "--report", "both.html"]) == 0
    told = capsys.readouterr().out
    assert "difference [95 % interval]" in told
    assert "report: both.html" in told
    both = Path("both.html").read_text()
    assert re.search(r"<th[^>]*><button>tiny-one batch_size=\d+ - tiny-one batch_size=\d+", both), (
        "differences beside the groups"
    )
    # what is the default is no part of the command
    assert set(re.findall(r"<code>(fedactors run tiny-one.*?)</code>", both)) == {
        "fedactors run tiny-one num_rounds=2",
        "fedactors run tiny-one batch_size=16 num_rounds=2",
    }
    assert cli.main(["report", *runs]) == 0
    page = Path(capsys.readouterr().out.strip())
    assert page == Path(runs[0]) / "report.html"
    assert "tiny-one batch_size=16" in page.read_text()


def test_inspect_shows_who_receives_every_message_and_what_the_driver_learns(capsys, monkeypatch):
    from tests import tiny_parties

    def shapes(config):
        return {"Step": {"values": (config.num_rounds, 16)}}

    monkeypatch.setattr(tiny_parties, "shapes", shapes, raising=False)
    walk = dataclasses.replace(tiny_parties.PROTOCOL, messages=tiny_parties, actors=tiny_parties.actor_classes)
    monkeypatch.setattr(tiny, "PROTOCOL", walk)
    assert cli.main(["inspect", "tiny-one", "num_rounds=32", "--format", "json"]) == 0
    distance, step = last_json(capsys)["messages"]
    assert (step["message"], step["receiver"], step["reveals"]) == ("Step", "adder", "the step itself")
    assert step["fields"] == [{"name": "values", "type": "NDArray[np.float64]", "shape": "32 x 16"}]
    assert (distance["message"], distance["receiver"], distance["control"]) == ("Distance", "the run's driver", True)
    assert cli.main(["inspect", "tiny-one"]) == 0
    text = capsys.readouterr().out
    assert text.index("Between parties") < text.index("Step -> adder") < text.index("What the run's driver learns")
    assert text.index("What the run's driver learns") < text.index("Distance -> the run's driver")


@pytest.mark.parametrize(
    ("annotation", "written"),
    [
        (NDArray[np.float64], "NDArray[np.float64]"),
        (NDArray[np.uint8], "NDArray[np.uint8]"),
        (NDArray[Any], "NDArray[Any]"),
        (tuple[int, ...], "tuple[int, ...]"),
        (int, "int"),
    ],
)
def test_inspect_writes_types_as_people_do(annotation, written):
    assert _type_text(annotation) == _type_text(written) == written


def test_metrics_that_fill_more_than_a_line_stay_whole(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    metrics = {f"test/metric_{index}": (index + 1) / 10 for index in range(6)}
    print_metrics("tiny (seed 0, simulated)", metrics)
    said = capsys.readouterr().out
    lines = said.splitlines()
    assert max(map(len, lines)) <= 40
    assert len(lines) > 3
    assert lines[0].startswith("tiny (seed 0, simulated):")
    assert all(any(f"{name} {value:.4f}" in line for line in lines) for name, value in metrics.items())
    assert all(line.startswith("  ") for line in lines[1:])


@pytest.mark.slow
def test_a_terminal_gets_whole_words_and_a_pipe_whole_lines():
    """What each message reveals is a sentence: on a screen of 80 columns it goes on below itself."""
    words = [sys.executable, "-m", "fedactors", "inspect", "horizontal", "secure_aggregation=true"]
    piped = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    child = subprocess.Popen(words, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # what Linux says when the other end is closed
        while part := os.read(ours, 1 << 16):
            seen += part
    os.close(ours)
    assert child.wait(60) == 0
    shown = seen.decode().replace("\r\n", "\n")
    assert max(map(len, piped.splitlines())) > 80 >= max(map(len, shown.splitlines()))
    assert shown.split() == piped.split()


def test_several_seeds_end_with_a_table_of_them(capsys):
    assert cli.main(["run", "tiny-one", "--smoke", "--seeds", "0,1", "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "\n2 seeds" in said
    assert re.search(r"\n\S+ +-?[0-9.e+-]+ ± [0-9.e+-]+\n", said)


def test_inspect_leaves_out_what_a_configuration_cannot_send(capsys, monkeypatch):
    from tests import tiny_parties

    monkeypatch.setattr(tiny_parties, "sent", lambda config: (tiny_parties.Distance,), raising=False)
    walk = dataclasses.replace(tiny_parties.PROTOCOL, messages=tiny_parties, actors=tiny_parties.actor_classes)
    monkeypatch.setattr(tiny, "PROTOCOL", walk)
    assert cli.main(["inspect", "tiny-one", "--format", "json"]) == 0
    assert [entry["message"] for entry in last_json(capsys)["messages"]] == ["Distance"]


def test_full_disk_is_one_line_and_leaves_nothing(capsys):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
    try:
        assert cli.main(["run", "tiny-one", "--quiet"]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (line,) = capsys.readouterr().err.splitlines()
    assert "no space left" in line
    assert list(Path("runs").iterdir()) == []
