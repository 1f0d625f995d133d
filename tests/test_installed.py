"""The wheel, in a fresh environment away from its sources: what a stranger gets, and a folder that stands in its way.

The environment sees the packages of this one (there is no network), but neither the repository nor what links to it.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = [pytest.mark.walk, pytest.mark.slow, pytest.mark.xdist_group("installed"), pytest.mark.drawn(None)]

ROOT = Path(__file__).parents[1]
BUILT_IN = ["glasu", "horizontal", "mtcd", "nebulafl", "pubsub-vfl", "tablepuppet"]


@pytest.fixture(scope="module")
def binaries(tmp_path_factory):
    """The folder of the fresh environment's commands, with a new protocol of ours installed beside the wheel."""
    folder = tmp_path_factory.mktemp("stranger")
    source = folder / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "fedactors", source / "fedactors", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    fresh = folder / "env" / "bin" / "python"
    ask = [str(fresh), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.check_output(ask, text=True).strip())
    # a folder that a .pth file names is searched, the .pth files in it (an editable install) are not read
    (site / "parent.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    pip = [str(fresh), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation"]
    outside = kept()
    subprocess.run([*pip, "wheel", *offline, "--wheel-dir", str(folder), str(source)], check=True, env=outside)
    (wheel,) = folder.glob("fedactors-*.whl")
    subprocess.run([*pip, "install", *offline, "--ignore-installed", str(wheel)], check=True, env=outside)
    call(fresh.parent, ["fedactors", "new", "protocol", "secure-mean"], folder)
    subprocess.run([*pip, "install", *offline, str(folder / "secure-mean")], check=True, env=outside)
    return fresh.parent


def kept() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def attempt(binaries: Path, words: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**kept(), "OMP_NUM_THREADS": "1"}
    return subprocess.run([binaries / words[0], *words[1:]], cwd=cwd, env=environment, capture_output=True, text=True)


def call(binaries: Path, words: list[str], cwd: Path) -> str:
    done = attempt(binaries, words, cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_comes_from_the_wheel_with_its_types(binaries, tmp_path):
    code = "import fedactors, pathlib; print(pathlib.Path(fedactors.__file__).parent)"
    package = Path(call(binaries, ["python", "-c", code], tmp_path).strip())
    assert package.is_relative_to(binaries.parent)
    assert (package / "py.typed").is_file()


def test_it_lists_all_protocols(binaries, tmp_path):
    listed = json.loads(call(binaries, ["fedactors", "list", "--format", "json"], tmp_path))
    assert {entry["name"]: entry["error"] for entry in listed["protocols"]} == dict.fromkeys([*BUILT_IN, "secure-mean"])


@pytest.mark.drawn(2, always=["secure-mean"])  # the pages of the protocols run each of them, from its sources
@pytest.mark.parametrize("name", [*BUILT_IN, "secure-mean"])
def test_a_protocol_runs_and_its_report_is_written(binaries, tmp_path, name):
    words = ["fedactors", "run", name, "--smoke", "--runtime", "simulated", "--quiet", "--format", "json"]
    summary = json.loads(call(binaries, words, tmp_path).splitlines()[-1])
    assert summary["protocol"] == name
    assert summary["rounds"] > 0
    page = call(binaries, ["fedactors", "report", summary["run"]], tmp_path).strip()
    assert name in (tmp_path / page).read_text()


def test_a_new_scenario_runs(binaries, tmp_path):
    call(binaries, ["fedactors", "new", "scenario", "mine", "--protocol", "secure-mean"], tmp_path)
    call(binaries, ["python", "mine.py", "--smoke", "--runtime", "simulated", "--quiet"], tmp_path)


def test_a_users_folder_called_protocols_hides_nothing(binaries, tmp_path):
    (tmp_path / "protocols").mkdir()
    (tmp_path / "protocols" / "__init__.py").write_text("")
    words = ["python", "-m", "fedactors", "run", "mtcd", "--smoke", "--runtime", "simulated", "--quiet"]
    call(binaries, words, tmp_path)
    listed = json.loads(call(binaries, ["fedactors", "list", "--format", "json"], tmp_path))
    assert [entry["name"] for entry in listed["protocols"] if entry["error"]] == []


def test_a_users_package_that_hides_a_plugin_is_named_in_one_line(binaries, tmp_path):
    hiding = tmp_path / "secure_mean"
    hiding.mkdir()
    (hiding / "__init__.py").write_text("")
    for start in (["fedactors"], ["python", "-m", "fedactors"]):
        done = attempt(binaries, [*start, "run", "secure-mean", "--smoke", "--runtime", "simulated"], tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.splitlines() == [
            f"fedactors: protocol secure-mean: {hiding} hides its module 'secure_mean.plugin': "
            "rename it, or start from another folder"
        ]
        text = call(binaries, [*start, "list"], tmp_path)
        (line,) = [line for line in text.splitlines() if str(hiding) in line]
        assert line == f"{hiding} hides secure-mean: rename it, or start from another folder"
        assert "BROKEN" not in text
        assert "breast-cancer" in text
    listed = json.loads(call(binaries, ["fedactors", "list", "--format", "json"], tmp_path))
    assert [entry["name"] for entry in listed["protocols"] if str(hiding) in (entry["error"] or "")] == ["secure-mean"]


def test_a_users_module_that_hides_a_plugin_is_named_too(binaries, tmp_path):
    (tmp_path / "secure_mean.py").write_text("")
    done = attempt(binaries, ["fedactors", "run", "secure-mean"], tmp_path)
    assert done.returncode == 2
    assert f"{tmp_path / 'secure_mean.py'} hides its module" in done.stderr


def test_the_wheel_installs_one_package(binaries):
    (facts,) = binaries.parent.glob("lib/*/site-packages/fedactors-*.dist-info")
    assert facts.joinpath("top_level.txt").read_text().split() == ["fedactors"]
    names = {line.partition("/")[0] for line in facts.joinpath("RECORD").read_text().splitlines()}
    assert {name for name in names if not name.startswith(("fedactors-", ".."))} == {"fedactors"}
