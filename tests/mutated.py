"""Which tests must notice a change of which file, for `python -m tests.mutants --table FILE`: the only list of them.

A file that is not there is left out and named, so that files of another layout may stand beside those of this one.
"""

from __future__ import annotations

SECURE = ("tests/privacy/test_secure_aggregation.py",)
TESTS: dict[str, tuple[str, ...]] = {
    # mathematics
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
    "protocols/tablepuppet/models.py": ("tests/protocols/tablepuppet/test_models.py",),
    # state machines
    "fedactors/rounds.py": ("tests/test_rounds.py",),
    "fedactors/network/ledger.py": ("tests/network/test_ledger.py",),
    "fedactors/network/links.py": ("tests/network/test_links.py",),
    "fedactors/network/fields.py": ("tests/network/test_fields.py",),
    "protocols/mtcd/roaming.py": ("tests/protocols/mtcd/test_roaming.py",),
    "protocols/nebulafl/planets.py": ("tests/protocols/nebulafl/test_planets.py",),
    "protocols/nebulafl/scheduler.py": ("tests/protocols/nebulafl/test_scheduler.py",),
    "protocols/pubsub_vfl/broker.py": ("tests/protocols/pubsub_vfl/test_broker.py",),
    "protocols/pubsub_vfl/pipeline.py": ("tests/protocols/pubsub_vfl/test_pipeline.py",),
    # privacy
    "fedactors/privacy/accounting.py": ("tests/privacy/test_accounting.py",),
    "fedactors/privacy/audit.py": ("tests/privacy/test_audit.py",),
    "fedactors/privacy/claims.py": ("tests/privacy/test_claims.py",),
    "fedactors/privacy/discrete_gaussian.py": ("tests/privacy/test_laplace.py", *SECURE),
    "fedactors/privacy/dpsgd.py": ("tests/privacy/test_dpsgd.py",),
    "fedactors/privacy/fixed_point.py": SECURE,
    "fedactors/privacy/laws.py": ("tests/privacy/test_laws.py", "tests/privacy/test_laplace.py"),
    "fedactors/privacy/mechanisms.py": ("tests/privacy/test_mechanisms.py",),
    "fedactors/privacy/neighbours.py": SECURE,
    "fedactors/privacy/releases.py": ("tests/privacy/test_releases.py", "tests/privacy/test_overlapping_sums.py"),
    "fedactors/privacy/replay.py": ("tests/privacy/test_replay.py",),
    "fedactors/privacy/secret_sharing.py": SECURE,
    "fedactors/privacy/secure_aggregation.py": (*SECURE, "tests/privacy/test_overlapping_sums.py"),
    "fedactors/privacy/secure_sessions.py": (*SECURE, "tests/protocols/horizontal/test_lying_server.py"),
    "fedactors/privacy/secure_sums.py": ("tests/protocols/horizontal/test_secure_sums.py",),
    "fedactors/privacy/standardisation.py": ("tests/privacy/test_standardisation.py",),
    # the path of a call
    "fedactors/runtime/calls.py": ("tests/test_remote.py", "tests/runtime/test_doors.py"),
    "fedactors/runtime/simulation/wire.py": ("tests/runtime/test_simulated.py", "tests/runtime/test_doors.py"),
    "fedactors/remote.py": ("tests/test_remote.py",),
}
