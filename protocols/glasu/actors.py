"""The graph client: it unpacks a message, calls a function of `algorithm`, packs a message.

Between rounds a client is its parameters, its optimiser's state and its best parameters; all else belongs to one
round and is forgotten when the next begins. What depends on chance is derived from (run, client, round, attempt).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedactors.actors.context import Work, derived_seed
from fedactors.actors.remote import SERVER, remote
from fedactors.data.layouts.graph import NodeSplit
from fedactors.errors import Refused
from fedactors.learning.metrics import known, task_metrics
from fedactors.learning.network import find_device, on_device, on_host, to_device
from fedactors.learning.optimizers import OptimizerState
from fedactors.privacy.accounting import GaussianReleases, PrivacyRecord, without_guarantee
from fedactors.privacy.mechanisms import add_gaussian
from fedactors.protocols.glasu import algorithm, backbones, messages, privacy, sampling
from fedactors.protocols.glasu.algorithm import ClientBatch, Inferred, Stale
from fedactors.protocols.glasu.backbones import Network, Parameters
from fedactors.protocols.glasu.config import GlasuConfig
from fedactors.protocols.glasu.data import AnyPart, blocks_of, check_degrees, load_client, renumber
from fedactors.protocols.glasu.messages import Floats, Targets
from fedactors.protocols.glasu.sampling import SampledLayer
from fedactors.runtime.rounds import Remedy
from fedactors.secure_sums.actors import SecureSummand, in_turn
from fedactors.secure_sums.messages import Masked
from fedactors.secure_sums.protocol import SecureSumError

T = TypeVar("T")


@dataclass
class Round:
    """What a client holds while a round lasts; lists have an entry for each segment, lowest first."""

    stamp: messages.Stamp
    network: Network
    layers: list[SampledLayer] = field(default_factory=list)
    batch: ClientBatch | None = None
    h0: Inferred | None = None
    local: list[Inferred] = field(default_factory=list)
    aggregated: list[Tensor] = field(default_factory=list)
    crosses: list[Tensor] = field(default_factory=list)
    local_gradient: Tensor | None = None
    traced: Parameters | None = None
    """Parameters of which the joint inference is the one update's forward pass too."""


class ProtectedClient(SecureSummand):
    """A client whose representations leave noised and, under masks, as parts of a sum; in training and prediction."""

    _config: GlasuConfig
    _noise: np.random.Generator
    releases: GaussianReleases

    @property
    def draws_reproducibly(self) -> bool:
        """Whether noise and masks follow from the run's seed."""
        is_seeded = self._config.reproducible_noise and not self._context.is_between_organisations
        return is_seeded or self._context.reproducible_noise

    def _hear(self, endpoint: str, *told: Any) -> bytes:
        """Remember a message that all clients get alike, if what follows from it leaves in sums only."""
        return self.heard(endpoint, *told) if self._config.secure_aggregation else b""

    def _protected(
        self, segment: int, hops: int, values: Floats, heard: bytes, *, first: bool = False
    ) -> messages.Representation | Masked:
        """Return a representation as it may leave; `first`: no parameter has seen data yet."""
        sigma = privacy.noise_of(self._config)
        if sigma > 0:
            privacy.count_release(self.releases, self._config, hops, len(values), first=first)
        if self._config.secure_aggregation:
            return self._masked(f"forward/{segment}", values, heard, sigma)
        return messages.Representation(add_gaussian(values, sigma, self._noise, "Representation"))

    def _masked(self, what: str, values: Floats, heard: bytes, sigma: float = 0.0) -> Masked:
        point, limit = privacy.point_of(self._config, what.partition("/")[0]), self._config.secure_range
        return self.masked(values, point, self._id_of(what), sigma, what=what, heard=heard, limit=limit)

    def _id_of(self, what: str) -> str | None:
        """Return by what name it is remembered among whom values were summed."""
        return None

    def _record(self, records: Iterable[PrivacyRecord]) -> None:
        for record in records:
            self.record_privacy(without_guarantee(record) if self.draws_reproducibly else record)


class GraphClient(ProtectedClient):
    """One of the M clients.

    Args:
        parts: where its own block is; everybody's in the two centralised baselines.
        run_seed: shared by all; it shuffles the nodes' numbers, and draws batches. The server can derive it, as all
            seeds of the run: with secure aggregation secrets take its place for numbers.
    """

    state: ClassVar[tuple[str, ...]] = (
        "parameters", "moments", "best", "releases", "local_secret", "num_changes", "feature_factor", "num_features",
        "class_names", "names", "feature_moments",
        *SecureSummand.state,
    )  # fmt: skip

    def __init__(
        self,
        config: GlasuConfig,
        parts: Sequence[AnyPart],
        position: int,
        run_seed: int,
        names: Sequence[str],
    ) -> None:
        super().__init__(names, survives_loss=config.on_party_loss == "continue")
        self.names = tuple(names)
        """Of all clients, in the order of their positions, for predictions."""
        self._config = config
        self._parts = tuple(parts)
        self._position = position
        self._run_seed, self._common_seed = run_seed, derived_seed(run_seed, "all clients", "nodes")
        self._dtype = torch.float64 if config.float64 else torch.float32
        self._optimizer = replace(config.step_rule, weight_decay=config.weight_decay / config.num_networks)
        self.moments = OptimizerState()
        self.best: Parameters = {}
        self.releases = privacy.noised_releases(config)
        self.feature_factor = 1.0
        """What the own features were multiplied by, for predictions on others."""
        self.num_features = 0
        self.feature_moments: NDArray[np.float64] | None = None
        """Means and deviations of the own features (2, F); None: noise must hide them."""
        self.class_names: tuple[str, ...] = ()
        self.num_changes = 0
        """Of the parameters so far."""
        self.local_secret = b""
        """What takes the seed's place where the server may not know what follows from it."""
        self._full: ClientBatch | None = None
        self._answered: dict[str, tuple[int, int]] = {}
        self._is_ordered = False

    async def load(self) -> None:
        """Load the own share, shuffle the nodes' numbers as all clients do, and draw the first parameters."""
        config = self._config
        self._device = str(find_device(config.device))
        common_seed = None if self._is_secret else self._common_seed
        blocks = await blocks_of(self, self._parts)
        self._local, self._remarks = load_client(config, blocks, self._position, common_seed)
        self.feature_factor = self._local.factor
        check_degrees(config, self._local)
        self.num_features = self._local.features_NF.shape[1]
        if not config.noise_multiplier:
            self.feature_moments = np.stack(
                [one(self._local.features_NF, axis=0, dtype=np.float64) for one in (np.mean, np.std)]
            )
        self.class_names = self._local.nodes.class_names
        self._network = Network.of(config, self.num_features, self._local.num_classes, self._position)
        backbones.check_layers(self._network, [0])
        self.parameters = self._first_parameters(self._common_seed)
        if self._is_secret:
            self.local_secret = self.entropy("own secret")(32)

    async def open(self) -> None:
        """Take noise from where nobody can repeat it; after a resume, order the nodes as the run began."""
        self._noise = (
            self.rng("noise of representations") if self.draws_reproducibly else self.noise_rng("representations")
        )
        if self._is_secret and self.common_secret:
            self._order_nodes()
        # a snapshot's are the host's
        self.parameters, self.best = on_device(self.parameters, self._device), on_device(self.best, self._device)
        self.moments = on_device(self.moments, self._device)

    def _first_parameters(self, common_seed: int) -> Parameters:
        rng = np.random.default_rng(self._seed("weights"))
        made = backbones.initial_parameters(self._network, rng, np.random.default_rng([common_seed, 2]), self._dtype)
        return on_device(made, self._device)

    # --- what the server may not derive ---

    @property
    def _is_secret(self) -> bool:
        """Whether orders and first weights come from the operating system: the server can derive all seeds."""
        return self._config.secure_aggregation and not self.draws_reproducibly

    def _seed(self, purpose: str) -> int:
        return (
            derived_seed(int.from_bytes(self.local_secret), self.name, purpose)
            if self.local_secret
            else self.seed(purpose)
        )

    def _order_nodes(self) -> None:
        """Shuffle the nodes' numbers as all clients do, by what they have agreed upon past the server."""
        order = np.random.default_rng(self._agreed_seed).permutation(self._local.graph.num_nodes)
        self._local, self._is_ordered = renumber(self._local, order), True

    @property
    def _agreed_seed(self) -> int:
        return int.from_bytes(self.common_secret) >> 193

    @remote(caller=SERVER, unbounded="always says the same")
    @in_turn
    async def introduce(self) -> messages.Introduction:
        """Say what the server must know before the first round."""
        if self._is_secret and not self._is_ordered:  # a resumed client has heard it, and draws roundings as before
            self._hear("introduce", self.common_secret)  # nodes are numbered by it
            self._order_nodes()
            self.parameters = self._first_parameters(self._agreed_seed)
        return messages.Introduction(
            num_nodes=len(self._local.nodes.labels_N),
            num_classes=self._local.num_classes,
            class_names=self.class_names,
            train=np.sort(self._local.nodes.train),
            remarks=tuple(self._remarks),
        )

    # --- Algorithm 2 ---

    @remote(caller=SERVER, at_most="num_samples")
    @in_turn
    async def sample(self, targets: messages.Targets) -> messages.IndexSet:
        """Sample the neighbours of a segment above the lowest; return the own index set at its input level."""
        self._hear("sample", targets)
        self._check_stamp(targets.stamp)
        await self._sample(targets)
        return messages.IndexSet(self._round.layers[0].sources_S)

    def _check_targets(self, nodes: messages.Index) -> None:
        """Check that each node is asked for once: rows that are one node's all move with it, which no account counts.

        Raises:
            Refused: it is asked for twice, or there is none of that number.
        """
        num_nodes = self._local.graph.num_nodes
        if len(nodes) and not (nodes[0] >= 0 and nodes[-1] < num_nodes and (nodes[1:] > nodes[:-1]).all()):
            said = f"asks {self.name} for nodes that are not in order, each once, from 0 to {num_nodes - 1}"
            raise Refused(self.caller, said)

    def _check_stamp(self, stamp: messages.Stamp) -> None:
        """Check what an average is divided by, and which batches of a round may be drawn.

        Raises:
            Refused: it names others than clients of the run, not this one, or a round or attempt that there is not.
        """
        is_fixed, clients = self._config.on_party_loss == "stop", self.clients
        members = clients if is_fixed else tuple(name for name in clients if name in stamp.members)
        most = 0 if is_fixed else len(clients)
        if stamp.members != members or self.name not in members:
            said = f"tells {self.name} that {', '.join(stamp.members) or 'nobody'} take part"
            raise Refused(self.caller, f"{said}; approved: {', '.join(clients)}")
        if not (1 <= stamp.round <= self._config.num_rounds and 0 <= stamp.attempt <= most):
            said = f"begins attempt {stamp.attempt} of round {stamp.round} with {self.name}"
            raise Refused(self.caller, f"{said}; approved: attempts 0 to {most}, rounds 1 to {self._config.num_rounds}")

    def _check_batch(self, targets: messages.Targets) -> None:
        """Check that a round is of the batch that is drawn: losses of nodes of one's choice tell their labels.

        Raises:
            Refused: it is of other nodes.
        """
        stamp, config = targets.stamp, self._config
        how = (config.batch_size, self._run_seed, stamp.round, stamp.attempt, self.adder)
        if not np.array_equal(targets.nodes, sampling.batch_of(self._local.nodes.train, *how)):
            said = f"trains {self.name} in round {stamp.round} on other nodes than its batch's"
            raise Refused(self.caller, f"{said}; approved: {config.batch_size} of those to train on, drawn by the seed")

    async def _sample(self, targets: messages.Targets) -> None:
        self._check_targets(targets.nodes)
        stamp, num_neighbours = targets.stamp, self._config.num_neighbours
        top = len(self._network.segments) - 1
        if targets.segment == top:
            self._begin(stamp)
            if not self._config.works_alone:
                self._check_batch(targets)
        current = self._round
        num_done = sum(len(segment) for segment in self._network.segments[targets.segment + 1 :])
        if not 0 <= targets.segment <= top or len(current.layers) != num_done or stamp != current.stamp:
            raise Refused(self.caller, f"samples segment {targets.segment} of {self.name} out of turn")
        if current.layers:
            if len(np.setdiff1d(current.layers[0].sources_S, targets.nodes, assume_unique=True)):
                said = f"asks {self.name} for nodes of segment {targets.segment} without all that it has sampled above"
                raise Refused(self.caller, said)
            current.layers[0] = current.layers[0].with_sources(targets.nodes)
        num_layers = len(self._network.segments[targets.segment])
        work = Work("sample", len(targets.nodes) * num_layers * (num_neighbours or 10))
        rng = np.random.default_rng(self._seed(f"sample {stamp.round}/{stamp.attempt}/{targets.segment}"))
        arguments = (self._local.graph, targets.nodes, num_layers, num_neighbours, rng)
        current.layers[:0] = await self.compute(sampling.sample_segment, *arguments, work=work)

    def _begin(self, stamp: messages.Stamp) -> None:
        """Forget the round before; average over those who take part, and drop no entries in an evaluation."""
        self._keep_whole()
        network = self._network
        if network.aggregation == "average":
            network = replace(network, num_clients=len(stamp.members))
        self._round = Round(stamp, replace(network, dropout=0.0) if stamp.scoring else network)
        # a part of one's own that is noised in an aggregation is another than in the local forward pass
        if self._config.num_local_updates == 1 and not stamp.scoring and privacy.noise_of(self._config) == 0:
            self._round.traced = algorithm.traceable(self.parameters)

    def known_sizes(self, message: Any, sender: str) -> dict[str, int]:
        """Return the widths of the network, the numbers of nodes, and of those of the segment that is spoken of."""
        config, nodes = self._config, self._local.nodes
        is_joined = config.aggregation == "concatenation"
        sizes = {
            "width": config.hidden_size,
            "joined width": config.hidden_size * (len(self.names) if is_joined else 1),
            "classes": self._local.num_classes,
            "nodes to score": len(nodes.validation) + len(nodes.test),
            "classifier parameters": sum(self.parameters[name].numel() for name in self._classifier_names),
        }
        segment = getattr(message, "segment", -1)
        if not isinstance(message, Targets) and 0 <= segment < len(self._network.segments):
            sizes["nodes"] = self._num_targets(segment)
        return sizes

    def _num_targets(self, segment: int) -> int:
        """Return at how many nodes a segment's representation is in the round under way."""
        current: Round | None = getattr(self, "_round", None)
        if current is None or not current.layers:
            return self._local.graph.num_nodes
        position = sum(len(one) for one in self._network.segments[: segment + 1])
        return len(current.layers[position - 1].targets_T) if position <= len(current.layers) else 0

    # --- Algorithm 3 ---

    @remote(caller=SERVER, at_most="num_inferences")
    @in_turn
    async def infer_lowest(self, targets: messages.Targets) -> messages.Representation | Masked:
        """Sample the lowest segment, unless the graph is used whole, and compute it."""
        heard = self._hear("infer_lowest", targets)
        self._check_stamp(targets.stamp)
        await self._build(targets)
        if self._goes_in_chunks:
            return self._send(0, Inferred(await self._in_chunks(0, None)), heard)
        part, self._round.h0 = await self._run("segment", algorithm.infer_lowest, segments=[0])
        return self._send(0, part, heard)

    @property
    def _goes_in_chunks(self) -> bool:
        """Whether this is an evaluation of a network that is trained on batches, on more nodes than go at a time."""
        config = self._config
        is_large = self._local.graph.num_nodes > config.evaluation_nodes
        return self._round.stamp.scoring and config.batch_size is not None and is_large

    async def _in_chunks(self, index: int, h_NW: Tensor | None) -> Tensor:
        """Compute a segment on all nodes, as many at a time as the settings say."""
        network, local, current = self._round.network, self._local, self._round
        if index == 0 and network.backbone == "gcnii":
            arguments = (local, self._config.evaluation_nodes, self._dtype, self._device)
            work = Work("segment", 2.0 * local.features_NF.size * network.hidden_size)
            h_NW = await self.compute(algorithm.whole_h0, self.parameters, network, *arguments, work=work)
            current.h0 = Inferred(h_NW)
        h0_ND = current.h0 and current.h0.values
        arguments_ = (local, index, h_NW, h0_ND, self._config.evaluation_nodes, self._dtype, self._device)
        work = Work("segment", algorithm.whole_operations(network, local, index))
        return await self.compute(algorithm.whole_segment, self.parameters, network, *arguments_, work=work)

    async def _build(self, targets: messages.Targets) -> None:
        """Make the batch of the round, of the whole graph in an evaluation."""
        stamp = targets.stamp
        seed = self._seed(f"dropout {stamp.round}/{stamp.attempt}")
        if stamp.scoring or self._config.batch_size is None:
            self._begin(stamp)
            if self._goes_in_chunks:
                return
            if self._full is None:  # part of loading, put off until it is needed: it has no cost of its own
                self._full = algorithm.full_batch(self._local, self._network.num_layers, self._dtype, self._device)
            self._round.batch = replace(self._full, seed=seed)
            return
        await self._sample(targets)
        layers = self._round.layers
        work = Work("build", sum(len(layer.rows_E) for layer in layers))
        arguments = (self._local, layers, self._dtype, seed, self._device)
        self._round.batch = await self.compute(algorithm.make_batch, *arguments, work=work)

    @remote(caller=SERVER, at_most="num_passes")
    @in_turn
    async def infer(self, aggregated: messages.Aggregated) -> messages.Representation | Masked:
        """Compute the segment above an aggregation."""
        heard = self._hear("infer", aggregated)
        current, index = self._round, aggregated.segment + 1
        self._take_aggregated(aggregated, is_last=False)
        if self._goes_in_chunks:
            part = await self._in_chunks(index, current.aggregated[-1])
            current.aggregated[-1] = part.new_empty(0)  # no update follows an evaluation
            return self._send(index, Inferred(part), heard)
        arguments = (index, current.aggregated[-1], current.local[-1], current.h0)
        inferred = await self._run("segment", algorithm.infer_segment, *arguments, segments=[index])
        return self._send(index, inferred, heard)

    def _take_aggregated(self, aggregated: messages.Aggregated, *, is_last: bool) -> Tensor:
        """Take the next aggregate of the round; no other endpoint than its own acts upon it.

        Raises:
            Refused: it is not the next one, or the last one is not to come here, or another one is.
        """
        current, last = self._round, len(self._network.segments) - 1
        # a segment is counted by its number, and -1 is the topmost one too
        is_next = aggregated.segment == len(current.aggregated) == len(current.local) - 1
        if not is_next or (aggregated.segment == last) != is_last:
            raise Refused(self.caller, f"sends {self.name} the aggregate of segment {aggregated.segment} out of turn")
        current.aggregated.append(to_device(aggregated.values, self._device))
        return current.aggregated[-1]

    def _send(self, segment: int, part: Inferred, heard: bytes) -> messages.Representation | Masked:
        """Keep the own part as it is; what leaves is noised and, under masks, a part of a noised sum."""
        self._release("the representation", segment)
        self._round.local.append(Inferred(part.values.new_empty(0)) if self._goes_in_chunks else part)
        hops = len(self._network.segments[segment])
        return self._protected(segment, hops, on_host(part.values), heard, first=self.moments.step == 0)

    def _release(self, what: str, segment: int) -> None:
        """Count what leaves of a segment in this round, in its training and to measure it each, by any order."""
        config, stamp = self._config, self._round.stamp
        named = f"of segment {segment}{' to be measured' if stamp.scoring else ''}"
        times = 1 if config.on_party_loss == "stop" else config.num_clients  # without whom was lost, again
        self.release(what, named, at_most=times, round=stamp.round, last_round=config.num_rounds)

    @property
    def _is_masked(self) -> bool:
        return self._config.secure_aggregation

    def _id_of(self, what: str) -> str:
        return f"{self.num_changes}/{what}"

    def _changed(self, parameters: Parameters) -> None:
        """Take other parameters: what was summed under the ones before will not be summed again."""
        self.parameters = parameters
        self.num_changes += 1
        self.forget_values()

    # --- mode joint: the server sends back gradients of the mean loss ---

    @remote(caller=SERVER, at_most="num_joint_rounds")
    @in_turn
    async def head_gradient(self, aggregated: messages.Aggregated) -> messages.GradientPart | Masked:
        """Take the last aggregate and return the own part of the gradient there."""
        heard = self._hear("head_gradient", aggregated)
        last = self._take_aggregated(aggregated, is_last=True)
        _, gradient = await self._run("gradient", algorithm.head_gradient, last)
        return self._send_gradient(aggregated.segment, gradient, heard)

    @remote(caller=SERVER, at_most=lambda config: config.num_joint_rounds * (len(config.resolved_layers) - 1))
    @in_turn
    async def pass_gradient(self, share: messages.GradientShare) -> messages.GradientPart | Masked:
        """Carry what reached an aggregation's own part back to the aggregation below."""
        heard = self._hear("pass_gradient", share)
        received, index = self._take_share(share, is_last=False), share.segment
        arguments = (index, self._round.aggregated[index - 1], received)
        gradient = await self._run("gradient", algorithm.segment_gradient, *arguments, segments=[index])
        return self._send_gradient(index - 1, gradient, heard)

    def _take_share(self, share: messages.GradientShare, *, is_last: bool) -> Tensor:
        current, received = self._round, to_device(share.values, self._device)
        due = len(self._network.segments) - 1 - len(current.crosses)
        if current.local_gradient is None or share.segment != due or (due == 0) != is_last:
            raise Refused(self.caller, f"sends {self.name} the gradient of segment {share.segment} out of turn")
        current.crosses.insert(0, algorithm.cross_gradient(received, current.local_gradient, current.network))
        return received

    def _send_gradient(self, segment: int, gradient: Tensor, heard: bytes) -> messages.GradientPart | Masked:
        self._release("the gradient", segment)
        self._round.local_gradient = gradient
        values: Floats = on_host(gradient)
        return self._masked(f"backward/{segment}", values, heard) if self._is_masked else messages.GradientPart(values)

    # --- Algorithm 4 ---

    @remote(caller=SERVER, at_most="num_rounds")
    @in_turn
    async def update(self, last: messages.Aggregated | messages.GradientShare) -> messages.Report | Masked:
        """Do the Q local updates on what the round has left; the message is the last one that they need."""
        heard = self._hear("update", last)
        current, is_share = self._round, isinstance(last, messages.GradientShare)
        if is_share != (self._config.mode == "joint"):
            raise Refused(self.caller, f"lets {self.name} update on a {type(last).__name__}, which its mode does not")
        if isinstance(last, messages.GradientShare):
            self._take_share(last, is_last=True)
        else:
            self._take_aggregated(last, is_last=True)
        losses = await self._update(self._stale(), current.crosses or None)
        if not self._is_masked:
            return messages.Report(losses[0], losses[-1])
        values = np.minimum([losses[0], losses[-1]], self._config.secure_range)  # a loss beyond it counts as it
        return self._masked("losses", values, heard)

    @remote(caller=SERVER, at_most=lambda config: 0 if config.on_party_loss == "stop" else config.num_inferences)
    @in_turn
    async def advance(self) -> None:
        """Do Q more updates on the last joint inference: the others are fewer now, and no value is summed twice.

        Who has lost a member after a sum could else be told apart by the next sum over the same values.
        """
        self._hear("advance")
        self._keep_whole()
        if not hasattr(self, "_whole"):
            raise SecureSumError(f"{self.name}: was resumed after a loss, and has no joint inference to go on with")
        self._round = self._whole
        await self._update(self._stale(), self._round.crosses or None)

    def _keep_whole(self) -> None:
        """Remember the round under way as the last joint inference if it went through all segments."""
        current: Round | None = getattr(self, "_round", None)
        if current is not None and len(current.aggregated) == len(self._network.segments):
            self._whole = current

    def _stale(self) -> list[Stale]:
        current = self._round
        return [algorithm.extract(h, local.values) for h, local in zip(current.aggregated, current.local, strict=True)]

    async def _update(self, stale: Sequence[Stale], crosses: Sequence[Tensor] | None) -> list[float]:
        config, times = self._config, self._config.num_local_updates
        optimizer = self._optimizer.scaled(config.rate_schedule.at(self._round.stamp.round - 1, config.num_rounds))
        inferred = self._round.local if self._round.traced else []
        arguments = (optimizer, self.moments, stale, crosses, times, inferred)
        everything = range(len(self._network.segments))
        parameters, self.moments, losses = await self._run(
            "backward" if inferred else "update", algorithm.local_updates, *arguments, segments=everything, times=times
        )
        self._round.traced = None
        self._changed(parameters)
        if not np.isfinite(losses).all():
            remedy = Remedy("learning_rate", config.step_size)
            raise remedy.error(self._round.stamp.round, f"{self.name}'s loss", losses[-1])
        return losses

    @remote(caller=SERVER, at_most="num_averages")
    @in_turn
    async def classifier(self, stamp: messages.Stamp) -> messages.Classifier | Masked:
        """Give the classifier to be averaged."""
        heard = self._hear("classifier", stamp)
        values = np.concatenate([on_host(self.parameters[name]).reshape(-1) for name in self._classifier_names])
        return self._masked("classifier", values, heard) if self._is_masked else messages.Classifier(values)

    @remote(caller=SERVER, at_most="num_averages")
    @in_turn
    async def take_classifier(self, averaged: messages.AveragedClassifier) -> None:
        """Go on with the averaged classifier."""
        self._hear("take_classifier", averaged)
        values, start, changed = to_device(averaged.values, self._device), 0, dict(self.parameters)
        for name in self._classifier_names:
            old = self.parameters[name]
            changed[name] = values[start : start + old.numel()].reshape(old.shape).to(old.dtype)
            start += old.numel()
        self.parameters = changed  # no layer below is another: what was summed stays summed

    @property
    def _classifier_names(self) -> list[str]:
        return [name for name in self.parameters if name.startswith("classifier.")]

    # --- evaluation, and what follows it ---

    @remote(caller=SERVER, at_most="num_evaluations")
    @in_turn
    async def predict(self, aggregated: messages.Aggregated) -> messages.Prediction | Masked:
        """Classify the validation and test nodes from the last aggregate of an evaluation."""
        heard = self._hear("predict", aggregated)
        self._check_score("predict")
        last = self._take_aggregated(aggregated, is_last=True)
        logits = await self.compute(algorithm.classify, self.parameters, last, work=Work("gradient", 0))
        values = self._scored(logits)
        accuracy = (await self._score(values)).test.get("accuracy", math.nan)
        if not self._is_masked:
            return messages.Prediction(values, accuracy)
        return self._masked("logits", np.append(values, np.nan_to_num(accuracy)), heard)

    @remote(caller=SERVER, at_most="num_evaluations")
    async def score(self, averaged: messages.AveragedLogits) -> messages.Scores:
        """Compare the averaged predictions with the labels; all know these, and the first client is asked.

        Raises:
            Refused: it is another one, whose answers would be more than are approved.
        """
        if self.name != (first := self.clients[0]) and self._config.on_party_loss == "stop":
            raise Refused(self.caller, f"lets {self.name} score predictions; approved: {first} does")
        self._check_score("score")
        return await self._score(averaged.values)

    def _check_score(self, endpoint: str) -> None:
        """Check that an accuracy is due: of predictions that somebody chooses freely, each one tells of the labels."""
        config, stamp = self._config, self._round.stamp
        is_due = stamp.round == config.num_rounds or stamp.round % config.evaluate_every == 0
        if not (stamp.scoring and is_due and 1 <= stamp.round <= config.num_rounds):
            text = f"calls {self.name}.{endpoint} in round {stamp.round}, which no evaluation is due in"
            raise Refused(self.caller, text)
        num_members = len(set(stamp.members))
        round_, fewest = self._answered.get(endpoint, (0, 0))
        if stamp.round < round_ or (stamp.round == round_ and num_members >= fewest):
            raise Refused(self.caller, f"calls {self.name}.{endpoint} again in round {stamp.round}, which was answered")
        self._answered[endpoint] = (stamp.round, num_members)

    def _scored(self, logits: Tensor) -> Floats:
        nodes = self._local.nodes
        return on_host(logits[to_device(np.concatenate([nodes.validation, nodes.test]), self._device)])

    async def _score(self, values: Floats) -> messages.Scores:
        return await self.compute(scores_of, self._local.nodes, values, work=Work("gradient", 0))

    @remote(caller=SERVER, at_most="num_evaluations")
    @in_turn
    async def remember(self) -> None:
        """Keep the present parameters as the best so far, which predictions are made with."""
        self._hear("remember")
        self.best = {name: value.clone() for name, value in self.parameters.items()}

    @remote(caller=SERVER, once=True)
    async def account(self) -> None:
        """Write the lines of the privacy ledger."""
        self._record(privacy.records(self._config, self.party, self.releases))

    async def _run(
        self, kind: str, function: Callable[..., T], *arguments: Any, segments: Sequence[int] = (), times: int = 1
    ) -> T:
        """Compute a function of the round's network and batch, which goes `times` through these segments."""
        network, batch = self._round.network, self._round.batch
        assert batch is not None
        layers = [layer for segment in segments for layer in network.segments[segment]]
        work = Work(kind, times * algorithm.forward_operations(network, batch, layers))
        parameters = self.parameters if kind == "gradient" else self._round.traced or self.parameters
        return await self.compute(function, parameters, network, batch, *arguments, work=work)


def scores_of(nodes: NodeSplit, values: Floats) -> messages.Scores:
    """Return the metrics of logits: those of the validation nodes first, then those of the test nodes."""
    border = len(nodes.validation)
    parts = ((nodes.validation, values[:border]), (nodes.test, values[border:]))
    return messages.Scores(
        *(
            known(task_metrics("multiclass", nodes.labels_N[chosen], rows)) if len(chosen) else {}
            for chosen, rows in parts
        )
    )
