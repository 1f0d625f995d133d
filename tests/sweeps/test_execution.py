import os
from contextlib import suppress

import psutil
import pytest

from fedactors.sweeps import run_all
from tests import sweeping


def children():
    """The processes that were spawned here and live."""
    found = set()
    for process in psutil.Process().children():
        with suppress(psutil.Error):
            if "spawn_main" in " ".join(process.cmdline()):
                found.add(process.pid)
    return found


@pytest.fixture(autouse=True)
def _no_process_is_left():
    before = children()  # of other tests of this process
    yield
    assert children() <= before


@pytest.mark.slow
def test_every_argument_has_its_result():
    assert dict(run_all(sweeping.double, [3, 4, 5], jobs=1)) == {0: 6, 1: 8, 2: 10}
    assert dict(run_all(sweeping.double, [3, 4, 5], jobs=2)) == {0: 6, 1: 8, 2: 10}


@pytest.mark.slow
def test_one_job_needs_no_process_and_several_use_as_many():
    assert {pid for _, pid in run_all(sweeping.where, range(3), jobs=1)} == {os.getpid()}
    used = {pid for _, pid in run_all(sweeping.where, range(6), jobs=2)}
    assert len(used) == 2
    assert os.getpid() not in used


@pytest.mark.slow
def test_a_process_that_dies_takes_only_its_argument_with_it():
    lost = []

    def when_lost(argument, why):
        lost.append((argument, why))
        return -1

    found = dict(run_all(sweeping.die_at_two, [1, 2, 3, 4], jobs=2, when_lost=when_lost))
    assert found == {0: 2, 1: -1, 2: 6, 3: 8}
    assert lost == [(2, "its process ended by signal SIGKILL")]
    with pytest.raises(RuntimeError, match="ended by signal SIGKILL"):
        list(run_all(sweeping.die_at_two, [2, 2], jobs=2))


@pytest.mark.slow
def test_an_error_reaches_the_caller_and_leaves_no_process():
    with pytest.raises(RuntimeError, match="ValueError: 1 is not liked"):
        list(run_all(sweeping.refuse, [1, 1], jobs=2))


@pytest.mark.slow
def test_a_caller_that_stops_early_leaves_no_process():
    for _, _ in run_all(sweeping.where, range(100), jobs=2):
        break
