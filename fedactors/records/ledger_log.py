"""The traffic ledger on disk: an append-only log while a run lasts, one Parquet file when it has ended.

The log is a sequence of segments, each a whole Arrow stream; it grows at every checkpoint, so that after a kill -9 it
holds everything that left before the last one. What a broken write left of a segment at its end is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedactors.errors import BadInput
from fedactors.records.storage import LineFile, disk_errors

if TYPE_CHECKING:
    from fedactors.records.run_folder import RunFolder

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
            stream.write_table(table)
        self._file.write(sink.getvalue().to_pybytes())
        self._file.flush()


def read_ledger(folder: RunFolder) -> Any:
    """Return the ledger of a run folder as a `pyarrow.Table`, whether the run has ended or was killed.

    Raises:
        BadInput: the file is damaged.
    """
    return read_rows(folder.listed(LEDGER) or folder.listed(LEDGER_LOG))


def read_rows(file: Path | None) -> Any:
    """Return what a log, or the Parquet file that was made of one, holds; no file holds no rows.

    Raises:
        BadInput: the file is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        if file is not None and file.suffix == ".parquet":
            return parquet.read_table(file).cast(_schema())
        return pa.concat_tables([_schema().empty_table(), *(() if file is None else _segments(file))])
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"{file}: the ledger is damaged: {str(error).splitlines()[0]}") from None


def make_parquet(log: Path, target: Path) -> None:
    """Write what a log holds as one Parquet file."""
    import pyarrow.parquet as parquet

    with disk_errors(target), parquet.ParquetWriter(target, _schema(), compression="zstd") as writer:
        for table in _segments(log):
            writer.write_table(table)


def _segments(log: Path) -> Iterator[Any]:
    """Yield the tables of a log, up to the first that is not whole."""
    import pyarrow as pa

    if not log.is_file() or log.stat().st_size == 0:
        return
    with pa.memory_map(str(log)) as source:
        while source.tell() < source.size():
            try:
                with pa.ipc.open_stream(source) as stream:
                    table = stream.read_all().cast(_schema())
            except (pa.ArrowInvalid, OSError):
                return
            yield table


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema([(name, getattr(pa, kind)()) for name, kind in COLUMNS.items()])
