"""User-provided graphs: each client's edges and features, and the nodes, which all clients know.

A ``.toml`` file; its paths are relative to it, and arrays lie in ``.npz`` files (no pickles)::

    [task]
    layout = "graph"
    nodes = "nodes.npz"        # labels (N), and train, validation, test: masks over the nodes, or node numbers

    [parties.bank]
    file = "bank.npz"          # edges (2, E), features (N, F)

    [parties.shop]
    file = "shop.npz"

Shapes: N nodes, E edges, F features of one client.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedactors.data.client_graphs import GraphBlock, Index, NewGraph
from fedactors.data.graphs import csr_of
from fedactors.errors import BadInput
from fedactors.network.codec import plain
from fedactors.validation import reading

_SPLITS = ("train", "validation", "test")
_MOST_CLASSES = 65536


@dataclass(frozen=True)
class NodeSplit:
    """The labels, known to every client, and the nodes for training, validation and test."""

    labels_N: Index
    train: Index
    validation: Index
    test: Index


def from_masks(
    labels_N: Index, train: npt.NDArray[np.bool_], validation: npt.NDArray[np.bool_], test: npt.NDArray[np.bool_]
) -> NodeSplit:
    """Make a split from masks over the nodes; a mask of another length than the labels is a `BadInput`."""
    for name, mask in (("train", train), ("validation", validation), ("test", test)):
        if len(mask) != len(labels_N):
            raise BadInput(f"{name} mask: {len(mask)} entries are not allowed: there are {len(labels_N)} labels")
    return NodeSplit(labels_N, np.flatnonzero(train), np.flatnonzero(validation), np.flatnonzero(test))


@plain
class GraphFiles:
    """Where one client's file is, and that of the nodes, which everyone knows."""

    party: str
    nodes: str
    file: str

    @property
    def own_files(self) -> tuple[str, ...]:
        """What it reads."""
        return (self.file, self.nodes)

    def load(self) -> GraphBlock:
        """Load and check what the client holds.

        Raises:
            BadInput: a file that cannot be read, or arrays that do not fit together.
        """
        split = read_nodes(Path(self.nodes))
        features_NF, (indptr, indices) = self._own(len(split.labels_N))
        return GraphBlock(
            indptr=indptr,
            indices=indices,
            features=features_NF,
            columns=np.arange(features_NF.shape[-1]),
            labels=split.labels_N,
            num_classes=int(split.labels_N.max(initial=0)) + 1,
            train=split.train,
            validation=split.validation,
            test=split.test,
        )

    def load_new(self) -> NewGraph:
        """Load nodes to predict; the nodes' file need hold nothing but `ids`, if they have any.

        Raises:
            BadInput: a file that cannot be read, or arrays that do not fit together.
        """
        features_NF, (indptr, indices) = self._own(None)
        with reading("task.nodes", self.nodes), Path(self.nodes).open("rb") as stream:
            nodes = np.load(stream, allow_pickle=False)
            ids = nodes["ids"] if "ids" in nodes.files else np.arange(len(features_NF))
        if ids.shape != (len(features_NF),):
            raise BadInput(f"ids: shape {ids.shape} is not allowed: {self.party} has {len(features_NF)} nodes")
        return NewGraph(indptr, indices, features_NF, ids)

    def _own(self, num_known: int | None) -> tuple[npt.NDArray[np.float32], tuple[Index, Index]]:
        party = self.party
        found = _arrays(Path(self.file), ("edges", "features"), f"parties.{party}")
        edges, features = found["edges"], found["features"]
        num_nodes = len(features) if num_known is None else num_known
        if edges.dtype.kind not in "iu" and edges.size:
            raise BadInput(f"edges of {party}: type {edges.dtype} is not allowed: give whole numbers")
        if edges.ndim != 2 or edges.shape[0] != 2:
            raise BadInput(f"edges of {party}: shape {edges.shape} is not allowed: it must be (2, edges)")
        if strangers := edges[(edges < 0) | (edges >= num_nodes)].tolist():
            raise BadInput(f"edges of {party}: node {strangers[0]} is not allowed: nodes are 0 to {num_nodes - 1}")
        if features.ndim != 2:
            raise BadInput(f"features of {party}: shape {features.shape} is not allowed: it must be (nodes, columns)")
        if features.dtype.kind not in "fiub":
            raise BadInput(f"features of {party}: type {features.dtype} is not allowed: give numbers")
        with np.errstate(over="ignore"):
            features_NF = features.astype(np.float32)
        if not np.isfinite(features_NF).all():
            raise BadInput(f"features of {party}: values that are not finite are not allowed")
        return features_NF, csr_of(edges, num_nodes)


@dataclass(frozen=True)
class OwnGraph:
    """A user-provided graph in arrays."""

    parties: tuple[str, ...]
    parts: tuple[GraphFiles, ...]
    """Each party's; to the driver of several organisations' run they are names."""

    def part(self, party: str) -> GraphFiles:
        """Return what the actor of `party` is built with."""
        return self.parts[self.parties.index(party)]


def read_nodes(path: Path) -> NodeSplit:
    """Read labels and split; masks become node numbers.

    Raises:
        BadInput: a missing array, or lengths that differ.
    """
    found = _arrays(path, ("labels", *_SPLITS), "task.nodes")
    labels = found["labels"]
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise BadInput(f"labels: type {labels.dtype} of shape {labels.shape} is not allowed: one whole number per node")
    if labels.size and labels.max() >= _MOST_CLASSES:
        raise BadInput(f"labels: {labels.max()} is not allowed: classes are 0 to at most {_MOST_CLASSES - 1}")
    if len(np.unique(labels)) == 1:
        raise BadInput(f"labels: {labels[0]} at every node is not allowed: there must be at least two classes")
    labels_N = labels.astype(np.int64)
    if all(found[name].dtype == np.bool_ for name in _SPLITS):
        return from_masks(labels_N, *(found[name] for name in _SPLITS))
    for name in _SPLITS:
        if found[name].ndim != 1 or found[name].dtype.kind not in "iu":
            raise BadInput(f"{name}: type {found[name].dtype} is not allowed: give three masks, or node numbers")
        if len(found[name]) == len(labels_N) > 2 and set(found[name].tolist()) <= {0, 1}:
            raise BadInput(f"{name}: only 0 and 1, one for each node, are not allowed: give a mask of booleans")
    return NodeSplit(labels_N, *(found[name].astype(np.int64) for name in _SPLITS))


def _arrays(path: Path, names: tuple[str, ...], where: str) -> dict[str, npt.NDArray[Any]]:
    with reading(where, path), path.open("rb") as stream:
        file = np.load(stream, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise BadInput(f"{where}: {path} is no .npz file")
        missing = [name for name in names if name not in file.files]
        if missing:
            raise BadInput(f"{where}: {path} lacks {', '.join(missing)}")
        return {name: file[name] for name in names}
