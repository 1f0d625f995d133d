"""What attackers see of a run, the model and what each site makes of it, or their sum; and neighbours for a replay.

With aggregators it is they who see what each site makes of the model; the audit takes it that all of them attack.

A neighbour has the rows of another client in place of one client's, or with `record_clip_norm` one row otherwise: its
features another row's, zeros or large, and another label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedactors.actors.context import derived_seed
from fedactors.auditing.attacks import MOST_HOLDERS, Surface, models_surface
from fedactors.auditing.replay import replaced_client, replaced_rows
from fedactors.data.layouts.horizontal import HorizontalData, read_reading, rows_key, rows_of
from fedactors.data.layouts.vertical import Neighbour
from fedactors.data.new_rows import actor_state
from fedactors.errors import BadInput
from fedactors.learning.local_training import LocalTraining
from fedactors.protocols.horizontal import algorithm, client_dp
from fedactors.protocols.horizontal.algorithm import NOTHING
from fedactors.protocols.horizontal.config import HorizontalConfig
from fedactors.protocols.horizontal.data import sites_of
from fedactors.protocols.horizontal.run import SERVER
from fedactors.protocols.horizontal.serving import make_part
from fedactors.protocols.horizontal.standardisation import as_read
from fedactors.serving.parts import Part


def neighbours(
    config: HorizontalConfig, data: HorizontalData, party: str, count: int, seed: int
) -> Sequence[Neighbour]:
    """Return up to `count` neighbours, of kind ``client`` or ``row``, of the party, or of any site for the server's."""
    sites = sites_of(config, data)
    held = sites[party] if party in sites else range(data.num_clients)
    pairs = [(one, other) for one in held for other in range(data.num_clients) if one != other]
    chosen = np.random.default_rng(seed).permutation(len(pairs))[:count]
    if config.record_clip_norm is not None:
        return replaced_rows(data, held, count, seed)
    return [replaced_client(data, *pairs[index]) for index in chosen]


def surface(config: HorizontalConfig, data: HorizontalData, states: Mapping[str, bytes], seed: int) -> Surface:
    """Return what the server reads of one more round with all clients of the first ten sites.

    Each site's model, or with `secure_aggregation` their mean only; SCAFFOLD's clients train here without its controls.
    """
    if config.local_parameters:
        raise BadInput(
            "--attacks: not for a run with local_parameters: the attackers here take whole models, and none leaves"
        )
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
            _trainings(config, part, model.spec.inputs, keys, data.num_clients),
            [],
            NOTHING,
            config.counts_samples,
            config.together,
            "cpu",
            config.record_privacy,
            [tuple(np.random.SeedSequence([seed, client]).generate_state(4).tolist()) for client in clients],
            reading.target,
        )
        models[name] = (model.vector + found.change).astype(model.vector.dtype)
        weights.append(found.weight)
        held = [rows_of(key) for key in keys]
        labels = np.concatenate([algorithm.as_trained(y, reading.target) for _, y in held])
        rows[name] = (np.concatenate([x for x, _ in held]), labels)
    if config.is_private:
        models = dict.fromkeys(models, _noised_model(config, data, model, part.task, seed))
    x_N, y_N = rows_of(rows_key(as_read(data.test(), reading)))
    others = x_N, algorithm.as_trained(y_N, reading.target)
    masked = weights if config.secure_aggregation and not config.is_private else None
    return models_surface(model.spec, part.task, part.num_classes, model.vector, models, rows, others, seed, masked)


def _trainings(
    config: HorizontalConfig, part: Part, inputs: tuple[int, ...], keys: Sequence[bytes], num_clients: int
) -> list[LocalTraining]:
    """Return how clients train in the last round."""
    found = [
        algorithm.local_steps(config, part.task, part.num_classes, inputs, rows_of(key)[1], num_clients) for key in keys
    ]
    return [algorithm.local_training(config, part.task, config.num_rounds, steps, inputs) for steps in found]


def _noised_model(config: HorizontalConfig, data: HorizontalData, model: Any, task: Any, seed: int) -> Any:
    """Return the model that a round of all clients under noise makes, which is all that is seen of them."""
    keys = [rows_key(data.client(client)) for client in range(data.num_clients)]
    seeds = [derived_seed(seed, f"client {client}", "rows of attackers") for client in range(data.num_clients)]
    training = algorithm.local_training(config, task, config.num_rounds)
    assert config.client_clip_norm is not None
    norm, bit = config.client_clip_norm, client_dp.bit_share(config, float(data.num_clients))
    total = client_dp.private_sum(model.spec, model.vector, keys, seeds, training, norm, bit, config.together, "cpu")
    noise = np.random.default_rng([seed, 3]).normal(scale=config.client_noise_multiplier, size=total.shape)
    whole = replace(config, client_sampling_rate=None, clients_per_round=None, max_epsilon=None)
    made, _ = client_dp.advance(
        whole, model.spec, algorithm.ServerModel.begin(config, model.vector), total + noise, norm, data.num_clients
    )
    return made.vector
