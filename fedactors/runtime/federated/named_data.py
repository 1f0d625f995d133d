"""The data of a run over a federation: names for everybody, and at each site its own rows behind its own name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as pydantic_dataclass

from fedactors.data.graph_files import OwnGraph
from fedactors.data.horizontal import HorizontalData
from fedactors.data.partitions import RelationalData, RelationalPartition, VerticalData
from fedactors.errors import BadInput
from fedactors.network.codec import plain

Described = VerticalData | HorizontalData | RelationalData | OwnGraph


@pydantic_dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid", strict=True))
class TaskFacts:
    """What all parties of a run know of the task; the coordinator's data state it.

    ``alignment`` and ``split`` are of vertical rows, ``labels`` (the classes' texts) of horizontal ones, ``sql``,
    ``label`` and ``categorical`` of tables, which the query calls by the names of the sites' data.
    """

    layout: Literal["vertical", "horizontal", "relational", "graph"]
    type: Literal["binary", "multiclass", "regression"]
    classes: int
    """1 for a regression; of a graph the nodes' file tells."""
    alignment: Literal["already-aligned", "hash", "psi"] = "already-aligned"
    split: Literal["random", "stratified"] = "random"
    labels: tuple[str, ...] = ()
    sql: str = ""
    label: str = ""
    categorical: tuple[str, ...] = ()


@plain
class DataName:
    """Stands for data that their site knows by this name; the site alone knows where they are."""

    site: str
    name: str
    is_test: bool = False
    """Whether the test rows are meant that the data named so come with."""
    holds_out: ClassVar[bool] = False
    """Over a federation clients measure on no rows of their own yet."""

    def holding_out(self, share: float, seed: int) -> Any:
        """Refuse: as `holds_out`."""
        raise BadInput(f"validation_share: {share:g} is not allowed over a federation: sites hold no rows out there")

    def load(self, trained: Any = None) -> Any:
        """Refuse: only the site's own process has the data."""
        raise BadInput(f"{self.site}: {self.name} are data of this site, which it alone reads")


Find = Callable[[DataName], Any]
"""From a name to where the rows are, or to the name itself."""


def describe(
    task: TaskFacts, data: Mapping[str, str], find: Find = lambda name: name, *, is_new: bool = False
) -> Described:
    """Return who holds what.

    Args:
        task: of the run.
        data: the names of each site's data, the coordinator's first.
        find: what stands for each of them; the driver knows names only.
        is_new: rows to predict, which come without test rows.
    """
    names = [DataName(site=site, name=name) for site, name in data.items()]
    title, parties = "+".join(data.values()), tuple(data)
    if task.layout == "horizontal":
        test = DataName(site=names[0].site, name=names[0].name, is_test=True)
        return HorizontalData(
            name=title,
            task=task.type,
            num_classes=task.classes,
            num_clients=len(data),
            shape=(),
            files=tuple(map(find, names)),
            parties=parties,
            test_file=None if is_new else find(test),
        )
    if task.layout == "graph":
        return OwnGraph(parties, tuple(map(find, names)))
    if task.layout == "relational":
        tables = list(data.values())
        return RelationalData(
            name=title,
            sql=task.sql,
            label=task.label,
            task=task.type,
            num_classes=task.classes,
            partitions=tuple(
                RelationalPartition(party=n.site, table=n.name, partition=tables[:i].count(n.name), source=find(n))
                for i, n in enumerate(names)
            ),
            categorical=task.categorical,
        )
    return VerticalData(
        name=title,
        task=task.type,
        num_classes=task.classes,
        parties=parties,
        sources=tuple(map(find, names)),
        label_party=parties[0],
        alignment=task.alignment,
        split=task.split,
    )


def parts_of(described: Described, site: str) -> list[Any]:
    """Return all that actors at a site may be told of data: its own part, and what everybody knows.

    They stand in the same order however the data are described.
    """
    if isinstance(described, HorizontalData):
        index = described.parties.index(site)
        measured = [described.part(test=True)] if index == 0 and described.test_file is not None else []
        return [described.part((index,)), *measured, described.part(), described.files[index]]
    if isinstance(described, RelationalData):
        return [*described.part(site), described.query]
    return [described.part(site)]
