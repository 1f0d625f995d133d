"""A quorum per round: who is lost or late has no part in a round, and takes part again once it is back."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fedactors.config import build
from fedactors.errors import BadInput, PartyLost
from fedactors.protocols.horizontal.config import HorizontalConfig
from fedactors.protocols.horizontal.run import default_costs
from fedactors.runtime.interface import Costs
from tests.protocols.horizontal.federation import changed, play, state_of, vector_of

QUORUM = {"min_sites": 3, "client_timeout": 5.0, "quorum_timeout": 20.0, "num_clients": 4, "num_rounds": 8}


def away(recorder) -> list[list[str]]:
    """Who was away, round by round."""
    return [sorted(name.removesuffix("/away") for name in one if name.endswith("/away")) for one in recorder.rounds]


def test_with_everybody_there_the_model_is_that_of_a_run_without_a_quorum():
    plain, without, _ = play(changed(num_clients=4, num_rounds=3))
    _, found, _ = play(changed(**{**QUORUM, "num_rounds": 3}))
    assert np.array_equal(vector_of(found), vector_of(without))
    assert [one["sites"] for one in found.rounds] == [4, 4, 4]
    assert "notes" not in plain.extra


def test_a_lost_site_is_away_for_some_rounds_and_returns_with_its_own_state():
    config = changed(**QUORUM, algorithm="scaffold")
    _, whole, runtime = play(config)
    seconds = runtime.usage().seconds
    result, recorder, _ = play(config, faults={"client-2": seconds * 0.4}, restart_seconds=seconds * 0.3)
    missed = [number for number, names in enumerate(away(recorder), 1) if names == ["client-2"]]
    assert missed
    assert away(recorder)[0] == away(recorder)[-1] == []
    assert [one["clients"] for one in recorder.rounds] == [3 if n in missed else 4 for n in range(1, 9)]
    assert result.extra["notes"] == [
        f"client-2 had no part in {len(missed)} of 8 rounds; their models follow from the other sites"
    ]
    assert state_of(recorder, "client-2")["controls"].keys() == {0}
    assert not np.array_equal(vector_of(recorder), vector_of(whole))


def slow(name: str) -> Costs:
    """Costs by which a round takes one client longer than its deadline, and the others no time to speak of."""
    config = changed(**QUORUM)
    _, _, runtime = play(dataclasses.replace(config, num_rounds=1))
    costs = default_costs()
    assert isinstance(costs, Costs)
    busy = 100.0 / runtime.usage().seconds
    return dataclasses.replace(costs, speed={name: 1 / busy})


def test_a_late_site_has_no_part_and_takes_part_again_after_its_answer():
    _, recorder, _ = play(changed(**{**QUORUM, "num_rounds": 6, "min_sites": 2}), costs=slow("client-1"))
    # a simulated checkpoint waits until all calls are answered, so that it is asked, and late, in each round
    assert away(recorder) == [["client-1"]] * 6
    assert [one["clients"] for one in recorder.rounds] == [3] * 6
    assert len(state_of(recorder, "client-1")["num_trained"]) == 0


def test_below_the_quorum_a_round_waits_and_the_run_ends_with_what_to_do():
    config = changed(**QUORUM)
    _, _, runtime = play(config)
    seconds = runtime.usage().seconds
    lost = {"client-1": seconds * 0.5, "client-2": seconds * 0.5}
    with pytest.raises(PartyLost, match=r"2 of 4 sites take part, and a round needs 3 .*client-1, client-2 did not"):
        play(config, faults=lost, restart_seconds=1000.0)
    _, recorder, _ = play(config, faults=lost, restart_seconds=10.0)  # and goes on where they come back in time
    assert away(recorder)[-1] == []
    assert len(recorder.rounds) == 8


def test_under_masks_a_round_below_the_quorum_changes_nothing_and_opens_nothing(monkeypatch):
    from fedactors.secure_sums import actors as sums
    from fedactors.secure_sums import protocol

    opened = []
    unmasked = protocol.unmasked_sum

    def keep(session, masked, *more):
        opened.append(sorted(masked))
        return unmasked(session, masked, *more)

    monkeypatch.setattr(sums, "unmasked_sum", keep)
    config = changed(**{**QUORUM, "min_sites": 4, "num_clients": 5}, secure_aggregation=True, local_epochs=1)
    _, _, runtime = play(config)
    seconds, opened[:] = runtime.usage().seconds, []
    with pytest.raises(PartyLost, match="3 of 5 sites take part, and a round needs 4"):
        play(config, faults={"client-1": seconds * 0.6, "client-2": seconds * 0.6})
    assert all(len(names) >= 4 for names in opened)


def test_a_site_lost_at_any_moment_of_a_masked_round_ends_no_run():
    config = changed(**{**QUORUM, "num_rounds": 3}, secure_aggregation=True, local_epochs=1)
    _, _, runtime = play(config)
    seconds = runtime.usage().seconds
    for share in np.linspace(0.35, 0.95, 12):
        _, recorder, _ = play(config, faults={"client-2": seconds * float(share)})
        assert all(one["sites"] in (0, 3, 4) for one in recorder.rounds)
        assert recorder.rounds[-1]["sites"] >= 3 or share > 0.8


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"min_sites": 5, "num_clients": 4}, "min_sites: 5 is not allowed: there are 4 sites"),
        ({"min_sites": 2, "on_party_loss": "stop"}, "min_sites"),
        ({"min_sites": 4, "num_clients": 6, "secure_aggregation": True, "clients_per_round": 5}, "clients_per_round"),
    ],
)
def test_what_no_quorum_can_hold_is_refused(words, why):
    with pytest.raises(BadInput, match=why):
        play(build(HorizontalConfig, words))
