"""STCD (Algorithm 1): one token, no server. It walks in stretches, which the driver begins where it rests.

    driver --walk_on--> holder --visit--> next client --> ... --roaming_done--> the holder that began the stretch

A token that never syncs has no copies: clients work on theta_k itself, and theta_0 is trained at each visit. With a
network a prelude goes first, along the graph's edges, to add up the first representations.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any, ClassVar

from fedactors.data.partitions import VerticalPart
from fedactors.errors import CallTimeout
from fedactors.parties import surviving_loss
from fedactors.remote import CLIENT, DRIVER, remote
from protocols.mtcd.actors import TokenClient
from protocols.mtcd.config import MtcdConfig
from protocols.mtcd.data import PublicPart
from protocols.mtcd.messages import FusionParameters, Links, Prelude, RoamingDone, Token, TokenAtRest, WalkOrder
from protocols.mtcd.roaming import next_client, walk_seed
from protocols.mtcd.transforms import unpack


class StcdClient(TokenClient):
    """A party on the token's walk; arguments as of `ServedParty`."""

    state: ClassVar[tuple[str, ...]] = (*TokenClient.state, "held")
    trains_theta_0: ClassVar[bool] = True

    def __init__(
        self, config: MtcdConfig, part: VerticalPart | PublicPart, seed: int, links: Links, walks: int
    ) -> None:
        super().__init__(config, part, seed, links, walks)
        self._walk_over: asyncio.Future[TokenAtRest] | None = None
        self.held: Token | None = None
        """The token between two stretches of its walk."""

    @remote(caller=DRIVER)
    async def walk_on(self, order: WalkOrder) -> TokenAtRest:
        """Begin the token here, or go on with the one that is held, for a number of hops; wait for its end."""
        self._walk_over = asyncio.get_running_loop().create_future()
        held, self.held = self.held, None
        if held is not None:
            self._resume(held, order)
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

    def _resume(self, held: Token, order: WalkOrder) -> None:
        """Take the hop that leads from the last stretch to this one."""
        hop = held.hop + 1
        target = next_client(walk_seed(self._walks, 0, 0), hop, self.links)
        token = dataclasses.replace(
            held, hop=hop, hops_left=order.num_hops - 1, step=order.step, issuer=self._client, visited=0
        )
        if target == self._client:
            self.background(self.visit(token))
        else:
            z = self._packed(unpack(token.z), 0, 0, 0, hop)
            self.background(self._deliver(dataclasses.replace(token, z=z), self._names[target]))

    async def _begin(self, order: WalkOrder) -> None:
        theta_0 = self._block.initial_theta_0(self.rng("fusion"))
        z = await self._with_own(self._block.blank(self._block.num_samples))
        if not order.tour:
            self.background(self.visit(Token(0, 0, 0, 0, order.num_hops, order.step, self._client, 0, z, theta_0)))
            return
        visited = 1 << self._client
        prelude = Prelude(0, order.tour, visited, order.num_hops, order.step, self._client, z, theta_0)
        self._lead_on(prelude)

    def _lead_on(self, prelude: Prelude) -> None:
        place = prelude.place + 1
        z = self._packed(unpack(prelude.z), 0, 0, 0, place)
        self.background(self._send_prelude(dataclasses.replace(prelude, place=place, z=z)))

    async def _send_prelude(self, prelude: Prelude) -> None:
        with surviving_loss("the run stops with its name"):
            await self.peer(self._names[prelude.tour[prelude.place]], StcdClient).take_prelude(prelude)

    @remote(caller=CLIENT)
    async def take_prelude(self, prelude: Prelude) -> None:
        """Add the own representation to Z if this is the first time, and send the prelude on, or begin the walk."""
        z = unpack(prelude.z)
        if not prelude.visited >> self._client & 1:
            z = await self._with_own(z)
        prelude = dataclasses.replace(prelude, z=z, visited=prelude.visited | 1 << self._client)
        if prelude.place + 1 < len(prelude.tour):
            self._lead_on(prelude)
        else:
            token = Token(0, 0, 0, 0, prelude.hops_left, prelude.step, prelude.issuer, 0, z, prelude.theta_0)
            await self.visit(token)

    async def _with_own(self, z: Any) -> Any:
        """Return Z with the own representation in it."""
        with_own = z.copy()
        with_own[self._block.own] += await self._do(self._block.represent(self.theta, None))
        return with_own

    # --- what differs from a token that syncs ---

    def _copy(self, token: Token) -> Any:
        return self.theta

    def _keep(self, token: Token, theta: Any) -> bool:
        self.theta = theta
        return True

    def _end_walk(self, token: Token) -> None:
        self.held = token
        done = RoamingDone(0, 0, 0, token.visited)
        self.background(self._report(done, self._names[token.issuer]))

    @remote(caller=CLIENT)
    async def roaming_done(self, done: RoamingDone) -> None:
        """Take the word that the stretch that began here is over."""
        if self._walk_over is not None and not self._walk_over.done():
            self._walk_over.set_result(TokenAtRest(self._names.index(self.caller)))

    @remote(caller=DRIVER)
    async def fusion_parameters(self) -> FusionParameters:
        """Return theta_0 of the token that rests here; before the first walk the one to be."""
        if self.held is not None:
            return FusionParameters(self.held.theta_0)
        return FusionParameters(self._block.initial_theta_0(self.rng("fusion")))
