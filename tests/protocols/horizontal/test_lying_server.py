"""A server that lies to the actors of a whole run: it reads no sum, and a site's refusal says why."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fedactors.errors import FedactorsError
from fedactors.protocols.horizontal import algorithm
from fedactors.secure_sums.actors import SecureSums
from fedactors.secure_sums.messages import Arrived, Confirmations
from fedactors.secure_sums.primitives import FixedPoint
from fedactors.secure_sums.protocol import SecureSumServer, unmasked_sum
from tests.protocols.horizontal.federation import changed, play, vector_of

SECURE = {"num_rounds": 3, "local_epochs": 1, "num_training": 120, "secure_aggregation": True}


@pytest.mark.parametrize("lost", [("client-2",), ("client-1", "client-4")])
def test_one_or_two_lost_sites_leave_the_others_their_sum(lost, monkeypatch):
    made, means = [], []
    summand, mean = algorithm.summand, algorithm.mean_of_summands

    def keep(*args):
        made.append(summand(*args))
        return made[-1]

    def keep_mean(total, *args):
        means.append(total)
        return mean(total, *args)

    monkeypatch.setattr(algorithm, "summand", keep)
    monkeypatch.setattr(algorithm, "mean_of_summands", keep_mean)
    config = changed(**SECURE)
    _, _, runtime = play(config)
    made.clear()
    means.clear()
    _, recorder, _ = play(config, faults=dict.fromkeys(lost, runtime.usage().seconds * 0.5))
    assert [entry["clients"] for entry in recorder.rounds][-1] == 6 - len(lost)
    last = made[-(6 - len(lost)) :]
    off = FixedPoint(limit=config.secure_range, num_clients=6).error(6)
    assert np.abs(means[-1] - sum(last)).max() <= off
    assert np.isfinite(vector_of(recorder)).all()


def test_swapped_keys_end_the_run_before_anything_is_masked(monkeypatch):
    honest = SecureSumServer.roster

    def swapped(self, keys):
        first, second, *_ = sorted(keys)
        return honest(self, {**keys, second: dataclasses.replace(keys[second], masking=keys[first].masking)})

    monkeypatch.setattr(SecureSumServer, "roster", swapped)
    with pytest.raises(FedactorsError, match="the keys of client-1 do not carry client-1's signature"):
        play(changed(**SECURE))


@pytest.mark.parametrize(
    ("mixed", "why"),
    [(False, "3 confirmed the survivors, too few: 4"), (True, "has not confirmed the same survivors")],
)
def test_a_split_view_of_who_arrived_gives_no_sum(monkeypatch, mixed, why):
    """Half of the sites hear that client-5 is lost: with both answers the server could take its mask off."""
    opened = []

    async def total(self, parts, point, work):
        server, names = self._server, sorted(parts)
        views = [Arrived(server.arrived(parts).slot, tuple(members)) for members in (names, names[:-1])]
        told = {name: views[index % 2] for index, name in enumerate(names[:-1])} | {names[-1]: views[0]}
        signed = await self._clients.ask_each(lambda site, one: site.confirm_sum(one), told)
        for view in views:
            agreed = {name: one for name, one in signed.items() if mixed or told[name] is view}
            proof = Confirmations(view.slot, {name: one.signature for name, one in agreed.items()})
            if not mixed:
                proof = server.confirmations(view, dict(list(agreed.items())[:3]))
            shares = await self._clients.ask_each(lambda site, one: site.unmask_sum(one), dict.fromkeys(agreed, proof))
            opened.append(unmasked_sum(server.session, {name: parts[name] for name in view.members}, shares))
        return point.decode(opened[0]), tuple(names)

    monkeypatch.setattr(SecureSums, "total", total)
    with pytest.raises(FedactorsError, match=why):
        play(changed(**SECURE))
    assert opened == []
