"""Clients with models of their own: local parameters (FedBN, FedPer) and Ditto."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedactors
from fedactors.actors.context import derived_seed
from fedactors.config import build
from fedactors.errors import BadInput, Diverged, FedactorsError
from fedactors.inspection import describe_messages, describe_protections
from fedactors.learning.local_training import evaluate_model
from fedactors.learning.models import ModelSpec, build_model
from fedactors.learning.network import load_vector, local_entries, shared_entries, to_vector
from fedactors.protocols.horizontal import algorithm, serving
from fedactors.protocols.horizontal.actors import HorizontalServer
from fedactors.protocols.horizontal.config import HorizontalConfig
from fedactors.protocols.horizontal.data import load_data, model_spec
from fedactors.protocols.horizontal.plugin import PROTOCOL
from tests.protocols.horizontal.federation import changed, cut, play, rounds, state_of, user_files
from tests.serving.predicting import predicted

NET = "tests.protocols.horizontal.test_personal:Net"
SMALL: dict[str, Any] = {
    "num_clients": 3,
    "num_training": 150,
    "validation_fraction": 0.2,
    "num_rounds": 3,
    "dirichlet": None,
}
NORM, HEAD = {"model": NET, "local_parameters": "norm"}, {"model": NET, "local_parameters": "head"}
DITTO = {"algorithm": "ditto", "proximal": 0.5}
WAYS: dict[str, dict[str, Any]] = {"norm": NORM, "head": HEAD, "ditto": DITTO}
FEDREP: dict[str, Any] = {**HEAD, "algorithm": "fedrep", "weight_decay": 0.1, "max_gradient_norm": 0.5}


class Net(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        width = torch.Size(inputs).numel()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(width, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, outputs)

    def forward(self, x):
        return self.head(self.body(x))


def spec_of(config):
    return model_spec(config, inputs=(1, 8, 8), task="multiclass", num_classes=10)


def client_rows(config):
    part = load_data(config, "digits", 0).part(range(config.num_clients))
    return [(one.load().features.astype(float), one.load().labels) for one in part.clients], part


def descend(module, x, y, seed, config, pull=None, only=None):
    """Local training by torch's own optimiser; `pull`: parameters to stay near to; `only`: those that are trained."""
    chosen = list(only if only is not None else module.parameters())
    optimizer = torch.optim.SGD(chosen, lr=config.step_size, weight_decay=config.weight_decay)
    order = np.random.default_rng(seed)
    module.train()
    for _ in range(config.local_epochs or 1):
        shuffled = order.permutation(len(y))
        for first in range(0, len(y), config.batch_size):
            rows = shuffled[first : first + config.batch_size]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(torch.tensor(x[rows])), torch.tensor(y[rows]))
            if pull is not None:
                pairs = zip(module.parameters(), pull, strict=True)
                loss = loss + config.proximal / 2 * sum(((one - other) ** 2).sum() for one, other in pairs)
            loss.backward()
            if config.max_gradient_norm:
                nn.utils.clip_grad_norm_(chosen, config.max_gradient_norm)
            optimizer.step()


def seeds_of(word, config, t):
    return [derived_seed(0, f"client {client}", f"{word} {t}") for client in range(config.num_clients)]


@pytest.mark.parametrize("way", ["norm", "head", "fedrep"])
def test_local_parameters_are_those_of_an_independent_run_in_plain_torch(way):
    config = changed(**{**SMALL, **(FEDREP if way == "fedrep" else WAYS[way])}, batch_size=20)
    _, recorder, _ = play(config)
    spec = spec_of(config)
    names = local_entries(spec, config.local_parameters)
    assert (names[0], len(names)) == (("body.2.weight", 4) if way == "norm" else ("head.weight", 2))
    rows, _ = client_rows(config)
    modules = [build_model(spec, derived_seed(0, "all clients", "model")) for _ in rows]
    for t in range(1, config.num_rounds + 1):
        for module, (x, y), seed in zip(modules, rows, seeds_of("rows", config, t), strict=True):
            if way == "fedrep":
                descend(module, x, y, seed, config, only=module.head.parameters())
                then = derived_seed(seed, "client", "shared parameters")
                descend(module, x, y, then, config, only=module.body.parameters())
            else:
                descend(module, x, y, seed, config)
        sizes = [len(y) for _, y in rows]
        for name in shared_entries(modules[0]):
            if name in names:
                continue
            held = [shared_entries(module)[name].detach() for module in modules]
            mean = sum(size / sum(sizes) * one for size, one in zip(sizes, held, strict=True))
            for one in held:
                one.copy_(mean)
    for client, module in enumerate(modules):
        found = state_of(recorder, f"client-{client}")
        whole = algorithm.joined(
            spec, config.local_parameters, np.asarray(state_of(recorder)["model"]["vector"]), found["personal"][0]
        )
        np.testing.assert_allclose(whole, to_vector(module), rtol=0, atol=1e-12)
    assert not np.allclose(state_of(recorder, "client-0")["personal"][0], state_of(recorder, "client-1")["personal"][0])


def test_ditto_is_that_of_an_independent_run_in_plain_torch():
    config = changed(**{**SMALL, **DITTO}, batch_size=20)
    _, recorder, _ = play(config)
    rows, _ = client_rows(config)
    start = build_model(spec_of(config), derived_seed(0, "all clients", "model"))
    personal = [build_model(spec_of(config), derived_seed(0, "all clients", "model")) for _ in rows]
    x_P = to_vector(start)
    for t in range(1, config.num_rounds + 1):
        load_vector(start, x_P)
        anchor = [one.detach().clone() for one in start.parameters()]
        ends = []
        for number, (x, y) in enumerate(rows):
            load_vector(start, x_P)
            descend(start, x, y, seeds_of("rows", config, t)[number], config)
            ends.append(to_vector(start))
            descend(personal[number], x, y, seeds_of("own rows", config, t)[number], config, pull=anchor)
        sizes = np.array([len(y) for _, y in rows])
        x_P = sizes / sizes.sum() @ np.stack(ends)
    np.testing.assert_allclose(state_of(recorder)["model"]["vector"], x_P, rtol=0, atol=1e-12)
    for number, module in enumerate(personal):
        found = state_of(recorder, f"client-{number}")["personal"][0]
        np.testing.assert_allclose(found, to_vector(module), rtol=0, atol=1e-12)


def test_what_stays_does_not_travel_and_the_run_says_what_it_is():
    config = changed(**{**SMALL, **HEAD})
    result, _, runtime = play(config)
    body = 64 * 8 + 8 + 4 * 8
    assert (result.extra["parameters"], result.extra["local_parameters"]) == (body, ["head.weight", "head.bias"])
    sent = {t.type: t.bytes / t.messages for t in runtime.ledger.totals() if t.kind != "driver"}
    assert sent["Change"] == 8 * body
    assert sent["TrainOrder"] == 8 * (body + 1)
    assert sent["MeasureOrder"] == 8 * body
    said = {one["kind"]: one for one in describe_protections(PROTOCOL, config)}["labels"]
    assert said["settings"] == {"local_parameters": ("head",)}
    assert "that head names stay too, all others travel" in said["means"]
    shapes = {
        (one["message"], field["name"]): field["shape"]
        for one in describe_messages(PROTOCOL, config) for field in one["fields"]
    }  # fmt: skip
    assert "less local" in str(shapes["Change", "change"])
    assert "less local" in str(shapes["TrainOrder", "parameters"])


@pytest.mark.parametrize("way", WAYS)
def test_scores_and_predictions_are_of_each_client_s_own_model(way, tmp_path):
    config = changed(**{**SMALL, **WAYS[way]})
    result, recorder, _ = play(config)
    _, part = client_rows(config)
    best = recorder.rounds[result.metrics["best_round"] - 1]
    for client, held in enumerate(part.validation):
        found = serving.part(config, f"client-{client}", recorder.checkpoints["final"].actors)
        model, block = found.models["bottom"], held.load()
        score = evaluate_model(model.spec, model.vector, block.features, block.labels)["accuracy"]
        assert best[f"validation/client-{client}/accuracy"] == score
    assert ("test/accuracy" in result.metrics) == (way == "ditto")  # the server's model is whole then
    if way != "ditto":
        with pytest.raises(BadInput, match=r"server's model lacks what stays at the clients \(local_parameters="):
            serving.part(config, "server", recorder.checkpoints["final"].actors)


@pytest.mark.parametrize("way", WAYS)
def test_of_own_files_each_client_predicts_with_its_own_model(way, tmp_path):
    path = user_files(tmp_path)
    config = build(HorizontalConfig, {"num_rounds": 3, "validation_fraction": 0.25, **WAYS[way]})
    data = load_data(config, path, 0)
    _, recorder, _ = play(config, name=path)
    states = recorder.checkpoints["final"].actors
    predicted(serving.predict, config, data, states, tmp_path)
    for name, file in zip(data.parties, data.files, strict=True):
        part = serving.part(config, name, states)
        features = part.preprocessing.finish(file.load_new().features)
        with torch.no_grad():
            output = torch.sigmoid(part.bottom(torch.tensor(features))).numpy().ravel()
        lines = (tmp_path / f"p-{name}.csv").read_text().splitlines()
        column = lines[0].replace('"', "").split(",").index("probability_1")
        assert [float(line.split(",")[column]) for line in lines[1:]] == pytest.approx(output, abs=1e-6)
    parts = [serving.part(config, name, states).models["bottom"].vector for name in data.parties]
    assert not np.array_equal(parts[0], parts[1])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("more", [{}, {"clients_per_site": 2, "clients_per_round": 2}], ids=["alone", "shared"])
def test_a_resumed_run_is_the_uninterrupted_one(way, more):
    config = changed(**{**SMALL, **WAYS[way], **more, "num_rounds": 4})
    whole, recorder, _ = play(config)
    before, snapshot = cut(config, after=2)
    after, going_on, _ = play(config, resume=snapshot)
    assert rounds(before) + rounds(going_on) == rounds(recorder)
    assert after.metrics == whole.metrics
    for name, frame in recorder.checkpoints["final"].actors.items():
        assert going_on.checkpoints["final"].actors[name] == frame


@pytest.mark.slow
def test_scaffold_corrects_what_is_shared_alone():
    config = changed(**{**SMALL, **HEAD, "algorithm": "scaffold"})
    _, recorder, _ = play(config)
    size = 64 * 8 + 8 + 4 * 8
    assert np.asarray(state_of(recorder)["model"]["control"]).shape == (size,)
    assert state_of(recorder, "client-0")["controls"][0].shape == (size,)


@pytest.mark.slow
def test_a_small_model_is_trained_in_batched_calls_and_the_numbers_are_the_same():
    pair = [
        play(changed(**{**SMALL, "model": "mlp", "clients_per_site": 3, **way, "together": together}))[1]
        for way in ({"local_parameters": "4"}, DITTO) for together in (True, False)
    ]  # fmt: skip
    for one, other in (pair[:2], pair[2:]):
        for client in range(3):
            left, right = (state_of(found, "site-0")["personal"][client] for found in (one, other))
            np.testing.assert_allclose(left, right, rtol=0, atol=1e-12)


@pytest.mark.ray
@pytest.mark.parametrize("way", ["norm", "ditto"])
def test_ray_gives_the_numbers_of_the_simulation_and_goes_on_from_its_checkpoints(way, tmp_path, ray_cluster):
    settings = {**SMALL, **WAYS[way]}
    here = fedactors.simulate("horizontal", **settings)
    there = fedactors.run("horizontal", out=tmp_path / "a", **settings)
    assert json.loads(json.dumps(there.metrics)) == pytest.approx(here.metrics, abs=1e-6)
    again = fedactors.load_run(there.path).resume(out=tmp_path / "b", allow_import=[NET] if way == "norm" else [])
    assert again.metrics == pytest.approx(there.metrics)


def test_a_server_that_sends_another_model_is_refused(monkeypatch):
    honest = HorizontalServer._orders

    def longer(self, round):
        import dataclasses

        return {
            name: dataclasses.replace(order, parameters=np.append(order.parameters, 0.0))
            for name, order in honest(self, round).items()
        }

    monkeypatch.setattr(HorizontalServer, "_orders", longer)
    with pytest.raises(FedactorsError, match=r"sends client-\d TrainOrder.parameters of shape \(553,\); expected: 552"):
        play(changed(**{**SMALL, **HEAD}))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ({**HEAD, "local_parameters": "bodi.2"}, r"'bodi\.2' names nothing that is trained; did you mean body\.2"),
        ({**HEAD, "local_parameters": "head,xyz"}, r"'xyz' names nothing that is trained \(there are body\.1\.weight"),
        ({"model": "mlp", "local_parameters": "norm"}, "'norm' names nothing that is trained"),
        ({**HEAD, "local_parameters": "*"}, r"\* names the whole model, and nothing is left to share"),
        ({**HEAD, "validation_fraction": 0}, "local_parameters: each client has a model of its own, and needs rows"),
        ({**DITTO, "validation_fraction": 0}, "algorithm: each client has a model of its own, and needs rows"),
        ({"algorithm": "fedrep"}, "algorithm: fedrep is not allowed without local_parameters"),
        ({**HEAD, **DITTO}, "local_parameters: not allowed with algorithm=ditto"),
        ({**HEAD, "secure_aggregation": True}, "local_parameters: head is not allowed with secure_aggregation"),
        (
            {**DITTO, "client_clip_norm": 1, "client_noise_multiplier": 1},
            "algorithm: ditto is not allowed with client_clip_norm",
        ),
        (
            {**HEAD, "record_clip_norm": 1, "record_noise_multiplier": 1},
            "local_parameters: head is not allowed with record_clip_norm",
        ),
        ({**HEAD, "num_validation": 9}, "local_parameters: head is not allowed with num_validation"),
        ({**SMALL, "num_training": 3, "num_clients": 3}, "validation_fraction: 0.2 is not allowed: client 0 has 1 row"),
    ],
)
def test_what_cannot_be_is_one_line(words, line):
    with pytest.raises(FedactorsError, match=line) as found:
        fedactors.simulate("horizontal", **{**SMALL, **words})
    assert "\n" not in str(found.value)


def test_an_own_model_that_is_no_number_ends_the_run_with_its_site_s_name():
    with pytest.raises(Diverged, match=r"proximal: 1e\+06 diverges \(an own model at client-\d nan in round 1\)"):
        play(changed(**{**SMALL, **DITTO, "proximal": 1e6, "local_epochs": 60, "num_rounds": 1}))


def test_norm_is_every_normalisation_layer_and_a_tied_name_counts():
    spec = ModelSpec(name="residual-mlp", inputs=(3,), outputs=2, hidden_size=4, layers=1)
    assert local_entries(spec, ("norm",)) == ("1.norm.weight", "1.norm.bias", "2.weight", "2.bias")
    tied = ModelSpec(name="tests.learning.user_networks:Tied", inputs=(1, 8, 8), outputs=10)
    module = build_model(tied, 0)
    names = set(module.state_dict()) - set(shared_entries(module))
    assert names
    assert all(local_entries(tied, (name,)) for name in names)


def test_rows_that_a_client_of_a_named_set_measures_on_are_trained_on_by_nobody():
    config = changed(**{**SMALL, "num_training": 150})
    part, whole = load_data(config, "digits", 3).part(range(3)), changed(**{**SMALL, "validation_fraction": 0})
    for train, held, both in zip(
        part.clients, part.validation, load_data(whole, "digits", 3).part(range(3)).clients, strict=True
    ):
        assert (len(train.load().labels), len(held.load().labels)) == (40, 10)
        pieces = sorted(map(bytes, [*train.load().features, *held.load().features]))
        assert pieces == sorted(map(bytes, both.load().features))
