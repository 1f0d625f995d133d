"""What is drawn of a family: other members with each seed, all of them in some, and always what was changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import drawing

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
import pytest

@pytest.mark.slow
@pytest.mark.parametrize("name", ["a", "b", "c", "d", "mtcd"])
def test_slow(name): pass

@pytest.mark.parametrize("name", range(5))
def test_quick(name): pass

@pytest.mark.slow
def test_alone(): pass

@pytest.mark.slow
def test_long(): pass

@pytest.mark.ray
def test_on_ray(): pass

@pytest.mark.drawn(1, always=["c"])
@pytest.mark.parametrize("name", ["a", "b", "c", "d"])
def test_sure(name): pass

@pytest.mark.drawn(1, family="f")
def test_one(): pass

@pytest.mark.drawn(1, family="f")
def test_two(): pass

@pytest.mark.drawn(None)
@pytest.mark.slow
@pytest.mark.parametrize("name", range(4))
def test_all(name): pass

@pytest.mark.drawn(1, of=3)
def test_rare(): pass

@pytest.mark.drawn(1, subjects=["README.{name}"])
@pytest.mark.parametrize("name", ["md", "x", "y"])
def test_page(name): pass
"""


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch):
    def use(seed: object, *touched: str) -> None:
        monkeypatch.setenv(drawing.SEED, str(seed))
        monkeypatch.setenv(drawing.TOUCHED, "\n".join(touched))

    return use


def test_following_seeds_draw_every_member(seeded) -> None:
    names = [f"case {index}" for index in range(23)]
    seen: set[str] = set()
    for seed in range(100, 106):
        seeded(seed)
        drawn = drawing.draw(names, 4)
        assert len(drawn) == 4
        assert drawn == drawing.draw(names[::-1], 4)
        seen |= drawn
    assert seen == set(names)
    seeded(drawing.ALL)
    assert drawing.draw(names, 4) == set(names)


def test_a_rarer_draw_has_each_member_so_many_times_as_rarely(seeded) -> None:
    for names, number, of in (
        (["only"], 1, 0),
        ([f"case {index}" for index in range(5)], 2, 0),
        (["one of three"], 1, 3),
    ):
        seen: list[str] = []
        cycle = max(len(names), of) * 4
        for seed in range(cycle):
            seeded(seed)
            seen += drawing.draw(names, number, of, 4)
        assert {name: seen.count(name) for name in names} == dict.fromkeys(names, number)


def test_families_of_one_size_take_turns(seeded) -> None:
    seeded(3)
    alone = [len(drawing.draw([f"test {index}"], 1, 4)) for index in range(40)]
    assert 2 <= sum(alone) <= 20


def test_a_table_keeps_its_order_and_runs_whole_where_its_subject_was_changed(seeded) -> None:
    cases = list(range(50))
    seeded(3, "fedactors/config.py")
    assert drawing.some(cases, 7, ["fedactors/data"]) == sorted(drawing.some(cases, 7, ["fedactors/data"]))
    assert len(drawing.some(cases, 7, ["fedactors/data"])) == 7
    assert drawing.some(cases, 7, ["fedactors/config.py"]) == drawing.some(cases, 7, ["fedactors"]) == cases


def collected(folder: Path, seed: object, *words: str, touched: str = "") -> list[str]:
    """Return what pytest would run of `TESTS`, as a file of this repository's tests."""
    file = folder / "test_these.py"
    file.write_text(TESTS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {drawing.SEED: str(seed), drawing.TOUCHED: touched, drawing.RARER: "1", "PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        *(words or [str(file)]),
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    return [line.rpartition("::")[2] for line in done.stdout.splitlines() if "::" in line]


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="drawn_", dir=ROOT / "tests"))
    yield made
    shutil.rmtree(made)


@pytest.mark.slow
def test_what_runs_of_a_file(folder: Path) -> None:
    found = collected(folder, 7)
    count = {name: sum(test.startswith(name) for test in found) for name in ("test_slow", "test_quick", "test_all")}
    assert count == {"test_slow": 1, "test_quick": 5, "test_all": 4}
    assert len({"test_alone", "test_long", "test_on_ray"} & set(found)) == 2
    assert {"test_alone", "test_long", "test_on_ray"} <= {*found, *collected(folder, 8)}
    assert "test_sure[c]" in found
    assert sum(test.startswith("test_sure") for test in found) == 2
    assert len({"test_one", "test_two"} & set(found)) == 1
    assert sum(["test_rare" in collected(folder, seed) for seed in (7, 8, 9)]) == 1
    everything = collected(folder, drawing.ALL)
    assert len(everything) == 5 + 5 + 3 + 4 + 2 + 4 + 1 + 3
    assert "test_page[md]" in collected(folder, 7, touched="README.md")
    assert "test_slow[mtcd]" in collected(folder, 7, touched="protocols/mtcd/run.py")
    name = f"{(folder / 'test_these.py').relative_to(ROOT)}"
    assert collected(folder, 7, touched=name) == everything
    assert sorted(collected(folder, 7, f"{name}::test_slow[a]", f"{name}::test_slow[d]")) == [
        "test_slow[a]",
        "test_slow[d]",
    ]
