"""Who holds which features: generated problems, images cut into parts, and vertical data of named sets or own files.

Shapes: N samples, F features of all clients, D of one. The driver has the whole description; an actor is built with
its own part of it, and loads that itself (`PartyRows`).

| description | part | clients | labels |
|---|---|---|---|
| `GeneratedData` | `PublicPart` | client-0 ... | public: every actor makes them from the seed |
| `ImageData` | `PublicPart` | client-0 ... | public: every actor loads them |
| `VerticalData` | `VerticalPart` | the parties | the label party tells the others (`messages.Labels`) |
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedactors.data.alignment.rows import load_described_rows
from fedactors.data.datasets.catalogue import describe
from fedactors.data.description import refuse_settings
from fedactors.data.layouts.vertical import VerticalData, VerticalPart, vertical
from fedactors.data.party_rows import PartyBlock, PreparedBlock, Split, draw_parts
from fedactors.data.party_rows import prepare as prepare_block
from fedactors.data.party_rows import split as split_rows
from fedactors.data.values import as_type
from fedactors.errors import BadInput
from fedactors.learning.user_models import check_name
from fedactors.messages.codec import wire_type
from fedactors.protocols.mtcd.algorithm import LinearBlock
from fedactors.protocols.mtcd.config import MtcdConfig, require_relaxed_protocol
from fedactors.protocols.mtcd.messages import Labels
from fedactors.protocols.mtcd.objective import check_data

Array = NDArray[Any]
GENERATED = "synthetic"
NUM_CLASSES = 4
"""Classes of generated data for networks."""
NUM_VIEWS = 12
_TEST_FRACTION = 0.3
_MOST_NUMBERS = 1 << 30
"""Of generated data: 8 GiB."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one client holds: features of training and test rows."""

    train: Array
    test: Array


@wire_type
class GeneratedData:
    """Features and labels drawn from a seed, each client's block by itself, so that none makes the others'."""

    kind: Literal["ridge", "sparse-logistic", "table", "views"]
    seed: int
    num_samples: int
    num_features: int
    num_clients: int

    @property
    def parties(self) -> tuple[str, ...]:
        """The clients' names, in order."""
        return numbered(self.num_clients)

    @property
    def is_linear(self) -> bool:
        """Whether it is the problem of a linear model: one with an exact minimum, and without test rows."""
        return self.kind in ("ridge", "sparse-logistic")

    @property
    def num_classes(self) -> int:
        """Classes, 1 for regression."""
        return {"ridge": 1, "sparse-logistic": 2}.get(self.kind, NUM_CLASSES)

    def load(self, client: int) -> Part:
        """Return a client's features."""
        if self.kind == "views":
            x_N = _views(self.num_samples, self.seed)[client]
        else:
            x_N = _block(self.seed, client, self.num_samples, self._width(client))
        if self.kind == "table":
            x_N = x_N.astype(np.float32)
        return Part(x_N[: self._num_train], x_N[self._num_train :])

    def labels(self) -> tuple[Array, Array]:
        """Return training and test labels."""
        labels_N = _labels(self)
        return labels_N[: self._num_train], labels_N[self._num_train :]

    @property
    def _num_train(self) -> int:
        return (
            self.num_samples if self.is_linear else max(1, self.num_samples - round(self.num_samples * _TEST_FRACTION))
        )

    def _width(self, client: int) -> int:
        width, left = divmod(self.num_features, self.num_clients)
        return width + (client < left)


@wire_type
class ImageData:
    """A named set of images cut into four quadrants, one for each client."""

    name: str

    @property
    def parties(self) -> tuple[str, ...]:
        """The clients' names: top left, top right, bottom left, bottom right."""
        return numbered(4)

    @property
    def num_classes(self) -> int:
        """Classes of the data set."""
        return describe(self.name).num_classes

    def load(self, client: int) -> Part:
        """Return one quadrant of all images."""
        from fedactors.data.datasets.load import load_images

        found = load_images(self.name)
        return Part(
            found.scaled(_quadrant(found.train_images, client)), found.scaled(_quadrant(found.test_images, client))
        )

    def labels(self) -> tuple[Array, Array]:
        """Return training and test labels."""
        from fedactors.data.datasets.load import load_images

        found = load_images(self.name)
        return found.train_labels, found.test_labels


@wire_type
class PublicPart:
    """One client's part of data that anybody can make or has: it takes its own block, and knows the labels."""

    data: GeneratedData | ImageData
    client: int

    @property
    def parties(self) -> tuple[str, ...]:
        """All clients' names, in order."""
        return self.data.parties

    @property
    def num_classes(self) -> int:
        """Classes, 1 for regression."""
        return self.data.num_classes

    @property
    def label_party(self) -> str:
        """The first client, whose the predictions are; all know the labels."""
        return self.parties[0]

    @property
    def alignment(self) -> str:
        """All rows are there, in one order."""
        return "already-aligned"


MtcdData = GeneratedData | ImageData | VerticalData


@functools.cache
def numbered(num_clients: int) -> tuple[str, ...]:
    """Return client-0, client-1, ..."""
    return tuple(f"client-{index}" for index in range(num_clients))


def load_data(config: MtcdConfig, name: str | VerticalData, seed: int) -> MtcdData:
    """Return who holds what: ``synthetic`` is the generated problem of the config, a named set is dealt to clients."""
    check_name(config.user_network)
    if isinstance(name, VerticalData):
        return _user_data(config, name)
    if name.endswith(".toml"):
        return _user_data(config, load_described_rows(Path(name), config, {"noise": config.noise is not None}))
    if name == GENERATED:
        return _generated(config, seed)
    if describe(name).kind == "images" and config.problem == "network" and config.network != "mlp":
        if config.num_clients != 4:
            raise BadInput(f"num_clients: {config.num_clients} is not allowed, images have 4 quadrants")
        return ImageData(name=name)
    if config.problem == "network" and config.network != "mlp":
        raise BadInput(f"network: {config.network} is not allowed for the table {name}, use mlp")
    return _fitting(config, vertical(name, numbered(config.num_clients)))


def _user_data(config: MtcdConfig, user_data: VerticalData) -> VerticalData:
    require_relaxed_protocol(config)
    why = {"num_samples": "they say how many rows there are", "target_gap": "their exact minimum is not known"}
    if config.problem != "network":  # whose costs of virtual time it gives
        why["num_features"] = "they say how many columns there are"
    refuse_settings(config, why)
    if user_data.weighted_by and config.algorithm == "dcpa":
        raise BadInput(
            f"{user_data.weighted_by} is not allowed with algorithm=dcpa, whose steps are for rows that count alike"
        )
    return _fitting(config, user_data)


def _generated(config: MtcdConfig, seed: int) -> GeneratedData:
    kinds = {"mlp": "table", "multi-view-cnn": "views"}
    if config.problem == "network" and config.network not in kinds:
        raise BadInput(f"network: {config.network} is not allowed for generated data; give --data digits or another")
    kind: Any = kinds[config.network] if config.problem == "network" else config.problem
    if kind == "views" and config.num_clients != NUM_VIEWS:
        raise BadInput(f"num_clients: {config.num_clients} is not allowed, generated objects have {NUM_VIEWS} views")
    if kind != "views" and config.num_features < config.num_clients:
        raise BadInput(
            f"num_features: {config.num_features} for {config.num_clients} clients leaves empty blocks, give at least "
            "one feature for each client"
        )
    if config.num_samples * config.num_features > _MOST_NUMBERS:
        raise BadInput(
            f"num_samples: {config.num_samples} is not allowed with num_features={config.num_features}: at most "
            f"{_MOST_NUMBERS} numbers in all"
        )
    return GeneratedData(
        kind=kind,
        seed=seed,
        num_samples=config.num_samples,
        num_features=config.num_features,
        num_clients=config.num_clients,
    )


def _fitting(config: MtcdConfig, data: VerticalData) -> VerticalData:
    if len(data.parties) != config.num_clients:
        raise BadInput(f"num_clients: {config.num_clients} is not allowed: {data.name} has {len(data.parties)} parties")
    allowed = {"ridge": ("regression", "binary"), "sparse-logistic": ("binary",), "network": ("binary", "multiclass")}
    if data.task not in allowed[config.problem]:
        raise BadInput(
            f"problem: {config.problem} is not allowed for the {data.task} task of {data.name}, it needs "
            f"{' or '.join(allowed[config.problem])}"
        )
    return data


# --- one party's rows ---


def part_of(data: MtcdData, client: int) -> VerticalPart | PublicPart:
    """Return what a client's actor is built with."""
    return data.part(data.parties[client]) if isinstance(data, VerticalData) else PublicPart(data=data, client=client)


class PartyRows:
    """A party's rows and labels in the process of its actor: loaded, aligned, split by a shared seed, standardised."""

    def __init__(self, config: MtcdConfig, part: VerticalPart | PublicPart, seed: int) -> None:
        self._config = config
        self._part = part
        self._seed = seed
        self._loaded: Any = None
        self._prepared: PreparedBlock | None = None
        self._order: Array | None = None
        self._parts = np.zeros(0, np.uint8)
        self._input_shape: tuple[int, ...] = ()
        self.labels: Labels | None = None

    def load(self, block: PartyBlock | None = None) -> None:
        """Load the own part, unless it is given; public data bring the labels along."""
        part = self._part
        if isinstance(part, PublicPart):
            self._loaded = part.data.load(part.client)
            self.labels = Labels(*part.data.labels(), np.zeros(0))
        else:
            self._loaded = part.load() if block is None else block

    @property
    def client(self) -> int:
        """The party's number among the clients."""
        part = self._part
        return part.client if isinstance(part, PublicPart) else part.parties.index(part.party)

    @property
    def ids(self) -> Array:
        """The ids of the rows as loaded."""
        return np.asarray(self._loaded.ids)

    @property
    def num_rejected(self) -> int:
        """Rows that were left out when they were loaded."""
        return len(self._loaded.rejected)

    @property
    def sizes(self) -> dict[str, int]:
        """Rows to train on and to test on, in the common order; nothing before it is known."""
        if self._prepared is None:
            return {}
        return {"train": len(self._prepared.train.features), "test": len(self._prepared.test.features)}

    @property
    def num_table_rows(self) -> int | None:
        """Rows of the own table that stand in joined rows; None: no query joined them."""
        found: int | None = self._loaded.num_table_rows
        return found

    @property
    def are_ready(self) -> bool:
        """Whether rows and labels are there, in the common order."""
        return self.labels is not None and (self._prepared is not None or isinstance(self._part, PublicPart))

    def draw_parts(self, rows: Array) -> Array:
        """Return the parts of the split that the label party announces; none where all parties draw them alike."""
        assert isinstance(self._part, VerticalPart)
        shares = {"test_fraction": _TEST_FRACTION, "validation_fraction": 0.0}
        return draw_parts(self._loaded, rows, self._part.split, seed=self._seed, **shares)

    def count_train(self, num_rows: int, announced: Array) -> int:
        """Return how many of so many aligned rows are trained on, by the parts that were announced, or drawn."""
        return len(self._split(num_rows, announced).train)

    def _split(self, num_rows: int, announced: Array) -> Split:
        shares = {"test_fraction": _TEST_FRACTION, "validation_fraction": 0.0}
        return split_rows(num_rows, seed=self._seed, parts_N=announced, **shares)

    def order(self, rows: Array, announced: Array) -> None:
        """Bring the rows of vertical data into the common order; the label party has its labels then."""
        self._order, self._parts = rows, announced
        parts = self._split(len(rows), announced)
        if len(parts.validation):
            raise BadInput(
                f"task.split: {len(parts.validation)} validation rows are not allowed here:"
                " MTCD chooses nothing by them; mark them train or test"
            )
        assert isinstance(self._part, VerticalPart)
        self._prepared = prepare_block(self._loaded, rows, parts, self._part.task)
        if self._part.party == self._part.label_party:
            weights_N = self._prepared.train.weights
            self.labels = Labels(*self._local_labels(self._prepared), np.zeros(0) if weights_N is None else weights_N)

    def _local_labels(self, prepared: PreparedBlock) -> tuple[Array, Array]:
        """Return labels as the problem wants them: classes for networks, else -1 and +1, or targets."""
        train, test = prepared.train.labels, prepared.test.labels
        if train is None or test is None:
            raise BadInput("label: the label party holds no labels")
        if self._config.problem == "network":
            return train.astype(np.int64), test.astype(np.int64)
        if np.issubdtype(train.dtype, np.integer):
            return 2.0 * train - 1.0, 2.0 * test - 1.0
        return train.astype(np.float64), test.astype(np.float64)

    def block(self, name: str) -> Any:
        """Return the block that visits work on.

        Raises:
            BadInput: features and labels of different length, an empty block, or values that are not finite.
        """
        assert self.labels is not None
        labels = {"train": self.labels.train, "test": self.labels.test}
        if self._prepared is None:
            features = {"train": self._loaded.train, "test": self._loaded.test}
        else:
            dtype = np.float32 if self._config.problem == "network" else np.float64
            found = {"train": self._prepared.train, "test": self._prepared.test}
            features = {name: as_type(part.features, dtype) for name, part in found.items()}
        check_data([name], [features["train"]], labels["train"])
        weights_N = weights_of(self.labels, features["train"].dtype)
        self._input_shape = features["train"].shape[1:]
        if self._config.problem != "network":
            return LinearBlock(self._config, features, labels, weights_N)
        from fedactors.protocols.mtcd.networks import NetworkBlock

        return NetworkBlock(self._config, self.client, features, labels, self._part.num_classes, weights_N)

    def state_dict(self) -> dict[str, Any]:
        """Return the order of the rows, labels that came from elsewhere, and what predictions and exports need."""
        labels = None if isinstance(self._part, PublicPart) else self.labels
        scale = None if self._prepared is None else self._prepared.scale
        rows = {"order": self._order, "parts": self._parts}
        facts = {"parties": self._part.parties, "num_classes": self._part.num_classes}
        return {**rows, **facts, "labels": labels, "scale": scale, "input_shape": self._input_shape}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a snapshot; the scale follows from the rows."""
        if state.get("order") is not None:
            self.order(state["order"], state["parts"])
            self.labels = state["labels"]


def weights_of(labels: Labels, dtype: Any) -> Array | None:
    """Return the weights that the label party told of the training rows; None: all count alike."""
    found = labels.weights
    if not len(found):
        return None
    if found.shape != labels.train.shape or not (np.isfinite(found) & (found >= 0)).all():
        raise BadInput(f"weights: {found.shape} of {len(labels.train)} rows; each row has one, finite and 0 or more")
    if not found.any():
        raise BadInput("weights: every training row has the weight 0")
    return found.astype(dtype)


# --- generators ---


def _block(seed: int, client: int, num_samples: int, width: int) -> Array:
    generator = np.random.default_rng([seed, 1, client])
    return generator.standard_normal((num_samples, width))


@functools.lru_cache(maxsize=8)
def _labels(data: GeneratedData) -> Array:
    """Labels of a drawn linear model (a two-layer one for networks), the same in every process."""
    if data.kind == "views":
        return np.random.default_rng([data.seed, 4]).integers(NUM_CLASSES, size=data.num_samples)
    num_samples = data.num_samples
    generator = np.random.default_rng([data.seed, 2])
    outputs = NUM_CLASSES * 4 if data.kind == "table" else 1
    total_NO = np.zeros((num_samples, outputs))
    for client in range(data.num_clients):
        width = data._width(client)
        weights_DO = np.random.default_rng([data.seed, 3, client]).standard_normal((width, outputs))
        if data.kind == "sparse-logistic":
            weights_DO *= np.random.default_rng([data.seed, 5, client]).random((width, 1)) < 0.1
        total_NO += _block(data.seed, client, num_samples, width) @ weights_DO
    if data.kind == "ridge":
        return np.asarray(total_NO[:, 0] + 0.1 * generator.standard_normal(num_samples))
    if data.kind == "sparse-logistic":
        noise_N = 0.1 * total_NO.std() * generator.standard_normal(num_samples)
        return np.where(total_NO[:, 0] + noise_N >= 0, 1.0, -1.0)
    hidden_NO = np.maximum(total_NO / np.sqrt(data.num_features), 0.0)
    scores_NC = hidden_NO @ generator.standard_normal((outputs, NUM_CLASSES))
    return np.asarray((scores_NC - scores_NC.mean(axis=0)).argmax(axis=1))


def _quadrant(images_NCHW: Array, client: int) -> Array:
    height, width = images_NCHW.shape[2] // 2, images_NCHW.shape[3] // 2
    rows = slice(None, height) if client < 2 else slice(height, None)
    columns = slice(None, width) if client % 2 == 0 else slice(width, None)
    return np.ascontiguousarray(images_NCHW[:, :, rows, columns])


@functools.lru_cache(maxsize=2)
def _views(num_samples: int, seed: int, size: int = 16) -> tuple[Array, ...]:
    """Render objects (clouds of points, one prototype a class, jittered) from cameras around the vertical axis.

    Returns:
        Per view float32 images (N, 1, size, size), standardised by constants.
    """
    data = GeneratedData(kind="views", seed=seed, num_samples=num_samples, num_features=1, num_clients=NUM_VIEWS)
    labels_N = _labels(data)
    generator = np.random.default_rng([seed, 6])
    prototypes = generator.normal(scale=0.4, size=(NUM_CLASSES, 40, 3))
    points = prototypes[labels_N] + generator.normal(scale=0.18, size=(num_samples, 40, 3))
    turn_N = generator.normal(scale=0.3, size=num_samples)
    made = []
    for view in range(NUM_VIEWS):
        angle_N = turn_N + 2 * np.pi * view / NUM_VIEWS
        across = points[..., 0] * np.cos(angle_N)[:, None] + points[..., 1] * np.sin(angle_N)[:, None]
        image = np.zeros((num_samples, size, size), np.float32)
        column = np.clip((across + 1) * size / 2, 0, size - 1).astype(np.int64)
        row = np.clip((points[..., 2] + 1) * size / 2, 0, size - 1).astype(np.int64)
        np.add.at(image, (np.arange(num_samples)[:, None], row, column), 1.0)
        made.append(((image - 0.16) / 0.5)[:, None])
    return tuple(made)


def stack(data: GeneratedData) -> tuple[Array, Array]:
    """Return all features side by side and the labels, for the exact minimum in experiments; no actor calls it."""
    blocks = [data.load(client).train for client in range(data.num_clients)]
    bounds = [0, *itertools.accumulate(block.shape[1] for block in blocks)]
    x_NF = np.empty((data.num_samples, bounds[-1]))
    for block, (low, high) in zip(blocks, itertools.pairwise(bounds), strict=True):
        x_NF[:, low:high] = block
    return x_NF, data.labels()[0]
