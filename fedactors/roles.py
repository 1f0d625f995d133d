"""The four roles. A role says on which kind of link an actor's messages travel, and nothing else."""

from __future__ import annotations

from typing import ClassVar

from fedactors.actor import Actor
from fedactors.resources import Resources


class Client(Actor):
    """An actor of a party that owns data."""

    role: ClassVar[str] = "client"


class Server(Actor):
    """A coordinator that owns no data."""

    role: ClassVar[str] = "server"
    resources: ClassVar[Resources] = Resources()


class ParameterServer(Actor):
    """Keeps the parameters that the workers of one party share."""

    role: ClassVar[str] = "parameter-server"


class DataCenter(Actor):
    """A site that runs many clients' work on its own resources and talks to other sites."""

    role: ClassVar[str] = "data-center"
