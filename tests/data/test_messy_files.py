"""Files as they come: each is read as it is meant, or refused by one line with the file, the place and what to do."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedactors.data.columns import ColumnRule
from fedactors.data.party_rows import check_block
from fedactors.data.sources import FileSource
from fedactors.data.values import CsvFormat
from fedactors.errors import BadInput

TEXT = {"categorical": ("kind",)}
DATE = {"rules": (("since", ColumnRule(type="datetime", parts=("days",))),)}
GERMAN = {"csv": CsvFormat(separator=";", decimal=",")}


def load(path, **given):
    source = FileSource(**{"party": "bank", "path": str(path), "task": "binary", "num_classes": 2, **given})
    block = source.load()
    check_block(block, "bank", source.task, source.num_classes)
    return block


def written(tmp_path, content, name="bank.csv"):
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def rows(*features):
    return [list(map(float, row)) for row in features]


READ = {
    "quoted line breaks": ('id,a,kind\n1,2,"x\ny"\n2,3,"x, ""y"""\n', TEXT, rows([2, 1, 0], [3, 0, 1])),
    "byte order mark": (b"\xef\xbb\xbfid,a\n1,2\n2,3\n", {}, rows([2], [3])),
    "byte order mark, quoted": (b'\xef\xbb\xbf"id","a"\n1,2\n2,3\n', {}, rows([2], [3])),
    "semicolons, decimal commas": ("id;a\n1;2,5\n2;3\n", GERMAN, rows([2.5], [3])),
    "windows": ("id,a\r\n1,2\r\n2,3\r\n", {}, rows([2], [3])),
    "old macintosh": ("id,a\r1,2\r2,3\r", {}, rows([2], [3])),
    "empty lines": ("\nid,a\n1,2\n\n2,3\n\n", {}, rows([2], [3])),
    "no line break at the end": ("id,a\n1,2\n2,3", {}, rows([2], [3])),
    "blanks around numbers": ("id,a\n1, 2\n2,3 \n", {}, rows([2], [3])),
    "NA is a value": ("id,kind\n1,NA\n2,y\n", {**TEXT, "csv": CsvFormat(null=())}, rows([1, 0], [0, 1])),
    "NA is missing": (
        "id,kind\n1,NA\n2,y\n",
        {"rules": (("kind", ColumnRule(type="categorical", missing="indicator")),)},
        rows([1, 0], [0, 1]),
    ),
    "numbers beside text, as categories": ("id,kind\n1,2\n2,two\n3,2.0\n", TEXT, rows([1, 0, 0], [0, 0, 1], [0, 1, 0])),
    "truth": ("id,a\n1,true\n2,False\n", {}, rows([1], [0])),
    "latin-1": (
        "id,kind\n1,Müller\n2,y\n".encode("latin-1"), {**TEXT, "csv": CsvFormat(encoding="latin-1")},
        rows([1, 0], [0, 1]),
    ),
    "utf-16": ("id,a\n1,2\n2,3\n".encode("utf-16"), {"csv": CsvFormat(encoding="utf-16")}, rows([2], [3])),
    "ISO dates of several forms": (
        "id,since\n1,1970-01-02\n2,19700103\n3,1970-01-04T12:00:00Z\n4,1970-01-05 00:00:00+00:00\n", DATE,
        rows([1], [2], [3.5], [4]),
    ),
    "other dates": (
        "id,since\n1,02.01.1970\n2,03.01.1970\n",
        {"rules": (("since", ColumnRule(type="datetime", parts=("days",), format="%d.%m.%Y")),)},
        rows([1], [2]),
    ),
    "doubled columns that are not asked for": ("id,b,b,a\n1,7,8,2\n2,7,8,3\n", {"features": ("a",)}, rows([2], [3])),
    "a column without a name that is not asked for": (",id,a\n0,1,2\n1,2,3\n", {"features": ("a",)}, rows([2], [3])),
    "an inch in a text": ('id,kind\n1,3" nail\n2,y\n', TEXT, rows([1, 0], [0, 1])),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_is_read_as_it_is_meant(tmp_path, name):
    content, given, expected = READ[name]
    np.testing.assert_allclose(load(written(tmp_path, content), id_column="id", **given).features, expected)


REFUSED = {
    "too few fields": ("id,a,b\n1,2,3\n2,3\n", {}, ["line 3 has 2 fields, the header 3", "double quotes"]),
    "too many fields": ("id,a\n1,2\n2,3,9\n", {}, ["line 3 has 3 fields, the header 2"]),
    "too many, after a quoted line break": ('id,a,k\n1,2,"x\ny"\n2,3,9,9\n', {}, ["line 4 has 4 fields, the header 3"]),
    "a comment on top": ("# of June\nid,a\n1,2\n", {}, ["line 2 has 2 fields, the header 1, '# of June'"]),
    "a quote left open": ('id,kind\n1,"x\n2,y\n3,x\n', TEXT, ["line 2 is opened and never closed"]),
    "a quote left open in the last line": ('id,kind\n1,x\n2,"y', TEXT, ["line 3 is opened and never closed"]),
    "nothing": ("", {}, ["is empty"]),
    "nothing but lines": ("\n\n", {}, ["is empty"]),
    "a header alone": ("id,a\n", {}, ["no rows"]),
    "semicolons": ("id;a\n1;2\n", {}, ['csv = { separator = ";" }']),
    "semicolons, one column asked for": ("id;a\n1;2\n", {"features": ("a",)}, ['csv = { separator = ";" }']),
    "decimal commas": ("id;a\n1;2\n2;2,5\n", {"csv": CsvFormat(separator=";")}, ["'2,5' in row 2", 'decimal = ","']),
    "thousands": ("id;a\n1;1.002,5\n2;3\n", GERMAN, ["column a", "'1.002,5' in row 1", "between thousands"]),
    "text among numbers": ("id,a\n1,2\n2,three\n", {}, ["column a", "'three' in row 2", "categorical"]),
    "a text for nothing": ("id,a\n1,2\n2,?\n", {}, ["column a", "'?' in row 2", 'null = ["?"]']),
    "dates for numbers": (
        "id,a\n1,1970-01-02\n2,1970-01-03\n", {}, ["'1970-01-02' in row 1", 'a date: { type = "datetime" }'],
    ),
    "dates as people write them": ("id,a\n1,13.01.1970\n", {}, ["'13.01.1970'", 'datetime", format = "%d.%m.%Y" }']),
    "decimal commas beside text": (
        "id;a;b\n1;x;2,5\n2;y;3,5\n", {"csv": CsvFormat(separator=";")}, ["a ('x'), b ('2,5')", 'decimal = ","'],
    ),
    "a missing number": ("id,a\n1,2\n2,\n", {}, ["column a", "1 values", "first in row 2", 'missing = "indicator"']),
    "a missing category": (
        "id,kind\n1,x\n2,NA\n", TEXT,
        ["column kind", "first in row 2", 'kind = { type = "categorical", missing = "indicator" }'],
    ),
    "an infinite number": ("id,a\n1,2\n2,inf\n", {}, ["column a", "first in row 2", "infinite"]),
    "a missing id": ("id,a\n1,2\n,3\n", {}, ["column id", "first in row 2", "needs an id"]),
    "doubled ids": ("id,a\n7,2\n7,3\n", {}, ["1 ids occur more than once", "7", "keep one row of each"]),
    "doubled columns": ("id,a,a\n1,2,3\n", {}, ["'a', 2 times", "features"]),
    "doubled columns, asked for": ("id,a,a\n1,2,3\n", {"features": ("a",)}, ["'a', 2 times"]),
    "a column without a name": (",id,a\n0,1,2\n1,2,3\n", {}, ["column 1 has no name", "features"]),
    "a separator at the end": ("id,a,\n1,2,\n2,3,\n", {}, ["column 3 has no name", "features"]),
    "another column's name": ("id, a\n1,2\n", {"features": ("a",)}, ["'a' is not a column", "its columns: id, ' a'"]),
    "a date of another form": ("id,since\n1,1970-01-02\n2,03.01.1970\n", DATE, ["'03.01.1970' in row 2", '"%d.%m.%Y"']),
    "no date": ("id,since\n1,1970-01-02\n2,soon\n", DATE, ["column since", "'soon' in row 2", "strptime"]),
    "latin-1": ("id,kind\n1,x\n2,Müller\n".encode("latin-1"), TEXT, ["utf8", "line 3", "0xfc", 'encoding = "latin-1"']),
    "latin-1 in the header": ("id,ä\n1,2\n".encode("latin-1"), {}, ["utf8", "line 1", 'encoding = "latin-1"']),
    "utf-16": ("id,a\n1,2\n".encode("utf-16"), {}, ['encoding = "utf-16"']),
    "a label that is missing": (
        "id,a,bad\n1,2,no\n2,3,yes\n3,4,\n", {"label": "bad"}, ["column bad", "first in row 3", 'unlabelled = "drop"'],
    ),
    "a weight that is no number": (
        "id,a,bad,w\n1,2,no,1\n2,3,yes,x\n", {"label": "bad", "weight": "w"}, ["column w", "'x' in row 2"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("ending", ["bank.csv", "bank.csv.gz"])
@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_in_one_line_with_the_place(tmp_path, name, ending):
    content, given, expected = REFUSED[name]
    raw = content.encode() if isinstance(content, str) else content
    path = written(tmp_path, gzip.compress(raw) if ending.endswith(".gz") else raw, ending)
    with pytest.raises(BadInput) as caught:
        load(path, id_column="id", **given)
    told = str(caught.value)
    assert "\n" not in told
    for part in ("bank: ", str(path), *expected):
        assert part in told


def test_line_breaks_in_quotes_are_read_where_a_block_of_arrow_ends(tmp_path):
    lines = [f'{row},{row % 7},"line one {row % 3}\nline, two"\n' for row in range(60_000)]
    made = load(written(tmp_path, "id,a,kind\n" + "".join(lines)), id_column="id", **TEXT)
    assert made.features.shape == (60_000, 4)
    np.testing.assert_array_equal(made.features[:, 0], np.arange(60_000) % 7)
    np.testing.assert_array_equal(made.features[:, 1:].argmax(axis=1), np.arange(60_000) % 3)


def test_rows_are_counted_in_the_file_where_some_have_no_label(tmp_path):
    path = written(tmp_path, "id,a,paid\n1,2,\n2,3,1.5\n3,4,much\n")
    with pytest.raises(BadInput, match="'much' in row 3"):
        load(path, id_column="id", label="paid", task="regression", num_classes=1, unlabelled="drop")


def test_doubled_columns_of_parquet_are_refused(tmp_path):
    table = pa.Table.from_arrays([pa.array([1, 2])] * 3, names=["id", "a", "a"])
    pq.write_table(table, tmp_path / "bank.parquet")
    with pytest.raises(BadInput, match="'a', 2 times"):
        load(tmp_path / "bank.parquet", id_column="id")


@pytest.mark.parametrize("encoding", ["nope", "rot13", "hex"])
def test_an_encoding_that_is_none_is_refused(encoding):
    with pytest.raises(ValueError, match=r"encoding: .* is not allowed"):
        CsvFormat(encoding=encoding)
