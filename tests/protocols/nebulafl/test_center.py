"""The rules of one center together, played over a heap of events instead of actors."""

import heapq
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.nebulafl import resources
from protocols.nebulafl.inputs import read_catalogue
from protocols.nebulafl.money import Bill, Rental
from protocols.nebulafl.resources import ResourcePool
from protocols.nebulafl.selection import ContainerTable
from protocols.nebulafl.versioning import CenterModels


class Center:
    """Four planets, eight containers, three units: planets wait for hardware; some containers are lost."""

    def __init__(self, seed: int, policy: str, lost_every: int, paper_literal: bool) -> None:
        self.generator = np.random.default_rng(seed)
        self.policy, self.lost_every, self.paper_literal = policy, lost_every, paper_literal
        catalogue = read_catalogue("scarce")
        self.types = list(catalogue.types_of("singapore"))
        self.spread = catalogue.spread
        self.pool = ResourcePool(catalogue.centers["singapore"])
        sizes = self.generator.integers(5, 200, 8).tolist()
        self.containers = ContainerTable(resources.predicted_times(sizes, 5, self.types, "cnn8"))
        self.models = CenterModels([np.zeros(2, np.float32)] * 4, np.zeros(2, np.float32), 1000.0, paper_literal)
        self.bill = Bill()
        self.events: list[tuple[float, int, int, str, bool]] = []
        self.num_done = self.num_lost = 0

    def dispatch(self, planet: int, now: float) -> None:
        free = self.pool.available()
        if not free:
            self.pool.wait(str(planet))
            return
        gap = self.models.gap(planet)
        container = self.containers.choose(gap, self.generator.random(), paper_literal=self.paper_literal)
        assert container is not None
        names = [hardware.name for hardware in self.types]
        places = [names.index(name) for name in free]
        prices = np.array([self.types[place].price for place in places])
        times = self.containers.times(container)[places]
        chosen = resources.choose_type(
            self.policy, prices, times, gap, self.generator.random(), paper_literal=self.paper_literal
        )
        lease = self.pool.acquire(free[chosen], f"container-{container}", now)
        seconds = resources.run_time(times[chosen], self.spread, self.generator)
        fails = self.lost_every > 0 and (self.num_done + self.num_lost) % self.lost_every == self.lost_every - 1
        end = now + (seconds / 2 if fails else seconds)
        heapq.heappush(self.events, (end, planet, container, lease.unit, fails))

    def play(self, num_events: int) -> float:
        now = 0.0
        for planet in range(4):
            self.dispatch(planet, now)
        for _ in range(num_events):
            now, planet, container, unit, fails = heapq.heappop(self.events)
            lease = self.pool.release(unit)
            price = next(t.price for t in self.types if t.name == lease.type_name)
            self.bill.add(
                Rental(
                    center="x", unit=unit, container=lease.holder, start=lease.start, end=now, price=price,
                    useful=not fails,
                )
            )  # fmt: skip
            if fails:
                self.num_lost += 1
                self.containers.lose(container)
                self.containers.regain(container)
            else:
                self.num_done += 1
                kind = [t.name for t in self.types].index(lease.type_name)
                self.containers.finished(container, kind, now - lease.start)
                self.models.trained(planet, self.models.planets[planet] + np.float32(1), now)
            self.pool.wait(str(planet))
            while (waiting := self.pool.next_waiting()) is not None:
                self.dispatch(int(waiting), now)
        return now


def overlaps(rentals: list[Rental], key: str) -> bool:
    ordered: dict[str, list[Rental]] = {}
    for rental in sorted(rentals, key=lambda r: (r.start, r.end)):
        ordered.setdefault(getattr(rental, key), []).append(rental)
    return any(before.end > after.start for group in ordered.values() for before, after in pairwise(group))


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
    assert not overlaps(center.bill.rentals, "unit")
    assert not overlaps(center.bill.rentals, "container")
    assert sum(center.models.versions) == center.num_done == center.containers.runs.sum()
    assert center.num_done + center.num_lost == len(center.bill.rentals) == 60
    assert sum(not rental.useful for rental in center.bill.rentals) == center.num_lost
    by_hand = sum(rental.price * (rental.end - rental.start) / 3600 for rental in center.bill.rentals)
    assert center.bill.dollars() == pytest.approx(by_hand)
    assert center.bill.centers({"x": 3}, end)["x"].utilisation <= 1
    assert len(center.pool.leases) == len(center.events) == 3
    assert center.containers.counts.sum() == 63


def test_the_same_seed_gives_the_same_center():
    first, second = Center(4, "nebulafl", 5, False), Center(4, "nebulafl", 5, False)
    assert first.play(80) == second.play(80)
    assert first.bill.rentals == second.bill.rentals
    np.testing.assert_array_equal(first.models.master(), second.models.master())


def test_versions_stay_closer_than_by_chance():
    spreads = {}
    for literal in (False, True):
        spreads[literal] = []
        for seed in range(10):
            center = Center(seed, "nebulafl", 0, literal)
            center.play(160)
            spreads[literal].append(np.std(center.models.versions))
    assert np.mean(spreads[False]) < np.mean(spreads[True])
