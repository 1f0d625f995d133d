"""Figure 3: test accuracy with the backbones GCN, GAT and GCNII, for the simulated-centralised case and GLASU.

python -m scenarios.paper.glasu.figure3 --data cora [--seeds 0,1,2,3,4] [--full]; then --plot draws what was measured.
"""

import json
import sys
from pathlib import Path

from scenarios.paper.glasu.measure import RESULTS, Row, glasu, measure

BACKBONES = ("gcn", "gat", "gcnii")
CASES = {
    "simulated-centralised": {"special_case": "simulated-centralised"},
    "GLASU-1": glasu(1),
    "GLASU-4": glasu(4),
}
ROWS = [
    Row(f"{backbone}-{case}", {**settings, "backbone": backbone, "weight_decay": 5e-4})
    for backbone in BACKBONES[:2]
    for case, settings in CASES.items()
]
"""GCNII's are rows of Table 2; four plain layers collapse under its weight decay."""


def plot(data: str) -> Path:
    """Draw the bars of what was measured on `data`."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "glasu"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 3))
    for place, case in enumerate(CASES):
        files = [RESULTS / f"figure3-{data}" / f"{backbone}-{case}.json" for backbone in BACKBONES[:2]]
        files.append(RESULTS / f"table2-{data}" / f"{case}.json")
        found = [json.loads(file.read_text()) for file in files]
        heights = [one["mean"]["metrics"]["accuracy"] for one in found]
        spreads = [one["std"]["metrics"]["accuracy"] for one in found]
        axes.bar([x + 0.27 * place for x in range(len(BACKBONES))], heights, 0.25, yerr=spreads, label=case)
    axes.set_xticks([x + 0.27 for x in range(len(BACKBONES))], [name.upper() for name in BACKBONES])
    axes.set_ylim(0.6, 0.95)
    axes.set_ylabel(f"test accuracy, {data}")
    axes.legend(ncol=3, fontsize=8)
    path = RESULTS.parents[1] / f"glasu-figure3-{data}.svg"
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    return path


if __name__ == "__main__":
    if "--plot" in sys.argv:
        print(plot(sys.argv[-1] if sys.argv[-1] != "--plot" else "cora"))
    else:
        measure("figure3", ROWS)
