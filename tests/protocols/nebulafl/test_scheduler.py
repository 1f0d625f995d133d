"""The scheduler of one center: its table of containers, and whole centers played over a heap of events."""

import heapq
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedactors.protocols.nebulafl.config import NebulaFLConfig
from fedactors.protocols.nebulafl.data import read_catalogue
from fedactors.protocols.nebulafl.hardware import Bill, Rental
from fedactors.protocols.nebulafl.scheduler import ContainerTable, Request, Scheduler
from fedactors.protocols.nebulafl.staleness import CenterModels
from fedactors.runtime import snapshots


def table() -> ContainerTable:
    return ContainerTable(np.array([[300.0, 30.0], [100.0, 10.0]]))


def test_scores_are_predictions_until_measured():
    containers = table()
    np.testing.assert_array_equal(containers.scores, [200, 20])
    containers.occupy(0)
    containers.finished(0, hardware=0, seconds=500.0)
    np.testing.assert_array_equal(containers.times(0), [500, 100])
    np.testing.assert_array_equal(containers.scores, [300, 20])
    containers.occupy(0)
    containers.finished(0, hardware=0, seconds=300.0)
    np.testing.assert_array_equal(containers.times(0), [400, 100])


def test_busy_and_lost_containers_are_not_chosen():
    containers = table()
    assert containers.choose(0.0, 0.0) == 0
    assert containers.choose(0.0, 0.0) == 1
    assert containers.choose(0.0, 0.0) is None
    containers.lose(0)
    assert containers.choose(0.0, 0.0) is None
    with pytest.raises(ValueError, match="not idle"):
        containers.occupy(0)
    containers.regain(0)
    assert containers.choose(0.0, 0.99, random=True) == 0
    np.testing.assert_array_equal(containers.counts, [2, 1])
    assert containers.runs.sum() == 0


@given(st.lists(st.tuples(st.sampled_from("cfl"), st.floats(0, 0.999)), max_size=60))
def test_no_container_is_ever_given_twice(events):
    containers = ContainerTable(np.arange(1.0, 11.0).reshape(2, 5))
    training: set[int] = set()
    for kind, number in events:
        if kind == "c":
            chosen = containers.choose(number * 4 - 2, number)
            assert (chosen is None) == (len(training | set(np.flatnonzero(containers.lost))) == 5)
            if chosen is not None:
                assert chosen not in training
                training.add(chosen)
        elif training:
            one = sorted(training)[int(number * len(training))]
            training.remove(one)
            if kind == "f":
                containers.finished(one, 0, 5.0)
            else:
                containers.lose(one)
                containers.regain(one)
        assert set(np.flatnonzero(containers.busy)) == training


def test_a_snapshot_gives_the_same_future():
    first, second = table(), table()
    first.choose(1.0, 0.4)
    second.load_state_dict(first.state_dict())
    first.finished(0, 1, 50.0) if first.busy[0] else first.finished(1, 1, 50.0)
    assert second.busy.sum() == 1
    assert second.runs.sum() == 0


# --- whole centers ---


def scheduler(generator: np.random.Generator, policy: str = "nebulafl", paper_literal: bool = False) -> Scheduler:
    catalogue = read_catalogue("scarce")
    return Scheduler(
        catalogue.types_of("singapore"),
        catalogue.centers["singapore"],
        generator.integers(5, 200, 8).tolist(),
        model="cnn8",
        local_epochs=5,
        spread=catalogue.spread,
        rules=NebulaFLConfig(resource_policy=policy).rules,
        paper_literal=paper_literal,
        generator=generator,
    )


class Center:
    """Four planets, eight containers, three units: planets wait for hardware; some containers are lost."""

    def __init__(self, seed: int, policy: str, lost_every: int, paper_literal: bool) -> None:
        self.scheduler = scheduler(np.random.default_rng(seed), policy, paper_literal)
        self.lost_every = lost_every
        self.models = CenterModels([np.zeros(2, np.float32)] * 4, np.zeros(2, np.float32), 1000.0, paper_literal)
        self.bill = Bill()
        self.events: list[tuple[float, int, bool]] = []
        self.num_done = self.num_lost = 0

    def ask(self, planet: int, now: float) -> None:
        self.scheduler.request(Request(planet, self.models.planets[planet]))
        self.assign(now)

    def assign(self, now: float) -> None:
        for made in self.scheduler.assign(now, self.models.gap):
            fails = self.lost_every > 0 and (self.num_done + self.num_lost) % self.lost_every == self.lost_every - 1
            heapq.heappush(self.events, (now + (made.seconds / 2 if fails else made.seconds), made.slot, fails))

    def play(self, num_events: int) -> float:
        now = 0.0
        for planet in range(4):
            self.ask(planet, now)
        for _ in range(num_events):
            now, planet, fails = heapq.heappop(self.events)
            if fails:
                container = self.scheduler.running[planet].container
                broken = self.scheduler.lose(container)
                assert broken is not None
                ended = broken[0]
                self.scheduler.table.regain(container)
                self.num_lost += 1
            else:
                ended, _ = self.scheduler.finish(planet, now)
                self.models.trained(planet, self.models.planets[planet] + np.float32(1), now)
                self.num_done += 1
            self.bill.add(
                Rental(
                    center="x", unit=ended.unit, container=str(ended.container), start=ended.start, end=now,
                    price=ended.price, useful=not fails,
                )
            )  # fmt: skip
            self.ask(planet, now)
        return now


def overlaps(rentals: list[Rental], key: str) -> bool:
    ordered: dict[str, list[Rental]] = {}
    for rental in sorted(rentals, key=lambda r: (r.start, r.end)):
        ordered.setdefault(getattr(rental, key), []).append(rental)
    return any(before.end > after.start for group in ordered.values() for before, after in pairwise(group))


@pytest.mark.slow
@given(
    st.integers(0, 1000),
    st.sampled_from(["nebulafl", "random", "cheapest", "fastest"]),
    st.sampled_from([0, 2, 5]),
    st.booleans(),
)
@settings(max_examples=40)
def test_nothing_is_double_booked_or_double_counted(seed, policy, lost_every, paper_literal):
    center = Center(seed, policy, lost_every, paper_literal)
    end = center.play(60)
    table = center.scheduler.table
    assert not overlaps(center.bill.rentals, "unit")
    assert not overlaps(center.bill.rentals, "container")
    assert sum(center.models.versions) == center.num_done == table.runs.sum()
    assert center.num_done + center.num_lost == len(center.bill.rentals) == 60
    assert sum(not rental.useful for rental in center.bill.rentals) == center.num_lost
    by_hand = sum(rental.price * (rental.end - rental.start) / 3600 for rental in center.bill.rentals)
    assert center.bill.dollars() == pytest.approx(by_hand)
    assert center.bill.center("x", 3, end).utilisation <= 1
    assert len(center.scheduler.running) == len(center.events) == 3
    assert len(center.scheduler.requests) == 4
    assert table.counts.sum() == 63


def test_the_same_seed_gives_the_same_center():
    first, second = Center(4, "nebulafl", 5, False), Center(4, "nebulafl", 5, False)
    assert first.play(80) == second.play(80)
    assert first.bill.rentals == second.bill.rentals
    np.testing.assert_array_equal(first.models.master(), second.models.master())


@pytest.mark.slow
def test_versions_stay_closer_than_by_chance():
    spreads = {}
    for literal in (False, True):
        spreads[literal] = []
        for seed in range(10):
            center = Center(seed, "nebulafl", 0, literal)
            center.play(160)
            spreads[literal].append(np.std(center.models.versions))
    assert np.mean(spreads[False]) < np.mean(spreads[True])


def test_waiting_is_first_come_first_served():
    made = scheduler(np.random.default_rng(0))
    for slot in (7, 3, 5, 1, 9):
        made.request(Request(slot, np.zeros(2, np.float32)))
    with pytest.raises(ValueError, match="slot 7"):
        made.request(Request(7, np.zeros(2, np.float32)))
    assert [a.slot for a in made.assign(0.0, lambda slot: 0.0)] == [7, 3, 5]
    assert made.assign(0.0, lambda slot: 0.0) == []
    made.withdraw(1)
    made.request(Request(1, np.zeros(2, np.float32)))
    made.finish(3, 5.0)
    assert [a.slot for a in made.assign(5.0, lambda slot: 0.0)] == [9]


def test_who_finds_its_container_busy_lets_others_go_first_and_keeps_its_turn():
    made = scheduler(np.random.default_rng(0))
    for slot, container in ((0, 4), (1, 4), (2, 6)):
        made.request(Request(slot, np.zeros(2, np.float32), container=container, gap=0.0))
    assert [a.slot for a in made.assign(0.0, lambda slot: 0.0)] == [0, 2]
    made.finish(0, 5.0)
    assert [(a.slot, a.container) for a in made.assign(5.0, lambda slot: 0.0)] == [(1, 4)]


def test_a_snapshot_in_the_middle_gives_the_same_future():
    first = Center(1, "nebulafl", 3, False)
    first.play(20)
    state = snapshots.unpack(snapshots.pack(first.scheduler.state_dict(), "scheduler"))
    second = scheduler(np.random.default_rng(5))
    second.load_state_dict(state)
    for made in (first.scheduler, second):
        slot = min(made.running)
        made.finish(slot, 1e5)
        made.request(Request(slot, np.zeros(2, np.float32)))
    gaps = first.models.gap
    assert first.scheduler.assign(1e5, gaps) == second.assign(1e5, gaps) != []
