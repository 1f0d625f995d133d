"""Steps of the local updates: the library's optimisers are the oracle."""

import pytest
import torch

from protocols.glasu import algorithm
from protocols.glasu.algorithm import Descent

DOUBLE = torch.float64


@pytest.mark.parametrize(
    ("descent", "reference"),
    [
        (Descent(learning_rate=0.1, weight_decay=0.02), lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.02)),
        (Descent(learning_rate=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        (
            Descent(optimiser="adam", learning_rate=0.01, weight_decay=0.1),
            lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
        ),
    ],
)
def test_descent_equals_the_library_optimiser(descent, reference):
    generator = torch.Generator().manual_seed(0)
    parameters = {name: torch.randn(3, 2, dtype=DOUBLE, generator=generator) for name in "ab"}
    theirs = [value.clone().requires_grad_() for value in parameters.values()]
    optimiser, state = reference(theirs), algorithm.start_optimiser(parameters, descent)
    for _ in range(5):
        gradients = {name: torch.randn(3, 2, dtype=DOUBLE, generator=generator) for name in parameters}
        for value, gradient in zip(theirs, gradients.values(), strict=True):
            value.grad = gradient.clone()
        optimiser.step()
        parameters, state = algorithm.descend(parameters, gradients, state, descent)
    assert state.step == 5
    for mine, value in zip(parameters.values(), theirs, strict=True):
        torch.testing.assert_close(mine, value.detach(), rtol=1e-10, atol=1e-12)


def test_learning_rate_decays_by_steps():
    descent = Descent(learning_rate=0.08)
    rates = [algorithm.decayed(descent, t, 8, 0.25).learning_rate for t in (0, 7, 8, 15, 16)]
    assert rates == pytest.approx([0.08, 0.08, 0.02, 0.02, 0.005])
    assert algorithm.decayed(descent, 100, None, 0.25) == descent
