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

Who waits for whom: the driver for the server (or for the clients that work alone), the server for all clients at
every exchange; a client waits for the server only there.
"""
