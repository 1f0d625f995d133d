"""MtcdConfig: the command line of the first run, and one line for each bad value."""

import pytest

from fedactors.config import build, parse_words
from fedactors.errors import BadInput
from fedactors.protocols.mtcd.config import MtcdConfig, require_relaxed_protocol, small_cluster_warnings


def make(words):
    return build(MtcdConfig, parse_words(words.split()))


def test_the_first_command_line():
    made = make("problem=ridge topology=path num_clients=40 num_tokens=4 num_hops=9 num_local_steps=20")
    assert (made.num_clients, made.num_tokens, made.num_hops, made.num_local_steps) == (40, 4, 9, 20)
    assert made.learning_rate == "auto"
    assert made.batch_size is None


def test_clusters_and_numbers_from_words():
    made = make("num_clients=4 num_tokens=2 clusters=[[0,1],[2,3]] learning_rate=1e-5 start=0,3 server_links=0,2")
    assert made.clusters == ((0, 1), (2, 3))
    assert made.learning_rate == 1e-5
    assert made.start == (0, 3)
    assert made.server_links == (0, 2)
    assert make("algorithm=stcd server_links=none compression=none noise=none").server_links is None
    assert make("mode=overlapping num_clients=4 num_tokens=9").num_tokens == 9


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("num_hops=-1", "num_hops: '-1' is not allowed"),
        ("num_local_steps=0", "num_local_steps: '0' is not allowed"),
        ("batch_size=0", "batch_size: '0' is not allowed"),
        ("num_tokens=0", "num_tokens: '0'"),
        ("num_clients=4 num_tokens=3 clusters=[[0,1],[2,3]]", "num_tokens: 3 is not allowed"),
        ("num_clients=4 num_tokens=5", "num_tokens: 5 is not allowed"),
        ("clusters=whole num_tokens=2", "num_tokens: 2 is not allowed"),
        ("num_clients=3 num_tokens=1 clusters=[[0,1],[1,2]]", "client 1 is in clusters 0 and 1"),
        ("num_clients=3 num_tokens=1 clusters=[[0,1]]", "clients [2] are in no cluster"),
        ("num_clients=2 num_tokens=1 clusters=[[0,1,5]]", "client 5 of cluster 0 does not exist"),
        ("num_clients=4 num_tokens=1 server_links=0,9", "server_links: client 9 is unknown"),
        ("server_links=none", "server_links: none is not allowed"),
        ("num_clients=4 num_tokens=2 start=1", "start"),
        ("compression=zip", "compression"),
        ("num_clients=4 num_tokens=2 start=1,2,3", "start: 3 clients for 2 tokens"),
        ("num_clients=4 num_tokens=2 start=1,7", "start: client 7 is unknown"),
        ("num_clients=4 num_tokens=2 start=all-clients", "start: all-clients needs"),
        ("learning_rate=0", "learning_rate"),
        ("learning_rate=nan", "learning_rate"),
        ("learning_rate=fast", "learning_rate"),
        ("dcpa_dual_step=-1", "dcpa_dual_step"),
        ("aggregation=concatenation", "aggregation"),
        ("algorithm=dcpa problem=network", "algorithm"),
        ("algorithm=dcpa batch_size=10", "batch_size"),
        ("algorithm=stcd batch_size=10", "batch_size"),
        ("local_arithmetic=gram problem=sparse-logistic", "local_arithmetic"),
        ("algorithm=svfl num_tokens=1", "num_tokens: 1 is not allowed for svfl, which has no token"),
        ("algorithm=dcpa num_tokens=4", "num_tokens: 4 is not allowed for dcpa"),
        ("algorithm=stcd num_tokens=4", "num_tokens: 4 is not allowed for stcd, which has one"),
        ("walk=sweep algorithm=stcd", "walk: sweep is not allowed with algorithm=stcd"),
        ("walk=sweep num_clients=4 num_tokens=2 start=1,2", "walk: sweep is not allowed with start"),
        ("backtracking=true problem=network", "backtracking: true is not allowed with problem=network"),
        ("backtracking=true algorithm=dcpa", "backtracking"),
        ("backtracking=true local_arithmetic=gram", "backtracking"),
        ("link_cost_ratio=0", "link_cost_ratio"),
        ("compression_ratio=0", "compression_ratio"),
        ("num_hop=3", "did you mean num_hops"),
    ],
)
def test_bad_input_is_one_line_that_names_the_field(words, line):
    with pytest.raises(BadInput) as caught:
        make(words)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_user_data_needs_the_opt_in():
    with pytest.raises(BadInput, match="relaxed_protocol"):
        require_relaxed_protocol(make("num_hops=1"))
    require_relaxed_protocol(make("relaxed_protocol=true"))


def test_small_clusters_are_warned_about():
    settings = make("num_clients=5 num_tokens=1")
    assert small_cluster_warnings(settings, ((0, 1, 2), (3, 4))) == [
        "cluster 1 has 2 client(s), fewer than min_cluster_size=3: changes of Z between its visits can be attributed "
        "to single clients"
    ]
    assert "exactly" in small_cluster_warnings(make("num_clients=2 num_tokens=1"), ((0, 1),))[-1]


@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        ("", 4),
        ("num_clients=6", 3),
        ("num_clients=1", 1),
        ("num_clients=4 clusters=[[0,1],[2,3]]", 2),
        ("clusters=whole", 1),
        ("num_clients=5 start=all-clients", 5),
        ("start=3,4", 2),
        ("algorithm=stcd", 1),
        ("algorithm=svfl", 0),
    ],
)
def test_how_many_tokens_there_are_where_nobody_says(words, tokens):
    made = make(words)
    assert made.tokens == tokens
    # what was settled is settled again to the same
    assert (
        build(
            MtcdConfig,
            {
                "algorithm": made.algorithm,
                "num_clients": made.num_clients,
                "clusters": made.clusters,
                "start": made.start,
                "num_tokens": made.num_tokens,
            },
        ).tokens
        == tokens
    )
