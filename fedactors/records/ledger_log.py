"""The traffic ledger on disk: an append-only log while a run lasts, one Parquet file when it has ended.

The log is a sequence of segments, each a whole Arrow stream; it grows at every checkpoint, so that after a kill -9 it
holds everything that left before the last one. What a broken write left of a segment at its end is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fedactors.errors import BadInput
from fedactors.network.ledger import DRIVER as CONTROL
from fedactors.records import schemas
from fedactors.records.run_folder import SUMMARY, RunFolder
from fedactors.records.storage import LineFile, disk_errors

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
"""Of a ledger that is read, 3 GB: a few bytes of a stranger's file can stand for as many rows as they like."""
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
