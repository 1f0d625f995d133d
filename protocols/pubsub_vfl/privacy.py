"""What one record may move at each party of a run, how often it did, and what is promised for it.

A passive party's row is read by three things: the scale of its columns, the training of its bottom model, and its own
embeddings. Only if each of them is noised, or reads no row, is anything promised (replace one row, ids and row order
known). The active party's rows train models without noise, from which every later gradient at the cut follows, so no
row of it is covered; its labels are, where they are exchanged at random before anything is computed from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedactors.actors.context import derived_seed
from fedactors.auditing.attacks import SeenEmbeddings, SeenGradients, SeenScores, Surface
from fedactors.data.columns import Preprocessing
from fedactors.data.layouts.vertical import Neighbour, VerticalData, replaced_labels, replaced_rows
from fedactors.data.party_rows import prepare, split
from fedactors.learning.models import task_loss
from fedactors.learning.network import Model, on_host
from fedactors.learning.split_learning import joint_output, loss_gradients
from fedactors.privacy import mechanisms
from fedactors.privacy.accounting import INTERRUPTED, GaussianReleases, PrivacyRecord
from fedactors.privacy.mechanisms import clip_and_noise, flip_probability
from fedactors.privacy.noise import mu_of_epsilon
from fedactors.protocols.pubsub_vfl.algorithm import bottom_spec, embed_rows, embedding_sigma, gaussian_sigma, top_spec
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.messages import RowCounts
from fedactors.protocols.pubsub_vfl.serving import trained

_NEIGHBOURS = "one row replaced, known batches and categories; who takes part and row order are not covered"
_NOMINAL = "; nominal mu is the paper's, whose amplification known batch ids do not give"
_MOST_ROWS = 2000


def neighbours(config: PubSubVflConfig, data: VerticalData, party: str, count: int, seed: int) -> Sequence[Neighbour]:
    """Return neighbours of a party's data: `count` rows replaced and, at the party with labels, as many labels."""
    rows = replaced_rows(data, party, count, seed)
    return [*rows, *(replaced_labels(data, count, seed) if party == data.label_party else ())]


def surface(config: PubSubVflConfig, data: VerticalData, states: Mapping[str, bytes], seed: int) -> Surface:
    """Return what attackers see of a trained model, of 2,000 rows of each part: embeddings, gradients, losses.

    Releases are drawn anew, by the noise that the run used, from the checkpoint's models. The attackers: who receives
    embeddings and knows the test rows' features (and, of the bottom, the model); who receives gradients and knows one
    positive label; who sees the joint model's losses.
    """
    run_seed = derived_seed(seed, "all parties", "batches")
    rng = np.random.default_rng(derived_seed(seed, "attackers", "noise"))
    bottoms, parts, released, exchanged = {}, {}, {}, None
    for party in (data.label_party, *data.passive_parties):
        scale, vectors = trained(party, states)
        block, order = data.load(party), np.asarray(scale["order"])
        cut = split(
            len(order),
            seed=run_seed,
            test_fraction=config.test_fraction,
            validation_fraction=config.validation_fraction,
            parts_N=np.asarray(scale["drawn"]["parts"]),
        )
        fitted = Preprocessing.of(scale["preprocessing"], party)
        scales = (fitted.mean, fitted.deviation)
        parts[party] = made = prepare(block, order, cut, data.task, scales)
        if party == data.label_party and len(scale["drawn"]["labels"]):
            exchanged = np.asarray(scale["drawn"]["labels"])[order[cut.train]]
        bottoms[party] = Model(bottom_spec(config, block.features.shape[1]), vectors[0])
        sigma = 0.0 if party == data.label_party else embedding_sigma(config, len(made.train.features))
        for name in ("train", "test"):
            exact = embed_rows(bottoms[party], getattr(made, name).features[:_MOST_ROWS])
            released[party, name] = clip_and_noise(exact, config.clip_norm, sigma, rng) if sigma else exact
    local = parts[data.label_party]
    config = config.at(len(local.train.features))
    top = Model(top_spec(config, data), trained(data.label_party, states)[1][1])
    losses = {}
    for name in ("train", "test"):
        labels = getattr(local, name).labels[:_MOST_ROWS]
        fused = [released[party, name] for party in parts]
        output_BO = torch.from_numpy(joint_output(top, fused))
        losses[name] = task_loss(data.task, output_BO, torch.from_numpy(labels), "none").numpy()
    # gradients follow from the labels that were trained on, which may have been exchanged; the truth is what they hide
    assert local.train.labels is not None
    labels = local.train.labels[:_MOST_ROWS]
    trained_on = labels if exchanged is None else exchanged[:_MOST_ROWS]
    fused = [released[party, "train"] for party in parts]
    cut_gradients = loss_gradients(top, fused, trained_on, data.task).embedding_gradients
    sigma = gaussian_sigma(config.gradient_mu, config.gradient_clip_norm, config.num_epochs)
    embeddings, gradients = [], []
    for number, party in enumerate(data.passive_parties, start=1):
        embeddings.append(
            SeenEmbeddings(
                name=party,
                seen_BE=released[party, "train"],
                features_BF=parts[party].train.features[:_MOST_ROWS],
                shadow_seen_SE=released[party, "test"],
                shadow_features_SF=parts[party].test.features[:_MOST_ROWS],
                bottom=bottoms[party],
            )
        )
        if data.task == "binary":
            rows = on_host(cut_gradients[number]) * len(labels)
            sent = clip_and_noise(rows, config.gradient_clip_norm, sigma, rng) if sigma else rows
            gradients.append(SeenGradients(name=data.label_party, gradients_BE=sent, labels_B=labels))
    scores = SeenScores(name="joint model", members_B=-losses["train"], others_S=-losses["test"])
    return Surface(embeddings=embeddings, gradients=gradients[:1], scores=[scores])


class Counts:
    """How often each row was released by one worker; part of its snapshots.

    Args:
        is_frozen: whether a row is released once in a process's life, so that at most one release can be forgotten.
    """

    def __init__(self, is_frozen: bool) -> None:
        self._is_frozen = is_frozen
        self._embedded: NDArray[np.int64] = np.zeros(0, np.int64)
        self._stepped: NDArray[np.int64] = np.zeros(0, np.int64)
        self._parts = {"validation": 0, "test": 0}
        self._interrupted = False
        self._rows: NDArray[np.int64] = np.zeros(0, np.int64)
        self._before: NDArray[np.int64] = np.zeros(0, np.int64)
        """Rows of an earlier order that are no more trained on."""
        self._num_scales = 0

    def start(self, rows: NDArray[np.int64], num_local: int) -> None:
        """Learn which of so many own rows are trained on; what was counted of rows before stays."""
        if len(self._before) or len(self._rows):
            self._before = np.setdiff1d(np.union1d(self._before, self._rows), rows)
        self._rows = np.asarray(rows)
        if not len(self._embedded):
            self._embedded, self._stepped = np.zeros(num_local, np.int64), np.zeros(num_local, np.int64)

    def draw_scale(self) -> None:
        """Count that rows are put in order, for which the scale of their columns is drawn."""
        self._num_scales += 1

    def embed(self, positions: NDArray[np.int64]) -> None:
        """Count a release of these training rows."""
        self._embedded[self._rows[positions]] += 1

    def step(self, positions: NDArray[np.int64]) -> None:
        """Count a noised gradient to which these training rows contributed."""
        self._stepped[self._rows[positions]] += 1

    def release(self, part: str, positions: NDArray[np.int64]) -> None:
        """Count a release of these training rows, or of all validation or test rows."""
        if part == "train":
            self.embed(positions)
        else:
            self._parts[part] += 1

    @property
    def num_scales(self) -> int:
        """How often the scale of the columns was drawn."""
        return self._num_scales

    @property
    def message(self) -> RowCounts:
        """The counts for the party's worker 0, of all rows that are or were trained on."""
        rows, parts = np.concatenate([self._rows, self._before]), self._parts
        counts = self._embedded[rows], self._stepped[rows]
        return RowCounts(*counts, parts["validation"], parts["test"], self._interrupted)

    def state_dict(self) -> dict[str, Any]:
        """Return the counts for a snapshot."""
        counted = {"embedded": self._embedded, "stepped": self._stepped, "rows": self._rows, "before": self._before}
        return {**counted, "scales": self._num_scales, **self._parts, "interrupted": self._interrupted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them, with what may have been released after the snapshot.

        All rows count as often as the one that was released most: from here on the most grows with every row.
        """
        missed, parts = int(self._is_frozen), [state[part] for part in ("validation", "test")]
        most = max(np.max(state["embedded"], initial=0), *parts) + missed
        self._embedded = np.full_like(state["embedded"], most)
        self._stepped = np.full_like(state["stepped"], np.max(state["stepped"], initial=0))
        self._rows, self._before = np.array(state["rows"]), np.array(state["before"])
        self._num_scales = int(state["scales"])
        self._parts = dict.fromkeys(("validation", "test"), int(most))
        self._interrupted = True


class KeptReleases:
    """Releases that are drawn once and sent again whenever they are asked for: those of a frozen bottom."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[NDArray[Any], NDArray[np.bool_]]] = {}

    def take(
        self,
        part: str,
        num_rows: int,
        positions: NDArray[np.int64],
        values: NDArray[Any],
        draw: Callable[[NDArray[Any]], NDArray[Any]],
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the releases of rows of a part of so many, and which of them `draw` released just now."""
        kept, is_kept = self._kept.setdefault(
            part, (np.empty((num_rows, values.shape[1]), values.dtype), np.zeros(num_rows, np.bool_))
        )
        new = ~is_kept[positions]
        if new.any():
            kept[positions[new]], is_kept[positions[new]] = draw(values[new]), True
        return kept[positions], positions[new]


def add_counts(found: Sequence[RowCounts]) -> RowCounts:
    """Return the counts of all workers of a party together."""
    return RowCounts(
        sum((counts.embedded for counts in found), np.zeros((), np.int64)),
        sum((counts.stepped for counts in found), np.zeros((), np.int64)),
        sum(counts.validation for counts in found),
        sum(counts.test for counts in found),
        any(counts.interrupted for counts in found),
    )


def passive_records(
    config: PubSubVflConfig, party: str, counts: RowCounts, sigma: float, num_scaled: int, num_scales: int = 1
) -> Iterator[PrivacyRecord]:
    """Yield the ledger's lines of a passive party.

    Args:
        config: of the run.
        party: its name.
        counts: of all its workers.
        sigma: noise deviation of its embeddings.
        num_scaled: columns that are standardised.
        num_scales: how often their scale was drawn.
    """
    why = _reads_rows(config) + ([INTERRUPTED] if counts.interrupted else [])
    nominal = None
    if math.isfinite(config.privacy_mu):  # Eq. 17: c N_m sqrt(K) / (sigma N), K = T N / N_m, at sensitivity 2c
        nominal = config.batch_size * config.num_epochs / (4 * len(counts.embedded))
    # a row is in one part of the split only
    embedded = max(counts.embedded.max(initial=0), counts.validation, counts.test)
    yield _gaussian(
        config, party, "Embedding", config.clip_norm, sigma, int(embedded), why, nominal, _NOMINAL if nominal else ""
    )
    if config.bottom_training == "private":
        clip = config.bottom_clip_norm
        steps = int(counts.stepped.max(initial=0))
        yield _gaussian(config, party, "bottom gradients", clip, bottom_sigma(config), steps, why)
    if config.standardisation == "private" and num_scaled:
        yield _scale_record(config, party, num_scaled, num_scales, why)


def active_records(
    config: PubSubVflConfig, party: str, counts: RowCounts, sigma: float, num_classes: int, num_draws: int = 1
) -> Iterator[PrivacyRecord]:
    """Yield the ledger's lines of the active party, whose exchanged labels were drawn so often."""
    why = ["the top model and the own bottom are trained on the rows without noise"]
    released = int(counts.embedded.max(initial=0))
    yield _gaussian(config, party, "Gradient", config.gradient_clip_norm, sigma, released, why)
    if math.isfinite(epsilon := config.label_epsilon):
        yield PrivacyRecord(
            party=party,
            message_type="labels",
            mechanism="randomised-response",
            neighbour="label",
            noise_scale=flip_probability(num_classes, epsilon),
            num_values=num_classes,
            sensitivity=1.0,
            touched=num_draws,
            sampling="full",
            rigorous_mu=mu_of_epsilon(num_draws * epsilon),
            epsilon=num_draws * epsilon,
            covered=True,
            note="one training or validation label replaced; test labels show in the final metrics",
        )


def bottom_sigma(config: PubSubVflConfig) -> float:
    """Return the noise deviation of a privately trained bottom's summed gradients."""
    return gaussian_sigma(config.bottom_mu, config.bottom_clip_norm, config.num_epochs)


def _reads_rows(config: PubSubVflConfig) -> list[str]:
    """Return in which ways what a passive party sends follows from rows without noise."""
    found = []
    if config.standardisation == "measured":
        found.append("the columns' scale is measured on the rows")
    if config.bottom_training == "plain":
        found.append("the bottom model is trained on the rows")
    return found


def _gaussian(
    config: PubSubVflConfig,
    party: str,
    name: str,
    clip_norm: float,
    sigma: float,
    released: int,
    why: Sequence[str],
    paper_touched: float | None = None,
    more: str = "",
) -> PrivacyRecord:
    made = GaussianReleases(
        name, clip_norm=clip_norm, sigma=sigma, delta=config.delta, paper_touched=paper_touched, note=_NEIGHBOURS + more
    )
    made.add(times=released)
    return made.record(party, uncovered=why)


def _scale_record(
    config: PubSubVflConfig, party: str, num_scaled: int, num_scales: int, why: Sequence[str]
) -> PrivacyRecord:
    made = GaussianReleases(
        "column scale",
        clip_norm=mechanisms.scale_sensitivity(num_scaled) / 2,
        sigma=mechanisms.scale_sigma(num_scaled, config.standardisation_mu),
        delta=config.delta,
        sampling="full",
        note=_NEIGHBOURS,
    )
    made.add(times=mechanisms.NUM_RELEASES * num_scales)
    return made.record(party, uncovered=why)
