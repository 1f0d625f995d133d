"""TablePuppet as a plugin; imports nothing heavy."""

from __future__ import annotations

from fedactors.plugins import Headline, LazyProtocol

_HERE = "protocols.tablepuppet"

PROTOCOL = LazyProtocol(
    name="tablepuppet",
    summary="learning over joins and unions of tables in different organisations' databases, stated in SQL",
    problem="tables in databases of different owners, to be joined or united by SQL, without anybody joining them",
    partition="relational",
    default_data="orders",
    headline=Headline(name="test/accuracy"),
    config_at=f"{_HERE}.config:TablePuppetConfig",
    run_at=f"{_HERE}.run:run",
    messages_at=f"{_HERE}.messages",
    actors_at=f"{_HERE}.run:actors",
    load_data_at=f"{_HERE}.data:load_data",
    predict_at=f"{_HERE}.serving:predict",
    predictors_at=f"{_HERE}.serving:predictors",
    export_at=f"{_HERE}.serving:part",
    neighbours_at=f"{_HERE}.privacy:neighbours",
    surface_at=f"{_HERE}.privacy:surface",
    party_loss=frozenset({"stop"}),
    default_party_loss="stop",
    smoke={"rounds": 2},
    full={"rounds": 10},
)
