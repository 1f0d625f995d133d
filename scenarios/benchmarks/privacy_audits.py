"""GLASU, MTCD and TablePuppet: what is claimed, what a replay of one record moves, what attackers find, off and on.

TablePuppet: every table's rows of some joined tuples are replaced (another row's values, a million, zeros, minus a
million), and the label alone; `tuple` composes all tables. Movielens: the ratings of 25 users; flights: those of a day.
GLASU claims nothing of a node; `shown_mu` is the ledger's figure of the noised representations, and `replay_mu` what
one node's features move of them. Attacks: links from what the server reads of the first aggregation (AUC).
Reconstruction: the server solves for one table's rows, from 5 rounds and the first predictions, with some
rows known, and with theta given, which it never sees; a hit is a standardised feature within 0.1.
MTCD: a row of the first and of the last party replaced; all rows of a release are charged, so its claims are large.
Whole models (horizontal, NebulaFL) and MTCD's representations: the suite of attacks, off and on.

    python scenarios/benchmarks/privacy_audits.py       # into docs/results/privacy_audits.parquet
    python -m scenarios.results docs/results            # the tables of the page
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute

from fedactors.auditing.attacks import run_attacks
from fedactors.auditing.audit import Attack
from fedactors.auditing.replay import ReplayAudit, audit_by_replay, joined
from fedactors.config import as_dict, build, parse_words
from fedactors.data.databases import in_memory
from fedactors.data.layouts.vertical import RelationalData
from fedactors.launch import load_data
from fedactors.privacy.accounting import compose_mu
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runs.table import RunRow
from fedactors.runtime.compute import one_torch_thread
from fedactors.sweeps import run_once

sys.path.insert(0, str(Path(__file__).parents[2]))

from fedactors.protocols.glasu import auditing as graphs
from fedactors.protocols.glasu.plugin import PROTOCOL as GLASU
from fedactors.protocols.horizontal.plugin import PROTOCOL as HORIZONTAL
from fedactors.protocols.mtcd import privacy as samples
from fedactors.protocols.mtcd.plugin import PROTOCOL as MTCD
from fedactors.protocols.nebulafl.plugin import PROTOCOL as NEBULAFL
from fedactors.protocols.tablepuppet import privacy as joins
from fedactors.protocols.tablepuppet.plugin import PROTOCOL as TABLEPUPPET
from fedactors.protocols.tablepuppet.plugin import PUBLISHED
from scenarios.paper.study import Study, study_flags

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
COUNT = 2
AIRLINES = "|".join((
    "Endeavor Air Inc.", "American Airlines Inc.", "Alaska Airlines Inc.", "JetBlue Airways", "Delta Air Lines Inc.",
    "ExpressJet Airlines Inc.", "Frontier Airlines Inc.", "AirTran Airways Corporation", "Hawaiian Airlines Inc.",
    "Envoy Air", "SkyWest Airlines Inc.", "United Air Lines Inc.", "US Airways Inc.", "Virgin America",
    "Southwest Airlines Co.", "Mesa Airlines Inc.",
))  # fmt: skip
GENRES = (
    "Action|Adventure|Animation|Children's|Comedy|Crime|Documentary|Drama|Fantasy|Film-Noir|Horror|Musical|Mystery|"
    "Romance|Sci-Fi|Thriller|War|Western"
)


class AuditStudy(Study):
    """Rows of a table of their own."""

    @property
    def table(self) -> Path:
        """The table that rows are put into."""
        return self.out / "privacy_audits.parquet"


def _all(table: str, rows: pa.Table) -> Any:
    return None


@dataclass(frozen=True)
class Tables:
    """A relational data set, cut so that a replay of many runs is affordable, and what is public of its columns."""

    name: str
    settings: Mapping[str, Any]
    declared: tuple[str, ...]
    keep: Callable[[str, pa.Table], Any] = _all


def _of_few_users(table: str, rows: pa.Table) -> Any:
    return pyarrow.compute.less_equal(rows["user_id"], 25) if table == "ratings" else None


def _of_one_day(table: str, rows: pa.Table) -> Any:
    if table not in ("flights", "weather"):
        return None
    is_january = pyarrow.compute.equal(rows["month"], 1)
    return pyarrow.compute.and_(is_january, pyarrow.compute.equal(rows["day"], 1))


DATA = {
    "orders": Tables(
        "orders:400",
        {"model": "logistic"},
        ("amount=0:3", "hour=0:23", "weight=0:3", "price=0:3", "credit_limit=0:3", "age=18:80"),
    ),
    "movielens": Tables(
        "movielens-1m",
        {"label_range": (1.0, 5.0)},
        (
            "gender=F|M",
            "age=1|18|25|35|45|50|56",
            f"occupation={'|'.join(map(str, range(21)))}",
            "year=1919:2000",
            f"genre={GENRES}",
        ),
        _of_few_users,
    ),
    "nycflights": Tables(
        "nycflights13",
        {"model": "logistic"},
        (
            *("distance=0:5000", f"hour={'|'.join(map(str, range(24)))}", "month=1|2", f"name={AIRLINES}"),
            *("engines=1:4", "seats=2:450", "lat=20:72", "lon=-160:-65", "alt=0:7000", "temp=0:100", "humid=0:100"),
            *("wind_speed=0:50", "precip=0:1", "visib=0:10"),
        ),
        _of_one_day,
    ),
}
NOISE = {"feature_dp": 8.0, "prediction_clip": 1.0, "prediction_noise": 2.0, "label_dp": 1.0, "num_rounds": 2}
SGD = {"algorithm": "rfl-sgd-v", "batch_size": 100_000}
MODES: dict[str, dict[str, Any]] = {
    "sgd": {**NOISE, **SGD},
    "sgd-sums": {**NOISE, **SGD, "secure_aggregation": True, "secure_range": 1000.0},
    "admm": {**NOISE, "algorithm": "rfl-admm-v", "admm": "paper_sgd", "local_epochs": 1},
    "sgd-without-prediction-noise": {**NOISE, **SGD, "prediction_clip": None, "prediction_noise": 0.0},
}


def cut(data: RelationalData, keep: Callable[[str, pa.Table], Any]) -> RelationalData:
    """Return the data with the rows of each table that are kept, in memory."""
    parts = []
    for part in data.partitions:
        rows = part.source.load()
        chosen = keep(part.table, rows)
        parts.append(dataclasses.replace(part, source=in_memory(rows if chosen is None else rows.filter(chosen))))
    return dataclasses.replace(data, partitions=tuple(parts))


def figure(value: float) -> float | str:
    """Return a number, or the word for one that is none."""
    return value if math.isfinite(value) else "inf"


def worst(audits: Sequence[ReplayAudit], kind: str) -> float:
    """Return the most that a neighbour of one kind moved at any party."""
    return max(audit.worst[kind].mu for audit in audits if kind in audit.worst)


def tables(point: tuple[Tables, Mapping[str, Any]], seed: int) -> RunRow:
    """Replay every table of one data set in one mode."""
    one_torch_thread()
    source, settings = point
    config = build(TABLEPUPPET.Config, {**PUBLISHED, **source.settings, **settings, "declared_facts": source.declared})
    data = cut(load_data(TABLEPUPPET, config, source.name, seed), source.keep)
    audits = [
        audit_by_replay(TABLEPUPPET, config, data, one, joins.neighbours(config, data, one, COUNT, seed), seed=seed)
        for one in data.parties
    ]
    whole = joined(audits)
    assert whole is not None
    claim, (label,) = next(iter(whole.claims.values())), [audit for audit in audits if "label" in audit.worst]
    moved = max(whole.replays, key=lambda one: one.epsilon(claim.delta or 1e-5))
    refuted = [line for audit in (*audits, whole) for line in audit.refuted]
    rows = [audit.claims["row"] for audit in audits]
    metrics = {
        "label_mu": figure(label.claims["label"].mu),
        "label_replay_mu": figure(worst(audits, "label")),
        "row_epsilon": figure(max(one.epsilon for one in rows)) if all(one.covered for one in rows) else "none",
        "tuple_mu": figure(claim.mu) if claim.covered else "none",
        "tuple_epsilon": figure(claim.epsilon) if claim.covered else "none",
        "tuple_delta": claim.delta if claim.covered else "none",
        "tuple_replay_mu": figure(moved.mu),
        "tuple_replay_epsilon": figure(moved.epsilon(claim.delta or 1e-5)),
        "refuted": "yes" if refuted else "no",
        "bare": moved.bare[0] if moved.bare else "nothing",
        "neighbours": sum(len(audit.replays) for audit in audits),
    }
    return RunRow(protocol=TABLEPUPPET.name, seed=seed, data=source.name, config=as_dict(config), metrics=metrics)


OPEN: dict[str, Any] = {"algorithm": "rfl-admm-v", "local_epochs": 1}
SUMMED = {**OPEN, "secure_aggregation": True, "secure_range": 1000.0}
HIDDEN = {"admm": "paper_sgd", "feature_dp": 8.0, "prediction_clip": 2.0, "prediction_noise": 2.0}
RECONSTRUCTED = {
    "orders-items": ("orders", "items", 8),
    "orders-cards": ("orders", "cards", 8),
    "nycflights-weather": ("nycflights", "weather", 20),
}
"""Data set, attacked table, and how many of its rows the server knows."""
VIEWS: dict[str, dict[str, Any]] = {
    "open": OPEN,
    "sums": SUMMED,
    "noise": {**OPEN, **HIDDEN},
    "sums-and-noise": {**SUMMED, **HIDDEN},
}


def _told(one: Attack) -> str:
    return f"{one.estimate:.3f} ({one.low:.3f} to {one.high:.3f}; chance {one.chance:.3f})"


def reconstructed(point: tuple[Tables, str, int, Mapping[str, Any]], seed: int) -> RunRow:
    """Let the server solve for the rows of one table."""
    one_torch_thread()
    source, table, num_known, settings = point
    config = build(
        TABLEPUPPET.Config,
        {**PUBLISHED, **source.settings, **settings, "declared_facts": source.declared, "num_rounds": 5},
    )
    data = cut(load_data(TABLEPUPPET, config, source.name, seed), source.keep)
    view = joins.views(config, data, seed)[table]
    found = joins.reconstructions(table, view, num_known)
    metrics: dict[str, Any] = {"known_rows": _told(found[0]), "theta_given": _told(found[1])}
    num_rows, num_features = view.rows_NF.shape
    metrics |= {"rounds": len(view.values_RN), "rows": num_rows, "features": num_features, "known": num_known}
    # differences need pairs of known rows: a quarter of the table
    more = joins.reconstructions(table, view, num_rows // 4)[2:]
    metrics |= {
        "differences": _told(more[0]) if more else "none",
        "beside": more[0].count // num_features if more else 0,
    }
    return RunRow(protocol=TABLEPUPPET.name, seed=seed, data=source.name, config=as_dict(config), metrics=metrics)


GRAPHS = {"blocks": "blocks:400x32x4", "cora": "cora", "pubmed": "pubmed"}
SMALL = {"num_rounds": 2, "evaluate_every": 2, "hidden_size": 16, "dropout": 0.0}
NODES = {"noise_multiplier": 4.0, "clip_norm": 1.0, "max_degree": 400}
GUARDS: dict[str, dict[str, Any]] = {
    "off": {},
    "sums": {"secure_aggregation": True, "secure_range": 1e4},
    "noise": NODES,
    "sums-and-noise": {**NODES, "secure_aggregation": True, "secure_range": 1e4},
}


def nodes(point: tuple[str, Mapping[str, Any]], seed: int) -> RunRow:
    """Replay one client's nodes on one graph in one mode, and steal links from a model of the same settings."""
    one_torch_thread()
    source, settings = point
    config = build(GLASU.Config, {**SMALL, **settings})
    data = load_data(GLASU, config, source, seed)
    party = data.parties[0]
    audit = audit_by_replay(GLASU, config, data, party, graphs.neighbours(config, data, party, 3, seed), seed=seed)
    short = run_once(GLASU, {**SMALL, **settings}, source, seed, reproducible_noise=True).runtime.privacy_records
    shown = [line.rigorous_mu for line in short if line.message_type == "Representation" and line.rigorous_mu]
    recorder, longer = MemoryRecorder(), {**SMALL, **settings, "num_rounds": 20}
    done = run_once(GLASU, longer, source, seed, recorder=recorder, reproducible_noise=True)
    states = recorder.checkpoints["final"].actors
    attacks = graphs.surface(build(GLASU.Config, longer), data, states, seed).others
    strongest = max(attacks, key=lambda one: abs(one.estimate - one.chance))
    moved = max(compose_mu(shift.mu for shift in one.shifts) for one in audit.replays)
    metrics = {
        "shown_mu": max(shown) if shown else "none",
        "replay_mu": moved if shown else "none",
        "bare": ", ".join(sorted({transfer.partition(" ")[0] for one in audit.replays for transfer in one.bare})[:4]),
        "test/accuracy": done.result.metrics["test/accuracy"],
        "links": _told(strongest),
        "neighbours": len(audit.replays),
    }
    return RunRow(protocol=GLASU.name, seed=seed, data=source, config=as_dict(config), metrics=metrics)


TABLES = ("breast-cancer", "bank", "credit")
TOKENS: dict[str, Any] = {
    "problem": "sparse-logistic", "num_clients": 3, "num_tokens": 1, "num_hops": 2, "num_local_steps": 5,
    "num_rounds": 3, "learning_rate": 0.1, "noise": "gaussian", "walk": "lazy", "acceleration": False,
}  # fmt: skip
TOKENS_HIDDEN = {"noise": "gaussian", "noise_multiplier": 4.0}
TOKEN_NOISE: dict[str, dict[str, Any]] = {
    "noise-4": {"noise_multiplier": 4.0},
    "noise-400": {"noise_multiplier": 400.0},
    "noise-4-and-sums": {"noise_multiplier": 4.0, "secure_aggregation": True, "secure_range": 1e4},
    "noise-4-step-found": {"noise_multiplier": 4.0, "learning_rate": "auto"},
}


def rows(point: tuple[str, Mapping[str, Any]], seed: int) -> RunRow:
    """Replay a row of the first and of the last party of a table."""
    one_torch_thread()
    source, settings = point
    config = build(MTCD.Config, settings)
    data = load_data(MTCD, config, source, seed)
    audits = [
        audit_by_replay(MTCD, config, data, party, samples.neighbours(config, data, party, 6, seed), seed=seed)
        for party in (data.parties[0], data.parties[-1])
    ]
    claim = max((audit.claims["row"] for audit in audits), key=lambda one: one.mu)
    moved = max((audit.worst["row"] for audit in audits), key=lambda one: one.mu)
    metrics = {
        "claimed_mu": figure(claim.mu) if claim.covered else "none",
        "claimed_epsilon": figure(claim.epsilon) if claim.covered else "none",
        "replay_mu": figure(moved.mu),
        "refuted": "yes" if any(audit.refuted for audit in audits) else "no",
        "bare": moved.bare[0].partition(" ")[0] if moved.bare else "nothing",
        "neighbours": sum(len(audit.replays) for audit in audits),
    }
    return RunRow(protocol=MTCD.name, seed=seed, data=source, config=as_dict(config), metrics=metrics)


NOISED: dict[str, dict[str, Any]] = {
    "clients": {"client_clip_norm": 0.5, "client_noise_multiplier": 2.0},
    "rows": {"record_clip_norm": 1.0, "record_noise_multiplier": 2.0},
}
WHOLE: dict[str, tuple[Any, dict[str, Any], dict[str, dict[str, Any]]]] = {
    "horizontal": (
        HORIZONTAL,
        {"model": "linear", "num_clients": 8, "num_rounds": 3, "dirichlet": 0.5, "num_training": 1200}
        | {"optimizer": "sgd", "learning_rate": 0.05, "schedule": "constant", "batch_size": 32, "local_epochs": 1}
        | {"layers": 3, "standardisation": "none"},
        {"off": {}, "sums": {"secure_aggregation": True}, **NOISED},
    ),
    "nebulafl": (
        NEBULAFL,
        {"algorithm": "fedavg-hierarchical", "on_party_loss": "stop", "num_centers": 4, "num_containers": 16}
        | {"model": "linear", "num_rounds": 3, "num_training": 1200, "duration": 20000.0},
        {"off": {}, "sums": {"secure_aggregation": True}, **NOISED},
    ),
    "mtcd": (
        MTCD,
        {key: value for key, value in TOKENS.items() if key != "noise"} | {"num_rounds": 20},
        {"off": {}, "sums": {"secure_aggregation": True, "secure_range": 1e4}, "noise": TOKENS_HIDDEN},
    ),
}
IMAGES = ("digits", "fashion-mnist", "cifar10-subset")


def _strength(attack: Attack) -> float:
    """Return how far from guessing an attack is; a ranking that is turned round tells as much."""
    found = attack.estimate - attack.chance
    return abs(found) if attack.measure == "auc" else found


def attacked_models(point: tuple[str, str, Mapping[str, Any]], seed: int) -> RunRow:
    """Run once, and mount the attacks on what was sent."""
    one_torch_thread()
    name, source, more = point
    protocol, settings, _ = WHOLE[name]
    words = {**protocol.smoke, **settings, **more}
    recorder = MemoryRecorder()
    run_once(protocol, words, source, seed, recorder=recorder, reproducible_noise=True)
    config, states = build(protocol.Config, words), list(recorder.checkpoints.values())[-1].actors
    found: dict[str, list[Attack]] = {}
    for one in run_attacks(protocol.surface(config, load_data(protocol, config, source, seed), states, seed), seed):
        found.setdefault(one.name.partition(":")[0].partition(",")[0].replace(" ", "_"), []).append(one)
    strongest = {kind: max(ones, key=_strength) for kind, ones in found.items()}
    metrics = {
        kind: f"{one.estimate:.3f} ({one.low:.3f} to {one.high:.3f}; chance {one.chance:.3f})"
        for kind, one in strongest.items()
    }
    return RunRow(protocol=name, seed=seed, data=source, config=as_dict(config), metrics=metrics)


def main() -> None:
    """Measure what is not in the table yet."""
    given: AuditStudy = study_flags(__doc__, "tablepuppet", RESULTS).parse_args(namespace=AuditStudy())
    words = parse_words(given.words)
    points = {
        f"{name}/{mode}": (source, {**settings, **words})
        for name, source in DATA.items()
        for mode, settings in MODES.items()
    }
    given.measure("tablepuppet", points, tables, smoke_rows=1)
    attacked = {
        f"{name}/{mode}": (DATA[source], table, known, settings)
        for name, (source, table, known) in RECONSTRUCTED.items()
        for mode, settings in VIEWS.items()
    }
    given.measure("reconstruction", attacked, reconstructed, smoke_rows=1)
    given.protocol = "glasu"
    found = {f"{name}/{mode}": (source, guard) for name, source in GRAPHS.items() for mode, guard in GUARDS.items()}
    given.measure("glasu", found, nodes, smoke_rows=1)
    given.protocol = "mtcd"
    noised = {f"{name}/{mode}": (name, {**TOKENS, **more}) for name in TABLES for mode, more in TOKEN_NOISE.items()}
    given.measure("mtcd", noised, rows, smoke_rows=1)
    for name, (_, _, modes) in WHOLE.items():
        given.protocol = name
        sources = TABLES if name == "mtcd" else IMAGES
        mounted = {f"{data}/{mode}": (name, data, more) for data in sources for mode, more in modes.items()}
        given.measure(f"{name}-attacks", mounted, attacked_models, smoke_rows=1)


if __name__ == "__main__":
    main()
