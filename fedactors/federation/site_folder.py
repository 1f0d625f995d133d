"""A site's folder: what its person and its federation have written there, read and checked.

    federation.toml   name, version, authority, issuers (other CAs), [sites.NAME] address and certificate,
                      [hosts] party = site, [signed] the authority's signature of what stands before; the same at all
    site.toml         name, listen, carrier, proxy, wait_seconds, key_passphrase, crl; [policy]; [data.NAME] with the
                      keys of a party in a parties.toml, its task, and its privacy budget
    key.pem           the site's key; certificate.pem is taken from the federation's file
    known.json        the newest version of federation.toml and the newest revocation lists that were taken, and which
                      sites were met with a new key
    key.next.pem      the next key, from `fedactors site renew`: it becomes the key as soon as the federation's file
                      certifies it, and the site's log says so, signed with both

Files are read again when they have changed, for connections that are made from then on; those that are open go on.
A newer federation.toml with the authority's signature is taken from whichever site or relay has it (`take_over`).
Files that are wrong, or do not fit each other yet, change nothing: what was before holds, and `config_errors` says why.
It is one file because these files are read and checked against each other.

In site.toml:

    [policy]
    approve = "policy"                        # what this table allows runs at once; "person" (default): each is asked
    coordinators = ["bank"]                   # who may propose; left out: every site
    data = ["orders"]                         # what the policy answers for; a run with other data waits for a person
    colluders = 1                             # sites that may tell one another all: sums are of two more at least
    continuations = 20                        # how often a run may be gone on from, from whichever checkpoint
    return_days = 30                          # a site away from a run with a quorum for longer does not come back to it
    proposals_per_hour = 60                   # of one site
    queued_runs = 4                           # of one site, that wait for their turn
    queue_length = 32                         # of all sites; the first of each has room beyond it
    concurrent_runs = 2                       # under way at once; left out: one after another
    coordinator_runs = 1                      # of one site; left out: as many as there may be
    priority = { bank = 2 }                   # whose waiting runs begin first; 0 for others
    reservation_seconds = 300                 # a run whose turn has come begins within, or others who wait come first
    budget_per_run = { epsilon = 1.0, delta = 1e-5 }  # what a run may announce to take; left out: all that is left
    changed_data = "refuse"                   # of a run whose data changed after its approval; "warn" (default): log
    [policy.limits]                           # of each run: memory_gib, cpu_hours, hours, disk_gib, gpus, message_gib
    hours = 2.0
    [policy.totals]                           # of all runs together: memory_gib, disk_gib, gpus
    gpus = 2
    [[policy.queries]]                        # over tables, the whole task; any other one waits for a person
    sql = "SELECT ..."
    label = "clients.bad"
    type = "binary"                           # and classes, categorical
    [policy.protocols.pubsub-vfl]             # what may run; left out: everything
    num_epochs = { at_most = 20 }             # a setting: { at_least, at_most }, a list of values, or one value

    [data.orders]
    budget = { epsilon = 8.0, delta = 1e-4 }  # over all runs, by basic composition: epsilons and deltas add up

In a run, data are names for everybody (`DataName`), and at each site its own rows behind its own name.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import grp
import hashlib
import itertools
import json
import math
import os
import pwd
import ssl
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cryptography import x509
from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from fedactors.config import ignored
from fedactors.data.databases import SourceError, TableSource, postgres_settings
from fedactors.data.datasets.catalogue import Task
from fedactors.data.description import (
    IMAGE_FOLDERS,
    facts_of,
    read_files,
    read_party,
    read_samples,
    read_table,
    read_task,
)
from fedactors.data.layouts.graph import UserGraph
from fedactors.data.layouts.horizontal import HorizontalData, HorizontalFile
from fedactors.data.layouts.vertical import RelationalData, RelationalPartition, VerticalData
from fedactors.data.party_rows import PartyBlock, check_block, check_ids
from fedactors.data.query import QueryError, is_row_by_row
from fedactors.data.readers import Size
from fedactors.data.schema import MOST_CLASSES, HorizontalTask, Table, VerticalTask
from fedactors.errors import BadInput, FedactorsError
from fedactors.federation.audit_log import AUDIT, AuditLog
from fedactors.federation.audit_log import check as check_log
from fedactors.federation.identity import (
    FEDERATION,
    TLS_HOURS,
    Federation,
    KeyFile,
    Passphrase,
    Revoked,
    TokenKey,
    as_pem,
    check_name,
    checked,
    delegate,
    fingerprint,
    holds,
    is_signed_by,
    key_of,
    parse_address,
    parse_federation,
    public_bytes,
    read_key,
    read_private,
    read_public_key,
    read_revoked,
    tls,
    without_replaced,
    without_revoked,
)
from fedactors.inspection import describe_protections
from fedactors.messages.codec import wire_type
from fedactors.plugins import Protocol, find_protocol
from fedactors.privacy.accounting import PrivacyRecord, claims
from fedactors.runs.storage import PRIVATE_FILE, json_bytes, write_atomic
from fedactors.user_code import look_in
from fedactors.validation import (
    address_of,
    files_at,
    first_line,
    library_address,
    library_parts,
    path_of,
    read_text,
    read_tree,
    shown,
    without_controls,
)

if TYPE_CHECKING:
    from fedactors.federation.approval import Proposal

# --- policy and privacy budget ---

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

    def less(self, taken: Amount) -> Amount:
        """Return what is left when so much is taken; nothing where it is more."""
        epsilon = 0.0 if math.isinf(taken.epsilon) else max(0.0, self.epsilon - taken.epsilon)
        return Amount(epsilon=epsilon, delta=max(0.0, self.delta - taken.delta))

    def within(self, cap: Amount) -> bool:
        """Say whether it is no more than `cap`, which it is not if either is no number."""
        return self.epsilon <= cap.epsilon and self.delta <= cap.delta

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:.6g} at delta {self.delta:.3g}"


NOTHING, EVERYTHING = Amount(epsilon=0.0), Amount(epsilon=math.inf, delta=1.0)


_Above = Annotated[float, Field(gt=0, allow_inf_nan=False)]


MESSAGE_GIB = 0.25
"""Of one message between sites, where neither a run nor a policy says more."""


@pydantic_dataclass(frozen=True, kw_only=True, config=_STRICT)
class RunLimits:
    """What one run may take of a site's machine; None: unlimited."""

    memory_gib: _Above | None = None
    """Of its site's processes, beyond what they had when it began."""
    cpu_hours: _Above | None = None
    """Of processor time."""
    hours: _Above | None = None
    """From its first step to its end."""
    disk_gib: _Above | None = None
    """Of its files at the site."""
    gpus: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Of its actors at the site, together."""
    message_gib: _Above | None = None
    """Of one message between sites; None: 0.25, which a run exceeds only where it asks for more."""

    @property
    def message_bytes(self) -> int:
        """Bytes of one message between sites."""
        return int((MESSAGE_GIB if self.message_gib is None else self.message_gib) * (1 << 30))

    def within(self, most: RunLimits, site: str) -> RunLimits:
        """Return the smaller of each of two limits.

        Raises:
            BadInput: more is asked for than is allowed.
        """
        found = {}
        for name, allowed in vars(most).items():
            asked = getattr(self, name, None)
            if name == "message_gib":
                if asked is None:
                    found[name] = None if allowed is None else min(allowed, MESSAGE_GIB)
                    continue
                allowed = MESSAGE_GIB if allowed is None else allowed
            if asked is not None and allowed is not None and asked > allowed:
                said = f"{site}: policy.limits.{name}: {asked:g} is not allowed"
                raise BadInput(f"{said}: at most {allowed:g}").telling(said)
            found[name] = allowed if asked is None else asked
        return RunLimits(**found)

    def __str__(self) -> str:
        return ", ".join(f"{name} {most:g}" for name, most in vars(self).items() if most is not None) or "no limits"


OF_MACHINE = ("memory_gib", "cpu_hours", "disk_gib")
"""Limits of what is measured of processes: of actors in the site's process, all runs there have it in common."""


@pydantic_dataclass(frozen=True, kw_only=True, config=_STRICT)
class Totals:
    """What the limits of all runs that are under way at a site may add up to; None: to anything."""

    memory_gib: _Above | None = None
    disk_gib: _Above | None = None
    gpus: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None

    def exceeded_by(self, runs: Iterable[RunLimits]) -> str | None:
        """Return which total the limits of these runs exceed, and by what; None: they keep to all."""
        known = list(runs)
        for name, most in vars(self).items():
            taken = sum(getattr(one, name) or 0.0 for one in known)
            if most is not None and taken > most * (1 + 1e-9):
                return f"policy.totals.{name}: the limits of all runs would be {taken:g}; at most {most:g}"
        return None


def parse_limits(pairs: Iterable[tuple[str, str]]) -> RunLimits:
    """Return what a run asks for, from names and amounts.

    Raises:
        BadInput: another name, no amount, or a name twice.
    """
    found = {}
    for name, text in pairs:
        try:
            if name in found:
                raise ValueError
            found[name] = float(text)
            RunLimits(**{name: found[name]})
        except (ValueError, TypeError):
            given, names = shown(f"{name}={text}"), ", ".join(RunLimits.__dataclass_fields__)
            raise BadInput(f"--limit: {given} is not allowed: give NAME=AMOUNT, each once, of {names}") from None
    return RunLimits(**found)


@pydantic_dataclass(frozen=True, kw_only=True, config=_STRICT)
class AllowedQuery:
    """A task over tables that a policy may answer for, as the data that state it have it: the whole of it."""

    sql: str
    label: str
    """``TABLE.COLUMN``; the label of each row that is read leaves."""
    type: Literal["binary", "multiclass", "regression"]
    classes: Annotated[int, Field(ge=2)] | None = None
    """For ``multiclass`` only."""
    categorical: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if (self.classes is not None) != (self.type == "multiclass"):
            raise ValueError(f"classes: {self.classes} is not allowed for {self.type}: for multiclass only, and there")

    @property
    def facts(self) -> TaskFacts:
        """The task as a proposal states it."""
        classes = self.classes or {"binary": 2}.get(self.type, 1)
        columns = {"sql": self.sql, "label": self.label, "categorical": tuple(self.categorical)}
        return TaskFacts(layout="relational", type=self.type, classes=classes, **columns)  # type: ignore[arg-type]


@pydantic_dataclass(frozen=True, kw_only=True, config=_STRICT)
class Policy:
    """What a site lets run, and what of it without asking its person."""

    approve: Literal["person", "policy"] = "person"
    coordinators: list[str] | None = None
    protocols: dict[str, dict[str, Any]] | None = None
    data: list[str] | None = None
    """Names of data that the policy may answer for; of others a person does. None: of all, new ones too."""
    queries: list[AllowedQuery] | None = None
    """Tasks over tables that the policy may answer for; another query, label or type waits for a person."""
    colluders: Annotated[int, Field(ge=0)] = 1
    """Organisations that may tell one another all they know: sums under masks are of two more at least."""
    continuations: Annotated[int, Field(ge=0)] = 20
    """How often a run may be gone on from in all, from whichever of its checkpoints."""
    return_days: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0
    """For how many days a site may have been away from a run with a quorum that it comes back to without a question."""
    proposals_per_hour: Annotated[int, Field(ge=1)] = 60
    """Of one site, those that are refused too."""
    queued_runs: Annotated[int, Field(ge=1, le=1000)] = 4
    """Of one site, that wait for their turn."""
    queue_length: Annotated[int, Field(ge=1)] = 32
    """Runs that wait for their turn in all; the first of each site has room beyond it."""
    reservation_seconds: Annotated[float, Field(ge=60, allow_inf_nan=False)] = 300.0
    """For how long a run whose turn has come may keep others waiting until it begins; see `run_queue.READY_SECONDS`."""
    concurrent_runs: Annotated[int, Field(ge=1, le=100)] = 1
    """Runs that may be under way at once."""
    coordinator_runs: Annotated[int, Field(ge=1, le=100)] | None = None
    """Of one coordinator, those that may be under way at once; None: `concurrent_runs`."""
    priority: dict[str, int] = field(default_factory=dict)
    """By coordinator: whose waiting runs begin first, the larger number before the smaller; 0 for others."""
    limits: RunLimits = field(default_factory=RunLimits)
    """What one run may take of the site's machine."""
    totals: Totals = field(default_factory=Totals)
    """What all runs together may."""
    budget_per_run: Amount | None = None
    """What one run may announce to take of a budget, which counts whole if it breaks off."""
    changed_data: Literal["warn", "refuse"] = "warn"
    """What becomes of a run whose data here are others when it begins than when it was approved."""
    code: Literal["refuse", "person", "signed"] = "refuse"
    """Who lets runs import code that they bring: nobody, this site's person, or a signature of `code_signers` alone."""
    code_signers: dict[str, str] = field(default_factory=dict)
    """Public keys by name, one of which must have signed such code; none: it needs no signature."""

    @property
    def run_limits(self) -> RunLimits:
        """The limits of one run: where `limits` has none it may take what all together may."""
        unset = {name: most for name, most in vars(self.totals).items() if getattr(self.limits, name) is None}
        return RunLimits(**{**vars(self.limits), **unset})

    def check(
        self, site: str, coordinator: str, protocol: str, config: Any, stated: Mapping[str, Any] | None = None
    ) -> None:
        """Check that a run may be.

        Args:
            site: whose policy it is.
            coordinator: who proposes the run.
            protocol: its name.
            config: its settings.
            stated: by name, what the proposal says itself: a setting of that name does not count.

        Raises:
            BadInput: naming the key of the policy, what the run asks for, and what is allowed.
        """
        self.check_coordinator(site, coordinator)
        if self.protocols is None:
            return
        if protocol not in self.protocols:
            said, allowed = f"{site}: policy.protocols: {protocol} is not allowed", ", ".join(self.protocols) or "none"
            raise BadInput(f"{said}: {allowed}").telling(said)
        for setting, rule in self.protocols[protocol].items():
            if setting == "data" and setting not in (stated or {}):  # the site brings none: it hosts an actor
                continue
            where = f"{site}: policy.protocols.{protocol}.{setting}"
            if setting not in (stated or {}) and not hasattr(config, setting):
                raise to_tell(f"{where}: there is no such setting")
            value = (stated or {}).get(setting, getattr(config, setting, None))
            why = "" if setting in (stated or {}) else ignored(config, setting)
            if why and _protects(setting, protocol, config):  # it would say of noise that there is none
                raise to_tell(
                    f"{where}: {shown(value)} is not allowed with {why}: a rule is of what protects a run; set it, or "
                    f"ask {site} to take the rule out"
                )
            if why:  # nothing uses it
                continue
            follows = value == 0 and setting in getattr(config, "by_rows", ())
            if value == 0 and setting in getattr(config, "unlimited", ()) and isinstance(rule, dict):
                raise BadInput(f"{where}: 0 is not allowed: {shown(rule)}, and 0 stands for no limit; give a number")
            if follows or not _allows(rule, value, where):
                why = ", which stands for what follows from the rows; give a number" if follows else ""
                said = f"{where}: {shown(value)} is not allowed"
                raise BadInput(f"{said}: {shown(rule)}{why}").telling(f"{said}{why}")

    def check_coordinator(self, site: str, coordinator: str) -> None:
        """Check that a site may propose runs.

        Raises:
            BadInput: naming who may.
        """
        if self.coordinators is not None and coordinator not in self.coordinators:
            said, allowed = f"{site}: policy.coordinators: {coordinator} is not allowed", ", ".join(self.coordinators)
            raise BadInput(f"{said}: {allowed or 'nobody'}").telling(said)


def to_tell(said: str) -> BadInput:
    """Return an error that the coordinator is told whole: it says nothing that only the site knows."""
    return BadInput(said).telling(said)


_OF_NOISE = {"delta", "epsilon", "mu", "noise"}
"""Words in names of settings that say how much noise there is."""


def _protects(setting: str, protocol: str, config: Any) -> bool:
    """Say whether a setting says what protects a run, or how much of it there is."""
    found = describe_protections(find_protocol(protocol), config)
    return not _OF_NOISE.isdisjoint(setting.split("_")) or any(setting in one["settings"] for one in found)


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


_DIFFER_IN_MORE = {"label": ("row", "client"), "row": ("client",)}
"""By kind of neighbours those that differ in more: what is promised, and taken, for these is for that kind too."""


def spent(lines: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Amount]]:
    """Return what runs have taken of each of a site's data, by kind of neighbours, from the lines of its log.

    A run whose account is of clients takes as much of each row of theirs as one whose account is of rows. A run that
    is under way, or of which nobody knows how it ended or what it took, counts with what it announced. A return to a
    run that ended before it was open took nothing, and gives nothing back, be it that the site was killed before it.
    """
    runs: dict[str, tuple[str, dict[str, list[float | None]]]] = {}
    open_ones: set[str] = set()
    for line in lines:
        if line["what"] == "opened":
            runs[line["run"]] = line["data"], {ANY: line["announced"]}
            open_ones.add(line["run"])
        elif line["what"] == "ended" and line["who"] == "site" and line["run"] in open_ones and line.get("was_open", 1):
            # where it was not, the line is of a return, and the process that had opened the run was killed
            data, announced = runs[line["run"]]
            # of an older line nothing does not say whether that was known
            runs[line["run"]] = data, line["taken"] or ({} if "was_open" in line else announced)
            open_ones.remove(line["run"])
    kinds: dict[str, dict[str, None]] = {}
    for data, taken in runs.values():
        kinds.setdefault(data, {}).update(dict.fromkeys(taken))
    found: dict[str, dict[str, Amount]] = {data: {} for data in kinds}
    for data, taken in runs.values():
        for kind in kinds[data]:
            stated = next((one for one in (kind, *_DIFFER_IN_MORE.get(kind, ())) if one in taken), None)
            if stated is not None:
                epsilon, delta = taken[stated]
                amount = Amount(epsilon=math.inf if epsilon is None else epsilon, delta=float(delta or 0.0))
                found[data][kind] = found[data].get(kind, NOTHING) + amount
    return found


def in_all(taken: Mapping[str, Amount]) -> Amount:
    """Return what bounds what was taken for every kind of neighbours."""
    others = [amount for neighbour, amount in taken.items() if neighbour != ANY]
    epsilon = max((amount.epsilon for amount in others), default=0.0)
    delta = max((amount.delta for amount in others), default=0.0)
    return Amount(epsilon=epsilon, delta=delta) + taken.get(ANY, NOTHING)


def opened_on(folder: SiteFolder, name: str, lines: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the lines of a log by which runs opened that count for data.

    These are runs on data that read the same, then or now, whatever they are called, and on data of the same name: a
    file of another month has the same people, and what rows are other people's only a person knows.
    """
    names, read = {name, *folder.with_budget(name)}, folder.read_by(name)
    return [
        line
        for line in lines
        if line["what"] == "opened"
        if line["data"] in names or _meet(read, {(where, table) for where, table in line.get("reads", ())})
    ]


def taken_of(folder: SiteFolder, name: str, lines: Collection[Mapping[str, Any]]) -> Amount:
    """Return what was taken of the rows that data read, by the lines of a log; see `opened_on`."""
    runs = {line["run"] for line in opened_on(folder, name, lines)}
    total = NOTHING
    for taken in spent(line for line in lines if line.get("run") in runs).values():
        total += in_all(taken)
    return total


def taken_before(folder: SiteFolder, name: str, run: str) -> Amount:
    """Return what other runs took of the rows that data read: what a run announces holds all that it has taken."""
    reserved = list(folder.reserved.values())  # before the log: one of them may just be written there
    return taken_of(folder, name, [line for line in (*folder.log(), *reserved) if line.get("run") != run])


def read_otherwise(folder: SiteFolder, name: str, lines: Iterable[Mapping[str, Any]]) -> str:
    """Return in a sentence that runs count for data which read another file then, under that name; empty: none do."""
    read = folder.read_by(name)
    for line in lines:
        reads = line.get("reads", ()) if line["what"] == "opened" and line["data"] == name else ()
        if reads and not _meet(read, {(where, table) for where, table in reads}):
            return f"data.{name} read {reads[0][0]} then: if these are other people, give them another name"
    return ""


def gone_from(folder: SiteFolder, lines: Collection[Mapping[str, Any]]) -> dict[str, tuple[Amount, list[str]]]:
    """Return of data that have no budget in site.toml now, or are not there, what was taken, and for what it counts."""
    known = {name for name in folder.names() if folder.budget(name) is not None}
    counts = {name: {line["data"] for line in opened_on(folder, name, lines)} for name in folder.names()}
    return {
        data: (in_all(taken), [name for name, those in counts.items() if data in those and name != data])
        for data, taken in spent(lines).items()
        if data not in known
    }


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
        raise to_tell(f"{where}: the run announces none: give --budget {site}=EPSILON:DELTA")
    if not any(one["kind"] == "noise" and one["on"] for one in describe_protections(protocol, config)):
        raise to_tell(
            f"{where}: the run adds no noise, so that it would take all of it: switch noise on, see Privacy in "
            f"fedactors run {protocol.name} --help"
        )
    most = folder.policy.budget_per_run
    if most is not None and not announced.within(most):
        said = f"{site}: policy.budget_per_run: {announced} is not allowed"
        raise BadInput(f"{said}: at most {most}").telling(said)
    before = taken_before(folder, name, proposal.run)
    if not (before + announced).within(cap):
        said = f"{where}: {announced} is not allowed"
        then = read_otherwise(folder, name, folder.log())
        raise BadInput(f"{said}: {before} of {cap} is taken already{f'; {then}' if then else ''}").telling(
            f"{said}: too little is left"
        )


# --- the data of a run ---

Described = VerticalData | HorizontalData | RelationalData | UserGraph


_MOST_OF_ROW = 1 << 26
"""Numbers of a sample, or of its target: 256 MiB in memory."""


@pydantic_dataclass(frozen=True, kw_only=True, config=_STRICT)
class TaskFacts:
    """What all parties of a run know of the task; the coordinator's data state it.

    ``alignment`` and ``split`` are of vertical rows, ``labels`` (the classes' texts) of horizontal ones, ``sql``,
    ``label`` and ``categorical`` of tables, which the query calls by the names of the sites' data.
    """

    layout: Literal["vertical", "horizontal", "relational", "graph"]
    type: Literal["binary", "multiclass", "regression", "multilabel"]
    classes: Annotated[int, Field(ge=0, le=MOST_CLASSES)]
    """1 for a regression; of a graph the nodes' file tells."""
    alignment: Literal["already-aligned", "hash", "psi"] = "already-aligned"
    split: Literal["random", "stratified"] = "random"
    labels: tuple[str, ...] = ()
    shape: tuple[Size, ...] = ()
    """Of samples that are no rows of a table, horizontal ones, like the following."""
    peak: float | None = None
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    targets: tuple[Size, ...] = ()
    """Shape of a row's target; none: it is one number or class."""
    sql: str = ""
    label: str = ""
    categorical: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.type == "multilabel" and self.layout != "horizontal":
            raise ValueError(f"type: multilabel is not allowed for layout {self.layout}")
        for name, sizes in (("shape", self.shape), ("targets", self.targets)):
            if math.prod(sizes) > _MOST_OF_ROW:  # a site reads its rows in the shape that the proposal states
                raise ValueError(f"{name}: {list(sizes)} is not allowed: a row has at most {_MOST_OF_ROW} numbers")
        for label in self.labels:  # they become columns and cells of each site's predictions
            if without_controls(label) != label or not {"\t", "\n"}.isdisjoint(label):
                raise ValueError(f"labels: {shown(label)} is not allowed: control characters")

    @property
    def of_one_value(self) -> Task:
        """The type where a row has one number or class."""
        assert self.type != "multilabel"
        return self.type


@wire_type
class DataName:
    """Stands for data that their site knows by this name; the site alone knows where they are."""

    site: str
    name: str
    is_test: bool = False
    """Whether the test rows are meant that the data named so come with."""
    part: Literal["all", "train", "validation"] = "all"
    """As of a `HorizontalFile`, like the following."""
    validation_fraction: float = 0.0
    seed: int = 0

    @property
    def holds_out(self) -> bool:
        """Whether the site has rows of its own to measure on."""
        return self.validation_fraction > 0

    def holding_out(self, share: float, seed: int) -> DataName:
        """Return the name of the same data with a share of the rows, drawn by `seed`, to measure on."""
        return replace(self, validation_fraction=share, seed=seed)

    def load(self, trained: Any = None) -> Any:
        """Refuse: only the site's own process has the data."""
        raise BadInput(f"{self.site}: {self.name} are data of this site, which it alone reads")


Find = Callable[[DataName], Any]
"""From a name to where the rows are, or to the name itself."""


def describe(
    task: TaskFacts, data: Mapping[str, str], find: Find = lambda name: name, *, is_new: bool = False
) -> Described:
    """Return who holds what.

    Args:
        task: of the run.
        data: the names of each site's data, the coordinator's first.
        find: what stands for each of them; the driver knows names only.
        is_new: rows to predict, which come without test rows.
    """
    names = [DataName(site=site, name=name) for site, name in data.items()]
    title, parties = "+".join(data.values()), tuple(data)
    if task.layout == "horizontal":
        test = DataName(site=names[0].site, name=names[0].name, is_test=True)
        return HorizontalData(
            name=title,
            task=task.type,
            num_classes=task.classes,
            num_clients=len(data),
            shape=task.shape,
            targets=task.targets,
            files=tuple(map(find, names)),
            parties=parties,
            test_file=None if is_new else find(test),
        )
    if task.layout == "graph":
        return UserGraph(parties, tuple(map(find, names)))
    if task.layout == "relational":
        tables = list(data.values())
        return RelationalData(
            name=title,
            sql=task.sql,
            label=task.label,
            task=task.of_one_value,
            num_classes=task.classes,
            partitions=tuple(
                RelationalPartition(party=n.site, table=n.name, partition=tables[:i].count(n.name), source=find(n))
                for i, n in enumerate(names)
            ),
            categorical=task.categorical,
        )
    return VerticalData(
        name=title,
        task=task.of_one_value,
        num_classes=task.classes,
        parties=parties,
        sources=tuple(map(find, names)),
        label_party=parties[0],
        alignment=task.alignment,
        split=task.split,
    )


def parts_of_name(described: Described, site: str) -> list[Any]:
    """Return all that actors at a site may be told of data: its own part, and what everybody knows.

    They stand in the same order however the data are described.
    """
    if isinstance(described, HorizontalData):
        index = described.parties.index(site)
        measured = [described.part(test=True)] if index == 0 and described.test_file is not None else []
        return [described.part((index,)), *measured, described.part(), described.files[index]]
    if isinstance(described, RelationalData):
        return [*described.part(site), described.query]
    return [described.part(site)]


_LOCATIONS = ("path", "nodes", "file", "edges", "sparse")
"""Keys of data that say where rows are, beside ``tables``; see `data.schema.Location`."""


def _meet(some: set[tuple[str, str]], others: set[tuple[str, str]]) -> bool:
    """Say whether locations of both are the same, or one is a file of the other, a folder."""
    return _lie_in(some, others) or _lie_in(others, some)


def _lie_in(some: set[tuple[str, str]], others: set[tuple[str, str]]) -> bool:
    tables: dict[Path, set[str]] = {}
    for where, table in others:
        tables.setdefault(Path(where), set()).add(table)
    return any(
        table == one or not (table and one)
        for where, table in some
        for path in (Path(where), *Path(where).parents)
        for one in tables.get(path, ())
    )


def _reads(name: str, counted: str) -> str:
    """Return that data read what other data read, where they are others."""
    return "" if name == counted else f"data.{name} reads what data.{counted} reads; "


def _read_at(given: Any, folder: Path) -> list[str]:
    """Return what a location stands for, however it is spelled: an address, or a path and its files; wrong: nothing."""
    if not isinstance(given, str):
        return []
    with contextlib.suppress(BadInput):  # its reader says what is wrong
        if address := library_address(given, "path", folder):
            kind, name, _ = library_parts(address)  # settings choose among its rows
            if not name.startswith("file:"):
                return [f"{kind}:{name}"]
            given = name.removeprefix("file:")
        if given.startswith("env:"):
            return [given, *_server_at(os.environ.get(given.removeprefix("env:"), ""))]
        if server := _server_at(given):
            return server
        if (address := address_of(given)).startswith(_OF_THIS_HOST):
            given = address.partition("://")[2]
        elif address:
            return [address]
        path = path_of(given, "path", folder)
        is_folder = path.is_dir()  # whose files lie in it, unless they are links
        return [str(path), *(str(one.resolve()) for one in files_at(path) if not is_folder or one.is_symlink())]
    return []


_OF_THIS_HOST = ("file://", "local://")


def _server_at(address: str) -> list[str]:
    """Return the database of an address of PostgreSQL, without user and options; none: it is no such address."""
    try:
        found = postgres_settings(address)
    except SourceError:
        return []
    return [f"postgresql://{found['host'].lower()}:{found['port']}/{found['dbname']}"]


def _table_at(where: str, table: str) -> str:
    """Return which table of a database is meant: letters' case and the schema by default say nothing; a file is one."""
    is_database = where.startswith(("postgresql://", "env:")) or where.lower().endswith((".duckdb", ".db", ".sqlite"))
    return table.casefold().removeprefix("public.").removeprefix("main.") if is_database else ""


# --- the files ---

KEY, NEXT_KEY, CERTIFICATE = "key.pem", "key.next.pem", "certificate.pem"
TLS_KEY, LONGEST_FEDERATION = "tls.pem", 1 << 20
SITE, KNOWN = "site.toml", "known.json"
CODE = "code"
"""Folder of the code that runs may import; see `site_code`."""
_LOCK_SECONDS = 5.0
EMBEDDED = "embedded"
"""A Ray of the site's own that begins and ends with each run."""
_OF_OTHERS = TaskFacts(layout="vertical", type="regression", classes=1)
"""What another site may state of the task."""
_FEWEST_ROWS = 10
"""That a client trains or measures on where the proposal holds rows out: what is told of one row tells the row."""
_OF_NEW_ROWS, _RULES = {"path", "id", "csv"}, ("features", "categorical", "columns", "csv")
"""Keys of rows to predict, and what they have from those of training."""


@pydantic_dataclass(frozen=True, kw_only=True, config=_STRICT)
class _SiteFile:
    name: str
    data: dict[str, dict[str, Any]]
    listen: str | None = None
    relay: str | None = None
    policy: Policy = field(default_factory=Policy)
    metrics: str | None = None
    ray: str | None = None
    wait_seconds: Annotated[float, Field(ge=0, le=86_400)] = 60.0
    key_passphrase: list[str] | None = None
    key_passphrase_file: str | None = None
    crl: str | None = None
    carrier: Literal["tls", "websocket"] = "tls"
    websocket_ca: str | None = None
    proxy: str | None = None
    proxy_credentials_file: str | None = None
    no_proxy: list[str] = field(default_factory=list)


@pydantic_dataclass(frozen=True, kw_only=True, config=_STRICT)
class _Known:
    """What a site has taken of its federation, so that a start takes nothing older."""

    federation: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """By SHA-256 of an authority's certificate: the version of its file, and whether that was signed."""
    crl: dict[str, str] = field(default_factory=dict)
    """By issuer of a revocation list (DER): when that was made."""
    met: dict[str, str] = field(default_factory=dict)
    """By site that has a certificate of before: SHA-256 of the new one, once the site has shown it."""


def _check_concurrent(found: _SiteFile, where: str) -> None:
    """Check that limits of several runs can be held to.

    Raises:
        BadInput: they cannot.
    """
    policy = found.policy
    for name, most in vars(policy.totals).items():
        of_run = getattr(policy.limits, name)
        if most is not None and of_run is not None and of_run > most:
            raise BadInput(f"{where}.limits.{name}: {of_run:g} is not allowed: at most {most:g} (policy.totals.{name})")
    named = [name for name in OF_MACHINE if getattr(policy.run_limits, name) is not None]
    if policy.concurrent_runs > 1 and found.ray is None and named:
        raise BadInput(
            f"{where}.concurrent_runs: {policy.concurrent_runs} is not allowed with a limit of {', '.join(named)} and "
            "without ray: runs in the site's process cannot be measured apart; set ray, or leave these limits out"
        )
    for name in policy.priority:
        check_name(name, f"{where}.priority")


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy through which a site dials others (CONNECT)."""

    host: str
    port: int
    credentials: Path | None
    """File with ``USER:PASSWORD``."""
    direct: frozenset[str]
    """Hosts that are dialled without it."""

    def is_for(self, host: str) -> bool:
        """Say whether a host is dialled through it."""
        return host not in self.direct

    def login(self) -> str:
        """Return ``USER:PASSWORD``; empty: the proxy asks for none.

        Raises:
            BadInput: the file is not there, others can read it, or it holds something else.
        """
        if self.credentials is None:
            return ""
        text = read_private(self.credentials, "proxy_credentials_file").strip()
        if ":" not in text or not text.isprintable():
            raise BadInput(f"proxy_credentials_file: {self.credentials} is not allowed: one line, USER:PASSWORD")
        return text


def _proxy(found: _SiteFile, folder: Path) -> Proxy | None:
    file, credentials = folder / SITE, found.proxy_credentials_file
    if found.proxy is None:
        if credentials is not None or found.no_proxy:
            raise BadInput(f"{file}: proxy: missing: proxy_credentials_file and no_proxy are of one")
        return None
    scheme, _, rest = found.proxy.partition("://")
    if scheme != "http" or "@" in rest:
        raise BadInput(f"{file}: proxy: is not allowed: give http://HOST:PORT, user and password in a file")
    host, port = parse_address(rest.removesuffix("/"), f"{file}: proxy")
    return Proxy(host, port, None if credentials is None else folder / credentials, frozenset(found.no_proxy))


def _check_counted(table: Mapping[str, Any], where: str) -> None:
    """Check that what runs take of data with a budget, row by row, is what they take of the rows that these read.

    Raises:
        BadInput: their SELECT may give a row of its tables to several of its own.
    """
    sql = table.get("sql")
    if not isinstance(sql, str):
        return
    try:
        is_counted = is_row_by_row(sql)
    except QueryError as error:
        raise BadInput(f"{where}.{error}") from None
    if not is_counted:
        raise BadInput(
            f"{where}.budget: is not allowed with this sql: a budget counts what is told of a row, and a row of the "
            "tables may be in several rows of it: select columns and expressions of one table, with WHERE, or write "
            "what it selects to a file, whose rows the budget is then of"
        )


def stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file does; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


# --- other users of the machine ---


def open_to_others(folder: Path) -> Iterator[str]:
    """Yield what other users may put another policy or answer in the place of, each in a line with what to do.

    That is the folder, what they reach in it, what its links lead to, and the folders on the way to all of these.
    """
    seen = {folder}
    yield from _problem_of(folder, "700")
    above = list(_way_to(folder))
    for one, is_reached in _inside(folder, is_reached=_enter(folder)):
        if one.is_symlink():
            link = Path(one.path)
            above += _way_to(link)
            if link.is_dir():
                inside = itertools.islice(_inside(link.resolve(), is_reached=True), _MOST_LINKED)
                above += [Path(other.path) for other, is_open in inside if is_open]
        elif is_reached:
            yield from _problem_of(Path(one.path), "700" if one.is_dir() else "600")
    for other in above:
        if other not in seen and not other.is_relative_to(folder):
            yield from _problem_of(other, "go-w", is_elsewhere=True)
        seen.add(other)


def _inside(folder: Path | str, *, is_reached: bool) -> Iterator[tuple[os.DirEntry[str], bool]]:
    """Yield all that is in a folder, and whether others reach it: a site of years has a hundred thousand files."""
    with contextlib.suppress(OSError):  # another process removes it
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda one: one.name)
        for one in entries:
            yield one, is_reached
            if one.is_dir(follow_symlinks=False):
                yield from _inside(one.path, is_reached=is_reached and _enter(one))


def _enter(folder: Path | os.DirEntry[str]) -> bool:
    """Say whether others may enter a folder."""
    return bool(_mode_for_others(folder.stat()) & (stat.S_IXGRP | stat.S_IXOTH))


def _way_to(path: Path) -> Iterator[Path]:
    """Yield each folder and link that the system passes on its way to a path, and what that leads to."""
    at, names = Path(path.anchor), list(path.parts[:0:-1])
    yield at
    for _ in range(_MOST_PARTS):
        if not names:
            return
        name = names.pop()
        one = at.parent if name == os.pardir else at / name
        yield one
        if not one.is_symlink():
            at = one
            continue
        leads = Path(os.readlink(one))
        if leads.is_absolute():
            at, leads = Path(leads.anchor), leads.relative_to(leads.anchor)
        names += reversed(leads.parts)


_MOST_PARTS, _MOST_LINKED = 1000, 10_000
"""Of a path with all that its links lead to, which may be a circle; and files of a folder that a link leads to."""


def _problem_of(path: Path, mode: str, *, is_elsewhere: bool = False) -> Iterator[str]:
    """Yield by what others may change a file, or put another in its place, with what to do."""
    try:
        found, is_fixed = path.lstat(), bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:  # a link that leads nowhere, or another process has removed it
        return
    if found.st_uid not in (0, os.geteuid()):
        yield f"{path}: another user of this machine owns it: chown {os.geteuid()}"
    # in a folder with the sticky bit each file is changed by its owner only
    is_kept = stat.S_ISLNK(found.st_mode) or (
        is_elsewhere and stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    )
    if not (is_kept or is_fixed) and _mode_for_others(found) & (stat.S_IWGRP | stat.S_IWOTH):
        yield f"{path}: other users of this machine may write there: chmod {mode}"


def _mode_for_others(found: os.stat_result) -> int:
    """Return the mode of a file without what it lets its group, if that is of this process's user alone (fsGroup)."""
    is_alone = found.st_gid == os.getegid() and not _others_of(found.st_gid)
    return found.st_mode & ~stat.S_IRWXG if is_alone else found.st_mode


@functools.cache  # each file of a folder asks
def _others_of(group: int) -> frozenset[str]:
    """Return the users of a group beside this process's."""
    found = {user.pw_name for user in pwd.getpwall() if user.pw_gid == group and user.pw_uid != os.geteuid()}
    with contextlib.suppress(KeyError):  # a group without a name
        found |= set(grp.getgrgid(group).gr_mem)
    with contextlib.suppress(KeyError):
        found -= {pwd.getpwuid(os.geteuid()).pw_name}
    return frozenset(found)


@dataclass(frozen=True)
class TakenFederation:
    """A federation's file and its revocation lists, as they were taken."""

    federation: Federation
    """Without whom the lists name."""
    certified: Federation
    """As the file has it."""
    text: str
    """Of the file."""
    revoked: Revoked
    problem: str | None
    """What is wrong with the lists: whom they named before stays revoked."""


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes that ask for this too out: a site has several, with commands.

    Where the file system locks no folder (NFS), or somebody keeps it locked, as anyone may who can read it, it goes on
    all the same.
    """
    held, end = os.open(folder, os.O_RDONLY | os.O_DIRECTORY), time.monotonic() + _LOCK_SECONDS
    try:
        with contextlib.suppress(OSError):
            while time.monotonic() < end:
                try:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.01)
        yield
    finally:
        os.close(held)


class FederationReader:
    """Reads a federation's file and revocation lists, and takes nothing older than what it, or one before it, took.

    Args:
        file: ``federation.toml``.
        crl: file of revocation lists; None: there are none.
        known: file in which the newest are noted that were taken.
    """

    def __init__(self, file: Path, crl: Path | None, known: Path) -> None:
        self.file = file
        self.crl = crl
        self._known_file = known
        self._before: TakenFederation | None = None
        self._met: dict[str, str] = {}

    def now(self) -> object:
        """Return what changes when what is read does, or has ended."""
        until = None if self._before is None else self._before.revoked.until
        files = [one and stamp(one) for one in (self.file, self.crl, self._known_file)]
        return files, until is not None and until < datetime.now(UTC)

    def read(self) -> TakenFederation:
        """Return what the files say.

        Raises:
            BadInput: they are wrong, or older than what was taken.
        """
        text = read_text(self.file, "federation")
        federation, before = parse_federation(text, self.file), self._before
        known, lists = self._known()
        old, was_signed = known.federation.get(fingerprint(federation.issuer), (0, False))
        if before is not None:  # also of another authority
            old = max(old, before.federation.version)
            was_signed = was_signed or before.federation.is_signed
        if federation.version < old:
            raise BadInput(
                f"{self.file}: version: {federation.version} is not allowed: older than {old}, which was taken: get "
                f"the newest from another site or from {federation.name}'s organiser"
            )
        if was_signed and not federation.is_signed:
            raise BadInput(f"{self.file}: signed: missing: get the signed file of {federation.name}'s organiser")
        revoked, problem = self._revoked(federation, Revoked(updated=lists))
        current = without_replaced(federation, {**known.met, **self._met})
        return TakenFederation(without_revoked(current, revoked), federation, text, revoked, problem)

    def met(self, taken: TakenFederation, site: str, shown_one: str) -> TakenFederation:
        """Return what holds once a site has shown a certificate: after its new one, the one before is refused.

        Args:
            taken: what was taken.
            site: which.
            shown_one: SHA-256 of the certificate.
        """
        member = taken.federation.members.get(site)
        if member is None or member.previous is None or shown_one != fingerprint(member.certificate):
            return taken
        self._met[site] = shown_one
        return replace(taken, federation=without_replaced(taken.federation, self._met))

    def take(self, found: TakenFederation) -> None:
        """Take what was read, and note it, so that nothing older is taken from now on.

        Raises:
            BadInput: it cannot be noted.
        """
        self._before = found
        federation = found.federation
        issuer, now = fingerprint(federation.issuer), (federation.version, federation.is_signed)
        with _alone_in(self._known_file.parent):
            known, lists = self._known()
            old = known.federation.get(issuer, now)
            newest = {**lists, **{one: max(then, lists.get(one, then)) for one, then in found.revoked.updated.items()}}
            noted = _Known(
                federation={**known.federation, issuer: (max(old[0], now[0]), old[1] or now[1])},
                crl={one.hex(): then.isoformat() for one, then in newest.items()},
                met={**known.met, **self._met},
            )
            if noted != known:
                # also a command of root writes it
                write_atomic(self._known_file, json_bytes(asdict(noted)), "federation")

    def _known(self) -> tuple[_Known, dict[bytes, datetime]]:
        """Return what was taken: a file of before is not taken again at a start.

        Of revocation lists, when each was made, by issuer.
        """
        file = self._known_file
        if not file.exists():
            return _Known(), {}
        text = read_text(file, "federation")
        try:
            found: _Known = checked(_Known, file, json.loads(text))
            lists = {bytes.fromhex(issuer): datetime.fromisoformat(then) for issuer, then in found.crl.items()}
        except (ValueError, BadInput):
            raise BadInput(f"{file} is not what was written there: remove it if {FEDERATION} is the newest") from None
        return found, lists

    def _revoked(self, federation: Federation, known: Revoked) -> tuple[Revoked, str | None]:
        """Return who is revoked, and what is wrong with the list: who is known to be stays so, and nobody else waits.

        Raises:
            BadInput: the list is wrong, and none was read before.
        """
        before = self._before
        if self.crl is None:
            return Revoked(), None
        try:
            found = read_revoked(self.crl, federation.authorities)
            for one in (known, *(() if before is None else (before.revoked,))):
                found.check_follows(one, federation.authorities)
            return found, None
        except BadInput as error:
            if before is None:
                raise
            return before.revoked, str(error)


@dataclass(frozen=True)
class _Membership:
    """What a site is in its federation, as its files had it when they were read."""

    taken: TakenFederation
    server_tls: ssl.SSLContext
    client_tls: ssl.SSLContext
    until: datetime | None
    """When its key of TLS is made anew."""


class SiteFolder:
    """All that a site has, in one folder; read when it is first needed.

    Raises:
        BadInput: there is no site in it, or its description is wrong.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        look_in(self.path / CODE)
        file = self.path / SITE
        found = self._read_site()
        self.name = check_name(found.name, f"{file}: name")
        if (found.listen is None) == (found.relay is None):
            raise BadInput(f"{file}: give listen, or the relay where the site is called if it cannot be dialled")
        self.listen = None if found.listen is None else parse_address(found.listen, f"{file}: listen")
        self.relay = None if found.relay is None else parse_address(found.relay, f"{file}: relay")
        """Where it waits to be called, and listens nowhere; None: it listens."""
        self.metrics = None if found.metrics is None else self.path / found.metrics
        """File for Prometheus' node exporter."""
        self.ray = found.ray
        """Address of the Ray where actors of trainings live, or EMBEDDED; None: they live in the site's process."""
        if found.ray not in (None, EMBEDDED):
            parse_address(str(found.ray), f"{file}: ray")
        if found.key_passphrase is not None and found.key_passphrase_file is not None:
            raise BadInput(f"{file}: key_passphrase: is not allowed with key_passphrase_file: give one of them")
        named = found.key_passphrase_file
        self.passphrase = Passphrase(
            tuple(found.key_passphrase or ()), None if named is None else self.path / Path(named).expanduser()
        )
        self.key = KeyFile(self.path / KEY, self.passphrase)
        """The site's key."""
        self.crl = None if found.crl is None else self.path / found.crl
        """File of certificate revocation lists."""
        self._reader = FederationReader(self.path / FEDERATION, self.crl, self.path / KNOWN)
        self.carrier = found.carrier
        """What carries links that others dial: TLS by itself, or a WebSocket."""
        if found.carrier == "websocket" and found.listen is None:
            raise BadInput(f"{file}: carrier: a WebSocket is not allowed with relay: the site listens nowhere")
        self.websocket_ca = None if found.websocket_ca is None else self.path / found.websocket_ca
        """CAs of balancers that others' WebSockets end at; None: the system's."""
        self.proxy = _proxy(found, self.path)
        self.wait_seconds = found.wait_seconds
        """For a site whose connection broke to come back, before a run ends."""
        self.config_errors: str | None = None
        """Why the federation's file and the keys as they are now are not used."""
        self._member: _Membership | None = None
        self._member_seen: object = None
        self.differ: set[str] = set()
        """Sites that said that they have another version of federation.toml."""
        self._lock = threading.Lock()
        self.reserved: dict[str, dict[str, Any]] = {}
        """By run: the lines of the log by which runs will open that have begun in this process."""

    def _read_site(self) -> _SiteFile:
        file = self.path / SITE
        if not file.is_file():
            raise BadInput(
                f"--folder: {shown(str(self.path))} holds no {SITE}: make a site with fedactors site init NAME"
            )
        seen = stamp(file)  # before it is read: it may change meanwhile
        found: _SiteFile = checked(_SiteFile, file, {"data": {}, **read_tree(file, "site")})
        for name, table in found.data.items():
            check_name(name, f"{file}: data")
            if table.get("budget") is not None:
                _check_counted(table, f"{file}: data.{name}")
        if found.policy.code == "signed" and not found.policy.code_signers:
            raise BadInput(f'{file}: policy.code_signers: missing: "signed" needs the public key of a signer')
        for person, text in found.policy.code_signers.items():
            read_public_key(text, f"{file}: policy.code_signers.{person}")
        _check_concurrent(found, f"{file}: policy")
        self._seen, self._data, self.policy = seen, found.data, found.policy
        return found

    def look(self) -> None:
        """Read data and policy again, if the file has changed; what else stands there is of a process's start.

        Raises:
            BadInput: it is wrong; what was read before holds.
        """
        if stamp(self.path / SITE) != self._seen:
            self._read_site()

    @property
    def where(self) -> str:
        """Where others reach the site, for people."""
        host, port = self.relay or self.listen or ("", 0)
        return f"{'the relay ' if self.relay else ''}{host}:{port}"

    # --- the site in its federation ---

    @property
    def federation(self) -> Federation:
        """The federation, as its file is now; this site is in it."""
        return self._membership().taken.federation

    @property
    def server_tls(self) -> ssl.SSLContext:
        """What this site demands of who dials it from now on; see `identity.tls`."""
        return self._membership().server_tls

    @property
    def client_tls(self) -> ssl.SSLContext:
        """What this site demands of those that it dials from now on; see `identity.tls`."""
        return self._membership().client_tls

    def _membership(self) -> _Membership:
        """Return what the files say now, or said last where they are wrong.

        Raises:
            BadInput: they are wrong and there is nothing of before.
        """
        with self._lock:
            if self._member is None or self._now() != self._member_seen:
                self._member_seen = self._now()  # before they are read: they may change meanwhile
                try:
                    self._member = self._read_membership()
                except BadInput as error:
                    if self._member is None:
                        raise
                    self.config_errors = str(error)
            return self._member

    def _now(self) -> object:
        """Return what changes when what a membership is made of does, or has ended."""
        until = None if self._member is None else self._member.until
        is_over = until is not None and until < datetime.now(UTC)
        return self._reader.now(), [stamp(self.path / name) for name in (KEY, NEXT_KEY)], is_over

    def _read_membership(self) -> _Membership:
        taken = self._reader.read()
        federation = taken.federation
        certificate = self._certified(taken.certified)
        if self.name not in federation.members:
            raise BadInput(f"certificate: it is revoked by {self.crl}: fedactors site renew")
        key, until = self.path / KEY, None
        shown_one = as_pem(certificate)
        if isinstance(held := self.key.read(), TokenKey):
            soft, delegated = delegate(held, certificate)
            key, shown_one = self.path / TLS_KEY, delegated + shown_one
            write_atomic(key, soft, "key", PRIVATE_FILE)
            until = datetime.now(UTC) + timedelta(hours=TLS_HOURS / 2)
        certificate_path = self.path / CERTIFICATE
        write_atomic(certificate_path, shown_one.encode(), "certificate")
        ends: dict[str, Any] = {"key": key, "certificate": certificate_path, "passphrase": self.passphrase}
        authorities = "".join((federation.authority, *federation.issuers))
        server, client = (tls(server=is_server, authorities=authorities, **ends) for is_server in (True, False))
        # a site that has its new key is nobody else with the one before
        taken = self._reader.met(taken, self.name, fingerprint(certificate))
        self._reader.take(taken)
        self.config_errors = taken.problem
        return _Membership(taken, server, client, until)

    def identified(self, certificate: bytes) -> tuple[str, str]:
        """Return the site that shows a certificate (DER) of TLS, and the fingerprint of the one that the file has.

        Raises:
            BadInput: it is no site's, or holds no longer.
        """
        taken = self._membership().taken
        if (found := taken.federation.identified(certificate)) is not None:
            return found
        before = taken.certified.identified(certificate)
        if before is not None and before[0] in taken.federation.members:
            raise BadInput(
                f"shows a certificate of {before[0]} that was replaced or revoked: the newest {FEDERATION} there turns "
                "the site to its new key"
            )
        raise BadInput(f"shows a certificate of no site of {taken.federation.name}")

    def met(self, site: str, shown_one: str) -> None:
        """Take no certificate of before of a site that has shown its new one; see `FederationReader.met`."""
        with self._lock:
            member = self._member
            if member is None or (taken := self._reader.met(member.taken, site, shown_one)) is member.taken:
                return
            self._member = replace(member, taken=taken)
            try:
                self._reader.take(taken)
            except (OSError, BadInput) as error:  # until the next start it is known all the same
                self.config_errors = f"the next start takes the old key of {site} again: {first_line(error)}"

    def _certified(self, federation: Federation) -> x509.Certificate:
        """Return this site's certificate, after taking its next key if it is that one's.

        Raises:
            BadInput: the site is none of the federation, or has another key.
        """
        file, following = self.path / FEDERATION, self.path / NEXT_KEY
        if self.name not in federation.members:
            raise BadInput(f"{file}: {self.name} is not among its sites: {', '.join(federation.members)}")
        certificate = federation.members[self.name].certificate
        certified = public_bytes(key_of(certificate))
        if following.exists() and public_bytes(read_key(following, self.passphrase).public_key()) == certified:
            AuditLog(self.path / AUDIT, self.key.path, self.passphrase).turn(following)
        if public_bytes(self.key.read().public_key()) != certified:
            raise BadInput(f"key: {self.key.path} is not the one that {file} certifies: the file is older or newer")
        return certificate

    @property
    def federation_file(self) -> str:
        """The text of the federation's file that is used now."""
        return self._membership().taken.text

    def heard(self, site: str, version: int) -> None:
        """Remember that a site has another version of the federation's file, or says so."""
        if version != self.federation.version:
            self.differ.add(site)

    def take_over(self, text: str, source: str) -> bool:
        """Take a newer file of the federation, signed by its authority, and say in the log who had it.

        Raises:
            BadInput: why it is not taken; one that is not newer is no error.
        """
        now, file = self.federation, self.path / FEDERATION
        if len(text) > LONGEST_FEDERATION:
            raise BadInput(f"federation: it has more than {LONGEST_FEDERATION} characters")
        # before it is read: a few thousand bytes of TOML can take minutes
        if not is_signed_by(text, now.issuer):
            raise BadInput(f"federation: it is not signed by the authority of {now.name} that this site knows")
        found = parse_federation(text, Path(FEDERATION))
        if found.name != now.name:
            raise BadInput(f"federation: it is of another federation, {shown(found.name)}")
        if found.version <= now.version:
            return False
        if not holds(now.issuer, [now.issuer]):
            raise BadInput(f"federation: the certificate of the authority of {now.name} has ended")
        if self.name not in found.members:
            raise BadInput(f"federation: its version {found.version} has no site {self.name}: it was removed")
        keys = [read_key(path, self.passphrase) for path in (self.key.path, self.path / NEXT_KEY) if path.exists()]
        certified = public_bytes(key_of(found.members[self.name].certificate))
        if certified not in [public_bytes(key.public_key()) for key in keys]:
            raise BadInput(f"federation: its version {found.version} certifies another key of {self.name}")
        write_atomic(file, text.encode(), "federation")
        if self.federation.version != found.version:
            raise BadInput(f"federation: its version {found.version} is not used: {self.config_errors}")
        digest = hashlib.sha256(text.encode()).hexdigest()
        self.audit.add("federation", version=found.version, replaced=now.version, digest=digest, source=source)
        return True

    @functools.cached_property
    def audit(self) -> AuditLog:
        """The site's log."""
        return AuditLog(self.path / AUDIT, self.key.path, self.passphrase)

    def log(self) -> list[dict[str, Any]]:
        """Return the lines of the site's log, after checking that each is its own."""
        return check_log(self.path / AUDIT, self.federation.members[self.name].certificate)

    # --- its data ---

    def names(self) -> list[str]:
        """Return the names of the site's data."""
        return sorted(self._data)

    def task(self, name: str) -> TaskFacts | None:
        """Return the task that the data named `name` state; None where they state none.

        Raises:
            BadInput: no such data, or what they say of the task is wrong.
        """
        task = self._table(name).get("task")
        if task is None:
            return None
        try:
            return TaskFacts(**facts_of(self._task(name, task)))
        except ValidationError as error:
            said = str(error.errors(include_url=False)[0]["msg"]).removeprefix("Value error, ")
            raise BadInput(f"{self.path / SITE}: data.{name}.task: {said}") from None

    def _task(self, name: str, table: Any) -> Table:
        return read_task(table, f"{self.path / SITE}: data.{name}.task", self.path)

    def budget(self, name: str) -> Amount | None:
        """Return how much privacy all runs together may take of the data named `name`; None: nobody has said.

        Raises:
            BadInput: no such data, or what they say is wrong.
        """
        given = self._table(name).get("budget")
        return None if given is None else checked(Amount, self.path / SITE, given)

    def with_budget(self, name: str) -> list[str]:
        """Return the names of data with a privacy budget that read a file or a table that the data named `name` read.

        These themselves too, first: rows have one budget, by whatever name somebody asks for them.
        """
        read = self.read_by(name)
        found = [one for one in self.names() if self.budget(one) is not None and _meet(read, self.read_by(one))]
        return sorted(found, key=lambda one: one != name)

    def reads_same(self, name: str, other: str) -> bool:
        """Say whether data of two names read the same rows; of what has no such name any more, they may."""
        known = name in self._data and other in self._data
        return name == other or not known or _meet(self.read_by(name), self.read_by(other))

    def check_predicts(self, protocol: Protocol, trained: str) -> None:
        """Check that a model may predict that was trained on the data of this name; empty: on none of here.

        Raises:
            BadInput: they have a privacy budget, and parts of the model are trained without noise.
        """
        counted = self.with_budget(trained) if trained in self.names() else []
        if counted and not protocol.predicts_within_account:
            raise BadInput(
                f"{self.name}: data.{counted[0]}.budget: {_reads(trained, counted[0])}the model was trained on them, "
                f"in part without noise, and what predictions of {protocol.name} tell of them is not counted; train "
                f"on data without a budget, or take the budget out of {SITE}"
            ).telling(
                f"{self.name}: data.{trained}.budget: the model was trained on them, in part without noise, and what "
                f"predictions of {protocol.name} tell of them is not counted"
            )

    def check_new_rows(self, name: str) -> None:
        """Check that rows of data may be predicted: what predictions tell of them is not counted.

        Raises:
            BadInput: they have a privacy budget.
        """
        if counted := self.with_budget(name):
            raise BadInput(
                f"{self.name}: data.{counted[0]}.budget: {_reads(name, counted[0])}predictions of such data are not "
                "counted there yet"
            ).telling(f"{self.name}: data.{name}.budget: predictions of such data are not counted there yet")

    def check_measured(self, name: str) -> None:
        """Check that the rows that data name to measure on have no budget: what scores tell of them is not counted.

        Raises:
            BadInput: they are read by data with a budget.
        """
        task = self._table(name).get("task")
        test = task.get("test") if isinstance(task, dict) else None
        read = {(where, "") for where in _read_at(test, self.path)}
        for one in self.names():
            if self.budget(one) is not None and _meet(read, self.read_by(one)):
                raise BadInput(
                    f"{self.name}: data.{name}.task.test: {shown(test)} is not allowed: data.{one} reads it, which has "
                    "a budget, and what scores tell of the rows is not counted: name rows that have none"
                )

    def read_by(self, name: str) -> set[tuple[str, str]]:
        """Return the files and addresses that data are read from, each with the table of it, where one is named."""
        found = self._table(name)
        tables = found.get("tables")
        given = [(found.get(key), "") for key in _LOCATIONS]
        given += [(value, table) for table, value in tables.items()] if isinstance(tables, dict) else []
        return {(where, _table_at(where, table)) for value, table in given for where in _read_at(value, self.path)}

    def rows_file(self, name: str) -> Path:
        """Return the file of data whose rows are predicted online.

        Raises:
            BadInput: no such data, they are no file, or they have a privacy budget, which counts no such predictions.
        """
        self.check_new_rows(name)
        if not isinstance(found := self._table(name).get("path"), str):
            raise BadInput(f"{self.name}: data.{name}: only rows of a file (path) are served")
        return self.path / found

    def source(self, asked: DataName, facts: TaskFacts, table: Mapping[str, Any] | None = None) -> Any:
        """Return where the rows of data of this site are, in a run of this task; `table`: not as site.toml says.

        Raises:
            BadInput: no such data, or what they say of themselves is wrong.
        """
        table = dict(self._table(asked.name) if table is None else table)
        task = table.pop("task", {})
        table.pop("budget", None)
        file, where, positive = self.path / SITE, f"data.{asked.name}", None
        if facts.layout == "vertical" and "label" in table:
            if not task:
                raise BadInput(f"{file}: {where}.task: missing: the data with the label say of what type the task is")
            stated = self._task(asked.name, task)
            positive = stated.positive if isinstance(stated, VerticalTask) else None
        if facts.layout == "graph":
            return read_files(table, where, self.path, self.name)
        if facts.layout == "relational":
            return read_table(table, where, self.path, asked.name)
        if asked.is_test:
            if not isinstance(task, dict) or "test" not in task:
                raise BadInput(f"{file}: {where}.task.test: missing: the file of the rows to measure on")
            stated = self._task(asked.name, task)
            table["path"] = stated.test if isinstance(stated, HorizontalTask) else None
        name = "test" if asked.is_test else self.name
        if facts.layout == "vertical":
            kind, count = facts.of_one_value, facts.classes
            return read_party(table, where, self.path, name, facts.layout, kind, count, positive)
        looks = {key: value for key in IMAGE_FOLDERS if (value := getattr(facts, key))}
        found, image_folder = read_samples(table, where, self.path, name, facts.type, facts.targets, looks)
        horizontal = HorizontalFile(
            file=found,
            classes=facts.labels,
            image_folder=image_folder,
            targets=facts.targets,
            fewest_rows=_FEWEST_ROWS,
        )
        if horizontal.holds_out:
            raise BadInput(
                f"{where}.split: {found.split_column!r} is not allowed over a federation: give validation_fraction"
            )
        return horizontal

    def measure(self, name: str) -> tuple[int, int, str]:
        """Read data of this site as a run would, and return how many rows and columns they have, and what is odd.

        Columns are those of features; of a table that a query joins, all. That ids stand in several rows is odd: rows
        to predict may, and nobody says here which rows are to be trained on.

        Raises:
            BadInput, DataMissing: they cannot be read, or what they say of themselves is wrong.
        """
        asked, facts = DataName(site=self.name, name=name), self.task(name)
        try:
            return self._measured(asked, facts, self.source(asked, facts or self._task_of_others(asked)))
        except BadInput:
            # rows to predict have no rules of their own: a run reads them as it read those that it was trained on
            if facts is None and set(table := self._table(name)) <= _OF_NEW_ROWS:
                for other in self.names():
                    rules = {key: value for key, value in self._table(other).items() if key in _RULES}
                    with contextlib.suppress(FedactorsError):
                        if rules and other != name:
                            source = self.source(asked, _OF_OTHERS, {**rules, **table})
                            rows, columns, _ = self._measured(asked, None, source)
                            return rows, columns, f"read as data.{other} are, like rows to predict"
            raise

    def _measured(self, asked: DataName, facts: TaskFacts | None, source: Any) -> tuple[int, int, str]:
        if isinstance(source, HorizontalFile):
            if facts is None:
                source = replace(source.file, needs_label=False)  # what labels mean, others say
            else:
                self.source(replace(asked, is_test=True), facts).load()
        found, odd = source.load(), ""
        shape = found.shape if isinstance(source, TableSource) else found.features.shape
        rows, columns = shape[0], math.prod(shape[1:])
        if facts is not None and facts.layout == "vertical":  # which has the label, and is trained on
            check_block(found, self.name, facts.of_one_value, facts.classes)
        elif isinstance(found, PartyBlock):
            try:
                check_ids(found.ids, "no run trains on them")
            except BadInput as error:
                odd = str(error)
        return int(rows), int(columns), odd

    def _task_of_others(self, asked: DataName) -> TaskFacts:
        """Return of what layout data are that state no task, as another site's will."""
        table = self._table(asked.name)
        facts = replace(_OF_OTHERS, layout="relational")
        if "nodes" in table or "label" in table:
            return replace(facts, layout="graph" if "nodes" in table else "horizontal")
        with contextlib.suppress(BadInput):
            if self.source(asked, facts).kind not in ("csv", "parquet") or "id" not in table:
                return facts
        return replace(facts, layout="vertical")

    def _table(self, name: str) -> dict[str, Any]:
        if name not in self._data:
            raise BadInput(f"{self.name}: has no data named {shown(name)} (its data: {', '.join(self.names())})")
        return self._data[name]
