"""Modules that a user might bring, good and bad."""

import torch
from torch import nn


def good(inputs, outputs):
    width = torch.Size(inputs).numel()
    return nn.Sequential(nn.Flatten(), nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, outputs))


def normalised(inputs, outputs):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(torch.Size(inputs).numel()), good(inputs, outputs))


def dropping(inputs, outputs):
    return nn.Sequential(good(inputs, outputs), nn.Dropout(0.5))


def too_wide(inputs, outputs):
    return good(inputs, outputs + 1)


def frozen(inputs, outputs):
    module = good(inputs, outputs)
    module[1].bias.requires_grad_(False)
    return module


class Unused(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.body, self.forgotten = good(inputs, outputs), nn.Linear(2, 2)

    def forward(self, x):
        return self.body(x)


def unused(inputs, outputs):
    return Unused(inputs, outputs)


def constant(inputs, outputs):
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def forward(self, x):
            return torch.zeros(len(x), outputs)

    return Constant()


def nothing(inputs, outputs):
    return None


def without_parameters(inputs, outputs):
    return nn.Flatten()


def fails(inputs, outputs):
    raise RuntimeError("no such weights\nand more lines")


def mismatch(inputs, outputs):
    return nn.Linear(3, outputs)


not_callable = 3


class Sage(nn.Module):
    """A graph layer: a node's own row beside the mean over its neighbours."""

    def __init__(self, inputs, outputs):
        super().__init__()
        (width,) = inputs
        self.root, self.others = nn.Linear(width, outputs), nn.Linear(width, outputs, bias=False)

    def forward(self, root, mixed):
        return torch.relu(self.root(root) + self.others(mixed))


def sage(inputs, outputs):
    return Sage(inputs, outputs)


class Convolution(nn.Module):
    """What GCN does, whose weights have the other orientation."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(*inputs, outputs) * 0.2)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, root, mixed):
        return torch.relu(mixed @ self.weight + self.bias)


def convolution(inputs, outputs):
    return Convolution(inputs, outputs)


def mixing(inputs, outputs):
    class Mixing(Sage):
        def forward(self, root, mixed):
            return torch.softmax(self.root(root) + self.others(mixed), dim=0)

    return Mixing(inputs, outputs)
