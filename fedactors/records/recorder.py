"""The recorder: what a runtime tells about a run, kept in a run folder or only in memory.

    runtime -- rounds, spans, ledger tables, checkpoints, privacy records --> Recorder --> run folder
                                                                                 +-------> progress, trackers

Nobody waits for the recorder: its methods return as soon as the operating system has the bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedactors.errors import BadInput
from fedactors.records import schemas
from fedactors.records.events import LOST, EventLog, Span
from fedactors.records.ledger_log import LEDGER, LEDGER_LOG, LedgerLog, Row, make_parquet, read_ledger, totals
from fedactors.records.metrics import encode_round, json_line, jsonable
from fedactors.records.progress import NoProgress, Progress, RoundProgress
from fedactors.records.run_folder import EVENTS, PRIVACY, ROUND_METRICS, Checkpoint, RunFolder
from fedactors.records.schemas import parse
from fedactors.records.storage import HALF_OF_MEMORY, disk_errors
from fedactors.records.trackers import Tracker, scalars

if TYPE_CHECKING:
    from fedactors.runtime.base import Usage


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

    def privacy(self, records: Iterable[Any]) -> None:
        """Take privacy records (dataclasses or mappings)."""

    def save_checkpoint(self, label: str, actors: Mapping[str, bytes], driver: bytes) -> None:
        """Keep a checkpoint."""

    def load_checkpoint(self, label: str | None = None) -> Checkpoint | None:
        """Return the checkpoint to go on from, or None for a run that starts afresh."""

    def close(self) -> None:
        """Write everything that is still held."""


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
            totals = {"seconds": used.seconds, "bytes": used.bytes, "messages": used.messages, "money": used.price}
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

    def close(self) -> None:
        """Write the sums of the timeline, close the ledger, the trackers and the display; again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._progress.close()
        for tracker in self._trackers:
            tracker.close()
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
                tracker.close()

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
