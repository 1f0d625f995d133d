"""Each field of a message that arrives is of the kind that its annotation names, or the message is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from fedactors.messages.codec import decode, encode, freeze, message
from fedactors.messages.fields import (
    Dimensions,
    UnknownAnnotation,
    check_of,
    checks_of,
    in_words,
    wrong_in,
    wrong_size,
)

Floats = NDArray[np.floating[Any]]
Matrix = np.ndarray[tuple[int, int], np.dtype[np.float32]]


@message(reveals="a test")
class Inner:
    """Inside of others."""

    number: int


@message(reveals="a test")
class Fields:
    """A field of every kind."""

    count: int = 0
    share: float = 0.0
    flag: bool = False
    word: str = ""
    raw: bytes = b""
    nothing: None = None
    maybe: int | None = None
    how: Literal["a", "b", 3] = "a"
    values: Floats | Inner = field(default_factory=lambda: Inner(0))
    indices: NDArray[np.int64 | np.int32] = field(default_factory=lambda: np.zeros(0, np.int64))
    matrix: Matrix | None = None
    anyway: NDArray[Any] | np.ndarray = field(default_factory=lambda: np.zeros(0))
    pair: tuple[int, str] = (0, "")
    many: tuple[float, ...] = ()
    listed: Sequence[Inner] = ()
    named: Mapping[str, tuple[int, ...]] | None = None
    free: Any = None


RIGHT: list[dict[str, Any]] = [
    {"count": -(2**80), "share": float("nan"), "flag": True, "word": "x", "raw": b"x", "maybe": 3},
    {"share": 1, "how": 3, "values": np.zeros(3, np.float16)},
    {"values": np.zeros((2, 2)), "indices": np.zeros(2, np.int32), "matrix": np.zeros((2, 2), np.float32)},
    {"anyway": np.array(["a"]), "pair": (1, "x"), "many": (1.0, 2, float("inf")), "listed": [Inner(1), Inner(2)]},
    {"named": {"a": (1, 2), "b": ()}, "free": {"x": (1, [Inner(1)])}},
    {"count": np.int64(3), "share": np.float32(0.5), "flag": np.bool_(True), "many": [1.0]},
]
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"count": "3"}, ".count", "int"),
    ({"count": float("nan")}, ".count", "int"),
    ({"count": 3.0}, ".count", "int"),
    ({"count": True}, ".count", "int"),
    ({"count": None}, ".count", "int"),
    ({"count": np.zeros(1)}, ".count", "int"),
    ({"share": True}, ".share", "float"),
    ({"share": "nan"}, ".share", "float"),
    ({"flag": 1}, ".flag", "bool"),
    ({"word": b"x"}, ".word", "str"),
    ({"raw": "x"}, ".raw", "bytes"),
    ({"nothing": 0}, ".nothing", "None"),
    ({"maybe": 3.0}, ".maybe", "int | None"),
    ({"how": "c"}, ".how", "Literal['a', 'b', 3]"),
    ({"how": 3.0}, ".how", "Literal['a', 'b', 3]"),
    ({"how": np.zeros(2)}, ".how", "Literal['a', 'b', 3]"),
    ({"values": np.zeros(3, np.int64)}, ".values", "floating"),
    ({"values": np.zeros(3, complex)}, ".values", "floating"),
    ({"values": (1.0, 2.0)}, ".values", "floating"),
    ({"values": Inner("x")}, ".values.number", "int"),  # type: ignore[arg-type]
    ({"indices": np.zeros(3, np.int16)}, ".indices", "int64"),
    ({"matrix": np.zeros((2, 2))}, ".matrix", "float32"),
    ({"matrix": np.zeros(4, np.float32)}, ".matrix", "float32"),
    ({"anyway": 1.0}, ".anyway", "ndarray"),
    ({"pair": (1,)}, ".pair", "tuple[int, str]"),
    ({"pair": (1, "x", 2)}, ".pair", "tuple[int, str]"),
    ({"pair": (1, 2)}, ".pair[1]", "str"),
    ({"pair": "1x"}, ".pair", "tuple[int, str]"),
    ({"many": 1.0}, ".many", "tuple[float, ...]"),
    ({"many": np.zeros(3)}, ".many", "tuple[float, ...]"),
    ({"many": (1.0, "x")}, ".many[1]", "float"),
    ({"listed": (Inner(1), 2)}, ".listed[1]", "Inner"),
    ({"listed": (Inner(1), Inner(2.0))}, ".listed[1].number", "int"),  # type: ignore[arg-type]
    ({"named": {"a": 1}}, ".named['a']", "tuple[int, ...]"),
    ({"named": {1: (1,)}}, ".named[1]", "str"),
    ({"named": {"a": (1, "x")}}, ".named['a'][1]", "int"),
    ({"named": (("a", (1,)),)}, ".named", "Mapping[str, tuple[int, ...]]"),
    ({"free": {"x": ([Inner("y")],)}}, ".free.number", "int"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("given", RIGHT)
@pytest.mark.parametrize("arrive", [lambda sent: freeze(sent)[0], lambda sent: decode(encode(sent))])
def test_what_is_as_declared_arrives(given: dict[str, Any], arrive: Any) -> None:
    assert wrong_in(arrive(Fields(**given))) is None


@pytest.mark.parametrize(("given", "path", "declared"), WRONG)
@pytest.mark.parametrize("arrive", [lambda sent: freeze(sent)[0], lambda sent: decode(encode(sent))])
def test_what_is_not_as_declared_is_found(given: dict[str, Any], path: str, declared: str, arrive: Any) -> None:
    wrong = wrong_in(arrive(Fields(**given)))
    assert wrong is not None
    assert wrong[0] == path
    assert declared in wrong[2]


def test_an_annotation_that_says_nothing_is_said_before_anything_is_sent() -> None:
    @message(reveals="a test")
    class Odd:
        values: set[int]

    Odd.__annotations__["values"] = set[int]
    with pytest.raises(UnknownAnnotation, match=r"Odd\.values: set\[int\] cannot be checked"):
        checks_of(Odd)


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (None, "nothing"),
        (1, "an int"),
        ("secret", "a str"),
        (np.zeros((2, 3)), "an array of float64 with 2 dimensions"),
        (np.zeros(2, np.int8), "an array of int8 with 1 dimension"),
    ],
)
def test_a_refusal_tells_the_kind_and_not_the_content(item: Any, words: str) -> None:
    assert in_words(item) == words


_SCRIPT = """
from __future__ import annotations
import sys
import numpy as np
from ray import cloudpickle
from fedactors.messages.codec import message
from fedactors.messages.fields import checks_of

@message(reveals="numbers")
class Numbers:
    values: np.ndarray
    more: list[Numbers]

checks_of(Numbers)
sys.stdout.buffer.write(cloudpickle.dumps(Numbers))
"""


@pytest.mark.slow
def test_messages_of_a_script_are_checked_in_another_process_too(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    # classes of `__main__` travel by value, and of the script's names only those that its code uses
    (tmp_path / "script.py").write_text(_SCRIPT)
    sent = subprocess.check_output([sys.executable, tmp_path / "script.py"], timeout=60)
    code = (
        "import pickle, sys, numpy as np; from fedactors.messages.fields import wrong_in\n"
        "Numbers = pickle.loads(sys.stdin.buffer.read())\n"
        "print(wrong_in(Numbers(np.zeros(2), (Numbers(np.ones(1), ()),))), wrong_in(Numbers('text', ()))[0])"
    )
    found = subprocess.check_output([sys.executable, "-c", code], input=sent, timeout=60)
    assert found.decode().split() == ["None", ".values"]


@message(reveals="nothing")
class Bare:
    """A message without fields."""


def test_the_checks_of_a_message_without_fields_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrong_in(Bare()) is None
    monkeypatch.setattr("fedactors.messages.fields.checks_of", None)
    assert wrong_in(Bare()) is None


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 has the first aliases of types")
def test_an_alias_is_what_it_stands_for():
    made: dict[str, Any] = {"np": np}
    exec("type Rows[T: np.generic] = np.ndarray[tuple[int, int], np.dtype[T]]\ntype Name = str", made)
    rows, name = check_of(made["Rows"][np.float32]), check_of(made["Name"] | None)
    assert rows(np.zeros((2, 3), np.float32)) is None
    assert rows(np.zeros((2, 3), np.float64)) is not None is not rows(np.zeros(3, np.float32))
    assert name("a") is name(None) is None
    assert name(1) is not None


@message(reveals="a test")
class Sized:
    """Arrays with names for their dimensions."""

    rows: int
    values: Annotated[Floats, Dimensions("rows", "width")]
    flags: Annotated[NDArray[np.bool_], Dimensions("rows", or_none=True)]
    keys: Annotated[tuple[NDArray[np.uint8], ...], Dimensions("rows", 16)] = ()
    scale: Annotated[tuple[float, ...], Dimensions("width", or_none=True)] = ()


def sized(rows: int = 3, shape: tuple[int, ...] = (3, 2), flags: int = 3, **more: Any) -> Sized:
    return Sized(rows, np.zeros(shape), np.zeros(flags, bool), **more)


@pytest.mark.parametrize(
    ("sent", "line"),
    [
        (sized(), None),
        (sized(flags=0, keys=(np.zeros((3, 16), np.uint8),) * 2, scale=(1.0, 2.0)), None),
        (sized(rows=4, shape=(4, 2), flags=4), "Sized.rows 4; expected: 3"),
        (sized(shape=(1, 2)), r"Sized.values of shape \(1, 2\); expected: 3 \(rows\) x 2 \(width\)"),
        (sized(shape=(3,)), r"Sized.values of shape \(3,\); expected: 3 \(rows\) x 2 \(width\)"),
        (sized(shape=(3, 2, 1)), r"Sized.values of shape \(3, 2, 1\)"),
        (sized(flags=1), r"Sized.flags of shape \(1,\); expected: 3 \(rows\)"),
        (sized(keys=(np.zeros((3, 32), np.uint8),)), r"Sized.keys of shape \(3, 32\); expected: 3 \(rows\) x 16"),
        (sized(scale=(1.0,)), r"Sized.scale of shape \(1,\); expected: 2 \(width\)"),
    ],
)
def test_dimensions_are_those_that_the_receiver_knows(sent: Sized, line: str | None) -> None:
    found = wrong_size(sent, lambda message: {"rows": 3, "width": 2})
    assert found is None if line is None else re.match(line, found or "")


def test_a_name_has_one_size_in_a_message_whose_receiver_knows_none() -> None:
    assert wrong_size(sized(7, (7, 9), 7), lambda message: {}) is None
    assert (wrong_size(sized(7, (7, 9), 8), lambda message: {}) or "").startswith("Sized.flags of shape (8,)")
    assert wrong_size(Inner(1), lambda message: {}) is None


def test_dimensions_outlive_the_checks_of_fields() -> None:
    """The checks replace the annotations of a class by what they stand for."""
    checks_of(Sized)
    assert wrong_in(sized()) is None
    assert "Dimensions" in str(Sized.__annotations__["values"])
