"""Every epsilon and mu of the committed tables, computed again by an accountant that shares no code with the first.

    python -m scenarios.accounts                    every figure of docs/results, from its row's own configuration
    python -m scenarios.accounts --again 3          and three rows, drawn at random, by really running them

The formulas are those of `scenarios.formulas`; what goes into them is the row's configuration, the number of its rounds
and of its rows. Where the configuration does not decide how often a party released something (MTCD's tokens walk), the
run is made again and its messages are counted, not its privacy ledger's lines. What replays moved (``replay_mu``) is
a measurement and no account: it is drawn with the other rows by `scenarios.replay`. Ends with 1 if a figure differs by
more than a millionth, or is one that nobody here can account for; rows whose data is not on this machine are named.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fedactors.cli.terminal import guarded
from fedactors.config import build
from fedactors.data.datasets.load import load_graph
from fedactors.errors import BadInput, DataMissing
from fedactors.launch import load_data
from fedactors.plugins import find_protocol
from fedactors.privacy.accounting import EVERYBODY, JOINED, Claim, claims
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runs.table import RunRow, read_table
from fedactors.runtime.compute import one_torch_thread
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from scenarios.benchmarks.combined_adversary import TARGETS
from scenarios.benchmarks.privacy_audits import DATA as CUT
from scenarios.benchmarks.privacy_audits import cut
from scenarios.formulas import (
    composed,
    epsilon_of,
    label_epsilon,
    mu_of,
    multiplier_within,
    replaced_epsilon,
    sampled_epsilon,
    value_epsilon,
)
from scenarios.replay import has_data
from scenarios.stated import Compared, Figures, number, stated, summary

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
WITHIN = 20.0
"""Processor seconds that a row may have taken to be drawn."""
# --- what it should state --------------------------------------------------------------------------------------------


def pubsub_lines(row: RunRow) -> dict[tuple[str, str], float | None]:
    """Return the mu of each line of the ledger of a run of PubSub-VFL, by party and message."""
    given = row.config
    epochs = given.get("num_epochs", row.usage.get("rounds"))
    done = row.usage.get("rounds", epochs)
    frozen = given.get("bottom_training") == "frozen"
    asked, spent = (1, 1) if frozen else (epochs, done)
    local = given.get("embedding_mu", math.inf)
    if math.isfinite(local):
        local *= math.sqrt(spent / asked)
    elif math.isfinite(paper := given.get("privacy_mu", math.inf)):
        # Eq. 17: sigma = c B sqrt(T N / B) / (mu N); a row is released once an epoch, each moves by 2c
        sigma = given["batch_size"] * math.sqrt(epochs * _samples(row) / given["batch_size"]) / (paper * _samples(row))
        local = 2 * math.sqrt(done) / sigma
    lines = {("passive", "Embedding"): local, ("active", "Gradient"): given.get("gradient_mu", math.inf)}
    if given.get("bottom_training") == "private":
        lines["passive", "bottom gradients"] = given["bottom_mu"] * math.sqrt(done / epochs)
    if given.get("standardisation") == "private":
        lines["passive", "column scale"] = given["standardisation_mu"]
    return {key: mu if math.isfinite(mu) else None for key, mu in lines.items()}


def pubsub(row: RunRow) -> Figures:
    """Return what a row of PubSub-VFL's studies of privacy must state."""
    given, delta = row.config, row.config.get("delta", 1e-5)
    lines, label = pubsub_lines(row), given.get("label_epsilon", math.inf)
    is_private = given.get("standardisation") == "private" and given.get("bottom_training") in ("frozen", "private")
    whole = composed([mu for (party, _), mu in lines.items() if party == "passive"]) if is_private else None
    row_budget = (whole, None if whole is None else epsilon_of(whole, delta))
    best = (mu_of(label), label) if math.isfinite(label) else row_budget
    paper = given.get("privacy_mu", math.inf)
    nominal = paper if math.isfinite(paper) else None
    found: Figures = {"nominal_mu": nominal, "own_rows_mu": lines["passive", "Embedding"]}
    found |= {"mu": best[0], "epsilon": best[1], "claimed_mu": best[0], "claimed_epsilon": best[1]}
    if row.study == "attacks-bank":  # of what was noised, whichever it was
        mu = lines["active", "Gradient"] or lines["passive", "Embedding"]
        found |= {"rigorous_mu": mu, "epsilon": None if mu is None else epsilon_of(mu, delta)}
    for (party, message), mu in lines.items():
        for key in (f"privacy/{party}/{message}", f"privacy/{party}"):  # older rows have one line a party
            found.setdefault(f"{key}/rigorous_mu", mu)
            found.setdefault(f"{key}/epsilon", None if mu is None else epsilon_of(mu, delta))
            found.setdefault(f"{key}/nominal_mu", nominal if message == "Embedding" else None)
    if math.isfinite(label):
        found |= {"privacy/active/labels/rigorous_mu": mu_of(label), "privacy/active/labels/epsilon": label}
    return found


def _samples(row: RunRow) -> int:
    return int(row.extra["num_rows"])


def glasu(row: RunRow) -> Figures:
    """Return what a row of GLASU states: every node's row of each representation of training and evaluations."""
    given = row.config
    if not given.get("noise_multiplier"):
        return {"shown_mu": None}
    nodes = len(load_graph(row.data).labels)
    layers = len(range(given["num_layers"] - 1, -1, -2))  # the last one, and every other before it
    times = given["num_rounds"] + given["num_rounds"] // given["evaluate_every"]
    near = 1 + sum(given["max_degree"] * (given["max_degree"] - 1) ** hop for hop in range(2))
    if near < nodes:
        raise BadInput(
            f"{row.name}: the first representations reach {near} of {nodes} nodes, which is not written here"
        )
    # a row is clipped to c and noised by multiplier x c
    return {"shown_mu": 2 * math.sqrt(nodes * layers * times) / given["noise_multiplier"]}


def mtcd(row: RunRow) -> Figures:
    """Return what a row of MTCD states: the messages of the first and of the last party, counted in a run."""
    if row.config["learning_rate"] == "auto" or row.config["noise"] is None:
        return {"claimed_mu": None, "claimed_epsilon": None}
    runtime, data = made_again(row)
    num_rows = len(data.load(data.parties[0]).features)
    samples = num_rows - round(0.3 * num_rows)  # 30 % of a table's rows are test rows
    counted = noised_by(runtime)
    last = "client-0" if row.study == "together" else f"client-{row.config['num_clients'] - 1}"
    most = max(counted["client-0"], counted[last])
    mu = 2 * math.sqrt(samples * most) / row.config["noise_multiplier"]
    return {"claimed_mu": mu, "claimed_epsilon": epsilon_of(mu, row.config["delta"])}


def noised_by(runtime: Again) -> Counter[str]:
    """Return what each actor sent with noise: a visit ends in a token, or in the word that a walk is over."""
    return sent_by(runtime, "Representation", "Masked", "Token", "RoamingDone")


def mtcd_curve(row: RunRow) -> Figures:
    """Return what a row of accuracy by epsilon states: of the client that sends most, a batch of rows each time."""
    if row.config["noise"] is None:
        return {"mu": None, "epsilon": None}
    runtime, _ = made_again(row)
    most = max(number for sender, number in noised_by(runtime).items() if sender.startswith("client-"))
    mu = 2 * math.sqrt(row.config["batch_size"] * most) / row.config["noise_multiplier"]
    return {"mu": mu, "epsilon": epsilon_of(mu, row.config["delta"])}


@dataclass(frozen=True)
class Theta:
    """The noised steps of one table."""

    mu: float
    """Of all steps, nothing amplified, of a row that is there or not."""
    epsilon: float
    """Of the same row, with what secret samples amplify."""
    replaced: float | None
    """Of a row replaced, where secret samples amplify."""


def theta(given: Mapping[str, Any], num_rows: int, num_joined: int, steps: int | None = None) -> Theta:
    """Return what a table's noised steps amount to, under the least noise that the settings allow.

    Args:
        given: the configuration.
        num_rows: of the table, those that join.
        num_joined: joined rows.
        steps: of a table in partitions, which this row's ledger knows alone; else they follow.
    """
    delta, batches = given["feature_delta"], 1
    if "admm" in given["algorithm"]:
        if steps is None:
            batches = max(math.ceil(num_rows / given["local_batch_size"]), 1)
            steps = given["num_rounds"] * given["local_epochs"] * batches
        else:
            batches = steps // (given["num_rounds"] * given["inner_rounds"] * given["local_epochs"])
        done, rate = steps, 1 / batches
        noise = multiplier_within(given["feature_dp"], lambda m: sampled_epsilon(m, rate, done, delta))
    else:
        done = given["num_rounds"] * math.ceil(num_joined / given["batch_size"])
        noise = multiplier_within(given["feature_dp"], lambda m: epsilon_of(math.sqrt(done) / m, delta))
    mu = math.sqrt(done) / noise
    if batches == 1:
        return Theta(mu, epsilon_of(mu, delta), None)
    one, both = (how(noise, 1 / batches, done, delta) for how in (sampled_epsilon, replaced_epsilon))
    return Theta(mu, one, both)


def label_of(given: Mapping[str, Any]) -> float:
    """Return epsilon of one label under Laplace noise."""
    bounds = given.get("label_range")
    return value_epsilon(bounds[1] - bounds[0], given["label_dp"]) if bounds else label_epsilon(given["label_dp"])


def tablepuppet_audit(row: RunRow) -> Figures:
    """Return what a row of TablePuppet's audits states: everything that one joined tuple's rows touch."""
    given, delta = row.config, row.config["feature_delta"]
    label = label_of(given)
    found: Figures = {"label_mu": mu_of(label), "row_epsilon": None, "tuple_mu": None, "tuple_epsilon": None}
    if not given["prediction_noise"]:
        return found
    runtime, _ = made_again(row)
    join, sent = runtime.result_extra, sent_by(runtime, "Predictions", "TestPredictions", "Masked")
    tables: list[tuple[Theta, float]] = []
    rows: list[float] = []
    for index, (table, joining) in enumerate(join["rows_that_join"].items()):
        predicted = 2 * math.sqrt(sent[table]) / given["prediction_noise"]
        tables.append((theta(given, joining, join["joined_rows"]), predicted))
        rows.append(_together(tables[-1:], label if index == 0 else 0.0, delta))  # the first table has the labels
    found["row_epsilon"] = max(rows)
    found["tuple_mu"] = composed(
        [*(mu for steps, predicted in tables for mu in (2 * steps.mu, predicted)), mu_of(label)]
    )
    found["tuple_epsilon"] = _together(tables, label, delta)
    return found


def _together(tables: Sequence[tuple[Theta, float]], label: float, delta: float) -> float:
    """Return epsilon of steps, predictions and a label: all steps as they are, or what samples amplify added."""
    whole = _with_label([mu for steps, predicted in tables for mu in (2 * steps.mu, predicted)], label, delta)
    others = [2 * steps.mu for steps, _ in tables if steps.replaced is None]
    amplified = sum(steps.replaced for steps, _ in tables if steps.replaced is not None)
    return min(whole, amplified + _with_label([*others, *(predicted for _, predicted in tables)], label, delta))


def _with_label(mus: Sequence[float], label: float, delta: float) -> float:
    """Return epsilon of Gaussian releases and a label's own: added, or as the mu that it implies; both hold."""
    alone = epsilon_of(composed(mus) or 0.0, delta)
    return min(alone + label, epsilon_of(composed([*mus, mu_of(label)]) or 0.0, delta)) if label else alone


def tablepuppet_figure(row: RunRow) -> Figures:
    """Return what a row of Figure 6 states: theta and labels by themselves, and nothing of a joined tuple."""
    given, found = row.config, dict.fromkeys(stated(row))
    if not given.get("feature_dp") or given["algorithm"] == "centralised":
        return found
    for key in found:
        _, party, *line = key.split("/")
        if line[:1] == ["theta"]:
            table, _, number = party.partition("-")
            steps = row.extra["privacy"][party]["theta"]["releases"] if number else None
            if line[-1] == "epsilon":
                rows, joined = row.extra["rows_that_join"][table], row.extra["joined_rows"]
                found[key] = theta(given, rows, joined, steps).epsilon
        elif line == ["Labels", "epsilon"]:
            found[key] = label_of(given)
    return found


def together(row: RunRow) -> Figures:
    """Return what a row of the attacks on one record states: the claim on it."""
    party, kind = TARGETS[row.name].party, TARGETS[row.name].kind
    if row.protocol in ("pubsub-vfl", "mtcd"):
        return pubsub(row) if row.protocol == "pubsub-vfl" else mtcd(row)
    given = row.config
    if kind == "label":
        return {"claimed_mu": mu_of(label_of(given))}
    runtime, _ = made_again(row)
    steps = theta(given, 0, runtime.result_extra["joined_rows"])
    sent = sent_by(runtime, "Predictions", "TestPredictions")[party]
    return {"claimed_mu": composed([2 * steps.mu, 2 * math.sqrt(sent) / given["prediction_noise"]])}


ACCOUNTS: dict[str, Callable[[RunRow], Figures]] = {
    "mtcd/privacy": mtcd_curve,
    "pubsub_vfl": pubsub,
    "pubsub_vfl_privacy": pubsub,
    "privacy_audits/glasu": glasu,
    "privacy_audits/mtcd": mtcd,
    "privacy_audits/tablepuppet": tablepuppet_audit,
    "privacy_audits/together": together,
    "tablepuppet": tablepuppet_figure,
}


# --- comparing -------------------------------------------------------------------------------------------------------


class Again(SimulatedRuntime):
    """A run that is made again."""

    result_extra: Mapping[str, Any] = {}
    """What its driver returned beside metrics."""


def sent_by(runtime: Again, *types: str) -> Counter[str]:
    """Return how many messages of some types each actor sent."""
    found: Counter[str] = Counter()
    for total in runtime.ledger.totals():
        found[total.sender] += total.messages if total.type in types else 0
    return found


def made_again(row: RunRow, **other: Any) -> tuple[Again, Any]:
    """Run a row's configuration, with some settings otherwise; return its runtime and its data."""
    one_torch_thread()
    protocol, config = find_protocol(row.protocol), _config(row, **other)
    data = load_data(protocol, config, row.data, row.seed)
    if row.protocol == "tablepuppet" and row.study == "tablepuppet":
        data = cut(data, CUT[row.name.partition("/")[0]].keep)
    runtime = Again(seed=row.seed, recorder=MemoryRecorder())
    runtime.result_extra = runtime.execute(lambda: protocol.run(config, data, runtime)).extra
    return runtime, data


def by_running(table: str, row: RunRow) -> Iterator[Compared]:
    """Yield a row's figures beside those that a run of it states now, but what that has no line for.

    Where theta is noised the test rows are a secret, others each time: what a run states is accounted for by its own.
    """
    runtime, _ = made_again(row)
    now = _stated_by(runtime, row)
    if table == "tablepuppet":
        counts = {name: runtime.result_extra[name] for name in ("rows_that_join", "joined_rows")}
        found = tablepuppet_figure(replace(row, extra={**row.extra, **counts}))
        keys = [key for key in found if key in now]
        yield from (Compared(table=table, row=row, key=p, stated=now[p], holds=found[p]) for p in keys)
    else:
        yield from (one for one in compared(table, row, now) if one.key in now)


def _stated_by(runtime: Again, row: RunRow) -> Figures:
    lines = list(runtime.privacy_records)
    found = claims(lines)
    figures: Figures = {}
    for line in lines:
        for path in (f"privacy/{line.party}/{line.message_type}", f"privacy/{line.party}"):
            for name in ("nominal_mu", "rigorous_mu", "epsilon"):
                figures.setdefault(f"{path}/{name}", number(getattr(line, name)))
    local = [line for line in lines if (line.party, line.message_type) == ("passive", "Embedding")]
    figures |= {"nominal_mu": number(local[0].nominal_mu), "own_rows_mu": number(local[0].rigorous_mu)} if local else {}
    shown = [line.rigorous_mu for line in lines if line.message_type == "Representation" and line.neighbour == "node"]
    figures |= {"shown_mu": number(shown[0])} if shown else {}
    whole = _best([claim for claim in found.values() if claim.party != EVERYBODY])
    if row.study in ("mtcd", "audits"):
        ends = ("client-0", f"client-{row.config.get('num_clients', 1) - 1}", "passive", "active")
        whole = _best([claim for claim in found.values() if claim.party in ends])
    if row.study == "together":
        target = TARGETS[row.name]
        whole = _best([claim for key, claim in found.items() if key == (target.party, target.kind)])
    figures |= dict.fromkeys(("mu", "claimed_mu"), whole[0])
    figures |= dict.fromkeys(("epsilon", "claimed_epsilon"), whole[1])
    if row.study == "attacks-bank":  # of what was noised, covered or not
        figures["epsilon"] = next((value for line in lines if (value := number(line.epsilon)) is not None), None)
    if (EVERYBODY, JOINED) in found:
        joint = found[EVERYBODY, JOINED]
        figures |= {"tuple_mu": number(joint.mu), "tuple_epsilon": number(joint.epsilon)}
        labels = [claim.mu for claim in found.values() if claim.neighbour == "label"]
        rows = [claim.epsilon for claim in found.values() if claim.neighbour == "row"]
        figures |= {"label_mu": max(labels, default=None), "row_epsilon": number(max(rows))}
    return figures


def _best(found: Sequence[Claim]) -> tuple[float | None, float | None]:
    covered = [claim for claim in found if claim.covered]
    return max((one.mu for one in covered), default=None), max((one.epsilon for one in covered), default=None)


def _config(row: RunRow, **other: Any) -> Any:
    config_type = find_protocol(row.protocol).Config
    known = {one.name for one in fields(config_type)}
    given = {**find_protocol(row.protocol).paper, **row.config, **other}  # settings that came later are the paper's
    if "rounds" in row.usage and "num_epochs" in known:
        given.setdefault("num_epochs", row.usage["rounds"])
    return build(config_type, {name: value for name, value in given.items() if name in known and value is not None})


def account_of(table: str, row: RunRow) -> Callable[[RunRow], Figures] | None:
    """Return who accounts for a row's figures."""
    return ACCOUNTS.get(f"{table}/{row.study}") or ACCOUNTS.get(table)


def compared(table: str, row: RunRow, expected: Mapping[str, float | None]) -> Iterator[Compared]:
    """Yield each figure that a row states beside what was computed; one that was not computed has a reason."""
    for key, value in stated(row).items():
        reason = "" if key in expected or value is None else "and nobody accounts for it"
        yield Compared(table=table, row=row, key=key, stated=value, holds=expected.get(key, value), reason=reason)


def rows_with_figures(folder: Path) -> Iterator[tuple[str, RunRow]]:
    """Yield every row that states an epsilon or a mu, with the name of its table."""
    for file in sorted(folder.glob("*.parquet")):
        if file.stem in ("memory", "reliability"):  # no tables of runs
            continue
        for row in read_table(file):
            if any(value is not None for value in stated(row).values()):
                yield file.stem, row


def check(rows: Sequence[tuple[str, RunRow]]) -> tuple[list[Compared], list[str]]:
    """Account for every row; return what was compared, and sentences on rows whose data is not here."""
    found: list[Compared] = []
    left: list[str] = []
    for table, row in rows:
        account = account_of(table, row)
        try:
            expected = {} if account is None else account(row)
        except DataMissing as error:
            left.append(f"{table}/{row.study}/{row.name}: not checked: {error}")
            continue
        found += compared(table, row, expected)
    return found, left


def drawn(rows: Sequence[tuple[str, RunRow]], number: int, seed: int) -> list[tuple[str, RunRow]]:
    """Return some rows at random, of those that are quick and whose data is here."""
    able = [(table, row) for table, row in rows if row.wall_seconds <= WITHIN and has_data(row)]
    return random.Random(seed).sample(able, min(number, len(able)))


@guarded()
def main(argv: Sequence[str] | None = None) -> int:
    """Compute every figure again, some by running, and say what differs."""
    parser = argparse.ArgumentParser(
        prog="python -m scenarios.accounts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=RESULTS, help="tables of runs (default: docs/results)")
    parser.add_argument("--again", type=int, default=3, metavar="N", help="rows to run again (default: 3)")
    parser.add_argument("--draw-seed", type=int, metavar="N", help="decides which (default: others each time)")
    args = parser.parse_args(argv)

    rows = list(rows_with_figures(args.folder))
    if not rows:
        raise BadInput(f"{args.folder}: no row states an epsilon or a mu")
    found, left = check(rows)
    print(summary(found), *left, sep="\n", flush=True)
    seed = random.SystemRandom().randrange(2**31) if args.draw_seed is None else args.draw_seed
    chosen = drawn(rows, args.again, seed)
    for table, row in chosen:
        ones = list(by_running(table, row))
        found += ones
        print(f"run again: {table}/{row.study}/{row.name} seed {row.seed}: {len(ones)} figures", flush=True)
    wrong = [one for one in found if not one.agrees]
    print(*wrong, sep="\n")
    number = sum(one.stated is not None for one in found)
    print(f"{number} figures, {len(chosen)} rows run again (--draw-seed {seed}), {len(wrong)} figures differ")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
