"""A party's part of a trained model, as prediction uses it and as files keep it.

    part = Part(party="shop", ..., models={"bottom": TrainedModel(spec, vector_P)}, preprocessing=...)
    z_NE = contribution(part, x_ND)                   # at each party
    output_NO = fused_output(part, [z_1, z_2])        # at the party that has the top, in the order of `parties`
    write_part(part, folder); load_part(folder)       # part.json, bottom.safetensors, bottom.pt2 (torch.export)

What `load_part` gives computes what prediction computes: both are these functions on the same numbers.

Shapes: N rows, D numbers of a row, E width of a contribution, O outputs, C classes, P parameters.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import inspect
import logging
import math
import warnings
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass
from torch import Tensor, nn

from fedactors.config import is_code
from fedactors.data.columns import Preprocessing, encode
from fedactors.data.readers import read_columns
from fedactors.data.values import Column, CsvFormat, row_names
from fedactors.errors import BadInput
from fedactors.learning.metrics import Task
from fedactors.learning.models import ModelSpec, build_skeleton, code_name
from fedactors.learning.network import Array, as_tensor, base_digest, load_vector, to_vector
from fedactors.learning.user_models import check_base, hold_object
from fedactors.plugins import find_protocol
from fedactors.runs.storage import HALF_OF_MEMORY, disk_errors, read_plain
from fedactors.runtime.snapshots import is_object
from fedactors.user_code import digests_in, files_of, look_in, write_folder
from fedactors.validation import first_line, read_text, reading

KIND = "fedactors-part"
_SCHEMA = 1
_FACTS, _ARRAYS = "part.json", "arrays.safetensors"
_CODE = "code"
_SLICE_ROWS = 8192
_MOST_OUTPUTS = 2**24
"""Values that a model returns at a time."""


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedModel:
    """A model and its trained parameters (P)."""

    spec: ModelSpec
    vector: Array

    def module(self) -> nn.Module:
        """Return it as a module of torch, ready to be called."""
        made = build_skeleton(self.spec, device="cpu")
        if any(parameter.is_meta for parameter in made.parameters()):
            made = made.to_empty(device="cpu")
        with torch.no_grad():
            load_vector(made, self.vector)
        return made.eval()


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """What one party has of a trained model."""

    protocol: str
    party: str
    task: Task
    num_classes: int
    """1 for regression."""
    class_names: tuple[str, ...]
    """In the order of the outputs; empty where the party knows none."""
    parties: tuple[str, ...]
    """Who contributes, in the order in which contributions are fused: parties, or tables where they have several."""
    fusion: Literal["concatenate", "sum"] = "concatenate"
    activation: Literal["none", "relu"] = "none"
    """Of what was fused, before the top."""
    link: Literal["logit", "plus-minus"] = "logit"
    """What an output of classes is: a logit, or a least-squares fit of -1 and 1, whose mean is 2 p - 1."""
    models: Mapping[str, TrainedModel]
    """``bottom`` (what the party makes of its rows) and, where the party has it, ``top`` (from what was fused)."""
    arrays: Mapping[str, Array] = dataclasses.field(default_factory=dict)
    """Parameters by name of what is no module of torch by itself, such as layers of a graph network."""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What else tells how to apply them; plain values."""
    code: tuple[str, ...] = ()
    """Addresses of code, ``package.module:function``, that the settings name."""
    preprocessing: Preprocessing | None = None
    label_mean: float = 0.0
    """Of the training targets of a regression, at the party with the labels."""
    label_deviation: float = 1.0
    clip_norm: float = 0.0
    """L2 norm that a row's contribution is clipped to before noise is added."""
    sigma: float = 0.0
    """Deviation of the noise on a contribution that leaves the party; 0: none, and no clipping."""
    delta: float = 1e-5
    """For which its epsilon is stated."""

    @property
    def bottom(self) -> nn.Module:
        """The party's own model: (N, D) to (N, E)."""
        return self._module("bottom")

    @property
    def top(self) -> nn.Module:
        """The model over what was fused: (N, E of all) to (N, O)."""
        return self._module("top")

    @property
    def network(self) -> nn.Module:
        """What the protocol makes of arrays and settings, such as a graph network, as a module with the parameters.

        Raises:
            BadInput: the protocol is not installed or has none, or the part is damaged.
        """
        made = find_protocol(self.protocol).network
        if made is None:
            raise BadInput(f"{self.party} has no network (it has {', '.join(self.models) or 'none'})")
        found: nn.Module = made(self)
        return found.eval()

    def _module(self, name: str) -> nn.Module:
        if name not in self.models:
            raise BadInput(f"{self.party} has no {name} model (it has {', '.join(self.models) or 'none'})")
        return self.models[name].module()

    def preprocess(self, rows: str | Path | Mapping[str, Any], csv: CsvFormat | None = None) -> Tensor:
        """Return rows as the bottom sees them (N, D), as they were prepared in training.

        Args:
            rows: a CSV, Parquet or npy file, or columns by name.
            csv: how a CSV file is written; None: as the one was that was trained on.

        Raises:
            BadInput: a column is absent, or a row cannot be used (the message names the first).
        """
        if self.preprocessing is None:
            raise BadInput(f"{self.party} has no preprocessing")
        fitted, where = self.preprocessing.columns, f"{self.party}: rows"
        if isinstance(rows, (str, Path)):
            where = f"{self.party}: {rows}"
            names = [one.name for one in fitted]
            columns = read_columns(Path(rows), self.party, wanted=names, csv=csv or self.preprocessing.csv)
        else:
            columns = {name: Column(name, np.asarray(values)) for name, values in rows.items()}
        absent = [one.name for one in fitted if one.name not in columns]
        if absent:
            raise BadInput(f"{where}: column {absent[0]!r}, which the model was trained on, is absent")
        encoded = encode(columns, fitted, where, new=True, dtype=self.preprocessing.dtype)
        if encoded.rejected:
            row, reason = next(iter(encoded.rejected.items()))
            raise BadInput(f"{where}: row {row + 1} cannot be used: {reason}")
        return torch.from_numpy(self.preprocessing.finish(encoded.features))

    def ids(self, rows: str | Path, csv: CsvFormat | None = None) -> list[str]:
        """Return what the rows of a file are called by, as in training; their numbers where there was no column of ids.

        Args:
            rows: a CSV, Parquet or npy file.
            csv: how a CSV file is written; None: as the one was that was trained on.

        Raises:
            BadInput: the column of the ids is absent, or misses one.
        """
        if self.preprocessing is None:
            raise BadInput(f"{self.party} has no preprocessing")
        name = self.preprocessing.id_column
        wanted = [self.preprocessing.columns[0].name] if name is None else [name] if isinstance(name, str) else [*name]
        found = read_columns(Path(rows), self.party, wanted=wanted, csv=csv or self.preprocessing.csv)
        if absent := [one for one in wanted if one not in found]:
            raise BadInput(f"{self.party}: {rows}: column {absent[0]!r}, which the model was trained with, is absent")
        if name is None:
            return [str(row) for row in range(len(found[wanted[0]]))]
        texts = row_names([found[one] for one in wanted], self.preprocessing.id_rules, f"{self.party}: {rows}")
        if "" in texts:
            raise BadInput(f"{self.party}: {rows}: row {texts.index('') + 1} has no {' and '.join(wanted)!r}")
        return texts


def contribution(part: Part, x_ND: Array) -> Array:
    """Return what the party's bottom makes of many rows (N, E), computed in slices to bound memory.

    Of tokens it is the class of each (N, K): all logits may be more than memory holds.
    """
    model = part.models["bottom"]
    return _outputs(model, x_ND, chosen=part.task == "tokens")


def fused_output(part: Part, contributions: Sequence[Array]) -> Array:
    """Return the outputs (N, O) from all parties' contributions, in the order of `Part.parties`."""
    if part.fusion == "concatenate":
        fused: Array = np.concatenate(contributions, axis=1)
    else:
        fused = contributions[0].copy()
        for one in contributions[1:]:
            fused += one
    if part.activation == "relu":
        fused = np.maximum(fused, 0)
    return _outputs(part.models["top"], fused) if "top" in part.models else fused


def probabilities(part: Part, output_NO: Array) -> NDArray[np.float64]:
    """Return the probability of each class or label (N, C), or the values of a regression in original units (N, O)."""
    output = np.asarray(output_NO, np.float64)
    if part.task == "regression":
        return output * part.label_deviation + part.label_mean
    if part.task == "multilabel":
        return np.exp(-np.logaddexp(0.0, -output))
    if part.link == "plus-minus":
        share = np.clip((1 + output) / 2, 0, 1)
        return np.concatenate([1 - share, share], axis=1)
    if output.shape[1] == 1:
        output = np.concatenate([np.zeros_like(output), output], axis=1)
    return softmax(output)


def softmax(output_NC: Array) -> NDArray[np.float64]:
    """Return the probability of each class (N, C) from logits, in double precision."""
    output = np.asarray(output_NC, np.float64)
    shifted = np.exp(output - output.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def _outputs(model: TrainedModel, x_ND: Array, *, chosen: bool = False) -> Array:
    """Return a model's outputs, or the number of the largest at each position."""
    module, found = model.module(), []
    size = max(1, min(_SLICE_ROWS, _MOST_OUTPUTS // math.prod(model.spec.output_shape)))
    with torch.no_grad():
        for first in range(0, max(len(x_ND), 1), size):
            output = module(as_tensor(x_ND[first : first + size], model.spec.dtype))
            found.append((output.argmax(-1) if chosen else output).numpy())
    return np.concatenate(found)


# --- files ------------------------------------------------------------------------------------------------------------


@pydantic_dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))
class _Facts:
    """part.json."""

    kind: Literal["fedactors-part"]
    schema_version: Literal[1]
    protocol: str
    party: str
    task: Task
    num_classes: int
    class_names: tuple[str, ...]
    parties: tuple[str, ...]
    fusion: Literal["concatenate", "sum"]
    activation: Literal["none", "relu"]
    link: Literal["logit", "plus-minus"]
    models: dict[Literal["bottom", "top"], ModelSpec]
    arrays: tuple[str, ...]
    settings: dict[str, Any]
    code: tuple[str, ...] = ()
    preprocessing: dict[str, Any] | None
    label_mean: float
    label_deviation: float
    clip_norm: float
    sigma: float
    delta: float
    programs: dict[str, str]
    """What there is to run without fedactors (file by model), or why there is not."""


def write_part(part: Part, folder: Path) -> list[Path]:
    """Write a part into a folder of its own: facts, parameters, and programs of torch (and ONNX if it is installed).

    Returns:
        The files.

    Raises:
        BadInput: the folder cannot be written.
    """
    from safetensors.torch import save

    written: list[Path] = []
    programs: dict[str, str] = {}
    with disk_errors(folder, "--output"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, model in part.models.items():
            module = model.module()
            tensors = {key: value.detach().clone().contiguous() for key, value in module.state_dict().items()}
            weights = folder / f"{name}.safetensors"
            weights.write_bytes(save(tensors))
            written.append(weights)
            written += _write_programs(name, model.spec, module, folder, programs)
        if part.arrays:
            weights = folder / _ARRAYS
            weights.write_bytes(save({name: as_tensor(array) for name, array in part.arrays.items()}))
            written.append(weights)
        named = (*part.code, *(model.spec.name for model in part.models.values()))
        for digest in digests_in(named):
            (folder / _CODE).mkdir(exist_ok=True)
            there = write_folder(folder / _CODE, files_of(digest))
            written += sorted(there.rglob("*.py"))
        facts = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)} | {
            "kind": KIND,
            "schema_version": _SCHEMA,
            "models": {name: model.spec for name, model in part.models.items()},
            "arrays": tuple(part.arrays),
            "settings": dict(part.settings),
            "preprocessing": None if part.preprocessing is None else part.preprocessing.as_dict(),
            "programs": programs,
        }
        described = TypeAdapter(_Facts).dump_json(_Facts(**facts), indent=1)
        (folder / _FACTS).write_bytes(described + b"\n")
    return [folder / _FACTS, *written]


def _write_programs(
    name: str, spec: ModelSpec, module: nn.Module, folder: Path, programs: dict[str, str]
) -> list[Path]:
    example = (torch.zeros(2, *spec.inputs, dtype=spec.dtype),)
    rows: tuple[Any, ...] = ({0: torch.export.Dim("rows")},)
    first = next(iter(inspect.signature(module.forward).parameters.values()), None)
    if first is not None and first.kind is first.VAR_POSITIONAL:  # ``forward(*args)``, as models of `peft` have it
        rows = (rows,)
    written = []
    path = folder / f"{name}.pt2"
    with warnings.catch_warnings(), _without_notices():
        warnings.simplefilter("ignore")  # of torch's own parts
        try:
            exported = torch.export.export(module, example, dynamic_shapes=rows)
            torch.export.save(exported, path)
        except Exception as error:  # a module of the user's own may do what cannot be traced
            programs[name] = f"none: torch.export cannot trace it ({first_line(error)})"
            path.unlink(missing_ok=True)
            return []
        written.append(path)
        programs[name] = path.name
        if importlib.util.find_spec("onnx") is None or importlib.util.find_spec("onnxscript") is None:
            return written
        path = folder / f"{name}.onnx"
        try:
            torch.onnx.export(exported, (), path, dynamo=True, external_data=False, verbose=False)
        except Exception as error:
            programs[f"{name} (ONNX)"] = f"none: {first_line(error)}"
            path.unlink(missing_ok=True)
            return written
    programs[f"{name} (ONNX)"] = path.name
    return [*written, path]


@contextlib.contextmanager
def _without_notices() -> Iterator[None]:
    """Keep quiet torch's notices of operators of libraries that are not installed."""
    notices = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = notices.level
    notices.setLevel(logging.ERROR)
    try:
        yield
    finally:
        notices.setLevel(level)


def read_part(path: str | Path, allow_import: Collection[str] = (), model: Any = None) -> Part:
    """Return the part that `write_part` wrote.

    Args:
        path: its folder.
        allow_import: the addresses of code that it names, ``package.module:function``, which is then imported.
        model: the object that the run was given as its model.

    Raises:
        BadInput: it is none, it is damaged, or it names code that is not among `allow_import`.
    """
    from safetensors.torch import load

    folder = Path(path)
    text = read_text(folder / _FACTS, "part")
    try:
        facts = TypeAdapter(_Facts).validate_json(text)
    except ValidationError as error:
        said = error.errors(include_url=False)[0]
        raise BadInput(f"{folder / _FACTS} is damaged: {'.'.join(map(str, said['loc']))}: {said['msg']}") from None
    models: dict[str, TrainedModel] = {}
    kept = [] if model is None else [hold_object("model", model)]
    for name in (*facts.code, *(spec.name for spec in facts.models.values())):
        if is_object(name) and name not in {one.address for one in kept}:
            wrong = "is not the one that was given" if kept else "is needed as well"
            raise BadInput(
                f"model: the object of Python {code_name(name)}, which {folder} is of, {wrong}: give model=..."
            )
        if is_code(name) and not is_object(name) and name not in allow_import:
            raise BadInput(f"{folder} names code, {name}: give allow_import=({name!r},) if you know what it is")
    look_in(folder.resolve() / _CODE)
    for name, spec in facts.models.items():
        weights = folder / f"{name}.safetensors"
        with reading("part", weights):
            found = load(read_plain(weights, HALF_OF_MEMORY))
            module = build_skeleton(spec, device="cpu")
            module.load_state_dict(found, strict=True)
        check_base(spec, base_digest(module) if is_code(spec.name) else "", f"{folder / name}.safetensors")
        models[name] = TrainedModel(spec, to_vector(module))
    arrays: dict[str, Array] = {}
    if facts.arrays:
        with reading("part", folder / _ARRAYS):
            stored = load(read_plain(folder / _ARRAYS, HALF_OF_MEMORY))
            arrays = {name: tensor.numpy() for name, tensor in stored.items()}
    known = {field.name for field in dataclasses.fields(Part)} - {"models", "arrays", "preprocessing"}
    given = facts.preprocessing
    made = Part(
        **{name: getattr(facts, name) for name in known},
        models=models,
        arrays=arrays,
        preprocessing=None if given is None else Preprocessing.of(given, str(folder)),
    )
    weakref.finalize(made, kept.clear)  # the object stays as long as the part
    return made
