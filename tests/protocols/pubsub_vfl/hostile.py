"""A stranger that calls what it should not, in a module that a process of its own can import."""

from __future__ import annotations

import numpy as np

from fedactors.actors.actor import Client, Server
from fedactors.actors.remote import DRIVER, remote
from fedactors.data.alignment.ids import AlignmentOrder
from fedactors.messages.codec import message
from fedactors.protocols.pubsub_vfl.actors import PassiveWorker
from fedactors.protocols.pubsub_vfl.messages import (
    EpochOrder,
    Gradient,
    InitialOrders,
    LostWorker,
    Parameters,
    PartRequest,
    Report,
    RowOrder,
)

MESSAGES = {
    "backward": Gradient(0, 1, 1, 0.0, np.zeros((2, 4), np.float32)),
    "run_epoch": EpochOrder(1),
    "take_first": InitialOrders(1, ((0, 1),)),
    "take_rows": RowOrder(np.arange(3), np.zeros(0, np.uint8), np.zeros(0), np.zeros(0), np.zeros(0, np.int64)),
    "average": Parameters(1, 0, 1.0, (np.zeros(3, np.float32),)),
    "evaluate": PartRequest("test"),
    "account": None,
    "embed_part": PartRequest("test"),
    "take_order": AlignmentOrder(b"", np.zeros((0, 32), np.uint8), np.zeros(0, np.uint8)),
    "lose": LostWorker("passive/worker-0"),
    "report": Report((), (), 1, False),
    "load": None,
    "recall": None,
}


@message(reveals="nothing")
class Attempt:
    """What to call of whom."""

    target: str
    method: str


class Outsider(Client):
    """Belongs to a party that has no part in the run."""

    @remote(caller=DRIVER)
    async def attempt(self, attempt: Attempt) -> None:
        """Call it."""
        peer = self.peer(attempt.target, PassiveWorker)
        await getattr(peer, attempt.method)(MESSAGES[attempt.method])


class StrangeServer(Server):
    """Has a server's role, and no part in the run."""

    @remote(caller=DRIVER)
    async def attempt(self, attempt: Attempt) -> None:
        """Call it."""
        await getattr(self.peer(attempt.target, PassiveWorker), attempt.method)(MESSAGES[attempt.method])
