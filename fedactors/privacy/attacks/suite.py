"""The attacks of this folder as one suite, for any protocol that says what its attackers see.

    surface = protocol.surface(config, data, states, seed)      # from a checkpoint: see `fedactors.plugins.Protocol`
    for found in run_attacks(surface): ...                      # each with its chance level and its interval

An attack that finds nothing proves nothing; one that does shows what the noise must hide.

Shapes: B attacked rows, S shadow rows, E width of what is seen, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedactors.privacy.attacks import embedding_inversion as inversion
from fedactors.privacy.attacks import label_inference
from fedactors.privacy.audit import Attack, attack_by_auc, attack_by_share

Array = NDArray[Any]
TOLERANCE = 0.5
"""A feature counts as found within this distance: half a standard deviation of a standardised column."""
_MOST_OPTIMISED = 200
_MOST_CANDIDATES = 1000


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
    """Models that the attacker reads of several holders of rows; see `fedactors.privacy.attacks.whole_models`."""

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
        place_HC = rankdata(seen.bias_HC, axis=0)
        yield attack_by_auc(f"classes held, by output bias: {seen.name}", holds_HC.ravel(), place_HC.ravel())


def _label_attacks(seen: SeenGradients) -> Iterator[Attack]:
    labels, gradients = np.asarray(seen.labels_B), np.asarray(seen.gradients_BE, np.float64)
    positive = int(np.argmax(labels))
    others = np.arange(len(labels)) != positive  # the one whose label the attacker knows is no finding
    for how, scores in (
        ("gradient norm", label_inference.norm_scores(gradients)),
        ("gradient direction", label_inference.direction_scores(gradients, positive)),
        ("gradient clusters", label_inference.clustering_scores(gradients)),
    ):
        yield attack_by_auc(f"labels by {how}: {seen.name}", labels[others], scores[others])


def _inversions(seen: SeenEmbeddings, seed: int) -> Iterator[Attack]:
    chance = inversion.baseline_success_rate(seen.features_BF, seen.shadow_features_SF, TOLERANCE)
    measure = f"features within {TOLERANCE} deviations"

    def judged(how: str, guess_BF: Array, true_BF: Array) -> Attack:
        # features that the attacker has by guessing the median are in both figures
        hits_BF = np.abs(true_BF - guess_BF) <= TOLERANCE
        return attack_by_share(f"inversion by {how}: {seen.name}", measure, hits_BF, chance)

    decode = inversion.train_decoder(
        seen.shadow_seen_SE, seen.shadow_features_SF, seed=seed, num_epochs=seen.num_epochs
    )
    yield judged("decoder", decode(seen.seen_BE), seen.features_BF)
    if seen.bottom is None:
        return
    few = slice(0, _MOST_OPTIMISED)
    found_BF = inversion.invert_by_optimisation(
        seen.bottom, seen.seen_BE[few], seen.features_BF.shape[1], seed=seed, steps=300
    )
    yield judged("optimisation", found_BF, seen.features_BF[few])
    candidates = np.concatenate([seen.features_BF[few], seen.shadow_features_SF])[:_MOST_CANDIDATES]
    distinct, place_N = np.unique(candidates, axis=0, return_inverse=True)
    embedded = seen.bottom(_tensor(distinct)).detach().numpy()
    nearest_B = inversion.nearest_neighbour(seen.seen_BE[few], embedded)
    hits_B = nearest_B == place_N.reshape(-1)[: len(nearest_B)]
    yield attack_by_share(
        f"inversion by nearest neighbour: {seen.name}", "rows found among candidates", hits_B, 1 / len(distinct)
    )


def _tensor(rows: Array) -> Tensor:
    from fedactors.learning.parameters import as_tensor

    return as_tensor(np.ascontiguousarray(rows, np.float32))
