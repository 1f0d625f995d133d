"""What attackers see of a run, the model and what each site makes of it, or their sum; and neighbours for a replay.

A neighbour has the rows of another client in place of one client's: what client-level claims speak of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from fedactors.actors.context import derived_seed
from fedactors.auditing.attacks import MOST_HOLDERS, Surface, models_surface
from fedactors.data.layouts.horizontal import HorizontalData, Rows, rows_key, rows_of
from fedactors.data.layouts.vertical import Neighbour
from fedactors.data.new_rows import actor_state
from protocols.horizontal import algorithm
from protocols.horizontal.algorithm import NOTHING
from protocols.horizontal.config import HorizontalConfig
from protocols.horizontal.data import sites_of
from protocols.horizontal.run import SERVER
from protocols.horizontal.serving import make_part


@dataclass(frozen=True, kw_only=True)
class _Swapped(HorizontalData):
    """Data in which one client has another one's rows."""

    changed: int
    source: int

    def client(self, index: int) -> Rows:
        """Return the source of a client's rows."""
        return super().client(self.source if index == self.changed else index)


def neighbours(
    config: HorizontalConfig, data: HorizontalData, party: str, count: int, seed: int
) -> Sequence[Neighbour]:
    """Return up to `count` neighbours of kind ``client``: a client of the party, or of any site for the server's."""
    sites = sites_of(config, data)
    held = sites[party] if party in sites else range(data.num_clients)
    pairs = [(one, other) for one in held for other in range(data.num_clients) if one != other]
    chosen = np.random.default_rng(seed).permutation(len(pairs))[:count]
    given = {field.name: getattr(data, field.name) for field in fields(data)}
    return [
        Neighbour(
            label=f"client {pairs[index][0]} with the rows of client {pairs[index][1]}",
            kind="client",
            data=_Swapped(**given, changed=pairs[index][0], source=pairs[index][1]),
        )
        for index in chosen
    ]


def surface(config: HorizontalConfig, data: HorizontalData, states: Mapping[str, bytes], seed: int) -> Surface:
    """Return what the server reads of one more round with all clients of the first ten sites.

    Each site's model, or with `secure_aggregation` their mean only; SCAFFOLD's clients train here without its controls.
    """
    part = make_part(config, actor_state(states, SERVER))
    model = part.models["bottom"]
    models, weights, rows = {}, [], {}
    for name, clients in list(sites_of(config, data).items())[:MOST_HOLDERS]:
        keys = [rows_key(data.client(client)) for client in clients]
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
    others, masked = rows_of(rows_key(data.test())), weights if config.secure_aggregation else None
    return models_surface(model.spec, part.task, part.num_classes, model.vector, models, rows, others, seed, masked)
