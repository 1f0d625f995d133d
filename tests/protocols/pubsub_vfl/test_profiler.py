import json

import numpy as np
import pytest

from fedactors.cli.main import main
from fedactors.learning.split_learning import Publication
from fedactors.network.links import Link, Network
from fedactors.protocols.pubsub_vfl import planner
from fedactors.protocols.pubsub_vfl.data import load_data
from fedactors.protocols.pubsub_vfl.messages import Machine, Spent
from fedactors.protocols.pubsub_vfl.planner import quickest_epoch
from fedactors.protocols.pubsub_vfl.profiler import fit_affine, measure, profile_machine
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.ray.runtime import RayRuntime
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.protocols.pubsub_vfl.runs import config_of

SIZES = np.array([2, 8, 32, 128, 512])


def test_fits_recover_what_made_the_measurements():
    (fixed, per_row), error = fit_affine(SIZES, 1e-4 + 2e-6 * SIZES)
    assert (fixed.scale, fixed.exponent) == pytest.approx((1e-4, 0.0))
    assert (per_row.scale, per_row.exponent) == pytest.approx((2e-6, 1.0))
    assert error < 1e-9


def test_a_profile_holds_constants_only():
    config = config_of()
    data = load_data(config, "breast-cancer", 0)
    active, passive = (
        profile_machine(config, data.part(p), data.load(p).features.shape[1], num_cores=4, repetitions=1)
        for p in ("active", "passive")
    )
    assert (active.role, passive.role) == ("active", "passive")
    assert (len(active.phases), len(passive.phases)) == (6, 4)
    assert all(phase.scale >= 0 for phase in (*active.phases, *passive.phases))
    assert active.cores == 4


def measured(runtime, **changes):
    config = config_of(num_layers=2, hidden_size=8, embedding_size=4, **changes)
    data = load_data(config, "synthetic:400x12", 0)
    return runtime.execute(lambda: measure(config, data, runtime)), config, data


@pytest.mark.slow
def test_measured_parties_are_planned_with_the_links_between_them():
    network = Network(
        default=Link(latency=0.02, bandwidth=1e6),
        links={("active", "passive-2"): Link(latency=0.05, bandwidth=4e5), ("passive-2", "active"): Link(latency=0.05)},
    )
    profiles, config, data = measured(SimulatedRuntime(network=network), num_parties=3)
    assert [profile["role"] for profile in profiles] == ["active", "passive", "passive"]
    train = round(len(data.load("active").ids) * (1 - config.test_fraction) * (1 - config.validation_fraction))
    assert {profile["num_rows"] for profile in profiles} == {train}
    assert profiles[0]["latency"] == pytest.approx(0.05, rel=0.01)
    assert profiles[0]["bandwidth"] == pytest.approx(4e5, rel=0.01)
    assert "latency" not in profiles[1]
    found = quickest_epoch(config, profiles)
    assert (found["latency"], found["bandwidth"]) == (profiles[0]["latency"], profiles[0]["bandwidth"])
    assert found["num_rows"] == profiles[0]["num_rows"]
    long = [{**one, "num_rows": 100_000} for one in profiles]
    near = [{**one, "latency": 0.0} for one in long]
    made = planner.Plan(1, 1, 64, 0.0)
    windows = [planner.window(planner.problem_of(config, each), made) for each in (long, near)]
    assert windows[0] > windows[1]


@pytest.mark.slow
def test_what_parties_tell_of_their_machines_holds_no_row():
    recorder = MemoryRecorder()
    runtime = SimulatedRuntime(recorder=recorder)
    measured(runtime)
    sent = {total.type for total in runtime.ledger.totals() if not total.type.endswith("()")}  # calls without words
    trial = {"TrialOrder", "BatchCount", "EpochCounts", "Report", "Orders", "Spent"}
    # embeddings and gradients of a trial are fetched: of random values, which the next test looks at
    assert sent == {"Machine", "Probe", "Neighbour", "Link", *trial, "Embedding", "Gradient"}
    assert set(Machine.__annotations__) == {"profile", "num_rows"}
    assert set(Spent.__annotations__) == {"processor_seconds", "num_reports", "process"}


@pytest.mark.slow
def test_a_trial_trains_on_random_values_and_never_on_rows(monkeypatch):
    seen, embed = [], Publication.embed

    def kept(publication):
        seen.append(publication.inputs)
        return embed(publication)

    monkeypatch.setattr(Publication, "embed", kept)
    _, _, data = measured(SimulatedRuntime())
    local = {
        row.tobytes() for party in data.passive_parties for row in np.asarray(data.load(party).features, np.float32)
    }
    assert sum(len(rows) in (64, 512) for rows in seen) >= 150  # a trial's batches
    assert not [row for rows in seen for row in np.asarray(rows, np.float32) if row.tobytes() in local]


@pytest.mark.slow
@pytest.mark.parametrize("transfer", ["pull", "push"])
def test_a_trial_goes_both_ways(transfer):
    profiles, config, _ = measured(SimulatedRuntime(), transfer=transfer)
    assert quickest_epoch(config, profiles)["predicted_epoch_seconds"] > 0


@pytest.mark.slow
def test_in_one_process_messages_cost_no_processor():
    profiles, _, _ = measured(SimulatedRuntime())
    assert {(profile["message_seconds"], profile["broker_seconds"]) for profile in profiles} == {(0.0, 0.0)}
    assert profiles[0]["step_seconds"] > 0
    assert profiles[0]["parameter_bytes"] > profiles[1]["parameter_bytes"] > 0


@pytest.mark.slow
def test_the_command_measures_and_plans(capsys):
    words = [
        "plan",
        "pubsub-vfl",
        "--measure",
        "--runtime",
        "simulated",
        "--aim",
        "epoch",
        "--data",
        "synthetic:400x12",
    ]
    assert main([*words, "num_layers=2", "hidden_size=8", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["num_rows"] == 252
    assert {"max_in_flight", "prefetch", "given_epoch_seconds"} <= found.keys()
    assert found["batch_size"] in (16, 32, 64, 128, 256, 512, 1024)
    assert found["predicted_epoch_seconds"] > 0


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_on_ray_each_party_measures_in_a_process_of_its_own():
    runtime = RayRuntime(num_cpus=2)
    profiles, config, _ = measured(runtime)
    assert len(set(runtime.processes.values())) == 5  # two for each party, and the broker
    assert profiles[0]["broker_seconds"] > 0
    assert all(profile["message_seconds"] + profile["message_row_seconds"] > 0 for profile in profiles)
    assert profiles[0]["host"] == profiles[1]["host"] != ""
    assert 0 < profiles[0]["latency"] < 5
    assert 1e5 < profiles[0]["bandwidth"] < 1e13
    assert quickest_epoch(config, profiles)["num_active_workers"] >= 1
