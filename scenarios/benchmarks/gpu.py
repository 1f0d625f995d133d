"""Training steps on a GPU: ours, ours on the CPU, and bare PyTorch on the same GPU.

    pubsub-vfl   a batch of two parties, hidden 256 to 4,096: what leaves a party comes to the host and goes back, as
                 between processes; `passive` and `active` are each party's share of the time
    glasu        a local update of a client on a whole graph, GCN of two layers: PubMed where FEDACTORS_DATA has it, and
                 synthetic ones
    horizontal   a client's pass with the CNN on images of Fashion-MNIST's shape
    nebulafl     a container's pass with ResNet-18 on images of CIFAR-10's shape
    lora         a client's pass of `horizontal` over texts with LoRA on a small BERT (needs peft and transformers)
    clients      clients a second, one after the other and in batched calls

Usage: python scenarios/benchmarks/gpu.py [--device cuda] [--only pubsub-vfl,glasu] [--smoke]
Prints one JSON line a row: seconds of each side, and `of bare` = bare PyTorch / ours (of the slower party where there
are two), `gain` = CPU / ours. Random rows; sides alternate, the best of `REPEATS` counts. ``--smoke``: the smallest
sizes, on the CPU where there is no GPU, where bare PyTorch is on the CPU as well.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedactors.config import build
from fedactors.data.datasets.load import to_csr
from fedactors.data.layouts.graph import NodeSplit
from fedactors.data.layouts.graph import graph as load_graph
from fedactors.learning.local_training import LocalTraining, train_locally
from fedactors.learning.models import ModelSpec, build_model
from fedactors.learning.network import DeviceArrays, find_device, initial_vector, on_device, on_host, to_device
from fedactors.learning.optimizers import Network, OptimizerSpec, OptimizerState
from fedactors.learning.split_learning import Publication, active_gradients
from fedactors.protocols.glasu import algorithm as glasu
from fedactors.protocols.glasu.backbones import Network as GlasuNetwork
from fedactors.protocols.glasu.backbones import initial_parameters
from fedactors.protocols.glasu.config import GlasuConfig
from fedactors.protocols.glasu.data import ClientGraph, client_graph
from fedactors.protocols.glasu.sampling import Adjacency
from scenarios.benchmarks.batched_clients import MODELS, measure

REPEATS = 5
Side = Callable[[], None]
ADAM = OptimizerSpec(name="adam", learning_rate=1e-3)


def best_seconds(sides: dict[str, Side], device: torch.device) -> dict[str, float]:
    """Return the shortest time of each side, after one call that does not count."""
    for side in sides.values():
        side()
    found = dict.fromkeys(sides, float("inf"))
    for _ in range(REPEATS):
        for name, side in sides.items():
            _wait(device)
            begun = time.perf_counter()
            side()
            _wait(device)
            found[name] = min(found[name], time.perf_counter() - begun)
    return found


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def compared(ours: Callable[[torch.device], Side], bare: Side, device: torch.device) -> dict[str, float]:
    """Return seconds of ours on the device and the CPU and of bare PyTorch, and their ratios."""
    sides = {"ours": ours(device), "bare": bare}
    if device.type != "cpu":
        sides["cpu"] = ours(torch.device("cpu"))
    found = best_seconds(sides, device)
    ratios = {"of bare": found["bare"] / found["ours"], "gain": found.get("cpu", found["ours"]) / found["ours"]}
    return {name: float(f"{value:.4g}") for name, value in {**found, **ratios}.items()}


# --- PubSub-VFL ---


def split_learning(hidden: int, rows: int, device: torch.device) -> dict[str, float]:
    """Compare a batch of two parties."""
    rng = np.random.default_rng(0)
    bottom = ModelSpec(name="mlp", inputs=(50,), outputs=hidden, hidden_size=hidden, layers=10)
    top = ModelSpec(name="top-mlp", inputs=(2 * hidden,), outputs=1, hidden_size=hidden)
    x = [rng.normal(size=(rows, 50)).astype(np.float32) for _ in range(2)]
    y = rng.integers(0, 2, rows).astype(np.float32)
    spent = {"active": float("inf"), "passive": float("inf")}

    def ours(where: torch.device) -> Side:
        networks = [Network(spec, ADAM, seed, where) for seed, spec in enumerate((bottom, bottom, top))]
        held, everything = [DeviceArrays(where), DeviceArrays(where)], np.arange(rows)

        def step() -> None:
            begun = time.perf_counter()
            publication = Publication(networks[1].model, held[1].take("x", x[1], everything))
            sent = publication.embed()
            half = time.perf_counter()
            mine = held[0].take("x", x[0], everything)
            target = held[0].take("y", y, everything)
            found = active_gradients(networks[0].model, networks[2].model, "binary", mine, [sent], target)
            networks[0].apply(found.bottom)
            networks[2].apply(found.top)
            _wait(where)
            then = time.perf_counter()
            networks[1].apply(publication.gradient(found.embeddings[0]))
            _wait(where)
            if where == device:
                spent["active"] = min(spent["active"], then - half)
                spent["passive"] = min(spent["passive"], half - begun + time.perf_counter() - then)

        return step

    modules = [build_model(spec, seed).to(device) for seed, spec in enumerate((bottom, bottom, top))]
    optimizers = [torch.optim.Adam(module.parameters(), lr=1e-3) for module in modules]
    inputs, target = [to_device(one, device) for one in x], to_device(y, device)

    def bare() -> None:
        output = modules[2](torch.cat([modules[0](inputs[0]), modules[1](inputs[1])], dim=1))
        loss = functional.binary_cross_entropy_with_logits(output.ravel(), target)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        loss.item()

    found = compared(ours, bare, device)
    found |= {name: float(f"{value:.4g}") for name, value in spent.items()}
    # in a run the parties work side by side, on batches of their own
    return {**found, "of bare": float(f"{found['bare'] / max(spent.values()):.4g}")}


# --- GLASU ---


def random_graph(num_nodes: int, degree: int) -> ClientGraph:
    """Return a graph of random edges, features and labels."""
    rng, num_classes, width = np.random.default_rng(0), 4, 16
    ends = np.sort(rng.integers(0, num_nodes, (num_nodes * degree // 2, 2)), axis=1)
    indptr, indices = to_csr(np.unique(ends[ends[:, 0] < ends[:, 1]], axis=0), num_nodes)
    nodes = rng.permutation(num_nodes)
    train, validation, test = np.split(nodes, [num_nodes // 2, num_nodes * 3 // 4])
    split = NodeSplit(rng.integers(0, num_classes, num_nodes), train, validation, test)
    features = rng.normal(size=(num_nodes, width)).astype(np.float32)
    return ClientGraph("client", Adjacency(indptr, indices), features, split, num_classes)


def pubmed() -> ClientGraph:
    """Return PubMed, whole at one client."""
    part = load_graph("pubmed", num_clients=1, edge_share=1.0).part("client-0")
    return client_graph("client", part.load())


def graph_update(make: Callable[[], ClientGraph], hidden: int, device: torch.device) -> dict[str, float]:
    """Compare a local update on the whole graph."""
    local = make()
    features, split = local.features_NF, local.nodes
    width, num_classes = features.shape[1], local.num_classes
    settings = {"special_case": "centralised", "backbone": "gcn", "num_layers": 2, "hidden_size": hidden, "dropout": 0}
    config = build(GlasuConfig, settings)
    network = GlasuNetwork.of(config, width, num_classes, 0)
    batch = glasu.full_batch(local, config.num_layers, torch.float32)
    first = initial_parameters(network, np.random.default_rng(0), np.random.default_rng(1))

    def ours(where: torch.device) -> Side:
        there = on_device(batch, where)
        kept: dict[str, Any] = {"parameters": on_device(first, where), "state": OptimizerState()}

        def step() -> None:
            arguments: Any = (kept["parameters"], network, there, ADAM, kept["state"], [], None, 1)
            kept["parameters"], kept["state"], _ = glasu.local_updates(*arguments)

        return step

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matrix = batch.operators[0].matrix_TS.to(device)
    x, labels = to_device(features, device), to_device(split.labels_N, device)
    train = to_device(np.sort(split.train), device)
    weights = [value.to(device).detach().clone().requires_grad_() for value in first.values()]
    optimizer = torch.optim.Adam(weights, lr=1e-3)

    def bare() -> None:
        named = dict(zip(first, weights, strict=True))
        h = x
        for layer in range(config.num_layers):
            h = functional.relu(matrix @ (h @ named[f"{layer}.weight"]) + named[f"{layer}.bias"])
        logits = torch.addmm(named["classifier.bias"], h, named["classifier.weight"])
        optimizer.zero_grad()
        loss = functional.cross_entropy(logits[train], labels[train])
        loss.backward()
        optimizer.step()
        loss.item()

    return compared(ours, bare, device)


# --- horizontal, NebulaFL ---


def image_pass(spec: ModelSpec, num_images: int, device: torch.device) -> dict[str, float]:
    """Compare a client's or container's pass over images."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(num_images, *spec.inputs)).astype(np.float32), rng.integers(0, spec.outputs, num_images)
    return client_pass(spec, x, y, device)


def text_pass(num_texts: int, length: int, device: torch.device) -> dict[str, float]:
    """Compare a client's pass over texts, of which LoRA's matrices and the head are trained."""
    rng = np.random.default_rng(0)
    spec = ModelSpec(name="scenarios.benchmarks.gpu:adapted_bert", inputs=(length,), outputs=2)
    return client_pass(spec, rng.integers(0, 1000, (num_texts, length)), rng.integers(0, 2, num_texts), device)


class Bert(nn.Module):
    """A BERT of four layers with random weights."""

    def __init__(self, outputs: int) -> None:
        from transformers import BertConfig, BertForSequenceClassification

        super().__init__()
        sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
        dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        config = BertConfig(vocab_size=1000, num_labels=outputs, **sizes, **dropout)
        self.bert = BertForSequenceClassification(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of word numbers."""
        return self.bert(input_ids=x.long()).logits


def adapted_bert(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    """Return it with LoRA on its attention, and a head that is trained."""
    from peft import LoraConfig, get_peft_model

    return get_peft_model(
        Bert(outputs), LoraConfig(r=4, target_modules=["query", "value"], modules_to_save=["classifier"])
    )


def client_pass(spec: ModelSpec, x: Any, y: Any, device: torch.device) -> dict[str, float]:
    """Compare `train_locally` with a plain loop, of batches of 50."""
    is_image, start, training = x.ndim == 4, initial_vector(spec, 0), LocalTraining(num_epochs=1, batch_size=50)
    layout: Any = torch.channels_last if is_image else torch.contiguous_format
    images = torch.tensor(x).contiguous(memory_format=layout)

    def ours(where: torch.device) -> Side:
        def train() -> None:
            train_locally(spec, start, images, y, seed=0, training=training, device=where)

        return train

    module = build_model(spec, 0).to(device).to(memory_format=layout)  # type: ignore[call-overload]
    trained = [value for value in module.parameters() if value.requires_grad]

    def bare() -> None:
        optimizer = torch.optim.SGD(trained, lr=0.01, momentum=0.9)
        for index in np.array_split(np.random.default_rng(0).permutation(len(x)), max(1, len(x) // 50)):
            images = to_device(x[index], device).contiguous(memory_format=layout)
            optimizer.zero_grad()
            loss = functional.cross_entropy(module(images), to_device(y[index], device))
            loss.backward()
            optimizer.step()
            loss.item()
        on_host(trained[0])

    return compared(ours, bare, device)


def rows(device: torch.device, smoke: bool) -> Iterator[tuple[str, dict[str, Any], Callable[[], dict[str, float]]]]:
    """Yield the protocol, the sizes and what measures them."""
    for hidden in (16,) if smoke else (256, 512, 1024, 2048, 4096):
        batch = 32 if smoke else 1024
        yield "pubsub-vfl", {"hidden": hidden, "rows": batch}, partial(split_learning, hidden, batch, device)
    if not smoke:
        yield "glasu", {"graph": "pubmed"}, partial(graph_update, pubmed, 64, device)
    for nodes in (2000,) if smoke else (100_000, 1_000_000):
        yield (
            "glasu",
            {"nodes": nodes, "degree": 10},
            partial(graph_update, partial(random_graph, nodes, 10), 64, device),
        )
    images = 4 if smoke else 1000
    for protocol, name, shape in (("horizontal", "cnn28", (1, 28, 28)), ("nebulafl", "resnet18", (3, 32, 32))):
        spec = ModelSpec(name=name, inputs=shape, outputs=10)
        yield protocol, {"model": name, "images": images}, partial(image_pass, spec, images, device)
    texts, length = (4, 8) if smoke else (1000, 64)
    if missing := [name for name in ("peft", "transformers") if importlib.util.find_spec(name) is None]:
        print(f"lora is left out: {' and '.join(missing)} not installed", file=sys.stderr)
    else:
        yield "lora", {"texts": texts, "length": length}, partial(text_pass, texts, length, device)
    for name in ("mlp 30-64-64-2",) if smoke else tuple(MODELS):
        clients = 16 if smoke else 256
        sizes = {"model": name, "clients": clients}
        yield "clients", sizes, partial(measure, MODELS[name], clients, 20, str(device))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--device", default=None, help="default: the first GPU; with --smoke the CPU where there is none"
    )
    parser.add_argument("--only", default="pubsub-vfl,glasu,horizontal,nebulafl,lora,clients")
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    device = find_device(args.device or ("auto" if args.smoke else "cuda"))
    torch.set_num_threads(1 if args.smoke else torch.get_num_threads())
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    for protocol, sizes, measured in rows(device, args.smoke):
        if protocol in args.only.split(","):
            print(json.dumps({"protocol": protocol, "device": name, **sizes, **measured()}), flush=True)


if __name__ == "__main__":
    main()
