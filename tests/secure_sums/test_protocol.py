"""Secure sums by somebody who tries to break them: lost clients, a lying server, masks that should look like noise."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, chisquare, kstest

from fedactors.messages import codec
from fedactors.privacy.noise import LARGEST_SIGMA, discrete_gaussian
from fedactors.secure_sums import protocol
from fedactors.secure_sums.messages import (
    Arrived,
    Confirmation,
    Confirmations,
    DeliveredShares,
    Identity,
    Masked,
    Roster,
    SumCall,
    mask_stream,
    pair_seed,
)
from fedactors.secure_sums.primitives import (
    FixedPoint,
    LongIntegers,
    join,
    neighbour_graph,
    num_neighbours,
    split,
    threshold_of,
)
from fedactors.secure_sums.protocol import SecureSumClient, SecureSumError, SecureSumServer, unmasked_sum

FIVE = ("ann", "bob", "cy", "dee", "eve")


class Sums:
    """Clients and a server that have prepared their sums, honestly unless a test does otherwise."""

    def __init__(self, names=FIVE, num_sums=3, limit=8.0, only=None):
        self.names = tuple(sorted(names))
        self.point = FixedPoint(limit=limit, num_clients=len(names))
        identities = {name: Identity() for name in self.names}
        self.public = {name: one.public for name, one in identities.items()}
        self.clients = {
            name: SecureSumClient(name, identities[name], self.public, num_clients=len(names), only=only)
            for name in self.names
        }
        self.number = 0
        self.prepare(only or self.names, num_sums)

    def prepare(self, members, num_sums=3):
        self.number += 1
        self.server = SecureSumServer(SumCall(self.number, num_sums, tuple(sorted(members))), len(self.names))
        keys = {name: self.clients[name].advertise(self.server.call) for name in self.server.call.members}
        roster = self.server.roster(keys)
        sealed = {name: self.clients[name].share(roster) for name in members}
        for name, delivered in self.server.deliver(sealed).items():
            self.clients[name].take(delivered)

    def mask(self, values, of=None, **words):
        return {name: self.clients[name].mask(values[name], self.point, **words) for name in of or values}

    def finish(self, masked, confirming=None, unmasking=None):
        """Complete a sum: who confirms and who gives shares may be fewer than those whose vectors arrived."""
        arrived = self.server.arrived(masked)
        confirming = arrived.members if confirming is None else confirming
        found = {name: self.clients[name].confirm(arrived) for name in confirming}
        proof = self.server.confirmations(arrived, found)
        unmasking = confirming if unmasking is None else unmasking
        shares = {name: self.clients[name].unmask(proof) for name in unmasking}
        return self.point.decode(unmasked_sum(self.server.session, masked, shares, self.point.num_words))


def vectors(names=FIVE, length=40, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=length).clip(-4, 4) for name in names}


def close(sums, found, values, names):
    return np.abs(found - sum(values[name] for name in names)).max() <= sums.point.error(len(names)) * (1 + 1e-9)


# --- what it gives ---


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.integers(-(2**280), 2**280), min_size=5, max_size=5), st.sampled_from([(), ("bob",), ("ann", "eve")])
)
def test_whole_numbers_of_several_words_add_up_with_their_carries(wholes, lost):
    """The server reads the words of the total, and no more of the parts: digit by digit it would read their signs."""
    sums = Sums()
    sums.point = LongIntegers(num_clients=5)
    size, modulus = 4 * sums.point.num_words, 1 << 32 * sums.point.num_words

    def words(whole):
        return np.frombuffer((whole % modulus).to_bytes(size, "little"), "<u4").astype(float)[None]

    masked = sums.mask({name: words(whole) for name, whole in zip(FIVE, wholes, strict=True)})
    left = {name: one for name, one in masked.items() if name not in lost}
    total = sum(whole for name, whole in zip(FIVE, wholes, strict=True) if name not in lost)
    assert np.array_equal(sums.finish(left), words(total)[0])


def test_masked_words_of_whole_numbers_look_like_noise():
    sums = Sums(num_sums=40)
    sums.point = LongIntegers(num_clients=5)
    zeros = {name: np.zeros((40, sums.point.num_words)) for name in FIVE}
    words = np.concatenate([one.words for _ in range(40) for one in sums.mask(zeros).values()])
    assert kstest(words / 2.0**32, "uniform").pvalue > 1e-4


def test_the_sum_is_that_of_the_words_and_as_near_the_true_one_as_stated():
    sums, values = Sums(), vectors()
    steps = sums.point.steps_per_unit
    for _ in range(3):
        found = sums.finish(sums.mask(values, values_id=f"{_}"))
        np.testing.assert_allclose(found * steps, np.rint(found * steps), atol=1e-4)
        least = sum(np.floor(one * steps) for one in values.values())
        assert ((least <= np.rint(found * steps)) & (np.rint(found * steps) <= least + len(FIVE))).all()
        assert close(sums, found, values, FIVE)


def test_a_sum_that_is_done_again_has_the_same_words():
    sums, values = Sums(num_sums=2), vectors()
    found = [sums.finish(sums.mask(values, what="models", heard=heard)) for heard in (b"a", b"a")]
    np.testing.assert_array_equal(*found)
    sums.prepare(FIVE, 1)
    assert (sums.finish(sums.mask(values, what="models", heard=b"b")) != found[0]).any()


@pytest.mark.parametrize("lost", [("bob",), ("ann", "eve"), ("cy", "dee")])
@pytest.mark.parametrize("when", ["before its vector arrives", "before it confirms", "before it gives shares"])
def test_one_or_two_of_five_may_drop_out_at_any_moment(lost, when):
    sums, values = Sums(), vectors()
    left = [name for name in FIVE if name not in lost]
    if when == "before its vector arrives":
        masked = sums.mask(values, of=left)
        assert close(sums, sums.finish(masked), values, left)
        return
    masked = sums.mask(values)
    if when == "before it confirms":
        assert close(sums, sums.finish(masked, confirming=left), values, FIVE)
    else:
        assert close(sums, sums.finish(masked, unmasking=left), values, FIVE)


def test_three_of_five_lost_is_too_many_at_any_moment():
    left = ("ann", "bob")
    sums = Sums()
    masked = sums.mask(vectors())
    with pytest.raises(SecureSumError, match="2 vectors arrived, too few: 3"):
        sums.finish({name: masked[name] for name in left})
    with pytest.raises(SecureSumError, match="2 confirmed the survivors, too few: 3"):
        sums.finish(masked, confirming=left)
    sums.prepare(FIVE)
    masked = sums.mask(vectors())
    with pytest.raises(SecureSumError, match="2 shares of ann's secret, too few: 3"):
        sums.finish(masked, unmasking=left)


def test_later_sums_of_a_session_go_on_without_who_is_lost_and_a_new_session_too():
    sums, left = Sums(), ("ann", "cy", "dee", "eve")
    sums.finish(sums.mask(vectors()))
    for seed in (1, 2):
        values = vectors(seed=seed)
        assert close(sums, sums.finish(sums.mask(values, of=left)), values, left)
    sums.prepare(left)
    values = vectors(seed=3)
    assert close(sums, sums.finish(sums.mask(values, of=left[:3])), values, left[:3])


@pytest.mark.slow
def test_a_graph_of_neighbours_sums_a_hundred_clients_with_ten_lost():
    names = tuple(f"c{i:02}" for i in range(100))
    sums, values = Sums(names, num_sums=1), vectors(names, length=5)
    session = sums.server.session
    assert {len(session.neighbours(name)) for name in names} == {num_neighbours(100)}
    assert num_neighbours(100) < 99
    left = names[10:]
    assert close(sums, sums.finish(sums.mask(values, of=left)), values, left)


def test_the_graph_is_one_for_all_connected_and_complete_up_to_twenty():
    names = [f"c{i}" for i in range(300)]
    graph = neighbour_graph(names, b"x" * 32)
    assert graph == neighbour_graph(names[::-1], b"x" * 32) != neighbour_graph(names, b"y" * 32)
    assert all(name in graph[other] for name in names for other in graph[name])
    assert {len(others) for others in graph.values()} == {num_neighbours(300)}
    assert all(len(others) == 19 for others in neighbour_graph(names[:20], b"").values())
    assert num_neighbours(1000) < 200


# --- a server that lies ---


def test_two_views_of_who_arrived_give_nothing():
    """The split view of Bonawitz et al.: shares of a client's mask from some, and of its key from others."""
    sums, values = Sums(), vectors()
    masked = sums.mask(values)
    slot = masked["ann"].slot
    without_bob, everybody = Arrived(slot, ("ann", "cy", "dee", "eve")), Arrived(slot, FIVE)
    found = {name: sums.clients[name].confirm(without_bob) for name in ("ann", "cy")}
    found |= {name: sums.clients[name].confirm(everybody) for name in ("bob", "dee", "eve")}
    for group in (("ann", "cy"), ("bob", "dee", "eve")):
        local = Confirmations(slot, {name: found[name].signature for name in group})
        for victim in ("ann", "cy"):
            with pytest.raises(SecureSumError, match=r"confirmations are not allowed|not confirmed the same"):
                sums.clients[victim].unmask(local)
    # only the view of the majority can be completed: one sum, of one set
    proof = sums.server.confirmations(everybody, {name: found[name] for name in ("bob", "dee", "eve")})
    shares = {name: sums.clients[name].unmask(proof) for name in ("bob", "dee", "eve")}
    assert close(sums, sums.point.decode(unmasked_sum(sums.server.session, masked, shares)), values, FIVE)


@given(st.lists(st.booleans(), min_size=9, max_size=9), st.integers(3, 9))
@settings(max_examples=60, deadline=None)
def test_no_two_sets_of_survivors_gather_enough_signatures(votes, count):
    num_first = sum(votes[:count])
    assert min(num_first, count - num_first) < threshold_of(count)


def test_nobody_signs_two_sets_or_gives_both_shares_of_one_client():
    sums, values = Sums(), vectors()
    masked = sums.mask(values)
    arrived = sums.server.arrived(masked)
    found = {name: sums.clients[name].confirm(arrived) for name in FIVE}
    with pytest.raises(SecureSumError, match="confirmed before"):
        sums.clients["ann"].confirm(Arrived(arrived.slot, ("ann", "cy", "dee")))
    proof = sums.server.confirmations(arrived, found)
    sums.clients["ann"].unmask(proof)
    with pytest.raises(SecureSumError, match="given before"):
        sums.clients["ann"].unmask(proof)


def test_forged_borrowed_and_repeated_signatures_do_not_count():
    sums, values = Sums(), vectors()
    masked = sums.mask(values)
    arrived = sums.server.arrived(masked)
    found = {name: sums.clients[name].confirm(arrived).signature for name in FIVE}
    for forged in (
        {**found, "cy": bytes(64)},
        {**found, "cy": found["dee"]},
        {**found, "mallory": found["dee"]},
        {"ann": found["ann"], "bob": found["ann"], "cy": found["ann"]},
    ):
        with pytest.raises(SecureSumError, match="has not confirmed"):
            sums.clients["ann"].unmask(Confirmations(arrived.slot, forged))
    with pytest.raises(SecureSumError, match="2 confirmations are not allowed: 3"):
        sums.clients["ann"].unmask(Confirmations(arrived.slot, {name: found[name] for name in ("ann", "bob")}))


def test_signatures_of_one_sum_or_session_do_not_serve_another():
    sums, values = Sums(), vectors()
    first = sums.server.arrived(sums.mask(values, values_id="1"))
    signed = {name: sums.clients[name].confirm(first).signature for name in FIVE}
    second = sums.server.arrived(sums.mask(values, values_id="2"))
    sums.clients["ann"].confirm(second)
    with pytest.raises(SecureSumError, match="has not confirmed"):
        sums.clients["ann"].unmask(Confirmations(second.slot, signed))
    sums.prepare(FIVE)
    again = sums.server.arrived(sums.mask(values, values_id="1"))
    sums.clients["ann"].confirm(again)
    with pytest.raises(SecureSumError, match="has not confirmed"):
        sums.clients["ann"].unmask(Confirmations(again.slot, signed))


def fresh():
    """Five clients that have advertised, and not yet shared."""
    sums = Sums()
    sums.number += 1
    call = SumCall(sums.number, 2, FIVE)
    return sums, call, {name: sums.clients[name].advertise(call) for name in FIVE}


def test_swapped_keys_are_refused():
    sums, call, keys = fresh()
    evil = Identity()
    forger = SecureSumClient("bob", evil, {**sums.public, "bob": evil.public}, num_clients=5)
    forged = forger.advertise(call)
    with pytest.raises(SecureSumError, match="keys of bob do not carry bob's signature"):
        sums.clients["ann"].share(Roster({**keys, "bob": forged}))
    sums, call, keys = fresh()
    swapped = dataclasses.replace(keys["bob"], masking=keys["cy"].masking)
    with pytest.raises(SecureSumError, match="keys of bob"):
        sums.clients["ann"].share(Roster({**keys, "bob": swapped}))
    sums, call, keys = fresh()
    with pytest.raises(SecureSumError, match="keys of bob"):
        sums.clients["ann"].share(Roster({**keys, "bob": keys["cy"]}))
    sums, call, keys = fresh()
    with pytest.raises(SecureSumError, match="exactly the members' keys"):
        sums.clients["ann"].share(Roster({**keys, "ann": keys["cy"]}))


def test_keys_of_an_earlier_call_are_refused():
    sums, _, old = fresh()
    sums.number += 1
    call = SumCall(sums.number, 2, FIVE)
    keys = {name: sums.clients[name].advertise(call) for name in FIVE}
    with pytest.raises(SecureSumError, match="keys of bob"):
        sums.clients["ann"].share(Roster({**keys, "bob": old["bob"]}))
    with pytest.raises(SecureSumError, match=r"call \d is not newer"):
        sums.clients["cy"].advertise(call)


def test_keys_are_made_for_so_many_sums_that_are_not_added_up(monkeypatch):
    """Each takes time: a server that asks for them again and again, and for no sum, would keep a site busy."""
    monkeypatch.setattr(protocol, "MOST_UNUSED", 40)
    sums = Sums()
    for number in range(2, 13):
        sums.clients["ann"].advertise(SumCall(number, 3, FIVE))  # 36 after the 3 that are ready
    sums.number = 12
    with pytest.raises(SecureSumError, match=r"keys for 42 sums in turn and masked none: 40 at most"):
        sums.prepare(FIVE, 6)
    sums = Sums()
    for _ in range(8):  # whoever adds up may go on for good
        sums.prepare(FIVE, 30)
        sums.mask({name: np.ones(2) for name in FIVE})


def test_who_is_shown_another_roster_can_open_no_share():
    """A client that advertises twice, once for each half of the others: its keys are signed, the rosters differ."""
    sums = Sums()
    sums.number += 1
    call = SumCall(sums.number, 1, FIVE)
    keys = {name: sums.clients[name].advertise(call) for name in FIVE}
    helper = sums.clients["eve"]
    helper._call = SumCall(0, 0, ())
    other = helper.advertise(call)
    ann = sums.clients["ann"].share(Roster(keys))
    bob = sums.clients["bob"].share(Roster({**keys, "eve": other}))
    helper.share(Roster({**keys, "eve": other}))
    boxes = {"bob": bob.sealed["ann"], **dict.fromkeys(("cy", "dee", "eve"), ann.sealed["bob"])}
    with pytest.raises(SecureSumError, match="shares of bob do not open"):
        sums.clients["ann"].take(DeliveredShares(boxes))


def test_shares_for_another_or_altered_do_not_open():
    sums, _, keys = fresh()
    roster = Roster(keys)
    sealed = {name: sums.clients[name].share(roster) for name in FIVE}
    honest = {peer: sealed[peer].sealed["ann"] for peer in FIVE[1:]}
    flipped = bytes([honest["bob"][0] ^ 1]) + honest["bob"][1:]
    for wrong in (
        {**honest, "bob": sealed["bob"].sealed["cy"]},
        {**honest, "bob": honest["cy"]},
        {**honest, "bob": flipped},
    ):
        with pytest.raises(SecureSumError, match="do not open"):
            sums.clients["ann"].take(DeliveredShares(wrong))
    del honest["bob"]
    with pytest.raises(SecureSumError, match="not those of its neighbours"):
        sums.clients["ann"].take(DeliveredShares(honest))


@pytest.mark.parametrize(
    ("members", "why"),
    [
        (("ann", "bob"), "2 members are not allowed: 3"),
        (("bob", "cy", "dee"), "with its own"),
        (("ann", "ann", "bob"), "with its own"),
        (("ann", "bob", "cy", "mallory"), "no identity of mallory"),
    ],
)
def test_a_call_among_too_few_or_strangers_is_refused(members, why):
    with pytest.raises(SecureSumError, match=why):
        Sums().clients["ann"].advertise(SumCall(9, 1, members))


def test_too_few_survivors_and_strange_ones_are_refused():
    sums, values = Sums(), vectors()
    slot = sums.mask(values)["ann"].slot
    for members, why in (
        (("ann", "bob"), "2 survivors are not allowed: 3"),
        (("bob", "cy", "dee"), "with its own name"),
        (("ann", "bob", "bob"), "with its own name"),
        (("ann", "bob", "mallory"), "with its own name"),
    ):
        with pytest.raises(SecureSumError, match=why):
            sums.clients["ann"].confirm(Arrived(slot, members))
    with pytest.raises(SecureSumError, match="was not masked"):
        sums.clients["ann"].confirm(Arrived(slot + 1, FIVE))


def test_values_are_summed_in_one_company_only_whatever_the_session():
    """Two sums over the same values with different members would show a single client's as their difference."""
    sums, values = Sums(), vectors()
    sums.finish(sums.mask(values))
    left = ("ann", "bob", "cy", "dee")
    masked = sums.mask(values, of=left)
    for name in left:
        with pytest.raises(SecureSumError, match="summed before, among others"):
            sums.clients[name].confirm(sums.server.arrived(masked))
    sums.prepare(left)
    with pytest.raises(SecureSumError, match="summed before, among others"):
        sums.finish(sums.mask(values, of=left))
    # another name for equal values changes nothing
    sums = Sums()
    sums.finish(sums.mask(values, values_id="round 1"))
    with pytest.raises(SecureSumError, match="summed before, among others"):
        sums.finish(sums.mask(values, of=left, values_id="round 2"))
    # ids tell values apart that differ and mean the same, such as two dropouts of one representation
    sums = Sums()
    sums.finish(sums.mask(values, values_id="round 1"))
    with pytest.raises(SecureSumError, match="summed before, among others"):
        sums.finish(sums.mask(vectors(left, seed=1), of=left, values_id="round 1"))


def test_a_sum_that_was_given_up_unconfirmed_may_be_tried_with_others():
    sums, values = Sums(), vectors()
    sums.mask(values)
    left = ("ann", "bob", "cy", "dee")
    assert close(sums, sums.finish(sums.mask(values, of=left)), values, left)


def test_a_late_vector_stays_hidden_after_its_pair_masks_are_known():
    length = 20_000
    sums = Sums(num_sums=1)
    values = {name: np.zeros(length) for name in FIVE}
    masked = sums.mask(values)
    left = ("ann", "cy", "dee", "eve")
    arrived = Arrived(0, left)
    proof = sums.server.confirmations(arrived, {name: sums.clients[name].confirm(arrived) for name in left})
    shares = {name: sums.clients[name].unmask(proof) for name in left}
    unmasked_sum(sums.server.session, {name: masked[name] for name in left}, shares)
    words = masked["bob"].words
    key, session = sums.clients["bob"]._masking[0], sums.server.session  # what the server has found by now
    for peer in left:
        theirs = session.keys[peer].masking[0].tobytes()
        stream = mask_stream(pair_seed(key, theirs, session.id, 0, "bob", peer), length)
        words = words - stream if peer > "bob" else words + stream
    assert kstest(words / 2.0**32, "uniform").pvalue > 1e-4


# --- what a masked message looks like ---


def test_a_masked_message_cannot_be_told_from_noise():
    length, sums = 40_000, Sums(num_sums=2)
    seen = []
    for value in (3.25, 0.0):
        for one in sums.mask({name: np.full(length, value) for name in FIVE}).values():
            seen.append(one.words)
            assert kstest(one.words / 2.0**32, "uniform").pvalue > 1e-8
            for shift in (0, 8, 16, 24):
                counts = np.bincount((one.words >> np.uint32(shift)) & np.uint32(255), minlength=256)
                assert chisquare(counts).pvalue > 1e-8
            steps = np.diff(one.words)
            assert kstest(steps / 2.0**32, "uniform").pvalue > 1e-8
    correlation = np.asarray(np.corrcoef(np.stack(seen) / 2.0**32))
    rest = correlation[~np.eye(len(seen), dtype=bool)]
    assert np.abs(rest).max() < 6 / np.sqrt(length)
    # any two of one sum still hide behind the others' masks
    assert kstest((seen[0] + seen[1]) / 2.0**32, "uniform").pvalue > 1e-8


def test_no_key_or_seed_is_in_what_travels():
    sums, values = Sums(num_sums=1), vectors()
    client = sums.clients["ann"]
    seed, key = client._seeds[0], client._masking[0].private_bytes_raw()
    masked = sums.mask(values)
    shares = {name: sums.clients[name]._held["ann"].tobytes() for name in FIVE}
    sent = [codec.encode(one) for one in (*masked.values(), *sums.server.session.keys.values())]
    for frame in sent:
        assert seed not in frame
        assert key not in frame
        assert not [share for share in shares.values() if share[:32] in frame]


# --- numbers and noise ---


def test_fixed_point_refuses_what_could_overflow_and_states_its_error():
    point = FixedPoint(limit=8.0, num_clients=5)
    for value in (8.0001, np.nan, -np.inf):
        with pytest.raises(ValueError, match="secure sums are set to values up to 8"):
            point.encode(np.array([value]))
    extreme = np.array([-8.0, 8.0])
    total = sum(point.encode(extreme) for _ in range(5))
    np.testing.assert_allclose(point.decode(total), 5 * extreme, atol=point.error(5))
    values = np.random.default_rng(0).uniform(-8, 8, 10_000)
    assert np.abs(point.decode(point.encode(values)) - values).max() <= point.error(1)
    cut = point.decode(point.encode(values, towards_zero=True))
    assert (np.abs(cut) <= np.abs(values)).all()


def test_a_refused_vector_leaves_the_sum_free():
    sums, values = Sums(), vectors()
    with pytest.raises(ValueError, match="values up to 8"):
        sums.clients["ann"].mask(np.array([9.0]), sums.point)
    assert close(sums, sums.finish(sums.mask(values)), values, FIVE)


def test_noise_of_the_sum_is_that_of_its_parts():
    sums, length, sigma = Sums(num_sums=1, limit=40.0), 30_000, 0.5
    found = sums.finish(sums.mask({name: np.zeros(length) for name in FIVE}, sigma=sigma))
    # sigma is what any two of the three that suffice have together; five have more
    assert kstest(found / (sigma * np.sqrt(5 / 2)), "norm").pvalue > 1e-4
    for wrong in (1e-9, 100.0):
        with pytest.raises(ValueError, match="does not fit a grid"):
            sums.point.noise_steps(wrong)


@pytest.mark.parametrize("sigma", [1, 2, 7])
def test_the_discrete_gaussian_has_the_stated_distribution(sigma):
    draws = discrete_gaussian(sigma, 200_000)
    far = 4 * sigma
    indices = np.arange(-far, far + 1)
    weights = np.exp(-(np.arange(-30 * sigma, 30 * sigma + 1) ** 2) / (2 * sigma**2))
    expected = np.exp(-(indices**2) / (2 * sigma**2)) / weights.sum() * len(draws)
    counts = np.array([(draws == index).sum() for index in indices])
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert chi2.sf(statistic, len(indices) - 1) > 1e-4


def test_wide_noise_is_gaussian_and_fresh():
    for sigma in (1 << 10, LARGEST_SIGMA):
        draws = discrete_gaussian(sigma, 50_000)
        assert kstest(draws / sigma, "norm").pvalue > 1e-4
    assert not np.array_equal(discrete_gaussian(5, 100), discrete_gaussian(5, 100))
    for wrong in (0, -1, 1.5, LARGEST_SIGMA + 1):
        with pytest.raises(ValueError, match="not allowed"):
            discrete_gaussian(wrong, 1)  # type: ignore[arg-type]


# --- shares ---


@given(st.binary(min_size=1, max_size=70), st.integers(1, 12), st.data())
@settings(max_examples=80, deadline=None)
def test_any_threshold_of_shares_gives_the_secret(secret, threshold, data):
    count = data.draw(st.integers(threshold, 30))
    indices = np.array(data.draw(st.permutations(range(1, count + 1))))[:threshold]
    shares = split(np.frombuffer(secret, dtype=np.uint8), count, threshold)
    assert join(shares[indices - 1], indices).tobytes() == secret


def test_fewer_shares_say_nothing():
    secret = np.zeros(60_000, dtype=np.uint8)
    shares = split(secret, 5, 3)
    for indices in ([1], [2, 5]):
        found = join(shares[np.array(indices) - 1], np.array(indices))
        assert chisquare(np.bincount(found, minlength=256)).pvalue > 1e-4
    for wrong in ([], [0, 1], [1, 1], [256]):
        with pytest.raises(ValueError, match="not allowed"):
            join(shares[:1].repeat(len(wrong), axis=0), np.array(wrong, dtype=np.int64))
    with pytest.raises(ValueError, match="not allowed"):
        split(secret, 300, 3)


def test_messages_pass_the_codec():
    sums = Sums(num_sums=1)
    masked = sums.mask(vectors())
    for one in (masked["ann"], Roster(dict(sums.server.session.keys)), Confirmation(b"x"), Arrived(0, FIVE)):
        again = codec.decode(codec.encode(one))
        assert type(again) is type(one)
    assert isinstance(masked["ann"], Masked)
    assert masked["ann"].words.dtype == np.uint32
