"""What crossed between sites in a run, as their own signed logs have it, and whether they agree."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedactors.errors import BadInput
from fedactors.network.ledger import Ledger
from fedactors.remote import DRIVER
from fedactors.runtime.federated.audit import AUDIT, check, signed_last
from fedactors.runtime.federated.folders import SiteFolder
from fedactors.runtime.federated.gate import Gate
from fedactors.validation import one_line, shown

_COUNTED = {"from": str, "to": str, "sender": str, "receiver": str, "type": str, "messages": int, "bytes": int}

Log = Sequence[Mapping[str, Any]]
Crossing = tuple[str, str, str]
"""Sender, receiver and type of messages."""


def log_end(
    folder: SiteFolder, run: str, status: str, gate: Gate, why: str = "", who: str = "site", **facts: Any
) -> None:
    """Write to a site's log how a run ended and what crossed to and from other sites."""
    crossed = {side: _between_sites(gate, ledger) for side, ledger in (("left", gate.left), ("arrived", gate.arrived))}
    folder.audit.add("ended", run=run, who=who, status=status, why=why, **facts, **crossed)


def _between_sites(gate: Gate, side: Ledger) -> list[dict[str, Any]]:
    return [entry for entry in gate.crossed(side) if entry["from"] != entry["to"]]


def learned(folder: Path, run: str) -> list[dict[str, Any]]:
    """Return what crossed to a site from others in a run, as its own log has it (the driver's included)."""
    return [entry for line in _ends(folder, run) for entry in line["arrived"]]


def sent(folder: Path, run: str) -> list[dict[str, Any]]:
    """Return what crossed from a site to others in a run, as its own log has it (the driver's included)."""
    return [entry for line in _ends(folder, run) for entry in line["left"]]


def _ends(folder: Path, run: str) -> list[dict[str, Any]]:
    return [line for line in SiteFolder(folder).log() if line["what"] == "ended" and line["run"] == run]


def agree(folders: dict[str, Path], run: str) -> bool:
    """Say whether the logs of all sites of a run agree on what crossed between them."""
    with contextlib.suppress(KeyError):
        left = {site: sent(folder, run) for site, folder in folders.items()}
        arrived = {site: learned(folder, run) for site, folder in folders.items()}
        whole = _sorted(entry for entries in left.values() for entry in entries)
        return bool(whole) and whole == _sorted(entry for entries in arrived.values() for entry in entries)
    return False


def _sorted(entries: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(entry.values()) for entry in entries)


def read_others(folder: SiteFolder, path: Path) -> tuple[str, list[dict[str, Any]]]:
    """Return whose log another site's is, and its lines, each checked as `SiteFolder.log` does.

    Raises:
        BadInput: it is of no other site of the federation, or a line of it is not what that site wrote there.
    """
    if not path.is_file():
        raise BadInput(f"--against: {shown(str(path))} is not there: give another site's {AUDIT}")
    others = [one for name, one in folder.federation.members.items() if name != folder.name]
    known = {one: made.name for made in others for one in (made.certificate, made.previous) if one is not None}
    signer = signed_last(path, known)
    if signer is None:
        raise BadInput(f"{path}: its last line is signed by no other site of {folder.federation.name}")
    return known[signer], check(path, signer)


@dataclass(frozen=True)
class Compared:
    """One run, as the logs of two sites have what crossed between them."""

    run: str
    verdict: Literal["agree", "cut", "differ"]
    """Which is "cut" where the run did not come to its end (or goes on), and nothing arrived that did not leave."""
    messages: int
    """That left either of the two for the other."""
    bytes: int
    differences: tuple[str, ...]


def compare(site: str, lines: Log, other: str, others: Log) -> list[Compared]:
    """Return what the checked logs of two sites say of each run that is in both or ended in one, oldest first.

    In a run that came to its end, what left one must have arrived at the other. In one that was cut, what left may be
    lost on the way; what never left cannot arrive.

    Raises:
        BadInput: a line is signed by its site, and is not what a site writes.
    """
    ends = {site: _of_runs(site, lines), other: _of_runs(other, others)}
    runs = [run for run in dict.fromkeys((*ends[site], *ends[other])) if run in ends[site] and run in ends[other]]
    # one of the two may have lost the end of its log, and with it the run
    runs += [
        run
        for one, far in ((site, other), (other, site))
        for run in ends[one]
        if run not in ends[far] and any(far in (e["from"], e["to"]) for line in ends[one][run] for e in _all(line))
    ]
    return [_compared(run, site, ends[site].get(run, []), other, ends[other].get(run, [])) for run in runs]


def _of_runs(site: str, lines: Log) -> dict[str, list[Mapping[str, Any]]]:
    """Return the lines that say how each run ended at a site; none where one was proposed and no end is written."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        if line["what"] in ("approved", "ended"):
            found.setdefault(str(line.get("run")), [])
        if line["what"] == "ended":
            is_sound = isinstance(line.get("status"), str) and all(
                isinstance(line.get(side), list) and all(_is_entry(entry) for entry in line[side])
                for side in ("left", "arrived")
            )
            if not is_sound:
                raise BadInput(f"the log of {site}: line {line.get('number')} does not say how a run ended")
            found[str(line.get("run"))].append(line)
    return found


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and all(type(entry.get(name)) is kind for name, kind in _COUNTED.items())


def _all(line: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [*line["left"], *line["arrived"]]


def _compared(run: str, site: str, lines: Log, other: str, others: Log) -> Compared:
    both = (*lines, *others)
    is_whole = bool(both) and all(line["status"] == "finished" for line in both)
    differences: list[str] = []
    total: Counter[str] = Counter()
    for one, its, far, fars in ((site, lines, other, others), (other, others, site, lines)):
        if not its:
            if is_whole:
                differences.append(f"{one}'s log has no end of it, and {far}'s says that it finished")
            continue
        if not fars:
            continue
        left, arrived = _totals(its, "left", one, far), _totals(fars, "arrived", one, far)
        for key in sorted({*left, *arrived}):
            if DRIVER in key and not is_whole and not any(line.get("who") == DRIVER for line in both):
                continue  # the driver was killed before it could write what it knew
            (sent_here, size), (taken, taken_size) = left.get(key, (0, 0)), arrived.get(key, (0, 0))
            total["messages"] += sent_here
            total["bytes"] += size
            is_lost = not is_whole and sent_here >= taken and size >= taken_size
            if (sent_here, size) != (taken, taken_size) and not is_lost:
                sender, receiver, type_ = (one_line(part, 80) for part in key)
                differences.append(
                    f"{type_} from {sender} to {receiver}: {one} says that {sent_here} left, of {size} bytes; "
                    f"{far} that {taken} arrived, of {taken_size}"
                )
    verdict: Literal["agree", "cut", "differ"] = "differ" if differences else "agree" if is_whole else "cut"
    return Compared(one_line(run, 40), verdict, total["messages"], total["bytes"], tuple(differences))


def _totals(lines: Log, side: str, sender: str, receiver: str) -> dict[Crossing, tuple[int, int]]:
    found: dict[Crossing, tuple[int, int]] = {}
    for line in lines:
        for entry in line[side]:
            if (entry["from"], entry["to"]) == (sender, receiver):
                key = entry["sender"], entry["receiver"], entry["type"]
                messages, size = found.get(key, (0, 0))
                found[key] = messages + entry["messages"], size + entry["bytes"]
    return found
