"""Containers and centers that are lost, for good or for a while, in the simulated runtime."""

import pytest

from fedactors.actors.actor import DataCenter
from fedactors.actors.remote import DRIVER, remote
from fedactors.errors import PartyLost
from fedactors.protocols.nebulafl.actors import Auditor
from fedactors.protocols.nebulafl.data import load_data
from fedactors.protocols.nebulafl.messages import AccountOrder, CenterNews, LeaseOpened
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.protocols.nebulafl.runs import BASELINES, PRICES, changed, cut, play, rounds, spans_of


@pytest.mark.slow
def test_a_container_that_is_away_is_skipped_and_nothing_is_counted_twice():
    result, recorder, _ = play(changed(outages="oregon/0@100-1500 virginia/1@700-2000"))
    away = [s for s in spans_of(recorder) if s["label"].startswith("oregon/0 ")]
    assert not any(100 < s["start"] < 1500 for s in away)
    counted = sum(sum(v) for v in result.extra["versions"].values())
    assert counted == result.metrics["trainings"] == sum(s["kind"] == "train" for s in spans_of(recorder))


@pytest.mark.slow
def test_an_outage_cut_in_the_middle_goes_on_exactly():
    config = changed(outages="oregon/0@100-1500")
    _, recorder, _ = play(config)
    first, snapshot = cut(config, 6)
    assert rounds(first) + rounds(play(config, resume=snapshot)[1]) == rounds(recorder)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["nebulafl", *BASELINES])
def test_a_center_lost_and_back(algorithm):
    config = changed(algorithm=algorithm, restart_seconds=700.0)
    result, recorder, runtime = play(config, faults={"virginia": 710.0})
    spans = spans_of(recorder)
    # what the lost center had let stands on the timeline too, so that the bill can be added up from there
    rent = sum(PRICES[s["label"].split(" on ")[1].partition("#")[0]] * (s["end"] - s["start"]) / 3600 for s in spans)
    assert sum(bill["rent"] for bill in result.extra["centers"].values()) == pytest.approx(rent, rel=1e-9)
    gone = [s for s in spans if s["actor"] == "virginia" and 710.0 < s["start"] < 1410.0]
    assert not gone
    assert any(s["actor"] == "virginia" and s["start"] >= 1410.0 for s in spans)
    # money: every rental of the auditor's log, the broken-off ones until the loss
    assert result.metrics["dollars"] == pytest.approx(runtime.usage().price, rel=1e-9)
    if algorithm == "nebulafl":
        # the ring closed without it: rotation 1 (at 1000 s) ran over two centers
        masters = [r for r in recorder.ledger_rows if r[4] == "MasterModel" and 999 < r[0] < 1001]
        assert {(r[1], r[2]) for r in masters} <= {("oregon", "frankfurt"), ("frankfurt", "oregon")}
        assert result.extra["versions"]["virginia"] != [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("faults", [{"virginia": 1280.0}, {"virginia": 1280.0, "oregon": 2590.0}])
def test_a_training_that_a_restart_undoes_is_paid_and_not_counted(faults):
    result, recorder, _ = play(changed(restart_seconds=5.0), faults=faults)
    spans = spans_of(recorder)
    trained = sum(s["kind"] == "train" for s in spans)
    # the planets' versions count what is in the models: those of a center that is back are its checkpoint's
    assert result.metrics["trainings"] == sum(sum(v) for v in result.extra["versions"].values()) < trained
    last = recorder.rounds[-1]
    assert last["trainings"] + last["given_up"] == len(spans)
    rent = sum(PRICES[s["label"].split(" on ")[1].partition("#")[0]] * (s["end"] - s["start"]) / 3600 for s in spans)
    assert last["rent"] == pytest.approx(rent, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg-hierarchical", "fedhisyn", "fedhkt"])
def test_what_a_center_trained_in_a_round_that_it_never_answered_is_not_counted(algorithm):
    config = changed(algorithm=algorithm, center_rounds=3)
    _, whole, _ = play(config)
    answers = [r[0] for r in whole.ledger_rows if r[1] == "virginia" and r[4] in ("RoundResult", "ClusterLogits")]
    ends = sorted(s["end"] for s in spans_of(whole) if s["actor"] == "virginia" and s["kind"] == "train")
    # lost when a container is done and another is not, so that the center has not answered yet
    after = {end: min((answer for answer in answers if answer >= end), default=end) for end in ends}
    when = next((end + after[end]) / 2 for end in ends if end > 600.0 and after[end] > end + 1.0)
    result, recorder, _ = play(config, faults={"virginia": when})
    orders = [r[0] for r in recorder.ledger_rows if r[2] == "virginia" and r[4] == "RoundOrder" and r[0] < when]
    trained = [s for s in spans_of(recorder) if s["kind"] == "train"]
    unanswered = [s for s in trained if s["actor"] == "virginia" and orders[-1] <= s["start"] and s["end"] < when]
    assert unanswered
    assert result.metrics["trainings"] == len(trained) - len(unanswered)


@pytest.mark.slow
def test_a_center_gone_for_good():
    config = changed(on_party_loss="continue")
    result, recorder, _ = play(config, faults={"virginia": 710.0})
    assert set(result.extra["versions"]) == {"oregon", "frankfurt"}
    assert not any(s["actor"] == "virginia" and s["start"] > 710.0 for s in spans_of(recorder))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["nebulafl", "fedbuff", "fedhisyn"])
@pytest.mark.parametrize("when", [500.0, 1000.0])
def test_a_center_lost_in_the_instant_of_a_rotation(algorithm, when):
    config = changed(algorithm=algorithm, restart_seconds=300.0)
    result, recorder, runtime = play(config, faults={"frankfurt": when})
    assert any(s["actor"] == "frankfurt" and s["start"] >= when + 300.0 for s in spans_of(recorder))
    assert result.metrics["dollars"] == pytest.approx(runtime.usage().price, rel=1e-9)
    assert rounds(play(config, faults={"frankfurt": when})[1]) == rounds(recorder)


@pytest.mark.slow
def test_a_center_lost_while_another_is_away():
    config = changed(restart_seconds=400.0)
    result, recorder, runtime = play(config, faults={"virginia": 710.0, "oregon": 930.0})
    for center, back in (("virginia", 1110.0), ("oregon", 1330.0)):
        assert any(s["actor"] == center and s["start"] >= back for s in spans_of(recorder))
    assert result.metrics["dollars"] == pytest.approx(runtime.usage().price, rel=1e-9)


@pytest.mark.slow
def test_a_planet_whose_container_is_lost_trains_elsewhere_at_once():
    whole = spans_of(play(changed(duration=1300.0))[1])
    container = next(s["label"].split(" on ")[0] for s in whole if s["start"] < 300.0 < s["end"])
    spans = spans_of(play(changed(duration=1300.0, outages=f"{container}@300-900"))[1])
    there = [s for s in spans if s["label"].startswith(container.partition("/")[0])]
    broken = [s for s in there if s["kind"] == "given up" and s["end"] == 300.0]
    assert [s["label"].split(" on ")[0] for s in broken] == [container]
    elsewhere = [s["label"].split(" on ")[0] for s in there if s["start"] == 300.0]
    assert len(elsewhere) == 1
    assert elsewhere != [container]
    assert not any(s["label"].startswith(f"{container} ") for s in there if 300.0 <= s["start"] < 900.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "ablation", "victim"),
    [("nebulafl", "none", "auditor"), ("nebulafl", "aggregation", "exchange"), ("fedbuff", "none", "exchange")],
)
def test_who_cannot_be_lost_stops_the_run_by_name(algorithm, ablation, victim):
    with pytest.raises(PartyLost, match=victim):
        play(changed(algorithm=algorithm, ablation=ablation), faults={victim: 700.0})


@pytest.mark.slow
def test_stop_means_stop():
    with pytest.raises(PartyLost, match="virginia"):
        play(changed(on_party_loss="stop"), faults={"virginia": 700.0})


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["nebulafl", "fedbuff", "fedavg-hierarchical"])
def test_while_the_only_center_is_away_the_run_waits_for_it(algorithm):
    config = changed(
        algorithm=algorithm, num_centers=1, num_containers=4, restart_seconds=500.0, duration=1950.0,
        rotation_interval=300.0,
    )  # fmt: skip
    result, recorder, _ = play(config, faults={"oregon": 640.0})
    times = [entry["time"] for entry in recorder.rounds]
    # nobody has a master at 650 s; a baseline's model is with the exchange
    assert times == [1140.0 if algorithm == "nebulafl" else 650.0, 1300.0, 1950.0]
    assert any(s["actor"] == "oregon" and s["start"] >= 1140.0 for s in spans_of(recorder))
    assert result.rounds == 3


@pytest.mark.slow
def test_when_all_centers_are_away_at_the_end_the_last_measurement_waits():
    config = changed(num_centers=2, num_containers=8, duration=1300.0, restart_seconds=400.0)
    result, recorder, _ = play(config, faults={"oregon": 1200.0, "virginia": 1250.0})
    assert [entry["time"] for entry in recorder.rounds] == [650.0, 1600.0]
    assert result.metrics["test/accuracy"] == recorder.rounds[-1]["test/accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["nebulafl", "fedbuff", "fedhisyn"])
def test_no_center_left_ends_the_run_with_one_line(algorithm):
    config = changed(algorithm=algorithm, num_centers=2, num_containers=8, on_party_loss="continue")
    with pytest.raises(PartyLost, match="no data center is left") as caught:
        play(config, faults={"oregon": 700.0, "virginia": 900.0})
    assert caught.value.party == "virginia"
    assert "\n" not in str(caught.value)


class Lessor(DataCenter):
    """Lets a unit from second 9 on."""

    @remote(caller=DRIVER)
    async def let(self) -> None:
        """Tell the auditor."""
        await self.peer("auditor", Auditor).open_lease(LeaseOpened(self.name, 0, "a100#0", "oregon/0", 9.0, 3600.0))


@pytest.mark.parametrize("lost", [False, True])
def test_what_was_let_after_the_clock_was_looked_at_costs_nothing_yet(lost):
    """On Ray the news of a rental may overtake the driver's question, whose time is then before its start."""
    config, runtime = changed(num_centers=2, num_containers=8), SimulatedRuntime()
    data = load_data(config, "digits", 0)

    async def main():
        auditor = runtime.spawn(Auditor, "auditor", config, data.part(test=True), {"oregon": 1})
        center = runtime.spawn(Lessor, "oregon")
        await runtime.start()
        await center.let()
        if lost:
            await auditor.center_lost(CenterNews("oregon", False, 8.5))
        return [await auditor.account(AccountOrder(now, now)) for now in (8.5, 10.0)]

    early, late = runtime.execute(main)
    assert early.rent == 0.0
    assert late.rent == pytest.approx(0.0 if lost else 1.0)
