"""What the planner says of a setting before it is run: profiles from the committed cost model, and its choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedactors.config import build
from fedactors.learning.models import ModelSpec
from fedactors.learning.network import initial_vector
from fedactors.network.links import LAN
from fedactors.runtime.base import Work
from protocols.pubsub_vfl import algorithm, planner
from protocols.pubsub_vfl.algorithm import default_costs
from protocols.pubsub_vfl.config import PubSubVflConfig
from protocols.pubsub_vfl.data import load_data
from protocols.pubsub_vfl.planner import PartyProfile, Plan, PowerLaw, Problem


def problem(settings: Mapping[str, Any], data_name: str, cores: Mapping[str, int], num_rows: int) -> Problem:
    """Return what is planned for in simulation, where each message has the link's bandwidth to itself.

    Args:
        settings: of the run; sizes of the networks count.
        data_name: its columns count.
        cores: of the active party, of the passive ones (planned against the weakest).
        num_rows: training rows.
    """
    config = build(PubSubVflConfig, dict(settings))
    data = load_data(config, data_name, 0)
    costs = default_costs(config)

    def law(kind: str, parameters: int, *, updates: bool) -> tuple[PowerLaw, PowerLaw]:
        fixed = costs.seconds("any", Work(kind, algorithm.operations(0, parameters, updates=updates)))
        one = costs.seconds("any", Work(kind, algorithm.operations(1, parameters, updates=updates)))
        return PowerLaw(fixed, 0.0), PowerLaw(one - fixed, 1.0)

    def size(party: str) -> int:
        return parameters_of(algorithm.bottom_spec(config, data.load(party).features.shape[1]))

    nothing = PowerLaw(0.0, 1.0)
    top = parameters_of(algorithm.top_spec(config, data))
    phases: tuple[PowerLaw, ...] = law("active-step", size(data.label_party) + top, updates=True)
    active = PartyProfile("active", cores[data.label_party], phases, 0, nothing, 1, 0.0)
    passive = []
    for party in data.passive_parties:
        phases = (
            *law("bottom-forward", size(party), updates=False),
            *law("bottom-backward", size(party), updates=True),
        )
        passive.append(PartyProfile("passive", cores[party], phases, 0, nothing, 1, 0.0))
    return Problem(
        active=active,
        passive=planner.weakest(passive),
        num_rows=num_rows,
        row_bytes=2.0 * config.embedding_size * (8 if config.float64 else 4),
        bandwidth=LAN.bandwidth,
        shared_link=False,
        latency=LAN.latency,
        in_flight_per_worker=config.max_in_flight / config.num_passive_workers,
    )


def parameters_of(spec: ModelSpec) -> int:
    """Return the number of parameters of a model."""
    return int(initial_vector(spec, 0).size)


def choice(made: Problem, batch_sizes: Sequence[int]) -> Plan:
    """Return the planner's choice where the parties' workers may differ in number."""
    return planner.search(made, "decoupled", batch_sizes=batch_sizes)[0]
