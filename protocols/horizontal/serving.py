"""What comes after training: the server's model as a part, and predictions of it by each site on its own rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from fedactors.data.layouts.horizontal import HorizontalData, read_reading
from fedactors.data.new_rows import ActorState, NoPart, actor_state
from fedactors.learning.metrics import Task
from fedactors.learning.user_models import check_base
from fedactors.runtime.interface import Runtime
from fedactors.serving.parts import Part, TrainedModel
from fedactors.serving.predictions import (
    Application,
    ModelServer,
    Outcomes,
    PredictingSite,
    WholeModel,
    predict_sites,
    site_part,
)
from protocols.horizontal.config import HorizontalConfig
from protocols.horizontal.data import model_spec
from protocols.horizontal.run import SERVER


def make_part(config: HorizontalConfig, state: ActorState) -> Part:
    """Return the server's model: what it is, as the configuration says; for which shape, as the state does.

    Where clients have validation rows it is the round's that did best on them.
    """
    facts = state["facts"]
    vector = state["best"] if state["best"].size else state["model"]["vector"]
    model = TrainedModel(model_spec(config, **facts), vector)
    check_base(model.spec, state["base"], "in training")
    reading = read_reading(state["reading"])
    return site_part(SERVER, model, facts["task"], facts["num_classes"], reading, protocol="horizontal")


class HorizontalModelServer(ModelServer):
    """The server, which has the model."""

    def make_part(self, state: ActorState) -> Part:
        """Return the model."""
        return make_part(self.config, state)


class PredictingClient(PredictingSite):
    """A site, for new rows."""

    def make_model(self, found: WholeModel) -> TrainedModel:
        """Return the server's model."""
        spec = model_spec(self.config, inputs=found.inputs, task=cast(Task, found.task), num_classes=found.num_classes)
        return TrainedModel(spec, found.parameters)


async def predict(config: HorizontalConfig, data: HorizontalData, runtime: Runtime, asked: Application) -> Outcomes:
    """Predict each site's own rows; see `fedactors.serving.predictions`."""
    model_holders = {SERVER: HorizontalModelServer}
    return await predict_sites(data, runtime, asked, config=config, site=PredictingClient, model_holders=model_holders)


def predictors(config: HorizontalConfig) -> Mapping[str, type]:
    """Return the kinds of actors that predict."""
    return {"sites": PredictingClient, "server": HorizontalModelServer}


def part(config: HorizontalConfig, party: str, states: Mapping[str, bytes]) -> Part:
    """Return the server's model."""
    if party != SERVER:
        raise NoPart(f"--party: {party!r} is not allowed: the model is the {SERVER}'s")
    return make_part(config, actor_state(states, SERVER))
