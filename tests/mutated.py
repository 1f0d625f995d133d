"""Which tests must notice a change of which file, for `python -m tests.mutants --table FILE`: the only list of them.

A file that is not there is left out and named, so that files of another layout may stand beside those of this one.
"""

from __future__ import annotations

TESTS: dict[str, tuple[str, ...]] = {
    "protocols/glasu/algorithm.py": ("tests/protocols/glasu/test_algorithm.py",),
    "protocols/horizontal/algorithm.py": (
        "tests/protocols/horizontal/test_algorithm.py",
        "tests/protocols/horizontal/test_oracle.py",
    ),
    "protocols/mtcd/algorithm.py": ("tests/protocols/mtcd/test_algorithm.py",),
    "protocols/mtcd/objective.py": ("tests/protocols/mtcd/test_objective.py",),
    "protocols/nebulafl/algorithm.py": ("tests/protocols/nebulafl/test_algorithm.py",),
    "protocols/pubsub_vfl/algorithm.py": ("tests/protocols/pubsub_vfl/test_algorithm.py",),
    "protocols/tablepuppet/algorithm.py": ("tests/protocols/tablepuppet/test_algorithm.py",),
    "protocols/tablepuppet/local_solvers.py": ("tests/protocols/tablepuppet/test_local_solvers.py",),
    "fedactors/runtime/rounds.py": ("tests/runtime/test_rounds.py",),
    "fedactors/messages/ledger.py": ("tests/messages/test_ledger.py",),
    "fedactors/network/links.py": ("tests/network/test_links.py",),
    "fedactors/messages/fields.py": ("tests/messages/test_fields.py",),
    "protocols/mtcd/roaming.py": ("tests/protocols/mtcd/test_roaming.py",),
    "protocols/nebulafl/staleness.py": ("tests/protocols/nebulafl/test_staleness.py",),
    "protocols/nebulafl/scheduler.py": ("tests/protocols/nebulafl/test_scheduler.py",),
    "protocols/pubsub_vfl/broker.py": (
        "tests/protocols/pubsub_vfl/test_broker.py",
        "tests/protocols/pubsub_vfl/test_pipeline.py",
    ),
    "fedactors/privacy/accounting.py": (
        "tests/privacy/test_accounting.py",
        "tests/privacy/test_claims.py",
        "tests/privacy/test_releases.py",
        "tests/privacy/test_overlapping_sums.py",
    ),
    "fedactors/auditing/audit.py": ("tests/auditing/test_audit.py",),
    "fedactors/privacy/noise.py": (
        "tests/privacy/test_laplace.py",
        "tests/secure_sums/test_protocol.py",
        "tests/privacy/test_noise.py",
    ),
    "fedactors/learning/local_training.py": (
        "tests/learning/test_dp_sgd.py",
        "tests/learning/test_local_training.py",
    ),
    "fedactors/secure_sums/primitives.py": ("tests/secure_sums/test_protocol.py",),
    "fedactors/privacy/mechanisms.py": ("tests/privacy/test_mechanisms.py", "tests/privacy/test_standardisation.py"),
    "fedactors/auditing/replay.py": ("tests/auditing/test_replay.py",),
    "fedactors/secure_sums/protocol.py": (
        "tests/secure_sums/test_protocol.py",
        "tests/privacy/test_overlapping_sums.py",
    ),
    "fedactors/secure_sums/messages.py": (
        "tests/secure_sums/test_protocol.py",
        "tests/protocols/horizontal/test_lying_server.py",
    ),
    "fedactors/secure_sums/actors.py": ("tests/protocols/horizontal/test_secure_sums.py",),
    "fedactors/runtime/calls.py": ("tests/runtime/test_calls.py", "tests/runtime/test_endpoints.py"),
    "fedactors/runtime/simulation/network.py": (
        "tests/runtime/simulation/test_runtime.py",
        "tests/runtime/test_endpoints.py",
    ),
    "fedactors/actors/remote.py": ("tests/actors/test_remote.py",),
}
