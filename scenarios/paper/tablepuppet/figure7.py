"""Figure 7: score against communication time, VFL and RFL-V, without and with privacy, US-UK and US-US.

FEDACTORS_DATA=... python -m scenarios.paper.tablepuppet.figure7 [--only nycflights13] [--again]; then --plot
"""

import sys

from scenarios.paper.tablepuppet import figure5, figure6
from scenarios.paper.tablepuppet.measure import measure

PANELS = tuple(panel for panel in (*figure5.PANELS, *figure6.PANELS) if panel.num_partitions == 1)

if __name__ == "__main__":
    sys.exit(max(measure(f"figure7-{network}", PANELS, network) for network in ("us-uk", "us-us")))
