"""Code that a configuration names, ``package.module:function``: a user's own model, a hook.

A name is code as soon as it is imported. So it is imported when the user gives it, in a word or in a script's config,
and never because a run folder says so: who resumes, predicts with or exports a run whose configuration names code gives
the same name again (``--trust package.module:function``).

    class Config:
        model: NamedCode = "auto"             # a name of ours, or an address
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Annotated, Any

from fedactors.errors import BadInput

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


class _Marker:
    """Marks a field that may name code."""


NamedCode = Annotated[str, _Marker()]
"""The type of a config's field that may name code; a value with a colon does."""


def is_code(value: Any) -> bool:
    """Say whether a value of such a field names code."""
    return isinstance(value, str) and ":" in value


def code_named_in(config: Any) -> dict[str, str]:
    """Return the addresses that a config names, by field; what a base class marks, its heirs cannot unmark."""
    fields: list[tuple[str, FieldInfo]] = [
        item for cls in type(config).__mro__ for item in vars(cls).get("__pydantic_fields__", {}).items()
    ]
    marked = {name for name, field in fields if any(isinstance(fact, _Marker) for fact in field.metadata)}
    return {name: getattr(config, name) for name in sorted(marked) if is_code(getattr(config, name))}


def check_trusted(config: Any, trusted: Collection[str], place: str) -> None:
    """Check that whoever uses the run at `place` has named the code that its configuration names.

    Raises:
        BadInput: names what is not, or what is named for nothing, without having imported anything.
    """
    for field, address in code_named_in(config).items():
        if address not in trusted:
            raise BadInput(
                f"{place} names code, {field}={address}, which is imported only if you name it as well: "
                f"give --trust {address} if you know what it is"
            )
    if unknown := sorted(set(trusted) - set(code_named_in(config).values())):
        raise BadInput(f"--trust: {unknown[0][:200]!r} is not allowed: {place} names no such code")


def load_code(field: str, address: str) -> Callable[..., Any]:
    """Import what a field names, from the path or the working directory.

    Raises:
        BadInput: nothing callable is there, or its module cannot be imported.
    """
    module, _, name = address.partition(":")
    if not (module and name and all(part.isidentifier() for part in [*module.split("."), name])):
        raise BadInput(f"{field}: {address!r} is not allowed: write package.module:function")
    if not {"", os.getcwd()} & set(sys.path):
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
    if not callable(found):
        raise BadInput(f"{field}: {address!r} is not allowed: it is a {type(found).__name__}, not a function")
    made: Callable[..., Any] = found
    return made
