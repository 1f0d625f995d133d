"""Live progress on standard error, and experiment trackers.

Progress is a moving line on a terminal, a bar in the cell of a notebook, one plain line a round elsewhere, or nothing;
standard output belongs to results. Trackers stand behind one small interface; each library is imported only when it is
asked for.
"""

from __future__ import annotations

import html
import importlib
import inspect
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedactors.errors import BadInput
from fedactors.runs.metrics import shown_metric
from fedactors.runs.timeline import Activity
from fedactors.validation import without_controls

if TYPE_CHECKING:
    from fedactors.runs.timeline import Look

_LOOK_SECONDS = 1.0
_SHOW_SECONDS = 0.2
"""Between two pictures in a notebook."""
_MOST_PARTIES = 12


@dataclass(frozen=True, kw_only=True)
class RoundProgress:
    """What is shown after a round; ``epsilon`` is the privacy budget spent so far, if there is one."""

    round: int
    metrics: Mapping[str, Any]
    bytes: int = 0
    epsilon: float | None = None


class Progress(Protocol):
    """Shows how far a run has come."""

    def phase(self, text: str) -> None:
        """Say what is under way, such as "starting Ray" or "loading: 3 of 12"."""

    def watch(self, look: Look) -> bool:
        """Take a function that says what each party has done; return whether it will be asked."""

    def update(self, state: RoundProgress) -> None:
        """Show one finished round."""

    def close(self) -> None:
        """Stop showing."""


class NoProgress:
    """Shows nothing."""

    def phase(self, text: str) -> None:
        """Take what is under way and say nothing."""

    def watch(self, look: Look) -> bool:
        """Never look."""
        return False

    def update(self, state: RoundProgress) -> None:
        """Take a round and say nothing."""

    def close(self) -> None:
        """Do nothing."""


class Pace:
    """Counts rounds and seconds since the first finished round: before it, processes were starting."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None

    def step(self, finished: int, now: float) -> tuple[int, float]:
        """Note up to which round all are finished; return the rounds since the first note and their seconds.

        A note may be of several rounds: epochs that are trained without a pause.
        """
        first, begun = self._first = self._first or (finished, now)
        return finished - first, now - begun


class PlainProgress:
    """Writes one line a round, and before the first one a line for each phase."""

    def __init__(
        self,
        total: int | None,
        headline: str,
        stream: TextIO,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._headline, self._stream, self._now = total, headline, stream, now
        self._pace = Pace()
        self._phase: str | None = ""

    def phase(self, text: str) -> None:
        """Write what begins, until the rounds do: counts within a phase are for a line that moves."""
        name = text.partition(":")[0]
        if self._phase is not None and name != self._phase:
            self._phase = name
            print(without_controls(name), file=self._stream, flush=True)

    def watch(self, look: Look) -> bool:
        """Never look: a table does not fit a line."""
        return False

    def update(self, state: RoundProgress) -> None:
        """Write the line of one round."""
        self._phase = None
        print(
            describe(state, self._total, self._headline, *self._pace.step(state.round, self._now())),
            file=self._stream,
            flush=True,
        )

    def close(self) -> None:
        """Do nothing: every line is out."""


class LiveProgress:
    """A moving line on a terminal, with a table of what each party has done below it."""

    def __init__(
        self,
        total: int | None,
        headline: str,
        stream: TextIO,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, SpinnerColumn, TextColumn
        from rich.progress import Progress as Bar

        self._total, self._headline, self._now = total, headline, now
        self._pace = Pace()
        self._look: Look | None = None
        self._parties: list[Activity] = []
        self._before: dict[str, Activity] = {}
        self._phase, self._since, self._looked = "", now(), now()
        self._has_begun = False
        columns = (SpinnerColumn(), BarColumn(bar_width=20), TextColumn("{task.description}", markup=False))
        self._bar = Bar(*columns)
        self._task = self._bar.add_task("starting", total=total)
        self._live = Live(console=Console(file=stream), get_renderable=self._picture, refresh_per_second=8)
        self._live.start()

    def watch(self, look: Look) -> bool:
        """Show from now on what `look` returns, asked once a second."""
        self._look = look
        return True

    def phase(self, text: str) -> None:
        """Say what is under way, and how long it has been."""
        if text.partition(":")[0] != self._phase.partition(":")[0]:
            self._since = self._now()
        self._phase = text

    def update(self, state: RoundProgress) -> None:
        """Move the bar by one round."""
        text = describe(state, self._total, self._headline, *self._pace.step(state.round, self._now()))
        self._bar.update(self._task, description=text, completed=state.round)
        self._phase, self._has_begun = "", True

    def close(self) -> None:
        """Leave the last state on the screen, or nothing of a run that never began."""
        self._phase, self._looked = "", -math.inf
        self._live.transient = not self._has_begun
        self._live.stop()

    def _picture(self) -> Group:
        lines: list[RenderableType] = [self._bar]
        if self._phase:
            under_way = f"{self._phase}, {format_seconds(self._now() - self._since)}"
            if self._has_begun:
                lines.append(Text(f"  {under_way}", style="dim"))
            else:
                self._bar.update(self._task, description=under_way)
        if self._look is not None and self._now() - self._looked >= _LOOK_SECONDS:
            self._looked = self._now()
            self._before = {entry.party: entry for entry in self._parties}
            self._parties = self._look()
        if self._parties:
            lines.append(party_table(self._parties, self._before))
        return Group(*lines)


class NotebookProgress:
    """A bar below the cell of a notebook; at the end it stands as it is, with the time that the rounds took left out.

    Args:
        total: number of rounds, if known.
        headline: name of the main metric.
        show: puts HTML, or a text where there is none, below the cell, each time in place of the last.
        now: the time in seconds.
    """

    def __init__(
        self,
        total: int | None,
        headline: str,
        show: Callable[[str, str], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._headline, self._show, self._now = total, headline, show, now
        self._pace = Pace()
        self._last: RoundProgress | None = None
        self._shown = -math.inf

    def phase(self, text: str) -> None:
        """Say what is under way."""
        self._draw(self._last.round if self._last else 0, without_controls(text))

    def watch(self, look: Look) -> bool:
        """Never look: a table would move the cells below."""
        return False

    def update(self, state: RoundProgress) -> None:
        """Move the bar by one round."""
        self._last = state
        text = describe(state, self._total, self._headline, *self._pace.step(state.round, self._now()))
        if self._now() - self._shown >= _SHOW_SECONDS:
            self._draw(state.round, text)

    def close(self) -> None:
        """Leave the last round."""
        last = self._last
        self._draw(
            *((0, "no round") if last is None else (last.round, describe(last, self._total, self._headline, 0, 0.0)))
        )

    def _draw(self, done: int, text: str) -> None:
        self._shown = self._now()
        value = f' value="{done}" max="{self._total or done}"' if done else ""  # none: a bar that moves by itself
        self._show(f"<progress{value}></progress> {html.escape(text)}", text)


def in_notebook() -> bool:
    """Say whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def below_cell() -> Callable[[str, str], None]:
    """Return what puts HTML and its text below the cell of a notebook that runs, each time in place of the last."""
    display = sys.modules["IPython.display"].display  # a kernel has loaded it
    handle = display({"text/plain": ""}, raw=True, display_id=True)

    def show(drawn: str, text: str) -> None:
        handle.update({"text/html": drawn, "text/plain": text}, raw=True)

    return show


def party_table(parties: Sequence[Activity], before: Mapping[str, Activity]) -> Table:
    """Return a table of what parties have done, the busiest first if they are many.

    Args:
        parties: as they are now.
        before: as they were when somebody looked last, by name; who did something since is at work.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=True)
    table.add_column("party", no_wrap=True, overflow="ellipsis", max_width=24)
    table.add_column("now", no_wrap=True)
    for name in ("actors", "steps", "sent", "received", "computing", "waiting"):
        table.add_column(name, justify="right", no_wrap=True)
    shown = parties
    if len(parties) > _MOST_PARTIES:
        shown = sorted(parties, key=lambda entry: -entry.sent - entry.received)[: _MOST_PARTIES - 1]
    for entry in shown:
        state, style = _state(entry, before.get(entry.party))
        sums = [f"{entry.num_actors:,}", f"{entry.num_computes:,}", format_bytes(entry.sent)]
        sums += [format_bytes(entry.received), f"{entry.computing:,.1f} s", f"{entry.waiting:,.1f} s"]
        table.add_row(Text(entry.party), Text(state, style=style), *sums)
    if len(shown) < len(parties):
        table.add_row(Text(f"{len(parties) - len(shown):,} others", style="dim"))
    return table


def _state(entry: Activity, before: Activity | None) -> tuple[str, str]:
    """Return what a party has been doing since it was looked at last, and the colour of it."""
    before = before or Activity(entry.party)
    if entry.num_computes > before.num_computes:
        return "computing", "green"
    if entry.sent > before.sent or entry.received > before.received:
        return "talking", "cyan"
    if entry.waiting > before.waiting:
        return "waiting", "yellow"
    return "quiet", "dim"


def open_progress(*, quiet: bool, total: int | None, headline: str, stream: TextIO | None = None) -> Progress:
    """Return the display that fits: none when `quiet`, live on a terminal or in a notebook, plain lines otherwise."""
    stream = sys.stderr if stream is None else stream
    if quiet:
        return NoProgress()
    if stream.isatty():
        return LiveProgress(total, headline, stream)
    if in_notebook():
        return NotebookProgress(total, headline, below_cell())
    return PlainProgress(total, headline, stream)


def describe(state: RoundProgress, total: int | None, headline: str, num_done: int, elapsed: float) -> str:
    """Return one line: round, main metric, rounds per second, time to go, bytes, budget.

    Args:
        state: the round just finished.
        total: number of rounds of the whole run, if known.
        headline: name of the main metric; `shown_metric` says what stands for it where it is not measured.
        num_done: rounds finished in this process after its first.
        elapsed: the seconds that they took.
    """
    parts = [f"round {state.round}" + (f"/{total}" if total else "")]
    name = shown_metric(headline, state.metrics)
    if name is not None:
        value = state.metrics[name]
        parts.append(f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}")
    if num_done and elapsed > 0:
        parts.append(f"{num_done / elapsed:.2f} rounds/s")
        left = (total - state.round) * elapsed / num_done if total else 0.0
        if round(left) >= 1:
            parts.append(f"{format_seconds(left)} to go")
    parts.append(format_bytes(state.bytes))
    if state.epsilon is not None:
        parts.append(f"epsilon {state.epsilon:.3g}")
    return without_controls("  ".join(parts))


def format_bytes(count: float) -> str:
    """Return `count` bytes with a decimal unit, such as ``1.5 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def format_seconds(seconds: float) -> str:
    """Return `seconds` as ``42 s``, ``3 min 05 s`` or ``2 h 10 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Tracker(Protocol):
    """Receives the metrics of each round."""

    def log(self, round_index: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of one round."""

    def close(self, *, finished: bool = True) -> None:
        """Write everything and let go; `finished` says whether the run came to its end."""


class TensorBoardTracker:
    """Writes scalars to ``<run>/tensorboard``."""

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any]) -> None:
        module = _load("torch.utils.tensorboard", "tensorboard")
        self._writer = module.SummaryWriter(log_dir=str(folder / "tensorboard"))
        self._writer.add_text("config", "  \n".join(f"{key} = {value}" for key, value in sorted(config.items())))

    def log(self, round_index: int, metrics: Mapping[str, float]) -> None:
        """Add one scalar per metric."""
        for key, value in metrics.items():
            self._writer.add_scalar(key, value, round_index)

    def close(self, *, finished: bool = True) -> None:
        """Flush and close the event file."""
        self._writer.close()


class MlflowTracker:
    """Logs to the tracking server that MLflow's own settings name, by default to a database in ``<run>/mlflow``."""

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any]) -> None:
        mlflow = _load("mlflow", "mlflow")
        self._is_ours = not mlflow.is_tracking_uri_set()
        if self._is_ours:
            (folder / "mlflow").mkdir(exist_ok=True)
            mlflow.set_tracking_uri(f"sqlite:///{(folder / 'mlflow' / 'mlflow.db').resolve()}")
        self._mlflow = mlflow
        mlflow.set_experiment("fedactors")
        mlflow.start_run(run_name=name)
        mlflow.log_params({key: str(value)[:500] for key, value in config.items()})

    def log(self, round_index: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics at their round, by names that MLflow takes: ``precision_3`` of ``precision@3``."""
        self._mlflow.log_metrics({name.replace("@", "_"): value for name, value in metrics.items()}, step=round_index)

    def close(self, *, finished: bool = True) -> None:
        """End the run, and leave the process's settings as they were: the next run has a database of its own."""
        self._mlflow.end_run("FINISHED" if finished else "FAILED")
        if self._is_ours:
            self._mlflow.set_tracking_uri(None)


class WandbTracker:
    """Logs to Weights & Biases, offline into ``<run>/wandb`` unless WANDB_MODE says otherwise."""

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any]) -> None:
        import os

        wandb = _load("wandb", "wandb")
        mode = os.environ.get("WANDB_MODE", "offline")
        self._run = wandb.init(project="fedactors", name=name, dir=str(folder), config=dict(config), mode=mode)

    def log(self, round_index: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics at their round."""
        self._run.log(dict(metrics), step=round_index)

    def close(self, *, finished: bool = True) -> None:
        """Finish the run."""
        self._run.finish(exit_code=int(not finished))


class CallbackTracker:
    """Calls what a user gave: ``begin(run, config)``, ``round(number, metrics)`` and ``end(run)``, each if it is there.

    It is called in the process that drives the run; ``run`` is the path of its folder. What a callback raises ends the
    run. ``end`` is called once, whether the run finished or not.
    """

    def __init__(self, callback: Any, folder: Path, config: Mapping[str, Any]) -> None:
        self._callback, self._run = callback, str(folder)
        self._call("begin", self._run, dict(config))

    def log(self, round_index: int, metrics: Mapping[str, float]) -> None:
        """Hand the metrics of a round on."""
        self._call("round", round_index, dict(metrics))

    def close(self, *, finished: bool = True) -> None:
        """Say that the run is over."""
        self._call("end", self._run)

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._callback, name, None)
        if name == "round" and inspect.isfunction(self._callback):
            function = self._callback
        if function is not None:
            function(*arguments)


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Raise `BadInput` for an object that has nothing to call."""
    for one in callbacks:
        heard = any(callable(getattr(one, name, None)) for name in ("begin", "round", "end"))
        if not inspect.isfunction(one) and (isinstance(one, type) or not heard):
            raise BadInput(
                f"callbacks: {one!r:.80} is not allowed: give a function of a round's number and metrics, or an object "
                "with begin, round or end"
            )


_TRACKERS: Mapping[str, Callable[[Path, str, Mapping[str, Any]], Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "mlflow": MlflowTracker,
    "wandb": WandbTracker,
}


def check_trackers(names: Sequence[str]) -> None:
    """Raise `BadInput` for a name that is no tracker."""
    for name in names:
        if name not in _TRACKERS:
            raise BadInput(f"--track: {name!r} is not allowed: one of {', '.join(_TRACKERS)}")


def open_trackers(names: Sequence[str], folder: Path, config: Mapping[str, Any]) -> list[Tracker]:
    """Open the trackers called `names` for the run in `folder`.

    Raises:
        BadInput: an unknown name, or a library that is not installed.
    """
    check_trackers(names)
    return [_TRACKERS[name](folder, folder.name, config) for name in names]


def scalars(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Keep the metrics that are finite numbers."""
    kept = {}
    for name, value in metrics.items():
        number = value.item() if hasattr(value, "item") and getattr(value, "size", 1) == 1 else value
        if isinstance(number, (int, float)) and not isinstance(number, bool) and math.isfinite(number):
            kept[name] = float(number)
    return kept


def _load(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise BadInput(f"--track: {extra} is not installed: pip install 'fedactors[{extra}]'") from None
