"""MTCD as a plugin; imports nothing heavy."""

from __future__ import annotations

from fedactors.plugins import Headline, LazyProtocol

PUBLISHED = {"acceleration": False, "walk": "lazy", "num_rounds": 100}
"""The paper's method, which the published comparison measured."""

PROTOCOL = LazyProtocol(
    "fedactors.protocols.mtcd",
    name="mtcd",
    summary="tokens between peers, with and without a server (multi-token coordinate descent)",
    problem="Vertical FL between peers: each talks to its neighbours only, with or without a server",
    partition="vertical",
    default_data="synthetic",
    headline=Headline(name="training/objective", mode="min"),
    takes_queries=True,
    party_loss=frozenset({"stop", "continue"}),
    default_party_loss="stop",
    smoke={
        "num_clients": 4,
        "num_samples": 60,
        "num_features": 24,
        "num_hops": 1,
        "num_local_steps": 5,
        "num_rounds": 3,
    },
    paper={"acceleration": False, "num_clients": 40, "num_hops": 9, "num_local_steps": 20, "num_rounds": 2000},
)
