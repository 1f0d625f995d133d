"""What comes after training: the clients infer together on new nodes and edges, and each party's part of the network.

    client ──H_m^+ of all nodes──▶ server ──aggregate──▶ clients ... ──logits──▶ server ──sum──▶ first client: its file

Each client's process reads its own graph and its own parameters. What training hid, prediction hides alike: after a run
with secure aggregation the server reads sums of representations and logits only, of nodes in an order that it does not
know; after one with noise each representation, or the sum, is noised and on the ledger.

Shapes: N nodes, D width of a representation, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fedactors.actors.actor import Server
from fedactors.actors.context import Work
from fedactors.actors.groups import ActorGroup
from fedactors.actors.remote import DRIVER, SERVER, remote
from fedactors.data.alignment.nodes import NewShare, align_nodes, load_new_nodes
from fedactors.data.columns import Preprocessing, tell_unlike
from fedactors.data.layouts.graph import GraphTables, GraphTablesPart, NewGraph
from fedactors.data.new_rows import ActorState, Listing, NoPart, Predicted, PredictOrder, StoredState, actor_state
from fedactors.errors import BadInput, Refused
from fedactors.learning.network import to_device
from fedactors.protocols.glasu import algorithm, privacy
from fedactors.protocols.glasu.actors import ProtectedClient
from fedactors.protocols.glasu.aggregation import add, average, concatenate
from fedactors.protocols.glasu.backbones import Network, Parameters, initial_parameters
from fedactors.protocols.glasu.config import GlasuConfig
from fedactors.protocols.glasu.data import (
    GraphSource,
    NewGraphPart,
    check_degrees,
    check_sizes,
    load_new_client,
    parts_of,
    renumber,
)
from fedactors.protocols.glasu.exported import settings_of
from fedactors.protocols.glasu.messages import Aggregated, Floats, Logits, Representation, SummedLogits
from fedactors.runtime.interface import Costs, Runtime
from fedactors.secure_sums.actors import SecureSums, in_turn
from fedactors.secure_sums.messages import Masked
from fedactors.serving.parts import Part, softmax
from fedactors.serving.predictions import LONGEST, Application, Outcomes, as_told, ask_writers

_SERVER = "server"


class PredictingClient(ProtectedClient):
    """A client with its best parameters, on the whole of a graph."""

    def __init__(
        self,
        config: GlasuConfig,
        parts: Sequence[NewGraphPart | GraphTablesPart],
        position: int,
        stored: StoredState,
        names: Sequence[str],
    ) -> None:
        super().__init__(names)
        self._names = tuple(names)
        self._config = config
        self._parts = tuple(parts)
        self._position = position
        self._stored = stored
        self._share: NewShare | None = None
        self._num_inferred = 0
        """Segments whose representation has left."""

    async def load(self) -> None:
        """Load parameters and graph."""
        config, state = self._config, _known(self._stored.read())
        if self._names != (trained := tuple(state["names"])):
            raise BadInput(
                f"data: the parties {', '.join(self._names)} are not allowed: the model was trained by "
                f"{', '.join(trained)}, in this order"
            )
        self._parameters = best_of(state)
        self.go_on_from(state)
        self._class_names: tuple[str, ...] = state["class_names"]
        num_classes = len(self._parameters["classifier.bias"])
        blocks = {part.party: await self._load_new(part) for part in self._parts}
        local, self._ids = load_new_client(config, blocks, self._position, state["feature_factor"], num_classes)
        num_features = local.features_NF.shape[1]
        network = Network.of(config, num_features, num_classes, self._position)
        self._network = replace(network, dropout=0.0)
        check_degrees(config, local)
        self._local, self._numbers = local, np.arange(local.graph.num_nodes)
        dtype = torch.float64 if config.float64 else torch.float32
        self.releases, self._noise = privacy.noised_releases(config), self.noise_rng("representations")
        rng = np.random.default_rng(0)
        needed = initial_parameters(network, rng, rng, dtype)
        if {name: one.shape for name, one in needed.items()} != {n: one.shape for n, one in self._parameters.items()}:
            raise BadInput(
                f"features of {self.name}: {num_features} columns are not allowed: the model was trained on "
                f"{state['num_features']}"
            )
        if (moments := state["feature_moments"]) is not None and self._share is None:  # tables tell it themselves
            names = [f"column {number}" for number in range(num_features)]
            tell_unlike(names, moments, local.features_NF, f"features of {self.name}")

    async def _load_new(self, part: NewGraphPart | GraphTablesPart) -> NewGraph:
        if not isinstance(part, GraphTablesPart):
            return part.load_new()
        self._share = await load_new_nodes(self, part)
        return self._share.graph

    @cached_property
    def _batch(self) -> algorithm.ClientBatch:
        dtype = torch.float64 if self._config.float64 else torch.float32
        return algorithm.full_batch(self._local, self._config.num_layers, dtype)

    @remote(caller=SERVER, once=True)
    @in_turn
    async def infer_lowest(self) -> Representation | Masked:
        """Return the own representation at the lowest aggregation."""
        heard = self._hear("infer_lowest", self.common_secret)
        if self._config.secure_aggregation:  # in an order that all clients know, and the server does not
            seed = int.from_bytes(self.common_secret)
            self._numbers = np.random.default_rng(seed).permutation(self._local.graph.num_nodes)
            self._local = renumber(self._local, self._numbers)
        members = (self._parameters, self._network, self._batch)
        first, self._h0 = await self.compute(algorithm.first_segment, *members, work=self._work())
        return self._released(0, first.numpy(), heard)

    @remote(caller=SERVER, at_most=lambda config: len(config.resolved_layers))
    @in_turn
    async def infer(self, below: Aggregated) -> Representation | Masked:
        """Return the own representation at the next aggregation."""
        heard = self._hear("infer", below)
        index = self._next_segment(below, is_last=False)
        members = (self._parameters, self._network, self._batch)
        arguments = (index, to_device(below.values, "cpu"), self._h0)
        found = await self.compute(algorithm.segment, *members, *arguments, work=self._work())
        return self._released(index, found.numpy(), heard)

    def _next_segment(self, below: Aggregated, *, is_last: bool) -> int:
        """Return the segment that comes above an aggregate, once.

        Raises:
            Refused: it is not the next one, or the last one is not to come here, or another one is.
        """
        # a segment is counted by its number, and -1 is the topmost one too
        if below.segment != self._num_inferred - 1 or (self._num_inferred == len(self._network.segments)) != is_last:
            raise Refused(self.caller, f"sends {self.name} the aggregate of segment {below.segment} out of turn")
        return self._num_inferred

    def _released(self, segment: int, values: Floats, heard: bytes) -> Representation | Masked:
        """Return a representation as it may leave, once, and write its line of the ledger, whatever comes after it."""
        self.release("the representation", f"of segment {segment}")
        self._num_inferred = segment + 1
        self.releases = privacy.noised_releases(self._config)
        found = self._protected(segment, len(self._network.segments[segment]), values, heard)
        self._record(privacy.prediction_records(self._config, self.party, self.releases))
        return found

    @remote(caller=SERVER, once=True)
    @in_turn
    async def classify(self, last: Aggregated) -> Logits | Masked:
        """Return the own logits of all nodes, from the last aggregate."""
        heard = self._hear("classify", last)
        self._next_segment(last, is_last=True)
        self._record(privacy.prediction_records(self._config, self.party))
        logits: Floats = algorithm.classify(self._parameters, to_device(last.values, "cpu")).numpy()
        return self._masked("logits", logits, heard) if self._config.secure_aggregation else Logits(logits)

    @remote(caller=SERVER, once=True)
    async def take(self, summed: SummedLogits) -> None:
        """Take the clients' summed logits, to be written."""
        self._summed = summed.values[self._numbers]

    @remote(caller=DRIVER, once=True)
    async def infer_alone(self) -> None:
        """Infer on the own graph, where clients do not communicate."""
        members = (self._parameters, self._network, self._batch)
        logits, _ = await self.compute(algorithm.local_forward, *members, [], work=self._work())
        self._summed = logits.numpy()

    @remote(caller=DRIVER, once=True)
    async def write(self, order: PredictOrder) -> Predicted:
        """Write the file of predictions."""
        listing = Listing.of_ids(self._ids) if self._share is None else self._share.listing
        rows = np.arange(len(self._summed))
        values = softmax(self._summed)
        return as_told(self, listing.write(self.output(order.to), rows, values, self._class_names, "multiclass"))

    def _work(self) -> Work:
        return Work("segment", algorithm.forward_operations(self._network, self._batch, range(self._config.num_layers)))


class PredictingServer(Server):
    """Aggregates what the clients represent (Algorithm 3)."""

    def __init__(self, config: GlasuConfig, names: Sequence[str], present: Sequence[str], writer: str) -> None:
        self._config = config
        self._names = tuple(names)
        self._present = tuple(present)
        self._writer = writer

    @remote(caller=DRIVER, once=True)
    async def infer(self) -> None:
        """Let the clients infer together, and give one of them what all predict."""
        clients: ActorGroup[PredictingClient] = ActorGroup(self, self._present, timeout=LONGEST)
        self._sums = SecureSums(self, clients)
        last = len(self._config.resolved_layers) - 1
        if self._config.secure_aggregation:
            await self._sums.prepare(last + 2)
        parts = await clients.ask(lambda client: client.infer_lowest())
        check_sizes({name: one.shape[0] if isinstance(one, Masked) else len(one.values) for name, one in parts.items()})
        for segment in range(last):
            sent = dict.fromkeys(clients.members, await self._aggregate(segment, parts))
            parts = await clients.ask_each(lambda client, below: client.infer(below), sent)
        above = await self._aggregate(last, parts)
        found = await clients.ask(lambda client: client.classify(above))
        summed = SummedLogits(await self._sum("logits", found))
        await clients.handle(self._writer).take(summed)

    async def _aggregate(self, segment: int, parts: Mapping[str, Representation | Masked]) -> Aggregated:
        if self._config.aggregation == "concatenation":
            values = {name: part.values for name, part in parts.items() if isinstance(part, Representation)}
            return Aggregated(segment, concatenate(values, self._names))
        return Aggregated(segment, average(await self._sum("forward", parts), len(parts)))

    async def _sum(self, what: str, parts: Mapping[str, Representation | Logits | Masked]) -> Floats:
        if not self._config.secure_aggregation:
            return add([part.values for part in parts.values() if not isinstance(part, Masked)])
        work = Work("unmask", sum(part.words.size for part in parts.values() if isinstance(part, Masked)))
        total, _ = await self._sums.total(parts, privacy.point_of(self._config, what), work)
        return total.astype(np.float64 if self._config.float64 else np.float32)


async def predict(config: GlasuConfig, data: GraphSource, runtime: Runtime, asked: Application) -> Outcomes:
    """Predict the class of each node of a graph, which may be new; clients that work alone each have their own file.

    A client that was lost in the run has no checkpoint and is left out, as it was in the run.
    """
    runtime.use_costs(Costs({"segment": (2e-4, 5e-11), "unmask": (1e-3, 1e-8)}))
    names = data.parties[:1] if config.special_case == "centralised" else data.parties
    present = [name for name in names if name in asked.stored]
    if not present:
        raise NoPart(f"{', '.join(names)}: the checkpoint holds no client's network")
    if config.secure_aggregation and len(present) < len(names):
        missing = next(name for name in names if name not in present)
        raise BadInput(
            f"predict: secure_aggregation=True is not allowed without {missing}: the difference to what all clients "
            "have summed in training would show its part"
        )
    writer = data.rows.label_party if isinstance(data, GraphTables) else present[0]
    if writer not in present:
        raise NoPart(f"{writer!r} has no part of the model (it was lost in training)")
    await align_nodes(data, runtime, asked.state_of)
    clients: dict[str, PredictingClient] = {}
    for position, name in enumerate(names):
        if name in present:
            arguments: tuple[Any, ...] = (config, parts_of(config, data, name), position, asked.state_of(name), names)
            clients[name] = runtime.spawn(PredictingClient, name, *arguments)
    server = None if config.works_alone else runtime.spawn(PredictingServer, _SERVER, config, names, present, writer)
    await runtime.start()
    if server is None:
        await ActorGroup(runtime, clients, timeout=LONGEST).ask(lambda client: client.infer_alone())
    else:
        await server.infer()
    writers = present if server is None else [writer]
    return await ask_writers(runtime, {name: clients[name].write for name in writers}, asked.to)


def predictors(config: GlasuConfig) -> Mapping[str, type]:
    """Return the kinds of actors that predict."""
    return {"clients": PredictingClient} | ({} if config.works_alone else {"server": PredictingServer})


def _known(state: ActorState) -> ActorState:
    """Return a client's state, if it says which parties trained the model, and what its classes are called."""
    if not {"names", "class_names", "feature_moments"} <= set(state):
        raise BadInput(
            "the model was trained by an earlier version, which kept no names of parties and classes, or no means of "
            "features: train again"
        )
    return state


def part(config: GlasuConfig, party: str, states: Mapping[str, bytes]) -> Part:
    """Return a client's best parameters, by layer."""
    if party == _SERVER:
        raise NoPart("--party: 'server' is not allowed: the server has no part of the model")
    state = _known(actor_state(states, party))
    parameters = best_of(state)
    preprocessing, more = None, dict[str, Any]()
    if (holder := f"{party}/nodes") in states:
        kept = actor_state(states, holder)
        preprocessing = Preprocessing.of(kept["preprocessing"], party)
        more = {"sparse_features": list(kept["vocabulary"])}
    num_classes = len(parameters["classifier.bias"])
    return Part(
        protocol="glasu",
        party=party,
        task="multiclass",
        num_classes=num_classes,
        class_names=tuple(state["class_names"]),
        parties=(party,),
        preprocessing=preprocessing,
        models={},
        arrays={name: value.numpy() for name, value in parameters.items()},
        settings=settings_of(config, state["num_features"], num_classes, state["feature_factor"]) | more,
        code=(config.user_layer,) if config.user_layer else (),
    )


def best_of(state: ActorState) -> Parameters:
    """Return the parameters with which a client's network did best on validation nodes."""
    best: Parameters = state["best"]
    return best or state["parameters"]
