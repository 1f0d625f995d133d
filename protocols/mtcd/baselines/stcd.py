"""STCD (Algorithm 1): one token, no server. It walks in stretches, which the driver begins where it rests.

    driver --walk_on--> holder --visit--> next client --> ... --roaming_done--> the holder that began the stretch

A token that never syncs has no copies: clients work on theta_k itself, and theta_0 is trained at each visit. With a
network a prelude goes first, along the graph's edges, to add up the first representations.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from fedactors.actors.groups import surviving_loss
from fedactors.actors.remote import CLIENT, DRIVER, remote
from fedactors.errors import CallTimeout, Refused
from fedactors.protocols.mtcd.actors import TokenHolder
from fedactors.protocols.mtcd.message_compression import unpack
from fedactors.protocols.mtcd.messages import FusionParameters, Prelude, RoamingDone, Token, TokenAtRest, WalkOrder
from fedactors.protocols.mtcd.roaming import next_client, walk_seed


class StcdClient(TokenHolder):
    """A party on the walk of the one token; arguments as of `LinkedParty`."""

    state: ClassVar[tuple[str, ...]] = (*TokenHolder.state, "resting_token", "is_in_z", "has_begun")
    resting_token: Token | None
    """The token between two stretches of its walk."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._walk_over: asyncio.Future[TokenAtRest] | None = None
        self.resting_token = None
        self.is_in_z = False
        """Whether the own first representation was added to Z: that is done once."""
        self.has_begun = False
        """Whether a prelude has ended here, and the walk begun."""

    @remote(caller=DRIVER, at_most="num_rounds")
    async def walk_on(self, order: WalkOrder) -> TokenAtRest:
        """Begin the token here, or go on with the one that is held, for a number of hops; wait for its end."""
        self._check_walk(order.tour, order.num_hops - 1, order.step)
        self._walk_over = asyncio.get_running_loop().create_future()
        resting_token, self.resting_token = self.resting_token, None
        if resting_token is not None:
            self._resume(resting_token, order)
        else:
            await self._begin(order)
        seconds = self._config.visit_timeout * (order.num_hops + 1 + len(order.tour))
        try:
            async with self.clock.timeout(seconds):
                return await self._walk_over
        except TimeoutError:
            text = f"the token that went on from here was not at rest within {seconds:g} s"
            raise CallTimeout(self.name, text) from None
        finally:
            self._walk_over = None

    def _check_walk(self, tour: tuple[int, ...], hops_left: int, step: float) -> None:
        """Refuse a walk that the approved settings do not have: who asks decides for how long others work.

        Raises:
            Refused: it has more hops, a tour of more stations than one that goes back and forth, or no step.
        """
        num_clients, most = len(self._names), self._config.num_hops
        is_tour = len(tour) <= 2 * num_clients and all(0 <= client < num_clients for client in tour)
        if not (-1 <= hops_left <= most and is_tour and 0 < step < math.inf):
            said = f"begins a walk at {self.name} of {hops_left + 1} hops and a tour of {len(tour)}, step {step:g}"
            raise Refused(self.caller, f"{said}; approved: {most + 1} hops (num_hops), a tour of {2 * num_clients}")

    def _is_issued(self, token: Token) -> bool:
        """Say whether it is the one token that there is, of a client that waits for its end."""
        is_only = (token.round_, token.token, token.attempt) == (0, 0, 0)
        return is_only and 0 <= token.issuer < len(self._names)

    def _resume(self, resting_token: Token, order: WalkOrder) -> None:
        """Take the hop that leads from the last stretch to this one."""
        hop = resting_token.hop + 1
        target = next_client(walk_seed(self._walks, 0, 0), hop, self.links)
        token = dataclasses.replace(
            resting_token, hop=hop, hops_left=order.num_hops - 1, step=order.step, issuer=self._client, visited=0
        )
        if target == self._client:
            self.background(self.visit(token))
        else:
            z = self._packed(unpack(token.z), 0, 0, 0, hop)
            self.background(self._deliver(dataclasses.replace(token, z=z), self._names[target]))

    async def _begin(self, order: WalkOrder) -> None:
        if self.is_in_z:
            raise Refused(self.caller, f"has {self.name} begin a walk, which it had its part in already")
        theta_0 = self._block.initial_theta_0(self.rng("fusion"))
        z = await self._with_local(self._block.blank(self._block.num_samples), is_sent=bool(order.tour))
        if not order.tour:
            self.background(self.visit(Token(0, 0, 0, 0, order.num_hops, order.step, self._client, 0, z, theta_0)))
            return
        visited = 1 << self._client
        prelude = Prelude(0, order.tour, visited, order.num_hops, order.step, self._client, z, theta_0)
        self._lead_on(prelude)

    def _lead_on(self, prelude: Prelude) -> None:
        position = prelude.position + 1
        z = self._packed(unpack(prelude.z), 0, 0, 0, position)
        self.background(self._send_prelude(dataclasses.replace(prelude, position=position, z=z)))

    async def _send_prelude(self, prelude: Prelude) -> None:
        with surviving_loss("the run stops with its name"):
            await self.peer(self._names[prelude.tour[prelude.position]], StcdClient).take_prelude(prelude)

    @property
    def neighbours(self) -> tuple[str, ...]:
        """Names of the clients that it has links to."""
        return tuple(self._names[client] for client in self.links.options if client != self._client)

    @remote(caller=CLIENT, only="neighbours", unbounded="adds the own part once")
    async def take_prelude(self, prelude: Prelude) -> None:
        """Add the own representation to Z if this is the first time, and send the prelude on, or begin the walk."""
        position, tour, before = prelude.position, prelude.tour, self._names.index(self.caller)
        is_new, is_end = not prelude.visited >> self._client & 1, position + 1 == len(tour)
        if not 0 < position < len(tour) or tour[position - 1 : position + 1] != (before, self._client):
            raise Refused(self.caller, f"sends {self.name} a prelude that does not come along its tour")
        self._check_walk(tour, prelude.hops_left, prelude.step)
        if not (0 <= prelude.issuer < len(self._names) and 0 <= prelude.visited < 1 << len(self._names)):
            raise Refused(self.caller, f"sends {self.name} a prelude of clients that there are not")
        if (is_new and self.is_in_z) or (is_end and self.has_begun):
            raise Refused(self.caller, f"sends {self.name} a prelude, which had its own already")
        self.has_begun = self.has_begun or is_end
        z = self._arrived(prelude.z, None)
        if is_new:
            z = await self._with_local(z, is_sent=True)
        prelude = dataclasses.replace(prelude, z=z, visited=prelude.visited | 1 << self._client)
        if prelude.position + 1 < len(prelude.tour):
            self._lead_on(prelude)
        else:
            token = Token(0, 0, 0, 0, prelude.hops_left, prelude.step, prelude.issuer, 0, z, prelude.theta_0)
            await self.visit(token)

    async def _with_local(self, z: Any, *, is_sent: bool) -> Any:
        """Return Z with the own representation in it, under the configured noise if it is to be sent as it is."""
        self.is_in_z = True
        with_local = z.copy()
        with_local[self._block.local] += await self._do(self._block.represent(self.theta, None))
        is_bare = not is_sent and np.array_equal(
            with_local, z
        )  # linear, before the first visit: there is nothing to hide
        if self._transforms.noise is not None and not is_bare:
            return self._noised_change(z, with_local, (0, 0, 0))
        return with_local

    def _end_walk(self, token: Token) -> None:
        self.resting_token = token
        done = RoamingDone(0, 0, 0, token.visited)
        self.background(self._report(done, self._names[token.issuer]))

    @remote(caller=CLIENT, unbounded="a word that carries no data")
    async def roaming_done(self, done: RoamingDone) -> None:
        """Take the word that the stretch that began here is over."""
        if self._walk_over is not None and not self._walk_over.done():
            self._walk_over.set_result(TokenAtRest(self._names.index(self.caller)))

    @remote(caller=DRIVER, at_most="num_measurements")
    async def fusion_parameters(self) -> FusionParameters:
        """Return theta_0 of the token that rests here; before the first walk the one to be."""
        if self.resting_token is not None:
            return FusionParameters(self.resting_token.theta_0)
        return FusionParameters(self._block.initial_theta_0(self.rng("fusion")))
