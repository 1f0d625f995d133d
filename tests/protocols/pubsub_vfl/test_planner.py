import dataclasses
import math
import re

import pytest

from fedactors.errors import BadInput
from fedactors.network.links import LAN
from fedactors.plugins import Planning
from fedactors.protocols.pubsub_vfl import planner
from fedactors.protocols.pubsub_vfl.dry_run import Problem
from fedactors.protocols.pubsub_vfl.messages import PartyProfile, PowerLaw
from fedactors.protocols.pubsub_vfl.pilots import Rehearsal, check_parties
from fedactors.protocols.pubsub_vfl.planner import quickest_epoch
from fedactors.sweeps import Pilot, Pilots
from tests.protocols.pubsub_vfl.runs import config_of


def party(role: str, cores: int, *phases: tuple[float, float], **changes) -> PartyProfile:
    made = PartyProfile(role, cores, tuple(PowerLaw(*p) for p in phases), 0.0, PowerLaw(0.0, 1.0), math.inf, 0.0)
    return dataclasses.replace(made, **changes)


def table_8(active_cores: int = 32, passive_cores: int = 32, **changes) -> Problem:
    return Problem(
        active=party("active", active_cores, (0.018, -0.8015), (0.066, -0.6069), (0.011, -0.7514), (0.072, -0.7834)),
        passive=party("passive", passive_cores, (0.010, -1.0071), (0.038, -1.0546)),
        **changes,
    )


def setting(made: planner.Plan) -> tuple[int, int, int]:
    return made.num_active_workers, made.num_passive_workers, made.batch_size


@pytest.mark.parametrize(
    ("objective", "expected", "cost"),
    [("literal", (2, 2, 1024), 8.9275e-5), ("literal-per-sample", (2, 2, 16), 2.3792e-2)],
)
def test_argmins_on_the_papers_constants(objective, expected, cost):
    best = planner.search(table_8(), objective)[0]
    assert setting(best) == expected
    assert best.cost == pytest.approx(cost, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("split", [(50, 14), (48, 16), (40, 24), (36, 28), (14, 50)])
def test_argmins_do_not_depend_on_the_split_of_cores(split):
    assert setting(planner.search(table_8(*split), "literal")[0]) == (2, 2, 1024)
    assert setting(planner.search(table_8(*split), "literal-per-sample")[0]) == (2, 2, 16)


def test_epoch_objective_by_hand():
    problem = Problem(
        active=party("active", 4, (0.002, 0.5), sync_seconds=0.01),
        passive=party("passive", 2, (0.001, 0.5), sync_seconds=0.03),
        num_rows=1000,
        row_bytes=100.0,
        bandwidth=1e6,
    )
    # B = 100: T_A = 0.02, T_P = 0.01 x 3/2 (three workers on two cores); 10 batches of 0.01 s each on the link
    assert planner.cost(problem, 4, 3, 100) == pytest.approx(10 * (0.02 / 3 + 0.01) + 0.09)
    # both directions of the link at a time: 0.005 s; one batch's way of .02 + .01 + .01 s, the others behind it: two
    # more of the active workers' turns (10 batches of four), four of the passive ones' (on two cores), nine transfers
    assert planner.cost(problem, 4, 3, 100, "pipeline") == pytest.approx(
        0.04 + max(2 * 0.02, 4 * 0.01, 9 * 0.005) + 0.09
    )


def test_messages_lengthen_every_batch_but_of_the_literal_objective():
    active, passive = party("active", 4, (0.002, 0.5)), party("passive", 2, (0.001, 0.5))
    quiet = Problem(active=active, passive=passive, num_rows=1000)
    talking = dataclasses.replace(quiet, active=dataclasses.replace(active, message_seconds=0.003))
    # B = 100: ten batches over two workers
    for objective in ("epoch", "pipeline"):
        more = planner.cost(talking, 2, 2, 100, objective) - planner.cost(quiet, 2, 2, 100, objective)
        assert more == pytest.approx(10 * 0.003 / 2)
    by_rows = dataclasses.replace(quiet, active=dataclasses.replace(active, message_row_seconds=3e-5))
    assert planner.cost(by_rows, 2, 2, 100) == pytest.approx(planner.cost(talking, 2, 2, 100))
    assert planner.cost(talking, 2, 2, 100, "literal") == planner.cost(quiet, 2, 2, 100, "literal")


def test_more_workers_than_cores_do_not_help():
    problem = Problem(
        active=party("active", 8, (0.001, 0.6), sync_seconds=1e-4),
        passive=party("passive", 8, (0.001, 0.6), sync_seconds=1e-4),
        num_rows=10_000,
    )
    best = planner.search(problem)[0]
    assert (best.num_active_workers, best.num_passive_workers) == (8, 8)


def test_memory_limits_the_batch():
    tight = {"memory_base": 100.0, "memory_per_batch": PowerLaw(2.0, 1.0), "memory_available": 612.0}
    problem = Problem(active=party("active", 2, (0.1, 0.1), **tight), passive=party("passive", 2, (0.1, 0.1)))
    assert planner.max_batch_size((problem.active, problem.passive)) == pytest.approx(256)
    assert {made.batch_size for made in planner.search(problem, "literal")} == {16, 32, 64, 128, 256}
    with pytest.raises(BadInput, match="memory"):
        planner.search(problem, batch_sizes=(512,))


def test_several_passive_parties_are_planned_against_the_weakest():
    slow, fast = party("passive", 4, (0.01, 0.5)), party("passive", 8, (0.01, 0.5))
    assert planner.weakest([fast, slow]) == slow


def profile(role: str, **changes):
    return {
        "role": role,
        "cores": 4,
        "phases": [{"scale": 0.001, "exponent": 0.7}],
        "memory_base": 1e8,
        "memory_per_batch": {"scale": 1e4, "exponent": 1.0},
        "memory_available": 1e9,
        "sync_seconds": 1e-3,
        **changes,
    }


def test_a_profile_may_state_what_messages_cost():
    assert planner.profile_from(profile("active")).message_seconds == 0.0
    assert planner.profile_from(profile("active", message_seconds=4e-4)).message_seconds == 4e-4


@pytest.mark.slow
def test_plan_from_files():
    profiles = [profile("active", num_rows=5000), profile("passive"), profile("passive", cores=2)]
    made = quickest_epoch(config_of(), profiles)
    assert made["num_rows"] == 5000
    assert made["max_in_flight"] >= made["prefetch"] >= 2
    assert made["predicted_epoch_seconds"] == made["best_by_objective"]["replay"][0]["cost"]
    assert made["given_epoch_seconds"] > made["predicted_epoch_seconds"]
    chosen = {name: made[name] for name in ("num_active_workers", "num_passive_workers", "batch_size", "prefetch")}
    again = quickest_epoch(config_of(**chosen, max_in_flight=made["max_in_flight"]), profiles)
    assert again["given_epoch_seconds"] == pytest.approx(made["predicted_epoch_seconds"])


def test_a_link_that_one_party_states_is_the_link():
    profiles = [profile("active", bandwidth=1e9, latency=0.02), profile("passive")]
    made = planner.problem_of(config_of(), profiles)
    assert (made.bandwidth, made.latency) == (1e9, 0.02)
    assert planner.problem_of(config_of(), [profile("active"), profile("passive")]).bandwidth == LAN.bandwidth


@pytest.mark.parametrize(
    ("profiles", "named"),
    [
        ([profile("active")], "0 passive"),
        ([profile("active"), profile("active"), profile("passive")], "2 active"),
        ([profile("active"), {"role": "passive"}], "cores"),
        ([profile("active"), profile("boss")], "boss"),
        ([profile("active"), profile("passive", cores="many")], "cores: 'many' is not allowed"),
        ([profile("active"), profile("passive", cores=0)], "cores: 0 is not allowed"),
        ([profile("active"), profile("passive", cores=1.5)], "cores: 1.5 .* whole"),
        ([profile("active", latency="slow"), profile("passive")], "latency: 'slow' is not allowed"),
        ([profile("active", latency=-1), profile("passive")], "latency: -1 is not allowed"),
        ([profile("active", bandwidth=0), profile("passive")], "bandwidth: 0 .* above 0"),
        ([profile("active", bandwidth=math.nan), profile("passive")], "bandwidth: nan"),
        ([profile("active", num_rows=0), profile("passive")], "num_rows: 0"),
        ([profile("active", num_rows=0.5), profile("passive", num_rows=9)], "num_rows: 0.5 .* 1 or more"),
        ([profile("active", phases=[]), profile("passive")], "phases: "),
        ([profile("active", phases=[{"scale": 0, "exponent": 1}]), profile("passive")], "phases: every scale is 0"),
        ([profile("active", phases=[5]), profile("passive")], "phases: 5 .* a table"),
        ([profile("active", phases=[{"scale": -1, "exponent": 1}]), profile("passive")], "phases: scale: -1"),
        ([profile("active", phases=[{"scale": 1, "exponent": 400}]), profile("passive")], "exponent: 400"),
        ([profile("active", memory_per_batch={"scale": 1, "exponent": 0}), profile("passive")], "memory_per_batch"),
        ([profile("active", local_bandwidth=0), profile("passive")], "local_bandwidth: 0"),
        ([profile("active", broker_seconds=-1), profile("passive")], "broker_seconds: -1"),
        ([profile("active", latancy=1), profile("passive")], "unknown key 'latancy'"),
    ],
)
def test_bad_profiles_are_named(profiles, named):
    with pytest.raises(BadInput, match=named):
        quickest_epoch(config_of(), profiles)


@pytest.mark.parametrize(
    "given", [{"algorithm": "avfl", "num_active_workers": 1, "num_passive_workers": 1}, {"local_updates": 5}]
)
def test_settings_whose_epochs_are_not_worked_out_are_refused(given):
    with pytest.raises(BadInput, match=next(iter(given))):
        planner.plan(config_of(**given), [profile("active"), profile("passive")], Planning())


NO_MEMORY = {"memory_base": 0.0, "memory_per_batch": PowerLaw(0.0, 1.0), "memory_available": 1.0, "sync_seconds": 0.0}
ACTIVE = PartyProfile(role="active", cores=8, phases=(PowerLaw(0.004, 0.0),), **NO_MEMORY)
PASSIVE = PartyProfile(role="passive", cores=8, phases=(PowerLaw(0.001, 0.0), PowerLaw(0.001, 0.0)), **NO_MEMORY)


def test_hops_by_hand():
    problem = Problem(active=ACTIVE, passive=PASSIVE, num_rows=1000, latency=0.01)
    # 10 batches; one's way is eight hops and 6 ms, and four more turns of the two active workers
    assert planner.cost(problem, 2, 2, 100, "pipeline") == pytest.approx(0.086 + 4 * 0.004)
    sent = dataclasses.replace(problem, transfer="push")
    assert planner.cost(sent, 2, 2, 100, "pipeline") == pytest.approx(0.056 + 4 * 0.004)
    # two epochs without a pause share the ends
    twice = dataclasses.replace(sent, num_epochs=2)
    assert planner.cost(twice, 2, 2, 100, "pipeline") == pytest.approx((0.056 + 9 * 0.004) / 2)
    # a private link's transfer, 100 rows x 10 bytes at 1e5 bytes a second, is on the way but blocks nobody
    private = dataclasses.replace(problem, row_bytes=10.0, bandwidth=1e5, shared_link=False)
    assert planner.cost(private, 2, 2, 100, "pipeline") == pytest.approx(0.096 + 4 * 0.004)
    shared = dataclasses.replace(private, shared_link=True)
    # embeddings and gradients share nothing: they go in opposite directions
    assert planner.cost(shared, 2, 2, 100, "pipeline") == pytest.approx(0.096 + 9 * 0.005)
    # 46 ms of way at 2 ms a batch, and one more for each of four workers; never more than there are
    many = dataclasses.replace(sent, num_rows=10_000)
    assert planner.window(many, planner.Plan(2, 2, 100, 0.0)) == 23 + 4
    assert planner.window(sent, planner.Plan(2, 2, 100, 0.0)) == 10


def test_a_server_that_steps_bounds_what_many_workers_gain():
    active = party("active", 50, (0.004, 0.0), server_step_seconds=0.001)
    problem = Problem(active=active, passive=party("passive", 50, (1e-6, 0.0)), num_rows=10_000, steps_at_server=True)
    costs = [planner.cost(problem, w, 2, 100, "pipeline") for w in (1, 2, 4, 8)]
    assert costs == pytest.approx([0.4, 0.2, 0.1, 0.1], rel=1e-3)


@pytest.mark.slow
def test_parties_of_one_host_share_its_cores():
    apart = [profile("active", cores=2, num_rows=20_000), profile("passive", cores=2)]
    together = [{**one, "host": "a"} for one in apart]
    config = config_of(num_active_workers=2, num_passive_workers=2, batch_size=100, max_in_flight=24)
    alone, shared = (planner.predict(config, planner.problem_of(config, each)) for each in (apart, together))
    # 200 batches, all phases of both sides, over two cores
    assert shared == pytest.approx(200 * 2 * 0.001 * 100**0.7 / 2, rel=0.03)
    assert alone < 0.6 * shared
    elsewhere = [together[0], {**together[1], "host": "b"}]
    assert planner.predict(config, planner.problem_of(config, elsewhere)) == alone


# --- to a target ------------------------------------------------------------------------------------------------------

FLAT = {"phases": [{"scale": 0.002, "exponent": 0.0}, {"scale": 0.002, "exponent": 0.0}], "num_features": 4}
SMALL_PROFILES = [
    profile("active", cores=1, num_rows=250, price_per_core_hour=0.36, bandwidth=1e7, latency=1e-3, **FLAT),
    profile("passive", cores=1, price_per_core_hour=0.36, price_per_gb=0.1, **FLAT),
]
SMALL = {"num_layers": 2, "hidden_size": 8, "embedding_size": 4, "target": 0.9, "num_epochs": 10}


@pytest.fixture(scope="module")
def planned():
    """A plan for 250 training rows, whose batches take 4 ms at either party, on one core each: and what it told."""
    said: list[str] = []
    data = planner.generated(config_of(**SMALL), SMALL_PROFILES)
    planning = Planning(data=data, time_limit=3600.0, tell=said.append)
    return planner.plan(config_of(**SMALL), SMALL_PROFILES, planning), said, data


@pytest.mark.slow
def test_the_choice_reaches_the_target_sooner_than_the_quickest_epoch(planned):
    made, said, data = planned
    problem = planner.problem_of(config_of(**SMALL), SMALL_PROFILES)
    rehearsal = Rehearsal(problem, data)
    assert made["num_rows"] == rehearsal.num_rows(config_of(**SMALL)) == pytest.approx(250, abs=2)
    quickest = quickest_epoch(config_of(**SMALL), SMALL_PROFILES)
    names = ("num_active_workers", "num_passive_workers", "batch_size", "max_in_flight", "prefetch")
    old = config_of(**{**SMALL, **{name: quickest[name] for name in names}}).at(made["num_rows"])
    costs = [rehearsal(Pilot(old, seed, math.inf)).cost or math.inf for seed in (7, 8)]
    chosen = config_of(**{**SMALL, **{name: made[name] for name in (*names, "learning_rate")}}).at(made["num_rows"])
    again = [rehearsal(Pilot(chosen, seed, math.inf)).cost or math.inf for seed in (7, 8)]
    assert sum(again) < 0.8 * sum(costs)
    assert said[0].startswith("rung 1: ")


@pytest.mark.slow
def test_a_plan_tells_seconds_bytes_dollars_and_the_epoch(planned):
    made, _, _ = planned
    best = made["finalists"][0]
    assert (
        made["seconds_to_target"]
        == best["seconds_to_target"]
        <= min(line["seconds_to_target"] or math.inf for line in made["finalists"][:3])
    )
    workers = made["num_active_workers"] + made["num_passive_workers"]
    expected = 0.36 * workers * made["seconds_to_target"] / 3600 + 0.1 * made["bytes_to_target"] / 1e9
    assert made["dollars_to_target"] == pytest.approx(expected)
    assert made["epoch_seconds"] > 0
    assert made["is_complete"]
    assert made["seeds"] == 12


@pytest.mark.slow
def test_a_target_that_nobody_reaches_is_refused_with_one_that_is():
    config = config_of(**{**SMALL, "target": 2.0, "num_epochs": 1})
    with pytest.raises(BadInput, match=r"target: 2 .* give target=") as refused:
        planner.plan(config, SMALL_PROFILES, Planning(time_limit=3600.0))
    nearest, eased = map(float, re.findall(r"came to ([\d.]+): give target=([\d.]+),", str(refused.value))[0])
    assert 0.98 * nearest < eased <= nearest


@pytest.mark.slow
def test_a_target_of_untrained_models_is_refused():
    with pytest.raises(BadInput, match="never trained reach it"):
        planner.plan(config_of(**{**SMALL, "target": 0.01}), SMALL_PROFILES, Planning(time_limit=3600.0))


@pytest.mark.slow
def test_a_plan_that_the_time_limit_ends_says_so(monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(Pilots, "is_late", property(lambda pilots: pilots.num_run >= 20))
    made = planner.plan(config_of(**SMALL), SMALL_PROFILES, Planning(tell=said.append))
    assert not made["is_complete"]
    assert said[-1] == "ended by the limit of 600 s: give a larger --time-limit"


@pytest.mark.slow
def test_a_slow_link_has_candidates_of_a_small_prefetch_which_reach_an_easy_target_sooner():
    """All that is prefetched shares the link, 13 ms a batch: the first of many comes as late as the last."""
    slow = [{**SMALL_PROFILES[0], "bandwidth": 2e4, "latency": 0.1}, SMALL_PROFILES[1]]
    config = config_of(**{**SMALL, "target": 0.7})
    problem = planner.problem_of(config, slow)
    rehearsal = Rehearsal(problem, planner.generated(config, slow))
    search = planner.TargetSearch(config, problem, rehearsal, Planning())
    full = search.setting(planner.Plan(1, 1, 16, 0.0), 0.1)
    small = search.setting(planner.Plan(1, 1, 16, 0.0), 0.1, 1 / 8)
    assert {full, small} <= set(search.candidates())
    assert {one.prefetch for one in search.near(full)} >= {full.prefetch, round(full.prefetch / 2)}
    assert full not in search.near(full)
    costs = [rehearsal(Pilot(one, 7, math.inf)).cost for one in (full, small)]
    assert 0 < costs[1] < 0.8 * costs[0]


def test_no_worker_is_a_candidate_whom_an_epoch_does_not_need():
    plans = [planner.Plan(1, 1, 64, 1.0), planner.Plan(2, 1, 64, 0.9), planner.Plan(2, 2, 64, 0.5)]
    assert planner.without_idle(plans) == [plans[0], plans[2]]
    assert planner.Plan(2, 1, 128, 0.9) in planner.without_idle([*plans, planner.Plan(2, 1, 128, 0.9)])
    assert [planner.beside(8, by) for by in (-1, 0, 1)] == [6, 8, 12]
    assert planner.beside(48, 1) == 48


def test_prices_are_known_for_all_parties_or_for_none():
    config = config_of(num_active_workers=2, num_passive_workers=3)
    assert planner.Prices.of([profile("active"), profile("passive")]).dollars(config, 3600.0, 1e9) is None
    both = [profile("active", price_per_core_hour=1.0), profile("passive", price_per_core_hour=2.0, price_per_gb=0.5)]
    assert planner.Prices.of(both).dollars(config, 3600.0, 2e9) == pytest.approx(2 * 1 + 3 * 2 + 1)
    with pytest.raises(BadInput, match="stated by 1 of 2"):
        planner.Prices.of([both[0], profile("passive")])


def test_rows_and_profiles_are_of_as_many_parties():
    data = planner.generated(config_of(), [profile("active", num_rows=100), profile("passive")])
    problem = planner.problem_of(config_of(), [profile("active"), profile("passive"), profile("passive")])
    with pytest.raises(BadInput, match="2 of passive parties given for data of 1"):
        check_parties(data, problem)
