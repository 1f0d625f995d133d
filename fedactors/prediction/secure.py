"""Predictions after a run that summed representations under masks: again nobody reads what a single party contributes.

    label party ──alignment, as ever──▶ other parties
    label party ──sum_up──▶ exchange ──add_up──▶ every party: what its model makes of the shared rows, under masks
    label party ◀──Summed── exchange                                   Z, which it had of its rows in training, too

Every party of the run takes part, and before it masks anything it has compared with the others which rows it is to
add up and in which order, so that no two sums differ by somebody's part or rows. Which rows a party cannot use it tells
the label party alone, as in open predictions.

Shapes: N shared rows, E width of a contribution.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.data.alignment import AlignmentOrder, fingerprint
from fedactors.errors import BadInput, Refused
from fedactors.network.codec import message
from fedactors.parties import Parties
from fedactors.prediction.engine import LONGEST
from fedactors.prediction.vertical import EXCHANGE, Contribution, PredictingOwner, PredictingParty
from fedactors.privacy.fixed_point import FixedPoint
from fedactors.privacy.secure_sessions import Masked
from fedactors.privacy.secure_sums import MESSAGES, SecureSummand, SecureSums
from fedactors.remote import CLIENT, SERVER, remote
from fedactors.roles import Server
from fedactors.runtime.base import Work
from fedactors.serving import StoredState


@message(reveals="the sum of what all parties' models make of each shared row, as the label party had it in training")
class Summed:
    """The sum (N x E)."""

    values: NDArray[np.floating[Any]]


@message(reveals="which of the shared rows the party cannot use")
class Unusable:
    """A flag for each row (N)."""

    rows: NDArray[np.bool_]


@message(reveals="to another party: whether it is about to add up the same rows in the same order")
class RowOrder:
    """A fingerprint of the ids in their order, under a key that all parties and nobody else has."""

    fingerprint: bytes


class SummingParty(SecureSummand, PredictingParty):
    """A party whose contribution leaves under masks only; a protocol adds `make_part` and `point`.

    Args:
        config, data, stored: see `PredictingParty`.
    """

    is_masked = True

    def __init__(self, config: Any, data: Any, stored: StoredState) -> None:
        PredictingParty.__init__(self, config, data, stored)
        SecureSummand.__init__(self, tuple(data.parties), EXCHANGE)
        self.fellows.stay()
        self._unusable = np.zeros(0, np.bool_)
        self._order: RowOrder | None = None
        """Of the rows to add up, once another party or the exchange has asked for it: they are fixed then."""

    @property
    def point(self) -> FixedPoint:
        """How contributions become words of a sum; a protocol says how."""
        raise TypeError(f"{type(self).__name__} does not say how contributions become words")

    @remote(caller=CLIENT, only="label_party")
    async def contribute(self) -> Contribution:
        """Refuse: in the open nothing leaves."""
        raise Refused(self.caller, f"asks {self.name} for a contribution that sums are to hide")

    @remote(caller=CLIENT, only="label_party")
    async def take_order(self, order: AlignmentOrder) -> None:
        """Follow the common order, until other parties have compared theirs with it."""
        if self._order is not None:
            raise Refused(self.caller, f"orders the rows of {self.name} anew when they are being added up")
        await PredictingParty.take_order(self, order)

    @remote(caller=CLIENT)
    async def tell_order(self) -> RowOrder:
        """Say in which order which rows are added up, and stay with that; refuse whose rows are not added up."""
        if self.caller not in self.clients or not self.common_secret:
            raise Refused(self.caller, f"asks {self.name} for the order of rows that are not being added up")
        return self._fixed_order()

    def _fixed_order(self) -> RowOrder:
        if self._order is None:
            self._order = RowOrder(fingerprint(self._new.ids[self._rows], self.common_secret))
        return self._order

    @remote(caller=SERVER)
    async def add_up(self) -> Masked:
        """Return what the own model makes of the shared rows under masks, once, and under the noise of training.

        All parties compare which rows they add up, and in which order: of two questions that pair rows differently the
        difference of the sums is a difference of somebody's rows. In one pairing a row's sum is the same each time.
        """
        own, others = self._fixed_order(), [name for name in self.clients if name != self.name]
        told = await asyncio.gather(*(self.peer(name, SummingParty).tell_order() for name in others))
        for name, order in zip(others, told, strict=True):
            if not hmac.compare_digest(order.fingerprint, own.fingerprint):
                raise Refused(self.label_party, f"has {self.name} and {name} add up different rows, or in other orders")
        made = await PredictingParty.contribute(self)
        self._unusable = made.unusable
        try:
            return self.masked(made.values, self.point)
        except ValueError as error:
            limit = self.point.limit
            raise BadInput(f"secure_range: {limit:g} is too small for {self.name}: {error}") from None

    @remote(caller=CLIENT, only="label_party")
    async def tell_unusable(self) -> Unusable:
        """Say which of the rows that were added up mean nothing."""
        return Unusable(self._unusable)


class SummingOwner(SummingParty, PredictingOwner):
    """The party with the labels, which learns the sum.

    Args:
        config, data, stored, top_at: see `PredictingOwner`.
    """

    def __init__(self, config: Any, data: Any, stored: StoredState, top_at: Sequence[str] = ()) -> None:
        SummingParty.__init__(self, config, data, stored)
        self._top_at = tuple(top_at)

    async def _contributions(
        self, peers: Mapping[str, PredictingParty], rows: NDArray[np.int64]
    ) -> tuple[list[NDArray[Any]], dict[str, NDArray[np.bool_]]]:
        self._rows = rows
        found = await self.peer(EXCHANGE, SumExchange).sum_up()
        told = await asyncio.gather(*(self.peer(name, SummingParty).tell_unusable() for name in peers))
        return [found.values], {name: one.rows for name, one in zip(peers, told, strict=True)}


class SumExchange(Server):
    """Adds contributions up: it reads their sum, as the server did in training; a protocol adds `point`.

    Args:
        config: of the run that trained.
        parties: all of them.
        label_party: who may ask for the sum.
    """

    label_party = ""

    def __init__(self, config: Any, parties: Sequence[str], label_party: str) -> None:
        self.config = config
        self._parties = tuple(parties)
        self.label_party = label_party

    @property
    def point(self) -> FixedPoint:
        """How contributions become words of a sum; a protocol says how."""
        raise TypeError(f"{type(self).__name__} does not say how contributions become words")

    @remote(caller=CLIENT, only="label_party")
    async def sum_up(self) -> Summed:
        """Return the sum over all parties of what their models make of the shared rows."""
        parties: Parties[SummingParty] = Parties(self, self._parties, timeout=LONGEST)
        sums = SecureSums(self, parties, num_sums=1)
        await sums.prepare(1)
        parts = await parties.ask(lambda party: party.add_up())
        work = Work("unmask", float(sum(part.words.size for part in parts.values())))
        total, _ = await sums.total(parts, self.point, work)
        return Summed(total)


SENT = (*MESSAGES, Summed, Unusable, RowOrder)
"""What such a prediction sends in place of `Contribution`."""
