"""All protocols between three sites, each in a network namespace of its own; one is cut off, and one is killed.

Each site may have a Ray of its own, and a relay may call one of them.
"""

from __future__ import annotations

import contextlib
import io
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedactors.federation.operations import agree
from tests.federation import test_centers
from tests.federation.apart import (
    PROTOCOLS,
    RELAY,
    SITES,
    TEST,
    WHY_NOT,
    Apart,
    last_json,
    on_three_hosts,
)
from tests.federation.test_going_on import after_rounds, rounds_of, runs, same
from tests.federation.test_runs import SMALL, command, last_line, last_run, simulated
from tests.federation.world import BANK, CLINIC, SHOP

pytestmark = [
    pytest.mark.walk,
    pytest.mark.slow,
    pytest.mark.timeout(540),
    pytest.mark.skipif(WHY_NOT is not None, reason=f"three hosts cannot be made here: {WHY_NOT}"),
    pytest.mark.drawn(2, family="hosts"),
]
LASTING = ("num_epochs=60", *SMALL[1:], "algorithm=vfl", "num_parties=3")
HEARTBEAT = "broke (gave no heartbeat for 20 s)"
ALONE, WITH_RAYS, WITH_RELAY = "alone", "with rays", "with a relay"
alone = pytest.mark.parametrize("apart", [ALONE], indirect=True)
each = pytest.mark.parametrize("apart", [ALONE, pytest.param(WITH_RAYS, marks=pytest.mark.ray)], indirect=True)


@pytest.fixture(scope="module")
def apart(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    """Three sites, each with a Ray of its own or with a relay between them if that is asked for."""
    has = {"with_rays": request.param == WITH_RAYS, "with_relay": request.param == WITH_RELAY}
    with on_three_hosts(tmp_path_factory.mktemp("apart"), **has) as made:
        yield made


@each
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_on_three_hosts_a_protocol_gives_what_the_simulated_run_gives(
    apart: Apart, capsys: pytest.CaptureFixture[str], protocol: str
) -> None:
    assert simulated(apart, PROTOCOLS[protocol], protocol) == 0, capsys.readouterr().err
    expected = last_line(capsys)
    code, out, err = apart.run_at_the_bank(*command(apart, protocol), *TEST, *PROTOCOLS[protocol])
    assert code == 0, err
    found = last_json(out)
    assert found["metrics"] == pytest.approx(expected["metrics"], abs=1e-6, nan_ok=True)
    assert (found["bytes"], found["messages"]) == (expected["bytes"], expected["messages"])
    assert agree({name: apart.path / name for name in SITES}, last_run(apart))


@each
def test_on_three_hosts_centers_rotate_their_models(apart: Apart) -> None:
    test_centers.write_centers(apart)
    words = (*command(apart, "nebulafl"), *test_centers.SMALL, *test_centers.flags(apart))
    code, out, err = apart.run_at_the_bank(*words)
    assert code == 0, err
    assert last_json(out)["metrics"]["test/accuracy"] > 0.6
    assert agree({name: apart.path / name for name in SITES}, last_run(apart))


@pytest.fixture(scope="module")
def expected(apart: Apart) -> dict[str, Any]:
    """The long run, simulated, that nobody cuts."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert simulated(apart, LASTING) == 0
    return last_json(out.getvalue())


@pytest.mark.parametrize("seconds", [3.0, 30.0], ids=["for less than a heartbeat timeout", "for longer"])
@pytest.mark.parametrize(
    ("apart", "name", "said"),
    [(ALONE, CLINIC, HEARTBEAT), (ALONE, BANK, HEARTBEAT), (WITH_RELAY, RELAY, "broke (")],
    indirect=["apart"],
    ids=["a site", "the coordinator", "the relay"],
)
def test_who_is_off_the_network_delays_the_run(
    apart: Apart, expected: dict[str, Any], seconds: float, name: str, said: str
) -> None:
    """Longer than the heartbeat timeout of 20 s: both ends give their connections up, and dial anew."""
    seen: list[int] = []
    num_said = len(apart.lines[CLINIC])

    def cut() -> None:
        apart.cut(name)
        time.sleep(0.5)  # what was under way by then
        for _ in range(2):
            seen.append(len(rounds_of(runs(apart)[-1])))
            time.sleep(seconds / 2)
        apart.mend(name)

    cutting = after_rounds(apart, 2, cut)
    code, out, err = apart.run_at_the_bank(*command(apart, "pubsub-vfl"), *TEST, *LASTING)
    cutting.join(60)
    assert code == 0, err
    assert seen[0] == seen[1] < 60, "the run did not need what was cut off"
    same(last_json(out), expected)
    assert agree({site: apart.path / site for site in SITES}, last_run(apart))
    broke = [line for line in apart.lines[CLINIC][num_said:] if said in line]
    assert bool(broke) == (seconds > 20.0)


def resumed(apart: Apart, run: Path) -> tuple[int, str, str]:
    words = ("--federation", str(apart.path / BANK / "federation.toml"), "--resume", str(run))
    out_folder = ("--out", str(apart.path / "runs"), "--format", "json", "--quiet")
    return apart.run_at_the_bank("run", "pubsub-vfl", *words, *out_folder)


@alone
def test_a_coordinator_that_stays_away_ends_the_run_everywhere_and_the_run_goes_on_exactly(
    apart: Apart, expected: dict[str, Any]
) -> None:
    """Longer than the sites wait for one another: each ends it while nobody reaches the coordinator."""
    cutting = after_rounds(apart, 2, lambda: apart.cut(BANK))
    try:
        code, _, err = apart.run_at_the_bank(*command(apart, "pubsub-vfl"), *TEST, *LASTING)
        cutting.join(60)
        assert code == 3
        (line,) = [line for line in err.splitlines() if line.startswith("fedactors: ")]
        assert "was lost" in line
        assert "did not come back within 60 s" in line
        apart.await_idle(*SITES)  # the bank is still cut off
    finally:
        apart.mend(BANK)
    for name in SITES:
        ended = [one for one in apart.audit(name) if one["what"] == "ended" and one["who"] == "site"][-1]
        assert ended["status"] == "failed", name
    cut = runs(apart)[-1]
    assert 2 <= len(rounds_of(cut)) < 60
    code, out, err = resumed(apart, cut)
    assert code == 0, err
    same(last_json(out), expected)


@alone
def test_a_site_that_is_killed_ends_the_run_and_the_run_goes_on_exactly(apart: Apart, expected: dict[str, Any]) -> None:
    killing = after_rounds(apart, 2, lambda: apart.site[CLINIC].send_signal(signal.SIGKILL))
    code, _, err = apart.run_at_the_bank(*command(apart, "pubsub-vfl"), *TEST, *LASTING)
    killing.join(60)
    assert code == 3
    (line,) = [line for line in err.splitlines() if line.startswith("fedactors: ")]
    assert "its site clinic was lost" in line
    apart.await_idle(BANK, SHOP)
    assert [one["status"] for one in apart.audit(SHOP) if one["what"] == "ended"][-1] == "failed"
    cut = runs(apart)[-1]
    assert 2 <= len(rounds_of(cut)) < 60
    apart.begin(CLINIC)
    apart.listens(CLINIC)
    code, out, err = resumed(apart, cut)
    assert code == 0, err
    same(last_json(out), expected)
