"""Arrays that would make a count wrong: of another shape than is declared, that name a row twice, or name too few."""

from __future__ import annotations

import functools
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedactors.actors.groups import ActorGroup
from fedactors.actors.remote import CallCounts, config_of, current_caller
from fedactors.errors import BadInput, Refused
from fedactors.messages.compression import Pipeline, Quantise, TopK, decode_from, dense
from fedactors.protocols.glasu import aggregation, sampling
from fedactors.protocols.glasu import messages as graph_messages
from fedactors.protocols.glasu import serving as graph_serving
from fedactors.protocols.glasu.data import load_data
from fedactors.protocols.horizontal import actors as horizontal
from fedactors.protocols.horizontal.messages import Baselines, ColumnMeans, ColumnSums
from fedactors.protocols.mtcd import messages as tokens
from fedactors.protocols.mtcd.baselines.stcd import StcdClient
from fedactors.protocols.mtcd.server import GatheringServer
from fedactors.protocols.pubsub_vfl.actors import ActiveWorker
from fedactors.protocols.pubsub_vfl.messages import Gradient
from fedactors.protocols.tablepuppet import messages as joins
from fedactors.protocols.tablepuppet.actors import TableClient
from tests.federation.test_runs import OTHERS, SMALL, federated
from tests.federation.world import BANK, SHOP, World
from tests.protocols.glasu import federation as small_graphs
from tests.protocols.glasu.test_privacy import NOISY
from tests.protocols.mtcd import running
from tests.protocols.tablepuppet.test_dp import execute
from tests.serving.predicting import predicted

pytestmark = [pytest.mark.slow, pytest.mark.drawn(2, family="hostile")]
NETWORK = "problem=network num_samples=40 hidden_size=4 topology=path num_clients=3 start=0"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("arrays"))
    made.start(BANK)
    made.start(SHOP)
    yield made
    made.stop()


def test_means_of_columns_single_no_row_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a mean of its own for each row the sum of squares would tell the first row's numbers."""
    row = np.loadtxt(Path(world.path / SHOP / "patients.csv"), delimiter=",", skiprows=1)[0, :4]
    told: list[Any] = []

    async def with_scale(self: horizontal.HorizontalServer, reading: Any) -> Any:
        for offset in (0.0, 2.0**10):
            means = np.zeros((60, 4))
            means[0] = offset
            found = await self.peer(SHOP, horizontal.ClientProcess).sum_columns(ColumnMeans(means))
            assert isinstance(found, ColumnSums)
            told.append(found.values[-4:])
        return reading

    monkeypatch.setattr(horizontal.HorizontalServer, "_with_scale", with_scale)
    before = len(world.refusals(SHOP))
    assert federated(world, OTHERS["horizontal"][1], protocol="horizontal") in (2, 3), (
        row,
        (told[0] - told[1] + 2.0**20) / 2.0**11,
    )
    assert told == []
    (found,) = world.refusals(SHOP)[before:]
    assert found == "server: sends shop ColumnMeans.values of shape (60, 4); expected: 4 (columns)"


EXACT = dense(np.ones((32, 4), np.float32))
SPARSE = replace(EXACT, values=EXACT.values[:1], indices=np.zeros(1, np.uint32), count=1)
BITS = replace(EXACT, values=np.zeros(16, np.uint8), bits=1, step=1.0)
FORMS = {
    "a sparse array of any size": replace(SPARSE, shape=(1 << 30,)),
    "bits that are not there": replace(BITS, count=1 << 30),
    "of a shape of as many": replace(BITS, shape=(1 << 30,), count=1 << 30),
    "long texts": replace(BITS, dtype="S500000000"),
    "objects": replace(SPARSE, dtype="O"),
    "many bits": replace(BITS, bits=1 << 20),
    "no bits": replace(BITS, bits=-1),
    "a place beyond the end": replace(SPARSE, indices=np.array([128], np.uint32)),
    "a place before the beginning": replace(SPARSE, indices=np.array([-1], np.int64)),
    "values for one place": replace(SPARSE, values=np.ones(128, np.float32)),
    "an open array of another shape": np.ones((32, 1), np.float32),
}


@pytest.mark.parametrize("form", FORMS)
def test_an_encoded_array_stands_for_as_many_values_as_are_expected(form: str) -> None:
    """Two hundred bytes stood for gigabytes, and ended the process of whoever they were sent to."""
    tracemalloc.start()
    try:
        with pytest.raises(Refused, match=r"shop: sends .*; \(32, 4\) is expected"):
            decode_from(FORMS[form], (32, 4), SHOP)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("compressors", [(), (TopK(fraction=0.1),), *((Quantise(bits=n),) for n in (1, 3, 8, 16))])
def test_what_honest_parties_encode_is_taken(compressors: Any) -> None:
    array = np.random.default_rng(1).normal(size=(32, 4))
    encoded = Pipeline(compressors=compressors).encode(array, None, np.random.default_rng(2))[0]
    found = decode_from(encoded, (32, 4), SHOP)
    assert found.shape == array.shape
    assert np.abs(found - array).max() <= (0.0 if not compressors else np.ptp(array))
    assert decode_from(array, (32, 4), SHOP) is array


@pytest.mark.parametrize("algorithm", ["pubsub-vfl", "vfl"])
def test_a_member_of_a_run_sends_no_array_of_any_size(
    world: World, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    async def pack(self: ActiveWorker, gradients: Any, epoch: int, stamp: Any, positions: Any) -> list[Gradient]:
        sent: Any = FORMS["a sparse array of any size"]
        return [Gradient(stamp[0], epoch, stamp[1], self.clock.now(), sent) for _ in gradients]

    monkeypatch.setattr(ActiveWorker, "_pack", pack)
    before = len(world.refusals(SHOP))
    assert federated(world, (*SMALL, f"algorithm={algorithm}")) in (2, 3)
    (found,) = world.refusals(SHOP)[before:]
    assert found == "bank: sends (1073741824,) values of '<f4'; (32, 4) is expected"


@pytest.mark.parametrize("means", [0, 1], ids=["of numbers", "about the means"])
def test_sums_of_columns_have_a_number_for_each(world: World, monkeypatch: pytest.MonkeyPatch, means: int) -> None:
    """As a column of a matrix they became, added to another site's, as many times as many."""
    honest = horizontal.column_sums  # type: ignore[attr-defined]

    def sums(rows: Any, scaled: Any, about: Any, *more: Any) -> Any:
        found = honest(rows, scaled, about, *more)
        return found[:, None] if bool(len(about)) == bool(means) else found

    monkeypatch.setattr(horizontal, "column_sums", sums)
    before = len(world.refusals(BANK))
    assert federated(world, OTHERS["horizontal"][1], protocol="horizontal") in (2, 3)
    found, *_ = world.refusals(BANK)[before:]
    size = 9 if means else 5
    assert found == f"bank: sends server ColumnSums.values of shape ({size}, 1); expected: {size} (sums of columns)"


def test_representations_of_nodes_are_added_up_if_they_are_of_one_shape() -> None:
    """Of four million numbers and 60 nodes' became 1.9 GB."""
    with pytest.raises(BadInput, match=r"arrays of different shapes: \(60, 8\), \(1000000, 1, 1\)"):
        aggregation.add([np.zeros((60, 8), np.float32), np.zeros((1_000_000, 1, 1), np.float32)])


def test_a_site_says_how_good_a_model_of_its_own_clients_alone_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said so in another's name, and words of its choice became a line of the coordinator's notes."""
    init = Baselines.__init__

    def in_anothers_name(self: Baselines, scores: dict[str, float]) -> None:
        init(self, {BANK if set(scores) == {SHOP} else name: value for name, value in scores.items()})

    monkeypatch.setattr(Baselines, "__init__", in_anothers_name)
    before = len(world.refusals(BANK))
    assert federated(world, (*OTHERS["horizontal"][1], "validation_fraction=0.25"), protocol="horizontal") in (2, 3)
    found, *_ = world.refusals(BANK)[before:]
    assert found == "shop: says how good a model of 'bank' is, which is none of its clients"


@pytest.mark.parametrize("clear", [True, False], ids=["a join of no rows", "fewer rows than join"])
def test_the_noise_of_a_step_follows_from_no_number_that_a_server_makes_up(
    monkeypatch: pytest.MonkeyPatch, clear: bool
) -> None:
    """Of a join of 0 rows no step is planned, so that each has next to no noise."""
    honest = joins.DuplicateCounts

    def small(train: Any, in_test: Any, num_joined: int, *more: Any) -> Any:
        return honest(train, in_test, 0 if clear else num_joined // 2, *more)

    monkeypatch.setattr(joins, "DuplicateCounts", small)
    with pytest.raises(Refused, match=r"server: tells .* that its rows stand in .* joined rows of"):
        execute(reproducible=False, model="linear", feature_dp=1.0, algorithm="rfl-sgd-v")


def test_counts_of_joined_rows_whose_sum_goes_round_are_not_few() -> None:
    """A row of 2^63 joined rows would weigh so much, under the noise of a join of 4 rows."""
    made = TableClient.__new__(TableClient)
    made._encoded, made._partners = np.zeros((4, 1)), ("a",)
    made._context = SimpleNamespace(name="a")  # type: ignore[assignment]
    counts = np.array([2**63 - 1, 2**63 - 1, 5, 1])
    token = current_caller.set("server")
    try:
        made._check_counts(joins.DuplicateCounts(np.array([1, 2, 0, 1]), np.zeros(4, np.bool_), 4, 1, np.zeros(0)))
        with pytest.raises(Refused, match=f"stand in {2**64 + 4:,} joined rows of 4"):
            made._check_counts(joins.DuplicateCounts(counts, np.zeros(4, np.bool_), 4, 1, np.zeros(0)))
    finally:
        current_caller.reset(token)


@pytest.mark.parametrize("algorithm", ["rfl-sgd-v", "rfl-admm-v", "vfl-sgd"])
@pytest.mark.parametrize("model", ["linear", "softmax"])
def test_a_table_has_as_many_outputs_as_the_task(monkeypatch: pytest.MonkeyPatch, algorithm: str, model: str) -> None:
    """With as many as it has features, and theta the identity, its predictions are its rows."""
    name = "JoinedRows" if algorithm == "vfl-sgd" else "DuplicateCounts"
    honest, position = getattr(joins, name), -2

    def wide(*given: Any) -> Any:
        return honest(*given[:position], 50, *given[position + 1 :])

    monkeypatch.setattr(joins, name, wide)
    with pytest.raises(Refused, match=r"server: asks .* for 50 outputs a row, .*; approved: "):
        execute(reproducible=False, model=model, algorithm=algorithm)


def test_a_row_is_in_a_batch_once_by_whatever_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last row is -1 too: under both numbers it would move theta twice as far as is charged."""
    honest = joins.Derivatives

    def twice(values: Any, batch_size: int, next_rows: Any) -> Any:
        return honest(values, batch_size, np.append(next_rows, next_rows.dtype.type(-1)))

    monkeypatch.setattr(joins, "Derivatives", twice)
    with pytest.raises(Refused, match=r"server: asks .* for rows beyond 0 to "):
        execute(reproducible=False, model="linear", feature_dp=1.0, algorithm="rfl-sgd-v")


def test_steps_of_theta_are_as_many_as_the_budget_was_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first exchange of a round is no step: a server that makes one of it has a step more in each round."""
    honest = joins.Derivatives

    def step(values: Any, batch_size: int, next_rows: Any) -> Any:
        return honest(np.zeros((0, 1)) if batch_size == 0 else values, batch_size or 1, next_rows)

    monkeypatch.setattr(joins, "Derivatives", step)
    monkeypatch.setattr("fedactors.runtime.compute.REPEATS", 0)
    monkeypatch.setattr("fedactors.runtime.interface.ActorSpec.counts", _strict)
    with pytest.raises(Refused, match=r"is made to release theta for the .* time; approved: at most"):
        execute(reproducible=False, model="linear", feature_dp=1.0, algorithm="rfl-sgd-v", batch_size=100_000)


def _strict(self: Any, repeats: int = 0) -> CallCounts:
    """Count as between sites, where nothing is repeated."""
    return CallCounts(config_of(self.cls, self.args, self.kwargs), 0)


@pytest.mark.parametrize("what", ["twice", "by a negative number"])
def test_a_node_is_represented_once(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """The first release is charged for the rows near a node: of one node asked for again and again all are."""
    choose = sampling.choose_batch

    def chosen(train: Any, batch_size: Any, rng: Any) -> Any:
        found = choose(train, batch_size, rng)
        return np.repeat(found[:1], len(found)) if what == "twice" else np.append(found[:1] - 120, found)

    monkeypatch.setattr(sampling, "choose_batch", chosen)
    noisy = {"noise_multiplier": "2", "clip_norm": "1", "max_degree": "20", "batch_size": "16"}
    with pytest.raises(Refused, match=r"server: asks .* for nodes that are not in order, each once, from 0 to 119"):
        small_graphs.simulate(small_graphs.settings(**noisy))


def test_a_segment_is_asked_for_by_its_number_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """-1 is the topmost one too, and was counted for itself."""
    honest = graph_messages.Aggregated

    def topmost(segment: int, values: Any) -> Any:
        return honest(segment - 2, values)

    monkeypatch.setattr(graph_messages, "Aggregated", topmost)
    with pytest.raises(Refused, match=r"server: sends .* the aggregate of segment -2 out of turn"):
        small_graphs.simulate(small_graphs.settings())


@pytest.mark.parametrize("segments", [(0, -2), (0, 0), (-2,), (1,)], ids=str)
def test_a_segment_is_predicted_once_by_whatever_number(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, segments: tuple[int, ...]
) -> None:
    """Above segment -2 comes -1, the topmost one once more: two draws under the noise that is charged once."""
    config = small_graphs.settings(**NOISY, evaluate_every="1")
    assert len(config.resolved_layers) == 2, "both calls are within the bound"
    _, memory = small_graphs.simulate(config)
    source, states = load_data(config, small_graphs.DATA, 0), memory.snapshots[-1].actors
    released, honest = list[int](), graph_serving.PredictingServer.infer

    @functools.wraps(honest)
    async def infer(self: graph_serving.PredictingServer) -> None:
        clients: Any = ActorGroup(self, self._present, timeout=60.0)
        below = await self._aggregate(0, await clients.ask(lambda client: client.infer_lowest()))
        for segment in segments:
            sent = dict.fromkeys(clients.members, replace(below, segment=segment))
            await clients.ask_each(lambda client, told: client.infer(told), sent)
            released.append(segment)

    monkeypatch.setattr(graph_serving.PredictingServer, "infer", infer)
    with pytest.raises(Refused, match=rf"server: sends .* the aggregate of segment {segments[-1]} out of turn"):
        predicted(graph_serving.predict, config, source, states, tmp_path)
    assert released == list(segments[:-1])


def test_a_probe_is_one_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    """X X^T U of a matrix tells as much as its columns would one by one, in one of the calls that are approved."""
    told: list[Any] = []

    async def joint_norm(self: GatheringServer) -> float:
        probe = tokens.Probe(np.eye(4, len(self.labels)))
        told.extend((await self._ask("probe", dict.fromkeys(self.roaming.clients, probe))).values())
        return 1.0

    monkeypatch.setattr(GatheringServer, "_joint_norm", joint_norm)
    with pytest.raises(Refused, match=r"server: sends .* Probe.vector of shape \(4, 30\); expected: 30 "):
        running.simulate("learning_rate=auto algorithm=svfl")
    assert not told


@pytest.mark.parametrize("anew", [False, True], ids=["without its prelude", "anew"])
def test_a_walk_begins_with_nothing_bare_and_once(monkeypatch: pytest.MonkeyPatch, anew: bool) -> None:
    """A driver that leaves the prelude out, or begins anew where the token was, had a client's own part unclipped."""
    noised, walk_on = list[tuple[int, ...]](), StcdClient.walk_on
    honest = StcdClient._noised_change

    def counted(self: StcdClient, before: Any, after: Any, position: tuple[int, int, int]) -> Any:
        noised.append(position)
        return honest(self, before, after, position)

    async def begun_anew(self: StcdClient, order: tokens.WalkOrder) -> tokens.TokenAtRest:
        if self.resting_token is not None:
            self.resting_token = None
        return await walk_on(self, order)

    begun_anew.__dict__.update(walk_on.__dict__)
    monkeypatch.setattr(StcdClient, "_noised_change", counted)
    if anew:
        monkeypatch.setattr(StcdClient, "walk_on", begun_anew)
        with pytest.raises(Refused, match=r"driver: has .* begin a walk, which it had its part in already"):
            running.simulate("algorithm=stcd noise=gaussian num_hops=0 topology=path start=0 num_rounds=9")
        return
    monkeypatch.setattr("fedactors.network.topology.tour", lambda *_: ())
    running.simulate(f"{NETWORK} algorithm=stcd noise=gaussian num_rounds=1")
    assert noised[:1] == [(0, 0, 0)]
