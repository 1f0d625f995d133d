"""The notebooks of the documentation: they are what their sources say, and run to their ends as they are shown."""

from __future__ import annotations

import re

import nbformat
import pytest

from docs.notebook_pages import FOLDER, NAMES, ROOT, cells_of, execute

# a bar, a run's table and its curve, a data frame: what a cell shows
SHOWN = ("<progress ", "<caption>", "<svg ", 'class="dataframe"')


def committed(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def kinds(notebook):
    """Return what each cell shows: the kinds of its outputs, and of what they are made."""
    found = []
    for cell in notebook.cells:
        shown = []
        for output in cell.get("outputs", ()):
            drawn = "".join(output.get("data", {}).get("text/html", ""))
            shown.append((output.output_type, *sorted(output.get("data", {})), *(one for one in SHOWN if one in drawn)))
        found.append(shown)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_its_source_with_short_outputs(name):
    notebook, source = committed(name), cells_of(name)
    nbformat.validate(notebook)
    assert [(c.cell_type, c.source, c.id) for c in notebook.cells] == [
        (c.cell_type, c.source, c.id) for c in source.cells
    ], f"python -m docs.notebook_pages {name}"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    text = (FOLDER / f"{name}.ipynb").read_text()
    assert len(text) < 60_000
    assert not re.search(r"/tmp/|/home/|/root/|\\u001b|\"error\"", text)
    assert any("<svg " in one for shown in kinds(notebook) for output in shown for one in output)


def test_all_are_in_the_navigation():
    listed = re.findall(r"notebooks/(\w+)\.ipynb$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert listed == list(NAMES)
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(NAMES)
    assert sorted(path.stem for path in (FOLDER / "sources").glob("*.py")) == sorted(NAMES)


@pytest.mark.slow
@pytest.mark.drawn(1, family="notebooks", subjects=["docs/notebooks", "docs/notebook_pages.py"])
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_and_shows_what_it_showed(name, tmp_path, monkeypatch):
    for variable in ("PYTHONPATH", "IPYTHONDIR"):
        monkeypatch.setenv(variable, "")  # put back at the end
    again = execute(cells_of(name), tmp_path)
    assert kinds(again) == kinds(committed(name))
