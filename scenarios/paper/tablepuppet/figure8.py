"""Figure 8: score against communication time, RFL with several clients in each organisation, on two networks.

FEDACTORS_DATA=... python -m scenarios.paper.tablepuppet.figure8 [--only nycflights13] [--again]

The runs are those of Figures 5 and 6; what they have measured already is not run again.
"""

import sys
from pathlib import Path

from fedactors.cli.terminal import guarded

sys.path.insert(0, str(Path(__file__).parents[3]))

from scenarios.paper.tablepuppet import figure5, figure6
from scenarios.paper.tablepuppet._drawing import draw
from scenarios.paper.tablepuppet._study import run_panels, study_of


def main() -> int:
    """Measure what is missing, and draw it for both networks."""
    study = study_of(__doc__)
    panels = (*(figure5.FULL if study.paper else figure5.PANELS), *figure6.PANELS)
    shown = run_panels([panel for panel in panels if panel.num_partitions > 1], study)
    for network in ("us-uk", "us-us"):
        print(draw(f"figure8-{network}", shown, study, network))
    return 0


if __name__ == "__main__":
    with guarded():
        sys.exit(main())
