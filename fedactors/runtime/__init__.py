"""The two runtimes: `simulated` (virtual clock, one process) and `ray` (real actors, wall clock)."""
