import itertools
import json
import math
from typing import Any

import numpy as np
import pytest

from fedactors.data.party_rows import Split, prepare
from fedactors.errors import PartyLost, Stopped
from fedactors.messages.codec import HEADER_BYTES
from fedactors.network.links import Link, Network
from fedactors.privacy.mechanisms import clip_rows
from fedactors.protocols.pubsub_vfl.actors import PassiveWorker
from fedactors.protocols.pubsub_vfl.algorithm import default_costs
from fedactors.protocols.pubsub_vfl.broker import NeverEnds
from fedactors.protocols.pubsub_vfl.data import load_data
from fedactors.protocols.pubsub_vfl.run import run
from fedactors.runtime.interface import Snapshot
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.arrays import arrays_in
from tests.protocols.pubsub_vfl.runs import TINY, Done, Recorder, arrays, config_of, simulate

SEVERAL = {"num_active_workers": 2, "num_passive_workers": 3, "batch_size": 32}
ALGORITHMS = {
    "pubsub-vfl": SEVERAL,
    "vfl": {},
    "vfl-ps": {"num_active_workers": 2, "num_passive_workers": 2},
    "avfl": {},
    "avfl-ps": {"num_active_workers": 2, "num_passive_workers": 2},
}


QUICK: dict[str, Any] = {
    **SEVERAL,
    "transfer": "push",
    "quantization_bits": 8,
    "optimizer_at": "server",
    "epochs_per_round": 2,
}
"""All that shortens the exchange, together."""
PAIRED_QUICK: dict[str, Any] = {
    "num_active_workers": 2,
    "num_passive_workers": 2,
    "batch_size": 32,
    "quantization_bits": 16,
}
PAIRED_QUICK |= {"optimizer_at": "server", "epochs_per_round": 2}


def text(done: Done) -> str:
    return json.dumps(done.recorder.rounds)


# --- determinism and resume ---


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_same_seed_same_bytes(algorithm):
    config = {"algorithm": algorithm, **ALGORITHMS[algorithm], "num_epochs": 2}
    first, again, other = simulate(**config), simulate(**config), simulate(**config, seed=1)
    assert text(first) == text(again)
    assert first.result.metrics == again.result.metrics
    assert first.recorder.ledger_rows == again.recorder.ledger_rows
    assert text(first) != text(other)


@pytest.mark.slow
@pytest.mark.parametrize("config", [QUICK, {"algorithm": "avfl-ps", **PAIRED_QUICK}], ids=["pubsub-vfl", "avfl-ps"])
def test_the_short_exchange_resumes_and_pools_byte_identically(config):
    config = {**config, "num_epochs": 5}
    whole, pooled = simulate(**config), simulate(**config, runtime={"pool": 1})
    assert text(whole) == text(pooled)
    assert len(whole.recorder.rounds) == 3
    for finished in range(3):
        rest = simulate(**config, resume=whole.recorder.all[finished])
        assert json.dumps(rest.recorder.rounds) == json.dumps(whole.recorder.rounds[finished:])
        assert rest.result.metrics == whole.result.metrics
        assert rest.runtime.usage().bytes == whole.runtime.usage().bytes
        assert rest.runtime.usage().seconds == whole.runtime.usage().seconds


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_pool_changes_nothing(workers):
    config = {**SEVERAL, "num_epochs": 2}
    inline, pooled = simulate(**config), simulate(**config, runtime={"pool": workers})
    assert text(inline) == text(pooled)
    assert inline.recorder.ledger_rows == pooled.recorder.ledger_rows


@pytest.mark.slow
def test_pool_changes_nothing_with_several_batches_in_flight():
    config = {"algorithm": "avfl-ps", **ALGORITHMS["avfl-ps"], "num_epochs": 2, "batch_size": 16}
    assert text(simulate(**config)) == text(simulate(**config, runtime={"pool": 1}))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["pubsub-vfl", "avfl-ps"])
@pytest.mark.parametrize("epoch", [0, 1, 2, 3])
def test_resume_at_every_epoch_is_byte_identical(algorithm, epoch):
    config = {"algorithm": algorithm, **ALGORITHMS[algorithm]}
    whole = simulate(**config)
    rest = simulate(**config, resume=whole.recorder.all[epoch])
    assert json.dumps(rest.recorder.rounds) == json.dumps(whole.recorder.rounds[epoch:])
    assert rest.result.metrics == whole.result.metrics
    assert rest.runtime.usage().bytes == whole.runtime.usage().bytes
    assert rest.runtime.usage().seconds == whole.runtime.usage().seconds


@pytest.mark.slow
def test_resume_with_a_pool_is_byte_identical():
    whole = simulate(**SEVERAL)
    rest = simulate(**SEVERAL, resume=whole.recorder.all[2], runtime={"pool": 1})
    assert json.dumps(rest.recorder.rounds) == json.dumps(whole.recorder.rounds[2:])


# --- what is sent ---


def test_bytes_of_an_epoch_are_those_of_embeddings_and_gradients_and_a_stated_header():
    done = simulate(**SEVERAL, num_epochs=1)
    rows = done.rows("Embedding", "Gradient")
    num_rows = done.result.extra["num_rows"]
    num_batches = -(-num_rows // 32)
    assert len(rows) == 2 * num_batches
    assert sum(row[5] for row in rows) == 2 * num_rows * 4 * 4
    used = done.runtime.usage()
    assert used.header_bytes == HEADER_BYTES * used.messages


BETWEEN = {("broker", "passive"), ("passive", "broker"), ("active", "passive"), ("passive", "active")}


def crossings(done: Done) -> list[tuple]:
    """Messages between the parties, the broker being at the active one, but for those of the alignment."""
    rows = [(row[1].partition("/")[0], row[2].partition("/")[0], *row[3:]) for row in done.recorder.ledger_rows]
    return [row for row in rows if row[:2] in BETWEEN and not row[3].startswith("Alignment")]


@pytest.mark.slow
def test_what_is_sent_instead_of_fetched_takes_half_the_messages_and_the_same_values():
    config = {"num_epochs": 4, "epochs_per_round": 4, "batch_size": 16, "max_in_flight": 1}
    fetched, sent = (simulate(**config, transfer=how) for how in ("pull", "push"))
    num_batches = 4 * -(-sent.result.extra["num_rows"] // 16)
    counts = [len(crossings(done)) / num_batches for done in (fetched, sent)]
    # one batch in flight: order, publication, gradient, acknowledgement, with a question and an answer more where two
    # of them are fetched; sent, a gradient takes the next order along, and the next publication its acknowledgement
    assert counts == pytest.approx([8, 2], abs=0.3)
    payload = 4 * TINY["embedding_size"] * 4 * sent.result.extra["num_rows"]
    carried = sum(row[4] for row in crossings(sent))
    assert 2 * payload < carried < 2.5 * payload + 300 * num_batches


FAR = Network(default=Link(latency=0.05, bandwidth=1e9), local=Link(latency=0.0001), hosts={"broker": "active"})
"""Parties 50 ms apart; 0.1 ms within one."""


def steps(done: Done) -> tuple[float, list[tuple[float, float]]]:
    """When training began, and when the active party's steps on a batch began and ended."""
    spans = done.recorder.spans
    begun = next(span.end for span in spans if (span.kind, span.label) == ("phase", "alignment"))
    return begun, [(span.start, span.end) for span in spans if span.label == "active-step"]


@pytest.mark.parametrize("algorithm", ["pubsub-vfl", "avfl"])
def test_the_first_step_waits_for_two_ways_between_the_parties(algorithm):
    config = {"algorithm": algorithm, "num_epochs": 2, "epochs_per_round": 2, "transfer": "push"}
    begun, ((first, _), *_) = steps(simulate(**config, runtime={"network": FAR}))
    # the order for the first batches there, their embeddings back
    assert 0.1 < first - begun < 0.11


@pytest.mark.slow
@pytest.mark.parametrize("transfer", ["push", "pull"])
def test_a_batch_lies_ready_when_the_active_worker_has_stepped_on_the_last(transfer):
    many = {"num_epochs": 20, "epochs_per_round": 20, "max_in_flight": 60, "prefetch": 60, "embedding_buffer": 60}
    _, found = steps(simulate(**many, transfer=transfer, runtime={"network": FAR}))
    waits = [after[0] - before[1] for before, after in itertools.pairwise(found)]
    assert len(waits) > 60
    # all are in flight at once: it waits where the first come back, and not for the broker, which is 0.1 ms away
    assert sum(wait > 1e-9 for wait in waits) <= len(waits) / 10
    if transfer == "push":
        # a gradient takes the order for another batch along: that is back after two ways, and not after four
        assert found[60][0] - found[0][1] < 0.11


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0502, 0.06, 0.11])
def test_who_is_lost_with_its_first_orders_is_told_of_others(seconds):
    config = {**SEVERAL, "num_passive_workers": 2, "transfer": "push", "num_epochs": 2}
    whole = simulate(**config, runtime={"network": FAR})
    begun, _ = steps(whole)
    hurt = simulate(**config, runtime={"network": FAR, "faults": {"passive/worker-1": begun + seconds}})
    assert [r["batches"] for r in hurt.recorder.rounds] == [r["batches"] for r in whole.recorder.rounds]
    assert hurt.recorder.rounds[0]["abandoned"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "share"), [(8, 0.25), (16, 0.5)])
@pytest.mark.parametrize("algorithm", ["pubsub-vfl", "vfl"])
def test_fewer_bits_are_fewer_bytes(algorithm, bits, share):
    config = {"algorithm": algorithm, "num_epochs": 3, "hidden_size": 16, "embedding_size": 32}
    whole, rounded = simulate(**config), simulate(**config, quantization_bits=bits)
    sizes = [sum(row[5] for row in done.rows("Embedding", "PairRequest")) for done in (whole, rounded)]
    assert share < sizes[1] / sizes[0] < share + 0.05
    assert rounded.result.metrics["test/auc"] == pytest.approx(whole.result.metrics["test/auc"], abs=0.03)


def test_each_batch_is_trained_exactly_once_per_epoch(monkeypatch):
    applied: list[tuple[int, int]] = []
    original = PassiveWorker._backward

    async def spy(self, gradient):
        found = await original(self, gradient)
        applied.append((gradient.epoch, gradient.batch_id))
        return found

    monkeypatch.setattr(PassiveWorker, "_backward", spy)
    done = simulate(**SEVERAL, num_epochs=2)
    num_batches = -(-done.result.extra["num_rows"] // 32)
    assert sorted(applied) == [(e, b) for e in (1, 2) for b in range(num_batches)]
    assert all(r["abandoned"] == 0 and r["max_attempts"] == 1 for r in done.recorder.rounds)
    assert all(r["batches"] == num_batches for r in done.recorder.rounds)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_raw_column_is_in_any_message(algorithm, monkeypatch):
    from fedactors.runtime import calls

    sent: list[np.ndarray] = []
    original = calls._freeze_checked

    def spy(endpoints, speaker, value, copy):
        sent.extend(arrays_in(value))
        return original(endpoints, speaker, value, copy)

    monkeypatch.setattr(calls, "_freeze_checked", spy)
    data = arrays("multiclass")
    simulate(data, algorithm=algorithm, **ALGORITHMS[algorithm], num_epochs=1)
    blocks = [data.load(party) for party in data.parties]
    raw = np.concatenate([block.features.reshape(-1) for block in blocks])
    scaled = [
        prepare(b, np.arange(400), Split(np.arange(400), np.arange(0), np.arange(0)), data.task).train.features
        for b in blocks
    ]
    known = {float(value) for value in (*raw, *np.concatenate([s.reshape(-1) for s in scaled]))}
    # random normal features: a float that is sent equals one of them only if it was copied
    floats = np.concatenate([array.reshape(-1) for array in sent if array.dtype.kind == "f"])
    assert floats.size > 1000
    assert not any(float(value) in known for value in floats)
    assert any(float(value) in known for value in raw)
    labels = blocks[0].labels
    assert not any(array.dtype.kind in "iu" and set(array.reshape(-1)) == set(labels) for array in sent)


# --- privacy noise ---


@pytest.mark.slow
def test_an_infinite_budget_is_the_run_without_noise():
    plain = simulate(num_epochs=2)
    infinite = simulate(num_epochs=2, privacy_mu=math.inf, clip_norm=1e-3, gradient_mu=math.inf)
    assert text(plain) == text(infinite)


@pytest.mark.slow
def test_noise_has_the_deviation_that_the_ledger_states(monkeypatch):
    clean: dict[tuple[int, int, int], np.ndarray] = {}
    noisy: dict[tuple[int, int, int], np.ndarray] = {}
    original = PassiveWorker._embed

    async def spy(self, epoch, stamp, positions):
        embedding = await original(self, epoch, stamp, positions)
        clean[epoch, *stamp] = clip_rows(self._publications[stamp][1], self.config.clip_norm)
        noisy[epoch, *stamp] = np.asarray(embedding.values)
        return embedding

    monkeypatch.setattr(PassiveWorker, "_embed", spy)
    done = simulate(privacy_mu=0.5, embedding_size=32, num_epochs=2, runtime={"reproducible_noise": True})
    difference = np.concatenate([(noisy[key] - clean[key]).reshape(-1) for key in clean])
    account = done.result.extra["privacy"]["passive"]["Embedding"]
    assert difference.size > 20_000
    assert difference.std() == pytest.approx(account["noise_scale"], rel=0.03)
    assert abs(difference.mean()) < 4 * account["noise_scale"] / math.sqrt(difference.size)
    assert account["nominal_mu"] == 0.5
    assert account["rigorous_mu"] == pytest.approx(2 * 0.5 * math.sqrt(done.result.extra["num_rows"] / 64))


@pytest.mark.slow
def test_reproducible_noise_is_never_called_a_guarantee():
    settings = {"embedding_mu": 0.5, "bottom_training": "frozen", "standardisation": "private", "gradient_mu": 3.0}
    kept = simulate(**settings, num_epochs=1)
    reproducible = simulate(**settings, num_epochs=1, runtime={"reproducible_noise": True})
    covered = [(r.party, r.covered) for r in kept.recorder.privacy_records]
    assert covered == [("active", False), ("passive", True), ("passive", True)]
    for record in reproducible.recorder.privacy_records:
        assert not record.covered
        assert "no privacy guarantee" in record.note
    assert kept.result.extra["privacy"]["active"]["Gradient"]["rigorous_mu"] == pytest.approx(3.0)
    # noise comes from the operating system: two runs of one seed differ
    assert text(simulate(privacy_mu=0.5, num_epochs=1)) != text(simulate(privacy_mu=0.5, num_epochs=1))


def test_republished_batches_count_as_releases():
    settings = {**SEVERAL, "num_active_workers": 1, "deadline": 0.004, "max_in_flight": 8}
    done = simulate(num_epochs=1, privacy_mu=1.0, **settings)
    attempts = done.recorder.rounds[0]["max_attempts"]
    assert attempts > 1
    released = done.result.extra["privacy"]["passive"]["Embedding"]["releases"]
    assert 1 < released <= attempts


@pytest.mark.slow
def test_who_was_lost_no_longer_knows_what_it_released():
    settings = {"embedding_mu": 1.0, "bottom_training": "private", "standardisation": "private"}
    for faults, covered in (({}, True), ({"passive/worker-0": 0.003}, False)):
        done = simulate(num_epochs=1, **settings, runtime={"faults": faults})
        assert done.result.extra["privacy"]["passive"]["Embedding"]["covered"] == covered


def releases(done):
    return done.result.extra["privacy"]["passive"]["Embedding"]["releases"]


class Stopping(Recorder):
    """Asks its run to stop when a round is recorded."""

    def __init__(self, number):
        super().__init__()
        self.number, self.runtime = number, None

    def record_round(self, index, metrics):
        super().record_round(index, metrics)
        if index == self.number:
            self.runtime.request_stop(143)


def stopped_after(number, resume=None):
    """Return the checkpoint that a run writes which is told to stop after an epoch."""
    settings = config_of(num_epochs=4, privacy_mu=1.0)
    recorder, data = Stopping(number), load_data(settings, "breast-cancer", 0)
    recorder.runtime = SimulatedRuntime(seed=0, recorder=recorder)
    snapshot = None if resume is None else Snapshot(resume.actors, resume.driver)
    with pytest.raises(Stopped):
        recorder.runtime.execute(lambda: run(settings, data, recorder.runtime), snapshot)
    return recorder.all[-1]


@pytest.mark.slow
def test_what_a_resume_does_not_do_again_is_no_release():
    once, twice = stopped_after(1), stopped_after(2, stopped_after(1))
    for found in (once, twice):
        assert releases(simulate(num_epochs=4, privacy_mu=1.0, resume=found)) == 4
    whole = simulate(num_epochs=4, privacy_mu=1.0)
    assert releases(whole) == 4
    # a finished run that is resumed has nothing left to do
    assert releases(simulate(num_epochs=4, privacy_mu=1.0, resume=whole.recorder.all[-1])) == 4
    # of a run that went on after its checkpoint nobody knows how far it came: nothing is covered then
    resumed = simulate(num_epochs=4, privacy_mu=1.0, resume=whole.recorder.all[2])
    (line,) = [line for line in resumed.runtime.privacy_records if line.message_type == "Embedding"]
    assert not line.covered


# --- parties, tasks, alignment, stopping ---


@pytest.mark.slow
@pytest.mark.parametrize("num_parties", [3, 10])
@pytest.mark.parametrize("algorithm", ["pubsub-vfl", "avfl-ps"])
def test_several_passive_parties(num_parties, algorithm):
    workers = ALGORITHMS[algorithm]
    done = simulate(algorithm=algorithm, num_parties=num_parties, num_epochs=2, **workers)
    num_batches = sum(1 for row in done.rows("Embedding"))
    assert num_batches == 2 * (num_parties - 1) * -(-done.result.extra["num_rows"] // workers.get("batch_size", 64))
    assert len(done.result.extra["privacy"]) == num_parties
    assert done.recorder.rounds[1]["training/loss"] < done.recorder.rounds[0]["training/loss"]


def training_seconds(done):
    spans = map(json.loads, done.recorder.lines)
    return [span["end"] - span["start"] for span in spans if (span["kind"], span["label"]) == ("phase", "training")]


@pytest.mark.slow
def test_embeddings_of_several_parties_are_fetched_at_once():
    network = Network(default=Link(latency=0.01))
    few, many = (
        training_seconds(simulate(num_parties=count, num_epochs=1, runtime={"network": network})) for count in (2, 6)
    )
    # one after another would take 20 ms more for each further party and batch
    assert many[0] < few[0] + 0.01


@pytest.mark.slow
@pytest.mark.parametrize(("task", "metric"), [("regression", "rmse"), ("multiclass", "accuracy")])
def test_regression_and_classes(task, metric):
    done = simulate(arrays(task), num_epochs=10, hidden_size=16, embedding_size=8)
    rounds = done.recorder.rounds
    better = np.subtract(rounds[-1][f"validation/{metric}"], rounds[0][f"validation/{metric}"])
    assert better < 0 if metric == "rmse" else better > 0
    assert f"test/{metric}" in done.result.metrics


@pytest.mark.slow
@pytest.mark.parametrize("alignment", ["hash", "psi"])
def test_rows_are_aligned_first(alignment):
    if alignment == "psi":
        pytest.importorskip("private_set_intersection.python")
    done = simulate(alignment=alignment, num_epochs=1, algorithm="vfl")
    assert done.rows("AlignmentQuestion")
    assert done.result.extra["num_rows"] == 358


@pytest.mark.slow
def test_of_one_seed_rows_that_are_aligned_by_ids_have_another_order_each_time():
    losses = {
        how: [
            simulate(alignment=how, num_epochs=1, algorithm="vfl").recorder.rounds[0]["training/loss"] for _ in range(2)
        ]
        for how in ("already-aligned", "hash")
    }
    assert losses["already-aligned"][0] == losses["already-aligned"][1]
    assert losses["hash"][0] != losses["hash"][1]


@pytest.mark.slow
def test_training_stops_when_nothing_gets_better():
    done = simulate(num_epochs=200, learning_rate=0.3, patience=3)
    best = done.result.metrics["best_epoch"]
    assert done.result.rounds == best + 3 < 200
    last = done.recorder.checkpoints["final"]
    assert set(last.actors) >= {"active/worker-0", "passive/worker-0", "broker"}


@pytest.mark.slow
@pytest.mark.parametrize(("target", "rounds"), [(None, 6), (0.0, 1), (2.0, 6)])
def test_training_stops_at_its_target(target, rounds):
    assert simulate(num_epochs=6, target=target).result.rounds == rounds


@pytest.mark.slow
def test_replicas_meet_at_sync_epochs_only():
    done = simulate(**SEVERAL, num_epochs=6)
    for epoch in range(1, 7):
        first, second = (done.vectors(epoch, f"passive/worker-{i}")[0] for i in (0, 1))
        # the last epoch averages too, so that the model that is kept is one model
        assert np.array_equal(first, second) == (epoch in (1, 2, 3, 4, 6))


# --- loss and deadline ---


@pytest.mark.slow
@pytest.mark.parametrize("name", ["passive/worker-0", "passive/worker-1", "active/worker-0", "active/worker-1"])
@pytest.mark.parametrize("time", [0.004, 0.02, 0.035])
def test_a_lost_worker_is_replaced_and_training_goes_on(name, time):
    config = {**SEVERAL, "num_epochs": 8}
    whole, hurt = simulate(**config), simulate(**config, runtime={"faults": {name: time}})
    assert hurt.result.rounds == 8
    assert hurt.result.metrics["test/auc"] > whole.result.metrics["test/auc"] - 0.05


@pytest.mark.slow
@pytest.mark.parametrize("name", ["broker", "passive/ps"])
def test_a_lost_server_stops_the_run_and_its_checkpoint_resumes(name):
    whole = simulate(**SEVERAL, num_epochs=4)
    with pytest.raises(PartyLost, match=name):
        simulate(**SEVERAL, num_epochs=4, runtime={"faults": {name: 0.03}})
    rest = simulate(**SEVERAL, num_epochs=4, resume=whole.recorder.all[1])
    assert rest.result.metrics == whole.result.metrics


def test_a_lost_worker_of_a_pair_stops_the_run():
    with pytest.raises(PartyLost, match="passive/worker-0"):
        simulate(algorithm="avfl", runtime={"faults": {"passive/worker-0": 0.004}})


def test_stop_policy_stops():
    with pytest.raises(PartyLost, match="active/worker-0"):
        simulate(on_party_loss="stop", runtime={"faults": {"active/worker-0": 0.004}})


@pytest.mark.slow
@pytest.mark.parametrize("stale", ["drop", "apply"])
def test_deadlines_that_fire_lose_no_batch(stale):
    done = simulate(
        **{**SEVERAL, "num_active_workers": 1}, deadline=0.004, max_in_flight=8, stale_gradients=stale, num_epochs=4
    )
    assert sum(r["abandoned"] for r in done.recorder.rounds) > 0
    assert [r["batches"] for r in done.recorder.rounds] == [-(-done.result.extra["num_rows"] // 32)] * 4


HUNG = {**SEVERAL, "transfer": "push", "deadline": 0.01, "num_epochs": 2, "sync_schedule": "every"}


def with_a_hung_worker(name: str, resume=None, **changes):
    settings = {**HUNG, **changes}
    costs = default_costs(config_of(**settings), speed={name: 1e-4})
    return simulate(**settings, resume=resume, runtime={"costs": costs})


@pytest.mark.slow
@pytest.mark.parametrize("transfer", ["push", "pull"])
@pytest.mark.parametrize("name", ["passive/worker-1", "active/worker-1"])
def test_an_epoch_does_not_wait_for_a_worker_that_hangs(name, transfer):
    """One that is ten thousand times slower holds up nobody: its batches go to others, the epoch ends without it."""
    stragglers_excluded = with_a_hung_worker(name, transfer=transfer)
    waited = with_a_hung_worker(name, transfer=transfer, exclude_stragglers=False)
    assert [r["stragglers_excluded"] for r in stragglers_excluded.recorder.rounds] == [1, 1]
    assert [r["stragglers_excluded"] for r in waited.recorder.rounds] == [0, 0]
    assert stragglers_excluded.runtime.clock.now() < 0.2 * waited.runtime.clock.now()
    assert stragglers_excluded.result.metrics["test/auc"] == pytest.approx(waited.result.metrics["test/auc"], abs=0.1)


@pytest.mark.slow
def test_a_run_with_a_excluded_worker_resumes_byte_identically():
    whole = with_a_hung_worker("passive/worker-1")
    rest = with_a_hung_worker("passive/worker-1", resume=whole.recorder.all[1])
    assert rest.recorder.rounds == whole.recorder.rounds[1:]
    assert rest.result.metrics == whole.result.metrics


def test_a_deadline_that_cannot_be_met_ends_with_a_message():
    with pytest.raises(NeverEnds, match="deadline"):
        simulate(deadline=1e-5)


@pytest.mark.parametrize("algorithm", ["avfl", "avfl-ps"])
def test_a_window_wider_than_an_epoch_does_not_mix_a_batch_with_itself(algorithm):
    """With two epochs in one go a batch could be asked for again before its gradient has come."""
    settings = {**ALGORITHMS[algorithm], "algorithm": algorithm, "num_epochs": 2, "epochs_per_round": 2}
    wide = simulate(**settings, embedding_buffer=64)
    assert wide.result.metrics["test/auc"] > 0.6
