"""The settings of the paper's figures are the best points of the committed grids, by training loss."""

from __future__ import annotations

import pytest

from scenarios.paper.study import Study, rows_of, study_flags
from scenarios.paper.tablepuppet import figure5, figure6
from scenarios.paper.tablepuppet._study import RESULTS, SETTINGS
from scenarios.paper.tablepuppet.choose import GRIDS, PRIVATE_GRIDS, Grid, losses

ALL: dict[str, list[Grid]] = {}
for grid in (*GRIDS, *PRIVATE_GRIDS):
    ALL.setdefault(grid.name, []).append(grid)


@pytest.mark.parametrize("parts", ALL.values(), ids=ALL)
def test_the_settings_are_the_point_with_the_least_training_loss(parts):
    study = study_flags("", "tablepuppet", RESULTS).parse_args([], namespace=Study())
    points = {name.replace(" ", "_"): chosen for grid in parts for name, chosen in grid.points()}
    for name in points:
        rows = rows_of(RESULTS / "tablepuppet.parquet", parts[0].folder, name)
        assert [row.seed for row in rows] in ([0], [0, 1, 2])
        for row in rows:
            assert list(row.metrics) == (["training/loss"] if row.status == "finished" else [])
    found = losses(parts[0], study)
    assert set(found) <= set(points)
    best = points[min(found, key=lambda name: found[name])]
    used = parts[0].panel.settings(parts[0].algorithm)
    assert {name: used[name] for name in best} == best


def test_every_panel_has_settings_of_its_own():
    for panel in (*figure5.FULL, *figure6.PANELS):
        assert panel.subject in SETTINGS
        assert (f"{panel.subject}-private" in SETTINGS) or not panel.private
