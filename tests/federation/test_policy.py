"""What a site's policy lets run, and the privacy budget of its data over all runs: by those who would take more."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedactors.cli.main import main
from fedactors.errors import BadInput, Refused
from fedactors.federation.approval import as_tree, decide, kept_proposals
from fedactors.federation.site_folder import SITE, Amount, Policy, RunLimits, SiteFolder, in_all, spent
from tests.federation.hostile_sites import WORKER, Rogue, in_mid_run
from tests.federation.test_runs import SMALL, command, federated
from tests.federation.world import BANK, SHOP, World

NOISED = (*SMALL, "algorithm=vfl", "embedding_mu=1", "bottom_training=frozen", "standardisation=none")
WORDS = {
    "pubsub-vfl": (*SMALL, "algorithm=vfl"),
    "horizontal": ("num_rounds=1", "batch_size=16"),
    "tablepuppet": ("num_rounds=1",),
}
MANY = ("num_epochs=100001", *NOISED[1:])
BUDGET = '"orders.csv"\nid = "id"\nbudget = { epsilon = 60.0, delta = 1e-3 }\n'


def setting(**facts: Any) -> Any:
    return type("Config", (), facts)()


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (Policy(coordinators=["shop"]), "shop: policy.coordinators: bank is not allowed: shop"),
        (Policy(protocols={"mtcd": {}}), "shop: policy.protocols: vfl is not allowed: mtcd"),
        (Policy(protocols={"vfl": {"epochs": {"at_most": 4}}}), "vfl.epochs: 5 is not allowed: {'at_most': 4}"),
        (Policy(protocols={"vfl": {"mu": {"at_most": 4}}}), "vfl.mu: nan is not allowed"),
        (Policy(protocols={"vfl": {"how": {"at_most": 4}}}), "vfl.how: 'psi' is not allowed"),
        (Policy(protocols={"vfl": {"how": ["hash"]}}), "vfl.how: 'psi' is not allowed"),
        (Policy(protocols={"vfl": {"how": "hash"}}), "vfl.how: 'psi' is not allowed"),
        (Policy(protocols={"vfl": {"epoch": 5}}), "vfl.epoch: there is no such setting"),
        (Policy(protocols={"vfl": {"epochs": {"most": 5}}}), "vfl.epochs: {'most': 5} is no rule"),
        (Policy(protocols={"vfl": {"epochs": {}}}), "vfl.epochs: {} is no rule"),
    ],
)
def test_what_a_policy_does_not_allow_is_one_line(policy: Policy, said: str) -> None:
    with pytest.raises(BadInput, match=said.replace("{", r"\{").replace(".", r"\.")):
        policy.check(SHOP, BANK, "vfl", setting(epochs=5, mu=float("nan"), how="psi"))


def test_what_a_policy_allows_passes() -> None:
    rules = {"epochs": {"at_least": 5, "at_most": 5}, "how": ["psi", "hash"], "mu": 1.0}
    policy = Policy(coordinators=[BANK], protocols={"vfl": rules})
    policy.check(SHOP, BANK, "vfl", setting(epochs=5, mu=1.0, how="psi"))


def test_runs_add_up_and_one_that_broke_off_counts_with_all_it_announced() -> None:
    def opened(run: str) -> dict[str, Any]:
        return {"what": "opened", "run": run, "data": "orders", "announced": [3.0, 1e-5]}

    def ended(run: str, taken: dict[str, Any]) -> dict[str, Any]:
        return {"what": "ended", "who": "site", "run": run, "taken": taken}

    lines = [opened("a"), ended("a", {"row": [1.0, 1e-6], "label": [2.0, 0.0]}), opened("b"), opened("c")]
    lines += [ended("c", {}), ended("d", {"row": [9.0, 0.0]}), {"what": "approved", "run": "d"}]
    taken = in_all(spent(lines)["orders"])
    assert (taken.epsilon, taken.delta) == pytest.approx((2.0 + 3.0 + 3.0, 2.1e-5))  # nobody knows what c took
    lines += [opened("d"), {**ended("d", {}), "was_open": True}]  # it is known that d released nothing
    assert in_all(spent(lines)["orders"]) == taken
    assert not in_all(spent([opened("a"), ended("a", {"row": [None, 1.0]})])["orders"]).within(Amount(epsilon=1e9))


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    yield from with_budget(tmp_path_factory)


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    yield from with_budget(tmp_path_factory)


CHANGES = {
    # of the shop's data: the protocol, the keys of site.toml, the file that changes
    "a file": ("pubsub-vfl", "", "orders.csv"),
    "a database": (
        "pubsub-vfl",
        'tables = { t = "orders.db" }\nsql = "SELECT id, orders, returns FROM t"\nid = "id"',
        "orders.db",
    ),
    "rows of a client": ("horizontal", "", "patients.csv"),
    "a table of a query": ("tablepuppet", "", "orders.csv"),
}


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["warn", "refuse"])
@pytest.mark.parametrize("what", CHANGES)
def test_rows_that_change_between_approval_and_run_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str, rule: str
) -> None:
    protocol, keys, name = CHANGES[what]
    made = World(tmp_path)
    file = made.path / SHOP / SITE
    text = file.read_text().replace('path = "orders.csv"\nid = "id"', keys, 1) if keys else file.read_text()
    file.write_text(f'{text}\n[policy]\nchanged_data = "{rule}"\n')
    changing = made.path / SHOP / name
    with contextlib.closing(sqlite3.connect(made.path / SHOP / "orders.db")) as base:
        rows = [line.split(",") for line in (made.path / SHOP / "orders.csv").read_text().split()]
        base.execute("CREATE TABLE t (id TEXT, orders REAL, returns REAL)")
        base.executemany("INSERT INTO t VALUES (?, ?, ?)", rows[1:])
        base.commit()

    def change() -> None:
        if name.endswith(".db"):
            with contextlib.closing(sqlite3.connect(changing)) as base:
                base.execute("UPDATE t SET orders = orders + 1 WHERE id = 'c3'")
                base.commit()
            return
        changing.write_text(changing.read_text().replace("1.", "2.", 1))

    def answer() -> None:
        made.answer(names=(SHOP,)).join(60)
        change()
        (proposal,) = kept_proposals(made.folder(BANK)).values()
        decide(made.folder(BANK), proposal, approved=True)

    made.start(BANK)
    made.start(SHOP)
    try:
        answering = threading.Thread(target=answer)
        answering.start()
        code = federated(made, WORDS[protocol], protocol=protocol, answering=answering)
        (line,) = (one for one in made.audit(SHOP) if one["what"] == "data_changed")
        assert [Path(one).name.split()[-1] for one in line["changed"]] == [name]
        assert any(f"data.{line['data']}: changed since the run was approved" in one for one in made.output[SHOP])
        said = capsys.readouterr().err
        if rule == "warn":
            assert code == 0
        else:
            assert code != 0
            assert f"shop: data.{line['data']}: the rows have changed since run" in said
        assert str(tmp_path / SHOP) not in said, "no place of the shop's machine is told"
        assert not [one for one in made.audit(BANK) if one["what"] == "data_changed"]
    finally:
        made.stop()


def with_budget(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The shop's orders have a budget, and its policy answers for its person."""
    made = World(tmp_path_factory.mktemp("policy"))
    file = made.path / SHOP / SITE
    text = file.read_text().replace('"orders.csv"\nid = "id"\n', BUDGET, 1)
    file.write_text(
        f'{text}\n[policy]\napprove = "policy"\n[policy.protocols.pubsub-vfl]\nnum_epochs = {{ at_most = 100000 }}\n'
    )
    made.start(BANK)
    made.start(SHOP)
    yield made
    made.stop()


def run_with(world: World, words: tuple[str, ...], *flags: str) -> int:
    """Run with an answer at the bank; the shop's policy answers there."""
    answering = world.answer(names=(BANK,), seconds=60)
    code = federated(world, words, *flags, answering=answering)
    end = time.monotonic() + 20
    while world.run(SHOP) is not None and time.monotonic() < end:
        time.sleep(0.02)  # the site hears that the driver has gone, and writes down how the run ended
    return code


SOME = ("--budget", "shop=5:1e-4")
REFUSED = {
    "no announcement": (NOISED, (), "shop: data.orders.budget: the run announces none: give --budget shop="),
    "too much": (NOISED, ("--budget", "shop=61:1e-4"), "epsilon 61 at delta 0.0001 is not allowed"),
    "too much delta": (NOISED, ("--budget", "shop=6:0.1"), "epsilon 6 at delta 0.1 is not allowed"),
    "no noise": ((*SMALL, "algorithm=vfl"), SOME, "shop: data.orders.budget: the run adds no noise"),
    "a setting": (MANY, SOME, "num_epochs: 100001 is not allowed"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_within_budget_and_policy_does_not_begin(
    lasting: World, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    words, flags, said = REFUSED[what]
    before = len(lasting.refusals(SHOP))
    assert run_with(lasting, words, *flags) in (2, 3)
    assert said in capsys.readouterr().err
    assert any(said in text for text in lasting.refusals(SHOP)[before:])


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [-5.0, float("nan"), float("inf"), "5"])
def test_an_announcement_that_is_no_amount_is_refused(lasting: World, epsilon: Any) -> None:
    rogue = Rogue(lasting)
    tree = {**as_tree(rogue.proposal), "budget": {SHOP: {"epsilon": epsilon, "delta": 0.0}}}
    with pytest.raises(Refused, match="proposes what cannot be"):
        rogue.say(("propose", (tree,)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "epsilon"),
    [(NOISED, "0.001"), ((*SMALL, "algorithm=vfl", "embedding_mu=1"), "9")],  # the latter's noise does not cover it
)
def test_a_run_that_would_take_more_than_it_announced_is_refused(
    lasting: World, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], epsilon: str
) -> None:
    said = f"and had announced epsilon {epsilon} at delta 0.0001"
    before = in_all(spent(lasting.folder(SHOP).log()).get("orders", {})).epsilon
    assert run_with(lasting, words, "--budget", f"shop={epsilon}:1e-4") in (2, 3)
    told = capsys.readouterr().err
    assert said in told
    assert "bank: the run would take epsilon" in told
    assert "resume with" not in told, "which would be refused for the same reason"
    assert any(said in text for text in lasting.refusals(SHOP))
    # nothing was taken where the plan is refused; where nothing covers the rows, what was announced
    taken = in_all(spent(lasting.folder(SHOP).log())["orders"]).epsilon - before
    assert taken == pytest.approx(0.0 if words == NOISED else float(epsilon))


@pytest.mark.slow
def test_the_budget_is_over_all_runs_and_survives_the_process(fresh: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_with(fresh, NOISED, "--budget", "shop=20:1e-4") == 0, fresh.output[SHOP]
    after_one = in_all(spent(SiteFolder(fresh.path / SHOP).log())["orders"])
    assert 0 < after_one.epsilon < 40
    left = 60 - after_one.epsilon
    assert run_with(fresh, NOISED, "--budget", f"shop={left + 0.5}:1e-4") in (2, 3)
    assert "too little is left" in capsys.readouterr().err
    assert any("is taken already" in line for line in fresh.refusals(SHOP))
    # a driver that goes away in mid-run takes what it announced
    thread = in_mid_run(fresh, SHOP, lambda run: run.fail(Refused(WORKER, "is broken off")))
    assert run_with(fresh, ("num_epochs=100000", *NOISED[1:]), "--budget", f"shop={left - 0.5}:1e-4") in (2, 3)
    thread.join(60)
    capsys.readouterr()
    assert main(["site", "budget", "--folder", str(fresh.path / SHOP)]) == 0
    assert "orders epsilon 60 at delta 0.001 epsilon 59.5" in " ".join(capsys.readouterr().out.split())
    # and the audit of what the site has of that run does not say that nothing is claimed
    assert main(["audit", str(max((fresh.path / SHOP / "runs").iterdir()))]) == 0
    said = " ".join(capsys.readouterr().out.split())
    charged = f"the site's log charges epsilon {left - 0.5:.6g} at delta 0.0001 of the budget of data.orders"
    assert f"the run broke off before its account was written: {charged}" in said


@pytest.mark.slow
def test_a_test_run_waits_for_a_person_whatever_the_policy_says(fresh: World) -> None:
    found: list[str] = []

    def look() -> None:
        end = time.monotonic() + 20
        while time.monotonic() < end and not found:
            found.extend(line for line in fresh.output[SHOP] if "then answer" in line)
            time.sleep(0.05)

    watching = threading.Thread(target=look, daemon=True)
    watching.start()
    answering = fresh.answer(approved=False, names=(SHOP,))
    assert federated(fresh, NOISED, "--share-seed", "--budget", "shop=0.1:1e-4", answering=answering) == 3
    watching.join(20)
    assert found


# --- what a run may take of the machine ------------------------------------------------------------------------------


def limited(world: World, name: str, **most: float) -> None:
    """Write limits of a run into a site's policy."""
    file = world.path / name / SITE
    lines = [f"{key} = {value}" for key, value in most.items()]
    file.write_text("\n".join([file.read_text(), "[policy.limits]", *lines, ""]))


@pytest.mark.parametrize(
    ("name", "most"), [("memory_gib", 1e-6), ("cpu_hours", 1e-7), ("hours", 1e-5), ("disk_gib", 1e-8)]
)
def test_a_run_that_takes_more_of_the_machine_than_it_may_is_stopped(
    tmp_path: Path, name: str, most: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedactors.federation import site, site_run

    monkeypatch.setattr(site, "_MEASURE_SECONDS", 0.05)
    monkeypatch.setattr(site_run, "_DISK_SECONDS", 0.05)
    world = World(tmp_path)
    world.start(BANK)
    world.start(SHOP)
    held: list[bytearray] = []
    try:
        limited(world, SHOP, **{name: most})
        if name == "memory_gib":  # which an actor would take
            began = site_run.UsageWatch.exceeded

            def exceeded(watch: Any) -> str | None:
                held.append(bytearray(b"x" * (8 << 20)))
                return began(watch)

            monkeypatch.setattr(site_run.UsageWatch, "exceeded", exceeded)
        capsys.readouterr()
        assert federated(world, ("num_epochs=400", *SMALL[1:])) == 3
        said = f"limits.{name}: it took "
        assert said in capsys.readouterr().err
        (line,) = [line for line in world.audit(SHOP) if line["what"] == "stopped"]
        assert said in line["why"]
        assert f"at most {most:g}: smaller settings, or a larger policy.limits.{name} and --limit {name}" in line["why"]
        # and the site is free for the next one
        end = time.monotonic() + 10
        while world.run(SHOP) is not None:
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        world.stop()


def test_what_a_run_asks_for_is_shown_and_is_within_the_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path)
    world.start(BANK)
    world.start(SHOP)
    try:
        limited(world, SHOP, hours=2.0, memory_gib=8.0)
        assert main([*command(world, "pubsub-vfl"), *SMALL, "--limit", "hours=3"]) == 3
        assert "shop: policy.limits.hours: 3 is not allowed\n" in capsys.readouterr().err
        assert any("hours: 3 is not allowed: at most 2" in line for line in world.refusals(SHOP))
        assert federated(world, (*SMALL, "--limit", "hours=1", "--limit", "gpus=0")) == 0, world.output
        (run,) = [line["run"] for line in world.audit(SHOP) if line["what"] == "approved"]
        capsys.readouterr()
        assert main(["site", "show", run, "--folder", str(tmp_path / SHOP)]) == 0
        assert "it may take of this machine: memory_gib 8, hours 1, gpus 0" in capsys.readouterr().out
    finally:
        world.stop()


def test_what_are_no_limits_is_one_line(tmp_path: Path) -> None:
    from fedactors.federation.site_folder import RunLimits, parse_limits

    assert parse_limits([("hours", "2"), ("gpus", "0")]) == RunLimits(hours=2.0, gpus=0.0)
    for wrong in ([("hour", "2")], [("hours", "x")], [("hours", "nan")], [("hours", "-1")], [("hours", "1")] * 2):
        with pytest.raises(BadInput, match=r"^--limit: .* is not allowed: give NAME=AMOUNT, each once, of memory_gib"):
            parse_limits(wrong)
    world = World(tmp_path)
    limited(world, SHOP, hours=0)
    with pytest.raises(BadInput, match=r"policy\.limits\.hours: Input should be greater than 0"):
        world.folder(SHOP)
    most = RunLimits(hours=2.0, memory_gib=8.0)
    assert RunLimits(hours=1.0, gpus=1.0).within(most, SHOP) == RunLimits(hours=1.0, memory_gib=8.0, gpus=1.0)
    with pytest.raises(BadInput, match=r"^shop: policy\.limits\.memory_gib: 9 is not allowed: at most 8$"):
        RunLimits(memory_gib=9.0).within(most, SHOP)


@pytest.mark.parametrize(
    ("asked", "allowed", "holds"),
    [(None, None, 0.25), (None, 4.0, 0.25), (None, 0.1, 0.1), (2.0, 4.0, 2.0), (0.1, None, 0.1)],
)
def test_a_message_is_as_large_as_a_run_asks_for_and_a_policy_allows_and_else_as_it_was(
    asked: float | None, allowed: float | None, holds: float
) -> None:
    found = RunLimits(message_gib=asked).within(RunLimits(message_gib=allowed), SHOP)
    assert found.message_bytes == int(holds * 2**30)


@pytest.mark.parametrize("allowed", [None, 1.0])
def test_a_run_that_asks_for_larger_messages_than_a_policy_allows_is_refused(allowed: float | None) -> None:
    most = f"{allowed or 0.25:g}"
    with pytest.raises(BadInput, match=rf"^shop: policy\.limits\.message_gib: 2 is not allowed: at most {most}$"):
        RunLimits(message_gib=2.0).within(RunLimits(message_gib=allowed), SHOP)
