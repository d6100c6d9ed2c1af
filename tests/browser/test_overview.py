"""The overview of the console: what is due, what waits, what fails, and the first steps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import faults, opened
from tests.harness.service import Service

pytestmark = pytest.mark.browser

MANY = 3_000
HOSTILE = "<script>window.hacked = 1</script>"
"""An id that must be shown as it is. It is due first, so that it is listed."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A node with thousands of pending messages, the dead letter `order-17`, whose target is not
    allowed, and messages for `slow` that wait for its rate."""
    settings: dict[str, object] = {"shards": 2, "workers.push": "off"}
    with Service(tmp_path_factory.mktemp("overview") / "data", settings=settings) as running:
        running.start()
        running.post("/v1/messages", message("order-17", topic="bills", delay=0))
        # In the middle of a minute, so that all are in one interval.
        due_at = (datetime.now(UTC) + timedelta(hours=2)).replace(second=30).isoformat()
        many = [message(f"many-{at}", deliver_at=due_at) for at in range(MANY)]
        running.post("/v1/messages", many)
        running.post("/v1/messages", message(HOSTILE, delay="30m"))
        slow = [message(f"slow-{at}", topic="slow", delay=0) for at in range(100)]
        running.post("/v1/messages", slow)
        accepted = MANY + 102
        running.wait_until(lambda: running.pending() == accepted, "accept the messages")
        running.stop()
        rates = "{slow: 0/s}"
        running.settings |= {"workers.push": "on", "targets.deny": "bills", "delivery.rates": rates}
        running.start()
        running.wait_until(lambda: running.pending() < accepted, "dead-letter order-17")
        yield running


def message(id: str, *, topic: str = "orders", **when: object) -> dict[str, Any]:
    return {"id": id, "target": {"topic": topic}, "value": "please pay", **when}


def test_the_banner_says_that_messages_fail_why_and_what_to_do(
    page: Page, service: Service
) -> None:
    """From there it is one click to the dead letters."""
    opened(page, service)
    expect(page.locator("#health")).to_have_text("messages fail")
    banner = page.get_by_role("region", name="What needs attention")
    expect(banner).to_contain_text("1 message was dead-lettered in the last 10 min")
    expect(banner).to_contain_text("forbidden-target for bills (1)")
    failed = page.get_by_role("table", name="Messages that failed in the last 10 minutes")
    expect(failed.get_by_role("link", name="bills")).to_have_attribute(
        "href", "/ui/dead-letters?reason=forbidden-target&target=bills"
    )
    banner.get_by_role("link", name="Dead letters").click()
    expect(page).to_have_url(service.url + "/ui/dead-letters")


def test_the_figures_are_those_of_the_service(page: Page, service: Service) -> None:
    opened(page, service)
    expect(page.locator("#figure-pending")).to_have_text(f"{service.pending():,}")
    assert service.pending() > MANY


def test_what_waits_is_shown_with_what_it_waits_for(page: Page, service: Service) -> None:
    opened(page, service)
    row = page.get_by_role("table", name="What waits").get_by_role("row").filter(has_text="slow")
    expect(row).to_contain_text("its rate, 0/s")


def test_what_is_due_is_a_chart_a_table_and_a_list(page: Page, service: Service) -> None:
    """The period is part of the address."""
    opened(page, service)
    expect(page.get_by_text(re.compile("due in the next 1 h"))).to_be_visible()
    listed = page.get_by_role("table", name="Messages due next")
    expect(listed.get_by_role("link", name=HOSTILE, exact=True)).to_be_visible()
    page.get_by_role("navigation", name="Period to come").get_by_role("link", name="24 h").click()
    expect(page).to_have_url(service.url + "/?due=24h")
    expect(page.get_by_text(re.compile("3,... messages are due in the next 24 h"))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile(f"at most {MANY:,}"))).to_be_visible()
    page.reload()
    expect(page.get_by_text(re.compile("3,... messages are due in the next 24 h"))).to_be_visible()
    page.get_by_text("As a table").first.click()
    expect(page.get_by_role("cell", name=f"{MANY:,}", exact=True)).to_be_visible()
    assert page.evaluate("window.hacked") is None


def test_the_past_is_shown_as_charts(page: Page, service: Service) -> None:
    opened(page, service, "/?past=1h&scale=log")
    expect(page.get_by_role("heading", name="The past 1 h")).to_be_visible()
    expect(page.get_by_text(re.compile("1 dead-lettered, 0 expired, 0 rejected"))).to_be_visible()
    scale = page.get_by_role("navigation", name="Scale")
    expect(scale.get_by_role("link", name="Logarithmic")).to_have_attribute("aria-current", "true")


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
def test_a_full_overview_has_no_serious_fault_of_accessibility(
    page: Page, service: Service, look: str
) -> None:
    """And a narrow screen does not scroll sideways."""
    page.emulate_media(color_scheme="dark" if look == "dark" else "light")
    width = 390 if look == "narrow" else 1280
    page.set_viewport_size({"width": width, "height": 844})
    opened(page, service)
    expect(page.get_by_role("table", name="What waits")).to_be_visible()
    assert faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_an_empty_service_says_what_to_do_first(
    page: Page, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings: dict[str, object] = {"shards": 1}
    with Service(tmp_path_factory.mktemp("empty") / "data", settings=settings) as empty:
        opened(page, empty.start())
        steps = page.get_by_role("region", name="No message has been sent yet")
        expect(steps).to_contain_text("chronos send --to hello --in 5s")
        expect(page.get_by_role("heading", name="What is due")).to_be_hidden()
        empty.post("/v1/messages?wait=5s", message("order-1", delay="1h"))
        expect(page.get_by_role("heading", name="What is due")).to_be_visible()
        expect(steps).to_be_hidden()
