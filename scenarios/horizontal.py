"""The plain horizontal methods beside one another: the same clients with few classes each, the same number of rounds.

Usage: python scenarios/horizontal.py [--smoke] [--methods fedavg,scaffold] [--rounds 40] [--data digits] [--out runs]
Prints a table: accuracy on the test rows at the end (mean and deviation over the seeds), and the first round of each
seed that reaches the target.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from fedactors.launch import launch, resolve  # noqa: E402
from fedactors.options import RunOptions  # noqa: E402
from fedactors.protocols.horizontal.plugin import PROTOCOL  # noqa: E402

METHODS = ("fedavg", "fedprox", "scaffold", "fedavgm", "fedadagrad", "fedadam", "fedyogi")
TARGET = 0.85


def reached(folder: Path) -> str:
    """Return the first round whose accuracy is the target's."""
    for line in (folder / "metrics" / "round_metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry.get("test/accuracy", 0.0) >= TARGET:
            return str(entry["round"])
    return "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", default="runs")
    parser.add_argument("--smoke", action="store_true", help="two methods, two rounds")
    args = parser.parse_args()
    methods = args.methods.split(",")[: 2 if args.smoke else None]
    rounds = 2 if args.smoke else args.rounds
    seeds = (0,) if args.smoke else tuple(map(int, args.seeds.split(",")))
    print(f"{'method':12}{'accuracy':>10}{'deviation':>11}{'round of ' + str(TARGET):>16}")
    for method in methods:
        words = [f"algorithm={method}", f"num_rounds={rounds}", "dirichlet=0.1", "num_clients=20"]
        words += ["clients_per_round=10", "clients_per_site=20"]
        options = RunOptions(runtime="simulated", quiet=True, out=args.out, data=args.data, seeds=seeds)
        summaries = launch(PROTOCOL, *resolve(PROTOCOL, words, options), scenario=f"horizontal-{method}")
        accuracies = [float(summary.metrics["test/accuracy"]) for summary in summaries]
        mean = sum(accuracies) / len(accuracies)
        deviation = (sum((a - mean) ** 2 for a in accuracies) / max(1, len(accuracies) - 1)) ** 0.5
        first = "/".join(reached(Path(summary.run)) for summary in summaries)
        print(f"{method:12}{mean:>10.4f}{deviation:>11.4f}{first:>16}", flush=True)


if __name__ == "__main__":
    main()
