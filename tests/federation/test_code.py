"""A model of one's own between sites: its files travel by digest, each site allows them, and nobody imports others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fedactors import launch, load_part, user_code
from fedactors.cli.main import main
from fedactors.config import as_dict, build, load_code, spell_infinities
from fedactors.errors import BadInput, FedactorsError
from fedactors.federation import site_code
from fedactors.federation.approval import (
    as_tree,
    check_proposal,
    decide,
    decision,
    keep_proposal,
    kept_proposals,
    make_proposal,
)
from fedactors.federation.site_code import allowed_code, proposed_code
from fedactors.federation.site_folder import SITE
from fedactors.plugins import find_protocol
from fedactors.protocols.horizontal.config import HorizontalConfig
from fedactors.protocols.horizontal.data import load_data
from fedactors.protocols.horizontal.run import run as run_horizontal
from fedactors.runs.folder import RunFolder
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.federation.hostile_sites import Rogue
from tests.federation.test_centers import SMALL as CENTERS
from tests.federation.test_centers import flags, write_centers
from tests.federation.test_ray_sites import ACTOR, WithRay
from tests.federation.test_runs import SMALL, VERTICAL
from tests.federation.world import BANK, CLINIC, SHOP, World

NETS = """
import pathlib
from torch import nn
pathlib.Path({marker!r}).touch()

class Net(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.trunk, self.head = nn.Linear(inputs[0], 6), nn.Linear(6, outputs)

    def forward(self, x):
        return self.head(self.trunk(x).tanh())

def loss(outputs, targets):
    return nn.functional.binary_cross_entropy_with_logits(outputs.flatten(), targets.float().flatten())
"""
RUN = ("--data", "bank=patients,shop=cases", "num_rounds=3", "local_baseline=false", "--format=json")


def allow(world: World, policy: str = 'code = "person"', names: tuple[str, ...] = (BANK, SHOP)) -> None:
    for name in names:
        file = world.path / name / SITE
        file.write_text(f"{file.read_text()}\n[policy]\n{policy}\n")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    (tmp_path / "nets.py").write_text(NETS.format(marker=str(tmp_path / "imported")))
    yield made
    made.stop()


def begin(world: World, policy: str = 'code = "person"', names: tuple[str, ...] = (BANK, SHOP)) -> None:
    allow(world, policy, names)
    for name in (BANK, SHOP):
        world.start(name)


def words(world: World, *more: str) -> list[str]:
    federation, out = str(world.path / BANK / "federation.toml"), str(world.path / "runs")
    return ["run", "horizontal", "--federation", federation, "--out", out, *RUN, *more]


def with_nets(world: World, *more: str) -> list[str]:
    return words(world, "--code", str(world.path / "nets.py"), "model=nets:Net", "loss=nets:loss", *more)


def proposed_to(world: World, name: str, known: int = 0) -> str:
    end = time.monotonic() + 60
    while len(found := list(kept_proposals(world.folder(name)))) <= known:
        assert time.monotonic() < end, "nothing was proposed"
        time.sleep(0.05)
    return found[-1]


def as_person(world: World, known: int = 0) -> threading.Thread:
    """The person of each site, who allows the code and approves the run."""

    def work() -> None:
        for name in (BANK, SHOP):
            run, folder = proposed_to(world, name, known), str(world.path / name)
            if name == SHOP and not allowed_code(world.folder(SHOP)):
                assert main(["site", "approve", run, "--folder", folder]) == 2  # not before its code
                assert main(["site", "code", run, "--folder", folder]) == 0
                assert main(["site", "allow-code", run, "--folder", folder, "--why", "read it"]) == 0
            assert main(["site", "show", run, "--folder", folder]) == 0
            assert main(["site", "approve", run, "--folder", folder]) == 0

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def last(out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(next(line for line in reversed(out.splitlines()) if line.startswith('{"')))
    return found


def test_a_model_and_loss_train_resume_predict_and_export(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    begin(world)
    person = as_person(world)
    assert main(with_nets(world, "--share-seed", "--seed", "7")) == 0
    person.join(30)
    said = capsys.readouterr()
    run = last(said.out)
    assert "is not allowed here: read it with fedactors site code" in said.err
    assert "class Net" in said.out
    assert "code of its own, which you have allowed here: nets.py" in said.out
    [line] = [one for one in world.audit(SHOP) if one["what"] == "allowed_code"]
    assert (line["why"], line["files"]) == ("read it", "nets.py")

    address = json_of(run)["model"]
    assert user_code.digest_in(address) == line["code"]
    alone = as_in_one_process(world, run)
    assert {key: run["metrics"][key] for key in alone} == pytest.approx(alone)

    person = as_person(world, known=1)
    federation = str(world.path / BANK / "federation.toml")
    again = ["run", "horizontal", "--federation", federation, "--resume", run["run"], "--out", str(world.path / "runs")]
    assert main([*again, "--format=json"]) == 0
    person.join(30)
    assert last(capsys.readouterr().out)["metrics"] == run["metrics"]

    person = as_person(world, known=2)
    flags = ("--federation", federation, "--data", "bank=patients,shop=cases", "--output", "said.csv")
    assert main(["predict", run["run"], *flags]) == 0
    person.join(30)
    [said_there] = (world.path / SHOP).rglob("said-shop.csv")
    assert len(said_there.read_text().splitlines()) == 61

    to = ("--output", str(world.path / "part"))
    [other] = (world.path / SHOP / "runs").glob(f"*-{list(kept_proposals(world.folder(SHOP)))[1]}-0")
    both = f"--allow-import={address},{json_of(run)['loss']}"
    assert main(["export", str(other), *to, both]) == 2
    assert "no actor of this run has a part of the model: export there, at the site bank" in capsys.readouterr().err
    # the server, which has the model, is at the bank
    [there] = (world.path / BANK / "runs").glob(f"*-{list(kept_proposals(world.folder(BANK)))[1]}-0")
    assert main(["export", str(there), *to, f"--allow-import={address}"]) == 2  # the loss is code too
    assert main(["export", str(there), *to, both]) == 0
    [file] = (world.path / "part").rglob("part.json")
    part = load_part(file.parent, allow_import=(address,))
    assert part.bottom(torch.zeros(2, 4)).shape == (2, 1)


def as_in_one_process(world: World, run: dict[str, Any]) -> dict[str, float]:
    """The test metrics of the same run in the simulated runtime."""
    parties = [
        f'[parties.{name}]\npath = "{world.path / name / "patients.csv"}"\nlabel = "bad"\n' for name in (BANK, SHOP)
    ]
    task = f'type = "binary"\nlayout = "horizontal"\nclasses = ["0", "1"]\ntest = "{world.path / BANK / "test.csv"}"'
    file = world.path / "parties.toml"
    file.write_text("\n".join([f"[task]\n{task}\n", *parties]))
    config = build(HorizontalConfig, json_of(run))
    data = load_data(config, str(file), 7)
    runtime = SimulatedRuntime(seed=7, recorder=MemoryRecorder())
    found = runtime.execute(partial(run_horizontal, config, data, runtime)).metrics
    return {key: float(value) for key, value in found.items() if key.startswith("test/")}


def json_of(run: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(run["run"]) / "config.json").read_text())["config"]
    return found


def test_a_site_that_allows_no_code_refuses_it_and_imports_nothing(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(world, names=(BANK,))
    person = world.answer(names=(BANK,), seconds=20)
    assert main(with_nets(world)) == 3
    assert 'shop: policy.code: no code of others is imported here ("refuse")' in capsys.readouterr().err
    assert not proposed_code(world.folder(SHOP))
    assert not allowed_code(world.folder(SHOP))
    person.join(30)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["model=nets:Net"], "code that the run does not bring: give --code nets.py"),
        (["--code", "{}/nets.py"], "--code: no setting names it, such as model=nets:NAME"),
        (["--code", "{}/nothing.py", "model=nothing:Net"], "nothing.py' does not exist"),
        (["--code", "{}/nets.py", "model=nets:pathlib"], "name a function or class that the files define themselves"),
        (["--code", "{}/nets.py", "model=nets:Other"], "has no Other"),
        (["--code", "{}/nets.py", "model=torch.nn:Linear"], "code that the run does not bring: give --code torch.py"),
        (["--code", "{}/bad-name.py", "model=bad:Net"], "its name and its folders' are letters"),
    ],
)
def test_code_that_a_run_does_not_bring_is_refused_in_one_line(
    world: World, capsys: pytest.CaptureFixture[str], given: list[str], said: str
) -> None:
    allow(world)
    (world.path / "bad-name.py").write_text("")
    assert main(words(world, *[word.format(world.path) for word in given])) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len([line for line in err.splitlines() if line.startswith("fedactors:")]) == 1


def bring(world: World) -> Any:
    """A proposal with the code of `NETS`, as the bank would make it."""
    protocol, files = find_protocol("horizontal"), user_code.read_files([world.path / "nets.py"])
    digest = site_code.allow(world.folder(BANK), files, "mine")
    settings = {"on_party_loss": "stop", "model": f"{user_code.PACKAGE}{digest}.nets:Net", "local_baseline": False}
    config = spell_infinities(as_dict(build(protocol.Config, settings)))
    made = make_proposal(
        world.folder(BANK), protocol, config, "bank=patients,shop=cases", None, code=user_code.digests(files)
    )
    (world.path / "imported").unlink(missing_ok=True)
    for name in [one for one in sys.modules if one.startswith(user_code.PACKAGE)]:
        del sys.modules[name]
    return made, files


def said_of(rogue: Rogue, *args: Any) -> str:
    try:
        rogue.say(("propose", args))
    except (FedactorsError, TimeoutError) as error:
        return str(error)
    return ""


def test_nothing_is_imported_before_the_person_has_allowed_it(world: World) -> None:
    """A coordinator proposes files with an effect at their import, to a policy that answers by itself."""
    begin(world, 'code = "person"\napprove = "policy"', names=(SHOP,))
    allow(world, names=(BANK,))
    made, files = bring(world)
    rogue = Rogue(world)
    rogue.proposal = made
    proposing = threading.Thread(target=said_of, args=(rogue, as_tree(made), dict(files)), daemon=True)
    proposing.start()
    run = proposed_to(world, SHOP)
    end = time.monotonic() + 20
    while not any("not the policy's to answer: its code" in line for line in world.output[SHOP]):
        assert time.monotonic() < end, world.output[SHOP]
        time.sleep(0.05)
    folder = world.folder(SHOP)
    for action in ("show", "approve"):
        assert main(["site", action, run, "--folder", str(folder.path)]) == 2
    assert not (world.path / "imported").exists()
    assert proposed_code(folder)
    assert not allowed_code(folder)


@pytest.mark.parametrize("kind", ["other files", "too large", "no files"])
def test_files_that_are_not_what_the_proposal_says_are_refused(world: World, kind: str) -> None:
    begin(world, names=(SHOP,))
    allow(world, names=(BANK,))
    made, _ = bring(world)
    wrong: dict[str, Any] = {"other files": b"import os", "too large": b"#" * 40_000, "no files": 1}
    rogue = Rogue(world)
    rogue.proposal = made
    said_of(rogue, as_tree(made), {"nets.py": wrong[kind]})
    assert any("its files are" in line for line in world.refusals(SHOP))
    assert not proposed_code(world.folder(SHOP))
    assert not (world.path / "imported").exists()


def test_code_that_was_changed_on_disk_is_not_imported(world: World) -> None:
    allow(world)
    made, _ = bring(world)
    folder = world.folder(BANK)
    user_code._held.clear()
    [digest] = allowed_code(folder)
    (folder.path / "code" / digest / "nets.py").write_text("import os")
    with pytest.raises(BadInput, match="were changed"):
        check_proposal(made, folder)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("system", "name a function or class that the files define themselves"),
        ("loss(outputs=1)", "name a function that takes no arguments of the setting"),
    ],
)
def test_a_setting_that_names_what_the_code_imports_is_refused(world: World, name: str, said: str) -> None:
    """Of code that is allowed here a proposal names what the files only import, or chooses the arguments."""
    (world.path / "nets.py").write_text("from os import system\n" + NETS.format(marker=str(world.path / "imported")))
    allow(world)
    made, _ = bring(world)
    config = {**made.config, "loss": f"{made.config['model'].partition(':')[0]}:{name}"}
    with pytest.raises(BadInput, match=said):
        check_proposal(replace(made, config=config), world.folder(BANK))


def test_a_signature_of_a_named_person_allows_code_and_no_other_does(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    from cryptography.hazmat.primitives import serialization

    from fedactors.federation.identity import make_key

    keys = {name: make_key(world.path / f"{name}.pem") for name in ("alice", "mallory")}
    public = (
        keys["alice"]
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    policy = f'code = "signed"\napprove = "policy"\ncode_signers.alice = """\n{public.decode()}"""'
    begin(world, policy)
    file = str(world.path / "nets.py")
    for name, code in (("mallory", 2), ("alice", 0)):
        assert main(["site", "sign-code", file, "--signing-key", str(world.path / f"{name}.pem")]) == 0
        assert main(with_nets(world)) == code, capsys.readouterr().err
        if code:
            assert "bears no signature of alice" in capsys.readouterr().err
    [line] = [one for one in world.audit(SHOP) if one["what"] == "allowed_code"]
    assert line["why"] == "signed by alice"
    # signed before, and changed since
    (world.path / "nets.py").write_text("# changed\n" + (world.path / "nets.py").read_text())
    assert main(with_nets(world)) == 2
    assert "bears no signature of alice" in capsys.readouterr().err


def test_a_run_whose_id_is_the_beginning_of_another_code_allows_nothing(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """A coordinator chooses the ids of its runs: one is as the code that the person means begins."""
    allow(world)
    made, _ = bring(world)
    folder = world.folder(SHOP)
    meant = user_code.digest_of(user_code.digests({"good.py": b"x = 1\n"}))
    user_code.write_folder(folder.path / "proposals" / "code", {"good.py": b"x = 1\n"})
    keep_proposal(folder, replace(made, run=meant[:16]))
    assert main(["site", "allow-code", meant[:16], "--folder", str(folder.path)]) == 2
    assert "may be either code of" in capsys.readouterr().err
    assert not allowed_code(folder)
    assert main(["site", "allow-code", meant, "--folder", str(folder.path)]) == 0
    assert allowed_code(folder) == [meant]


def test_a_run_whose_id_begins_as_a_code_that_is_gone_allows_nothing(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """A coordinator lets code that a person has read give way, and has chosen the id of a run after it."""
    allow(world)
    made, files = bring(world)
    folder = world.folder(SHOP)
    read = user_code.digest_of(user_code.digests({"good.py": b"x = 1\n"}))
    keep_proposal(folder, replace(made, run=read[:16]))
    user_code.write_folder(folder.path / "proposals" / "code", files)
    assert main(["site", "allow-code", read[:12], "--folder", str(folder.path)]) == 2
    assert "is no code here, and no whole id of a run with code" in capsys.readouterr().err
    assert not allowed_code(folder)
    assert main(["site", "allow-code", read[:16], "--folder", str(folder.path)]) == 0  # the run itself


def test_an_id_of_a_run_is_never_of_other_code(world: World) -> None:
    """A person has read the code of a run; its coordinator lets it be forgotten, and proposes other code by its id."""
    begin(world, names=(SHOP,))
    allow(world, names=(BANK,))
    made, files = bring(world)
    folder = world.folder(SHOP)

    def propose(one: Any, code: dict[str, bytes]) -> str:
        rogue = Rogue(world)
        rogue.proposal = one
        found = list[str]()
        thread = threading.Thread(target=lambda: found.append(said_of(rogue, as_tree(one), code)), daemon=True)
        thread.start()
        end = time.monotonic() + 30
        while thread.is_alive() and time.monotonic() < end:
            kept = kept_proposals(world.folder(SHOP)).get(one.run)
            if kept is not None and kept.digest == one.digest and decision(folder, one) is None:
                decide(folder, one, approved=False)
            time.sleep(0.05)
        thread.join(1)
        return "".join(found)

    assert "rejected" in propose(made, dict(files))
    kept = folder.path / "proposals" / f"{made.run}.json"
    for file in (kept, kept.with_suffix(".decision.json")):  # as `_remove_rejected` does, after a thousand
        file.unlink()
    other = {"nets.py": files["nets.py"] + b"import os\n"}
    digest = user_code.digest_of(user_code.digests(other))
    config = {**made.config, "model": f"{user_code.PACKAGE}{digest}.nets:Net"}
    assert "was proposed before" in propose(replace(made, code=user_code.digests(other), config=config), other)
    assert not kept.exists()


def test_a_strangers_run_chooses_no_arguments_for_code_that_a_site_allows(world: World) -> None:
    allow(world)
    made, _ = bring(world)
    config = build(HorizontalConfig, made.config)
    federation = str(world.path / BANK / "federation.toml")
    assert launch._allowed_at(federation, config) == [config.model]
    assert launch._allowed_at(federation, replace(config, model=f"{config.model}(inputs=(9,))")) == []


@pytest.mark.parametrize("kind", ["link", "pipe", "many", "large"])
def test_files_in_a_strangers_folder_are_not_read_whatever_they_are(tmp_path: Path, kind: str) -> None:
    files = {
        "many": {f"part_{number}.py": b"" for number in range(user_code.MOST_FILES + 1)},
        "large": {"nets.py": b"#" * (user_code.MOST_BYTES + 1)},
    }.get(kind, {"nets.py": b"x = 1\n"})
    folder = tmp_path / user_code.digest_of(user_code.digests(files))
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    if kind in ("link", "pipe"):
        file = (folder / "nets.py").rename(tmp_path / "other.py")
        os.mkfifo(folder / "nets.py") if kind == "pipe" else (folder / "nets.py").symlink_to(file)
    with pytest.raises(BadInput, match="were changed"):
        user_code.read_folder(folder)


def test_a_run_folder_in_a_store_keeps_its_code() -> None:
    import fsspec

    digest = user_code.hold({"nets.py": b"x = 1\n", "more/layers.py": b"y = 2\n"})
    try:
        folder = RunFolder.create("memory://runs", "own", 0, {"protocol": "horizontal"})
        folder.keep_code(digest)
        folder.write_manifest()
        user_code._held.clear()
        there = RunFolder.open(folder.location)
        there.verify()
        assert user_code.files_of(digest) == {"nets.py": b"x = 1\n", "more/layers.py": b"y = 2\n"}
    finally:
        fsspec.filesystem("memory").rm("/runs", recursive=True)


def test_code_of_several_files_is_signed_and_allowed_as_run_takes_it(world: World) -> None:
    allow(world, names=(SHOP,))
    (world.path / "layers.py").write_text("x = 1\n")
    (world.path / "linked.py").symlink_to(world.path / "nets.py")
    paths = [str(world.path / name) for name in ("linked.py", "layers.py")]
    files = user_code.read_files(paths)
    digest = user_code.digest_of(user_code.digests(files))
    folder = str(world.path / SHOP)
    assert main(["site", "allow-code", ",".join(paths), "--folder", folder]) == 0
    assert allowed_code(world.folder(SHOP)) == [digest]
    signed_by(world, "alice")
    assert main(["site", "sign-code", ",".join(paths), "--signing-key", str(world.path / "alice.pem")]) == 0
    assert user_code.read_signature(paths)


@pytest.mark.parametrize("name", ["~nobody-here/nets.py", "a" * 300], ids=["nobody", "long"])
def test_a_path_that_no_system_knows_is_told_in_a_line(
    world: World, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    allow(world)
    assert main(["site", "allow-code", name, "--folder", str(world.path / SHOP)]) == 2
    assert "is no code here" in capsys.readouterr().err
    assert main(words(world, "--code", name, "model=nets:Net")) == 2
    assert "does not exist" in capsys.readouterr().err


def test_removed_code_is_allowed_no_more(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    allow(world)
    made, _ = bring(world)
    folder = world.folder(BANK)
    [digest] = allowed_code(folder)
    assert main(["site", "remove-code", digest[:8], "--folder", str(folder.path), "--why", "old"]) == 0
    with pytest.raises(BadInput, match="is not here: get the files from bank"):
        check_proposal(made, world.folder(BANK))
    assert [one["code"] for one in world.audit(BANK) if one["what"] == "removed_code"] == [digest]
    assert main(["site", "code", "--folder", str(folder.path)]) == 0
    assert "no code is allowed here" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.drawn(2, family="ray sites")
def test_processes_of_a_sites_ray_import_the_code_that_its_site_allowed(tmp_path: Path) -> None:
    world = WithRay(tmp_path)
    try:
        (tmp_path / "nets.py").write_text(NETS.format(marker=str(tmp_path / "imported")))
        allow(world)
        person, seen, is_over = as_person(world), set[int](), threading.Event()

        def look() -> None:
            while not is_over.wait(0.1):
                seen.update(one.pid for one in world.processes_of_shop(ACTOR))

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        assert main(with_nets(world)) == 0
        is_over.set()
        looking.join(10)
        person.join(30)
        assert seen
    finally:
        world.stop()


@pytest.mark.parametrize(
    "name", ["../../stolen.py", "../../code/{other}/nets.py", "{world}/stolen.py", "nets.sh", "{long}.py"]
)
def test_files_by_names_that_lead_elsewhere_are_written_nowhere(world: World, name: str) -> None:
    """A coordinator says itself how its files are named: a path out of the folder of what waits is none of them."""
    begin(world, names=(SHOP,))
    allow(world, names=(BANK,))
    made, _ = bring(world)
    content = b"import os"
    other = user_code.digest_of(user_code.digests({"nets.py": content}))
    files = {name.format(other=other, world=world.path, long="a" * 300): content}
    rogue = Rogue(world)
    rogue.proposal = replace(made, code=user_code.digests(files))
    before = {path for path in world.path.rglob("*") if path.suffix in (".py", ".sh")}
    said_of(rogue, as_tree(rogue.proposal), files)
    assert any("proposal: code: " in line and "is not allowed" in line for line in world.refusals(SHOP))
    assert {path for path in world.path.rglob("*") if path.suffix in (".py", ".sh")} == before
    assert not allowed_code(world.folder(SHOP))


def test_a_proposal_that_cannot_be_leaves_no_files(world: World) -> None:
    begin(world, names=(SHOP,))
    allow(world, names=(BANK,))
    made, files = bring(world)
    rogue = Rogue(world)
    rogue.proposal = replace(made, federation="another")
    said_of(rogue, as_tree(rogue.proposal), dict(files))
    assert world.refusals(SHOP)
    assert not proposed_code(world.folder(SHOP))


HIDDEN = {
    "another encoding": b"# coding: utf-7\n# +AAo-import os\n",
    "no text": b"x = '\xff'\n",
}


@pytest.mark.parametrize("kind", HIDDEN)
def test_files_that_python_reads_otherwise_than_a_person_are_refused(world: World, kind: str) -> None:
    """The declared encoding of a file may turn a comment into code."""
    begin(world, names=(SHOP,))
    allow(world, names=(BANK,))
    made, _ = bring(world)
    files = {"nets.py": HIDDEN[kind]}
    rogue = Rogue(world)
    digest = user_code.digest_of(user_code.digests(files))
    config = {**made.config, "model": f"{user_code.PACKAGE}{digest}.nets:Net"}
    rogue.proposal = replace(made, code=user_code.digests(files), config=config)
    said_of(rogue, as_tree(rogue.proposal), files)
    assert any("nets.py" in line and "UTF-8" in line for line in world.refusals(SHOP)), world.refusals(SHOP)
    assert not proposed_code(world.folder(SHOP))
    (world.path / "nets.py").write_bytes(HIDDEN[kind])
    with pytest.raises(BadInput, match="UTF-8"):
        user_code.read_files([world.path / "nets.py"])


def test_printed_files_show_each_character_that_hides_or_moves_text(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "# one\rimport os\n# \x1b[2K \u202e \u200b \u2028 \x0c\nname = '\u0430'\n"
    (world.path / "nets.py").write_bytes(text.encode())
    folder = str(world.path / BANK)
    assert main(["site", "allow-code", str(world.path / "nets.py"), "--folder", folder]) == 0
    [digest] = allowed_code(world.folder(BANK))
    capsys.readouterr()
    assert main(["site", "code", digest, "--folder", folder]) == 0
    out = capsys.readouterr().out
    assert "    2 import os\n" in out  # where Python ends a line, too
    assert "    3 # \\x1b[2K \\u202e \\u200b \\u2028 \\x0c\n" in out
    assert "nets.py: line 4 has letters that may look like others: \\u0430" in out


def test_what_python_runs_is_the_text_that_was_printed() -> None:
    files = {"nets.py": b"found = []\r# one\rfound.append(1)\n# coding: latin-1\nname = '\xc3\xa9'\n"}
    digest = user_code.hold(files)
    module = __import__(f"{user_code.PACKAGE}{digest}.nets", fromlist=["found"])
    assert (module.found, module.name) == ([1], "é")


def test_code_that_was_removed_stays_so_though_a_signature_allows_it(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    allow(world, signed_by(world, "alice"), names=(SHOP,))
    allow(world, names=(BANK,))
    made, files = bring(world)
    assert main(["site", "sign-code", str(world.path / "nets.py"), "--signing-key", str(world.path / "alice.pem")]) == 0
    made = replace(made, code_signature=user_code.read_signature([world.path / "nets.py"]))
    folder = world.folder(SHOP)
    site_code.take_code(folder, made, (dict(files),))
    [digest] = allowed_code(folder)
    flags = ("--folder", str(folder.path))
    assert main(["site", "remove-code", digest, *flags]) == 0
    site_code.take_code(folder, made, (dict(files),))
    assert not allowed_code(folder)
    assert "fedactors site allow-code" in site_code.why_not_allowed(folder, made)
    assert main(["site", "allow-code", digest, *flags]) == 0
    assert allowed_code(folder) == [digest]


def signed_by(world: World, name: str) -> str:
    """A policy by which that person's signature allows code; the key is made beside the sites."""
    from cryptography.hazmat.primitives import serialization

    from fedactors.federation.identity import make_key

    kind, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    public = make_key(world.path / f"{name}.pem").public_key().public_bytes(kind, form).decode()
    return f'code = "signed"\napprove = "policy"\ncode_signers.{name} = """\n{public}"""'


def test_code_whose_files_are_damaged_is_listed_removed_and_allowed_again(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    allow(world)
    bring(world)
    folder = world.folder(BANK)
    [digest] = allowed_code(folder)
    (folder.path / "code" / digest / "nets.py").write_text("import os")
    flags = ("--folder", str(folder.path))
    assert main(["site", "code", *flags]) == 0
    assert "damaged" in capsys.readouterr().out
    assert main(["site", "remove-code", digest, *flags]) == 0
    assert not allowed_code(folder)
    assert main(["site", "allow-code", str(world.path / "nets.py"), *flags]) == 0
    assert user_code.read_folder(folder.path / "code" / digest)


def test_two_processes_that_write_the_same_code_at_once_leave_it_whole(tmp_path: Path) -> None:
    files = {f"part_{number}.py": b"#" * 1000 for number in range(50)}
    failed: list[BaseException] = []

    def write() -> None:
        try:
            user_code.write_folder(tmp_path / "code", files)
        except BaseException as error:
            failed.append(error)

    for _ in range(10):
        threads = [threading.Thread(target=write) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        [made] = (tmp_path / "code").iterdir()
        assert user_code.read_folder(made) == files
        for file in made.iterdir():
            file.unlink()
        made.rmdir()
    assert not failed


def test_a_package_that_a_stranger_made_takes_no_file_from_elsewhere_along(tmp_path: Path) -> None:
    package = tmp_path / "work" / "nets"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (tmp_path / "secret.py").write_text("password = 1")
    (package / "layers.py").symlink_to(tmp_path / "secret.py")
    with pytest.raises(BadInput, match=r"nets/layers.py.* is a link"):
        user_code.read_files([package])
    (package / "layers.py").unlink()
    (package / "layers.py").mkdir()
    with pytest.raises(BadInput, match=r"nets/layers.py.* is no file"):
        user_code.read_files([package])


def test_files_keep_the_names_that_they_are_given_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = tmp_path / "versions" / "second"
    versions.mkdir(parents=True)
    (versions / "__init__.py").write_text("")
    (tmp_path / "nets").symlink_to(versions)
    (versions / "layers.py").write_text("")
    assert list(user_code.read_files([tmp_path / "nets"])) == ["nets/__init__.py", "nets/layers.py"]
    monkeypatch.chdir(versions)
    assert list(user_code.read_files(["."])) == ["second/__init__.py", "second/layers.py"]


@pytest.mark.parametrize("content", [b"\xff\xfe", b"0" * 2000, b"no digits"], ids=["binary", "long", "words"])
def test_a_file_beside_the_code_that_holds_no_signature_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "nets.py.sig").write_bytes(content)
    with pytest.raises(BadInput, match=r"nets.py.sig.* holds no signature"):
        user_code.read_signature([tmp_path / "nets.py"])


def test_no_folder_on_the_path_replaces_code_that_was_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = user_code.hold({"nets.py": b"whose = 'allowed'\n"})
    other = tmp_path / f"{user_code.PACKAGE}{digest}"
    other.mkdir()
    (other / "nets.py").write_text("whose = 'path'\n")
    (other / "more.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    module = __import__(f"{user_code.PACKAGE}{digest}.nets", fromlist=["whose"])
    assert module.whose == "allowed"
    with pytest.raises(ImportError):
        __import__(f"{user_code.PACKAGE}{digest}.more")


def test_code_of_others_imports_nothing_from_where_a_site_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There predictions and proposals lie, in folders whose names are modules' too."""
    (tmp_path / "beside_the_site.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one not in ("", str(tmp_path))])
    digest = user_code.hold({"nets.py": b"import beside_the_site\n\ndef loss(outputs, targets):\n    return 0\n"})
    with pytest.raises(BadInput, match="No module named 'beside_the_site'"):
        load_code("loss", f"{user_code.PACKAGE}{digest}.nets:loss")


PACKAGE = {
    "__init__.py": "from .layers import Net\n\ndef metric(outputs, targets):\n"
    "    return (outputs.flatten() > 0).float().mean()\n",
    "layers.py": "from torch import nn\n\nclass Net(nn.Module):\n    def __init__(self, inputs, outputs):\n"
    "        super().__init__()\n        self.trunk, self.head = nn.Linear(inputs[0], 6), nn.Linear(6, outputs)\n\n"
    "    def forward(self, x):\n        return self.head(self.trunk(x).tanh())\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["horizontal", "nebulafl"])
def test_a_package_trains_at_three_sites_whose_policies_answer(
    tmp_path: Path, protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path, (BANK, SHOP, CLINIC))
    package = tmp_path / "nets"
    package.mkdir()
    for name, text in PACKAGE.items():
        (package / name).write_text(text)
    allow(world, 'code = "person"\napprove = "policy"', world.names)
    try:
        for name in world.names:
            if name != BANK:
                assert main(["site", "allow-code", str(package), "--folder", str(tmp_path / name)]) == 0
            world.start(name)
        write_centers(world)
        federation, out = str(tmp_path / BANK / "federation.toml"), str(tmp_path / "runs")
        data = "bank=patients,shop=cases,clinic=cured"
        more = {
            "horizontal": ("num_rounds=3", "secure_aggregation=true", "metric=nets:metric", "local_baseline=false"),
            "nebulafl": (*(word for word in CENTERS if word != "model=linear"), *flags(world)),
        }[protocol]
        given = ("--federation", federation, "--out", out, "--data", data, "--code", str(package), "--format=json")
        assert main(["run", protocol, *given, "model=nets.layers:Net", *more]) == 0, capsys.readouterr().err
        run = last(capsys.readouterr().out)
        assert run["metrics"]["test/accuracy"] > 0.6
        if protocol == "nebulafl":
            return
        assert 0 <= run["metrics"]["test/metric"] <= 1
        # the server, which has the model, is at the bank; another process knows nothing of this one's code
        [there] = (tmp_path / BANK / "runs").iterdir()
        code = json_of(run)["model"] + "," + json_of(run)["metric"]
        command = [sys.executable, "-m", "fedactors", "export", str(there), "--output", str(tmp_path / "part")]
        command.append(f"--allow-import={code}")
        made = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert made.returncode == 0, made.stderr
        [part] = (tmp_path / "part").rglob("part.json")
        load = "import sys; from fedactors import load_part; load_part(sys.argv[1], allow_import=tuple(sys.argv[2:]))"
        command = [sys.executable, "-c", load, str(part.parent), json_of(run)["model"]]
        made = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert made.returncode == 0, made.stderr
    finally:
        world.stop()


NETWORKS = """
from torch import nn


def bottom(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs[0], 6), nn.Tanh(), nn.Linear(6, outputs))
"""


@pytest.mark.parametrize(
    ("protocol", "named", "more"),
    [
        ("pubsub-vfl", "bottom_model", (*SMALL, "algorithm=vfl")),
        ("mtcd", "user_network", ("problem=network", "num_rounds=2", "num_clients=2", "relaxed_protocol=true")),
    ],
)
def test_networks_of_a_vertical_run_train_at_sites_that_allow_them(
    tmp_path: Path,
    protocol: str,
    named: str,
    more: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(tmp_path)
    file = tmp_path / "networks.py"
    file.write_text(NETWORKS)
    allow(world, 'code = "person"\napprove = "policy"')
    try:
        assert main(["site", "allow-code", str(file), "--folder", str(tmp_path / SHOP)]) == 0
        for name in (BANK, SHOP):
            world.start(name)
        federation, out = str(tmp_path / BANK / "federation.toml"), str(tmp_path / "runs")
        given = ("--federation", federation, "--out", out, "--data", VERTICAL, "--code", str(file), "--format=json")
        assert main(["run", protocol, *given, f"{named}=networks:bottom", *more]) == 0, capsys.readouterr().err
        run = last(capsys.readouterr().out)
        assert user_code.digest_in(json_of(run)[named])
        assert 0 < run["metrics"]["test/loss"] < 10, run["metrics"]
        if protocol == "mtcd":
            return
        # what a site has allowed it serves
        served: list[str] = []

        def serve(parts: dict[str, Any], *_: Any) -> int:
            served.extend(parts)
            return 0

        monkeypatch.setattr("fedactors.cli.sites.serve_parts", serve)
        [there] = (tmp_path / SHOP / "runs").iterdir()
        words = ["serve", str(there), "--folder", str(tmp_path / SHOP), "--rows", "orders"]
        assert main(words) == 0, capsys.readouterr().err
        assert served == [SHOP]
        [digest] = allowed_code(world.folder(SHOP))
        assert main(["site", "remove-code", digest, "--folder", str(tmp_path / SHOP)]) == 0
        assert main(words) == 2
    finally:
        world.stop()


def test_a_site_does_not_come_back_to_a_run_whose_code_was_removed(world: World) -> None:
    begin(world, names=(SHOP,))
    allow(world, names=(BANK,))
    made, files = bring(world)
    config = {**made.config, "min_sites": 1, "on_party_loss": "continue"}
    made = replace(made, config=config)
    folder = world.folder(SHOP)
    digest = site_code.allow(folder, files, "read it")
    keep_proposal(folder, made)
    decide(folder, made, approved=True)
    site_code.remove(folder, digest, "no more")
    rogue = Rogue(world)
    rogue.proposal = made
    said_of(rogue, as_tree(made), dict(files))
    assert any("is not allowed here: read it with" in line for line in world.refusals(SHOP)), world.output[SHOP]
    assert not (world.path / "imported").exists()
