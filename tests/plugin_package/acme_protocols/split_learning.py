"""Split learning in turns (Gupta and Raskar, 2018): a client trains the bottom model against the server's top model,
batch by batch, and hands the bottom on to the next client. Rows stay; labels are sent with the embeddings."""

import numpy as np
from acme_protocols.messages import Bottom, CutGradient, Loss, Score, Smashed, Turn
from pydantic import Field

from fedactors.actors.actor import Client, Server
from fedactors.actors.context import Work
from fedactors.actors.remote import CLIENT, DRIVER, remote
from fedactors.config import config
from fedactors.data.datasets.catalogue import Task
from fedactors.data.layouts.horizontal import HorizontalData, HorizontalFile, HorizontalSource, horizontal
from fedactors.data.partitioners import IidPartitioner
from fedactors.learning.local_training import batches
from fedactors.learning.metrics import task_metrics
from fedactors.learning.models import ModelSpec
from fedactors.learning.network import Model, initial_vector
from fedactors.learning.split_learning import Publication, TopGradient, loss_gradients
from fedactors.runs.metrics import RunResult
from fedactors.runtime.interface import Costs, Runtime

Source = HorizontalSource | HorizontalFile


def bottom_forward(spec: ModelSpec, vector, x):
    """Return the embedding of a batch at the given parameters."""
    return Model(spec, vector).output(x)


def bottom_gradient(spec: ModelSpec, vector, x, gradient):
    """Return the flat gradient at the given parameters."""
    return Publication(Model(spec, vector), x).gradient(gradient)


def top_gradient(spec: ModelSpec, vector, embeddings, targets, task: Task) -> TopGradient:
    """Return loss, outputs and gradients of one batch at the given top parameters."""
    return loss_gradients(Model(spec, vector), embeddings, targets, task)


@config
class SplitLearningConfig:
    """Settings of split learning."""

    num_clients: int = Field(default=3, ge=1)
    """Clients, which take turns in the order of their numbers."""
    num_rounds: int = Field(default=5, ge=1)
    """Rounds; in each one every client has its turn."""
    batch_size: int = Field(default=32, ge=1)
    """Rows per exchange (B)."""
    learning_rate: float = Field(default=0.2, gt=0)
    """Step size of both models."""


def specs(data: HorizontalData) -> tuple[ModelSpec, ModelSpec]:
    bottom = ModelSpec(name="mlp", inputs=data.shape, outputs=32, hidden_size=64, layers=2)
    return bottom, ModelSpec(name="top-mlp", inputs=(32,), outputs=data.num_classes)


class TurnClient(Client):
    """Holds rows and, in its turn, the bottom model."""

    state = ("vector",)

    def __init__(self, settings: SplitLearningConfig, spec: ModelSpec, local: Source, test: Source) -> None:
        self._settings, self._spec, self._source, self._test_source = settings, spec, local, test

    async def load(self) -> None:
        rows, self._test = self._source.load(), self._test_source.load()
        self._x, self._y = rows.features.reshape(len(rows.features), -1), rows.labels
        self.vector = initial_vector(self._spec, self.party_seed("bottom"))

    @remote(caller=CLIENT)
    async def take_over(self, bottom: Bottom) -> None:
        self.vector = bottom.vector

    @remote(caller=DRIVER)
    async def train(self, turn: Turn) -> Loss:
        server, losses = self.peer("server", TopServer), []
        for rows in batches(len(self._x), self._settings.batch_size, self.rng(f"order {turn.round}")):
            x, work = self._x[rows], Work("bottom", len(rows))
            values = await self.compute(bottom_forward, self._spec, self.vector, x, work=work)
            cut = await server.step(Smashed(values, self._y[rows]))
            gradient = await self.compute(bottom_gradient, self._spec, self.vector, x, cut.values, work=work)
            self.vector = self.vector - self._settings.learning_rate * gradient
            losses.append(cut.loss)
        if turn.next_client != self.name:
            await self.peer(turn.next_client, TurnClient).take_over(Bottom(self.vector))
        return Loss(float(np.mean(losses)))

    @remote(caller=DRIVER)
    async def evaluate(self) -> Score:
        rows = self._test.features.reshape(len(self._test.features), -1)
        values = await self.compute(bottom_forward, self._spec, self.vector, rows, work=Work("bottom", len(rows)))
        return await self.peer("server", TopServer).score(Smashed(values, self._test.labels))


class TopServer(Server):
    """Holds the top model."""

    state = ("vector",)

    def __init__(self, settings: SplitLearningConfig, spec: ModelSpec, task: Task) -> None:
        self._rate, self._spec, self._task = settings.learning_rate, spec, task

    async def load(self) -> None:
        self.vector = initial_vector(self._spec, self.seed("top"))

    @remote(caller=CLIENT)
    async def step(self, smashed: Smashed) -> CutGradient:
        made = self._spec, self.vector, (smashed.values,), smashed.labels, self._task
        found = await self.compute(top_gradient, *made, work=Work("top", len(smashed.values)))
        self.vector = self.vector - self._rate * found.gradient
        return CutGradient(found.embedding_gradients[0], found.loss)

    @remote(caller=CLIENT)
    async def score(self, smashed: Smashed) -> Score:
        outputs = await self.compute(
            bottom_forward, self._spec, self.vector, smashed.values, work=Work("top", len(smashed.values))
        )
        found = task_metrics(self._task, smashed.labels, outputs)
        return Score(float(found["loss"]), float(found["accuracy"]))


def actors(settings: SplitLearningConfig) -> dict[str, type]:
    return {"clients": TurnClient, "server": TopServer}


async def run(settings: SplitLearningConfig, data: HorizontalData, runtime: Runtime) -> RunResult:
    runtime.use_costs(Costs({"bottom": (2e-4, 1e-6), "top": (3e-4, 1e-6)}))
    bottom, top = specs(data)
    runtime.spawn(TopServer, "server", settings, top, data.task)
    names = [f"client-{index}" for index in range(settings.num_clients)]
    local = [(name, data.client(index)) for index, name in enumerate(names)]
    clients = [runtime.spawn(TurnClient, name, settings, bottom, source, data.test()) for name, source in local]
    await runtime.start()
    for index in range(runtime.state.get("round", 0) + 1, settings.num_rounds + 1):
        turns = [Turn(index, names[(i + 1) % len(names)]) for i in range(len(names))]
        losses = [(await client.train(turn)).value for client, turn in zip(clients, turns, strict=True)]
        score = await clients[0].evaluate()
        metrics = {"loss": score.loss, "accuracy": score.accuracy, "train_loss": float(np.mean(losses))}
        runtime.state.update(round=index, metrics=metrics)
        await runtime.record_round(index, metrics)
        await runtime.checkpoint()
    return RunResult(rounds=settings.num_rounds, metrics=runtime.state["metrics"])


def load_data(settings: SplitLearningConfig, name: str, seed: int) -> HorizontalData:
    return horizontal(name, IidPartitioner(num_partitions=settings.num_clients, seed=seed), seed=seed)
