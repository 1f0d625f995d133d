"""Auditing what is claimed: every figure recomputed, replayed, and attacked with the noise on.

    check_run(folder)                       every epsilon and mu of a run's ledger from its ingredients
    fedactors.auditing.replay                one party, one record otherwise: how far does what it sends move?
    one_run_epsilon, threshold_mu           lower bounds from attacks on noised releases, with confidence
    fedactors.auditing.attacks         what attackers find, beside their chance level

A mechanism whose audit lies above its claim has a claim that is wrong. An audit below it proves nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedactors.errors import BadInput
from fedactors.federation.audit_log import AUDIT
from fedactors.federation.audit_log import read as read_log
from fedactors.federation.site_folder import in_all, spent
from fedactors.privacy.accounting import (
    EVERYBODY,
    JOINED,
    Checked,
    Claim,
    PrivacyRecord,
    budgets,
    check_record,
    claims,
    record_from,
)
from fedactors.runs import schemas
from fedactors.runs.folder import PREDICTIONS, PRIVACY, SUMMARY, RunFolder
from fedactors.runs.metrics import jsonable, read_lines

_FIGURE = re.compile(r"(^|[._/ ])(epsilon|mu)$")

# --- figures recomputed ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LedgerAudit:
    """A run's ledger, line by line, and what follows for each party."""

    lines: tuple[Checked, ...]
    claims: tuple[Claim, ...]
    unfounded: tuple[str, ...] = ()
    """Sentences on figures of the run's summary that follow from no line and no claim."""
    predictions: tuple[Checked, ...] = ()
    """Lines of predictions with the run's model."""
    prediction_claims: tuple[Claim, ...] = ()
    """What follows from these together, all predictions composed."""
    not_counted: tuple[str, ...] = ()
    """Sentences on what the claims do not speak of."""
    charged: str = ""
    """Of a site's run that broke off before its account was written: what the site's log charges for it."""

    @property
    def refuted(self) -> list[str]:
        """Sentences on every stated figure that does not follow."""
        lines = [line for line in (*self.lines, *self.predictions) if not line.agrees]
        return [f"{one.record.party}/{one.record.message_type}: {one.reason}" for one in lines] + list(self.unfounded)

    @property
    def agrees(self) -> bool:
        """Whether every stated figure follows from its ingredients."""
        return not self.refuted


def check_run(folder: RunFolder) -> LedgerAudit:
    """Recompute every figure of a run's privacy ledger and of its predictions, and find those of its summary in them.

    Raises:
        BadInput: the ledger cannot be read, or is not as long as the manifest says.
    """
    if folder.listed(PRIVACY) is None:
        raise BadInput(f"{folder.path}: no {PRIVACY}: the run ended before its ledger was written")
    folder.verify((PRIVACY, PREDICTIONS, SUMMARY))
    records = [record_from(line) for line in read_lines(folder, PRIVACY, schemas.PrivacyLine)]
    lines = tuple(_checked(PRIVACY, records))
    found = _composed(PRIVACY, records)
    # what would hold if the noise were secret is stated too, with that condition beside it
    secret = _composed(PRIVACY, records, as_if_secret=True)
    composed = [*found.values(), *secret.values()]
    known = {figure for line in lines for figure in line.figures}
    known |= {value for claim in composed for value in (claim.mu, claim.epsilon)}
    summary = folder.read_json(SUMMARY, schemas.SummaryFile) if folder.listed(SUMMARY) else {}
    unfounded = tuple(
        f"{SUMMARY}: {key} {value:.6g} is stated and follows from no line of the ledger"
        for key, value in _figures(summary, "")
        if not any(math.isclose(value, one, rel_tol=1e-6, abs_tol=1e-12) for one in known)
    )
    stated = summary.get("extra", {}).get("privacy", {})
    unfounded += tuple(_unlike_the_ledger(stated, records, secret.get((EVERYBODY, JOINED))))
    released = []
    if folder.listed(PREDICTIONS) is not None:
        released = [record_from(line) for line in read_lines(folder, PREDICTIONS, schemas.PrivacyLine)]
    return LedgerAudit(
        lines=lines,
        claims=tuple(found.values()),
        unfounded=unfounded,
        predictions=tuple(_checked(PREDICTIONS, released)),
        prediction_claims=tuple(_composed(PREDICTIONS, released).values()),
        not_counted=tuple(_not_counted(folder, found.values(), {record.party for record in released})),
        charged="" if records or folder.status == "finished" else _charged(folder),
    )


def _charged(folder: RunFolder) -> str:
    """Return in a sentence what the log of the site that has this folder charges for its run; empty: nothing."""
    run, log = (folder.config.get("site") or {}).get("run"), folder.path.parent.parent / AUDIT
    if run is None:
        return ""
    taken = spent(line for line in read_log(log) if line.get("run") == run)
    found = [f"{in_all(amounts)} of the budget of data.{name}" for name, amounts in taken.items() if amounts]
    said = "the run broke off before its account was written: the site's log charges"
    return f"{said} {', '.join(found)}" if found else ""


def _checked(file: str, records: Iterable[PrivacyRecord]) -> Iterator[Checked]:
    for record in records:
        try:
            yield check_record(record)
        except (ValueError, ArithmeticError) as error:
            raise BadInput(f"{file}: {record.party}/{record.message_type} is no release: {error}") from error


def _composed(file: str, records: list[PrivacyRecord], **how: bool) -> dict[tuple[str, str], Claim]:
    try:
        return claims(records, **how)
    except (ValueError, ArithmeticError) as error:
        raise BadInput(f"{file}: its lines cannot be composed: {error}") from error


def _unlike_the_ledger(
    stated: Mapping[str, Any], records: Iterable[PrivacyRecord], joint: Claim | None
) -> Iterator[str]:
    """Yield a sentence on each party of which the run's summary says something else than the lines of its ledger."""
    expected = jsonable(budgets(records))
    for party in sorted({*expected, *(name for name, told in stated.items() if isinstance(told, Mapping))}):
        if party == JOINED and party not in expected:
            told = (stated[party].get("epsilon"), stated[party].get("delta"))
            holds = (None, None) if joint is None else jsonable((joint.epsilon, joint.delta))
            alike = all(_alike(one, other) for one, other in zip(told, holds, strict=True))
        else:
            alike = _sorted_lines(stated.get(party)) == _sorted_lines(expected.get(party))
        if stated and not alike:
            yield f"{SUMMARY}: what it states of {party} is not what the ledger's lines say"


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=1e-6)
    return bool(one == other)


def _sorted_lines(told: Any) -> list[tuple[str, str]]:
    # several lines of one type are numbered as they came, which after a resume is not the order of the file
    lines = told.items() if isinstance(told, Mapping) else ()
    return sorted((re.sub(r" \d+$", "", name), json.dumps(line, sort_keys=True)) for name, line in lines)


def _not_counted(folder: RunFolder, found: Iterable[Claim], predicted: Container[str]) -> Iterator[str]:
    for claim in found:
        if claim.covered and (claim.party in predicted or (claim.party == EVERYBODY and predicted)):
            yield (
                f"{claim.party}, one {claim.neighbour}: the claim is on the training; predictions with the model that "
                "it was made from are not covered"
            )
    if (parent := folder.manifest.get("parent")) is not None:
        yield f"predictions with {parent}, which this run resumes, are counted in that run's folder"


def _figures(tree: Any, key: str) -> Iterator[tuple[str, float]]:
    """Yield every finite number of a tree whose name says that it is an epsilon or a mu."""
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from _figures(value, f"{key}.{name}" if key else str(name))
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from _figures(value, key)
    elif isinstance(tree, (int, float)) and _FIGURE.search(key) and math.isfinite(tree):
        yield key, float(tree)


# --- lower bounds from attacks on what is noised ---------------------------------------------------------------------


def one_run_epsilon(
    scores: ArrayLike, bits: ArrayLike, *, delta: float, confidence: float = 0.95, num_guesses: int | None = None
) -> float:
    """Return a lower bound of epsilon from one run with canaries (Steinke, Nasr and Jagielski, 2023, Theorem 5.2).

    Each canary was in the data, or had its first of two values, by an independent fair coin. The auditor guesses heads
    for the canaries of highest score and tails for those of lowest, as many of each, and abstains from the others.

    Args:
        scores: of each canary (M); higher: more probably heads.
        bits: the coins (M), 1 for heads.
        delta: at which epsilon is bounded.
        confidence: that the bound holds; the number of guesses must not have been chosen by looking at the bits.
        num_guesses: guesses in all; by default all canaries.
    """
    score_M, bit_M = np.asarray(scores, np.float64), np.asarray(bits, np.int64)
    if score_M.shape != bit_M.shape or score_M.ndim != 1 or not len(bit_M):
        raise ValueError(f"scores and bits must be two vectors of one length, got {score_M.shape} and {bit_M.shape}")
    if not set(np.unique(bit_M).tolist()) <= {0, 1}:
        raise ValueError("bits must be 0 or 1")
    num_guesses = len(bit_M) if num_guesses is None else num_guesses
    half = num_guesses // 2
    order = np.argsort(score_M, kind="stable")
    correct = int((bit_M[order[:half]] == 0).sum() + (bit_M[order[len(order) - half :]] == 1).sum())
    return epsilon_of_guesses(len(bit_M), 2 * half, correct, delta=delta, confidence=confidence)


def epsilon_of_guesses(
    num_canaries: int, num_guesses: int, num_correct: int, *, delta: float, confidence: float = 0.95
) -> float:
    """Return the largest epsilon that so many correct guesses refute; see `one_run_epsilon`."""
    if not 0 <= num_correct <= num_guesses <= num_canaries:
        raise ValueError(f"{num_correct} of {num_guesses} guesses on {num_canaries} canaries is not possible")

    def refuted(epsilon: float) -> bool:
        return _chance_of(num_canaries, num_guesses, num_correct, epsilon, delta) < 1 - confidence

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
        if high > 1e3:
            return low
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _chance_of(num_canaries: int, num_guesses: int, num_correct: int, epsilon: float, delta: float) -> float:
    """Return the largest probability of so many correct guesses under (epsilon, delta)-DP (Theorem 5.2)."""
    from scipy.stats import binom

    share = 1 / (1 + math.exp(-epsilon))
    beta = float(binom.sf(num_correct - 1, num_guesses, share))
    if delta == 0 or num_correct == 0:
        return min(1.0, beta)
    masses = np.cumsum(binom.pmf(np.arange(num_correct - 1, -1, -1), num_guesses, share))
    alpha = float(np.max(masses / np.arange(1, num_correct + 1)))
    return min(1.0, beta + alpha * delta * 2 * num_canaries)


def threshold_mu(ones: ArrayLike, others: ArrayLike, *, confidence: float = 0.95) -> float:
    """Return a lower bound of mu from repeated runs: statistics of an attacker with one data set, and with the other.

    The threshold is chosen on the first half of each; on the second half both error rates get Clopper-Pearson upper
    bounds, so that ``mu >= quantile(1 - false positives) - quantile(false negatives)`` with the stated confidence.

    Args:
        ones: the attacker's statistic in each run on one data set; larger than on the other.
        others: the same on its neighbour.
        confidence: of both bounds together.
    """
    from scipy.stats import beta, norm

    one_N, other_N = np.asarray(ones, np.float64), np.asarray(others, np.float64)
    if min(len(one_N), len(other_N)) < 4:
        raise ValueError("at least four runs of each data set are needed")
    one_half, other_half = len(one_N) // 2, len(other_N) // 2
    candidates = np.unique(np.concatenate([one_N[:one_half], other_N[:other_half]]))

    def bounded(errors: int, count: int) -> float:
        return 1.0 if errors == count else float(beta.ppf(1 - (1 - confidence) / 2, errors + 1, count - errors))

    def mu_at(threshold: float, one: NDArray[Any], other: NDArray[Any]) -> float:
        missed = bounded(int((one <= threshold).sum()), len(one))
        false = bounded(int((other > threshold).sum()), len(other))
        return float(norm.isf(false) - norm.ppf(missed))

    best = max(candidates.tolist(), key=lambda threshold: mu_at(threshold, one_N[:one_half], other_N[:other_half]))
    found = mu_at(best, one_N[one_half:], other_N[other_half:])
    return max(0.0, found) if not math.isnan(found) else 0.0


# --- what an attack found --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Attack:
    """What an attacker achieved, with its interval, beside what guessing achieves."""

    name: str
    measure: str
    """What was measured: ``auc``, ``share of features within 0.5``."""
    estimate: float
    low: float
    high: float
    """95 % interval of what was found."""
    chance: float
    """What guessing achieves."""
    count: int
    """Rows, features or pairs on which it was measured."""

    @property
    def is_chance(self) -> bool:
        """Whether what was found cannot be told from guessing; a ranking that is turned round tells as much."""
        within = self.low <= self.chance <= self.high
        return within or (self.measure != "auc" and self.estimate <= self.chance)


def attack_by_auc(name: str, truth: ArrayLike, scores: ArrayLike) -> Attack:
    """Return an attack whose scores rank a binary truth (N): AUC with the interval of Hanley and McNeil (1982)."""
    from fedactors.learning.metrics import auc

    true_N = np.asarray(truth, bool)
    positive, negative = int(true_N.sum()), int((~true_N).sum())
    if not positive or not negative:
        raise ValueError(f"attack {name}: both classes are needed, got {positive} and {negative}")
    value = float(auc(true_N.astype(np.int64), np.asarray(scores, np.float64)))
    one, two = value / (2 - value), 2 * value**2 / (1 + value)
    variance = value * (1 - value) + (positive - 1) * (one - value**2) + (negative - 1) * (two - value**2)
    margin = 1.96 * math.sqrt(max(variance, 0.0) / (positive * negative))
    return Attack(
        name=name,
        measure="auc",
        estimate=value,
        low=max(0.0, value - margin),
        high=min(1.0, value + margin),
        chance=0.5,
        count=len(true_N),
    )


def attack_by_share(name: str, measure: str, hits: ArrayLike, chance: float) -> Attack:
    """Return an attack that hit some of several targets (N, or N x F with rows that are independent)."""
    from scipy.stats import norm

    hit = np.asarray(hits, np.float64)
    rows_N = hit.reshape(len(hit), -1).mean(axis=1)
    value = float(rows_N.mean())
    margin = float(norm.isf(0.025)) * float(rows_N.std(ddof=1)) / math.sqrt(len(rows_N)) if len(rows_N) > 1 else 1.0
    return Attack(
        name=name,
        measure=measure,
        estimate=value,
        low=max(0.0, value - margin),
        high=min(1.0, value + margin),
        chance=chance,
        count=int(hit.size),
    )


def table_of(attacks: Sequence[Attack]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a table of attacks, for a terminal or a page."""
    rows = [
        [
            one.name,
            one.measure,
            f"{one.estimate:.3f}",
            f"{one.low:.3f} to {one.high:.3f}",
            f"{one.chance:.3f}",
            "chance" if one.is_chance else "leaks",
        ]
        for one in attacks
    ]
    return ["attack", "measure", "found", "95 % interval", "chance", ""], rows
