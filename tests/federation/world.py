"""A federation in a temporary folder: its sites listen in threads of this process, each with a loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedactors.cli.main import main
from fedactors.errors import BadInput
from fedactors.federation.approval import decide, kept_proposals
from fedactors.federation.audit_log import AUDIT, check
from fedactors.federation.session import Limits
from fedactors.federation.site import SiteProcess
from fedactors.federation.site_folder import SITE, SiteFolder
from fedactors.federation.site_run import SiteRun
from fedactors.runtime.addresses import free_port

BANK, SHOP, CLINIC = "bank", "shop", "clinic"
WAIT_SECONDS = 4.0
LIMITS = Limits(handshake=5.0, piece=5.0, heartbeat_timeout=20.0, away=WAIT_SECONDS, call=60.0)
TASK = 'type = "binary", alignment = "already-aligned"'
NUM_ROWS = 160
SQL = (
    "SELECT clients.bad, clients.income, clients.age, sales.orders, sales.returns "
    "FROM clients JOIN sales ON clients.id = sales.id"
)
SQL_OF_THREE = (
    "SELECT accounts.bad, accounts.income, accounts.age, sales.orders, stays.visits "
    "FROM accounts JOIN sales ON accounts.id = sales.id JOIN stays ON accounts.id = stays.id"
)


def write_data(folder: Path) -> None:
    """The bank's customers and the shop's orders: a CSV each."""
    rng = np.random.default_rng(5)
    values = rng.normal(size=(NUM_ROWS, 4))
    label = (values.sum(axis=1) + rng.normal(size=NUM_ROWS) > 0).astype(int)
    bank, shop = folder / BANK / "customers.csv", folder / SHOP / "orders.csv"
    bank.write_text(
        "id,income,age,bad\n"
        + "".join(f"c{i},{v[0]:.4f},{v[1]:.4f},{y}\n" for i, (v, y) in enumerate(zip(values, label, strict=True)))
    )
    shop.write_text("id,orders,returns\n" + "".join(f"c{i},{v[2]:.4f},{v[3]:.4f}\n" for i, v in enumerate(values)))
    # as rows of the same columns, and as tables that a query joins
    rows = [",".join(f"{x:.4f}" for x in v) + f",{y}\n" for v, y in zip(values, label, strict=True)]
    for path, dealt in ((bank, rows[:60]), (shop, rows[60:120]), (bank.with_name("test.csv"), rows[120:])):
        name = path.name if path.name == "test.csv" else "patients.csv"
        path.with_name(name).write_text("a,b,c,d,bad\n" + "".join(dealt))
    for path, columns in ((bank, values[:60, :2]), (shop, values[:60, 2:])):  # and as a graph of 60 nodes
        np.savez(path.with_name("graph.npz"), edges=rng.integers(0, 60, (2, 150)), features=columns)
        parts = dict(zip(("train", "validation", "test"), np.split(np.arange(60), (30, 40)), strict=True))
        np.savez(path.with_name("nodes.npz"), labels=label[:60], **parts)
    if (clinic := folder / CLINIC).exists():  # a third of each
        products = np.stack([values[:, 0] * values[:, 3], values[:, 1] * values[:, 2]], axis=1)
        third = [f"c{i},{v[0]:.4f},{v[1]:.4f}\n" for i, v in enumerate(products)]
        (clinic / "visits.csv").write_text("id,visits,days\n" + "".join(third))
        (clinic / "patients.csv").write_text("a,b,c,d,bad\n" + "".join(rows[60:120]))
        np.savez(clinic / "graph.npz", edges=rng.integers(0, 60, (2, 150)), features=products[:60])
        (clinic / "nodes.npz").write_bytes((folder / SHOP / "nodes.npz").read_bytes())


DATA = {
    BANK: f"""
[data.customers]
path = "customers.csv"
id = "id"
label = "bad"
task = {{ {TASK} }}

[data.patients]
path = "patients.csv"
label = "bad"
task = {{ type = "binary", layout = "horizontal", classes = ["0", "1"], test = "test.csv" }}

[data.clients]
path = "customers.csv"
task = {{ type = "binary", layout = "relational", sql = "{SQL}", label = "clients.bad" }}

[data.accounts]
path = "customers.csv"
task = {{ type = "binary", layout = "relational", sql = "{SQL_OF_THREE}", label = "accounts.bad" }}

[data.people]
file = "graph.npz"
nodes = "nodes.npz"
task = {{ layout = "graph" }}
""",
    SHOP: """
[data.orders]
path = "orders.csv"
id = "id"

[data.cases]
path = "patients.csv"
label = "bad"

[data.sales]
path = "orders.csv"

[data.buyers]
file = "graph.npz"
nodes = "nodes.npz"
""",
    CLINIC: """
[data.visits]
path = "visits.csv"
id = "id"

[data.cured]
path = "patients.csv"
label = "bad"

[data.stays]
path = "visits.csv"

[data.members]
file = "graph.npz"
nodes = "nodes.npz"
""",
}
"""What each says of its data in their site.toml: columns of the same rows, rows of the same columns, and tables."""


class World:
    """Bank and shop, admitted to one federation, with their data.

    Args:
        folder: an empty one.
        names: of the sites.
        addresses: where each listens; ports of this host by default.
    """

    def __init__(
        self, folder: Path, names: tuple[str, ...] = (BANK, SHOP), addresses: Mapping[str, str] | None = None
    ) -> None:
        self.path = folder
        self.names = names
        self.output: dict[str, list[str]] = {name: [] for name in names}
        self.processes: dict[str, SiteProcess] = {}
        self._loops: dict[str, tuple[asyncio.AbstractEventLoop, threading.Thread]] = {}
        self.command("federation", "init", str(folder / "credit"))
        for name in names:
            address = f"127.0.0.1:{free_port()}" if addresses is None else addresses[name]
            self.command("site", "init", name, "--folder", str(folder / name), "--listen", address)
            request = str(folder / name / f"{name}.csr")
            self.command("federation", "admit", str(folder / "credit"), request, "--address", address)
        write_data(folder)
        for name in names:
            file = folder / name / SITE
            file.write_text(f"wait_seconds = {WAIT_SECONDS}\n{file.read_text()}{DATA[name]}")
        self.share()

    @classmethod
    def running(cls, folder: Path, names: tuple[str, ...]) -> Iterator[World]:
        """Yield sites that all run, and stop them afterwards."""
        made = cls(folder, names)
        for name in names:
            made.start(name)
        yield made
        made.stop()

    def command(self, *words: str) -> None:
        assert main(words) == 0, words

    def give_budgets(self, epsilon: float) -> None:
        """Give rows of the same columns a budget at each site, before it starts."""
        for name in self.names:
            file = self.path / name / SITE
            text = file.read_text()
            for kind in ("patients", "cases", "cured"):
                head = f"[data.{kind}]\n"
                text = text.replace(head, f"{head}budget = {{ epsilon = {epsilon}, delta = 1e-4 }}\n")
            file.write_text(text)

    def share(self) -> None:
        """Give every site the federation's file."""
        text = (self.path / "credit" / "federation.toml").read_text()
        for name in self.names:
            (self.path / name / "federation.toml").write_text(text)

    def signed(self, text: str) -> str:
        """The federation's file after a change by hand, which its authority signed."""
        file = self.path / "credit" / "federation.toml"
        file.write_text(text)
        self.command("federation", "sign", str(file.parent))
        return file.read_text()

    def folder(self, name: str) -> SiteFolder:
        return SiteFolder(self.path / name)

    def start(self, name: str, limits: Limits = LIMITS) -> None:
        """Let a site listen."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        self._loops[name] = loop, thread

        def say(line: dict[str, Any]) -> None:
            self.output[name].append(line["text"])

        process = SiteProcess(self.folder(name), limits=limits, tell=say, approval_seconds=120.0)
        self.processes[name] = process
        asyncio.run_coroutine_threadsafe(process.start(), loop).result(30)

    def run(self, name: str) -> SiteRun | None:
        """Return the run that is under way at a site, if one is: the first."""
        found = [active.site_run for active in self.processes[name].runs.values() if active.site_run is not None]
        return found[0] if found else None

    def driven_run(self, name: str) -> str | None:
        """Return the run whose driver a site listens to, if there is one: the first."""
        return next(iter(self.processes[name].runs), None)

    def free(self, name: str) -> None:
        """Let a site be busy with nothing."""
        process = self.processes[name]

        def end() -> None:
            for active in list(process.runs.values()):
                process._end(active)

        self.on(name, end)

    def on(self, name: str, action: Callable[[], Any]) -> Any:
        """Do something in the thread of a site."""

        async def act() -> Any:
            return action()

        return asyncio.run_coroutine_threadsafe(act(), self._loops[name][0]).result(10)

    def stop(self) -> None:
        """End all sites."""
        for name in list(self._loops):
            self.end(name)

    def end(self, name: str) -> None:
        """End a site, as somebody who stops its process."""
        loop, thread = self._loops.pop(name)

        async def work() -> None:
            self.processes[name].stop()
            await asyncio.sleep(0.1)  # connections say that they close
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            for transport in list(loop._transports.values()):  # type: ignore[attr-defined]
                transport.abort()
            await asyncio.sleep(0.01)

        asyncio.run_coroutine_threadsafe(work(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()

    def answer(
        self, approved: bool = True, names: tuple[str, ...] = (), seconds: float = 120.0, why: str = ""
    ) -> threading.Thread:
        """Answer the next proposal at these sites, as their persons would."""
        waiting = {name: set(kept_proposals(self.folder(name))) for name in names or self.names}

        def work() -> None:
            end = time.monotonic() + seconds
            while waiting and time.monotonic() < end:
                for name in list(waiting):
                    for run, proposal in kept_proposals(self.folder(name)).items():
                        if run not in waiting[name]:
                            with contextlib.suppress(BadInput):  # its coordinator went away
                                decide(self.folder(name), proposal, approved=approved, why=why)
                            del waiting[name]
                            break
                time.sleep(0.05)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    def audit(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of a site's log, its signatures checked."""
        folder = self.folder(name)
        return check(folder.path / AUDIT, folder.federation.members[name].certificate)

    def refusals(self, name: str) -> list[str]:
        return [f"{line['party']}: {line['why']}" for line in self.audit(name) if line["what"] == "refused"]
