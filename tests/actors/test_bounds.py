"""How often an endpoint may be called: what is declared, counted, said, and kept through a snapshot."""

from __future__ import annotations

import importlib
import pkgutil
from types import SimpleNamespace
from typing import Any

import pytest

import fedactors.protocols
from fedactors.actors.actor import Actor, Client
from fedactors.actors.remote import DRIVER, CallCounts, InvalidEndpoint, endpoints, ordinal, remote
from fedactors.errors import Refused
from fedactors.messages.codec import message, wire_type
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.interface import Snapshot
from fedactors.runtime.simulation.runtime import SimulatedRuntime


@message(reveals="nothing")
class Span:
    epoch: int
    num_epochs: int = 1


@wire_type
class Settings:
    num_epochs: int = 3

    @property
    def num_sums(self) -> int:
        return 2 * self.num_epochs


class Worker(Client):
    state = ()

    def __init__(self, config: Any = None) -> None:
        self.num_rows = 2

    @remote(once=True)
    async def align(self) -> None: ...

    @remote(at_most="num_epochs", of="epoch", span="num_epochs")
    async def run(self, order: Span) -> None: ...

    @remote(caller=DRIVER, at_most="num_sums")
    async def add(self) -> None: ...

    @remote(at_most=lambda config: config.num_epochs + 1)
    async def measure(self) -> None: ...

    @remote(at_most="num_rows")
    async def show(self) -> None: ...

    @remote(once=True, each=True)
    async def greet(self) -> None: ...

    @remote(unbounded="says the same")
    async def describe(self) -> None: ...


def call(counts: CallCounts, method: str, value: Any = None, sender: str = "bank") -> None:
    endpoint = endpoints(Worker).table[method]
    assert endpoint.bound is not None
    actor = SimpleNamespace(name="shop", num_rows=2)
    counts.admit(endpoint, endpoint.bound, sender, actor, value)


@pytest.mark.parametrize(
    ("method", "times", "said"),
    [
        ("align", 1, "calls shop.align for the 2nd time; approved: once"),
        ("add", 6, "calls shop.add for the 7th time; approved: at most 6 times (num_sums)"),
        ("measure", 4, "calls shop.measure for the 5th time; approved: at most 4 times"),
        ("show", 2, "calls shop.show for the 3rd time; approved: at most 2 times (num_rows)"),
    ],
)
def test_calls_are_counted(method: str, times: int, said: str) -> None:
    counts = CallCounts(Settings(), 0)
    for _ in range(times):
        call(counts, method)
    with pytest.raises(Refused) as told:
        call(counts, method)
    assert str(told.value) == f"bank: {said}"


def test_numbers_are_asked_for_upwards_and_once() -> None:
    counts = CallCounts(Settings(), 0)
    for wrong in (Span(0), Span(-1), Span(4), Span(3, 4), Span(1, 0), Span(40, 40)):
        with pytest.raises(Refused, match="approved: at most 3"):
            call(counts, "run", wrong)
    call(counts, "run", Span(1))
    with pytest.raises(Refused, match="with epoch 1, where 1 is done"):
        call(counts, "run", Span(1))
    with pytest.raises(Refused, match="with 2 that end with epoch 2, where 1 is done"):
        call(counts, "run", Span(2, 2))
    call(counts, "run", Span(3, 2))
    with pytest.raises(Refused, match="with epoch 4; approved: at most 3"):
        call(counts, "run", Span(4))


def test_each_caller_counts_by_itself_where_it_says_so() -> None:
    counts = CallCounts(Settings(), 0)
    call(counts, "greet", sender="bank")
    call(counts, "greet", sender="clinic")
    with pytest.raises(Refused, match=r"clinic: calls shop\.greet for the 2nd time; approved: once, by each caller"):
        call(counts, "greet", sender="clinic")


def test_who_is_brought_back_may_be_asked_again() -> None:
    counts = CallCounts(Settings(), 1)
    for _ in range(2):
        call(counts, "align")
    with pytest.raises(Refused, match="for the 3rd time"):
        call(counts, "align")
    call(counts, "run", Span(2))
    call(counts, "run", Span(2))
    with pytest.raises(Refused, match="where 2 is done"):
        call(counts, "run", Span(1))


def test_releases_are_counted_by_round_and_forgotten_with_it() -> None:
    counts = CallCounts(Settings(), 0)

    def release(key: str, round: int, at_most: int = 1) -> None:
        counts.release("shop", "batch", key, at_most, round, 3)

    release(" 1", 1)
    release(" 2", 1, 2)
    release(" 2", 1, 2)
    with pytest.raises(Refused, match="shop: is made to release batch 2 for the 3rd time; approved: at most 2 times"):
        release(" 2", 1, 2)
    release(" 1", 2)
    release(" 3", 1)  # the last one of a round may come after the first of the next
    release(" 1", 3)
    with pytest.raises(Refused, match="batch 4 of round 1; approved: 3, 3 is under way"):
        release(" 4", 1)
    with pytest.raises(Refused, match="batch 1 of round 4; approved: 3"):
        release(" 1", 4)
    assert [one[1] for one in counts.state()["released"]] == [2, 3]


def test_counts_return_with_a_snapshot() -> None:
    counts = CallCounts(Settings(), 0)
    call(counts, "align")
    call(counts, "run", Span(2))
    counts.release("shop", "batch", " 1", 1, 2, 3)
    again = CallCounts(Settings(), 0)
    again.restore(counts.state())
    assert again.state() == counts.state()
    with pytest.raises(Refused, match="where 2 is done"):
        call(again, "run", Span(2))
    with pytest.raises(Refused, match="for the 2nd time"):
        again.release("shop", "batch", " 1", 1, 2, 3)


def test_a_runtime_counts_at_the_actor_and_resumes_the_counts() -> None:
    def run(times: int, resume: Any = None) -> Any:
        recorder = MemoryRecorder()
        runtime = SimulatedRuntime(recorder=recorder)

        async def main() -> None:
            worker = runtime.spawn(Worker, "shop", config=Settings())
            await runtime.start()
            for _ in range(times):
                await worker.add()
            await runtime.checkpoint("kept")

        runtime.execute(main, resume)
        return Snapshot(recorder.checkpoints["kept"].actors, recorder.checkpoints["kept"].driver)

    kept = run(20)
    with pytest.raises(Refused, match=r"driver: calls shop\.add for the 27th time; approved: at most 6 times"):
        run(27)
    with pytest.raises(Refused, match="for the 27th time"):
        run(7, kept)


def test_what_a_bound_says() -> None:
    table = endpoints(Worker).table
    words = {name: one.bound.in_words(Settings()) for name, one in table.items() if one.bound is not None}
    assert words == {
        "align": "once",
        "run": "at most 3 (num_epochs), each epoch once",
        "add": "at most 6 times (num_sums)",
        "measure": "at most 4 times",
        "show": "as often as num rows says",
        "greet": "once, by each caller",
    }
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 22, 111, 1003)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "111th", "1,003rd"
    ]  # fmt: skip


def test_an_override_that_loses_its_bound_is_refused() -> None:
    with pytest.raises(InvalidEndpoint, match="align overrides a bounded endpoint"):

        class Loose(Worker):
            @remote
            async def align(self) -> None: ...

    class Stated(Worker):
        @remote(unbounded="aligns nothing")
        async def align(self) -> None: ...

    assert endpoints(Stated).table["align"].bound is None


def test_a_bound_that_counts_no_field_is_refused() -> None:
    with pytest.raises(InvalidEndpoint, match="its bound counts 'round', which is no field it takes"):

        class Wrong(Client):
            @remote(at_most=2, of="round")
            async def run(self, order: Span) -> None: ...

    with pytest.raises(InvalidEndpoint, match="of, span and each need at_most or once"):
        remote(of="epoch")(Worker.run)
    with pytest.raises(InvalidEndpoint, match="has a bound, and says why it has none"):
        remote(once=True, unbounded="why")(Worker.align)


def test_what_no_setting_bounds_is_bounded_otherwise() -> None:
    marked = remote(at_most="num_turns", unbounded="until the time is over")(Worker.align)
    bound = marked.__endpoint_bound__[0]  # type: ignore[attr-defined]
    assert bound.in_words(SimpleNamespace(num_turns=None)) == "until the time is over"
    assert bound.in_words(SimpleNamespace(num_turns=3)) == "at most 3 times (num_turns)"
    assert bound.in_words(SimpleNamespace(num_turns=0)) == "never"


def test_every_endpoint_of_a_protocol_says_how_often_it_may_be_called() -> None:
    for found in pkgutil.walk_packages(fedactors.protocols.__path__, "fedactors.protocols."):
        importlib.import_module(found.name)
    classes, unstated = [Actor], set[str]()
    while classes:
        cls = classes.pop()
        classes += cls.__subclasses__()
        if cls.__module__.startswith("fedactors."):
            table = vars(cls)["__endpoints__"].table.values() if "__endpoints__" in vars(cls) else ()
            unstated |= {f"{cls.__module__}.{cls.__name__}.{one.name}" for one in table if not one.is_stated}
    assert sorted(unstated) == []
