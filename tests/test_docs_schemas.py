"""The pages about files: every key that the code knows stands on its page, in the right table."""

import dataclasses
import json
import re
import tomllib
from pathlib import Path

import jsonschema
import pyarrow.parquet as parquet
import pytest

from fedactors.data import description
from fedactors.data.columns import ColumnRule
from fedactors.data.schema import LAYOUTS, json_schema
from fedactors.data.values import CsvFormat
from fedactors.launch import launch, resolve
from fedactors.messages import ledger
from fedactors.options import RunOptions
from fedactors.privacy.accounting import PrivacyRecord
from fedactors.protocols.glasu.plugin import PROTOCOL
from fedactors.runs.metrics import Summary
from tests.bad_inputs import world

pytestmark = pytest.mark.docs

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"


def sections(name: str) -> dict[str, str]:
    """Return the parts of a page by heading."""
    parts = re.split(r"^## (.*)$", (REFERENCE / name).read_text(), flags=re.M)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def keys(text: str, heading: str = "") -> set[str]:
    """Return what stands as code in the first cells of the tables, or of the one with this heading."""
    tables = re.findall(r"^\|.*\|\n\|[-|]+\|\n(?:\|.*\|\n?)+", text, re.M)
    chosen = [table for table in tables if heading in table.splitlines()[0]]
    return {
        key for table in chosen for row in table.splitlines()[2:] for key in re.findall(r"`([^`]+)`", row.split("|")[1])
    }


def names_of(schema: type) -> set[str]:
    return {field.name for field in dataclasses.fields(schema)}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_page_about_user_data_has_the_keys_of_a_layout(layout):
    (text,) = [text for title, text in sections("parties-toml.md").items() if f"`{layout}`" in title]
    of_task, of_party = LAYOUTS[layout]
    assert keys(text, "[task]") == names_of(of_task)
    assert keys(text, "[parties.NAME]") == names_of(of_party)


def test_the_schema_for_editors_is_that_of_the_code() -> None:
    rule = "write it again: python -m fedactors.data.schema > docs/reference/parties-toml.schema.json"
    assert json.loads((REFERENCE / "parties-toml.schema.json").read_text()) == json_schema(), rule


@pytest.mark.parametrize("name", ["VERTICAL", "HORIZONTAL", "RELATIONAL"])
def test_the_schema_for_editors_takes_what_is_sound_and_refuses_what_is_not(name: str) -> None:
    validator = jsonschema.Draft202012Validator(json_schema())
    sound = tomllib.loads(getattr(world, name))
    assert list(validator.iter_errors(sound)) == []
    task, parties = sound["task"], sound["parties"]
    party = next(iter(parties))
    for spoilt in (
        {"task": task},
        {"task": {**task, "colour": 1}, "parties": parties},
        {"task": {**task, "type": "ranking"}, "parties": parties},
        {"task": task, "parties": {**parties, party: {**parties[party], "path": 3}}},
        {"task": task, "parties": {party: parties[party]}},
    ):
        assert list(validator.iter_errors(spoilt))


@pytest.mark.parametrize(("heading", "schema"), [("a column", ColumnRule), ("`csv`", CsvFormat)])
def test_the_page_about_user_data_has_the_keys_of_rules(heading, schema):
    (text,) = [text for title, text in sections("parties-toml.md").items() if "`vertical`" in title]
    assert keys(text, f"key of {heading}") == {field.name for field in dataclasses.fields(schema)}


def test_the_page_about_user_data_has_the_kinds_of_tables():
    text = sections("parties-toml.md")["Layout `relational`: tables that a query joins"]
    (row,) = [line for line in text.splitlines() if line.startswith("| `kind`")]
    assert set(re.findall(r"`([^`]+)`", row)) == {"kind", "postgres", *description._KINDS, *description._KINDS.values()}


def test_the_page_about_run_folders_has_what_a_run_writes(tmp_path):
    page = sections("run-folder.md")
    options = RunOptions(runtime="simulated", smoke=True, quiet=True, out=str(tmp_path))
    (summary,) = launch(PROTOCOL, *resolve(PROTOCOL, [], options))
    folder = Path(summary.run)

    def read(name: str) -> dict[str, object]:
        found: dict[str, object] = json.loads((folder / name).read_text())
        return found

    def lines(name: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in (folder / name).read_text().splitlines()]

    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    plain = {name for name in files if not name.startswith("checkpoints/")}
    assert keys(page[""]) == plain | {"checkpoints/LABEL/ACTOR.ckpt", "predictions.jsonl", "audit.json", "error.txt"}
    assert keys(page["`manifest.json`"]) == set(read("manifest.json"))
    assert keys(page["`config.json`"]) == set(read("config.json"))
    assert keys(page["`environment.json`"]) == set(read("environment.json"))
    assert keys(page["`metrics/`"]) == set(read("metrics/summary.json"))
    assert keys(page["`metrics/`"]) == {field.name for field in dataclasses.fields(Summary)}
    assert keys(page["`privacy.jsonl`"]) == {key for line in lines("privacy.jsonl") for key in line}
    assert keys(page["`privacy.jsonl`"]) == {field.name for field in dataclasses.fields(PrivacyRecord)}
    assert keys(page["`ledger.parquet`"]) == set(parquet.read_schema(folder / "ledger.parquet").names)
    rows = {
        row.split("`")[1]: set(re.findall(r"`([^`]+)`", row))
        for row in page["`events.jsonl`"].splitlines()[4:]
        if "`" in row
    }
    for line in lines("events.jsonl"):
        assert set(line) - {"type"} <= rows[str(line["type"])], line


def test_the_page_about_run_folders_has_the_kinds_of_links():
    (row,) = [
        line for line in sections("run-folder.md")["`ledger.parquet`"].splitlines() if line.startswith("| `kind`")
    ]
    assert set(re.findall(r"`([^`]+)`", row)) == {"kind", *ledger.KINDS}
