"""Columns are brought to mean 0 and deviation 1 over all clients' rows, by sums that tell no site's own under masks."""

from __future__ import annotations

import dataclasses
import functools
import math
import secrets
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

import fedactors
from fedactors.data.layouts.horizontal import rows_key, rows_of
from fedactors.errors import BadInput, Refused, Stopped
from fedactors.protocols.horizontal import serving
from fedactors.protocols.horizontal.actors import HorizontalServer
from fedactors.protocols.horizontal.data import load_data
from fedactors.protocols.horizontal.messages import ColumnMeans, ColumnScale, ColumnSums, sent
from fedactors.protocols.horizontal.run import run
from fedactors.protocols.horizontal.standardisation import digits_key, numbers_of, words_of
from fedactors.runtime.interface import Snapshot
from fedactors.runtime.simulation.network import Wire
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from fedactors.secure_sums.actors import SecureSums
from fedactors.secure_sums.messages import Masked
from fedactors.secure_sums.primitives import plus
from tests.protocols.horizontal.federation import CutRecorder, changed, play, rounds, state_of, user_files, vector_of

CONFIG = dataclasses.replace(changed(num_rounds=3), num_clients=None, num_training=None)


def rows_written(folder, name):
    return np.loadtxt(folder / f"{name}.csv", delimiter=",", skiprows=1, dtype=np.float32)[:, :3]


def in_thousands(folder):
    """Give the middle column another scale and origin at each client."""
    for index, name in enumerate(("north", "south", "west", "test")):
        head, *lines = (folder / f"{name}.csv").read_text().splitlines()
        cells = [line.split(",") for line in lines]
        made = [",".join([a, str(30_000 + 9_000 * float(b) + 5_000 * index), c, y]) for a, b, c, y in cells]
        (folder / f"{name}.csv").write_text("\n".join([head, *made]))


@pytest.fixture
def data(tmp_path):
    name = user_files(tmp_path)
    in_thousands(tmp_path)
    return name


@pytest.mark.parametrize("is_secure", [False, True])
def test_the_scale_is_that_of_all_clients_rows_together(tmp_path, data, is_secure):
    _, recorder, _ = play(dataclasses.replace(CONFIG, secure_aggregation=is_secure), name=data)
    pooled = np.concatenate([rows_written(tmp_path, name) for name in ("north", "south", "west")]).astype(np.float64)
    for name in ("north", "south", "west"):
        mean, deviation = state_of(recorder, name)["scale"]
        assert np.allclose(mean, pooled.mean(axis=0), rtol=1e-12)
        assert np.allclose(deviation, pooled.std(axis=0), rtol=1e-12)
    part = serving.part(CONFIG, "server", recorder.checkpoints["final"].actors)
    assert np.array_equal(part.preprocessing.mean, np.asarray(mean, np.float32))


def test_under_masks_no_sum_of_a_site_crosses(data, monkeypatch):
    crossed, back = [], Wire._send_back

    def listen(self, call, reply):
        crossed.append((call.sender, reply))
        return back(self, call, reply)

    monkeypatch.setattr(Wire, "_send_back", listen)
    play(dataclasses.replace(CONFIG, secure_aggregation=True, num_rounds=1), name=data)
    answers = [reply for _, reply in crossed]
    assert not any(isinstance(one, ColumnSums) for one in answers)
    assert any(isinstance(one, Masked) for one in answers)
    told = sent(changed(secure_aggregation=True, secure_range=10.0))
    assert {ColumnMeans, ColumnScale} <= set(told)
    assert ColumnSums not in told


def test_a_resumed_run_keeps_the_scale(data):
    _, whole, _ = play(CONFIG, name=data)
    before = CutRecorder(after=1)
    runtime = before.runtime = SimulatedRuntime(seed=0, recorder=before)
    loaded = load_data(CONFIG, data, 0)
    with pytest.raises(Stopped):
        runtime.execute(lambda: run(CONFIG, loaded, runtime))
    kept = before.checkpoints["last"]
    _, after, _ = play(CONFIG, name=data, resume=Snapshot(kept.actors, kept.driver))
    assert rounds(before) + rounds(after) == rounds(whole)
    assert np.array_equal(vector_of(after), vector_of(whole))


def test_columns_of_a_rule_keep_their_scale(tmp_path, data):
    text = (tmp_path / "parties.toml").read_text()
    rule = '[task.columns]\nb = { scaling = "range", range = [0, 100000] }\na = { scaling = "none" }\n'
    (tmp_path / "parties.toml").write_text(
        text.replace("[parties.north]", f"{rule}[parties.north]").replace(
            'label = "y"', 'label = "y"\nfeatures = ["a", "b", "c"]'
        )
    )
    _, recorder, _ = play(CONFIG, name=data)
    mean, deviation = state_of(recorder, "north")["scale"]
    assert (mean[:2], deviation[:2]) == ((0.0, 0.0), (1.0, 1.0))
    assert deviation[2] != 1.0


def test_nothing_is_asked_where_rows_are_taken_as_they_are(data):
    _, recorder, _ = play(dataclasses.replace(CONFIG, standardisation="none"), name=data)
    assert state_of(recorder, "north")["scale"] == ()
    part = serving.part(CONFIG, "server", recorder.checkpoints["final"].actors)
    assert part.preprocessing.deviation.tolist() == [1, 1, 1]


def test_an_income_in_thousands_needs_no_setting(tmp_path):
    rng = np.random.default_rng(0)
    age, income = rng.normal(size=1200), rng.normal(30_000, 9_000, size=1200)
    y = (2 * age + 2 * (income - 30_000) / 9_000 + 0.2 * rng.logistic(size=1200) > 0).astype(int)
    tables = [pa.table({"age": age[k::4], "income": income[k::4], "y": y[k::4]}) for k in range(4)]
    held = dict(zip(("a", "b", "c"), tables, strict=False))
    data = fedactors.horizontal(held, label="y", test=tables[3], task="binary")
    accuracy = {
        how: fedactors.simulate("horizontal", data, standardisation=how).metrics["test/accuracy"]
        for how in ("none", "sums")
    }
    assert accuracy["none"] < 0.9 < 0.94 < accuracy["sums"]


def test_new_rows_are_standardised_alike(tmp_path, data):
    _, recorder, _ = play(CONFIG, name=data)
    part = serving.part(CONFIG, "server", recorder.checkpoints["final"].actors)
    source = load_data(CONFIG, data, 0).files[0]
    mean, deviation = state_of(recorder, "north")["scale"]
    trained = rows_of(rows_key(dataclasses.replace(source, mean=mean, deviation=deviation)))[0]
    assert np.array_equal(part.preprocess(tmp_path / "north.csv").numpy(), trained)


def added(words):
    """Return the sum of sites' words, with carries."""
    flat = [one.astype(np.uint32).reshape(-1) for one in words]
    num_words = words[0].shape[1]
    total = functools.reduce(lambda some, others: plus(some, others, num_words), flat)
    return total.reshape(words[0].shape).astype(float)


def keys(number):
    return [secrets.token_bytes(32) for _ in range(number)]


numbers = st.floats(-(2.0**119), 2.0**119) | st.floats(-10, 10) | st.sampled_from([0.0, -1.0, 2.0**-128, -(2.0**-130)])


@given(st.lists(numbers, min_size=1, max_size=40))
def test_words_add_up_to_the_total(values):
    total = numbers_of(added([words_of(np.array([one]), key) for one, key in zip(values, keys(99), strict=False)]))
    exact = math.fsum(values)
    error = sum(math.ulp(one) / 2 for one in values) + len(values) * 2.0**-128  # the last digits, and the grid
    assert abs(Fraction(float(total[0])) - sum(map(Fraction, values))) <= error + Fraction(math.ulp(exact))
    assert len(values) > 1 or abs(total[0] - values[0]) <= max(math.ulp(values[0]), 2.0**-128)


def test_the_same_sums_have_the_same_words():
    """What is summed again among others is known by its words."""
    values, seeds = np.array([1.5, -2.0, 0.0]), {}
    key = digits_key(lambda purpose: seeds.setdefault(purpose, len(seeds)), np.zeros(0))
    assert key == digits_key(lambda purpose: seeds.setdefault(purpose, len(seeds)), np.zeros(0))
    assert key != digits_key(lambda purpose: seeds.setdefault(purpose, len(seeds)), np.zeros(1))
    assert np.array_equal(words_of(values, key), words_of(values, key))
    assert not words_of(values, key)[2].any()


@pytest.mark.parametrize("small", [0.001, -0.001, 0.0])
@pytest.mark.parametrize("signs", [(1, 1), (1, -1), (-1, -1)])
def test_digits_below_those_of_the_largest_sum_are_uniform(small, signs):
    """Those of the site whose numbers are small stood in them alone, and their sum told how many were below 0."""
    rng, below = np.random.default_rng(4), 1 << (29 - 52 + 128)  # the last digit of numbers about 1e9
    drawn = []
    for _ in range(500):
        values = [np.array([sign * 1e9 * (0.6 + 0.3 * rng.random())]) for sign in signs] + [np.array([small])]
        (row,) = added([words_of(one, key) for one, key in zip(values, keys(3), strict=True)]).astype("<u4")
        drawn.append(int.from_bytes(row.tobytes(), "little") % below / below)
    assert kstest(drawn, "uniform").pvalue > 1e-4


def test_what_a_server_reads_of_columns_tells_no_signs(monkeypatch):
    """A distinguisher: the mean of the digits behind the point, over that of uniform ones, counts the signs."""
    rng, columns, read, totals = np.random.default_rng(6), [f"c{i}" for i in range(30)], [], SecureSums.total

    async def reading(self, parts, point, work):
        found, whose = await totals(self, parts, point, work)
        if found.ndim == 2:
            read.append(found)
        return found, whose

    def table(centre):
        rows = {name: centre + rng.normal(size=40) for name in columns}
        return pa.table({**rows, "y": rng.integers(0, 2, 40)})

    monkeypatch.setattr(SecureSums, "total", reading)
    guesses = []
    for signs in ((1, 1, 1), (1, -1, 1), (-1, -1, 1)):
        held = {name: table(sign * 5.0) for name, sign in zip(("a", "b", "c"), signs, strict=True)}
        data = fedactors.horizontal(held, label="y", test=table(0.0), task="binary")
        words = {"secure_aggregation": True, "num_rounds": 1, "hidden_size": 2}
        fedactors.simulate("horizontal", data, seed=len(guesses), **words)
        first = read[-2][1:]  # of the numbers, not of the rows
        guesses.append(first[:, 3].mean() / 2.0**31)  # what stands behind the point
    assert np.allclose(guesses, 1, atol=0.4), guesses


def test_numbers_without_a_sum_are_refused(tmp_path, data):
    text = (tmp_path / "north.csv").read_text().splitlines()
    text[1] = "1e30," + text[1].split(",", 1)[1]
    (tmp_path / "north.csv").write_text("\n".join(text))
    with pytest.raises(BadInput, match="standardisation=none"):
        play(CONFIG, name=data)


def test_under_noise_no_sums_leave(data):
    private = dataclasses.replace(CONFIG, client_clip_norm=1.0, client_noise_multiplier=1.0, num_rounds=1)
    assert not {ColumnMeans, ColumnSums, ColumnScale} & set(sent(private))
    _, recorder, _ = play(private, name=data)
    assert state_of(recorder, "north")["scale"] == ()


def test_a_server_that_asks_for_sums_of_columns_that_stay_as_they_are_is_refused(monkeypatch):
    async def asking(self, reading):
        await self._column_sums(np.zeros(0), 1)
        return reading

    monkeypatch.setattr(HorizontalServer, "_with_scale", asking)
    with pytest.raises(Refused, match="asks client-0 for sums of columns, none of which is standardised"):
        fedactors.simulate("horizontal", num_rounds=1, num_clients=2)
