"""The planner's prediction beside the simulated epoch (Section 4.3), by the one cost model that `fedactors plan` uses.

Predicted (objective `pipeline`) from the committed costs and the link alone, before the run; measured as in the
comparison, on a link that both parties share: PubSub-VFL's runs of `time_to_target.py` (`tune`, `epochs`), and with
``--full`` one epoch of Bank at thirty settings more, unequal workers, windows, links and both ways in which payloads
travel among them. `planning-summary` says how many predictions are within 20 %.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Mapping
from typing import Any

from _watch import RESULTS, Watched, network, watch

from fedactors.config import build
from fedactors.records.table import RunRow
from fedactors.sweeps.study import Study, study_flags
from protocols.pubsub_vfl import planner
from protocols.pubsub_vfl.algorithm import default_costs
from protocols.pubsub_vfl.config import PubSubVflConfig
from protocols.pubsub_vfl.data import load_data
from protocols.pubsub_vfl.planner import Plan, Problem
from protocols.pubsub_vfl.profiler import profile_of_costs

LEAST_EPOCHS = 1.5
"""Runs of the comparison that were watched for longer than this are compared with their predictions."""
NEVER = 2.0
"""An AUC that no run reaches: it is watched to its end."""
ROWS = {"bank": 25_948, "breast-cancer": 358}
"""Training rows."""
WINDOW = 12
"""Batches in flight for each worker of the passive party, where the planner chooses the workers."""
WORKERS = ((1, 1), (2, 2), (4, 2), (4, 4), (8, 8))
SIZES = (128, 512)
LINKS = ((1.0, 0.0005), (0.1, 0.01), (25.0, 0.0005))


def problem(
    config: PubSubVflConfig,
    data_name: str,
    cores: Mapping[str, int],
    num_rows: int,
    gigabits: float = 1.0,
    latency: float = 0.0005,
) -> Problem:
    """Return what is planned for in simulation."""
    data, costs = load_data(config, data_name, 0), default_costs(config)
    active, passive = (profile_of_costs(config, data, party, costs, cores[party]) for party in data.parties)
    return Problem(
        active=active,
        passive=passive,
        num_rows=num_rows,
        row_bytes=planner.row_bytes(config),
        bandwidth=network(gigabits, latency).default.bandwidth,
        latency=latency,
        in_flight_per_worker=config.max_in_flight / config.num_passive_workers,
        payloads=config.payloads,
        steps_at_server=config.steps_at_server,
    )


def choice(settings: Mapping[str, Any], data: str, cores: Mapping[str, int], num_rows: int) -> Plan:
    """Return the workers that the planner chooses for a batch size, where windows and link do not hold them up."""
    config = build(PubSubVflConfig, {**settings, "max_in_flight": WINDOW, "payloads": "sent"})
    made = problem(config, data, cores, num_rows)
    return planner.search(made, "pipeline", batch_sizes=(config.batch_size,))[0]


def predicted(point: Watched) -> float:
    """Return the seconds of an epoch that the planner predicts."""
    config = build(PubSubVflConfig, dict(point.settings))
    setting = (config.num_active_workers, config.num_passive_workers, config.batch_size)
    made = problem(config, point.data, point.cores, ROWS[point.data], point.gigabits, point.latency)
    return planner.cost(made, *setting, "pipeline")


def points(data: str) -> dict[str, Watched]:
    """Return the runs, by name; every second has a small window, every third fetches its payloads."""
    made = {}
    for index, ((gigabits, latency), (w_a, w_p), size) in enumerate(itertools.product(LINKS, WORKERS, SIZES)):
        window = 4 if index % 2 else 12
        settings: dict[str, Any] = {
            "num_epochs": 1,
            "num_active_workers": w_a,
            "num_passive_workers": w_p,
            "batch_size": size,
            "max_in_flight": window * w_p,
            "prefetch": 6,
            "report_interval": 0.0,
            "sync_unit": "batch",
            "payloads": "sent" if index % 3 else "fetched",
        }
        name = f"{gigabits:g}-gbit-{latency * 1e3:g}-ms-w{w_a}-{w_p}-b{size}-p{window}-{settings['payloads']}"
        made[name] = Watched(data=data, settings=settings, targets=(NEVER,), gigabits=gigabits, latency=latency)
    return made


def measured(point: Watched, seed: int) -> RunRow:
    """Run a point; its row has the predicted and the measured seconds of an epoch."""
    expected, row = predicted(point), watch(point, seed)
    seconds = row.metrics["seconds_per_epoch"]
    metrics = {"predicted": expected, "measured": seconds, "measured_over_predicted": seconds / expected}
    return dataclasses.replace(row, metrics=metrics, censored=(), curve={})


def compared(row: RunRow) -> RunRow:
    """Return what was predicted for a run of the comparison beside what it took."""
    point = Watched(
        data=row.data,
        settings=row.config,
        targets=(NEVER,),
        gigabits=row.extra["gigabits"],
        latency=row.extra["latency"],
        cores=row.extra["cores"],
    )
    expected, seconds = predicted(point), row.metrics["seconds_per_epoch"]
    metrics = {"predicted": expected, "measured": seconds, "measured_over_predicted": seconds / expected}
    return dataclasses.replace(row, metrics=metrics, censored=(), curve={})


def main() -> None:
    given: Study = study_flags(__doc__, "pubsub_vfl", RESULTS).parse_args(namespace=Study())
    if given.full or given.smoke or given.only:
        given.measure("planning", points("breast-cancer" if given.smoke else "bank"), measured, smoke_rows=2)
    for study in ("tune-bank", "epochs-bank"):
        for row in given.rows(study):
            if row.config["algorithm"] == "pubsub-vfl" and row.metrics["epochs"] > LEAST_EPOCHS:
                given.put("planning", f"{study.partition('-')[0]}/{row.name}", [compared(row)])
    ratios = [row.metrics["measured_over_predicted"] for row in given.rows("planning")]
    if not ratios:
        return
    errors = [abs(ratio - 1) for ratio in ratios]
    metrics = {
        "settings": len(ratios),
        "within_20_percent": sum(error <= 0.2 for error in errors) / len(ratios),
        "median_error": statistics.median(errors),
        "largest_error": max(errors),
    }
    given.put("planning-summary", "all", [dataclasses.replace(given.rows("planning")[0], metrics=metrics)])


if __name__ == "__main__":
    main()
