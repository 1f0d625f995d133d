"""What a person sees before they approve is all that they approve, and what no policy answers for them."""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedactors.cli import sites
from fedactors.cli.sites import _print_proposal, _say_wrapped, describe
from fedactors.config import as_dict, build, spell_infinities
from fedactors.federation import site
from fedactors.federation.approval import Proposal, decide, keep_proposal, make_proposal, why_a_person
from fedactors.federation.site_folder import SITE, SiteFolder, TaskFacts
from fedactors.plugins import find_protocol
from fedactors.validation import shown
from tests.federation.test_runs import federated
from tests.federation.world import BANK, CLINIC, DATA, SHOP, SQL, World

pytestmark = [pytest.mark.slow, pytest.mark.drawn(2, family="hostile")]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("shown"))
    yield made
    made.stop()


def proposed(world: World, protocol: str, data: str, config: dict[str, Any]) -> Proposal:
    return make_proposal(world.folder(BANK), find_protocol(protocol), config, data, None)


def lines_of(world: World, proposal: Proposal, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    _print_proposal(describe(world.folder(SHOP), proposal))
    return capsys.readouterr().out.splitlines()


def test_settings_that_a_proposal_leaves_out_are_shown(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """A coordinator sends some settings, others in another form: the person sees those that the run has."""
    sent = {"on_party_loss": "stop", "num_epochs": "3", "batch_size": True}
    lines = lines_of(world, proposed(world, "pubsub-vfl", f"{BANK}=customers,{SHOP}=orders", sent), capsys)
    (settings,) = [line for line in lines if line.startswith("settings: ")]
    assert "num_epochs=3, batch_size=1," in settings
    everything = set(as_dict(build(find_protocol("pubsub-vfl").Config, {"on_party_loss": "stop"})))
    of_the_task = set(TaskFacts.__dataclass_fields__)
    assert [name for name in everything - of_the_task if f" {name}=" not in settings] == []


def test_a_query_is_shown_to_its_end(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    made = proposed(world, "tablepuppet", f"{BANK}=clients,{SHOP}=sales", {})
    chosen = f"{SQL} {' ' * 5000}WHERE sales.returns > 1.5 AND clients.id = 'c5, num_rounds=1\u202e'"
    lines = lines_of(world, replace(made, task=replace(made.task, sql=chosen)), capsys)
    (task,) = [line for line in lines if line.startswith("task: ")]
    assert """WHERE sales.returns > 1.5 AND clients.id = 'c5, num_rounds=1?'", label=""" in task
    assert f', sql="{SQL}' in task, "in quotes: what stands in it is no setting"
    assert any(line.startswith("- the query says which of your rows join, by their values too") for line in lines)


@pytest.mark.parametrize("char", ["\u3164", "\u115f", "\uffa0", "\u2800", "\ufe0f", "\U000e0101", "\u034f", "\u180b"])
def test_what_nobody_sees_of_a_proposal_is_shown_escaped(
    world: World, capsys: pytest.CaptureFixture[str], char: str
) -> None:
    """Two queries, or two names of classes, that look alike choose other rows."""
    made = proposed(world, "tablepuppet", f"{BANK}=clients,{SHOP}=sales", {})
    chosen = f"{SQL} WHERE clients.id = 'c5{char}'"
    lines = lines_of(world, replace(made, task=replace(made.task, sql=chosen, categorical=(f"a{char}",))), capsys)
    (task,) = [line for line in lines if line.startswith("task: ")]
    escaped = char.encode("unicode_escape").decode()
    assert f"clients.id = 'c5{escaped}'" in task
    assert f"a{escaped}" in task.partition("categorical=")[2]
    assert not any(char in line for line in lines)
    assert shown(f"c5{char}") == f"'c5{escaped}'"


def cells(char: str) -> int:
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def on_a_terminal(text: str, columns: int) -> list[str]:
    """Return the lines that a terminal shows, which begins another one where the first is full."""
    found: list[str] = []
    for line in text.split("\n"):
        found.append("")
        for char in line:
            if sum(map(cells, found[-1])) + cells(char) > columns:
                found.append("")
            found[-1] += char
    return found


@pytest.mark.parametrize("filler", [" ", "x", "\u3042", "\u3164"])
def test_no_value_begins_a_line_where_a_terminal_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], filler: str
) -> None:
    """A long value goes on in the next line of a terminal: as if this site had written it."""
    columns, forged = 60, "noise: ON; each row is protected"
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((columns, 25)))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    facts: dict[str, Any] = {"run": "0" * 16, "coordinator": BANK, "protocol": "p", "version": "1", "site": SHOP}
    facts |= {"purpose": "train", "source": "s", "data": {BANK: "a", SHOP: "b"}, "hosts": {}, "shared_seed": None}
    facts |= {"federation_version": 3, "most": {}, "on_loss": "ends", "protections": [], "messages": []}
    facts |= {"site_budget": None, "budget": {}, "seed": 1, "code": {}}
    begun = []
    for size in range(columns):
        query = f"SELECT a.b FROM a WHERE a.b = '{filler * size}{forged}'"
        task = {"layout": "relational", "type": "binary", "classes": 2, "sql": query, "label": "a.b"}
        _print_proposal({**facts, "task": task, "config": {"name": query}, "left_open": []}, _say_wrapped)
        shown = capsys.readouterr().out
        assert "".join(shown.split()).count("noise:ON") == 2
        begun += [line for line in on_a_terminal(shown, columns) if line.startswith(("noise", "ON;", "each row"))]
    assert begun == []


@pytest.mark.parametrize("filler", ["x", "\u3042"])
def test_why_a_run_ended_begins_no_line_of_the_list_of_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], filler: str
) -> None:
    columns = 100
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((columns, 25)))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    begun = []
    for size in range(columns):
        run = {"run": "0" * 16, "coordinator": BANK, "status": f"failed: it ended it: {filler * size}1234 finished"}
        monkeypatch.setattr(sites, "_runs", lambda _, run=run: [run])
        sites._list(SimpleNamespace(name=SHOP), SimpleNamespace(action="runs", format="text"))  # type: ignore[arg-type]
        begun += [line for line in on_a_terminal(capsys.readouterr().out, columns) if line.startswith(("12", "fin"))]
    assert begun == []


def with_policy(world: World, words: str) -> None:
    file = world.path / SHOP / SITE
    file.write_text(f'{file.read_text().partition("[policy]")[0]}\n[policy]\napprove = "policy"\n{words}\n')


def test_a_policy_answers_for_no_query_that_it_does_not_name(tmp_path: Path) -> None:
    """A query may choose rows by values of a site, so that which rows join tells what those are."""
    world, whys = World(tmp_path), []
    world.start(BANK)
    try:
        for query, names in (("SELECT a.b FROM a", (BANK, SHOP)), (SQL, (BANK,))):
            with_policy(world, f'[[policy.queries]]\nsql = "{query}"\nlabel = "clients.bad"\ntype = "binary"')
            world.start(SHOP)
            persons = world.answer(names=names)
            assert federated(world, ("num_rounds=1",), protocol="tablepuppet", answering=persons) == 0, world.output
            whys.append([line["why"] for line in world.audit(SHOP) if line["what"] == "approved"][-1])
            world.end(SHOP)
        assert whys == ["", "the policy allows it"]
        said = "not the policy's to answer: its query, with this label and type, is not among"
        assert any(said in line for line in world.output[SHOP])
    finally:
        world.stop()


def test_a_person_who_says_no_before_the_policy_says_yes_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def while_the_policy_looks(config: Any, proposal: Proposal, folder: SiteFolder) -> str:
        decide(folder, proposal, approved=False, why="not today")
        return ""

    monkeypatch.setattr(site, "why_a_person", while_the_policy_looks)
    world = World(tmp_path)
    with_policy(world, "")
    world.start(BANK)
    world.start(SHOP)
    try:
        persons = world.answer(names=(BANK,))
        assert federated(world, ("num_rounds=1",), protocol="tablepuppet", answering=persons) == 3
        assert "shop: rejected the run: not today" in capsys.readouterr().err
        assert [line["what"] for line in world.audit(SHOP)] == ["started", "proposed", "rejected"]
    finally:
        world.stop()


SUMMED = "summed the same data among other organisations, beside other data of theirs, or by other settings"


def test_sums_of_the_same_data_among_others_wait_for_a_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first rounds of two runs of one seed add up equal values: what one organisation added is the difference."""
    monkeypatch.setitem(DATA, "lab", DATA[CLINIC].replace("cured", "tested"))
    world = World(tmp_path, (BANK, SHOP, CLINIC, "lab"))
    protocol = find_protocol("horizontal")
    config = build(protocol.Config, {"on_party_loss": "stop", "secure_aggregation": True})
    three = f"{BANK}=patients,{SHOP}=cases,{CLINIC}=cured"
    of_four, of_three, again = (
        proposed(world, "horizontal", data, spell_infinities(as_dict(config)))
        for data in (f"{three},lab=tested", three, f"{three},lab=tested")
    )
    shop = world.folder(SHOP)
    keep_proposal(shop, of_four)
    assert why_a_person(config, of_three, shop) == "", "nobody has approved it"
    decide(shop, of_four, approved=True)
    assert why_a_person(config, of_three, shop) == f"run {of_four.run} {SUMMED}"
    assert why_a_person(config, again, shop) == ""
    (said,) = [line for line in lines_of(world, of_three, capsys) if f"run {of_four.run} summed" in line]
    assert said.endswith("the difference of its sums and this run's is what lab added")
