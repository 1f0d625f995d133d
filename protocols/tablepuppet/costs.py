"""The default cost model of the simulated runtime: what the parties' computes take on one core.

Units are multiply-adds or rows times columns, counted by the actors; seconds a unit were measured on one core with
`scenarios/benchmarks/tablepuppet_training.py` (MovieLens-1M, float64, one thread) and rounded.
"""

from __future__ import annotations

from fedactors.runtime.base import Costs
from protocols.tablepuppet.config import TablePuppetConfig

_OVERHEAD = 2e-5


def default_costs(config: TablePuppetConfig) -> Costs:
    """Return seconds for each kind of work."""
    passes = float(config.local_epochs) if config.admm == "paper_sgd" else 1.0
    if config.model == "neural" and config.admm != "paper_sgd":
        passes = float(config.lbfgs_iterations)
    return Costs(
        {
            "read-table": (0.1, 0.0),
            "encode": (_OVERHEAD, 2e-8),
            "hash-keys": (_OVERHEAD, 5e-7),
            "join": (0.01, 2e-7),
            "factorise": (_OVERHEAD, 5e-10),
            "predict": (_OVERHEAD, 1e-9),
            "gradient": (_OVERHEAD, 2e-9),
            "solve": (_OVERHEAD, 2e-9 * passes),
            "gather": (_OVERHEAD, 2e-8),
            "server-step": (_OVERHEAD, 3e-8),
            "scatter": (_OVERHEAD, 5e-9),
            "coordinate": (_OVERHEAD, 1e-9),
            "centralised": (_OVERHEAD, 3e-9),
        }
    )
