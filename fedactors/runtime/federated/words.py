"""What an error says to another site: its kind and its place; words only where they are the runtime's own.

A party's code may raise anything, errors of fedactors' own kinds too, and may put values of its data into text, cause,
notes, attributes, or the name of a class. Whatever comes out of an actor's code is marked with the actor's name, and
its words stay in the log of the site.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager

from fedactors.errors import (
    CallTimeout,
    FedactorsError,
    PartyError,
    PartyFailed,
    PartyLost,
    PayloadGone,
    Refused,
    RowsChangedError,
)
from fedactors.network.codec import Parts
from fedactors.runtime.failures import as_party_error, encode_error, kind_of

_OWN = (Refused, PartyLost, CallTimeout, PayloadGone, RowsChangedError)
"""Errors whose text, unless an actor's code raised them, is the runtime's own and quotes nobody's data."""
_PLACE = "_fedactors_place"


def raised_by(actor: str, error: BaseException, known: Container[str]) -> FedactorsError:
    """Return an error of an actor's code as one of its party, whose words stay at its site.

    Args:
        actor: whose code it is.
        error: what it raised.
        known: names of the run's actors: the error is told to be of one of them, whatever it says itself.
    """
    failed = as_party_error(actor, error)
    if not hasattr(failed, _PLACE):
        setattr(failed, _PLACE, failed.party if isinstance(failed, PartyError) and failed.party in known else actor)
    return failed


@contextmanager
def code_of(actor: str, known: Container[str]) -> Iterator[None]:
    """Mark whatever an actor's code raises inside."""
    try:
        yield
    except Exception as error:
        raise raised_by(actor, error, known) from error


def told_abroad(site: str, error: BaseException) -> FedactorsError:
    """Return what other sites are told of an error of `site`."""
    known = as_party_error(site, error)
    place = getattr(known, _PLACE, None)
    if place is None and isinstance(known, _OWN):
        return known
    kind = next((kind for kind in (PartyLost, CallTimeout) if isinstance(known, kind)), PartyFailed)
    return kind(place or site, f"{kind_of(known)}; the log of the site {site} says more")


def errors_for(site: str, peer: str) -> Callable[[BaseException], Parts]:
    """Return how errors of `site` are told to `peer`."""
    return lambda error: encode_error(site, error if peer == site else told_abroad(site, error))
