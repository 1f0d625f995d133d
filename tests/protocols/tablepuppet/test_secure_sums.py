"""Predictions summed under masks: the numbers of the open mode, and attacks that succeed against it and fail here."""

from __future__ import annotations

import logging
import math

import numpy as np
import pyarrow as pa
import pytest

from fedactors.auditing.attacks import complete_by_differences
from fedactors.data.layouts.vertical import stated
from fedactors.errors import BadInput, PartyLost
from fedactors.inspection import describe_messages
from fedactors.launch import load_data
from fedactors.privacy.accounting import EVERYBODY, JOINED, claims
from fedactors.privacy.noise import mu_of_epsilon
from fedactors.protocols.tablepuppet import messages
from fedactors.protocols.tablepuppet.loj_operator import JoinServer
from fedactors.protocols.tablepuppet.mapping import JoinSplit, comparable_rows
from fedactors.protocols.tablepuppet.plugin import PROTOCOL
from fedactors.protocols.tablepuppet.privacy import reconstructions, surface, views
from fedactors.runtime.interface import Snapshot
from fedactors.secure_sums.messages import Masked
from tests.protocols.tablepuppet.test_run import execute, in_memory, sent_values, settings

NUM_ITEMS, NUM_FEATURES = 60, 2


def shop(seed=0):
    """Orders, items and cards: two features each, every order once in the join."""
    rng = np.random.default_rng(seed)
    count = 400
    weight, price = rng.normal(size=NUM_ITEMS), rng.normal(size=NUM_ITEMS)
    items = pa.table({"item": np.arange(NUM_ITEMS), "weight": weight, "price": price})
    cards = pa.table({"card": np.arange(40), "limit_": rng.normal(size=40), "age": rng.normal(size=40)})
    item, card = rng.permutation(np.arange(count) % NUM_ITEMS), rng.integers(0, 40, count)
    amount, hour = rng.normal(size=count), rng.normal(size=count)
    y = amount + price[item] - cards["age"].to_numpy()[card] + 0.1 * rng.normal(size=count)
    orders = pa.table({"item": item, "card": card, "amount": amount, "hour": hour, "y": y})
    return stated(
        "SELECT y, amount, hour, weight, price, limit_, age FROM orders JOIN items ON orders.item = items.item "
        "JOIN cards ON orders.card = cards.card",
        in_memory(orders=orders, items=items, cards=cards),
        label="orders.y",
    )


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["rfl-admm-v", "rfl-sgd-v"])
@pytest.mark.parametrize("model", ["linear", "neural"])
def test_sums_under_masks_train_as_open_predictions_do(algorithm, model):
    words = {"algorithm": algorithm, "model": model, "num_rounds": 2, "batch_size": 10_000, "lbfgs_iterations": 5}
    plain, _, _ = execute(settings(**words), shop())
    masked, _, _ = execute(settings(**words, secure_aggregation=True), shop())
    assert masked.metrics["test/rmse"] == pytest.approx(
        plain.metrics["test/rmse"], rel=1e-5 if model == "linear" else 1e-3
    )
    assert masked.metrics["training/loss"] == pytest.approx(
        plain.metrics["training/loss"], rel=1e-5 if model == "linear" else 1e-3
    )


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["rfl-admm-v", "rfl-sgd-v"])
def test_what_is_sent_is_what_inspection_says_and_no_prediction_is_among_it(algorithm, monkeypatch):
    config = settings(algorithm=algorithm, secure_aggregation=True)
    _, _, runtime = execute(config, shop())
    types = {total.type for total in runtime.ledger.totals() if not total.type.endswith("()")}
    assert types == {cls.__name__ for cls in messages.sent(config)}
    told = {entry["message"] for entry in describe_messages(PROTOCOL, config)}
    assert "Masked" in told
    assert not {"Predictions", "TestPredictions"} & (types | told)
    assert "Masked" not in {entry["message"] for entry in describe_messages(PROTOCOL, settings(algorithm=algorithm))}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["rfl-admm-v", "rfl-sgd-v"])
def test_a_resumed_run_goes_on_exactly(algorithm):
    words = {"algorithm": algorithm, "secure_aggregation": True}
    whole, _, _ = execute(settings(**words, num_rounds=4), shop(), reproducible_noise=True)
    _, half, _ = execute(settings(**words, num_rounds=2), shop(), reproducible_noise=True)
    taken = half.checkpoints["last"]
    resume = Snapshot(taken.actors, taken.driver)
    resumed, _, _ = execute(settings(**words, num_rounds=4), shop(), resume=resume, reproducible_noise=True)
    assert resumed.metrics == whole.metrics


@pytest.mark.slow
def test_a_killed_client_ends_the_run_with_its_name():
    _, _, runtime = execute(settings(secure_aggregation=True), shop())
    with pytest.raises(PartyLost) as error:
        execute(settings(secure_aggregation=True), shop(), faults={"items": runtime.usage().seconds * 0.7})
    assert error.value.party == "items"


@pytest.mark.parametrize("words", [{"algorithm": "rfl-admm"}, {"algorithm": "vfl-sgd"}, {"algorithm": "centralised"}])
def test_other_algorithms_have_no_masked_sums(words):
    with pytest.raises(BadInput, match="secure_aggregation: only with rfl-admm-v and rfl-sgd-v"):
        settings(**words, secure_aggregation=True)


def test_two_tables_are_too_few():
    orders = pa.table({"k": np.arange(80) % 9, "y": np.arange(80.0)})
    items = pa.table({"k": np.arange(9), "x": np.arange(9.0)})
    sql = "SELECT y, x FROM orders JOIN items ON orders.k = items.k"
    data = stated(sql, in_memory(orders=orders, items=items), label="y")
    with pytest.raises(BadInput, match="secure_aggregation: 3 tables of one partition each are needed"):
        execute(settings(secure_aggregation=True), data)


@pytest.mark.slow
def test_predictions_beyond_the_range_are_named():
    with pytest.raises(BadInput, match=r"secure_range: 1e-06 is too small for predictions of"):
        execute(settings(secure_aggregation=True, secure_range=1e-6, algorithm="rfl-sgd-v"), shop())


# --- attacks of a server that knows 8 rows of items and who joins with whom -----------------------------------------


NOISY_ROWS = {"admm": "paper_sgd", "feature_dp": 8.0, "prediction_clip": 2.0, "prediction_noise": 2.0}


def attacked(num_known=8, **words):
    """Return what a server finds of items that knows some of its rows, and with theta of every round given."""
    return reconstructions("items", views(settings(**words), shop(), 0)["items"], num_known)


@pytest.mark.slow
def test_known_rows_and_theta_give_the_rows_of_open_predictions_and_not_of_sums():
    for opened, masked in zip(attacked(num_rounds=5), attacked(num_rounds=5, secure_aggregation=True)[:2], strict=True):
        assert opened.estimate > 0.99
        assert not opened.is_chance
        assert masked.estimate < 0.35
        assert masked.estimate < opened.estimate / 2


@pytest.mark.slow
def test_what_the_attack_reads_of_sums_is_what_the_server_reads(monkeypatch):
    """The sums that attacks are mounted on are those that masks leave, to the grid's last step."""
    read, ask = [], JoinServer._ask_sum

    async def listen(self, call, given):
        found = await ask(self, call, given)
        read.append(found[:, 0])
        return found

    monkeypatch.setattr(JoinServer, "_ask_sum", listen)
    seen = views(settings(secure_aggregation=True, num_rounds=2), shop(), 0)
    trained = [one for one in read if len(one) == seen["items"].values_RN.shape[1]]
    assert np.abs(np.array(trained) - seen["items"].values_RN).max() < 1e-5
    assert np.array_equal(seen["items"].values_RN, seen["cards"].values_RN)


@pytest.mark.slow
def test_what_sums_alone_do_not_protect_and_noise_does():
    """Linear sums over many rounds: known rows of one table give its others, better than by guessing."""
    long, *_ = attacked(30, num_rounds=80, secure_aggregation=True)
    assert long.low > 2 * long.chance
    assert long.estimate > 0.35
    noisy, *_ = attacked(30, num_rounds=16, secure_aggregation=True, **NOISY_ROWS)
    assert noisy.estimate < 0.2


@pytest.mark.slow
def test_differences_of_sums_give_rows_beside_known_ones_and_noise_hides_them():
    """Two items of one order and card: their sums differ by these two rows alone, whatever the masks."""
    declared = ("amount=0:3", "hour=0:23", "weight=0:3", "price=0:3", "credit_limit=0:3", "age=18:80")
    words = {
        "model": "logistic",
        "num_rounds": 5,
        "secure_aggregation": True,
        "secure_range": 1000.0,
        "declared_facts": declared,
    }
    found = {}
    for mode, more in {"sums": {}, "noise": NOISY_ROWS}.items():
        config = settings(**words, **more)
        view = views(config, load_data(PROTOCOL, config, "orders:300", 0), 0)["items"]
        *_, found[mode] = reconstructions("items", view, len(view.rows_NF) // 4)
        assert found[mode].name == "reconstruction with differences: items"
    assert found["sums"].estimate > 0.99
    assert found["sums"].count > 100
    assert found["noise"].is_chance


def test_pairs_of_known_rows_give_the_unknown_ones_beside_them_and_no_others():
    rows, weights = np.random.default_rng(0).normal(size=(7, 2)), np.random.default_rng(1).normal(size=(2, 3))
    positions, partners = np.array([0, 1, 2, 3, 4, 1, 5, 6]), np.array([0, 0, 0, 1, 1, 2, 2, 3])
    sums = rows[positions] @ weights + np.random.default_rng(2).normal(size=(4, 3))[partners]
    which, found = complete_by_differences(sums, positions, partners, rows[:4])
    assert sorted(which.tolist()) == [4, 5]  # 6 stands beside no known row
    assert np.allclose(found, rows[which])
    assert len(complete_by_differences(sums, positions, partners, rows[:1])[0]) == 0  # no pair to fit on


@pytest.mark.slow
def test_the_suite_attacks_every_table_that_has_rows_enough():
    found = surface(settings(num_rounds=2), shop(), {}, 0).others
    assert {one.name.rpartition(" ")[2] for one in found} == {"orders", "items", "cards"}
    assert len(found) == 6
    assert max(one.estimate for one in found) > 0.99
    with pytest.raises(BadInput, match="not with algorithm=rfl-sgd-v"):
        surface(settings(algorithm="rfl-sgd-v"), shop(), {}, 0)


@pytest.mark.slow
def test_rows_whose_differences_show_are_counted_and_warned_of(caplog):
    one = JoinSplit((np.array([0, 1, 2, 3]), np.array([0, 0, 1, 1])), (np.zeros(0, int),) * 2, (4, 2))
    assert comparable_rows(one) == [1.0, 0.0]
    with caplog.at_level(logging.WARNING):
        execute(settings(secure_aggregation=True))
    assert any("sums tell differences of" in record.message for record in caplog.records)


# --- the joint account ----------------------------------------------------------------------------------------------

NOISY = {
    "algorithm": "rfl-sgd-v", "feature_dp": 1.0, "prediction_clip": 2.0, "prediction_noise": 20.0, "label_dp": 0.5,
    "label_range": (-3.0, 3.0), "num_rounds": 2, "batch_size": 512,
}  # fmt: skip
DECLARED = ("amount=-3:3", "hour=-3:3", "weight=-3:3", "price=-3:3", "limit_=-3:3", "age=-3:3")


@pytest.mark.slow
def test_the_joint_account_of_a_joined_tuple_composes_all_lines_of_all_tables():
    result, recorder, _ = execute(settings(**NOISY, declared_facts=DECLARED), shop())
    joint, lines = result.extra["privacy"]["joined tuple"], recorder.privacy_records
    assert joint["uncovered"] == []
    assert {line.message_type for line in lines} == {"theta", "Predictions", "Labels"}
    # never less than any of its parts, and than what they are together as independent Gaussians
    assert joint["epsilon"] > max(line.epsilon for line in lines)
    label = next(line.epsilon for line in lines if line.message_type == "Labels")
    assert joint["epsilon"] > label + max(line.epsilon for line in lines if line.message_type == "Predictions")
    claim = claims(lines)[EVERYBODY, JOINED]
    assert (claim.epsilon, claim.delta) == (joint["epsilon"], 1e-5)
    # theta speaks of a row that is there or not; a replaced one counts twice
    theta = sum(
        4 * line.touched * (line.sensitivity / line.noise_scale) ** 2 for line in lines if line.message_type == "theta"
    )
    predictions = sum(line.rigorous_mu**2 for line in lines if line.message_type == "Predictions")
    assert claim.mu == pytest.approx(math.sqrt(theta + predictions + mu_of_epsilon(label) ** 2))


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["declared_facts", "prediction_noise", "label_dp"])
def test_one_line_without_noise_leaves_the_joint_account_without_a_guarantee(missing):
    words = {**NOISY, "declared_facts": DECLARED}
    del words[missing]
    result, _, _ = execute(settings(**words), shop())
    joint = result.extra["privacy"]["joined tuple"]
    assert joint["epsilon"] == math.inf
    kind = {"declared_facts": "Facts", "prediction_noise": "Predictions", "label_dp": "Labels"}[missing]
    assert any(line.endswith(f"/{kind}: no noise") for line in joint["uncovered"])


@pytest.mark.slow
def test_declared_facts_keep_the_rows_own_from_leaving(monkeypatch):
    seen = sent_values(monkeypatch)
    execute(settings(algorithm="rfl-admm", declared_facts=DECLARED), shop())
    assert not [given for _, _, given in seen if type(given).__name__ == "Facts"]


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        (DECLARED[1:], "amount is missing"),
        (("amount", *DECLARED[1:]), "'amount' is not allowed"),
        (("amount=low", *DECLARED[1:]), "is no range"),
    ],
)
def test_declared_facts_that_do_not_fit_are_named(entries, why):
    with pytest.raises(BadInput, match=why):
        execute(settings(declared_facts=entries), shop())


def test_too_many_categories_are_no_facts():
    rng = np.random.default_rng(0)
    orders = pa.table({"k": np.arange(12_000), "name": [f"n{i}" for i in range(12_000)], "y": rng.normal(size=12_000)})
    items = pa.table({"k": np.arange(12_000), "x": rng.normal(size=12_000)})
    data = stated(
        "SELECT y, name, x FROM orders JOIN items ON orders.k = items.k",
        in_memory(orders=orders, items=items),
        label="y",
        categorical=("name",),
    )
    with pytest.raises(BadInput, match="features of orders: 12000 categories in one column, at most 10000"):
        execute(settings(), data)


@pytest.mark.slow
def test_masked_words_look_like_noise(monkeypatch):
    seen = sent_values(monkeypatch)
    execute(settings(secure_aggregation=True), shop())
    words = np.concatenate([given.words for _, _, given in seen if isinstance(given, Masked)])
    counts = np.bincount((words >> np.uint32(24)).astype(np.int64), minlength=256)
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 255 + 6 * math.sqrt(2 * 255)
