"""Real run folders with checkpoints, and the many ways in which somebody could spoil them.

Every change comes of one seeded generator: the same seed gives the same spoilt folders.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedactors.cli.main import main
from fedactors.errors import BadInput
from fedactors.messages.codec import CodecError
from fedactors.runs.folder import MANIFEST, RunFolder
from fedactors.runs.storage import entry_of
from fedactors.runtime import snapshots

SETTINGS = {
    "pubsub-vfl": "num_epochs=3 num_layers=1 hidden_size=4 embedding_size=2 batch_size=64 --data breast-cancer",
    "mtcd": "num_clients=3 min_cluster_size=1 num_hops=1 num_local_steps=1 num_rounds=3 num_samples=12 num_features=6",
    "glasu": "num_rounds=3 hidden_size=4 evaluate_every=1 num_layers=2 --data blocks:60x6x2",
    "nebulafl": "num_centers=2 num_containers=4 active_per_center=1 duration=600 rotation_interval=100 "
    "evaluation_interval=150 num_training=40 local_epochs=1 dirichlet=none checkpoint_interval=1 --data digits",
    "tablepuppet": "num_rounds=3 --data orders:60",
    "horizontal": "num_clients=2 num_rounds=3 hidden_size=4 num_training=60 --data digits",
}
"""Runs of a fraction of a second with rounds left after their first checkpoint."""

_ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, -(2**70), 10**12, 0.5, -0.0, 1e308, 1e-320, math.inf, -math.inf,
    math.nan, "", "x", "..", "/", "../../x", "\0", "\x1b]0;title\x07", "driver", "bank", "x" * 3000, b"", b"\0" * 40,
]  # fmt: skip


def make(root: Path, protocol: str) -> Path:
    """Leave a finished run in ``root/whole``, and in ``root/run`` what a kill after a round leaves of one."""
    made = root / "run"
    save = RunFolder.save_checkpoint

    def kept(folder: RunFolder, label: str, *args: Any, **keywords: Any) -> None:
        save(folder, label, *args, **keywords)
        if not made.exists() and label == "last" and (folder.path / "metrics/round_metrics.jsonl").read_bytes():
            shutil.copytree(folder.path, made)

    words = [
        "run",
        protocol,
        *SETTINGS[protocol].split(),
        "--runtime",
        "simulated",
        "--quiet",
        "--out",
        str(root / "o"),
    ]
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        patch.setattr(RunFolder, "save_checkpoint", kept)
        assert main([*words, "--out", str(root / "out")]) == 0, said.getvalue()
    (whole,) = (root / "out").iterdir()
    whole.rename(root / "whole")
    assert made.exists(), protocol
    manifest = json.loads((made / MANIFEST).read_text())
    del manifest["process"]  # of a process that is gone by the time somebody resumes
    (made / MANIFEST).write_text(json.dumps(manifest))
    return made


def spoil(run: Path, draw: random.Random) -> str:
    """Spoil one or two things in a run folder; return what was done, in words."""
    return "; ".join(_spoil_one(run, draw) for _ in range(draw.choice((1, 1, 1, 2))))


def _spoil_one(run: Path, draw: random.Random) -> str:
    files = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    name = draw.choice([file for file in files if file.endswith(".ckpt")] if draw.random() < 0.7 else files)
    path = run / name
    before = path.read_bytes()
    if name.endswith(".ckpt") and draw.random() < 0.9:
        made, how = _spoil_frame(before, draw)
    elif name.endswith((".json", ".jsonl")) and draw.random() < 0.8:
        made, how = _spoil_json(before, draw)
    else:
        made, how = _spoil_bytes(before, draw), "bytes"
    path.write_bytes(made)
    if name != MANIFEST and draw.random() < 0.95:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            manifest = json.loads((run / MANIFEST).read_text())
            grows = {"grows": True} if manifest["files"][name].get("grows") else {}
            manifest["files"][name] = entry_of(made) | grows
            (run / MANIFEST).write_text(json.dumps(manifest))
    return f"{name}: {how}"


def _spoil_bytes(valid: bytes, draw: random.Random) -> bytes:
    made = bytearray(valid)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(made) + 1)
        match draw.randrange(4):
            case 0:
                made[at : at + draw.randint(1, 8)] = b""
            case 1:
                made[at:at] = draw.randbytes(draw.randint(1, 8))
            case 2 if at < len(made):
                made[at] ^= 1 << draw.randrange(8)
            case _:
                made = made[:at]
    return bytes(made)


def _spoil_json(valid: bytes, draw: random.Random) -> tuple[bytes, str]:
    lines = valid.splitlines() if valid.count(b"\n{") else [valid]
    number = draw.randrange(len(lines) or 1)
    try:
        tree, how = _change(json.loads(lines[number]), draw, _odd_json)
    except (ValueError, IndexError):
        return _spoil_bytes(valid, draw), "bytes"
    lines[number] = json.dumps(tree).encode()
    return b"\n".join(lines) + b"\n", how


def _odd_json(old: Any, draw: random.Random) -> Any:
    return draw.choice([*(odd for odd in _ODD if not isinstance(odd, bytes)), [], {}, [old], {"x": old}])


def _spoil_frame(valid: bytes, draw: random.Random) -> tuple[bytes, str]:
    """Change something within a frame, and give it a checksum that fits."""
    with contextlib.suppress(BadInput, CodecError, OverflowError, RecursionError, TypeError):  # it was spoilt before
        tree = snapshots.unseal(valid, "frame")
        if isinstance(tree, dict) and set(tree) == {"actors", "content"} and draw.random() < 0.9:
            content, how = _change(snapshots.unseal(tree["content"], "driver"), draw, _odd_value)
            return snapshots.seal({**tree, "content": snapshots.seal(content)}), how
        tree, how = _change(tree, draw, _odd_value)
        return snapshots.seal(tree), how
    return _spoil_bytes(valid, draw), "bytes"


def _odd_value(old: Any, draw: random.Random) -> Any:
    if isinstance(old, np.ndarray) and draw.random() < 0.8:
        return draw.choice(
            (
                lambda: np.empty((10**12, 0), old.dtype),
                lambda: np.zeros((*old.shape, 1), old.dtype),
                lambda: old.reshape(-1)[: old.size // 2],
                lambda: np.concatenate([old.reshape(-1)] * 2),
                lambda: np.full(old.shape, np.nan),
                lambda: np.full(old.shape, np.inf),
                lambda: np.full(old.shape, -1, np.int64),
                lambda: np.full(old.shape, 10**12, np.int64),
                lambda: np.zeros(old.shape, "U2"),
                lambda: np.zeros(0, old.dtype),
                lambda: np.array(3.0),
                lambda: old.astype("complex64") if old.dtype.kind in "iuf" else old,
                lambda: old.reshape(-1)[::-1].reshape(old.shape),
            )
        )()
    if isinstance(old, (int, float)) and draw.random() < 0.5:
        return draw.choice([-old, old + 1, old * 1e6, float(old), -1, 0, 10**9, math.nan, math.inf, str(old)])
    deep: Any = ("plain", 1)
    for _ in range(draw.choice((3, 200))):
        deep = ("list", (deep,))
    plain = [("plain", odd) for odd in _ODD]
    return draw.choice([*_ODD, *plain, (), {}, (old,), deep, ("list", (old,)), ("dict", ((old, old),)), np.zeros(3)])


def _change(tree: Any, draw: random.Random, odd: Callable[[Any, random.Random], Any]) -> tuple[Any, str]:
    """Return a tree with one place changed, and where."""
    keys: list[Any] = []
    if isinstance(tree, dict) and tree:
        keys = sorted(tree, key=str)
    elif isinstance(tree, (list, tuple)) and tree:
        keys = list(range(len(tree)))
    elif hasattr(type(tree), "__message__"):
        keys = [field.name for field in dataclasses.fields(tree)]
    if not keys or draw.random() < 0.07:
        made = odd(tree, draw)
        return made, f"{type(tree).__name__} -> {repr(made)[:60]}"
    key = draw.choice(keys)
    if isinstance(tree, (list, tuple)) and draw.random() < 0.06:
        made = list(tree)
        if draw.random() < 0.5:
            del made[key]
        else:
            made.insert(key, tree[key])
        return type(tree)(made), f"[{key}] removed or doubled"
    if isinstance(tree, dict) and draw.random() < 0.06:
        return {k: v for k, v in tree.items() if k != key}, f"{key!r} removed"
    is_message = hasattr(type(tree), "__message__")
    inner, how = _change(getattr(tree, key) if is_message else tree[key], draw, odd)
    if is_message:
        made = object.__new__(type(tree))
        for field in dataclasses.fields(tree):
            object.__setattr__(made, field.name, inner if field.name == key else getattr(tree, field.name))
    elif isinstance(tree, dict):
        made = {**tree, key: inner}
    else:
        made = type(tree)([*tree[:key], inner, *tree[key + 1 :]])
    return made, f"{key!r}.{how}"
