"""One call for a network's computes: in the actor's process with its graph, in a pool's process by value."""

from __future__ import annotations

import pickle
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from fedactors.actors.actor import Client
from fedactors.actors.context import Work
from fedactors.actors.remote import DRIVER, PEERS, remote
from fedactors.learning import network as networks
from fedactors.learning.models import ModelSpec
from fedactors.learning.network import Model, initial_vector, on_host
from fedactors.learning.optimizers import Network, OptimizerSpec
from fedactors.learning.split_learning import Publication, joint_output, loss_gradients
from fedactors.messages.codec import message
from fedactors.runtime.interface import Costs
from fedactors.runtime.simulation.runtime import SimulatedRuntime

SPEC = ModelSpec(name="mlp", inputs=(5,), outputs=4, hidden_size=8, layers=3)
TOP = ModelSpec(name="top-mlp", inputs=(4,), outputs=1, hidden_size=8)
ADAM = OptimizerSpec(name="adam", learning_rate=0.01)
NUM_STEPS = 6


@message(reveals="a trained model")
class Trained:
    """What a learner ends with."""

    bottom: np.ndarray
    top: np.ndarray
    losses: np.ndarray


def embed(publication: Publication) -> np.ndarray:
    """Return the embedding to be sent."""
    return publication.embed()


def back_propagate(publication: Publication, gradient: np.ndarray) -> np.ndarray:
    """Return the bottom's flat gradient."""
    return on_host(publication.gradient(gradient))


def grade(top: Model, embedding: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the loss, the gradient of the embedding and that of the top."""
    found = loss_gradients(top, [embedding], targets, "binary")
    return found.loss, on_host(found.embedding_gradients[0]), on_host(found.gradient)


class Learner(Client):
    """Both sides of a split network in one actor, with several batches in flight."""

    state: ClassVar[tuple[str, ...]] = ("bottom", "top")

    async def load(self) -> None:
        self.bottom = Network(SPEC, ADAM, self.party_seed("bottom"))
        self.top = Network(TOP, ADAM, self.party_seed("top"))

    @remote(caller=(DRIVER, PEERS))
    async def train(self) -> Trained:
        rng = self.rng("rows")
        losses, waiting = [], []
        for _ in range(NUM_STEPS):
            x, y = rng.normal(size=(16, 5)), rng.integers(0, 2, 16)
            publication = Publication(self.bottom.model, x, self.bottom.version)
            embedding = await self.compute(embed, publication, work=Work("forward"))
            loss, gradient, local = await self.compute(grade, self.top.model, embedding, y, work=Work("top"))
            self.top.apply(local)
            losses.append(loss)
            waiting.append((publication, gradient))
            if len(waiting) == 3:  # the bottom steps late, through the parameters of the publication
                for late, upstream in waiting:
                    self.bottom.apply(await self.compute(back_propagate, late, upstream, work=Work("backward")))
                waiting.clear()
        return Trained(self.bottom.vector, self.top.vector, np.array(losses))


COSTS = Costs({"forward": (0.1, 0.0), "top": (0.1, 0.0), "backward": (0.1, 0.0)})


def train(**settings: Any) -> Trained:
    runtime = SimulatedRuntime(costs=COSTS, seed=3, **settings)

    async def main() -> Trained:
        learner = runtime.spawn(Learner, "bank")
        await runtime.start()
        return await learner.train()

    return runtime.execute(main)


@pytest.mark.slow
def test_a_pool_changes_nothing_but_where_it_is_computed() -> None:
    here, there = train(), train(pool=2)
    np.testing.assert_array_equal(here.bottom, there.bottom)
    np.testing.assert_array_equal(here.top, there.top)
    np.testing.assert_array_equal(here.losses, there.losses)
    assert not np.array_equal(here.bottom, initial_vector(SPEC, 0))


def test_in_the_actors_process_the_backward_pass_uses_the_graph_of_the_forward_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes = []
    forward = networks.FunctionalModel.__call__

    def counted(self: Any, views: Any, inputs: Any) -> Any:
        passes.append(inputs.shape)
        return forward(self, views, inputs)

    monkeypatch.setattr(networks.FunctionalModel, "__call__", counted)
    train()
    assert len(passes) == 2 * NUM_STEPS  # each batch once through the bottom, once through the top


def test_a_publication_travels_as_plain_values_and_gives_the_same_gradient() -> None:
    x, g = np.ones((3, 5)), np.full((3, 4), 0.5)
    kept = Publication(Network(SPEC, ADAM, 0).model, x, version=7)
    embedding = kept.embed()
    sent = pickle.loads(pickle.dumps(kept))
    assert sent.version == 7
    assert sent._activation is None
    np.testing.assert_array_equal(sent.embed(), embedding)
    np.testing.assert_array_equal(sent.gradient(g), kept.gradient(g))


def test_a_model_is_a_value_that_steps_of_its_network_leave_alone() -> None:
    network = Network(SPEC, ADAM, 0)
    before, x = network.model, np.ones((2, 5))
    outputs = before.output(x)
    network.apply(np.ones(before.num_parameters, np.float32))
    assert network.model is not before
    assert network.version == 1
    np.testing.assert_array_equal(before.output(x), outputs)
    assert not np.array_equal(network.model.output(x), outputs)
    network.load(before.vector)
    np.testing.assert_array_equal(network.model.output(x), outputs)


def test_parameters_lie_in_their_vector_wherever_that_lies() -> None:
    made = networks.functional_model(ModelSpec(name="mlp", inputs=(3,), outputs=2, hidden_size=4, layers=3))
    values = torch.arange(2.0 * made.num_values + 5)
    for vector in (values[: made.num_values], values[5 : 5 + made.num_values], values[1 : 1 + 2 * made.num_values : 2]):
        parts = torch.split(vector, [shape.numel() for shape in made.shapes])
        views = made.views(vector)
        assert all(torch.equal(view, part.reshape(view.shape)) for view, part in zip(views, parts, strict=True))
        assert [view.shape for view in views] == made.shapes
        assert all(view.is_leaf and view.requires_grad and view.is_contiguous() for view in views)
    with pytest.raises(ValueError, match="values"):
        made.views(values)


def test_the_graph_of_a_publication_may_be_used_again_after_its_gradient() -> None:
    publication = Publication(Network(SPEC, ADAM, 0).model, np.ones((2, 5)))
    g = np.ones((2, 4))
    np.testing.assert_array_equal(publication.gradient(g), publication.gradient(g))


def test_fusion_by_sum_and_evaluation() -> None:
    top = Model(TOP, initial_vector(TOP, 1))
    parts, y = [np.ones((3, 4)), np.full((3, 4), 2.0)], np.array([0, 1, 1])
    found = loss_gradients(top, parts, y, "binary", "sum")
    np.testing.assert_array_equal(found.output, joint_output(top, parts, "sum"))
    np.testing.assert_array_equal(found.output, top.output(parts[0] + parts[1]))
    np.testing.assert_array_equal(found.embedding_gradients[0], found.embedding_gradients[1])


def test_a_network_restores_its_moments() -> None:
    one, other = Network(SPEC, ADAM, 0), Network(SPEC, ADAM, 1)
    gradient = torch.linspace(-1, 1, one.model.num_parameters)
    one.apply(gradient)
    other.load_state_dict(one.state_dict())
    for network in (one, other):
        network.apply(-gradient)
    np.testing.assert_array_equal(one.vector, other.vector)
    assert other.version == 2
