"""Values arrive as they are in their source, or are refused with the column and two of them: by kind of value."""

from __future__ import annotations

import datetime
import decimal
import gzip
import uuid
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from fedactors.data.columns import ColumnRule, resolve_rules
from fedactors.data.description import load_description
from fedactors.data.party_rows import check_block, prepare, refuse_moved, split
from fedactors.data.readers import read_columns
from fedactors.data.sources import FileSource
from fedactors.data.values import Column, CsvFormat, parse_date, row_names
from fedactors.errors import BadInput


def source(path, **given):
    return FileSource(**{"party": "bank", "path": str(path), "task": "binary", "num_classes": 2, **given})


def parquet(tmp_path, **columns):
    pq.write_table(pa.table(columns), tmp_path / "bank.parquet")
    return tmp_path / "bank.parquet"


def csv(tmp_path, text, name="bank.csv"):
    (tmp_path / name).write_text(text)
    return tmp_path / name


# --- ids --------------------------------------------------------------------------------------------------------------

WHOLE = [0, 7, 100_037, 2**53 - 1]
IDS = {
    "int64": pa.array(WHOLE, pa.int64()),
    "uint64": pa.array(WHOLE, pa.uint64()),
    "decimal without places": pa.array([decimal.Decimal(one) for one in WHOLE], pa.decimal128(20, 0)),
    "decimal with places": pa.array([decimal.Decimal(one) for one in WHOLE], pa.decimal128(30, 4)),
    "float64": pa.array(WHOLE, pa.float64()),
    "dictionary": pa.array(WHOLE).dictionary_encode(),
    "text": pa.array(list(map(str, WHOLE))),
    "large text": pa.array(list(map(str, WHOLE)), pa.large_string()),
    "text view": pa.array(list(map(str, WHOLE)), pa.string_view()),
    "bytes": pa.array([str(one).encode() for one in WHOLE]),
    "bytes view": pa.array([str(one).encode() for one in WHOLE], pa.binary_view()),
    "text of floats": pa.array([f"{one}.0" for one in WHOLE]),
    "blanks": pa.array([f" {one} " for one in WHOLE]),
}


@pytest.mark.parametrize("kind", IDS)
def test_an_id_is_the_same_text_whatever_its_type(tmp_path, kind):
    path = parquet(tmp_path, id=IDS[kind], x=[1.0, 2.0, 3.0, 4.0])
    assert source(path, id_column="id").load().ids.tolist() == list(map(str, WHOLE))


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_long_ids_are_told_apart_even_where_one_is_missing(tmp_path, kind):
    ids = [2**53 + 1, None, 2**53, 12345678901234567890, 12345678901234567891]
    if kind == "csv":
        path = csv(tmp_path, "id,x\n" + "".join(f"{'' if one is None else one},1\n" for one in ids))
    else:
        path = parquet(tmp_path, id=pa.array(ids, pa.uint64()), x=[1] * 5)
    block = source(path, id_column="id", needs_label=False).load(source(path, features=("x",)).load().columns)
    assert block.ids.tolist() == ["" if one is None else str(one) for one in ids]


def test_other_ids_have_one_text_too(tmp_path):
    numbers = [uuid.UUID(int=one) for one in (0, 5)]
    day = datetime.datetime(2024, 1, 31, 12, 30)
    kinds = {
        "uuid": (pa.array([one.bytes for one in numbers], pa.uuid()), list(map(str, numbers))),
        "day": (pa.array([day.date()] * 2), ["2024-01-31"] * 2),
        "moment": (pa.array([day] * 2, pa.timestamp("ns", "Europe/Berlin")), ["2024-01-31 12:30:00"] * 2),
        "half": (pa.array([day.replace(microsecond=500_000)] * 2, pa.timestamp("us")), ["2024-01-31 12:30:00.5"] * 2),
        "money": (pa.array([decimal.Decimal("7.50"), decimal.Decimal("-0.00")], pa.decimal128(9, 2)), ["7.5", "0"]),
    }
    for name, (values, texts) in kinds.items():
        assert row_names([Column(name, values)], (), "bank") == texts


REFUSED_IDS = {
    "parts": (pa.array([1.0, 1.5]), "floats such as 1.5"),
    "beyond 2^53": (
        pa.array([2.0**60, 2.0**61, 1.0]),
        r"floats such as 1.1529\d+e\+18 and 2.3058\d+e\+18",
    ),
    "infinite": (pa.array([np.inf, 1.0]), "floats such as inf"),
    "lists": (pa.array([[1], [2]]), r"lists such as \[1\] and \[2\]"),
    "bytes": (pa.array([b"\xff\xfe", b"a"]), "byte strings such as"),
    "floats of a CSV file": (pa.array(["1e+20", "2e+20"]), "floats such as 1e\\+20 and 2e\\+20"),
}


@pytest.mark.parametrize("kind", REFUSED_IDS)
def test_ids_that_may_stand_for_several_values_are_refused(tmp_path, kind):
    values, said = REFUSED_IDS[kind]
    path = parquet(tmp_path, id=values, x=np.arange(len(values)))
    with pytest.raises(BadInput, match=rf"bank: .*column id: holds {said}"):
        source(path, id_column="id").load()


def test_ids_of_several_columns_and_rules(tmp_path):
    path = csv(tmp_path, "b,a,x\n1,23,1\n12,3,1\n1/2,3,1\n01,Jose\u0301,1\n1,JOSÉ,1\n")
    two = source(path, id_column=("b", "a"), features=("x",))
    assert two.load().ids.tolist() == ["1/23", "12/3", "1\\/2/3", "01/José", "1/JOSÉ"]
    ruled = source(path, id_column=("b", "a"), features=("x",), id_rules=("casefold", "strip-zeros"))
    assert ruled.load().ids.tolist() == ["1/23", "12/3", "1\\/2/3", "1/josé", "1/josé"]
    columns = [Column("a", ["ﬁn", "000"])]
    assert row_names(columns, ("nfkc", "strip-zeros"), "bank") == ["fin", "0"]


# --- numbers ----------------------------------------------------------------------------------------------------------

NUMBERS = ["1", "-2.5", "+3", ".5", "5.", "1e3", "1E-3", " 7 ", "007", "-0"]
NO_NUMBERS = ["0x1F", "3_000", "1,5", "12%", "$5", "(5)", "5-", "１２", "1 000", "one", "--1", "1e", "Y", "NONE", "="]


@pytest.mark.parametrize("text", NUMBERS)
def test_a_number_is_one_in_training_and_in_prediction(tmp_path, text):
    path = csv(tmp_path, f'x,z\n"{text}",1\n4,1\n')
    block = source(path).load()
    assert block.features[0, 0] == float(text)
    assert source(path).load(block.columns).features[0, 0] == float(text)


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_what_is_no_number_is_none_in_training_nor_in_prediction(tmp_path, text):
    trained = source(csv(tmp_path, "x,z\n1,1\n4,1\n")).load()
    path = csv(tmp_path, f'x,z\n"{text}",1\n4,1\n')
    with pytest.raises(BadInput, match=r"column x: holds text such as .* in row 1"):
        source(path).load()
    assert source(path).load(trained.columns).unusable == {0: f"x: {text!r} is no number"}


@pytest.mark.parametrize(
    ("given", "texts", "numbers"),
    [
        ({"thousands": ","}, ["1,234.50", "12", "-1,234,567"], [1234.5, 12, -1234567]),
        ({"thousands": ".", "decimal": ","}, ["1.234,50", "1,5", "+2.000"], [1234.5, 1.5, 2000]),
        ({"thousands": "'"}, ["1'000", "999.5"], [1000, 999.5]),
        ({"decimal": ","}, ["1,5", ",5"], [1.5, 0.5]),
    ],
)
def test_numbers_as_a_file_writes_them(given, texts, numbers):
    column = Column("x", texts, CsvFormat(separator=";", **given))
    assert column.numbers("bank").tolist() == numbers
    for wrong in ("1,23,4", "12,34.5", "1.2.3"):
        with pytest.raises(BadInput, match=r"holds text such as"):
            Column("x", [wrong], CsvFormat(separator=";", **given)).numbers("bank")


def test_seconds_since_1970_keep_their_minutes_until_their_mean_is_off(tmp_path):
    seconds = 1_700_000_000 + np.arange(60)
    path = csv(tmp_path, "x\n" + "".join(f"{one}\n" for one in seconds))
    block = source(path).load()
    assert len(np.unique(block.features)) == 60
    made = prepare(block, np.arange(60), split(60, seed=0), "binary").preprocessing
    seen = made.finish(block.features)[:, 0]
    np.testing.assert_allclose(np.diff(seen), np.diff(seen)[0], rtol=1e-4)
    again = source(path).load(block.columns)
    np.testing.assert_array_equal(again.features, block.features)
    with pytest.raises(BadInput, match=r"column x: single precision .* a public range under columns: x = "):
        refuse_moved(block, "bank", "nothing is measured")
    with pytest.raises(BadInput, match=r"column x: 1700000000 and 1700000001 are one number in single precision"):
        source(path, rules=(("x", ColumnRule(scaling="none")),)).load()
    ranged = ColumnRule(scaling="range", range=(1_700_000_000, 1_700_000_059))
    np.testing.assert_allclose(
        source(path, rules=(("x", ranged),)).load().features[:, 0], np.arange(60) / 59, rtol=1e-6
    )


def test_seconds_since_1970_may_be_dates(tmp_path):
    path = csv(tmp_path, "x\n1700000000\n1700003600\n")
    with pytest.raises(BadInput, match=r'but seconds since 1970 are read by format = "unix"'):
        source(path, rules=(("x", ColumnRule(type="datetime")),)).load()
    made = source(path, rules=(("x", ColumnRule(type="datetime", format="unix", parts=("days", "hour"))),)).load()
    origin = made.columns[0].origin
    np.testing.assert_allclose(np.diff(made.features[:, 0].astype(np.float64) + origin), 1 / 24, rtol=1e-6)


@pytest.mark.parametrize("kind", ["uint64", "csv"])
def test_whole_numbers_that_double_precision_merges_are_refused_with_two_of_them(tmp_path, kind):
    values = [2**60 + number for number in range(9)]
    if kind == "csv":
        path = csv(tmp_path, "x\n" + "".join(f"{one}\n" for one in values))
    else:
        path = parquet(tmp_path, x=pa.array(values, pa.uint64()))
    with pytest.raises(BadInput, match=rf"column x: {2**60} and {2**60 + 1} are one number in double precision"):
        source(path).load()
    advised = source(path, categorical=("x",)).load()
    assert advised.features.sum() == 9


NEAR_ZERO = {
    "nothing but 0": ["1e-400", "2e-400", "0"],
    "digits that are left": ["5e-324", "6e-324", "1e-322"],
    "beside 0.5": ["1e-400", "0.5", "0"],
}


@pytest.mark.parametrize("kind", NEAR_ZERO)
@pytest.mark.parametrize("role", [{}, {"label": "x", "task": "regression"}, {"targets": ("x",), "task": "regression"}])
def test_numbers_near_0_are_refused_where_nothing_else_tells_them_apart(tmp_path, kind, role):
    path = csv(tmp_path, "z,x\n" + "".join(f"{row},{text}\n" for row, text in enumerate(NEAR_ZERO[kind])))
    if kind == "beside 0.5":  # rounding takes nothing off that a model could see
        assert source(path, **role).load().ids.tolist() == [0, 1, 2]
        return
    with pytest.raises(BadInput, match=r"x: \dE-\d+ and \dE?-?\d* are one number in double .*; write them in another"):
        source(path, **role).load()


def test_whole_labels_that_double_precision_merges_are_refused(tmp_path):
    path = csv(tmp_path, "z,x\n" + "".join(f"{row},{2**60 + row}\n" for row in range(5)))
    for role in ({"label": "x"}, {"targets": ("x",)}):
        with pytest.raises(BadInput, match=rf"label x: {2**60} and {2**60 + 1} are one .*; take off what all of them"):
            source(path, task="regression", **role).load()


@pytest.mark.parametrize(
    ("texts", "right"),
    [
        (["1e-400", "1"], ["1e-400", "1"]),
        (["1.00000000000000000001", "1.0"], ["1.00000000000000000001", "1.0"]),
        (["700e-02", "9007199254740991.0"], ["7", "9007199254740991"]),
        (["9007199254740993.0", "1.0"], "9007199254740993.0, which as a float is another whole number"),
    ],
)
def test_ids_that_are_whole_as_floats_only_stay_as_they_are(texts, right):
    if isinstance(right, list):
        assert row_names([Column("id", texts)], (), "bank") == right
        return
    with pytest.raises(BadInput, match=f"bank: column id: holds {right}"):
        row_names([Column("id", texts)], (), "bank")


def test_dates_of_several_formats_in_their_order(tmp_path):
    path = csv(tmp_path, "x\n1970-01-02\n03.01.1970\n1970-01-04T12:00:00Z\n")
    with pytest.raises(BadInput, match=r'where both occur: format = ."iso", "%d.%m.%Y".'):
        source(path, rules=(("x", ColumnRule(type="datetime", parts=("days",))),)).load()
    rule = ColumnRule(type="datetime", parts=("days",), format=("iso", "%d.%m.%Y"))
    assert source(path, rules=(("x", rule),)).load().features[:, 0].tolist() == [1, 2, 3.5]
    assert parse_date("02/03/1970", ("%d/%m/%Y", "%m/%d/%Y")).month == 3


MIXED = {
    "2024-01-01T10:00:00+02:00": False,
    "2024-01-01 10:00:00.5-0330": False,
    "2024-01-01 10:00+01": False,
    "2024-01-01T10:00:00Z": True,
    "2024-01-01 10:00:00+00:00": True,
    "2024-01-01": True,
}


@pytest.mark.parametrize("text", MIXED)
def test_moments_of_a_zone_beside_moments_of_none_are_refused(tmp_path, text):
    path = csv(tmp_path, f"x\n{text}\n2024-01-02 10:00:00\n2024-01-03\n")
    given = source(path, rules=(("x", ColumnRule(type="datetime")),))
    if MIXED[text]:
        trained = given.load()
        (tmp_path / "bank.csv").write_text("x\n2024-01-01T10:00:00+02:00\n2024-01-02 10:00:00\n2024-01-02\n")
        reason = "x: 2024-01-01T10:00:00+02:00 names a time zone, and those of training none"
        assert given.load(trained.columns).unusable == {0: reason}
        return
    with pytest.raises(BadInput, match=r"column x: '2024-01-01.* names a time zone, and '2024-01-02 10:00:00' none"):
        given.load()


NAMED = dict.fromkeys((1, 3), "names no time zone, as in training")


@pytest.mark.parametrize(
    ("trained", "rejected"),
    [
        (pa.array(["2024-01-01T10:00:00+02:00", "2024-01-02T00:00Z"]), NAMED),
        (pa.array([0, 1], pa.timestamp("us", "Europe/Berlin")), NAMED),
        (pa.array([0, 1], pa.timestamp("us", "UTC")), {}),
        (pa.array([0, 1], pa.timestamp("us")), {0: "names a time zone, and those of training none"}),
        (pa.array(["2024-01-01", "2024-01-02"]), {0: "names a time zone, and those of training none"}),
        (pa.array([0, 1], pa.date32()), {0: "names a time zone, and those of training none"}),
    ],
)
def test_rows_to_predict_name_a_time_zone_where_those_of_training_do(tmp_path, trained, rejected):
    """A moment of an unknown zone is up to a day away from what it is taken for."""
    rules = (("x", ColumnRule(type="datetime")),)
    fitted = source(parquet(tmp_path, x=trained), rules=rules).load().columns
    new = csv(tmp_path, "x\n2024-01-01T10:00:00+02:00\n2024-01-02 10:00:00\n2024-01-03T10:00:00Z\n2024-01-04\n")
    found = source(new, rules=rules).load(fitted).unusable
    assert {row: why[why.index(" names ") + 1 :] for row, why in found.items()} == rejected


def test_a_moment_beyond_the_calendar_is_no_date_and_one_line(tmp_path):
    path = csv(tmp_path, "x\n0001-01-01T00:00:00+05:00\n2024-01-01T00:00Z\n")
    for given, said in (({}, "holds text such as"), ({"rules": (("x", ColumnRule(type="datetime")),)}, "is no date")):
        with pytest.raises(BadInput, match=rf"column x: .*{said}"):
            source(path, **given).load()


def test_what_has_no_meaning_here_is_named(tmp_path):
    kinds = {"lists": pa.array([[1.0], []]), "times of day": pa.array([datetime.time(3), datetime.time(4)])}
    for called, values in kinds.items():
        path = parquet(tmp_path, x=values)
        with pytest.raises(BadInput, match=rf"column x: holds {called} such as .* no numbers"):
            source(path).load()
    advised = ColumnRule(type="datetime", format="%H:%M:%S", parts=("hour",))
    assert source(path, rules=(("x", advised),)).load().features.shape == (2, 2)


# --- files ------------------------------------------------------------------------------------------------------------

PLAIN = "id,a\n1,2\n2,3\n"


def zipped(text):
    import io

    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("inside.csv", text)
    return made.getvalue()


CONTENTS = {
    "BANK.CSV": PLAIN.encode(),
    "bank.txt": PLAIN.encode(),
    "bank": PLAIN.encode(),
    "bank.csv.gz": gzip.compress(PLAIN.encode()),
    "packed.csv": gzip.compress(PLAIN.encode()),
    "plain.csv.gz": PLAIN.encode(),
    "bank.csv.zst": pa.Codec("zstd").compress(PLAIN.encode(), asbytes=True),
    "bank.csv.zip": zipped(PLAIN),
    "bank.TSV": PLAIN.replace(",", "\t").encode(),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_a_file_is_what_its_content_is(tmp_path, name):
    (tmp_path / name).write_bytes(CONTENTS[name])
    assert source(tmp_path / name, id_column="id").load().features.tolist() == [[2], [3]]


def test_parquet_and_feather_by_any_name_and_a_folder_of_parts(tmp_path):
    table = pa.table({"id": [1, 2], "a": [2, 3]})
    pq.write_table(table, tmp_path / "A.CSV")
    feather.write_feather(table, tmp_path / "a.feather")
    parts = tmp_path / "parts.parquet"
    parts.mkdir()
    (parts / "_SUCCESS").touch()
    for number in range(2):
        pq.write_table(table.slice(number, 1), parts / f"part-{number}.parquet")
    for path in (tmp_path / "A.CSV", tmp_path / "a.feather", parts):
        assert source(path, id_column="id").load().features.tolist() == [[2], [3]]
    (parts / "other.parquet").write_text("a,b\n")
    with pytest.raises(BadInput, match=r"other.parquet cannot be read: it is no .parquet file by its content"):
        source(parts, id_column="id").load()


DIALECTS = {
    "no header": ("1, 2\n2, 3\n", CsvFormat(names=("id", "a"))),
    "blanks": ('id , a\n1, 2\n2, "3"\n', CsvFormat(trim=True)),
    "lines on top": ("of June\n\nid,a\n1,2\n2,3\n", CsvFormat(skip=2)),
    "comments": ("# of June\nid,a\n1,2\n# none, so far, at all\n2,3\n", CsvFormat(comment="#")),
    "lines of blanks": ("id,a\n  \n1,2\n\n2,3\n   \n", CsvFormat()),
}


@pytest.mark.parametrize("name", DIALECTS)
def test_dialects_of_csv(tmp_path, name):
    text, how = DIALECTS[name]
    assert source(csv(tmp_path, text), id_column="id", csv=how).load().features.tolist() == [[2], [3]]


BLANK_LINES = {"x\n1\n\n2\n": 4, "x\r\n1\r\n  \r\n2\r\n": 4, "\n\nx\n\n1\n": 5}
NO_BLANK_LINES = ["x\n1\n2\n\n\n", "x\r\n1\r\n2", 'x\n"1"\n""\n', "# of June\nx\n1\n# none\n2\n"]


def test_a_blank_line_between_rows_of_one_column_is_refused(tmp_path):
    how = CsvFormat(comment="#")
    for text, line in BLANK_LINES.items():
        with pytest.raises(BadInput, match=rf'a blank line stands above line {line}; .*: write "" there'):
            read_columns(csv(tmp_path, text), "bank", wanted=None, csv=how)
    for text in NO_BLANK_LINES:
        assert len(read_columns(csv(tmp_path, text), "bank", wanted=None, csv=how)["x"]) == 2


def test_advice_for_a_file_of_another_dialect_works(tmp_path):
    path = csv(tmp_path, "# of June\nid,a\n1,2\n")
    with pytest.raises(BadInput, match=r'line 2 has 2 fields, the header 1.* csv = . comment = "#" .'):
        source(path, id_column="id").load()
    path = csv(tmp_path, "id, a\n1, 2\n")
    with pytest.raises(BadInput, match=r"csv = . trim = true . leaves blanks"):
        source(path, id_column="id", features=("a",)).load()
    path = tmp_path / "bank.csv"
    path.write_bytes("id,a\n1,Müller\n".encode("cp1252"))
    with pytest.raises(BadInput, match=r'line 2 .* encoding = "cp1252" reads .*Müller'):
        source(path, id_column="id").load()


def test_a_row_of_more_than_a_megabyte_is_read(tmp_path):
    width = 60_000
    names = ",".join(f"g{number}" for number in range(width))
    path = csv(
        tmp_path,
        f"id,{names}\n" + "".join(f"{row}," + ",".join(["0.1234567890123456789"] * width) + "\n" for row in (1, 2)),
    )
    read = read_columns(path, "bank", wanted=["id", "g59999"])
    assert read["g59999"].numbers("bank").tolist() == [0.1234567890123456789] * 2


# --- rules of columns -------------------------------------------------------------------------------------------------


def test_rules_by_pattern(tmp_path):
    path = csv(tmp_path, "a1,a2,b\n1,,\n2,3,4\n")
    mean, constant = ColumnRule(missing="mean"), ColumnRule(missing="constant", fill=7.0)
    block = source(path, rules=(("a*", mean), ("*", constant))).load()
    assert np.isnan(block.features[0, 1])
    assert block.features[0, 2] == 7
    assert resolve_rules((("*", mean), ("b", constant)), ["b", "c"]) == {"b": constant, "c": mean}
    path_of_many = csv(
        tmp_path, ",".join(f"g{number}" for number in range(12)) + "\n" + "," * 11 + "\n" + "1," * 11 + "1\n", "m.csv"
    )
    with pytest.raises(BadInput, match=r'and 4 columns more.* "\*" = . missing = "indicator" .'):
        check_block(source(path_of_many).load(), "bank", "binary", 2)
    assert source(path_of_many, rules=(("*", ColumnRule(missing="indicator")),)).load().features.shape == (2, 24)
    with pytest.raises(BadInput, match=r"columns: 'z\*' is not among the features"):
        source(path, rules=(("z*", mean), ("*", constant))).load()


def test_a_label_may_have_a_rule(tmp_path):
    path = csv(tmp_path, "x,y\n1,Yes\n2,yes \n3,NO\n4,No\n")
    with pytest.raises(BadInput, match=r'4 classes .* y = . type = "text" .'):
        source(path, label="y").load()
    block = source(path, label="y", rules=(("y", ColumnRule(type="text")),), positive="No").load()
    assert block.class_names == ("yes", "no")
    assert block.labels.tolist() == [0, 0, 1, 1]
    path = csv(tmp_path, "x,y\n1,NA\n2,DE\n")
    with pytest.raises(BadInput, match=r"csv = . null = \[\] ."):
        source(path, label="y").load()
    assert source(path, label="y", csv=CsvFormat(null=())).load().class_names == ("DE", "NA")


def test_a_description_says_all_of_it(tmp_path):
    csv(tmp_path, "1;A;1.000,5;Ja\n2;B;;nein\n", "bank.data")
    csv(tmp_path, "b,a,v\n01,a,1\n02,b,2\n", "SHOP.CSV")
    (tmp_path / "parties.toml").write_text(
        """
[task]
type = "binary"
alignment = "hash"
[parties.bank]
path = "bank.data"
id = ["n", "k"]
id_rules = ["casefold", "strip-zeros"]
label = "y"
csv = { separator = ";", decimal = ",", thousands = ".", names = ["n", "k", "x", "y"] }
[parties.bank.columns]
"*" = { missing = "median" }
y = { type = "text" }
[parties.shop]
path = "SHOP.CSV"
id = ["b", "a"]
id_rules = ["casefold", "strip-zeros"]
"""
    )
    data = load_description(tmp_path / "parties.toml")
    bank, shop = data.load("bank"), data.load("shop")
    assert bank.ids.tolist() == shop.ids.tolist() == ["1/a", "2/b"]
    assert bank.features[0, 0] == 1000.5
    assert bank.class_names == ("ja", "nein")
