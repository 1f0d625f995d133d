"""The two descriptions that a person writes: of the federation (who is in it), and of a site (its data).

federation.toml   name, authority, [sites.NAME] address and certificate, [seats] party = site; the same at all sites
site.toml         name, listen, wait_seconds; [data.NAME] with the keys of a party in a parties.toml, and its task
key.pem           the site's key; certificate.pem is taken from the federation's file (`credentials`)
"""

from __future__ import annotations

import contextlib
import json
import re
import ssl
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from cryptography import x509
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from fedactors.data.blocks import PartyBlock, check_block, check_ids
from fedactors.data.horizontal import HorizontalFile
from fedactors.data.own import facts_of, read_files, read_party, read_table, read_task
from fedactors.data.own_schema import HorizontalTask, Table, VerticalTask
from fedactors.data.relational import TableSource
from fedactors.errors import BadInput, FedactorsError
from fedactors.runtime.federated.audit import AUDIT, AuditLog
from fedactors.runtime.federated.audit import check as check_log
from fedactors.runtime.federated.credentials import KEY, Credentials, stamp
from fedactors.runtime.federated.identity import SITE_NAME, as_pem, check_name, fingerprint, read_certificate
from fedactors.runtime.federated.named_data import DataName, TaskFacts
from fedactors.runtime.federated.policy import Amount, Policy
from fedactors.validation import party_name, read_tree, shown

FEDERATION, SITE = "federation.toml", "site.toml"
EMBEDDED = "embedded"
"""A Ray of the site's own that begins and ends with each run."""
_PLAIN_LINES = re.compile(r"(?:[A-Za-z0-9+/= \-]*\n)+")
_HOST = re.compile(r"[A-Za-z0-9_.:%\[\]\-]{1,253}")
_STRICT = ConfigDict(extra="forbid", strict=True)
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
    seats: dict[str, str]


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
    seats: Mapping[str, str]
    """Party that belongs to no organisation's data, to the site whose process hosts it."""

    @cached_property
    def issuer(self) -> x509.Certificate:
        """The authority's certificate."""
        return read_certificate(self.authority, "authority")

    def owner_of(self, certificate: bytes) -> str | None:
        """Return the site whose certificate (DER) this is."""
        shown_one = fingerprint(certificate)
        return next((m.name for m in self.members.values() if shown_one in m.fingerprints), None)


def _checked(kind: type[Any], path: Path, tree: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_json(json.dumps(tree))
    except TypeError:
        raise BadInput(f"{path}: a date is not allowed here: write it as a text") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{path}: {place or 'content'}: {first['msg']}") from None


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
    found: _FederationFile = _checked(_FederationFile, path, {"sites": {}, "seats": {}, **tree})
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
    for party, site in found.seats.items():
        if site not in members or party in members or not SITE_NAME.fullmatch(party) or party == "driver":
            raise BadInput(f"{path}: seats.{party}: {site!r} is not allowed: a party that is no site, and a site")
    return Federation(found.name, found.authority, members, dict(found.seats))


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
    lines += ["[seats]", *(f"{quoted(party)} = {quoted(site)}" for party, site in made.seats.items()), ""]
    text = "\n".join(lines)
    if _federation_of(tomllib.loads(text), Path(FEDERATION)) != made:
        raise BadInput(f"{FEDERATION}: it would be read as another federation")
    return text


class SiteFolder:
    """All that a site has, in one folder; read when it is first needed.

    Args:
        path: the folder.

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
        self.credentials = Credentials(self.path, self.path / FEDERATION, self._read_federation)

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

    def _read_federation(self) -> tuple[Federation, x509.Certificate]:
        made = read_federation(self.path / FEDERATION)
        if self.name not in made.members:
            raise BadInput(f"{self.path / FEDERATION}: {self.name} is not among its sites: {', '.join(made.members)}")
        return made, made.members[self.name].certificate

    @property
    def federation(self) -> Federation:
        """The federation, as its file is now; this site is in it."""
        made: Federation = self.credentials.standing().federation
        return made

    @cached_property
    def audit(self) -> AuditLog:
        """The site's log."""
        return AuditLog(self.path / AUDIT, self.path / KEY)

    def log(self) -> list[dict[str, Any]]:
        """Return the lines of the site's log, after checking that each is its own."""
        return check_log(self.path / AUDIT, self.federation.members[self.name].certificate)

    @property
    def server_tls(self) -> ssl.SSLContext:
        """What this site demands of who dials it from now on; see `identity.tls`."""
        return self.credentials.standing().server_tls

    @property
    def client_tls(self) -> ssl.SSLContext:
        """What this site demands of those that it dials from now on; see `identity.tls`."""
        return self.credentials.standing().client_tls

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
