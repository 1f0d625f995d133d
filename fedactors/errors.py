"""Errors of fedactors and the exit code that each one gives a command.

Every error that a user can cause or meet derives from `FedactorsError`, carries one clear line, and
names the party it concerns where there is one. `exit_code` is what the command line returns.
"""

from __future__ import annotations

from typing import Self


class FedactorsError(Exception):
    """Base of all errors raised on purpose; ``exit_code`` 1 means an internal error."""

    exit_code = 1
    for_others: str | None = None
    """What other sites are told instead of its words, which are for its own site then."""

    def telling(self, told: str) -> Self:
        """Return the same, of which other sites are told `told` alone."""
        self.for_others = told
        return self


class BadInput(FedactorsError):
    """An input of the user is wrong: the message names the field, the value and what is allowed."""

    exit_code = 2


class Diverged(BadInput):
    """Training has diverged; the message names the round, the metric and the setting to change."""


class RowsChangedError(BadInput):
    """A party's rows have changed since the run began, so a resumed run would train on other rows."""


class DataMissing(FedactorsError):
    """Data that the run needs is not on this machine; the message says how to get it."""

    exit_code = 4


class PartyError(FedactorsError):
    """A party stopped the run; ``party`` is the name of the actor concerned."""

    exit_code = 3

    def __init__(self, party: str, message: str) -> None:
        super().__init__(f"{party}: {message}")
        self.party = party
        self.message = message


class PartyFailed(PartyError):
    """A party's code raised; ``traceback_text`` is the original traceback, from the party's process."""

    def __init__(self, party: str, message: str, traceback_text: str = "") -> None:
        super().__init__(party, message)
        self.traceback_text = traceback_text


class PartyLost(PartyError):
    """A party's process is gone (killed, crashed, or its host was cut off)."""

    run: str | None = None
    """Folder of the run that it ended, if that has a checkpoint to go on from."""


class CallTimeout(PartyError):
    """A party did not answer within the allowed time."""


class Refused(PartyError):
    """``party`` broke a rule: a call to no endpoint, an undeclared message, or a payload for another reader."""


class BudgetExceeded(Refused):
    """The run that ``party`` drives would take more of a privacy budget than it announced, or its account has a gap."""


class PayloadGone(FedactorsError, KeyError):
    """The owner of a payload has freed it."""

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError would show the quoted text


class OutOfMemory(BadInput):
    """A party ran out of memory; the message names the party."""


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether Python, numpy or torch, which has no exception of its own for it, found no memory left."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY)
    )


_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "Storage size calculation overflowed")


class Deadlock(FedactorsError):
    """All parties wait for each other; the message names each wait."""

    exit_code = 3


class Stopped(FedactorsError):
    """The run was interrupted (exit code 130) or terminated (143) after writing a checkpoint."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
