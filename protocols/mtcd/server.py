"""The server of MTCD and SVFL: it forms Z, issues tokens, trains theta_0 (token 0) and syncs; GLM runs load no torch.

Who waits for whom: the server waits for all representations of a round, then for the end of every token's roaming
(`roaming.Roaming` says which issue counts); a lost client makes it issue tokens again. Every wait has a timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from fedactors.errors import CallTimeout, PartyLost
from fedactors.roles import Server
from fedactors.runtime.base import Work
from protocols.mtcd.actors import TokenClient
from protocols.mtcd.algorithm import batch_rows
from protocols.mtcd.config import MtcdConfig
from protocols.mtcd.glm import GlmHead
from protocols.mtcd.messages import (
    Gather,
    Labels,
    Links,
    Probe,
    ProbeImage,
    Representation,
    RoamingDone,
    SyncedZ,
    SyncTokens,
    Token,
)
from protocols.mtcd.roaming import Issue, Roaming
from protocols.mtcd.wire import Estimates, Wire, unpack

_NUM_PROBES = 30
_PROBE_MARGIN = 1.1
"""The Rayleigh quotient of few probes is below the eigenvalue."""


class TokenServer(Server):
    """The server.

    Args:
        config: the run's settings.
        names: the clients' names, by number.
        labels: training labels where every actor can make them, else None: then the label party sends them.
        num_classes: for the fusion model of a network.
        roaming: who may roam where; fresh.
        seed: shared by all parties, for batches.
    """

    state: ClassVar[tuple[str, ...]] = (
        "labels",
        "z",
        "theta_0",
        "known",
        "penalties",
        "roaming",
        "estimates",
        "has_begun",
    )

    def __init__(
        self,
        config: MtcdConfig,
        names: Sequence[str],
        labels: Any,
        num_classes: int,
        roaming: Roaming,
        seed: int,
    ) -> None:
        self._config = config
        self._names = tuple(names)
        self._num_classes = num_classes
        self._seed = seed
        self._wire = Wire.of(config)
        self._over = asyncio.Event()
        self._round = 0
        self._step = 0.0
        self._trained: Any = None
        self.labels = labels
        self.roaming = roaming
        self.z: Any = None
        self.theta_0: Any = {}
        self.known: dict[int, Any] = {}
        """Representations as the server has them: of the round's rows."""
        self.penalties: dict[int, float] = {}
        self.has_begun = False

    # --- life ---

    async def load(self) -> None:
        """Make what a snapshot may replace."""
        self.estimates = Estimates(0)

    async def open(self) -> None:
        """Build the head once labels are there."""
        if self.labels is not None:
            self._build()

    async def take_labels(self, labels: Labels) -> None:
        """Take the labels from the label party."""
        self.labels = labels.train
        self._build()

    def _build(self) -> None:
        restored = self.estimates.state_dict()
        self.estimates = Estimates(len(self.labels))
        self.estimates.load_state_dict(restored)
        if self._config.problem != "network":
            self._head: Any = GlmHead(self._config, self.labels)
        else:
            from protocols.mtcd.network_parts import NetworkHead

            self._head = NetworkHead(self._config, self.labels, self._num_classes)
        if not self.has_begun:
            self.theta_0 = self._head.initial(self.rng("initialisation"))

    # --- a round (Algorithm 2) ---

    async def gather(self, round_: int) -> None:
        """Form Z for the first round; theta = 0 of a linear model on all rows needs no message (Z = 0)."""
        self.has_begun = True
        self.z = self._head.nothing() if self._config.batch_size is None else None
        if self.z is None:
            orders = [(client, Gather(round_, self._route(client))) for client in self.roaming.clients]
            await self._collect("gather", orders, round_)

    async def roam(self, round_: int, step: float) -> int:
        """Issue the round's tokens, train theta_0 meanwhile, and wait for the end of all roaming.

        Returns:
            hops that crossed a link.

        Raises:
            CallTimeout: a token was not back in time although nobody was lost.
        """
        self._round, self._step = round_, step
        self._over.clear()
        for issue in self.roaming.begin(round_):
            self.background(self._issue(issue))
        config = self._config
        await self._train_theta_0(round_, step, config.num_local_steps * (config.num_hops + 1))
        if not self.roaming.finished:
            seconds = config.visit_timeout * (config.num_hops + 1)
            with self.span("wait", "tokens"):
                try:
                    async with self.clock.timeout(seconds):
                        await self._over.wait()
                except TimeoutError:
                    text = f"tokens {list(self.roaming.outstanding)} were not back within {seconds:g} s"
                    raise CallTimeout(self.name, text) from None
        return self.roaming.num_moves

    async def sync(self, round_: int, is_last: bool) -> int:
        """Let clients combine their copies (line 12) and form Z for the next round; return how many re-sent h_k.

        With the full batch only clients whose block changed are told; with a mini-batch all send h_k of the new rows.
        """
        full = self._config.batch_size is None
        roaming = self.roaming
        clients = sorted(roaming.changed) if full or is_last else roaming.clients
        clients = [client for client in clients if roaming.route(client)]
        attempts = tuple(sorted(roaming.attempts.items()))
        overlapping = self._config.mode == "overlapping"
        weight = 1.0 / max(1, len(attempts)) if overlapping else 1.0
        send = full or not is_last
        orders = [(c, SyncTokens(round_, attempts, weight, send, self._route(c))) for c in clients]
        self._take_trained()
        return await self._collect("sync", orders, round_ + 1, fresh=not full)

    async def parallel(self, round_: int, step: float, is_last: bool) -> int:
        """SVFL's round: send Z to all clients, train theta_0 meanwhile, and form Z of what they send back."""
        self._round = round_
        full = self._config.batch_size is None
        z = self._wire.pack_token(self.z, self.seed("rounding"), round_)
        send = full or not is_last
        orders = [(c, SyncedZ(round_, step, z, self.theta_0, send, self._route(c))) for c in self.roaming.clients]
        training = self._train_theta_0(round_, step, self._config.num_local_steps)
        num_sent, _ = await asyncio.gather(self._collect("step_on", orders, round_ + 1, fresh=not full), training)
        self._take_trained()
        return num_sent

    async def objective(self) -> float:
        """Return f as the server knows it: phi(Z) on the round's rows and the regularisers that it was told."""
        rows = batch_rows(self._seed, self._round + 1, len(self.labels), self._config.batch_size)
        penalties = sum(self.penalties[client] for client in sorted(self.penalties))
        return float(self._head.loss(self.theta_0, self.z, rows)) + penalties

    async def fusion_parameters(self) -> dict[str, Any]:
        """Return theta_0, to the driver, for measuring."""
        return dict(self.theta_0)

    # --- tokens ---

    async def _issue(self, issue: Issue) -> None:
        z = self._wire.pack_token(self.z, self.seed("rounding"), self._round, issue.token, issue.attempt)
        token = Token(
            self._round,
            issue.token,
            issue.attempt,
            0,
            issue.num_hops,
            0,
            issue.seed,
            self._step,
            -1,
            z,
            self.theta_0,
            0,
            issue.route,
        )
        try:
            await self.peer(self._names[issue.start], TokenClient).visit(token)
        except PartyLost:
            return  # `client_lost` issues it again

    async def roaming_done(self, done: RoamingDone) -> None:
        """Take the word that a token's roaming is over."""
        visited = (client for client in range(len(self._names)) if done.visited >> client & 1)
        self.roaming.done(done.token, done.attempt, visited, done.moves, done.round_)
        if self.roaming.finished:
            self._over.set()

    async def client_lost(self, name: str) -> None:
        """Go on without a client: tell its neighbours, and issue again what may have been there."""
        issues, touched = self.roaming.lose(self._names.index(name))
        reachable = [client for client in touched if self.roaming.route(client)]
        orders = [(c, replace(links_of(self.roaming, c, self._names), route=self._route(c))) for c in reachable]
        await self._ask_all("relink", orders)
        for issue in issues:
            self.background(self._issue(issue))
        if self.roaming.finished:
            self._over.set()

    # --- asking clients ---

    def _route(self, client: int) -> tuple[str, ...]:
        """Return the names of the stations after the first on the way to a client."""
        return tuple(self._names[station] for station in self.roaming.route(client)[1:])

    def _first(self, client: int) -> TokenClient:
        """Return the first station on the way to a client: itself, unless it has no link to the server."""
        return self.peer(self._names[self.roaming.route(client)[0]], TokenClient)

    async def _ask(self, client: int, method: str, order: Any) -> Any:
        """Call a client; None when it, or a relay, was lost meanwhile: the runtime tells the driver of that."""
        try:
            return await getattr(self._first(client), method)(order)
        except PartyLost:
            return None

    async def _ask_all(self, method: str, orders: Sequence[tuple[int, Any]]) -> list[Any]:
        """Call clients at once; return the replies of those that are still there, in the order of the calls."""
        found = await asyncio.gather(*(self._ask(client, method, order) for client, order in orders))
        return [reply for reply in found if reply is not None]

    async def _collect(self, method: str, orders: Sequence[tuple[int, Any]], round_: int, fresh: bool = True) -> int:
        """Send each client its order and merge the representations that come back into Z, in the clients' order."""
        found: list[Representation] = await self._ask_all(method, orders)
        if not found:
            return 0
        rows = batch_rows(self._seed, round_, len(self.labels), self._config.batch_size)
        arrived = {}
        for reply in found:
            h = unpack(reply.h)
            arrived[reply.client] = self.estimates.add(reply.client, h, rows) if self._wire.has_estimate else h
            self.penalties[reply.client] = reply.penalty
        z = await self.compute(
            self._head.merge,
            self.z,
            self.known,
            arrived,
            fresh,
            work=Work("merge", sum(h.size for h in arrived.values())),
        )
        z.setflags(write=False)  # so that no copy is made for each token
        self.z, self.known = z, arrived if fresh else {**self.known, **arrived}
        return len(found)

    async def _train_theta_0(self, round_: int, step: float, num_steps: int) -> None:
        rows = batch_rows(self._seed, round_, len(self.labels), self._config.batch_size)
        planned = self._head.steps(self.theta_0, self.z, rows, step, num_steps)
        if planned is not None:
            function, arguments, work = planned
            self._trained = await self.compute(function, *arguments, work=work)

    def _take_trained(self) -> None:
        if self._trained is not None:
            self.theta_0, self._trained = self._trained, None

    # --- step size ---

    async def block_smoothness(self) -> float:
        """Return max_k L_block."""
        orders = [(client, self._route(client)) for client in self.roaming.clients]
        found: list[float] = await self._ask_all("smoothness", orders)
        return max(found)

    async def joint_smoothness(self) -> float:
        """Return a little more than L, by power iteration on sum_k X_k X_k^T with the clients' images."""
        problem, num_samples = self._head.problem, len(self.labels)
        u_N = np.random.default_rng(0).standard_normal(num_samples)
        u_N /= np.linalg.norm(u_N)
        value = 0.0
        for _ in range(_NUM_PROBES):
            orders = [(client, Probe(u_N, self._route(client))) for client in self.roaming.clients]
            images: list[ProbeImage] = await self._ask_all("probe", orders)
            image_N = np.zeros(num_samples)
            for found in images:
                image_N += found.image
            value = float(u_N @ image_N)
            length = float(np.linalg.norm(image_N))
            if length == 0.0:
                break
            u_N = image_N / length
        return float(problem.curvature(num_samples)) * value * _PROBE_MARGIN + float(problem.smooth_penalty)


def links_of(roaming: Roaming, client: int, names: Sequence[str]) -> Links:
    """Return a client's links: where tokens may go, and the next station to the server where it has no link to it."""
    uplink = roaming.uplink(client)
    return Links(roaming.options(client), "" if uplink is None else names[uplink])
