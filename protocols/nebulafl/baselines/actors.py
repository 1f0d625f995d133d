"""The actors of the baselines: centers that train what they are told, and the exchange that tells them.

    FlatExchange   --TrainingOrder--> center --TrainingResult--> exchange      one model per container each way
    RoundExchange  --RoundOrder-----> center --RoundResult-----> exchange      one model per center each way

Who waits for whom: a round of fedavg for its slowest container, a round of those by centers for its slowest center;
else nobody.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from fedactors.actors.actor import DataCenter
from fedactors.actors.context import Work
from fedactors.actors.groups import ActorGroup, surviving_loss
from fedactors.actors.remote import DATA_CENTER, DRIVER, SERVER, remote
from fedactors.data.layouts.horizontal import HorizontalPart, check_names, reading_of, rows_key, rows_of
from fedactors.errors import Refused
from fedactors.protocols.nebulafl import messages
from fedactors.protocols.nebulafl.actors import AUDITOR, Auditor
from fedactors.protocols.nebulafl.algorithm import Floats
from fedactors.protocols.nebulafl.baselines.flat_averaging import RATE_LIMITS, FlatServer, Orders, Task
from fedactors.protocols.nebulafl.baselines.hierarchical import RoundDesk, Start, center_method
from fedactors.protocols.nebulafl.baselines.secure_sums import RoundSums, SummingCenter
from fedactors.protocols.nebulafl.config import BY_CENTER, NebulaFLConfig
from fedactors.protocols.nebulafl.containers import WHILE_IT_LASTS, ContainerCenter, RunMembers, check_speaker
from fedactors.protocols.nebulafl.messages import CenterFacts, ClusterLogits, RoundOrder, TrainingOrder
from fedactors.protocols.nebulafl.scheduler import Assignment, Request
from fedactors.protocols.nebulafl.training import (
    Model,
    Trained,
    distilled,
    initial_parameters,
    run_model,
    steps_of,
    train,
    train_batched,
)
from fedactors.secure_sums.actors import in_turn

DISTILLATION = "distillation"


class OrderCenter(ContainerCenter, SummingCenter):
    """A center as the baselines use it. In a flat method a slot is a task, else a container."""

    state: ClassVar[tuple[str, ...]] = ("trainings", "desk", "reading", *SummingCenter.state)
    jobs = (train, train_batched)

    def __init__(self, config: NebulaFLConfig, part: HorizontalPart, members: RunMembers) -> None:
        super().__init__(config, members)
        self._config, self._part, self._members = config, part, members
        self._num_parameters: int | None = None

    async def load(self) -> None:
        """Learn what the containers hold, and set hardware up."""
        self.trainings = self._make_trainings(
            self._part,
            self.peer(AUDITOR, Auditor),
            gap_of=lambda slot: 0.0,
            done=self._trained,
            broken=lambda request: self.trainings.ask(request),
        )
        self.reading = ""
        if not self._config.container_processes:
            self._learned()
        self._method = center_method(self._config)
        self._in_rounds = self._config.algorithm in BY_CENTER
        self.desk = RoundDesk(self._method)

    def _learned(self) -> None:
        self.reading = self.trainings.reading.text

    @remote(caller=DATA_CENTER, only="adder", once=True)
    async def columns(self) -> messages.Columns:
        """Return which columns the containers' rows have."""
        return messages.Columns(self.trainings.model[1][0], self.trainings.reading.names)

    @remote(caller=DATA_CENTER, only="adder", once=True)
    async def facts(self) -> messages.CenterFacts:
        """Return what the exchange may know of the containers."""
        sizes_C = np.array(self.trainings.sizes, np.int64)
        return messages.CenterFacts(self.name, sizes_C, self.trainings.scheduler.table.predicted.mean(axis=0))

    @remote(caller=DRIVER, at_most=lambda config: 1 + config.num_changes)
    @in_turn
    async def begin_run(self, start: messages.RunStart) -> None:
        """See `ContainerCenter.begin_run`; what is summed follows from no start that the others were not told."""
        if self._config.secure_aggregation:
            self.heard("begin_run", start)
        await super().begin_run(start)

    # --- flat: one task, one container ---

    @remote(caller=DATA_CENTER, only="adder", at_most="num_orders", unbounded=WHILE_IT_LASTS)
    async def order(self, order: messages.TrainingOrder) -> None:
        """Train a model in a container as soon as there is hardware."""
        if not self.trainings.stopped:
            self._check_time()
            self._check_rate(order.rate_factor)
            self._check_containers(order.container)
            request = Request(order.task, order.parameters, order.container, order.gap, order.rate_factor)
            self.trainings.ask(request)

    def _check_rate(self, rate_factor: float) -> None:
        """Refuse steps of another size than the schedule's.

        Raises:
            Refused: they are larger than the approved ones, smaller, or go the other way.
        """
        lower, upper = RATE_LIMITS if self._config.algorithm == "fedsa" else (1.0, 1.0)
        least = lower * self._config.smallest_rate * (1 - 1e-9)
        if not least <= rate_factor <= upper:
            said = f"orders {self.name} to train at {rate_factor:g} times the step size"
            raise Refused(self.caller, f"{said}; approved: {least:g} to {upper:g} (schedule)")

    def _check_containers(self, container: int) -> None:
        """Refuse a container that there is not: the last one is -1 too, and budgets are counted by number.

        Raises:
            Refused: it is none of this center's.
        """
        if not 0 <= container < len(self.trainings.names):
            said = f"orders work of container {container} of {self.name}"
            raise Refused(self.caller, f"{said}; approved: 0 to {len(self.trainings.names) - 1}")

    def known_sizes(self, message: Any, sender: str) -> dict[str, int]:
        """Return how many numbers the model has."""
        if not isinstance(message, (TrainingOrder, RoundOrder)):
            return {}
        if self._num_parameters is None:
            self._num_parameters = len(initial_parameters(self.trainings.model, self._members.run_seed))
        return {"parameters": self._num_parameters}

    @remote(caller=DATA_CENTER, only="adder", unbounded="ends what was ordered")
    async def withdraw(self, withdrawal: messages.Withdrawal) -> None:
        """Break tasks off."""
        for task in withdrawal.tasks:
            self.trainings.withdraw(task)
        self.trainings.pump()

    # --- by centers: one round ---

    @remote(caller=DATA_CENTER, only="adder", at_most="num_center_rounds", unbounded=WHILE_IT_LASTS)
    @in_turn
    async def start_round(self, order: messages.RoundOrder) -> None:
        """Begin a round; one that was still on (this center was away) is dropped."""
        self._check_time()
        self._check_rate(order.rate_factor)
        if order.num_containers != (approved := self._config.active_per_center):  # the mean of one is its own model
            said = f"orders a round of {order.num_containers} containers of {self.name}"
            raise Refused(self.caller, f"{said}; approved: {approved} (active_per_center)")
        if self._config.secure_aggregation:
            self.follow(order)
        for slot in list(self.trainings.scheduler.requests):
            self.trainings.withdraw(slot)
        table = self.trainings.scheduler.table
        idle = np.flatnonzero(~(table.lost | table.spent)).tolist()
        generator = np.random.default_rng([self.seed(f"round {order.round}") % 2**32, order.round])
        self.desk.number, self.desk.rate_factor = order.round, order.rate_factor
        self.desk.round = self._method.new_round(order, idle, table.scores, self.clock.now(), generator)
        self._start(self.desk.round.starts())
        self._answer()

    def _start(self, starts: Iterable[Start]) -> None:
        for start in starts:
            if self.trainings.scheduler.table.lost[start.container]:
                self._round_lost(start.container)
            else:
                request = Request(start.container, start.parameters, start.container, 0.0, self.desk.rate_factor, True)
                self.trainings.ask(request)

    def _round_lost(self, container: int) -> None:
        if self.desk.round is not None:
            self._start(self.desk.round.lose(container))
            self._answer()

    def _answer(self) -> None:
        found = self.desk.round
        if found is None or not found.complete:
            return
        answer = self._method.answer(self.name, self.desk.number, found, self.trainings.labels, self.trainings.model[2])
        self.desk.round = None
        self.background(self.peer(self._members.exchange, RoundExchange).take(self.leaving(answer)))

    # --- what happens ---

    def _trained(self, assignment: Assignment, request: Request, trained: Trained) -> None:
        now = self.clock.now()
        if self._in_rounds:
            assert self.desk.round is not None
            self._start(self.desk.round.finished(request.slot, trained, now))
            self._answer()
            return
        parameters_P, loss_rms, num_samples, _ = trained
        seconds = now - assignment.start
        result = messages.TrainingResult(request.slot, self.name, num_samples, loss_rms, seconds, parameters_P)
        self.background(self.peer(self._members.exchange, FlatExchange).arrive(result))

    def _lose_container(self, container: int) -> None:
        """The round goes on without it, or its task is given to another."""
        scheduler = self.trainings.scheduler
        slot = next((r.slot for r in scheduler.requests.values() if r.container == container), None)
        if slot is not None and slot not in scheduler.running:
            self.trainings.withdraw(slot)
        self.trainings.lose(container)
        if not self._in_rounds:
            self._tell(messages.ContainerEvent(self.name, container, False, -1 if slot is None else slot))
        elif slot is not None:
            self._round_lost(container)

    def _regain_container(self, container: int) -> None:
        super()._regain_container(container)
        if not self._in_rounds:
            self._tell(messages.ContainerEvent(self.name, container, True, -1))

    def _tell(self, news: messages.ContainerEvent) -> None:
        self.background(self.peer(self._members.exchange, FlatExchange).container_news(news))

    @remote(caller=DRIVER, at_most="num_changes")
    async def set_present(self, news: messages.PresentCenters) -> None:
        """Which centers are there is the exchange's business."""


class Exchange(DataCenter):
    """What the exchanges of all baselines do."""

    state: ClassVar[tuple[str, ...]] = ("began_at", "training_seconds", "model_facts", "reading")

    def __init__(self, config: NebulaFLConfig, part: HorizontalPart, members: RunMembers) -> None:
        self._config, self._part, self._members = config, part, members
        self.began_at = 0.0
        self.training_seconds = 0.0
        """Of a local training as it was tried, 0 where no time follows them."""
        self.model_facts: Model | None = None
        self.reading = reading_of(part).text

    async def open(self) -> None:
        """Go on with what a snapshot left."""
        if self.model_facts is not None:
            self._set_times()

    def _set_times(self) -> None:
        """Set the times of the run, which may follow those of trainings."""
        self._config = self._config.timed(self.training_seconds)

    @property
    def _now(self) -> float:
        """Seconds since every center was there."""
        return self.clock.now() - self.began_at

    async def _begin(self, start: messages.RunStart) -> Floats:
        """Return the first model; of tables without stated columns the centers are asked which they have.

        Raises:
            BadInput: their containers hold different columns.
        """
        self.began_at, self.training_seconds = start.time, start.training_seconds
        self._set_times()
        shape: tuple[int, ...] = ()
        if not self._part.shape:
            names = self._members.centers
            told = {center: await self.peer(center, OrderCenter).columns() for center in names}
            check_names({center: one.names for center, one in told.items()})
            shape = (told[names[0]].count,)
        self.model_facts = run_model(self._config, self._part, shape)
        return initial_parameters(self.model_facts, self._members.run_seed)

    @abstractmethod
    def _shared(self) -> tuple[int, Floats]:
        """Return how often the shared model was made, and the model."""

    @abstractmethod
    def _is_over(self) -> bool:
        """Tell whether nothing new is started."""

    @remote(caller=SERVER, at_most=lambda config: config.num_measurements + config.num_changes)
    async def model(self) -> messages.SharedModel:
        """Return the shared model of this moment."""
        number, model_P = self._shared()
        return messages.SharedModel(number, float(number), model_P)

    @remote(caller=DRIVER, at_most="num_measurements")
    async def progress(self) -> messages.Progress:
        """Tell whether nothing new is started."""
        return messages.Progress(self._is_over())


class FlatExchange(Exchange):
    """The server of a flat baseline, with its messages."""

    state: ClassVar[tuple[str, ...]] = (*Exchange.state, "server", "wake")

    def __init__(self, config: NebulaFLConfig, part: HorizontalPart, members: RunMembers) -> None:
        super().__init__(config, part, members)
        ends = np.cumsum((0, *members.sizes)).tolist()
        self._containers = {
            center: range(first, end) for center, first, end in zip(members.centers, ends[:-1], ends[1:], strict=True)
        }
        self.wake: float | None = None

    async def load(self) -> None:
        """Set up what a snapshot is loaded into."""
        self.server = FlatServer(self._config, np.zeros(0, np.float32), [1], [1.0], self.rng("containers"))

    async def open(self) -> None:
        """Go on waiting for the clock where a snapshot did."""
        await super().open()
        if self.wake is not None:
            self.background(self._tick(self.wake))

    @remote(caller=DRIVER, once=True)
    async def begin_run(self, start: messages.RunStart) -> None:
        """Ask the centers for their facts, then give the first orders."""
        model_P = await self._begin(start)
        facts = [await self.peer(center, OrderCenter).facts() for center in self._members.centers]
        for center, found in zip(self._members.centers, facts, strict=True):
            is_time = bool(np.isfinite(found.seconds).all()) and (found.seconds > 0).all()
            if found.center != center or (found.sizes < 1).any() or not is_time:
                raise Refused(center, "tells sizes of its containers, or seconds, that are not above 0")
        sizes_C = np.concatenate([found.sizes for found in facts]).tolist()
        seconds_C = np.concatenate([found.seconds for found in facts]).tolist()
        self.server = FlatServer(self._config, model_P, sizes_C, seconds_C, self.rng("containers"))
        self._follow(self.server.advance(self._now))

    def known_sizes(self, message: Any, sender: str) -> dict[str, int]:
        """Return how many containers a center has, and how many numbers the model."""
        if isinstance(message, CenterFacts):
            return {"containers": len(self._containers[sender])}
        return {"parameters": self.server.method.model.size}

    def _set_times(self) -> None:
        super()._set_times()
        self.server.config = self._config

    def _follow(self, orders: Orders) -> None:
        for task in orders.withdrawn:
            self.background(self._withdraw(self._center_of(task.container), (task.number,)))
        for task in orders.begun:
            self.background(self._send(task))
        wake = self.server.wake_at()
        if wake is not None and self.wake is None and wake > self._now:
            self.wake = wake
            self.background(self._tick(wake))

    async def _withdraw(self, center: str, tasks: tuple[int, ...]) -> None:
        with surviving_loss("its tasks are gone with it"):
            await self.peer(center, OrderCenter).withdraw(messages.Withdrawal(tasks))

    async def _send(self, task: Task) -> None:
        center = self._center_of(task.container)
        index = task.container - self._containers[center].start
        order = messages.TrainingOrder(task.number, index, task.gap, task.rate_factor, task.start)
        with surviving_loss("its task goes to another container") as losses:
            await self.peer(center, OrderCenter).order(order)
        if losses:
            self._follow(self.server.lost(task.number, self._now))

    def _center_of(self, container: int) -> str:
        return next(center for center, containers in self._containers.items() if container in containers)

    async def _tick(self, wake: float) -> None:
        await self.clock.sleep_until(self.began_at + wake, key="aggregate")
        self.wake = None
        self._follow(self.server.advance(max(self._now, wake)))  # now may be less by rounding

    @remote(caller=DATA_CENTER, unbounded="takes what it ordered")
    async def arrive(self, result: messages.TrainingResult) -> None:
        """Take a trained model."""
        check_speaker(self, result.center)
        task = self.server.tasks.get(result.task)
        if task is not None:
            check_speaker(self, self._center_of(task.container))
        # a loss that is no number is that of a run that diverges, which the run says
        if not (result.num_samples > 0 and 0 <= result.seconds < math.inf) or result.loss_rms < 0:
            said = f"sends a model of {result.num_samples:,} samples, of {result.seconds:g} s, loss {result.loss_rms:g}"
            raise Refused(result.center, said)
        self._follow(self.server.arrived(result, self._now))

    @remote(caller=DATA_CENTER, unbounded="the exchange has no rows")
    async def container_news(self, news: messages.ContainerEvent) -> None:
        """A container was lost or is back."""
        check_speaker(self, news.center)
        containers, task = self._containers.get(news.center, range(0)), self.server.tasks.get(news.task)
        is_other = task is not None and task.container not in containers
        if not 0 <= news.container < len(containers) or (is_other and not news.present):
            said = f"tells of container {news.container}, and task {news.task}"
            raise Refused(self.caller, f"{said}; approved: its own, 0 to {len(containers) - 1}")
        container = containers[news.container]
        if news.present:
            self._follow(self.server.container_back(container, self._now))
            return
        self.server.container_lost(container)
        self._follow(self.server.lost(news.task, self._now))

    @remote(caller=DRIVER, at_most="num_changes")
    async def center_news(self, news: messages.CenterNews) -> messages.CenterNews | None:
        """All containers of a center are gone, and their tasks with them; or they can be called again.

        What was trained has arrived, each by itself: there is nothing to take back.
        """
        containers, server = self._containers[news.center], self.server
        if not news.present:
            gone = [task.number for task in server.tasks.values() if task.container in containers]
            for container in containers:
                server.container_lost(container)
            for number in gone:
                self._follow(server.lost(number, self._now))
            return None
        # what it may still train for is broken off
        stale = tuple(number for number in range(1, server.num_tasks + 1) if number not in server.tasks)
        await self.peer(news.center, OrderCenter).withdraw(messages.Withdrawal(stale))
        for container in containers:
            self._follow(server.container_back(container, self._now))
        return None

    def _shared(self) -> tuple[int, Floats]:
        return self.server.method.num_aggregations, self.server.method.model

    def _is_over(self) -> bool:
        return self.server.finished(self._now)


class RoundExchange(Exchange):
    """Rounds over the centers that are there."""

    state: ClassVar[tuple[str, ...]] = (
        *Exchange.state, "centers", "round", "parameters_P", "called", "called_at", "results",
    )  # fmt: skip

    def __init__(self, config: NebulaFLConfig, part: HorizontalPart, members: RunMembers) -> None:
        super().__init__(config, part, members)
        self._method = center_method(config)
        self._sums = RoundSums(self, config, members.centers)
        self.centers: ActorGroup[Any] = self._sums.centers
        self.parameters_P = np.zeros(0, np.float32)
        self.round = 0
        self.called: list[str] = []
        """Whose answers to the round are waited for."""
        self.called_at = 0.0
        self.results: dict[str, messages.RoundResult | messages.ClusterLogits | messages.RoundDone] = {}
        self._is_settling = False

    @remote(caller=DRIVER, once=True)
    async def begin_run(self, start: messages.RunStart) -> None:
        """Call the first round."""
        self.parameters_P = await self._begin(start)
        if self._config.secure_aggregation:
            await self._sums.weigh()
        self._call()

    def _shared(self) -> tuple[int, Floats]:
        return self.round, self.parameters_P

    def _is_over(self) -> bool:
        rounds = self._config.num_rounds
        return self._now >= self._config.times.duration or (rounds is not None and self.round >= rounds)

    def _call(self) -> None:
        self.called, self.results = [] if self._is_over() else self.centers.members, {}
        if self.called:
            self.called_at = self.clock.now()
            rate = self._config.rate_at(self._now)
            order = messages.RoundOrder(self.round, self._config.active_per_center, self.parameters_P, rate)
            self.background(self._start(order))

    async def _start(self, order: messages.RoundOrder) -> None:
        with surviving_loss("the round goes on without it"):
            await self.centers.ask(lambda center: center.start_round(order))

    @remote(caller=DATA_CENTER, unbounded="takes what it ordered")
    async def take(self, result: messages.RoundResult | messages.ClusterLogits | messages.RoundDone) -> None:
        """Take a center's answer to the round that is on, or the word that it is ready for a sum."""
        check_speaker(self, result.center)
        if isinstance(result, messages.RoundDone) != self._config.secure_aggregation:
            raise Refused(result.center, f"its answer is {'bare' if self._config.secure_aggregation else 'missing'}")
        if isinstance(result, messages.RoundResult):
            most = self._config.active_per_center
            if not (0 <= result.num_models <= most and result.num_samples >= 0):
                said = f"sends a mean of {result.num_models:,} models, of {result.num_samples:,} samples"
                raise Refused(result.center, said)
        if isinstance(result, messages.ClusterLogits) and (result.counts < 0).any():
            raise Refused(result.center, "sends counts of labels below 0")
        if result.round == self.round and result.center in self.called:
            self.results[result.center] = result
            await self._settle()

    def known_sizes(self, message: Any, sender: str) -> dict[str, int]:
        """Return how many numbers the model has, and how many classes and public rows there are."""
        sizes = {"parameters": self.parameters_P.size}
        is_empty = isinstance(message, ClusterLogits) and not len(message.logits)
        if self.model_facts is not None and self._part.public is not None and not is_empty:
            sizes |= {
                "classes": self.model_facts[2],
                "public rows": len(rows_of(rows_key(self._part.public, self.scope))[1]),
            }
        return sizes

    async def _settle(self) -> None:
        """Make the next model when all answers are there, and call the next round."""
        if set(self.called) - set(self.results):
            return
        self.called, self._is_settling = [], True
        found = await self._sums.mean(self.parameters_P) if self._config.secure_aggregation else self._combined()
        if found is not None:
            self.parameters_P = await self._distil(found) if self._method.distils else found
            self.parameters_P.setflags(write=False)
        self.round += 1
        self._is_settling = False
        self._call()

    def _combined(self) -> np.ndarray | None:
        answers = [self.results[name] for name in sorted(self.results)]
        results = [one for one in answers if not isinstance(one, messages.RoundDone) and self._method.weight(one) > 0]
        return self._method.combine(results) if results else None

    async def _distil(self, target_NK: np.ndarray) -> np.ndarray:
        assert self._part.public is not None
        assert self.model_facts is not None
        config, key, seed = (
            self._config,
            rows_key(self._part.public, self.scope),
            self.seed(f"distillation {self.round}"),
        )
        work = Work(DISTILLATION, float(len(rows_of(key)[1]) * config.distillation_epochs))
        facts = (self.model_facts, self.parameters_P, key, target_NK, seed)
        steps = steps_of(config, local_epochs=config.distillation_epochs)
        return await self.compute(distilled, *facts, steps, config.device, work=work)

    @remote(caller=DRIVER, at_most="num_changes")
    async def center_news(self, news: messages.CenterNews) -> messages.CenterNews | None:
        """Go on without a center, or with one that is back from the next round on.

        Returns since when nothing that a lost center trained was answered; None: there is nothing of that kind.
        """
        if news.present:
            self.centers.back(news.center)
            if not self.called and not self._is_settling:
                self._call()
            return None
        self.centers.leave(news.center)
        if news.center not in self.called:
            return None
        since = self.called_at
        self.called.remove(news.center)
        has_answered = self.results.pop(news.center, None) is not None
        if self.called:
            await self._settle()
        else:
            self._call()
        return None if has_answered else messages.CenterNews(news.center, False, since)
