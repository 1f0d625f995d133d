# %% [markdown]
# # Your own model, loss and metric
#
# A model is a class, a function or a module; a loss and a metric are functions. Only trained parameters travel.

# %%
import torch
from sklearn.metrics import cohen_kappa_score
from torch import nn


class Net(nn.Module):
    """Called with a sample's shape and the width of the output."""

    def __init__(self, inputs, outputs):
        super().__init__()
        width = torch.Size(inputs).numel()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, outputs))

    def forward(self, x):
        """Return the logits."""
        return self.layers(x)


def smoothed(outputs, targets):
    """Return the mean loss of a batch."""
    return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)


# %%
import fedactors

settings = {"model": Net, "loss": smoothed, "metric": cohen_kappa_score}
run = fedactors.simulate("horizontal", "digits", num_clients=5, num_rounds=8, learning_rate=0.1, **settings)
run

# %% [markdown]
# Your metric is measured in every round, beside the usual ones:

# %%
run.rounds.to_pandas()[["round", "training/loss", "test/accuracy", "test/cohen_kappa_score"]].round(3)

# %% [markdown]
# The model leaves as a module of PyTorch:

# %%
part = fedactors.load_part(run.export("exported", party="server", **settings)["server"][0].parent, model=Net)
part.bottom(torch.zeros(2, 1, 8, 8)).shape
