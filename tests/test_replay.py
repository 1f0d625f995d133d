"""Rows of a record made again, as CI does it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedactors.errors import BadInput
from fedactors.runs.table import read_table, write_table
from scenarios.replay import RESULTS, ROUNDED, drawable, made_again, main
from scenarios.results import record_text, tables_of

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """A page and its table, with one row of one seed, small enough to be made again."""
    folder = tmp_path_factory.mktemp("record")
    words = ["scenarios/paper/mtcd/ablations.py", "--smoke", "--only", "gamma-01", "--seeds", "3", "--out", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, check=True, timeout=200)
    (folder / "mtcd.md").write_text("# M\n<!-- record: mtcd.parquet -->\n<!-- end -->\n")
    return folder


@pytest.mark.drawn(1, of=2, subjects=["scenarios/replay.py"])
@pytest.mark.slow
@pytest.mark.walk
def test_a_row_is_made_again_by_its_command(record, capsys):
    (row,) = read_table(record / "mtcd.parquet")
    assert row.command.startswith("python scenarios/paper/mtcd/ablations.py --smoke --row tokens/gamma-01 --seeds 3")
    assert main([str(record), "--draw-seed", "1"]) == 0
    assert "1 rows made again, 0 of them different" in capsys.readouterr().out
    changed = dataclasses.replace(row, metrics={**row.metrics, "gap": 2 * float(row.metrics["gap"])})
    write_table(record / "mtcd.parquet", [changed])
    assert main([str(record)]) == 1
    assert "metrics.gap" in capsys.readouterr().out
    write_table(
        record / "mtcd.parquet", [dataclasses.replace(row, command=row.command.replace("gamma-01", "gamma-99"))]
    )
    assert main([str(record)]) == 1
    assert "its command does not make it" in capsys.readouterr().out
    write_table(record / "mtcd.parquet", [row])


@pytest.mark.drawn(1, of=2, subjects=["scenarios/replay.py"])
@pytest.mark.slow
@pytest.mark.walk
def test_what_is_not_drawn(record, tmp_path):
    (row,) = read_table(record / "mtcd.parquet")
    page = tmp_path / "mtcd.md"
    page.write_text("<!-- record: mtcd.parquet -->\n<!-- end -->\n")
    others = [
        dataclasses.replace(row, command=""),
        dataclasses.replace(row, content=""),
        dataclasses.replace(row, command="python scenarios/paper/mtcd/ablations.py"),
        dataclasses.replace(row, runtime="ray"),
        dataclasses.replace(row, status="failed"),
    ]
    write_table(tmp_path / "mtcd.parquet", [*others, row])
    assert drawable(page, float("inf")) == [row]
    assert drawable(page, 0.0) == []
    write_table(tmp_path / "mtcd.parquet", [dataclasses.replace(row, wall_seconds=0.0)])
    assert drawable(page, 1e6) == []  # nobody knows how long it takes
    to_a_target = dataclasses.replace(row, metrics={**row.metrics, "seconds_to_0.9": 1.0})
    for rounded in (dataclasses.replace(row, study=min(ROUNDED)), to_a_target, row):
        seeds = [dataclasses.replace(rounded, seed=seed) for seed in range(2 if rounded is row else 3)]
        write_table(tmp_path / "mtcd.parquet", seeds)
        assert drawable(page, float("inf")) == seeds
        assert drawable(page, 1e6) == []  # by CI
    seeds = [dataclasses.replace(row, seed=seed) for seed in range(3)]
    write_table(tmp_path / "mtcd.parquet", seeds)
    assert drawable(page, 1e6) == seeds
    write_table(tmp_path / "mtcd.parquet", [*others, row])
    assert record_text(tmp_path, ["mtcd.parquet"]).startswith("1 of the 6 rows behind this page")
    with pytest.raises(BadInput, match="is not allowed: python and a script"):
        made_again(dataclasses.replace(row, command="rm -rf x"))


@pytest.mark.docs
def test_every_page_that_stands_on_tables_says_which_of_its_rows_can_be_made_again():
    stands = {table.name for page in RESULTS.glob("*.md") for table in tables_of(page)}
    assert stands == {table.name for table in RESULTS.glob("*.parquet")} - {"memory.parquet", "reliability.parquet"}
    pages = [page for page in RESULTS.glob("*.md") if "<!-- results: rows=" in page.read_text()]
    assert [page.name for page in pages if not tables_of(page) and "-" not in page.stem] == []


@pytest.mark.docs
def test_the_studies_that_are_not_drawn_are_in_the_record():
    tables = {table for page in RESULTS.glob("*.md") for table in tables_of(page)}
    found = {row.study for table in tables for row in read_table(table)}
    assert found >= ROUNDED


def test_ci_makes_three_rows_again():
    assert "--rows 3" in (ROOT / "Makefile").read_text().partition("\nreplay:")[2].partition("\n\n")[0]
    for script in (".ci/run", ".github/workflows/ci.yml"):
        assert "make replay" in (ROOT / script).read_text()
