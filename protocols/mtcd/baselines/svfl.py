"""SVFL (FedBCD-parallel): a server, and every client in every round, all with the same Z.

server --step_on(Z, theta_0)--> every client: Q steps on its own block, the others frozen --h_k--> server
"""

from __future__ import annotations

import asyncio
import math

from fedactors.actors.remote import DRIVER, SERVER, remote
from fedactors.errors import Refused
from fedactors.protocols.mtcd.actors import ServedParty
from fedactors.protocols.mtcd.messages import Representation, RoundOrder, SyncedZ
from fedactors.protocols.mtcd.server import GatheringServer
from fedactors.secure_sums.messages import Masked


class SvflClient(ServedParty):
    """A party that steps when the server says so; arguments as of `ServedParty`."""

    @remote(caller=SERVER, at_most="num_rounds")
    async def step_on(self, synced: SyncedZ) -> Representation | Masked | None:
        """Do the local steps on one's own block with the others frozen; return h_k for the next round if asked."""
        self._check_round_step(synced)
        rows = self._rows_of(synced.round_)
        z = self._arrived(synced.z, rows)
        task = self._block.visit(self.theta, synced.theta_0, z, rows, synced.step, False)
        self.theta, _, _ = await self._do(task)
        return await self._represent(synced.round_ + 1) if synced.send_representation else None

    def _check_round_step(self, synced: SyncedZ) -> None:
        """Refuse a step that the approved settings do not take.

        Raises:
            Refused: it is none, or larger than they say.
        """
        most = math.inf if self._config.learning_rate == "auto" else float(self._config.learning_rate) * (1 + 1e-9)
        if not 0 < synced.step <= most or synced.step == math.inf:
            said = f"lets {self.name} step by {synced.step:g} in round {synced.round_}"
            raise Refused(self.caller, f"{said}; approved: above 0, at most {most:g} (learning_rate)")


class SvflServer(GatheringServer):
    """The server that sends Z to all clients; arguments as of `GatheringServer`."""

    @remote(caller=DRIVER, at_most="num_rounds")
    async def step_all(self, order: RoundOrder) -> None:
        """Send Z to all clients, train theta_0 meanwhile, and form Z of what they send back."""
        self._round = order.round_
        full = self._config.batch_size is None
        z = self._transforms.pack_token(self.z, self.seed("rounding"), order.round_)
        told = SyncedZ(order.round_, order.step, z, self.theta_0, full or not order.is_last)
        orders = dict.fromkeys(self.roaming.clients, told)
        training = self._train_theta_0(order, self._config.num_local_steps)
        await asyncio.gather(self._collect("step_on", orders, order.round_ + 1, fresh=not full), training)
        self._take_trained()
