"""What comes after training: the server's model as a part, and predictions of it by each site on its own rows.

Where each client has a model of its own, that is what its site exports and predicts with; the server's is whole with
Ditto only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from fedactors.data.layouts.horizontal import HorizontalData, Reading, read_reading
from fedactors.data.new_rows import ActorState, NoPart, actor_state
from fedactors.learning.metrics import Task
from fedactors.learning.user_models import check_base
from fedactors.protocols.horizontal.config import HorizontalConfig
from fedactors.protocols.horizontal.data import model_spec
from fedactors.protocols.horizontal.run import SERVER
from fedactors.runtime.interface import Runtime
from fedactors.serving.parts import Part, TrainedModel
from fedactors.serving.predictions import (
    Application,
    ModelServer,
    Outcomes,
    PersonalSite,
    PredictingSite,
    WholeModel,
    predict_sites,
    site_part,
)


def make_part(config: HorizontalConfig, state: ActorState) -> Part:
    """Return the server's model: what it is, as the configuration says; for which shape, as the state does.

    Where clients have validation rows it is the round's that did best on them.
    """
    if config.local_parameters:
        names = ",".join(config.local_parameters)
        raise NoPart(
            f"the {SERVER}'s model lacks what stays at the clients (local_parameters={names}): export a client's, "
            "--party CLIENT, or give rows of the clients themselves"
        )
    facts = state["facts"]
    vector = state["best"] if state["best"].size else state["model"]["vector"]
    model = TrainedModel(model_spec(config, **facts), vector)
    check_base(model.spec, state["base"], "in training")
    reading = read_reading(state["reading"])
    return site_part(SERVER, model, facts["task"], facts["num_classes"], reading, protocol="horizontal")


def personal_parts(config: HorizontalConfig, party: str, state: ActorState) -> dict[str, tuple[Part, Reading]]:
    """Return a site's clients' own models by client, each of the round that did best on the clients' own rows."""
    if not (best := state["best"]):
        raise NoPart(f"{party} has measured no model of its own yet")
    facts, reading = best["facts"], read_reading(best["reading"])
    spec = model_spec(config, **facts)
    check_base(spec, best["base"], "in training")
    return {
        f"client-{client}": (
            site_part(
                party, TrainedModel(spec, vector_P), facts["task"], facts["num_classes"], reading, protocol="horizontal"
            ),
            reading,
        )
        for client, vector_P in best["models"].items()
    }


class HorizontalModelServer(ModelServer):
    """The server, which has the model."""

    def make_part(self, state: ActorState) -> Part:
        """Return the model."""
        return make_part(self.config, state)


class PredictingClient(PredictingSite):
    """A site, for new rows."""

    def make_model(self, found: WholeModel) -> TrainedModel:
        """Return the server's model."""
        task, num_classes = cast(Task, found.task), found.num_classes
        spec = model_spec(self.config, inputs=found.inputs, task=task, num_classes=num_classes, targets=found.targets)
        return TrainedModel(spec, found.parameters)


class PersonalClient(PersonalSite):
    """A site with a model of its own, for new rows."""

    def make_part(self, state: ActorState) -> tuple[Part, Reading]:
        """Return the own model."""
        return next(iter(personal_parts(self.config, self.party, state).values()))


async def predict(config: HorizontalConfig, data: HorizontalData, runtime: Runtime, asked: Application) -> Outcomes:
    """Predict each site's own rows; see `fedactors.serving.predictions`."""
    model_holders = {SERVER: HorizontalModelServer}
    personal = PersonalClient if config.is_personal else None
    return await predict_sites(
        data, runtime, asked, config=config, site=PredictingClient, model_holders=model_holders, personal=personal
    )


def predictors(config: HorizontalConfig) -> Mapping[str, type]:
    """Return the kinds of actors that predict."""
    site = PersonalClient if config.is_personal else PredictingClient
    return {"sites": site, "server": HorizontalModelServer}


def part(config: HorizontalConfig, party: str, states: Mapping[str, bytes]) -> Part | dict[str, Part]:
    """Return the server's model, or a site's client's own; of several clients each one's by name."""
    if party != SERVER and config.is_personal:
        parts = personal_parts(config, party, actor_state(states, party))
        found = {client: one for client, (one, _) in parts.items()}
        return found if len(found) > 1 else next(iter(found.values()))
    if party != SERVER:
        raise NoPart(f"--party: {party!r} is not allowed: the model is the {SERVER}'s")
    return make_part(config, actor_state(states, SERVER))
