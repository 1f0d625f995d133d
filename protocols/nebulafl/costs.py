"""What things take in the simulated runtime: trainings by the hardware catalogue, models by the centers' network.

A training's work is stated in seconds of the unit that it runs on, drawn by the center from the catalogue's throughput;
nothing is ever zero seconds because a throughput is missing: the catalogue then refuses the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from fedactors.network.ledger import CLIENT_SERVER
from fedactors.network.links import LOCAL, Link, Network
from fedactors.runtime.base import Costs
from protocols.nebulafl.auditor import EVALUATION
from protocols.nebulafl.exchanges import DISTILLATION
from protocols.nebulafl.resources import Catalogue
from protocols.nebulafl.rotation import InterCenterNetwork
from protocols.nebulafl.workshop import TRAINING

EVALUATION_SECONDS = 1.0


def default_costs(catalogue: Catalogue, centers: Sequence[str], model: str) -> Costs:
    """Return seconds for each kind of work; the exchange distils on as much hardware as the first center lets."""
    units = catalogue.centers[centers[0]]
    speed = sum(units[t.name] * t.samples_per_second(model) for t in catalogue.types_of(centers[0]))
    return Costs({TRAINING: (0.0, 1.0), EVALUATION: (0.0, EVALUATION_SECONDS), DISTILLATION: (0.0, 1.0 / speed)})


def center_links(network: InterCenterNetwork, centers: Sequence[str], exchange: str, num_bytes: int) -> Network:
    """Return the links that messages of about `num_bytes` take: shortest paths, passed link by link.

    Store and forward over several links takes the sum of their latencies and of bytes / bandwidth, and costs the sum of
    their egress prices. The auditor is no part of the protocol; its links are free.
    """
    places = list(centers)
    hosts = {}
    if network.hub is not None and exchange == "exchange":
        hosts[exchange] = network.hub
        places.append(network.hub)
    links = {}
    for number, sender in enumerate(places):
        for receiver in places[number + 1 :]:
            if sender == receiver:
                continue
            path = network.route(sender, receiver, num_bytes).path
            passed = [network.graph.edges[pair]["link"] for pair in pairwise(path)]
            links[(sender, receiver)] = Link(
                latency=sum(link.latency for link in passed),
                bandwidth=1.0 / sum(1.0 / link.bandwidth for link in passed),
                price_per_gb=sum(link.egress_price for link in passed) * 1e9,
            )
    return Network(links=links, by_kind={CLIENT_SERVER: LOCAL}, hosts=hosts)
