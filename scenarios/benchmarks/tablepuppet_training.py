"""Compute of one RFL-ADMM-V round and one RFL-SGD-V epoch on MovieLens-1M, beside a plain PyTorch epoch.

    FEDACTORS_DATA=... python scenarios/benchmarks/tablepuppet_training.py

All parties' work runs one after the other in this process, so the seconds are the sum over the parties.
"""

from __future__ import annotations

import io
import os
import time
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from fedactors.errors import DataMissing
from protocols.tablepuppet import algorithm, operators
from protocols.tablepuppet.mapping import hash_keys, table_mapping
from protocols.tablepuppet.models import TableModel, predict
from protocols.tablepuppet.plan import make_plan
from protocols.tablepuppet.sql import parse_query
from protocols.tablepuppet.subproblem import Subproblem, factorise, partial_gradient, solve_linear, solve_sgd

QUERY = "SELECT r.rating FROM ratings r JOIN movies m ON r.movie = m.movie JOIN users u ON r.user = u.user"
SCHEMAS = {
    "ratings": {"user": "integer", "movie": "integer", "rating": "integer"},
    "movies": {"movie": "integer"},
    "users": {"user": "integer"},
}
BATCH_SIZE, RATE, BETA, RHO = 10_240, 0.1, 1e-6, 1.0


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


def main() -> None:
    """Print seconds and the RMSE on the training join."""
    torch.set_num_threads(1)
    x, rating, keys = load()
    plan = make_plan(parse_query(QUERY), SCHEMAS, "rating")
    mapping = table_mapping(plan, {n: [hash_keys(t, e, n, b"k") for e in plan.edges_of(n)] for n, t in keys.items()})
    rows, N, M = [operators.row_index(mapping, i) for i in range(3)], mapping.num_joined, 3
    y = rating[rows[0]]
    models = [TableModel("linear", a.shape[1], 1) for a in x]
    print(f"joined rows {N:,}; trivial predictor {y.std():.4f}")

    for mode, rounds in (("boyd", 10), ("paper_sgd", 3)):
        kappa = algorithm.quadratic_weight(mode, RHO, M)
        start = time.perf_counter()
        parts = [
            Subproblem(m, a, G, kappa, BETA if mode == "boyd" else 0.0, N)
            for m, a, G in zip(models, x, mapping.duplicate_counts, strict=True)
        ]
        systems = [factorise(p) for p in parts]
        theta, dual = [np.zeros(m.num_parameters) for m in models], np.zeros((N, 1))
        clients, rng = 0.0, np.random.default_rng(0)
        for _ in range(rounds):
            h = [predict(p.model, t, p.x_nD) for p, t in zip(parts, theta, strict=True)]
            total = operators.gather_join(h, rows)
            z = algorithm.update_z("squared", y, dual, total, RHO)
            dual = algorithm.update_lambda(dual, total, z, RHO)
            shared = algorithm.shared_term(dual, total, z, RHO)
            for i, p in enumerate(parts):
                summed = operators.scatter_join(shared, rows[i], mapping.num_rows[i])
                Y = algorithm.linear_term(mode, summed, p.G_n, h[i], RHO, M)
                before = time.perf_counter()
                theta[i] = solve_linear(p, systems[i], Y) if mode == "boyd" else solve_sgd(p, Y, theta[i], rng)
                clients += time.perf_counter() - before
        spent = (time.perf_counter() - start) / rounds
        h = operators.gather_join([a @ t[:, None] for a, t in zip(x, theta, strict=True)], rows)
        rmse = float(np.sqrt(np.mean((h[:, 0] - y) ** 2)))
        print(f"RFL-ADMM-V {mode:10} {spent:7.3f} s a round, of it clients {clients / rounds:.3f} s;", end=" ")
        print(f"RMSE {rmse:.4f} after {rounds}")

    batches = operators.epoch_batches(N, BATCH_SIZE, np.random.default_rng(0))
    theta, scratch = (
        [np.zeros(m.num_parameters) for m in models],
        [np.empty(n, dtype=np.int64) for n in mapping.num_rows],
    )
    start = time.perf_counter()
    for batch in batches:
        touched = [operators.batch_rows(r[batch], s) for r, s in zip(rows, scratch, strict=True)]
        part = [a[b.rows_u] for a, b in zip(x, touched, strict=True)]
        h = [predict(m, t, a) for m, t, a in zip(models, theta, part, strict=True)]
        gradient = algorithm.loss_gradient("squared", operators.gather_join(h, [b.place_B for b in touched]), y[batch])
        for i, b in enumerate(touched):
            Y = operators.scatter_join(gradient, b.place_B, len(b.rows_u))
            partial = partial_gradient(models[i], theta[i], part[i], Y, b.counts(), BETA)
            theta[i] = algorithm.gradient_step(theta[i], algorithm.combine_gradients([partial], len(batch)), RATE)
    ours = time.perf_counter() - start

    joined = torch.from_numpy(np.hstack([a[r] for a, r in zip(x, rows, strict=True)]))
    labels = torch.from_numpy(y)[:, None]
    linear = torch.nn.Linear(joined.shape[1], 1, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(linear.weight)
    optimiser = torch.optim.SGD(linear.parameters(), lr=RATE, weight_decay=BETA)
    start = time.perf_counter()
    for batch in batches:
        chosen = torch.from_numpy(batch)
        optimiser.zero_grad()
        ((linear(joined[chosen]) - labels[chosen]) ** 2).mean().div(2).backward()
        optimiser.step()
    theirs = time.perf_counter() - start
    apart = float(np.abs(linear.weight.detach().numpy()[0] - np.concatenate(theta)).max())
    print(f"RFL-SGD-V {ours:.3f} s an epoch, PyTorch on the join {theirs:.3f} s; parameters differ by {apart:.1e}")


if __name__ == "__main__":
    main()
