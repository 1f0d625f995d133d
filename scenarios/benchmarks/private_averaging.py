"""What differential privacy costs federated averaging in accuracy, on three data sets, paired by seed.

    python scenarios/benchmarks/private_averaging.py [--seeds 0,1] [--only digits/adaptive] [--out FOLDER] [--smoke]
    python scenarios/benchmarks/private_averaging.py --others                  # needs `flwr` and `pfl`: their code too

100 clients train a linear model, with the noise of each setting in `SETTINGS`; the five clients of two of them have
more rows each, as DP-SGD needs, and so have NebulaFL's six containers in three centers. A row is one run: the headline
metric on the test rows in points, and epsilon at delta 1e-5 of the client that pays most. With ``--out`` each row is
appended to ``private_averaging.jsonl``, and what is there is not made again. The table has the mean over seeds, and
the paired difference to the same clients without noise with its 95 % t interval.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fedactors.cli.terminal import guarded
from fedactors.runs.compare import paired_difference

Row = dict[str, Any]
Foreign = tuple[Callable[[Any, list[Any]], Any], float, Callable[[], list[int]]]
"""A server's step of a model and the clients' ones, epsilon, and who takes part in a round."""
MODEL: dict[str, Any] = {
    "model": "linear", "dirichlet": None, "optimizer": "sgd", "schedule": "constant", "learning_rate": 0.5,
    "batch_size": 32, "local_epochs": 2,
}  # fmt: skip
MANY = {"local_baseline": False, "num_clients": 100, "clients_per_site": 10, "num_rounds": 40}
FEW = {"local_baseline": False, "num_clients": 5, "num_rounds": 10, "batch_size": 64}
CENTERS: dict[str, Any] = {
    "num_centers": 3, "num_containers": 6, "active_per_center": 1, "batch_size": 64, "local_epochs": 1, "momentum": 0.0,
    "schedule": "cosine",  # at a constant step one container's training moves credit's model by 30 points of AUC
}  # fmt: skip
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
    "sampled clients, pfl's code": (
        "100 clients",
        {**MANY, "client_clip_norm": 0.4, "client_noise_multiplier": 2.0, "client_sampling_rate": 0.3},
    ),
    "5 clients": ("5 clients", FEW),
    "rows": ("5 clients", {**FEW, "record_clip_norm": 1.0, "record_noise_multiplier": 2.0}),
    "NebulaFL": ("NebulaFL", CENTERS),
    "NebulaFL, rows": ("NebulaFL", {**CENTERS, "record_clip_norm": 1.0, "record_noise_multiplier": 4.0}),
    "NebulaFL, containers": ("NebulaFL", {**CENTERS, "client_clip_norm": 0.5, "client_noise_multiplier": 8.0}),
}
"""By name the setting without noise that it is compared with, and what is set beside `MODEL`."""
BY_FLOWER = "fixed clip, Flower's code"
"""The setting whose clipping, noise and mean are those of ``flwr`` (1.42), of its server-side fixed clipping."""
BY_PFL = "sampled clients, pfl's code"
"""The setting whose cohorts, clipping, noise, mean and account are those of ``pfl`` (0.6)."""
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
    if setting in OTHERS:
        points, epsilon = by_another(data, given, metric, seed, setting)
        return {"data": data, "setting": setting, "seed": seed, "points": points, "epsilon": epsilon}
    protocol = "nebulafl" if "num_centers" in given else "horizontal"
    if protocol == "nebulafl" and metric == "test/auc":  # its tasks are of classes
        metric, given = "test/roc_auc_score", given | {"metric": "sklearn.metrics:roc_auc_score"}
    run = fedactors.simulate(protocol, data, seed=seed, **given)
    epsilons = [line["epsilon"] for line in run.privacy.to_arrow().to_pylist() if line.get("epsilon") is not None]
    return {
        "data": data,
        "setting": setting,
        "seed": seed,
        "points": 100 * run.metrics[metric],
        "epsilon": max(epsilons, default=None),
    }


def by_another(data: str, given: Mapping[str, Any], metric: str, seed: int, setting: str) -> tuple[float, float]:
    """Train the same clients by the same local steps; clip, average and noise by the code of Flower or of pfl.

    Returns:
        The headline metric in points, and epsilon of a client.
    """
    import numpy as np

    from fedactors.actors.context import derived_seed
    from fedactors.config import build
    from fedactors.data.layouts.horizontal import rows_key, rows_of
    from fedactors.learning.local_training import evaluate_model
    from fedactors.learning.many_clients import train_clients
    from fedactors.learning.network import initial_vector
    from fedactors.protocols.horizontal.algorithm import local_training
    from fedactors.protocols.horizontal.config import HorizontalConfig
    from fedactors.protocols.horizontal.data import load_data, model_spec

    np.random.seed(seed)  # of which both draw
    config = build(HorizontalConfig, dict(given))
    dealt = load_data(config, data, seed)
    clients = [rows_of(rows_key(dealt.client(number))) for number in range(dealt.num_clients)]
    spec = model_spec(config, inputs=clients[0][0].shape[1:], task=dealt.task, num_classes=dealt.num_classes)
    model_P = initial_vector(spec, derived_seed(seed, "all clients", "model"))
    step, epsilon, cohort = OTHERS[setting](config, len(clients))
    for number in range(1, config.num_rounds + 1):
        drawn = sorted(cohort())
        results = train_clients(
            spec,
            [model_P] * len(drawn),
            [clients[client] for client in drawn],
            seeds=[derived_seed(seed, f"client {client}", f"rows {number}") for client in drawn],
            training=local_training(config, dealt.task, number),
            weights=[None] * len(drawn),
            together=True,
        )
        model_P = np.asarray(step(model_P, [result.vector for result in results]), np.float32)
    found = evaluate_model(spec, model_P, *rows_of(rows_key(dealt.test())), task=dealt.task)
    return 100 * found[metric.partition("/")[2]], epsilon


def flower_step(config: Any, num_clients: int) -> Foreign:
    """Return the server's step by Flower's functions, our own epsilon, and who takes part in a round: all."""
    from flwr.server.strategy.aggregate import aggregate
    from flwr.supercore.differential_privacy import add_gaussian_noise_inplace, compute_clip_model_update, compute_stdv

    def step(model_P: Any, models: list[Any]) -> Any:
        answers = [([model.copy()], 1) for model in models]
        for made, _ in answers:
            compute_clip_model_update(made, [model_P], config.client_clip_norm)
        mean = aggregate(answers)
        noise = compute_stdv(config.client_noise_multiplier, config.client_clip_norm, len(models))
        add_gaussian_noise_inplace(mean, noise)
        return mean[0]

    return step, config.epsilon_of(config.num_rounds), lambda: list(range(num_clients))


def pfl_step(config: Any, num_clients: int) -> Foreign:
    """Return the server's step by pfl-research's mechanism, epsilon by its accountant, and a cohort of its sampler."""
    from pfl.common_types import Population
    from pfl.context import CentralContext, UserContext
    from pfl.data.sampling import get_user_sampler
    from pfl.metrics import Metrics
    from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism, PLDPrivacyAccountant
    from pfl.stats import MappedVectorStatistics

    account = PLDPrivacyAccountant(
        num_compositions=config.num_rounds,
        sampling_probability=config.client_sampling_rate,
        mechanism="gaussian",
        delta=config.delta,
        noise_parameter=config.client_noise_multiplier,
    )
    mechanism = CentrallyAppliedPrivacyMechanism(
        GaussianMechanism.from_privacy_accountant(account, config.client_clip_norm)
    )
    size = round(config.client_sampling_rate * num_clients)
    sampler = get_user_sampler("minimize_reuse", list(range(num_clients)))  # by turns, as its benchmarks do
    context = CentralContext(
        current_central_iteration=0,
        do_evaluation=False,
        cohort_size=size,
        population=Population.TRAIN,
        algorithm_params=None,
        model_train_params=None,
    )

    def step(model_P: Any, models: list[Any]) -> Any:
        total = None
        for model in models:
            stats = MappedVectorStatistics({"model": (model - model_P).astype("float64")}, weight=1.0)
            user = UserContext(num_datapoints=1, seed=None)
            clipped, _ = mechanism.postprocess_one_user(stats=stats, user_context=user)
            total = clipped if total is None else total + clipped
        noised, _ = mechanism.postprocess_server(stats=total, central_context=context, aggregate_metrics=Metrics())
        noised.reweight(1.0)  # the mean over the cohort, as its algorithms take it
        return model_P + noised["model"]

    return step, float(account.epsilon), lambda: [sampler() for _ in range(size)]


OTHERS = {BY_FLOWER: flower_step, BY_PFL: pfl_step}


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
    parser.add_argument("--others", action="store_true", help="also the settings of Flower's and pfl's code")
    parser.add_argument("--smoke", action="store_true", help="digits, one seed, two rounds")
    given = parser.parse_args()
    file = None if given.out is None else given.out / "private_averaging.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file is not None and file.exists() else []
    made = {(row["data"], row["setting"], row["seed"]) for row in rows}
    seeds = [int(seed) for seed in given.seeds.split(",")]
    for seed in seeds[: 1 if given.smoke else None]:
        for data in list(DATA)[: 1 if given.smoke else None]:
            for setting in SETTINGS:
                is_left_out = setting in OTHERS and not given.others
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
