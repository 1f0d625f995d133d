"""What an error says to another site: a party's code that puts data into one, anywhere in it, tells no other site."""

from __future__ import annotations

import errno
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fedactors.errors import (
    BadInput,
    CallTimeout,
    Diverged,
    PartyFailed,
    PartyLost,
    PayloadGone,
    Refused,
    RowsChangedError,
    Stopped,
)
from fedactors.federation.runtime import FederatedRuntime
from fedactors.federation.session import ERROR, Connection
from fedactors.federation.site_run import SiteRun
from fedactors.messages.codec import decode
from fedactors.protocols.pubsub_vfl.actors import PassiveWorker
from fedactors.runtime.failures import errors_for, raised_by
from tests.federation.hostile_sites import BROKER, LONG, WORKER
from tests.federation.test_runs import SMALL, federated
from tests.federation.world import BANK, SHOP, World

INCOME = "31415.9265"
BOOK = {WORKER, BROKER, f"{BANK}/worker-0"}


class CustomRefused(Refused):
    """A kind of error of the party's own."""


def noted() -> Exception:
    error = ValueError("a row")
    error.add_note(f"its income is {INCOME}")
    return error


def chained(error: Exception, *, cause: bool) -> Exception:
    try:
        try:
            raise KeyError(INCOME)
        except KeyError as first:
            if cause:
                raise error from first
            raise error  # noqa: B904
    except Exception as made:
        return made


def named() -> Exception:
    made: type[Exception] = type(f"Income_{INCOME}", (Refused,), {})
    return made(WORKER, "a row")


def of_attributes() -> Exception:
    error = PartyLost(WORKER, "a row")
    error.party, error.message, error.args = INCOME, INCOME, (INCOME,)
    return error


def of_a_class_that_lies() -> Exception:
    made = type("ValueError", (ValueError,), {"__qualname__": INCOME, "__module__": INCOME})
    return made("a row")


ERRORS: dict[str, Callable[[], Exception]] = {
    "its text": lambda: ValueError(INCOME),
    "its arguments": lambda: ValueError("a row", {"income": INCOME}),
    "a refusal": lambda: Refused(BROKER, INCOME),
    "a refusal of its own": lambda: CustomRefused(BROKER, INCOME),
    "a loss": lambda: PartyLost(BROKER, INCOME),
    "a timeout": lambda: CallTimeout(BROKER, INCOME),
    "a payload": lambda: PayloadGone(INCOME),
    "a failure": lambda: PartyFailed(WORKER, INCOME, INCOME),
    "a traceback": lambda: PartyFailed(WORKER, "a row", INCOME),
    "a party": lambda: PartyLost(INCOME, "was lost"),
    "attributes": of_attributes,
    "an input": lambda: BadInput(INCOME),
    "a divergence": lambda: Diverged(INCOME),
    "a stop": lambda: Stopped(INCOME, 130),
    "rows that changed": lambda: RowsChangedError(INCOME),
    "no memory": lambda: MemoryError(INCOME),
    "a note": noted,
    "a cause": lambda: chained(ValueError("a row"), cause=True),
    "a context": lambda: chained(ValueError("a row"), cause=False),
    "a refusal's cause": lambda: chained(Refused(WORKER, "a row"), cause=True),
    "a loss's context": lambda: chained(PartyLost(WORKER, "a row"), cause=False),
    "a group": lambda: ExceptionGroup(INCOME, [ValueError(INCOME), Refused(WORKER, INCOME)]),
    "the name of a class": named,
    "a class that lies": of_a_class_that_lies,
}


@pytest.mark.parametrize("what", ERRORS)
def test_of_an_error_kind_and_place_are_told(what: str) -> None:
    error = raised_by(WORKER, ERRORS[what](), BOOK)
    frame = b"".join(errors_for(SHOP, BANK)(error))
    assert INCOME.encode() not in frame
    kind, party, text, trace = decode(frame)
    assert (kind, trace) in [("PartyFailed", ""), ("PartyLost", ""), ("CallTimeout", "")]
    assert party in BOOK
    name, _, rest = text.partition(";")
    assert rest == " the log of the site shop says more"
    assert name.isidentifier()


# --- in a run -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("errors"))
    made.start(BANK)
    made.start(SHOP)
    yield made
    made.stop()


@pytest.fixture
def crossed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Errors that the shop tells the bank."""
    told: list[bytes] = []
    send = Connection._send

    def noting(self: Connection, kind: int, number: int, parts: Any, order: str = "") -> Any:
        if kind == ERROR and self.peer == BANK:
            told.append(b"".join(bytes(part) for part in parts))
        return send(self, kind, number, parts, order)

    monkeypatch.setattr(Connection, "_send", noting)
    return told


def await_end(world: World) -> None:
    """Wait until no site has a run."""
    end = time.monotonic() + 30
    while (busy := [name for name in (BANK, SHOP) if world.driven_run(name)]) and time.monotonic() < end:
        time.sleep(0.02)
    assert not busy


def in_endpoint(error: Callable[[], Exception]) -> dict[str, Any]:
    async def take_order(self: Any, order: Any) -> None:
        raise error()

    return {"take_order": take_order}


def in_load(error: Callable[[], Exception]) -> dict[str, Any]:
    async def load(self: Any) -> None:
        raise error()

    return {"load": load}


def in_background(error: Callable[[], Exception]) -> dict[str, Any]:
    async def fail() -> None:
        raise error()

    async def take_order(self: Any, order: Any) -> None:
        self.background(fail())

    return {"take_order": take_order}


def by_name() -> dict[str, Any]:
    async def take_order(self: Any, order: Any) -> None:
        await self.peer(INCOME, PassiveWorker).take_order(order)

    return {"take_order": take_order}


DEEDS: dict[str, Callable[[], dict[str, Any]]] = {
    "a refusal in an endpoint": lambda: in_endpoint(ERRORS["a refusal"]),
    "a class's name in an endpoint": lambda: in_endpoint(ERRORS["the name of a class"]),
    "a loss while it loads": lambda: in_load(ERRORS["a party"]),
    "a cause in the background": lambda: in_background(ERRORS["a refusal's cause"]),
    "a payload in the background": lambda: in_background(ERRORS["a payload"]),
    "whom it calls": by_name,
}


@pytest.mark.slow
@pytest.mark.parametrize("what", DEEDS)
def test_a_value_in_an_error_stays_at_its_site(
    lasting: World,
    crossed: list[bytes],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    for name, method in DEEDS[what]().items():
        functools.update_wrapper(
            method, getattr(PassiveWorker, name)
        )  # as much an endpoint as what it takes the place of
        monkeypatch.setattr(PassiveWorker, name, method)
    heard = len(lasting.output[SHOP])
    assert federated(lasting, LONG) in (2, 3)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fedactors: ")]
    assert len(lines) == 1
    assert "the log of the site shop says more" in lines[0], lines
    assert crossed, "the bank was told"
    assert [told for told in crossed if INCOME.encode() in told] == []
    assert not any(INCOME in line for line in lines)
    await_end(lasting)
    mine = [said for said in lasting.output[SHOP][heard:] if INCOME in said or said.endswith(": a row")]
    assert mine, lasting.output[SHOP][heard:]
    bank = lasting.path / BANK
    assert [f for f in bank.rglob("*") if f.is_file() and INCOME.encode() in f.read_bytes()] == []


@pytest.mark.slow
def test_of_what_the_driver_fails_with_its_kind_is_told(lasting: World, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "27182.8182"

    async def settle(self: Any) -> None:
        raise ValueError(secret)

    monkeypatch.setattr(FederatedRuntime, "settle", settle)
    heard = len(lasting.output[SHOP])
    assert federated(lasting, (*SMALL, "algorithm=vfl")) == 1
    end = time.monotonic() + 30
    while not any("the driver at" in said for said in lasting.output[SHOP][heard:]) and time.monotonic() < end:
        time.sleep(0.05)
    kind = "the driver at bank ended it: bank: ValueError; the log of the site bank says more"
    assert any(said.endswith(kind) for said in lasting.output[SHOP][heard:]), lasting.output[SHOP][heard:]
    shop = lasting.path / SHOP
    assert [f for f in shop.rglob("*") if f.is_file() and secret.encode() in f.read_bytes()] == []


@pytest.mark.slow
def test_a_site_whose_disk_is_full_ends_the_run_and_takes_the_next(
    lasting: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its actors go on, and it is asked for nothing any more: one run at a time."""

    def record(self: SiteRun, found: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    heard = len(lasting.output[SHOP])
    monkeypatch.setattr(SiteRun, "_record", record)
    assert federated(lasting, (*SMALL, "algorithm=vfl")) in (1, 2, 3)
    monkeypatch.undo()
    await_end(lasting)
    assert any("its records are not whole" in said for said in lasting.output[SHOP][heard:]), lasting.output[SHOP][
        heard:
    ]


@pytest.mark.slow
def test_honest_code_runs_after_all_that(lasting: World) -> None:
    assert federated(lasting, (*SMALL, "algorithm=vfl")) == 0, lasting.output
