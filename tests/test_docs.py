"""Every fenced command of the documentation, executed (tests/test_docs_commands.py has the others); the site builds.

A block that begins with ```sh is run by bash; the blocks of a page are one script, in an empty folder. Those that a
page marks with <!-- on the head --> are run on the head of a cluster, by tests/runtime/ray/test_cluster.py.
"""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
_BLOCK = re.compile(r"^(<!-- on the head -->\n)?```sh\n(.*?)^```$", re.M | re.S)


def blocks(page: Path) -> list[tuple[bool, str]]:
    return [(bool(on_head), text) for on_head, text in _BLOCK.findall(page.read_text())]


PAGES = sorted(page for page in DOCS.rglob("*.md") if blocks(page))
LOCAL = [page for page in PAGES if not any(on_head for on_head, _ in blocks(page))]
ON_HEAD = [page for page in PAGES if page not in LOCAL]


def name_of(page: Path) -> str:
    return str(page.relative_to(DOCS))


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    """A fresh environment in which pip may install, with `python`, `pip` and `fedactors` as commands."""
    folder = tmp_path_factory.mktemp("tools")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    binaries = folder / "env" / "bin"
    ask = [str(binaries / "python"), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.check_output(ask, text=True).strip())
    (site / "parent.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")
    for name, module in (("fedactors", "fedactors"), ("pip", "pip")):
        shim = binaries / name
        shim.write_text(f'#!/bin/sh\nexec {binaries}/python -m {module} "$@"\n')
        shim.chmod(0o755)
    return binaries


@pytest.mark.drawn(2, always=["tutorial/first-run.md"])
@pytest.mark.walk
@pytest.mark.ray
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", LOCAL, ids=name_of)
def test_commands_of_a_page(page, tools, tmp_path):
    script = "set -euo pipefail\n" + "\n".join(text for _, text in blocks(page))
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    kept |= {"PATH": f"{tools}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    # what a page installs needs nothing that is not here already, and a test may have no network
    kept |= {"PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_QUIET": "1"}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=kept, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-1500:]}\n{done.stderr[-3000:]}"


@pytest.mark.docs
def test_every_page_is_in_the_navigation_or_a_result():
    listed = (ROOT / "mkdocs.yml").read_text()
    for page in DOCS.rglob("*.md"):
        name = name_of(page)
        assert name in listed or name.startswith(("results/", "protocols/")), name


@pytest.mark.docs
def test_the_reference_has_every_module_that_protocols_use():
    pages = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    local = re.compile(r"^ *(?:from|import) (fedactors(?!\.protocols)(?:\.\w+)+)", re.M)
    sources = [
        path.read_text() for folder in ("protocols", "tests/plugin_package") for path in (ROOT / folder).rglob("*.py")
    ]
    used = {name for text in sources for name in local.findall(text)}
    packages = {name for name in used if (ROOT / name.replace(".", "/")).is_dir()}
    assert len(used) > 40
    assert [name for name in sorted(used - packages) if not re.search(rf"^::: {name}\b", pages, re.M)] == []


@pytest.mark.docs
@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    words = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path),
    ]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert "check_protocol" in (tmp_path / "reference" / "plugins" / "index.html").read_text()
