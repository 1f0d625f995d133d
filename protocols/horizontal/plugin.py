"""The plain horizontal methods as a plugin; imports nothing heavy."""

from __future__ import annotations

from fedactors.plugins import Headline, LazyProtocol

_HERE = "protocols.horizontal"

PROTOCOL = LazyProtocol(
    name="horizontal",
    summary="plain horizontal methods: FedAvg, FedProx, SCAFFOLD, FedAvgM, FedAdagrad, FedAdam, FedYogi",
    problem="the same columns, other people at each place; one model for all, averaged by a server",
    partition="horizontal",
    default_data="digits",
    headline=Headline(name="test/accuracy"),
    surface_at=f"{_HERE}.privacy:surface",
    config_at=f"{_HERE}.config:HorizontalConfig",
    run_at=f"{_HERE}.run:run",
    messages_at=f"{_HERE}.messages",
    actors_at=f"{_HERE}.run:actors",
    load_data_at=f"{_HERE}.data:load_data",
    load_new_at=f"{_HERE}.data:load_new",
    predict_at=f"{_HERE}.serving:predict",
    predictors_at=f"{_HERE}.serving:predictors",
    export_at=f"{_HERE}.serving:part",
    party_loss=frozenset({"stop", "continue"}),
    default_party_loss="continue",
    smoke={"num_rounds": 2},
    full={"num_clients": 100, "clients_per_round": 10, "num_rounds": 200},
)
