"""What the leak search finds, and that it finds nothing where there is nothing."""

import base64
import gzip
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_digits

from fedactors.testing.conformance import search
from fedactors.testing.leaks import RawData
from fedactors.testing.observation import Gathered

CANCER, DIGITS = load_breast_cancer(), load_digits()


def known(*sets):
    raw = RawData()
    for name, features, labels in sets:
        raw.add_features(name, np.asarray(features, np.float32))
        raw.add_labels(name, labels)
    return raw


RAW = known(("cancer", CANCER.data, CANCER.target))
IMAGES = known(("digits", DIGITS.data, DIGITS.target))
X = CANCER.data.astype(np.float32)
BATCH = np.random.default_rng(0).choice(len(X), 64, replace=False)


def find(value, raw=RAW):
    return raw.find(np.asarray(value)) or ""


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (X[BATCH, 3], "column 3 of cancer unchanged"),
        (np.sort(X[BATCH, 3]), "column 3 of cancer unchanged"),
        (X[BATCH[:10], 3].astype(np.float64), "column 3 of cancer unchanged"),
        (X[17], "row 17 of cancer unchanged"),
        (X[BATCH], "unchanged"),
        (X[BATCH].reshape(4, 16, -1), "unchanged"),
        (X.T[:, BATCH], "unchanged"),
        (X[17] * 2 - 9, "row 17 of cancer, or an affine map"),
        (X[20:30, 7] * -0.5 + 3, "column 7 of cancer"),
        ((X[BATCH] * 3 + 1).ravel(), "or an affine map"),
        (CANCER.target, "the labels of cancer"),
        (1 - 2.0 * CANCER.target[100:180], "the labels of cancer"),
    ],
)
def test_copies_are_found(sent, words):
    assert words in find(sent)


@pytest.mark.parametrize("number", [0, 100, 1000])
def test_an_image_is_found_in_its_own_order(number):
    image = DIGITS.data[number]
    assert f"row {number} of digits" in find(image / 16, IMAGES)
    assert f"row {number} of digits" in find(np.concatenate([np.zeros(30), image, np.ones(30)]), IMAGES)


def harmless():
    rng = np.random.default_rng(1)
    standard = (X - X.mean(0)) / X.std(0)
    weights = rng.normal(size=(X.shape[1], 16))
    yield "noise", rng.normal(size=(64, 32))
    yield "embedding", standard[BATCH] @ weights
    yield "activation", np.tanh(standard[BATCH] @ weights)
    yield "embedding of two columns", standard[BATCH, :2] @ weights[:2]
    yield "scores", 1 / (1 + np.exp(-standard[BATCH] @ weights[:, 0]))
    yield "model", rng.normal(size=50_000).astype(np.float32)
    yield "numbers", np.arange(1000)
    yield "steps", np.linspace(0, 1, 200)
    yield "hundredths", np.arange(100) / 100
    yield "thousandths", rng.normal(size=300).round(3)
    yield "counts", rng.poisson(300, size=500)
    yield "codes", rng.integers(0, 17, 500)
    yield "mask", rng.integers(0, 2, 20_000)
    yield "one hot", np.eye(10)[rng.integers(0, 10, 300)]
    yield "noisy column", X[BATCH, 3] * (1 + 1e-3 * rng.normal(size=64))
    yield "rounded logarithms", np.log(X[BATCH, 3]).round(2)
    yield "nothing", np.zeros((0, 5))
    yield "not a number", np.full(100, np.nan)


@pytest.mark.slow
@pytest.mark.drawn(6)
@pytest.mark.parametrize(("name", "sent"), list(harmless()), ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("raw", [RAW, IMAGES], ids=["cancer", "digits"])
def test_nothing_is_found_where_there_is_nothing(raw, name, sent):
    assert find(sent, raw) == ""


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(10, 400), st.integers(0, 3), st.floats(0.01, 1000))
def test_random_numbers_are_no_copies(seed, size, digits, scale):
    rng = np.random.default_rng(seed)
    drawn = rng.choice([rng.normal, rng.exponential, rng.gumbel])(size=size) * scale
    assert find(drawn.round(digits) if digits else drawn) == ""


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(40, 300), st.integers(0, 29), st.floats(1e-3, 1e3), st.floats(-10, 10))
def test_an_affine_map_of_any_column_is_found_in_the_order_of_a_batch(seed, size, column, slope, offset):
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(X), size, replace=False)
    sent = rng.normal(size=(size, 5))
    sent[:, 2] = slope * X[rows, column].astype(np.float64) * (-1) ** (seed % 2) + offset
    assert RAW.find_drawn(sent, [np.arange(size), rows]) == f"column {column} of cancer, in the order of a batch"
    assert RAW.find_drawn(sent, [np.arange(size)]) is None


def test_labels_in_the_order_of_a_batch_are_found():
    labels = CANCER.target[BATCH]
    assert RAW.find_drawn(labels, [np.arange(64), BATCH]) == "the labels of cancer, in the order of a batch"
    assert RAW.find_drawn(labels, [np.arange(64)]) is None
    assert RAW.find_drawn(np.random.default_rng(2).integers(0, 2, 64), [BATCH]) is None


def searched(*values, raw=RAW):
    """What is found in values that left."""
    made = Gathered("a to b")
    for value in values:
        made.add(value)
    return search(raw, made) or ""


@pytest.mark.slow
def test_texts_bytes_and_numbers_are_searched():
    assert "column 0" in searched(*[" ".join(f"{value:.2f}" for value in X[:30, 0])])
    assert "column 0" in searched(*[f"row {i}: {value:.2f}" for i, value in enumerate(X[:30, 0])])
    assert "column 3" in searched(*[b"abc" + X[BATCH, 3].tobytes()])
    assert "column 3" in searched(*[b"abcde" + X[BATCH, 3].astype(np.float64).tobytes()])
    assert "column 3" in searched(*[float(value) for value in X[:20, 3]])
    assert "column 3" in searched(*[np.append(np.zeros(2), value) for value in X[:20, 3]])
    labels = CANCER.target[:100].astype(np.uint8)
    for sent in (labels.tobytes(), "".join(map(str, labels)), " ".join(("no", "yes")[label] for label in labels)):
        assert "the labels of cancer" in searched(sent)
    rng = np.random.default_rng(0)
    assert searched(rng.bytes(100_000), rng.bytes(64).hex(), zlib.compress(rng.normal(size=100).tobytes())) == ""


COLUMN = X[BATCH, 3]
FORMS = {
    "base64": base64.b64encode(COLUMN.tobytes()).decode(),
    "base64 of addresses": f"rows={base64.urlsafe_b64encode(COLUMN.tobytes()).decode()}",
    "base64 in lines": base64.encodebytes(COLUMN.tobytes()).decode(),
    "base64 as bytes": base64.b64encode(COLUMN.tobytes()),
    "compressed": zlib.compress(COLUMN.tobytes()),
    "gzip": gzip.compress(COLUMN.tobytes()),
    "compressed in base64": base64.b64encode(zlib.compress(COLUMN.tobytes())).decode(),
    "compressed text": zlib.compress(" ".join(map(str, COLUMN)).encode()),
    "network order": COLUMN.astype(">f8").tobytes(),
}


@pytest.mark.parametrize("name", FORMS)
def test_texts_and_bytes_are_unpacked(name):
    assert "of cancer unchanged" in searched(FORMS[name])


def test_empty_parts_and_constant_columns_are_no_defect():
    raw = known(("empty", np.zeros((0, 3)), np.zeros(0)), ("constant", np.ones((40, 3)), np.ones(40)))
    assert raw.find(np.ones(100)) is None
    assert raw.find(np.zeros((0, 3))) is None
