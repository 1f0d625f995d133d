"""Section 4.1 on the virtual clock: seconds of a round, and to a gap of 1e-2, of SVFL and swept clusters on the path.

The server sends and receives at one speed in all, so that K representations take K times t_r, and Gamma tokens Gamma
times t_z; a link between clients is a tenth as quick as that, as quick, or ten times as quick. Beside what the clock
says stands what Section 4.1 does: K t_r + K t_z + tau t_u for SVFL, K t_r + Gamma t_z + S t_cc + tau t_u for MTCD, with
tau = Q (S + 1) local steps of t_u. Step sizes and settings are those of `semi_decentralised.py` to 1e-2.

    python scenarios/paper/mtcd/clock.py
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from _study import MtcdStudy
from semi_decentralised import COARSE, settings_of

from fedactors.actors.context import Work
from fedactors.network.links import HostCapacity, Link, Network
from fedactors.protocols.mtcd.algorithm import default_costs
from fedactors.protocols.mtcd.config import MtcdConfig
from fedactors.protocols.mtcd.plugin import PROTOCOL, PUBLISHED
from fedactors.runs.table import RunRow
from fedactors.sweeps import run_once

GAP = 1e-2
SERVER = 1.25e6
"""Bytes a second of the server in all, in each direction: 10 Mbit/s."""
RATIOS = (0.1, 1.0, 10.0)
"""Speed of a link between clients over the server's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timed:
    """What a run sets, and how quick its links between clients are."""

    settings: Mapping[str, Any]
    ratio: float


def network(ratio: float) -> Network:
    """Return links without latency: the server's capacity is shared, clients have theirs for themselves."""
    return Network(
        default=Link(bandwidth=ratio * SERVER),
        by_kind={"client-server": Link(bandwidth=SERVER)},
        capacity={"server": HostCapacity(egress=SERVER, ingress=SERVER)},
    )


def stated(config: MtcdConfig, ratio: float) -> float:
    """Return the seconds of a round by Section 4.1."""
    vector = 8.0 * config.num_samples / SERVER
    features = config.num_features / config.num_clients
    local = default_costs(config).seconds("", Work("visit", config.num_samples * features * config.num_local_steps))
    if config.algorithm == "svfl":
        return 2 * config.num_clients * vector + local
    visits = config.num_hops + 1
    return (config.num_clients + config.tokens) * vector + config.num_hops * vector / ratio + visits * local


def once(setting: Timed, seed: int) -> RunRow:
    """Run a setting to the gap; a round is timed from the end of the first one, before which a run finds its step."""
    settings = {**PUBLISHED, **setting.settings}
    done = run_once(PROTOCOL, settings, "synthetic", seed, network=network(setting.ratio), checkpoint_every=0)
    gap, seconds, rounds = (done.recorder.curve[name] for name in ("gap", "seconds", "round"))
    index = next((i for i, value in enumerate(gap) if value <= GAP), None)
    metrics = {
        "seconds_per_round": (seconds[-1] - seconds[1]) / (rounds[-1] - rounds[1]),
        "stated_seconds_per_round": stated(done.config, setting.ratio),
        "rounds_to_0.01": math.inf if index is None else rounds[index],
        "seconds_to_0.01": math.inf if index is None else seconds[index],
    }
    return done.row(metrics, extra={"ratio": setting.ratio}, curve={})


def points(study: MtcdStudy) -> dict[str, Timed]:
    """Return SVFL and the swept settings of the path, for each speed of the links between clients."""
    made = {}
    for name, step in COARSE.items():
        for ratio in RATIOS:
            settings: dict[str, Any] = {**settings_of(40)[name], "num_clients": 40, "topology": "path"}
            settings |= {"min_cluster_size": 1, "learning_rate": step, "target_gap": GAP, **study.settings}
            if study.smoke:
                settings |= {"num_rounds": 3, "num_samples": 60, "num_features": 80, "learning_rate": 1e-5}
            made[f"{name}-links-{ratio:g}"] = Timed(settings=settings, ratio=ratio)
    return made


def main() -> None:
    """Run all of them over the seeds."""
    study = MtcdStudy.of(__doc__)
    study.measure("clock", points(study), once, all_seeds=True, as_set=True, smoke_rows=2)


if __name__ == "__main__":
    main()
