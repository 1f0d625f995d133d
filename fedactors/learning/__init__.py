"""Learning: models, losses, metrics, parameter vectors, split networks and local training.

`metrics` needs numpy only; the other modules need torch.
"""
