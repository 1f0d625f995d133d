"""What a site builds its actors with, from what the driver of another organisation asks for.

Plain values, the approved config, dataclasses of the protocol's own, and of data the site's own alone: the driver
names them, and the site puts in their place what only it knows.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from fedactors.data.held_tables import Seat
from fedactors.data.horizontal import HorizontalPart
from fedactors.data.partitions import RelationalPartition, RelationalQuery, VerticalPart
from fedactors.errors import Refused
from fedactors.network.type_names import namespace_of
from fedactors.remote import DRIVER
from fedactors.runtime.federated.folders import SiteFolder
from fedactors.runtime.federated.kept_states import Earlier
from fedactors.runtime.federated.named_data import DataName, parts_of
from fedactors.runtime.federated.pieces import value_of
from fedactors.runtime.federated.proposal import Proposal
from fedactors.serving import StoredState
from fedactors.validation import shown

_PARTS = (VerticalPart, HorizontalPart, RelationalPartition, RelationalQuery, DataName)
"""What actors are told of data."""


def built_with(
    name: str, frame: bytes, folder: SiteFolder, proposal: Proposal, config: Any, earlier: Earlier | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and named arguments of the actor `name`, from the frame that the driver sends.

    A state of an earlier run is asked for by the actor's name and the digest of what the site wrote then; the site puts
    its own in that place.

    Raises:
        Refused: they hold something else, another config, or data that are not approved or are another's.
    """
    protocol = namespace_of(type(config))
    sites = (folder.name,) if folder.name in proposal.data else ()
    as_asked, as_here = proposal.described(), proposal.described(folder)
    parts = [pair for site in sites for pair in zip(parts_of(as_asked, site), parts_of(as_here, site), strict=True)]

    def own(value: Any) -> Any:
        if isinstance(value, type(config)):
            if value != config:
                raise Refused(DRIVER, f"casts {name} with another configuration than the approved one")
            return config
        if type(value) in _PARTS:
            found = next((mine for asked, mine in parts if asked == value), None)
            if found is None:
                raise Refused(DRIVER, f"casts {name} with other data than the approved ones, or another's")
            return found
        if type(value) is StoredState:
            frame = b"" if earlier is None else earlier.states.get(value.actor, b"")
            if not frame or hashlib.sha256(frame).digest() != value.frame or value.where is not None:
                raise Refused(DRIVER, f"casts {name} with a state of {shown(value.actor)} that {folder.name} has not")
            return StoredState(actor=value.actor, frame=frame)
        if type(value) in (tuple, list):
            return tuple(own(item) for item in value)
        if type(value) is dict:
            return {key: own(item) for key, item in value.items()}
        if value is None or type(value) in (bool, int, float, str, bytes, np.ndarray):
            return value
        if _is_of(type(value), protocol) and dataclasses.is_dataclass(value) and not isinstance(value, type):
            return _rebuilt(value, own)
        raise Refused(DRIVER, f"casts {name} with a {type(value).__name__}; data are asked for by their names only")

    args, kwargs = own(value_of(frame, DRIVER, arguments=True))
    return args, kwargs


def _is_of(cls: type, protocol: str) -> bool:
    """Say whether a class is the approved protocol's own, or says which seat a table's owner has: neither has rows."""
    return cls is Seat or f"{namespace_of(cls)}.".startswith(f"{protocol}.")


def _rebuilt(value: Any, own: Callable[[Any], Any]) -> Any:
    """Return a copy of a dataclass, each of its fields being what `own` makes of it."""
    made = object.__new__(type(value))
    for field in dataclasses.fields(value):
        object.__setattr__(made, field.name, own(getattr(value, field.name)))
    return made
