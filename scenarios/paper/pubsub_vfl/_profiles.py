"""A party's profile in the simulated runtime, from its cost model instead of measurements."""

from __future__ import annotations

from fedactors.actors.context import Work
from fedactors.data.layouts.vertical import VerticalData
from fedactors.learning.network import initial_vector
from fedactors.network import links
from fedactors.protocols.pubsub_vfl import algorithm
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.messages import PartyProfile, PowerLaw
from fedactors.runtime.interface import CostModel


def profile_of_costs(
    config: PubSubVflConfig, data: VerticalData, party: str, costs: CostModel, num_cores: int, local: links.Link
) -> PartyProfile:
    """Return a party's profile in the simulated runtime, from its cost model instead of measurements.

    Messages cost the simulated processors nothing.

    Args:
        config: sizes of the models.
        data: tells the party's columns.
        party: whose profile.
        costs: of the runtime.
        num_cores: of the party.
        local: the link between actors of the party.
    """
    is_active = party == data.label_party
    bottom = initial_vector(algorithm.bottom_spec(config, data.load(party).features.shape[1]), 0).size
    size = bottom + (initial_vector(algorithm.top_spec(config, data), 0).size if is_active else 0)

    def law(kind: str, *, updates: bool) -> tuple[PowerLaw, PowerLaw]:
        units = [algorithm.operations(rows, size, updates=updates) for rows in (0, 1)]
        fixed, one = (costs.seconds(party, Work(kind, unit)) for unit in units)
        return PowerLaw(fixed, 0.0), PowerLaw(one - fixed, 1.0)

    def rounding(kind: str) -> tuple[PowerLaw, PowerLaw]:
        fixed, one = (costs.seconds(party, Work(kind, units)) for units in (0.0, float(config.embedding_size)))
        return PowerLaw(fixed, 0.0), PowerLaw(one - fixed, 1.0)

    compress, decompress = (rounding("compress"), rounding("decompress")) if config.quantization_bits else ((), ())
    last = "active-step" if is_active else "bottom-backward"
    ahead = () if is_active else law("bottom-forward", updates=False)
    steps = [
        costs.seconds(party, Work(last, algorithm.operations(0, size, updates=updates))) for updates in (False, True)
    ]
    sums = [costs.seconds(party, Work("average", units)) for units in (0.0, float(size))]
    parameter_bytes = size * (8.0 if config.float64 else 4.0)
    return PartyProfile(
        role="active" if is_active else "passive",
        cores=num_cores,
        phases=(*ahead, *compress, *decompress, *law(last, updates=True)),
        memory_base=0.0,
        memory_per_batch=PowerLaw(0.0, 1.0),
        memory_available=1.0,
        sync_seconds=sums[1] - sums[0],
        step_seconds=steps[1] - steps[0],
        server_step_seconds=costs.seconds(party, Work("server-step", float(size))),
        parameter_bytes=parameter_bytes,
        local_latency=local.latency,
        local_bandwidth=local.bandwidth,
    )
