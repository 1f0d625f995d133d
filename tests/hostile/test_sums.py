"""Whose sum it is: all organisations', where a loss ends the run, whatever the server says of who arrived."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedactors.api import simulate
from fedactors.errors import FedactorsError
from fedactors.plugins import find_protocol
from fedactors.secure_sums.actors import SecureSums
from fedactors.secure_sums.messages import Arrived, Confirmations, arrived_text, mask_stream, pair_seed
from fedactors.secure_sums.primitives import join
from fedactors.secure_sums.protocol import SecureSumError
from protocols.glasu.actors import GraphClient
from protocols.horizontal.actors import ClientProcess
from protocols.mtcd.actors import TokenClient
from protocols.nebulafl.baselines.actors import OrderCenter
from protocols.nebulafl.baselines.secure_sums import SummingCenter
from tests.secure_sums.test_protocol import FIVE, Sums, vectors

pytestmark = pytest.mark.slow
RUNS: dict[str, dict[str, Any]] = {
    "horizontal": {"num_clients": 5},
    "glasu": {"num_clients": 5},
    "mtcd": {"num_clients": 5, "learning_rate": 0.001},
    "nebulafl": {"algorithm": "fedavg-hierarchical", "num_centers": 4, "duration": 9000},
}


@pytest.mark.parametrize("name", RUNS)
def test_nobody_is_left_out_of_a_sum_where_a_loss_ends_the_run(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A server that calls one lost, and goes on with it, would see what it adds: the difference of two sums."""
    honest, seen = SecureSums.total, []

    async def without_one(self: SecureSums, parts: Any, point: Any, work: Any) -> Any:
        left_out = sorted(parts)[-1]
        found, whose = await honest(self, {one: part for one, part in parts.items() if one != left_out}, point, work)
        seen.append(whose)
        return found, whose

    monkeypatch.setattr(SecureSums, "total", without_one)
    words = {**find_protocol(name).smoke, **RUNS[name], "on_party_loss": "stop", "secure_aggregation": True}
    with pytest.raises(FedactorsError, match=r"its sums are of .* together, and without .* a sum would show"):
        simulate(name, seed=1, **words)
    assert seen == []


def emptied(told: Any) -> Any:
    """Return a message after which its receiver has nothing to add: a model or weight that changes nothing."""
    for name in ("parameters", "values", "weight", "value"):
        if hasattr(told, name):
            return replace(told, **{name: getattr(told, name) * (1e9 if name == "value" else 0)})
    return told


ANNOUNCEMENTS = {
    "the model": ("horizontal", ClientProcess, "train"),
    "the weight of all": ("horizontal", ClientProcess, "take_weight"),
    "what others represent": ("glasu", GraphClient, "infer"),
    "the last of it": ("glasu", GraphClient, "update"),
    "how tokens count": ("mtcd", TokenClient, "sync"),
    "the centers' model": ("nebulafl", OrderCenter, "start_round"),
    "the weight of all centers": ("nebulafl", SummingCenter, "take_weight"),
}


@pytest.mark.parametrize("what", ANNOUNCEMENTS)
def test_a_sum_is_of_those_who_were_told_the_same(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """A server that tells all but one something after which they add nothing would read what that one adds."""
    name, cls, endpoint = ANNOUNCEMENTS[what]
    honest = getattr(cls, endpoint)

    @functools.wraps(honest)
    async def told(self: Any, message: Any) -> Any:
        return await honest(self, message if self.name == max(self.clients) else emptied(message))

    monkeypatch.setattr(cls, endpoint, told)
    words = {**find_protocol(name).smoke, **RUNS[name], "on_party_loss": "stop", "secure_aggregation": True}
    with pytest.raises(FedactorsError, match="has not confirmed the same survivors, or was told otherwise what to add"):
        simulate(name, seed=1, **words)


def read_by_two(sums: Sums, values: dict[str, Any]) -> Any:
    """Return ann's vector, as a server reads it whom eve helps: of five, three make a set, and eve signs two sets."""
    masked = sums.mask(values)
    slot, session = masked["ann"].slot, sums.server.session
    shares: dict[str, Any] = {}
    for arrived in (Arrived(slot, ("ann", "bob", "eve")), Arrived(slot, ("cy", "dee", "eve"))):
        honest = arrived.members[:2]
        signatures = {name: sums.clients[name].confirm(arrived).signature for name in honest}
        signatures["eve"] = sums.clients["eve"]._identity.sign(arrived_text(session.id, arrived, b""))
        shares |= {name: sums.clients[name].unmask(Confirmations(slot, signatures)).shares for name in honest}
    held = {peer: one[slot] for peer, one in sums.clients["eve"]._held.items()}
    seed, key = (
        secret_of({**{name: shares[name]["ann"] for name in others}, "eve": held["ann"][which].tobytes()})
        for which, others in enumerate((("ann", "bob"), ("cy", "dee")))
    )
    words = masked["ann"].words - mask_stream(seed, len(masked["ann"].words))
    private = X25519PrivateKey.from_private_bytes(key)
    for peer in session.neighbours("ann"):
        words = words - mask_stream(
            pair_seed(private, session.keys[peer].masking[slot].tobytes(), session.id, slot, "ann", peer), len(words)
        )
    return sums.point.decode(words)


def secret_of(shares: dict[str, bytes]) -> bytes:
    """Return what three shares of five give."""
    indices = np.array([FIVE.index(name) + 1 for name in shares])
    return join(np.stack([np.frombuffer(one, dtype=np.uint8) for one in shares.values()]), indices).tobytes()


def test_who_helps_the_server_signs_two_sets_where_a_loss_does_not_end_the_run() -> None:
    """What the pages say of an odd number: with all honest but the server it holds, with one helper it does not."""
    sums, values = Sums(), vectors()
    found = read_by_two(sums, values)
    assert np.abs(found - values["ann"]).max() < 1e-6


def test_who_helps_the_server_gets_no_second_set_where_a_loss_ends_the_run() -> None:
    with pytest.raises(SecureSumError, match=r"its sums are of .* together, and without cy, without dee a sum"):
        read_by_two(Sums(only=FIVE), vectors())
