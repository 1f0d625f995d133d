"""The paper's baselines, over the same actors and functions."""
