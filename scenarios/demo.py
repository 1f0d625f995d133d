"""The demo: a bank with one machine and a shop with six slow ones train together, 10 ms apart; no download.

Usage: python scenarios/demo.py [--out runs] [--smoke] [--picture FILE] [--readme]

Three methods of split learning on generated data (20,000 rows): first on the virtual clock, which says how long they
will take, then on Ray, where every actor is a process, the link is emulated and the clock is the wall's. Machines are
emulated too (one batch takes 15 times what a core needs), so that two cores can emulate seven machines. Ends with a
table, a picture and a report page.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedactors.api import write_report
from fedactors.cli.terminal import guarded, table_lines
from fedactors.launch import launch, resolve
from fedactors.network.links import Link, Network
from fedactors.options import RunOptions
from fedactors.protocols.pubsub_vfl.algorithm import default_costs
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.data import load_data
from fedactors.protocols.pubsub_vfl.plugin import PROTOCOL
from fedactors.protocols.pubsub_vfl.run import run
from fedactors.runs.compare import Curve, LoadedRun, group_runs, load_runs, make_curve
from fedactors.runs.metrics import RunResult
from fedactors.runtime.interface import Runtime
from fedactors.runtime.ray import cluster
from fedactors.scenario import Scenario

SCENE = """\
A bank knows who came back, a shop knows what they bought: neither shows the
other its columns. The bank has one machine, the shop six that are six times
slower; a message takes 10 ms (100 Mbit/s)."""
SLOWER, SHARE = 15.0, 1 / 6
"""How many times longer a batch takes than on a core of the cost model, and what the shop's machines do of that."""
LINK = Link(latency=0.01, bandwidth=12.5e6)
SETTINGS = ("num_epochs=3", "batch_size=256", "num_layers=4", "embedding_size=16", "alignment=already-aligned")
METHODS = {
    "VFL": ("algorithm=vfl",),
    "AVFL": ("algorithm=avfl",),
    "PubSub-VFL": ("algorithm=pubsub-vfl", "num_passive_workers=6", "prefetch=4", "optimizer_at=server"),
}
HOW = {
    "VFL": "one pair of machines, each batch waits for the other side",
    "AVFL": "one pair of machines, five batches on their way at a time",
    "PubSub-VFL": "all seven machines, each takes the next batch when it is free",
}
TARGET = 0.82
WIDE = 80
"""Columns of a terminal that is not made wider."""
HEADER = ("", "epoch, simulated", f"to AUC {TARGET:.2f}", "epoch, Ray", f"to AUC {TARGET:.2f}", "last AUC")
README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- what the demo printed -->\n", "<!-- end of what the demo printed -->\n"


async def run_scene(config: PubSubVflConfig, data: Any, runtime: Runtime) -> RunResult:
    """Run PubSub-VFL or a baseline with the scene's link and machines."""
    costs = default_costs(config, speed={"passive": SHARE})
    kinds = {kind: (fixed * SLOWER, per_unit * SLOWER) for kind, (fixed, per_unit) in costs.kinds.items()}
    runtime.use_costs(dataclasses.replace(costs, kinds=kinds))
    runtime.use_network(Network(default=LINK))
    return await run(config, data, runtime)


def train(method: str, runtime: str, out: str, smoke: bool) -> LoadedRun:
    """Train by a method on a runtime."""
    scenario = Scenario(
        name=PROTOCOL.name,
        summary=PROTOCOL.summary,
        partition=PROTOCOL.partition,
        default_data="criteo-like",
        headline=PROTOCOL.headline,
        Config=PubSubVflConfig,
        run=run_scene,
        load_data=load_data,
    )
    words = [*(["num_epochs=1"] if smoke else []), *SETTINGS[smoke:], *METHODS[method]]
    # a try of the script need not last as long as the scene
    emulate = (0.2 if smoke else 1.0) if runtime == "ray" else None
    options = RunOptions(out=out, runtime=runtime, emulate=emulate, quiet=runtime != "ray")
    config, options = resolve(scenario, words, options)
    folder = launch(scenario, config, options, scenario=f"demo-{runtime}-{method.lower()}")[0].run
    return load_runs([folder])[0]


def curve_of(run: LoadedRun) -> Curve:
    """Return a run's AUC on the validation rows against its own clock."""
    curve = make_curve(group_runs([run])[0], "validation/auc", "seconds")
    assert curve is not None
    return curve


def seconds_to(run: LoadedRun, target: float) -> float | None:
    """Return when a run's AUC on the validation rows first was as good as `target`, or None."""
    curve = curve_of(run)
    return next((x for x, y in zip(curve.x, curve.mean, strict=True) if y >= target), None)


def row_of(method: str, simulated: LoadedRun, real: LoadedRun) -> list[str]:
    """Return a method's line of the table."""
    cells = [method]
    for one in (simulated, real):
        curve, when = curve_of(one), seconds_to(one, TARGET)
        cells += [f"{curve.x[-1] / len(curve.x):.1f} s", "not reached" if when is None else f"{when:.1f} s"]
    return [*cells, f"{curve_of(real).mean[-1]:.3f}"]


def scene_lines() -> list[str]:
    """Return what is said first."""
    return [*SCENE.splitlines(), *(f"  {method + ':':12}{how}" for method, how in HOW.items())]


def result_lines(simulated: dict[str, LoadedRun], real: dict[str, LoadedRun]) -> list[str]:
    """Return the table and what it shows."""
    rows = [row_of(method, simulated[method], real[method]) for method in METHODS]
    return [
        *table_lines(HEADER, rows),
        verdict("simulated", simulated),
        verdict("on Ray", real),
        *doubt(simulated, real),
    ]


def doubt(simulated: dict[str, LoadedRun], real: dict[str, LoadedRun]) -> list[str]:
    """Say so if this machine could not play seven: then its own speed is what was measured on Ray."""
    late = [name for name in METHODS if seconds_of(real[name]) > 1.5 * seconds_of(simulated[name])]
    text = f"This machine cannot emulate seven machines: its Ray times do not compare the methods ({', '.join(late)})."
    return textwrap.wrap(text, WIDE) if late else []


def seconds_of(run: LoadedRun) -> float:
    """Return the seconds that a run's training took on its own clock."""
    return run.summary.seconds


def write_readme(lines: Sequence[str]) -> None:
    """Put what was printed between the marks in the README."""
    before, _, rest = README.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    block = "".join(f"    {line}".rstrip() + "\n" for line in lines)
    README.write_text(f"{before}{BEGIN}\n{block}\n{END}{after}")


def verdict(where: str, runs: dict[str, LoadedRun]) -> str:
    """Return in words what runs show."""
    when = {name: seconds for name, run in runs.items() if (seconds := seconds_to(run, TARGET)) is not None}
    if len(when) < 2:
        return f"{where}: fewer than two methods came to an AUC of {TARGET:.2f}"
    first, second = sorted(when, key=lambda name: when[name])[:2]
    ratio = when[second] / when[first]
    ends = {name: curve_of(run).mean[-1] for name, run in runs.items()}
    best = max(ends, key=lambda name: ends[name])
    return f"{where}: {first} first, {ratio:.1f} times as fast as {second}; best AUC: {best}"


def draw(simulated: dict[str, LoadedRun], real: dict[str, LoadedRun], path: Path) -> None:
    """Draw the AUC against seconds, on Ray as lines and simulated as circles."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    plot = figure.add_subplot()
    for colour, method in zip(("#7a869a", "#d9822b", "#1f6feb"), real, strict=True):
        for run_, style in ((real[method], {"lw": 2}), (simulated[method], {"ls": "", "marker": "o", "mfc": "white"})):
            curve = curve_of(run_)
            label = f"{method}: {HOW[method]}" if "lw" in style else None
            plot.plot(curve.x, curve.mean, color=colour, label=label, **style)
    plot.axhline(TARGET, color="#999999", lw=0.8, ls=":")
    plot.set_xlabel("seconds of training (lines: on Ray; circles: what the simulation said before)")
    plot.set_ylabel("AUC on validation rows")
    plot.set_xlim(left=0)
    plot.spines[["top", "right"]].set_visible(False)
    plot.legend(fontsize="small", frameon=False, loc="lower left", bbox_to_anchor=(0, 1))
    figure.savefig(path, dpi=144, metadata={"Date": None} if path.suffix == ".svg" else None)


def run_demo(out: str, smoke: bool, picture: str | None, readme: bool) -> int:
    """Train by each method on both runtimes, and put them side by side."""
    print("\n".join(scene_lines()), flush=True)
    print("\non the virtual clock", flush=True)
    simulated = {}
    for method in METHODS:
        simulated[method] = train(method, "simulated", out, smoke)
        seconds, waited = seconds_of(simulated[method]), simulated[method].summary.wall_seconds
        print(f"  {method + ':':12}{seconds:.1f} s of training, simulated in {waited:.1f} s", flush=True)
    real = {}
    print("\nstarting Ray, once for all three", flush=True)
    # seven machines have their cores to themselves; Ray's processes would yield to whatever else runs here
    os.environ.setdefault("RAY_worker_niceness", "0")
    joined = cluster.join(None, None)
    try:
        for method in METHODS:
            print(f"\n{method}, on Ray", flush=True)
            real[method] = train(method, "ray", out, smoke)
    finally:
        cluster.leave(joined, ())
    found = ["", *result_lines(simulated, real), ""]
    print("\n".join(found), flush=True)
    if readme:
        write_readme([*scene_lines(), *found[:-1]])
    folders = [str(one.folder.path) for one in real.values() if one.folder is not None]
    path = Path(picture) if picture else Path(folders[-1]) / "demo.svg"
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(simulated, real, path)
    print(f"picture: {path}\nreport: {write_report(folders)[0]}", flush=True)
    return 0


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="runs", help="parent of the run folders (default: runs)")
    parser.add_argument("--smoke", action="store_true", help="one epoch each, on Ray five times as fast")
    parser.add_argument(
        "--picture", metavar="FILE", help="where the picture goes (.svg or .png; default: a run folder)"
    )
    parser.add_argument("--readme", action="store_true", help="write what is printed into README.md")
    given = parser.parse_args(argv)
    with guarded():
        raise SystemExit(run_demo(given.out, given.smoke, given.picture, given.readme))


if __name__ == "__main__":
    main()
