"""A column in a code that anybody can undo is found, and in what stays random or learnt nothing is."""

import numpy as np
import pytest

from fedactors.testing.inspection import remarks_on_raw_data
from fedactors.testing.runs import Subject, simulate
from tests.testing import encoded
from tests.testing.encoded import CODES, FIELDS, SPLIT, encoding, one_field
from tests.testing.sound import Left, Right, protocol, run_split
from tests.testing.test_leaks import X, searched

WHOLE = (
    "XorPassword",
    "AddedKey",
    "Compressed",
    "ReversedBytes",
    "OtherMarks",
    "CompressedBase64",
    "LowBytes",
    "Roots",
)
"""Those that are run as protocols too."""


def remarks(right, **settings):
    """What the kit says of what left the parties of one run."""
    subject = Subject(protocol=protocol(run_split, Left, right), config=settings, on_ray=False)
    return list(remarks_on_raw_data(subject, simulate(subject, watch=True)))


@pytest.mark.slow
@pytest.mark.drawn(8)
@pytest.mark.parametrize("name", CODES)
def test_a_code_is_undone(name):
    rng = np.random.default_rng(0)
    sent = [CODES[name](X[rng.permutation(len(X))[:64], 3].astype(np.float64), number) for number in range(1, 4)]
    assert "column 3 of cancer" in searched(*sent)


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_a_broken_party_is_caught(name):
    said = remarks(encoding(name, one_field(name)), num_rounds=3)
    assert any(f"Summary.{FIELDS[name]}, sent from right to left, holds" in remark for remark in said), said


@pytest.mark.slow
@pytest.mark.parametrize("right", SPLIT, ids=lambda cls: cls.__name__)
def test_what_is_split_over_messages_is_put_together(right):
    said = remarks(right)
    assert any(f"{SPLIT[right]}, sent from right to left, holds" in remark for remark in said), said


@pytest.mark.slow
@pytest.mark.parametrize("right", [encoded.Ciphers, encoded.Projections, Right], ids=lambda cls: cls.__name__)
def test_there_is_no_false_alarm(right):
    assert remarks(right, num_rounds=24) == []


@pytest.mark.drawn(8)
@pytest.mark.slow
@pytest.mark.parametrize("name", CODES)
def test_nor_of_random_numbers_in_a_code(name):
    drawn = [np.random.default_rng([9, number]).gamma(2.0, size=64) for number in range(1, 4)]
    assert searched(*(CODES[name](values, number) for number, values in enumerate(drawn, start=1))) == ""
