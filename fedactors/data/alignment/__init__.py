"""The rows, nodes and joins of several parties, brought into one order."""
