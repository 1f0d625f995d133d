"""The servers: what MTCD's and SVFL's have in common, and MTCD's; runs of linear models load no torch.

Who waits for whom: the server waits for all representations of a round, then for the end of every token's roaming
(`roaming.Roaming` says which issue counts); a lost client makes it issue tokens again. Every wait has a timeout.
A client without a link to the server is reached over others (`ServedParty.relay`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from fedactors.actors.context import Work
from fedactors.actors.groups import ActorGroup, settle, started, surviving_loss
from fedactors.actors.remote import CLIENT, DRIVER, remote
from fedactors.errors import CallTimeout, PartyLost, Refused
from fedactors.messages.compression import decode_from
from fedactors.protocols.mtcd import messages
from fedactors.protocols.mtcd.actors import SealingServer, ServedParty, TokenClient
from fedactors.protocols.mtcd.algorithm import (
    NUM_PROBES,
    LinearHead,
    batch_rows,
    moves_in_parallel,
    next_momentum,
    parts_of,
    point_of,
    safe_step,
)
from fedactors.protocols.mtcd.config import MtcdConfig
from fedactors.protocols.mtcd.data import GeneratedData, ImageData, weights_of
from fedactors.protocols.mtcd.message_compression import Estimates, Transforms
from fedactors.protocols.mtcd.messages import seal_of
from fedactors.protocols.mtcd.roaming import Issue, Roaming, RoamingPlan
from fedactors.secure_sums.actors import SecureSums, check_fits

_log = logging.getLogger(__name__)
_PROBE_MARGIN = 1.1
"""The Rayleigh quotient of few probes is below the eigenvalue."""


class GatheringServer(SealingServer):
    """A server that forms Z of its clients' representations and trains theta_0.

    Args:
        public: the data where their labels are public, else None: then the label party sends them.
        label_party: its name; "" where labels are public.
    """

    state: ClassVar[tuple[str, ...]] = (
        *("labels", "weights", "z", "theta_0", "known", "penalties", "roaming", "estimates"),
        *("order_keys", "num_relayed", "momentum_age", "last_objective"),
    )

    def __init__(
        self,
        config: MtcdConfig,
        names: Sequence[str],
        public: GeneratedData | ImageData | None,
        num_classes: int,
        plan: RoamingPlan,
        seed: int,
        label_party: str,
    ) -> None:
        self._config = config
        super().__init__(names)
        self._label_party = label_party
        self._public = public
        self._num_classes = num_classes
        self._seed = seed
        self._transforms = Transforms.of(config)
        self._round = 0
        self._trained: Any = None
        self.labels: Any = None
        self.weights: Any = None
        self.roaming = Roaming(plan)
        self._smallest_cluster = self.roaming.smallest_cluster
        self.estimates = Estimates()
        self.z: Any = None
        self.theta_0: Any = None
        self.known: dict[int, Any] = {}
        """Representations as the server has them: of the round's rows."""
        self.penalties: dict[int, float] = {}
        self.momentum_age, self.last_objective = 1.0, math.inf
        self._sums = SecureSums(self, ActorGroup(self, names, timeout=10 * config.visit_timeout))

    # --- life ---

    async def load(self) -> None:
        """Make labels that are public."""
        if self._public is not None:
            self.labels = self._public.labels()[0]

    async def open(self) -> None:
        """Build the head once labels are there."""
        if self.labels is not None:
            self._build()

    @property
    def label_party(self) -> str | tuple[str, ...]:
        """Who tells the labels; nobody where they are public."""
        return self._label_party or ()

    @remote(caller=CLIENT, only="label_party", once=True)
    async def take_labels(self, labels: messages.Labels) -> None:
        """Take the labels from the label party, once."""
        if self.labels is not None:
            raise Refused(self.caller, f"tells {self.name} labels, which it knows already")
        self.labels = labels.train
        is_network = self._config.problem == "network"
        self.weights = weights_of(labels, np.float32 if is_network else np.float64)
        self._build()

    def _build(self) -> None:
        self.estimates.num_samples = len(self.labels)
        if self._config.problem != "network":
            self._head: Any = LinearHead(self._config, self.labels, self.weights)
        else:
            from fedactors.protocols.mtcd.networks import NetworkHead

            self._head = NetworkHead(self._config, self.labels, self._num_classes, self.weights)
        if self.theta_0 is None:
            self.theta_0 = self._head.initial(self.rng("initialisation"))

    def known_sizes(self, message: Any, sender: str) -> dict[str, int]:
        """Return how many rows a probe is of."""
        if self.labels is None:
            return {}
        rows = self._rows_of(0)
        return {"rows of the first batch": len(self.labels) if rows is None else len(rows)}

    # --- for the driver ---

    @remote(caller=DRIVER, once=True)
    async def gather(self) -> None:
        """Form Z for the first round; theta = 0 of a linear model on all rows needs no message (Z = 0)."""
        self.z = self._head.nothing() if self._config.batch_size is None else None
        if self.z is None:
            await self._collect("gather", dict.fromkeys(self.roaming.clients, messages.Gather(0)), 0)

    @remote(caller=DRIVER, at_most="num_measurements")
    async def objective(self) -> messages.Objective:
        """Return f as the server knows it: phi(Z) on the round's rows and the regularisers that it was told."""
        return messages.Objective(self._objective())

    def _objective(self) -> float:
        penalties = sum(self.penalties[client] for client in sorted(self.penalties))
        return float(self._head.loss(self.theta_0, self.z, self._rows_of(self._round + 1))) + penalties

    def _momentum(self) -> float:
        """Return the round's momentum; it starts anew where the objective has risen since the last sync."""
        value = self._objective()
        age = self.momentum_age if value <= self.last_objective else 1.0
        self.last_objective = value
        momentum, self.momentum_age = next_momentum(age)
        return momentum

    @remote(caller=DRIVER, at_most="num_measurements")
    async def fusion_parameters(self) -> messages.FusionParameters:
        """Return theta_0, for measuring."""
        return messages.FusionParameters(self.theta_0)

    @remote(caller=DRIVER, at_most="num_norms")
    async def safe_step(self) -> messages.SafeStep:
        """Return a step size that is safe for a linear model, from constants that the clients tell."""
        problem, num_samples = self._head.problem, len(self.labels)
        norms: dict[int, messages.SquaredNorm] = await self._ask(
            "squared_norm", dict.fromkeys(self.roaming.clients, messages.NormOrder())
        )
        for client, norm in norms.items():
            if not 0 <= norm.value < math.inf:
                raise Refused(self._names[client], f"says that its squared norm is {norm.value:g}")
        curvature = float(problem.curvature(num_samples))
        block = max(curvature * norm.value for norm in norms.values()) + float(problem.smooth_penalty)
        if self._config.is_accelerated:
            penalty = float(problem.smooth_penalty)
            return messages.SafeStep(1.0 / (self._config.token_scale * (block - penalty) + penalty))
        if not moves_in_parallel(self._config):
            return messages.SafeStep(1.0 / block)
        joint = curvature * await self._joint_norm() * _PROBE_MARGIN + float(problem.smooth_penalty)
        return messages.SafeStep(safe_step(self._config, block, joint, self._smallest_cluster))

    async def _joint_norm(self) -> float:
        """Return a little less than ||X||^2, by power iteration on sum_k X_k X_k^T with the clients' images.

        With mini-batches it is that of the first one's rows, times N / B.
        """
        rows = self._rows_of(0)
        num_samples = len(self.labels) if rows is None else len(rows)
        u_N = np.random.default_rng(0).standard_normal(num_samples)
        u_N /= np.linalg.norm(u_N)
        value = 0.0
        for _ in range(NUM_PROBES):
            images: dict[int, messages.ProbeImage] = await self._ask(
                "probe", dict.fromkeys(self.roaming.clients, messages.Probe(u_N))
            )
            image_N = np.zeros(num_samples)
            for found in images.values():
                image_N += found.image
            value = float(u_N @ image_N)
            length = float(np.linalg.norm(image_N))
            if length == 0.0:
                break
            u_N = image_N / length
        return value * len(self.labels) / num_samples

    @remote(caller=DRIVER, unbounded="says who is gone")
    async def client_lost(self, lost: messages.LostClient) -> None:
        """Go on without a client: tell the others whom it concerns."""
        await self._lose(lost.name)

    async def _lose(self, name: str) -> list[Issue]:
        issues, touched = self.roaming.lose(self._names.index(name))
        reachable = [client for client in touched if self.roaming.route(client)]
        await self._ask("relink", {client: self.roaming.links(client, self._names) for client in reachable})
        return issues

    # --- asking clients ---

    async def _ask(self, endpoint: str, orders: Mapping[int, Any]) -> dict[int, Any]:
        """Send clients their orders at once; return the replies of those that are still there, in the given order."""
        replies = [started(self._call, client, endpoint, order) for client, order in orders.items()]
        await settle(replies, lambda error: isinstance(error, PartyLost))
        found = {}
        for client, reply in zip(orders, replies, strict=True):
            if (loss := reply.exception()) is not None:
                _log.warning("%s; the others go on", loss)
            elif reply.result() is not None:
                found[client] = reply.result()
        return found

    def _call(self, client: int, endpoint: str, order: Any) -> Awaitable[Any]:
        """Call a client's endpoint, over others where it has no link."""
        route = tuple(self._names[station] for station in self.roaming.route(client))
        if len(route) == 1 or (client not in self.order_keys and route):  # before the clients have told their keys
            reply: Awaitable[Any] = getattr(self.peer(route[-1], ServedParty), endpoint)(order)
            return reply
        first = self.peer(route[0], ServedParty)
        self.num_relayed += 1
        seal = seal_of(self.order_keys[client], self.num_relayed, order)
        envelope = messages.RelayedZ if isinstance(order, (messages.SyncedZ, messages.Probe)) else messages.Relayed
        return first.relay(envelope(route[1:], self.num_relayed, seal, order))

    async def _collect(self, endpoint: str, orders: Mapping[int, Any], round_: int, fresh: bool = True) -> None:
        """Send each client its order and merge the representations that come back into Z, in the clients' order."""
        if self._config.secure_aggregation:
            await self._sums.prepare(1)
        found: dict[int, Any] = await self._ask(endpoint, orders)
        if not found:
            return
        if self._config.secure_aggregation:
            parts = {self._names[client]: part for client, part in found.items()}
            work = Work("merge", sum(part.words.size for part in parts.values()))
            point = point_of(self._config)
            total, _ = await self._sums.total(parts, point, work)
            check_fits(float(total[-1, 0]), point, "a representation", self._config.learning_rate)
            self.z, self.penalties[0] = parts_of(total[:-1], self._config)
            self.z.setflags(write=False)
            return
        rows, arrived = self._rows_of(round_), {}
        for client, reply in found.items():
            h = decode_from(reply.h, self._shape_of(rows), self._names[client])
            if reply.round_ != round_ or not 0 <= reply.penalty < math.inf:
                said = f"represents round {reply.round_}, with a penalty of {reply.penalty:g}"
                raise Refused(self._names[client], f"{said}; expected: round {round_}")
            has_estimate = self._transforms.has_estimate
            arrived[client] = self.estimates.add(client, h, rows) if has_estimate else h
            self.penalties[client] = reply.penalty
        work = Work("merge", sum(h.size for h in arrived.values()))
        z = await self.compute(self._head.merge, self.z, self.known, arrived, fresh, work=work)
        z.setflags(write=False)  # so that no copy is made for each token
        self.z, self.known = z, arrived if fresh else {**self.known, **arrived}

    def _shape_of(self, rows: Any) -> tuple[int, ...]:
        """Return the shape of a client's representation of these rows, or of all."""
        num_rows = len(self.labels) if rows is None else len(rows)
        return (num_rows, self._config.representation_size) if self._config.problem == "network" else (num_rows,)

    def _rows_of(self, round_: int) -> Any:
        return batch_rows(self._seed, round_, len(self.labels), self._config.batch_size)

    async def _train_theta_0(self, order: messages.RoundOrder, num_steps: int) -> None:
        """Do token 0's steps; they count from the sync on."""
        task = self._head.steps(self.theta_0, self.z, self._rows_of(order.round_), order.step, num_steps)
        if task is not None:
            self._trained = await self.compute(task.function, *task.arguments, work=task.work)

    def _take_trained(self) -> None:
        if self._trained is not None:
            self.theta_0, self._trained = self._trained, None


class TokenServer(GatheringServer):
    """The server of MTCD (Algorithm 2): it issues tokens and syncs; arguments as of `GatheringServer`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._over = asyncio.Event()
        self._step = 0.0

    @remote(caller=DRIVER, at_most="num_rounds")
    async def roam(self, order: messages.RoundOrder) -> None:
        """Issue the round's tokens, train theta_0 meanwhile, and wait for the end of all roaming."""
        self._round, self._step = order.round_, order.step
        self._over.clear()
        for issue in self.roaming.begin(order.round_):
            self.background(self._issue(issue))
        config = self._config
        await self._train_theta_0(order, config.num_local_steps * (config.num_hops + 1))
        if not self.roaming.outstanding:
            return
        seconds = config.visit_timeout * (config.num_hops + 1)
        with self.span("wait", "tokens"):
            try:
                async with self.clock.timeout(seconds):
                    await self._over.wait()
            except TimeoutError:
                text = f"tokens {list(self.roaming.outstanding)} were not back within {seconds:g} s"
                raise CallTimeout(self.name, text) from None

    @remote(caller=DRIVER, at_most="num_rounds")
    async def sync(self, order: messages.RoundOrder) -> None:
        """Let clients combine their copies (line 12) and form Z for the next round of what they send.

        With the full batch only clients whose block changed are told; with a mini-batch all send h_k of the new rows.
        """
        full, roaming = self._config.batch_size is None, self.roaming
        sends = full or not order.is_last
        # momentum moves clients that were not visited, too, and sums are of clients that were told the same
        is_told = self._config.secure_aggregation or self._config.is_accelerated
        clients = sorted(roaming.changed) if (full or order.is_last) and not is_told else roaming.clients
        reissued = tuple(sorted((token, attempt) for token, attempt in roaming.attempts.items() if attempt))
        weight = 1.0 / max(1, len(roaming.attempts)) if self._config.mode == "overlapping" else 1.0
        momentum = self._momentum() if self._config.is_accelerated and not order.is_last else 0.0
        told = messages.SyncTokens(order.round_, reissued, weight, sends, momentum)
        self._take_trained()
        reachable = [client for client in clients if roaming.route(client)]
        await self._collect("sync", dict.fromkeys(reachable, told), order.round_ + 1, fresh=not full)

    async def _issue(self, issue: Issue) -> None:
        round_, z = self._round, self.z
        if self._transforms.token is not None:
            z = self._transforms.pack_token(z, self.seed("rounding"), round_, issue.token, issue.attempt)
        token = messages.Token(
            round_, issue.token, issue.attempt, 0, issue.num_hops, self._step, -1, 0, z, self.theta_0
        )
        with surviving_loss("the token is issued again"):
            await self.peer(self._names[issue.start], TokenClient).visit(token)

    @remote(caller=CLIENT, unbounded="a word that carries no data")
    async def roaming_done(self, done: messages.RoamingDone) -> None:
        """Take the word that a token's roaming is over."""
        visited = (client for client in range(len(self._names)) if done.visited >> client & 1)
        self.roaming.done(done.token, done.attempt, visited, done.round_)
        if not self.roaming.outstanding:
            self._over.set()

    @remote(caller=DRIVER, unbounded="says who is gone")
    async def client_lost(self, lost: messages.LostClient) -> None:
        """Go on without a client: tell its neighbours, and issue again what may have been there."""
        for issue in await self._lose(lost.name):
            self.background(self._issue(issue))
        if not self.roaming.outstanding:
            self._over.set()
