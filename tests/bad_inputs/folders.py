"""Run folders and tables that are missing, damaged, foreign or made by somebody with bad intentions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.bad_inputs.cases import Case, Change, command, cut, loop, make_folder, remove, run, write
from tests.bad_inputs.world import NAMED, SMALL

_RUN = "run"
_PARTY = {"pubsub-vfl": "active", "nebulafl": "oregon", "tablepuppet": "orders"}
_READERS = ("compare", "report", "predict", "export", "resume")


def _of(which: str, protocol: str, change: Change | tuple[Change, ...], *says: str) -> Case:
    """Return a case of one of the commands that read a run folder."""
    more: dict[str, Any] = {"base": f"finished/{protocol}", "change": change}
    if which == "resume":
        return run(protocol, "", *says, flags=["--resume", _RUN], **more)
    if which == "submit":
        return command(["submit", protocol, "--resume", _RUN, "--address", "http://127.0.0.1:9"], *says, **more)
    if which == "predict":
        return command(["predict", _RUN, "--data", NAMED[protocol]], *says, **more)
    if which == "export":
        return command(["export", _RUN, "--party", _PARTY.get(protocol, "client-0"), "--output", "out"], *says, **more)
    return command([which, _RUN, *(("--output", "page.html") if which == "report" else ())], *says, **more)


def edit(name: str, spoil: Callable[[Any], Any]) -> Change:
    """Change what a JSON file of the run folder holds, and let the manifest fit it again."""

    def change(folder: Path) -> None:
        path = folder / _RUN / name
        tree = json.loads(path.read_text())
        made = spoil(tree)
        path.write_text(json.dumps(tree if made is None else made))
        if name != "manifest.json":
            _fit(folder / _RUN, name)

    return change


def lines(name: str, line: str | bytes) -> Change:
    """Add a line to a file of lines, and let the manifest fit it again."""

    def change(folder: Path) -> None:
        path = folder / _RUN / name
        path.write_bytes((line.encode() if isinstance(line, str) else line) + b"\n" + path.read_bytes())
        _fit(folder / _RUN, name)

    return change


def _fit(run: Path, name: str) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    data = (run / name).read_bytes()
    manifest["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (run / "manifest.json").write_text(json.dumps(manifest))


def put(*path: Any, value: Any) -> Callable[[Any], None]:
    """Return what sets one entry of a tree."""

    def spoil(tree: Any) -> None:
        for key in path[:-1]:
            tree = tree[key]
        tree[path[-1]] = value

    return spoil


def drop(*path: Any) -> Callable[[Any], None]:
    """Return what takes one entry out of a tree."""

    def spoil(tree: Any) -> None:
        for key in path[:-1]:
            tree = tree[key]
        del tree[path[-1]]

    return spoil


def _manifests() -> Iterator[Case]:
    odd: list[tuple[Change, str]] = [
        (write(f"{_RUN}/manifest.json", ""), "manifest.json"),
        (write(f"{_RUN}/manifest.json", "[" * 100_000), "manifest.json"),
        (write(f"{_RUN}/manifest.json", b"\xff\x00"), "manifest.json"),
        (write(f"{_RUN}/manifest.json", "3"), "run folder"),
        (write(f"{_RUN}/manifest.json", "[]"), "run folder"),
        (write(f"{_RUN}/manifest.json", "{}"), "run folder"),
        (make_folder(f"{_RUN}/manifest.json"), "manifest.json"),
        (loop(f"{_RUN}/manifest.json"), "manifest.json"),
        (remove(f"{_RUN}/manifest.json"), "manifest.json"),
        (edit("manifest.json", put("kind", value="other")), "run folder"),
        (edit("manifest.json", put("kind", value=["fedactors-run"])), "run folder"),
        (edit("manifest.json", put("schema_version", value=2)), "schema_version"),
        (edit("manifest.json", put("schema_version", value="1")), "schema_version"),
        (edit("manifest.json", put("schema_version", value=None)), "schema_version"),
        (edit("manifest.json", put("status", value="fine")), "status"),
        (edit("manifest.json", put("status", value=3)), "status"),
        (edit("manifest.json", put("parent", value=3)), "parent"),
        (edit("manifest.json", put("parent", value=["x"])), "parent"),
        (edit("manifest.json", put("command", value="rm")), "command"),
        (edit("manifest.json", put("files", value=[])), "files"),
        (edit("manifest.json", put("files", value=None)), "files"),
        (edit("manifest.json", drop("files")), "files"),
        (edit("manifest.json", drop("checkpoints")), "checkpoints"),
        (edit("manifest.json", put("checkpoints", value={})), "checkpoints"),
        (edit("manifest.json", put("checkpoints", value=[3])), "checkpoints"),
        (edit("manifest.json", put("checkpoints", value=[{}])), "checkpoints"),
        (edit("manifest.json", put("checkpoints", 0, "label", value=3)), "checkpoints"),
        (edit("manifest.json", put("checkpoints", 0, "label", value="../x")), "checkpoints"),
        (edit("manifest.json", put("checkpoints", 0, "folder", value="../../etc")), "checkpoints"),
        (edit("manifest.json", put("checkpoints", 0, "folder", value="/etc")), "checkpoints"),
        (edit("manifest.json", put("checkpoints", 0, "actors", value="all")), "checkpoints"),
        (edit("manifest.json", put("checkpoints", 0, "actors", value=["../x"])), "checkpoints"),
        (edit("manifest.json", put("checkpoints", 0, "marks", value=[])), "checkpoints"),
        (edit("manifest.json", put("checkpoints", 0, "marks", value={"events.jsonl": -1})), "checkpoints"),
        (edit("manifest.json", put("checkpoints", 0, "marks", value={"events.jsonl": "all"})), "checkpoints"),
        (edit("manifest.json", put("files", "config.json", value=3)), "config.json"),
        (edit("manifest.json", put("files", "config.json", value={})), "config.json"),
        (edit("manifest.json", put("files", "config.json", "bytes", value=-1)), "config.json"),
        (edit("manifest.json", put("files", "config.json", "bytes", value="many")), "config.json"),
        (edit("manifest.json", put("files", "config.json", "sha256", value="")), "config.json"),
        (edit("manifest.json", put("files", "config.json", "sha256", value=3)), "config.json"),
        (edit("manifest.json", put("files", "config.json", "grows", value="yes")), "config.json"),
    ]  # fmt: skip
    entry = {"bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()}
    odd += [
        (edit("manifest.json", put("files", name, value=entry)), "outside")
        for name in ("../secret", "/etc/passwd", "a/../../b", "", ".", "a//b", "x" * 300, "n\0l")
    ]
    readers = iter(["compare", "report", "predict", "export", "resume", "submit"] * 100)
    for change, named in odd:
        for _ in range(2):
            yield _of(next(readers), "mtcd", change, named)


def _without(name: str | None) -> Callable[[Any], None]:
    """Return what takes an actor, or all of them, out of every checkpoint."""

    def spoil(tree: Any) -> None:
        for entry in tree["checkpoints"]:
            entry["actors"] = [actor for actor in entry["actors"] if name is not None and actor != name]

    return spoil


def _renamed(name: str) -> Change:
    """Give an actor's state in every checkpoint to somebody else."""

    def change(folder: Path) -> None:
        run = folder / _RUN
        tree = json.loads((run / "manifest.json").read_text())
        for entry in tree["checkpoints"]:
            old, new = (f"{entry['folder']}/{one}.ckpt" for one in (name, "somebody"))
            (run / old).rename(run / new)
            tree["files"][new] = tree["files"].pop(old)
            entry["actors"] = ["somebody" if actor == name else actor for actor in entry["actors"]]
        (run / "manifest.json").write_text(json.dumps(tree))

    return change


def _actors() -> Iterator[Case]:
    """Yield checkpoints of other actors than the run's."""
    one = {
        "pubsub-vfl": "passive/worker-0",
        "mtcd": "client-1",
        "glasu": "client-1",
        "nebulafl": "virginia",
        "tablepuppet": "items",
    }
    for protocol, name in one.items():
        for which in ("resume", "predict", "export"):
            yield _of(which, protocol, edit("manifest.json", _without(name)), "lacks the state of", repr(name))
            yield _of(which, protocol, edit("manifest.json", _without(None)), "lacks the state of", repr(name))
            yield _of(which, protocol, _renamed(name), "lacks the state of", repr(name))
    # files are opened because a user names them, never because a folder does
    for protocol, setting in (("nebulafl", "catalogue"), ("nebulafl", "network"), ("mtcd", "topology")):
        for which in ("resume", "predict", "export"):
            for path in ("/etc/passwd", "config.json"):
                change = edit("config.json", put("config", setting, value=path))
                yield _of(which, protocol, change, setting, repr(path), "is not opened")


def _contents() -> Iterator[Case]:
    for protocol in SMALL:
        for name in ("config.json", "manifest.json"):
            yield _of("resume", protocol, cut(f"{_RUN}/{name}", 30), name)
            yield _of("compare", protocol, cut(f"{_RUN}/{name}", 30), name)
        yield _of("resume", protocol, edit("config.json", put("protocol", value="nothing")), "nothing")
        yield _of("resume", protocol, edit("config.json", put("config", "no_such_key", value=1)), "no_such_key")
        yield _of("resume", protocol, edit("config.json", put("config", value=[])), "config")
        yield _of("resume", protocol, edit("config.json", put("seed", value=-1)), "seed")
        yield _of("resume", protocol, edit("config.json", put("seed", value="0")), "seed")
        yield _of("resume", protocol, edit("config.json", put("seed", value=None)), "seed")
        yield _of("resume", protocol, edit("config.json", put("runtime", value="slurm")), "runtime")
        yield _of("resume", protocol, edit("config.json", put("data", value="no-such-set")), "no-such-set")
        yield _of("resume", protocol, edit("config.json", put("data", value=3)), "data")
        yield _of("resume", protocol, edit("config.json", put("data", value="\0")), "data")
        yield _of("resume", protocol, edit("config.json", put("options", value={"command": "rm"})), "command")
        yield _of("resume", protocol, edit("config.json", put("options", value={"pool": -1})), "pool")
        yield _of("resume", protocol, edit("config.json", put("command", value="rm")), "command")
        yield _of("resume", protocol, write(f"{_RUN}/config.json", "{}"), "config.json")
        yield _of("resume", protocol, remove(f"{_RUN}/config.json"), "config.json")
        yield _of("resume", protocol, remove(f"{_RUN}/checkpoints"), "checkpoints")
        yield _of("resume", protocol, edit("manifest.json", put("checkpoints", value=[])), "no checkpoint")
        yield _of("resume", protocol, remove(f"{_RUN}/events.jsonl"), "events.jsonl")
        yield _of("resume", protocol, cut(f"{_RUN}/events.jsonl", 10), "events.jsonl")
        yield _of("resume", protocol, remove(f"{_RUN}/ledger.parquet"), "ledger")
        yield _of("resume", protocol, cut(f"{_RUN}/ledger.parquet", 10), "ledger")
        yield _of("compare", protocol, remove(f"{_RUN}/metrics/summary.json"), "summary")
        yield _of("report", protocol, cut(f"{_RUN}/metrics/summary.json", 10), "summary")
        for key, value in (
            ("metrics", []),
            ("metrics", 3),
            ("seed", "x"),
            ("rounds", -1),
            ("seconds", "x"),
            ("run", 3),
        ):
            yield _of("compare", protocol, edit("metrics/summary.json", put(key, value=value)), key)
        yield _of("compare", protocol, edit("metrics/summary.json", put("more", value=1)), "more")
        yield _of("compare", protocol, edit("metrics/summary.json", drop("metrics")), "metrics")
        for name in ("predict", "export"):
            if protocol != "tablepuppet":
                yield _of(name, protocol, edit("manifest.json", put("checkpoints", value=[])), "no checkpoint")
                yield _of(name, protocol, _spoilt_frames(b""), "checkpoint")
                yield _of(name, protocol, _spoilt_frames(b"\xff" * 40), "checkpoint")
        yield _of("resume", protocol, _spoilt_frames(b""), "checkpoint")
        yield _of("resume", protocol, _spoilt_frames(b"\xff" * 40), "checkpoint")
        yield run(protocol, "num_rounds=3", "--resume", flags=["--resume", _RUN], base=f"finished/{protocol}")
        yield run(protocol, "", "--seed", flags=["--resume", _RUN, "--seed", "3"], base=f"finished/{protocol}")
        yield run(protocol, "", "--data", flags=["--resume", _RUN, "--data", "x"], base=f"finished/{protocol}")
        yield run(protocol, "", "--smoke", flags=["--resume", _RUN, "--smoke"], base=f"finished/{protocol}")
        other = next(name for name in SMALL if name != protocol)
        yield run(other, "", "--resume", protocol, flags=["--resume", _RUN], base=f"finished/{protocol}")


def _spoilt_frames(content: bytes) -> Change:
    """Replace every checkpoint's frames, manifest included: nobody but the frames themselves can tell."""

    def change(folder: Path) -> None:
        for path in sorted((folder / _RUN / "checkpoints").rglob("*.ckpt")):
            path.write_bytes(content)
            _fit(folder / _RUN, str(path.relative_to(folder / _RUN)))

    return change


def _readers() -> Iterator[Case]:
    mtcd = "finished/mtcd"
    events = "events.jsonl"
    for line in (
        "not json", "[]", "3", "{}", '{"type": "walk"}', '{"type": 3}', '{"type": "span"}', b"\xff\xff",
        '{"type": "span", "actor": 3, "kind": "compute", "label": "x", "start": 0, "end": 1}',
        '{"type": "span", "actor": "a", "kind": "compute", "label": "x", "start": "0", "end": 1}',
        '{"type": "span", "actor": "a", "kind": "compute", "label": "x", "start": 0, "end": 1, "more": 1}',
        '{"type": "span", "actor": "a", "kind": "compute", "label": "x", "start": NaN, "end": 1}',
        '{"type": "round", "round": "one"}', '{"type": "round"}', '{"type": "totals", "actors": []}',
        '{"type": "totals", "actors": {"a": 3}, "spans": 1, "dropped": 0}', "[" * 100_000, "",
    ):  # fmt: skip
        yield _of("report", "mtcd", lines(events, line), events, "line 1")
    for line in (
        "not json",
        "[]",
        "3",
        "{}",
        '{"round": "1"}',
        '{"round": 1.5}',
        b"\xff",
        "[" * 100_000,
        '{"round": 1, "objective": NaN}',
    ):
        yield _of("report", "mtcd", lines("metrics/round_metrics.jsonl", line), "round_metrics.jsonl", "line 1")
    for line in ("not json", "[]", "3", b"\xff"):
        yield _of("report", "mtcd", lines("privacy.jsonl", line), "privacy.jsonl", "line 1")
    yield _of("report", "mtcd", cut(f"{_RUN}/ledger.parquet", 20), "ledger")
    yield _of("report", "mtcd", write(f"{_RUN}/ledger.parquet", b""), "ledger")
    yield _of("report", "mtcd", cut(f"{_RUN}/environment.json", 10), "environment.json")
    yield _of("report", "mtcd", remove(f"{_RUN}/environment.json"), "environment.json")
    for which in ("compare", "report"):
        for path in (
            "nowhere",
            "",
            ".",
            "x\0y",
            "/proc/self/mem",
            "a" * 300,
            "nosuch://bucket/run",
            "nowhere.parquet",
            "file.parquet",
        ):
            yield command(
                [which, path],
                path[:20] if path.isprintable() and path != "." else "run folder",
                change=write("file.parquet", "no table"),
            )
        yield command([which, _RUN, _RUN], "given twice", base=mtcd)
        yield command([which, _RUN, f"./{_RUN}"], "given twice", base=mtcd)
        yield command([which, "loop"], "loop", change=loop("loop"))
        yield command([which, "cut.parquet"], "cut.parquet", change=write("cut.parquet", b"PAR1\0\0\0\0PAR1"))
    yield command(["compare", _RUN, "--plot", "x.bmpp"], "--plot", base=mtcd)
    yield command(["compare", _RUN, "--plot", ""], "--plot", base=mtcd)
    yield command(["compare", _RUN, "--plot", "x\0.png"], "--plot", base=mtcd)
    yield command(["compare", _RUN, "--plot", "/proc/x.png"], "--plot", base=mtcd)
    yield command(["compare", _RUN, "--plot", "x.png", "--metric", "nope"], "--metric", "nope", base=mtcd)
    yield command(["report", _RUN, "--output", "."], "--output", base=mtcd)
    yield command(["report", _RUN, "--output", "/proc/x.html"], "--output", base=mtcd)
    yield command(["report", _RUN, "--output", "s3://bucket/x.html"], "--output", base=mtcd)
    yield command(["report", _RUN, "--output", "x\0.html"], "--output", base=mtcd)
    for path in ("nowhere", "", ".", "x\0y", "nosuch://bucket/run"):
        named = "nosuch" if "://" in path else "run folder"
        yield command(["predict", path, "--data", "digits"], named)
        yield command(["export", path, "--party", "bank"], named)
        yield command(["submit", "mtcd", "--resume", path, "--address", "http://127.0.0.1:9"], "")
    for protocol in SMALL:
        base = f"finished/{protocol}"
        for data in ("no-such", "nowhere.toml", "", "x\0.toml", "..", "cora" if protocol != "glasu" else "digits"):
            yield command(["predict", _RUN, "--data", data], "data", base=base)
        yield command(["predict", _RUN, "--data", NAMED[protocol], "--checkpoint", "r99"], "'r99'", base=base)
        yield command(["predict", _RUN, "--data", NAMED[protocol], "--checkpoint", ""], "checkpoint", base=base)
        yield command(["predict", _RUN, "--data", NAMED[protocol], "--output", "/proc/x.csv"], "--output", base=base)
        yield command(["predict", _RUN, "--data", NAMED[protocol], "--output", "s3://b/x.csv"], "--output", base=base)
        yield command(["predict", _RUN], "--data", base=base)
        for party in ("nobody", "", "..", "driver", "_driver"):
            yield command(["export", _RUN, "--party", party], "--party", repr(party), base=base)
    sites = ["predict", _RUN, "--data", "a=x,b=y", "--federation"]
    for federation in ("", ".", "nowhere.toml", "x\0.toml", "nowhere/federation.toml", "federation.toml"):
        yield command([*sites, federation], "federation", base=mtcd)
    site = write("site.toml", 'name = "a"\nlisten = "127.0.0.1:9"\n')
    yield command(
        [*sites, "federation.toml"], "--federation", "site.toml", base=mtcd, change=write("federation.toml", "")
    )
    for text in ("", "not toml [", b"\xff\0", "x = 1", "[sites]"):
        change = (site, write("federation.toml", text))
        yield command([*sites, "federation.toml"], "federation", base=mtcd, change=change)
    yield command([*sites, "federation.toml", "--output", "in/x.csv"], "--output", "'in/x.csv'", base=mtcd)
    yield command([*sites, "federation.toml", "--output", "said.txt"], "--output", "'said.txt'", base=mtcd)
    yield command([*sites, "federation.toml", "--pool", "2"], "--pool", base=mtcd)
    yield command([*sites, "federation.toml", "--address", "h:1"], "--address", base=mtcd)
    over = edit("config.json", put("runtime", value="federated"))
    yield command(["predict", _RUN, "--data", "a=x"], "--federation", base=mtcd, change=over)
    for value in (3, {}, {"run": 3}):
        meant = edit("config.json", put("federation", value=value))
        changes = (over, meant, site, write("federation.toml", ""))
        yield command([*sites, "federation.toml"], "federation", base=mtcd, change=changes)
    tables = "finished/tablepuppet"
    yield command(["export", _RUN, "--party", "server"], "'server'", base=tables)
    yield command(["predict", _RUN, "--data", "orders", "--output", "said.txt"], "--output", "'said.txt'", base=tables)
    yield command(["predict", _RUN, "--data", "parties.toml"], "features of", base=(tables, "relational"))
    yield command(
        ["export", _RUN, "--party", "client-0", "--output", "file"], "--output", base=mtcd, change=write("file", "")
    )
    yield command(["export", _RUN, "--party", "client-0", "--output", "s3://b"], "--output", base=mtcd)
    yield command(["export", _RUN, "--party", "client-0", "--output", "/proc/x"], "--output", base=mtcd)
    yield command(["export", _RUN, "--party", "client-0", "--output", "x\0"], "--output", base=mtcd)
    yield command(["export", _RUN, "--party", "client-0", "--checkpoint", "r9"], "r9", base=mtcd)


CASES = [*_manifests(), *_actors(), *_contents(), *_readers()]
