import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.nebulafl.money import Bill, Rental, rent


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


@given(entries, st.randoms(use_true_random=False))
def test_money_is_the_sum_over_the_log_in_any_order(log, shuffler):
    first, second = Bill(), Bill()
    for entry in log:
        first.add(entry)
    shuffler.shuffle(log)
    for entry in log:
        second.add(entry)
    by_hand = sum(e.price * (e.end - e.start) / 3600 for e in log)
    assert first.dollars() == second.dollars() == pytest.approx(by_hand)
    bills = first.centers({"x": 2, "y": 2, "z": 2}, 1000.0)
    assert sum(bill.rent for bill in bills.values()) == pytest.approx(first.dollars())


def test_utilisation():
    bill = Bill()
    for entry in (rental(), rental(end=1800.0, useful=False), rental("y", end=360.0)):
        bill.add(entry)
    centers = bill.centers({"x": 3, "y": 1, "z": 1}, 3600.0)
    assert centers["x"].utilisation == pytest.approx(0.5)
    assert centers["x"].busy_hours == pytest.approx(1.5)
    assert centers["x"].rent == pytest.approx(0.3 + 0.15)
    assert (centers["z"].rent, centers["z"].utilisation) == (0.0, 0.0)


def test_a_snapshot_keeps_every_entry():
    first, second = Bill(), Bill()
    first.add(rental())
    second.load_state_dict(first.state_dict())
    assert second.rentals == first.rentals
