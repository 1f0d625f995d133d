"""Help about settings: every field of every config, in 80 columns, and what the words say."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import Field

from docs import settings_pages
from fedactors.cli import main as cli
from fedactors.config import build, config
from fedactors.inspection import ADDED, by_section, settings_of
from fedactors.plugins import find_protocol
from tests.tiny import install_plugin

ROOT = Path(__file__).parents[2]
BUILT_IN = ("glasu", "horizontal", "mtcd", "nebulafl", "pubsub_vfl", "tablepuppet")


@config
class Everything:
    """One field of each kind, the first ones without a section."""

    sections: ClassVar = {"share": "Numbers", "kind": "Words", "limit": "Numbers"}

    seed: int
    """Must be given."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """A ``share``."""
    kind: Literal["fast", "slow"] = "slow"
    """How."""
    step: Literal["auto"] | float = "auto"
    """Step."""
    exact: bool = False
    """Whether."""
    layers: tuple[Annotated[int, Field(ge=1)], ...] = (1, 2)
    """Layers."""
    pairs: tuple[tuple[int, ...], ...] = ()
    """Pairs."""
    limit: int | None = Field(default=None, ge=1, lt=9)
    """At most,
    or not."""


@config
class OfAScenario(Everything):
    """Another default, and a setting more."""

    share: float = 0.25
    extra: str = "x"
    """More."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plain:
    size: int = 3
    names: list[str] = dataclasses.field(default_factory=list)
    hook: Callable[[], int] | None = None


def test_what_is_allowed_in_words():
    assert {setting.name: (setting.default, setting.allowed) for setting in settings_of(Everything)} == {
        "seed": ("", "integer; required"),
        "share": ("0.5", "number > 0 and <= 1"),
        "kind": ("slow", "fast | slow"),
        "step": ("auto", "auto | number"),
        "exact": ("false", "true | false"),
        "layers": ("1,2", "list of integers >= 1"),
        "pairs": ("[]", "list of lists of integers"),
        "limit": ("none", "integer >= 1 and < 9 | none"),
    }


def test_choices_and_meaning_are_those_of_the_field():
    found = {setting.name: setting for setting in settings_of(Everything)}
    assert found["step"].choices == ("auto",)
    assert found["limit"].choices == ("none",)
    assert found["exact"].choices == ("true", "false")
    assert found["limit"].meaning == "At most, or not."


def test_sections_go_on_and_what_a_scenario_adds_comes_first():
    titles = {title: [setting.name for setting in found] for title, found in by_section(OfAScenario).items()}
    assert titles == {
        ADDED: ["extra"],
        "": ["seed"],
        "Numbers": ["share", "limit"],
        "Words": ["kind", "step", "exact", "layers", "pairs"],
    }
    share = next(setting for setting in settings_of(OfAScenario) if setting.name == "share")
    assert (share.default, share.meaning) == ("0.25", "A ``share``.")


def test_a_config_of_a_third_party_needs_neither_sections_nor_docstrings():
    assert [(found.name, found.section, found.default, found.allowed) for found in settings_of(Plain)] == [
        ("size", "", "3", "integer"),
        ("names", "", "[]", "list of texts"),
        ("hook", "", "none", "any value | none"),
    ]


def test_a_page_escapes_what_ends_a_cell():
    page = settings_pages.settings_tables(Everything)
    assert "| `kind` | `slow` | fast, slow | How. |" in page
    assert page.index("## Numbers") < page.index("`limit`") < page.index("## Words")


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_defaults_that_are_shown_are_the_defaults(name, built_in):
    cls = find_protocol(name).Config
    shown = {found.name: found.default for found in settings_of(cls)}
    assert shown.keys() == {field.name for field in dataclasses.fields(cls)}
    assert build(cls, {key: value for key, value in shown.items() if value}) == cls()
    assert set(cls.sections) <= shown.keys()
    assert all(found.meaning and found.section for found in settings_of(cls))


@pytest.fixture
def built_in(tmp_path, monkeypatch):
    """The protocols of this tree, whatever is installed."""
    install_plugin(tmp_path, **{name: f"fedactors.protocols.{name}.plugin:PROTOCOL" for name in BUILT_IN})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("command", ["run", "inspect", "submit", "plan"])
@pytest.mark.parametrize("name", BUILT_IN)
def test_help_of_a_command_explains_the_settings_of_its_protocol(capsys, built_in, name, command):
    assert cli.main([command, name, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    for setting in settings_of(find_protocol(name).Config):
        assert any(line.startswith(f"  {setting.name}={setting.default}") for line in lines), setting.name
    assert any(line.startswith("--smoke: ") for line in lines)


def test_help_without_a_protocol_is_about_the_command_only(capsys, built_in):
    assert cli.main(["run", "--help"]) == 0
    assert "key=value:" not in capsys.readouterr().out
    assert cli.main(["run", "glaso", "--help"]) == 2
    assert "did you mean glasu?" in capsys.readouterr().err


@pytest.mark.docs
@pytest.mark.parametrize("name", BUILT_IN)
def test_the_page_of_the_documentation_is_current(tmp_path, built_in, name):
    assert settings_pages.main([str(tmp_path / "pages"), name]) == 0
    committed = ROOT / "docs" / "reference" / "configuration" / f"{name}.md"
    rule = "write it again: python -m docs.settings_pages docs/reference/configuration"
    assert committed.read_text() == (tmp_path / "pages" / f"{name}.md").read_text(), rule


def test_pages_need_a_folder(capsys):
    with pytest.raises(SystemExit) as ended:
        settings_pages.main([])
    assert ended.value.code == 2
    assert "give a folder" in capsys.readouterr().err
