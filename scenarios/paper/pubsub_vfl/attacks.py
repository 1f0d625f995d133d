"""Attacks on what PubSub-VFL sends, against the noise on it (Figure 5 and Appendix G).

Inversion: a decoder trained on a shadow set (the test rows with their released embeddings) maps the training rows'
embeddings back to the passive party's features; success is the share of features within half a standard deviation,
beside that of guessing each feature's median. Label inference: the passive party scores rows by the gradients it
receives (norm, direction of one known positive). Both accounts of the budget are printed beside. Noise is reproducible
here, which is no guarantee.
Reduced: bank, 3 epochs, 2,000 attacked rows; ``--paper`` trains 50 epochs and attacks all rows.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from _study import Point, flags, perform_with_states

from fedactors.actors.context import derived_seed
from fedactors.auditing import attacks
from fedactors.auditing import attacks as inversion
from fedactors.config import build, parse_words
from fedactors.data.new_rows import actor_state
from fedactors.data.party_rows import prepare, split
from fedactors.learning.metrics import auc
from fedactors.learning.network import Model, on_host
from fedactors.learning.split_learning import loss_gradients
from fedactors.privacy.mechanisms import clip_and_noise

sys.path.insert(0, str(Path(__file__).parents[3]))

from fedactors.protocols.pubsub_vfl import algorithm
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.data import load_data
from scenarios.paper.study import Study

MUS = (math.inf, 0.1, 1.0, 10.0, 0.5, 2.0, 4.0, 8.0)
GRADIENT_MUS = (10.0, 1000.0)
TOLERANCE = 0.5


def attack(point: Point, states: dict[str, bytes], account: dict[str, Any], num_attacked: int | None) -> dict[str, Any]:
    """Mount all attacks on the models of a finished run."""
    config = build(PubSubVflConfig, dict(point.settings))
    data = load_data(config, point.data, 0)
    seed = derived_seed(0, "all parties", "batches")
    rng = np.random.default_rng(1)
    parts, embeddings, vectors = {}, {}, {}
    for party in data.parties:
        block = data.load(party)
        shares = split(len(block.ids), seed=seed)
        parts[party] = prepare(block, np.arange(len(block.ids)), shares, data.task)
        networks = actor_state(states, f"{party}/worker-0")["replica"]["networks"]
        vectors[party] = [np.asarray(network["vector"]) for network in networks]
        spec = algorithm.bottom_spec(config, parts[party].train.features.shape[1])
        embeddings[party] = {
            name: algorithm.embed_rows(Model(spec, vectors[party][0]), getattr(parts[party], name).features)
            for name in ("train", "test")
        }
    target, shadow = parts["passive"].train.features[:num_attacked], parts["passive"].test.features
    sigma, clip = account["passive"]["Embedding"]["noise_scale"], config.clip_norm
    released = {
        name: clip_and_noise(values, clip, sigma, rng).astype(np.float32) if sigma else values
        for name, values in embeddings["passive"].items()
    }
    decode = inversion.train_decoder(released["test"], shadow, seed=0, num_epochs=50 if num_attacked is None else 6)
    guess = decode(released["train"][:num_attacked])
    found = {
        "inversion_success": inversion.success_rate(target, guess, TOLERANCE),
        "guess_success": inversion.baseline_success_rate(target, shadow, TOLERANCE),
        "inversion_auc": inversion.binary_feature_auc(target, guess),
    }
    labels = parts["active"].train.labels
    assert labels is not None
    labels = labels[:2000]
    fused = [embeddings["active"]["train"][:2000], released["train"][:2000]]
    gradient = loss_gradients(Model(algorithm.top_spec(config, data), vectors["active"][1]), fused, labels, data.task)
    sent = on_host(gradient.embedding_gradients[1]) * len(labels)
    noise = account["active"]["Gradient"]["noise_scale"]
    if noise:
        sent = clip_and_noise(sent, config.gradient_clip_norm, noise, rng)
    found["label_auc_norm"] = auc(labels, attacks.norm_scores(sent))
    found["label_auc_direction"] = auc(labels, attacks.direction_scores(sent, int(np.argmax(labels))))
    return found


def points(data: str, num_epochs: int) -> list[Point]:
    """Return one run per budget of the embeddings, then of the gradients."""
    settings = {"num_epochs": num_epochs, "num_layers": 4, "batch_size": 256, "embedding_size": 32}
    chosen = [(f"mu-{mu:05.1f}" if math.isfinite(mu) else "mu-inf", {"privacy_mu": mu}) for mu in MUS]
    chosen += [(f"mu-inf-gradient-mu-{mu:06.1f}", {"gradient_mu": mu}) for mu in GRADIENT_MUS]
    return [
        Point(name=name, data=data, settings={**settings, **more}, reproducible_noise=True) for name, more in chosen
    ]


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument("--data", default="bank", help="data set of a binary task")
    given = parser.parse_args(namespace=Study())
    size = (given.data, 50 if given.paper else 3)
    for point in points(*(("breast-cancer", 1) if given.smoke else size))[: 2 if given.smoke else None]:
        study = f"attacks-{given.data}"
        if not given.wants(point.name) or not given.lacks(study, point.name):
            continue
        point = dataclasses.replace(point, settings={**point.settings, **parse_words(given.words)})
        row, states = perform_with_states(point)
        account = row.extra["privacy"]
        found = attack(point, states, account, None if given.paper else 2000)
        party, released = ("active", "Gradient") if "gradient" in point.name else ("passive", "Embedding")
        budget = account[party][released]
        metrics = {
            **row.metrics,
            **found,
            "nominal_mu": budget["nominal_mu"] or "none",
            "rigorous_mu": "none" if budget["rigorous_mu"] is None else budget["rigorous_mu"],
            "epsilon": "none" if budget["epsilon"] is None else budget["epsilon"],
        }
        given.put(study, point.name, [dataclasses.replace(row, metrics=metrics)])


if __name__ == "__main__":
    main()
