"""Noised releases, counted where they happen: by the actor that makes them, which also writes their ledger line.

    load:       self.releases = GaussianReleases("Embedding", clip_norm=c, sigma=sigma, delta=1e-5, note=...)
    release:    self.releases.add()                                        # beside the line that adds the noise
    at the end: self.record_privacy(self.releases.record(self.party))
    driver:     await runtime.settle(); extra = {"privacy": budgets(runtime.privacy_records)}

`GaussianReleases` has a ``state_dict``: it belongs into the actor's ``state``, so that a resumed run has counted what
it released until the checkpoint. What a killed process released after that nobody knows: a resumed line covers nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedactors.privacy.accounting import PrivacyRecord, epsilon_of_mu, gaussian_mu, sensitivity

NO_GUARANTEE = "no privacy guarantee: reproducible noise"
"""Why a line with noise that can be made again from the run's seed covers nothing."""
NEW_ROW = "new row"
"""Neighbour of a prediction: one row of it replaced by another that the model can use; training rows are none."""
INTERRUPTED = "the party was restored from a checkpoint: what it released after it is not known"


class GaussianReleases:
    """All releases of one message type under the Gaussian mechanism, composed as Gaussian-DP (``mu^2`` adds up).

    Args:
        message_type: name of the message class that carries them.
        clip_norm: bound of the L2 norm of each row that leaves.
        sigma: standard deviation of the noise on each number; 0: releases are counted, and nothing is guaranteed.
        delta: for which epsilon is stated.
        sampling: how batches are drawn.
        paper_touched: how many releases of a row a paper's formula counts in the whole run; None: ``nominal_rows``.
        note: neighbouring relation, and what is not covered.
    """

    def __init__(
        self,
        message_type: str,
        *,
        clip_norm: float,
        sigma: float,
        delta: float,
        sampling: str = "known-batches",
        paper_touched: float | None = None,
        note: str = "",
    ) -> None:
        self.message_type = message_type
        self.count = 0
        """Releases so far."""
        self._clip_norm = clip_norm
        self._sigma = sigma
        self._delta = delta
        self._sampling = sampling
        self._paper_touched = paper_touched
        self._note = note
        self._rows = 0
        self._nominal_rows: int | None = None
        self._is_restored = False

    def add(self, num_rows: int = 1, *, nominal_rows: int | None = None, times: int = 1) -> None:
        """Count releases.

        Args:
            num_rows: how many rows of a release one record may move, each by at most twice the clipping norm.
            nominal_rows: how many it moves under the assumption that the nominal account makes.
            times: how often this was released.
        """
        self.count += times
        self._rows += num_rows * times
        if nominal_rows is not None:
            self._nominal_rows = (self._nominal_rows or 0) + nominal_rows * times

    @property
    def rigorous_mu(self) -> float:
        """The mu that holds for one record; 0 before the first release, infinite without noise."""
        return gaussian_mu(clip_norm=self._clip_norm, sigma=self._sigma, releases=self._rows)

    @property
    def nominal_mu(self) -> float | None:
        """The mu that holds under an assumption, or that a paper claims; None: nothing of the kind is stated."""
        touched = self._nominal_touched
        return None if touched is None else gaussian_mu(clip_norm=self._clip_norm, sigma=self._sigma, releases=touched)

    @property
    def _nominal_touched(self) -> float | None:
        return self._nominal_rows if self._paper_touched is None else self._paper_touched

    def record(self, party: str, *, uncovered: Sequence[str] = ()) -> PrivacyRecord:
        """Return the ledger's line.

        Args:
            party: whose releases they are.
            uncovered: ways in which a record is read that this noise does not cover; with any, nothing is guaranteed.
        """
        uncovered = (*uncovered, *([INTERRUPTED] if self._is_restored else ()))
        noised, mu = self._sigma > 0 and math.isfinite(self._clip_norm), self.rigorous_mu
        return PrivacyRecord(
            party=party,
            message_type=self.message_type,
            mechanism="gaussian" if noised else "none",
            clip_norm=self._clip_norm if noised else math.inf,
            noise_scale=self._sigma,
            releases=self.count,
            sampling=self._sampling,
            sensitivity=sensitivity(self._clip_norm) if noised else None,
            touched=self._rows,
            nominal_mu=self.nominal_mu,
            nominal_touched=self._nominal_touched or 0.0,
            rigorous_mu=mu,
            epsilon=epsilon_of_mu(mu, self._delta),
            delta=self._delta,
            uncovered=uncovered,
            covered=noised and not uncovered,
            note=self._note,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the counts for a snapshot."""
        return {"count": self.count, "rows": self._rows, "nominal_rows": self._nominal_rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; what was released after that snapshot is not known."""
        self.count, self._rows, self._nominal_rows = state["count"], state["rows"], state["nominal_rows"]
        self._is_restored = True


def without_guarantee(record: PrivacyRecord) -> PrivacyRecord:
    """Return the line as it holds when its noise can be made again from the run's seed: nothing is covered."""
    if record.mechanism == "none" or NO_GUARANTEE in record.uncovered:
        return record
    note = f"{NO_GUARANTEE}; {record.note}" if record.note else NO_GUARANTEE
    return dataclasses.replace(record, covered=False, uncovered=(NO_GUARANTEE, *record.uncovered), note=note)


def budgets(records: Iterable[PrivacyRecord]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return what the ledger's lines guarantee, by party and message type, JSON-ready, for a run's result."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for record in sorted(records, key=lambda record: (record.party, record.message_type)):
        lines = found.setdefault(record.party, {})
        lines[_free(record.message_type, lines)] = {
            "neighbour": record.neighbour,
            "mechanism": record.mechanism,
            "releases": record.releases,
            "noise_scale": record.noise_scale,
            "nominal_mu": record.nominal_mu,
            "rigorous_mu": record.rigorous_mu,
            "epsilon": record.epsilon,
            "delta": record.delta,
            "covered": record.covered,
            "uncovered": list(record.uncovered),
            "note": record.note,
        }
    return found


def _free(name: str, taken: Mapping[str, Any]) -> str:
    """Return a name for one more line of a message type: of labels and rows, or of several actors of one party."""
    names = itertools.chain([name], (f"{name} {number}" for number in itertools.count(2)))
    return next(one for one in names if one not in taken)
