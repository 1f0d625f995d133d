"""Syncs under masks: the numbers of the open run, nothing of a single client, and refusals of what would show one."""

from __future__ import annotations

import numpy as np
import pytest

from fedactors.errors import BadInput, FedactorsError, PartyLost
from fedactors.inspection import describe_messages
from fedactors.protocols.mtcd import actors
from fedactors.protocols.mtcd.algorithm import point_of, summand
from fedactors.protocols.mtcd.messages import Representation, sent
from fedactors.protocols.mtcd.plugin import PROTOCOL
from fedactors.protocols.mtcd.run import objective_of
from fedactors.protocols.mtcd.server import TokenServer
from fedactors.secure_sums.messages import Masked
from tests.arrays import arrays_in
from tests.protocols.mtcd.running import Watched, config_of, merged, simulate

SECURE = "secure_aggregation=true"
SLOW = "learning_rate=0.001"
NETWORK = "problem=network network=mlp representation_size=4 hidden_size=8 learning_rate=0.05"
# tokens that visit two of six clients between syncs: most have nothing new to send, and take part all the same
FEW = "num_hops=1 num_tokens=1 clusters=whole"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        SLOW,
        f"{SLOW} {FEW}",
        f"{SLOW} batch_size=10",
        f"{SLOW} mode=overlapping",
        f"{SLOW} problem=sparse-logistic",
        NETWORK,
        f"{NETWORK} batch_size=16",
    ],
)
def test_the_run_is_the_open_one_up_to_the_grid(words):
    plain, _, _ = simulate(words)
    masked, _, _ = simulate(f"{SECURE} {words}")
    assert objective_of(masked.metrics) == pytest.approx(objective_of(plain.metrics), rel=1e-5)
    assert masked.metrics["iterations"] == plain.metrics["iterations"]


def test_no_single_representation_reaches_the_server(monkeypatch):
    made = []

    def keep(h, penalty):
        made.append(summand(h, penalty))
        return made[-1]

    monkeypatch.setattr(actors, "summand", keep)
    _, _, runtime = simulate(f"{SECURE} {SLOW}", cls=Watched)
    to_server = [value for sender, receiver, value in runtime.messages if receiver == "server" and sender != "driver"]
    config = config_of(merged(f"{SECURE} {SLOW}"))
    secret = [point_of(config).encode(one).reshape(-1) for one in made if one.any()]
    masked = [one for one in to_server if isinstance(one, Masked)]
    assert len(masked) == len(made) == 6 * 4
    assert all((one.words[: len(words)] != words).mean() > 0.99 for one in masked for words in secret)
    assert not any(isinstance(one, Representation) for one in to_server)
    assert not [array for one in to_server for array in arrays_in(one) if array.dtype.kind == "f" and array.size > 1]


def test_inspection_and_the_ledger_know_sums_only():
    config = config_of(merged(f"{SECURE} {SLOW}"))
    _, _, runtime = simulate(f"{SECURE} {SLOW}")
    types = {total.type for total in runtime.ledger.totals() if not total.type.endswith("()")}
    assert types <= {cls.__name__ for cls in sent(config)}
    told = {entry["message"] for entry in describe_messages(PROTOCOL, config)}
    assert "Masked" in told
    assert not {"Representation", "ProbeImage", "SquaredNorm"} & (types | told)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (SECURE, "sums are to hide what is one client's"),
        ("noise=gaussian", "beside which the noise would claim nothing"),
    ],
)
@pytest.mark.parametrize("endpoint", ["squared_norm", "probe"])
def test_a_curious_server_is_told_nothing_else_of_one_client(monkeypatch, endpoint, words, why):
    from fedactors.protocols.mtcd.messages import NormOrder, Probe

    order = {"squared_norm": NormOrder(), "probe": Probe(np.ones(30))}[endpoint]

    async def ask(self, *_):
        await getattr(self.peer("client-2", actors.TokenClient), endpoint)(order)

    monkeypatch.setattr(TokenServer, "sync", ask_as_endpoint(ask))
    with pytest.raises(FedactorsError, match=why):
        simulate(f"{words} {SLOW}")


def ask_as_endpoint(ask):
    from fedactors.actors.remote import DRIVER, remote
    from fedactors.protocols.mtcd.messages import RoundOrder

    async def sync(self, order: RoundOrder) -> None:
        await ask(self, order)

    sync.__annotations__ = {"order": RoundOrder, "return": None}
    return remote(caller=DRIVER)(sync)


def test_representations_are_for_the_driver_neither_unless_the_masks_are_reproducible():
    result, _, _ = simulate(f"{SECURE} {SLOW}", reproducible_noise=False)
    assert np.isfinite(result.metrics["training/objective"])
    assert "test/rmse" not in result.metrics


@pytest.mark.slow
def test_a_resumed_run_goes_on_exactly():
    whole, _, _ = simulate(f"{SECURE} {SLOW}")
    _, half, _ = simulate(f"{SECURE} {SLOW} num_rounds=2")
    resumed, _, _ = simulate(f"{SECURE} {SLOW}", resume=half.checkpoints[-1][1])
    assert resumed.metrics["training/objective"] == whole.metrics["training/objective"]


@pytest.mark.slow
def test_a_lost_client_ends_the_run_with_its_name():
    _, _, runtime = simulate(f"{SECURE} {SLOW}")
    with pytest.raises(PartyLost, match="client-2"):
        simulate(f"{SECURE} {SLOW}", faults={"client-2": runtime.usage().seconds * 0.6})


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (f"{SLOW} algorithm=svfl", "algorithm"),
        (f"{NETWORK} aggregation=concatenation", "aggregation"),
        (f"{SLOW} num_clients=2 num_tokens=1", "num_clients"),
        (f"{SLOW} server_links=0,1", "server_links"),
        (f"{SLOW} compression=quantise", "compression"),
        (f"{SLOW} on_party_loss=continue", "on_party_loss"),
        ("learning_rate=auto", "learning_rate"),
    ],
)
def test_what_would_show_one_client_is_refused(words, name):
    with pytest.raises(BadInput, match=f"{name}: .* is not allowed with secure_aggregation"):
        config_of(merged(f"{SECURE} {words}"))


def test_a_range_that_is_too_small_is_named():
    with pytest.raises(BadInput, match=r"secure_range: 1e-06 is too small for a representation of a client, or"):
        simulate(f"{SECURE} {SLOW} secure_range=1e-6")
