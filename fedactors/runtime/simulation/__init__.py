"""The simulated runtime: every actor an object in one process; time is virtual."""
