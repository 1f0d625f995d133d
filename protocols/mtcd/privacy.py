"""What one row of a party may move of all that it sends, and neighbouring data for audits.

Neighbouring relation: one sample's features at one party are others; labels, ids and row order are known to all. With
`noise` each row of a representation and of a visit's change of Z is clipped and noised, and a release is charged for
all its rows, since theta_k and the columns' scale are fitted on every sample. Only what leaves beside these can spoil
the claim.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedactors.data.neighbours import replaced_rows
from fedactors.data.partitions import VerticalData
from fedactors.errors import BadInput
from fedactors.plugins import Neighbour
from protocols.mtcd.config import MtcdConfig
from protocols.mtcd.data import MtcdData


def uncovered(config: MtcdConfig) -> list[str]:
    """Return in which ways what a party sends follows from its rows without noise."""
    found = []
    if config.problem != "network" and config.learning_rate == "auto":
        found.append("the step size is found with norms of the rows, without noise")
    if config.problem == "network" and config.algorithm == "stcd":
        found.append("theta_0 is trained at each visit, without noise, and travels with the token")
    return found


def neighbours(config: MtcdConfig, data: MtcdData, party: str, count: int, seed: int) -> Sequence[Neighbour]:
    """Return `count` neighbours of a party's data, one row replaced; the labels stay, which all parties know.

    Raises:
        BadInput: generated data and images, which are public: nobody has a row that others could not make.
    """
    if not isinstance(data, VerticalData):
        raise BadInput(f"neighbours: {party} has public data, which no claim is about; name a table or own files")
    return replaced_rows(data, party, count, seed, keep_label=True)
