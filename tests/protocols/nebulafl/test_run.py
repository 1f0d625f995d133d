"""Whole runs in the simulated runtime: repeatable, resumable in mid-rotation, and every dollar on the log."""

import dataclasses
import itertools
import json
import math
import sys
import types

import numpy as np
import pytest

from fedactors.actors.context import derived_seed
from fedactors.config import build
from fedactors.data.layouts.horizontal import rows_key
from fedactors.errors import BadInput
from fedactors.learning.local_training import train_locally, weighted_mean
from fedactors.messages.ledger import INTER_DATA_CENTER
from fedactors.protocols.nebulafl import training as nebula_training
from fedactors.protocols.nebulafl.config import NebulaFLConfig
from fedactors.protocols.nebulafl.data import load_data, read_catalogue
from fedactors.protocols.nebulafl.run import run
from fedactors.protocols.nebulafl.staleness import RotationTimer
from fedactors.protocols.nebulafl.training import evaluate, initial_parameters, run_model, steps_of, train
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.protocols.nebulafl.runs import BASELINES, PRICES, SMALL, changed, cut, play, rounds, spans_of, user_files


@pytest.fixture(scope="module")
def whole():
    return play(SMALL)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_rounds_and_another_does_not(whole):
    again = play(SMALL)
    assert rounds(again[1]) == rounds(whole[1])
    assert rounds(play(SMALL, seed=1)[1]) != rounds(whole[1])


@pytest.mark.slow
def test_workers_of_a_pool_change_nothing(whole):
    for num_workers in (1, 2):
        assert rounds(play(SMALL, pool=num_workers)[1]) == rounds(whole[1])


@pytest.mark.slow
def test_learning_happens(whole):
    accuracy = [
        entry["test/accuracy"] for entry in play(changed(duration=3900.0, local_epochs=5, batch_size=20))[1].rounds
    ]
    assert accuracy[-1] > 0.4 > 0.1


# --- money ---


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["nebulafl", "fedbuff", "fedhisyn"])
def test_cost_is_the_sum_over_the_event_log_and_egress(algorithm):
    result, recorder, runtime = play(changed(algorithm=algorithm))
    rent = 0.0
    for span in spans_of(recorder):
        unit = span["label"].split(" on ")[1].partition("#")[0]
        rent += PRICES[unit] * (span["end"] - span["start"]) / 3600.0
    egress = sum(
        runtime.network.link(t.sender, t.receiver, t.kind).price(t.bytes + 64 * t.messages)
        for t in runtime.ledger.totals()
        if t.kind == INTER_DATA_CENTER
    )
    assert egress > 0
    assert result.metrics["dollars"] == pytest.approx(rent + egress, rel=1e-9)
    assert runtime.usage().price == pytest.approx(rent + egress, rel=1e-9)
    bills = result.extra["centers"]
    assert math.fsum(bill["rent"] for bill in bills.values()) == pytest.approx(rent, rel=1e-9)
    # the exchange of the baselines has a place of its own, without hardware
    assert all(0 < bill["utilisation"] <= 1 for host, bill in bills.items() if host != "exchange")
    assert ("exchange" in bills) == (algorithm != "nebulafl")


def network_with(folder, hub):
    links = [("oregon", "virginia"), ("virginia", "frankfurt"), ("oregon", "frankfurt"), ("frankfurt", "hall")]
    lines = ["illustrative = true", f'hub = "{hub}"' if hub else ""]
    for number, ends in enumerate(links):
        lines += ["[[links]]", f"between = {json.dumps(ends)}", "latency_ms = 40", "bandwidth_mbit = 100"]
        lines += [f"egress_per_gb = 0.0{number + 2}"]
    (folder / "network.toml").write_text("\n".join(lines))
    return str(folder / "network.toml")


@pytest.mark.slow
@pytest.mark.parametrize("hub", ["hall", "virginia", None])
@pytest.mark.parametrize("method", ["nebulafl", "aggregation", *BASELINES])
def test_the_bills_of_all_places_are_the_dollars_of_the_run(method, hub, tmp_path):
    ways = {"ablation": "aggregation"} if method == "aggregation" else {"algorithm": method}
    config = changed(**ways, network=network_with(tmp_path, hub), duration=1300.0)
    result, recorder, runtime = play(config, faults={"frankfurt": 800.0} if hub == "hall" else None)
    bills = result.extra["centers"]
    centers = {"oregon", "virginia", "frankfurt"}
    assert centers <= set(bills) <= centers | {"hall"}
    summed = math.fsum(bill["rent"] + bill["egress"] for bill in bills.values())
    assert summed == pytest.approx(result.metrics["dollars"], rel=1e-12)
    last = recorder.rounds[-1]
    assert math.fsum(bill["egress"] for bill in bills.values()) == pytest.approx(last["egress"], rel=1e-12)
    assert sum(bill["bytes_sent"] for bill in bills.values()) == result.metrics["center_bytes"] > 0
    if method != "nebulafl":
        # whoever gives the models away pays for them; an exchange within a center costs only what leaves the center
        home = {"hall": "hall", "virginia": "virginia", None: "oregon"}[hub]
        assert bills[home]["egress"] > 0
        inside = [r for r in recorder.ledger_rows if r[3] == INTER_DATA_CENTER and r[1] != r[2]]
        outside = [r for r in inside if runtime.network.host(r[1]) != runtime.network.host(r[2])]
        assert (len(outside) < len(inside)) == (hub == "virginia")
        assert sum(r[5] for r in outside if r[0] <= 1300.0) >= result.metrics["center_bytes"]


@pytest.mark.slow
def test_no_unit_and_no_container_is_double_booked(whole):
    groups = {}
    for span in spans_of(whole[1]):
        container, unit = span["label"].split(" on ")
        # of what was given up the auditor has the span; a container's name begins with its center's
        for key in (container, (container.partition("/")[0], unit)):
            groups.setdefault(key, []).append((span["start"], span["end"]))
    for intervals in groups.values():
        intervals.sort()
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(intervals))


# --- times that follow trainings ---


@pytest.fixture
def _short(monkeypatch):
    monkeypatch.setattr("fedactors.protocols.nebulafl.config.ROTATIONS", 3)
    monkeypatch.setattr("fedactors.protocols.nebulafl.config.TRAININGS", 2)


def auto(**values):
    """Return settings without times."""
    return dict.fromkeys(("rotation_interval", "duration", "evaluation_interval"), "auto") | values


def played(folder, **values):
    config, data = user_files(folder, **auto(**values))
    recorder = MemoryRecorder()
    runtime = SimulatedRuntime(seed=0, recorder=recorder)
    return runtime.execute(lambda: run(config, data, runtime)), recorder


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("algorithm", ["nebulafl", "fedavg", "fedhisyn"])
def test_times_that_are_left_out_follow_a_training_that_is_tried(tmp_path, algorithm):
    result, recorder = played(tmp_path, algorithm=algorithm)
    catalogue = read_catalogue("scarce")
    # 30 rows at a center, by the mean of its hardware
    types = [catalogue.types_of(center) for center in catalogue.first_centers(2)]
    seconds = max(np.mean([30 / kind.throughput["linear"] for kind in found]) for found in types)
    (note,) = (one for one in result.extra["notes"] if one.startswith("auto: "))
    assert f"a local training at the slowest center takes {seconds:.3g} s" in note
    assert f"rotation_interval={2 * seconds:.4g} duration={6 * seconds:.4g} " in note
    assert len(recorder.rounds) == 3
    assert result.metrics["hours"] * 3600 == pytest.approx(6 * seconds)
    assert result.metrics["trainings"] > 8


@pytest.mark.usefixtures("_short")
def test_more_epochs_make_a_run_without_times_longer(tmp_path):
    one, five = (played(tmp_path, local_epochs=epochs)[0] for epochs in (1, 5))
    assert five.metrics["hours"] == pytest.approx(5 * one.metrics["hours"])
    assert five.metrics["trainings"] == pytest.approx(one.metrics["trainings"], rel=0.3)


@pytest.mark.usefixtures("_short")
def test_containers_that_are_processes_try_a_training_themselves(tmp_path):
    inside, beside = (played(tmp_path, container_processes=ways)[0] for ways in (False, True))
    assert beside.metrics == inside.metrics


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("algorithm", ["nebulafl", "fedavg", "fedhisyn"])
def test_a_run_without_times_goes_on_with_those_that_it_found(algorithm):
    config = changed(**auto(algorithm=algorithm, model="linear"))
    whole = play(config, name="breast-cancer")
    begun, snapshot = cut(config, 10, name="breast-cancer")
    rest = play(config, resume=snapshot, name="breast-cancer")
    assert len(whole[1].rounds) == 3
    assert rounds(begun) + rounds(rest[1]) == rounds(whole[1])
    assert rest[0].extra["notes"] == whole[0].extra["notes"]


@pytest.mark.usefixtures("_short")
def test_what_is_due_is_not_missed_by_rounding(tmp_path, monkeypatch):
    """A clock that does not begin at 0: (began + due) - began may be less than due."""
    taken, take = [], RotationTimer.take

    def seen(self, now):
        taken.append(now)
        assert len(taken) < 100, "it waits for ever for what is due"
        return take(self, now)

    monkeypatch.setattr(RotationTimer, "take", seen)
    for factor in (0.3, 0.7, 1.1, 1.3, 1.7):
        taken.clear()
        played(tmp_path, work_factor=factor)
        assert len(taken) <= 3 * 2
    windows = [played(tmp_path, algorithm="fedsa", aggregation_window=0.7, work_factor=f)[0] for f in (0.7, 1.1)]
    assert all(found.metrics["trainings"] for found in windows)


@pytest.mark.usefixtures("_short")
def test_who_attests_nothing_is_not_tried(tmp_path, monkeypatch):
    hooks, tried, trial = types.ModuleType("enclave_hooks"), [], nebula_training.Trainings.trial

    def seen(self, number):
        tried.append(self.names[number])
        return trial(self, number)

    vars(hooks)["attest"] = lambda container, nonce: not container.endswith("/0")
    monkeypatch.setitem(sys.modules, "enclave_hooks", hooks)
    monkeypatch.setattr(nebula_training.Trainings, "trial", seen)
    played(tmp_path, attestation="enclave_hooks:attest")
    assert set(tried) == {"oregon/1", "virginia/1"}


# --- transfers ---


@pytest.mark.slow
def test_rotation_needs_half_of_the_transfers_of_aggregation():
    config = changed(duration=1999.0, evaluation_interval=1999.0)  # rotations 0, 1 and the self turn 2
    _, _, rotated = play(config)
    _, _, aggregated = play(changed(config, ablation="aggregation"))
    kinds = ("MasterModel", "SharedModel")
    count = [sum(t.messages for t in r.ledger.totals() if t.type in kinds and t.kind == INTER_DATA_CENTER)
             for r in (rotated, aggregated)]  # fmt: skip
    assert count == [2 * 3, 3 * 2 * 3]


def test_no_row_is_in_any_message(whole):
    config = load_data(SMALL, "digits", 0)
    num_parameters = len(initial_parameters(run_model(SMALL, config), 0))
    totals = [t for t in whole[2].ledger.totals() if t.kind != "driver"]
    assert {t.type for t in totals} == {"MasterModel", "LeaseOpened", "LeaseClosed", "model()"}
    for t in totals:
        # a master's parameters and its center's name; of a lease two names
        assert t.bytes / t.messages - (4 * num_parameters if t.type == "MasterModel" else 0) < 64


@pytest.mark.slow
def test_a_heavier_model_costs_egress_and_more_work_costs_rent():
    config = changed(duration=1300.0)
    plain, heavy, hard = (
        play(changed(config, **more))[0] for more in ({}, {"bytes_factor": 50.0}, {"work_factor": 2.0})
    )
    egress = [sum(bill["egress"] for bill in done.extra["centers"].values()) for done in (plain, heavy)]
    assert egress[1] == pytest.approx(50 * egress[0], rel=1e-6)
    assert heavy.metrics["center_bytes"] == plain.metrics["center_bytes"]  # what was sent is what was sent
    assert hard.metrics["trainings"] < 0.7 * plain.metrics["trainings"]


@pytest.mark.slow
def test_a_run_may_end_with_its_target():
    config = changed(target_accuracy=0.5, evaluation_interval=130.0, batch_size=20, learning_rate=0.1)
    whole, stopped = (play(changed(config, stop_at_target=stop))[0] for stop in (False, True))
    assert stopped.metrics["time_to_target"] == whole.metrics["time_to_target"] < whole.metrics["hours"] * 3600
    assert stopped.metrics["hours"] * 3600 == pytest.approx(stopped.metrics["time_to_target"])
    assert stopped.extra["curve"] == whole.extra["curve"][: len(stopped.extra["curve"])]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["nebulafl", "fedavg"])
def test_a_run_that_ends_before_any_training_says_so(algorithm, caplog):
    result, *_ = play(changed(algorithm=algorithm, duration=1.0, rotation_interval=0.5))
    assert result.metrics["trainings"] == 0
    assert "no training ended within duration=1: the model is the one that it began with" in caplog.text
    caplog.clear()
    play(SMALL)
    assert not caplog.text


# --- resume ---


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["received", "shifted"])
def test_other_rules_for_planets_train_and_resume_exactly(rule):
    config = changed(planet_rule=rule, price_rule="training", duration=1950.0)
    _, recorder, _ = play(config)
    first, snapshot = cut(config, 5)
    assert rounds(first) + rounds(play(config, resume=snapshot)[1]) == rounds(recorder)
    assert rounds(recorder) != rounds(play(changed(config, planet_rule="paper"))[1])


@pytest.mark.slow
@pytest.mark.parametrize(("after", "workers"), [(3, 0), (11, 0), (17, 2)])
def test_a_run_cut_between_rotations_goes_on_exactly(whole, after, workers):
    first, snapshot = cut(SMALL, after, pool=workers)
    assert any(b"training-" in frame for frame in snapshot.actors.values())  # work was in flight
    second = play(SMALL, resume=snapshot, pool=workers)[1]
    assert rounds(first) + rounds(second) == rounds(whole[1])


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", BASELINES)
def test_baselines_repeat_and_resume(algorithm):
    config = changed(algorithm=algorithm, duration=1950.0)
    _, recorder, _ = play(config)
    first, snapshot = cut(config, 5)
    second = play(config, resume=snapshot)[1]
    assert rounds(first) + rounds(second) == rounds(recorder)
    assert recorder.rounds[-1]["trainings"] > 6


# --- bad input ---


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"dirichlet": 0.001, "num_containers": 120, "active_per_center": 2}, "leaves container"),
        ({"num_centers": 3, "catalogue": "nowhere"}, "neither an example"),
        ({"model": "resnet50"}, "no throughput for model 'resnet50'"),
        ({"attestation": "nowhere:hook"}, "attestation"),
    ],
)
def test_bad_input_is_one_line(values, words):
    with pytest.raises(BadInput, match=words) as caught:
        play(changed(**values))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [{"active_per_center": 5}, {"rotation_interval": 0.0}, {"dirichlet": 0.0}, {"outages": "oregon@5"},
     {"resource_policy": "dearest"}, {"stop_at_target": True}, {"bytes_factor": 0.0}, {"work_factor": -1.0}],
)  # fmt: skip
def test_the_config_refuses(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        changed(**values)


@pytest.mark.slow
def test_a_container_that_fails_its_attestation_is_never_called(monkeypatch):
    hooks = types.ModuleType("enclave_hooks")
    asked = []

    def attest(container, nonce):
        asked.append((container, len(nonce)))
        return not container.endswith("/0")

    monkeypatch.setattr(hooks, "attest", attest, raising=False)
    monkeypatch.setitem(sys.modules, "enclave_hooks", hooks)
    _, recorder, _ = play(changed(attestation="enclave_hooks:attest", duration=1300.0))
    assert len(asked) == 12
    assert {length for _, length in asked} == {16}
    called = {span["label"].split(" on ")[0] for span in spans_of(recorder)}
    assert called
    assert not any(container.endswith("/0") for container in called)


def test_no_container_that_passes_is_an_error(monkeypatch):
    hooks = types.ModuleType("enclave_hooks")
    vars(hooks)["attest"] = lambda container, nonce: not container.startswith("virginia/")
    monkeypatch.setitem(sys.modules, "enclave_hooks", hooks)
    with pytest.raises(BadInput, match="lets no container of virginia pass"):
        play(changed(attestation="enclave_hooks:attest"))


@pytest.mark.slow
def test_one_center_synchronous_is_fedavg():
    config = changed(
        algorithm="fedavg", num_centers=1, num_containers=4, active_per_center=4, duration=1e6, num_rounds=2,
        evaluation_interval=1e6, dirichlet=None,
    )  # fmt: skip
    result, _, _ = play(config)
    data = load_data(config, "digits", 0)
    model = run_model(config, data)
    global_P = initial_parameters(model, 0)
    for turn in range(2):
        made = []
        for number in range(4):
            seed = derived_seed(0, f"oregon/{number}", f"training {turn}")
            made.append(train(model, global_P, rows_key(data.client(number)), seed, steps_of(config)))
        global_P = weighted_mean([m[0] for m in made], [m[2] for m in made])
    assert result.metrics["test/accuracy"] == evaluate(model, global_P, rows_key(data.test()))["accuracy"]
    assert np.isfinite(global_P).all()


@pytest.mark.parametrize(
    "words",
    [
        {"optimizer": "adam", "learning_rate": 0.001},
        {"optimizer": "adamw", "learning_rate": 0.001, "weight_decay": 0.1},
        {"weight_decay": 0.01, "max_gradient_norm": 1.0, "schedule": "cosine"},
    ],
    ids=str,
)
@pytest.mark.parametrize("algorithm", ["nebulafl", "fedavg"])
def test_every_step_setting_is_that_of_the_one_local_trainer(words, algorithm, monkeypatch):
    seen = []

    def watched(*args, training, **more):
        seen.append(training.optimizer)
        return train_locally(*args, training=training, **more)

    monkeypatch.setattr(nebula_training, "train_locally", watched)
    config = build(NebulaFLConfig, {**dataclasses.asdict(SMALL), **words, "algorithm": algorithm})
    result, recorder, _ = play(config)
    assert result.metrics["test/accuracy"] > 0.05
    assert {one.name for one in seen} == {words.get("optimizer", "sgd")}
    assert {one.momentum for one in seen} == {0.0 if "optimizer" in words else 0.9}
    assert {one.weight_decay for one in seen} == {words.get("weight_decay", 0.0)}
    assert {one.clip_norm for one in seen} == {words.get("max_gradient_norm")}
    rates = [one.learning_rate for one in seen]
    if words.get("schedule") == "cosine":  # a factor an interval of rotation
        allowed = [0.01 * 0.5 * (1 + np.cos(np.pi * t / 6)) for t in range(6)]
        assert rates == sorted(rates, reverse=True)
        assert {round(rate, 9) for rate in rates} <= {round(rate, 9) for rate in allowed}
        assert len(set(rates)) > 2
    else:
        assert set(rates) == {config.learning_rate}
    before, snapshot = cut(config, after=2)
    _, going_on, _ = play(config, resume=snapshot)
    assert rounds(before) + rounds(going_on) == rounds(recorder)
