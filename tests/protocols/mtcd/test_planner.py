"""The planner: it tries what can run, chooses the cheapest, and what it predicts is what the run costs."""

from __future__ import annotations

import dataclasses
import json

import networkx as nx
import pytest

from fedactors.cli.main import main
from fedactors.config import with_contents
from fedactors.errors import BadInput
from fedactors.plugins import Planning
from fedactors.protocols.mtcd.config import MtcdConfig
from fedactors.protocols.mtcd.planner import MOST_ROUNDS, candidates, plan
from fedactors.protocols.mtcd.plugin import PROTOCOL
from fedactors.sweeps import run_once

SMALL = MtcdConfig(topology="path", num_clients=6, num_samples=40, num_features=24, target_gap=1e-2)


def with_ratio(ratio: float, **values: object) -> MtcdConfig:
    return dataclasses.replace(SMALL, link_cost_ratio=ratio, **values)


def cost_of(config: MtcdConfig) -> float:
    settings = {**dataclasses.asdict(config), "num_rounds": MOST_ROUNDS, "min_cluster_size": 1}
    done = run_once(PROTOCOL, settings, "synthetic", 0)
    assert done.result.metrics["gap"] <= config.target_gap
    return float(done.result.metrics["weighted_cost"])


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [0.1, 100.0])
def test_no_candidate_is_cheaper_than_the_plan_and_the_prediction_is_exact(ratio: float) -> None:
    config = with_ratio(ratio)
    made = plan(config, (), Planning())
    chosen = {name: made[name] for name in ("algorithm", "num_tokens", "num_hops", "walk")}
    costs = {}
    for candidate in candidates(config):
        key = (candidate.algorithm, candidate.num_tokens, candidate.num_hops, candidate.walk)
        costs[key] = cost_of(candidate)
    assert made["weighted_cost"] == min(costs.values()) == costs[tuple(chosen.values())]
    assert made["tried"] == len(costs) >= 8


@pytest.mark.slow
def test_the_dearer_the_server_the_less_it_is_relied_on() -> None:
    cheap, dear = (plan(with_ratio(ratio), (), Planning()) for ratio in (0.001, 1000.0))
    assert cheap["algorithm"] == "svfl"
    assert dear["algorithm"] == "stcd"
    assert dear["weighted_cost_of_svfl"] > dear["weighted_cost"]


def test_candidates_are_those_that_the_graph_and_the_links_allow(tmp_path) -> None:
    def methods(config: MtcdConfig) -> set[str]:
        return {candidate.algorithm for candidate in candidates(config)}

    assert methods(SMALL) == {"svfl", "mtcd", "stcd"}
    assert methods(with_ratio(1.0, topology="empty")) == {"svfl"}
    nx.write_edgelist(nx.Graph([(0, 1), (1, 2), (3, 4), (4, 5)]), tmp_path / "two.edges", data=False)
    assert methods(with_contents(with_ratio(1.0, topology=str(tmp_path / "two.edges")))) == {"svfl", "mtcd"}
    star = list(candidates(with_ratio(1.0, topology="star")))
    assert not any(c.walk == "sweep" and c.num_tokens == 1 for c in star)  # no route visits each client of a star once


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"problem": "network"}, "problem: network"),
        ({"mode": "overlapping"}, "mode: overlapping"),
        ({"algorithm": "svfl", "num_tokens": None}, "algorithm: svfl"),
        ({"clusters": "whole", "num_tokens": 1}, "clusters: whole"),
        ({"schedule": "cosine"}, "schedule: cosine"),
    ],
)
def test_what_cannot_be_planned_is_refused(values: dict[str, object], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        plan(with_ratio(1.0, **values), (), Planning())


def test_a_profile_is_refused() -> None:
    with pytest.raises(BadInput, match="--profile"):
        plan(SMALL, [{"role": "active"}], Planning())


@pytest.mark.slow
def test_the_command_prints_the_settings_and_tells_what_it_tries(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["topology=path", "num_clients=4", "num_samples=30", "num_features=8", "link_cost_ratio=10"]
    assert main(["plan", "mtcd", *words, "--format", "json"]) == 0
    said = capsys.readouterr()
    made = json.loads(said.out)
    assert made["algorithm"] in ("svfl", "mtcd", "stcd")
    assert said.err.count("plan: ") == made["tried"]
