"""Models of other libraries, for real: LoRA by `peft`, transformers with random weights."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import fedactors
from fedactors.errors import BadInput

CLIENTS, ROWS, WORDS, VOCABULARY = 3, 24, 8, 40


def texts(seed: int = 0):
    """Return samples of word numbers, and whether word 1 is among the first three."""
    rng = np.random.default_rng(seed)
    x = rng.integers(2, VOCABULARY, (ROWS, WORDS)).astype(np.float32)
    y = rng.integers(0, 2, ROWS)
    x[y == 1, rng.integers(0, 3)] = 1
    return x, y


def data():
    return fedactors.horizontal([texts(seed) for seed in range(CLIENTS)], test=texts(9), task="multiclass")


class Classifier(nn.Module):
    """A small BERT with random weights that reads word numbers."""

    def __init__(self) -> None:
        from transformers import BertConfig, BertForSequenceClassification

        super().__init__()
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        config = BertConfig(vocab_size=VOCABULARY, **sizes)
        self.bert = BertForSequenceClassification(config)

    def forward(self, x):
        return self.bert(input_ids=x.flatten(1).long()).logits


def adapted():
    """Return it with LoRA on its attention, and a head that is trained."""
    from peft import LoraConfig, get_peft_model

    asked = LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=["classifier"])
    return get_peft_model(Classifier(), asked)


SMALL = {"num_rounds": 2, "batch_size": 8, "learning_rate": 0.05, "standardisation": "none"}


def test_a_transformer_trains_whole(monkeypatch):
    pytest.importorskip("transformers", reason="needs the extra `transformers`")
    run = fedactors.simulate("horizontal", data(), model=Classifier, algorithm="fedadam", **SMALL)
    assert np.isfinite(run.metrics["test/loss"])


def test_of_lora_only_adapters_travel_and_the_export_holds_the_whole(tmp_path):
    pytest.importorskip("peft", reason="needs the extra `peft`")
    pytest.importorskip("transformers", reason="needs the extra `peft`")
    run = fedactors.simulate("horizontal", data(), model=adapted, out=tmp_path, **SMALL)
    module = adapted()
    trained = sum(value.numel() for value in module.parameters() if value.requires_grad)
    whole = sum(value.numel() for value in module.parameters())
    assert run.summary.extra["parameters"] == trained < whole / 10
    changes = [row["bytes"] for row in run.ledger if row["type"] == "Change"]
    assert len(changes) == 2 * CLIENTS
    assert max(changes) < 4 * trained + 200
    again = fedactors.load_run(run.path).resume(model=adapted, data=data(), out=tmp_path / "again")
    assert again.metrics == run.metrics
    files = run.export(tmp_path / "model")["server"]
    part = fedactors.load_part(tmp_path / "model/server", model=adapted)
    assert sum(value.numel() for value in part.bottom.parameters()) == whole
    assert {"bottom.safetensors", "bottom.pt2"} <= {path.name for path in files}
    x = torch.from_numpy(texts(9)[0])
    assert part.bottom(x).shape == (ROWS, 2)
    program = torch.export.load(tmp_path / "model/server/bottom.pt2").module()  # `peft` calls it by ``forward(*args)``
    assert torch.allclose(program(x), part.bottom(x), atol=1e-6)


@pytest.mark.parametrize("algorithm", ["scaffold", "fedadam"])
def test_lora_by_each_kind_of_method(algorithm):
    pytest.importorskip("peft", reason="needs the extra `peft`")
    run = fedactors.simulate("horizontal", data(), model=adapted, algorithm=algorithm, **{**SMALL, "momentum": 0.0})
    assert np.isfinite(run.metrics["test/loss"])


def test_of_a_transformer_layer_norms_stay_at_each_client():
    pytest.importorskip("transformers", reason="needs the extra `transformers`")
    settings = {**SMALL, "local_parameters": "norm", "validation_fraction": 0.25}
    run = fedactors.simulate("horizontal", data(), model=Classifier, **settings)
    stays = run.summary.extra["local_parameters"]
    whole = {name: value.numel() for name, value in Classifier().named_parameters()}
    assert stays == [name for name in whole if "LayerNorm" in name]
    assert run.summary.extra["parameters"] == sum(whole.values()) - sum(whole[name] for name in stays)


def causal(inputs, outputs):
    """Return a small GPT-2 with random weights, as the library has it: tied embeddings, logits in an object."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=outputs, n_positions=inputs[0], n_embd=16, n_layer=1, n_head=2))


def lines(seed: int):
    """Return lines in which each word follows from the one before, and the word after each."""
    first = np.random.default_rng(seed).integers(0, VOCABULARY, (ROWS, 1))
    whole = (first + 3 * np.arange(WORDS + 1)) % VOCABULARY
    return whole[:, :-1], whole[:, 1:]


class Memory(nn.Module):
    """A model that tells what it was given."""

    seen: ClassVar[list[torch.dtype]] = []

    def __init__(self, inputs, outputs):
        super().__init__()
        self.words = nn.Embedding(outputs, outputs)
        self.words.register_forward_pre_hook(lambda module, given: self.seen.append(given[0].dtype))

    def forward(self, x):
        return self.words(x)


def test_a_causal_language_model_of_transformers_trains_as_it_is(tmp_path):
    pytest.importorskip("transformers", reason="needs the extra `peft`")
    data = fedactors.horizontal([lines(0), lines(1)], test=lines(9), task="tokens", classes=VOCABULARY)
    settings = {"num_rounds": 6, "optimizer": "adam", "learning_rate": 0.02, "batch_size": 4, "local_epochs": 3}
    run = fedactors.simulate("horizontal", data, model=causal, out=tmp_path, **settings)
    first, last = run.rounds["test/perplexity"][0], run.rounds["test/perplexity"][-1]
    assert last < first / 2 < VOCABULARY / 2
    given = causal((WORDS,), VOCABULARY)
    assert run.summary.extra["parameters"] == sum(one.numel() for one in given.parameters())  # tied ones once
    again = fedactors.simulate("horizontal", data, model=given, **{**settings, "num_rounds": 1})
    assert np.isfinite(again.metrics["test/perplexity"])


def test_tokens_are_whole_numbers_where_they_are_looked_up():
    data = fedactors.horizontal([lines(0), lines(1)], test=lines(9), task="tokens", classes=VOCABULARY)
    run = fedactors.simulate("horizontal", data, model=Memory, num_rounds=1)
    assert np.isfinite(run.metrics["test/loss"])
    from fedactors.learning.models import ModelSpec, build_model

    spec = ModelSpec(name=run.config["model"], inputs=(WORDS,), outputs=VOCABULARY, positions=(WORDS,))
    found = build_model(spec, 0)(torch.tensor([[0.0, 39.0, 7.0]]))
    assert found.shape == (1, 3, VOCABULARY)


def test_what_is_no_token_is_refused_where_tokens_are_looked_up():
    """Standardised columns would be cut off to the first few tokens."""

    class Near(nn.Module):
        def __init__(self, inputs, outputs):
            super().__init__()
            self.words = nn.EmbeddingBag(VOCABULARY, outputs)

        def forward(self, x):
            return self.words(x.abs())

    with pytest.raises(BadInput, match=r"numbers that are not whole: standardised columns \(standardisation=none"):
        fedactors.simulate("horizontal", data(), model=Near, num_rounds=1)
    fedactors.simulate("horizontal", data(), model=Near, num_rounds=1, standardisation="none")
