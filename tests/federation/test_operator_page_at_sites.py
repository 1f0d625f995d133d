"""The operator's page in a browser while two sites work: read, approve, watch, and see that a site is down."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedactors.cli.main import main
from fedactors.cli.operator_page import Server, listening
from fedactors.cli.sites import SiteSource
from fedactors.federation.approval import decision, kept_proposals
from fedactors.federation.site_folder import SITE
from tests.browser import CHROMIUM, Browser
from tests.federation.test_policy import BUDGET, NOISED
from tests.federation.test_runs import command
from tests.federation.world import BANK, SHOP, World

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed here"),
]
LONG = ("num_epochs=200", *NOISED[1:])
SCREENS: dict[str, dict[str, Any]] = {"desktop": {}, "phone": {"width": 390, "height": 844}, "dark": {"dark": True}}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The shop's data have a budget."""
    made = World(tmp_path_factory.mktemp("operated"))
    file = made.path / SHOP / SITE
    file.write_text(file.read_text().replace('"orders.csv"\nid = "id"\n', BUDGET, 1))
    made.start(BANK)
    made.start(SHOP)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def server(world: World) -> Iterator[Server]:
    folder = world.path / SHOP
    with listening(SiteSource(folder), folder, 0) as made:
        yield made


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("browser") / "profile")
    made.allowed = ("data:", f"http://127.0.0.1:{server.port}/", f"http://operator:{server.token}@127.0.0.1:")
    made.show(f"http://operator:{server.token}@127.0.0.1:{server.port}/")
    yield made
    made.close()


def until(browser: Browser, server: Server, condition: str, seconds: float = 60.0) -> None:
    """Look at the page until a JavaScript expression holds."""
    end = time.monotonic() + seconds
    while True:
        browser.show(f"http://127.0.0.1:{server.port}/")
        if browser.evaluate(condition):
            return
        assert time.monotonic() < end, browser.evaluate("document.body.innerText")
        time.sleep(0.2)


def text(browser: Browser) -> str:
    return str(browser.evaluate("document.body.innerText"))


def pictures(browser: Browser, server: Server, folder: Path, name: str, path: str = "/") -> None:
    for screen, facts in SCREENS.items():
        browser.show(f"http://127.0.0.1:{server.port}{path}", **facts)
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), (name, screen)
        browser.picture(folder / f"{name}-{screen}.png")
    browser.show(f"http://127.0.0.1:{server.port}{path}")


def press(browser: Browser, value: str) -> None:
    browser.events.clear()
    browser.evaluate(f"document.querySelector('button[value={value}]').click()")
    browser.await_load()


def proposing(world: World, *words: str) -> tuple[threading.Thread, list[int]]:
    """The bank's person starts a run, and approves it at the bank."""
    found: list[int] = []
    world.answer(names=(BANK,))
    words = (*command(world, "pubsub-vfl"), "--budget", "shop=20:1e-4", *words)
    thread = threading.Thread(target=lambda: found.append(main(words)), daemon=True)
    thread.start()
    return thread, found


def watched(thread: threading.Thread, until_: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not until_():
        assert thread.is_alive()
        assert time.monotonic() < end
        time.sleep(0.05)


def test_an_operator_reads_approves_watches_and_ends(
    world: World, browser: Browser, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path
    assert "Nothing is proposed" in text(browser)
    thread, found = proposing(world, *LONG)
    until(browser, server, "document.querySelectorAll('a[href^=\"/run/\"]').length > 0")
    assert "its answer to the proposal" in text(browser)
    (run,) = kept_proposals(world.folder(SHOP))
    pictures(browser, server, folder, "pending")
    pictures(browser, server, folder, "proposal", f"/run/{run}")
    capsys.readouterr()
    assert main(["site", "show", run, "--folder", str(world.path / SHOP)]) == 0
    printed = capsys.readouterr().out.partition("\nto answer: ")[0].rstrip()
    lines = "[...document.querySelectorAll('pre > *')].map((line) => line.textContent.trimEnd()).join('\\n')"
    assert browser.evaluate(lines).rstrip() == printed
    browser.evaluate("document.querySelector('input[name=why]').value = 'read & <b>understood</b>'")
    press(browser, "approve")
    assert f"/run/{run}" in browser.evaluate("location.pathname")
    assert "approved" in text(browser)
    assert browser.evaluate("document.querySelectorAll('button').length") == 0
    assert decision(world.folder(SHOP), kept_proposals(world.folder(SHOP))[run]) == (True, "read & <b>understood</b>")
    watched(thread, lambda: world.run(SHOP) is not None)
    until(browser, server, "[...document.querySelectorAll('tr')].some(row => /^Embedding\\t[1-9]/.test(row.innerText))")
    seen = text(browser)
    assert "running" in seen
    assert "epsilon 60" in seen
    pictures(browser, server, folder, "running")
    assert main(["site", "stop", run, "--folder", str(world.path / SHOP), "--why", "seen enough"]) == 0
    thread.join(60)
    assert found[0] != 0
    until(browser, server, "document.body.innerText.includes('stopped: seen enough')")
    assert "train: epsilon" in text(browser), "what the run took of the budget stands there"
    pictures(browser, server, folder, "ended", f"/run/{run}")
    assert "Embedding" in text(browser)
    assert browser.errors == []


def test_an_operator_refuses(world: World, browser: Browser, server: Server) -> None:
    thread, found = proposing(world, *LONG)
    until(browser, server, "document.body.innerText.includes('awaiting approval') && "
          "document.querySelectorAll('#pending + .table a').length > 0")  # fmt: skip
    browser.show(
        f"http://127.0.0.1:{server.port}{browser.evaluate('document.querySelector(`#pending + .table a`).pathname')}"
    )
    browser.evaluate("document.querySelector('input[name=why]').value = 'not this quarter'")
    press(browser, "reject")
    thread.join(60)
    assert found == [3]
    until(browser, server, "document.body.innerText.includes('rejected: not this quarter')")
    assert browser.errors == []


def test_a_form_of_another_page_approves_nothing(
    world: World, browser: Browser, server: Server, tmp_path: Path
) -> None:
    """The browser has the token; a page elsewhere sends a form that would be right."""
    thread, _ = proposing(world, *LONG)
    until(browser, server, "document.querySelectorAll('#pending + .table a').length > 0")
    path = browser.evaluate("document.querySelector('#pending + .table a').pathname")
    run = path.rpartition("/")[2]
    proposal = kept_proposals(world.folder(SHOP))[run]
    fields = {"code": server.code_of(run, proposal.digest), "digest": proposal.digest, "answer": "approve"}
    inputs = "".join(f'<input name="{name}" value="{value}">' for name, value in fields.items())
    page = tmp_path / "evil.html"
    page.write_text(f'<form method="post" action="http://127.0.0.1:{server.port}{path}/answer">{inputs}</form>')
    browser.allowed = (*browser.allowed, "file:")
    browser.show(page)
    browser.events.clear()
    browser.evaluate("document.querySelector('form').submit()")
    browser.await_load()
    assert "own form" in text(browser)
    assert decision(world.folder(SHOP), proposal) is None
    browser.show(f"http://127.0.0.1:{server.port}{path}")
    press(browser, "reject")
    thread.join(60)
    browser.errors.clear()  # the console says 403


def test_a_site_that_is_down_is_said_and_comes_back(
    world: World, browser: Browser, server: Server, tmp_path: Path
) -> None:
    before = set(kept_proposals(world.folder(SHOP)))
    thread, found = proposing(world, *LONG)
    watched(thread, lambda: bool(set(kept_proposals(world.folder(SHOP))) - before))
    (run,) = set(kept_proposals(world.folder(SHOP))) - before
    assert main(["site", "reject", run, "--folder", str(world.path / SHOP), "--why", "not now"]) == 0
    thread.join(60)
    assert found == [3]
    world.end(SHOP)
    until(browser, server, "document.body.innerText.includes('The site is down')")
    assert "fedactors site start --folder" in text(browser)
    assert "rejected: not now" in text(browser), "what is on record is still there"
    pictures(browser, server, tmp_path, "down")
    world.start(SHOP)
    until(browser, server, "document.querySelector('.state').innerText === 'idle'")
    assert browser.errors == []
