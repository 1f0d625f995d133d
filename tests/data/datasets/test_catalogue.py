from __future__ import annotations

import subprocess
import sys

import pytest

from fedactors.data.datasets.catalogue import catalogue, describe
from fedactors.errors import BadInput


def test_listing_loads_no_numerical_library():
    code = (
        "import sys; from fedactors.data.datasets.catalogue import catalogue; assert len(catalogue()) > 15; "
        "heavy = {'numpy', 'torch', 'ray', 'sklearn', 'pandas', 'pyarrow', 'scipy'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_names_are_unique_and_files_are_described():
    names = [dataset.name for dataset in catalogue()]
    assert len(names) == len(set(names))
    for dataset in catalogue():
        assert dataset.terms
        assert dataset.summary
        for file in dataset.files:
            assert file.url.startswith("http") or dataset.name == "cifar10-subset"
            assert all(len(digest) == 64 and int(digest, 16) for digest in file.sha256)


def test_sizes_in_the_name():
    assert (describe("synthetic:20000x50").rows, describe("synthetic:20000x50").columns) == (20000, 50)
    assert describe("synthetic").rows == 1_000_000
    assert describe("synthetic-vfl:300x4").name == "synthetic:300x4"
    assert describe("blocks:500x8x3").num_classes == 3
    assert describe("orders:700").rows == 700


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("banc", "did you mean bank"),
        ("bank:10", "write bank"),
        ("synthetic:10x20x30", "ROWSxCOLUMNS"),
        ("synthetic:10xtwo", "ROWSxCOLUMNS"),
        ("synthetic:1x5", "at least 2"),
    ],
)
def test_wrong_names_are_named(name, said):
    with pytest.raises(BadInput, match=said):
        describe(name)
