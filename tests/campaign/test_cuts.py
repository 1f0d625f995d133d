"""Simulated runs cut at random places and resumed: metrics and ledger are those of a run that was never cut.

A cut is what a kill -9 leaves of the run folder, copied while the run goes on, between two events of the virtual clock
or between two writes to the disk, those of a checkpoint included; or a SIGTERM, after which the run ends by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedactors.errors import BadInput, Stopped
from fedactors.launch import launch, resolve
from fedactors.options import RunOptions
from fedactors.plugins import find_protocol
from fedactors.runs.folder import MANIFEST, ROUND_METRICS, RunFolder
from fedactors.runs.metrics import Summary
from fedactors.runs.recorder import read_ledger
from fedactors.runtime.simulation.network import VirtualLoop

SETTINGS: dict[str, tuple[list[str], str | None]] = {
    "pubsub-vfl": (["num_epochs=4", "batch_size=64", "num_layers=2", "hidden_size=8", "embedding_size=4"], None),
    "glasu": (["num_rounds=6", "hidden_size=8", "evaluate_every=2"], "blocks:200x8x2"),
    "horizontal": (["num_clients=3", "num_rounds=6", "hidden_size=8", "num_training=120"], "digits"),
    "mtcd": (["num_rounds=8", "num_clients=4", "num_tokens=2", "num_samples=60", "num_features=24"], None),
    "nebulafl": (
        [
            "num_centers=2",
            "num_containers=8",
            "active_per_center=2",
            "duration=1500",
            "evaluation_interval=200",
            "checkpoint_interval=1",
        ],
        None,
    ),
    "tablepuppet": (["num_rounds=4"], "orders:300"),
}
NUM_KILLS, NUM_TERMS = 14, 6


def go(out: Path, protocol: str, pool: int, **flags: Any) -> Summary:
    """Run it, or go on with it if `resume` names a folder."""
    words, data = SETTINGS[protocol]
    if "resume" in flags:
        words, data = [], None
    given = RunOptions(out=str(out), quiet=True, runtime="simulated", pool=pool, data=data, **flags)
    found = find_protocol(protocol)
    return launch(found, *resolve(found, words, given))[0]


class Instants:
    """Counts the instants of a run at which it may be cut, and calls something at some of them."""

    def __init__(self, at: dict[int, Callable[[], object]] | None = None) -> None:
        self.count = 0
        self.writes: list[int] = []
        """The instants that lie before a write, or before a file takes its name."""
        self._at = at or {}

    def _next(self, is_write: bool) -> None:
        if is_write:
            self.writes.append(self.count)
        if self.count in self._at:
            self._at[self.count]()
        self.count += 1

    @contextmanager
    def counted(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Instants]:
        """Count during the block."""

        def before(function: Callable[..., Any], is_write: bool) -> Callable[..., Any]:
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                # a pool has threads and pipes of its own
                pipe = function is write and not stat.S_ISREG(os.fstat(args[0]).st_mode)
                if not pipe and threading.current_thread() is threading.main_thread():
                    self._next(is_write)
                return function(*args, **kwargs)

            return wrapped

        write = os.write

        with monkeypatch.context() as patch:
            patch.setattr(VirtualLoop, "_move", before(VirtualLoop._move, False))
            for name in ("fsync", "replace", "write"):
                patch.setattr(os, name, before(getattr(os, name), True))
            yield self


def newest(out: Path) -> Path:
    (made,) = out.iterdir()
    return made


def check_equal(found: Summary, whole: Summary, what: str) -> None:
    there, here = Path(whole.run), Path(found.run)
    assert (here / ROUND_METRICS).read_bytes() == (there / ROUND_METRICS).read_bytes(), what
    ledgers = [read_ledger(RunFolder.open(folder)) for folder in (here, there)]
    assert ledgers[0].equals(ledgers[1]), what
    assert (found.metrics, found.bytes, found.messages) == (whole.metrics, whole.bytes, whole.messages), what
    assert found.seconds == whole.seconds, what
    RunFolder.open(here).verify()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("pool", [0, 2], ids=["inline", "pool"])
@pytest.mark.parametrize("protocol", sorted(SETTINGS))
def test_a_run_cut_anywhere_goes_on_as_if_it_had_not_been(
    protocol: str, pool: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(f"{protocol} {pool}")
    go(tmp_path / "first", protocol, pool)  # what is made once and kept, such as a cache, is no instant of a run
    with Instants().counted(monkeypatch) as instants:
        whole = go(tmp_path / "whole", protocol, pool)
    half = NUM_KILLS // 2
    kills = {*draw.sample(range(instants.count), half), *draw.sample(instants.writes, half)}
    out = tmp_path / "copied"

    def copy(at: int) -> Callable[[], object]:
        return lambda: shutil.copytree(newest(out), tmp_path / f"cut-{at}")

    with Instants({at: copy(at) for at in kills}).counted(monkeypatch):
        go(out, protocol, pool)
    num_resumed = 0
    for at in sorted(kills):
        cut = tmp_path / f"cut-{at}"
        # a checkpoint exists once the manifest names it; before the first there is nothing to go on from
        begun = (cut / MANIFEST).exists()
        if not (begun and json.loads((cut / MANIFEST).read_text())["checkpoints"]):
            with pytest.raises(BadInput, match="holds no checkpoint" if begun else "is missing"):
                go(tmp_path / f"from-{at}", protocol, pool, resume=str(cut))
            continue
        found = go(tmp_path / f"from-{at}", protocol, pool, resume=str(cut))
        check_equal(found, whole, f"killed at {at} of {instants.count}")
        num_resumed += 1
    assert num_resumed > half
    for number, at in enumerate(sorted(draw.sample(range(instants.count), NUM_TERMS))):
        stopped = tmp_path / f"stopped-{number}"
        terminate: dict[int, Callable[[], object]] = {at: lambda: os.kill(os.getpid(), signal.SIGTERM)}
        with Instants(terminate).counted(monkeypatch), contextlib.suppress(Stopped):
            found = go(stopped, protocol, pool)  # too late: it ended before it could stop
        if not (stopped.exists() and any(stopped.iterdir())):
            continue  # before there was a run folder
        status = RunFolder.open(newest(stopped)).manifest
        if status["status"] == "stopped":
            if not status["checkpoints"]:
                continue
            found = go(tmp_path / f"after-{number}", protocol, pool, resume=str(newest(stopped)))
        check_equal(found, whole, f"terminated at {at} of {instants.count}")
