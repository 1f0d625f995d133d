"""Modules that a user might bring, good and bad."""

import os
import random
import warnings

import torch
from torch import nn
from torch.nn import functional


def good(inputs, outputs):
    width = torch.Size(inputs).numel()
    return nn.Sequential(nn.Flatten(), nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, outputs))


def normalised(inputs, outputs):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(torch.Size(inputs).numel()), good(inputs, outputs))


def dropping(inputs, outputs):
    return nn.Sequential(good(inputs, outputs), nn.Dropout(0.5))


def lazy(inputs, outputs):
    """Layers that learn their widths from what they are first given."""
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(outputs))


def lazy_mismatch(inputs, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(63, 8), nn.LazyLinear(outputs))


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


def all_frozen(inputs, outputs):
    return good(inputs, outputs).requires_grad_(False)


class Counting(nn.Module):
    """A mean over all that it has seen, which clients share only where it is declared."""

    seen: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += len(x)
        return x


class Declared(Counting):
    shared_buffers = ("seen",)


def counting(inputs, outputs):
    return nn.Sequential(good(inputs, outputs), Counting())


def declared(inputs, outputs):
    return nn.Sequential(good(inputs, outputs), Declared())


def unseeded(inputs, outputs):
    made = nn.Linear(inputs[-1], outputs)
    made.weight.data.fill_(int.from_bytes(os.urandom(3)))
    return made


class DroppingByFunction(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.body = good(inputs, outputs)

    def forward(self, x):
        return functional.dropout(self.body(x), 0.3, training=self.training)


def dropping_by_function(inputs, outputs):
    return DroppingByFunction(inputs, outputs)


class DroppingByPython(DroppingByFunction):
    """Stochastic depth, drawn by `random`."""

    def forward(self, x):
        return self.body(x) * (2.0 if self.training and random.random() < 0.5 else 1.0)


def dropping_by_python(inputs, outputs):
    return DroppingByPython(inputs, outputs)


class Recurrent(nn.Module):
    """Two layers with dropout between them, which is no module of its own."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.body = nn.LSTM(inputs[-1], 8, num_layers=2, dropout=0.4, batch_first=True)
        self.head = nn.Linear(8, outputs)

    def forward(self, x):
        return self.head(self.body(x.flatten(1, -2))[0][:, -1])


def recurrent(inputs, outputs):
    return Recurrent(inputs, outputs)


class Tied(nn.Module):
    """Two layers of one weight."""

    def __init__(self, inputs, outputs):
        super().__init__()
        width = torch.Size(inputs).numel()
        self.first, self.second = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.second.weight = self.first.weight
        self.head = nn.Linear(width, outputs)

    def forward(self, x):
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x.flatten(1))))))


def tied(inputs, outputs):
    return Tied(inputs, outputs)


class Rotated(nn.Module):
    """A table that is computed once, as of rotary positions; no client need be sent it."""

    def __init__(self, inputs, outputs):
        super().__init__()
        width = torch.Size(inputs).numel()
        self.register_buffer("table", torch.cos(torch.arange(width) / width))
        self.body = good(inputs, outputs)

    def forward(self, x):
        return self.body(x.flatten(1) * self.table)


def rotated(inputs, outputs):
    return Rotated(inputs, outputs)


class FrozenTrunk(nn.Module):
    """A trunk that is not trained, with normalisation, below a head that is."""

    def __init__(self, inputs, outputs):
        super().__init__()
        width = torch.Size(inputs).numel()
        trunk = nn.Sequential(nn.Flatten(), nn.Linear(width, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.trunk, self.head = trunk.requires_grad_(False), nn.Linear(32, outputs)

    def forward(self, x):
        return self.head(self.trunk(x))


def frozen_trunk(inputs, outputs):
    return FrozenTrunk(inputs, outputs)


class Remembering(nn.Module):
    """Changes with each call: by a counter, by a generator that no seed reaches, or by a buffer that travels."""

    shared_buffers = ("seen",)

    def __init__(self, inputs, outputs, how):
        super().__init__()
        self.body, self.how, self.calls = good(inputs, outputs), how, 0
        self.generator = torch.Generator().manual_seed(0)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        self.last = x  # harmless: nothing follows from it
        if self.how == "generator":
            x = x * torch.rand(x.shape, generator=self.generator)
        if self.how == "buffer":
            self.seen += 1  # type: ignore[assignment]
            return self.body(x) / self.seen
        return self.body(x) / (self.calls if self.how == "counter" else 1)


def counting_calls(inputs, outputs):
    return Remembering(inputs, outputs, "counter")


def drawing_alone(inputs, outputs):
    return Remembering(inputs, outputs, "generator")


def counting_in_a_buffer(inputs, outputs):
    return Remembering(inputs, outputs, "buffer")


def looking_back(inputs, outputs):
    return Remembering(inputs, outputs, "")


def counting_in_whole_numbers(inputs, outputs):
    module = Remembering(inputs, outputs, "buffer")
    module.seen = module.seen.long()
    return module


class Complex(nn.Module):
    """A filter in the frequency domain: complex, or by its real and imaginary parts."""

    def __init__(self, inputs, outputs, *, by_parts):
        super().__init__()
        drawn = torch.randn(8, 5, dtype=torch.cfloat)
        self.filter = nn.Parameter(torch.view_as_real(drawn) if by_parts else drawn)
        self.head = nn.Linear(64, outputs)

    def forward(self, x):
        taken = torch.view_as_complex(self.filter) if self.filter.ndim == 3 else self.filter
        return self.head(torch.fft.irfft(torch.fft.rfft(x.squeeze(1)) * taken, n=8).flatten(1))


def complex_parameter(inputs, outputs):
    return Complex(inputs, outputs, by_parts=False)


def complex_by_parts(inputs, outputs):
    return Complex(inputs, outputs, by_parts=True)


class Turned(nn.Module):
    """Constants that are complex, as those of rotary positions."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.register_buffer("turns", torch.polar(torch.ones(32), torch.arange(32.0)))
        self.head = nn.Linear(64, outputs)

    def forward(self, x):
        turned = torch.view_as_complex(x.reshape(-1, 32, 2)) * self.turns
        return self.head(torch.view_as_real(turned).flatten(1))


class Sparse(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.mix, self.head = nn.Parameter(torch.eye(64).to_sparse()), nn.Linear(64, outputs)

    def forward(self, x):
        return self.head(torch.sparse.mm(self.mix, x.flatten(1).T).T)


class TiedByMemory(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, outputs)
        self.second.weight.data = self.first.weight.data

    def forward(self, x):
        return self.head(self.second(self.first(x.flatten(1)).tanh()))


class HalfPrecision(nn.Module):
    """Computes in half precision by itself."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.body = good(inputs, outputs)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.body(x)


class Masked(nn.Module):
    """Half of its weights follow no gradient, by a hook."""

    def __init__(self, inputs=(1, 8, 8), outputs=10):
        super().__init__()
        self.head = nn.Linear(torch.Size(inputs).numel(), outputs)
        self.head.weight.register_hook(lambda gradient: gradient * (torch.arange(gradient.shape[1]) % 2))

    def forward(self, x):
        return self.head(x.flatten(1))


def halved(inputs, outputs):
    return good(inputs, outputs).bfloat16()


class Halving(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.body = good(inputs, outputs)

    def forward(self, x):
        return self.body(x.bfloat16())


def spectral(inputs, outputs):
    return nn.Sequential(nn.Flatten(), nn.utils.parametrizations.spectral_norm(nn.Linear(64, outputs)))


def spectral_shared(inputs, outputs):
    module = spectral(inputs, outputs)
    module.get_submodule("1.parametrizations.weight.0").shared_buffers = ("_u", "_v")
    return module


def scripted(inputs, outputs):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated")
        return torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(64, outputs)))


def scripted_within(inputs, outputs):
    return nn.Sequential(scripted(inputs, outputs))
