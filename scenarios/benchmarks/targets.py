"""Targets that are an array each, on real data: the same network with the clients' rows together, federated, and alone.

    python -m scenarios.benchmarks.targets [titles genres indoors] [--smoke]

``titles``    the next letter of film titles (MovieLens), clients are decades; a GRU; perplexity of a letter
``genres``    the 18 genres of a film from who rated it (MovieLens), clients are decades; AUC, mean over genres
``indoors``   temperature and humidity indoors over the next hour, from the last four (energy), clients are months; R2

Each row of the table is the mean over three seeds, and the half width of its 95 % confidence interval (Student's t).
"""

from __future__ import annotations

import argparse
import csv
import io
import zipfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import nn

import fedactors
from fedactors.data.datasets.catalogue import locate
from fedactors.learning.metrics import task_metrics
from fedactors.learning.models import task_loss

Rows = tuple[NDArray[Any], NDArray[Any]]
SEEDS = (0, 1, 2)
LENGTH = 32
PAST, NEXT = 24, 6


class Task(NamedTuple):
    """Rows by client, rows to measure on, and how they are trained."""

    clients: Mapping[str, Rows]
    test: Rows
    facts: dict[str, Any]
    settings: dict[str, Any]
    metric: str


class Letters(nn.Module):
    """A language model of letters."""

    def __init__(self, inputs: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.letters, self.read = nn.Embedding(outputs, 32), nn.GRU(32, 64, batch_first=True)
        self.head = nn.Linear(64, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits of the letter after each, (B, T, V)."""
        found: torch.Tensor = self.head(self.read(self.letters(x.long()))[0])
        return found


class Labels(nn.Module):
    """A small network of a logit for each label."""

    def __init__(self, inputs: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs[0], 32), nn.ReLU(), nn.Linear(32, outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits, (B, L)."""
        found: torch.Tensor = self.body(x)
        return found


class Hour(nn.Module):
    """A GRU over the past, and a linear layer for each step to come."""

    def __init__(self, inputs: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.read, self.head = nn.GRU(inputs[1], 32, batch_first=True), nn.Linear(32, NEXT * outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return values, (B, steps, values)."""
        found: torch.Tensor = self.head(self.read(x)[0][:, -1]).unflatten(1, (NEXT, -1))
        return found


def films(name: str) -> list[list[str]]:
    """Return the lines of a file of MovieLens-1M."""
    with zipfile.ZipFile(locate("movielens-1m", "movielens-1m/ml-1m.zip")) as archive:
        (path,) = [one for one in archive.namelist() if one.endswith(f"/{name}.dat")]
        return [line.split("::") for line in archive.read(path).decode("latin-1").splitlines()]


def by_decade(rows: Rows, years: NDArray[np.int64], rng: np.random.Generator) -> tuple[dict[str, Rows], Rows]:
    """Deal a fifth of the rows to nobody, to measure on, and the others by decade; early decades are one client."""
    x, y = rows
    order = rng.permutation(len(x))
    held, rest = np.split(order, [len(x) // 5])
    decades = np.maximum(years // 10 * 10, 1950)
    chosen = {f"from-{decade}": rest[decades[rest] == decade] for decade in np.unique(decades)}
    return {name: (x[one], y[one]) for name, one in chosen.items()}, (x[held], y[held])


def titles(rng: np.random.Generator) -> Task:
    """Return titles without their years; what follows the end of a title does not count."""
    found = [(title[:-7], int(title[-5:-1])) for _, title, _ in films("movies")]
    letters = sorted({letter for title, _ in found for letter in title})
    number = {letter: index + 1 for index, letter in enumerate(letters)}  # 0 begins and ends a title
    x = np.zeros((len(found), LENGTH), np.int64)
    y = np.full((len(found), LENGTH), -100)
    for row, (title, _) in enumerate(found):
        codes = [0, *(number[letter] for letter in title), 0][: LENGTH + 1]
        x[row, : len(codes) - 1], y[row, : len(codes) - 1] = codes[:-1], codes[1:]
    clients, test = by_decade((x, y), np.array([year for _, year in found]), rng)
    facts = {"task": "tokens", "classes": len(letters) + 1}
    settings = {"model": Letters, "learning_rate": 0.01, "num_rounds": 10, "batch_size": 16}
    return Task(clients, test, facts, settings, "perplexity")


def genres(rng: np.random.Generator) -> Task:
    """Return shares of raters by sex, age and occupation, and mean rating, of films with 20 ratings or more."""
    users = {user: (sex, age, job) for user, sex, age, job, *_ in films("users")}
    groups = {one: index for index, one in enumerate(sorted({(k, v) for u in users.values() for k, v in enumerate(u)}))}
    counts: dict[str, NDArray[np.float64]] = defaultdict(lambda: np.zeros(len(groups) + 2))
    for user, film, stars, *_ in films("ratings"):
        for one in enumerate(users[user]):
            counts[film][groups[one]] += 1
        counts[film][-2:] += float(stars), 1.0
    told = [(film, int(title[-5:-1]), kinds.split("|")) for film, title, kinds in films("movies") if film in counts]
    told = [one for one in told if counts[one[0]][-1] >= 20]
    names = sorted({kind for *_, kinds in told for kind in kinds})
    whole = np.stack([counts[film] for film, *_ in told])
    x = np.column_stack([whole[:, :-2] / whole[:, -1:], whole[:, -2] / whole[:, -1], np.log(whole[:, -1])])
    x = (x - x.mean(0)) / x.std(0)
    y = np.array([[name in kinds for name in names] for *_, kinds in told], np.int64)
    clients, test = by_decade((x.astype(np.float32), y), np.array([year for _, year, _ in told]), rng)
    settings = {"model": Labels, "learning_rate": 0.01, "num_rounds": 30, "batch_size": 16}
    return Task(clients, test, {"task": "multilabel", "classes": names}, settings, "auc")


def indoors(rng: np.random.Generator) -> Task:
    """Return windows of four hours, and T1 and RH_1 over the hour after each, as changes; the last month tests."""
    with zipfile.ZipFile(locate("energy", "energy/energydata_complete.zip")) as archive:
        (name,) = [one for one in archive.namelist() if one.endswith(".csv")]
        rows = list(csv.DictReader(io.TextIOWrapper(archive.open(name), "utf-8")))
    columns = ("T1", "RH_1", "T2", "RH_2", "T_out", "RH_out", "Appliances")
    values = np.array([[float(row[column]) for column in columns] for row in rows])
    values = (values - values.mean(0)) / values.std(0)
    months = np.array([row["date"][:7] for row in rows])
    clients: dict[str, Rows] = {}
    for month in np.unique(months):
        part = values[months == month]
        starts = np.arange(0, len(part) - PAST - NEXT + 1, 3)
        x = np.stack([part[first : first + PAST] for first in starts]).astype(np.float32)
        y = np.stack([part[first + PAST : first + PAST + NEXT, :2] - part[first + PAST - 1, :2] for first in starts])
        clients[f"in-{month}"] = (x, y.astype(np.float32))
    test = clients.pop(max(clients))
    facts = {"task": "regression", "shape": [PAST, len(columns)]}
    settings = {"model": Hour, "learning_rate": 0.003, "num_rounds": 10, "batch_size": 16}
    return Task(clients, test, facts, settings, "r2")


def federated(task: Task, seed: int, **more: Any) -> float:
    """Return the metric on the test rows of the network that the clients train together."""
    data = fedactors.horizontal(task.clients, test=task.test, **task.facts)
    how = {"optimizer": "adam", "schedule": "cosine", "local_epochs": 1, "standardisation": "none"}
    settings = {**how, "seed": seed, **task.settings, **more}
    return float(fedactors.simulate("horizontal", data, **settings).metrics[f"test/{task.metric}"])


def plain(task: Task, rows: Rows, seed: int, **more: Any) -> float:
    """Return the same of a plain loop of torch on rows in one place, a pass for each round."""
    settings = {**task.settings, **more}
    kind, (x, y) = task.facts["task"], map(torch.from_numpy, rows)
    width = task.facts["classes"] if kind == "tokens" else y.shape[-1]
    torch.manual_seed(seed)
    module = settings["model"](tuple(x.shape[1:]), width)
    step = torch.optim.Adam(module.parameters(), settings["learning_rate"])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(step, settings["num_rounds"])
    for _ in range(settings["num_rounds"]):
        for batch in torch.randperm(len(x)).split(settings["batch_size"]):
            step.zero_grad()
            task_loss(kind, module(x[batch].float()), y[batch]).backward()
            step.step()
        schedule.step()
    with torch.no_grad():
        outputs = module(torch.from_numpy(task.test[0]).float()).numpy()
    return task_metrics(kind, task.test[1], outputs)[task.metric]


def measured(make: Callable[[np.random.Generator], Task], seeds: Sequence[int], **more: Any) -> dict[str, list[float]]:
    """Return the scores by seed of the rows together, federated, and of the clients alone (their mean)."""
    found: dict[str, list[float]] = defaultdict(list)
    for seed in seeds:
        task = make(np.random.default_rng(seed))
        x, y = (np.concatenate(parts) for parts in zip(*task.clients.values(), strict=True))
        found["together"].append(plain(task, (x, y), seed, **more))
        found["federated"].append(federated(task, seed, **more))
        found["alone"].append(float(np.mean([plain(task, one, seed, **more) for one in task.clients.values()])))
    return found


def shown(values: Sequence[float]) -> str:
    """Return the mean of several seeds with the half width of its interval; of one seed its value."""
    if len(values) == 1:
        return f"{values[0]:.4g}"
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5
    return f"{np.mean(values):.4g} ± {half:.2g}"


def main() -> None:
    """Print the table."""
    makes = {make.__name__: make for make in (titles, genres, indoors)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"{', '.join(makes)}; all of them unless given")
    parser.add_argument("--smoke", action="store_true", help="one seed, one round")
    asked = parser.parse_args()
    seeds, more = ((0,), {"num_rounds": 1}) if asked.smoke else (SEEDS, {})
    print("| task | metric | rows together | federated | each alone |\n|---|---|---|---|---|")
    for name in asked.tasks or makes:
        found = measured(makes[name], seeds, **more)
        metric = makes[name](np.random.default_rng(0)).metric
        print(f"| {name} | `{metric}` | {' | '.join(map(shown, found.values()))} |", flush=True)


if __name__ == "__main__":
    main()
