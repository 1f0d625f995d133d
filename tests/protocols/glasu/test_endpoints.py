"""What a server that wants more than its part is told by the clients: accuracies when they are due."""

from __future__ import annotations

import numpy as np
import pytest

from fedactors.errors import Refused
from fedactors.protocols.glasu.aggregation import AggregationServer
from fedactors.protocols.glasu.data import load_data
from fedactors.protocols.glasu.messages import AveragedLogits
from fedactors.protocols.glasu.run import run
from fedactors.runtime.ray.runtime import RayRuntime
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.protocols.glasu.federation import DATA, settings
from tests.protocols.spies import spy_on

RUNTIMES = [pytest.param(SimulatedRuntime, id="simulated"), pytest.param(RayRuntime, id="ray", marks=pytest.mark.ray)]
CLIENT = "fedactors.protocols.glasu.actors:GraphClient"
AGGREGATOR = "fedactors.protocols.glasu.aggregation:AggregationServer"


@pytest.fixture(autouse=True)
def cluster(request):
    if request.node.get_closest_marker("ray"):
        request.getfixturevalue("ray_cluster")


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
        await self._victim.score(AveragedLogits(np.eye(3)[np.zeros(60, int)]))


class ScoresElsewhere(Asking):
    """The labels are everybody's: each one that is asked would say more of them."""

    async def _ask_more(self, number):
        await self.clients.handle("client-1").score(AveragedLogits(np.eye(3)[np.zeros(60, int)]))


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
        logits = AveragedLogits(np.zeros((60, 3)))
        await self.clients.handle("client-0").score(logits)
        return await super()._update(messages)


AGAIN = r"server: calls client-\d\.{} again in round 2, which was answered"
NOT_DUE = r"server: calls client-\d\.{} in round {}, which no evaluation is due in"
LINES = {
    ScoresAgain: AGAIN.format("score"),
    ScoresElsewhere: "server: lets client-1 score predictions; approved: client-0 does",
    EvaluatesAgain: AGAIN.format("predict"),
    EvaluatesEarlierRound: AGAIN.format("predict"),
    EvaluatesEveryRound: NOT_DUE.format("predict", 1),
    EvaluatesBeyond: r"server: begins attempt 0 of round 100 with client-\d; approved: attempts 0 to 0, rounds 1 to 4",
    ScoresInTraining: NOT_DUE.format("score", 1),
}


def play(make, config):
    runtime = make(seed=0)
    return runtime, lambda: runtime.execute(lambda: run(config, load_data(config, DATA, 0), runtime))


@pytest.mark.parametrize(
    ("make", "server"),
    [
        *((SimulatedRuntime, server) for server in LINES),
        pytest.param(RayRuntime, EvaluatesAgain, marks=pytest.mark.ray),
        pytest.param(RayRuntime, EvaluatesEveryRound, marks=pytest.mark.ray),
    ],
)
def test_a_server_that_asks_for_more_than_its_part_is_refused(monkeypatch, make, server):
    monkeypatch.setattr("fedactors.protocols.glasu.run.AggregationServer", server)
    with pytest.raises(Refused, match=LINES[server]):
        play(make, settings())[1]()


@pytest.mark.parametrize("make", RUNTIMES)
def test_a_client_answers_its_server_only_and_the_server_its_driver(make):
    runtime, execute = play(make, settings(num_rounds="1", secure_aggregation="true", average_classifiers="true"))
    attempts = spy_on(
        runtime,
        client=("client-0", CLIENT, ("greet",)),
        client_2=("server", AGGREGATOR, ()),
        server=("server", AGGREGATOR, ()),
        center_2=("server", AGGREGATOR, ()),
    )
    assert execute().rounds == 1
    assert len(attempts()) == 4
    assert min(attempts()) >= 9
    assert {total.type for total in runtime.ledger.totals() if total.receiver.startswith("spy")} <= {"error"}
