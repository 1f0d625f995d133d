"""Joined tuples replayed on three data sets: what is sent moves by less than is claimed, and cheats are found."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from fedactors.auditing import replay
from fedactors.data.layouts.vertical import Neighbour, stated
from fedactors.errors import BadInput
from fedactors.privacy.accounting import EVERYBODY, JOINED
from fedactors.protocols.tablepuppet import actors, local_solvers
from fedactors.protocols.tablepuppet.data import load_data
from fedactors.protocols.tablepuppet.plugin import PROTOCOL
from fedactors.protocols.tablepuppet.privacy import neighbours
from fedactors.testing.conformance import remarks_on_claims
from fedactors.testing.runs import Subject, simulate
from tests.protocols.tablepuppet.test_run import in_memory, settings

# theta is zero before the first step, and so are predictions: two rounds
COVERED = {
    "algorithm": "rfl-sgd-v", "num_rounds": 2, "batch_size": 10_000, "feature_dp": 8.0, "prediction_clip": 1.0,
    "prediction_noise": 2.0, "label_dp": 1.0,
}  # fmt: skip
ADMM = {"algorithm": "rfl-admm-v", "admm": "paper_sgd", "local_epochs": 1, "local_batch_size": 32}


def orders():
    facts = ("amount=0:3", "hour=0:23", "weight=0:3", "price=0:3", "credit_limit=0:3", "age=18:80")
    words = {**COVERED, "model": "logistic", "declared_facts": facts}
    return words, load_data(settings(**words), "orders:150", 0)


def houses(rows=60):
    """A regression; a row of a town is in several joined rows, and one feature is a category."""
    rng = np.random.default_rng(1)
    towns = pa.table({"town": np.arange(9), "tax": rng.normal(size=9), "coast": ["ew"[i % 2] for i in range(9)]})
    agents = pa.table({"agent": np.arange(5), "fee": rng.normal(size=5)})
    town, agent = rng.integers(0, 9, rows), rng.integers(0, 5, rows)
    # 45 pairs of keys: only houses whose pair nobody else has can be replaced
    homes = pa.table({"town": town, "agent": agent, "size": rng.normal(size=rows), "price": rng.normal(size=rows)})
    sql = "SELECT price, size, tax, coast, fee FROM homes JOIN towns ON homes.town = towns.town"
    sources = in_memory(homes=homes, towns=towns, agents=agents)
    query = f"{sql} JOIN agents ON homes.agent = agents.agent"
    facts = ("size=-2:2", "tax=-2:2", "coast=e|w", "fee=-2:2")
    words = {**COVERED, "label_range": (-2.0, 2.0), "declared_facts": facts, "secure_aggregation": True, **ADMM}
    return words, stated(query, sources, label="homes.price", categorical=("coast",))


def visits():
    """Three classes, two tables in two partitions each."""
    rng = np.random.default_rng(2)
    people = pa.table({"person": np.arange(40), "weight": rng.normal(size=40)})
    seen = pa.table({"person": np.arange(80) % 40, "day": np.arange(80), "heat": rng.normal(size=80)})
    seen = seen.append_column("ward", pa.array(rng.integers(0, 3, 80)))
    halves = {"people_a": people[:20], "people_b": people[20:], "seen_a": seen[:40], "seen_b": seen[40:]}
    sql = " UNION ALL ".join(
        f"SELECT ward, day, heat, weight FROM seen_{i} AS s JOIN people_{j} AS p ON s.person = p.person"
        for i in "ab"
        for j in "ab"
    )
    words = {
        **COVERED,
        "algorithm": "rfl-sgd",
        "declared_facts": ("day=0:80", "heat=-2:2", "weight=-2:2", "ward=0|1|2"),
    }
    data = stated(sql, in_memory(**halves), label="ward", task="multiclass", num_classes=3)
    return {**words, "model": "softmax"}, data


def audit(made, count=2, parties=None):
    words, data = made
    config = settings(**words)
    audits = [
        replay.audit_by_replay(PROTOCOL, config, data, party, neighbours(config, data, party, count, 0))
        for party in parties or data.parties
    ]
    return [*audits, *([replay.joined(audits)] if parties is None else [])]


@pytest.mark.slow
@pytest.mark.parametrize("made", [orders, houses, visits])
def test_no_joined_tuple_moves_what_is_sent_by_more_than_is_claimed(made):
    audits = audit(made())
    assert [line for found in audits for line in found.refuted] == []
    whole = audits[-1]
    assert (whole.party, whole.claims[JOINED].party) == (EVERYBODY, EVERYBODY)
    assert whole.claims[JOINED].covered
    assert all(claim.covered for found in audits for kind, claim in found.claims.items() if kind in ("row", "label"))
    moved = {kind: worst for found in audits for kind, worst in found.worst.items()}
    assert moved.keys() == {"row", "label", JOINED}
    assert moved[JOINED].bare == ()
    assert moved[JOINED].mu > 0.1
    assert moved["label"].mu == pytest.approx(moved[JOINED].mu, rel=0.5)  # a label costs more than all else here
    release_names = {shift.release_name.rpartition(" ")[2] for shift in moved[JOINED].shifts if shift.mus}
    assert release_names == {"Labels", "predictions", "theta"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "name", "found"),
    [
        (local_solvers, "clip_rows", "mu"),  # gradients of any length
        (actors, "clip_and_noise", "without noise: Predictions.values"),
    ],
)
def test_a_table_that_does_not_clip_or_does_not_noise_is_refuted(monkeypatch, module, name, found):
    made = orders()
    (honest,) = audit(made, parties=("items",))
    assert honest.refuted == []
    monkeypatch.setattr(module, name, lambda values, *_: values)
    (items,) = audit(made, parties=("items",))
    assert len(items.refuted) == 1
    assert found in items.refuted[0]


@pytest.mark.slow
def test_the_conformance_kit_replays_joined_tuples(monkeypatch):
    words, _ = orders()
    subject = Subject(protocol=PROTOCOL, config={**words, "num_rounds": 1}, data="orders:150", on_ray=False)
    assert list(remarks_on_claims(subject, simulate(subject))) == []
    monkeypatch.setattr(local_solvers, "clip_rows", lambda values, *_: values)
    remarks = list(remarks_on_claims(subject, simulate(subject)))
    assert any("are claimed for one joined tuple" in remark for remark in remarks)


def grades(last):
    """Four classes, of which one row alone has the last; replaced by `last` it is in no row."""
    label = [*("abc"[i % 3] for i in range(59)), last]
    tests = pa.table({"k": np.arange(60), "x": np.linspace(-1, 1, 60), "grade": label})
    sources = in_memory(tests=tests, pupils=pa.table({"k": np.arange(60), "z": np.cos(np.arange(60))}))
    sql = "SELECT grade, x, z FROM tests JOIN pupils ON tests.k = pupils.k"
    return stated(sql, sources, label="grade", task="multiclass", num_classes=4)


@pytest.mark.slow
@pytest.mark.parametrize("declared", [(), ("x=-1:1", "z=-1:1", "grade=a|b|c|d")])
def test_labels_are_covered_where_their_classes_are_not_counted_among_the_rows(declared):
    config = settings(algorithm="rfl-sgd-v", model="softmax", num_rounds=1, label_dp=1.0, declared_facts=declared)
    data = grades("d")
    rare = Neighbour(label="d by b", kind="label", data=grades("b"))
    found = replay.audit_by_replay(PROTOCOL, config, data, data.parties[0], [rare], seed=0)
    assert found.refuted == []
    assert found.claims["label"].covered == bool(declared)
    told = any("num_classes" in transfer for transfer in found.worst["label"].bare)
    assert told != bool(declared)
    why = " ".join(found.claims["label"].uncovered)
    assert ("which classes occur is told" in why) == told


def test_slices_that_repeat_base_rows_have_no_account():
    with pytest.raises(BadInput, match="feature_dp: not with vfl-sgd, whose slices repeat base rows"):
        settings(algorithm="vfl-sgd", feature_dp=1.0)


@pytest.mark.slow
def test_rows_without_keys_of_their_own_cannot_be_replayed():
    words, data = orders()
    items = data.of("items")[0]
    doubled = pa.concat_tables([items.source.load()] * 2)
    (twice,) = in_memory(items=doubled).values()
    other = tuple(dataclasses.replace(p, source=twice) if p == items else p for p in data.partitions)
    with pytest.raises(BadInput, match="neighbours: 0 of 2 were found: rows with keys of their own"):
        neighbours(settings(**words), dataclasses.replace(data, partitions=other), "items", 2, 0)
