"""Trainings: the functions that are handed to `compute` and `begin`, and the trainings under way in a center.

    slot --ask--> Scheduler.assign --> job (survives a snapshot) --> Scheduler.finish --> done(slot, ...)
                                  `-> or an order to the container's local process (`containers`), and its answer
                                                               `-> auditor: lease opened, lease closed

A task carries the frame of its rows' source instead of rows: whichever process runs it loads them once. A model is
named by (name, shape of a sample, classes, normalisation).

**Trust.** There is no trusted execution environment here. A container is the boundary that the protocol is written
against: only trained models, counts and times leave it. But it is an object in its center's process, or a process
beside it on the center's machines, so that the operator of those can read its rows. A deployment with enclaves puts
its check in the attestation hook: a container that fails is never handed a model.

Shapes: P length of the flat vector, N samples, K classes.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedactors.actors.actor import Actor
from fedactors.actors.context import Job, Work, derived_seed
from fedactors.config import load_code
from fedactors.data.layouts.horizontal import (
    HorizontalData,
    HorizontalPart,
    Reading,
    check_widths,
    read_reading,
    reading_of,
    rows_key,
    rows_of,
    weights_of,
)
from fedactors.errors import BadInput
from fedactors.learning.local_training import (
    LocalResult,
    LocalTraining,
    check_private,
    distil,
    model_outputs,
    train_locally,
    train_privately,
)
from fedactors.learning.many_clients import can_be_batched, rows_on, train_clients
from fedactors.learning.metrics import known, task_metrics
from fedactors.learning.models import ModelSpec, model_for
from fedactors.learning.network import find_device, initial_vector, statistics_mask
from fedactors.learning.optimizers import OptimizerSpec
from fedactors.learning.user_models import user_metrics
from fedactors.privacy.accounting import ClientPrivacy, PrivacyRecord, RecordPrivacy
from fedactors.privacy.mechanisms import add_gaussian, clip_rows
from fedactors.protocols.nebulafl.algorithm import Floats
from fedactors.protocols.nebulafl.config import BY_CENTER, NebulaFLConfig
from fedactors.protocols.nebulafl.data import catalogue_for
from fedactors.protocols.nebulafl.messages import ContainerOrder, ContainerResult, LeaseClosed, LeaseOpened
from fedactors.protocols.nebulafl.scheduler import Assignment, Request, Scheduler
from fedactors.runtime.compute import together

TRAINING = "training"
"""Kind of work whose units are seconds on the rented hardware."""
_EVALUATED = 100
"""Rows that a model is evaluated on at a time."""
Model = tuple[str, tuple[int, ...], int, str]
Steps = tuple[int, int, tuple[tuple[str, Any], ...], tuple[tuple[str, Any], ...]]
"""(local epochs, samples of a step, fields of its `OptimizerSpec`, others of its `LocalTraining`): plain values, which
a snapshot can hold."""
Noise = tuple[str, float, float, tuple[int, ...]]
"""(``record`` or ``client``, clip norm, noise multiplier, seeds of the noise): of no seeds it is the operating
system's, so that no snapshot knows it."""
CHANGE = "a training's change"
"""What the noised changes of trainings are called in an audit."""
Trained = tuple[Floats, float, int, Floats | None]
"""(parameters (P,), root mean square of the batch losses, samples, logits (N, K) or None)."""
Attestation = Callable[[str, bytes], bool]
"""``attest(container, nonce)``: whether the container proved what it runs; the nonce is fresh for each question."""


# --- rows and models ---


def run_model(config: NebulaFLConfig, data: HorizontalData | HorizontalPart, shape: tuple[int, ...] = ()) -> Model:
    """Return the model of a run; `shape` is that of a sample where the data's description has none."""
    return (
        model_for(config.model, data.shape),
        tuple(data.shape or shape),
        max(data.num_classes, 2),
        config.normalisation,
    )


def model_spec(model: Model) -> ModelSpec:
    """Return the description of a model."""
    name, shape, num_classes, norm = model
    return ModelSpec(name=name, inputs=tuple(shape), outputs=num_classes, norm=norm)  # type: ignore[arg-type]


def initial_parameters(model: Model, run_seed: int) -> Floats:
    """Return the vector (P,) that training starts from in every center, read-only."""
    vector_P: Floats = initial_vector(model_spec(model), derived_seed(run_seed, "all parties", "model"))
    vector_P.setflags(write=False)
    return vector_P


def samples_of(key: bytes) -> Tensor:
    """Return the samples of some rows; images with channels last, in which CPU convolutions are up to twice as fast.

    The strides are stated because torch takes images of one channel for channels first otherwise.
    """
    x = torch.tensor(rows_of(key)[0])
    if x.ndim != 4:
        return x
    _, channels, height, width = x.shape
    strides = (channels * height * width, 1, width * channels, channels)
    return x.contiguous(memory_format=torch.channels_last).as_strided(x.shape, strides)


# --- what is computed ---


def steps_of(config: NebulaFLConfig, rate_factor: float = 1.0, local_epochs: int | None = None) -> Steps:
    """Return how a container trains, or how the exchange distils in so many epochs."""
    rule = config.step_rule.scaled(rate_factor)
    how = {"loss": config.user_loss, "precision": config.precision, "micro_batch_size": config.micro_batch_size}
    epochs = local_epochs or config.local_epochs
    return epochs, config.batch_size, tuple(dataclasses.asdict(rule).items()), tuple(how.items())


def local_training(steps: Steps) -> LocalTraining:
    """Return the local training that stands for some steps."""
    local_epochs, batch_size, rule, how = steps
    return LocalTraining(
        optimizer=OptimizerSpec(**dict(rule)), batch_size=batch_size, num_epochs=local_epochs, **dict(how)
    )


def noise_of(config: NebulaFLConfig, secret: tuple[int, ...]) -> tuple[Noise, ...]:
    """Return how a training is hidden: once, or not at all."""
    if config.record_clip_norm is not None:
        return (("record", config.record_clip_norm, config.record_noise_multiplier, secret),)
    if config.client_clip_norm is not None:
        return (("client", config.client_clip_norm, config.client_noise_multiplier, secret),)
    return ()


def train(
    model: Model,
    parameters_P: Floats,
    key: bytes,
    seed: int,
    steps: Steps,
    public_key: bytes = b"",
    device: str = "cpu",
    *noise: Noise,
) -> Trained:
    """Train a model on a container's rows; with public rows also say what it thinks of those (FedHKT)."""
    spec, rows, how = model_spec(model), (samples_of(key), rows_of(key)[1]), local_training(steps)
    where, weights_N = find_device(device), weights_of(key)
    if noise:
        return _train_with_noise(spec, parameters_P, rows, seed, how, weights_N, str(where), *noise)
    found = train_locally(spec, parameters_P, *rows, seed=seed, training=how, weights_N=weights_N, device=where)
    return _trained(model, found, public_key, device)


def _train_with_noise(
    spec: ModelSpec,
    parameters_P: Floats,
    rows: tuple[Tensor, Any],
    seed: int,
    how: LocalTraining,
    weights_N: Any,
    device: str,
    noise: Noise,
) -> Trained:
    """Train so that noise hides each row (DP-SGD), or all that the training changed; no loss is told (0)."""
    kind, clip_norm, multiplier, given = noise
    secret = tuple(given) or tuple(np.random.SeedSequence().generate_state(4).tolist())
    if kind == "record":
        privacy = RecordPrivacy(
            clip_norm=clip_norm, noise_multiplier=multiplier, batch_size=how.batch_size, num_epochs=how.num_epochs
        )
        made_P = train_privately(
            spec, parameters_P, *rows, secret=secret, privacy=privacy, training=how, weights_N=weights_N, device=device
        )
    else:
        found = train_locally(spec, parameters_P, *rows, seed=seed, training=how, weights_N=weights_N, device=device)
        change_P = clip_rows((found.vector.astype(np.float64) - parameters_P)[None] / clip_norm, 1.0)[0]
        noised_P = add_gaussian(change_P, multiplier, np.random.default_rng(secret), CHANGE)
        made_P = (parameters_P + clip_norm * noised_P).astype(parameters_P.dtype)
    made_P.setflags(write=False)
    return made_P, 0.0, len(rows[1]), None


def _trained(model: Model, found: LocalResult, public_key: bytes, device: str) -> Trained:
    found.vector.setflags(write=False)
    logits_NK = _logits(model, found.vector, public_key, device) if public_key else None
    return found.vector, found.loss_rms, found.num_samples, logits_NK


def _logits(model: Model, parameters_P: Floats, key: bytes, device: str) -> Floats:
    spec, where = model_spec(model), find_device(device)
    return model_outputs(spec, parameters_P, samples_of(key), batch_size=_EVALUATED, device=where)


def _train_many(calls: Sequence[tuple[Any, ...]]) -> list[Trained]:
    """Train several containers, those that train alike in batched calls, where the model allows it and it pays."""
    alike: dict[tuple[Any, ...], list[int]] = {}
    for index, (model, _, _, _, *how) in enumerate(calls):
        alike.setdefault((model, *how), []).append(index)
    found: dict[int, Trained] = {}
    for (model, steps, public_key, device), indices in alike.items():
        spec, where, chosen = model_spec(model), str(find_device(device)), [calls[index] for index in indices]
        if not can_be_batched(spec, "multiclass", len(chosen), len(chosen[0][1]), where):
            found |= {index: train(*calls[index]) for index in indices}
            continue
        results = train_clients(
            spec,
            [parameters_P for _, parameters_P, *_ in chosen],
            [rows_on(rows_of, key, where) for _, _, key, *_ in chosen],
            seeds=[seed for _, _, _, seed, *_ in chosen],
            weights=[weights_of(key) for _, _, key, *_ in chosen],
            training=local_training(steps),
            device=where,
        )
        for index, one in zip(indices, results, strict=True):
            found[index] = _trained(model, one, public_key, device)
    return [found[index] for index in range(len(calls))]


@together(_train_many)
def train_batched(*call: Any) -> Trained:
    """Train as `train` does; in the simulated runtime in one call with whatever else is under way."""
    return train(*call)


def evaluate(model: Model, parameters_P: Floats, key: bytes, device: str = "cpu", metric: str = "") -> dict[str, float]:
    """Return the metrics of a model on some rows, a user's too."""
    labels_N, logits_NK = rows_of(key)[1], _logits(model, parameters_P, key, device)
    found = task_metrics("multiclass", labels_N, logits_NK)
    if metric and np.isfinite(logits_NK).all():
        found |= user_metrics("multiclass", labels_N, logits_NK, metric)
    return known(found)


def distilled(
    model: Model, parameters_P: Floats, key: bytes, target_NK: Floats, seed: int, steps: Steps, device: str
) -> Floats:
    """Fit a model to class probabilities of the public rows (FedHKT)."""
    training, where = local_training(steps), find_device(device)
    found = distil(
        model_spec(model), parameters_P, samples_of(key), target_NK, seed=seed, training=training, device=where
    )
    found.vector.setflags(write=False)
    return found.vector


def begin_training(
    actor: Actor,
    config: NebulaFLConfig,
    model: Model,
    container: str,
    key: bytes,
    run_seed: int,
    order: ContainerOrder,
    public_key: bytes = b"",
) -> Job:
    """Let an actor begin a container's training; the container and its turn decide the order of samples."""
    secret: tuple[int, ...] = ()
    if config.is_noised:
        if order.number > 0:  # what is tried is kept nowhere
            actor.release("a training", f"{container} {order.number}")
        if actor.draws_reproducibly:
            drawn = actor.noise_rng(f"{container} {order.number} {order.turn}").integers(0, 2**63, 4)
            secret = tuple(drawn.tolist())
    return actor.begin(
        job_key(order.number),
        train_batched if config.together else train,
        model,
        order.parameters,
        key,
        derived_seed(run_seed, container, f"training {order.turn}"),
        steps_of(config, order.rate_factor),
        public_key,
        config.device,
        *noise_of(config, secret),
        work=Work(TRAINING, order.seconds),
    )


def job_key(number: int) -> str:
    """Return the name of a training as a job."""
    return f"training-{number:08d}"


# --- trainings under way ---


class LeaseBook(Protocol):
    """Who is told of hardware that is let: the auditor."""

    async def open_lease(self, news: LeaseOpened) -> None:
        """Note that a unit was let."""

    async def close_lease(self, news: LeaseClosed) -> None:
        """Note that it came back."""


class Trainings:
    """The trainings of one center: its scheduler's decisions as work in flight, and their hardware on the bill.

    Args:
        run_seed: seed of the run, from which the order of a container's samples is made.
        gap_of: version gap of a slot that gave none.
        broken: called with the request of each training that has to be done again.
        spent: called with each container that has trained as often as `max_epsilon` allows.
        order: hands a training to a container that is a process of its own; None: containers are in this process.
    """

    scheduler: Scheduler
    """From `learn` on, before which nothing can be asked for."""
    model: Model
    reading: Reading

    def __init__(
        self,
        actor: Actor,
        config: NebulaFLConfig,
        part: HorizontalPart,
        run_seed: int,
        book: LeaseBook,
        *,
        gap_of: Callable[[int], float],
        done: Callable[[Assignment, Request, Trained], None],
        broken: Callable[[Request], None],
        spent: Callable[[int], None],
        order: Callable[[str, ContainerOrder], Awaitable[None]] | None,
    ) -> None:
        find_device(config.device)  # one that is not there is told before anything is trained
        self.labels = [np.asarray(source.labels(), np.int64) for source in part.clients]
        self.keys = [rows_key(source, actor.scope) for source in part.clients]
        self.names: list[str] = []
        self.sizes: list[int] = []
        """Samples of each container."""
        self.began_at: float | None = None
        self.training_seconds = 0.0
        """Of a local training as it was tried, 0 where no time follows them."""
        self.stopped = False
        self.num_done = self.num_restored = 0
        self._actor, self._config, self._part, self._book = actor, config, part, book
        self._public_key = rows_key(part.public, actor.scope) if part.public is not None else b""
        self._run_seed, self._gap_of, self._done, self._broken, self._order = run_seed, gap_of, done, broken, order
        self._spent = spent
        if order is None:
            names = [f"{actor.name}/{number}" for number in range(len(part.clients))]
            keys = {} if part.shape else dict(zip(names, self.keys, strict=True))
            shapes = {name: rows_of(key)[0].shape[1:] for name, key in keys.items()}
            self.learn(dict(zip(names, map(len, self.labels), strict=True)), shapes, reading_of(part, actor.scope))

    def learn(self, sizes: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]], reading: Reading) -> None:
        """Learn what the containers hold, by name, and set hardware up for them.

        Raises:
            BadInput: their tables have different columns.
        """
        actor, config = self._actor, self._config
        check_widths({name: shape[0] for name, shape in shapes.items() if len(shape) == 1})
        self.names, self.sizes = list(sizes), list(sizes.values())
        self.model, self.reading = run_model(config, self._part, next(iter(shapes.values()), ())), reading
        catalogue = catalogue_for(config, model_spec(self.model))
        most = [config.most_trainings(size) for size in self.sizes]
        self._check_noise(most)
        self.scheduler = Scheduler(
            catalogue.types_of(actor.name),
            catalogue.centers[actor.name],
            self.sizes,
            model=self.model[0],
            local_epochs=config.local_epochs,
            work_factor=config.work_factor,
            spread=catalogue.spread,
            rules=config.rules,
            paper_literal=config.paper_literal,
            generator=actor.rng("decisions"),
            most=most,
        )

    def _check_noise(self, most: Sequence[int | None]) -> None:
        """Check, before anything leaves, that the model can be trained under noise, and that there is a budget for it.

        Raises:
            BadInput: it cannot, or one training costs more than a container may spend.
        """
        config, spec = self._config, model_spec(self.model)
        if config.record_clip_norm is not None:
            check_private(spec)
        elif config.client_clip_norm is not None and statistics_mask(spec).any():
            raise BadInput(
                f"client_clip_norm: not allowed with {spec.name}, whose running statistics are no changes along "
                "gradients; use group normalisation (normalisation=group, torch.nn.GroupNorm)"
            )
        if 0 in most:
            name, size = self.names[most.index(0)], self.sizes[most.index(0)]
            raise BadInput(
                f"max_epsilon: one training costs {name} epsilon {config.epsilon_of(1, size):.4g} at delta "
                f"{config.delta:g}, more than {config.max_epsilon:g}; use a larger "
                f"{'record' if config.record_clip_norm else 'client'}_noise_multiplier"
            )

    def privacy_line(self, num_trainings: Sequence[int], *, is_restored: bool) -> PrivacyRecord:
        """Return the center's line of the privacy ledger, for so many trainings of each container."""
        config, party, message_type = self._config, self._actor.party, "MasterModel"
        if config.algorithm != "nebulafl":
            message_type = "RoundResult" if config.algorithm in BY_CENTER else "TrainingResult"
        if (privacy := config.record_privacy) is None:
            client = ClientPrivacy(config.client_noise_multiplier)
            whole = f"noise where the container is; all trainings of the center together: {sum(num_trainings)}"
            return client.record(party, message_type, max(num_trainings), config.delta, whole, is_restored=is_restored)
        steps = max(count * privacy.num_steps(size) for count, size in zip(num_trainings, self.sizes, strict=True))
        rate = privacy.sample_rate(min(self.sizes))
        return privacy.record(party, message_type, rate, steps, config.delta, is_restored=is_restored)

    def trainings_made(self) -> list[int]:
        """Return how often each container was chosen, be it for a training that was given up."""
        return list(map(int, self.scheduler.table.counts)) if self.names else [0]

    def most_trainings(self) -> list[int]:
        """Return how often each may be chosen; empty where nothing bounds it, or before it is known."""
        return [most for most in (self.scheduler.table.most if self.names else ()) if most is not None]

    @property
    def now(self) -> float:
        """Seconds since every center was there."""
        return self._actor.clock.now() - (self.began_at or 0.0)

    def open(self) -> None:
        """Admit containers, and take up what a snapshot left in flight."""
        self.num_restored = self.num_done
        self._admit()
        now = self._actor.clock.now()
        for number in self.scheduler.dropped:
            self._actor.background(self._drain(number))
        for slot, assignment in [] if self._order else list(self.scheduler.running.items()):
            job = self._actor.job(job_key(assignment.number))
            if job is not None and job.due >= now:
                self._actor.background(self._train(slot, assignment.number))
            else:
                # its process died with this training: it is paid for and begun again
                self._break(slot)
        self.pump()

    def timed(self) -> NebulaFLConfig:
        """Take over the times of the run, and return the configuration that has them in numbers."""
        self._config = self._config.timed(self.training_seconds)
        return self._config

    def admitted(self) -> list[int]:
        """Return the containers that may train, before the run begins."""
        self._admit()
        return self.scheduler.table.idle()

    def trial(self, container: int) -> ContainerOrder:
        """Return the order of a training that is tried: it counts nowhere."""
        seconds = float(self.scheduler.table.predicted[:, container].mean())
        start_P = initial_parameters(self.model, self._run_seed)
        return ContainerOrder(-1 - container, 0, seconds, 1.0, start_P)

    def _admit(self) -> None:
        attest = attestation_hook(self._config.attestation)
        if attest is None:
            return
        passed = [attest(name, secrets.token_bytes(16)) for name in self.names]
        if not any(passed):
            raise BadInput(
                f"attestation: {self._config.attestation!r} lets no container of {self._actor.name} pass; "
                "at least one must"
            )
        for container in np.flatnonzero(~np.array(passed)).tolist():
            self.scheduler.table.lose(container)

    def ask(self, request: Request) -> None:
        """Let a slot be trained as soon as there is a container and hardware for it."""
        self.scheduler.request(request)
        self.pump()

    def pump(self) -> None:
        """Start whatever can be started now."""
        for assignment in self.scheduler.assign(self._actor.clock.now(), self._gap_of):
            request, container = self.scheduler.requests[assignment.slot], self.names[assignment.container]
            rate = request.rate_factor * (1.0 if request.has_schedule else self._config.rate_at(self.now))
            order = ContainerOrder(assignment.number, assignment.turn, assignment.seconds, rate, request.parameters)
            if self._order is not None:
                self._actor.background(self._order(container, order))
            else:
                key = self.keys[assignment.container]
                begin_training(
                    self._actor, self._config, self.model, container, key, self._run_seed, order, self._public_key
                )
                self._actor.background(self._train(assignment.slot, assignment.number))
            self._let(assignment, container)

    def _let(self, assignment: Assignment, container: str) -> None:
        name, number = self._actor.name, assignment.number
        lease = LeaseOpened(name, number, assignment.unit, container, assignment.start, assignment.price)
        self._actor.background(self._book.open_lease(lease))

    async def _train(self, slot: int, number: int) -> None:
        job = self._actor.job(job_key(number))
        assert job is not None
        trained = await job
        now_running = self.scheduler.running.get(slot)
        if now_running is None or now_running.number != number:
            self.scheduler.dropped.remove(number)
            return
        self._finish(slot, trained)

    def take(self, container: str, result: ContainerResult) -> None:
        """Take what a container's own process trained; of a training that was given up nothing is taken."""
        for slot, assignment in self.scheduler.running.items():
            if assignment.number == result.number and self.names[assignment.container] == container:
                self._finish(slot, (result.parameters, result.loss_rms, result.num_samples, None))
                return

    def begin_again(self) -> None:
        """Give up what containers' own processes were told by the process whose place this one takes."""
        for slot in list(self.scheduler.running):
            self._break(slot)

    def _finish(self, slot: int, trained: Trained) -> None:
        assignment, request = self.scheduler.finish(slot, self._actor.clock.now())
        self._close(assignment, useful=True)
        self.num_done += 1
        self._let_go(assignment.container)
        self._done(assignment, request, trained)
        self.pump()

    def _let_go(self, container: int) -> None:
        """Take out a container that has trained as often as it may."""
        table = self.scheduler.table
        if table.spent[container] and not table.lost[container]:
            self._spent(container)

    async def _drain(self, number: int) -> None:
        job = self._actor.job(job_key(number))
        if job is not None:
            await job
        self.scheduler.dropped.remove(number)

    def lose(self, container: int) -> Request | None:
        """Take a container out; return the request whose training it broke off."""
        given_up = self.scheduler.lose(container)
        if given_up is None:
            return None
        self._close(given_up[0], useful=False)
        self._forget(given_up[0].number)
        self.pump()
        return given_up[1]

    def regain(self, container: int) -> None:
        """Take a container in again, unless it has trained as often as it may."""
        if self.scheduler.table.spent[container]:
            return
        self.scheduler.table.regain(container)
        self.pump()

    def withdraw(self, slot: int) -> None:
        """Stop a slot's training, or its wait for one."""
        if slot in self.scheduler.running:
            given_up = self.scheduler.give_up(slot)[0]
            self._close(given_up, useful=False)
            self._forget(given_up.number)
        elif slot in self.scheduler.requests:
            self.scheduler.withdraw(slot)

    def stop(self) -> None:
        """Stop everything; hardware is paid until now."""
        self.stopped = True
        for slot in list(self.scheduler.requests):
            self.withdraw(slot)

    def _break(self, slot: int) -> None:
        assignment, request = self.scheduler.give_up(slot)
        self._close(assignment, useful=False)
        if self._order is None and self._actor.job(job_key(assignment.number)) is not None:
            self._actor.background(self._drain(assignment.number))
        else:
            self.scheduler.dropped.remove(assignment.number)
        self._broken(request)
        self._let_go(assignment.container)

    def _forget(self, number: int) -> None:
        """Wait no more for a training that was given up, where its end is the business of another process."""
        if self._order is not None:
            self.scheduler.dropped.remove(number)

    def _close(self, assignment: Assignment, *, useful: bool) -> None:
        now, actor = self._actor.clock.now(), self._actor
        if useful:  # what was given up is put on the timeline with its rental, by the auditor
            where = f"{self.names[assignment.container]} on {assignment.unit}"
            actor.record_span("train", where, assignment.start, now)
        actor.background(self._book.close_lease(LeaseClosed(actor.name, assignment.number, now, useful)))

    # --- snapshots ---

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a snapshot needs."""
        known = bool(self.names)  # before they told of themselves there is nothing to keep
        return {
            "containers": [self.names, self.sizes, self.model, self.reading.text] if known else [],
            "scheduler": self.scheduler.state_dict() if known else {},
            "began_at": self.began_at,
            "training_seconds": self.training_seconds,
            "stopped": self.stopped,
            "num_done": self.num_done,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put a snapshot back."""
        if state["containers"]:
            names, sizes, model, reading = state["containers"]
            shapes = {} if self._part.shape else dict.fromkeys(names, tuple(model[1]))
            self.learn(dict(zip(names, sizes, strict=True)), shapes, read_reading(reading))
            self.scheduler.load_state_dict(state["scheduler"])
        self.began_at, self.stopped, self.num_done = state["began_at"], state["stopped"], state["num_done"]
        self.training_seconds = state.get("training_seconds", 0.0)  # an older run had its times in numbers


def attestation_hook(address: str) -> Attestation | None:
    """Import the hook that a config names; None when it names none.

    Raises:
        BadInput: nothing callable is there.
    """
    if not address:
        return None
    hook: Attestation = load_code("attestation", address)
    return hook
