"""What comes after training: the model that a run ended with, as parts, and predictions of it by each container.

That model, m_g, is the one that the auditor measured last: the mean of all centers' masters, or what a baseline's
exchange has. The auditor exports it, and predictions are made with it; a center exports its own master, which goes to
nobody else.

Shapes: P length of a flat model, N rows.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedactors.data.layouts.horizontal import HorizontalData, read_reading
from fedactors.data.new_rows import ActorState, NoPart, actor_state
from fedactors.learning.models import model_for
from fedactors.protocols.nebulafl.actors import AUDITOR
from fedactors.protocols.nebulafl.algorithm import master_model
from fedactors.protocols.nebulafl.config import NebulaFLConfig
from fedactors.protocols.nebulafl.training import model_spec
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


def make_part(config: NebulaFLConfig, party: str, state: ActorState) -> Part | None:
    """Return an actor's model, if it has one.

    Which model it is the configuration says, never a checkpoint: a name may stand for code.
    """
    if "model_facts" not in state or state["model_facts"] is None:
        return None
    _, shape, num_classes, _ = state["model_facts"]
    if "models" in state:
        center = state["models"]
        vector_P = master_model(center["planets"], center["versions"])
    elif "server" in state:
        method = state["server"]["method"]
        branches = method.get("branches")
        vector_P = master_model(branches, method["versions"]) if branches else method["model_P"]
    else:
        vector_P = state["parameters_P"]
    name = model_for(config.model, tuple(shape))
    model = TrainedModel(model_spec((name, tuple(shape), num_classes, config.normalisation)), vector_P)
    return site_part(party, model, "multiclass", num_classes, read_reading(state["reading"]), protocol="nebulafl")


class NebulaModelServer(ModelServer):
    """The auditor, which gives the model; centers say how their rows are read."""

    def make_part(self, state: ActorState) -> Part | None:
        """Return the model that was measured last, if it is this actor's."""
        return make_part(self.config, self.party, state) if self.party == AUDITOR else None


class PredictingContainer(PredictingSite):
    """An organisation with a container's rows, for new ones."""

    def make_model(self, found: WholeModel) -> TrainedModel:
        """Return the model that the run ended with."""
        name = model_for(self.config.model, found.inputs)
        spec = model_spec((name, found.inputs, found.num_classes, self.config.normalisation))
        return TrainedModel(spec, found.parameters)


async def predict(config: NebulaFLConfig, data: HorizontalData, runtime: Runtime, asked: Application) -> Outcomes:
    """Predict each container's own rows; see `fedactors.serving.predictions`."""
    model_holders = dict.fromkeys(sorted(asked.stored), NebulaModelServer)
    return await predict_sites(
        data, runtime, asked, config=config, site=PredictingContainer, model_holders=model_holders
    )


def predictors(config: NebulaFLConfig) -> Mapping[str, type]:
    """Return the kinds of actors that predict."""
    return {"containers": PredictingContainer, "centers": NebulaModelServer}


def part(config: NebulaFLConfig, party: str, states: Mapping[str, bytes]) -> Part:
    """Return a party's model."""
    local = [actor_state(states, name) for name in sorted(states) if name.partition("/")[0] == party]
    found = [made for state in local if (made := make_part(config, party, state)) is not None]
    if not found:
        raise NoPart(f"--party: {party!r} is not allowed: it has no part of the model of algorithm={config.algorithm}")
    return found[-1]
