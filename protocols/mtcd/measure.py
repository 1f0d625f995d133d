"""What a round is measured by: objective, gap, accuracy, hops, bytes and weighted cost. Nothing here is communication.

Where arrays arrive as they are and Z covers all rows, the server's own objective is exact and costs nothing. Elsewhere
(mini-batches, compression, networks, no server) the driver asks the clients for their representations: an instrument
of experiments. With noise it does so only when the noise is reproducible, so protects nothing; else the server's own
view, noise included, is what is reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from fedactors.errors import BadInput, PartyLost
from fedactors.network.ledger import Ledger
from fedactors.runtime.base import Runtime
from protocols.mtcd.cast import Cast
from protocols.mtcd.config import MtcdConfig
from protocols.mtcd.cost import weighted_cost
from protocols.mtcd.data import MtcdData
from protocols.mtcd.glm import GlmHead
from protocols.mtcd.messages import Labels, Measured
from protocols.mtcd.objective import relative_gap

COUNTED = frozenset({"Representation", "Token", "SyncedZ", "DualVector"})
"""Message types of the algorithms; orders and words carry no array, probes and labels are sent once."""


class Measurable(Protocol):
    """A client of any of the algorithms."""

    async def measure(self, part: str) -> Measured:
        """Return its representation of a part."""

    async def known_labels(self) -> Labels:
        """Return the labels."""


def traffic(ledger: Ledger, link_cost_ratio: float) -> dict[str, float]:
    """Return the algorithm's bytes by kind of link so far, and their weighted cost (a client-client byte is 1)."""
    sizes = {"client-server": 0.0, "client-client": 0.0}
    for total in ledger.totals():
        if total.type in COUNTED and total.kind in sizes:
            sizes[total.kind] += total.bytes
    return {
        "client_server_bytes": sizes["client-server"],
        "client_client_bytes": sizes["client-client"],
        "weighted_cost": weighted_cost(sizes, link_cost_ratio),
    }


async def ask_clients(
    config: MtcdConfig,
    clients: Sequence[Measurable],
    labels: Labels,
    theta_0: Mapping[str, Any],
    num_classes: int,
) -> dict[str, float]:
    """Return the objective (test loss of a network) and, with test rows, accuracy or error, of the clients' blocks."""
    if config.problem == "network":
        from protocols.mtcd.network_parts import NetworkHead

        parts = await ask(clients, "test")
        head = NetworkHead(config, labels.train, num_classes)
        loss, accuracy = head.evaluate(dict(theta_0), {part.client: part.h for part in parts}, labels.test)
        return {"objective": loss, "test_accuracy": accuracy}
    parts = await ask(clients, "train")
    z_N = total_of(parts)
    objective = GlmHead(config, labels.train).loss({}, z_N, None) + sum(part.penalty for part in parts)
    return {"objective": objective, **await test_metrics(config, clients, labels)}


async def test_metrics(config: MtcdConfig, clients: Sequence[Measurable], labels: Labels) -> dict[str, float]:
    """Return accuracy or root mean squared error of a linear model on test rows; nothing where there are none."""
    if len(labels.test) == 0:
        return {}
    z_N = total_of(await ask(clients, "test"))
    if set(np.unique(labels.train)) <= {-1.0, 1.0}:
        return {"test_accuracy": float(np.mean(np.sign(z_N) == labels.test))}
    return {"test_rmse": float(np.sqrt(np.mean((z_N - labels.test) ** 2)))}


async def ask(clients: Sequence[Measurable], part: str) -> list[Measured]:
    """Return the representations of all clients that are still there."""

    async def one(client: Measurable) -> Measured | None:
        try:
            return await client.measure(part)
        except PartyLost:
            return None

    found = await asyncio.gather(*(one(client) for client in clients))
    return [measured for measured in found if measured is not None]


def total_of(parts: Sequence[Measured]) -> Any:
    """Return the sum of representations in the clients' order."""
    ordered = sorted(parts, key=lambda part: part.client)
    total = np.zeros_like(ordered[0].h)
    for part in ordered:
        total = total + part.h
    return total


async def measurements(
    config: MtcdConfig, data: MtcdData, runtime: Runtime, cast: Cast, labels: Labels, optimum: float | None
) -> dict[str, float]:
    """Return what this round is recorded with; see `measure`."""
    await runtime.settle()
    found = await measure_quality(config, data, runtime, cast, labels)
    if optimum is not None:
        found["gap"] = relative_gap(found["objective"], optimum)
    return {**found, "iterations": 0, **traffic(runtime.ledger, config.link_cost_ratio)}


async def measure_quality(
    config: MtcdConfig, data: MtcdData, runtime: Runtime, cast: Cast, labels: Labels
) -> dict[str, float]:
    """Return objective, accuracy or error; asked of the clients only where the server's view is not exact."""
    server_knows = cast.server is not None and config.batch_size is None and config.problem != "network"
    asks = not server_knows or config.compression is not None
    if config.noise is not None and not runtime.reproducible_noise:
        asks = False
    if asks:
        theta_0: Any = {}
        if config.problem == "network":
            theta_0 = await fusion_parameters(runtime, cast)
        return await ask_clients(config, cast.clients, labels, theta_0, data.num_classes)
    if cast.server is None:
        raise BadInput("noise: gaussian without reproducible noise is not allowed for stcd: nothing may be measured")
    found = {"objective": await cast.server.objective()}
    if config.noise is None:
        found |= await test_metrics(config, cast.clients, labels)
    return found


async def fusion_parameters(runtime: Runtime, cast: Cast) -> dict[str, Any]:
    """Return theta_0: the server's, or that of the token at rest (nothing is drawn before STCD's first stretch)."""
    if cast.server is not None:
        return await cast.server.fusion_parameters()
    holder = cast.clients[runtime.state.get("holder", 0)]
    parameters: dict[str, Any] = await holder.fusion_parameters()
    return parameters
