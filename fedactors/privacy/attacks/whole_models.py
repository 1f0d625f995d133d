"""What whole models tell of the rows that they were trained on, for protocols that send models or their changes.

The attacker reads what each holder of rows makes of a common model, or under masks the mean of that only:

- membership: the common model's losses on rows that it was trained on are smaller (Yeom et al., 2018);
- source: a row is where the model is that fits it best (Hu et al., 2021);
- classes held: training raises the output biases of the classes that a holder has more of (as in Wainakh et al., 2022).

Shapes: P parameters, H holders, R rows, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedactors.learning.averaging import model_outputs
from fedactors.learning.losses import Task, task_loss
from fedactors.learning.models import ModelSpec, build_skeleton
from fedactors.learning.parameters import trained_places
from fedactors.privacy.attacks.suite import SeenModels, SeenScores, Surface

Array = NDArray[Any]
Rows = tuple[Array, Array]
"""Samples and their labels."""
MOST_HOLDERS = 10
_MOST_ROWS = 200
"""Of each holder; of all holders and of rows that nobody holds, as many for each holder."""


def row_losses(spec: ModelSpec, task: Task, model_P: Array, rows: Rows) -> Array:
    """Return the model's loss on each row (R)."""
    output = torch.from_numpy(model_outputs(spec, model_P, rows[0]))
    found: Array = task_loss(task, output, torch.from_numpy(rows[1]), "none").numpy()
    return found


def models_surface(
    spec: ModelSpec,
    task: Task,
    num_classes: int,
    common_P: Array,
    models: Mapping[str, Array],
    rows: Mapping[str, Rows],
    others: Rows,
    seed: int,
) -> Surface:
    """Return what attackers have of a model and of what holders of rows make of it.

    Args:
        spec: of the model.
        task: what it is trained for.
        num_classes: of the labels.
        common_P: the model that all have; the attack on biases is on changes of it.
        models: by holder, the model that the attacker reads; under masks the mean, which is everybody's.
        rows: by holder, what it trains on.
        others: rows that nobody trained on.
        seed: of the choice among rows.
    """
    rng = np.random.default_rng(seed)
    held = {name: _some(rows[name], _MOST_ROWS, rng) for name in models}
    together = tuple(np.concatenate(arrays) for arrays in zip(*held.values(), strict=True))
    members = (together[0], together[1])
    scores = SeenScores(
        name="common model",
        members_B=-row_losses(spec, task, common_P, members),
        others_S=-row_losses(spec, task, common_P, _some(others, len(members[1]), rng)),
    )
    place, classes = _bias_place(spec), np.arange(num_classes)[-spec.outputs :]
    is_known = place is not None and task != "regression"
    changes = [(model - common_P)[place] if is_known else np.zeros(0) for model in models.values()]
    shares = [np.mean(rows[name][1][:, None] == classes, axis=0) if is_known else np.zeros(0) for name in models]
    seen = SeenModels(
        name="holders' models",
        losses_HR=np.stack([row_losses(spec, task, model, members) for model in models.values()]),
        holder_R=np.repeat(np.arange(len(held)), [len(one[1]) for one in held.values()]),
        bias_HC=np.stack(changes),
        shares_HC=np.stack(shares),
    )
    return Surface(scores=[scores], models=[seen] if len(models) > 1 else [])


def _some(rows: Rows, most: int, rng: np.random.Generator) -> Rows:
    chosen = rng.permutation(len(rows[1]))[:most]
    return rows[0][chosen], rows[1][chosen]


def _bias_place(spec: ModelSpec) -> slice | None:
    """Return where the biases of the outputs are in a flat model; None: it does not end with a layer that has some."""
    parameter, place = trained_places(build_skeleton(spec, device="cpu"))[-1]
    return place if tuple(parameter.shape) == (spec.outputs,) else None
