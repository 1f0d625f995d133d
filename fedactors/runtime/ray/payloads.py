"""Payloads kept by their owner and read by others of the same host through shared memory.

The owner writes a payload's frame into an anonymous memory file (memfd); the reference says where. A reader on the
same host maps the file through ``/proc/<pid>/fd/<fd>`` and copies the frame out, so the owner need not take part and
nothing is left behind when a process dies. A slot's header holds the payload's key before and after the copy: a slot
that was freed or used again meanwhile is noticed. Readers on other hosts ask the owner's process for the bytes.

Keys are random, so that nobody finds a payload that was not told of it; whom it is for travels with the frame.
"""

from __future__ import annotations

import mmap
import os
import secrets
import struct
from collections import OrderedDict

from fedactors.errors import PayloadGone

_SLOT = struct.Struct("<QQ")
_HEADER = 64
_SEGMENT_BYTES = 1 << 24
_MAX_MAPPED = 64
_SEGMENT_NAME = "fedactors-payloads"


class PayloadStore:
    """The owner's side: slots of power-of-two sizes in a few segments, reused once freed."""

    def __init__(self) -> None:
        self._segments: list[tuple[int, mmap.mmap]] = []
        self._fill = _SEGMENT_BYTES
        self._free: dict[int, list[tuple[int, int]]] = {}
        self._slots: dict[int, tuple[int, int, int, int]] = {}
        self._readers: dict[int, frozenset[str]] = {}

    def put(self, parts: list[bytes | memoryview], readers: frozenset[str]) -> tuple[int, tuple[int, int, int]]:
        """Store a frame given in parts for `readers`; return its key and its place."""
        length = sum(len(part) for part in parts)
        size = max(4096, 1 << (length + _HEADER - 1).bit_length())
        spare = self._free.get(size)
        segment, offset = spare.pop() if spare else self._new_slot(size)
        key = secrets.randbits(62) | 1
        descriptor, memory = self._segments[segment]
        position = offset + _HEADER
        for part in parts:
            memory[position : position + len(part)] = part
            position += len(part)
        _SLOT.pack_into(memory, offset, key, length)
        self._slots[key] = (segment, offset, size, length)
        self._readers[key] = readers
        return key, (os.getpid(), descriptor, offset)

    def readers(self, key: int) -> frozenset[str]:
        """Return for whom a payload is.

        Raises:
            PayloadGone: there is none of that key.
        """
        try:
            return self._readers[key]
        except KeyError:
            raise PayloadGone(f"payload {key} was freed by its owner, or never was") from None

    def read(self, key: int) -> bytes:
        """Return a frame by its key, for readers that cannot map it."""
        try:
            segment, offset, _, length = self._slots[key]
        except KeyError:
            raise PayloadGone(f"payload {key} was freed by its owner, or never was") from None
        return self._segments[segment][1][offset + _HEADER : offset + _HEADER + length]

    def free(self, key: int) -> None:
        """Give a slot back; unknown keys are ignored."""
        found = self._slots.pop(key, None)
        if found is None:
            return
        segment, offset, size, _ = found
        del self._readers[key]
        _SLOT.pack_into(self._segments[segment][1], offset, 0, 0)
        self._free.setdefault(size, []).append((segment, offset))

    def close(self) -> None:
        """Give all memory back."""
        for descriptor, memory in self._segments:
            memory.close()
            os.close(descriptor)
        for places in (self._segments, self._free, self._slots, self._readers):
            places.clear()
        self._fill = _SEGMENT_BYTES

    def _new_slot(self, size: int) -> tuple[int, int]:
        if self._fill + size > _SEGMENT_BYTES or size > _SEGMENT_BYTES:
            length = max(_SEGMENT_BYTES, size)
            descriptor = os.memfd_create(_SEGMENT_NAME)
            os.ftruncate(descriptor, length)
            self._segments.append((descriptor, mmap.mmap(descriptor, length)))
            self._fill = 0
        offset = self._fill
        self._fill += size
        return len(self._segments) - 1, offset


class PayloadReader:
    """The reader's side: maps other processes' segments, a bounded number at a time."""

    def __init__(self) -> None:
        self._maps: OrderedDict[tuple[int, int], mmap.mmap] = OrderedDict()

    def read(self, place: tuple[int, ...], key: int) -> bytes:
        """Copy a frame out of its owner's memory.

        Raises:
            PayloadGone: it was freed.
            OSError: the owner's memory cannot be mapped (it is dead, or in another process namespace).
        """
        pid, descriptor, offset = place
        memory = self._maps.get((pid, descriptor))
        if memory is None:
            where = f"/proc/{pid}/fd/{descriptor}"
            # a place is a claim of whoever sent it: nothing but a segment of payloads is opened
            if not os.readlink(where).startswith(f"/memfd:{_SEGMENT_NAME}"):
                raise PayloadGone(f"payload {key} does not lie where its reference says")
            with open(where, "rb") as file:
                memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            self._maps[(pid, descriptor)] = memory
            if len(self._maps) > _MAX_MAPPED:
                self._maps.popitem(last=False)[1].close()
        if not 0 <= offset <= len(memory) - _HEADER:
            raise PayloadGone(f"payload {key} does not lie where its reference says")
        found, length = _SLOT.unpack_from(memory, offset)
        frame = memory[offset + _HEADER : offset + _HEADER + length]
        if found != key or _SLOT.unpack_from(memory, offset)[0] != key:
            raise PayloadGone(f"payload {key} was freed by its owner")
        return frame

    def close(self) -> None:
        """Unmap everything."""
        for memory in self._maps.values():
            memory.close()
        self._maps.clear()
