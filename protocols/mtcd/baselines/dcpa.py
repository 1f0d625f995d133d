"""DCPA (Condat-Vu form): dual consensus for sum_k J_k(w_k) + R_k(w_k) + g(sum_k B_k w_k), without a server.

The recursion of Alghunaim, Lyu, Yan and Sayed (2021) was not at hand; this is the Condat-Vu primal-dual method on the
same dual-consensus problem, hence the name. Every client holds a copy y_k of the dual variable (N,), and L = (I - W)/2
with Metropolis weights W makes the copies agree. One iteration is one exchange of N numbers with each neighbour:

    w_k+ = prox_{mu_w R}(w_k - mu_w (grad J(w_k) + B_k^T y_k))
    s_k+ = s_k - mu_x sum_j L_kj y_j                                        (neighbours' y_j)
    y_k+ = prox_{(mu_y/K) g*}(y_k + mu_y (B_k (2 w_k+ - w_k) + 2 s_k+ - s_k))

Shapes: N samples, D features of one client, K clients. B_k = X_k. At the fixed point every y_k is grad g(X theta*),
for ridge X theta* - y.

    run_iterations: y_k --> neighbours;  all neighbours' y_j of the same iteration --> `iterate`
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import networkx as nx
import numpy as np
from scipy.special import expit

from fedactors.actors.context import Work
from fedactors.actors.groups import surviving_loss
from fedactors.actors.remote import CLIENT, DRIVER, remote
from fedactors.data.layouts.vertical import VerticalPart
from fedactors.errors import CallTimeout, Refused
from fedactors.protocols.mtcd.actors import Party
from fedactors.protocols.mtcd.config import MtcdConfig
from fedactors.protocols.mtcd.data import PublicPart
from fedactors.protocols.mtcd.messages import DualVector, IterateOrder
from fedactors.protocols.mtcd.objective import Array, Problem, Ridge, SparseLogistic


@dataclass(frozen=True, slots=True)
class DcpaSteps:
    """The three step sizes: primal mu_w, dual mu_y, consensus mu_x."""

    primal: float
    dual: float
    consensus: float


@dataclass(frozen=True, slots=True)
class DcpaState:
    """What one client keeps between iterations: w_k (D,), s_k (N,), y_k (N,)."""

    w: Array
    s: Array
    y: Array


def consensus_matrix(weights_KK: Array) -> Array:
    """Return L = (I - W)/2 (K, K) for a symmetric doubly stochastic W."""
    return 0.5 * (np.eye(len(weights_KK)) - weights_KK)


def steps_within(
    problem: Problem,
    largest_block: float,
    num_samples: int,
    num_clients: int,
    consensus_norm: float,
    dual: float | None = None,
    safety: float = 0.99,
) -> DcpaSteps:
    """Return steps that meet the sufficient condition, its two terms sharing the room equally.

    They follow from max_k ||B_k||^2 and ||L||, which is all that the clients need to tell. `dual` is mu_y. Left out, it
    is sqrt(alpha K c) / ||B||, which balances the strong convexity of the regulariser (alpha) and of g*/K (1/(K c), c
    the curvature of the loss); without a smooth regulariser K c / 4, found by trial.
    """
    curvature = problem.curvature(num_samples)
    if dual is None and problem.smooth_penalty > 0:
        dual = math.sqrt(problem.smooth_penalty * num_clients * curvature / largest_block)
    elif dual is None:
        dual = 0.25 * num_clients * curvature
    room = 0.5 * safety / dual
    primal = room / (largest_block + 0.5 * room * problem.smooth_penalty)
    return DcpaSteps(primal=primal, dual=dual, consensus=room / consensus_norm)


def iterate(
    problem: Problem,
    x_ND: Array,
    labels_N: Array,
    state: DcpaState,
    laplacian_y_N: Array,
    steps: DcpaSteps,
    num_clients: int,
) -> DcpaState:
    """Do one client's iteration; `laplacian_y_N` is sum_j L_kj y_j over the client itself and its neighbours."""
    w_D = state.w - steps.primal * (problem.smooth_penalty * state.w + state.y @ x_ND)
    problem.shrink(w_D, steps.primal)
    s_N = state.s - steps.consensus * laplacian_y_N
    forward_N = state.y + steps.dual * (x_ND @ (2.0 * w_D - state.w) + 2.0 * s_N - state.s)
    return DcpaState(w_D, s_N, prox_conjugate(problem, forward_N, labels_N, steps.dual / num_clients))


def prox_conjugate(problem: Problem, v_N: Array, labels_N: Array, scale: float) -> Array:
    """Return prox_{scale g*}(v), with g the loss of `problem` over the full batch."""
    if isinstance(problem, Ridge):
        return (v_N - scale * labels_N) / (1.0 + scale)
    if isinstance(problem, SparseLogistic):
        return v_N - scale * _prox_logistic(v_N / scale, labels_N, 1.0 / (scale * len(labels_N)))
    raise TypeError(f"no conjugate for {type(problem).__name__}")


def _prox_logistic(v_N: Array, labels_N: Array, weight: float) -> Array:
    """Return argmin_z weight log(1 + exp(-y z)) + (z - v)^2 / 2 for each sample, by Newton kept inside a bracket.

    In m = y z the root of m - y v - weight sigma(-m) lies between y v and y v + weight.
    """
    target_N = labels_N * v_N
    low_N, high_N = target_N.copy(), target_N + weight
    m_N = target_N + 0.5 * weight
    for _ in range(100):
        sigma_N = expit(-m_N)
        error_N = m_N - target_N - weight * sigma_N
        high_N = np.where(error_N > 0, m_N, high_N)
        low_N = np.where(error_N <= 0, m_N, low_N)
        new_N = m_N - error_N / (1.0 + weight * sigma_N * (1.0 - sigma_N))
        new_N = np.where((new_N < low_N) | (new_N > high_N), 0.5 * (low_N + high_N), new_N)
        if float(np.abs(new_N - m_N).max()) <= 1e-14 * (1.0 + float(np.abs(m_N).max())):
            return labels_N * new_N
        m_N = new_N
    return labels_N * m_N


# --- the client ---


class DcpaClient(Party):
    """A party that is in step with its neighbours."""

    state: ClassVar[tuple[str, ...]] = (*Party.state, "s", "y")

    def __init__(
        self,
        config: MtcdConfig,
        part: VerticalPart | PublicPart,
        seed: int,
        laplacian: tuple[tuple[int, float], ...],
    ) -> None:
        super().__init__(config, part, seed)
        self._laplacian = laplacian
        self._neighbours = frozenset(other for other, _ in laplacian) - {self._client}
        self._inbox: dict[int, dict[int, Any]] = {}
        self._arrived = asyncio.Event()
        self.s: Any = None
        self.y: Any = None

    def _build(self) -> None:
        super()._build()
        if self.y is None:
            self.s, self.y = np.zeros(self._block.num_samples), np.zeros(self._block.num_samples)

    @remote(caller=DRIVER, at_most="num_rounds")
    async def run_iterations(self, order: IterateOrder) -> None:
        """Do some iterations in step with the neighbours."""
        block, num_clients = self._block, len(self._names)
        if not all(0 < step < math.inf for step in (order.primal, order.dual, order.consensus)):
            raise Refused(self.caller, f"lets {self.name} iterate with steps that are not above 0")
        steps, x_ND = DcpaSteps(order.primal, order.dual, order.consensus), self._block.x["train"]
        for iteration in range(order.first, order.first + order.count):
            self.release("the dual vector", round=iteration, last_round=self._config.num_rounds - 1)
            vector = DualVector(iteration, self.y)
            for neighbour in sorted(self._neighbours):
                self.background(self._send(neighbour, vector))
            received = await self._received(iteration)
            laplacian_y_N = np.zeros(block.num_samples)
            for neighbour, weight in self._laplacian:
                laplacian_y_N += weight * (self.y if neighbour == self._client else received[neighbour])
            state = DcpaState(self.theta, self.s, self.y)
            arguments = (block.problem, x_ND, block.y["train"], state, laplacian_y_N, steps, num_clients)
            state = await self.compute(iterate, *arguments, work=Work("iterate", x_ND.size))
            self.theta, self.s, self.y = state.w, state.s, state.y

    async def _send(self, neighbour: int, vector: DualVector) -> None:
        with surviving_loss("the run stops with its name"):
            await self.peer(self._names[neighbour], DcpaClient).take_dual(vector)

    @property
    def neighbours(self) -> tuple[str, ...]:
        """Names of the clients that it exchanges dual vectors with."""
        return tuple(self._names[client] for client in sorted(self._neighbours))

    @remote(caller=CLIENT, only="neighbours", at_most="num_rounds", each=True)
    async def take_dual(self, vector: DualVector) -> None:
        """Take a neighbour's vector; that of the next iteration may come early and is kept."""
        sender, inbox = self._names.index(self.caller), self._inbox.setdefault(vector.iteration, {})
        if not 0 <= vector.iteration < self._config.num_rounds or sender in inbox:
            said = f"sends {self.name} its dual vector of iteration {vector.iteration}"
            raise Refused(self.caller, f"{said}; approved: one of each of 0 to {self._config.num_rounds - 1}")
        inbox[sender] = vector.y
        self._arrived.set()

    async def _received(self, iteration: int) -> dict[int, Any]:
        seconds = self._config.visit_timeout
        while len(self._inbox.get(iteration, {})) < len(self._neighbours):
            self._arrived.clear()
            try:
                async with self.clock.timeout(seconds):
                    await self._arrived.wait()
            except TimeoutError:
                missing = [self._names[n] for n in self._neighbours if n not in self._inbox.get(iteration, {})]
                text = f"its dual vector of iteration {iteration} did not come to {self.name} within {seconds:g} s"
                raise CallTimeout(missing[0], text) from None
        return self._inbox.pop(iteration, {})


def laplacian_row(laplacian_KK: Array, graph: nx.Graph, client: int) -> tuple[tuple[int, float], ...]:
    """Return L_kj of a client and its neighbours, by number."""
    return tuple((other, float(laplacian_KK[client, other])) for other in sorted({client, *graph.neighbors(client)}))
