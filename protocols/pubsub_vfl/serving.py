"""What comes after training: each party's own part of the joint model, and predictions by the parties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.data.columns import Preprocessing
from fedactors.data.layouts.vertical import VerticalData
from fedactors.data.new_rows import ActorState, actor_state
from fedactors.errors import BadInput
from fedactors.learning.models import output_width
from fedactors.protocols.pubsub_vfl import algorithm
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.runtime.interface import Runtime
from fedactors.serving.parts import Part, TrainedModel
from fedactors.serving.predictions import Application, Outcomes, PredictingOwner, PredictingParty, predict_vertical

Array = NDArray[Any]
WORKER = "/worker-0"
"""Whose state answers for its party."""


def trained(party: str, states: Mapping[str, bytes]) -> tuple[Mapping[str, Any], list[Array]]:
    """Return the facts of a party's rows and its models' parameters."""
    return _trained(actor_state(states, f"{party}{WORKER}"))


def _trained(state: ActorState) -> tuple[Mapping[str, Any], list[Array]]:
    rows = state["rows"]
    if rows["order"] is None:
        raise BadInput("the run was stopped before its rows were aligned: it has no trained model")
    return rows, [np.asarray(network["vector"]) for network in state["replica"]["networks"]]


def make_part(config: PubSubVflConfig, party: str, state: ActorState) -> Part:
    """Return a party's part: its bottom and, at the label party, the top; noise as embeddings had it in training."""
    rows, vectors = _trained(state)
    preprocessing = Preprocessing.of(rows["preprocessing"], party)
    parties = tuple(rows["parties"])
    bottom = algorithm.bottom_spec(config, len(preprocessing.feature_names))
    models = {"bottom": TrainedModel(bottom, vectors[0])}
    is_active = len(vectors) > 1
    if is_active:
        width = output_width(rows["task"], rows["num_classes"])
        models["top"] = TrainedModel(algorithm.fusion_spec(config, len(parties), width), vectors[1])
    return Part(
        protocol="pubsub-vfl",
        party=party,
        task=rows["task"],
        num_classes=rows["num_classes"],
        class_names=tuple(rows["class_names"]),
        parties=parties,
        models=models,
        preprocessing=preprocessing,
        label_mean=rows["label_mean"],
        label_deviation=rows["label_deviation"],
        clip_norm=config.clip_norm,
        sigma=0.0 if is_active else algorithm.embedding_sigma(config, rows["num_train"]),
        delta=config.delta,
    )


class PredictingPassive(PredictingParty):
    """A passive party, for new rows."""

    def make_part(self, state: ActorState) -> Part:
        """Return the party's bottom."""
        return make_part(self.config, self.party, state)


class PredictingActive(PredictingOwner):
    """The active party, for new rows."""

    def make_part(self, state: ActorState) -> Part:
        """Return the party's bottom and the top."""
        made = make_part(self.config, self.party, state)
        if "top" not in made.models:
            raise BadInput(
                f"label: {self.party!r} is not allowed: {made.parties[0]} had the labels in training, and has the top"
            )
        return made


async def predict(config: PubSubVflConfig, data: VerticalData, runtime: Runtime, asked: Application) -> Outcomes:
    """Predict rows that all parties have; see `fedactors.serving.predictions`."""
    parts = {name: data.part(name) for name in data.parties}
    return await predict_vertical(
        parts,
        data.label_party,
        runtime,
        asked,
        config=config,
        data=data,
        owner=PredictingActive,
        party=PredictingPassive,
        worker=WORKER,
    )


def predictors(config: PubSubVflConfig) -> Mapping[str, type]:
    """Return the kinds of actors that predict."""
    return {"active party": PredictingActive, "passive parties": PredictingPassive}


def part(config: PubSubVflConfig, party: str, states: Mapping[str, bytes]) -> Part:
    """Return a party's part of the trained model.

    Raises:
        BadInput: the party has none.
    """
    return make_part(config, party, actor_state(states, f"{party}{WORKER}"))
