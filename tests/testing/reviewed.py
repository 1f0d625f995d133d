"""What the conformance kit says of a protocol, as far as a test needs to hear it."""

from __future__ import annotations

from typing import Any

from fedactors.plugins import Protocol
from fedactors.testing.conformance import review
from fedactors.testing.runs import Subject


def check_remarks(protocol: Protocol, *expected: str, **options: Any) -> None:
    """Read the remarks until all that is expected was said; any remark at all makes `check_protocol` fail."""
    said = ""
    for remark in review(Subject(protocol=protocol, on_ray=False, **options)):
        said += f"{remark}\n"
        if all(words in said for words in expected):
            return
    raise AssertionError(f"{[words for words in expected if words not in said]} is not among the remarks:\n{said}")
