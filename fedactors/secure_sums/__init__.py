"""Sums of clients' vectors of which the server sees no single one; stands on `learning`."""
