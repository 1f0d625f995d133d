"""NebulaFL as a plugin; imports nothing heavy."""

from __future__ import annotations

from fedactors.plugins import Headline, LazyProtocol

PROTOCOL = LazyProtocol(
    "fedactors.protocols.nebulafl",
    name="nebulafl",
    summary="asynchronous learning over several data centers that rotate their models, with hardware, WAN and money",
    problem="Horizontal FL across clouds or regions, where links and rented machines cost time and money",
    partition="horizontal",
    default_data="digits",
    headline=Headline(name="test/accuracy"),
    party_loss=frozenset({"stop", "continue", "restart"}),
    default_party_loss="restart",
    smoke={"num_centers": 2, "num_containers": 8, "active_per_center": 2, "duration": 3000, "rotation_interval": 500}
    | {"evaluation_interval": 1000},
    emulate=0.002,
    paper={"num_containers": 200, "active_per_center": 10, "duration": 100000, "rotation_interval": 1000}
    | {"evaluation_interval": 1000},
)
