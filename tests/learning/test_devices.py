"""Where tensors live: what a configuration may say, and that a device changes no number and no type of what leaves."""

import json
import sys

import numpy as np
import pytest
import torch

from fedactors.errors import BadInput
from fedactors.learning.local_training import LocalTraining, model_outputs, train_locally
from fedactors.learning.models import ModelSpec
from fedactors.learning.network import find_device, initial_vector
from scenarios.benchmarks import gpu

SPEC = ModelSpec(name="cnn8", inputs=(1, 8, 8), outputs=4)
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def test_words_are_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [str(find_device(text)) for text in ("auto", "cpu", "cuda", "cuda:1")] == ["cuda", "cpu", "cuda", "cuda:1"]
    with pytest.raises(BadInput, match=r"'cuda:2' is not allowed: this process sees 2 GPUs"):
        find_device("cuda:2")


def test_without_a_gpu_auto_is_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto") == torch.device("cpu")
    with pytest.raises(BadInput, match="sees 0 GPUs"):
        find_device("cuda")


@pytest.mark.parametrize("text", ["gpu", "cuda:", "cuda:x", "CPU", "meta", ""])
def test_other_words_are_refused(text):
    with pytest.raises(BadInput, match="use auto, cpu, cuda or cuda:N"):
        find_device(text)


def trained(device):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 1, 8, 8)).astype(np.float32), rng.integers(0, 4, 40)
    training = LocalTraining(batch_size=8, num_epochs=2, proximal=0.1)
    correction = np.full(initial_vector(SPEC, 0).shape, 1e-3, np.float32)
    result = train_locally(
        SPEC, initial_vector(SPEC, 0), x, y, seed=1, training=training, correction_P=correction, device=device
    )
    return result.vector, model_outputs(SPEC, result.vector, x, device=device)


def test_what_leaves_is_an_array_of_the_host():
    for made, plain in zip(trained(find_device("auto")), trained("cpu"), strict=True):
        assert isinstance(made, np.ndarray)
        np.testing.assert_allclose(made, plain, rtol=1e-4, atol=1e-5)


@GPU
def test_parameters_rows_and_moments_live_on_the_gpu():
    before = torch.cuda.memory_allocated()
    trained("cuda")
    assert torch.cuda.max_memory_allocated() > before


@pytest.mark.slow
def test_the_benchmark_of_gpus_runs_to_its_end_on_the_cpu(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--smoke", "--device", "cpu"])
    monkeypatch.setattr(gpu, "REPEATS", 1)
    gpu.main()
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    without_extras = [row for row in found if row["protocol"] != "lora"]
    assert [row["protocol"] for row in without_extras] == ["pubsub-vfl", "glasu", "horizontal", "nebulafl", "clients"]
    assert all(row["device"] == "cpu" for row in found)
    assert all(row[side] > 0 for row in found[:4] for side in ("ours", "bare", "of bare"))
