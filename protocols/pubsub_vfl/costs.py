"""The default cost model of the simulated runtime: what the parties' computes take on one core.

Seconds = fixed + per_layer x layers + per_operation x units, the units being those of `models.operations` (for an
average, workers x parameters). Fitted on one core (torch 2.13, one thread) by `scenarios/benchmarks/compute_costs.py`,
before any method was compared with another; the measurements lie in docs/results/data/pubsub_vfl/cost_model.json, and
a test compares.
"""

from __future__ import annotations

from fedactors.runtime.base import Costs
from protocols.pubsub_vfl.config import PubSubVflConfig

FITTED: dict[str, tuple[float, float, float]] = {
    "bottom-forward": (3.195e-06, 7.974e-06, 2.005e-11),
    "bottom-backward": (9.547e-05, 9.559e-06, 3.649e-11),
    "active-step": (0.0002989, 7.55e-06, 5.48e-11),
    "top-forward": (2.027e-05, 0, 2.195e-11),
    "average": (1.017e-05, 0, 3.825e-10),
}
"""Kind of work to (fixed, per_layer, per_operation), in seconds."""


def default_costs(config: PubSubVflConfig, speed: dict[str, float] | None = None) -> Costs:
    """Return seconds for each kind of work under `config`.

    Args:
        config: the number of layers counts.
        speed: per party, how many times faster its cores are.
    """
    layers = config.num_layers * (2 if config.model == "resnet" else 1)
    kinds = {kind: (fixed + per_layer * layers, per_unit) for kind, (fixed, per_layer, per_unit) in FITTED.items()}
    return Costs(kinds, speed or {})
