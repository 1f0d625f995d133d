"""Raw data in another form than numbers, and what goes past the ledger by the driver, is caught as well."""

import pytest

from fedactors.testing import check_protocol
from tests.testing import disguised
from tests.testing.reviewed import check_said
from tests.testing.sound import Left, Right, protocol, run_split

pytestmark = pytest.mark.slow

RIGHT = {
    disguised.StandardisedMatrix: ("[privacy] Summary.quantiles", "column ", "or an affine map of it"),
    disguised.NetworkOrder: ("[privacy] Summary.packed", "column 3 of", "unchanged"),
    disguised.Hexadecimal: ("[privacy] Summary.comment", "column 3 of", "unchanged"),
    disguised.Base64: ("[privacy] Summary.comment", "column 3 of", "unchanged"),
    disguised.NineOfEachShape: ("[privacy] Summary.quantiles", "column 3 of", "unchanged"),
    disguised.Logs: ("[privacy] the log", "column 0 of"),
    disguised.LoadsOthers: ("[channels] disguised.py:", "right loads the data of left"),
}
LEFT = {
    disguised.LabelsAsBytes: ("[privacy] Summary.packed, sent from left to right, holds the labels of",),
    disguised.LabelsAsBits: ("[privacy] Summary.packed, sent from left to right, holds the labels of",),
    disguised.LabelsAsDigits: ("[privacy] Summary.comment, sent from left to right, holds the labels of",),
    disguised.LabelsAsWords: ("[privacy] Summary.comment, sent from left to right, holds the labels of",),
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
def test_a_column_in_disguise_is_caught(right):
    check_said(protocol(run_split, Left, right), *RIGHT[right])


@pytest.mark.parametrize("left", LEFT, ids=lambda cls: cls.__name__)
def test_labels_in_disguise_are_caught(left):
    check_said(protocol(run_split, left, disguised.Hearing), *LEFT[left])


@pytest.mark.parametrize("name", RUNS)
def test_what_goes_by_the_driver_is_caught(name):
    check_said(*RUNS[name])


@pytest.mark.parametrize("right", [disguised.Random, disguised.Projects], ids=lambda cls: cls.__name__)
def test_what_only_looks_like_it_has_no_remark(right):
    check_protocol(protocol(run_split, Left, right), on_ray=False)
