"""What error feedback at the cut would gain over rounding at random: a prototype in one process.

    python scenarios/paper/pubsub_vfl/error_feedback.py

Split learning of two parties, batch after batch, one worker each; the values of the cut (embeddings and gradients) are
rounded at random to so many bits (`algorithm.compress`), as PubSub-VFL sends them. "Fed back": what was rounded off
a row's value is kept (rows x d values a direction) and added to the next value of the same row, an epoch later.
Validation AUC after each of five epochs of 256 rows a batch, at the default learning rate; Adam.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np

from fedactors.actors.context import derived_seed
from fedactors.config import as_dict, build
from fedactors.data.party_rows import prepare, split
from fedactors.learning.metrics import task_metrics
from fedactors.learning.optimizers import Network
from fedactors.learning.split_learning import Publication, active_gradients, joint_output
from fedactors.messages.compression import decode
from fedactors.runs.table import RunRow

sys.path.insert(0, str(Path(__file__).parents[3]))

from fedactors.protocols.pubsub_vfl import algorithm
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.data import batches, load_data
from fedactors.protocols.pubsub_vfl.plugin import PROTOCOL, PUBLISHED
from scenarios.paper.study import Study, study_flags

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
BITS = (2, 4, 8)
EPOCHS = 5


@dataclasses.dataclass(frozen=True)
class Point:
    """A set, the bits of a value (0: as it is), and whether what was rounded off is sent later."""

    data: str
    bits: int
    fed_back: bool
    epochs: int = EPOCHS


class Cut:
    """One direction of the cut: rounds the values of rows, and keeps what it rounded off."""

    def __init__(self, point: Point, num_rows: int, width: int) -> None:
        self._point = point
        self._residual = np.zeros((num_rows, width), np.float32)

    def send(self, values_BE: np.ndarray, rows: np.ndarray, seed: int) -> np.ndarray:
        """Return the values of these rows as they arrive."""
        if not self._point.bits:
            return values_BE
        wanted = values_BE + self._residual[rows] if self._point.fed_back else values_BE
        arrived = decode(algorithm.compress(wanted, self._point.bits, seed))
        if self._point.fed_back:
            self._residual[rows] = wanted - arrived
        return arrived


def train(point: Point, seed: int) -> RunRow:
    """Train; the row has the validation AUC after the last epoch and that of the best one."""
    config = build(PubSubVflConfig, {**PUBLISHED, "num_epochs": point.epochs, "algorithm": "vfl"})
    data = load_data(config, point.data, seed)
    run_seed = derived_seed(seed, "all parties", "batches")
    networks, parts = {}, {}
    for party in data.parties:
        block = data.load(party)
        shown = split(
            len(block.ids),
            seed=run_seed,
            test_fraction=config.test_fraction,
            validation_fraction=config.validation_fraction,
        )
        parts[party] = prepare(block, np.arange(len(block.ids)), shown, data.task)
        spec = algorithm.bottom_spec(config, block.features.shape[1])
        networks[party] = Network(spec, config.step_rule, derived_seed(seed, party, "bottom"))
    top = Network(algorithm.top_spec(config, data), config.step_rule, derived_seed(seed, data.label_party, "top"))
    local, other = data.label_party, data.passive_parties[0]
    labels = parts[local].train.labels
    assert labels is not None
    up, down = (Cut(point, len(labels), config.embedding_size) for _ in range(2))
    curve: list[float] = []
    for epoch in range(1, point.epochs + 1):
        for number, rows in enumerate(batches(len(labels), config.batch_size, run_seed, epoch)):
            name = f"rounding {epoch} {number}"
            publication = Publication(networks[other].model, parts[other].train.features[rows])
            received = up.send(publication.embed(), rows, derived_seed(seed, other, name))
            found = active_gradients(
                networks[local].model,
                top.model,
                data.task,
                parts[local].train.features[rows],
                [received],
                labels[rows],
            )
            gradient = down.send(found.embeddings[0], rows, derived_seed(seed, local, name))
            networks[local].apply(found.bottom)
            top.apply(found.top)
            networks[other].apply(publication.gradient(gradient))
        held = [networks[p].model.output(parts[p].validation.features) for p in (local, other)]
        target = parts[local].validation.labels
        assert target is not None
        curve.append(float(task_metrics(data.task, target, joint_output(top.model, held))["auc"]))
    return RunRow(
        protocol=PROTOCOL.name,
        seed=seed,
        data=point.data,
        config=as_dict(config),
        metrics={"last_auc": curve[-1], "best_auc": max(curve)},
        curve={"auc": curve},
        extra={"bits": point.bits, "fed_back": point.fed_back},
    )


def main() -> None:
    given: Study = study_flags(__doc__, "pubsub_vfl", RESULTS, seeds=(0, 1, 2)).parse_args(namespace=Study())
    for data in ("bank", "credit"):
        epochs = 1 if given.smoke else EPOCHS
        made = {f"{data}-exact": Point(data, 0, fed_back=False, epochs=epochs)}
        for bits in BITS:
            made |= {f"{data}-{bits}-bits": Point(data, bits, fed_back=False, epochs=epochs)}
            made |= {f"{data}-{bits}-bits-fed-back": Point(data, bits, fed_back=True, epochs=epochs)}
        if given.smoke:
            made = {name: dataclasses.replace(point, data="breast-cancer") for name, point in made.items()}
        given.measure("error-feedback", made, train)


if __name__ == "__main__":
    main()
