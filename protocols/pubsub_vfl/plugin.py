"""PubSub-VFL as a plugin; imports nothing heavy."""

from __future__ import annotations

from fedactors.plugins import Headline, LazyProtocol

PUBLISHED = {
    "num_epochs": 10,
    "batch_size": 256,
    "learning_rate": 0.001,
    "schedule": "constant",
    "keep": "best",
    "model": "mlp",
    "num_layers": 10,
    "prefetch": 2,
    "max_in_flight": 24,
    "transfer": "pull",
    "report_interval": 0.004,
    "epochs_per_round": 1,
    "local_baseline": False,
}
"""What the published rows were made with, where they set nothing else; the network is the paper's."""

PROTOCOL = LazyProtocol(
    "fedactors.protocols.pubsub_vfl",
    name="pubsub-vfl",
    summary="split learning between organisations over publish/subscribe channels and parameter servers",
    problem="Vertical FL: 2 to 10 organisations hold different features of the same people; one holds the labels",
    partition="vertical",
    default_data="breast-cancer",
    headline=Headline(name="test/auc"),
    takes_queries=True,
    party_loss=frozenset({"stop", "restart"}),
    default_party_loss="restart",
    between_sites={"transfer": "pull"},
    predicts_within_account=True,
    smoke={"num_epochs": 2, "num_layers": 3, "hidden_size": 16, "embedding_size": 8, "batch_size": 64}
    | {"local_baseline": False},
    paper={**PUBLISHED, "num_epochs": 100},
)
