"""Whole runs in simulation: equal numbers, repeats, resume, message counts, special cases, serving."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedactors.api import load_part
from fedactors.errors import BadInput, FedactorsError
from fedactors.inspection import describe_predictions
from fedactors.launch import launch, resolve
from fedactors.network.links import Link, Network
from fedactors.options import RunOptions
from fedactors.plugins import check_contract
from fedactors.protocols.glasu import algorithm, serving
from fedactors.protocols.glasu.actors import GraphClient
from fedactors.protocols.glasu.data import load_data, read_blocks
from fedactors.protocols.glasu.messages import Aggregated, IndexSet, Representation, Targets
from fedactors.protocols.glasu.plugin import PROTOCOL
from fedactors.protocols.glasu.run import run
from fedactors.runs.folder import ROUND_METRICS
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from fedactors.serving.parts import write_part
from tests.protocols.glasu.federation import DATA, Eavesdropper, Memory, altered, settings, simulate
from tests.serving.predicting import predicted

VARIANTS = [
    {},
    {"mode": "joint", "num_local_updates": "2"},
    {"aggregation": "concatenation", "backbone": "gat", "mode": "joint"},
    {"batch_size": "12", "num_neighbours": "2", "num_local_updates": "3", "mode": "joint"},
    {"batch_size": "12", "special_case": "ni", "backbone": "gcn", "aggregation": "concatenation"},
    {"secure_aggregation": "true", "average_classifiers": "true"},
    {"special_case": "centralised", "batch_size": "10"},
    {"special_case": "standalone"},
    {"special_case": "simulated-centralised"},
    {"special_case": "zhou"},
    {"special_case": "vfl"},
]


@pytest.mark.slow
@pytest.mark.parametrize("words", VARIANTS, ids=lambda words: " ".join(words.values()) or "default")
def test_a_resumed_run_goes_on_exactly(words):
    config = settings(**words)
    whole, memory = simulate(config)
    assert whole.rounds == 4
    for taken in (1, 2):
        resumed, rest = simulate(config, resume=memory.snapshots[taken])
        assert rest.rounds == memory.rounds[taken:]
        assert resumed.metrics == whole.metrics
        for one, two in zip(resumed.extra["curve"], whole.extra["curve"], strict=True):
            assert one == pytest.approx(two, rel=1e-9)


def test_clients_that_call_classes_by_other_names_are_refused(monkeypatch):
    """As many classes at each are not the same ones: {0, 1, 2} and {0, 1, 3} would be learned as one."""
    honest = GraphClient.introduce

    async def other(self):
        found = await honest(self)
        return dataclasses.replace(found, class_names=("0", "1", "3" if self.name == "client-1" else "2"))

    monkeypatch.setattr(GraphClient, "introduce", other)
    with pytest.raises(BadInput, match=r"classes of client-1: others than at client-0 .* and 2 is at one"):
        simulate(settings())


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(tmp_path):
    words = ["hidden_size=8", "num_rounds=3", "evaluate_every=1", "batch_size=20", "num_neighbours=2"]

    def go(seed: int) -> bytes:
        flags = RunOptions(out=str(tmp_path), quiet=True, runtime="simulated", data=DATA, seed=seed)
        config, options = resolve(PROTOCOL, words, flags)
        return (Path(launch(PROTOCOL, config, options)[0].run) / ROUND_METRICS).read_bytes()

    assert go(1) == go(1)
    assert go(1) != go(2)


@pytest.mark.slow
def test_computes_in_other_processes_give_the_same_numbers():
    config = settings(mode="joint", batch_size="20", num_rounds="2")
    assert simulate(config)[1].rounds == simulate(config, pool=1)[1].rounds


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        {},
        {"mode": "joint", "aggregation": "concatenation"},
        {"batch_size": "20", "dropout": "0.3"},
        {"secure_aggregation": "true"},
    ],
    ids=lambda words: " ".join(words.values()) or "default",
)
def test_one_local_update_makes_no_forward_pass_of_its_own_and_gives_the_same_numbers(words, monkeypatch):
    config, passes = settings(num_rounds="2", reproducible_noise="true", **words), []
    local_forward = algorithm.local_forward

    def counted(*arguments):
        passes.append(arguments)
        return local_forward(*arguments)

    monkeypatch.setattr(algorithm, "local_forward", counted)
    _, saved = simulate(config)
    assert passes == []
    monkeypatch.setattr(algorithm, "is_traced", lambda part: False)
    _, memory = simulate(config)
    assert len(passes) == 2 * config.num_clients
    assert saved.rounds == memory.rounds


@pytest.mark.slow
def test_noise_on_representations_leaves_the_update_its_own_forward_pass(monkeypatch):
    # of a concatenation the noised part of one's own is another than the one in the local forward pass
    noise = {"noise_multiplier": "2", "clip_norm": "1", "max_degree": "60"}
    config = settings(num_rounds="2", aggregation="concatenation", reproducible_noise="true", **noise)
    _, memory = simulate(config)
    monkeypatch.setattr(algorithm, "is_traced", lambda part: False)
    assert simulate(config)[1].rounds == memory.rounds


@pytest.mark.slow
@pytest.mark.parametrize("layers", ["3", "1,3", "0,1,2,3"])
@pytest.mark.parametrize("mode", ["paper", "joint"])
def test_a_round_costs_two_tensors_per_client_and_aggregation(layers, mode):
    config = settings(aggregation_layers=layers, mode=mode, num_rounds="3", evaluate_every="3")
    _, memory = simulate(config)
    exchanges, rounds, evaluations = 3 * len(config.resolved_layers), 3, 1
    assert memory.count("Representation") == exchanges * (rounds + evaluations)
    aggregated = exchanges * (rounds + evaluations)
    backward = exchanges * rounds if mode == "joint" else 0
    assert memory.count("Aggregated") == aggregated
    assert memory.count("GradientPart", "GradientShare") == 2 * backward
    tensors = [row[5] for row in memory.rows if row[4] in ("Representation", "Aggregated")]
    assert set(tensors) == {120 * 8 * 4}


@pytest.mark.slow
def test_messages_fall_by_q_l_over_k_at_equal_numbers_of_updates():
    def tensors(**words):
        config = settings(evaluate_every="100", **words)
        _, memory = simulate(config)
        once = 2 * 3 * len(config.resolved_layers)
        return memory.count("Representation", "Aggregated") - once

    everything = tensors(special_case="simulated-centralised", num_rounds="8")
    lazy = tensors(aggregation_layers="1,3", num_local_updates="4", num_rounds="2")
    assert everything / lazy == 4 * 4 / 2


def test_only_sampled_sets_need_unions_and_a_last_layer_needs_none(monkeypatch):
    ear = Eavesdropper(monkeypatch)
    words = {"batch_size": "12", "num_neighbours": "2", "num_rounds": "2", "evaluate_every": "2"}
    _, memory = simulate(settings(**words, aggregation_layers="1,3"))
    assert memory.count("IndexSet") == 3 * 2
    sets, targets = ear.of(IndexSet), [one for one in ear.of(Targets) if one.segment == 0 and not one.stamp.scoring]
    assert all(np.isin(one.nodes, targets[0].nodes).all() for one in sets[:3])
    _, memory = simulate(settings(**words, aggregation_layers="3"))
    assert memory.count("IndexSet") == 0


@pytest.mark.slow
def test_no_message_holds_a_feature_a_label_or_a_true_node_number(monkeypatch):
    for words in ({"mode": "joint"}, {"batch_size": "30", "num_neighbours": "2"}, {"average_classifiers": "true"}):
        ear, config = Eavesdropper(monkeypatch), settings(**words, num_rounds="1", evaluate_every="1")
        source = load_data(config, DATA, 0)
        blocks = [source.part(party).load() for party in source.parties]
        # the nodes are shuffled and blocks scaled by one number: compare sorted columns of unit length
        columns = np.stack(
            [np.sort(c / np.linalg.norm(c)) for block in blocks for c in block.features.T.astype(np.float64)]
        )
        simulate(config)
        tall = [array for array in ear.arrays() if array.ndim == 2 and len(array) == 120]
        assert tall or "batch_size" in words
        for array in tall:
            lengths = np.linalg.norm(array, axis=0)
            sent = np.sort(array[:, lengths > 0].astype(np.float64) / lengths[lengths > 0], axis=0).T
            assert np.abs(sent[:, None] - columns).max(axis=2).min(initial=1.0) > 1e-4
        labels = blocks[0].labels
        for array in ear.arrays():
            assert array.shape != labels.shape or not np.array_equal(np.sort(array), np.sort(labels))
        train = next(one.train for one in ear.messages() if hasattr(one, "train"))
        assert not np.array_equal(train, blocks[0].train)
    kinds = {type(value) for value in ear.messages()}
    assert {Representation, Aggregated} <= kinds


def test_one_client_with_every_aggregation_is_the_centralised_run():
    together = settings(num_clients="1", aggregation_layers="0,1,2,3", num_local_updates="2")
    alone = settings(num_clients="1", special_case="centralised", num_local_updates="2")
    one, two = simulate(together)[1].rounds, simulate(alone)[1].rounds
    names = ("training/loss", "training/last_loss", "validation/accuracy", "test/accuracy")
    assert [[row.get(name) for name in names] for row in one] == [[row.get(name) for name in names] for row in two]


def test_baselines_without_communication_send_nothing():
    for case in ("centralised", "standalone"):
        _, memory = simulate(settings(special_case=case))
        assert memory.rows == [] or {row[3] for row in memory.rows} == {"driver"}


@pytest.mark.slow
def test_every_runs_metrics_are_complete_and_selection_uses_validation():
    result, memory = simulate(settings(num_rounds="6", evaluate_every="1"))
    best = max(memory.rounds, key=lambda row: (row["validation/accuracy"], -row["round"]))
    assert result.metrics["best_round"] == best["round"]
    assert result.metrics["test/accuracy"] == best["test/accuracy"]
    assert {"test/mean_client_accuracy", "test/least_client_accuracy"} <= result.metrics.keys()
    training, everything = result.extra["training"], sum(row[3] != "driver" for row in memory.rows)
    assert 0 < training["messages"] < everything


def test_patience_ends_a_run_early():
    result, _ = simulate(settings(num_rounds="50", evaluate_every="1", patience="2", learning_rate="1e-9"))
    assert result.rounds == 3


@pytest.mark.slow
def test_a_distant_server_makes_lazy_aggregation_pay():
    network = Network(by_kind={"client-server": Link(latency=0.0375, bandwidth=1.25e7)})

    def seconds(layers: str) -> float:
        config = settings(aggregation_layers=layers, num_rounds="3", evaluate_every="3")
        return simulate(config, network=network)[0].extra["training"]["seconds"]

    four, two, one = seconds("0,1,2,3"), seconds("1,3"), seconds("3")
    assert four > two > one
    assert one < 0.65 * four


def test_a_client_without_edges_is_said(caplog):
    block = altered().load(0)
    lonely = altered(indptr=np.zeros_like(block.indptr), indices=block.indices[:0])
    result, _ = simulate(settings(num_rounds="1"), data=lonely)
    told = "client-0 has no edges: its layers see each node alone"
    assert result.extra["remarks"] == [told]
    assert told in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("words", [{}, {"aggregation": "concatenation"}, {"special_case": "centralised"}])
def test_predictions_are_those_of_the_best_round(words, tmp_path):
    config = settings(num_rounds="6", evaluate_every="3", **words)
    result, memory = simulate(config)
    source = load_data(config, DATA, 0)
    states = memory.snapshots[-1].actors
    said, _ = predicted(serving.predict, config, source, states, tmp_path)
    classes, block = np.asarray(said["prediction"]), read_blocks([source.part("client-0")])["client-0"]
    assert np.mean(classes[block.test] == block.labels[block.test]) == pytest.approx(result.metrics["test/accuracy"])
    write_part(serving.part(config, "client-0", states), tmp_path / "client-0")
    part = load_part(tmp_path / "client-0")
    assert part.arrays["classifier.bias"].shape == (3,)
    assert part.settings["feature_factor"] > 0


HIDDEN = {
    "sums": {"secure_aggregation": "true"},
    "noise": {"noise_multiplier": "0.01", "clip_norm": "1.0", "max_degree": "64"},
    "noised sums": {
        "secure_aggregation": "true", "noise_multiplier": "0.01", "clip_norm": "1.0", "max_degree": "64"
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("how", HIDDEN)
def test_predictions_hide_what_training_hid(how, tmp_path):
    config = settings(num_clients="3", num_rounds="2", evaluate_every="2", **HIDDEN[how])
    _, memory = simulate(config)
    states, source = memory.snapshots[-1].actors, load_data(config, DATA, 0)
    said, runtime = predicted(serving.predict, config, source, states, tmp_path)
    sent = {total.type for total in runtime.ledger.totals() if total.sender.startswith("client-")}
    assert ("Masked" in sent) == ("sums" in how)
    assert bool({"Representation", "Logits"} & sent) == (how == "noise")
    listed = {entry["message"] for entry in describe_predictions(PROTOCOL, config)}
    assert sent <= listed
    assert ("Representation" in listed) == (how == "noise")
    noised = [record for record in runtime.privacy_records if record.message_type == "Representation"]
    each = len(config.resolved_layers)  # an aggregation, a release
    assert sorted(record.party for record in noised) == sorted(["client-0", "client-1", "client-2"] * each)
    assert all(np.isfinite(record.epsilon) for record in noised) == ("noise" in how)
    # what an open run with the same parameters says
    bare = dataclasses.replace(config, secure_aggregation=False, noise_multiplier=0.0, clip_norm=config.clip_norm)
    other, _ = predicted(serving.predict, bare, source, states, tmp_path)
    assert said["id"] == other["id"]
    same = np.mean(np.asarray(said["prediction"]) == np.asarray(other["prediction"]))
    assert same == 1.0 if how == "sums" else same > 0.8


class Omitting(serving.PredictingServer):
    """Adds up without one client: the difference to an honest sum is its part."""

    def __init__(self, config, names, present, writer):
        super().__init__(config, names, [name for name in present if name != "client-2"], writer)


@pytest.mark.slow
def test_sums_without_a_client_that_they_had_in_training_are_refused(tmp_path, monkeypatch):
    config = settings(num_clients="4", num_rounds="2", evaluate_every="2", secure_aggregation="true")
    _, memory = simulate(config)
    whole, data = memory.snapshots[-1].actors, load_data(config, DATA, 0)
    states = {name: frame for name, frame in whole.items() if name != "client-2"}
    with pytest.raises(BadInput, match="not allowed without client-2: the difference"):
        predicted(serving.predict, config, data, states, tmp_path)
    monkeypatch.setattr(serving, "PredictingServer", Omitting)
    with pytest.raises(FedactorsError, match="without client-2 a sum would show"):
        predicted(serving.predict, config, data, whole, tmp_path)


@pytest.mark.slow
def test_the_plugin_keeps_the_contract_and_its_server_needs_no_torch():
    check_contract(PROTOCOL, "glasu")
    code = "import sys; from fedactors.protocols.glasu import aggregation, plugin; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_memory_is_what_a_runtime_expects():
    memory, config = Memory(), settings(num_rounds="1")
    runtime = SimulatedRuntime(seed=0, recorder=memory)
    runtime.execute(lambda: run(config, load_data(config, DATA, 0), runtime))
    assert [row["round"] for row in memory.rounds] == [1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        {"backbone": "gcn"},
        {"backbone": "gat", "aggregation": "concatenation"},
        {"backbone": "gcnii", "clip_norm": "0.5"},
        {"backbone": "gcnii", "aggregation": "concatenation", "mode": "joint"},
        {"special_case": "standalone"},
    ],
)
def test_an_evaluation_in_chunks_is_the_one_of_the_whole_graph(words):
    batches = {"batch_size": "20", "num_neighbours": "2", "float64": "true", **words}
    whole, once = simulate(settings(**batches))
    parts, chunked = simulate(settings(**batches, evaluation_nodes="50"))
    for one, other in zip(once.rounds, chunked.rounds, strict=True):
        assert one == pytest.approx(other, rel=1e-12)
    assert whole.metrics == pytest.approx(parts.metrics, rel=1e-12)
    assert "test/loss" in parts.metrics
