"""Which protection is on: every protocol says it, of every kind, and it is what the messages show."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fedactors.cli import main as cli
from fedactors.config import build
from fedactors.errors import BadInput
from fedactors.inspection import KINDS, Protection, describe_messages, describe_protections
from fedactors.plugins import find_protocol
from fedactors.secure_sums.messages import Masked

PROTOCOLS = ("glasu", "horizontal", "mtcd", "nebulafl", "pubsub-vfl", "tablepuppet")
SECURE = {
    "glasu": {"secure_aggregation": True},
    "horizontal": {"secure_aggregation": True},
    "mtcd": {"secure_aggregation": True, "learning_rate": 0.1},
    "nebulafl": {"algorithm": "fedhisyn", "secure_aggregation": True, "on_party_loss": "stop"},
    "tablepuppet": {"secure_aggregation": True},
}
SWITCHED = [
    ("glasu", "noise", {"noise_multiplier": 1.0, "clip_norm": 1.0, "max_degree": 5}),
    ("glasu", "standardisation", {"scale_features": False}),
    ("mtcd", "noise", {"noise": "gaussian"}),
    ("pubsub-vfl", "noise", {"embedding_mu": 1.0}),
    ("pubsub-vfl", "labels", {"label_epsilon": 1.0}),
    ("pubsub-vfl", "standardisation", {"standardisation": "private"}),
    ("tablepuppet", "noise", {"algorithm": "rfl-sgd-v", "feature_dp": 1, "prediction_clip": 1, "prediction_noise": 1}),
    ("tablepuppet", "labels", {"label_dp": 1.0}),
    ("tablepuppet", "standardisation", {"declared_facts": ["amount=0:1"]}),
    *((name, "secure sums", words) for name, words in SECURE.items()),
]


def stated(name: str, **words: Any) -> dict[str, dict[str, Any]]:
    protocol = find_protocol(name)
    return {one["kind"]: one for one in describe_protections(protocol, build(protocol.Config, words))}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_says_of_every_kind_whether_it_is_on(name: str) -> None:
    assert tuple(stated(name)) == KINDS


@pytest.mark.parametrize(("name", "kind", "words"), SWITCHED)
def test_a_setting_turns_one_kind_on_and_no_other(name: str, kind: str, words: dict[str, Any]) -> None:
    before, after = stated(name), stated(name, **words)
    assert (before[kind]["on"], after[kind]["on"]) == (False, True)
    assert before[kind]["means"] != after[kind]["means"]
    assert set(words) & set(after[kind]["settings"])
    assert {other: before[other]["on"] for other in KINDS if other != kind} == {
        other: after[other]["on"] for other in KINDS if other != kind
    }


@pytest.mark.parametrize("name", PROTOCOLS)
def test_sums_are_on_where_masked_numbers_are_sent_and_nowhere_else(name: str) -> None:
    protocol = find_protocol(name)
    for words in ({}, SECURE.get(name, {})):
        sent = {entry["message"] for entry in describe_messages(protocol, build(protocol.Config, words))}
        assert stated(name, **words)["secure sums"]["on"] == (Masked.__name__ in sent) == bool(words)


def test_half_of_a_protection_is_none() -> None:
    """Noise in theta alone: predictions read the rows again."""
    found = stated("tablepuppet", algorithm="rfl-sgd-v", feature_dp=1.0)["noise"]
    assert not found["on"]
    assert "predictions are not" in found["means"]


def test_the_command_shows_them_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", "horizontal", "secure_aggregation=true"]) == 0
    text = capsys.readouterr().out
    assert (
        text.index("secure sums: ON  (secure_aggregation=True)")
        < text.index("noise: off")
        < text.index("Between parties")
    )
    assert cli.main(["inspect", "horizontal", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["protections"]
    assert (found[0]["kind"], found[0]["on"]) == ("secure sums", False)
    assert found[0]["settings"] == {"secure_aggregation": False}


@pytest.mark.parametrize(("kind", "settings"), [("magic", ()), ("noise", ("no_such_setting",))])
def test_what_a_plugin_makes_up_is_an_error(monkeypatch: pytest.MonkeyPatch, kind: str, settings: tuple[str]) -> None:
    from fedactors.protocols.horizontal import messages

    made = (Protection(kind=kind, settings=settings, on=True, means="everything"),)
    monkeypatch.setattr(messages, "protections", lambda config: made)
    with pytest.raises(BadInput, match=f"protections of horizontal: {kind}"):
        stated("horizontal")
