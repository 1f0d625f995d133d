"""No message of a type that nobody declared is in the ledger of any run: all methods of all protocols, simulated."""

from __future__ import annotations

import typing
from typing import Any

import pytest

from fedactors.config import build
from fedactors.launch import load_data
from fedactors.plugins import Protocol, resolve_address
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.declared import undeclared

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "pubsub_vfl": [{"embedding_mu": 2.0, "bottom_training": "frozen"}, {"alignment": "psi"}, {"transfer": "push"}],
    "mtcd": [{"mode": "overlapping"}, {"problem": "ridge"}],
    "tablepuppet": [],
    "glasu": [{"mode": "joint"}, {"secure_aggregation": True}, {"average_classifiers": True}],
    "horizontal": [{"secure_aggregation": True}],
    "nebulafl": [{"ablation": "aggregation"}],
}
"""Features beside the methods that bring messages of their own."""


NEEDED: dict[str, dict[str, Any]] = {
    "fedrep": {"local_parameters": "8.*", "validation_fraction": 0.2},
    "ditto": {"validation_fraction": 0.2},
}
"""What a method asks for beside its name."""


def methods(protocol: Protocol) -> list[dict[str, Any]]:
    """All values of the settings that choose a protocol's method."""
    hints = typing.get_type_hints(protocol.Config)
    names = [name for name in ("algorithm", "special_case") if name in hints]
    found: list[dict[str, Any]] = [{name: value} for name in names for value in typing.get_args(hints[name])]
    return [{**words, **NEEDED.get(value, {})} for words in found for value in words.values()]


def check(protocol: Protocol, words: dict[str, Any]) -> None:
    config = build(protocol.Config, {**protocol.smoke, **words})
    runtime = SimulatedRuntime(seed=0, reproducible_noise=True)
    data = load_data(protocol, config, protocol.default_data, 0)
    runtime.execute(lambda: protocol.run(config, data, runtime))
    types = {total.type for total in runtime.ledger.totals()}
    assert types or "centralised" in words.values(), f"{words}: nothing was sent"
    assert undeclared(protocol, config, types) == set(), words


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_what_a_smoke_run_sends_is_declared(name: str) -> None:
    check(resolve_address(f"fedactors.protocols.{name}.plugin:PROTOCOL"), {})


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_what_every_method_sends_is_declared(name: str) -> None:
    protocol = resolve_address(f"fedactors.protocols.{name}.plugin:PROTOCOL")
    tried = [*methods(protocol), *SETTINGS[name]]
    assert len(tried) >= 4
    for words in tried:
        check(protocol, words)


def test_an_undeclared_type_is_seen() -> None:
    protocol = resolve_address("fedactors.protocols.horizontal.plugin:PROTOCOL")
    config = build(protocol.Config, protocol.smoke)
    assert undeclared(protocol, config, {"Smuggled", "steal()", "Introduction", "introduce()"}) == {
        "Smuggled",
        "steal()",
    }
