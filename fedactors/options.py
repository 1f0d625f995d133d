"""Where and how a run runs: the fields of a run's options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

RUNTIMES = ("ray", "simulated")


FORMATS = ("text", "json")


MOST_WORKERS = 1024
"""Processes of a pool."""


SPREADS = ("pack", "spread", "strict-pack", "strict-spread")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where and how to run, beside the config; None means that the flag was not given."""

    runtime: str | None = None
    address: str | None = None
    pool: int | None = None
    emulate: float | None = None
    lease: float | None = None
    data: str | None = None
    seed: int | None = None
    seeds: tuple[int, ...] | None = None
    out: str = "runs"
    resume: str | None = None
    trust: tuple[str, ...] = ()
    smoke: bool = False
    full: bool = False
    quiet: bool = False
    format: str = "text"
    track: tuple[str, ...] = ()
    place: tuple[tuple[str, str], ...] = ()
    spread: str | None = None
    state: tuple[tuple[str, str], ...] = ()
    state_key: tuple[tuple[str, str], ...] = ()
    federation: str | None = None
    share_seed: bool = False
    go_on: bool = False
    budget: Sequence[tuple[str, str]] = ()

    def __post_init__(self) -> None:
        """Refuse passwords: options are kept in run folders, and a job's in its command line.

        Raises:
            BadInput: naming the flag.
        """
        from fedactors.validation import without_password

        for flag in ("address", "data", "out", "resume"):
            without_password(getattr(self, flag) or "", f"--{flag}")
        for party, place in self.state:
            without_password(place, f"--state {party}")
