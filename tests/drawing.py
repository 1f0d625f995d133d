"""Draw which tests run of those that are too many, or too long, to run for every change.

A family is the cases of one test (or, with `family=`, several tests). Each commit runs a few members of each family,
the next commit the next few, so that all of them run within a number of commits. `DRAW_SEED=7` repeats the draw of
commit 7 and `DRAW_SEED=all` runs every test; the default is the number of commits. `make deep` runs everything.

Drawn are the cases of a test marked ``slow``, ``ray`` or ``walk``, half of a file's such tests without cases, and
everything marked ``drawn``. With `DRAW_RARER=3`, as CI sets it, each of them runs three times as rarely:

    @pytest.mark.drawn(2)                            two cases of this test
    @pytest.mark.drawn(2, family="kills")            two of all tests of this file with this family
    @pytest.mark.drawn(2, always=["mtcd"])           that case and two of the others
    @pytest.mark.drawn(1, of=4)                      a test without cases, in one of four commits
    @pytest.mark.drawn(None)                         all of them, always
    @pytest.mark.drawn(2, subjects=["docs/{page}"])  more that they are about, with the parameters' values

A test whose own file or whose subject was changed since the last commit on ``main`` (on ``main``: by the last commit)
is not drawn: it runs. Its subjects are the package that its folder mirrors, files beside it that hold no tests, and
every path or protocol that is a value of a parameter. A test that the command names by its identifier runs as well.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

ROOT = Path(__file__).resolve().parents[1]
SEED, TOUCHED, RARER = "DRAW_SEED", "DRAW_TOUCHED", "DRAW_RARER"
"""Environment variables; the second has the changed paths, a line each, so that they need not come from git."""
ALL = "all"
CASES = 1
"""Cases of a test that is slow, uses Ray or is a walk and says nothing else."""
HALF = 0
"""As a number: half of the family, so that two following commits run all of it."""
HEAVY = ("slow", "ray", "walk")
FOLDERS = ("", "fedactors/", "fedactors/runtime/", "protocols/", "docs/", "scenarios/")
"""Where a parameter's value, or the folder of a test, may be the name of a subject."""
T = TypeVar("T")


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def seed() -> str:
    """Return the number that decides, or `ALL`."""
    if SEED not in os.environ:
        os.environ[SEED] = _git("rev-list", "--count", "HEAD") or "0"
    return os.environ[SEED]


def touched() -> frozenset[str]:
    """Return the files that differ from the last commit on ``main``, or the last commit's where this is ``main``."""
    if TOUCHED not in os.environ:
        os.environ[TOUCHED] = "\n".join(sorted(_changed()))
    return _lines(os.environ[TOUCHED])


@functools.cache
def _lines(text: str) -> frozenset[str]:
    return frozenset(text.splitlines())


def _changed() -> Iterator[str]:
    head = _git("rev-parse", "HEAD")
    common = (_git("merge-base", "HEAD", name) for name in ("origin/main", "main"))
    base = next((commit for commit in common if commit and commit != head), "HEAD~1")
    yield from _git("diff", "--name-only", base).splitlines()
    yield from _git("ls-files", "--others", "--exclude-standard").splitlines()


def is_touched(subjects: Iterable[str]) -> bool:
    """Say whether a file that was changed is one of the subjects, or lies in one."""
    names = set(subjects)
    return any(path in names or any(path.startswith(f"{name}/") for name in names) for path in touched())


def rarer() -> int:
    """Return how many times as rarely as they say tests run."""
    return int(os.environ.get(RARER, "1"))


def draw(names: Sequence[str], number: int, of: int = 0, rarer: int = 1) -> set[str]:
    """Return `number` of the names: the seed's window of a fixed order, so that following seeds have the others.

    Args:
        names: the members of a family.
        number: how many.
        of: how many members the family counts as, where that is more than it has.
        rarer: how many times as rarely each of them is drawn.
    """
    members = set(names)
    count = max(len(members), of) * rarer
    if seed() == ALL or number >= count:
        return members
    order = sorted(members, key=_digest)
    # families of one size do not all run with the same seeds
    start = int(seed()) * number + int.from_bytes(_digest("".join(order))[:4])
    return {order[index] for step in range(number) if (index := (start + step) % count) < len(order)}


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def some(cases: Sequence[T], number: int, subjects: Iterable[str]) -> list[T]:
    """Return `number` of a table's cases, in their order; all of them if a subject was changed."""
    if is_touched(subjects):
        return list(cases)
    kept = draw([str(index) for index in range(len(cases))], number)
    return [case for index, case in enumerate(cases) if str(index) in kept]


# --- the tests of a collection ---


@dataclass(frozen=True)
class Rule:
    """How a test is drawn: so many of a family."""

    family: str
    number: int
    of: int
    name: str
    """Of the test in its family: tests with equal cases draw equal ones, so that they share what fixtures make."""
    is_sure: bool


def rule_of(item: pytest.Item) -> Rule | None:
    """Return how a test is drawn, or None for one that always runs."""
    file, _, name = item.nodeid.partition("::")
    name = getattr(item, "originalname", None) or name
    mark = item.get_closest_marker("drawn")
    has_cases = hasattr(item, "callspec")
    if mark is None:
        if not any(item.get_closest_marker(heavy) for heavy in HEAVY):
            return None
        if not has_cases:
            return Rule(f"{file}::alone", HALF, 0, name, is_touched(_subjects(item, ())))
        return Rule(f"{file}::{name}", CASES, 0, item.callspec.id, is_touched(_subjects(item, ())))  # type: ignore[attr-defined]
    (number,), more = mark.args, mark.kwargs
    if number is None:
        return None
    identifier = item.callspec.id if has_cases else name  # type: ignore[attr-defined]
    sure = identifier in more.get("always", ()) or is_touched(_subjects(item, more.get("subjects", ())))
    of = more.get("of", 0)
    if "family" in more:
        return Rule(f"{file}::{more['family']}", number, of, item.nodeid, sure)
    return Rule(f"{file}::{name}", number, of, identifier, sure)


def _subjects(item: pytest.Item, given: Iterable[str]) -> Iterator[str]:
    """Yield the paths of which each, if it was changed, makes a test run."""
    file = item.nodeid.partition("::")[0]
    yield file
    folder, stem = Path(file).parent.relative_to("tests").as_posix(), Path(file).stem.removeprefix("test_")
    yield from _named(stem + ".py" if folder == "." else folder)
    yield from (path for path in _beside(Path(file).parent) if path != file)
    values = item.callspec.params if hasattr(item, "callspec") else {}
    for value in values.values():
        if isinstance(value, (str, Path)):
            yield from _named(str(value))
    yield from (text.format(**values) for text in given)


@functools.cache
def _beside(folder: Path) -> list[str]:
    if folder == Path("tests"):
        return []
    return [path.relative_to(ROOT).as_posix() for path in (ROOT / folder).glob("*.py") if path.name[:5] != "test_"]


@functools.cache
def _named(name: str) -> list[str]:
    """Return the files and folders that a text may stand for."""
    name = name.removeprefix(f"{ROOT}/")
    if not name or len(name) > 100 or "\0" in name or name.startswith(("/", ".")):
        return []
    spellings = {name, name.replace("-", "_")}
    return [f"{folder}{one}" for folder in FOLDERS for one in spellings if (ROOT / folder / one).exists()]


def left_out(items: Sequence[pytest.Item], named: Iterable[str] = ()) -> set[pytest.Item]:
    """Return the tests that do not run this time; those whose identifier begins with a `named` one do."""
    asked = tuple(named)
    families: dict[tuple[str, int, int], dict[str, pytest.Item]] = {}
    for item in items:
        rule = rule_of(item)
        if rule and not rule.is_sure and not (asked and item.nodeid.startswith(asked)):
            families.setdefault((rule.family, rule.number, rule.of), {})[rule.name] = item
    return {
        members[name]
        for (_, number, of), members in families.items()
        for name in members.keys() - draw(list(members), number or -(-len(members) // 2), of, rarer())
    }


class Drawing:
    """The plugin: leaves out what is not drawn, and says how to repeat the draw."""

    def __init__(self, config: pytest.Config) -> None:
        self._line = f"drawn with {SEED}={seed()} ({SEED}={ALL} runs all tests); {len(touched())} files changed"
        self._named = [_identifier(word) for word in config.args if "::" in word]

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave tests out, before marks and groups are looked at."""
        out = left_out(items, self._named) if seed() != ALL else set()
        if out:
            config.hook.pytest_deselected(items=[item for item in items if item in out])
            items[:] = [item for item in items if item not in out]

    def pytest_report_header(self) -> str:
        """Name the seed."""
        return self._line

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Name the seed where something failed: with `-q` there is no header."""
        if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
            terminalreporter.write_line(self._line)


def _identifier(word: str) -> str:
    """Return a test that a command names as pytest names it itself."""
    file, mark, name = word.partition("::")
    path = Path(file).resolve()
    return (path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else file) + mark + name
