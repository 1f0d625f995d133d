"""FedAvg (McMahan et al., 2017, Algorithm 1): clients train on their own rows, a server averages what they send."""

import asyncio
import logging
from dataclasses import asdict
from functools import partial
from typing import Literal

from acme_protocols.messages import Model, Score, Turn, Update
from pydantic import Field

from fedactors.actors.actor import Client, Server
from fedactors.actors.context import Work
from fedactors.actors.remote import DRIVER, SERVER, remote
from fedactors.config import config
from fedactors.data.layouts.horizontal import HorizontalData, HorizontalFile, HorizontalSource, horizontal
from fedactors.data.partitioners import DirichletPartitioner
from fedactors.errors import PartyLost
from fedactors.learning.local_training import LocalTraining, evaluate_model, train_locally, weighted_mean
from fedactors.learning.models import ModelSpec
from fedactors.learning.network import initial_vector
from fedactors.learning.optimizers import OptimizerSpec
from fedactors.runs.metrics import RunResult
from fedactors.runtime.interface import Costs, Runtime


@config
class FedAvgConfig:
    """Settings of FedAvg."""

    num_clients: int = Field(default=4, ge=1, le=1000)
    """Clients (K)."""
    num_rounds: int = Field(default=20, ge=1)
    """Rounds of averaging."""
    local_epochs: int = Field(default=1, ge=1)
    """Passes over a client's rows in each round (E)."""
    batch_size: int = Field(default=32, ge=1)
    """Rows per local step (B)."""
    learning_rate: float = Field(default=0.05, gt=0)
    """Step size of local SGD."""
    alpha: float = Field(default=1.0, gt=0)
    """Concentration of the Dirichlet split of labels: smaller is more skewed."""
    on_party_loss: Literal["stop", "continue"] = "continue"
    """Whether a lost client stops the run or is left out."""


def model_spec(data: HorizontalData) -> ModelSpec:
    return ModelSpec(name="cnn8", inputs=data.shape, outputs=data.num_classes)


class AveragingClient(Client):
    """Trains on its own rows; stateless between rounds."""

    def __init__(self, settings: FedAvgConfig, spec: ModelSpec, source: HorizontalSource | HorizontalFile) -> None:
        self._spec, self._source = spec, source
        epochs, size, rate = settings.local_epochs, settings.batch_size, settings.learning_rate
        rule = OptimizerSpec(learning_rate=rate)
        self._training = LocalTraining(num_epochs=epochs, batch_size=size, optimizer=rule)

    async def load(self) -> None:
        self._rows = self._source.load()

    @remote(caller=SERVER)
    async def train(self, model: Model) -> Update:
        x, y = self._rows.features, self._rows.labels
        train = partial(train_locally, seed=self.seed(f"order {model.round}"), training=self._training)
        work = Work("local-training", len(x) * self._training.num_epochs)
        found = await self.compute(train, self._spec, model.vector, x, y, work=work)
        return Update(found.vector, found.num_samples)


class AveragingServer(Server):
    """Holds the shared model and the public test rows."""

    state = ("vector",)

    def __init__(self, spec: ModelSpec, test: HorizontalSource | HorizontalFile, clients: tuple[str, ...]) -> None:
        self._spec, self._source, self._clients = spec, test, clients

    async def load(self) -> None:
        self._test = self._source.load()
        self.vector = initial_vector(self._spec, self.seed("model"))

    @remote(caller=DRIVER)
    async def train_round(self, turn: Turn) -> Score:
        model = Model(turn.round, self.vector)
        asked = [self.peer(name, AveragingClient).train(model) for name in self._clients]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, PartyLost):
                logging.getLogger(__name__).warning("round %d goes on without %s", turn.round, answer.party)
            elif isinstance(answer, BaseException):
                raise answer
        found = {name: a for name, a in zip(self._clients, answers, strict=True) if isinstance(a, Update)}
        if not found:
            raise PartyLost(self._clients[0], "no client is left to train")
        weights = [float(update.num_samples) for update in found.values()]
        vectors = [update.vector for update in found.values()]
        self.vector = await self.compute(weighted_mean, vectors, weights, work=Work("average", len(found)))
        test = self._spec, self.vector, self._test.features, self._test.labels
        metrics = await self.compute(evaluate_model, *test, work=Work("evaluate", len(self._test.features)))
        return Score(float(metrics["loss"]), float(metrics["accuracy"]), len(found))


def actors(settings: FedAvgConfig) -> dict[str, type]:
    return {"clients": AveragingClient, "server": AveragingServer}


async def run(settings: FedAvgConfig, data: HorizontalData, runtime: Runtime) -> RunResult:
    runtime.use_costs(Costs({"local-training": (1e-3, 1e-4), "average": (1e-4, 1e-4), "evaluate": (1e-3, 2e-5)}))
    names = tuple(f"client-{index}" for index in range(settings.num_clients))
    server = runtime.spawn(AveragingServer, "server", model_spec(data), data.test(), names)
    for index, name in enumerate(names):
        runtime.spawn(AveragingClient, name, settings, model_spec(data), data.client(index))
    runtime.on_loss(lambda name: "stop" if name == "server" else settings.on_party_loss)
    await runtime.start()
    for index in range(runtime.state.get("round", 0) + 1, settings.num_rounds + 1):
        metrics = asdict(await server.train_round(Turn(index)))
        runtime.state.update(round=index, metrics=metrics)
        await runtime.record_round(index, metrics)
        await runtime.checkpoint()
    return RunResult(rounds=settings.num_rounds, metrics=runtime.state["metrics"])


def load_data(settings: FedAvgConfig, name: str, seed: int) -> HorizontalData:
    partitioner = DirichletPartitioner(num_partitions=settings.num_clients, alpha=settings.alpha, seed=seed)
    return horizontal(name, partitioner, seed=seed)
