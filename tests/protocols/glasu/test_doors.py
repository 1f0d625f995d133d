"""What a server that wants more than its part is told by the clients: accuracies when they are due."""

from __future__ import annotations

import numpy as np
import pytest

from fedactors.errors import Refused
from fedactors.runtime.simulated import SimulatedRuntime
from protocols.glasu.aggregation import AggregationServer
from protocols.glasu.data import load_data
from protocols.glasu.messages import AveragedLogits
from protocols.glasu.run import run
from tests.protocols.glasu.federation import DATA, settings


class Asking(AggregationServer):
    """A server that has an evaluation, and then goes on asking."""

    async def _evaluate(self, number):
        found = await super()._evaluate(number)
        await self._ask_more(number)
        return found

    async def _ask_more(self, number):
        """Ask for what is not due."""

    @property
    def _victim(self):
        return self.clients.handle("client-0")


class ScoresAgain(Asking):
    async def _ask_more(self, number):
        await self._victim.score(AveragedLogits(np.eye(3)[np.zeros(80, int)]))


class EvaluatesAgain(Asking):
    """The whole evaluation over the same parameters, under another attempt."""

    async def _ask_more(self, number):
        await super()._evaluate(number)


class EvaluatesEarlierRound(Asking):
    async def _ask_more(self, number):
        if number == 4:
            await super()._evaluate(2)


class EvaluatesEveryRound(AggregationServer):
    async def _train(self, number):
        await self._evaluate(number)
        return await super()._train(number)


class EvaluatesBeyond(Asking):
    async def _ask_more(self, number):
        await super()._evaluate(100)


class ScoresInTraining(AggregationServer):
    async def _update(self, messages):
        logits = AveragedLogits(np.zeros((80, 3)))
        await self.clients.handle("client-0").score(logits)
        return await super()._update(messages)


@pytest.mark.parametrize(
    ("server", "words", "line"),
    [
        (ScoresAgain, {}, r"server: calls client-0\.score again in round 2, which was answered"),
        (EvaluatesAgain, {}, r"server: calls client-\d\.predict again in round 2, which was answered"),
        (EvaluatesEarlierRound, {}, r"server: calls client-\d\.predict again in round 2, which was answered"),
        (EvaluatesEveryRound, {}, r"server: calls client-\d\.predict in round 1, which no evaluation is due in"),
        (EvaluatesBeyond, {}, r"server: calls client-\d\.predict in round 100, which no evaluation is due in"),
        (ScoresInTraining, {}, r"server: calls client-0\.score in round 1, which no evaluation is due in"),
    ],
)
def test_a_server_that_asks_for_more_than_its_part_is_refused(monkeypatch, server, words, line):
    config = settings(**words)
    monkeypatch.setattr("protocols.glasu.run.AggregationServer", server)
    runtime = SimulatedRuntime(seed=0)
    with pytest.raises(Refused, match=line):
        runtime.execute(lambda: run(config, load_data(config, DATA, 0), runtime))
