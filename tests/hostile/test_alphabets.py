"""What a sum under masks tells where each part is one of a few values, times a weight that all know."""

from __future__ import annotations

import contextlib
import functools
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedactors.api import simulate
from fedactors.cli.sites import describe
from fedactors.errors import BadInput, FedactorsError
from fedactors.federation.approval import make_proposal
from fedactors.plugins import find_protocol
from fedactors.protocols.horizontal import algorithm
from fedactors.protocols.horizontal.actors import ClientProcess, HorizontalServer
from fedactors.protocols.horizontal.messages import Change
from fedactors.protocols.mtcd import actors as mtcd
from fedactors.protocols.mtcd import serving
from fedactors.protocols.nebulafl.baselines import secure_sums
from fedactors.protocols.nebulafl.baselines.actors import OrderCenter
from fedactors.protocols.nebulafl.config import NebulaFLConfig
from fedactors.protocols.nebulafl.messages import RoundResult
from fedactors.secure_sums.actors import SecureSums, coarsest
from fedactors.secure_sums.primitives import FixedPoint
from fedactors.serving import parts, predictions
from tests.federation.world import BANK, CLINIC, SHOP, World
from tests.protocols.mtcd.test_serving import SUMMED, trained
from tests.serving.predicting import predicted

pytestmark = pytest.mark.slow
SITES = {
    "num_clients": 3, "secure_aggregation": True, "on_party_loss": "stop", "model": "linear", "num_rounds": 2,
    "evaluate_every": 4, "local_baseline": False,
}  # fmt: skip
CENTERS = {
    "algorithm": "fedavg-hierarchical", "num_centers": 3, "num_containers": 3, "active_per_center": 1,
    "duration": 9000, "num_rounds": 2, "secure_aggregation": True, "on_party_loss": "stop",
}  # fmt: skip


def run(protocol: str, **words: Any) -> None:
    more: dict[str, dict[str, Any]] = {"nebulafl": CENTERS, "mtcd": {"num_clients": 3, "secure_aggregation": True}}
    usual = SITES if protocol == "horizontal" else {**find_protocol(protocol).smoke, **more[protocol]}
    simulate(protocol, seed=1, **{**usual, **words})


@pytest.mark.parametrize("protocol", ["horizontal", "nebulafl"])
def test_no_sum_is_of_single_steps_of_adam(protocol: str) -> None:
    """The first step is plus or minus the step size: the sum would be of eight values, one for all sites' signs."""
    with pytest.raises(
        BadInput, match=r"optimizer: adam is not allowed with secure_aggregation where a .* takes 1 steps"
    ):
        run(protocol, optimizer="adam", batch_size=100_000, local_epochs=1)


def test_changes_that_are_few_places_of_large_parameters_tell_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server adds a large number to all biases of a softmax: what training changes is a few of their last places."""
    large, sums, made = np.float32(262_144), [], []
    total, train, orders = SecureSums.total, algorithm.train, HorizontalServer._orders

    async def listen(self: SecureSums, parts: Any, point: Any, work: Any) -> Any:
        found = await total(self, parts, point, work)
        sums.append(found[0])
        return found

    def keep(*args: Any, **more: Any) -> Any:
        found = train(*args, **more)
        made.append((found.weight, found.change[-10:].astype(np.float64)))
        return found

    def lifted(self: HorizontalServer, round: int) -> Any:
        found = orders(self, round)
        model_P = next(iter(found.values())).parameters.copy()
        model_P[-10:] += large
        return {name: replace(order, parameters=model_P) for name, order in found.items()}

    monkeypatch.setattr(SecureSums, "total", listen)
    monkeypatch.setattr(algorithm, "train", keep)
    monkeypatch.setattr(HorizontalServer, "_orders", lifted)
    run("horizontal", num_rounds=4)
    spacing, found = float(np.spacing(large)), [one for one in sums if one.size > 50]
    counts_G3 = np.array(list(itertools.product(range(-20, 21), repeat=3)))
    told = right = 0
    for number, sum_P in enumerate(found):
        weights, changes_3C = zip(*made[3 * number : 3 * number + 3], strict=True)
        possible_G = counts_G3 @ (np.array(weights) / sum(weights)) * spacing
        for bias in range(10):
            fits_G = np.abs(possible_G - sum_P[-13:-3][bias]) < 6e-8
            told += bool(fits_G.any())
            if fits_G.any():
                guess_3 = counts_G3[fits_G][(counts_G3[fits_G] ** 2).sum(axis=1).argmin()]
                right += bool((guess_3 == np.rint([change[bias] / spacing for change in changes_3C])).all())
    assert len(found) == 4
    assert right <= 4  # of 40, where nothing is added at random 34


def test_what_is_added_at_random_is_no_more_than_one_place() -> None:
    start = np.array([1.0, -3.0, 0.0], np.float32)
    change = Change(1, 2.0, 0.0, np.array([1e-3, 2e-3, 1e-3], np.float32), np.zeros(0, np.float32))
    order: Any = type("Order", (), {"parameters": start, "control": np.zeros(0, np.float32)})
    grain = algorithm.grains(change, 8.0, order)
    assert grain.tolist() == [*(0.25 * np.spacing(np.array([1.001, 3.0, 1e-3], np.float32))), 0.0, 0.0, 0.0]
    nobody = replace(change, num_clients=0)
    assert not algorithm.grains(nobody, 8.0, order).any()


def test_no_run_has_two_sums_of_a_change_by_other_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """SCAFFOLD's controls are the changes divided by each one's own steps: two equations for two sites' changes."""
    total, train, sums, made = SecureSums.total, algorithm.train, list[Any](), list[Any]()

    async def listen(self: SecureSums, parts: Any, point: Any, work: Any) -> Any:
        found = await total(self, parts, point, work)
        sums.append(found[0])
        return found

    def keep(*args: Any, **more: Any) -> Any:
        made.append(train(*args, **more))
        return made[-1]

    monkeypatch.setattr(SecureSums, "total", listen)
    monkeypatch.setattr(algorithm, "train", keep)
    with contextlib.suppress(BadInput):
        run("horizontal", algorithm="scaffold", weighting="samples", num_rounds=1)
    for sum_P in (one for one in sums if one.size > 3):  # the server knows the first client's part, as one of three
        size = made[0].change.size
        assert sum_P.size > size + 3
        shares_3 = np.array([one.weight for one in made]) / sum(one.weight for one in made)
        steps_3 = [-float(np.median(one.control_change / one.change)) for one in made]  # by its number of rows
        known = sum_P[:size] - shares_3[0] * made[0].change, sum_P[size : 2 * size] - made[0].control_change
        read = np.linalg.solve([shares_3[1:], [-one for one in steps_3[1:]]], known)[0]
        error = np.abs(read - made[1].change).max()
        assert error > 0.1 * np.abs(made[1].change).max(), "the server has read a site's change"
    with pytest.raises(BadInput, match="scaffold is not allowed with secure_aggregation: a control is the change"):
        run("horizontal", algorithm="scaffold")
    assert algorithm.summand(Change(1, 2.0, 0.0, np.ones(3, np.float32), np.ones(3)), 8.0, ORDER, 1.0).size == 3 + 3


ORDER: Any = type("Order", (), {"parameters": np.ones(3, np.float32), "control": np.ones(3, np.float32)})


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (1e5, r"a step of the sum's grid is .* of its numbers; approved: 0.0001 at most: .* smaller secure_range"),
        (0.1, "that all together weigh"),
    ],
    ids=["too large", "too small"],
)
@pytest.mark.parametrize(("protocol", "kind"), [("horizontal", ClientProcess), ("nebulafl", OrderCenter)])
def test_no_total_makes_the_grid_of_a_sum_coarse(
    monkeypatch: pytest.MonkeyPatch, protocol: str, kind: Any, factor: float, said: str
) -> None:
    """Of a total that is told too large the own numbers would be few steps, between which the server reads."""
    honest = kind.take_weight

    @functools.wraps(honest)
    async def told(self: Any, total: Any) -> None:
        await honest(self, replace(total, value=total.value * factor))

    monkeypatch.setattr(kind, "take_weight", told)
    with pytest.raises(FedactorsError, match=said):
        run(protocol)


def test_the_grid_of_ordinary_runs_is_fine_enough() -> None:
    for number, share in ((3, 0.01), (20, 0.005), (100, 0.002), (200, 0.001), (1000, 0.0005)):
        assert FixedPoint(limit=10.0, num_clients=number).steps_per_unit * share > 2 / coarsest(number)


def test_what_a_center_adds_follows_from_no_place_of_the_orders_model() -> None:
    start = np.full(3, 1234.5, np.float32)
    result = RoundResult("oregon", 1, 10, 1, start)
    assert secure_sums.summand(result, start, 0.25, 100.0).tolist() == [0.0, 0.0, 0.0, 25.0]


def test_no_center_trains_at_a_rate_below_the_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a rate of nearly nothing the exchange would choose what each center adds."""
    honest = OrderCenter.start_round

    @functools.wraps(honest)
    async def told(self: Any, order: Any) -> None:
        await honest(self, replace(order, rate_factor=1e-300))

    monkeypatch.setattr(OrderCenter, "start_round", told)
    with pytest.raises(FedactorsError, match="to train at 1e-300 times the step size; approved: 1 to 1"):
        run("nebulafl")
    stepped = NebulaFLConfig(schedule="step", decay_every=10, decay_factor=0.1)
    assert stepped.smallest_rate == pytest.approx(0.1)
    assert NebulaFLConfig(schedule="cosine").smallest_rate == pytest.approx(0.5 * (1 - np.cos(np.pi / 20)))


def test_what_sums_of_adaptive_steps_tell_is_shown(tmp_path: Any) -> None:
    world = World(tmp_path, (BANK, SHOP, CLINIC))
    for words, is_said in (({}, True), ({"optimizer": "sgd"}, False)):
        settings = {"on_party_loss": "stop", "secure_aggregation": True, **words}
        data = f"{BANK}=patients,{SHOP}=cases,{CLINIC}=cured"
        made = make_proposal(world.folder(BANK), find_protocol("horizontal"), settings, data, None)
        said = describe(world.folder(SHOP), made)["left_open"]
        assert any(one.startswith("steps of adam and adamw are nearly") for one in said) == is_said


MORE: dict[str, Any] = {"horizontal": {}, "nebulafl": {"duration": 90_000}, "mtcd": {"learning_rate": 0.001}}
NAMES = ("client-", "frankfurt", "oregon", "virginia")


@pytest.mark.parametrize("protocol", MORE)
@pytest.mark.parametrize("number", [np.nan, np.inf, 1e5], ids=["none", "infinite", "beyond the range"])
def test_of_what_fits_no_sum_nobody_learns_whose_it_is(
    monkeypatch: pytest.MonkeyPatch, protocol: str, number: float
) -> None:
    """By models of its own making a server would ask of a single site, run by run: has it a row beyond some bound?"""
    total, sums, limits, parts = SecureSums.total, list[Any](), list[float](), list[Any]()
    module, size = {"horizontal": (algorithm, -3), "nebulafl": (secure_sums, -1), "mtcd": (mtcd, -1)}[protocol]
    honest = module.summand  # type: ignore[attr-defined]

    async def listen(self: SecureSums, masked: Any, point: Any, work: Any) -> Any:
        found = await total(self, masked, point, work)
        sums.append(found[0])
        limits.append(point.limit)
        return found

    def summand(*told: Any) -> Any:
        found = honest(*told)
        if not parts:
            found[:size] = number
        parts.append(found)
        return found

    monkeypatch.setattr(SecureSums, "total", listen)
    monkeypatch.setattr(module, "summand", summand)
    said = r"secure_range: [\d.]+ is too small for a \w+ of a client, or learning_rate: [\d.]+ diverges there: "
    with pytest.raises(BadInput, match=said) as raised:
        run(protocol, **MORE[protocol])
    assert len(parts) == 3
    assert not any(name in str(raised.value) for name in NAMES)
    others = sum(parts[1:])
    read, others = (one[: len(others) + size] for one in (sums[-1], others))
    assert np.abs(read - others).min() > 1e-9, "the server reads what the others have added"
    assert np.median(np.abs(read)) > 1  # of words that are drawn at random
    flag = sums[-1][-1] if sums[-1].ndim == 1 else sums[-1][-1, 0]
    most = 1e-3 if protocol == "horizontal" else 1e-8  # how many clients the others are is known there
    assert flag / limits[-1] == pytest.approx(-1, abs=most), "that one of them has none, and nothing else"


@pytest.mark.parametrize("number", [np.nan, 1e5], ids=["none", "beyond the range"])
def test_of_a_contribution_that_fits_no_sum_nobody_learns_whose_it_is(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, number: float
) -> None:
    """A label party chooses which new rows are predicted: by such stops it would ask of one site's rows, by name."""
    config, data, states = trained(SUMMED, "breast-cancer")
    total, contribution, sums, made = SecureSums.total, parts.contribution, list[Any](), list[Any]()

    async def listen(self: SecureSums, *args: Any) -> Any:
        found = await total(self, *args)
        sums.append(found[0])
        return found

    def contribute(*told: Any) -> Any:
        found = np.array(contribution(*told))
        if not made:
            found[0] = number
        made.append(found)
        return found

    monkeypatch.setattr(SecureSums, "total", listen)
    monkeypatch.setattr(predictions, "contribution", contribute)
    said = (
        r"secure_range: [\d.]+ is too small for a contribution of a client: train with a larger one; the client's own"
    )
    with pytest.raises(BadInput, match=said) as raised:
        predicted(serving.predict, config, data, states, tmp_path)
    assert len(made) == 3
    assert "client-" not in str(raised.value)
    others = sum(made[1:])
    assert np.abs(sums[-1][: len(others)] - others).min() > 1e-9, "the exchange reads what the others have added"
    assert sums[-1][-1, 0] == pytest.approx(-config.secure_range, rel=1e-6)


def test_of_sums_that_a_site_does_not_have_nobody_learns_whose_they_are(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside means of a server's making, 2^60, a row decides whether squares have a sum."""
    rng, read = np.random.default_rng(3), list[Any]()
    for name in ("north", "east", "south", "test"):
        values = rng.normal(size=(40, 2))
        if name == "south":
            values[0, 0] = 1e30
        rows = "".join(f"{a:.4g},{b:.4f},{int(b > 0)}\n" for a, b in values)
        (tmp_path / f"{name}.csv").write_text("a,b,label\n" + rows)
    told = "".join(f'[parties.{name}]\npath = "{name}.csv"\nlabel = "label"\n' for name in ("north", "east", "south"))
    (tmp_path / "parties.toml").write_text(
        f'[task]\ntype = "binary"\nlayout = "horizontal"\nclasses = ["0", "1"]\ntest = "test.csv"\n{told}'
    )
    honest = SecureSums.total

    async def listen(self: SecureSums, *args: Any) -> Any:
        found = await honest(self, *args)
        read.append(found[0])
        return found

    monkeypatch.setattr(SecureSums, "total", listen)
    words = {"secure_aggregation": True, "on_party_loss": "stop", "num_rounds": 1}
    with pytest.raises(BadInput, match="numbers of columns are too large to be standardised") as raised:
        simulate("horizontal", tmp_path / "parties.toml", seed=1, **words)
    assert not any(name in str(raised.value) for name in ("north", "east", "south"))
    assert read[-1].shape == (5, 9)
    assert not (read[-1][1:] == 0).any(), "which is what the others have added"
