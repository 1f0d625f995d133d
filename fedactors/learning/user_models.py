"""Models of the user's own: what is asked of them, checked before a run begins, and how an object of Python is one.

They are named, ``model=package.module:function``, or given: ``fedactors.run("horizontal", model=net)``.

    def net(inputs, outputs):                    # (1, 28, 28), 10: the shape of a sample, the width of the output
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.Tanh(), nn.Linear(64, outputs))

The function returns a `torch.nn.Module` from (B, *inputs) to (B, outputs), of tokens and of several steps to
(B, positions, outputs). It is called in each process that needs the
module, under a seed, so that all of them start from the same numbers; it may load a file for that. Parameters that it
freezes, and buffers, stay in their process: only trained parameters and running statistics travel.

An object has an address like a name, ``object:NAME:DIGEST``. A run's folder keeps the address, and the source to read;
who goes on with the run gives the object again, and the digest of its code and state tells whether it is the same.
"""

from __future__ import annotations

import contextlib
import copy
import dis
import enum
import functools
import hashlib
import inspect
import itertools
import math
import pickle
import platform
import re
import sys
import sysconfig
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedactors.config import code_fields, code_named_in, is_code
from fedactors.errors import BadInput
from fedactors.learning.local_training import draws, user_loss
from fedactors.learning.metrics import Task, counted, task_metrics
from fedactors.learning.models import (
    MODEL_NAMES,
    ModelSpec,
    build_model,
    build_skeleton,
    check_hidden,
    code_name,
    find_code,
    fork_draws,
    instance_of,
    target_shape,
)
from fedactors.learning.network import Array, base_digest, shared_entries, statistics_of, train_mode
from fedactors.runtime.snapshots import OBJECT, HeldObject, hold, is_object, object_at

_BATCH = 2
_MOST_SOURCE = 20_000
_PLAIN = (bool, int, float, complex, str, bytes, type(...))
_NO_CODE = {
    "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__", "__firstlineno__",
    "__static_attributes__", "__annotate_func__", "__annotations_cache__", "__annotate__",
}  # fmt: skip
"""What Python writes into a class."""
_NO_STATE = {"training", "_is_full_backward_hook", "__wrapped__"}
"""Of a module: what calling it changes."""


def check_name(name: str) -> None:
    """Check all that can be checked of a model before the shape of a sample is known.

    Raises:
        BadInput: it names code that cannot be imported, or nothing that is known.
    """
    if is_code(name):
        find_code("model", name)
    elif name and name not in MODEL_NAMES:
        raise BadInput(
            f"model: {name!r} is not known (known: {', '.join(MODEL_NAMES)}; your own: package.module:function)"
        )


def check_model(spec: ModelSpec, *, split: bool = False, num_arguments: int = 1) -> None:
    """Check a run's model before anything is started: a user's by calling it once, forward and backward.

    Args:
        spec: the model; with no `inputs` (only the rows tell the shape) its name and hidden layers are checked.
        split: whether it is a part of a split network, whose samples must not influence one another.
        num_arguments: tensors of samples that it is called with.

    Raises:
        BadInput: one line that says what is wrong with it.
    """
    if not spec.inputs:
        check_name(spec.name)
        check_hidden(spec)
        return
    if not is_code(spec.name):
        build_skeleton(spec)
        return
    where = f"model: {code_name(spec.name)} is not allowed"
    module = _built(spec, where)
    _check_entries(module, where, split)
    x = torch.zeros(_BATCH, *spec.inputs, dtype=spec.dtype)
    constants = {name: value.clone() for name, value in _constants(module).items()}
    try:
        with fork_draws(0):
            output = train_mode(module)(*[x] * num_arguments)
    except Exception as error:
        kinds = "; parameters and samples are float32 here: leave casts out of forward" if "dtype" in str(error) else ""
        said = f"given {_BATCH} samples of shape {spec.inputs} it fails: {_line(error)}{kinds}"
        raise BadInput(f"{where}: {said}") from error
    needed = (_BATCH, *spec.output_shape)
    if not isinstance(output, Tensor) or tuple(output.shape) != needed:
        shape = tuple(output.shape) if isinstance(output, Tensor) else f"a {type(output).__name__}"
        raise BadInput(f"{where}: given {_BATCH} samples of shape {spec.inputs} it returns {shape}, not {needed}")
    if changed := [name for name, value in _constants(module).items() if not torch.equal(value, constants[name])]:
        owner = changed[0].rpartition(".")[0]
        names = tuple(name.rpartition(".")[2] for name in changed if name.rpartition(".")[0] == owner)
        raise BadInput(
            f"{where}: buffer {changed[0]!r} changes while it trains, and clients would not share it; declare it in "
            f"the class of its module, shared_buffers = {names}, or with the module: "
            f"module.get_submodule({owner!r}).shared_buffers = {names}"
        )
    if not output.requires_grad:
        raise BadInput(f"{where}: its output does not depend on its parameters")
    _check_module_repeats(module, spec, where, num_arguments)
    if split:
        _check_split(module, spec, output, where, num_arguments)


def check_repeats(where: str, call: Callable[[int], Any], remedy: str) -> None:
    """Check that code returns the same for the same after another call: what it keeps would pass from client to client.

    Args:
        where: begins the error.
        call: calls it with arguments that a number stands for, 0 or 1, and returns numbers.
        remedy: ends the error.

    Raises:
        BadInput: it does not.
    """
    found = []
    for number in (0, 1, 0):
        with fork_draws(number):
            found.append(np.array(call(number), np.float64))
    if not np.array_equal(found[0], found[2], equal_nan=True):
        raise BadInput(f"{where}: called twice with the same arguments it returns different values; {remedy}")


_SEEDED = "draw from torch, random or numpy's global generators, which are seeded"


def _check_module_repeats(module: torch.nn.Module, spec: ModelSpec, where: str, num_arguments: int) -> None:
    kept = {name: value.clone() for name, value in module.named_buffers()}

    def output_of(number: int) -> Array:
        for name, value in module.named_buffers():  # these travel, or begin anew
            value.copy_(kept[name])
        x = torch.full((_BATCH, *spec.inputs), 1.0 - number, dtype=spec.dtype)
        made: Array = module(*[x] * num_arguments).numpy()
        return made

    with torch.no_grad():
        try:
            output_of(0)
        except Exception:
            return  # ones are no samples of its kind
        check_repeats(where, output_of, f"{_SEEDED}, and keep what changes in a buffer (shared_buffers)")


def _built(spec: ModelSpec, where: str) -> torch.nn.Module:
    """Return the model; one that is another each time that it is built is refused."""
    try:
        module, again = build_model(spec, 0), build_model(spec, 0)
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"{where}: called with {spec.inputs}, {spec.outputs} it fails: {_line(error)}") from error
    for name, value in module.named_parameters():
        if value.layout != torch.strided:
            raise BadInput(f"{where}: parameter {name!r} is sparse; make it dense (to_dense)")
        if value.requires_grad and value.is_complex():
            raise BadInput(
                f"{where}: parameter {name!r} is complex; keep torch.view_as_real of it, and take "
                "torch.view_as_complex in forward"
            )
    second = again.state_dict()
    for name, value in module.state_dict().items():
        if isinstance(value, Tensor) and not (name in second and torch.equal(value, second[name])):
            raise BadInput(
                f"{where}: {name!r} is different each time that it is built: {_SEEDED}, or load it from a file"
            )
    return module


def _check_entries(module: torch.nn.Module, where: str, split: bool) -> None:
    named = dict(module.named_parameters())
    if not named:
        raise BadInput(f"{where}: it has no parameters")
    frozen = [name for name, parameter in named.items() if not parameter.requires_grad]
    if len(frozen) == len(named):
        raise BadInput(f"{where}: all its parameters are frozen, nothing is left to train")
    travelling = {id(value) for value in shared_entries(module).values()}
    for name, parameter in named.items():
        if parameter.requires_grad and id(parameter) not in travelling:  # in a copy of a ScriptModule, for instance
            raise BadInput(
                f"{where}: parameter {name!r} is trained, and the state dict has another tensor for it; give a "
                "function that makes the module"
            )
    spans = sorted((*_span(value), name) for name, value in named.items() if value.numel())
    for (_, end, one), (start, _, other) in itertools.pairwise(spans):
        if start < end:
            raise BadInput(
                f"{where}: parameters {one!r} and {other!r} share memory, and would part; make them one parameter: "
                "assign the one to the other without .data"
            )
    entries = module.state_dict().items()
    floats = {name for name, value in entries if isinstance(value, Tensor) and value.is_floating_point()}
    for prefix, part in module.named_modules():
        for name in getattr(part, "shared_buffers", ()):
            if (entry := f"{prefix}.{name}".lstrip(".")) not in floats:
                raise BadInput(
                    f"{where}: shared_buffers names {entry!r}, which would not travel: it must be a buffer of floats, "
                    "in the state dict"
                )
    if not split:
        return
    if names := [name for name, _ in module.named_buffers()]:
        raise BadInput(
            f"{where} in a split network: buffer {names[0]!r} (running statistics, for instance) would let samples "
            "influence one another; use group or layer normalisation"
        )
    if frozen:
        raise BadInput(f"{where} in a split network: parameter {frozen[0]!r} is frozen; all of them are trained there")


def _span(value: Tensor) -> tuple[int, int]:
    """Return where the memory of a tensor begins and ends."""
    return value.data_ptr(), value.data_ptr() + value.numel() * value.element_size()


def _check_split(module: torch.nn.Module, spec: ModelSpec, output: Tensor, where: str, num_arguments: int) -> None:
    if draws(module, *[torch.zeros(_BATCH, *spec.inputs, dtype=spec.dtype)] * num_arguments):
        raise BadInput(
            f"{where} in a split network: it draws at random (dropout), and activations may be computed again"
        )
    named = dict(module.named_parameters())
    found = torch.autograd.grad(output.sum(), list(named.values()), allow_unused=True)
    unused = [name for name, gradient in zip(named, found, strict=True) if gradient is None]
    if unused:
        raise BadInput(f"{where} in a split network: parameter {unused[0]!r} is not used, so that it gets no gradient")
    if _samples_meet(module, spec, num_arguments):
        raise BadInput(f"{where} in a split network: its output for a sample depends on the other samples")


def _constants(module: torch.nn.Module) -> dict[str, Tensor]:
    """Return the buffers that clients do not share, but for the counters that each training begins anew."""
    shared = statistics_of(module)
    norms = {
        id(b) for m in module.modules() if isinstance(m, torch.nn.modules.batchnorm._NormBase) for b in m.buffers()
    }
    return {name: value for name, value in module.named_buffers() if name not in shared and id(value) not in norms}


@functools.lru_cache(maxsize=8)
def base_of(spec: ModelSpec) -> str:
    """Return a digest of what of a user's model is not trained and stays at home; empty where there is nothing."""
    return base_digest(build_skeleton(spec, device="cpu")) if is_code(spec.name) else ""


def check_base(spec: ModelSpec, digest: str, whose: str) -> None:
    """Check that what is not trained here is what another party, or the run before, has.

    Raises:
        BadInput: it is another one.
    """
    if base_of(spec) != digest:
        raise BadInput(
            f"model: {code_name(spec.name)} has other frozen parameters or constants here than {whose}: they stay at "
            "home, and must be the same everywhere; load the same file, or build them from the seeded generators"
        )


def _samples_meet(module: torch.nn.Module, spec: ModelSpec, num_arguments: int) -> bool:
    """Say whether a sample's output is another one when it comes alone."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(_BATCH, *spec.inputs, dtype=spec.dtype, generator=generator) for _ in range(num_arguments)]
    try:
        with torch.no_grad():
            whole, alone = module(*drawn), module(*(x[:1] for x in drawn))
    except Exception:
        return True  # it takes no sample alone
    return alone.shape != whole[:1].shape or not torch.allclose(whole[:1], alone, rtol=1e-4, atol=1e-5)


def _line(error: Exception) -> str:
    text = str(error).splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"


# --- losses and metrics -----------------------------------------------------------------------------------------------


def check_loss(spec: ModelSpec, task: Task, address: str) -> None:
    """Check a user's loss on two samples.

    Raises:
        BadInput: one line that says what is wrong with it.
    """
    find_code("loss", address)
    if not spec.inputs:
        return
    where = f"loss: {code_name(address)} is not allowed"
    loss = instance_of(find_code("loss", address))
    for name, parameter in loss.named_parameters() if isinstance(loss, torch.nn.Module) else ():
        if parameter.requires_grad:
            raise BadInput(
                f"{where}: its parameter {name!r} would never change: only the model's are trained; put it there, or "
                "freeze it (requires_grad_(False))"
            )
    kind = torch.long if task in ("multiclass", "tokens") else spec.dtype

    def outputs_at(level: float, rows: int = _BATCH) -> Tensor:
        return torch.full((rows, *spec.output_shape), level, dtype=spec.dtype, requires_grad=True)

    def value_of(output_BO: Tensor) -> Any:
        target_B = torch.zeros(len(output_BO), *target_shape(task, spec), dtype=kind)
        try:
            return user_loss(address, output_BO, target_B)
        except Exception as error:
            said = f"given outputs {_shape_of(output_BO)} and {len(output_BO)} targets it fails: {_line(error)}"
            raise BadInput(f"{where}: {said}") from error

    output_BO = outputs_at(0.0)
    with fork_draws(0):
        value = value_of(output_BO)
    is_scalar = isinstance(value, Tensor) and not value.ndim and value.requires_grad
    if not is_scalar or torch.autograd.grad(value, output_BO, allow_unused=True)[0] is None:
        raise BadInput(f"{where}: it must return a scalar tensor that depends on the outputs, the mean over a batch")
    # a half is in the domain of losses of probabilities too
    few, twice = (value_of(outputs_at(0.5, rows)).item() for rows in (_BATCH, 2 * _BATCH))
    if few and math.isfinite(few) and math.isclose(twice, 2 * few, rel_tol=1e-5):
        raise BadInput(f"{where}: it adds up over a batch; return the mean over it")
    check_repeats(
        where, lambda number: value_of(outputs_at(number / 2)).item(), f"{_SEEDED}, and keep nothing between calls"
    )


def check_metric(spec: ModelSpec, task: Task, address: str) -> None:
    """Check a user's metric on a few rows.

    Raises:
        BadInput: one line that says what is wrong with it.
    """
    find_code("metric", address)
    if not spec.inputs:
        return
    classes, rest = spec.outputs if task in ("multiclass", "tokens") else 2, target_shape(task, spec)
    target_N = (np.arange(4 * classes * math.prod(rest)) % classes).reshape(4 * classes, *rest)

    where = f"metric: {code_name(address)} is not allowed"

    def numbers_of(number: int) -> list[float]:
        output_NO = np.random.default_rng(number).normal(size=(4 * classes, *spec.output_shape))
        found = user_metrics(task, target_N, output_NO, address)
        if taken := next((name for name in found if name in task_metrics(task, target_N, output_NO)), None):
            raise BadInput(f"{where}: {taken} is measured already; call yours otherwise")
        return list(found.values())

    check_repeats(where, numbers_of, "make what it collects in anew each time, or give a torchmetrics object itself")


def _shape_of(output_BO: Tensor) -> tuple[int, ...]:
    return tuple((output_BO.squeeze(1) if output_BO.shape[1:] == (1,) else output_BO).shape)


def user_metrics(task: Task, target_N: Array, output_NO: Array, address: str) -> dict[str, float]:
    """Return what a user's metric, or a list of them, finds on rows: a number by its name, or several by theirs.

    A metric of `torchmetrics` is given predictions and targets as tensors; a function whose first argument is
    ``y_true``, or of scikit-learn, the targets, and classes (``y_pred``) or probabilities (``y_score``, ``y_prob``,
    ``y_proba``); another function outputs and targets as tensors, as a loss is. Of tokens it is given those that count,
    one a row.

    Raises:
        BadInput: it fails, or returns something else than numbers.
    """
    if task == "tokens":
        target_N, output_NO = counted(np.asarray(target_N), np.asarray(output_NO))
        task = "multiclass"
    found, named = find_code("metric", address), dict[str, float]()
    where = f"metric: {code_name(address)} is not allowed"
    for one in found if isinstance(found, list | tuple) else [found]:
        metric = copy.deepcopy(one) if isinstance(one, torch.nn.Module) else instance_of(one)
        try:
            with fork_draws(0):
                value = _measured(task, np.asarray(target_N), np.asarray(output_NO), metric)
            made = value if isinstance(value, Mapping) else {_title(metric): value}
            numbers = {str(name): float(number) for name, number in made.items()}
        except Exception as error:
            raise BadInput(f"{where}: on {len(target_N)} rows it fails: {_line(error)}") from error
        if again := next((name for name in numbers if name in named), None):
            raise BadInput(f"{where}: two are called {again}; let one return its number by a name: {{name: number}}")
        named |= numbers
    if wrong := next((name for name in named if not re.fullmatch(r"[\w.@-]+", name)), None):
        raise BadInput(
            f"{where}: {wrong!r} is no name of a metric: use letters, digits and _, or return {{name: number}}"
        )
    if infinite := next((name for name, number in named.items() if math.isinf(number)), None):
        raise BadInput(
            f"{where}: {infinite} is {named[infinite]} on {len(target_N)} rows; return nan where it is not defined"
        )
    return named


def _title(metric: Any) -> str:
    """Return the name of a function, also of one with arguments, or of an object's class."""
    function = metric.func if isinstance(metric, functools.partial) else metric
    return str(getattr(function, "__name__", type(function).__name__))


def _measured(task: Task, target_N: Array, output_NO: Array, metric: Any) -> Any:
    chosen_N, score_N = _predicted(task, output_NO)
    asked = [] if isinstance(metric, torch.nn.Module) else _argument_names(metric)
    if asked[:1] == ["y_true"] or str(getattr(metric, "__module__", "")).startswith("sklearn."):
        wants_scores = len(asked) > 1 and asked[1] in ("y_score", "y_prob", "y_proba")
        is_pair = task == "multiclass" and score_N.shape[1] == 2  # of two classes scikit-learn takes the second's alone
        return metric(target_N, (score_N[:, 1] if is_pair else score_N) if wants_scores else chosen_N)
    outputs = torch.from_numpy(score_N if isinstance(metric, torch.nn.Module) else output_NO)
    targets = torch.from_numpy(target_N if task == "regression" else target_N.astype(np.int64))
    return metric(outputs.squeeze(1) if outputs.shape[1:] == (1,) else outputs, targets)


def _predicted(task: Task, output_NO: Array) -> tuple[Array, Array]:
    """Return the value or class of each row, and the value, the probability of class 1, or of each class."""
    if task == "regression":
        values = output_NO.ravel() if output_NO.shape[1:] == (1,) else output_NO
        return values, values
    logits = torch.from_numpy(output_NO)
    if task == "multilabel":
        return (output_NO > 0).astype(np.int64), torch.sigmoid(logits).numpy()
    if task == "binary":
        return (output_NO.ravel() > 0).astype(np.int64), torch.sigmoid(logits).numpy().ravel()
    return output_NO.argmax(axis=1), torch.softmax(logits, dim=1).numpy()


def _argument_names(function: Any) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


# --- models as objects of Python --------------------------------------------------------------------------------------


def hold_code(cls: type, settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[HeldObject]]:
    """Return settings with addresses in place of the objects in them, and the objects, to be kept for as long.

    Args:
        cls: the config's class, whose fields say which of them may name code.
        settings: by name, as a user gave them.
    """
    made, kept = dict(settings), list[HeldObject]()
    for name in code_fields(cls) & set(settings):
        value = settings[name]
        if value is None or isinstance(value, str):
            continue
        kept.append(hold_object(name, value))
        made[name] = kept[-1].address
    return made, kept


def hold_object(field: str, value: Any) -> HeldObject:
    """Return a model, or other code, that is held by its address.

    Raises:
        BadInput: it is no code.
    """
    if field == "metric" and isinstance(value, list | tuple) and value:
        value = [find_code(field, one) if isinstance(one, str) else one for one in value]
        is_callable = all(map(callable, value))
    else:
        is_callable = callable(value)
    if not is_callable:
        raise BadInput(f"{field}: {type(value).__name__} is not allowed: give a module, a function or a class")
    word = re.sub(r"\W", "_", _title(value))[:60]
    return hold(f"{OBJECT}{word}:{Fingerprint().of(value)}", value)


def code_facts(config: Any) -> dict[str, dict[str, str]]:
    """Return what a run's folder keeps of the objects that its config names: source, and the version of Python."""
    found = {name: address for name, address in code_named_in(config).items() if is_object(address)}
    return {
        name: {"source": source_of(object_at(address, name)), "python": platform.python_version()}
        for name, address in found.items()
    }


def source_of(value: Any) -> str:
    """Return the source text of a function, a class, or a module's class; empty where nobody has it."""
    if isinstance(value, list):
        return "\n\n".join(filter(None, map(source_of, value)))[:_MOST_SOURCE]
    given = value if inspect.isclass(value) or inspect.isfunction(value) else type(value)
    if _is_library(given.__module__):
        return ""
    try:
        return inspect.getsource(given)[:_MOST_SOURCE]
    except (OSError, TypeError):
        return ""


class Fingerprint:
    """A digest of code and state, the same in each process of one version of Python.

    Code is bytecode without file names and line numbers, of the object and of all that it uses outside installed
    packages; those are told by name. State is what attributes hold, tensors and arrays by their values.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []

    def of(self, value: Any) -> str:
        """Return the digest of a value, as text."""
        self._add(value)
        return self._hash.hexdigest()[:32]

    def _tell(self, *words: object) -> None:
        self._hash.update("\0".join([*map(str, words), ""]).encode("utf-8", "surrogatepass"))

    def _add(self, value: Any) -> None:
        if value is None or isinstance(value, _PLAIN):
            self._tell(type(value).__name__, repr(value))
            return
        if id(value) in self._seen:
            self._tell("again", self._seen[id(value)])
            return
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)  # an id is another object's once this one is gone
        if isinstance(value, Tensor | np.ndarray):
            self._add_numbers(value)
        elif isinstance(value, Mapping):
            self._tell("mapping", len(value))
            for key, one in value.items():
                self._add(key)
                self._add(one)
        elif isinstance(value, tuple | list):
            self._tell("sequence", len(value))
            for one in value:
                self._add(one)
        elif isinstance(value, set | frozenset):
            self._tell("set", *sorted(Fingerprint().of(one) for one in value))
        elif isinstance(value, types.CodeType):
            self._add_code(value)
        elif isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, types.ModuleType | types.BuiltinFunctionType | torch.dtype | torch.device | enum.Enum):
            self._tell(getattr(value, "__module__", ""), getattr(value, "__qualname__", value))
        else:
            self._add_instance(value)

    def _add_numbers(self, value: Tensor | np.ndarray[Any, Any]) -> None:
        if isinstance(value, Tensor):
            self._tell("tensor", value.dtype, tuple(value.shape), value.requires_grad)
            value = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        else:
            self._tell("array", value.dtype, value.shape)
        if value.dtype.hasobject:
            self._add(value.tolist())
        else:
            self._hash.update(np.ascontiguousarray(value).tobytes())

    def _add_code(self, code: types.CodeType) -> None:
        self._tell("code", code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, code.co_argcount)
        self._add(code.co_consts)

    def _add_function(self, function: types.FunctionType) -> None:
        self._tell("function", function.__qualname__)
        if _is_library(function.__module__):
            self._tell(function.__module__)
            return
        self._add(function.__code__)
        self._add([function.__defaults__, function.__kwdefaults__])
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # it is empty
                self._add(cell.cell_contents)
        for name in sorted(_globals_of(function.__code__)):
            if name in function.__globals__:
                self._tell("global", name)
                self._add(function.__globals__[name])

    def _add_class(self, cls: type) -> None:
        self._tell("class", cls.__qualname__)
        if _is_library(cls.__module__):
            self._tell(cls.__module__)
            return
        self._add(cls.__bases__)
        for name, value in sorted(vars(cls).items()):
            if name not in _NO_CODE:
                self._tell("member", name)
                self._add(value)

    def _add_instance(self, value: Any) -> None:
        self._add(type(value))
        if isinstance(value, types.MethodType | staticmethod | classmethod):
            self._add([value.__func__, getattr(value, "__self__", None)])
        elif isinstance(value, property):
            self._add([value.fget, value.fset])
        elif isinstance(value, functools.partial):
            self._add([value.func, value.args, value.keywords])
        elif hasattr(value, "__dict__"):
            self._add({name: one for name, one in vars(value).items() if name not in _NO_STATE})
        else:
            with contextlib.suppress(Exception):  # what cannot be pickled, a lock for instance, is told by its type
                self._hash.update(pickle.dumps(value, 4))


def _globals_of(code: types.CodeType) -> set[str]:
    """Return the names that code, and code within it, takes from its module."""
    found = {one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return found.union(*map(_globals_of, inner))


@functools.cache
def _is_library(name: str | None) -> bool:
    """Say whether a module is part of Python or of an installed package, which is told by its name alone."""
    if name in (None, "__main__"):
        return False
    if name in sys.builtin_module_names:
        return True
    path = getattr(sys.modules.get(str(name)), "__file__", None)
    if path is None:
        return False
    found = sysconfig.get_paths()
    is_installed = not {"site-packages", "dist-packages"}.isdisjoint(Path(path).parts)  # also beside the environment
    return is_installed or any(path.startswith(found[key]) for key in ("stdlib", "platstdlib", "purelib", "platlib"))
