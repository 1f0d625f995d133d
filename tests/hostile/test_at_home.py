"""What a run leaves on its own machine is its owner's to read; a terminal that closes costs no checkpoint."""

from __future__ import annotations

import contextlib
import fcntl
import grp
import json
import os
import pty
import pwd
import signal
import stat
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from fedactors.cli.main import main
from fedactors.federation import site
from fedactors.federation.site_folder import SITE
from fedactors.launch import StopSignals
from fedactors.runs.storage import LineFile, make_unique, write_atomic, write_synced
from tests.federation.world import SHOP, World

COMMAND = (sys.executable, "-m", "fedactors", "run", "pubsub-vfl", "--runtime", "simulated", "batch_size=64")


def open_to_others(folder: Path) -> list[str]:
    """Return what of a folder others may read, write or enter."""
    return [str(path) for path in (folder, *folder.rglob("*")) if stat.S_IMODE(path.stat().st_mode) & 0o077]


def test_a_run_folder_is_its_owners(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        states = f"active={tmp_path / 'states'}"
        words = ("num_epochs=1", "--out", str(tmp_path / "runs"), "--quiet", "--checkpoint-dir", states)
        assert main((*COMMAND[3:], *words)) == 0
    finally:
        os.umask(before)
    (run,) = (tmp_path / "runs").iterdir()
    assert list(run.rglob("*.ckpt"))
    assert list((tmp_path / "states").rglob("*.state"))
    assert open_to_others(run) == []
    assert [path for path in open_to_others(tmp_path / "states") if path.endswith(".state")] == []


def test_what_is_no_state_is_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_atomic(tmp_path / "page.html", b"a page")
        write_synced(tmp_path / "states" / "a.ckpt", b"a state")
        LineFile(tmp_path / "lines").close()
        made = make_unique(tmp_path, "run")
    finally:
        os.umask(before)
    found = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("page.html", "states/a.ckpt", "lines")]
    assert found == [0o644, 0o600, 0o600]
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_a_terminal_that_closes_stops_a_run_as_a_signal_does(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [*COMMAND, "num_epochs=100000", "--out", str(tmp_path)]

    def take_terminal() -> None:
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may be told to outlive their terminal
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=take_terminal) as run:
        os.close(theirs)
        end = time.monotonic() + 180
        os.set_blocking(ours, False)
        while not list(tmp_path.rglob("*.ckpt")) and time.monotonic() < end:
            with contextlib.suppress(BlockingIOError):
                os.read(ours, 4096)
            time.sleep(0.05)
        os.close(ours)  # the system signals the run, and what that writes to it now fails
        try:
            code = run.wait(120)
        finally:
            run.kill()
    assert code == 128 + signal.SIGHUP
    (manifest,) = (json.loads(path.read_text()) for path in tmp_path.glob("*/manifest.json"))
    assert manifest["status"] == "stopped"


def test_who_told_a_run_to_outlive_its_terminal_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with StopSignals():
            assert callable(signal.getsignal(signal.SIGHUP))
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("mode", "is_told"), [(0o700, False), (0o755, False), (0o770, True), (0o707, True)])
def test_a_site_says_that_others_may_write_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, is_told: bool
) -> None:
    """Who may can put another policy, or an answer to a proposal, in the place of the site's."""
    monkeypatch.setattr(site, "_others_of", lambda _: {"somebody"})
    world = World(tmp_path)
    (tmp_path / SHOP).chmod(mode)
    world.start(SHOP)
    world.stop()
    assert any("other users of this machine may write there" in line for line in world.output[SHOP]) is is_told


@pytest.mark.parametrize("policy", [0o664, 0o666])
def test_a_group_of_the_sites_user_alone_is_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: int
) -> None:
    """A volume of Kubernetes with fsGroup: its root is 2775, and told of at each start it hid an open file."""
    monkeypatch.setattr(site, "_others_of", lambda _: set())
    world = World(tmp_path)
    (tmp_path / SHOP / SITE).chmod(policy)
    (tmp_path / SHOP).chmod(0o2775)
    world.start(SHOP)
    world.stop()
    told = [line for line in world.output[SHOP] if "other users of this machine may write there" in line]
    assert [line.partition(":")[0] for line in told] == [str(tmp_path / SHOP / SITE)] * (policy == 0o666)


def test_who_else_is_of_a_group() -> None:
    me = pwd.getpwuid(os.geteuid())
    others = {one.pw_name for one in pwd.getpwall() if one.pw_gid == me.pw_gid} - {me.pw_name}
    assert site._others_of(me.pw_gid) == others | (set(grp.getgrgid(me.pw_gid).gr_mem) - {me.pw_name})
    assert site._others_of(54_321) == set()
