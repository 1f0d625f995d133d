"""Bad input of a run: one line that names the field, the value and what is allowed; exit code 2."""

import numpy as np
import pytest

from fedactors.errors import BadInput
from fedactors.messages.codec import wire_type
from fedactors.protocols.mtcd import objective as ob
from fedactors.protocols.mtcd.data import GeneratedData, Part
from fedactors.protocols.mtcd.run import run
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.protocols.mtcd.running import config_of, merged, simulate


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("learning_rate=1 num_rounds=20", "learning_rate: 1 diverges .* a safe value here is"),
        ("algorithm=stcd topology=empty", "disconnected graph is not allowed for stcd"),
        ("algorithm=dcpa topology=empty", "disconnected graph is not allowed for dcpa"),
        ("topology=empty server_links=0,1", "has no server link"),
        ("topology=mesh", "topology: 'mesh' is not known"),
        ("topology=nowhere.txt", "topology: 'nowhere.txt' is not a file"),
        ("num_features=5", "num_features: 5 for 6 clients leaves empty blocks"),
        ("start=0,1", "start: client 1 of token 1 is not in its cluster"),
        ("walk=sweep topology=star clusters=whole num_tokens=1", "walk: sweep is not allowed on cluster"),
        ("problem=network network=resnet18", "network: resnet18 is not allowed for generated data"),
        ("problem=network network=multi-view-cnn", "generated objects have 12 views"),
    ],
)
def test_bad_input_is_found_at_the_latest_where_it_shows(words, line):
    with pytest.raises(BadInput, match=line) as caught:
        simulate(words)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("0 1\n1 2 3 4\n", "cannot be read .* line 2 has 4 words"),
        ("0 1\n1 9\n", "line 2: client 9 is unknown, allowed are 0 to 5"),
        ("a b\nb c\n", "has 3 nodes, but there are 6 clients"),
        ("0 1\n2 3\n", "disconnected graph is not allowed for stcd"),
    ],
)
def test_topology_files_that_do_not_fit_are_refused(tmp_path, text, line):
    path = tmp_path / "graph.edgelist"
    path.write_text(text)
    with pytest.raises(BadInput, match=line) as caught:
        simulate(f"topology={path} algorithm=stcd")
    assert "\n" not in str(caught.value)


def test_a_topology_may_come_from_a_file(tmp_path):
    path = tmp_path / "graph.edgelist"
    path.write_text("0 1\n1 2\n2 3\n3 4\n4 5\n")
    assert simulate(f"topology={path}")[0].metrics == simulate("topology=path")[0].metrics


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "rate"),
    [
        ("", "0.1"),
        ("algorithm=stcd", "1"),
        ("algorithm=svfl", "0.05"),
        ("mode=overlapping", "1"),
        ("batch_size=10", "1"),
    ],
)
def test_the_step_size_suggested_to_a_run_that_diverges_is_safe(words, rate):
    with pytest.raises(BadInput, match=r"^learning_rate: \S+ diverges .* a safe value here is \S+$") as caught:
        simulate(f"{words} learning_rate={rate} num_rounds=200")
    safe = str(caught.value).rpartition(" ")[2]
    _, kept, _ = simulate(f"{words} learning_rate={safe} num_rounds=40")
    values = [found["training/objective"] for _, found in kept.rounds]
    assert values[-1] < values[0]
    assert max(values) < 2 * values[0]


def test_lengths_that_differ_are_refused():
    with pytest.raises(BadInput, match="features of bank: 4 rows for 3 labels"):
        ob.check_data(["bank"], [np.ones((4, 2))], np.ones(3))
    with pytest.raises(BadInput, match="features of bank: shape"):
        ob.check_data(["bank"], [np.ones((3, 0))], np.ones(3))


@wire_type
class Shortened(GeneratedData):
    """The last label is missing."""

    def labels(self):
        train, test = super().labels()
        return train[:-1], test


@wire_type
class Emptied(GeneratedData):
    """Client 1 has no feature."""

    def load(self, client):
        part = super().load(client)
        return Part(part.train[:, :0], part.test[:, :0]) if client == 1 else part


@pytest.mark.parametrize(
    ("cls", "line"),
    [(Shortened, "features of client-0: 30 rows for 29 labels"), (Emptied, r"features of client-1: shape \(30, 0\)")],
)
@pytest.mark.parametrize("algorithm", ["mtcd", "dcpa"])
def test_a_run_on_data_that_do_not_fit_names_the_client(cls, line, algorithm):
    config = config_of(merged(f"algorithm={algorithm}"))
    data = cls(kind="ridge", seed=3, num_samples=30, num_features=24, num_clients=6)
    runtime = SimulatedRuntime(seed=3)
    with pytest.raises(BadInput, match=line) as caught:
        runtime.execute(lambda: run(config, data, runtime))
    assert caught.value.exit_code == 2
