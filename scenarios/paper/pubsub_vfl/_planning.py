"""What the planner is given in simulation, as `fedactors plan` is given it: profile files, made from the cost model."""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _watch import network

from fedactors.config import build

sys.path.insert(0, str(Path(__file__).parents[3]))

from fedactors.protocols.pubsub_vfl import planner
from fedactors.protocols.pubsub_vfl.algorithm import default_costs
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.data import load_data
from fedactors.protocols.pubsub_vfl.dry_run import Problem
from fedactors.protocols.pubsub_vfl.planner import Plan
from fedactors.protocols.pubsub_vfl.plugin import PUBLISHED
from fedactors.validation import read_tree
from scenarios.paper.pubsub_vfl._profiles import profile_of_costs
from scenarios.paper.study import Study

ROWS = {"bank": 25_948, "breast-cancer": 358}
"""Training rows."""
WINDOW = 12
"""Batches in flight for each worker of the passive party, where the planner chooses the workers."""


class PlanningStudy(Study):
    """Rows of its own table, which no other script writes."""

    @property
    def table(self) -> Path:
        """The table that rows are read from and written into."""
        return self.out / "pubsub_vfl_planning.parquet"


def profile_files(
    config: PubSubVflConfig,
    data_name: str,
    cores: Mapping[str, int],
    num_rows: int,
    gigabits: float,
    latency: float,
    folder: Path,
) -> list[Path]:
    """Write the profiles of all parties, as the simulation's cost model and links have them."""
    data, costs, links = load_data(config, data_name, 0), default_costs(config), network(gigabits, latency)
    link = {"bandwidth": links.default.bandwidth, "latency": latency, "num_rows": num_rows}
    files = []
    for party in data.parties:
        made = profile_of_costs(config, data, party, costs, cores[party], links.local)
        files.append(folder / f"{party}.json")
        files[-1].write_text(json.dumps({**dataclasses.asdict(made), **link}))
    return files


def problem_in_files(config: PubSubVflConfig, files: Sequence[Path]) -> Problem:
    """Return what is planned for, as the command reads it."""
    return planner.problem_of(config, [read_tree(str(path), "--profile") for path in files])


def problem(
    config: PubSubVflConfig,
    data_name: str,
    cores: Mapping[str, int],
    num_rows: int,
    gigabits: float = 1.0,
    latency: float = 0.0005,
) -> Problem:
    """Return what is planned for in simulation, by way of files."""
    with tempfile.TemporaryDirectory() as folder:
        files = profile_files(config, data_name, cores, num_rows, gigabits, latency, Path(folder))
        return problem_in_files(config, files)


def choice(
    settings: Mapping[str, Any], data: str, cores: Mapping[str, int], num_rows: int, gigabits: float = 1.0
) -> Plan:
    """Return the workers that the planner chooses for a batch size, where windows do not hold them up."""
    config = build(PubSubVflConfig, {**PUBLISHED, **settings, "max_in_flight": WINDOW, "transfer": "push"})
    made = problem(config, data, cores, num_rows, gigabits)
    return planner.choose(config, made, batch_sizes=(config.batch_size,))[0]
