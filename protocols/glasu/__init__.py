"""GLASU: graph neural networks over vertically distributed graphs, with lazy aggregation and stale updates.

Paper: "GLASU: A Communication-Efficient Algorithm for Federated Learning with Vertically Distributed Graph Data".

Cast. M graph clients, each with its own edges, its own block of node features and the training labels; one
aggregation server without parameters. Everyone knows the same nodes.

One round (I = aggregation layers, Q = number of local updates)::

    client 1 .. M                                       server
    sample own neighbours, top level down -- index set -->
                                          <-- union ----  at each output level of an aggregation layer  (Algorithm 2)
    layers up to the next l in I          -- H_m^+[l] -->
                                          <-- H[l+1] ---  Agg: average or concatenation                 (Algorithm 3)
    (mode joint)  gradient of H[l+1]      -- g_m ------->
                                          <-- dH_m^+ ---  sum, share of client m
    Q local steps with the other clients' representations frozen, nothing sent                          (Algorithm 4)

Who waits for whom: the server waits for all clients at every exchange; a client waits for the server only there.

| file | what |
|---|---|
| config.py, plugin.py, data.py | one run's settings and the special cases; the plugin; named graphs and own files |
| run.py | Algorithm 1: rounds, evaluation, selection, checkpoints |
| messages.py | everything that leaves a party |
| actors.py, servers.py, baselines/alone.py | the clients, the server, and what stands there without one |
| steps.py | what a client computes in a round |
| graphs.py | a client's share of a graph, its checks, and the shares of each special case |
| sampling.py | adjacency, neighbour sampling and the blocks that a layer works on (Algorithm 2) |
| backbones.py | GCN, GAT and GCNII layers, their parameters |
| algorithm.py | Extract, joint inference (Algorithm 3), local updates (Algorithm 4), joint gradients |
| aggregation.py | Agg and its backward pass, on numpy arrays |
| noise.py, costs.py, serving.py | account of noised releases; cost model; predictions and export |
"""
