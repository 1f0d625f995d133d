"""The conformance kit between sites: it passes sound protocols, and says of broken ones what is wrong with them."""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from fedactors.plugins import find_protocol
from fedactors.testing.runs import SITES, Subject, remarks_on_sites
from tests.federation.malicious_protocols import install

pytestmark = [pytest.mark.slow, pytest.mark.drawn(2, family="conformance")]

EXPECTED = {
    "undeclared": "calls south/holder.mean with a Aside; it takes a Ask",
    "mistyped": "the gate of south refused south/holder: sends Mean.value as a str",
    "not_plain": "does not end well: ",
    "curious": "spawns south/holder with other data than the approved ones",
    "placed": "its result depends on where it runs",
    "busy": "the site north takes",
    "parent": "processes go on after the run",
}
"""A part of what the kit says of each fault."""
WAYS = list(combinations(SITES, 2))


BUILT_IN: dict[str, dict[str, Any]] = {
    "pubsub-vfl": {"algorithm": "vfl"},
    "glasu": {"num_clients": 2, "num_rounds": 2, "evaluate_every": 1, "hidden_size": 8},
    "horizontal": {"hidden_size": 4},
    "tablepuppet": {},
}


def remarks_on(name: str, **given: Any) -> list[str]:
    return list(remarks_on_sites(Subject(protocol=find_protocol(name), **{"num_sites": 2, **given})))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path: what lies in it is installed, for this process and the sites that it starts."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_sound_protocol_passes(folder: Path) -> None:
    install(folder, "sums")
    assert remarks_on("sums") == []


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_built_in_protocols_pass(name: str) -> None:
    assert remarks_on(name, config=BUILT_IN[name]) == []


def test_a_protocol_whose_small_run_draws_its_data_passes_with_settings_of_its_own() -> None:
    small = {"num_clients": 2, "num_rounds": 2, "record_every": 1, "num_tokens": 1, "problem": "ridge"}
    assert remarks_on("mtcd", site_config={**small, "relaxed_protocol": True}) == []


def test_data_centers_pass(tmp_path: Path) -> None:
    """Their result depends on timing; hardware and network are those of the sites."""
    types = "[types.gpu]\nprice = 1.0\n[types.gpu.throughput]\nlinear = 1000\n"
    (tmp_path / "hardware.toml").write_text(types + "".join(f"[centers.{name}]\ngpu = 1\n" for name in SITES))
    links = [f'[[links]]\nbetween = ["{a}", "{b}"]\nlatency_ms = 1\nbandwidth_mbit = 100\n' for a, b in WAYS]
    (tmp_path / "links.toml").write_text("".join(links))
    small = {"num_centers": 3, "num_containers": 3, "active_per_center": 1, "model": "linear", "dirichlet": "none"}
    small |= {"local_epochs": 1, "duration": 3, "rotation_interval": 1, "evaluation_interval": 1.5, "batch_size": 10}
    small |= {"catalogue": str(tmp_path / "hardware.toml"), "network": str(tmp_path / "links.toml")}
    assert remarks_on("nebulafl", config=small, num_sites=3, deterministic=False, agree={"test/accuracy": 0.4}) == []


@pytest.mark.parametrize("fault", EXPECTED)
def test_a_broken_one_does_not(folder: Path, fault: str) -> None:
    name = f"sums_{fault}"
    install(folder, name, fault)
    remarks = remarks_on(name)
    assert any(EXPECTED[fault] in remark for remark in remarks), remarks


def test_what_is_installed_nowhere_is_told(folder: Path) -> None:
    install(folder, "sums_here")
    protocol = find_protocol("sums_here")
    for file in (folder / "sums_here-0.1.dist-info").iterdir():
        file.unlink()
    sys.path.remove(str(folder))
    (remark,) = remarks_on_sites(Subject(protocol=protocol, num_sites=2))
    assert "a site runs what is installed there" in remark
