"""A site's folder: what its person and its federation have written there, read and checked.

    federation.toml   name, authority, [sites.NAME] address and certificate, [hosts] party = site; the same at all sites
    site.toml         name, listen, wait_seconds; [policy]; [data.NAME] with the keys of a party in a parties.toml,
                      its task, and its privacy budget
    key.pem           the site's key; certificate.pem is taken from the federation's file
    key.next.pem      the next key, from `fedactors site renew`: it becomes the key as soon as the federation's file
                      certifies it, and the site's log says so, signed with both

Files are read again when they have changed, for connections that are made from then on; those that are open go on.
Files that are wrong, or do not fit each other yet, change nothing: what was before holds, and `config_errors` says why.

In site.toml:

    [policy]
    approve = "policy"                        # what this table allows runs at once; "person" (default): each is asked
    coordinators = ["bank"]                   # who may propose; left out: every site
    colluders = 1                             # sites that may tell one another all: sums are of two more at least
    continuations = 20                        # how often a run may be gone on from, from whichever checkpoint
    [policy.protocols.pubsub-vfl]             # what may run; left out: everything
    num_epochs = { at_most = 20 }             # a setting: { at_least, at_most }, a list of values, or one value

    [data.orders]
    budget = { epsilon = 8.0, delta = 1e-4 }  # over all runs, by basic composition: epsilons and deltas add up

In a run, data are names for everybody (`DataName`), and at each site its own rows behind its own name.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import ssl
import threading
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from cryptography import x509
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from fedactors.data.databases import TableSource
from fedactors.data.description import facts_of, read_files, read_party, read_table, read_task
from fedactors.data.layouts.graph import UserGraph
from fedactors.data.layouts.horizontal import HorizontalData, HorizontalFile
from fedactors.data.layouts.vertical import RelationalData, RelationalPartition, VerticalData
from fedactors.data.party_rows import PartyBlock, check_block, check_ids
from fedactors.data.schema import HorizontalTask, Table, VerticalTask
from fedactors.errors import BadInput, FedactorsError
from fedactors.federation.audit_log import AUDIT, AuditLog
from fedactors.federation.audit_log import check as check_log
from fedactors.federation.identity import (
    SITE_NAME,
    as_pem,
    check_name,
    fingerprint,
    public_bytes,
    read_certificate,
    read_key,
    tls,
)
from fedactors.inspection import describe_protections
from fedactors.messages.codec import wire_type
from fedactors.plugins import Protocol
from fedactors.privacy.accounting import PrivacyRecord, claims
from fedactors.runs.storage import write_atomic
from fedactors.validation import party_name, read_tree, shown

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

    def within(self, cap: Amount) -> bool:
        """Say whether it is no more than `cap`, which it is not if either is no number."""
        return self.epsilon <= cap.epsilon and self.delta <= cap.delta

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:.6g} at delta {self.delta:.3g}"


NOTHING, EVERYTHING = Amount(epsilon=0.0), Amount(epsilon=math.inf, delta=1.0)


@pydantic_dataclass(frozen=True, kw_only=True, config=_STRICT)
class Policy:
    """What a site lets run, and what of it without asking its person."""

    approve: Literal["person", "policy"] = "person"
    coordinators: list[str] | None = None
    protocols: dict[str, dict[str, Any]] | None = None
    colluders: Annotated[int, Field(ge=0)] = 1
    """Organisations that may tell one another all they know: sums under masks are of two more at least."""
    continuations: Annotated[int, Field(ge=0)] = 20
    """How often a run may be gone on from in all, from whichever of its checkpoints."""

    def check(self, site: str, coordinator: str, protocol: str, config: Any) -> None:
        """Check that a run may be.

        Raises:
            BadInput: naming the key of the policy, what the run asks for, and what is allowed.
        """
        self.check_coordinator(site, coordinator)
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
            follows = value == 0 and setting in getattr(config, "by_rows", ())
            if follows or not _allows(rule, value, where):
                why = ", which stands for what follows from the rows; give a number" if follows else ""
                raise BadInput(f"{where}: {shown(value)} is not allowed: {shown(rule)}{why}")

    def check_coordinator(self, site: str, coordinator: str) -> None:
        """Check that a site may propose runs.

        Raises:
            BadInput: naming who may.
        """
        if self.coordinators is not None and coordinator not in self.coordinators:
            allowed = ", ".join(self.coordinators) or "nobody"
            raise BadInput(f"{site}: policy.coordinators: {coordinator} is not allowed: {allowed}")


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


# --- the data of a run ---

Described = VerticalData | HorizontalData | RelationalData | UserGraph


@pydantic_dataclass(frozen=True, kw_only=True, config=_STRICT)
class TaskFacts:
    """What all parties of a run know of the task; the coordinator's data state it.

    ``alignment`` and ``split`` are of vertical rows, ``labels`` (the classes' texts) of horizontal ones, ``sql``,
    ``label`` and ``categorical`` of tables, which the query calls by the names of the sites' data.
    """

    layout: Literal["vertical", "horizontal", "relational", "graph"]
    type: Literal["binary", "multiclass", "regression"]
    classes: int
    """1 for a regression; of a graph the nodes' file tells."""
    alignment: Literal["already-aligned", "hash", "psi"] = "already-aligned"
    split: Literal["random", "stratified"] = "random"
    labels: tuple[str, ...] = ()
    sql: str = ""
    label: str = ""
    categorical: tuple[str, ...] = ()


@wire_type
class DataName:
    """Stands for data that their site knows by this name; the site alone knows where they are."""

    site: str
    name: str
    is_test: bool = False
    """Whether the test rows are meant that the data named so come with."""
    holds_out: ClassVar[bool] = False
    """Over a federation clients measure on no rows of their own yet."""

    def holding_out(self, share: float, seed: int) -> Any:
        """Refuse: as `holds_out`."""
        raise BadInput(f"validation_fraction: {share:g} is not allowed over a federation: sites hold no rows out there")

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
            shape=(),
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
            task=task.type,
            num_classes=task.classes,
            partitions=tuple(
                RelationalPartition(party=n.site, table=n.name, partition=tables[:i].count(n.name), source=find(n))
                for i, n in enumerate(names)
            ),
            categorical=task.categorical,
        )
    return VerticalData(
        name=title,
        task=task.type,
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


# --- the files ---

KEY, NEXT_KEY, CERTIFICATE = "key.pem", "key.next.pem", "certificate.pem"
FEDERATION, SITE = "federation.toml", "site.toml"
EMBEDDED = "embedded"
"""A Ray of the site's own that begins and ends with each run."""
_PLAIN_LINES = re.compile(r"(?:[A-Za-z0-9+/= \-]*\n)+")
_HOST = re.compile(r"[A-Za-z0-9_.:%\[\]\-]{1,253}")
_OF_OTHERS = TaskFacts(layout="vertical", type="regression", classes=1)
"""What another site may state of the task."""
_OF_NEW_ROWS, _RULES = {"path", "id", "csv"}, ("features", "categorical", "columns", "csv")
"""Keys of rows to predict, and what they have from those of training."""


@pydantic_dataclass(frozen=True, kw_only=True, config=_STRICT)
class _SiteEntry:
    address: str
    certificate: str
    previous: str | None = None
    relay: bool = False


@pydantic_dataclass(frozen=True, kw_only=True, config=_STRICT)
class _FederationFile:
    name: str
    authority: str
    sites: dict[str, _SiteEntry]
    hosts: dict[str, str]


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


@dataclass(frozen=True)
class Member:
    """A site as the federation's file has it."""

    name: str
    host: str
    port: int
    certificate: x509.Certificate
    previous: x509.Certificate | None = None
    """The one before it, which it may show until it has the file with the new one."""
    is_relayed: bool = False
    """Whether host and port are a relay's, through which it is called."""

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """SHA-256 of its certificates."""
        return tuple(fingerprint(one) for one in (self.certificate, self.previous) if one is not None)


@dataclass(frozen=True)
class Federation:
    """Who may work together."""

    name: str
    authority: str
    members: Mapping[str, Member]
    hosts: Mapping[str, str]
    """Party that belongs to no organisation's data, to the site whose process hosts it."""

    @cached_property
    def issuer(self) -> x509.Certificate:
        """The authority's certificate."""
        return read_certificate(self.authority, "authority")

    def owner_of(self, certificate: bytes) -> str | None:
        """Return the site whose certificate (DER) this is."""
        shown_one = fingerprint(certificate)
        return next((m.name for m in self.members.values() if shown_one in m.fingerprints), None)


@dataclass(frozen=True)
class _Membership:
    """What a site is in its federation, as its files had it when they were read."""

    federation: Federation
    server_tls: ssl.SSLContext
    client_tls: ssl.SSLContext


def _checked(kind: type[Any], path: Path, tree: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_json(json.dumps(tree))
    except TypeError:
        raise BadInput(f"{path}: a date is not allowed here: write it as a text") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        location = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{path}: {location or 'content'}: {first['msg']}") from None


def parse_address(text: str, field: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``; an IPv6 address stands in brackets, which are none of the host.

    Raises:
        BadInput: it is something else.
    """
    host, colon, port = text.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536
    if not (colon and is_port and _HOST.fullmatch(host)):
        raise BadInput(f"{field}: {shown(text)} is not allowed: give HOST:PORT")
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host, int(port)


def read_federation(path: Path) -> Federation:
    """Read and check a ``federation.toml``.

    Raises:
        BadInput: naming the file, the field and what is wrong.
    """
    return _federation_of(read_tree(path, "federation"), path)


def _federation_of(tree: Any, path: Path) -> Federation:
    found: _FederationFile = _checked(_FederationFile, path, {"sites": {}, "hosts": {}, **tree})
    check_name(found.name, "federation")
    read_certificate(found.authority, f"{path}: authority")
    members = {}
    for name, entry in found.sites.items():
        host, port = parse_address(entry.address, f"{path}: sites.{name}.address")
        certificate = read_certificate(entry.certificate, f"{path}: sites.{name}.certificate")
        previous = None
        if entry.previous is not None:
            previous = read_certificate(entry.previous, f"{path}: sites.{name}.previous")
        check_name(name, f"{path}: sites")
        # called like an actor that is nobody's data, it would host that
        members[party_name(name, f"{path}: sites")] = Member(name, host, port, certificate, previous, entry.relay)
    for party, site in found.hosts.items():
        if site not in members or party in members or not SITE_NAME.fullmatch(party) or party == "driver":
            raise BadInput(f"{path}: hosts.{party}: {site!r} is not allowed: a party that is no site, and a site")
    return Federation(found.name, found.authority, members, dict(found.hosts))


def quoted(text: str) -> str:
    """Return a text as TOML has it; lines of letters such as a PEM's stay lines."""
    if _PLAIN_LINES.fullmatch(text):
        return f'"""\n{text}"""'
    # of JSON's escapes of what is no ASCII, TOML has no pairs of surrogates
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def federation_text(made: Federation) -> str:
    """Return a ``federation.toml``.

    Raises:
        BadInput: the text would not be read as this federation.
    """
    lines = [f"name = {quoted(made.name)}", f"authority = {quoted(made.authority)}", ""]
    for site, member in made.members.items():
        host = f"[{member.host}]" if ":" in member.host else member.host
        lines += [f"[sites.{quoted(site)}]", f"address = {quoted(f'{host}:{member.port}')}"]
        lines += [f"certificate = {quoted(as_pem(member.certificate))}"]
        lines += ["relay = true"] if member.is_relayed else []
        lines += [] if member.previous is None else [f"previous = {quoted(as_pem(member.previous))}"]
        lines += [""]
    lines += ["[hosts]", *(f"{quoted(party)} = {quoted(site)}" for party, site in made.hosts.items()), ""]
    text = "\n".join(lines)
    if _federation_of(tomllib.loads(text), Path(FEDERATION)) != made:
        raise BadInput(f"{FEDERATION}: it would be read as another federation")
    return text


def stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file does; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


class SiteFolder:
    """All that a site has, in one folder; read when it is first needed.

    Raises:
        BadInput: there is no site in it, or its description is wrong.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
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
        self.wait_seconds = found.wait_seconds
        """For a site whose connection broke to come back, before a run ends."""
        self.config_errors: str | None = None
        """Why the federation's file and the keys as they are now are not used."""
        self._member: _Membership | None = None
        self._member_seen: object = None
        self._lock = threading.Lock()

    def _read_site(self) -> _SiteFile:
        file = self.path / SITE
        if not file.is_file():
            raise BadInput(
                f"--folder: {shown(str(self.path))} holds no {SITE}: make a site with fedactors site init NAME"
            )
        found: _SiteFile = _checked(_SiteFile, file, {"data": {}, **read_tree(file, "site")})
        for name in found.data:
            check_name(name, f"{file}: data")
        self._seen, self._data, self.policy = stamp(file), found.data, found.policy
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
        return self._membership().federation

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
        files = [self.path / name for name in (FEDERATION, KEY, NEXT_KEY)]
        with self._lock:
            if self._member is None or [stamp(path) for path in files] != self._member_seen:
                try:
                    self._member, self.config_errors = self._read_membership(), None
                except BadInput as error:
                    if self._member is None:
                        raise
                    self.config_errors = str(error)
                self._member_seen = [stamp(path) for path in files]
            return self._member

    def _read_membership(self) -> _Membership:
        file, key, following = self.path / FEDERATION, self.path / KEY, self.path / NEXT_KEY
        federation = read_federation(file)
        if self.name not in federation.members:
            raise BadInput(f"{file}: {self.name} is not among its sites: {', '.join(federation.members)}")
        certificate = federation.members[self.name].certificate
        certified = public_bytes(certificate.public_key())
        if following.exists() and public_bytes(read_key(following).public_key()) == certified:
            AuditLog(self.path / AUDIT, key).turn(following)
        if public_bytes(read_key(key).public_key()) != certified:
            raise BadInput(f"key: {key} is not the one that {file} certifies: the site's file is older or newer")
        certificate_path = self.path / CERTIFICATE
        write_atomic(certificate_path, as_pem(certificate).encode(), "certificate")
        ends = (
            tls(server=s, key=key, certificate=certificate_path, authority=federation.authority) for s in (True, False)
        )
        return _Membership(federation, *ends)

    @cached_property
    def audit(self) -> AuditLog:
        """The site's log."""
        return AuditLog(self.path / AUDIT, self.path / KEY)

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
        return None if task is None else TaskFacts(**facts_of(self._task(name, task)))

    def _task(self, name: str, table: Any) -> Table:
        return read_task(table, f"{self.path / SITE}: data.{name}.task", self.path)

    def budget(self, name: str) -> Amount | None:
        """Return how much privacy all runs together may take of the data named `name`; None: nobody has said.

        Raises:
            BadInput: no such data, or what they say is wrong.
        """
        given = self._table(name).get("budget")
        return None if given is None else _checked(Amount, self.path / SITE, given)

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
        found = read_party(table, where, self.path, name, facts.layout, facts.type, facts.classes, positive)
        if facts.layout == "vertical":
            return found
        horizontal = HorizontalFile(file=found, classes=facts.labels)
        if horizontal.holds_out:
            raise BadInput(
                f"{where}.split: {found.split_column!r} is not allowed: sites hold no rows out over a federation"
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
        rows, columns = found.shape if isinstance(source, TableSource) else found.features.shape
        if facts is not None and facts.layout == "vertical":  # which has the label, and is trained on
            check_block(found, self.name, facts.type, facts.classes)
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
