"""Which hosts actors may be on, as far as it can be told without a cluster."""

from __future__ import annotations

import pytest

from fedactors.actors.actor import Actor, Resources
from fedactors.errors import BadInput
from fedactors.runtime.interface import ActorSpec
from fedactors.runtime.ray.processes import check_strict, labelled


def specs(*names: str, **resources: float) -> dict[str, ActorSpec]:
    return {name: ActorSpec(Actor, name, (), {}, Resources(**resources)) for name in names}


def test_an_actors_label_is_its_partys_or_its_own():
    found = labelled(specs("bank/worker-0", "bank/worker-1", "shop"), {"bank": "a", "bank/worker-1": "b"})
    assert found["bank/worker-0"].resources.labels == {"a": 0.001}
    assert found["bank/worker-1"].resources.labels == {"b": 0.001}
    assert found["shop"].resources.labels == {}
    with pytest.raises(BadInput, match="--placement: 'bnak' is not allowed: the parties are bank, shop"):
        labelled(specs("bank/worker-0", "shop"), {"bnak": "a"})


def test_strict_strategies_that_cannot_be_met_are_refused():
    three = list(specs("a", "b", "c", num_cpus=1).values())
    small, large = {"CPU": 2.0}, {"CPU": 3.0}
    check_strict(three, "STRICT_SPREAD", [small] * 3)
    check_strict(three, "STRICT_PACK", [small, large])
    check_strict(three, "SPREAD", [small])
    with pytest.raises(BadInput, match="a host for each of the 3 actors; the cluster has 2"):
        check_strict(three, "STRICT_SPREAD", [large, large])
    with pytest.raises(BadInput, match="all actors on one host, which asks CPU=3; no host"):
        check_strict(three, "STRICT_PACK", [small] * 3)
