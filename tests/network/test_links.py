"""Links and shared host capacity, by times computed by hand."""

from __future__ import annotations

import math

import pytest

from fedactors.errors import BadInput
from fedactors.network.links import HostCapacity, Link, Network, SharedTransfers

FAST = Link()


def ends(transfers: SharedTransfers, now: float) -> list[tuple[float, list[int]]]:
    """Return when what is in flight ends if nothing else starts."""
    found = []
    while (end := transfers.next_end()) is not None:
        found.append((end, transfers.advance(end)))
    return found


@pytest.mark.parametrize("clients", [1, 2, 5])
def test_k_clients_at_once_take_k_times_as_long(clients: int) -> None:
    transfers = SharedTransfers(Network(capacity={"hub": HostCapacity(egress=100.0)}))
    for key in range(clients):
        transfers.start(0.0, key, "hub", f"c{key}", FAST, 1000)
    found = ends(transfers, 0.0)
    assert found == [(pytest.approx(10.0 * clients), list(range(clients)))]


def test_staggered_starts() -> None:
    # A: 1000 bytes at 100/s alone for 4 s (600 left), then both at 50/s.
    # B: 300 bytes from 4 s at 50/s, over at 10 s; A has 300 left, alone again: over at 13 s.
    transfers = SharedTransfers(Network(capacity={"hub": HostCapacity(egress=100.0)}))
    transfers.start(0.0, 1, "hub", "a", FAST, 1000)
    assert transfers.next_end() == pytest.approx(10.0)
    transfers.start(4.0, 2, "hub", "b", FAST, 300)
    assert transfers.next_end() == pytest.approx(10.0)
    assert transfers.advance(10.0) == [2]
    assert transfers.next_end() == pytest.approx(13.0)
    assert transfers.advance(13.0) == [1]
    assert transfers.next_end() is None


def test_ingress_and_the_links_own_bandwidth_limit_too() -> None:
    network = Network(capacity={"hub": HostCapacity(ingress=100.0)})
    transfers = SharedTransfers(network)
    transfers.start(0.0, 1, "a", "hub", Link(bandwidth=20.0), 200)  # its link is slower than its share of 50
    transfers.start(0.0, 2, "b", "hub", FAST, 500)  # 50/s: the share is equal, what a leaves over is not used
    assert ends(transfers, 0.0) == [(pytest.approx(10.0), [1, 2])]


def test_a_sender_and_a_receiver_with_limits() -> None:
    network = Network(capacity={"a": HostCapacity(egress=30.0), "hub": HostCapacity(ingress=100.0)})
    transfers = SharedTransfers(network)
    transfers.start(0.0, 1, "a", "hub", FAST, 300)
    assert transfers.next_end() == pytest.approx(10.0)


def test_a_start_at_the_instant_of_an_end() -> None:
    transfers = SharedTransfers(Network(capacity={"hub": HostCapacity(egress=100.0)}))
    transfers.start(0.0, 1, "hub", "a", FAST, 1000)
    transfers.start(10.0, 2, "hub", "b", FAST, 1000)
    assert transfers.next_end() == pytest.approx(10.0)
    assert transfers.advance(10.0) == [1]
    assert transfers.next_end() == pytest.approx(20.0)


def test_late_in_a_long_run_transfers_still_end() -> None:
    transfers = SharedTransfers(Network(capacity={"hub": HostCapacity(egress=1e9)}))
    now = 1e7
    for key in range(50):
        transfers.start(now, key, "hub", "a", FAST, 64 + key)
        for _ in range(3):
            end = transfers.next_end()
            assert end is not None
            now = max(now, end)
            if transfers.advance(now):
                break
        else:
            raise AssertionError("a transfer that never ends")


def test_which_link_and_which_host() -> None:
    wan, lab = Link(latency=0.1), Link(latency=0.01)
    network = Network(links={("tokyo", "oregon"): wan}, by_kind={"client-server": lab}, hosts={"bank/ps": "cloud"})
    assert network.link("oregon", "tokyo", "inter-data-center") is wan
    assert network.link("tokyo", "oregon", "client-server") is wan
    assert network.link("a", "b", "client-server") is lab
    assert network.link("a", "b", "client-client") is network.default
    assert network.link("bank/worker-0", "bank/worker-1", "intra-party") is network.local
    assert network.link("bank/worker-0", "bank/ps", "intra-party") is network.default
    assert not network.is_shared("a", "b")


def test_only_finite_capacity_between_hosts_is_shared() -> None:
    network = Network(capacity={"hub": HostCapacity(egress=10.0)})
    assert network.is_shared("hub", "a")
    assert not network.is_shared("a", "hub")
    assert not network.is_shared("hub/ps", "hub/worker-0")
    watched = Network(capacity=network.capacity, unshared=frozenset({"client-server"}))
    assert watched.is_shared("hub", "a", "inter-data-center")
    assert not watched.is_shared("hub", "a", "client-server")


def test_seconds_and_price() -> None:
    link = Link(latency=0.5, bandwidth=100.0, price_per_gb=0.09)
    assert link.seconds(200) == 2.5
    assert link.price(2_000_000_000) == pytest.approx(0.18)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("latency", -1.0),
        ("latency", math.nan),
        ("bandwidth", 0.0),
        ("bandwidth", -5.0),
        ("bandwidth", math.nan),
        ("price_per_gb", -0.1),
        ("price_per_gb", math.nan),
    ],
)
def test_links_are_validated(field: str, value: float) -> None:
    with pytest.raises(BadInput, match=f"{field}: .* is not allowed"):
        Link(**{field: value})


@pytest.mark.parametrize("field", ["egress", "ingress"])
def test_capacities_are_validated(field: str) -> None:
    with pytest.raises(BadInput, match=f"{field}: 0.0 is not allowed"):
        HostCapacity(**{field: 0.0})
