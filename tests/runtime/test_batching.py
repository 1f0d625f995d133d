"""Calls of a marked function wait for the first result that is needed, and are then computed in one."""

import asyncio

import pytest

from fedactors.actors.actor import Actor
from fedactors.actors.context import Work
from fedactors.actors.remote import DRIVER, remote
from fedactors.messages.codec import message
from fedactors.runtime.compute import Batch, is_marked, together
from fedactors.runtime.interface import Costs
from fedactors.runtime.simulation.runtime import SimulatedRuntime

CALLS: list[list[int]] = []


def many(calls):
    CALLS.append([number for (number,) in calls])
    if any(number < 0 for (number,) in calls):
        raise ValueError("one of them is negative")
    return [number * number for (number,) in calls]


@together(many)
def square(number):
    CALLS.append([number])
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number * number


@pytest.fixture(autouse=True)
def _none_so_far():
    CALLS.clear()


def taken(batch, number):
    result = batch.add((number,))
    assert result is not None
    return result


def test_a_batch_is_computed_at_its_first_result():
    assert is_marked(square)
    batch = Batch(square)
    results = [taken(batch, number) for number in (2, 3, 4)]
    assert CALLS == []
    assert results[1]() == 9
    assert batch.add((5,)) is None
    assert [result() for result in results] == [4, 9, 16]
    assert CALLS == [[2, 3, 4]]


def test_a_call_that_fails_fails_alone():
    batch = Batch(square)
    results = [taken(batch, number) for number in (2, -3, 4)]
    assert (results[0](), results[2]()) == (4, 16)
    with pytest.raises(ValueError, match="-3 is negative"):
        results[1]()


@message(reveals="nothing")
class Number:
    """A number."""

    value: int


class Worker(Actor):
    """Computes a square that takes as many seconds as its number says."""

    @remote(caller=DRIVER)
    async def work(self, given: Number) -> Number:
        """Return its square."""
        return Number(await self.compute(square, given.value, work=Work("square", float(given.value))))


class Several(Actor):
    """Computes three squares at once, then one; says in how many calls."""

    jobs = (square,)

    @remote(caller=DRIVER)
    async def work(self) -> Number:
        """Return the calls as a number's digits: how many squares each computed."""
        work = Work("square", 0.01)
        CALLS.clear()
        assert await asyncio.gather(*(self.compute(square, n, work=work) for n in (2, 3, 4))) == [4, 9, 16]
        jobs = [self.begin(f"square {n}", square, n, work=work) for n in (5, 6)]
        assert [await job for job in jobs] == [25, 36]
        assert await self.compute(square, 7, work=work) == 49
        with pytest.raises(ValueError, match="-1 is negative"):
            await self.compute(square, -1, work=work)
        return Number(int("".join(str(len(call)) for call in CALLS)))


@pytest.mark.ray
@pytest.mark.parametrize("emulated", [False, True], ids=["as it comes", "emulated"])
def test_computes_that_wait_for_an_actors_processor_on_ray_are_one_call(emulated, ray_cluster):
    """Emulated, computes have a thread of their own."""
    from fedactors.runtime.ray.runtime import RayRuntime

    runtime = RayRuntime(seed=0, emulate=emulated, scale=0.01)

    async def main():
        runtime.use_costs(Costs({"square": (0.0, 1.0)}))
        actor = runtime.spawn(Several, "several")
        await runtime.start()
        return (await actor.work()).value

    assert runtime.execute(main) == 3211


def test_computes_that_overlap_in_virtual_time_are_one_call():
    runtime = SimulatedRuntime(seed=0, costs=Costs({"square": (0.0, 1.0)}))
    ends = []

    async def main():
        workers = [runtime.spawn(Worker, f"worker-{number}") for number in range(3)]
        await runtime.start()
        # begun at 0 s; the first is needed at 3 s, and what begins later is a call of its own
        early = [runtime.loop.create_task(_ask(worker, 3 + n)) for n, worker in enumerate(workers)]
        await runtime.clock.sleep(3.2)
        late = runtime.loop.create_task(_ask(workers[0], 7))
        ends.extend([await task for task in (*early, late)])

    async def _ask(worker, number):
        return (await worker.work(Number(number))).value

    runtime.execute(main)
    assert ends == [9, 16, 25, 49]
    assert CALLS == [[3, 4, 5], [7]]
