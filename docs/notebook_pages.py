"""Write the notebooks of the documentation: each from a script of cells, executed, with its outputs.

    python -m docs.notebook_pages [NAME ...]

The sources are docs/notebooks/sources/NAME.py, in jupytext's percent format: edit those. Outputs hold nothing of this
machine: paths of temporary folders are shortened, and times of cells left out.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import jupytext
import nbclient
import nbformat

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(__file__).parent / "notebooks"
NAMES = ("first_run", "your_data", "your_model", "lora", "own_protocol")
SECONDS = 300
_TEMPORARY = re.compile(r"/tmp/[^\s\"'<>,]+")
_KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def cells_of(name: str) -> Any:
    """Return a notebook without outputs, made of its source."""
    notebook = jupytext.reads((FOLDER / "sources" / f"{name}.py").read_text(), fmt="py:percent")
    notebook.metadata = nbformat.from_dict({"kernelspec": _KERNEL, "language_info": {"name": "python"}})
    for number, cell in enumerate(notebook.cells):
        cell["id"], cell["metadata"] = f"cell-{number}", {}
    return notebook


def execute(notebook: Any, folder: Path) -> Any:
    """Execute a notebook in a folder; return it with outputs that say nothing of the machine.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    os.environ["IPYTHONDIR"] = str(folder / "ipython")
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=SECONDS, resources=resources, record_timing=False).execute()
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            output.get("metadata", {}).clear()
            output.pop("transient", None)
            for kind, value in list(output.get("data", {}).items()):
                output["data"][kind] = _TEMPORARY.sub("…", value) if isinstance(value, str) else value
            if "text" in output:
                output["text"] = _TEMPORARY.sub("…", output["text"])
    return notebook


def main(names: list[str]) -> None:
    """Write these notebooks, or all."""
    for name in names or NAMES:
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(cells_of(name), Path(folder))
        nbformat.validate(notebook)
        (FOLDER / f"{name}.ipynb").write_text(nbformat.writes(notebook, indent=1) + "\n")
        print(name)


if __name__ == "__main__":
    main(sys.argv[1:])
