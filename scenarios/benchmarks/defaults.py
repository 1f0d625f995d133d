"""Every protocol by its defaults, on data that chose none of them, beside what pooled models and own columns give.

    python scenarios/benchmarks/defaults.py [--seeds 0,1,2,3,4] [--only pubsub-vfl/linear-500] [--out FOLDER] [--smoke]
    python scenarios/benchmarks/defaults.py --only pubsub-vfl/clusters batch_size=128 learning_rate=0.006

A row is one run of a protocol with no setting at all. Its test rows are those of the pooled models beside it: logistic
or ridge regression and gradient boosting on all columns (or all clients' rows), both trained on the validation rows
too, the same network trained in lock-step (PubSub-VFL's ``algorithm=vfl``: the centralised steps) or centrally
(horizontal: one client that has all rows), and the better of the two models on the label party's columns, or the mean
over clients of that on their own rows. TablePuppet is beside the exact solution over the join: the share of the gap
that it closes, and its rounds. MTCD's score is the objective's relative gap to the exact minimum of the convex problem
(1e-3 is the bar) and the rounds to it; GLASU is beside its `centralised` special case; NebulaFL beside FedAvg on the
same hardware for the same time.

Scores of the others are points: 100 times the AUC (two classes), the accuracy (several) or R2. With ``--out`` each row
is appended to ``defaults.jsonl`` as soon as it is made, and what is there is not made again. With ``key=value`` the
runs of PubSub-VFL set this, to try other defaults; the one in lock-step leaves out what it has no use for.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

import fedactors
from fedactors.cli.terminal import guarded
from fedactors.errors import BadInput
from fedactors.learning.metrics import Task
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig

Array = NDArray[Any]
Table = tuple[Array, Array, Task]
"""Rows, labels and the task."""
SHARES = (0.63, 0.07, 0.30)
"""Training, validation and test."""


# --- data that chose nothing ------------------------------------------------------------------------------------------


def linear(rows: int, seed: int) -> Table:
    """Two classes by a noisy linear score of 20 columns, half of them of no use."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 20))
    score = x[:, ::2] @ rng.normal(size=10) + rng.logistic(size=rows)
    return x, (score > 0).astype(np.int64), "binary"


def interacting(rows: int, seed: int) -> Table:
    """Two classes by products of columns of different parties, and a linear part."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 12))
    score = 1.5 * x[:, 0] * x[:, 1] + x[:, 2] * x[:, 3] - x[:, 4] + 0.5 * x[:, 5] + 0.5 * rng.logistic(size=rows)
    return x, (score > 0).astype(np.int64), "binary"


def rare(rows: int, seed: int) -> Table:
    """One positive in fifty."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 16))
    score = x[:, :6] @ np.array([1.0, 1.0, -1.0, 1.0, -0.7, 0.7]) + 0.7 * x[:, 6] ** 2 + rng.logistic(size=rows)
    return x, (score > np.quantile(score, 0.98)).astype(np.int64), "binary"


def clusters(rows: int, seed: int) -> Table:
    """Five classes of two clusters each."""
    x, y = datasets.make_classification(
        rows, 20, n_informative=10, n_redundant=4, n_classes=5, n_clusters_per_class=2, random_state=seed
    )
    return x, y, "multiclass"


def friedman(rows: int, seed: int) -> Table:
    """Friedman's first regression: a sine of a product, a square and a line."""
    x, y = datasets.make_friedman1(rows, 10, noise=1.0, random_state=seed)
    return x, y, "regression"


def digits(rows: int, seed: int) -> Table:
    """The pixels of 1,797 digits."""
    x, y = datasets.load_digits(return_X_y=True)
    return x, y, "multiclass"


def iris(rows: int, seed: int) -> Table:
    """150 flowers."""
    x, y = datasets.load_iris(return_X_y=True)
    return x, y, "multiclass"


MAKERS: dict[str, tuple[Callable[[int, int], Table], int]] = {
    "linear-500": (linear, 500),
    "interacting-5000": (interacting, 5_000),
    "rare-5000": (rare, 5_000),
    "clusters-5000": (clusters, 5_000),
    "friedman-500": (friedman, 500),
    "friedman-5000": (friedman, 5_000),
    "digits-1797": (digits, 1_797),
    "iris-150": (iris, 150),
    "interacting-100000": (interacting, 100_000),
}


def parts(rows: int, seed: int) -> Array:
    """Return the part of each row, by its name."""
    bounds = np.cumsum(SHARES)[:2] * rows
    order = np.random.default_rng([seed, 7]).permutation(rows)
    return np.array(["train", "validation", "test"])[np.searchsorted(bounds, order, side="right")]


# --- what is beside ---------------------------------------------------------------------------------------------------


def score_of(task: str, y: Array, model: Any, x: Array) -> float:
    """Return the points of a model of scikit-learn."""
    if task == "binary":
        return float(100 * roc_auc_score(y, model.predict_proba(x)[:, 1]))
    return float(100 * (accuracy_score if task == "multiclass" else r2_score)(y, model.predict(x)))


def pooled(x: Array, y: Array, part: Array, task: str) -> dict[str, float]:
    """Return the points of a linear model and of gradient boosting on these columns."""
    train, test = part != "test", part == "test"
    scaled = StandardScaler().fit(x[train]).transform(x)
    is_number = task == "regression"
    linear_model = Ridge() if is_number else LogisticRegression(max_iter=1000)
    boosting = (HistGradientBoostingRegressor if is_number else HistGradientBoostingClassifier)(random_state=0)
    with threadpool_limits(1):  # threads that wait for each other hardly move where others have the cores
        return {
            name: score_of(task, y[test], model.fit(scaled[train], y[train]), scaled[test])
            for name, model in (("linear", linear_model), ("boosting", boosting))
        }


HEADLINE = {"binary": "test/auc", "multiclass": "test/accuracy", "regression": "test/r2"}


# --- the protocols ----------------------------------------------------------------------------------------------------


def table(x: Array, columns: Any, **more: Array) -> pa.Table:
    """Return some columns as a table."""
    return pa.table({**{f"x{i}": x[:, i] for i in columns}, **more})


def pubsub(name: str, seed: int, settings: Mapping[str, str] = {}) -> dict[str, float]:
    """PubSub-VFL between the label's party, with every other column, and another."""
    maker, rows = MAKERS[name]
    x, y, task = maker(rows, seed)
    part = parts(len(y), seed)
    columns, others = range(0, x.shape[1], 2), range(1, x.shape[1], 2)
    held = {"shop": table(x, columns, y=y, part=part), "bank": table(x, others)}
    data = fedactors.vertical(held, label=("shop", "y"), task=task, parties={"shop": {"split": "part"}})
    given: dict[str, Any] = dict(settings)
    shared = {key: value for key, value in given.items() if "algorithm" not in PubSubVflConfig.only_with.get(key, {})}
    run = fedactors.simulate("pubsub-vfl", data, seed=seed, **given)
    central = fedactors.simulate("pubsub-vfl", data, seed=seed, algorithm="vfl", local_baseline=False, **shared)
    metric = HEADLINE[task]
    return {
        "defaults": 100 * run.metrics[metric],
        **pooled(x, y, part, task),
        "lock-step": 100 * central.metrics[metric],
        "own columns": max(pooled(x[:, list(columns)], y, part, task).values()),
    }


def horizontal(name: str, seed: int) -> dict[str, float]:
    """Federated averaging between four clients of unequal sizes, whose columns have scales of their own."""
    maker, rows = MAKERS[name]
    x, y, task = maker(rows, seed)
    part = parts(len(y), seed)
    rng = np.random.default_rng([seed, 11])
    x = x * 10 ** rng.uniform(-2, 3, x.shape[1]) + rng.normal(size=x.shape[1])
    train, test = np.flatnonzero(part != "test"), part == "test"
    cuts = np.cumsum([0.4, 0.3, 0.2])
    shares = np.split(rng.permutation(train), (cuts * len(train)).astype(int))
    columns = range(x.shape[1])
    clients = {f"site-{i}": table(x[rows], columns, y=y[rows]) for i, rows in enumerate(shares)}
    data = fedactors.horizontal(clients, label="y", test=table(x[test], columns, y=y[test]), task=task)
    run = fedactors.simulate("horizontal", data, seed=seed)
    metric = HEADLINE[task]
    alone = [
        pooled(
            np.vstack([x[one], x[test]]),
            np.concatenate([y[one], y[test]]),
            np.array(["train"] * len(one) + ["test"] * int(test.sum())),
            task,
        )
        for one in shares
        if len(np.unique(y[one])) > 1
    ]
    alone_mean = max(float(np.mean([one[kind] for one in alone])) for kind in ("linear", "boosting"))
    return {
        "defaults": 100 * run.metrics[metric],
        **pooled(x, y, part, task),
        "central": centrally(x, y, part, task, seed),
        "own rows": alone_mean,
    }


def centrally(x: Array, y: Array, part: Array, task: Task, seed: int) -> float:
    """Return the points of the network that clients train, by the same steps on all rows in one place."""
    from fedactors.learning.local_training import evaluate_model, train_locally
    from fedactors.learning.network import initial_vector
    from fedactors.protocols.horizontal.algorithm import local_steps, local_training
    from fedactors.protocols.horizontal.config import HorizontalConfig
    from fedactors.protocols.horizontal.data import model_spec

    config, train, num_classes = HorizontalConfig(), part != "test", len(np.unique(y))
    scaled = StandardScaler().fit(x[train]).transform(x).astype(np.float32)
    targets = (y - y[train].mean()) / y[train].std() if task == "regression" else y
    spec = model_spec(config, inputs=x.shape[1:], task=task, num_classes=num_classes)
    steps, vector = local_steps(config, task, num_classes, x.shape[1:], y[train], 1), initial_vector(spec, seed)
    for round in range(1, config.num_rounds + 1):
        training = local_training(config, task, round, steps, x.shape[1:])
        vector = train_locally(spec, vector, scaled[train], targets[train], seed=round, training=training).vector
    found = evaluate_model(spec, vector, scaled[~train], targets[~train], task=task)
    return 100 * found[HEADLINE[task].removeprefix("test/")]


JOINS: dict[str, tuple[int, float]] = {
    "orders-2000-binary": (2_000, 0.2),
    "orders-2000-regression": (2_000, 0.0),
    "orders-500-binary": (500, 0.5),
    "orders-500-regression": (500, 0.0),
    "orders-5000-rare": (5_000, 0.02),
    "orders-100000-regression": (100_000, 0.0),
    "orders-100000-binary": (100_000, 0.5),
}
"""By name the number of facts and the share of positive ones, 0 for a regression."""


def tablepuppet(name: str, seed: int) -> dict[str, float]:
    """TablePuppet over a star of facts and two dimensions, beside the exact solution over the join."""
    rows, positive = JOINS[name]
    task = "binary" if positive else "regression"
    rng = np.random.default_rng(seed)
    items, shops = rng.normal(size=(rows // 10, 6)), rng.normal(size=(rows // 50, 4))
    item, shop, local = rng.integers(0, len(items), rows), rng.integers(0, len(shops), rows), rng.normal(size=(rows, 4))
    score = local @ rng.normal(size=4) + items[item] @ rng.normal(size=6) + shops[shop] @ rng.normal(size=4)
    noisy = score + 0.5 * score.std() * rng.normal(size=rows)
    y = noisy if task == "regression" else (noisy > np.quantile(noisy, 1 - positive)).astype(np.int64)
    keyed = {"sales": table(local, range(4), item=item, shop=shop, y=y)}
    keyed |= {"maker": pa.table({"item": np.arange(len(items)), **{f"m{i}": items[:, i] for i in range(6)}})}
    keyed |= {"chain": pa.table({"shop": np.arange(len(shops)), **{f"c{i}": shops[:, i] for i in range(4)}})}
    sql = "SELECT * FROM sales JOIN maker ON sales.item = maker.item JOIN chain ON sales.shop = chain.shop"
    data = fedactors.relational(keyed, sql=sql, label="sales.y", task=task)
    run = fedactors.simulate("tablepuppet", data, seed=seed, local_baseline=False)
    best = fedactors.simulate(
        "tablepuppet", data, seed=seed, algorithm="centralised", lbfgs_iterations=500, num_rounds=1
    )
    losses = run.rounds.to_pandas()["training/loss"].tolist()
    first, least = losses[0], best.metrics["training/loss"]
    trivial = 0.5 * float(np.var(y)) if task == "regression" else float(run.metrics["test/trivial_loss"])
    first = max(first, trivial)
    return {"defaults": 100 * (first - losses[-1]) / (first - least), "rounds": float(len(losses))}


SOLVED = {
    "generated-ridge": ("ridge", None),
    "generated-logistic": ("sparse-logistic", None),
    "diabetes-ridge": ("ridge", datasets.load_diabetes),
    "digits-logistic": ("sparse-logistic", datasets.load_digits),
    "breast-cancer-ridge": ("ridge", datasets.load_breast_cancer),
    "breast-cancer-logistic": ("sparse-logistic", datasets.load_breast_cancer),
}
"""By name the problem, and the rows; without any the default data."""
CLOSE = 1e-3


def mtcd(name: str, seed: int) -> dict[str, float]:
    """MTCD on a convex problem, real rows between four parties, beside the exact minimum."""
    from fedactors.protocols.mtcd.objective import Ridge, SparseLogistic, relative_gap, solve

    problem, load = SOLVED[name]
    if load is None:
        run = fedactors.simulate("mtcd", seed=seed, problem=problem)
        gaps = run.rounds.to_pandas()["gap"].tolist()
    else:
        x, y = load(return_X_y=True)
        part = np.where(parts(len(y), seed) == "test", "test", "train")
        x = StandardScaler().fit(x[part == "train"]).transform(x)
        is_number = load is datasets.load_diabetes
        y = (
            (y - y[part == "train"].mean()) / y[part == "train"].std()
            if is_number
            else (y > (y.max() // 2)).astype(int)
        )
        held = {f"party-{k}": table(x, range(k, x.shape[1], 4)) for k in range(4)}
        held["party-0"] = held["party-0"].append_column("y", pa.array(y)).append_column("part", pa.array(part))
        task = "regression" if is_number else "binary"
        data = fedactors.vertical(held, label=("party-0", "y"), task=task, parties={"party-0": {"split": "part"}})
        run = fedactors.simulate("mtcd", data, seed=seed, problem=problem, num_clients=4, relaxed_protocol=True)
        rows = part == "train"
        of = Ridge() if problem == "ridge" else SparseLogistic()
        _, least = solve(of, x[rows], (y if is_number else 2.0 * y - 1)[rows].astype(float))
        gaps = [abs(relative_gap(value, least)) for value in run.rounds.to_pandas()["training/objective"]]
    close = [index for index, gap in enumerate(gaps) if gap < CLOSE]
    return {"log10 gap": float(np.log10(max(gaps[-1], 1e-16))), "rounds to 1e-3": float(close[0] if close else np.inf)}


def split_graph(x: Array, y: Array, edges: Array, seed: int) -> Any:
    """Return a graph whose nodes' columns and edges (each with the probability .8) are three clients'."""
    rng = np.random.default_rng([seed, 13])
    part = rng.choice(3, len(y), p=[0.2, 0.2, 0.6])
    nodes = {"labels": y, **{name: part == k for k, name in enumerate(("train", "validation", "test"))}}
    held = {
        f"client-{k}": {"edges": edges[:, rng.random(edges.shape[1]) < 0.8], "features": x[:, k::3].astype(np.float32)}
        for k in range(3)
    }
    return fedactors.graph(held, nodes=nodes)


def neighbours(name: str, seed: int) -> tuple[Array, Array, Array]:
    """Return features, labels and edges: real rows joined to their nearest ones, or generated communities."""
    rng = np.random.default_rng(seed)
    kind, size = name.rsplit("-", 1)
    rows = int(size)
    if kind == "communities":
        y = rng.integers(0, 4, rows)
        x = rng.normal(size=(rows, 24)) + 0.5 * rng.normal(size=(4, 24))[y]
        odds = np.where(y[:, None] == y[None], 12 / rows, 3.6 / rows)
        return x, y, np.array(np.nonzero(np.triu(rng.random((rows, rows)) < odds, 1)))
    from sklearn.neighbors import kneighbors_graph

    x, y = getattr(datasets, f"load_{kind}")(return_X_y=True)
    x = StandardScaler().fit_transform(x)[:rows]
    return x, y[: len(x)], np.array(kneighbors_graph(x, 5).nonzero())


GRAPHS = ("communities-600", "digits-900", "wine-178", "communities-3000", "breast_cancer-569", "iris-150")


def glasu(name: str, seed: int) -> dict[str, float]:
    """GLASU between three clients, beside one that has all columns and edges."""
    data = split_graph(*neighbours(name, seed), seed)
    found: dict[str, dict[str, Any]] = {"defaults": {}, "centralised": {"special_case": "centralised"}}
    runs = {key: fedactors.simulate("glasu", data, seed=seed, **more) for key, more in found.items()}
    return {key: 100 * run.metrics["test/accuracy"] for key, run in runs.items()}


DEALT = ("digits", "linear-500", "clusters-5000", "interacting-5000", "digits-1797", "rare-5000")


def nebulafl(name: str, seed: int) -> dict[str, float]:
    """NebulaFL beside FedAvg: the same containers, hardware and time; tables are dealt to 40 clients."""
    data = name if name == "digits" else dealt(name, seed, 40)
    runs = {key: fedactors.simulate("nebulafl", data, seed=seed, algorithm=key) for key in ("nebulafl", "fedavg")}
    return {key: 100 * run.metrics["test/accuracy"] for key, run in runs.items()}


def dealt(name: str, seed: int, num_clients: int) -> Any:
    """Return a table of classes whose training rows, standardised, are so many clients'."""
    maker, rows = MAKERS[name]
    x, y, task = maker(rows, seed)
    test = parts(len(y), seed) == "test"
    x, columns = StandardScaler().fit(x[~test]).transform(x), range(x.shape[1])
    shares = np.array_split(np.random.default_rng([seed, 17]).permutation(np.flatnonzero(~test)), num_clients)
    clients = {f"client-{i}": table(x[rows], columns, y=y[rows]) for i, rows in enumerate(shares)}
    return fedactors.horizontal(clients, label="y", test=table(x[test], columns, y=y[test]), task=task)


PROTOCOLS: dict[str, tuple[Callable[[str, int], dict[str, float]], Mapping[str, Any]]] = {
    "pubsub-vfl": (pubsub, MAKERS),
    "tablepuppet": (tablepuppet, JOINS),
    "horizontal": (horizontal, MAKERS),
    "mtcd": (mtcd, SOLVED),
    "glasu": (glasu, dict.fromkeys(GRAPHS)),
    "nebulafl": (
        nebulafl,
        dict.fromkeys(("digits", "linear-500", "clusters-5000", "interacting-5000", "digits-1797", "rare-5000")),
    ),
}


def cells(only: str, seeds: list[int], smoke: bool) -> Iterator[tuple[str, str, int]]:
    """Yield protocol, set and seed of what is wanted."""
    for protocol, (_, names) in PROTOCOLS.items():
        wanted = [name for name in names if only in f"{protocol}/{name}"]
        for name in wanted[: 1 if smoke else None]:
            for seed in seeds[: 1 if smoke else None]:
                yield protocol, name, seed


def printed(rows: list[dict[str, Any]]) -> str:
    """Return the table: the mean over seeds of each score."""
    lines = []
    for protocol, name in dict.fromkeys((row["protocol"], row["data"]) for row in rows):
        found = [row["scores"] for row in rows if (row["protocol"], row["data"]) == (protocol, name)]
        means = {key: np.mean([one[key] for one in found]) for key in found[0]}
        said = "  ".join(f"{key} {value:.1f}" for key, value in means.items())
        lines.append(f"{protocol:<12} {name:<22} seeds {len(found)}  {said}")
    return "\n".join(lines)


@guarded()
def main() -> int:
    """Run what is wanted and not there yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--only", default="", help="cells whose PROTOCOL/SET holds this text")
    parser.add_argument("--out", type=Path, help="folder of defaults.jsonl")
    parser.add_argument("--smoke", action="store_true", help="one set and one seed of each protocol")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="set by the runs of PubSub-VFL")
    given = parser.parse_intermixed_args()
    settings = dict(word.partition("=")[::2] for word in given.settings)
    if settings and given.out is not None:
        raise BadInput("--out: not allowed with settings: defaults.jsonl holds runs that set nothing")
    file = None if given.out is None else given.out / "defaults.jsonl"
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file is not None and file.exists() else []
    made = {(row["protocol"], row["data"], row["seed"]) for row in rows}
    for protocol, name, seed in cells(given.only, [int(seed) for seed in given.seeds.split(",")], given.smoke):
        if (protocol, name, seed) in made:
            continue
        if settings and protocol != "pubsub-vfl":
            raise BadInput(f"{protocol}: takes no settings: choose the sets of PubSub-VFL by --only pubsub-vfl/")
        begun = time.perf_counter()
        scores = pubsub(name, seed, settings) if settings else PROTOCOLS[protocol][0](name, seed)
        row = {"protocol": protocol, "data": name, "seed": seed, "scores": scores}
        row["seconds"] = round(time.perf_counter() - begun, 1)
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
        if file is not None:
            with file.open("a") as stream:
                stream.write(json.dumps(row) + "\n")
    print(printed(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
