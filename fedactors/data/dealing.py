"""A named data set dealt to clients by its labels, as a configuration says it."""

from __future__ import annotations

from fedactors.data.catalogue import describe
from fedactors.data.horizontal import HorizontalData, horizontal
from fedactors.data.partitioners import DirichletPartitioner, IidPartitioner, RowPartitioner
from fedactors.errors import BadInput


def deal(
    dataset: str,
    num_clients: int,
    *,
    dirichlet: float | None,
    num_training: int | None = None,
    num_validation: int = 0,
    num_public: int = 0,
    seed: int = 0,
    public_field: str = "num_public",
) -> HorizontalData:
    """Deal a named data set to clients by its labels, as a configuration says it.

    Args:
        dataset: its name.
        num_clients: partitions.
        dirichlet: concentration of the label distribution of a client; None: equal random shares.
        num_training: rows dealt; None: all that are not held out.
        num_validation: rows held out to measure on instead of the test rows.
        num_public: rows held out that everybody may see.
        seed: of the partition.
        public_field: what the configuration calls `num_public`.

    Raises:
        BadInput: names the setting, its value and what is allowed.
    """
    described = describe(dataset)
    held = num_public + num_validation
    rows = described.rows if described.kind == "images" else described.rows - round(0.3 * described.rows)
    if held >= rows:
        fields = f"{public_field} + num_validation" if num_public else "num_validation"
        raise BadInput(f"{fields}: {held} is not allowed: {dataset} has {rows} training rows")
    if num_training is not None and num_training > rows - held:
        raise BadInput(f"num_training: {num_training} is not allowed: {dataset} has {rows - held} to deal")
    partitioner: RowPartitioner = IidPartitioner(num_partitions=num_clients, seed=seed)
    if dirichlet is not None:
        partitioner = DirichletPartitioner(num_partitions=num_clients, alpha=dirichlet, seed=seed)
    return horizontal(
        dataset,
        partitioner,
        public_size=num_public,
        validation_size=num_validation,
        num_training=num_training,
        seed=seed,
    )
