"""Rows that a site holds out in a run between sites: those that follow from the approved settings, and no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedactors.data.layouts.horizontal import HorizontalData, HorizontalFile
from fedactors.data.sources import FileSource
from fedactors.errors import BadInput, Refused
from fedactors.federation.site_folder import DataName
from fedactors.federation.site_run import built_with
from fedactors.messages.codec import encode
from fedactors.protocols.horizontal.config import HorizontalConfig
from tests.federation.world import BANK, SHOP, World

SITES, SEED, SECRET = ("bank", "shop"), 5, 11
CONFIG = HorizontalConfig(model="mlp", local_parameters=("head",), validation_fraction=0.25)


def source(name: str) -> HorizontalFile:
    columns = {"id_column": None, "features": None, "label": "y", "csv": None}
    file = FileSource(party=name, path=f"/{name}.csv", task="binary", num_classes=2, **columns)  # type: ignore[arg-type]
    return HorizontalFile(file=file, classes=("0", "1"))


def described(folder: Any = None) -> HorizontalData:
    files: list[Any] = [DataName(site=name, name="rows") for name in SITES]
    if folder is not None:
        files[1] = source("shop")
    facts = {"task": "binary", "num_classes": 2, "num_clients": 2, "shape": ()}
    test: Any = DataName(site="bank", name="rows", is_test=True)
    return HorizontalData(name="rows", files=tuple(files), parties=SITES, test_file=test, **facts)  # type: ignore[arg-type]


def resolved(part: Any, config: HorizontalConfig = CONFIG) -> Any:
    """Return what the shop builds its client with, of what another organisation's driver asks for."""
    proposal: Any = SimpleNamespace(described=described, data=dict.fromkeys(SITES), seed=SEED, purpose="train")
    frame, folder = encode(((part,), {}), arguments=True), SimpleNamespace(name="shop")
    return built_with("shop", frame, folder, proposal, config, None, SECRET)[0][0]  # type: ignore[arg-type]


REQUEST = described().holding_out(0.25, SEED).part((1,))


def test_a_site_trains_on_some_of_its_rows_and_measures_on_the_others() -> None:
    """Which these are nobody else chooses: seeds are found whose rows held out differ in one, and scores tell it."""
    found = resolved(REQUEST)
    (train,), (held,) = found.clients, found.validation
    assert (train.part, held.part) == ("train", "validation")
    for one in (train, held):
        assert (one.file.path, one.validation_fraction, one.seed) == ("/shop.csv", 0.25, SECRET)


@pytest.mark.parametrize(
    "asked",
    [
        described().holding_out(0.5, SEED).part((1,)),
        described().holding_out(0.25, SEED + 1).part((1,)),
        described().part((1,)),
        replace(REQUEST, validation=REQUEST.clients),
        replace(REQUEST, clients=REQUEST.validation),
        described().holding_out(0.25, SEED).part((0,)),
    ],
    ids=["more rows", "another seed", "none held out", "training rows", "validation rows", "another's"],
)
def test_other_rows_than_follow_from_the_approved_settings_are_refused(asked: Any) -> None:
    with pytest.raises(Refused, match="with other data than the approved ones, or another's"):
        resolved(asked)


def test_without_the_setting_nothing_is_held_out() -> None:
    config = replace(CONFIG, validation_fraction=0.0, local_parameters=())
    assert resolved(described().part((1,)), config).validation == ()
    with pytest.raises(Refused, match="with other data than the approved ones"):
        resolved(REQUEST, config)


@pytest.mark.parametrize(("share", "part"), [(0.02, "validation"), (0.98, "train")])
def test_a_site_measures_and_trains_on_more_than_a_row(tmp_path: Path, share: float, part: str) -> None:
    """Else a score, or a change of the model, of one row tells a coordinator all of that row."""
    world = World(tmp_path)
    shop, task = world.folder(SHOP), world.folder(BANK).task("patients")
    assert task is not None
    rows = shop.source(DataName(site=SHOP, name="cases"), task)
    with pytest.raises(BadInput, match=f"1 rows of .* are in the {part} part; at least 10"):
        replace(rows.holding_out(share, SEED), part=part).load()
    replace(rows.holding_out(0.2, SEED), part=part).load()
