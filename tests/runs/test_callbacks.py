"""Callbacks hear begin, rounds and end in the process that drives the run."""

from __future__ import annotations

import pytest

import fedactors
from fedactors.errors import BadInput

SMALL = {"num_rounds": 2, "num_clients": 3, "num_training": 90}


class Listener:
    def __init__(self) -> None:
        self.heard: list[tuple] = []

    def begin(self, run, config):
        self.heard.append(("begin", run, config["num_rounds"]))

    def round(self, number, metrics):
        self.heard.append(("round", number, metrics["training/loss"]))

    def end(self, run):
        self.heard.append(("end", run))


def test_each_is_called_in_order(tmp_path):
    listener = Listener()
    run = fedactors.simulate("horizontal", callbacks=[listener], out=tmp_path, **SMALL)
    losses = run.rounds["training/loss"]
    expected = [("begin", str(run.path), 2), ("round", 1, losses[0]), ("round", 2, losses[1]), ("end", str(run.path))]
    assert listener.heard == expected


def test_an_object_may_have_one_of_them_and_stop_a_run():
    class Strict:
        def round(self, number, metrics):
            raise BadInput("callback: enough")

    with pytest.raises(BadInput, match="callback: enough"):
        fedactors.simulate("horizontal", callbacks=[Strict()], **SMALL)


def test_a_function_hears_rounds():
    heard = []
    run = fedactors.simulate("horizontal", callbacks=[lambda *told: heard.append(told)], **SMALL)
    assert [(number, metrics["training/loss"]) for number, metrics in heard] == [
        *zip((1, 2), run.rounds["training/loss"], strict=True)
    ]


def test_an_object_that_hears_nothing_is_refused():
    with pytest.raises(BadInput, match=r"callbacks: .* is not allowed: give a function .*, or an object with begin,"):
        fedactors.simulate("horizontal", callbacks=[print], **SMALL)
    with pytest.raises(BadInput, match="is not allowed"):
        fedactors.simulate("horizontal", callbacks=[Listener], **SMALL)
