"""Data sets that their own libraries read: hf:NAME and torchvision:NAME, as exact as files, and resumed like them."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedactors
from fedactors.data import readers
from fedactors.data.databases import TableSource
from fedactors.data.description import load_description
from fedactors.data.layouts.horizontal import HorizontalData
from fedactors.data.layouts.vertical import VerticalData
from fedactors.data.sources import FileSource
from fedactors.errors import BadInput, FedactorsError
from fedactors.launch import check_data
from fedactors.plugins import find_protocol
from fedactors.runtime.snapshots import digests_of_files
from fedactors.validation import library_address, library_parts

IDS = ["007", "7", "1e5", "0012"]
WHOLE = [2**53 + 1, -(2**62), 3, 4]
SMALL = {"num_rounds": 1, "local_epochs": 1, "batch_size": 4}


@pytest.fixture
def hugging_face(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True, raising=False)
    return datasets


@pytest.fixture
def torchvision() -> Any:
    """Return torchvision, whose operators may have no kernels beside a torch without CUDA: data sets need none."""
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    with contextlib.suppress(RuntimeError):
        return importlib.import_module("torchvision.datasets")
    library = importlib.import_module("torch").library.Library("torchvision", "DEF")
    source = Path(str(importlib.util.find_spec("torchvision").origin)).with_name("_meta_registrations.py").read_text()
    for name in dict.fromkeys(re.findall(r'register_(?:meta|fake)\("(?:torchvision::)?(\w+)"', source)):
        library.define(f"{name}(Tensor x) -> Tensor")
    _DEFINED.append(library)  # which are forgotten with it
    return importlib.import_module("torchvision.datasets")


_DEFINED: list[Any] = []


def a_table(**more: Any) -> pa.Table:
    return pa.table({"id": IDS, "amount": WHOLE, "share": [0.1, 1.5, None, -0.0], "y": [0, 1, 0, 1], **more})


def folder_of(tmp_path: Path, **splits: pa.Table) -> Path:
    folder = tmp_path / "set"
    folder.mkdir()
    for name, table in splits.items():
        pq.write_table(table, folder / f"{name}.parquet")
    return folder


def source(path: str, folder: Path, **more: Any) -> FileSource:
    keys = "\n".join(f"{key} = {json.dumps(value)}" for key, value in more.items())
    other = folder / "other.csv"
    other.write_text("id,z\n" + "".join(f"{one},1\n" for one in IDS))
    (folder / "parties.toml").write_text(
        f"""[task]
type = "binary"
alignment = "psi"
[parties.bank]
path = "{path}"
id = "id"
label = "y"
{keys}
[parties.shop]
path = "other.csv"
id = "id"
"""
    )
    data = load_description(folder / "parties.toml")
    assert isinstance(data, VerticalData)
    found = data.sources[0]
    assert isinstance(found, FileSource)
    return found


# --- Hugging Face -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["a folder", "save_to_disk", "save_to_disk of splits", "a split by name"])
def test_values_of_a_hugging_face_set_are_those_of_a_parquet_file(hugging_face: Any, tmp_path: Path, way: str) -> None:
    pq.write_table(a_table(), tmp_path / "same.parquet")
    address = "hf:./set"
    if way == "a folder":
        folder_of(tmp_path, train=a_table())
    elif way == "a split by name":
        folder_of(tmp_path, train=a_table(), test=a_table().slice(1))
        address = "hf:./set?split=train"
    else:
        whole = hugging_face.Dataset(a_table())
        made = whole if way == "save_to_disk" else hugging_face.DatasetDict(train=whole)
        made.save_to_disk(str(tmp_path / "set"))
    columns = source(address, tmp_path, features=["share", "amount"]).read()
    expected = source("same.parquet", tmp_path, features=["share", "amount"]).read()
    assert {name: one.values.to_pylist() for name, one in columns.items()} == {
        name: one.values.to_pylist() for name, one in expected.items()
    }
    assert source(address, tmp_path).ids_of(columns) == IDS


def test_several_splits_are_refused_until_one_is_named(hugging_face: Any, tmp_path: Path) -> None:
    folder_of(tmp_path, train=a_table(), test=a_table().slice(1))
    with pytest.raises(BadInput, match=r"split: missing; its splits are train, test: give \?split=train"):
        source("hf:./set", tmp_path).read()
    with pytest.raises(BadInput, match=r"split: dev: it has none; its splits are train, test"):
        source("hf:./set?split=dev", tmp_path).read()
    assert len(source("hf:./set?split=train[:2]", tmp_path).read()["id"]) == 2
    assert len(source("hf:./set?split=train+test", tmp_path).read()["id"]) == 7


def test_a_set_of_csv_files_is_refused_whose_library_takes_007_for_7(hugging_face: Any, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.csv").write_text("id,y\n007,1\n008,0\n")
    with pytest.raises(BadInput, match=r"ids such as 007 .*give its folder as path, without hf:"):
        source("hf:./set", tmp_path).read()
    assert source("set", tmp_path).ids_of(source("set", tmp_path).read()) == ["007", "008"]


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("hf:./nowhere", "is no folder"),
        ("hf:./other.csv", "is no folder; a file is given as path, without hf:"),
        ("hf:./set?colour=red", "'red'|'colour' is not allowed: give one of config, split, revision"),
        ("hf:./set?split", "give each setting once"),
        ("hf:nobody/has-this-set", "nobody/has-this-set"),
    ],
)
def test_what_is_no_hugging_face_set_is_refused_in_one_line(
    hugging_face: Any, tmp_path: Path, address: str, told: str
) -> None:
    folder_of(tmp_path, train=a_table())
    with pytest.raises(BadInput, match=told) as refused:
        source(address, tmp_path).read()
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith(("bank: ", "path: "))


def test_a_set_is_known_by_its_rows(hugging_face: Any, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, train=a_table())
    before = digests_of_files(source("hf:./set", tmp_path))
    assert before == digests_of_files(source("hf:./set", tmp_path))
    assert before[0][1]
    pq.write_table(a_table().set_column(2, "share", pa.array([0.1, 1.5, None, 0.25])), folder / "train.parquet")
    assert before != digests_of_files(source("hf:./set", tmp_path))


def test_a_set_is_a_table_of_a_query(hugging_face: Any, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, train=a_table())
    table = TableSource(kind="library", where=f"hf:file:{folder}")
    assert table.load(["id", "amount"], where="y = 1").to_pydict() == {"id": ["7", "0012"], "amount": [-(2**62), 4]}
    (tmp_path / "other.csv").write_text("id,z\n" + "".join(f"{one},1\n" for one in IDS))
    (tmp_path / "parties.toml").write_text(
        """[task]
type = "binary"
[parties.bank]
tables = { a = "hf:./set" }
sql = "SELECT amount % 3 AS part, y FROM a"
label = "y"
[parties.shop]
path = "other.csv"
features = ["z"]
"""
    )
    data = load_description(tmp_path / "parties.toml")
    assert isinstance(data, VerticalData)
    assert [len(one.load().ids) for one in data.sources] == [4, 4]


def test_a_run_of_a_set_is_that_of_its_rows(hugging_face: Any, tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    x = draw.normal(size=(60, 3))
    table = pa.table({**{f"x{i}": x[:, i] for i in range(3)}, "y": (x[:, 0] > 0).astype(np.int64)})
    folder_of(tmp_path, train=table.slice(0, 20), validation=table.slice(20, 20), test=table.slice(40))
    (tmp_path / "parties.toml").write_text(
        """[task]
layout = "horizontal"
type = "binary"
test = "hf:./set?split=test"
[parties.north]
path = "hf:./set?split=train"
label = "y"
[parties.south]
path = "hf:./set?split=validation"
label = "y"
"""
    )
    run = fedactors.simulate("horizontal", str(tmp_path / "parties.toml"), out=None, **SMALL)
    parts = [table.slice(start, 20) for start in (0, 20, 40)]
    data = fedactors.horizontal({"north": parts[0], "south": parts[1]}, label="y", test=parts[2], task="binary")
    same = fedactors.simulate("horizontal", data, out=None, **SMALL)
    assert run.metrics == same.metrics


# --- pictures ---------------------------------------------------------------------------------------------------------


def pictures(hugging_face: Any, images: list[Any], labels: list[int]) -> Any:
    features = hugging_face.Features({"image": hugging_face.Image(), "label": hugging_face.Value("int64")})
    encoded = []
    for one in images:
        stream = io.BytesIO()
        one.save(stream, "PNG")
        encoded.append({"bytes": stream.getvalue(), "path": None})
    return hugging_face.Dataset.from_dict({"image": encoded, "label": labels}, features=features)


def horizontal_of(tmp_path: Path, paths: list[str], task: str, party: str = "") -> HorizontalData:
    parties = "".join(f'[parties.c{n}]\npath = "{path}"\n{party}\n' for n, path in enumerate(paths))
    (tmp_path / "parties.toml").write_text(f'[task]\nlayout = "horizontal"\n{task}\n{parties}')
    data = load_description(tmp_path / "parties.toml")
    assert isinstance(data, HorizontalData)
    return data


def test_pictures_of_a_hugging_face_set_are_those_of_a_folder(hugging_face: Any, tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    draw = np.random.default_rng(1)
    images = [pillow.fromarray(draw.integers(0, 256, (6, 5, 3), dtype=np.uint8)) for _ in range(4)]
    images.append(pillow.fromarray(draw.integers(0, 256, (8, 9), dtype=np.uint8)))
    images.append(images[0].convert("P"))
    labels = [0, 1, 0, 1, 1, 0]
    pictures(hugging_face, images, labels).save_to_disk(str(tmp_path / "set"))
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        folder = tmp_path / "photos" / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        image.save(folder / f"{number}.png")
    task = 'type = "binary"\nshape = [3, 6, 5]'
    party = 'label = "label"\nfeatures = ["image"]'
    found = horizontal_of(tmp_path, ["hf:./set", "hf:./other"], task, party).files[0].load()
    expected = horizontal_of(tmp_path, ["photos", "more"], task).files[0].load()
    order = np.argsort(labels, kind="stable")
    assert np.array_equal(found.features[order], expected.features)
    assert found.labels[order].tolist() == expected.labels.tolist()
    new = horizontal_of(tmp_path, ["hf:./set", "hf:./other"], task, party).files[0].load_new()
    assert np.array_equal(new.features, found.features)


@pytest.mark.parametrize("kind", ["pictures", "table"])
def test_a_set_is_loaded_once_whatever_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    told = 'label = "label"'
    if kind == "pictures":
        pytest.importorskip("PIL.Image")
        pixels = [{"mode": "L", "width": 2, "height": 1, "pixels": bytes([number, 9])} for number in range(2)]
        table = pa.table({"image": pa.array(pixels, readers._PIXELS), "label": [0, 1]})
    else:
        table = pa.table({"a": [1, 2], "b": [3, 4], "label": [0, 1]})
    loads: list[str] = []

    def load(name: str, settings: object, where: str) -> pa.Table:
        loads.append(where)
        return table

    monkeypatch.setattr(readers, "_from_hugging_face", load)
    task = 'type = "binary"\nshape = [1, 1, 2]'
    file = horizontal_of(tmp_path, ["hf:./set", "hf:./other"], task, told).files[0]
    columns = file.load().columns
    assert len(loads) == 1
    assert len(file.load_new(() if kind == "pictures" else columns).ids) == 2
    assert len(loads) == 2
    assert all(one.startswith("c0: ") for one in loads)


def test_a_set_that_is_gone_is_told_with_its_party(hugging_face: Any, tmp_path: Path) -> None:
    file = horizontal_of(
        tmp_path, ["hf:./set", "hf:./other"], 'type = "binary"\nshape = [1, 1, 2]', 'label = "label"'
    ).files[0]
    for load in (file.load, file.load_new):
        with pytest.raises(BadInput, match=r"^c0: hf:.* is no folder"):
            load()


@pytest.mark.parametrize("address", ["hf:./set", "torchvision:MNIST?root=./set"])
def test_a_folder_whose_path_would_begin_a_setting_is_refused(tmp_path: Path, address: str) -> None:
    sign = "&" if "root" in address else "?"
    with pytest.raises(BadInput, match=rf"^p: .*a{re.escape(sign)}b/set' is not allowed: its \{sign} would .*rename"):
        library_address(address, "p", tmp_path / f"a{sign}b")
    other = "&" if sign == "?" else "?"
    made = library_address(address, "p", tmp_path / f"a{other}b")
    _, name, settings = library_parts(made)
    assert str(tmp_path / f"a{other}b" / "set") == (settings.get("root") or name.removeprefix("file:"))


@pytest.mark.parametrize(
    ("mode", "told"),
    [("RGBA", "is transparent in places"), ("I", "peak"), ("LA", "is transparent in places")],
)
def test_pictures_that_would_be_others_are_refused_with_their_number(
    hugging_face: Any, tmp_path: Path, mode: str, told: str
) -> None:
    pillow = pytest.importorskip("PIL.Image")
    odd = pillow.new(mode, (5, 6))
    if mode == "I":
        odd = pillow.fromarray(np.full((6, 5), 300, np.uint16))
    images = [pillow.new("RGB", (5, 6), "red"), odd]
    pictures(hugging_face, images, [0, 1]).save_to_disk(str(tmp_path / "set"))
    task = 'type = "binary"\nshape = [3, 6, 5]\npeak = 255' if mode == "I" else 'type = "binary"\nshape = [3, 6, 5]'
    data = horizontal_of(tmp_path, ["hf:./set", "hf:./other"], task, 'label = "label"')
    with pytest.raises(BadInput, match=f"picture 1 .*{told}"):
        data.files[0].load()


@pytest.mark.parametrize(
    ("party", "told"),
    [
        ("", "label: missing; its columns are image, label"),
        ('label = "class"', "label: 'class' is no column; its columns are image, label"),
        ('label = "label"\nweight = "label"', "weight is not allowed for pictures"),
        ('label = "label"\nfeatures = ["picture"]', "'picture' is no column of its pictures"),
    ],
)
def test_pictures_have_a_label_and_nothing_else(hugging_face: Any, tmp_path: Path, party: str, told: str) -> None:
    pillow = pytest.importorskip("PIL.Image")
    pictures(hugging_face, [pillow.new("L", (2, 2)), pillow.new("L", (2, 2), 9)], [0, 1]).save_to_disk(
        str(tmp_path / "set")
    )
    data = horizontal_of(tmp_path, ["hf:./set", "hf:./b"], 'type = "binary"\nshape = [1, 2, 2]', party)
    with pytest.raises(BadInput, match=told):
        data.files[0].load()


def write_cifar(root: Path, rows: int = 20) -> np.ndarray:
    """Write a folder in the format of CIFAR-10, and return its pictures."""
    import pickle

    draw = np.random.default_rng(8)
    pixels = draw.integers(0, 256, (rows, 3, 32, 32), dtype=np.uint8)
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    names = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
    for number, name in enumerate(names):
        part = pixels[number * 4 : number * 4 + 4] if number < 5 else pixels[:4]
        with (folder / name).open("wb") as file:
            pickle.dump({"data": part.reshape(4, -1), "labels": [number % 10] * 2 + [9 - number % 10] * 2}, file)
    with (folder / "batches.meta").open("wb") as file:
        pickle.dump({"label_names": [str(one) for one in range(10)]}, file)
    return pixels


def test_pictures_of_torchvision_are_its_arrays(
    torchvision: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torchvision.CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr(importlib.import_module("torchvision.datasets.cifar"), "check_integrity", lambda *_: True)
    pixels = write_cifar(tmp_path / "here")
    task = f'type = "multiclass"\nclasses = {json.dumps(list(range(10)))}\nshape = [3, 32, 32]'
    paths = ["torchvision:CIFAR10?root=here", "torchvision:CIFAR10?root=here&train=false"]
    data = horizontal_of(tmp_path, paths, task)
    train, test = (one.load() for one in data.files)
    assert np.array_equal(train.features, pixels.astype(np.float32) / np.float32(255))
    assert np.array_equal(test.features, pixels[:4].astype(np.float32) / np.float32(255))
    assert train.labels.tolist()[:4] == [0, 0, 9, 9]
    before = digests_of_files(data.files[0])
    assert before == digests_of_files(data.files[0])
    assert len({found for _, found in (*before, *digests_of_files(data.files[1]))}) == 2


def test_a_run_of_torchvision(torchvision: Any, tmp_path: Path) -> None:
    paths = [f"torchvision:FakeData?size=12&image_size=1,8,8&num_classes=2&random_offset={n}" for n in (0, 100, 200)]
    fake = torchvision.FakeData(size=12, image_size=(1, 8, 8), num_classes=2)
    data = fedactors.horizontal(paths[:2], test=paths[2], task="binary", shape=[1, 8, 8])
    one = fedactors.simulate("horizontal", data, out=None, **SMALL)
    again = fedactors.simulate("horizontal", data, out=None, **SMALL)
    assert one.metrics == again.metrics
    block = load_description(Path(data.address)).files[0].load()  # type: ignore[union-attr]
    assert np.array_equal(block.features[3, 0], np.asarray(fake[3][0].convert("L"), np.float32) / np.float32(255))
    assert block.labels.tolist() == [int(fake[n][1]) for n in range(12)]


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("torchvision:FakeDate", "has no data set 'FakeDate'; did you mean FakeData"),
        ("torchvision:FakeData?sise=3", "sise is no setting of FakeData; did you mean size"),
        ("torchvision:CIFAR10", "root: missing: give CIFAR10\\?root="),
        ("torchvision:CIFAR10?root=nowhere", "fetch it with download=true"),
        ("torchvision:ImageFolder?root=nowhere", "give the folder as path"),
        ("torchvision:FakeData?size=3&size=4", "give each setting once"),
    ],
)
def test_what_is_no_torchvision_set_is_refused_in_one_line(
    torchvision: Any, tmp_path: Path, address: str, told: str
) -> None:
    with pytest.raises(BadInput, match=told) as refused:
        horizontal_of(tmp_path, [address, "b"], 'type = "binary"\nshape = [1, 8, 8]').files[0].load()
    assert "\n" not in str(refused.value)


# --- without the library ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "module", "extra"),
    [("hf:owner/set", "datasets", "hf"), ("torchvision:MNIST?root=here", "torchvision", "torchvision")],
)
def test_a_library_that_is_not_installed_is_named_as_an_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, module: str, extra: str
) -> None:
    for name in [one for one in sys.modules if one == module or one.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    importlib.invalidate_caches()
    with pytest.raises(FedactorsError, match=rf"^bank: {address.split('?')[0]}.*pip install 'fedactors\[{extra}\]'$"):
        source(address, tmp_path).read()


def test_torchvision_of_another_torch_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(
        'raise RuntimeError("operator torchvision::nms does not exist")'
    )
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from pathlib import Path\nfrom fedactors.data.readers import library_table\n"
        "library_table(Path('torchvision:MNIST?root=here'), 'bank')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "bank: torchvision:MNIST?root=here: torchvision cannot be imported (operator torchvision::nms" in done.stderr
    assert "install both from one index of wheels" in done.stderr


def test_a_library_s_set_is_no_data_by_itself() -> None:
    with pytest.raises(BadInput, match=r"is an address, which does not say whose rows .* name it as path of a party"):
        check_data(find_protocol("horizontal"), "hf:ylecun/mnist")
