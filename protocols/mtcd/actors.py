"""The client of MTCD, STCD and SVFL: it works on visiting tokens and passes them on.

    server or neighbour --visit(token)--> client: Q steps on the token's own copy of theta_k --visit--> next client
                                                  after the last hop: --roaming_done--> whoever issued the token
    server --sync(order)--> client: theta_k <- combination of the copies, h_k back

Copies are made when a token first comes in a roaming phase and dropped at the sync; a later issue of the same token
outdates the copy of the earlier one. Two tokens may be here at once: each works on its own copy.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from fedactors.data.alignment import AlignmentAnswer, AlignmentOrder, AlignmentQuestion, align
from fedactors.data.partitions import VerticalData
from fedactors.errors import CallTimeout, PartyLost
from fedactors.roles import Client
from fedactors.runtime.base import Work
from protocols.mtcd import walk
from protocols.mtcd.algorithm import Rows, batch_rows
from protocols.mtcd.config import MtcdConfig
from protocols.mtcd.data import MtcdData
from protocols.mtcd.local import LocalData
from protocols.mtcd.messages import (
    Gather,
    Labels,
    Links,
    Measured,
    Probe,
    ProbeImage,
    Representation,
    RoamingDone,
    SyncedZ,
    SyncTokens,
    Token,
)
from protocols.mtcd.wire import Estimates, Wire, privacy_record, unpack

SERVER = "server"


class TokenClient(Client):
    """One party.

    Args:
        config: the run's settings.
        data: who holds what; only the own part is loaded.
        client: this client's number.
        links: where a token may go from here.
        seed: shared by all parties, for batches and the split of rows.
    """

    state: ClassVar[tuple[str, ...]] = (
        "local",
        "theta",
        "links",
        "held",
        "estimates",
        "num_released",
    )

    def __init__(self, config: MtcdConfig, data: MtcdData, client: int, links: Links, seed: int) -> None:
        self._config = config
        self._data = data
        self._names = data.parties
        self._client = client
        self._seed = seed
        self._wire = Wire.of(config)
        self._never_syncs = config.algorithm == "stcd"
        self._copies: dict[int, tuple[int, Any]] = {}
        self._copies_round = -1
        self._walk_over: asyncio.Future[RoamingDone] | None = None
        self.local = LocalData(config, data, client, seed)
        self.links = links
        self.theta: Any = None
        self.held: Token | None = None
        """STCD: the token between two stretches of its walk."""
        self.num_released = {"Representation": 0, "Token": 0}

    # --- life and data ---

    async def load(self) -> None:
        """Load the own part."""
        self.local.load()
        self.estimates = Estimates(0)
        if not isinstance(self._data, VerticalData):
            self._build()

    async def open(self) -> None:
        """Prepare the rows when they come from a snapshot."""
        self._noise = self.noise_rng("representations")
        if isinstance(self._data, VerticalData) and self.local.is_ready:
            self._build()

    def _build(self) -> None:
        self._block = self.local.block(self.name)
        restored = self.estimates.state_dict()
        self.estimates = Estimates(self._block.num_samples)
        self.estimates.load_state_dict(restored)
        if self.theta is None:
            self.theta = self._block.initial(self.rng("initialisation"))

    async def answer_alignment(self, question: AlignmentQuestion) -> AlignmentAnswer:
        """Answer the label party's alignment question."""
        return self.local.answer(question)

    async def take_order(self, order: AlignmentOrder) -> None:
        """Follow the common order of rows."""
        self.local.follow(order)

    async def align(self, how: Any, others: tuple[str, ...], learners: tuple[str, ...]) -> None:
        """Align all parties' rows (called at the label party) and tell `learners` the labels, as agreed."""
        peers = {name: self.peer(name, TokenClient) for name in others}
        rng = self.noise_rng("row order") if how != "already-aligned" else self.rng("row order")
        self.local.take_rows(await align(self.local.ids, self.name, how, peers, rng))
        labels = self.local.own_labels()
        self._build()
        for name in learners:
            await self.peer(name, TokenClient).take_labels(labels)

    async def take_labels(self, labels: Labels) -> None:
        """Take the labels from the label party."""
        self.local.labels = labels
        self._build()

    async def relink(self, links: Links) -> None:
        """Learn where tokens may go after a client was lost."""
        if links.route:
            await self._relay(links.route).relink(replace(links, route=links.route[1:]))
        else:
            self.links = links

    # --- tokens ---

    async def visit(self, token: Token) -> None:
        """Work on a token that has come, then pass it on; an outdated one ends here."""
        if token.is_prelude:
            await self._gather_prelude(token)
            return
        z = arrived = unpack(token.z)
        theta_0, rows, block = token.theta_0, self._rows(token.round_), self._block
        hop, hops_left, target = token.hop, token.hops_left, None
        while True:
            theta = self._copy(token)
            if theta is None:
                return
            function, arguments, work = block.visit(theta, theta_0, z, rows, token.step, self._never_syncs)
            result = await self.compute(function, *arguments, work=work)
            theta, theta_0, z = block.visited(result, theta_0)
            if not self._keep(token, theta):
                return
            if hops_left == 0:
                target = None
                break
            hop, hops_left = hop + 1, hops_left - 1
            target = token.route[hop] if token.route else walk.next_client(token.walk_seed, hop, self.links.options)
            if target != self._client:
                break
        if self._wire.noise is not None:
            z = self._noised_change(arrived, z, (token.round_, token.token + 1, hop))
        is_moving = target is not None
        moved = Token(
            token.round_,
            token.token,
            token.attempt,
            hop,
            hops_left,
            token.moves + is_moving,
            token.walk_seed,
            token.step,
            token.issuer,
            self._packed(z, token, hop) if is_moving else z,
            theta_0,
            token.visited | 1 << self._client,
            token.route,
        )
        if target is None:
            self._end_walk(moved)
        else:
            self.background(self._deliver(moved, self._names[target]))

    def _pass_on(self, token: Token, target: int) -> None:
        z = self._packed(unpack(token.z), token, token.hop)
        self.background(self._deliver(replace(token, moves=token.moves + 1, z=z), self._names[target]))

    def _packed(self, z: Any, token: Token, hop: int) -> Any:
        if self._wire.token is None:
            return z
        return self._wire.pack_token(z, self.seed("rounding"), token.round_, token.token, token.attempt, hop)

    async def _deliver(self, token: Token, name: str) -> None:
        try:
            await self.peer(name, TokenClient).visit(token)
        except PartyLost:
            return  # the issuer is told of the loss by the runtime, and issues the token again or stops

    def _end_walk(self, token: Token) -> None:
        done = RoamingDone(token.round_, token.token, token.attempt, self._client, token.visited, token.moves)
        if self._never_syncs:
            self.held = token
        issuer = SERVER if token.issuer < 0 else self._names[token.issuer]
        self.background(self._report(done, issuer))

    async def _report(self, done: RoamingDone, issuer: str) -> None:
        """Tell the issuer; without a link to the server the word goes over a neighbour."""
        station = issuer if self._never_syncs or not self.links.uplink else self.links.uplink
        try:
            await self.peer(station, TokenClient).roaming_done(done)
        except PartyLost:
            return  # as above

    async def roaming_done(self, done: RoamingDone) -> None:
        """Take the word that a walk begun here is over, or relay it towards the server."""
        if self._walk_over is not None:
            if not self._walk_over.done():
                self._walk_over.set_result(done)
        else:
            await self._report(done, SERVER)

    def _copy(self, token: Token) -> Any:
        """Return the copy of theta_k that the token is to work on, None if the token is outdated."""
        if self._never_syncs:
            return self.theta
        if token.round_ != self._copies_round:
            if token.round_ < self._copies_round:
                return None
            self._copies, self._copies_round = {}, token.round_
        attempt, theta = self._copies.get(token.token, (token.attempt, self.theta))
        if attempt > token.attempt:
            return None
        return theta if attempt == token.attempt else self.theta

    def _keep(self, token: Token, theta: Any) -> bool:
        """Keep the token's copy, unless another issue or round has come meanwhile."""
        if self._never_syncs:
            self.theta = theta
            return True
        current, _ = self._copies.get(token.token, (token.attempt, None))
        if token.round_ != self._copies_round or current > token.attempt:
            return False
        self._copies[token.token] = (token.attempt, theta)
        return True

    # --- syncing ---

    async def gather(self, order: Gather) -> Representation:
        """Return h_k on the round's rows."""
        if order.route:
            return await self._relay(order.route).gather(replace(order, route=order.route[1:]))
        return await self._represent(order.round_)

    async def sync(self, order: SyncTokens) -> Representation | None:
        """Combine the copies of this round's tokens, drop them, and return h_k for the next round if asked."""
        if order.route:
            return await self._relay(order.route).sync(replace(order, route=order.route[1:]))
        if self._copies_round == order.round_:
            valid = dict(order.attempts)
            copies = {token: theta for token, (attempt, theta) in self._copies.items() if valid.get(token) == attempt}
            weights_G = np.full(max(valid, default=0) + 1, order.weight)
            self.theta = self._block.combine(self.theta, copies, weights_G)
            self._copies = {}
        return await self._represent(order.round_ + 1) if order.send_representation else None

    async def step_on(self, synced: SyncedZ) -> Representation | None:
        """SVFL: do the local steps on one's own block with the others frozen."""
        if synced.route:
            return await self._relay(synced.route).step_on(replace(synced, route=synced.route[1:]))
        z, rows = unpack(synced.z), self._rows(synced.round_)
        function, arguments, work = self._block.visit(self.theta, synced.theta_0, z, rows, synced.step, False)
        result = await self.compute(function, *arguments, work=work)
        self.theta = self._block.visited(result, synced.theta_0)[0]
        return await self._represent(synced.round_ + 1) if synced.send_representation else None

    def _relay(self, route: tuple[str, ...]) -> TokenClient:
        return self.peer(route[0], TokenClient)

    def _rows(self, round_: int) -> Rows | None:
        return batch_rows(self._seed, round_, self._block.num_samples, self._config.batch_size)

    async def _represent(self, round_: int) -> Representation:
        rows = self._rows(round_)
        function, arguments, work = self._block.represent(self.theta, rows)
        h = await self.compute(function, *arguments, work=work)
        wire, penalty = self._wire, 0.0 if self._wire.noise is not None else self._block.penalty(self.theta)
        if wire.noise is not None:
            self.num_released["Representation"] += 1
            h = wire.noised(h.reshape(len(h), -1), self._noise_for((round_, 0, 0))).reshape(h.shape)
        if wire.representation is None:
            return Representation(round_, self._client, h, penalty)
        if wire.has_estimate:
            h = h - self.estimates.known(self._client, h, rows)
        encoded, _ = wire.representation.encode(h, None, np.random.default_rng([self.seed("rounding"), round_]))
        if wire.has_estimate:
            self.estimates.add(self._client, unpack(encoded), rows)
        return Representation(round_, self._client, encoded, penalty)

    def _noise_for(self, place: tuple[int, int, int]) -> np.random.Generator:
        """Return the noise generator; where noise is to be reproducible, one that no order of events can change."""
        if self._context.reproducible_noise:
            return np.random.default_rng([self.seed("noise"), *place])
        return self._noise

    def _noised_change(self, before: Any, after: Any, place: tuple[int, int, int]) -> Any:
        """Return Z with this visit's change clipped and noised."""
        self.num_released["Token"] += 1
        change, where = self._block.own_change(after - before, self._client)
        noised = before.copy()
        noised[where] += self._wire.noised(change, self._noise_for(place)).reshape(noised[where].shape)
        return noised

    # --- STCD: a walk without a server ---

    async def walk_on(self, num_hops: int, step: float, walk_seed: int, tour: tuple[int, ...]) -> RoamingDone:
        """Begin the token here, or go on from here with the one that is held, for `num_hops` hops; wait for its end.

        The first time, with `tour` given, the token first goes along it to add up the representations.
        """
        self._walk_over = asyncio.get_running_loop().create_future()
        held, self.held = self.held, None
        if held is None:
            theta_0 = self._block.initial_theta_0(self.rng("fusion"))
            function, arguments, work = self._block.represent(self.theta, None)
            z = self._block.blank(await self.compute(function, *arguments, work=work), self._client)
            token = Token(0, 0, 0, 0, num_hops, 0, walk_seed, step, self._client, z, theta_0)
            if tour:
                token = replace(token, visited=1 << self._client, route=tour, is_prelude=True)
                self._pass_on(replace(token, hop=1), tour[1])
            else:
                self.background(self.visit(token))
        else:
            token = replace(held, issuer=self._client, step=step, visited=0, moves=0, hops_left=num_hops - 1)
            token = replace(token, hop=held.hop + 1)
            target = walk.next_client(walk_seed, token.hop, self.links.options)
            if target == self._client:
                self.background(self.visit(token))
            else:
                self._pass_on(token, target)
        seconds = self._config.visit_timeout * (num_hops + 1 + len(tour))
        try:
            async with self.clock.timeout(seconds):
                return await self._walk_over
        except TimeoutError:
            raise CallTimeout(
                self.name, f"the token that went on from here was not at rest within {seconds:g} s"
            ) from None
        finally:
            self._walk_over = None

    async def _gather_prelude(self, token: Token) -> None:
        z = unpack(token.z)
        if not token.visited >> self._client & 1:
            z = await self._added(token, z)
        token = replace(token, z=z, visited=token.visited | 1 << self._client)
        if token.hop + 1 < len(token.route):
            self._pass_on(replace(token, hop=token.hop + 1), token.route[token.hop + 1])
        else:
            await self.visit(replace(token, hop=0, visited=0, route=(), is_prelude=False))

    async def _added(self, token: Token, z: Any) -> Any:
        function, arguments, work = self._block.represent(self.theta, None)
        h = await self.compute(function, *arguments, work=work)
        return self._block.with_own(z, h, self._client)

    # --- step sizes and measuring ---

    async def smoothness(self, route: tuple[str, ...] = ()) -> float:
        """Return L_block of this client's block."""
        if route:
            return await self._relay(route).smoothness(route[1:])
        return await self.compute(self._block.smoothness, work=Work("probe", 100 * self._block.num_samples))

    async def probe(self, probe: Probe) -> ProbeImage:
        """Return X_k X_k^T u."""
        if probe.route:
            return await self._relay(probe.route).probe(replace(probe, route=probe.route[1:]))
        work = Work("probe", self._block.num_samples)
        return ProbeImage(self._client, await self.compute(self._block.kernel_image, probe.vector, work=work))

    async def measure(self, part: str) -> Measured:
        """Return h_k on all training or test rows, and r(theta_k), to the driver."""
        function, arguments, work = self._block.represent(self.theta, None, part)
        h = await self.compute(function, *arguments, work=work)
        return Measured(self._client, h, self._block.penalty(self.theta))

    async def fusion_parameters(self) -> dict[str, Any]:
        """STCD: return theta_0 of the token that rests here, to the driver; before the first walk the one to be."""
        if self.held is not None:
            return dict(self.held.theta_0)
        return dict(self._block.initial_theta_0(self.rng("fusion")))

    async def known_labels(self) -> Labels:
        """Return the labels, to the driver, for measuring."""
        assert self.local.labels is not None
        return self.local.labels

    async def account(self) -> dict[str, float]:
        """Record what noised releases cost this party; return the budgets by message type."""
        budgets: dict[str, float] = {}
        if self._wire.noise is None:
            return budgets
        num_rows = self._config.batch_size or self._block.num_samples
        for message_type, count in self.num_released.items():
            reproducible = self._context.reproducible_noise
            record = privacy_record(self._config, self.party, message_type, count, num_rows, reproducible)
            self.record_privacy(record)
            budgets[message_type] = float("inf") if record.rigorous_mu is None else record.rigorous_mu
        return budgets
