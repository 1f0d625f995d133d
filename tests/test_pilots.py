"""Successive halving and finalists of a planner, with pilots that are arithmetic."""

from __future__ import annotations

import math

import pytest

from fedactors.plugins import Planning
from fedactors.sweeps import FINALISTS, Outcome, Pilot, Pilots, halve, settle

TARGET = 10.0


def climb(pilot: Pilot[int]) -> Outcome:
    """A candidate n climbs by n a second up to 3 n, a little less with odd seeds."""
    speed = pilot.candidate * (0.9 if pilot.seed % 2 else 1.0)
    needed = TARGET / speed if 3 * pilot.candidate >= TARGET else math.inf
    if math.isfinite(needed) and needed <= pilot.limit:
        return Outcome(cost=needed, score=TARGET, figures={"seconds": needed})
    return Outcome(score=min(speed * pilot.limit, 3.0 * pilot.candidate), has_ended=pilot.limit >= 3)


def beside(candidate: int) -> list[int]:
    return [candidate - 1, candidate + 1]


def test_halving_keeps_the_better_half_and_ends_where_some_have_reached_the_target() -> None:
    said: list[str] = []
    pilots = Pilots(climb, Planning(tell=said.append))
    left = halve(pilots, range(1, 33), [0.1, 0.3, 0.9, 2.7, math.inf], 0)
    assert left[0] == 32
    assert left == sorted(left, reverse=True)
    assert len(left) == FINALISTS
    # 32 to .1 s, 16 to .3 s; one is there by .3125 s, so 8 to .9 s, and after them the last rung
    assert [line.split(",")[0] for line in said][:3] == [
        "rung 1: 32 candidates to 0.1",
        "rung 2: 16 candidates to 0.3",
        "rung 3: 8 candidates to 0.9",
    ]


def test_the_same_seed_gives_the_same_plan_and_no_pilot_runs_twice() -> None:
    seen: list[tuple[int, int, float]] = []

    def counted(pilot: Pilot[int]) -> Outcome:
        seen.append((pilot.candidate, pilot.seed, pilot.limit))
        return climb(pilot)

    def planned() -> list[int]:
        pilots = Pilots(counted, Planning(seed=4))
        left = halve(pilots, range(1, 20), [0.1, 0.3, 0.9, 2.7], 4)
        return settle(pilots, left, 4, beside)

    first, once = planned(), list(seen)
    assert len(set(once)) == len(once)
    assert planned() == first
    assert seen == once * 2


def test_neighbours_are_tried_as_long_as_one_of_them_is_better() -> None:
    pilots = Pilots(climb, Planning())
    found = settle(pilots, [20, 5], 0, beside)
    assert found[0] == 22  # two steps up from the best candidate
    assert 21 in found


def test_who_has_reached_the_target_ranks_before_who_has_not() -> None:
    pilots = Pilots(climb, Planning())
    reached, missed = pilots([4, 3], [0], math.inf)
    assert reached[0].cost == pytest.approx(2.5)
    assert missed[0].cost is None
    assert pilots.one(4, 0, 1.0).cost is None, "what is known costs more than the limit"
    assert pilots.best(0) == reached[0]


def test_no_pilot_begins_when_the_time_is_over() -> None:
    pilots = Pilots(climb, Planning(time_limit=1e-9))
    assert pilots.is_late
    assert pilots.one(32, 0, math.inf) == Outcome()
