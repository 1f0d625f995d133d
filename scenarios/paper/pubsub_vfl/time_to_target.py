"""Time to a target AUC or RMSE of PubSub-VFL and of the paper's baselines, simulated (Figure 3): the whole comparison.

    python scenarios/paper/pubsub_vfl/time_to_target.py                        # all parts, as committed
    python scenarios/paper/pubsub_vfl/time_to_target.py --part tune --data bank
    python scenarios/paper/pubsub_vfl/time_to_target.py --paper                 # the whole map, ten seeds everywhere
    python scenarios/paper/pubsub_vfl/time_to_target.py --smoke --out DIR

Parts, in this order: `tune` tries the same number of settings for every method with five seeds of its own, `wider` some
beyond; `compare` runs each method's best one with ten other seeds, `confirm` with ten more after which nothing was
changed, and `by-target` those that are the best for one target alone; `changes` takes what shortens the exchange away,
one at a time, and `epochs` reads how long two whole epochs then take; `late` reads the same where a passive worker is
40 or 1,000 times slower than the others; `local` lets workers step again on cached exchanges while they wait, over two
links, with and without it at the best of three settings (`local-tune`); `cores` reads how busy 64 cores are with up to
32 workers a side; `windows` has fewer and more batches in flight; `map` asks over several links which method is best,
each with the setting that `links` chose for that link as `tune` does, among eight; `tune-skip` and `confirm-skip` are
`tune` and `confirm` where every method has the network of the defaults; `defaults` runs the three methods of one worker
a side with nothing set, and `defaults-tried` two of them with other batches, rates and windows over three links;
`summary` makes the tables of paired ratios from the rows of the others, between two looks by interpolation. A row is
measured again when its method's best setting is another one.

Every run trains for real, in virtual time: costs are the committed fit (`compute_costs.py`), a worker has a core of its
own, both parties share the capacity of one link, and the models are watched every 5 % of an epoch (`_watch.py`), of a
million rows, which take the settings chosen on a tenth of them, every 0.5 %. No method pauses between epochs. Of a
method's settings that is best which reaches the most targets, over all seeds with which it was tried, and of several
the one with the least sum of times to them.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _ratios import crossing, median_seconds, ratio_row
from _watch import EVERY, RESULTS, SIGNS, Watched, name_of, score_of, watch

from fedactors.runs.table import RunRow

sys.path.insert(0, str(Path(__file__).parents[3]))

from scenarios.paper.study import Study, study_flags

METHODS = ("vfl", "vfl-ps", "avfl", "avfl-ps", "pubsub-vfl")
OURS = "pubsub-vfl"
TARGETS = {
    "bank": (0.90, 0.92, 0.93),
    "credit": (0.72, 0.74, 0.75),
    "blog-log1p": (0.92, 0.85, 0.80),
    "synthetic:100000x500": (0.90, 0.93, 0.95),
    "synthetic:1000000x500": (0.90, 0.93, 0.95, 0.98, 0.99),
}
"""Validation AUC to reach, or RMSE; the last one takes longest."""
CHOSEN_ON = {"synthetic:1000000x500": "synthetic:100000x500"}
"""Sets too large to try all settings on, and the one that settings are chosen on instead."""
LOOKS = {"synthetic:1000000x500": EVERY / 10}
"""Share of an epoch after which models are looked at, where it is another one: as many batches as on a tenth."""
PARTS = (
    "tune",
    "wider",
    "compare",
    "confirm",
    "by-target",
    "changes",
    "epochs",
    "late",
    "local-tune",
    "local",
    "cores",
    "windows",
    "links",
    "map",
    "tune-skip",
    "confirm-skip",
    "defaults",
    "defaults-tried",
    "summary",
)
TUNING_SEEDS = (100, 101, 102, 103, 104)
"""Of `tune` and `tune-skip`; the first of them of the other parts that choose settings."""
SEEDS = tuple(range(10))
FRESH_SEEDS = tuple(range(10, 20))
"""Of the parts of `CONFIRMS`: seeds that nothing was changed after."""
ALL_SEEDS = ("compare", "changes")
"""Parts that are run with all seeds; of the others, `FIVE` have five, and the rest one. ``--paper``: all have all."""
FIVE = ("local", "windows", "map")
TRIES = ("tune", "wider", "links", "local-tune", "tune-skip")
"""Parts that have tuning seeds."""
CONFIRMS = ("confirm", "by-target", "confirm-skip", "defaults", "defaults-tried")
"""Parts that have fresh seeds."""
SKIP = {"model": "skip", "num_layers": 2}
"""The network of the defaults: linear, and a small MLP that starts at 0."""
OF_ONE_WORKER = ("vfl", "avfl", "pubsub-vfl")
"""Methods that differ with one worker a side: with one pair VFL-PS is VFL, and AVFL-PS is AVFL."""
TRIED_LINKS = ((1.0, 0.0005), (1.0, 0.01), (0.1, 0.0005))
"""Of `defaults-tried`: the link of the comparison, a far one and a narrow one."""
TRIED_DEFAULTS = (
    (OURS, 256, 0.003, 0),
    (OURS, 128, 0.003, 0),
    (OURS, 128, 0.003, 5),
    (OURS, 128, 0.006, 0),
    (OURS, 128, 0.006, 8),
    (OURS, 128, 0.006, 5),
    ("avfl", 256, 0.003, 0),
    ("avfl", 128, 0.006, 0),
)
"""Method, rows a batch, rate and batches in flight (0: by the rows); the first is PubSub-VFL by its defaults."""
TO_THE_LAST = ("tune", "wider", "compare", "confirm", "tune-skip", "confirm-skip", "defaults", "defaults-tried")
"""Parts that go on to the last target."""
MOST_EPOCHS = 2
LINKS = ((0.1, 0.0005), (0.1, 0.05), (1.0, 0.0), (1.0, 0.01), (25.0, 0.0005), (25.0, 0.05))
"""Gbit/s and seconds of latency."""
ALL_LINKS = tuple((gigabits, latency) for gigabits in (0.1, 1, 5, 25) for latency in (0.0, 0.0005, 0.005, 0.01, 0.05))
PUBSUB = (
    (1, "workers", 128, 0.003),
    (1, "workers", 256, 0.003),
    (2, "server", 128, 0.003),
    (2, "workers", 128, 0.01),
    (4, "server", 64, 0.001),
    (4, "workers", 64, 0.01),
)
AVFL_PS = (
    (2, "server", 128, 0.003),
    (2, "workers", 128, 0.003),
    (2, "workers", 256, 0.003),
    (4, "server", 64, 0.001),
    (4, "workers", 64, 0.001),
    (4, "workers", 64, 0.003),
)
"""Workers a side, who steps, batch size and learning rate; with one pair AVFL-PS would be AVFL."""
LINK_ALSO = {
    "vfl": ((1, "", 32, 0.003), (1, "", 512, 0.01)),
    "vfl-ps": ((8, "", 64, 0.003), (8, "", 64, 0.01)),
    "avfl": ((1, "", 32, 0.001), (1, "", 32, 0.003)),
    "avfl-ps": ((2, "workers", 64, 0.001), (2, "workers", 64, 0.003)),
    OURS: ((1, "workers", 64, 0.003), (1, "workers", 64, 0.01)),
}
"""Two more of each method that are tried where its setting is chosen for a link; as above."""
ALSO_TRIED = LINK_ALSO | {
    "avfl-ps": (*LINK_ALSO["avfl-ps"], (4, "workers", 64, 0.01)),
    OURS: (*LINK_ALSO[OURS], (4, "workers", 64, 0.02), (4, "workers", 32, 0.01), (8, "workers", 32, 0.01)),
}
"""Beyond the grids' edges and, of AVFL-PS, with PubSub-VFL's rate: nothing is chosen from it."""
NEVER = 2.0
"""An AUC that no run reaches: it is watched to its end."""
EPOCH_LINKS = ((1.0, 0.0005), (1.0, 0.01))
"""Of the part that compares whole epochs."""
CHANGES: Mapping[str, Mapping[str, Any]] = {
    "all": {},
    "pull": {"transfer": "pull"},
    "paused": {"epochs_per_round": 1},
    "8-bits": {"quantization_bits": 8},
    "16-bits": {"quantization_bits": 16},
    "other-optimiser": {},
}
"""What is changed of PubSub-VFL's setting; `other-optimiser`: at the workers instead of the server, or the reverse."""

LATE: Mapping[str, Mapping[str, Any]] = {
    "stragglers_excluded": {"deadline": 0.02},
    "waited-for": {"deadline": 0.02, "exclude_stragglers": False},
    "without-deadline": {"deadline": math.inf},
}
"""What a deadline, some 20 batches of the others long, does about a passive worker that is `SLOWER`."""
SLOWER = (40, 1000)
"""Times slower than its siblings."""
IN_FLIGHT = (0.25, 0.5, 1.0, 2.0)
"""Of the batches that `settings` lets be in flight in all, for the methods that have a window."""
ONE = {"num_active_workers": 1, "num_passive_workers": 1}
LOCAL_LINKS = ((0.1, 0.01), (1.0, 0.0005))
LOCAL: Mapping[str, Mapping[str, Any]] = {"without": {}, "with": {"local_updates": 5}}
"""Cached local updates, as many, of as many batches and with the threshold that the paper's own program has."""
LOCAL_TRIED: Mapping[str, Mapping[str, Any]] = {
    "chosen": {},
    "8-in-flight": {"max_in_flight": 8},
    "1-worker-8-in-flight": {**ONE, "batch_size": 128, "learning_rate": 0.003, "max_in_flight": 8},
}
"""What is changed of PubSub-VFL's setting; with and without local updates the best is taken on each link."""


def link_grid(method: str) -> list[dict[str, Any]]:
    """Return the eight settings that are tried of a method on each link of the map."""
    return grid(method) + [_setting(*tried) for tried in LINK_ALSO[method]]


def grid(method: str) -> list[dict[str, Any]]:
    """Return the six settings that are tried of a method."""
    if method in ("vfl", "avfl"):
        return [{"batch_size": b, "learning_rate": lr} for b in (64, 128, 256) for lr in (0.003, 0.01)]
    if method == "vfl-ps":
        sizes = ((4, 64), (4, 128), (16, 64))
        return [{**_workers(w), "batch_size": b, "learning_rate": lr} for w, b in sizes for lr in (0.003, 0.01)]
    tried = PUBSUB if method == OURS else AVFL_PS
    return [_setting(*one) for one in tried]


def _setting(workers: int, steps_at: str, batch_size: int, rate: float) -> dict[str, Any]:
    found: dict[str, Any] = {"batch_size": batch_size, "learning_rate": rate}
    if steps_at:
        found["optimizer_at"] = steps_at
    return {**_workers(workers), **found}


def _workers(count: int) -> dict[str, int]:
    return {"num_active_workers": count, "num_passive_workers": count}


def tried_defaults() -> dict[str, dict[str, Any]]:
    """Return what `defaults-tried` sets beside the defaults, by name."""
    found: dict[str, dict[str, Any]] = {}
    for method, batch_size, rate, window in TRIED_DEFAULTS:
        chosen = {"batch_size": batch_size, "learning_rate": rate, **({"max_in_flight": window} if window else {})}
        name = f"{method}-{label(chosen)}" + (f"-{window}-in-flight" if window else "")
        found[name] = {"algorithm": method, "local_baseline": False, **chosen}
    return found


def settings(method: str, chosen: Mapping[str, Any], latency: float) -> dict[str, Any]:
    """Return all that a run sets: `chosen`, and for each method a window that hides the latency.

    A batch is under way for two hops and its computes, about 2 ms; in that time one pair trains about one batch per
    0.5 ms. So many batches, and no fewer than 16 in all, are in flight, the same for every method that has a window.
    """
    workers = int(chosen.get("num_passive_workers", 1))
    window = max(math.ceil(16 / workers), math.ceil((2 * latency + 0.002) / 0.0005))
    # orders for six batches hide half a millisecond; a longer way needs as many as the window
    ours: dict[str, Any] = {"transfer": "push", "report_interval": 0.0, "sync_unit": "batch"}
    ours["prefetch"] = 6 if latency <= 0.0005 else min(window, 64)
    return {
        "algorithm": method,
        "num_epochs": MOST_EPOCHS,
        "epochs_per_round": MOST_EPOCHS,
        "embedding_buffer": min(window, 64),
        "max_in_flight": min(window, 64) * workers,
        **(ours if method == OURS else {}),
        **chosen,
    }


def label(chosen: Mapping[str, Any]) -> str:
    """Return a short name of a setting."""
    workers, at = chosen.get("num_active_workers", 1), chosen.get("optimizer_at", "")
    return f"w{workers:02d}-b{chosen['batch_size']:04d}-lr{chosen['learning_rate']:g}" + (f"-{at}" if at else "")


def link_name(gigabits: float, latency: float) -> str:
    """Return what rows of a link begin with."""
    return f"{gigabits:g}-gbit-{latency * 1e3:g}-ms-"


def rank(rows: Sequence[RunRow], data: str) -> tuple[int, float]:
    """Return how good a setting's runs were, the best one least: targets reached, then the sum of times to them."""
    reached = [row.metrics[name_of(t)] for row in rows for t in TARGETS[data] if name_of(t) in row.metrics]
    score = score_of(data)
    return -len(reached), sum(reached) if reached else -SIGNS[score] * sum(r.metrics[f"best_{score}"] for r in rows)


def best_local(given: Study, data: str, tried: Mapping[str, Watched]) -> dict[str, Watched]:
    """Return for each link the best setting with and without cached local updates, over the rows of `local-tune`."""
    found: dict[str, Watched] = {}
    rows = [row for row in given.rows(f"local-tune-{data}") if row.status == "finished"]
    for link in LOCAL_LINKS:
        for name in LOCAL:
            local = [row for row in rows if row.name.startswith(f"{link_name(*link)}{name}-")]
            if local:
                found[f"{link_name(*link)}{name}"] = tried[min(local, key=lambda row: rank([row], data)).name]
    return found


def tuned(given: Study, data: str, link: str = "", part: str = "tune") -> dict[str, dict[str, Any]]:
    """Return the best setting of each method over the rows of `tune` or `tune-skip`, or of a link over `links`."""
    study = f"links-{data}" if link else f"{part}-{CHOSEN_ON.get(data, data)}"
    found: dict[str, dict[str, Any]] = {}
    for method in METHODS:
        points = link_grid(method) if link else grid(method)
        tried = [(_finished(given, study, f"{link}{method}-{label(chosen)}"), chosen) for chosen in points]
        tried = [(rows, chosen) for rows, chosen in tried if rows]
        if len({len(rows) for rows, _ in tried}) > 1:
            raise SystemExit(f"{given.table}: settings of {method} have not as many seeds in {study}: run them all")
        if tried:
            found[method] = min(tried, key=lambda pair: rank(pair[0], data))[1]
    if OURS not in found or len(found) < 2:
        raise SystemExit(
            f"{given.table}: holds no rows of {study} to choose settings by: run --part {'links' if link else part}"
        )
    return found


def tuned_to(given: Study, data: str, target: float) -> dict[str, dict[str, Any]]:
    """Return each method's setting that reached a target with the most seeds of `tune`, and then soonest."""
    found = tuned(given, data)
    for method in found:
        best = (0, 0.0)
        for chosen in grid(method):
            rows = _finished(given, f"tune-{data}", f"{method}-{label(chosen)}")
            reached = [seconds for row in rows if (seconds := crossing(row, target)) is not None]
            if reached and (-len(reached), sum(reached)) < best:
                best, found[method] = (-len(reached), sum(reached)), chosen
    return found


def _finished(given: Study, study: str, name: str) -> list[RunRow]:
    return [row for row in given.rows(study, name) if row.status == "finished"]


def points(given: Study, part: str, data: str) -> dict[str, Watched]:
    """Return the runs of a part, by name."""

    def point(method: str, chosen: Mapping[str, Any], gigabits: float = 1.0, latency: float = 0.0005) -> Watched:
        return Watched(
            data=data,
            settings=settings(method, chosen, latency),
            # the last target takes most of the time, and is left to the comparison itself
            targets=TARGETS[data][: None if given.paper or part in TO_THE_LAST else 2],
            gigabits=gigabits,
            latency=latency,
            every=LOOKS.get(data, EVERY),
        )

    if part == "tune":
        return {f"{method}-{label(chosen)}": point(method, chosen) for method in METHODS for chosen in grid(method)}
    if part == "tune-skip":
        return {
            f"{method}-{label(chosen)}": point(method, {**chosen, **SKIP})
            for method in METHODS
            for chosen in grid(method)
        }
    if part == "confirm-skip":
        return {
            method: point(method, {**chosen, **SKIP}) for method, chosen in tuned(given, data, part="tune-skip").items()
        }
    if part == "defaults":
        return {
            method: Watched(
                data=data,
                settings={"algorithm": method, "local_baseline": False},
                targets=TARGETS[data],
                every=LOOKS.get(data, EVERY),
                published=False,
            )
            for method in OF_ONE_WORKER
        }
    if part == "defaults-tried":
        return {
            f"{link_name(*link)}{name}": Watched(
                data=data,
                settings=chosen,
                targets=TARGETS[data],
                gigabits=link[0],
                latency=link[1],
                every=LOOKS.get(data, EVERY),
                published=False,
            )
            for link in TRIED_LINKS
            for name, chosen in tried_defaults().items()
        }
    if part == "wider":
        return {
            f"{method}-{label(chosen)}": point(method, chosen)
            for method, also in ALSO_TRIED.items()
            for chosen in (_setting(*one) for one in also)
        }
    links = ALL_LINKS if given.paper else LINKS
    if part == "links":
        return {
            f"{link_name(*link)}{method}-{label(chosen)}": point(method, chosen, *link)
            for link in links
            for method in METHODS
            for chosen in link_grid(method)
        }
    if part == "map":
        return {
            f"{link_name(*link)}{method}": point(method, chosen, *link)
            for link in links
            for method, chosen in tuned(given, data, link_name(*link)).items()
        }
    if part == "cores":
        one_epoch = {"num_epochs": 1, "epochs_per_round": 1}
        return {
            f"{link_name(gigabits, 0.0005)}{method}-w{w:02d}": dataclasses.replace(
                point(method, {**_workers(w), "batch_size": 256, **one_epoch}, gigabits), targets=(NEVER,)
            )
            for gigabits in (1.0, 25.0)
            for method in ("avfl-ps", OURS)
            for w in (8, 32)
        }
    best = tuned(given, data)
    if part == "by-target":
        found: dict[str, Watched] = {}
        for target in TARGETS[data]:
            for method, chosen in tuned_to(given, data, target).items():
                name = f"{method}-{label(chosen)}"
                if chosen != best[method]:  # else `compare` has it
                    known = found[name].targets if name in found else ()
                    found[name] = dataclasses.replace(point(method, chosen), targets=(*known, target))
        return found
    if part == "windows":
        return {
            f"{method}-{share:g}": _in_flight(point(method, best[method]), share)
            for method in ("avfl", "avfl-ps", OURS)
            for share in IN_FLIGHT
        }
    if part in ("compare", "confirm"):
        return {
            f"{method}-{bits}": point(method, {**chosen, "quantization_bits": bits})
            for bits in ((0, 8) if part == "compare" else (0,))
            for method, chosen in best.items()
        }
    if part == "epochs":
        return {
            f"{link_name(gigabits, latency)}{name}": dataclasses.replace(
                point(OURS, {**best[OURS], **change}, gigabits, latency), targets=(NEVER,)
            )
            for gigabits, latency in EPOCH_LINKS
            for name, change in CHANGES.items()
            if name != "other-optimiser"
        }
    if part in ("local-tune", "local"):
        tried = {
            f"{link_name(*link)}{name}-{what}": point(OURS, {**best[OURS], **changed, **change}, *link)
            for link in LOCAL_LINKS
            for name, change in LOCAL.items()
            for what, changed in LOCAL_TRIED.items()
        }
        return tried if part == "local-tune" else best_local(given, data, tried)
    if part == "late":
        chosen = {**best[OURS], **_workers(max(2, best[OURS]["num_active_workers"]))}
        return {
            f"{times}-times-{name}": dataclasses.replace(
                point(OURS, {**chosen, **change}), targets=(NEVER,), speed={"passive/worker-1": 1 / times}
            )
            for times in SLOWER
            for name, change in LATE.items()
        }
    changes = dict(CHANGES)
    if best[OURS]["num_active_workers"] == 1:
        del changes["other-optimiser"]
    else:
        changes["other-optimiser"] = {
            "optimizer_at": "server" if best[OURS]["optimizer_at"] == "workers" else "workers"
        }
    return {name: point(OURS, {**best[OURS], **change}) for name, change in changes.items()}


def _in_flight(whole: Watched, share: float) -> Watched:
    """Return a run with a share of its batches in flight, and of the orders that wait at a worker."""
    found = dict(whole.settings)
    for name in ("max_in_flight", "embedding_buffer", "prefetch"):
        if name in found:
            found[name] = max(1, round(share * found[name]))
    return dataclasses.replace(whole, settings=found)


# --- the tables of ratios ---


def summarise(given: Study, data: str) -> None:
    """Put the ratios of PubSub-VFL to each other method, and of each change to what is kept, into the table."""
    tables: dict[str, dict[str, RunRow]] = {}
    for part, bits in (("compare", 0), ("compare", 8), ("confirm", 0)):
        study = f"ratios-{data}-{bits}" if part == "compare" else f"confirmed-{data}"
        ours = given.rows(f"{part}-{data}", f"{OURS}-{bits}")
        others = [(m, given.rows(f"{part}-{data}", f"{m}-{bits}")) for m in METHODS if m != OURS]
        for target in TARGETS[data] if ours else ():
            for method, rows in others:
                if rows:
                    tables.setdefault(study, {})[f"{target:g}-{method}"] = ratio_row(ours, rows, target)
            best, rows = min(others, key=lambda pair: median_seconds(pair[1], target))
            tables[study][f"{target:g}-best ({best})"] = ratio_row(ours, rows, target)
    tables[f"ratios-by-target-{data}"] = _by_target(given, data)
    tables[f"same-network-{data}"], tables[f"by-defaults-{data}"] = _same_network(given, data)
    tables[f"times-of-tried-{data}"] = _times_of_tried(given, data)
    tables[f"tried-over-chosen-{data}"] = _tried_over_chosen(given, data)
    effects, local_effects, best_of = (
        tables.setdefault(f"{s}-{data}", {}) for s in ("effects", "local-effects", "best")
    )
    for name in CHANGES:
        whole, changed = given.rows(f"changes-{data}", "all"), given.rows(f"changes-{data}", name)
        if name != "all" and whole and changed:
            for target in TARGETS[data][: None if given.paper else 2]:
                effects[f"{name}-{target:g}"] = ratio_row(changed, whole, target)
    for way in (link_name(*link) for link in LOCAL_LINKS):
        without, changed = (given.rows(f"local-{data}", f"{way}{name}") for name in LOCAL)
        for target in TARGETS[data][:2] if without and changed else ():
            local_effects[f"{way}{target:g}"] = ratio_row(changed, without, target)
    links: dict[str, dict[str, list[RunRow]]] = {}
    for row in given.rows(f"map-{data}"):
        link, _, method = row.name.partition("-ms-")
        links.setdefault(f"{link}-ms", {}).setdefault(method, []).append(row)
    target = TARGETS[data][1]
    for link, found in links.items():
        if OURS not in found or len(found) < 2:
            continue
        best = min((m for m in found if m != OURS), key=lambda method: median_seconds(found[method], target))
        best_of[f"{link}, best baseline {best}"] = ratio_row(found[OURS], found[best], target)
    for study, rows_of_study in tables.items():
        if rows_of_study:
            given.replace(study, rows_of_study)


def _same_network(given: Study, data: str) -> tuple[dict[str, RunRow], dict[str, RunRow]]:
    """Return the ratios with the network of the defaults: of the settings chosen for it, and of the defaults.

    The defaults are beside PubSub-VFL's own chosen setting, the best baseline's chosen setting, and the best baseline
    that sets nothing.
    """
    chosen = {method: given.rows(f"confirm-skip-{data}", method) for method in METHODS}
    plain = {method: given.rows(f"defaults-{data}", method) for method in OF_ONE_WORKER}
    same: dict[str, RunRow] = {}
    defaults: dict[str, RunRow] = {}

    def best_of(found: Mapping[str, Sequence[RunRow]], target: float) -> str:
        return min((m for m in found if m != OURS), key=lambda method: median_seconds(found[method], target))

    for target in TARGETS[data] if all(chosen.values()) else ():
        best = best_of(chosen, target)
        for name, method in [*((m, m) for m in METHODS if m != OURS), (f"best ({best})", best)]:
            same[f"{target:g}-{name}"] = ratio_row(chosen[OURS], chosen[method], target)
        if all(plain.values()):
            best_plain = best_of(plain, target)
            defaults[f"{target:g}-chosen"] = ratio_row(plain[OURS], chosen[OURS], target)
            defaults[f"{target:g}-best chosen ({best})"] = ratio_row(plain[OURS], chosen[best], target)
            defaults[f"{target:g}-best by defaults ({best_plain})"] = ratio_row(plain[OURS], plain[best_plain], target)
    return same, defaults


def _times_of_tried(given: Study, data: str) -> dict[str, RunRow]:
    """Return the median seconds to each target of what `defaults-tried` runs, and the paired ratio to the defaults."""
    names, times = list(tried_defaults()), {}
    for link in (link_name(*one) for one in TRIED_LINKS):
        defaults = given.rows(f"defaults-tried-{data}", f"{link}{names[0]}")
        for name in names if defaults else ():
            rows = given.rows(f"defaults-tried-{data}", f"{link}{name}")
            found: dict[str, float | None] = {}
            for target in TARGETS[data] if rows else ():
                ratio = ratio_row(rows, defaults, target).metrics
                found |= {name_of(target): ratio.get("ours"), f"ratio_to_{target:g}": ratio.get("ratio")}
            if found:
                metrics = {column: value for column, value in found.items() if value is not None}
                censored = tuple(column for column in found if column not in metrics)
                times[f"{link}{name}"] = dataclasses.replace(rows[0], metrics=metrics, censored=censored, curve={})
    return times


def _tried_over_chosen(given: Study, data: str) -> dict[str, RunRow]:
    """Return the ratios of what `defaults-tried` runs on the first link to the setting chosen for the same network."""
    chosen, link = given.rows(f"confirm-skip-{data}", OURS), link_name(*TRIED_LINKS[0])
    rows = {name: given.rows(f"defaults-tried-{data}", f"{link}{name}") for name in tried_defaults()}
    return {
        f"{target:g}-{name}": ratio_row(tried, chosen, target)
        for name, tried in rows.items()
        for target in TARGETS[data]
        if tried and chosen
    }


def _by_target(given: Study, data: str) -> dict[str, RunRow]:
    """Return the ratios of the methods' settings for each target alone."""
    ratios: dict[str, RunRow] = {}
    if not given.rows(f"by-target-{data}"):
        return ratios
    best = tuned(given, data)
    for target in TARGETS[data]:
        found = {
            method: given.rows(f"confirm-{data}", f"{method}-0")
            if chosen == best[method]
            else given.rows(f"by-target-{data}", f"{method}-{label(chosen)}")
            for method, chosen in tuned_to(given, data, target).items()
        }
        ours = found.pop(OURS)
        if not ours or not all(found.values()):
            continue
        quickest = min(found, key=lambda method: median_seconds(found[method], target))
        for name, rows in [*found.items(), (f"best ({quickest})", found[quickest])]:
            ratios[f"{target:g}-{name}"] = ratio_row(ours, rows, target)
    return ratios


def main() -> None:
    parser = study_flags(__doc__, "pubsub_vfl", RESULTS, seeds=SEEDS)
    parser.add_argument("--part", action="append", choices=PARTS, help="(default: all)")
    parser.add_argument("--data", action="append", choices=list(TARGETS), help="(default: bank, credit)")
    given = parser.parse_args(namespace=Study())
    for data in given.data or ["bank"] if given.smoke else given.data or ["bank", "credit"]:
        for part in given.part or PARTS:
            if part == "summary":
                summarise(given, data)
                continue
            selected = points(given, part, data)
            if given.smoke:
                selected = {
                    name: _tiny(point)
                    for name, point in selected.items()
                    if part not in ("tune", "links", "tune-skip") or "lr0.003" in name
                }
            whole = given.paper or part in ALL_SEEDS
            fewer = given.seeds if whole else given.seeds[: 5 if part in FIVE else 1]
            if part in CONFIRMS:
                fewer = FRESH_SEEDS if given.seeds == SEEDS else given.seeds
            elif part in TRIES and given.seeds != SEEDS:
                fewer = given.seeds
            elif part in TRIES:
                fewer = TUNING_SEEDS if part in ("tune", "tune-skip") else TUNING_SEEDS[:1]
            # what was chosen for the parts that compare follows from other rows, and may have changed with them
            given.measure(f"{part}-{data}", selected, watch, seeds=fewer, all_seeds=True, as_set=True)


def _tiny(point: Watched) -> Watched:
    """Return the smallest run that goes the same way."""
    sizes = {"num_epochs": 1, "epochs_per_round": 1, "num_layers": 2, "hidden_size": 8, "embedding_size": 4}
    return dataclasses.replace(point, data="breast-cancer", settings={**point.settings, **sizes})


if __name__ == "__main__":
    main()
