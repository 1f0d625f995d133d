from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedactors.errors import BadInput
from fedactors.learning.models import ModelSpec, build_model, task_loss
from fedactors.learning.network import Model, initial_vector, to_vector
from fedactors.learning.optimizers import Network, OptimizerSpec, OptimizerState, optimizer_step
from fedactors.learning.split_learning import (
    Publication,
    joint_output,
    loss_gradients,
)
from fedactors.runtime import snapshots

BOTTOMS = [
    ModelSpec(name="mlp", inputs=(5,), outputs=4, hidden_size=6, float64=True),
    ModelSpec(name="residual-mlp", inputs=(3,), outputs=4, hidden_size=6, layers=2, float64=True),
]
OPTIMIZERS = [
    OptimizerSpec(name="sgd", learning_rate=0.05),
    OptimizerSpec(name="sgd", learning_rate=0.05, momentum=0.9, weight_decay=0.01),
    OptimizerSpec(name="adam", learning_rate=0.01),
]


def publish(network, x_BF):
    return Publication(network.model, x_BF, network.version)


def torch_optimizer(spec, parameters):
    if spec.name == "adam":
        return torch.optim.Adam(parameters, lr=spec.learning_rate, weight_decay=spec.weight_decay)
    return torch.optim.SGD(parameters, lr=spec.learning_rate, momentum=spec.momentum, weight_decay=spec.weight_decay)


def top_spec(fusion, outputs):
    return ModelSpec(name="top-mlp", inputs=(8 if fusion == "concatenate" else 4,), outputs=outputs, float64=True)


def batch(rng, task):
    x = [rng.normal(size=(16, spec.inputs[0])) for spec in BOTTOMS]
    y = {"binary": rng.integers(0, 2, 16), "multiclass": rng.integers(0, 3, 16), "regression": rng.normal(size=16)}
    return x, y[task]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=["sgd", "momentum", "adam"])
@pytest.mark.parametrize(
    ("task", "fusion"), [("binary", "concatenate"), ("multiclass", "sum"), ("regression", "concatenate")]
)
def test_split_training_equals_the_monolithic_network_at_every_step(optimizer, task, fusion):
    outputs = 3 if task == "multiclass" else 1
    bottoms = [Network(spec, optimizer, seed) for seed, spec in enumerate(BOTTOMS)]
    top = Network(top_spec(fusion, outputs), optimizer, 9)
    modules = [build_model(spec, seed) for seed, spec in enumerate(BOTTOMS)]
    whole_top = build_model(top_spec(fusion, outputs), 9)
    whole = torch_optimizer(optimizer, [p for m in [*modules, whole_top] for p in m.parameters()])
    rng = np.random.default_rng(0)
    for _ in range(12):
        x, y = batch(rng, task)
        publications = [publish(bottom, part) for bottom, part in zip(bottoms, x, strict=True)]
        found = loss_gradients(top.model, [p.embed() for p in publications], y, task, fusion)
        top.apply(found.gradient)
        for bottom, publication, gradient in zip(bottoms, publications, found.embedding_gradients, strict=True):
            bottom.apply(publication.gradient(gradient))
        embeddings = [m(torch.tensor(part)) for m, part in zip(modules, x, strict=True)]
        fused = torch.cat(embeddings, dim=1) if fusion == "concatenate" else embeddings[0] + embeddings[1]
        loss = task_loss(task, whole_top(fused), torch.tensor(y))
        whole.zero_grad()
        loss.backward()
        whole.step()
        assert found.loss == pytest.approx(loss.item(), abs=1e-12)
        for network, module in zip([*bottoms, top], [*modules, whole_top], strict=True):
            np.testing.assert_allclose(network.vector, to_vector(module), rtol=0, atol=1e-12)


def test_a_late_gradient_goes_through_the_parameters_of_its_publication():
    spec = BOTTOMS[0]
    network = Network(spec, OPTIMIZERS[0], 0)
    rng = np.random.default_rng(1)
    x = [rng.normal(size=(8, 5)) for _ in range(3)]
    g = [rng.normal(size=(8, 4)) for _ in range(3)]
    start = network.vector
    publications = [publish(network, part) for part in x]
    expected = start
    for i in (2, 0, 1):
        network.apply(publications[i].gradient(g[i]))
        module = build_model(spec, 0)
        module(torch.tensor(x[i])).backward(torch.tensor(g[i]))
        flat = torch.cat([p.grad.reshape(-1) for p in module.parameters()]).numpy()
        expected = expected - 0.05 * flat
    np.testing.assert_allclose(network.vector, expected, rtol=0, atol=1e-12)
    assert network.version == 3
    assert [p.version for p in publications] == [0, 0, 0]


def test_publication_survives_an_average_of_the_replicas():
    network = Network(BOTTOMS[0], OPTIMIZERS[0], 0)
    x, g = np.ones((2, 5)), np.ones((2, 4))
    publication = publish(network, x)
    before = Publication(Model(BOTTOMS[0], network.vector), x).gradient(g)
    network.load(network.vector * 0.5)
    np.testing.assert_array_equal(publication.gradient(g), before)


def test_a_model_of_the_same_vector_gives_the_same_numbers():
    rng = np.random.default_rng(2)
    x, y = batch(rng, "binary")
    networks = [Network(spec, OPTIMIZERS[0], seed) for seed, spec in enumerate(BOTTOMS)]
    spec = top_spec("concatenate", 1)
    top = Network(spec, OPTIMIZERS[0], 4)
    for part in x:
        part.flags.writeable = False
    publications = [publish(network, part) for network, part in zip(networks, x, strict=True)]
    embeddings = [Model(s, n.vector).output(part) for s, n, part in zip(BOTTOMS, networks, x, strict=True)]
    for publication, network, part, embedding in zip(publications, networks, x, embeddings, strict=True):
        np.testing.assert_array_equal(publication.embed(), embedding)
        np.testing.assert_array_equal(network.model.output(part), embedding)
    stateful = loss_gradients(top.model, embeddings, y, "binary")
    pure = loss_gradients(Model(spec, top.vector), embeddings, y, "binary")
    assert stateful.loss == pure.loss
    np.testing.assert_array_equal(stateful.gradient, pure.gradient)
    np.testing.assert_array_equal(joint_output(top.model, embeddings), pure.output)
    g = pure.embedding_gradients[0]
    again = Publication(Model(BOTTOMS[0], networks[0].vector), x[0])
    np.testing.assert_array_equal(publications[0].gradient(g), again.gradient(g))


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=["sgd", "momentum", "adam"])
def test_state_dict_continues_exactly(optimizer):
    rng = np.random.default_rng(3)
    x, g = rng.normal(size=(6, 8, 5)), rng.normal(size=(6, 8, 4))
    straight = Network(BOTTOMS[0], optimizer, 0)
    resumed = Network(BOTTOMS[0], optimizer, 7)
    for i in range(6):
        if i == 3:
            resumed.load_state_dict(straight.state_dict())
        straight.apply(publish(straight, x[i]).gradient(g[i]))
        if i >= 3:
            resumed.apply(publish(resumed, x[i]).gradient(g[i]))
    np.testing.assert_array_equal(straight.vector, resumed.vector)
    assert straight.version == resumed.version == 6


def test_single_precision_and_initial_vector():
    spec = ModelSpec(name="mlp", inputs=(5,), outputs=4)
    network = Network(spec, OptimizerSpec(), 11)
    np.testing.assert_array_equal(network.vector, initial_vector(spec, 11))
    assert publish(network, np.zeros((2, 5))).embed().dtype == np.float32


def test_optimizer_step_leaves_its_inputs():
    vector, gradient = torch.ones(3), torch.full((3,), 2.0)
    made = optimizer_step(OptimizerSpec(learning_rate=0.5, weight_decay=1.0), vector, gradient, OptimizerState())
    assert made.tolist() == [-0.5] * 3
    assert vector.tolist() == [1.0] * 3
    assert gradient.tolist() == [2.0] * 3


@pytest.mark.slow
def test_refusals():
    with pytest.raises(ValueError, match="buffers"):
        Network(ModelSpec(name="resnet18", inputs=(1, 8, 8), outputs=2, norm="batch"), OptimizerSpec(), 0)
    with pytest.raises(ValueError, match="values"):
        Network(BOTTOMS[0], OptimizerSpec(), 0).load(np.zeros(3))
    with pytest.raises(BadInput, match="learning_rate"):
        OptimizerSpec(learning_rate=0.0)
    with pytest.raises(BadInput, match="sgd, adam"):
        OptimizerSpec(name="lion")


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=["sgd", "momentum", "adam"])
def test_a_network_is_part_of_an_actors_snapshot(optimizer):
    x, g = np.ones((2, 5)), np.full((2, 4), 0.1)
    owner = SimpleNamespace(bottom=Network(BOTTOMS[0], optimizer, 0))
    fresh = SimpleNamespace(bottom=Network(BOTTOMS[0], optimizer, 1))
    owner.bottom.apply(publish(owner.bottom, x).gradient(g))
    frame = snapshots.seal(snapshots.capture(owner, ["bottom"]))
    snapshots.apply(fresh, snapshots.unseal(frame, "snapshot"))
    for one in (owner, fresh):
        one.bottom.apply(publish(one.bottom, x).gradient(g))
    np.testing.assert_array_equal(owner.bottom.vector, fresh.bottom.vector)
