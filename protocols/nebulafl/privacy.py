"""What attackers see of a run: the model that it ended with, and each center's, or their sum; and neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedactors.actors.context import derived_seed
from fedactors.auditing.attacks import MOST_HOLDERS, Surface, models_surface
from fedactors.auditing.replay import replaced_client, replaced_rows
from fedactors.data.layouts.horizontal import HorizontalData, rows_key, rows_of
from fedactors.data.layouts.vertical import Neighbour
from fedactors.data.new_rows import actor_state
from fedactors.learning.local_training import weighted_mean
from fedactors.protocols.nebulafl.config import NebulaFLConfig
from fedactors.protocols.nebulafl.data import containers_of, read_catalogue
from fedactors.protocols.nebulafl.serving import make_part
from fedactors.protocols.nebulafl.training import noise_of, run_model, steps_of, train


def neighbours(config: NebulaFLConfig, data: HorizontalData, party: str, count: int, seed: int) -> Sequence[Neighbour]:
    """Return up to `count` neighbours, of kind ``client`` (a container) or ``row``, of the center's.

    A container keeps its number of rows, which is public, and decides how long it trains.
    """
    names, held = read_catalogue(config.catalogue).first_centers(config.num_centers), containers_of(config, data)
    local = list(held[names.index(party)]) if party in names else list(range(data.num_clients))
    if config.record_clip_norm is not None:
        return replaced_rows(data, local, count, seed)
    pairs = [(one, other) for one in local for other in range(data.num_clients) if one != other]
    chosen = np.random.default_rng(seed).permutation(len(pairs))[:count]
    return [replaced_client(data, *pairs[index], as_many=True) for index in chosen]


def surface(config: NebulaFLConfig, data: HorizontalData, states: Mapping[str, bytes], seed: int) -> Surface:
    """Return what other centers, or the exchange, read of the first ten centers.

    Under NebulaFL each center's master at the end; under a baseline the mean of what a center's containers make of the
    run's model in one more training, with `secure_aggregation` the mean over all centers only.
    """
    found = {name: make_part(config, name, actor_state(states, name)) for name in sorted(states)}
    parts = {name: one for name, one in found.items() if one is not None}
    first = next(iter(parts.values()))
    model = run_model(config, data, first.models["bottom"].spec.inputs)
    spec, vectors = first.models["bottom"].spec, {name: one.models["bottom"].vector for name, one in parts.items()}
    common_P = weighted_mean(list(vectors.values()), [1.0] * len(vectors))
    names = read_catalogue(config.catalogue).first_centers(config.num_centers)
    models, weights, rows, steps = {}, [], {}, steps_of(config)
    for name, clients in list(zip(names, containers_of(config, data), strict=True))[:MOST_HOLDERS]:
        held = [rows_of(rows_key(data.client(client))) for client in clients]
        rows[name] = (np.concatenate([x for x, _ in held]), np.concatenate([y for _, y in held]))
        local = [vector for actor, vector in vectors.items() if actor.partition("/")[0] == name]
        if config.algorithm == "nebulafl" and local:
            models[name] = local[0]
        else:
            made = [
                train(
                    model,
                    common_P,
                    rows_key(data.client(one)),
                    derived_seed(seed, f"container {one}", "rows"),
                    steps,
                    b"",
                    "cpu",
                    *noise_of(config, (seed, one)),
                )
                for one in clients
            ]
            models[name] = weighted_mean([vector for vector, *_ in made], [float(size) for _, _, size, _ in made])
        weights.append(float(len(rows[name][1])))
    others, masked = rows_of(rows_key(data.test())), weights if config.secure_aggregation else None
    return models_surface(spec, first.task, first.num_classes, common_P, models, rows, others, seed, masked)
