"""MTCD: multi-token coordinate descent for semi-decentralised vertical federated learning.

Paper: Valdeira, Xavier, Soares, Chi, "A Multi-Token Coordinate Descent Method for Semi-Decentralized Vertical
Federated Learning". Each client holds other features of the same samples; all know the labels (relaxed protocol).
A token carries Z, the sum of all clients' representations, so its holder can improve its own block alone.

Cast: the server gathers representations, builds Z, starts tokens, trains theta_0 (token 0) and syncs. A client holds
X_k and theta_k, works on visiting tokens and passes them on along the edges of a graph.

    server                       cluster 1: client 0 -- client 1 -- client 2      cluster 2: client 3 -- client 4
      | <------- h_k ---------------- every client (those whose block changed, with the full batch)
      | Z = sum h_k
      | -- token 1 {Z, theta_0} --> start client --hop--> client --hop--> ...  S hops, Q local steps at each visit
      | -- token 2 {Z, theta_0} ----------------------------------------------> start client --hop--> ...
      | token 0: Q (S + 1) steps on theta_0
      | <------ roaming done -------- last holders
      | sync_tokens ----------------> every client: theta_k = sum_gamma w theta_k^gamma

| waits | for |
|---|---|
| server | all representations of the round, then the end of every token's roaming |
| client | a token, or the word to sync; tokens at one client use separate copies of theta_k |

One token and no server is STCD; no edges is SVFL (FedBCD-parallel). The fully decentralised baseline is DCPA.
"""
