import json
import tomllib

import pytest

from fedactors.errors import BadInput
from fedactors.messages.ledger import CLIENT_SERVER, INTER_DATA_CENTER
from fedactors.network.links import HostCapacity, SharedTransfers
from fedactors.protocols.nebulafl.config import EXAMPLES
from fedactors.protocols.nebulafl.data import read_catalogue, read_network
from fedactors.protocols.nebulafl.hardware import InterCenterLink, InterCenterNetwork
from tests.protocols.nebulafl.runs import changed, play


def link(a: str, b: str, latency: float, bandwidth: float, price: float = 0.0) -> InterCenterLink:
    return InterCenterLink(ends=(a, b), latency=latency, bandwidth=bandwidth, egress_price=price)


def test_the_quickest_way_depends_on_the_size():
    network = InterCenterNetwork(
        [link("a", "c", 0.1, 10.0, 3.0), link("a", "b", 1, 1e3, 1.0), link("b", "c", 1, 1e3, 1.0)]
    )
    assert network.path("a", "c", 1) == ("a", "c")
    assert network.link("a", "c", 1).seconds(1) == pytest.approx(0.2)
    assert network.path("a", "c", 1000) == ("a", "b", "c")
    assert network.link("a", "c", 1000).seconds(1000) == pytest.approx(4.0)
    assert network.link("a", "c", 1000).price(1000) == pytest.approx(2000.0)


def test_the_hub_is_where_the_exchange_is_and_the_auditor_is_free():
    network = InterCenterNetwork([link("a", "b", 1, 1e3, 1.0), link("b", "h", 2, 1e3, 1.0)], hub="h")
    made = network.links(["a", "b"], "exchange", 1000)
    assert made.link("a", "exchange", INTER_DATA_CENTER).latency == 3
    assert made.link("exchange", "a", INTER_DATA_CENTER).price(1000) == pytest.approx(2000.0)
    assert made.link("a", "auditor", CLIENT_SERVER).seconds(10**9) == 0


def test_an_unreachable_center_is_bad_input():
    network = InterCenterNetwork([link("a", "b", 1, 1), link("c", "d", 1, 1)])
    network.require(["a", "b"])
    with pytest.raises(BadInput, match="center 'c' cannot be reached from 'a'"):
        network.require(["a", "b", "c"])
    with pytest.raises(BadInput, match="center 'e' has no link"):
        network.require(["a", "e"])


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_two_centers_of_an_example_are_joined(name):
    centers = read_catalogue(name).first_centers(8)
    network = read_network(name)
    network.require(centers)
    link = network.link("saopaulo", "sydney", 10**6)
    assert link.seconds(10**6) > 0
    assert link.price(10**6) > 0


def test_what_a_place_sends_at_once_shares_its_capacity():
    capacity = {"h": HostCapacity(egress=1e3), "b": HostCapacity(ingress=500.0)}
    network = InterCenterNetwork([link("a", "h", 1, 1e3), link("b", "h", 1, 1e3)], hub="h", capacity=capacity)
    made = network.links(["a", "b"], "exchange", 1000)
    assert made.is_shared("exchange", "a")
    assert not made.is_shared("a", "exchange")
    transfers = SharedTransfers(made)
    for key in range(20):
        transfers.start(0.0, key, "h", "a", made.link("exchange", "a", INTER_DATA_CENTER), 1000)
    assert transfers.next_end() == pytest.approx(20.0)


def test_heavier_messages_take_and_cost_as_many_times_more():
    capacity = {"a": HostCapacity(egress=1e3)}
    light = InterCenterNetwork([link("a", "b", 0.5, 1e3, 2.0)], capacity=capacity)
    heavy = light.heavier(10.0)
    assert heavy.link("a", "b", 100).seconds(100) == pytest.approx(0.5 + 10 * 0.1)
    assert heavy.link("a", "b", 100).price(100) == pytest.approx(2000.0)
    assert heavy.capacity["a"].egress == 100.0
    assert light.heavier(1.0).link("a", "b", 100) == light.link("a", "b", 100)


@pytest.mark.slow
def test_whoever_measures_takes_no_part_of_a_places_capacity(tmp_path):
    """Centers so slow that one model takes hours to send, and an auditor that asks for each of them."""
    text = '[[links]]\nbetween = ["oregon", "virginia"]\nlatency_ms = 1\nbandwidth_mbit = 1000\n'
    (tmp_path / "network.toml").write_text(text + "[capacity.oregon]\negress_mbit = 1e-3\n")
    config = changed(
        num_centers=2, num_containers=4, active_per_center=1, duration=900.0, evaluation_interval=100.0,
        catalogue="scarce", network=str(tmp_path / "network.toml"), rotation_interval=5000.0,
    )  # fmt: skip
    done = play(config)[0]
    assert [point["time"] for point in done.extra["curve"]] == pytest.approx([100.0 * n for n in range(1, 10)])


def json_of(toml):
    """Return a file's content as it travels (`content_of`)."""
    return json.dumps(tomllib.loads(toml)) + "\n"


def test_up_and_down_differ():
    """A line of one way, beside another back: times, prices and ways are each direction's own."""
    text = """
    [[links]]
    from = "a"
    to = "b"
    latency_ms = 1000
    bandwidth_mbit = 8
    egress_per_gb = 2
    [[links]]
    from = "b"
    to = "a"
    latency_ms = 3000
    bandwidth_mbit = 80
    [[links]]
    between = ["b", "c"]
    latency_ms = 500
    bandwidth_mbit = 8
    """
    network = read_network(json_of(text))
    assert network.link("a", "b", 10**6).seconds(10**6) == pytest.approx(1 + 1)
    assert network.link("b", "a", 10**6).seconds(10**6) == pytest.approx(3 + 0.1)
    assert network.link("a", "b", 10**6).price(10**9) == pytest.approx(2.0)
    assert network.link("b", "a", 10**6).price(10**9) == 0.0
    assert network.link("c", "a", 10**6).latency == 3.5
    made = network.heavier(2.0).links(["a", "b", "c"], "a/exchange", 10**6)
    assert made.link("a", "b", INTER_DATA_CENTER).seconds(10**6) == pytest.approx(1 + 2)
    assert made.link("b", "a", INTER_DATA_CENTER).seconds(10**6) == pytest.approx(3 + 0.2)
    assert made.link("b", "a/exchange", INTER_DATA_CENTER).latency == 3


def test_a_way_without_a_way_back_is_bad_input():
    one_way = InterCenterLink(ends=("a", "b"), latency=1, bandwidth=1, egress_price=0.0, one_way=True)
    with pytest.raises(BadInput, match="center 'a' cannot be reached from 'b'"):
        InterCenterNetwork([one_way]).require(["a", "b"])
    for text in ('from = "a"', 'from = "a"\nto = "a"', 'between = ["a", "b"]\nto = "b"'):
        with pytest.raises(BadInput, match=r"link 1"):
            read_network(json_of(f"[[links]]\n{text}\nlatency_ms = 1\nbandwidth_mbit = 1\n"))
