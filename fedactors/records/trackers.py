"""Optional experiment trackers behind one small interface; each library is imported only when it is asked for."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fedactors.errors import BadInput


class Tracker(Protocol):
    """Receives the metrics of each round."""

    def log(self, round_index: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of one round."""

    def close(self) -> None:
        """Write everything and let go."""


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

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


class MlflowTracker:
    """Logs to the tracking server that MLflow's own settings name, by default to a database in ``<run>/mlflow``."""

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any]) -> None:
        mlflow = _load("mlflow", "mlflow")
        if not mlflow.is_tracking_uri_set():
            (folder / "mlflow").mkdir(exist_ok=True)
            mlflow.set_tracking_uri(f"sqlite:///{(folder / 'mlflow' / 'mlflow.db').resolve()}")
        self._mlflow = mlflow
        mlflow.set_experiment("fedactors")
        mlflow.start_run(run_name=name)
        mlflow.log_params({key: str(value)[:500] for key, value in config.items()})

    def log(self, round_index: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics at their round."""
        self._mlflow.log_metrics(dict(metrics), step=round_index)

    def close(self) -> None:
        """End the run."""
        self._mlflow.end_run()


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

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


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
