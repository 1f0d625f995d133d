"""Containers: the data owners of a center, as objects of the center's process.

**Trust.** There is no trusted execution environment here. A container is the boundary that the protocol is written
against: only trained models, counts and times leave it. But it is an object in its center's process, so that whoever
controls the center's host can read its rows. A deployment with enclaves puts its check in the attestation hook: a
container that fails is never handed a model, nor its rows read.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from fedactors.errors import BadInput
from protocols.nebulafl.data import Shard

Attestation = Callable[[str, bytes], bool]
"""``attest(container, nonce)``: whether the container proved what it runs; the nonce is fresh for each question."""


@dataclass(frozen=True)
class Container:
    """One data owner: its name and where its rows are."""

    name: str
    shard: Shard

    @property
    def num_samples(self) -> int:
        """Rows held."""
        return len(self.shard.rows)


def attestation_hook(address: str) -> Attestation | None:
    """Import the hook that a config names; None when it names none.

    Raises:
        BadInput: nothing callable is there.
    """
    if not address:
        return None
    module, _, name = address.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        found = None
    if not callable(found):
        raise BadInput(f"attestation: {address!r} is not allowed: give package.module:function that can be imported")
    hook: Attestation = found
    return hook
