"""NebulaFL as a plugin; imports nothing heavy."""

from __future__ import annotations

from fedactors.plugins import Headline, LazyProtocol

_HERE = "protocols.nebulafl"

PROTOCOL = LazyProtocol(
    name="nebulafl",
    summary="asynchronous learning over several data centers that rotate their models, with hardware, WAN and money",
    problem="the same columns in several clouds or regions, where links and rented machines cost hours and money",
    partition="horizontal",
    default_data="digits",
    headline=Headline(name="test/accuracy"),
    surface_at=f"{_HERE}.privacy:surface",
    config_at=f"{_HERE}.config:NebulaFLConfig",
    run_at=f"{_HERE}.run:run",
    messages_at=f"{_HERE}.messages",
    actors_at=f"{_HERE}.run:actors",
    load_data_at=f"{_HERE}.data:load_data",
    load_new_at=f"{_HERE}.data:load_new",
    predict_at=f"{_HERE}.serving:predict",
    predictors_at=f"{_HERE}.serving:predictors",
    export_at=f"{_HERE}.serving:part",
    party_loss=frozenset({"stop", "continue", "restart"}),
    default_party_loss="restart",
    smoke={
        "num_centers": 2,
        "num_containers": 8,
        "active_per_center": 2,
        "duration": 3000,
        "rotation_interval": 500,
    },
    emulate=0.002,
    full={"num_containers": 200, "active_per_center": 10, "duration": 100000},
)
