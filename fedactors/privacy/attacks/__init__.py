"""Attacks that a run mounts against itself, to measure what its messages reveal."""
