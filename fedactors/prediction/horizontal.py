"""Predictions of one model on the rows of many organisations: each predicts its own, and keeps what it predicts.

    site ──give_model──▶ whoever kept the model of the run (a server; every center its own, whose mean it is)
    site: its own new rows, its own file of predictions ──▶ how many rows, to the driver

With a named data set the rows are those that belong to nobody, which the models' keeper predicts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedactors.data.horizontal import HorizontalData, HorizontalFile, NewBlock, Rows
from fedactors.data.predictions import Listing, Predicted, PredictOrder
from fedactors.data.preprocessing import Preprocessing
from fedactors.data.reading import Reading, check_names, read_reading
from fedactors.errors import BadInput
from fedactors.learning.averaging import weighted_mean
from fedactors.learning.losses import Task
from fedactors.learning.model_parts import Part, TrainedModel, contribution, probabilities
from fedactors.network.codec import message
from fedactors.prediction.engine import COSTS, Application, Outcomes, ask_writers
from fedactors.remote import CLIENT, DRIVER, remote
from fedactors.roles import Client, Server
from fedactors.runtime.base import Runtime, Work
from fedactors.serving import ActorState, StoredState


@message(
    reveals="a trained model: the server's, or of each center its own, which no site sees in training and tells more "
    "of that center's rows than the mean that is predicted with"
)
class WholeModel:
    """Its flat parameters (P, none where there is no model), the shape of a sample, the task and the number of classes.

    `reading` says how rows are read (`fedactors.data.reading.Reading.text`): columns and classes, which every site has
    had from the start, and of CSV files how the asking party's own was written.
    """

    parameters: NDArray[np.floating[Any]]
    inputs: tuple[int, ...]
    task: str
    num_classes: int
    reading: str


class ModelKeeper(Server):
    """Whoever has the trained model, or a copy of it.

    Args:
        config: of the run that trained.
        stored: its state in the run's checkpoint.
    """

    def __init__(self, config: Any, stored: StoredState) -> None:
        self.config = config
        self._stored = stored

    def make_part(self, state: ActorState) -> Part | None:
        """Return the model as a part, None where there is none; a protocol says how."""
        raise TypeError(f"{type(self).__name__} does not say what its model is")

    async def load(self) -> None:
        """Build the own model; how rows are read not everybody keeps that has one."""
        state = self._stored.read()
        self.part = self.make_part(state)
        self._reading = read_reading(state["reading"]) if "reading" in state else Reading()

    @remote(caller=CLIENT)
    async def give_model(self) -> WholeModel:
        """Return the model."""
        reading = self._reading.for_party(self.caller.partition("/")[0]).text
        if self.part is None:
            return WholeModel(np.zeros(0, np.float32), (), "", 0, reading)
        model = self.part.models["bottom"]
        return WholeModel(model.vector, model.spec.inputs, self.part.task, self.part.num_classes, reading)


class PredictingSite(Client):
    """An organisation with rows of its own.

    Args:
        config: of the run that trained.
        rows: where its rows are.
        keepers: actors that may have the model.
    """

    def __init__(self, config: Any, rows: Rows, keepers: Sequence[str]) -> None:
        self.config = config
        self._rows = rows
        self._keepers = tuple(keepers)

    def make_model(self, found: WholeModel) -> TrainedModel:
        """Return the model; a protocol says what it is."""
        raise TypeError(f"{type(self).__name__} does not say what the model is")

    @remote(caller=DRIVER)
    async def predict(self, order: PredictOrder) -> Predicted:
        """Ask for the model, predict the own rows, and write the file."""
        found = await asyncio.gather(*(self.peer(name, ModelKeeper).give_model() for name in self._keepers))
        kept = [one for one in found if len(one.parameters)]
        if not kept:
            raise BadInput("the checkpoint holds no model")
        reading = _merged({n: read_reading(one.reading) for n, one in zip(self._keepers, found, strict=True)})
        part = self._part(kept, reading)
        new, model = self._load(reading), part.models["bottom"]
        shape = new.features.shape[1:]
        if shape != model.spec.inputs:
            raise BadInput(
                f"data: samples of shape {shape} are not allowed: the model was trained on {model.spec.inputs}"
            )
        work = Work("predict", float(len(new.features) * model.vector.size))
        output_NO = await self.compute(contribution, part, new.features, work=work)
        return Listing.of_ids(new.ids, new.unusable).write(
            self.output(order.to),
            np.arange(len(new.ids)),
            probabilities(part, output_NO),
            part.class_names,
            is_regression=part.task == "regression",
        )

    def _part(self, kept: Sequence[WholeModel], reading: Reading) -> Part:
        """Return the model, of several their mean, as a part."""
        first, parameters = kept[0], kept[0].parameters
        if len(kept) > 1:
            mean = weighted_mean([one.parameters for one in kept], [1.0] * len(kept))
            parameters = mean.astype(parameters.dtype)
        model = self.make_model(replace(first, parameters=parameters))
        return site_part(self.party, model, cast(Task, first.task), first.num_classes, reading)

    def _load(self, reading: Reading) -> NewBlock:
        """Load the own rows, read as those were that were trained on."""
        rows = self._rows
        given = rows.classes if isinstance(rows, HorizontalFile) else ()
        if given and reading.classes and set(given) != set(reading.classes):
            raise BadInput(
                f"task.classes: {', '.join(given)} is not allowed: the model was trained on "
                f"{', '.join(reading.classes)}"
            )
        return rows.load_new(reading.columns, reading.pictures, reading.csv.get(self.party))


def _merged(readings: Mapping[str, Reading]) -> Reading:
    """Return what the keepers of a model know together of how rows are read.

    Raises:
        BadInput: they trained on different columns.
    """
    check_names({name: one.names for name, one in readings.items()})
    found = readings.values()
    columns = next((one.columns for one in found if one.columns), ())
    classes = next((one.classes for one in found if one.classes), ())
    pictures = next((one.pictures for one in found if one.pictures), None)
    csv = {name: how for one in found for name, how in one.csv.items()}
    return Reading(columns=columns, classes=classes, pictures=pictures, csv=csv)


def site_part(
    party: str,
    model: TrainedModel,
    task: Task,
    num_classes: int,
    reading: Reading,
    protocol: str = "",
) -> Part:
    """Return a whole model as a part: from samples as they are to outputs, or from a table's columns."""
    columns, csv = reading.columns, reading.common_csv
    return Part(
        protocol=protocol,
        party=party,
        task=task,
        num_classes=num_classes,
        class_names=reading.classes,
        parties=(party,),
        models={"bottom": model},
        preprocessing=Preprocessing.unmeasured(columns, csv) if columns else None,
    )


async def predict_sites(
    data: HorizontalData,
    runtime: Runtime,
    asked: Application,
    *,
    config: Any,
    site: type[PredictingSite],
    keepers: Mapping[str, type[ModelKeeper]],
) -> Outcomes:
    """Predict the rows of each organisation that has a file, or of a named data set those that belong to nobody.

    Args:
        data: the rows.
        runtime: where the actors run.
        asked: the trained states, and where the predictions go; of several sites each has its name in the file's.
        config: of the run.
        site: the class of the sites' actors.
        keepers: actors of the run that may have the model, with their classes.
    """
    runtime.use_costs(COSTS)
    for name, cls in keepers.items():
        runtime.spawn(cls, name, config, asked.state_of(name))
    rows: dict[str, Rows] = dict(zip(data.parties, data.files, strict=True))
    rows = rows or {next(iter(keepers)).partition("/")[0]: data.test()}
    sites = {
        name: runtime.spawn(site, f"{name}/predictions", config, own, tuple(keepers)) for name, own in rows.items()
    }
    await runtime.start()
    return await ask_writers(runtime, {name: one.predict for name, one in sites.items()}, asked.to)
