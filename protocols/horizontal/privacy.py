"""What attackers see of a run: the model, and what each site makes of it, or of their sum."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedactors.actors.context import derived_seed
from fedactors.auditing.attacks import MOST_HOLDERS, Surface, models_surface
from fedactors.data.layouts.horizontal import HorizontalData, read_reading, rows_key, rows_of
from fedactors.data.new_rows import actor_state
from protocols.horizontal import algorithm
from protocols.horizontal.algorithm import NOTHING
from protocols.horizontal.config import HorizontalConfig
from protocols.horizontal.data import sites_of
from protocols.horizontal.run import SERVER
from protocols.horizontal.serving import make_part
from protocols.horizontal.standardisation import as_read


def surface(config: HorizontalConfig, data: HorizontalData, states: Mapping[str, bytes], seed: int) -> Surface:
    """Return what the server reads of one more round with all clients of the first ten sites.

    Each site's model, or with `secure_aggregation` their mean only; SCAFFOLD's clients train here without its controls.
    """
    part = make_part(config, actor_state(states, SERVER))
    model, reading = part.models["bottom"], read_reading(actor_state(states, SERVER)["reading"])
    models, weights, rows = {}, [], {}
    for name, clients in list(sites_of(config, data).items())[:MOST_HOLDERS]:
        keys = [rows_key(as_read(data.client(client), reading)) for client in clients]
        found = algorithm.train(
            model.spec,
            model.vector,
            keys,
            [derived_seed(seed, f"client {client}", "rows of attackers") for client in clients],
            algorithm.local_training(config, part.task, config.num_rounds),
            [],
            NOTHING,
            config.counts_samples,
            config.together,
            "cpu",
        )
        models[name] = (model.vector + found.change).astype(model.vector.dtype)
        weights.append(found.weight)
        held = [rows_of(key) for key in keys]
        rows[name] = (np.concatenate([x for x, _ in held]), np.concatenate([y for _, y in held]))
    others, masked = rows_of(rows_key(as_read(data.test(), reading))), weights if config.secure_aggregation else None
    return models_surface(model.spec, part.task, part.num_classes, model.vector, models, rows, others, seed, masked)
