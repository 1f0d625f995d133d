"""Two to ten parties on Blog (Table 10), in the simulated setting of 8 cores a party and a deadline of 15 s.

Reduced: 2 epochs, 2, 6 and 10 parties, 4 workers each, a small network; ``--full`` trains 50 epochs of ten layers.
"""

from __future__ import annotations

from _study import Point, flags, perform_all

PARTIES = (2, 4, 6, 8, 10)
METHODS = {"pubsub-vfl": 4, "avfl-ps": 4, "vfl-ps": 4, "avfl": 1}


def main() -> None:
    given = flags(__doc__).parse_intermixed_args()
    small = {"num_layers": 4, "hidden_size": 32, "embedding_size": 16, "num_epochs": 2}
    points = []
    for num_parties in PARTIES if given.full else (2, 6, 10):
        passive = ["passive"] if num_parties == 2 else [f"passive-{i}" for i in range(1, num_parties)]
        for method, workers in METHODS.items():
            settings = {
                **({"num_epochs": 50} if given.full else small),
                "algorithm": method,
                "num_parties": num_parties,
                "num_active_workers": workers,
                "num_passive_workers": workers,
                "batch_size": 256,
                "deadline": 15.0,
                "max_in_flight": 20,
            }
            cores = dict.fromkeys(["active", *passive], 8)
            name = f"{method}-{num_parties:02d}-parties"
            points.append(Point(name=name, data="blog", settings=settings, cores=cores))
    perform_all(points, given.out / "multi-party", given)


if __name__ == "__main__":
    main()
