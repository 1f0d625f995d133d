"""An epoch worked out from profiles alone, event by event: the cost model by which `fedactors plan` chooses.

    passive worker ─report─▶ broker (`Dispatch`) ─orders─▶ active worker ─gradient─▶ its parameter server
         host's cores, one worker on one       links shared by what is under way (`SharedTransfers`)

Nothing is trained and nobody is asked. What decides is the runtime's own where that is free of waiting: the broker's
`Dispatch` and the links' `SharedTransfers`. A worker follows the rules of `pipeline.Pipeline`, written here as a
generator that yields seconds of computing or what it waits for; a test holds both against a simulated run. Left out:
local updates, averaging while training (nobody waits for it), batches that are assigned anew.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from fedactors.messages.codec import HEADER_BYTES, measure
from fedactors.network.links import HostCapacity, Link, Network, SharedTransfers
from protocols.pubsub_vfl.broker import BROKER, Dispatch
from protocols.pubsub_vfl.config import PubSubVflConfig
from protocols.pubsub_vfl.messages import FirstOrders, Orders, PartyProfile, PowerLaw, Report, Stamp

ACTIVE = "active"
MOST_BATCHES = 400
"""Of longer trainings so many batches are worked out; the others pass at the pace of the middle half of these."""
Action = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is planned for. `row_bytes` is what a row's embedding and gradient take together."""

    active: PartyProfile
    passive: PartyProfile
    num_rows: int = 1
    row_bytes: float = 0.0
    bandwidth: float = math.inf
    shared_link: bool = True
    """Whether batches in flight share the bandwidth; otherwise each has it, and a transfer only adds to its way."""
    latency: float = 0.0
    """Seconds of one hop between the parties."""
    num_passive: int = 1
    """Passive parties, each of them like `passive`."""
    one_host: bool = False
    """Whether all parties share the cores of one host."""
    payloads: str = "fetched"
    """How embeddings and gradients travel."""
    num_epochs: int = 1
    """Epochs that are trained without a pause."""
    steps_at_server: bool = False
    """Whether the parameter servers of parties of several workers step."""

    def communication(self, batch_size: int) -> float:
        """Return (E + G) / bandwidth of a batch (Eq. 9)."""
        return self.row_bytes * batch_size / self.bandwidth


def seconds_of(phases: Iterable[PowerLaw], batch_size: int) -> float:
    """Return the seconds of some phases of one batch on one core."""
    return sum(phase.scale * math.pow(batch_size, phase.exponent) for phase in phases)


def epoch_seconds(config: PubSubVflConfig, problem: Problem) -> float:
    """Return the seconds of an epoch with the workers, batch size, window and prefetch of `config`.

    Epochs that are trained without a pause are worked out together; averages at their end are not counted.
    """
    return _Replay(config, problem).seconds() / problem.num_epochs


class _Answer:
    """Something that a worker may wait for."""

    def __init__(self) -> None:
        self.is_there = False
        self.wake: Action | None = None

    def come(self) -> None:
        """Be there, and let who waits go on."""
        self.is_there = True
        wake, self.wake = self.wake, None
        if wake is not None:
            wake()


Work = Generator[float | _Answer, None, None]


class _Shared:
    """What is under way and shares the capacity of hosts: transfers, or computing where cores are scarce."""

    def __init__(self, network: Network) -> None:
        self._shared = SharedTransfers(network)
        self._number = 0
        self._ends: dict[int, Action] = {}
        self._next: float | None = None

    def start(self, now: float, source: str, target: str, link: Link, amount: float, end: Action) -> None:
        """Begin something of so many bytes, or seconds of one core."""
        self._number += 1
        self._ends[self._number] = end
        self._shared.start(now, self._number, source, target, link, cast("int", amount))
        self._next = None

    def next_end(self) -> float:
        """Return when something ends next, if nothing else begins."""
        if self._next is None:
            end = self._shared.next_end()
            self._next = math.inf if end is None else end
        return self._next

    def end(self, now: float) -> None:
        """Let what has ended by now go on, in the order in which it began."""
        self._next = None
        for number in self._shared.advance(now):
            self._ends.pop(number)()


class _Events:
    """Actions at their times, on hosts that share links and cores.

    Args:
        network: the links.
        cores: of each host.
        processes: of each host; where they are more than its cores they share them evenly, as an operating system does.
    """

    def __init__(self, network: Network, cores: Mapping[str, int], processes: Mapping[str, int]) -> None:
        self.now = 0.0
        self._network = network
        self._events: list[tuple[float, str, int, Action]] = []
        self._number = 0
        self._scarce = {host for host in cores if processes[host] > cores[host]}
        self._transfers = _Shared(network)
        self._computing = _Shared(Network(capacity={host: HostCapacity(egress=cores[host]) for host in self._scarce}))

    def at(self, when: float, actor: str, action: Action) -> None:
        """Do something at a time; at one time, as in simulation, in the order of the actors whose doing it is."""
        self._number += 1
        heapq.heappush(self._events, (when, actor, self._number, action))

    def send(self, sender: str, receiver: str, num_bytes: float, arrive: Action) -> None:
        """Do something when a message has come from one actor to another."""
        network = self._network
        link, size = network.link(sender, receiver, ""), round(num_bytes) + HEADER_BYTES
        if not network.is_shared(sender, receiver):
            self.at(self.now + link.seconds(size), sender, arrive)
            return
        come = lambda: self.at(self.now + link.latency, sender, arrive)  # noqa: E731
        self._transfers.start(self.now, network.host(sender), network.host(receiver), link, size, come)

    def compute(self, actor: str, seconds: float, then: Action) -> None:
        """Do something when an actor has computed for so long, on one core at most."""
        host = self._network.host(actor)
        if host in self._scarce and seconds:
            self._computing.start(self.now, host, host, _CORE, seconds, then)
        else:
            self.at(self.now + seconds, actor, then)

    def run(self) -> None:
        """Do all in the order of their times."""
        while True:
            event = self._events[0][0] if self._events else math.inf
            end = min((self._transfers, self._computing), key=_Shared.next_end)
            if min(event, end.next_end()) == math.inf:
                return
            if end.next_end() <= event:
                self.now = max(self.now, end.next_end())
                end.end(self.now)
            else:
                self.now, *_, action = heapq.heappop(self._events)
                action()


_CORE = Link(bandwidth=1.0)


class _Serial:
    """A process that does one thing after another."""

    def __init__(self, events: _Events, name: str) -> None:
        self.name = name
        self._events = events
        self._queue: deque[tuple[float, Action]] = deque()
        self._is_busy = False

    def do(self, seconds: float, then: Action) -> None:
        """Do something that takes so long, after what came before it."""
        self._queue.append((seconds, then))
        if not self._is_busy:
            self._begin()

    def _begin(self) -> None:
        seconds, then = self._queue.popleft()
        self._is_busy = True

        def end() -> None:
            self._is_busy = False
            then()
            if self._queue and not self._is_busy:
                self._begin()

        if seconds:
            self._events.compute(self.name, seconds, end)
        else:
            end()


class _Worker:
    """A worker; what it holds and when it reports is as in `pipeline.Pipeline`."""

    def __init__(self, replay: _Replay, name: str, profile: PartyProfile, server: _Serial | None):
        self.name, self.is_over = name, False
        self._replay, self._config, self._events = replay, replay.config, replay.events
        self._profile, self._server = profile, server
        self.is_active = name.startswith(f"{ACTIVE}/")
        self._todo: deque[Stamp] = deque()
        self._ready: deque[Stamp] = deque()
        self._published: list[tuple[int, int, tuple[Any, ...]]] = []
        self._done: list[Stamp] = []
        self._pushes: deque[_Answer] = deque()
        self._news = _Answer()
        self._num_fetching = self._room_asked = self._num_parked = self._num_under_way = 0
        self._no_report_before, self._finished = 0.0, False
        self._takes_one_at_a_time = self.is_active and replay.is_sent
        self._knows_first = self.is_active or not replay.is_sent
        self._life = self._work()

    def go_on(self) -> None:
        """Work until there is something to compute or to wait for."""
        for found in self._life:
            if isinstance(found, _Answer):
                if found.is_there:
                    continue
                found.wake = self.go_on
            else:
                self._events.compute(self.name, found, self.go_on)
            return
        self.is_over = True

    def _work(self) -> Work:
        while not self._is_done:
            if self._ready:
                if self._takes_one_at_a_time:
                    self._report()
                yield from self._use(self._ready.popleft())
            if self._todo:
                stamp = self._todo.popleft()
                yield self._seconds(stamp, self._ahead)
                self._published.append((*stamp, (self.name,)))
            self._report()
            if not (self._ready or self._todo or self._is_done):
                yield self._news
            self._news = _Answer()
        while self._num_under_way:
            yield self._news
            self._news = _Answer()

    @property
    def _is_done(self) -> bool:
        return self._finished and not (self._done or self._published)

    @property
    def _ahead(self) -> slice:
        """The phases before an embedding leaves."""
        return slice(0, len(self._profile.phases) // 2)

    def _seconds(self, stamp: Stamp, phases: slice) -> float:
        """Return what some phases of a batch take, and half of its messages, or all of them at the active party."""
        profile, rows = self._profile, self._replay.rows(stamp[0])
        messages = profile.message_seconds + profile.message_row_seconds * rows
        return seconds_of(profile.phases[phases], rows) + messages * (1.0 if self.is_active else 0.5)

    def _use(self, stamp: Stamp) -> Work:
        phases = slice(None) if self.is_active else slice(self._ahead.stop, None)
        steps_here = self._profile.step_seconds if self._server is not None else 0.0
        yield max(self._seconds(stamp, phases) - steps_here, 0.0)
        if self._server is not None:
            self._pushes.append(self._push(self._server))
            while len(self._pushes) > self._config.server_window:
                yield self._pushes.popleft()
        if self.is_active:
            self._published.append((*stamp, (self.name,) * self._replay.num_passive))
        else:
            self._done.append(stamp)

    def _push(self, server: _Serial) -> _Answer:
        """Send a gradient to the party's parameter server; the parameters come back."""
        answer, profile, events = _Answer(), self._profile, self._events
        way = profile.local_latency + (profile.parameter_bytes + HEADER_BYTES) / profile.local_bandwidth
        back = lambda: events.at(events.now + way, server.name, answer.come)  # noqa: E731
        events.at(events.now + way, self.name, lambda: server.do(profile.server_step_seconds, back))
        return answer

    def _report(self) -> None:
        if not self._knows_first:
            return
        is_sent, in_hand, now = self._replay.is_sent, len(self._ready) + len(self._todo), self._events.now
        if in_hand > 1 and now < self._no_report_before:
            return
        held = len(self._ready) + self._num_fetching if self.is_active else len(self._todo)
        most = min(self._config.prefetch, 2) if self._takes_one_at_a_time else self._config.prefetch
        room = max(0, most - held - self._room_asked)
        has_use = room > 0 or (not self.is_active and not self._num_parked)
        wait = is_sent or (not in_hand and not self._num_parked and has_use)
        worth = has_use if is_sent else wait or (room > 0 and not self._num_parked)
        if not (self._published or self._done or worth):
            return
        report = Report(tuple(self._published), tuple(self._done), room, wait)
        self._published.clear()
        self._done.clear()
        self._no_report_before = now + self._config.report_interval
        self._room_asked += room
        self._num_parked += wait
        self._num_under_way += 1
        self._replay.report(self, report)

    def begin_with(self, orders: FirstOrders) -> None:
        """Take the batches that were not asked for."""
        self._knows_first = True
        self._todo.extend(orders.assigned)
        self._news.come()

    def hear(self, report: Report, orders: Orders) -> None:
        """Take the answer to a report."""
        self._room_asked -= report.room
        self._num_parked -= report.wait
        self._num_under_way -= 1
        self._finished = self._finished or orders.finished
        self._todo.extend(orders.assigned)
        for batch_id, sequence, owners in orders.payloads:
            if self._replay.is_sent:
                self._ready.append((batch_id, sequence))
            else:
                self._fetch((batch_id, sequence), owners)
        self._news.come()

    def _fetch(self, stamp: Stamp, owners: tuple[Any, ...]) -> None:
        self._num_fetching += 1
        self._num_under_way += 1
        missing = len(owners)

        def arrive() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                self._num_fetching -= 1
                self._num_under_way -= 1
                self._ready.append(stamp)
                self._news.come()

        for owner in owners:
            self._events.send(owner, self.name, self._replay.payload_bytes(stamp[0]), arrive)


class _Replay:
    def __init__(self, config: PubSubVflConfig, problem: Problem) -> None:
        self.num_passive, self.is_sent = problem.num_passive, config.payloads == "sent"
        self._problem = problem
        self._per_epoch = math.ceil(problem.num_rows / config.batch_size)
        self._num_all = problem.num_epochs * self._per_epoch
        self._num_batches = min(self._num_all, MOST_BATCHES)
        self.config = config = dataclasses.replace(config, deadline=math.inf)
        active, passive = problem.active, problem.passive
        w_a, w_p = config.num_active_workers, config.num_passive_workers
        others = [f"passive-{i + 1}" for i in range(problem.num_passive)]
        parties = {ACTIVE: (active, w_a), **dict.fromkeys(others, (passive, w_p))}
        network = _network(problem)
        cores, processes = Counter[str](), Counter({ACTIVE: int(active.broker_seconds > 0)})
        for party, (profile, count) in parties.items():
            host = network.host(party)
            cores[host] = max(cores[host], profile.cores)
            processes[host] += count + int(config.steps_at_server and count > 1)
        self.events = events = _Events(network, cores, processes)
        self._broker = _Serial(events, BROKER)
        self._dispatch = Dispatch(config, others)
        self._dispatch.begin(self._num_batches, 0.0)
        self._parked: dict[bool, list[tuple[_Worker, Report]]] = {True: [], False: []}
        self._steps: list[float] = []
        self.workers: list[_Worker] = []
        for party, (profile, count) in parties.items():
            server = _Serial(events, f"{party}/ps") if config.steps_at_server and count > 1 else None
            self.workers += [_Worker(self, f"{party}/worker-{i}", profile, server) for i in range(count)]

    def seconds(self) -> float:
        """Return what all batches take."""
        for worker in self.workers:
            if self.is_sent and not worker.is_active:
                self._begin(worker)
        for worker in self.workers:
            worker.go_on()
        self.events.run()
        assert all(worker.is_over for worker in self.workers)
        more, first, last = self._num_all - self._num_batches, self._num_batches // 4, self._num_batches * 3 // 4
        pace = (self._steps[last] - self._steps[first]) / (last - first) if more else 0.0
        return self.events.now + more * pace

    def _begin(self, worker: _Worker) -> None:
        """Tell a passive worker what to begin with, as the broker does where payloads are sent."""
        config = self.config
        most = min(config.prefetch, max(1, config.max_in_flight // config.num_passive_workers))
        orders = FirstOrders(1, self._dispatch.assign(worker.name, most, 0.0))
        self.events.send(BROKER, worker.name, measure(orders), lambda: worker.begin_with(orders))

    def rows(self, batch_id: int) -> int:
        """Return the rows of a batch; the last one of an epoch has what is left."""
        size, place = self.config.batch_size, batch_id % self._per_epoch
        return min(size, self._problem.num_rows - place * size)

    def payload_bytes(self, batch_id: int) -> float:
        """Return the bytes of a batch's embedding or gradient."""
        return self.rows(batch_id) * self._problem.row_bytes / 2

    def report(self, worker: _Worker, report: Report) -> None:
        """Let a report reach the broker, and be taken there."""
        size = measure(report) + self._sent_bytes(report.published)
        active, rows = self._problem.active, sum(self.rows(batch_id) for batch_id, *_ in report.published)
        seconds = active.broker_seconds + active.broker_row_seconds * rows
        take = lambda: self._broker.do(seconds, lambda: self._take(worker, report))  # noqa: E731
        self.events.send(worker.name, BROKER, size, take)

    def _take(self, worker: _Worker, report: Report) -> None:
        if worker.is_active:
            self._steps += [self.events.now] * len(report.published)
        self._dispatch.take(worker.name, report, self.events.now)
        own, parked = worker.is_active, self._parked[worker.is_active]
        parked.append((worker, report))
        # an embedding is news for active workers, gradients are for passive ones, what is done for all; a bare request
        # is news for nobody: those before it that wait would be told again that there is nothing
        if report.done or (report.published and not own):
            self._ask(is_active=True)
        if report.done or (report.published and own):
            self._ask(is_active=False)
        if self._parked[own] and self._parked[own][-1][1] is report:
            self._ask(is_active=own, since=len(self._parked[own]) - 1)

    def _ask(self, *, is_active: bool, since: int = 0) -> None:
        """Answer the reports of a side for which there is something, in the order in which they came."""
        parked, self._parked[is_active] = self._parked[is_active], self._parked[is_active][:since]
        for worker, report in parked[since:]:
            orders = self._dispatch.orders(worker.name, report, self.events.now)
            if orders is None:
                self._parked[is_active].append((worker, report))
            else:
                self._answer(worker, report, orders)

    def _answer(self, worker: _Worker, report: Report, orders: Orders) -> None:
        size = measure(orders) + self._sent_bytes(orders.payloads)
        self.events.send(BROKER, worker.name, size, lambda: worker.hear(report, orders))

    def _sent_bytes(self, payloads: tuple[tuple[int, int, tuple[Any, ...]], ...]) -> float:
        if not self.is_sent:
            return 0.0
        return sum(len(sent) * self.payload_bytes(batch_id) for batch_id, _, sent in payloads)


def _network(problem: Problem) -> Network:
    """Return the links between the parties; the broker is at the active one."""
    parties, between = (ACTIVE, *(f"passive-{i + 1}" for i in range(problem.num_passive))), problem.bandwidth
    default = Link(latency=problem.latency, bandwidth=between)
    if problem.one_host:
        return Network(local=default, hosts=dict.fromkeys((*parties, BROKER), ACTIVE))
    local = Link(latency=problem.active.local_latency, bandwidth=problem.active.local_bandwidth)
    shared = {party: HostCapacity(egress=between, ingress=between) for party in parties}
    capacity = shared if problem.shared_link and math.isfinite(between) else {}
    return Network(default=default, local=local, hosts={BROKER: ACTIVE}, capacity=capacity)
