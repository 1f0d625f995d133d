"""An actor's declared state as a frame, and back."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
import torch

from fedactors.errors import BadInput
from fedactors.messages.codec import CodecError
from fedactors.runtime import snapshots
from tests.runtime.actors import Update


class Owner:
    """Holds one value of each kind that may be part of a snapshot."""

    def __init__(self, seed: int) -> None:
        self.number = seed
        self.words = ["a", ("b", None), {"c", "d"}, frozenset({1}), {1: 2.5, "x": b"y"}]
        self.recent: deque[int] = deque([1, 2], maxlen=3)
        self.array = np.arange(float(seed))
        self.tensor = torch.arange(float(seed))
        self.rng = np.random.default_rng(seed)
        self.old_rng = np.random.Generator(np.random.MT19937(seed))
        self.torch_rng = torch.Generator().manual_seed(seed)
        self.update: Update | None = Update("a", seed, np.ones(2))
        torch.manual_seed(seed)
        self.module = torch.nn.Linear(3, 2)
        self.optimizer = torch.optim.Adam(self.module.parameters(), lr=0.1 * seed)
        self.sampler = self.rng

    names = (
        *("number", "words", "recent", "array", "tensor", "rng", "old_rng", "torch_rng", "update"),
        *("module", "optimizer"),
    )

    def step(self) -> list[Any]:
        self.optimizer.zero_grad()
        self.module(torch.ones(4, 3)).sum().backward()
        self.optimizer.step()
        return [
            self.module.weight.detach().numpy().copy(),
            self.rng.normal(size=3),
            self.old_rng.normal(size=3),
            torch.rand(2, generator=self.torch_rng).numpy(),
        ]


def test_everything_goes_on_as_if_nothing_had_happened() -> None:
    first, second = Owner(3), Owner(5)
    first.step()
    first.recent.append(9)
    frame = snapshots.seal(snapshots.capture(first, Owner.names))
    expected = first.step()
    snapshots.apply(second, snapshots.unseal(frame, "a frame"))
    assert second.words == first.words
    assert [type(v) for v in second.words] == [type(v) for v in first.words]
    assert second.recent == deque([1, 2, 9])
    assert second.recent.maxlen == 3
    assert second.number == 3
    assert second.update is not None
    assert second.update.round == 3
    np.testing.assert_array_equal(second.tensor.numpy(), first.tensor.numpy())
    second.array[0] = 7.0  # state is one's own to write to
    assert second.sampler is second.rng  # restored in place: others may hold the same generator
    for got, wanted in zip(second.step(), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_the_same_state_gives_the_same_bytes() -> None:
    frames = [snapshots.seal(snapshots.capture(Owner(4), Owner.names)) for _ in range(2)]
    assert frames[0] == frames[1]


def test_what_cannot_be_part_of_a_snapshot_is_named() -> None:
    class Wrong:
        thing = object()

    with pytest.raises(CodecError, match=r"Wrong.thing holds a object, which cannot be part of a snapshot"):
        snapshots.capture(Wrong(), ["thing"])


def test_a_frame_sets_nothing_but_the_declared_state() -> None:
    class Owner:
        state = ("epoch",)

        def __init__(self) -> None:
            self.epoch, self.sigma = 0, 1.0

    owner = Owner()
    with pytest.raises(BadInput, match="a checkpoint names sigma, which Owner keeps in no snapshot"):
        snapshots.apply(owner, {"epoch": ("plain", 3), "sigma": ("plain", 0.0)})
    assert (owner.epoch, owner.sigma) == (0, 1.0)
