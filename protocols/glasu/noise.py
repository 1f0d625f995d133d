"""What Gaussian noise on sent representations guarantees, and what it does not.

Neighbouring relation: one client's block of one node's features is replaced; edges, labels and which nodes are in a
batch are not protected. Rows are clipped to `clip_norm`, so one row moves by at most twice that. With its weights held
fixed, a client's representation of a node depends on its neighbourhood: over h layers one node reaches at most
``1 + D + ... + D (D - 1)^(h-1)`` rows, D being the bound on degrees (the nominal account). The weights, however, are
trained on the same features without noise: after the first update one node may move every row of a release, and only
the account over all rows holds (the rigorous one).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fedactors.privacy.accounting import PrivacyRecord, epsilon_of_mu, gaussian_mu
from protocols.glasu.config import GlasuConfig


def reached_rows(max_degree: int, hops: int, num_rows: int) -> int:
    """Return how many of `num_rows` rows one node's features reach over `hops` layers, at most."""
    reached, ring = 1, max_degree
    for _ in range(hops):
        reached += ring
        if reached >= num_rows:
            return num_rows
        ring *= max(max_degree - 1, 1)
    return reached


@dataclass(frozen=True)
class Releases:
    """The noised releases of one client so far: how many, and the squares of both accounts' mu (they add up)."""

    count: int = 0
    nominal: float = 0.0
    rigorous: float = 0.0

    @classmethod
    def of(cls, state: Mapping[str, float]) -> Releases:
        """Return what `as_dict` gave."""
        return cls(int(state.get("releases", 0)), state.get("nominal", 0.0), state.get("rigorous", 0.0))

    def as_dict(self) -> dict[str, float]:
        """Return plain values for a snapshot."""
        return {"releases": self.count, "nominal": self.nominal, "rigorous": self.rigorous}

    def add(self, config: GlasuConfig, hops: int, num_rows: int, *, first: bool) -> Releases:
        """Count one release of `num_rows` rows over `hops` layers; `first`: the weights have seen no data yet."""
        assert config.clip_norm is not None
        assert config.max_degree is not None
        sigma = config.noise_multiplier * config.clip_norm
        mu_row = gaussian_mu(clip_norm=config.clip_norm, sigma=sigma, releases=1)
        nominal = mu_row**2 * reached_rows(config.max_degree, hops, num_rows)
        rigorous = nominal if first else mu_row**2 * num_rows
        return Releases(self.count + 1, self.nominal + nominal, self.rigorous + rigorous)


def privacy_records(
    config: GlasuConfig, party: str, released: Mapping[str, float], *, private: bool
) -> list[PrivacyRecord]:
    """Return a client's lines of the privacy ledger, the representations' first."""
    found = Releases.of(released)
    noised = found.count > 0
    mu = math.sqrt(found.rigorous) if noised else math.inf
    relation = "one node's features at this client replaced; edges, labels and batches not covered"
    masks = "; the server sees masked sums only" if config.secure_aggregation else ""
    stamp = "" if private else "; no privacy guarantee: reproducible noise"
    mechanism = "gaussian" if noised else "secure-sum" if config.secure_aggregation else "none"
    records = [
        PrivacyRecord(
            party=party,
            message_type="Representation",
            mechanism=mechanism,
            clip_norm=config.clip_norm if noised and config.clip_norm is not None else math.inf,
            noise_scale=config.noise_multiplier * config.clip_norm if noised and config.clip_norm is not None else 0.0,
            releases=found.count,
            sampling="full" if config.batch_size is None else "known-batches",
            nominal_mu=math.sqrt(found.nominal) if noised else None,
            rigorous_mu=mu,
            epsilon=epsilon_of_mu(mu, config.delta),
            delta=config.delta,
            covered=noised and private,
            note=f"{relation}; nominal mu holds the weights fixed, at degree up to {config.max_degree}{masks}{stamp}",
        )
    ]
    others = ["Report", "Logits", *(["GradientPart"] if config.mode == "joint" else [])]
    others += ["Classifier"] if config.average_classifiers else []
    others += ["IndexSet"] if config.batch_size is not None else []
    for name in others if config.num_networks > 1 else []:
        hidden = config.secure_aggregation and name in ("Logits", "GradientPart", "Classifier")
        mechanism = "secure-sum" if hidden else "none"
        records.append(PrivacyRecord(party=party, message_type=name, mechanism=mechanism, note="no noise: not covered"))
    return records
