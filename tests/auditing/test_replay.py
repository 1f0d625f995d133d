"""The replay on parties of a few lines: noise that is heard, what leaves beside it, and control flow that tells."""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from fedactors.actors.actor import Client, Server
from fedactors.actors.remote import DRIVER, PEERS, remote
from fedactors.auditing.replay import ReplayAudit, audit_by_replay
from fedactors.config import config
from fedactors.data.layouts.vertical import Neighbour
from fedactors.messages.codec import message, wire_type
from fedactors.plugins import Headline
from fedactors.privacy.accounting import GaussianReleases, dpsgd_epsilon
from fedactors.privacy.mechanisms import add_gaussian
from fedactors.privacy.noise import Gaussian, released
from fedactors.runs.metrics import RunResult
from fedactors.runtime.interface import Runtime
from fedactors.scenario import Scenario

SIGMA, ROUNDS = 2.0, 3


@config
class Settings:
    """What the party does."""

    way: str = "noised"
    """How it answers."""


@wire_type(eq=False)
class Values:
    """A party's values."""

    values: np.ndarray


@message(reveals="a sum with noise", readers="whoever asks")
class Sum:
    """A sum."""

    values: np.ndarray


@message(reveals="which round it is")
class Turn:
    """A round."""

    number: int


@message(reveals="a mean")
class Outcome:
    """What the asker has."""

    value: float


class Holder(Client):
    """Clips its values to 1, and answers with their noised sum."""

    payloads = (Sum,)

    def __init__(self, way: str, data: Values) -> None:
        self.way, self.data = way, data

    async def open(self) -> None:
        self.noise = self.noise_rng("sums")
        self.account = GaussianReleases("Sum", clip_norm=1.0, sigma=SIGMA, delta=1e-5)

    @remote(caller=PEERS)
    async def answer(self, turn: Turn) -> Sum | None:
        values = np.clip(self.data.values, -1, 1)
        self.account.add()
        exact = values.sum(keepdims=True)
        if self.way == "masked":
            mask = np.frombuffer(secrets.token_bytes(8), np.int64) / 2**40
            return Sum(released(exact, Gaussian(SIGMA), lambda: exact + mask, "masked sum"))
        noisy = add_gaussian(exact, SIGMA / (10 if self.way == "weak" else 1), self.noise, "sum")
        if self.way == "bare":
            return Sum(np.append(noisy, self.data.values.max()))
        if self.way == "own noise":
            return Sum(exact + SIGMA * self.noise.standard_normal(1))
        if self.way == "silent" and exact[0] > 3:
            return None
        return Sum(noisy)

    @remote(caller=DRIVER)
    async def settle(self) -> None:
        self.record_privacy(self.account.record(self.party))


class Asker(Server):
    """Asks, and its next question depends on the answers."""

    @remote(caller=DRIVER)
    async def ask(self, turn: Turn) -> Outcome:
        found = await self.peer("holder", Holder).answer(turn)
        return Outcome(0.0 if found is None else float(found.values.sum()))


async def run(settings: Settings, data: Values, runtime: Runtime) -> RunResult:
    """Ask a few times."""
    holder = runtime.spawn(Holder, "holder", settings.way, data)
    asker = runtime.spawn(Asker, "asker")
    await runtime.start()
    total = 0.0
    for number in range(ROUNDS):
        total += (await asker.ask(Turn(number))).value
    await holder.settle()
    return RunResult(rounds=ROUNDS, metrics={"total": total})


PROTOCOL = Scenario(
    name="sums",
    summary="noised sums",
    partition="horizontal",
    default_data="none",
    headline=Headline(name="total"),
    Config=Settings,
    run=run,
)


def neighbours(data: Values) -> Iterable[Neighbour]:
    for value in (0.0, -1.0, 100.0):
        values = data.values.copy()
        values[0] = value
        yield Neighbour(label=f"{value}", kind="row", data=dataclasses.replace(data, values=values))


def audit(way: str, values: Any = (1.0, 0.5, 0.25)) -> ReplayAudit:
    data = Values(values=np.asarray(values))
    return audit_by_replay(PROTOCOL, Settings(way=way), data, "holder", neighbours(data))


def test_distances_compose_and_stay_below_the_claim() -> None:
    found = audit("noised")
    claim = found.claims["row"]
    assert claim.mu == pytest.approx(2 / SIGMA * math.sqrt(ROUNDS))
    assert [round(one.mu, 6) for one in found.replays] == [
        pytest.approx(shift / SIGMA * math.sqrt(ROUNDS), abs=1e-5) for shift in (1, 2, 0)
    ]
    assert found.worst["row"].neighbour == "-1.0"
    assert found.refuted == []


@pytest.mark.parametrize(
    ("way", "what"),
    [("weak", "mu"), ("bare", "Sum.values"), ("own noise", "Sum.values")],
)
def test_less_noise_or_more_than_the_noised_is_refuted(way: str, what: str) -> None:
    found = audit(way)
    assert len(found.refuted) == 1
    assert what in found.refuted[0]


def test_an_answer_that_is_left_out_tells() -> None:
    found = audit("silent", (1.0, 1.0, 1.0, 1.0))
    assert found.refuted
    assert any("one more reply" in transfer for transfer in found.worst["row"].bare)


def test_masks_are_drawn_alike_and_hide_but_the_sum() -> None:
    found = audit("masked")
    assert found.refuted == []
    assert found.worst["row"].mu == pytest.approx(2 / SIGMA * math.sqrt(ROUNDS))
    again = secrets.token_bytes(8)
    assert again != secrets.token_bytes(8)  # the operating system's again, once the audit is over


def test_secret_samples_are_accounted_at_the_largest_shift() -> None:
    from fedactors.auditing.replay import Replayed, Shift

    shift = Shift(release_name="a", law=Gaussian(2.0, sample_rate=0.1), count=50, mus=(0.5, 0.25), epsilon=math.inf)
    found = Replayed(party="a", neighbour="", kind="row", shifts=(shift,), bare=(), to_driver=())
    expected = dpsgd_epsilon(noise_multiplier=2.0, steps=50, delta=1e-5, sampling="poisson", sample_rate=0.1)
    assert found.epsilon(1e-5) == pytest.approx(expected)
