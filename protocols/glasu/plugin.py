"""GLASU as a plugin; imports nothing heavy."""

from __future__ import annotations

from fedactors.plugins import Headline, LazyProtocol

_HERE = "protocols.glasu"

PROTOCOL = LazyProtocol(
    name="glasu",
    summary="graph networks over vertically distributed graphs, with lazy aggregation and stale updates",
    problem="organisations that see other edges and features of one graph's nodes; to classify the nodes",
    partition="graph",
    default_data="blocks",
    headline=Headline(name="test/accuracy"),
    config_at=f"{_HERE}.config:GlasuConfig",
    run_at=f"{_HERE}.run:run",
    messages_at=f"{_HERE}.messages",
    actors_at=f"{_HERE}.run:actors",
    load_data_at=f"{_HERE}.data:load_data",
    predict_at=f"{_HERE}.serving:predict",
    predictors_at=f"{_HERE}.serving:predictors",
    export_at=f"{_HERE}.serving:part",
    network_at=f"{_HERE}.exported:network_of",
    neighbours_at=f"{_HERE}.auditing:neighbours",
    surface_at=f"{_HERE}.auditing:surface",
    takes_nodes=True,
    party_loss=frozenset({"stop", "continue"}),
    default_party_loss="stop",
    smoke={"num_rounds": 4, "hidden_size": 16, "evaluate_every": 2},
    full={"num_rounds": 300, "hidden_size": 192},
)
