"""Forms in which files, databases, images and objects come: each is read as it is meant, or refused with a remedy."""

from __future__ import annotations

import datetime
import functools
import gzip
import http.server
import io
import lzma
import sqlite3
import struct
import threading
import zlib

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from fedactors.data.databases import SourceError, TableSource, in_memory
from fedactors.data.description import load_description
from fedactors.data.objects import horizontal, table_of
from fedactors.data.query import KeyTypeError
from fedactors.data.readers import ImageFolder, read_columns, read_image_folder
from fedactors.data.sources import named_classes
from fedactors.data.values import Column, CsvFormat, row_names
from fedactors.errors import BadInput
from tests.data.test_cases import described, lines
from tests.data.test_exact_queries import joined

# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["++5", "+-5", "-+5", "nan(1)", "+nan(1)", "5-", "\u22125", "1d5", "--5"])
def test_what_looks_like_a_number_and_is_none_is_told_in_training_and_in_prediction(text):
    column = Column("v", pa.array(["1", text]))
    with pytest.raises(BadInput, match="holds text such as"):
        column.numbers("shop: a.csv")
    assert list(column.readable_numbers("shop: a.csv")[1]) == [1]
    assert Column("v", pa.array(["+5", "+.5"])).numbers("").tolist() == [5.0, 0.5]


def test_a_text_with_digits_is_not_advised_as_a_missing_value():
    for text, advice in (("5%", "leave out what else stands there"), ("?", 'null = ["?"]')):
        with pytest.raises(BadInput) as caught:
            Column("v", pa.array([text])).numbers("shop: a.csv")
        assert advice in str(caught.value)
    with pytest.raises(BadInput, match='thousands = " "'):  # it looks like the mark that is given
        Column("v", pa.array(["1 234"]), CsvFormat(thousands="\u00a0")).numbers("shop: a.csv")


DAY = datetime.datetime(2024, 3, 5)
COUNTED = {
    "unix": (["1709596800"], "unix", [DAY]),
    "both units": (["1709596800", "1709596800000"], ("unix", "unix-ms"), [DAY, DAY]),
    "days of a workbook": (["45356", "45356.5"], "excel", [DAY, DAY.replace(hour=12)]),
    "beyond the calendar": (["1709596800000"], "unix", 'format = "unix-ms"'),
    "days unsaid": (["45356"], "", 'format = "excel"'),
    "days before March 1900": (["59"], "excel", "is no date"),
}


@pytest.mark.parametrize("kind", COUNTED)
def test_dates_that_are_counted(kind, tmp_path):
    texts, pattern, right = COUNTED[kind]
    if isinstance(right, list):
        assert Column("v", pa.array(texts)).moments(pattern)[0].tolist() == right
        numbers = pa.array([float(text) for text in texts])
        assert Column("v", numbers).moments(pattern)[0].tolist() == right
        return
    rule = f', format = "{pattern}"' if pattern else ""
    rows = lines([texts[0]] * 60)
    path = described(tmp_path, "s.csv", text=rows, rules=f'[parties.shop.columns]\nv = {{ type = "datetime"{rule} }}\n')
    with pytest.raises(BadInput, match="is no date") as caught:
        load_description(path).part("shop").load()
    assert right in str(caught.value)


IDS = {
    "single precision": (pa.array([16777218.0, 1.0], pa.float32()), "below 2\\^24"),
    "half precision": (pa.array(np.array([2050, 1], np.float16)), "below 2\\^11"),
    "zero bytes": (pa.array(["a\0", "a"]), "holds zero bytes such as b'a.x00'"),
    "UUIDs as bytes": (pa.array([b"\0" * 16, b"\1" * 16], pa.binary(16)), "holds zero bytes"),
}


@pytest.mark.parametrize("kind", IDS)
def test_ids_that_may_stand_for_several_are_refused(kind):
    values, reason = IDS[kind]
    with pytest.raises(BadInput, match=reason):
        row_names([Column("id", values)], (), "shop: a.parquet")
    if pa.types.is_floating(values.type):
        small = pa.array(np.array([7, 2000]), pa.float64()).cast(values.type)
        assert row_names([Column("id", small)], (), "") == ["7", "2000"]


LABELS = {
    "numbers": (["10", "9", "9.0"], ["9", "10"]),
    "codes": (["007", "7", "8"], ["007", "7", "8"]),
    "codes with whole floats": (["01", "1", "1.0"], ["01", "1"]),
    "fractions": (["0.5", "1", "0.50"], ["0.5", "1"]),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_are_one_class_where_they_are_one_number_and_no_code(kind):
    texts, names = LABELS[kind]
    assert named_classes(Column("y", pa.array(texts)), None, "bank: a.csv")[0] == names


def test_numbers_below_single_precision_are_refused_and_read_in_another_unit(tmp_path):
    path = described(tmp_path, "s.csv", text=lines([f"{1 + row}e-50" for row in range(60)]))
    with pytest.raises(BadInput, match=r"are one number in single precision; write them in another unit"):
        load_description(path).part("shop").load()
    path = described(tmp_path, "s.csv", text=lines([f"{1 + row}e-30" for row in range(60)]))
    assert len(np.unique(load_description(path).part("shop").load().features)) == 60


# --- files ------------------------------------------------------------------------------------------------------------

ROWS = b"id,v\na,1\nb,2\n"
OTHER_CONTENTS = {
    "JSON lines": (b'{"id": "a", "v": 1}\n{"id": "b", "v": 2}\n', {}, "is JSON, which is not allowed"),
    "JSON": (b'[\n {"id": "a"}]', {}, "is JSON"),
    "a page to log in": (b"\n<!DOCTYPE html><html>", {}, "is HTML or XML, as a server's page to log in is"),
    "xz": (lzma.compress(ROWS), {}, "is an xz archive"),
    "Excel's separator": (b"sep=;\nid;v\na;1\n", {}, r'csv = \{ separator = ";", skip = 1 \}'),
    "blanks": (b"id   v\na    1\n", {"separator": " "}, "not several blanks"),
    "Windows as latin-1": (b"id,v\n\x801,2\n", {"encoding": "latin-1"}, r'encoding = "cp1252"'),
}


@pytest.mark.parametrize("kind", OTHER_CONTENTS)
def test_a_file_of_another_kind_is_told_as_what_it_is(kind, tmp_path):
    content, said, reason = OTHER_CONTENTS[kind]
    (tmp_path / "shop.csv").write_bytes(content)
    with pytest.raises(BadInput, match=reason):
        read_columns(tmp_path / "shop.csv", "shop", wanted=None, csv=CsvFormat(**said))


def test_the_advice_for_excels_separator_and_for_windows_works(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"sep=;\nid;v\na;1\n")
    assert list(read_columns(tmp_path / "a.csv", "p", wanted=None, csv=CsvFormat(separator=";", skip=1))) == ["id", "v"]
    (tmp_path / "b.csv").write_bytes(b"id,v\n\x801,2\n")
    found = read_columns(tmp_path / "b.csv", "p", wanted=None, csv=CsvFormat(encoding="cp1252"))
    assert found["id"].texts() == ["€1"]


class _Handler(http.server.SimpleHTTPRequestHandler):
    """A server whose addresses have queries, and one of which is a page to log in."""

    def log_message(self, *parts):
        """Say nothing."""

    def _answer(self):
        content = b"<html>log in</html>" if self.path.startswith("/login") else gzip.compress(ROWS)
        self.send_response(404 if self.path.startswith("/gone") else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        return content

    def do_HEAD(self):
        """Answer without the content."""
        self._answer()

    def do_GET(self):
        """Answer."""
        self.wfile.write(self._answer())


@pytest.fixture
def server(tmp_path):
    pytest.importorskip("aiohttp")
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, directory=str(tmp_path)))
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{made.server_address[1]}"
    made.shutdown()
    made.server_close()


ADDRESSES = {"/rows?id=5&part=*": "", "/login": "HTML or XML", "/gone.csv": r"shop: path: http.* is not a file"}


@pytest.mark.parametrize("path", ADDRESSES)
def test_addresses_of_a_web_server(path, server):
    if not ADDRESSES[path]:
        assert read_columns(server + path, "shop", wanted=None)["v"].texts() == ["1", "2"]
        return
    with pytest.raises(BadInput, match=ADDRESSES[path]):
        read_columns(server + path, "shop", wanted=None)


def test_an_address_that_cannot_be_reached_names_the_party():
    pytest.importorskip("aiohttp")
    with pytest.raises(BadInput, match=r"^shop: path: http://127.0.0.1:1/a.csv cannot be read"):
        read_columns("http://127.0.0.1:1/a.csv", "shop", wanted=None)


# --- images -----------------------------------------------------------------------------------------------------------


def png_of_words(channels, kind):
    """Return a PNG of 2 x 2 pixels with 16 bits a channel, which Pillow cannot write."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    rows = b"".join(b"\0" + b"\x01\xff" * channels * 2 for _ in range(2))
    head = struct.pack(">IIBBBBB", 2, 2, 16, kind, 0, 0, 0)
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def tiff_from_white_to_black(values):
    """Return a TIFF whose 0 is white."""
    image = pytest.importorskip("PIL.Image").fromarray(values)
    stream = io.BytesIO()
    image.save(stream, "TIFF")
    raw = bytearray(stream.getvalue())
    (start,) = struct.unpack("<I", raw[4:8])
    (count,) = struct.unpack("<H", raw[start : start + 2])
    for entry in range(start + 2, start + 2 + 12 * count, 12):
        if struct.unpack("<H", raw[entry : entry + 2])[0] == 262:
            raw[entry + 8 : entry + 10] = struct.pack("<H", 0)
    return bytes(raw)


GREYS = np.array([[0, 100], [200, 255]])
IMAGES = {
    "16 bits of colours": (png_of_words(3, 2), 3, "16 bits of each of several channels, of which Pillow reads 8"),
    "16 bits of grey with alpha": (png_of_words(2, 4), 1, "16 bits of each of several channels"),
    "floats from white": (tiff_from_white_to_black(GREYS.astype(np.float32)), 1, "counts from white to black"),
}


@pytest.mark.parametrize("kind", IMAGES)
def test_images_that_pillow_would_read_as_others_are_refused(kind, tmp_path):
    content, channels, reason = IMAGES[kind]
    (tmp_path / "a").mkdir()
    ending = "tif" if content.startswith(b"II") else "png"
    (tmp_path / "a" / f"1.{ending}").write_bytes(content)
    with pytest.raises(BadInput, match=reason):
        read_image_folder(tmp_path, "one", ImageFolder(shape=(channels, 2, 2), peak=None))


def test_a_tiff_that_counts_from_white_is_the_same_sample_in_8_and_16_bits(tmp_path):
    found = []
    for name, values in (("8", GREYS.astype(np.uint8)), ("16", (GREYS * 257).astype(np.uint16))):
        (tmp_path / name / "a").mkdir(parents=True)
        (tmp_path / name / "a" / "1.tif").write_bytes(tiff_from_white_to_black(values))
        found.append(read_image_folder(tmp_path / name, "one", ImageFolder(shape=(1, 2, 2))).images)
    np.testing.assert_allclose(found[0], found[1])
    np.testing.assert_allclose(found[0][0, 0], 1 - GREYS / 255, rtol=1e-6)


# --- databases --------------------------------------------------------------------------------------------------------

SQLITE = {
    "generated": ("(a INTEGER, v INTEGER AS (a * 2))", "(a) VALUES (3)", ("integer", [6])),
    "true and 0": ("(v BOOLEAN)", "VALUES ('true'), (0)", ("boolean", [True, False])),
    "true and 7": ("(v BOOLEAN)", "VALUES ('true'), (7)", None),
}


@pytest.mark.parametrize("kind", SQLITE)
def test_columns_of_sqlite(kind, tmp_path):
    columns, rows, right = SQLITE[kind]
    with sqlite3.connect(tmp_path / "a.db") as base:
        base.execute(f"CREATE TABLE t {columns}")
        base.execute(f"INSERT INTO t {rows}")
    source = TableSource(kind="sqlite", where=str(tmp_path / "a.db"), table="t")
    if right is None:
        with pytest.raises(SourceError, match=r"in a view, write NULLIF"):
            source.load()
        return
    assert (source.describe()["v"], source.load(["v"])["v"].to_pylist()) == right


def test_a_table_of_duckdb_may_lie_in_a_schema(tmp_path):
    with duckdb.connect(str(tmp_path / "a.duckdb")) as base:
        base.execute('CREATE SCHEMA sales; CREATE TABLE sales.t AS SELECT 1 AS v; CREATE TABLE "a.b" AS SELECT 2 AS v')
    for table, value in (("sales.t", 1), ("a.b", 2)):
        source = TableSource(kind="duckdb", where=str(tmp_path / "a.duckdb"), table=table)
        assert source.load()["v"].to_pylist() == [value]


ZIPS = "row,k,x\n0,00501,0.5\n1,10001,1.5\n"
AMONG_TEXTS = {
    "COALESCE(a.k, '00000') = b.k": 2,
    "COALESCE(a.k, a.k) = b.k": 2,
    "IFNULL(a.k, '') = b.k": 2,
    "NULLIF(a.k, 'x') = b.k": 2,
    "CAST(COALESCE(a.k, a.k) AS VARCHAR) = b.k": 2,
    "UPPER(COALESCE(a.k, a.k)) = b.k": 2,
    "a.k = b.k AND a.k = '00501'": 1,
    "a.k = b.k AND a.k IN ('00501', '501')": 1,
    "a.k = b.k AND a.k BETWEEN '00' AND '01'": 1,
    "a.k = b.k AND a.k > 501": 1,
    "COALESCE(a.k, 0) = b.n": 2,
}


@pytest.mark.parametrize("condition", AMONG_TEXTS)
def test_a_numeral_among_texts_is_the_text_of_its_file(condition, tmp_path):
    (tmp_path / "a.csv").write_text(ZIPS)
    other = in_memory(pa.table({"row": [0, 1], "k": ["00501", "10001"], "n": [501, 10001]}))
    a = TableSource(kind="csv", where=str(tmp_path / "a.csv"))
    sql = f"SELECT a.row, a.x, b.row FROM a JOIN b ON {condition}"
    assert joined(sql, "a.x", a=a, b=other)[0] == AMONG_TEXTS[condition]


KEYS = {
    "dates and moments": ([datetime.date(2024, 3, 5)], [DAY]),
    "truth and numbers": ([True, False], [1, 0]),
    "truth and texts": ([True, False], ["True", "False"]),
    "dates and texts": ([datetime.date(2024, 3, 5)], ["2024-03-05"]),
    "numbers and texts": ([5, 6], ["5", "6"]),
}


@pytest.mark.parametrize("kind", KEYS)
def test_what_is_advised_for_keys_of_two_kinds_joins_them(kind):
    a, b = (
        in_memory(pa.table({"row": range(len(keys)), "k": keys, "x": [0.5 + row for row in range(len(keys))]}))
        for keys in KEYS[kind]
    )
    sql = "SELECT a.row, a.x, b.row FROM a JOIN b ON a.k = b.k"
    with pytest.raises(KeyTypeError) as caught:
        joined(sql, "a.x", a=a, b=b)
    for advised in str(caught.value).partition("write ")[2].split(", or "):
        assert joined(sql.replace("a.k = b.k", advised), "a.x", a=a, b=b)[0] == len(KEYS[kind][0])


# --- objects ----------------------------------------------------------------------------------------------------------


def relation(sql):
    return duckdb.sql(f"SELECT {sql} AS v")


def of_pandas(**columns):
    return pytest.importorskip("pandas").DataFrame(columns)


def series(values, index):
    return pytest.importorskip("pandas").Series(values, index=index)


OBJECTS = {
    "bits": (lambda: relation("'10101'::BIT"), [b"10101"]),
    "a bit": (lambda: relation("'1'::BIT"), ["1"]),
    "a time with its zone": (lambda: relation("'10:00:00+02'::TIMETZ"), ["10:00:00+02"]),
    "a long number": (lambda: relation("123456789012345678901::HUGEINT"), [123456789012345678901]),
    "another order of bytes": (lambda: {"v": np.array([1.5], ">f8")}, [1.5]),
    "hours": (lambda: {"v": np.array(["2024-03-05T00"], "M8[h]")}, [DAY]),
    "NaN among texts": (lambda: {"v": np.array(["a", np.nan], object)}, ["a", None]),
    "series of one index": (lambda: {"v": series([1, 2], [5, 6]), "w": series([3, 4], [5, 6])}, [1, 2]),
    "series of two indices": (lambda: {"v": series([1], [5]), "w": series([3], [6])}, "have different indices"),
    "a series": (lambda: series([1], [5]), "give columns by name"),
    "a style": (lambda: of_pandas(v=[1]).style, "is not allowed: give a table"),
    "objects of Polars": (
        lambda: pytest.importorskip("polars").DataFrame({"v": [object()]}, schema={"v": __import__("polars").Object}),
        "holds objects of Python",
    ),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_objects_are_the_values_that_they_hold(kind):
    make, right = OBJECTS[kind]
    if kind == "a style":
        pytest.importorskip("jinja2")
    if isinstance(right, list):
        assert table_of(make(), "shop").column("v").to_pylist() == right
        return
    with pytest.raises(BadInput, match=f"^shop: .*{right}"):
        table_of(make(), "shop")


def test_images_whose_channels_come_last_are_refused_and_so_are_those_of_pillow():
    pillow = pytest.importorskip("PIL.Image")
    images = np.random.default_rng(0).integers(0, 255, (6, 8, 8, 3), dtype=np.uint8)
    labels = np.arange(6) % 2
    with pytest.raises(BadInput, match=r"as if the channels came last; give \(C, H, W\), as x.transpose\(0, 3, 1, 2\)"):
        horizontal([(images, labels), (images + 1, labels)], task="binary")
    right = images.transpose(0, 3, 1, 2)
    assert horizontal([(right, labels), (right + 1, labels)], task="binary").task["shape"] == [3, 8, 8]
    meant = horizontal([(images, labels), (images + 1, labels)], task="binary", shape=[8, 8, 3])
    assert meant.task["shape"] == [8, 8, 3]
    of_pillow = [[(pillow.fromarray(image).convert("P"), 0) for image in images[n : n + 3]] for n in (0, 3)]
    with pytest.raises(BadInput, match=r"an image of Pillow.*give an array \(C, H, W\)"):
        horizontal(of_pillow, task="binary")
