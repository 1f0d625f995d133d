"""Committed epsilons and mus, computed again by an accountant of its own."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from fedactors.privacy import accounting
from fedactors.privacy.accounting import PRESENCE, PrivacyRecord, claims
from fedactors.privacy.noise import mu_of_epsilon
from fedactors.runs.table import RunRow, read_table, write_table
from scenarios import formulas
from scenarios.accounts import RESULTS, account_of, main, rows_with_figures
from scenarios.stated import stated

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("mu", [0.001, 0.2, 1.0, 8.0, 170.0, 1000.0])
def test_two_ways_to_epsilon_are_one(mu: float) -> None:
    assert formulas.epsilon_of(mu, 1e-5) == pytest.approx(accounting.epsilon_of_mu(mu, 1e-5), rel=1e-8)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.6, 40.0])
def test_two_ways_to_mu_are_one(epsilon: float) -> None:
    assert formulas.mu_of(epsilon) == pytest.approx(mu_of_epsilon(epsilon), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("multiplier", "rate", "steps"), [(1.0, 0.1, 10), (3.2, 0.25, 60), (12.8, 1.0, 10)])
def test_two_ways_to_amplify_are_one(multiplier: float, rate: float, steps: int) -> None:
    one = formulas.sampled_epsilon(multiplier, rate, steps, 1e-5)
    other = accounting.dpsgd_epsilon(
        noise_multiplier=multiplier, steps=steps, delta=1e-5, sampling="poisson", sample_rate=rate
    )
    assert one == pytest.approx(other, rel=1e-8)


def test_two_ways_to_group_privacy_are_one() -> None:
    line = PrivacyRecord(
        party="a", message_type="theta", mechanism="dp-sgd", neighbour=PRESENCE, noise_scale=1.5, sensitivity=1.0,
        touched=40, sampling="poisson", sample_rate=0.02, delta=1e-5,
    )  # fmt: skip
    one, other = formulas.replaced_epsilon(1.5, 0.02, 40, 1e-5), claims([line])["a", "row"].epsilon
    assert one == pytest.approx(other, rel=1e-8)


def test_the_second_accountant_takes_nothing_from_the_first() -> None:
    assert "fedactors" not in (ROOT / "scenarios" / "formulas.py").read_text().partition('"""\n\nfrom')[2]


@pytest.mark.docs
def test_somebody_accounts_for_every_row_that_states_a_figure() -> None:
    rows = list(rows_with_figures(RESULTS))
    assert len(rows) > 100
    assert [f"{table}/{row.study}/{row.name}" for table, row in rows if account_of(table, row) is None] == []


@pytest.fixture
def record(tmp_path: Path) -> tuple[Path, list[RunRow]]:
    """The rows of PubSub-VFL on data that comes with the package, and those that need none to be accounted for."""
    rows = [row for row in read_table(RESULTS / "pubsub_vfl_privacy.parquet") if row.data in ("breast-cancer", "bank")]
    write_table(tmp_path / "pubsub_vfl_privacy.parquet", rows)
    return tmp_path, rows


@pytest.mark.slow
def test_the_record_is_right_and_one_row_is_run_again(record, capsys) -> None:
    folder, rows = record
    for row in rows:  # the data of the others may not be on this machine
        if row.data == "bank":
            rows[rows.index(row)] = dataclasses.replace(row, wall_seconds=1e6)
    write_table(folder / "pubsub_vfl_privacy.parquet", rows)
    assert main([str(folder), "--again", "1", "--draw-seed", "2"]) == 0
    said = capsys.readouterr().out
    assert "run again: pubsub_vfl_privacy/a" in said
    assert "1 rows run again (--draw-seed 2), 0 figures differ" in said


@pytest.mark.parametrize("group", ["metrics", "extra"])
def test_a_figure_that_is_a_thousandth_too_small_is_found(record, capsys, group: str) -> None:
    folder, rows = record
    key = "mu" if group == "metrics" else "privacy/passive/Embedding/epsilon"
    number = next(i for i, row in enumerate(rows) if row.study == "privacy-bank" and stated(row).get(key))
    tree = changed = _copied(getattr(rows[number], group))
    *way, last = key.split("/")
    for step in way:
        tree = tree[step]
    tree[last] = 0.999 * float(tree[last])
    rows[number] = dataclasses.replace(rows[number], **{group: changed})
    write_table(folder / "pubsub_vfl_privacy.parquet", rows)
    assert main([str(folder), "--again", "0"]) == 1
    assert f"{rows[number].name} seed 0: {key} " in capsys.readouterr().out


@pytest.mark.slow
def test_a_budget_for_what_has_none_and_a_figure_that_nobody_knows_are_found(record, capsys) -> None:
    folder, rows = record
    number = next(i for i, row in enumerate(rows) if (row.study, row.name) == ("privacy-bank", "nominal-mu-1"))
    for name, says in (("mu", "nothing was computed"), ("other_epsilon", "nobody accounts for it")):
        changed = dataclasses.replace(rows[number], metrics={**rows[number].metrics, name: 1.0})
        write_table(folder / "pubsub_vfl_privacy.parquet", [*rows[:number], changed, *rows[number + 1 :]])
        assert main([str(folder), "--again", "0"]) == 1
        assert says in capsys.readouterr().out


def test_ci_accounts_for_the_record() -> None:
    replay = (ROOT / "Makefile").read_text().partition("\nreplay:")[2].partition("\n\n")[0]
    assert "scenarios.accounts" in replay


def test_a_number_of_nothing_is_no_figure() -> None:
    row = RunRow(protocol="p", seed=0, metrics={"mu": "none", "epsilon": math.inf, "replay_mu": 3.0, "loss": 1.0})
    assert stated(row) == {"mu": None, "epsilon": None}


def _copied(tree):
    return {name: _copied(value) if isinstance(value, dict) else value for name, value in tree.items()}


@pytest.mark.docs
def test_the_page_says_how_many_figures_there_are() -> None:
    rows = [row for _, row in rows_with_figures(RESULTS)]
    number = sum(value is not None for row in rows for value in stated(row).values())
    assert f"{number} figures of {len(rows)} rows" in (RESULTS / "privacy.md").read_text()
