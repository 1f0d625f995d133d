"""Split networks: aggregation, accordance of the token, theta_0, quadrants."""

import numpy as np
import pytest
import torch

from fedactors.errors import BadInput
from protocols.mtcd import algorithm, network

SIZE, CLASSES, BATCH, CLIENTS = 4, 3, 12, 3


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def setting(aggregation, seed=0):
    generator = np.random.default_rng(seed)
    module = network.representation_model("mlp", (5,), 8, SIZE)
    fusion = network.fusion_model(aggregation, CLIENTS, SIZE, CLASSES)
    thetas = [network.initial_parameters(module, generator) for _ in range(CLIENTS)]
    xs = [generator.standard_normal((BATCH, 5)).astype(np.float32) for _ in range(CLIENTS)]
    labels = generator.integers(0, CLASSES, BATCH)
    theta_0 = network.initial_parameters(fusion, generator)
    return module, fusion, thetas, theta_0, xs, labels


def z_of(module, thetas, xs, aggregation):
    return network.aggregate([network.represent(module, t, x) for t, x in zip(thetas, xs, strict=True)], aggregation)


@pytest.mark.parametrize("aggregation", ["sum", "concatenation"])
@pytest.mark.parametrize("update_fusion", [False, True])
def test_visit_equals_gradient_descent_on_the_whole_network(aggregation, update_fusion):
    module, fusion, thetas, theta_0, xs, labels = setting(aggregation)
    z = z_of(module, thetas, xs, aggregation)
    new_theta, new_theta_0, new_z = network.visit(
        module,
        fusion,
        thetas[1],
        theta_0,
        xs[1],
        labels,
        z,
        client=1,
        aggregation=aggregation,
        step=0.1,
        num_local_steps=3,
        update_fusion=update_fusion,
    )
    block = {name: torch.tensor(a, requires_grad=True) for name, a in thetas[1].items()}
    head = {name: torch.tensor(a, requires_grad=True) for name, a in theta_0.items()}
    for _ in range(3):
        parts = [torch.tensor(network.represent(module, t, x)) for t, x in zip(thetas, xs, strict=True)]
        hidden = torch.relu(torch.tensor(xs[1]) @ block["hidden.weight"].T + block["hidden.bias"])
        parts[1] = hidden @ block["out.weight"].T + block["out.bias"]
        joined = sum(parts) if aggregation == "sum" else torch.cat(parts, dim=1)
        logits = torch.relu(joined) @ head["out.weight"].T + head["out.bias"]
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(labels))
        moving = [*block.values(), *(head.values() if update_fusion else ())]
        with torch.no_grad():
            for p, g in zip(moving, torch.autograd.grad(loss, moving), strict=True):
                p -= 0.1 * g
    for name, array in new_theta.items():
        np.testing.assert_allclose(array, block[name].detach().numpy(), atol=1e-5)
        assert not np.array_equal(array, thetas[1][name])
    for name, array in new_theta_0.items():
        np.testing.assert_allclose(array, head[name].detach().numpy(), atol=1e-5)
    thetas[1] = new_theta
    np.testing.assert_allclose(new_z, z_of(module, thetas, xs, aggregation), atol=1e-5)


@pytest.mark.parametrize("aggregation", ["sum", "concatenation"])
def test_frozen_arguments_are_left_alone_and_results_are_repeatable(aggregation):
    module, fusion, thetas, theta_0, xs, labels = setting(aggregation)
    z = z_of(module, thetas, xs, aggregation)
    for array in (*thetas[0].values(), *theta_0.values(), xs[0], labels, z):
        array.setflags(write=False)

    def once():
        return network.visit(
            module,
            fusion,
            thetas[0],
            theta_0,
            xs[0],
            labels,
            z,
            client=0,
            aggregation=aggregation,
            step=0.1,
            num_local_steps=2,
            update_fusion=True,
        )

    first, second = once(), once()
    assert first[2].tobytes() == second[2].tobytes()
    assert all(first[0][name].tobytes() == second[0][name].tobytes() for name in first[0])


def test_server_steps_on_theta_0_lower_the_loss_with_z_frozen():
    module, fusion, thetas, theta_0, xs, labels = setting("sum")
    z = z_of(module, thetas, xs, "sum")
    trained = network.fusion_steps(fusion, theta_0, z, labels, step=0.2, num_steps=30)
    assert network.predict(fusion, trained, z, labels)[0] < network.predict(fusion, theta_0, z, labels)[0]


def test_mean_of_tokens_is_not_the_token_of_the_mean_for_nonlinear_representations():
    module, fusion, thetas, theta_0, xs, labels = setting("sum")
    z = z_of(module, thetas, xs, "sum")
    tokens, copies = [], []
    for step in (0.5, 2.0):
        theta, _, moved = network.visit(
            module,
            fusion,
            thetas[0],
            theta_0,
            xs[0],
            labels,
            z,
            client=0,
            aggregation="sum",
            step=step,
            num_local_steps=5,
            update_fusion=False,
        )
        copies.append(theta)
        tokens.append(moved)
    synced = network.combine(thetas[0], dict(enumerate(copies)), algorithm.overlapping_weights(2))
    rebuilt = z_of(module, [synced, *thetas[1:]], xs, "sum")
    assert np.abs(algorithm.average_tokens(tokens) - rebuilt).max() > 1e-4


def test_combine_takes_the_own_clusters_copy_or_the_mean_with_absent_tokens():
    theta = {"w": np.array([1.0, 2.0], dtype=np.float32)}
    copies = {0: {"w": np.array([4.0, 2.0], dtype=np.float32)}}
    assert network.combine(theta, copies, algorithm.cluster_weights(0, 2))["w"].tolist() == [4.0, 2.0]
    assert network.combine(theta, copies, algorithm.overlapping_weights(3))["w"].tolist() == [2.0, 2.0]
    assert network.combine(theta, {}, algorithm.overlapping_weights(3))["w"].tolist() == [1.0, 2.0]


def test_training_by_visits_learns():
    module, fusion, thetas, theta_0, xs, labels = setting("concatenation")
    z = z_of(module, thetas, xs, "concatenation")
    before = network.predict(fusion, theta_0, z, labels)
    for visit in range(30):
        k = visit % CLIENTS
        thetas[k], theta_0, z = network.visit(
            module,
            fusion,
            thetas[k],
            theta_0,
            xs[k],
            labels,
            z,
            client=k,
            aggregation="concatenation",
            step=0.3,
            num_local_steps=5,
            update_fusion=True,
        )
    after = network.predict(fusion, theta_0, z, labels)
    assert after[0] < 0.2 * before[0]
    assert after[1] == 1.0


@pytest.mark.parametrize(
    ("kind", "shape", "width"), [("mlp", (5,), 8), ("resnet18", (3, 16, 16), 4), ("multi-view-cnn", (1, 16, 16), 4)]
)
def test_representations_depend_on_each_row_alone(kind, shape, width):
    generator = np.random.default_rng(0)
    module = network.representation_model(kind, shape, width, SIZE)
    theta = network.initial_parameters(module, generator)
    assert not list(module.buffers())
    x = generator.standard_normal((4, *shape)).astype(np.float32)
    h = network.represent(module, theta, x)
    assert h.shape == (4, SIZE)
    assert np.ptp(h, axis=0).max() > 1e-4
    np.testing.assert_allclose(network.represent(module, theta, x[1:2]), h[1:2], atol=1e-5)


def test_resnet18_has_eighteen_weighted_layers():
    module = network.ResNet18(3, 64, 16)
    main = [name for name, p in module.named_parameters() if p.dim() > 1 and "shortcut" not in name]
    assert len(main) == 18


def test_quadrants_partition_an_image():
    x = np.arange(2 * 1 * 4 * 6, dtype=np.float32).reshape(2, 1, 4, 6)
    quadrants = network.image_quadrants(x)
    assert [q.shape for q in quadrants] == [(2, 1, 2, 3)] * 4
    top, bottom = np.concatenate(quadrants[:2], axis=3), np.concatenate(quadrants[2:], axis=3)
    np.testing.assert_array_equal(np.concatenate([top, bottom], axis=2), x)


def test_a_shape_that_does_not_suit_the_model_is_named():
    with pytest.raises(BadInput, match="network: resnet18"):
        network.representation_model("resnet18", (5,), 8, SIZE)
