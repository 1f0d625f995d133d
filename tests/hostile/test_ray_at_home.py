"""A site's own Ray: who else works on the machine, and what its processes refuse."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedactors.errors import BadInput, Refused
from fedactors.federation import ray_hosting
from fedactors.federation.ray_hosting import RayActorHost
from fedactors.federation.runtime import _drained
from fedactors.runtime.failures import error_for_sites
from fedactors.runtime.ray.actor_process import Drained
from fedactors.runtime.ray.cleanup import Reaper, remove_orphans
from tests.federation.world import BANK, SHOP

SECRET = "row 17: diagnosis 'HIV'"


EMBEDDED_FOLDER = """
from fedactors.runtime.ray import cluster

joined = cluster.join(cluster.EMBEDDED, 1)
try:
    assert joined.folder.stat().st_mode & 0o077 == 0
    assert list(joined.folder.glob(f"{cluster.INSIDE}/session_*/sockets/plasma_store"))
    assert [one.name for one in joined.folder.iterdir()] == [cluster.INSIDE]
finally:
    cluster.leave(joined, ())
assert not joined.folder.exists()
"""


@pytest.mark.ray
def test_nobody_else_enters_the_folder_of_an_embedded_ray() -> None:
    """Ray lets all users of the machine write in its own: who moves a socket away is taken for its object store."""
    # in a process of its own: this one may have joined the cluster that tests share
    subprocess.run([sys.executable, "-c", EMBEDDED_FOLDER], check=True, timeout=240)


KILLED = """
import asyncio, os
from types import SimpleNamespace
from fedactors.federation.ray_hosting import RayActorHost
from fedactors.runtime.compute import WallClock

async def join(self):
    return "here"

async def ask(self, verb, *args):
    print(self._folder, flush=True)
    os.kill(os.getpid(), 9)

RayActorHost._join, RayActorHost._ask = join, ask
boundary = SimpleNamespace(gate=SimpleNamespace(book={}), unawaited=None)
asyncio.run(RayActorHost(boundary, "embedded", 1.0).spawn([SimpleNamespace(name="shop")], 0, WallClock(0.0)))
"""


def test_what_a_killed_site_left_of_its_rays_sockets_goes() -> None:
    found = subprocess.run([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True, check=False, timeout=120)
    folder = Path(found.stdout.strip())
    assert found.returncode == -9
    assert folder.is_dir()
    assert folder in remove_orphans()
    assert not folder.exists()


@pytest.fixture
def writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a site is started, and others may write: they leave modules there that Python would import first."""
    for name in ("ray", "json", "psutil", "numpy", "asyncio"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_removes_a_rays_files_imports_nothing_from_where_a_site_began(writable: Path) -> None:
    reaper = Reaper(None)
    time.sleep(0.5)
    reaper.dismiss()
    reaper._process.wait(60)
    assert not (writable / "ran").exists()


def test_a_rays_sidecar_imports_nothing_from_where_a_site_began(
    writable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[Any, dict[str, Any]]] = []

    async def begin(*words: Any, **how: Any) -> None:
        begun.append((words, how))
        raise BadInput("not now")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", begin)
    host = RayActorHost.__new__(RayActorHost)
    host._address, host._call_timeout = "embedded", 1.0
    with pytest.raises(BadInput, match="not now"):
        asyncio.run(host._join())
    ((words, how),) = begun
    number = words.index(ray_hosting._SIDECAR) + 1
    # it ends at a file that is not open, after all imports
    done = subprocess.run(
        [*words[:number], "999", *words[number + 1 :]],
        cwd=how["cwd"], env=how["env"], capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "Bad file descriptor" in done.stderr
    assert not (writable / "ran").exists()
    assert not os.path.samefile(how["cwd"], writable), "from there Ray's workers import first"


def test_the_words_of_what_a_rays_process_refuses_stay_at_its_site() -> None:
    noted: list[Refused] = []
    boundary: Any = SimpleNamespace(note=noted.append, gate=SimpleNamespace(book={SHOP: None}))

    async def work() -> None:
        host = RayActorHost.__new__(RayActorHost)
        host._boundary, host._settling, host._drained = boundary, asyncio.Lock(), {}
        host._recorded = SimpleNamespace(rows=[], spans=[], privacy=[])  # type: ignore[assignment]
        found = Drained([], [], [], [], 0.0, 0.0, 0.0, [SECRET])

        async def ask(verb: str) -> dict[str, Drained]:
            return {SHOP: found}

        host._ask = ask  # type: ignore[assignment, method-assign]
        await host.settle()

    asyncio.run(work())
    (error,) = noted
    assert error.message == SECRET, "the own log has them"
    assert SECRET not in str(error_for_sites(SHOP, error))


def test_a_site_counts_the_messages_of_its_own_actors_alone() -> None:
    def is_at(site: str, name: str) -> bool:
        return name.partition("/")[0] == site

    its, others = (
        (f"{SHOP}/a", f"{BANK}/a", "local", "Report", 1, 8),
        ("clinic/a", f"{BANK}/a", "local", "Report", 9, 8),
    )
    assert _drained(SHOP, ((its,), 0.5), is_at)
    with pytest.raises(Refused, match="counts messages of others than its own actors"):
        _drained(SHOP, ((its, others), 0.5), is_at)
    with pytest.raises(Refused, match="sends invalid totals of a run"):
        _drained(SHOP, ((its,), 0.5, 12.25), is_at)
    for counts, waiting in (((-1, 8), 0.5), ((1, -8), 0.5), ((1, 2**53), 0.5)):  # it would take off what others count
        with pytest.raises(Refused, match="sends invalid totals of a run"):
            _drained(SHOP, (((*its[:4], *counts),), waiting), is_at)
    for waiting in (-1.0, math.nan, math.inf, 10**400):
        with pytest.raises(Refused, match="sends invalid totals of a run"):
            _drained(SHOP, ((its,), waiting), is_at)


def test_what_a_site_tells_of_a_run_so_far_has_no_times_of_its_machine() -> None:
    from fedactors.federation.site_run import SiteRun

    counted = {SHOP: SimpleNamespace(totals=[("a", "b", "c", "d", 1, 2)], waiting=1.0, cpu_seconds=77.25)}
    run: Any = SimpleNamespace(actors=SimpleNamespace(counted=lambda: counted))
    assert SiteRun._counted(run) == ((("a", "b", "c", "d", 1, 2),), 1.0)
