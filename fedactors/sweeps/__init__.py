"""Sweeps: many settings of a protocol over many seeds, cached, in several processes, kept as one table."""
