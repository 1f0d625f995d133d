"""Actors that compute ask for the share of a GPU that a configuration says, and no other device changes the numbers."""

import dataclasses

import pytest

from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.protocols.horizontal import federation
from tests.protocols.nebulafl import runs

ON_GPU = {
    "horizontal": (federation.play, federation.changed(num_rounds=1), {"server", *(f"client-{n}" for n in range(6))}),
    "nebulafl": (runs.play, runs.changed(duration=700.0), {"auditor", "oregon", "virginia", "frankfurt"}),
}


@pytest.mark.parametrize("protocol", ON_GPU)
def test_actors_ask_for_their_share_of_a_gpu(protocol, monkeypatch):
    asked = {}
    spawn = SimulatedRuntime.spawn

    def recorded(self, cls, name, *args, resources=None, **options):
        if resources is not None:
            asked[name] = resources.demand().get("GPU")
            resources = dataclasses.replace(resources, num_gpus=0.0)
        return spawn(self, cls, name, *args, resources=resources, **options)

    monkeypatch.setattr(SimulatedRuntime, "spawn", recorded)
    play, config, actors = ON_GPU[protocol]
    play(dataclasses.replace(config, num_gpus=0.25))
    assert asked == dict.fromkeys(actors, 0.25)


@pytest.mark.parametrize("protocol", ON_GPU)
def test_auto_without_a_gpu_is_the_cpu(protocol, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    play, config, _ = ON_GPU[protocol]
    metrics = [play(dataclasses.replace(config, device=device))[0].metrics for device in ("auto", "cpu")]
    assert metrics[0] == metrics[1]
