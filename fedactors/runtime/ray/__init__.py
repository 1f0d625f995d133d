"""The Ray runtime: the only folder that imports ray."""
