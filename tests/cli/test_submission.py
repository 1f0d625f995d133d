"""Commands for jobs, as far as they go without a cluster: bad input is one line, results are named where they are."""

from __future__ import annotations

import argparse
import os
import zipfile

import pytest
from ray._private.runtime_env.packaging import create_package

from fedactors.cli import main as cli
from fedactors.cli.jobs import _brought_home, check_paths, is_shared, lay_out, named_locations, staying
from fedactors.cli.main import run_and_print
from fedactors.cli.parsers import parsers
from fedactors.errors import BadInput
from fedactors.options import RunOptions
from tests.tiny_parties import PROTOCOL


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["submit"], "the following arguments are required: PROTOCOL|SCRIPT (see"),
        (["submit", "own.py"], "'own.py': no such script"),
        (["submit", "pubsub-vfl"], "--address: give http://HEAD:8265 of the cluster"),
        (["submit", "pubsub-vfl", "--address", "127.0.0.1:6379"], "jobs go to http://HEAD:8265"),
        (["submit", "pubsub-vfl", "--address", "http://127.0.0.1:9"], "nobody answers at 'http://127.0.0.1:9'"),
        (["submit", "pubsub-vfl", "--working-dir", "nowhere"], "--working-dir: 'nowhere' is no folder"),
        (["submit", "pubsub-vfl", "--runtime-env", "no.json"], "--runtime-env: no.json cannot be read: No such file"),
        (["submit", "pubsub-vfl", "--resume", "nowhere"], "nowhere: no such run folder"),
        (["submit", "pubsub-vfl", "--seeds", "1,1"], "a seed is given twice"),
        (["fetch"], "the following arguments are required: JOB"),
        (["fetch", "some-job"], "--address: give http://HEAD:8265 of the cluster"),
        (["fetch", "some-job", "--address", "http://127.0.0.1:9", "--out", "s3://x"], "is not a local path"),
        (["doctor", "--address", "foo"], "jobs go to http://HEAD:8265"),
    ],
)
def test_what_cannot_be_done_is_one_line(capsys, words, message):
    assert cli.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "--runtime-env: needs.json cannot be read"),
        ("[]", "--runtime-env: list is not allowed: an object of pip, uv, conda, env_vars"),
        ('{"working_dir": "/data"}', "'working_dir' is not allowed"),
        ('{"py_modules": ["/data"]}', "'py_modules' is not allowed"),
        ('{"env_vars": {"A": 1}}', "env_vars is not allowed: an object of texts"),
        ('{"env_vars": ["A"]}', "env_vars is not allowed: an object of texts"),
    ],
)
def test_what_a_job_needs_is_checked_before_it_is_sent(tmp_path, capsys, text, message):
    (tmp_path / "needs.json").write_text(text)
    words = ["submit", "pubsub-vfl", "--address", "http://127.0.0.1:9", "--runtime-env", "needs.json"]
    assert cli.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def described(folder, bank="/data/bank.csv", shop="/data/shop.csv"):
    text = f'[task]\ntype = "binary"\n[parties.bank]\npath = "{bank}"\nlabel = "y"\n[parties.shop]\npath = "{shop}"\n'
    (folder / "parties.toml").write_text(text)
    return folder / "parties.toml"


def test_a_file_of_user_data_is_named_as_its_host_finds_it(tmp_path):
    check_paths(described(tmp_path))
    with pytest.raises(BadInput, match=r"^parties.shop.path: 'data/shop.csv' is not allowed in a job: give the whole"):
        check_paths(described(tmp_path, shop="data/shop.csv"))
    address = described(tmp_path, shop="env:SHOP")
    assert named_locations(address) == {"parties.bank.path": "/data/bank.csv"}


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ('edges = "transfers.csv"', "parties.shop.edges: 'transfers.csv'"),
        ('sparse = "words.csv"', "parties.shop.sparse: 'words.csv'"),
        ('checkpoint_dir = "kept"', "parties.shop.checkpoint_dir: 'kept'"),
        ('checkpoint_key = "file:key"', "parties.shop.checkpoint_key: 'key'"),
    ],
)
def test_so_is_whatever_else_a_description_names(tmp_path, more, named):
    path = described(tmp_path)
    path.write_text(path.read_text() + more)
    with pytest.raises(BadInput, match=rf"^{named} is not allowed in a job"):
        check_paths(path)
    path.write_text(path.read_text().replace(more, 'checkpoint_dir = "s3://bucket/kept"\ncheckpoint_key = "env:KEY"'))
    check_paths(path)


def test_a_relative_path_is_refused_before_the_cluster_is_asked(tmp_path, capsys):
    described(tmp_path, bank="bank.csv")
    assert cli.main(["submit", "pubsub-vfl", "--data", "parties.toml", "--address", "http://127.0.0.1:9"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "parties.bank.path: 'bank.csv' is not allowed in a job" in line


def test_the_description_goes_along_and_no_raw_file(tmp_path):
    """Of what Ray would pack; a file by another name or behind a link is the same file."""
    work, alone, at_home = tmp_path / "work", tmp_path / "alone", tmp_path / "home"
    for folder in (work / "data", work / "data1", alone, at_home / "photos"):
        folder.mkdir(parents=True)
    raw = work / "data" / "#bank [1]*.csv"
    photo = at_home / "photos" / "1.png"
    for file in (raw, photo, work / "data" / "key", work / "my_experiment.py", work / "data1" / "bank 1.csv"):
        file.write_text("secret")
    (work / "again.csv").symlink_to(raw)
    (work / "twin.csv").hardlink_to(raw)
    (work / "linked").symlink_to(at_home)
    path = described(work, bank=str(raw), shop=str(photo.parent))
    path.write_text(path.read_text() + f'checkpoint_key = "file:{work}/data/key"\n')
    assert lay_out(path, alone) == "parties.toml"
    assert [file.name for file in alone.iterdir()] == ["parties.toml"]

    def packed(*patterns: str) -> set[str]:
        package = tmp_path / f"{len(patterns)}.zip"
        create_package(str(work), package, include_gitignore=True, excludes=list(patterns))
        with zipfile.ZipFile(package) as sent:
            return {name for name in sent.namelist() if not name.endswith("/")}

    left = {"parties.toml", "my_experiment.py", "data1/bank 1.csv"}
    assert packed(*staying(path, work)) == left
    assert len(packed()) == len(left) + 5


def test_places_that_can_be_shared():
    assert [is_shared(location) for location in ("runs", "./runs", "/shared/runs", "s3://bucket/runs")] == [
        False,
        False,
        True,
        True,
    ]


def test_a_result_names_the_run_folder_that_was_fetched():
    one = {"run": "/tmp/job/run-0", "rounds": 2}
    assert _brought_home(one, ["runs/run-0"]) == {"run": "runs/run-0", "rounds": 2}
    both = {"runs": [one, {"run": "/tmp/job/run-1"}], "mean": {}}
    home = _brought_home(both, ["runs/run-0", "runs/run-1"])
    assert [run["run"] for run in home["runs"]] == ["runs/run-0", "runs/run-1"]
    assert _brought_home(one, []) == one


@pytest.mark.parametrize(("out", "warned"), [("runs", True), ("shared", False)])
def test_a_run_in_a_job_of_ray_warns_of_a_folder_that_goes_with_it(tmp_path, monkeypatch, capsys, out, warned):
    monkeypatch.setitem(os.environ, "RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    location = out if warned else str(tmp_path / out)
    assert (
        run_and_print(PROTOCOL, [], RunOptions(out=location, runtime="simulated", quiet=True), "fedactors run x") == 0
    )
    assert ("--out runs is relative" in capsys.readouterr().err) == warned


def test_every_command_has_a_handler():
    parser, commands = parsers()
    assert isinstance(parser, argparse.ArgumentParser)
    assert all(callable(getattr(cli, f"{name}_command")) for name in commands)
