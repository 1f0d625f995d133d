"""One HTML page about runs, and its pictures; stands on `runs`, `auditing` and `inspection`."""
