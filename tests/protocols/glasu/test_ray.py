"""Real processes: the simulation's numbers, a killed client, bad input from an actor, resume across runtimes."""

import os
import signal

import pytest

from fedactors.errors import BadInput, PartyLost
from fedactors.protocols.glasu.data import load_data
from fedactors.protocols.glasu.run import run
from fedactors.runtime.ray.runtime import RayRuntime
from tests.protocols.glasu.federation import DATA, Memory, settings, simulate
from tests.protocols.glasu.test_bad_input import BANK, NODES, write

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


class Killing(Memory):
    """Kills a client's process after a round's record."""

    def __init__(self, name: str, after: int) -> None:
        super().__init__()
        self.name, self.after = name, after
        self.runtime: RayRuntime

    def record_round(self, index, metrics):
        super().record_round(index, metrics)
        if index == self.after:
            os.kill(self.runtime.processes[self.name], signal.SIGKILL)


def on_ray(config, memory=None, source=None, resume=None):
    memory = Memory() if memory is None else memory
    runtime = RayRuntime(seed=0, recorder=memory)
    if isinstance(memory, Killing):
        memory.runtime = runtime
    data = load_data(config, DATA, 0) if source is None else source
    return runtime.execute(lambda: run(config, data, runtime), resume), memory


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    "words",
    [
        {"mode": "joint", "num_local_updates": "2", "batch_size": "20", "num_neighbours": "2"},
        {"aggregation": "concatenation", "backbone": "gcn", "aggregation_layers": "3", "num_local_updates": "2"},
        {
            "secure_aggregation": "true",
            "average_classifiers": "true",
            "mode": "joint",
            "reproducible_noise": "true",
        },
    ],
    ids=["sampled", "concatenation", "secure"],
)
def test_ray_gives_the_numbers_and_the_bytes_of_the_simulation(words):
    config = settings(num_rounds="3", evaluate_every="3", **words)
    expected, simulated = simulate(config)
    found, memory = on_ray(config)
    assert found.metrics == pytest.approx(expected.metrics, rel=1e-6)
    for one, two in zip(memory.rounds, simulated.rounds, strict=True):
        assert one == pytest.approx(two, rel=1e-6)

    def totals(rows):
        return sorted((row[1], row[2], row[4], row[5]) for row in rows if row[3] != "driver")

    assert totals(memory.rows) == totals(simulated.rows)


def test_a_run_begun_in_simulation_goes_on_the_same_on_ray():
    config = settings(num_rounds="4", secure_aggregation="true", backbone="gat")
    whole, simulated = simulate(config)
    found, memory = on_ray(config, resume=simulated.snapshots[2])
    assert found.metrics == pytest.approx(whole.metrics, rel=1e-6)
    assert [row["round"] for row in memory.rounds] == [3, 4]


@pytest.mark.drawn(1, family="kills", subjects=["fedactors/runtime"])
def test_a_killed_client_stops_the_run_with_its_name():
    with pytest.raises(PartyLost) as error:
        on_ray(settings(num_rounds="50", evaluate_every="50"), Killing("client-1", 2))
    assert error.value.party == "client-1"


@pytest.mark.drawn(1, family="kills", subjects=["fedactors/runtime"])
def test_training_goes_on_without_a_killed_client():
    config = settings(num_rounds="6", evaluate_every="3", on_party_loss="continue")
    found, memory = on_ray(config, Killing("client-1", 2))
    assert found.rounds == 6
    assert memory.rounds[-1]["num_members"] == 2
    assert memory.rounds[1]["num_members"] == 3


def test_bad_data_found_by_a_client_is_bad_input_on_ray_too(tmp_path):
    path = write(tmp_path, nodes=NODES, bank={**BANK, "features": BANK["features"][:5]})
    config = settings(num_clients="2")
    with pytest.raises(BadInput, match="features of bank: 5 rows are not allowed"):
        on_ray(config, source=load_data(config, str(path), 0))
