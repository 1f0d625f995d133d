"""Names of messages: they say whose a class is and not where its file lies, so that a class may move."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedactors.actors.context import Ref
from fedactors.config import config
from fedactors.messages.codec import (
    CodecError,
    carry,
    class_of,
    decode,
    encode,
    message,
    name_of,
    namespace_of,
    wire_type,
)
from fedactors.protocols.mtcd.config import MtcdConfig
from fedactors.protocols.mtcd.messages import Gather


def declared(module: str, qualname: str = "Step", name: str = "") -> Any:
    """Return a message as if a module declared it."""
    body = {"__module__": module, "__qualname__": qualname, "__annotations__": {"value": float}}
    return message(reveals="a number", name=name)(type(qualname.rpartition(".")[2], (), body))


def in_fresh_process(folder: Path, code: str, frame: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    code = f"import sys; from fedactors.messages.codec import decode, encode\n{code}"
    words, environment = [sys.executable, "-c", code], {"PYTHONPATH": f"{Path(__file__).parents[2]}:{folder}"}
    return subprocess.run(words, input=frame, capture_output=True, env=environment, timeout=60)


def write(folder: Path, **texts: str) -> Path:
    """Write a protocol's package, of a distribution that may hold others."""
    package = folder / "acme_protocols" / "quick"
    for name, text in ({"plugin": "", "__init__": ""} | texts).items():
        path = package / f"{name.replace('_in_', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


STEP = """
from fedactors.messages.codec import message
@message(reveals="a number")
class Step:
    value: float
"""


@pytest.mark.slow
def test_a_class_that_moved_is_found_by_frames_of_before(tmp_path: Path) -> None:
    before = write(tmp_path / "before", messages=STEP)
    after = write(tmp_path / "after", wire_in_steps=STEP)
    code = "from acme_protocols.quick.messages import Step; sys.stdout.buffer.write(encode((Step(2.5),)))"
    sent = in_fresh_process(before, code)
    assert b"acme_protocols.quick/Step" in sent.stdout, sent
    read = "from acme_protocols.quick.wire.steps import Step; assert decode(sys.stdin.buffer.read()) == (Step(2.5),)"
    found = in_fresh_process(after, read, sent.stdout)
    assert found.returncode == 0, found.stderr
    unknown = in_fresh_process(after, "decode(sys.stdin.buffer.read())", sent.stdout)
    assert b"acme_protocols.quick/Step is not a message type known in this process" in unknown.stderr


@pytest.mark.parametrize(
    ("module", "qualname", "name"),
    [
        ("fedactors.protocols.some.messages", "Step", "some/Step"),
        ("fedactors.protocols.some.baselines.more.messages", "Deep", "some/Deep"),
        ("fedactors.joining.some", "Step", "fedactors/Step"),
        ("acme_messages", "Step", "acme_messages/Step"),
        ("acme.quick.messages", "Outer.Step", "acme.quick.messages/Outer.Step"),
        ("acme.slow.messages", "Outer.Step", "acme.slow.messages/Outer.Step"),
        ("__mp_main__", "Step", "__main__/Step"),
        ("acme.messages", "test.<locals>.Step", "acme.messages/test.<locals>.Step"),
    ],
)
def test_a_name_says_whose_a_class_is(module: str, qualname: str, name: str) -> None:
    cls: type = declared(module, qualname)
    assert (name_of(cls), namespace_of(cls)) == (name, name.partition("/")[0])
    assert class_of(name) is cls
    assert type(decode(encode(cls(1.0)))) is cls


def test_classes_of_the_house() -> None:
    assert name_of(Ref) == "fedactors/Ref"
    assert name_of(Gather) == "mtcd/Gather"
    assert name_of(MtcdConfig) == "mtcd/MtcdConfig"


def test_a_protocols_namespace_is_the_package_with_its_plugin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(tmp_path)
    package = ModuleType("acme_protocols.quick")
    package.__path__ = [str(tmp_path / "acme_protocols" / "quick")]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    assert name_of(declared("acme_protocols.quick.deep.er.messages")) == "acme_protocols.quick/Step"
    assert name_of(declared("acme_protocols.other.deep.er.messages")) == "acme_protocols.other.deep.er.messages/Step"


def test_two_classes_of_one_name_are_refused_with_both_places() -> None:
    declared("acme.one.messages", name="acme/Twice")
    refused = "acme.two.messages.Step: acme.one.messages.Step has the name 'acme/Twice': give one of them another with"
    with pytest.raises(TypeError, match=refused):
        declared("acme.two.messages", name="acme/Twice")
    assert class_of("acme/Twice").__module__ == "acme.one.messages"  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["Step", "/Step", "acme/", "acme/St\nep"])
def test_a_name_has_a_namespace(name: str) -> None:
    with pytest.raises(TypeError, match="is not allowed: give 'namespace/ClassName'"):
        declared("acme.messages", name=name)


@pytest.mark.parametrize("module", ["__main__", "acme.again.messages"])
def test_the_same_class_may_be_declared_again_and_the_last_one_counts(module: str) -> None:
    """A cell of a notebook that runs twice."""
    first, second = declared(module), declared(module)
    assert type(decode(encode(first(1.0)))) is second
    if module == "__main__":
        assert type(decode(encode(first(1.0)))) is second is not declared("__mp_main__")


def test_a_class_inside_a_function_travels_too() -> None:
    @message(reveals="a number")
    class Note:
        """A number."""

        value: float

    assert decode(encode(Note(1.0))) == Note(1.0)


def test_a_given_name_stays_whatever_the_class_is_called() -> None:
    @wire_type(name="acme/Described")
    class Other:
        """What an actor may be built with."""

        path: str

    @config(name="acme/Settings")
    class Renamed:
        """A configuration."""

        rate: float = 0.5

    given = (Other(path="x"), Renamed(rate=0.25))
    frame = encode(given, arguments=True)
    assert b"acme/Described" in frame
    assert b"acme/Settings" in frame
    assert carry(given) == given


def test_a_subclass_that_is_not_declared_is_neither_sent_nor_built_with() -> None:
    class Larger(MtcdConfig):
        """More than its frame would say."""

    with pytest.raises(CodecError, match="may not be sent"):
        encode(Larger(), arguments=True)
