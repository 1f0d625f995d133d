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
from fedactors.federation import site_folder
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
    monkeypatch.setattr(site_folder, "_others_of", lambda _: {"somebody"})
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
    monkeypatch.setattr(site_folder, "_others_of", lambda _: set())
    world = World(tmp_path)
    (tmp_path / SHOP / SITE).chmod(policy)
    (tmp_path / SHOP).chmod(0o2775)
    world.start(SHOP)
    world.stop()
    told = [line for line in world.output[SHOP] if "other users of this machine may write there" in line]
    assert [line.partition(":")[0] for line in told] == [str(tmp_path / SHOP / SITE)] * (policy == 0o666)


def told_at_a_start(world: World) -> list[str]:
    """Return what the shop says of its folder when it starts."""
    before = len(world.output[SHOP])
    world.start(SHOP)
    world.stop()
    told = [line for line in world.output[SHOP][before:] if ": chmod " in line or ": chown " in line]
    return [line.replace("other users of this machine may write there: ", "") for line in told]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
@pytest.mark.parametrize("what", ["", SITE, "federation.toml", "proposals", "proposals/a.decision.json"])
def test_a_site_says_that_another_user_owns_what_is_its(tmp_path: Path, what: str) -> None:
    world = World(tmp_path)
    (tmp_path / SHOP / "proposals").mkdir()
    (tmp_path / SHOP / "proposals" / "a.decision.json").touch()
    (tmp_path / SHOP).chmod(0o755)
    assert told_at_a_start(world) == []
    os.chown(tmp_path / SHOP / what, 12_345, -1)
    path = tmp_path / SHOP / what
    assert told_at_a_start(world) == [f"{path}: another user of this machine owns it: chown 0"]


def test_a_site_says_that_others_may_write_deep_in_its_folder(tmp_path: Path) -> None:
    world = World(tmp_path)
    file = tmp_path / SHOP / "proposals" / "a.decision.json"
    file.parent.mkdir()
    file.touch()
    file.chmod(0o666)
    for folder in (file.parent, tmp_path / SHOP):
        folder.chmod(0o755)
    assert told_at_a_start(world) == [f"{file}: chmod 600"]
    file.parent.chmod(0o700)  # nobody reaches it
    assert told_at_a_start(world) == []


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_a_site_says_where_its_links_lead_to_what_others_may_write(tmp_path: Path, mode: int) -> None:
    """What lies elsewhere is reached however closed the site's folder is."""
    world = World(tmp_path)
    policy, elsewhere = tmp_path / SHOP / SITE, tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "policy.toml").write_text(policy.read_text())
    (elsewhere / "now").symlink_to("policy.toml")
    policy.unlink()
    policy.symlink_to("../elsewhere/now")
    (tmp_path / SHOP).chmod(mode)
    assert told_at_a_start(world) == []
    (elsewhere / "policy.toml").chmod(0o666)
    assert told_at_a_start(world) == [f"{elsewhere / 'policy.toml'}: chmod go-w"]
    (elsewhere / "policy.toml").chmod(0o600)
    elsewhere.chmod(0o777)  # the link there may be another one's
    assert told_at_a_start(world) == [f"{elsewhere}: chmod go-w"]
    elsewhere.chmod(0o1777)
    assert told_at_a_start(world) == []
    elsewhere.chmod(0o755)
    (elsewhere / "proposals").mkdir()
    (elsewhere / "proposals" / "a.decision.json").touch()
    (elsewhere / "proposals" / "a.decision.json").chmod(0o666)
    (tmp_path / SHOP / "proposals").symlink_to(elsewhere / "proposals")
    assert told_at_a_start(world) == [f"{elsewhere / 'proposals' / 'a.decision.json'}: chmod go-w"]
    (tmp_path / SHOP / "proposals").unlink()
    (tmp_path / SHOP / "proposals").symlink_to(tmp_path / SHOP / "proposals")  # a circle
    assert list(site_folder.open_to_others(tmp_path / SHOP)) == []


def test_a_site_of_years_looks_at_its_folder_without_a_look_at_each_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred thousand files of runs lie in it; who may not enter the folder reaches none of them."""
    World(tmp_path)
    looks, real = list[object](), os.stat
    for number in range(20):
        run = tmp_path / SHOP / "runs" / str(number)
        run.mkdir(parents=True)
        for one in range(10):
            (run / str(one)).touch()

    def stat_of(path: object, **how: object) -> object:
        looks.append(path)
        return real(path, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", stat_of)
    monkeypatch.setattr(os, "lstat", lambda path: stat_of(path, follow_symlinks=False))
    assert list(site_folder.open_to_others(tmp_path / SHOP)) == []
    assert len([one for one in looks if "runs" in str(one)]) <= 20, looks


@pytest.mark.parametrize(("mode", "is_told"), [(0o777, True), (0o1777, False), (0o755, False)])
def test_a_site_says_that_others_may_put_another_folder_in_the_place_of_its(
    tmp_path: Path, mode: int, is_told: bool
) -> None:
    world = World(tmp_path / "open" / "sites")
    (tmp_path / "open").chmod(mode)
    told = told_at_a_start(world)
    (tmp_path / "open").chmod(0o755)
    assert told == [f"{tmp_path / 'open'}: chmod go-w"] * is_told


def test_who_else_is_of_a_group() -> None:
    me = pwd.getpwuid(os.geteuid())
    others = {one.pw_name for one in pwd.getpwall() if one.pw_gid == me.pw_gid} - {me.pw_name}
    assert site_folder._others_of(me.pw_gid) == others | (set(grp.getgrgid(me.pw_gid).gr_mem) - {me.pw_name})
    assert site_folder._others_of(54_321) == set()
