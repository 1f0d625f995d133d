"""TablePuppet as a plugin; imports nothing heavy."""

from __future__ import annotations

from fedactors.plugins import Headline, LazyProtocol

PUBLISHED = {"num_rounds": 10, "rho": "auto", "over_relaxation": 1.0, "local_baseline": False}
"""What the published rows were made with, where they set nothing else."""

PROTOCOL = LazyProtocol(
    "fedactors.protocols.tablepuppet",
    name="tablepuppet",
    summary="learning over joins and unions of tables in different organisations' databases, stated in SQL",
    problem="Training on SQL joins and unions of tables in different owners' databases",
    partition="relational",
    default_data="orders",
    headline=Headline(name="test/accuracy"),
    party_loss=frozenset({"stop"}),
    default_party_loss="stop",
    predicts_within_account=True,
    smoke={"num_rounds": 2, "local_baseline": False},
    paper={**PUBLISHED},
)
