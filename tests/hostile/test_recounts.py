"""An independent recount: what was drawn, by whoever draws it, and what it costs by formulas of this file."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedactors.actors.actor import Actor
from fedactors.actors.groups import ActorGroup
from fedactors.cli.main import main
from fedactors.config import build
from fedactors.errors import Refused
from fedactors.privacy import mechanisms
from fedactors.privacy.accounting import INTERRUPTED, PrivacyRecord
from fedactors.privacy.noise import discrete_laplace
from fedactors.protocols.glasu.serving import PredictingClient
from fedactors.protocols.horizontal.data import load_data as load_clients
from fedactors.protocols.horizontal.run import run as run_horizontal
from fedactors.protocols.pubsub_vfl.messages import EpochOrder
from fedactors.protocols.pubsub_vfl.run import Federation
from fedactors.protocols.tablepuppet import actors as tables
from fedactors.protocols.tablepuppet.config import TablePuppetConfig
from fedactors.protocols.tablepuppet.data import load_data as load_tables
from fedactors.protocols.tablepuppet.run import run as run_tables
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.interface import Snapshot
from fedactors.runtime.rounds import Rounds
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from fedactors.secure_sums.protocol import SecureSumClient
from tests.federation.test_runs import MTCD, federated
from tests.federation.world import BANK, SHOP, World
from tests.hostile.test_accounts import longer
from tests.protocols.glasu import federation as graphs
from tests.protocols.glasu.test_privacy import NOISY
from tests.protocols.horizontal import federation as horizontal
from tests.protocols.pubsub_vfl.runs import simulate
from tests.protocols.tablepuppet.test_dp import execute

pytestmark = [pytest.mark.slow, pytest.mark.drawn(2, family="accounts")]


def below(x: float) -> float:
    """Return Phi(x), which keeps its digits far below 0."""
    return math.erfc(-x / math.sqrt(2)) / 2


def epsilon_at(mu: float, delta: float) -> float:
    """Return the smallest epsilon with Phi(mu/2 - e/mu) - exp(e) Phi(-mu/2 - e/mu) <= delta, by bisection."""

    def excess(epsilon: float) -> float:
        return below(mu / 2 - epsilon / mu) - math.exp(epsilon) * below(-mu / 2 - epsilon / mu) - delta

    low, high = 0.0, 1.0
    while excess(high) > 0:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high


def check_gaussian(record: PrivacyRecord, times: int, clip: float, sigma: float, distance: float = 2.0) -> None:
    """Check what a line states: so many releases, each of which one record moves by `distance` times the clip."""
    mu = distance * clip * math.sqrt(times) / sigma
    assert record.touched == times
    assert record.rigorous_mu == pytest.approx(mu, rel=1e-9)
    assert record.delta is not None
    assert record.epsilon == pytest.approx(epsilon_at(mu, record.delta), rel=1e-6)


def counted(monkeypatch: pytest.MonkeyPatch, method: str, size: Callable[..., int]) -> Counter[str]:
    """Count what the generators give with which parties draw noise, by party and purpose."""
    drawn, honest = Counter[str](), Actor.noise_rng

    class Generator(np.random.Generator):
        owner = ""

    def drawing(self: Generator, *args: Any, **more: Any) -> Any:
        drawn[self.owner] += size(*args)
        return getattr(np.random.Generator, method)(self, *args, **more)

    setattr(Generator, method, drawing)

    def noise_rng(self: Actor, purpose: str) -> Generator:
        found = Generator(honest(self, purpose).bit_generator)
        found.owner = f"{self.party} {purpose}"
        return found

    monkeypatch.setattr(Actor, "noise_rng", noise_rng)
    return drawn


@pytest.mark.parametrize("aligned_anew", [False, True], ids=["honest", "aligned anew"])
def test_exchanged_labels_are_charged_as_often_as_they_were_drawn(
    monkeypatch: pytest.MonkeyPatch, aligned_anew: bool
) -> None:
    train, drawn = Federation.train, counted(monkeypatch, "random", lambda shape=None: int(np.prod(shape or 1)))

    async def anew(self: Federation, order: EpochOrder, num_rows: int) -> dict[str, float]:
        if aligned_anew:
            await self.align()
        return await train(self, order, num_rows)

    monkeypatch.setattr(Federation, "train", anew)
    done = simulate(label_epsilon=1.5, num_epochs=3, algorithm="vfl", validation_fraction=0.2)
    (record,) = (one for one in done.runtime.privacy_records if one.message_type == "labels")
    (values,) = (number for owner, number in drawn.items() if owner == f"{record.party} rows")
    times = 4 if aligned_anew else 1
    assert record.touched == times
    assert values % times == 0  # all training and validation labels, each time
    assert record.epsilon == pytest.approx(times * 1.5)


@pytest.mark.parametrize("again", [0, 3], ids=["honest", "asked again"])
@pytest.mark.parametrize("model", ["linear", "logistic"])
def test_noisy_labels_are_charged_as_often_as_they_were_drawn(
    monkeypatch: pytest.MonkeyPatch, model: str, again: int
) -> None:
    drawn, honest = [], discrete_laplace
    send = tables.TableClient.send_labels

    def laplace(scale: int, count: int, entropy: Any) -> Any:
        drawn.append(count)
        return honest(scale, count, entropy)

    async def asked(self: tables.TableClient) -> Any:
        for _ in range(again):
            await send(self)
        found = await send(self)
        drawn.append(-len(found.train))
        return found

    asked.__dict__.update(send.__dict__)
    monkeypatch.setattr(mechanisms, "discrete_laplace", laplace)
    monkeypatch.setattr(tables.TableClient, "send_labels", asked)
    words: dict[str, Any] = {"label_range": [0, 1]} if model == "linear" else {}
    _, records, _ = execute(reproducible=False, model=model, algorithm="rfl-sgd-v", label_dp=0.8, **words)
    record = records["orders", "Labels"]
    *values, rows = drawn
    width = 1 if model == "linear" else 2  # a number each, or one for each class
    assert len(values) == 2  # of the training rows and of the test rows, once each
    assert (values[0], sum(values)) == (-rows * width, 1000 * width)
    assert record.touched == 1
    assert record.epsilon == pytest.approx((1 if model == "linear" else 2) * math.sqrt(2) / 0.8)


@pytest.mark.parametrize("more", [0, 6], ids=["honest", "more rounds"])
@pytest.mark.parametrize(
    "words", [{"algorithm": "rfl-sgd-v"}, {"algorithm": "rfl-admm-v", "admm": "paper_sgd", "local_batch_size": 16}],
    ids=lambda words: words["algorithm"],
)  # fmt: skip
def test_predictions_of_tables_are_charged_as_they_were_drawn(
    monkeypatch: pytest.MonkeyPatch, words: dict[str, Any], more: int
) -> None:
    drawn = counted(monkeypatch, "standard_normal", lambda shape=None: 1)
    longer(monkeypatch, "tablepuppet", more)
    noise = {"feature_dp": 2.0, "prediction_clip": 0.5, "prediction_noise": 3.0}
    _, records, _ = execute(reproducible=False, model="linear", **noise, **words)
    found = {party: one for (party, kind), one in records.items() if kind == "Predictions"}
    assert set(found) == {owner.partition(" ")[0] for owner in drawn}
    assert len(found) > 1
    for party, record in found.items():
        check_gaussian(record, drawn[f"{party} noise"], 0.5, 1.5)


def rows_under_masks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the rows of the arrays to which clients add their part of a sum's noise, by client."""
    rows, mask = Counter[str](), SecureSumClient.mask

    def masked(
        self: SecureSumClient, values: Any, point: Any, values_id: Any = None, sigma: float = 0.0, **more: Any
    ) -> Any:
        if sigma > 0:
            rows[self.name] += len(values)
            assert sigma == 20.0  # of the sum without one's own part, in the unit of the values
        return mask(self, values, point, values_id, sigma, **more)

    monkeypatch.setattr(SecureSumClient, "mask", masked)
    return rows


@pytest.mark.parametrize("more", [0, 3], ids=["honest", "more rounds"])
def test_noise_under_masks_is_charged_as_it_was_drawn(monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    rows = rows_under_masks(monkeypatch)
    longer(monkeypatch, "glasu", more)
    words = {**NOISY, "num_rounds": "2", "evaluate_every": "100", "max_degree": "100000", "secure_aggregation": "true"}
    words["noise_multiplier"] = "20"
    if more:
        with pytest.raises(Refused, match=r"round 3 with .*; approved: .* rounds 1 to 2"):
            graphs.simulate(graphs.settings(**words))
        return
    _, memory = graphs.simulate(graphs.settings(**words))
    charged = {one.party: one for one in memory.records if one.message_type == "Representation"}
    assert set(charged) == set(rows)
    assert len(rows) > 2
    for party, record in charged.items():
        check_gaussian(record, rows[party], 1.0, 20.0)


def test_a_prediction_is_charged_as_it_was_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = "num_clients=3 num_tokens=1 problem=sparse-logistic num_rounds=2 relaxed_protocol=true learning_rate=0.1"
    noise = "noise=gaussian noise_multiplier=4 clip_norm=1"
    begin = ["run", "mtcd", "--data", "breast-cancer", "--runtime", "simulated", "--quiet"]
    assert main([*begin, *words.split(), *noise.split(), "--out", str(tmp_path)]) == 0
    (run,) = tmp_path.iterdir()
    drawn = counted(monkeypatch, "standard_normal", lambda shape=None: 1)
    for _ in range(2):
        assert main(["predict", str(run), "--data", "breast-cancer", "--output", str(tmp_path / "said.csv")]) == 0
    lines = [json.loads(line) for line in (run / predictions_file()).read_text().splitlines()]
    by_party = Counter(str(line["party"]) for line in lines)
    assert by_party == Counter({owner.partition(" ")[0]: number for owner, number in drawn.items()})
    for line in lines:
        assert line["touched"] == 1
        assert line["epsilon"] == pytest.approx(epsilon_at(2 * 1.0 / 4.0, line["delta"]), rel=1e-6)


@pytest.mark.parametrize("masked", [False, True], ids=["bare", "under masks"])
@pytest.mark.parametrize("ends", [True, False], ids=["honest", "stops before the end"])
def test_predictions_of_nodes_are_charged_as_they_were_drawn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ends: bool, masked: bool
) -> None:
    """Whole runs, and two predictions of each; a server that stops has read all representations, and no logits."""
    words = {**NOISY, "hidden_size": "8", "num_rounds": "1", "evaluate_every": "1", "max_degree": "100000"}
    words |= {"noise_multiplier": "20", "secure_aggregation": str(masked)}
    begin = ["run", "glasu", "--data", graphs.DATA, "--runtime", "simulated", "--quiet", "--out", str(tmp_path)]
    assert main([*begin, *(f"{name}={value}" for name, value in words.items())]) == 0
    (run,) = tmp_path.iterdir()
    drawn = rows_under_masks(monkeypatch) if masked else counted(monkeypatch, "standard_normal", lambda shape: shape[0])
    if not ends:

        async def stops(self: Any, last: Any) -> Any:
            raise Refused("server", "stops")

        stops.__dict__.update(PredictingClient.classify.__dict__)
        monkeypatch.setattr(PredictingClient, "classify", stops)
    for _ in range(2):
        done = main(["predict", str(run), "--data", graphs.DATA, "--output", str(tmp_path / "said.csv")])
        assert (done == 0) == ends
    lines = [json.loads(line) for line in (run / predictions_file()).read_text().splitlines()]
    charged = Counter[str]()
    for line in lines:
        if line["message_type"] == "Representation":
            charged[line["party"]] += line["touched"]
            check_gaussian(SimpleNamespace(**line), line["touched"], 1.0, 20.0)  # type: ignore[arg-type]
    assert charged == Counter({owner.partition(" ")[0]: number for owner, number in drawn.items()})
    assert len(charged) == 3
    assert {line["message_type"] for line in lines} == {"Representation", "Logits"} if ends else {"Representation"}


def predictions_file() -> str:
    from fedactors.runs.folder import PREDICTIONS

    return PREDICTIONS


def test_a_server_that_stops_before_the_end_of_a_prediction_is_charged() -> None:
    """The line of a representation is written when it is drawn, and not when the logits are asked for."""
    from fedactors.protocols.glasu import privacy

    config = graphs.settings(**NOISY)
    releases = privacy.noised_releases(config)
    privacy.count_release(releases, config, 1, 120, first=False)
    (line,) = privacy.prediction_records(config, "client-0", releases)
    check_gaussian(line, 120, 1.0, 2.0)
    (bare,) = privacy.prediction_records(config, "client-0")
    assert (bare.message_type, bare.epsilon) == ("Logits", math.inf)


@pytest.mark.parametrize("asks", [True, False], ids=["honest", "leaves it out"])
def test_a_driver_that_leaves_the_account_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: bool) -> None:
    """A site writes down what its actors released, whether or not the driver lets them."""

    honest = ActorGroup.ask

    async def ask(self: ActorGroup[Any], call: Any, *args: Any, **more: Any) -> Any:
        return {} if "account" in call.__code__.co_names else await honest(self, call, *args, **more)

    if not asks:
        monkeypatch.setattr(ActorGroup, "ask", ask)
    world = World(tmp_path)
    world.start(BANK)
    world.start(SHOP)
    try:
        words = (*MTCD, "noise=gaussian", "noise_multiplier=4", "clip_norm=1", "learning_rate=0.01")
        assert federated(world, words, protocol="mtcd") == 0, world.output
        (file,) = (world.path / SHOP).rglob("privacy.jsonl")
        lines = [json.loads(line) for line in file.read_text().splitlines()]
    finally:
        world.stop()
    assert {line["party"] for line in lines} == {SHOP}
    assert {line["message_type"] for line in lines} == {"Representation", "Token"}
    assert all(line["touched"] > 0 for line in lines)


@pytest.mark.parametrize("protocol", ["horizontal", "tablepuppet"])
def test_who_goes_on_from_before_the_first_round_promises_nothing(
    monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """A driver that takes its checkpoint before anything left has the same released again, and nobody remembers."""
    kept, start = dict[str, Any](), Rounds.start

    async def started(self: Rounds[Any]) -> bool:
        await start(self)
        if not kept:
            await self._runtime.checkpoint("early")
        return True

    monkeypatch.setattr(Rounds, "start", started)
    for _ in range(2):
        recorder = MemoryRecorder()
        runtime = SimulatedRuntime(seed=0, recorder=recorder)
        resume = Snapshot(kept["early"].actors, kept["early"].driver) if kept else None
        if protocol == "horizontal":
            rows = {"record_clip_norm": 0.5, "record_noise_multiplier": 1.5}
            config = horizontal.changed(num_rounds=2, num_clients=3, **rows)
            data = load_clients(config, "digits", 0)
            runtime.execute(partial(run_horizontal, config, data, runtime), resume)
        else:
            words = {"num_rounds": 2, "batch_size": 512, "algorithm": "rfl-sgd-v", "model": "linear", "feature_dp": 1.0}
            settings = build(TablePuppetConfig, words)
            joined = load_tables(settings, "orders:1000", 0)
            runtime.execute(partial(run_tables, settings, joined, runtime), resume)
        records = [one for one in runtime.privacy_records if one.mechanism == "dp-sgd"]
        assert records
        assert [INTERRUPTED in one.uncovered for one in records] == [resume is not None] * len(records)
        kept.update(recorder.checkpoints)
