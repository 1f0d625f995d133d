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
from fedactors.network.ledger import Ledger, kind_of
from fedactors.remote import DRIVER, Doors, doors
from fedactors.runtime import calls
from fedactors.runtime.base import ACTOR_NAME
from fedactors.runtime.calls import CallPath

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

    def call_in(self, peer: str, sender: Any, receiver: Any, method: Any, value: Any) -> CallPath:
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
        path = self.path(sender, place, method, value)
        self._count(self.arrived, sender, receiver, type_name(value, method), calls.arrive(path, value))
        return path

    def call_out(self, sender: str, place: Place, method: str, value: Any) -> tuple[CallPath, Any, int]:
        """Check a call before it leaves this site; return its path, the message as it leaves, and its bytes.

        Raises:
            Refused: it is not declared; nothing has left.
        """
        path = self.path(sender, place, method, value)
        value, size = calls.leave(path, value, copy=False)
        self._count(self.left, sender, place.name, type_name(value, method), size)
        return path, value, size

    def path(self, sender: str, place: Place, method: str, value: Any) -> CallPath:
        """Return the path of a call; see `calls.admit`."""
        return calls.admit(place.doors, method, sender, self.role(sender), place.name, place.role, value)

    def reply_in(self, path: CallPath, reply: Any) -> None:
        """Check a reply that came from another site."""
        size = calls.take(path, reply)
        if reply is not None:
            self._count(self.arrived, path.receiver, path.sender, type_name(reply, ""), size)

    def reply_out(self, path: CallPath, reply: Any) -> None:
        """Count a reply that leaves this site; it was checked in this process when its actor gave it."""
        if reply is not None:
            self._count(self.left, path.receiver, path.sender, type_name(reply, ""), measure(reply))

    def payload_in(self, place: Place, reader: str, value: Any) -> None:
        """Check a payload that came from another site."""
        size = calls.receive(place.doors, place.name, value)
        self._count(self.arrived, place.name, reader, type_name(value, ""), size)

    def payload_out(self, owner: str, reader: str, value: Any) -> None:
        """Count a payload that leaves this site; it was checked in this process when its owner gave it."""
        self._count(self.left, owner, reader, type_name(value, ""), measure(value))

    def _count(self, side: Ledger, sender: str, receiver: str, type_: str, size: int) -> None:
        side.record(0.0, sender, receiver, self.kind(sender, receiver), type_, size)

    def kind(self, sender: str, receiver: str) -> str:
        """Return the kind of link between two actors, or an actor and the driver."""
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
