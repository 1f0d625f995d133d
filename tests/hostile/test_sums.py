"""Whose sum it is: all organisations', where a loss ends the run, whatever the server says of who arrived."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedactors.actors.context import Work
from fedactors.actors.remote import current_caller
from fedactors.api import simulate
from fedactors.errors import FedactorsError, Refused
from fedactors.learning.network import initial_vector
from fedactors.plugins import find_protocol
from fedactors.protocols.glasu.actors import GraphClient
from fedactors.protocols.glasu.messages import Aggregated, GradientShare
from fedactors.protocols.horizontal.actors import ClientProcess
from fedactors.protocols.horizontal.algorithm import ServerModel, shared
from fedactors.protocols.horizontal.messages import TotalWeight
from fedactors.protocols.mtcd.actors import TokenClient
from fedactors.protocols.nebulafl import training
from fedactors.protocols.nebulafl.baselines.actors import OrderCenter, RoundExchange
from fedactors.protocols.nebulafl.baselines.secure_sums import SummingCenter
from fedactors.protocols.nebulafl.messages import RoundOrder, RunStart, TrainingOrder, Withdrawal
from fedactors.secure_sums.actors import SecureSums, as_bytes
from fedactors.secure_sums.messages import (
    Arrived,
    Confirmations,
    Masked,
    arrived_text,
    mask_stream,
    pair_seed,
    summed_text,
)
from fedactors.secure_sums.primitives import FixedPoint, LongIntegers, count_point, join
from fedactors.secure_sums.protocol import SecureSumError
from tests.secure_sums.test_protocol import FIVE, Sums, vectors

pytestmark = pytest.mark.slow
NOTHING = np.zeros(0, np.float32)
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
    """Return a message after which its receiver has nothing to add: a model or weight that changes (nearly) nothing."""
    for name in ("parameters", "values", "weight", "value"):
        if hasattr(told, name):
            return replace(told, **{name: getattr(told, name) * (20 if name == "value" else 0)})
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

TOLD_OTHERWISE = "has not confirmed the same survivors, or was told otherwise what to add"


def told_to(monkeypatch: pytest.MonkeyPatch, cls: Any, endpoint: str) -> None:
    """Let all clients but the last be told something after which they add nothing."""
    honest = getattr(cls, endpoint)

    @functools.wraps(honest)
    async def told(self: Any, message: Any) -> Any:
        return await honest(self, message if self.name == max(self.clients) else emptied(message))

    monkeypatch.setattr(cls, endpoint, told)


@pytest.mark.parametrize("what", ANNOUNCEMENTS)
def test_a_sum_is_of_those_who_were_told_the_same(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """A server that tells all but one something after which they add nothing would read what that one adds."""
    name, cls, endpoint = ANNOUNCEMENTS[what]
    told_to(monkeypatch, cls, endpoint)
    attacked(name, "combine its copies with weight 0; approved: 1" if what == "how tokens count" else TOLD_OTHERWISE)


@pytest.mark.parametrize("what", ["the model", "the weight of all"])
def test_with_a_quorum_too_a_sum_is_of_those_who_were_told_the_same(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """What was told before the round counts, too: of all but one little is left if all is said to weigh 20 times."""
    told_to(monkeypatch, *ANNOUNCEMENTS[what][1:])
    quorum = {"on_party_loss": "continue", "min_sites": 4, "secure_aggregation": True, "quorum_timeout": 1.0}
    words = {**find_protocol("horizontal").smoke, **RUNS["horizontal"], **quorum}
    with pytest.raises(FedactorsError, match=TOLD_OTHERWISE):
        simulate("horizontal", seed=1, **words)


def attacked(name: str, said: str, **more: Any) -> None:
    """Let a run under masks end with a refusal."""
    words = {**find_protocol(name).smoke, **RUNS[name], "on_party_loss": "stop", "secure_aggregation": True, **more}
    with pytest.raises(FedactorsError, match=said):
        simulate(name, seed=1, **words)


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, r"orders a round of 0 containers of .*; approved: 2"), (2, "a round that is not over there")],
)
def test_a_center_adds_the_round_that_all_were_told_last(
    monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    """An exchange that asks all but one for what they keep of the round before, of zeros, would read one's model."""

    async def start(self: RoundExchange, order: RoundOrder) -> None:
        await self.centers.ask(lambda center: center.start_round(replace(order, num_containers=number)))

    async def settle(self: RoundExchange) -> None:
        if set(self.called) - set(self.results):
            return
        if self.round == 0:  # each keeps its part of round 0
            self.round, self.results = 1, {}
            await self._sums._sums.prepare(1)
            order = RoundOrder(1, self._config.active_per_center, self.parameters_P)
            await self.centers.ask(lambda center: center.start_round(order))
            self.called = [self.centers.members[0]]
            self.early = {name: await self.peer(name, OrderCenter).give_part() for name in self.centers.members[1:]}  # type: ignore[attr-defined]
            return
        (victim,) = self.called
        parts = {victim: await self.peer(victim, OrderCenter).give_part(), **self.early}  # type: ignore[attr-defined]
        point = FixedPoint(limit=self._config.secure_range, num_clients=len(self.centers.names))
        await self._sums._sums.total(parts, point, Work("unmasking", 1.0))
        raise AssertionError("the exchange has read the sum of one's model and zeros")

    monkeypatch.setattr(RoundExchange, "_start", start)
    monkeypatch.setattr(RoundExchange, "_settle", settle)
    attacked("nebulafl", said, active_per_center=2)


SCHEDULED = {"schedule": "step", "decay_every": 1}


@pytest.mark.parametrize(
    ("endpoint", "more"), [("start_round", {"rate_factor": 1e-9}), ("begin_run", {"training_seconds": 1e-6})]
)
def test_a_mean_is_of_centers_that_train_at_one_rate(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, more: dict[str, float]
) -> None:
    """Where most models are the order's, the mean says what one center has trained."""
    honest = getattr(OrderCenter, endpoint)

    @functools.wraps(honest)
    async def told(self: Any, message: Any) -> Any:
        return await honest(self, message if self.name == max(self.clients) else replace(message, **more))

    monkeypatch.setattr(OrderCenter, endpoint, told)
    attacked("nebulafl", TOLD_OTHERWISE, **SCHEDULED)


@pytest.mark.parametrize(("started", "is_taken"), [(900.0, True), (0.0, False), (5000.0, False), (math.nan, False)])
def test_a_center_takes_no_start_at_another_time_than_now(started: float, is_taken: bool) -> None:
    """Another organisation's driver would say what is left of the run, and with it of the schedule."""
    center = object.__new__(OrderCenter)
    context = SimpleNamespace(name="oregon", clock=SimpleNamespace(now=lambda: 1000.0), is_between_organisations=True)
    center._context, token = context, current_caller.set("driver")  # type: ignore[assignment]
    try:
        refusal = pytest.raises(Refused, match=r"says to oregon that the run began at .* s, where it is 1000 s")
        with contextlib.nullcontext() if is_taken else refusal:
            center._check_start(RunStart(started, 1.0))
    finally:
        current_caller.reset(token)


def test_an_order_that_comes_late_trains_at_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the exchange would choose by the minute at which it orders how far each model moves."""
    honest, begin, rates = OrderCenter.start_round, training.begin_training, dict[str, set[float]]()

    @functools.wraps(honest)
    async def told(self: Any, order: Any) -> None:
        if order.round == 1 and self.name != max(self.clients):
            await self.clock.sleep(550)
        await honest(self, order)

    def began(actor: Any, *args: Any) -> Any:
        rates.setdefault(actor.name, set()).add(args[5].rate_factor)
        return begin(actor, *args)

    monkeypatch.setattr(OrderCenter, "start_round", told)
    monkeypatch.setattr(training, "begin_training", began)
    words = {**find_protocol("nebulafl").smoke, **RUNS["nebulafl"], **SCHEDULED, "num_rounds": 2}
    simulate("nebulafl", seed=1, **words, on_party_loss="stop", secure_aggregation=True)
    assert len(rates) == 4
    assert len({frozenset(one) for one in rates.values()}) == 1, rates


def test_what_a_client_of_glasu_measures_leaves_in_sums() -> None:
    """Its losses and its accuracy, of aggregates that the server may make up, tell of its labels and features."""
    found = simulate("glasu", seed=1, **{**find_protocol("glasu").smoke, **RUNS["glasu"], "secure_aggregation": True})
    sent = set(found.ledger["type"])
    assert "Masked" in sent
    assert sent.isdisjoint({"Report", "Prediction"})
    assert "test/mean_client_accuracy" in found.rounds.columns
    assert "test/least_client_accuracy" not in found.rounds.columns


@pytest.mark.parametrize("checked", [True, False], ids=["checked", "if nobody checked the turn"])
def test_one_aggregate_to_two_endpoints_makes_no_sum(monkeypatch: pytest.MonkeyPatch, checked: bool) -> None:
    """What one infers would be added to gradients of the others, which are nearly nothing."""
    honest = GraphClient.infer

    @functools.wraps(honest)
    async def infer(self: GraphClient, aggregated: Aggregated) -> Any:
        return await (honest(self, aggregated) if self.name == max(self.clients) else self.head_gradient(aggregated))

    monkeypatch.setattr(GraphClient, "infer", infer)
    if not checked:

        def take(self: GraphClient, aggregated: Aggregated, *, is_last: bool) -> Any:
            self._round.aggregated.append(torch.tensor(aggregated.values))
            return self._round.aggregated[-1]

        monkeypatch.setattr(GraphClient, "_take_aggregated", take)
    attacked("glasu", "the aggregate of segment 0 out of turn" if checked else TOLD_OTHERWISE, mode="joint")


def test_a_weight_is_not_added_to_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but one tell their weight when that one tells its change: their sum shows the change of a parameter."""

    prepared = SecureSums.prepare

    async def begin(sums: SecureSums, num_sums: int) -> None:
        await prepared(sums, num_sums)
        self: Any = sums._caller
        vector_P = initial_vector(self._spec, 1)
        self.model = ServerModel.begin(self._config, shared(self._spec, (), vector_P))
        victim, *others = self.sites.members
        total, order = TotalWeight(1e5), self._orders(1)
        await self.peer(victim, ClientProcess).weigh()
        await self.sites.ask(lambda site: site.take_weight(total))
        for name in others:
            await self.peer(name, ClientProcess).train(order[name])
        change = await self.peer(victim, ClientProcess).train(order[victim])
        parts = {name: await self.peer(name, ClientProcess).weigh() for name in others}
        parts[victim] = Masked(change.slot, (1,), change.words[:1])
        await sums.total(parts, count_point(len(parts)), Work("unmask", 1.0))
        raise AssertionError("the server has read one's change of a parameter")

    monkeypatch.setattr(SecureSums, "prepare", begin)
    attacked("horizontal", "for its weight after the sum of all", standardisation="none")


@pytest.mark.parametrize("endpoint", ["start_round", "withdraw", "order", "facts", "columns"])
def test_no_center_orders_another(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """What the exchange alone may order decides what a center adds."""
    honest, withdrawal = OrderCenter.start_round, (Withdrawal(()),)

    @functools.wraps(honest)
    async def start(self: OrderCenter, order: RoundOrder) -> None:
        told = {"start_round": (order,), "withdraw": withdrawal, "order": (TrainingOrder(1, 0, 0.0, 1.0, NOTHING),)}
        if self.name == max(self.clients):
            await getattr(self.peer(min(self.clients), OrderCenter), endpoint)(*told.get(endpoint, ()))
        await honest(self, order)

    monkeypatch.setattr(OrderCenter, "start_round", start)
    attacked("nebulafl", rf"\.{endpoint}, which is open to its adder only")


def test_no_sum_tells_on_which_side_of_a_grid_point_one_clients_value_lies() -> None:
    """A server that makes the grid coarse and chooses values: it knows those of the others, on grid points."""
    sums, rng = Sums(num_sums=2), np.random.default_rng(0)
    sums.point = FixedPoint(limit=4e8, num_clients=len(FIVE))
    step = 1 / sums.point.steps_per_unit
    signs = rng.choice([-1, 1], 4_000)
    values = {name: np.full(4_000, 3 * step) for name in FIVE} | {"ann": (0.5 + 0.02 * signs) * step}
    found = sums.finish(sums.mask(values, what="models"))
    told = np.rint(found / step) - 12  # ann's own: 0 or 1
    assert set(told.tolist()) == {0.0, 1.0}
    assert abs((told == (signs > 0)).mean() - 0.52) < 0.03


@pytest.mark.parametrize(
    ("endpoint", "more", "said"),
    [
        ("visit", {"step": 1e-7}, r"a token of step 1e-07 in round 0; approved: 0\.001 \(learning_rate\)"),
        ("visit", {"token": 5}, r"token 5, 0 hops made and \d+ to come; approved: \d \(num_tokens\)"),
        ("visit", {"hops_left": 99}, r"0 hops made and 99 to come; approved: \d \(num_tokens\), \d \(num_hops\)"),
        ("visit", {"hop": -1}, r"-1 hops made"),
        ("sync", {"weight": 1e9}, r"combine its copies with weight 1e\+09; approved: 1 \(mode\)"),
        ("sync", {"momentum": 1e9}, r"sync round 0 with momentum 1e\+09; approved: at most 0 \(acceleration\)"),
        ("sync", {"momentum": math.nan}, r"with momentum nan; approved: at most 0"),
    ],
)
def test_no_client_of_mtcd_is_emptied(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, more: dict[str, float], said: str
) -> None:
    """A small step at all but one, and a weight that makes up for it, would leave nothing but that one's part."""
    honest = getattr(TokenClient, endpoint)

    @functools.wraps(honest)
    async def told(self: TokenClient, message: Any) -> Any:
        return await honest(self, replace(message, **more))

    monkeypatch.setattr(TokenClient, endpoint, told)
    attacked("mtcd", said, learning_rate=0.001)


PARTS: dict[str, dict[str, Any]] = {
    "of another kind": {"what": "a weight"},
    "that follow from something else": {"heard": b"another order"},
    "on another grid": {"point": FixedPoint(limit=64.0, num_clients=5)},
    "of another length": {"length": 3},
}


@pytest.mark.parametrize("of", PARTS)
def test_no_sum_is_of_parts(of: str) -> None:
    """Masks are key streams: the beginnings of two vectors add up, whatever they are."""
    sums, values, one = Sums(), vectors(), {"what": "a change", "heard": b"", "point": None, "length": 40, **PARTS[of]}
    point = one["point"] or sums.point
    masked = sums.mask({name: values[name] for name in FIVE[:1]}, what="a change")
    for name in FIVE[1:]:
        zeros = np.zeros(one["length"])
        masked[name] = sums.clients[name].mask(zeros, point, what=one["what"], heard=one["heard"])
    cut: Mapping[str, Masked] = {
        name: Masked(part.slot, (one["length"],), part.words[: one["length"]]) for name, part in masked.items()
    }
    with pytest.raises(SecureSumError, match=TOLD_OTHERWISE):
        sums.finish(cut)


def test_no_two_kinds_of_messages_are_the_same_bytes() -> None:
    values = np.arange(1000.0)
    assert as_bytes(Aggregated(0, values)) != as_bytes(GradientShare(0, values))
    grids = (FixedPoint(limit=8.0, num_clients=5), LongIntegers(limit=8.0, num_clients=5))
    assert len({summed_text("", (9,), grid, b"") for grid in grids}) == 2, "one is added with carries"
    assert as_bytes({"a": values}) != as_bytes({"a": values + (values == 500)})  # whose texts are the same


def read_by_two(sums: Sums, values: dict[str, Any]) -> Any:
    """Return ann's vector, as a server reads it whom eve helps: of five, three make a set, and eve signs two sets."""
    masked = sums.mask(values)
    slot, session = masked["ann"].slot, sums.server.session
    shares: dict[str, Any] = {}
    for arrived in (Arrived(slot, ("ann", "bob", "eve")), Arrived(slot, ("cy", "dee", "eve"))):
        honest = arrived.members[:2]
        signatures = {name: sums.clients[name].confirm(arrived).signature for name in honest}
        signatures["eve"] = sums.clients["eve"]._identity.sign(
            arrived_text(session.id, arrived, sums.clients["eve"]._summed[slot])
        )
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
