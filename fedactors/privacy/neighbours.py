"""Who masks with whom: everybody with everybody up to 20 clients, above that a sparse random graph (SecAgg+).

Bell et al. (2020), Section 3: a ring of the clients in random order, in which each is a neighbour of the k / 2 next
on either side. `num_neighbours` chooses k for a fifth of the clients who help the server and another fifth who drop
out: with a probability of 1 - 2^-40 each the server gets no threshold of shares of anybody's seed and key, and the
graph of the honest hangs together; with one of 1 - 2^-20 nobody's shares are lacking. The order of the ring follows
from all keys; a helper of the server who makes its keys last can choose among as many orders as it tries.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

COMPLETE_UP_TO = 20
CORRUPT_SHARE = DROPPED_SHARE = 0.2
SECURITY_BITS, CORRECTNESS_BITS = 40, 20


@functools.lru_cache(maxsize=64)
def num_neighbours(num_clients: int) -> int:
    """Return k, even; one less than the clients where no smaller number is good enough."""
    if num_clients <= COMPLETE_UP_TO:
        return num_clients - 1
    from scipy.stats import hypergeom

    others, corrupt = num_clients - 1, math.ceil(CORRUPT_SHARE * num_clients)
    staying = others - math.ceil(DROPPED_SHARE * num_clients)
    for k in range(4, others, 2):
        threshold = (k + 1) // 2 + 1
        stolen = num_clients * hypergeom.sf(threshold - 1, others, corrupt, k)
        missing = num_clients * hypergeom.cdf(threshold - 1, others, staying, k)
        cut = num_clients * (CORRUPT_SHARE + DROPPED_SHARE) ** (k // 2)
        if max(stolen, cut) < 2.0**-SECURITY_BITS and missing < 2.0**-CORRECTNESS_BITS:
            return k
    return others


def neighbour_graph(names: Sequence[str], seed: bytes) -> dict[str, set[str]]:
    """Return each client's neighbours; `seed` decides the order on the ring, so that all derive one graph from it."""
    count, k = len(names), num_neighbours(len(names))
    if k >= count - 1:
        return {name: set(names) - {name} for name in names}
    order = np.random.default_rng(int.from_bytes(seed, "big")).permutation(count)
    ring = [sorted(names)[place] for place in order]
    steps = [step for step in range(-k // 2, k // 2 + 1) if step]
    return {name: {ring[(place + step) % count] for step in steps} for place, name in enumerate(ring)}
