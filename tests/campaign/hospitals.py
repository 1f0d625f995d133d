"""Many sites, three of which come and go: FedAvg with secure sums, client-level noise and a budget at each site.

    python -m tests.campaign.hospitals --sites 20 --rounds 200 --out docs/results/data/twenty_sites.json

One of the three is killed and started again twice, one is stopped and continues, one is cut off the network and then
killed. The run must end; each site must be charged for the rounds that it answered; the signed logs must agree; the
metrics must be those of simulated runs that lose the same sites, for as many rounds in all: outside of their 99.9 %
interval the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fedactors.config import build
from fedactors.federation.operations import compare
from fedactors.federation.site_folder import Amount, as_logged, spent, taken_by
from fedactors.protocols.horizontal import client_dp
from fedactors.protocols.horizontal.config import HorizontalConfig
from fedactors.runs.folder import ROUND_METRICS
from tests.campaign.expected import METRICS, Absence, interval, outside, with_absences
from tests.campaign.sites import Sites, until
from tests.federation.test_going_on import rounds_of
from tests.federation.world import BANK, CLINIC, DATA, SHOP

ROWS, TEST_ROWS = 80, 400
SECONDS_PER_ROUND = 60.0
"""A limit only: the run must come so far."""
NOISED = (
    "secure_aggregation=true", "client_clip_norm=1.0", "client_noise_multiplier=8.0", "weighting=uniform",
    "standardisation=none", "model=linear", "local_baseline=false",
)  # fmt: skip
ANNOUNCED = Amount(epsilon=100.0, delta=1e-5)

ABSENCES = (
    Absence("h0", "kill -9", 0.10, 0.25),
    Absence("h1", "stop", 0.30, 0.40),
    Absence("h0", "kill -9", 0.45, 0.50),
    Absence(SHOP, "cut off", 0.55, 0.70),
    Absence(SHOP, "kill -9", 0.75, 0.85),
)


class Hospitals(Sites):
    """So many sites with rows of the same columns, each with a budget."""

    def __init__(self, folder: Path, count: int) -> None:
        more = tuple(f"h{number}" for number in range(count - 2))
        DATA.update(dict.fromkeys(more, DATA[CLINIC]))
        super().__init__(folder, more)

    def prepare(self) -> None:
        rng, weights = np.random.default_rng(7), np.array([1.0, -1.0, 0.5, 0.8])
        for name, file, num_rows in (*((n, "patients.csv", ROWS) for n in self.names), (BANK, "test.csv", TEST_ROWS)):
            x = rng.normal(size=(num_rows, 4))
            y = (x @ weights + rng.normal(size=num_rows) > 0).astype(int)
            rows = [",".join(f"{value:.4f}" for value in v) + f",{label}" for v, label in zip(x, y, strict=True)]
            (self.path / name / file).write_text("\n".join(["a,b,c,d,bad", *rows]) + "\n")
        self.give_budgets(200.0)

    @property
    def data(self) -> str:
        more = [f"{name}=cured" for name in self.names[2:]]
        return ",".join([f"{BANK}=patients", f"{SHOP}=cases", *more])

    def leave(self, absence: Absence) -> None:
        process = self.started[absence.site]
        if absence.how == "cut off":
            self.way.is_closed = True
            self.way.cut()
        elif absence.how == "stop":
            process.send_signal(signal.SIGSTOP)
        else:
            process.kill()
            process.wait(30)

    def come_back(self, absence: Absence) -> None:
        if absence.how == "cut off":
            self.way.is_closed = False
        elif absence.how == "stop":
            self.started[absence.site].send_signal(signal.SIGCONT)
        else:
            self.begin(absence.site)

    def memory(self) -> float:
        """Return the memory of a site's process in MB, as the mean over all sites."""
        sizes = [psutil.Process(site.pid).memory_info().rss for site in self.started.values() if site.poll() is None]
        return sum(sizes) / len(sizes) / 1e6


def settings(count: int, num_rounds: int) -> tuple[str, ...]:
    """Return the settings of the run; a round needs all sites but the three, and one more."""
    least = max(count - 4, count // 2 + 1)
    return (f"num_rounds={num_rounds}", f"min_sites={least}", "client_timeout=20", "quorum_timeout=300", *NOISED)


def train(sites: Hospitals, words: tuple[str, ...], num_rounds: int) -> dict[str, Any]:
    """Run the training with its absences; return what came of it.

    Raises:
        AssertionError: the run ended early, or did not come on.
    """
    budgets = [word for name in sites.names for word in ("--budget", f"{name}={ANNOUNCED.epsilon:g}:{ANNOUNCED.delta}")]
    begun = time.monotonic()
    driver = sites.drive("horizontal", "--data", sites.data, *budgets, *words)
    moments = sorted([(a.begin, 0, a) for a in ABSENCES] + [(a.end, 1, a) for a in ABSENCES], key=lambda m: m[:2])
    try:
        for share, is_end, absence in moments:

            def is_there(share: float = share) -> bool:
                return driver.poll() is not None or len(lines(sites)) >= share * num_rounds

            assert until(is_there, SECONDS_PER_ROUND * num_rounds), f"the run did not come to {share:.0%}"
            assert driver.poll() is None, driver.communicate()[1][-2000:]
            if is_end:
                sites.come_back(absence)
                assert until(partial(is_back, sites, driver, absence.site)), f"{absence.site} did not come back"
            else:
                sites.leave(absence)
            print(
                f"round {len(lines(sites))}: {absence.site}, {absence.how}, {'ends' if is_end else 'begins'}",
                flush=True,
            )
        memory = sites.memory()
        out, err = driver.communicate(timeout=SECONDS_PER_ROUND * num_rounds)
        assert driver.returncode == 0, err[-2000:]
    finally:
        driver.kill()
        driver.communicate()
    assert sites.are_free()
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return {**found, "seconds": round(time.monotonic() - begun, 1), "megabytes_of_a_site": round(memory, 1)}


def is_back(sites: Hospitals, driver: subprocess.Popen[str], name: str) -> bool:
    """Say whether a site takes part in the last round, or the run is over."""
    return driver.poll() is not None or f"{name}/away" not in last_round(sites)


def lines(sites: Hospitals) -> list[str]:
    """Return the rounds that the run has recorded."""
    return [line for file in sites.runs.glob(f"*/{ROUND_METRICS}") for line in file.read_text().splitlines()]


def last_round(sites: Hospitals) -> dict[str, Any]:
    """Return the metrics of the last round."""
    found: dict[str, Any] = json.loads(lines(sites)[-1])
    return found


def accounts(sites: Hospitals, words: tuple[str, ...], rounds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each site the rounds that it answered, what its log charged, and whether these agree."""
    config = build(HorizontalConfig, dict(word.split("=") for word in words))
    found = []
    for name in sites.names:
        num_away = sum(f"{name}/away" in one for one in rounds)
        losses = sum(absence.site == name for absence in ABSENCES)
        # of each round in which it was lost its answer may have left
        records = [
            client_dp.record(config, name, len(rounds) - num_away + late, is_restored=False, is_server=False)
            for late in range(losses + 1)
        ]
        allowed = [as_logged(taken_by(name, [record])) for record in records]
        if f"{name}/away" in rounds[-1]:  # it was away to the end: what was announced counts
            [charged] = spent(sites.audit(name)).values()
            is_right = list(charged.values()) == [ANNOUNCED]
            found.append({"site": name, "away": num_away, "epsilon": ANNOUNCED.epsilon, "is_right": is_right})
            continue
        ends = [one for one in sites.audit(name) if one["what"] == "ended" and one["who"] == "site"]
        ends = [one["taken"] for one in ends if one.get("was_open", True)]
        taken: dict[str, Any] = next((one for one in reversed(ends) if one), {})
        epsilon = next((one[0] for one in taken.values()), None)
        found.append({"site": name, "away": num_away, "epsilon": epsilon, "is_right": taken in allowed})
    return found


def logs(sites: Hospitals) -> list[str]:
    """Return for each site what comparing its log with the coordinator's says: "cut" where it lacks an end."""
    coordinator = sites.audit(BANK)
    return [
        " ".join(sorted({one.verdict for one in compare(BANK, coordinator, name, sites.audit(name))}))
        for name in sites.names[1:]
    ]


def described(sites: Hospitals) -> Path:
    """Write the data of all sites as a ``parties.toml``, and return it."""
    parties = [
        f'[parties.{name}]\npath = "{sites.path / name / "patients.csv"}"\nlabel = "bad"\n' for name in sites.names
    ]
    head = f'''[task]
type = "binary"
layout = "horizontal"
classes = ["0", "1"]
test = "{sites.path / BANK / "test.csv"}"
'''
    file = sites.path / "parties.toml"
    file.write_text("\n".join([head, *parties]))
    return file


def main(words: list[str] | None = None) -> int:
    """Run it, and write what came of it; return 1 where anything is not as it must be."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.hospitals", description=__doc__)
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=10, help="simulated runs")
    parser.add_argument("--out", type=Path, help="a JSON file")
    given = parser.parse_args(words)
    config = settings(given.sites, given.rounds)
    with tempfile.TemporaryDirectory(prefix="hospitals-") as folder:
        with contextlib.redirect_stdout(io.StringIO()):
            sites = Hospitals(Path(folder), given.sites)
        try:
            found = train(sites, config, given.rounds)
            rounds = rounds_of(found["run"])
            each, agreed = accounts(sites, config, rounds), logs(sites)
        finally:
            sites.end()
        asked = build(HorizontalConfig, dict(word.split("=") for word in config))
        alone = with_absences(asked, described(sites), ABSENCES, given.seeds)
    metrics = {}
    for name in METRICS:
        values, value = [one[name] for one in alone], float(found["metrics"][name])
        low, high = interval(values, 0.05)
        metrics[name] = {
            "between sites": value, "simulated": sum(values) / len(values), "interval": [low, high],
            "is_within": low <= value <= high,
        }  # fmt: skip
    told = {
        "sites": given.sites, "rounds": len(rounds), "settings": config, "cores": os.cpu_count(),
        "seconds": found["seconds"], "megabytes_of_a_site": found["megabytes_of_a_site"],
        "rounds_without_all": sum(one["sites"] < given.sites for one in rounds),
        "rounds_that_changed_nothing": sum(one["sites"] == 0 for one in rounds),
        "accounts": each, "logs": dict(Counter(agreed)), "metrics": metrics,
    }  # fmt: skip
    print(json.dumps(told, indent=1))
    if given.out is not None:
        given.out.write_text(json.dumps(told, indent=1) + "\n")
    is_right = (
        len(rounds) == given.rounds
        and all(one["is_right"] for one in each)
        and not outside(found["metrics"], alone)
        and set(agreed) <= {"agree", "cut", "agree cut"}
    )
    return int(not is_right)


if __name__ == "__main__":
    sys.exit(main())
