"""The plain horizontal methods as a plugin; imports nothing heavy."""

from __future__ import annotations

from fedactors.plugins import Headline, LazyProtocol

PROTOCOL = LazyProtocol(
    "fedactors.protocols.horizontal",
    name="horizontal",
    summary="plain horizontal methods: FedAvg, FedProx, SCAFFOLD, FedAvgM, FedAdagrad, FedAdam, FedYogi",
    problem="Horizontal FL: same features, different people at each site; a server averages the models",
    partition="horizontal",
    default_data="digits",
    headline=Headline(name="test/accuracy"),
    party_loss=frozenset({"stop", "continue"}),
    default_party_loss="continue",
    predicts_within_account=True,
    smoke={"num_rounds": 2},
    paper={"num_clients": 100, "clients_per_round": 10, "num_rounds": 200},
)
