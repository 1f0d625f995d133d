"""fedactors: a Ray actor framework for federated learning across organisations.

    import fedactors

    run = fedactors.simulate("pubsub-vfl", num_epochs=3)
    run.rounds.to_pandas()

Importing this package loads nothing heavy: each public name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedactors.actors.actor import Actor, Client, DataCenter, ParameterServer, Resources, Server
    from fedactors.actors.context import Ref, Work
    from fedactors.actors.groups import ActorGroup
    from fedactors.actors.remote import remote
    from fedactors.api import (
        Comparison,
        Messages,
        Run,
        Table,
        check_data,
        compare,
        inspect,
        list_datasets,
        list_protocols,
        load_part,
        load_run,
        run,
        settings,
        simulate,
        sweep,
    )
    from fedactors.config import config
    from fedactors.data.objects import graph, horizontal, relational, vertical
    from fedactors.errors import (
        BadInput,
        DataMissing,
        Diverged,
        FedactorsError,
        PartyFailed,
        PartyLost,
        Refused,
        Stopped,
    )
    from fedactors.federation.runtime import FederatedRuntime
    from fedactors.messages.codec import message, wire_type
    from fedactors.network.links import HostCapacity, Link, Network
    from fedactors.plugins import Protocol
    from fedactors.runs.metrics import RunResult
    from fedactors.runtime.interface import Costs
    from fedactors.runtime.ray.cluster import cluster
    from fedactors.runtime.ray.runtime import RayRuntime
    from fedactors.runtime.rounds import Rounds
    from fedactors.runtime.simulation.runtime import SimulatedRuntime

__version__ = "0.1.0"

_MODULES = {
    # use
    "api": "run simulate sweep compare check_data inspect load_run load_part list_datasets list_protocols settings "
    "Run Table Comparison Messages",
    "data.objects": "vertical horizontal relational graph",
    # write a protocol
    "actors.actor": "Actor Client Server ParameterServer DataCenter Resources",
    "actors.context": "Ref Work",
    "actors.groups": "ActorGroup",
    "actors.remote": "remote",
    "messages.codec": "message wire_type",
    "runtime.interface": "Costs",
    "runtime.rounds": "Rounds",
    "runs.metrics": "RunResult",
    "plugins": "Protocol",
    "config": "config",
    # environments and errors
    "runtime.simulation.runtime": "SimulatedRuntime",
    "runtime.ray.runtime": "RayRuntime",
    "runtime.ray.cluster": "cluster",
    "federation.runtime": "FederatedRuntime",
    "network.links": "Network Link HostCapacity",
    "errors": "FedactorsError BadInput PartyLost PartyFailed Refused Diverged DataMissing Stopped",
}
_PUBLIC = {name: module for module, names in _MODULES.items() for name in names.split()}
"""Each public name, and the module that defines it."""

__all__ = [
    "Actor",
    "ActorGroup",
    "BadInput",
    "Client",
    "Comparison",
    "Costs",
    "DataCenter",
    "DataMissing",
    "Diverged",
    "FedactorsError",
    "FederatedRuntime",
    "HostCapacity",
    "Link",
    "Messages",
    "Network",
    "ParameterServer",
    "PartyFailed",
    "PartyLost",
    "Protocol",
    "RayRuntime",
    "Ref",
    "Refused",
    "Resources",
    "Rounds",
    "Run",
    "RunResult",
    "Server",
    "SimulatedRuntime",
    "Stopped",
    "Table",
    "Work",
    "check_data",
    "cluster",
    "compare",
    "config",
    "graph",
    "horizontal",
    "inspect",
    "list_datasets",
    "list_protocols",
    "load_part",
    "load_run",
    "message",
    "relational",
    "remote",
    "run",
    "settings",
    "simulate",
    "sweep",
    "vertical",
    "wire_type",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'fedactors' has no attribute {name!r}")
    found = getattr(import_module(f"fedactors.{_PUBLIC[name]}"), name)
    if name != "config":  # the module of that name is the decorator as well, and comes to stand here by itself
        globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
