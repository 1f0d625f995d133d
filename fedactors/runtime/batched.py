"""Functions of which many calls are cheaper in one: runtimes collect such calls and make them together.

    def train_many(calls): ...               # [(model, rows), ...] -> [result, ...], in their order

    @together(train_many)
    def train(model, rows): ...

The result of a simulated compute counts at a virtual time, later than the instant at which it begins. Calls of a
marked function, of all actors, wait for the first of these times and are then computed in one. On the wall clock an
actor's calls that wait for its processor are computed in one when it is free. One that fails says nothing about the
others: after an error each is computed by itself, so that the error is its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
ManyCalls = Callable[[Sequence[tuple[Any, ...]]], Sequence[Any]]
Result = Callable[[], Any]
"""Gives the result of a call, or raises its error."""


def together(many: ManyCalls) -> Callable[[Function], Function]:
    """Mark a function: `many` takes the arguments of several calls and returns what each would, to rounding."""

    def mark(function: Function) -> Function:
        function.__together__ = many  # type: ignore[attr-defined]
        return function

    return mark


def is_marked(function: Callable[..., Any]) -> bool:
    """Say whether many calls of a function can be computed in one."""
    return hasattr(function, "__together__")


def computed(function: Callable[..., Any], args: tuple[Any, ...]) -> Result:
    """Call a function now."""
    try:
        value = function(*args)
    except Exception as error:
        return partial(_raise, error)
    return lambda: value


class Batch:
    """Calls of one marked function, which wait until the first result is needed; that may be in another thread."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._calls: list[tuple[Any, ...]] = []
        self._results: list[Result] = []
        self._is_closed = False
        self._lock = threading.Lock()

    def add(self, args: tuple[Any, ...]) -> Result | None:
        """Let a call wait; return how to get its result, None if no more calls are taken: they are being computed."""
        with self._lock:
            if self._is_closed:
                return None
            self._calls.append(args)
            return partial(self._result, len(self._calls) - 1)

    def _result(self, place: int) -> Any:
        with self._lock:
            self._is_closed = True
        if not self._results:
            self._results = self._compute()
            self._calls = []
        return self._results[place]()

    def _compute(self) -> list[Result]:
        if len(self._calls) > 1:
            try:
                return [partial(_given, value) for value in self._function.__together__(self._calls)]  # type: ignore[attr-defined]
            except Exception:
                pass  # whose error it is, the calls one by one tell
        return [computed(self._function, args) for args in self._calls]


class Batches:
    """The batch of each marked function that still takes calls."""

    def __init__(self) -> None:
        self._open: dict[Callable[..., Any], Batch] = {}

    def add(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Result:
        """Let a call of a marked function wait for its batch; return how to get its result."""
        batch = self._open.get(function)
        found = None if batch is None else batch.add(args)
        if found is None:
            batch = self._open[function] = Batch(function)
            found = batch.add(args)
            assert found is not None
        return found


def _given(value: Any) -> Any:
    return value


def _raise(error: Exception) -> NoReturn:
    raise error
