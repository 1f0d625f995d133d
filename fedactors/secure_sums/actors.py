"""Secure sums between actors: the endpoints of a client, and the server's part over a group of clients.

    class GraphClient(SecureSummand):                                  # a client with the endpoints of a secure sum
        @remote(caller=SERVER)
        @in_turn                                                       # acted upon once what came before is done
        async def infer(self, ...) -> Masked:
            heard = self.heard("infer", ...)                           # with all that was told, before it is acted upon
            return self.masked(values, point, "7/forward/0", what="forward/0", heard=heard)

    class AggregationServer(Server):
        self.sums = SecureSums(self, self.clients)
        await self.sums.prepare(6)                                     # before a round: so many sums must be ready
        total, whose = await self.sums.total(parts, point, work)       # parts: the clients' `Masked`, by name

**How identities are exchanged.** Before the first sum every client sends each other one, past the server, its public
identity and 32 random bytes. A greeting is believed because the runtime proves who calls, by tickets that the driver
makes: a lying server cannot pass for a client, a lying driver could. All members of the first call for keys derive
``common_secret`` from their greetings: what they agree upon without the server follows from it.

Where a run goes on without a lost client, it leaves its sums to the others: they are completed with who is left, if
these are enough. Elsewhere, as between sites and in predictions, each sum is of all clients (`SumMembers`), and of
clients that were told the same (`SecureSummand.heard`): a server that calls one lost, or tells all others something
after which they add nothing, would read what that one adds. What was heard goes with a checkpoint, to predictions too
(`SecureSummand.go_on_from`), so that nobody sums with others' states of another moment. After a resume rounds that were
done before the cut are done again with the same values: a client restored from a checkpoint sums among those of its
last sum.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import hashlib
import logging
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedactors.actors.actor import Actor, Client
from fedactors.actors.context import Work
from fedactors.actors.groups import ActorGroup
from fedactors.actors.remote import CLIENT, DATA_CENTER, SERVER, remote
from fedactors.errors import BadInput, PartyLost, Refused
from fedactors.messages.codec import message
from fedactors.secure_sums.messages import (
    Arrived,
    Confirmation,
    Confirmations,
    DeliveredShares,
    Entropy,
    Identity,
    Masked,
    MaskedSum,
    Roster,
    SealedShares,
    SumCall,
    SumKeys,
    Unmasking,
    framed,
    parties_of,
)
from fedactors.secure_sums.primitives import FEWEST, FixedPoint, threshold_of
from fedactors.secure_sums.protocol import EXACT, SecureSumClient, SecureSumError, SecureSumServer, unmasked_sum

_log = logging.getLogger(__name__)
SECRET_BYTES = 32
COARSEST = 1e-4
"""Of a client's own numbers, a step of a sum's grid at most: what training changes is larger. See `coarsest`."""
_ADDERS = (SERVER, DATA_CENTER)
F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])


def in_turn(endpoint: F) -> F:
    """Let an endpoint of a `SecureSummand` wait until those that came before it are done.

    What an order leads to depends on what is done when it is followed: a server that sends most clients the next order
    while they still follow the one before, and one client after that, would add up parts of different states.
    """

    @functools.wraps(endpoint)
    async def waiting(self: SecureSummand, *told: Any) -> Any:
        if self._acting is asyncio.current_task():  # called by an endpoint whose turn it is
            return await endpoint(self, *told)
        async with self._turn:  # in order of arrival
            self._acting = asyncio.current_task()
            try:
                for one in told:
                    self.check_sizes(one)  # here: they follow from what is done before
                return await endpoint(self, *told)
            finally:
                self._acting = None

    waiting.__checks_sizes__ = True  # type: ignore[attr-defined]
    return waiting  # type: ignore[return-value]


@message(reveals="nothing about data: which clients are to greet one another")
class IdentityRound:
    """The server lets the clients exchange identities."""

    members: tuple[str, ...]


@message(reveals="to another client: the sender's public identity, and its part of what all clients know together")
class IdentityShare:
    """An Ed25519 public key, and random bytes that the server never sees."""

    identity: bytes
    secret: bytes


MESSAGES = (
    IdentityRound, IdentityShare, SumCall, SumKeys, Roster, SealedShares, DeliveredShares, Masked, Arrived,
    Confirmation, Confirmations, Unmasking,
)  # fmt: skip
"""All that travels for secure sums: for a protocol's ``sent``."""
STOPS_SHOW = (
    "a number of yours that is infinite, or beyond secure_range, stops the run with your name: a server that chooses "
    "what all are told learns one bit of your rows in each run that stops so"
)
"""What sums do not hide where a part that does not fit one is an error; see `SecureSummand.masked_if_it_fits`."""


class SumMembers:
    """With whom a client is in sums: where a loss ends the run with all clients, else with whom it was last (`stay`).

    Args:
        clients: all of the run: before its first sum they count as those of the last.
    """

    def __init__(self, clients: Sequence[str]) -> None:
        self.last = tuple(sorted(clients))
        self.only: tuple[str, ...] | None = None
        """Those whom it may be in sums with; None: any, the process began with the run and knows of all its sums."""

    def stay(self) -> None:
        """Be in sums with exactly those of the last one, before the first with all clients."""
        self.only = self.last

    def state_dict(self) -> dict[str, Any]:
        """Return who they are for a snapshot."""
        return {"last": self.last}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; which sums the client was in after that snapshot is not known."""
        self.last = tuple(state["last"])
        self.stay()


def coarsest(num_clients: int) -> float:
    """Return what a step of a sum's grid may be of a client's own numbers, for so many clients.

    The grid gets coarser with the square of their number (with equal weights). So does the bound from 20 on, where the
    others' roundings at random, a step each, hide on which side of a step one client's number fell.
    """
    return COARSEST * max(1.0, (num_clients / 20) ** 2)


class SecureSummand(Client):
    """A client with the endpoints of secure sums; a data center that takes part is one too, of its own role.

    Args:
        clients: names of all clients of the run, as its driver spawned them; a sum takes more than half of them.
        adder: name of the actor that may ask for sums.
        survives_loss: whether the run goes on without a client that is lost; else every sum is of all clients, and
            nobody who asks for sums may call one lost to see its part as the difference of two.
        fewest: members that every sum needs, if that is more than half of the clients.
        may_return: whether a client that was lost may greet again, as a new process with another identity.
    """

    state: ClassVar[tuple[str, ...]] = ("common_secret", "company", "fellows", "history")

    def __init__(
        self,
        clients: Sequence[str],
        adder: str = "server",
        *,
        survives_loss: bool = False,
        fewest: int = 0,
        may_return: bool = False,
    ) -> None:
        self._clients = tuple(clients)
        self._fewest, self._may_return = fewest, may_return
        self._adder = adder
        self.common_secret = b""
        """32 bytes that all clients derive alike once they have met, and that no server learns."""
        self.company: dict[str, tuple[str, ...]] = {}
        """With whom values were summed, by their id."""
        self.fellows = SumMembers(self._clients)
        if not survives_loss:  # a prediction survives none
            self.fellows.stay()
        self.history = b""
        """A digest of all that was heard: clients that go on from checkpoints of different moments sum nothing.

        Who was lost and returns has not heard what the others have. Where one may, what a client adds must follow from
        the order alone that it hears last, and from nothing that it keeps.
        """
        self._turn = asyncio.Lock()
        self._acting: asyncio.Task[Any] | None = None
        """Which call's turn it is."""
        self._public_keys: dict[str, IdentityShare] = {}
        self._local_public_key: IdentityShare | None = None
        self._summand: SecureSumClient | None = None

    @property
    def clients(self) -> tuple[str, ...]:
        """Names of all clients of the run."""
        return self._clients

    @property
    def adder(self) -> str:
        """Name of the one actor that may ask for sums."""
        return self._adder

    def entropy(self, purpose: str) -> Entropy:
        """Return a source of secret bytes: the operating system's, between organisations whatever a setting says.

        It is the run's seed where nothing is private.
        """
        is_seeded = self.draws_reproducibly and not self._context.is_between_organisations
        return self.rng(purpose).bytes if is_seeded else os.urandom

    def masked(
        self,
        values: NDArray[Any],
        point: FixedPoint,
        values_id: str | None = None,
        sigma: float = 0.0,
        *,
        what: str,
        heard: bytes,
        grain: NDArray[Any] | float = 0.0,
        limit: float | None = None,
        at_random: NDArray[np.bool_] | None = None,
    ) -> Masked:
        """Return an array under the masks of the next sum; see `SecureSumClient.mask`.

        Args:
            values: as there.
            point: as there.
            values_id: as there.
            sigma: as there.
            what: as there.
            heard: what `heard` returned when the values were ordered: another call may come while they are computed.
            grain: as there.
            limit: the setting `secure_range`, if it is not the point's.
            at_random: as there.

        Raises:
            BadInput: the setting `secure_range` (`limit`, if not the point's) is too small for `what`.
        """
        try:
            more: dict[str, Any] = {"grain": grain, "what": what, "heard": heard, "at_random": at_random}
            return self._sums.mask(values, point, values_id, sigma, **more)
        except ValueError as error:
            given = point.limit if limit is None else limit
            raise BadInput(f"secure_range: {given:g} is too small for {what} of {self.name}: {error}") from None

    def masked_if_it_fits(
        self,
        part: NDArray[np.float64],
        point: FixedPoint,
        values_id: str | None = None,
        *,
        what: str,
        heard: bytes,
        flag: int,
        grain: NDArray[Any] | float = 0.0,
    ) -> Masked:
        """Return an array under masks; of one that fits no sum nobody learns whose it is.

        An error would name the client: a server that makes up models could ask, run by run, whether a single client has
        a row beyond some bound. So random words take its place, and the `flag`-th number of the flat array, which is 0
        or more and tells nothing of one client, becomes less: `check_fits` fails then, and says so of all together.
        """
        limit = point.limit
        if not (np.abs(part) + np.abs(grain) / 2 <= limit).all():  # a number that is none is not either
            _log.warning("%s: %s fits no sum: infinite, or beyond secure_range=%g", self.name, what, limit)
            at_random = np.ones(part.shape, np.bool_)
            part, at_random.flat[flag] = np.zeros_like(part), False
            part.flat[flag] = -limit
            return self.masked(part, point, values_id, what=what, heard=heard, at_random=at_random)
        return self.masked(part, point, values_id, what=what, heard=heard, grain=grain)

    def check_total(self, weight: float, total: float, point: FixedPoint) -> None:
        """Check what all clients are said to weigh together, by which the own values are scaled for a sum.

        Of a total that is told too large the own numbers would be a few steps of the grid, or one: a server that lays
        the others' between two steps would read from a sum to which side the own ones fell.

        Raises:
            Refused: it is less than the own weight, or so large that the grid is coarser than `COARSEST`.
        """
        if not total >= weight:
            raise Refused(self.caller, f"tells {self.name}, which weighs {weight:g}, that all together weigh {total:g}")
        step = total / weight / point.steps_per_unit if weight > 0 else 0.0
        if not step <= coarsest(point.num_clients):
            said = f"tells {self.name} a weight of all by which a step of the sum's grid is {step:.2g} of its numbers"
            remedy = "many sites, or few rows, need a smaller secure_range"
            raise Refused(self.caller, f"{said}; approved: {coarsest(point.num_clients):.2g} at most: {remedy}")

    def heard(self, endpoint: str, *told: Any) -> bytes:
        """Remember what all clients are told alike, before it changes what they add up; return a digest of it.

        One message to two endpoints changes different things: `endpoint` is where these messages, arrays, values came.

        A sum is of clients that heard the same, all along, or where lost ones may return the same last: a server that
        tells most of them something after which they add nothing would read what the others add. That they have acted
        upon all of it, too, is why only endpoints that are `in_turn` hear.
        """
        if self._acting is None or self._acting is not asyncio.current_task():
            raise RuntimeError(f"{self.name}.{endpoint} hears what sums follow from: declare it @in_turn")
        before = b"" if self._may_return else self.history
        self.history = hashlib.sha256(framed(before, endpoint.encode(), *map(as_bytes, told))).digest()
        return self.history

    def go_on_from(self, trained: Mapping[str, Any]) -> None:
        """Take over what was heard in a training whose state this is: a prediction is of states of one moment.

        A driver chooses a checkpoint by a number that it gave it, at each client by itself.
        """
        self.history = trained["history"]

    def forget_values(self) -> None:
        """Learn that what ids stand for has changed; values that turn out to be equal are remembered all the same."""
        for one in [one for one in self.company if not one.startswith(EXACT)]:
            del self.company[one]

    @property
    def _sums(self) -> SecureSumClient:
        if self._summand is None:
            if self.name not in self._public_keys:
                raise SecureSumError(f"{self.name}: the clients have not met, so it has nobody to mask with")
            identities = {name: one.identity for name, one in self._public_keys.items()}
            self._summand = SecureSumClient(
                self.name,
                self._identity,
                identities,
                num_clients=len(self.clients),
                num_parties=min(FEWEST, len(parties_of(self.clients))),
                fewest=self._fewest,
                company=self.company,
                only=self.fellows.only,
                entropy=self._secrets,
                noise=self.entropy("noise of secure sums"),
                # between sites the site's own seed
                rounding=f"{self._context.seed} {self.seed('rounding of secure sums')}".encode(),
            )
        return self._summand

    @remote(caller=_ADDERS, only="adder", unbounded="the party that masks a value counts it")
    async def meet(self, connection: IdentityRound) -> None:
        """Greet the other clients, once."""
        if self._local_public_key is None:
            self._secrets = self.entropy("secure sums")
            self._identity = Identity(self._secrets)
            self._local_public_key = IdentityShare(self._identity.public, self._secrets(SECRET_BYTES))
            self._public_keys[self.name] = self._local_public_key
        public_key = self._local_public_key
        others = [name for name in connection.members if name in self.clients and name != self.name]
        await asyncio.gather(*(self.peer(name, SecureSummand).greet(public_key) for name in others))

    @remote(caller=(CLIENT, DATA_CENTER), unbounded="the party that masks a value counts it")
    async def greet(self, public_key: IdentityShare) -> None:
        """Take another client's identity; who it is, the connection proves.

        Raises:
            Refused: it is none of the run's clients, or was here before under another identity and may not return.
        """
        if self.caller not in self.clients:
            raise Refused(self.caller, f"greets {self.name}, whose fellows are {', '.join(self.clients)}")
        known = self._public_keys.get(self.caller)
        if known == public_key:
            return
        if known is not None and not self._may_return:
            raise Refused(self.caller, f"greets {self.name} a second time, under another identity")
        self._public_keys[self.caller] = public_key
        if self._summand is not None:
            self._summand.meet(self.caller, public_key.identity)

    @remote(caller=_ADDERS, only="adder", unbounded="the party that masks a value counts it")
    async def advertise_keys(self, call: SumCall) -> SumKeys:
        """Make fresh keys for several sums."""
        keys = self._sums.advertise(call)
        if not self.common_secret:
            secrets = [self._public_keys[name].secret for name in call.members]
            self.common_secret = hashlib.sha256(framed(b"common secret", *secrets)).digest()
        return keys

    @remote(caller=_ADDERS, only="adder", unbounded="the party that masks a value counts it")
    async def share_keys(self, roster: Roster) -> SealedShares:
        """Check everybody's keys and share the own secrets with the neighbours."""
        return self._sums.share(roster)

    @remote(caller=_ADDERS, only="adder", unbounded="the party that masks a value counts it")
    async def take_shares(self, delivered: DeliveredShares) -> None:
        """Take the neighbours' shares."""
        self._sums.take(delivered)

    @remote(caller=_ADDERS, only="adder", unbounded="the party that masks a value counts it")
    async def confirm_sum(self, arrived: Arrived) -> Confirmation:
        """Sign whose vectors arrived."""
        confirmation = self._sums.confirm(arrived)
        self.fellows.last = arrived.members
        return confirmation

    @remote(caller=_ADDERS, only="adder", unbounded="the party that masks a value counts it")
    async def unmask_sum(self, proof: Confirmations) -> Unmasking:
        """Help to remove the masks of one sum."""
        return self._sums.unmask(proof)


def check_fits(flag: float, point: FixedPoint, what: str, learning_rate: float | str | None) -> None:
    """Check, by the flag of a sum, that each client's part did; see `SecureSummand.masked_if_it_fits`.

    Args:
        flag: as the sum has it.
        point: of the sum.
        what: the parts are.
        learning_rate: of the training; None: the model is trained.

    Raises:
        BadInput: some client's did not.
    """
    if flag < -point.error(point.num_clients):
        said = f"secure_range: {point.limit:g} is too small for {what} of a client"
        if learning_rate is None:
            raise BadInput(f"{said}: train with a larger one; the client's own log says so")
        raise BadInput(
            f"{said}, or learning_rate: {learning_rate} diverges there: try a larger range or a smaller rate; the "
            "client's own log says so"
        )


def as_bytes(told: Any) -> bytes:
    """Return a message, an array or a value as bytes, of which no two kinds give the same."""
    kind = type(told).__qualname__.encode()
    if dataclasses.is_dataclass(told):
        return framed(kind, *(as_bytes(getattr(told, field.name)) for field in dataclasses.fields(told)))
    if isinstance(told, np.ndarray):
        return framed(kind, repr((told.dtype, told.shape)).encode(), told.tobytes())
    if isinstance(told, (tuple, list)):
        return framed(kind, *map(as_bytes, told))
    if isinstance(told, Mapping):
        return framed(kind, *(as_bytes(one) for pair in told.items() for one in pair))
    return framed(kind, repr(told).encode())


class SecureSums:
    """The server's part: it goes through the exchanges of `fedactors.secure_sums.protocol` with a group.

    Args:
        caller: the actor whose group it is.
        clients: the group; who is lost in it leaves its sums to the others, or ends the run, as the group decides.
        num_sums: for how many sums keys are prepared at once.
        fewest: members that every sum needs, if that is more than half of the clients.
    """

    def __init__(self, caller: Actor, clients: ActorGroup[Any], *, num_sums: int = 32, fewest: int = 0) -> None:
        self._caller, self._clients, self._num_sums = caller, clients, num_sums
        self._fewest = fewest
        self._number = self._left = 0
        self._server: SecureSumServer | None = None
        self._have_met = False

    def renew(self) -> None:
        """Let everybody meet, and agree upon keys, anew: somebody is back, or a sum was left by some or by all.

        Who was lost has no keys, or has masked other sums with them than the others: none of them is used again.
        """
        self._have_met, self._left = False, 0

    async def prepare(self, num_sums: int) -> None:
        """Make sure that keys for so many sums are ready among those who are there; at first, let them meet.

        Raises:
            PartyLost: too few are left.
        """
        if not self._have_met:
            await self._clients.ask(lambda client: client.meet(IdentityRound(tuple(self._clients.members))))
            self._have_met = True
        if self._server is not None and self._left >= num_sums and self._server.call.members == self._members:
            return
        while not await self._prepared(max(num_sums, self._num_sums)):
            pass

    async def _prepared(self, num_sums: int) -> bool:
        """Exchange keys and shares; return whether everybody is still there."""
        self.check_members()
        self._number += 1
        call = SumCall(self._number, num_sums, self._members)
        server = SecureSumServer(call, len(self._clients.names), self._fewest)
        members = server.call.members
        keys = await self._clients.ask(lambda client: client.advertise_keys(server.call))
        if self._members != members:
            return False
        roster = server.roster(keys)
        sealed = await self._clients.ask(lambda client: client.share_keys(roster))
        if self._members != members:
            return False
        await self._clients.ask_each(lambda client, given: client.take_shares(given), server.deliver(sealed))
        self._server, self._left = server, num_sums
        return self._members == members

    async def total(
        self, parts: Mapping[str, Any], point: FixedPoint, work: Work
    ) -> tuple[NDArray[np.float64], tuple[str, ...]]:
        """Return the sum of the arrays that arrived, and whose they are.

        Args:
            parts: the clients' `Masked` by name; or, by who has added them up, `MaskedSum` of clients that each has.
            point: how numbers became words.
            work: that it takes to remove the masks.

        Raises:
            Refused: somebody's part has no masks, or sums have a client in common.
            PartyLost: too few arrived, or too few are left to remove the masks.
        """
        whose: dict[str, Masked | MaskedSum] = {}
        for name, part in parts.items():
            if not isinstance(part, (Masked, MaskedSum)):
                raise Refused(name, "its part of a secure sum is bare")
            for member in part.members if isinstance(part, MaskedSum) else (name,):
                if member in whose:
                    raise Refused(name, f"adds up a vector of {member}, which is in another sum too")
                whose[member] = part
        server = self._server
        if server is None:
            raise SecureSumError(f"{self._caller.name}: no keys were prepared for a sum")
        self._left -= 1
        self.check_members()
        arrived = server.arrived(whose)
        if arrived.members != server.call.members:
            self._left = 0  # who is missing may have masked fewer sums than the others: the next keys are new
        confirmed = await self._clients.ask_each(
            lambda client, given: client.confirm_sum(given), dict.fromkeys(arrived.members, arrived)
        )
        self.check_members()
        proof = server.confirmations(arrived, confirmed)
        unmaskings = await self._clients.ask_each(
            lambda client, given: client.unmask_sum(given), dict.fromkeys(confirmed, proof)
        )
        self.check_members()
        arguments = (server.session, dict(parts), unmaskings, point.num_words, arrived.members)
        words = await self._caller.compute(unmasked_sum, *arguments, work=work)
        return point.decode(words).reshape(whose[arrived.members[0]].shape), arrived.members

    @property
    def _members(self) -> tuple[str, ...]:
        return tuple(sorted(self._clients.members))

    def check_members(self) -> None:
        """Check that enough clients are there for a sum.

        Raises:
            PartyLost: naming the first who is not.
        """
        needed = max(threshold_of(len(self._clients.names)), self._fewest)
        if len(self._members) < needed:
            lost = next(name for name in self._clients.names if name not in self._members)
            raise PartyLost(lost, f"it was lost, and too few clients are left: secure aggregation needs {needed}")
