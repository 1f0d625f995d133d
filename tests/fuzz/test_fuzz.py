"""Whatever stands in a frame, a file or a word: nothing but the declared error comes of it.

``FEDACTORS_FUZZ=20`` tries twenty times as many examples as a check of every commit can afford.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedactors.config import build, parse_words
from fedactors.data.description import load_description
from fedactors.errors import BadInput
from fedactors.messages.codec import CodecError, decode, encode
from fedactors.plugins import find_protocol
from fedactors.protocols.glasu.data import read_user_graph
from fedactors.protocols.nebulafl.config import content_of
from fedactors.protocols.nebulafl.data import read_catalogue, read_network
from fedactors.runs import schemas
from fedactors.runs.folder import MANIFEST, RunFolder
from fedactors.runs.metrics import json_line, jsonable, read_events, read_rounds, read_summary
from fedactors.runs.recorder import LEDGER, LEDGER_LOG, LedgerLog, make_parquet, read_ledger, read_rows
from fedactors.runs.storage import LineFile
from fedactors.runtime import snapshots
from fedactors.runtime.ray.transport import _HEAD, HELLO, REQUEST, Caller, Incoming
from tests.bad_inputs import world
from tests.report.test_page import PRIVACY_LINE
from tests.runs.test_planted import AUDIT_CONTENT, forge, show

pytestmark = pytest.mark.slow
TIMES = float(os.environ.get("FEDACTORS_FUZZ", "1"))


def fuzz(examples: int) -> Callable[[Any], Any]:
    """Return the settings of a test with so many examples."""
    return settings(
        max_examples=max(1, round(examples * TIMES)),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=TIMES == 1,
    )


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["", "..", "/", "a/b", "\0", "driver", "plain", "state", "inf", "x" * 300, "é"])
)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def mutations(valid: bytes) -> st.SearchStrategy[bytes]:
    """Return byte strings near a valid one, and others."""

    def change(seed: int) -> bytes:
        stream, made = random.Random(seed), bytearray(valid)
        for _ in range(stream.randint(1, 6)):
            at = stream.randrange(len(made) + 1)
            match stream.randrange(4):
                case 0:
                    made[at : at + stream.randint(1, 8)] = b""
                case 1:
                    made[at:at] = stream.randbytes(stream.randint(1, 8))
                case 2 if at < len(made):
                    made[at] ^= 1 << stream.randrange(8)
                case _:
                    made = made[:at] or made
        return bytes(made)

    return st.integers(0, 2**32).map(change) | st.binary(max_size=200)


@st.composite
def changed(draw: st.DrawFn, tree: Any) -> Any:
    """Return a tree in which something was replaced, removed or added."""
    made = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 3))):
        node: Any = made
        key: Any = None
        above: Any = None
        while isinstance(node, (dict, list)) and node and draw(st.integers(0, 3)):
            above = node
            key = draw(st.sampled_from(sorted(node))) if isinstance(node, dict) else draw(st.integers(0, len(node) - 1))
            node = node[key]
        if above is None:
            if isinstance(made, dict):
                made[draw(st.text(max_size=6))] = draw(trees)
        elif isinstance(above, dict) and draw(st.booleans()):
            del above[key]
        else:
            above[key] = draw(trees)  # type: ignore[index]
    return made


# --- frames ---

_FRAME = encode({"values": np.arange(6.0).reshape(2, 3), "name": "bank", "more": [1, None, (2.5, b"x")]})


@fuzz(400)
@given(mutations(_FRAME))
def test_a_codec_frame(data: bytes) -> None:
    with contextlib.suppress(CodecError):
        decode(data)


_CONTAINERS = ["list", "dict", "set", "tuple", "deque", "state"]
tagged = st.recursive(
    st.tuples(st.sampled_from(["plain", "array", "rng", "tensor", "torch-rng", "message", "bounded", "x"]), scalars)
    | st.tuples(st.just("array"), st.lists(st.floats(), max_size=3).map(np.array)),
    lambda inner: st.tuples(
        st.sampled_from(["list", "dict", "set", "tuple", "deque", "state"]), st.lists(inner, max_size=3)
    ),
    max_leaves=6,
)


class Holder:
    """Something whose state is restored."""

    state = ("number", "generator", "values")

    def __init__(self) -> None:
        self.number = 3
        self.generator = np.random.default_rng(0)
        self.values = np.zeros(3)


@fuzz(300)
@given(st.dictionaries(st.sampled_from(["number", "generator", "values", "other"]), tagged | trees, max_size=3) | trees)
def test_a_checkpoints_frame_with_a_whole_checksum(content: Any) -> None:
    try:
        frame = snapshots.seal(content)
    except (CodecError, OverflowError):
        return
    with contextlib.suppress(BadInput):
        found = snapshots.unseal(frame, "the checkpoint of bank")
        with snapshots.intact("the checkpoint of bank"):
            snapshots.apply(Holder(), found)


@fuzz(200)
@given(mutations(snapshots.seal(snapshots.capture(Holder(), Holder.state))))
def test_a_checkpoints_frame_that_was_changed(data: bytes) -> None:
    with contextlib.suppress(BadInput):
        snapshots.unseal(data, "the checkpoint of bank")


sent = st.binary(max_size=90) | st.builds(
    lambda length, number, kind, body: _HEAD.pack(length, number, kind) + body,
    st.integers(0, 2**64 - 1) | st.integers(0, 40),
    st.integers(0, 2**32 - 1),
    st.integers(0, 255),
    st.binary(max_size=40),
)


@fuzz(60)
@given(st.lists(sent, max_size=5))
def test_bytes_on_an_actors_socket(pieces: list[bytes]) -> None:
    """Nobody who has no ticket reaches `serve`, and who has one is served afterwards."""
    served: list[bytes] = []

    def recognise(body: memoryview) -> Caller | None:
        return Caller("bank", "client") if bytes(body) == b"the ticket" else None

    async def serve(caller: Caller, body: memoryview) -> tuple[int, list[bytes | memoryview]]:
        served.append(bytes(body))
        return 1, [b"done"]

    async def go(path: str) -> bytes:
        loop = asyncio.get_running_loop()
        problems: list[Any] = []
        loop.set_exception_handler(lambda _, context: problems.append(context))
        server = await loop.create_unix_server(lambda: Incoming(recognise, serve), path)
        async with server:
            reader, writer = await asyncio.open_unix_connection(path)
            with contextlib.suppress(ConnectionError):
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                writer.write_eof()
                await asyncio.wait_for(reader.read(), 10)
            writer.close()
            reader, writer = await asyncio.open_unix_connection(path)
            for kind, body in ((HELLO, b"the ticket"), (REQUEST, b"hello")):
                writer.write(_HEAD.pack(len(body), 1, kind) + body)
            answer = await asyncio.wait_for(reader.readexactly(_HEAD.size + 4), 10)
            writer.close()
        assert not problems
        return answer

    with tempfile.TemporaryDirectory() as folder:
        assert asyncio.run(go(f"{folder}/s")).endswith(b"done")
    assert served == [b"hello"]


# --- files of a run folder ---


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("finished")
    world.train("mtcd", root)
    folder = RunFolder.open(root / "run")
    for name, value in (("privacy.jsonl", jsonable(PRIVACY_LINE)), ("audit.json", AUDIT_CONTENT)):
        folder.write_bytes(name, json_line(value).encode() + b"\n")
    folder.write_manifest()
    return root / "run"


def read_all(path: Path) -> None:
    """Read whatever a command reads of a run folder."""
    folder = RunFolder.open(path)
    folder.verify()
    folder.load_checkpoint()
    assert isinstance(folder.config, dict)
    read_summary(folder)
    read_rounds(folder)
    list(read_events(folder))
    read_ledger(folder)


@fuzz(150)
@given(data=st.data())
def test_a_manifest(finished: Path, data: st.DataObject) -> None:
    whole = (finished / MANIFEST).read_bytes()
    content = data.draw(changed(json.loads(whole)).map(lambda tree: json.dumps(tree).encode()) | mutations(whole))
    (finished / MANIFEST).write_bytes(content)
    try:
        with contextlib.suppress(BadInput):
            read_all(finished)
    finally:
        (finished / MANIFEST).write_bytes(whole)


KINDS = {
    "config.json": schemas.Config,
    "environment.json": schemas.Environment,
    "audit.json": schemas.AuditFile,
    "privacy.jsonl": schemas.PrivacyLine,
    "metrics/summary.json": schemas.SummaryFile,
    "events.jsonl": schemas.EventLine,
    "metrics/round_metrics.jsonl": schemas.MetricsLine,
}


@pytest.mark.parametrize("name", list(KINDS))
@fuzz(150)
@given(data=st.data())
def test_a_file_of_a_run_folder(finished: Path, name: str, data: st.DataObject) -> None:
    text = (finished / name).read_bytes()
    line = text.splitlines()[0] if name.endswith("jsonl") else text
    content = data.draw(changed(json.loads(line)).map(lambda tree: json.dumps(tree).encode()) | mutations(line))
    with contextlib.suppress(BadInput):
        assert isinstance(schemas.parse(KINDS[name], content, name), dict)


@pytest.mark.parametrize("name", list(KINDS))
@fuzz(40)
@given(data=st.data())
def test_a_page_about_a_run_whose_manifest_agrees(finished: Path, name: str, data: st.DataObject) -> None:
    """What passes the schema can be compared, recomputed and drawn."""
    kept = {part: (finished / part).read_bytes() for part in (name, MANIFEST)}
    first, _, rest = kept[name].partition(b"\n" if name.endswith("jsonl") else b"\0")
    forge(finished, name, json.dumps(data.draw(changed(json.loads(first)))).encode() + b"\n" + rest)
    try:
        with contextlib.suppress(BadInput):
            show(finished)
    finally:
        for part, content in kept.items():
            (finished / part).write_bytes(content)


_ROWS = [(0.5 * i, "bank", "shop", "client-client", "Embedding", 100 + i) for i in range(50)]


@fuzz(150)
@given(data=st.data(), ended=st.booleans())
def test_a_ledger(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, ended: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = LineFile(folder / LEDGER_LOG)
        log = LedgerLog(file)
        for _ in range(2):
            log.append(list(_ROWS))
            log.flush()
        file.close()
        if ended:
            make_parquet(folder / LEDGER_LOG, folder / LEDGER)
        target = folder / (LEDGER if ended else LEDGER_LOG)
        whole = target.read_bytes()
        target.write_bytes(data.draw(mutations(whole) | st.integers(0, len(whole)).map(lambda size: whole[:size])))
        with contextlib.suppress(BadInput):
            read_rows(target)


# --- what users write ---


def toml(tree: Any) -> str:
    """Return a tree as TOML, as far as TOML can say it."""
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {toml(value)}" for key, value in tree.items()) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(toml(item) for item in tree) + "]"
    if isinstance(tree, float):
        return "nan" if tree != tree else "inf" if tree == np.inf else "-inf" if tree == -np.inf else f"{tree:e}"
    return '""' if tree is None else json.dumps(tree)


DESCRIPTIONS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "vertical": (world.VERTICAL, load_description),
    "horizontal": (world.HORIZONTAL, load_description),
    "relational": (world.RELATIONAL, load_description),
    "graph": (world.GRAPH, read_user_graph),
    "catalogue": (world.CATALOGUE, lambda path: read_catalogue(content_of("catalogue", str(path)))),
    "network": (world.NETWORK, lambda path: read_network(content_of("network", str(path)))),
}


@pytest.mark.parametrize("kind", list(DESCRIPTIONS))
@fuzz(150)
@given(data=st.data())
def test_a_description(kind: str, data: st.DataObject) -> None:
    import tomllib

    text, read = DESCRIPTIONS[kind]
    near = changed(tomllib.loads(text)).map(
        lambda tree: "\n".join(f"{json.dumps(str(key))} = {toml(value)}" for key, value in tree.items()).encode(
            errors="replace"
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "parties.toml"
        path.write_bytes(data.draw(near | mutations(text.encode())))
        with contextlib.suppress(BadInput):
            read(path)


@pytest.mark.parametrize("protocol", list(world.SMALL))
@fuzz(100)
@given(data=st.data())
def test_words_of_a_command(protocol: str, data: st.DataObject) -> None:
    config = find_protocol(protocol).Config
    names = st.sampled_from(sorted(config.__dataclass_fields__)) | st.text(max_size=5)
    values = scalars.map(str) | trees.map(lambda tree: json.dumps(tree, default=str)) | st.text(max_size=20)
    words = data.draw(st.lists(st.tuples(names, values).map("=".join) | st.text(max_size=8), max_size=4))
    with contextlib.suppress(BadInput):
        build(config, parse_words(words))
