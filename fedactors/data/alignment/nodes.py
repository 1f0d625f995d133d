"""Nodes of a graph in tables, brought into one order: an actor of each party opens its files, before others are cast.

    label party's holder ──alignment, as of rows──▶ other holders: the shared nodes, and their parts of the split
    label party's holder ──NodeLabels──▶ other holders
    holder ──UserNodes──▶ its own party's actors alone

Predictions do the same with new files, without labels. Shapes: N shared nodes, E entries of the neighbours' lists,
F features.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedactors.actors.actor import Actor, Client
from fedactors.actors.remote import CLIENT, DRIVER, SAME_PARTY, remote
from fedactors.data.alignment.ids import (
    AlignmentAnswer,
    AlignmentOrder,
    AlignmentQuestion,
    align,
    answer_beside,
    follow_beside,
    row_notes,
)
from fedactors.data.columns import Preprocessing
from fedactors.data.layouts.graph import GraphBlock, GraphTables, GraphTablesPart, NewGraph, node_parts
from fedactors.data.new_rows import Fault, Listing, NoPart, StoredState
from fedactors.data.party_rows import PARTS, PartyBlock, Split, prepare
from fedactors.errors import BadInput, Refused
from fedactors.messages.codec import message
from fedactors.messages.fields import Dimensions
from fedactors.runtime.interface import Runtime

Index = NDArray[np.int64]
_UNUSABLE = "cannot use its row"


@message(reveals="the class of each shared node that has one, and the classes' names")
class NodeLabels:
    """Labels (N), -1 where there is none."""

    labels: Annotated[NDArray[np.int64], Dimensions("nodes")]
    num_classes: int
    class_names: tuple[str, ...]


@message(reveals="nothing: it stays within the party")
class UserNodes:
    """A party's neighbours' lists (N + 1 and E), features (N, F), labels (N), and the shared nodes' parts (N)."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int64]
    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    num_classes: int
    parts: NDArray[np.uint8]
    class_names: tuple[str, ...]


@message(
    reveals="how many nodes the label party has and all parties share, who lacks how many, and how many edges a party "
    "has, and has between shared nodes"
)
class NodesSummary:
    """What became of a party's nodes and edges, in words for the run's end."""

    notes: tuple[str, ...]


@message(reveals="which of the shared nodes the party cannot use")
class UnusableNodes:
    """A flag for each shared node (N)."""

    nodes: Annotated[NDArray[np.bool_], Dimensions("nodes")]


@message(reveals="nothing: it stays within the party")
class NewNodes:
    """A party's nodes to predict, as `UserNodes`; and the lines of a file of predictions, if it writes one."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int64]
    features: NDArray[np.float32]
    ids: tuple[str, ...]
    """Of all own nodes, a line each."""
    lines: NDArray[np.int64]
    """The line of each shared node (N)."""
    unusable: tuple[tuple[int, str], ...]
    """Lines of nodes that miss values here, and which."""
    lost: tuple[tuple[int, str], ...]
    """Other lines without a prediction, and why."""


class NodeHolder(Client):
    """A party's actor that opens its files of a graph.

    Args:
        part: of the data.
        run_seed: seed of the run, for the split.
    """

    state: ClassVar[tuple[str, ...]] = ("rows", "parts", "labels", "preprocessing", "vocabulary")

    def __init__(self, part: GraphTablesPart, run_seed: int) -> None:
        self._part, self._run_seed = part, run_seed
        self.rows: Index | None = None
        self.parts: NDArray[np.uint8] = np.zeros(0, np.uint8)
        self.labels: NodeLabels | None = None
        self.preprocessing: str | None = None
        self.vocabulary: tuple[str, ...] = ()

    _known: tuple[str, ...] | None = None
    """Of nodes to predict, the vocabulary of training."""

    async def load(self) -> None:
        """Read the own nodes; their edges when the order is known."""
        self._block: PartyBlock = self._part.read()

    async def open(self) -> None:
        """After a resume, number the ends of edges again."""
        if self.rows is not None:
            self._index_edges()

    @property
    def label_party(self) -> str:
        """Who has the labels: it alone orders nodes."""
        return f"{self._part.rows.label_party}/nodes"

    @remote(caller=CLIENT, only="label_party", once=True)
    async def answer_alignment(self, question: AlignmentQuestion) -> AlignmentAnswer:
        """Answer the label party's alignment question, if it is asked in the way that all have agreed upon."""
        return await answer_beside(self, self._block.aligned_by, question, self._part.rows.alignment)

    @remote(caller=CLIENT, only="label_party", once=True)
    async def take_order(self, order: AlignmentOrder) -> None:
        """Follow the common order."""
        self.rows = await follow_beside(self, self._block.aligned_by, order, self._part.rows.alignment)
        self.parts = order.parts

    @remote(caller=CLIENT, only="label_party", once=True)
    async def take_labels(self, labels: NodeLabels) -> None:
        """Take the labels of the shared nodes.

        Raises:
            Refused: they are of classes that there are not.
        """
        told, most, named = labels.labels, labels.num_classes, len(labels.class_names)
        approved = max(self._part.rows.num_classes, named)
        is_class = not len(told) or -1 <= told.min() <= told.max() < most
        if not (is_class and most == approved and self.labels is None):
            said = f"tells {self.name} labels of {most:,} classes, {named:,} of them with names"
            raise Refused(self.caller, f"{said}; approved: {approved:,}, once")
        self.labels = labels

    def known_sizes(self, message: Any, sender: str) -> dict[str, int]:
        """Return how many nodes are shared."""
        return {} if self.rows is None else {"nodes": len(self.rows)}

    @remote(caller=DRIVER, once=True)
    async def align(self) -> NodesSummary:
        """Align all parties' nodes, and tell the others their labels; at the label party.

        Raises:
            BadInput: nothing is shared, no node is left to train on, or labels are of one class.
        """
        part, block = self._part.rows, self._block
        peers = {name: self.peer(f"{name}/nodes", NodeHolder) for name in part.passive_parties}
        common = await align(
            block.aligned_by,
            part.party,
            part.alignment,
            peers,
            self.noise_rng("node order"),
            lambda order_N: node_parts(block, order_N, part.split, self._run_seed),
            actor=self,
        )
        self.rows, self.parts = common.rows, common.parts
        assert block.labels is not None
        labels_N = block.labels[common.rows].astype(np.int64)
        train = labels_N[common.parts == PARTS.index("train")]
        if len(np.unique(train)) < 2:
            raise BadInput(f"{part.party}: {block.origin}: the nodes to train on need labels of two classes at least")
        self.labels = NodeLabels(labels_N, max(part.num_classes, len(block.class_names)), block.class_names)
        for peer in peers.values():
            await peer.take_labels(self.labels)
        absent = {name: len(rows) for name, rows in common.absent.items()}
        told = row_notes(part.party, len(block.ids), len(block.rejected), len(common.rows), absent)
        return NodesSummary(tuple(line.replace(" rows are used", " nodes are used") for line in told))

    @remote(caller=DRIVER, once=True)
    async def index_edges(self) -> NodesSummary:
        """Bring the own features and edges into the common order."""
        num_edges, num_lost = self._index_edges()
        lost = f"{self.party}: {num_edges - num_lost} of {num_edges} edges are used (the others end at nodes that not "
        return NodesSummary((lost + "all parties have)",) if num_lost else ())

    def _index_edges(self) -> tuple[int, int]:
        """Return how many edges there are, and how many end at nodes that not all parties have."""
        assert self.rows is not None
        edges = self._part.edges
        ids = [str(name) for name in self._block.ids[self.rows].tolist()]
        sparse, self.vocabulary = edges.load_sparse(ids, set(self._block.ids.tolist()), self._known)
        self._features = np.concatenate([self._local_features(self.rows).astype(np.float32), sparse], axis=1)
        (self._indptr, self._indices), num_edges, num_lost = edges.load(ids)
        return num_edges, num_lost

    def _local_features(self, rows: Index) -> NDArray[Any]:
        """Return the features of the shared nodes, as fitted on those to train on."""
        train, nothing = np.flatnonzero(self.parts == PARTS.index("train")), np.zeros(0, np.int64)
        unlabelled, task = dataclasses.replace(self._block, labels=None), self._part.rows.task
        fitted = prepare(unlabelled, rows, Split(train, nothing, nothing), task).preprocessing
        self.preprocessing = fitted.text
        return fitted.finish(self._block.features[rows])

    @remote(caller=SAME_PARTY)
    async def give_nodes(self) -> UserNodes:
        """Return the own share of the graph to an actor of the own party."""
        assert self.labels is not None
        told = self.labels
        graph = (self._indptr, self._indices, self._features)
        return UserNodes(*graph, told.labels, told.num_classes, self.parts, told.class_names)


class NewNodeHolder(NodeHolder):
    """A party's actor that opens its files of nodes to predict.

    Args:
        part, run_seed: see `NodeHolder`.
        stored: the state of the party's holder in the run's checkpoint.
    """

    def __init__(self, part: GraphTablesPart, run_seed: int, stored: StoredState) -> None:
        super().__init__(part, run_seed)
        self._stored = stored
        self._lost: dict[int, str] = {}

    async def load(self) -> None:
        """Read the own nodes as training encoded them.

        Raises:
            BadInput: the run was stopped before its nodes were aligned.
        """
        state = self._stored.read()
        if state["preprocessing"] is None:
            raise BadInput(f"{self.name}: the run was stopped before its nodes were aligned: it has no trained model")
        trained = Preprocessing.of(state["preprocessing"], self.party)
        self._known = tuple(state["vocabulary"])
        self._block, self._x_ND = self._part.rows.load_new(trained)

    async def open(self) -> None:
        """Nothing was begun."""

    @remote(caller=DRIVER, once=True)
    async def align(self) -> NodesSummary:
        """Align all parties' nodes, and learn whose cannot be used; at the party whose the predictions are."""
        part, block = self._part.rows, self._block
        peers = {name: self.peer(f"{name}/nodes", NewNodeHolder) for name in part.passive_parties}
        rng = self.noise_rng("node order")
        common = await align(block.aligned_by, part.party, part.alignment, peers, rng, actor=self)
        self.rows = common.rows
        for name, rows in common.absent.items():
            for row in rows.tolist():
                self._lost.setdefault(row, f"not at {name}")
        for name, peer in peers.items():
            for row in common.rows[(await peer.tell_unusable()).nodes].tolist():
                self._lost.setdefault(row, f"{name} {_UNUSABLE}")
        return NodesSummary(())

    @remote(caller=CLIENT, only="label_party", once=True)
    async def tell_unusable(self) -> UnusableNodes:
        """Say which of the shared nodes miss what the model needs here."""
        assert self.rows is not None
        return UnusableNodes(np.isin(self.rows, list(self._block.unusable)))

    def _local_features(self, rows: Index) -> NDArray[Any]:
        return self._x_ND[rows]

    @remote(caller=SAME_PARTY)
    async def give_new(self) -> NewNodes:
        """Return the own share of the graph to an actor of the own party."""
        assert self.rows is not None
        ids = tuple(str(name) for name in self._block.ids.tolist())
        graph = (self._indptr, self._indices, self._features)
        # who does not order the nodes knows of its own only whether all parties have them
        others = np.setdiff1d(np.arange(len(ids)), self.rows).tolist()
        lost = tuple((dict.fromkeys(others, "not at all parties") | self._lost).items())
        return NewNodes(*graph, ids, self.rows, tuple(self._block.unusable.items()), lost)


async def align_nodes(data: Any, runtime: Runtime, state_of: Callable[[str], StoredState] | None = None) -> list[str]:
    """Where data are a graph in tables, let the files' holders align, before a run or a prediction spawns its actors.

    Args:
        data: to train on, or to predict; nothing is done if it is another kind of graph.
        runtime: where the holders run.
        state_of: of a prediction, the state of an actor in the run's checkpoint.

    Returns:
        What became of nodes and edges, to be told; nothing in a run that goes on.

    Raises:
        BadInput: nodes to predict, and the model was trained on another kind of graph.
    """
    if not isinstance(data, GraphTables):
        return []
    holders: dict[str, NodeHolder] = {}
    for party in data.parties:
        name, facts = f"{party}/nodes", (data.part(party), runtime.seed)
        if state_of is None:
            holders[party] = runtime.spawn(NodeHolder, name, *facts)
        else:
            holders[party] = runtime.spawn(NewNodeHolder, name, *facts, _trained_state(state_of, name))
    await runtime.start()
    if runtime.resumed:
        return []
    with runtime.phase("alignment") if state_of is None else nullcontext():
        notes = list((await holders[data.rows.label_party].align()).notes)
        for party in data.parties:
            notes += (await holders[party].index_edges()).notes
    return notes


def _trained_state(state_of: Callable[[str], StoredState], holder: str) -> StoredState:
    try:
        return state_of(holder)
    except NoPart:
        raise BadInput("task.layout: 'graph-tables' is not allowed: the model was trained on no such data") from None


async def load_nodes(actor: Actor, part: GraphTablesPart) -> GraphBlock:
    """Return a party's share of the graph to train on, in the process of its actor."""
    found = await actor.peer(part.holder, NodeHolder).give_nodes()
    of_part = [np.flatnonzero(found.parts == number) for number in range(len(PARTS))]
    return GraphBlock(
        indptr=found.indptr,
        indices=found.indices,
        features=found.features,
        columns=np.arange(found.features.shape[1]),
        labels=np.maximum(found.labels, 0),  # who has none is in no part, and nobody looks
        num_classes=found.num_classes,
        train=of_part[0],
        validation=of_part[1],
        test=of_part[2],
        class_names=found.class_names,
    )


@dataclass(frozen=True, eq=False)
class NewShare:
    """A party's share of a graph to predict, and the lines of its file of predictions, if it writes one."""

    graph: NewGraph
    listing: Listing


async def load_new_nodes(actor: Actor, part: GraphTablesPart) -> NewShare:
    """Return a party's share of the graph to predict, in the process of its actor."""
    found = await actor.peer(part.holder, NewNodeHolder).give_new()
    rejections: dict[int, tuple[Fault, str]] = {
        line: ("partner" if reason.endswith(_UNUSABLE) else "alone", reason) for line, reason in found.lost
    }
    rejections |= {line: ("own", reason) for line, reason in found.unusable}
    graph = NewGraph(found.indptr, found.indices, found.features, np.array(found.ids)[found.lines])
    return NewShare(graph, Listing({"id": list(found.ids)}, found.lines, rejections))
