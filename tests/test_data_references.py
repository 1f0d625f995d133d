"""A run folder names its data: a data set is taken from there, a description of own data only if the user names it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import socket
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedactors.cli.main import main
from fedactors.data.description import load_description
from fedactors.data.sources import FileSource
from fedactors.errors import BadInput
from fedactors.launch import data_to_audit, data_to_resume, resume_command
from fedactors.options import RunOptions
from fedactors.runs.folder import RunFolder
from fedactors.runtime.snapshots import digests_of_files
from tests.bad_inputs.world import CATALOGUE, NETWORK, RELATIONAL, SMALL, write_files

FILES = {
    "parties.toml": RELATIONAL,
    "orders.csv": "item,card,amount\n" + "1,7,1.0\n2,8,2.5\n1,9,3.0\n3,7,0.5\n" * 10,
    "items.csv": "item,price,kind\n1,4.0,a\n2,5.0,b\n3,6.0,c\n",
    "cards.csv": "card,age,owner\n7,30,x\n8,40,y\n9,50,z\n",
}


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of own data, whose files lie in the present folder."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    words = ["num_rounds=1", "--data", "parties.toml", "--runtime", "simulated", "--quiet"]
    assert main(["run", "tablepuppet", *words, "--out", "runs"]) == 0
    (made,) = Path("runs").iterdir()
    return made


@pytest.fixture
def database() -> Iterator[socket.socket]:
    """A port at which somebody waits for a password."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.2)
        yield listening


def rewrite(run: Path, **changed: object) -> None:
    """Change the configuration of a run as a stranger would: manifest included."""
    data = json.dumps(json.loads((run / "config.json").read_text()) | changed).encode()
    (run / "config.json").write_bytes(data)
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["files"]["config.json"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (run / "manifest.json").write_text(json.dumps(manifest))


def line(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the one line of a command that is refused."""
    capsys.readouterr()
    assert main(list(words)) == 2
    (said,) = capsys.readouterr().err.splitlines()
    return said


def test_a_stranger_s_folder_connects_to_nothing(
    trained: Path, database: socket.socket, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "hush-7")
    address = f"postgresql://me@127.0.0.1:{database.getsockname()[1]}/x"
    (trained / "evil.toml").write_text(RELATIONAL.replace("cards.csv", address))
    evil = f"{trained}/evil.toml"
    rewrite(trained, data=evil)
    resume = ("run", "tablepuppet", "--resume", str(trained), "--quiet", "--out", "on")
    said = line(capsys, *resume)
    assert f"fedactors run tablepuppet --resume {trained} --data {evil}" in said
    assert evil in line(capsys, *resume, "--data", "parties.toml")
    assert "--data: missing" in line(capsys, "audit", str(trained), "--attacks")
    assert "--data: missing" in line(capsys, "submit", "tablepuppet", "--resume", str(trained))
    with pytest.raises(BadInput, match="--data: missing"):
        data_to_audit(RunFolder.open(trained), None)
    with pytest.raises(TimeoutError):
        database.accept()


@pytest.mark.slow
def test_who_names_the_data_goes_on(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resume = ("run", "tablepuppet", "--resume", str(trained), "--quiet", "--out", "on")
    assert "which are opened only if you name them as well" in line(capsys, *resume)
    assert main([*resume, "--data", "./parties.toml"]) == 0
    folder = RunFolder.open(trained)
    assert data_to_resume(folder, str(Path("parties.toml").absolute())) == str(Path("parties.toml").absolute())
    assert data_to_audit(folder, "elsewhere.toml") == "elsewhere.toml"


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        ("fedactors run mtcd", {"data": "bank"}, "fedactors run mtcd --resume 'my runs/1'"),
        ("python mine.py", {"data": "my own.toml"}, "python mine.py --resume 'my runs/1' --data 'my own.toml'"),
        (None, {"data": "bank"}, "fedactors.load_run('my runs/1').resume()"),
        (
            "fedactors run horizontal",
            {"federation": "bank", "data": "shop=x", "address": "auto"},
            "fedactors run horizontal --resume 'my runs/1' --federation bank --address auto",
        ),
    ],
)
def test_the_command_that_resumes_is_whole(command: str | None, options: dict[str, str], words: str) -> None:
    code = ["mine:Net"] if "federation" in options else []
    assert resume_command(command, "my runs/1", RunOptions(**options), code) == words  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_name_of_a_data_set_is_taken_from_the_folder(trained: Path) -> None:
    rewrite(trained, data="orders")
    folder = RunFolder.open(trained)
    assert data_to_resume(folder, None) == data_to_audit(folder, None) == "orders"
    with pytest.raises(BadInput, match="--data given"):
        data_to_resume(folder, "orders")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run mtcd --allow-import x", "--allow-import: 'x' is not allowed: write package.module:function"),
        ("run mtcd --allow-import ::", "--allow-import: '::' is not allowed"),
        ("run mtcd --allow-import=", "--allow-import: '' is not allowed"),
        ("run mtcd --allow-import os:system", "--allow-import: needs --resume"),
        ("run mtcd --resume a --resume b", "--resume: is given twice"),
        ("run mtcd --seeds 0 --seeds 1", "--seeds: is given twice"),
    ],
)
def test_a_flag_that_would_be_ignored_is_refused(words, said, capsys):
    assert main(words.split()) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "words", "name", "text"),
    [
        ("nebulafl", f"{SMALL['nebulafl']} catalogue=mine.toml network=links.toml", "catalogue", CATALOGUE),
        ("mtcd", f"{SMALL['mtcd']} topology=mine.toml", "topology", "0 1\n1 2\n"),
    ],
)
def test_a_run_keeps_what_its_files_hold_and_a_folder_names_none(
    protocol: str,
    words: str,
    name: str,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(text)
    Path("links.toml").write_text(NETWORK)
    assert main(["run", protocol, *words.split(), "--runtime", "simulated", "--quiet", "--out", "runs"]) == 0
    (made,) = Path("runs").iterdir()
    Path("mine.toml").unlink()
    Path("links.toml").unlink()
    again = ["run", protocol, "--resume", str(made), "--quiet", "--out", "on"]
    assert main(again) == 0
    config = RunFolder.open(made).config["config"]
    assert config[name].endswith(text if protocol == "mtcd" else json.dumps(tomllib.loads(text)) + "\n")
    os.mkfifo("pipe")  # whoever opens it waits for ever
    rewrite(made, config={**config, name: str(tmp_path / "pipe")})
    for command in (again, ["predict", str(made), "--data", "digits"], ["export", str(made)]):
        assert f"config.json: {name}: '{tmp_path}/pipe' is not opened" in line(capsys, *command)


USER_DATA = {
    "pubsub-vfl": ("vertical", "shop.csv", "shop"),
    "horizontal": ("horizontal", "a.csv", "a"),
    "glasu": ("graph", "bank.npz", "bank"),
}
"""By protocol its own data, one of their files, and whose it is."""


@pytest.fixture(scope="module")
def user_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("own")
    write_files(root)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("protocol", USER_DATA)
def test_a_run_goes_on_with_the_rows_that_it_began_with(
    protocol: str, user_data: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kind, file, party = USER_DATA[protocol]
    data = tmp_path / kind
    shutil.copytree(user_data / kind, data)
    words = [
        *SMALL.get(protocol, "num_rounds=1 hidden_size=4").split(),
        *(["num_clients=2"] if protocol == "glasu" else []),
    ]
    flags = ["--data", str(data / "parties.toml"), "--runtime", "simulated", "--quiet"]
    assert main(["run", protocol, *words, *flags, "--out", str(tmp_path / "runs")]) == 0, capsys.readouterr().err
    (made,) = (tmp_path / "runs").iterdir()
    again = ["run", protocol, "--resume", str(made), *flags, "--out", str(tmp_path / "on")]
    before = (data / file).read_bytes()
    changed(data / file)
    said = line(capsys, *again)
    assert re.search(
        rf"{party}\S*: {data / file}: the file is another, or read otherwise, than when the run began", said
    )
    assert not (tmp_path / "on").exists() or not list((tmp_path / "on").iterdir())
    (data / file).write_bytes(before)
    assert main(again) == 0


def changed(file: Path) -> None:
    """Change one value of somebody's own file."""
    if file.suffix == ".npz":
        arrays = dict(np.load(file))
        arrays["features"][3, 0] += 0.5
        np.savez(file, **arrays)
        return
    head, first, *rest = file.read_text().splitlines()
    cells = first.split(",")
    cells[1] = str(float(cells[1]) + 0.5)
    file.write_text("\n".join([head, ",".join(cells), *rest, ""]))


def test_a_digest_is_of_what_is_read_and_how_and_not_of_where_it_lies(user_data: Path, tmp_path: Path) -> None:
    data = load_description(user_data / "vertical/parties.toml")
    (tmp_path / "elsewhere.csv").write_bytes((user_data / "vertical/shop.csv").read_bytes())
    source = data.part("shop").source
    assert isinstance(source, FileSource)

    def digest(one: object) -> bytes:
        ((_, found),) = digests_of_files({"part": [one]})
        return found

    assert digest(data.part("shop")) == digest(source)
    assert digest(source) == digest(dataclasses.replace(source, path=str(tmp_path / "elsewhere.csv")))
    others = [dataclasses.replace(source, features=("visits",)), dataclasses.replace(source, id_column="visits")]
    others += [dataclasses.replace(source, path=str(tmp_path / "nowhere.csv"))]
    (tmp_path / "folder").mkdir()
    for name in ("a", "b"):  # the same content, by another name
        (tmp_path / "folder" / name).write_bytes(b"x")
        others.append(dataclasses.replace(source, path=str(tmp_path / "folder")))
        digests = [digest(one) for one in (source, *others)]
        assert len(set(digests)) == len(digests)
        (tmp_path / "folder" / name).unlink()
        others.pop()
    assert digests_of_files([source, {"x": (source, 3)}]) == digests_of_files([source]) * 2
