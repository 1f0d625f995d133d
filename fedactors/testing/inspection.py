"""What a reviewer says of one observed run: messages, leaks, ledger, channels past the ledger, unpaid arithmetic."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedactors.inspection import describe_messages
from fedactors.testing.decoding import Form, decoded
from fedactors.testing.leaks import MIN_DISTINCT, RawData
from fedactors.testing.observed import Gathered
from fedactors.testing.runs import Outcome, Subject

_MOST_FORMS = 4
_LEAST_STEP_SECONDS = 2e-3
_LEAST_SECONDS = 3e-2
_MOST_UNPAID_SHARE = 0.1


def remarks_on_wall_time(outcome: Outcome) -> Iterator[str]:
    """An actor knows one clock: the runtime's."""
    for place, call in outcome.observed.wall_time.items():
        yield f"{place} calls {call}. Time is the runtime's: self.clock.now() and self.clock.sleep()"


def remarks_on_messages(subject: Subject, outcome: Outcome) -> Iterator[str]:
    """Whatever leaves a party is declared in the protocol's module of messages, and `fedactors inspect` tells of it."""
    module = subject.protocol.messages
    if module is not None and subject.protocol.actors is None:
        yield "the protocol names no actors, so that `fedactors inspect` cannot say who receives what: give actors_at"
    elif module is not None:
        told = {entry["message"] for entry in describe_messages(subject.protocol, subject.made())}
        for cls, route in outcome.observed.types.items():
            if cls.__name__ not in told:
                yield f"{cls.__name__} goes from {route}, but `fedactors inspect` does not tell of it"
    for cls, route in outcome.observed.types.items():
        if module is None:
            yield f"{cls.__name__} goes from {route}, but the protocol names no module of messages to review"
        elif getattr(module, cls.__name__, None) is not cls and not cls.__module__.startswith("fedactors."):
            yield f"{cls.__name__} goes from {route}, but {module.__name__}, the privacy review, does not know it"
        if not cast(Any, cls).__message__.reveals.strip():
            yield f"{cls.__name__} does not say what it reveals to whoever receives it"


def remarks_on_ledger(outcome: Outcome) -> Iterator[str]:
    """The ledger states the bytes of everything that was really sent."""
    stated: dict[tuple[str, str], int] = {}
    for (sender, receiver, _), (_, num_bytes) in outcome.totals.items():
        stated[sender, receiver] = stated.get((sender, receiver), 0) + num_bytes
    for pair, sent in outcome.observed.sent_bytes.items():
        if stated.get(pair, 0) != sent:
            yield f"{pair[0]} sent {sent} bytes to {pair[1]}, of which the ledger knows {stated.get(pair, 0)}"
    for place, route in outcome.observed.relayed.items():
        yield (
            f"{place} goes from {route} by way of the driver, whose calls count no bytes and take no time on links. "
            "Let one party call the other"
        )


def remarks_on_channels(outcome: Outcome) -> Iterator[str]:
    """Nothing leaves a party but messages."""
    for place, what in outcome.observed.channels.items():
        yield f"{place} {what}: a channel past the ledger. What leaves a party is a message; the run keeps the files"
    for place, reader in outcome.observed.others_data.items():
        yield (
            f"{place}: {reader}: a channel past the ledger. What a party has is loaded in its own process, from the "
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
    for code, place in observed.called.items():
        if code in observed.computed:
            yield (
                f"{place} calls {observed.computed[code]} directly, which elsewhere runs in self.compute(): there it "
                "takes no time of the simulated clock"
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


# --- raw data ---


def remarks_on_raw_data(subject: Subject, outcome: Outcome) -> Iterator[str]:
    """Nothing that leaves a party holds a raw column, row or label vector; see `fedactors.testing.leaks`."""
    raw = outcome.observed.raw
    for name, matrix in subject.raw_columns.items():
        raw.add_features(name, np.asarray(matrix))
    if len(raw) == 0 and not subject.raw_columns:
        yield "no feature matrix was loaded through fedactors.data: give raw_columns, so that messages can be searched"
    left = {
        (place, sender): gathered
        for (place, sender), gathered in outcome.observed.left.items()
        if not {place, place.partition(".")[0]} & set(subject.allowed)
    }
    orders = outcome.observed.orders.values()
    said = set()
    for place, sender in left:
        gathered = left[place, sender]
        if place not in said and (found := search(raw, gathered, orders)):
            said.add(place)
            yield f"{place}, sent from {gathered.route}, holds {found}. Raw data must not leave its party"


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
