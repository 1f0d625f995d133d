"""The optimisers against torch.optim, in every form in which values come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from fedactors.errors import BadInput
from fedactors.learning.optimizers import OptimizerSpec, OptimizerState, Schedule, optimizer_step

SPECS = {
    "sgd": OptimizerSpec(learning_rate=0.05, weight_decay=0.01),
    "momentum": OptimizerSpec(learning_rate=0.05, momentum=0.9, weight_decay=0.01),
    "adam": OptimizerSpec(name="adam", learning_rate=0.01, weight_decay=0.1),
    "adamw": OptimizerSpec(name="adamw", learning_rate=0.01, weight_decay=0.1),
    "clipped": OptimizerSpec(learning_rate=0.05, momentum=0.9, weight_decay=0.01, clip_norm=8.0),
    "clipped adam": OptimizerSpec(name="adam", learning_rate=0.01, clip_norm=0.1),
}
SHAPES = ((3, 7), (5,), (2, 3, 11))


def reference(spec: OptimizerSpec, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    options: dict[str, Any] = {"lr": spec.learning_rate, "weight_decay": spec.weight_decay}
    if spec.name == "sgd":
        return torch.optim.SGD(parameters, momentum=spec.momentum, **options)
    return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[spec.name](parameters, **options)


def tensors(seed: int) -> list[torch.Tensor]:
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(rng.normal(size=shape)) for shape in SHAPES]


def flat(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.detach().reshape(-1) for part in parts])


def follow(spec: OptimizerSpec, form: str, num_steps: int, state: OptimizerState | None = None) -> np.ndarray:
    """Return the values (flat) after some steps in one of the forms."""
    state = state or OptimizerState()
    parts = tensors(0)
    values: Any = {"vector": flat(parts), "array": flat(parts).numpy(), "list": parts}[form]
    for seed in range(1, num_steps + 1):
        gradients: Any = {"vector": flat(tensors(seed)), "array": flat(tensors(seed)).numpy(), "list": tensors(seed)}[
            form
        ]
        values = optimizer_step(spec, values, gradients, state)
    return flat(values).numpy() if form == "list" else np.asarray(values)


@pytest.mark.parametrize("form", ["vector", "array", "list"])
@pytest.mark.parametrize("name", SPECS)
def test_every_form_follows_torch_optim(name: str, form: str) -> None:
    parameters = [part.requires_grad_() for part in tensors(0)]
    optimizer, lengths = reference(SPECS[name], parameters), list[float]()
    for seed in range(1, 16):
        for parameter, gradient in zip(parameters, tensors(seed), strict=True):
            parameter.grad = gradient
        if SPECS[name].clip_norm is not None:
            lengths.append(float(torch.nn.utils.clip_grad_norm_(parameters, SPECS[name].clip_norm)))
        optimizer.step()
    assert not lengths or max(lengths) > (SPECS[name].clip_norm or 0.0)
    found = follow(SPECS[name], form, 15)
    np.testing.assert_allclose(found, flat(parameters).numpy(), rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["sgd", "momentum"])
def test_for_sgd_a_vector_and_a_list_agree_to_the_bit(name: str) -> None:
    sizes = (64, 128)  # multiples of a vector register: elsewhere the last elements may be rounded otherwise
    rng = np.random.default_rng(0)
    parts: Sequence[torch.Tensor] = [torch.from_numpy(rng.normal(size=size).astype(np.float32)) for size in sizes]
    vector, one, other = flat(parts), OptimizerState(), OptimizerState()
    for _ in range(10):
        gradients = [torch.from_numpy(rng.normal(size=size).astype(np.float32)) for size in sizes]
        vector = optimizer_step(SPECS[name], vector, flat(gradients), one)
        parts = optimizer_step(SPECS[name], parts, gradients, other)
    assert torch.equal(vector, flat(parts))


@pytest.mark.parametrize("form", ["vector", "array", "list"])
@pytest.mark.parametrize("name", SPECS)
def test_in_place_gives_the_same_numbers_in_the_same_memory(name: str, form: str) -> None:
    values: Any = {"vector": flat(tensors(0)), "array": flat(tensors(0)).numpy(), "list": tensors(0)}[form]
    state = OptimizerState()
    for seed in range(1, 4):
        gradients: Any = {"vector": flat(tensors(seed)), "array": flat(tensors(seed)).numpy(), "list": tensors(seed)}[
            form
        ]
        assert optimizer_step(SPECS[name], values, gradients, state, in_place=True) is values
    found = flat(values).numpy() if form == "list" else np.asarray(values)
    np.testing.assert_array_equal(found, follow(SPECS[name], form, 3))


def test_the_parameters_of_a_module_are_changed_where_they_are() -> None:
    module = torch.nn.Linear(3, 2)
    parameters: list[torch.Tensor] = list(module.parameters())
    module(torch.ones(4, 3)).sum().backward()
    before = [parameter.detach().clone() for parameter in parameters]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    optimizer_step(OptimizerSpec(learning_rate=0.5), parameters, gradients, OptimizerState(), in_place=True)
    for parameter, old, gradient in zip(module.parameters(), before, gradients, strict=True):
        assert torch.equal(parameter.detach(), old - 0.5 * gradient)
        assert parameter.requires_grad


@pytest.mark.parametrize("form", ["vector", "array", "list"])
@pytest.mark.parametrize("name", SPECS)
def test_values_and_gradients_stay_as_they_are(name: str, form: str) -> None:
    values: Any = {"vector": flat(tensors(0)), "array": flat(tensors(0)).numpy(), "list": tensors(0)}[form]
    gradients: Any = {"vector": flat(tensors(1)), "array": flat(tensors(1)).numpy(), "list": tensors(1)}[form]
    state = OptimizerState()
    for _ in range(2):
        optimizer_step(SPECS[name], values, gradients, state)
    for found, seed in ((values, 0), (gradients, 1)):
        flattened = flat(found) if form == "list" else torch.as_tensor(found)
        assert torch.equal(flattened, flat(tensors(seed)))


@pytest.mark.parametrize("form", ["vector", "array", "list"])
@pytest.mark.parametrize("name", SPECS)
def test_a_state_goes_on_exactly_and_a_copy_leaves_it_alone(name: str, form: str) -> None:
    state = OptimizerState()
    follow(SPECS[name], form, 3, state)
    restored = OptimizerState()
    restored.load_state_dict(state.state_dict())
    follow(SPECS[name], form, 2, state.copy())
    np.testing.assert_array_equal(follow(SPECS[name], form, 4, restored), follow(SPECS[name], form, 4, state))
    assert restored.step == state.step == 7


def test_schedules_are_torchs() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    for schedule, reference_of in (
        (Schedule(), lambda o: torch.optim.lr_scheduler.ConstantLR(o, factor=1.0)),
        (Schedule(name="cosine"), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=12)),
        (Schedule(name="step", every=5, factor=0.3), lambda o: torch.optim.lr_scheduler.StepLR(o, 5, gamma=0.3)),
    ):
        optimizer = torch.optim.SGD([parameter], lr=0.7)
        scheduler = reference_of(optimizer)
        for number in range(12):
            rate = OptimizerSpec(learning_rate=0.7).scaled(schedule.at(number, 12)).learning_rate
            assert rate == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
            optimizer.step()
            scheduler.step()


def test_what_a_schedule_refuses() -> None:
    for given, line in (
        ({"name": "linear"}, "schedule: 'linear' is not allowed"),
        ({"every": 0}, "decay_every: 0 is not allowed"),
        ({"factor": 1.5}, "decay_factor: 1.5 is not allowed"),
    ):
        with pytest.raises(BadInput, match=line):
            Schedule(**given)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="clip_norm: 0 is not allowed"):
        OptimizerSpec(clip_norm=0)


def test_refusals() -> None:
    with pytest.raises(BadInput, match=r"optimizer: 'lion' is not allowed \(sgd, adam, adamw\)"):
        OptimizerSpec(name="lion")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"momentum: 0\.9 is not allowed: only with optimizer sgd"):
        OptimizerSpec(name="adam", momentum=0.9)
