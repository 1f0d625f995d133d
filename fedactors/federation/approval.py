"""What a coordinator asks of the other sites, as they see it before anything runs, and what they answer.

    coordinator: make_proposal, go_on ──propose──▶ site: read_proposal, check_proposal, keep_proposal
                                      ◀─decision── its person: decide; or its policy

A proposal and its answer are files of the site's folder, each written once; what was approved is what runs (`digest`).
A proposal is checked before anybody approves it. No setting of it opens a file. Its coordinator is told what is wrong
with the proposal by itself, and only that it is not allowed where the site's data or policy forbid it.
It is one file because all of it is of one proposal.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import re
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import asdict, field, fields, is_dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from fedactors import __version__
from fedactors.actors.remote import DRIVER, endpoints, ordinal
from fedactors.config import drawn_from_seed, named_files, source_on_disk
from fedactors.data.databases import TableSource
from fedactors.data.layouts.relational import label_parties
from fedactors.data.layouts.vertical import RelationalData
from fedactors.data.new_rows import StoredState
from fedactors.errors import BadInput, FedactorsError, Refused
from fedactors.federation.identity import Federation, check_name
from fedactors.federation.site_code import check_digests, check_named, why_not_allowed
from fedactors.federation.site_folder import (
    Amount,
    DataName,
    Described,
    RunLimits,
    SiteFolder,
    TaskFacts,
    check_budget,
    describe,
    stamp,
    to_tell,
)
from fedactors.inspection import describe_protections
from fedactors.messages.codec import encode
from fedactors.messages.ledger import Ledger, Usage
from fedactors.network.links import Network
from fedactors.plugins import Protocol, find_protocol, loader
from fedactors.runs.storage import sync_folder, write_synced
from fedactors.runtime.compute import WallClock
from fedactors.runtime.interface import ActorSpec, Runtime, Snapshot
from fedactors.secure_sums.primitives import threshold_of
from fedactors.validation import address_of, files_at, first_line, opened, shown

RUN_ID = re.compile(r"[0-9a-f]{16}")
PROPOSALS = "proposals"
MOST_RETURN_SECONDS = 30 * 86_400.0
RETURN_SECONDS = 600.0
"""Beyond `return_timeout` and its `wait_seconds`, within which a site was away by the time of its last checkpoint."""


@pydantic_dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid", strict=True))
class Proposal:
    """A run that a site is asked to take part in.

    ``data`` are the names of each site's data, the party with the label first; ``source`` is the digest of the code;
    with a ``shared_seed`` the coordinator knows the seeds of the others' initial weights and shuffles: tests only.
    """

    run: str
    federation: str
    coordinator: str
    protocol: str
    version: str
    source: str
    config: dict[str, Any]
    data: dict[str, str]
    task: TaskFacts
    shared_seed: int | None
    budget: dict[str, Amount]
    """What the run will take at most of the sites' privacy budgets."""
    purpose: Literal["train", "resume", "predict"] = "train"
    earlier: str = ""
    """The run that it goes on from, which the sites have their parts of."""
    number: int = 0
    """The checkpoint of that run, as all sites have it."""
    seed: int = 0
    """Of what all parties draw alike: the split, the batches. It follows who is spawned, and with what."""
    limits: RunLimits = field(default_factory=RunLimits)
    """What it takes at most of each site's machine, as far as it says."""
    code: dict[str, str] = field(default_factory=dict)
    """SHA-256 of each source file that it brings, by name; see `site_code`."""
    code_signature: str = ""
    """Of a person who vouches for that code, in hexadecimal digits."""
    return_timeout: Annotated[float, Field(ge=0.0, le=MOST_RETURN_SECONDS)] = 0.0
    """Seconds that the run pauses for a site that is lost; see `check_resumes_itself`. 0: it ends."""

    @property
    def digest(self) -> str:
        """SHA-256 of all of it, the order of the sites too."""
        return hashlib.sha256(json.dumps([as_tree(self), list(self.data)], sort_keys=True).encode()).hexdigest()

    def site_of(self, actor: str, hosts: Mapping[str, str]) -> str:
        """Return the site that hosts an actor: its party's own, its host, or the coordinator's."""
        party = actor.partition("/")[0]
        return party if party in self.data else hosts.get(party, self.coordinator)

    def described(self, folder: SiteFolder | None = None) -> Described:
        """Return who holds what: names, and where the rows of the site of `folder` are, as only that site knows."""

        def find(name: DataName) -> Any:
            return name if folder is None or name.site != folder.name else folder.source(name, self.task)

        return describe(self.task, self.data, find, is_new=self.purpose == "predict")


def as_tree(proposal: Proposal) -> dict[str, Any]:
    """Return a proposal as plain values; see `read_proposal`."""
    return asdict(proposal)  # type: ignore[call-overload,no-any-return]


def make_proposal(
    folder: SiteFolder,
    protocol: Protocol,
    config: Mapping[str, Any],
    data: str,
    seed: int | None,
    budget: Mapping[str, Amount] | None = None,
    run_seed: int = 0,
    limits: RunLimits | None = None,
    code: Mapping[str, str] | None = None,
    code_signature: str = "",
    return_timeout: float = 0.0,
) -> Proposal:
    """Return what the site of `folder` asks for as the coordinator.

    Args:
        folder: the coordinator's.
        protocol: what is to be run.
        config: its settings, JSON-ready.
        data: ``SITE=NAME,SITE=NAME``: the names of each site's data; the coordinator's have the label.
        seed: of a test; None: each site has one of its own, that nobody else knows.
        budget: what it takes at most of the sites' privacy budgets.
        run_seed: of what all parties draw alike.
        limits: what it takes at most of each site's machine.
        code: SHA-256 of the source files that its settings name, by file.
        code_signature: of a person who vouches for that code.
        return_timeout: seconds that it pauses for a site that is lost.

    Raises:
        BadInput: `data` are something else, the coordinator's data have no label, or the pause is too long.
    """
    if return_timeout > MOST_RETURN_SECONDS:
        raise BadInput(
            f"--return-timeout: {return_timeout:g} is not allowed: at most {MOST_RETURN_SECONDS:.0f} (30 days)"
        )
    pairs = _names(data)
    if folder.name not in pairs:
        raise BadInput(f"--data: the coordinator {folder.name} brings none: its data state the task")
    task = folder.task(pairs[folder.name])
    if task is None:
        raise BadInput(
            f"--data: {pairs[folder.name]} of {folder.name} has no label and no task: "
            "the site that has the label, and says the task in its site.toml, starts the run"
        )
    made = Proposal(
        run=secrets.token_hex(8),
        federation=folder.federation.name,
        coordinator=folder.name,
        protocol=protocol.name,
        version=__version__,
        source=source_digest(protocol),
        config=dict(config),
        data={folder.name: pairs.pop(folder.name), **pairs},
        task=task,
        shared_seed=seed,
        budget=dict(budget or {}),
        seed=run_seed,
        limits=limits or RunLimits(),
        code=dict(code or {}),
        code_signature=code_signature,
        return_timeout=return_timeout,
    )
    check_proposal(read_proposal(as_tree(made)), folder)
    return made


def _names(data: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for word in data.split(","):
        site, equals, name = (part.strip() for part in word.partition("="))
        if not (site and equals and name) or site in pairs:
            raise BadInput(f"--data: {shown(data)} is not allowed: give SITE=NAME,SITE=NAME, each site once")
        pairs[site] = name
    return pairs


def read_proposal(tree: Any) -> Proposal:
    """Return a proposal that came from elsewhere.

    Raises:
        BadInput: it is none.
    """
    try:
        made: Proposal = TypeAdapter(Proposal).validate_json(json.dumps(tree))
    except (TypeError, ValueError, RecursionError) as error:
        if not isinstance(error, ValidationError):
            raise BadInput(f"proposal: {first_line(error)}") from None
        first = error.errors(include_url=False)[0]
        location = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"proposal: {location}: {first['msg']}") from None
    if not RUN_ID.fullmatch(made.run):
        raise BadInput(f"proposal: run: {shown(made.run)} is not allowed: 16 hexadecimal digits")
    for site, name in made.data.items():
        check_name(site, "proposal: data")
        check_name(name, f"proposal: data.{site}")  # a name: nothing that could be a path
    if len(made.data) < 2:
        raise BadInput("proposal: data: at least two sites must bring data")
    check_digests(made.code)
    return made


def check_proposal(proposal: Proposal, folder: SiteFolder, *, may_wait: bool = False) -> tuple[Protocol, Any]:
    """Return the protocol and the config that a proposal asks for, if this site could take part.

    Args:
        proposal: what is asked for.
        folder: the site's.
        may_wait: whether its code may wait for this site's person: what follows from the code is then not checked yet.

    Raises:
        BadInput: it is for another federation or other code, names code or data that there are not, or other facts of
            the task than this site's own. Who proposes is told its `for_others`, where it has that.
    """
    protocol, config = _check_alone(proposal, folder.federation, folder.name)
    with closed_to_others(folder.name):
        _check_here(proposal, folder, protocol, config)
    if why := why_not_allowed(folder, proposal):  # none of it is imported before
        if may_wait:
            return protocol, config
        raise BadInput(f"{folder.name}: {why}").telling(f"{folder.name}: its code is not allowed here")
    spawned = spawned_by(protocol, config, proposal, folder.federation.hosts)
    with closed_to_others(folder.name):
        if (load := loader(protocol, is_new=proposal.purpose == "predict")) is not None:
            load(config, proposal.described(folder), 0)
        _check_sums(config, proposal, spawned, folder, is_noised=_adds_noise(protocol, config, jointly=True))
        most, hosts = proposal.limits.within(folder.policy.run_limits, folder.name), folder.federation.hosts
        local = (spec for name, spec in spawned.items() if proposal.site_of(name, hosts) == folder.name)
        gpus = sum(spec.resources.num_gpus for spec in local)
        if most.gpus is not None and gpus > most.gpus:
            said = f"{folder.name}: limits.gpus: its actors here ask for {gpus:g}"
            raise BadInput(f"{said}; at most {most.gpus:g}").telling(f"{said}, which is not allowed")
    return protocol, config


@contextlib.contextmanager
def closed_to_others(site: str) -> Iterator[None]:
    """Let errors that follow from what only this site knows tell others no more than they say themselves."""
    try:
        yield
    except FedactorsError as error:
        if error.for_others is None:
            error.for_others = f"{site}: its data or its policy do not allow it; the log of the site {site} says more"
        raise


def _check_alone(proposal: Proposal, federation: Federation, me: str) -> tuple[Protocol, Any]:
    """Check what follows from a proposal and the federation alone; `me` names this site in errors."""
    if beside := sorted(set(proposal.budget) - set(proposal.data)):
        raise BadInput(f"{me}: budget: {shown(beside[0])} is not allowed: it brings no data to the run")
    if proposal.federation != federation.name:
        raise BadInput(f"{me}: the run is for the federation {shown(proposal.federation)}, not this one")
    for site in (*proposal.data, proposal.coordinator):
        if site not in federation.members:
            known = ", ".join(federation.members)
            raise BadInput(f"{me}: {site!r} is no site of {federation.name} (its sites: {known})")
    try:
        protocol = find_protocol(proposal.protocol)
    except FedactorsError as error:  # which names what is installed
        raise error.telling(f"protocol: {shown(proposal.protocol)} is not installed at {me}") from None
    layout = proposal.task.layout
    if protocol.actors is None or protocol.load_data is None:
        raise BadInput(f"protocol: {protocol.name} cannot run over a federation: it does not say who its actors are")
    if protocol.partition != layout:
        raise BadInput(f"task.layout: {layout} is not allowed: {protocol.name} needs {protocol.partition} data")
    here = source_digest(protocol)
    if (proposal.version, proposal.source) != (__version__, here):
        raise BadInput(
            f"{me}: has other code for {protocol.name}: version {__version__}, source {here[:12]}; the run "
            f"asks for version {shown(proposal.version)}, source {shown(proposal.source[:12])}"
        )
    if here != source_on_disk(package_of(protocol)):  # which this process, and those of its Ray, would load from now on
        raise BadInput(f"{me}: the code of {protocol.name} was upgraded since {me} began: start it again")
    try:
        config = TypeAdapter(protocol.Config).validate_python(proposal.config)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise BadInput(f"proposal: config.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if files := named_files(config):
        raise BadInput(f"proposal: config.{next(iter(files))}: a path is not allowed between sites: give the content")
    check_named(proposal, config, me)
    if seeded := drawn_from_seed(config):  # the proposer of the seed, or of a resume, could take them off
        raise BadInput(
            f"proposal: config.{seeded[0]}: noise and masks do not follow from the run's seed over a federation"
        )
    if proposal.return_timeout > 0 and has_quorum(config):
        raise BadInput(
            f"return_timeout: {proposal.return_timeout:g} is not allowed with min_sites, with which a run goes on "
            "without a lost site: leave out one of them"
        )
    if getattr(config, "on_party_loss", "stop") != "stop" and not has_quorum(config):
        how = "'stop'; or give min_sites" if hasattr(config, "min_sites") else "'stop'"
        raise BadInput(f"on_party_loss: {config.on_party_loss!r} is not allowed over a federation yet: {how}")
    classes_of(protocol, config, proposal.purpose)
    return protocol, config


def _check_here(proposal: Proposal, folder: SiteFolder, protocol: Protocol, config: Any) -> None:
    """Check what follows from this site's data and policy."""
    if proposal.purpose != "train":
        _check_earlier(proposal, folder)
    holds_label = _holds_label(proposal, folder)
    if proposal.purpose == "predict":
        if name := proposal.data.get(folder.name, ""):
            folder.check_new_rows(name)
        folder.check_predicts(protocol, first_of(folder, proposal).data.get(folder.name, ""))
    elif folder.name in proposal.data:
        name = proposal.data[folder.name]
        facts, is_first = folder.task(name), folder.name == next(iter(proposal.data))
        if facts != proposal.task and (is_first or (facts is not None and facts.layout == "horizontal")):
            raise to_tell(f"{folder.name}: data.{name}: the run states another task than these data")
        if facts is not None and not is_first and facts.layout == "vertical":
            raise to_tell(f"{folder.name}: data.{name}: they hold a label; the run takes another's")
        if holds_label and facts != proposal.task:
            raise to_tell(
                f"{folder.name}: data.{name}: task.label: {shown(proposal.task.label)} is not allowed: a column of "
                f"theirs is a label only where data.{name}.task states the same task"
            )
        if is_first:
            folder.check_measured(name)
        if (cap := folder.budget(name)) is not None:
            check_budget(folder, name, cap, proposal, protocol, config)
        elif counted := folder.with_budget(name):
            raise BadInput(
                f"{folder.name}: data.{name}.budget: missing: they read what data.{counted[0]} reads, which has a "
                "budget: give them one too; what runs take counts for both"
            ).telling(f"{folder.name}: data.{name}.budget: missing; the log of the site {folder.name} says more")
    stated = {**vars(proposal.task), **dict.fromkeys(("num_parties", "num_clients"), len(proposal.data))}
    stated |= {"data": proposal.data[folder.name]} if folder.name in proposal.data else {}
    folder.policy.check(folder.name, proposal.coordinator, protocol.name, config, stated)


def _holds_label(proposal: Proposal, folder: SiteFolder) -> bool:
    """Say whether the label of a query is a column of this site's, of which each row's leaves.

    Raises:
        BadInput: the label does not name its table.
    """
    described = proposal.described()
    return isinstance(described, RelationalData) and folder.name in label_parties(described.query)


def _adds_noise(protocol: Protocol, config: Any, *, jointly: bool = False) -> bool:
    found = [one for one in describe_protections(protocol, config) if one["kind"] == "noise" and one["on"]]
    return any(one["is_joint"] or not jointly for one in found)


def may_come_back(config: Any, proposal: Proposal) -> bool:
    """Say whether the approval of a run holds for a site that comes back to it: with a quorum, or after a pause."""
    return has_quorum(config) or (proposal.return_timeout > 0 and proposal.purpose != "predict")


def has_quorum(config: Any) -> bool:
    """Say whether a run goes on without sites that are lost, as long as so many as its setting says are there."""
    return getattr(config, "min_sites", None) is not None


class _Listed(Exception):
    """The actors of a run are listed."""


class _ListingRuntime(Runtime):
    """A runtime in which a protocol's ``run`` says whom it spawns, and goes no further.

    `find_site` says which site hosts an actor.
    """

    def __init__(self, seed: int, find_site: Callable[[str], str]) -> None:
        super().__init__(seed=seed)
        self._find_site = find_site
        self.clock, self.ledger, self.network = WallClock(0.0), Ledger(), Network()

    def site_of(self, name: str) -> str:
        return self._find_site(name)

    def call(self, receiver: str, method: str, value: Any) -> Awaitable[Any]:
        raise BadInput(f"{receiver}.{method}: a run over a federation spawns its actors before it calls them")

    async def start(self) -> None:
        raise _Listed

    async def respawn(self, name: str) -> None:
        raise _Listed

    async def checkpoint(self, label: str = "last") -> None:
        raise _Listed

    def usage(self) -> Usage:
        raise _Listed

    def request_stop(self, exit_code: int) -> None:
        raise _Listed

    def execute(self, main: Callable[[], Awaitable[Any]], resume: Snapshot | None = None) -> Any:
        raise _Listed

    def listed(self) -> list[ActorSpec]:
        """Return who was spawned, in that order."""
        return self._take_new()


def spawned_by(
    protocol: Protocol,
    config: Any,
    proposal: Proposal,
    hosts: Mapping[str, str] | None,
    states: Mapping[str, bytes] | None = None,
) -> dict[str, ActorSpec]:
    """Return the actors of an approved run, by name: its own code says them, begun here and left before it starts any.

    Args:
        protocol: that is run, or predicts.
        config: the approved settings.
        proposal: what is approved.
        hosts: of actors without data, as the federation says; None: who hosts whom does not matter.
        states: of a prediction, what stands for the states of the trained actors that this site has, by actor.

    Raises:
        BadInput: the protocol refuses these settings and data.
    """
    from fedactors.serving.predictions import Application  # it loads what models are made of

    is_new = proposal.purpose == "predict"
    load = loader(protocol, is_new=is_new)
    assert load is not None
    runtime = _ListingRuntime(proposal.seed, lambda name: "" if hosts is None else proposal.site_of(name, hosts))
    data = load(config, proposal.described(), proposal.seed)
    main: Any
    if is_new:
        trained = spawned_by(protocol, config, replace(proposal, purpose="train"), None)  # type: ignore[type-var]
        stored = {name: StoredState(actor=name, frame=(states or {}).get(name, b"")) for name in trained}
        assert protocol.predict is not None
        main = protocol.predict(config, data, runtime, Application(stored=stored, to=""))
    else:
        main = protocol.run(config, data, runtime)
    begun: Coroutine[Any, Any, Any] = main
    try:
        begun.send(None)
    except _Listed:
        return {one.name: one for one in runtime.listed()}
    finally:
        begun.close()
    raise BadInput(f"protocol: {protocol.name} cannot run over a federation: it waits before it has spawned its actors")


def check_spawned(approved: Mapping[str, ActorSpec], asked: Iterable[tuple[str, str, Any]], is_user_code: Any) -> None:
    """Check that a driver spawns whom the approved proposal says, and here with the arguments that follow from it.

    Args:
        approved: by `spawned_by`.
        asked: name, class and frame of arguments of each actor.
        is_user_code: whether an actor, by its name, is of this site.

    Raises:
        Refused: naming the first who is another.
    """
    said = ", ".join(f"{name} ({one.cls.__name__})" for name, one in approved.items())
    missing = dict.fromkeys(approved)
    for name, cls, frame in asked:
        if name not in approved or approved[name].cls.__name__ != cls:
            raise Refused(DRIVER, f"spawns {name} as {cls}; approved: {said}")
        missing.pop(name, None)
        if is_user_code(name) and not _are_same(frame, approved[name]):
            raise Refused(DRIVER, f"spawns {name} with other arguments than follow from the approved proposal")
    if missing:
        raise Refused(DRIVER, f"does not spawn {', '.join(missing)}; approved: {said}")


def _are_same(frame: Any, spec: ActorSpec) -> bool:
    return bytes(frame) == encode((spec.args, dict(spec.kwargs)), arguments=True)


def _check_sums(
    config: Any, proposal: Proposal, actors: Mapping[str, ActorSpec], folder: SiteFolder, *, is_noised: bool
) -> None:
    """Check that who adds under masks is of enough organisations, each with data of its own in the run.

    Raises:
        BadInput: those who may collude would know somebody's part, however many clients they call themselves.
    """
    if not getattr(config, "secure_aggregation", False):
        return
    members = [one.name for one in actors.values() if hasattr(one.cls, "unmask_sum")]
    sites = {name.partition("/")[0] for name in members} & set(proposal.data)
    for setting, none in (("dropout_rate", 0.0), ("outages", "")):  # who is away follows from the proposal
        if members and (value := getattr(config, setting, none)) != none:
            raise to_tell(
                f"{folder.name}: {setting}: {shown(value)} is not allowed over a federation with secure_aggregation: "
                f"who is away adds zeros, so that a sum may be of one organisation; use {none!r}"
            )
    needed, drawn = folder.policy.colluders + 2, getattr(config, "clients_per_round", None) or len(sites)
    fewest = max(threshold_of(len(sites)), getattr(config, "min_sites", None) or 0)
    if members and drawn < needed <= len(sites):
        said = f"{folder.name}: clients_per_round: a sum is of {drawn} organisations, the others add zeros"
        raise BadInput(
            f"{said}; the policy allows sums of at least {needed} (policy.colluders = {folder.policy.colluders})"
        ).telling(f"{said}: too few for policy.colluders")
    if members and (len(sites) < needed or fewest < needed):
        said = (
            f"{folder.name}: secure_aggregation: sums are of {len(sites)} organisations that bring data "
            f"({', '.join(sorted(sites))}), or of as few as {fewest} of them"
        )
        raise BadInput(
            f"{said}; the policy allows sums of at least {needed} (policy.colluders = {folder.policy.colluders})"
        ).telling(f"{said}: too few for policy.colluders")
    smallest = fewest if has_quorum(config) else len(sites)
    drawing = max(threshold_of(len(members)), getattr(config, "min_sites", None) or 0) - 1
    if members and is_noised and smallest - folder.policy.colluders < drawing:
        without = has_quorum(config) and threshold_of(len(sites)) >= needed  # each site's part is in each sum then
        said = f"{folder.name}: secure_aggregation: the noise of a sum is what {drawing} organisations draw"
        raise BadInput(
            f"{said}; of one of {smallest} the server may know what {folder.policy.colluders} of them drew "
            "(policy.colluders), and less than the account counts with is left; "
            f"{'leave min_sites out, or ' if without else ''}set policy.colluders = {smallest - drawing}"
        ).telling(f"{said}: of a sum of {smallest} too little is left for policy.colluders")
    helpers = 2 * fewest - len(sites)  # who sign two sets of survivors of one sum, if they help the server
    if members and has_quorum(config) and helpers <= folder.policy.colluders:
        enough = (len(sites) + folder.policy.colluders) // 2 + 1
        raise BadInput(
            f"{folder.name}: min_sites: of {fewest} of {len(sites)} sites a sum may have two sets of survivors, "
            f"if {folder.policy.colluders} of them help the server (policy.colluders); give {enough} at least"
        ).telling(f"{folder.name}: min_sites: {fewest} of {len(sites)} sites are too few for policy.colluders")


def summed_before(
    config: Any, proposal: Proposal, folder: SiteFolder, before: Iterable[Proposal] | None = None
) -> list[Proposal]:
    """Return the runs of `before` that summed some of the same data, under masks, beside others or by other settings.

    By default `before` are those that this site has approved (`approved_before`). Its own data are some of the same
    where they read the same rows, and others where they have another name: columns may be other ones.

    Of equal values, such as the first round's, or predictions of one model, the difference of two such sums is what the
    others' parts were: this site's too, where it is asked for other data of its own than before, and the others are the
    same. What the coordinator added is no news to it. By other settings the same parts may count otherwise, by rows
    and alike: two sums of three organisations, one of which the coordinator knows, then tell the parts of both others.
    """
    if not getattr(config, "secure_aggregation", False) or proposal.purpose == "resume":
        return []
    first = first_of(folder, proposal).run
    return [
        one
        for one in (approved_before(proposal, folder) if before is None else before)
        if one.config.get("secure_aggregation") and with_same_rows(one, proposal, folder)
        if _summed_beside(one, proposal) - {proposal.coordinator} or _settings_of(one) != _settings_of(proposal)
        if proposal.purpose == "train" or _may_be_of(first, one, folder)
    ]


def _summed_beside(one: Proposal, other: Proposal) -> set[str]:
    """Return the sites that are in one of two runs only, or bring other data to the other."""
    return {site for site, _ in one.data.items() ^ other.data.items()}


_SETTINGS = "digest of all settings"


def _settings_of(proposal: Proposal) -> str:
    """Return a digest of a run's protocol and settings, by which parts count in its sums; of `_approved`, as kept."""
    made = json.dumps([proposal.protocol, proposal.config], sort_keys=True)
    return proposal.config.get(_SETTINGS) or hashlib.sha256(made.encode()).hexdigest()


def _may_be_of(first: str, proposal: Proposal, folder: SiteFolder) -> bool:
    """Say whether a proposal goes on from a run; where files of those between are gone, it may."""
    try:
        return first_of(folder, proposal).run == first
    except BadInput:
        return True


def approved_before(proposal: Proposal, folder: SiteFolder) -> list[Proposal]:
    """Return the other proposals for the same purpose, and some of the same data, that this site approved, in order."""
    others = [one for _, one in _all_approved(folder) if one is not None and one.run != proposal.run]
    return [one for one in others if one.purpose == proposal.purpose and with_same_rows(one, proposal, folder)]


def with_same_rows(one: Proposal, other: Proposal, folder: SiteFolder) -> set[str]:
    """Return the sites that bring the same data to two runs: this one by its rows, others by their names for them."""
    found, me = {site for site, _ in one.data.items() & other.data.items()}, folder.name
    is_here = me in one.data and me in other.data
    return found | ({me} if is_here and folder.reads_same(one.data[me], other.data[me]) else set())


def why_a_person(config: Any, proposal: Proposal, folder: SiteFolder) -> str:
    """Return why a proposal waits for this site's person whatever its policy allows; empty: it does not."""
    if proposal.shared_seed is not None:
        return "it shares its seed"
    if why := why_not_allowed(folder, proposal):
        return why
    allowed, name = folder.policy.data, proposal.data.get(folder.name)
    is_resumed = proposal.purpose == "resume"  # of the data that were answered for before
    if not is_resumed and allowed is not None and name is not None and name not in allowed:  # new rows to predict, too
        return f"data.{name} are not among policy.data"
    is_new = proposal.purpose == "train"  # what goes on from a run has the query that was answered before
    if (stopped := _stopped_before(proposal, folder)) is not None:
        return f"this site's person stopped run {stopped}, which it goes on from"
    if is_new and proposal.task.sql and proposal.task not in [one.facts for one in folder.policy.queries or ()]:
        return "its query, with this label and type, is not among policy.queries"
    lines = folder.log()
    if unread := unread_runs(folder, lines).keys() - settled_runs(lines).keys():
        run = max(unread)
        return (
            f"the proposal of run {run} cannot be read, so that nobody knows what it was about: bring back its files "
            f"in {PROPOSALS}/, or fedactors site settle {run} --why TEXT"
        )
    if before := summed_before(config, proposal, folder):
        return (
            f"run {before[-1].run} summed the same data among other organisations, beside other data of theirs, or by "
            "other settings"
        )
    return ""


def _stopped_before(proposal: Proposal, folder: SiteFolder) -> str | None:
    """Return of the runs that a proposal goes on from one that this site's person stopped; None: they stopped none."""
    while proposal.purpose != "train":
        if stop_reason(folder, proposal.earlier) is not None:
            return proposal.earlier
        proposal = _earlier(folder, proposal.earlier)
    return None


def on_loss(config: Any, proposal: Proposal) -> str:
    """Return in a sentence what becomes of the run when a site is lost."""
    if proposal.return_timeout > 0 and not has_quorum(config):
        return (
            "a site that is lost, and not back within wait_seconds, pauses the run at its last checkpoint for "
            f"{proposal.return_timeout:g} s at most (return_timeout). Once all are there it goes "
            "on from that checkpoint, and nobody is asked again: once from each checkpoint, and as often as "
            "policy.continuations says. What left after a checkpoint may be asked for again, in all parts together as "
            "much as each bound below allows once more, and a budget counts it each time. What your site answered "
            "before it was killed is in no such bound. fedactors site stop keeps your site out"
        )
    if not has_quorum(config):
        return "a site that is lost, and not back within wait_seconds, ends the run, which can be resumed"
    num_sites = len(proposal.data)
    fewest = config.fewest_sites(num_sites)
    return (
        f"a round counts with {fewest} of {num_sites} sites (min_sites) that answer within {config.client_timeout:g} s "
        "(client_timeout), and goes on without the others; with fewer it changes nothing, and opens no sum. The next "
        f"one waits {config.quorum_timeout:g} s (quorum_timeout) for sites to come back, then the run ends and can be "
        "resumed. If yours is lost, it comes back by itself when it is started: from its own last checkpoint, asked "
        "for no round twice, and charged for the rounds that it answered. fedactors site stop takes your site out"
    )


def left_open(protocol: Protocol, config: Any, proposal: Proposal, folder: SiteFolder) -> list[str]:
    """Return what a coordinator may still do within the bounds of a proposal, a sentence each."""
    has_noise = _adds_noise(protocol, config)
    limit = "noise alone limits" if has_noise else "nothing limits, for no noise is added,"
    found = [
        "models and orders of the coordinator's own making may use up each bound below; "
        f"{limit} what the answers tell of your rows"
    ]
    if proposal.purpose != "predict" and hasattr(config, "min_aligned_rows") and proposal.task.layout == "vertical":
        first, fewest = next(iter(proposal.data)), config.min_aligned_rows
        found.append(
            f"{first} chooses which shared rows are aligned, and may say by a column of its data which of them are "
            f"trained on, validated and tested with, whatever shares the settings say: {fewest} at least are aligned, "
            "and trained on (min_aligned_rows)"
        )
        found.append(
            f"which of them are test rows, and which are in a batch together, follows from a seed that "
            f"{proposal.coordinator} proposes, and may have chosen among many: two runs may differ in one row of yours"
        )
    if proposal.task.layout == "vertical" and proposal.task.alignment != "already-aligned":
        first, how = next(iter(proposal.data)), proposal.task.alignment
        more = ", and may guess at all ids of yours that it is told digests of" if how == "hash" else ""
        found.append(f"{first} may ask for ids that it has made up, and learns which of them you have ({how}){more}")
    if proposal.task.sql:
        found.append(
            "the query says which of your rows join, by their values too (WHERE, ON), as few as one: who learns which "
            "rows join learns for which of your rows that holds"
        )
    if proposal.purpose != "predict" and getattr(config, "label_dp", None) is None and _holds_label(proposal, folder):
        found.append(
            f"the label {shown(proposal.task.label)} is a column of yours: its value of each row that is read leaves "
            "as it is, without noise (label_dp): of test rows too, which scores of outputs that the server makes up "
            "spell"
        )
    if proposal.task.layout == "relational":
        host = proposal.site_of("server", folder.federation.hosts)
        guess = (
            "it may guess at your keys" if host in proposal.data else f"{host} may guess at your keys if one tells it"
        )
        found.append(
            f"{host} hosts the server, which is told keyed hashes of your join keys, and each site with a table "
            f"is told their secret: {guess}"
        )
    if (declared := getattr(protocol.messages, "left_open", None)) is not None:
        found += declared(config, proposal.purpose)
    approved = approved_before(proposal, folder)
    for one in summed_before(config, proposal, folder, approved):
        differ = ", ".join(sorted(_summed_beside(one, proposal)))
        summed = ", ".join(f"{site}={name}" for site, name in one.data.items())
        equal = "as in its first round" if proposal.purpose == "train" else "as of the same rows"
        found.append(
            f"run {one.run} summed {summed}: of equal values, {equal}, the difference of its sums and this run's is "
            f"what {differ} added"
            if differ
            else f"run {one.run} summed the same data by other settings: where parts count otherwise in its sums and "
            f"in this run's (weighting, or steps by numbers of rows), {equal}, the two tell what each of two "
            "organisations added"
        )
    mine = proposal.data.get(folder.name)
    before = [one.run for one in approved if folder.name in with_same_rows(one, proposal, folder)]
    if proposal.purpose == "train" and mine is not None and before and not has_noise:
        found.append(
            f"{len(before)} approved before this one ({before[-1]} the last) read data.{mine} too: what two runs tell "
            "differs by the rows that one has and the other has not, as few as one where your file has changed between "
            "them, and nothing bounds how many there are"
        )
    if getattr(config, "clients_per_round", None) is not None:
        found.append(
            f"{proposal.coordinator} proposes the seed from which follows whom a round wants (clients_per_round), and "
            "may have tried many"
        )
    differs = [name for name in ("min_sites", "clients_per_round") if getattr(config, name, None) is not None]
    if getattr(config, "secure_aggregation", False) and differs:
        found.append(
            f"who is in a sum may differ from round to round ({differs[0]}): of two rounds that the server begins with "
            "nearly the same model, one without yours, the difference of the sums is nearly what you added"
        )
    if getattr(config, "secure_aggregation", False):
        number = len(proposal.data)
        found.append(
            f"who reads a sum of {number} organisations knows your part if the other {number - 1} tell theirs, and "
            f"yours and another's together if {number - 2} do; your policy counts with {folder.policy.colluders} who "
            "tell (policy.colluders)"
        )
    return found


def classes_of(protocol: Protocol, config: Any, purpose: str) -> dict[str, type]:
    """Return the kinds of actors that a proposal may spawn, by the names of their classes.

    Raises:
        BadInput: the protocol does not say, or an endpoint of theirs does not say how often it may be called.
    """
    found = protocol.predictors if purpose == "predict" else protocol.actors
    if found is None or (purpose == "predict" and protocol.predict is None):
        raise BadInput(f"protocol: {protocol.name} cannot {purpose} over a federation: it names no actors for it")
    for cls in found(config).values():
        if open_ones := [one.name for one in endpoints(cls).table.values() if not one.is_stated]:
            raise BadInput(
                f"protocol: {protocol.name} cannot {purpose} over a federation: {cls.__name__}.{open_ones[0]} does not "
                "say how often it may be called: declare it with @remote(once=True), at_most= or unbounded="
            )
    return {cls.__name__: cls for cls in found(config).values()}


def continue_run(
    folder: SiteFolder, run: str, number: int, purpose: Literal["resume", "predict"], data: str = ""
) -> Proposal:
    """Return what the coordinator of an earlier run asks for, to go on from it.

    Args:
        folder: the coordinator's.
        run: the earlier one, as the sites know it.
        number: of its checkpoint.
        purpose: what for.
        data: new rows, as in `make_proposal`; those of the earlier run by default.

    Raises:
        BadInput: the site knows no such run, or `data` are of other sites.
    """
    earlier = _earlier(folder, run)
    names = earlier.data
    if data:
        pairs = _names(data)
        if set(pairs) != set(names):
            raise BadInput(f"--data: {shown(data)} is not allowed: give names of {', '.join(names)}")
        names = {site: pairs[site] for site in names}
    made: Proposal = replace(  # type: ignore[type-var]
        earlier,
        run=secrets.token_hex(8),
        purpose=purpose,
        earlier=run,
        number=number,
        data=names,
        return_timeout=0.0 if purpose == "predict" else earlier.return_timeout,
        version=__version__,
        source=source_digest(find_protocol(earlier.protocol)),
    )
    check_proposal(read_proposal(as_tree(made)), folder)
    return made


def _earlier(folder: SiteFolder, run: str) -> Proposal:
    """Return the proposal of a run that went on here.

    Raises:
        BadInput: none did.
    """
    found = kept_proposal(folder, run) if RUN_ID.fullmatch(run) else None
    if RUN_ID.fullmatch(run) and run in unread_runs(folder, folder.log()):
        raise to_tell(f"{folder.name}: run {run} {UNREADABLE}, so no run can resume from it")
    if found is None or (answer := decision(folder, found)) is None or not answer[0]:
        raise to_tell(f"{folder.name}: run {shown(run)} was never approved here, so no run can resume from it")
    return found


def _check_earlier(proposal: Proposal, folder: SiteFolder) -> None:
    """Check that what goes on from an earlier run is of the same organisations, settings and task.

    Raises:
        BadInput: it is not, or the earlier run was never approved.
    """
    earlier = _earlier(folder, proposal.earlier)
    fixed = {"coordinator", "protocol", "config", "task", "shared_seed", "budget", "seed", "limits", "code"}
    fixed |= {"data", "return_timeout"} if proposal.purpose == "resume" else set()
    for name in sorted(fixed):
        if getattr(proposal, name) != getattr(earlier, name):
            raise to_tell(f"{folder.name}: {name}: a run that goes on from {earlier.run} cannot have another one")
    if list(proposal.data) != list(earlier.data):
        raise BadInput(f"{folder.name}: data: the sites of {earlier.run} are {', '.join(earlier.data)}").telling(
            f"{folder.name}: data: the sites of {earlier.run} are others, or in another order"
        )
    most, first = folder.policy.continuations, first_of(folder, earlier).run
    if proposal.purpose == "predict" and folder.policy.approve == "policy":  # nobody looks at how many there were
        if (done := num_predictions(folder, earlier)) >= most:
            said = f"{folder.name}: predicts with run {first} for the {ordinal(done + 1)} time"
            raise BadInput(f"{said}; approved: at most {most} (policy.continuations) where the policy answers").telling(
                f"{said}: too often for policy.continuations"
            )
    elif proposal.purpose == "resume" and (done := num_continuations(folder, earlier)) >= most:
        said = f"{folder.name}: goes on from run {first} for the {ordinal(done + 1)} time"
        raise BadInput(
            f"{said}; approved: at most {most} (policy.continuations): what a checkpoint forgets was released all the "
            "same"
        ).telling(f"{said}: too often for policy.continuations")


def first_of(folder: SiteFolder, proposal: Proposal) -> Proposal:
    """Return the run that what is proposed goes on from in the end, or itself."""
    while proposal.purpose != "train":
        proposal = _earlier(folder, proposal.earlier)
    return proposal


def num_continuations(folder: SiteFolder, proposal: Proposal) -> int:
    """Return how often a run was gone on from here in all, by the log of the site, which no checkpoint rolls back."""
    first = first_of(folder, proposal).run
    return sum(line["what"] == "continued" and line["first"] == first for line in folder.log())


def num_returns(folder: SiteFolder, proposal: Proposal) -> int:
    """Return how often this site came back to a run, by its log."""
    first = first_of(folder, proposal).run
    return sum(line["what"] == "reopened" and line.get("first") == first for line in folder.log())


def check_return(folder: SiteFolder, proposal: Proposal, lines: Iterable[Mapping[str, Any]]) -> None:
    """Check that a site may come back to a run without a question.

    Args:
        folder: of the site.
        proposal: of the run.
        lines: of the site's log, about it.

    Raises:
        BadInput: the run went on as another one, or the site came back as often as the policy allows, or was away for
            longer.
    """
    policy, me = folder.policy, folder.name
    followed = [one["run"] for one in folder.log() if one["what"] == "continued" and one["earlier"] == proposal.run]
    if followed:  # both would go on from one state, and only one was asked for
        said = f"{me}: does not come back to the run, which went on as"
        raise BadInput(f"{said} {followed[-1]}").telling(f"{said} another one")
    if (done := num_returns(folder, proposal)) >= (most := policy.continuations):
        said = f"{me}: comes back to the run for the {ordinal(done + 1)} time"
        raise BadInput(
            f"{said}; approved: at most {most} (policy.continuations): a restart forgets how often that left which "
            "has no round's number, like scores"
        ).telling(f"{said}: too often for policy.continuations")
    # a return that goes nowhere does not make it later
    took_part = ("proposed", "approved", "opened", "reopened")
    times = [
        datetime.fromisoformat(line["time"])
        for line in lines
        if line["what"] in took_part or (line["what"] == "ended" and line.get("was_open", True))
    ]
    days = (datetime.now(UTC) - max(times)).total_seconds() / 86_400 if times else math.inf
    if abs(days) > policy.return_days:  # of a clock that was set back nobody knows
        said = f"{me}: was away from the run for {abs(days):.4g} days"
        raise BadInput(f"{said}; approved: at most {policy.return_days:g} (policy.return_days)").telling(
            f"{said}: too long for policy.return_days"
        )


_ANEW = "resume it as a run that is approved anew"


def may_resume_itself(folder: SiteFolder, proposal: Proposal, number: int) -> bool:
    """Say whether the coordinator may propose that a run which paused goes on by the approval that it has."""
    lines = [line for line in folder.log() if line.get("run") == proposal.run]
    is_new = not any(line["what"] == "reopened" and line.get("checkpoint") == number for line in lines)
    is_refused = any(line["what"] == "return_refused" and line.get("checkpoint") == number for line in lines)
    return proposal.return_timeout > 0 and is_new and not is_refused


def check_resumes_itself(
    folder: SiteFolder, proposal: Proposal, number: int, newest: int, written: float, *, is_earlier: bool
) -> None:
    """Check that a run which paused may go on here from a checkpoint, by the approval that it has.

    Args:
        folder: of the site.
        proposal: of the run.
        number: of the checkpoint.
        newest: number of the newest checkpoint that the site counts on.
        written: when that was, in seconds since the epoch.
        is_earlier: whether the run has no such checkpoint here, so that it is one of the run that it resumes.

    Raises:
        Refused: it is another checkpoint than the last one, was gone on from before, or the pause was too long.
    """
    me, lines = folder.name, [line for line in folder.log() if line.get("run") == proposal.run]
    is_other = is_earlier and (proposal.purpose != "resume" or number != proposal.number)
    if number < newest or is_other:
        last = newest or proposal.number
        raise Refused(me, f"the run goes on from its last checkpoint, {last or 'of which it has none'}, not {number}")
    if any(line["what"] == "reopened" and line.get("checkpoint") == number for line in lines):
        raise Refused(me, f"the run went on from checkpoint {number} before: {_ANEW}")
    # an attempt that opened nothing makes the pause no longer
    ended = [
        datetime.fromisoformat(line["time"]).timestamp()
        for line in lines
        if line["what"] == "ended" and line.get("was_open", True)
    ]
    away = datetime.now(UTC).timestamp() - max([written, *ended])
    most = proposal.return_timeout + folder.wait_seconds + RETURN_SECONDS
    if not -most <= away <= most:
        raise Refused(
            me,
            f"the run paused for {away:.0f} s; approved: {proposal.return_timeout:g} (return_timeout), and "
            f"{folder.wait_seconds + RETURN_SECONDS:g} to notice: {_ANEW}",
        )


def unfinished_runs(folder: SiteFolder) -> list[str]:
    """Return the approved runs that are not over, and that nobody has stopped: a site may come back to some."""
    lines = folder.log()
    over = {line.get("run") for line in lines if line["what"] == "ended" and line["status"] == "finished"}
    approved = dict.fromkeys(str(line["run"]) for line in lines if line["what"] == "approved")
    return [run for run in approved if run not in over and stop_reason(folder, run) is None]


def num_predictions(folder: SiteFolder, proposal: Proposal) -> int:
    """Return how often a run, from whichever checkpoint, predicted here, by the log of the site."""
    first = first_of(folder, proposal).run
    return sum(line["what"] == "predicted" and line["first"] == first for line in folder.log())


def source_digest(protocol: Protocol) -> str:
    """Return the SHA-256 of the source files of fedactors and of the protocol's package, as this process found them.

    The package is the whole one: its actors may lie beside its settings.
    """
    return _source_digest(package_of(protocol))


def package_of(protocol: Protocol) -> str:
    """Return the name of a protocol's package."""
    return protocol.Config.__module__.rpartition(".")[0]


@functools.cache  # a process goes on with the code that it has loaded
def _source_digest(package: str) -> str:
    return source_on_disk(package)


def keep_proposal(folder: SiteFolder, proposal: Proposal) -> Path:
    """Write a proposal where the site's commands find it.

    Raises:
        FileExistsError: the run was proposed before, by its file or the log: an id is of one run for good, of which a
            person has read the code, and whose budget counts once.
    """
    if any(line["what"] in ("proposed", "approved") and line.get("run") == proposal.run for line in folder.log()):
        raise FileExistsError(proposal.run)
    proposals = folder.path / PROPOSALS
    proposals.mkdir(mode=0o700, exist_ok=True)
    path = proposals / f"{proposal.run}.json"
    _write_once(path, as_tree(proposal))  # a run id is of one run
    _remove_rejected(folder)
    return path


def _write_once(path: Path, tree: Any) -> None:
    """Write a new file, which is whole or not there.

    Raises:
        FileExistsError: it is there already.
    """
    part = path.with_suffix(f".{secrets.token_hex(8)}.part")
    try:
        write_synced(part, json.dumps(tree).encode())
        os.link(part, path)
    finally:
        part.unlink(missing_ok=True)
    sync_folder(path.parent)


def kept_proposals(folder: SiteFolder) -> dict[str, Proposal]:
    """Return what was ever proposed to this site, by run, oldest first; without `unreadable_proposals`."""
    return {run: one for run, one in _all_kept(folder) if one is not None}


def kept_proposal(folder: SiteFolder, run: str) -> Proposal | None:
    """Return what was proposed as this run, if anything was that can be read."""
    path = folder.path / PROPOSALS / f"{run}.json"
    try:
        return _kept(path, seen) if (seen := stamp(path)) is not None else None
    except (BadInput, ValueError):
        return None


UNREADABLE = (
    "cannot be read: its file in proposals/, or the answer there, is gone, damaged or changed, or of another version"
)


def unreadable_proposals(folder: SiteFolder) -> list[str]:
    """Return the runs that may have been approved, and nobody can read what they were about.

    Another version, or another hand, wrote their proposals or answers.
    """
    return [run for run, one in _all_approved(folder) if one is None]


def unread_runs(folder: SiteFolder, lines: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what a site's log says of the runs of `unreadable_proposals`, and of those that it has approved otherwise.

    Args:
        folder: the site's.
        lines: of its log.
    """
    found: dict[str, dict[str, Any]] = {run: {} for run in unreadable_proposals(folder)}
    known: dict[str, dict[str, Any]] = {}
    for line in lines:
        run = str(line.get("run"))
        if line["what"] == "proposed":
            known[run] = {name: line.get(name) for name in ("coordinator", "protocol")}
        elif line["what"] == "approved" and not _is_approved(folder, run, line.get("proposal")):
            found[run] = {}
    return {run: known.get(run, {}) for run in found}


def settled_runs(lines: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the runs whose proposals cannot be read, and why the policy may answer all the same, by a site's log."""
    return {str(line["run"]): str(line["why"]) for line in lines if line["what"] == "settled"}


def settle(folder: SiteFolder, run: str, why: str) -> None:
    """Put on record that a run's proposal is lost and the policy may answer for others again.

    Raises:
        BadInput: the proposal can be read, or that is on record already.
    """
    lines = folder.log()
    if run not in unread_runs(folder, lines):
        raise BadInput(f"run: {run} can be read, or was never approved here: there is nothing to settle")
    if run in settled_runs(lines):
        raise BadInput(f"run: {run} is settled already")
    folder.audit.add("settled", run=run, why=why)


def _is_approved(folder: SiteFolder, run: str, digest: object) -> bool:
    """Say whether the files of a run are of the proposal of this digest, and approve it."""
    path = folder.path / PROPOSALS / f"{run}.json"
    with contextlib.suppress(BadInput, ValueError, LookupError, TypeError):
        seen, answered = stamp(path), stamp(_answer_to(path))
        return None not in (seen, answered) and _approved_digest(path, seen, answered) == digest
    return False


def unanswered_proposals(folder: SiteFolder) -> list[Proposal]:
    """Return what waits for an answer, oldest first."""
    waiting = [path.stem for path, _ in _in_order(folder) if not _answer_to(path).exists()]
    return [one for run in waiting if (one := kept_proposal(folder, run)) is not None]


def _answer_to(path: Path) -> Path:
    return path.with_suffix(".decision.json")


def _in_order(folder: SiteFolder) -> list[tuple[Path, tuple[int, int, int]]]:
    seen = {path: stamp(path) for path in (folder.path / PROPOSALS).glob("????????????????.json")}
    return sorted(((path, one) for path, one in seen.items() if one is not None), key=lambda pair: pair[1][0])


def _all_kept(folder: SiteFolder) -> Iterator[tuple[str, Proposal | None]]:
    for path, one in _in_order(folder):
        try:
            yield path.stem, _kept(path, one)
        except (BadInput, ValueError):
            yield path.stem, None


def _all_approved(folder: SiteFolder) -> Iterator[tuple[str, Proposal | None]]:
    """Yield what was approved, as `_approved` keeps it, and None where that cannot be read, or is gone."""
    kept = _in_order(folder)
    there = {path for path, _ in kept}
    for path in [path for path in list(_seen) if path.parent == folder.path / PROPOSALS and path not in there]:
        _seen.pop(path, None)  # a thread may be first
    gone = {path.name.partition(".")[0] for path in (folder.path / PROPOSALS).glob("????????????????.decision.json")}
    for run in sorted(gone - {path.stem for path, _ in kept}):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            if not json.loads((folder.path / PROPOSALS / f"{run}.decision.json").read_text())["approved"]:
                continue  # of the oldest that were rejected; see `_remove_rejected`
        yield run, None
    for path, one in kept:
        try:
            found = _approved(path, one, stamp(_answer_to(path)))
        except (BadInput, ValueError, LookupError, TypeError):
            yield path.stem, None
        else:
            if found is not None:
                yield path.stem, found


_MOST_REJECTED = 1000
"""Proposals that a site keeps beside those that were approved: others may make 60 an hour, for good."""


@functools.lru_cache(maxsize=4 * _MOST_REJECTED)
def _kept(path: Path, seen: object) -> Proposal:
    """Return a proposal that was kept, which is written once, and read once: there may be 60 an hour of each site."""
    return read_proposal(json.loads(path.read_text()))


_seen: dict[Path, tuple[object, Proposal | None, str]] = {}
"""Of each proposal that is there: what it and its answer were like when they were read, and what they say."""


def _approved_digest(path: Path, seen: object, answered: object) -> str | None:
    """Return the digest of a proposal that was approved; None: it was not."""
    found, digest = _looked_at(path, seen, answered)
    return None if found is None else digest


def _approved(path: Path, seen: object, answered: object) -> Proposal | None:
    """Return of a proposal that was approved what later ones are compared with, which is small; None: it was not.

    Raises:
        BadInput, ValueError, LookupError, TypeError: it, or the answer, is not what was written there.
    """
    return _looked_at(path, seen, answered)[0]


def _looked_at(path: Path, seen: object, answered: object) -> tuple[Proposal | None, str]:
    found = _seen.get(path)
    if found is None or found[0] != (seen, answered):
        found = _seen[path] = (seen, answered), *_read_approved(path, is_answered=answered is not None)
    return found[1:]


def _read_approved(path: Path, *, is_answered: bool) -> tuple[Proposal | None, str]:
    answer = json.loads(_answer_to(path).read_text()) if is_answered else {"approved": True}
    if not answer["approved"]:
        return None, ""
    whole = read_proposal(json.loads(path.read_text()))
    if not is_answered:
        return None, ""
    if answer["digest"] != whole.digest:
        raise BadInput(f"run: {path.stem} {UNREADABLE}")
    config = {name: value for name, value in whole.config.items() if name == "secure_aggregation"}
    config[_SETTINGS] = _settings_of(whole)
    task = TaskFacts(layout=whole.task.layout, type=whole.task.type, classes=whole.task.classes)
    small: dict[str, Any] = {"config": config, "task": task, "budget": {}, "code": {}, "code_signature": ""}
    made: Proposal = replace(whole, **small)  # type: ignore[type-var]
    return made, whole.digest


def _remove_rejected(folder: SiteFolder) -> None:
    """Remove the oldest proposals that were rejected, where there are very many; the log has them."""
    kept = _in_order(folder)
    if len(kept) <= _MOST_REJECTED:
        return
    rejected = []
    for path, one in kept:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, BadInput):
            answered = stamp(_answer_to(path))
            if answered is not None and _approved(path, one, answered) is None:
                rejected.append(path)
    for path in rejected[: max(0, len(rejected) - _MOST_REJECTED)]:
        for file in (path, _answer_to(path)):  # an answer of no proposal is of none that is proposed again
            file.unlink(missing_ok=True)


def decide(folder: SiteFolder, proposal: Proposal, *, approved: bool, why: str = "") -> None:
    """Answer a proposal, once. An approval notes what the site's data are now, for `changed_data`.

    Raises:
        BadInput: it is answered already.
    """
    path = folder.path / PROPOSALS / f"{proposal.run}.decision.json"
    try:
        data = data_stamps(folder, proposal) if approved and not path.exists() else {}
        _write_once(path, {"approved": approved, "why": why, "digest": proposal.digest, "data": data})
    except FileExistsError:
        raise BadInput(f"run: {proposal.run} is decided already") from None
    folder.audit.add("approved" if approved else "rejected", run=proposal.run, why=why, proposal=proposal.digest)


_HASHED_BYTES, _HASHED_VALUES = 1 << 28, 5_000_000
"""Of a file, and of a table of a database, up to which all of it is read when it is approved."""


def data_stamps(folder: SiteFolder, proposal: Proposal) -> dict[str, str]:
    """Return what each file and table that this site's data of a run are read from is like now, by its place.

    This is a SHA-256 of the content and, where it is large, a file's size and time of change, or the number of a
    table's rows and its columns. What cannot be read has a stamp too; the error comes when the run loads it.
    """
    if folder.name not in proposal.data:
        return {}
    return dict(map(_stamp, _read_from(proposal.described(folder))))


def changed_data(folder: SiteFolder, proposal: Proposal) -> list[str]:
    """Return the files and tables of this site's data that are not what they were when the run was approved."""
    path = folder.path / PROPOSALS / f"{proposal.run}.decision.json"
    before = json.loads(path.read_text()).get("data", {}) if path.exists() else {}
    now = data_stamps(folder, proposal) if before else {}
    return sorted(one for one in {**before, **now} if before.get(one) != now.get(one))


def _read_from(value: Any) -> Iterator[str | TableSource]:
    """Yield the files and the tables of databases that the sources in a value read."""
    if isinstance(value, TableSource):
        if value.kind == "view":
            yield from _read_from(value.tables)
        else:
            yield value if value.is_of_rows else value.where
    elif isinstance(value, tuple):
        for one in value:
            yield from _read_from(one)
    elif is_dataclass(value) and not isinstance(value, type):
        read = (*getattr(value, "user_files", ()), *getattr(value, "user_tables", ()))
        yield from read or _read_from(tuple(getattr(value, one.name) for one in fields(value)))


def _stamp(source: str | TableSource) -> tuple[str, str]:
    """Return the place of a file or a table, and what it is like now."""
    if isinstance(source, TableSource):
        location = f"table {source.table} of {source.shown}" if source.table else source.shown
        try:
            kinds = source.describe()
            num_rows = source.load(list(kinds)[:1]).num_rows
            whole = num_rows * len(kinds) <= _HASHED_VALUES
            return location, f"sha256 {source.digest().hex()}" if whole else f"{num_rows} rows of {kinds}"
        except FedactorsError:
            return location, "not there"
    try:
        is_folder = os.path.isdir(source)
        files = sorted(one for one in Path(source).rglob("*") if one.is_file()) if is_folder else files_at(source)
        facts = [] if address_of(source) else [one.stat() for one in files]
        is_large = sum(one.st_size for one in facts) > _HASHED_BYTES
        found = hashlib.sha256(repr([(one.st_size, one.st_mtime_ns) for one in facts] if is_large else "").encode())
        for one in files:
            found.update(f"{one.relative_to(source) if is_folder else one.name}\0".encode())
            if not is_large:
                content = hashlib.sha256()
                with opened(one) as stream:
                    for part in iter(functools.partial(stream.read, 1 << 20), b""):
                        content.update(part)
                found.update(content.digest())
        return source, f"{'size and time' if is_large else 'sha256'} {found.hexdigest()}" if files else "not there"
    except (OSError, FedactorsError):
        return source, "not there"


def ask_to_stop(folder: SiteFolder, run: str, why: str) -> None:
    """Ask the site's process to stop a run; again does nothing."""
    with contextlib.suppress(FileExistsError):
        _write_once(folder.path / PROPOSALS / f"{run}.stop.json", {"why": why})


def stop_reason(folder: SiteFolder, run: str) -> str | None:
    """Return why this site's person wants a run stopped; None: nobody does."""
    path = folder.path / PROPOSALS / f"{run}.stop.json"
    return str(json.loads(path.read_text())["why"]) if path.exists() else None


def decision(folder: SiteFolder, proposal: Proposal) -> tuple[bool, str] | None:
    """Return whether a proposal is approved, and why or why not; None while nobody has decided.

    Raises:
        BadInput: the answer is not what was written there.
    """
    path = folder.path / PROPOSALS / f"{proposal.run}.decision.json"
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text())
        return bool(found["approved"]) and found["digest"] == proposal.digest, str(found["why"])
    except (ValueError, LookupError, TypeError):
        raise to_tell(f"{folder.name}: run {proposal.run} {UNREADABLE}") from None
