"""What a site's own actors try to send: a party's code that is wrong, or not the party's own, is refused at home."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedactors.actors.context import Ref
from fedactors.federation.hosting import LocalActorHost, SiteContext
from fedactors.federation.site_run import SiteRun
from fedactors.protocols.pubsub_vfl.actors import PassiveWorker
from fedactors.protocols.pubsub_vfl.messages import EpochOrder, Report
from tests.federation.hostile_sites import BROKER, LONG, WORKER, in_mid_run
from tests.federation.test_runs import SMALL, federated
from tests.federation.world import BANK, SHOP, World

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("at-home"))
    made.start(BANK)
    made.start(SHOP)
    yield made
    made.stop()


def calls(receiver: str, method: str, value: Any) -> Callable[[SiteContext], None]:
    return lambda context: _ignored(context.call(receiver, method, value))


def _ignored(reply: Any) -> None:
    reply.add_done_callback(lambda done: done.exception())


def fetches(ref: Ref) -> Callable[[SiteContext], None]:
    return lambda context: _ignored(asyncio.ensure_future(context.get(ref)))


GOOD = Report((), (), 1, False)
DEEDS: dict[str, tuple[Callable[[SiteContext], Any], str]] = {
    "undeclared": (calls(BROKER, "report", EpochOrder(1)), "calls broker.report with a EpochOrder; it takes a Report"),
    "a raw array": (calls(BROKER, "report", np.ones(9)), "calls broker.report with a ndarray; it takes a Report"),
    "rows in a list": (calls(BROKER, "report", [np.ones(9)]), "calls broker.report with a list; it takes a Report"),
    "a wrong field": (
        calls(BROKER, "report", replace(GOOD, room=np.ones(9))),  # type: ignore[arg-type]
        "sends Report.room as an array of float64 with 1 dimension; it is declared as int",
    ),
    "no endpoint": (calls(BROKER, "load", None), "calls broker.load, which is no endpoint of BatchBroker"),
    "another's endpoint": (calls(BROKER, "serve_epoch", None), "which is open to: driver; not to shop/worker-0"),
    "nobody of the run": (calls("thief", "report", GOOD), "calls 'thief', which does not exist"),
    "a raw payload": (
        lambda context: context.put(np.ones(9), frozenset({f"{BANK}/worker-0"})),
        "a ndarray is no payload of PassiveWorker",
    ),
    "a payload of nobody's": (fetches(Ref("thief", 1, 1, "")), "calls 'thief', which does not exist"),
}


@pytest.mark.parametrize("what", DEEDS)
def test_what_may_not_leave_is_refused_at_home(lasting: World, capsys: pytest.CaptureFixture[str], what: str) -> None:
    act, said = DEEDS[what]
    before = len(lasting.refusals(SHOP))
    crossed: list[Any] = []

    def deed(run: SiteRun) -> None:
        send = run.send
        run.send = lambda *sent: crossed.append(sent) or send(*sent)  # type: ignore[method-assign,func-returns-value]
        num_sent = len(crossed)
        with contextlib.suppress(Exception):  # the code that does this swallows what it is told
            assert isinstance(run.actors, LocalActorHost)
            act(run.actors.actors[WORKER])
        assert len(crossed) == num_sent, "it left"

    thread = in_mid_run(lasting, SHOP, deed)
    assert federated(lasting, LONG) in (2, 3)
    thread.join(60)
    line = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fedactors: ")]
    assert len(line) == 1
    assert line[0].endswith(f"{WORKER}: Refused; the log of the site shop says more"), line
    assert any(said in text for text in lasting.refusals(SHOP)[before:])


def test_a_reply_that_was_not_declared_does_not_leave(
    lasting: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def give_away(self: Any, order: Any) -> Any:
        return np.ones(9)

    monkeypatch.setattr(PassiveWorker, "take_order", give_away)
    before = len(lasting.refusals(SHOP))
    assert federated(lasting, LONG) in (2, 3)
    said = "shop/worker-0: take_order returned a ndarray; it is declared to give nothing"
    assert f"{WORKER}: Refused; the log of the site shop says more" in capsys.readouterr().err
    assert any(said in text for text in lasting.refusals(SHOP)[before:])


def test_honest_code_runs_after_all_that(lasting: World) -> None:
    assert federated(lasting, (*SMALL, "algorithm=vfl")) == 0, lasting.output
