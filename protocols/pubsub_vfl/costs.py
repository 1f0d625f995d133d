"""The default cost model of the simulated runtime: what the parties' computes take on one core.

Seconds = calls x overhead + floating-point operations / rate. Both constants were measured on one core (batch 256, ten
layers, hidden 64 and 256, torch 2.13, one thread); `scenarios/benchmarks/compute_costs.py` measures them again.
"""

from __future__ import annotations

from fedactors.runtime.base import Costs
from protocols.pubsub_vfl.config import PubSubVflConfig

_OVERHEAD_SECONDS = 2.5e-4
_OPERATIONS_PER_SECOND = 4.0e10
_FEATURES = 100


def default_costs(config: PubSubVflConfig) -> Costs:
    """Return seconds for each kind of work, for a party of about a hundred features."""
    hidden, cut = config.hidden_size, config.embedding_size
    inner = max(config.num_layers - 2, 0) * hidden * hidden * (2 if config.model == "resnet" else 1)
    bottom = 2.0 * (_FEATURES * hidden + inner + hidden * cut) / _OPERATIONS_PER_SECOND
    top = 2.0 * (2 * cut * hidden + hidden) / _OPERATIONS_PER_SECOND
    average = 1e-9
    return Costs(
        {
            "bottom-forward": (_OVERHEAD_SECONDS, bottom),
            "bottom-backward": (2 * _OVERHEAD_SECONDS, 2 * bottom),
            "active-step": (4 * _OVERHEAD_SECONDS, 3 * bottom + 3 * top),
            "top-forward": (_OVERHEAD_SECONDS, top),
            "average": (_OVERHEAD_SECONDS, average),
        }
    )
