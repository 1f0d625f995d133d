"""A run over a federation, from a command's options: what is proposed to the sites, and the runtime that runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedactors.command_line.options import RunOptions
from fedactors.config import as_dict, build_given, spell_infinities, with_contents
from fedactors.errors import BadInput
from fedactors.plugins import Protocol, loader
from fedactors.records.recorder import Recorder
from fedactors.records.run_folder import RunFolder
from fedactors.runtime.base import Runtime
from fedactors.validation import read_text, shown

if TYPE_CHECKING:
    from fedactors.runtime.federated.folders import SiteFolder
    from fedactors.runtime.federated.proposal import Proposal

_ELSEWHERE = (
    "runtime",
    "address",
    "pool",
    "emulate",
    "lease",
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
    _refuse_elsewhere(options, "--federation")
    if options.smoke and options.full:
        raise BadInput("--smoke and --full exclude each other")
    if len(options.seeds or ()) > 1:
        raise BadInput("--seeds: is not allowed with --federation: each run is approved by itself")
    if options.data is None:
        raise BadInput("--data: missing: give SITE=NAME,SITE=NAME, the names that the sites have for their data")
    preset = protocol.smoke if options.smoke else protocol.full if options.full else {}
    if any(field.name == "on_party_loss" for field in dataclasses.fields(protocol.Config)):
        preset = {"on_party_loss": "stop", **preset}
    seeds = options.seeds or (options.seed or 0,)
    config = build_given(protocol.Config, words, preset)
    # no path of this host's is a setting that others could open
    return with_contents(config), dataclasses.replace(options, seeds=seeds, runtime="federated")


def resume_federated(options: RunOptions, stored: Mapping[str, Any]) -> RunOptions:
    """Return the options of a run over a federation that goes on.

    Args:
        options: of the command.
        stored: what the run was made with.

    Raises:
        BadInput: a flag that has no meaning there, or no federation is given.
    """
    _refuse_elsewhere(options, "--federation")
    if options.federation is None:
        raise BadInput("--resume: the run was over a federation: give --federation FILE")
    if options.data is not None:
        raise BadInput("--resume takes no overrides of what is trained: --data given")
    if options.budget or options.share_seed:
        raise BadInput("--resume takes no overrides of what was approved: --budget or --share-seed given")
    return dataclasses.replace(options, seeds=(stored["seed"],), data=stored["data"], runtime="federated")


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A run over a federation that is to be proposed."""

    proposal: Proposal
    data: Any
    """As the driver knows them, names only."""
    make: Callable[[Recorder | None], Runtime]


def prepare_federated(protocol: Protocol, config: Any, options: RunOptions, seed: int) -> Prepared:
    """Return what is proposed to the sites, and what makes the runtime.

    Raises:
        BadInput: the federation, the site beside its file, the data's names, or the run to go on from are wrong.
    """
    from fedactors.runtime.federated.policy import parse_budgets
    from fedactors.runtime.federated.proposal import go_on, make_proposal
    from fedactors.runtime.federated.runtime import checkpoint_number

    folder = _site(options)
    if options.resume is not None:
        parent = RunFolder.open(options.resume)
        number = checkpoint_number(parent.checkpoint_to_resume().driver)
        return _prepared(folder, protocol, config, go_on(folder, _run_of(parent), number, "resume"), seed)
    settings = spell_infinities(as_dict(config))
    shared = seed if options.share_seed else None
    proposal = make_proposal(folder, protocol, settings, options.data or "", shared, parse_budgets(options.budget))
    return _prepared(folder, protocol, config, proposal, seed)


def prepare_prediction(
    protocol: Protocol, config: Any, run: RunFolder, driver: bytes, options: RunOptions, seed: int
) -> Prepared:
    """Return what is proposed to the sites that have the parts of a trained model.

    Args:
        protocol: of the run.
        config: of the run.
        run: its folder, at the coordinator.
        driver: the driver's part of one of its checkpoints.
        options: federation, and the names of each site's new rows.
        seed: of the run.

    Raises:
        BadInput: as `prepare_federated`.
    """
    from fedactors.runtime.federated.proposal import go_on
    from fedactors.runtime.federated.runtime import checkpoint_number

    _refuse_elsewhere(options, "--federation")
    folder = _site(options)
    proposal = go_on(folder, _run_of(run), checkpoint_number(driver), "predict", options.data or "")
    return _prepared(folder, protocol, config, proposal, seed)


def _prepared(folder: SiteFolder, protocol: Protocol, config: Any, proposal: Proposal, seed: int) -> Prepared:
    from fedactors.records.recorder import FolderRecorder
    from fedactors.runtime.federated.proposal import classes_of
    from fedactors.runtime.federated.runtime import FederatedRuntime

    classes = classes_of(protocol, config, proposal.purpose).values()

    def make(recorder: Recorder | None) -> Runtime:
        assert recorder is None or isinstance(recorder, FolderRecorder)
        return FederatedRuntime(folder, proposal, classes, seed=seed, recorder=recorder)

    load = loader(protocol, is_new=proposal.purpose == "predict")
    assert load is not None
    return Prepared(proposal, load(config, proposal.described(), seed), make)


def _site(options: RunOptions) -> SiteFolder:
    from fedactors.runtime.federated.folders import FEDERATION, SITE, SiteFolder

    path = Path(options.federation or "")
    if path.name != FEDERATION:
        raise BadInput(
            f"--federation: {options.federation!r} is not allowed: give the {FEDERATION} in the folder of your site"
        )
    read_text(path, "--federation")
    if not (path.parent / SITE).is_file():
        raise BadInput(f"--federation: {shown(str(path))} is not allowed: no {SITE} lies beside it")
    return SiteFolder(path.parent)


def _run_of(folder: RunFolder) -> str:
    """Return by which id the sites know the run in a folder.

    Raises:
        BadInput: it was not over a federation.
    """
    if isinstance(own := folder.config.get("site"), dict):
        raise BadInput(
            f"{folder.path}: these are the records of the site {own.get('name')} alone: the run goes on, and predicts, "
            f"from the run folder of its coordinator, {own.get('coordinator')}"
        )
    found = (folder.config.get("federation") or {}).get("run")
    if not isinstance(found, str):
        raise BadInput(f"{folder.path}: this run was not over a federation")
    return found


def _refuse_elsewhere(options: RunOptions, why: str) -> None:
    for flag in _ELSEWHERE:
        if getattr(options, flag):
            raise BadInput(f"--{flag.replace('_', '-')}: is not allowed with {why}")
