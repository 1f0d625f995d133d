"""Why a row cannot be used, as its owner reads it (`income: '12,5' is no number`), and what others may know of it."""

from __future__ import annotations

ABSENT, INFINITE, NO_NUMBER, NO_DATE = "missing", "infinite", "is no number", "is no date"
NO_CATEGORY, NEVER_SEEN = "is no category", "was not there in training"
NO_ID, SEVERAL = "no id", "its id stands in several rows"
_KINDS = {
    ABSENT: "missing values",
    "missing values": "missing values",
    INFINITE: "infinite values",
    NO_NUMBER: "values that are no numbers",
    NO_DATE: "values that are no dates",
    NO_CATEGORY: "unknown categories",
    NEVER_SEEN: "unknown categories",
    NO_ID: NO_ID,
    SEVERAL: SEVERAL,
}
"""What reasons end with, and what others may know of them."""


def kind_of(reason: str) -> str:
    """Return what others may know of why a row cannot be used: no column, no value."""
    return next((kind for ending, kind in _KINDS.items() if reason.endswith(ending)), "cannot be read")
