"""Inputs of people's reports as they were given: each is read as it stands there, or refused with what helps.

They lie beside the real data sets, in a folder `cases`; where that is missing, these tests are skipped. What is read is
compared with what Python's own reader of CSV files, or Arrow, makes of the file.
"""

from __future__ import annotations

import asyncio
import bz2
import csv
import datetime
import gzip
import io
import json
import math
import os
import shutil
import subprocess
import sys
import unicodedata
import uuid
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import fedactors
from fedactors.cli.main import main
from fedactors.data.description import load_description
from fedactors.errors import BadInput

GIVEN = Path(os.environ.get("FEDACTORS_DATA", "none")).parent / "cases"
pytestmark = pytest.mark.skipif(not GIVEN.is_dir(), reason="the reports' inputs are not here")


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """Return a function that copies a case's folder, once, and writes what its script makes."""
    root = tmp_path_factory.mktemp("cases")

    def folder(name: str) -> Path:
        copy = root / name
        if not copy.exists():
            shutil.copytree(GIVEN / name, copy, copy_function=shutil.copyfile)
            copy.chmod(0o755)
            for one in copy.rglob("*"):
                one.chmod(0o755 if one.is_dir() else 0o644)
            if (copy / "make.py").exists():
                shutil.copyfile(GIVEN / "base.py", copy / "base.py")
                subprocess.run([sys.executable, "make.py"], cwd=copy, check=True, capture_output=True, timeout=120)
        return copy

    return folder


def raw_rows(path: Path, encoding: str) -> list[dict[str, Any]]:
    """Return a file's rows as Python's or Arrow's reader has them."""
    if path.is_dir():
        return [row for part in sorted(path.glob("*.parquet")) for row in raw_rows(part, encoding)]
    content = path.read_bytes()
    if content[:4] == b"PAR1":
        return list(pq.read_table(path).to_pylist())
    if content[:6] == b"ARROW1":
        return list(pa.feather.read_table(path).to_pylist())
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    elif content[:3] == b"BZh":
        content = bz2.decompress(content)
    elif content[:4] == b"\x28\xb5\x2f\xfd":
        content = pa.CompressedInputStream(pa.BufferReader(content), "zstd").read()
    elif content[:2] == b"PK":
        with zipfile.ZipFile(path) as packed:
            content = packed.read(packed.namelist()[0])
    csv.field_size_limit(1 << 30)
    lines = [line for line in io.StringIO(content.decode(encoding)) if line.strip()]
    return list(csv.DictReader(lines))


def as_id(value: Any) -> str:
    if isinstance(value, bytes):
        return str(uuid.UUID(bytes=value)) if len(value) == 16 else value.decode()
    text = unicodedata.normalize("NFC", str(value).strip())
    if isinstance(value, datetime.datetime):
        return text.removesuffix("+00:00").removesuffix(" 00:00:00")
    return text.removesuffix(".00").removesuffix(".0")


MISSING = {None, "", "NA", "n/a", "nan", "NaN", "-nan", "-nan(ind)", "NULL", "null"}


def as_number(value: Any) -> float:
    if value in MISSING:
        return math.nan
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return float(value.lower() == "true")
    return float(value)


def is_as_given(block: Any, rows: list[dict[str, Any]], id_columns: list[str]) -> None:
    """Compare ids, numbers and categories of what was read with a file's rows."""
    if block.labels is not None:
        rows = [row for row in rows if row["y"] not in MISSING]
    ids = ["/".join(as_id(row[name]) for name in id_columns) for row in rows]
    assert block.ids.tolist() == ids
    features = np.asarray(block.features, np.float64)
    right = {}
    for name in block.feature_names:
        column, _, category = name.partition("=")
        if column.endswith(")"):
            continue  # parts of dates, which have tests of their own
        if column.endswith(" is missing"):
            column, category = column.removesuffix(" is missing"), "<missing>"
        if column not in rows[0]:  # a place of lists
            column, _, position = name.rpartition(".")
            right[name] = [row[column][int(position)] for row in rows]
        elif category == "<missing>":
            right[name] = [float(row[column] in MISSING) for row in rows]
        elif category:
            right[name] = [float(str(row[column]) == category) for row in rows]
        else:
            right[name] = [as_number(row[column]) for row in rows]
    found = features[:, [name in right for name in block.feature_names]]
    expected = np.asarray([*right.values()], np.float64).T
    # the mean of what is large is off, so that single precision holds what differs
    first = np.where(np.nanmax(np.abs(expected), axis=0, initial=0) > 1e6, 1.0, 0.0)
    found, expected = found - first * found[0], expected - first * expected[0]
    np.testing.assert_allclose(found, expected, rtol=2e-7, atol=1e-4)


READ = {
    "01-float-ids": "parties",
    "02-unicode-ids": "parties",
    "04-blank-lines": "parties spaces",
    "06-two-key-columns": "parties",
    "08-row-over-1MB": "parties",
    "21-parquet-types": "binary-id bool-null-cat bool-null-rule date32-rule decimal-id decimal-null-rule decimal128 "
    "dict-id dict-int-cat dict-int dictionary-cat fixed-list float16 int-null-rule large-string-cat-cat "
    "large-string-id list-equal string-view-cat time64-rule ts-id ts-ns-tz-rule ts-s-rule uuid-id",
    "22-encodings": "cp1252-said gbk-header gbk-said latin-1-said utf-16-le-said utf-16-said utf-8-sig-plain "
    "utf-8-sig-said",
    "23-file-endings": "t00-SHOP.CSV t01-shop.txt t02-shop.dat t03-shop t04-shop.csv.gz t05-shop.csv.bz2 "
    "t06-shop.csv.zip t07-shop.csv.zst t09-shop.feather t10-shop.pq t11-SHOP.PARQUET t12-really-parquet.csv "
    "t13-really-gz.csv t14-not-gz.csv.gz t19-shop-spark.parquet",
    "24-epoch-seconds": "offset parties",
    "28-label-forms": "blank bool-lower bool float minus missing-drop mixed one-two",
    "29-number-forms": "blanks plus sci",
    "31-inf-nan-huge": "bigsame-rule bigsame huge-int-rule huge-int tiny-rule tiny",
    "34-predict-other-shape": "parties",
    "39-wide-5000": "parties",
}
"""By case, those of its descriptions whose file is read, at the party that the case is about."""

REFUSED = {
    "19-mixed-dates": {
        "norule": 'could be a date: { type = "datetime" } under columns',
        "parties zones": "names a time zone, and '2023-01-01T00:00:00' none; name it in all of them",
    },
    "21-parquet-types": {
        "bool-null decimal-null int-null": 'v = { missing = "indicator" }, "median" or "drop"',
        "date32 ts-ns-tz ts-s": 'say under columns: { type = "datetime" }',
        "time64": 'parts = ["hour"]',
        "dictionary large-string-cat string-view": "row 1; give numbers, or name the column under categorical",
        "duration": "write the seconds as numbers",
        "list-ragged": "bring all to one length",
        "list-ragged-cat struct-cat": "no names or categories",
        "list-equal-cat": 'its lists have 2 places, and each is a feature, such as v.0; under columns "v.*" is a rule',
        "map struct": "leave the column out of features, or write numbers",
        "null-type": "no row has a value",
        "uint64-big": "18446744073709551615 and 18446744073709551614 are one number in double precision",
    },
    "22-encodings": {
        "cp1252-plain latin-1-plain": "encoding = \"cp1252\" reads 'c0000,26,Köln'",
        "gbk-plain": "encoding = \"gb18030\" reads 'c0000,26,北京'",
        "utf-16-le-plain": 'encoding = "utf-16-le" reads',
        "utf-16-plain": 'csv = { encoding = "utf-16" }',
    },
    "23-file-endings": {
        "t08-shop.xlsx": "is a damaged workbook; open it and save it anew",
        "t15-cut.csv.gz": "ended before the end-of-stream marker",
        "t16-empty.csv": "is empty",
        "t17-header-only.csv": "no rows",
        "t18-html.csv": "a server's page to log in",
    },
    "24-epoch-seconds": {
        "rule": 'seconds since 1970 are read by format = "unix"',
    },
    "28-label-forms": {
        "missing text-nan": 'unlabelled = "drop" leaves such rows out; where NA or null is a value: csv = { null',
        "yes-case": 'y = { type = "text" }',
    },
    "29-number-forms": {
        "currency euro excel-text fullwidth hex parens percent": "a number is digits with a point",
        "trailing-minus underscore unit": "a number is digits with a point, a sign and an exponent",
        "dash": 'csv = { null = ["-"] }',
        "german german-said": 'csv = { thousands = ".", decimal = "," }',
        "mixed": 'amount = { missing = "indicator" }',
        "nbsp": 'csv = { thousands = "\\u202f" }',
        "swiss": 'csv = { thousands = "\'" }',
        "thousands": 'csv = { thousands = "," }',
        "yesno": "its two texts are categories",
    },
    "31-inf-nan-huge": {
        "inf inf-rule over64 over64-rule": "such as inf (first in row 4); say under columns what to clip them to",
        "over32 over32-rule": "infinite in single precision, such as -1e+300",
        "nan nan-rule": 'csv = { null = ["None"] }',
    },
    "39-wide-5000": {
        "miss": '"*" = { missing = "indicator" }',
    },
    "41-pandas-index": {
        "csv": "Unnamed: 0: is called as pandas calls an index",
        "parties": "__index_level_0__: is called as pandas calls an index",
    },
    "43-places": {
        "t0 t7 t8": "cannot be read",
        "t2 t3 t5 t6": "is not a file",
        "t4": "$HOME is not replaced by its value",
    },
}
"""Those that are refused, and what is said."""
ENCODING = {"cp1252": "cp1252", "gbk": "gb18030", "gbk-header": "gb18030", "latin-1": "latin-1", "utf-16": "utf-16",
            "utf-16-le": "utf-16-le", "utf-8-sig": "utf-8-sig"}  # fmt: skip


def loaded(path: Path, case: str) -> Any:
    return load_description(path).part("bank" if case.startswith("28") else "shop").load()


@pytest.mark.parametrize(
    ("case", "name"),
    [
        pytest.param(case, name, marks=[pytest.mark.slow] if case.startswith("08") else [])
        for case, names in READ.items()
        for name in names.split()
    ],
)
def test_a_given_file_is_read_as_it_stands_there(cases, case, name):
    path = cases(case) / f"{name}.toml"
    block = loaded(path, case)
    party = load_description(path).part("bank" if case.startswith("28") else "shop").source
    encoding = ENCODING.get(name.removesuffix("-said").removesuffix("-plain"), "utf-8-sig")
    is_as_given(block, raw_rows(Path(party.path), encoding), list(party.id_columns))


@pytest.mark.parametrize(
    ("case", "name", "words"),
    [
        (case, name, words)
        for case, cells in REFUSED.items()
        for names, words in cells.items()
        for name in names.split()
    ],
)
def test_a_given_file_is_refused_with_what_helps(cases, case, name, words):
    with pytest.raises(BadInput) as refused:
        loaded(cases(case) / f"{name}.toml", case)
    assert words in str(refused.value)


SHOP = "[parties.shop]\n"
NANS = ["None", "#N/A", "N/A", "NA", "NULL", "null", "nan", "NaN", "-nan", "-nan(ind)", "<NA>", "n/a", "NAN"]
EDITS = {
    ("22-encodings", "gbk-plain"): (SHOP, SHOP + 'csv = { encoding = "gb18030" }\n'),
    ("22-encodings", "cp1252-plain"): (SHOP, SHOP + 'csv = { encoding = "cp1252" }\n'),
    ("22-encodings", "utf-16-plain"): (SHOP, SHOP + 'csv = { encoding = "utf-16" }\n'),
    ("24-epoch-seconds", "rule"): ('"datetime"', '"datetime", format = "unix"'),
    ("28-label-forms", "yes-case"): ('label = "y"', 'label = "y"\ncolumns = { y = { type = "text" } }'),
    ("28-label-forms", "missing"): ('label = "y"', 'label = "y"\nunlabelled = "drop"'),
    ("28-label-forms", "text-nan"): ('label = "y"', 'label = "y"\ncsv = { null = [] }'),
    ("29-number-forms", "dash"): (SHOP, SHOP + 'csv = { null = ["-"] }\ncolumns = { amount = { missing = "mean" } }\n'),
    ("29-number-forms", "german"): (SHOP, SHOP + 'csv = { thousands = ".", decimal = "," }\n'),
    ("29-number-forms", "mixed"): (SHOP, SHOP + 'columns = { amount = { missing = "mean" } }\n'),
    ("29-number-forms", "nbsp"): (SHOP, SHOP + 'csv = { thousands = "\\u202f" }\n'),
    ("29-number-forms", "swiss"): (SHOP, SHOP + """csv = { thousands = "'" }\n"""),
    ("29-number-forms", "thousands"): (SHOP, SHOP + 'csv = { thousands = "," }\n'),
    ("31-inf-nan-huge", "inf"): (SHOP, SHOP + 'columns = { v = { scaling = "range", range = [0, 1000] } }\n'),
    ("31-inf-nan-huge", "over32"): (SHOP, SHOP + 'columns = { v = { scaling = "range", range = [0, 1000] } }\n'),
    ("31-inf-nan-huge", "nan-rule"): (SHOP, SHOP + f"csv = {{ null = {json.dumps(NANS)} }}\n"),
    ("39-wide-5000", "miss"): (SHOP, SHOP + 'columns = { "*" = { missing = "indicator" } }\n'),
    ("41-pandas-index", "csv"): (SHOP, SHOP + 'features = ["noise"]\n'),
    ("41-pandas-index", "parties"): (SHOP, SHOP + 'features = ["noise"]\n'),
}  # fmt: skip


@pytest.mark.parametrize(("case", "name"), EDITS)
def test_one_edit_that_the_refusal_proposes_reads_a_given_file(cases, case, name):
    path = cases(case) / f"{name}.toml"
    edited = path.with_name(f"edited-{name}.toml")
    edited.write_text(path.read_text().replace(*EDITS[case, name]))
    block = loaded(edited, case)
    assert len(block.ids) + len(block.rejected) >= 200
    assert np.isfinite(np.asarray(block.features)).any(axis=0).all()


# --- runs -------------------------------------------------------------------------------------------------------------


def simulated(protocol: str, path: Path) -> Any:
    settings = {"horizontal": {"num_rounds": 4}, "tablepuppet": {"num_rounds": 2}}
    return fedactors.simulate(protocol, path, **settings.get(protocol, {"num_epochs": 3, "batch_size": 32}))


@pytest.mark.parametrize(
    ("case", "used"),
    [("01-float-ids", 200), ("02-unicode-ids", 206), ("04-blank-lines", 240), ("06-two-key-columns", 240)],
)
def test_ids_of_given_files_meet(cases, case, used):
    bank, shop = (load_description(cases(case) / "parties.toml").part(one).load() for one in ("bank", "shop"))
    assert len(set(bank.ids.tolist()) & set(shop.ids.tolist())) == used
    notes = simulated("pubsub-vfl", cases(case) / "parties.toml").summary.extra["notes"]
    assert used == 240 or any(f"bank: {used} of 240 rows are used" in note for note in notes)
    if case == "02-unicode-ids":  # the others differ in NFKC only, which is told with the rule
        assert any('id_rules = ["nfkc"]' in note for note in notes)
        text = (cases(case) / "parties.toml").read_text().replace('id = "', 'id_rules = ["nfkc"]\nid = "')
        (cases(case) / "nfkc.toml").write_text(text)
        parts = [load_description(cases(case) / "nfkc.toml").part(one).load() for one in ("bank", "shop")]
        assert parts[0].ids.tolist() == parts[1].ids.tolist()


def test_sixteen_bits_of_grey_are_told_apart(cases):
    folder = cases("09-png-16-bit")
    block = load_description(folder / "parties.toml").client(0).load()
    images = np.asarray(block.features).reshape(len(block.labels), -1)
    means = [float(images[block.labels == label].mean()) for label in (0, 1)]
    low, high = sorted(means)
    assert low == pytest.approx(11_000 / 65_535, abs=0.02)
    assert high == pytest.approx(45_000 / 65_535, abs=0.02)


IMAGES = {
    "bit1": "", "exif-rotated": "", "missing-class": "", "rgb": "", "upper": "",
    "alpha-only": "is transparent in places", "cmyk": "mode CMYK", "dicom": "0.dcm is no image",
    "float-tiff": "peak = 1.0", "gif": "has 3 frames or pages", "i32-tiff": "peak = 65535",
    "multipage": "has 3 frames or pages", "nested": "a folder for each class", "thumbs": "Thumbs.db is no image",
    "truncated": "Truncated File Read",
}  # fmt: skip


@pytest.mark.parametrize("name", IMAGES)
def test_given_images_are_as_they_were_saved_or_refused(cases, name):
    from PIL import Image, ImageOps

    folder = cases("32-image-modes")
    read = load_description(folder / f"{name}.toml").client(0)
    if IMAGES[name]:
        with pytest.raises(BadInput) as refused:
            read.load()
        assert IMAGES[name] in str(refused.value)
        return
    block = read.load()
    found = np.sort(np.asarray(block.features).reshape(len(block.labels), -1), axis=0)
    right = []
    for file in (folder / name / "north").rglob("*.*"):
        with Image.open(file) as image:
            turned = ImageOps.exif_transpose(image).convert("RGB").resize((8, 8), Image.Resampling.BILINEAR)
            right.append(np.moveaxis(np.asarray(turned, np.float64) / 255, -1, 0).ravel())
    np.testing.assert_allclose(found, np.sort(right, axis=0), atol=1e-6)


JOINED = {
    ("11-sqlite-view", "parties"): 300, ("11-sqlite-view", "ruled"): 300, ("12-leading-zero-keys", "parties"): 300,
    ("26-sql-dialects", "comments"): 263, ("26-sql-dialects", "cte"): 241, ("26-sql-dialects", "ilike"): 60,
    ("26-sql-dialects", "key-cast"): 300, ("26-sql-dialects", "reserved-bare"): 300,
    ("26-sql-dialects", "reserved-quoted"): 300, ("26-sql-dialects", "star"): 300,
    ("26-sql-dialects", "trim-key"): 300,
    ("26-sql-dialects", "upper"): 300, ("26-sql-dialects", "using"): 300, ("42-query-csv-forms", "csvkey"): 300,
    ("42-query-csv-forms", "plain"): 300, ("42-query-csv-forms", "spaced"): 300,
    ("50-long-number-keys", "parties"): 300,
}  # fmt: skip


@pytest.mark.parametrize(("case", "name"), JOINED)
def test_a_given_query_joins_the_rows_that_belong_together(cases, case, name):
    extra = simulated("tablepuppet", cases(case) / f"{name}.toml").summary.extra
    assert extra["joined_rows"] + extra["joined_test_rows"] == JOINED[case, name]


UNJOINED = {
    ("26-sql-dialects", "alias"): "in the select list is not supported: columns keep their names",
    ("26-sql-dialects", "backticks"): "sql: line 1, column 28",
    ("26-sql-dialects", "brackets"): "sql: line 1, column 41",
    ("26-sql-dialects", "cast"): "in the select list is not supported, only columns are",
    ("26-sql-dialects", "coalesce"): "in the select list is not supported",
    ("26-sql-dialects", "distinct"): "'DISTINCT' is not supported",
    ("26-sql-dialects", "in-sub"): "is not supported (subquery)",
    ("26-sql-dialects", "left-join"): "LEFT JOIN is not supported, only inner joins are",
    ("26-sql-dialects", "limit"): "'LIMIT 100' is not supported",
    ("26-sql-dialects", "natural"): "NATURAL JOIN is not supported",
    ("26-sql-dialects", "schema"): "unknown table 'public.",
    ("42-query-csv-forms", "german"): 'csv = { separator = ";" }',
    ("42-query-csv-forms", "latin"): "encoding = \"cp1252\" reads '0,11,4.19,Köln,0'",
    (
        "42-query-csv-forms",
        "quoted",
    ): "compared as texts: 007 is not 7, unless both sides are written CAST(... AS BIGINT)",
    ("42-query-csv-forms", "utf16"): 'csv = { encoding = "utf-16" }',
}


@pytest.mark.parametrize(("case", "name"), UNJOINED)
def test_a_given_query_is_refused_with_what_helps(cases, case, name):
    with pytest.raises(BadInput) as refused:
        simulated("tablepuppet", cases(case) / f"{name}.toml")
    assert UNJOINED[case, name] in str(refused.value)


def test_a_given_query_over_codes_joins_as_its_refusal_says(cases):
    folder = cases("42-query-csv-forms")
    text = (folder / "quoted.toml").read_text()
    (folder / "cast.toml").write_text(
        text.replace("ON o.card = c.card", "ON CAST(o.card AS BIGINT) = CAST(c.card AS BIGINT)")
    )
    extra = simulated("tablepuppet", folder / "cast.toml").summary.extra
    assert extra["joined_rows"] + extra["joined_test_rows"] == 300


def test_a_given_file_without_names_is_read_by_names_and_trim(cases):
    folder = cases("18-uci-no-header")
    said = {"parties": "name all in their order: csv = { names =", "csv": "name all in their order: csv = { names =",
            "header": "csv = { trim = true }", "blanks": "(<=50K, >50K); csv = { trim = true }"}  # fmt: skip
    for name, words in said.items():
        with pytest.raises(BadInput) as refused:
            simulated("horizontal", folder / f"{name}.toml")
        assert words in str(refused.value), name
    names = 'csv = { names = ["age", "work", "hours", "income"], trim = true, null = ["?"] }'
    text = (folder / "parties.toml").read_text()
    (folder / "named.toml").write_text(text.replace('csv = { null = ["?"] }', names))
    block = load_description(folder / "named.toml").client(0).load()
    rows = [line.split(", ") for line in (folder / "a.data").read_text().splitlines() if line.strip()]
    assert block.labels.tolist() == [int(row[3] == ">50K") for row in rows]
    assert block.features[:, 0].tolist() == [float(row[0]) for row in rows]


def test_seconds_of_given_files_are_learnt_from(cases):
    folder = cases("24-epoch-seconds")
    aucs = {}
    for name in ("parties", "offset"):
        run = fedactors.simulate(
            "pubsub-vfl", folder / f"{name}.toml", num_epochs=12, learning_rate=0.01, batch_size=32, seed=0
        )
        aucs[name] = run.summary.metrics["test/auc"]
    assert min(aucs.values()) > 0.9


def test_given_rows_to_predict_are_predicted_or_have_a_reason(cases, caplog):
    folder = cases("34-predict-other-shape")
    run = simulated("pubsub-vfl", folder / "parties.toml")
    found = {}
    for name in ("b1", "b2"):
        run.predict(folder / f"{name}.toml", folder / f"{name}-now.csv")
        with open(folder / f"{name}-now.csv", newline="") as file:
            found[name] = list(csv.DictReader(file))
    assert not any(row["reason"] for row in found["b1"])  # columns in another order, one more, whole numbers
    assert "12 of 60 rows hold categories that training did not see, such as 'west'" in caplog.text
    with open(folder / "b2.csv", newline="") as file:
        given = {row["id"]: row for row in csv.DictReader(file)}
    for row in found["b2"]:
        one = given[row["id"]]
        wrong = "income: missing" if one["income"] in MISSING else ""
        wrong = "income: '3_000' is no number" if one["income"] == "3_000" else wrong
        assert row["reason"] == (wrong or "region: missing" * (one["region"] in MISSING)), row
        assert bool(row["prediction"]) is not bool(row["reason"])
    with pytest.raises(BadInput, match="'region' is not a column of"):
        run.predict(folder / "b3.toml", folder / "b3-now.csv")


def test_given_numbers_without_ranges_are_told(cases):
    folder = cases("46-unscaled-horizontal")
    # standardised over all clients they need no range
    run = fedactors.simulate("horizontal", folder / "parties.toml", num_rounds=10)
    assert run.summary.metrics["test/auc"] > 0.9
    assert not any("give public ranges" in note for note in run.summary.extra.get("notes", ()))
    run = fedactors.simulate("horizontal", folder / "parties.toml", num_rounds=4, standardisation="none")
    notes = run.summary.extra["notes"]
    assert any('income = { scaling = "range", range = [0, 6000] } under [task.columns]' in note for note in notes)
    run = fedactors.simulate("horizontal", folder / "ranges.toml", num_rounds=10)
    assert run.summary.metrics["test/auc"] > 0.9


@pytest.mark.parametrize("address", ["127.0.0.1:6399", "http://127.0.0.1:8265"])
def test_an_address_of_a_cluster_that_is_gone_is_named_where_it_was_given(cases, address, monkeypatch, capsys):
    monkeypatch.chdir(cases("14-stale-ray-address"))
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert main(["run", "pubsub-vfl", "--data", "parties.toml", "num_epochs=2", "batch_size=32"]) == 2
    assert "RAY_ADDRESS" in capsys.readouterr().err


def test_a_run_in_the_cell_of_a_notebook(cases):
    async def cell() -> Any:
        return simulated("pubsub-vfl", cases("01-float-ids") / "parties.toml")

    assert asyncio.run(cell()).summary.metrics["test/auc"] > 0.8
