"""What runs one after the other leave in their process."""

from __future__ import annotations

import gc
import weakref

import pytest

from fedactors.plugins import find_protocol
from fedactors.sweeps import run_once


@pytest.mark.slow
def test_the_actors_of_a_run_are_gone_when_the_next_one_begins() -> None:
    protocol, gone = find_protocol("horizontal"), []
    gc.disable()  # Python's own search might come in between
    try:
        for seed in range(2):
            done = run_once(protocol, dict(protocol.smoke), "digits", seed)
            gone.append(weakref.ref(done.runtime))
            del done
    finally:
        gc.enable()
    first, last = gone
    assert first() is None
    assert last() is not None, "nothing has looked for it yet, or this test shows nothing"
