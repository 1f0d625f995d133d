"""Actors, what they can await, the endpoints that others may call, and groups of them; stands on `network`."""
