"""What comes after training: each party's own part of the joint model, and predictions by the parties that have them.

    h_k of new rows, by theta_k and preprocessing --> Z = sum (or slots) --> theta_0, if there is one --> prediction

A checkpoint holds messages (labels, STCD's token), so the types of `messages` must be known where one is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedactors.data.columns import Preprocessing
from fedactors.data.layouts.vertical import VerticalData
from fedactors.data.new_rows import ActorState, Listing, NewRows, NoPart, actor_state
from fedactors.errors import BadInput
from fedactors.learning.models import ModelSpec
from fedactors.protocols.mtcd import messages
from fedactors.protocols.mtcd.algorithm import point_of
from fedactors.protocols.mtcd.config import MtcdConfig
from fedactors.protocols.mtcd.data import MtcdData, PublicPart, part_of
from fedactors.runtime.interface import Runtime
from fedactors.secure_sums.primitives import FixedPoint
from fedactors.serving.parts import Part, TrainedModel
from fedactors.serving.predictions import (
    Application,
    Outcomes,
    PredictingOwner,
    PredictingParty,
    SumExchange,
    SummingOwner,
    SummingParty,
    TopHolder,
    predict_vertical,
)

Array = NDArray[Any]
SERVER = "server"
_NOTHING = np.zeros(0, np.float32)


def make_part(config: MtcdConfig, party: str, state: ActorState) -> Part:
    """Return a party's part: theta_k, its preprocessing, and theta_0 where STCD's token rests here."""
    rows, theta = state["rows"], state["theta"]
    if theta is None:
        raise BadInput("the run was stopped before its rows were aligned: it has no trained model")
    scale = rows["scale"] or {}
    given = scale.get("preprocessing")
    task: Literal["binary", "multiclass", "regression"] = "regression"
    if rows["num_classes"] > 1:
        task = "binary" if config.problem != "network" else "multiclass"
    if config.problem == "network":
        from fedactors.protocols.mtcd.networks import bottom_spec

        bottom = bottom_spec(config, tuple(rows["input_shape"]))
    else:
        bottom = ModelSpec(name="linear", inputs=tuple(rows["input_shape"]), outputs=1, bias=False, float64=True)
    models = {"bottom": TrainedModel(bottom, np.asarray(theta))}
    theta_0 = theta_0_of(state)
    if config.problem == "network" and len(theta_0):
        models["top"] = TrainedModel(_top_spec(config, rows["num_classes"]), theta_0)
    return Part(
        protocol="mtcd",
        party=party,
        task=task,
        num_classes=rows["num_classes"],
        class_names=tuple(scale.get("class_names", ())),
        parties=tuple(rows["parties"]),
        fusion="concatenate" if config.aggregation == "concatenation" else "sum",
        activation="relu" if config.problem == "network" else "none",
        link="plus-minus" if config.problem == "ridge" else "logit",
        models=models,
        preprocessing=None if given is None else Preprocessing.of(given, party),
        label_mean=scale.get("label_mean", 0.0),
        label_deviation=scale.get("label_deviation", 1.0),
        clip_norm=config.clip_norm,
        sigma=0.0 if config.noise is None else config.noise_multiplier * config.clip_norm,
        delta=config.delta,
    )


def _top_spec(config: MtcdConfig, num_classes: int) -> ModelSpec:
    from fedactors.protocols.mtcd.networks import fusion_spec

    return fusion_spec(config, num_classes)


def theta_0_of(state: ActorState) -> Array:
    """Return theta_0 where it rests with an actor, at the server or with STCD's token; nothing elsewhere."""
    held: messages.Token | None = state.get("resting_token")
    theta_0: Array | None = state.get("theta_0") if held is None else held.theta_0
    return _NOTHING if theta_0 is None else np.asarray(theta_0)


class PredictingClient(PredictingParty):
    """A client, for new rows."""

    def make_part(self, state: ActorState) -> Part:
        """Return theta_k with its preprocessing."""
        return make_part(self.config, self.party, state)

    async def load_rows(self) -> NewRows:
        """Return new rows of one's own data; of public data training rows, then test rows."""
        if not isinstance(self._data, PublicPart):
            return await super().load_rows()
        found = self._data.data.load(self._data.client)
        features = np.concatenate([found.train, found.test])
        ids = np.arange(len(features))
        return NewRows(ids, features, Listing.of_ids(ids))


class PredictingLabels(PredictingClient, PredictingOwner):
    """The party with the labels, for new rows."""

    @property
    def top_spec(self) -> ModelSpec | None:
        """The fusion model of networks, which rests at the server or with STCD's token."""
        return _top_spec(self.config, self.part.num_classes) if self.config.problem == "network" else None


class FusionServer(TopHolder):
    """The server, which has theta_0."""

    def top_of(self, state: ActorState) -> Array:
        """Return theta_0."""
        return theta_0_of(state)


class _InWords:
    """How representations become words of a sum, as in training."""

    config: MtcdConfig

    @property
    def point(self) -> FixedPoint:
        """The grid of `secure_range`."""
        return point_of(self.config)


class SummedClient(_InWords, SummingParty, PredictingClient):
    """A client whose representation leaves under masks."""


class SummedLabels(_InWords, SummingOwner, PredictingLabels):
    """The party with the labels, which is told Z."""


class RepresentationExchange(_InWords, SumExchange):
    """Adds representations up, as the server did."""


async def predict(config: MtcdConfig, data: MtcdData, runtime: Runtime, asked: Application) -> Outcomes:
    """Predict rows that all parties have, under the noise and the masks that training had."""
    parts = {name: part_of(data, client) for client, name in enumerate(data.parties)}
    return await predict_vertical(
        parts,
        next(iter(parts.values())).label_party,
        runtime,
        asked,
        config=config,
        data=data if isinstance(data, VerticalData) else None,
        owner=SummedLabels if config.secure_aggregation else PredictingLabels,
        party=SummedClient if config.secure_aggregation else PredictingClient,
        top_at={SERVER: FusionServer} if config.problem == "network" and SERVER in asked.stored else {},
        exchange=RepresentationExchange if config.secure_aggregation else None,
    )


def predictors(config: MtcdConfig) -> Mapping[str, type]:
    """Return the kinds of actors that predict."""
    servers: dict[str, type] = {"server": FusionServer} if config.problem == "network" else {}
    if config.secure_aggregation:
        return {
            "label party": SummedLabels,
            "other parties": SummedClient,
            "exchange": RepresentationExchange,
            **servers,
        }
    return {"label party": PredictingLabels, "other parties": PredictingClient, **servers}


def part(config: MtcdConfig, party: str, states: Mapping[str, bytes]) -> Part:
    """Return a party's part of the trained model: a client's, or of networks the server's fusion model."""
    state = actor_state(states, party)
    if party != SERVER:
        if "theta" not in state:
            raise NoPart(f"--party: {party!r} is not allowed: it is no client")  # it joined a query's rows, say
        return make_part(config, party, state)
    theta_0 = theta_0_of(state)
    if config.problem != "network" or not len(theta_0):
        raise NoPart(f"--party: {party!r} is not allowed: problem={config.problem} has no part at the server")
    num_classes = theta_0.size // (_top_spec(config, 1).inputs[0] + 1)
    return Part(
        protocol="mtcd",
        party=party,
        task="multiclass",
        num_classes=num_classes,
        class_names=(),
        parties=(),
        fusion="concatenate" if config.aggregation == "concatenation" else "sum",
        activation="relu",
        models={"top": TrainedModel(_top_spec(config, num_classes), theta_0)},
    )
