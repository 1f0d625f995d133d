"""Figure 3: test accuracy with the backbones GCN, GAT and GCNII, for the simulated-centralised case and GLASU.

python scenarios/paper/glasu/figure3.py --data cora [--seeds 0,1,2,3,4] [--full]

It draws ``figures/glasu-figure3-cora.svg``, with the rows of Table 2 for GCNII.
"""

import json
from pathlib import Path

from _study import RESULTS, GlasuStudy, Row, asked, glasu, measure

BACKBONES = ("gcn", "gat", "gcnii")
CASES = {
    "simulated-centralised": {"special_case": "simulated-centralised"},
    "GLASU-1": glasu(1),
    "GLASU-4": glasu(4),
}
PLAIN = {"weight_decay": 5e-4}
"""Four plain layers collapse under the weight decay that suits GCNII."""
ROWS = [
    Row(f"{backbone}-{case}", {**settings, **PLAIN, "backbone": backbone})
    for backbone in BACKBONES[:2]
    for case, settings in CASES.items()
]


def draw(study: GlasuStudy) -> Path:
    """Draw the bars of what has been measured."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3))
    axes = figure.add_subplot()
    for place, case in enumerate(CASES):
        made = [study.folder("figure3") / f"{backbone}-{case}.json" for backbone in BACKBONES[:2]]
        made.append(study.folder("table2") / f"{case}.json")
        found = [(spot, json.loads(path.read_text())) for spot, path in enumerate(made) if path.exists()]
        heights = [one["mean"]["metrics"]["accuracy"] for _, one in found]
        spreads = [one["std"]["metrics"]["accuracy"] for _, one in found]
        axes.bar([spot + 0.27 * place for spot, _ in found], heights, 0.25, yerr=spreads, capsize=2, label=case)
    axes.set_xticks([spot + 0.27 for spot in range(len(BACKBONES))], [name.upper() for name in BACKBONES])
    axes.set_ylim(*((0, 1) if study.smoke else (0.7, 0.9)))
    axes.set_ylabel(f"test accuracy, {study.data}")
    axes.legend(ncol=3, fontsize=8, loc="upper center")
    name = f"glasu-figure3-{study.data.partition(':')[0]}.svg"
    pictures = RESULTS.parents[1] / "figures" if study.out == RESULTS else study.out / "figures"
    pictures.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "glasu"}):
        FigureCanvasSVG(figure).print_figure(pictures / name, bbox_inches="tight", metadata={"Date": None})
    return pictures / name


if __name__ == "__main__":
    given = asked(__doc__)
    measure(given, "figure3", ROWS)
    print(draw(given))
