"""A run over a federation, from a command's options: what is proposed to the sites, and the runtime that runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedactors.command_line.options import RunOptions
from fedactors.config import as_dict, build, parse_words, spell_infinities
from fedactors.errors import BadInput
from fedactors.plugins import Protocol
from fedactors.records.recorder import Recorder
from fedactors.runtime.base import Runtime

_ELSEWHERE = (
    "runtime",
    "address",
    "pool",
    "emulate",
    "lease",
    "resume",
    "place",
    "spread",
    "state",
    "state_key",
    "trust",
)


def resolve_federated(protocol: Protocol, words: Sequence[str], options: RunOptions) -> tuple[Any, RunOptions]:
    """Return the validated config and the options of a run over a federation.

    Raises:
        BadInput: a flag that has no meaning there, several seeds, or no data.
    """
    for flag in _ELSEWHERE:
        if getattr(options, flag):
            raise BadInput(f"--{flag.replace('_', '-')}: is not allowed with --federation")
    if options.smoke and options.full:
        raise BadInput("--smoke and --full exclude each other")
    if len(options.seeds or ()) > 1:
        raise BadInput("--seeds: is not allowed with --federation: each run is approved by itself")
    if options.data is None:
        raise BadInput("--data: missing: give SITE=NAME,SITE=NAME, the names that the sites have for their data")
    preset = protocol.smoke if options.smoke else protocol.full if options.full else {}
    given = {**preset, **parse_words(words)}
    if any(field.name == "on_party_loss" for field in dataclasses.fields(protocol.Config)):
        given.setdefault("on_party_loss", "stop")
    seeds = options.seeds or (options.seed or 0,)
    return build(protocol.Config, given), dataclasses.replace(options, seeds=seeds, runtime="federated")


def prepare_federated(
    protocol: Protocol, config: Any, options: RunOptions, seed: int
) -> tuple[Any, Callable[[Recorder | None], Runtime]]:
    """Return the data as the driver knows them, names only, and what makes the runtime.

    Raises:
        BadInput: the federation, the site beside its file, or the data's names are wrong.
    """
    from fedactors.runtime.federated.folders import FEDERATION, SiteFolder
    from fedactors.runtime.federated.policy import parse_budgets
    from fedactors.runtime.federated.proposal import make_proposal
    from fedactors.runtime.federated.runtime import FederatedRuntime

    path = Path(options.federation or "")
    if path.name != FEDERATION:
        raise BadInput(f"--federation: {str(path)!r} is not allowed: give the {FEDERATION} in the folder of your site")
    folder = SiteFolder(path.parent)
    settings = spell_infinities(as_dict(config))
    shared = seed if options.share_seed else None
    proposal = make_proposal(folder, protocol, settings, options.data or "", shared, parse_budgets(options.budget))
    classes = (protocol.actors or (lambda _: {}))(config).values()

    def make(recorder: Recorder | None) -> Runtime:
        return FederatedRuntime(folder, proposal, classes, seed=seed, recorder=recorder)

    return proposal.described(), make
