"""How many small changes of a file its tests notice: one change of the syntax tree at a time, what survives is printed.

    python -m tests.mutants protocols/mtcd/roaming.py tests/protocols/mtcd/test_roaming.py --number 30
    python -m tests.mutants protocols/mtcd/roaming.py tests/protocols/mtcd/test_roaming.py --lines 40 41
    python -m tests.mutants --table before.jsonl --number 6 [--only protocols/mtcd fedactors/privacy/noise.py]

The last form goes through the files of `tests/mutated.py` and appends a JSON line a change: file, mutant (function,
kind of change, and which of this kind in the function), its line, and whether it was noticed. It does not try again
what the table has. The same seed draws the same changes of a function, wherever it stands, so that two tables compare.
Tests are drawn as `DRAW_SEED` says (tests/drawing.py; `all` runs each).

A change swaps an operator or a comparison, moves a constant, turns a condition, returns None or leaves a statement out.
Annotations, docstrings and the texts of errors are let alone. What is slow to import is imported once; each mutant is a
forked process that imports the changed file in its place and stops at the first test that fails. No file is written.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import importlib.util
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from typing import Any

import pytest

from tests import mutated

ROOT = Path(__file__).resolve().parents[1]
OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.MatMult: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.BitXor: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
Site = tuple[str, int]
"""What is changed, and which node of the tree, in the order of `ast.walk`."""


def sites(tree: ast.Module) -> list[Site]:
    """Return everything that can be changed."""
    silent = set(map(id, _silent(tree)))
    inside = {id(node) for function in ast.walk(tree) if _is_function(function) for node in ast.walk(function)}
    found = []
    for index, node in enumerate(ast.walk(tree)):
        if id(node) not in silent:
            found += [(kind, index) for kind in _kinds(node, id(node) in inside)]
    return found


def _silent(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes that say nothing to a test: annotations, decorators, docstrings, texts."""
    for node in ast.walk(tree):
        parts = [
            getattr(node, "annotation", None),
            getattr(node, "returns", None),
            *getattr(node, "decorator_list", []),
        ]
        if isinstance(node, ast.Raise):
            parts.append(node.exc)
        if isinstance(node, (ast.JoinedStr, ast.Import, ast.ImportFrom)):
            parts.append(node)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            parts.append(node)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            parts.append(node)
        for part in parts:
            if part is not None:
                yield from ast.walk(part)


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


def _kinds(node: ast.AST, is_inside: bool) -> Iterator[str]:
    if isinstance(node, (ast.BinOp, ast.AugAssign, ast.BoolOp)) and type(node.op) in OPERATORS:
        yield "operator"
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OPERATORS:
        yield "comparison"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield "sign"
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        yield "constant"
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        yield "condition"
    if isinstance(node, ast.Return) and node.value is not None:
        yield "result"
    if is_inside and isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr, ast.Raise)):
        yield "statement"


def changed(tree: ast.Module, site: Site) -> ast.Module:
    """Return a copy of the tree with one change."""
    kind, index = site
    tree = copy.deepcopy(tree)
    node: Any = list(ast.walk(tree))[index]
    if kind == "operator":
        node.op = OPERATORS[type(node.op)]()
    elif kind == "comparison":
        node.ops[0] = OPERATORS[type(node.ops[0])]()
    elif kind == "constant":
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1
    elif kind == "condition":
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif kind == "result":
        node.value = ast.Constant(None)
    else:
        tree = _Replaced(node, node.operand if kind == "sign" else ast.Pass()).visit(tree)
    return ast.fix_missing_locations(tree)


class _Replaced(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> Any:
        """Put the new node in the place of the old one."""
        return self._new if node is self._old else self.generic_visit(node)


class InPlace(MetaPathFinder, Loader):
    """Finds a changed tree in the place of the module in a file."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self._path, self._code = path, compile(tree, str(path), "exec")
        self._name = ".".join(path.relative_to(ROOT).with_suffix("").parts)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Return where the module is, if it is the one."""
        if fullname == self._name:
            return importlib.util.spec_from_file_location(fullname, self._path, loader=self)
        return None

    def create_module(self, spec: Any) -> None:
        """Let a module be made as always."""

    def exec_module(self, module: Any) -> None:
        """Run the changed code."""
        exec(self._code, module.__dict__)


def is_noticed(path: Path, tree: ast.Module, tests: Sequence[str], seconds: float) -> bool:
    """Say whether the tests fail, or take too long, with `tree` in the place of the file."""
    child = os.fork()
    if child == 0:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        sys.meta_path.insert(0, InPlace(path, tree))
        os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-m", "not ray", *tests]))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status != 0
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def named(tree: ast.Module) -> dict[str, Site]:
    """Return every change by a name that stays when the function moves: function, kind, which of the kind."""
    functions: dict[int, str] = {}
    for function in ast.walk(tree):  # outer ones come first
        if _is_function(function):
            functions.update(dict.fromkeys(map(id, ast.walk(function)), function.name))  # type: ignore[attr-defined]
    counts: Counter[tuple[str, str]] = Counter()
    nodes, found = list(ast.walk(tree)), {}
    for kind, index in sites(tree):
        inside = functions.get(id(nodes[index]), "")
        found[f"{inside}:{kind}:{counts[inside, kind]}"] = (kind, index)
        counts[inside, kind] += 1
    return found


def by_name(tree: ast.Module, number: int, seed: int) -> list[str]:
    """Return the names of `number` changes, which the seed and the names decide."""
    order = sorted(named(tree), key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())
    return order[:number]


def _time(path: Path, tree: ast.Module, tests: Sequence[str]) -> float:
    """Return the seconds that the tests take with the file as it is."""
    begin = time.monotonic()
    if is_noticed(path, tree, tests, 600.0):
        raise TestsFail(f"{path.relative_to(ROOT)}: the tests fail, or take over ten minutes, as it is")
    return time.monotonic() - begin


class TestsFail(Exception):
    """Nothing can be said of changes: the tests fail without one."""

    __test__ = False


def write_table(table: Path, only: Sequence[str], number: int, seed: int, minutes: float) -> None:
    """Append a line for each change of the files in `tests/mutated.py` that the table does not have."""
    end = time.monotonic() + 60.0 * minutes
    lines = table.read_text().splitlines() if table.exists() else []
    done = {(row["file"], row["mutant"]) for row in map(json.loads, lines)}
    for name, tests in mutated.TESTS.items():
        path = ROOT / name
        if only and not name.startswith(tuple(only)):
            continue
        if not path.exists():
            print(f"{name}: is not there")
            continue
        tree = ast.parse(path.read_text())
        found, nodes, seconds = named(tree), list(ast.walk(tree)), 0.0
        for mutant in by_name(tree, number, seed):
            if (name, mutant) in done:
                continue
            if time.monotonic() > end:
                return print(f"{minutes:g} minutes are over; the same command goes on")
            try:
                seconds = seconds or _time(path, tree, tests)
            except TestsFail as error:
                print(error)
                break
            line = nodes[found[mutant][1]].lineno  # type: ignore[attr-defined]
            noticed = is_noticed(path, changed(tree, found[mutant]), tests, 20.0 + 4.0 * seconds)
            row = {"file": name, "mutant": mutant, "line": line, "noticed": noticed}
            with table.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{name}:{line}: {mutant}: {'noticed' if noticed else 'SURVIVED'}", flush=True)


def main() -> None:
    """Change the file so many times, and print what no test noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("tests", nargs="*")
    parser.add_argument("--table", type=Path, help="go through the files of tests/mutated.py; append to this file")
    parser.add_argument("--only", nargs="+", default=[], metavar="PATH", help="of these, what begins so")
    parser.add_argument("--number", type=int, help="changes that are drawn (default: 30; with --table 6 a file)")
    parser.add_argument("--lines", type=int, nargs="+", metavar="LINE", help="change these lines only, in every way")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default: 0)")
    parser.add_argument("--minutes", type=float, default=60.0, help="when to end before the last of them (default: 60)")
    given = parser.parse_args()
    if bool(given.table) == bool(given.file and given.tests):
        parser.error("give a file and its tests, or --table")
    os.environ.update({"OMP_NUM_THREADS": "1", "DRAW_TOUCHED": ""})
    os.environ.setdefault("DRAW_SEED", "0")
    for name in ("numpy", "scipy.sparse", "torch", "pyarrow", "networkx", "pydantic"):
        importlib.import_module(name)
    if given.table:
        return write_table(given.table, given.only, given.number or 6, given.seed, given.minutes)
    path = given.file.resolve()
    text = path.read_text()
    tree = ast.parse(text)
    begin = time.monotonic()
    try:
        seconds = _time(path, tree, given.tests)
    except TestsFail as error:
        sys.exit(str(error))
    every, nodes = sites(tree), list(ast.walk(tree))
    if given.lines:
        drawn = [site for site in every if nodes[site[1]].lineno in given.lines]  # type: ignore[attr-defined]
    else:
        drawn = sorted(random.Random(given.seed).sample(every, min(given.number or 30, len(every))))
    num_noticed, num_done = 0, 0
    for kind, index in drawn:
        if time.monotonic() - begin > 60.0 * given.minutes:
            break
        num_done += 1
        if is_noticed(path, changed(tree, (kind, index)), given.tests, 20.0 + 4.0 * seconds):
            num_noticed += 1
        else:
            line = nodes[index].lineno  # type: ignore[attr-defined]
            print(f"{given.file}:{line}: {kind}: {text.splitlines()[line - 1].strip()}", flush=True)
    print(f"{given.file}: {num_noticed} of {num_done} noticed ({len(every)} possible; the tests take {seconds:.1f} s)")


if __name__ == "__main__":
    main()
