"""A worker's loop, against a broker that answers as the test says."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import numpy as np
import pytest

from fedactors.actors.context import Ref
from fedactors.errors import PartyLost
from fedactors.protocols.pubsub_vfl.actors import PartyWorker
from fedactors.protocols.pubsub_vfl.broker import Pipeline
from fedactors.protocols.pubsub_vfl.messages import Embedding, EpochOrder, Orders, Report, Stamp
from tests.protocols.pubsub_vfl.runs import config_of


def ref(key: int) -> Ref:
    return Ref("somebody", key, 0, ())


class Rows:
    def batches_until(self, epoch: int, num_epochs: int) -> list[Any]:
        return []


class Replica:
    def mixing(self, server: Any) -> Any:
        return contextlib.nullcontext()


class Worker:
    """What an epoch needs of its worker; it is its own broker, clock and payload store, and notes what it did.

    Args:
        answers: to the first reports.
        until: how much must be reported before the epoch is over.
        passive: which side's worker it is.
        settings: of the run.
    """

    name, waits_for, server = "p/worker-0", "news", None
    rows, replica = Rows(), Replica()
    first: tuple[Stamp, ...] | None = ()
    _pipeline: Pipeline

    def __init__(self, *answers: Orders, until: int = 0, passive: bool, **settings: Any) -> None:
        self.config = config_of(**settings)
        self.embeds = passive
        self.clock = self
        self.reports: list[Report] = []
        self.did: list[Any] = []
        self.time = 0.0
        self._answers = list(answers)
        self._until = until

    def pipeline(self, *first: Stamp) -> Pipeline:
        return Pipeline(self, 0, first)  # type: ignore[arg-type]

    def begin_epoch(self, epoch: int) -> None:
        """No model follows a schedule."""

    def _first_of(self, epoch: int) -> tuple[Stamp, ...] | None:
        return self.first

    def peer(self, name: str, cls: type) -> Any:
        return self

    def now(self) -> float:
        return self.time

    def span(self, kind: str, label: str) -> Any:
        return contextlib.nullcontext()

    async def report(self, report: Report) -> Orders:
        self.reports.append(report)
        if self._answers:
            return self._answers.pop(0)
        reported = sum(len(report.published) + len(report.done) for report in self.reports)
        return Orders((), (), (), reported >= self._until)

    async def opened(self, payload: Ref) -> str:
        if payload.key < 0:
            raise PartyLost(payload.owner, "its process is gone")
        return f"payload {payload.key}"

    def forget(self, stamp: Stamp) -> None:
        self.did.append(("drop", stamp))

    def forget_all(self) -> None:
        self.did.append("end")

    async def _use(self, pipeline, stamp, payloads):
        self.did.append(("use", stamp, payloads))
        if self.embeds:
            pipeline.finish(stamp)
        else:
            pipeline.publish(stamp, (ref(100 + stamp[0]),))

    async def embed(self, stamp):
        self.did.append(("embed", stamp))
        await asyncio.sleep(0)
        return (ref(stamp[0]),)


async def work(worker: Worker) -> None:
    epoch = PartyWorker._work_until_over(worker, EpochOrder(0))  # type: ignore[arg-type]
    await asyncio.wait_for(epoch, 5.0)


def run(worker: Worker) -> None:
    asyncio.run(work(worker))


def test_a_passive_worker_embeds_applies_and_reports_both():
    answers = (Orders(((0, 1), (1, 1)), (), (), False), Orders((), ((0, 1, (ref(7),)),), (), False))
    worker = Worker(*answers, until=3, passive=True, report_interval=0.0)
    run(worker)
    assert ("embed", (0, 1)) in worker.did
    assert ("use", (0, 1), ["payload 7"]) in worker.did
    assert worker.did[-1] == "end"
    published = [batch for report in worker.reports for batch in report.published]
    assert published == [(0, 1, (ref(0),)), (1, 1, (ref(1),))]
    assert [stamp for report in worker.reports for stamp in report.done] == [(0, 1)]


def test_an_active_worker_publishes_one_reference_per_party_and_gives_up_what_is_gone(caplog):
    orders = Orders((), ((4, 1, (ref(1), ref(2))), (5, 1, (ref(3), ref(-1)))), (), False)
    worker = Worker(orders, until=2, passive=False)
    run(worker)
    assert worker.did == [("use", (4, 1), ["payload 1", "payload 2"]), "end"]
    published = {batch for report in worker.reports for batch in report.published}
    assert published == {(4, 1, (ref(104),)), (5, 1, ())}
    assert "p/worker-0: batch 5 is abandoned: somebody: its process is gone" in caplog.text


@pytest.mark.parametrize(("passive", "transfer", "room"), [(True, "push", 6), (False, "pull", 6), (False, "push", 2)])
def test_a_worker_asks_for_as_many_as_it_may_hold(passive, transfer, room):
    """Where a report brings one batch at a time, an active worker leaves to its siblings what it cannot begin with."""
    worker = Worker(passive=passive, transfer=transfer, prefetch=6)
    run(worker)
    assert worker.reports[0].room == room


def test_the_next_batch_is_asked_for_before_the_last_is_used_up():
    asked: list[int] = []

    class Slow(Worker):
        async def _use(self, pipeline, stamp, payloads):
            await asyncio.sleep(0)
            asked.append(sum(report.room for report in self.reports))
            await super()._use(pipeline, stamp, payloads)

    sent = [Embedding(batch, 0, 1, 0.0, np.zeros(1)) for batch in range(3)]
    answers = (Orders((), ((batch, 1, (sent[batch],)),), (), False) for batch in range(3))
    run(Slow(*answers, until=3, passive=False, transfer="push", prefetch=6))
    # two at the beginning; then, with the first of them in hand, one more
    assert asked[0] == 3


def test_a_worker_that_is_told_what_to_begin_with_asks_for_nothing_before():
    """Else it would hold what it asked for beside what it was told, and ask for no more with what it publishes."""
    worker = Worker(until=2, passive=True, transfer="push", report_interval=0.0, prefetch=2)
    worker.first = None

    async def main():
        running = asyncio.ensure_future(work(worker))
        await asyncio.sleep(0.01)
        assert worker.reports == []
        worker._pipeline.begin_with([(0, 1), (1, 1)])
        await running

    asyncio.run(main())
    assert [did for did in worker.did if did[0] == "embed"] == [("embed", (0, 1)), ("embed", (1, 1))]
    assert worker.reports[0].published == ((0, 1, (ref(0),)),)
    assert worker.reports[0].room == 1, "each embedding asks for one more batch"


@pytest.mark.parametrize("stale", ["drop", "apply"])
def test_what_is_abandoned_is_neither_embedded_nor_fetched_unless_stale_gradients_are_applied(stale):
    gradient = (3, 1, (ref(9),))
    orders = Orders(((2, 1), (3, 1)), (gradient,), ((3, 1),), False)
    worker = Worker(orders, until=1 if stale == "drop" else 2, passive=True, stale_gradients=stale)
    run(worker)
    assert ("drop", (3, 1)) in worker.did
    assert ("embed", (2, 1)) in worker.did
    assert ("embed", (3, 1)) not in worker.did
    assert (("use", (3, 1), ["payload 9"]) in worker.did) == (stale == "apply")


@pytest.mark.parametrize(("later", "num_reports"), [(0.003, 0), (0.004, 1)])
def test_reports_are_collected_only_while_there_is_enough_to_do(later, num_reports):
    async def main():
        worker = Worker(passive=True, report_interval=0.004)
        pipeline = worker.pipeline((0, 1), (1, 1))
        pipeline._no_report_before = 1.004
        pipeline.finish((2, 1))
        worker.time = 1.0 + later
        pipeline._report()
        await asyncio.sleep(0)
        assert len(worker.reports) == num_reports
        pipeline.next_assigned()
        pipeline._report()
        await asyncio.sleep(0)
        assert len(worker.reports) == num_reports + 1, "with one batch in hand it reports at once"
        for task in pipeline._under_way:
            task.cancel()

    asyncio.run(main())


def test_a_failed_report_ends_the_epoch():
    class Broken(Worker):
        async def report(self, report):
            raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        run(Broken(passive=True))


def test_one_report_at_most_waits_at_the_broker():
    async def main():
        worker = Worker(passive=True)
        pipeline = worker.pipeline()
        pipeline._report()
        pipeline._report()
        await asyncio.sleep(0)
        assert [report.wait for report in worker.reports] == [True]
        await asyncio.sleep(0)
        for task in pipeline._under_way:
            task.cancel()

    asyncio.run(main())
