"""Joint inference, local updates and joint gradients, composed in one process from plain clients."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedactors.learning.optimizers import OptimizerSpec, OptimizerState
from fedactors.privacy.mechanisms import clip_rows, clip_rows_backward
from fedactors.protocols.glasu import algorithm, backbones, sampling
from fedactors.protocols.glasu.algorithm import ClientBatch, Stale
from fedactors.protocols.glasu.backbones import Network, Parameters

NODES, FEATURES, CLASSES, HIDDEN = 40, 5, 3, 8
DOUBLE = torch.float64


@dataclass
class PlainClient:
    network: Network
    parameters: Parameters
    graph: sampling.Adjacency
    features: np.ndarray
    state: OptimizerState
    batch: ClientBatch | None = None


@dataclass
class Inference:
    """What a joint inference leaves: H[l+1] of each aggregation, each client's parts and stale entries."""

    aggregated: list[Tensor]
    parts: list[list[Tensor]]
    stale: list[list[Stale]]


def world(
    num_clients, aggregation_layers, *, backbone="gcn", aggregation="average", num_layers=4, seed=0, edges=120, **more
):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, NODES)
    clients = []
    for position in range(num_clients):
        network = Network(
            backbone=backbone, num_layers=num_layers, aggregation_layers=aggregation_layers, aggregation=aggregation,
            num_clients=num_clients, position=position, num_features=FEATURES + position, hidden_size=HIDDEN,
            num_classes=CLASSES, num_heads=2 if backbone == "gat" else 1, **more,
        )  # fmt: skip
        parameters = backbones.initial_parameters(network, rng, np.random.default_rng(99), DOUBLE)
        graph = sampling.adjacency(rng.integers(0, NODES, (2, edges)), NODES)
        features = rng.normal(size=(NODES, FEATURES + position))
        clients.append(PlainClient(network, parameters, graph, features, OptimizerState()))
    return clients, labels


def full_batches(clients, labels, seed=0):
    rows = torch.arange(0, NODES, 2)
    for client in clients:
        operator = backbones.operator(sampling.full_block(client.graph), DOUBLE)
        layers = client.network.num_layers
        client.batch = ClientBatch(
            torch.from_numpy(client.features), (operator,) * layers, (None,) * layers,
            torch.from_numpy(labels)[rows], rows, seed,
        )  # fmt: skip


def sampled_batches(clients, labels, rng, batch_size=6, num_neighbours=2):
    """Algorithm 2: every level that an aggregation writes is the union of the clients' index sets."""
    network = clients[0].network
    batch = sampling.choose_batch(np.arange(NODES), batch_size, rng)
    layers = [[] for _ in clients]
    targets = batch
    for index in reversed(range(len(network.segments))):
        found = [
            sampling.sample_segment(client.graph, targets, len(network.segments[index]), num_neighbours, rng)
            for client in clients
        ]
        if index:
            targets = sampling.union([one[0].sources_S for one in found])
            for one in found:
                one[0] = one[0].with_sources(targets)
        for mine, one in zip(layers, found, strict=True):
            mine[:0] = one
    for client, mine in zip(clients, layers, strict=True):
        client.batch = ClientBatch(
            torch.from_numpy(client.features[mine[0].sources_S]),
            tuple(backbones.operator(sampling.block(client.graph, layer), DOUBLE) for layer in mine),
            tuple(torch.from_numpy(rows) for rows in sampling.initial_rows(mine)),
            torch.from_numpy(labels[batch]),
        )
    return layers


def aggregate(parts, aggregation):
    """Agg with autograd: the oracle of what the server does with arrays."""
    return torch.cat(parts, dim=1) if aggregation == "concatenation" else sum(parts) / len(parts)


def joint_inference(clients) -> Inference:
    """Algorithm 3."""
    made = Inference([], [], [[] for _ in clients])
    network = clients[0].network
    initial = [algorithm.initial_representation(c.parameters, c.network, c.batch) for c in clients]
    inputs = [h for h, _ in initial]
    for index in range(len(network.segments)):
        parts = [
            algorithm.segment(c.parameters, c.network, c.batch, index, h, h0)
            for c, h, (_, h0) in zip(clients, inputs, initial, strict=True)
        ]
        aggregated = aggregate(parts, network.aggregation)
        for entries, part in zip(made.stale, parts, strict=True):
            entries.append(algorithm.extract(aggregated, part))
        made.parts.append(parts)
        made.aggregated.append(aggregated)
        inputs = [aggregated] * len(clients)
    return made


def cross_gradients(clients, inference: Inference):
    """Mode joint: the server sums the clients' gradients and sends each its share, from the last aggregation down."""
    crosses, shares = [[] for _ in clients], []
    for index in reversed(range(len(clients[0].network.segments))):
        if index == len(clients[0].network.segments) - 1:
            local = [
                algorithm.head_gradient(c.parameters, c.network, c.batch, inference.aggregated[index])[1]
                for c in clients
            ]
        else:
            local = [
                algorithm.segment_gradient(
                    c.parameters, c.network, c.batch, index + 1, inference.aggregated[index], share
                )
                for c, share in zip(clients, shares, strict=True)
            ]
        shares = [algorithm.share_of_gradient(sum(local), c.network) for c in clients]
        for mine, c, share, gradient in zip(crosses, clients, shares, local, strict=True):
            mine.insert(0, algorithm.cross_gradient(share, gradient, c.network))
    return crosses


def train_round(clients, optimizer, num_local_updates, joint=False):
    inference = joint_inference(clients)
    crosses = cross_gradients(clients, inference) if joint else [None] * len(clients)
    losses = []
    for client, stale, cross in zip(clients, inference.stale, crosses, strict=True):
        client.parameters, client.state, mine = algorithm.local_updates(
            client.parameters, client.network, client.batch, optimizer, client.state, stale, cross, num_local_updates
        )
        losses.append(mine)
    return losses


def monolithic_gradients(clients):
    """Autograd of the mean loss through everybody's layers at once."""
    leaves = [{k: v.detach().requires_grad_() for k, v in c.parameters.items()} for c in clients]
    live = [replace(c, parameters=mine) for c, mine in zip(clients, leaves, strict=True)]
    last = joint_inference(live).aggregated[-1]
    loss = sum(algorithm.loss_of(algorithm.classify(c.parameters, last), c.batch) for c in live) / len(live)
    flat = [value for mine in leaves for value in mine.values()]
    gradients = iter(torch.autograd.grad(loss, flat, allow_unused=True))
    return [{name: next(gradients) for name in mine} for mine in leaves]


CASES = [
    (backbone, aggregation, layers)
    for backbone in ("gcn", "gat", "gcnii")
    for aggregation in ("average", "concatenation")
    for layers in ((3,), (1, 3), (0, 1, 2, 3))
]


@pytest.mark.parametrize(("backbone", "aggregation", "layers"), CASES)
@pytest.mark.parametrize("sampled", [False, True])
def test_local_forward_before_any_update_is_the_joint_forward_exactly(backbone, aggregation, layers, sampled):
    clients, labels = world(3, layers, backbone=backbone, aggregation=aggregation, dropout=0.3, clip_norm=2.0)
    if sampled:
        sampled_batches(clients, labels, np.random.default_rng(1))
    else:
        full_batches(clients, labels, seed=5)
    inference = joint_inference(clients)
    for position, client in enumerate(clients):
        logits, fresh = algorithm.local_forward(
            client.parameters, client.network, client.batch, inference.stale[position]
        )
        assert torch.equal(logits, algorithm.classify(client.parameters, inference.aggregated[-1]))
        for index, part in enumerate(fresh):
            assert torch.equal(part, inference.parts[index][position])
    other = replace(clients[0].batch, features=clients[0].batch.features * 2)
    assert not torch.equal(
        algorithm.local_forward(clients[0].parameters, clients[0].network, other, inference.stale[0])[0],
        algorithm.classify(clients[0].parameters, inference.aggregated[-1]),
    )


@pytest.mark.parametrize(("backbone", "aggregation", "layers"), CASES)
@pytest.mark.parametrize("joint", [False, True])
def test_the_joint_inference_is_the_first_updates_forward_pass(backbone, aggregation, layers, joint, monkeypatch):
    clients, labels = world(3, layers, backbone=backbone, aggregation=aggregation, dropout=0.3)
    full_batches(clients, labels, seed=5)
    inference = joint_inference(clients)
    crosses = cross_gradients(clients, inference) if joint else [None] * 3
    optimizer = OptimizerSpec(learning_rate=0.1, momentum=0.9)
    for position, client in enumerate(clients):
        stale, arguments = inference.stale[position], (client.network, client.batch)
        traced = algorithm.traceable(client.parameters)
        part, h0 = algorithm.infer_lowest(traced, *arguments)
        local = [part]
        for index in range(1, len(layers)):
            local.append(
                algorithm.infer_segment(traced, *arguments, index, inference.aggregated[index - 1], local[-1], h0)
            )
        for part, parts in zip(local, inference.parts, strict=True):
            assert torch.equal(part.values, parts[position])
        rest = (optimizer, client.state, stale, crosses[position], 2)
        expected = algorithm.local_updates(client.parameters, *arguments, *rest)
        with monkeypatch.context() as patched:
            passes = []
            patched.setattr(algorithm, "local_forward", counted(algorithm.local_forward, passes))
            found = algorithm.local_updates(traced, *arguments, *rest, local)
        assert len(passes) == 1  # the second update's
        assert found[2] == expected[2]
        for name, value in expected[0].items():
            assert torch.equal(found[0][name], value)
            assert not found[0][name].requires_grad


def counted(function, calls):
    def call(*arguments):
        calls.append(arguments)
        return function(*arguments)

    return call


@pytest.mark.parametrize("aggregation", ["average", "concatenation"])
def test_aggregation_after_extraction_is_the_identity(aggregation):
    clients, _ = world(3, (3,), aggregation=aggregation)
    parts = list(torch.randn(3, 7, HIDDEN, dtype=DOUBLE, generator=torch.Generator().manual_seed(0)))
    aggregated = aggregate(parts, aggregation)
    for client, part in zip(clients, parts, strict=True):
        stale = algorithm.extract(aggregated, part)
        assert torch.equal(algorithm.aggregate_locally(stale, part, client.network), aggregated)


def test_extraction_leaves_what_the_others_sent():
    clients, _ = world(3, (3,))
    parts = [torch.full((2, HIDDEN), value, dtype=DOUBLE) for value in (3.0, 6.0, 12.0)]
    aggregated = aggregate(parts, "average")
    assert torch.equal(aggregated, torch.full((2, HIDDEN), 7.0, dtype=DOUBLE))
    nothing = torch.zeros(2, HIDDEN, dtype=DOUBLE)
    left = algorithm.aggregate_locally(algorithm.extract(aggregated, parts[1]), nothing, clients[1].network)
    assert torch.equal(left, torch.full((2, HIDDEN), 5.0, dtype=DOUBLE))
    clients, _ = world(3, (3,), aggregation="concatenation")
    joined = aggregate(parts, "concatenation")
    fresh = torch.ones(2, HIDDEN, dtype=DOUBLE)
    again = algorithm.aggregate_locally(algorithm.extract(joined, parts[1]), fresh, clients[1].network)
    assert torch.equal(again, torch.cat([parts[0], fresh, parts[2]], dim=1))


def test_own_part_of_the_average_carries_one_mth_of_the_gradient():
    clients, _ = world(4, (3,))
    part = torch.randn(5, HIDDEN, dtype=DOUBLE).requires_grad_()
    stale = algorithm.extract(torch.randn(5, HIDDEN, dtype=DOUBLE), part)
    (gradient,) = torch.autograd.grad(algorithm.aggregate_locally(stale, part, clients[0].network).sum(), [part])
    assert torch.equal(gradient, torch.full_like(gradient, 0.25))


def plain_network(backbone, matrix, features, weights):
    """A textbook network on a dense adjacency matrix with self loops, written without the package's layers."""
    h = h0 = (
        functional.relu(features @ weights["input.weight"] + weights["input.bias"]) if backbone == "gcnii" else features
    )
    for layer in range(4):
        weight = weights[f"{layer}.weight"]
        if backbone == "gcn":
            h = functional.relu(matrix @ h @ weight + weights[f"{layer}.bias"])
        elif backbone == "gcnii":
            theta = np.log(0.5 / (layer + 1) + 1)
            s = 0.9 * matrix @ h + 0.1 * h0
            h = functional.relu(theta * s @ weight + (1 - theta) * s)
        else:
            heads = []
            for head in range(2):
                z = h @ weight[:, head * HIDDEN // 2 : (head + 1) * HIDDEN // 2]
                score = (
                    z @ weights[f"{layer}.attend_target"][head][:, None] + z @ weights[f"{layer}.attend_source"][head]
                )
                score = functional.leaky_relu(score, 0.2).masked_fill(matrix == 0, -torch.inf)
                heads.append(torch.softmax(score, dim=1) @ z)
            h = functional.elu(torch.cat(heads, dim=1) + weights[f"{layer}.bias"])
    return h @ weights["classifier.weight"] + weights["classifier.bias"]


def dense_adjacency(graph):
    matrix = np.eye(NODES)
    for node in range(NODES):
        matrix[node, graph.indices[graph.indptr[node] : graph.indptr[node + 1]]] = 1
    scale = 1 / np.sqrt(matrix.sum(1))
    return torch.from_numpy(scale[:, None] * matrix * scale)


@pytest.mark.parametrize("backbone", ["gcn", "gat", "gcnii"])
@pytest.mark.parametrize("num_local_updates", [1, 3])
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_one_client_is_the_centralised_network_step_by_step(backbone, num_local_updates, joint, sparse):
    clients, labels = world(1, (0, 1, 2, 3), backbone=backbone)
    full_batches(clients, labels)
    client = clients[0]
    if sparse:
        client.batch = replace(client.batch, features=backbones.sparse_features(client.features, DOUBLE))
    weights = {name: value.clone().requires_grad_() for name, value in client.parameters.items()}
    descent = torch.optim.SGD(weights.values(), lr=0.1, weight_decay=0.01)
    matrix, features = dense_adjacency(client.graph), torch.from_numpy(client.features)
    for _ in range(3):
        losses = train_round(
            clients, OptimizerSpec(learning_rate=0.1, weight_decay=0.01), num_local_updates, joint=joint
        )[0]
        for loss in losses:
            descent.zero_grad()
            logits = plain_network(backbone, matrix, features, weights)
            expected = functional.cross_entropy(logits[client.batch.loss_rows], client.batch.labels_B)
            expected.backward()
            descent.step()
            assert loss == pytest.approx(float(expected.detach()), rel=1e-10)
        for name, value in client.parameters.items():
            torch.testing.assert_close(value, weights[name].detach(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("backbone", "aggregation", "layers"), CASES)
@pytest.mark.parametrize("sampled", [False, True])
def test_joint_gradient_is_that_of_the_monolithic_model(backbone, aggregation, layers, sampled):
    clients, labels = world(3, layers, backbone=backbone, aggregation=aggregation)
    if sampled:
        sampled_batches(clients, labels, np.random.default_rng(1))
    else:
        full_batches(clients, labels)
    inference = joint_inference(clients)
    crosses = cross_gradients(clients, inference)
    for client, stale, cross, expected in zip(
        clients, inference.stale, crosses, monolithic_gradients(clients), strict=True
    ):
        _, gradients = algorithm.loss_and_gradients(client.parameters, client.network, client.batch, stale, cross)
        for name, value in gradients.items():
            torch.testing.assert_close(value, expected[name], rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("layers", [(1, 3), (0, 1, 2, 3)])
def test_paper_gradient_is_exact_only_from_the_second_last_aggregation_on(layers):
    clients, labels = world(3, layers)
    full_batches(clients, labels)
    inference = joint_inference(clients)
    for client, stale, expected in zip(clients, inference.stale, monolithic_gradients(clients), strict=True):
        _, gradients = algorithm.loss_and_gradients(client.parameters, client.network, client.batch, stale)
        for layer in range(4):
            mine, full = gradients[f"{layer}.weight"], expected[f"{layer}.weight"]
            if layer > layers[-2]:
                torch.testing.assert_close(mine, full, rtol=1e-8, atol=1e-12)
            else:
                cosine = functional.cosine_similarity(mine.flatten(), full.flatten(), dim=0)
                assert cosine < 0.98
        torch.testing.assert_close(gradients["classifier.weight"], 3 * expected["classifier.weight"])


def test_one_aggregation_without_edges_is_block_coordinate_descent():
    clients, labels = world(3, (1,), num_layers=2, edges=0)
    full_batches(clients, labels)
    rows, picked = clients[0].batch.loss_rows, clients[0].batch.labels_B
    features = [torch.from_numpy(c.features)[rows] for c in clients]
    weights = [{k: v.clone() for k, v in c.parameters.items()} for c in clients]

    def embed(x, w):
        h = functional.relu(x @ w["0.weight"] + w["0.bias"])
        return functional.relu(h @ w["1.weight"] + w["1.bias"])

    for _ in range(3):
        sent = [embed(x, w) for x, w in zip(features, weights, strict=True)]
        moved = []
        for party in range(3):
            mine = {k: v.clone().requires_grad_() for k, v in weights[party].items()}
            frozen = sum(part for other, part in enumerate(sent) if other != party).detach()
            for _ in range(4):
                mean = (frozen + embed(features[party], mine)) / 3
                loss = functional.cross_entropy(mean @ mine["classifier.weight"] + mine["classifier.bias"], picked)
                gradients = torch.autograd.grad(loss, list(mine.values()))
                mine = {
                    k: (v - 0.2 * g).detach().requires_grad_()
                    for (k, v), g in zip(mine.items(), gradients, strict=True)
                }
            moved.append({k: v.detach() for k, v in mine.items()})
        weights = moved
        train_round(clients, OptimizerSpec(learning_rate=0.2), 4)
        for client, expected in zip(clients, weights, strict=True):
            for name, value in client.parameters.items():
                torch.testing.assert_close(value, expected[name], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("joint", [False, True])
def test_local_updates_touch_only_the_own_parameters(joint):
    clients, labels = world(3, (1, 3), backbone="gcnii")
    full_batches(clients, labels)
    inference = joint_inference(clients)
    crosses = cross_gradients(clients, inference) if joint else [None] * 3
    before = [{k: v.clone() for k, v in c.parameters.items()} for c in clients]
    kept = [s.aggregated_SW.clone() for s in inference.stale[0]]
    client = clients[0]
    updated, _, losses = algorithm.local_updates(
        client.parameters, client.network, client.batch, OptimizerSpec(learning_rate=0.1), client.state,
        inference.stale[0], crosses[0], 4,
    )  # fmt: skip
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    assert all(not torch.equal(updated[name], before[0][name]) for name in updated)
    for one, old in zip(clients, before, strict=True):
        assert all(torch.equal(one.parameters[name], old[name]) for name in old)
    assert all(torch.equal(s.aggregated_SW, old) for s, old in zip(inference.stale[0], kept, strict=True))


def test_equal_classifiers_stay_equal_with_one_update_and_drift_with_more():
    clients, labels = world(3, (1, 3))
    full_batches(clients, labels)
    train_round(clients, OptimizerSpec(learning_rate=0.1), 1)
    weights = [c.parameters["classifier.weight"] for c in clients]
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=1e-14)
    train_round(clients, OptimizerSpec(learning_rate=0.1), 2)
    assert not torch.allclose(clients[0].parameters["classifier.weight"], clients[1].parameters["classifier.weight"])


def test_clipping_bounds_rows_and_leaves_short_ones():
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]], requires_grad=True)
    clipped = clip_rows(rows, 1.0)
    torch.testing.assert_close(clipped, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))
    (gradient,) = torch.autograd.grad(clipped.sum(), rows)
    expected = clip_rows_backward(rows.detach().numpy(), np.ones((3, 2), np.float32), 1.0)
    torch.testing.assert_close(gradient, torch.from_numpy(expected))


def test_a_row_that_overflows_is_clipped_to_zeros():
    """What is not finite would go through added noise as it is: a server could choose aggregates for that."""
    rows = torch.tensor([[torch.inf, 1.0], [torch.nan, 1.0], [1e25, 1.0], [3.0, 4.0]], requires_grad=True)
    clipped = clip_rows(rows, 1.0)
    torch.testing.assert_close(clipped[:2], torch.zeros(2, 2))
    assert torch.linalg.vector_norm(clipped, dim=1).max() <= 1 + 1e-6
    (gradient,) = torch.autograd.grad(clipped.sum(), rows)
    assert gradient.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["paper", "joint"])
def test_training_lowers_the_loss_of_every_client_on_sampled_batches(mode):
    clients, labels = world(3, (1, 3), backbone="gcnii", seed=4)
    rng, optimizer = np.random.default_rng(0), OptimizerSpec(name="adam", learning_rate=0.02)
    history = []
    for _ in range(60):
        sampled_batches(clients, labels, rng, batch_size=20)
        history.append(np.mean(train_round(clients, optimizer, 2, joint=mode == "joint")))
    assert np.mean(history[-10:]) < 0.7 * np.mean(history[:5])


def test_segments_end_at_the_aggregation_layers():
    clients, _ = world(2, (1, 3), aggregation="concatenation", backbone="gcnii")
    network = clients[0].network
    assert network.segments == (range(0, 2), range(2, 4))
    assert [network.input_width(layer) for layer in range(5)] == [HIDDEN, HIDDEN, 2 * HIDDEN, HIDDEN, 2 * HIDDEN]


def communities(num_nodes=150, num_classes=3, seed=0):
    """A block graph whose three clients each hold some edges and features that tell one class from the others."""
    rng = np.random.default_rng(seed)
    labels = np.arange(num_nodes) % num_classes
    pairs = np.array(np.triu_indices(num_nodes, 1))
    same = labels[pairs[0]] == labels[pairs[1]]
    edges = pairs[:, rng.random(pairs.shape[1]) < np.where(same, 0.04, 0.015)]
    shares = []
    for position in range(3):
        features = rng.normal(size=(num_nodes, 4)) + 1.5 * (labels == position)[:, None]
        shares.append((edges[:, rng.random(edges.shape[1]) < 0.8], features))
    return labels, shares


def fit(labels, shares, *, standalone=False, rounds=40, num_local_updates=1, joint=False):
    """Train on a quarter of the nodes; returns the test accuracy (mean over clients where each works alone)."""
    rng, optimizer = np.random.default_rng(3), OptimizerSpec(name="adam", learning_rate=0.01, weight_decay=1e-3)
    rows = torch.arange(0, len(labels), 4)
    target, clients = torch.from_numpy(labels), []
    for position, (edges, features) in enumerate(shares):
        network = Network(
            backbone="gcn", num_layers=2, aggregation_layers=(0, 1), num_clients=1 if standalone else 3,
            position=0 if standalone else position, num_features=4, hidden_size=16, num_classes=3,
        )  # fmt: skip
        parameters = backbones.initial_parameters(network, rng, np.random.default_rng(1), DOUBLE)
        graph = sampling.adjacency(edges, len(labels))
        operator = backbones.operator(sampling.full_block(graph), DOUBLE)
        batch = ClientBatch(torch.from_numpy(features), (operator,) * 2, (None,) * 2, target[rows], rows)
        clients.append(PlainClient(network, parameters, graph, features, OptimizerState(), batch))
    groups = [[client] for client in clients] if standalone else [clients]
    test = torch.tensor([node for node in range(len(labels)) if node % 4])
    reached = []
    for group in groups:
        for _ in range(rounds):
            train_round(group, optimizer, num_local_updates, joint=joint)
        last = joint_inference(group).aggregated[-1]
        logits = sum(algorithm.classify(client.parameters, last) for client in group)
        reached.append(float((logits[test].argmax(1) == target[test]).double().mean()))  # type: ignore[index]
    return float(np.mean(reached))


@pytest.mark.slow
@pytest.mark.parametrize(("num_local_updates", "joint"), [(1, False), (4, False), (1, True), (4, True)])
def test_clients_together_know_what_none_knows_alone(num_local_updates, joint):
    labels, shares = communities()
    alone = fit(labels, shares, standalone=True)
    together = fit(labels, shares, num_local_updates=num_local_updates, joint=joint)
    assert together > alone + 0.15
    assert together > 0.75


def test_later_local_updates_drop_other_entries():
    clients, labels = world(1, (3,), backbone="gcnii", dropout=0.5)
    full_batches(clients, labels)
    client, still = clients[0], OptimizerSpec(learning_rate=1e-300)
    _, _, losses = algorithm.local_updates(
        client.parameters, client.network, client.batch, still, client.state, [], None, 2
    )
    _, _, again = algorithm.local_updates(
        client.parameters, client.network, client.batch, still, client.state, [], None, 1
    )
    assert losses[0] == again[0]
    assert losses[0] != losses[1]


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("backbone", ["gcn", "gcnii"])
def test_the_first_segment_is_that_of_the_joint_inference(backbone, sampled):
    clients, labels = world(2, (1, 3), backbone=backbone)
    if sampled:
        sampled_batches(clients, labels, np.random.default_rng(1))
    else:
        full_batches(clients, labels)
    inference = joint_inference(clients)
    for client, part in zip(clients, inference.parts[0], strict=True):
        found, h0 = algorithm.first_segment(client.parameters, client.network, client.batch)
        assert torch.equal(found, part)
        assert (h0 is not None) == (backbone == "gcnii")


def test_operations_are_two_for_each_entry_and_weight_that_meet():
    """GCN on a batch of its own levels: the features by W[0], each level's pairs, each level's nodes by W[l]."""
    (client,), labels = world(1, (3,))
    levels = sampled_batches([client], labels, np.random.default_rng(1))[0]
    pairs = [len(operator.rows_E) for operator in client.batch.operators]
    written = [len(level.targets_T) for level in levels]
    read = len(levels[0].sources_S)
    assert written[0] < read  # a level that is written is smaller than the one that is read
    product = [2 * (p * HIDDEN + n * HIDDEN * HIDDEN) for p, n in zip(pairs, written, strict=True)]
    of_features = 2 * read * client.network.num_features * HIDDEN
    assert algorithm.forward_operations(client.network, client.batch, range(4)) == sum(product) + of_features
    assert algorithm.forward_operations(client.network, client.batch, (2, 3)) == product[2] + product[3]
    wide = replace(client.network, num_clients=3, aggregation="concatenation", aggregation_layers=(1, 3))
    expected = 2 * (pairs[2] * HIDDEN + written[2] * HIDDEN * 3 * HIDDEN)
    assert algorithm.forward_operations(wide, client.batch, (2,)) == expected
    whole, labels = world(1, (3,))
    full_batches(whole, labels)
    entries = backbones.compact_features(np.eye(NODES), DOUBLE)
    sparse = replace(whole[0].batch, features=entries)
    dense = algorithm.forward_operations(whole[0].network, whole[0].batch, (0,))
    saved = 2 * HIDDEN * (whole[0].batch.features.numel() - NODES)
    assert dense - algorithm.forward_operations(whole[0].network, sparse, (0,)) == saved
