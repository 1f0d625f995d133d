"""Whether what a checkpoint holds fits the actor that is to go on from it: a run folder may be a stranger's.

    class Walker(Client):
        state = ("held", "theta")
        held: Token | None                  # in the class's body: what may be there
        def __init__(self) -> None:
            self.held, self.theta = None, np.zeros(3)

A value is compared with the annotation in the body of the actor's class, if there is one that says something, else with
what the attribute holds once the actor has loaded: a number stays a number (an int or a float), a text a text, an array
keeps its kind of numbers and its number of dimensions, a mapping the kinds of the values that both have. None fits
everywhere, and an empty list or array says little. What is not so is one line with the party, the field and the file,
before any code of the actor's sees it.
"""

from __future__ import annotations

import contextlib
import math
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedactors.errors import (
    BadInput,
    Deadlock,
    FedactorsError,
    PartyFailed,
    Refused,
    RowsChangedError,
    is_out_of_memory,
)
from fedactors.network.codec import CodecError
from fedactors.network.fields import Check, UnknownAnnotation, check_of, in_words, wrong_in
from fedactors.runtime import snapshot
from fedactors.validation import first_line

_DEEPEST = 60
_LATEST = 1e12
"""Seconds of a run's clock: later the next second would be the same number."""
_SCALARS = (type(None), bool, int, float, str, bytes)
_SEQUENCES = ("list", "tuple", "set", "frozenset", "deque")
_KINDS = {"b": "truth values", "i": "numbers", "u": "numbers", "f": "numbers", "c": "complex numbers", "S": "texts"}
_KINDS |= {"U": "texts", "m": "times", "M": "times"}


class _Misfit(Exception):
    """Something in a checkpoint is not what it should be: where, and in what way."""


class _Generator:
    """Stands for a generator of random numbers."""


def restore(owner: Any, frame: bytes, name: str, folder: str = "") -> Mapping[str, Any]:
    """Set the state of an actor that has loaded from a sealed frame, and return all that the frame holds.

    Args:
        owner: the actor.
        frame: its part of the checkpoint.
        name: of the actor.
        folder: where the checkpoint lies, if it lies in files.

    Raises:
        RowsChangedError: the actor has loaded other files of its party than those that the run began with.
        BadInput: the frame is damaged, or does not fit the actor.
    """
    what = snapshot.checkpoint_of(name, folder)
    content = snapshot.unseal(frame, what)
    with snapshot.intact(what):
        _check_files(owner, content.get("files", ()), name)
        check(owner, dict(content["state"]), what)
        snapshot.apply(owner, content["state"], what)
    return content  # type: ignore[no-any-return]


def _check_files(owner: Any, digests: Sequence[bytes], name: str) -> None:
    found = getattr(owner, "_files", ())
    if len(digests) != len(found):
        raise RowsChangedError(f"{name}: reads {len(found)} files, and {len(digests)} when the run began")
    for (path, now), before in zip(found, digests, strict=True):
        if now != before:
            raise RowsChangedError(f"{name}: {path}: the file is another, or read otherwise, than when the run began")


@contextlib.contextmanager
def in_use(folder: str, is_young: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Turn what goes wrong in the use of a checkpoint into one line about it: what fits by its kind may be nonsense.

    Args:
        folder: where the checkpoint lies; empty: nothing is changed, there is none.
        is_young: whether what fails now fails because of the checkpoint, as far as one can say.

    Raises:
        BadInput: code that works on what a run has written failed.
    """
    try:
        yield
    except Exception as error:
        known = isinstance(error, FedactorsError) and not isinstance(
            error, (PartyFailed, Refused, Deadlock, CodecError)
        )
        if known or not folder or is_out_of_memory(error) or not is_young():
            raise
        raise BadInput(f"{folder}: nothing comes of this checkpoint: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    text = first_line(error)
    return text if isinstance(error, FedactorsError) else f"{type(error).__name__}: {text}"


def check(owner: Any, state: Mapping[str, Any], what: str) -> None:
    """Compare the parts of a state, tagged as `snapshot.capture` returns them, with what `owner` declares and holds.

    Raises:
        BadInput: names the first field that does not fit, and what it should be.
    """
    declared = _declared(type(owner))
    for name, packed in state.items():
        if name not in getattr(type(owner), "state", state):
            continue  # `snapshot.apply` refuses it
        try:
            found, now = _plain(packed, ""), getattr(owner, name, None)
            if name in declared:
                wrong = declared[name](found)
                if wrong is not None:
                    raise _Misfit(f"{wrong[0]}: {in_words(wrong[1])} where {wrong[2]} is declared")
            elif now is not None and hasattr(now, "state_dict"):
                if packed[0] != "state":
                    raise _Misfit(": it is no state of the object that belongs there")
                _compare(found, _present(dict(now.state_dict()), name), "")
            elif packed[0] == "state" and now is not None:
                raise _Misfit(f": the state of an object where {in_words(now)} belongs")
            else:
                _compare(found, _present(now, name), "")
        except _Misfit as misfit:
            raise BadInput(f"{what} does not fit: {name}{misfit}") from None


def check_fields(hints: Mapping[str, Any], values: Mapping[str, Any], what: str) -> None:
    """Compare values with annotations by name, as far as these say something.

    Raises:
        BadInput: names the first that does not fit.
    """
    for name, hint in hints.items():
        look = _look(hint)
        if name in values and look is not None:
            try:
                wrong = look(_plain(snapshot.pack(values[name], name), ""))
            except _Misfit as misfit:
                raise BadInput(f"{what} does not fit: {name}{misfit}") from None
            if wrong is not None:
                raise BadInput(f"{what} does not fit: {name}{wrong[0]}: {in_words(wrong[1])} where {wrong[2]} belongs")


def amount(value: Any, field: str, what: str, most: float = _LATEST) -> float:
    """Return a number that counts seconds or money, `most` at most.

    Raises:
        BadInput: it is no number, negative, not finite, or later than anything can be.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise BadInput(f"{what} does not fit: {field}: a number from 0 to {most:g} belongs there")
    return float(value)


def totals(value: Any, what: str) -> list[tuple[str, str, str, str, int, int]]:
    """Return the totals of a ledger: (sender, receiver, kind, type, messages, bytes).

    Raises:
        BadInput: they are none.
    """
    rows: list[Any] = list(value) if isinstance(value, (list, tuple)) else [None]
    for row in rows:
        kinds = [type(part) for part in row] if isinstance(row, tuple) else []
        if kinds != [str, str, str, str, int, int] or not all(0 <= n < 2**63 for n in row[4:]):
            raise BadInput(f"{what} does not fit: ledger: totals of messages belong there")
    return rows


def _declared(cls: type) -> dict[str, Check]:
    """Return the checks of those annotations in the bodies of a class and its bases that say something."""
    found = {}
    for base in reversed(cls.__mro__):
        scope = vars(sys.modules.get(base.__module__, types))
        for name, hint in vars(base).get("__annotations__", {}).items():
            if name not in getattr(cls, "state", ()):
                continue
            alone: Any = types.SimpleNamespace(__annotations__={name: hint})
            try:
                look = _look(typing.get_type_hints(alone, scope)[name])
            except NameError:  # of a type that is imported for type checkers only
                look = None
            if look is not None:
                found[name] = look
    return found


def _look(hint: Any) -> Check | None:
    try:
        return None if hint in (Any, object) else check_of(hint)
    except UnknownAnnotation:
        return None


def _present(value: Any, name: str) -> Any:
    """Return what an attribute holds now, for comparing; None where that says nothing."""
    with contextlib.suppress(_Misfit, CodecError):
        return _plain(snapshot.pack(value, name), "")
    return None


def _plain(packed: Any, where: str, depth: int = 0) -> Any:
    """Return what a tagged value is, for comparing: sequences as tuples, arrays and tensors as views."""
    if depth > _DEEPEST:
        raise _Misfit(f"{where[:80]}: it is nested too deeply")
    if not isinstance(packed, tuple) or len(packed) != 2 or not isinstance(packed[0], str):
        raise _Misfit(f"{where}: no value that a snapshot holds")
    tag, content = packed
    if tag == "plain" and isinstance(content, _SCALARS):
        if isinstance(content, float) and math.isnan(content):
            raise _Misfit(f"{where}: not a number (NaN)")
        return content
    if tag in ("array", "tensor", "torch-rng") and isinstance(content, np.ndarray):
        return content if tag != "torch-rng" else _Generator()
    if tag == "message" and hasattr(type(content), "__message__"):
        if (wrong := wrong_in(content)) is not None:
            raise _Misfit(f"{where}{wrong[0]}: {in_words(wrong[1])} where {wrong[2]} is declared")
        return content
    if tag == "dict" and isinstance(content, tuple | list):
        return dict(_pair(pair, where, depth) for pair in content)
    if tag in _SEQUENCES and isinstance(content, tuple | list):
        return tuple(_plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(content))
    if tag == "bounded" and isinstance(content, tuple | list) and len(content) == 2 and type(content[0]) is int:
        return _plain(("deque", content[1]), where, depth)
    if tag == "rng":
        _plain(content, where, depth + 1)
        return _Generator()
    if tag == "state" and depth == 0:
        return _plain(content, where, depth + 1)
    raise _Misfit(f"{where}: no value that a snapshot holds")


def _pair(pair: Any, where: str, depth: int) -> tuple[Any, Any]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise _Misfit(f"{where}: no value that a snapshot holds")
    key = _plain(pair[0], where, depth + 1)
    if isinstance(key, (dict, np.ndarray, _Generator)):
        raise _Misfit(f"{where}: a key that is {in_words(key)}")
    return key, _plain(pair[1], f"{where}[{key!r:.40}]", depth + 1)


def _compare(found: Any, now: Any, where: str) -> None:
    """Raise `_Misfit` where a value is of another kind than the one that is there now."""
    if found is None or now is None:
        return
    if isinstance(now, np.ndarray):
        _compare_arrays(found, now, where)
    elif isinstance(now, dict) and isinstance(found, dict):
        for key in now.keys() & found.keys():
            _compare(found[key], now[key], f"{where}[{key!r:.40}]")
    elif isinstance(now, tuple) and isinstance(found, tuple):
        if len({type(item) for item in now}) == 1:
            for index, item in enumerate(found):
                _compare(item, now[0], f"{where}[{index}]")
    elif isinstance(now, bool) or isinstance(found, bool) or not isinstance(now, int | float):
        if type(found) is not type(now):
            raise _Misfit(f"{where}: {in_words(found)} where {in_words(now)} belongs")
    elif not isinstance(found, int | float):
        raise _Misfit(f"{where}: {in_words(found)} where a number belongs")


def _compare_arrays(found: Any, now: np.ndarray, where: str) -> None:
    if not isinstance(found, np.ndarray):
        raise _Misfit(f"{where}: {in_words(found)} where {in_words(now)} belongs")
    is_placeholder = now.size == 0
    kinds = [_KINDS[array.dtype.kind] for array in (found, now)]
    if kinds[0] != kinds[1] or (not is_placeholder and found.ndim != now.ndim):
        raise _Misfit(f"{where}: {in_words(found)} where {in_words(now)} belongs")
