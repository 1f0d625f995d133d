"""The planets of one center and its stellar model, and when the center sends its master on. No clock, no I/O."""

from __future__ import annotations

import dataclasses

import numpy as np

from fedactors.protocols.nebulafl.algorithm import (
    SHIFT,
    Floats,
    master_model,
    planet_update,
    stellar_decay,
    version_gap,
)
from fedactors.protocols.nebulafl.config import PlanetRule
from fedactors.runtime.snapshots import Stateful


@dataclasses.dataclass
class CenterModels(Stateful):
    """The models of one center and their versions; events in, models out (Algorithm 1, lines 4 to 33).

    Models are replaced, never written to: one handed out for training, or in a snapshot, may be kept by reference.
    """

    state = (
        "planets", "stellar", "versions", "stellar_version", "sent_version", "rotated_at", "has_received",
    )  # fmt: skip
    planets: list[Floats]
    """m_1 ... m_J."""
    stellar: Floats
    """m_s."""
    rotation_interval: float
    """t_c in seconds."""
    paper_literal: bool = False
    """Keep the printed sign of the version offset."""
    rule: PlanetRule = "paper"
    """What a planet is pulled to, and what a rotation does to planets; see `NebulaFLConfig.planet_rule`."""
    versions: list[int] = dataclasses.field(default_factory=list)
    """v_1 ... v_J, trainings counted so far."""
    stellar_version: float = 0.0
    """v_s, mean version of the center that the stellar model came from, when it was sent."""
    sent_version: float = 0.0
    """v_avg, mean version of this center at its last rotation."""
    rotated_at: float = 0.0
    """When the stellar model was last replaced."""
    has_received: bool = False
    """Whether the stellar model is a trained one."""

    def __post_init__(self) -> None:
        self.versions = self.versions or [0] * len(self.planets)

    @property
    def mean_version(self) -> float:
        """Mean version of the planets now, v_i."""
        return sum(self.versions) / len(self.versions)

    def gap(self, planet: int) -> float:
        """Return the version gap of a planet now (Equation 4)."""
        offset = self.sent_version - self.stellar_version
        return version_gap(self.versions[planet], self.mean_version, offset, paper_literal=self.paper_literal)

    def trained(self, planet: int, parameters_P: Floats, now: float, handed_out_P: Floats | None = None) -> None:
        """Take a trained planet back: PlanetUpdate with what the rule pulls it to, then version += 1.

        `handed_out_P` is the model that the training began with: what rotations have shifted the planet by since then
        (``shifted``) is added to what was trained.
        """
        decay = stellar_decay(now, self.rotated_at, self.rotation_interval)
        version, pull_P, pull_version = self.versions[planet], self.stellar, self.stellar_version
        if self.rule == "shifted":
            pull_P, pull_version = self.master(), self.mean_version
            if handed_out_P is not None and handed_out_P is not self.planets[planet]:
                parameters_P = parameters_P + (self.planets[planet] - handed_out_P)
        elif self.rule == "received" and not self.has_received:
            decay = 0.0
        self.planets[planet] = planet_update(parameters_P, pull_P, version, pull_version, decay)
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
        if self.rule == "shifted":
            shift_P = np.float32(SHIFT) * (master_P - self.master())
            self.planets = [planet_P + shift_P for planet_P in self.planets]
            for planet_P in self.planets:
                planet_P.setflags(write=False)
        self.stellar, self.stellar_version, self.rotated_at, self.has_received = master_P, version, now, True


@dataclasses.dataclass
class RotationTimer(Stateful):
    """When a center sends its master: at t_c, 2 t_c, ... (Algorithm 1, lines 14 to 18).

    The paper's condition also holds just after the start, when all masters are still m_0; `paper_literal` keeps
    that transfer, by default the first one is at t_c.
    """

    state = ("rotation",)
    interval: float
    """t_c in seconds."""
    rotation: int = 0
    """c_r, rotations done."""
    paper_literal: bool = False
    """Rotate at 0, t_c, 2 t_c, ..."""

    def due_at(self) -> float:
        """Return the time of the next rotation in seconds since the run began."""
        return self.interval * (self.rotation + (0 if self.paper_literal else 1))

    def take(self, now: float) -> int | None:
        """Return the rotation that is due at `now` and count it, or None; the timer then waits for the next."""
        if now < self.due_at():
            return None
        self.rotation += 1
        return self.rotation - 1

    def catch_up(self, now: float) -> None:
        """Drop the rotations that a center missed while it was lost, so that all centers count alike."""
        while self.due_at() < now:
            self.rotation += 1
