"""The conformance kit: what a protocol's author runs on their own protocol.

    def test_my_protocol():
        check_protocol(PROTOCOL, config={"num_rounds": 3})

It runs the protocol several times in the simulated runtime, on Ray and, if asked to, between sites, and raises one
`NotConforming` with every remark, written as a reviewer would: what is wrong, where, and what to do about it.

What it cannot show: that values which were encoded reveal nothing (see `fedactors.testing.leaks` for what it finds),
that a malicious party could do no harm, or that the mathematics is right.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedactors.auditing.replay import audit_by_replay, joined
from fedactors.config import build, meaning_of
from fedactors.errors import BadInput, CallTimeout, Deadlock, FedactorsError, PartyError
from fedactors.inspection import describe_messages
from fedactors.plugins import Protocol, check_contract
from fedactors.privacy.accounting import EVERYBODY, check_record, claims
from fedactors.runs.metrics import jsonable
from fedactors.testing.leaks import MIN_DISTINCT, Form, RawData, decoded
from fedactors.testing.observation import Gathered
from fedactors.testing.runs import (
    Outcome,
    Subject,
    one_cluster,
    remarks_on_sites,
    run_on_ray,
    simulate,
    simulate_elsewhere,
)

_MOST_FORMS = 4
_LEAST_STEP_SECONDS = 2e-3
_LEAST_SECONDS = 3e-2
_MOST_UNPAID_SHARE = 0.1
_MOST_RESUMES = 6
_MEASURED_AGAIN = 2
_NEIGHBOURS = 5


class NotConforming(AssertionError):
    """A protocol does not keep the contract; the text lists every remark."""


@dataclass(frozen=True, kw_only=True)
class Remark:
    """One thing that a reviewer would say."""

    check: str
    text: str

    def __str__(self) -> str:
        return f"[{self.check}] {self.text}"


def check_protocol(protocol: Protocol, **checks: Any) -> None:
    """Check a protocol against the contract.

    Args:
        protocol: the plugin's protocol.
        checks: what is checked and how strictly: the fields of `fedactors.testing.runs.Subject`.

    Raises:
        NotConforming: with all remarks.
    """
    subject = Subject(protocol=protocol, **checks)
    remarks = list(review(subject))
    if remarks:
        lines = "\n".join(f"  {number}. {remark}" for number, remark in enumerate(remarks, start=1))
        raise NotConforming(f"{protocol.name} does not conform:\n{lines}")


def review(subject: Subject) -> Iterator[Remark]:
    """Yield every remark on a protocol, as soon as it is found; none when it conforms."""
    found = 0

    def made(check: str, texts: Iterable[str]) -> Iterator[Remark]:
        nonlocal found
        for text in texts:
            found += 1
            yield Remark(check=check, text=text)

    yield from made("config", remarks_on_config(subject))
    if found:
        return
    with_watch = simulate(subject, watch=True)
    if with_watch.error is not None:
        yield from made("run", [f"the smoke run does not end well in simulation: {_described(with_watch.error)}"])
        return
    whole = simulate(subject)
    yield from made("determinism", remarks_on_determinism(subject, with_watch, whole))
    differs = bool(found)
    yield from made("wall time", remarks_on_wall_time(with_watch))
    yield from made("messages", remarks_on_messages(subject, with_watch))
    yield from made("privacy", remarks_on_raw_data(subject, with_watch))
    yield from made("ledger", remarks_on_ledger(with_watch))
    yield from made("channels", remarks_on_channels(with_watch))
    if differs:
        return  # nothing below means anything while two equal runs differ
    # what is only measured is measured again before it is said
    again = [simulate(subject) for _ in range(_MEASURED_AGAIN)] if unpaid_work([whole]) else []
    yield from made("unpaid work", remarks_on_unpaid_work([with_watch, whole, *again]))
    if not found:
        yield from made("determinism", remarks_on_other_process(subject, whole))
    yield from made("claims", remarks_on_claims(subject, whole))
    yield from made("resume", remarks_on_resume(subject, whole))
    yield from made("party loss", remarks_on_loss(subject, whole))
    if subject.on_ray:
        with one_cluster(subject):
            yield from made("runtimes", remarks_on_runtimes(subject, whole, run_on_ray(subject)))
            if not found:
                yield from made("party loss on Ray", remarks_on_killed_process(subject, whole))
    if subject.num_sites:
        yield from made("sites", remarks_on_sites(subject))


# --- one observed run -------------------------------------------------------------------------------------------------


def remarks_on_wall_time(outcome: Outcome) -> Iterator[str]:
    """An actor knows one clock: the runtime's."""
    for location, call in outcome.observed.wall_time.items():
        yield f"{location} calls {call}. Time is the runtime's: self.clock.now() and self.clock.sleep()"


def remarks_on_messages(subject: Subject, outcome: Outcome) -> Iterator[str]:
    """Whatever leaves a party is declared in the protocol's module of messages, and `fedactors inspect` tells of it."""
    module = subject.protocol.messages
    if module is not None and subject.protocol.actors is None:
        yield "the protocol names no actors, so that `fedactors inspect` cannot say who receives what: give actors_at"
    elif module is not None:
        told = {entry["message"] for entry in describe_messages(subject.protocol, subject.make_config())}
        for cls, route in outcome.observed.types.items():
            if cls.__name__ not in told:
                yield f"{cls.__name__} goes from {route}, but `fedactors inspect` does not tell of it"
    for cls, route in outcome.observed.types.items():
        if module is None:
            yield f"{cls.__name__} goes from {route}, but the protocol names no module of messages to review"
        elif getattr(module, cls.__name__, None) is not cls and not cls.__module__.startswith("fedactors."):
            yield f"{cls.__name__} goes from {route}, but {module.__name__}, the privacy review, does not know it"
        if not cast(Any, cls).__message__.reveals.strip():
            yield f"{cls.__name__} does not say what it reveals to its receiver"


def remarks_on_ledger(outcome: Outcome) -> Iterator[str]:
    """The ledger states the bytes of everything that was really sent."""
    stated: dict[tuple[str, str], int] = {}
    for (sender, receiver, _), (_, num_bytes) in outcome.totals.items():
        stated[sender, receiver] = stated.get((sender, receiver), 0) + num_bytes
    for pair, sent in outcome.observed.sent_bytes.items():
        if stated.get(pair, 0) != sent:
            yield f"{pair[0]} sent {sent} bytes to {pair[1]}, of which the ledger knows {stated.get(pair, 0)}"
    for location, route in outcome.observed.relayed.items():
        yield (
            f"{location} goes from {route} by way of the driver, whose calls count no bytes and take no time on links. "
            "Let one party call the other"
        )


def remarks_on_channels(outcome: Outcome) -> Iterator[str]:
    """Nothing leaves a party but messages."""
    for location, what in outcome.observed.channels.items():
        yield f"{location} {what}: a channel past the ledger. What leaves a party is a message; the run keeps the files"
    for location, reader in outcome.observed.others_data.items():
        yield (
            f"{location}: {reader}: a channel past the ledger. What a party has is loaded in its own process, from the "
            "part that its constructor was given"
        )
    for where, actor in outcome.observed.shared.items():
        yield (
            f"{where} changed while the run went on (seen after a step of {actor}): parties of one process share it, "
            "past the ledger, and on Ray each has its own. Keep state in the actor's attributes, and send messages"
        )


def remarks_on_unpaid_work(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """What an actor computes is computed in `compute`, where the simulated runtime counts its time.

    Equal runs take equal steps, and of each step the least processor time among the runs counts: a machine that is
    busy can lengthen a step of one run, but shortens none.
    """
    observed = outcomes[0].observed
    for code, location in observed.called.items():
        if code in observed.computed:
            yield (
                f"{location} calls {observed.computed[code]} directly, which elsewhere runs in self.compute(): there "
                "it takes no time of the simulated clock"
            )
    work = unpaid_work(outcomes)
    for actor, served in sorted(work, key=lambda key: -work[key]):
        paid = min(outcome.observed.compute_seconds.get(actor, 0.0) for outcome in outcomes)
        if work[actor, served] >= max(_LEAST_SECONDS, _MOST_UNPAID_SHARE * paid):
            yield (
                f"{actor} works {1000 * work[actor, served]:.0f} ms of processor time in {served} outside of "
                f"self.compute() (and {1000 * paid:.0f} ms inside), which takes no time of the simulated clock. "
                "Await self.compute(function, ..., work=Work(...))"
            )


def unpaid_work(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], float]:
    """Return processor seconds outside of computes by (actor, what it served), of steps long enough to matter."""
    work: dict[tuple[str, str], float] = {}
    if len({len(outcome.observed.steps) for outcome in outcomes}) == 1:
        for steps in zip(*(outcome.observed.steps for outcome in outcomes), strict=True):
            least = min(seconds for _, _, seconds in steps)
            if least >= _LEAST_STEP_SECONDS:
                work[steps[0][:2]] = work.get(steps[0][:2], 0.0) + least
    return work


def remarks_on_raw_data(subject: Subject, outcome: Outcome) -> Iterator[str]:
    """Nothing that leaves a party holds a raw column, row or label vector; see `fedactors.testing.leaks`."""
    raw = outcome.observed.raw
    for name, matrix in subject.raw_columns.items():
        raw.add_features(name, np.asarray(matrix))
    if len(raw) == 0 and not subject.raw_columns:
        yield "no feature matrix was loaded through fedactors.data: give raw_columns, so that messages can be searched"
    left = {
        (location, sender): gathered
        for (location, sender), gathered in outcome.observed.left.items()
        if not {location, location.partition(".")[0]} & set(subject.allowed)
    }
    orders = outcome.observed.orders.values()
    said = set()
    for location, sender in left:
        gathered = left[location, sender]
        if location not in said and (found := search(raw, gathered, orders)):
            said.add(location)
            yield f"{location}, sent from {gathered.route}, holds {found}. Raw data must not leave its party"


def search(raw: RawData, gathered: Gathered, orders: Collection[NDArray[Any]] = ()) -> str | None:
    """Return what raw data is in arrays, numbers, texts or bytes that left, or None; see `RawData` about `orders`."""
    drawn = (raw.find_drawn(array, orders) for array in gathered.arrays if array.size)
    plain = (*_arrays(gathered), *_flattened(gathered, raw.widths), np.array(gathered.numbers))
    return next(filter(None, chain(drawn, map(raw.find, chain(plain, decoded(_forms(gathered)))))), None)


def _arrays(gathered: Gathered) -> Iterator[NDArray[Any]]:
    """Yield arrays of numbers, and small ones of one shape as the rows of one table."""
    tables: dict[tuple[int, ...], list[NDArray[Any]]] = {}
    for array in gathered.arrays:
        if array.dtype.kind == "c":
            array = array.view(np.float64)
        if array.dtype.kind in "biuf":
            yield array
            tables.setdefault(array.shape, []).append(array)
    for arrays in tables.values():
        if len(arrays) > 1 and arrays[0].size:
            yield np.stack(arrays).reshape(len(arrays), -1)


def _flattened(gathered: Gathered, widths: Collection[int]) -> Iterator[NDArray[Any]]:
    """Yield long vectors of numbers as tables of as many columns as raw data have."""
    for array in gathered.arrays:
        if array.ndim == 1 and array.dtype.kind in "biuf":
            for width in sorted(widths):
                if (rows := len(array) // width) >= MIN_DISTINCT:
                    yield array[: rows * width].reshape(rows, width)


def _forms(gathered: Gathered) -> list[Form]:
    """Return texts and bytes that left, all texts as one as well, the first few each."""
    texts = [*gathered.texts, *(str(text) for one in gathered.arrays if one.dtype.kind == "U" for text in one.ravel())]
    blobs = [*gathered.blobs, *(array.tobytes() for array in gathered.arrays if array.dtype.kind in "SV")]
    return [*texts[:_MOST_FORMS], " ".join(texts), *blobs]


# --- several runs -----------------------------------------------------------------------------------------------------


def remarks_on_config(subject: Subject) -> Iterator[str]:
    """The config is a validated dataclass whose every field says what it means."""
    protocol = subject.protocol
    try:
        check_contract(protocol, protocol.name)
        for preset in (protocol.smoke, protocol.paper):
            build(protocol.Config, preset)
        subject.make_config()
    except BadInput as error:
        yield f"its own settings are refused: {error}"
        return
    fields = dataclasses.fields(protocol.Config)
    described = getattr(protocol.Config, "__pydantic_fields__", {})
    for field in fields:
        if field.name in described and not meaning_of(protocol.Config, field.name):
            yield f"{field.name}: no docstring under the field says what it means"
        if isinstance(field.default, (int, float)) and not isinstance(field.default, bool):
            yield from _accepts(protocol, field.name, "not-a-number", "a word where a number belongs")
            for value in _outside(described.get(field.name)):
                yield from _accepts(protocol, field.name, value, "a value outside of its own limits")
    yield from _accepts(protocol, "no_such_setting", "1", "a key that does not exist")


def remarks_on_determinism(subject: Subject, one: Outcome, other: Outcome) -> Iterator[str]:
    """The same seed gives byte-identical metrics, and the same messages (but for what keys and salts make of them)."""
    cure = (
        "Draw from self.rng(purpose), never from an unseeded or a shared generator, and let nothing depend on the "
        "order of a set, on id() or on the time of day"
    )
    if one.lines != other.lines or jsonable(one.metrics) != jsonable(other.metrics):
        difference = _first_difference(one, other)
        yield f"two simulated runs with seed {subject.seed} record different metrics: {difference}. {cure}"
    elif one.observed.sent != other.observed.sent:
        pairs = zip(one.observed.sent, other.observed.sent, strict=False)
        index, (a, b) = next(((i, pair) for i, pair in enumerate(pairs, 1) if pair[0] != pair[1]), (0, (("", 0),) * 2))
        what = f"from the {index}th on: {a[0]} of {a[1]} bytes, then {b[0]} of {b[1]}" if index else "in number"
        yield f"two simulated runs with seed {subject.seed} send different messages {what}. {cure}"
    for name in one.observed.global_generators:
        yield (
            f"the process-wide generator of {name} was drawn from or seeded. On Ray each process has its own, in "
            "simulation all parties share one: use self.rng(purpose), or fork_rng around code that insists"
        )


def remarks_on_other_process(subject: Subject, whole: Outcome) -> Iterator[str]:
    """A process whose hashes of texts are others gives the same metrics."""
    found = simulate_elsewhere(subject)
    if isinstance(found, str):
        yield f"in a process of its own the run ends with: {found}"
    elif found is not None and (found[0] != whole.lines or found[1] != jsonable(whole.metrics)):
        other = dataclasses.replace(whole, lines=found[0], metrics=found[1])
        yield (
            f"two processes record different metrics: {_first_difference(whole, other)}. Each process orders sets of "
            "texts differently: sort what comes from a set, and let nothing depend on hash() or id()"
        )


def remarks_on_resume(subject: Subject, whole: Outcome) -> Iterator[str]:
    """From every checkpoint a run goes on exactly as if it had never been interrupted."""
    if not whole.taken:
        yield "the run takes no checkpoint. Await runtime.checkpoint() after each round"
        return
    step = max(1, math.ceil(len(whole.taken) / _MOST_RESUMES))
    for number in range(0, len(whole.taken), step):
        taken = whole.taken[number]
        name = f"the run resumed from checkpoint {number + 1} ({taken.label!r}, after {taken.num_rounds} rounds)"
        resumed = simulate(subject, resume=taken.snapshot)
        if resumed.error is not None:
            yield f"{name} ends with: {_described(resumed.error)}"
            continue
        expected = dataclasses.replace(whole, lines=whole.lines[taken.num_rounds :])
        if resumed.lines != expected.lines or jsonable(resumed.metrics) != jsonable(whole.metrics):
            yield (
                f"{name} does not go on as the uninterrupted one: {_first_difference(expected, resumed)}. "
                f"{_lost_state(whole, number, resumed)}"
            )
        elif expected.lines and _traffic(resumed) != _traffic(whole):
            yield (
                f"{name} gives the same metrics with other traffic or time (messages, bytes, seconds): "
                f"{_traffic(resumed)} instead of {_traffic(whole)}. {_lost_state(whole, number, resumed)}"
            )


def remarks_on_claims(subject: Subject, whole: Outcome) -> Iterator[str]:
    """What the privacy ledger says follows from its ingredients, and a replay of one record does not refute it."""
    for line in map(check_record, whole.privacy):
        if not line.agrees:
            yield f"the privacy ledger's line of {line.record.party} on {line.record.message_type}: {line.reason}"
    stated = claims(whole.privacy, as_if_secret=True)
    covered = {claim.party for claim in stated.values() if claim.covered}
    parties = sorted({claim.party for claim in stated.values()} - {EVERYBODY} if EVERYBODY in covered else covered)
    if not parties:
        return
    neighbours = getattr(subject.protocol, "neighbours", None)
    if neighbours is None:
        yield (
            f"a budget is claimed for {', '.join(parties)}, and the protocol does not say for which neighbours: give "
            "it a function `neighbours`, so that the claim can be replayed"
        )
        return
    config = subject.make_config()
    data = subject.load(config)
    audits = []
    for party in parties:
        found = neighbours(config, data, party, _NEIGHBOURS, subject.seed)
        audits.append(audit_by_replay(subject.protocol, config, data, party, found, seed=subject.seed))
        yield from audits[-1].refuted
    if EVERYBODY in covered and (whole_tuple := joined(audits)) is not None:
        yield from whole_tuple.refuted


def remarks_on_loss(subject: Subject, whole: Outcome) -> Iterator[str]:
    """What follows a lost process is what the protocol says it supports."""
    half = 0.5 * (whole.usage.seconds if whole.usage is not None else 0.0)
    victims = list({cls: name for name, cls in reversed(whole.actors.items())}.values())
    for policy, overrides in _loss_settings(subject):
        survived = False
        for victim in victims:
            outcome = simulate(subject, faults={victim: half}, overrides=overrides)
            problem = _judge_loss(outcome, victim, policy)
            survived = survived or outcome.error is None
            if problem:
                yield f"{victim} is lost at {half:.4g} s with on_party_loss={policy}: {problem}"
        if policy != "stop" and not survived:
            yield f"party_loss names {policy!r}, but the loss of none of {', '.join(victims)} was survived"


def remarks_on_runtimes(subject: Subject, simulated: Outcome, on_ray: Outcome) -> Iterator[str]:
    """Both runtimes give equal numbers, or agree where the result depends on timing."""
    if on_ray.error is not None:
        yield f"what runs in simulation ends on Ray with: {_described(on_ray.error)}"
        return
    ours, theirs = _numbers(simulated.metrics), _numbers(on_ray.metrics)
    names = ours.keys() | theirs.keys() if subject.deterministic else subject.agree.keys()
    for name in sorted(names):
        a, b = ours.get(name, math.nan), theirs.get(name, math.nan)
        allowed = subject.relative * max(abs(a), abs(b)) if subject.deterministic else subject.agree[name]
        if not abs(a - b) <= allowed and not (math.isnan(a) and math.isnan(b)):
            yield (
                f"{name} is {a!r} in simulation and {b!r} on Ray (allowed: {allowed:.3g} apart). Reduce in the order "
                "of names, never of arrival, and keep nothing in the process but the actor's attributes"
            )
    if subject.deterministic and simulated.totals != on_ray.totals:
        for key in sorted(simulated.totals.keys() | on_ray.totals.keys()):
            a_, b_ = simulated.totals.get(key, (0, 0)), on_ray.totals.get(key, (0, 0))
            if a_ != b_:
                sender, receiver, kind = key
                yield (
                    f"{kind} from {sender} to {receiver}: {a_[0]} messages of {a_[1]} bytes in simulation, {b_[0]} of "
                    f"{b_[1]} on Ray"
                )
                return


def remarks_on_killed_process(subject: Subject, whole: Outcome) -> Iterator[str]:
    """A process that is killed on Ray has the consequence that the protocol names, and nothing hangs or stays."""
    policy, overrides = _loss_settings(subject)[-1]
    victim = next(iter(whole.actors))
    outcome = run_on_ray(subject, kill=victim, overrides=overrides)
    if problem := _judge_loss(outcome, victim, policy):
        yield f"the process of {victim} is killed after the first round with on_party_loss={policy}: {problem}"


def _accepts(protocol: Protocol, name: str, value: Any, what: str) -> Iterator[str]:
    try:
        build(protocol.Config, {**protocol.smoke, name: value})
    except BadInput as error:
        if name not in str(error):
            yield f"{name}: {value!r} is refused without naming the field: {error}"
    except Exception as error:
        yield f"{name}: {value!r} ends in {type(error).__name__} instead of one clear line: {error}"
    else:
        yield f"{name}: {value!r} is accepted, {what}"


def _outside(described: Any) -> Iterator[str]:
    for limit in getattr(described, "metadata", ()):
        for attribute, sign in (("ge", -1), ("gt", 0), ("le", 1), ("lt", 0)):
            bound = getattr(limit, attribute, None)
            if isinstance(bound, (int, float)):
                yield str(bound + sign)


def _loss_settings(subject: Subject) -> list[tuple[str, dict[str, Any]]]:
    """The policies to try, and the config values that choose each; the default one last."""
    protocol = subject.protocol
    if "on_party_loss" not in {field.name for field in dataclasses.fields(protocol.Config)}:
        return [(protocol.default_party_loss, {})]
    if "on_party_loss" in subject.config:
        return [(str(subject.config["on_party_loss"]), {})]
    others = sorted(protocol.party_loss - {protocol.default_party_loss})
    return [(policy, {"on_party_loss": policy}) for policy in [*others, protocol.default_party_loss]]


def _judge_loss(outcome: Outcome, victim: str, policy: str) -> str | None:
    error = outcome.error
    if error is None:
        return "the run ends as if nothing had happened" if policy == "stop" else None
    if isinstance(error, CallTimeout) and error.party == "the run":
        return f"the run hangs ({error.message})"
    if isinstance(error, Deadlock):
        return f"the run hangs: {error}"
    if not isinstance(error, PartyError):
        return f"it ends in {_described(error)} instead of an error that names {victim}"
    return None if error.party == victim else f"the error names another party: {error}"


def _lost_state(whole: Outcome, number: int, resumed: Outcome) -> str:
    """Say which actors' states differ at the first checkpoint after the resume."""
    if number + 1 < len(whole.taken) and resumed.taken:
        expected, found = whole.taken[number + 1].snapshot, resumed.taken[0].snapshot
        names = [name for name in expected.actors if found.actors.get(name) != expected.actors[name]]
        if names:
            return f"At the next checkpoint {', '.join(names)} differ: something is missing from the state they declare"
    return "Something that matters is neither in an actor's declared state nor in runtime.state"


def _first_difference(expected: Outcome, found: Outcome) -> str:
    for a, b in zip(expected.lines, found.lines, strict=False):
        if a != b:
            return f"expected {a}, found {b}"
    if len(expected.lines) != len(found.lines):
        return f"expected {len(expected.lines)} rounds, found {len(found.lines)}"
    return f"expected {dict(expected.metrics)}, found {dict(found.metrics)}"


def _traffic(outcome: Outcome) -> tuple[int, int, float] | None:
    used = outcome.usage
    return None if used is None else (used.messages, used.bytes, used.seconds)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in jsonable(metrics).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _described(error: BaseException) -> str:
    kind = "" if isinstance(error, FedactorsError) else f"{type(error).__name__}: "
    return f"{kind}{error}".splitlines()[0]
