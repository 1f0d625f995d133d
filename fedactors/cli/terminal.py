"""What a command says and how it ends: one clear line for an error, its exit code, results as text or JSON.

=====  ==============================================
code   meaning
=====  ==============================================
0      success
1      internal error; or Ray's library ended the process,
       which a line of its reaper says
2      bad input
3      a party failed, was lost, or did not answer
4      data missing
130    interrupted (a checkpoint was written)
143    terminated (a checkpoint was written)
=====  ==============================================
"""

from __future__ import annotations

import atexit
import itertools
import json
import logging
import os
import shutil
import sys
import textwrap
import traceback
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TextIO

from fedactors.errors import FedactorsError, PartyFailed, is_out_of_memory
from fedactors.validation import without_controls

DEBUG_VARIABLE = "FEDACTORS_DEBUG"
_NARROW = 16
"""Letters from which on the name of a column goes on in a further line."""
_CLEAR = "\r\x1b[2K"
"""To the line's begin, and away with what stands there."""


def end_process(code: int) -> NoReturn:
    """End this process with an exit code, at once where a library would crash on the way out, or wait for ever."""
    cluster = sys.modules.get("fedactors.runtime.ray.cluster")
    is_stuck = cluster is not None and cluster.has_stuck_thread.is_set()
    if not is_stuck and (code == 0 or "pyarrow" not in sys.modules):
        sys.exit(code)
    if not is_stuck:
        atexit._run_exitfuncs()  # all that is done in an orderly end, but for Arrow's wait for what a failed read left
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def guarded() -> Iterator[None]:
    """End with an exit code where an error comes, which becomes one line on standard error.

    Raises:
        SystemExit: with the code.
    """
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Clean())
    try:
        yield
    except FedactorsError as error:
        _say(str(error))
        if isinstance(error, PartyFailed) and error.traceback_text:
            say(error.traceback_text.rstrip(), file=sys.stderr)
        _details(error)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        _say("interrupted")
        raise SystemExit(130) from None
    except BrokenPipeError:
        # the reader of a pipe went away: point the descriptor elsewhere, so that the interpreter can flush at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except Exception as error:
        if is_out_of_memory(error):
            _say(f"not enough memory for what was asked: {str(error) or 'no more is free'}")
            raise SystemExit(2) from None
        _say(f"internal error: {type(error).__name__}: {error}")
        _details(error)
        raise SystemExit(1) from None


@contextmanager
def moving_line() -> Iterator[Callable[[str], None]]:
    """Give a function that shows what is under way, in one line of standard error that goes away; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return

    def show(text: str) -> None:
        print(f"{_CLEAR}{text[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        print(_CLEAR, end="", file=sys.stderr, flush=True)


def say(*texts: object, sep: str = " ", end: str = "\n", file: TextIO | None = None, flush: bool = False) -> None:
    """Print what may hold words of a run folder, a plugin or a peer: nothing in it steers a terminal."""
    print(without_controls(sep.join(map(str, texts))), end=end, file=file, flush=flush)


def say_filled(text: str, *, indent: str = "  ", file: TextIO | None = None) -> None:
    """Print a line that goes on, indented, where a terminal ends; to a pipe or a file it stays one line."""
    if (sys.stdout if file is None else file).isatty():
        leading = text[: len(text) - len(text.lstrip())]
        wide = shutil.get_terminal_size().columns
        text = textwrap.fill(
            _spaced(text.lstrip()),
            wide,
            initial_indent=leading,
            subsequent_indent=leading + indent,
            break_on_hyphens=False,
        ).replace(_SECOND_CELL, "")
    say(text, file=file)


_SECOND_CELL = "\0"


def _spaced(text: str) -> str:
    """Return a text in which what may take two cells of a terminal counts twice."""
    if text.isascii():
        return text
    text = text.replace(_SECOND_CELL, "?")
    return "".join(f"{char}{_SECOND_CELL}" if unicodedata.east_asian_width(char) in "WFA" else char for char in text)


class _Clean(logging.Formatter):
    """Of warnings, which quote what parties said."""

    def format(self, record: logging.LogRecord) -> str:
        return without_controls(super().format(record))


def print_json(value: Any) -> None:
    """Print one JSON object on one line of standard output."""
    print(json.dumps(value, allow_nan=False), flush=True)


def answer(form: str, facts: Mapping[str, Any], *lines: object) -> int:
    """Print what a command found as one JSON object, or as lines; return the code of success."""
    if form == "json":
        print_json(facts)
    else:
        say(*lines, sep="\n")
    return 0


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, wrap: bool = False) -> None:
    """Print aligned columns on standard output; nothing is cut off, whatever the terminal's width."""
    say("\n".join(table_lines(header, rows, wrap=wrap)))


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]], *, wrap: bool = False) -> list[str]:
    """Return the lines of a table with aligned columns, whose names go on in further lines if it is too wide else.

    Args:
        header: names of the columns.
        rows: cells.
        wrap: whether the last column goes on in further lines where the terminal (80 columns if there is none) ends.
    """
    wide = shutil.get_terminal_size().columns
    names = [[name] for name in header]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    if not wrap and sum(widths) + 2 * (len(widths) - 1) > wide:
        longest = [max(map(len, cells), default=0) for cells in zip(*rows, strict=True)] or widths
        wrapping = textwrap.TextWrapper(break_long_words=False, break_on_hyphens=False)
        names = []
        for name, width in zip(header, longest, strict=True):
            wrapping.width = max(width, _NARROW)
            names.append(wrapping.wrap(name) or [""])
        widths = [max(width, *map(len, lines)) for width, lines in zip(longest, names, strict=True)]
    lines = [list(row) for row in rows]
    if wrap:
        before = sum(widths[:-1]) + 2 * (len(widths) - 1)
        widths[-1] = min(widths[-1], max(20, wide - before))
        lines = []
        for *cells, last in rows:
            parts = [part.replace(_SECOND_CELL, "") for part in textwrap.wrap(_spaced(last), widths[-1])] or [""]
            lines += [[*cells, parts[0]], *([*[""] * len(cells), part] for part in parts[1:])]
    heads = [list(cells) for cells in itertools.zip_longest(*names, fillvalue="")]
    table = [*heads, ["-" * width for width in widths], *lines]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def print_metrics(what: str, metrics: Mapping[str, Any]) -> None:
    """Print metrics on one line, or, where they do not fit, on further ones; no name is parted from its value."""
    words = [f"{name}\N{NO-BREAK SPACE}{format_value(value)}" for name, value in metrics.items()]
    wide = shutil.get_terminal_size().columns
    text = textwrap.fill(
        f"{what}: {', '.join(words)}", wide, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    say(text.replace("\N{NO-BREAK SPACE}", " "))


def format_value(value: Any) -> str:
    """Return a metric for people: four significant digits for floats."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e-3 or abs(value) >= 1e4 else f"{value:.4f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {format_value(item)}" for key, item in value.items())
    return str(value)


def _say(message: str) -> None:
    say_filled("fedactors: " + " ".join(message.split("\n")), file=sys.stderr)


def _details(error: BaseException) -> None:
    for note in getattr(error, "__notes__", []):
        say(note, file=sys.stderr)
    if os.environ.get(DEBUG_VARIABLE):
        say("".join(traceback.format_exception(error)), end="", file=sys.stderr)
