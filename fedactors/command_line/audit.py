"""``fedactors audit RUN``: what a run claims, beside what its ledger, a replay and attackers say."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedactors.command_line.terminal import print_json, print_table, say, say_filled
from fedactors.errors import BadInput

if TYPE_CHECKING:
    from fedactors.privacy.audit import Attack, LedgerAudit
    from fedactors.privacy.claims import Claim
    from fedactors.privacy.replay import ReplayAudit
    from fedactors.records.run_folder import RunFolder

REFUTED = 5
"""Exit code of an audit that refutes a claim."""


def audit_command(args: argparse.Namespace) -> int:
    """Recompute, replay, attack; the exit code says whether a claim is refuted.

    What a replay or attacks found is kept in the folder of a run that has ended, for its report.
    """
    from fedactors.privacy.audit import check_run
    from fedactors.records.run_folder import AUDIT, RunFolder

    if args.neighbours < 1:
        raise BadInput(f"--neighbours: {args.neighbours} is not allowed: give at least 1")
    if args.words and not args.replay:
        raise BadInput(f"{args.words[0]}: settings are for --replay, which may run smaller than the run did")
    folder = RunFolder.open(args.run)
    if isinstance(known := folder.config.get("federation"), dict):
        run = known.get("run")
        raise BadInput(
            f"audit: {folder.path}: each site keeps its own account of the run; in its folder: fedactors audit "
            f"runs/*-{run}-0, and fedactors site audit {run} for what crossed"
        )
    ledger = check_run(folder)
    replays = _replays(folder, args) if args.replay else []
    attacks = _attacks(folder, args) if args.attacks else []
    refuted = [line for audit in replays for line in audit.refuted]
    refuted += ledger.refuted
    found = {
        "run": str(folder.path),
        "agrees": ledger.agrees,
        "refuted": refuted,
        "lines": [_line(line) for line in ledger.lines],
        "claims": [_claim(claim) for claim in ledger.claims],
        "predictions": [_line(line) for line in ledger.predictions],
        "prediction_claims": [_claim(claim) for claim in ledger.prediction_claims],
        "not_counted": list(ledger.not_counted),
        "replays": [_replay(audit) for audit in replays],
        "attacks": [{**dataclasses.asdict(one), "is_chance": one.is_chance} for one in attacks],
    }
    if (replays or attacks) and folder.status != "running":
        folder.write_json(AUDIT, found)
        folder.write_manifest()
    if args.format == "json":
        print_json(found)
    else:
        _print(ledger, replays, attacks, refuted)
    return REFUTED if refuted else 0


def _replays(folder: RunFolder, args: argparse.Namespace) -> list[ReplayAudit]:
    from fedactors.config import as_dict, build, parse_words
    from fedactors.launch import load_data, restore_config
    from fedactors.plugins import find_protocol
    from fedactors.privacy.replay import audit_by_replay, joined
    from fedactors.runtime.simulation.pool import one_torch_thread
    from fedactors.stored_data import data_to_audit

    protocol = find_protocol(str(folder.config.get("protocol")))
    if getattr(protocol, "neighbours", None) is None:
        raise BadInput(f"--replay: {protocol.name} does not say what its neighbours are")
    config = restore_config(protocol, folder, args.trust)
    if args.words:
        config = build(protocol.Config, {**as_dict(config), **parse_words(args.words)})
    seed = folder.config["seed"]
    data = load_data(protocol, config, data_to_audit(folder, args.data), seed)
    parties = tuple(data.parties) if hasattr(data, "parties") else ()
    if args.party is not None and args.party not in parties:
        raise BadInput(f"--party: {args.party!r} is not allowed: one of {', '.join(parties)}")
    one_torch_thread()
    found = []
    for party in parties if args.party is None else (args.party,):
        assert protocol.neighbours is not None
        neighbours = protocol.neighbours(config, data, party, args.neighbours, seed)
        found.append(audit_by_replay(protocol, config, data, party, neighbours, seed=seed))
    whole = joined(found) if args.party is None else None
    return found if whole is None else [*found, whole]


def _attacks(folder: RunFolder, args: argparse.Namespace) -> list[Attack]:
    from fedactors.launch import load_data, restore_config
    from fedactors.plugins import find_protocol
    from fedactors.privacy.attacks.suite import run_attacks
    from fedactors.stored_data import data_to_audit

    protocol = find_protocol(str(folder.config.get("protocol")))
    surface = getattr(protocol, "surface", None)
    if surface is None:
        raise BadInput(f"--attacks: {protocol.name} does not say what its attackers see")
    config, seed = restore_config(protocol, folder, args.trust), folder.config["seed"]
    data = load_data(protocol, config, data_to_audit(folder, args.data), seed)
    return run_attacks(surface(config, data, folder.load_checkpoint(None).actors, seed), seed)


def _print(
    ledger: LedgerAudit, replays: Sequence[ReplayAudit], attacks: Sequence[Attack], refuted: Sequence[str]
) -> None:
    from fedactors.privacy.audit import table_of

    rows = [
        [
            line.record.party,
            line.record.message_type,
            line.record.neighbour,
            line.record.mechanism,
            _number(line.record.rigorous_mu),
            _number(line.mu),
            _number(line.record.epsilon),
            _number(line.epsilon),
            "agrees" if line.agrees else "DISAGREES",
        ]
        for line in (*ledger.lines, *ledger.predictions)
    ]
    if rows:
        print_table(["party", "release", "one", "mechanism", "mu", "recomputed", "epsilon", "recomputed", ""], rows)
    else:
        say("nothing is claimed: the ledger holds no line")
    say()
    spoken = [*((claim, "") for claim in ledger.claims)]
    spoken += [(claim, ", in all predictions together") for claim in ledger.prediction_claims]
    for claim, where in spoken:
        holds = f"mu {_number(claim.mu)}, epsilon {_number(claim.epsilon)} at delta {claim.delta:g}"
        said = holds if claim.covered else f"no guarantee ({'; '.join(claim.uncovered)})"
        say_filled(f"{claim.party}, one {claim.neighbour}{where}: {said}")
    for line in ledger.not_counted:
        say_filled(line)
    for audit in replays:
        for kind, worst in audit.worst.items():
            stated = audit.claims.get(kind)
            claimed = _number(stated.mu) if stated is not None and stated.covered else "nothing"
            more = f"; without noise: {', '.join(worst.bare[:3])}" if worst.bare else ""
            say_filled(
                f"{audit.party}, one {kind}, replayed: claimed {claimed}, moved mu {_number(worst.mu)} "
                f"({worst.neighbour}){more}"
            )
    if attacks:
        say()
        print_table(*table_of(attacks))
    for line in refuted:
        say_filled(f"REFUTED: {line}")


def _line(line: Any) -> dict[str, Any]:
    from fedactors.records.metrics import jsonable

    told = ("party", "message_type", "mechanism", "neighbour", "uncovered", "note")
    stated = {name: getattr(line.record, name) for name in told}
    figures = {"stated_mu": line.record.rigorous_mu, "mu": line.mu, "stated_epsilon": line.record.epsilon}
    found: dict[str, Any] = jsonable(
        {**stated, **figures, "epsilon": line.epsilon, "agrees": line.agrees, "reason": line.reason}
    )
    return found


def _claim(claim: Claim) -> dict[str, Any]:
    from fedactors.records.metrics import jsonable

    found: dict[str, Any] = jsonable(dataclasses.asdict(claim))
    return found


def _replay(audit: ReplayAudit) -> dict[str, Any]:
    from fedactors.records.metrics import jsonable

    replays = [
        {
            "neighbour": one.neighbour,
            "kind": one.kind,
            "mu": one.mu,
            "bare": list(one.bare),
            "to_driver": list(one.to_driver),
            "moved": {shift.place: {"mu": shift.mu, "largest": shift.largest} for shift in one.shifts},
        }
        for one in audit.replays
    ]
    claimed = {kind: dataclasses.asdict(claim) for kind, claim in audit.claims.items()}
    found: dict[str, Any] = jsonable({"party": audit.party, "claims": claimed, "replays": replays})
    return found


def _number(value: float | None) -> str:
    return "-" if value is None else "none" if math.isinf(value) else f"{value:.4g}"
