import asyncio

import pytest

from protocols.pubsub_vfl.config import PubSubVflConfig
from protocols.pubsub_vfl.messages import PassiveReport
from protocols.pubsub_vfl.reporting import Reports
from protocols.pubsub_vfl.servers import BatchBroker
from tests.protocols.pubsub_vfl.test_dispatch import made


@pytest.mark.parametrize(("held", "now", "waits"), [(2, 1.003, True), (2, 1.004, False), (1, 1.001, False)])
def test_reports_are_collected_only_while_there_is_enough_to_do(held, now, waits):
    reports = Reports(interval=0.004)
    reports.sent(1.0)
    assert reports.may_wait(held, now) is waits


def test_the_first_report_need_not_wait():
    assert not Reports(interval=PubSubVflConfig().report_interval).may_wait(5, 0.0)


class Clock:
    def now(self):
        return 0.0


def broker_of(dispatch):
    class Broker(BatchBroker):
        clock = Clock()  # type: ignore[assignment]

    return Broker(dispatch)


def report(*, room=2, wait=False, published=(), done=()):
    return PassiveReport("p/0", published, done, room, wait)


def test_an_idle_worker_with_little_under_way_is_given_batches_at_once():
    broker = broker_of(made(batches=9))
    orders = asyncio.run(broker.report_passive(report(wait=True)))
    assert orders.assigned == ((0, 1), (1, 1))


def test_an_idle_worker_with_enough_under_way_hears_of_new_batches_with_its_next_gradient():
    async def main():
        dispatch = made(batches=9)
        broker = broker_of(dispatch)
        for _ in range(2):
            await broker.report_passive(report())
        for batch_id in range(4):
            dispatch.publish("p", "p/0", batch_id, 1, f"z{batch_id}", 0.0)
        parked = asyncio.ensure_future(broker.report_passive(report(wait=True)))
        await asyncio.sleep(0)
        assert not parked.done()
        dispatch.claim("a/0", 1, 0.0)
        dispatch.publish_gradients("a/0", 0, 1, ["g0"], 0.0)
        broker._wake()
        return await parked

    orders = asyncio.run(main())
    assert [batch_id for batch_id, _, _ in orders.gradients] == [0]
    assert orders.assigned == ((4, 1), (5, 1))
