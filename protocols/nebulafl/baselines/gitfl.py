"""GitFL (Hu et al., 2023), NebulaFL's ancestor: branches that pull a master after every push.

    push: version += 1 --> master = MasterGen(branches, versions) --> pull: branch <- (w branch + master) / (w + 1)

The branch that was pushed is the one that pulls, with w = min(50, max(2, dv + 10)) and dv = v_j - mean v.
Containers are chosen by NebulaFL's rewards with an offset of zero, which descend from GitFL's (the ancestor's
own table of times has no hardware to choose).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from protocols.nebulafl.algorithm import Floats
from protocols.nebulafl.versioning import master_model, pull, version_gap


@dataclasses.dataclass
class GitFL:
    """The server's repository: branches, versions, master."""

    branches: list[Floats]
    """Branch models, replaced and never written to."""
    versions: list[int] = dataclasses.field(default_factory=list)
    """Pushes of each branch."""

    def __post_init__(self) -> None:
        self.versions = self.versions or [0] * len(self.branches)

    def gap(self, branch: int) -> float:
        """Return how far a branch is ahead of the mean version."""
        return version_gap(self.versions[branch], sum(self.versions) / len(self.versions), 0.0)

    def master(self) -> Floats:
        """Return the master of all branches now."""
        return master_model(self.branches, self.versions)

    def push(self, branch: int, parameters_P: Floats) -> Floats:
        """Take a trained branch, let it pull the new master, and return what to train next."""
        self.versions[branch] += 1
        self.branches[branch] = parameters_P
        self.branches[branch] = pull(parameters_P, self.master(), self.gap(branch))
        return self.branches[branch]

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a snapshot needs."""
        return {"branches": list(self.branches), "versions": list(self.versions)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put a snapshot back."""
        self.branches, self.versions = list(state["branches"]), list(state["versions"])
