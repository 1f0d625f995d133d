"""A run of NebulaFL or of a baseline: the centers go on by themselves, the driver measures and keeps the account."""

from __future__ import annotations

import math
from typing import Any

from fedactors.network.codec import HEADER_BYTES
from fedactors.network.ledger import INTER_DATA_CENTER
from fedactors.plugins import RunResult
from fedactors.runtime.base import Runtime
from protocols.nebulafl.algorithm import num_parameters
from protocols.nebulafl.cast import Cast, assemble, exchange_name
from protocols.nebulafl.config import NebulaFLConfig
from protocols.nebulafl.costs import center_links, default_costs
from protocols.nebulafl.data import NebulaData
from protocols.nebulafl.inputs import read_catalogue, read_network
from protocols.nebulafl.resources import Catalogue
from protocols.nebulafl.training import make_module
from protocols.nebulafl.workshop import run_model

MODEL_MESSAGES = (
    "MasterModel", "SharedModel", "TrainingOrder", "TrainingResult", "RoundOrder", "RoundResult", "ClusterLogits",
)  # fmt: skip


async def run(config: NebulaFLConfig, data: NebulaData, runtime: Runtime) -> RunResult:
    """Train until the duration (or the number of rounds) is over; a round of the records is a measurement."""
    catalogue = read_catalogue(config.catalogue)
    prepare(config, data, runtime, catalogue)
    cast = assemble(config, data, runtime)
    await runtime.start()
    state = runtime.state
    if not runtime.resumed:
        state.update(measured=0, rent=0.0, over=False, curve=[], began_at=runtime.clock.now())
        await cast.begin(state["began_at"])
    end = end_of_run(config)
    while not state["over"]:
        due = min((state["measured"] + 1) * config.evaluation_interval, end)
        await runtime.clock.sleep_until(state["began_at"] + due, key="measurement")
        if due >= end or await cast.finished():
            state["over"] = True
            await cast.finish()
        metrics = await measure(config, cast, runtime)
        state["measured"] += 1
        await runtime.record_round(state["measured"], metrics)
        if config.checkpoint_interval and state["measured"] % config.checkpoint_interval == 0 and not cast.away:
            await runtime.checkpoint()
    result = await conclude(config, cast, runtime, catalogue)
    if not cast.away:
        await runtime.checkpoint("final")
    return result


def prepare(config: NebulaFLConfig, data: NebulaData, runtime: Runtime, catalogue: Catalogue) -> None:
    """Offer the runtime what trainings take and how models travel."""
    centers = catalogue.first_centers(config.num_centers)
    model = run_model(config, data)
    network = read_network(config.network)
    network.require(centers)
    runtime.use_costs(default_costs(catalogue, centers, model[0]))
    num_bytes = 4 * num_parameters(make_module, model)
    runtime.use_network(center_links(network, centers, exchange_name(config), num_bytes))


def end_of_run(config: NebulaFLConfig) -> float:
    """Return the time after which nothing is started: T, or the last rotation that was asked for."""
    if config.algorithm != "nebulafl" or config.num_rounds is None:
        return config.duration
    return min(config.duration, config.num_rounds * config.rotation_interval)


async def measure(config: NebulaFLConfig, cast: Cast, runtime: Runtime) -> dict[str, Any]:
    """Measure the model of this moment and what it cost so far."""
    now = runtime.clock.now()
    models = tuple(await cast.models())
    account = await cast.auditor.account(now)
    await runtime.settle()
    runtime.spend(account["rent"] - runtime.state["rent"])
    runtime.state["rent"] = account["rent"]
    egress = runtime.ledger.price(runtime.network.link)
    totals = [t for t in runtime.ledger.totals() if t.kind == INTER_DATA_CENTER]
    found = await cast.auditor.measure(models)
    metrics = {
        "accuracy": found.accuracy,
        "loss": found.loss,
        "time": now - runtime.state["began_at"],
        "hours": (now - runtime.state["began_at"]) / 3600.0,
        "dollars": account["rent"] + egress,
        "rent": account["rent"],
        "egress": egress,
        "center_bytes": sum(t.bytes for t in totals),
        "transfers": sum(t.messages for t in totals if t.type in MODEL_MESSAGES),
        "trainings": int(account["trainings"]),
        "given_up": int(account["given_up"]),
    }
    runtime.state["curve"].append([metrics[name] for name in CURVE])
    return metrics


CURVE = ("time", "accuracy", "dollars", "center_bytes", "transfers")


async def conclude(config: NebulaFLConfig, cast: Cast, runtime: Runtime, catalogue: Catalogue) -> RunResult:
    """Return the final metrics and each center's bill."""
    curve = [dict(zip(CURVE, point, strict=True)) for point in runtime.state["curve"]]
    last, best = curve[-1], max(point["accuracy"] for point in curve)
    account = await cast.auditor.account(runtime.clock.now())
    metrics: dict[str, Any] = {
        "accuracy": last["accuracy"],
        "best_accuracy": best,
        "hours": last["time"] / 3600.0,
        "dollars": last["dollars"],
        "center_bytes": last["center_bytes"],
        "transfers": last["transfers"],
        "trainings": account["trainings"],
    }
    if config.target_accuracy is not None:
        reached = next((point for point in curve if point["accuracy"] >= config.target_accuracy), None)
        for name in ("time", "dollars", "center_bytes"):
            metrics[f"{name}_to_target"] = reached[name] if reached else math.nan
    units = {name: sum(catalogue.centers[name].values()) for name in catalogue.first_centers(config.num_centers)}
    bills = await cast.auditor.bills(units, last["time"])
    for name, bill in bills.items():
        sent = [t for t in runtime.ledger.totals() if t.sender == name and t.kind == INTER_DATA_CENTER]
        bill["bytes_sent"] = sum(t.bytes for t in sent)
        bill["egress"] = sum(
            runtime.network.link(t.sender, t.receiver, t.kind).price(t.bytes + HEADER_BYTES * t.messages) for t in sent
        )
    extra = {
        "centers": bills,
        "versions": {report.center: list(report.versions) for report in await cast.reports()},
        "illustrative": catalogue.illustrative,
        "curve": curve,
    }
    return RunResult(rounds=runtime.state["measured"], metrics=metrics, extra=extra)
