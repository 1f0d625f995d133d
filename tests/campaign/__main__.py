"""The campaign, run by hand: faults at random moments of real runs on Ray, and a table of what came of them.

    python -m tests.campaign --number 40 --seed 1 --seconds 480 --out docs/results/reliability.parquet
    python -m tests.campaign --only mtcd --processes raylet,GCS --faults stop --number 6 --out found.parquet

Rows are added to the table that is there. No story is begun once the seconds are over; another seed goes on.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import json
import random
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tests.campaign.places import whether_possible
from tests.campaign.stories import FAULTS, PROCESSES, SUBJECTS, Fault, Pace, Row, measure_pace, tell
from tests.campaign.table import append_rows

_FAULTS_OF_A_STORY = 4


def draw_faults(kinds: tuple[str, ...], wanted: list[str], draw: random.Random) -> Iterator[Fault]:
    """Draw faults without end: every kind of process in turn, now and then the whole host."""
    signals = [one for one in wanted if one in FAULTS]
    others = [one for one in wanted if one not in FAULTS]
    while True:
        for process in draw.sample(kinds, len(kinds)) if signals else ():
            moment = draw.uniform(0.2, 1) if process == "actor" else draw.uniform(0, 2)
            yield Fault(draw.choice(signals), process, moment)
        for what in others:
            yield Fault(what, "host", draw.uniform(0, 2))


def main() -> int:
    """Run the campaign for a while."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--only", default=",".join(SUBJECTS), help="protocols")
    parser.add_argument("--processes", default="", help="kinds of processes (default: all)")
    parser.add_argument("--faults", default="kill -9,kill -9,stop,terminate,link down,disk full", help="with weights")
    parser.add_argument("--policies", default="", help="loss policies (default: all that the protocol supports)")
    parser.add_argument("--number", type=int, default=40, help="of faults")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no story is begun")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=2, help="stories at a time")
    parser.add_argument("--cluster", action="store_true", help="runs join a cluster of their story's")
    parser.add_argument("--out", type=Path, required=True, help="table of Parquet, added to")
    args = parser.parse_args()
    began, draw, writing = time.monotonic(), random.Random(args.seed), threading.Lock()
    wanted = args.faults.split(",")
    for what, why in whether_possible().items():
        kind = {"network": "link down", "disk": "disk full"}[what]
        if why is not None and kind in wanted:
            print(f"no {kind}: {why}", flush=True)
            wanted = [one for one in wanted if one != kind]
    names = args.only.split(",")
    draw.shuffle(names)
    paces = {name: _pace(name, args.out, cluster=args.cluster) for name in names}
    drawn = {}
    for name in names:
        own = (*SUBJECTS[name].kinds, *(one for one in PROCESSES if not (args.cluster and one in ("raylet", "GCS"))))
        kinds = tuple(one for one in own if not args.processes or one in args.processes.split(","))
        drawn[name] = draw_faults(kinds, wanted, draw)
    turns = itertools.islice(itertools.cycle(names), max(1, args.number // _FAULTS_OF_A_STORY))
    stories = []
    for name in turns:
        allowed = [one for one in SUBJECTS[name].policies if not args.policies or one in args.policies.split(",")]
        count = min(args.number, _FAULTS_OF_A_STORY)
        faults = [next(drawn[name]) for _ in range(count)]
        stories.append((name, draw.choice(allowed), faults, random.Random(draw.random())))

    def go(name: str, policy: str, faults: list[Fault], own: random.Random) -> None:
        if time.monotonic() - began < args.seconds:
            rows = list(tell(SUBJECTS[name], policy, faults, paces[name], own, cluster=args.cluster))
            with writing:
                append_rows(args.out, rows)
                print("\n".join(map(_shown, rows)), flush=True)

    with concurrent.futures.ThreadPoolExecutor(args.at_once) as pool:
        for done in [pool.submit(go, *story) for story in stories]:
            done.result()
    return 0


def _pace(name: str, out: Path, *, cluster: bool) -> Pace:
    """Return how long an undisturbed run takes here; measured once, and kept beside the table."""
    file = out.with_name(f"{out.stem}-pace-{name}{'-joined' if cluster else ''}.json")
    if not file.exists():
        file.write_text(json.dumps(asdict(measure_pace(SUBJECTS[name], cluster=cluster))))
    pace = Pace(**json.loads(file.read_text()))
    print(f"{name}: up after {pace.up:.1f} s, ended after {pace.end:.1f} s", flush=True)
    return pace


def _shown(row: Row) -> str:
    wrong = row.ended in ("hung", "internal") or row.left_processes or row.left_files or row.lost or not row.resumed
    return (
        f"{'BAD' if wrong else 'ok '} {row.protocol}/{row.policy}: {row.fault} {row.process} @{row.moment:.2f}: "
        f"{row.ended} ({row.code}) after {row.seconds:.1f} s, left {row.left_processes}+{row.left_files}, "
        f"other lines {row.other_lines} {row.lost} {row.said if wrong else ''}"
    )


if __name__ == "__main__":
    sys.exit(main())
