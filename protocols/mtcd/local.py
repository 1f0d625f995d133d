"""A party's rows in the process of its actor: loaded, aligned, and made into the block that a visit works on.

Both kinds of client, the token's and DCPA's, hold one of these. Nothing here sends anything; what is sent to align
vertical data and to share labels is `fedactors.data.aligning` and `messages.Labels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.data.alignment import AlignmentAnswer, AlignmentOrder, AlignmentQuestion, answer, follow
from fedactors.data.partitions import VerticalData
from fedactors.errors import BadInput
from protocols.mtcd import data as sources
from protocols.mtcd.config import MtcdConfig
from protocols.mtcd.glm import GlmBlock
from protocols.mtcd.messages import Labels
from protocols.mtcd.objective import check_data

Array = NDArray[Any]


class LocalData:
    """Rows and labels of one client.

    Args:
        config: the run's settings.
        data: who holds what; only the own part is loaded.
        client: the client's number.
        seed: shared by all parties, for the split.
    """

    def __init__(self, config: MtcdConfig, data: sources.MtcdData, client: int, seed: int) -> None:
        self._config = config
        self._data = data
        self._client = client
        self._seed = seed
        self._loaded: Any = None
        self._prepared: Any = None
        self.rows: Array | None = None
        self.labels: Labels | None = None

    def load(self) -> None:
        """Load the own part; generated data and images bring the labels along."""
        data = self._data
        if isinstance(data, VerticalData):
            self._loaded = data.load(data.parties[self._client])
        else:
            self._loaded = data.load(self._client)
            self.labels = Labels(*data.labels())

    @property
    def ids(self) -> Array:
        """The ids of the rows as loaded."""
        return np.asarray(self._loaded.ids)

    def answer(self, question: AlignmentQuestion) -> AlignmentAnswer:
        """Answer the label party's alignment question."""
        return answer(self.ids, question)

    def follow(self, order: AlignmentOrder) -> None:
        """Follow the common order."""
        self.take_rows(follow(self.ids, order))

    def take_rows(self, rows: Array) -> None:
        """Bring the rows into the common order and split them."""
        self.rows = rows
        if isinstance(self._data, VerticalData):
            self._prepared = sources.prepare_vertical(self._data, self._loaded, rows, self._seed)

    def own_labels(self) -> Labels:
        """Return the labels that this party holds, in the common order.

        Raises:
            BadInput: it holds none.
        """
        if self._prepared is not None:
            self.labels = Labels(*sources.labels_of(self._prepared, self._config))
        if self.labels is None:
            raise BadInput("label: the label party holds no labels")
        return self.labels

    @property
    def is_ready(self) -> bool:
        """Whether rows and labels are there."""
        return self.labels is not None and (self._prepared is not None or not isinstance(self._data, VerticalData))

    def block(self, name: str) -> Any:
        """Return the block of this client.

        Raises:
            BadInput: features and labels of different length, an empty block, or values that are not finite.
        """
        assert self.labels is not None
        part = self._loaded if self._prepared is None else sources.features_of(self._prepared, self._config)
        check_data([name], [part.train], self.labels.train)
        if self._config.problem != "network":
            return GlmBlock(self._config, part.train, part.test, self.labels.train)
        from protocols.mtcd.network_parts import NetworkBlock

        classes = self._data.num_classes
        return NetworkBlock(self._config, self._client, part.train, part.test, self.labels.train, classes)

    def state_dict(self) -> dict[str, Any]:
        """Return the order of the rows, labels that came from elsewhere, and the scale, which predictions need."""
        if not isinstance(self._data, VerticalData):
            return {}
        return {
            "rows": self.rows,
            "labels": self.labels,
            "scale": None if self._prepared is None else self._prepared.scale,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a snapshot; the scale follows from the rows."""
        if state.get("rows") is not None:
            self.take_rows(state["rows"])
            self.labels = state["labels"]
