"""The demo: PubSub-VFL beside synchronous VFL on the breast-cancer set, both on embedded Ray, no download.

Usage: python scenarios/demo.py [--out runs] [--smoke]
Ends with a comparison table, the run folders, a plot and a report page.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fedactors.command_line.commands import compare_command, report_command
from fedactors.command_line.options import RunOptions
from fedactors.command_line.terminal import guarded
from fedactors.launch import launch, resolve
from protocols.pubsub_vfl.plugin import PROTOCOL

SETTINGS = ("num_epochs=8", "batch_size=32", "hidden_size=32", "embedding_size=16", "num_layers=4")


def run_demo(out: str, smoke: bool) -> int:
    """Train both and put them side by side."""
    folders = []
    for algorithm, title in (("pubsub-vfl", "PubSub-VFL (asynchronous, broker)"), ("vfl", "VFL (synchronous)")):
        print(f"\n{title}: two parties, each with its own columns of the breast-cancer set, on Ray", flush=True)
        words = ["num_epochs=1", *SETTINGS[1:]] if smoke else [*SETTINGS]
        words.append(f"algorithm={algorithm}")
        config, options = resolve(PROTOCOL, words, RunOptions(out=out))
        folders.append(launch(PROTOCOL, config, options, scenario=f"demo-{algorithm}")[0].run)
    plot = str(Path(folders[0]) / "comparison.png")
    print()
    compare_command(argparse.Namespace(runs=folders, plot=plot, metric=None, format="text"))
    for folder in folders:
        print(f"run: {folder}")
    print("report: ", end="", flush=True)
    return report_command(argparse.Namespace(runs=folders, to=None, figures=None, format="text"))


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="runs", help="parent of the run folders (default: runs)")
    parser.add_argument("--smoke", action="store_true", help="one epoch each")
    given = parser.parse_args()
    raise SystemExit(guarded(lambda: run_demo(given.out, given.smoke)))


if __name__ == "__main__":
    main()
