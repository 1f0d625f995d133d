"""What one record may move at each party of a run, and what is promised for it."""

from __future__ import annotations

from collections.abc import Sequence

from fedactors.data.neighbours import replaced_labels, replaced_rows
from fedactors.data.partitions import VerticalData
from fedactors.plugins import Neighbour
from protocols.pubsub_vfl.config import PubSubVflConfig


def neighbours(config: PubSubVflConfig, data: VerticalData, party: str, count: int, seed: int) -> Sequence[Neighbour]:
    """Return neighbours of a party's data: `count` rows replaced and, at the party with labels, as many labels."""
    rows = replaced_rows(data, party, count, seed)
    return [*rows, *(replaced_labels(data, count, seed) if party == data.label_party else ())]
