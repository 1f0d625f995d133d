"""The actors on the simulated runtime: oracle, costs, repetition, resume, privacy."""

import itertools

import numpy as np
import pytest

from fedactors.actors.context import derived_seed
from fedactors.errors import BadInput, Diverged
from fedactors.protocols.mtcd import algorithm as al
from fedactors.protocols.mtcd import objective as ob
from fedactors.protocols.mtcd.data import load_data
from fedactors.protocols.mtcd.roaming import Roaming, make_graph, next_client, plan_roaming, walk_seed
from fedactors.runtime import snapshots
from tests.arrays import arrays_in
from tests.protocols.mtcd import by_hand
from tests.protocols.mtcd.running import Watched, config_of, merged, simulate

ALGORITHMS = ["mtcd", "stcd", "svfl", "dcpa"]


def theta_of(kept, client, name="theta"):
    _, found = kept.checkpoints[-1]
    return snapshots.unpack(snapshots.unseal(found.actors[client], "test")["state"][name])


def test_one_checkpoint_is_the_column_of_a_client_with_one_feature_and_the_labels():
    words = "topology=complete num_features=6 learning_rate=0.002"
    _, kept, _ = simulate(words)
    state = snapshots.unseal(kept.checkpoints[-1][1].actors["server"], "server")["state"]
    known, labels = snapshots.unpack(state["known"]), snapshots.unpack(state["labels"])
    data = load_data(config_of(merged(words)), "synthetic", 3)
    for client in range(6):
        column = known[client] / theta_of(kept, f"client-{client}")[0]
        np.testing.assert_allclose(column, data.load(client).train[:, 0], rtol=1e-9)
    np.testing.assert_array_equal(labels, data.labels()[0])


def numbers(kept):
    return [(index, dict(metrics)) for index, metrics in kept.rounds]


# --- the distributed run is the sequential one ---


@pytest.mark.parametrize("mode", ["token-per-cluster", "overlapping"])
@pytest.mark.parametrize("batch", ["none", "11"])
def test_the_actors_do_algorithm_2(mode, batch):
    """The same walks and steps, written as a loop over one process, give the same blocks."""
    words = f"topology=complete mode={mode} batch_size={batch} learning_rate=0.002"
    _, kept, _ = simulate(words)
    config = config_of(merged(words))
    data = load_data(config, "synthetic", 3)
    blocks, (labels, _) = [data.load(k).train for k in range(6)], data.labels()
    problem = ob.Ridge(10.0)
    plan = plan_roaming(config, make_graph(config, 3), 3)
    roaming = Roaming(plan)
    thetas = [np.zeros(4) for _ in blocks]
    seed = derived_seed(3, "all parties", "batches")
    for round_ in range(4):
        rows = al.batch_rows(seed, round_, 30, config.batch_size)
        start = by_hand.rebuild_token([al.represent(x, t, rows) for x, t in zip(blocks, thetas, strict=True)])
        copies = [{} for _ in blocks]
        issues = roaming.begin(round_)
        for issue in issues:
            z, client = start, issue.start
            seed_here = walk_seed(plan.seed, round_, issue.token)
            for hop in range(issue.num_hops + 1):
                if hop:
                    client = next_client(seed_here, hop, roaming.links(client, data.parties))
                theta = copies[client].get(issue.token, thetas[client])
                x, y = (blocks[client], labels) if rows is None else (blocks[client][rows], labels[rows])
                copies[client][issue.token], z = al.visit(
                    problem, x, y, theta, z, step=0.002, num_local_steps=3, num_samples=30
                )
        weight = 1 / len(issues) if mode == "overlapping" else 1.0
        thetas = [al.combine(t, c, weight) for t, c in zip(thetas, copies, strict=True)]
    for client, theta in enumerate(thetas):
        np.testing.assert_allclose(theta_of(kept, f"client-{client}"), theta, rtol=1e-12, atol=1e-14)


def test_no_edges_is_svfl_with_all_steps_at_once_exactly():
    words = "learning_rate=0.001 local_arithmetic=data"
    edgeless, kept, _ = simulate(f"topology=empty num_tokens=6 {words} num_hops=2 num_local_steps=4")
    parallel, also, _ = simulate(f"algorithm=svfl {words} num_local_steps=12")
    assert edgeless.metrics["training/objective"] == parallel.metrics["training/objective"]
    for client in range(6):
        assert theta_of(kept, f"client-{client}").tobytes() == theta_of(also, f"client-{client}").tobytes()


def test_one_token_over_the_whole_graph_without_syncing_between_is_stcd():
    words = "topology=ring num_hops=9 num_rounds=1 start=[2] learning_rate=0.002 local_arithmetic=data"
    roamed, _, _ = simulate(f"{words} num_tokens=1 clusters=whole")
    _, also, _ = simulate(f"algorithm=stcd {words} num_tokens=1")
    # the walks are drawn from other seeds; the objective falls alike, and STCD's own loop is checked hop by hop
    assert roamed.metrics["training/objective"] < roamed.extra["optimum"] * 50
    config = config_of(merged(f"algorithm=stcd {words} num_tokens=1"))
    data = load_data(config, "synthetic", 3)
    labels, graph = data.labels()[0], make_graph(config, 3)
    route = by_hand.lazy_walk(graph, 2, 9, walk_seed(derived_seed(3, "all parties", "walks"), 0, 0))
    thetas, z = [np.zeros(4) for _ in range(6)], np.zeros(30)
    for client in route:
        thetas[client], z = al.visit(
            ob.Ridge(10.0),
            data.load(client).train,
            labels,
            thetas[client],
            z,
            step=0.002,
            num_local_steps=3,
            num_samples=30,
        )
    for client in range(6):
        assert theta_of(also, f"client-{client}").tobytes() == thetas[client].tobytes()


def test_a_walk_in_stretches_is_the_walk_in_one():
    whole, _, _ = simulate("algorithm=stcd num_hops=19 num_rounds=1 num_tokens=1 topology=ring")
    parts, _, _ = simulate("algorithm=stcd num_hops=4 num_rounds=4 num_tokens=1 topology=ring")
    assert parts.metrics["training/objective"] == whole.metrics["training/objective"]
    assert parts.metrics["client_client_bytes"] == whole.metrics["client_client_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_reaches_the_minimum_of_a_small_ridge_problem(algorithm):
    words = f"algorithm={algorithm} num_rounds=400 record_every=100 topology=complete"
    result, _, _ = simulate(words)
    assert abs(result.metrics["gap"]) < 1e-10


@pytest.mark.slow
def test_the_objective_never_rises_with_one_token():
    _, kept, _ = simulate("num_tokens=1 clusters=whole num_rounds=30")
    values = [metrics["training/objective"] for _, metrics in kept.rounds]
    assert all(after <= before * (1 + 1e-13) for before, after in itertools.pairwise(values))


# --- costs ---


def test_the_ledger_shows_the_formula_of_mtcd():
    """Path of 6 in two clusters, a sweep over each: per round K h_k up, 2 tokens down, 2 x 2 hops."""
    words = "walk=sweep num_hops=2 num_rounds=5 link_cost_ratio=7 learning_rate=0.001"
    result, _, _ = simulate(words)
    size = 30 * 8
    every, _, _ = simulate(f"{words} batch_size=29")
    # with the full batch only clients that changed re-send, here all of them
    assert result.metrics["weighted_cost"] == 5 * by_hand.mtcd_round_cost(7 * size, 7 * size, size, 6, 2, 2)
    assert result.metrics["client_client_bytes"] == 5 * 2 * 2 * size
    small = 29 * 8
    assert every.metrics["weighted_cost"] == 5 * by_hand.mtcd_round_cost(7 * small, 7 * small, small, 6, 2, 2)
    # a step size that is looked for costs 30 vectors to each client and back
    found, _, _ = simulate(words.replace("learning_rate=0.001", ""))
    assert found.metrics["weighted_cost"] == result.metrics["weighted_cost"] + 30 * 2 * 6 * 7 * size


def test_only_clients_that_changed_send_again_with_the_full_batch():
    _, _, runtime = simulate("num_tokens=1 clusters=whole num_hops=0 num_rounds=3")
    sent = [total for total in runtime.ledger.totals() if total.type == "Representation"]
    assert sum(total.messages for total in sent) == 3


def test_the_ledger_shows_the_formulas_of_the_baselines():
    size = 30 * 8
    svfl, _, _ = simulate("algorithm=svfl num_rounds=5 link_cost_ratio=3 batch_size=29 learning_rate=0.001")
    assert svfl.metrics["weighted_cost"] == 5 * by_hand.svfl_round_cost(3 * 29 * 8, 3 * 29 * 8, 6)
    dcpa, _, _ = simulate("algorithm=dcpa num_rounds=7 topology=ring")
    assert dcpa.metrics["weighted_cost"] == 2 * 6 * 7 * size
    stcd, _, runtime = simulate("algorithm=stcd num_rounds=5 topology=complete num_tokens=1")
    moves = sum(total.messages for total in runtime.ledger.totals() if total.type == "Token")
    assert stcd.metrics["weighted_cost"] == moves * size
    assert moves <= 5 * 4 - 1


# --- the same seed, the same bytes ---


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "",
        "acceleration=true",
        "acceleration=true problem=sparse-logistic",
        "mode=overlapping topology=erdos-renyi edge_probability=0.6",
        "problem=sparse-logistic batch_size=10",
        "algorithm=stcd",
        "algorithm=svfl",
        "algorithm=dcpa",
        "compression=quantise batch_size=10",
        "compression=top-k noise=gaussian",
        "problem=network batch_size=10 num_samples=40 hidden_size=4",
        "problem=network algorithm=stcd num_samples=40 hidden_size=4 aggregation=concatenation",
    ],
)
def test_repeat_and_resume_at_every_checkpoint_are_exact(words):
    whole, kept, runtime = simulate(words)
    _, again, _ = simulate(words)
    assert repr(numbers(kept)) == repr(numbers(again))
    assert kept.rows == again.rows
    points = [found for label, found in kept.checkpoints if label == "last"]
    assert len(points) == 5
    for done, point in enumerate(points):
        resumed, rest, later = simulate(words, resume=point)
        assert repr(numbers(rest)) == repr(numbers(kept)[done + 1 :])
        assert repr(resumed.metrics) == repr(whole.metrics)
        assert later.ledger.totals() == runtime.ledger.totals()
        assert later.usage().seconds == runtime.usage().seconds


# --- what leaves a party ---


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_raw_feature_column_is_ever_in_a_message(algorithm):
    words = f"algorithm={algorithm} num_rounds=3 topology=complete"
    _, _, runtime = simulate(words, cls=Watched)
    data = load_data(config_of(merged(words)), "synthetic", 3)
    columns = np.concatenate([data.load(k).train for k in range(6)], axis=1).T
    columns /= np.linalg.norm(columns, axis=1, keepdims=True)
    vectors = [
        array for sender, receiver, sent in runtime.messages for array in arrays_in(sent) if array.shape == (30,)
    ]
    assert len(vectors) > 10
    for vector in vectors:
        length = np.linalg.norm(vector)
        # no column up to a factor, which exact copies would be the simplest case of
        assert length == 0 or np.abs(columns @ (vector / length)).max() < 0.999


def test_the_test_above_would_see_a_leak():
    words = "num_features=6 num_rounds=4 topology=complete num_hops=8"
    _, _, runtime = simulate(words, cls=Watched)
    data = load_data(config_of(merged(words)), "synthetic", 3)
    column = data.load(0).train[:, 0]
    # a client with a single feature sends that feature times its parameter: h_k itself is the leak
    sent = [m.h for sender, _, m in runtime.messages if type(m).__name__ == "Representation" and sender == "client-0"]
    assert any(abs(column @ h) > 0.999 * np.linalg.norm(column) * np.linalg.norm(h) > 0 for h in sent)


def test_tokens_carry_no_bytes_but_z():
    _, kept, _ = simulate("")
    assert {row[5] for row in kept.rows if row[4] in ("Token", "Representation")} == {240}
    assert {row[5] for row in kept.rows if row[4] in ("SyncTokens", "RoamingDone")} == {0}


# --- data that others hold, links that are not there ---


def test_clients_without_a_server_link_are_reached_over_their_neighbours():
    near, _, _ = simulate("num_tokens=1 clusters=whole num_hops=5 start=[0] topology=path")
    far, _, runtime = simulate("num_tokens=1 clusters=whole num_hops=5 start=[0] topology=path server_links=0,1")
    assert far.metrics["training/objective"] == near.metrics["training/objective"]
    assert far.metrics["client_client_bytes"] > near.metrics["client_client_bytes"]
    totals = [t for t in runtime.ledger.totals() if t.kind == "client-server" and t.sender != "server"]
    assert {t.sender for t in totals if t.type != "OrderKey"} <= {"client-0", "client-1"}
    # a key that relays do not learn goes to the server itself, once, before training
    assert all(t.messages == 1 for t in totals if t.type == "OrderKey")


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_named_data_set_is_dealt_to_the_clients_and_labels_are_shared(algorithm):
    words = f"problem=sparse-logistic algorithm={algorithm} num_rounds=2"
    result, kept, _ = simulate(words, data="breast-cancer")
    assert 0.5 < result.metrics["test/accuracy"] <= 1
    told = [row[2] for row in kept.rows if row[4] == "Labels" and row[3] != "driver"]
    assert len(told) == (6 if algorithm in ("mtcd", "svfl") else 5)
    assert "driver" not in {row[2] for row in kept.rows if row[4] == "Labels"}
    point = kept.checkpoints[1][1]
    resumed, _, _ = simulate(words, data="breast-cancer", resume=point)
    assert repr(resumed.metrics) == repr(result.metrics)


# --- steps that know the batch ---


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["mtcd", "svfl"])
@pytest.mark.parametrize("problem", ["ridge", "sparse-logistic"])
def test_the_default_step_does_not_diverge_with_mini_batches(algorithm, problem):
    words = f"algorithm={algorithm} problem={problem} num_samples=100 num_features=60 num_local_steps=20 batch_size=10"
    result, kept, _ = simulate(f"{words} num_rounds=60 topology=complete")
    values = [metrics["training/objective"] for _, metrics in kept.rounds]
    assert values[-1] < 0.9 * values[0]
    assert max(values) < 1.5 * values[0]
    assert result.extra["learning_rate"] > 0


def test_a_batch_of_all_rows_or_more_is_refused():
    for size in (30, 31):
        with pytest.raises(BadInput, match=f"batch_size: {size} is not allowed, there are 30 training rows"):
            simulate(f"batch_size={size}")


def test_a_run_that_diverges_names_a_smaller_step():
    with pytest.raises(Diverged, match=r"a safe value here is (\S+)") as raised:
        simulate("batch_size=5 learning_rate=1.0 num_rounds=50 topology=complete")
    assert float(str(raised.value).split()[-1]) <= 0.1


def test_backtracking_needs_no_norms_and_descends():
    result, kept, runtime = simulate("backtracking=true learning_rate=10 num_tokens=1 clusters=whole num_rounds=30")
    values = [metrics["training/objective"] for _, metrics in kept.rounds]
    assert all(after <= before * (1 + 1e-12) for before, after in itertools.pairwise(values))
    assert values[-1] < 0.3 * values[0]
    assert not {"Probe", "SquaredNorm"} & {total.type for total in runtime.ledger.totals()}
    assert result.extra["least_visit_probability"] > 0
