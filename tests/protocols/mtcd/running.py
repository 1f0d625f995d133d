"""Runs of MTCD on the simulated runtime, with everything that a test may want to look at."""

from dataclasses import dataclass, field

from fedactors.config import build, parse_words, with_contents
from fedactors.protocols.mtcd.config import MtcdConfig
from fedactors.protocols.mtcd.data import load_data
from fedactors.protocols.mtcd.run import run
from fedactors.runtime.interface import Snapshot
from fedactors.runtime.simulation.runtime import SimulatedRuntime

SMALL = (
    "num_clients=6 num_tokens=2 num_samples=30 num_features=24 num_hops=3 num_local_steps=3 num_rounds=4 "
    "acceleration=false"
)


@dataclass
class Kept:
    """A recorder in memory."""

    keeps_checkpoints = True

    rounds: list = field(default_factory=list)
    rows: list = field(default_factory=list)
    spans: list = field(default_factory=list)
    records: list = field(default_factory=list)
    checkpoints: list = field(default_factory=list)

    def record_round(self, index, metrics):
        self.rounds.append((index, dict(metrics)))

    def record_span(self, actor, kind, label, start, end):
        self.spans.append((actor, kind, label, start, end))

    def ledger_sink(self, rows):
        self.rows += rows

    def privacy(self, records):
        self.records += records

    def save_checkpoint(self, label, actors, driver):
        self.checkpoints.append((label, Snapshot(dict(actors), driver)))


class Watched(SimulatedRuntime):
    """Keeps every message that is sent between parties, arguments and replies alike."""

    def __init__(self, **options):
        super().__init__(**options)
        self.messages = []

    def send(self, sender, receiver, method, value):
        future = super().send(sender, receiver, method, value)
        if value is not None:
            self.messages.append((sender, receiver, value))

        def keep(done):
            if not done.cancelled() and done.exception() is None and done.result() is not None:
                self.messages.append((receiver, sender, done.result()))

        future.add_done_callback(keep)
        return future


def config_of(words):
    return with_contents(build(MtcdConfig, parse_words(f"{words}".split())))


def merged(words, data="synthetic"):
    """Return SMALL with the words given in place of its own; own data say themselves how large they are."""
    given = parse_words(words.split())
    small = parse_words(SMALL.split())
    if data != "synthetic":
        del small["num_samples"], small["num_features"]
    if given.get("algorithm", "mtcd") != "mtcd":
        del small["num_tokens"]
    return " ".join(f"{key}={value}" for key, value in {**small, **given}.items())


def simulate(words="", *, data="synthetic", resume=None, cls=SimulatedRuntime, **options):
    """Run; return (result, recorder, runtime)."""
    config = config_of(merged(words, data))
    kept = Kept()
    settings = {"seed": 3, "reproducible_noise": True, **options}
    runtime = cls(recorder=kept, **settings)
    found = load_data(config, data, settings["seed"])
    result = runtime.execute(lambda: run(config, found, runtime), resume)
    return result, kept, runtime


__all__ = ["SMALL", "Kept", "Watched", "config_of", "merged", "simulate"]
