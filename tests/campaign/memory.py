"""Whether the memory of a run on Ray grows, run by hand: every process, object store and shared memory included.

    python -m tests.campaign.memory pubsub-vfl 1800 num_epochs=100000 batch_size=64

One line of JSON each ten seconds: megabytes of each kind of process and of all (libraries left out, of which the other
programs of the machine hold a part), of shared memory (counted once) and of temporary files; at last the means of the
second and of the last third.
"""

from __future__ import annotations

import json
import signal
import statistics
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.campaign.places import Place

_EVERY = 10.0
_KINDS = ("driver", "actor", "GCS", "raylet", "agent")


def weigh(place: Place) -> dict[str, float]:
    """Return megabytes of memory and of temporary files that a place's runs hold."""
    sums: Counter[str] = Counter()
    for pid, kind in place.processes().items():
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                name, _, value = line.partition(":")
                if name == "Pss_Anon":
                    sums[kind if kind in _KINDS else "others of Ray's"] += int(value.split()[0])
                elif name == "Pss_Shmem":
                    sums["shared"] += int(value.split()[0])
    found = {name: kilobytes / 1024 for name, kilobytes in sums.items()}
    files = sum(f.stat().st_blocks * 512 for f in place.temporary.rglob("*") if f.is_file() and not f.is_symlink())
    return {**found, "all": sum(found.values()), "files": files / 2**20}


def main(protocol: str, seconds: float, *words: str) -> int:
    """Run a protocol for so long, and watch what it holds."""
    place = Place()
    try:
        began = time.monotonic()
        start = ["run", protocol, *words, "--runtime", "ray", "--quiet", "--out", str(place.out)]
        process = place.start(place.folder / "memory.pids", *start)
        found = []
        while process.poll() is None and time.monotonic() < began + seconds:
            time.sleep(_EVERY)
            rounds = sum(len(f.read_text().splitlines()) for f in place.out.glob("*/metrics/round_metrics.jsonl"))
            found.append({"seconds": round(time.monotonic() - began), "rounds": rounds, **weigh(place)})
            print(json.dumps(found[-1]), flush=True)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        third = len(found) // 3
        for name in list(found[-1])[2:]:
            means = [
                statistics.fmean(one.get(name, 0.0) for one in part) for part in (found[third:-third], found[-third:])
            ]
            print(json.dumps({"what": name, "second third": means[0], "last third": means[1]}), flush=True)
        return process.returncode
    finally:
        place.remove()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), *sys.argv[3:]))
