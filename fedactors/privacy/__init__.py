"""Privacy: mechanisms, accounting, DP-SGD, secure aggregation and attacks.

Noise comes from a numpy Generator, and masks from a source of random bytes, that the caller passes; an actor makes
them from the operating system's entropy. Nothing here holds a generator of its own.
"""
