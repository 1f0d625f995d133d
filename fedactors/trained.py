"""Use a trained run: predict on new rows, export the parties' parts of the model, audit its privacy."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedactors.config import as_dict, build, parse_words
from fedactors.data.new_rows import NoPart, StoredState, check_ending
from fedactors.errors import BadInput
from fedactors.inspection import COUNTED, describe_protections
from fedactors.launch import (
    Words,
    check_federated_flags,
    check_runtime_flags,
    data_to_audit,
    is_here,
    load_data,
    make_runtime,
    prepare_prediction,
    restore_config,
    states_of,
)
from fedactors.options import RunOptions, flag_of
from fedactors.plugins import Protocol, find_protocol
from fedactors.privacy.accounting import budgets
from fedactors.runs import schemas
from fedactors.runs.folder import AUDIT, PRIVACY, Checkpoint, RunFolder, apart_from_records
from fedactors.runs.metrics import json_line, jsonable, read_lines
from fedactors.runs.party_states import CheckpointStates
from fedactors.runs.storage import local_path
from fedactors.runtime.addresses import check_cluster
from fedactors.runtime.compute import one_torch_thread
from fedactors.runtime.snapshots import check_actors, in_use, unseal_driver
from fedactors.serving.parts import Part, write_part
from fedactors.serving.predictions import Application, Outcomes
from fedactors.validation import without_controls

if TYPE_CHECKING:
    from fedactors.auditing.audit import Attack, LedgerAudit
    from fedactors.auditing.replay import ReplayAudit


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """A run that can be used: its protocol, its settings, and one of its checkpoints."""

    protocol: Protocol
    config: Any
    folder: RunFolder
    checkpoint: Checkpoint
    states: CheckpointStates
    """Of the checkpoint; each goes to its own actor only."""

    @classmethod
    def open(cls, folder: RunFolder, options: RunOptions, label: str | None = None) -> Trained:
        """Open a checkpoint of a run.

        Args:
            folder: the run's; it may come from someone else.
            options: where the parties keep their states, and code that may be imported.
            label: of the checkpoint; by default ``best``, else the newest.

        Raises:
            BadInput: the folder is damaged, has no such checkpoint, or names code that is not trusted.
        """
        folder.verify()
        protocol = find_protocol(str(folder.config.get("protocol")))
        labels = [entry["label"] for entry in folder.manifest["checkpoints"]]
        config = restore_config(protocol, folder, options.allow_import, options.federation)
        checkpoint = folder.load_checkpoint(label if label is not None else "best" if "best" in labels else None)
        check_actors(checkpoint.driver, checkpoint.actors)
        states = states_of(folder, checkpoint.actors, dict(options.checkpoint_dir), dict(options.checkpoint_key))
        return cls(protocol=protocol, config=config, folder=folder, checkpoint=checkpoint, states=states)


# --- predictions ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predictions:
    """Where each party's predictions are, how many rows have one, and what they cost in privacy."""

    run: str
    outcomes: Outcomes
    privacy: Mapping[str, Any]
    """By party: what was released under noise, and its budget."""

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON-ready mapping."""
        told = [
            {
                "party": one.party,
                "to": one.to,
                "rows": one.counts.num_rows,
                "predicted": one.counts.num_predicted,
                "without_partner": one.counts.num_alone,
                "refused": one.counts.num_refused,
                "rejections": dict(one.counts.rejections),
                "unpredicted": one.counts.unpredicted,
            }
            for one in self.outcomes
        ]
        return {"run": self.run, "predictions": told, "privacy": self.privacy}


def predict(folder: RunFolder, to: str, options: RunOptions, label: str | None = None) -> Predictions:
    """Predict on new rows; see `fedactors.api.Run.predict`. Options that are not given are the run's own.

    Raises:
        BadInput: the protocol cannot predict, data, states or file are not what is needed, or what is released could
            not be counted in the run's folder.
    """
    if "://" not in to:
        apart_from_records(local_path(to, "--output"), "--output")
    if options.federation is None:
        for name in options.given(federation="only"):
            raise BadInput(f"{flag_of(name)}: needs --federation")
    else:
        check_federated_flags(options)
        if check_ending(to) != Path(to).name:
            said = f"--output: {to!r} is not allowed over a federation"
            raise BadInput(f"{said}: a name, for the folder of the party that owns them")
    model = Trained.open(folder, options, label)
    is_federated = bool(folder.config.get("federation"))
    with in_use("" if is_federated else model.checkpoint.folder):  # over a federation states are at the sites
        if model.protocol.predict is None:
            raise BadInput(f"predict: {model.protocol.name} cannot predict")
        if folder.config["runtime"] == "federated" or options.federation is not None:
            return Predictions(run=str(folder.path), outcomes=_predict_federated(model, options, to), privacy={})
        return _predict(model, options, to)


def _predict(model: Trained, options: RunOptions, to: str) -> Predictions:
    protocol, config, folder = model.protocol, model.config, model.folder
    runtime_name = options.runtime or ("ray" if options.address else folder.config["runtime"])
    options = dataclasses.replace(options, runtime=runtime_name)
    check_runtime_flags(options, runtime_name)
    if runtime_name == "ray":
        check_cluster(options.address)
    here, seed = is_here(options), folder.config["seed"]
    data = load_data(protocol, config, options.data or "", seed, here, is_new=True)
    # on another host it is that host's own path
    location = str(local_path(check_ending(to), "--output").resolve()) if here else to
    asked = Application(stored={name: stored_state(model.states, name) for name in model.states}, to=location)
    if any(one["on"] and one["kind"] in COUNTED for one in describe_protections(protocol, config)):
        folder.check_countable()
    runtime, made = make_runtime(options, seed, None), protocol.predict
    assert made is not None
    try:
        outcomes = runtime.execute(lambda: made(config, data, runtime, asked))
    finally:  # what has been released is counted even if the prediction fails
        if runtime.privacy_records:
            folder.count([json_line(jsonable(record)) for record in runtime.privacy_records])
    spent = budgets(runtime.privacy_records)
    return Predictions(run=str(folder.path), outcomes=tuple(outcomes), privacy=spent)


def _predict_federated(model: Trained, options: RunOptions, to: str) -> Outcomes:
    """Predict at the sites that have the parts of the model: each counts what it releases, with its own part."""
    protocol, config, folder = model.protocol, model.config, model.folder
    if options.federation is None:
        raise BadInput(f"{folder.path}: the run was over a federation: give --federation FILE")
    prepared = prepare_prediction(protocol, config, folder, model.checkpoint.driver, options, folder.config["seed"])
    # what each site wrote then is known here by its digest
    found = {name: StoredState(actor=name, frame=digest) for name, digest in model.checkpoint.actors.items()}
    runtime, made = prepared.make(None), protocol.predict
    runtime.tell = lambda text: print(without_controls(text), file=sys.stderr, flush=True)
    assert made is not None
    asked = Application(stored=found, to=to)
    outcomes = tuple(runtime.execute(lambda: made(config, prepared.data, runtime, asked)))
    location = f"predictions/{prepared.proposal.run}"
    return tuple(dataclasses.replace(one, to=f"{location}/{one.to}") for one in outcomes)


def stored_state(states: CheckpointStates, actor: str) -> StoredState:
    """Return an actor's state as it is sent to its process: what the run folder holds, and where the rest is."""
    frame, location = states.stored(actor)
    if location is None:
        return StoredState(actor=actor, frame=frame)
    return StoredState(actor=actor, frame=frame, where=location.where, key=location.key)


# --- exports --------------------------------------------------------------------------------------------------------


def export(
    folder: RunFolder, to: str | None, options: RunOptions, *, party: str | None = None, label: str | None = None
) -> dict[str, list[Path]]:
    """Write the parties' parts of the trained model; see `fedactors.api.Run.export`.

    Raises:
        BadInput: the protocol cannot export, there is no such party, or the folder leads elsewhere.
    """
    model = Trained.open(folder, options, label)
    if isinstance(known := folder.config.get("federation"), dict):
        raise BadInput(
            f"export: {folder.path}: the parts of the model are at the sites: each exports its own, in its site's "
            f"folder: fedactors export runs/*-{known.get('run')}-0"
        )
    if (made := model.protocol.export) is None:
        raise BadInput(f"export: {model.protocol.name} cannot export")
    parties = sorted({name.partition("/")[0] for name in model.states})
    if party is not None and party not in parties:
        raise BadInput(f"--party: {party!r} is not allowed: one of {', '.join(parties)}")
    target = local_path(to, "--output") if to is not None else folder.inside("exported")
    apart_from_records(target, "--output")
    if to is None and any(path.is_symlink() for path in target.rglob("*")):
        raise BadInput(f"export: {target} has links, which lead who knows where: give --output DIR")
    written: dict[str, list[Path]] = {}
    for one in parties if party is None else [party]:
        try:
            with in_use(model.checkpoint.folder):
                found = made(model.config, one, model.states)
                parts = found if isinstance(found, Mapping) else {"": found}
                written[one] = [path for name, part in parts.items() for path in write_part(part, target / one / name)]
        except NoPart:  # a broker, say
            if party is not None:
                raise
    if not written:
        there = (folder.config.get("site") or {}).get("coordinator")
        whose = f": export there, at the site {there}" if there else ""
        raise BadInput(f"export: {folder.path}: no actor of this run has a part of the model{whose}")
    return written


def parts_of(folder: RunFolder, options: RunOptions, label: str | None = None) -> tuple[dict[str, Part], str]:
    """Return the parts of a trained model that a run's folder has, by party, and which model they are of.

    At a site these are its own part, and the run and checkpoint that all sites know it by.

    Raises:
        BadInput: there is none, or the protocol keeps them in another way.
    """
    model = Trained.open(folder, options, label)
    if (made := model.protocol.export) is None:
        raise BadInput(f"serve: {model.protocol.name} cannot export")
    found: dict[str, Part] = {}
    with in_use(model.checkpoint.folder):
        for party in sorted({name.partition("/")[0] for name in model.states}):
            with contextlib.suppress(NoPart):
                part = made(model.config, party, model.states)
                if not isinstance(part, Part):
                    raise BadInput(f"serve: {party} has a part for each of its tables: use fedactors predict")
                found[party] = part
    if not found:
        raise BadInput(f"serve: {folder.path} has no part of a model: serve at the party that has one")
    if not isinstance(known := folder.config.get("site"), dict):
        return found, f"{folder.path.name} {model.checkpoint.label}"
    if getattr(model.config, "secure_aggregation", False) and any(len(one.parties) > 1 for one in found.values()):
        raise BadInput(
            f"serve: {', '.join(found)}: the model was trained with secure_aggregation, and what is given online is in "
            "no sum: use fedactors predict"
        )
    return found, f"{known['run']} {unseal_driver(model.checkpoint.driver)['number']}"


# --- audits ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit:
    """A run's privacy claims, and what its ledger, replays and attacks show."""

    run: str
    ledger: LedgerAudit
    replays: Sequence[ReplayAudit]
    attacks: Sequence[Attack]

    @property
    def refuted(self) -> list[str]:
        """One sentence per claim that does not hold."""
        return [*(line for replay in self.replays for line in replay.refuted), *self.ledger.refuted]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON-ready mapping."""
        ledger = self.ledger
        return {
            "run": self.run,
            "agrees": ledger.agrees,
            "refuted": self.refuted,
            "lines": [_line(line) for line in ledger.lines],
            "claims": [jsonable(dataclasses.asdict(claim)) for claim in ledger.claims],
            "predictions": [_line(line) for line in ledger.predictions],
            "prediction_claims": [jsonable(dataclasses.asdict(claim)) for claim in ledger.prediction_claims],
            "not_counted": list(ledger.not_counted),
            "charged": ledger.charged,
            "replays": [_replay(audit) for audit in self.replays],
            "attacks": [{**dataclasses.asdict(one), "is_chance": one.is_chance} for one in self.attacks],
        }


def audit(
    folder: RunFolder,
    *,
    settings: Words = (),
    replay: bool = False,
    attacks: bool = False,
    neighbours: int = 10,
    party: str | None = None,
    data: str | None = None,
    allow_import: Sequence[str] = (),
) -> Audit:
    """Recompute every privacy figure of a run; see `fedactors.api.Run.audit`.

    What replays or attacks found is kept in the folder of a run that has ended, for its report.
    """
    if neighbours < 1:
        raise BadInput(f"--neighbours: {neighbours} is not allowed: give at least 1")
    if settings and not replay:
        raise BadInput(f"{next(iter(settings))}: settings are for --replay, which may run smaller than the run did")
    if isinstance(known := folder.config.get("federation"), dict):
        run = known.get("run")
        raise BadInput(
            f"audit: {folder.path}: each site keeps its own account of the run; in its folder: fedactors audit "
            f"runs/*-{run}-0, and fedactors site audit {run} for what crossed"
        )
    from fedactors.auditing.audit import check_run

    ledger = check_run(folder)
    replays = _replays(folder, settings, neighbours, party, data, allow_import) if replay else []
    found = _attacks(folder, data, allow_import) if attacks else []
    result = Audit(run=str(folder.path), ledger=ledger, replays=replays, attacks=found)
    if (replays or found) and folder.status != "running":
        folder.write_json(AUDIT, result.as_dict())
        folder.write_manifest()
    return result


def _replays(
    folder: RunFolder, settings: Words, count: int, party: str | None, given: str | None, allow_import: Sequence[str]
) -> list[ReplayAudit]:
    from fedactors.auditing.replay import audit_by_replay, joined

    protocol = find_protocol(str(folder.config.get("protocol")))
    if (neighbours := getattr(protocol, "neighbours", None)) is None:
        raise BadInput(f"--replay: {protocol.name} does not say what its neighbours are")
    config = restore_config(protocol, folder, allow_import)
    if settings:
        changed = settings if isinstance(settings, Mapping) else parse_words(settings)
        config = build(protocol.Config, {**as_dict(config), **changed})
    seed = folder.config["seed"]
    data = load_data(protocol, config, data_to_audit(folder, given), seed)
    lines = read_lines(folder, PRIVACY, schemas.PrivacyLine) if folder.listed(PRIVACY) is not None else []
    noised = [str(line["party"]) for line in lines if line["mechanism"] != "none"]
    parties = tuple(dict.fromkeys([*getattr(data, "parties", ()), *noised]))
    if party is not None and party not in parties:
        raise BadInput(f"--party: {party!r} is not allowed: one of {', '.join(parties)}")
    one_torch_thread()
    found = [
        audit_by_replay(protocol, config, data, one, neighbours(config, data, one, count, seed), seed=seed)
        for one in (parties if party is None else (party,))
    ]
    whole = joined(found) if party is None else None
    return found if whole is None else [*found, whole]


def _attacks(folder: RunFolder, given: str | None, allow_import: Sequence[str]) -> list[Attack]:
    from fedactors.auditing.attacks import run_attacks

    protocol = find_protocol(str(folder.config.get("protocol")))
    if (surface := getattr(protocol, "surface", None)) is None:
        raise BadInput(f"--attacks: {protocol.name} does not say what its attackers see")
    config, seed = restore_config(protocol, folder, allow_import), folder.config["seed"]
    data = load_data(protocol, config, data_to_audit(folder, given), seed)
    return run_attacks(surface(config, data, folder.load_checkpoint(None).actors, seed), seed)


def _line(line: Any) -> dict[str, Any]:
    told = ("party", "message_type", "mechanism", "neighbour", "uncovered", "note")
    stated = {name: getattr(line.record, name) for name in told}
    figures = {"stated_mu": line.record.rigorous_mu, "mu": line.mu, "stated_epsilon": line.record.epsilon}
    found: dict[str, Any] = jsonable(
        {**stated, **figures, "epsilon": line.epsilon, "agrees": line.agrees, "reason": line.reason}
    )
    return found


def _replay(audit: ReplayAudit) -> dict[str, Any]:
    replays = [
        {
            "neighbour": one.neighbour,
            "kind": one.kind,
            "mu": one.mu,
            "bare": list(one.bare),
            "to_driver": list(one.to_driver),
            "moved": {shift.release_name: {"mu": shift.mu, "largest": shift.largest} for shift in one.shifts},
        }
        for one in audit.replays
    ]
    claimed = {kind: dataclasses.asdict(claim) for kind, claim in audit.claims.items()}
    found: dict[str, Any] = jsonable({"party": audit.party, "claims": claimed, "replays": replays})
    return found
