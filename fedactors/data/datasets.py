"""Named data sets, loaded whole: `load` picks the loader by the kind that the catalogue states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedactors.data.catalogue import describe

if TYPE_CHECKING:
    import pyarrow as pa

    from fedactors.data.graphs import GraphDataset
    from fedactors.data.images import ImageDataset
    from fedactors.data.tabular import TabularDataset


def load(name: str) -> TabularDataset | ImageDataset | GraphDataset | dict[str, pa.Table]:
    """Load data set `name` from this machine; tables come as a mapping from their names.

    Raises:
        BadInput: unknown name, or a damaged file.
        DataMissing: a file is not on this machine.
    """
    kind = describe(name).kind
    if kind == "tabular":
        from fedactors.data.tabular import load_tabular

        return load_tabular(name)
    if kind == "images":
        from fedactors.data.images import load_images

        return load_images(name)
    if kind == "graph":
        from fedactors.data.graphs import load_graph

        return load_graph(name)
    from fedactors.data.tables import load_tables

    return load_tables(name)
