"""Attacks on what a run sends, as one suite for any protocol that says what its attackers see.

    surface = protocol.surface(config, data, states, seed)      # from a checkpoint: see `fedactors.plugins.Protocol`
    for found in run_attacks(surface): ...                      # each with its chance level and its interval

- embedding inversion (PubSub-VFL, Appendix G): who can list the possible inputs (`nearest_neighbour`), holds the bottom
  model (`invert_by_optimisation`), or has a shadow set of inputs with their embeddings (`train_decoder`)
- label inference from the gradients at the cut layer (Li et al., 2022)
- whole models, or means of them: membership by smaller losses (Yeom et al., 2018), source of a row by the best fit (Hu
  et al., 2021), classes held by the output biases (as in Wainakh et al., 2022)
- least squares: R rounds of parameters theta_r and predictions h_r = X theta_r of the same rows determine X as soon as
  the theta_r span the features, for predictions that touch the raw table again are no post-processing
- link stealing (He et al., 2021, attack 0): layers of a graph network average over neighbours: joined nodes are alike
- the strongest attack on a claim (`combined_adversary`): from one run's messages to which of two adjacent data sets it
had,
  by the log likelihood ratio of all noised releases, by whatever leaves without noise, and by times and metrics fitted
  on half of the runs. A mu that holds bounds its AUC by ``Phi(mu / sqrt(2))``; noise below its law shows as well.

An attack that finds nothing proves nothing; one that does shows what the noise must hide.

Shapes: B attacked rows, S shadow or candidate rows, E width of what is seen, F features, P parameters or pairs, H
holders of models, R rows or rounds, C classes, N rows or nodes, D width of what is seen of a node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedactors.auditing.audit import Attack, attack_by_auc, attack_by_share
from fedactors.auditing.replay import Seen, seen_of
from fedactors.data.layouts.vertical import Neighbour
from fedactors.learning.local_training import model_outputs, weighted_mean
from fedactors.learning.metrics import Task, auc
from fedactors.learning.models import ModelSpec, build_model, build_skeleton, task_loss
from fedactors.learning.network import as_tensor, trained_slices
from fedactors.plugins import Protocol
from fedactors.privacy.accounting import Claim
from fedactors.privacy.noise import Gaussian, Laplace, Law, RandomisedResponse

Array = NDArray[Any]
Rows = tuple[Array, Array]
"""Samples and their labels."""
TOLERANCE = 0.5
"""A feature counts as found within this distance: half a standard deviation of a standardised column."""
_MOST_OPTIMISED = 200
_MOST_CANDIDATES = 1000
MOST_HOLDERS = 10
_MOST_ROWS = 200
"""Of each holder; of all holders and of rows that nobody holds, as many for each holder."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SeenEmbeddings:
    """Embeddings as they left a party, and what the attacker has beside them."""

    name: str
    seen_BE: Array
    features_BF: Array
    """What is to be found: the party's standardised features."""
    shadow_seen_SE: Array
    """Embeddings of rows that the attacker knows, as they left."""
    shadow_features_SF: Array
    bottom: Callable[[Tensor], Tensor] | None = None
    """The party's model, for an attacker who holds it."""
    num_epochs: int = 30
    """Of the decoder's training."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SeenGradients:
    """Gradients at the cut as a party without labels received them, of binary labels."""

    name: str
    gradients_BE: Array
    labels_B: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class SeenScores:
    """How well the model does on rows that it was trained on and on others: larger for members, says the attacker."""

    name: str
    members_B: Array
    others_S: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class SeenModels:
    """Models that the attacker reads of several holders of rows; see `fedactors.auditing.attacks`."""

    name: str
    losses_HR: Array
    """Of rows under the model of each holder."""
    holder_R: Array
    """The number of each row's holder."""
    bias_HC: Array
    """How each holder's training changed the output biases; no columns where there are none."""
    shares_HC: Array
    """The share of each class among a holder's rows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Surface:
    """What a protocol's attackers see."""

    embeddings: Sequence[SeenEmbeddings] = ()
    gradients: Sequence[SeenGradients] = ()
    scores: Sequence[SeenScores] = ()
    models: Sequence[SeenModels] = ()
    others: Sequence[Attack] = field(default=())
    """Attacks that are the protocol's own, already done."""


def run_attacks(surface: Surface, seed: int = 0) -> list[Attack]:
    """Mount every attack for which the surface has what it needs."""
    found: list[Attack] = []
    for scores in surface.scores:
        truth = np.r_[np.ones(len(scores.members_B)), np.zeros(len(scores.others_S))]
        found.append(attack_by_auc(f"membership: {scores.name}", truth, np.r_[scores.members_B, scores.others_S]))
    for models in surface.models:
        found += _source_attacks(models, seed)
    for gradients in surface.gradients:
        found += _label_attacks(gradients)
    for seen in surface.embeddings:
        found += _inversions(seen, seed)
    return [*found, *surface.others]


def _source_attacks(seen: SeenModels, seed: int) -> Iterator[Attack]:
    from scipy.stats import rankdata

    is_best_HR = seen.losses_HR == seen.losses_HR.min(axis=0)
    # of equals any, as under masks, where the attacker has one model for all
    guess_R = np.argmax(is_best_HR * np.random.default_rng([seed, 1]).random(is_best_HR.shape), axis=0)
    yield attack_by_share(
        f"source: {seen.name}", "rows whose holder was found", guess_R == seen.holder_R, 1 / len(seen.losses_HR)
    )
    # against what the others have of the class: a class that is frequent everywhere is no finding
    holds_HC = seen.shares_HC > seen.shares_HC.mean(axis=0) + 1e-9
    if holds_HC.any() and not holds_HC.all():
        rank_HC = rankdata(seen.bias_HC, axis=0)
        yield attack_by_auc(f"classes held, by output bias: {seen.name}", holds_HC.ravel(), rank_HC.ravel())


def _label_attacks(seen: SeenGradients) -> Iterator[Attack]:
    labels, gradients = np.asarray(seen.labels_B), np.asarray(seen.gradients_BE, np.float64)
    positive = int(np.argmax(labels))
    others = np.arange(len(labels)) != positive  # the one whose label the attacker knows is no finding
    for how, scores in (
        ("gradient norm", norm_scores(gradients)),
        ("gradient direction", direction_scores(gradients, positive)),
        ("gradient clusters", clustering_scores(gradients)),
    ):
        yield attack_by_auc(f"labels by {how}: {seen.name}", labels[others], scores[others])


def _inversions(seen: SeenEmbeddings, seed: int) -> Iterator[Attack]:
    chance = baseline_success_rate(seen.features_BF, seen.shadow_features_SF, TOLERANCE)
    measure = f"features within {TOLERANCE} deviations"

    def judged(how: str, guess_BF: Array, true_BF: Array) -> Attack:
        # features that the attacker has by guessing the median are in both figures
        hits_BF = np.abs(true_BF - guess_BF) <= TOLERANCE
        return attack_by_share(f"inversion by {how}: {seen.name}", measure, hits_BF, chance)

    decode = train_decoder(seen.shadow_seen_SE, seen.shadow_features_SF, seed=seed, num_epochs=seen.num_epochs)
    yield judged("decoder", decode(seen.seen_BE), seen.features_BF)
    if seen.bottom is None:
        return
    few = slice(0, _MOST_OPTIMISED)
    found_BF = invert_by_optimisation(seen.bottom, seen.seen_BE[few], seen.features_BF.shape[1], seed=seed, steps=300)
    yield judged("optimisation", found_BF, seen.features_BF[few])
    candidates = np.concatenate([seen.features_BF[few], seen.shadow_features_SF])[:_MOST_CANDIDATES]
    distinct, index_N = np.unique(candidates, axis=0, return_inverse=True)
    embedded = seen.bottom(_tensor(distinct)).detach().numpy()
    nearest_B = nearest_neighbour(seen.seen_BE[few], embedded)
    hits_B = nearest_B == index_N.reshape(-1)[: len(nearest_B)]
    yield attack_by_share(
        f"inversion by nearest neighbour: {seen.name}", "rows found among candidates", hits_B, 1 / len(distinct)
    )


def _tensor(rows: Array) -> Tensor:
    from fedactors.learning.network import as_tensor

    return as_tensor(np.ascontiguousarray(rows, np.float32))


# --- embedding inversion ----------------------------------------------------------------------------------------------


def nearest_neighbour(embedding_BE: Array, candidate_SE: Array, chunk: int = 1024) -> NDArray[np.int64]:
    """Return for each row the index of the candidate whose embedding is nearest in L2 (ties: the lowest index)."""
    square_S = np.sum(np.asarray(candidate_SE, dtype=np.float64) ** 2, axis=1)
    parts = [
        np.argmin(square_S - 2 * embedding_BE[first : first + chunk].astype(np.float64) @ candidate_SE.T, axis=1)
        for first in range(0, len(embedding_BE), chunk)
    ]
    return np.concatenate(parts).astype(np.int64)


def invert_by_optimisation(
    bottom: Callable[[Tensor], Tensor], embedding_BE: Array, num_features: int, *, seed: int, steps: int
) -> Array:
    """Return inputs (B x F) whose embeddings under `bottom` come nearest to those observed.

    Adam on ``||bottom(x) - z||^2 + .001 ||x||^2`` from small random starts; the prior is right for standardised
    features.
    """
    target_BE = as_tensor(embedding_BE)
    start = np.random.default_rng(seed).normal(scale=0.1, size=(len(embedding_BE), num_features))
    guess_BF = as_tensor(start, target_BE.dtype).requires_grad_()
    optimizer = torch.optim.Adam([guess_BF], lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = ((bottom(guess_BF) - target_BE) ** 2).sum() + 1e-3 * (guess_BF**2).sum()
        (guess_BF.grad,) = torch.autograd.grad(loss, [guess_BF])
        optimizer.step()
    found: Array = guess_BF.detach().numpy()
    return found


def train_decoder(
    shadow_embedding_SE: Array, shadow_input_SF: Array, *, seed: int, num_epochs: int = 50
) -> Callable[[Array], Array]:
    """Train a decoder on the shadow set and return it as a function from embeddings (B x E) to inputs (B x F)."""
    mean_E = shadow_embedding_SE.mean(axis=0)
    deviation_E = shadow_embedding_SE.std(axis=0) + 1e-8
    spec = ModelSpec(
        name="mlp",
        inputs=(shadow_embedding_SE.shape[1],),
        outputs=shadow_input_SF.shape[1],
        hidden_size=128,
        layers=3,
    )
    decoder = build_model(spec, seed)
    optimizer = torch.optim.Adam(decoder.parameters(), lr=1e-3)
    z, x = as_tensor((shadow_embedding_SE - mean_E) / deviation_E, torch.float32), as_tensor(shadow_input_SF).float()
    order = np.random.default_rng(seed)
    parameters = list(decoder.parameters())
    for _ in range(num_epochs):
        permutation = torch.from_numpy(order.permutation(len(x)))
        for chosen in torch.split(permutation, 64):
            loss = ((decoder(z[chosen]) - x[chosen]) ** 2).mean()
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.grad = gradient
            optimizer.step()

    def decode(embedding_BE: Array) -> Array:
        with torch.no_grad():
            decoded: Array = decoder(as_tensor((embedding_BE - mean_E) / deviation_E, torch.float32)).numpy()
        return decoded

    return decode


def success_rate(true_BF: Array, guess_BF: Array, tolerance: float) -> float:
    """Return the share of features that the attack reconstructed to within `tolerance` (absolute)."""
    return float(np.mean(np.abs(np.asarray(true_BF) - np.asarray(guess_BF)) <= tolerance))


def baseline_success_rate(true_BF: Array, shadow_input_SF: Array, tolerance: float) -> float:
    """Return the success of guessing each feature's shadow median: what an attacker has without any message."""
    return success_rate(true_BF, np.median(shadow_input_SF, axis=0)[None, :], tolerance)


def binary_feature_auc(true_BF: Array, guess_BF: Array) -> float:
    """Return the mean AUC over the features that take exactly two values here; NaN if there are none."""
    found = []
    for column in range(true_BF.shape[1]):
        values = np.unique(true_BF[:, column])
        if len(values) == 2:
            found.append(auc(true_BF[:, column] == values[1], guess_BF[:, column]))
    return float(np.mean(found)) if found else float("nan")


# --- label inference --------------------------------------------------------------------------------------------------


def norm_scores(gradient_BE: Array) -> Array:
    """Return each row's gradient norm: the rarer class, of which the model is less sure, has the larger ones."""
    norm_B: Array = np.linalg.norm(gradient_BE, axis=1)
    return norm_B


def direction_scores(gradient_BE: Array, positive: int) -> Array:
    """Return the cosine of each row with that of one sample whose label the attacker knows to be positive.

    The loss's derivative with respect to the logit is negative for positive samples and positive for negative ones,
    so rows of the two classes tend to point in opposite directions.
    """
    unit_BE = gradient_BE / np.maximum(np.linalg.norm(gradient_BE, axis=1, keepdims=True), 1e-30)
    cosine_B: Array = unit_BE @ unit_BE[positive]
    return cosine_B


def clustering_scores(gradient_BE: Array) -> Array:
    """Return each row's projection on the first singular direction, signed so that the rarer side is positive.

    Needs no known label, only that the positive class is the rarer one.
    """
    _, _, direction = np.linalg.svd(gradient_BE, full_matrices=False)
    score_B: Array = gradient_BE @ direction[0]
    return score_B if np.mean(score_B > 0) <= 0.5 else -score_B


# --- whole models -----------------------------------------------------------------------------------------------------


def row_losses(spec: ModelSpec, task: Task, model_P: Array, rows: Rows) -> Array:
    """Return the model's loss on each row (R)."""
    output = torch.from_numpy(model_outputs(spec, model_P, rows[0]))
    found: Array = task_loss(task, output, torch.from_numpy(rows[1]), "none").numpy()
    return found


def models_surface(
    spec: ModelSpec,
    task: Task,
    num_classes: int,
    common_P: Array,
    models: Mapping[str, Array],
    rows: Mapping[str, Rows],
    others: Rows,
    seed: int,
    masked: Sequence[float] | None = None,
) -> Surface:
    """Return what attackers have of a model and of what holders of rows make of it.

    Args:
        spec: of the model.
        task: what it is trained for.
        num_classes: of the labels.
        common_P: the model that all have; the attack on biases is on changes of it.
        models: by holder, the model that it makes.
        rows: by holder, what it trains on.
        others: rows that nobody trained on.
        seed: of the choice among rows.
        masked: weights of the models, where the attacker reads their mean only.
    """
    if masked is not None:
        models = dict.fromkeys(models, weighted_mean(list(models.values()), masked))
    rng = np.random.default_rng(seed)
    held = {name: _some(rows[name], _MOST_ROWS, rng) for name in models}
    together = tuple(np.concatenate(arrays) for arrays in zip(*held.values(), strict=True))
    members = (together[0], together[1])
    scores = SeenScores(
        name="common model",
        members_B=-row_losses(spec, task, common_P, members),
        others_S=-row_losses(spec, task, common_P, _some(others, len(members[1]), rng)),
    )
    bias, classes = _bias_slice(spec), np.arange(num_classes)[-spec.outputs :]
    is_known = bias is not None and task in ("binary", "multiclass")
    changes = [(model - common_P)[bias] if is_known else np.zeros(0) for model in models.values()]
    shares = [np.mean(rows[name][1][:, None] == classes, axis=0) if is_known else np.zeros(0) for name in models]
    seen = SeenModels(
        name="holders' models",
        losses_HR=np.stack([row_losses(spec, task, model, members) for model in models.values()]),
        holder_R=np.repeat(np.arange(len(held)), [len(one[1]) for one in held.values()]),
        bias_HC=np.stack(changes),
        shares_HC=np.stack(shares),
    )
    return Surface(scores=[scores], models=[seen] if len(models) > 1 else [])


def _some(rows: Rows, most: int, rng: np.random.Generator) -> Rows:
    chosen = rng.permutation(len(rows[1]))[:most]
    return rows[0][chosen], rows[1][chosen]


def _bias_slice(spec: ModelSpec) -> slice | None:
    """Return where the biases of the outputs are in a flat model; None: it does not end with a layer that has some."""
    parameter, part = trained_slices(build_skeleton(spec, device="cpu"))[-1]
    return part if tuple(parameter.shape) == (spec.outputs,) else None


# --- least squares ----------------------------------------------------------------------------------------------------


def reconstruct_features(theta_RF: Array, prediction_RN: Array) -> Array:
    """Return the least-squares (minimum-norm) estimate of the features, N x F."""
    if len(theta_RF) != len(prediction_RN):
        raise ValueError(f"{len(theta_RF)} parameter vectors but {len(prediction_RN)} prediction vectors")
    exact_theta: Array = np.asarray(theta_RF, dtype=np.float64)
    solution_FN, *_ = np.linalg.lstsq(exact_theta, np.asarray(prediction_RN, dtype=np.float64), rcond=None)
    features: Array = solution_FN.T
    return features


def complete_rows(seen_NR: Array, known_indices: NDArray[Any], known_KF: Array) -> Array:
    """Return an estimate of all rows (N x F) of who knows some of them and never sees a parameter.

    Features are a linear function of a linear model's predictions over as many rounds as there are features: the
    function is fitted on the known rows, and applied to the others.

    Args:
        seen_NR: what was seen of each row in each round, predictions or sums in which they are.
        known_indices: which rows are known (K).
        known_KF: their features.
    """
    exact = np.column_stack([np.asarray(seen_NR, dtype=np.float64), np.ones(len(seen_NR))])
    fitted, *_ = np.linalg.lstsq(exact[known_indices], np.asarray(known_KF, dtype=np.float64), rcond=1e-9)
    rows: Array = exact @ fitted
    return rows


def complete_by_differences(
    seen_NR: Array, rows_N: NDArray[Any], partners_N: NDArray[Any], known_KF: Array
) -> tuple[NDArray[Any], Array]:
    """Return which unknown rows of a table differences of sums tell (M), and an estimate of each (M x F).

    Two sums in which everything else is the same differ by two rows of the table alone, as a linear function of these
    that is fitted on pairs of known rows; a row that stands beside a known one follows from it.

    Args:
        seen_NR: the sum of each joined row in each round.
        rows_N: which row of the table stands in each joined row; the first K are known.
        partners_N: what else stands in it: equal numbers are equal rows of all other tables.
        known_KF: features of the known rows.
    """
    exact_NR, num_known = np.asarray(seen_NR, dtype=np.float64), len(known_KF)
    steps, between, estimates = [], [], dict[int, list[tuple[Array, Array]]]()
    for members in np.split(
        np.argsort(partners_N, kind="stable"), np.cumsum(np.unique(partners_N, return_counts=True)[1])
    ):
        known = [index for index in members if rows_N[index] < num_known]
        for beside in known:
            known_F = known_KF[rows_N[beside]]
            for index in members:
                moved = exact_NR[index] - exact_NR[beside]
                if rows_N[index] >= num_known:
                    estimates.setdefault(int(rows_N[index]), []).append((moved, known_F))
                elif rows_N[index] != rows_N[beside]:
                    steps.append(moved)
                    between.append(known_KF[rows_N[index]] - known_F)
    if not steps or not estimates:
        return np.zeros(0, np.int64), np.zeros((0, known_KF.shape[1]))
    fitted, *_ = np.linalg.lstsq(np.array(steps), np.array(between), rcond=1e-9)
    found = np.array(
        [np.mean([known_F + moved @ fitted for moved, known_F in ones], axis=0) for ones in estimates.values()]
    )
    return np.array(list(estimates)), found


# --- link stealing ----------------------------------------------------------------------------------------------------


def pair_scores(seen_ND: Array, pairs_2P: NDArray[np.int64]) -> Array:
    """Return for each pair the correlation of what is seen of its nodes: higher for joined ones."""
    centred = np.asarray(seen_ND, np.float64) - np.mean(seen_ND, axis=0)
    unit = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-30)
    scores: Array = np.sum(unit[pairs_2P[0]] * unit[pairs_2P[1]], axis=1)
    return scores


def sample_pairs(edges_2E: NDArray[np.int64], num_nodes: int, count: int, seed: int) -> tuple[Array, Array]:
    """Return up to `count` edges and as many pairs without one (2 x P), and which are edges (P)."""
    rng = np.random.default_rng(seed)
    chosen = edges_2E[:, rng.permutation(edges_2E.shape[1])[:count]]
    known = set((edges_2E.min(axis=0) * num_nodes + edges_2E.max(axis=0)).tolist())
    drawn = rng.integers(0, num_nodes, (2, 4 * chosen.shape[1]))
    free = [a != b and min(a, b) * num_nodes + max(a, b) not in known for a, b in drawn.T.tolist()]
    others = drawn[:, np.array(free, dtype=bool)][:, : chosen.shape[1]]
    truth = np.r_[np.ones(chosen.shape[1], dtype=bool), np.zeros(others.shape[1], dtype=bool)]
    return np.concatenate([chosen, others], axis=1), truth


# --- all that is seen, together ---------------------------------------------------------------------------------------


_RIDGE = 1.0


@dataclass(frozen=True, kw_only=True)
class CombinedAdversary:
    """What all of it tells of one record."""

    attack: Attack
    """AUC of the two statistics' sum on the second half of the runs."""
    by_releases: Attack
    """AUC of the releases alone, on all runs."""
    bare: tuple[str, ...]
    """What differed without noise, and so tells the record by itself."""

    def exceeds(self, claim: Claim) -> bool:
        """Say whether the interval lies above what the claim allows."""
        return claim.covered and (bool(self.bare) or max(self.attack.low, self.by_releases.low) > largest_auc(claim))


def largest_auc(claim: Claim) -> float:
    """Return the largest AUC of anybody who tells two neighbours apart; 1 where nothing is claimed."""
    return 0.5 * (1 + math.erf(claim.mu / 2)) if math.isfinite(claim.mu) else 1.0


def combined_adversary(
    protocol: Protocol,
    config: Any,
    data: Any,
    party: str,
    neighbour: Neighbour,
    *,
    runs: int,
    seed: int = 0,
    unclaimed: str = "",
) -> CombinedAdversary:
    """Run a protocol on the data and on its neighbour in turns, and tell which it was.

    Args:
        protocol: attacked.
        config: its configuration.
        data: what its ``run`` takes.
        party: whose record is attacked.
        neighbour: the other data.
        runs: in all; each is simulated twice.
        seed: of the first run; every run has noise, and a seed, of its own.
        unclaimed: a message type of which no claim speaks and which differs where the record is a test row: such runs
            are left out, and others made in their place.
    """
    truth = np.arange(runs) % 2 == 1
    ratios: list[float] = []
    others: list[Mapping[str, float]] = []
    bare: dict[str, None] = {}
    while len(ratios) < runs:
        is_neighbour = truth[len(ratios)]
        one, other = (neighbour.data, data) if is_neighbour else (data, neighbour.data)
        found = seen_of(protocol, config, party, one, other, seed=seed)
        seed += 1
        if unclaimed and found.bare and all(transfer.startswith(unclaimed) for transfer in found.bare):
            continue
        bare |= dict.fromkeys(found.bare)
        ratios.append(_ratio(found) * (1 if is_neighbour else -1))
        others.append(found.numbers)
    ratio_N = np.array(ratios)
    common = sorted(set.intersection(*(set(numbers) for numbers in others)))
    number_NK = np.array([[numbers[name] for name in common] for numbers in others])
    second_N = np.arange(runs) >= runs // 2
    score_N = ratio_N + _fitted(number_NK, truth, ~second_N)
    name = f"one {neighbour.kind} of {party}"
    return CombinedAdversary(
        attack=attack_by_auc(f"all together: {name}", truth[second_N], score_N[second_N]),
        by_releases=attack_by_auc(f"releases: {name}", truth, ratio_N),
        bare=tuple(bare),
    )


def _ratio(found: Seen) -> float:
    """Return the log likelihood ratio of all releases, of the data that was run over the other."""
    return sum(
        _log_density(law, made, exact) - _log_density(law, made, other) for exact, other, law, made in found.releases
    )


def _log_density(law: Law, made: Any, exact: Any) -> float:
    """Return the logarithm of a release's density, up to what does not depend on the exact value."""
    release, value = np.asarray(made, np.float64), np.asarray(exact, np.float64)
    if release.shape != value.shape:  # words under masks, which tell nothing alone
        return 0.0
    if isinstance(law, Gaussian):
        return -float(((release - value) ** 2).sum()) / (2 * law.sigma**2) if law.sigma > 0 else 0.0
    if isinstance(law, Laplace):
        return -float(np.abs(release - value).sum()) * math.sqrt(2) / law.deviation
    assert isinstance(law, RandomisedResponse)
    return law.per_value * int((release == value).sum())


def _fitted(number_NK: NDArray[Any], truth_N: NDArray[np.bool_], first_N: NDArray[np.bool_]) -> NDArray[Any]:
    """Return the log odds of a ridge regression on the first runs' numbers, for all runs; 0 where they tell nothing."""
    centre_K, scale_K = number_NK[first_N].mean(axis=0), number_NK[first_N].std(axis=0)
    x_NK = (number_NK - centre_K)[:, scale_K > 0] / scale_K[scale_K > 0]
    if x_NK.shape[1] == 0:
        return np.zeros(len(truth_N))
    x, sign = x_NK[first_N], np.where(truth_N[first_N], 1.0, -1.0)
    kernel, penalty = x @ x.T, _RIDGE * x.shape[1] * np.eye(len(x))
    hat = kernel @ np.linalg.inv(kernel + penalty)
    # each first run's score is that of a fit without it, or the fit would seem better than it is
    left_out = (hat @ sign - np.diag(hat) * sign) / (1 - np.diag(hat))
    ones, zeros = left_out[sign > 0], left_out[sign < 0]
    variance = (ones.var() + zeros.var()) / 2
    weight = max(0.0, float(ones.mean() - zeros.mean())) / variance if variance > 0 else 0.0
    score_N = x_NK @ (x.T @ np.linalg.solve(kernel + penalty, sign))
    return np.asarray(weight * (score_N - (ones.mean() + zeros.mean()) / 2))
