"""The server and the sites: each method unpacks a message, calls a function of `algorithm`, packs a message.

A site with several clients sends their mean change alone, and an aggregator that of its sites; with
`secure_aggregation` the server reads the sum over all sites only. What depends on chance is derived from (run, client
or server, round), so that it is the same whichever site a client is at, and after a resume.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from fedactors.actors.actor import Server
from fedactors.actors.context import Work, derived_rng, derived_seed
from fedactors.actors.groups import ActorGroup
from fedactors.actors.remote import DRIVER, SERVER, remote
from fedactors.data.layouts.horizontal import (
    HorizontalFile,
    HorizontalPart,
    HorizontalSource,
    Reading,
    check_names,
    check_widths,
    csv_text,
    read_reading,
    reading_of,
    rows_key,
    rows_of,
    weights_of,
)
from fedactors.errors import BadInput, CallTimeout, PartyLost, Refused
from fedactors.learning.local_training import LocalTraining, check_private
from fedactors.learning.metrics import HEADLINES, LOCAL_BASELINE, METRICS, known, local_baseline
from fedactors.learning.models import ModelSpec, num_terms
from fedactors.learning.network import find_device, initial_vector, local_entries, local_mask
from fedactors.learning.optimizers import check_summed_steps
from fedactors.learning.user_models import base_of, check_base
from fedactors.privacy.accounting import PrivacyRecord, without_guarantee
from fedactors.privacy.mechanisms import add_gaussian
from fedactors.protocols.horizontal import algorithm, client_dp, messages
from fedactors.protocols.horizontal.algorithm import NOTHING, ServerModel
from fedactors.protocols.horizontal.config import HorizontalConfig
from fedactors.protocols.horizontal.data import check_code, groups_of, model_spec
from fedactors.protocols.horizontal.messages import ColumnMeans, ColumnScale, Floats, PrivateOrder, TrainOrder
from fedactors.protocols.horizontal.standardisation import (
    Doubles,
    as_read,
    check_summed,
    column_sums,
    digits_key,
    means_of,
    no_sums,
    numbers_of,
    scale_of,
    scaled_numbers,
    standardised,
    steps_point,
    words_of,
)
from fedactors.runtime.rounds import Remedy
from fedactors.secure_sums.actors import SecureSummand, SecureSums, check_fits, in_turn
from fedactors.secure_sums.messages import Masked, MaskedSum
from fedactors.secure_sums.primitives import FixedPoint, count_point
from fedactors.secure_sums.protocol import TooFewLeft, added
from fedactors.validation import shown

T = TypeVar("T")
_log = logging.getLogger(__name__)
SERVER_NAME = "server"
FEWEST_OF_GROUP = 2
"""Sites of which an aggregator passes on a mean: that of one is its own change."""
MOST_ALONE = 10
"""Clients of a run that train a model of their own beside the joint one."""


def facts_of(part: HorizontalPart, inputs: tuple[int, ...]) -> dict[str, Any]:
    """Return what a model is made for: shape of a sample, task, number of classes; shape of targets that have one."""
    facts = {"inputs": inputs, "task": part.task, "num_classes": part.num_classes}
    return {**facts, "targets": part.targets} if part.targets else facts


class ClientProcess(SecureSummand):
    """One organisation's clients."""

    is_account_level = False  # the most of its clients' rows
    state: ClassVar[tuple[str, ...]] = (
        "controls",
        "total_weight",
        "base",
        "scale",
        "target",
        "reading",
        "num_private",
        "num_trained",
        "personal",
        "best",
        *SecureSummand.state,
    )

    def __init__(
        self, config: HorizontalConfig, part: HorizontalPart, first: int, run_seed: int, sites: tuple[str, ...]
    ) -> None:
        quorum = config.min_sites
        super().__init__(
            sites,
            survives_loss=config.on_party_loss == "continue",
            fewest=quorum or 0,
            may_return=quorum is not None,
        )
        self.total_weight = 0.0
        """Of all sites' clients, under masks."""
        self._config, self._part, self._first, self._run_seed = config, part, first, run_seed
        self.controls: dict[int, Floats] = {}
        """SCAFFOLD's c_i, of the clients that have trained."""
        self.base = ""
        """A digest of what of the model is not trained; empty before it is told."""
        self.scale: tuple[tuple[float, ...], ...] = ()
        """Mean and deviation of each number of a row; none before they are told, or where nothing is standardised."""
        self.target: tuple[float, float] = (0.0, 1.0)
        """Mean and deviation of a regression's targets, before and without them 0 and 1."""
        self.reading = ""
        """How the own rows are read (`fedactors.data.layouts.horizontal`), for predictions of others."""
        self.num_private = 0
        """Rounds in which own clients were in a noised sum."""
        self.num_trained: dict[int, int] = {}
        """Rounds of each own client that trained under noise."""
        self.personal: dict[int, Floats] = {}
        """What each client that has trained keeps of its model: local parameters (L), or Ditto's own model (P)."""
        self.best: dict[str, Any] = {}
        """The clients' own models of the round that did best, and what they are made for; none before it."""
        self._measured: Floats = NOTHING
        self._first_kept: Floats = NOTHING
        self.last_round = 0
        """Of the run, for which the own change has left, be it after the checkpoint that this process began with."""
        self._is_restored = False
        self._has_summed = False
        """Whether sums of the own rows left before this process began, which may not know among whom."""

    @property
    def server(self) -> str:
        """Name of the one server."""
        return self.adder

    @property
    def server_or_aggregator(self) -> str:
        """Name of who sends the model and takes the change: the own aggregator, else the server."""
        groups = groups_of(self._config, self.clients)
        return next((name for name, sites in groups.items() if self.name in sites), self.server)

    async def load(self) -> None:
        """Open the own clients' rows, and find the device."""
        config, part = self._config, self._part
        self._device = str(find_device(config.device))
        self._find_rows()
        rows = [rows_of(key) for key in self._keys]
        shapes = {x.shape[1:] for x, _ in rows}
        if len(shapes) > 1 or (part.shape and shapes != {part.shape}):
            raise BadInput(f"data: {self.name} holds samples of shapes {sorted(shapes)}; all must be of one")
        self._sizes = [len(x) for x, _ in rows]
        if part.validation and config.is_noised:
            name = "client_clip_norm" if config.is_private else "record_clip_norm"
            raise BadInput(f"{name}: not allowed with validation rows of the clients, whose scores have no noise")
        for key in self._validation:
            rows_of(key)
        self._inputs = shapes.pop()
        # each client may be as large as its own rows say, so that nobody tells anybody how many there are
        self._steps = [
            algorithm.local_steps(
                config, part.task, part.num_classes, self._inputs, y, len(self.clients) * config.clients_per_site
            )
            for _, y in rows
        ]
        self._reading = reading_of(part, self.scope)
        self.reading = self._reading.text
        self._spec = model_spec(config, **self._facts)
        self._check_record_privacy()
        if config.secure_aggregation and not config.is_noised:
            for client in range(len(self._sizes)):
                rule = self._training(client, 1).optimizer
                check_summed_steps(rule, self._num_steps(client), f"a client of {self.name}")

    def _check_record_privacy(self) -> None:
        """Check, before anything leaves, that the model has gradients of rows, and what all rounds cost a row."""
        config = self._config
        if (privacy := config.record_privacy) is None:
            return
        check_private(self._spec)
        if config.together and len(self._keys) > 1:
            _log.warning("%s: clients train one after the other: each row has a gradient of its own", self.name)
        # no row is with two clients: the largest rate and the most steps of any bound what each row pays
        steps = config.num_rounds * max(privacy.num_steps(size) for size in self._sizes)
        cost = privacy.epsilon(privacy.sample_rate(min(self._sizes)), steps, config.delta)
        if config.max_epsilon is not None and cost > config.max_epsilon:
            raise BadInput(
                f"max_epsilon: {config.num_rounds} rounds cost a row of {self.name} epsilon {cost:.4g} at delta "
                f"{config.delta:g}, more than {config.max_epsilon:g}; use fewer rounds, or a larger "
                "record_noise_multiplier"
            )

    @property
    def _facts(self) -> dict[str, Any]:
        return facts_of(self._part, self._inputs)

    @remote(caller=SERVER, only="server", once=True)
    async def introduce(self) -> messages.Introduction:
        """Say what the server must know before the first round."""
        names = () if self._part.columns else self._reading.names
        csv, self.base = csv_text(self._reading.csv.get(self.party)), base_of(self._spec)
        return messages.Introduction(len(self._keys), 0 if self._part.shape else self._inputs[0], names, csv, self.base)

    async def open(self) -> None:
        """Check, of a run that goes on, that what is not trained is what it was."""
        self._is_restored = self._goes_on and not self._is_journaled
        if self._is_journaled:  # no round is done twice, so that no values of before are in another sum
            self.fellows.only = None
        if self.base:
            check_base(self._spec, self.base, "before the run was resumed")
        self._find_rows()

    @property
    def _is_journaled(self) -> bool:
        """Whether the site keeps a journal of what left, which no checkpoint rolls back (`Actor.catch_up`)."""
        return self._config.min_sites is not None and self._context.keeps_journal

    def catch_up(self, left: Mapping[str, tuple[int, int]]) -> None:
        """Count what left since the checkpoint, under noise too."""
        self._has_summed = not left.keys().isdisjoint(("sum_columns", "weigh"))
        answers, self.last_round = max(left.get(name, (0, 0)) for name in ("train", "train_private"))
        if self._config.is_private:
            self.num_private = max(self.num_private, answers)
        elif self._config.record_privacy is not None:
            for client in range(len(self._part.clients)):
                self.num_trained[client] = max(self.num_trained.get(client, 0), answers)

    @remote(caller=SERVER, only="server", unbounded="a number of rounds, which the server ordered itself")
    async def tell_last_round(self) -> messages.LastRound:
        """Say which round the own change last left for."""
        return messages.LastRound(self.last_round)

    def _find_rows(self) -> None:
        """Name the own rows, as they are standardised."""
        self._keys, self._validation = (
            [rows_key(standardised(source, *self.scale) if self.scale else source, self.scope) for source in sources]
            for sources in (self._part.clients, self._part.validation)
        )

    @remote(caller=SERVER, only="server", at_most=lambda config: 2 * config.measures_columns)
    @in_turn
    async def sum_columns(self, order: messages.ColumnMeans) -> messages.ColumnSums | Masked:
        """Give sums of the columns of all own clients' rows to train on: of the numbers, then about the means."""
        self._check_no_return()
        scaled_D = scaled_numbers(self._config, self._reading)
        rows = [rows_of(key) for key in self._keys]
        targets = [y for _, y in rows] if self._config.measures_targets(self._part.task, self._part.targets) else []
        if not scaled_D.any() and not targets:
            raise Refused(self.caller, f"asks {self.name} for sums of columns, none of which is standardised")
        at_random, num_sums = None, int(scaled_D.sum()) + bool(targets)
        try:
            sums = column_sums([x for x, _ in rows], scaled_D, order.values, targets)
        except BadInput as error:
            if not self._config.secure_aggregation:
                raise
            _log.warning("%s: %s", self.name, error)
            sums, at_random = no_sums(1 + num_sums * (2 if order.values.size else 1))
        if not self._config.secure_aggregation:
            return messages.ColumnSums(sums)
        heard, point = self.heard("sum_columns", order), steps_point(len(self.clients))
        words = words_of(sums, digits_key(self.seed, order.values))
        how: dict[str, Any] = {"what": "sums of columns", "heard": heard, "at_random": at_random}
        return self.masked(words, point, self._first_id, **how)

    def _check_no_return(self) -> None:
        """Refuse sums before the first round to who asks for them again: beside the first they would show a site's."""
        if self._has_summed:
            raise Refused(self.caller, f"asks {self.name} for sums of its rows after a restart; approved: before that")

    @property
    def _first_id(self) -> str | None:
        """What values before the first round are: with a quorum, of whom all need be there, among the same sites."""
        return None if self._config.min_sites is None else "rows"

    @remote(caller=SERVER, only="server", at_most=lambda config: int(config.measures_columns))
    @in_turn
    async def take_scale(self, found: messages.ColumnScale) -> None:
        """Standardise the own rows, once."""
        if self.scale:
            raise Refused(self.caller, f"tells {self.name} the scale of columns a second time")
        self._check_scale(found)
        self.heard("take_scale", found)
        self.scale = (found.mean, found.deviation)
        if self._config.measures_targets(self._part.task, self._part.targets):
            self.target = (found.target[0], found.target[1])
        self._find_rows()

    def _check_scale(self, found: messages.ColumnScale) -> None:
        """Refuse a scale of what is not standardised, or one that is none.

        Raises:
            Refused: a number is infinite or none, or a deviation not above 0, or a column that stays is moved.
        """
        scaled_D = scaled_numbers(self._config, self._reading)
        mean_D, deviation_D = np.asarray(found.mean), np.asarray(found.deviation)
        mean, deviation = found.target
        stays = (mean_D[~scaled_D] == 0).all() and (deviation_D[~scaled_D] == 1).all()
        if not self._config.measures_targets(self._part.task, self._part.targets):
            stays = stays and (mean, deviation) == (0.0, 1.0)
        if not (stays and all(np.isfinite([*mean_D, *deviation_D, mean])) and 0 < deviation < math.inf):
            raise Refused(self.caller, f"tells {self.name} a scale of columns that is none, or of some that stay")
        if not (deviation_D > 0).all():
            raise Refused(self.caller, f"tells {self.name} a scale of columns with deviations that are not above 0")

    @remote(
        caller=SERVER, only="server", at_most=lambda config: int(config.secure_aggregation and not config.is_private)
    )
    @in_turn
    async def weigh(self) -> Masked:
        """Give the weight of all own clients, under masks."""
        self._check_no_return()
        if self.total_weight:  # a sum that all have read already
            raise Refused(self.caller, f"asks {self.name} for its weight after the sum of all; approved: before that")
        heard, point = self.heard("weigh"), count_point(len(self.clients))
        weight = float(sum(self._sizes) if self._config.counts_samples else len(self._sizes))
        return self.masked(np.array([weight]), point, self._first_id, what="the weight", heard=heard)

    @remote(
        caller=SERVER, only="server", at_most=lambda config: int(config.secure_aggregation and not config.is_private)
    )
    @in_turn
    async def take_weight(self, total: messages.TotalWeight) -> None:
        """Learn what all sites' clients weigh together, once."""
        if self.total_weight:  # another one would scale the same change anew, for a second sum
            raise Refused(self.caller, f"tells {self.name} what all weigh a second time")
        self.heard("take_weight", total)
        self.check_total(self._fewest_summed, total.value, self._grid)
        self.total_weight = total.value

    @property
    def _grid(self) -> FixedPoint:
        """How changes become words."""
        return FixedPoint(limit=self._config.secure_range, num_clients=len(self.clients))

    @property
    def _fewest_summed(self) -> float:
        """What the own clients of a round weigh at least: where some are drawn, the smallest."""
        weights = self._sizes if self._config.counts_samples else [1] * len(self._sizes)
        return float(sum(weights) if self._config.clients_per_round is None else min(weights))

    @property
    def _told_before(self) -> tuple[Any, ...]:
        """What a change follows from beside its order: with a quorum a site remembers what it heard last only."""
        return self.scale, self.target, self.total_weight

    @remote(caller=SERVER, only="server_or_aggregator", at_most="num_private_rounds", of="round")
    @in_turn
    async def train_private(self, order: messages.PrivateOrder) -> messages.ClippedChanges | Masked:
        """Let the clients that are wanted train from the server's model; say what changed, clipped and summed."""
        config = self._config
        self.release("a change", round=order.round, last_round=config.num_rounds)
        self._check_wanted(order.round, order.clients)
        self._check_clip(order)
        told = order.round, order.parameters, order.clip_norm, order.bit_share
        heard = self.heard("train_private", *told, *self._told_before)
        clients = [client for client in order.clients if not self._drops_out(order.round, client)]
        self.num_private += bool(clients)
        num_rows = sum(self._sizes[client] * self._steps[client].num_epochs for client in clients)
        values = await self.compute(
            client_dp.private_sum,
            self._spec,
            order.parameters,
            [self._keys[client] for client in clients],
            self._seeds(clients, order.round),
            algorithm.local_training(config, self._part.task, order.round),
            order.clip_norm,
            order.bit_share,
            config.together,
            self._device,
            work=Work("train", float(num_rows * order.parameters.size)),
        )
        if not config.secure_aggregation:
            return messages.ClippedChanges(values)
        point, sigma = (
            client_dp.point_of(config, len(self.clients), config.clients_per_site),
            config.client_noise_multiplier,
        )
        return self.masked(values, point, f"{order.round}", sigma, what="clipped changes", heard=heard)

    def _check_clip(self, order: messages.PrivateOrder) -> None:
        """Refuse another clip norm than the settings', or one that no norm is, where it follows the changes.

        Raises:
            Refused: naming what is approved.
        """
        config, clip_norm, bit = self._config, order.clip_norm, order.bit_share
        follows = config.clip_quantile is not None
        approved = "one above 0, share 0 to 0.5" if follows else f"{config.client_clip_norm:g}, share 0"
        is_one = 0 < clip_norm < math.inf and 0 <= bit <= client_dp.LARGEST_BIT
        if not (is_one if follows else (clip_norm, bit) == (config.client_clip_norm, 0.0)):
            said = f"orders {self.name} to clip to {clip_norm:g}, with a share of {bit:g}"
            raise Refused(self.caller, f"{said}; approved: {approved} (client_clip_norm)")

    @remote(caller=SERVER, only="server", at_most=lambda config: int(config.is_noised))
    async def account(self) -> None:
        """Write what was released, and what that guarantees, to the privacy ledger."""
        made = self._line_of(self.num_private, self.num_trained, is_restored=self._is_restored)
        self.record_privacy(without_guarantee(made) if self.draws_reproducibly else made)

    def planned_privacy(self) -> Iterable[PrivacyRecord]:
        """Return what all rounds release, be every client in each of them."""
        num_rounds = self._config.num_rounds
        if not self._config.is_noised or not hasattr(self, "_sizes"):
            return ()
        return [self._line_of(num_rounds, dict.fromkeys(range(len(self._sizes)), num_rounds), is_restored=False)]

    def _line_of(self, num_rounds: int, num_trained: Mapping[int, int], *, is_restored: bool) -> PrivacyRecord:
        """Return the line of the privacy ledger after so many noised sums, or so many rounds of each own client."""
        config, privacy = self._config, self._config.record_privacy
        if privacy is None:
            return client_dp.record(config, self.party, num_rounds, is_restored=is_restored, is_server=False)
        steps = max(num_trained.get(client, 0) * privacy.num_steps(size) for client, size in enumerate(self._sizes))
        rate = privacy.sample_rate(min(self._sizes))
        return privacy.record(self.party, "Change", rate, steps, config.delta, is_restored=is_restored)

    @remote(caller=SERVER, only="server_or_aggregator", at_most="num_open_rounds", of="round")
    @in_turn
    async def train(self, order: messages.TrainOrder) -> messages.Change | Masked:
        """Let the clients that are wanted train from the server's model; say what changed."""
        self.release("a change", round=order.round, last_round=self._config.num_rounds)
        heard = self.heard("train", order.round, order.parameters, order.control, *self._told_before)
        change = await self._train(order)
        if not self._config.secure_aggregation:
            return change
        part = algorithm.summand(change, self.total_weight, order, self._config.secure_range)
        grain = algorithm.grains(change, self.total_weight, order)
        # one id a round: what is asked for again must be summed among the same sites
        how: dict[str, Any] = {"what": "a change", "heard": heard, "flag": -1}
        return self.masked_if_it_fits(part, self._grid, f"{order.round}", grain=grain, **how)

    def _num_steps(self, client: int) -> int:
        """Return the steps that a client takes in a round."""
        how = self._training(client, 1)
        return -(-self._sizes[client] // how.batch_size) * how.num_epochs

    @remote(
        caller=SERVER,
        only="server_or_aggregator",
        at_most=lambda config: 0 if config.secure_aggregation else config.num_measurements,
    )
    async def measure(self, order: messages.MeasureOrder) -> messages.LocalScores:
        """Measure a model, or each client's own with what is shared of it, on the own validation rows."""
        config, scores = self._config, []
        self._measured = order.parameters
        for client, key in enumerate(self._validation):
            vector_P = self._model_of(client, order.parameters)
            num_rows = num_terms(self._part.task, rows_of(key)[1])
            arguments = (self._spec, vector_P, key, self._part.task, config.user_metric, self._device, self.target)
            work = Work("measure", float(num_rows * vector_P.size))
            scores.append((num_rows, (await self.compute(algorithm.measure, *arguments, work=work))[0]))
        means = algorithm.mean_scores(scores) if len(scores) > 1 else scores[0][1]
        return messages.LocalScores(sum(rows for rows, _ in scores), means)

    @remote(caller=SERVER, only="server", at_most=lambda config: config.num_measurements if config.is_personal else 0)
    async def remember(self) -> None:
        """Keep the clients' own models as they were just measured: the best so far."""
        models = {
            str(self._first + client): self._model_of(client, self._measured) for client in range(len(self._keys))
        }
        reading = self._reading
        if self.scale:
            mean, deviation = self.target
            reading = replace(reading, mean=self.scale[0], deviation=self.scale[1])
            reading = replace(reading, label_mean=mean, label_deviation=deviation)
        self.best = {"models": models, "facts": self._facts, "reading": reading.text, "base": self.base}

    def _model_of(self, client: int, shared_S: Floats) -> Floats:
        """Return a client's model (P): the server's, its own with what is shared, or Ditto's own."""
        config = self._config
        if not config.is_personal:
            return shared_S
        if config.algorithm == "ditto":
            return self._kept(client)
        return algorithm.joined(self._spec, config.local_parameters, shared_S, self._kept(client))

    def _kept(self, client: int) -> Floats:
        """Return what a client keeps of its model; before it has trained, what all begin with."""
        if client in self.personal:
            return self.personal[client]
        if not self._first_kept.size:
            first_P = initial_vector(self._spec, derived_seed(self._run_seed, "all clients", "model"))
            patterns = self._config.local_parameters
            self._first_kept = first_P[local_mask(self._spec, patterns)] if patterns else first_P
        return self._first_kept

    def known_sizes(self, message: Any, sender: str) -> dict[str, int]:
        """Return how many numbers clients share of their models, and how many columns are standardised."""
        if isinstance(message, (ColumnMeans, ColumnScale)):
            scaled_D = scaled_numbers(self._config, self._reading)
            with_targets = self._config.measures_targets(self._part.task, self._part.targets)
            size = int(scaled_D.sum()) + with_targets
            return {"columns": size, "numbers of a row": len(scaled_D), "mean and deviation": 2}
        size = int(np.count_nonzero(~local_mask(self._spec, self._config.local_parameters)))
        return {"shared parameters": size, "controls": size if self._config.algorithm == "scaffold" else 0}

    async def _train_personal(self, order: messages.TrainOrder, clients: list[int]) -> None:
        """Let clients train their own models near the server's (Ditto); nothing of them leaves."""
        config = self._config
        num_rows = sum(self._sizes[client] * self._steps[client].num_epochs for client in clients)
        seeds = [derived_seed(self._run_seed, self._client(client), f"own rows {order.round}") for client in clients]
        found = await self.compute(
            algorithm.personal_models,
            self._spec,
            order.parameters,
            [self._kept(client) for client in clients],
            [self._keys[client] for client in clients],
            seeds,
            [self._training(client, order.round) for client in clients],
            config.proximal,
            config.together,
            self._device,
            self.target,
            work=Work("train", float(num_rows * order.parameters.size)),
        )
        if not all(np.isfinite(vector_P).all() for vector_P in found):
            remedy = Remedy("proximal", config.proximal)
            raise remedy.error(order.round, f"an own model at {self.name}", math.nan)
        self.personal |= dict(zip(clients, found, strict=True))

    def _training(self, client: int, round: int) -> LocalTraining:
        """Return how a client trains in a round."""
        return algorithm.local_training(self._config, self._part.task, round, self._steps[client], self._inputs)

    @remote(caller=SERVER, only="server", at_most=lambda config: int(config.measures_alone))
    async def measure_alone(self) -> messages.Baselines:
        """Train a model on each own client's table alone, of the first ten of the run; say how good it is."""
        task, scores = self._part.task, {}
        for client, key in enumerate(self._keys):
            measured = self._rows_to_measure(client)
            if measured is None or len(self._inputs) != 1 or self._first + client >= MOST_ALONE:
                continue
            args = (task, rows_of(key), {"validation": rows_of(measured)}, weights_of(key))
            found = await self.compute(local_baseline, *args, work=Work(LOCAL_BASELINE))
            value = known(found.get("validation", {})).get(HEADLINES[task])
            if value is not None:
                is_site = self._validation and len(self._keys) == 1
                scores[self.name if is_site else f"client-{self._first + client}"] = value
        return messages.Baselines(scores)

    def _rows_to_measure(self, client: int) -> bytes | None:
        """Return the rows that a client's own model is measured on: its validation rows, or a named set's."""
        if self._validation:
            return self._validation[client]
        source = self._part.clients[client]
        if not isinstance(source, HorizontalSource):
            return None
        return rows_key(replace(source, part="validation" if source.validation_size else "test"), self.scope)

    def _check_wanted(self, round: int, clients: tuple[int, ...]) -> None:
        """Refuse an order for other clients than follow from the approved run: of one client a mean is its own change.

        Of a named data set, whose clients are dealt to processes, who is drawn is the server's business.
        """
        config, local = self._config, tuple(range(len(self._keys)))
        expected = local
        if config.client_sampling_rate is not None:  # the trusted server draws in secret
            return
        if config.clients_per_round is not None:
            if not isinstance(self._part.clients[0], HorizontalFile):
                return
            if config.on_party_loss != "stop" and config.min_sites is None:  # they are drawn from who is left
                return
            generator = derived_rng(self._run_seed, "all clients", f"round {round}")
            drawn = algorithm.participants(range(len(self.clients)), config.clients_per_round, generator)
            expected = local if self.clients.index(self.name) in drawn else ()
        if clients != expected:
            asked, approved = (", ".join(map(str, one)) or "none" for one in (clients, expected))
            said = f"orders clients {asked} of {self.name} in round {round}; approved: {approved}"
            raise Refused(self.caller, f"{said} (clients_per_round)")

    async def _train(self, order: messages.TrainOrder) -> messages.Change:
        self._check_wanted(order.round, order.clients)
        config = self._config
        clients = [client for client in order.clients if not self._drops_out(order.round, client)]
        if not clients:
            return messages.Change(0, 0.0, 0.0, NOTHING, NOTHING)
        num_rows = sum(self._sizes[client] * self._steps[client].num_epochs for client in clients)
        trainings = [self._training(client, order.round) for client in clients]
        controls = []
        if config.algorithm == "scaffold":
            controls = [self.controls.get(client, np.zeros_like(order.parameters)) for client in clients]
        found = await self.compute(
            algorithm.train,
            self._spec,
            order.parameters,
            [self._keys[client] for client in clients],
            self._seeds(clients, order.round),
            trainings,
            controls,
            order.control,
            config.counts_samples,
            config.together,
            self._device,
            config.record_privacy,
            [tuple(self.noise_rng(f"{client} {order.round}").integers(0, 2**63, 4).tolist()) for client in clients],
            self.target,
            config.local_parameters,
            [self._kept(client) for client in clients] if config.local_parameters else [],
            work=Work("train", float(num_rows * order.parameters.size)),
        )
        if config.record_privacy is not None:
            self.num_trained |= {client: self.num_trained.get(client, 0) + 1 for client in clients}
        if not math.isfinite(found.loss) and not config.secure_aggregation:  # where a sum alone says so
            remedy = Remedy("learning_rate", config.at(self._inputs).step_size)
            raise remedy.error(order.round, f"{self.name}'s loss", found.loss)
        self.controls |= dict(zip(clients, found.controls, strict=bool(controls)))
        self.personal |= dict(zip(clients, found.local, strict=bool(config.local_parameters)))
        if config.algorithm == "ditto":
            await self._train_personal(order, clients)
        return messages.Change(len(clients), found.weight, found.loss, found.change, found.control_change)

    def _seeds(self, clients: list[int], round: int) -> list[int]:
        return [derived_seed(self._run_seed, self._client(client), f"rows {round}") for client in clients]

    def _client(self, client: int) -> str:
        return f"client {self._first + client}"

    def _drops_out(self, round: int, client: int) -> bool:
        generator = derived_rng(self._run_seed, self._client(client), f"drops out {round}")
        return bool(generator.random() < self._config.dropout_rate)


class Aggregator(Server):
    """It sends the model to its sites, and the server the sum of what they answer; it keeps nothing of a round."""

    def __init__(self, config: HorizontalConfig, sites: tuple[str, ...]) -> None:
        self._config = config
        self.sites: ActorGroup[ClientProcess] = ActorGroup(
            self,
            sites,
            on_loss="drop" if config.on_party_loss == "continue" else "stop",
            timeout=config.client_timeout,
            label="sites",
        )

    @property
    def server(self) -> str:
        """Name of the one server."""
        return SERVER_NAME

    @remote(caller=SERVER, only="server", at_most="num_rounds")
    async def train(self, group: messages.GroupOrder) -> messages.GroupChange | MaskedSum:
        """Let sites train from the server's model; say what changed over all of them, without masks of two or more.

        Where fewer than two of them answer, as others were lost, none has a part; where fewer than two have clients
        that answer, there is no change of this round.
        """
        self._check_sites(group.clients)
        if not self._config.secure_aggregation and len(group.clients) < FEWEST_OF_GROUP:
            said = f"orders {', '.join(group.clients) or 'no site'} alone of {self.name}"
            raise Refused(self.caller, f"{said}; approved: at least {FEWEST_OF_GROUP} of its sites (num_aggregators)")
        orders = {name: replace(group.order, clients=clients) for name, clients in group.clients.items()}
        answers = await self._answers(self.sites.ask_each(ordered, orders))
        work = Work("aggregate", float(group.order.parameters.size * len(answers)))
        expected = Masked if self._config.secure_aggregation else messages.Change
        for name, one in answers.items():
            if not isinstance(one, expected):
                raise Refused(name, f"answers with a {type(one).__name__}; approved: {expected.__name__}")
        if self._config.secure_aggregation:
            if not answers:
                return MaskedSum((), 0, (0,), np.zeros(0, np.uint32))
            return await self.compute(added, answers, work=work)
        changes: dict[str, messages.Change] = answers
        sizes = group.order.parameters.size, NOTHING.size
        if isinstance(group.order, messages.TrainOrder):
            sizes = sizes[0], group.order.control.size
        for name, change in changes.items():
            check_change(self._config, name, change, len(group.clients[name]), *sizes)
        if len(changes) < FEWEST_OF_GROUP:
            _log.warning("%s: one site at most is left, whose change alone is passed on to nobody", self.name)
            return messages.GroupChange((), algorithm.of_group([]))
        num_given = sum(change.num_clients > 0 for change in changes.values())
        given = list(changes.values()) if num_given >= FEWEST_OF_GROUP else []
        return messages.GroupChange(tuple(changes), await self.compute(algorithm.of_group, given, work=work))

    @remote(
        caller=SERVER, only="server", at_most=lambda config: 0 if config.secure_aggregation else config.num_measurements
    )
    async def measure(self, group: messages.GroupMeasureOrder) -> messages.GroupScores:
        """Let sites measure the server's model on their validation rows."""
        self._check_sites(group.sites)
        asking = self.sites.ask(lambda site: site.measure(group.order), of=group.sites)
        return messages.GroupScores(await self._answers(asking))

    async def _answers(self, asking: Awaitable[dict[str, T]]) -> dict[str, T]:
        """Return the sites' answers; none where all of them are lost or late, and the run goes on without them."""
        try:
            return await asking
        except (PartyLost, CallTimeout) as loss:
            if self.sites.on_loss == "stop" or loss.party not in self.sites.names:
                raise
            _log.warning("%s; no site of %s is left", loss, self.name)
            return {}

    def _check_sites(self, sites: Iterable[str]) -> None:
        """Refuse orders for other sites than the approved run gives this aggregator.

        Raises:
            Refused: naming them.
        """
        if others := sorted(set(sites) - set(self.sites.names)):
            said = f"orders {', '.join(others)} of {self.name}"
            raise Refused(self.caller, f"{said}; approved: {', '.join(self.sites.names)} (num_aggregators)")


def ordered(site: ClientProcess, order: Any) -> Awaitable[Any]:
    """Let a site do a round's order."""
    return site.train(order) if isinstance(order, TrainOrder) else site.train_private(order)


def check_change(
    config: HorizontalConfig,
    sender: str,
    change: messages.Change,
    num_wanted: int,
    size: int,
    num_controls: int,
    most_rows: float = math.inf,
) -> None:
    """Refuse a change of more clients than were wanted, of a weight that is none of theirs, or of another size.

    `most_rows`: of all these clients, where that is known.

    Raises:
        Refused: naming the sender.
    """
    number, weight = change.num_clients, change.weight
    is_weight = number <= weight < math.inf and weight <= most_rows if config.counts_samples else weight == number
    is_whole = change.change.size == size and change.control_change.size == num_controls
    if (number and not (is_weight and is_whole)) or not 0 <= number <= num_wanted:
        said = f"sends a change of {number:,} clients, of weight {weight:g} and {change.change.size:,} numbers"
        rows = f" of {most_rows:,.0f} rows" if most_rows < math.inf and config.counts_samples else ""
        raise Refused(sender, f"{said}; wanted: {num_wanted:,} clients{rows}, {size:,} numbers")


class HorizontalServer(Server):
    """The server: it has the model, and the rows that it is measured on."""

    state: ClassVar[tuple[str, ...]] = (
        "model",
        "best",
        "sites",
        "sizes",
        "facts",
        "reading",
        "base",
        "clip_norm",
        "num_private",
        "num_rows",
        "left_out",
    )

    def __init__(self, config: HorizontalConfig, part: HorizontalPart, sites: Mapping[str, int], run_seed: int) -> None:
        self._config, self._part, self._run_seed = config, part, run_seed
        self._num_clients = dict(sites)
        self._num_columns = 0
        """Sums of columns that are asked for."""
        self.model = ServerModel(NOTHING)
        self.best: Floats = NOTHING
        """The parameters that did best on the clients' validation rows (P); nothing where there are none."""
        self.sizes: dict[str, int] = {}
        """Clients of each site."""
        self.facts = facts_of(part, part.shape)
        """What a model is made for."""
        self.base = ""
        """A digest of what of the model is not trained."""
        self.clip_norm = config.client_clip_norm or 0.0
        """C of the next round, of clients' privacy."""
        self.num_private = 0
        """Rounds whose sums were noised."""
        self.num_rows: dict[str, float] = {}
        """Of each site, where it told them beside sums of columns."""
        self.left_out: dict[str, str] = {}
        """Sites of which no answer was passed on, each with its aggregator."""
        self._is_restored = False
        self.reading = ""
        """How the clients' rows are read (`fedactors.data.layouts.horizontal`)."""
        self.sites: ActorGroup[ClientProcess] = ActorGroup(
            self,
            tuple(sites),
            on_loss="drop" if config.on_party_loss == "continue" and config.min_sites is None else "stop",
            timeout=config.client_timeout,
            label="sites",
        )
        self._groups = groups_of(config, tuple(sites))
        """The aggregators, each with its sites; none where the server asks each site itself."""
        self.aggregators: ActorGroup[Aggregator] = ActorGroup(
            self,
            tuple(self._groups),
            on_loss="drop" if config.on_party_loss == "continue" else "stop",
            timeout=2 * config.client_timeout,
            label="aggregators",
        )
        self._sums = SecureSums(self, self.sites, fewest=config.min_sites or 0)
        self._first_round: int | None = None
        """The first that no site has done; None: it was not asked for, since this process began."""
        self._later: list[str] = []
        """Sites that are back and have done the round under way."""
        self._present: tuple[str, ...] = ()
        """Sites whose changes are in the last round's model."""

    async def load(self) -> None:
        """Open the rows to measure on, and find the device."""
        if self._part.test is None:
            raise BadInput(f"test: {self._part.name} names no test rows")
        self._device = str(find_device(self._config.device))
        self._find_rows()
        rows_of(self._key)

    async def open(self) -> None:
        """Check, of a run that goes on, that what is not trained is what it was."""
        self._is_restored = self._goes_on
        if self.base:
            check_base(self._spec, self.base, "before the run was resumed")
        if self.sizes:
            self._survive_losses()
        self._find_rows()

    def _survive_losses(self) -> None:
        """Go on without who is lost, from the first round on: what comes before needs everybody."""
        if self._config.min_sites is not None:
            self.sites.on_loss = "return"
            for name in self.sites.names:  # who is not there is known once it is asked
                self.sites.let_in(name)

    @remote(caller=DRIVER, unbounded="as often as a site is lost and back")
    async def note_site(self, found: messages.SiteStatus) -> None:
        """Learn that a site was lost, be it between two rounds, or is there again, as a new process."""
        self.sites.leave(found.site)
        if found.is_there:
            self.sites.back(found.site)

    @remote(caller=DRIVER, at_most=lambda config: 0 if config.min_sites is None else config.num_rounds)
    async def attend(self) -> messages.Attendance:
        """Say who took part in the last round."""
        return messages.Attendance(self._present, tuple(n for n in self.sites.names if n not in self._present))

    async def _gather(self, round: int) -> bool:
        """Let in who is back, and wait for the quorum; say whether this round can still be done.

        Raises:
            PartyLost: too few are there, and nobody came back in time.
        """
        config, sites = self._config, self.sites
        if self._first_round is None:
            done = await sites.ask(lambda site: site.tell_last_round())
            most = config.num_rounds if self._is_restored else 0
            for name, one in done.items():
                if not 0 <= one.number <= most:
                    said = f"says that it took part in round {one.number}"
                    raise Refused(name, f"{said}; expected: at most {most} of a run that {self._began}")
            self._first_round = 1 + max((one.number for one in done.values()), default=0)
        fewest = config.fewest_sites(len(sites.names))
        for name in self._later:
            sites.back(name)
        self._later.clear()
        await self._let_in(round)
        while len(sites.members) < fewest:
            if len(sites.members) + len(self._later) >= fewest:
                return False
            if not await sites.await_return(config.quorum_timeout):
                away = [name for name in sites.names if name not in sites.members]
                raise PartyLost(
                    away[0],
                    f"{len(sites.members)} of {len(sites.names)} sites take part, and a round needs {fewest} "
                    f"(min_sites): {', '.join(away)} did not come back within {config.quorum_timeout:g} s "
                    "(quorum_timeout); start the sites and go on from the last checkpoint",
                )
            await self._let_in(round)
        return round >= self._first_round

    @property
    def _began(self) -> str:
        return "goes on" if self._is_restored else "begins"

    async def _let_in(self, round: int) -> None:
        """Let in who is back and has not done this round: a site does none twice."""
        for name in self.sites.returning:
            self.sites.let_in(name)
            found = await self.sites.ask(lambda site: site.tell_last_round(), of=(name,))
            if name not in found:
                continue
            if found[name].number >= round:
                self.sites.leave(name)
                self._later.append(name)
                continue
            _log.warning("%s is back, and takes part from round %d on", name, round)
            self._sums.renew()

    def _find_rows(self) -> None:
        """Name the rows to measure on, as they are standardised."""
        assert self._part.test is not None
        reading = read_reading(self.reading) if self.reading else Reading()
        self._key = rows_key(as_read(self._part.test, reading), self.scope)

    @property
    def _spec(self) -> ModelSpec:
        return model_spec(self._config, **self.facts)

    @property
    def _target(self) -> tuple[float, float]:
        """Mean and deviation of a regression's targets."""
        return read_reading(self.reading).target if self.reading else (0.0, 1.0)

    @remote(caller=DRIVER, once=True)
    async def prepare(self) -> messages.Federation:
        """Learn who is there, and make the first model."""
        found = await self.sites.ask(lambda site: site.introduce())
        for name, one in found.items():
            if one.num_clients != (approved := self._num_clients[name]):
                raise Refused(name, f"introduces {one.num_clients:,} clients; approved: {approved:,}")
        widths = {name: one.width for name, one in found.items()}
        check_widths(widths)
        local = reading_of(self._part, self.scope)
        names = () if self._part.columns else local.names
        check_names({"test": names, **{name: one.columns for name, one in found.items()}})
        reading = local.with_csv({name: one.csv for name, one in found.items()})
        self.sizes = {name: one.num_clients for name, one in found.items()}
        self.facts["inputs"] = self.facts["inputs"] or (next(iter(widths.values())),)
        check_code(self._config, self._spec, self._part.task)
        if self._config.is_private:
            client_dp.check_model(self._spec)
        self.base = base_of(self._spec)
        for name, one in found.items():
            check_base(self._spec, one.base, name)
        self.reading = (await self._with_scale(reading)).text
        self._find_rows()
        if self._config.secure_aggregation and not self._config.is_private:
            await self._sums.prepare(1)
            work, point = Work("aggregate", float(len(self.sizes))), count_point(len(self.sites.names))
            total, _ = await self._sums.total(await self.sites.ask(lambda site: site.weigh()), point, work)
            weight = messages.TotalWeight(float(total[0]))
            await self.sites.ask(lambda site: site.take_weight(weight))
        vector_P = initial_vector(self._spec, derived_seed(self._run_seed, "all clients", "model"))
        patterns = self._config.local_parameters
        self.model = ServerModel.begin(self._config, algorithm.shared(self._spec, patterns, vector_P))
        self._survive_losses()
        stays = local_entries(self._spec, patterns) if patterns else ()
        return messages.Federation(sum(self.sizes.values()), self.model.vector.size, stays)

    async def _with_scale(self, reading: Reading) -> Reading:
        """Return how rows are read, with the mean and the deviation of each number over all sites' rows."""
        scaled_D = scaled_numbers(self._config, reading)
        with_targets = self._config.measures_targets(self._part.task, self._part.targets)
        size = len(scaled_D)
        if with_targets:
            scaled_D = np.append(scaled_D, True)
        if not scaled_D.any():
            return reading
        num_scaled = int(scaled_D.sum())
        means = means_of(await self._column_sums(np.zeros(0), num_scaled))
        sums = await self._column_sums(means, num_scaled)
        mean_D, deviation_D = (part.tolist() for part in scale_of(sums, means, scaled_D))
        target = (mean_D[size], deviation_D[size]) if with_targets else (0.0, 1.0)
        found = messages.ColumnScale(tuple(mean_D[:size]), tuple(deviation_D[:size]), target)
        await self.sites.ask(lambda site: site.take_scale(found))
        if scaled_D[:size].any():
            reading = replace(reading, mean=found.mean, deviation=found.deviation)
        return replace(reading, label_mean=target[0], label_deviation=target[1])

    async def _column_sums(self, means: Floats, size: int) -> Doubles:
        """Return the sums of so many columns over all sites."""
        order = messages.ColumnMeans(means)
        self._num_columns = 1 + size * (2 if means.size else 1)
        if not self._config.secure_aggregation:
            parts = await self.sites.ask(lambda site: site.sum_columns(order))
            found = {name: parts[name] for name in sorted(parts)}
            bare = [one.values for one in found.values() if isinstance(one, messages.ColumnSums)]
            self.num_rows = {name: float(values[0]) for name, values in zip(found, bare, strict=True)}
            return np.asarray(sum(bare), np.float64)
        await self._sums.prepare(1)
        point, work = steps_point(len(self.sites.names)), Work("aggregate", float(len(self.sizes)))
        total, _ = await self._sums.total(await self.sites.ask(lambda site: site.sum_columns(order)), point, work)
        sums = numbers_of(total)
        check_summed(sums)
        return sums

    @remote(caller=DRIVER, at_most="num_rounds", of="round")
    async def train(self, order: messages.RoundOrder) -> messages.Progress:
        """Do a round: order, wait for who answers, step; below the quorum the model stays, and the round is over."""
        config, self._present = self._config, ()
        if config.min_sites is not None and not await self._gather(order.round):
            _log.warning("round %d was done before the run was resumed; the model stays as it is", order.round)
            return messages.Progress(math.nan, 0)
        try:
            return await (self._train_private(order.round) if config.is_private else self._train_open(order.round))
        except (TooFewLeft, PartyLost) as loss:
            if config.min_sites is None:
                raise
            _log.warning("round %d changes nothing: %s", order.round, loss)
            self._present = ()
            self._sums.renew()
            return messages.Progress(math.nan, 0)

    async def _train_open(self, round: int) -> messages.Progress:
        """Do a round without noise on the sites' changes."""
        changes = await self._changes(self._orders(round))
        if not changes:
            return messages.Progress(math.nan, 0)
        work = Work("aggregate", float(self.model.vector.size * len(changes)))
        num_clients = sum(self.sizes.values())
        seed = derived_seed(self._run_seed, "all clients", f"aggregation {round}")
        arguments = (self._config, self._spec, self.model, changes, num_clients, seed)
        self.model = await self.compute(algorithm.advance, *arguments, work=work)
        weight = sum(one.weight for one in changes)
        loss = sum(one.weight * one.loss for one in changes) / weight * self._target[1] ** 2
        return messages.Progress(loss, sum(one.num_clients for one in changes))

    async def _train_private(self, round: int) -> messages.Progress:
        """Do a round under clients' privacy: the noised sum is all that the next model follows from."""
        config, num_clients = self._config, sum(self.sizes.values())
        bit = client_dp.bit_share(config, client_dp.expected_clients(config, num_clients))
        wanted = self._wanted(round)
        orders = {
            name: PrivateOrder(round, clients, self.model.vector, self.clip_norm, bit)
            for name, clients in wanted.items()
        }
        total = await self._noised_sum(round, orders)
        self.num_private += 1
        work = Work("aggregate", float(total.size))
        asked, there = sum(map(len, wanted.values())), sum(len(wanted.get(name, ())) for name in self._present)
        present = there / asked if config.min_sites is not None and asked else 1.0
        arguments = (config, self._spec, self.model, total, self.clip_norm, num_clients, present)
        self.model, self.clip_norm = await self.compute(client_dp.advance, *arguments, work=work)
        return messages.Progress(math.nan, there)

    async def _noised_sum(self, round: int, orders: dict[str, PrivateOrder]) -> algorithm.Doubles:
        config, size = self._config, self.model.vector.size + 1
        if config.secure_aggregation:
            await self._sums.prepare(1)
        parts = await self._answers(orders)
        work = Work("aggregate", float(size * len(parts)))
        if config.secure_aggregation:
            point = client_dp.point_of(config, len(self.sites.names), config.clients_per_site)
            return await self._total(parts, point, work)
        self._count_present(parts)
        exact = np.zeros(size)
        for part in parts.values():
            assert isinstance(part, messages.ClippedChanges)
            exact += part.values
        noise = self.noise_rng(f"changes of round {round}")
        return add_gaussian(
            exact,
            config.client_noise_multiplier,
            noise,
            client_dp.RELEASE,
            sample_rate=config.client_sampling_rate or 1.0,
        )

    @remote(caller=DRIVER, at_most=lambda config: int(config.is_noised))
    async def account(self) -> None:
        """Let everybody write what was released, and what that guarantees, to the privacy ledger."""
        await self.sites.ask(lambda site: site.account())
        left_out = [name for name in self.left_out if name not in self.sites.members]
        if left_out:  # who is lost, and not left out, writes none
            others: ActorGroup[ClientProcess] = ActorGroup(
                self, left_out, on_loss="skip", timeout=self._config.client_timeout, label="sites"
            )
            await others.ask(lambda site: site.account())
        if self._config.is_private and not self._config.secure_aggregation:
            self.record_privacy(
                client_dp.record(
                    self._config, self.party, self.num_private, is_restored=self._is_restored, is_server=True
                )
            )

    async def _changes(self, orders: dict[str, TrainOrder]) -> list[messages.Change]:
        """Return the changes of the sites, or of the aggregators' groups; under masks the mean of all, as one."""
        config, model = self._config, self.model
        if config.secure_aggregation:
            await self._sums.prepare(1)
        parts = await self._answers(orders)
        if not config.secure_aggregation:
            changes = {name: one for name, one in parts.items() if isinstance(one, messages.Change)}
            groups = {name: one for name, one in parts.items() if isinstance(one, messages.GroupChange)}
            members = {name: (name,) for name in changes} | {name: set(one.members) for name, one in groups.items()}
            changes |= {name: one.change for name, one in groups.items()}
            for name, change in changes.items():
                num_wanted = sum(len(orders[site].clients) for site in members[name])
                most = sum(self.num_rows.get(site, math.inf) for site in members[name])
                check_change(config, name, change, num_wanted, model.vector.size, model.control.size, most)
            return [change for change in changes.values() if change.num_clients]
        point = FixedPoint(limit=config.secure_range, num_clients=len(self.sites.names))
        work = Work("aggregate", float(model.vector.size * len(orders)))
        total = await self._total(parts, point, work)
        check_fits(float(total[-1]), point, "a change", config.at(self.facts["inputs"]).step_size)
        found = algorithm.mean_of_summands(total, config.secure_range)
        return [found] if found.num_clients else []

    async def _answers(self, orders: Mapping[str, TrainOrder] | Mapping[str, PrivateOrder]) -> dict[str, Any]:
        """Return what each site answers to its order; or each aggregator, for its sites."""
        if not self._groups:
            answers: dict[str, Any] = await self.sites.ask_each(ordered, orders)
            if not self._config.secure_aggregation:
                self._count_present(answers)
            return answers
        groups = {}
        for name, sites in self._groups.items():
            clients = {site: orders[site].clients for site in sites if site in orders}
            if len(clients) >= (1 if self._config.secure_aggregation else FEWEST_OF_GROUP):
                groups[name] = messages.GroupOrder(replace(orders[next(iter(clients))], clients=()), clients)
        found = await self.aggregators.ask_each(lambda one, group: one.train(group), groups)
        self._leave_absent({name: one.members for name, one in found.items()}, orders)
        return {name: one for name, one in found.items() if one.members}

    def _leave_absent(self, members: Mapping[str, Iterable[str]], asked: Iterable[str]) -> None:
        """Go on without the sites of which no answer was passed on, where the run goes on without lost ones.

        Such a site was lost or late, or its aggregator, or it is the only one left of a group; or the aggregator lies.

        Args:
            members: sites whose answers an aggregator passes on.
            asked: all sites that were asked.

        Raises:
            Refused: an aggregator passes on what it was not asked for, or, where a loss stops the run, not all of it.
            PartyLost: no site is left.
        """
        asked = list(asked)
        for name, sites in members.items():
            if others := sorted(set(sites) - set(asked).intersection(self._groups[name])):
                raise Refused(name, f"passes on answers of {', '.join(map(shown, others))}, which were not asked of it")
        there = {site for sites in members.values() for site in sites}
        aggregators = {site: name for name, sites in self._groups.items() for site in sites}
        for name in [name for name in asked if name not in there]:
            aggregator = aggregators[name]
            if self._config.on_party_loss == "stop":  # one that loses a site says so, and no answer
                said = f"passes on no answer of {name} and does not say that it is lost"
                raise Refused(aggregator, f"{said}; approved: all answers (on_party_loss=stop)")
            _log.warning("%s: no answer of it came through %s; the run goes on without it", name, aggregator)
            self.left_out[name] = aggregator
            self.sites.leave(name)
        if len(self.sites.members) < (fewest := self._config.fewest_sites(len(self.sites.names))):
            gone = [name for name, sites in self._groups.items() if name not in members and set(sites) & set(asked)]
            lost = (gone or [name for name in asked if name not in there])[0]
            raise PartyLost(lost, f"it was lost, and {len(self.sites.members)} sites are left: a round needs {fewest}")

    @remote(caller=DRIVER, at_most=lambda config: int(config.num_aggregators > 0))
    async def tell_left_out(self) -> messages.LeftOut:
        """Say of which sites an aggregator passed on no answer, so that the run went on without them."""
        return messages.LeftOut(self.left_out)

    def known_sizes(self, message: Any, sender: str) -> dict[str, int]:
        """Return how many numbers of the model travel, and how many sums of columns."""
        size = self.model.vector.size
        controls = size if self._config.algorithm == "scaffold" else 0
        sizes = {"clipped changes": size + 1, "sums of columns": self._num_columns}
        return {"shared parameters": size, "controls": controls, **sizes}

    async def _total(self, parts: Mapping[str, Any], point: FixedPoint, work: Work) -> algorithm.Doubles:
        """Return the sum of the sites' parts of a round."""
        total, self._present = await self._sums.total(parts, point, work)
        return total

    def _count_present(self, answers: Mapping[str, Any]) -> None:
        """Note whose changes a round has.

        Raises:
            TooFewLeft: they are fewer than the quorum.
        """
        fewest = self._config.fewest_sites(len(self.sites.names))
        if self._config.min_sites is not None and len(answers) < fewest:
            raise TooFewLeft(f"{len(answers)} sites answered in time, too few: {fewest} are needed (min_sites)")
        self._present = tuple(answers)

    def _orders(self, round: int) -> dict[str, TrainOrder]:
        """Return a round's order for each site that has some of its clients."""
        model = self.model
        return {
            name: TrainOrder(round, clients, model.vector, model.control)
            for name, clients in self._wanted(round).items()
        }

    def _wanted(self, round: int) -> dict[str, tuple[int, ...]]:
        """Draw the clients of a round, by site."""
        # with a quorum all are drawn from, so that a site can tell whether it is wanted
        names = self.sites.members if self._config.min_sites is None else self.sites.names
        candidates = [(name, client) for name in names for client in range(self.sizes[name])]
        generator = derived_rng(self._run_seed, "all clients", f"round {round}")
        chosen = algorithm.participants(range(len(candidates)), self._config.clients_per_round, generator)
        if (rate := self._config.client_sampling_rate) is not None:  # a secret: all know the run's seed
            is_drawn = self.noise_rng(f"clients of round {round}").random(len(candidates)) < rate
            chosen = np.flatnonzero(is_drawn).tolist()
        wanted: dict[str, list[int]] = {}
        for name, client in (candidates[number] for number in chosen):
            wanted.setdefault(name, []).append(client)
        if self._config.secure_aggregation:  # who is not wanted adds zeros
            wanted = {name: wanted.get(name, []) for name in self.sites.members}
        return {name: tuple(clients) for name, clients in wanted.items()}

    @remote(caller=DRIVER, at_most=lambda config: config.num_measurements + 1)
    async def measure(self, order: messages.RoundOrder) -> messages.Scores:
        """Measure the model on the rows that belong to no client."""
        vector = self.best if self.best.size else self.model.vector
        work = Work("measure", float(len(rows_of(self._key)[1]) * vector.size))
        how = (self._part.task, self._config.user_metric, self._device, self._target)
        arguments = (self._spec, vector, self._key, *how)
        return messages.Scores(*await self.compute(algorithm.measure, *arguments, work=work))

    @remote(caller=DRIVER, at_most="num_measurements")
    async def validate(self, order: messages.RoundOrder) -> messages.Scores:
        """Let the clients measure the model on their own validation rows; return the means over their rows."""
        found = await self._scores(messages.MeasureOrder(self.model.vector))
        for name, one in found.items():
            wrong = next((key for key in one.metrics if not self._is_metric(key)), None)
            if wrong is not None or one.num_rows < 1:
                what = f"scores of {one.num_rows:,} rows" if wrong is None else f"a score called {shown(wrong)}"
                raise Refused(name, f"sends {what}, which is none of this run's")
        means = algorithm.mean_scores([(one.num_rows, one.metrics) for one in found.values()])
        return messages.Scores(means, clients={name: one.metrics for name, one in found.items()})

    async def _scores(self, order: messages.MeasureOrder) -> dict[str, messages.LocalScores]:
        """Return each site's scores, by way of the aggregators where there are some."""
        if not self._groups:
            return await self.sites.ask(lambda site: site.measure(order))
        members = set(self.sites.members)
        groups = {name: tuple(site for site in sites if site in members) for name, sites in self._groups.items()}
        orders = {name: messages.GroupMeasureOrder(order, sites) for name, sites in groups.items() if sites}
        found = await self.aggregators.ask_each(lambda one, group: one.measure(group), orders)
        self._leave_absent({name: one.scores for name, one in found.items()}, self.sites.members)
        return {name: one for group in found.values() for name, one in group.scores.items()}

    def _is_metric(self, name: str) -> bool:
        """Say whether a metric of that name is measured: a user's own are called by words."""
        return name in METRICS or (bool(self._config.user_metric) and bool(re.fullmatch(r"[\w.@-]{1,99}", name)))

    @remote(caller=DRIVER, at_most=lambda config: int(config.measures_alone))
    async def measure_alone(self) -> messages.Baselines:
        """Let the clients say how good a model of their own rows alone is, each of its own."""
        found, first, scores = await self.sites.ask(lambda site: site.measure_alone()), 0, dict[str, float]()
        for site, size in self.sizes.items():
            local = {site, *(f"client-{first + client}" for client in range(min(size, MOST_ALONE)))}
            for name, value in found[site].scores.items() if site in found else ():
                if name not in local:
                    raise Refused(site, f"says how good a model of {shown(name)} is, which is none of its clients")
                scores[name] = value
            first += size
        return messages.Baselines(scores)

    @remote(caller=DRIVER, at_most="num_measurements")
    async def remember(self, order: messages.RoundOrder) -> None:
        """Keep the model as the best so far."""
        self.best = self.model.vector
        if self._config.is_personal:
            await self.sites.ask(lambda site: site.remember())
