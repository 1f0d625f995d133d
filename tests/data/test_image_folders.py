"""Images that clients bring: what is read of them, and what is refused in one line."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from PIL import Image

from fedactors.config import build
from fedactors.data.description import load_description
from fedactors.data.readers import ImageFolder, read_image_folder
from fedactors.errors import BadInput
from fedactors.launch import load_data
from fedactors.plugins import find_protocol
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.simulation.runtime import SimulatedRuntime

HEAD = """[task]
type = "binary"
layout = "horizontal"
classes = ["dark", "light"]
shape = [1, 8, 8]
test = "test.npz"
"""
VARIED = np.arange(192.0).reshape(3, 8, 8) / 256


def paint(folder, name, number):
    """Write a picture of 16 x 8 pixels that is dark or light on its left half."""
    class_dir = folder / name
    class_dir.mkdir(parents=True, exist_ok=True)
    pixels = np.full((8, 16, 3), 100, np.uint8)
    pixels[:, :8] = 20 * number if name == "dark" else 255 - 20 * number
    Image.fromarray(pixels).save(class_dir / f"{number}.png")


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(3):
        paint(tmp_path / "a", "dark", number)
        paint(tmp_path / "a", "light", number)
    images = rng.integers(0, 256, (6, 8, 8)).astype(np.uint8)
    labels = np.where(images.mean(axis=(1, 2)) > 127, "light", "dark")
    np.savez(tmp_path / "b.npz", images=images, labels=labels)
    np.savez(tmp_path / "test.npz", images=np.stack([np.zeros((8, 8)), np.ones((8, 8))]), labels=["dark", "light"])
    (tmp_path / "parties.toml").write_text(f'{HEAD}[parties.a]\npath = "a"\n[parties.b]\npath = "b.npz"\n')
    return tmp_path


def described(folder, old="", new=""):
    path = folder / "parties.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return load_description(path)


def test_a_folder_for_each_class(folder):
    data = described(folder)
    assert data.shape == (1, 8, 8)
    found = data.client(0).load()
    assert found.features.shape == (6, 1, 8, 8)
    assert found.features.dtype == np.float32
    assert found.labels.tolist() == data.client(0).labels().tolist() == [0, 0, 0, 1, 1, 1]
    # brought to the shape: the left half of a picture is the left half of its sample
    np.testing.assert_allclose(
        found.features[:, 0, :, 0] * 255, [[0] * 8, [20] * 8, [40] * 8, [255] * 8, [235] * 8, [215] * 8]
    )
    np.testing.assert_allclose(found.features[:, 0, :, 7] * 255, 100)


def test_arrays_and_public_scales(folder):
    raw = np.load(folder / "b.npz")
    data = described(folder, "shape = [1, 8, 8]", "shape = [1, 8, 8]\nmean = [0.5]\ndeviation = [0.25]")
    found = data.client(1).load()
    np.testing.assert_allclose(found.features[:, 0], (raw["images"] / 255 - 0.5) / 0.25, rtol=1e-5, atol=1e-6)
    assert found.labels.tolist() == [int(text == "light") for text in raw["labels"]]
    assert data.test().load().features[:, 0, 0, 0].tolist() == [-2.0, 2.0]  # numbers are no bytes: peak is 1


def test_a_table_with_a_column_for_each_pixel(tmp_path):
    head = HEAD.replace("[1, 8, 8]", "[1, 2, 2]\npeak = 10").replace("test.npz", "test.csv")
    for name in ("a", "b", "test"):
        (tmp_path / f"{name}.csv").write_text("p,q,r,s,y\n1,2,3,4,dark\n5,6,7,8,light\n")
    parties = "".join(f'[parties.{name}]\npath = "{name}.csv"\nlabel = "y"\n' for name in ("a", "b"))
    (tmp_path / "parties.toml").write_text(head + parties)
    found = load_description(tmp_path / "parties.toml").client(0).load()
    np.testing.assert_allclose(found.features, np.arange(1, 9).reshape(2, 1, 2, 2) / 10, rtol=1e-6)
    (tmp_path / "a.csv").write_text("p,q,r,y\n1,2,3,dark\n")
    with pytest.raises(BadInput, match=r"a: .*a.csv: 3 feature columns do not fill task.shape \[1, 2, 2\]"):
        load_description(tmp_path / "parties.toml").client(0).load()


def test_images_to_predict_need_no_class_and_a_damaged_one_is_told(folder):
    (folder / "a" / "broken.png").write_bytes(b"no picture")
    found = described(folder).client(0).load_new()
    assert found.ids.tolist() == ["broken.png", *(f"{n}/{i}.png" for n in ("dark", "light") for i in range(3))]
    assert list(found.unusable) == [0]
    assert found.unusable[0] == "cannot be read: no image of a known kind"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[1, 8, 8]", "[1, 8, 8, 8]", "task.shape"),
        ("[1, 8, 8]", "[1, 8, 0]", "task.shape"),
        ("shape = [1, 8, 8]", "shape = [64]\npeak = 255", "peak"),
        ("[1, 8, 8]", "[4000, 4000, 4000]", "task.shape"),
        ("shape = [1, 8, 8]", "peak = 255", "task.peak: 255 is not allowed without shape"),
        ("[1, 8, 8]", "[1, 8, 8]\nmean = [0.5, 0.5]", "task.mean"),
        ("[1, 8, 8]", "[1, 8, 8]\ndeviation = [0]", "task.deviation"),
        ('"a"\n', '"a"\nfeatures = ["p"]\n', "parties.a.features: .* no table"),
        ('"a"\n', '"a"\nlabel = "y"\n', "label: None, y is not allowed"),
    ],
)
def test_wrong_descriptions_are_named(folder, old, new, said):
    with pytest.raises(BadInput, match=said) as caught:
        described(folder, old, new)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda a: (a / "dark" / "notes.txt").write_text("x"), "notes.txt is no image"),
        (lambda a: (a / "dark" / "0.png").write_bytes(b"x"), "a: .*0.png cannot be read"),
        (lambda a: (a / "dark").rename(a / "grey"), "label 'grey' is not allowed: classes are dark, light"),
        (lambda a: (a / "dark" / "0.png").rename(a / "0.png"), "a folder for each class"),
        (lambda a: a.rename(a.with_name("gone")), "neither a folder nor a file"),
    ],
)
def test_folders_that_are_none_of_this_kind(folder, spoil, said):
    spoil(folder / "a")
    with pytest.raises(BadInput, match=said):
        described(folder).client(0).load()


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"images": np.zeros((3, 8, 8))}, "no array 'labels'"),
        ({"labels": np.zeros(3)}, "no array 'images'"),
        ({"images": np.zeros((3, 8, 9)), "labels": ["dark"] * 3}, r"images of shape \[8, 9\]"),
        ({"images": VARIED, "labels": ["dark"] * 2}, r"labels of shape \[2\] for 3 samples"),
        ({"images": np.full((3, 8, 8), np.nan), "labels": ["dark"] * 3}, "number 0 holds values that are NaN"),
        ({"images": VARIED, "labels": ["dark", "grey", "dark"]}, "label 'grey'"),
        ({"images": np.zeros((0, 8, 8)), "labels": []}, "images: 0 of type"),
        ({"images": np.zeros((3, 8, 8)), "labels": ["dark"] * 3}, "all 3 images are equal"),
        ({"images": (VARIED * 256).astype(np.int32) * 250, "labels": ["dark"] * 3}, "type int32 .* such as peak = 255"),
        ({"images": np.full((3, 8, 8), "x"), "labels": ["dark"] * 3}, "give numbers"),
    ],
)
def test_arrays_that_are_none_of_this_kind(folder, arrays, said):
    np.savez(folder / "b.npz", **arrays)
    with pytest.raises(BadInput, match=said):
        described(folder).client(1).load()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("horizontal", {"num_rounds": 2, "model": "cnn8"}),
        (
            "nebulafl",
            {
                "num_containers": 2, "num_centers": 2, "active_per_center": 1, "duration": 60.0,
                "rotation_interval": 20.0, "evaluation_interval": 30.0, "dirichlet": None, "local_epochs": 1,
            },
        ),
    ],
)  # fmt: skip
def test_both_horizontal_protocols_train_on_images(folder, name, settings):
    protocol = find_protocol(name)
    config = build(protocol.Config, settings)
    data = load_data(protocol, config, str(folder / "parties.toml"), 0)
    runtime = SimulatedRuntime(seed=0, recorder=MemoryRecorder())
    result = runtime.execute(lambda: protocol.run(config, data, runtime))
    assert 0 <= result.metrics["test/accuracy"] <= 1


GREYS = np.linspace(0, 1, 64).reshape(8, 8)
TRANSPARENT = np.dstack([np.zeros((8, 8, 3)), 255 * GREYS]).astype(np.uint8)
OPAQUE = np.dstack([np.full((8, 8, 3), 255 * GREYS[..., None]), np.full((8, 8), 255)]).astype(np.uint8)
BYTES, WORDS = (255 * GREYS).astype(np.uint8), (65535 * GREYS).astype(np.uint16)


def write_all(folder, image, ending, **options):
    """Put one image, and one turned round that differs from it, where the classes of a client are."""
    for name, one in (("dark", image), ("light", image.transpose(Image.Transpose.ROTATE_180))):
        (folder / name).mkdir(parents=True, exist_ok=True)
        one.save(folder / name / f"0.{ending}", **options)


def readings(tmp_path, image, ending, shape="[1, 8, 8]", **options):
    """Return what training and prediction read of a client's first image: its values, or what is said."""
    for client in ("a", "b"):
        write_all(tmp_path / client, image, ending, **options)
    parties = "".join(f'[parties.{client}]\npath = "{client}"\n' for client in ("a", "b"))
    (tmp_path / "parties.toml").write_text(HEAD.replace("shape = [1, 8, 8]", f"shape = {shape}") + parties)
    data = load_description(tmp_path / "parties.toml")
    found = []
    for load in (data.client(0).load, data.client(0).load_new):
        try:
            found.append(load().features[0])
        except BadInput as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize(
    ("image", "ending"),
    [
        (Image.fromarray(BYTES), "png"),
        (Image.fromarray(BYTES), "bmp"),
        (Image.fromarray(WORDS), "png"),
        (Image.fromarray(WORDS), "tif"),
        (Image.fromarray(np.dstack([BYTES] * 3)), "png"),
        (Image.fromarray(OPAQUE), "png"),
        (Image.fromarray(OPAQUE).convert("LA"), "png"),
        (Image.fromarray(BYTES).convert("P"), "png"),
        (Image.fromarray(BYTES).convert("P"), "gif"),
    ],
    ids=lambda value: getattr(value, "mode", value),
)
def test_whatever_holds_the_same_greys_is_the_same_sample(tmp_path, image, ending):
    for found in readings(tmp_path, image, ending):
        np.testing.assert_allclose(found[0], GREYS, atol=0.005)
    for found in readings(tmp_path, image, ending, shape="[3, 8, 8]"):
        np.testing.assert_allclose(found, np.stack([GREYS] * 3), atol=0.005)


def test_one_bit_is_black_or_white(tmp_path):
    for found in readings(tmp_path, Image.fromarray(GREYS > 0.5), "png"):
        assert set(np.unique(found)) == {0.0, 1.0}


@pytest.mark.parametrize("values", [GREYS.astype(np.float32) * 40, (GREYS * 40).round().astype(np.int32)])
def test_numbers_without_a_largest_value_need_a_peak(tmp_path, values):
    for said in readings(tmp_path, Image.fromarray(values), "tiff"):
        assert "whose largest value no file tells; give it under [task], such as peak" in said
    for found in readings(tmp_path, Image.fromarray(values), "tiff", shape="[1, 8, 8]\npeak = 40"):
        np.testing.assert_allclose(found[0], GREYS, atol=0.02)


def frames():
    return [Image.fromarray(BYTES), Image.fromarray(BYTES.T.copy())]


@pytest.mark.parametrize(
    ("image", "ending", "options", "said"),
    [
        (Image.fromarray(np.dstack([BYTES] * 4), "CMYK"), "jpg", {}, "is of mode CMYK, the colours of print; save it"),
        (Image.fromarray(TRANSPARENT), "png", {}, "transparent in places (mode RGBA)"),
        (Image.fromarray(TRANSPARENT).convert("LA"), "png", {}, "transparent in places (mode LA)"),
        (frames()[0], "gif", {"save_all": True, "append_images": frames()}, "has 2 frames or pages"),
        (frames()[0], "tif", {"save_all": True, "append_images": frames()[1:]}, "has 2 frames or pages"),
        (Image.fromarray(np.full((8, 8), 7, np.uint8)), "png", {}, "all 2 images are equal once read"),
    ],
)
@pytest.mark.filterwarnings("ignore:'mode' parameter")
def test_images_that_would_be_others_are_refused_with_file_and_reason(tmp_path, image, ending, options, said):
    training, prediction = readings(tmp_path, image, ending, **options)
    # equal images teach nothing, and each of them can be predicted
    for heard in (training,) if "images are equal" in said else (training, prediction):
        assert said in heard
        assert heard.startswith("a: ")
        assert "\n" not in heard


def test_transparency_is_a_channel_where_the_shape_has_four(tmp_path):
    for found in readings(tmp_path, Image.fromarray(TRANSPARENT), "png", shape="[4, 8, 8]"):
        np.testing.assert_allclose(found[3], GREYS, atol=0.005)
    for said in readings(tmp_path, Image.fromarray(WORDS), "png", shape="[4, 8, 8]"):
        assert "has one channel (mode I;16), and task.shape asks for 4" in said


def test_a_peak_of_bytes_is_none_of_words(tmp_path):
    for said in readings(tmp_path, Image.fromarray(WORDS), "png", shape="[1, 8, 8]\npeak = 255"):
        assert "holds 16 bits, and peak = 255 is that of bytes" in said


def test_images_are_turned_as_their_camera_was_held(tmp_path):
    turned = Image.fromarray(BYTES).transpose(Image.Transpose.ROTATE_90)
    exif = turned.getexif()
    exif[274] = 6  # to be turned clockwise to be seen
    for found in readings(tmp_path, turned, "png", exif=exif):
        np.testing.assert_allclose(found[0], GREYS, atol=0.005)


def a_tiff(values, bits, kind):
    """Return a TIFF of one strip whose values are of a kind: 1 whole numbers from 0 on, 2 with a sign, 3 floats."""
    content = values.tobytes()
    height, width = values.shape
    tags = [(256, width), (257, height), (258, bits), (259, 1), (262, 1), (273, 8), (277, 1), (278, height)]
    tags += [(279, len(content)), (339, kind)]
    made = b"II*\0" + struct.pack("<I", 8 + len(content)) + content + struct.pack("<H", len(tags))
    return made + b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags) + b"\0" * 4


@pytest.mark.parametrize(
    ("values", "kind", "said"),
    [
        (np.array([[-128, -1], [0, 127]], np.int8), 2, "bytes from -128 to 127, which Pillow reads as 0 to 255"),
        (np.array([[0, 2**31], [1, 2**32 - 1]], np.uint32), 1, r"2\^31 or more, which Pillow reads as negative"),
        (np.array([[0, 200], [1, 255]], np.uint8), 1, ""),
        (np.array([[-5, 200], [1, 255]], np.int32), 2, ""),
        (np.array([[0, 2**30], [1, 2**31 - 128]], np.uint32), 1, ""),
    ],
)
def test_numbers_of_a_tiff_that_pillow_reads_as_others_are_refused(folder, values, kind, said):
    for name, one in (("a", values), ("b", values[::-1].copy())):
        (folder / "odd" / name).mkdir(parents=True)
        (folder / "odd" / name / "0.tif").write_bytes(a_tiff(one, 8 * one.itemsize, kind))
    peak = 255.0 if values.itemsize > 1 else None
    asked = ImageFolder(shape=(1, 2, 2), peak=peak)
    if said:
        with pytest.raises(BadInput, match=said):
            read_image_folder(folder / "odd", "p", asked)
    else:
        found = read_image_folder(folder / "odd", "p", asked).images[0, 0]
        np.testing.assert_allclose(found, values / 255, rtol=1e-6)


@pytest.mark.parametrize(
    ("images", "peak", "said"),
    [
        (VARIED * 256, None, "hold whole numbers up to 191, as bytes do, .* such as peak = 255, or peak = 1"),
        (VARIED, 255.0, "hold numbers up to 0.746.*, and peak = 255 is that of whole numbers; leave peak out"),
        (VARIED * 256, 255.0, ""),
        (VARIED * 256, 1.0, ""),
        (VARIED * 256 - 100, None, ""),
        (VARIED * 255.5, None, ""),
        (VARIED, None, ""),
    ],
)
def test_floats_that_may_be_bytes_are_asked_for_their_largest_value(folder, images, peak, said):
    np.savez(folder / "c.npz", images=images, labels=np.arange(3))
    asked = ImageFolder(shape=(1, 8, 8), peak=peak)
    for is_new in (False, True):
        if said:
            with pytest.raises(BadInput, match=said):
                read_image_folder(folder / "c.npz", "p", asked, is_new=is_new)
        else:
            found = read_image_folder(folder / "c.npz", "p", asked, is_new=is_new).images[:, 0]
            np.testing.assert_allclose(found, images / (peak or 1), rtol=1e-6)
