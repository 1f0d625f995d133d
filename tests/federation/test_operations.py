"""What those see who keep a site running: status, metrics, lines; new certificates, wrong clocks, other versions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fedactors.actors.remote import DRIVER
from fedactors.cli.main import main
from fedactors.errors import BadInput, Refused
from fedactors.federation.audit_log import AUDIT, check
from fedactors.federation.handshake import dial
from fedactors.federation.operations import Operations
from fedactors.federation.session import HEAD, REPLY, REQUEST, VERSION, Hello, error_in, read_piece
from fedactors.federation.site import SiteProcess
from fedactors.federation.site_folder import SITE
from fedactors.federation.site_run import SiteRun
from fedactors.messages.codec import encode_parts
from fedactors.runtime.failures import errors_for
from tests.federation.hostile_sites import in_mid_run
from tests.federation.test_runs import SMALL, federated
from tests.federation.world import BANK, LIMITS, SHOP, World

pytestmark = [pytest.mark.slow, pytest.mark.drawn(3, family="operations")]
ENDS: dict[str, Any] = {"serve": None, "lost": lambda *_: None, "errors": errors_for(BANK, SHOP)}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two sites that are kept running by somebody; the shop writes metrics."""
    made = World(tmp_path_factory.mktemp("kept"))
    file = made.path / SHOP / SITE
    file.write_text(file.read_text().replace("\n\n", '\nmetrics = "fedactors.prom"\n\n', 1))
    made.start(BANK)
    made.start(SHOP)
    yield made
    made.stop()


def json_of(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*words, "--format", "json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def status(world: World, name: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, Any]:
    return json_of(capsys, "site", "status", "--folder", str(world.path / name), code=code)


def metrics(world: World) -> dict[tuple[str, ...], float]:
    """The shop's metrics, by name and the label that is its own."""
    text = (world.path / SHOP / "fedactors.prom").read_text()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert all((s.labels.pop("site"), s.labels.pop("federation")) == (SHOP, "credit") for s in samples)
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


def test_a_site_tells_what_it_does(kept: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(kept, SHOP, capsys)["state"] == "idle"
    seen: list[dict[str, Any]] = []

    def look(run: SiteRun) -> None:
        kept.processes[SHOP]._operations.look()  # as it does every few seconds
        seen.append(json.loads((kept.path / SHOP / "status.json").read_text()))
        seen.append({str(key): value for key, value in metrics(kept).items()})

    looking = in_mid_run(kept, SHOP, look)
    assert federated(kept, SMALL) == 0, kept.output
    looking.join(30)
    during, numbers = seen
    run = kept.audit(SHOP)[-1]["run"]
    (found,) = during.pop("runs")
    assert found.pop("since") == during["since"]
    crossed = found.pop("crossed")
    for one in found.pop("waits"):
        assert {one["who"], one["for"]} == {BANK, SHOP}
        assert one["what"]
    for way, (sender, receiver) in {"left": (SHOP, BANK), "arrived": (BANK, SHOP)}.items():
        rows = crossed[way]["rows"]
        assert {(row["from"], row["to"]) for row in rows} == {(sender, receiver)}
        assert sum(row["bytes"] for row in rows) >= crossed[way]["bytes"], "the driver's are among them"
        assert [row["bytes"] for row in rows] == sorted((row["bytes"] for row in rows), reverse=True)
    assert during["state"] == "running"
    assert found == {"run": run, "protocol": "pubsub-vfl", "coordinator": BANK, "stage": "open"}
    assert crossed["left"]["messages"] > 0
    assert crossed["arrived"]["bytes"] > 0
    assert numbers["('fedactors_site_state', 'running')"] == 1
    assert numbers["('fedactors_site_state', 'idle')"] == 0
    after = status(kept, SHOP, capsys)
    assert (after["state"], after["runs"]) == ("idle", [])
    assert after["peers"][BANK]["sent_bytes"] > 1000
    assert abs(after["peers"][BANK]["clock_seconds"]) < 1
    assert 800 < after["certificate"]["days_left"] < 826
    final = metrics(kept)
    assert final["fedactors_site_sent_bytes_total", BANK] == after["peers"][BANK]["sent_bytes"]
    assert final["fedactors_site_events_total", "finished"] == after["events"]["finished"] == 1
    assert main(["site", "status", "--folder", str(kept.path / SHOP)]) == 0
    assert "shop: idle since" in capsys.readouterr().out


def test_who_waits_for_whom_is_known_at_both_ends(kept: World) -> None:
    """A call that the shop does not answer for a while: both sites say so."""
    seen: dict[str, list[dict[str, Any]]] = {}

    def look(run: SiteRun) -> None:
        original, held = run.serve_call, asyncio.Event()

        async def slow(peer: str, sender: Any, *words: Any) -> Any:
            if sender != DRIVER:  # whose calls wait at the driver, and at no site
                await held.wait()
            return await original(peer, sender, *words)

        run.serve_call = slow  # type: ignore[method-assign, assignment]

        def watch() -> None:
            end = time.monotonic() + 20
            waits = lambda: any(one["for"] == SHOP and one["seconds"] for one in seen.get(BANK, []))  # noqa: E731
            while time.monotonic() < end and not waits():
                time.sleep(0.3)
                for name in (BANK, SHOP):
                    seen[name] = kept.on(name, lambda name=name: kept.run(name).waits())  # type: ignore[misc]
            kept.on(SHOP, held.set)

        threading.Thread(target=watch, daemon=True).start()

    looking = in_mid_run(kept, SHOP, look)
    assert federated(kept, ("num_epochs=40", *SMALL[1:])) == 0, kept.output
    looking.join(30)
    (waits,) = [one for one in seen[BANK] if one["for"] == SHOP]
    assert (waits["who"], waits["replies"] >= 1, waits["seconds"] > 0) == (BANK, True, True)
    assert [one["replies"] >= 1 for one in seen[SHOP] if (one["who"], one["for"]) == (BANK, SHOP)] == [True]


def test_metrics_that_cannot_be_written_are_told_at_the_start(tmp_path: Path) -> None:
    world = World(tmp_path)
    file = world.path / SHOP / SITE
    file.write_text(file.read_text().replace("\n\n", '\nmetrics = "nowhere/fedactors.prom"\n\n', 1))
    with pytest.raises(BadInput, match=r"metrics: .*nowhere/fedactors\.prom' is not allowed: its folder is not there"):
        asyncio.run(SiteProcess(world.folder(SHOP)).start())


def test_metrics_are_readable_for_who_collects_them_under_the_units_umask(tmp_path: Path) -> None:
    unit = (Path(__file__).parents[2] / "deploy" / "fedactors-site.service").read_text()
    mask = next(line for line in unit.splitlines() if line.startswith("UMask=")).partition("=")[2]
    world = World(tmp_path)
    file = world.path / SHOP / SITE
    file.write_text(file.read_text().replace("\n\n", '\nmetrics = "fedactors.prom"\n\n', 1))
    operations = Operations(world.folder(SHOP), lambda _: None)
    before = os.umask(int(mask, 8))
    try:
        operations.begin()
        operations.end()
    finally:
        os.umask(before)
    assert stat.S_IMODE((file.parent / "fedactors.prom").stat().st_mode) == 0o644
    assert stat.S_IMODE((file.parent / "status.json").stat().st_mode) == 0o600


def test_a_site_has_one_process(kept: World) -> None:
    with pytest.raises(BadInput, match=r"a process of shop runs already"):
        asyncio.run(SiteProcess(kept.folder(SHOP)).start())


def test_lines_are_json_and_a_process_that_is_gone_is_seen(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path_factory.mktemp("alone"))
    words = [sys.executable, "-m", "fedactors", "site", "start", "--folder", str(world.path / SHOP)]
    assert main(["site", "status", "--folder", str(world.path / SHOP)]) == 2
    assert "no process of shop ever ran" in capsys.readouterr().err
    process = subprocess.Popen([*words, "--format", "json"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = json.loads(process.stdout.readline())
        assert (line["site"], line["event"], line["run"]) == (SHOP, "listens", None)
        assert line["text"].startswith("shop: listens at 127.0.0.1:")
        assert status(world, SHOP, capsys)["state"] == "idle"
        assert psutil.Process(process.pid).memory_info().rss < 150e6  # what computes is loaded when it is asked for
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        assert status(world, SHOP, capsys, code=3)["state"] == "stopped"
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()  # type: ignore[union-attr]


def test_a_site_takes_what_arrives_into_memory_that_it_has_had_before(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """A check sends 16 MiB in one connection: in memory that the system gives anew each page of them is a fault."""
    world = World(tmp_path_factory.mktemp("faults"))
    words = [sys.executable, "-u", "-m", "fedactors", "site", "start", "--folder", str(world.path / SHOP)]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert process.stdout is not None
        assert "listens at" in process.stdout.readline()
        faults = []
        for _ in range(4):
            assert main(["site", "check", "--folder", str(world.path / BANK)]) == 0, capsys.readouterr().out
            faults.append(int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].split()[7]))
        assert min(after - before for before, after in pairwise(faults)) < 16 * 256, faults
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()  # type: ignore[union-attr]


def test_other_sites_are_checked_before_anything_is_proposed(kept: World, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("site", "check", "--folder", str(kept.path / BANK))
    (found,) = json_of(capsys, *flags)["sites"]
    assert (found["site"], found["problem"], found["other_code"]) == (SHOP, None, [])
    assert found["round_trip_ms"] > 0 < found["mb_per_second"]
    kept.end(SHOP)
    (found,) = json_of(capsys, *flags, code=3)["sites"]
    assert "its site does not answer" in found["problem"]
    assert main(list(flags)) == 3
    assert "shop: its site does not answer" in capsys.readouterr().out
    kept.start(SHOP)


# --- new certificates -----------------------------------------------------------------------------------------------


def renewed(world: World) -> tuple[str, str]:
    """Give the shop a new key and certificate; return the federation's file with the one before, and without."""
    world.command("site", "renew", "--folder", str(world.path / SHOP))
    world.command("federation", "admit", str(world.path / "credit"), str(world.path / SHOP / "shop.csr"), "--renew")
    both = (world.path / "credit" / "federation.toml").read_text()
    begin = both.index("previous = ")
    return both, world.signed(both[:begin] + both[both.index('"""\n', both.index("-----END", begin)) + 4 :])


def test_a_new_certificate_is_taken_while_a_run_goes_on(kept: World, capsys: pytest.CaptureFixture[str]) -> None:
    before = kept.folder(SHOP).federation.members[SHOP].fingerprints[0]
    files: list[str] = []

    def renew(_: SiteRun) -> None:
        files.extend(renewed(kept))
        (kept.path / BANK / "federation.toml").write_text(files[0])
        (kept.path / SHOP / "federation.toml").write_text(files[0])
        kept.processes[SHOP]._operations.look()

    renewing = in_mid_run(kept, SHOP, renew)
    assert federated(kept, ("num_epochs=6", *SMALL[1:])) == 0, kept.output
    renewing.join(30)
    assert any("a new certificate, until" in line for line in kept.output[SHOP])
    assert status(kept, SHOP, capsys)["certificate"]["fingerprint"] != before
    # the log goes on under the new key, which the old one has named
    log = [line["what"] for line in kept.audit(SHOP)]
    assert log.index("turned") < log.index("certified") < log.index("ended", log.index("turned"))
    # nobody believes the old certificate from here on
    for name in (BANK, SHOP):
        (kept.path / name / "federation.toml").write_text(files[1])
    assert kept.folder(BANK).federation.members[SHOP].previous is None
    assert federated(kept, SMALL) == 0, kept.output


def test_until_a_site_has_its_new_certificate_the_one_before_is_good(
    kept: World, capsys: pytest.CaptureFixture[str]
) -> None:
    both, _ = renewed(kept)
    (kept.path / BANK / "federation.toml").write_text(both)
    assert json_of(capsys, "site", "check", "--folder", str(kept.path / BANK))["sites"][0]["problem"] is None
    (kept.path / SHOP / "federation.toml").write_text(both)
    assert json_of(capsys, "site", "check", "--folder", str(kept.path / BANK))["sites"][0]["problem"] is None
    assert kept.audit(SHOP)


def test_a_file_that_is_wrong_changes_nothing_and_is_told(kept: World, capsys: pytest.CaptureFixture[str]) -> None:
    file = kept.path / SHOP / "federation.toml"
    good = file.read_text()
    for wrong in ("name = ", good.replace('name = "credit"', 'name = "c/d"'), good[: len(good) // 2]):
        file.write_text(wrong)
        kept.on(SHOP, kept.processes[SHOP]._operations.look)
        found = status_of_file(kept)
        assert found["config_errors"]
        assert json_of(capsys, "site", "check", "--folder", str(kept.path / BANK))["sites"][0]["problem"] is None
    file.write_text(good)
    kept.on(SHOP, kept.processes[SHOP]._operations.look)
    assert status_of_file(kept)["config_errors"] is None


def status_of_file(world: World) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((world.path / SHOP / "status.json").read_text())
    return found


def test_a_log_whose_keys_were_turned_by_somebody_else_is_found_out(tmp_path: Path) -> None:
    world = World(tmp_path)
    folder = world.folder(SHOP)
    folder.audit.add("note", text="true")
    renewed(world)
    honest = (folder.path / AUDIT).read_bytes()
    # somebody with a key of their own begins a log that ends in the site's certificate
    other = world.folder(BANK)
    other.audit.add("note", text="false")
    world.share()
    now = world.folder(SHOP)
    certificate = now.federation.members[SHOP].certificate
    assert [line["what"] for line in check(now.path / AUDIT, certificate)] == ["note", "turned", "certified"]
    turned = (now.path / AUDIT).read_bytes().splitlines(keepends=True)
    forged = (other.path / AUDIT).read_bytes().splitlines(keepends=True)
    for lines in ([*forged, *turned[1:]], turned[:2], turned[:1], [turned[0], turned[2]], [*turned, *forged]):
        (tmp_path / AUDIT).write_bytes(b"".join(lines))
        with pytest.raises(BadInput, match=r"is not what the site wrote there|is not signed with the key"):
            check(tmp_path / AUDIT, certificate)
    assert honest == turned[0]


def test_a_process_that_is_killed_while_it_takes_a_key_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.folder(SHOP).audit.add("note", text="before")
    old = (world.path / SHOP / "key.pem").read_bytes()
    renewed(world)
    following = (world.path / SHOP / "key.next.pem").read_bytes()
    world.share()
    assert len(world.audit(SHOP)) == 3
    for name, key in (("key.pem", old), ("key.next.pem", following)):  # the line is written, the key not yet taken
        (world.path / SHOP / name).write_bytes(key)
        os.chmod(world.path / SHOP / name, 0o600)
    world.folder(SHOP).audit.add("note", text="between")
    (world.path / SHOP / AUDIT).write_bytes(
        b"".join((world.path / SHOP / AUDIT).read_bytes().splitlines(keepends=True)[:3])
    )
    folder = world.folder(SHOP)
    _ = folder.federation
    folder.audit.add("note", text="after")
    assert [line["what"] for line in world.audit(SHOP)] == ["note", "turned", "certified", "note"]


# --- clocks and versions --------------------------------------------------------------------------------------------


def knock(world: World, hello: Hello) -> None:
    bank = world.folder(BANK)

    async def work() -> None:
        await (await dial(bank, bank.federation.members[SHOP], hello, LIMITS, **ENDS)).end()

    asyncio.run(work())


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(100.0, "100 s ahead of this site's: at most 60 s are allowed"), (-3600.0, "3600 s behind this site's")],
)
def test_a_clock_that_is_far_off_is_refused_before_anything_starts(kept: World, seconds: float, said: str) -> None:
    with pytest.raises(Refused, match="refused bank: has a clock that is"):
        knock(kept, Hello("credit", "check", "", "", time.time() + seconds))
    assert said in kept.refusals(SHOP)[-1]
    with pytest.raises(Refused, match="says what is no time"):
        knock(kept, Hello("credit", "check", "", "", float("nan")))


def test_a_clock_that_is_a_little_off_is_told(kept: World) -> None:
    knock(kept, Hello("credit", "check", "", "", time.time() + 20))
    assert any("the clock of bank is" in line and "s ahead of this site's" in line for line in kept.output[SHOP])


async def let_go(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    await asyncio.sleep(0.01)  # in which the socket is closed


async def answered(world: World, reply: Any, handshake: bytes | None = None) -> Any:
    """Dial a site that answers a handshake so, or greet the shop so; return what was said to that."""
    bank, shop = world.folder(BANK), world.folder(SHOP)
    member = bank.federation.members[SHOP]
    if handshake is not None:
        ends = await asyncio.open_connection(member.host, member.port, ssl=bank.client_tls, server_hostname=SHOP)
        ends[1].write(handshake)
        *_, body = await read_piece(ends[0], LIMITS)
        await let_go(ends[1])
        return error_in(body, SHOP)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            await writer.start_tls(shop.server_tls)
            await read_piece(reader, LIMITS)
            body = b"".join(encode_parts(reply))
            writer.write(HEAD.pack(len(body), REPLY, 0, 0) + body)
            await writer.drain()
            await reader.read()
        await let_go(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        peer = type(member)(SHOP, "127.0.0.1", port, member.certificate)
        with pytest.raises(Refused) as caught:
            await dial(bank, peer, Hello("credit", "check", "", ""), LIMITS, **ENDS)
    return caught.value


def test_who_dials_refuses_a_clock_too(kept: World) -> None:
    assert "shop: has a clock that is 100 s behind" in str(asyncio.run(answered(kept, (time.time() - 100, 0, 0))))
    assert "does not say what time it is there" in str(asyncio.run(answered(kept, ("noon", 0))))


def test_another_version_of_the_link_is_told_as_that(kept: World) -> None:
    for said in ((VERSION - 1, "credit", "check", "", ""), (VERSION + 1,)):
        body = b"".join(encode_parts(said))
        error = asyncio.run(answered(kept, None, HEAD.pack(len(body), REQUEST, 0, 0) + body))
        assert f"speaks version {said[0]} of the link, and shop version {VERSION}" in str(error)
