"""What an actor is asked, told and built with: nothing more than its part in the protocol."""

import dataclasses
from typing import Any, ClassVar

import numpy as np
import pytest

from fedactors.actors.context import derived_seed
from fedactors.actors.remote import CLIENT, SERVER, remote
from fedactors.data.alignment.ids import AlignmentQuestion
from fedactors.data.layouts.vertical import vertical
from fedactors.errors import Refused
from fedactors.inspection import describe_messages
from fedactors.messages.codec import carry
from fedactors.plugins import find_protocol
from fedactors.protocols.mtcd import messages
from fedactors.protocols.mtcd.actors import TokenClient
from fedactors.protocols.mtcd.baselines.dcpa import DcpaClient
from fedactors.protocols.mtcd.baselines.stcd import StcdClient
from fedactors.protocols.mtcd.data import load_data, part_of
from fedactors.protocols.mtcd.messages import (
    Gather,
    Labels,
    Links,
    MeasureOrder,
    NormOrder,
    Prelude,
    ProbeImage,
    Relayed,
    RelayedZ,
    Representation,
    ScoreOrder,
    SquaredNorm,
    SyncedZ,
    SyncTokens,
)
from fedactors.protocols.mtcd.run import run
from fedactors.runtime.ray.runtime import RayRuntime
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.arrays import arrays_in
from tests.protocols.mtcd.running import Watched, config_of, merged, simulate

Z = np.zeros(30)


class Curious(TokenClient):
    """A client that asks for what is not its business, in the middle of an honest run."""

    wants: ClassVar[tuple[str, Any] | None] = None

    async def _represent(self, round_, heard=b""):
        cls = type(self)
        if cls.wants is not None:
            (endpoint, message), cls.wants = cls.wants, None
            await getattr(self.peer("client-0" if self.name != "client-0" else "client-1", TokenClient), endpoint)(
                message
            )
        return await super()._represent(round_, heard)


def hostile(endpoint, message, runtime, words="topology=complete"):
    """Run with one client that sends `message` to another's endpoint, and return how the run ends."""
    config = config_of(merged(f"num_clients=3 num_tokens=1 {words}"))
    data = load_data(config, "synthetic", 3)

    async def main():
        from fedactors.protocols.mtcd import run as module

        kinds = {**module.actors(config), "clients": type("Curious", (Curious,), {"wants": (endpoint, message)})}
        patched = pytest.MonkeyPatch()
        patched.setattr(module, "actors", lambda _: kinds)
        try:
            return await run(config, data, runtime)
        finally:
            patched.undo()

    with pytest.raises(Refused) as caught:
        runtime.execute(main)
    return str(caught.value)


@pytest.mark.parametrize(
    ("endpoint", "message", "line"),
    [
        ("measure", MeasureOrder("train"), "measure, which is open to: driver"),
        ("gather", Gather(0), "gather, which is open to: server"),
        ("squared_norm", NormOrder(), "squared_norm, which is open to: driver, server"),
        ("probe", messages.Probe(Z), "probe, which is open to: server"),
        ("sync", SyncTokens(0, (), 1.0, True), "sync, which is open to: server"),
        ("relink", Links((0,), "", -1), "relink, which is open to: server"),
        ("score", ScoreOrder("train", Z, np.zeros(0)), "score, which is open to: driver"),
        ("account", None, "account, which is open to: driver"),
        ("close", None, "which is no endpoint"),
        ("load", None, "which is no endpoint"),
        ("_represent", None, "which is no endpoint"),
        (
            "answer_alignment",
            AlignmentQuestion("hash", b"k"),
            "which is open to its label party only",
        ),
        ("visit", Gather(0), "with a Gather; it takes a Token"),
        ("take_labels", Labels(Z, Z, Z), "take_labels, which is open to its label party only: nobody"),
        (
            "relay",
            Relayed((), 1, b"", Gather(0)),
            "a Gather that the server has not sealed",
        ),
        (
            "relay",
            RelayedZ((), 1, bytes(32), SyncedZ(0, 1.0, Z, np.zeros(0), True)),
            "that the server has not sealed",
        ),
        (
            "relay",
            Relayed(("client-1", "client-0"), 1, bytes(32), Gather(0)),
            "an order whose way leads to a station twice",
        ),
        ("relay", Relayed(("client-1",) * 2, 1, bytes(32), Gather(0)), "whose way leads to a station twice"),
    ],
)
def test_a_client_is_refused_what_only_server_or_driver_may_ask(endpoint, message, line):
    found = hostile(endpoint, message, SimulatedRuntime(seed=3))
    assert line in found
    assert not found.startswith("client-0:")  # who asks is named, not who refuses


def test_a_relayed_order_is_followed_only_if_the_server_gave_it():
    """Client 2 has no link to the server, so that orders may come over others: but none of others."""
    given = Relayed(("client-2",), 1, bytes(32), Gather(0))
    words = "topology=path server_links=0,1 num_hops=9"
    assert "relays to client-2 a Gather that the server" in hostile("relay", given, SimulatedRuntime(seed=3), words)


class Station(TokenClient):
    """Gives more than it was given: the same order again, another one under its seal, or the next number."""

    how: ClassVar[str] = ""

    @remote(caller=(SERVER, CLIENT))
    async def relay(self, relayed: Relayed | RelayedZ) -> Representation | SquaredNorm | ProbeImage | None:
        if self.name != "client-1" or relayed.route != ("client-2",) or not isinstance(relayed.order, SyncTokens):
            return await super().relay(relayed)
        if self.how == "again":
            await super().relay(relayed)
        elif self.how == "altered":
            relayed = dataclasses.replace(relayed, order=dataclasses.replace(relayed.order, weight=1e6))
        elif self.how == "renumbered":
            relayed = dataclasses.replace(relayed, number=relayed.number + 1)
        return await super().relay(relayed)


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("again", "client-1: relays to client-2 a SyncTokens that was followed already"),
        ("altered", "client-1: relays to client-2 a SyncTokens that the server has not sealed"),
        ("renumbered", "client-1: relays to client-2 a SyncTokens that the server has not sealed"),
    ],
)
def test_a_station_gives_no_orders_of_its_own(how, line, monkeypatch):
    from fedactors.protocols.mtcd import run as module

    config = config_of(merged("num_clients=3 num_tokens=1 topology=path server_links=0,1 num_hops=9 batch_size=10"))
    data, runtime, made = load_data(config, "synthetic", 3), SimulatedRuntime(seed=3), module.actors
    station = type("Station", (Station,), {"how": how})
    monkeypatch.setattr(module, "actors", lambda config: {**made(config), "clients": station})
    with pytest.raises(Refused, match=line):
        runtime.execute(lambda: run(config, data, runtime))


class Leader(StcdClient):
    """Client 0, where the prelude begins; it sends another one of its own making."""

    forgery: ClassVar[tuple[str, dict[str, Any]]] = ("client-1", {})

    async def _with_local(self, z, *, is_sent):
        found = await super()._with_local(z, is_sent=is_sent)
        if self.name == "client-0":
            name, changes = self.forgery
            honest = Prelude(1, (0, 1, 0), 0, 3, 0.1, 0, found, self._block.initial_theta_0(self.rng("fusion")))
            await self.peer(name, StcdClient).take_prelude(dataclasses.replace(honest, **changes))
        return found


PRELUDE = (
    "algorithm=stcd problem=network num_samples=40 hidden_size=4 topology=path num_clients=3 num_tokens=1 start=[0]"
)


@pytest.mark.parametrize(
    ("name", "changes", "line"),
    [
        ("client-2", {}, r"client-0: calls client-2\.take_prelude, which is open to its neighbours only: client-1"),
        ("client-1", {"position": 2}, "client-0: sends client-1 a prelude that does not come along its tour"),
        ("client-1", {"tour": (2, 1, 0)}, "client-0: sends client-1 a prelude that does not come along its tour"),
        ("client-1", {"position": -1}, "client-0: sends client-1 a prelude that does not come along its tour"),
        # it is taken, and so the honest one is not: whoever asks twice is found out
        ("client-1", {}, "client-0: sends client-1 a prelude, which had its own already"),
    ],
)
def test_a_prelude_comes_once_and_along_its_tour(name, changes, line, monkeypatch):
    from fedactors.protocols.mtcd import run as module

    config = config_of(merged(PRELUDE))
    data, runtime, made = load_data(config, "synthetic", 3), SimulatedRuntime(seed=3), module.actors
    leader = type("Leader", (Leader,), {"forgery": (name, changes)})
    monkeypatch.setattr(module, "actors", lambda config: {**made(config), "clients": leader})
    with pytest.raises(Refused, match=line):
        runtime.execute(lambda: run(config, data, runtime))


def test_what_a_prelude_adds_up_is_noised():
    """The representation that a prelude takes along is under the same noise as what a visit changes."""
    preludes = {}
    for noise in ("", "noise=gaussian clip_norm=1.0 noise_multiplier=2.0"):
        _, _, runtime = simulate(f"{PRELUDE} {noise}", cls=Watched, reproducible_noise=True)
        preludes[noise] = [sent for _, _, sent in runtime.messages if isinstance(sent, Prelude)]
    plain, noised = preludes.values()
    assert len(plain) == len(noised) >= 2
    changes = [np.asarray(one.z) - np.asarray(other.z) for one, other in zip(noised, plain, strict=True)]
    assert all(change.std() > 0.5 for change in changes)
    assert len({change.std() for change in changes}) > 1  # each client adds noise of its own


@pytest.mark.parametrize(
    ("speaks_for", "text"),
    [(5, "a dual vector of client 5, which is no neighbour"), (1, "client-2: sends a dual vector of client-1")],
)
def test_dual_vectors_come_from_neighbours_only(speaks_for, text):
    config = config_of(merged("algorithm=dcpa topology=path"))
    data = load_data(config, "synthetic", 3)
    runtime = SimulatedRuntime(seed=3)

    async def main():
        seed = derived_seed(3, "all parties", "batches")
        rows = (((0, 0.3), (2, -0.3)), ((0, -0.3), (1, 0.3)))  # what client 1 holds to be its neighbours
        near = runtime.spawn(DcpaClient, "client-0", config, part_of(data, 0), seed, rows[0])
        far = runtime.spawn(DcpaClient, "client-1", config, part_of(data, 1), seed, rows[1])
        await runtime.start()
        del near
        await far.run_iterations(messages.IterateOrder(0, 1, 0.1, 0.1, 0.1))

    with pytest.raises(Refused, match=r"client-1: calls client-0\.take_dual, which is open to its neighbours"):
        runtime.execute(main)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_client_that_asks_for_a_representation_is_refused_on_ray():
    config = config_of(merged("num_clients=2 num_tokens=1"))
    data = load_data(config, "synthetic", 3)
    runtime = RayRuntime(seed=3)
    links = Links((0, 1), "", -1)

    async def main():
        for index, cls in enumerate((TokenClient, Asking)):
            runtime.spawn(cls, f"client-{index}", config, part_of(data, index), 5, links, 7)
        await runtime.start()
        await runtime.handle("client-1", Asking).measure(MeasureOrder("train"))

    with pytest.raises(Refused, match=r"client-1: calls client-0\.gather, which is open to: server"):
        runtime.execute(main)


class Asking(TokenClient):
    """A client that asks its neighbour for what only the server may have."""

    async def _do(self, task):
        return await self.peer("client-0", TokenClient).gather(Gather(0))


def test_no_representation_is_measured_where_noise_protects_it():
    config = config_of(merged("noise=gaussian num_clients=2 num_tokens=1"))
    data = load_data(config, "synthetic", 3)
    runtime = SimulatedRuntime(seed=3)

    async def main():
        client = runtime.spawn(TokenClient, "client-0", config, part_of(data, 0), 5, Links((0, 1), "", -1), 7)
        await runtime.start()
        await client.measure(MeasureOrder("train"))

    with pytest.raises(Refused, match="that noise or a sum is to protect"):
        runtime.execute(main)


# --- what actors are built with ---


class Noted(SimulatedRuntime):
    """Keeps what each actor is built with."""

    def __init__(self, **options):
        super().__init__(**options)
        self.built = {}

    def spawn(self, cls, name, *args, resources=None, **kwargs):
        self.built[name] = (args, kwargs)
        return super().spawn(cls, name, *args, resources=resources, **kwargs)


def leaves(value):
    if dataclasses.is_dataclass(value):
        for each in dataclasses.fields(value):
            yield value
            yield from leaves(getattr(value, each.name))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, dict):
        yield from leaves(list(value.values()))
    else:
        yield value


@pytest.mark.parametrize("algorithm", ["mtcd", "stcd", "svfl", "dcpa"])
def test_an_actor_is_built_with_its_own_source_and_its_own_links_only(algorithm):
    words = f"algorithm={algorithm} problem=sparse-logistic topology=path num_rounds=1"
    _, _, runtime = simulate(words, data="breast-cancer", cls=Noted)
    sources = vertical("breast-cancer", tuple(f"client-{k}" for k in range(6))).sources
    for name, built in runtime.built.items():
        found = [leaf for leaf in leaves(built) if type(leaf) is type(sources[0])]
        local = [] if name == "server" else [sources[int(name[-1])]]
        assert [source for source in sources if source in found] == local
        links = [leaf for leaf in leaves(built) if isinstance(leaf, Links)]
        for known in links:
            client = int(name[-1])
            assert set(known.options) <= {client - 1, client, client + 1}
        assert carry(built) is not None


# --- what is declared is what is sent ---

CONFIGURATIONS = [
    ("", "synthetic"),
    ("mode=overlapping batch_size=10 compression=quantise", "synthetic"),
    ("server_links=0,5 topology=path num_tokens=1 clusters=whole", "synthetic"),
    ("server_links=0,5 topology=path algorithm=svfl", "synthetic"),
    ("algorithm=stcd", "synthetic"),
    ("algorithm=stcd problem=network num_samples=40 hidden_size=4", "synthetic"),
    ("algorithm=svfl problem=network num_samples=40 hidden_size=4", "synthetic"),
    ("algorithm=dcpa", "synthetic"),
    ("problem=sparse-logistic", "breast-cancer"),
    ("noise=gaussian topology=complete", "synthetic"),
]
NOT_FOR_ROWS = {"AlignmentQuestion", "AlignmentAnswer", "AlignmentOrder", "Encoded"}
"""Sent by runs of tables with ids only, or inside of other messages."""


@pytest.mark.parametrize(("words", "data"), CONFIGURATIONS)
def test_only_what_a_configuration_is_said_to_send_is_sent(words, data):
    _, kept, _ = simulate(words, data=data)
    config = config_of(merged(words))
    said = {cls.__name__ for cls in messages.sent(config)}
    found = {row[4] for row in kept.rows if not row[4].endswith("()")} - NOT_FOR_ROWS
    assert found <= said
    unsent = said - found - NOT_FOR_ROWS
    # what needs automatic steps, labels that are told, or an objective that only the server knows
    assert unsent <= {
        "Aligned",
        "Labels",
        "SafeStep",
        "NormOrder",
        "SquaredNorm",
        "Probe",
        "ProbeImage",
        "Objective",
        "Gather",
    } | {
        *("RowCount", "MeasureOrder", "Measured", "ScoreOrder", "Quality", "FusionParameters", "RoundOrder", "Relayed")
    }


@pytest.mark.parametrize("words", ["", "algorithm=stcd", "algorithm=svfl server_links=0", "algorithm=dcpa"])
def test_inspect_shows_who_receives_them(words):
    config = config_of(merged(words))
    described = {found["message"]: found for found in describe_messages(find_protocol("mtcd"), config)}
    assert {cls.__name__ for cls in messages.sent(config)} <= set(described)
    assert all(found["reveals"] for found in described.values())
    if "stcd" not in words and "dcpa" not in words:
        assert "server" in described["Representation"]["receiver"]
        assert described["Objective"]["control"]


# --- one column a party: a true leak, which is said and found ---


def test_what_reveals_a_column_times_a_number_says_so():
    """A client with one column sends it, scaled, in each message whose `reveals` says so, and in no other."""
    words = "num_features=6 num_rounds=3 topology=complete num_hops=8"
    carriers = set()
    for more in ("", "algorithm=svfl", "batch_size=29", "algorithm=dcpa"):
        _, _, runtime = simulate(f"{words} {more}", cls=Watched)
        data = load_data(config_of(merged(words)), "synthetic", 3)
        columns = np.stack([data.load(k).train[:, 0] for k in range(6)])
        columns /= np.linalg.norm(columns, axis=1, keepdims=True)
        for _, _, sent in runtime.messages:
            for vector in arrays_in(sent):
                length = np.linalg.norm(vector)
                if vector.shape == (30,) and length > 0 and np.abs(columns @ (vector / length)).max() > 1 - 1e-9:
                    carriers.add(type(sent))
    assert {cls.__name__ for cls in carriers} >= {"Representation", "ProbeImage", "Measured"}
    assert all("that column times a number" in cls.__message__.reveals for cls in carriers)
