"""How many files somebody opens who follows a run from its command to the step of an optimiser, as a run has them."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import fedactors.learning.optimizers
from fedactors.cli.main import main

pytestmark = pytest.mark.docs

ROOT = Path(__file__).resolve().parents[1]
MOST_FILES = 11


def _callers() -> Iterator[str]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back


def _awaited(coroutine: Any) -> Iterator[str]:
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None)
        if frame is not None:
            yield frame.f_code.co_filename
        coroutine = getattr(coroutine, "cr_await", None)


def _passed_here() -> set[str]:
    """Return the files between the command and whoever calls this: its callers, and what the driver waits for."""
    files = list(_callers())
    for task in asyncio.all_tasks():
        waits_for = list(_awaited(task.get_coro()))
        # the driver, and its requests; other actors that are busy are not between the two
        if any(Path(file).name in ("run.py", "groups.py") for file in waits_for):
            files += waits_for
    local = (ROOT / "fedactors", ROOT / "protocols")
    real = [Path(file).resolve() for file in files]  # fedactors/protocols is a link
    return {str(file.relative_to(ROOT)) for file in real if any(file.is_relative_to(one) for one in local)}


@pytest.mark.slow
def test_the_walk_from_the_command_to_the_step_is_the_documented_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, walks = fedactors.learning.optimizers.optimizer_step, []

    def watched(*args: Any, **kwargs: Any) -> Any:
        walks.append(_passed_here() | {"fedactors/learning/optimizers.py"})
        return step(*args, **kwargs)

    from fedactors.protocols.pubsub_vfl import run  # noqa: F401  (modules that take the step by its name have it from here on)

    for module in list(sys.modules.values()):
        if getattr(module, "optimizer_step", None) is step:
            monkeypatch.setattr(module, "optimizer_step", watched)
    assert main(["run", "pubsub-vfl", "--smoke", "--runtime", "simulated", "--out", str(tmp_path)]) == 0

    page = (ROOT / "docs/architecture.md").read_text()
    listed = set(re.findall(r"`([\w/]+\.py)`", page.split("**From the command to a step.**")[1].split("\n\n")[0]))
    assert len(walks) > 4
    assert set.union(*walks) == listed
    assert len(listed) <= MOST_FILES
