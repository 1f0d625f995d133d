"""The graph client: it unpacks a message, calls a function of `steps` or `algorithm`, packs a message.

Between rounds a client is its parameters, its optimiser's state and its best parameters; all else belongs to one
round and is forgotten when the next begins. What depends on chance is derived from (run, client, round, attempt).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedactors.errors import BadInput, PartyFailed
from fedactors.privacy.secure_aggregation import FixedPoint, SecureSumClient
from fedactors.roles import Client
from fedactors.runtime.base import Work
from protocols.glasu import algorithm, backbones, steps
from protocols.glasu.aggregation import FRACTION_BITS, Floats
from protocols.glasu.algorithm import ClientBatch, Descent, OptimiserState, Stale
from protocols.glasu.backbones import Network, Parameters
from protocols.glasu.config import GlasuConfig
from protocols.glasu.graphs import GraphSource, load_share, renumber, scale_features
from protocols.glasu.messages import (
    Aggregated,
    AveragedClassifier,
    AveragedLogits,
    Classifier,
    GradientPart,
    GradientShare,
    IndexSet,
    Introduction,
    Logits,
    Masked,
    Prediction,
    PublicKeys,
    Report,
    Representation,
    Revealed,
    RevealRequest,
    Scores,
    Stamp,
    Targets,
)
from protocols.glasu.noise import Releases, privacy_records
from protocols.glasu.sampling import SampledLayer, choose_batch


@dataclass
class Round:
    """What a client holds while a round lasts."""

    stamp: Stamp
    network: Network
    layers: list[SampledLayer] = field(default_factory=list)
    batch: ClientBatch | None = None
    h0: Tensor | None = None
    own: list[Tensor] = field(default_factory=list)
    aggregated: list[Floats] = field(default_factory=list)
    crosses: list[Tensor] = field(default_factory=list)
    own_gradient: Tensor | None = None


class GraphClient(Client):
    """One of the M clients.

    Args:
        config: the run's settings.
        source: who holds what; only the own block is loaded, but by the centralised baselines.
        names: the clients' names, in order.
        position: the own place among them.
        common_seed: shared by the clients and not by the server; it shuffles the nodes' numbers.
    """

    state: ClassVar[tuple[str, ...]] = ("parameters", "step", "first", "second", "best", "released")

    def __init__(
        self, config: GlasuConfig, source: GraphSource, names: Sequence[str], position: int, common_seed: int
    ) -> None:
        self._config = config
        self._source = source
        self._names = tuple(names)
        self._position = position
        self._common_seed = common_seed
        self.step = 0
        self.best: Parameters = {}
        self.released: dict[str, float] = {}
        self._full: ClientBatch | None = None

    async def load(self) -> None:
        """Load the own share, shuffle the nodes' numbers as all clients do, and draw the first parameters."""
        config = self._config
        share, split, self._remarks = load_share(config.special_case, self._source, self._names, self._position)
        numbers_N = np.random.default_rng([self._common_seed, 1]).permutation(len(split.labels_N))
        share, self._split = renumber(share, split, numbers_N)
        self._share = scale_features(share) if config.scale_features else share
        self._graph = steps.build_graph(share, len(split.labels_N))
        self._share = replace(self._share, edges_2E=share.edges_2E[:, :0])  # the graph holds them now
        highest = int(self._graph.degrees.max(initial=0))
        if config.noise_multiplier and config.max_degree is not None and highest > config.max_degree:
            raise BadInput(
                f"max_degree: {config.max_degree} is not allowed: {self.name} has a node of degree {highest}"
            )
        self._network = steps.network_of(config, share.features_NF.shape[1], self._source.num_classes, self._position)
        self._descent = Descent(
            optimiser=config.optimiser,
            learning_rate=config.learning_rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay / config.num_networks,
        )
        self.parameters = backbones.initial_parameters(
            self._network,
            self.rng("weights"),
            np.random.default_rng([self._common_seed, 2]),
            steps.dtype_of(config.float64),
        )
        state = algorithm.start_optimiser(self.parameters, self._descent)
        self.first, self.second = state.first, state.second

    async def open(self) -> None:
        """Make fresh keys: a run that goes on never masks under the keys of the run before."""
        private = not self._reproducible
        self._noise = self.noise_rng("representations") if private else self.rng("noise of representations")
        entropy = os.urandom if private else self.rng("masks").bytes
        point = FixedPoint(fraction_bits=FRACTION_BITS, num_clients=self._config.num_networks)
        self._secure = SecureSumClient(self.name, point, entropy)

    async def introduce(self) -> Introduction:
        """Say what the server must know before the first round."""
        return Introduction(
            num_nodes=len(self._split.labels_N),
            num_classes=self._source.num_classes,
            train=np.sort(self._split.train),
            public_key=self._secure.public_key,
            remarks=tuple(self._remarks),
        )

    async def agree(self, keys: PublicKeys) -> None:
        """Accept the keys of those with whom sums are masked."""
        self._secure.agree(keys.keys)

    # --- Algorithm 2 ---

    async def sample(self, targets: Targets) -> IndexSet:
        """Sample the neighbours of a segment above the lowest; return the own index set at its input level."""
        await self._sample(targets)
        return IndexSet(targets.segment, self._round.layers[0].sources_S)

    async def _sample(self, targets: Targets) -> None:
        stamp, config = targets.stamp, self._config
        if targets.segment == len(self._network.segments) - 1:
            self._forget(stamp)
        current = self._round
        if current.layers:
            current.layers[0] = current.layers[0].with_sources(targets.nodes)
        num_layers = len(self._network.segments[targets.segment])
        work = Work("sample", len(targets.nodes) * num_layers * (config.num_neighbours or 10))
        seed = self.seed(f"sample {stamp.round}/{stamp.attempt}/{targets.segment}")
        arguments = (self._graph, targets.nodes, num_layers, config.num_neighbours, seed)
        current.layers[:0] = await self.compute(steps.sample, *arguments, work=work)

    def _forget(self, stamp: Stamp) -> None:
        """Forget the round before; average over those who take part, and drop no entries in an evaluation."""
        network = self._network
        if network.aggregation == "average" and network.num_clients > 1:
            network = replace(network, num_clients=len(stamp.members), position=stamp.members.index(self._position))
        self._round = Round(stamp, replace(network, dropout=0.0) if stamp.scoring else network)

    # --- Algorithm 3 ---

    async def infer_lowest(self, targets: Targets) -> Representation | Masked:
        """Sample the lowest segment, unless the graph is used whole, and compute it."""
        whole = targets.stamp.scoring or self._config.batch_size is None
        if whole:
            self._forget(targets.stamp)
        else:
            await self._sample(targets)
        current, batch = self._round, await self._batch(targets.stamp, whole)
        current.batch = batch
        work = self._work("segment", current.network, batch, [0])
        part, current.h0 = await self.compute(steps.first_segment, self.parameters, current.network, batch, work=work)
        return self._send(0, part)

    async def _batch(self, stamp: Stamp, whole: bool) -> ClientBatch:
        seed = self.seed(f"dropout {stamp.round}/{stamp.attempt}")
        if not whole:
            arguments = (self._graph, self._share, self._split, self._round.layers, self._config.float64, seed)
            size = sum(len(layer.rows_E) for layer in self._round.layers)
            return await self.compute(steps.make_batch, *arguments, work=Work("build", size))
        if self._full is None:  # part of loading, put off until it is needed: it has no cost of its own
            share, split, num_layers = self._share, self._split, self._network.num_layers
            self._full = steps.full_batch(self._graph, share, split, num_layers, self._config.float64)
        return replace(self._full, seed=seed)

    async def infer(self, aggregated: Aggregated) -> Representation | Masked:
        """Compute the segment above an aggregation."""
        current, index = self._round, aggregated.segment + 1
        current.aggregated.append(aggregated.values)
        work = self._work("segment", current.network, self._held, [index])
        arguments = (self.parameters, current.network, self._held, index, aggregated.values, current.h0)
        return self._send(index, await self.compute(steps.next_segment, *arguments, work=work))

    def _send(self, segment: int, part: Tensor) -> Representation | Masked:
        """Keep the own part as it is; what leaves is noised, then masked, where configured."""
        self._round.own.append(part)
        values: Floats = part.numpy()
        config, stamp = self._config, self._round.stamp
        if config.noise_multiplier and config.clip_norm is not None:
            sigma = config.noise_multiplier * config.clip_norm
            values = values + (sigma * self._noise.standard_normal(values.shape)).astype(values.dtype)
            hops = len(self._network.segments[segment])
            released = Releases.of(self.released).add(config, hops, len(values), first=self.step == 0)
            self.released = released.as_dict()
        if not config.secure_aggregation:
            return Representation(segment, values)
        return self._mask(segment, values, f"{stamp.round}/{stamp.attempt}/{int(stamp.scoring)}/forward/{segment}")

    def _mask(self, segment: int, values: Floats, context: str) -> Masked:
        words = self._secure.mask(values.reshape(-1), context.encode())
        return Masked(segment, tuple(values.shape), words)

    async def reveal(self, request: RevealRequest) -> Revealed:
        """Help to remove the masks of one sum, once."""
        found = self._secure.reveal(request.context, request.arrived)
        return Revealed(found.own_seed, found.dropped_seeds)

    # --- mode joint: the server sends back gradients of the mean loss ---

    async def head_gradient(self, aggregated: Aggregated) -> GradientPart | Masked:
        """Take the last aggregate and return the own part of the gradient there."""
        current, batch = self._round, self._held
        current.aggregated.append(aggregated.values)
        work = self._work("gradient", current.network, batch, [])
        arguments = (self.parameters, current.network, batch, steps.tensor(aggregated.values))
        _, current.own_gradient = await self.compute(algorithm.head_gradient, *arguments, work=work)
        return self._send_gradient(aggregated.segment)

    async def pass_gradient(self, share: GradientShare) -> GradientPart | Masked:
        """Carry what reached an aggregation's own part back to the aggregation below."""
        self._take_share(share)
        current, index = self._round, share.segment
        below = steps.tensor(current.aggregated[index - 1])
        received = steps.tensor(share.values)
        work = self._work("gradient", current.network, self._held, [index])
        arguments = (self.parameters, current.network, self._held, index, below, received)
        current.own_gradient = await self.compute(algorithm.segment_gradient, *arguments, work=work)
        return self._send_gradient(index - 1)

    def _take_share(self, share: GradientShare) -> None:
        current, received = self._round, steps.tensor(share.values)
        assert current.own_gradient is not None
        current.crosses.insert(0, algorithm.cross_gradient(received, current.own_gradient, current.network))

    def _send_gradient(self, segment: int) -> GradientPart | Masked:
        own, stamp = self._round.own_gradient, self._round.stamp
        assert own is not None
        if not self._config.secure_aggregation:
            return GradientPart(segment, own.numpy())
        return self._mask(segment, own.numpy(), f"{stamp.round}/{stamp.attempt}/0/backward/{segment}")

    # --- Algorithm 4 ---

    async def update(self, last: Aggregated | GradientShare) -> Report:
        """Do the Q local updates on what the round has left; the message is the last one that they need."""
        current = self._round
        crosses: list[Tensor] | None = None
        if isinstance(last, GradientShare):
            self._take_share(last)
            crosses = current.crosses
        else:
            current.aggregated.append(last.values)
        stale = [
            algorithm.extract(steps.tensor(h), own) for h, own in zip(current.aggregated, current.own, strict=True)
        ]
        return await self._update(current.network, self._held, stale, crosses, current.stamp.round)

    async def _update(
        self,
        network: Network,
        batch: ClientBatch,
        stale: Sequence[Stale],
        crosses: Sequence[Tensor] | None,
        round_index: int,
    ) -> Report:
        config = self._config
        descent = algorithm.decayed(self._descent, round_index - 1, config.decay_every, config.decay_factor)
        state = OptimiserState(self.step, self.first, self.second)
        everything = range(len(network.segments))
        work = self._work("update", network, batch, everything, times=config.num_local_updates)
        arguments = (self.parameters, state, network, batch, stale, crosses, descent, config.num_local_updates)
        self.parameters, state, losses = await self.compute(steps.updates, *arguments, work=work)
        self.step, self.first, self.second = state.step, state.first, state.second
        if not np.isfinite(losses).all():
            raise PartyFailed(self.name, "the loss is not finite; a smaller learning_rate may help")
        return Report(losses[0], losses[-1])

    async def classifier(self, stamp: Stamp) -> Classifier | Masked:
        """Give the classifier to be averaged."""
        values = np.concatenate([self.parameters[name].numpy().reshape(-1) for name in self._classifier_names])
        if not self._config.secure_aggregation:
            return Classifier(values)
        return self._mask(0, values, f"{stamp.round}/{stamp.attempt}/0/classifier")

    async def take_classifier(self, averaged: AveragedClassifier) -> None:
        """Go on with the averaged classifier."""
        values, start, changed = steps.tensor(averaged.values), 0, dict(self.parameters)
        for name in self._classifier_names:
            old = self.parameters[name]
            changed[name] = values[start : start + old.numel()].reshape(old.shape).to(old.dtype)
            start += old.numel()
        self.parameters = changed

    @property
    def _classifier_names(self) -> list[str]:
        return [name for name in self.parameters if name.startswith("classifier.")]

    # --- evaluation ---

    async def predict(self, aggregated: Aggregated) -> Prediction:
        """Classify the validation and test nodes from the last aggregate of an evaluation."""
        work = self._work("gradient", self._network, self._held, [])
        logits = await self.compute(steps.predict, self.parameters, aggregated.values, work=work)
        values = logits[torch.from_numpy(self._scored)].numpy()
        stamp, part = self._round.stamp, Logits(values)
        if self._config.secure_aggregation:
            masked = self._mask(0, values, f"{stamp.round}/{stamp.attempt}/1/logits")
            return Prediction(masked, self._score(values))
        return Prediction(part, self._score(values))

    async def score(self, averaged: AveragedLogits) -> Scores:
        """Compare the averaged predictions with the labels."""
        return self._score(averaged.values)

    @property
    def _scored(self) -> np.ndarray:
        return np.concatenate([self._split.validation, self._split.test])

    def _score(self, values: Floats) -> Scores:
        right = values.argmax(axis=1) == self._split.labels_N[self._scored]
        border = len(self._split.validation)
        parts = (right[:border], right[border:])
        validation, test = (float(part.mean()) if len(part) else 0.0 for part in parts)
        return Scores(validation, test)

    async def remember(self) -> None:
        """Keep the present parameters as the best so far."""
        self.best = {name: value.clone() for name, value in self.parameters.items()}

    # --- clients that work alone: the centralised and the standalone special case ---

    async def train_alone(self, stamp: Stamp) -> Report:
        """Do a round without anybody."""
        config = self._config
        self._forget(stamp)
        whole = config.batch_size is None
        if not whole:
            chosen = choose_batch(self._split.train, config.batch_size, self.rng(f"batch {stamp.round}"))
            await self._sample(Targets(stamp, 0, chosen))
        batch = await self._batch(stamp, whole)
        return await self._update(self._round.network, batch, [], None, stamp.round)

    async def evaluate_alone(self, stamp: Stamp) -> Scores:
        """Return the accuracies of the own network."""
        self._forget(stamp)
        batch = await self._batch(stamp, whole=True)
        work = self._work("segment", self._network, batch, range(len(self._network.segments)))
        logits = await self.compute(steps.predict_alone, self.parameters, self._round.network, batch, work=work)
        return self._score(logits[torch.from_numpy(self._scored)].numpy())

    # --- what is said at the end ---

    async def account(self) -> dict[str, Any]:
        """Write the privacy ledger; return the noised releases' budget."""
        records = privacy_records(self._config, self.party, self.released, private=not self._reproducible)
        for record in records:
            self.record_privacy(record)
        return {"epsilon": records[0].epsilon, "rigorous_mu": records[0].rigorous_mu, **self.released}

    @property
    def _reproducible(self) -> bool:
        return self._config.reproducible_noise or self._context.reproducible_noise

    @property
    def _held(self) -> ClientBatch:
        batch = self._round.batch
        assert batch is not None
        return batch

    def _work(self, kind: str, network: Network, batch: ClientBatch, segments: Sequence[int], times: int = 1) -> Work:
        layers = [layer for segment in segments for layer in network.segments[segment]]
        return Work(kind, times * steps.forward_operations(network, batch, layers))
