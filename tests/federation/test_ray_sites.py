"""A site whose actors are processes of a Ray of its own: the same results, the same gate, nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from fedactors.errors import BadInput
from fedactors.federation.operations import agree
from fedactors.federation.runtime import FederatedRuntime
from fedactors.federation.site_folder import SiteFolder
from tests.campaign.environment import Environment
from tests.federation.test_going_on import MANY, resumed, runs, same
from tests.federation.test_runs import LARGE, OTHERS, SMALL, federated, last_line, last_run, simulated
from tests.federation.world import BANK, SHOP, World

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(540), pytest.mark.drawn(2, family="ray sites")]
NAMES = (BANK, SHOP)
TEST = ("--share-seed", "--seed", "7")
ACTOR, SIDECAR = "ray::ActorProcess", "fedactors.federation.ray_hosting"


class WithRay(World):
    """A bank that listens here, whose actors live here, and a shop that is a process with a Ray of its own.

    Args:
        folder: an empty one.
        ray: which Ray the shop uses.
        env: of its process.
    """

    def __init__(self, folder: Path, ray: str = "embedded", env: Mapping[str, str] = os.environ) -> None:
        super().__init__(folder)
        self.start(BANK)
        self.lines: list[str] = []
        file = self.path / SHOP / "site.toml"
        file.write_text(f'ray = "{ray}"\n{file.read_text()}')
        words = [sys.executable, "-u", "-m", "fedactors", "site", "start", "--folder", str(self.path / SHOP)]
        # Ray's workers are nice, and others of a busy machine would leave them nothing
        env = {**env, "RAY_worker_niceness": "0"}
        self.shop = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        assert self.shop.stdout is not None
        line = self.shop.stdout.readline()
        assert f"{SHOP}: listens at" in line, line
        self._reading = threading.Thread(target=self.lines.extend, args=(self.shop.stdout,), daemon=True)
        self._reading.start()

    def processes_of_shop(self, what: str = "") -> list[psutil.Process]:
        """Those that the shop's process has begun, and they."""
        found = []
        for process in psutil.Process(self.shop.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if what in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def stop(self) -> None:
        super().stop()
        self.shop.terminate()
        self.shop.wait(90)
        self._reading.join(30)
        assert self.shop.stdout is not None
        self.shop.stdout.close()


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithRay]:
    made = WithRay(tmp_path_factory.mktemp("rays"))
    try:
        yield made
    finally:
        made.stop()


def await_peace(world: WithRay, begun: Sequence[psutil.Process] = ()) -> None:
    """Wait until the shop's Ray is gone with its folder, those whose parent was killed too; the site is there."""
    end = time.monotonic() + 90
    while (left := [*world.processes_of_shop(), *filter(lives, begun), *folders_of(begun)]) and time.monotonic() < end:
        time.sleep(0.2)
    assert not left
    assert world.shop.poll() is None


def await_line(world: WithRay, *parts: str) -> None:
    """Wait until the shop's log has a line with all of these; it is read in another thread."""
    end = time.monotonic() + 60
    while not any(all(part in said for part in parts) for said in world.lines) and time.monotonic() < end:
        time.sleep(0.05)
    assert any(all(part in said for part in parts) for said in world.lines), world.lines


def lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def folders_of(begun: Sequence[psutil.Process]) -> list[Path]:
    return [path for one in begun for path in Path(tempfile.gettempdir()).glob(f"fedactors-*-{one.pid}-*")]


WHAT = {
    "vfl": ("pubsub-vfl", (*SMALL, "algorithm=vfl")),
    "glasu": OTHERS["glasu"],
    "large messages": LARGE,
}


@pytest.mark.parametrize("what", WHAT)
def test_a_run_gives_the_metrics_bytes_and_messages_of_the_simulated_one(
    mixed: WithRay, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    protocol, words = WHAT[what]
    assert simulated(mixed, words, protocol) == 0
    expected = last_line(capsys)
    code = federated(mixed, words, *TEST, protocol=protocol)
    assert code == 0, (mixed.lines, capsys.readouterr().err)
    found = last_line(capsys)
    assert found["metrics"] == pytest.approx(expected["metrics"], abs=1e-6, nan_ok=True)
    assert (found["bytes"], found["messages"]) == (expected["bytes"], expected["messages"])
    assert agree({name: mixed.path / name for name in NAMES}, last_run(mixed))
    await_peace(mixed)


def test_payloads_are_fetched_through_the_gate_in_both_directions(
    mixed: WithRay, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*SMALL, "algorithm=pubsub-vfl", "max_in_flight=1")
    assert simulated(mixed, words) == 0
    expected = last_line(capsys)
    assert federated(mixed, words, *TEST) == 0, (mixed.lines, capsys.readouterr().err)
    found = last_line(capsys)
    assert found["metrics"] == pytest.approx(expected["metrics"], abs=1e-6)
    run = last_run(mixed)
    assert agree({name: mixed.path / name for name in NAMES}, run)
    (end,) = [line for line in mixed.audit(SHOP) if line["what"] == "ended" and line["run"] == run]
    assert {"Embedding", "Gradient"} <= {entry["type"] for side in ("left", "arrived") for entry in end[side]}


def after_rounds(patch: pytest.MonkeyPatch, count: int, act: Callable[[], object]) -> None:
    """Do something when the driver, which is here, has taken the checkpoints of so many rounds, before it goes on.

    However busy the machine is, the run does not end before.
    """
    take, taken = FederatedRuntime.checkpoint, itertools.count(1)

    async def taking(self: FederatedRuntime, label: str = "last") -> None:
        await take(self, label)
        if next(taken) == count:
            await self._saved()
            await asyncio.to_thread(act)

    patch.setattr(FederatedRuntime, "checkpoint", taking)


def kill(found: Sequence[psutil.Process]) -> None:
    assert found
    for process in found:
        process.kill()


@pytest.mark.parametrize("what", [ACTOR, SIDECAR])
def test_what_is_killed_of_a_ray_ends_the_run_and_not_the_site_and_the_run_goes_on_exactly(
    mixed: WithRay, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    words = (*MANY, "algorithm=vfl")
    assert simulated(mixed, words) == 0
    expected = last_line(capsys)
    begun: list[psutil.Process] = []

    def act() -> None:
        begun.extend(mixed.processes_of_shop())
        kill(mixed.processes_of_shop(what))

    after_rounds(monkeypatch, 2, act)
    code = federated(mixed, words, *TEST)
    told = capsys.readouterr().err
    assert code == 3, told
    (line,) = [line for line in told.splitlines() if line.startswith("fedactors: ")]
    assert f"{SHOP}/worker-0: PartyLost; the log of the site {SHOP} says more" in line
    # who asks the actor something at that moment may see it gone before its watcher does: the log has either's words
    why = "its process " if what == ACTOR else "its Ray is gone"
    await_line(mixed, f"{SHOP}/worker-0: ", why)
    assert begun
    await_peace(mixed, begun)
    assert resumed(mixed, runs(mixed)[-1]) == 0, (mixed.lines, capsys.readouterr().err)
    same(last_line(capsys), expected)
    await_peace(mixed)


def test_only_an_address_is_taken(mixed: WithRay) -> None:
    file = mixed.path / BANK / "site.toml"
    text = file.read_text()
    file.write_text(f'ray = "somewhere"\n{text}')
    with pytest.raises(BadInput, match=r"site.toml: ray: 'somewhere' is not allowed: give HOST:PORT"):
        SiteFolder(mixed.path / BANK)
    file.write_text(text)


# --- the organisation's cluster, which was there before and stays -----------------------------------------------------


@pytest.fixture(scope="module")
def clustered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[WithRay, Environment]]:
    environment = Environment(cluster=True)
    try:
        assert environment.address is not None
        made = WithRay(tmp_path_factory.mktemp("clustered"), environment.address, environment._environment())
        try:
            yield made, environment
        finally:
            made.stop()
    finally:
        environment.remove()


def actors_in(environment: Environment) -> list[psutil.Process]:
    """The processes of actors that the cluster has begun."""
    found = []
    for pid in environment.processes():
        with contextlib.suppress(psutil.Error):
            if ACTOR in " ".join(psutil.Process(pid).cmdline()):
                found.append(psutil.Process(pid))
    return found


def await_free(environment: Environment) -> None:
    end = time.monotonic() + 90
    while actors_in(environment) and time.monotonic() < end:
        time.sleep(0.2)
    assert actors_in(environment) == []


def test_actors_of_a_site_live_in_its_organisations_cluster_which_stays(
    clustered: tuple[WithRay, Environment], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, environment = clustered
    words = (*MANY, "algorithm=vfl")
    assert simulated(world, words) == 0
    expected = last_line(capsys)
    seen: list[tuple[int, int]] = []
    after_rounds(
        monkeypatch, 2, lambda: seen.append((len(actors_in(environment)), len(world.processes_of_shop("raylet"))))
    )
    assert federated(world, words, *TEST) == 0, (world.lines, capsys.readouterr().err)
    same(last_line(capsys), expected)
    assert seen == [(1, 0)], "one worker in the cluster, and no Ray of the shop's own"
    assert agree({name: world.path / name for name in NAMES}, last_run(world))
    await_free(environment)
    await_peace(world)


HOLDS = """
import ray, sys
from ray.util.placement_group import placement_group
ray.init(address=sys.argv[1], log_to_driver=False)
group = placement_group([{"CPU": 7.95}])
ray.get(group.ready())
print("held", flush=True)
sys.stdin.read()
"""
GROUPS = """
import ray, sys
from ray.util.placement_group import placement_group_table
ray.init(address=sys.argv[1], log_to_driver=False)
print(sum(one["state"] != "REMOVED" for one in placement_group_table().values()))
"""


def num_groups(environment: Environment) -> int:
    """Return how many placement groups the cluster has."""
    words, env = [sys.executable, "-c", GROUPS, str(environment.address)], environment._environment()
    return int(subprocess.run(words, env=env, capture_output=True, text=True, check=True, timeout=120).stdout)


def test_a_run_reserves_what_its_actors_ask_for_together_and_leaves_nothing_reserved(
    clustered: tuple[WithRay, Environment], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, environment = clustered
    words = (*MANY, "algorithm=vfl")
    held = [sys.executable, "-c", HOLDS, str(environment.address)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(held, env=environment._environment(), **pipes) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        try:
            while "held" not in (line := holder.stdout.readline()):
                assert line
            assert federated(world, words, *TEST) == 3
        finally:
            holder.stdin.close()
    await_line(world, "ray: the actors ask CPU=0.1 together; free on this host of the cluster is CPU=0.05 of CPU=8")
    await_peace(world)
    seen: list[int] = []

    def act() -> None:
        seen.append(num_groups(environment))
        kill(world.processes_of_shop(SIDECAR))

    after_rounds(monkeypatch, 2, act)
    assert federated(world, words, *TEST) == 3
    await_free(environment)
    await_peace(world)
    assert seen == [1]
    end = time.monotonic() + 60
    while num_groups(environment) and time.monotonic() < end:
        time.sleep(0.5)
    assert num_groups(environment) == 0


def test_an_actor_that_is_killed_in_a_cluster_ends_the_run_and_neither_site_nor_cluster(
    clustered: tuple[WithRay, Environment], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, environment = clustered
    words = (*MANY, "algorithm=vfl")
    assert simulated(world, words) == 0
    expected = last_line(capsys)
    after_rounds(monkeypatch, 2, lambda: kill(actors_in(environment)))
    assert federated(world, words, *TEST) == 3
    assert f"{SHOP}/worker-0: PartyLost" in capsys.readouterr().err
    await_free(environment)
    await_peace(world)
    assert resumed(world, runs(world)[-1]) == 0, (world.lines, capsys.readouterr().err)
    same(last_line(capsys), expected)
    await_free(environment)


def test_a_site_that_has_no_token_of_its_ray_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: bytes, context: Any) -> None:
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "a token")

    methods = {"GetClusterId": grpc.unary_unary_rpc_method_handler(refuse)}
    asks = grpc.method_handlers_generic_handler("ray.rpc.NodeInfoGcsService", methods)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=(asks,))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    world = World(tmp_path)
    file = tmp_path / SHOP / "site.toml"
    file.write_text(f'ray = "{address}"\n{file.read_text()}')
    for name in NAMES:
        world.start(name)
    try:
        assert federated(world, SMALL) != 0
    finally:
        world.stop()
        server.stop(0)
    (said,) = [line for line in world.output[SHOP] if "asks for a token" in line]
    assert "ray: the cluster at" in said
    assert "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to the cluster's token (site.toml, and the env" in said
    told = capsys.readouterr().err
    assert "the log of the site shop says more" in told
    assert address not in told
