"""A third party's package, installed by pip into a fresh environment, is used as the built-in protocols are."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.walk,
    pytest.mark.slow,
    pytest.mark.xdist_group("plugin_package"),
    pytest.mark.drawn(1, family="package", subjects=["tests/plugin_package"]),
]

ROOT = Path(__file__).parents[1]
PACKAGE = Path(__file__).parent / "plugin_package"


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A fresh environment that sees this one's packages (pip among them) and gets the third party's from pip."""
    folder = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    fresh = folder / "env" / "bin" / "python"
    site = subprocess.check_output(
        [fresh, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    ).strip()
    (Path(site) / "parent.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")
    shutil.copytree(PACKAGE, folder / "package", ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    install = ["install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", str(folder / "package")]
    subprocess.run([fresh, "-m", "pip", *install], check=True)
    return fresh


def call(python: Path, words: list[str], cwd: Path) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([python, *words], cwd=cwd, env=kept, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_listed(python, tmp_path):
    listed = json.loads(call(python, ["-m", "fedactors", "list", "--format", "json"], tmp_path))
    found = {entry["name"]: entry for entry in listed["protocols"]}
    assert found["fedavg"]["package"] == "acme-protocols"
    assert "digits" in found["fedavg"]["data"]
    assert found["split-learning"]["error"] is None


def run(python: Path, name: str, runtime: str, folder: Path) -> dict:
    words = ["-m", "fedactors", "run", name, "--smoke", "--quiet", "--runtime", runtime, "--format", "json"]
    return json.loads(call(python, words, folder).splitlines()[-1])


@pytest.mark.parametrize("name", ["fedavg", "split-learning"])
def test_it_learns(python, tmp_path, name):
    assert run(python, name, "simulated", tmp_path)["metrics"]["accuracy"] > 0.3


@pytest.mark.ray
def test_it_gives_equal_numbers_on_both_runtimes(python, tmp_path):
    """As a command; that fedavg does so too is part of its contract."""
    simulated, on_ray = (run(python, "split-learning", runtime, tmp_path) for runtime in ("simulated", "ray"))
    assert on_ray["metrics"] == pytest.approx(simulated["metrics"], rel=1e-6)
    assert (on_ray["bytes"], on_ray["messages"]) == (simulated["bytes"], simulated["messages"])


@pytest.mark.ray
def test_it_keeps_the_contract(python, tmp_path):
    code = (
        "from acme_protocols.plugin import FEDAVG, SPLIT_LEARNING\nfrom fedactors.testing import check_protocol\n"
        "if __name__ == '__main__':\n"
        "    check_protocol(SPLIT_LEARNING, on_ray=False, allowed=('Smashed.labels',))\n"
        "    check_protocol(FEDAVG, num_cpus=2)\n"
    )
    (tmp_path / "check.py").write_text(code)
    call(python, ["check.py"], tmp_path)


def test_each_protocol_is_short():
    """As the page for users of Flower says of FedAvg."""
    for name, most in (("fedavg", 130), ("split_learning", 150)):
        assert len((PACKAGE / "acme_protocols" / f"{name}.py").read_text().splitlines()) < most, name
