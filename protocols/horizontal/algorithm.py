"""The mathematics: what a site's clients compute, and what the server makes of their changes.

Notation of the papers: x the server's model, y_i what client i makes of it, Delta_i = y_i - x, p_i its share of the
weights. Every method is the same round with two differences:

    FedAvg       y_i: steps on f_i                                   x <- x + eta_s sum p_i Delta_i
    FedProx      y_i: steps on f_i + mu/2 |y - x|^2                  as FedAvg
    SCAFFOLD     y_i: steps along g_i - c_i + c                      as FedAvg, and c <- c + sum Delta c_i / N
    FedRep       z_i: steps with x fixed; then y_i: steps with z_i fixed (Collins et al., 2021); as FedAvg
    Ditto        as FedAvg, and v_i: steps on f_i + lambda/2 |v - x|^2, from where it was (Li et al., 2021)
    FedAvgM      as FedAvg                                           m <- beta m + Delta;  x <- x + eta_s m
    FedAdagrad,  as FedAvg                                           m <- beta1 m + (1 - beta1) Delta
    FedAdam,                                                         v <- their rule;  x <- x + eta_s m / (sqrt v + tau)
    FedYogi

With local parameters (FedBN, Li et al., 2021; FedPer, Arivazhagan et al., 2019) x is what is shared, and z_i what a
client keeps: it trains (x, z_i) and sends the change of x alone. A function of the user's own (`aggregation`) makes the
next x of x and the sites' changes.

Shapes: P parameters, S those of them that are shared (all but local ones), L local ones, C clients of a site that
answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.actors.context import derived_seed
from fedactors.data.layouts.horizontal import rows_of, weights_of
from fedactors.learning.local_training import (
    LocalResult,
    LocalTraining,
    evaluate_model,
    model_outputs,
    train_privately,
)
from fedactors.learning.many_clients import rows_on, train_clients
from fedactors.learning.metrics import Task, known, num_unpredicted, task_metrics
from fedactors.learning.models import ModelSpec
from fedactors.learning.network import local_mask, statistics_mask
from fedactors.learning.user_models import user_metrics
from fedactors.privacy.accounting import RecordPrivacy
from fedactors.protocols.horizontal.aggregation import MODEL, robust_mean, user_step
from fedactors.protocols.horizontal.config import (
    ADAPTIVE,
    PLAIN_PASSES,
    PLAIN_ROWS,
    HorizontalConfig,
    enough_passes,
    informative_rows,
    rows_per_step,
)
from fedactors.protocols.horizontal.messages import Change, Floats, TrainOrder
from fedactors.runtime.snapshots import Stateful

Doubles = NDArray[np.float64]
NOTHING = np.zeros(0)


@dataclass(frozen=True)
class LocalSteps:
    """Rows of a client's local step, its passes in a round, and how its non-linear weights decay."""

    batch_size: int
    num_epochs: int
    decay: float
    decays_by_loss: bool = False


PLAIN = LocalSteps(PLAIN_ROWS, PLAIN_PASSES, 0.0)


@dataclass(frozen=True)
class SiteResult:
    """What a site's clients made: the mean change (S), its weight and loss; SCAFFOLD: c_i of each and sum Delta c_i."""

    weight: float
    loss: float
    change: Floats
    controls: tuple[Floats, ...]
    control_change: Floats
    local: tuple[Floats, ...] = ()
    """z_i of each (L), where parameters are local."""


def joined(spec: ModelSpec, patterns: tuple[str, ...], shared_S: Floats, local_L: Floats) -> Floats:
    """Return a client's model (P) of what is shared and what it keeps."""
    if not patterns:
        return shared_S
    mask_P = local_mask(spec, patterns)
    whole_P = np.empty(mask_P.shape, shared_S.dtype)
    whole_P[mask_P], whole_P[~mask_P] = local_L, shared_S
    return whole_P


def shared(spec: ModelSpec, patterns: tuple[str, ...], whole_P: Any) -> Any:
    """Return of a model's numbers those that are shared (S)."""
    return whole_P[~local_mask(spec, patterns)] if patterns else whole_P


def train(
    spec: ModelSpec,
    model_P: Floats,
    keys: Sequence[bytes],
    seeds: Sequence[int],
    trainings: Sequence[LocalTraining],
    controls: Sequence[Floats],
    control_P: Floats,
    counts_samples: bool,
    together: bool,
    device: str,
    privacy: RecordPrivacy | None = None,
    secrets: Sequence[tuple[int, ...]] = (),
    target: tuple[float, float] = (0.0, 1.0),
    patterns: tuple[str, ...] = (),
    local: Sequence[Floats] = (),
) -> SiteResult:
    """Let clients train from the server's model x (`model_P`); return their mean change.

    Each has its own way to train. `target` is the mean and deviation of a regression's targets.
    With `patterns` of local parameters x is what is shared (S), and `local` has z_i of each client.
    SCAFFOLD has `controls`, c_i of each client, and `control_P`, c; others nothing. `together` is one batched call.
    With `privacy` each client trains by DP-SGD from a secret of its own, and no loss is returned (0).
    """
    corrections: list[Floats] | None = [control_P - local_P for local_P in controls] or None
    starts = [joined(spec, patterns, model_P, one) for one in local] if patterns else [model_P] * len(keys)
    if patterns and corrections:  # local parameters follow their own gradients
        corrections = [joined(spec, patterns, one, np.zeros_like(z)) for one, z in zip(corrections, local, strict=True)]
    rows = [(x, as_trained(y, target)) for x, y in (rows_on(rows_of, key, device) for key in keys)]
    weighing = [weights_of(key) for key in keys]
    if privacy is None:
        results = train_clients(
            spec,
            starts,
            rows,
            seeds=seeds,
            training=trainings,
            corrections=corrections,
            weights=weighing,
            together=together,
            device=device,
        )
        if trainings[0].only == "local":  # FedRep: then what is shared, from there
            results = train_clients(
                spec,
                [result.vector for result in results],
                rows,
                seeds=[derived_seed(seed, "client", "shared parameters") for seed in seeds],
                training=[replace(one, only="shared") for one in trainings],
                weights=weighing,
                device=device,
            )
    else:
        nothing: list[Floats | None] = [None] * len(keys)
        results = [
            LocalResult(
                vector=train_privately(
                    spec, model_P, *held, secret=secret, privacy=privacy, training=how,
                    correction_P=added, weights_N=counts, device=device,
                ),
                num_samples=len(held[0]),
                num_steps=privacy.num_steps(len(held[0])),
                loss=0.0,
                loss_rms=0.0,
            )
            for held, secret, how, added, counts in zip(
                rows, secrets, trainings, corrections or nothing, weighing, strict=True
            )
        ]  # fmt: skip
    moved = [shared(spec, patterns, result.vector) for result in results]
    weights = [float(result.num_samples) if counts_samples else 1.0 for result in results]
    change_P: Doubles = np.zeros(model_P.shape)
    for weight, vector in zip(weights, moved, strict=True):
        change_P += weight / sum(weights) * (vector.astype(np.float64) - model_P)
    losses = [weight * result.loss for weight, result in zip(weights, results, strict=True)]
    rate, moved_P = trainings[0].optimizer.learning_rate, np.zeros(control_P.shape)
    following = []
    for local_P, vector, result in zip(controls, moved, results, strict=bool(controls)):
        following.append(next_control(local_P, control_P, model_P, vector, result.num_steps * rate))
        following[-1][shared(spec, patterns, statistics_mask(spec))] = 0  # they follow no gradient
        moved_P += following[-1].astype(np.float64) - local_P
    return SiteResult(
        sum(weights),
        sum(losses) / sum(weights),
        change_P.astype(model_P.dtype),
        tuple(following),
        moved_P.astype(model_P.dtype),
        tuple(result.vector[local_mask(spec, patterns)] for result in results) if patterns else (),
    )


def personal_models(
    spec: ModelSpec,
    model_P: Floats,
    personal: Sequence[Floats],
    keys: Sequence[bytes],
    seeds: Sequence[int],
    trainings: Sequence[LocalTraining],
    pull: float,
    together: bool,
    device: str,
    target: tuple[float, float] = (0.0, 1.0),
) -> list[Floats]:
    """Return Ditto's v_i (P) after steps from `personal` on the clients' losses and pull/2 |v - x|^2."""
    results = train_clients(
        spec,
        personal,
        [(x, as_trained(y, target)) for x, y in (rows_on(rows_of, key, device) for key in keys)],
        seeds=seeds,
        training=[
            replace(one, proximal=pull) for one in trainings
        ],  # towards where v_i began; the rest of the way to x is constant
        corrections=[(pull * (one - model_P)).astype(model_P.dtype) for one in personal],
        weights=[weights_of(key) for key in keys],
        together=together,
        device=device,
    )
    return [result.vector for result in results]


def as_trained(labels: Any, target: tuple[float, float]) -> Any:
    """Return labels as models are trained on them, with the mean and deviation of a regression's targets."""
    return labels if target == (0.0, 1.0) else (labels - target[0]) / target[1]


def local_training(
    config: HorizontalConfig, task: Task, round: int, steps: LocalSteps = PLAIN, inputs: Sequence[int] = ()
) -> LocalTraining:
    """Return how a client trains in a round, on samples of a shape."""
    resolved = config.at(inputs)
    return LocalTraining(
        optimizer=resolved.step_rule.scaled(resolved.rate_schedule.at(round - 1, config.num_rounds)),
        batch_size=config.batch_size or steps.batch_size,
        num_epochs=config.local_epochs or steps.num_epochs,
        proximal=config.proximal if config.algorithm == "fedprox" else 0.0,
        task=task,
        loss=config.user_loss,
        precision=config.precision,
        micro_batch_size=config.micro_batch_size,
        only="local" if config.algorithm == "fedrep" else "all",
        local=config.local_parameters if config.algorithm == "fedrep" else (),
        decay=steps.decay,
        decays_by_loss=steps.decays_by_loss,
    )


def local_steps(
    config: HorizontalConfig, task: Task, num_classes: int, inputs: Sequence[int], labels_N: NDArray[Any], clients: int
) -> LocalSteps:
    """Return the local steps of a client with these labels, one of so many `clients`, on samples of a shape."""
    counts = [] if task not in ("binary", "multiclass") else np.unique(labels_N, return_counts=True)[1].tolist()
    rows = informative_rows(task, len(labels_N), counts, max(2, num_classes)) * clients
    by_loss = config.nonlinear_decay is None and config.measures_targets(task, labels_N.shape[1:])
    decay = config.at(inputs).decay_at(task, rows, by_loss=by_loss)
    if not config.follows_rows(inputs):
        return replace(PLAIN, decay=decay)
    size = config.batch_size or rows_per_step(len(labels_N))
    return LocalSteps(size, config.local_epochs or enough_passes(len(labels_N), size), decay, by_loss)


def next_control(local_P: Floats, control_P: Floats, start_P: Floats, end_P: Floats, length: float) -> Floats:
    """Return c_i - c + (x - y_i) / (K eta), SCAFFOLD's second option, for a way of K steps of size eta."""
    made: Floats = local_P - control_P + (start_P - end_P) / local_P.dtype.type(length)
    return made


def measure(
    spec: ModelSpec,
    model_P: Floats,
    key: bytes,
    task: Any,
    metric: str,
    device: str,
    target: tuple[float, float] = (0.0, 1.0),
) -> tuple[dict[str, float], int]:
    """Return the metrics of the model on some rows, a user's too, and how many classes it never predicts."""
    x_N, _ = rows_on(rows_of, key, device)
    labels_N = rows_of(key)[1]
    if task == "tokens" and not metric:
        return known(evaluate_model(spec, model_P, x_N, labels_N, task=task, device=device)), 0
    outputs = model_outputs(spec, model_P, x_N, device=device)
    if target != (0.0, 1.0):
        outputs = outputs.astype(np.float64) * target[1] + target[0]
    unpredicted = num_unpredicted(labels_N, outputs) if task in ("binary", "multiclass") else 0
    found = task_metrics(task, labels_N, outputs)
    if metric and np.isfinite(outputs).all():
        found |= user_metrics(task, labels_N, outputs, metric)
    return known(found), unpredicted


def participants(present: Sequence[int], per_round: int | None, generator: np.random.Generator) -> list[int]:
    """Return the clients of a round, in order: all that are there, or so many of them drawn alike."""
    if per_round is None or per_round >= len(present):
        return sorted(present)
    return sorted(generator.choice(np.asarray(present), per_round, replace=False).tolist())


def of_group(changes: Sequence[Change]) -> Change:
    """Return sites' answers as one site with all their clients sends them, in the precision of the changes."""
    whole = combined(changes)
    if not whole.num_clients:
        return whole
    dtype = next(one.change.dtype for one in changes if one.num_clients)
    return replace(whole, change=whole.change.astype(dtype), control_change=whole.control_change.astype(dtype))


def combined(changes: Sequence[Change]) -> Change:
    """Return sites' answers as one: means by weight, sums of controls; in double precision."""
    found = [one for one in changes if one.num_clients]
    if not found:
        return Change(0, 0.0, 0.0, NOTHING, NOTHING)
    weight = sum(one.weight for one in found)
    change_P: Doubles = np.zeros(found[0].change.shape)
    moved_P: Doubles = np.zeros(found[0].control_change.shape)
    for one in found:
        change_P += one.weight / weight * one.change
        moved_P += one.control_change
    loss = sum(one.weight * one.loss for one in found) / weight
    return Change(sum(one.num_clients for one in found), weight, loss, change_P, moved_P)


def advance(
    config: HorizontalConfig,
    spec: ModelSpec,
    model: ServerModel,
    changes: Sequence[Change],
    num_clients: int,
    seed: int = 0,
) -> ServerModel:
    """Return the model after a round, of the sites' answers in their order, for `num_clients` clients in all.

    What a function of the user's own draws follows `seed`.
    """
    if config.user_aggregation:
        made = replace(model)
        state = user_step(
            config.user_aggregation,
            {**model.kept, MODEL: model.vector},
            [one.change for one in changes],
            [one.weight for one in changes],
            seed,
        )
        made.vector = np.asarray(state.pop(MODEL)).astype(model.vector.dtype)
        made.kept = state
        return made
    whole = combined(changes)
    change_P: Doubles = whole.change.astype(np.float64, copy=False)
    if config.aggregation != "mean":
        change_P = robust_mean(config, [one.change for one in changes])
    made = replace(model)
    made.follow(config, change_P, shared(spec, config.local_parameters, statistics_mask(spec)))
    made.control = (model.control + whole.control_change / num_clients).astype(model.control.dtype)
    return made


# --- under masks ---

_MOST_CLIENTS = 2.0**16
"""That answer, of one site."""


def summand(change: Change, total_weight: float, order: TrainOrder, limit: float) -> Doubles:
    """Return what a site adds to the sum: its change and loss times its share p of all weight, p, and a count.

    Of one vector a sum has one share: another one (SCAFFOLD's controls, by each client's own steps) would be a second
    equation of the same parts.

    Args:
        change: what the site's clients made; of nobody, zeros are added.
        total_weight: of all clients of all sites.
        order: what was asked.
        limit: the largest number that the sum takes; share and count are spread over it.
    """
    if not change.num_clients:
        return np.zeros(order.parameters.size + 3)
    share = change.weight / total_weight
    tail = [share * change.loss, share * limit, change.num_clients / _MOST_CLIENTS * limit]
    return np.append(share * change.change.astype(np.float64), tail)


def grains(change: Change, total_weight: float, order: TrainOrder) -> Doubles:
    """Return of what each number of `summand` is a multiple: the last place of the parameter that was changed."""
    if not change.num_clients:
        return np.zeros(order.parameters.size + 3)
    start_P = order.parameters
    spacing_P = np.spacing(np.maximum(np.abs(start_P), np.abs(start_P + change.change))).astype(np.float64)
    return np.append(change.weight / total_weight * spacing_P, np.zeros(3))


def mean_of_summands(total: Doubles, limit: float) -> Change:
    """Return the sites' summands, added up, as one change of all clients that answered."""
    loss, share, count = total[-3:].tolist()
    num_clients = round(count / limit * _MOST_CLIENTS)
    if not num_clients:
        return Change(0, 0.0, 0.0, NOTHING, NOTHING)
    share /= limit
    return Change(num_clients, share, loss / share, total[:-3] / share, NOTHING)


@dataclass
class ServerModel(Stateful):
    """The server's model and what its method keeps beside it; moments are in double precision. P is S here."""

    vector: Floats
    """x (P)."""
    first: Doubles = field(default_factory=lambda: NOTHING)
    """m (P)."""
    second: Doubles = field(default_factory=lambda: NOTHING)
    """v (P), from tau^2 on (Reddi et al.)."""
    control: Floats = field(default_factory=lambda: NOTHING)
    """SCAFFOLD's c (P)."""
    kept: dict[str, Any] = field(default_factory=dict)
    """What a function of the user's own keeps (`aggregation`)."""

    @classmethod
    def begin(cls, config: HorizontalConfig, vector_P: Floats) -> ServerModel:
        """Return the model before the first round."""
        made = cls(vector_P)
        if config.algorithm in ("fedavgm", *ADAPTIVE):
            made.first = np.zeros(vector_P.shape)
        if config.algorithm in ADAPTIVE:
            made.second = np.full(vector_P.shape, config.adaptivity**2)
        if config.algorithm == "scaffold":
            made.control = np.zeros_like(vector_P)
        return made

    def follow(self, config: HorizontalConfig, change_P: Doubles, statistics_P: NDArray[np.bool_]) -> None:
        """Take the server's step along the clients' mean change; of running statistics the step is that mean."""
        step_P = change_P
        if config.algorithm == "fedavgm":
            step_P = self.first = config.server_momentum * self.first + change_P
        elif config.algorithm in ADAPTIVE:
            beta1, beta2, square_P = config.server_momentum, config.second_moment, change_P**2
            self.first = beta1 * self.first + (1 - beta1) * change_P
            if config.algorithm == "fedadagrad":
                self.second = self.second + square_P
            elif config.algorithm == "fedadam":
                self.second = beta2 * self.second + (1 - beta2) * square_P
            else:
                self.second = self.second - (1 - beta2) * square_P * np.sign(self.second - square_P)
            step_P = self.first / (np.sqrt(self.second) + config.adaptivity)
        step_P = np.where(statistics_P, change_P, config.server_rate * step_P)
        self.vector = (self.vector + step_P).astype(self.vector.dtype)


def mean_scores(found: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Return the means over rows of the metrics that all have: (rows, metrics) of each; of roots, of their squares.

    Of tokens rows are those that count, and perplexity follows from the mean loss. Of metrics that are no means over
    rows (areas under curves, F1) it is the weighted mean of the clients'.
    """
    names = [name for name in found[0][1] if all(name in metrics for _, metrics in found)] if found else []
    total = sum(rows for rows, _ in found)
    made = {name: sum(rows * m[name] ** (2 if name == "rmse" else 1) for rows, m in found) / total for name in names}
    made = {name: math.sqrt(value) if name == "rmse" else value for name, value in made.items()}
    if "perplexity" in made:
        made["perplexity"] = float(np.exp(made["loss"]))
    return made
