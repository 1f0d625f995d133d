"""What a display says of parties: sums of the ledger and the timeline, and the table that shows them."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from fedactors.messages.ledger import CLIENT_CLIENT, DRIVER, INTRA_PARTY, Ledger
from fedactors.runs.progress import LiveProgress, RoundProgress, party_table
from fedactors.runs.timeline import Activity, EventLog, Span, activities
from tests.runs.test_progress import Terminal


def span(actor: str, kind: str, start: float, end: float) -> Span:
    return Span(actor=actor, kind=kind, label="", start=start, end=end)


def text_of(table, width: int = 80) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width).print(table)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_a_party_is_the_sum_of_its_actors_and_of_what_crossed_its_border():
    ledger, events = Ledger(), EventLog(lambda line: None)
    ledger.record(0.0, "bank/worker-0", "shop", CLIENT_CLIENT, "Embedding", 700)
    ledger.record(0.0, "shop", "bank/worker-1", CLIENT_CLIENT, "Gradient", 300)
    ledger.record(0.0, "bank/worker-0", "bank/worker-1", INTRA_PARTY, "Weights", 10_000)
    ledger.record(0.0, "driver", "bank/worker-0", DRIVER, "Order", 5_000)
    for actor, kind, seconds in (("bank/worker-0", "compute", 2.0), ("bank/worker-1", "compute", 1.0)):
        events.span(span(actor, kind, 0.0, seconds))
    events.span(span("bank/worker-1", "wait", 1.0, 1.5))
    events.span(span("driver", "phase", 0.0, 9.0))
    bank, shop = activities(ledger.totals(), events)
    assert bank == Activity("bank", 2, num_computes=2, computing=3.0, waiting=0.5, sent=700, received=300)
    # it has not computed yet, and is there all the same
    assert shop == Activity("shop", 1, sent=300, received=700)


def test_a_table_fits_80_columns_and_tells_who_did_something_since_the_last_look():
    before = {name: Activity(name, 1, 5, 1.0, 1.0, 10, 10) for name in ("a", "b", "c", "d")}
    now = [
        Activity("a", 1, 6, 1.5, 1.0, 10, 10),
        Activity("b", 1, 5, 1.0, 1.0, 20, 10),
        Activity("c", 1, 5, 1.0, 2.0, 10, 10),
        Activity("d", 1, 5, 1.0, 1.0, 10, 10),
    ]
    lines = text_of(party_table(now, before))
    assert [line.split()[1] for line in lines[1:]] == ["computing", "talking", "waiting", "quiet"]
    long = [Activity("an-organisation-with-a-very-long-name", 10_000, 123_456_789, 1e5, 1e5, 10**12, 10**12)]
    assert all(len(line) <= 100 for line in text_of(party_table(long, {}), 100))


def test_of_many_parties_those_that_talk_most_are_shown_and_the_others_counted():
    lines = text_of(party_table([Activity(f"client-{i}", sent=i) for i in range(1, 201)], {}))
    assert lines[1].startswith("client-200")
    assert lines[-1] == "189 others"


def test_a_terminal_shows_phases_then_rounds_with_the_table_and_nothing_of_a_run_that_never_began():
    terminal = Terminal()
    live = LiveProgress(3, "auc", terminal)
    live.phase("loading: 1 of 2")
    live._live.refresh()
    assert "loading: 1 of 2, 0 s" in terminal.getvalue()
    assert live.watch(lambda: [Activity("bank", 2, 7)])
    live.update(RoundProgress(round=1, metrics={"auc": 0.5}))
    live.close()
    assert "round 1/3" in terminal.getvalue()
    assert "bank" in terminal.getvalue()


def test_a_name_from_data_is_no_markup(tmp_path: Path):
    assert "[bold]" in " ".join(text_of(party_table([Activity("[bold]")], {})))
