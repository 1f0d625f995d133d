import json
import re
import tomllib
from dataclasses import replace
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedactors.errors import BadInput
from fedactors.learning.models import ModelSpec
from fedactors.protocols.nebulafl.data import catalogue_for, num_operations, read_catalogue
from fedactors.protocols.nebulafl.hardware import Bill, HardwarePool, HardwareType, Rental, rent
from tests.protocols.nebulafl.runs import changed, play


def test_a_model_without_throughput_is_bad_input():
    with pytest.raises(BadInput, match="type 'a' has no throughput for model 'vgg16'"):
        HardwareType(name="a", price=1, throughput={"m": 10.0}).samples_per_second("vgg16")


def small_net(inputs, outputs):
    """A network of one's own with the operations of a smaller ``top-mlp``."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, outputs))


def test_a_model_of_ones_own_is_as_fast_as_its_operations_say():
    config = changed(model=f"{__name__}:small_net", num_training=300, duration=700.0, work_factor=100.0)
    spec = ModelSpec(name=config.model, inputs=(1, 8, 8), outputs=10)
    known = read_catalogue("scarce").types["rtx-3080"].throughput
    times = num_operations(replace(spec, name="cnn8")) / num_operations(spec)
    # the products of a step: forward, and back to both factors; 2,410 numbers beside them
    by_hand = 2 * (64 * 32 + 32 * 10) * 3 - 2 * 64 * 32 + 2 * 2410
    assert num_operations(spec) == pytest.approx(by_hand)
    made = catalogue_for(config, spec).types["rtx-3080"]
    assert made.samples_per_second(config.model) == pytest.approx(known["cnn8"] * times)
    assert catalogue_for(config, spec) == catalogue_for(config, spec)
    result, _, _ = play(config)
    assert any("operations of a step that was tried" in note for note in result.extra["notes"])
    assert result.metrics["trainings"] > 0


def test_a_network_that_the_catalogue_names_needs_no_trial():
    spec = ModelSpec(name="cnn8", inputs=(1, 8, 8), outputs=10)
    assert catalogue_for(changed(), spec) == read_catalogue("scarce")


def test_a_unit_that_starts_up_is_paid_and_takes_longer(tmp_path):
    """Each rental begins with its start-up, which scores, bills and times count."""
    text = resources.files("fedactors.protocols.nebulafl").joinpath("examples", "scarce", "catalogue.toml").read_text()
    slow = re.sub(r"(?m)^price = ", "startup = 60.0\nprice = ", text)
    (tmp_path / "slow.toml").write_text(slow)
    config = changed(num_training=300, model="linear", work_factor=100.0)
    quick, _, _ = play(config)
    result, recorder, _ = play(changed(config, catalogue=str(tmp_path / "slow.toml")))
    spans = [json.loads(line) for line in recorder.lines]
    taken = [one["end"] - one["start"] for one in spans if one["type"] == "span" and one["kind"] == "train"]
    assert min(taken) > 60.0
    assert result.metrics["trainings"] < quick.metrics["trainings"]
    with pytest.raises(BadInput, match="startup"):
        read_catalogue(json.dumps(tomllib.loads(slow.replace("startup = 60.0", "startup = -1"))) + "\n")


# --- units ---


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=80))
def test_no_unit_is_ever_let_twice(events):
    pool = HardwarePool({"a": 2, "b": 3, "c": 0})
    let: set[str] = set()
    for take, number in events:
        free = pool.available()
        if take and free:
            unit = pool.acquire(free[number % len(free)])
            assert unit not in let
            let.add(unit)
        elif let and not take:
            unit = sorted(let)[number % len(let)]
            pool.release(unit)
            let.remove(unit)
        assert sum(len(numbers) for numbers in pool.free.values()) + len(let) == 5
        assert ("c" in pool.available()) is False
        assert bool(pool.available()) == (len(let) < 5)


def test_letting_or_returning_what_is_not_there_is_an_error():
    pool = HardwarePool({"a": 1})
    unit = pool.acquire("a")
    for name in ("a", "b"):
        with pytest.raises(ValueError, match="free"):
            pool.acquire(name)
    pool.release(unit)
    for name in (unit, "a#1"):
        with pytest.raises(ValueError, match="not let"):
            pool.release(name)


def test_a_center_without_hardware_is_bad_input():
    with pytest.raises(BadInput, match="at least one unit"):
        HardwarePool({"a": 0})


def test_a_snapshot_keeps_what_is_let():
    first, second = HardwarePool({"a": 2}), HardwarePool({"a": 2})
    unit = first.acquire("a")
    second.load_state_dict(first.state_dict())
    assert second.acquire("a") != unit
    second.release(unit)
    assert second.acquire("a") == unit


# --- the bill ---


def rental(center="x", start=0.0, end=3600.0, price=0.3, useful=True) -> Rental:
    return Rental(center=center, unit="a#0", container="c", start=start, end=end, price=price, useful=useful)


def test_price_times_time():
    assert rent(0.6, 1800.0) == pytest.approx(0.3)
    with pytest.raises(ValueError, match="-1"):
        rent(0.6, -1.0)


entries = st.lists(
    st.builds(
        lambda c, s, d, p, u: rental(c, s, s + d, p, u),
        st.sampled_from("xyz"),
        st.floats(0, 1e6),
        st.floats(0, 1e5),
        st.floats(0, 10),
        st.booleans(),
    ),
    max_size=30,
)


@pytest.mark.slow
@given(entries, st.randoms(use_true_random=False))
def test_cost_is_the_sum_over_the_log_in_any_order(log, shuffler):
    first, second = Bill(), Bill()
    for entry in log:
        first.add(entry)
    shuffler.shuffle(log)
    for entry in log:
        second.add(entry)
    by_hand = sum(e.price * (e.end - e.start) / 3600 for e in log)
    assert first.dollars() == second.dollars() == pytest.approx(by_hand)
    assert sum(first.center(name, 2, 1000.0).rent for name in "xyz") == pytest.approx(first.dollars())


def test_utilisation():
    bill = Bill()
    for entry in (rental(), rental(end=1800.0, useful=False), rental("y", end=360.0)):
        bill.add(entry)
    of_x, of_z = bill.center("x", 3, 3600.0), bill.center("z", 1, 3600.0)
    assert of_x.utilisation == pytest.approx(0.5)
    assert of_x.busy_hours == pytest.approx(1.5)
    assert of_x.rent == pytest.approx(0.3 + 0.15)
    assert (of_z.rent, of_z.utilisation) == (0.0, 0.0)


def test_a_snapshot_keeps_every_entry():
    first, second = Bill(), Bill()
    first.add(rental())
    second.load_state_dict(first.state_dict())
    assert second.rentals == first.rentals
