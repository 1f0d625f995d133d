"""Targets that are an array each: classes of tokens, several labels, several values; equal to a plain loop of torch."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sklearn.metrics
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import fedactors
from fedactors.actors.context import derived_seed
from fedactors.cli.main import main
from fedactors.errors import BadInput
from fedactors.learning.local_training import LocalTraining, evaluate_model, train_privately
from fedactors.learning.many_clients import why_not_together
from fedactors.learning.metrics import task_metrics
from fedactors.learning.models import ModelSpec, task_loss
from fedactors.learning.network import initial_vector, load_vector, to_vector
from fedactors.privacy.accounting import RecordPrivacy
from fedactors.protocols.horizontal.algorithm import mean_scores
from tests.protocols.horizontal.federation import changed, cut, play, vector_of

HERE = "tests.protocols.horizontal.test_targets"
LENGTH, WORDS, LABELS = 6, 5, 3
RNG = np.random.default_rng(0)
WAY = RNG.normal(size=(4, LABELS))


class Tagger(nn.Module):
    """A class of each token."""

    def __init__(self, inputs: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.words, self.read, self.head = (
            nn.Embedding(WORDS, 8),
            nn.GRU(8, 8, batch_first=True),
            nn.Linear(8, outputs),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.read(self.words(x.long()))[0])


class Steps(nn.Module):
    """Two steps of several values."""

    def __init__(self, inputs: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.line = nn.Linear(inputs[0], 2 * outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.line(x).unflatten(1, (2, -1))


def sentences(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Words that count upwards, and the next of each; some rows are short, and their padding does not count."""
    rng = np.random.default_rng(seed)
    words = (np.arange(LENGTH + 1) + rng.integers(0, WORDS, (count, 1))) % WORDS
    targets = words[:, 1:].copy()
    targets[np.arange(LENGTH) >= rng.integers(2, LENGTH + 1, (count, 1))] = -100
    return words[:, :-1], targets


def labelled(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)
    return x, (x @ WAY > 0.2).astype(np.int64)


def values(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    x, _ = labelled(count, seed)
    return x, (x @ WAY).astype(np.float32)


def steps(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = values(count, seed)
    return x, np.stack([y, y**2], axis=1)


def token_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=-100)


def label_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.BCEWithLogitsLoss()(outputs, targets.to(outputs.dtype))


def value_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.MSELoss()(outputs, targets.to(outputs.dtype))


KINDS: dict[str, Any] = {
    "tokens": (sentences, {"task": "tokens", "classes": WORDS}, f"{HERE}:Tagger", token_loss),
    "multilabel": (labelled, {"task": "multilabel", "classes": ["a", "b", "c"]}, "linear", label_loss),
    "values": (values, {}, "linear", value_loss),
    "steps": (steps, {}, f"{HERE}:Steps", value_loss),
}
SIZES = (20, 31, 12)
PLAIN = {
    "num_clients": None, "num_training": None, "batch_size": 8, "local_epochs": 2, "num_rounds": 3,
    "learning_rate": 0.3, "momentum": 0.5, "optimizer": "sgd", "schedule": "constant",
    "standardisation": "none", "dirichlet": None,
}  # fmt: skip


def data_of(kind: str, **more: Any) -> fedactors.data.objects.Objects:
    make, facts, *_ = KINDS[kind]
    parts = [make(size, seed) for seed, size in enumerate(SIZES)]
    return fedactors.horizontal(parts, test=make(15, 9), **{**facts, **more})


def module_of(kind: str) -> nn.Module:
    inputs = (LENGTH,) if kind == "tokens" else (4,)
    made = {"tokens": Tagger(inputs, WORDS), "steps": Steps(inputs, LABELS)}.get(kind, nn.Linear(4, LABELS))
    return made.double()


def spec_of(kind: str) -> ModelSpec:
    positions = {"tokens": (LENGTH,), "steps": (2,)}.get(kind, ())
    inputs = (LENGTH,) if kind == "tokens" else (4,)
    outputs = WORDS if kind == "tokens" else LABELS
    return ModelSpec(name=KINDS[kind][2], inputs=inputs, outputs=outputs, positions=positions, float64=True)


def by_hand(kind: str) -> np.ndarray:
    """FedAvg as a loop of torch."""
    make, _, _, loss_of = KINDS[kind]
    vector = initial_vector(spec_of(kind), derived_seed(0, "all clients", "model"))
    rows = [tuple(map(torch.from_numpy, make(size, seed))) for seed, size in enumerate(SIZES)]
    for number in range(1, PLAIN["num_rounds"] + 1):
        ends = []
        for client, (x, y) in enumerate(rows):
            module = module_of(kind)
            load_vector(module, vector)
            step = torch.optim.SGD(module.parameters(), PLAIN["learning_rate"], PLAIN["momentum"])
            order = np.random.default_rng(derived_seed(0, f"client {client}", f"rows {number}"))
            for _ in range(PLAIN["local_epochs"]):
                shuffled = order.permutation(len(x))
                for first in range(0, len(x), PLAIN["batch_size"]):
                    batch = shuffled[first : first + PLAIN["batch_size"]]
                    step.zero_grad()
                    loss_of(module(x[batch].double()), y[batch]).backward()
                    step.step()
            ends.append(to_vector(module))
        vector = np.asarray(sum(size / sum(SIZES) * end for size, end in zip(SIZES, ends, strict=True)))
    return vector


@pytest.mark.parametrize("further", [{}, {"micro_batch_size": 3}, {"together": False}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_federated_averaging_equals_a_plain_loop_of_torch(kind, further):
    data = data_of(kind)
    _, recorder, _ = play(changed(**PLAIN, **further, model=KINDS[kind][2]), name=data.address)
    assert np.abs(vector_of(recorder) - by_hand(kind)).max() < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_of_ones_own_gets_outputs_and_targets_in_their_shapes(kind):
    vectors = []
    for loss in ("auto", f"{HERE}:{KINDS[kind][3].__name__}"):
        data = data_of(kind)
        _, recorder, _ = play(changed(**PLAIN, model=KINDS[kind][2], loss=loss), name=data.address)
        vectors.append(vector_of(recorder))
    assert np.abs(vectors[0] - vectors[1]).max() < 1e-12


def test_a_batch_without_a_token_that_counts_moves_nothing():
    outputs = torch.randn(2, LENGTH, WORDS, requires_grad=True)
    loss = task_loss("tokens", outputs, torch.full((2, LENGTH), -100))
    loss.backward()
    assert loss.item() == 0.0
    assert not outputs.grad.any()


def test_a_row_under_noise_counts_by_its_own_tokens():
    spec, (x, y) = spec_of("tokens"), sentences(10, 0)
    start = initial_vector(spec, 0)
    privacy = RecordPrivacy(clip_norm=1e6, noise_multiplier=1e-15, batch_size=10, num_epochs=1)
    plain = LocalTraining(task="tokens")
    with pytest.raises(BadInput, match="GRU"):
        train_privately(spec, start, x, y, secret=(1,), privacy=privacy, training=plain)
    spec = ModelSpec(**{**vars(spec), "name": f"{HERE}:Bag"})
    start = initial_vector(spec, 0)
    end = train_privately(spec, start, x, y, secret=(1,), privacy=privacy, training=plain)
    module = Bag((LENGTH,), WORDS).double()
    load_vector(module, start)
    rows = [token_loss(module(torch.from_numpy(x[n : n + 1])), torch.from_numpy(y[n : n + 1])) for n in range(10)]
    torch.stack(rows).mean().backward()
    moved = start - plain.optimizer.learning_rate * np.concatenate(
        [parameter.grad.numpy().ravel() for parameter in module.parameters()]
    )
    assert np.abs(end - moved).max() < 1e-8


class Bag(nn.Module):
    """A class of each token, of itself alone."""

    def __init__(self, inputs: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(x.long()))


def test_clients_with_several_values_train_in_one_call_and_those_with_tokens_do_not():
    assert why_not_together(spec_of("values"), "regression") == ""
    assert why_not_together(spec_of("multilabel"), "multilabel") == ""
    assert "different numbers" in why_not_together(spec_of("tokens"), "tokens")


# --- metrics ---


def test_metrics_of_tokens_are_over_those_that_count():
    spec, (x, y) = spec_of("tokens"), sentences(40, 3)
    vector = initial_vector(spec, 1)
    module = module_of("tokens")
    load_vector(module, vector)
    logits = module(torch.from_numpy(x)).detach()
    loss = token_loss(logits, torch.from_numpy(y)).item()
    right = (logits.argmax(-1).numpy() == y)[y != -100].mean()
    found = evaluate_model(spec, vector, x, y, task="tokens", batch_size=7)
    assert found == pytest.approx({"loss": loss, "accuracy": right, "perplexity": np.exp(loss)}, abs=1e-12)
    assert task_metrics("tokens", y, logits.numpy()) == pytest.approx(found, abs=1e-12)


def test_scores_of_clients_are_those_of_all_their_tokens():
    y, logits = sentences(30, 1)[1], RNG.normal(size=(30, LENGTH, WORDS))
    parts = [
        (int((y[rows] != -100).sum()), task_metrics("tokens", y[rows], logits[rows]))
        for rows in np.split(np.arange(30), [4, 17])
    ]
    assert mean_scores(parts) == pytest.approx(task_metrics("tokens", y, logits), abs=1e-12)


def test_metrics_of_several_labels_are_those_of_scikit_learn():
    y, logits = labelled(50, 2)[1], RNG.normal(size=(50, LABELS))
    y[:, 2] = 1  # an AUC that is not defined
    found, chosen = task_metrics("multilabel", y, logits), logits > 0
    assert found["accuracy"] == pytest.approx(sklearn.metrics.accuracy_score(y, chosen))
    assert found["f1"] == pytest.approx(sklearn.metrics.f1_score(y, chosen, average="macro"))
    assert found["micro_f1"] == pytest.approx(sklearn.metrics.f1_score(y, chosen, average="micro"))
    assert found["auc_1"] == pytest.approx(sklearn.metrics.roc_auc_score(y[:, 1], logits[:, 1]))
    assert found["auc"] == pytest.approx((found["auc_0"] + found["auc_1"]) / 2)
    assert np.isnan(found["auc_2"])
    assert found["loss"] == pytest.approx(label_loss(torch.tensor(logits), torch.tensor(y)).item(), abs=1e-12)


def test_metrics_of_several_values_are_those_of_scikit_learn():
    y, outputs = RNG.normal(size=(2, 50, LABELS))
    found = task_metrics("regression", y, outputs)
    assert found["r2"] == pytest.approx(sklearn.metrics.r2_score(y, outputs))
    assert found["loss"] == pytest.approx(sklearn.metrics.mean_squared_error(y, outputs))
    assert found["mae"] == pytest.approx(sklearn.metrics.mean_absolute_error(y, outputs))


def word_accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    assert outputs.shape == (len(targets), WORDS)
    return float((outputs.argmax(1) == targets).double().mean())


def test_a_metric_of_ones_own_gets_the_tokens_that_count():
    run = fedactors.simulate("horizontal", data_of("tokens"), model=Tagger, metric=word_accuracy, num_rounds=1)
    assert run.metrics["test/word_accuracy"] == pytest.approx(run.metrics["test/accuracy"])


# --- data, and what comes after training ---


def test_torch_data_sets_and_arrays_train_alike():
    sets = [TensorDataset(*map(torch.from_numpy, sentences(size, seed))) for seed, size in enumerate((8, 9, 10))]
    more = {"task": "tokens", "classes": WORDS}
    arrays = [tuple(one.numpy() for one in held.tensors) for held in sets]
    pairs = [[held[index] for index in range(len(held))] for held in sets]
    runs = [
        fedactors.simulate("horizontal", fedactors.horizontal(one[:2], test=one[2], **more), model=Tagger, num_rounds=1)
        for one in (sets, arrays, pairs)
    ]
    assert runs[0].metrics == runs[1].metrics == runs[2].metrics


def parquet(folder: Path) -> str:
    """Write columns of lists, and a description of them."""
    for name, (x, y) in {"north": sentences(20, 0), "south": sentences(25, 1), "test": sentences(9, 2)}.items():
        pq.write_table(pa.table({"words": x.tolist(), "next": y.tolist()}), folder / f"{name}.parquet")
    parties = "".join(f'[parties.{name}]\npath = "{name}.parquet"\nlabel = "next"\n' for name in ("north", "south"))
    head = f'[task]\nlayout = "horizontal"\ntype = "tokens"\nclasses = {WORDS}\nshape = [{LENGTH}]\n'
    (folder / "parties.toml").write_text(f'{head}test = "test.parquet"\n{parties}')
    return str(folder / "parties.toml")


def test_columns_of_lists_are_trained_on_predicted_and_exported(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parties, named = parquet(tmp_path), f"{HERE}:Tagger"
    words = ["run", "horizontal", "--data", parties, f"model={named}", "num_rounds=3", "--runtime", "simulated"]
    assert main([*words, "--format", "json", "--quiet"]) == 0, capsys.readouterr().err
    run = fedactors.load_run(json.loads(capsys.readouterr().out.splitlines()[-1])["run"])
    x = sentences(4, 7)[0]
    pq.write_table(pa.table({"words": x.tolist()}), "new.parquet")
    Path("new.toml").write_text(
        '[task]\nlayout = "horizontal"\ntype = "tokens"\n[parties.north]\npath = "new.parquet"\n'
    )
    asked = ["predict", str(run.path), "--data", "new.toml", "--allow-import", named, "--output", "found.csv"]
    assert main(asked) == 0, capsys.readouterr().err
    assert main(["export", str(run.path), "--allow-import", named, "--output", "model"]) == 0, capsys.readouterr().err
    network = fedactors.load_part("model/server", allow_import=(named,)).bottom
    expected = network(torch.from_numpy(x)).argmax(-1).tolist()
    with Path("found.csv").open() as file:
        assert [row["prediction"] for row in csv.DictReader(file)] == [" ".join(map(str, row)) for row in expected]


def test_predictions_of_several_labels_and_values(tmp_path):
    for kind, names in (
        ("multilabel", ["probability_a", "probability_b", "probability_c"]),
        ("steps", ["prediction_1_2"]),
    ):
        model, settings = {} if kind == "multilabel" else {"model": Steps}, {"num_rounds": 1, "standardisation": "none"}
        run = fedactors.simulate("horizontal", data_of(kind), out=tmp_path / kind, **settings, **model)
        x = KINDS[kind][0](3, 5)[0]
        rows = fedactors.horizontal([x], **{"task": "regression", **KINDS[kind][1]})
        run.predict(rows, tmp_path / "found.csv", **model)
        with (tmp_path / "found.csv").open() as file:
            found = list(csv.DictReader(file))
        run.export(tmp_path / "model", **model)
        output = fedactors.load_part(tmp_path / "model/server", **model).bottom(torch.from_numpy(x)).detach().numpy()
        if kind == "steps":
            assert [float(row[names[0]]) for row in found] == pytest.approx(output[:, 1, 2].tolist(), abs=1e-6)
            continue
        shares = np.array([[float(row[name]) for name in names] for row in found])
        assert shares == pytest.approx(1 / (1 + np.exp(-output)), abs=1e-6)
        assert [row["prediction"] for row in found] == [
            "|".join(name for name, share in zip("abc", row, strict=True) if share > 0.5) for row in shares
        ]


def test_a_run_that_was_cut_goes_on_to_the_same_model():
    config = changed(**PLAIN, model=f"{HERE}:Tagger")
    data = data_of("tokens")
    _, whole, _ = play(config, name=data.address)
    _, snapshot = cut(config, 2, name=data.address)
    _, resumed, _ = play(config, name=data.address, resume=snapshot)
    assert np.array_equal(vector_of(whole), vector_of(resumed))


def test_clients_keep_heads_of_their_own_for_tokens():
    run = fedactors.simulate(
        "horizontal", data_of("tokens"), model=Tagger, local_parameters="head", validation_fraction=0.3, num_rounds=2
    )
    assert "validation/spread_perplexity" in run.metrics


WORDS_X, WORDS_Y = sentences(12, 0)
VECTORS, SIGNS = labelled(12, 0)
REFUSED: dict[str, Any] = {
    "a label short": (
        {"x": WORDS_X, "y": WORDS_Y[:, :-1], "task": "tokens", "classes": WORDS, "target_shape": [LENGTH]},
        "shape",
    ),
    "no number of classes": ({"x": WORDS_X, "y": WORDS_Y, "task": "tokens"}, "classes: missing"),
    "a class beyond": ({"x": WORDS_X, "y": WORDS_Y, "task": "tokens", "classes": 3}, "0 to 2, or -100"),
    "nothing counts": (
        {"x": WORDS_X, "y": np.full_like(WORDS_Y, -100), "task": "tokens", "classes": WORDS},
        "no token counts",
    ),
    "no task": ({"x": VECTORS, "y": SIGNS}, "'multilabel'"),
    "of one class a row": ({"x": VECTORS, "y": SIGNS, "task": "binary"}, "'multilabel'"),
    "a label of 2": ({"x": VECTORS, "y": 2 * SIGNS, "task": "multilabel"}, "0 or 1 of each label"),
    "names for fewer labels": ({"x": VECTORS, "y": SIGNS, "task": "multilabel", "classes": ["a", "b"]}, "2"),
    "weights of classes": (
        {"x": VECTORS, "y": SIGNS, "task": "multilabel", "class_weights": {"0": 2}},
        "class_weights",
    ),
    "a missing value": ({"x": VECTORS, "y": np.where(SIGNS, np.nan, 0.5), "task": "regression"}, "missing"),
    "no model for tokens": (
        {"x": WORDS_X, "y": WORDS_Y, "task": "tokens", "classes": WORDS, "model": "linear"},
        "of your own",
    ),
    "another output": (
        {"x": WORDS_X, "y": WORDS_Y, "task": "tokens", "classes": WORDS, "model": Steps},
        "not (2, 6, 5)",
    ),
}


def train(clients: list[Any], test: Any, model: Any, **facts: Any) -> None:
    fedactors.simulate("horizontal", fedactors.horizontal(clients, test=test, **facts), model=model, num_rounds=1)


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused_in_one_line(what):
    given, said = REFUSED[what]
    given = dict(given)
    x, y, model = given.pop("x"), given.pop("y"), given.pop("model", Tagger if len(given) > 1 else "linear")
    with pytest.raises(BadInput) as caught:
        train([(x[:6], y[:6]), (x[6:], y[6:])], (x[:5], y[:5]), model, **given)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_lists_of_different_lengths_are_refused(tmp_path):
    parties = parquet(tmp_path)
    pq.write_table(pa.table({"words": [[1, 2], [3]], "next": [[1, 2], [3, 4]]}), tmp_path / "north.parquet")
    with pytest.raises(BadInput, match="bring all to one length"):
        fedactors.simulate("horizontal", parties, model=Tagger, num_rounds=1)


def test_a_site_refuses_them_before_a_run():
    from fedactors.data.description import read_task

    with pytest.raises(BadInput, match="tokens is not allowed at a site"):
        read_task({"layout": "horizontal", "type": "tokens", "classes": 5, "test": "t.csv"}, "data.x.task", Path("."))
