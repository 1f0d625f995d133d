"""Runs of the plain horizontal methods: sampling, dropouts, losses, resume, own data, predictions, refusals."""

import numpy as np
import pytest
import torch

from fedactors.api import load_part
from fedactors.cli.main import main
from fedactors.config import build
from fedactors.data.new_rows import NoPart
from fedactors.errors import BadInput, Diverged, PartyFailed, PartyLost
from fedactors.protocols.horizontal import serving
from fedactors.protocols.horizontal.config import HorizontalConfig
from fedactors.protocols.horizontal.data import load_data, sites_of
from fedactors.protocols.horizontal.plugin import PROTOCOL
from fedactors.serving.parts import write_part
from fedactors.testing.conformance import check_protocol
from tests.protocols.horizontal.federation import (
    METHODS,
    changed,
    cut,
    play,
    rounds,
    state_of,
    user_files,
    vector_of,
)
from tests.serving.predicting import predicted


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_the_conformance_kit_has_no_remark(algorithm):
    check_protocol(PROTOCOL, config={"algorithm": algorithm, "num_training": 200}, on_ray=False)


@pytest.mark.slow
def test_it_learns():
    result, _, _ = play(build(HorizontalConfig, {"num_rounds": 15, "clients_per_site": 5}))
    assert result.metrics["test/accuracy"] > 0.8
    assert result.extra["clients"] == 10


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", METHODS)
def test_a_resumed_run_is_the_uninterrupted_one(algorithm):
    config = changed(algorithm=algorithm, clients_per_round=4, clients_per_site=2, schedule="cosine")
    whole, recorder, _ = play(config)
    before, snapshot = cut(config, after=2)
    after, going_on, _ = play(config, resume=snapshot)
    assert rounds(before) + rounds(going_on) == rounds(recorder)
    assert np.array_equal(vector_of(going_on), vector_of(recorder))
    assert after.metrics == whole.metrics


@pytest.mark.slow
def test_a_pool_changes_nothing():
    config = changed(clients_per_site=3, num_rounds=2)
    assert rounds(play(config)[1]) == rounds(play(config, pool=2)[1])


@pytest.mark.slow
def test_sites_do_not_change_the_mathematics():
    alone, shared = (play(changed(algorithm="fedadam", clients_per_site=size))[1] for size in (1, 4))
    np.testing.assert_allclose(vector_of(alone), vector_of(shared), rtol=0, atol=1e-12)


def test_a_round_asks_so_many_clients():
    _, recorder, runtime = play(changed(clients_per_round=2))
    assert [entry["clients"] for entry in recorder.rounds] == [2] * 4
    orders = [t for t in runtime.ledger.totals() if t.type == "TrainOrder"]
    assert sum(t.messages for t in orders) == 8


def test_what_travels_is_a_model_each_way():
    _, _, runtime = play(changed(num_rounds=1, clients_per_site=6))
    sent = {t.type: t.bytes for t in runtime.ledger.totals() if t.kind != "driver"}
    assert sent["TrainOrder"] == 650 * 8 + 6 * 8  # parameters, and who is wanted
    assert sent["Change"] == 650 * 8
    _, _, runtime = play(changed(num_rounds=1, clients_per_site=6, algorithm="scaffold"))
    sent = {t.type: t.bytes for t in runtime.ledger.totals() if t.kind != "driver"}
    assert sent["Change"] == 2 * 650 * 8


def test_clients_drop_out_and_the_round_goes_on_without_them():
    _, recorder, _ = play(changed(dropout_rate=0.5, num_rounds=10, clients_per_site=2))
    counts = [entry["clients"] for entry in recorder.rounds]
    assert 0 < np.mean(counts) < 6
    assert len(set(counts)) > 1


def test_a_round_without_any_answer_leaves_the_model_as_it_is():
    _, recorder, _ = play(changed(dropout_rate=0.999999, num_rounds=2))
    assert [entry["clients"] for entry in recorder.rounds] == [0, 0]
    assert len({entry["test/accuracy"] for entry in recorder.rounds}) == 1


@pytest.mark.slow
def test_a_lost_site_is_left_out_or_stops_the_run():
    faults = {"client-3": 0.02}
    _, recorder, _ = play(changed(num_rounds=12), faults=faults)
    assert [recorder.rounds[0]["clients"], recorder.rounds[-1]["clients"]] == [6, 5]
    with pytest.raises(PartyLost, match="client-3"):
        play(changed(num_rounds=12, on_party_loss="stop"), faults=faults)


def test_scaffold_keeps_a_control_of_each_client_that_trained():
    _, recorder, _ = play(changed(algorithm="scaffold", num_rounds=1, clients_per_round=2))
    held = [len(state_of(recorder, f"client-{number}")["controls"]) for number in range(6)]
    assert sorted(held) == [0, 0, 0, 0, 1, 1]


# --- own data ---


@pytest.mark.slow
@pytest.mark.parametrize(("task", "metric"), [("binary", "test/auc"), ("regression", "test/rmse")])
def test_user_files_are_opened_by_their_own_sites(tmp_path, task, metric):
    path = user_files(tmp_path, task=task)
    config = HorizontalConfig(num_rounds=30, learning_rate=0.1)
    data = load_data(config, path, 0)
    assert sites_of(config, data) == {"north": range(0, 1), "south": range(1, 2), "west": range(2, 3)}
    result, recorder, _ = play(config, name=path)
    assert result.metrics[metric] > 0.95 if task == "binary" else result.metrics[metric] < 0.2
    states = recorder.checkpoints["final"].actors
    for name in data.parties:  # new rows need no labels
        rows = [line.rpartition(",")[0] for line in (tmp_path / f"{name}.csv").read_text().splitlines()]
        rows[1] = f",{rows[1].partition(',')[2]}"
        (tmp_path / f"{name}.csv").write_text("\n".join(rows))
    said, _ = predicted(serving.predict, config, data, states, tmp_path)
    assert sorted(path.name for path in tmp_path.glob("p*.csv")) == ["p-north.csv", "p-south.csv", "p-west.csv"]
    assert said["prediction"][0] is None or said["reason"][0] == "missing values"
    features = data.files[0].load_new().features
    score = features[:, 0] - features[:, 1]
    found, truth = np.asarray(said["prediction"][1:]), score[1:]
    error = np.mean(found != (truth > 0)) if task == "binary" else np.sqrt(np.mean((found - truth) ** 2))
    assert error < 0.2


def test_files_of_different_columns_are_refused_in_one_line(tmp_path):
    path = user_files(tmp_path, wider=("south",))
    with pytest.raises(
        (BadInput, PartyFailed), match="all clients must hold the same columns: north 3, south 4, west 3"
    ):
        play(HorizontalConfig(num_rounds=1), name=path)


# --- after training ---


@pytest.mark.slow
def test_predictions_and_the_export_are_the_servers_model(tmp_path):
    config = changed(num_rounds=2)
    result, recorder, _ = play(config)
    data = load_data(config, "digits", 0)
    states = recorder.checkpoints["final"].actors
    block = data.test().load()
    said, _ = predicted(serving.predict, config, data, states, tmp_path)
    assert np.mean(said["prediction"] == block.labels) == pytest.approx(result.metrics["test/accuracy"])
    write_part(serving.part(config, "server", {"server": states["server"]}), tmp_path / "server")
    part = load_part(tmp_path / "server")
    assert (part.task, part.num_classes, part.preprocessing) == ("multiclass", 10, None)
    with torch.no_grad():
        found = part.bottom(torch.tensor(block.features, dtype=torch.float64))
    assert np.array_equal(found.argmax(1), said["prediction"])
    with pytest.raises(NoPart, match="the model is the server's"):
        serving.part(config, "client-0", states)


def test_rows_of_another_shape_are_refused(tmp_path):
    config = changed(num_rounds=1)
    _, recorder, _ = play(config)
    other = load_data(config, "breast-cancer", 0)
    with pytest.raises(BadInput, match=r"the model was trained on \(1, 8, 8\)"):
        predicted(serving.predict, config, other, recorder.checkpoints["final"].actors, tmp_path)


# --- refusals ---


ROWS_HIDDEN = ("record_clip_norm=1", "record_noise_multiplier=1")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["algorithm=scaffold", "momentum=0.9"], "algorithm: scaffold is not allowed with momentum"),
        (["algorithm=scaffold", "optimizer=adam"], "algorithm: scaffold is not allowed with momentum"),
        (["optimizer=adam", "momentum=0.9"], "momentum"),
        (["patience=3"], "patience: stopping early on test rows is not allowed"),
        (["num_clients=4", "clients_per_round=5"], "clients_per_round: 5 is more than the 4 clients"),
        (["clients_per_round=11"], "clients_per_round: 11 is not allowed: there are 10"),
        (["num_training=9999"], "num_training: 9999 is not allowed: digits has 1437 to deal"),
        (["device=gpu"], "device: 'gpu' is not allowed"),
        (["precision=bf16", "float64=true"], "precision: bf16 is not allowed with float64"),
        (["precision=bf16", *ROWS_HIDDEN], "precision: not allowed with record_clip_norm"),
        (["micro_batch_size=4", *ROWS_HIDDEN], "micro_batch_size: not allowed with record_clip_norm"),
        (["model=cnn9"], "model: 'cnn9' is not known"),
    ],
)
def test_bad_input_is_one_line(words, line, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "horizontal", "--runtime", "simulated", "--quiet", "num_rounds=1", *words]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert line in said[0]
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused_in_one_line():
    with pytest.raises((BadInput, PartyFailed), match="this process sees 0 GPUs"):
        play(changed(device="cuda:1", num_rounds=1))


def test_a_loss_that_is_no_number_ends_the_run_with_the_sites_name():
    with pytest.raises(Diverged, match=r"learning_rate: 1e\+15 diverges \(\S+'s loss (nan|inf) in round \d\)"):
        play(changed(model="mlp", learning_rate=1e15, float64=False, num_rounds=9))


def test_early_stopping_waits_for_a_better_measurement():
    config = changed(num_validation=100, patience=2, num_rounds=60, learning_rate=0.2)
    result, _, _ = play(config)
    assert result.rounds < 60
    assert result.rounds - result.metrics["best_round"] == 2
