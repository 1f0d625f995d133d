"""Every bad input ends a command with code 2 and one line that names the field, the value and what is allowed."""

import pytest

from fedactors.cli import main as cli
from fedactors.protocols.nebulafl.config import EXAMPLES
from tests.protocols.nebulafl.test_data import CATALOGUE, NETWORK

WRITTEN = {"num_centers": "2", "num_containers": "8", "active_per_center": "2"}


def refused(words, capsys):
    """Run a command that must be refused and return what it said."""
    assert cli.main(["run", "nebulafl", "--runtime", "simulated", "--quiet", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("active_per_center=11", "active_per_center: 11 is more than the 10 containers of a center"),
        ("num_containers=3", "num_containers: 3 is fewer than num_centers=4"),
        ("num_centers=9 active_per_center=2", "num_centers: 9 is more than the 8 centers of the catalogue"),
        ("dirichlet=0", "dirichlet: '0' is not allowed"),
        ("dirichlet=-0.5", "dirichlet: '-0.5' is not allowed"),
        ("rotation_interval=0", "rotation_interval: '0' is not allowed"),
        ("rotation_interval=-1000", "rotation_interval: '-1000' is not allowed"),
        ("model=resnet50", "has no throughput for model 'resnet50'"),
        ("catalogue=elsewhere", f"catalogue: 'elsewhere' is neither an example ({', '.join(EXAMPLES)}) nor a file"),
        ("network=elsewhere", "network: 'elsewhere' is neither an example"),
        ("num_training=5000", "num_training: 5000 is not allowed: digits has 1437 to deal"),
        ("num_validation=1437", "num_validation: 1437 is not allowed: digits has 1437 training rows"),
        ("outages=oregon", "outages: 'oregon' is not allowed"),
        ("outages=paris/0@1-2", "outages: center 'paris' is not allowed: the centers are oregon, virginia"),
        ("outages=oregon/10@1-2", "outages: oregon/10 is not allowed: it has containers 0 to 9"),
        ("device=gpu", "device: 'gpu' is not allowed"),
        ("device=cuda:77", "device: 'cuda:77' is not allowed: this process sees"),
        ("attestation=nowhere:hook", "attestation: 'nowhere:hook' is not allowed"),
        ("algorithm=fedprox", "algorithm: 'fedprox' is not allowed"),
        ("colour=red", "colour"),
    ],
)
def test_settings(word, named, capsys):
    assert named in refused(word.split(), capsys)


def test_a_container_that_would_be_left_empty(capsys):
    said = refused(["num_containers=1200", "active_per_center=5", "dirichlet=0.01"], capsys)
    assert "leave" in said
    assert "without" in said or "empty" in said


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("price = 0.5", "price = -0.5", "types.a.price: -0.5 is not allowed: give a number 0 or more"),
        ("a = 2", "a = 0", "centers.x: no resource type"),
        ("a = 2", "a = 10001", "centers.x.a: 10001 is not allowed: give a whole number of units, from 0 to 10,000"),
        ("a = 2", "h900 = 2", "centers.x.h900: unknown resource type (known: a, b)"),
        ("cnn8 = 10", "linear = 10", "type 'a' has no throughput for model 'cnn8'"),
        ("cnn8 = 10", "cnn8 = 0", "types.a.throughput.cnn8: 0 is not allowed: give a number above 0"),
    ],
)
def test_catalogues(old, new, named, tmp_path, capsys):
    (tmp_path / "mine.toml").write_text(CATALOGUE.replace(old, new, 1))
    (tmp_path / "links.toml").write_text(NETWORK)
    words = [f"{name}={value}" for name, value in WRITTEN.items()]
    assert named in refused([*words, "catalogue=mine.toml", "network=links.toml"], capsys)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("latency_ms = 20", "latency_ms = -1", "link 1.latency_ms: -1 is not allowed: give a number above 0"),
        ("bandwidth_mbit = 80", "bandwidth_mbit = 0", "link 1.bandwidth_mbit: 0 is not allowed"),
        ("egress_per_gb = 0.05", "egress_per_gb = -0.05", "link 1.egress_per_gb: -0.05 is not allowed"),
        ('["x", "y"]', '["x", "z"]', "center 'y' has no link"),
    ],
)
def test_networks(old, new, named, tmp_path, capsys):
    (tmp_path / "mine.toml").write_text(CATALOGUE)
    (tmp_path / "links.toml").write_text(NETWORK.replace(old, new, 1))
    words = [f"{name}={value}" for name, value in WRITTEN.items()]
    assert named in refused([*words, "catalogue=mine.toml", "network=links.toml"], capsys)


def test_a_center_that_cannot_be_reached(tmp_path, capsys):
    (tmp_path / "mine.toml").write_text(CATALOGUE)
    (tmp_path / "links.toml").write_text(NETWORK.replace('"y"', '"z"') + NETWORK.replace('"x"', '"w"'))
    words = [f"{name}={value}" for name, value in WRITTEN.items()]
    said = refused([*words, "catalogue=mine.toml", "network=links.toml"], capsys)
    assert "center 'y' cannot be reached from 'x'; add a link" in said
