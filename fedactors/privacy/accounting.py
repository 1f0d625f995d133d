"""Privacy accounts: what mechanisms guarantee, releases counted where they happen, and claims recomputed from lines.

    actor       self.releases = GaussianReleases("Embedding", clip_norm=c, sigma=sigma, delta=1e-5, note=...)
                self.releases.add()                                        # beside the line that adds the noise
                self.record_privacy(self.releases.record(self.party))     # at the end: a line of the privacy ledger
    driver      await runtime.settle(); extra = {"privacy": budgets(runtime.privacy_records)}
    an audit    check_record(line), claims(lines)                          # every figure recomputed

**What mechanisms guarantee.** Gaussian differential privacy (Dong, Roth and Su, 2022) composes as
``mu = sqrt(sum mu_i^2)`` and converts to (epsilon, delta) exactly. DP-SGD under Poisson sampling goes through Opacus'
accountants. No function claims amplification by sampling unless the batches were really Poisson samples that the
observer does not know. Neighbouring relation: `Neighbours` "replace" (one record changes its values: sensitivity 2c
after clipping to c) or "add-remove" (one record is present or not: sensitivity c).

**Releases.** `GaussianReleases` has a ``state_dict``: it belongs into the actor's ``state``, so that a resumed run has
counted what it released until the checkpoint. What a killed process released after that nobody knows: a resumed line
covers nothing.

**Claims.** A line states its ingredients (mechanism, sensitivity, noise, how many releases one record touches,
sampling); its mu and epsilon follow from them and from nothing else. A party's claim composes all its lines that speak
of the same neighbours: Gaussian-DP parameters add up as squares, a line that is known as epsilon alone is converted,
and one line without a guarantee leaves the party without one.

Lines on a row that is there or not (`PRESENCE`), or a client (`CLIENT_PRESENCE`), are counted in the party's claim for
a *replaced* one, which is one less and another one more: at twice their mu, or, where secret samples amplify, by group
privacy at the delta that they state. An amplified line has a mu too, that of all its steps without amplification, and
the better of both counts. All lines of all parties together then make the claim for a joined tuple, which has a row
with each of them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedactors.errors import BadInput
from fedactors.privacy.noise import mu_of_epsilon

Neighbours = Literal["replace", "add-remove"]
Sampling = Literal["poisson", "shuffled", "known-batches", "full"]
Accountant = Literal["rdp", "prv"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyRecord:
    """One line of the privacy ledger: what a party released and what that release guarantees."""

    party: str
    """The organisation whose data was released."""
    message_type: str
    """Name of the message class that carried it."""
    mechanism: str
    """``gaussian``, ``laplace``, ``randomised-response``, ``dp-sgd``, ``secure-sum`` or ``none``."""
    neighbour: str = "row"
    """What one of two neighbours has otherwise: ``row``, ``label``, ``node`` or ``tuple``; a party's lines on the same
    compose."""
    clip_norm: float = math.inf
    """Bound of a record's L2 norm (or the declared range) before noise."""
    noise_scale: float = 0.0
    """Standard deviation of the noise."""
    releases: int = 1
    """How often a record was released, re-publications included."""
    sampling: str = "known-batches"
    """How batches were drawn."""
    sensitivity: float | None = None
    """How far one record moves one release: in L2 for Gaussian noise, in L1 for Laplace; None: it is not stated."""
    touched: int = 0
    """How many releases (rows, sums, steps) one record may move, each by `sensitivity`; of Poisson samples all."""
    sample_rate: float = 1.0
    """Probability with which a record takes part in a step, if batches are Poisson samples that nobody else knows."""
    num_values: int = 0
    """Of randomised response: how many values there are; `noise_scale` is the probability of another one."""
    nominal_mu: float | None = None
    """The Gaussian-DP parameter that the paper's formula claims, if it claims one."""
    nominal_touched: float = 0.0
    """How many releases, each by `sensitivity`, that formula says one record moves."""
    rigorous_mu: float | None = None
    """The Gaussian-DP parameter that holds per record."""
    epsilon: float | None = None
    """The (epsilon, delta) that holds per record; None or inf is no guarantee."""
    delta: float | None = None
    """See ``epsilon``."""
    uncovered: tuple[str, ...] = ()
    """Ways in which the record is read that this noise does not cover; with any of them nothing is guaranteed."""
    covered: bool = False
    """Whether a guarantee holds at all."""
    note: str = ""
    """Neighbouring relation, and what is not covered."""

    def __post_init__(self) -> None:
        """Refuse to call a release covered when no finite guarantee is given."""
        finite = any(value is not None and math.isfinite(value) for value in (self.rigorous_mu, self.epsilon))
        if self.covered and not finite:
            raise ValueError(f"{self.party}/{self.message_type}: covered needs a finite rigorous_mu or epsilon")
        if self.covered and self.uncovered:
            raise ValueError(f"{self.party}/{self.message_type}: covered, yet not: {'; '.join(self.uncovered)}")


@dataclass(frozen=True)
class Planned:
    """A line of what the approved settings release of an actor's rows, which a site checks before anything is."""

    record: PrivacyRecord


@dataclass(frozen=True)
class Unaccounted:
    """Why an actor cannot say what it released: before its rows are known, for example."""

    reason: str


@dataclass(frozen=True)
class Released:
    """An actor has released something: from then on its party's account must be known."""


def sensitivity(clip_norm: float, neighbours: Neighbours = "replace") -> float:
    """Return the L2 distance that one record can move a clipped row or a sum of clipped rows."""
    return 2 * clip_norm if neighbours == "replace" else clip_norm


def compose_mu(parts: Iterable[float]) -> float:
    """Return ``sqrt(sum mu_i^2)``, the Gaussian-DP parameter of several releases (Dong et al., Corollary 2)."""
    return math.sqrt(sum(mu**2 for mu in parts))


def gaussian_mu(*, clip_norm: float, sigma: float, releases: float, neighbours: Neighbours = "replace") -> float:
    """Return the rigorous mu of `releases` Gaussian releases of one record, ``sensitivity sqrt(releases) / sigma``.

    No noise or no clipping gives inf: no guarantee. No release gives 0.
    """
    if releases == 0:
        return 0.0
    if sigma <= 0 or math.isinf(clip_norm):
        return math.inf
    return sensitivity(clip_norm, neighbours) * math.sqrt(releases) / sigma


def delta_of_mu(mu: float, epsilon: float) -> float:
    """Return the smallest delta with (epsilon, delta)-DP for mu-GDP (Dong et al., Corollary 1)."""
    from scipy.special import log_ndtr

    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    log_first = float(log_ndtr(-epsilon / mu + mu / 2))
    log_second = epsilon + float(log_ndtr(-epsilon / mu - mu / 2))
    return max(0.0, -math.exp(log_first) * math.expm1(min(0.0, log_second - log_first)))


@functools.lru_cache(maxsize=4096)
def epsilon_of_mu(mu: float, delta: float) -> float:
    """Return the smallest epsilon with (epsilon, delta)-DP for mu-GDP; inf when mu is."""
    if not 0 < delta < 1:
        raise ValueError(f"delta must be between 0 and 1, got {delta}")
    if math.isinf(mu):
        return math.inf
    if delta_of_mu(mu, 0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while delta_of_mu(mu, high) > delta:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of_mu(mu, middle) > delta else (low, middle)
        if high - low <= 1e-12 * max(1.0, high):
            break
    return high


def laplace_label_epsilon(deviation: float) -> float:
    """Return epsilon of `randomised_labels`, ``2 sqrt(2) / lambda``: changing a label moves its one-hot by 2 in L1."""
    return 2 * math.sqrt(2) / deviation if deviation > 0 else math.inf


def laplace_value_epsilon(value_range: float, deviation: float) -> float:
    """Return epsilon of `randomised_values`, ``sqrt(2) range / lambda``."""
    return math.sqrt(2) * value_range / deviation if deviation > 0 else math.inf


def dpsgd_epsilon(
    *,
    noise_multiplier: float,
    steps: int,
    delta: float,
    sampling: Sampling,
    sample_rate: float = 1.0,
    releases: int | None = None,
    accountant: Accountant = "rdp",
    neighbours: Neighbours = "add-remove",
) -> float:
    """Return epsilon of DP-SGD after `steps` noisy sums of clipped gradients.

    ``poisson``: amplified, by Opacus' accountant, with `sample_rate` the inclusion probability (add-remove only).
    Any other sampling is accounted without amplification: `releases` is how many steps a record took part in
    (for ``shuffled`` and ``known-batches`` one per epoch; for ``full`` every step).

    Raises:
        ValueError: numbers out of range, replace-one with Poisson sampling (Opacus' accountants do not cover it), or
            no `releases` where no amplification can be claimed.
    """
    if steps < 0 or noise_multiplier < 0 or not 0 < sample_rate <= 1:
        raise ValueError(f"steps {steps}, noise_multiplier {noise_multiplier}, sample_rate {sample_rate} out of range")
    if steps == 0:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    if sampling == "poisson":
        if neighbours != "add-remove":
            raise ValueError("Poisson amplification is accounted for add-remove neighbours only")
        return _opacus_epsilon(accountant, noise_multiplier, sample_rate, steps, delta)
    if sampling == "full":
        releases = steps
    if releases is None:
        raise ValueError(
            f"sampling {sampling!r}: no amplification can be claimed without Poisson sampling; "
            "give releases, the number of steps in which a record takes part"
        )
    mu = gaussian_mu(clip_norm=1.0, sigma=noise_multiplier, releases=releases, neighbours=neighbours)
    return epsilon_of_mu(mu, delta)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordPrivacy:
    """How DP-SGD hides each row's gradient, in Poisson batches that nobody else knows."""

    clip_norm: float
    """C, of one row's gradient."""
    noise_multiplier: float
    """z: deviation of the noise on a sum, in clip norms."""
    batch_size: int
    """Rows that are expected in a step."""
    num_epochs: int = 1
    """How often a row is expected in a step in one call."""

    def sample_rate(self, num_rows: int) -> float:
        """Return q, the probability of a row."""
        return min(1.0, self.batch_size / num_rows)

    def num_steps(self, num_rows: int) -> int:
        """Return the steps of one call."""
        return self.num_epochs * math.ceil(num_rows / self.batch_size)

    def epsilon(self, sample_rate: float, num_steps: int, delta: float) -> float:
        """Return what so many steps cost one row that is there or not."""
        return dpsgd_epsilon(
            noise_multiplier=self.noise_multiplier,
            steps=num_steps,
            delta=delta,
            sampling="poisson" if sample_rate < 1 else "full",
            sample_rate=sample_rate,
        )

    def record(
        self, party: str, message_type: str, sample_rate: float, num_steps: int, delta: float, *, is_restored: bool
    ) -> PrivacyRecord:
        """Return a party's line of the privacy ledger: what no row of it exceeds."""
        rate, steps = sample_rate, num_steps
        uncovered = (INTERRUPTED,) if is_restored else ()
        return PrivacyRecord(
            party=party,
            message_type=message_type,
            mechanism="dp-sgd",
            neighbour=ROW_PRESENCE,
            clip_norm=self.clip_norm,
            noise_scale=self.noise_multiplier * self.clip_norm,
            releases=steps,
            sampling="poisson" if rate < 1 else "full",
            sensitivity=self.clip_norm,
            touched=steps,
            sample_rate=rate,
            rigorous_mu=None if rate < 1 else math.sqrt(steps) / self.noise_multiplier,
            epsilon=self.epsilon(rate, steps, delta),
            delta=delta,
            uncovered=uncovered,
            covered=not uncovered,
            note="one row is there or not; the number of rows is public",
        )


@dataclass(frozen=True)
class ClientPrivacy:
    """How noise hides each client's change of a model, clipped to a norm of 1: in units of the clip norm."""

    noise_multiplier: float
    """z: deviation of the noise on a change, or on a sum of changes, in clip norms."""
    sample_rate: float = 1.0
    """Probability with which a client takes part, drawn in secret (Poisson); 1: no amplification is claimed."""

    def epsilon(self, num_releases: int, delta: float) -> float:
        """Return what so many releases cost a client that is there or not."""
        return dpsgd_epsilon(
            noise_multiplier=self.noise_multiplier,
            steps=num_releases,
            delta=delta,
            sampling="poisson" if self.sample_rate < 1 else "full",
            sample_rate=self.sample_rate,
        )

    def record(
        self, party: str, message_type: str, num_releases: int, delta: float, note: str, *, is_restored: bool
    ) -> PrivacyRecord:
        """Return a party's line of the privacy ledger: what no client of it exceeds."""
        is_secret, uncovered = self.sample_rate < 1, (INTERRUPTED,) if is_restored else ()
        return PrivacyRecord(
            party=party,
            message_type=message_type,
            mechanism="gaussian",
            neighbour=CLIENT_PRESENCE,
            clip_norm=1.0,
            noise_scale=self.noise_multiplier,
            releases=num_releases,
            sampling="poisson" if is_secret else "full",
            sensitivity=1.0,
            touched=num_releases,
            sample_rate=self.sample_rate,
            rigorous_mu=None if is_secret else math.sqrt(num_releases) / self.noise_multiplier,
            epsilon=self.epsilon(num_releases, delta),
            delta=delta,
            uncovered=uncovered,
            covered=not uncovered,
            note=f"in units of the clip norm; one client's rows are there or not; {note}",
        )


@functools.lru_cache(maxsize=64)
def dpsgd_noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    steps: int,
    sampling: Sampling,
    sample_rate: float = 1.0,
    releases: int | None = None,
    accountant: Accountant = "rdp",
    neighbours: Neighbours = "add-remove",
    tolerance: float = 1e-3,
) -> float:
    """Return a noise multiplier with which `dpsgd_epsilon` is at most `epsilon`, near the smallest."""
    if not epsilon > 0:
        raise ValueError(f"epsilon must be greater than 0, got {epsilon}")
    given: dict[str, Any] = {"sample_rate": sample_rate, "releases": releases, "neighbours": neighbours}
    given |= {"steps": steps, "delta": delta, "sampling": sampling, "accountant": accountant}
    high = 1.0
    while dpsgd_epsilon(noise_multiplier=high, **given) > epsilon:
        high *= 2
        if high > 1e7:
            raise ValueError(f"no noise below a multiplier of 1e7 reaches epsilon {epsilon}")
    low = high / 2 if high > 1 else 0.05
    while high - low > tolerance * high:
        middle = (low + high) / 2
        low, high = (middle, high) if dpsgd_epsilon(noise_multiplier=middle, **given) > epsilon else (low, middle)
    return high


@functools.lru_cache(maxsize=4096)
def _opacus_epsilon(
    accountant: Accountant, noise_multiplier: float, sample_rate: float, steps: int, delta: float
) -> float:
    from opacus.accountants import PRVAccountant, RDPAccountant
    from opacus.accountants.analysis.rdp import get_privacy_spent

    if accountant == "prv":
        made = PRVAccountant()
        made.history = [(noise_multiplier, sample_rate, steps)]
        return float(made.get_epsilon(delta=delta))
    with warnings.catch_warnings():
        # it warns when its best order is the first or last that it tries: the bound holds, only loosely
        warnings.filterwarnings("ignore", message="Optimal order")
        divergence = _divergence(noise_multiplier, sample_rate) * steps
        return float(get_privacy_spent(orders=RDPAccountant.DEFAULT_ALPHAS, rdp=divergence, delta=delta)[0])


@functools.lru_cache(maxsize=64)
def _divergence(noise_multiplier: float, sample_rate: float) -> Any:
    """Return the Renyi divergence of one step at each of Opacus' orders."""
    from opacus.accountants import RDPAccountant
    from opacus.accountants.analysis.rdp import compute_rdp

    orders = RDPAccountant.DEFAULT_ALPHAS
    return compute_rdp(q=sample_rate, noise_multiplier=noise_multiplier, steps=1, orders=orders)


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


PRESENCE = "row that is there or not"
CLIENT_PRESENCE = "client that is there or not"
ROW_PRESENCE = "row of a client that is there or not"
"""Of horizontal data, where no row is joined with another party's."""
_REPLACED = {PRESENCE: "row", CLIENT_PRESENCE: "client", ROW_PRESENCE: "row"}
"""In the claim for which replaced record a line on one that is there or not is counted."""
JOINED = "joined tuple"
EVERYBODY = "all parties"
"""Whose claim that for a joined tuple is."""
_RELATIVE = 1e-6
_SMALLEST = 100.0
"""Group privacy looks for a delta down to the stated one times e to minus this."""
_NO_NOISE = ("none", "secure-sum")
_PURE = ("laplace", "randomised-label", "randomised-response")


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What ingredients amount to: a Gaussian-DP parameter where there is one, and epsilon at the line's delta."""

    mu: float | None
    epsilon: float
    delta: float = 0.0
    """Of `epsilon`; 0 where it holds without."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a party is promised for one of its records."""

    party: str
    neighbour: str
    mu: float
    """inf where a line has no Gaussian-DP parameter."""
    epsilon: float
    delta: float
    covered: bool
    uncovered: tuple[str, ...]
    """Why it is not covered."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """One line of a ledger beside its recomputation."""

    record: PrivacyRecord
    mu: float | None
    epsilon: float | None
    agrees: bool
    reason: str = ""
    """Why it does not agree, or could not be recomputed."""

    @property
    def figures(self) -> tuple[float, ...]:
        """What was recomputed and is finite."""
        found = (self.mu, self.epsilon, nominal(self.record))
        return tuple(value for value in found if value is not None and math.isfinite(value))


def recompute(record: PrivacyRecord) -> Budget | None:
    """Return what a line's ingredients amount to; None when it does not state them.

    Raises:
        BadInput: a mechanism that is not known, or numbers out of range.
    """
    if record.releases == 0:
        return Budget(mu=0.0, epsilon=0.0)
    if record.mechanism in _NO_NOISE:
        return Budget(mu=math.inf, epsilon=math.inf)
    if record.sensitivity is None:
        return None
    if record.noise_scale < 0 or record.touched < 0 or record.sensitivity < 0:
        raise BadInput(f"{record.party}/{record.message_type}: negative noise, sensitivity or number of releases")
    if record.touched == 0:
        return Budget(mu=0.0, epsilon=0.0)
    if record.mechanism == "randomised-response":
        share = record.noise_scale
        one = math.log((1 - share) * (record.num_values - 1) / share) if 0 < share < 1 else math.inf
        return Budget(mu=mu_of_epsilon(record.touched * one), epsilon=record.touched * one)
    multiplier = record.noise_scale / record.sensitivity if record.sensitivity else math.inf
    if record.mechanism in ("laplace", "randomised-label"):
        one = math.sqrt(2) / multiplier if multiplier > 0 else math.inf
        return Budget(mu=mu_of_epsilon(record.touched * one), epsilon=record.touched * one)
    if record.mechanism not in ("gaussian", "dp-sgd"):
        raise BadInput(f"{record.party}/{record.message_type}: mechanism {record.mechanism!r} is not known")
    if record.delta is None:
        return None
    if multiplier == math.inf:  # nothing moves; samplers' accountants do not end with it
        return Budget(mu=0.0, epsilon=0.0, delta=record.delta)
    if record.sampling == "poisson" and record.sample_rate < 1:
        epsilon = dpsgd_epsilon(
            noise_multiplier=multiplier,
            steps=record.touched,
            delta=record.delta,
            sampling="poisson",
            sample_rate=record.sample_rate,
        )
        return Budget(mu=None, epsilon=epsilon, delta=record.delta)
    mu = math.sqrt(record.touched) / multiplier if multiplier > 0 else math.inf
    return Budget(mu=mu, epsilon=epsilon_of_mu(mu, record.delta), delta=record.delta)


def nominal(record: PrivacyRecord) -> float | None:
    """Return what a paper's formula gives for a line's ingredients; None where none is stated."""
    if record.sensitivity is None or not record.nominal_touched:
        return None
    if record.noise_scale <= 0:
        return math.inf
    return record.sensitivity * math.sqrt(record.nominal_touched) / record.noise_scale


def check_record(record: PrivacyRecord) -> Checked:
    """Recompute one line and say whether what it states follows."""
    found = recompute(record)
    if found is None:
        figures = (record.nominal_mu, record.rigorous_mu, record.epsilon)
        stated = [value for value in figures if value is not None and math.isfinite(value)]
        reason = "states a figure without sensitivity, touched releases or delta" if stated else ""
        return Checked(record=record, mu=None, epsilon=None, agrees=not stated, reason=reason)
    problems = []
    for name, told, holds in (
        ("nominal_mu", record.nominal_mu, nominal(record)),
        ("rigorous_mu", record.rigorous_mu, found.mu),
        ("epsilon", record.epsilon, found.epsilon),
    ):
        # a figure that is left out, or that JSON has no number for, claims nothing
        if told is not None and math.isfinite(told) and (holds is None or not _close(told, holds)):
            problems.append(
                f"{name} {told:.6g} is stated, its ingredients give {'none' if holds is None else holds:.6g}"
            )
    covers = math.isfinite(found.epsilon) and not record.uncovered
    if record.covered and not covers:
        problems.append("covered is stated, and no guarantee holds")
    return Checked(record=record, mu=found.mu, epsilon=found.epsilon, agrees=not problems, reason="; ".join(problems))


def claims(records: Iterable[PrivacyRecord], *, as_if_secret: bool = False) -> dict[tuple[str, str], Claim]:
    """Return each party's claim by (party, neighbour), composed of all its lines.

    Args:
        records: the ledger's lines.
        as_if_secret: what would hold if reproducible noise were drawn from the operating system: for audits.
    """
    lines = list(records)
    in_presence = {line.party for line in lines if line.neighbour == PRESENCE}
    groups: dict[tuple[str, str], list[PrivacyRecord]] = {}
    for line in lines:
        is_part = line.party in in_presence and line.neighbour in (PRESENCE, "row", "label")
        if is_part:
            groups.setdefault((line.party, "row"), []).append(line)
            groups.setdefault((EVERYBODY, JOINED), []).append(line)
        if not is_part or line.neighbour == "label":
            groups.setdefault((line.party, _REPLACED.get(line.neighbour, line.neighbour)), []).append(line)
    return {key: _claim(key, lines, as_if_secret) for key, lines in sorted(groups.items())}


def _claim(key: tuple[str, str], lines: list[PrivacyRecord], as_if_secret: bool) -> Claim:
    party, neighbour = key
    why: dict[str, None] = {}
    plain: list[Budget] = []
    pure: list[Budget] = []
    amplified: list[Budget] = []
    unamplified: list[Budget] = []
    for line in lines:
        found, whose = recompute(line), f"{line.party}/" if party == EVERYBODY else ""
        for reason in line.uncovered:
            if not (as_if_secret and reason == NO_GUARANTEE):
                why[whose + reason] = None
        if found is None or not math.isfinite(found.epsilon):
            why[f"{whose}{line.message_type}: no noise"] = None
        elif found.mu is not None:
            (pure if line.mechanism in _PURE else plain).append(_for_replaced(line, found))
        else:
            amplified.append(_for_replaced(line, found))
            every_step = dataclasses.replace(line, sampling="known-batches", sample_rate=1.0)
            unamplified.append(_for_replaced(every_step, recompute(every_step) or found))
    mus = [one.mu or 0.0 for one in [*plain, *unamplified, *pure]]
    best = _together([*plain, *unamplified], pure)
    if amplified:
        rest = _together(plain, pure)
        epsilon = rest.epsilon + sum(one.epsilon for one in amplified)
        if epsilon < best.epsilon:
            best = Budget(mu=None, epsilon=epsilon, delta=rest.delta + sum(one.delta for one in amplified))
    return Claim(
        party=party,
        neighbour=neighbour,
        mu=math.inf if why else compose_mu(mus),
        epsilon=math.inf if why else best.epsilon,
        delta=best.delta,
        covered=not why,
        uncovered=tuple(why),
    )


def _together(plain: list[Budget], pure: list[Budget]) -> Budget:
    """Return Gaussian releases and pure epsilons composed: these add up, or count as the mus that they imply."""
    epsilon = sum(one.epsilon for one in pure)
    if not (noised := [one for one in plain if one.delta]):
        return Budget(mu=None, epsilon=epsilon)
    delta = max(one.delta for one in noised)
    mus = [one.mu or 0.0 for one in plain]
    alone = epsilon_of_mu(compose_mu(mus), delta)
    implied = epsilon_of_mu(compose_mu([*mus, *(one.mu or 0.0 for one in pure)]), delta)
    return Budget(mu=None, epsilon=min(epsilon + alone, implied), delta=delta)


def _for_replaced(line: PrivacyRecord, found: Budget) -> Budget:
    """Return what a line amounts to for a replaced row, which is two changes of one that is there or not."""
    if line.neighbour not in _REPLACED:
        return found
    if found.mu is not None:
        mu = 2 * found.mu
        return Budget(
            mu=mu, epsilon=epsilon_of_mu(mu, found.delta) if found.delta else 2 * found.epsilon, delta=found.delta
        )

    def at(log_delta: float) -> float:
        again = recompute(dataclasses.replace(line, delta=math.exp(log_delta)))
        assert again is not None
        return again.epsilon

    # two changes cost twice epsilon(d) at (1 + e^epsilon(d)) d: of all d the largest that keeps the line's own delta
    stated = math.log(found.delta)
    low, high = stated - _SMALLEST, stated
    for _ in range(60):
        middle = (low + high) / 2
        keeps = middle + float(np.logaddexp(0.0, at(middle))) <= stated
        low, high = (middle, high) if keeps else (low, middle)
    keeps = low + float(np.logaddexp(0.0, at(low))) <= stated
    return Budget(mu=None, epsilon=2 * at(low) if keeps else math.inf, delta=found.delta)


def record_from(line: Mapping[str, Any]) -> PrivacyRecord:
    """Return the record of a line of ``privacy.jsonl``; JSON's null is None, or infinite where no None is allowed.

    Raises:
        BadInput: a line that is no privacy record.
    """
    known = {field.name: field for field in dataclasses.fields(PrivacyRecord)}
    unknown = sorted(set(line) - set(known))
    if unknown:
        raise BadInput(f"privacy.jsonl: {unknown[0]!r} is no field of a privacy record")
    values = dict(line)
    if values.get("clip_norm", 0.0) is None:
        values["clip_norm"] = math.inf
    if "uncovered" in values:
        values["uncovered"] = tuple(values["uncovered"])
    try:
        # `covered` is judged by `check_record`: a line that states it wrongly is to be read, and then refused
        record = PrivacyRecord(**{**values, "covered": False})
    except TypeError as error:
        raise BadInput(f"privacy.jsonl: a line is no privacy record: {error}") from None
    object.__setattr__(record, "covered", bool(values.get("covered", False)))
    return record


def _close(told: float, holds: float) -> bool:
    return math.isclose(told, holds, rel_tol=_RELATIVE, abs_tol=1e-12)
