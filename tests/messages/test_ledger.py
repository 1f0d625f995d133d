"""The traffic ledger: kinds of links, totals, blocks, price, and going on from a snapshot."""

from __future__ import annotations

import pytest

from fedactors.messages import ledger as ledgers
from fedactors.messages.codec import HEADER_BYTES
from fedactors.messages.ledger import Ledger, Row, Total, kind_of
from fedactors.network.links import Link, Network


@pytest.mark.parametrize(
    ("sender", "sender_role", "receiver", "receiver_role", "kind"),
    [
        ("bank", "client", "hub", "server", "client-server"),
        ("hub", "server", "bank", "client", "client-server"),
        ("bank", "client", "shop", "client", "client-client"),
        ("bank/worker-0", "client", "bank/ps", "parameter-server", "intra-party"),
        ("bank/worker-0", "client", "shop/ps", "parameter-server", "client-client"),
        ("oregon", "data-center", "tokyo", "data-center", "inter-data-center"),
        ("oregon", "data-center", "hub", "server", "client-server"),
        ("driver", "driver", "bank", "client", "driver"),
        ("bank", "client", "driver", "driver", "driver"),
    ],
)
def test_kinds(sender: str, sender_role: str, receiver: str, receiver_role: str, kind: str) -> None:
    assert kind_of(sender, sender_role, receiver, receiver_role) == kind
    assert kind in ledgers.KINDS


def filled(sink: list[list[Row]] | None = None) -> Ledger:
    ledger = Ledger(sink.append if sink is not None else None)
    ledger.record(0.0, "a", "hub", "client-server", "Update", 1000)
    ledger.record(1.0, "a", "hub", "client-server", "Update", 500)
    ledger.record(1.0, "hub", "a", "client-server", "Model", 200)
    ledger.record(2.0, "driver", "a", "driver", "train", 50)
    ledger.record(3.0, "a", "b", "client-client", "Token", 7)
    return ledger


def test_totals_leave_the_drivers_traffic_out_of_the_sums() -> None:
    ledger = filled()
    assert ledger.messages() == 4
    assert ledger.bytes() == 1707
    assert ledger.bytes("client-server") == 1700
    assert ledger.messages("client-client", "driver") == 2
    assert ledger.header_bytes() == 4 * HEADER_BYTES
    found = {(t.sender, t.receiver, t.type): (t.messages, t.bytes) for t in ledger.totals()}
    assert found[("a", "hub", "Update")] == (2, 1500)
    assert found[("driver", "a", "train")] == (1, 50)


def test_the_price_counts_headers_and_not_the_driver() -> None:
    network = Network(by_kind={"client-server": Link(price_per_gb=2.0), "client-client": Link(price_per_gb=10.0)})
    expected = (1700 + 3 * HEADER_BYTES) * 2e-9 + (7 + HEADER_BYTES) * 10e-9
    assert filled().price(network.link) == pytest.approx(expected, rel=1e-12)


def test_rows_go_to_the_sink_in_blocks() -> None:
    blocks: list[list[Row]] = []
    ledger = Ledger(blocks.append)
    for index in range(ledgers.BLOCK + 3):
        ledger.record(float(index), "a", "b", "client-client", "Token", 1)
    assert [len(block) for block in blocks] == [ledgers.BLOCK]
    ledger.flush()
    ledger.flush()
    assert [len(block) for block in blocks] == [ledgers.BLOCK, 3]
    assert blocks[1][-1] == (float(ledgers.BLOCK + 2), "a", "b", "client-client", "Token", 1)


def test_rows_of_another_process_are_added() -> None:
    blocks: list[list[Row]] = []
    filled(blocks).flush()
    other = Ledger()
    for row in blocks[0]:
        other.record(*row)
    assert other.totals() == filled().totals()


def test_a_snapshot_goes_on() -> None:
    ledger = Ledger()
    ledger.restore(filled().state())
    ledger.record(4.0, "a", "hub", "client-server", "Update", 1)
    assert ledger.messages() == 5
    assert ledger.bytes() == 1708


def test_totals_are_sorted_whatever_came_since_they_were_last_asked_for() -> None:
    ledger = filled()
    before = ledger.totals()
    ledger.record(5.0, "a", "a/worker", "intra-party", "Weights", 3)
    assert ledger.totals() == [Total("a", "a/worker", "intra-party", "Weights", 1, 3), *before]
    ledger.restore(state := filled().state())
    assert ledger.state() == state == sorted(state)
