# %% [markdown]
# # Your own protocol
#
# A protocol is messages, actors and a `run`. This one is federated logistic regression. `fedactors new protocol NAME`
# writes it as a package, with tests; in a notebook it fits into three cells.
#
# **Messages** are all that leaves a party. Each says what it reveals.

# %%
import numpy as np

from fedactors import message


@message(reveals="the shared model")
class Weights:
    """The shared model."""

    values: np.ndarray


@message(reveals="the mean gradient of the client's rows, and how many they are")
class Gradient:
    """A client's gradient at the shared model."""

    values: np.ndarray
    num_rows: int


# %% [markdown]
# **Actors** unpack a message, compute, and pack a message. `@remote` says who may call a method, and how often.

# %%
from fedactors import Client, Work, remote
from fedactors.actors.remote import DRIVER


def gradient(x, y, weights):
    """Return the mean gradient of the logistic loss."""
    return x.T @ (1 / (1 + np.exp(-x @ weights)) - y) / len(x)


class Holder(Client):
    """Holds rows, which never leave."""

    def __init__(self, config, source):
        self._source = source  # of the settings, @remote reads the bounds

    async def load(self):
        """Load the rows."""
        rows = self._source.load()
        self._x, self._y = rows.features.reshape(len(rows.features), -1), rows.labels

    @remote(caller=DRIVER, at_most="num_rounds")
    async def gradient(self, weights: Weights) -> Gradient:
        """Return the gradient of the own rows."""
        found = await self.compute(gradient, self._x, self._y, weights.values, work=Work("gradient", len(self._x)))
        return Gradient(found, len(self._x))


# %% [markdown]
# **`run`** reads as pseudo-code. The driver steps here, to keep it short; real protocols have a server for that.

# %%
from dataclasses import dataclass, field

from fedactors import Costs, Rounds, config
from fedactors.data.layouts.horizontal import horizontal
from fedactors.data.partitioners import IidPartitioner
from fedactors.runtime.rounds import RunState


@config
class MeanConfig:
    """Settings."""

    num_clients: int = 3
    num_rounds: int = 20
    learning_rate: float = 2.0


@dataclass
class State(RunState):
    """What the driver keeps between rounds; a checkpoint has it."""

    weights: np.ndarray = field(default_factory=lambda: np.zeros(30))
    metrics: dict = field(default_factory=dict)


def load_data(config, name, seed):
    """Deal the rows of a named data set to the clients."""
    return horizontal(name, IidPartitioner(num_partitions=config.num_clients, seed=seed), seed=seed)


async def run(config, data, runtime):
    """Train for `num_rounds` rounds."""
    runtime.use_costs(Costs({"gradient": (1e-4, 1e-7)}))
    names = [f"client-{index}" for index in range(config.num_clients)]
    clients = [runtime.spawn(Holder, name, config, data.client(index)) for index, name in enumerate(names)]
    test = data.test().load()
    x, y = test.features.reshape(len(test.features), -1), test.labels
    rounds = Rounds(runtime, State(), num_rounds=config.num_rounds)
    state = rounds.state
    await rounds.start()
    async for _ in rounds:
        found = [await client.gradient(Weights(state.weights)) for client in clients]
        total = sum(one.num_rows for one in found)
        step = sum(one.num_rows / total * one.values for one in found)
        state.weights = state.weights - config.learning_rate * step
        state.metrics = {"test/accuracy": float(((x @ state.weights > 0) == y).mean())}
        rounds.record(state.metrics)
    return await rounds.result(state.metrics)


# %%
import fedactors
from fedactors.plugins import Headline
from fedactors.scenario import Scenario

protocol = Scenario(
    name="notebook-mean",
    summary="federated logistic regression",
    partition="horizontal",
    default_data="breast-cancer",
    headline=Headline(name="test/accuracy"),
    Config=MeanConfig,
    run=run,
    load_data=load_data,
)
result = fedactors.simulate(protocol)
result

# %% [markdown]
# The ledger has each message. What a party may call is checked: the wrong type, the wrong caller, or one call too many
# is refused, by name.

# %%
ledger = result.ledger.to_pandas()
ledger.groupby(["type", "kind"])["bytes"].agg(["count", "sum"])
