"""GLASU as a plugin; imports nothing heavy."""

from __future__ import annotations

from fedactors.plugins import Headline, LazyProtocol

PROTOCOL = LazyProtocol(
    "fedactors.protocols.glasu",
    name="glasu",
    summary="graph networks over vertically distributed graphs, with lazy aggregation and stale updates",
    problem="Node classification on a graph whose edges and features are split across organisations",
    partition="graph",
    default_data="blocks",
    headline=Headline(name="test/accuracy"),
    neighbours_at="fedactors.protocols.glasu.auditing:neighbours",
    surface_at="fedactors.protocols.glasu.auditing:surface",
    takes_nodes=True,
    party_loss=frozenset({"stop", "continue"}),
    default_party_loss="stop",
    smoke={"num_rounds": 4, "hidden_size": 16, "evaluate_every": 2},
    paper={"num_rounds": 300, "hidden_size": 192},
)
