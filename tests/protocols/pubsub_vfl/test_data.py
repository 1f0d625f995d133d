import dataclasses

import numpy as np
import pytest

from fedactors.data.columns import ColumnRule, FittedColumn
from fedactors.data.layouts.vertical import vertical
from fedactors.data.party_rows import split
from fedactors.errors import BadInput
from fedactors.protocols.pubsub_vfl.data import PartyRows, batches, num_batches
from tests.protocols.pubsub_vfl.runs import arrays, config_of


def test_batches_cover_the_rows_once_and_differ_between_epochs():
    first, second = (batches(103, 10, 7, epoch) for epoch in (1, 2))
    assert len(first) == num_batches(103, 10) == 11
    assert sorted(np.concatenate(first)) == list(range(103))
    assert not np.array_equal(np.concatenate(first), np.concatenate(second))
    assert all(map(np.array_equal, first, batches(103, 10, 7, 1)))


def test_a_peer_may_name_validation_and_test_rows_only():
    rows = PartyRows(config_of(), arrays("multiclass").part("passive-1"), 0)
    rows.follow(rows.draw(np.arange(400), np.zeros(0, np.uint8), np.random.default_rng(0)))
    sizes = {name: len(rows.part(name).features) for name in ("validation", "test")}
    assert sum(sizes.values()) + rows.num_train == 400
    for name in ("train", "block"):
        with pytest.raises(BadInput, match=f"part: '{name}' is not allowed: use validation, test"):
            rows.part(name)


def test_what_would_read_rows_or_labels_without_noise_is_refused():
    data = dataclasses.replace(arrays("multiclass"), split="stratified")
    rows = PartyRows(config_of(label_epsilon=1.0), data.part("active"), 0)
    with pytest.raises(BadInput, match=r"task.split: 'stratified' is not allowed with label_epsilon=1"):
        rows.draw_parts(np.arange(400))
    assert len(PartyRows(config_of(), data.part("active"), 0).draw_parts(np.arange(400))) == 400
    rows = PartyRows(config_of(standardisation="private"), data.part("passive-1"), 0)
    column = FittedColumn(name="c0", rule=ColumnRule(missing="median"))
    rows.block = dataclasses.replace(rows.block, columns=(column, *rows.block.columns[1:]))
    with pytest.raises(BadInput, match=r"passive-1: missing values of 'c0' are filled with what is measured"):
        rows.draw(np.arange(400), np.zeros(0, np.uint8), np.random.default_rng(0))


def test_a_private_scale_is_drawn_once_and_exchanged_labels_spare_the_test_rows():
    config = config_of(standardisation="private", standardisation_mu=2.0, label_epsilon=0.5)
    data, order = arrays("multiclass"), np.arange(400)
    rows = PartyRows(config, data.part("active"), 0)
    drawn = rows.draw(order, np.zeros(0, np.uint8), np.random.default_rng(0))
    rows.follow(drawn)
    block = data.load("active")
    assert block.labels is not None
    changed = drawn.labels != block.labels
    assert 0.3 < changed.mean() < 0.6
    assert not changed[split(400, seed=0, test_fraction=0.3, validation_fraction=0.1).test].any()
    np.testing.assert_allclose(rows.prepared.preprocessing.mean, block.features.mean(axis=0), atol=0.3)
    np.testing.assert_allclose(rows.prepared.preprocessing.deviation, block.features.std(axis=0), rtol=0.3)
    again = PartyRows(config, data.part("active"), 0)
    again.load_state_dict(rows.state_dict())
    assert (again.prepared.train.features == rows.prepared.train.features).all()
    assert (again.prepared.train.labels == rows.prepared.train.labels).all()


def test_workers_of_a_party_in_one_process_hold_the_rows_of_named_data_once():
    part, config = vertical("breast-cancer").part("active"), config_of()
    first, second = (PartyRows(config, dataclasses.replace(part), 0) for _ in range(2))
    assert first.block is second.block
    for array in (first.block.features, first.block.labels, first.block.ids, first.block.keeps_scale):
        with pytest.raises(ValueError, match="read-only"):
            array[:1] = 0  # type: ignore[index]  # it would be the other's row too
    assert vertical("breast-cancer").load("passive") is not first.block
    file = arrays("multiclass").part("passive-1")
    assert PartyRows(config, file, 0).block is not PartyRows(config, file, 0).block
