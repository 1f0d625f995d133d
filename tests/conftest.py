"""One embedded Ray cluster for all tests that only need some cluster; it stops with the session."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where tests run on several workers, all that need Ray run on one of them: a session has one cluster."""
    for item in items:
        if item.get_closest_marker("ray"):
            item.add_marker(pytest.mark.xdist_group("ray"))


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """An embedded cluster of two cores; runtimes find it and leave it running."""
    from fedactors.runtime.ray import cluster

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own start-up, not ours
        joined = cluster.join(None, 2)
    yield
    cluster.leave(joined, ())
    gc.collect()
