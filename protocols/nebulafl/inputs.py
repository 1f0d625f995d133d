"""Reads the two files that a user may write: the hardware catalogue and the network between centers."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedactors.errors import BadInput
from protocols.nebulafl.resources import Catalogue, HardwareType
from protocols.nebulafl.rotation import InterCenterLink, InterCenterNetwork

EXAMPLES = ("market", "scarce")
"""Illustrative pairs of files that come with the protocol."""


def read_catalogue(name_or_path: str) -> Catalogue:
    """Return the catalogue of an example (``market``, ``scarce``) or of a TOML file; a mistake is a `BadInput`."""
    return make_catalogue(_tree(name_or_path, "catalogue"), f"catalogue {name_or_path}")


def read_network(name_or_path: str) -> InterCenterNetwork:
    """Return the network of an example (``market``, ``scarce``) or of a TOML file; a mistake is a `BadInput`."""
    return make_network(_tree(name_or_path, "network"), f"network {name_or_path}")


def require_samples(sizes: Sequence[int], dirichlet: float | None) -> None:
    """Check that every container holds a sample.

    Raises:
        BadInput: names the empty containers. None is filled up or dropped in silence, because either would
            change what the run measures.
    """
    empty = [str(number) for number, size in enumerate(sizes) if size == 0]
    if empty:
        shown = ", ".join(empty[:8]) + (f" and {len(empty) - 8} more" if len(empty) > 8 else "")
        how = "" if dirichlet is None else f" with dirichlet={dirichlet:g}"
        raise BadInput(
            f"num_containers: {len(sizes)}{how} leaves containers without a sample (containers {shown}); "
            "they are neither filled nor dropped: use fewer containers, a larger dirichlet or another seed"
        )


def make_catalogue(tree: Mapping[str, Any], source: str) -> Catalogue:
    """Check the tree of a catalogue file and make a `Catalogue` of it.

    Raises:
        BadInput: one line naming the file, the entry, its value and what is allowed.
    """
    _no_other_keys(tree, {"illustrative", "spread", "types", "centers"}, source)
    types_tree, centers_tree = _table(tree, "types", source), _table(tree, "centers", source)
    spread = _number(tree.get("spread", 0.05), f"{source}: spread", least=0.0)
    types = {}
    for name, entry in types_tree.items():
        place = f"{source}: types.{name}"
        _no_other_keys(entry, {"price", "throughput"}, place)
        if "price" not in entry:
            raise BadInput(f"{place}.price: missing; give dollars an hour")
        speeds = _table(entry, "throughput", place)
        types[name] = HardwareType(
            name=name,
            price=_number(entry["price"], f"{place}.price", least=0.0),
            throughput={m: _number(v, f"{place}.throughput.{m}", above=0.0) for m, v in speeds.items()},
        )
    centers: dict[str, dict[str, int]] = {}
    for center, entry in centers_tree.items():
        place = f"{source}: centers.{center}"
        if not isinstance(entry, Mapping):
            raise BadInput(f"{place}: {entry!r} is not allowed: give a table of type = number of units")
        for name, count in entry.items():
            if name not in types:
                raise BadInput(f"{place}.{name}: unknown resource type (known: {', '.join(types)})")
            if not isinstance(count, int) or isinstance(count, bool) or count < 0:
                raise BadInput(f"{place}.{name}: {count!r} is not allowed: give a whole number of units, 0 or more")
        if not any(entry.values()):
            raise BadInput(f"{place}: no resource type; give at least one unit of {', '.join(types)}")
        centers[center] = dict(entry)
    return Catalogue(types=types, centers=centers, spread=spread, illustrative=bool(tree.get("illustrative", False)))


def make_network(tree: Mapping[str, Any], source: str) -> InterCenterNetwork:
    """Check the tree of a network file and make an `InterCenterNetwork` of it.

    Raises:
        BadInput: one line naming the file, the link, the value and what is allowed.
    """
    _no_other_keys(tree, {"illustrative", "hub", "links"}, source)
    entries = tree.get("links")
    if not isinstance(entries, list) or not entries:
        raise BadInput(f"{source}: links: missing; give at least one [[links]] table")
    made = []
    for number, entry in enumerate(entries, start=1):
        place = f"{source}: link {number}"
        _no_other_keys(entry, {"between", "latency_ms", "bandwidth_mbit", "egress_per_gb"}, place)
        ends = entry.get("between")
        if not isinstance(ends, list) or len(ends) != 2 or ends[0] == ends[1]:
            raise BadInput(f"{place}.between: {ends!r} is not allowed: give two different places")
        for name in ("latency_ms", "bandwidth_mbit"):
            if name not in entry:
                raise BadInput(f"{place}.{name}: missing; give a number above 0")
        made.append(
            InterCenterLink(
                ends=(str(ends[0]), str(ends[1])),
                latency=_number(entry["latency_ms"], f"{place}.latency_ms", above=0.0) / 1e3,
                bandwidth=_number(entry["bandwidth_mbit"], f"{place}.bandwidth_mbit", above=0.0) * 1e6 / 8,
                egress_price=_number(entry.get("egress_per_gb", 0.0), f"{place}.egress_per_gb", least=0.0) / 1e9,
            )
        )
    hub = tree.get("hub")
    if hub is not None and not any(hub in link.ends for link in made):
        raise BadInput(f"{source}: hub: {hub!r} has no link")
    return InterCenterNetwork(made, hub=hub)


def _tree(name_or_path: str, kind: str) -> Mapping[str, Any]:
    if name_or_path in EXAMPLES:
        text = files("protocols.nebulafl").joinpath("examples", name_or_path, f"{kind}.toml").read_text("utf-8")
    else:
        path = Path(name_or_path)
        if not path.is_file():
            raise BadInput(f"{kind}: {name_or_path!r} is neither an example ({', '.join(EXAMPLES)}) nor a file")
        text = path.read_text("utf-8")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{kind}: {name_or_path}: not TOML: {error}") from None


def _no_other_keys(tree: Any, known: set[str], place: str) -> None:
    if not isinstance(tree, Mapping):
        raise BadInput(f"{place}: {tree!r} is not allowed: give a table with {', '.join(sorted(known))}")
    for key in tree:
        if key not in known:
            raise BadInput(f"{place}: unknown entry {key!r} (known: {', '.join(sorted(known))})")


def _table(tree: Mapping[str, Any], key: str, place: str) -> Mapping[str, Any]:
    table = tree.get(key)
    if not isinstance(table, Mapping) or not table:
        raise BadInput(f"{place}: {key}: missing; give at least one entry")
    return table


def _number(value: Any, place: str, *, least: float | None = None, above: float | None = None) -> float:
    allowed = f"{least:g} or more" if least is not None else f"above {above:g}"
    number = not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)
    if not number or (least is not None and value < least) or (above is not None and value <= above):
        raise BadInput(f"{place}: {value!r} is not allowed: give a number {allowed}")
    return float(value)
