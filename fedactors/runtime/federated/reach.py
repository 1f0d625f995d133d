"""Whether the other sites of a federation can be worked with: dialled, asked for their code and clock, and measured.

It belongs to no run, needs nobody's approval, and tells every site of the federation which version is installed.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import numpy as np

from fedactors import __version__
from fedactors.errors import FedactorsError, Refused
from fedactors.network.codec import encode_parts
from fedactors.plugins import discover
from fedactors.runtime.failures import encode_error
from fedactors.runtime.federated.folders import Member, SiteFolder
from fedactors.runtime.federated.greeting import Hello
from fedactors.runtime.federated.link import Connection, Serve
from fedactors.runtime.federated.meeting import dial
from fedactors.runtime.federated.pieces import Limits, value_of
from fedactors.runtime.federated.proposal import source_digest
from fedactors.validation import one_line, shown

CHECKING = "check"
_MIB = 1 << 20
_NUM_CALLS, _NUM_MIB = 20, 16


def installed() -> dict[str, str]:
    """Return the digest of each protocol's code that is installed here, by its name."""
    return {one.name: source_digest(one.protocol) for one in discover() if one.protocol is not None}


def answer_checks(peer: str) -> Serve:
    """Return what becomes of a site's questions: bytes are counted, None is answered with the code that is here."""

    async def serve(body: memoryview) -> Any:
        value = value_of(body, peer)
        if isinstance(value, bytes | np.ndarray):
            return len(value) if isinstance(value, bytes) else value.nbytes
        if value is not None:
            raise Refused(peer, "asks what is no question of a check")
        return __version__, tuple((await asyncio.to_thread(installed)).items())

    return serve


async def check_site(folder: SiteFolder, member: Member, own: dict[str, str], limits: Limits) -> dict[str, Any]:
    """Return what is known of another site, JSON-ready; ``problem`` is None where a run could begin.

    Args:
        folder: of this site.
        member: the other one.
        own: what is installed here.
        limits: of the link.
    """
    facts: dict[str, Any] = {"site": member.name, "address": f"{member.host}:{member.port}", "problem": None}
    until = member.certificate.not_valid_after_utc
    facts |= {"certificate_until": until.isoformat(), "version": None, "other_code": None, "clock_seconds": None}
    facts |= {"round_trip_ms": None, "mb_per_second": None}
    lost: list[str] = []
    ends = {"serve": None, "lost": lambda _, why: lost.append(why), "errors": lambda e: encode_error(folder.name, e)}
    try:
        hello = Hello(folder.federation.name, CHECKING, "", "")
        connection = await dial(folder, member, hello, replace(limits, away=0.0), **ends)
        try:
            async with asyncio.timeout(limits.call):
                facts |= {"clock_seconds": round(connection.clock_seconds, 3), **await measure(connection)}
                version, others = _code(member.name, await connection.ask(None, "its code"))
        finally:
            await connection.end()
    except TimeoutError:
        return {**facts, "problem": f"gave no answer within {limits.call:g} s"}
    except FedactorsError as error:
        return {**facts, "problem": str(error)}
    differ = sorted(name for name, digest in own.items() if others.get(name) != digest)
    facts |= {"version": version, "other_code": differ}
    if len(differ) == len(own):
        which = f"version {shown(version)}, here {__version__}"
        facts["problem"] = f"has other code: {which}: install the same wheel at both"
    return facts


def _code(site: str, found: Any) -> tuple[str, dict[str, str]]:
    match found:
        case (str(version), tuple(pairs)) if all(
            type(pair) is tuple and [type(part) for part in pair] == [str, str] for pair in pairs
        ):
            return one_line(version), dict(pairs)
    raise Refused(site, "does not say which code it has")


async def measure(connection: Connection) -> dict[str, float]:
    """Return how long a call takes, the median, and how many megabytes a second arrive."""
    taken = []
    for _ in range(_NUM_CALLS):
        begun = time.perf_counter()
        await connection.ask(b"", "a call")
        taken.append(time.perf_counter() - begun)
    begun, block = time.perf_counter(), encode_parts(np.zeros(_MIB, np.uint8))
    await asyncio.gather(*(connection.request(block, "a megabyte") for _ in range(_NUM_MIB)))
    rate = _NUM_MIB * _MIB / 1e6 / (time.perf_counter() - begun)
    return {"round_trip_ms": round(sorted(taken)[len(taken) // 2] * 1e3, 3), "mb_per_second": round(rate, 1)}
