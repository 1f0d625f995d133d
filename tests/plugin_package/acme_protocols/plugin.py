"""What `fedactors list` reads: light, so that listing stays fast."""

from fedactors.plugins import Headline, LazyProtocol

FEDAVG = LazyProtocol(
    name="fedavg",
    summary="federated averaging: clients train locally, a server averages (McMahan et al., 2017)",
    partition="horizontal",
    default_data="digits",
    headline=Headline(name="accuracy"),
    config_at="acme_protocols.fedavg:FedAvgConfig",
    run_at="acme_protocols.fedavg:run",
    messages_at="acme_protocols.messages",
    actors_at="acme_protocols.fedavg:actors",
    load_data_at="acme_protocols.fedavg:load_data",
    party_loss=frozenset({"stop", "continue"}),
    default_party_loss="continue",
    smoke={"num_rounds": 2, "num_clients": 2},
    paper={"num_rounds": 100, "num_clients": 10},
)
SPLIT_LEARNING = LazyProtocol(
    name="split-learning",
    summary="split learning: clients take turns at a bottom model, a server keeps the top (Gupta and Raskar, 2018)",
    partition="horizontal",
    default_data="digits",
    headline=Headline(name="accuracy"),
    config_at="acme_protocols.split_learning:SplitLearningConfig",
    run_at="acme_protocols.split_learning:run",
    messages_at="acme_protocols.messages",
    actors_at="acme_protocols.split_learning:actors",
    load_data_at="acme_protocols.split_learning:load_data",
    smoke={"num_rounds": 2, "num_clients": 2, "batch_size": 256},
)
