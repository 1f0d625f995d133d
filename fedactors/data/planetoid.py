"""Reader of the Planetoid files, which are pickles: opened by an unpickler that knows seven harmless names only."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.data.storage import locate
from fedactors.errors import BadInput

_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "dtype"): ("numpy", "dtype"),
    ("numpy", "ndarray"): ("numpy", "ndarray"),
    ("scipy.sparse.csr", "csr_matrix"): ("scipy.sparse", "csr_matrix"),
    ("collections", "defaultdict"): ("collections", "defaultdict"),
    ("__builtin__", "list"): ("builtins", "list"),
    ("builtins", "list"): ("builtins", "list"),
}


class _Restricted(pickle.Unpickler):
    """An unpickler that finds nothing but the constructors of arrays, sparse matrices and dictionaries of lists."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed here")
        return super().find_class(*_ALLOWED[(module, name)])


def read_pickle(path: Path) -> Any:
    """Read one Planetoid pickle (written by Python 2).

    Raises:
        BadInput: it asks for anything but numpy, scipy.sparse or collections constructors, or is no pickle.
    """
    try:
        with path.open("rb") as stream:
            return _Restricted(stream, encoding="latin1").load()
    except (pickle.UnpicklingError, EOFError, ValueError, AttributeError, IndexError) as error:
        raise BadInput(f"{path}: not a Planetoid file: {error}") from error


def read_planetoid(name: str) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Read features (N, F), labels (N,) and undirected edges (E, 2), each edge once and without self-loops.

    Test rows are stored in the order of their index file and are put back in place here; nodes of CiteSeer that occur
    in no file have zero features and the label 0, as everywhere in the literature.
    """

    def read(part: str) -> Any:
        return read_pickle(locate(name, f"planetoid/ind.{name}.{part}"))

    allx, ally, tx, ty, graph = (read(part) for part in ("allx", "ally", "tx", "ty", "graph"))
    test = np.loadtxt(locate(name, f"planetoid/ind.{name}.test.index"), dtype=np.int64)
    num_nodes = max(int(test.max()) + 1, len(graph))
    features = np.zeros((num_nodes, allx.shape[1]), np.float32)
    labels = np.zeros(num_nodes, np.int64)
    features[: allx.shape[0]], labels[: len(ally)] = allx.toarray(), ally.argmax(axis=1)
    features[test], labels[test] = tx.toarray(), ty.argmax(axis=1)
    source = np.repeat(np.fromiter(graph, np.int64), [len(ends) for ends in graph.values()])
    target = np.concatenate([np.asarray(ends, np.int64) for ends in graph.values()])
    pairs = np.stack([np.minimum(source, target), np.maximum(source, target)], axis=1)
    return features, labels, np.unique(pairs[source != target], axis=0)
