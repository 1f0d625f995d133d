"""How actors compute: calls that are cheaper together, an actor on the wall clock, and a pool of processes.

    Batches      calls of a function that is marked with `together`, computed in one when the first result is needed
    interruptible what a library computes, which ends with the actor's run
    HostedContext what every runtime on the wall clock gives an actor: its clock, its work, its tasks, what it records;
                 how calls and payloads travel is left to the runtime
    ProcessPool  where the simulated runtime runs computes for real

    def train_many(calls): ...               # [(model, rows), ...] -> [result, ...], in their order

    @together(train_many)
    def train(model, rows): ...

In simulation marked calls of all actors wait for the first of their virtual times; on the wall clock an actor's calls
that wait for its processor are computed in one when it is free. After an error each is computed by itself, so that the
error is its own. A pool only decides *where* a pure function runs, so results do not depend on it.

    sender: Arguments.share(args) --> small tagged values --> pipe --> worker: call(...) --> pipe --> take(result)

Large arrays are written once to shared memory and mapped by who reads. A file lives until the receiver has mapped it
(results) or the sender's array is gone (arguments, which are often the same model for many tasks).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import ctypes
import itertools
import math
import mmap
import multiprocessing
import multiprocessing.connection
import multiprocessing.util
import os
import shutil
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np

from fedactors.actors.actor import Actor
from fedactors.actors.context import Clock, Context, Job, Work
from fedactors.actors.remote import REPEATS, current_caller, endpoints
from fedactors.errors import BadInput, FedactorsError, Refused
from fedactors.messages.codec import freeze
from fedactors.messages.ledger import Ledger, Row
from fedactors.privacy.accounting import Planned, Released, Unaccounted
from fedactors.runs.storage import make_folder, remove_folders
from fedactors.runtime.interface import ActorSpec
from fedactors.validation import first_line

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

    def _result(self, index: int) -> Any:
        with self._lock:
            self._is_closed = True
        if not self._results:
            self._results = self._compute()
            self._calls = []
        return self._results[index]()

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


# --- an actor on the wall clock ---

T = TypeVar("T")
_BRIEF_SECONDS = 0.005
"""For which the interpreter would let another thread compute before this one has its turn: to change threads for less
costs more than it gives."""
ACCOUNT = "account"
"""The endpoint at which actors write down what they have released; a site with a privacy budget asks by itself."""


class WallClock(Clock):
    """Seconds since the run began, `scale` wall seconds each, `offset` seconds ahead when a run goes on.

    It goes on evenly if the wall clock is set meanwhile: no bound in seconds grows by that.
    """

    def __init__(self, start: float, offset: float = 0.0, scale: float = 1.0) -> None:
        self.offset = offset
        self._scale = scale
        self.begin(start)

    def begin(self, start: float) -> None:
        """Count from `start` (by the wall clock) on."""
        self._start = time.monotonic() - (time.time() - start)

    def now(self) -> float:
        """Return the present time."""
        return (time.monotonic() - self._start) / self._scale + self.offset

    async def sleep(self, seconds: float, key: str | None = None) -> None:
        """See `Clock.sleep`; a keyed wait is not continued across a resume, its loop asks for it again."""
        await asyncio.sleep(seconds * self._scale)


_computing = threading.local()
_LOOK_SECONDS = 0.1


@contextlib.contextmanager
def interruptible(interrupt: Callable[[], None], seconds: float = math.inf) -> Iterator[None]:
    """Interrupt what this thread does in the block once it takes so many seconds, or the run of its actor is over.

    A computation in Python goes on until it returns; one of a library may have a way to be ended from another thread.

    Args:
        interrupt: that way; it is called again until the block ends, for between two statements it does nothing.
        seconds: from now on.
    """
    is_done = threading.Event()
    is_over: threading.Event = getattr(_computing, "is_over", None) or threading.Event()
    ends = time.monotonic() + seconds

    def watch() -> None:
        while not is_done.wait(_LOOK_SECONDS):
            if is_over.is_set() or time.monotonic() > ends:
                interrupt()

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        is_done.set()
        watching.join()  # the next user of what was interrupted is not


class HostedContext(Context):
    """One actor's side of a runtime whose time is the wall clock.

    Args:
        actor_spec: the actor.
        seed, reproducible_noise: of the run, for this actor.
        clock: its clock.
        keep_rows: whether each message and span is kept for the run's records, not only the totals.
        repeats: of each endpoint, beyond its bound.
    """

    clock: WallClock

    def __init__(
        self,
        actor_spec: ActorSpec,
        seed: int,
        reproducible_noise: bool,
        clock: WallClock,
        keep_rows: bool,
        repeats: int = REPEATS,
    ) -> None:
        self.name = actor_spec.name
        self.counts = actor_spec.counts(repeats)
        self.seed = seed
        self.reproducible_noise = reproducible_noise
        self.clock = clock
        self.rows: list[Row] = []
        self.spans: list[tuple[str, str, str, float, float]] = []
        self.privacy: list[Any] = []
        self.idle_seconds = 0.0
        self.failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.ledger = Ledger(self.rows.extend if keep_rows else None)
        self.endpoints = endpoints(actor_spec.cls)
        self._role = actor_spec.cls.role
        self._keep_rows = keep_rows
        self._jobs: dict[str, Job] = {}
        self._tasks: set[asyncio.Future[Any]] = set()
        self._computing_seconds = 0.0
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None
        """Where computes run that are not brief, if not in the loop's own thread."""
        self._rates: dict[str, float] = {}
        """Seconds that a unit of each kind of work last took; what is less than one counts as one."""
        self._beside: list[concurrent.futures.Future[Any]] = []
        """What the thread has been given: what is brief queues behind it, and does not run at its side."""
        self._batches = Batches()
        self._is_over = threading.Event()

    async def compute(self, function: Callable[..., T], args: tuple[Any, ...], work: Work) -> T:
        # lets frames in that arrived meanwhile: the function may block this process
        await asyncio.sleep(0)
        start = self.clock.now()
        result = await self._compute(function, args, work)
        self.record_span("compute", work.kind, start, self.clock.now())
        return result

    async def _compute(self, function: Callable[..., T], args: tuple[Any, ...], work: Work) -> T:
        is_brief = self._rates.get(work.kind, math.inf) * max(work.units, 1) < _BRIEF_SECONDS
        if is_marked(function):
            function, args = self._batches.add(function, args), ()
            await asyncio.sleep(0)  # others that were asked for at once come along
            is_brief = False  # the first caller computes for all
        # also of a compute that nobody awaits any more the thread is not done before it is
        self._beside = [one for one in self._beside if not one.done()]
        if self._thread is None or (is_brief and not self._beside):
            return self._timed(function, args, work)
        beside = self._thread.submit(self._timed, function, args, work)
        self._beside.append(beside)
        return await asyncio.wrap_future(beside)

    def _timed(self, function: Callable[..., T], args: tuple[Any, ...], work: Work) -> T:
        start = time.thread_time()
        _computing.is_over = self._is_over
        try:
            return function(*args)
        finally:
            _computing.is_over = None
            seconds = time.thread_time() - start
            self._computing_seconds += seconds
            self._rates[work.kind] = seconds / max(work.units, 1)

    def begin(self, key: str, function: Callable[..., Any], args: tuple[Any, ...], work: Work) -> Job:
        if key in self._jobs:
            raise FedactorsError(f"{self.name}: a job {key!r} is already under way")
        task = asyncio.ensure_future(self.compute(function, freeze(args)[0], work))

        async def wait(job: Job) -> Any:
            result = await asyncio.shield(task)
            self._jobs.pop(job.key, None)
            return result

        job = Job(key, function, args, work, self.clock.now(), wait)
        self._jobs[key] = job
        return job

    def job(self, key: str) -> Job | None:
        return self._jobs.get(key)

    def background(self, awaitable: Awaitable[Any]) -> None:
        async def go_on() -> Any:
            return await awaitable

        task: asyncio.Future[Any]
        if isinstance(awaitable, asyncio.Future):
            task = awaitable
        else:
            variables = contextvars.copy_context()
            variables.run(current_caller.set, None)  # the caller of the endpoint that begins it does not call this
            task = asyncio.get_running_loop().create_task(go_on(), context=variables)
            if asyncio.iscoroutine(awaitable):  # a run that ends may cancel the task before it has begun that
                task.add_done_callback(lambda _: awaitable.close())
        self._tasks.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Stop the run: the watcher of this actor is told the first failure."""
        if not self.failure.done():
            self.failure.set_result(error)

    def record_span(self, kind: str, label: str, start: float, end: float) -> None:
        if kind == "wait":
            self.idle_seconds += end - start
        if self._keep_rows:
            self.spans.append((self.name, kind, label, start, end))

    def record_privacy(self, record: Any) -> None:
        self.privacy.append(record)

    async def account(self, actor: Any) -> list[Any]:
        """Return what the actor writes down of privacy when it is asked for its account, which is not kept.

        What it plans comes with it, as `Planned`; that it has no account yet as `Unaccounted`, and that something left
        as `Released`.
        """
        left = [Released()] if self.counts.has_released else []
        if ACCOUNT not in self.endpoints.table:
            return left
        kept, self.privacy = self.privacy, []
        try:
            await actor.account()
        except Refused:
            raise
        except Exception as error:
            return [*left, Unaccounted(first_line(error))]
        finally:
            found, self.privacy = self.privacy, kept
        return [*left, *found, *map(Planned, actor.planned_privacy())]

    def close(self) -> None:
        """Stop what goes on by itself, and what can be interrupted."""
        self._is_over.set()
        for task in list(self._tasks):
            task.cancel()
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)


# --- large arrays between processes ---

LEAST_BYTES = 1 << 16
"""Smaller arrays travel faster through the pipe."""
MEMORY_FOLDER = "/dev/shm" if os.path.isdir("/dev/shm") else None
_number = itertools.count()


@dataclass(frozen=True)
class SharedArray:
    """Where the bytes of an array lie."""

    path: str
    dtype: str
    shape: tuple[int, ...]


def share_array(array: np.ndarray, folder: str) -> SharedArray:
    """Write an array into a new file."""
    path = os.path.join(folder, f"{os.getpid()}-{next(_number)}")
    with open(path, "wb", buffering=0) as stream:
        view = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        while view:
            view = view[stream.write(view) :]
    return SharedArray(path, array.dtype.str, array.shape)


def mapped(shared: SharedArray) -> np.ndarray:
    """Return the array, read-only, its bytes shared with all who map them."""
    with open(shared.path, "rb") as stream:
        memory = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(memoryview(memory).toreadonly(), shared.dtype).reshape(shared.shape)


def is_large(value: Any) -> bool:
    """Tell whether a value is an array that shared memory is worth it for."""
    return isinstance(value, np.ndarray) and value.nbytes >= LEAST_BYTES and value.dtype.kind in "biufc"


class Arguments:
    """The sender's side for arguments: a read-only array that is sent again is not written again."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._known: dict[int, SharedArray] = {}

    def share(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return `args` with each large array among them replaced by where it is shared."""
        return tuple(self._share(value) if is_large(value) else value for value in args)

    def _share(self, array: np.ndarray) -> Any:
        if array.flags.writeable:
            return array
        shared = self._known.get(id(array))
        if shared is None:
            shared = self._known[id(array)] = share_array(array, self._folder)
            weakref.finalize(array, self._forget, id(array), shared.path)
        return shared

    def _forget(self, identity: int, path: str) -> None:
        self._known.pop(identity, None)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


@lru_cache(maxsize=4)
def _mapped_before(shared: SharedArray) -> np.ndarray:
    return mapped(shared)


def call(folder: str, function: Any, args: tuple[Any, ...]) -> Any:
    """Run `function` in the receiving process, on mapped arguments; large arrays of its result are shared."""
    result = function(*(_mapped_before(value) if isinstance(value, SharedArray) else value for value in args))
    if is_large(result):
        return share_array(result, folder)
    if type(result) is tuple:
        return tuple(share_array(value, folder) if is_large(value) else value for value in result)
    return result


def take(result: Any) -> Any:
    """Map the large arrays of a result; their files are gone as soon as they are mapped."""
    if type(result) is tuple:
        return tuple(map(take, result))
    if not isinstance(result, SharedArray):
        return result
    array = mapped(result)
    os.unlink(result.path)
    return array


# --- the pool ---

_WORKER_DIED = (
    "--pool: a worker process ended by itself: it was killed, the machine's memory is full, or the script that starts "
    'it has no `if __name__ == "__main__":`; --pool 0 computes in this process'
)


class Pool(Protocol):
    """Takes functions and returns futures."""

    def submit(self, function: Callable[..., Any], args: tuple[Any, ...]) -> concurrent.futures.Future[Any]:
        """Start `function(*args)` somewhere."""

    def close(self) -> None:
        """Stop all workers."""


def one_thread() -> None:
    """Make torch and BLAS use one thread in this process: more threads change results and fight for cores.

    torch is told only where it is loaded already; where it is loaded later the environment tells it.
    """
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def one_torch_thread() -> None:
    """Load torch in a fresh worker and limit it to one thread."""
    import torch  # noqa: F401

    one_thread()


_KEPT_BYTES, _MAPPED_BYTES = 32 * 1024 * 1024, 16 * 1024 * 1024
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Let the C library keep some memory that is freed, where that is glibc and the environment does not tune it.

    Messages and payloads of some 100 kB otherwise take memory of the system and give it back, one after the other; each
    page of it is a fault, which costs more than to encrypt the page.
    """
    if any(name in os.environ for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")):
        return
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another library has no `mallopt`
        library = ctypes.CDLL(None)
        library.malloc_trim(0)
        library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        library.mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)


def end_with_owner(*folders: str) -> None:
    """End this process, and remove these folders, as soon as the process that started it is gone."""
    owner = multiprocessing.parent_process()

    def follow() -> None:
        if owner is not None:
            multiprocessing.connection.wait([owner.sentinel])
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def start_worker(*folders: str) -> None:
    """Make a fresh worker ready: one torch thread, and no life without the pool's owner, whose folders then go too."""
    end_with_owner(*folders)
    np.seterr(over="ignore", invalid="ignore", divide="ignore")  # as in the runtime's own process
    one_torch_thread()


def _loaded_here() -> list[str]:
    """Return the modules that workers would import one after the other: what is loaded of fedactors and beside actors.

    The process that workers are forked from imports them once: up to two seconds less for each worker of each pool.
    """
    packages, kinds = set(), [Actor]
    while kinds:
        kind = kinds.pop()
        kinds.extend(kind.__subclasses__())
        packages.add(kind.__module__.rpartition(".")[0])
    slow = {"scipy.stats", "sklearn.metrics"}  # what metrics import when they are first asked for
    return sorted(
        name
        for name in sys.modules
        if name in slow or name.rpartition(".")[0] in packages - {""} or name.partition(".")[0] == "fedactors"
        if not name.startswith("fedactors.runtime.ray")
    )


class ProcessPool:
    """Processes of this machine, one torch thread each; large read-only arrays reach them through shared memory.

    The arguments of a task that is under way are kept alive here, because a worker maps them only when it begins.
    """

    def __init__(self, num_workers: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["numpy", "torch", *_loaded_here()])
        # workers remove it when their owner was killed; where all of them were, the next pool here does
        remove_folders({"pool": lambda folder: None}, MEMORY_FOLDER)
        self._folder = str(make_folder("pool", MEMORY_FOLDER))
        self._remove = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._arguments = Arguments(self._folder)
        folders = [self._folder]
        if multiprocessing.parent_process() is None:  # else it may be the folder of the process that started this one
            folders.append(multiprocessing.util.get_temp_dir())  # where the process that forks the workers listens
        self._executor = concurrent.futures.ProcessPoolExecutor(
            num_workers, context, initializer=start_worker, initargs=tuple(folders)
        )
        self.submit(os.getpid, ())  # the processes start while the caller prepares

    def submit(self, function: Callable[..., Any], args: tuple[Any, ...]) -> concurrent.futures.Future[Any]:
        """See `Pool`; where a worker dies all ends with one `BadInput`, and no other takes its place."""
        shared = self._arguments.share(args)
        try:
            raw = self._executor.submit(call, self._folder, function, shared)
        except (BrokenExecutor, RuntimeError, OSError) as error:
            raise BadInput(_WORKER_DIED) from error
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def pass_on(ended: concurrent.futures.Future[Any], kept: tuple[Any, ...] = args) -> None:
            try:
                done.set_result(take(ended.result()))
            except concurrent.futures.CancelledError:
                done.cancel()
            except BrokenExecutor:
                done.set_exception(BadInput(_WORKER_DIED))
            except BaseException as error:
                done.set_exception(error)

        raw.add_done_callback(pass_on)
        return done

    def close(self) -> None:
        """See `Pool`."""
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._remove()
