import asyncio
import math

import pytest

from fedactors.actors.actor import Client
from fedactors.actors.context import NOWHERE, Ref
from fedactors.actors.remote import DRIVER, remote
from fedactors.protocols.pubsub_vfl.broker import BatchBroker, Dispatch, NeverEnds
from fedactors.protocols.pubsub_vfl.messages import BatchCount, LostWorker, Orders, Report
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.protocols.pubsub_vfl.runs import config_of


def settings(*, in_flight=10, deadline=10.0, attempts=5, stale=False, **more):
    return config_of(
        **more,
        max_in_flight=in_flight,
        deadline=deadline,
        max_attempts=attempts,
        stale_gradients="apply" if stale else "drop",
    )


def make_dispatch(parties=("p",), *, batches=3, **changes) -> Dispatch:
    dispatch = Dispatch(settings(**changes), parties)
    dispatch.begin(batches, 0.0)
    return dispatch


def train(dispatch: Dispatch, worker: str, batch: tuple[int, int], now: float, active: str = "a/0") -> None:
    """Take one batch of one passive party through its whole life."""
    batch_id, sequence = batch
    assert dispatch.publish(worker, batch_id, sequence, f"z{batch_id}", now)
    assert dispatch.claim(active, 1, now) == ((batch_id, sequence, (f"z{batch_id}",)),)
    assert dispatch.publish_gradients(active, batch_id, sequence, [f"g{batch_id}"], now)
    assert dispatch.outbox(worker)[0] == ((batch_id, sequence, (f"g{batch_id}",)),)
    assert dispatch.acknowledge(worker, batch_id, sequence, now)


def test_batches_are_assigned_in_order_up_to_the_window():
    dispatch = make_dispatch(batches=5, in_flight=3)
    assert dispatch.assign("p/0", 2, 0.0) == ((0, 1), (1, 1))
    assert dispatch.assign("p/1", 5, 0.0) == ((2, 1),)
    assert not dispatch.can_assign("p")
    train(dispatch, "p/1", (2, 1), 1.0)
    assert dispatch.assign("p/1", 5, 1.0) == ((3, 1),)


def test_an_epoch_may_bring_its_window():
    dispatch = make_dispatch(batches=5, in_flight=3)
    dispatch.begin(5, 0.0, 2)
    assert len(dispatch.assign("p/0", 5, 0.0)) == 2
    dispatch.begin(5, 0.0)
    assert len(dispatch.assign("p/0", 5, 0.0)) == 3


def test_what_a_worker_has_under_way_is_counted_until_it_is_acknowledged_or_abandoned():
    dispatch = make_dispatch(batches=4)
    held = dispatch.assign("p/0", 3, 0.0)
    assert (dispatch.in_flight_of("p/0"), dispatch.in_flight_of("p/1")) == (3, 0)
    train(dispatch, "p/0", held[0], 1.0)
    assert dispatch.in_flight_of("p/0") == 2
    dispatch.lose("p/0", 2.0)
    assert dispatch.in_flight_of("p/0") == 0


def test_a_batch_that_is_abandoned_after_a_party_acknowledged_it_is_trained_there_again():
    dispatch = make_dispatch(("p", "q"), batches=1)
    for sequence in (1, 2):
        assert dispatch.assign("p/0", 1, 0.0) == dispatch.assign("q/0", 1, 0.0) == ((0, sequence),)
        for worker in ("p/0", "q/0"):
            assert dispatch.publish(worker, 0, sequence, "z", 0.0)
        assert dispatch.claim("a/0", 1, 0.0)
        assert dispatch.publish_gradients("a/0", 0, sequence, ["g", "g"], 0.0)
        assert dispatch.acknowledge("p/0", 0, sequence, 0.0)  # its worker has stepped, each time
        if sequence == 1:
            assert dispatch.expire(10.0) == (0,)
            assert not dispatch.acknowledge("q/0", 0, 1, 10.0)
    assert dispatch.acknowledge("q/0", 0, 2, 0.0)
    assert dispatch.finished
    assert (dispatch.counts().abandoned, dispatch.counts().max_attempts) == (1, 2)


def test_before_the_first_epoch_there_is_nothing_to_do():
    dispatch = Dispatch(settings(), ("p",))
    assert dispatch.finished
    assert dispatch.assign("p/0", 5, 0.0) == ()


def test_what_is_not_graded_or_is_another_workers_cannot_be_acknowledged():
    dispatch = make_dispatch(batches=1)
    dispatch.assign("p/0", 1, 0.0)
    dispatch.publish("p/0", 0, 1, "z", 0.0)
    dispatch.claim("a/0", 1, 0.0)
    assert not dispatch.acknowledge("p/0", 0, 1, 0.0)
    dispatch.publish_gradients("a/0", 0, 1, ["g"], 0.0)
    assert not dispatch.publish_gradients("a/0", 0, 1, ["g"], 0.0)
    assert not dispatch.acknowledge("p/1", 0, 1, 0.0)
    assert dispatch.acknowledge("p/0", 0, 1, 0.0)
    assert not dispatch.acknowledge("p/0", 0, 1, 0.0)
    assert dispatch.counts().abandoned == 0


@pytest.mark.parametrize(("transfer", "each"), [("pull", (2, 0)), ("push", (1, 1))])
def test_where_payloads_are_sent_an_active_worker_gets_one_batch_at_a_time(transfer, each):
    dispatch = make_dispatch(batches=2, transfer=transfer)
    for batch in dispatch.assign("p/0", 2, 0.0):
        dispatch.publish("p/0", *batch, "z", 0.0)
    asking = Report((), (), 2, False)
    found = [dispatch.orders(worker, asking, 0.0) for worker in ("a/0", "a/1")]
    assert tuple(len(orders.payloads) for orders in found) == each
    assert [orders.assigned for orders in found] == [(), ()]


def test_published_batches_are_claimed_first_in_first_out():
    dispatch = make_dispatch()
    dispatch.assign("p/0", 3, 0.0)
    for batch_id in (2, 0, 1):
        dispatch.publish("p/0", batch_id, 1, batch_id, 0.0)
    assert [claim[0] for claim in dispatch.claim("a/0", 2, 0.0)] == [2, 0]
    assert [claim[0] for claim in dispatch.claim("a/1", 2, 0.0)] == [1]
    assert dispatch.claim("a/9", 1, 0.0) == ()


def test_an_epoch_ends_when_every_batch_is_acknowledged_exactly_once():
    dispatch = make_dispatch(batches=2)
    for batch in dispatch.assign("p/0", 2, 0.0):
        assert not dispatch.finished
        train(dispatch, "p/0", batch, 0.0)
    assert dispatch.finished
    assert not dispatch.acknowledge("p/0", 0, 1, 0.0)
    assert dispatch.outbox("a/0")[1] == ((0, 1), (1, 1))
    assert dispatch.counts().abandoned == 0
    assert dispatch.counts().max_attempts == 1


def test_all_parties_must_publish_before_a_claim():
    dispatch = make_dispatch(("p", "q"), batches=1)
    dispatch.assign("p/0", 1, 0.0)
    dispatch.assign("q/0", 1, 0.0)
    dispatch.publish("q/0", 0, 1, "zq", 0.0)
    assert dispatch.claim("a/9", 1, 0.0) == ()
    dispatch.publish("p/0", 0, 1, "zp", 0.0)
    assert dispatch.claim("a/0", 1, 0.0) == ((0, 1, ("zp", "zq")),)
    dispatch.publish_gradients("a/0", 0, 1, ["gp", "gq"], 0.0)
    assert dispatch.outbox("q/0")[0] == ((0, 1, ("gq",)),)
    dispatch.acknowledge("p/0", 0, 1, 0.0)
    assert not dispatch.finished
    dispatch.acknowledge("q/0", 0, 1, 0.0)
    assert dispatch.finished


def test_a_stuck_publisher_loses_no_batch():
    dispatch = make_dispatch(batches=6, in_flight=2, deadline=10.0)
    trained: list[int] = []
    stuck = [i for i, _ in dispatch.assign("p/stuck", 2, 0.0)]
    now = 0.0
    while not dispatch.finished:
        now += 1.0
        for batch in dispatch.assign("p/1", 1, now):
            train(dispatch, "p/1", batch, now)
            trained.append(batch[0])
        dispatch.expire(now)
    assert sorted(trained) == list(range(6))
    assert dispatch.outbox("p/stuck")[1] == tuple((i, 1) for i in stuck)
    assert dispatch.counts().abandoned == 2


def test_a_publisher_that_is_always_stuck_still_loses_none():
    """Every batch goes to the stuck worker first, each is assigned anew to the other one after the deadline."""
    dispatch = make_dispatch(batches=4, in_flight=1, deadline=10.0, exclude_stragglers=False)
    now, trained = 0.0, []
    while not dispatch.finished:
        dispatch.assign("p/stuck", 1, now)
        now += 10.0
        (late,) = dispatch.expire(now)
        ((batch_id, sequence),) = dispatch.assign("p/1", 1, now)
        assert (batch_id, sequence) == (late, 2)
        train(dispatch, "p/1", (batch_id, sequence), now)
        trained.append(batch_id)
    assert sorted(trained) == [0, 1, 2, 3]
    assert dispatch.counts().abandoned == 4


def test_who_lets_a_deadline_pass_gets_nothing_more_of_the_epoch():
    dispatch = make_dispatch(batches=4, in_flight=4, deadline=10.0)
    dispatch.assign("p/stuck", 1, 0.0)
    for batch in dispatch.assign("p/1", 1, 9.0):
        train(dispatch, "p/1", batch, 9.0)
    assert dispatch.expire(10.0) == (0,)
    assert dispatch.assign("p/stuck", 1, 10.0) == ()
    assert dispatch.counts().stragglers_excluded == ("p/stuck",)
    for batch in dispatch.assign("p/1", 4, 11.0):
        train(dispatch, "p/1", batch, 11.0)
    assert dispatch.finished
    dispatch.begin(4, 20.0)
    assert dispatch.assign("p/stuck", 1, 20.0) == ((0, 1),)
    assert dispatch.counts().stragglers_excluded == ()


def test_the_active_worker_that_claims_and_says_nothing_is_excluded_and_its_publisher_is_not():
    dispatch = make_dispatch(batches=2, deadline=10.0)
    for batch_id, sequence in dispatch.assign("p/0", 2, 0.0):
        dispatch.publish("p/0", batch_id, sequence, "z", 0.0)
    dispatch.claim("a/stuck", 1, 1.0)
    dispatch.claim("a/1", 1, 9.0)
    assert dispatch.expire(11.0) == (0,)
    assert dispatch.counts().stragglers_excluded == ("a/stuck",)


def test_what_nobody_has_claimed_excludes_nobody():
    dispatch = make_dispatch(batches=1, deadline=10.0)
    ((batch_id, sequence),) = dispatch.assign("p/0", 1, 0.0)
    dispatch.assign("p/1", 1, 0.0)
    dispatch.publish("p/0", batch_id, sequence, "z", 0.0)
    assert dispatch.expire(10.0) == (0,)
    assert dispatch.counts().stragglers_excluded == ()


def test_where_all_of_a_party_are_late_nobody_is_excluded():
    dispatch = make_dispatch(batches=2, deadline=10.0)
    dispatch.assign("p/0", 1, 0.0)
    dispatch.assign("p/1", 1, 0.0)
    assert dispatch.expire(10.0) == (0, 1)
    assert dispatch.counts().stragglers_excluded == ()
    assert len(dispatch.assign("p/0", 2, 11.0)) == 2


@pytest.mark.parametrize("stage", ["assigned", "published", "claimed", "graded"])
def test_deadline_abandons_at_every_stage_and_late_events_count_for_nothing(stage):
    dispatch = make_dispatch(batches=1)
    dispatch.assign("p/0", 1, 0.0)
    if stage != "assigned":
        dispatch.publish("p/0", 0, 1, "z", 0.0)
    if stage in ("claimed", "graded"):
        dispatch.claim("a/0", 1, 0.0)
    if stage == "graded":
        dispatch.publish_gradients("a/0", 0, 1, ["g"], 0.0)
    assert dispatch.next_look(0.0) == 10.0
    assert dispatch.expire(9.9) == ()
    assert dispatch.expire(10.0) == (0,)
    assert not dispatch.publish("p/0", 0, 1, "z", 11.0)
    assert not dispatch.publish_gradients("a/0", 0, 1, ["g"], 11.0)
    assert not dispatch.acknowledge("p/0", 0, 1, 11.0)
    gradients, dropped = dispatch.outbox("p/0")
    assert dropped == ((0, 1),)
    assert gradients == ()
    assert dispatch.claim("a/9", 1, 0.0) == ()
    ((batch_id, sequence),) = dispatch.assign("p/1", 1, 11.0)
    train(dispatch, "p/1", (batch_id, sequence), 11.0)
    assert dispatch.finished


def test_every_movement_starts_the_deadline_anew():
    dispatch = make_dispatch(batches=1)
    dispatch.assign("p/0", 1, 3.0)
    assert dispatch.next_look(4.0) == 13.0
    dispatch.publish("p/0", 0, 1, "z", 5.0)
    assert dispatch.next_look(5.0) == 15.0
    assert dispatch.expire(14.9) == ()


@pytest.mark.parametrize("since", [0.1, 1 / 3, 7e5 + 0.1])
def test_a_timer_that_fires_a_rounding_error_early_still_abandons(since):
    dispatch = make_dispatch(batches=1, deadline=0.004)
    dispatch.assign("p/0", 1, since)
    look = dispatch.next_look(since)
    assert look is not None
    assert dispatch.expire(math.nextafter(look, 0.0)) == (0,)


def test_without_a_deadline_nothing_is_abandoned():
    dispatch = make_dispatch(deadline=math.inf)
    dispatch.assign("p/0", 3, 0.0)
    assert dispatch.next_look(1e9) is None
    assert dispatch.expire(1e9) == ()


def test_lost_passive_worker_returns_what_it_held():
    dispatch = make_dispatch(batches=4)
    first, second, third = dispatch.assign("p/0", 3, 0.0)
    train(dispatch, "p/0", first, 0.0)
    dispatch.publish("p/0", *second, "z", 0.0)
    assert set(dispatch.lose("p/0", 1.0)) == {second[0], third[0]}
    assert dispatch.claim("a/9", 1, 0.0) == ()
    assert {i for i, _ in dispatch.assign("p/1", 9, 1.0)} == {1, 2, 3}


def test_lost_active_worker_returns_its_claims_but_not_what_was_acknowledged():
    dispatch = make_dispatch(batches=2)
    first, second = dispatch.assign("p/0", 2, 0.0)
    train(dispatch, "p/0", first, 0.0, active="a/1")
    dispatch.publish("p/0", *second, "z", 0.0)
    dispatch.claim("a/1", 1, 0.0)
    assert dispatch.lose("a/1", 1.0) == (second[0],)
    assert dispatch.outbox("p/0")[1] == (second,)
    (again,) = dispatch.assign("p/0", 9, 1.0)
    assert again == (second[0], 2)
    train(dispatch, "p/0", again, 1.0)
    assert dispatch.finished


def test_a_payload_that_is_gone_gives_its_batch_up_once():
    dispatch = make_dispatch(batches=1)
    dispatch.assign("p/0", 1, 0.0)
    assert not dispatch.give_up("p/1", 0, 1, 1.0)
    assert dispatch.give_up("p/0", 0, 1, 1.0)
    assert not dispatch.give_up("p/0", 0, 1, 1.0)
    assert dispatch.assign("p/0", 1, 1.0) == ((0, 2),)


def test_endless_reassignment_is_an_error_that_names_batch_and_deadline():
    dispatch = make_dispatch(batches=1, deadline=0.05, attempts=3)
    for now in (1.0, 2.0):
        dispatch.assign("p/0", 1, now)
        dispatch.expire(now + 0.5)
    dispatch.assign("p/0", 1, 3.0)
    with pytest.raises(NeverEnds, match=r"batch 0 .* 3 times .* 0\.05 s") as caught:
        dispatch.expire(3.5)
    assert caught.value.exit_code == 3


def test_stale_gradients_reach_their_publisher_only_if_they_are_applied():
    for stale in (False, True):
        dispatch = make_dispatch(batches=1, stale=stale)
        dispatch.assign("p/0", 1, 0.0)
        dispatch.publish("p/0", 0, 1, "z", 0.0)
        dispatch.claim("a/0", 1, 0.0)
        dispatch.expire(10.0)
        assert not dispatch.publish_gradients("a/0", 0, 1, ["g"], 11.0)
        assert dispatch.outbox("p/0")[0] == (((0, 1, ("g",)),) if stale else ())


def test_only_the_worker_that_holds_a_batch_may_move_it():
    dispatch = make_dispatch(batches=1)
    dispatch.assign("p/0", 1, 0.0)
    assert not dispatch.publish("p/1", 0, 1, "z", 0.0)
    dispatch.publish("p/0", 0, 1, "z", 0.0)
    dispatch.claim("a/0", 1, 0.0)
    assert not dispatch.publish_gradients("a/1", 0, 1, ["g"], 0.0)
    assert not dispatch.acknowledge("p/0", 0, 1, 0.0)


def test_a_republished_embedding_replaces_the_older_one():
    dispatch = make_dispatch(batches=1)
    dispatch.assign("p/0", 1, 0.0)
    for value in range(7):
        dispatch.publish("p/0", 0, 1, value, 0.0)
    assert dispatch.counts().discarded == 2
    assert dispatch.claim("a/0", 1, 0.0) == ((0, 1, (6,)),)


def test_a_topic_keeps_what_was_published_in_attempts_that_were_abandoned():
    dispatch = make_dispatch(batches=1, attempts=9)
    for now in range(7):
        ((_, sequence),) = dispatch.assign("p/0", 1, now)
        dispatch.publish("p/0", 0, sequence, f"z{sequence}", now)
        if sequence < 7:
            assert dispatch.expire(now + 10.0) == (0,)
    assert dispatch.counts().discarded == 2
    assert dispatch.claim("a/0", 1, 70.0) == ((0, 7, ("z7",)),)


# --- the broker around it ---


class Worker(Client):
    """Reports what it is told to report."""

    @remote(caller=DRIVER)
    async def tell(self, report: Report) -> Orders:
        return await self.peer("broker", BatchBroker).report(report)


def report(*, published=(), done=(), room=2, wait=False, epoch=0):
    return Report(published, done, room, wait, epoch)


def refs(owner: str) -> tuple[Ref, ...]:
    return (Ref(owner, 1, 8, NOWHERE),)


def play(batches: int, drive, gives_broker: bool = False):
    """Run `drive` with an epoch's broker, two passive workers and an active one."""
    runtime = SimulatedRuntime()

    async def main():
        broker = runtime.spawn(BatchBroker, "broker", settings(), "a", ("p",))
        workers = [runtime.spawn(Worker, name) for name in ("p/0", "p/1", "a/0")]
        await runtime.start()
        await broker.begin_epoch(BatchCount(batches))
        return await drive(runtime, *workers, *([broker] if gives_broker else []))

    return runtime.execute(main)


def test_an_idle_worker_with_little_under_way_is_given_batches_at_once():
    async def drive(runtime, passive, other, active):
        return await passive.tell(report(wait=True))

    assert play(9, drive) == Orders(((0, 1), (1, 1)), (), (), False)


def test_an_idle_worker_with_enough_under_way_hears_of_new_batches_with_its_next_gradient():
    async def drive(runtime, passive, other, active):
        await passive.tell(report(room=4))
        published = tuple((batch_id, 1, refs("p/0")) for batch_id in range(4))
        parked = asyncio.ensure_future(passive.tell(report(published=published, wait=True)))
        await runtime.clock.sleep(1.0)
        assert not parked.done()
        claimed = await active.tell(report(room=1))
        assert claimed.payloads == ((0, 1, refs("p/0")),)
        await active.tell(report(published=((0, 1, refs("a/0")),), room=0))
        return await parked

    orders = play(9, drive)
    assert orders.payloads == ((0, 1, refs("a/0")),)
    assert orders.assigned == ((4, 1), (5, 1))


def test_a_worker_cannot_report_for_another():
    """Who reports is known from the call: what p/1 says of a batch of p/0 moves nothing, at any stage of it."""

    async def drive(runtime, passive, other, active):
        assert (await passive.tell(report(room=1))).assigned == ((0, 1),)
        await other.tell(report(published=((0, 1, refs("p/1")),), room=0))
        assert (await active.tell(report())).payloads == ()
        await other.tell(report(published=((0, 1, ()),), room=0))  # nor can it give the batch up
        await passive.tell(report(published=((0, 1, refs("p/0")),), room=0))
        assert (await active.tell(report())).payloads == ((0, 1, refs("p/0")),)
        await active.tell(report(published=((0, 1, refs("a/0")),), room=0))
        assert (await other.tell(report(done=((0, 1),), room=0))) == Orders((), (), (), False)
        assert not (await active.tell(report(room=0))).finished
        found = await passive.tell(report(room=0))
        assert found.payloads == ((0, 1, refs("a/0")),)
        return await passive.tell(report(done=((0, 1),), room=0))

    assert play(1, drive).finished


@pytest.mark.parametrize(("served_after", "abandoned_at"), [(0.0, 110.0), (15.0, 115.0)])
def test_after_the_deadline_a_worker_that_waits_gets_what_another_did_not_do(served_after, abandoned_at):
    async def drive(runtime, passive, other, active, broker):
        await runtime.clock.sleep(100.0)
        assert (await passive.tell(report(room=1))).assigned == ((0, 1),)
        waiting = asyncio.ensure_future(other.tell(report(room=1, wait=True)))
        await runtime.clock.sleep(served_after)
        serving = asyncio.ensure_future(broker.serve_epoch())
        # there is nothing for it until the deadline of ten seconds
        assert (await waiting).assigned == ((0, 2),)
        assert runtime.clock.now() == pytest.approx(abandoned_at, abs=0.1)
        await other.tell(report(published=((0, 2, refs("p/1")),), room=0))
        assert (await active.tell(report(room=1))).payloads == ((0, 2, refs("p/1")),)
        await active.tell(report(published=((0, 2, refs("a/0")),), room=0))
        await other.tell(report(done=((0, 2),), room=0))
        return await serving

    counts = play(1, drive, gives_broker=True)
    assert (counts.abandoned, counts.max_attempts) == (1, 2)


def test_a_report_of_a_worker_that_is_lost_is_answered_and_its_batches_go_to_who_waits():
    async def drive(runtime, passive, other, active, broker):
        assert (await passive.tell(report(room=1))).assigned == ((0, 1),)
        lost = asyncio.ensure_future(passive.tell(report(room=1, wait=True)))
        waiting = asyncio.ensure_future(other.tell(report(room=1, wait=True)))
        idle = asyncio.ensure_future(active.tell(report(room=1, wait=True)))
        await other.tell(report(room=0))  # the three have come by now
        await broker.lose(LostWorker("p/0"))
        assert await lost == Orders((), (), (), False)
        assert (await waiting).assigned == ((0, 2),)
        assert not idle.done()
        await broker.lose(LostWorker("a/0"))
        return await idle

    assert play(1, drive, gives_broker=True) == Orders((), (), (), False)


def test_a_report_that_comes_after_its_epoch_moves_nothing_in_the_next():
    """Who was made to leave an epoch may have had a report under way: batches of both have the same numbers."""

    async def drive(runtime, passive, other, active, broker):
        assert (await passive.tell(report(room=1))).assigned == ((0, 1),)
        await broker.begin_epoch(BatchCount(1, epoch=1))
        assert (await passive.tell(report(room=1, epoch=1))).assigned == ((0, 1),)
        assert (await passive.tell(report(published=((0, 1, refs("p/0")),), room=1))) == Orders((), (), (), True)
        assert (await active.tell(report(epoch=1))).payloads == ()
        late = await other.tell(report(room=1, wait=True))
        await passive.tell(report(published=((0, 1, refs("p/0")),), room=0, epoch=1))
        assert (await active.tell(report(epoch=1))).payloads == ((0, 1, refs("p/0")),)
        return late

    assert play(1, drive, gives_broker=True) == Orders((), (), (), True)


def test_who_asks_without_waiting_gets_empty_orders_and_a_freed_payload_wakes_nobody():
    dispatch = make_dispatch(batches=1)
    idle, active = Report((), (), 0, False), Report((), (), 1, True)
    assert dispatch.orders("p/0", idle, 0.0) == Orders((), (), (), False)
    (batch,) = dispatch.assign("p/0", 1, 0.0)
    dispatch.publish("p/0", *batch, "z", 0.0)
    assert dispatch.orders("a/0", active, 0.0) == Orders((), ((0, 1, ("z",)),), (), False)
    dispatch.expire(10.0)
    assert dispatch.orders("a/0", active, 10.0) is None
    assert dispatch.orders("a/0", Report((), (), 1, False), 10.0) == Orders((), (), ((0, 1),), False)
