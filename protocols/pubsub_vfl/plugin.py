"""PubSub-VFL as a plugin; imports nothing heavy."""

from __future__ import annotations

from fedactors.plugins import Headline, LazyProtocol

PROTOCOL = LazyProtocol(
    "protocols.pubsub_vfl",
    name="pubsub-vfl",
    summary="split learning between organisations over publish/subscribe channels and parameter servers",
    problem="Vertical FL: 2 to 10 organisations hold different features of the same people; one holds the labels",
    partition="vertical",
    default_data="breast-cancer",
    headline=Headline(name="test/auc"),
    takes_queries=True,
    party_loss=frozenset({"stop", "restart"}),
    default_party_loss="restart",
    smoke={"num_epochs": 2, "num_layers": 3, "hidden_size": 16, "embedding_size": 8, "batch_size": 64},
    paper={"num_epochs": 100},
)
