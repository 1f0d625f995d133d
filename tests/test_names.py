"""No file, class, function, setting, flag or metric has one of the names that were given up."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("fedactors", "protocols", "scenarios", "tests")

IDENTIFIERS = re.compile(
    r"""(?ix)
    (?-i:^Parties$)
    | (?<![a-z])doors?(?![a-z]) | no_?door | (^|_)castings?($|_) | (^|_)casting | (^|_)household | stand_?ins?$ | keeper
    | (^|_)lanes?($|_) | fast_lane | (^|_)seats?($|_) | backstop | leftovers | handback | misfit | (^|_)purse | dearer
    | greeting | (^|_)standing$ | coded_rows | held_tables | named_data | named_code | stored_data | kept_states
    | ContainerNews | FirstOrders | JoinTold | (?-i:^Lacks$) | __plain__ | launch_again
    | fence_late_workers | (^|_)fenced$ | cut_bits | least_cosine | (test|validation)_share$
    | num_hidden | network_width
    | waiting_seconds | outside_seconds | ^money$
    | (^|_)plac(e|es|ed)($|_) | (^|_)own($|_) | (?-i:(^|_)Own[A-Z])
    | (^|_)strangers?($|_) | (?-i:^Outside$) | ^reasons$ | told_abroad | rows_told
    """
)
"""Parts of identifiers that are the left column of the list of names."""

HERE = {
    "lane": "tests/report",  # a row of the timeline's chart
    "lanes": "fedactors/report",
    "MAX_LANES": "fedactors/report",
    "misfit": "tests/learning",
    "in_place": "",  # as the trailing underscore of PyTorch's methods
    "in_a_process_of_its_own": "tests",
    "in_a_folder_of_its_own": "tests",
}
"""Identifiers that mean something else in a place."""

FILES = {
    "household",
    "words",
    "strangers",
    "stand_ins",
    "keeper",
    "signs",
    "talk",
    "laws",
    "crossings",
    "together",
    "greeting",
    "meeting",
    "reach",
    "pieces",
    "link",
    "stream",
    "spending",
    "backstop",
    "leftovers",
    "handback",
    "restored",
    "launch_again",
    "named_code",
    "stored_data",
    "named_data",
    "coded_rows",
    "held_tables",
    "neighbours",
    "dealing",
    "reasons",
    "pictures",
    "blocks",
    "kept_states",
    "batched",
    "averaging",
    "planets",
    "flat",
    "by_center",
    "summing",
    "unions",
    "operators",
    "crooked",
    "fast_lane",
    "own",
    "places",
}
"""Names of modules that are given up."""

SETTINGS = {
    "cut_bits",
    "least_cosine",
    "payloads",
    "fence_late_workers",
    "test_share",
    "validation_share",
    "hidden",
    "num_hidden",
    "network_width",
    "rounds",
    "secure_sums",
}
PARTICIPLES = re.compile(r"(?i)^(told|said|asked|made|found|held)$")
"""What a class, a public function, a field or a constant is not called: a noun or a verb says what it is."""
FLAGS = re.compile(r"(?<![\w-])--(go-on|state|state-key|trust|to|full|seat|lease|place)(?![\w-])")
METRICS = re.compile(r"(?<![\w-])(fedactors_site_(?:doing|trouble)|usage\.(?:money|waiting_seconds))\b")


def sources() -> Iterator[Path]:
    for folder in FOLDERS:
        yield from (path for path in sorted((ROOT / folder).rglob("*.py")) if path != Path(__file__).resolve())


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Yield what a module names: classes, functions, parameters, keywords, attributes and variables."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.keyword(arg=str(name)) | ast.alias(name=name):
                yield name


@pytest.mark.slow
def test_no_identifier_is_one_that_was_given_up() -> None:
    named = {
        (str(path.relative_to(ROOT)), name) for path in sources() for name in identifiers(ast.parse(path.read_text()))
    }
    found = sorted(
        f"{where}: {name}"
        for where, name in named
        if IDENTIFIERS.search(name) and not name.startswith("test_") and not where.startswith(HERE.get(name, "nowhere"))
    )
    assert found == []


def test_no_module_or_page_has_a_name_that_was_given_up() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in sources()
        if path.stem.removeprefix("test_") in FILES and not str(path.relative_to(ROOT)).startswith("scenarios/paper")
    ]
    assert [*found, *(ROOT / "docs").rglob("own-*")] == []


def definitions(tree: ast.Module) -> Iterator[str]:
    """Yield the classes, functions, fields and constants of a module, but no local variable."""
    for body in [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]:
        for node in body:
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    yield name
                case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                    yield name


def test_nothing_that_is_defined_is_called_by_a_bare_participle() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources()
        for name in definitions(ast.parse(path.read_text()))
        if PARTICIPLES.search(name)
    ]
    assert found == []


def test_no_setting_is_one_that_was_given_up() -> None:
    found = [
        f"{path.parent.name}: {node.target.id}"
        for path in sorted((ROOT / "protocols").glob("*/config.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id in SETTINGS
    ]
    assert found == []


def test_no_flag_or_metric_is_one_that_was_given_up() -> None:
    found = []
    pages = [
        *(ROOT / "docs").rglob("*.md"),
        *filter(Path.is_file, (ROOT / "deploy").rglob("*")),
        *ROOT.glob("*.md"),
        *sources(),
    ]
    for path in pages:
        text = path.read_text()
        found += [f"{path.relative_to(ROOT)}: {match.group()}" for match in FLAGS.finditer(text)]
        found += [f"{path.relative_to(ROOT)}: {match.group()}" for match in METRICS.finditer(text)]
    assert found == []


# --- sentences ---

SENTENCES = (
    "other columns of the same people",
    "see other edges and features of",
    "the same columns, other people at each",
    "an aim of ours where",
    "was to be had when",
    "Questions that are asked",
    "of which one or both cannot be dialled",
    "replay it with one record otherwise",
    "by what parties, links and graph are like",
    "is scaled down to it; none",
    "Whether who lets a deadline pass",
    "misses what it may not",
    "could not bear the others' load",
    "Code that reaches past the frame",
    "delays a run, and changes nothing of it",
)
"""Parts of sentences that were rewritten in the field's words."""
TEXTS = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs", *FOLDERS)


@pytest.mark.docs
def test_no_rewritten_sentence_comes_back() -> None:
    paths = [path for name in TEXTS for path in ((ROOT / name).rglob("*") if (ROOT / name).is_dir() else [ROOT / name])]
    for path in paths:
        if path.suffix in (".py", ".md", ".toml", ".tmpl") and path != Path(__file__):
            words = " ".join(path.read_text().split())
            assert not [one for one in SENTENCES if one in words], path
