"""What the table of models-recipes.md names: small networks, losses and data of each kind, to copy from."""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import nn
from torch.utils.data import TensorDataset

import fedactors


class Net(nn.Module):
    """A frozen trunk and a head that is trained."""

    def __init__(self, inputs, outputs):  # (1, 8, 8), 10: a sample's shape, the width of the output
        super().__init__()
        width = torch.Size(inputs).numel()
        trunk = nn.Sequential(nn.Flatten(), nn.Linear(width, 32), nn.Tanh())
        self.trunk, self.head = trunk.requires_grad_(False), nn.Linear(32, outputs)

    def forward(self, x):
        return self.head(self.trunk(x))


def smoothed(outputs, targets):
    """Return a loss of one's own, a mean over the batch."""
    return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)


class Listener:
    """What is called after each round."""

    def round(self, number, metrics):
        print(number, metrics["test/accuracy"])


class BatchNet(nn.Module):
    """Batch normalisation."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.body = nn.Sequential(
            nn.Flatten(), nn.Linear(torch.Size(inputs).numel(), 32), nn.BatchNorm1d(32), nn.ReLU()
        )
        self.head = nn.Linear(32, outputs)

    def forward(self, x):
        return self.head(self.body(x))


class Words(nn.Module):
    """A bag of words: embeddings get word numbers as whole numbers."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.words = nn.EmbeddingBag(40, outputs)

    def forward(self, x):
        return self.words(x.flatten(1))


class NextToken(nn.Module):
    """The next word of a window."""

    def __init__(self, inputs, outputs):  # (8,), the number of words
        super().__init__()
        self.words, self.read, self.head = (
            nn.Embedding(outputs, 16),
            nn.GRU(16, 16, batch_first=True),
            nn.Linear(16, outputs),
        )

    def forward(self, x):
        return self.head(self.read(self.words(x))[0][:, -1])


def perplexity(outputs, targets):
    """Return a metric of one's own."""
    return nn.functional.cross_entropy(outputs, targets).exp()


class Tagger(nn.Module):
    """A class of each word, or the next one after each."""

    def __init__(self, inputs, outputs):  # (8,), the number of words; of causal language models and of taggers
        super().__init__()
        self.words, self.read, self.head = (
            nn.Embedding(40, 16),
            nn.GRU(16, 16, batch_first=True),
            nn.Linear(16, outputs),
        )

    def forward(self, x):  # (B, T) to (B, T, V)
        return self.head(self.read(self.words(x))[0])


class Days(nn.Module):
    """Two steps of as many values as a step has."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.line = nn.Linear(inputs[0], 2 * outputs)

    def forward(self, x):
        return self.line(x).unflatten(1, (2, -1))


class Forecast(nn.Module):
    """The next value of a series."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.read, self.head = nn.GRU(1, 8, batch_first=True), nn.Linear(8, outputs)

    def forward(self, x):
        return self.head(self.read(x[:, :, None])[0][:, -1])


def cut(values, width=8):
    """Return windows of a series, and what follows each."""
    found = np.lib.stride_tricks.sliding_window_view(values, width + 1)
    return found[:, :-1].astype(np.float32), found[:, -1]


def pretrained(inputs, outputs):
    """Return a model that begins with the parameters of a file."""
    net = Net(inputs, outputs)
    net.load_state_dict(torch.load("net.pt"))
    return net


def bert(inputs, outputs):
    """Return a small BERT with random weights."""
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return BertForSequenceClassification(BertConfig(vocab_size=40, num_labels=outputs, **sizes))


def gpt2(inputs, outputs):
    """Return a small GPT-2 with random weights: a causal language model as the library has it."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=outputs, n_positions=inputs[0], n_embd=16, n_layer=1, n_head=2))


def adapted(inputs, outputs):
    """Return BERT with LoRA at its attention, and a head that is trained."""
    import peft

    asked = peft.LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=["classifier"])
    return peft.get_peft_model(bert(inputs, outputs), asked)


def trimmed(state, updates, weights):
    """Return {"model": (P)}, and what you keep, after changes (S, P) with weights (S)."""
    state["model"] += stats.trim_mean(updates, 0.2, axis=0)
    return state


rng = np.random.default_rng(0)
x, y = rng.integers(0, 40, (90, 8)).astype(np.float32), rng.integers(0, 2, 90)
texts = fedactors.horizontal([(x[:30], y[:30]), (x[30:60], y[30:60])], test=(x[60:], y[60:]), task="multiclass")
words = [np.cumsum(rng.integers(1, 3, 60)) % 10 for _ in range(3)]
windows = fedactors.horizontal([cut(one) for one in words[:2]], test=cut(words[2]), task="multiclass")
waves = [np.sin(np.arange(80) / 5 + phase).astype(np.float32) for phase in range(3)]
series = fedactors.horizontal([cut(one) for one in waves[:2]], test=cut(waves[2]), task="regression")
lines = [rng.integers(0, 40, (30, 9)) for _ in range(3)]
shifted = [(one[:, :-1], one[:, 1:]) for one in lines]  # each word, and the next one
language = fedactors.horizontal(shifted[:2], test=shifted[2], task="tokens", classes=40)
padded = [(one, np.where(one > 30, -100, one % 4)) for one, _ in shifted]  # a kind of word; -100 does not count
tagged = fedactors.horizontal(padded[:2], test=padded[2], task="tokens", classes=["O", "PER", "LOC", "ORG"])
topics = [(x[first::3], (x[first::3, :3] > 20).astype(int)) for first in range(3)]
several = fedactors.horizontal(topics[:2], test=topics[2], task="multilabel", classes=["news", "sport", "film"])
joint = [pd.DataFrame(x[first::3, :5], columns=list("abcde")) for first in range(3)]
columns = fedactors.horizontal(joint[:2], test=joint[2], label=["d", "e"], task="regression")
ahead = [(one[0], np.stack([one[1], one[1] ** 2], 1).reshape(-1, 2, 1)) for one in map(cut, waves)]
future = fedactors.horizontal(ahead[:2], test=ahead[2], task="regression")
sets = [TensorDataset(torch.rand(30, 1, 8, 8), torch.arange(30) % 3) for _ in range(3)]
north, south, held = (pd.DataFrame({"age": x[:, 0], "dose": x[:, 1], "ill": y})[first::3] for first in range(3))
again = copy.copy(north)  # the same rows for another client
