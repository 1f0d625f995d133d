"""Reads the two files that a user may write: the hardware catalogue and the network between centers."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedactors.errors import BadInput
from protocols.nebulafl.resources import Catalogue, make_catalogue, make_links
from protocols.nebulafl.rotation import InterCenterLink, InterCenterNetwork

EXAMPLES = ("market", "scarce")
"""Illustrative pairs of files that come with the protocol."""


def read_catalogue(name_or_path: str) -> Catalogue:
    """Return the catalogue of an example (``market``, ``scarce``) or of a TOML file; a mistake is a `BadInput`."""
    return make_catalogue(_tree(name_or_path, "catalogue"), f"catalogue {name_or_path}")


def read_network(name_or_path: str) -> InterCenterNetwork:
    """Return the network of an example (``market``, ``scarce``) or of a TOML file; a mistake is a `BadInput`."""
    tree = _tree(name_or_path, "network")
    links = [InterCenterLink(**link) for link in make_links(tree, f"network {name_or_path}")]
    hub = tree.get("hub")
    return InterCenterNetwork(links, hub=None if hub is None else str(hub))


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
