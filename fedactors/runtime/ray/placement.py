"""Which hosts an actor may be on: a user's labels for parties, and why a process could not start on its host."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from fedactors.errors import BadInput
from fedactors.runtime.base import Casting

_SLIVER = 0.001
"""Of a label: enough to be placed by it, and it is left to others."""


def labelled(castings: Mapping[str, Casting], labels: Mapping[str, str]) -> dict[str, Casting]:
    """Return the castings, each asking for the labels that were given for it or for its party.

    Args:
        castings: actors by name.
        labels: name of a party or of an actor to the label that its host must have.

    Raises:
        BadInput: a label for a party that does not exist.
    """
    for party in labels:
        if not any(_is_of(name, party) for name in castings):
            parties = dict.fromkeys(name.partition("/")[0] for name in castings)
            raise BadInput(f"--place: {party!r} is not allowed: the parties are {', '.join(parties)}")
    made = {}
    for name, casting in castings.items():
        label = labels.get(name, labels.get(name.partition("/")[0]))  # an actor's own comes before its party's
        wanted = {} if label is None else {label: _SLIVER}
        asked = dataclasses.replace(casting.resources, labels={**wanted, **casting.resources.labels})
        made[name] = dataclasses.replace(casting, resources=asked) if wanted else casting
    return made


def check_strict(castings: Sequence[Casting], strategy: str, hosts: Sequence[Mapping[str, float]]) -> None:
    """Raise `BadInput` when a strict strategy can be seen to be impossible; Ray itself would wait.

    Args:
        castings: the actors.
        strategy: Ray's word for it.
        hosts: what each host has in all, by resource.
    """
    demands = [casting.resources.demand() for casting in castings]
    if strategy == "STRICT_SPREAD" and len(demands) > len(hosts):
        raise BadInput(
            f"--spread: strict-spread wants a host for each of the {len(demands)} actors; the cluster has {len(hosts)} "
            "(spread lays them out as far as hosts go)"
        )
    if strategy == "STRICT_PACK":
        names = sorted({name for demand in demands for name in demand})
        asked = {name: sum(demand.get(name, 0.0) for demand in demands) for name in names}
        if not any(all(host.get(name, 0.0) + 1e-9 >= amount for name, amount in asked.items()) for host in hosts):
            listed = ", ".join(f"{name}={amount:g}" for name, amount in asked.items())
            raise BadInput(f"--spread: strict-pack wants all actors on one host, which asks {listed}; no host has that")


def cause(error: Exception) -> str:
    """Return, in brackets, why an actor could not be built (say, a module that its host lacks); Ray says it last."""
    lines = [line.strip() for line in str(error).splitlines() if "Error: " in line]
    return f" ({lines[-1]})" if lines else ""


def _is_of(name: str, party: str) -> bool:
    return party in (name, name.partition("/")[0])
