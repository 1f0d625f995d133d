"""The answers of a round of centers under masks: the exchange reads their weighted mean, and no center's own model.

    once     exchange --weigh----> center: Masked                    exchange --TotalWeight--> centers
    a round  center --RoundDone--> exchange, and when all are done   exchange --give_part----> center: Masked

What is summed is what a center's mean model is off the order's, times its share of all centers' weight, and that share.
The order's model is left out, which the exchange chooses: it could lie where the sum's grid rounds one center's as it
likes.
"""

from __future__ import annotations

import hashlib
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedactors.actors.actor import DataCenter
from fedactors.actors.context import Work
from fedactors.actors.groups import ActorGroup, OnLoss
from fedactors.actors.remote import DATA_CENTER, remote
from fedactors.errors import Refused
from fedactors.learning.optimizers import check_summed_steps
from fedactors.protocols.nebulafl.algorithm import Floats
from fedactors.protocols.nebulafl.baselines.hierarchical import center_method
from fedactors.protocols.nebulafl.config import NebulaFLConfig
from fedactors.protocols.nebulafl.containers import WHILE_IT_LASTS, RunMembers
from fedactors.protocols.nebulafl.messages import ClusterLogits, RoundDone, RoundOrder, RoundResult, TotalWeight
from fedactors.protocols.nebulafl.training import Trainings
from fedactors.secure_sums.actors import SecureSummand, SecureSums, as_bytes, check_fits, in_turn
from fedactors.secure_sums.messages import Masked
from fedactors.secure_sums.primitives import FixedPoint, count_point

UNMASKING = "unmasking"
"""Kind of work whose units are numbers under masks."""
_TIMEOUT = 600.0
"""Seconds within which a center must answer."""


def summand(result: RoundResult, start_P: Floats, share: float, limit: float) -> NDArray[np.float64]:
    """Return what a center adds to the sum (P + 1): the change of its model times its share of all weight, and it."""
    if not share:
        return np.zeros(result.parameters.size + 1)
    return np.append(share * (result.parameters.astype(np.float64) - start_P), share * limit)


def grains(result: RoundResult, start_P: Floats, share: float) -> NDArray[np.float64]:
    """Return of what each number of `summand` is a multiple: the last place of the parameter that was changed."""
    spacing_P = np.spacing(np.maximum(np.abs(start_P), np.abs(result.parameters)))
    return np.append(share * spacing_P.astype(np.float64), 0.0)


class SummingCenter(DataCenter, SecureSummand):
    """A center whose answer to a round may be added to the others' under masks."""

    state: ClassVar[tuple[str, ...]] = ("total_weight", "kept", "start", "ordered", *SecureSummand.state)
    trainings: Trainings

    def __init__(self, config: NebulaFLConfig, members: RunMembers) -> None:
        survives_loss = config.on_party_loss == "continue"
        SecureSummand.__init__(self, members.centers, members.exchange, survives_loss=survives_loss)
        self._is_summed, self._limit = config.secure_aggregation, config.secure_range
        self._num_active = config.active_per_center
        self._rule = None if config.is_noised else config.step_rule
        self._batch_size, self._num_epochs = config.batch_size, config.local_epochs
        self._answers = center_method(config)
        self.total_weight = 0.0
        """Of all centers' containers, under masks."""
        self.kept: RoundResult | None = None
        """The answer to the round that is over, which leaves under masks only."""
        self.start: Floats = np.zeros(0, np.float32)
        """The model that the round begins with."""
        self.ordered = b""
        """A digest of the order that the round follows, and so what is kept."""

    def follow(self, order: RoundOrder) -> None:
        """Take the order of a round under masks: what is kept of the one before leaves no more.

        Raises:
            Refused: it is not what follows from the settings: of no containers a center would add zeros.
        """
        if order.num_containers != self._num_active:
            said = f"orders {order.num_containers} containers of {self.name}"
            raise Refused(self.caller, f"{said}; approved: {self._num_active} (active_per_center)")
        self.heard("start_round", order)
        self.kept, self.start, self.ordered = None, order.parameters, hashlib.sha256(as_bytes(order)).digest()

    def leaving(self, answer: RoundResult | ClusterLogits) -> RoundResult | ClusterLogits | RoundDone:
        """Return what leaves when a round is over: the answer, or the word that it waits here to be summed."""
        if not self._is_summed or not isinstance(answer, RoundResult):
            return answer
        self.kept = answer
        return RoundDone(self.name, answer.round)

    @remote(caller=DATA_CENTER, only="adder", at_most=lambda config: int(config.secure_aggregation))
    @in_turn
    async def weigh(self) -> Masked:
        """Give the weight of all own containers, under masks."""
        heard, point = self.heard("weigh"), count_point(len(self.clients))
        if self._rule is not None:
            fewest = min(self.trainings.sizes)
            check_summed_steps(
                self._rule, self._num_epochs * -(-fewest // self._batch_size), f"a container of {self.name}"
            )
        weight = float(self._answers.total_weight(self.trainings.sizes))
        return self.masked(np.array([weight]), point, what="the weight", heard=heard)

    @remote(caller=DATA_CENTER, only="adder", at_most=lambda config: int(config.secure_aggregation))
    @in_turn
    async def take_weight(self, total: TotalWeight) -> None:
        """Learn what all centers' containers weigh together, once."""
        if self.total_weight:  # another one would scale the same model anew, for a second sum
            raise Refused(self.caller, f"tells {self.name} what all weigh a second time")
        self.heard("take_weight", total)
        # fewer containers than are drawn may answer; what these weigh is no choice of the exchange's
        fewest = self._answers.total_weight(sorted(self.trainings.sizes)[: self._num_active])
        self.check_total(float(fewest), total.value, self._grid)
        self.total_weight = total.value

    @property
    def _grid(self) -> FixedPoint:
        """How changes become words."""
        return FixedPoint(limit=self._limit, num_clients=len(self.clients))

    @remote(caller=DATA_CENTER, only="adder", at_most="num_summed_rounds", unbounded=WHILE_IT_LASTS)
    @in_turn
    async def give_part(self) -> Masked:
        """Give the part of the round that is over, under masks."""
        kept = self.kept
        if kept is None or not self.total_weight:
            raise Refused(self.caller, f"asks {self.name} for its part of a round that is not over there")
        heard = self.heard("give_part", self.ordered)
        share = self._answers.weight(kept) / self.total_weight
        made = summand(kept, self.start, share, self._limit), grains(kept, self.start, share)
        part, grain = (np.append(one, 0.0) for one in made)  # the flag
        # one id a round: a change that is asked for again must be summed among the same centers
        return self.masked_if_it_fits(
            part, self._grid, f"{kept.round}", grain=grain, what="a change", heard=heard, flag=-1
        )


class RoundSums:
    """The exchange's part."""

    def __init__(self, exchange: DataCenter, config: NebulaFLConfig, centers: tuple[str, ...]) -> None:
        # without sums a lost center is the driver's business, who tells of it
        on_loss: OnLoss = (
            "skip" if not config.secure_aggregation else "drop" if config.on_party_loss == "continue" else "stop"
        )
        self.centers: ActorGroup[SummingCenter] = ActorGroup(exchange, centers, on_loss=on_loss, timeout=_TIMEOUT)
        self._limit, self._learning_rate = config.secure_range, config.learning_rate
        self._sums = SecureSums(exchange, self.centers)

    async def weigh(self) -> None:
        """Let the centers learn what they weigh together."""
        await self._sums.prepare(1)
        parts = await self.centers.ask(lambda center: center.weigh())
        total, _ = await self._sums.total(parts, count_point(len(self.centers.names)), Work(UNMASKING, 1.0))
        weight = TotalWeight(float(total[0]))
        await self.centers.ask(lambda center: center.take_weight(weight))

    async def mean(self, start_P: Floats) -> Floats | None:
        """Return the weighted mean of the models (P) that all centers made of one; None: nobody has one."""
        await self._sums.prepare(1)
        parts = await self.centers.ask(lambda center: center.give_part())
        point = FixedPoint(limit=self._limit, num_clients=len(self.centers.names))
        work = Work(UNMASKING, float(sum(part.words.size for part in parts.values())))
        total, _ = await self._sums.total(parts, point, work)
        check_fits(float(total[-1]), point, "a change", self._learning_rate)
        total = total[:-1]
        share = total[-1] / self._limit
        return (start_P + total[:-1] / share).astype(np.float32) if share > 0 else None
