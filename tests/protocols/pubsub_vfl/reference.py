"""What split learning that is written down plainly begins with: all rows, labels and first networks, in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedactors.actors.context import derived_seed
from fedactors.data.party_rows import prepare, split
from fedactors.learning.models import build_model
from fedactors.protocols.pubsub_vfl import algorithm
from fedactors.protocols.pubsub_vfl.data import load_data

Modules = dict[str, torch.nn.Module]


def beginning(source: Any, config: Any) -> tuple[Any, dict[str, torch.Tensor], torch.Tensor, Modules, torch.nn.Module]:
    """Return the data, each party's features, the labels, each party's bottom network and the top one."""
    data = load_data(config, source, 0) if isinstance(source, str) else source
    seed = derived_seed(0, "all parties", "batches")
    prepared = {}
    for party in data.parties:
        block = data.load(party)
        parts = split(
            len(block.ids),
            seed=seed,
            test_fraction=config.test_fraction,
            validation_fraction=config.validation_fraction,
        )
        prepared[party] = prepare(block, np.arange(len(block.ids)), parts, data.task)
    features = {p: torch.from_numpy(b.train.features).double() for p, b in prepared.items()}
    labels = torch.from_numpy(prepared["active"].train.labels)
    bottoms = {
        p: build_model(algorithm.bottom_spec(config, x.shape[1]), derived_seed(0, p, "bottom"))
        for p, x in features.items()
    }
    return (
        data,
        features,
        labels,
        bottoms,
        build_model(algorithm.top_spec(config, data), derived_seed(0, "active", "top")),
    )
