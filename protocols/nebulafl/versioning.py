"""Versions, the planet update, the master model, and what a data center knows about its models.

Versions count the trainings of a planet. They decide how much a planet listens to the stellar model, how much
it counts in the master model, and, through the version gap, which container and hardware it gets next.

Shapes: P length of a flat model; a center holds J planets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from protocols.nebulafl.algorithm import Floats, blend, weighted_mean

MIN_PLANET_WEIGHT = 5.0
"""Least weight of a planet against the stellar model (Equation 2)."""


def stellar_decay(now: float, rotated_at: float, rotation_interval: float) -> float:
    """Return d_t = 1 - 0.5 min(1, (t - t_rot) / t_c): from 1 at a rotation to 0.5 one interval later (Equation 2)."""
    return 1.0 - 0.5 * min(1.0, max(0.0, now - rotated_at) / rotation_interval)


def planet_update(
    planet_P: Floats, stellar_P: Floats, planet_version: float, stellar_version: float, decay: float
) -> Floats:
    """Return (w m_j + d_t m_s) / (w + d_t) with w = max(v_j - v_s, 5) (Equation 2).

    `planet_version` is the version before this training is counted. A `decay` of zero returns the planet itself.
    """
    weight = max(planet_version - stellar_version, MIN_PLANET_WEIGHT)
    return blend(planet_P, stellar_P, decay / (weight + decay))


def master_model(planets: Sequence[Floats], versions: Sequence[float]) -> Floats:
    """Return sum(v_k m_k) / sum(v_k), the plain mean when no planet has been trained (Equation 3)."""
    return weighted_mean(planets, versions)


def version_offset(mean_version: float, stellar_version: float) -> float:
    """Return v_os = v_avg - v_s, how far this center is ahead of the one its stellar model came from."""
    return mean_version - stellar_version


def version_gap(version: float, mean_version: float, offset: float, *, paper_literal: bool = False) -> float:
    """Return dv = v_p - v_i + v_os: above zero for a planet that is ahead (Equation 4).

    The paper prints - v_os, which would call the planets of a lagging center advanced and slow them further;
    `paper_literal` keeps the print.
    """
    return version - mean_version + (-offset if paper_literal else offset)


def pull_weight(gap: float) -> float:
    """Return GitFL's weight of a branch against the master, min(50, max(2, dv + 10)), when it pulls."""
    return min(50.0, max(2.0, gap + 10.0))


def pull(branch_P: Floats, master_P: Floats, gap: float) -> Floats:
    """Return (w m_branch + m_master) / (w + 1) with w = `pull_weight(gap)`; the gap counts the new version."""
    return blend(branch_P, master_P, 1.0 / (pull_weight(gap) + 1.0))


@dataclasses.dataclass
class CenterModels:
    """The models of one center and their versions; events in, models out (Algorithm 1, lines 4 to 33).

    Models are replaced, never written to: one handed out for training, or in a snapshot, may be kept by reference.
    """

    planets: list[Floats]
    """m_1 ... m_J."""
    stellar: Floats
    """m_s."""
    rotation_interval: float
    """t_c in seconds."""
    paper_literal: bool = False
    """Keep the printed sign of the version offset."""
    versions: list[int] = dataclasses.field(default_factory=list)
    """v_1 ... v_J, trainings counted so far."""
    stellar_version: float = 0.0
    """v_s, mean version of the center that the stellar model came from, when it was sent."""
    sent_version: float = 0.0
    """v_avg, mean version of this center at its last rotation."""
    rotated_at: float = 0.0
    """When the stellar model was last replaced."""

    def __post_init__(self) -> None:
        self.versions = self.versions or [0] * len(self.planets)

    @property
    def mean_version(self) -> float:
        """Mean version of the planets now, v_i."""
        return sum(self.versions) / len(self.versions)

    def gap(self, planet: int) -> float:
        """Return the version gap of a planet now (Equation 4)."""
        offset = version_offset(self.sent_version, self.stellar_version)
        return version_gap(self.versions[planet], self.mean_version, offset, paper_literal=self.paper_literal)

    def trained(self, planet: int, parameters_P: Floats, now: float) -> None:
        """Take a trained planet back: PlanetUpdate with the stellar model, then version += 1."""
        decay = stellar_decay(now, self.rotated_at, self.rotation_interval)
        version = self.versions[planet]
        self.planets[planet] = planet_update(parameters_P, self.stellar, version, self.stellar_version, decay)
        self.versions[planet] = version + 1

    def master(self) -> Floats:
        """Return MasterGen over the planets now."""
        return master_model(self.planets, self.versions)

    def send(self) -> tuple[Floats, float]:
        """Make (master, mean version) for the next center and remember that version for the offset."""
        self.sent_version = self.mean_version
        return self.master(), self.sent_version

    def receive(self, master_P: Floats, version: float, now: float) -> None:
        """Make a model that arrived the stellar model and start the decay anew.

        It is the master of another center, in the self turn one's own, with aggregation the mean of all masters.
        """
        self.stellar, self.stellar_version, self.rotated_at = master_P, version, now

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a snapshot needs."""
        return {
            "planets": list(self.planets),
            "stellar": self.stellar,
            "versions": list(self.versions),
            "stellar_version": self.stellar_version,
            "sent_version": self.sent_version,
            "rotated_at": self.rotated_at,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put a snapshot back."""
        for name in ("planets", "stellar", "versions", "stellar_version", "sent_version", "rotated_at"):
            setattr(self, name, state[name])
        self.planets, self.versions = list(self.planets), list(self.versions)
