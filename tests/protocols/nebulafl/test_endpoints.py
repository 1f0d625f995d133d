"""Who may call what, and who is built with what."""

from typing import Any

import numpy as np
import pytest

from fedactors.actors.actor import Client, DataCenter, Server
from fedactors.actors.remote import CLIENT, DATA_CENTER, DRIVER, SAME_PARTY, SERVER, endpoints, remote
from fedactors.data.layouts import horizontal
from fedactors.data.layouts.horizontal import HorizontalFile, HorizontalPart, HorizontalSource
from fedactors.errors import Refused
from fedactors.protocols.nebulafl.actors import Auditor, MeanExchange, NebulaCenter
from fedactors.protocols.nebulafl.baselines.actors import FlatExchange, OrderCenter, RoundExchange
from fedactors.protocols.nebulafl.containers import Container
from fedactors.protocols.nebulafl.messages import (
    CenterNews,
    LeaseOpened,
    MasterModel,
    RunStart,
    SharedModel,
    TrainingOrder,
)
from fedactors.protocols.nebulafl.run import run
from fedactors.runtime.ray.runtime import RayRuntime
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.protocols.nebulafl.runs import SMALL, changed, user_files

ALL = (Container, NebulaCenter, MeanExchange, Auditor, OrderCenter, FlatExchange, RoundExchange)
PEERS_OF_A_RUN = (DRIVER, DATA_CENTER, SERVER, SAME_PARTY)


@pytest.mark.parametrize("cls", ALL)
def test_each_endpoint_is_open_to_one_kind_of_caller(cls):
    table = endpoints(cls).table
    assert table
    for endpoint in table.values():
        if endpoint.only == "adder":  # those of secure sums, which only the exchange may ask for
            continue
        assert len(endpoint.callers - {CLIENT} if endpoint.name == "greet" else endpoint.callers) == 1
        assert endpoint.callers - {CLIENT} < set(PEERS_OF_A_RUN)


def test_only_the_auditor_is_given_models_of_this_moment():
    for cls in (NebulaCenter, FlatExchange, RoundExchange):
        assert endpoints(cls).table["model"].callers == {SERVER}


class StrangeClient(Client):
    """A peer that tries endpoints that are not its own."""

    @remote(caller=DRIVER)
    async def steal(self) -> None:
        """Ask for a master."""
        await self.peer("oregon", NebulaCenter).model()

    @remote(caller=DRIVER)
    async def poison(self) -> None:
        """Send a model of one's own."""
        await self.peer("oregon", NebulaCenter).receive(MasterModel("x", 0, 1.0, np.zeros(3, np.float32)))

    @remote(caller=DRIVER)
    async def meddle(self) -> None:
        """Give an order that is the driver's."""
        await self.peer("auditor", Auditor).center_lost(CenterNews("oregon", False, 0.0))


class StrangeCenter(DataCenter):
    """A data center may send masters, and no more than that."""

    @remote(caller=DRIVER)
    async def steal(self) -> None:
        """Ask for a master."""
        await self.peer("oregon", NebulaCenter).model()

    @remote(caller=DRIVER)
    async def poison(self) -> None:
        """Send what is no model."""
        order = TrainingOrder(1, 0, 0.0, 1.0, np.zeros(3, np.float32))
        await self.peer("oregon", NebulaCenter).receive(order)

    @remote(caller=DRIVER)
    async def impersonate(self) -> None:
        """Send a master in another center's name."""
        await self.peer("oregon", NebulaCenter).receive(MasterModel("virginia", 0, 1.0, np.zeros(3, np.float32)))

    @remote(caller=DRIVER)
    async def overrule(self) -> None:
        """Send what only the exchange sends."""
        await self.peer("oregon", NebulaCenter).receive(SharedModel(0, 1.0, np.zeros(3, np.float32)))

    @remote(caller=DRIVER)
    async def charge(self) -> None:
        """Put hardware on another center's bill."""
        await self.peer("auditor", Auditor).open_lease(LeaseOpened("oregon", 0, "a100#0", "oregon/0", 0.0, 9.0))

    @remote(caller=DRIVER)
    async def meddle(self) -> None:
        """Begin a run."""
        await self.peer("oregon", NebulaCenter).begin_run(RunStart(0.0, 0.0))


class StrangeServer(Server):
    """A server may ask for masters, and no more than that."""

    @remote(caller=DRIVER)
    async def steal(self) -> None:
        """Stop a center."""
        await self.peer("oregon", NebulaCenter).finish()

    @remote(caller=DRIVER)
    async def poison(self) -> None:
        """Send a model."""
        await self.peer("oregon", NebulaCenter).receive(MasterModel("x", 0, 1.0, np.zeros(3, np.float32)))

    @remote(caller=DRIVER)
    async def meddle(self) -> None:
        """Let a center start anew: a method that is no endpoint."""
        await self.peer("oregon", NebulaCenter).load()


def refusal(runtime, cls, method):
    from fedactors.protocols.nebulafl.containers import RunMembers
    from fedactors.protocols.nebulafl.data import center_part, load_data, read_catalogue

    config = changed(num_centers=2, num_containers=8)
    data = load_data(config, "digits", 0)
    centers = read_catalogue(config.catalogue).first_centers(2)

    async def main():
        runtime.spawn(Auditor, "auditor", config, data.part(test=True), {})
        sizes = (config.num_containers // len(centers),) * len(centers)
        members = RunMembers(position=0, centers=centers, sizes=sizes, exchange="exchange", run_seed=0)
        runtime.spawn(NebulaCenter, "oregon", config, center_part(config, data, 0), members)
        outsider = runtime.spawn(cls, "stranger")
        await runtime.start()
        await getattr(outsider, method)()

    with pytest.raises(Refused) as caught:
        runtime.execute(main)
    assert caught.value.party == "stranger"
    return str(caught.value)


@pytest.mark.parametrize("cls", [StrangeClient, StrangeCenter, StrangeServer])
@pytest.mark.parametrize("method", ["steal", "poison", "meddle"])
def test_a_hostile_peer_is_refused(cls, method):
    assert "\n" not in refusal(SimulatedRuntime(), cls, method)


@pytest.mark.parametrize(
    ("method", "victim"), [("impersonate", "virginia"), ("overrule", "exchange"), ("charge", "oregon")]
)
def test_a_center_speaks_for_itself_only(method, victim):
    assert f"for '{victim}'; everybody speaks for itself" in refusal(SimulatedRuntime(), StrangeCenter, method)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_hostile_peer_is_refused_on_ray():
    assert "open to: server" in refusal(RayRuntime(), StrangeClient, "steal")


# --- own data ---


def sources(value):
    """All descriptions of rows in what an actor is built with."""
    found = []
    for part in value:
        if isinstance(part, HorizontalPart):
            found += [source for source in (*part.clients, part.test, part.public) if source is not None]
    return found


class Watched(SimulatedRuntime):
    """Remembers what actors are built with."""

    def __init__(self) -> None:
        super().__init__()
        self.built: dict[str, tuple[Any, ...]] = {}

    def spawn(self, cls, name, *args, **kwargs):
        self.built[name] = args
        return super().spawn(cls, name, *args, **kwargs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "centers"),
    [
        ("nebulafl", ()),
        ("nebulafl", ("virginia", "oregon", "oregon", "virginia")),
        ("fedbuff", ("virginia", "oregon", "oregon", "oregon")),
        ("fedhisyn", ()),
    ],
)
def test_each_actor_is_told_of_its_own_rows_only_and_the_driver_opens_none(tmp_path, algorithm, centers, monkeypatch):
    active = 1 if algorithm == "fedbuff" else 2  # virginia has a single client there
    config, data = user_files(tmp_path, centers=centers, algorithm=algorithm, active_per_center=active)
    opened = []
    real = HorizontalFile.load

    def load(self):
        opened.append(self.file.path)
        return real(self)

    monkeypatch.setattr(HorizontalFile, "load", load)
    runtime = Watched()
    started = runtime.start

    async def start():
        assert opened == []  # nobody has opened a file before the actors load
        await started()

    monkeypatch.setattr(runtime, "start", start)
    result = runtime.execute(lambda: run(config, data, runtime))
    assert result.metrics["trainings"] > 0
    held = {name: {source.file.path for source in sources(args)} for name, args in runtime.built.items()}
    files = [str(tmp_path / f"client-{number}.csv") for number in range(4)]
    for center in ("oregon", "virginia"):
        named = {file for file, at in zip(files, centers, strict=bool(centers)) if at == center}
        assert held[center] == (named or set(files[:2] if center == "oregon" else files[2:]))
    assert held["auditor"] == {str(tmp_path / "test.csv")}
    assert held.get("exchange", set()) == set()
    assert set(opened) == {*files, str(tmp_path / "test.csv")}


@pytest.mark.slow
def test_named_rows_are_told_apart_too():
    runtime = Watched()
    config = changed(SMALL, algorithm="fedhkt", duration=700.0)
    from fedactors.protocols.nebulafl.data import load_data

    data = load_data(config, "digits", 0)
    runtime.execute(lambda: run(config, data, runtime))
    held = {name: sources(args) for name, args in runtime.built.items()}
    assert all(isinstance(source, HorizontalSource) for found in held.values() for source in found)
    clients = {name: {s.index for s in found if s.part == "client"} for name, found in held.items()}
    assert clients["oregon"] == {0, 1, 2, 3}
    assert clients["frankfurt"] == {8, 9, 10, 11}
    assert clients["auditor"] == clients["exchange"] == set()
    assert {s.part for s in held["exchange"]} == {"public"}
    assert horizontal._BLOCKS
