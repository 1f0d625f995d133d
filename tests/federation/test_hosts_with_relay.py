"""Three sites and a relay, each in a network namespace of its own: the relay is cut off in the middle of a run."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Iterator
from typing import Any

import pytest

from fedactors.federation.operations import agree
from tests.federation.apart import RELAY, SITES, TEST, WHY_NOT, Apart, last_json, on_three_hosts
from tests.federation.test_going_on import after_rounds, rounds_of, runs, same
from tests.federation.test_runs import SMALL, command, last_run, simulated
from tests.federation.world import CLINIC

pytestmark = [
    pytest.mark.walk,
    pytest.mark.slow,
    pytest.mark.timeout(540),
    pytest.mark.skipif(WHY_NOT is not None, reason=f"four hosts cannot be made here: {WHY_NOT}"),
    pytest.mark.drawn(1, family="hosts", of=4),
]
LASTING = ("num_epochs=30", *SMALL[1:], "algorithm=vfl", "num_parties=3")


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    with on_three_hosts(tmp_path_factory.mktemp("relayed"), with_relay=True) as made:
        yield made


@pytest.fixture(scope="module")
def expected(apart: Apart) -> dict[str, Any]:
    """The run, simulated, that nobody cuts."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert simulated(apart, LASTING) == 0
    return last_json(out.getvalue())


@pytest.mark.parametrize("seconds", [3.0, 30.0], ids=["for less than a heartbeat timeout", "for longer"])
def test_a_relay_that_is_off_the_network_delays_the_run(apart: Apart, expected: dict[str, Any], seconds: float) -> None:
    """Longer than the heartbeat timeout of 20 s the clinic is called anew, once it waits at the relay again."""
    seen: list[int] = []
    num_said = len(apart.lines[CLINIC])

    def cut() -> None:
        apart.hosts.cut(RELAY)
        time.sleep(0.5)  # what was under way by then
        for _ in range(2):
            seen.append(len(rounds_of(runs(apart)[-1])))
            time.sleep(seconds / 2)
        apart.hosts.mend(RELAY)

    cutting = after_rounds(apart, 2, cut)
    code, out, err = apart.run_at_the_bank(*command(apart, "pubsub-vfl"), *TEST, *LASTING)
    cutting.join(60)
    assert code == 0, err
    assert seen[0] == seen[1] < 30, "the run did not need the relay"
    same(last_json(out), expected)
    assert agree({name: apart.path / name for name in SITES}, last_run(apart))
    broke = [line for line in apart.lines[CLINIC][num_said:] if "broke (" in line]
    assert bool(broke) == (seconds > 20.0)
