"""The conformance kit: what a protocol's author runs on their own protocol.

``conformance`` runs the protocol many times and compares, ``inspection`` judges one observed run, ``leaks`` finds raw
data in what left a party, ``runs`` makes the runs, ``observed`` and ``watched`` record what the actors send and what
their code does besides.
"""

from fedactors.testing.conformance import NotConforming, check_protocol

__all__ = ["NotConforming", "check_protocol"]
