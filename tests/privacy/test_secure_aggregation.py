import numpy as np
import pytest
from scipy.stats import chisquare, kstest

from fedactors.privacy.secure_aggregation import (
    FixedPoint,
    SecureSumClient,
    SecureSumError,
    mask_stream,
    masked_vector,
    new_key_pair,
    pair_seeds,
    reveal,
    unmasked_sum,
)

NAMES = ("ann", "bob", "cy", "dee")
POINT = FixedPoint(num_clients=4)


class Round:
    def __init__(self, length=50, seed=0, context=b"round-1", values=None):
        rng = np.random.default_rng(seed)
        keys = {name: new_key_pair(rng.bytes) for name in NAMES}
        public = {name: pair.public for name, pair in keys.items()}
        self.values = values or {name: rng.normal(size=length) for name in NAMES}
        self.seeds = {name: pair_seeds(name, keys[name], public, context) for name in NAMES}
        self.own = {name: rng.bytes(32) for name in NAMES}
        self.masked = {
            name: masked_vector(self.values[name], name, self.seeds[name], self.own[name], POINT) for name in NAMES
        }

    def reveals(self, arrived):
        return {name: reveal(name, self.seeds[name], self.own[name], arrived) for name in arrived}


def plain_sum(values):
    words = sum(POINT.encode(v).view(np.int64) for v in values)
    return words / 2.0**POINT.fraction_bits


def test_both_ends_of_a_pair_derive_one_seed_and_contexts_differ():
    one, other = Round(), Round(context=b"round-2")
    assert one.seeds["ann"]["bob"] == one.seeds["bob"]["ann"]
    assert one.seeds["ann"]["bob"] != one.seeds["ann"]["cy"]
    assert one.seeds["ann"]["bob"] != other.seeds["ann"]["bob"]


def test_masks_cancel_exactly():
    made = Round()
    total = unmasked_sum(made.masked, made.reveals(NAMES), NAMES, POINT)
    np.testing.assert_array_equal(total, plain_sum(made.values.values()))
    np.testing.assert_allclose(total, sum(made.values.values()), rtol=0, atol=4 * 2.0**-25)


@pytest.mark.parametrize("dropped", [("bob",), ("ann", "dee"), ("cy",)])
def test_a_client_may_drop_before_its_vector_arrives(dropped):
    made = Round()
    arrived = [name for name in NAMES if name not in dropped]
    masked = {name: made.masked[name] for name in reversed(arrived)}
    total = unmasked_sum(masked, made.reveals(arrived), NAMES, POINT)
    np.testing.assert_array_equal(total, plain_sum(made.values[name] for name in arrived))


def test_a_late_vector_stays_hidden_after_its_pair_masks_are_revealed():
    made = Round(length=20_000, values={name: np.zeros(20_000) for name in NAMES})
    arrived = ("ann", "cy", "dee")
    words = made.masked["bob"]
    for name in arrived:
        stream = mask_stream(made.reveals(arrived)[name].dropped_seeds["bob"], len(words))
        words = words - stream if name > "bob" else words + stream
    assert kstest(words / 2.0**64, "uniform").pvalue > 1e-3


def test_a_single_masked_vector_is_indistinguishable_from_noise():
    length = 40_000
    made = Round(length=length, values={name: np.full(length, 3.25) for name in NAMES})
    for name in NAMES:
        words = made.masked[name]
        assert kstest(words / 2.0**64, "uniform").pvalue > 1e-3
        for shift in (0, 24, 56):
            counts = np.bincount(((words >> np.uint64(shift)) & np.uint64(255)).astype(int), minlength=256)
            assert chisquare(counts).pvalue > 1e-3
    assert abs(np.corrcoef(made.masked["ann"] / 2.0**64, made.masked["bob"] / 2.0**64)[0, 1]) < 4 / np.sqrt(length)


def test_without_the_reveals_the_sum_is_refused():
    made = Round()
    reveals = made.reveals(NAMES)
    del reveals["cy"]
    with pytest.raises(SecureSumError, match="no reveal from cy"):
        unmasked_sum(made.masked, reveals, NAMES, POINT)
    arrived = ("ann", "bob", "cy")
    with pytest.raises(SecureSumError, match="ann did not reveal its mask with dee"):
        unmasked_sum({n: made.masked[n] for n in arrived}, made.reveals(NAMES), NAMES, POINT)
    with pytest.raises(SecureSumError, match="only 1 of 4"):
        unmasked_sum({"ann": made.masked["ann"]}, made.reveals(NAMES), NAMES, POINT)


def test_a_client_reveals_only_what_is_safe():
    made = Round()
    found = made.reveals(("ann", "bob", "cy"))["ann"]
    assert set(found.dropped_seeds) == {"dee"}
    with pytest.raises(ValueError, match="reveal nothing"):
        reveal("ann", made.seeds["ann"], made.own["ann"], ("bob", "cy"))
    with pytest.raises(ValueError, match="the vector itself"):
        reveal("ann", made.seeds["ann"], made.own["ann"], ("ann",))
    with pytest.raises(ValueError, match="no part"):
        reveal("ann", made.seeds["ann"], made.own["ann"], ("ann", "eve"))


def test_fixed_point_refuses_what_could_overflow():
    with pytest.raises(ValueError, match="fixed point holds"):
        POINT.encode(np.array([POINT.largest * 1.01]))
    with pytest.raises(ValueError, match="fixed point holds"):
        POINT.encode(np.array([np.nan]))
    extreme = np.array([-POINT.largest, POINT.largest])
    np.testing.assert_array_equal(POINT.decode(POINT.encode(extreme) * np.uint64(4)), 4 * extreme)


def test_set_up_errors_and_private_keys_stay_out_of_text():
    made = Round()
    with pytest.raises(ValueError, match="set for 2 clients"):
        masked_vector(np.zeros(3), "ann", made.seeds["ann"], bytes(32), FixedPoint(num_clients=2))
    with pytest.raises(ValueError, match="at least two"):
        masked_vector(np.zeros(3), "ann", {}, bytes(32), POINT)
    pair = new_key_pair()
    assert repr(pair.private) not in repr(pair)
    assert new_key_pair().public != pair.public


def clients(seed=0):
    rng = np.random.default_rng(seed)
    made = {name: SecureSumClient(name, POINT, rng.bytes) for name in NAMES}
    public = {name: client.public_key for name, client in made.items()}
    for client in made.values():
        client.agree(public)
    return made


def test_clients_sum_over_rounds_with_a_dropout():
    made, rng = clients(), np.random.default_rng(1)
    for context, dropped in ((b"1", ()), (b"2", ("cy",)), (b"3", ())):
        values = {name: rng.normal(size=10) for name in NAMES}
        masked = {name: made[name].mask(values[name], context) for name in NAMES}
        arrived = [name for name in NAMES if name not in dropped]
        reveals = {name: made[name].reveal(context, arrived) for name in arrived}
        total = unmasked_sum({name: masked[name] for name in arrived}, reveals, NAMES, POINT)
        np.testing.assert_array_equal(total, plain_sum(values[name] for name in arrived))


def test_a_client_masks_and_reveals_a_context_once():
    made = clients()
    made["ann"].mask(np.zeros(3), b"1")
    with pytest.raises(ValueError, match="used before"):
        made["ann"].mask(np.zeros(3), b"1")
    with pytest.raises(ValueError, match="nothing to reveal"):
        made["ann"].reveal(b"2", NAMES)
    made["ann"].reveal(b"1", NAMES)
    with pytest.raises(ValueError, match="nothing to reveal"):
        made["ann"].reveal(b"1", ("ann", "bob"))


def test_a_refused_vector_leaves_the_context_free():
    made = clients()
    with pytest.raises(ValueError, match="fixed point holds"):
        made["ann"].mask(np.array([np.inf]), b"1")
    assert made["ann"].mask(np.zeros(1), b"1").shape == (1,)


def test_foreign_and_doubled_keys_are_refused():
    made = clients()
    with pytest.raises(ValueError, match="do not contain its own"):
        made["ann"].agree({"ann": bytes(32), "bob": made["bob"].public_key})
    with pytest.raises(ValueError, match="the same key"):
        made["ann"].agree({"ann": made["ann"].public_key, "bob": made["ann"].public_key})
