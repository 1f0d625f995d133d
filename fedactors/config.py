"""Configuration: frozen keyword-only dataclasses, validated by pydantic, filled from ``key=value`` words.

    class Config:
        num_rounds: int = Field(10, ge=1)
        # each field has a docstring under it
        model: NamedCode = "auto"             # a name of ours, or the address of code: package.module:function

A protocol declares one class with the `config` decorator. `build` turns the words of a command line into an instance
and reports every mistake as one `BadInput` line that names the field, the value and the rule.

Code that a configuration names is code as soon as it is imported. So it is imported when the user gives it, in a word
or in a script's config, and never because a run folder says so: who resumes, predicts with or exports a run whose
configuration names code gives the same name again (``--allow-import package.module:function``).
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import json
import math
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from inspect import cleandoc
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, dataclass_transform, overload

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from fedactors import user_code
from fedactors.errors import BadInput
from fedactors.messages.codec import declare
from fedactors.validation import check_keys, shown, suggested, without_password

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

T = TypeVar("T")
FEDACTORS = Path(__file__).parent
LARGEST = 2**31 - 1
"""The largest whole number that a setting may be: libraries below count in 32 or 64 bits."""
WIDEST = 1e15
"""The largest number that a setting may be if it is no whole one, and its inverse the smallest beside 0: what lies
beyond overflows in single precision as soon as it is squared."""
DEVICE_PATTERN = r"auto|cpu|cuda|cuda:\d+"
Device = Annotated[str, Field(pattern=f"^({DEVICE_PATTERN})$")]
"""Where an actor computes; `fedactors.learning.network.find_device` finds it."""

OnlyWith = Mapping[str, Mapping[str, tuple[Any, ...] | None]]
"""Settings that count beside some values of others only; see `build_given`."""


@overload
def config(cls: type[T]) -> type[T]: ...


@overload
def config(*, name: str) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field, Field))
def config(cls: Any = None, *, name: str = "") -> Any:
    """Make `cls` a frozen keyword-only dataclass whose fields are validated and whose unknown keys are errors.

    Numbers are finite unless a field says ``Field(allow_inf_nan=True)``, and of a size that can be computed with:
    whole ones at most `LARGEST`, others 0 or between the inverse of `WIDEST` and `WIDEST`. For `name` see
    `fedactors.messages.codec`.
    """
    settings = ConfigDict(extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False)

    def decorate(cls: type[Any]) -> type[Any]:
        _limit_numbers(cls)
        made: type[Any] = pydantic_dataclass(cls, frozen=True, kw_only=True, config=settings)
        made.__wire_type__ = True  # type: ignore[attr-defined]  # an actor may be built with it
        declare(made, name)
        return made

    return decorate if cls is None else decorate(cls)


def _limit_numbers(cls: type[Any]) -> None:
    """Let a class refuse numbers of no use when it is made, before what it checks itself."""
    initializer = getattr(cls, "__post_init__", None)  # its own, or what it inherits

    def check(self: Any) -> None:
        for field in dataclasses.fields(self):
            for number in _numbers(getattr(self, field.name)):
                if isinstance(number, int) and abs(number) > LARGEST:
                    raise ValueError(f"{field.name}: {shown(number)} is not allowed: at most {LARGEST}")
                if isinstance(number, float) and WIDEST < abs(number) < math.inf:
                    raise ValueError(f"{field.name}: {number:g} is not allowed: at most {WIDEST:g}")
                if isinstance(number, float) and 0 < abs(number) < 1 / WIDEST:
                    raise ValueError(f"{field.name}: {number:g} is not allowed: too near 0, below {1 / WIDEST:g}")
        if initializer is not None:
            initializer(self)

    cls.__post_init__ = check  # type: ignore[attr-defined]


def _numbers(value: Any) -> Iterator[int | float]:
    if isinstance(value, (int, float)):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _numbers(item)


def meaning_of(cls: type[Any], name: str) -> str:
    """Return a field's docstring in one line; a class that gives another default need not say again what it means."""
    fields = (getattr(one, "__pydantic_fields__", {}).get(name) for one in cls.__mro__)
    texts = (field.description for field in fields if field is not None and field.description)
    return " ".join(cleandoc(next(texts, "")).split())


def parse_words(words: Sequence[str]) -> dict[str, str]:
    """Split ``key=value`` words into a mapping; a word without ``=`` or a repeated key is a `BadInput`."""
    given: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise BadInput(f"{word!r} is not of the form key=value")
        if key in given:
            raise BadInput(f"{key}: given twice ({given[key]!r} and {value!r})")
        given[key] = value
    return given


def build(cls: type[T], overrides: Mapping[str, Any] | None = None) -> T:
    """Make a `cls` from its defaults and `overrides` (text values are parsed by the field's type).

    Raises:
        BadInput: an unknown key (with the nearest known one), or a value that the field does not allow.
    """
    overrides = dict(overrides or {})
    names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for key in overrides:
        if key not in names:
            raise BadInput(f"{key}: unknown key{suggested(key, names)}")
    readings = {key: _readings(value) for key, value in overrides.items()}
    first: ValidationError | None = None
    read_again: set[str] = set()
    while True:
        try:
            made = TypeAdapter(cls).validate_python({key: found[0] for key, found in readings.items()})
            break
        except ValidationError as error:
            first, last = first or error, error
            refused = {str(problem["loc"][0]) for problem in error.errors() if problem["loc"]}
        again = [key for key in refused if len(readings.get(key, ())) > 1]
        if not again:
            # what another reading has mended is not what is wrong
            raise BadInput(_explain(first if refused & read_again else last, overrides)) from None
        for key in again:
            del readings[key][0]
        read_again.update(again)
    for key in overrides:
        if isinstance(text := getattr(made, key), str):
            without_password(text, key)
    return made


def build_given(cls: type[T], words: Sequence[str] | Mapping[str, Any], preset: Mapping[str, Any] | None = None) -> T:
    """Make a `cls` from what a user gave, words or values by name, above a preset.

    A setting that would be ignored is refused.

    A class says which those are: ``only_with: ClassVar[OnlyWith] = {setting: {other: values}}``, where one of the
    others must have one of its values, or any but its default where None stands for the values.

    Raises:
        BadInput: as `build`, or a setting that changes nothing beside the others.
    """
    given = dict(words) if isinstance(words, Mapping) else parse_words(words)
    made = build(cls, {**(preset or {}), **given})
    usual = cls()
    for name in given:
        value = getattr(made, name)
        if value != getattr(usual, name) and (why := ignored(made, name, usual)):
            raise BadInput(f"{name}: {_word(value)} is not allowed with {why}")
    return made


def ignored(made: Any, name: str, usual: Any = None) -> str:
    """Return beside which settings one changes nothing, and beside which it would; empty: it counts.

    Args:
        made: a config.
        name: of the setting.
        usual: the config with all defaults.
    """
    rules = {key: rule for one in reversed(type(made).__mro__) for key, rule in vars(one).get("only_with", {}).items()}
    others = rules.get(name, {})
    usual = type(made)() if usual is None and others else usual
    if not others or any(
        getattr(made, other) != getattr(usual, other) if values is None else getattr(made, other) in values
        for other, values in others.items()
    ):
        return ""
    now = " and ".join(f"{other}={_word(getattr(made, other))}" for other in others)
    needed = " or ".join(
        f"another {other}" if values is None else f"{other}={', '.join(map(_word, values))}"
        for other, values in others.items()
    )
    return f"{now}, which ignores it; it is for {needed}"


def with_contents(made: T) -> T:
    """Return a config with the contents of files where its settings name some, so that a run folder opens none.

    A class that has such settings says which, ``files: ClassVar = {setting: values that are no file}``, and makes the
    config by its own ``with_contents``; a content is told from a path by the end of a line in it.

    Raises:
        BadInput: a file cannot be read.
    """
    return cast("T", made.with_contents()) if named_files(made) else made  # type: ignore[attr-defined]


def named_files(made: Any) -> dict[str, str]:
    """Return the settings of a config that name a file."""
    found = {name: getattr(made, name) for name in getattr(type(made), "files", {})}
    return {name: value for name, value in found.items() if value not in type(made).files[name] and "\n" not in value}


def _word(value: Any) -> str:
    """Return a value as a user writes it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return (
        ",".join(map(_word, value))
        if isinstance(value, tuple)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def from_table(cls: type[T], given: Any, where: str) -> T:
    """Make a `cls` from a table of a file, whose values already have their types; `where` is its place in the file.

    Raises:
        BadInput: an unknown key, or a value that the field does not allow.
    """
    names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    if not isinstance(given, dict):
        raise BadInput(f"{where}: {shown(given)} is not allowed: give a table [{where}]")
    check_keys(given, names, where)
    try:
        return TypeAdapter(cls).validate_json(json.dumps(given, default=str), strict=True)
    except ValidationError as error:
        raise BadInput(f"{where}.{_explain(error, given)}") from None


def as_dict(instance: Any) -> dict[str, Any]:
    """Return the JSON-ready mapping of a config, the form in which a run folder keeps it."""
    made: dict[str, Any] = TypeAdapter(type(instance)).dump_python(instance, mode="json")
    return made


def _readings(value: Any) -> list[Any]:
    """Return what a value may mean, likeliest first: only the field's type can tell ``none`` or ``a,b`` from text."""
    if not isinstance(value, str):
        return [value]
    literal = _literal(value)
    # a choice of numbers, unlike a number, takes no text
    numbers = [int(value)] if value.isascii() and value.isdecimal() and len(value) < 20 else []
    return [literal, *([value] if literal != value else []), *numbers, [value]]


def _literal(value: str) -> Any:
    """Turn text such as ``none``, ``[1,3]`` or ``1,3`` into the value it means; leave plain text to pydantic."""
    if value.lower() in ("none", "null"):
        return None
    if value[:1] in "[{":
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    if "," in value:
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


_MOST_EXPLAINED = 10
"""Fields at fault that a line names."""


def _explain(error: ValidationError, overrides: Mapping[str, Any]) -> str:
    """Return one line: each field at fault once, its value, and what each type that it may have says of it.

    Of very many the first are named: a list of thousands would be shown once for each of its entries.
    """
    lines: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        location = ".".join(str(part) for n, part in enumerate(problem["loc"]) if n == 0 or isinstance(part, int))
        text = problem["msg"].removeprefix("Value error, ")
        if len(lines) >= _MOST_EXPLAINED and (location or text) not in lines:
            lines["others"] = "and others"
            break
        if not location:
            lines[text] = text
            continue
        if problem["type"] in ("missing", "missing_keyword_only_argument"):
            lines[location] = f"{location}: missing"
            continue
        text = f"{text[0].lower()}{text[1:]}"
        if location in lines:
            lines[location] += f", or {text}"
        else:
            value = overrides.get(location.split(".")[0], problem.get("input"))
            lines[location] = f"{location}: {shown(value)} is not allowed: {text}"
    return "; ".join(lines.values())


def spell_infinities(value: Any) -> Any:
    """Return `value` with infinite floats as the words that the config reads back; JSON has none."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: spell_infinities(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [spell_infinities(item) for item in value]
    return value


class _Module(ModuleType):
    """This module, called as its decorator: it bears the name that `fedactors.config` has in the public API."""

    def __call__(self, cls: Any = None, *, name: str = "") -> Any:
        return config(cls, name=name)  # type: ignore[call-overload]


sys.modules[__name__].__class__ = _Module


# --- code that a configuration names ---


class _Marker:
    """Marks a field that may name code."""


class _Seeded:
    """Marks a field that takes noise or masks from the run's seed."""


DrawsFromSeed = Annotated[bool, _Seeded()]
"""The type of a config's field that takes noise or masks from the run's seed: where it is on, nothing is private."""


NamedCode = Annotated[str, _Marker()]
"""The type of a config's field that may name code; a value with a colon does."""


def is_code(value: Any) -> bool:
    """Say whether a value of such a field names code."""
    return isinstance(value, str) and ":" in value


class UserCode:
    """For a config whose settings `loss` and `metric` may name code: a mixin without fields of its own."""

    loss: str
    metric: str

    def check_user_code(self) -> None:
        """Refuse another word than the usual one that is no address.

        Raises:
            ValueError: it is neither.
        """
        for name, usual in (("loss", "auto"), ("metric", "none")):
            if (value := getattr(self, name)) != usual and not is_code(value):
                raise ValueError(f"{name}: {value!r} is not allowed: give {usual}, or package.module:function")

    @property
    def user_loss(self) -> str:
        """Address of the user's loss; empty: the task's."""
        return self.loss if is_code(self.loss) else ""

    @property
    def user_metric(self) -> str:
        """Address of the user's metric; empty: none."""
        return self.metric if is_code(self.metric) else ""


def code_named_in(config: Any) -> dict[str, str]:
    """Return the addresses that a config names, by field; what a base class marks, its heirs cannot unmark."""
    return {name: value for name in sorted(code_fields(type(config))) if is_code(value := getattr(config, name))}


def code_fields(cls: type) -> set[str]:
    """Return the fields of a config's class that may name code."""
    return _marked(cls, _Marker)


def source_on_disk(package: str) -> str:
    """Return the SHA-256 of the source files of fedactors and of a whole package, as they are on disk now."""
    digest = hashlib.sha256()
    for name in dict.fromkeys(("fedactors", package, package.partition(".")[0])):
        spec = importlib.util.find_spec(name)
        if spec is None or (name != package and spec.origin is None):  # a namespace, in which others' packages lie too
            continue
        file_alone = [spec.origin] if spec.origin is not None and spec.has_location else []
        for root in map(Path, spec.submodule_search_locations or file_alone):
            for file in sources(root) if root.is_dir() else [root] * root.is_file():
                digest.update(f"{name}/{file.relative_to(root).as_posix()}\0".encode())
                digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def sources(package: Path) -> list[Path]:
    """Return the source files of a package, in order; for fedactors without the protocols that it ships."""
    shipped = FEDACTORS / "protocols"
    return sorted(file for file in package.rglob("*.py") if package != FEDACTORS or not file.is_relative_to(shipped))


def drawn_from_seed(config: Any) -> list[str]:
    """Return the fields of a config by which noise or masks follow from the run's seed."""
    return [name for name in sorted(_marked(type(config), _Seeded)) if getattr(config, name)]


def _marked(cls: type, marker: type) -> set[str]:
    fields: list[tuple[str, FieldInfo]] = [
        item for one in cls.__mro__ for item in vars(one).get("__pydantic_fields__", {}).items()
    ]
    return {name for name, field in fields if any(isinstance(fact, marker) for fact in field.metadata)}


def check_trusted(config: Any, trusted: Collection[str], location: str) -> None:
    """Check that the user of the run at `location` has named the code that its configuration names.

    Raises:
        BadInput: names what is not, or what is named for nothing, without having imported anything.
    """
    for field, address in code_named_in(config).items():
        if address not in trusted:
            raise BadInput(
                f"{location} names code, {field}={address}, which is imported only if you name it as well: "
                f"give --allow-import {address} if you know what it is"
            )
    if unknown := sorted(set(trusted) - set(code_named_in(config).values())):
        raise BadInput(f"--allow-import: {unknown[0][:200]!r} is not allowed: {location} names no such code")


def load_code(field: str, address: str, *, several: bool = False) -> Callable[..., Any]:
    """Import what a field names, from the path or the working directory.

    An address may give arguments by name, which are called with whenever what it names is:
    ``torchmetrics.classification:MulticlassF1Score(num_classes=10, average="macro")``.

    Args:
        field: which names it.
        address: ``package.module:function``.
        several: whether a list of functions is allowed too.

    Raises:
        BadInput: nothing callable is there, or its module cannot be imported.
    """
    named, bracket, given = address.partition("(")
    if bracket:
        return functools.partial(load_code(field, named), **_arguments(field, address, bracket + given))
    module, _, name = address.partition(":")
    if not (module and name and all(part.isidentifier() for part in [*module.split("."), name])):
        raise BadInput(f"{field}: {address!r} is not allowed: write package.module:function")
    if (digest := user_code.digest_in(address)) is not None:
        user_code.files_of(digest)  # which says where they are missing
    elif not {"", os.getcwd()} & set(sys.path):  # of a site it is the folder that others' files lie in
        sys.path.append(os.getcwd())  # where a user's own module lies; Ray puts it on the path of its processes too
    try:
        found = getattr(importlib.import_module(module), name)
    except AttributeError:
        raise BadInput(f"{field}: {address!r} is not allowed: {module} has no {name}") from None
    except Exception as error:
        # what is missing is said by the message itself
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        reason = f"{kind}{error}".splitlines()[0]
        raise BadInput(f"{field}: {address!r} is not allowed: {module} cannot be imported ({reason})") from error
    if digest is not None and not user_code.is_defined_in(digest, found):
        raise BadInput(
            f"{field}: {address!r} is not allowed: name a function or class that the files define themselves, none "
            "that they import"
        )
    if not (several and isinstance(found, list | tuple) and all(map(callable, found))) and not callable(found):
        raise BadInput(f"{field}: {address!r} is not allowed: it is a {type(found).__name__}, not a function")
    made: Callable[..., Any] = found
    return made


def _arguments(field: str, address: str, text: str) -> dict[str, Any]:
    """Return the arguments of an address: numbers, texts, lists and the like, each by its name."""
    try:
        call = ast.parse(f"f{text}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError("an argument has no name")
        return {str(one.arg): ast.literal_eval(one.value) for one in call.keywords if one.arg is not None}
    except (ValueError, SyntaxError):
        raise BadInput(
            f"{field}: {address!r} is not allowed: give arguments by name, numbers or texts in quotes: "
            "package.module:function(number=2, kind='macro')"
        ) from None
