"""A client killed at any moment: the run stops with its name, or goes on; nothing hangs."""

import numpy as np
import pytest

from fedactors.errors import CallTimeout, PartyLost
from fedactors.protocols.mtcd.data import load_data
from fedactors.protocols.mtcd.objective import Ridge, solve
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.protocols.mtcd.running import config_of, merged, simulate


def moments(words, count):
    """Return times spread over the whole run, one of them within each stretch."""
    _, kept, _ = simulate(words)
    end = max(row[0] for row in kept.rows)
    return [float(time) for time in np.linspace(0.0, end * 0.999, count)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["", "mode=overlapping topology=ring", "algorithm=stcd", "algorithm=svfl", "algorithm=dcpa"]
)
def test_a_loss_at_any_moment_stops_the_run_with_the_name(words):
    for time in moments(words, 8):
        with pytest.raises(PartyLost, match="client-2") as caught:
            simulate(words, faults={"client-2": time})
        assert caught.value.exit_code == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "topology=complete",
        "topology=complete acceleration=true",
        "topology=path",
        "mode=overlapping topology=path",
        "topology=path batch_size=11",
        "topology=path num_tokens=1 clusters=whole server_links=0,5",
        "algorithm=svfl",
        "algorithm=svfl batch_size=11",
    ],
)
def test_a_loss_at_any_moment_can_be_gone_on_from(words):
    words = f"{words} on_party_loss=continue num_rounds=6"
    for time in moments(words, 10):
        for client in ("client-0", "client-1", "client-3"):
            result, kept, _ = simulate(words, faults={client: time})
            assert [index for index, _ in kept.rounds] == list(range(7))
            assert np.isfinite(result.metrics["training/objective"])
            assert result.metrics["training/objective"] < kept.rounds[0][1]["training/objective"]


@pytest.mark.slow
def test_what_was_lost_is_issued_again_from_the_last_sync():
    """The token is killed at its first stop; another issue of it follows, and Z stays the sum of representations."""
    words = "topology=complete num_tokens=1 clusters=whole num_rounds=40 on_party_loss=continue"
    _, kept, _ = simulate(words)
    first = next(row for row in kept.rows if row[4] == "Token" and row[1] == "server")
    _, kept, _ = simulate(words, faults={first[2]: first[0] + 1e-4})
    issued = [row for row in kept.rows if row[4] == "Token" and row[1] == "server"]
    assert issued[0][2] == first[2]
    assert issued[1][2] != first[2]
    assert len(issued) == 41


@pytest.mark.slow
def test_the_other_clients_reach_the_minimum_over_their_blocks():
    words = "topology=complete num_rounds=500 on_party_loss=continue"
    result, _, _ = simulate(words, faults={"client-4": 0.0005})
    data = load_data(config_of(merged(words)), "synthetic", 3)
    rest = np.concatenate([data.load(k).train for k in range(6) if k != 4], axis=1)
    _, optimum = solve(Ridge(10.0), rest, data.labels()[0])
    assert result.metrics["training/objective"] == pytest.approx(optimum, rel=1e-9)


def test_a_resumed_run_knows_who_was_lost():
    words = "topology=path num_rounds=6 on_party_loss=continue"
    whole, kept, _ = simulate(words, faults={"client-1": 0.004})
    points = [found for label, found in kept.checkpoints if label == "last" and "client-1" not in found.actors]
    assert len(points) >= 2
    for point in points[:-1]:
        resumed, _, _ = simulate(words, resume=point)
        assert repr(resumed.metrics) == repr(whole.metrics)


def test_the_server_is_not_to_be_done_without():
    with pytest.raises(PartyLost, match="server"):
        simulate("on_party_loss=continue", faults={"server": 0.01})


class Deaf(SimulatedRuntime):
    """Loses one message on the way, as no transport should."""

    def send(self, sender, receiver, method, value):
        if method == "roaming_done" and not getattr(self, "dropped", False):
            self.dropped = True
            done = self.loop.create_future()
            done.set_result(None)
            return done
        return super().send(sender, receiver, method, value)


class Mute(SimulatedRuntime):
    """Loses all dual vectors of one client."""

    def send(self, sender, receiver, method, value):
        if method == "take_dual" and sender == "client-1":
            done = self.loop.create_future()
            done.set_result(None)
            return done
        return super().send(sender, receiver, method, value)


def test_who_sends_nothing_is_named_and_not_who_waits_for_it():
    with pytest.raises(CallTimeout, match=r"^client-1: its dual vector of iteration \d+ did not come to client-[02]"):
        simulate("algorithm=dcpa topology=path", cls=Mute)


@pytest.mark.parametrize("words", ["", "algorithm=svfl"])
def test_when_no_client_is_left_the_last_that_was_lost_is_named(words):
    end = moments(words, 2)[-1]
    clients = [f"client-{number}" for number in range(6)]
    faults = {name: end * (0.3 + 0.05 * index) for index, name in enumerate(reversed(clients))}
    with pytest.raises(PartyLost, match=r"^client-0: ") as caught:
        simulate(f"{words} on_party_loss=continue", faults=faults)
    assert caught.value.exit_code == 3


def test_a_word_that_never_comes_ends_in_a_timeout_that_names_the_token():
    with pytest.raises(CallTimeout, match=r"server: tokens \[\d\] were not back within 240 s"):
        simulate("", cls=Deaf)
    with pytest.raises(CallTimeout, match=r"client-\d: the token that went on from here"):
        simulate("algorithm=stcd", cls=Deaf)
