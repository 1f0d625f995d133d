"""Calls that nobody awaited one after the other may arrive in any order, as they do between hosts of a cluster.

Every call of a simulated run is held up by a random time before its receiver acts on it. Methods whose rounds wait for
everybody must then report the same figures as without; of the others each run must come to its end.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from fedactors.config import build
from fedactors.launch import load_data
from fedactors.plugins import resolve_address
from fedactors.runtime.simulation.network import Wire
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.test_declared import SETTINGS, methods

IN_ROUNDS = ("mtcd", "tablepuppet", "glasu", "horizontal")


@pytest.fixture
def hold_up(monkeypatch: pytest.MonkeyPatch):
    """Hold up every call from now on by up to so many seconds; none by 0."""
    serve = Wire._serve

    def begin(seed: int, longest: float) -> None:
        generator = random.Random(seed)

        async def late(self: Wire, call: Any) -> None:
            await asyncio.sleep(generator.random() * longest)
            await serve(self, call)

        monkeypatch.setattr(Wire, "_serve", late if longest else serve)

    return begin


def play(name: str, words: dict[str, Any], faults: dict[str, float] | None = None) -> dict[str, Any]:
    protocol = resolve_address(f"fedactors.protocols.{name}.plugin:PROTOCOL")
    config = build(protocol.Config, {**protocol.smoke, **words})
    runtime = SimulatedRuntime(seed=0, reproducible_noise=True, faults=faults)
    data = load_data(protocol, config, protocol.default_data, 0)
    return runtime.execute(lambda: protocol.run(config, data, runtime)).metrics


def check(hold_up: Any, name: str, words: dict[str, Any], seeds: int) -> None:
    hold_up(0, 0.0)
    in_order = repr(play(name, words)) if name in IN_ROUNDS else ""
    for seed in range(seeds):
        for longest in (1e-6, 1.0):
            hold_up(seed, longest)
            found = play(name, words)
            assert repr(found) == in_order or name not in IN_ROUNDS, (words, seed, longest)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_calls_of_a_smoke_run_arrive_in_any_order(hold_up, name: str) -> None:
    check(hold_up, name, {}, 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_calls_of_every_method_arrive_in_any_order(hold_up, name: str) -> None:
    protocol = resolve_address(f"fedactors.protocols.{name}.plugin:PROTOCOL")
    for words in [*methods(protocol), *SETTINGS[name]]:
        check(hold_up, name, words, 1)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["restart", "continue"])
def test_calls_arrive_in_any_order_while_a_center_is_lost(hold_up, policy: str) -> None:
    hold_up(0, 1.0)
    words = {"on_party_loss": policy, "restart_seconds": 100.0}
    assert play("nebulafl", words, {"virginia": 900.0})["trainings"] > 0
