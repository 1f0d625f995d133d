"""Runs a function over many arguments in several processes, none of which outlives the one that started them.

    caller -- argument --> worker process -- result --> caller        one pipe a worker, one argument at a time

A worker that dies takes only its argument with it; the others go on and a new worker takes its place. Ctrl-C and any
error in the caller end all workers; when the caller is killed, they notice and end themselves.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from fedactors.errors import BadInput
from fedactors.runtime.simulation.pool import one_thread

A = TypeVar("A")
R = TypeVar("R")
PATIENCE = 10.0
"""Seconds that a worker has to end when it is asked to."""


def run_all(
    function: Callable[[A], R], arguments: Sequence[A], *, jobs: int, when_lost: Callable[[A, str], R] | None = None
) -> Iterator[tuple[int, R]]:
    """Yield (place of the argument, result) as they come.

    Args:
        function: called with one argument; with several jobs a function of a module.
        arguments: what to call it with.
        jobs: number of processes; with 1 it is called here.
        when_lost: what stands for the result when a worker's process died, from the argument and a sentence.

    Raises:
        BadInput: `function` did.
        RuntimeError: `function` raised something else, or, without `when_lost`, a worker died.
    """
    if jobs == 1:
        for place, argument in enumerate(arguments):
            yield place, function(argument)
        return
    waiting = list(enumerate(arguments))[::-1]
    busy: dict[Connection, tuple[_Worker, int]] = {}
    idle: list[_Worker] = []
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                worker = idle.pop() if idle else _Worker(function)
                place, argument = waiting.pop()
                worker.pipe.send(argument)
                busy[worker.pipe] = (worker, place)
            ready = multiprocessing.connection.wait(list(busy))
            for pipe in [pipe for pipe in busy if pipe in ready]:
                worker, place = busy.pop(pipe)
                try:
                    is_result, value = worker.pipe.recv()
                except EOFError:
                    value = _lost(worker, arguments[place], when_lost)
                else:
                    idle.append(worker)
                    if not is_result:
                        raise (BadInput if value[0] else RuntimeError)(value[1])
                yield place, value
    finally:
        end([*idle, *(worker for worker, _ in busy.values())])


def end(workers: Sequence[_Worker]) -> None:
    """End processes: those that wait at once, those at work by a signal that lets them clean up."""
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        worker.process.join(PATIENCE)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.pipe.close()


class _Worker:
    """A process and the pipe to it."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(function, theirs), daemon=True)
        self.process.start()
        theirs.close()


def _lost(worker: _Worker, argument: A, when_lost: Callable[[A, str], R] | None) -> R:
    worker.process.join()
    code = worker.process.exitcode or 0
    how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
    if when_lost is None:
        raise RuntimeError(f"a process ended {how}")
    return when_lost(argument, f"its process ended {how}")


def _work(function: Callable[[Any], Any], pipe: Connection) -> None:
    """Serve one pipe; the life of a worker's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of Ctrl-C the caller takes care
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    one_thread()
    owner = multiprocessing.parent_process()

    def follow() -> None:
        if owner is not None:
            multiprocessing.connection.wait([owner.sentinel])
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    while True:
        argument = pipe.recv()
        try:
            answer = (True, function(argument))
        except Exception as error:
            # not the error itself: not all of them can be sent
            refused = isinstance(error, BadInput)
            answer = (False, (refused, str(error) if refused else f"{type(error).__name__}: {error}"))
        pipe.send(answer)
