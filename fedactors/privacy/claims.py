"""From the lines of a privacy ledger to what each party is promised, and back: every figure recomputed.

A line states its ingredients (mechanism, sensitivity, noise, how many releases one record touches, sampling); its mu
and epsilon follow from them and from nothing else. A party's claim composes all its lines that speak of the same
neighbours: Gaussian-DP parameters add up as squares, a line that is known as epsilon alone is converted, and one line
without a guarantee leaves the party without one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedactors.errors import BadInput
from fedactors.privacy.accounting import PrivacyRecord, compose_mu, dpsgd_epsilon, epsilon_of_mu
from fedactors.privacy.laws import mu_of_epsilon
from fedactors.privacy.releases import NO_GUARANTEE

_RELATIVE = 1e-6
_NO_NOISE = ("none", "secure-sum")


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What ingredients amount to: a Gaussian-DP parameter where there is one, and epsilon at the line's delta."""

    mu: float | None
    epsilon: float


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
    if record.sampling == "poisson" and record.sample_rate < 1:
        epsilon = dpsgd_epsilon(
            noise_multiplier=multiplier,
            steps=record.touched,
            delta=record.delta,
            sampling="poisson",
            sample_rate=record.sample_rate,
        )
        return Budget(mu=None, epsilon=epsilon)
    mu = math.sqrt(record.touched) / multiplier if multiplier > 0 else math.inf
    return Budget(mu=mu, epsilon=epsilon_of_mu(mu, record.delta))


def check_record(record: PrivacyRecord) -> Checked:
    """Recompute one line and say whether what it states follows."""
    found = recompute(record)
    if found is None:
        stated = [value for value in (record.rigorous_mu, record.epsilon) if value is not None and math.isfinite(value)]
        reason = "states a figure without sensitivity, touched releases or delta" if stated else ""
        return Checked(record=record, mu=None, epsilon=None, agrees=not stated, reason=reason)
    problems = []
    for name, told, holds in (
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
    groups: dict[tuple[str, str], list[PrivacyRecord]] = {}
    for record in records:
        groups.setdefault((record.party, record.neighbour), []).append(record)
    return {key: _claim(key, lines, as_if_secret) for key, lines in sorted(groups.items())}


def _claim(key: tuple[str, str], lines: list[PrivacyRecord], as_if_secret: bool) -> Claim:
    party, neighbour = key
    why: dict[str, None] = {}
    mus: list[float] = []
    epsilons: list[float] = []
    deltas = [line.delta for line in lines if line.delta is not None]
    for line in lines:
        found = recompute(line)
        for reason in line.uncovered:
            if not (as_if_secret and reason == NO_GUARANTEE):
                why[reason] = None
        if found is None or not math.isfinite(found.epsilon):
            why[f"{line.message_type}: no noise"] = None
        elif found.mu is None:
            epsilons.append(found.epsilon)
        else:
            mus.append(found.mu)
    delta = max(deltas, default=0.0)
    mu = math.inf if why or epsilons else compose_mu(mus)
    if why:
        epsilon = math.inf
    elif not deltas:
        # pure lines alone: their ratios add up
        epsilon = sum(found.epsilon for line in lines if (found := recompute(line)) is not None)
    else:
        # Gaussian lines as one, and by basic composition with those that are known at a delta of their own
        epsilon = epsilon_of_mu(compose_mu(mus), delta) + sum(epsilons)
        delta *= len(epsilons) + bool(mus)
    return Claim(
        party=party,
        neighbour=neighbour,
        mu=mu,
        epsilon=epsilon,
        delta=delta,
        covered=not why,
        uncovered=tuple(why),
    )


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
