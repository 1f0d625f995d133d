"""NebulaFL between sites, each of which is a data center: hardware and network travel as content, never as a path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedactors.cli.main import main
from fedactors.config import as_dict, build, spell_infinities
from fedactors.errors import BadInput
from fedactors.federation.approval import as_tree, check_proposal, make_proposal, read_proposal
from fedactors.federation.operations import agree
from fedactors.plugins import find_protocol
from tests.federation.test_runs import OF_THREE, command, last_line, last_run
from tests.federation.world import BANK, CLINIC, SHOP, World

pytestmark = pytest.mark.slow
CENTERS = (CLINIC, BANK, SHOP)
"""In the order of the catalogue, which is not that of the sites."""
SMALL = (
    *("num_centers=3", "num_containers=3", "active_per_center=1", "model=linear", "dirichlet=none", "local_epochs=1"),
    *("duration=3", "rotation_interval=1", "evaluation_interval=1.5", "batch_size=10"),
)


def write_centers(world: World) -> None:
    """The catalogue and the network of the sites, beside their folders."""
    types = "[types.gpu]\nprice = 1.0\n[types.gpu.throughput]\nlinear = 1000\n"
    (world.path / "hardware.toml").write_text(types + "".join(f"[centers.{name}]\ngpu = 1\n" for name in CENTERS))
    ways = [(one, two) for i, one in enumerate(CENTERS) for two in CENTERS[:i]]
    links = [f'[[links]]\nbetween = ["{a}", "{b}"]\nlatency_ms = 1\nbandwidth_mbit = 100\n' for a, b in ways]
    (world.path / "links.toml").write_text("".join(links))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("centers"), (BANK, SHOP, CLINIC))
    write_centers(made)
    for name in made.names:
        made.start(name)
    yield made
    made.stop()


def flags(world: World) -> tuple[str, ...]:
    return f"catalogue={world.path / 'hardware.toml'}", f"network={world.path / 'links.toml'}"


@pytest.mark.parametrize("algorithm", ["nebulafl", "fedavg", "fedavg-hierarchical"])
def test_centers_that_share_no_cluster_rotate_their_models(
    world: World, capsys: pytest.CaptureFixture[str], algorithm: str
) -> None:
    answering = world.answer()
    words = (*command(world, "nebulafl"), *SMALL, *flags(world), f"algorithm={algorithm}")
    assert main(list(words)) == 0, (capsys.readouterr().err, world.output)
    answering.join(30)
    found = last_line(capsys)
    assert found["metrics"]["test/accuracy"] > 0.6
    assert found["metrics"]["dollars"] > 0
    run = last_run(world)
    assert agree({name: world.path / name for name in world.names}, run)
    left = {entry["type"] for line in world.audit(SHOP) if line["what"] == "ended" for entry in line["left"]}
    assert left & {"MasterModel", "TrainingResult", "RoundResult"}


@pytest.mark.parametrize("algorithm", ["nebulafl", "fedavg"])
def test_times_that_are_left_out_follow_a_training_that_each_site_tries(
    world: World, capsys: pytest.CaptureFixture[str], algorithm: str
) -> None:
    answering = world.answer()
    words = [*SMALL, "duration=auto", "rotation_interval=auto", "evaluation_interval=auto", *flags(world)]
    words = [word for word in words if word not in ("duration=3", "rotation_interval=1", "evaluation_interval=1.5")]
    assert main([*command(world, "nebulafl"), *words, f"algorithm={algorithm}"]) == 0, world.output
    answering.join(30)
    found = last_line(capsys)
    assert found["metrics"]["test/accuracy"] > 0.6
    assert 0 < found["metrics"]["hours"] < 20_000 / 3600
    assert agree({name: world.path / name for name in world.names}, last_run(world))


def test_no_site_opens_a_path_that_another_one_names(world: World, tmp_path: Path) -> None:
    protocol = find_protocol("nebulafl")
    words = dict(word.split("=", 1) for word in (*SMALL, *flags(world), "on_party_loss=stop"))
    config = build(protocol.Config, words).with_contents()
    settings = spell_infinities(as_dict(config))
    made = make_proposal(world.folder(BANK), protocol, settings, OF_THREE["nebulafl"], None)
    check_proposal(made, world.folder(SHOP))
    (tmp_path / "own.toml").write_text((world.path / "hardware.toml").read_text())
    for field, value in (("catalogue", str(tmp_path / "own.toml")), ("network", "/etc/passwd")):
        tree = {**as_tree(made), "config": {**settings, field: value}}
        with pytest.raises(BadInput, match=rf"config.{field}: a path is not allowed between sites"):
            check_proposal(read_proposal(tree), world.folder(SHOP))
    tree = {**as_tree(made), "config": {**settings, "catalogue": "a = [\n"}}
    with pytest.raises(BadInput, match="catalogue: not valid JSON"):
        check_proposal(read_proposal(tree), world.folder(SHOP))
