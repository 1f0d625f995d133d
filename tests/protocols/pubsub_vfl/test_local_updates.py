"""Cached local updates against a plain torch loop over two models, and what they change of a run."""

from __future__ import annotations

import copy
import json
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from fedactors.actors.context import derived_seed
from fedactors.config import build_given
from fedactors.errors import BadInput
from fedactors.learning.models import task_loss
from fedactors.network.links import Link, Network
from fedactors.protocols.pubsub_vfl.actors import ActiveWorker, PassiveWorker
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.data import batches as batches_of
from fedactors.protocols.pubsub_vfl.data import load_data
from tests.protocols.pubsub_vfl.reference import beginning
from tests.protocols.pubsub_vfl.runs import Done, Recorder, arrays, config_of, simulate

LONG = {"network": Network(default=Link(latency=0.2, bandwidth=1e9))}
"""Ways so long that all local updates are done before an answer comes."""
QUICK: dict[str, Any] = {"num_active_workers": 2, "num_passive_workers": 3, "batch_size": 32, "local_updates": 3}
QUICK |= {"cached_batches": 3, "transfer": "push", "sync_unit": "batch", "epochs_per_round": 2}


def flat(module: torch.nn.Module) -> np.ndarray:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy()


class Turns:
    """Whose turn it is, told by a list of the last W - 1 that were taken; the oldest of W leaves."""

    def __init__(self, size: int, uses: int) -> None:
        self.size, self.uses = size, uses
        self.kept: list[dict[str, Any]] = []
        self.sampled: list[int] = []
        self.number = 0

    def add(self, **exchange: Any) -> None:
        self.kept = [*self.kept, {**exchange, "id": self.number, "count": 0}][-self.size :]
        self.number += 1

    def all_due(self):
        """Take turns until nobody is left who may."""
        while True:
            recent = self.sampled[-(self.size - 1) :] if self.size > 1 else []
            free = [one for one in self.kept if one["count"] < self.uses and one["id"] not in recent]
            if not free:
                return
            last = {id_: index for index, id_ in enumerate(self.sampled)}
            chosen = min(free, key=lambda one: last.get(one["id"], -1))
            chosen["count"] += 1
            self.sampled.append(chosen["id"])
            yield chosen


def cosines(now: torch.Tensor, then: torch.Tensor, least: float) -> torch.Tensor:
    found = torch.nn.functional.cosine_similarity(now, then, dim=1, eps=1e-24)
    return found * (found >= least)


def plain(source, config) -> list[dict[str, np.ndarray]]:
    """Train in one process; return the parameters before the first and after each epoch."""
    data, x, y, bottoms, top = beginning(source, config)
    seed = derived_seed(0, "all parties", "batches")
    kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[config.optimizer]
    rules = {p: kind(m.parameters(), lr=config.learning_rate) for p, m in bottoms.items()}
    rules["top"] = kind(top.parameters(), lr=config.learning_rate)
    others = [p for p in data.parties if p != "active"]
    turns = {p: Turns(config.cached_batches, config.local_updates) for p in data.parties}

    def publish(party: str, rows):
        """Return the party's model of this moment, and the embeddings that it gives."""
        twin = copy.deepcopy(bottoms[party])
        return twin, twin(x[party][rows])

    def joint_loss(rows, local, received, weights=None):
        losses = task_loss(data.task, top(torch.cat([local, *received], dim=1)), y[rows], reduction="none")
        return (losses if weights is None else losses * weights).mean()

    def step_active(rows, received, weights=None) -> list[torch.Tensor]:
        received = [z.detach().requires_grad_() for z in received]
        for name in ("active", "top"):
            rules[name].zero_grad()
        joint_loss(rows, bottoms["active"](x["active"][rows]), received, weights).backward()
        for name in ("active", "top"):
            rules[name].step()
        return [z.grad for z in received]

    def locally(party: str) -> None:
        for then in turns[party].all_due():
            rows = then["rows"]
            if party == "active":
                received = [z.detach().requires_grad_() for z in then["z"]]
                loss = joint_loss(rows, bottoms["active"](x["active"][rows]), received)
                now = torch.autograd.grad(loss, received)
                weights = cosines(torch.cat(now, dim=1), torch.cat(then["g"], dim=1), config.min_cosine_similarity)
                step_active(rows, received, weights)
            else:
                z = bottoms[party](x[party][rows])
                weights = cosines(z.detach(), then["z"], config.min_cosine_similarity)
                rules[party].zero_grad()
                z.backward(weights[:, None] * then["g"])
                rules[party].step()

    def snapshot() -> dict[str, np.ndarray]:
        return {**{p: flat(m) for p, m in bottoms.items()}, "top": flat(top)}

    history = [snapshot()]
    for epoch in range(1, config.num_epochs + 1):
        batches = batches_of(len(y), config.batch_size, seed, epoch)
        ahead = {p: publish(p, batches[0]) for p in others}
        for number, rows in enumerate(batches):
            following = batches[number + 1] if number + 1 < len(batches) else None
            values = {p: z.detach() for p, (_, z) in ahead.items()}
            gradients = step_active(rows, [values[p] for p in others])
            turns["active"].add(rows=rows, z=[values[p] for p in others], g=gradients)
            locally("active")
            for p, gradient in zip(others, gradients, strict=True):
                twin, z = ahead[p]
                found = torch.autograd.grad(z, list(twin.parameters()), gradient)
                for parameter, part in zip(bottoms[p].parameters(), found, strict=True):
                    parameter.grad = part
                rules[p].step()
                turns[p].add(rows=rows, z=values[p], g=gradient)
                # where payloads are sent the next order comes with the gradient, else after the acknowledgement
                if config.transfer == "push" and following is not None:
                    ahead[p] = publish(p, following)
                locally(p)
                if config.transfer == "pull" and following is not None:
                    ahead[p] = publish(p, following)
        history.append(snapshot())
    return history


def compare(done: Done, history: list[dict[str, np.ndarray]], atol: float = 1e-12) -> None:
    for index, expected in enumerate(history):
        bottom, top = done.vectors(index, "active/worker-0")
        found = {"active": bottom, "top": top}
        found |= {p: done.vectors(index, f"{p}/worker-0")[0] for p in expected.keys() - found.keys()}
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=0, atol=atol, err_msg=f"{name}, epoch {index}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"transfer": "push"},
        {"transfer": "push", "optimizer": "sgd", "learning_rate": 0.1, "min_cosine_similarity": 0.9},
        {"cached_batches": 1, "local_updates": 4},
        {"cached_batches": 4, "local_updates": 5, "transfer": "push", "min_cosine_similarity": 0.0, "optimizer": "sgd"},
    ],
    ids=str,
)
def test_every_local_update_is_that_of_the_plain_loop(changes):
    config: dict[str, Any] = {"local_updates": 2, "cached_batches": 3, "num_epochs": 3, "batch_size": 50}
    config |= {"float64": True, "max_in_flight": 1, "prefetch": 1, **changes}
    done = simulate(**config, runtime=LONG)
    # Adam divides by the size of a gradient, and so makes the last bit of a small one larger
    atol = 1e-12 if changes.get("optimizer") == "sgd" else 1e-10
    compare(done, plain("breast-cancer", config_of(**config)), atol)


@pytest.mark.slow
@pytest.mark.parametrize(("task", "parties"), [("multiclass", 3), ("regression", 2)])
def test_so_it_is_with_several_parties_and_other_losses(task, parties):
    config: dict[str, Any] = {"local_updates": 2, "cached_batches": 2, "num_epochs": 2, "batch_size": 100}
    config |= {"float64": True, "max_in_flight": 1, "prefetch": 1, "transfer": "push", "num_parties": parties}
    config |= {"optimizer": "sgd"}
    data = arrays(task, parties)
    compare(simulate(data, **config, runtime=LONG), plain(data, config_of(**config)))


@pytest.mark.slow
def test_rows_that_changed_too_much_do_not_count():
    """With the same seed other thresholds give other models; with one that nothing reaches nobody steps locally."""
    config: dict[str, Any] = {"local_updates": 3, "num_epochs": 2, "max_in_flight": 1, "float64": True}
    config |= {"optimizer": "sgd", "learning_rate": 0.5}
    none, strict, usual = (
        simulate(**{**config, **changes}, runtime=LONG)
        for changes in ({"local_updates": 0}, {"min_cosine_similarity": 1.0}, {"min_cosine_similarity": 0.5})
    )
    tests = [done.recorder.rounds[-1]["training/loss"] for done in (none, strict, usual)]
    assert tests[2] < 0.9 * tests[0]
    assert abs(tests[1] - tests[0]) < 0.5 * abs(tests[2] - tests[0])


def computes(recorder: Recorder, actor: str) -> Counter[str]:
    """Return how often an actor computed each kind of work; each took time."""
    spans = [span for span in map(json.loads, recorder.lines) if span["type"] == "span"]
    local = [span for span in spans if (span["actor"], span["kind"]) == (actor, "compute")]
    assert all(
        span["end"] > span["start"] for span in local if span["label"] != "align"
    )  # which has no cost of its own
    return Counter(span["label"] for span in local)


@pytest.mark.slow
def test_nothing_more_is_sent_and_the_clock_counts_what_is_computed():
    config: dict[str, Any] = {"num_epochs": 2, "max_in_flight": 1, "transfer": "push"}
    without, with_ = (simulate(**config, local_updates=count, runtime=LONG) for count in (0, 3))
    assert with_.runtime.usage().messages == without.runtime.usage().messages
    assert with_.runtime.usage().bytes == without.runtime.usage().bytes

    num_batches = 2 * -(-without.result.extra["num_rows"] // 64)
    active, passive = (computes(with_.recorder, f"{party}/worker-0") for party in ("active", "passive"))
    assert active["local-step"] == passive["weigh"] <= 3 * num_batches
    assert active["local-step"] > 2 * num_batches
    assert "local-step" not in computes(without.recorder, "active/worker-0")
    assert passive["bottom-backward"] == num_batches + passive["weigh"]


@pytest.mark.slow
def test_local_updates_are_made_of_waiting_time_alone():
    """Where answers come at once there are fewer of them, where they take long as many as are allowed."""
    near = {"network": Network(default=Link(latency=0.0, bandwidth=1e12))}
    quick: dict[str, Any] = {"transfer": "push", "prefetch": 6, "report_interval": 0.0, "batch_size": 8}
    quick["max_in_flight"] = 24
    counts = []
    for runtime in (near, LONG):
        done = simulate(local_updates=5, num_epochs=1, **quick, runtime=runtime)
        found = computes(done.recorder, "active/worker-0")
        counts.append(found["local-step"] / found["active-step"])
    assert counts[0] < 2
    assert 2 * counts[0] < counts[1] <= 5


def text(done: Done) -> str:
    return json.dumps(done.recorder.rounds)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes():
    first, again = simulate(**QUICK, num_epochs=4), simulate(**QUICK, num_epochs=4)
    assert text(first) == text(again)
    assert text(first) != text(simulate(**{**QUICK, "local_updates": 0}, num_epochs=4))


@pytest.mark.slow
def test_it_resumes_and_pools_byte_identically():
    config = {**QUICK, "num_epochs": 6, "schedule": "cosine"}
    whole = simulate(**config)
    assert text(whole) == text(simulate(**config, runtime={"pool": 1}))
    for finished in range(3):
        rest = simulate(**config, resume=whole.recorder.all[finished])
        assert json.dumps(rest.recorder.rounds) == json.dumps(whole.recorder.rounds[finished:])
        assert rest.result.metrics == whole.result.metrics
        assert rest.runtime.usage().seconds == whole.runtime.usage().seconds


@pytest.mark.slow
def test_a_resume_without_the_table_would_be_another_run(monkeypatch):
    """What the checkpoint holds of the table decides what follows."""
    whole = simulate(**QUICK, num_epochs=4)
    for cls in (ActiveWorker, PassiveWorker):
        monkeypatch.setattr(cls, "state", tuple(name for name in cls.state if name != "cached"))
    cut = simulate(**QUICK, num_epochs=4)
    assert text(cut) == text(whole)
    rest = simulate(**QUICK, num_epochs=4, resume=cut.recorder.all[1])
    assert json.dumps(rest.recorder.rounds) != json.dumps(whole.recorder.rounds[1:])


@pytest.mark.slow
def test_it_works_beside_fewer_bits_and_noise():
    done = simulate(**{**QUICK, "quantization_bits": 8, "privacy_mu": 5.0, "gradient_mu": 50.0}, num_epochs=2)
    assert np.isfinite(done.recorder.rounds[0]["training/loss"])
    # a local update releases nothing
    assert done.result.extra["privacy"]["passive"]["Embedding"]["releases"] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("local_updates=2 algorithm=vfl", "local_updates"),
        ("cached_batches=7", "cached_batches"),
        ("min_cosine_similarity=0.7", "min_cosine_similarity"),
        ("local_updates=2 optimizer_at=server num_active_workers=2", "optimizer_at='server'"),
        ("local_updates=2 bottom_training=frozen embedding_mu=1", "bottom_training='frozen'"),
        ("local_updates=2 bottom_training=private embedding_mu=1", "bottom_training='private'"),
        ("local_updates=-1", "local_updates"),
        ("local_updates=2 min_cosine_similarity=1.5", "min_cosine_similarity"),
        ("local_updates=2 cached_batches=0", "cached_batches"),
    ],
)
def test_what_would_mean_nothing_is_refused_in_one_line(words, said):
    with pytest.raises(BadInput) as refused:
        build_given(PubSubVflConfig, words.split())
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_local_updates_on_ray():
    from fedactors.protocols.pubsub_vfl.run import run
    from fedactors.runtime.ray.runtime import RayRuntime

    # a busy machine may take seconds for a batch: nothing here rests on time
    settings: dict[str, Any] = {"num_epochs": 2, "batch_size": 64, "embedding_size": 16, "deadline": math.inf}
    config = config_of(**settings, local_updates=3)
    data, recorder = load_data(config, "synthetic:1500x20", 0), Recorder()
    runtime = RayRuntime(seed=0, recorder=recorder, call_timeout=300.0)
    result = runtime.execute(lambda: run(config, data, runtime))
    expected = simulate("synthetic:1500x20", **settings)
    assert result.metrics["test/auc"] > expected.result.metrics["test/auc"] - 0.05
    num_batches = 2 * -(-result.extra["num_rows"] // 64)
    assert computes(recorder, "active/worker-0")["active-step"] == num_batches
    assert computes(recorder, "active/worker-0")["local-step"] > 0
    assert computes(recorder, "passive/worker-0")["weigh"] > 0
