"""One embedded Ray cluster for all tests of a process that only need some cluster; it stops with the session.

Where tests run in several processes, those that use Ray run in two of them: each makes one cluster, and no more of the
clusters' processes wait for a core than there are. Tests that share a costly fixture of their module are of one
`xdist_group`, so that it is made once.
"""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests import drawing, forked_workers

_RAY_GROUPS = 2
# several processes test at a time: with a thread of its own for each core, each takes six times the processor's time
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 leaves its workers 3 % of a core that another test uses


class _GroupsStay:
    """Refuse a pytest and an xdist that together ignore `xdist_group`: each process would make its own clusters.

    pytest 9.2 no longer lets plugins change the identifiers by which xdist 3.8 tells the groups apart, and is silent.
    """

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if config.getoption("dist", "no") != "loadgroup" or not hasattr(config, "workerinput"):
            return
        grouped = [item for item in items if item.get_closest_marker("xdist_group") is not None]
        if grouped and not any("@" in item.nodeid.rpartition("::")[2] for item in grouped):
            raise pytest.UsageError("this pytest and this pytest-xdist ignore `xdist_group`: install pytest below 9.2")


def pytest_configure(config: pytest.Config) -> None:
    """Draw the tests; look at the groups after all plugins have."""
    config.pluginmanager.register(drawing.Drawing(config), "drawing")
    config.pluginmanager.register(_GroupsStay(), "groups stay")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each file that uses Ray to one of the processes that have a cluster, the larger files first."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if "ray" in marks and not marks & {"walk", "xdist_group"}:
            files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    sizes = [0] * _RAY_GROUPS
    for file in sorted(files, key=lambda name: (-len(files[name]), name)):
        group = sizes.index(min(sizes))
        sizes[group] += len(files[file])
        for item in files[file]:
            item.add_marker(pytest.mark.xdist_group(f"ray {group}"))


def _join_patiently() -> Any:
    """Join, again where Ray had no time to start: it gives itself thirty seconds, in which others may test as well."""
    from fedactors.runtime.ray import cluster

    for _ in range(2):
        with contextlib.suppress(cluster.NotStarted):
            return cluster.join(None, 2)
    return cluster.join(None, 2)


VARIABLE, FOLDER = os.environ.get("TMPDIR"), tempfile.gettempdir()
"""Before any test: as one begins, a site in a thread may still end another one's run, and so use that run's folder."""


@pytest.fixture(autouse=True)
def _temporary_folder() -> Iterator[None]:
    """A site in a thread whose run a test leaves unfinished keeps its temporary folder: the next test has its own."""
    yield
    tempfile.tempdir = FOLDER
    os.environ.pop("TMPDIR", None)
    if VARIABLE is not None:
        os.environ["TMPDIR"] = VARIABLE


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """An embedded cluster of two cores; runtimes find it and leave it running."""
    import ray._private.parameter as ray_parameter

    from fedactors.runtime.ray import cluster

    with forked_workers.server() as environment:
        with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
            warnings.simplefilter("ignore")  # Ray's own start-up, not ours
            for name, value in environment.items():
                patch.setenv(name, value)
            params = partial(ray_parameter.RayParams, setup_worker_path=forked_workers.__file__)
            patch.setattr(ray_parameter, "RayParams", params)
            joined = _join_patiently()
        yield
        cluster.leave(joined, ())
    gc.collect()
