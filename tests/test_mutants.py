"""The tool that says what tests do not notice: each change is one, and makes another program."""

from __future__ import annotations

import ast

import pytest

from tests.mutants import changed, sites

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
