"""A first scenario: two organisations train one split network on the breast-cancer set; no download.

Usage: python scenarios/first.py [--runtime simulated] [num_epochs=10 ...]; --help lists all flags.
"""

from __future__ import annotations

from fedactors.config import config
from fedactors.plugins import Headline
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.data import load_data
from fedactors.protocols.pubsub_vfl.run import run
from fedactors.scenario import main


@config
class Config(PubSubVflConfig):
    """Settings of this experiment; every other one is PubSub-VFL's own."""

    num_epochs: int = 5
    """Passes over the training rows."""
    batch_size: int = 32
    """Rows per batch."""


if __name__ == "__main__":
    main(
        Config,
        run,
        data="breast-cancer",
        partition="vertical",
        headline=Headline(name="test/auc"),
        load_data=load_data,
        smoke={"num_epochs": 1, "num_layers": 3},
    )
