"""Containers that are processes of their own: the same run as in their center's process, losses, endpoints, Ray."""

import dataclasses
import functools
import json
import os
import signal
from typing import Any

import numpy as np
import pytest

from fedactors.actors.actor import Client
from fedactors.actors.remote import DRIVER, remote
from fedactors.data.layouts.horizontal import HorizontalPart
from fedactors.data.new_rows import actor_state
from fedactors.errors import BadInput, Refused
from fedactors.protocols.nebulafl.actors import NebulaCenter
from fedactors.protocols.nebulafl.containers import Container
from fedactors.protocols.nebulafl.data import load_data
from fedactors.protocols.nebulafl.messages import ContainerOrder, ContainerResult, sent
from fedactors.protocols.nebulafl.run import run
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.ray.runtime import RayRuntime
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.protocols.nebulafl.runs import BASELINES, PRICES, SMALL, changed, cut, play, rounds, spans_of, user_files

METHODS = ("nebulafl", *(name for name in BASELINES if name != "fedhkt"))
ALONE = changed(container_processes=True)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", METHODS)
def test_the_run_is_that_of_containers_in_their_centers_process(algorithm):
    found = [play(changed(algorithm=algorithm, container_processes=alone))[1] for alone in (False, True)]
    assert rounds(found[0]) == rounds(found[1])
    assert spans_of(found[0]) == spans_of(found[1])


@pytest.mark.slow
def test_with_outages_and_batched_calls_too():
    brief = {"duration": 260.0, "rotation_interval": 50.0, "evaluation_interval": 65.0}
    for values in ({"outages": "oregon/0@100-1500"}, {"together": True, "model": "linear", **brief}):
        found = [play(changed(container_processes=alone, **values))[1] for alone in (False, True)]
        assert rounds(found[0]) == rounds(found[1])


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["nebulafl", "fedbuff", "fedhisyn"])
@pytest.mark.parametrize("after", [1, 7, 20])
def test_a_run_cut_while_containers_train_goes_on_exactly(algorithm, after):
    config = changed(ALONE, algorithm=algorithm)
    _, recorder, _ = play(config)
    first, snapshot = cut(config, after)
    assert rounds(first) + rounds(play(config, resume=snapshot)[1]) == rounds(recorder)


@pytest.mark.slow
def test_only_the_container_is_told_of_its_rows_and_its_model_stays_at_its_center():
    built: dict[str, tuple[Any, ...]] = {}

    class Watched(SimulatedRuntime):
        def spawn(self, cls, name, *args, **kwargs):
            built[name] = args
            return super().spawn(cls, name, *args, **kwargs)

    data, recorder = load_data(ALONE, "digits", 0), MemoryRecorder()
    runtime = Watched(seed=0, recorder=recorder)
    runtime.execute(lambda: run(ALONE, data, runtime))
    parts = {name: [one for one in args if isinstance(one, HorizontalPart)] for name, args in built.items()}
    held = {name: [source for part in found for source in part.clients] for name, found in parts.items()}
    containers = {name for name in held if "/" in name}
    assert len(containers) == ALONE.num_containers
    assert all(len(held[name]) == 1 for name in containers)
    assert not any(held[name] for name in held.keys() - containers)
    assert len({source.index for name in containers for source in held[name]}) == ALONE.num_containers
    # what containers send goes to their own center, whatever the rest of the run is
    rows = [r for r in recorder.ledger_rows if r[1] in containers or r[2] in containers]
    assert {r[4] for r in rows} >= {"ContainerFacts", "ContainerOrder", "ContainerResult"}
    assert all(r[1].partition("/")[0] == r[2].partition("/")[0] for r in rows if "driver" not in (r[1], r[2]))


@pytest.mark.slow
@pytest.mark.parametrize("listed", [True, False])
def test_user_tables(tmp_path, listed):
    config, data = user_files(tmp_path, listed=listed)
    found = []
    for alone in (False, True):
        one, recorder = dataclasses.replace(config, container_processes=alone), MemoryRecorder()
        runtime = SimulatedRuntime(seed=0, recorder=recorder)
        runtime.execute(functools.partial(run, one, data, runtime))
        found.append(recorder)
    assert rounds(found[0]) == rounds(found[1])
    last = [list(recorder.checkpoints.values())[-1].actors for recorder in found]
    assert actor_state(last[0], "oregon")["reading"] == actor_state(last[1], "oregon")["reading"]


def test_tables_of_other_columns_end_the_run_with_one_line(tmp_path):
    config, data = user_files(tmp_path, wider=("client-1",), listed=False)
    runtime = SimulatedRuntime(seed=0)
    with pytest.raises(BadInput, match="oregon/0 3, oregon/1 4"):
        runtime.execute(lambda: run(dataclasses.replace(config, container_processes=True), data, runtime))


def test_what_could_not_keep_its_labels_is_refused():
    with pytest.raises(ValueError, match="fedhkt: its centers count labels"):
        changed(ALONE, algorithm="fedhkt")


def test_what_is_sent_is_declared():
    named = {cls.__name__ for cls in sent(ALONE)}
    assert named > {cls.__name__ for cls in sent(SMALL)}
    assert {"ContainerFacts", "ContainerOrder", "ContainerResult", "ContainerEvent"} <= named


# --- losses ---


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", METHODS)
def test_a_container_lost_and_back(algorithm):
    config = changed(ALONE, algorithm=algorithm, restart_seconds=700.0)
    result, recorder, _ = play(config, faults={"virginia/1": 710.0})
    spans = spans_of(recorder)
    rent = sum(PRICES[s["label"].split(" on ")[1].partition("#")[0]] * (s["end"] - s["start"]) / 3600 for s in spans)
    assert sum(bill["rent"] for bill in result.extra["centers"].values()) == pytest.approx(rent, rel=1e-9)
    local = [s for s in spans if s["label"].startswith("virginia/1 ")]
    assert not any(710.0 < s["start"] < 1410.0 for s in local)
    assert result.metrics["trainings"] == sum(s["kind"] == "train" for s in spans)
    assert rounds(play(config, faults={"virginia/1": 710.0})[1]) == rounds(recorder)
    if algorithm == "nebulafl":
        assert sum(map(sum, result.extra["versions"].values())) == result.metrics["trainings"]


@pytest.mark.slow
def test_a_container_gone_for_good_is_called_no_more_and_the_resumed_run_knows():
    config = changed(ALONE, on_party_loss="continue")
    faults = {"oregon/0": 300.0}
    _, recorder, _ = play(config, faults=faults)
    assert not any(s["label"].startswith("oregon/0 ") and s["start"] > 300.0 for s in spans_of(recorder))
    first, snapshot = cut(config, 20, faults=faults)
    later = play(config, resume=snapshot)[1]
    assert rounds(first) + rounds(later) == rounds(recorder)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["nebulafl", "fedbuff", "fedhisyn"])
@pytest.mark.parametrize("order", [("virginia", "virginia/1"), ("virginia/1", "virginia")])
def test_a_center_and_its_container_lost_together(algorithm, order):
    config = changed(ALONE, algorithm=algorithm, restart_seconds=400.0)
    first, second = order
    result, recorder, _ = play(config, faults={first: 710.0, second: 900.0})
    spans = spans_of(recorder)
    assert any(s["actor"] == "virginia" and s["start"] >= 1300.0 for s in spans)
    assert any(s["label"].startswith("virginia/1 ") and s["start"] >= 1100.0 for s in spans)
    rent = sum(PRICES[s["label"].split(" on ")[1].partition("#")[0]] * (s["end"] - s["start"]) / 3600 for s in spans)
    assert sum(bill["rent"] for bill in result.extra["centers"].values()) == pytest.approx(rent, rel=1e-9)
    if algorithm == "nebulafl":
        assert sum(map(sum, result.extra["versions"].values())) == result.metrics["trainings"]


# --- endpoints ---


class Outsider(Client):
    """Someone who tries the endpoints between a center and its containers."""

    @remote(caller=DRIVER)
    async def order(self) -> None:
        """Let a container train one's own model."""
        await self.peer("oregon/0", Container).train(ContainerOrder(1, 0, 1.0, 1.0, np.zeros(3, np.float32)))

    @remote(caller=DRIVER)
    async def answer(self) -> None:
        """Send a center a model that it did not order here."""
        await self.peer("oregon", NebulaCenter).container_trained(ContainerResult(1, 5, 0.0, np.zeros(3, np.float32)))


def refusal(name, method):
    data = load_data(ALONE, "digits", 0)
    runtime = SimulatedRuntime(seed=0)

    async def main():
        outsider = runtime.spawn(Outsider, name)
        runtime.spawn(Container, "oregon/0", ALONE, data.part((0,)), 0)
        await runtime.start()
        await getattr(outsider, method)()

    with pytest.raises(Refused) as caught:
        runtime.execute(main)
    assert caught.value.party == name
    return str(caught.value)


@pytest.mark.parametrize("name", ["virginia", "virginia/0"])
def test_another_center_is_refused(name):
    assert "open to: own party" in refusal(name, "order")


def test_a_sibling_is_refused():
    assert "speaks to oregon/0 for 'oregon'" in refusal("oregon/1", "order")


@pytest.mark.slow
def test_a_sibling_s_result_is_not_taken():
    """A container of the same center names a training that another one has under way."""

    class Liar(Container):
        async def _answer(self, number):
            for guess in range(number - 3, number + 4):
                if guess != number:
                    lie = ContainerResult(guess, 1, 0.0, np.full_like(self.job_model, 1e9))
                    await self.peer(self.party, NebulaCenter).container_trained(lie)
            await super()._answer(number)

        @property
        def job_model(self):
            return np.zeros(10, np.float32)

    class Lying(SimulatedRuntime):
        def spawn(self, cls, name, *args, **kwargs):
            return super().spawn(Liar if name == "oregon/0" else cls, name, *args, **kwargs)

    data, recorder = load_data(ALONE, "digits", 0), MemoryRecorder()
    runtime = Lying(seed=0, recorder=recorder)
    runtime.execute(lambda: run(ALONE, data, runtime))
    assert rounds(recorder) == rounds(play(ALONE)[1])


# --- Ray ---


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_killed_container_comes_back_on_ray():
    config = dataclasses.replace(
        ALONE,
        num_centers=2,
        num_containers=4,
        active_per_center=1,
        duration=15000.0,
        evaluation_interval=2500.0,
        restart_seconds=100.0,
        checkpoint_interval=1,
    )
    data, killed = load_data(config, "digits", 0), []

    class Killer(MemoryRecorder):
        def record_round(self, index, metrics):
            super().record_round(index, metrics)
            if not killed:
                killed.append(runtime.processes["virginia/0"])
                os.kill(killed[0], signal.SIGKILL)

    recorder = Killer()
    runtime = RayRuntime(seed=0, recorder=recorder, emulate=True, scale=0.002)
    result = runtime.execute(lambda: run(config, data, runtime))
    assert len(set(runtime.processes.values())) == len(runtime.processes) == 2 + 4 + 1
    assert runtime.processes["virginia/0"] != killed[0]
    assert sum(map(sum, result.extra["versions"].values())) == result.metrics["trainings"] > 0
    spans = [json.loads(line) for line in recorder.lines]
    trained = [
        s for s in spans if s["type"] == "span" and s["kind"] == "train" and s["label"].startswith("virginia/0 ")
    ]
    assert any(s["start"] > 3000.0 for s in trained)
