"""Where the baselines aggregate: flat ones task by task (`Coordinator`), the others round by round over the centers.

    TaskExchange   orders --> centers --> results          fedavg, fedasync, fedbuff, fedsa, pisces, gitfl
    RoundExchange  round order --> centers --> their means  fedavg-hierarchical, fedhisyn; logits: fedhkt

Who waits for whom: a round of fedavg for its slowest container, a round of the others for its slowest center.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedactors.errors import PartyLost
from fedactors.roles import DataCenter
from fedactors.runtime.base import Work, derived_seed
from protocols.nebulafl.algorithm import weighted_mean
from protocols.nebulafl.baselines import fedhkt
from protocols.nebulafl.baselines.coordinator import Coordinator, Dispatch, Orders
from protocols.nebulafl.config import NebulaFLConfig
from protocols.nebulafl.data import NebulaData
from protocols.nebulafl.messages import (
    ClusterLogits,
    ContainerNews,
    RoundOrder,
    RoundResult,
    SharedModel,
    TrainingOrder,
    TrainingResult,
    Withdrawal,
)
from protocols.nebulafl.order_center import OrderCenter
from protocols.nebulafl.training import distil, initial_parameters
from protocols.nebulafl.workshop import run_model

DISTILLATION = "distillation"


class TaskExchange(DataCenter):
    """The coordinator of a flat baseline, with its messages."""

    state: ClassVar[tuple[str, ...]] = ("coordinator", "wake", "began_at", "model_facts")

    def __init__(self, config: NebulaFLConfig, data: NebulaData, centers: tuple[str, ...], run_seed: int) -> None:
        self._config, self._data, self._centers, self._run_seed = config, data, centers, run_seed
        self.wake: float | None = None
        self.began_at = 0.0

    async def load(self) -> None:
        """Build the first model and the coordinator."""
        self.model_facts = run_model(self._config, self._data)
        sizes = self._config.center_sizes
        self._first = dict(zip(self._centers, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
        self._last = {center: self._first[center] + size for center, size in zip(self._centers, sizes, strict=True)}
        self._make(np.ones(sum(sizes), np.int64), np.ones(sum(sizes)))

    def _make(self, sizes_C: np.ndarray, seconds_C: np.ndarray) -> None:
        start_P = initial_parameters(self.model_facts, derived_seed(self._run_seed, "all parties", "model"))
        self.coordinator = Coordinator(self._config, start_P, sizes_C, seconds_C, self.rng("containers"))

    async def open(self) -> None:
        """Go on waiting for the clock where a snapshot did."""
        if self.wake is not None:
            self.background(self._tick(self.wake))

    @property
    def now(self) -> float:
        """Seconds since every center was there."""
        return self.clock.now() - self.began_at

    async def begin_run(self, time: float) -> None:
        """Ask the centers for their facts, then give the first orders; `time` is when the run began."""
        self.began_at = time
        facts = [await self.peer(center, OrderCenter).facts() for center in self._centers]
        self._make(np.concatenate([f.sizes for f in facts]), np.concatenate([f.seconds for f in facts]))
        self._follow(self.coordinator.begin(self.now))

    def _follow(self, orders: Orders) -> None:
        for task, container in orders.withdraw:
            self.background(self._withdraw(self._center_of(container), task))
        for dispatch in orders.dispatch:
            self.background(self._send(dispatch))
        wake = self.coordinator.wake_at()
        if wake is not None and self.wake is None and wake > self.now:
            self.wake = wake
            self.background(self._tick(wake))

    async def _withdraw(self, center: str, task: int) -> None:
        try:
            await self.peer(center, OrderCenter).withdraw(Withdrawal((task,)))
        except PartyLost:
            return  # with its center the task is gone anyway

    async def _send(self, dispatch: Dispatch) -> None:
        center = self._center_of(dispatch.container)
        order = TrainingOrder(
            dispatch.task,
            dispatch.container - self._first[center],
            dispatch.gap,
            dispatch.rate_factor,
            dispatch.parameters,
        )
        try:
            await self.peer(center, OrderCenter).order(order)
        except PartyLost:
            self._follow(self.coordinator.lost(dispatch.task, self.now))

    def _center_of(self, container: int) -> str:
        return next(center for center in self._centers if container < self._last[center])

    async def _tick(self, wake: float) -> None:
        await self.clock.sleep_until(self.began_at + wake, key="aggregate")
        self.wake = None
        self._follow(self.coordinator.tick(self.now))

    async def arrive(self, result: TrainingResult) -> None:
        """Take a trained model."""
        self._follow(
            self.coordinator.arrived(
                result.task,
                result.parameters,
                result.num_samples,
                result.loss_rms,
                result.seconds,
                self.now,
            )
        )

    async def container_news(self, news: ContainerNews) -> None:
        """A container was lost or is back."""
        container, now = self._first[news.center] + news.container, self.now
        if news.present:
            self._follow(self.coordinator.container_back(container, now))
            return
        self.coordinator.container_lost(container)
        self._follow(self.coordinator.lost(news.task, now))

    async def center_lost(self, center: str) -> None:
        """All containers of a center are gone, and their tasks with them."""
        first, last = self._first[center], self._last[center]
        gone = [f.task for f in self.coordinator.flights.values() if first <= f.container < last]
        for container in range(first, last):
            self.coordinator.container_lost(container)
        for task in gone:
            self._follow(self.coordinator.lost(task, self.now))

    async def center_back(self, center: str) -> None:
        """A center is back: what it may still train for is broken off, its containers can be called again."""
        alive = {flight.task for flight in self.coordinator.flights.values()}
        stale = tuple(task for task in range(1, self.coordinator.num_tasks + 1) if task not in alive)
        await self.peer(center, OrderCenter).withdraw(Withdrawal(stale))
        for container in range(self._first[center], self._last[center]):
            self._follow(self.coordinator.container_back(container, self.now))

    async def model(self) -> SharedModel:
        """Return the shared model of this moment."""
        number = self.coordinator.num_aggregations
        return SharedModel(number, float(number), self.coordinator.model())

    async def finished(self) -> bool:
        """Tell whether nothing new is started and nothing is under way."""
        return self.coordinator.finished(self.now)


class RoundExchange(DataCenter):
    """Rounds over the centers."""

    state: ClassVar[tuple[str, ...]] = (
        "present", "round", "parameters_P", "called", "results", "began_at", "model_facts",
    )  # fmt: skip

    def __init__(self, config: NebulaFLConfig, data: NebulaData, centers: tuple[str, ...], run_seed: int) -> None:
        self._config, self._data, self._centers, self._run_seed = config, data, centers, run_seed
        self.present = list(centers)
        self.round = 0
        self.called: list[str] = []
        self.results: dict[str, tuple[float, np.ndarray, np.ndarray]] = {}
        self.began_at = 0.0
        self._settling = False

    async def load(self) -> None:
        """Build the first model."""
        self.model_facts = run_model(self._config, self._data)
        seed = derived_seed(self._run_seed, "all parties", "model")
        self.parameters_P = initial_parameters(self.model_facts, seed)

    @property
    def now(self) -> float:
        """Seconds since every center was there."""
        return self.clock.now() - self.began_at

    async def begin_run(self, time: float) -> None:
        """Call the first round; `time` is when the run began."""
        self.began_at = time
        self._call()

    def _over(self) -> bool:
        rounds = self._config.num_rounds
        return self.now >= self._config.duration or (rounds is not None and self.round >= rounds)

    def _call(self) -> None:
        if self._over() or not self.present:
            return
        self.called, self.results = list(self.present), {}
        order = RoundOrder(self.round, self._config.active_per_center, self.parameters_P)
        for center in self.called:
            self.background(self._send(center, order))

    async def _send(self, center: str, order: RoundOrder) -> None:
        try:
            await self.peer(center, OrderCenter).start_round(order)
        except PartyLost:
            return  # the driver says that it is lost

    async def take_round(self, result: RoundResult) -> None:
        """Take a center's mean."""
        if result.round == self.round and result.center in self.called:
            weight = result.num_models if self._config.algorithm == "fedhisyn" else result.num_samples
            self.results[result.center] = (float(weight), result.parameters, np.zeros((0, 0)))
            await self._settle()

    async def take_logits(self, found: ClusterLogits) -> None:
        """Take what a center's clusters think of the proxy samples."""
        if found.round == self.round and found.center in self.called:
            self.results[found.center] = (float(len(found.logits)), found.logits, found.counts)
            await self._settle()

    async def _settle(self) -> None:
        if set(self.called) - set(self.results):
            return
        names = [name for name in sorted(self.results) if self.results[name][0] > 0]
        self.called, self._settling = [], True
        if names and self._config.algorithm == "fedhkt":
            await self._distil(names)
        elif names:
            weights, models = zip(*((self.results[name][0], self.results[name][1]) for name in names), strict=True)
            self.parameters_P = weighted_mean(models, weights)
            self.parameters_P.setflags(write=False)
        self.round += 1
        self._settling = False
        self._call()

    async def _distil(self, names: list[str]) -> None:
        logits = [np.asarray(one, np.float64) for name in names for one in self.results[name][1]]
        counts_GK = np.concatenate([self.results[name][2] for name in names])
        config, proxy = self._config, self._data.proxy()
        self.parameters_P = await self.compute(
            distil,
            self.model_facts,
            self.parameters_P,
            proxy.key,
            proxy.rows,
            fedhkt.ensemble(logits, counts_GK),
            self.seed(f"distillation {self.round}"),
            (config.distillation_epochs, config.batch_size, config.learning_rate, config.momentum),
            work=Work(DISTILLATION, float(len(proxy.rows) * config.distillation_epochs)),
        )

    async def center_lost(self, center: str) -> None:
        """Go on without a center."""
        self.present.remove(center)
        if center in self.called:
            self.called.remove(center)
            self.results.pop(center, None)
            if self.called:
                await self._settle()
            else:
                self._call()

    async def center_back(self, center: str) -> None:
        """A center is back and takes part from the next round on."""
        self.present = [name for name in self._centers if name in (*self.present, center)]
        if not self.called and not self._settling:
            self._call()

    async def model(self) -> SharedModel:
        """Return the shared model of this moment."""
        return SharedModel(self.round, float(self.round), self.parameters_P)

    async def finished(self) -> bool:
        """Tell whether no round will follow."""
        return self._over()
