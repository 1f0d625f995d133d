"""What one sync round costs, by the formulas of Section 4.1: the ledger must show the same numbers.

A representation h_k and a token Z may differ in size (aggregation by concatenation, or a token that carries theta_0);
a client-server link costs `link_cost_ratio` times a client-client link.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinkCosts:
    """Cost of one representation or one token over one link; any unit (vectors, bytes, money)."""

    representation_client_server: float
    token_client_server: float
    token_client_client: float


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """Seconds of one representation or token over one link, and of one local step.

    The server's bandwidth is shared: K representations at once take K times `representation_client_server`.
    """

    representation_client_server: float
    token_client_server: float
    token_client_client: float
    local_step: float


def weighted_costs(representation: float, token: float, link_cost_ratio: float) -> LinkCosts:
    """Return the costs of given sizes with a client-client link at 1 per unit and a client-server link at the ratio."""
    return LinkCosts(link_cost_ratio * representation, link_cost_ratio * token, token)


def stale_updates(num_local_steps: int, num_hops: int) -> int:
    """Return tau = Q (S + 1), the local steps between two syncs."""
    return num_local_steps * (num_hops + 1)


def svfl_round_cost(costs: LinkCosts, num_clients: int) -> float:
    """Return K r_cs + K z_cs."""
    return num_clients * (costs.representation_client_server + costs.token_client_server)


def mtcd_round_cost(
    costs: LinkCosts, num_clients: int, num_tokens: int, num_hops: int, num_representations: int | None = None
) -> float:
    """Return K r_cs + Gamma (z_cs + S z_cc); `num_representations` replaces K where few re-send (full batch)."""
    uplinks = num_clients if num_representations is None else num_representations
    roaming = num_tokens * (costs.token_client_server + num_hops * costs.token_client_client)
    return uplinks * costs.representation_client_server + roaming


def stcd_cost(costs: LinkCosts, num_hops: int) -> float:
    """Return S z_cc: a decentralised token uses no server link."""
    return num_hops * costs.token_client_client


def dcpa_cost(costs: LinkCosts, num_iterations: int, num_edges: int) -> float:
    """Return the cost of DCPA: each client sends its dual vector, as large as a token, to each neighbour."""
    return 2 * num_edges * num_iterations * costs.token_client_client


def svfl_round_time(times: LinkTimes, num_clients: int, num_stale_updates: int) -> float:
    """Return K t_r + K t_z + tau t_u."""
    sending = num_clients * (times.representation_client_server + times.token_client_server)
    return sending + num_stale_updates * times.local_step


def mtcd_round_time(
    times: LinkTimes, num_clients: int, num_tokens: int, num_hops: int, num_stale_updates: int
) -> float:
    """Return K t_r + Gamma t_z + S t_cc + tau t_u."""
    server = num_clients * times.representation_client_server + num_tokens * times.token_client_server
    return server + num_hops * times.token_client_client + num_stale_updates * times.local_step


def weighted_cost(sizes: Mapping[str, float], link_cost_ratio: float) -> float:
    """Return the weighted cost of ledger totals by kind of link ("client-server", "client-client")."""
    return link_cost_ratio * sizes.get("client-server", 0.0) + sizes.get("client-client", 0.0)
