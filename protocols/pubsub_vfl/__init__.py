"""PubSub-VFL: split learning between organisations over publish/subscribe channels and parameter servers.

Paper: Liu et al., "PubSub-VFL: Towards Efficient Two-Party Split Learning in Heterogeneous Environments via
Publisher/Subscriber Architecture" (2025).

Cast: the active party (labels, a bottom and the top model), one or more passive parties (a bottom model each); every
party has workers (data-parallel replicas) and a parameter server; one broker carries batch ids and references.

    passive worker ──embedding ref──▶ broker ──claim: refs of all parties──▶ active worker
         ▲   ╲                          │ ▲                                      │
         │    ╲══════ embedding ════════│═│══════════════════════════════════▶  │ bottom, top, loss
         │                              ▼ │                                      ▼
         └──assignment, gradient ref── broker ◀──gradient refs── active worker ══ gradient ══▶ passive worker

    (single lines: small messages through the broker; double lines: payloads, fetched from their owner)

Who waits for whom: an active worker waits for a batch whose embeddings are all there; a passive worker waits for a
gradient, or for room under `max_in_flight`; nobody waits longer than the deadline, after which the batch is abandoned
and given to any free workers. At the end of certain epochs the workers of a party wait for their parameter server.
"""
