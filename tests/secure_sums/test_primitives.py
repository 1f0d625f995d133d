"""What must not follow from a run's seed, and must not lie in its folder: keys, masks and noise."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from fedactors.cli.main import main
from tests.bad_inputs.world import SMALL

QUIET = ("--runtime", "simulated", "--quiet", "--out")


def go(out: Path, protocol: str, *words: str) -> Path:
    """Run a small run and return its folder."""
    given = {word.partition("=")[0] for word in words}
    settings = SMALL.get(protocol, "num_rounds=1 num_training=40").split()
    others = [word for word in settings if word.partition("=")[0] not in given]
    assert main(["run", protocol, *others, *words, *QUIET, str(out)]) == 0
    (folder,) = out.iterdir()
    return folder


SUMMED = {
    "glasu": "secure_aggregation=true --data blocks:60x6x2",
    "horizontal": "secure_aggregation=true num_clients=3",
    "mtcd": "secure_aggregation=true learning_rate=0.1 num_clients=3",
    "nebulafl": "secure_aggregation=true algorithm=fedhisyn on_party_loss=stop num_centers=3 num_containers=6",
    "tablepuppet": "secure_aggregation=true algorithm=rfl-sgd-v",
}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", SUMMED)
def test_no_secret_of_a_secure_sum_is_in_the_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """Everything that secure sums drew from the operating system: keys, seeds of masks, shares.

    What GLASU draws for its orders is in its checkpoints, as the page about them says.
    """
    drawn: list[bytes] = []
    urandom = os.urandom

    def draw(size: int) -> bytes:
        found = urandom(size)
        if sys._getframe(1).f_globals["__name__"].startswith("fedactors.secure_sums."):
            drawn.append(found)
        return found

    monkeypatch.setattr(os, "urandom", draw)
    folder = go(tmp_path, protocol, *SUMMED[protocol].split())
    secret = [one for one in drawn if len(one) >= 16]
    assert len(secret) >= 9  # at least three clients' keys for agreement and signatures, and seeds of masks
    content = b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
    assert [one.hex() for one in secret if one in content or one.hex().encode() in content] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "noisy"),
    [("pubsub-vfl", ("embedding_mu=1",)), ("tablepuppet", ("feature_dp=8", "admm=paper_sgd"))],
)
def test_noise_does_not_follow_from_the_seed(tmp_path: Path, protocol: str, noisy: tuple[str, ...]) -> None:
    def metrics(name: str, *words: str) -> Any:
        return (go(tmp_path / name, protocol, *words) / "metrics/round_metrics.jsonl").read_text()

    assert metrics("plain") == metrics("again")
    assert metrics("noisy", *noisy) != metrics("noisy-again", *noisy)
