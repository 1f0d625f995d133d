"""What comes after training: the clients infer together on new nodes and edges, and each party's part of the network.

    client ──H_m^+ of all nodes──▶ server ──aggregate──▶ clients ... ──logits──▶ server ──sum──▶ first client: its file

Each client's process reads its own graph and its own parameters. Representations are open to the server here, so a run
that hid or noised them is not predicted with.

Shapes: N nodes, D width of a representation, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedactors.data.predictions import write_predictions
from fedactors.errors import BadInput
from fedactors.learning.model_parts import Part, softmax
from fedactors.parties import Parties
from fedactors.prediction import Application, Outcome, Outcomes, Predicted, PredictOrder
from fedactors.remote import DRIVER, SERVER, remote
from fedactors.roles import Client, Server
from fedactors.runtime.base import Costs, Runtime, Work
from fedactors.serving import ActorState, NoPart, StoredState, actor_state
from protocols.glasu import algorithm
from protocols.glasu.aggregation import add, average, concatenate
from protocols.glasu.backbones import Parameters, initial_parameters
from protocols.glasu.config import GlasuConfig
from protocols.glasu.data import GraphSource, NewGraphPart, load_new_client, parts_of
from protocols.glasu.messages import Aggregated, Logits, Representation, SummedLogits

_SERVER = "server"
_LONGEST = 86_400.0


class PredictingClient(Client):
    """A client with its best parameters, on the whole of a graph.

    Args:
        config: of the run that trained.
        parts: where its own block is; everybody's in the two centralised baselines.
        position: the own place among the clients.
        stored: its state in the run's checkpoint.
    """

    def __init__(self, config: GlasuConfig, parts: Sequence[NewGraphPart], position: int, stored: StoredState) -> None:
        self._config = config
        self._parts = tuple(parts)
        self._position = position
        self._stored = stored

    async def load(self) -> None:
        """Load parameters and graph."""
        config, state = self._config, self._stored.read()
        self._parameters = best_of(state)
        num_classes = len(self._parameters["classifier.bias"])
        own, self._ids = load_new_client(config, self._parts, self._position, state["feature_factor"], num_classes)
        num_features = own.features_NF.shape[1]
        network = algorithm.network_of(config, num_features, num_classes, self._position)
        self._network = replace(network, dropout=0.0)
        dtype = torch.float64 if config.float64 else torch.float32
        self._batch = algorithm.full_batch(own, config.num_layers, dtype)
        rng = np.random.default_rng(0)
        needed = initial_parameters(network, rng, rng, dtype)
        if {name: one.shape for name, one in needed.items()} != {n: one.shape for n, one in self._parameters.items()}:
            raise BadInput(
                f"features of {self.name}: {num_features} columns are not allowed: the model was trained on others"
            )

    @remote(caller=SERVER)
    async def infer_lowest(self) -> Representation:
        """Return the own representation at the lowest aggregation."""
        members = (self._parameters, self._network, self._batch)
        first, self._h0 = await self.compute(algorithm.first_segment, *members, work=self._work())
        return Representation(first.numpy())

    @remote(caller=SERVER)
    async def infer(self, below: Aggregated) -> Representation:
        """Return the own representation at the next aggregation."""
        members = (self._parameters, self._network, self._batch)
        arguments = (below.segment + 1, algorithm.tensor(below.values), self._h0)
        found = await self.compute(algorithm.segment, *members, *arguments, work=self._work())
        return Representation(found.numpy())

    @remote(caller=SERVER)
    async def classify(self, last: Aggregated) -> Logits:
        """Return the own logits of all nodes, from the last aggregate."""
        logits = algorithm.classify(self._parameters, algorithm.tensor(last.values))
        return Logits(logits.numpy())

    @remote(caller=SERVER)
    async def take(self, summed: SummedLogits) -> None:
        """Take the clients' summed logits, to be written."""
        self._summed = summed.values

    @remote(caller=DRIVER)
    async def infer_alone(self) -> None:
        """Infer on the own graph, where clients do not communicate."""
        members = (self._parameters, self._network, self._batch)
        logits, _ = await self.compute(algorithm.local_forward, *members, [], work=self._work())
        self._summed = logits.numpy()

    @remote(caller=DRIVER)
    async def write(self, order: PredictOrder) -> Predicted:
        """Write the file of predictions."""
        num_nodes, num_classes = self._summed.shape
        write_predictions(
            Path(order.to),
            ids=self._ids,
            rows=np.arange(num_nodes),
            values=softmax(self._summed),
            class_names=tuple(map(str, range(num_classes))),
            is_regression=False,
            reasons={},
        )
        return Predicted(num_nodes, num_nodes, ())

    def _work(self) -> Work:
        return Work("segment", algorithm.forward_operations(self._network, self._batch, range(self._config.num_layers)))


class PredictingServer(Server):
    """Aggregates what the clients represent (Algorithm 3).

    Args:
        config: of the run that trained.
        names: of the clients, in order.
        present: those that have a part of the model.
    """

    def __init__(self, config: GlasuConfig, names: Sequence[str], present: Sequence[str]) -> None:
        self._config = config
        self._names = tuple(names)
        self._present = tuple(present)

    @remote(caller=DRIVER)
    async def infer(self) -> None:
        """Let the clients infer together, and give the first one what all of them predict."""
        clients: Parties[PredictingClient] = Parties(self, self._present, timeout=_LONGEST)
        parts = await clients.ask(lambda client: client.infer_lowest())
        last = len(self._config.resolved_layers) - 1
        for segment in range(last):
            below = self._aggregate(segment, parts)
            parts = await self._tell(clients, below)
        above = self._aggregate(last, parts)
        found = await clients.ask(lambda client: client.classify(above))
        summed = SummedLogits(add([one.values for one in found.values()]))
        await clients.handle(self._present[0]).take(summed)

    async def _tell(self, clients: Parties[PredictingClient], below: Aggregated) -> dict[str, Representation]:
        return await clients.ask(lambda client: client.infer(below))

    def _aggregate(self, segment: int, parts: Mapping[str, Representation]) -> Aggregated:
        values = {name: part.values for name, part in parts.items()}
        if self._config.aggregation == "concatenation":
            return Aggregated(segment, concatenate(values, self._names))
        return Aggregated(segment, average(add(list(values.values())), len(values)))


async def predict(config: GlasuConfig, data: GraphSource, runtime: Runtime, asked: Application) -> Outcomes:
    """Predict the class of each node of a graph, which may be new; clients that work alone each have their own file.

    A client that was lost in the run has no checkpoint and is left out, as it was in the run.

    Raises:
        BadInput: the run hid representations, or noised them.
    """
    for setting in ("secure_aggregation", "noise_multiplier"):
        if getattr(config, setting):
            raise BadInput(
                f"predict: {setting}={getattr(config, setting)} is not allowed: the clients' representations would be "
                "open to the server"
            )
    runtime.use_costs(Costs({"segment": (2e-4, 5e-11)}))
    names = data.parties[:1] if config.special_case == "centralised" else data.parties
    present = [name for name in names if name in asked.stored]
    if not present:
        raise NoPart(f"{', '.join(names)}: the checkpoint holds no client's network")
    clients: dict[str, PredictingClient] = {}
    for place, name in enumerate(names):
        if name in present:
            arguments: tuple[Any, ...] = (config, parts_of(config, data, name), place, asked.state_of(name))
            clients[name] = runtime.spawn(PredictingClient, name, *arguments)
    server = None if config.works_alone else runtime.spawn(PredictingServer, _SERVER, config, names, present)
    await runtime.start()
    group = Parties(runtime, clients, timeout=_LONGEST)
    if server is None:
        await group.ask(lambda client: client.infer_alone())
    else:
        await server.infer()
    writers, to = present if server is None else present[:1], Path(asked.to)
    files = {name: str(to if len(writers) == 1 else to.with_stem(f"{to.stem}-{name}")) for name in writers}
    orders = {name: PredictOrder(file) for name, file in files.items()}
    found = await group.ask_each(lambda client, order: client.write(order), orders)
    return tuple(Outcome(party=name, to=files[name], counts=found[name]) for name in writers)


def predictors(config: GlasuConfig) -> Mapping[str, type]:
    """Return the kinds of actors that predict; none where representations were hidden or noised."""
    if config.secure_aggregation or config.noise_multiplier:
        return {}
    return {"clients": PredictingClient} | ({} if config.works_alone else {"server": PredictingServer})


def part(config: GlasuConfig, party: str, states: Mapping[str, bytes]) -> Part:
    """Return a client's best parameters, by layer.

    Raises:
        NoPart: the party has none.
    """
    if party == _SERVER:
        raise NoPart("--party: 'server' is not allowed: the server has no part of the model")
    state = actor_state(states, party)
    parameters = best_of(state)
    return Part(
        protocol="glasu",
        party=party,
        task="multiclass",
        num_classes=len(parameters["classifier.bias"]),
        class_names=(),
        parties=(party,),
        models={},
        arrays={name: value.numpy() for name, value in parameters.items()},
        settings={"feature_factor": state["feature_factor"], "backbone": config.backbone},
    )


def best_of(state: ActorState) -> Parameters:
    """Return the parameters with which a client's network did best on validation nodes."""
    best: Parameters = state["best"]
    return best or state["parameters"]
