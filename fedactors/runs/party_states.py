"""A party's state in a place of its own: the run folder then holds a reference, and nothing to compute anything from.

    actor's process --frame--> PLACE/RUN/ACTOR/<random>.state          1. every such party writes, under a fresh name
    driver          --reference--> run folder, then its manifest       2. only now there is a checkpoint
    actor's process removes what the checkpoint of this label replaced 3.

So a checkpoint is complete everywhere or it is none; what a run leaves that dies between 1 and 2 no manifest names.
A file begins with 16 random bytes, so that its digest (which the reference holds) tells nothing about its content. With
a key it is AES-256-GCM over the frame, bound to the file's name: a state cannot be passed off as another actor's.
The key is read by the party's own process, from a file or a variable there; neither the driver nor any file has it.
"""

from __future__ import annotations

import base64
import binascii
import errno
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedactors.errors import BadInput
from fedactors.runs.storage import PRIVATE_FILE, Store, disk_errors, is_remote, local_path, read_plain, write_atomic
from fedactors.validation import unreplaced

_REFERENCE = b"fedactors state elsewhere\n"
_CLEAR, _SEALED = b"fedactors-state-clear-1\n", b"fedactors-state-aes-1\n"
_SALT_BYTES = 16
_NONCE_BYTES = 12
_LARGEST_KEY = 4096
_KEY_BYTES = 32
_WORD = r"[A-Za-z0-9][A-Za-z0-9_.~\-]*"
_NAME = re.compile(rf"{_WORD}/(?P<actor>{_WORD}(/{_WORD})*)/[0-9a-f]{{32}}\.state")


@dataclass(frozen=True)
class StateLocation:
    """Where a party keeps its state, and which key it seals it with.

    Raises:
        BadInput: a key that is named neither as a file nor as a variable.
    """

    party: str
    where: str
    """A folder of the party's own host, or an fsspec address."""
    key: str | None = None
    """``file:PATH`` or ``env:NAME``, as the party's process finds it; None: the state is kept in the clear."""

    def __post_init__(self) -> None:
        if not self.where.strip():
            raise BadInput(f"--checkpoint-dir: {self.party}={self.where} is not allowed: it names no place")
        if variable := unreplaced(self.where):
            raise BadInput(f"--checkpoint-dir: {self.party}={self.where} is not allowed: {variable}")
        kind, _, name = (self.key or "env:x").partition(":")
        if kind not in ("file", "env") or not name:
            raise BadInput(
                f"--checkpoint-key: {self.party}={self.key} is not allowed: name where the key is, "
                f"file:PATH or env:NAME"
            )


def make_locations(where: Mapping[str, str], keys: Mapping[str, str]) -> dict[str, StateLocation]:
    """Return the location of each party that has one.

    Args:
        where: party to folder or address.
        keys: party to the name of its key.

    Raises:
        BadInput: a key for a party without a place, or a wrong name.
    """
    for party in keys:
        if party not in where:
            raise BadInput(f"--checkpoint-key: {party!r} is not allowed: it has no --checkpoint-dir {party}=PLACE")
    return {party: StateLocation(party, location, keys.get(party)) for party, location in where.items()}


def proven_locations(where: Mapping[str, str], frames: Mapping[str, bytes]) -> dict[str, str]:
    """Return those of the locations that a run folder names whose party keeps all its states of a checkpoint elsewhere.

    A run folder may come from someone else. Each of such a party's processes finds its state, with its digest, at the
    location before it writes there (`StateLocations.check`, `PartyStates.begin`); a location that is merely named would
    be written to unseen.
    An address is given again by the user: the owner of the store that it names could have put the states there.
    """
    kept: dict[str, bool] = {}
    for actor, frame in frames.items():
        party = actor.partition("/")[0]
        kept[party] = kept.get(party, True) and is_reference(frame)
    return {party: location for party, location in where.items() if kept.get(party, False) and "://" not in location}


def is_reference(frame: bytes) -> bool:
    """Say whether the file of an actor in a checkpoint only tells where the state is."""
    return frame.startswith(_REFERENCE)


class PartyStates:
    """The states of one actor in its party's place, used in the actor's own process.

    Args:
        location: the party's; None: it has none, and a state travels to the run folder as it is.
        actor: whose.
        run: name of the run, of the folder that its states go to.
    """

    def __init__(self, location: StateLocation | None, actor: str, run: str) -> None:
        self._location = location
        self._actor = actor
        self._run = run

    def begin(self, frame: bytes | None) -> bytes | None:
        """Return the state to go on from, if there is one; then see that the key is there and the place can be written.

        In this order: a location is the party's where a state of it was found.

        Raises:
            BadInput: naming the party, and what is wrong, before anything is trained.
        """
        state = None if frame is None else self.fetch(frame)
        if self._location is not None:
            self._cipher(self._location)
            self._write(self._location, f"{self._run}/{self._actor}/.writable", b"")
            self._remove(self._location, f"{self._run}/{self._actor}/.writable")
        return state

    def keep(self, frame: bytes) -> bytes:
        """Write a frame durably under a fresh name; return what the run folder is to hold instead.

        Raises:
            BadInput: the place cannot be written, or the key cannot be read.
        """
        if self._location is None:
            return frame
        name = f"{self._run}/{self._actor}/{secrets.token_hex(16)}.state"
        cipher = self._cipher(self._location)
        if cipher is None:
            data = _CLEAR + os.urandom(_SALT_BYTES) + frame
        else:
            nonce = os.urandom(_NONCE_BYTES)
            data = _SEALED + nonce + cipher.encrypt(nonce, frame, name.encode())
        self._write(self._location, name, data)
        told = {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        return _REFERENCE + json.dumps(told, sort_keys=True).encode()

    def fetch(self, frame: bytes) -> bytes:
        """Return the state that a checkpoint's file is, or refers to.

        Raises:
            BadInput: no place is given, or what lies there is missing, changed, another actor's or under another key.
        """
        if not is_reference(frame):
            return frame
        told = _read_reference(frame, self._actor)
        party = self._actor.partition("/")[0]
        if self._location is None:
            raise BadInput(f"{self._actor} keeps its state in a place of its own: give --checkpoint-dir {party}=PLACE")
        name = told["name"]
        what = f"--checkpoint-dir: {self._actor}: {name} in {self._location.where}"
        try:
            data = self._read(self._location, name, told["bytes"])
        except FileNotFoundError:
            raise BadInput(f"{what} is missing") from None
        if len(data) != told["bytes"] or hashlib.sha256(data).hexdigest() != told["sha256"]:
            raise BadInput(f"{what} is damaged (it differs from what the checkpoint refers to)")
        if data.startswith(_CLEAR):
            if self._location.key is not None:
                raise BadInput(f"{what} is not encrypted, though its party's states are")
            return data[len(_CLEAR) + _SALT_BYTES :]
        if not data.startswith(_SEALED):
            raise BadInput(f"{what} is no state of this version")
        cipher = self._cipher(self._location)
        if cipher is None:
            raise BadInput(f"{what} is encrypted: give --checkpoint-key {party}=file:PATH or env:NAME")
        from cryptography.exceptions import InvalidTag

        nonce, sealed = data[len(_SEALED) :][:_NONCE_BYTES], data[len(_SEALED) + _NONCE_BYTES :]
        try:
            return bytes(cipher.decrypt(nonce, sealed, name.encode()))
        except InvalidTag:
            raise BadInput(f"{what} does not open with this key ({self._location.key})") from None

    def drop(self, frame: bytes) -> None:
        """Remove the state that a reference of this run names; what is gone already is no error."""
        if self._location is not None and is_reference(frame):
            name = _read_reference(frame, self._actor)["name"]
            if name.startswith(f"{self._run}/"):
                self._remove(self._location, name)

    def _cipher(self, location: StateLocation) -> Any:
        if location.key is None:
            return None
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        kind, _, name = location.key.partition(":")
        if kind == "env":
            text = os.environ.get(name)
            if text is None:
                raise BadInput(f"--checkpoint-key: {location.party}: no variable {name} where {self._actor} runs")
        else:
            try:
                text = read_plain(Path(name).expanduser(), _LARGEST_KEY).decode()
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "no text"
                raise BadInput(f"--checkpoint-key: {location.party}: {name} cannot be read: {reason}") from None
        try:
            key = base64.b64decode(text.strip(), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != _KEY_BYTES:
            raise BadInput(
                f"--checkpoint-key: {location.party}: {location.key} holds no key: 32 random bytes as base64 "
                "(openssl rand -base64 32)"
            )
        return AESGCM(key)

    def _write(self, location: StateLocation, name: str, data: bytes) -> None:
        if is_remote(location.where):
            Store(location.where).write(name, data)
        else:
            write_atomic(
                local_path(location.where, "--checkpoint-dir") / name,
                data,
                f"--checkpoint-dir: {location.party}",
                PRIVATE_FILE,
            )

    def _read(self, location: StateLocation, name: str, size: int) -> bytes:
        if is_remote(location.where):
            return Store(location.where).read(name, size)
        try:
            return read_plain(local_path(location.where, "--checkpoint-dir") / name, size)
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno == errno.EFBIG:
                return b""  # another file than the checkpoint refers to
            raise BadInput(
                f"--checkpoint-dir: {location.party}: {location.where} cannot be read: {error.strerror}"
            ) from None

    def _remove(self, location: StateLocation, name: str) -> None:
        if is_remote(location.where):
            Store(location.where).remove(name)
        else:
            path = local_path(location.where, "--checkpoint-dir") / name
            with disk_errors(path, f"--checkpoint-dir: {location.party}"):
                path.unlink(missing_ok=True)


class StateLocations:
    """What the driver knows of it: whose states are elsewhere, and which of them a checkpoint replaces.

    Args:
        locations: by party.
        run: name of the run.
    """

    def __init__(self, locations: Mapping[str, StateLocation] | None = None, run: str = "run") -> None:
        self._locations = dict(locations or {})
        self._run = run
        self._held: dict[str, dict[str, bytes]] = {}

    def of(self, actor: str) -> PartyStates:
        """Return where the states of `actor` are kept, to be sent to its process."""
        return PartyStates(self._locations.get(actor.partition("/")[0]), actor, self._run)

    def check(self, actors: Iterable[str], frames: Mapping[str, bytes]) -> None:
        """Check that every party with a place has an actor, and that each of them finds its state there.

        Args:
            actors: of the run.
            frames: of the checkpoint that it goes on from; empty for a fresh run.

        Raises:
            BadInput: naming a party without actors, or an actor without a state where others of its party have theirs.
        """
        names = list(actors)
        parties = dict.fromkeys(name.partition("/")[0] for name in names)
        elsewhere = {name.partition("/")[0] for name, frame in frames.items() if is_reference(frame)}
        for party in self._locations:
            if party not in parties:
                raise BadInput(f"--checkpoint-dir: {party!r} is not allowed: the parties are {', '.join(parties)}")
        for name in names:
            if name.partition("/")[0] in elsewhere and name not in frames:
                raise BadInput(
                    f"--checkpoint-dir: the checkpoint refers to no state of {name}'s, but to others of its party"
                )

    def replaced(self, label: str, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        """Note the references of a checkpoint that is written; return those of the one that it replaced."""
        before = self._held.get(label, {})
        self._held[label] = {actor: frame for actor, frame in frames.items() if is_reference(frame)}
        return before


class CheckpointStates(Mapping[str, bytes]):
    """The actors' states of a checkpoint; one that is kept elsewhere is fetched when it is asked for.

    Args:
        frames: by actor, as the run folder holds them.
        locations: by party.
    """

    def __init__(self, frames: Mapping[str, bytes], locations: Mapping[str, StateLocation]) -> None:
        self._frames = frames
        self._locations = locations

    def stored(self, actor: str) -> tuple[bytes, StateLocation | None]:
        """Return what the run folder holds of an actor, and the location of its party if it has one."""
        return self._frames[actor], self._locations.get(actor.partition("/")[0])

    def __getitem__(self, actor: str) -> bytes:
        frame = self._frames[actor]
        return PartyStates(self._locations.get(actor.partition("/")[0]), actor, "").fetch(frame)

    def __contains__(self, actor: object) -> bool:
        return actor in self._frames

    def __iter__(self) -> Iterator[str]:
        return iter(self._frames)

    def __len__(self) -> int:
        return len(self._frames)


def _read_reference(frame: bytes, actor: str) -> dict[str, Any]:
    """Return where a state is.

    Raises:
        BadInput: the reference is none that this version writes, or not this actor's.
    """
    try:
        told = json.loads(frame[len(_REFERENCE) :])
        sound = {key: type(value) for key, value in told.items()} == {"name": str, "bytes": int, "sha256": str}
        match = _NAME.fullmatch(told["name"]) if sound else None
    except (ValueError, AttributeError, RecursionError):
        match = None
    if match is None or match["actor"] != actor:
        raise BadInput(f"the checkpoint of {actor} refers to no state of {actor}'s")
    return dict(told)
