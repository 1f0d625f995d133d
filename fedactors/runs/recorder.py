"""The recorder: what a runtime tells about a run, kept in a run folder or only in memory.

    runtime -- rounds, spans, ledger rows, checkpoints, privacy records --> Recorder --> run folder
                                                                               +-------> progress, trackers

Nobody waits for the recorder: its methods return as soon as the operating system has the bytes. While a run lasts its
ledger is an append-only log of segments, each a whole Arrow stream, which grows at every checkpoint; so after a kill -9
it holds everything that left before the last one. What a broken write left at its end is passed over. When the run has
ended the log becomes one Parquet file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedactors.errors import BadInput
from fedactors.messages.ledger import DRIVER as CONTROL
from fedactors.runs import schemas
from fedactors.runs.folder import EVENTS, PRIVACY, ROUND_METRICS, SUMMARY, Checkpoint, RunFolder
from fedactors.runs.metrics import encode_round, json_line, jsonable
from fedactors.runs.progress import NoProgress, Progress, RoundProgress, Tracker, scalars
from fedactors.runs.schemas import parse
from fedactors.runs.storage import HALF_OF_MEMORY, LineFile, disk_errors
from fedactors.runs.timeline import LOST, EventLog, Span

if TYPE_CHECKING:
    from fedactors.messages.ledger import Usage

Row = tuple[float, str, str, str, str, int]
LEDGER = "ledger.parquet"
LEDGER_LOG = "ledger.arrows"
COLUMNS = {
    "time": "float64",
    "sender": "string",
    "receiver": "string",
    "kind": "string",
    "type": "string",
    "bytes": "int64",
}
_SEGMENT_ROWS = 1 << 15
MOST_ROWS = 50_000_000
"""Of a ledger that is read, 3 GB: a few bytes of a file from someone else can stand for any number of rows."""
_LONGEST_NAME = 1000


class LedgerLog:
    """The log of a run that is under way.

    Args:
        file: where it is written.
        earlier: rows (a table) of the run that this one goes on from.
    """

    def __init__(self, file: LineFile, earlier: Any = None) -> None:
        self.num_rows = 0
        self._file = file
        self._rows: list[Row] = []
        if earlier is not None and earlier.num_rows:
            self._write(earlier)
            self.num_rows = earlier.num_rows

    def append(self, rows: list[Row]) -> None:
        """Add rows; they are on disk after `flush`."""
        self._rows.extend(rows)
        self.num_rows += len(rows)
        if len(self._rows) >= _SEGMENT_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write the rows that are held as one segment."""
        import pyarrow as pa

        if self._rows:
            rows, self._rows = self._rows, []
            self._write(pa.table(list(zip(*rows, strict=True)), schema=_schema()))

    def _write(self, table: Any) -> None:
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
            stream.write_table(table, max_chunksize=_SEGMENT_ROWS)
        self._file.write(sink.getvalue().to_pybytes())
        self._file.flush()


def read_ledger(folder: RunFolder) -> Any:
    """Return the ledger of a run folder as a `pyarrow.Table`, whether the run has ended or was killed.

    Raises:
        BadInput: the file is damaged, or does not add up to what the run's summary says.
    """
    table = read_rows(folder.listed(LEDGER) or folder.listed(LEDGER_LOG))
    if folder.listed(SUMMARY) is not None:
        said = folder.read_json(SUMMARY, schemas.SummaryFile)
        found = totals(table)
        if said["runtime"] != "federated" and found != (said["messages"], said["bytes"]):  # sites keep their own rows
            raise BadInput(
                f"{folder.path}: the ledger is damaged: it holds {found[0]} messages of {found[1]} bytes, "
                f"{SUMMARY} says {said['messages']} of {said['bytes']}"
            )
    return table


def totals(table: Any) -> tuple[int, int]:
    """Return how many messages a ledger holds, and their bytes, without what the driver sends and learns."""
    import pyarrow.compute as compute

    sizes = table.filter(compute.not_equal(table.column("kind"), CONTROL)).column("bytes")
    return len(sizes), int(compute.sum(sizes.cast("double", safe=False)).as_py() or 0)


def read_rows(file: Path | None) -> Any:
    """Return what a log, or the Parquet file that was made of one, holds; no file holds no rows.

    Raises:
        BadInput: the file is damaged, or holds more than `MOST_ROWS`.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    kept, count = [_schema().empty_table()], 0
    try:
        parts: Iterable[Any] = () if file is None else _segments(file)
        if file is not None and file.suffix == ".parquet":
            names = [name for name, kind in COLUMNS.items() if kind == "string"]
            stored = parquet.ParquetFile(file, read_dictionary=names)  # a text stays one, however often it occurs
            parts = map(_checked, (pa.Table.from_batches([one]) for one in stored.iter_batches(_SEGMENT_ROWS)))
        for part in parts:
            count += part.num_rows
            if count > MOST_ROWS:
                raise BadInput(f"{file}: the ledger holds too many messages: at most {MOST_ROWS} are read")
            kept.append(part)
        return pa.concat_tables(kept)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadInput(f"{file}: the ledger is damaged: {str(error).splitlines()[0]}") from None


def _checked(table: Any) -> Any:
    """Return rows as this version has them; a `ValueError` if a value is missing, or a name longer than any."""
    import pyarrow as pa
    import pyarrow.compute as compute

    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.null_count:
            raise ValueError(f"{name}: a value is missing")
        for chunk in column.chunks:
            texts = chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk
            if (
                pa.types.is_string(texts.type)
                and (compute.max(compute.binary_length(texts)).as_py() or 0) > _LONGEST_NAME
            ):
                raise ValueError(f"{name}: a text of more than {_LONGEST_NAME} bytes")
    return table.cast(_schema())


def make_parquet(log: Path, target: Path) -> None:
    """Write what a log holds as one Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    with disk_errors(target), parquet.ParquetWriter(target, _schema(), compression="zstd") as writer:
        kept, count = [], 0
        for table in _segments(log):
            kept.append(table)
            count += table.num_rows
            if count >= _SEGMENT_ROWS:  # a checkpoint's few rows are no group of their own: each has a head
                writer.write_table(pa.concat_tables(kept))
                kept, count = [], 0
        if kept:
            writer.write_table(pa.concat_tables(kept))


def _segments(log: Path) -> Iterator[Any]:
    """Yield the tables of a log, batch by batch, up to the first that is not whole."""
    import pyarrow as pa

    if not log.is_file() or log.stat().st_size == 0:
        return
    with pa.memory_map(str(log)) as source:
        while source.tell() < source.size():
            try:
                with pa.ipc.open_stream(source) as stream:
                    for batch in stream:
                        yield _checked(pa.Table.from_batches([batch]))
            except (pa.ArrowInvalid, OSError):
                return


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema([(name, getattr(pa, kind)()) for name, kind in COLUMNS.items()])


class Recorder(Protocol):
    """What runtimes call; checkpoints are opaque bytes to it."""

    keeps_checkpoints: bool
    """Whether anybody can go on from what `save_checkpoint` takes."""

    def record_round(self, index: int, metrics: Mapping[str, Any]) -> None:
        """Take the metrics of round `index`."""

    def record_span(self, actor: str, kind: str, label: str, start: float, end: float) -> None:
        """Take one span of the timeline, in seconds of the runtime's clock."""

    def ledger_sink(self, rows: list[Row]) -> None:
        """Take the next rows of the traffic ledger: (time, sender, receiver, kind, type, bytes)."""

    def privacy(self, records: list[Any]) -> None:
        """Take privacy records (dataclasses or mappings)."""

    def save_checkpoint(self, label: str, actors: Mapping[str, bytes], driver: bytes) -> None:
        """Keep a checkpoint."""


class MemoryRecorder:
    """A recorder without a folder: everything stays in attributes, for tests and notebooks.

    Args:
        resume_from: the checkpoint that the run goes on from.
        keeps_checkpoints: False: a run that is interrupted begins anew, and a simulated one spends no time on them.
    """

    def __init__(self, resume_from: Checkpoint | None = None, *, keeps_checkpoints: bool = True) -> None:
        self.keeps_checkpoints = keeps_checkpoints
        self.rounds: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self.events = EventLog(self.lines.append)
        self.ledger_rows: list[Row] = []
        self.privacy_records: list[Any] = []
        self.checkpoints: dict[str, Checkpoint] = {}
        self.closed = False
        self._resume_from = resume_from

    def record_round(self, index: int, metrics: Mapping[str, Any]) -> None:
        """Keep the round."""
        self.rounds.append({"round": index, **jsonable(metrics)})

    def record_span(self, actor: str, kind: str, label: str, start: float, end: float) -> None:
        """Keep the span."""
        self.events.span(Span(actor=actor, kind=kind, label=label, start=start, end=end))

    def ledger_sink(self, rows: list[Row]) -> None:
        """Keep the rows."""
        self.ledger_rows.extend(rows)

    def privacy(self, records: Iterable[Any]) -> None:
        """Keep the records."""
        self.privacy_records.extend(records)

    def save_checkpoint(self, label: str, actors: Mapping[str, bytes], driver: bytes) -> None:
        """Keep the checkpoint under its label, if any is kept."""
        if self.keeps_checkpoints:
            marks = {ROUND_METRICS: len(self.rounds)}
            self.checkpoints[label] = Checkpoint(label=label, actors=dict(actors), driver=driver, marks=marks)

    def load_checkpoint(self, label: str | None = None) -> Checkpoint | None:
        """Return the checkpoint called `label`, or the one that this run was told to go on from."""
        return self._resume_from if label is None else self.checkpoints[label]

    def close(self) -> None:
        """Note that the run is over."""
        self.closed = True


MASKED = "Masked"
"""In the ledger: what is sent under the masks of a secure sum."""


class FolderRecorder:
    """A recorder that writes a run folder.

    A resumed run starts its metrics, events, privacy records and ledger with what the parent had written when the
    checkpoint was taken, so that they read as if the run had never been interrupted.
    """

    keeps_checkpoints = True

    def __init__(
        self,
        folder: RunFolder,
        *,
        parent: RunFolder | None = None,
        progress: Progress | None = None,
        trackers: Sequence[Tracker] = (),
        max_spans: int = 200_000,
    ) -> None:
        self.folder = folder
        self.num_rounds = 0
        self.usage: Callable[[], Usage] | None = None
        """What the run has used so far, asked after each round; set once the runtime is there."""
        self._progress = progress or NoProgress()
        self._trackers = list(trackers)
        self._resume_from = None if parent is None else parent.checkpoint_to_resume()
        self._metrics = folder.stream(ROUND_METRICS, self._inherited(parent, ROUND_METRICS))
        earlier = self._inherited(parent, EVENTS)
        self._check_losses(parent)
        self._events_file = folder.stream(EVENTS, earlier)
        self._privacy_file = folder.stream(PRIVACY, self._inherited(parent, PRIVACY))
        self.events = EventLog(self._events_file.append, max_spans=max_spans)
        for number, text in enumerate(earlier.splitlines(), start=1):
            line = parse(schemas.EventLine, text, f"{EVENTS}: line {number}")
            if line.pop("type") == "span":
                self.events.count(Span(**line))
        self._ledger = LedgerLog(folder.stream(LEDGER_LOG), self._inherited_ledger(parent))
        self._closed = False

    def record_round(self, index: int, metrics: Mapping[str, Any]) -> None:
        """Append the round to the metrics file, its totals to the events, and show it."""
        self._metrics.append(encode_round(index, metrics))
        self._metrics.flush()
        used = None if self.usage is None else self.usage()
        if used is not None:
            totals = {"seconds": used.seconds, "bytes": used.bytes, "messages": used.messages, "cost_usd": used.price}
            self.events.mark("round", {"round": index, **totals})
        self.num_rounds += 1
        plain = jsonable(metrics)
        self._progress.update(
            RoundProgress(round=index, metrics=plain, bytes=used.bytes if used else 0, epsilon=plain.get("epsilon"))
        )
        for tracker in self._trackers:
            tracker.log(index, scalars(metrics))

    def record_span(self, actor: str, kind: str, label: str, start: float, end: float) -> None:
        """Append the span to the events; that somebody was lost is on disk at once."""
        self.events.span(Span(actor=actor, kind=kind, label=label, start=start, end=end))
        if kind == LOST:
            self._events_file.flush()
            self._ledger.flush()

    def ledger_sink(self, rows: list[Row]) -> None:
        """Append rows to the ledger; they are on disk with the next checkpoint."""
        self._ledger.append(rows)

    def privacy(self, records: Iterable[Any]) -> None:
        """Append privacy records."""
        for record in records:
            self._privacy_file.append(json_line(jsonable(record)))

    def reached(self) -> dict[str, int]:
        """Return how far the other files have come, for a checkpoint of this moment that is saved later."""
        self._ledger.flush()
        return {**self.folder.reached(), LEDGER: self._ledger.num_rows}

    def save_checkpoint(
        self, label: str, actors: Mapping[str, bytes], driver: bytes, reached: Mapping[str, int] | None = None
    ) -> None:
        """Write the checkpoint and how far the other files had come: at present, if `reached` does not say it."""
        self.folder.save_checkpoint(label, actors, driver, marks=self.reached() if reached is None else reached)

    def load_checkpoint(self, label: str | None = None) -> Checkpoint | None:
        """Return this run's checkpoint `label`, or, without a label, the parent's that it resumes from."""
        return self._resume_from if label is None else self.folder.load_checkpoint(label)

    def close(self, *, finished: bool = True) -> None:
        """Write the sums of the timeline, close the ledger, the trackers and the display; again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._progress.close()
        for tracker in self._trackers:
            tracker.close(finished=finished)
        self.events.mark("totals", self.events.summary())
        self._ledger.flush()
        target = self.folder.path / LEDGER
        half = target.with_name(f".{LEDGER}.part")
        try:
            make_parquet(self.folder.path / LEDGER_LOG, half)
            with disk_errors(target):
                os.replace(half, target)
        finally:
            half.unlink(missing_ok=True)
        self.folder.adopt(LEDGER)
        self.folder.end_stream(LEDGER_LOG)

    def abandon(self) -> None:
        """Close without writing anything more, for a disk that is full."""
        if not self._closed:
            self._closed = True
            self._progress.close()
            for tracker in self._trackers:
                tracker.close(finished=False)

    def _inherited(self, parent: RunFolder | None, name: str) -> bytes:
        if parent is None or self._resume_from is None:
            return b""
        size = self._resume_from.marks.get(name, 0)
        path = parent.listed(name)
        if size and path is None:
            raise BadInput(f"{parent.path}: {name} is missing")
        data = _part(path, 0, size) if size and path is not None else b""
        if len(data) < size or (data and not data.endswith(b"\n")):
            raise BadInput(f"{parent.path}: {name}: byte {size}, where the checkpoint was taken, is the end of no line")
        return data

    def _check_losses(self, parent: RunFolder | None) -> None:
        """Refuse to do rounds with secure sums again that somebody was lost in: sums with it and without it differ.

        Raises:
            BadInput: somebody was lost after the checkpoint that is resumed from, in a run with secure sums.
        """
        path = None if parent is None else parent.listed(EVENTS)
        if parent is None or self._resume_from is None or path is None:
            return
        later = _part(path, self._resume_from.marks.get(EVENTS, 0)).splitlines(keepends=True)
        lines = [parse(schemas.EventLine, line, EVENTS) for line in later if line.endswith(b"\n")]  # a kill may cut one
        lost = [line["actor"] for line in lines if line["type"] == "span" and line["kind"] == LOST]
        if lost and MASKED in read_ledger(parent).column("type").unique().to_pylist():
            raise BadInput(
                f"--resume: {parent.path}: {lost[0]} was lost after the checkpoint, and the rounds since then would be "
                "summed again with it: the difference of a secure sum with it and without it is its part; begin anew"
            )

    def _inherited_ledger(self, parent: RunFolder | None) -> Any:
        """Return what had left by the checkpoint.

        Raises:
            BadInput: the parent's ledger holds less than that, or than the last round before it says.
        """
        if parent is None or self._resume_from is None:
            return None
        num_rows = self._resume_from.marks.get(LEDGER, 0)
        table = read_ledger(parent)
        if table.num_rows < num_rows:
            raise BadInput(
                f"{parent.path}: the ledger holds {table.num_rows} of the {num_rows} messages that had left by the "
                "checkpoint: it is damaged"
            )
        made = table.slice(0, num_rows)
        lines = [parse(schemas.EventLine, line, EVENTS) for line in self._inherited(parent, EVENTS).splitlines()]
        rounds = [line for line in lines if line["type"] == "round"]
        messages, size = totals(made)
        is_short = bool(rounds) and (rounds[-1]["messages"] > messages or rounds[-1]["bytes"] > size)
        if is_short and parent.config.get("runtime") != "federated":  # sites keep their own rows
            raise BadInput(
                f"{parent.path}: the ledger is damaged: up to the checkpoint it holds {messages} messages of {size} "
                f"bytes, by round {rounds[-1]['round']} there were {rounds[-1]['messages']} of {rounds[-1]['bytes']}"
            )
        return made


def _part(path: Path, start: int, size: int = HALF_OF_MEMORY) -> bytes:
    """Return what a file of lines holds from `start` on, `size` bytes at most."""
    with path.open("rb") as file:
        there = os.fstat(file.fileno()).st_size - start  # to read more than that would take the memory for it first
        file.seek(start)
        return file.read(max(0, min(size, there, HALF_OF_MEMORY)))
