"""The parts of the simulated runtime: its loop, actors, wire, cores and pools."""
