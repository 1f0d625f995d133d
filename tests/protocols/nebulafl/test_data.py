import pytest

from fedactors.errors import BadInput
from fedactors.protocols.nebulafl.config import content_of
from fedactors.protocols.nebulafl.data import load_data, read_catalogue, read_network
from fedactors.protocols.nebulafl.run import run
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.protocols.nebulafl.runs import SMALL, changed, user_files

CATALOGUE = """
spread = 0.1
[types.a]
price = 0.5
throughput = { cnn8 = 10 }
[types.b]
price = 1
throughput = { cnn8 = 30, linear = 5 }
[centers.x]
a = 2
b = 0
[centers.y]
b = 1
"""
NETWORK = """
[[links]]
between = ["x", "y"]
latency_ms = 20
bandwidth_mbit = 80
egress_per_gb = 0.05
"""


def catalogue(tmp_path, text):
    path = tmp_path / "catalogue.toml"
    path.write_text(text)
    return read_catalogue(content_of("catalogue", str(path)))


def network(tmp_path, text):
    path = tmp_path / "network.toml"
    path.write_text(text)
    return read_network(content_of("network", str(path)))


def test_a_catalogue(tmp_path):
    made = catalogue(tmp_path, CATALOGUE)
    assert made.first_centers(2) == ("x", "y")
    assert [t.name for t in made.types_of("x")] == ["a"]
    assert made.types["b"].samples_per_second("linear") == 5
    assert (made.spread, made.illustrative) == (0.1, False)
    with pytest.raises(BadInput, match="num_centers: 3 is more than the 2 centers"):
        made.first_centers(3)


def test_a_network_in_seconds_bytes_and_dollars(tmp_path):
    link = network(tmp_path, NETWORK).link("x", "y", 10**7)
    assert link.seconds(10**7) == pytest.approx(0.02 + 1.0)
    assert link.price(10**7) == pytest.approx(0.0005)


def test_the_cited_example_holds_what_its_sources_say():
    made = read_catalogue("cloud")
    assert not made.illustrative
    assert {name: kind.price for name, kind in made.types.items()} == {
        "rtx-3090": 0.22, "rtx-4090": 0.34, "a100": 1.19, "h100": 1.99,
    }  # fmt: skip
    images = {"rtx-3090": 513, "rtx-4090": 721, "a100": 1014, "h100": 1197}  # ResNet-50 on one card
    for name, kind in made.types.items():
        assert kind.samples_per_second("resnet18") == pytest.approx(images[name] * 4.1e9 / 0.555e9, rel=1e-3)
    network, centers = read_network("cloud"), made.first_centers(8)
    network.require(centers)
    assert network.link("oregon", "tokyo", 1).latency == pytest.approx(0.0891 / 2, rel=1e-2)
    for host in (*centers, "exchange"):
        assert network.capacity[host].egress == network.capacity[host].ingress == 5e9 / 8


@pytest.mark.parametrize("name", ["market", "scarce"])
def test_examples_are_marked_and_complete(name):
    made = read_catalogue(name)
    assert made.illustrative
    assert len(made.first_centers(8)) == 8
    for model in ("linear", "cnn8", "cnn28", "resnet18", "vgg16"):
        seconds = [t.samples_per_second(model) ** -1 for t in made.types.values()]
        assert seconds[1] / seconds[0] == pytest.approx(0.4, rel=1e-3)
        assert seconds[2] / seconds[0] == pytest.approx(0.33, rel=1e-3)
    assert [t.price for t in made.types.values()] == [0.12, 0.30, 0.60]
    read_network(name).require(made.first_centers(8))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("price = 0.5", "price = -1", "types.a.price: -1 is not allowed: give a number 0 or more"),
        ("price = 0.5", "price = nan", "types.a.price: nan is not allowed"),
        ("price = 0.5", "", "types.a.price: missing"),
        ("cnn8 = 10 ", "cnn8 = 0 ", "types.a.throughput.cnn8: 0 is not allowed: give a number above 0"),
        ("a = 2", "a100 = 2", "centers.x.a100: unknown resource type"),
        ("a = 2", "a = 1.5", "centers.x.a: 1.5 is not allowed: give a whole number"),
        ("a = 2", "a = 0", "centers.x: no resource type"),
        ("[centers.x]", '[centers."x/y"]', "centers: 'x/y' is not allowed as the name of a party"),
        ("[centers.x]", "[centers.auditor]", "centers: 'auditor' is not allowed as the name of a party"),
        ("spread = 0.1", "spread = -0.1", "spread: -0.1 is not allowed"),
        ("spread = 0.1", "sprad = 0.1", "unknown key 'sprad'"),
        ("price = 0.5", "price = ", "not TOML"),
    ],
)
def test_bad_catalogues_are_named_in_one_line(tmp_path, old, new, message):
    with pytest.raises(BadInput) as caught:
        catalogue(tmp_path, CATALOGUE.replace(old, new, 1))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("latency_ms = 20", "latency_ms = 0", "link 1.latency_ms: 0 is not allowed: give a number above 0"),
        ("bandwidth_mbit = 80", "bandwidth_mbit = -8", "link 1.bandwidth_mbit: -8 is not allowed"),
        ("bandwidth_mbit = 80", "", "link 1.bandwidth_mbit: missing"),
        ("egress_per_gb = 0.05", "egress_per_gb = -1", "link 1.egress_per_gb: -1 is not allowed"),
        ('["x", "y"]', '["x", "x"]', "link 1.between"),
        ("[[links]]", 'hub = "z"\n[[links]]', "hub: 'z' has no link"),
    ],
)
def test_bad_networks_are_named_in_one_line(tmp_path, old, new, message):
    with pytest.raises(BadInput) as caught:
        network(tmp_path, NETWORK.replace(old, new, 1))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there():
    with pytest.raises(
        BadInput, match=r"catalogue: 'nowhere\.toml' is neither an example \(market, scarce, cloud\) nor a file"
    ):
        content_of("catalogue", "nowhere.toml")


# --- rows ---


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["nebulafl", "fedavg", "fedavg-hierarchical"])
@pytest.mark.parametrize("listed", [True, False])
def test_user_files_are_learned_from(tmp_path, algorithm, listed):
    config, data = user_files(tmp_path, algorithm=algorithm, listed=listed, learning_rate=0.2)
    runtime = SimulatedRuntime(seed=0)
    assert runtime.execute(lambda: run(config, data, runtime)).metrics["test/accuracy"] > 0.8


@pytest.mark.parametrize("algorithm", ["nebulafl", "fedavg", "fedavg-hierarchical"])
@pytest.mark.parametrize("wider", [("client-2",), ("client-2", "client-3")])
def test_files_of_different_columns_are_named(tmp_path, algorithm, wider):
    config, data = user_files(tmp_path, algorithm=algorithm, listed=False, wider=wider)
    runtime = SimulatedRuntime(seed=0)
    with pytest.raises(BadInput, match="must hold the same columns") as caught:
        runtime.execute(lambda: run(config, data, runtime))
    assert "\n" not in str(caught.value)


def test_user_files_say_themselves_who_holds_what(tmp_path):
    for values, named in (
        ({"num_validation": 5}, "num_validation: 5 is not allowed with own files"),
        ({"num_training": 5}, "num_training: 5 is not allowed with own files"),
        ({"algorithm": "fedhkt"}, "algorithm: fedhkt is not allowed with own files"),
    ):
        with pytest.raises(BadInput, match=named):
            user_files(tmp_path, **values)
    config, _ = user_files(tmp_path)
    with pytest.raises(BadInput, match=r"num_containers: 6 is not allowed: .* describes 4"):
        load_data(changed(config, num_containers=6), str(tmp_path / "parties.toml"), 0)


def test_rows_that_are_held_out_belong_to_no_container():
    data = load_data(changed(SMALL, algorithm="fedhkt", num_proxy=50, num_validation=40), "digits", 0)
    parts = [data.client(index).load().features for index in range(12)]
    parts += [data.public().load().features, data.test().load().features]
    assert [len(parts[-2]), len(parts[-1])] == [50, 40]
    rows = [row.tobytes() for part in parts for row in part]
    assert len(rows) == len(set(rows)) == 1437
    assert sum(len(data.client(index).labels()) for index in range(12)) == 1437 - 90
