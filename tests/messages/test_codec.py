"""The codec: what may be sent, how it is frozen and measured, and that bytes come back as they were."""

from __future__ import annotations

import contextlib
import enum
import gc
import itertools
import struct
import subprocess
import sys
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

from fedactors.config import config
from fedactors.messages.codec import (
    MAGIC,
    CodecError,
    carry,
    decode,
    encode,
    encode_parts,
    freeze,
    measure,
    message,
    message_types,
    type_name,
    wire_type,
)


@message(reveals="numbers", readers="a server")
class Numbers:
    """A message with an array."""

    sender: str
    values: np.ndarray


@message(reveals="numbers of two")
class Pair:
    """A message with messages in it."""

    left: Numbers
    right: Numbers | None
    extra: tuple[int, ...] = ()


@dataclass(frozen=True)
class Undeclared:
    """A dataclass that was never declared as a message."""

    value: int


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


def same(a: Any, b: Any) -> bool:
    """Say whether two decoded values are equal, arrays with dtype and shape, lists as tuples."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, list | tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, float) and a != a:
        return b != b
    return type(a) is type(b) and a == b


dtypes = st.sampled_from(["<f4", "<f8", ">f8", "<i8", "|u1", "|b1", "<c16", "<U3", "|S4", "<M8[s]", "<f2"])
arrays = dtypes.flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)))
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=20)
values = st.recursive(
    leaves | arrays,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5) | st.integers(-(2**62), 2**62), inner, max_size=3)
    ),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(values)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    assert same(value, decode(encode(value)))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(values)
def test_measuring_counts_what_freezing_counts(value: Any) -> None:
    frozen, size = freeze(value)
    assert measure(value) == size
    assert same(value, frozen)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(values, st.data())
def test_a_frame_cut_short_or_changed_is_refused_or_decodes_but_never_crashes(value: Any, data: st.DataObject) -> None:
    frame = encode(value)
    cut = data.draw(st.integers(0, len(frame)))
    at = data.draw(st.integers(0, len(frame) - 1))
    changed = frame[:at] + bytes([data.draw(st.integers(0, 255))]) + frame[at + 1 :]
    for foreign in (frame[:cut], changed):
        with contextlib.suppress(CodecError):
            decode(foreign)


def test_messages_nest_and_come_back_as_their_classes() -> None:
    sent = Pair(Numbers("a", np.arange(6.0).reshape(2, 3)), None, (1, 2))
    got = decode(encode(sent))
    assert type(got) is Pair
    assert type(got.left) is Numbers
    assert got.right is None
    assert got.extra == (1, 2)
    np.testing.assert_array_equal(got.left.values, sent.left.values)


@pytest.mark.parametrize(
    "number", [2**63, -(2**63) - 1, 2**64, 2**200, -(2**200), 1 << 13_500], ids=lambda n: f"{n.bit_length()} bits"
)
def test_integers_of_many_digits(number: int) -> None:
    assert decode(encode({"n": number}))["n"] == number


@pytest.mark.parametrize("array", [np.full((), 3.0), np.zeros((0,)), np.zeros((3, 0, 2), np.int8)])
def test_zero_dimensional_and_empty_arrays(array: np.ndarray) -> None:
    got = decode(encode(array))
    assert got.shape == array.shape
    assert got.dtype == array.dtype


def test_the_shape_of_an_array_without_content_counts() -> None:
    """Five numbers of somebody's choice would travel in the shape of an array of no bytes."""
    assert measure(np.zeros((0,))) == measure(np.zeros((0, 1))) == 0
    assert measure(np.zeros((0, 1, 1, 0, 1))) == 3 * 8
    assert measure(np.zeros((0, 32))) == 8
    assert measure(np.empty((12, 34, 0, 56))) == 3 * 8
    assert measure(np.empty((12, 34), "S").view("S1")[:, :0]) == 2 * 8
    assert measure(Numbers("x", np.empty((7, 0)))) == measure(Numbers("x", np.empty((0,)))) + 8
    assert measure(np.zeros((2, 3))) == 48


@pytest.mark.parametrize("dtype", ["S123456", "U123456", "M8[123456s]", "m8[123456s]"])
def test_the_dtype_of_an_array_without_content_counts(dtype: str) -> None:
    """A number of somebody's choice would travel as the length of texts, or as a unit of time."""
    assert measure(np.empty(0, dtype)) == 8


def test_a_unit_of_time_counts_beside_the_content() -> None:
    assert measure(np.zeros(3, "m8[123456s]")) == 4 * 8


def test_buffers_are_aligned_and_read_only_views() -> None:
    frame = encode((np.arange(3, dtype=np.int8), np.arange(5.0), np.arange(7, dtype=np.float32)))
    whole = np.frombuffer(frame, np.uint8)
    for array in decode(frame):
        offset = array.ctypes.data - whole.ctypes.data
        assert offset % 64 == 0
        assert 0 < offset < len(frame)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


class Bytes(bytearray):
    """Bytes that a weak reference may know."""


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def test_a_frame_goes_with_the_last_array_that_lies_in_it(no_collection: None) -> None:
    for value in (np.ones(1000), Pair(Numbers("a", np.ones(1000)), None)):
        frame = Bytes(encode(value))
        known, found = weakref.ref(frame), decode(frame)
        del frame
        assert known() is not None
        del found
        assert known() is None


def test_an_array_goes_with_the_last_part_of_its_frame(no_collection: None) -> None:
    content = Bytes(8000)
    known, parts = weakref.ref(content), encode_parts(Numbers("a", np.frombuffer(content)))
    del content
    assert known() is not None
    del parts
    assert known() is None


def test_parts_do_not_copy_arrays_and_join_to_the_frame() -> None:
    array = np.arange(1000.0)
    parts = encode_parts(array)
    views = [part for part in parts if isinstance(part, memoryview)]
    assert b"".join(parts) == encode(array)
    assert len(encode(array)) % 64 == 0
    array[0] = 77.0
    assert np.frombuffer(views[0], np.float64)[0] == 77.0


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(2),
        Undeclared(1),
        object(),
        np.array([object()]),
        np.zeros(2, dtype=[("a", "f8")]),
        {"inner": [Undeclared(2)]},
        OrderedDict(a=1),
        {1, 2},
        np.ma.masked_array([1.0, 2.0], mask=[True, False]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_may_not_be_sent(value: Any) -> None:
    with pytest.raises(CodecError, match="may not be sent"):
        freeze(value)


@pytest.mark.parametrize("value", [torch.zeros(2), Undeclared(1), np.array([object()])])
def test_what_may_not_be_encoded(value: Any) -> None:
    with pytest.raises(CodecError):
        encode((1, value))


def test_foreign_bytes() -> None:
    for foreign in (b"", b"FDA", b"GIF89a" * 20, MAGIC + struct.pack("<I", 2**31) + b"\0" * 100):
        with pytest.raises(CodecError):
            decode(foreign)


def test_a_frame_cut_in_its_array_is_refused() -> None:
    frame = encode(np.arange(1000.0))
    with pytest.raises(CodecError):
        decode(frame[:2000])


def test_a_message_class_unknown_here_is_refused() -> None:
    frame = encode(Numbers("a", np.zeros(1)))
    for other in (b"/Nombres", b":Numbers", b"/numbers"):
        with pytest.raises(CodecError, match="is not a message type known in this process"):
            decode(frame.replace(b"/Numbers", other))
    assert b"tests.messages.test_codec/Numbers" in frame


def test_freezing_copies_what_can_still_be_written_and_only_once() -> None:
    array = np.arange(4.0)
    frozen, size = freeze(Numbers("bank", array))
    assert size == 4 * 8 + len("bank")
    assert not np.shares_memory(frozen.values, array)
    array[0] = 99.0
    assert frozen.values[0] == 0.0
    with pytest.raises(ValueError, match="read-only"):
        frozen.values[0] = 1.0
    again, _ = freeze(frozen)
    assert again is frozen


def test_a_read_only_view_of_a_writable_array_is_copied() -> None:
    array = np.arange(4.0)
    view = array[:2]
    view.setflags(write=False)
    frozen, _ = freeze(view)
    array[0] = 5.0
    assert frozen[0] == 0.0


def test_arrays_arrive_in_one_piece_as_on_the_wire() -> None:
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    array.setflags(write=False)
    frozen, _ = freeze(array)
    assert frozen.flags.c_contiguous
    assert decode(encode(array)).flags.c_contiguous


def test_lists_arrive_as_tuples_and_enumerations_and_scalars_as_plain_values() -> None:
    value = [Colour.RED, Level.HIGH, np.float32(0.5), np.int64(3), np.bool_(True), {"k": [1]}]
    frozen, _ = freeze(value)
    assert frozen == ("red", 3, 0.5, 3, True, {"k": (1,)})
    assert [type(v) for v in frozen[:5]] == [str, int, float, int, bool]
    got = decode(encode(value))
    assert got == frozen
    assert [type(v) for v in got[:5]] == [str, int, float, int, bool]


def test_texts_count_as_utf8_and_measuring_copies_nothing() -> None:
    assert measure("naïve") == 6
    assert measure(("abc", b"12", 1, 2.0, None)) == 5 + 2 * 8 + 1
    array = np.zeros(10)
    assert measure(Numbers("x", array)) == 81
    assert array.flags.writeable


def test_the_privacy_review_of_a_module() -> None:
    import sys

    found = message_types(sys.modules[__name__])
    assert [cls.__name__ for cls in found] == ["Nine", "Numbers", "Pair"]
    assert Numbers.__message__.readers == "a server"  # type: ignore[attr-defined]
    assert type_name(Numbers("a", np.zeros(1)), "method") == "Numbers"
    assert type_name(None, "method") == "method()"


@message(reveals="nine numbers and more")
class Nine:
    """Nine numbers of its own, and what is in containers."""

    a: int
    b: int
    c: int
    d: int
    e: float
    f: float
    g: bool
    h: float
    i: float
    inside: Any = None


NINE = (1, 2, 3, 4, 5.0, 6.0, True, 8.0, 9.0)


@pytest.mark.parametrize(
    ("inside", "num_bytes"),
    [
        (None, 8),  # eight numbers ride in the header, the ninth does not
        (1.0, 16),
        ((1.0,) * 1000, 8 + 8000),
        ([1, 2.0, True, None], 8 + 24 + 1),
        ((None,) * 1000, 8 + 1000),
        (1 << 8000, 8 + 1001),
        ((Level.HIGH, np.bool_(True)), 8 + 16),
        ({"name": 1.0, 7: (2, "ab")}, 8 + 4 + 8 + 8 + 8 + 2),
        (Nine(*NINE), 8 + 9 * 8),  # a message inside of another has no header of its own
        (np.float64(1.0), 16),
        (np.zeros(3), 8 + 24),
    ],
)
def test_numbers_count_wherever_they_are(inside: Any, num_bytes: int) -> None:
    assert measure(Nine(*NINE, inside)) == num_bytes


@wire_type
class Described:
    """What an actor may be built with."""

    path: str
    sizes: tuple[int, ...]


@config
class Settings:
    """A configuration."""

    rate: float = 0.5
    inner: tuple[str, ...] = ("a", "b")


def test_what_an_actor_is_built_with_comes_back_equal_and_is_no_message() -> None:
    given = (Described(path="x", sizes=(1, 2)), Settings(rate=1e-15), {"k": [1, (2,)]})
    found = carry(given)
    assert found == (given[0], given[1], {"k": (1, (2,))})
    assert found[0] is not given[0]
    for value in given[:2]:
        with pytest.raises(CodecError, match="may not be sent"):
            freeze(value)
        with pytest.raises(CodecError, match="may not be sent"):
            encode(value)
        with pytest.raises(CodecError, match="not a message type known"):
            decode(encode(value, arguments=True))


@pytest.mark.parametrize("number", [np.float64(2.0), np.int32(2), np.bool_(True), Level.HIGH, 2, 2.0])
def test_a_number_rides_in_the_header_whatever_its_kind(number: Any) -> None:
    assert measure(Nine(number, *NINE[1:8], None)) == 0
    frozen, size = freeze(Nine(number, *NINE[1:8], None))
    assert size == 0
    assert type(frozen.a) in (int, float, bool)


def test_a_large_integer_counts_in_full_also_as_a_field_of_its_own() -> None:
    assert measure(Nine(1 << 80_000, *NINE[1:8], None)) == 10_001


def hostile(tree: bytes, offsets: tuple[int, ...] = (0,)) -> bytes:
    header = msgpack.packb((tree, offsets))
    return struct.pack("<4sI", MAGIC, len(header)) + header + bytes(128)


def array_of(dtype: object, *shape: int) -> bytes:
    return bytes(msgpack.packb(msgpack.ExtType(1, msgpack.packb((0, dtype, shape)))))


def test_messages_nest_so_deep_and_no_deeper() -> None:
    """Two hundred in each other, two kilobytes, took more of the stack than a process has, and ended it."""
    nested = b""
    for _ in range(200):
        within = [msgpack.ExtType(2, nested)] if nested else []
        nested = msgpack.packb(("tests.messages.test_codec/Pair", within))
    script = "import sys; from fedactors.messages.codec import decode; decode(sys.stdin.buffer.read())"
    frame = hostile(msgpack.packb(msgpack.ExtType(2, nested)))
    done = subprocess.run([sys.executable, "-c", script], input=frame, capture_output=True, timeout=60)
    assert (done.returncode, b"messages within messages, deeper than 32" in done.stderr) == (1, True), done
    sent: Any = Pair(Numbers("x", np.zeros(1)), None)
    for _ in range(5):
        sent = Pair(sent, None)
    assert decode(encode(sent)).left.left.left.left.left.left.sender == "x"


@pytest.mark.slow
@pytest.mark.drawn(4)
@pytest.mark.parametrize(
    ("tree", "said"),
    [
        (array_of("|u1", *[2**63] * 40_000), "too many dimensions"),  # their product took seconds
        (array_of("i4," * 100_000, 1), "no dtype"),
        (array_of(None, 1), "no dtype"),
        (array_of("<f4", 2**40, 0), "no content and sizes"),  # whoever makes something for each row
        (array_of("<f4", 2**20, 0, 2**20), "no content and sizes"),
        (b"\xdd" + struct.pack(">I", 1 << 22) + b"\x80" * (1 << 22), "take more than 671088640 bytes of memory"),
        (b"\xdd" + struct.pack(">I", 1 << 22) + b"\x91\xc0" * (1 << 22), "take more than 671088640 bytes of memory"),
        (b"\xdd" + struct.pack(">I", 1 << 25) + b"\xc0" * (1 << 25), "exceeds max_array_len"),
    ],
    ids=["sizes", "a long dtype", "no dtype", "rows of nothing", "nothing of nothing", "mappings", "tuples", "nils"],
)
def test_what_costs_much_more_than_it_weighs_is_refused_soon(tree: bytes, said: str) -> None:
    frame, begun = hostile(tree), time.process_time()
    with pytest.raises(CodecError, match=said):
        decode(frame)
    assert time.process_time() - begun < 20.0  # minutes without the bounds; a busy machine takes some seconds


def test_a_large_frame_of_many_values_comes_back() -> None:
    sent = {"rows": tuple(range(1 << 20)), "of": Numbers("x" * (1 << 20), np.zeros((0, 1 << 20)))}
    got = decode(encode(sent))
    assert (got["rows"], got["of"].values.shape) == (sent["rows"], (0, 1 << 20))


@pytest.mark.parametrize("number", [100, 3_600])
@pytest.mark.parametrize("kind", ["tuples", "numbers"])
def test_keys_that_hash_alike_are_refused_before_they_are_compared(kind: str, number: int) -> None:
    """Python hashes -1 as -2, and numbers modulo 2^61 - 1: of n such keys a dictionary compares n^2 / 2 pairs."""
    tuples = itertools.islice(itertools.product((-1, -2), repeat=12), number)
    keys = tuples if kind == "tuples" else ((2**61 - 1) * (factor + 2**64) for factor in range(number))
    frame = encode(dict.fromkeys(keys, 0))
    began = time.process_time()
    with pytest.raises(CodecError, match=f"a mapping of {number} keys that hash alike"):
        decode(frame)
    assert time.process_time() - began < 0.2


def test_ordinary_keys_are_none_that_hash_alike() -> None:
    for keys in (range(5_000), map(str, range(5_000)), itertools.product(range(70), range(70)), range(-2, 98)):
        made = dict.fromkeys(keys, 1)
        assert decode(encode(made)) == made
