"""Metrics on numpy arrays, chosen by task, and their names: ``validation/auc`` is the AUC on the validation rows.

Importing this module loads numpy only, so any actor may use it; scikit-learn is loaded by the first metric that it has.

    found = task_metrics("binary", labels, logits)          # auc, accuracy, loss, balanced_accuracy, f1, ...
    rounds.record(of_split("validation", found))            # validation/auc, validation/accuracy, ...

=====================  =================================================================================================
``accuracy``           share of right classes
``balanced_accuracy``  mean over classes of the share of their rows that is found (recall)
``f1``                 harmonic mean of precision and recall; of several classes the mean over them (macro)
``auc``                area under the ROC curve; two classes
``pr_auc``             average precision, the area under the precision-recall curve by steps; two classes
``loss``               mean cross-entropy in nats (log loss); of a regression the mean squared error
``calibration_error``  expected gap between confidence and accuracy, in `CALIBRATION_BINS` bins (Guo et al., 2017)
``rmse mae r2``        of a regression; of several values over all of them, ``r2`` their mean
``perplexity``         of tokens, the exponential of the loss; loss and accuracy are over those that count (`IGNORED`)
=====================  =================================================================================================

Of several labels (``multilabel``) ``accuracy`` is the share of rows all of whose labels are right, ``f1`` and ``auc``
are means over labels (macro), ``micro_f1`` is over all at once; up to `MOST_LABELS` labels have an ``auc_0``, ... each.

Shapes: B samples, O outputs (logits or values as a model gives them), K positions of a sequence, L labels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Split = Literal["training", "validation", "test"]
Task = Literal["binary", "multiclass", "regression", "multilabel", "tokens"]
"""A sample's target: one of two classes, of several, a number or an array of them, 0 or 1 of each label, or a class of
each token of a sequence (the next one of a causal language model, or what kind of word it is)."""
IGNORED = -100
"""The class of tokens that do not count, as everywhere in torch."""
CALIBRATION_BINS = 15
"""Bins of equal width, as many as Guo et al. use."""
HEADLINES = {"binary": "auc", "multiclass": "accuracy", "regression": "r2", "multilabel": "auc", "tokens": "accuracy"}
"""The metric by which people compare models of a task."""
MOST_VALUES = 1_000_000
"""Values of a table that a model of one party's own columns is trained on, to take seconds."""
LEAST_ROWS = 10
"""Of a class, to be told that a model never predicts it."""
MOST_CLASSES = 100
"""Classes that gradient boosting learns at most."""
MOST_LABELS = 20
"""Labels up to which each has its own AUC."""
METRICS = frozenset(
    {
        *("accuracy", "balanced_accuracy", "f1", "micro_f1", "auc", "pr_auc", "loss", "calibration_error"),
        *("rmse", "mae", "r2", "perplexity"),
        *(f"auc_{label}" for label in range(MOST_LABELS)),
    }
)
"""The names of all metrics that this module measures."""
T = TypeVar("T")


def of_split(split: Split, metrics: Mapping[str, T]) -> dict[str, T]:
    """Return metrics under the names that say which rows they are of: ``validation/auc``."""
    return {f"{split}/{name}": value for name, value in metrics.items()}


def known(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics without those that are not defined on their rows; a loss that is not finite is to be told."""
    told = ("loss", "rmse", "perplexity")
    return {name: value for name, value in metrics.items() if name in told or not math.isnan(value)}


def auc(labels: ArrayLike, scores: ArrayLike) -> float:
    """Return the area under the ROC curve, ties counted one half; NaN if one class is absent.

    Equals the probability that a positive sample's score exceeds a negative's.
    """
    positive_B = np.asarray(labels).ravel() > 0
    score_B = np.asarray(scores).ravel()
    if positive_B.shape != score_B.shape:
        raise ValueError(f"labels and scores differ in length: {positive_B.size} and {score_B.size}")
    if not np.isfinite(score_B).all():
        raise ValueError("scores are not finite")
    right_T, wrong_T = _counts_above(positive_B, score_B)
    num_pairs = float(right_T[-1]) * float(wrong_T[-1])
    if num_pairs == 0.0:
        return float("nan")
    return float(np.diff(wrong_T, prepend=0.0) @ (right_T + np.append(0.0, right_T[:-1]))) / (2 * num_pairs)


def _counts_above(positive_B: NDArray[Any], score_B: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return how many positives and negatives score at least each distinct score, from the highest on."""
    order_B = np.argsort(score_B)[::-1]
    sorted_B, right_B = score_B[order_B], np.cumsum(positive_B[order_B], dtype=np.float64)
    last_T = np.append(np.flatnonzero(sorted_B[1:] != sorted_B[:-1]), len(sorted_B) - 1)
    return right_B[last_T], last_T + 1.0 - right_B[last_T]


def _average_precision(positive_B: NDArray[Any], score_B: NDArray[Any]) -> float:
    right_T, wrong_T = _counts_above(positive_B, score_B)
    return float(np.diff(right_T, prepend=0.0) @ (right_T / (right_T + wrong_T))) / float(right_T[-1])


def _f1(label_BL: NDArray[Any], chosen_BL: NDArray[Any]) -> NDArray[Any]:
    """Return the F1 score of each column of what is there and what is chosen; 0 where neither is ever."""
    both_L = (label_BL & chosen_BL).sum(axis=0)
    either_L = label_BL.sum(axis=0) + chosen_BL.sum(axis=0)
    return np.asarray(2.0 * both_L / np.maximum(either_L, 1))


def _r2(target: NDArray[Any], value: NDArray[Any]) -> float:
    """Return the mean over columns of the share of their variance; of one without, 1 where all is right, else 0."""
    error = ((target - value) ** 2).sum(axis=0)
    spread = ((target - target.mean(axis=0)) ** 2).sum(axis=0)
    return float(np.mean(np.where(spread == 0, error == 0, 1.0 - error / np.where(spread == 0, 1.0, spread))))


def accuracy(labels: ArrayLike, outputs: ArrayLike) -> float:
    """Return the share of right classes; a two-dimensional output with several columns is read by its argmax.

    A single column is a logit: positive means class 1.
    """
    return float(np.mean(_chosen(np.asarray(outputs)) == np.asarray(labels).ravel()))


def rmse(targets: ArrayLike, values: ArrayLike) -> float:
    """Return the root mean squared error."""
    error_B = np.asarray(targets, dtype=np.float64).ravel() - np.asarray(values, dtype=np.float64).ravel()
    return float(np.sqrt(np.mean(error_B**2)))


def log_loss(labels: ArrayLike, outputs: ArrayLike) -> float:
    """Return the mean cross-entropy of logits: one column for two classes, several columns for several."""
    label_B = np.asarray(labels).ravel()
    logit = np.asarray(outputs, dtype=np.float64)
    if logit.ndim == 2 and logit.shape[1] > 1:
        top_B = logit.max(axis=1)
        log_sum_B = top_B + np.log(np.exp(logit - top_B[:, None]).sum(axis=1))
        return float(np.mean(log_sum_B - logit[np.arange(len(logit)), label_B.astype(np.int64)]))
    logit_B = logit.ravel()
    return float(np.mean(np.logaddexp(0.0, logit_B) - label_B * logit_B))


def calibration_error(labels: ArrayLike, outputs: ArrayLike) -> float:
    """Return the mean over samples of |accuracy - confidence| of their bin; confidence is the chosen class's."""
    logit = np.asarray(outputs, dtype=np.float64)
    if logit.ndim == 2 and logit.shape[1] > 1:
        confidence_B = 1.0 / np.exp(logit - logit.max(axis=1, keepdims=True)).sum(axis=1)
    else:
        confidence_B = 1.0 / (1.0 + np.exp(-np.abs(logit.ravel())))
    gap_B = (_chosen(logit) == np.asarray(labels).ravel()) - confidence_B
    bin_B = np.minimum((confidence_B * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
    return float(np.abs(np.bincount(bin_B, weights=gap_B)).sum() / len(gap_B))


def task_metrics(task: str, targets: ArrayLike, outputs: ArrayLike) -> dict[str, float]:
    """Return the metrics of a `Task` from raw model outputs (B x O; of tokens B x K x O).

    One that is not defined on these rows (the AUC of a single class) is NaN. Outputs that are not finite give a loss
    that is not finite, and nothing else.
    """
    if task == "tokens":
        return token_metrics([(targets, outputs)])
    if task == "multilabel":
        return _label_metrics(np.asarray(targets), np.asarray(outputs))
    shape = np.shape(targets)
    target_B, output = np.asarray(targets).ravel(), np.asarray(outputs)
    if task == "regression":
        error = rmse(target_B, output)
        if not np.isfinite(error):
            return {"rmse": error, "loss": error**2}
        value_B = output.ravel()
        rows = (shape[0], -1) if len(shape) > 1 else shape
        r2 = float("nan")
        if shape[0] > 1:
            r2 = _r2(target_B.astype(np.float64).reshape(rows), value_B.astype(np.float64).reshape(rows))
        return {
            "rmse": error,
            "loss": error**2,
            "mae": float(np.mean(np.abs(target_B.astype(np.float64) - value_B))),
            "r2": r2,
        }
    found = {"accuracy": accuracy(target_B, output), "loss": log_loss(target_B, output)}
    if not np.isfinite(output).all():
        return found
    label_B, chosen_B = target_B.astype(np.int64), _chosen(output)
    present = np.unique(label_B)
    found["balanced_accuracy"] = float(np.mean([(chosen_B[label_B == one] == one).mean() for one in present]))
    if task == "binary":
        known = len(present) == 2
        found = {"auc": auc(label_B, output), **found}
        found["f1"] = float(_f1(label_B == 1, chosen_B == 1))
        found["pr_auc"] = _average_precision(label_B == 1, output.ravel()) if known else float("nan")
    else:
        found["f1"] = float(np.mean([_f1(label_B == one, chosen_B == one) for one in np.union1d(present, chosen_B)]))
    found["calibration_error"] = calibration_error(label_B, output)
    return found


def token_metrics(parts: Iterable[tuple[ArrayLike, ArrayLike]]) -> dict[str, float]:
    """Return loss, perplexity and accuracy over the tokens that count, of targets (B x K) and logits (B x K x O).

    Rows come in parts: the logits of all of them may be more than memory holds. NaN where no token counts.
    """
    loss, right, count = 0.0, 0, 0
    for targets, outputs in parts:
        target_M, logit_MO = counted(np.asarray(targets), np.asarray(outputs))
        if not len(target_M):
            continue
        loss += log_loss(target_M, logit_MO) * len(target_M)
        right += int((logit_MO.argmax(axis=1) == target_M).sum())
        count += len(target_M)
    if not count:
        return dict.fromkeys(("accuracy", "loss", "perplexity"), float("nan"))
    with np.errstate(over="ignore"):
        perplexity = float(np.exp(loss / count))
    return {"accuracy": right / count, "loss": loss / count, "perplexity": perplexity}


def counted(
    target_BK: NDArray[Any], output_BKO: NDArray[np.floating[Any]]
) -> tuple[NDArray[np.int64], NDArray[np.floating[Any]]]:
    """Return targets (M) and outputs (M x O) of the tokens that count."""
    kept_BK = target_BK != IGNORED
    return target_BK[kept_BK].astype(np.int64), output_BKO[kept_BK]


def _label_metrics(target_BL: NDArray[Any], logit_BL: NDArray[Any]) -> dict[str, float]:
    """Return the metrics of several labels, each there (1) or not (0)."""
    logit, label_BL, chosen_BL = logit_BL.astype(np.float64), target_BL > 0, logit_BL > 0
    found = {
        "accuracy": float((label_BL == chosen_BL).all(axis=1).mean()),
        "loss": float(np.mean(np.logaddexp(0.0, logit) - label_BL * logit)),
    }
    if not np.isfinite(logit).all():
        return found
    aucs = [auc(label_BL[:, number], logit[:, number]) for number in range(label_BL.shape[1])]
    defined = [one for one in aucs if not math.isnan(one)]
    found = {"auc": float(np.mean(defined)) if defined else float("nan"), **found}
    found["f1"] = float(np.mean(_f1(label_BL, chosen_BL)))
    found["micro_f1"] = float(_f1(label_BL.ravel(), chosen_BL.ravel()))
    if len(aucs) <= MOST_LABELS:
        found |= {f"auc_{number}": one for number, one in enumerate(aucs)}
    return found


LOCAL_BASELINE = "local-baseline"
"""Kind of work of a baseline on a party's own columns: beside a run, of whose virtual time it takes none."""


def local_baseline(
    task: Task,
    training: tuple[ArrayLike, ArrayLike],
    others: Mapping[str, tuple[ArrayLike, ArrayLike]],
    weights: ArrayLike | None = None,
) -> dict[str, dict[str, float]]:
    """Return the metrics, by part, of the better of a linear model and gradient boosting on one party's columns.

    Better is the smaller loss on the part ``validation``, or on the rows that they were trained on where there is none.
    They are trained on `MOST_VALUES` values at most. Of more than `MOST_CLASSES` classes it is the linear model:
    boosting grows a tree for each in each step.

    Args:
        task: what is learned.
        training: rows (B x F) and labels.
        others: rows and labels to measure on.
        weights: how much each training row counts.
    """
    import warnings

    import threadpoolctl
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LogisticRegression, Ridge

    x_BF, y_B = np.asarray(training[0]), np.asarray(training[1])
    weight_B = np.ones(len(y_B)) if weights is None else np.asarray(weights, np.float64)
    most = max(1, MOST_VALUES // max(1, x_BF.shape[1]))
    if len(y_B) > most:  # before they are copied: the rows may be more than memory holds
        kept = np.random.default_rng(0).choice(len(y_B), most, replace=False, shuffle=False)
        x_BF, y_B, weight_B = x_BF[kept], y_B[kept], weight_B[kept]
    x_BF = x_BF.astype(np.float64)
    counts = np.unique(y_B, return_counts=True)[1]
    if x_BF.shape[1] == 0 or len(y_B) < LEAST_ROWS or (task != "regression" and len(counts) < 2):
        return {}
    # of many rows boosting holds some out, of every class: of one row it cannot
    models: tuple[Any, ...] = (
        (Ridge(), HistGradientBoostingRegressor(random_state=0))
        if task == "regression"
        else (
            LogisticRegression(max_iter=500),
            HistGradientBoostingClassifier(random_state=0, early_stopping="auto" if counts.min() > 1 else False),
        )
    )
    if task != "regression" and len(counts) > MOST_CLASSES:
        models = models[:1]
    judged = others.get("validation", (x_BF, y_B))
    found: list[tuple[float, dict[str, dict[str, float]]]] = []
    for model in models:
        # one thread: several that wait for each other hardly move where other processes have the cores
        with warnings.catch_warnings(), threadpoolctl.threadpool_limits(1):
            warnings.simplefilter("ignore")  # of few iterations: the model is as good as it is
            model.fit(x_BF, y_B, sample_weight=weight_B)
        loss = task_metrics(task, judged[1], _outputs(model, judged[0], task, judged[1]))["loss"]
        scores = {part: task_metrics(task, y, _outputs(model, x, task, y)) for part, (x, y) in others.items()}
        found.append((loss, scores))
    return min(found, key=lambda one: one[0])[1]


def _outputs(model: Any, x_BF: ArrayLike, task: Task, labels: ArrayLike) -> NDArray[np.float64]:
    """Return a scikit-learn model's values, or logits of the classes that it and the labels have."""
    rows = np.asarray(x_BF)
    predict = model.predict if task == "regression" else model.predict_proba
    size = max(1, MOST_VALUES // max(1, rows.shape[1]))  # so many are copied at once: the rows may lie in a file
    starts = range(0, max(1, len(rows)), size)
    found = np.concatenate([predict(np.asarray(rows[first : first + size], np.float64)) for first in starts])
    if task == "regression":
        return np.asarray(found, np.float64)
    logit_BC = np.log(np.clip(found, 1e-12, 1.0))
    if task == "binary":
        return np.asarray(logit_BC[:, 1] - logit_BC[:, 0], np.float64)
    classes = np.asarray(model.classes_, np.int64)
    made = np.full((len(rows), 1 + max(int(classes.max()), int(np.max(labels, initial=0)))), np.log(1e-12))
    made[:, classes] = logit_BC
    return made


def gain_note(
    party: str, task: Task, joint: Mapping[str, float], alone: Mapping[str, float], of: str = "columns"
) -> list[str]:
    """Return one line on what the other parties' columns or rows bring; it may be less than nothing, and says so."""
    name = HEADLINES[task]
    if name not in joint or name not in alone:
        return []
    label = {"auc": "AUC", "accuracy": "accuracy", "r2": "R2"}[name]
    line = f"{party}: {label} {joint[name]:.3f} with the others' {of}, {alone[name]:.3f} with its own alone"
    return [line if joint[name] > alone[name] else f"{line}: they bring nothing here"]


def num_unpredicted(labels: ArrayLike, outputs: ArrayLike) -> int:
    """Return how many of the classes that have `LEAST_ROWS` rows or more are predicted for no row at all."""
    found, counts_C = np.unique(np.asarray(labels).ravel(), return_counts=True)
    return len(np.setdiff1d(found[counts_C >= LEAST_ROWS], _chosen(np.asarray(outputs))))


def _chosen(output: NDArray[np.floating]) -> NDArray[np.int64]:
    if output.ndim == 2 and output.shape[1] > 1:
        return np.asarray(output.argmax(axis=1), np.int64)
    return np.asarray(output.ravel() > 0, np.int64)
