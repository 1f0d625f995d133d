"""What a reviewer says of one observed run: messages, leaks, ledger, channels past the ledger, unpaid arithmetic."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedactors.inspection import describe_messages
from fedactors.testing.leaks import COARSE_RUN, MIN_DISTINCT, RawData
from fedactors.testing.observed import Gathered
from fedactors.testing.runs import Outcome, Subject

_NUMBER = re.compile(r"(?:(?<![\w.])[-+])?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_ENCODED = re.compile(r"[A-Za-z0-9+/_-]{40,}={0,2}")
_LETTERS = 12
_MOST_THOROUGH = 3
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
    said = set()
    for (place, _), gathered in outcome.observed.left.items():
        if {place, place.partition(".")[0]} & set(subject.allowed) or place in said:
            continue
        if found := search(raw, gathered, outcome.observed.orders.values()):
            said.add(place)
            yield f"{place}, sent from {gathered.route}, holds {found}. Raw data must not leave its party"


def search(raw: RawData, gathered: Gathered, orders: Collection[NDArray[Any]] = ()) -> str | None:
    """Return what raw data is in arrays, numbers, texts or bytes that left, or None; see `RawData` about `orders`."""
    for array in gathered.arrays:
        if found := raw.find_drawn(array, orders):
            return found
    thorough = _MOST_THOROUGH
    for vectors in (
        _arrays(gathered),
        _flattened(gathered, raw.widths),
        [np.array(gathered.numbers)],
        _in_texts(gathered),
        _in_bytes(gathered),
    ):
        for vector in vectors:
            if found := raw.find(vector, thorough > 0):
                return found
            thorough -= vector.size >= MIN_DISTINCT
        thorough = _MOST_THOROUGH
    return None


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
    """Yield long vectors of numbers as tables of as many columns as raw data have; and all short arrays end to end."""
    numbers = [array for array in gathered.arrays if array.dtype.kind in "biuf"]
    for array in numbers:
        if array.ndim == 1:
            for width in sorted(widths):
                if (rows := len(array) // width) >= MIN_DISTINCT:
                    yield array[: rows * width].reshape(rows, width)
    short = [array.ravel() for array in numbers if 0 < array.size < MIN_DISTINCT]
    if len({array.size for array in short}) > 1:
        yield np.concatenate(short)


def _in_texts(gathered: Gathered) -> Iterator[NDArray[Any]]:
    """Yield the numbers in each long text and in all texts together, those with decimals apart as well; and letters."""
    texts = _texts(gathered)
    for text in [*(text for text in texts if len(text) >= 2 * MIN_DISTINCT), " ".join(texts)]:
        words = _NUMBER.findall(text)
        decimals = [word for word in words if not word.lstrip("+-").isdigit()]
        for chosen in (decimals, words) if len(decimals) < len(words) else (words,):
            if len(chosen) >= MIN_DISTINCT:
                yield np.array(chosen, np.float64)
        # a letter or a word for each label
        for letters in (list(text), text.split()):
            if len(letters) >= COARSE_RUN and 1 < len(set(letters)) <= _LETTERS:
                yield np.unique(letters, return_inverse=True)[1].astype(np.float64)


def _texts(gathered: Gathered) -> list[str]:
    arrays = [text for array in gathered.arrays if array.dtype.kind == "U" for text in array.ravel()]
    return [*gathered.texts, *map(str, arrays)]


def _in_bytes(gathered: Gathered) -> Iterator[NDArray[Any]]:
    """Yield raw bytes read as numbers of four and of eight bytes, from every offset, without odd ones; as letters."""
    packed = [array.tobytes() for array in gathered.arrays if array.dtype.kind == "S" or array.dtype == np.uint8]
    for blob in [*gathered.blobs, *packed, *_decoded(_texts(gathered))]:
        for kind in ("<f4", "<f8", ">f4", ">f8"):
            size = int(kind[-1])
            for offset in range(size):
                yield from _plain(np.frombuffer(blob, kind, max(0, len(blob) - offset) // size, min(offset, len(blob))))
        letters = np.frombuffer(blob, np.uint8)
        if len(letters) >= COARSE_RUN and 1 < len(np.unique(letters)) <= _LETTERS:
            yield letters
        if 8 * len(letters) >= COARSE_RUN:
            yield np.unpackbits(letters)
    for array in gathered.arrays:
        if array.dtype.kind in "iu" and array.itemsize in (4, 8):
            yield from _plain(array.ravel().view(f"f{array.itemsize}"))


def _plain(floats: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield those that are numbers as data have them, if they are enough."""
    with np.errstate(invalid="ignore"):
        numbers = floats.astype(np.float64)
    plain = np.isfinite(numbers) & (np.abs(numbers) > 1e-30) & (np.abs(numbers) < 1e30)
    if plain.sum() >= MIN_DISTINCT:
        yield numbers[plain]


def _decoded(texts: Sequence[str]) -> Iterator[bytes]:
    """Yield the bytes that stand in texts in hexadecimal or base64."""
    for word in (word for text in texts for word in _ENCODED.findall(text)):
        try:
            yield bytes.fromhex(word)
        except ValueError:
            try:
                yield base64.b64decode(word.translate(str.maketrans("-_", "+/")), validate=True)
            except binascii.Error:
                continue
