"""Which networks the parties train, from the configuration."""

from __future__ import annotations

from fedactors.data.partitions import VerticalData
from fedactors.learning.losses import output_width
from fedactors.learning.models import ModelSpec
from fedactors.learning.optimizers import OptimizerSpec
from protocols.pubsub_vfl.config import PubSubVflConfig


def bottom_spec(config: PubSubVflConfig, num_features: int) -> ModelSpec:
    """Return a party's bottom model: features to the cut layer."""
    return ModelSpec(
        name="mlp" if config.model == "mlp" else "residual-mlp",
        inputs=(num_features,),
        outputs=config.embedding_size,
        hidden=config.hidden_size,
        layers=config.num_layers,
        float64=config.float64,
    )


def top_spec(config: PubSubVflConfig, data: VerticalData) -> ModelSpec:
    """Return the two-layer top model: all parties' embeddings, concatenated, to the outputs."""
    return ModelSpec(
        name="top-mlp",
        inputs=(config.embedding_size * len(data.parties),),
        outputs=output_width(data.task, data.num_classes),
        hidden=config.hidden_size,
        float64=config.float64,
    )


UPDATE_ROWS = 72
"""An optimiser step takes as long as the gradients of about this many rows (fitted, see `costs`)."""


def operations(num_rows: int, num_parameters: int, *, updates: bool = False) -> float:
    """Return the units of work that a batch is, with or without the optimiser's step."""
    return float(num_rows + (UPDATE_ROWS if updates else 0)) * num_parameters


def optimizer(config: PubSubVflConfig) -> OptimizerSpec:
    """Return the optimiser of every model."""
    return OptimizerSpec(name=config.optimizer, learning_rate=config.learning_rate)
