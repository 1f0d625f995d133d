"""Raw data as text or bytes, and what goes past the ledger by the driver, is caught as well."""

import pytest

from fedactors.testing.conformance import check_protocol
from tests.testing import disguised
from tests.testing.reviewed import check_remarks
from tests.testing.sound import Left, Right, protocol, run_split

pytestmark = pytest.mark.slow

RIGHT = {
    disguised.StandardisedMatrix: ("[privacy] Summary.quantiles", "column ", "or an affine map of it"),
    disguised.Compressed: ("[privacy] Summary.comment", "column 3 of", "unchanged"),
    disguised.Logs: ("[privacy] the log", "column 0 of"),
    disguised.LoadsOthers: ("[channels] disguised.py:", "right loads the data of left"),
}
RUNS = {
    "by driver": (
        protocol(disguised.run_by_driver, disguised.Given, disguised.Giving),
        "[ledger] Part.values goes from right to left by way of the driver",
    ),
    "that looks": (
        protocol(disguised.run_that_looks, Left, Right),
        "the driver loads the data of left: a channel past the ledger",
    ),
}


@pytest.mark.parametrize("right", RIGHT, ids=lambda cls: cls.__name__)
def test_a_column_in_another_form_is_caught(right):
    check_remarks(protocol(run_split, Left, right), *RIGHT[right])


def test_labels_as_bytes_are_caught():
    said = "[privacy] Summary.packed, sent from left to right, holds the labels of"
    check_remarks(protocol(run_split, disguised.LabelsAsBytes, disguised.Hearing), said)


@pytest.mark.parametrize("name", RUNS)
def test_what_goes_by_the_driver_is_caught(name):
    check_remarks(*RUNS[name])


@pytest.mark.parametrize("right", [disguised.Random, disguised.Projects], ids=lambda cls: cls.__name__)
def test_what_only_looks_like_it_has_no_remark(right):
    check_protocol(protocol(run_split, Left, right), on_ray=False)
