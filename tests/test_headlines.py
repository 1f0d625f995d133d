"""The tables of claims: which number stands in it, and what counts as reached."""

import re
from pathlib import Path

import pytest

from fedactors.errors import BadInput
from fedactors.runs.table import RunRow
from scenarios.forest import draw, is_current
from scenarios.headlines import count_table, forest_lines, headline_tables, map_table, verdict_table
from scenarios.paper.study import put_rows
from scenarios.results import main as results_main

DOCS = Path(__file__).parents[1] / "docs" / "results"


def write(table: Path, name: str, *values: float | None) -> None:
    """Put a row a value, seed by seed, into the study `s` of a table; None was not reached."""
    rows = [
        RunRow(
            protocol="p",
            study="s",
            name=name,
            seed=seed,
            metrics={"bytes": 2.0} | ({} if value is None else {"cost": value}),
            censored=("cost",) if value is None else (),
        )
        for seed, value in enumerate(values)
    ]
    put_rows(table.with_suffix(".parquet"), rows)


def line(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "claims.toml").write_text(f'[[headline]]\nprotocol = "p"\nwhat = "w"\n{text}')
    *_, last = headline_tables(tmp_path / "claims.toml").splitlines()
    return [cell.strip().replace("\N{NO-BREAK SPACE}", " ") for cell in last.split("|")[1:-1]]


def test_the_best_row_is_compared_with_the_best_baseline(tmp_path):
    write(tmp_path / "data", "ours-1", 3.0, 5.0)
    write(tmp_path / "data", "ours-2", None, 1.0)
    write(tmp_path / "data", "base-1", 8.0)
    write(tmp_path / "data", "base-2", 9.0)
    found = line(
        tmp_path,
        'measured = { rows = "data/s/ours-*", column = "cost", take = "least" }\n'
        'against = { rows = "data/s/base-*", column = "cost", take = "least" }\ncompare = "ratio"\naim = "<= 0.5"\n',
    )
    # 4 +- sqrt(2) over two seeds; a row that one seed did not reach has no mean
    sides = "<small>4 ± 1.4 (ours-1) against 8 (base-1)</small>"
    assert found == ["w", f"0.5 ×<br>{sides}", "<= 0.5", "confirmed", "1"]


RATIO = (
    'measured = { rows = "data/s/ours", column = "cost" }\nagainst = { rows = "data/s/base", column = "cost" }\n'
    'compare = "ratio"\nwhy = "narrow links"\naim = "<= '
)


def test_seeds_that_both_sides_have_give_an_interval_which_decides(tmp_path):
    write(tmp_path / "data", "ours", 3.0, 4.0, 9.0)
    write(tmp_path / "data", "base", 10.0, 10.0, 10.0)
    # the median of .3, .4 and .9; of 27 equally likely samples 1 in 27 has only the least, or only the largest ratio
    sides = "<small>5.333 ± 3.2 (ours) against 10 ± 0 (base)</small>"
    found = ["w<br><small>narrow links</small>", f"0.4 × (0.3 to 0.9)<br>{sides}"]
    assert line(tmp_path, f'{RATIO}0.9"\n') == [*found, "<= 0.9", "confirmed", "3"]
    assert line(tmp_path, f'{RATIO}0.5"\n')[2:4] == ["<= 0.5", "inconclusive"]
    assert line(tmp_path, f'{RATIO}0.35"\n')[2:4] == ["<= 0.35", "inconclusive"]
    assert line(tmp_path, f'{RATIO}0.2"\n')[2:4] == ["<= 0.2", "refuted"]


def test_a_seed_that_only_the_other_side_reached_is_no_number_that_is_left_out(tmp_path):
    write(tmp_path / "data", "ours", 3.0, None, None)
    write(tmp_path / "data", "base", 10.0, 10.0, 10.0)
    found = line(tmp_path, f'{RATIO}0.5"\n')
    assert found[1].startswith("not reached (0.3 to not reached)<br>")
    assert found[3] == "inconclusive"


def test_a_difference_is_that_of_the_pairs(tmp_path):
    write(tmp_path / "data", "ours", 3.0, 4.0)
    write(tmp_path / "data", "base", 1.0, 4.0)
    text = RATIO.replace("ratio", "difference").replace("<=", ">=")
    found = line(tmp_path, f'{text}0"\n')
    assert found[1].startswith("+1 (-11.71 to 13.71)<br>")
    assert found[2:] == [">= 0", "inconclusive", "2"]


def test_a_summary_names_its_interval_and_its_pairs(tmp_path):
    rows = [RunRow(protocol="p", study="s", name="r", seed=0, metrics={"ratio": 0.7, "low": 0.6, "high": 1.2, "n": 10})]
    put_rows(tmp_path / "data.parquet", rows)
    source = '{ rows = "data/s/r", column = "ratio", interval = ["low", "high"], pairs = "n" }'
    found = line(tmp_path, f'measured = {source}\naim = "<= 1"')
    assert found == ["w", "0.7 (0.6 to 1.2)<br><small>r</small>", "<= 1", "inconclusive", "10"]


def test_weights_make_one_number_of_several_columns(tmp_path):
    write(tmp_path / "data", "a", 100.0)
    source = 'measured = { rows = "data/s/a", column = { cost = 10, bytes = 1 } }\naim = ">= 1002.5"'
    assert line(tmp_path, source) == ["w", "1,002<br><small>a</small>", ">= 1002.5", "refuted", "1"]


def test_what_was_not_measured_or_not_reached_is_said(tmp_path):
    write(tmp_path / "data", "never", None)
    write(tmp_path / "data", "base", 8.0)
    never = 'measured = { rows = "data/s/never", column = "cost" }\naim = "<= 1"\n'
    assert line(tmp_path, never) == ["w", "not reached<br><small>never</small>", "<= 1", "refuted", "1"]
    against = 'against = { rows = "data/s/base", column = "cost" }\ncompare = "difference"\naim = ">= 0"\n'
    absent = 'measured = { rows = "data/s/absent", column = "cost" }\n' + against
    sides = "<small>not measured against 8 (base)</small>"
    assert line(tmp_path, absent) == ["w", f"-<br>{sides}", ">= 0", "not measured", "-"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('measured = { rows = "data/s/*", column = "cost" }', "names 2 rows; say which to take"),
        ('measured = { rows = "data/s/a", column = "price" }', "data/s/a: has no number 'price'"),
        ('measured = { rows = "data/s/a", column = "cost" }\naim = "small"', "aim 'small' is not allowed"),
        ('measured = { rows = "data/s/a", column = "cost" }\nsure = true', "claims.toml: .*sure"),
    ],
)
def test_a_claim_that_cannot_be_read_is_refused(tmp_path, text, message):
    write(tmp_path / "data", "a", 1.0)
    write(tmp_path / "data", "b", 2.0)
    with pytest.raises(BadInput, match=message):
        line(tmp_path, text)


@pytest.mark.docs
def test_the_tables_of_the_results_pages_are_current(capsys):
    assert results_main([str(DOCS), "--check"]) == 0, capsys.readouterr().out


@pytest.mark.docs
def test_every_protocol_has_a_section_and_is_counted():
    made = headline_tables(DOCS / "headlines.toml")
    overview, *sections = made.split("\n## ")
    for name in ("pubsub-vfl", "mtcd", "tablepuppet", "glasu", "nebulafl"):
        (section,) = [text for text in sections if text.startswith(f"{name}\n")]
        verdicts = [row.split("|")[4].strip() for row in section.splitlines()[4:]]
        (counts,) = [row for row in overview.splitlines() if row.startswith(f"| {name} |")]
        counted = [len(verdicts), *(verdicts.count(one) for one in ("confirmed", "inconclusive", "refuted"))]
        assert [int(cell) for cell in counts.split("|")[2:-1]] == counted


SHORT = 'short = "cost"\nplot = "{plot}"\n'


def claims(tmp_path: Path, text: str, more: str = "") -> Path:
    file = tmp_path / "claims.toml"
    file.write_text(f'[[headline]]\nprotocol = "p"\nwhat = "w"\n{text}\n{more}')
    return file


def test_a_protocols_page_has_its_short_claims_with_differences_in_points(tmp_path):
    write(tmp_path / "data", "ours", 0.50, 0.52, 0.51)
    write(tmp_path / "data", "base", 0.48, 0.49, 0.50)
    text = RATIO.replace('compare = "ratio"', 'compare = "difference"').replace("<= ", '>= 0.01"\n')
    file = claims(
        tmp_path, text + SHORT.format(plot="points"), '[[headline]]\nprotocol = "p"\nwhat = "long"\n' + RATIO + '1"'
    )
    (_, _, said) = verdict_table(file, "p").splitlines()
    assert said.startswith("| cost | +2.00 points (-0.48 to +4.48) | >=\N{NO-BREAK SPACE}1 | inconclusive |")
    (shown,) = forest_lines(file, "p")
    assert (shown.panel, round(shown.value, 9), shown.aim) == ("points", 2.0, 1.0)
    assert count_table(file).splitlines()[-1] == "| p | 2 | 0 | 1 | 1 |"
    with pytest.raises(BadInput, match="no claim of 'q' has a short text"):
        verdict_table(file, "q")


def test_a_map_says_where_the_method_is_shown_to_be_ahead_or_behind(tmp_path):
    write(tmp_path / "data", "quick", 1.0, 2.0)
    write(tmp_path / "data", "slow", 9.0, 9.0)
    write(tmp_path / "data", "base", 4.0, 4.0)
    base = 'against = { rows = "data/s/base", column = "cost" }\n'
    cells = "".join(
        f'[[cell]]\nprotocol = "p"\nrow = "{row}"\ncolumn = "1 Gbit/s"\nother = "VFL"\n'
        f'measured = {{ rows = "data/s/{row}", column = "cost" }}\n{base}'
        for row in ("quick", "slow")
    )
    file = claims(tmp_path, RATIO.replace("ours", "quick") + '1"', cells)
    assert map_table(file, "p").splitlines() == [
        "|  | 1 Gbit/s |", "| --- | --- |",
        "| quick | **0.25** (0.25 to 0.5) VFL |", "| slow | *2.25* (2.25 to 2.25) VFL |",
    ]  # fmt: skip


def test_a_forest_plot_is_current_until_a_number_changes(tmp_path):
    write(tmp_path / "data", "ours", 3.0, 4.0)
    write(tmp_path / "data", "base", 6.0, 7.0)
    file = claims(tmp_path, RATIO + '0.6"\n' + SHORT.format(plot="ratio"))
    (tmp_path / "p.md").write_text("<!-- forest: claims.toml p -->\n<!-- end -->\n")
    picture = tmp_path / "figures" / "forest-p.svg"
    assert results_main([str(tmp_path), "--check"]) == 1
    assert not picture.exists()
    assert results_main([str(tmp_path)]) == 0
    assert results_main([str(tmp_path), "--check"]) == 0
    assert picture.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
    first = picture.read_bytes()
    draw(picture, forest_lines(file, "p"))
    assert picture.read_bytes() == first
    write(tmp_path / "data", "ours", 3.0, 5.0)
    assert not is_current(picture, forest_lines(file, "p"))
    assert results_main([str(tmp_path), "--check"]) == 1


PAGES = ("pubsub_vfl", "mtcd", "tablepuppet", "glasu", "nebulafl")


@pytest.mark.docs
@pytest.mark.parametrize("name", PAGES)
def test_a_protocols_page_is_read_in_a_minute(name):
    text = (DOCS / f"{name}.md").read_text()
    assert len(text.split()) <= 1_500
    block = text.partition("<!-- verdicts")[2].partition("<!-- end -->")[0]
    verdicts = [row for row in block.splitlines() if row.startswith("| ")][2:]
    assert 0 < len(verdicts) <= 12
    assert all(len(row.replace("|", " ").split()) <= 25 for row in verdicts)
    answer = text.partition("## In five lines")[2].partition("\n## ")[0]
    assert len(re.findall(r"^- \*\*", answer, re.M)) == 5


@pytest.mark.docs
def test_the_summary_is_one_screen():
    assert len((DOCS / "summary.md").read_text().split()) <= 350
