"""Four tokens roam at once on Ray: how long two, three and four visits overlap, and the timeline that shows it.

Four clients on the complete graph, each a process; token k starts at client k, overlapping trajectories, lazy walks.
Visits are long (data of many samples, many local steps), so that they can be seen. With fewer cores than tokens the
processes share them by time slices: visits still overlap, but do not end sooner.

    python scenarios/benchmarks/mtcd_overlap.py
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

from fedactors.config import build
from fedactors.runs.table import RunRow
from fedactors.runtime.ray.runtime import RayRuntime

sys.path.insert(0, str(Path(__file__).parents[2]))

from fedactors.protocols.mtcd.config import MtcdConfig
from fedactors.protocols.mtcd.data import load_data
from fedactors.protocols.mtcd.run import run
from scenarios.paper.study import Study, study_flags

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
SETTINGS = {
    "num_clients": 4,
    "num_tokens": 4,
    "mode": "overlapping",
    "topology": "complete",
    "start": "all-clients",
    "num_samples": 20_000,
    "num_features": 800,
    "num_local_steps": 60,
    "num_hops": 3,
    "num_rounds": 2,
    "learning_rate": 1e-6,
    "measure_gap": False,
    "local_arithmetic": "data",  # on the Gram matrix a visit is too short to be seen
}
Visit = tuple[str, float, float]


class Timeline:
    """A recorder that keeps the visits: client, start and end."""

    keeps_checkpoints = False

    def __init__(self) -> None:
        self.visits: list[Visit] = []

    def record_span(self, actor: str, kind: str, label: str, start: float, end: float) -> None:
        """Keep a visit."""
        if (kind, label) == ("compute", "visit"):
            self.visits.append((actor, start, end))

    def record_round(self, index: int, metrics: Any) -> None:
        """Leave the metrics out."""

    def ledger_sink(self, rows: list[Any]) -> None:
        """Leave the ledger out."""

    def privacy(self, records: list[Any]) -> None:
        """Leave the privacy ledger out."""

    def save_checkpoint(self, label: str, actors: Any, driver: bytes) -> None:
        """Write nothing."""


def shares(visits: list[Visit]) -> list[float]:
    """Return the shares of the time with any visit in which at least 1, 2, 3, ... of them are under way."""
    events = sorted([(start, 1) for _, start, _ in visits] + [(end, -1) for _, _, end in visits])
    seconds: dict[int, float] = {}
    depth = 0
    for (time, change), (following, _) in itertools.pairwise(events):
        depth += change
        seconds[depth] = seconds.get(depth, 0.0) + following - time
    busy = sum(value for depth, value in seconds.items() if depth > 0)
    return [sum(value for depth, value in seconds.items() if depth >= least) / busy for least in range(1, 5)]


def draw(visits: list[Visit], path: Path) -> None:
    """Draw one bar per visit, a row per client."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.4), layout="constrained")
    FigureCanvasAgg(figure)
    plot = figure.add_subplot()
    names = sorted({name for name, _, _ in visits})
    begin = min(start for _, start, _ in visits)
    for row, name in enumerate(names):
        bars = [(start - begin, end - start) for client, start, end in visits if client == name]
        plot.broken_barh(bars, (row - 0.35, 0.7), edgecolor="white", linewidth=0.6, color=f"C{row}")
    plot.set(yticks=range(len(names)), yticklabels=names, xlabel="seconds", title="visits of four tokens on Ray")
    plot.grid(alpha=0.3, axis="x")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def main() -> None:
    """Run, measure the overlap, draw."""
    given = study_flags(__doc__, "mtcd", RESULTS).parse_args(namespace=Study())
    settings: dict[str, Any] = {**SETTINGS, **given.settings}
    if given.smoke:
        settings |= {"num_samples": 2000, "num_local_steps": 20, "num_rounds": 1}
    config = build(MtcdConfig, settings)
    timeline = Timeline()
    runtime = RayRuntime(seed=given.seeds[0], recorder=timeline, checkpoint_every=0)
    data = load_data(config, "synthetic", given.seeds[0])
    runtime.execute(lambda: run(config, data, runtime))
    visits = timeline.visits
    found = shares(visits)
    metrics = {
        "visits": len(visits),
        "mean_visit_seconds": round(sum(end - start for _, start, end in visits) / len(visits), 4),
        **{f"share_of_{least}_or_more": round(share, 3) for least, share in enumerate(found, start=1)},
    }
    row = RunRow(
        protocol="mtcd", seed=given.seeds[0], runtime="ray", data="synthetic", config=settings, metrics=metrics
    )
    given.put("overlap", "overlap", [row])
    draw(visits, given.out / "figures" / "mtcd" / "overlap.png")


if __name__ == "__main__":
    main()
