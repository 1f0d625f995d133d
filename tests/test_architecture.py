"""The rules of the house: who may import whom, what loads what, and what files look like."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).resolve().parents[1]
HOUSE = sorted((ROOT / "fedactors").rglob("*.py"))
PROTOCOLS = sorted((ROOT / "protocols").rglob("*.py"))
SCENARIOS = sorted((ROOT / "scenarios").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
SOURCES = [*HOUSE, *PROTOCOLS, *SCENARIOS]
PROTOCOL_NAMES = sorted(p.name for p in (ROOT / "protocols").iterdir() if (p / "__init__.py").exists())
ALGORITHMS = [p for p in PROTOCOLS if p.name == "algorithm.py"]
SAME = {"__init__", "plugin", "config", "messages", "data", "algorithm", "actors", "run"}
"""Files that every protocol has."""
WHERE_NEEDED = {"serving", "baselines", "privacy", "planner"}
"""Where a trained model can be used, a baseline is more than a setting, settings can be planned."""
MOST_ROOMS = 5
NEVER_WAIT = {"algorithm", "config", "messages", "plugin"}
"""Modules of mathematics and of facts."""
LIGHT = ("asyncio", "ray", "threading", "socket", "time", "concurrent", "multiprocessing")
SIMULATING = "dry_run"
"""The file of a protocol that simulates runs of its own, for its planner."""
EXPORTING = ("fedactors/__init__.py", "fedactors/testing/__init__.py")
"""Packages whose names are used from the package itself."""
# written in two pieces, so that this file passes its own test
FORBIDDEN = [
    "sub" + "agent",
    "help" + "er session",
    "this " + "workplace",
    "/wo" + "rk/",
    "/opt" + "/fa",
    "/tmp" + "/build",
]
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|NotImplemented" + r"Error)\b")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imports(path: Path) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Return a file's imports, and whether each is for type checking only."""
    found: dict[ast.Import | ast.ImportFrom, bool] = {}
    for node in ast.walk(parsed(path)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.setdefault(node, False)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            inner = (one for part in node.body for one in ast.walk(part))
            found |= {one: True for one in inner if isinstance(one, (ast.Import, ast.ImportFrom))}
    return list(found.items())


def imported(path: Path, *, at_run_time: bool = False) -> set[str]:
    """Return the modules that a file imports; with `at_run_time` without those for type checking only."""
    found: set[str] = set()
    for node, is_for_types in imports(path):
        if is_for_types and at_run_time:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        else:
            assert node.level == 0, f"{relative(path)}: imports are absolute"
            module = node.module or ""
            found.add(module)
            found.update(f"{module}.{alias.name}" for alias in node.names)
    return found


def roots(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imported(path)}


def offences(paths: Iterable[Path], check: Callable[[Path], Iterable[str]]) -> list[str]:
    return [f"{relative(path)}: {text}" for path in paths for text in check(path)]


def test_there_is_something_to_check() -> None:
    assert len(HOUSE) > 30
    assert len(PROTOCOL_NAMES) == 6


def test_only_one_folder_imports_ray() -> None:
    others = [path for path in SOURCES if not relative(path).startswith("fedactors/runtime/ray/")]
    assert offences(others, lambda path: ["imports ray"] if "ray" in roots(path) else []) == []


def test_the_framework_knows_no_protocol() -> None:
    def check(path: Path) -> Iterator[str]:
        yield from (f"imports {name}" for name in {"protocols", "scenarios", "tests"} & roots(path))
        text = path.read_text()
        yield from (f"names {name}" for name in PROTOCOL_NAMES if re.search(rf"protocols[./]{name}", text))

    assert offences(HOUSE, check) == []


def test_a_protocol_imports_no_other_protocol_and_no_runtime() -> None:
    def check(path: Path) -> Iterator[str]:
        own = path.relative_to(ROOT / "protocols").parts[0]
        for name in imported(path):
            if name.startswith("protocols.") and name.split(".")[1] != own:
                yield f"imports {name}"
            if name.startswith(("fedactors.runtime.ray", "scenarios", "tests")):
                yield f"imports {name}"
            if name.startswith("fedactors.runtime.simulation.runtime") and path.stem != SIMULATING:
                yield f"imports {name}"

    assert offences(PROTOCOLS, check) == []


def test_every_protocol_has_the_same_files_and_few_rooms_of_its_own() -> None:
    for name in PROTOCOL_NAMES:
        folder = ROOT / "protocols" / name
        files = {path.stem for path in folder.glob("*.py")} | (
            {"baselines"} if (folder / "baselines").is_dir() else set()
        )
        assert files >= SAME, f"{name} lacks {sorted(SAME - files)}"
        rooms = files - SAME - WHERE_NEEDED
        assert len(rooms) <= MOST_ROOMS, f"{name} has {sorted(rooms)}"


def test_mathematics_and_facts_do_not_wait() -> None:
    def check(path: Path) -> Iterator[str]:
        yield from (f"imports {name}" for name in roots(path) & set(LIGHT))
        waits = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
        yield from (f"waits in line {n.lineno}" for n in ast.walk(parsed(path)) if isinstance(n, waits))

    assert offences([path for path in PROTOCOLS if path.stem in NEVER_WAIT], check) == []


def test_the_frameworks_state_machines_do_not_wait() -> None:
    machines = [path for path in HOUSE if path.name in ("links.py", "ledger.py")]
    assert len(machines) == 2
    assert offences(machines, lambda path: roots(path) & set(LIGHT)) == []


def test_modules_do_not_import_in_circles() -> None:
    names = {relative(path).removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in SOURCES}
    graph = networkx.DiGraph(
        (name, other) for name, path in names.items() for other in imported(path, at_run_time=True) if other in names
    )
    assert [sorted(circle) for circle in networkx.strongly_connected_components(graph) if len(circle) > 1] == []


def loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(found.stdout.split())


def test_importing_the_package_is_light() -> None:
    assert not {"torch", "ray", "numpy", "pydantic", "msgpack"} & loaded_by("import fedactors")


@pytest.mark.slow
def test_importing_the_mathematics_does_not_load_ray() -> None:
    modules = [relative(p).removesuffix(".py").replace("/", ".") for p in ALGORITHMS]
    assert modules
    loaded = loaded_by("\n".join(f"import {module}" for module in modules))
    assert "ray" not in loaded
    assert not [name for name in loaded if name.startswith("fedactors.runtime.ray")]


@pytest.mark.slow
def test_the_frame_loads_neither_torch_nor_ray() -> None:
    rooms = ["actor", "roles", "remote", "rounds", "parties", "serving", "network.codec", "network.ledger"]
    rooms += [
        "network.links",
        "data.alignment",
        "learning.optimizers",
        "privacy.releases",
        "runtime.base",
        "runtime.simulated",
    ]
    loaded = loaded_by("\n".join(f"import fedactors.{room}" for room in rooms))
    assert not {"torch", "ray"} & loaded


def test_package_files_hold_a_docstring_only() -> None:
    def check(path: Path) -> Iterator[str]:
        body = parsed(path).body
        if not (body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)):
            yield "a package says what it is for"
        for node in body[1:]:
            exported = isinstance(node, ast.ImportFrom) or ast.unparse(node).startswith(
                ("__version__ = ", "__all__ = ")
            )
            if not (relative(path) in EXPORTING and exported):
                yield ast.unparse(node)

    assert offences([path for path in SOURCES if path.name == "__init__.py"], check) == []


def test_namespaces_have_no_package_file() -> None:
    assert not (ROOT / "protocols" / "__init__.py").exists()
    assert not [relative(p) for p in TESTS if p.name == "__init__.py"]


def test_no_file_is_named_for_nothing() -> None:
    assert not [relative(p) for p in SOURCES if p.stem in ("utils", "util", "helpers", "misc", "common", "manager")]


def test_text() -> None:
    def check(path: Path) -> Iterator[str]:
        text = path.read_text()
        if path.resolve() != Path(__file__).resolve():
            yield from (word for word in FORBIDDEN if word in text.lower())
            yield from UNFINISHED.findall(text)
        if path in SOURCES and text.strip() and not ast.get_docstring(parsed(path)):
            yield "a module says what it is for"

    assert offences([*SOURCES, *TESTS], check) == []


@pytest.mark.docs
def test_the_page_names_every_file_of_the_frame_and_of_its_runtimes() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    frame = [*(ROOT / "fedactors").glob("*.py"), *(ROOT / "fedactors/runtime").rglob("*.py")]
    names = [path.stem for path in frame if not path.stem.startswith("__")]
    assert [name for name in names if not re.search(rf"\b{name}\b", page)] == []


@pytest.mark.docs
def test_the_page_says_how_long_the_walk_is() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    walk = re.findall(r"`([\w/]+\.py)`", page.split("**From the command to a step.**")[1].split("\n\n")[0])
    assert f"passes {len(walk)} files" in page
