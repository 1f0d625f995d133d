"""Who holds which rows: clients of a named data set, or an organisation's own files, dealt to sites in order."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedactors.config import is_code
from fedactors.data.description import load_description_as, load_new_rows, refuse_settings
from fedactors.data.layouts.horizontal import HorizontalData, deal
from fedactors.errors import BadInput
from fedactors.learning.metrics import Task
from fedactors.learning.models import ModelSpec, model_for, output_shape
from fedactors.learning.network import local_entries
from fedactors.learning.user_models import check_loss, check_metric, check_model
from fedactors.protocols.horizontal.aggregation import check_aggregation
from fedactors.protocols.horizontal.config import DEFAULT_CLIENTS, HorizontalConfig


def load_data(config: HorizontalConfig, name: str | HorizontalData, seed: int) -> HorizontalData:
    """Return who holds which rows; no row is read."""
    if isinstance(name, HorizontalData):
        data = _fitting(config, name, seed)
    elif name.endswith(".toml"):
        data = _fitting(config, load_description_as(Path(name), HorizontalData), seed)
    else:
        data = _data_set(config, name, seed)
    if config.patience is not None and not (config.num_validation or data.holds_out):
        raise BadInput(
            "patience: stopping early on test rows is not allowed; hold rows out with num_validation, or of own files "
            "with validation_fraction or a column"
        )
    if config.is_personal and not data.holds_out:
        setting = "local_parameters" if config.local_parameters else "algorithm"
        raise BadInput(
            f"{setting}: each client has a model of its own, and needs rows of its own to measure it on: give "
            "validation_fraction=0.2, or own files a column split"
        )
    if (config.clients_per_round or 0) > data.num_clients:
        raise BadInput(f"clients_per_round: {config.clients_per_round} is not allowed: there are {data.num_clients}")
    spec = model_spec(config, inputs=data.shape, task=data.task, num_classes=data.num_classes, targets=data.targets)
    check_code(config, spec, data.task)
    return data


def check_code(config: HorizontalConfig, spec: ModelSpec, task: Task) -> None:
    """Check model, loss and metric before they are used.

    Raises:
        BadInput: one line that says what is wrong with one of them.
    """
    if task == "tokens" and not is_code(spec.name):
        raise BadInput(f"model: {config.model} is not allowed for tokens: give a model of your own, model=...")
    check_model(spec)
    if config.local_parameters and spec.inputs:
        local_entries(spec, config.local_parameters)
    if config.user_aggregation:
        check_aggregation(config, spec)
    if config.user_loss:
        check_loss(spec, task, config.user_loss)
    if config.user_metric:
        check_metric(spec, task, config.user_metric)


def load_new(config: HorizontalConfig, name: str | HorizontalData, seed: int) -> HorizontalData:
    """Return who has which rows to predict; see `load_new_rows`."""
    return load_new_rows(name, lambda named: load_data(config, named, seed))


def _data_set(config: HorizontalConfig, name: str, seed: int) -> HorizontalData:
    if config.validation_fraction and config.num_validation:
        raise BadInput(
            f"validation_fraction: {config.validation_fraction:g} is not allowed with num_validation: choose rows of "
            "each client, or rows of none"
        )
    dealt = deal(
        name,
        config.num_clients or DEFAULT_CLIENTS,
        dirichlet=config.dirichlet,
        num_training=config.num_training,
        num_validation=config.num_validation,
        seed=seed,
    )
    return _held_out(config, replace(dealt, validation_fraction=config.validation_fraction))


def _held_out(config: HorizontalConfig, data: HorizontalData) -> HorizontalData:
    """Return data whose clients may measure on rows of their own, if they have some.

    Raises:
        BadInput: they do, and no client's scores may be read.
    """
    if data.holds_out and config.secure_aggregation:
        raise BadInput(
            "secure_aggregation: True is not allowed with validation rows of the clients: the server reads "
            "each one's scores"
        )
    return data


def _fitting(config: HorizontalConfig, user_data: HorizontalData, seed: int) -> HorizontalData:
    dealt = ("num_validation", "num_training", "dirichlet")
    why = {
        **dict.fromkeys(dealt, "they say who holds which rows"),
        "clients_per_site": "each client's process opens its own file, and only that",
    }
    refuse_settings(config, why, but={"dirichlet": None})
    if config.num_clients not in (None, user_data.num_clients):
        raise BadInput(
            f"num_clients: {config.num_clients} is not allowed: {user_data.name} describes {user_data.num_clients}"
        )
    if user_data.centers:
        party, center = user_data.parties[0], user_data.centers[0]
        raise BadInput(f"parties.{party}.center: {center!r} is not allowed: horizontal has no centers, nebulafl has")
    user_data.test()
    if config.validation_fraction:
        user_data = user_data.holding_out(config.validation_fraction, seed)
    return _held_out(config, user_data)


def sites_of(config: HorizontalConfig, data: HorizontalData) -> dict[str, range]:
    """Return the sites, each with the numbers of its clients."""
    size = config.clients_per_site
    firsts = range(0, data.num_clients, size)
    dealt = [range(first, min(first + size, data.num_clients)) for first in firsts]
    names = data.parties or tuple(f"{'client' if size == 1 else 'site'}-{index}" for index in range(len(dealt)))
    return dict(zip(names, dealt, strict=True))


def groups_of(config: HorizontalConfig, sites: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the aggregators, each with its sites: neighbours, in groups that differ by one site at most."""
    count = config.num_aggregators
    ends = [len(sites) * number // count for number in range(count + 1)] if count else []
    return {f"aggregator-{n}": tuple(sites[begin:end]) for n, (begin, end) in enumerate(itertools.pairwise(ends))}


def model_spec(
    config: HorizontalConfig, *, inputs: tuple[int, ...], task: Task, num_classes: int, targets: tuple[int, ...] = ()
) -> ModelSpec:
    """Return the model of a run for samples, and targets, of this shape."""
    *positions, width = output_shape(task, num_classes, tuple(targets))
    resolved = config.at(inputs)
    return ModelSpec(
        name=model_for(resolved.model, tuple(inputs)),
        inputs=tuple(inputs),
        outputs=width,
        positions=tuple(positions),
        hidden_size=config.hidden_size,
        layers=resolved.layers or 3,
        norm=config.normalisation,
        float64=config.float64,
    )
