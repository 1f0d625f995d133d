import numpy as np
import pytest

from fedactors.data.party_rows import PartyBlock, check_block, one_hot, prepare, prepare_like, split
from fedactors.errors import BadInput


def block(features, *, ids=None, labels=None, keeps_scale=None):
    features = np.asarray(features, np.float32)
    return PartyBlock(
        origin="bank.csv",
        ids=np.arange(len(features)) if ids is None else np.asarray(ids),
        features=features,
        feature_names=tuple(f"f{index}" for index in range(features.shape[1])),
        keeps_scale=np.zeros(features.shape[1], bool) if keeps_scale is None else np.asarray(keeps_scale),
        labels=None if labels is None else np.asarray(labels),
    )


def test_one_hot_keeps_numbers_and_names():
    codes = np.asarray([[1.5, 0, 7], [2.5, 2, 8], [3.5, 1, 9]], np.float32)
    made, names, flags = one_hot(codes, ("age", "job", "sum"), {"job": ("a", "b", "c")})
    assert names == ("age", "job=a", "job=b", "job=c", "sum")
    np.testing.assert_array_equal(made, [[1.5, 1, 0, 0, 7], [2.5, 0, 0, 1, 8], [3.5, 0, 1, 0, 9]])
    assert list(flags) == [False, True, True, True, False]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (block(np.zeros((4, 0))), "no feature column"),
        (block(np.zeros((0, 2))), "no rows"),
        (block([[1, 2], [3, np.nan]]), "column f1: 1 values are NaN"),
        (block([[1, 2], [np.inf, 4]]), "column f0: 1 values"),
        (block([[1], [2], [3]], ids=["a", "b", "a"]), "1 ids occur more than once, the first is a"),
        (block([[1], [2]], labels=[1, 1]), "every row has the label 1"),
        (block([[1], [2]], labels=[0.0, np.nan]), "label: 1 values are missing"),
        (block([[1], [2]], labels=[0, 2]), "expected 2"),
    ],
)
def test_bad_rows_name_party_file_and_column(made, said):
    with pytest.raises(BadInput, match=said) as caught:
        check_block(made, "bank", "binary", 2)
    assert str(caught.value).startswith("bank: bank.csv")


def test_split_shares_seed_and_disjointness():
    parts = split(1000, seed=3)
    assert (len(parts.test), len(parts.validation), len(parts.train)) == (300, 70, 630)
    together = np.concatenate([parts.train, parts.validation, parts.test])
    np.testing.assert_array_equal(np.sort(together), np.arange(1000))
    np.testing.assert_array_equal(split(1000, seed=3).train, parts.train)
    assert not np.array_equal(split(1000, seed=4).train, parts.train)
    assert len(split(10, seed=0, validation_fraction=0).validation) == 0
    with pytest.raises(BadInput, match=r"2 aligned rows cannot be split"):
        split(2, seed=0)


def test_standardised_by_the_training_part_alone():
    rng = np.random.default_rng(0)
    features = np.stack([rng.normal(5, 3, 200), np.full(200, 9.0), rng.integers(0, 2, 200)], axis=1)
    parts = split(200, seed=0)
    held_out = np.concatenate([parts.test, parts.validation])
    order = rng.permutation(200)
    features[order[held_out], 0] += 1000  # what is held out must not move the mean
    made = prepare(block(features, keeps_scale=[False, False, True]), order, parts, "binary")
    assert abs(made.train.features[:, 0].mean()) < 1e-5
    assert made.train.features[:, 0].std() == pytest.approx(1, abs=1e-5)
    assert made.test.features[:, 0].min() > 100
    assert (made.train.features[:, 1] == 0).all()
    assert set(np.unique(made.train.features[:, 2])) == {0, 1}
    assert made.train.labels is None
    np.testing.assert_allclose(
        made.test.features[:, 0] * made.preprocessing.deviation[0] + made.preprocessing.mean[0],
        features[order[parts.test], 0],
        rtol=1e-4,
    )


def test_regression_targets_are_standardised_and_the_scale_kept():
    rng = np.random.default_rng(1)
    labels = rng.normal(100, 20, 300).astype(np.float32)
    parts = split(300, seed=0)
    made = prepare(block(rng.normal(size=(300, 2)), labels=labels), np.arange(300), parts, "regression")
    assert abs(made.train.labels.mean()) < 1e-5
    np.testing.assert_allclose(made.test.labels * made.label_deviation + made.label_mean, labels[parts.test], rtol=1e-5)


def test_a_training_part_of_one_class_is_refused():
    parts = split(100, seed=0)
    labels = np.zeros(100, int)
    labels[parts.test[0]] = 1
    with pytest.raises(BadInput, match=r"training part has the single label 0"):
        prepare(block(np.ones((100, 1)), labels=labels), np.arange(100), parts, "binary")


def test_new_rows_of_other_columns_are_refused():
    trained = prepare(block(np.eye(10)[:, :2]), np.arange(10), split(10, seed=0), "binary").preprocessing
    np.testing.assert_array_equal(prepare_like(block(np.eye(2)), trained), trained.finish(np.eye(2, dtype=np.float32)))
    with pytest.raises(BadInput, match=r"bank.csv: the columns are not those .*'f2' is unknown"):
        prepare_like(block(np.ones((1, 3))), trained)
    with pytest.raises(BadInput, match=r"'f1' is absent"):
        prepare_like(block(np.ones((1, 1))), trained)
