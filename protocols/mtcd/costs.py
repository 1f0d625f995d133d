"""The default cost model of the simulated runtime: what the computes of clients and server take on one core.

Seconds = overhead + units / rate. For generalised linear models units are rows x features x local steps (each touches
the data twice), at 2 GFLOP/s of a memory-bound product in float64; for networks they are rows x local steps, at the
operations of the model. `scenarios/benchmarks/mtcd_hops.py` measures the first again.
"""

from __future__ import annotations

from fedactors.runtime.base import Costs
from protocols.mtcd.config import MtcdConfig

_OVERHEAD_SECONDS = 2e-5
_PRODUCT_SECONDS = 4e-10
_OPERATIONS_PER_SECOND = 2.0e10


def default_costs(config: MtcdConfig) -> Costs:
    """Return seconds for each kind of work."""
    if config.problem != "network":
        once, visit = _PRODUCT_SECONDS, 2 * _PRODUCT_SECONDS
    else:
        once = _operations(config) / _OPERATIONS_PER_SECOND
        visit = 3 * once
    overhead = _OVERHEAD_SECONDS if config.problem != "network" else 20 * _OVERHEAD_SECONDS
    return Costs(
        {
            "visit": (overhead, visit),
            "represent": (overhead, once),
            "fusion": (overhead, 1e-8),
            "probe": (overhead, 2 * once),
            "iterate": (overhead, 2 * once),
            "merge": (overhead, 1e-9),
        }
    )


def _operations(config: MtcdConfig) -> float:
    """Return about how many operations one sample takes in the representation model."""
    width = config.network_width
    if config.network == "mlp":
        return 2.0 * width * (config.num_features / config.num_clients + config.representation_size)
    pixels = 256.0
    return 2.0 * 9 * width * width * pixels * (8 if config.network == "resnet18" else 1)
