"""Split networks: aggregation, accordance of the token, theta_0, quadrants."""

import numpy as np
import pytest
import torch

from fedactors.errors import BadInput
from fedactors.learning.models import ModelSpec, build_skeleton
from fedactors.protocols.mtcd import algorithm, networks
from fedactors.protocols.mtcd.data import _quadrant
from tests.protocols.mtcd import by_hand
from tests.protocols.mtcd.running import config_of

SIZE, CLASSES, BATCH, CLIENTS = 4, 3, 12, 3


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def setting(aggregation, seed=0):
    generator = np.random.default_rng(seed)
    config = config_of(
        f"problem=network num_clients={CLIENTS} num_tokens=1 representation_size={SIZE} hidden_size=8 "
        f"aggregation={aggregation}"
    )
    bottom, fusion = networks.bottom_spec(config, (5,)), networks.fusion_spec(config, CLASSES)
    thetas = [networks.initial(bottom, generator) for _ in range(CLIENTS)]
    xs = [generator.standard_normal((BATCH, 5)).astype(np.float32) for _ in range(CLIENTS)]
    labels = generator.integers(0, CLASSES, BATCH)
    return bottom, fusion, thetas, networks.initial(fusion, generator), xs, labels


def z_of(bottom, thetas, xs, aggregation):
    parts = {k: networks.represent(bottom, t, x, None) for k, (t, x) in enumerate(zip(thetas, xs, strict=True))}
    return algorithm.aggregate(parts, CLIENTS if aggregation == "concatenation" else None)


def local_slices(client, aggregation):
    slot = slice(client * SIZE, (client + 1) * SIZE)
    return (slice(None), slot) if aggregation == "concatenation" else (slice(None),)


def visit(bottom, fusion, theta, theta_0, x, labels, z, *, client, aggregation, step, num_local_steps, trains_theta_0):
    where = local_slices(client, aggregation)
    return networks.visit(
        bottom, fusion, theta, theta_0, x, labels, z, None, where, step, num_local_steps, trains_theta_0
    )


@pytest.mark.parametrize("aggregation", ["sum", "concatenation"])
@pytest.mark.parametrize("update_fusion", [False, True])
def test_visit_equals_gradient_descent_on_the_whole_network(aggregation, update_fusion):
    bottom, fusion, thetas, theta_0, xs, labels = setting(aggregation)
    z = z_of(bottom, thetas, xs, aggregation)
    new_theta, new_theta_0, new_z = visit(
        bottom,
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
        trains_theta_0=update_fusion,
    )
    block = {n: torch.tensor(a, requires_grad=True) for n, a in networks.named_parameters(bottom, thetas[1]).items()}
    head = {n: torch.tensor(a, requires_grad=True) for n, a in networks.named_parameters(fusion, theta_0).items()}
    for _ in range(3):
        parts = [torch.tensor(networks.represent(bottom, t, x, None)) for t, x in zip(thetas, xs, strict=True)]
        hidden = torch.relu(torch.tensor(xs[1]) @ block["0.weight"].T + block["0.bias"])
        parts[1] = hidden @ block["2.weight"].T + block["2.bias"]
        joined = sum(parts) if aggregation == "sum" else torch.cat(parts, dim=1)
        logits = torch.relu(joined) @ head["weight"].T + head["bias"]
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(labels))
        moving = [*block.values(), *(head.values() if update_fusion else ())]
        with torch.no_grad():
            for p, g in zip(moving, torch.autograd.grad(loss, moving), strict=True):
                p -= 0.1 * g
    for name, array in networks.named_parameters(bottom, new_theta).items():
        np.testing.assert_allclose(array, block[name].detach().numpy(), atol=1e-5)
        assert not np.array_equal(array, networks.named_parameters(bottom, thetas[1])[name])
    for name, array in networks.named_parameters(fusion, new_theta_0).items():
        np.testing.assert_allclose(array, head[name].detach().numpy(), atol=1e-5)
    thetas[1] = new_theta
    np.testing.assert_allclose(new_z, z_of(bottom, thetas, xs, aggregation), atol=1e-5)


@pytest.mark.parametrize("aggregation", ["sum", "concatenation"])
def test_frozen_arguments_are_left_alone_and_results_are_repeatable(aggregation):
    bottom, fusion, thetas, theta_0, xs, labels = setting(aggregation)
    z = z_of(bottom, thetas, xs, aggregation)
    for array in (thetas[0], theta_0, xs[0], labels, z):
        array.setflags(write=False)

    def once():
        return visit(
            bottom,
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
            trains_theta_0=True,
        )

    first, second = once(), once()
    assert first[2].tobytes() == second[2].tobytes()
    assert first[0].tobytes() == second[0].tobytes()


def test_server_steps_on_theta_0_lower_the_loss_with_z_frozen():
    bottom, fusion, thetas, theta_0, xs, labels = setting("sum")
    z = z_of(bottom, thetas, xs, "sum")
    trained = networks.fusion_steps(fusion, theta_0, z, labels, 0.2, 30)
    assert networks.score(fusion, trained, z, labels)["loss"] < networks.score(fusion, theta_0, z, labels)["loss"]


def test_mean_of_tokens_is_not_the_token_of_the_mean_for_nonlinear_representations():
    bottom, fusion, thetas, theta_0, xs, labels = setting("sum")
    z = z_of(bottom, thetas, xs, "sum")
    tokens, copies = [], []
    for step in (0.5, 2.0):
        theta, _, moved = visit(
            bottom,
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
            trains_theta_0=False,
        )
        copies.append(theta)
        tokens.append(moved)
    synced = algorithm.combine(thetas[0], dict(enumerate(copies)), 1 / 2)
    rebuilt = z_of(bottom, [synced, *thetas[1:]], xs, "sum")
    assert np.abs(by_hand.average_tokens(tokens) - rebuilt).max() > 1e-4


def test_combine_takes_the_own_clusters_copy_or_the_mean_with_absent_tokens():
    theta = np.array([1.0, 2.0], dtype=np.float32)
    copies = {0: np.array([4.0, 2.0], dtype=np.float32)}
    assert algorithm.combine(theta, copies, 1.0).tolist() == [4.0, 2.0]
    third = algorithm.combine(theta, copies, 1 / 3)
    assert (third.tolist(), third.dtype) == ([2.0, 2.0], np.float32)
    assert algorithm.combine(theta, {}, 1 / 3).tolist() == [1.0, 2.0]


def test_training_by_visits_learns():
    bottom, fusion, thetas, theta_0, xs, labels = setting("concatenation")
    z = z_of(bottom, thetas, xs, "concatenation")
    before = networks.score(fusion, theta_0, z, labels)
    for turn in range(30):
        k = turn % CLIENTS
        thetas[k], theta_0, z = visit(
            bottom,
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
            trains_theta_0=True,
        )
    after = networks.score(fusion, theta_0, z, labels)
    assert after["loss"] < 0.2 * before["loss"]
    assert after["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("kind", "shape", "width"), [("mlp", (5,), 8), ("resnet18", (3, 16, 16), 4), ("multi-view-cnn", (1, 16, 16), 4)]
)
def test_representations_depend_on_each_row_alone(kind, shape, width):
    generator = np.random.default_rng(0)
    spec = networks.bottom_spec(
        config_of(f"problem=network network={kind} hidden_size={width} representation_size={SIZE}"), shape
    )
    theta = networks.initial(spec, generator)
    assert not list(build_skeleton(spec).buffers())
    x = generator.standard_normal((4, *shape)).astype(np.float32)
    h = networks.represent(spec, theta, x, None)
    assert h.shape == (4, SIZE)
    assert np.ptp(h, axis=0).max() > 1e-4
    np.testing.assert_allclose(networks.represent(spec, theta, x[1:2], None), h[1:2], atol=1e-5)


def test_resnet18_has_eighteen_weighted_layers():
    spec = ModelSpec(name="narrow-resnet18", inputs=(3, 32, 32), outputs=16)
    main = [n for n, p in build_skeleton(spec).named_parameters() if p.dim() > 1 and "shortcut" not in n]
    assert len(main) == 18


def test_quadrants_partition_an_image():
    x = np.arange(2 * 1 * 4 * 6, dtype=np.float32).reshape(2, 1, 4, 6)
    quadrants = [_quadrant(x, client) for client in range(4)]
    assert [q.shape for q in quadrants] == [(2, 1, 2, 3)] * 4
    top, bottom = np.concatenate(quadrants[:2], axis=3), np.concatenate(quadrants[2:], axis=3)
    np.testing.assert_array_equal(np.concatenate([top, bottom], axis=2), x)


def test_a_shape_that_does_not_suit_the_model_is_named():
    with pytest.raises(BadInput, match="network: resnet18"):
        networks.bottom_spec(config_of("problem=network network=resnet18"), (5,))


def stepped(where, rows, device):
    """Return a visit and the server's steps, on features and labels that are arrays or lie with an actor."""
    bottom, fusion, thetas, theta_0, xs, labels = setting("sum")
    z = z_of(bottom, thetas, [x[rows] for x in xs], "sum")
    visited = networks.visit(
        *(
            bottom,
            fusion,
            thetas[0],
            theta_0,
            where(xs[0]),
            where(labels),
            z,
            rows,
            local_slices(0, "sum"),
            0.1,
            3,
            True,
            device,
        )
    )
    head = networks.fusion_steps(fusion, theta_0, z, labels[rows], 0.1, 3, device)
    return (*visited, networks.represent(bottom, thetas[0], where(xs[0]), rows, device), head)


def test_what_lies_with_an_actor_gives_the_numbers_of_arrays():
    rows = np.array([5, 1, 7])
    for made, plain in zip(stepped(torch.from_numpy, rows, "cpu"), stepped(np.asarray, rows, "cpu"), strict=True):
        assert isinstance(made, np.ndarray)
        np.testing.assert_array_equal(made, plain)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_gives_the_numbers_of_the_cpu():
    def there(values):
        return torch.from_numpy(values).cuda()

    rows = np.array([5, 1, 7])
    for made, plain in zip(stepped(there, rows, "cuda"), stepped(np.asarray, rows, "cpu"), strict=True):
        np.testing.assert_allclose(made, plain, rtol=1e-4, atol=1e-5)
