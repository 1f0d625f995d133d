"""What a peer sends decides no size, no divisor, no batch and no name: the receiver compares it with its own state."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fedactors.actors.actor import Client, Resources
from fedactors.data.alignment import ids
from fedactors.data.alignment.ids import AlignmentQuestion, answer_beside, check_number, psi_request
from fedactors.errors import BadInput, Refused
from fedactors.protocols.glasu import messages as graphs
from fedactors.protocols.glasu.aggregation import AggregationServer
from fedactors.protocols.horizontal import messages as horizontal
from fedactors.protocols.horizontal.config import HorizontalConfig
from fedactors.protocols.mtcd import messages as tokens
from fedactors.protocols.nebulafl import messages as centers
from fedactors.protocols.tablepuppet import messages as joins
from fedactors.runtime import calls
from fedactors.runtime.compute import HostedContext, WallClock
from fedactors.runtime.interface import ActorSpec
from tests.protocols.glasu import federation as small_graphs
from tests.protocols.horizontal import federation as small_sites
from tests.protocols.mtcd import running
from tests.protocols.nebulafl import runs as small_centers
from tests.protocols.tablepuppet.test_dp import execute as execute_join
from tests.protocols.tablepuppet.test_run import execute as execute_masked
from tests.protocols.tablepuppet.test_run import settings as masked_settings
from tests.protocols.tablepuppet.test_secure_sums import shop

pytestmark = [pytest.mark.slow, pytest.mark.drawn(2, family="hostile")]


def send_otherwise(
    monkeypatch: pytest.MonkeyPatch, kind: type, change: Callable[[Any], dict[str, Any]], speaker: str = ""
) -> None:
    """Let an actor send messages of a kind with other fields than it made; `speaker`: how its name begins."""
    honest = calls._freeze_checked

    def leave(endpoints: Any, name: str, value: Any, copy: bool) -> Any:
        if type(value) is kind and name.startswith(speaker):
            value = replace(cast(Any, value), **change(value))
        return honest(endpoints, name, value, copy)

    monkeypatch.setattr(calls, "_freeze_checked", leave)


def check_refused(line: str, caplog: pytest.LogCaptureFixture, play: Callable[[], Any]) -> None:
    """Check that a run is refused, or goes on without whom it has refused, where the settings say so."""
    told = ""
    try:
        play()
    except Refused as error:
        told = str(error)
    assert re.search(line, told or caplog.text), told or caplog.text


def graph(**words: str) -> None:
    small_graphs.simulate(small_graphs.settings(**words))


BATCHES = {"batch_size": "16"}
GRAPHS: dict[str, tuple[type, Any, str, dict[str, str], str]] = {
    "an aggregate of one node": (
        graphs.Aggregated,
        lambda one: {"values": one.values[:1]},
        "server",
        {},
        r"server: sends client-\d Aggregated.values of shape \(1, 8\); expected: 120 \(nodes\) x 8",
    ),
    "a representation of one node": (
        graphs.Representation,
        lambda one: {"values": one.values[:1]},
        "client-1",
        {},
        r"client-1: sends server Representation.values of shape \(1, 8\); expected: 120 \(nodes\)",
    ),
    "a wide share of the gradient": (
        graphs.GradientShare,
        lambda one: {"values": np.repeat(one.values, 2, axis=1)},
        "server",
        {"mode": "joint"},
        r"server: sends client-\d GradientShare.values of shape \(120, 16\); expected: 120 \(nodes\) x 8",
    ),
    "nodes that there are not": (
        graphs.IndexSet,
        lambda one: {"nodes": np.append(one.nodes, 10**9)},
        "client-2",
        BATCHES,
        r"client-2: samples nodes that are not in order, each once, from 0 to 119",
    ),
    "fewer nodes than were sampled above": (
        graphs.Targets,
        lambda one: {"nodes": one.nodes[:3] if one.segment == 0 else one.nodes},
        "server",
        BATCHES,
        r"server: asks client-\d for nodes of segment 0 without all that it has sampled above",
    ),
    "a mean over more than there are": (
        graphs.Targets,
        lambda one: {"stamp": replace(one.stamp, members=(*one.stamp.members, *one.stamp.members))},
        "server",
        {},
        r"server: tells client-\d that .* take part; approved: client-0, client-1, client-2",
    ),
    "an attempt of its choice": (
        graphs.Targets,
        lambda one: {"stamp": replace(one.stamp, attempt=7)},
        "server",
        BATCHES,
        r"server: begins attempt 7 of round 1 with client-\d; approved: attempts 0 to 0",
    ),
}


@pytest.mark.parametrize("case", GRAPHS)
def test_graphs(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, change, speaker, words, line = GRAPHS[case]
    send_otherwise(monkeypatch, kind, change, speaker)
    with pytest.raises(Refused, match=line):
        graph(**words)


def test_losses_are_of_no_nodes_that_a_server_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a batch of one node, and of the same without it, the losses tell its label."""
    init = AggregationServer.__init__

    def elsewhere(self: AggregationServer, config: Any, names: Any, run_seed: int) -> None:
        init(self, config, names, run_seed + 1)

    monkeypatch.setattr(AggregationServer, "__init__", elsewhere)
    with pytest.raises(Refused, match=r"server: trains client-\d in round 1 on other nodes than its batch's; approved"):
        graph(**BATCHES)


def train_sites(**words: Any) -> None:
    small_sites.play(HorizontalConfig(**{"num_rounds": 2, "hidden_size": 4, **words}))


SITES: dict[str, tuple[type, Any, str, dict[str, Any], str]] = {
    "more clients than are approved": (
        horizontal.Introduction,
        lambda one: {"num_clients": 1000},
        "client-1",
        {},
        r"client-1: introduces 1,000 clients; approved: 1",
    ),
    "the weight of a thousand": (
        horizontal.Change,
        lambda one: {"weight": -one.weight},
        "client-1",
        {},
        r"client-1: sends a change of 1 clients, of weight -",
    ),
    "a change of more clients than were wanted": (
        horizontal.Change,
        lambda one: {"num_clients": 3},
        "client-1",
        {},
        r"client-1: sends a change of 3 clients, .*; wanted: 1 clients",
    ),
    "a change of one number": (
        horizontal.Change,
        lambda one: {"change": one.change[:1]},
        "client-1",
        {},
        r"client-1: sends server Change.change of shape \(1,\); expected: ",
    ),
    "another clip norm": (
        horizontal.PrivateOrder,
        lambda one: {"clip_norm": 1e6},
        "server",
        {"client_clip_norm": 1.0, "client_noise_multiplier": 1.0},
        r"server: orders client-\d to clip to 1e\+06, with a share of 0; approved: 1, share 0 \(client_clip_norm\)",
    ),
}


@pytest.mark.parametrize("case", SITES)
def test_sites(case: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    kind, change, speaker, words, line = SITES[case]
    send_otherwise(monkeypatch, kind, change, speaker)
    check_refused(line, caplog, lambda: train_sites(**words))


JOINS: dict[str, tuple[type, Any, str, dict[str, Any], str]] = {
    "a batch of no size": (
        joins.Derivatives,
        lambda one: {"batch_size": -one.batch_size},
        "server",
        {"algorithm": "rfl-sgd-v"},
        r"server: gives \w+ a batch of -[\d,]+ joined rows; approved: 512",
    ),
    "one derivative for all rows": (
        joins.Derivatives,
        lambda one: {"values": one.values[:1]},
        "server",
        {"algorithm": "rfl-sgd-v"},
        r"server: sends \w+ Derivatives.values of shape \(1, 1\); expected: [\d,]+ \(rows of the batch\) x 1",
    ),
    "an own row too many in the test": (
        joins.DuplicateCounts,
        lambda one: {"in_test": np.append(one.in_test, True)},
        "server",
        {},
        r"server: sends \w+ DuplicateCounts.in_test of shape \([\d]+,\); expected: [\d,]+ \(rows\)",
    ),
    "a thousand classes": (
        joins.Labels,
        lambda one: {"num_classes": 1000},
        "orders",
        {"model": "linear"},
        r"orders: sends labels of 1,000 outputs; approved: 1",
    ),
    "labels of other rows": (
        joins.Labels,
        lambda one: {"train": one.train[:-1]},
        "orders",
        {},
        r"orders: sends [\d,]+ labels of 1 outputs, of [\d,]+ rows; expected: one of each",
    ),
    "a penalty below zero": (
        joins.Auxiliary,
        lambda one: {"rho": -one.rho},
        "server",
        {"algorithm": "rfl-admm-v"},
        r"server: solves for the theta of \w+ with a penalty of -",
    ),
    "predictions of fewer rows": (
        joins.Predictions,
        lambda one: {"values": one.values[:-1]},
        "items",
        {"algorithm": "rfl-admm-v"},
        r"items: sends predictions of shape \(\d+, 1\); expected: ",
    ),
}


@pytest.mark.parametrize("case", JOINS)
def test_joins(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, change, speaker, words, line = JOINS[case]
    send_otherwise(monkeypatch, kind, change, speaker)
    with pytest.raises(Refused, match=line):
        execute_join(**words)


def test_rows_are_summed_as_often_as_they_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row beside one row of every other table, again and again, is in as many sums as tell what it adds."""
    send_otherwise(monkeypatch, joins.JoinPositions, lambda one: {"train": np.zeros_like(one.train)}, "server")
    with pytest.raises(Refused, match=r"server: sums rows of \w+ in .* joined rows, other ones than their counts say"):
        execute_masked(masked_settings(secure_aggregation=True), shop())


CENTERS: dict[str, tuple[type, Any, str, str]] = {
    "the mean of one container": (
        centers.RoundOrder,
        lambda one: {"num_containers": 1},
        "fedavg-hierarchical",
        r"exchange: orders a round of 1 containers of [\w-]+; approved: 2 \(active_per_center\)",
    ),
    "the last container by another number": (
        centers.TrainingOrder,
        lambda one: {"container": -1},
        "fedavg",
        r"exchange: orders work of container -1 of [\w-]+; approved: 0 to ",
    ),
    "a model of one number": (
        centers.TrainingOrder,
        lambda one: {"parameters": one.parameters[:1]},
        "fedavg",
        r"exchange: sends [\w-]+ TrainingOrder.parameters of shape \(1,\); expected: ",
    ),
    "a master of no version": (
        centers.MasterModel,
        lambda one: {"version": float("nan")},
        "nebulafl",
        r"[\w-]+: sends [\w-]+ a master of rotation \d+, version nan; approved: masters of ",
    ),
    "a result of no samples": (
        centers.TrainingResult,
        lambda one: {"num_samples": -one.num_samples},
        "fedavg",
        r"[\w-]+: sends a model of -[\d,]+ samples",
    ),
}


@pytest.mark.parametrize("case", CENTERS)
def test_centers(case: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    kind, change, algorithm, line = CENTERS[case]
    send_otherwise(monkeypatch, kind, change)
    config = small_centers.changed(algorithm=algorithm, duration=1300.0)
    check_refused(line, caplog, lambda: small_centers.play(config))


NETWORK = "problem=network num_samples=40 hidden_size=4 topology=path num_clients=3 num_tokens=1"
WALKS: dict[str, tuple[type, Any, str, str]] = {
    "a step too large": (
        tokens.Token,
        lambda one: {"step": 1e6 * one.step},
        "learning_rate=0.1",
        r"server: sends client-\d a token of step 100000; approved: above 0, at most 0.1 \(learning_rate\)",
    ),
    "more hops": (
        tokens.Token,
        lambda one: {"hops_left": 10**6},
        "",
        r"server: sends client-\d token 0, 0 hops made and 1000000 to come, issue 0; approved: 3 \(num_hops\)",
    ),
    "an issue that outdates all": (
        tokens.Token,
        lambda one: {"attempt": 10**6},
        "",
        r"server: sends client-\d token 0, .* issue 1000000; approved",
    ),
    "another fusion model": (
        tokens.Token,
        lambda one: {"theta_0": one.theta_0[:1]},
        NETWORK,
        r"server: sends client-\d Token.theta_0 of shape \(1,\); expected: [\d,]+ \(fusion parameters\)",
    ),
    "a norm of none": (
        tokens.SquaredNorm,
        lambda one: {"value": float("inf")},
        "learning_rate=auto",
        r"client-\d: says that its squared norm is inf",
    ),
    "a representation of another round": (
        tokens.Representation,
        lambda one: {"round_": one.round_ + 3},
        "",
        r"client-\d: represents round \d, with a penalty of .*; expected: round 1",
    ),
    "a tour without end": (
        tokens.Prelude,
        lambda one: {"tour": one.tour * 1000},
        f"algorithm=stcd start=[0] {NETWORK.replace(' num_tokens=1', '')}",
        r"client-\d: begins a walk at client-\d of \d hops and a tour of \d+, step .*; approved: \d hops",
    ),
}


@pytest.mark.parametrize("case", WALKS)
def test_walks(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, change, words, line = WALKS[case]
    send_otherwise(monkeypatch, kind, change)
    with pytest.raises(Refused, match=line):
        running.simulate(words)


def test_a_relayed_order_is_its_sealers_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """The station that passed it on was named, and is shut out by whoever reads the log."""
    honest = tokens.SyncTokens

    def large(round_: int, reissued: Any, weight: float, sends: bool, momentum: float = 0.0) -> Any:
        return honest(round_, reissued, weight, sends, 1e6)

    monkeypatch.setattr(tokens, "SyncTokens", large)
    words = "topology=path num_clients=3 num_tokens=1 server_links=0 num_hops=4"
    with pytest.raises(Refused, match=r"server: lets client-\d sync round 0 with momentum 1e\+06"):
        running.simulate(words)


def test_links_lead_where_the_approved_graph_has_some() -> None:
    from fedactors.protocols.mtcd.actors import ServedParty

    approved = tokens.Links((0, 1), "", -1)
    party: Any = SimpleNamespace(
        name="client-0", caller="server", _client=0, _names=("client-0", "client-1", "client-2"), links=approved,
        _approved_links=approved,
    )  # fmt: skip
    for links in (tokens.Links((0, 2), "", -1), tokens.Links((1,), "", -1), tokens.Links((0,), "", 0)):
        with pytest.raises(Refused, match=r"server: lets client-0 pass tokens to clients .*; approved: of 0, 1"):
            asyncio.run(ServedParty.relink(party, links))
    asyncio.run(ServedParty.relink(party, tokens.Links((0,), "client-1", -1)))
    assert party.links.uplink == "client-1"


def test_a_row_that_a_mapper_repeats_counts_once() -> None:
    """A thousand joined rows that are all one row of a table were enough for min_aligned_rows."""
    actor: Any = SimpleNamespace(name="shop", party="shop", caller="mapper")
    rows = np.arange(1000)
    with pytest.raises(Refused, match=r"aligns 1 rows of shop; approved: at least 10 \(min_aligned_rows\)"):
        check_number(actor, rows, 10, 1000, 0, 1, num_train=lambda: 1000)
    assert check_number(actor, rows, 10, 1000, 0, 10, num_train=lambda: 1000) is rows


class Alone(HostedContext):
    """That of an actor that calls nobody."""

    call = put = get = free = None  # type: ignore[assignment]


def test_a_site_answers_while_it_intersects_ids() -> None:
    """Of 40,000 ids it took nine seconds in the site's loop, in which no heartbeat left it."""
    rows = np.arange(4000).astype(str)
    _, request = psi_request(rows)

    async def work() -> tuple[float, float, int]:
        spec = ActorSpec(Client, "shop", (), {}, Resources())
        context = Alone(spec, 0, False, WallClock(time.time()), keep_rows=False)
        context._thread = ThreadPoolExecutor(1)
        actor = Client()
        actor._context = context
        began = last = time.monotonic()
        answering = asyncio.ensure_future(answer_beside(actor, rows, AlignmentQuestion("psi", request), "psi"))
        longest, count = 0.0, 0
        while not answering.done():
            await asyncio.sleep(0.01)
            longest, last, count = max(longest, time.monotonic() - last), time.monotonic(), count + 1
        assert len((await answering).parts) == 2
        context.close()
        return time.monotonic() - began, longest, count

    seconds, longest, count = asyncio.run(work())
    assert count >= 10, (seconds, longest)
    assert longest < seconds / 2


def test_parts_of_the_split_are_of_the_rows_that_are_aligned() -> None:
    rows = np.arange(5).astype(str)
    order = ids.AlignmentOrder(b"", np.zeros((0, 32), np.uint8), np.zeros(9, np.uint8))
    with pytest.raises(BadInput, match="9 rows are told their part of the split, 5 are aligned"):
        ids.follow(rows, order, "already-aligned")
