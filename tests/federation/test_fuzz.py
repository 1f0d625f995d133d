"""Bytes and values that nobody thought of: refused or dropped, in time, and the site is free for the next run."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedactors.config import as_dict, build, spell_infinities
from fedactors.errors import BadInput, FedactorsError, Refused
from fedactors.federation.approval import as_tree, make_proposal, read_proposal
from fedactors.federation.hosting import Gate, make_book
from fedactors.federation.operations import Operations
from fedactors.federation.session import HEAD, PIECE_BYTES, Connection, value_of
from fedactors.federation.site_run import SiteRun
from fedactors.messages.codec import encode_parts
from fedactors.plugins import find_protocol
from fedactors.protocols.pubsub_vfl.messages import Report
from fedactors.runtime.failures import errors_for
from tests.federation.hostile_sites import BROKER, WORKER, begin
from tests.federation.test_runs import SMALL, federated
from tests.federation.world import BANK, LIMITS, SHOP, World

pytestmark = pytest.mark.slow
fuzz = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=20)
arrays = st.sampled_from([np.ones(3), np.zeros((0, 7)), np.array("x"), np.ones((2, 2), np.float32)])
words = st.sampled_from([WORKER, BROKER, "driver", "report", "load", BANK, SHOP, "calls", "payloads", "propose"])
values = st.recursive(
    scalars | arrays | words | st.just(Report((), (), 1, False)),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
requests = st.lists(values, max_size=6).map(tuple) | values
pieces = st.builds(
    lambda length, kind, more, number, body: struct.pack("<IBBI", length, kind, more, number) + body,
    st.sampled_from([0, 1, 8, 30, PIECE_BYTES, 2**32 - 1]),
    st.integers(0, 255),
    st.integers(0, 2),
    st.sampled_from([0, 1, 2, 7]),
    st.binary(max_size=60),
)


def framed(value: Any) -> bytes:
    return b"".join(encode_parts(value))


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("fuzz"))
    made.start(BANK)
    made.start(SHOP)
    yield made
    made.stop()


@fuzz
@given(st.lists(pieces | st.binary(max_size=200) | requests.map(lambda v: _piece(framed(v))), min_size=1, max_size=4))
def test_whatever_comes_over_a_connection_ends_it_or_is_answered(data: list[bytes]) -> None:
    wrong: list[dict[str, Any]] = []

    async def work() -> None:
        ended = asyncio.Event()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))

        async def serve(body: memoryview) -> Any:
            return value_of(body, SHOP)

        def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ends = {"serve": serve, "lost": lambda *_: ended.set(), "errors": errors_for(BANK, SHOP)}
            begin(Connection(peer=SHOP, limits=replace(LIMITS, away=0.0), **ends), writer)

        server = await asyncio.start_server(take, "127.0.0.1", 0, limit=2 * PIECE_BYTES)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"".join(data))
        writer.write_eof()
        async with asyncio.timeout(10):
            await reader.read()  # until the other side closes
            await ended.wait()
        writer.close()
        server.close()

    asyncio.run(work())
    assert not wrong


def _piece(body: bytes) -> bytes:
    return HEAD.pack(len(body), 0, 0, 1) + body


@fuzz
@given(st.data())
def test_a_gate_refuses_or_admits_and_does_nothing_else(data: st.DataObject) -> None:
    protocol = find_protocol("pubsub-vfl")
    assert protocol.actors is not None
    classes = {cls.__name__: cls for cls in protocol.actors(build(protocol.Config, {})).values()}
    pairs = [(WORKER, "PassiveWorker"), (BROKER, "BatchBroker")]
    gate = Gate(BANK, BANK, make_book(pairs, classes.values(), lambda name: SHOP if name == WORKER else BANK))
    call = framed((WORKER, BROKER, "report", Report((), (), 1, False)))
    index = data.draw(st.integers(0, len(call) - 1))
    flipped = bytearray(call)
    flipped[index] ^= data.draw(st.integers(1, 255))
    for frame in (bytes(flipped), framed(data.draw(requests)), data.draw(st.binary(max_size=99))):
        with contextlib.suppress(Refused):
            found = value_of(frame, SHOP)
            parts = found if isinstance(found, tuple) and len(found) == 4 else (WORKER, BROKER, "report", found)
            gate.call_in(SHOP, *parts)


@fuzz
@given(values, st.lists(values, max_size=3))
def test_what_is_no_proposal_and_no_assignment_is_refused(lasting: World, tree: Any, args: list[Any]) -> None:
    folder, protocol = lasting.folder(SHOP), find_protocol("pubsub-vfl")
    with pytest.raises(BadInput):
        read_proposal(tree)
    config = build(protocol.Config, {"on_party_loss": "stop"})
    settings_ = spell_infinities(as_dict(config))
    bank = lasting.folder(BANK)
    proposal = make_proposal(bank, protocol, settings_, "bank=customers,shop=orders", None)
    with pytest.raises(BadInput):
        read_proposal({**as_tree(proposal), "data": tree})

    async def ask() -> None:
        run = SiteRun(folder, proposal, protocol, config, LIMITS, Operations(folder, lambda _: None))
        for verb in ("prepare", "connect", "call", "snapshot", "commit", "end", "nothing"):
            with pytest.raises(FedactorsError):
                await run.control(verb, tuple(args))

    asyncio.run(ask())


@settings(fuzz, max_examples=25)
@given(st.binary(max_size=80) | requests.map(lambda v: _piece(framed(v))) | pieces)
def test_whatever_greets_a_site_is_sent_away(lasting: World, handshake: bytes) -> None:
    bank = lasting.folder(BANK).federation.members[BANK]

    async def knock() -> None:
        tls: ssl.SSLContext = lasting.folder(SHOP).client_tls
        reader, writer = await asyncio.open_connection(bank.host, bank.port, ssl=tls, server_hostname=BANK)
        writer.write(handshake)
        async with asyncio.timeout(2 * LIMITS.handshake):
            if len(handshake) < HEAD.size:
                writer.transport.abort()
                return
            with contextlib.suppress(OSError, ssl.SSLError):
                await reader.read()
        writer.close()

    asyncio.run(knock())
    assert lasting.driven_run(BANK) is None


def test_an_honest_run_goes_through_after_all_that(lasting: World) -> None:
    assert federated(lasting, (*SMALL, "algorithm=vfl")) == 0, lasting.output
