"""LoU over the partitions of a vertical table (Section 4.1): in the server, or an actor of the organisation.

gather   predictions: partitions --LoU--> the vertical table
compute  gradients (Eq. 17) or w, u (Eq. 20, 21)
scatter  what the server tells the table --LoU--> partitions
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedactors.actors.actor import Server
from fedactors.actors.context import Work
from fedactors.actors.remote import SERVER, remote
from fedactors.data.alignment.rows import KeyHashes, ask_all, ask_each
from fedactors.errors import Refused
from fedactors.protocols.tablepuppet import algorithm, messages
from fedactors.protocols.tablepuppet.actors import TableClient
from fedactors.protocols.tablepuppet.algorithm import Array
from fedactors.protocols.tablepuppet.config import TablePuppetConfig
from fedactors.protocols.tablepuppet.messages import Auxiliary, Derivatives, DuplicateCounts

NOTHING = np.zeros(0, dtype=np.int32)


class UnionOperator:
    """LoU over the clients of one table; see `TableClient` for what each method answers.

    Args:
        memory: of the hosting actor's state: the partitions' sizes, and w and u (reset, they would pull theta to 0).
    """

    def __init__(
        self,
        config: TablePuppetConfig,
        clients: Sequence[TableClient],
        names: Sequence[str],
        compute: Callable[..., Awaitable[Any]],
        memory: dict[str, Any],
    ) -> None:
        self._config, self._clients, self._compute, self.memory = config, clients, compute, memory
        self._names = tuple(names)
        self._batch: NDArray[Any] = NOTHING

    # --- before training ---

    @remote(caller=SERVER, only="server", unbounded="the clients of its table count")
    async def send_keys(self) -> KeyHashes:
        """Return the key hashes of all partitions, one after the other."""
        parts = await self._ask(lambda client: client.send_keys())
        for name, part in zip(self._names, parts, strict=True):
            if len(part.hashes) != len(parts[0].hashes):
                raise Refused(name, f"sends hashed keys of {len(part.hashes)} edges; expected: {len(parts[0].hashes)}")
        self.memory["sizes"] = [part.num_rows for part in parts]
        hashes = tuple(algorithm.gather_union(columns) for columns in zip(*(p.hashes for p in parts), strict=True))
        return KeyHashes(sum(p.num_rows for p in parts), sum(p.num_null for p in parts), hashes)

    @remote(caller=SERVER, only="server", unbounded="the clients of its table count")
    async def send_labels(self) -> messages.Labels:
        """Return the labels of all partitions."""
        parts = await self._ask(lambda client: client.send_labels())
        for name, part, size in zip(self._names, parts, self.memory["sizes"], strict=True):
            check_labels(name, part, size, parts[0].num_classes)
        return messages.Labels(_gather(parts, "train"), _gather(parts, "is_test"), parts[0].num_classes)

    @remote(caller=SERVER, only="server", unbounded="the clients of its table count")
    async def receive_counts(self, counts: messages.DuplicateCounts) -> None:
        """Give each partition its G, and remember how many of its rows join."""
        train, in_test = (algorithm.scatter_union(n, self.memory["sizes"]) for n in (counts.train, counts.in_test))
        self.memory["active"] = [int(np.count_nonzero(part)) for part in train]
        sent = [replace(counts, train=a, in_test=b) for a, b in zip(train, in_test, strict=True)]
        await self._tell(lambda client, given: client.receive_counts(given), sent)

    @remote(caller=SERVER, only="server", unbounded="the clients of its table count")
    async def receive_test_rows(self, test_rows: messages.TestRows) -> None:
        """Give each partition the joined test rows whose labels it has."""
        found = algorithm.split_rows(test_rows.rows, self.memory["sizes"])
        self.memory["test_positions"] = [positions for positions, _ in found]
        sent = [messages.TestRows(local) for _, local in found]
        await self._tell(lambda client, given: client.receive_test_rows(given), sent)

    # --- training ---

    @remote(caller=SERVER, only="server", unbounded="the clients of its table count")
    async def predict_all(self) -> messages.Predictions:
        """Gather the predictions of all partitions."""
        return messages.Predictions(self._gathered(await self._ask(lambda client: client.predict_all())))

    @remote(caller=SERVER, only="server", unbounded="the clients of its table count")
    async def exchange(self, derivatives: messages.Derivatives) -> messages.Predictions:
        """Scatter derivatives, gather partial gradients, add them (Eq. 17), and gather the next predictions."""
        total = np.zeros(0)
        if derivatives.batch_size:
            split = algorithm.split_rows(self._batch, self.memory["active"])
            sizes = [derivatives.batch_size, *[0] * (len(split) - 1)]  # beta R once in the sum over the partitions
            values = [derivatives.values[positions] for positions, _ in split]
            sent = [messages.Derivatives(part, n, NOTHING) for part, n in zip(values, sizes, strict=True)]
            found = await self._tell(lambda client, given: client.partial(given), sent)
            parts = [part.values for part in found]
            self._check_alike(parts)
            work = Work("coordinate", float(len(parts) * len(parts[0])))
            total = await self._compute(algorithm.combine_gradients, parts, derivatives.batch_size, work=work)
        self._batch = derivatives.next_rows
        split = algorithm.split_rows(self._batch, self.memory["active"])
        steps = [messages.AggregatedGradient(total, local.astype(np.int32)) for _, local in split]
        replies = await self._tell(lambda client, given: client.apply(given), steps)
        merged = np.empty((len(self._batch), replies[0].values.shape[1]))
        bare(replies, self._names, [len(positions) for positions, _ in split], merged.shape[1])
        for (positions, _), reply in zip(split, replies, strict=True):
            merged[positions] = reply.values
        return messages.Predictions(merged)

    @remote(caller=SERVER, only="server", unbounded="the clients of its table count")
    async def solve(self, auxiliary: messages.Auxiliary) -> messages.Predictions:
        """Run the inner rounds of consensus (Eq. 20-22) and gather the predictions of the agreed theta."""
        config, memory, clients = self._config, self.memory, self._clients
        if "w" not in memory:
            first = (await self._ask(lambda client: client.first_theta()))[0].theta
            memory["w"], memory["u"] = first, [np.zeros_like(first) for _ in clients]
        parts = algorithm.scatter_union(auxiliary.values, memory["active"])
        await self._tell(
            lambda client, given: client.receive_auxiliary(given),
            [messages.Auxiliary(part, auxiliary.rho) for part in parts],
        )
        for _ in range(config.inner_rounds):
            sent = [messages.Consensus(memory["w"], u) for u in memory["u"]]
            found = await self._tell(lambda client, given: client.consensus(given), sent)
            thetas = [part.theta for part in found]
            self._check_alike([memory["w"], *thetas], ["", *self._names])
            args = (thetas, memory["u"], config.beta, config.inner_rho or config.first_rho)
            work = Work("coordinate", float(2 * len(thetas) * len(thetas[0])))
            memory["w"], memory["u"] = await self._compute(algorithm.consensus_step, *args, work=work)
        agreed = [messages.Consensus(memory["w"], u) for u in memory["u"]]
        return messages.Predictions(self._gathered(await self._tell(lambda client, given: client.adopt(given), agreed)))

    # --- evaluation ---

    @remote(caller=SERVER, only="server", unbounded="the clients of its table count")
    async def predict_test(self) -> messages.TestPredictions:
        """Gather the test predictions of all partitions."""
        return messages.TestPredictions(_gather(await self._ask(lambda client: client.predict_test())))

    @remote(caller=SERVER, only="server", unbounded="the clients of its table count")
    async def score(self, outputs: messages.TestOutputs) -> messages.Score:
        """Let each partition score the joined test rows that it has labels of."""

        def at(values: NDArray[Any], positions: NDArray[Any]) -> NDArray[Any]:
            return values[positions] if len(values) else values

        arrays = (outputs.values, outputs.ranks, outputs.counts, outputs.spread)
        sent = [
            messages.TestOutputs(*(at(values, positions) for values in arrays))
            for positions in self.memory["test_positions"]
        ]
        found = await self._tell(lambda client, given: client.score(given), sent)
        tally = sum((part.tally for part in found if len(part.tally)), np.zeros(1))
        total, loss, count = (sum(getattr(part, name) for part in found) for name in ("total", "loss", "count"))
        return messages.Score(total, loss, count, tally)

    @remote(caller=SERVER, only="server", unbounded="the clients of its table count")
    async def give_rows(self) -> messages.DesignMatrix:
        """Gather every feature (centralised baseline)."""
        parts = await self._ask(lambda client: client.give_rows())
        return messages.DesignMatrix(_gather(parts, "train"), _gather(parts, "test"), parts[0].theta)

    # --- inside ---

    def _gathered(self, parts: Sequence[Any]) -> Array:
        """Return one array of the partitions' predictions of all their rows that join."""
        return algorithm.gather_union(bare(parts, self._names, self.memory["active"], parts[0].values.shape[1]))

    def _check_alike(self, vectors: Sequence[Array], names: Sequence[str] = ()) -> None:
        """Check that the partitions' vectors are of one size.

        Raises:
            Refused: naming whose is of another.
        """
        for name, one in zip(names or self._names, vectors, strict=True):
            if one.shape != vectors[0].shape:
                raise Refused(
                    name, f"sends {len(one):,} parameters of its table's model; expected: {len(vectors[0]):,}"
                )

    async def _ask(self, call: Callable[[TableClient], Awaitable[Any]]) -> list[Any]:
        return await ask_all(self._clients, call)

    async def _tell(self, call: Callable[[TableClient, Any], Awaitable[Any]], given: Iterable[Any]) -> list[Any]:
        return await ask_each(self._clients, call, given)


def _gather(parts: Sequence[Any], name: str = "values") -> NDArray[Any]:
    """Return one array of the partitions' messages, in partition order."""
    return algorithm.gather_union([getattr(part, name) for part in parts])


def bare(parts: Sequence[Any], names: Sequence[str], sizes: Sequence[int], num_outputs: int) -> list[Array]:
    """Return predictions that came without masks, in order, of so many rows each.

    Raises:
        Refused: naming whose are of others.
    """
    for name, part, size in zip(names, parts, sizes, strict=True):
        if part.values.shape != (size, num_outputs):
            said = f"sends predictions of shape {part.values.shape}"
            raise Refused(name, f"{said}; expected: {size:,} (rows) x {num_outputs} (outputs)")
    return [part.values for part in parts]


def check_labels(name: str, labels: messages.Labels, num_rows: int, num_classes: int) -> None:
    """Check that labels are of all rows to train on, and of the classes that there are.

    Raises:
        Refused: naming whose they are.
    """
    train, is_test = labels.train, labels.is_test
    is_number = train.dtype.kind in "iuf" and bool(np.isfinite(train).all())
    is_class = num_classes < 2 or not len(train) or (train.dtype.kind in "iu" and train.min() >= 0)
    if is_number and is_class and num_classes > 1 and len(train):
        is_class = int(train.max()) < num_classes
    is_whole = len(is_test) == num_rows and len(train) == num_rows - np.count_nonzero(is_test)
    if not (is_number and is_class and is_whole and labels.num_classes == num_classes):
        said = f"sends {len(train):,} labels of {labels.num_classes:,} outputs, of {len(is_test):,} rows"
        raise Refused(name, f"{said}; expected: one of each of {num_rows:,} rows to train on, {num_classes:,} outputs")


class UnionCoordinator(UnionOperator, Server):
    """The LoU operator inside the organisation: the server is then sent neither theta nor partial gradients."""

    state: ClassVar[tuple[str, ...]] = ("memory",)
    server = ""

    def __init__(self, config: TablePuppetConfig, names: tuple[str, ...], server: str) -> None:
        self.server = server
        UnionOperator.__init__(self, config, (), names, self.compute, {})

    def known_sizes(self, message: Any, sender: str) -> dict[str, int]:
        """Return how many rows the partitions have, and those of the batch under way."""
        if isinstance(message, Derivatives) and sender == self.server:
            return {"rows of the batch": len(self._batch) if message.batch_size else 0}
        if isinstance(message, Auxiliary):
            return {"own rows that join": sum(self.memory["active"])}
        return {"rows": sum(self.memory["sizes"])} if isinstance(message, DuplicateCounts) else {}

    async def open(self) -> None:
        """Make the clients' handles."""
        self._clients = [self.peer(name, TableClient) for name in self._names]
