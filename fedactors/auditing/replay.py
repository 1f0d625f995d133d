"""The replay audit: one party, one record otherwise, the same messages received; how far does what it sends move?

A run is recorded in the simulated runtime, and run again with a neighbour of one party's data. At the party's boundary
the recorded messages leave in place of the new ones, so that everybody else does what they did and the party receives
what it received. Two things are measured:

- every noised release (`fedactors.privacy.noise.released`): the distance of the exact values, in units of the noise.
  The party goes on from the recorded release, so that nothing that merely follows from it counts again. Gaussian
  releases compose to ``sqrt(sum (shift / sigma)^2)``: no mu below that can be right for releases that depend on each
  other in this way, so a smaller claim is refuted.
- every message: what differs from the recorded one has left without noise, and no finite claim survives it.

What it cannot show: that a claim is right. It looks at the neighbours that it is given, on one trajectory. Both runs
must draw the same salts and masks: what draws in a library of its own (private set intersection) differs, and is said
to.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from dataclasses import fields as dataclass_fields
from typing import Any

import numpy as np

from fedactors.actors.context import Ref, derived_rng
from fedactors.actors.remote import DRIVER
from fedactors.data.layouts.horizontal import HorizontalBlock, HorizontalData, Rows, rows_key, rows_of
from fedactors.data.layouts.vertical import Neighbour
from fedactors.errors import FedactorsError
from fedactors.messages.codec import freeze, type_name, wire_type
from fedactors.plugins import Protocol
from fedactors.privacy.accounting import (
    EVERYBODY,
    JOINED,
    Claim,
    PrivacyRecord,
    claims,
    compose_mu,
    dpsgd_epsilon,
    epsilon_of_mu,
)
from fedactors.privacy.noise import Gaussian, Law, observing
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.simulation.network import Call, SimulatedContext, Wire, current_actor
from fedactors.runtime.simulation.runtime import SimulatedRuntime

_RELATIVE = 1e-5
"""What single precision may add to a norm that was clipped to its bound."""


@dataclass(frozen=True, kw_only=True)
class Shift:
    """How far the releases of one name moved."""

    release_name: str
    """Actor and name of the release."""
    law: Law
    count: int
    """Releases, moved or not."""
    mus: tuple[float, ...]
    """Of those that moved: distance in units of the noise."""
    epsilon: float
    """Largest log likelihood ratio of all of them; inf for Gaussian noise."""

    @property
    def largest(self) -> float:
        """The largest distance of one release."""
        return max(self.mus, default=0.0)

    @property
    def mu(self) -> float:
        """Of all of them, without amplification by sampling."""
        return compose_mu(self.mus)


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What one neighbour moved."""

    party: str
    neighbour: str
    """What was changed."""
    kind: str
    shifts: tuple[Shift, ...]
    bare: tuple[str, ...]
    """What differed without noise, to other parties."""
    to_driver: tuple[str, ...]
    """What differed without noise, to the run's driver, which is trusted."""
    record: int | None = None
    """See `fedactors.plugins.Neighbour`."""

    @property
    def mu(self) -> float:
        """Lower bound of every Gaussian-DP parameter that may be claimed; secret samples are taken as known."""
        return math.inf if self.bare else compose_mu(shift.mu for shift in self.shifts)

    def epsilon(self, delta: float) -> float:
        """Return epsilon at `delta` of what moved; secret Poisson samples amplify, at the largest shift seen."""
        if self.bare:
            return math.inf
        plain, amplified = [], 0.0
        for shift in self.shifts:
            if not isinstance(shift.law, Gaussian) or shift.law.sample_rate >= 1:
                plain.append(shift)
            elif shift.largest > 0:
                amplified += dpsgd_epsilon(
                    noise_multiplier=1 / shift.largest,
                    steps=shift.count,
                    delta=delta,
                    sampling="poisson",
                    sample_rate=shift.law.sample_rate,
                )
        pure = sum(shift.epsilon for shift in plain if math.isfinite(shift.epsilon))
        if all(math.isfinite(shift.epsilon) for shift in plain):
            return amplified + pure
        alone = epsilon_of_mu(compose_mu(shift.mu for shift in plain if not math.isfinite(shift.epsilon)), delta)
        return amplified + min(alone + pure, epsilon_of_mu(compose_mu(shift.mu for shift in plain), delta))

    def exceeds(self, claim: Claim) -> bool:
        """Say whether the claim is refuted; one that covers nothing cannot be."""
        if not claim.covered or claim.neighbour != self.kind:
            return False
        if math.isfinite(claim.mu):
            return self.mu > claim.mu * (1 + _RELATIVE)
        return self.epsilon(claim.delta) > claim.epsilon * (1 + _RELATIVE)


@dataclass(frozen=True, kw_only=True)
class ReplayAudit:
    """What all neighbours of one party moved, beside what the party is promised."""

    party: str
    replays: tuple[Replayed, ...]
    claims: Mapping[str, Claim]
    """By kind of neighbour."""

    @property
    def worst(self) -> dict[str, Replayed]:
        """The neighbour that moved most, by kind."""
        found: dict[str, Replayed] = {}
        for replayed in self.replays:
            if replayed.kind not in found or replayed.mu > found[replayed.kind].mu:
                found[replayed.kind] = replayed
        return found

    @property
    def refuted(self) -> list[str]:
        """Sentences on each claim that the audit refutes."""
        lines = []
        for kind, claim in self.claims.items():
            beyond = [replayed for replayed in self.replays if replayed.exceeds(claim)]
            if beyond:
                one = max(beyond, key=lambda replayed: replayed.mu)
                without = f"; without noise: {', '.join(one.bare[:3])}" if one.bare else ""
                lines.append(
                    f"{self.party}: mu {claim.mu:.4g}, epsilon {claim.epsilon:.4g} are claimed for one {kind}; with "
                    f"{one.neighbour}, what is sent moves by mu {one.mu:.4g}{without}"
                )
        return lines


def audit_by_replay(
    protocol: Protocol, config: Any, data: Any, party: str, neighbours: Iterable[Neighbour], *, seed: int = 0
) -> ReplayAudit:
    """Record a run, and replay one party with each neighbour.

    Args:
        protocol: whose run it is.
        config: its configuration; keep the run small, since it is run once for each neighbour.
        data: what its ``run`` takes.
        party: whose record is another.
        neighbours: see `fedactors.plugins.Protocol.neighbours`.
        seed: of the run.

    Raises:
        FedactorsError: the run itself fails.
    """
    transcript = Transcript(party)
    stated = _run(protocol, config, data, transcript, seed)
    found = claims(stated, as_if_secret=True)
    replays = tuple(replay(protocol, config, party, transcript, neighbour, seed=seed) for neighbour in neighbours)
    party_claims = {kind: claim for (name, kind), claim in found.items() if name in (party, EVERYBODY)}
    return ReplayAudit(party=party, replays=replays, claims=party_claims)


def joined(audits: Sequence[ReplayAudit]) -> ReplayAudit | None:
    """Return the audit of a joined tuple, from those of all parties; None if nothing is stated about one.

    What a party sends depends on its own rows and on what it received, so the shifts of all who have a part of the
    tuple (neighbours of one ``record``) compose.
    """
    claim = next((audit.claims[JOINED] for audit in audits if JOINED in audit.claims), None)
    if claim is None:
        return None
    records: dict[int, list[Replayed]] = {}
    for one in (one for audit in audits for one in audit.replays):
        if one.kind == "row" and one.record is not None:
            records.setdefault(one.record, []).append(one)
    replays = [
        Replayed(
            party=EVERYBODY,
            neighbour="; ".join(f"{one.party}: {one.neighbour}" for one in parts),
            kind=JOINED,
            shifts=tuple(shift for one in parts for shift in one.shifts),
            bare=tuple(transfer for one in parts for transfer in one.bare),
            to_driver=tuple(transfer for one in parts for transfer in one.to_driver),
        )
        for parts in records.values()
    ]
    return ReplayAudit(party=EVERYBODY, replays=tuple(replays), claims={JOINED: claim})


def replay(
    protocol: Protocol, config: Any, party: str, transcript: Transcript, neighbour: Neighbour, *, seed: int
) -> Replayed:
    """Run once more with a neighbour of the party's data, and return what moved against the transcript."""
    comparison = Comparison(transcript)
    try:
        _run(protocol, config, neighbour.data, comparison, seed)
    except FedactorsError as error:
        comparison.differs("the run", DRIVER, f"how it ends ({str(error).splitlines()[0]})", to_all=True)
    comparison.end()
    return Replayed(
        party=party,
        neighbour=neighbour.label,
        kind=neighbour.kind,
        shifts=comparison.shifts(),
        bare=tuple(comparison.bare),
        to_driver=tuple(comparison.to_driver),
        record=neighbour.record,
    )


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One run of a party's data as an adversary sees it, who can compute what other data would have made of it."""

    releases: tuple[tuple[Any, Any, Law, Any], ...]
    """Exact value of the own and of the other data, law, and what left."""
    bare: tuple[str, ...]
    """What would have been otherwise, and has no noise."""
    numbers: Mapping[str, float]
    """Seconds, bytes and messages, and the metrics of all rounds."""


def seen_of(protocol: Protocol, config: Any, party: str, data: Any, other: Any, *, seed: int) -> Seen:
    """Run on the data, and replay one party with the other data; see `fedactors.auditing.attacks`."""
    transcript = Transcript(party)
    runtime = _executed(protocol, config, data, transcript, seed)
    comparison = Comparison(transcript)
    _run(protocol, config, other, comparison, seed)
    comparison.end()
    usage, recorder = runtime.usage(), runtime.recorder
    assert isinstance(recorder, MemoryRecorder)
    numbers = {"seconds": usage.seconds, "bytes": float(usage.bytes), "messages": float(usage.messages)}
    for round_number, metrics in enumerate(recorder.rounds):
        named = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
        numbers |= {f"{round_number}/{name}": float(value) for name, value in named.items() if math.isfinite(value)}
    releases = tuple(
        (exact, comparison.exact.get((release_name, number), exact), law, made)
        for release_name, ones in transcript.released.items()
        for number, (exact, law, made) in enumerate(ones)
    )
    return Seen(releases=releases, bare=tuple(comparison.bare), numbers=numbers)


# --- the boundary ----------------------------------------------------------------------------------------------------


@dataclass
class Transcript:
    """What one party's actors released and sent in the recorded run, by release name, in the order of leaving."""

    party: str
    sent: dict[tuple[str, str, str], list[Any]] = field(default_factory=dict)
    """(sender, receiver, what) to messages."""
    released: dict[str, list[tuple[Any, Law, Any]]] = field(default_factory=dict)
    """Release name to (exact value, law, release)."""

    def cross(self, sender: str, receiver: str, what: str, value: Any) -> Any:
        """Keep a message that leaves the party, and let it go."""
        self.sent.setdefault((sender, receiver, what), []).append(freeze(value)[0])
        return value

    def release(self, exact: Any, law: Law, draw: Callable[[], Any], name: str) -> Any:
        """Keep a release, of the audited party."""
        made = draw()
        if (release_name := self.release_name(name)) is not None:
            self.released.setdefault(release_name, []).append((copy.deepcopy(exact), law, copy.deepcopy(made)))
        return made

    def release_name(self, name: str) -> str | None:
        """Return the name of a release, its actor first; None if it is another party's."""
        actor = current_actor.get()
        return f"{actor} {name or 'release'}" if is_of(actor, self.party) else None


class Comparison(Transcript):
    """The second run: what leaves is compared with the transcript, and what was recorded goes in its place."""

    def __init__(self, recorded: Transcript) -> None:
        super().__init__(recorded.party)
        self.bare: dict[str, None] = {}
        self.to_driver: dict[str, None] = {}
        self.exact: dict[tuple[str, int], Any] = {}
        """What was noised here, by name and number of its release."""
        self._recorded = recorded
        self._num: dict[Any, int] = {}
        self._mus: dict[str, list[float]] = {}
        self._epsilons: dict[str, float] = {}

    def cross(self, sender: str, receiver: str, what: str, value: Any) -> Any:
        """Compare a message with the recorded one, which leaves instead."""
        before = self._next((sender, receiver, what), self._recorded.sent)
        if before is None:
            self.differs(sender, receiver, f"one more {what}")
            return value
        for path in differences(before, freeze(value)[0], type_name(value, what)):
            self.differs(sender, receiver, path)
        return before

    def release(self, exact: Any, law: Law, draw: Callable[[], Any], name: str) -> Any:
        """Measure how far a release has moved; return the recorded one."""
        release_name = self.release_name(name)
        if release_name is None:
            return draw()
        before = self._next(release_name, self._recorded.released)
        if before is None:
            self.differs(release_name, "all", "one more release")
            return draw()
        draw()  # so that the party's generators go on as they did in the first run
        exact_before, law_before, made = before
        self.exact[release_name, self._num[release_name] - 1] = copy.deepcopy(exact)
        if law_before != law or np.shape(exact_before) != np.shape(exact):
            self.differs(release_name, "all", "the shape or the noise of a release")
        else:
            mu = law.mu(exact_before, exact)
            if mu > 0:
                self._mus.setdefault(release_name, []).append(mu)
                self._epsilons[release_name] = self._epsilons.get(release_name, 0.0) + law.epsilon(exact_before, exact)
        return copy.deepcopy(made)

    def differs(self, sender: str, receiver: str, what: str, *, to_all: bool = False) -> None:
        """Note what has left without noise."""
        transfers = self.to_driver if receiver == DRIVER and not to_all else self.bare
        transfers.setdefault(f"{what} from {sender} to {receiver}")

    def end(self) -> None:
        """Note what was recorded and did not happen again."""
        for (sender, receiver, what), values in self._recorded.sent.items():
            if self._num.get((sender, receiver, what), 0) < len(values):
                self.differs(sender, receiver, f"one {what} less")
        for release_name, made in self._recorded.released.items():
            if self._num.get(release_name, 0) < len(made):
                self.differs(release_name, "all", "one release less")

    def shifts(self) -> tuple[Shift, ...]:
        """Return what moved, by release name."""
        return tuple(
            Shift(
                release_name=release_name,
                law=made[0][1],
                count=len(made),
                mus=tuple(self._mus.get(release_name, ())),
                epsilon=self._epsilons.get(release_name, 0.0),
            )
            for release_name, made in sorted(self._recorded.released.items())
        )

    def _next(self, key: Any, recorded: Mapping[Any, list[Any]]) -> Any:
        number = self._num.get(key, 0)
        self._num[key] = number + 1
        found = recorded.get(key, ())
        return found[number] if number < len(found) else None


def is_of(actor: str, party: str) -> bool:
    """Say whether an actor is one of the party's."""
    return actor.partition("/")[0] == party


def differences(one: Any, other: Any, path: str) -> Iterator[str]:
    """Yield the fields in which two messages differ, bit by bit."""
    if type(one) is not type(other):
        yield path
    elif isinstance(one, Ref):
        if (one.owner, one.num_bytes) != (other.owner, other.num_bytes):
            yield path
    elif is_dataclass(one) and not isinstance(one, type):
        for described in dataclass_fields(one):
            name = described.name
            yield from differences(getattr(one, name), getattr(other, name), f"{type(one).__name__}.{name}")
    elif isinstance(one, np.ndarray):
        if one.shape != other.shape or one.dtype != other.dtype or one.tobytes() != other.tobytes():
            yield path
    elif isinstance(one, Mapping):
        if list(one) != list(other):
            yield path
        else:
            for key in one:
                yield from differences(one[key], other[key], path)
    elif isinstance(one, (tuple, list)):
        if len(one) != len(other):
            yield path
        for a, b in zip(one, other, strict=False):
            yield from differences(a, b, path)
    elif one != other and not (one != one and other != other):
        yield path


class _BoundaryWire(Wire):
    """A wire on which whatever leaves one party passes its boundary."""

    def __init__(self, runtime: _BoundaryRuntime) -> None:
        super().__init__(runtime)
        self._boundary = runtime.boundary

    def send(self, sender: str, receiver: str, method: str, value: Any) -> Any:
        party = self._boundary.party
        if is_of(sender, party) and not is_of(receiver, party) and value is not None:
            value = self._boundary.cross(sender, receiver, method, value)
        return super().send(sender, receiver, method, value)

    def _send_back(self, call: Call, reply: Any) -> tuple[Any, int]:
        party, replier = self._boundary.party, call.receiver.name
        if is_of(replier, party) and not is_of(call.sender, party):
            reply = self._boundary.cross(replier, call.sender, f"reply of {call.endpoint.name}", reply)
        return super()._send_back(call, reply)


class _BoundaryRuntime(SimulatedRuntime):
    """A `SimulatedRuntime` in which whatever leaves one party passes its boundary."""

    def __init__(self, boundary: Transcript, *, seed: int) -> None:
        super().__init__(seed=seed, recorder=MemoryRecorder(keeps_checkpoints=False), reproducible_noise=True)
        self.boundary = boundary
        self.wire = _BoundaryWire(self)

    async def _bring_up(self, contexts: list[SimulatedContext], state: Any) -> None:
        for context in contexts:
            if is_of(context.name, self.boundary.party):
                self._watch(context)
        await super()._bring_up(contexts, state)

    def _watch(self, context: SimulatedContext) -> None:
        keep, boundary = context.put, self.boundary

        def put(value: Any, readers: frozenset[str]) -> Ref:
            if any(not is_of(reader, boundary.party) for reader in readers):
                value = boundary.cross(context.name, ", ".join(sorted(readers)), "payload", value)
            return keep(value, readers)

        context.put = put  # type: ignore[method-assign]


def _run(protocol: Protocol, config: Any, data: Any, boundary: Transcript, seed: int) -> Sequence[PrivacyRecord]:
    return _executed(protocol, config, data, boundary, seed).privacy_records


def _executed(protocol: Protocol, config: Any, data: Any, boundary: Transcript, seed: int) -> _BoundaryRuntime:
    runtime = _BoundaryRuntime(boundary, seed=seed)
    with observing(boundary.release), _same_entropy(seed):
        runtime.execute(lambda: protocol.run(config, data, runtime))
    return runtime


@contextlib.contextmanager
def _same_entropy(seed: int) -> Iterator[None]:
    """Let salts and masks be the same in both runs: no actor draws from the operating system while this lasts."""
    drawn: dict[str, np.random.Generator] = {}

    def draw(nbytes: int | None = None) -> bytes:
        actor = current_actor.get()
        if actor not in drawn:
            drawn[actor] = derived_rng(seed, actor, "entropy of an audit")
        return drawn[actor].bytes(32 if nbytes is None else nbytes)

    before = os.urandom, secrets.token_bytes
    os.urandom = secrets.token_bytes = draw
    try:
        yield
    finally:
        os.urandom, secrets.token_bytes = before


# --- neighbours of horizontal data ------------------------------------------------------------------------------------

_FACTORS = (1.0, 100.0, 0.0, -1.0)
"""Of another row's features, in a row's place."""


@dataclass(frozen=True, kw_only=True)
class _WithClient(HorizontalData):
    """Data in which one client has other rows."""

    changed: int
    other: Rows | OtherRow | RowsAgain

    def client(self, index: int) -> Any:
        """Return the source of a client's rows."""
        return self.other if index == self.changed else super().client(index)


@wire_type
class RowsAgain:
    """Another client's rows, each as often as makes a number of them."""

    source: Rows
    count: int

    def load(self) -> HorizontalBlock:
        """Load them."""
        block = self.source.load()
        index = np.resize(np.arange(len(block.labels)), self.count)
        return replace(block, features=block.features[index], labels=np.asarray(block.labels)[index])

    def labels(self) -> Any:
        """Load the labels alone."""
        return self.load().labels


@wire_type
class OtherRow:
    """A client's rows, one of which has other features, a multiple of another row's, and that row's label."""

    source: Rows
    row: int
    by: int
    factor: float

    def load(self) -> HorizontalBlock:
        """Load them."""
        block = self.source.load()
        features, labels = block.features.copy(), np.array(block.labels)
        features[self.row], labels[self.row] = self.factor * features[self.by], labels[self.by]
        return replace(block, features=features, labels=labels)

    def labels(self) -> Any:
        """Load the labels alone."""
        return self.load().labels


def replaced_client(data: HorizontalData, client: int, other: int, *, as_many: bool = False) -> Neighbour:
    """Return data in which a client has another one's rows, with `as_many` as often as makes its number of rows."""
    rows: Any = data.client(other)
    if as_many:
        rows = RowsAgain(source=rows, count=len(rows_of(rows_key(data.client(client)))[1]))
    label = f"client {client} with the rows of client {other}"
    return Neighbour(label=label, kind="client", data=_with_client(data, client, rows))


def replaced_rows(data: HorizontalData, clients: Sequence[int], count: int, seed: int) -> Sequence[Neighbour]:
    """Return data in which one row of one of some clients is another: its features zeros or large, its label too."""
    rng, found = np.random.default_rng(seed), []
    for number in range(count):
        client = int(rng.choice(np.asarray(clients)))
        row, by = rng.choice(len(rows_of(rows_key(data.client(client)))[1]), 2, replace=False).tolist()
        factor = _FACTORS[number % len(_FACTORS)]
        other = OtherRow(source=data.client(client), row=row, by=by, factor=factor)
        label = f"row {row} of client {client} by {factor:g} times row {by}"
        found.append(Neighbour(label=label, kind="row", data=_with_client(data, client, other)))
    return found


def _with_client(data: HorizontalData, client: int, rows: Any) -> HorizontalData:
    given = {field.name: getattr(data, field.name) for field in dataclass_fields(HorizontalData)}
    return _WithClient(**given, changed=client, other=rows)
