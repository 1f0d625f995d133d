"""A run of TablePuppet or of one of its baselines, top to bottom as Algorithm 1.

Table 5, with the rows that the tables hold:

    algorithm    tables hold        LoJ computes (each round)      tables compute              LoU
    rfl-sgd-v    rows that join     dl/dh of a batch (Eq. 4)       step of Eq. 12, 13          -
    rfl-admm-v   rows that join     z, lambda (Eq. 7, 8)           theta of Eq. 16             -
    rfl-sgd      partitions         dl/dh of a batch               gradient of Eq. 18          Eq. 17, 19
    rfl-admm     partitions         z, lambda                      theta of Eq. 22             Eq. 20, 21
    vfl-sgd      slices of the join dl/dh of a batch               step of Eq. 3               -
    vfl-admm     slices of the join z, lambda                      theta of Eq. 9              -
    centralised  nothing: the server holds the joined table and trains on it
"""

from __future__ import annotations

import math
from typing import Any

from fedactors.data.partitions import RelationalData
from fedactors.errors import Diverged
from fedactors.plugins import RunResult
from fedactors.runtime.base import Runtime
from protocols.tablepuppet.accounts import account_communication, account_privacy
from protocols.tablepuppet.cast import Cast, assemble
from protocols.tablepuppet.config import TablePuppetConfig
from protocols.tablepuppet.costs import default_costs
from protocols.tablepuppet.scoring import SCORE_NAMES


async def run(config: TablePuppetConfig, data: RelationalData, runtime: Runtime) -> RunResult:
    """Train over the join that the data's query states, and return the score on the joined test rows."""
    runtime.use_costs(default_costs(config))
    cast = assemble(config, data, runtime)
    await runtime.start()
    state = runtime.state
    if not runtime.resumed:
        state["facts"] = await map_tables(cast)  # line 3
        state["trivial"] = await cast.server.trivial()
        state["round"], state["metrics"], state["curve"] = 0, {}, []
        await runtime.checkpoint()
    score = SCORE_NAMES[cast.training.loss]
    while state["round"] < num_rounds(config, cast):
        number = state["round"] + 1
        metrics = await cast.server.train_round(number)  # lines 4-16
        check_divergence(config, number, metrics["train_loss"], state["trivial"]["test_loss"])
        metrics = {**await cast.server.evaluate(), **metrics}
        state.update(round=number, metrics=metrics, curve=[*state["curve"], metrics[score]])
        await runtime.record_round(number, metrics)
        await runtime.checkpoint()
    privacy = await account_privacy(config, cast, runtime)
    communication = await account_communication(config, state, runtime)
    await runtime.checkpoint("final")
    return RunResult(
        rounds=state["round"],
        metrics={
            **state["metrics"],
            **{f"trivial_{name}": value for name, value in state["trivial"].items()},
            **left_out(state["facts"]),
        },
        extra={
            **state["facts"],
            "task": data.task,
            "curve": state["curve"],
            "privacy": privacy,
            "communication": communication,
        },
    )


def check_divergence(config: TablePuppetConfig, number: int, loss: float, trivial: float) -> None:
    """Stop a run whose training loss has left all reason, and name the setting to change.

    Privacy noise may raise a loss as far as it likes: with it only a loss that is not finite stops the run.

    Args:
        config: the run's settings.
        number: of the round.
        loss: on the training rows.
        trivial: the loss of the trivial predictor.

    Raises:
        Diverged: the loss is not finite or, without noise, over a thousand times the trivial predictor's.
    """
    noisy = config.label_dp is not None or config.feature_dp is not None
    if math.isfinite(loss) and (noisy or loss <= 1000.0 * max(trivial, 1e-12)):
        return
    if "admm" not in config.algorithm:
        name, value, way = "learning_rate", config.learning_rate, "smaller"
    elif config.admm == "paper_sgd":
        name, value, way = "local_learning_rate", config.local_learning_rate, "smaller"
    else:
        name, value, way = "rho", config.rho, "larger"
    raise Diverged(
        f"{name}: {value:g} diverges (training loss {loss:.3g} in round {number}, the trivial predictor's is "
        f"{trivial:.3g}): try a {way} one"
    )


def left_out(facts: dict[str, Any]) -> dict[str, float]:
    """Return how many rows a NULL key kept out of the join, to be printed with the result; nothing if none."""
    count = sum(facts["rows_with_null_keys"].values())
    return {"rows_with_null_keys": float(count)} if count else {}


async def map_tables(cast: Cast) -> dict[str, Any]:
    """Let the clients agree on columns and on a hash key, and the server join the hashes (Section 3.1.1)."""
    await cast.server.agree()
    first, *others = cast.clients
    await cast.clients[first].share_secret(tuple(others))
    return await cast.server.map_tables()


def num_rounds(config: TablePuppetConfig, cast: Cast) -> int:
    """Return the rounds to run; the closed form of the ridge needs one."""
    is_closed = config.centralised == "exact" and cast.training.loss == "squared" and config.model != "neural"
    return 1 if config.algorithm == "centralised" and is_closed else config.rounds
