"""Two sums over rows that overlap: in one company as often as one likes, in two companies never."""

from __future__ import annotations

import numpy as np
import pytest

from fedactors.secure_sums import protocol
from fedactors.secure_sums.protocol import SecureSumError
from tests.secure_sums.test_protocol import FIVE, Sums


def tables(rows=6, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=(rows, 3)).clip(-4, 4) for name in FIVE}


def batch(values, rows):
    return {name: local[rows] for name, local in values.items()}


def total(sums, values, company):
    # in the honest case this is the sum; a lying server drops whom it likes
    return sums.finish(sums.mask({name: values[name] for name in company}))


def test_two_batches_that_share_a_row_would_show_it_and_are_refused() -> None:
    values, sums = tables(), Sums()
    first = total(sums, batch(values, [0, 1, 2]), FIVE)
    sums.prepare(FIVE)
    with pytest.raises(SecureSumError, match="1 of the 3 different rows were summed before, among others"):
        # row 2 again, and without eve: what is missing from its sum would be eve's
        total(sums, batch(values, [2, 3, 4]), FIVE[:4])
    assert np.allclose(first.reshape(3, 3)[2], sum(local[2] for local in values.values()), atol=1e-6)


def test_the_order_of_the_rows_does_not_hide_them() -> None:
    values, sums = tables(), Sums()
    total(sums, batch(values, [0, 1, 2]), FIVE)
    sums.prepare(FIVE)
    with pytest.raises(SecureSumError, match="3 of the 3 different rows"):
        total(sums, batch(values, [2, 0, 1]), FIVE[:4])


def test_rows_may_overlap_in_one_company_and_new_rows_be_summed_in_another() -> None:
    values, sums = tables(), Sums()
    total(sums, batch(values, [0, 1, 2]), FIVE)
    again = total(sums, batch(values, [2, 2, 3]), FIVE)
    assert np.allclose(again.reshape(3, 3)[0], sum(local[2] for local in values.values()), atol=1e-6)
    sums.prepare(FIVE)
    fewer = total(sums, batch(values, [4, 5]), FIVE[:4])
    assert np.allclose(fewer.reshape(2, 3), sum(values[name][[4, 5]] for name in FIVE[:4]), atol=1e-6)


def test_rows_of_zeros_are_nobodys() -> None:
    values, sums = {name: np.zeros((2, 3)) for name in FIVE}, Sums()
    total(sums, values, FIVE)
    sums.prepare(FIVE)
    assert not total(sums, values, FIVE[:4]).any()


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MOST_ROWS", 4)
    values, sums = tables(), Sums()
    total(sums, values, FIVE)
    assert {len(client._rows_company) for client in sums.clients.values()} == {4}


@pytest.mark.parametrize("company", [FIVE[:3], FIVE])
def test_a_client_that_was_restored_sums_with_those_of_its_last_sum_only(company) -> None:
    """It cannot remember what was summed after the checkpoint; the server asks for the same values in other company."""
    values, before = tables(), Sums()
    total(before, values, FIVE)
    after = Sums(only=FIVE[:4])
    assert np.allclose(total(after, values, FIVE[:4]).reshape(6, 3), sum(values[name] for name in FIVE[:4]), atol=1e-6)
    with pytest.raises(SecureSumError, match=r"its sums are of .* together, and with(out)? "):
        after.prepare(FIVE) if company == FIVE else total(after, values, company)
