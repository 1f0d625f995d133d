"""The rules of the repository layout: who may import whom, what loads what, and what files look like."""

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
FRAMEWORK = sorted((ROOT / "fedactors").rglob("*.py"))
PROTOCOLS = sorted((ROOT / "protocols").rglob("*.py"))
SCENARIOS = sorted((ROOT / "scenarios").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
SOURCES = [*FRAMEWORK, *PROTOCOLS, *SCENARIOS]
PAGE = ROOT / "docs" / "architecture.md"

FLOORS = """
errors validation user_code | privacy | messages | config | network | actors | runs | runtime | learning | secure_sums |
data | plugins | inspection | serving | federation | options | auditing | report | launch | trained | sweeps | api |
testing | cli scenario | __main__
"""
"""The packages and modules of `fedactors` from the lowest floor up: each imports from its own floor and lower ones."""
USERS_OF_RAY = ("fedactors/runtime/ray/", "fedactors/federation/ray_hosting.py")
USERS_OF_CLI = ("fedactors/cli/", "fedactors/scenario.py", "fedactors/__main__.py")
NOT_IN_THE_API = {
    "fedactors.federation": "an operator's commands, on the folder and the log of one site",
    "fedactors.runtime.ray.jobs": "a job runs a command: Python calls Ray's own client",
    "fedactors.data.schema": "a job's description names files, of which none is sent",
    "fedactors.testing.runs": "the demo starts sites as the conformance kit does",
}
"""What commands import beside the modules of the reference, and why."""
NOT_FOR_PROTOCOLS = ("fedactors.runtime.ray", "fedactors.federation", "fedactors.cli", "scenarios", "tests")
EXPORTING = ("fedactors/__init__.py", "fedactors/testing/__init__.py")
"""Packages whose names are used from the package itself."""
MOST_FILES, SHORTEST, LONGEST = 146, 60, 900
LONG_FILES_SAY = "one file because"
"""What the docstring of a longer file gives its reason with."""

PROTOCOL_NAMES = sorted(p.name for p in (ROOT / "protocols").iterdir() if (p / "__init__.py").exists())
ALGORITHMS = [p for p in PROTOCOLS if p.name == "algorithm.py"]
SAME = {"__init__", "plugin", "config", "messages", "data", "algorithm", "actors", "run"}
"""Files that every protocol has."""
WHERE_NEEDED = {"serving", "baselines", "privacy", "planner"}
"""Where a trained model can be used, a baseline is more than a setting, settings can be planned."""
MOST_EXTRA_FILES = 5
NEVER_WAIT = {"algorithm", "config", "messages", "plugin"}
"""Modules of mathematics and of facts."""
LIGHT = ("asyncio", "ray", "threading", "socket", "time", "concurrent", "multiprocessing")
# written in two pieces, so that this file passes its own test
FORBIDDEN = [
    "sub" + "agent",
    "help" + "er session",
    "this " + "workplace",
    "/wo" + "rk/",
    "/opt" + "/fa",
    "/tmp" + "/build",
]
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imports(path: Path) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Return a file's imports, and whether each is for type checking only."""
    found: dict[ast.Import | ast.ImportFrom, bool] = {}
    for node in statements(parsed(path)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.setdefault(node, False)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            found |= {one: True for one in node.body if isinstance(one, (ast.Import, ast.ImportFrom))}
    return list(found.items())


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements below a node; `ast.walk` yields all expressions too, and takes ten times as long."""
    for field in ("body", "handlers", "cases", "orelse", "finalbody"):
        for child in getattr(node, field, ()):
            yield child
            yield from statements(child)


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
    assert len(FRAMEWORK) > 30
    assert len(PROTOCOL_NAMES) == 6


def test_no_package_imports_from_a_higher_floor() -> None:
    """Imports inside functions and for type checking count too."""
    floor = {name: level for level, names in enumerate(FLOORS.split("|")) for name in names.split()}
    packages = {path: path.relative_to(ROOT / "fedactors").parts[0].removesuffix(".py") for path in FRAMEWORK}
    assert set(packages.values()) - {"__init__"} == set(floor)

    def check(path: Path) -> Iterator[str]:
        names = {name.split(".")[1] for name in imported(path) if name.startswith("fedactors.")}
        yield from (name for name in names & set(floor) if floor[name] > floor[packages[path]])

    assert offences([path for path in FRAMEWORK if packages[path] != "__init__"], check) == []


def test_only_the_runtime_and_the_hosts_on_ray_import_ray() -> None:
    others = [path for path in SOURCES if not relative(path).startswith(USERS_OF_RAY)]
    assert offences(others, lambda path: ["imports ray"] if "ray" in roots(path) else []) == []


def test_nothing_imports_the_command_line() -> None:
    def check(path: Path) -> Iterator[str]:
        yield from (name for name in imported(path) if name == "fedactors.cli" or name.startswith("fedactors.cli."))

    assert offences([path for path in FRAMEWORK if not relative(path).startswith(USERS_OF_CLI)], check) == []


def test_commands_import_the_api_and_modules_of_the_reference() -> None:
    """What a command does a script can do as well; see `NOT_IN_THE_API` for what only commands do."""
    pages = "\n".join(path.read_text() for path in (ROOT / "docs" / "reference").rglob("*.md"))
    public = set(re.findall(r"^::: (fedactors\.[\w.]+)$", pages, re.M))
    assert {"fedactors.api", "fedactors.options", "fedactors.sweeps"} <= public
    modules = {relative(path).removesuffix(".py").replace("/", ".") for path in FRAMEWORK}
    commands = [path for path in FRAMEWORK if relative(path).startswith("fedactors/cli/")]
    others = {name for path in commands for name in imported(path) & modules if not name.startswith("fedactors.cli")}
    left = {name for name in others - public if not name.startswith(tuple(NOT_IN_THE_API))}
    assert left == set()
    idle = [name for name in NOT_IN_THE_API if not any(one.startswith(name) for one in others)]
    assert idle == [], "exceptions that nothing needs"


def test_every_command_calls_the_api() -> None:
    """`run` does by `run_and_print`, as scenario scripts do; the others here write texts, and start nothing."""
    found = [node for node in parsed(ROOT / "fedactors/cli/main.py").body if isinstance(node, ast.FunctionDef)]
    commands = {node.name: ast.unparse(node) for node in found if node.name.endswith(("_command", "run_and_print"))}
    assert len(commands) > 10
    without = {name for name, text in commands.items() if not re.search(r"from fedactors\.(api|sweeps) import", text)}
    assert without == {"run_command", "new_command", "completion_command"}


def test_the_framework_knows_no_protocol() -> None:
    def check(path: Path) -> Iterator[str]:
        yield from (f"imports {name}" for name in {"scenarios", "tests"} & roots(path))
        yield from (f"imports {name}" for name in imported(path) if name.startswith("fedactors.protocols"))
        text = path.read_text()
        yield from (f"names {name}" for name in PROTOCOL_NAMES if re.search(rf"protocols[./]{name}", text))

    assert offences(FRAMEWORK, check) == []


def test_a_protocol_imports_no_other_protocol_no_runtime_on_ray_and_no_command() -> None:
    def check(path: Path) -> Iterator[str]:
        local = path.relative_to(ROOT / "protocols").parts[0]
        for name in imported(path):
            if name.startswith("fedactors.protocols.") and name.split(".")[2] != local:
                yield f"imports {name}"
            if name.startswith(NOT_FOR_PROTOCOLS):
                yield f"imports {name}"

    assert offences(PROTOCOLS, check) == []


def test_every_protocol_has_the_same_files_and_few_of_its_own() -> None:
    for name in PROTOCOL_NAMES:
        folder = ROOT / "protocols" / name
        files = {path.stem for path in folder.glob("*.py")} | (
            {"baselines"} if (folder / "baselines").is_dir() else set()
        )
        assert files >= SAME, f"{name} lacks {sorted(SAME - files)}"
        local = files - SAME - WHERE_NEEDED
        assert len(local) <= MOST_EXTRA_FILES, f"{name} has {sorted(local)}"


def test_mathematics_and_facts_do_not_wait() -> None:
    def check(path: Path) -> Iterator[str]:
        yield from (f"imports {name}" for name in roots(path) & set(LIGHT))
        waits = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
        yield from (f"waits in line {n.lineno}" for n in ast.walk(parsed(path)) if isinstance(n, waits))

    assert offences([path for path in PROTOCOLS if path.stem in NEVER_WAIT], check) == []


def test_the_path_of_a_call_knows_no_clock_and_no_transport() -> None:
    pure = [ROOT / "fedactors" / name for name in ("runtime/calls.py", "network/links.py", "messages/ledger.py")]
    assert offences(pure, lambda path: roots(path) & set(LIGHT)) == []


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


def test_the_settings_of_protocols_load_nothing_heavy() -> None:
    """Help, completion and `.ci/light` read them where none of these is installed."""
    modules = sorted(relative(p).removesuffix(".py").replace("/", ".") for p in ROOT.glob("protocols/*/config.py"))
    assert len(modules) == 6
    loaded = loaded_by("\n".join(f"import {module}" for module in modules))
    assert not {"torch", "ray", "cryptography", "pyarrow", "sklearn", "duckdb", "scipy"} & loaded


@pytest.mark.slow
def test_importing_the_mathematics_does_not_load_ray() -> None:
    modules = [relative(p).removesuffix(".py").replace("/", ".") for p in ALGORITHMS]
    assert modules
    loaded = loaded_by("\n".join(f"import {module}" for module in modules))
    assert "ray" not in loaded
    assert not [name for name in loaded if name.startswith("fedactors.runtime.ray")]


@pytest.mark.slow
def test_actors_and_the_simulated_runtime_load_neither_torch_nor_ray() -> None:
    modules = [relative(path).removesuffix(".py").replace("/", ".") for path in FRAMEWORK]
    light: tuple[str, ...] = (
        "actors",
        "messages",
        "network",
        "privacy",
        "runs",
        "plugins",
        "inspection",
        "options",
        "data.alignment",
    )
    light += ("learning.optimizers", "runtime.calls", "runtime.interface", "runtime.rounds", "runtime.simulation")
    chosen = [name for name in modules if name.startswith(tuple(f"fedactors.{one}" for one in light))]
    loaded = loaded_by("\n".join(f"import {name}" for name in chosen))
    assert not {"torch", "ray"} & loaded


def test_package_files_hold_a_docstring_only() -> None:
    def check(path: Path) -> Iterator[str]:
        body = parsed(path).body
        if not (body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)):
            yield "a package says what it is for"
        if relative(path) not in EXPORTING:
            yield from (ast.unparse(node) for node in body[1:])

    assert offences([path for path in SOURCES if path.name == "__init__.py"], check) == []


def test_files_are_few_and_as_long_as_their_idea() -> None:
    def check(path: Path) -> Iterator[str]:
        length = len(path.read_text().splitlines())
        if length < SHORTEST and path.name not in ("__init__.py", "__main__.py"):
            yield f"{length} lines: merge it into the file that uses it"
        if length > LONGEST and LONG_FILES_SAY not in (ast.get_docstring(parsed(path)) or ""):
            yield f"{length} lines: say in its docstring why it is {LONG_FILES_SAY} ..., or find its two ideas"

    assert offences(FRAMEWORK, check) == []
    assert len(FRAMEWORK) <= MOST_FILES


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
def test_the_page_lists_every_file_in_its_package() -> None:
    section = PAGE.read_text().split("## Every file")[1].split("\n## ")[0]
    listed = set()
    for package, rows in re.findall(r"^### `fedactors/([\w/]*)`\n\n(.*?)(?=^### |\Z)", section, re.M | re.S):
        listed |= {f"{package}{name}.py" for name in re.findall(r"^\| `(\w+)` \| ", rows, re.M)}
    local = {path.relative_to(ROOT / "fedactors").as_posix() for path in FRAMEWORK if not path.stem.startswith("__")}
    assert sorted(local - listed) == [], "files that the page does not list"
    assert sorted(listed - local) == [], "files that the page lists and that are gone"


@pytest.mark.docs
def test_the_page_has_the_floors_of_the_packages() -> None:
    drawn = PAGE.read_text().split("## Packages")[1].split("```")[1].split("---")[0]
    names = [name for line in drawn.strip().splitlines() for name in line.split()[1:]]
    assert names[::-1] == FLOORS.replace("|", " ").split()


@pytest.mark.docs
def test_the_page_names_only_what_there_is() -> None:
    paths = re.findall(r"`((?:fedactors|protocols|tests|docs)/[\w/.]+)`", PAGE.read_text())
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []
