"""The data center as the baselines use it: it trains what it is told, on hardware that its resource policy chooses.

exchange --TrainingOrder--> center --TrainingResult--> exchange      flat: one model per container each way
exchange --RoundOrder-----> center --RoundResult-----> exchange      by centers: one model per center each way
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedactors.roles import DataCenter
from protocols.nebulafl.baselines import fedhkt
from protocols.nebulafl.baselines.center_rounds import MeanRound, Rings, RoundDesk
from protocols.nebulafl.baselines.fedavg import sample
from protocols.nebulafl.baselines.fedhisyn import RingRound, Start
from protocols.nebulafl.config import NebulaFLConfig
from protocols.nebulafl.data import NebulaData
from protocols.nebulafl.floor import Assignment, Request
from protocols.nebulafl.messages import (
    CenterFacts,
    CenterReport,
    ClusterLogits,
    ContainerNews,
    RoundOrder,
    RoundResult,
    TrainingOrder,
    TrainingResult,
    Withdrawal,
)
from protocols.nebulafl.training import Trained
from protocols.nebulafl.workshop import Site, Workshop, center_containers

if TYPE_CHECKING:
    from protocols.nebulafl.exchanges import RoundExchange, TaskExchange


class OrderCenter(DataCenter):
    """See the module. In a flat method a slot is a task, else a container.

    Args:
        config: of the run.
        data: who holds what.
        site: where the center is among the others.
    """

    state: ClassVar[tuple[str, ...]] = ("floor", "desk", "num_trained", "num_given_up", "stopped", "began_at")

    def __init__(self, config: NebulaFLConfig, data: NebulaData, site: Site) -> None:
        self._config, self._data, self._site = config, data, site
        self.desk = RoundDesk()
        self.num_trained = self.num_given_up = 0
        self.stopped = False
        self.began_at: float | None = None

    async def load(self) -> None:
        """Deal the containers' rows and set hardware up."""
        config, data = self._config, self._data
        containers = center_containers(config, data, self._site.place)
        self._rng = self.rng("samples of containers")
        self._counts_CK: np.ndarray | None = None
        if config.algorithm == "fedhkt":
            labels = [data.labels(container.shard) for container in containers]
            self._counts_CK = np.stack([np.bincount(y_N, minlength=data.num_classes) for y_N in labels])
        self._workshop = Workshop(
            self,
            config,
            data,
            containers,
            self.rng("decisions"),
            self._site.run_seed,
            gap_of=lambda slot: 0.0,
            done=self._trained,
            broken=self._workshop_broke,
            proxy=data.proxy() if config.algorithm == "fedhkt" else None,
        )
        self.floor = self._workshop.floor

    async def open(self) -> None:
        """Go on with what a snapshot left."""
        if self.began_at is not None:
            self._workshop.open(self.began_at)

    async def begin_run(self, time: float) -> None:
        """Be ready for orders; `time` is when the run's first second began."""
        if self.began_at is None:
            self.began_at = time
            self._workshop.open(time)

    def _workshop_broke(self, request: Request) -> None:
        self._workshop.ask(request)

    async def facts(self) -> CenterFacts:
        """Return what the exchange may know of the containers."""
        sizes = np.array([container.num_samples for container in self._workshop.containers], np.int64)
        return CenterFacts(self.name, sizes, self.floor.table.predicted.mean(axis=0))

    # --- flat: one task, one container ---

    async def order(self, order: TrainingOrder) -> None:
        """Train a model in a container as soon as there is hardware."""
        if not self.stopped:
            self._workshop.ask(Request(order.task, order.parameters, order.container, order.gap, order.rate_factor))

    async def withdraw(self, withdrawal: Withdrawal) -> None:
        """Break tasks off."""
        for task in withdrawal.tasks:
            self.num_given_up += task in self.floor.running
            self._workshop.withdraw(task)
        self._workshop.pump()

    # --- by centers: one round ---

    async def start_round(self, order: RoundOrder) -> None:
        """Begin a round; one that was still on (this center was away) is dropped."""
        for slot in list(self.floor.requests):
            self._workshop.withdraw(slot)
        config, table = self._config, self.floor.table
        idle = np.flatnonzero(~table.lost).tolist()
        rng = np.random.default_rng([self.seed(f"round {order.round}") % 2**32, order.round])
        self.desk.number = order.round
        num_rounds = config.center_rounds if config.algorithm == "fedavg-hierarchical" else 1
        samples = [sample(idle, order.num_containers, rng) for _ in range(num_rounds)]
        if config.algorithm == "fedhisyn" and samples[0]:
            seconds = {container: float(table.scores[container]) for container in samples[0]}
            ring = RingRound(seconds, config.num_clusters, order.parameters, self.clock.now())
            sizes = {container: self._workshop.containers[container].num_samples for container in samples[0]}
            self.desk.round = Rings(ring, sizes)
        else:
            self.desk.round = MeanRound(samples, order.parameters)
        self._start(self.desk.round.starts())
        if not samples[0]:
            self._answer()

    def _start(self, starts: Iterable[Start]) -> None:
        for start in starts:
            if self.floor.table.lost[start.container]:
                self._round_lost(start.container)
            else:
                self._workshop.ask(Request(start.container, start.parameters, start.container, 0.0))

    def _trained(self, assignment: Assignment, request: Request, trained: Trained) -> None:
        self.num_trained += 1
        parameters_P, loss_rms, num_samples, logits_NK = trained
        now = self.clock.now()
        if self._config.algorithm in ("fedavg-hierarchical", "fedhisyn", "fedhkt"):
            assert self.desk.round is not None
            self._start(self.desk.round.finished(request.slot, parameters_P, num_samples, logits_NK, now))
            self._answer()
            return
        seconds = now - assignment.start
        exchange: TaskExchange = self.peer(self._site.exchange, object)  # type: ignore[assignment]
        result = TrainingResult(request.slot, self.name, num_samples, loss_rms, seconds, parameters_P)
        self.background(exchange.arrive(result))

    def _answer(self) -> None:
        round_ = self.desk.round
        if round_ is None or not round_.complete:
            return
        exchange: RoundExchange = self.peer(self._site.exchange, object)  # type: ignore[assignment]
        if self._config.algorithm == "fedhkt":
            self.background(exchange.take_logits(self._cluster_logits(round_.logits)))
        else:
            result = RoundResult(
                self.name, self.desk.number, round_.num_samples, round_.num_models, round_.parameters_P
            )
            self.background(exchange.take_round(result))
        self.desk.round = None

    def _cluster_logits(self, logits: dict[int, Any]) -> ClusterLogits:
        assert self._counts_CK is not None
        members = sorted(logits)
        if not members:
            empty = np.zeros((0, 0, self._data.num_classes))
            return ClusterLogits(self.name, self.desk.number, empty, np.zeros((0, self._data.num_classes), np.int64))
        counts_MK = self._counts_CK[members]
        made, counts = [], []
        for cluster in fedhkt.label_clusters(counts_MK, self._config.num_clusters):
            chosen = [members[place] for place in cluster]
            made.append(
                fedhkt.cluster_logits([logits[c] for c in chosen], self._counts_CK[chosen].sum(axis=1).tolist())
            )
            counts.append(self._counts_CK[chosen].sum(axis=0))
        return ClusterLogits(self.name, self.desk.number, np.stack(made).astype(np.float32), np.stack(counts))

    def _round_lost(self, container: int) -> None:
        if self.desk.round is not None:
            self._start(self.desk.round.lose(container))
            self._answer()

    # --- losses ---

    async def set_present(self, centers: tuple[str, ...]) -> None:
        """Which centers are there is the exchange's business."""

    async def lose_container(self, container: int) -> None:
        """A container is gone: the round goes on without it, or its task is given to another."""
        in_rounds = self._config.algorithm in ("fedavg-hierarchical", "fedhisyn", "fedhkt")
        waiting = [r.slot for r in self.floor.requests.values() if r.container == container]
        running = [slot for slot in waiting if slot in self.floor.running]
        self.num_given_up += len(running)
        for slot in waiting:
            if slot not in running:
                self._workshop.withdraw(slot)
        self._workshop.lose(container)
        if in_rounds:
            if waiting:
                self._round_lost(container)
            return
        exchange: TaskExchange = self.peer(self._site.exchange, object)  # type: ignore[assignment]
        news = ContainerNews(self.name, container, False, waiting[0] if waiting else -1)
        self.background(exchange.container_news(news))

    async def regain_container(self, container: int) -> None:
        """A container is back."""
        self._workshop.regain(container)
        if self._config.algorithm not in ("fedavg-hierarchical", "fedhisyn", "fedhkt"):
            exchange: TaskExchange = self.peer(self._site.exchange, object)  # type: ignore[assignment]
            self.background(exchange.container_news(ContainerNews(self.name, container, True, -1)))

    # --- the driver's questions ---

    async def report(self) -> CenterReport:
        """Return what was done so far."""
        return CenterReport(self.name, self.num_trained, self.num_given_up, 0, ())

    async def finish(self) -> None:
        """Stop: whatever is under way is given up and paid until now."""
        self.stopped = True
        self._workshop.stop()
