"""How fast GLASU's parts are: the centralised step against plain torch, sampling, and joint inference on Ray.

python scenarios/benchmarks/glasu_speed.py step        # M = 1, full batch, against the same network in plain torch
python scenarios/benchmarks/glasu_speed.py sampling    # 1,000,000 edges, batch 1,024, two layers, 3 neighbours
python scenarios/benchmarks/glasu_speed.py costs cora  # seconds per unit of work, for the simulated runtime's model
python scenarios/benchmarks/glasu_speed.py one-update cora     # Q = 1: the joint inference as the update's forward pass
python scenarios/benchmarks/glasu_speed.py inference   # three clients on Ray: seconds per aggregation layer

The step's two sides alternate, so that a busy machine slows both alike; ratios of the medians are what counts.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
import warnings
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from fedactors.config import build
from fedactors.data.layouts.graph import graph
from fedactors.learning.optimizers import OptimizerSpec, OptimizerState
from fedactors.protocols.glasu import algorithm, sampling
from fedactors.protocols.glasu.aggregation import add
from fedactors.protocols.glasu.backbones import Network, initial_parameters
from fedactors.protocols.glasu.config import GlasuConfig
from fedactors.protocols.glasu.data import client_graph, load_client, parts_of, read_blocks, scale_features

REPEATS = 60


def plain_step(config: GlasuConfig, block: Any, num_classes: int) -> Any:
    """Return a training step of the same network as one would write it with torch alone: sparse CSR, autograd, Adam."""
    num_nodes = block.num_nodes
    degrees = np.diff(block.indptr)
    rows = np.concatenate([np.repeat(np.arange(num_nodes), degrees), np.arange(num_nodes)])
    columns = np.concatenate([block.indices, np.arange(num_nodes)])
    scale = 1 / np.sqrt(degrees + 1.0)
    values = torch.from_numpy(scale[rows] * scale[columns]).float()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matrix = torch.sparse_coo_tensor(
            torch.from_numpy(np.stack([rows, columns])), values, (num_nodes, num_nodes)
        ).to_sparse_csr()
        features = torch.from_numpy(scale_features(client_graph("plain", block)).features_NF)
        if (features != 0).float().mean() < 0.1:
            features = features.to_sparse_csr()
    labels, train = torch.from_numpy(np.array(block.labels)), torch.from_numpy(np.array(block.train))
    width = config.hidden_size
    sizes = [(features.shape[1], width), *[(width, width)] * config.num_layers, (width, num_classes)]
    weights = [torch.nn.init.xavier_uniform_(torch.empty(size)).requires_grad_() for size in sizes]
    biases = [torch.zeros(width, requires_grad=True), torch.zeros(num_classes, requires_grad=True)]
    optimiser = torch.optim.Adam([*weights, *biases], lr=config.step_size, weight_decay=config.weight_decay)

    def thinned() -> torch.Tensor:
        if not config.dropout:
            return features
        if features.layout == torch.strided:
            return functional.dropout(features, config.dropout)
        values = functional.dropout(features.values(), config.dropout)
        return torch.sparse_csr_tensor(features.crow_indices(), features.col_indices(), values, features.shape)

    def step() -> float:
        optimiser.zero_grad()
        h = h0 = functional.relu(thinned() @ weights[0] + biases[0])
        for layer in range(config.num_layers):
            theta = math.log(config.lam / (layer + 1) + 1)
            s = (1 - config.alpha) * (matrix @ functional.dropout(h, config.dropout)) + config.alpha * h0
            h = functional.relu(theta * (s @ weights[layer + 1]) + (1 - theta) * s)
        loss = functional.cross_entropy((h @ weights[-1] + biases[1])[train], labels[train])
        loss.backward()
        optimiser.step()
        return float(loss.detach())

    return step


def glasu_step(config: GlasuConfig, block: Any, num_classes: int) -> Any:
    """Return GLASU's step of its centralised case: the function that a client's actor hands to `compute`."""
    local = scale_features(client_graph("all", block))
    network = Network.of(config, local.features_NF.shape[1], num_classes, 0)
    batch = algorithm.full_batch(local, config.num_layers, torch.float32)
    optimizer = OptimizerSpec(name="adam", learning_rate=config.step_size, weight_decay=config.weight_decay)
    parameters = initial_parameters(network, np.random.default_rng(0), np.random.default_rng(1))
    state = OptimizerState()

    def step() -> float:
        nonlocal parameters, state
        parameters, state, losses = algorithm.local_updates(parameters, network, batch, optimizer, state, [], None, 1)
        return losses[0]

    return step


def compare_steps(data: str, hidden_size: int, dropout: float) -> dict[str, Any]:
    """Time both sides alternately."""
    config = build(
        GlasuConfig, {"special_case": "centralised", "hidden_size": hidden_size, "dropout": dropout, "num_layers": 4}
    )
    source = graph(data, 1)
    block = source.load_whole()
    sides = {
        "plain": plain_step(config, block, source.num_classes),
        "glasu": glasu_step(config, block, source.num_classes),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(REPEATS + 5):
        for name, step in sides.items():
            start = time.process_time()
            step()
            if repeat >= 5:
                seconds[name].append(time.process_time() - start)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "data": data, "hidden_size": hidden_size, "dropout": dropout,
        "plain_ms": 1000 * medians["plain"], "glasu_ms": 1000 * medians["glasu"],
        "ratio": medians["glasu"] / medians["plain"],
    }  # fmt: skip


def time_sampling() -> dict[str, Any]:
    """Sample two layers below 1,024 nodes of a graph of 1,000,000 edges, and build their blocks."""
    rng = np.random.default_rng(0)
    adjacency = sampling.adjacency(rng.integers(0, 200_000, (2, 1_000_000)), 200_000)
    drawing, building = [], []
    for repeat in range(40):
        batch = sampling.choose_batch(np.arange(200_000), 1024, rng)
        start = time.perf_counter()
        layers = sampling.sample_segment(adjacency, batch, 2, 3, np.random.default_rng(repeat))
        middle = time.perf_counter()
        for layer in layers:
            sampling.block(adjacency, layer)
        drawing.append(middle - start)
        building.append(time.perf_counter() - middle)
    return {
        "sampling_ms": 1000 * statistics.median(drawing),
        "with_blocks_ms": 1000 * statistics.median(a + b for a, b in zip(drawing, building, strict=True)),
    }


def measure_costs(data: str) -> dict[str, Any]:
    """Return processor seconds per unit of each kind of work, in the units of GLASU's `run.default_costs`."""
    config = build(GlasuConfig, {"dropout": 0.5, "num_clients": 3})
    source = graph(data, 3)
    blocks = read_blocks(parts_of(config, source, "client-0"))
    local, _ = load_client(config, blocks, 0)
    network = Network.of(config, local.features_NF.shape[1], local.num_classes, 0)
    parameters = initial_parameters(network, np.random.default_rng(0), np.random.default_rng(1))
    batch = algorithm.full_batch(local, config.num_layers, torch.float32)
    part, h0 = algorithm.first_segment(parameters, network, batch)
    stale = [algorithm.extract(part, part)] * len(network.segments)
    optimizer, state = OptimizerSpec(name="adam", learning_rate=0.01), OptimizerState()
    chosen = sampling.choose_batch(local.nodes.train, 64, np.random.default_rng(0))

    def sample() -> list[sampling.SampledLayer]:
        return sampling.sample_segment(local.graph, chosen, 2, 3, np.random.default_rng(0))

    layers = sample()
    everything = algorithm.forward_operations(network, batch, range(config.num_layers))

    def seconds(action: Any) -> float:
        taken = []
        for _ in range(25):
            start = time.process_time()
            action()
            taken.append(time.process_time() - start)
        return statistics.median(taken)

    segment = algorithm.forward_operations(network, batch, network.segments[1])
    update = seconds(lambda: algorithm.local_updates(parameters, network, batch, optimizer, state, stale, None, 1))
    forward = seconds(lambda: algorithm.segment(parameters, network, batch, 1, part, h0))
    parts = [part.numpy()] * 3
    return {
        "data": data,
        "segment_per_operation": forward / segment,
        "update_per_operation": update / everything,
        "sample_per_unit": seconds(sample) / (len(chosen) * 2 * 3),
        "build_per_pair": seconds(lambda: algorithm.make_batch(local, [*layers, *layers[1:]], torch.float32, 0))
        / sum(len(layer.rows_E) for layer in layers),
        "aggregate_per_number": seconds(lambda: add(parts)) / (3 * parts[0].size),
    }


def compare_one_update(data: str) -> dict[str, Any]:
    """Time a round of one client with one local update: with a forward pass of its own, and with the inference's."""
    config = build(GlasuConfig, {"dropout": 0.5, "num_clients": 3, "aggregation_layers": "1,3"})
    source = graph(data, 3)
    local, _ = load_client(config, read_blocks(parts_of(config, source, "client-0")), 0)
    network = Network.of(config, local.features_NF.shape[1], local.num_classes, 0)
    first = initial_parameters(network, np.random.default_rng(0), np.random.default_rng(1))
    batch = algorithm.full_batch(local, config.num_layers, torch.float32)
    optimizer, state = OptimizerSpec(name="adam", learning_rate=0.01), OptimizerState()

    def one_round(keeps: bool) -> tuple[float, float]:
        parameters = algorithm.traceable(first) if keeps else first
        start = time.process_time()
        part, h0 = algorithm.infer_lowest(parameters, network, batch)
        parts, aggregated = [part], [part.values.detach()]  # what the others would have added makes no difference
        for index in range(1, len(network.segments)):
            parts.append(algorithm.infer_segment(parameters, network, batch, index, aggregated[-1], parts[-1], h0))
            aggregated.append(parts[-1].values.detach())
        stale = [algorithm.extract(h, part.values) for h, part in zip(aggregated, parts, strict=True)]
        begun = time.process_time()
        inferred = parts if keeps else []
        algorithm.local_updates(parameters, network, batch, optimizer, state, stale, None, 1, inferred)
        return begun - start, time.process_time() - begun

    taken: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for repeat in range(REPEATS + 5):
        for keeps, found in taken.items():
            seconds = one_round(keeps)
            if repeat >= 5:
                found.append(seconds)
    made: dict[str, Any] = {"data": data}
    for keeps, found in taken.items():
        name = "kept" if keeps else "again"
        inference, update = (1000 * statistics.median(column) for column in zip(*found, strict=True))
        made |= {f"{name}_inference_ms": inference, f"{name}_update_ms": update, f"{name}_ms": inference + update}
    return made


def time_inference(data: str, rounds: int = 20) -> dict[str, Any]:
    """Measure, on Ray with three clients, a round with every aggregation and one with the last alone."""
    from fedactors.protocols.glasu.data import load_data
    from fedactors.protocols.glasu.run import run
    from fedactors.runtime.ray.runtime import RayRuntime

    found: dict[str, Any] = {"data": data}
    for layers in ("3", "1,3", "0,1,2,3"):
        words = {"aggregation_layers": layers, "num_rounds": rounds, "evaluate_every": rounds}
        config = build(GlasuConfig, words)
        runtime = RayRuntime(seed=0, checkpoint_every=0)
        source = load_data(config, data, 0)
        result = runtime.execute(lambda config=config, source=source, runtime=runtime: run(config, source, runtime))  # type: ignore[misc]
        found[f"round_ms_K={len(config.resolved_layers)}"] = 1000 * result.extra["training"]["seconds"] / rounds
    found["overhead_ms_per_aggregation"] = (found["round_ms_K=4"] - found["round_ms_K=1"]) / 3
    return found


def main() -> None:
    """Run the benchmark that the command line names."""
    torch.set_num_threads(1)
    what = sys.argv[1] if len(sys.argv) > 1 else "step"
    if what == "sampling":
        made = [time_sampling()]
    elif what == "inference":
        made = [time_inference(data) for data in sys.argv[2:] or ["blocks:2000x32x4"]]
    elif what == "one-update":
        made = [compare_one_update(data) for data in sys.argv[2:] or ["blocks:3000x64x4"]]
    elif what == "costs":
        made = [measure_costs(data) for data in sys.argv[2:] or ["blocks:3000x64x4"]]
    else:
        made = [
            compare_steps(data, width, dropout)
            for data in sys.argv[2:] or ["blocks:3000x64x4"]
            for width in (64, 192)
            for dropout in (0.0, 0.5)
        ]
    for one in made:
        print(json.dumps(one))


if __name__ == "__main__":
    main()
