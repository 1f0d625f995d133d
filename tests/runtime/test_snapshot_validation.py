"""What a checkpoint holds is compared with what its actor declares and holds, before the actor's own code sees it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedactors.errors import BadInput
from fedactors.messages.codec import message
from fedactors.runtime import snapshots


@message(reveals="nothing")
class Note:
    """Something with a declared field."""

    number: int


class Inner:
    """Something with a state of its own."""

    def __init__(self) -> None:
        self.count, self.rows = 0, np.zeros(4, np.int64)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.rows = state["count"], state["rows"]


class Owner:
    """Has a field of each kind."""

    state: ClassVar[tuple[str, ...]] = (
        "note", "names", "theta", "number", "rate", "done", "text", "values", "table", "list", "later", "rng", "inner",
        "tensor", "empty",
    )  # fmt: skip
    note: Note | None
    names: tuple[str, ...]
    theta: NDArray[np.floating[Any]] | None

    def __init__(self) -> None:
        self.note, self.names, self.theta = None, ("a",), None
        self.number, self.rate, self.done, self.text = 3, 0.5, False, "x"
        self.values = np.zeros((2, 3))
        self.table = {"a": 1, "b": "y"}
        self.list = [1.0]
        self.later: Any = None
        self.rng = np.random.default_rng(0)
        self.inner = Inner()
        self.tensor = torch.zeros(3)
        self.empty = np.zeros(0)


def deep(depth: int) -> Any:
    made: Any = ("plain", 1)
    for _ in range(depth):
        made = ("list", (made,))
    return made


SOUND = {
    "note": ("message", Note(1)),
    "names": ("tuple", (("plain", "b"), ("plain", "c"))),
    "theta": ("array", np.ones((4, 4), np.float32)),
    "number": ("plain", 7.0),
    "rate": ("plain", 2),
    "done": ("plain", True),
    "text": ("plain", None),
    "values": ("array", np.ones((5, 1), np.float32)),
    "table": ("dict", ((("plain", "a"), ("plain", 2)), (("plain", "new"), ("plain", b"")))),
    "list": ("list", ()),
    "later": ("array", np.array(["text"])),
    "inner": ("state", ("dict", ((("plain", "count"), ("plain", 9)), (("plain", "rows"), ("array", np.ones(2, int)))))),
    "tensor": ("tensor", np.ones(2, np.float32)),
    "empty": ("array", np.ones((2, 2), np.int32)),
}


@pytest.mark.parametrize("name", list(SOUND))
def test_what_an_actor_could_have_written_fits(name: str) -> None:
    frame = snapshots.seal({"state": {name: SOUND[name]}})
    owner, before = Owner(), getattr(Owner(), name)
    snapshots.restore(owner, frame, "bank")
    assert str(getattr(owner, name)) != str(before) or name == "inner"
    assert owner.inner.count == (9 if name == "inner" else 0)


def test_every_state_that_is_captured_is_restored() -> None:
    first = Owner()
    first.note, first.theta, first.later, first.list = Note(4), np.ones(3), {"x": [1, None]}, [math.inf]
    snapshots.restore(second := Owner(), snapshots.seal({"state": snapshots.capture(first, Owner.state)}), "bank")
    assert (second.note, second.later, second.list) == (first.note, first.later, first.list)


def _dict(**values: Any) -> Any:
    return ("dict", tuple((("plain", key), value) for key, value in values.items()))


WRONG: list[tuple[str, Any, str]] = [
    ("note", ("plain", 1), "an int where Note | None is declared"),
    ("note", ("message", Note("7")), "note.number: a str where int is declared"),  # type: ignore[arg-type]
    ("names", ("plain", "abc"), "a str where tuple"),
    ("names", ("tuple", (("plain", 3),)), r"names\[0\]: an int where str is declared"),
    ("names", ("plain", None), "nothing where tuple"),
    ("theta", ("array", np.ones(3, int)), "an array of int64 with 1 dimension where"),
    ("number", ("plain", "3"), "a str where a number belongs"),
    ("number", ("plain", True), "a bool where an int belongs"),
    ("number", ("plain", math.nan), r"not a number \(NaN\)"),
    ("rate", ("array", np.zeros(1)), "an array of float64 with 1 dimension where a number belongs"),
    ("done", ("plain", 1), "an int where a bool belongs"),
    ("text", ("plain", b"x"), "a bytes where a str belongs"),
    ("values", ("array", np.zeros(3)), "with 1 dimension where an array of float64 with 2 dimensions belongs"),
    ("values", ("array", np.zeros((2, 3), "U1")), "an array of <U1"),
    ("values", ("plain", "zeros"), "a str where an array"),
    ("empty", ("array", np.zeros(2, "U3")), "an array of <U3"),
    ("table", ("list", ()), "a tuple where a dict belongs"),
    ("table", _dict(a=("plain", "one")), r"table\['a'\]: a str where a number belongs"),
    ("list", ("list", (("plain", "x"),)), r"list\[0\]: a str where a number belongs"),
    ("later", ("array", np.empty((10**12, 0))), r"is corrupt: an array of no content and sizes \(1000000000000, 0\)"),
    ("later", deep(70), "it is nested too deeply"),
    ("later", ("plain", {}), "no value that a snapshot holds"),
    ("later", ("what", 1), "no value that a snapshot holds"),
    ("later", ("bounded", (-1, ())), "is corrupt: ValueError"),
    ("later", 5, "no value that a snapshot holds"),
    ("rng", ("plain", 4), "an int where"),
    ("inner", ("plain", 4), "it is no state of the object that belongs there"),
    (
        "inner",
        ("state", _dict(count=("plain", "x"), rows=("array", np.zeros(2)))),
        r"\['count'\]: a str where a number",
    ),
    ("inner", ("state", _dict(count=("plain", 1))), "is corrupt: KeyError"),
    (
        "tensor",
        ("tensor", np.zeros((2, 2), np.float32)),
        "with 2 dimensions where an array of float32 with 1 dimension",
    ),
    ("number", ("state", _dict()), "the state of an object where an int belongs"),
    ("__class__", ("plain", 1), "names __class__, which Owner keeps in no snapshot"),
]


@pytest.mark.parametrize(("name", "value", "said"), WRONG)
def test_what_no_such_actor_could_have_written_is_one_line(name: str, value: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said) as error:
        snapshots.restore(Owner(), snapshots.seal({"state": {name: value}}), "bank/worker-0", "runs/r/checkpoints/last")
    assert "the checkpoint of bank/worker-0 (runs/r/checkpoints/last/bank/worker-0.ckpt)" in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500
    assert name in str(error.value) or said.startswith("is corrupt")


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 1e300, True, "1", None, 10**400])
def test_a_clock_that_could_not_go_on_is_refused(value: Any) -> None:
    with pytest.raises(BadInput, match="the checkpoint does not fit: now: a number from 0 to 1e"):
        snapshots.amount(value, "now", "the checkpoint")
    assert snapshots.amount(7, "now", "") == 7.0


@pytest.mark.parametrize(
    "value", [None, 3, [1], [("a",) * 6], [("a", "b", "c", "d", 1, -1)], [("a", "b", "c", "d", 1)]]
)
def test_totals_are_totals(value: Any) -> None:
    with pytest.raises(BadInput, match="ledger: totals of messages belong there"):
        snapshots.totals(value, "the checkpoint")
    assert snapshots.totals((("a", "b", "c", "d", 1, 2),), "") == [("a", "b", "c", "d", 1, 2)]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda: {"round": "7"},
        lambda: {"round": True},
        lambda: {"best": "high"},
        lambda: {"aside": {"bytes": "many"}},
        lambda: {"aside": [1]},
        lambda: {"over": None},
        lambda: {"best": math.nan},
    ],
)
def test_the_drivers_state_is_what_its_protocol_declares(spoil: Callable[[], dict[str, Any]]) -> None:
    import typing

    from fedactors.runtime.rounds import RunState

    hints, (name,) = typing.get_type_hints(RunState), spoil()
    sound = {"round": 3, "best": 1, "best_round": None, "num_worse": 0, "over": False, "aside": {"bytes": 2}}
    snapshots.check_fields(hints, sound, snapshots.DRIVERS)
    with pytest.raises(BadInput, match=f"the checkpoint of the driver does not fit: {name}"):
        snapshots.check_fields(hints, sound | spoil(), snapshots.DRIVERS)
