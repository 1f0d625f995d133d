"""The default cost model of the simulated runtime, and the link between two continents.

Seconds = calls x overhead + units x rate. Units are floating-point operations for what runs in torch, sampled pairs for
sampling, numbers for sums. The rates were measured on one core (Cora and PubMed, width 64, torch 2.13, one thread);
``scenarios/benchmarks/glasu_speed.py costs`` measures them again.
"""

from __future__ import annotations

from fedactors.network.links import Link, Network
from fedactors.runtime.base import Costs

_OVERHEAD = 2.0e-4
_PER_OPERATION = 5.0e-11

US_UK = Link(latency=0.0375, bandwidth=1.25e7)
"""Between the east of the United States and London: 75 ms there and back, 100 Mbit/s for one transfer. Assumed."""


def default_costs() -> Costs:
    """Return seconds for each kind of work on one core."""
    return Costs(
        {
            "sample": (_OVERHEAD, 3.2e-7),
            "build": (_OVERHEAD, 5.0e-7),
            "segment": (_OVERHEAD, _PER_OPERATION),
            "gradient": (2 * _OVERHEAD, 2.6 * _PER_OPERATION),
            "update": (4 * _OVERHEAD, 2.6 * _PER_OPERATION),
            "union": (_OVERHEAD, 2.0e-8),
            "aggregate": (_OVERHEAD / 10, 1.0e-10),
            "unmask": (_OVERHEAD, 1.0e-8),
        }
    )


def us_uk() -> Network:
    """Return a network whose clients reach the server over `US_UK`."""
    return Network(by_kind={"client-server": US_UK})
