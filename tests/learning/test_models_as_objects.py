"""Models given as objects of Python: trained, gone on with, predicted with and exported, on either runtime."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedactors
from fedactors.cli import main as cli
from fedactors.config import code_named_in
from fedactors.errors import BadInput
from fedactors.learning.user_models import Fingerprint
from tests.learning.user_networks import FrozenTrunk, Tied

ROOT = Path(__file__).parents[2]
SMALL = {"num_rounds": 2, "num_clients": 3, "num_training": 90}
WIDTH = 8


def scaled(x):
    return x / 2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x):
        return self.layer(scaled(x.flatten(1)))


def seeded(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net()


def make(inputs, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), nn.Tanh(), nn.Linear(WIDTH, outputs))


GIVEN = {
    "module": seeded(),
    "class": Net,
    "function": make,
    "lambda": lambda inputs, outputs: nn.Sequential(nn.Flatten(), nn.Linear(64, outputs)),
    "partial": functools.partial(Tied, (1, 8, 8), outputs=10),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_it_trains_and_the_folder_keeps_its_address_and_source_alone(kind, tmp_path):
    run = fedactors.simulate("horizontal", model=GIVEN[kind], out=tmp_path, **SMALL)
    assert run.config["model"].startswith("object:")
    assert np.isfinite(run.metrics["test/loss"])
    stored = json.loads((run.path / "config.json").read_text())["code"]["model"]
    assert stored["python"].startswith("3.")
    assert not list(run.path.rglob("*.pkl"))
    if kind in ("module", "class"):
        assert "class Net" in stored["source"]


def test_a_module_starts_from_its_own_parameters():
    module = seeded(5)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    runs = [fedactors.simulate("horizontal", model=module, learning_rate=rate, **SMALL) for rate in (1e-12, 0.1)]
    part = runs[0].export(party="server")["server"][0].parent
    trained = fedactors.load_part(part, model=module).bottom.state_dict()
    for name, value in before.items():
        assert torch.allclose(trained[name], value, atol=1e-6)
        assert torch.equal(module.state_dict()[name], value)  # the object itself is never trained


def test_go_on_predict_export_and_load_with_the_object_given_again(tmp_path, capsys):
    whole = fedactors.simulate("horizontal", model=seeded(), out=tmp_path / "a", **SMALL)
    opened = fedactors.load_run(whole.path)
    assert opened.resume(model=seeded(), out=tmp_path / "b").metrics == whole.metrics
    found = fedactors.load_run(whole.path).predict("digits", tmp_path / "p.parquet", model=seeded())
    assert found.outcomes[0].counts.num_predicted > 0
    files = fedactors.load_run(whole.path).export(tmp_path / "model", model=seeded())
    assert {path.name for path in files["server"]} >= {"part.json", "bottom.safetensors", "bottom.pt2"}
    part = fedactors.load_part(tmp_path / "model/server", model=seeded())
    assert part.bottom(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    with pytest.raises(BadInput, match="is needed as well: give model="):
        fedactors.load_part(tmp_path / "model/server")
    with pytest.raises(BadInput, match="is not the one that was given"):
        fedactors.load_part(tmp_path / "model/server", model=seeded(1))
    with pytest.raises(BadInput, match="model: differs from the run's: in its code, its parameters"):
        opened.resume(model=seeded(1))
    with pytest.raises(BadInput, match="model: list is not allowed: give a module, a function or a class"):
        opened.predict("digits", tmp_path / "q.parquet", model=[])
    assert not (tmp_path / "q.parquet").exists()


def test_without_the_object_nothing_goes_on(tmp_path, capsys):
    folder = fedactors.simulate(
        "horizontal", model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), out=tmp_path, **SMALL
    ).path
    line = "model: missing: the run used an object of Python"
    for use in (
        lambda run: run.resume(),
        lambda run: run.predict("digits", tmp_path / "p.parquet"),
        lambda run: run.export(tmp_path / "model"),
    ):
        with pytest.raises(BadInput, match=line):
            use(fedactors.load_run(folder))
    assert cli.main(["run", "horizontal", "--resume", str(folder), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert line in said
    assert "fedactors.load_run(" in said
    with pytest.raises(BadInput, match=r"model: object:Net:0 is not here.*model=\.\.\."):
        fedactors.simulate("horizontal", model="object:Net:0", **SMALL)


def test_parts_of_a_split_network_are_objects_too():
    def bottom(inputs, outputs):
        return nn.Sequential(nn.Linear(inputs[0], 8), nn.Tanh(), nn.Linear(8, outputs))

    run = fedactors.simulate("pubsub-vfl", bottom_model=bottom, num_epochs=1)
    assert run.config["bottom_model"].startswith("object:bottom:")
    with pytest.raises(BadInput, match="BatchNet is not allowed in a split network: buffer"):
        fedactors.simulate("pubsub-vfl", top_model=BatchNet, num_epochs=1)


class BatchNet(nn.Sequential):
    def __init__(self, inputs, outputs):
        super().__init__(nn.Linear(inputs[0], 8), nn.BatchNorm1d(8), nn.Linear(8, outputs))


def test_a_bad_object_is_refused_in_one_line_by_its_name():
    with pytest.raises(BadInput, match=r"model: TooWide is not allowed: given 2 samples .* it returns \(2, 3\), not"):
        fedactors.simulate("horizontal", model=TooWide, **SMALL)
    with pytest.raises(BadInput, match="num_rounds"):
        fedactors.simulate("horizontal", num_rounds=make)


class TooWide(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 3))


def test_between_sites_objects_are_refused():
    from fedactors.launch import resolve
    from fedactors.learning.user_models import hold_code
    from fedactors.options import RunOptions
    from fedactors.plugins import find_protocol

    known = find_protocol("horizontal")
    settings, kept = hold_code(known.Config, {"model": make})
    options = RunOptions.checked(federation="federation.toml", data="a=b")
    with pytest.raises(BadInput, match="model: objects are not allowed between sites"):
        resolve(known, settings, options)
    assert kept[0].content is make
    assert code_named_in(known.Config(**settings)) == {"model": kept[0].address}


# --- identity ---------------------------------------------------------------------------------------------------------

MODULE = """
import torch
from torch import nn
FACTOR = 2.0
NAMES = {"a", "b", "c", "d"}

def helper(x):
    return x * FACTOR

class Net(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(4, outputs))

    def forward(self, x):
        return helper(self.body(x)) if "a" in {"a", "b", "z"} else x

def make():
    torch.manual_seed(0)
    return Net((4,), 2)
"""
ASK = """
from fedactors.learning.user_models import Fingerprint
print(Fingerprint().of(Net), Fingerprint().of(make), Fingerprint().of(make()))
"""


def fingerprints(text: str, tmp_path: Path, hash_seed: str = "1") -> list[str]:
    path = tmp_path / f"script{len(list(tmp_path.iterdir()))}.py"  # another file, whose lines are others
    path.write_text("\n" * len(list(tmp_path.iterdir())) + text + ASK)
    environment = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed, "PATH": "/usr/bin"}
    made = subprocess.run([sys.executable, str(path)], env=environment, capture_output=True, text=True, check=True)
    return made.stdout.split()


def test_identity_is_of_code_and_state_in_any_process(tmp_path):
    first = fingerprints(MODULE, tmp_path)
    assert fingerprints(MODULE, tmp_path, "2") == first
    assert fingerprints(f"# a comment\n{MODULE}", tmp_path) == first
    for old, new in (("x * FACTOR", "x + FACTOR"), ("FACTOR = 2.0", "FACTOR = 3.0"), ("nn.Flatten()", "nn.Tanh()")):
        assert not set(fingerprints(MODULE.replace(old, new), tmp_path)) & set(first), (old, new)
    other_state = fingerprints(MODULE.replace("manual_seed(0)", "manual_seed(1)"), tmp_path)
    assert other_state[0] == first[0]
    assert other_state[2] != first[2]


def test_identity_names_packages_that_are_installed_beside_the_environment(tmp_path):
    outside = tmp_path / "lib" / "site-packages"  # where an environment within another one finds them
    outside.mkdir(parents=True)
    library = outside / "installed_beside.py"
    text = f"import sys; sys.path.insert(0, {str(outside)!r})\nimport installed_beside\n"
    text += "class Net(installed_beside.Net): pass\ndef make(): return installed_beside.STATE"
    found = []
    for number in range(2):
        library.write_text(f"import torch\nSTATE = {number}\nclass Net(torch.nn.Linear):\n    count = {number}\n")
        ask = "\nfrom fedactors.learning.user_models import Fingerprint\nprint(Fingerprint().of(Net))\n"
        environment = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin"}
        asked = [sys.executable, "-c", text + ask]
        found.append(subprocess.run(asked, env=environment, capture_output=True, text=True, check=True).stdout)
    assert found[0] == found[1]


def test_identity_is_not_changed_by_calling_a_model():
    for module in (seeded(), FrozenTrunk((1, 8, 8), 10), BatchNet((4,), 2)):
        first = Fingerprint().of(module)
        module.eval()
        x = torch.zeros(2, 4) if isinstance(module, BatchNet) else torch.zeros(2, 1, 8, 8)
        module(x)
        assert Fingerprint().of(module) == first
        next(iter(module.parameters())).data.add_(1)
        assert Fingerprint().of(module) != first


def test_two_objects_that_refer_to_one_another_have_a_fingerprint():
    one = types_of_cycle()
    assert Fingerprint().of(one) == Fingerprint().of(types_of_cycle())


def types_of_cycle():
    module: Any = nn.Identity()
    module.other = [module, {"set": {1, 2}}, np.arange(3), np.array(["a"], object), print, nn.ReLU, torch.float32]
    return module


# --- Ray and notebooks ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_on_ray_an_object_travels_by_rays_own_serialisation(tmp_path):
    class Local(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 10)

        def forward(self, x):
            return self.layer(x.flatten(1))

    asked = {"num_rounds": 1, "num_clients": 2, "num_training": 60, "model": Local}
    here = fedactors.simulate("horizontal", **asked)
    there = fedactors.run("horizontal", out=tmp_path, **asked)
    assert there.metrics["test/loss"] == pytest.approx(here.metrics["test/loss"], abs=1e-6)
    assert there.predict("digits", tmp_path / "p.parquet").outcomes[0].counts.num_predicted > 0


@pytest.mark.slow
def test_in_a_notebook_a_class_of_a_cell_trains_and_its_redefinition_is_another(tmp_path):
    import nbclient
    import nbformat

    code = """
import torch, fedactors
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)
    def forward(self, x):
        return self.layer(x.flatten(1))

run = fedactors.simulate("horizontal", model=Net, num_rounds=2, num_clients=3, num_training=90, out="runs")
run.metrics["test/accuracy"]
"""
    again = code.split("run =")[0].replace("x.flatten(1)", "2 * x.flatten(1)")
    use = """
import pytest
from fedactors.errors import BadInput
with pytest.raises(BadInput, match="in its code, its parameters"):
    fedactors.load_run(run.path).resume(model=Net)
print("refused")
"""
    cells = [nbformat.v4.new_code_cell(one) for one in (code, f"{again}\n{use}", code.replace("run =", "second ="))]
    book = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert "refused" in str(book.cells[1].outputs)
    addresses = {json.loads(path.read_text())["config"]["model"] for path in tmp_path.rglob("config.json")}
    assert len(addresses) == 1
