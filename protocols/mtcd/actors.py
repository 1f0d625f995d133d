"""The clients: what every party does, what one does with a token, what one with a server, and MTCD's.

    Party -- LinkedParty -- TokenHolder (Algorithm 1) -- StcdClient
                       |              `---------------- TokenClient (Algorithm 2)
                       `--- ServedParty ---------------'
                                      `---------------- SvflClient

    server or neighbour --visit(token)--> client: Q steps on the token's own copy of theta_k --visit--> next client
                                                  after the last hop: --roaming_done--> the issuer of the token
    server --sync(order)--> client: theta_k <- combination of the copies, h_k back
    server --relay(order)--> station --relay--> ... --> a client without a link to the server, which follows the order

Copies are made when a token first comes in a roaming phase and dropped at the sync; a later issue of the same token
outdates the copy of the earlier one. Two tokens may be here at once: each works on its own copy.
"""

from __future__ import annotations

import hmac
import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from fedactors.actors.actor import Client, Server
from fedactors.actors.groups import surviving_loss
from fedactors.actors.remote import CLIENT, DRIVER, SERVER, current_caller, endpoints, remote
from fedactors.data.alignment.ids import (
    AlignmentAnswer,
    AlignmentOrder,
    AlignmentQuestion,
    align,
    answer_beside,
    check_number,
    follow_beside,
)
from fedactors.data.alignment.rows import load_block
from fedactors.data.layouts.vertical import VerticalPart
from fedactors.errors import Refused
from fedactors.messages.compression import decode_from
from fedactors.privacy.accounting import PrivacyRecord
from fedactors.protocols.mtcd import messages
from fedactors.protocols.mtcd.algorithm import (
    NUM_PROBES,
    Rows,
    Task,
    approved_step,
    batch_rows,
    combine,
    most_momentum,
    point_of,
    summand,
)
from fedactors.protocols.mtcd.config import MtcdConfig
from fedactors.protocols.mtcd.data import PartyRows, PublicPart
from fedactors.protocols.mtcd.message_compression import Estimates, Transforms, releases_of, unpack
from fedactors.protocols.mtcd.messages import Labels, seal_of
from fedactors.protocols.mtcd.privacy import uncovered
from fedactors.protocols.mtcd.roaming import next_client, walk_seed
from fedactors.secure_sums.actors import SecureSummand, in_turn
from fedactors.secure_sums.messages import Masked

_PROBED_BATCHES = 10
"""Mini-batches whose largest norm settles the step size."""
SERVER_NAME = "server"
_MOST_UNDER_WAY = 64
"""Orders that may overtake each other on their ways."""


class Party(Client):
    """A party with its rows, whatever it trains by."""

    state: ClassVar[tuple[str, ...]] = ("rows", "theta")

    def __init__(self, config: MtcdConfig, part: VerticalPart | PublicPart, seed: int) -> None:
        self._config = config
        self._part = part
        self._names = part.parties
        self._seed = seed
        self.rows = PartyRows(config, part, seed)
        self._client = self.rows.client
        self.theta: Any = None

    # --- rows and labels ---

    async def load(self) -> None:
        """Load the own part."""
        self.rows.load(await load_block(self, self._part) if isinstance(self._part, VerticalPart) else None)

    async def open(self) -> None:
        """Build the block where rows and labels are there: public ones, and those of a snapshot."""
        if self.rows.are_ready:
            self._build()

    def _build(self) -> None:
        self._block = self.rows.block(self.name)
        self._num_fusion = len(self._block.initial_theta_0(self.rng("fusion")))
        if self.theta is None:
            self.theta = self._block.initial(self.rng("initialisation"))

    @property
    def label_party(self) -> str | tuple[str, ...]:
        """Who has the labels; nobody in particular where all have them."""
        return self._part.label_party if isinstance(self._part, VerticalPart) else ()

    @remote(caller=CLIENT, only="label_party", once=True)
    async def answer_alignment(self, question: AlignmentQuestion) -> AlignmentAnswer:
        """Answer the label party's alignment question, if it is asked in the way that all have agreed upon."""
        assert isinstance(self._part, VerticalPart)
        return await answer_beside(self, self.rows.ids, question, self._part.alignment)

    @remote(caller=CLIENT, only="label_party", once=True)
    async def take_order(self, order: AlignmentOrder) -> None:
        """Follow the common order of rows."""
        assert isinstance(self._part, VerticalPart)
        rows = await follow_beside(self, self.rows.ids, order, self._part.alignment)
        facts = (self._config.min_aligned_rows, len(self.rows.ids), self.rows.num_rejected, self.rows.num_table_rows)
        check_number(self, rows, *facts, num_train=lambda: self.rows.count_train(len(rows), order.parts))
        self.rows.order(rows, order.parts)

    @remote(caller=DRIVER, once=True)
    async def align(self) -> messages.Aligned:
        """Align all parties' rows (called at the label party) and tell the others the labels, as agreed."""
        part = self._part
        assert isinstance(part, VerticalPart)
        peers = {name: self.peer(name, Party) for name in part.passive_parties}
        rng = self.rng("row order") if part.alignment == "already-aligned" else self.noise_rng("row order")
        facts = (self.rows.ids, self.name, part.alignment, peers, rng, self.rows.draw_parts)
        common = await align(*facts, actor=self)
        self._told_rows(common.announced)
        self.rows.order(common.rows, common.parts)
        self._build()
        learners = (*part.passive_parties, *(("server",) if self._config.algorithm in ("mtcd", "svfl") else ()))
        assert self.rows.labels is not None
        for name in learners:
            await self.peer(name, Party).take_labels(self.rows.labels)
        absent = tuple((name, len(gone)) for name, gone in common.absent.items())
        return messages.Aligned(len(common.rows), len(self.rows.ids), self.rows.num_rejected, absent)

    def _told_rows(self, order: AlignmentOrder) -> None:
        """Learn, as the label party, in which order all others were told to bring their rows."""

    @remote(caller=CLIENT, only="label_party", once=True)
    async def take_labels(self, labels: messages.Labels) -> None:
        """Take the labels from the label party, once."""
        if self.rows.labels is not None:
            raise Refused(self.caller, f"tells {self.name} labels, which it knows already")
        self.rows.labels = labels
        self._build()

    # --- for the driver ---

    @remote(caller=DRIVER, unbounded="always says the same")
    async def count_rows(self) -> messages.RowCount:
        """Return how many rows there are."""
        assert self.rows.labels is not None
        return messages.RowCount(len(self.rows.labels.train), len(self.rows.labels.test))

    @remote(caller=DRIVER, at_most="num_measurements")
    async def measure(self, order: messages.MeasureOrder) -> messages.Measured:
        """Return h_k on all training or test rows, and r(theta_k)."""
        is_hidden = self._config.noise is not None or self._config.secure_aggregation
        if is_hidden and not self._context.reproducible_noise:
            raise Refused(self.caller, f"asks {self.name} for a representation that noise or a sum is to protect")
        h = await self._do(self._block.represent(self.theta, None, order.part))
        return messages.Measured(h, self._block.penalty(self.theta))

    def known_sizes(self, message: Any, sender: str) -> dict[str, int]:
        """Return how many rows are here, and how many parameters the fusion model has."""
        if isinstance(message, Labels):
            return {f"{'training' if part == 'train' else part} rows": size for part, size in self.rows.sizes.items()}
        if not hasattr(self, "_block"):
            return {}
        rows = self._rows_of(0)
        first = self._block.num_samples if rows is None else len(rows)
        known = {"training rows": self._block.num_samples, "rows of the first batch": first}
        return known | {"fusion parameters": self._num_fusion}

    @remote(caller=DRIVER, at_most="num_measurements")
    async def score(self, order: messages.ScoreOrder) -> messages.Quality:
        """Return how good Z is; the labels are known here and not to the driver."""
        expected = self._block.blank(len(self._block.y.get(order.part, ()))).shape
        if order.z.shape != expected:
            said = f"has {self.name} score a Z of shape {order.z.shape}"
            raise Refused(self.caller, f"{said}; expected: {expected} of the rows to {order.part}")
        return messages.Quality(await self._do(self._block.score(order.part, order.z, order.theta_0)))

    @remote(caller=(SERVER, DRIVER), at_most="num_norms")
    async def squared_norm(self, order: messages.NormOrder) -> messages.SquaredNorm:
        """Return ||X_k||^2 of a linear model, for the step size.

        Raises:
            Refused: sums are to hide what is a single client's, or noise is and the step size is given.
        """
        self._check_open("its norm")
        return messages.SquaredNorm(await self._do(self._block.squared_norm(self._probed_batches())))

    def _probed_batches(self) -> tuple[Rows, ...]:
        """Return mini-batches on which a step size is settled; none where each step sees all rows."""
        found = (self._rows_of(round_) for round_ in range(_PROBED_BATCHES))
        return tuple(rows for rows in found if rows is not None)

    def _rows_of(self, round_: int) -> Rows | None:
        return batch_rows(self._seed, round_, self._block.num_samples, self._config.batch_size)

    def _check_open(self, what: str) -> None:
        config = self._config
        if config.secure_aggregation:
            raise Refused(self.caller, f"asks {self.name} for {what}, and sums are to hide what is one client's")
        if config.noise is not None and config.learning_rate != "auto":
            raise Refused(self.caller, f"asks {self.name} for {what}, beside which the noise would claim nothing")

    async def _do(self, task: Task) -> Any:
        return await self.compute(task.function, *task.arguments, work=task.work)


class LinkedParty(Party):
    """A party with links to others, over which noised and compressed arrays may go.

    Args:
        links: its neighbours, as far as it is told, and its way to a server.
        walks: shared by all parties, for walks.
    """

    state: ClassVar[tuple[str, ...]] = (*Party.state, "links", "representations", "changes")

    def __init__(
        self,
        config: MtcdConfig,
        part: VerticalPart | PublicPart,
        seed: int,
        links: messages.Links,
        walks: int,
    ) -> None:
        super().__init__(config, part, seed)
        self._walks = walks
        self._transforms = Transforms.of(config)
        self.links = self._approved_links = links
        self.representations = releases_of(config, "Representation")
        self.changes = releases_of(config, "Token")

    async def open(self) -> None:
        """Make the noise's generator, which no snapshot holds."""
        self._noise = self.noise_rng("representations")
        await super().open()

    @remote(caller=DRIVER, once=True)
    async def account(self) -> None:
        """Record what noised releases cost this party."""
        for releases in (self.representations, self.changes):
            self.record_privacy(releases.record(self.party, uncovered=uncovered(self._config)))

    @property
    def _num_planned(self) -> int:
        """How many representations leave if a run is not stopped."""
        return 0

    def planned_privacy(self) -> Iterable[PrivacyRecord]:
        """Return what the representations of all rounds release; whom tokens visit is drawn in each round."""
        if not hasattr(self, "_block") or self._transforms.noise is None:
            return ()
        planned = releases_of(self._config, "Representation")
        if times := self._num_planned:
            rows = self._rows_of(0)  # batches are of one size
            planned.add(self._block.num_samples if rows is None else len(rows), times=times)
        return [planned.record(self.party, uncovered=uncovered(self._config))]

    def _arrived(self, z: Any, rows: Rows | None) -> Any:
        """Return Z of these rows, or of all, as another party sent it."""
        num_rows = self._block.num_samples if rows is None else len(rows)
        sender = current_caller.get() or self.name  # a token that rested here is its own
        return decode_from(z, self._block.blank(num_rows).shape, sender)

    def _noise_for(self, position: tuple[int, int, int]) -> np.random.Generator:
        """Return the noise generator; where noise is to be reproducible, one that no order of events can change."""
        if self._context.reproducible_noise:
            return np.random.default_rng([self.seed("noise"), *position])
        return self._noise


class TokenHolder(LinkedParty):
    """A party that works on a token that comes, and passes it on: Algorithm 1. Arguments as of `LinkedParty`."""

    trains_theta_0: ClassVar[bool] = True
    """Whether theta_0 is trained at each visit."""

    @remote(caller=(SERVER, CLIENT), at_most="num_visits")
    async def visit(self, token: messages.Token) -> None:
        """Work on a token that has come, then pass it on; an outdated one ends here."""
        self._check_step(token)
        theta_0, rows = token.theta_0, self._rows_of(token.round_)
        z = came = self._arrived(token.z, rows)
        seed = walk_seed(self._walks, token.round_, token.token, token.attempt)
        hop, hops_left, target = token.hop, token.hops_left, None
        while True:
            theta = self._copy(token)
            if theta is None:
                return
            task = self._block.visit(theta, theta_0, z, rows, token.step, self.trains_theta_0)
            theta, theta_0, z = await self._do(task)
            if not self._keep(token, theta):
                return
            target = None
            if hops_left == 0:
                break
            hop, hops_left = hop + 1, hops_left - 1
            target = next_client(seed, hop, self.links)
            if target != self._client:
                break
        self._release_change(token, hop)
        if self._transforms.noise is not None:
            z = self._noised_change(came, z, (token.round_, token.token + 1, hop))
        if target is not None:
            z = self._packed(z, token.round_, token.token, token.attempt, hop)
        moved = messages.Token(
            token.round_,
            token.token,
            token.attempt,
            hop,
            hops_left,
            token.step,
            token.issuer,
            token.visited | 1 << self._client,
            z,
            theta_0,
        )
        if target is None:
            self._end_walk(moved)
        else:
            self.background(self._deliver(moved, self._names[target]))

    def _release_change(self, token: messages.Token, hop: int) -> None:
        """Count that what a visit changes in Z leaves: that of each hop of each token once, from any sender."""
        config = self._config
        # the one token of a walk without a server has no rounds, but stretches
        round_ = token.round_ if config.algorithm == "mtcd" else hop // (config.num_hops + 1)
        named = f"of hop {hop} of token {token.token}, issue {token.attempt}"
        self.release("the change of a visit", named, round=round_, last_round=config.num_rounds - 1)

    def _noised_change(self, before: Any, after: Any, position: tuple[int, int, int]) -> Any:
        """Return Z with this visit's change clipped and noised."""
        self.changes.add(len(after), nominal_rows=1)
        noised, local = before.copy(), self._block.local
        change = (after - before)[local]
        rows_BE = self._transforms.noised(change.reshape(len(change), -1), self._noise_for(position))
        noised[local] += rows_BE.reshape(change.shape)
        return noised

    def _packed(self, z: Any, *position: int) -> Any:
        transforms = self._transforms
        return z if transforms.token is None else transforms.pack_token(z, self.seed("rounding"), *position)

    async def _deliver(self, token: messages.Token, name: str) -> None:
        with surviving_loss("the issuer of the token is told, and issues it again or stops"):
            await self.peer(name, type(self)).visit(token)

    async def _report(self, done: messages.RoamingDone, station: str) -> None:
        """Tell the issuer; without a link to the server the word goes over a neighbour."""
        with surviving_loss("the word that a walk is over was for it, or lost with it"):
            await self.peer(station, TokenClient).roaming_done(done)  # STCD's clients and a server have this one too

    # --- what a token that syncs does otherwise ---

    def _check_step(self, token: messages.Token) -> None:
        """Refuse a token that no walk of the approved settings has, or a step that none of them takes.

        Raises:
            Refused: it goes on for more hops, names others than the clients, or steps further or not at all.
        """
        config, num_clients = self._config, len(self._names)
        is_walk = 0 <= token.hops_left <= config.num_hops and token.hop >= 0 and 0 <= token.visited < 1 << num_clients
        is_ours = 0 <= token.attempt <= num_clients and self._is_issued(token)
        if not (is_walk and is_ours):
            said = f"sends {self.name} token {token.token}, {token.hop} hops made and {token.hops_left} to come"
            raise Refused(self.caller, f"{said}, issue {token.attempt}; approved: {config.num_hops} (num_hops)")
        most = math.inf if config.learning_rate == "auto" else float(config.learning_rate) * (1 + 1e-9)
        if not 0 < token.step <= most or token.step == math.inf:  # backtracking makes it smaller
            said = f"sends {self.name} a token of step {token.step:g}"
            raise Refused(self.caller, f"{said}; approved: above 0, at most {most:g} (learning_rate)")

    def _is_issued(self, token: messages.Token) -> bool:
        """Say whether the server may have issued the token: of each cluster, or part of one, there is one at most."""
        config = self._config
        most = config.tokens + 2 * len(self._names)
        return token.issuer == -1 and 0 <= token.token < most and token.hop + token.hops_left <= config.num_hops

    def _copy(self, token: messages.Token) -> Any:
        """Return the parameters that the token is to work on, None if it is outdated."""
        return self.theta

    def _keep(self, token: messages.Token, theta: Any) -> bool:
        """Keep the parameters that the token has worked on; say whether it goes on."""
        self.theta = theta
        return True

    @abstractmethod
    def _end_walk(self, token: messages.Token) -> None:
        """Let the walk end here."""


class SealingServer(Server):
    """A server that seals the orders that others relay, with the keys that its clients have drawn.

    Args:
        names: of its clients.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self.order_keys: dict[int, bytes] = {}
        """By client."""
        self.num_relayed = 0

    @property
    def clients(self) -> tuple[str, ...]:
        """Who are asked for representations."""
        return self._names

    @remote(caller=CLIENT, only="clients", at_most=lambda config: int(config.server_links != "all"), each=True)
    async def take_order_key(self, order_key: messages.OrderKey) -> None:
        """Take the key that a client has drawn."""
        self.order_keys[self._names.index(self.caller)] = order_key.key


class ServedParty(LinkedParty):
    """A party that sends its representations to a server, directly or over others; arguments as of `LinkedParty`."""

    state: ClassVar[tuple[str, ...]] = (*LinkedParty.state, "estimates", "order_key", "followed")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.order_key = b""
        """Drawn here and told to the server alone, which seals with it what others relay."""
        self.followed: tuple[int, ...] = ()
        """Numbers of the latest orders that came so."""
        self.estimates = Estimates()

    @property
    def _num_planned(self) -> int:
        return self._config.num_rounds

    def _build(self) -> None:
        super()._build()
        self.estimates.num_samples = self._block.num_samples

    @remote(caller=DRIVER, at_most=lambda config: int(config.server_links != "all"))
    async def share_order_key(self) -> None:
        """Draw the key that the server's orders are sealed with on their way, and tell the server."""
        self.order_key = self.noise_rng("order key").bytes(32)
        await self.peer("server", SealingServer).take_order_key(messages.OrderKey(self.order_key))

    @remote(caller=SERVER, unbounded="says where tokens may go")
    async def relink(self, links: messages.Links) -> None:
        """Learn where tokens may go after a client was lost: fewer neighbours, and another way to the server.

        Raises:
            Refused: it is where the approved graph has no link.
        """
        approved, options = self._approved_links, set(links.options)
        is_sweep = approved.successor >= 0
        is_way = links.successor in options if is_sweep else links.successor == -1
        is_less = self._client in options <= set(approved.options) and len(options) == len(links.options)
        if not (is_less and is_way and links.uplink in ("", *self._names)):
            said = f"lets {self.name} pass tokens to clients {', '.join(map(str, links.options)) or 'none'}"
            raise Refused(self.caller, f"{said}; approved: of {', '.join(map(str, approved.options))} (topology)")
        self.links = links

    @remote(caller=(SERVER, CLIENT), unbounded="what it carries counts where it ends")
    async def relay(
        self, relayed: messages.Relayed | messages.RelayedZ
    ) -> messages.Representation | messages.SquaredNorm | messages.ProbeImage | None:
        """Pass an order of the server's on to the next station or, at the end of its way, follow it.

        Raises:
            Refused: its way leads to a station twice: one message would have honest stations send any number.
        """
        if self.name in relayed.route or len(set(relayed.route)) < len(relayed.route):
            raise Refused(self.caller, f"relays to {self.name} an order whose way leads to a station twice")
        if relayed.route:
            onwards = self.peer(relayed.route[0], ServedParty)
            return await onwards.relay(replace(relayed, route=relayed.route[1:]))
        self._check_order(relayed)
        sealed_by = current_caller.set(SERVER_NAME)  # the seal proves whose order it is, not who brings it
        try:
            return await self._follow_relayed(relayed.order)
        finally:
            current_caller.reset(sealed_by)

    async def _follow_relayed(
        self, order: Any
    ) -> messages.Representation | messages.SquaredNorm | messages.ProbeImage | None:
        """Follow an order of the server's.

        Raises:
            Refused: it is none that this client follows.
        """
        table = endpoints(type(self)).table.values()
        endpoint = next((d.name for d in table if type(order) in d.takes and SERVER in d.callers), None)
        if endpoint is None:
            raise Refused(self.caller, f"relays to {self.name} a {type(order).__name__}, which it does not follow")
        self.count_forwarded(endpoint, order)
        self.check_sizes(order)
        reply: messages.Representation | messages.SquaredNorm | messages.ProbeImage | None
        reply = await getattr(self, endpoint)(order)
        return reply

    def _check_order(self, relayed: messages.Relayed | messages.RelayedZ) -> None:
        number, kind = relayed.number, type(relayed.order).__name__
        sealed = seal_of(self.order_key, number, relayed.order)
        if not self.order_key or not hmac.compare_digest(relayed.seal, sealed):
            raise Refused(self.caller, f"relays to {self.name} a {kind} that the server has not sealed")
        if number in self.followed or number <= max(self.followed, default=0) - _MOST_UNDER_WAY:
            raise Refused(self.caller, f"relays to {self.name} a {kind} that was followed already")
        self.followed = (*(each for each in self.followed if each > number - _MOST_UNDER_WAY), number)

    @remote(caller=SERVER, once=True)
    async def gather(self, order: messages.Gather) -> messages.Representation | Masked:
        """Return h_k on the round's rows."""
        return await self._represent(order.round_, self._hear("gather", order))

    def _hear(self, endpoint: str, told: Any) -> bytes:
        """Return a digest of what all clients were told alike, where what follows from it leaves in sums only."""
        return b""

    @remote(caller=SERVER, at_most=lambda config: config.num_norms * NUM_PROBES)
    async def probe(self, probe: messages.Probe) -> messages.ProbeImage:
        """Return X_k X_k^T u, of the rows of the first mini-batch where there are any.

        Raises:
            Refused: as for `squared_norm`.
        """
        self._check_open("an image of its kernel")
        rows = self._rows_of(0)
        return messages.ProbeImage(await self._do(self._block.kernel_image(probe.vector, rows)))

    async def _represent(self, round_: int, heard: bytes = b"") -> messages.Representation | Masked:
        """Return h_k on a round's rows, as the configuration lets it leave."""
        rows, transforms = self._rows_of(round_), self._transforms
        self.release("the representation", round=round_, last_round=self._config.num_rounds)
        h = await self._do(self._block.represent(self.theta, rows))
        penalty = 0.0 if transforms.noise is not None else self._block.penalty(self.theta)
        if transforms.noise is not None:
            self.representations.add(len(h), nominal_rows=1)
            h = transforms.noised(h.reshape(len(h), -1), self._noise_for((round_, 0, 0))).reshape(h.shape)
        if transforms.representation is None:
            return messages.Representation(round_, h, penalty)
        if transforms.has_estimate:
            h = h - self.estimates.known(self._client, h, rows)
        rounding = np.random.default_rng([self.seed("rounding"), round_])
        encoded, _ = transforms.representation.encode(h, None, rounding)
        if transforms.has_estimate:
            self.estimates.add(self._client, unpack(encoded), rows)
        return messages.Representation(round_, encoded, penalty)


class TokenClient(ServedParty, TokenHolder, SecureSummand):
    """A client of MTCD (Algorithm 2): each token has a copy of theta_k, which a sync combines; see `LinkedParty`."""

    trains_theta_0 = False
    state: ClassVar[tuple[str, ...]] = (*ServedParty.state, *SecureSummand.state, "combined")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        SecureSummand.__init__(self, self._names)
        self.combined: Any = None
        """theta_k at the last sync, before momentum; None before the first."""
        self._copies: dict[int, tuple[int, Any]] = {}
        self._copies_round = -1

    # --- rows and labels, which what is summed follows from ---

    @remote(caller=CLIENT, only="label_party", once=True)
    @in_turn
    async def take_order(self, order: AlignmentOrder) -> None:
        """See `Party.take_order`: rows that a label party pairs with others' otherwise are in no sum with them."""
        self._told_rows(order)
        await super().take_order(order)

    def _told_rows(self, order: AlignmentOrder) -> None:
        self.heard("take_order", order)

    @remote(caller=DRIVER, once=True)
    @in_turn
    async def align(self) -> messages.Aligned:
        """See `Party.align`; the labels that it tells the others count as told to itself."""
        found = await super().align()
        self.heard("take_labels", self.rows.labels)
        return found

    @remote(caller=CLIENT, only="label_party", once=True)
    @in_turn
    async def take_labels(self, labels: messages.Labels) -> None:
        """See `Party.take_labels`."""
        self.heard("take_labels", labels)
        await super().take_labels(labels)

    # --- tokens ---

    def _check_step(self, token: messages.Token) -> None:
        """Refuse what `TokenHolder` does and, under masks, another step than the settings'.

        A small one to some, and a large weight, empty sums. So would copies of more tokens than the settings', or
        visits of more hops: each shrinks what a penalty shrinks.

        Raises:
            Refused: it is another one.
        """
        config = self._config
        if not config.secure_aggregation:
            super()._check_step(token)
            return
        # a sweep makes as many hops as its cluster has clients, if these are fewer
        is_within = 0 <= token.hop <= token.hop + token.hops_left <= config.num_hops
        if not (0 <= token.token < config.tokens and is_within):
            said = f"sends {self.name} token {token.token}, {token.hop} hops made and {token.hops_left} to come"
            raise Refused(self.caller, f"{said}; approved: {config.tokens} (num_tokens), {config.num_hops} (num_hops)")
        approved = approved_step(self._config, self._block.num_samples, token.round_)
        if not math.isclose(token.step, approved, rel_tol=1e-12):
            said = f"sends {self.name} a token of step {token.step:g} in round {token.round_}"
            raise Refused(self.caller, f"{said}; approved: {approved:g} (learning_rate)")

    def _check_weight(self, order: messages.SyncTokens) -> None:
        """Refuse, under masks, another weight of copies than the settings'.

        Raises:
            Refused: it is another one.
        """
        approved = 1.0 / self._config.tokens if self._config.mode == "overlapping" else 1.0
        if self._config.secure_aggregation and order.weight != approved:
            said = f"lets {self.name} combine its copies with weight {order.weight:g}"
            raise Refused(self.caller, f"{said}; approved: {approved:g} (mode)")

    def _check_momentum(self, order: messages.SyncTokens) -> None:
        """Refuse a momentum that no round can have: a large one makes what a client adds as large as one likes.

        Raises:
            Refused: it is beyond that, or below 0, or the settings have none.
        """
        most = most_momentum(self._config.num_rounds) if self._config.is_accelerated else 0.0
        if not 0.0 <= order.momentum <= most:
            said = f"lets {self.name} sync round {order.round_} with momentum {order.momentum:g}"
            raise Refused(self.caller, f"{said}; approved: at most {most:g} (acceleration)")

    def _end_walk(self, token: messages.Token) -> None:
        done = messages.RoamingDone(token.round_, token.token, token.attempt, token.visited)
        self.background(self._report(done, self.links.uplink or "server"))

    @remote(caller=CLIENT, unbounded="a word that carries no data")
    async def roaming_done(self, done: messages.RoamingDone) -> None:
        """Pass the word that a walk is over on towards the server."""
        await self._report(done, self.links.uplink or "server")

    def _copy(self, token: messages.Token) -> Any:
        """Return the copy of theta_k that the token is to work on, None if the token is outdated."""
        if token.round_ != self._copies_round:
            if token.round_ < self._copies_round:
                return None
            self._copies, self._copies_round = {}, token.round_
        attempt, theta = self._copies.get(token.token, (token.attempt, self.theta))
        if attempt > token.attempt:
            return None
        return theta if attempt == token.attempt else self.theta

    def _keep(self, token: messages.Token, theta: Any) -> bool:
        """Keep the token's copy, unless another issue or round has come meanwhile."""
        current, _ = self._copies.get(token.token, (token.attempt, None))
        if token.round_ != self._copies_round or current > token.attempt:
            return False
        self._copies[token.token] = (token.attempt, theta)
        return True

    # --- syncing ---

    @remote(caller=SERVER, once=True)
    @in_turn
    async def gather(self, order: messages.Gather) -> messages.Representation | Masked:
        """Return h_k on the round's rows."""
        return await super().gather(order)

    @remote(caller=SERVER, at_most="num_rounds")
    @in_turn
    async def sync(self, order: messages.SyncTokens) -> messages.Representation | Masked | None:
        """Combine the copies of this round's tokens, drop them, and return h_k for the next round if asked."""
        heard = self._hear("sync", order)
        self._check_weight(order)
        self._check_momentum(order)
        if self._copies_round == order.round_:
            counts = dict(order.reissued)
            copies = {k: theta for k, (attempt, theta) in self._copies.items() if counts.get(k, 0) == attempt}
            self.theta = combine(self.theta, copies, order.weight)
            self._copies = {}
        if self._config.is_accelerated:
            before = np.zeros_like(self.theta) if self.combined is None else self.combined
            self.combined = self.theta
            self.theta = self.combined + order.momentum * (self.combined - before)
        return await self._represent(order.round_ + 1, heard) if order.send_representation else None

    def _hear(self, endpoint: str, told: Any) -> bytes:
        return self.heard(endpoint, told)

    async def _represent(self, round_: int, heard: bytes = b"") -> messages.Representation | Masked:
        found = await super()._represent(round_)
        if not self._config.secure_aggregation or isinstance(found, Masked):
            return found
        values, point = summand(unpack(found.h), found.penalty), point_of(self._config)
        flag = values.size
        values = np.vstack([values, np.zeros_like(values[:1])])
        return self.masked_if_it_fits(values, point, what="a representation", heard=heard, flag=flag)
