"""A Chromium for the tests of the console: one per module, a context and a page per test, and a
picture of the page of each test that fails.

The browser lives as long as a module: while one runs, the thread has a running event loop, with
which `asyncio.run` in the tests of other modules fails."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Error, Page, expect, sync_playwright

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / ".cache" / "browser"

WAIT_MS = 45_000
"""Bound of every wait for the page: only a test that fails takes this long. The console looks every
2 s, and less often where a look takes long, as on a loaded machine."""

expect.set_options(timeout=WAIT_MS)

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Addressed(Protocol):
    """A service, or a proxy before it."""

    @property
    def url(self) -> str:
        """Its address, without a slash at the end."""


def opened(page: Page, service: Addressed, path: str = "/") -> Page:
    """A view once the console shows the state of the service."""
    page.goto(service.url + path)
    expect(page.locator("#health")).not_to_have_text("connecting")
    expect(page.locator("main h1")).to_have_count(1)
    return page


def faults(page: Page) -> list[tuple[str, str, list[str]]]:
    """The serious faults of accessibility of what is shown."""
    return [
        (fault["id"], fault["impact"], [node["html"][:200] for node in fault["nodes"]])
        for fault in Axe().run(page).response["violations"]
        if fault["impact"] in ("serious", "critical")
    ]


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of the browser, which `scripts/browser/fetch` finds or fetches."""
    found = subprocess.run(
        [ROOT / "scripts" / "browser" / "fetch"], capture_output=True, text=True, check=False
    )
    if found.returncode:
        pytest.fail(f"no browser for the tests of the console:\n{found.stderr}", pytrace=False)
    return found.stdout.strip()


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """A browser without a screen, with an empty profile of its own."""
    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=chromium, headless=True, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page in a context of its own. The test fails if a script of the page does."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(WAIT_MS)
    opened = context.new_page()
    errors: list[Error] = []
    # The driver cannot mark a method of a list as a listener.
    opened.on("pageerror", lambda error: errors.append(error))
    yield opened
    context.close()
    assert errors == []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep a picture of the page when a test has failed, and name it in the report."""
    report = yield
    opened = getattr(item, "funcargs", {}).get("page")
    if report.when == "call" and report.failed and opened is not None:
        PICTURES.mkdir(parents=True, exist_ok=True)
        path = PICTURES / (re.sub(r"[^\w.-]+", "-", item.name) + ".png")
        try:
            opened.screenshot(path=path, full_page=True)
        except Error as error:
            report.sections.append(("page", f"no picture: {error}"))
        else:
            report.sections.append(("page", f"{opened.url}, its picture: {path}"))
    return report
