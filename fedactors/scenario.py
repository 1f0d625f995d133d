"""Scenario scripts: `main` gives a script the flags of ``fedactors run``.

    @config
    class Config(PubSubConfig):
        num_epochs: int = 3

    if __name__ == "__main__":
        main(Config, run, data="breast-cancer", partition="vertical", headline=Headline(name="auc"))

Importing this module is light; torch and ray come with what the scenario itself imports.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fedactors.cli.flags import Parser, add_run_flags, run_options
from fedactors.cli.main import run_and_print
from fedactors.cli.terminal import end_process, guarded
from fedactors.plugins import (
    Actors,
    Export,
    Headline,
    LoadData,
    Measure,
    Neighbours,
    Network,
    Plan,
    Predict,
    ProtocolFacts,
    Run,
    Surface,
)


@dataclass(frozen=True, kw_only=True)
class Scenario(ProtocolFacts):
    """A `fedactors.plugins.Protocol` made of a script's config and run function."""

    Config: type[Any]
    run: Run
    messages: ModuleType | None = None
    actors: Actors | None = None
    load_data: LoadData | None = None
    load_new: LoadData | None = None
    plan: Plan | None = None
    measure: Measure | None = None
    predict: Predict | None = None
    predictors: Actors | None = None
    export: Export | None = None
    network: Network | None = None
    neighbours: Neighbours | None = None
    surface: Surface | None = None


def main(
    Config: type[Any],
    run: Run,
    *,
    data: str,
    partition: str,
    headline: Headline,
    load_data: LoadData | None = None,
    name: str | None = None,
    smoke: Mapping[str, Any] | None = None,
    paper: Mapping[str, Any] | None = None,
    party_loss: frozenset[str] = frozenset({"stop"}),
    default_party_loss: str = "stop",
    argv: Sequence[str] | None = None,
) -> None:
    """Parse the command line, run the scenario, print its result and exit with the documented code.

    Args:
        Config: config dataclass of the scenario.
        run: ``async def run(config, data, runtime) -> RunResult``.
        data: data set of a run that names none.
        partition: layout of the data: vertical, horizontal, graph or relational.
        headline: the main metric.
        load_data: ``load_data(config, name_or_file, seed)``, what ``run`` receives as its data.
        name: name in run folders; the script's by default.
        smoke: config values for ``--smoke``.
        paper: config values for ``--paper``.
        party_loss: what the scenario supports when a party's process is lost.
        default_party_loss: what it does when a run says nothing.
        argv: words of the command line; the process's own by default.
    """
    scenario = Scenario(
        name=name or Path(sys.argv[0]).stem,
        summary=(sys.modules["__main__"].__doc__ or "").strip().partition("\n")[0],
        partition=partition,
        default_data=data,
        headline=headline,
        Config=Config,
        run=run,
        load_data=load_data,
        smoke=smoke or {},
        paper=paper or {},
        party_loss=party_loss,
        default_party_loss=default_party_loss,
    )
    parser = Parser(prog=Path(sys.argv[0]).name, description=scenario.summary, allow_abbrev=False)
    parser.explained = scenario
    add_run_flags(parser)

    try:
        with guarded():
            args = parser.parse_intermixed_args(argv)
            code = run_and_print(scenario, args.words, run_options(args), f"python {shlex.quote(sys.argv[0])}")
    except SystemExit as done:
        code = int(done.code or 0)
    end_process(code)
