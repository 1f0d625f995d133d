"""Small data of each layout, dealt to sites: what the conformance kit lets a protocol train on between sites."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_NUM_ROWS, _NUM_NODES, _NUM_EDGES = 160, 60, 150
_COLUMNS = 2
"""Of each site, where columns are dealt."""


def write_small_data(folder: Path, sites: Sequence[str], layout: str) -> str:
    """Write each site's data into its folder under `folder`, and what it says of them into its ``site.toml``.

    Site number i calls its data ``rows{i}``. The same data, for one machine, are described in ``parties.toml``.

    Args:
        folder: which has a folder of each site.
        sites: their names; the first has the label.
        layout: vertical, horizontal, relational or graph.

    Returns:
        What a run's ``--data`` calls them.
    """
    task, own = _WRITERS[layout](folder, sites)
    if layout != "vertical":
        task = {"layout": layout, **task}
    described = [f"[task]\n{_lines(task)}"]
    for number, (site, facts) in enumerate(zip(sites, own, strict=True)):
        table = {"table": f"rows{number}"} if layout == "relational" else {}
        described.append(f"[parties.{site}]\n{_lines({**facts, **table})}")
        told = _lines({**facts, "nodes": str(folder / site / "nodes.npz")} if layout == "graph" else facts)
        if number == 0:
            inner = ", ".join(f"{name} = {_word(value)}" for name, value in task.items() if name != "nodes")
            told += f"task = {{ {inner} }}\n"
        with (folder / site / "site.toml").open("a") as file:
            file.write(f"\n[data.rows{number}]\n{told}")
    (folder / "parties.toml").write_text("\n".join(described))
    return ",".join(f"{site}=rows{number}" for number, site in enumerate(sites))


Written = tuple[dict[str, Any], list[dict[str, Any]]]
"""What is said of the task, and of each site's own data."""


def _drawn(sites: Sequence[str]) -> tuple[Any, Any]:
    rng = np.random.default_rng(5)
    x_NF = rng.normal(size=(_NUM_ROWS, _COLUMNS * len(sites)))
    return x_NF, (x_NF.sum(axis=1) + rng.normal(size=_NUM_ROWS) > 0).astype(int)


def _table(path: Path, columns: dict[str, Sequence[Any]]) -> str:
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(f"{x:.4f}" if isinstance(x, float) else str(x) for x in row) for row in rows]
    path.write_text("\n".join([",".join(columns), *lines, ""]))
    return str(path)


def _columns(folder: Path, sites: Sequence[str]) -> list[dict[str, Any]]:
    x_NF, y_N = _drawn(sites)
    found = []
    for number, site in enumerate(sites):
        columns: dict[str, Any] = {"id": [f"r{i}" for i in range(_NUM_ROWS)]}
        for f in range(number * _COLUMNS, (number + 1) * _COLUMNS):
            columns[f"x{f}"] = x_NF[:, f]
        if number == 0:
            columns["bad"] = y_N
        found.append({"path": _table(folder / site / "rows.csv", columns)})
    return found


def _vertical(folder: Path, sites: Sequence[str]) -> Written:
    own = [{**facts, "id": "id"} for facts in _columns(folder, sites)]
    own[0]["label"] = "bad"
    return {"type": "binary", "alignment": "already-aligned"}, own


def _relational(folder: Path, sites: Sequence[str]) -> Written:
    own = _columns(folder, sites)
    names = [f"rows{number}" for number in range(len(sites))]
    asked = [f"{name}.x{f}" for n, name in enumerate(names) for f in range(n * _COLUMNS, (n + 1) * _COLUMNS)]
    joined = " ".join(f"JOIN {name} ON {names[0]}.id = {name}.id" for name in names[1:])
    sql = f"SELECT {names[0]}.bad, {', '.join(asked)} FROM {names[0]} {joined}"
    return {"type": "binary", "sql": sql, "label": f"{names[0]}.bad"}, own


def _horizontal(folder: Path, sites: Sequence[str]) -> Written:
    x_NF, y_N = _drawn(sites)
    parts = np.array_split(np.arange(_NUM_ROWS), len(sites) + 1)  # the last are test rows

    def write(path: Path, rows: Any) -> str:
        columns = {f"x{f}": x_NF[rows, f] for f in range(x_NF.shape[1])}
        return _table(path, {**columns, "bad": y_N[rows]})

    test = write(folder / sites[0] / "test.csv", parts[-1])
    own = [
        {"path": write(folder / site / "rows.csv", rows), "label": "bad"}
        for site, rows in zip(sites, parts, strict=False)
    ]
    return {"type": "binary", "classes": ["0", "1"], "test": test}, own


def _graph(folder: Path, sites: Sequence[str]) -> Written:
    x_NF, y_N = _drawn(sites)
    rng = np.random.default_rng(6)
    nodes: dict[str, Any] = dict(
        zip(("train", "validation", "test"), np.split(np.arange(_NUM_NODES), (30, 40)), strict=True)
    )
    own = []
    for number, site in enumerate(sites):
        path, features = folder / site / "graph.npz", x_NF[:_NUM_NODES, number * _COLUMNS : (number + 1) * _COLUMNS]
        np.savez(path, edges=rng.integers(0, _NUM_NODES, (2, _NUM_EDGES)), features=features)
        np.savez(folder / site / "nodes.npz", **{"labels": y_N[:_NUM_NODES], **nodes})
        own.append({"file": str(path)})
    return {"nodes": str(folder / sites[0] / "nodes.npz")}, own


_WRITERS = {"vertical": _vertical, "horizontal": _horizontal, "relational": _relational, "graph": _graph}


def _lines(facts: dict[str, Any]) -> str:
    return "".join(f"{name} = {_word(value)}\n" for name, value in facts.items())


def _word(value: Any) -> str:
    if isinstance(value, str):
        return f"'{value}'"
    return f"[{', '.join(map(_word, value))}]"
