"""Compression and differential privacy, which the paper leaves to future work: bytes to a gap, accuracy by epsilon.

Compression: ridge on the path as in Figure 5, SVFL and 8 tokens at the steps that `semi_decentralised.py` has for 1e-2;
quantised representations and tokens, or the largest entries of representations, with error feedback. Privacy: noise on
clipped representations and visits on breast-cancer, 3 clients, 20 rounds of 5 local steps on 64 rows; the budget is
that of one row at one party over the whole run. Noise is reproducible here, which protects nothing.

    python scenarios/paper/mtcd/message_compression.py
"""

from __future__ import annotations

from typing import Any

from _study import MtcdStudy
from semi_decentralised import COARSE, COMMON, settings_of

TRANSFORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    **{f"quantise-{bits:02}": {"compression": "quantise", "quantise_bits": bits} for bits in (2, 4, 8, 12, 16)},
    **{f"top-{share:g}": {"compression": "top-k", "compression_ratio": share} for share in (0.1, 0.25, 0.5)},
}
PRIVATE: dict[str, Any] = {
    **{"problem": "sparse-logistic", "num_clients": 3, "num_local_steps": 5, "num_rounds": 20, "topology": "complete"},
    **{"relaxed_protocol": True, "batch_size": 64},
}
METHODS: dict[str, dict[str, Any]] = {"svfl": {"algorithm": "svfl"}, "mtcd": {"num_tokens": 1, "num_hops": 2}}
STEPS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
MULTIPLIERS = (1.0, 4.0, 16.0, 64.0)
TUNING_SEED = 5


def main() -> None:
    """Run both methods with every transform and every noise, each noise at the best of its steps."""
    study = MtcdStudy.of(__doc__)
    few = 2 if study.smoke else None
    rows: dict[str, dict[str, Any]] = {}
    for name in ("svfl", "mtcd-8-sweep"):
        where = {"num_clients": 40, "topology": "path", "num_rounds": 150, "target_gap": 1e-3}
        settings = {**COMMON, **settings_of(40)[name], **where, "learning_rate": COARSE[name]}
        rows |= {f"{name}-{key}": {**settings, **transform} for key, transform in TRANSFORMS.items()}
    study.record("compression", rows)
    for name, method in METHODS.items():
        for multiplier in (0.0, *MULTIPLIERS)[:few]:
            noise = {"noise": "gaussian", "noise_multiplier": multiplier} if multiplier else {}
            key, given = f"{name}-noise-{multiplier:04.1f}", {**PRIVATE, **method, **noise}
            tried = {f"{key}-{step:g}": {**given, "learning_rate": step} for step in STEPS[:few]}
            how: dict[str, Any] = {"data": "breast-cancer", "reproducible_noise": True}
            study.record("privacy-steps", tried, seeds=(TUNING_SEED,), **how)
            step = study.best("privacy-steps", tried, "test/loss", STEPS[0])
            study.record("privacy", {key: {**given, "learning_rate": step}}, states_budget=True, **how)


if __name__ == "__main__":
    main()
