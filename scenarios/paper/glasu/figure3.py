"""Figure 3: test accuracy with the backbones GCN, GAT and GCNII, for the simulated-centralised case and GLASU.

python scenarios/paper/glasu/figure3.py --data cora [--seeds 0,1,2,3,4] [--paper]

It draws ``figures/glasu-figure3-cora.svg``, with the best rows of `choose.py` for GCNII.
"""

import statistics
from pathlib import Path

from _study import RESULTS, GlasuStudy, best_row, glasu, measure, study_of

from scenarios.paper.pairs import difference_row

BACKBONES = ("gcn", "gat", "gcnii")
CASES = {
    "simulated-centralised": {"special_case": "simulated-centralised"},
    "GLASU-1": glasu(1),
    "GLASU-4": glasu(4),
}
IN_GRID = {"simulated-centralised": "simulated-centralised", "GLASU-1": "Q=01", "GLASU-4": "Q=04"}
PLAIN = {"weight_decay": 5e-4}
"""Four plain layers collapse under the weight decay that suits GCNII."""
ROWS = {
    f"{backbone}-{case}": {**settings, **PLAIN, "backbone": backbone}
    for backbone in BACKBONES[:2]
    for case, settings in CASES.items()
}


def draw(study: GlasuStudy) -> Path:
    """Draw the bars of what has been measured."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3))
    axes = figure.add_subplot()
    for index, case in enumerate(CASES):
        made = [study.rows(study.study("figure3"), f"{backbone}-{case}") for backbone in BACKBONES[:2]]
        made.append(study.rows(study.study("choose"), best_row(study, IN_GRID[case])))
        found = [(spot, [row.metrics["test/accuracy"] for row in rows]) for spot, rows in enumerate(made) if rows]
        heights = [statistics.fmean(values) for _, values in found]
        spreads = [statistics.stdev(values) if len(values) > 1 else 0.0 for _, values in found]
        axes.bar([spot + 0.27 * index for spot, _ in found], heights, 0.25, yerr=spreads, capsize=2, label=case)
    axes.set_xticks([spot + 0.27 for spot in range(len(BACKBONES))], [name.upper() for name in BACKBONES])
    axes.set_ylim(*((0, 1) if study.smoke else (0.7, 0.9)))
    axes.set_ylabel(f"test accuracy, {study.data}")
    axes.legend(ncol=3, fontsize=8, loc="upper center")
    name = f"glasu-figure3-{study.data.partition(':')[0]}.svg"
    image_folder = RESULTS / "figures" if study.out == RESULTS else study.out / "figures"
    image_folder.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "glasu"}):
        FigureCanvasSVG(figure).print_figure(image_folder / name, bbox_inches="tight", metadata={"Date": None})
    return image_folder / name


if __name__ == "__main__":
    given = study_of(__doc__)
    measure(given, "figure3", ROWS)
    whole, *others = CASES
    for name, against in ((f"{of}-{case}", f"{of}-{whole}") for of in BACKBONES[:2] for case in others):
        ours, theirs = (given.rows(given.study("figure3"), row) for row in (name, against))
        gap = difference_row(ours, theirs, "test/accuracy")
        if gap is not None:
            given.put(given.study("figure3-differences"), f"{name} - {against}", [gap])
    print(draw(given))
