"""Predictions of one model on the rows of many organisations: each predicts its own, and keeps what it predicts.

    site ──give_model──▶ whoever kept the model of the run (a server; every center its own, whose mean it is)
    site: its own new rows, its own file of predictions ──▶ how many rows, to the driver

With a named data set the rows are those that belong to nobody, which the models' keeper predicts.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.data.horizontal import HorizontalData, HorizontalFile, NewBlock, Rows
from fedactors.data.predictions import write_predictions
from fedactors.data.preprocessing import Preprocessing, columns_of, columns_text
from fedactors.errors import BadInput
from fedactors.learning.averaging import weighted_mean
from fedactors.learning.losses import Task
from fedactors.learning.model_parts import Part, TrainedModel, contribution, probabilities
from fedactors.network.codec import message
from fedactors.prediction.vertical import COSTS, Application, Outcome, Outcomes, Predicted, PredictOrder, files_of
from fedactors.remote import CLIENT, DRIVER, remote
from fedactors.roles import Client, Server
from fedactors.runtime.base import Runtime, Work
from fedactors.serving import ActorState, StoredState

_LONGEST = 86_400.0


@message(
    reveals="a trained model: the server's, or of each center its own, which no site sees in training and tells more "
    "of that center's rows than the mean that is predicted with"
)
class WholeModel:
    """Its flat parameters (P, none where there is no model), the shape of a sample, and the number of classes.

    Where rules say what columns mean, `columns` are these, which every site has had from the start.
    """

    parameters: NDArray[np.floating[Any]]
    inputs: tuple[int, ...]
    num_classes: int
    columns: str = ""


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
        """Build the own model."""
        self.part = self.make_part(self._stored.read())

    @remote(caller=CLIENT)
    async def give_model(self) -> WholeModel:
        """Return the model."""
        if self.part is None:
            return WholeModel(np.zeros(0, np.float32), (), 0)
        model = self.part.models["bottom"]
        known = () if self.part.preprocessing is None else self.part.preprocessing.columns
        return WholeModel(model.vector, model.spec.inputs, self.part.num_classes, columns_text(known))


class PredictingSite(Client):
    """An organisation with rows of its own.

    Args:
        config: of the run that trained.
        rows: where its rows are.
        task: of the data.
        class_names: in the order of the outputs.
        keepers: actors that may have the model.
    """

    def __init__(self, config: Any, rows: Rows, task: Task, class_names: Sequence[str], keepers: Sequence[str]) -> None:
        self.config = config
        self._rows = rows
        self._task = task
        self._class_names = tuple(class_names)
        self._keepers = tuple(keepers)

    def make_model(self, found: WholeModel, task: Task) -> TrainedModel:
        """Return the model; a protocol says what it is."""
        raise TypeError(f"{type(self).__name__} does not say what the model is")

    @remote(caller=DRIVER)
    async def predict(self, order: PredictOrder) -> Predicted:
        """Ask for the model, predict the own rows, and write the file."""
        found = await asyncio.gather(*(self.peer(name, ModelKeeper).give_model() for name in self._keepers))
        kept = [one for one in found if len(one.parameters)]
        if not kept:
            raise BadInput("the checkpoint holds no model")
        mean = weighted_mean([one.parameters for one in kept], [1.0] * len(kept)) if len(kept) > 1 else None
        parameters = kept[0].parameters if mean is None else mean.astype(kept[0].parameters.dtype)
        model = self.make_model(replace(kept[0], parameters=parameters), self._task)
        new: NewBlock = self._rows.load_new(columns_of(kept[0].columns))
        shape = new.features.shape[1:]
        if shape != model.spec.inputs:
            raise BadInput(
                f"data: samples of shape {shape} are not allowed: the model was trained on {model.spec.inputs}"
            )
        known = self._class_names or getattr(self._rows, "classes", ())
        names = tuple(known) or tuple(map(str, range(kept[0].num_classes)))
        part = site_part(self.party, model, self._task, kept[0].num_classes, names)
        work = Work("predict", float(len(new.features) * model.vector.size))
        output_NO = await self.compute(contribution, part, new.features, work=work)
        write_predictions(
            self.output(order.to),
            ids=new.ids,
            rows=np.arange(len(new.ids)),
            values=probabilities(part, output_NO),
            class_names=names,
            is_regression=self._task == "regression",
            reasons=new.unusable,
        )
        told = tuple(sorted(Counter(new.unusable.values()).items()))
        return Predicted(len(new.ids), len(new.ids) - len(new.unusable), told)


def site_part(
    party: str,
    model: TrainedModel,
    task: Task,
    num_classes: int,
    class_names: Sequence[str] = (),
    protocol: str = "",
    columns: str = "",
) -> Part:
    """Return a whole model as a part: from samples as they are to outputs, or from columns that rules speak of."""
    return Part(
        protocol=protocol,
        party=party,
        task=task,
        num_classes=num_classes,
        class_names=tuple(class_names),
        parties=(party,),
        models={"bottom": model},
        preprocessing=Preprocessing.unmeasured(columns_of(columns)) if columns else None,
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
    sites, files = {}, files_of(tuple(rows), asked.to)
    for name, own in rows.items():
        names = own.classes if isinstance(own, HorizontalFile) else ()
        sites[name] = runtime.spawn(site, f"{name}/predictions", config, own, data.task, names, tuple(keepers))
    await runtime.start()
    async with runtime.clock.timeout(_LONGEST):
        found = await asyncio.gather(*(one.predict(PredictOrder(files[name])) for name, one in sites.items()))
    await runtime.settle()
    return tuple(Outcome(party=name, to=files[name], counts=counts) for name, counts in zip(sites, found, strict=True))
