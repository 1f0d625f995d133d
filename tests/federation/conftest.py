"""The federation that the tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.federation.world import BANK, SHOP, World


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("federation"))
    made.start(BANK)
    made.start(SHOP)
    yield made
    made.stop()
