# %% [markdown]
# # LoRA: train small adapters of a frozen model
#
# Five clients adapt one language model of `transformers` to their texts. Its weights are frozen: each process builds
# them from the same file or seed, and only the adapters that `peft` adds, and the head, travel. Here the model has
# random weights, which stand for those of a file.

# %%
import warnings

warnings.simplefilter("ignore")  # what the libraries tell each other

import peft
import torch
from transformers import BertConfig, BertForSequenceClassification

WORDS = 60  # of the vocabulary


def pretrained(inputs, outputs):
    """Return the model before it is adapted; yours would be `from_pretrained(folder, num_labels=outputs)`."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    return BertForSequenceClassification(BertConfig(vocab_size=WORDS, num_labels=outputs, **sizes))


def adapted(inputs, outputs):
    """Return it with adapters at its attention, and a head that is trained."""
    asked = peft.LoraConfig(r=4, target_modules=["query", "value"], modules_to_save=["classifier"])
    return peft.get_peft_model(pretrained(inputs, outputs), asked)


# %% [markdown]
# A text is a row of token numbers. Each client has 60; the class is whether a word of the first third comes first.

# %%
import numpy as np

import fedactors

rng = np.random.default_rng(0)


def texts(rows):
    """Return texts of eight tokens, and their classes."""
    tokens = rng.integers(0, WORDS, (rows, 8))
    return tokens, (tokens[:, 0] < WORDS // 3).astype(int)


data = fedactors.horizontal([texts(60) for _ in range(5)], test=texts(200), task="multiclass")
settings = {"num_rounds": 12, "algorithm": "fedadam", "optimizer": "adam", "learning_rate": 0.02, "batch_size": 16}
settings |= {"local_epochs": 4, "standardisation": "none"}
run = fedactors.simulate("horizontal", data, model=adapted, **settings)
run

# %% [markdown]
# The same with all parameters trained, for what one model costs on its way, and in all:

# %%
import pandas as pd

whole = fedactors.simulate("horizontal", data, model=pretrained, **settings)
rows = {}
for name, one in (("adapters", run), ("all", whole)):
    (one_change,) = {row["bytes"] for row in one.ledger if row["type"] == "Change"}
    rows[name] = {
        "parameters that travel": one.summary.extra["parameters"],
        "bytes of a client's change": one_change,
        "bytes of the run": one.summary.bytes,
        "test accuracy": round(one.metrics["test/accuracy"], 3),
    }
pd.DataFrame.from_dict(rows, orient="index")
