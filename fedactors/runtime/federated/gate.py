"""The gate of a site: what may cross to and from another site in a run, checked on both sides, counted and told.

Who speaks is known from the certificate of whoever is at the other end: an actor's name is believed only if its party
is hosted by that site. What is asked is checked against the doors of the approved protocol, the exact type of the
message, and each of its fields; replies and payloads likewise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from fedactors.errors import Refused
from fedactors.network.codec import measure, type_name
from fedactors.network.ledger import DRIVER as DRIVER_KIND
from fedactors.network.ledger import Ledger, kind_of
from fedactors.remote import DRIVER, Door, Doors, doors
from fedactors.runtime.base import ACTOR_NAME

_LONGEST = 200
"""Characters of a name."""


@dataclasses.dataclass(frozen=True)
class Place:
    """An actor of the run: the site that hosts it, its role and its doors."""

    name: str
    site: str
    role: str
    doors: Doors


class Gate:
    """See the module.

    Args:
        site: this one.
        coordinator: the site whose driver runs the run.
        book: all actors of the run.
    """

    def __init__(self, site: str, coordinator: str, book: Mapping[str, Place]) -> None:
        self.book = book
        self.left, self.arrived = Ledger(), Ledger()
        """What crossed to other sites, and from them."""
        self._site = site
        self._coordinator = coordinator

    def place(self, name: str, asker: str) -> Place:
        """Return where an actor is.

        Raises:
            Refused: there is none of that name.
        """
        found = self.book.get(name) if isinstance(name, str) else None
        if found is None:
            raise Refused(asker, f"calls {name!r:.100}, which does not exist (there are: {', '.join(self.book)})")
        return found

    def role(self, name: str) -> str:
        """Return the role of an actor, or of the driver."""
        return DRIVER if name == DRIVER else self.book[name].role

    def site_of(self, name: str) -> str:
        """Return the site of an actor, or of the driver."""
        return self._coordinator if name == DRIVER else self.book[name].site

    def check_owner(self, peer: str, name: Any) -> None:
        """Check that whoever the site `peer` speaks for is hosted there.

        Raises:
            Refused: its certificate does not own that name.
        """
        if not isinstance(name, str) or (name != DRIVER and name not in self.book):
            raise Refused(peer, f"speaks for {_name(name)}, which is not in the run")
        if self.site_of(name) != peer:
            raise Refused(peer, f"speaks for {name}, which its certificate does not own: it is {self.site_of(name)}'s")

    def call_in(self, peer: str, sender: Any, receiver: Any, method: Any, value: Any) -> Door:
        """Check a call that another site makes.

        Raises:
            Refused: naming the sender and what is allowed.
        """
        self.check_owner(peer, sender)
        place = self.book.get(receiver) if isinstance(receiver, str) else None
        if place is None or place.site != self._site:
            raise Refused(sender, f"calls {_name(receiver)}, which is not hosted by {self._site}")
        if not (isinstance(method, str) and method.isidentifier() and len(method) <= _LONGEST):
            raise Refused(sender, f"calls {receiver} for {_name(method)}, which is no name of a door")
        door = place.doors.check(method, sender, self.role(sender), receiver, value)
        place.doors.check_fields(sender, value)
        self.count(self.arrived, sender, receiver, value, door.name)
        return door

    def call_out(self, sender: str, place: Place, method: str, value: Any) -> Door:
        """Check a call before it leaves this site.

        Raises:
            Refused: it is not declared; nothing has left.
        """
        door = place.doors.check(method, sender, self.role(sender), place.name, value)
        place.doors.check_fields(sender, value)
        self.count(self.left, sender, place.name, value, method)
        return door

    def reply_out(self, place: Place, receiver: str, door: Door, value: Any) -> None:
        """Check a reply before it leaves this site."""
        self._reply(self.left, place, receiver, door, value)

    def reply_in(self, place: Place, receiver: str, door: Door, value: Any) -> None:
        """Check a reply that came from another site."""
        self._reply(self.arrived, place, receiver, door, value)

    def _reply(self, side: Ledger, place: Place, receiver: str, door: Door, value: Any) -> None:
        place.doors.check_reply(door, place.name, value)
        place.doors.check_fields(place.name, value)
        if value is not None:
            self.count(side, place.name, receiver, value, door.name)

    def payload(self, side: Ledger, place: Place, reader: str, value: Any) -> None:
        """Check a payload on its way from `place` to `reader`."""
        place.doors.check_payload(place.name, value)
        place.doors.check_fields(place.name, value)
        self.count(side, place.name, reader, value, "")

    def count(self, side: Ledger, sender: str, receiver: str, value: Any, method: str) -> None:
        """Count what crosses."""
        kind = self.kind(sender, receiver)
        side.record(0.0, sender, receiver, kind, type_name(value, method), measure(value))

    def kind(self, sender: str, receiver: str) -> str:
        """Return the kind of link between two actors, or an actor and the driver."""
        if DRIVER in (sender, receiver):
            return DRIVER_KIND
        return kind_of(sender, self.role(sender), receiver, self.role(receiver))

    def crossed(self, side: Ledger) -> list[dict[str, Any]]:
        """Return what crossed, with both sites and without a call's text, JSON-ready."""
        return [
            {
                "from": self.site_of(total.sender),
                "to": self.site_of(total.receiver),
                **{name: getattr(total, name) for name in ("sender", "receiver", "type", "messages", "bytes")},
            }
            for total in side.totals()
        ]


def _name(given: Any) -> str:
    """Return what was given as a name, as a line may show it."""
    return f"{given[:_LONGEST]!r}" if isinstance(given, str) else f"a {type(given).__name__}"


def make_book(castings: Iterable[tuple[str, str]], classes: Iterable[type], site_of: Any) -> dict[str, Place]:
    """Return the actors of a run from their names and the names of their classes.

    Raises:
        Refused: what is no name of an actor, a name twice, or a class that is not among the protocol's actors.
    """
    known = {cls.__name__: cls for cls in classes}
    book: dict[str, Place] = {}
    for name, cls_name in castings:
        is_name = isinstance(name, str) and len(name) <= _LONGEST and ACTOR_NAME.fullmatch(name)
        if not is_name or name.partition("/")[0] == DRIVER:
            raise Refused(DRIVER, f"casts {_name(name)}, which is no name of an actor")
        if name in book:
            raise Refused(DRIVER, f"casts {name} twice")
        cls = known.get(cls_name) if isinstance(cls_name, str) else None
        if cls is None:
            raise Refused(
                DRIVER, f"casts {name} as {_name(cls_name)}, which is no actor of the protocol: {', '.join(known)}"
            )
        book[name] = Place(name, site_of(name), cls.role, doors(cls))  # type: ignore[attr-defined]
    return book
