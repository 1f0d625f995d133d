"""Two to ten parties on Blog (Table 10), simulated with 8 cores a party and a deadline of 15 s.

Reduced: 3 epochs, 4 workers each; ``--paper`` trains 50 epochs.
"""

from __future__ import annotations

from _study import Point, perform_all, settings, study_of
from _watch import network

PARTIES = (2, 4, 6, 8, 10)
METHODS = {"pubsub-vfl": 4, "avfl-ps": 4, "vfl-ps": 4, "avfl": 1}


def main() -> None:
    given = study_of(__doc__)
    points = []
    for num_parties in PARTIES:
        passive = ["passive"] if num_parties == 2 else [f"passive-{i}" for i in range(1, num_parties)]
        for method, workers in METHODS.items():
            chosen = settings(method, workers, workers, 256, 8)
            more = {"num_parties": num_parties, "deadline": 15.0, "num_epochs": 50 if given.paper else 3}
            points.append(
                Point(
                    name=f"{num_parties:02d}-parties-{method}",
                    data="blog",
                    settings={**chosen, **more},
                    cores=dict.fromkeys(["active", *passive], 8),
                    network=network(parties=("active", *passive)),
                )
            )
    perform_all(points, "multi-party", given)


if __name__ == "__main__":
    main()
