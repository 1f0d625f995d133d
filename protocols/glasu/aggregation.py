"""The aggregation server, which has no parameters and needs numpy only; Agg and its backward pass.

    driver ──round──▶ server ◀─┬─▶ client 1
                               ├─▶ ...       each exchange asks all members at once and waits for all of them
                               └─▶ client M

Who is lost, or does not answer in time, is dropped or ends the run (`Parties`): on_party_loss decides. Before the
first local update a round that lost a client begins anew under another attempt; after it the others' updates stand.
With secure aggregation it goes on without the lost client instead: its sums are completed by the others, and none is
done a second time among fewer. Where that would happen (after an evaluation that lost a client), parameters move first.

Shapes: S nodes of an index set, D hidden size, W width after Agg (D, or M * D for concatenation), M clients.
Everything goes by name, in the order of the clients' names. A client that is lost leaves its place empty: the average
is then over those who are left, a concatenation holds zeros there.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from fedactors.actors.actor import Server
from fedactors.actors.context import Work
from fedactors.actors.groups import ActorGroup, Incomplete
from fedactors.actors.remote import DRIVER, remote
from fedactors.errors import BadInput, PartyLost, Refused
from fedactors.protocols.glasu import messages, privacy, sampling
from fedactors.protocols.glasu.config import GlasuConfig
from fedactors.protocols.glasu.messages import Floats, GradientPart, Index, Representation
from fedactors.secure_sums.actors import SecureSums
from fedactors.secure_sums.messages import Masked

if TYPE_CHECKING:
    from fedactors.protocols.glasu.actors import GraphClient

M = TypeVar("M")
T = TypeVar("T")
Losses = tuple[float, float]
"""Mean losses before the first and the last local update."""


def add(parts_SD: Sequence[Floats]) -> Floats:
    """Return the sum of arrays, in their order.

    Raises:
        BadInput: they have different shapes, whose sum may be larger than all of them by any factor.
    """
    if len(shapes := dict.fromkeys(part.shape for part in parts_SD)) > 1:
        raise BadInput(f"clients send arrays of different shapes: {', '.join(map(str, shapes))}")
    total = parts_SD[0]
    for part in parts_SD[1:]:
        total = total + part
    return total


def average(total_SD: Floats, num_parts: int) -> Floats:
    """Return the average (Section 2.1) from a sum, which is all that secure aggregation shows."""
    mean: Floats = total_SD / total_SD.dtype.type(num_parts)
    return mean


def concatenate(parts_SD: Mapping[str, Floats], names: Sequence[str]) -> Floats:
    """Return the clients' representations side by side (Section 2.1); zeros where a client's part is missing."""
    empty = np.zeros_like(next(iter(parts_SD.values())))
    return np.concatenate([parts_SD.get(name, empty) for name in names], axis=1)


def block_of(gradient_SW: Floats, position: int, hidden_size: int) -> Floats:
    """Return a client's block of the gradient of a concatenation (Section 2.1)."""
    start = position * hidden_size
    return np.ascontiguousarray(gradient_SW[:, start : start + hidden_size])


class AggregationServer(Server):
    """See the module."""

    state: ClassVar[tuple[str, ...]] = ("clients", "introductions", "summed")

    def __init__(self, config: GlasuConfig, names: Sequence[str], run_seed: int) -> None:
        self._config, self._run_seed = config, run_seed
        self._names = tuple(names)
        self.clients: ActorGroup[GraphClient] = ActorGroup(
            self,
            self._names,
            on_loss="drop" if config.on_party_loss == "continue" else "stop",
            timeout=config.client_timeout,
            when_dropped=self._check_members,
            label="clients",
        )
        self.summed: dict[str, tuple[str, ...]] = {}
        """What was summed since the parameters changed, and whose."""
        self._sums = SecureSums(self, self.clients)
        self.introductions: dict[str, messages.Introduction] = {}
        self._last = len(config.resolved_layers) - 1
        """The topmost segment."""
        self._num_targets: dict[int, int] = {}
        """Nodes at which each segment's representation is, in the round under way."""
        self._segment = 0
        """Whose representations, or gradients, are asked for."""

    def known_sizes(self, message: Any, sender: str) -> dict[str, int]:
        """Return the widths of the network, and how many nodes and classes there are."""
        width, is_joined = self._config.hidden_size, self._config.aggregation == "concatenation"
        sizes = {"width": width, "joined width": width * (len(self._names) if is_joined else 1)}
        if self.introductions:
            sizes["classes"] = next(iter(self.introductions.values())).num_classes
        if isinstance(message, (Representation, GradientPart)):
            sizes["nodes"] = self._num_targets[self._segment]
        return sizes

    # --- before the first round ---

    @remote(caller=DRIVER, unbounded="its clients always say the same")
    async def prepare(self) -> messages.Remarks:
        """Ask every client for what the server must know."""
        if self._config.secure_aggregation:
            await self._sums.prepare(self._num_sums)
        self.introductions = {}
        self.introductions = found = await self.clients.ask(lambda client: client.introduce())
        first = found[self.clients.members[0]]
        for name, one in found.items():
            if one.num_nodes != first.num_nodes or not np.array_equal(one.train, first.train):
                raise BadInput(
                    f"nodes of {name}: {one.num_nodes} with {len(one.train)} for training are not allowed: all clients "
                    f"know the same nodes, {next(iter(found))} has {first.num_nodes} with {len(first.train)}"
                )
            if one.num_classes != first.num_classes:
                raise BadInput(
                    f"classes of {name}: {one.num_classes} are not allowed: all clients know the same labels, "
                    f"{next(iter(found))} has {first.num_classes}"
                )
            others = sorted({*one.class_names} ^ {*first.class_names})
            if others or one.class_names != first.class_names:
                raise BadInput(
                    f"classes of {name}: others than at {next(iter(found))} are not allowed: all clients know the same "
                    f"labels{f', and {others[0]} is at one of the two only' if others else ''}"
                )
        return messages.Remarks(tuple(dict.fromkeys(remark for one in found.values() for remark in one.remarks)))

    @property
    def _num_sums(self) -> int:
        """How many sums a round or an evaluation has at most."""
        return 2 * (self._last + 1) + 2

    async def _check_members(self, lost: Sequence[str]) -> None:
        """Go on without lost clients only if those who are left can complete sums."""
        if self._config.secure_aggregation:
            self._sums.check_members()

    async def _begin(self) -> None:
        """Make ready for the masked sums of a round: keys, and values that were not summed among others before."""
        if not self._config.secure_aggregation:
            return
        if set(self.summed.values()) - {tuple(sorted(self.clients.members))}:
            await self.clients.ask(lambda client: client.advance())
            self.summed = {}
        await self._sums.prepare(self._num_sums)

    # --- one round ---

    @remote(caller=DRIVER, at_most="num_rounds", of="round")
    async def train(self, order: messages.RoundOrder) -> messages.Progress:
        """Do one round of Algorithm 1."""
        return await self.clients.repeat(lambda: self._train(order.round))

    async def _train(self, number: int) -> messages.Progress:
        await self._begin()
        stamp = self._stamp(number, scoring=False)
        targets = await self._sample(stamp)
        aggregated = await self._infer(stamp, targets)
        if self._config.mode == "joint":
            losses, num_members = await self._update(await self._backpropagate(aggregated))
        else:
            losses, num_members = await self._update(dict.fromkeys(stamp.members, aggregated))
        if self._config.average_classifiers:
            await self.clients.repeat(lambda: self._average_classifiers(self._stamp(stamp.round, scoring=False)))
        return messages.Progress(*losses, num_members)

    async def _sample(self, stamp: messages.Stamp) -> Index:
        """Algorithm 2: from S[L] down, every level that an aggregation writes is the union of the index sets."""
        if self._config.batch_size is None:
            return np.empty(0, dtype=np.int64)
        introduced = self.introductions[stamp.members[0]]
        how = (self._config.batch_size, self._run_seed, stamp.round, stamp.attempt, self.name)
        nodes = sampling.batch_of(introduced.train, *how)
        self._num_targets[self._last] = len(nodes)
        for segment in range(self._last, 0, -1):
            sets = await self._tell(
                lambda client, targets: client.sample(targets), messages.Targets(stamp, segment, nodes)
            )
            for name, one in sets.items():
                sampling.check_sampled(name, one.nodes, introduced.num_nodes)
            parts = [one.nodes for one in sets.values()]
            nodes = await self.compute(sampling.union, parts, work=Work("union", sum(len(part) for part in parts)))
            self._num_targets[segment - 1] = len(nodes)
        return nodes

    async def _infer(self, stamp: messages.Stamp, targets: Index) -> messages.Aggregated:
        """Algorithm 3: one exchange for each aggregation layer; the last aggregate is still to be sent."""
        if stamp.scoring or self._config.batch_size is None:
            num_nodes = self.introductions[stamp.members[0]].num_nodes
            self._num_targets = dict.fromkeys(range(self._last + 1), num_nodes)
        self._segment = 0
        parts = await self._tell(
            lambda client, lowest: client.infer_lowest(lowest), messages.Targets(stamp, 0, targets)
        )
        for segment in range(self._last):
            aggregated = await self._aggregate(segment, parts)
            self._segment = segment + 1
            parts = await self._tell(lambda client, aggregated: client.infer(aggregated), aggregated)
        return await self._aggregate(self._last, parts)

    async def _aggregate(
        self, segment: int, parts: Mapping[str, messages.Representation | Masked]
    ) -> messages.Aggregated:
        if self._config.aggregation == "average":
            total = await self._sum(f"forward/{segment}", parts)
            return messages.Aggregated(segment, average(total, len(parts)))
        values = {name: part.values for name, part in parts.items() if isinstance(part, messages.Representation)}
        work = Work("aggregate", sum(value.size for value in values.values()))
        return messages.Aggregated(segment, await self.compute(concatenate, values, self._names, work=work))

    async def _backpropagate(self, aggregated: messages.Aggregated) -> dict[str, messages.GradientShare]:
        """Mode joint: sum the clients' gradients at every aggregation, from the last down, and send the shares back."""
        parts = await self._tell(lambda client, last: client.head_gradient(last), aggregated)
        shares = await self._shares(self._last, parts)
        for segment in range(self._last - 1, -1, -1):
            self._segment = segment
            parts = await self._tell_each(lambda client, share: client.pass_gradient(share), shares)
            shares = await self._shares(segment, parts)
        return shares

    async def _shares(
        self, segment: int, parts: Mapping[str, messages.GradientPart | Masked]
    ) -> dict[str, messages.GradientShare]:
        total = await self._sum(f"backward/{segment}", parts)
        if self._config.aggregation == "average":
            return dict.fromkeys(parts, messages.GradientShare(segment, average(total, len(parts))))
        width = self._config.hidden_size
        return {
            name: messages.GradientShare(segment, block_of(total, self._names.index(name), width)) for name in parts
        }

    async def _update(self, sent: Mapping[str, messages.Aggregated | messages.GradientShare]) -> tuple[Losses, int]:
        """Algorithm 4 at every client; who is lost now has not held up the others, whose updates stand."""
        reports = await self.clients.ask_each(lambda client, last: client.update(last), sent)
        self.summed = {}
        losses = await self._losses(reports)
        self.summed = {}  # losses are summed once
        return losses, len(reports)

    async def _losses(self, reports: Mapping[str, messages.Report | Masked]) -> Losses:
        """Return the means of the clients' losses."""
        bare = [one for one in reports.values() if isinstance(one, messages.Report)]
        if len(bare) == len(reports) and not self._config.secure_aggregation:
            return mean([one.first_loss for one in bare]), mean([one.last_loss for one in bare])
        first, last = average(await self._sum("losses", reports), len(reports)).tolist()
        return first, last

    async def _average_classifiers(self, stamp: messages.Stamp) -> None:
        parts = await self._tell(lambda client, stamp: client.classifier(stamp), stamp)
        averaged = messages.AveragedClassifier(average(await self._sum("classifier", parts), len(parts)))
        await self.clients.ask(lambda client: client.take_classifier(averaged))

    # --- evaluation, and what follows it ---

    @remote(caller=DRIVER, at_most="num_rounds", of="round")
    async def evaluate(self, order: messages.RoundOrder) -> messages.Evaluation:
        """Infer on the whole graph and let the clients compare their own and the averaged logits with the labels."""
        return await self.clients.repeat(lambda: self._evaluate(order.round))

    async def _evaluate(self, number: int) -> messages.Evaluation:
        await self._begin()
        stamp = self._stamp(number, scoring=True)
        aggregated = await self._infer(stamp, np.empty(0, dtype=np.int64))
        predictions = await self._tell(lambda client, last: client.predict(last), aggregated)
        logits, mean_accuracy, least_accuracy = await self._predicted(predictions)
        averaged, scored = messages.AveragedLogits(logits), dict[str, messages.Scores]()
        while not scored:
            first = {self.clients.members[0]: averaged}
            scored = await self._tell_each(lambda client, logits: client.score(logits), first)
        (scores,) = scored.values()
        return messages.Evaluation(scores.validation, scores.test, mean_accuracy, least_accuracy)

    async def _predicted(self, predictions: Mapping[str, messages.Prediction | Masked]) -> tuple[Floats, float, float]:
        """Return the clients' mean logits, their mean accuracy, and the least one where it is known."""
        bare = [one for one in predictions.values() if isinstance(one, messages.Prediction)]
        if len(bare) == len(predictions) and not self._config.secure_aggregation:
            total = await self.compute(add, [one.values for one in bare], work=_work([one.values for one in bare]))
            each = [one.accuracy for one in bare]
            return average(total, len(bare)), mean(each), min(each)
        means = average(await self._sum("logits", predictions), len(predictions))
        num_classes = next(iter(self.introductions.values())).num_classes
        return means[:-1].reshape(-1, num_classes), float(means[-1]), math.nan

    @remote(caller=DRIVER, at_most="num_evaluations")
    async def remember(self) -> None:
        """Let every client keep its present parameters as the best so far."""
        await self.clients.ask(lambda client: client.remember())

    @remote(caller=DRIVER, once=True)
    async def account(self) -> None:
        """Let every client write its lines of the privacy ledger."""
        await self.clients.ask(lambda client: client.account())

    # --- what an exchange is made of ---

    def _stamp(self, round_index: int, *, scoring: bool) -> messages.Stamp:
        return messages.Stamp(round_index, self.clients.attempt, scoring, tuple(self.clients.members))

    async def _tell(self, call: Callable[[GraphClient, M], Awaitable[T]], message: M) -> dict[str, T]:
        """Send all members one message."""
        return await self._tell_each(call, dict.fromkeys(self.clients.members, message))

    async def _tell_each(self, call: Callable[[GraphClient, M], Awaitable[T]], sent: Mapping[str, M]) -> dict[str, T]:
        """Send each member its message; nothing is returned unless everybody has answered, or sums are masked."""
        return await self.clients.ask_each(call, sent, whole=not self._config.secure_aggregation)

    async def _sum(self, what: str, parts: Mapping[str, Any]) -> Floats:
        """Return the sum of the members' arrays, in the order of names; masks are removed with the members' help."""
        masked = {name: part for name, part in parts.items() if isinstance(part, Masked)}
        for name in parts:
            if (name in masked) != self._config.secure_aggregation:
                kind = "masked" if name in masked else "bare"
                raise Refused(name, f"its part of {what} is {kind}, which secure_aggregation does not allow")
        if not masked:
            values = [part.values for part in parts.values()]
            return await self.compute(add, values, work=_work(values))
        point = privacy.point_of(self._config, what.partition("/")[0])
        work = Work("unmask", sum(one.words.size for one in masked.values()))
        before, present = self.summed.get(what), tuple(sorted(masked))
        if (
            before is not None and before != present
        ):  # no client would: parameters move first, and the round is repeated
            lost = next(name for name in before if name not in present)
            raise Incomplete(PartyLost(lost, f"it was lost, and {what} was summed with it before"), self.clients)
        total, self.summed[what] = await self._sums.total(masked, point, work)
        return total.astype(np.float64 if self._config.float64 else np.float32)


def _work(values: Sequence[Floats]) -> Work:
    return Work("aggregate", sum(value.size for value in values))


def mean(values: Sequence[float]) -> float:
    """Return the mean, added up in the order of names."""
    return sum(values) / len(values)
