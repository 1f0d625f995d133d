"""One embedded Ray cluster for all tests of a process that only need some cluster; it stops with the session.

Where tests run in several processes, each of these has its own. Tests that share a costly fixture of their module are
of one `xdist_group`, so that it is made once.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


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
