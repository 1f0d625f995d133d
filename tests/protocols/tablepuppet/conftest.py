"""Small joins, and the composition of the pure functions into whole trainings in one process."""

from __future__ import annotations

import dataclasses
import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from fedactors.data.join import TableMapping, hash_keys, table_mapping
from fedactors.data.query import make_plan, parse_query
from fedactors.protocols.tablepuppet import algorithm
from fedactors.protocols.tablepuppet.local_solvers import Subproblem, TableModel, factorise, predict, solve_linear
from tests.databases import postgres  # noqa: F401

SECRET = b"a key that the server does not know"


@dataclasses.dataclass
class Joined:
    """A mapping with each table's rows, and the label of every joined row."""

    mapping: TableMapping
    x: list
    y_N: np.ndarray

    @property
    def rows(self):
        return [rows.astype(np.int64) for rows in self.mapping.rows]

    @property
    def materialised(self):
        return np.hstack([x[rows] for x, rows in zip(self.x, self.rows, strict=True)])


def star_plan():
    schemas = {
        "orders": {"item": "integer", "card": "integer", "amount": "float"},
        "items": {"item": "integer"},
        "cards": {"card": "integer"},
    }
    sql = "SELECT * FROM orders JOIN items ON orders.item = items.item JOIN cards ON orders.card = cards.card"
    return make_plan(parse_query(sql), schemas, "amount")


def star_mapping(orders_item, orders_card, items, cards):
    plan = star_plan()
    keys = {
        "orders": pa.table({"item": orders_item, "card": orders_card}),
        "items": pa.table({"item": items}),
        "cards": pa.table({"card": cards}),
    }
    hashes = {n: [hash_keys(t, e, n, SECRET) for e in plan.edges_of(n)] for n, t in keys.items()}
    return table_mapping(plan, hashes, threads=1)


@pytest.fixture
def make_star():
    """Return a maker of a random star join; `constants` adds a column of ones to every table, not only the label's."""

    def make(seed=0, constants=False, num_orders=60):
        rng = np.random.default_rng(seed)
        item, card = rng.integers(0, 9, num_orders), rng.integers(0, 7, num_orders)
        mapping = star_mapping(item, card, np.repeat(np.arange(8), 2), np.arange(6))
        x = [rng.normal(size=(num_orders, 2)), rng.normal(size=(16, 3)), rng.normal(size=(6, 2))]
        x = [np.hstack([a, np.ones((len(a), 1))]) if constants or i == 0 else a for i, a in enumerate(x)]
        label = rng.normal(size=num_orders) + 2.0
        return Joined(mapping, x, label[mapping.rows[0]])

    return make


def centralised_ridge(x_ND, y_NC, beta):
    """Return the minimiser of Eq. 1 for the squared loss on the joined table."""
    N, D = x_ND.shape
    return np.linalg.solve(x_ND.T @ x_ND / N + beta * np.eye(D), x_ND.T @ y_NC / N)


def touched_rows(mapping, batches):
    """Return alpha_i of each table: its distinct rows summed over the batches (Table 6)."""
    return tuple(sum(len(np.unique(rows[batch])) for batch in batches) for rows in mapping.rows)


@pytest.fixture
def run_admm():
    """Return a function that runs RFL-ADMM-V with exact linear solves in this process and returns the thetas."""

    def run(joined, mode, rho, beta, rounds, mapping=None, x=None):
        mapping, x = mapping or joined.mapping, x or joined.x
        rows = [r.astype(np.int64) for r in mapping.rows]
        M, N = len(x), mapping.num_joined
        kappa = algorithm.quadratic_weight(mode, rho, M)
        problems = [
            Subproblem(TableModel("linear", a.shape[1], 1), a, G, kappa, beta, N)
            for a, G in zip(x, mapping.duplicate_counts, strict=True)
        ]
        systems = [factorise(p) for p in problems]
        theta = [np.zeros(a.shape[1]) for a in x]
        dual = np.zeros((N, 1))
        for _ in range(rounds):
            h = [predict(p.model, t, p.x_nD) for p, t in zip(problems, theta, strict=True)]
            total = algorithm.gather_join(h, rows)
            z = algorithm.update_z("squared", joined.y_N, dual, total, rho)
            dual = algorithm.update_lambda(dual, total, z, rho)
            shared = algorithm.shared_term(dual, total, z, rho)
            for i, problem in enumerate(problems):
                summed = algorithm.scatter_join(shared, rows[i], mapping.num_rows[i])
                Y = algorithm.linear_term(mode, summed, problem.G_n, h[i], rho, M)
                theta[i] = solve_linear(problem, systems[i], Y)
        return theta

    return run


@pytest.fixture(scope="session")
def movielens():
    """MovieLens-1M: 85 % of the ratings, movies with a row for each genre, users; joined."""
    folder = os.environ.get("FEDACTORS_DATA")
    if not folder:
        pytest.skip("FEDACTORS_DATA is not set")
    with zipfile.ZipFile(Path(folder) / "movielens-1m" / "ml-1m.zip") as archive:
        lines = {n: io.TextIOWrapper(archive.open(f"ml-1m/{n}.dat"), "latin-1").read().splitlines()
                 for n in ("ratings", "movies", "users")}  # fmt: skip
    ratings = np.array([line.split("::")[:3] for line in lines["ratings"]], dtype=np.int64)
    ratings = ratings[np.random.default_rng(0).permutation(len(ratings))[:850_177]]
    users = np.array([line.split("::") for line in lines["users"]])
    movies = [line.split("::") for line in lines["movies"]]
    genres = np.array([(m[0], g, m[1][-5:-1]) for m in movies for g in m[2].split("|")])

    def one_hot(values):
        return (values[:, None] == np.unique(values)[None, :]).astype(np.float64)

    years = genres[:, 2].astype(np.float64)
    x = [
        np.ones((len(ratings), 1)),
        np.hstack([one_hot(genres[:, 1]), ((years - years.mean()) / years.std())[:, None]]),
        np.hstack([one_hot(users[:, 1]), one_hot(users[:, 2]), one_hot(users[:, 3])]),
    ]
    mapping = star_mapping(ratings[:, 1], ratings[:, 0], genres[:, 0].astype(np.int64), users[:, 0].astype(np.int64))
    return Joined(mapping, x, ratings[:, 2].astype(np.float64)[mapping.rows[0]])
