"""Runs over several organisations, each with a site of its own, joined by TLS; stands on `serving`."""
