"""The tool that says what tests do not notice: each change is one, and makes another program."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tests import mutants, mutated
from tests.mutants import ROOT, by_name, changed, named, sites

TEXT = '''
"""A module."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from math import inf
LIMIT: int = 3

@known(cache=True)
def clipped(x: float = 2.0) -> float:
    """Return it within limits."""
    y = -x + 1
    if not x < LIMIT and y:
        raise ValueError(f"{x + 1} is too large: {LIMIT * 2}")
    return 0.5 if y else y
'''


def test_every_change_is_one_line_of_another_program() -> None:
    tree = ast.parse(TEXT)
    before = ast.unparse(tree).splitlines()
    found = sites(tree)
    made = [ast.unparse(changed(tree, site)).splitlines() for site in found]
    for after in made:
        compile("\n".join(after), "mutant", "exec")
        assert len(after) == len(before)
        assert sum(one != other for one, other in zip(before, after, strict=True)) == 1
    assert ast.unparse(tree).splitlines() == before
    assert len({tuple(after) for after in made}) == len(made)


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        ("LIMIT: int = 3", {"constant"}),
        ("def clipped(x: float = 2.0) -> float:", {"constant"}),
        ("@known(cache=True)", set()),
        ("y = -x + 1", {"operator", "sign", "constant", "statement"}),
        ("if not x < LIMIT and y:", {"condition", "operator", "sign", "comparison"}),
        ('raise ValueError(f"{x + 1} is too large: {LIMIT * 2}")', {"statement"}),
        ("return 0.5 if y else y", {"result", "condition", "constant"}),
        ("from math import inf", set()),
        ('"""Return it within limits."""', set()),
    ],
)
def test_what_is_changed_in_a_line(line: str, kinds: set[str]) -> None:
    tree = ast.parse(TEXT)
    nodes, texts = list(ast.walk(tree)), TEXT.splitlines()
    found = {kind for kind, index in sites(tree) if texts[nodes[index].lineno - 1].strip() == line}  # type: ignore[attr-defined]
    assert found == kinds


def test_the_name_of_a_change_stays_when_its_function_moves() -> None:
    moved = TEXT.replace("LIMIT: int = 3", "LIMIT: int = 3\nOTHER = LIMIT + 1\n\ndef more():\n    return OTHER\n")
    before, after = (named(ast.parse(text)) for text in (TEXT, moved))
    assert {name for name in before if name.startswith("clipped:")} <= set(after)
    assert len(before) == len(sites(ast.parse(TEXT)))
    assert by_name(ast.parse(TEXT), 5, 1) == by_name(ast.parse(TEXT), 5, 1) != by_name(ast.parse(TEXT), 5, 2)


def test_a_table_has_a_line_a_change_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, tried = tmp_path / "table.jsonl", []

    def notice(*given: object) -> bool:
        tried.append(given)
        return len(tried) % 3 == 0

    monkeypatch.setattr(mutants, "is_noticed", notice)
    monkeypatch.setattr(
        mutated, "TESTS", {"fedactors/runtime/rounds.py": ("tests/runtime/test_rounds.py",), "no.py": ()}
    )
    mutants.write_table(table, [], 3, 0, 1.0)
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    assert [(row["file"], row["noticed"]) for row in rows] == [
        ("fedactors/runtime/rounds.py", noticed) for noticed in (False, True, False)
    ]
    assert len(tried) == 4  # the first is the file as it is
    mutants.write_table(table, [], 4, 0, 1.0)
    assert len(table.read_text().splitlines()) == 4
    assert len({json.loads(line)["mutant"] for line in table.read_text().splitlines()}) == 4


def test_every_file_of_the_list_has_tests() -> None:
    there = [name for name in mutated.TESTS if (ROOT / name).exists()]
    assert len(there) > 25
    assert [name for name, tests in mutated.TESTS.items() if not all((ROOT / test).is_file() for test in tests)] == []
    for pattern in ("protocols/*/algorithm.py", "fedactors/privacy/*.py"):
        found = {path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern) if path.name != "__init__.py"}
        assert found <= set(there)
