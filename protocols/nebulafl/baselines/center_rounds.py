"""One round inside a center, for the baselines that aggregate center by center. Events in, starts out.

MeanRound   fedavg-hierarchical, fedhkt: samples train, their mean is the center's model, some rounds in a row
RingRound   fedhisyn: models go around rings of containers of like speed (see `fedhisyn`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protocols.nebulafl.algorithm import Floats
from protocols.nebulafl.baselines.fedavg import SynchronousRound, Update
from protocols.nebulafl.baselines.fedhisyn import RingRound, Start


class MeanRound:
    """Rounds of a center, one sample of containers each; complete after the last."""

    def __init__(self, samples: Sequence[Sequence[int]], parameters_P: Floats) -> None:
        self.samples = [list(sample) for sample in samples]
        self.index = 0
        self.parameters_P = parameters_P
        self.num_samples = 0
        self.num_models = 0
        self.logits: dict[int, Floats] = {}
        self.inner = SynchronousRound(self.samples[0])

    def starts(self) -> list[Start]:
        """Return the starts of the round that is on."""
        return [Start(container, self.parameters_P) for container in self.samples[self.index]]

    @property
    def complete(self) -> bool:
        """Whether all rounds are over."""
        return self.index >= len(self.samples)

    def finished(
        self, container: int, parameters_P: Floats, num_samples: int, logits_NK: Floats | None, now: float
    ) -> list[Start]:
        """Take an answer; the last one of a round starts the next."""
        self.inner.arrive(container, Update(parameters_P, num_samples))
        if logits_NK is not None:
            self.logits[container] = logits_NK
        return self._advance()

    def lose(self, container: int) -> list[Start]:
        """Stop waiting for a container."""
        self.inner.lose(container)
        return self._advance()

    def _advance(self) -> list[Start]:
        if not self.inner.complete or self.complete:
            return []
        found = self.inner.result()
        if found is not None:
            self.parameters_P, self.num_samples = found.parameters, found.num_samples
            self.parameters_P.setflags(write=False)
            self.num_models = len(self.inner.updates)
        self.index += 1
        if self.complete:
            return []
        self.inner = SynchronousRound(self.samples[self.index])
        return self.starts()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a snapshot needs."""
        names = ("samples", "index", "parameters_P", "num_samples", "num_models", "logits")
        return {**{name: getattr(self, name) for name in names}, "inner": self.inner.state_dict()}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> MeanRound:
        """Make the round of a snapshot."""
        made = cls(state["samples"], state["parameters_P"])
        for name in ("index", "num_samples", "num_models", "logits"):
            setattr(made, name, state[name])
        made.inner.load_state_dict(state["inner"])
        return made


class Rings:
    """FedHiSyn's round with the interface of `MeanRound`."""

    def __init__(self, inner: RingRound, sizes: Mapping[int, int]) -> None:
        self.inner = inner
        self.sizes = dict(sizes)
        self.parameters_P = inner.global_P
        self.num_samples = 0
        self.num_models = 0
        self.logits: dict[int, Floats] = {}

    def starts(self) -> list[Start]:
        """Return the first starts."""
        return self.inner.starts()

    @property
    def complete(self) -> bool:
        """Whether everyone rests."""
        return self.inner.complete

    def finished(
        self, container: int, parameters_P: Floats, num_samples: int, logits_NK: Floats | None, now: float
    ) -> list[Start]:
        """Hand a model on; its maker goes on if that would end within the round."""
        start = self.inner.finished(container, parameters_P, now)
        self._conclude()
        return [] if start is None else [start]

    def lose(self, container: int) -> list[Start]:
        """Take a container out of its ring."""
        self.inner.lose(container)
        self._conclude()
        return []

    def _conclude(self) -> None:
        if not self.inner.complete:
            return
        found = self.inner.result()
        if found is not None:
            self.parameters_P = found
            self.parameters_P.setflags(write=False)
            self.num_models = len(self.inner.latest)
            self.num_samples = sum(self.sizes[c] for c in self.inner.latest)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a snapshot needs."""
        return {"inner": self.inner.state_dict(), "sizes": self.sizes}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Rings:
        """Make the round of a snapshot."""
        inner = RingRound.__new__(RingRound)
        inner.load_state_dict(state["inner"])
        return cls(inner, state["sizes"])


class RoundDesk:
    """The round that a center is in, if any; what a snapshot keeps of it."""

    def __init__(self) -> None:
        self.number = -1
        self.round: MeanRound | Rings | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a snapshot needs."""
        state = None if self.round is None else self.round.state_dict()
        return {"number": self.number, "kind": type(self.round).__name__, "round": state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put a snapshot back."""
        self.number = state["number"]
        kinds = {"MeanRound": MeanRound, "Rings": Rings}
        self.round = None if state["round"] is None else kinds[state["kind"]].restored(state["round"])  # type: ignore[attr-defined]
