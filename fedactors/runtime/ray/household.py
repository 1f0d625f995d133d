"""The actors that a site hosts in a run as processes of its own Ray: embedded, or its organisation's cluster.

What one of them calls at another of the same site goes from process to process. What it calls elsewhere, and what comes
from elsewhere, goes through the site's process, where each actor of another site has a stand-in (`stand_ins`). Ray
itself is joined by a process of its own (`keeper`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedactors.errors import FedactorsError, PartyLost, Refused
from fedactors.network.codec import encode_parts
from fedactors.network.ledger import merged
from fedactors.records.temporary import make_folder
from fedactors.remote import DRIVER
from fedactors.runtime.base import Casting
from fedactors.runtime.calls import CallPath
from fedactors.runtime.failures import decode_reply
from fedactors.runtime.federated.household import Household, Outside, Recorded, Totals
from fedactors.runtime.federated.kept_states import Earlier
from fedactors.runtime.federated.words import code_of
from fedactors.runtime.hosted import WallClock
from fedactors.runtime.ray.accounts import Drained
from fedactors.runtime.ray.keeper import EVENT, read, write
from fedactors.runtime.ray.lanes import Lanes
from fedactors.runtime.ray.settings import Settings
from fedactors.runtime.ray.stand_ins import StandIn

_KEEPER = "fedactors.runtime.ray.keeper"
_SETTLE_SECONDS = 1.0


class RayHousehold(Household):
    """See the module.

    Args:
        outside: the run at the site.
        address: of the cluster; `cluster.EMBEDDED` for one that begins and ends with the run.
        call_timeout: seconds within which every call must be answered.
    """

    def __init__(self, outside: Outside, address: str, call_timeout: float) -> None:
        self._outside = outside
        self._address = address
        self._call_timeout = call_timeout
        self._has_ended = False
        self._names: list[str] = []
        self._clock: WallClock
        self._keeper: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(EVENT + 1)
        self._lanes: Lanes | None = None
        """The driver's ways to the actors."""
        self._stand_ins: dict[str, StandIn] = {}
        self._folder: Path | None = None
        """Of the stand-ins' sockets."""
        self._drained: dict[str, Drained] = {}
        """What each process said last."""
        self._recorded = Recorded()
        self._before: dict[str, tuple[Totals, float]] = {}
        """Messages and seconds of waiting of the run that this one goes on from."""
        self._tasks: list[asyncio.Task[None]] = []
        self._settling = asyncio.Lock()

    # --- the keeper ---

    async def _join(self) -> str:
        """Start the keeper; return the Ray host that it is on.

        Raises:
            FedactorsError: there is no Ray.
        """
        own, far = socket.socketpair()
        number = str(far.fileno())
        words = (sys.executable, "-m", _KEEPER, number, self._address, str(self._call_timeout))
        root = str(Path(__file__).parents[3])
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))}
        with far:
            # in a session of its own: the signals of a terminal are meant for the site's process
            self._keeper = await asyncio.create_subprocess_exec(
                *words, pass_fds=(far.fileno(),), start_new_session=True, env=env, stdin=asyncio.subprocess.DEVNULL
            )
        reader, self._writer = await asyncio.open_connection(sock=own)
        try:
            _, is_good, found = await read(reader)
        except (EOFError, OSError):
            raise PartyLost(self._names[0], "its Ray did not begin") from None
        if not is_good:
            decode_reply(False, found)
        self._tasks.append(asyncio.get_running_loop().create_task(self._listen(reader)))
        return str(found)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                number, is_good, found = await read(reader)
                asked = self._asked.pop(number, None)
                try:
                    value = found if is_good else decode_reply(False, found)
                except FedactorsError as error:
                    if number == EVENT:
                        self._outside.failed(self._names[0], error)
                    elif asked is not None and not asked.done():
                        asked.set_exception(error)
                else:
                    if asked is not None and not asked.done():
                        asked.set_result(value)
        except (EOFError, OSError):
            gone = PartyLost(self._names[0], "the process that had joined its Ray is gone")
            for asked in self._asked.values():
                if not asked.done():
                    asked.set_exception(gone)
            self._outside.failed(self._names[0], gone)

    async def _ask(self, verb: str, *args: Any) -> Any:
        """Ask the keeper; what it says that an actor's code raised is told as of that actor."""
        if not self._names:
            return {}  # the site hosts nobody in this run
        with code_of(self._names[0], self._outside.gate.book):
            if self._writer is None or self._writer.is_closing():
                raise PartyLost(self._names[0], "its Ray is gone")
            number = next(self._numbers)
            asked = self._asked[number] = asyncio.get_running_loop().create_future()
            write(self._writer, (number, verb, args))
            return await asked

    # --- the actors ---

    async def cast(self, castings: Sequence[Casting], seed: int, clock: WallClock) -> None:
        if not castings:
            return
        self._clock, self._names = clock, [casting.name for casting in castings]
        with code_of(self._names[0], self._outside.gate.book):
            host = await self._join()
        lanes = self._lanes = Lanes(DRIVER, host, True, self._call_timeout, self._outside.unawaited)
        self._folder = make_folder("lane")
        known = {}
        for number, (name, place) in enumerate(self._outside.gate.book.items()):
            if name not in self._names:
                one = self._stand_ins[name] = StandIn(place, self._outside, host, self._call_timeout)
                known[name] = await one.listen(self._folder / str(number)), one.key
        settings = Settings(
            seed=seed,
            start=0.0,
            offset=clock.offset,
            reproducible_noise=False,
            call_timeout=self._call_timeout,
            use_sockets=True,
            keep_rows=True,
            network=None,
            costs=None,
            scale=1.0,
            use_places=False,
        )
        found = await self._ask("cast", list(castings), settings, known)
        lanes.update(found[DRIVER])
        for name, one in self._stand_ins.items():
            one.lanes.update(found[name])
        self._tasks.append(asyncio.get_running_loop().create_task(self._settle_again()))

    async def load(self, earlier: Earlier | None) -> None:
        if earlier is not None:
            self._before = {name: earlier.counted(name) for name in self._names}
        await self._ask("load", {} if earlier is None else {name: earlier.state(name) for name in self._names})

    async def open(self, start: float) -> None:
        self._clock.begin(start)
        await self._ask("open", start)

    async def serve(self, path: CallPath, value: Any) -> Any:
        receiver, caller = path.receiver, path.sender
        lanes = self._lanes if caller == DRIVER else self._stand_ins[caller].lanes
        with code_of(receiver, self._outside.gate.book):
            if lanes is None:
                raise PartyLost(receiver, "it is not cast yet")
            return await lanes.send(lanes.address(receiver, caller), path, encode_parts((path.endpoint.name, value)))

    async def read(self, owner: str, key: int, reader: str) -> Any:
        return await self._stand_ins[reader].fetch(owner, key)

    async def account(self, party: str) -> list[Any]:
        return list(await self._ask("account", party))

    async def snapshots(self) -> dict[str, bytes]:
        found: dict[str, bytes] = await self._ask("snapshots")
        return found

    async def settle(self) -> None:
        async with self._settling:
            found: dict[str, Drained] = await self._ask("drain")
            for name, one in found.items():
                self._drained[name] = one
                self._recorded.rows += one.rows
                self._recorded.spans += one.spans
                self._recorded.privacy += one.privacy
                for text in one.refused:
                    self._outside.note(Refused(name, text))

    async def _settle_again(self) -> None:
        """Keep what is fetched no older than a second: whatever ends the run, so much of it is written."""
        while True:
            await asyncio.sleep(_SETTLE_SECONDS)
            with contextlib.suppress(FedactorsError):  # who is lost is said elsewhere
                await self.settle()

    def recorded(self) -> Recorded:
        found, self._recorded = self._recorded, Recorded()
        return found

    def totals(self) -> Mapping[str, Totals]:
        both = {name: [*self._counted(name)[0], *one.totals] for name, one in self._drained.items()}
        return {name: merged(totals) for name, totals in both.items()}

    def waiting(self) -> Mapping[str, float]:
        return {name: self._counted(name)[1] + one.waiting_seconds for name, one in self._drained.items()}

    def _counted(self, name: str) -> tuple[Totals, float]:
        return self._before.get(name, ((), 0.0))

    def cpu_seconds(self) -> float:
        return sum(one.cpu_seconds for one in self._drained.values())

    async def close(self) -> None:
        await self._ask("last_answers")
        await self.settle()
        await self._ask("close")

    def end(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        for task in self._tasks:
            task.cancel()
        for one in self._stand_ins.values():
            one.close()
        if self._lanes is not None:
            self._lanes.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._writer is not None:
            self._writer.close()  # at which the keeper leaves Ray, and ends
