"""What is imported is declared, and what is declared is imported: a fresh install has all it needs, and no more."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OURS = {"fedactors", "protocols", "scenarios", "tests"}
# the distribution of an import, where it has another name and may not be installed
KNOWN_AS = {"private_set_intersection": "openmined-psi", "sklearn": "scikit-learn", "pkcs11": "python-pkcs11"}


def names(requirements: list[str]) -> set[str]:
    return {canonical(re.split(r"[\[<>=!~; ]", requirement)[0]) for requirement in requirements}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


DECLARED = names(PROJECT["dependencies"])
OPTIONAL = {extra: names(listed) for extra, listed in PROJECT["optional-dependencies"].items()}


def imported(folder: str) -> dict[str, str]:
    """Return the distributions that the files of a folder import, each with one of the files."""
    found: dict[str, str] = {}
    installed = packages_distributions()
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                modules = [str(arg.value) for arg in node.args if isinstance(arg, ast.Constant)]
            for root in {module.partition(".")[0] for module in modules} - sys.stdlib_module_names - OURS:
                name = KNOWN_AS.get(root, installed.get(root, [root])[0])
                found[canonical(name)] = path.relative_to(ROOT).as_posix()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["fedactors", "protocols"])
def test_what_is_installed_imports_only_what_is_declared(folder):
    undeclared = imported(folder).keys() - DECLARED
    assert undeclared <= set().union(*(OPTIONAL[extra] for extra in OPTIONAL if extra != "dev"))
    assert "pytest" not in imported(folder)


@pytest.mark.slow
def test_what_is_declared_is_imported():
    assert not DECLARED - imported("fedactors").keys() - imported("protocols").keys()


@pytest.mark.slow
def test_the_scripts_import_only_what_is_declared():
    # PyTorch Geometric and Flower are what benchmarks are measured against, where they are installed
    optional = set().union(*(OPTIONAL[extra] for extra in OPTIONAL if extra != "dev"))
    assert imported("scenarios").keys() - DECLARED <= {"torch-geometric", "flwr", "pfl", *optional, *local("scenarios")}


def local(folder: str) -> set[str]:
    """Return the names of modules that lie beside the scripts of a folder."""
    return {canonical(path.stem) for path in (ROOT / folder).rglob("*.py")}


@pytest.mark.slow
def test_the_conformance_kit_needs_no_test_runner():
    code = "import sys; sys.modules['pytest'] = None; import fedactors.testing"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_versions_of_python_are_those_that_are_tested():
    stated = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line}
    assert PROJECT["requires-python"] == ">=3.11,<3.15"
    assert stated == {"3.11", "3.12", "3.13", "3.14"}
    matrix = re.search(r"python: \[(.*)\]", (ROOT / ".github/workflows/ci.yml").read_text())
    assert matrix is not None
    assert stated == set(re.findall(r"3\.\d+", matrix[1]))
