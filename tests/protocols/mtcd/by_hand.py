"""What the tests compute for themselves: the paper's formulas and loops, beside the code that they check."""

import numpy as np

from fedactors.protocols.mtcd import algorithm as al
from fedactors.protocols.mtcd import objective as ob
from fedactors.protocols.mtcd import roaming
from fedactors.protocols.mtcd.messages import Links


def synthetic_regression(generator, num_samples, num_features, noise=0.1):
    """Standard normal features (N, F), and labels of a standard normal model plus Gaussian noise (N,)."""
    x = generator.standard_normal((num_samples, num_features))
    theta = generator.standard_normal(num_features)
    return x, x @ theta + noise * generator.standard_normal(num_samples)


def links(graph, client):
    """Where a lazy walk may go: the neighbours and the client itself."""
    return Links(tuple(sorted({client, *graph.neighbors(client)})), "", -1)


def lazy_walk(graph, start, num_hops, seed):
    """The S + 1 clients that a lazy walk visits."""
    route = [start]
    for hop in range(1, num_hops + 1):
        route.append(roaming.next_client(seed, hop, links(graph, route[-1])))
    return tuple(route)


def rebuild_token(representations):
    """Z = sum_k h_k in the given order."""
    return al.aggregate(dict(enumerate(representations)))


def merge_cluster_tokens(z, tokens):
    """Z0 + sum (Z_gamma - Z0): the synced Z for one token per cluster on the same rows."""
    return z + sum(token - z for token in tokens)


def average_tokens(tokens):
    """The mean of the tokens' Z: the synced Z of overlapping tokens, if h is linear."""
    return sum(tokens) / len(tokens)


def block_step(problem, blocks):
    """1 / max_k L_block."""
    return 1.0 / max(ob.smoothness(problem, [x]) for x in blocks)


def parallel_step(problem, blocks, num_stale_steps):
    """min(1/L_block, 1/(L x stale steps))."""
    return min(block_step(problem, blocks), 1.0 / (ob.smoothness(problem, blocks) * num_stale_steps))


# --- Section 4.1: representation r and token z over client-server (cs) and client-client (cc) links ---


def svfl_round_cost(r_cs, z_cs, num_clients):
    """K r_cs + K z_cs."""
    return num_clients * (r_cs + z_cs)


def mtcd_round_cost(r_cs, z_cs, z_cc, num_clients, num_tokens, num_hops):
    """K r_cs + Gamma (z_cs + S z_cc)."""
    return num_clients * r_cs + num_tokens * (z_cs + num_hops * z_cc)


def zeros(blocks):
    """theta = 0."""
    return [np.zeros(x.shape[1]) for x in blocks]
