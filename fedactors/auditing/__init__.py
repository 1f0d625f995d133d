"""Checks of privacy claims: recomputed, replayed, attacked; stands on `runs`, the simulated runtime and `plugins`."""
