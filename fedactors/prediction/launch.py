"""From a finished run and new data to predictions: the parties' actors with their trained states, on either runtime."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

from fedactors import launch
from fedactors.command_line.options import RunOptions
from fedactors.data.predictions import check_ending
from fedactors.errors import BadInput
from fedactors.inspection import COUNTED, describe_protections
from fedactors.launch_federated import prepare_prediction
from fedactors.plugins import Protocol
from fedactors.prediction.engine import Application, Outcomes
from fedactors.privacy.releases import budgets
from fedactors.records.metrics import json_line, jsonable
from fedactors.records.run_folder import Checkpoint, RunFolder
from fedactors.records.states import FoundStates
from fedactors.records.storage import local_path
from fedactors.runtime.addresses import check_reachable
from fedactors.serving import StoredState
from fedactors.validation import without_controls


def predict(
    protocol: Protocol,
    config: Any,
    folder: RunFolder,
    checkpoint: Checkpoint,
    states: FoundStates,
    options: RunOptions,
    to: str,
) -> tuple[Outcomes, Any]:
    """Predict on new rows.

    Args:
        protocol: of the run.
        config: of the run.
        folder: of the run.
        checkpoint: one of its checkpoints.
        states: of it; each goes to its own actor only.
        options: new data, and where to run (on what the run was on, unless they say).
        to: where the party that owns the predictions writes them; over a federation the name of a file.

    Returns:
        What came of it, and what it cost in privacy, by party.

    Raises:
        BadInput: the protocol cannot predict, data, states or file are not what is needed, or what is released could
            not be counted in the run's folder.
    """
    if protocol.predict is None:
        raise BadInput(f"predict: {protocol.name} cannot predict")
    stored = folder.config
    if stored["runtime"] == "federated" or options.federation is not None:
        return _predict_federated(protocol, config, folder, checkpoint, options, to), {}
    chosen = options.runtime or ("ray" if options.address else stored["runtime"])
    options = dataclasses.replace(options, runtime=chosen)
    launch.check_runtime_flags(options, chosen)
    if chosen == "ray" and (address := options.address or os.environ.get("RAY_ADDRESS")):
        check_reachable(address)
    here = launch.is_here(options)
    data = launch.load_data(protocol, config, options.data or "", stored["seed"], here, is_new=True)
    # on another host it is that host's own path
    place = str(local_path(check_ending(to), "--to").resolve()) if here else to
    found = {name: stored_state(states, name) for name in states}
    asked = Application(stored=found, to=place)
    if any(one["on"] and one["kind"] in COUNTED for one in describe_protections(protocol, config)):
        folder.check_countable()
    runtime = launch.make_runtime(options, stored["seed"], None)
    made = protocol.predict
    try:
        outcomes = runtime.execute(lambda: made(config, data, runtime, asked))
    finally:  # what has been released is counted even if the prediction fails
        if runtime.privacy_records:
            folder.count([json_line(jsonable(record)) for record in runtime.privacy_records])
    return tuple(outcomes), budgets(runtime.privacy_records)


def _predict_federated(
    protocol: Protocol, config: Any, folder: RunFolder, checkpoint: Checkpoint, options: RunOptions, to: str
) -> Outcomes:
    """Predict at the sites that have the parts of the model: each counts what it releases, with its own part."""
    if options.federation is None:
        raise BadInput(f"{folder.path}: the run was over a federation: give --federation FILE")
    if check_ending(to) != Path(to).name:
        raise BadInput(f"--to: {to!r} is not allowed over a federation: a name, for the folder of whoever owns them")
    stored = folder.config
    prepared = prepare_prediction(protocol, config, folder, checkpoint.driver, options, stored["seed"])
    # what each site wrote then is known here by its digest
    found = {name: StoredState(actor=name, frame=digest) for name, digest in checkpoint.actors.items()}
    runtime, made = prepared.make(None), protocol.predict
    runtime.tell = lambda text: print(without_controls(text), file=sys.stderr, flush=True)
    assert made is not None
    asked = Application(stored=found, to=to)
    outcomes = tuple(runtime.execute(lambda: made(config, prepared.data, runtime, asked)))
    place = f"predictions/{prepared.proposal.run}"
    return tuple(dataclasses.replace(one, to=f"{place}/{one.to}") for one in outcomes)


def stored_state(states: FoundStates, actor: str) -> StoredState:
    """Return an actor's state as it is sent to its process: what the run folder holds, and where the rest is."""
    frame, place = states.stored(actor)
    if place is None:
        return StoredState(actor=actor, frame=frame)
    return StoredState(actor=actor, frame=frame, where=place.where, key=place.key)
