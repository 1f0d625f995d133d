"""The conformance kit, which authors run on their own protocols; stands on all packages but the command line."""

from fedactors.testing.conformance import NotConforming, check_protocol

__all__ = ["NotConforming", "check_protocol"]
