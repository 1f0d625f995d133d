"""Data of parties: named data sets, user-provided files, partitions, and the alignment of row ids.

``catalogue`` describes the named data sets without loading anything, ``datasets`` loads them, ``partitioners`` cut
them into parts, ``partitions`` are the small descriptions that a protocol hands to its actors, ``own`` reads a
``parties.toml``, and ``alignment`` brings the rows of several parties into one order.
"""
