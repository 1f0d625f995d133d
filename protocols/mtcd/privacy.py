"""What one row of a party may move of all that it sends, neighbouring data for audits, and what attackers see.

Neighbouring relation: one sample's features at one party are others; labels, ids and row order are known to all. With
`noise` each row of a representation and of a visit's change of Z is clipped and noised, and a release is charged for
all its rows, since theta_k and the columns' scale are fitted on every sample. Only what leaves beside these can spoil
the claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.actors.context import derived_seed
from fedactors.auditing.attacks import SeenEmbeddings, SeenScores, Surface
from fedactors.data.layouts.vertical import Neighbour, VerticalData, replaced_rows
from fedactors.data.new_rows import actor_state
from fedactors.errors import BadInput
from fedactors.privacy.mechanisms import clip_and_noise
from fedactors.protocols.mtcd.config import MtcdConfig
from fedactors.protocols.mtcd.data import MtcdData, PartyRows, part_of
from fedactors.protocols.mtcd.serving import theta_0_of

Array = NDArray[Any]
_MOST_ROWS = 2000


def uncovered(config: MtcdConfig) -> list[str]:
    """Return in which ways what a party sends follows from its rows without noise."""
    found = []
    if config.problem != "network" and config.learning_rate == "auto":
        found.append("the step size is found with norms of the rows, without noise")
    if config.problem == "network" and config.algorithm == "stcd":
        found.append("theta_0 is trained at each visit, without noise, and travels with the token")
    return found


def neighbours(config: MtcdConfig, data: MtcdData, party: str, count: int, seed: int) -> Sequence[Neighbour]:
    """Return `count` neighbours of a party's data, one row replaced; the labels stay, which all parties know."""
    if not isinstance(data, VerticalData):
        raise BadInput(f"neighbours: {party} has public data, which no claim is about; name a table or own files")
    return replaced_rows(data, party, count, seed, keep_label=True)


def surface(config: MtcdConfig, data: MtcdData, states: Mapping[str, bytes], seed: int) -> Surface:
    """Return what attackers see of a trained model, of 2,000 rows of each part, drawn anew under the noise of the run.

    Who receives representations (the server; with `secure_aggregation` it reads their sum) knows the features of the
    test rows; who has Z and theta_0 sees how well the model fits a row. Labels are known to all parties.
    """
    if not isinstance(data, VerticalData):
        raise BadInput(f"--attacks: {data.parties[0]} has public data, which no attack finds more of; name a table")
    rng, batches = np.random.default_rng(seed), derived_seed(seed, "all parties", "batches")
    sigma = 0.0 if config.noise is None else config.noise_multiplier * config.clip_norm
    seen: dict[str, dict[str, Array]] = {"train": {}, "test": {}}
    features: dict[str, dict[str, Array]] = {"train": {}, "test": {}}
    z, labels, theta_0 = dict[str, Array](), dict[str, Array](), np.zeros(0)
    for client, name in enumerate(data.parties):
        state = actor_state(states, name)
        rows = PartyRows(config, part_of(data, client), batches)
        rows.load()
        rows.load_state_dict(state["rows"])
        block = rows.block(name)
        for part, labels[part] in block.y.items():
            task = block.represent(np.asarray(state["theta"]), None, part)
            local = np.asarray(task.function(*task.arguments))
            if sigma:
                flat = local.reshape(len(local), -1)
                local = clip_and_noise(flat, config.clip_norm, sigma, rng).reshape(local.shape)
            z.setdefault(part, block.blank(len(local)))[block.local] += local
            seen[part][name], features[part][name] = (
                local.reshape(len(local), -1),
                block.x[part].reshape(len(local), -1),
            )
    for name in states:
        if len(found := theta_0_of(actor_state(states, name))):
            theta_0 = found
    scores = {part: -row_losses(config, z[part], theta_0, labels[part], data.num_classes)[:_MOST_ROWS] for part in z}
    if config.secure_aggregation:
        seen = {part: dict.fromkeys(found, z[part].reshape(len(z[part]), -1)) for part, found in seen.items()}
    return Surface(
        embeddings=[
            SeenEmbeddings(
                name=name,
                seen_BE=seen["train"][name][:_MOST_ROWS],
                features_BF=features["train"][name][:_MOST_ROWS],
                shadow_seen_SE=seen["test"][name][:_MOST_ROWS],
                shadow_features_SF=features["test"][name][:_MOST_ROWS],
            )
            for name in data.parties
        ],
        scores=[SeenScores(name="joint model", members_B=scores["train"], others_S=scores["test"])],
    )


def row_losses(config: MtcdConfig, z_NE: Array, theta_0: Array, labels_N: Array, num_classes: int) -> Array:
    """Return the loss of each row (N), of Z and what is over it."""
    if config.problem == "ridge":
        found: Array = (z_NE - labels_N) ** 2
    elif config.problem == "sparse-logistic":
        found = np.logaddexp(0.0, -labels_N * z_NE)
    else:
        import torch

        from fedactors.learning.models import task_loss
        from fedactors.learning.network import Model
        from fedactors.protocols.mtcd.networks import fusion_spec

        fusion = Model(fusion_spec(config, num_classes), theta_0)
        output = torch.from_numpy(fusion.output(np.maximum(z_NE, 0.0)))
        found = task_loss("multiclass", output, torch.from_numpy(labels_N), "none").numpy()
    return found
