"""Compute of one RFL-ADMM-V round and one RFL-SGD-V epoch on MovieLens-1M, beside a plain PyTorch epoch.

    FEDACTORS_DATA=... OMP_NUM_THREADS=1 python scenarios/benchmarks/tablepuppet_training.py [--out DIR]

All parties' work runs one after the other in this process on one thread, so seconds are the sum over the parties; each
is the best of several repetitions of the wall clock, since other work on a machine only adds to it. Beside them stand
the seconds of the paper's released single-process code on the same set (float64, one thread, a machine of the same
kind): 19.3 s an ADMM round, 7.1 s an SGD epoch. The last line doubles every duplicate count at equal n_i: clients must
not notice.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import torch

from fedactors.data.join import TableMapping, hash_keys, table_mapping
from fedactors.data.query import make_plan, parse_query
from fedactors.errors import DataMissing
from fedactors.protocols.tablepuppet import algorithm
from fedactors.protocols.tablepuppet.baselines.centralised import JoinedTable, predict_tables, solve_ridge
from fedactors.protocols.tablepuppet.local_solvers import (
    Subproblem,
    TableModel,
    factorise,
    partial_gradient,
    predict,
    solve_linear,
    solve_sgd,
)

QUERY = "SELECT r.rating FROM ratings r JOIN movies m ON r.movie = m.movie JOIN users u ON r.user = u.user"
SCHEMAS = {
    "ratings": {"user": "integer", "movie": "integer", "rating": "integer"},
    "movies": {"movie": "integer"},
    "users": {"user": "integer"},
}
BATCH_SIZE, RATE, BETA, RHO = 10_240, 0.1, 1e-6, 1.0
RELEASED_ROUND, RELEASED_EPOCH = 19.3, 7.1
Mode = Literal["boyd", "paper_sgd"]


@dataclass(frozen=True)
class Joined:
    """The tables' rows, the mapping and the labels of the joined rows."""

    x: list[np.ndarray]
    mapping: TableMapping
    rows: list[np.ndarray]
    y: np.ndarray


def centralised_loss(joined: Joined) -> float:
    """Return half the mean squared error of the ridge on the joined table."""
    models = tuple(TableModel("linear", a.shape[1], 1) for a in joined.x)
    table = JoinedTable(models, tuple(joined.x), tuple(joined.rows), joined.y)
    h = algorithm.gather_join(predict_tables(models, solve_ridge(BETA, table), joined.x), joined.rows)
    return algorithm.mean_loss("squared", h, joined.y)


def one_hot(values: np.ndarray) -> np.ndarray:
    """Return the one-hot columns of `values`."""
    return (values[:, None] == np.unique(values)[None, :]).astype(np.float64)


def load() -> tuple[list[np.ndarray], np.ndarray, dict[str, pa.Table]]:
    """Return the design matrices, the ratings and the keys of ratings, movies (a row for each genre) and users."""
    if "FEDACTORS_DATA" not in os.environ:
        raise DataMissing("FEDACTORS_DATA is not set: the folder that holds movielens-1m/ml-1m.zip")
    with zipfile.ZipFile(Path(os.environ["FEDACTORS_DATA"]) / "movielens-1m" / "ml-1m.zip") as archive:
        ratings, movies, users = (
            [
                line.split("::")
                for line in io.TextIOWrapper(archive.open(f"ml-1m/{n}.dat"), "latin-1").read().splitlines()
            ]
            for n in ("ratings", "movies", "users")
        )
    r = np.array([row[:3] for row in ratings], dtype=np.int64)
    r = r[np.random.default_rng(0).permutation(len(r))[:850_177]]
    u = np.array(users)
    g = np.array([(m[0], genre, m[1][-5:-1]) for m in movies for genre in m[2].split("|")])
    year = g[:, 2].astype(np.float64)
    x = [
        np.ones((len(r), 1)),
        np.hstack([one_hot(g[:, 1]), ((year - year.mean()) / year.std())[:, None]]),
        np.hstack([one_hot(u[:, 1]), one_hot(u[:, 2]), one_hot(u[:, 3])]),
    ]
    keys = {
        "r": pa.table({"user": r[:, 0], "movie": r[:, 1]}),
        "m": pa.table({"movie": g[:, 0].astype(np.int64)}),
        "u": pa.table({"user": u[:, 0].astype(np.int64)}),
    }
    return x, r[:, 2].astype(np.float64), keys


def generate() -> tuple[list[np.ndarray], np.ndarray, dict[str, pa.Table]]:
    """Return the same of a small made-up set, for ``--smoke``."""
    rng = np.random.default_rng(0)
    r = np.stack([rng.integers(0, 60, 2000), rng.integers(0, 40, 2000)], axis=1)
    movie, user = np.repeat(np.arange(40), 2), np.arange(60)
    x = [np.ones((len(r), 1)), rng.normal(size=(len(movie), 4)), rng.normal(size=(len(user), 3))]
    rating = 3 + x[1][2 * r[:, 1], 0] + x[2][r[:, 0], 0] + rng.normal(size=len(r))
    keys = {
        "r": pa.table({"user": r[:, 0], "movie": r[:, 1]}),
        "m": pa.table({"movie": movie}),
        "u": pa.table({"user": user}),
    }
    return x, rating, keys


def train_admm(mode: Mode, rounds: int, joined: Joined) -> tuple[list[np.ndarray], float, float]:
    """Return theta, and the best seconds of a round: of all parties, and of the clients."""
    x, mapping, rows, y, N = joined.x, joined.mapping, joined.rows, joined.y, joined.mapping.num_joined
    kappa, tau = algorithm.quadratic_weight(mode, RHO, len(x)), BETA if mode == "boyd" else 0.0
    models = [TableModel("linear", a.shape[1], 1) for a in x]
    parts = [Subproblem(m, a, G, kappa, tau, N) for m, a, G in zip(models, x, mapping.duplicate_counts, strict=True)]
    systems = [factorise(p) for p in parts]
    theta, dual = [np.zeros(m.num_parameters) for m in models], np.zeros((N, 1))
    best, best_clients, rng = np.inf, np.inf, np.random.default_rng(0)
    for _ in range(rounds):
        start, clients = time.perf_counter(), 0.0
        h = [predict(p.model, t, p.x_nD) for p, t in zip(parts, theta, strict=True)]
        total = algorithm.gather_join(h, rows)
        z = algorithm.update_z("squared", y, dual, total, RHO)
        dual = algorithm.update_lambda(dual, total, z, RHO)
        shared = algorithm.shared_term(dual, total, z, RHO)
        for i, p in enumerate(parts):
            summed = algorithm.scatter_join(shared, rows[i], mapping.num_rows[i])
            Y = algorithm.linear_term(mode, summed, p.G_n, h[i], RHO, len(x))
            before = time.perf_counter()
            theta[i] = solve_linear(p, systems[i], Y) if mode == "boyd" else solve_sgd(p, Y, theta[i], rng)
            clients += time.perf_counter() - before
        best, best_clients = min(best, time.perf_counter() - start), min(best_clients, clients)
    return theta, best, best_clients


def sgd_epoch(joined: Joined, batches: list[np.ndarray]) -> list[np.ndarray]:
    """Train an epoch of RFL-SGD-V."""
    x, rows = joined.x, joined.rows
    models = [TableModel("linear", a.shape[1], 1) for a in x]
    theta = [np.zeros(m.num_parameters) for m in models]
    scratch = [np.empty(n, dtype=np.int64) for n in joined.mapping.num_rows]
    for batch in batches:
        touched = [algorithm.batch_rows(r[batch], s) for r, s in zip(rows, scratch, strict=True)]
        part = [a[b.rows_u] for a, b in zip(x, touched, strict=True)]
        h = [predict(m, t, a) for m, t, a in zip(models, theta, part, strict=True)]
        total = algorithm.gather_join(h, [b.position_B for b in touched])
        gradient = algorithm.loss_gradient("squared", total, joined.y[batch])
        for i, b in enumerate(touched):
            Y = algorithm.scatter_join(gradient, b.position_B, len(b.rows_u))
            partial = partial_gradient(models[i], theta[i], part[i], Y, b.counts(), BETA)
            theta[i] = algorithm.gradient_step(theta[i], algorithm.combine_gradients([partial], len(batch)), RATE)
    return theta


def torch_epoch(materialised: torch.Tensor, labels: torch.Tensor, batches: list[np.ndarray]) -> np.ndarray:
    """Train a plain PyTorch epoch on the materialised join."""
    linear = torch.nn.Linear(materialised.shape[1], 1, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(linear.weight)
    optimiser = torch.optim.SGD(linear.parameters(), lr=RATE, weight_decay=BETA)
    for batch in batches:
        chosen = torch.from_numpy(batch)
        optimiser.zero_grad()
        ((linear(materialised[chosen]) - labels[chosen]) ** 2).mean().div(2).backward()
        optimiser.step()
    return linear.weight.detach().numpy()[0]


def client_round(joined: Joined, times: int) -> Callable[[], None]:
    """Return the clients' part of a round with every duplicate count `times` as large."""
    parts = [
        Subproblem(TableModel("linear", a.shape[1], 1), a, times * G, RHO, BETA, times * joined.mapping.num_joined)
        for a, G in zip(joined.x, joined.mapping.duplicate_counts, strict=True)
    ]
    systems, Y = [factorise(p) for p in parts], [np.ones((len(a), 1)) for a in joined.x]

    def work() -> None:
        for _ in range(20):
            for p, s, y_n in zip(parts, systems, Y, strict=True):
                predict(p.model, solve_linear(p, s, y_n), p.x_nD)

    return work


def best_seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the shortest of several runs."""
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)


def main() -> None:
    """Print seconds and the RMSE on the training join, and write them if there is a folder for it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="a small made-up set")
    parser.add_argument("--out", type=Path, help="folder for tablepuppet_training.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    x, rating, keys = generate() if args.smoke else load()
    plan = make_plan(parse_query(QUERY), SCHEMAS, "rating")
    mapping = table_mapping(plan, {n: [hash_keys(t, e, n, b"k") for e in plan.edges_of(n)] for n, t in keys.items()})
    rows = [r.astype(np.int64) for r in mapping.rows]
    joined = Joined(x, mapping, rows, rating[rows[0]])
    made = {"joined_rows": float(mapping.num_joined), "trivial": float(joined.y.std())}
    print(f"joined rows {mapping.num_joined:,}; trivial predictor {joined.y.std():.4f}")
    ridge = float(np.sqrt(2 * centralised_loss(joined)))
    runs: tuple[tuple[Mode, int], ...] = (("boyd", 10), ("paper_sgd", 4))
    for mode, rounds in runs:
        theta, spent, clients = train_admm(mode, rounds, joined)
        h = algorithm.gather_join([a @ t[:, None] for a, t in zip(x, theta, strict=True)], rows)
        rmse = float(np.sqrt(np.mean((h[:, 0] - joined.y) ** 2)))
        made |= {f"{mode}_round_s": spent, f"{mode}_clients_s": clients, f"{mode}_rmse": rmse, "ridge_rmse": ridge}
        print(
            f"RFL-ADMM-V {mode:10} {spent:7.3f} s a round ({RELEASED_ROUND / spent:.0f}x the released code's), of it"
            f" clients {clients:.3f} s; RMSE {rmse:.4f} after {rounds} (centralised {ridge:.4f})"
        )
    made |= compare_epochs(joined)
    made |= compare_duplicates(joined)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "tablepuppet_training.json").write_text(json.dumps(made, indent=1) + "\n")


def compare_epochs(joined: Joined) -> dict[str, float]:
    """Time an epoch of RFL-SGD-V and one of PyTorch on the materialised join, which take the same steps."""
    x, rows = joined.x, joined.rows
    batches = algorithm.epoch_batches(joined.mapping.num_joined, BATCH_SIZE, np.random.default_rng(0))
    found = np.concatenate(sgd_epoch(joined, batches))
    ours = best_seconds(lambda: sgd_epoch(joined, batches), 4)
    materialised = torch.from_numpy(np.hstack([a[r] for a, r in zip(x, rows, strict=True)]))
    labels = torch.from_numpy(joined.y)[:, None]
    apart = float(np.abs(found - torch_epoch(materialised, labels, batches)).max())
    theirs = best_seconds(lambda: torch_epoch(materialised, labels, batches), 3)
    print(
        f"RFL-SGD-V {ours:.3f} s an epoch, PyTorch on the join {theirs:.3f} s (ratio {ours / theirs:.2f}, at most 2);"
        f" {RELEASED_EPOCH / ours:.1f}x the released code's; parameters differ by {apart:.1e}"
    )
    return {"epoch_s": ours, "torch_epoch_s": theirs, "parameters_apart": apart}


def compare_duplicates(joined: Joined) -> dict[str, float]:
    """Time the clients' round with every duplicate count doubled at equal n_i, in turns."""
    once, twice = client_round(joined, 1), client_round(joined, 2)
    seconds = [best_seconds(work, 1) for _ in range(40) for work in (once, twice)]
    first, second = min(seconds[0::2]) / 20, min(seconds[1::2]) / 20
    change = 100 * abs(second / first - 1)
    print(f"clients' round {first:.4f} s at N, {second:.4f} s at 2 N joined rows: {change:.1f} % apart (10)")
    return {"clients_round_s": first, "clients_round_doubled_s": second, "apart_%": change}


if __name__ == "__main__":
    main()
