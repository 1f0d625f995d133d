"""What two runs, each within its approval, tell together: sums, rows held out, budgets, and models of before."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedactors import api
from fedactors.cli import sites
from fedactors.cli.main import main
from fedactors.cli.sites import describe
from fedactors.config import as_dict, build, spell_infinities
from fedactors.errors import BadInput
from fedactors.federation import approval, site_folder
from fedactors.federation.approval import (
    Proposal,
    check_proposal,
    decide,
    keep_proposal,
    make_proposal,
    why_a_person,
)
from fedactors.federation.site_folder import SITE, Amount, DataName, in_all, spent
from fedactors.federation.site_run import find
from fedactors.plugins import find_protocol
from fedactors.runs.folder import RunFolder
from tests.federation.test_quorum import hospitals
from tests.federation.test_runs import SMALL, federated
from tests.federation.world import BANK, CLINIC, SHOP, World

THREE = f"{BANK}=patients,{SHOP}=cases,{CLINIC}=cured"


def proposed(
    world: World, protocol: str, data: str, words: Mapping[str, Any], budget: Mapping[str, Amount] | None = None
) -> tuple[Any, Proposal]:
    found = find_protocol(protocol)
    config = build(found.Config, {"on_party_loss": "stop", **words})
    coordinator = world.folder(data.partition("=")[0])
    return config, make_proposal(coordinator, found, spell_infinities(as_dict(config)), data, None, budget)


def approve(world: World, proposal: Proposal) -> None:
    for name in world.names:
        keep_proposal(world.folder(name), proposal)
        decide(world.folder(name), proposal, approved=True)


def add(world: World, site: str, words: str) -> None:
    file = world.path / site / SITE
    file.write_text(f"{file.read_text()}\n{words}\n")


def test_two_shares_of_rows_held_out_do_not_differ_in_one_row(tmp_path: Path) -> None:
    """Of two runs of one seed, one with a row more held out, the scores' and the changes' differences were that row."""
    world = World(tmp_path)
    shop, task = world.folder(SHOP), world.folder(BANK).task("patients")
    assert task is not None
    rows = shop.source(DataName(site=SHOP, name="cases"), task)
    held = {}
    for number in (15, 16, 17):
        found = replace(rows.holding_out(number / 60, 5), part="validation").load().features
        assert len(found) == number
        held[number] = {row.tobytes() for row in np.asarray(found)}
    again = replace(rows.holding_out(15 / 60, 5), part="validation").load().features
    assert {row.tobytes() for row in np.asarray(again)} == held[15]
    assert min(len(held[15] - held[16]), len(held[16] - held[17])) > 5


def test_a_run_counted_by_clients_takes_of_each_row_too() -> None:
    """Else a budget of epsilon 8 would be spent twice: once by a run of each kind of account."""

    def run(name: str, taken: dict[str, list[float]]) -> list[dict[str, Any]]:
        opened = {"what": "opened", "run": name, "data": "cases", "announced": [8.0, 1e-5]}
        return [opened, {"what": "ended", "who": "site", "run": name, "taken": taken}]

    rows, clients = run("a", {"row": [5.0, 1e-6]}), run("b", {"client": [7.0, 1e-6]})
    taken = spent([*rows, *clients])["cases"]
    assert {kind: one.epsilon for kind, one in taken.items()} == {"row": 12.0, "client": 7.0}
    assert in_all(taken) == Amount(epsilon=12.0, delta=2e-6)
    labels = run("c", {"label": [1.0, 0.0], "row": [2.0, 1e-6]})
    taken = spent([*labels, *clients, *rows])["cases"]
    assert {kind: one.epsilon for kind, one in taken.items()} == {"label": 13.0, "row": 14.0, "client": 7.0}


def test_a_policy_answers_for_no_data_that_it_does_not_name(tmp_path: Path) -> None:
    """New data of a site, for predictions too, wait for its person."""
    world = World(tmp_path)
    add(world, SHOP, '[data.returns]\npath = "orders.csv"\nid = "id"')
    add(world, SHOP, '[policy]\napprove = "policy"\ndata = ["orders"]')
    config, of_orders = proposed(world, "pubsub-vfl", f"{BANK}=customers,{SHOP}=orders", {})
    shop = world.folder(SHOP)
    assert why_a_person(config, of_orders, shop) == ""
    for purpose in ("train", "predict"):
        other = replace(of_orders, run="0" * 16, data={BANK: "customers", SHOP: "returns"}, purpose=purpose)
        assert why_a_person(config, other, shop) == "data.returns are not among policy.data"
    keep_proposal(shop, of_orders)
    decide(shop, of_orders, approved=True)
    resumed = replace(of_orders, run="0" * 16, earlier=of_orders.run, data={BANK: "customers", SHOP: "returns"})
    resumed = replace(resumed, purpose="resume")
    assert why_a_person(config, resumed, shop) == "", "its data were answered for when it was approved"
    add(world, SHOP, '[policy.protocols.pubsub-vfl]\ndata = ["orders"]')
    check_proposal(of_orders, world.folder(SHOP))
    with pytest.raises(BadInput, match=r"policy\.protocols\.pubsub-vfl\.data: 'returns' is not allowed"):
        check_proposal(replace(of_orders, data={BANK: "customers", SHOP: "returns"}), world.folder(SHOP))


def test_a_rule_on_a_setting_that_nothing_uses_and_that_protects_nobody_refuses_no_run(tmp_path: Path) -> None:
    """A site that accepts either kind of noise bounds the settings of both."""
    world = World(tmp_path)
    _, made = proposed(world, "horizontal", f"{BANK}=patients,{SHOP}=cases", {"max_epsilon": 8.0})
    add(world, SHOP, "[policy.protocols.horizontal]\nclient_sampling_rate = { at_most = 0.5 }")
    check_proposal(made, world.folder(SHOP))
    add(world, SHOP, "max_epsilon = { at_most = 8.0 }")
    with pytest.raises(BadInput, match="; set it, or ask shop to take the rule out"):
        check_proposal(made, world.folder(SHOP))


def test_a_rule_that_bounds_a_setting_admits_no_0_that_stands_for_no_limit(tmp_path: Path) -> None:
    """Of at most 8 bits a value 0 would be none fewer than all."""
    world = World(tmp_path)
    _, whole = proposed(world, "pubsub-vfl", f"{BANK}=customers,{SHOP}=orders", {})
    _, cut = proposed(world, "pubsub-vfl", f"{BANK}=customers,{SHOP}=orders", {"quantization_bits": 8})
    add(world, SHOP, "[policy.protocols.pubsub-vfl]\nquantization_bits = { at_most = 8 }")
    check_proposal(cut, world.folder(SHOP))
    with pytest.raises(BadInput, match=r"quantization_bits: 0 is not allowed: .* 0 stands for no limit"):
        check_proposal(whole, world.folder(SHOP))


def test_a_rule_on_data_says_nothing_of_a_site_that_brings_none(tmp_path: Path) -> None:
    """It hosts an actor of the run."""
    world = World(tmp_path, (BANK, SHOP, CLINIC))
    _, made = proposed(world, "pubsub-vfl", f"{BANK}=customers,{SHOP}=orders", {})
    add(world, CLINIC, '[policy.protocols.pubsub-vfl]\ndata = ["visits"]')
    check_proposal(made, world.folder(CLINIC))
    add(world, SHOP, '[policy.protocols.pubsub-vfl]\ndata = ["visits"]')
    with pytest.raises(BadInput, match="'orders' is not allowed"):
        check_proposal(made, world.folder(SHOP))


UNUSED: dict[str, tuple[str, dict[str, Any]]] = {
    # a rule that an engineer would write, and settings that keep it while nothing is protected
    "mtcd": ("noise_multiplier = { at_least = 1.0 }", {"problem": "ridge", "relaxed_protocol": True, "num_clients": 2}),
    "pubsub-vfl": ("bottom_mu = { at_most = 1.0 }", {}),
    "tablepuppet": ("prediction_noise = { at_least = 1.0 }", {"prediction_noise": 1.0, "prediction_clip": 1.0}),
    "horizontal": ("max_epsilon = { at_most = 8.0 }", {"max_epsilon": 8.0}),
}


@pytest.mark.parametrize("protocol", UNUSED)
def test_a_rule_on_noise_is_kept_by_no_run_that_has_none(tmp_path: Path, protocol: str) -> None:
    """Settings that nothing uses, sent or by default, would say of noise that there is some."""
    world, (rule, words) = World(tmp_path), UNUSED[protocol]
    data = {
        "tablepuppet": f"{BANK}=clients,{SHOP}=sales",
        "horizontal": f"{BANK}=patients,{SHOP}=cases",
    }.get(protocol, f"{BANK}=customers,{SHOP}=orders")
    _, made = proposed(world, protocol, data, words)
    check_proposal(made, world.folder(SHOP))
    setting = rule.partition(" ")[0]
    add(world, SHOP, f"[policy.protocols.{protocol}]\n{rule}")
    with pytest.raises(
        BadInput, match=rf"shop: policy\.protocols\.{protocol}\.{setting}: .* is not allowed with .*, which"
    ):
        check_proposal(made, world.folder(SHOP))
    noised: dict[str, dict[str, Any]] = {
        "mtcd": {"noise": "gaussian", "learning_rate": 0.1},
        "pubsub-vfl": {"bottom_training": "private"},
        "tablepuppet": {"feature_dp": 1.0, "admm": "paper_sgd"},
        "horizontal": {"record_clip_norm": 1.0, "record_noise_multiplier": 4.0, "standardisation": "none"},
    }
    check_proposal(proposed(world, protocol, data, {**words, **noised[protocol]})[1], world.folder(SHOP))


def test_sums_beside_other_data_of_the_same_organisations_wait_for_a_person(tmp_path: Path) -> None:
    """The clinic's two data in two runs with the same others: the sums' difference is that of its own two parts."""
    world = World(tmp_path, (BANK, SHOP, CLINIC))
    add(world, CLINIC, '[data.some]\npath = "patients.csv"\nlabel = "bad"')
    words = {"secure_aggregation": True}
    config, first = proposed(world, "horizontal", THREE, words)
    _, second = proposed(world, "horizontal", THREE.replace("cured", "some"), words)
    approve(world, first)
    for name in (SHOP, CLINIC):
        assert why_a_person(config, second, world.folder(name)).startswith(f"run {first.run} summed the same data")
        (said,) = [one for one in describe(world.folder(name), second)["left_open"] if f"run {first.run} summed" in one]
        assert said.endswith("the difference of its sums and this run's is what clinic added")
    assert why_a_person(config, proposed(world, "horizontal", THREE, words)[1], world.folder(CLINIC)) == ""


def test_sums_by_other_shares_wait_for_a_person(tmp_path: Path) -> None:
    """By rows and alike, of one model and seed: two equations for what two sites added; the bank knows its own part."""
    world, words = World(tmp_path, (BANK, SHOP, CLINIC)), {"secure_aggregation": True}
    config, first = proposed(world, "horizontal", THREE, words)
    other, second = proposed(world, "horizontal", THREE, {**words, "weighting": "uniform"})
    assert why_a_person(other, second, world.folder(SHOP)) == ""
    approve(world, first)
    for name in (SHOP, CLINIC):
        assert why_a_person(other, second, world.folder(name)).endswith("or by other settings")
        assert why_a_person(config, proposed(world, "horizontal", THREE, words)[1], world.folder(name)) == ""
        (said,) = [one for one in describe(world.folder(name), second)["left_open"] if f"run {first.run} summed" in one]
        assert said.endswith("as in its first round, the two tell what each of two organisations added")
    open_config, in_the_open = proposed(world, "horizontal", THREE, {"weighting": "uniform"})
    assert why_a_person(open_config, in_the_open, world.folder(SHOP)) == "", "no sum hides anything there"


def test_that_other_runs_read_the_same_rows_is_shown(tmp_path: Path) -> None:
    world = World(tmp_path)
    data = f"{BANK}=customers,{SHOP}=orders"
    (_, first), (_, second) = (proposed(world, "pubsub-vfl", data, {}) for _ in range(2))
    shop = world.folder(SHOP)
    assert not any("read data.orders too" in one for one in describe(shop, second)["left_open"])
    approve(world, first)
    (said,) = [one for one in describe(shop, second)["left_open"] if "read data.orders too" in one]
    assert said.startswith(f"1 approved before this one ({first.run} the last)")
    assert "as few as one where your file has changed between them" in said


NOISE = {
    "mtcd": {"noise": "gaussian", "problem": "ridge", "learning_rate": 0.1, "relaxed_protocol": True, "num_clients": 2},
    "pubsub-vfl": {"embedding_mu": 1.0, "bottom_training": "frozen", "standardisation": "none", "algorithm": "vfl"},
}


@pytest.mark.parametrize("protocol", NOISE)
def test_a_model_that_was_trained_within_a_budget_predicts_within_it(tmp_path: Path, protocol: str) -> None:
    """Predictions of rows without a budget tell of those with one that the model was trained on, where no noise is."""
    world = World(tmp_path)
    for site, name in ((BANK, "customers"), (SHOP, "orders")):
        (world.path / site / "new.csv").write_bytes((world.path / site / f"{name}.csv").read_bytes())
        add(world, site, '[data.new]\npath = "new.csv"\nid = "id"')
    file = world.path / SHOP / SITE
    budget = "budget = { epsilon = 60.0, delta = 1e-3 }\n"
    file.write_text(file.read_text().replace("[data.orders]\n", f"[data.orders]\n{budget}", 1))
    data, announced = f"{BANK}=customers,{SHOP}=orders", {SHOP: Amount(epsilon=5.0, delta=1e-5)}
    _, trained = proposed(world, protocol, data, NOISE[protocol], announced)
    approve(world, trained)
    facts: dict[str, Any] = {"run": "0" * 16, "purpose": "predict", "earlier": trained.run, "number": 1}
    predicts = replace(trained, **facts, data={BANK: "new", SHOP: "new"})
    if protocol == "pubsub-vfl":
        check_proposal(predicts, world.folder(SHOP))
        return
    reads = r"shop: data\.orders\.budget: data\.sales reads what data\.orders reads; predictions of such data are not"
    with pytest.raises(BadInput, match=reads):
        check_proposal(replace(predicts, data={BANK: "new", SHOP: "sales"}), world.folder(SHOP))  # the same file
    with pytest.raises(BadInput, match=r"shop: data\.orders\.budget: the model was trained on them, in part without"):
        check_proposal(predicts, world.folder(SHOP))


def test_what_is_not_predicted_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    file = world.path / SHOP / SITE
    file.write_text(file.read_text().replace("[data.orders]\n", "[data.orders]\nbudget = { epsilon = 8.0 }\n", 1))
    trained = SimpleNamespace(protocol="mtcd", folder=SimpleNamespace(config={"data": "orders"}))
    monkeypatch.setattr(api, "Run", lambda _: trained)
    args: Any = SimpleNamespace(rows=["cases"], run="a run")
    with pytest.raises(BadInput, match=r"shop: data\.orders\.budget: the model was trained on them, in part without"):
        sites._give(world.folder(SHOP), {}, "model", ("127.0.0.1", 0), args)
    trained.protocol = "pubsub-vfl"
    with pytest.raises(BadInput, match="shop has no part of this model"):
        sites._give(world.folder(SHOP), {}, "model", ("127.0.0.1", 0), args)


def test_rows_have_one_budget_by_whatever_name_they_are_asked_for(tmp_path: Path) -> None:
    """Another name of the same file, which has no budget, or one of its own, would spend it all again."""
    world = World(tmp_path)
    file = world.path / SHOP / SITE
    with_budget = file.read_text().replace("[data.orders]\n", "[data.orders]\nbudget = { epsilon = 8.0 }\n", 1)
    file.write_text(with_budget)
    _, of_sales = proposed(world, "tablepuppet", f"{BANK}=clients,{SHOP}=sales", {})
    said = r"shop: data\.sales\.budget: missing: they read what data\.orders reads, which has a budget"
    with pytest.raises(BadInput, match=said):
        check_proposal(of_sales, world.folder(SHOP))
    shop = world.folder(SHOP)
    assert shop.with_budget("sales") == ["orders"]
    assert shop.with_budget("cases") == []
    add(world, SHOP, '[data.again]\npath = "../shop/orders.csv"\nid = "id"\nbudget = { epsilon = 9.0 }')
    shop = world.folder(SHOP)
    assert shop.with_budget("again") == ["again", "orders"]
    shop.audit.add("opened", run="a", data="orders", announced=[5.0, 0.0])
    words = {**NOISE["pubsub-vfl"]}
    _, made = proposed(world, "pubsub-vfl", f"{BANK}=customers,{SHOP}=again", words, {SHOP: Amount(epsilon=5.0)})
    with pytest.raises(
        BadInput, match=r"data\.again\.budget: epsilon 5 .* epsilon 5 at delta 0 of epsilon 9 .* is taken"
    ):
        check_proposal(made, shop)


def test_what_data_are_read_from_is_what_readers_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No word of theirs that is a file's name too; but patterns, addresses and names of a library's data."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    world = World(tmp_path)
    (world.path / SHOP / "runs").mkdir(exist_ok=True)
    (world.path / SHOP / "rows").mkdir()
    for file in (world.path / SHOP / "rows" / "a.csv", world.path / SHOP / "b.csv"):
        file.write_text("id,runs\n1,2\n")
    (world.path / SHOP / "rows" / "linked.csv").symlink_to(world.path / SHOP / "b.csv")
    given = {
        "one": '"rows/a.csv"',
        "budgeted": '"c.csv"\nfeatures = ["runs"]\nbudget = { epsilon = 8.0 }',
        "column": '"d.csv"\nfeatures = ["runs"]\nlabel = "runs"',
        "many": '"rows/a*.csv"\nbudget = { epsilon = 8.0 }',
        "folder": '"rows"',
        "b": '"b.csv"',
        "home": '"~/x.csv"',
        "at_home": f'"{tmp_path}/home/x.csv"\nbudget = {{ epsilon = 8.0 }}',
        "hub": '"hf:ylecun/mnist"\nbudget = { epsilon = 8.0 }',
        "hub_again": '"hf:ylecun/mnist"',
        "secret": '"env:DB"\nbudget = { epsilon = 8.0 }',
        "secret_again": '"env:DB"',
        "wrong": '""',
        "as_address": f'"file://{tmp_path}/home/x.csv"',
        "as_local": f'"local:{tmp_path}/home/x.csv"',
        "hub_part": '"hf:ylecun/mnist?split=test"',
        "hub_here": f'"hf:file:{tmp_path}/home/x.csv?split=train"',
        "server": '"postgresql://DB.example/sales"\nbudget = { epsilon = 8.0 }',
        "server_again": '"postgres://me@db.example:5432/sales?sslmode=require"',
        "server_of_env": '"env:SALES"',
        "other_server": '"postgresql://db.example/other"',
    }
    monkeypatch.setenv("SALES", "postgresql://you:secret@db.example/sales")
    for name, words in given.items():
        add(world, SHOP, f"[data.{name}]\npath = {words}")
    shop = world.folder(SHOP)
    found = {name: [one for one in shop.with_budget(name) if one != name] for name in given}
    of = {"one": "many", "folder": "many", "home": "at_home", "hub_again": "hub", "secret_again": "secret"}
    of |= {"as_address": "at_home", "as_local": "at_home", "hub_part": "hub", "hub_here": "at_home"}
    of |= {"server_again": "server", "server_of_env": "server"}
    assert found == {name: [of[name]] if name in of else [] for name in given}
    assert site_folder._meet(shop.read_by("folder"), shop.read_by("b")), "a link in the folder"


def test_a_table_is_one_whatever_it_is_called(tmp_path: Path) -> None:
    """A file has one table by any name, and a database takes ORDERS and public.orders for orders."""
    world, shared = World(tmp_path), "budget = { epsilon = 8.0 }"
    for name, tables, more in (
        ("file", '{ orders = "o.parquet" }', shared),
        ("file_again", '{ o = "o.parquet" }', ""),
        ("base", '{ orders = "o.sqlite" }', shared),
        ("base_again", '{ ORDERS = "o.sqlite" }', ""),
        ("base_other", '{ customers = "o.sqlite" }', ""),
        ("server", '{ orders = "postgresql://db.example/sales" }', shared),
        ("server_again", '{ "public.orders" = "postgresql://you@db.example/sales" }', ""),
    ):
        add(world, SHOP, f'[data.{name}]\nsql = "SELECT id FROM orders"\ntables = {tables}\n{more}')
    shop = world.folder(SHOP)
    found = {name: shop.with_budget(name) for name in ("file_again", "base_again", "base_other", "server_again")}
    assert found == {"file_again": ["file"], "base_again": ["base"], "base_other": [], "server_again": ["server"]}


def test_rows_with_a_budget_are_not_measured_on(tmp_path: Path) -> None:
    """Scores of each round's model on them leave without noise, and no account has them."""
    world = World(tmp_path, (BANK, SHOP, CLINIC))
    data = f"{BANK}=patients,{SHOP}=cases,{CLINIC}=cured"
    _, made = proposed(world, "horizontal", data, {})
    check_proposal(made, world.folder(BANK))
    add(world, BANK, '[data.counted]\npath = "test.csv"\nlabel = "bad"\nbudget = { epsilon = 8.0 }')
    with pytest.raises(BadInput, match=r"bank: data.patients.task.test: .* is not allowed: data.counted reads it"):
        check_proposal(made, world.folder(BANK))
    check_proposal(made, world.folder(SHOP))


def test_a_budget_is_of_the_rows_that_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a run takes is counted row by row of a SELECT: a row of a table that is in ten of them is told ten times."""
    world, site = World(tmp_path), str(tmp_path / SHOP)
    file = tmp_path / SHOP / SITE
    before = file.read_text()
    for sql, is_counted in (
        ("SELECT id, orders + 1 AS x, COALESCE(returns, 0) AS y FROM orders WHERE orders > 0", True),
        ("SELECT o.id, o.orders, p.returns FROM orders o JOIN orders p ON o.id <= p.id", False),
        ("SELECT id, orders FROM orders UNION ALL SELECT id, orders FROM orders", False),
        ("SELECT id, orders - (SELECT AVG(orders) FROM orders) AS x FROM orders", False),
        ("SELECT id, SUM(orders) OVER (ORDER BY id) AS x FROM orders", False),
        ("SELECT id FROM orders WHERE orders IN (SELECT MAX(orders) FROM orders)", False),
    ):
        stated = f'[data.selected]\nsql = "{sql}"\ntables = {{ orders = "orders.csv" }}\nid = "id"\n'
        file.write_text(f"{before}\n{stated}")
        assert "selected" in world.folder(SHOP).names(), "without a budget any SELECT may be read"
        file.write_text(f"{before}\n{stated}budget = {{ epsilon = 8.0 }}\n")
        if is_counted:
            assert world.folder(SHOP).with_budget("orders") == ["selected"]
            continue
        capsys.readouterr()
        assert main(["site", "budget", "--folder", site]) == 2
        said = capsys.readouterr().err
        assert "data.selected.budget: is not allowed with this sql" in said
        assert "write what it selects to a file" in said


def test_predictions_that_differ_in_ones_rows_wait_for_a_person(tmp_path: Path) -> None:
    """Of one model's sums over the same ids the difference is what the site's two files differ by, row by row."""
    world = World(tmp_path, (BANK, SHOP, CLINIC))
    for name in ("new", "newer"):
        add(world, SHOP, f'[data.{name}]\npath = "orders.csv"\nid = "id"')
    facts: dict[str, Any] = {"problem": "ridge", "learning_rate": 0.1, "relaxed_protocol": True, "num_clients": 3}
    data = f"{BANK}=customers,{SHOP}=orders,{CLINIC}=visits"
    config, trained = proposed(world, "mtcd", data, {**facts, "secure_aggregation": True})
    approve(world, trained)
    predicts: dict[str, Any] = {"purpose": "predict", "earlier": trained.run, "number": 1}
    first, other, same = (
        replace(trained, run=f"{number:016}", **predicts, data={BANK: "customers", SHOP: name, CLINIC: "visits"})
        for number, name in enumerate(("new", "newer", "new"))
    )
    clinic = world.folder(CLINIC)
    assert why_a_person(config, first, clinic) == ""
    approve(world, first)
    for name in (SHOP, CLINIC):
        assert why_a_person(config, other, world.folder(name)).startswith(f"run {first.run} summed the same data")
    assert why_a_person(config, same, clinic) == ""
    file = world.path / CLINIC / "proposals" / f"{trained.run}.json"
    kept = file.read_bytes()
    file.unlink()
    gone = site_folder.SiteFolder(world.path / CLINIC)
    assert approval._may_be_of("0" * 16, first, gone), "of what is not known which model it was, it may be the same"
    file.write_bytes(kept)
    of_the_bank = replace(same, data={BANK: "accounts", SHOP: "new", CLINIC: "visits"})
    assert why_a_person(config, of_the_bank, clinic) == "", "the bank coordinates, and knows what it adds"


def test_noise_that_colluders_know_is_not_counted_with(tmp_path: Path) -> None:
    """Of a sum's noise the server knows what its fellows drew: the account counts with what is left."""
    world, data = hospitals(tmp_path, 5)
    words = {"min_sites": 5, "on_party_loss": "continue", "secure_aggregation": True, "weighting": "uniform"}
    noised = {"client_clip_norm": 1.0, "client_noise_multiplier": 4.0, "model": "linear"}
    site, coordinator = world.names[1], world.names[0]
    _, open_sums = proposed(world, "horizontal", data, words)
    _, noised_sums = proposed(world, "horizontal", data, {**words, **noised})
    assert noised_sums.coordinator == coordinator
    check_proposal(noised_sums, world.folder(site))
    add(world, site, "[policy]\ncolluders = 2")
    check_proposal(open_sums, world.folder(site))
    said = (
        "the noise of a sum is what 4 organisations draw; of one of 5 the server may .* is left; {}policy.colluders = 1"
    )
    with pytest.raises(BadInput, match=said.format("set ")):  # without min_sites a sum may be of three
        check_proposal(noised_sums, world.folder(site))
    rows = {"record_clip_norm": 1.0, "record_noise_multiplier": 4.0, "standardisation": "none", "model": "linear"}
    _, of_rows = proposed(world, "horizontal", data, {**words, **rows})
    check_proposal(of_rows, world.folder(site))  # each draws all of its own


def test_without_a_quorum_noise_is_of_more_organisations_than_may_collude(tmp_path: Path) -> None:
    world, data = hospitals(tmp_path, 6)
    site, words = world.names[1], {"client_clip_norm": 1.0, "client_noise_multiplier": 4.0, "model": "linear"}
    words |= {"secure_aggregation": True, "weighting": "uniform"}
    _, of_some = proposed(world, "horizontal", data, {**words, "min_sites": 5, "on_party_loss": "continue"})
    _, of_all = proposed(world, "horizontal", data, words)
    add(world, site, "[policy]\ncolluders = 2")
    with pytest.raises(BadInput, match=r"is left; leave min_sites out, or set policy\.colluders = 1"):
        check_proposal(of_some, world.folder(site))
    check_proposal(of_all, world.folder(site))


@pytest.mark.slow
def test_what_a_driver_keeps_of_a_state_tells_nothing_of_it(tmp_path: Path) -> None:
    """A plain digest would say whether a guess of the rows, and the seed, is right; so would a seed of few bits."""
    world = World(tmp_path)
    (world.path / "runs").mkdir()
    world.start(BANK)
    world.start(SHOP)
    try:
        assert federated(world, SMALL) == 0, world.output
    finally:
        world.stop()
    (path,) = (world.path / "runs").iterdir()
    folder = RunFolder.open(path)
    kept = folder.load_checkpoint(folder.manifest["checkpoints"][-1]["label"]).actors
    earlier = find(world.folder(SHOP), folder.config["federation"]["run"], None)
    assert earlier.states.keys() <= kept.keys()
    for name, frame in earlier.states.items():
        assert len(kept[name]) == 32
        assert kept[name] != hashlib.sha256(frame).digest()
    assert earlier.seed > 1 << 90
