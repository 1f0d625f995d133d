"""What a user brings: rows dealt to containers, the hardware catalogue, and the network between centers.

The driver reads the two descriptions and no row: each center's process opens its own containers' files, the auditor's
the test file.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedactors.config import is_code
from fedactors.data.description import load_description_as, load_new_rows, refuse_settings
from fedactors.data.layouts.horizontal import HorizontalData, HorizontalPart, deal
from fedactors.errors import BadInput
from fedactors.learning.models import MODEL_NAMES, ModelSpec, build_skeleton, code_name, fork_draws, model_for
from fedactors.learning.network import num_values, train_mode
from fedactors.learning.user_models import check_loss, check_metric, check_model
from fedactors.network.links import HostCapacity
from fedactors.protocols.nebulafl.config import EXAMPLES, NebulaFLConfig
from fedactors.protocols.nebulafl.hardware import Catalogue, HardwareType, InterCenterLink, InterCenterNetwork
from fedactors.validation import check_keys, first_line, number_of, party_name, shown

_TRIED = 2
"""Samples of a step that is tried."""
_MOST_UNITS = 10_000
"""In a center: each is kept in memory, and a proposal's catalogue is of another's making."""

# --- rows ---


def load_data(config: NebulaFLConfig, name: str | HorizontalData, seed: int) -> HorizontalData:
    """Return who holds which rows, after checking catalogue, network and outages; no row is read."""
    catalogue = read_catalogue(config.catalogue)
    centers = catalogue.first_centers(config.num_centers)
    read_network(config.network).require(centers)
    if isinstance(name, HorizontalData):
        made = _at_sites(config, name, centers)
    else:
        made = _user_data(config, Path(name)) if name.endswith(".toml") else _data_set(config, name, seed)
    _check_centers(config, made)
    _check_outages(config, dict(zip(centers, map(len, containers_of(config, made)), strict=True)))
    if made.task not in ("binary", "multiclass"):
        raise BadInput(f"data: {made.name} is not allowed: nebulafl trains classifiers")
    spec = ModelSpec(
        name=model_for(config.model, made.shape),
        inputs=made.shape,
        outputs=max(made.num_classes, 2),
        norm=config.normalisation,
    )
    if not is_code(spec.name):
        catalogue_for(config, spec)
    check_model(spec)
    if spec.inputs:
        catalogue_for(config, spec)
    if config.user_loss:
        check_loss(spec, "multiclass", config.user_loss)
    if config.user_metric:
        check_metric(spec, "multiclass", config.user_metric)
    return made


def load_new(config: NebulaFLConfig, name: str | HorizontalData, seed: int) -> HorizontalData:
    """Return who has which rows to predict; see `load_new_rows`."""
    return load_new_rows(name, lambda named: load_data(config, named, seed))


def center_part(config: NebulaFLConfig, data: HorizontalData, position: int) -> HorizontalPart:
    """Return the rows of center number `position`, and nobody else's."""
    return data.part(containers_of(config, data)[position])


def containers_of(config: NebulaFLConfig, data: HorizontalData) -> tuple[tuple[int, ...], ...]:
    """Return the clients of each center: those that name it, or where none names one, dealt to the centers in order."""
    if data.centers:
        names = read_catalogue(config.catalogue).first_centers(config.num_centers)
        return tuple(tuple(client for client, at in enumerate(data.centers) if at == name) for name in names)
    ends = np.cumsum((0, *config.center_sizes)).tolist()
    return tuple(tuple(range(first, end)) for first, end in itertools.pairwise(ends))


def _data_set(config: NebulaFLConfig, name: str, seed: int) -> HorizontalData:
    return deal(
        name,
        config.num_containers,
        dirichlet=config.dirichlet,
        num_training=config.num_training,
        num_validation=config.num_validation,
        num_public=config.num_proxy if config.algorithm == "fedhkt" else 0,
        seed=seed,
        public_field="num_proxy",
    )


def _at_sites(config: NebulaFLConfig, data: HorizontalData, centers: tuple[str, ...]) -> HorizontalData:
    """Return the data of sites each of which is a center of the catalogue, with its own rows as its one container."""
    if set(data.parties) != set(centers):
        raise BadInput(
            f"num_centers: {config.num_centers} is not allowed: over a federation the centers are the sites "
            f"{', '.join(data.parties)}, and the first ones of the catalogue are {', '.join(centers)}"
        )
    if config.container_processes:
        raise BadInput("container_processes: true is not allowed over a federation: a site is one container already")
    return _of_files(config, replace(data, centers=data.parties), data.name)


def _user_data(config: NebulaFLConfig, path: Path) -> HorizontalData:
    user_data = _of_files(config, load_description_as(path, HorizontalData), str(path))
    for party, file in zip(user_data.parties, user_data.files, strict=True):
        if file.file.split_column is not None:
            raise BadInput(
                f"parties.{party}.split: {file.file.split_column!r} is not allowed: in nebulafl clients measure nothing"
            )
    return user_data


def _of_files(config: NebulaFLConfig, user_data: HorizontalData, name: str) -> HorizontalData:
    dealt = ("num_validation", "num_training", "dirichlet")
    refuse_settings(config, dict.fromkeys(dealt, "they say who holds which rows"), but={"dirichlet": None})
    if config.algorithm == "fedhkt":
        raise BadInput("algorithm: fedhkt is not allowed with own files: it needs public proxy rows of a named set")
    if user_data.num_clients != config.num_containers:
        raise BadInput(
            f"num_containers: {config.num_containers} is not allowed: {name} describes {user_data.num_clients}; set "
            f"num_containers={user_data.num_clients}"
        )
    user_data.test()
    return user_data


def _check_centers(config: NebulaFLConfig, data: HorizontalData) -> None:
    names = read_catalogue(config.catalogue).first_centers(config.num_centers)
    for party, center in zip(data.parties, data.centers, strict=bool(data.centers)):
        if center not in names:
            raise BadInput(
                f"parties.{party}.center: {center!r} is not allowed: the centers of num_centers={config.num_centers} "
                f"are {', '.join(names)}"
            )
    for center, held in zip(names, containers_of(config, data), strict=True):
        if len(held) < config.active_per_center:
            raise BadInput(
                f"active_per_center: {config.active_per_center} is not allowed: {data.name} has {len(held)} clients at "
                f"{center}"
            )


def _check_outages(config: NebulaFLConfig, sizes: Mapping[str, int]) -> None:
    for center, number, _, _ in config.container_outages():
        if center not in sizes:
            raise BadInput(f"outages: center {center!r} is not allowed: the centers are {', '.join(sizes)}")
        if number >= sizes[center]:
            raise BadInput(f"outages: {center}/{number} is not allowed: it has containers 0 to {sizes[center] - 1}")


# --- hardware and network ---


@functools.lru_cache(maxsize=8)
def _catalogue_for(given: str, num_centers: int, spec: ModelSpec) -> tuple[Catalogue, str]:
    catalogue = read_catalogue(given)
    types = {one.name: one for center in catalogue.first_centers(num_centers) for one in catalogue.types_of(center)}
    if all(spec.name in one.throughput for one in types.values()):
        return catalogue, ""
    usual = model_for("auto", spec.inputs)
    named = dict.fromkeys((usual, *next(iter(types.values())).throughput))
    for known in named if is_code(spec.name) else ():
        if known in MODEL_NAMES and all(known in one.throughput for one in types.values()):
            with contextlib.suppress(BadInput, RuntimeError):  # a network for samples of another shape
                times = num_operations(replace(spec, name=known)) / num_operations(spec)
                made = catalogue.like(spec.name, known, times)
                return made, (
                    f"throughput of {code_name(spec.name)}: {times:.3g} times that of {known} in the catalogue, by the "
                    "operations of a step that was tried"
                )
    for one in types.values():
        one.samples_per_second(spec.name)
    return catalogue, ""


def catalogue_for(config: NebulaFLConfig, spec: ModelSpec) -> Catalogue:
    """Return the catalogue with a throughput of the run's model.

    A model of one's own that it does not name is tried: it is as much quicker than a network that the catalogue names
    as it has fewer operations. That is the one that ``auto`` stands for, or the first that takes such samples. All
    processes agree, as no clock is involved.

    Raises:
        BadInput: it names no such network.
    """
    return _catalogue_for(config.catalogue, config.num_centers, spec)[0]


def said_throughput(config: NebulaFLConfig, spec: ModelSpec) -> str:
    """Return the line that says whose throughput a model has; empty: its own."""
    return _catalogue_for(config.catalogue, config.num_centers, spec)[1]


def num_operations(spec: ModelSpec) -> float:
    """Return the operations of a step on one sample, by trying it: of its products, and two for each number else."""
    module = train_mode(build_skeleton(spec, device="cpu"))
    counter = FlopCounterMode(display=False)
    with counter, fork_draws(0):
        module(torch.zeros(_TRIED, *spec.inputs, dtype=spec.dtype)).sum().backward()
    return counter.get_total_flops() / _TRIED + 2.0 * num_values(module)


def read_catalogue(given: str) -> Catalogue:
    """Return the catalogue of an example (``market``, ``scarce``), or of a content (`config.content_of`).

    Raises:
        BadInput: it is neither; no file is opened.
    """
    return _make_catalogue(_tree(given, "catalogue"), _source("catalogue", given))


def read_network(given: str) -> InterCenterNetwork:
    """Return the network of an example (``market``, ``scarce``), or of a content; see `read_catalogue`."""
    return _make_network(_tree(given, "network"), _source("network", given))


def _source(kind: str, given: str) -> str:
    return kind if "\n" in given else f"{kind} {given}"


def exchange_name(config: NebulaFLConfig) -> str:
    """Return where the methods that aggregate do so: at the network's hub, without one at the first center."""
    if read_network(config.network).hub is not None:
        return "exchange"
    return f"{read_catalogue(config.catalogue).first_centers(1)[0]}/exchange"


def _make_catalogue(tree: Mapping[str, Any], source: str) -> Catalogue:
    check_keys(tree, {"illustrative", "spread", "types", "centers"}, source)
    types_tree, centers_tree = _table(tree, "types", source), _table(tree, "centers", source)
    spread = number_of(tree.get("spread", 0.05), f"{source}: spread")
    types = {}
    for name, entry in types_tree.items():
        location = f"{source}: types.{name}"
        check_keys(entry, {"price", "throughput", "startup"}, location)
        speeds = _table(entry, "throughput", location)
        types[name] = HardwareType(
            name=name,
            price=number_of(entry.get("price"), f"{location}.price"),
            throughput={m: number_of(v, f"{location}.throughput.{m}", above=0.0) for m, v in speeds.items()},
            startup=number_of(entry.get("startup", 0.0), f"{location}.startup"),
        )
    centers: dict[str, dict[str, int]] = {}
    for center, entry in centers_tree.items():
        location = f"{source}: centers.{center}"
        party_name(center, f"{source}: centers")
        if not isinstance(entry, Mapping):
            raise BadInput(f"{location}: {shown(entry)} is not allowed: give a table of type = number of units")
        for name, count in entry.items():
            if name not in types:
                raise BadInput(f"{location}.{name}: unknown resource type (known: {', '.join(types)})")
            if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= _MOST_UNITS:
                raise BadInput(
                    f"{location}.{name}: {shown(count)} is not allowed: give a whole number of units, from 0 to "
                    f"{_MOST_UNITS:,}"
                )
        if sum(entry.values()) > _MOST_UNITS:
            raise BadInput(f"{location}: {sum(entry.values()):,} units in all; at most {_MOST_UNITS:,}")
        if not any(entry.values()):
            raise BadInput(f"{location}: no resource type; give at least one unit of {', '.join(types)}")
        centers[center] = dict(entry)
    return Catalogue(types=types, centers=centers, spread=spread, illustrative=bool(tree.get("illustrative", False)))


def _make_network(tree: Mapping[str, Any], source: str) -> InterCenterNetwork:
    check_keys(tree, {"illustrative", "hub", "links", "capacity"}, source)
    entries = tree.get("links")
    if not isinstance(entries, list) or not entries:
        raise BadInput(f"{source}: links: missing; give at least one [[links]] table")
    made = []
    for number, entry in enumerate(entries, start=1):
        location = f"{source}: link {number}"
        if not isinstance(entry, dict):
            raise BadInput(f"{location}: {shown(entry)} is not allowed: write [[links]] tables")
        one_way = "between" not in entry
        key = "from, to" if one_way else "between"
        ends = [entry.get("from"), entry.get("to")] if one_way else entry["between"]
        check_keys(entry, {*key.split(", "), "latency_ms", "bandwidth_mbit", "egress_per_gb"}, location)
        if not isinstance(ends, list) or len(ends) != 2 or ends[0] == ends[1] or {str} != set(map(type, ends)):
            raise BadInput(
                f"{location}.{key}: {shown(ends)} is not allowed: give two different places, between = [A, B] for both "
                "ways or from = A and to = B for one"
            )
        made.append(
            InterCenterLink(
                ends=(str(ends[0]), str(ends[1])),
                latency=number_of(entry.get("latency_ms"), f"{location}.latency_ms", above=0.0) / 1e3,
                bandwidth=number_of(entry.get("bandwidth_mbit"), f"{location}.bandwidth_mbit", above=0.0) * 1e6 / 8,
                egress_price=number_of(entry.get("egress_per_gb", 0.0), f"{location}.egress_per_gb") / 1e9,
                one_way=one_way,
            )
        )
    hub = tree.get("hub")
    if hub is not None and not any(hub in link.ends for link in made):
        raise BadInput(f"{source}: hub: {hub!r} has no link")
    return InterCenterNetwork(made, hub, _capacities(tree, {end for link in made for end in link.ends}, source))


def _capacities(tree: Mapping[str, Any], nodes: set[str], source: str) -> dict[str, HostCapacity]:
    """Return what each place can send and receive in all; a place that is not named has no limit but its lines'."""
    made = {}
    for name, entry in _table(tree, "capacity", source).items() if "capacity" in tree else ():
        location = f"{source}: capacity.{name}"
        if name not in nodes:
            raise BadInput(f"{location}: no link ends there (places: {', '.join(sorted(nodes))})")
        check_keys(entry, {"egress_mbit", "ingress_mbit"}, location)
        if not entry:
            raise BadInput(f"{location}: {{}} is not allowed: give egress_mbit, ingress_mbit or both")
        limits = {key: number_of(value, f"{location}.{key}", above=0.0) * 1e6 / 8 for key, value in entry.items()}
        made[name] = HostCapacity(**{key.removesuffix("_mbit"): value for key, value in limits.items()})
    return made


def _tree(given: str, kind: str) -> Mapping[str, Any]:
    if given in EXAMPLES:
        text = files("fedactors.protocols.nebulafl").joinpath("examples", given, f"{kind}.toml").read_text("utf-8")
        return tomllib.loads(text)
    if "\n" not in given:
        raise BadInput(f"{kind}: {shown(given)} is no example ({', '.join(EXAMPLES)}), and no file is opened here")
    try:  # of others' TOML a few thousand bytes can take minutes
        found = json.loads(given)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{kind}: not valid JSON: {first_line(error)}") from None
    tree: Mapping[str, Any] = found
    return tree


def _table(tree: Mapping[str, Any], key: str, location: str) -> Mapping[str, Any]:
    table = tree.get(key)
    if not isinstance(table, Mapping) or not table:
        raise BadInput(f"{location}: {key}: missing; give at least one entry")
    return table
