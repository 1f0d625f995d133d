"""What differential privacy costs federated averaging in accuracy, on three data sets, paired by seed.

    python scenarios/benchmarks/private_averaging.py [--seeds 0,1] [--only digits/adaptive] [--out FOLDER] [--smoke]
    python scenarios/benchmarks/private_averaging.py --flower                  # needs `flwr`: its own functions too

100 clients train a linear model, with the noise of each setting in `SETTINGS`; the five clients of the last two have
more rows each, as DP-SGD needs. A row is one run: the headline metric on the test rows in points, and epsilon at delta
1e-5 of whoever pays most. With ``--out`` each row is appended to ``private_averaging.jsonl``, and what is there is not
made again. The table has the mean over seeds, and the paired difference to the same clients without noise with its
95 % t interval.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedactors.cli.terminal import guarded
from fedactors.runs.compare import paired_difference

Row = dict[str, Any]
MODEL: dict[str, Any] = {
    "model": "linear", "dirichlet": None, "optimizer": "sgd", "schedule": "constant", "learning_rate": 0.5,
    "batch_size": 32, "local_epochs": 2, "local_baseline": False,
}  # fmt: skip
MANY = {"num_clients": 100, "clients_per_site": 10, "num_rounds": 40}
FEW = {"num_clients": 5, "num_rounds": 10, "batch_size": 64}
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "100 clients": ("100 clients", MANY),
    "fixed clip": ("100 clients", {**MANY, "client_clip_norm": 1.0, "client_noise_multiplier": 4.0}),
    # Flower's defaults of adaptive clipping: norm .1, quantile .5, rate .2
    "adaptive clip": (
        "100 clients",
        {**MANY, "client_clip_norm": 0.1, "client_noise_multiplier": 4.0, "clip_quantile": 0.5},
    ),
    # pfl-research's benchmarks clip to .4 and draw cohorts
    "sampled clients": (
        "100 clients",
        {**MANY, "client_clip_norm": 0.4, "client_noise_multiplier": 2.0, "client_sampling_rate": 0.3},
    ),
    "secure sums": (
        "100 clients",
        {**MANY, "client_clip_norm": 1.0, "client_noise_multiplier": 4.0, "secure_aggregation": True},
    ),
    "fixed clip, Flower's code": ("100 clients", {**MANY, "client_clip_norm": 1.0, "client_noise_multiplier": 4.0}),
    "5 clients": ("5 clients", FEW),
    "rows": ("5 clients", {**FEW, "record_clip_norm": 1.0, "record_noise_multiplier": 2.0}),
}
"""By name the setting without noise that it is compared with, and what is set beside `MODEL`."""
BY_FLOWER = "fixed clip, Flower's code"
"""The setting whose clipping, noise and mean are those of ``flwr`` (1.42), of its server-side fixed clipping."""
DATA: dict[str, tuple[str, dict[str, Any]]] = {
    "digits": ("test/accuracy", {}),
    "bank": ("test/auc", {"num_training": 5_000}),
    "credit": ("test/auc", {"num_training": 5_000}),
}
"""By name the headline metric, and how many rows are dealt."""


def row_of(data: str, setting: str, seed: int, smoke: bool = False) -> Row:
    """Run one setting once."""
    import fedactors

    metric, size = DATA[data]
    given = MODEL | SETTINGS[setting][1] | size | ({"num_rounds": 2} if smoke else {})
    if setting == BY_FLOWER:
        points, epsilon = by_flower(data, given, metric, seed)
        return {"data": data, "setting": setting, "seed": seed, "points": points, "epsilon": epsilon}
    run = fedactors.simulate("horizontal", data, seed=seed, **given)
    epsilons = [line["epsilon"] for line in run.privacy.to_arrow().to_pylist() if line.get("epsilon") is not None]
    return {
        "data": data,
        "setting": setting,
        "seed": seed,
        "points": 100 * run.metrics[metric],
        "epsilon": max(epsilons, default=None),
    }


def by_flower(data: str, given: Mapping[str, Any], metric: str, seed: int) -> tuple[float, float]:
    """Train the same clients by the same local steps, and clip, average and noise by Flower's functions.

    Returns:
        The headline metric in points, and epsilon of a client.
    """
    import numpy as np
    from flwr.server.strategy.aggregate import aggregate
    from flwr.supercore.differential_privacy import add_gaussian_noise_inplace, compute_clip_model_update, compute_stdv

    from fedactors.actors.context import derived_seed
    from fedactors.config import build
    from fedactors.data.layouts.horizontal import rows_key, rows_of
    from fedactors.learning.local_training import evaluate_model
    from fedactors.learning.many_clients import train_clients
    from fedactors.learning.network import initial_vector
    from protocols.horizontal.algorithm import local_training
    from protocols.horizontal.config import HorizontalConfig
    from protocols.horizontal.data import load_data, model_spec

    np.random.seed(seed)  # of which Flower draws
    config = build(HorizontalConfig, dict(given))
    dealt = load_data(config, data, seed)
    clients = [rows_of(rows_key(dealt.client(number))) for number in range(dealt.num_clients)]
    spec = model_spec(config, inputs=clients[0][0].shape[1:], task=dealt.task, num_classes=dealt.num_classes)
    model_P, norm = initial_vector(spec, derived_seed(seed, "all clients", "model")), float(given["client_clip_norm"])
    for number in range(1, config.num_rounds + 1):
        results = train_clients(
            spec,
            [model_P] * len(clients),
            clients,
            seeds=[derived_seed(seed, f"client {client}", f"rows {number}") for client in range(len(clients))],
            training=local_training(config, dealt.task, number),
            weights=[None] * len(clients),
            together=True,
        )
        answers = [([result.vector.copy()], 1) for result in results]
        for made, _ in answers:
            compute_clip_model_update(made, [model_P], norm)
        mean = aggregate(answers)
        noise = compute_stdv(config.client_noise_multiplier, norm, len(clients))
        add_gaussian_noise_inplace(mean, noise)
        model_P = np.asarray(mean[0], np.float32)
    found = evaluate_model(spec, model_P, *rows_of(rows_key(dealt.test())), task=dealt.task)
    return 100 * found[metric.partition("/")[2]], config.epsilon_of(config.num_rounds)


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the Markdown table of rows: a line for each data set and setting."""
    found: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["data"], row["setting"]), {})[row["seed"]] = row
    header = ["data", "setting", "epsilon", "points", "less than without noise", "seeds"]
    lines = [header, ["---"] * len(header)]
    for data in DATA:
        for setting, (without, _) in SETTINGS.items():
            runs = found.get((data, setting), {})
            if not runs:
                continue
            points, plain = (
                {seed: run["points"] for seed, run in kind.items()} for kind in (runs, found.get((data, without), {}))
            )
            gap = paired_difference(plain, points)
            cost = "" if setting == without or gap["difference"] is None else f"{round(gap['difference'], 1) + 0.0:.1f}"
            if cost and gap["interval"] is not None:
                low, high = gap["interval"]
                cost += f" ({low:.1f} to {high:.1f})"
            epsilons = [run["epsilon"] for run in runs.values() if run["epsilon"] is not None]
            epsilon = f"{max(epsilons):.2f}" if epsilons else "none"
            lines.append([data, setting, epsilon, f"{statistics.fmean(points.values()):.1f}", cost, str(len(runs))])
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


@guarded()
def main() -> int:
    """Run what is wanted and not there yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--only", default="", help="runs whose DATA/SETTING holds this text")
    parser.add_argument("--out", type=Path, help="folder of private_averaging.jsonl")
    parser.add_argument("--flower", action="store_true", help="also the setting of Flower's code")
    parser.add_argument("--smoke", action="store_true", help="digits, one seed, two rounds")
    given = parser.parse_args()
    file = None if given.out is None else given.out / "private_averaging.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file is not None and file.exists() else []
    made = {(row["data"], row["setting"], row["seed"]) for row in rows}
    seeds = [int(seed) for seed in given.seeds.split(",")]
    for seed in seeds[: 1 if given.smoke else None]:
        for data in list(DATA)[: 1 if given.smoke else None]:
            for setting in SETTINGS:
                is_left_out = setting == BY_FLOWER and not given.flower
                if is_left_out or given.only not in f"{data}/{setting}" or (data, setting, seed) in made:
                    continue
                rows.append(row_of(data, setting, seed, given.smoke))
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
                if file is not None:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    with file.open("a") as stream:
                        stream.write(json.dumps(rows[-1]) + "\n")
    print(table(rows), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
