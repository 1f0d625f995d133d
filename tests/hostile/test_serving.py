"""What is answered over HTTP, whatever reaches the port: nobody is kept out by silence."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedactors import trained
from fedactors.errors import BadInput, Refused
from fedactors.federation.online import (
    Contributions,
    ContributionServer,
    Loop,
    PredictionHandler,
    PredictionServer,
    Predictor,
    RemoteContributor,
    loaded,
)
from fedactors.federation.session import LINES_PER_MINUTE, MOST
from fedactors.messages.codec import encode_parts
from fedactors.options import RunOptions
from tests.federation.test_online import JSON, TOKEN, ask, part_of, rows_of
from tests.federation.world import BANK, CLINIC, SHOP, World

pytestmark = [pytest.mark.drawn(1, family="hostile")]
QUESTION = json.dumps({"ids": ["r1"]}).encode()
ASKS = b"".join(f"{name}: {value}\r\n".encode() for name, value in JSON.items())


@pytest.fixture
def served() -> Iterator[tuple[PredictionServer, list[dict[str, Any]]]]:
    """A whole model that is asked over HTTP, and its log."""
    loop, log = Loop(), list[dict[str, Any]]()
    predictor = Predictor(loaded(part_of("a", ("a",))), rows_of(["r1", "r2"]), {})
    made = PredictionServer(predictor, ("127.0.0.1", 0), TOKEN, loop.call, log.append)
    with made.answering():
        yield made, log
    loop.stop()


def num_answers(server: PredictionServer, *parts: bytes) -> int:
    """Send bytes on one connection; return how many answers there are until its end."""
    with socket.create_connection(("127.0.0.1", server.port), 5) as made:
        for part in parts:
            made.sendall(part)
        made.settimeout(30)
        found = b""
        with contextlib.suppress(OSError):
            while block := made.recv(65536):
                found += block
    return found.count(b"HTTP/1.1 ")


def test_who_drips_a_request_keeps_nobody_out(served: tuple[PredictionServer, list[dict[str, Any]]]) -> None:
    """Each byte comes in time; none of them has the token."""
    server, _ = served
    slow = [socket.create_connection(("127.0.0.1", server.port), 5) for _ in range(2 * server.most_connections)]
    for one in slow:
        with contextlib.suppress(OSError):
            one.sendall(b"POST /predict HTTP/1.1\r\nX-")
    time.sleep(0.2)
    for _ in range(3):
        for one in slow:
            with contextlib.suppress(OSError):
                one.sendall(b"a")
        assert ask(server, {"ids": ["r1"]})[0] == 200
    for one in slow:
        one.close()


def test_who_is_answered_is_not_sent_away_for_others(served: tuple[PredictionServer, list[dict[str, Any]]]) -> None:
    server, _ = served
    with socket.create_connection(("127.0.0.1", server.port), 5) as made:
        head = b"POST /predict HTTP/1.1\r\n" + ASKS + f"Content-Length: {len(QUESTION)}\r\n\r\n".encode()
        made.sendall(head + QUESTION[:4])  # the token is there; the rest of the question takes its time
        end = time.monotonic() + 15
        while server._free._value == server.most_connections and time.monotonic() < end:
            time.sleep(0.02)
        assert server._free._value == server.most_connections - 1
        others = [socket.create_connection(("127.0.0.1", server.port), 5) for _ in range(2 * server.most_connections)]
        time.sleep(0.3)
        made.settimeout(30)
        made.sendall(QUESTION[4:])
        assert made.recv(4096).startswith(b"HTTP/1.1 200 ")
        for one in others:
            one.close()


HIDDEN = b"POST /predict HTTP/1.1\r\n" + ASKS + f"Content-Length: {len(QUESTION)}\r\n\r\n".encode() + QUESTION
LAST = HIDDEN.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
SMUGGLED = {
    "in the body of a GET": b"GET /status HTTP/1.1\r\n" + ASKS + f"Content-Length: {len(HIDDEN)}\r\n\r\n".encode(),
    "in a body that no path reads": b"POST /x HTTP/1.1\r\n" + ASKS + f"Content-Length: {len(HIDDEN)}\r\n\r\n".encode(),
    "after a chunk of none": b"POST /predict HTTP/1.1\r\n"
    + ASKS
    + f"Transfer-Encoding: chunked\r\nContent-Length: {len(QUESTION)}\r\n\r\n".encode()
    + QUESTION,
    "behind a second length": b"POST /predict HTTP/1.1\r\n"
    + ASKS
    + f"Content-Length: {len(QUESTION)}\r\nContent-Length: {len(QUESTION) + len(HIDDEN)}\r\n\r\n".encode()
    + QUESTION,
    "behind a line that is no header": b"GET /status HTTP/1.1\r\n"
    + ASKS
    + f"Content-Length : {len(HIDDEN)}\r\n\r\n".encode(),
}


@pytest.mark.parametrize("first", SMUGGLED.values(), ids=SMUGGLED)
def test_no_request_is_hidden_in_another(served: tuple[PredictionServer, list[dict[str, Any]]], first: bytes) -> None:
    """A proxy would send the second one in the name of whoever shares its connection."""
    server, _ = served
    assert num_answers(server, first + HIDDEN) == 1
    assert num_answers(server, HIDDEN + LAST) == 2


def test_who_reads_an_answer_is_not_sent_away_for_others(
    served: tuple[PredictionServer, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long answer is sent as slowly as it is read."""
    server, _ = served
    may_end, send = list[bool](), PredictionHandler._send

    def note(self: PredictionHandler, status: int, found: Any) -> None:
        may_end.append(self.connection in server._pending)
        send(self, status, found)

    monkeypatch.setattr(PredictionHandler, "_send", note)
    assert ask(server, {"ids": ["r1"]})[0] == 200
    assert may_end == [False]


def test_who_has_no_token_fills_no_log(served: tuple[PredictionServer, list[dict[str, Any]]]) -> None:
    server, log = served
    begun = time.monotonic()
    for _ in range(LINES_PER_MINUTE + 40):
        assert ask(server, {"ids": ["r1"]}, Authorization="Bearer another")[0] == 401
    assert ask(server, {"ids": ["r1"]})[0] == 200
    most = LINES_PER_MINUTE + time.monotonic() - begun + 3
    assert LINES_PER_MINUTE <= sum(one["status"] == 401 for one in log) < most
    assert log[-1]["status"] == 200
    assert server.counts["refused"] == LINES_PER_MINUTE + 40


@pytest.mark.slow
def test_silent_strangers_keep_nobody_from_a_party_that_serves(tmp_path: Path) -> None:
    world, lines, loop = World(tmp_path), list[str](), Loop()
    given = Contributions(loaded(part_of("b", ("a", "b"))), rows_of(["r1"]), 50, np.random.default_rng(7))
    server = ContributionServer(world.folder(SHOP), given, BANK, "model", lines.append)
    port = loop.call(server.start("127.0.0.1", 0))
    bank = world.folder(BANK)
    asker = RemoteContributor(bank, replace(bank.federation.members[SHOP], host="127.0.0.1", port=port), "model")
    silent = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(MOST + 20)]
    time.sleep(0.5)

    async def work() -> None:
        await asker.connect()
        asker.close()

    try:
        loop.call(work())
        assert len(lines) <= LINES_PER_MINUTE
    finally:

        async def stop() -> None:
            server.stop()

        for one in silent:
            one.close()
        loop.call(stop())
        loop.stop()


@pytest.mark.slow
def test_what_a_serving_party_refuses_is_on_record_before_it_ends(tmp_path: Path) -> None:
    """Another member's refusals fill its own lines only, and a process that is killed writes no last one."""
    world, lines = World(tmp_path, (BANK, SHOP, CLINIC)), list[str]()
    given = Contributions(loaded(part_of("b", ("a", "b"))), rows_of(["r1"]), 50, np.random.default_rng(7))
    server = ContributionServer(world.folder(SHOP), given, BANK, "model", lines.append)
    for _ in range(5 * LINES_PER_MINUTE):
        server._refused(CLINIC, "asks again")
    server._refused(BANK, "asks for what is no question")
    assert any(line.startswith("refused: bank: ") for line in lines)
    counts = [line["refused"] for line in world.audit(SHOP) if line["what"] == "served_so_far"]
    assert counts == [1, 2, 4, 8, 16, 32, 64, 128, 256]


@pytest.mark.parametrize("key", ["in service", "taken from service"])
def test_a_link_that_an_old_key_opened_is_answered_no_more(tmp_path: Path, key: str) -> None:
    """As at a site: it may be a thief's, who keeps it open for as long as he likes."""
    folder = World(tmp_path).folder(SHOP)
    given: Any = SimpleNamespace(num_given=0, num_alignments=0, contribute=contributed)
    server = ContributionServer(folder, given, to=BANK, model="0" * 64, tell=lambda _: None)
    certificate = folder.federation.members[BANK].fingerprints[0] if key == "in service" else "another"
    server._links[BANK, "serving"] = SimpleNamespace(certificate=certificate, is_closed=False)  # type: ignore[assignment]
    asked = server._serve(memoryview(b"".join(encode_parts(("contribute", np.zeros(1, np.int64), b"")))))
    if key == "in service":
        assert asyncio.run(asked) == 7.0
        return
    with pytest.raises(Refused, match="shows a certificate that holds no longer"):
        asyncio.run(asked)


async def contributed(*_: Any) -> float:
    return 7.0


def test_what_was_trained_under_masks_is_given_in_no_open_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Online there are no sums: what a party's model makes of a row would be read alone."""
    model = SimpleNamespace(
        protocol=SimpleNamespace(export=lambda config, party, states: part_of(party, (BANK, SHOP))),
        config=SimpleNamespace(secure_aggregation=True),
        states={SHOP: b""},
        checkpoint=SimpleNamespace(folder=tmp_path, driver=b"", label="final"),
    )
    monkeypatch.setattr(trained.Trained, "open", lambda *_: model)
    monkeypatch.setattr(trained, "in_use", contextlib.nullcontext)
    folder: Any = SimpleNamespace(config={"site": {"run": "a" * 16}}, path=tmp_path)
    with pytest.raises(BadInput, match=r"shop: the model was trained with secure_aggregation, .* use fedactors"):
        trained.parts_of(folder, RunOptions())
