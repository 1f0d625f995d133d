"""Configuration: words in, a frozen dataclass or one clear line out."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from typing import ClassVar, Literal, get_type_hints

import pytest
from pydantic import Field, TypeAdapter, model_validator

from fedactors.config import OnlyWith, as_dict, build, build_given, config, parse_words
from fedactors.errors import BadInput
from fedactors.plugins import find_protocol


@config
class Settings:
    """Settings of a made-up protocol."""

    batch_size: int = Field(default=32, ge=1)
    """Samples a step."""
    learning_rate: float = Field(default=0.1, gt=0)
    """Step width."""
    layers: tuple[int, ...] = (64, 64)
    """Widths."""
    compression: Literal["none", "top-k"] = "none"
    """How messages are made smaller."""
    deadline: float | None = None
    """Seconds, or none."""
    title: str = "x"
    """Free text."""
    shuffle: bool = True
    """Whether to shuffle."""
    budget: float = Field(default=float("inf"), allow_inf_nan=True)
    """A budget, perhaps without limit."""

    @model_validator(mode="after")
    def _check(self) -> Settings:
        if self.deadline is not None and self.batch_size > 1000:
            raise ValueError("batch_size: 1000 is the most with a deadline")
        return self


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("batch_size=8", 8),
        ("learning_rate=1e-3", 1e-3),
        ("layers=1,2,3", (1, 2, 3)),
        ("layers=[4, 5]", (4, 5)),
        ("layers=7", (7,)),
        ("compression=none", "none"),
        ("compression=top-k", "top-k"),
        ("deadline=none", None),
        ("deadline=2.5", 2.5),
        ("title=a, b", "a, b"),
        ("title=none", "none"),
        ("title=[draft", "[draft"),
        ("title=k=v", "k=v"),
        ("shuffle=false", False),
        ("budget=inf", float("inf")),
    ],
)
def test_words_become_values_of_the_fields_type(word: str, value: object) -> None:
    found = build(Settings, parse_words([word]))
    assert getattr(found, word.partition("=")[0]) == value


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("batch_size=0", "batch_size: '0' is not allowed: input should be greater than or equal to 1"),
        ("batch_size=many", "batch_size: 'many' is not allowed: input should be a valid integer"),
        ("batch_size=none", "batch_size: 'none' is not allowed: input should be a valid integer"),
        ("learning_rate=nan", "learning_rate: 'nan' is not allowed: "),
        ("learning_rate=0", "learning_rate: '0' is not allowed: input should be greater than 0"),
        ("layers=1,x", "layers.1: '1,x' is not allowed: input should be a valid integer"),
        ("compression=zip", "compression: 'zip' is not allowed: input should be 'none' or 'top-k'"),
        ("batchsize=1", "batchsize: unknown key; did you mean batch_size? (known: batch_size, learning_rate"),
        ("zzz=1", "zzz: unknown key (known: "),
    ],
)
def test_mistakes_are_one_line_that_names_field_value_and_rule(word: str, text: str) -> None:
    with pytest.raises(BadInput) as caught:
        build(Settings, parse_words([word]))
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)


def test_several_mistakes_are_all_named() -> None:
    with pytest.raises(BadInput, match=r"batch_size: .*; learning_rate: .*"):
        build(Settings, {"batch_size": "0", "learning_rate": "-1"})


def test_rules_between_fields() -> None:
    with pytest.raises(BadInput, match=r"^batch_size: 1000 is the most with a deadline$"):
        build(Settings, {"batch_size": 2000, "deadline": 1.0})


def test_a_value_that_another_reading_mends_is_not_what_is_wrong() -> None:
    """``none`` is no text at first, and then it is: a rule that the settings break is told, and nothing of that."""
    with pytest.raises(BadInput, match=r"^batch_size: 1000 is the most with a deadline$"):
        build(Settings, {"title": "none", "batch_size": "2000", "deadline": "1.0"})


@pytest.mark.parametrize("word", ["batch_size", "=3", ""])
def test_a_word_that_is_not_key_and_value(word: str) -> None:
    with pytest.raises(BadInput, match="is not of the form key=value"):
        parse_words([word])


def test_a_key_given_twice() -> None:
    with pytest.raises(BadInput, match=r"batch_size: given twice \('1' and '2'\)"):
        parse_words(["batch_size=1", "batch_size=2"])


def test_a_config_is_frozen_and_its_defaults_are_validated() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().batch_size = 3  # type: ignore[misc]

    @config
    class Wrong:
        size: int = Field(default=0, ge=1)
        """Impossible."""

    with pytest.raises(BadInput, match="size: 0 is not allowed"):
        build(Wrong)


def test_a_config_comes_back_from_the_form_that_a_run_folder_keeps() -> None:
    made = build(Settings, {"layers": "3,4", "deadline": "2", "title": "a, b"})
    assert build(Settings, as_dict(made)) == made


def test_a_choice_of_numbers_is_chosen_by_text():
    @config
    class Choosing:
        bits: Literal[0, 8, 16] = 0

    assert build(Choosing, {"bits": "8"}).bits == 8
    with pytest.raises(BadInput, match=r"^bits: '7' is not allowed: input should be 0, 8 or 16$"):
        build(Choosing, {"bits": "7"})


@config
class Choosy:
    only_with: ClassVar[OnlyWith] = {"hops": {"walk": ("lazy", "sweep")}, "clip": {"noise": None, "bound": None}}

    walk: Literal["lazy", "sweep", "none"] = "none"
    hops: int = 3
    noise: float | None = None
    bound: bool = False
    clip: float = 1.0


@config
class Choosier(Choosy):
    only_with: ClassVar[OnlyWith] = {"share": {"walk": ("sweep",)}}

    share: float = 0.5


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["hops=4"], "hops: 4 is not allowed with walk=none, which ignores it; it is for walk=lazy, sweep"),
        (
            ["clip=2"],
            "clip: 2 is not allowed with noise=none and bound=false, which ignores it; it is for another noise or "
            "another bound",
        ),
        (
            ["share=1", "walk=lazy"],
            "share: 1 is not allowed with walk=lazy, which ignores it; it is for walk=sweep",
        ),
    ],
)
def test_a_setting_that_would_be_ignored_is_refused(words: list[str], line: str) -> None:
    with pytest.raises(BadInput) as refused:
        build_given(Choosier, words)
    assert str(refused.value) == line


def test_a_setting_that_counts_is_taken_and_so_is_what_it_is_anyway() -> None:
    for words in (["hops=3"], ["hops=4", "walk=sweep"], ["clip=2", "noise=1"], ["clip=2", "bound=true"], ["share=0.5"]):
        build_given(Choosier, words)
    build_given(Choosier, ["clip=2"], {"bound": True})
    assert build_given(Choosier, [], {"hops": 9}).hops == 9, "a preset may hold what only some methods need"


@pytest.mark.parametrize("name", ["glasu", "horizontal", "mtcd", "nebulafl", "pubsub-vfl", "tablepuppet"])
def test_what_protocols_say_is_ignored_are_settings(name: str) -> None:
    cls = find_protocol(name).Config
    fields, hints = {field.name for field in dataclasses.fields(cls)}, get_type_hints(cls, include_extras=True)
    for setting, others in cls.only_with.items():
        assert {setting, *others} <= fields
        for other, values in others.items():
            for value in values or ():
                TypeAdapter(hints[other]).validate_python(value)


def test_no_two_protocols_configs_say_the_same_method():
    """What two configs mean alike stands once, in a base of both."""
    said: dict[str, set[str]] = {}
    for path in sorted((Path(__file__).parents[1] / "protocols").glob("*/config.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                said.setdefault(ast.dump(node), set()).add(f"{path.parent.name}.{node.name}")
    assert not [names for names in said.values() if len(names) > 1]
