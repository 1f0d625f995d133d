"""How a named graph or the user's own files become what each client holds.

Own data is a ``.toml`` file; its paths are relative to it, and arrays lie in ``.npz`` files (no pickles)::

    [task]
    layout = "graph"
    nodes = "nodes.npz"        # labels (N), and train, validation, test: masks over the nodes, or node numbers

    [parties.bank]
    file = "bank.npz"          # edges (2, E), features (N, F)

    [parties.shop]
    file = "shop.npz"
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from fedactors.data.client_graphs import GraphBlock, graph
from fedactors.errors import BadInput
from protocols.glasu.config import GlasuConfig
from protocols.glasu.graphs import GraphShare, GraphSource, NodeSplit, check, from_masks
from protocols.glasu.sampling import adjacency

_SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class OwnGraph:
    """A graph in the user's own files: one for the nodes, which everyone knows, and one for each client."""

    nodes: str
    parties: tuple[str, ...]
    files: tuple[str, ...]
    num_classes: int

    @property
    def num_clients(self) -> int:
        """Number of clients M."""
        return len(self.files)

    def load(self, client: int) -> GraphBlock:
        """Load and check what client `client` holds.

        Raises:
            BadInput: a file that cannot be read, or arrays that do not fit together.
        """
        party, split = self.parties[client], read_nodes(Path(self.nodes))
        found = _arrays(Path(self.files[client]), ("edges", "features"), f"parties.{party}")
        edges, features = found["edges"], found["features"]
        if edges.dtype.kind not in "iu" and edges.size:
            raise BadInput(f"edges of {party}: type {edges.dtype} is not allowed: give whole numbers")
        if features.dtype.kind not in "fiub":
            raise BadInput(f"features of {party}: type {features.dtype} is not allowed: give numbers")
        share = GraphShare(party, edges.astype(np.int64), features.astype(np.float32))
        if not np.isfinite(share.features_NF).all():
            raise BadInput(f"features of {party}: values that are not finite are not allowed")
        check([share], split)
        csr = adjacency(share.edges_2E.reshape(2, -1), len(split.labels_N))
        return GraphBlock(
            indptr=csr.indptr,
            indices=csr.indices,
            features=share.features_NF,
            columns=np.arange(share.features_NF.shape[1]),
            labels=split.labels_N,
            train=split.train,
            validation=split.validation,
            test=split.test,
        )


def load_data(config: GlasuConfig, name: str, seed: int) -> GraphSource:
    """Return who holds what: a named graph dealt to the clients, or the user's own files.

    Raises:
        BadInput: an unknown or unfitting data set, files that do not fit together, or another number of clients.
    """
    if not name.endswith(".toml"):
        return graph(name, config.num_clients, edge_share=config.edge_share, seed=seed)
    own = read_own(Path(name))
    if own.num_clients != config.num_clients:
        raise BadInput(f"num_clients: {config.num_clients} is not allowed: {name} names {own.num_clients} parties")
    return own


def read_own(path: Path) -> OwnGraph:
    """Read a description of own data; the clients' own files are read and checked by the clients.

    Raises:
        BadInput: not TOML, missing or unknown keys, or a nodes file whose arrays do not fit together.
    """
    try:
        given = tomllib.loads(path.read_text())
    except OSError as error:
        raise BadInput(f"data: {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"data: {path} is not TOML: {error}") from error
    task, parties = given.get("task", {}), given.get("parties", {})
    _only(given, {"task", "parties"}, str(path))
    _only(task, {"layout", "nodes"}, "task")
    if task.get("layout") != "graph":
        raise BadInput(f"task.layout: {task.get('layout')!r} is not allowed: give graph")
    if not isinstance(task.get("nodes"), str):
        raise BadInput(f"task.nodes: {task.get('nodes')!r} is not allowed: give the file of labels and split")
    if not isinstance(parties, dict):
        raise BadInput(f"parties: {parties!r} is not allowed: give a table for each, such as [parties.bank]")
    if not parties:
        raise BadInput(f"parties: none in {path}, at least one is needed")
    for party, keys in parties.items():
        if "/" in party:
            raise BadInput(f"parties.{party}: a party's name may not contain '/'")
        _only(keys, {"file"}, f"parties.{party}")
        if not isinstance(keys.get("file"), str):
            raise BadInput(f"parties.{party}.file: {keys.get('file')!r} is not allowed: give a .npz file")
    nodes = path.parent / task["nodes"]
    return OwnGraph(
        nodes=str(nodes.resolve()),
        parties=tuple(parties),
        files=tuple(str((path.parent / keys["file"]).resolve()) for keys in parties.values()),
        num_classes=int(read_nodes(nodes).labels_N.max(initial=0)) + 1,
    )


def read_nodes(path: Path) -> NodeSplit:
    """Read labels and split; masks become node numbers.

    Raises:
        BadInput: a missing array, or lengths that differ.
    """
    found = _arrays(path, ("labels", *_SPLITS), "task.nodes")
    labels = found["labels"]
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise BadInput(f"labels: type {labels.dtype} of shape {labels.shape} is not allowed: one whole number per node")
    labels_N = labels.astype(np.int64)
    if all(found[name].dtype == np.bool_ for name in _SPLITS):
        return from_masks(labels_N, *(found[name] for name in _SPLITS))
    for name in _SPLITS:
        if found[name].ndim != 1 or found[name].dtype.kind not in "iu":
            raise BadInput(f"{name}: type {found[name].dtype} is not allowed: give three masks, or node numbers")
    return NodeSplit(labels_N, *(found[name].astype(np.int64) for name in _SPLITS))


def _arrays(path: Path, names: tuple[str, ...], where: str) -> dict[str, npt.NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in names if name not in file.files]
            if missing:
                raise BadInput(f"{where}: {path} lacks {', '.join(missing)}")
            return {name: file[name] for name in names}
    except OSError as error:
        raise BadInput(f"{where}: {path} cannot be read: {error.strerror or error}") from error
    except (ValueError, BadZipFile, EOFError, AttributeError) as error:
        raise BadInput(f"{where}: {path} is no .npz file of plain arrays: {error}") from error


def _only(given: Any, known: set[str], where: str) -> None:
    if not isinstance(given, dict):
        raise BadInput(f"{where}: {given!r} is not allowed: give a table")
    unknown = sorted(set(given) - known)
    if unknown:
        raise BadInput(f"{where}: unknown key {unknown[0]!r} (known: {', '.join(sorted(known))})")
