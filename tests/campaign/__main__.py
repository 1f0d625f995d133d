"""The campaign, run by hand: faults at random moments of real runs on Ray, and a table of what came of them.

    python -m tests.campaign --number 40 --seed 1 --seconds 480 --out docs/results/reliability.parquet
    python -m tests.campaign --only mtcd --processes raylet,GCS --faults stop --number 6 --out found.parquet
    python -m tests.campaign --training --policies restart,continue --number 40 --out found.parquet

Rows are added to the table that is there. No story is begun once the seconds are over; another seed goes on.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tests.campaign.environment import ROOT, whether_possible
from tests.campaign.stories import FAULTS, PROCESSES, SUBJECTS, Fault, Pace, Row, measure_pace, tell
from tests.campaign.table import append_rows

_FAULTS_OF_A_STORY = 4


def draw_faults(kinds: tuple[str, ...], wanted: list[str], draw: random.Random, first: float = 0.0) -> Iterator[Fault]:
    """Draw faults without end: every kind of process in turn, now and then the whole host; no moment before `first`."""
    signals = [one for one in wanted if one in FAULTS]
    others = [one for one in wanted if one not in FAULTS]
    while True:
        for process in draw.sample(kinds, len(kinds)) if signals else ():
            moment = draw.uniform(0.2, 1) if process == "actor" else draw.uniform(first, 2)
            yield Fault(draw.choice(signals), process, moment)
        for what in others:
            yield Fault(what, "host", draw.uniform(first, 2))


def main() -> int:
    """Run the campaign for a while."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--only", default=",".join(SUBJECTS), help="protocols")
    parser.add_argument("--processes", default="", help="kinds of processes (default: all)")
    parser.add_argument("--faults", default="kill -9,kill -9,stop,terminate,link down,disk full", help="with weights")
    parser.add_argument("--policies", default="", help="loss policies (default: all that the protocol supports)")
    parser.add_argument("--training", action="store_true", help="no fault happens before a round is recorded")
    parser.add_argument("--number", type=int, default=40, help="of faults")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no story is begun")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=2, help="stories at a time")
    parser.add_argument("--cluster", action="store_true", help="runs join a cluster of their story's")
    parser.add_argument("--out", type=Path, required=True, help="table of Parquet, added to")
    args = parser.parse_args()
    began, draw, writing = time.monotonic(), random.Random(args.seed), threading.Lock()
    wanted, commit = args.faults.split(","), _commit()
    for what, why in whether_possible().items():
        kind = {"network": "link down", "disk": "disk full"}[what]
        if why is not None and kind in wanted:
            print(f"no {kind}: {why}", flush=True)
            wanted = [one for one in wanted if one != kind]
    asked = args.policies.split(",") if args.policies else []
    policies = {n: [p for p in SUBJECTS[n].policies if not asked or p in asked] for n in args.only.split(",")}
    names = [name for name, allowed in policies.items() if allowed]
    draw.shuffle(names)
    paces = {name: _pace(name, args.out, cluster=args.cluster) for name in names}
    drawn = {}
    for name in names:
        left_out = (["raylet", "GCS"] if args.cluster else []) + (["actor"] if args.training else [])
        local = [*SUBJECTS[name].kinds, *(one for one in PROCESSES if one not in left_out)]
        kinds = tuple(one for one in local if not args.processes or one in args.processes.split(","))
        drawn[name] = draw_faults(kinds, wanted, draw, 1.0 if args.training else 0.0)
    turns = itertools.islice(itertools.cycle(names), max(1, args.number // _FAULTS_OF_A_STORY))
    stories = []
    for name in turns:
        count = min(args.number, _FAULTS_OF_A_STORY)
        faults = [next(drawn[name]) for _ in range(count)]
        stories.append((name, draw.choice(policies[name]), faults, random.Random(draw.random())))

    def go(name: str, policy: str, faults: list[Fault], local: random.Random) -> None:
        if time.monotonic() - began < args.seconds:
            told = tell(
                SUBJECTS[name], policy, faults, paces[name], local, cluster=args.cluster, seed=args.seed, commit=commit
            )
            rows = list(told)
            with writing:
                append_rows(args.out, rows)
                print("\n".join(map(_shown, rows)), flush=True)

    with concurrent.futures.ThreadPoolExecutor(args.at_once) as pool:
        for done in [pool.submit(go, *story) for story in stories]:
            done.result()
    return 0


def _commit() -> str:
    """Return the commit that the campaign is run at, with a + where files were changed since."""
    words = ["git", "describe", "--always", "--abbrev=10", "--exclude=*", "--dirty=+"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _pace(name: str, out: Path, *, cluster: bool) -> Pace:
    """Return how long an undisturbed run takes here; measured once, and kept beside the table."""
    file = out.with_name(f"{out.stem}-pace-{name}{'-joined' if cluster else ''}.json")
    if not file.exists():
        file.write_text(json.dumps(asdict(measure_pace(SUBJECTS[name], cluster=cluster))))
    pace = Pace(**json.loads(file.read_text()))
    print(f"{name}: up after {pace.up:.1f} s, ended after {pace.end:.1f} s", flush=True)
    return pace


def _shown(row: Row) -> str:
    left = f"{row.left_processes}+{row.left_files}"
    return (
        f"{'BAD' if row.is_bad else 'ok '} {row.protocol}/{row.policy}: {row.fault} {row.process} @{row.moment:.2f}: "
        f"round {row.round}, {row.ended} ({row.code}) after {row.seconds:.1f} s, left {left}, "
        f"other lines {row.other_lines} {row.lost} {row.message if row.is_bad else ''}"
    )


if __name__ == "__main__":
    sys.exit(main())
