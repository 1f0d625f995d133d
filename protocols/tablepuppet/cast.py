"""The actors of a run: who is spawned under which name, and who hosts the server and the LoU operators."""

from __future__ import annotations

from dataclasses import dataclass

from fedactors.data.partitions import RelationalData
from fedactors.errors import BadInput
from fedactors.runtime.base import Runtime, derived_seed
from protocols.tablepuppet.actors import TableClient
from protocols.tablepuppet.config import TablePuppetConfig
from protocols.tablepuppet.data import Seat, TrainingSet, seat_clients
from protocols.tablepuppet.servers import JoinServer, Side, UnionCoordinator


@dataclass(frozen=True)
class Cast:
    """Handles of the actors; clients in the order of the query."""

    training: TrainingSet
    seats: tuple[Seat, ...]
    server: JoinServer
    clients: dict[str, TableClient]


def assemble(config: TablePuppetConfig, data: RelationalData, runtime: Runtime) -> Cast:
    """Spawn a client for each partition, coordinators where they live in the organisation, and the server.

    The server is a party of its own, or an actor of the party that holds the first partition of `server_in`.

    Raises:
        BadInput: the query or a name is at fault; nothing has been spawned then.
    """
    training, seats = seat_clients(config, data)
    tables = {table.name: [s for s in seats if s.table == table.name] for table in training.query.tables}
    host = ""
    if config.server_in is not None:
        if config.server_in not in tables:
            raise BadInput(f"server_in: {config.server_in!r} is not allowed: one of the tables {', '.join(tables)}")
        host = tables[config.server_in][0].name.partition("/")[0]
    server_name = f"{host}/server" if host else "server"
    taken = [seat.name for seat in seats]
    if server_name in taken:
        raise BadInput(f"parties: the name {server_name!r} is the server's")
    clients = {seat.name: runtime.spawn(TableClient, seat.name, config, training, seat) for seat in seats}
    sides = []
    for table, own in tables.items():
        names, coordinator = tuple(seat.name for seat in own), None
        if config.lou_coordinator == "organisation" and len(own) > 1:
            coordinator = f"{names[0].partition('/')[0]}/union-{table}"
            runtime.spawn(UnionCoordinator, coordinator, config, names)
        sides.append(Side(table, names, coordinator))
    batch_seed = derived_seed(runtime.seed, "all parties", "batches")
    server = runtime.spawn(JoinServer, server_name, config, training, tuple(sides), batch_seed)
    runtime.on_loss(config.on_party_loss)
    return Cast(training, seats, server, clients)
