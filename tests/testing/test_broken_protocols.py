"""Each broken copy of a sound protocol, with one change, is caught with the remark that names the right thing."""

import pytest

from fedactors.testing.conformance import check_protocol
from tests.testing import broken
from tests.testing.broken import run_on, run_with_extra, run_with_names
from tests.testing.reviewed import check_remarks
from tests.testing.sound import (
    Averager,
    FetchingLeft,
    Left,
    Right,
    protocol,
    run_averaging,
    run_ring,
    run_split,
)

pytestmark = pytest.mark.slow

SUMMARY = "[privacy] Summary."
PAST = "a channel past the ledger"
RIGHT = {
    broken.FlattenedMatrix: (
        f"{SUMMARY}quantiles, sent from right to left, holds",
        "unchanged. Raw data must not leave",
    ),
    broken.ScaledFlattenedMatrix: (f"{SUMMARY}quantiles", "or an affine map of it"),
    broken.ShuffledMatrix: (f"{SUMMARY}quantiles", "unchanged"),
    broken.RowPlusConstant: (f"{SUMMARY}quantiles", "holds row 1 of", "or an affine map of it"),
    broken.ScaledColumn: (f"{SUMMARY}quantiles", "column 3 of", "in the order of a batch"),
    broken.StandardisedBatch: ("[privacy] Part.values", "column 3 of", "in the order of a batch"),
    broken.ShuffledColumn: (f"{SUMMARY}quantiles", "column 3 of", "unchanged"),
    broken.SortedColumn: (f"{SUMMARY}quantiles", "column 3 of", "unchanged"),
    broken.PartOfColumn: (f"{SUMMARY}quantiles", "holds column ", "or an affine map of it"),
    broken.ColumnAmongNoise: (f"{SUMMARY}quantiles", "holds column ", "or an affine map of it"),
    broken.ColumnAsText: (f"{SUMMARY}comment", "column 0 of", "unchanged"),
    broken.ColumnAsBytes: (f"{SUMMARY}packed", "column 3 of", "unchanged"),
    broken.RowInKeys: (f"{SUMMARY}by_name", "column 3 of", "unchanged"),
    broken.ColumnAsNumbers: (f"{SUMMARY}largest", "column 3 of", "unchanged"),
    broken.ScalarPerMessage: (f"{SUMMARY}norm", "column 3 of", "or an affine map of it"),
    broken.NumberPerSmallArray: (f"{SUMMARY}quantiles", "column 3 of", "affine map"),
    broken.InTimeline: ("[privacy] the timeline's names", "row"),
    broken.InPrivacyRecord: ("[privacy] the privacy records", "column 3 of"),
    broken.Prints: ("[privacy] standard output", "column 0 of"),
    broken.WritesFile: ("[channels] broken.py:", "party.npy for writing", PAST),
    broken.SendsDatagram: ("[channels] broken.py:", "opens a connection (socket.sendto", PAST),
    broken.StartsProcess: ("[channels] broken.py:", "starts a process (subprocess.Popen true", PAST),
    broken.StartsThread: ("[channels] broken.py:", "starts a thread", PAST),
    broken.SetsEnvironment: ("[channels] broken.py:", "sets an environment variable (os.putenv", PAST),
    broken.WritesGlobal: ("[channels] tests.testing.broken.SHARED changed", "seen after a step of right"),
    broken.WritesClass: ("[channels] tests.testing.broken.WritesClass.seen changed",),
    broken.SetsClass: ("[channels] tests.testing.sound.Right.hidden changed",),
    broken.WritesDefault: ("[channels] tests.testing.broken.remember changed",),
    broken.ScoresDirectly: ("[unpaid work] broken.py:", "calls score directly, which elsewhere runs in self.compute()"),
    broken.WorksInHandler: ("[unpaid work] right works", "ms of processor time in learn outside of self.compute()"),
    broken.WorksInBackground: ("[unpaid work] right works", "in WorksInBackground.search outside of self.compute()"),
    broken.DrawsFromGlobal: ("[determinism] the process-wide generator of numpy.random was drawn",),
    broken.DrawsUnseeded: ("[determinism] two simulated runs with seed 0 record different metrics",),
    broken.OrderOfSet: ("[determinism] two processes record different metrics", "sort what comes from a set"),
    broken.LosesMessage: ("[resume]", "right differ: something is missing from the state they declare"),
    broken.Hangs: ("[run] the smoke run does not end well", "right.learn (called by left)"),
    broken.SendsUndeclared: ("[run]", "right: describe returned a Undeclared; it is declared to give a Summary"),
    broken.CallsNoEndpoint: ("[run]", "right: calls left.descend, which is no endpoint of Left"),
    broken.SendsUnreviewed: ("[messages] Unreviewed goes from right to left", "the privacy review, does not know it"),
    broken.CostsNothing: ("[run]", "no cost is known for 'gift'"),
}
PAIRS = {
    "payload": (FetchingLeft, broken.InPayload, ("[privacy] Part.values", "column 3 of")),
    "labels": (
        broken.AllLabels,
        broken.Curious,
        ("[privacy] Error.values, sent from left to right, holds the labels",),
    ),
    "labels of a batch": (
        broken.LabelsOfBatch,
        Right,
        ("[privacy] Report.weights, sent from left to driver, holds the labels of", "in the order of a batch"),
    ),
    "driver": (broken.MatrixToDriver, Right, ("[privacy] Report.weights, sent from left to driver", "unchanged")),
    "metrics": (
        broken.InMetrics,
        Right,
        ("[privacy] the metrics of rounds, sent from the run to its folder", "column 3"),
    ),
    "error": (
        broken.Forgiving,
        broken.InError,
        ("[privacy] the error of part, sent from right to left", "column 0 of"),
    ),
    "type name": (broken.Listening, broken.InTypeName, ("[run]", "right: calls left.listen with a Part_")),
    "no answer": (
        broken.FailingLeft,
        broken.TakesNoAnswer,
        ("[run]", "left: ValueError: nobody hears this (right, which had called it, did not await the answer)"),
    ),
    "global": (broken.TakesFromGlobal, broken.PassesThroughGlobal, ("[channels] tests.testing.broken.SHARED changed",)),
    "clock": (
        broken.ReadsWallClock,
        Right,
        ("[wall time] broken.py:", "calls time.perf_counter. Time is the runtime's"),
    ),
}
RUNS = {
    "actor's name": (protocol(run_with_names, Left, Right), ("the actors' names", "holds row 0 of")),
    "object": (protocol(broken.run_with_object, Left, Right), ("third: an argument of its constructor cannot be",)),
    "result": (protocol(run_with_extra, Left, Right), ("RunResult.extra", "column 1 of")),
    "loss": (
        protocol(run_on, broken.SwallowsLoss, Right, party_loss=frozenset({"continue"}), default_party_loss="continue"),
        ("[party loss] right is lost at", "the run hangs"),
    ),
    "row": (protocol(run_averaging, Averager, broken.ClientSendsRow), ("[privacy] Report.weights", "holds row 0 of")),
    "ring": (protocol(run_ring, broken.LosesModel), ("[resume]", "does not go on as the uninterrupted one")),
}


def test_a_cache_of_a_pure_function_is_no_channel():
    check_protocol(protocol(run_split, Left, broken.Caches), on_ray=False)


@pytest.mark.parametrize("right", RIGHT, ids=lambda cls: cls.__name__)
def test_a_broken_right_party_is_caught(right):
    try:
        check_remarks(protocol(run_split, Left, right), *RIGHT[right])
    finally:
        broken.FILE.unlink(missing_ok=True)


@pytest.mark.parametrize("name", PAIRS)
def test_a_broken_pair_is_caught(name):
    left, right, expected = PAIRS[name]
    check_remarks(protocol(run_split, left, right), *expected)


@pytest.mark.parametrize("name", RUNS)
def test_a_broken_run_is_caught(name):
    broken_one, expected = RUNS[name]
    check_remarks(broken_one, *expected)
