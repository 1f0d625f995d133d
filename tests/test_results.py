"""Tables in documents, made from tables of runs."""

import pytest

from fedactors.errors import BadInput
from fedactors.records.table import RunRow, write_table
from scenarios.results import main, markdown_table, render_document


def row(name, seed=0, **metrics):
    usage = {"bytes": 20}
    return RunRow(protocol="vfl", study="best", name=name, seed=seed, metrics=metrics, usage=usage, censored=("hours",))


@pytest.fixture
def document(tmp_path):
    write_table(tmp_path / "vfl.parquet", [row("b-sync", auc=0.8), row("a-pubsub", auc=0.91)])
    document = tmp_path / "vfl.md"
    document.write_text("# R\n<!-- results: rows=vfl/best columns=auc,bytes -->\nold\n<!-- end -->\ntext\n")
    return document


def test_tables_are_generated_and_checked(document, capsys):
    assert main([str(document.parent), "--check"]) == 1
    assert "not current" in capsys.readouterr().out
    assert main([str(document.parent)]) == 0
    text = document.read_text()
    assert text == (
        "# R\n<!-- results: rows=vfl/best columns=auc,bytes -->\n"
        "|  | auc | bytes | seeds |\n| --- | --- | --- | --- |\n"
        "| b-sync | 0.8000 | 20 | 1 |\n| a-pubsub | 0.9100 | 20 | 1 |\n<!-- end -->\ntext\n"
    )
    assert main([str(document.parent), "--check"]) == 0
    document.write_text(text.replace("0.9100", "0.9900"))
    assert main([str(document.parent), "--check"]) == 1


def test_table_of_several_seeds_and_its_errors(tmp_path):
    failed = RunRow(protocol="vfl", study="best", name="c", seed=0, status="failed")
    write_table(tmp_path / "vfl.parquet", [row("a", 0, auc=0.4), row("a", 1, auc=0.6), row("b", auc=0.5), failed])
    # s = 0.2 / sqrt(2) over two seeds
    lines = markdown_table(tmp_path, "vfl/best", ["auc", "hours"]).splitlines()
    assert lines[2:] == ["| a | 0.5000 ± 0.1414 | not reached | 2 |", "| b | 0.5000 | not reached | 1 |"]
    assert "| b | 0.5000 ± 0 | 1 |" in markdown_table(tmp_path, "vfl/best", ["auc"], always=True)
    with pytest.raises(BadInput, match="best/a: has no 'f1'"):
        markdown_table(tmp_path, "vfl/best", ["f1"])
    with pytest.raises(BadInput, match="has no rows of 'none'"):
        render_document("<!-- results: rows=vfl/none columns=auc -->\n<!-- end -->", tmp_path)
