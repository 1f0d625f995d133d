"""Reading numbers in texts and bytes that left a party, as an honest author may have put them there.

Numbers in a text, numbers in their binary form, and either of them in base64 or compressed with zlib or gzip. An author
who wants to hide values has a thousand other ways, which nobody can list: this search is against accidents.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.testing.leaks import COARSE_RUN, MIN_DISTINCT

Form = str | bytes

_NUMBER = re.compile(r"(?:(?<![\w.])[-+])?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
_CLASSES = 12
_MOST_FORMS = 300
_MOST_UNPACKED = 1 << 20


def decoded(forms: Iterable[Form]) -> Iterator[NDArray[Any]]:
    """Yield arrays of numbers that `forms`, and what is packed in them, can be read as; so many forms at most."""
    level, seen = list(forms), set[Form]()
    while level:
        packed: list[Form] = []
        for form in level:
            if form in seen or len(seen) >= _MOST_FORMS or len(form) < MIN_DISTINCT:
                continue
            seen.add(form)
            yield from _in_text(form) if isinstance(form, str) else _in_bytes(form)
            packed.extend(_words(form) if isinstance(form, str) else _unpacked(form))
        level = packed


def _in_text(text: str) -> Iterator[NDArray[Any]]:
    """Yield the numbers in a text, those with decimals apart as well; and letters or words, one for each label."""
    words = _NUMBER.findall(text)
    decimals = [word for word in words if not word.lstrip("+-").isdigit()]
    for chosen in (decimals, words) if len(decimals) < len(words) else (words,):
        if len(chosen) >= MIN_DISTINCT:
            yield np.array(chosen, np.float64)
    for letters in (list(text), text.split()):
        if len(letters) >= COARSE_RUN and 1 < len(set(letters)) <= _CLASSES:
            yield np.unique(letters, return_inverse=True)[1].astype(np.float64)


def _in_bytes(blob: bytes) -> Iterator[NDArray[Any]]:
    """Yield bytes read as floats from every offset, behind a header say; and as whole numbers."""
    for kind in ("<f4", "<f8", ">f4", ">f8"):
        size = int(kind[-1])
        for offset in range(size):
            numbers = np.frombuffer(blob, kind, (len(blob) - offset) // size, offset)
            with np.errstate(invalid="ignore"):
                sizes = np.abs(numbers.astype(np.float64))
            yield numbers[(sizes > 1e-30) & (sizes < 1e30)]
    for kind in ("u1", "<f2", "<i2", "<i4", "<i8"):
        if len(blob) % int(kind[-1]) == 0:
            yield np.frombuffer(blob, kind)


def _words(text: str) -> Iterator[Form]:
    """Yield the bytes of words in base64, of the usual alphabet or that of addresses, in lines or in one."""
    for word in {*_BASE64.findall(text), "".join(text.split())}:
        plain = word.translate(str.maketrans("-_", "+/")).rstrip("=")
        try:
            yield base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
        except (binascii.Error, ValueError):
            continue


def _unpacked(blob: bytes) -> Iterator[Form]:
    """Yield what is compressed with zlib or gzip, and what is text or base64 in bytes."""
    try:
        yield zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(blob, _MOST_UNPACKED)
    except zlib.error:
        if blob.isascii():
            yield blob.decode()
