# %% [markdown]
# # LoRA: train small adapters of a frozen model
#
# Five clients adapt one model. Its weights are frozen: each process builds them from the same file or seed, and only
# the adapters and the head travel. Here the model has random weights, which stand for those of a file, and the adapter
# is a dozen lines of PyTorch; models of `transformers` with `peft` are used in the same way.

# %%
import torch
from torch import nn


class LoRA(nn.Module):
    """A frozen linear layer, and a trained product of two thin matrices beside it."""

    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)  # at first it changes nothing

    def forward(self, x):
        """Return what the layer and its adapter give together."""
        return self.base(x) + self.up(self.down(x))


def pretrained():
    """Return the model before it is adapted; yours would load a file here."""
    torch.manual_seed(0)
    wide = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *wide, nn.Linear(256, 10))


def adapted():
    """Return it with adapters at its wide layers, and a head that is trained."""
    model = pretrained()
    model[1], model[3] = LoRA(model[1]), LoRA(model[3])
    return model


# %%
import fedactors

settings = {"num_clients": 5, "num_rounds": 10, "algorithm": "fedadam", "learning_rate": 0.05}
run = fedactors.simulate("horizontal", "digits", model=adapted, **settings)
run

# %% [markdown]
# The same with all parameters trained, for what one model costs on its way, and in all:

# %%
import pandas as pd

whole = fedactors.simulate("horizontal", "digits", model=pretrained, **settings)
rows = {
    name: {
        "parameters that travel": one.summary.extra["parameters"],
        "bytes of the run": one.summary.bytes,
        "test accuracy": round(one.metrics["test/accuracy"], 3),
    }
    for name, one in (("adapters", run), ("all", whole))
}
pd.DataFrame.from_dict(rows, orient="index")
