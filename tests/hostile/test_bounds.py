"""A coordinator with a certificate and changed code asks for more than was approved; the other site runs honest code.

Its driver, its server and its own actors do as it likes. Each time the first message beyond the approval is refused
where it arrives, with one line in that site's log that says what was approved and what was asked.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from fedactors.actors.actor import Client
from fedactors.actors.remote import CallCounts, remote
from fedactors.errors import Refused
from fedactors.federation.approval import as_tree
from fedactors.inspection import describe_messages
from fedactors.plugins import find_protocol
from fedactors.protocols.pubsub_vfl.actors import ActiveWorker, PassiveWorker
from fedactors.protocols.pubsub_vfl.broker import BatchBroker
from fedactors.protocols.pubsub_vfl.messages import EpochOrder, Orders, Report
from fedactors.protocols.pubsub_vfl.run import Federation
from fedactors.runtime.rounds import Rounds
from tests.federation.hostile_sites import Rogue
from tests.federation.test_runs import MTCD, OTHERS, SMALL, federated
from tests.federation.world import BANK, SHOP, World

pytestmark = [pytest.mark.slow, pytest.mark.drawn(3, family="hostile")]
COUNTING = CallCounts.admit, CallCounts.release


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("bounds"))
    made.start(BANK)
    made.start(SHOP)
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def _the_bank_is_hostile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own actors, and those that it hosts, count nothing."""
    honest, release = CallCounts.admit, CallCounts.release

    def admit(self: CallCounts, endpoint: Any, bound: Any, sender: str, actor: Any, value: Any) -> None:
        if actor.party == SHOP:
            honest(self, endpoint, bound, sender, actor, value)

    def released(self: CallCounts, actor: str, *more: Any) -> None:
        if not actor.startswith(f"{BANK}/worker"):
            release(self, actor, *more)

    monkeypatch.setattr(CallCounts, "admit", admit)
    monkeypatch.setattr(CallCounts, "release", released)


def stretched(monkeypatch: pytest.MonkeyPatch, protocol: str, by: int) -> None:
    """Let the driver of a protocol go on after the last round that was approved."""

    class Longer(Rounds[Any]):
        def __init__(self, *args: Any, num_rounds: int | None, **more: Any) -> None:
            super().__init__(*args, num_rounds=(num_rounds or 0) + by, **more)

        def end_at(self, num_rounds: int, every: int = 1) -> None:
            super().end_at(num_rounds + by, every)

    monkeypatch.setattr(
        importlib.import_module(f"fedactors.protocols.{protocol.replace('-', '_')}.run"), "Rounds", Longer
    )


def refused(world: World, words: tuple[str, ...], protocol: str = "pubsub-vfl") -> list[str]:
    """Run what is hostile; return what the shop wrote down of it."""
    before = len(world.refusals(SHOP))
    assert federated(world, words, protocol=protocol) in (2, 3), world.output
    return world.refusals(SHOP)[before:]


ROUNDS = {
    "pubsub-vfl": ((*SMALL,), "driver: calls shop/worker-0.run_epoch with epoch 3; approved: at most 2 (most_epochs)"),
    "vfl": ((*SMALL, "algorithm=vfl"), "shop/worker-0: is made to release the embeddings of batch 0 of round 3"),
    "mtcd": (MTCD, "shop: is made to release the change of a visit of hop "),
    "svfl": (OTHERS["svfl"][1], "calls shop.step_on for the 4th time; approved: at most 3 times (num_rounds)"),
    "dcpa": (OTHERS["dcpa"][1], "driver: calls shop.run_iterations for the 4th time; approved: at most 3 times"),
    "glasu": (OTHERS["glasu"][1], "server: calls shop.infer_lowest for the 7th time; approved: at most 6 times"),
    "horizontal": (
        OTHERS["horizontal"][1],
        "server: calls shop.train with round 3; approved: at most 2 (num_open_rounds)",
    ),
    "rfl-admm": (OTHERS["rfl-admm"][1], ".solve for the 3rd time; approved: at most 2 times (num_solutions)"),
    "rfl-sgd": (OTHERS["rfl-sgd"][1], ".exchange for the "),
}


@pytest.mark.parametrize("what", ROUNDS)
def test_more_rounds_than_were_approved(world: World, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    words, said = ROUNDS[what]
    protocol = OTHERS[what][0] if what in OTHERS else "pubsub-vfl"
    stretched(monkeypatch, protocol, 38)
    found = refused(world, words, protocol)
    assert len(found) == 1, found
    assert said in found[0], found


def test_epochs_that_are_said_to_be_one_order(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    train = Federation.train

    async def at_once(self: Federation, order: EpochOrder, num_rows: int) -> dict[str, float]:
        return await train(self, EpochOrder(40, 40), num_rows)

    monkeypatch.setattr(Federation, "train", at_once)
    (found,) = refused(world, SMALL)
    assert found == (
        "driver: calls shop/worker-0.run_epoch with 40 that end with epoch 40; approved: at most 2 (most_epochs), "
        "each epoch once"
    )


def test_an_epoch_that_is_done(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    train = Federation.train

    async def twice(self: Federation, order: EpochOrder, num_rows: int) -> dict[str, float]:
        await train(self, order, num_rows)
        return await train(self, order, num_rows)

    monkeypatch.setattr(Federation, "train", twice)
    (found,) = refused(world, SMALL)
    assert "calls shop/worker-0.run_epoch with epoch 1, where 1 is done; approved: at most 2 (most_epochs)" in found


def test_a_second_alignment(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It began the counts of what was released anew, and drew the scale of the columns again."""
    train = Federation.train

    async def aligned_anew(self: Federation, order: EpochOrder, num_rows: int) -> dict[str, float]:
        await self.align()
        return await train(self, order, num_rows)

    monkeypatch.setattr(Federation, "train", aligned_anew)
    (found,) = refused(world, SMALL)
    assert "calls shop/worker-0.answer_alignment for the 2nd time; approved: once" in found or (
        "calls shop/worker-0.take_order for the 2nd time; approved: once" in found
    )


def test_replies_that_order_work(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within one approved epoch the broker's replies had a batch embedded again and again: 504 times of 4 batches."""
    asked = []

    async def report(self: BatchBroker, report: Report) -> Orders:
        if not self.caller.startswith(SHOP) or report.epoch != self._epoch:
            return Orders((), (), (), self.caller.startswith(SHOP))
        asked.append(self.caller)
        return Orders(((0, len(asked)),), (), (), False)

    monkeypatch.setattr(BatchBroker, "report", report)
    (found,) = refused(world, (*SMALL, "max_attempts=3", "prefetch=1"))
    assert "shop/worker-0: is made to release the embeddings of batch 0 for the 4th time; approved: at most 3" in found


def test_a_batch_has_one_number(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """-1 is the last one too: under both numbers it was embedded twice as often as is approved."""

    asked = list[int]()

    async def report(self: BatchBroker, report: Report) -> Orders:
        if not self.caller.startswith(SHOP) or report.epoch != self._epoch:
            return Orders((), (), (), self.caller.startswith(SHOP))
        asked.append((3, -1)[len(asked) % 2])
        return Orders(((asked[-1], len(asked)),), (), (), False)

    monkeypatch.setattr(BatchBroker, "report", report)
    (found,) = refused(world, (*SMALL, "max_attempts=3", "prefetch=1"))
    assert found == f"broker: gives {SHOP}/worker-0 batch -1; approved: 0 to 3"


def test_an_evaluation_too_many(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate = Federation.evaluate

    async def again(self: Federation, part: Any) -> Any:
        for _ in range(5):
            found = await evaluate(self, part)
        return found

    monkeypatch.setattr(Federation, "evaluate", again)
    (found,) = refused(world, SMALL)
    assert "shop/worker-0: is made to release the embeddings for the validation for the 3rd time" in found


@pytest.mark.parametrize("what", ["align", "evaluate"])
def test_what_a_party_answers_once_each_of_its_workers_answers_not(
    world: World, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A second worker followed an order of its own, in rows of which others counted, and embedded all rows again."""
    honest, train = ActiveWorker._first_peers, Federation.train

    async def aligned_anew(self: Federation, order: EpochOrder, num_rows: int) -> dict[str, float]:
        monkeypatch.setattr(
            ActiveWorker, "_first_peers", lambda self: {SHOP: self.peer(f"{SHOP}/worker-1", PassiveWorker)}
        )
        await (self.align() if what == "align" else self.evaluate("validation"))
        monkeypatch.setattr(ActiveWorker, "_first_peers", honest)
        return await train(self, order, num_rows)

    monkeypatch.setattr(Federation, "train", aligned_anew)
    (found,) = refused(world, (*SMALL, "num_passive_workers=2"))
    called = "answer_alignment" if what == "align" else "embed_part"
    assert found == f"bank/worker-0: calls {SHOP}/worker-1.{called}; approved: of {SHOP}/worker-0 alone"


def test_true_labels_of_the_test_are_measured_against_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that embeds test rows as it likes reads of each evaluation what the labels are; here it is the shop."""
    evaluate, (count, release) = Federation.evaluate, COUNTING

    async def again(self: Federation, part: Any) -> Any:
        await evaluate(self, "test")
        return await evaluate(self, "test")

    monkeypatch.setattr(Federation, "evaluate", again)
    monkeypatch.setattr(CallCounts, "admit", lambda self, *a: count(self, *a) if a[3].party == BANK else None)
    monkeypatch.setattr(CallCounts, "release", lambda self, *a: release(self, *a) if a[0].startswith(BANK) else None)
    before = len(world.refusals(BANK))
    assert federated(world, SMALL) in (2, 3)
    found = world.refusals(BANK)[before:]
    assert "bank/worker-0: is made to release the metrics of the test for the 2nd time; approved: once" in found[0]


class Loose(Client):
    @remote
    async def embed(self) -> None: ...


def test_a_protocol_that_does_not_say_how_often_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    rogue, before = Rogue(world), len(world.refusals(SHOP))
    cls = type(find_protocol("pubsub-vfl"))
    monkeypatch.setattr(cls, "actors", property(lambda _: lambda config: {"workers": Loose}))
    with pytest.raises(Refused, match=r"Loose\.embed does not say how often it may be called"):
        rogue.say(("propose", (as_tree(rogue.proposal),)))
    assert "Loose.embed does not say how often it may be called" in world.refusals(SHOP)[before]


def test_bounds_are_said_with_bytes() -> None:
    told = {}
    for name, settings in (("mtcd", {"batch_size": 64}), ("pubsub-vfl", {"num_epochs": 3, "max_attempts": 2})):
        protocol = find_protocol(name)
        config = protocol.Config(**settings)
        told |= {entry["message"]: entry["bounds"] for entry in describe_messages(protocol, config)}
    assert "sync: at most 200 times (num_rounds), 102.4 kB" in told["Representation"]
    assert told["Embedding"] == ["each batch at most 2 times in each of 3 epochs, 131.1 kB each"]
    config = find_protocol("pubsub-vfl").Config(num_epochs=3, max_attempts=2, num_passive_workers=4)
    (said,) = (one for one in describe_messages(find_protocol("pubsub-vfl"), config) if one["message"] == "Embedding")
    assert said["bounds"][0].startswith("each batch at most 2 times in each of 3 epochs, by each of 4 workers, ")
    assert told["RowCount"] == ["count_rows: without a bound (always says the same)"]  # of no known shape
