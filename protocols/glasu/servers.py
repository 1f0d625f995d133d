"""The aggregation server: it has no parameters, no data and no torch; it asks, adds up, sends back.

    sample ─▶ infer ─▶ (mode joint: backpropagate) ─▶ update, for all members at once and in this order.

A member whose process is lost, or who gives no answer in time, is named and the run stops; under
``on_party_loss=continue`` it is left out and the round begins anew without its block, unless only reports of local
updates were still to come. Results are reduced in the order of the clients' names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np

from fedactors.errors import BadInput, CallTimeout, PartyError, PartyFailed, PartyLost
from fedactors.privacy.secure_aggregation import FixedPoint, Reveal, unmasked_sum
from fedactors.roles import Server
from fedactors.runtime.base import Work
from protocols.glasu import sampling
from protocols.glasu.aggregation import FRACTION_BITS, Floats, add, average, block_of, concatenate
from protocols.glasu.config import GlasuConfig
from protocols.glasu.messages import (
    Aggregated,
    AveragedClassifier,
    AveragedLogits,
    GradientShare,
    Introduction,
    Masked,
    PublicKeys,
    Report,
    RevealRequest,
    Stamp,
    Targets,
)
from protocols.glasu.sampling import IntArray

if TYPE_CHECKING:
    from protocols.glasu.actors import GraphClient

T = TypeVar("T")


class _Gone(Exception):
    """Members that were lost while they were asked, and what the others answered."""

    def __init__(self, losses: Mapping[int, PartyError], answers: Mapping[int, Any]) -> None:
        super().__init__(", ".join(loss.party for loss in losses.values()))
        self.losses = dict(losses)
        self.answers = dict(answers)


class AggregationServer(Server):
    """See the module.

    Args:
        config: the run's settings.
        names: the clients' names, in order.
    """

    state: ClassVar[tuple[str, ...]] = ("members", "attempt", "introductions")

    def __init__(self, config: GlasuConfig, names: Sequence[str]) -> None:
        self._config = config
        self._names = tuple(names)
        self.members = list(range(len(names)))
        self.attempt = 0
        self.introductions: dict[int, Introduction] = {}
        self._agreed: list[str] = []
        self._last_segment = len(config.resolved_layers) - 1

    async def open(self) -> None:
        """Make the clients' handles."""
        self._clients = [cast("GraphClient", self.peer(name, object)) for name in self._names]

    # --- before the first round ---

    async def gather_introductions(self) -> tuple[str, ...]:
        """Ask every client for what the server must know, pass the public keys on; return the clients' remarks."""
        self.introductions = await self._ask_or_drop(lambda client: client.introduce())
        found = [self.introductions[member] for member in self.members]
        for one, name in zip(found, self._present(), strict=True):
            if one.num_nodes != found[0].num_nodes or not np.array_equal(one.train, found[0].train):
                raise BadInput(
                    f"nodes of {name}: {one.num_nodes} with {len(one.train)} for training are not allowed: all clients "
                    f"know the same nodes, {self._present()[0]} has {found[0].num_nodes} with {len(found[0].train)}"
                )
        await self._exchange_keys()
        return tuple(dict.fromkeys(remark for one in found for remark in one.remarks))

    async def rejoin(self) -> None:
        """Take a run up again: under secure aggregation with fresh keys, for the old ones are in no checkpoint."""
        if self._config.secure_aggregation:
            await self.gather_introductions()

    async def _exchange_keys(self) -> None:
        if not self._config.secure_aggregation:
            return
        if len(self.members) < 3:
            raise PartyLost(self._names[self.members[0]], "too few clients are left: secure aggregation needs three")
        self._agreed = self._present()
        keys = {self._names[member]: self.introductions[member].public_key for member in self.members}
        await self._ask_or_drop(lambda client: client.agree(PublicKeys(keys)))

    # --- one round ---

    async def train_round(self, round_index: int) -> dict[str, float]:
        """Do one round of Algorithm 1 and return the mean losses before the first and the last local update."""
        return await self._persist(lambda: self._train_once(self._stamp(round_index, scoring=False)))

    async def _train_once(self, stamp: Stamp) -> dict[str, float]:
        targets = await self._sample(stamp)
        aggregated = await self._infer(stamp, targets)
        if self._config.mode == "joint":
            reports = await self._update(await self._backpropagate(aggregated))
        else:
            reports = await self._update(dict.fromkeys(self.members, aggregated))
        if self._config.average_classifiers:
            await self._persist(lambda: self._average_classifiers(self._stamp(stamp.round, scoring=False)))
        found = [reports[member] for member in sorted(reports)]
        losses = {"loss": [one.first_loss for one in found], "last_loss": [one.last_loss for one in found]}
        return {name: sum(values) / len(values) for name, values in losses.items()} | {"num_members": len(found)}

    async def _sample(self, stamp: Stamp) -> IntArray:
        """Algorithm 2: from S[L] down, every level that an aggregation writes is the union of the index sets."""
        if self._config.batch_size is None:
            return np.empty(0, dtype=np.int64)
        rng = self.rng(f"batch {stamp.round}/{stamp.attempt}")
        train = self.introductions[self.members[0]].train
        nodes = sampling.choose_batch(train, self._config.batch_size, rng)
        for segment in range(self._last_segment, 0, -1):
            targets = Targets(stamp, segment, nodes)
            sets = await self._ask(lambda client, targets=targets: client.sample(targets))
            parts = [sets[member].nodes for member in self.members]
            work = Work("union", sum(len(part) for part in parts))
            nodes = await self.compute(sampling.union, parts, work=work)
        return nodes

    async def _infer(self, stamp: Stamp, targets: IntArray) -> Aggregated:
        """Algorithm 3: one exchange for each aggregation layer; the last aggregate is still to be sent."""
        lowest = Targets(stamp, 0, targets)
        parts = await self._ask(lambda client: client.infer_lowest(lowest))
        for segment in range(self._last_segment):
            aggregated = Aggregated(stamp, segment, await self._aggregate(stamp, f"forward/{segment}", parts))
            parts = await self._ask(lambda client, aggregated=aggregated: client.infer(aggregated))
        last = self._last_segment
        return Aggregated(stamp, last, await self._aggregate(stamp, f"forward/{last}", parts))

    async def _backpropagate(self, aggregated: Aggregated) -> dict[int, GradientShare]:
        """Mode joint: sum the clients' gradients at every aggregation, from the last down, and send the shares back."""
        stamp = aggregated.stamp
        parts = await self._ask(lambda client: client.head_gradient(aggregated))
        for segment in range(self._last_segment, -1, -1):
            total = await self._sum(stamp, f"backward/{segment}", parts)
            shares = {member: GradientShare(stamp, segment, self._share_of(total, member)) for member in self.members}
            if segment == 0:
                return shares
            parts = await self._ask(lambda client, share: client.pass_gradient(share), shares)
        raise AssertionError("the loop returns at segment 0")

    def _share_of(self, total_SW: Floats, member: int) -> Floats:
        if self._config.aggregation == "average":
            return average(total_SW, len(self.members))
        return block_of(total_SW, member, self._config.hidden_size)

    async def _update(self, messages: Mapping[int, Aggregated | GradientShare]) -> dict[int, Report]:
        """Algorithm 4 at every client; who is lost now has not held up the others, whose updates stand."""
        return await self._ask_or_drop(lambda client, message: client.update(message), messages)

    async def _average_classifiers(self, stamp: Stamp) -> None:
        parts = await self._ask(lambda client: client.classifier(stamp))
        averaged = AveragedClassifier(stamp, average(await self._sum(stamp, "classifier", parts), len(parts)))
        await self._ask_or_drop(lambda client: client.take_classifier(averaged))

    # --- evaluation ---

    async def evaluate(self, round_index: int) -> dict[str, float]:
        """Infer on the whole graph; return accuracies of the averaged logits and the mean and least of the clients'."""
        return await self._persist(lambda: self._evaluate_once(self._stamp(round_index, scoring=True)))

    async def _evaluate_once(self, stamp: Stamp) -> dict[str, float]:
        aggregated = await self._infer(stamp, np.empty(0, dtype=np.int64))
        predictions = await self._ask(lambda client: client.predict(aggregated))
        total = await self._sum(stamp, "logits", {m: one.part for m, one in predictions.items()})
        averaged = AveragedLogits(stamp, average(total, len(predictions)))
        first = self.members[:1]
        scores = (await self._ask(lambda client: client.score(averaged), members=first))[first[0]]
        each = [predictions[member].scores for member in self.members]
        return {
            "validation_accuracy": scores.validation,
            "test_accuracy": scores.test,
            "mean_client_accuracy": sum(one.test for one in each) / len(each),
            "least_client_accuracy": min(one.test for one in each),
        }

    async def remember(self) -> None:
        """Let every client keep its present parameters as the best so far."""
        await self._ask_or_drop(lambda client: client.remember())

    async def account(self) -> dict[str, Any]:
        """Let every client write its lines of the privacy ledger; return the budgets by name."""
        found = await self._ask_or_drop(lambda client: client.account())
        return {self._names[member]: found[member] for member in sorted(found)}

    # --- sums, masked or not ---

    async def _aggregate(self, stamp: Stamp, what: str, parts: Mapping[int, Any]) -> Floats:
        if self._config.aggregation == "concatenation":
            values = {member: part.values for member, part in parts.items()}
            work = Work("aggregate", sum(value.size for value in values.values()))
            return await self.compute(concatenate, values, len(self._names), work=work)
        return average(await self._sum(stamp, what, parts), len(parts))

    async def _sum(self, stamp: Stamp, what: str, parts: Mapping[int, Any]) -> Floats:
        """Return the sum of the members' arrays, in the order of names; masks are removed with the members' help."""
        members = sorted(parts)
        first = parts[members[0]]
        if not isinstance(first, Masked):
            values = [parts[member].values for member in members]
            return await self.compute(add, values, work=Work("aggregate", sum(value.size for value in values)))
        context = f"{stamp.round}/{stamp.attempt}/{int(stamp.scoring)}/{what}".encode()
        request = RevealRequest(context, tuple(self._names[member] for member in members))
        found = await self._ask(lambda client: client.reveal(request), members=members)
        reveals = {
            self._names[member]: Reveal(own_seed=one.own_seed, dropped_seeds=one.dropped_seeds)
            for member, one in found.items()
        }
        masked = {self._names[member]: parts[member].words for member in members}
        point = FixedPoint(fraction_bits=FRACTION_BITS, num_clients=self._config.num_networks)
        work = Work("unmask", first.words.size * len(members))
        total = await self.compute(unmasked_sum, masked, reveals, self._agreed, point, work=work)
        return total.reshape(first.shape).astype(np.float64 if self._config.float64 else np.float32)

    # --- asking, and what follows a loss ---

    def _stamp(self, round_index: int, *, scoring: bool) -> Stamp:
        return Stamp(round_index, self.attempt, scoring, tuple(self.members))

    def _present(self) -> list[str]:
        return [self._names[member] for member in self.members]

    async def _persist(self, once: Callable[[], Awaitable[T]]) -> T:
        """Do a round until nobody is lost in it."""
        while True:
            try:
                return await once()
            except _Gone as gone:
                await self._drop(gone.losses)
                self.attempt += 1

    async def _ask(
        self,
        call: Callable[..., Awaitable[T]],
        messages: Mapping[int, Any] | None = None,
        members: Sequence[int] | None = None,
    ) -> dict[int, T]:
        """Ask members (all of them by default) at once and return their answers, in the order of names."""
        asked = list(self.members if members is None else members)
        with self.span("wait", "clients"):
            answers = await asyncio.gather(*(self._one(call, m, messages) for m in asked))
        losses = {m: one for m, one in zip(asked, answers, strict=True) if isinstance(one, PartyError)}
        found = {m: one for m, one in zip(asked, answers, strict=True) if m not in losses}
        if losses:
            raise _Gone(losses, found)
        return found

    async def _one(self, call: Callable[..., Awaitable[T]], member: int, messages: Mapping[int, Any] | None) -> Any:
        name, seconds = self._names[member], self._config.client_timeout
        try:
            async with self.clock.timeout(seconds):
                client = self._clients[member]
                return await (call(client) if messages is None else call(client, messages[member]))
        except TimeoutError:
            return CallTimeout(name, f"it gave no answer within {seconds:g} s")
        except PartyFailed:
            raise
        except PartyError as loss:
            return loss

    async def _ask_or_drop(
        self, call: Callable[..., Awaitable[T]], messages: Mapping[int, Any] | None = None
    ) -> dict[int, T]:
        """Ask all members; who is lost is dropped, and the answers of the others are returned."""
        answers: dict[int, T] = {}
        while True:
            try:
                left = [member for member in self.members if member not in answers]
                answers.update(await self._ask(call, messages, left))
            except _Gone as gone:
                answers.update(gone.answers)
                await self._drop(gone.losses)
            else:
                return answers

    async def _drop(self, losses: Mapping[int, PartyError]) -> None:
        """Go on without the lost members where the run may, else raise the first loss."""
        if self._config.on_party_loss == "stop" or len(losses) == len(self.members):
            raise next(iter(losses.values()))
        self.members = [member for member in self.members if member not in losses]
        if self.introductions:
            await self._exchange_keys()
