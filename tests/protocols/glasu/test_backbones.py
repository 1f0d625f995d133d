"""What the layers multiply with: dropped entries, sparse features, their transpose."""

import numpy as np
import pytest
import torch
from torch import Tensor

from fedactors.config import build
from fedactors.protocols.glasu import backbones, sampling
from fedactors.protocols.glasu.config import GlasuConfig

DOUBLE = torch.float64


def test_dropped_entries_depend_on_round_and_layer_only():
    ones = torch.ones(50, 20)
    first = backbones.drop(ones, 0.5, 3, 1)
    assert torch.equal(first, backbones.drop(ones, 0.5, 3, 1))
    assert not torch.equal(first, backbones.drop(ones, 0.5, 3, 2))
    assert not torch.equal(first, backbones.drop(ones, 0.5, 4, 1))
    assert set(first.unique().tolist()) == {0.0, 2.0}


def test_mostly_zero_features_are_kept_sparse():
    features = np.zeros((10, 10))
    features[3, 4] = 2.0
    compact = backbones.compact_features(features, DOUBLE)
    assert isinstance(compact, backbones.Operator)
    weight = torch.randn(10, 3, dtype=DOUBLE)
    assert torch.equal(backbones.multiply(compact, weight), torch.from_numpy(features) @ weight)
    assert isinstance(backbones.compact_features(features + 1, DOUBLE), Tensor)


def test_dropping_keeps_the_mean_and_drops_the_asked_share():
    for rate in (0.1, 0.5, 0.9):
        dropped = backbones.drop(torch.ones(400, 500), rate, 7, 0)
        assert abs((dropped == 0).float().mean().item() - rate) < 0.005
        assert abs(dropped.mean().item() - 1) < 0.02


def test_sparse_features_lose_stored_pairs_and_so_does_their_transpose():
    features = np.random.default_rng(0).random((30, 40)) * (np.random.default_rng(1).random((30, 40)) < 0.1)
    whole = backbones.sparse_features(features, DOUBLE)
    dropped = backbones.drop_pairs(whole, 0.5, 5, 2)
    dense = dropped.matrix_TS.to_dense()
    assert torch.equal(dropped.transposed_ST.to_dense(), dense.T)
    kept = dense != 0
    assert 0 < int(kept.sum()) < np.count_nonzero(features)
    torch.testing.assert_close(dense[kept], 2 * torch.from_numpy(features)[kept])
    assert torch.equal(whole.matrix_TS.to_dense(), torch.from_numpy(features))
    assert torch.equal(backbones.drop_pairs(whole, 0.5, 5, 2).matrix_TS.values(), dropped.matrix_TS.values())


def test_gradients_pass_through_dropped_features():
    features = np.zeros((6, 20))
    features[[0, 1, 2, 3], [3, 5, 5, 9]] = [1.0, 2.0, 3.0, 4.0]
    dropped = backbones.drop_pairs(backbones.sparse_features(features, DOUBLE), 0.5, 1, 0)
    weight = torch.randn(20, 3, dtype=DOUBLE, requires_grad=True)
    backbones.multiply(dropped, weight).sum().backward()
    expected = dropped.matrix_TS.to_dense().T @ torch.ones(6, 3, dtype=DOUBLE)
    torch.testing.assert_close(weight.grad, expected)


USER_MODEL = "tests.learning.user_networks"


@pytest.mark.parametrize("sparse", [False, True])
def test_a_layer_of_ones_own_that_is_gcn_gives_its_numbers_and_gradients(sparse):
    rng = np.random.default_rng(0)
    graph = sampling.adjacency(np.array([[0, 1, 2, 0], [1, 2, 3, 4]]), 6)
    features = rng.normal(size=(6, 5)) * (rng.random((6, 5)) < (0.3 if sparse else 2))
    h = backbones.sparse_features(features, torch.float64) if sparse else torch.from_numpy(features)
    matrix = backbones.operator(sampling.full_block(graph), torch.float64)
    config = build(GlasuConfig, {"user_layer": f"{USER_MODEL}:convolution", "hidden_size": 3, "num_layers": 2})
    network = backbones.Network.of(config, 5, 2, 0)
    made = backbones.initial_parameters(network, rng, rng, torch.float64)
    assert {name: tuple(one.shape) for name, one in made.items() if name.startswith("0.")} == {
        "0.weight": (5, 3), "0.bias": (3,)
    }  # fmt: skip
    leaves = {name: value.requires_grad_() for name, value in made.items()}
    ours = backbones.user_layer(leaves, network, 0, matrix, h)
    plain = backbones.gcn_layer(leaves, 0, matrix, h)
    torch.testing.assert_close(ours, plain)
    used = [leaves["0.weight"], leaves["0.bias"]]
    torch.testing.assert_close(torch.autograd.grad(ours.sum(), used), torch.autograd.grad(plain.sum(), used))
