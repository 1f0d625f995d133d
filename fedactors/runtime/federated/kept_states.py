"""The checkpoints of a run at one site: numbered by the driver, and counted on once all sites have written theirs.

    driver: snapshot 7 ──▶ each site keeps 7 in memory, and the run goes on
            written    ──▶ each site has written 7, beside 6 ──▶ the driver writes its own 7 ──▶ commit 7: 6 may go

So the driver's newest checkpoint is one that every site has, whoever is killed at whatever moment. What goes on from a
run, a resumption or a prediction, asks for a number; a site looks for it among its own states only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedactors.errors import BadInput
from fedactors.plugins import Protocol
from fedactors.records.recorder import FolderRecorder
from fedactors.records.run_folder import Checkpoint, RunFolder
from fedactors.runtime import restored, snapshot
from fedactors.runtime.federated.folders import SiteFolder
from fedactors.runtime.federated.hosting import SiteContext
from fedactors.runtime.federated.household import Household
from fedactors.runtime.federated.proposal import Proposal

_PENDING = ".pending"


@dataclass(frozen=True)
class Earlier:
    """A run that another one goes on from, at this site.

    Args:
        folder: of the earlier run.
        states: the actors' frames, by name.
        seed: that the site had for its actors.
        now: seconds of the run's clock at the checkpoint.
        ledgers, waiting: totals of messages, and seconds of waiting, by actor.
        where: the checkpoint lies.
    """

    folder: RunFolder
    states: Mapping[str, bytes]
    seed: int
    now: float
    ledgers: Mapping[str, Any]
    waiting: Mapping[str, float]
    where: str

    def state(self, name: str) -> bytes:
        """Return an actor's state.

        Raises:
            BadInput: the checkpoint has none of it.
        """
        if name not in self.states:
            raise BadInput(f"the checkpoint has no state of {name} (of: {', '.join(sorted(self.states))})")
        return self.states[name]

    def counted(self, name: str) -> tuple[list[tuple[str, str, str, str, int, int]], float]:
        """Return an actor's totals of messages and its seconds of waiting.

        Raises:
            BadInput: the checkpoint is damaged.
        """
        what = snapshot.checkpoint_of(name, self.where)
        with snapshot.intact(what):
            return restored.totals(self.ledgers[name], what), restored.amount(self.waiting[name], "waiting", what)

    def restore(self, context: SiteContext) -> None:
        """Set a loaded actor of the site's process, and what is counted of it, as they were.

        Raises:
            BadInput: the checkpoint has no state of it, or a damaged one.
        """
        restored.restore(context.actor, self.state(context.name), context.name, self.where)
        totals, context.waiting_seconds = self.counted(context.name)
        context.ledger.restore(totals)


def folder_of(site: SiteFolder, proposal: Proposal, protocol: Protocol, parent: RunFolder | None) -> RunFolder:
    """Make the folder of what a site keeps of a run, which goes on from that of `parent`."""
    described = {
        "schema_version": 1,
        "scenario": proposal.protocol,
        "protocol": proposal.protocol,
        "runtime": "federated",
        "seed": 0,
        "data": proposal.data.get(site.name, "none"),
        "options": {},
        "headline": {"name": protocol.headline.name, "mode": protocol.headline.mode},
        "config": proposal.config,
        "site": {"name": site.name, "coordinator": proposal.coordinator, "run": proposal.run},
    }
    return RunFolder.create(site.path / "runs", proposal.run, 0, described, parent=parent)


def seal(label: str, number: int, seed: int, now: float, frames: Mapping[str, bytes], actors: Household) -> bytes:
    """Return what a site keeps beside these states in a checkpoint: it is then `write`'s."""
    own = {
        "number": number,
        "label": label,
        "seed": seed,
        "now": now,
        "ledgers": dict(actors.totals()),
        "waiting": dict(actors.waiting()),
    }
    return snapshot.seal_driver(own, frames)


def digests(frames: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the SHA-256 of each state."""
    return {name: hashlib.sha256(frame).digest() for name, frame in frames.items()}


def write(recorder: FolderRecorder, label: str, frames: Mapping[str, bytes], own: bytes) -> None:
    """Write a checkpoint of these states that is not yet counted on."""
    recorder.save_checkpoint(f"{label}{_PENDING}", frames, own)


def commit(folder: RunFolder, label: str) -> None:
    """Count on the checkpoint that was last written under a label: all sites have it."""
    folder.relabel_checkpoint(f"{label}{_PENDING}", label)


def find(site: SiteFolder, run: str, number: int) -> Earlier:
    """Return what a site has of a run at a checkpoint.

    Raises:
        BadInput: it has not this run, or not this checkpoint, or it is damaged.
    """
    found = sorted((site.path / "runs").glob(f"*-{run}-0*"))
    if not found:
        raise BadInput(f"{site.name}: has no records of run {run}")
    folder = RunFolder.open(found[0])
    for entry in folder.manifest["checkpoints"]:
        label = str(entry["label"])
        checkpoint = folder.load_checkpoint(label)
        own = _own(checkpoint)
        if own["number"] != number:
            continue
        if label.endswith(_PENDING):  # all sites have it, and this one was not told
            commit(folder, str(own["label"]))
        ledgers, waiting = dict(own["ledgers"]), dict(own["waiting"])
        seed, now = int(own["seed"]), restored.amount(own["now"], "now", snapshot.DRIVERS)
        return Earlier(folder, checkpoint.actors, seed, now, ledgers, waiting, checkpoint.folder)
    raise BadInput(f"{site.name}: has no checkpoint {number} of run {run}")


def _own(checkpoint: Checkpoint) -> dict[str, Any]:
    what = f"the site's part of checkpoint {checkpoint.label}"
    found = snapshot.unseal_driver(checkpoint.driver)
    with snapshot.intact(what):
        return {**found, "number": int(found["number"])}
