"""Image data sets: digits, Fashion-MNIST and the CIFAR families, kept as bytes until a client scales its own.

Shapes: N images, C channels, H rows, W columns.
"""

from __future__ import annotations

import functools
import gzip
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedactors.data.catalogue import describe
from fedactors.data.storage import locate
from fedactors.errors import BadInput

Bytes = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class ImageDataset:
    """Training and test images of one data set, read-only."""

    train_images: Bytes
    train_labels: Labels
    test_images: Bytes
    test_labels: Labels
    num_classes: int
    peak: float
    """Largest value of a pixel: 16 for digits, 255 elsewhere."""
    mean: tuple[float, ...]
    """Published mean of each channel, in units of `peak`: a public constant, so that no client's data enter it."""
    deviation: tuple[float, ...]

    def scaled(self, images_NCHW: Bytes) -> NDArray[np.float32]:
        """Return images as float32, divided by `peak`, less `mean`, over `deviation`."""
        mean = np.asarray(self.mean, np.float32)[:, None, None]
        deviation = np.asarray(self.deviation, np.float32)[:, None, None]
        made: NDArray[np.float32] = (images_NCHW.astype(np.float32) / np.float32(self.peak) - mean) / deviation
        return made


@functools.lru_cache(maxsize=2)
def load_images(name: str) -> ImageDataset:
    """Load an image data set; repeated calls in one process share the arrays.

    Raises:
        BadInput: unknown name, or a file that does not hold what the catalogue states.
        DataMissing: a file is not on this machine.
    """
    dataset = describe(name)
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    if name == "digits":
        parts = _digits()
        peak, mean, deviation = 16.0, (0.3053,), (0.3760,)
    elif name == "fashion-mnist":
        parts = _fashion_mnist()
        peak, mean, deviation = 255.0, (0.2860,), (0.3530,)
    elif name in ("cifar10", "cifar10-subset", "cifar100"):
        parts = _cifar(name, locate(name, dataset.files[0].path))
        peak, mean, deviation = 255.0, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    else:
        raise BadInput(f"data: {name!r} is of kind {dataset.kind}; a data set of images is needed here")
    train_images, train_labels, test_images, test_labels = parts
    if len(train_images) != dataset.rows or len(train_labels) != dataset.rows or len(test_images) != len(test_labels):
        raise BadInput(f"{name}: the files hold {len(train_images)} training images, expected {dataset.rows}")
    for array in parts:
        array.flags.writeable = False
    return ImageDataset(
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
        num_classes=dataset.num_classes,
        peak=peak,
        mean=mean,
        deviation=deviation,
    )


def _digits() -> tuple[Bytes, Labels, Bytes, Labels]:
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images, labels = found.images.astype(np.uint8)[order, None], found.target.astype(np.int64)[order]
    num_test = len(order) // 5 + 1  # 360 of 1,797
    return images[num_test:].copy(), labels[num_test:].copy(), images[:num_test].copy(), labels[:num_test].copy()


def _idx(path: Path) -> Bytes:
    """Read an idx file: magic number 0, 0, 8 (bytes), rank; then the sizes as big-endian words; then the values."""
    with gzip.open(path) as stream:
        raw = stream.read()
    rank = raw[3]
    shape = tuple(int(size) for size in np.frombuffer(raw, ">u4", rank, 4))
    if raw[:3] != b"\0\0\x08" or len(raw) != 4 + 4 * rank + int(np.prod(shape)):
        raise BadInput(f"{path}: not an idx file of bytes")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * rank).reshape(shape)


def _fashion_mnist() -> tuple[Bytes, Labels, Bytes, Labels]:
    def read(part: str, what: str) -> Bytes:
        return _idx(locate("fashion-mnist", f"fashion_mnist/{part}-{what}-ubyte.gz"))

    return (
        read("train", "images-idx3")[:, None],
        read("train", "labels-idx1").astype(np.int64),
        read("t10k", "images-idx3")[:, None],
        read("t10k", "labels-idx1").astype(np.int64),
    )


def _cifar(name: str, path: Path) -> tuple[Bytes, Labels, Bytes, Labels]:
    """Read the official binary layout: label byte (two in CIFAR-100: coarse, fine), then 3,072 bytes of an image."""
    label_bytes = 2 if name == "cifar100" else 1
    train: list[Bytes] = []
    test: list[Bytes] = []
    with tarfile.open(path) as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            stem = Path(member.name).name
            stream = archive.extractfile(member) if stem.endswith(".bin") else None
            if stream is not None:
                records = np.frombuffer(stream.read(), np.uint8).reshape(-1, label_bytes + 3072)
                (test if stem.startswith("test") else train).append(records)
    if not train or not test:
        raise BadInput(f"{path}: holds no {'test' if train else 'training'} batch in the binary layout")
    whole_train, whole_test = np.concatenate(train), np.concatenate(test)

    def split(records: Bytes) -> tuple[Bytes, Labels]:
        images = np.ascontiguousarray(records[:, label_bytes:]).reshape(-1, 3, 32, 32)
        return images, records[:, label_bytes - 1].astype(np.int64)

    return (*split(whole_train), *split(whole_test))
