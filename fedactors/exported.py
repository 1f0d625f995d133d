"""What a user does with an exported part of a model; importing this loads nothing heavy."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedactors.learning.model_parts import Part


def load_part(path: str | Path, trust: Collection[str] = ()) -> Part:
    """Return the part of a model that ``fedactors export`` wrote: module and preprocessing of one party.

        part = fedactors.load_part("model/shop")
        x = part.preprocess("new.csv")
        z = part.bottom(x)

    Args:
        path: the party's folder.
        trust: the code that its models name, ``package.module:function``, and that may be imported.

    Raises:
        BadInput: nothing of that kind is there, it is damaged, or it names code that is not trusted.
    """
    from fedactors.learning.model_parts import read_part

    return read_part(path, trust)
