"""Pages of the documentation that show the rows of the results: filter, sort, choose columns, save as CSV.

MkDocs calls `on_files` (mkdocs.yml, hooks). Each table of runs in docs/results becomes one HTML page, with DataTables
from the package itables in it, so that a page needs no network. Curves and versions are left to the Parquet file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as parquet
from itables import to_html_datatable
from itables.javascript import generate_init_offline_itables_html
from itables.utils import find_package_file
from mkdocs.structure.files import File, Files

RESULTS = Path(__file__).parent / "results"
TITLES = {
    "pubsub_vfl": "PubSub-VFL", "pubsub_vfl_choice": "PubSub-VFL: choice of settings",
    "pubsub_vfl_planning": "PubSub-VFL: the planner", "pubsub_vfl_privacy": "PubSub-VFL: privacy", "mtcd": "MTCD",
    "tablepuppet": "TablePuppet", "glasu": "GLASU", "nebulafl": "NebulaFL", "privacy": "What protection costs",
    "privacy_audits": "Attacks and audits",
}  # fmt: skip
"""Of each table of runs, in the order of docs/results/rows.md."""
_FIRST = ("protocol", "study", "name", "seed", "data", "runtime", "status", "failure")
_LAST = ("wall_seconds", "command")
_WORDS: Any = {"searchBuilder": {"title": "Filters", "add": "Add a filter"}}
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}: rows</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 14px system-ui, sans-serif; margin: 1rem; }}
html.dark body {{ background: #1e2129; color: #ddd; }}
html.dark a {{ color: #8ab4f8; }}
td {{ max-width: 24rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }}
</style>
<script>
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark", dark.matches);
dark.addEventListener("change", follow); follow();
</script></head>
<body><p><a href="./">All tables of rows</a></p><h1>{title}: {count} rows</h1>
{script}
{table}
</body></html>
"""


def rows_of(name: str) -> pd.DataFrame:
    """Return the rows of a table of runs: what each is, its metrics and costs, and the settings that differ."""
    file = RESULTS / f"{name}.parquet"
    names = parquet.read_schema(file).names
    settings = [column for column in names if column.startswith("config.")]
    figures = [column for column in names if column.startswith(("metrics.", "usage."))]
    rows = parquet.read_table(file, columns=[*_FIRST, *figures, *settings, *_LAST]).to_pandas()
    empty = [
        column for column in rows if rows[column].isna().all() or rows[column].astype(str).str.strip().eq("").all()
    ]
    equal = [column for column in ("protocol", *settings) if rows[column].astype(str).nunique() == 1]
    rows = rows.drop(columns={*empty, *equal})
    for column in settings:  # a list as its words
        if column in rows and rows[column].dtype == object:
            rows[column] = rows[column].map(lambda value: "" if value is None else str(value))
    return rows.rename(columns=lambda column: column.removeprefix("metrics.").removeprefix("usage."))


def page_of(name: str) -> str:
    """Return a table's page."""
    rows = rows_of(name)
    table = to_html_datatable(
        rows,
        showIndex=False,
        maxBytes=0,
        maxColumns=0,
        connected=False,
        allow_html=False,
        display_logo_when_loading=False,
        layout={"top1": "searchBuilder"},
        language=_WORDS,
        buttons=["csvHtml5", "colvis"],
        pageLength=25,
        scrollX=True,
    )
    script = generate_init_offline_itables_html(find_package_file("html/dt_bundle.js"))
    return _PAGE.format(title=TITLES[name], count=f"{len(rows):,}", script=script, table=table)


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages to the site."""
    for name in TITLES:
        files.append(File.generated(config, f"results/rows/{name}.html", content=page_of(name)))
    return files
