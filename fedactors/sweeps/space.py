"""Which settings a sweep tries: lists and their products, random draws, explicit lists from a file.

    learning_rate=0.01,0.03 batch_size=64,256      four settings: the product of the lists
    learning_rate=loguniform(1e-4,1e-1)            a random draw, ``--draws`` of them
    layers=[8,16],[32]                             two settings of a field that holds a list: brackets keep it together

Each key draws from a stream of its own, so that more draws begin with the ones before, and another key changes none.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedactors.config import parse_words
from fedactors.errors import BadInput
from fedactors.validation import read_tree

_DISTRIBUTION = re.compile(r"(?P<name>[a-z]+)\((?P<arguments>.*)\)", re.DOTALL)
_BRACKETS = {"[": "]", "{": "}", "(": ")"}
Draw = Callable[[random.Random], Any]


def settings_of(
    words: Sequence[str], *, listed: Sequence[Mapping[str, Any]] = (), draws: int | None = None, draw_seed: int = 0
) -> list[dict[str, Any]]:
    """Return every setting that the words stand for, each once, in the order of the lists.

    Args:
        words: ``key=value``, where a value may be a list or a distribution.
        listed: settings of a file; each is combined with those of the words.
        draws: how often each distribution is drawn from; needed if there is one, and only then.
        draw_seed: decides what is drawn.

    Raises:
        BadInput: a key given in the words and in the file, a distribution that is unknown or has wrong arguments.
    """
    given = parse_words(words)
    for key in given:
        if any(key in setting for setting in listed):
            raise BadInput(f"{key}: given both as a word and in the file of settings")
    samplers = {key: draw for key, text in given.items() if (draw := _distribution(key, text)) is not None}
    if samplers and draws is None:
        raise BadInput(f"{next(iter(samplers))}: a distribution needs --draws N")
    if draws is not None and not samplers:
        raise BadInput("--draws: no key has a distribution: uniform, loguniform, integer or choice")
    drawn = [dict[str, Any]() for _ in range(draws or 1)]
    for key, draw in samplers.items():
        stream = random.Random(f"{draw_seed} {key}")
        for setting in drawn:
            setting[key] = draw(stream)
    lists = {key: split_list(text) for key, text in given.items() if key not in samplers}
    grid = [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
    found = [{**base, **point, **more} for base in (listed or [{}]) for point in grid for more in drawn]
    return [setting for place, setting in enumerate(found) if setting not in found[:place]]


def split_list(text: str) -> list[str]:
    """Split ``a,b,c`` at the commas that stand in no brackets."""
    parts, closing = [""], list[str]()
    for letter in text:
        if letter == "," and not closing:
            parts.append("")
            continue
        if letter in _BRACKETS:
            closing.append(_BRACKETS[letter])
        elif closing and letter == closing[-1]:
            closing.pop()
        parts[-1] += letter
    return [part.strip() for part in parts]


def read_settings(path: str) -> list[dict[str, Any]]:
    """Read an explicit list of settings: JSON (a list of objects) or TOML (tables ``[[settings]]``).

    Raises:
        BadInput: the file cannot be read, or holds something else.
    """
    tree = read_tree(path, "--settings")
    made = tree.get("settings") if isinstance(tree, dict) else tree
    if not isinstance(made, list) or not made or not all(isinstance(setting, dict) for setting in made):
        raise BadInput(f"--settings: {path!r} holds no list of settings: [[settings]] in TOML, [{{...}}] in JSON")
    return made


def _distribution(key: str, text: str) -> Draw | None:
    """Return how the distribution `text` is drawn from, or None if it is a value or a list."""
    match = _DISTRIBUTION.fullmatch(text.strip())
    if match is None:
        return None
    name, arguments = match["name"], split_list(match["arguments"])
    if name == "choice":
        return lambda stream: stream.choice(arguments)
    if name not in ("uniform", "loguniform", "integer"):
        raise BadInput(f"{key}: {text!r} is not allowed: uniform, loguniform, integer or choice")
    try:
        low, high = (int(word) if name == "integer" else float(word) for word in arguments)
    except ValueError:
        raise BadInput(f"{key}: {text!r} is not allowed: {name}(LOW,HIGH)") from None
    if not (-math.inf < low < high < math.inf and (name != "loguniform" or low > 0)):
        raise BadInput(f"{key}: {text!r} is not allowed: {name} needs {'0 < ' * (name == 'loguniform')}LOW < HIGH")
    if name == "integer":
        return lambda stream: stream.randint(int(low), int(high))
    if name == "uniform":
        return lambda stream: _rounded(stream.uniform(low, high))
    return lambda stream: _rounded(math.exp(stream.uniform(math.log(low), math.log(high))))


def _rounded(value: float) -> float:
    """Return six significant digits: enough for a search, and short in a command line."""
    return float(f"{value:.6g}")
