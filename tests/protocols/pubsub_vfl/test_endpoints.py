"""Who may ask what of whom, what an actor is built with, and that nothing undeclared is sent."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedactors.actors.remote import DRIVER, endpoints
from fedactors.errors import BadInput, Refused
from fedactors.inspection import describe_messages
from fedactors.messages.codec import encode
from fedactors.plugins import find_protocol
from fedactors.protocols.pubsub_vfl import messages
from fedactors.protocols.pubsub_vfl.run import actors, assemble
from fedactors.runtime.interface import Runtime
from fedactors.runtime.ray.runtime import RayRuntime
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.protocols.pubsub_vfl.hostile import Attempt, Outsider, StrangeServer
from tests.protocols.pubsub_vfl.runs import arrays, config_of, simulate

SEVERAL = {"num_active_workers": 2, "num_passive_workers": 2}
ATTEMPTS = [
    ("passive-1/worker-0", "backward", "no endpoint"),
    ("passive-1/worker-0", "load", "no endpoint"),
    ("passive-1/worker-0", "run_epoch", "open to: driver"),
    ("passive-1/worker-0", "recall", "open to: driver"),
    ("passive-1/worker-0", "take_rows", "open to: own party"),
    ("passive-1/worker-0", "account", "open to: driver"),
    ("passive-1/worker-0", "take_first", "open to: server"),
    ("passive-1/ps", "average", "open to: own party"),
    ("active/worker-0", "evaluate", "open to: driver"),
    ("broker", "lose", "open to: driver"),
    ("broker", "report", "which is open to its parties only: active, "),
]
MISUSED = [
    (
        "passive-1/worker-0",
        "embed_part",
        "calls passive-1/worker-0.embed_part, which is open to its label party only: active",
    ),
    (
        "passive-1/worker-0",
        "take_order",
        "calls passive-1/worker-0.take_order, which is open to its label party only: active",
    ),
    ("broker", "report", "calls broker.report, which is open to its parties only: active, passive-1"),
]
RUNS = {
    "one": {},
    "several": {**SEVERAL, "batch_size": 32},
    "batch": {**SEVERAL, "batch_size": 32, "sync_unit": "batch"},
    "vfl": {"algorithm": "vfl"},
    "vfl-ps": {"algorithm": "vfl-ps", **SEVERAL},
    "avfl": {"algorithm": "avfl"},
    "avfl-ps": {"algorithm": "avfl-ps", **SEVERAL},
    "push": {**SEVERAL, "batch_size": 32, "transfer": "push", "quantization_bits": 8, "optimizer_at": "server"},
    "avfl-ps, averages": {"algorithm": "avfl-ps", **SEVERAL, "push_every": 0},
}


def refusals(
    runtime: Runtime, attempts: list[tuple[str, str, str]], cls: type[Outsider | StrangeServer] = Outsider
) -> list[str]:
    """Let a stranger try; return what it was told."""
    said: list[str] = []

    async def main() -> None:
        assemble(config_of(**SEVERAL), arrays("multiclass"), runtime)
        outsider = runtime.spawn(cls, "stranger")
        await runtime.start()
        for target, method, _ in attempts:
            with pytest.raises(Refused) as refused:
                await outsider.attempt(Attempt(target, method))
            said.append(str(refused.value))

    runtime.execute(main)
    return said


def test_a_stranger_is_refused():
    for said, (target, method, text) in zip(refusals(SimulatedRuntime(), ATTEMPTS), ATTEMPTS, strict=True):
        assert said.startswith(f"stranger: calls {target}.{method}"), said
        assert text in said


def test_endpoints_of_clients_are_not_for_each_of_them():
    for said, (_, _, text) in zip(refusals(SimulatedRuntime(), MISUSED), MISUSED, strict=True):
        assert said.startswith(f"stranger: {text}"), said


def test_only_the_broker_says_what_an_epoch_begins_with():
    (said,) = refusals(SimulatedRuntime(), [("passive-1/worker-0", "take_first", "")], StrangeServer)
    assert said.startswith("stranger: calls passive-1/worker-0.take_first, which is open to its broker only: broker")


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_stranger_is_refused_on_ray():
    chosen = [ATTEMPTS[0], ATTEMPTS[4], ATTEMPTS[6]]
    for said, (target, method, text) in zip(refusals(RayRuntime(num_cpus=2), chosen), chosen, strict=True):
        assert f"{target}.{method}" in said
        assert text in said


def test_hashed_ids_are_not_given_where_none_were_agreed_upon():
    from fedactors.data.alignment.ids import AlignmentQuestion
    from fedactors.protocols.pubsub_vfl.actors import PassiveWorker
    from fedactors.protocols.pubsub_vfl.data import PartyRows

    config, part = config_of(), arrays("multiclass").part("passive-1")
    worker = PassiveWorker(config, part, 0, ("passive-1/worker-0",))
    worker.rows = PartyRows(config, part, 0)

    async def compute(function, args, work):  # at once
        return function(*args)

    worker._context = SimpleNamespace(name="passive-1/worker-0", compute=compute)  # type: ignore[assignment]
    answer = worker.answer_alignment(AlignmentQuestion("hash", b"key"))
    with pytest.raises(BadInput, match="'hash' is asked for, 'already-aligned' was agreed upon"):
        answer.send(None)


def test_actors_are_built_with_nothing_of_other_parties():
    runtime, data = SimulatedRuntime(), arrays("multiclass", 3)
    assemble(config_of(**SEVERAL), data, runtime)
    held = {party: data.load(party).features.tobytes() for party in data.parties}
    for name, actor_spec in runtime._actor_specs.items():
        frame = encode((actor_spec.args, dict(actor_spec.kwargs)), arguments=True)
        parties = {party for party, content in held.items() if content in frame}
        assert parties == ({name.partition("/")[0]} if "/worker-" in name else set())


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_what_is_sent_is_what_is_declared(name):
    config = config_of(**RUNS[name])
    found = {row[4] for row in simulate(**RUNS[name]).recorder.ledger_rows if not row[4].endswith("()")}
    declared = {cls.__name__ for cls in messages.sent(config)}
    assert found <= declared
    # pairs carry gradients in their requests
    unseen = {"Gradient"} if config.is_paired else {"LostWorker"}
    # where payloads are sent, reports and orders carry them
    unseen |= {"Embedding", "Gradient"} if config.transfer == "push" else set()
    assert declared - found <= unseen, "declared, and never sent"
    inspected = {entry["message"] for entry in describe_messages(find_protocol("pubsub-vfl"), config)}
    assert declared == inspected


@pytest.mark.parametrize("name", RUNS)
def test_what_only_the_driver_learns_is_marked_as_control(name):
    entries = describe_messages(find_protocol("pubsub-vfl"), config_of(**RUNS[name]))
    control = {entry["message"] for entry in entries if entry["control"]}
    assert {"Aligned", "Evaluated", "EpochLoss"} <= control
    assert not control & {"Embedding", "Gradient", "Parameters", "PairRequest", "Report"}


def test_the_driver_may_ask_for_no_rows_parameters_or_payloads():
    for cls in actors(config_of()).values():
        for endpoint in endpoints(cls).table.values():
            if DRIVER in endpoint.callers:
                names = {given.__name__ for given in endpoint.gives}
                assert names <= {"NoneType", "Aligned", "Evaluated", "EpochLoss", "EpochCounts"}
