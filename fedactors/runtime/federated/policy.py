"""What a site lets run, what it lets run without asking its person, and the privacy budget of its data over all runs.

In site.toml:

    [policy]
    approve = "policy"                        # what this table allows runs at once; "person" (default): each is asked
    coordinators = ["bank"]                   # who may propose; left out: every site
    [policy.protocols.pubsub-vfl]             # what may run; left out: everything
    num_epochs = { at_most = 20 }             # a setting: { at_least, at_most }, a list of values, or one value

    [data.orders]
    budget = { epsilon = 8.0, delta = 1e-4 }  # over all runs, by basic composition: epsilons and deltas add up
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

from fedactors.errors import BadInput
from fedactors.inspection import describe_protections
from fedactors.plugins import Protocol
from fedactors.privacy.accounting import PrivacyRecord
from fedactors.privacy.claims import claims
from fedactors.validation import shown

if TYPE_CHECKING:
    from fedactors.runtime.federated.folders import SiteFolder
    from fedactors.runtime.federated.proposal import Proposal

_STRICT = ConfigDict(extra="forbid", strict=True)
ANY = "any record"
"""The neighbours of what a run announced and did not account for: it counts for all kinds."""


@pydantic_dataclass(frozen=True, kw_only=True, config=_STRICT)
class Amount:
    """An (epsilon, delta)."""

    epsilon: Annotated[float, Field(ge=0)]
    delta: Annotated[float, Field(ge=0)] = 0.0

    def __add__(self, other: Amount) -> Amount:
        return Amount(epsilon=self.epsilon + other.epsilon, delta=self.delta + other.delta)

    def within(self, cap: Amount) -> bool:
        """Say whether it is no more than `cap`, which it is not if either is no number."""
        return self.epsilon <= cap.epsilon and self.delta <= cap.delta

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:.6g} at delta {self.delta:.3g}"


NOTHING, EVERYTHING = Amount(epsilon=0.0), Amount(epsilon=math.inf, delta=1.0)


@pydantic_dataclass(frozen=True, kw_only=True, config=_STRICT)
class Policy:
    """See the module."""

    approve: Literal["person", "policy"] = "person"
    coordinators: list[str] | None = None
    protocols: dict[str, dict[str, Any]] | None = None

    def check(self, site: str, coordinator: str, protocol: str, config: Any) -> None:
        """Check that a run may be.

        Raises:
            BadInput: naming the key of the policy, what the run asks for, and what is allowed.
        """
        if self.coordinators is not None and coordinator not in self.coordinators:
            allowed = ", ".join(self.coordinators) or "nobody"
            raise BadInput(f"{site}: policy.coordinators: {coordinator} is not allowed: {allowed}")
        if self.protocols is None:
            return
        if protocol not in self.protocols:
            allowed = ", ".join(self.protocols) or "none"
            raise BadInput(f"{site}: policy.protocols: {protocol} is not allowed: {allowed}")
        for setting, rule in self.protocols[protocol].items():
            where = f"{site}: policy.protocols.{protocol}.{setting}"
            if not hasattr(config, setting):
                raise BadInput(f"{where}: there is no such setting")
            value = getattr(config, setting)
            if not _allows(rule, value, where):
                raise BadInput(f"{where}: {shown(value)} is not allowed: {shown(rule)}")


def _allows(rule: Any, value: Any, where: str) -> bool:
    if isinstance(rule, list):
        return value in rule
    if not isinstance(rule, dict):
        return bool(value == rule)
    is_rule = set(rule) <= {"at_least", "at_most"} and all(isinstance(bound, int | float) for bound in rule.values())
    if not (rule and is_rule):
        raise BadInput(f"{where}: {shown(rule)} is no rule: give at_least and at_most, a list, or a value")
    if not isinstance(value, int | float):
        return False
    return bool(rule.get("at_least", -math.inf) <= value <= rule.get("at_most", math.inf))


def parse_budgets(pairs: Iterable[tuple[str, str]]) -> dict[str, Amount]:
    """Return what a run announces to take of each site's data, from SITE and ``EPSILON:DELTA``.

    Raises:
        BadInput: something else, or a site twice.
    """
    found: dict[str, Amount] = {}
    for site, text in pairs:
        epsilon, _, delta = text.partition(":")
        try:
            made = Amount(epsilon=float(epsilon), delta=float(delta or 0))
        except ValueError:
            made = EVERYTHING
        if site in found or not (0 <= made.epsilon < math.inf and 0 <= made.delta < 1):
            given = shown(f"{site}={text}")
            raise BadInput(f"--budget: {given} is not allowed: give SITE=EPSILON:DELTA, each site once")
        found[site] = made
    return found


def taken_by(party: str, records: Iterable[PrivacyRecord]) -> dict[str, Amount]:
    """Return what a party's lines of the privacy ledger amount to, by kind of neighbours; unsaid: everything."""
    found = {
        claim.neighbour: Amount(epsilon=claim.epsilon, delta=claim.delta) if claim.covered else EVERYTHING
        for claim in claims(records).values()
        if claim.party == party
    }
    return found or {ANY: EVERYTHING}


def as_logged(taken: Mapping[str, Amount]) -> dict[str, list[float | None]]:
    """Return amounts as a log has them: no number stands for what is not bounded."""
    return {k: [a.epsilon if math.isfinite(a.epsilon) else None, a.delta] for k, a in taken.items()}


def spent(lines: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Amount]]:
    """Return what runs have taken of each of a site's data, by kind of neighbours, from the lines of its log.

    A run that is under way, or of which nobody knows how it ended, counts with what it announced.
    """
    runs: dict[str, tuple[str, dict[str, list[float | None]]]] = {}
    for line in lines:
        if line["what"] == "opened":
            runs[line["run"]] = line["data"], {ANY: line["announced"]}
        elif line["what"] == "ended" and line["who"] == "site" and line["run"] in runs:
            runs[line["run"]] = runs[line["run"]][0], line["taken"]
    found: dict[str, dict[str, Amount]] = {}
    for data, taken in runs.values():
        of = found.setdefault(data, {})
        for neighbour, (epsilon, delta) in taken.items():
            amount = Amount(epsilon=math.inf if epsilon is None else epsilon, delta=float(delta or 0.0))
            of[neighbour] = of.get(neighbour, NOTHING) + amount
    return found


def in_all(taken: Mapping[str, Amount]) -> Amount:
    """Return what bounds what was taken for every kind of neighbours."""
    others = [amount for neighbour, amount in taken.items() if neighbour != ANY]
    epsilon = max((amount.epsilon for amount in others), default=0.0)
    delta = max((amount.delta for amount in others), default=0.0)
    return Amount(epsilon=epsilon, delta=delta) + taken.get(ANY, NOTHING)


def check_budget(
    folder: SiteFolder, name: str, cap: Amount, proposal: Proposal, protocol: Protocol, config: Any
) -> None:
    """Check that a run announces what it takes of data with a budget, that it adds noise, and that so much is left.

    Raises:
        BadInput: naming the data, what is announced and what is left.
    """
    site = folder.name
    where = f"{site}: data.{name}.budget"
    announced = proposal.budget.get(site)
    if announced is None:
        raise BadInput(f"{where}: the run announces none: give --budget {site}=EPSILON:DELTA")
    if not any(one["kind"] == "noise" and one["on"] for one in describe_protections(protocol, config)):
        raise BadInput(f"{where}: the run adds no noise, so that it would take all of it")
    before = in_all(spent(folder.log()).get(name, {}))
    if not (before + announced).within(cap):
        raise BadInput(f"{where}: {announced} is not allowed: {before} of {cap} is taken already")
