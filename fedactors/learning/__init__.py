"""Models, optimisers, losses, metrics and training on tensors; stands on `runtime`. `metrics` needs numpy only."""
