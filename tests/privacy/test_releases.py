"""Releases counted where they happen: composition, snapshots, ledger lines through real actors."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fedactors.actors.actor import Client
from fedactors.actors.remote import DRIVER, PEERS, remote
from fedactors.errors import Stopped
from fedactors.messages.codec import message
from fedactors.privacy.accounting import (
    INTERRUPTED,
    GaussianReleases,
    PrivacyRecord,
    budgets,
    compose_mu,
    epsilon_of_mu,
    gaussian_mu,
    without_guarantee,
)
from fedactors.runtime.interface import Snapshot
from fedactors.runtime.rounds import Rounds, RunState
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.runtime.actors import Memory


def releases(**changes: Any) -> GaussianReleases:
    settings = {"clip_norm": 1.5, "sigma": 3.0, "delta": 1e-5, "note": "one row replaced"} | changes
    return GaussianReleases("Embedding", **settings)


def test_releases_compose_to_the_account_by_hand() -> None:
    found = releases()
    found.add()
    found.add(4, nominal_rows=2)
    found.add(2, nominal_rows=1, times=3)
    one = 2 * 1.5 / 3.0
    assert found.count == 5
    assert found.rigorous_mu == pytest.approx(compose_mu([one] * (1 + 4 + 6)))
    assert found.nominal_mu == pytest.approx(compose_mu([one] * (2 + 3)))
    record = found.record("bank")
    assert record.epsilon == epsilon_of_mu(found.rigorous_mu, 1e-5)
    assert (record.party, record.releases, record.noise_scale, record.covered) == ("bank", 5, 3.0, True)


def test_without_noise_releases_are_counted_and_nothing_is_covered() -> None:
    found = releases(sigma=0.0)
    found.add(times=7)
    record = found.record("bank")
    assert (record.mechanism, record.releases, record.covered) == ("none", 7, False)
    assert record.rigorous_mu == record.epsilon == math.inf


def test_what_was_never_released_costs_nothing() -> None:
    assert releases().record("bank").epsilon == 0.0


def test_a_papers_claim_is_stated_beside_what_holds() -> None:
    found = releases(paper_touched=0.25)
    found.add(times=16)
    record = found.record("bank")
    assert record.nominal_mu == 0.5
    assert record.rigorous_mu == gaussian_mu(clip_norm=1.5, sigma=3.0, releases=16) == 4.0


def test_reproducible_noise_covers_nothing_and_says_so_once() -> None:
    found = releases()
    found.add()
    stamped = without_guarantee(found.record("bank"))
    assert not stamped.covered
    assert stamped.note == "no privacy guarantee: reproducible noise; one row replaced"
    assert without_guarantee(stamped) == stamped
    bare = PrivacyRecord(party="bank", message_type="Labels", mechanism="none")
    assert without_guarantee(bare) == bare


@message(reveals="that a release was made")
class Released:
    """Which release."""

    number: int


class Bank(Client):
    """Releases once a round."""

    state = ("releases",)

    async def load(self) -> None:
        self.releases = releases()

    @remote(caller=(DRIVER, PEERS))
    async def publish(self) -> Released:
        self.releases.add()
        return Released(self.releases.count)

    @remote(caller=(DRIVER, PEERS))
    async def account(self) -> None:
        self.record_privacy(self.releases.record(self.party))


def play(resume: Snapshot | None = None, stop_in: int | None = None) -> tuple[Any, Memory]:
    memory = Memory()
    runtime = SimulatedRuntime(recorder=memory)

    async def main() -> Any:
        bank = runtime.spawn(Bank, "bank/worker-0")
        rounds = Rounds(runtime, RunState(), num_rounds=5)
        await rounds.start()
        async for t in rounds:
            if t == stop_in:
                runtime.request_stop(130)
            rounds.record({"released": (await bank.publish()).number})
        await bank.account()
        await runtime.settle()
        return budgets(runtime.privacy_records)

    try:
        return runtime.execute(main, resume), memory
    except Stopped:
        return None, memory


def test_an_actor_counts_all_its_releases_through_a_stop_and_writes_one_line() -> None:
    whole, memory = play()
    assert whole["bank"]["Embedding"]["releases"] == 5
    assert whole["bank"]["Embedding"]["rigorous_mu"] == pytest.approx(math.sqrt(5))
    assert [record.party for record in memory.records] == ["bank"]
    stopped = play(stop_in=2)[1]
    resumed, after = play(stopped.snapshots[-1][1])
    assert resumed["bank"]["Embedding"] == {**whole["bank"]["Embedding"], "covered": False, "uncovered": [INTERRUPTED]}
    # what a process released between its last checkpoint and its end is not in the count, so nothing is promised
    (line,) = after.records
    assert memory.records[0].covered
    assert (line.covered, line.uncovered) == (False, (INTERRUPTED,))
