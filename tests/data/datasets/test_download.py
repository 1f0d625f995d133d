from __future__ import annotations

import gzip
import hashlib
import http.server
import threading
import zipfile
from contextlib import contextmanager
from functools import partial

import pytest

from fedactors.data.datasets import catalogue as datasets
from fedactors.data.datasets.catalogue import DataFile, Dataset, catalogue, describe
from fedactors.errors import BadInput, DataMissing


@contextmanager
def served(folder):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def invented(monkeypatch, tmp_path):
    """A data set of one file whose description the test chooses; cache in a fresh folder, no data folder."""
    monkeypatch.delenv("FEDACTORS_DATA", raising=False)
    monkeypatch.setenv("FEDACTORS_CACHE", str(tmp_path / "cache"))

    def make(**file):
        dataset = Dataset(
            name="invented",
            summary="s",
            kind="tabular",
            task="binary",
            num_classes=2,
            rows=1,
            columns=1,
            terms="none",
            files=(DataFile(path="invented/f.bin", size=3, **file),),
        )
        monkeypatch.setattr(datasets, "describe", lambda name: dataset)
        return dataset

    return make


@pytest.mark.data
def test_every_given_file_has_its_checksum(real_data):
    seen = 0
    for dataset in catalogue():
        for file in dataset.files:
            if (real_data / file.path).is_file():
                assert datasets.sha256_of(real_data / file.path) in file.sha256
                datasets.locate(dataset.name, file.path)
                seen += 1
    assert seen >= 30


def test_missing_data_say_how_to_get_them(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDACTORS_DATA", str(tmp_path))
    monkeypatch.setenv("FEDACTORS_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataMissing, match=r"fedactors data fetch credit.*FEDACTORS_DATA") as caught:
        datasets.locate("credit", "credit/UCI_Credit_Card.csv.zip")
    assert caught.value.exit_code == 4
    assert not datasets.is_present(describe("credit"))
    assert datasets.is_present(describe("breast-cancer"))


def test_a_damaged_file_is_named(monkeypatch, tmp_path):
    (tmp_path / "credit").mkdir()
    (tmp_path / "credit/UCI_Credit_Card.csv.zip").write_bytes(b"no")
    monkeypatch.setenv("FEDACTORS_DATA", str(tmp_path))
    with pytest.raises(BadInput, match=r"UCI_Credit_Card.csv.zip: wrong checksum"):
        datasets.locate("credit", "credit/UCI_Credit_Card.csv.zip")


def test_the_data_folder_wins_over_the_cache(invented, monkeypatch, tmp_path):
    invented(url="")
    for folder in ("cache", "data"):
        (tmp_path / folder / "invented").mkdir(parents=True)
        (tmp_path / folder / "invented/f.bin").write_text(folder)
    assert datasets.locate("invented", "invented/f.bin").read_text() == "cache"
    monkeypatch.setenv("FEDACTORS_DATA", str(tmp_path / "data"))
    assert datasets.locate("invented", "invented/f.bin").read_text() == "data"


def test_fetch_checks_reports_and_keeps(invented, tmp_path):
    (tmp_path / "web").mkdir()
    (tmp_path / "web/f").write_bytes(b"abc")
    calls = []
    with served(tmp_path / "web") as address:
        invented(url=f"{address}/f", sha256=(hashlib.sha256(b"abc").hexdigest(),))
        (path,) = datasets.fetch("invented", lambda file, done, total: calls.append((file, done, total)))
    assert path.read_bytes() == b"abc"
    assert calls[-1] == ("invented/f.bin", 3, 3)
    assert datasets.fetch("invented") == (path,)  # the server is gone: nothing is fetched twice
    assert [p.name for p in path.parent.iterdir()] == ["f.bin"]


def test_a_wrong_download_is_refused_and_leaves_nothing(invented, tmp_path):
    (tmp_path / "web").mkdir()
    (tmp_path / "web/f").write_bytes(b"abd")
    with served(tmp_path / "web") as address:
        invented(url=f"{address}/f", sha256=(hashlib.sha256(b"abc").hexdigest(),))
        with pytest.raises(BadInput, match=r"wrong checksum"):
            datasets.fetch("invented")
    assert list((tmp_path / "cache/invented").iterdir()) == []


def test_an_unreachable_address_is_data_missing(invented, tmp_path):
    (tmp_path / "web").mkdir()
    with served(tmp_path / "web") as address:
        invented(url=f"{address}/absent")
        with pytest.raises(DataMissing, match=r"cannot fetch .*absent.*404"):
            datasets.fetch("invented")
    invented(url="")
    with pytest.raises(DataMissing, match=r"no public address"):
        datasets.fetch("invented")


def test_a_repacked_archive_is_known_by_its_content(invented, tmp_path):
    (tmp_path / "web").mkdir()
    with zipfile.ZipFile(tmp_path / "inner.zip", "w") as inner:
        inner.writestr("rows.csv", "1,2")
    with zipfile.ZipFile(tmp_path / "web/outer.zip", "w") as outer:
        outer.write(tmp_path / "inner.zip", "f.bin")
    digest = hashlib.sha256(b"1,2").hexdigest()
    with served(tmp_path / "web") as address:
        known = {"url": f"{address}/outer.zip", "sha256": ("0" * 64,), "stored_as": "zip-member"}
        invented(**known, content=("rows.csv", "1" * 64))
        with pytest.raises(BadInput, match=r"wrong checksum"):
            datasets.fetch("invented")
        invented(**known, content=("rows.csv", digest))
        (path,) = datasets.fetch("invented")
    with zipfile.ZipFile(path) as archive:
        assert archive.read("rows.csv") == b"1,2"


@pytest.mark.parametrize("form", ["gzip", "into-zip"])
def test_a_plain_text_download_is_packed(invented, tmp_path, form):
    (tmp_path / "web").mkdir()
    (tmp_path / "web/f").write_bytes(b"a,b")
    with served(tmp_path / "web") as address:
        # The checksum is of another packing of the same text: what was packed here is accepted from the cache only.
        invented(url=f"{address}/f", sha256=("0" * 64,), stored_as=form)
        (path,) = datasets.fetch("invented")
    if form == "gzip":
        assert gzip.decompress(path.read_bytes()) == b"a,b"
    else:
        with zipfile.ZipFile(path) as archive:
            assert archive.read("f.bin") == b"a,b"
    assert datasets.locate("invented", "invented/f.bin") == path
