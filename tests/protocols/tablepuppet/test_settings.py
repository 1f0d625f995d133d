"""The settings of the paper's figures are the best points of the committed grids, by training loss."""

from __future__ import annotations

import math

import pytest

from fedactors.sweeps.study import rows_of
from scenarios.paper.tablepuppet import figure5, figure6
from scenarios.paper.tablepuppet._study import RESULTS, SETTINGS
from scenarios.paper.tablepuppet.choose import GRIDS, PRIVATE_GRIDS

ALL = (*GRIDS, *PRIVATE_GRIDS)


@pytest.mark.parametrize("grid", ALL, ids=lambda grid: grid.name)
def test_the_settings_are_the_point_with_the_least_training_loss(grid):
    losses = {}
    for name, chosen in grid.points():
        (row,) = rows_of(RESULTS / "tablepuppet.parquet", grid.folder, name.replace(" ", "_"))
        assert list(row.metrics) == (["training/loss"] if row.status == "finished" else [])
        losses[name] = (row.metrics.get("training/loss", math.inf), chosen)
    _, best = min(losses.values(), key=lambda pair: pair[0])
    used = grid.panel.settings(grid.algorithm)
    assert {name: used[name] for name in best} == best


def test_every_panel_has_settings_of_its_own():
    for panel in (*figure5.FULL, *figure6.PANELS):
        assert panel.subject in SETTINGS
        assert (f"{panel.subject}-private" in SETTINGS) or not panel.private
