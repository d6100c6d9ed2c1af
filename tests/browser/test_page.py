"""The web page of a real node on the embedded log, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.harness.service import Service

MANY = 3_000
HOSTILE = (
    "<script>window.hacked = 1</script>",
    '"><img src=x onerror="window.hacked = 1">',
    "\u202egnp.exe\u202c right to left",
    "javascript:window.hacked=1",
    "{{7*7}}${7*7}",
    "../../etc/passwd?a=b#c",
)
"""Texts that must be shown as they are."""

SECONDS = 1_000
"""In ms, as Playwright's time limits."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A node with thousands of pending messages, hostile ones among them, and the dead letter
    `order-17`, whose target is not allowed."""
    settings: dict[str, object] = {
        "shards": 2,
        "workers.push": "off",
        "topics.message_bytes_max": "2MB",
    }
    with Service(tmp_path_factory.mktemp("page") / "data", settings=settings) as running:
        running.start()
        running.post("/v1/messages", message("order-17", topic="bills", delay=0))
        running.post("/v1/messages", [message(f"many-{at}", delay="2h") for at in range(MANY)])
        hostile = [message(text, text, value=text, delay="1h") for text in HOSTILE]
        large = message("large", value="<b>" * 350_000, delay="1h")
        cancelled = message("to-cancel", delay="1h")
        running.post("/v1/messages", [*hostile, large, cancelled])
        accepted = MANY + len(HOSTILE) + 3
        running.wait_until(lambda: running.pending() == accepted, "accept the messages")
        running.stop()
        running.settings |= {"workers.push": "on", "targets.deny": "bills"}
        running.start()
        running.wait_until(lambda: running.pending() == accepted - 1, "dead-letter order-17")
        yield running


def message(
    id: str, header: str = "v", *, topic: str = "orders", value: str = "please pay", delay: object
) -> dict[str, Any]:
    return {
        "id": id,
        "target": {"topic": topic, "key": id, "headers": {"trace": header}},
        "value": value,
        "delay": delay,
    }


def opened(page: Page, service: Service) -> Page:
    """The page once it shows the state of the service."""
    page.goto(service.url)
    expect(page.get_by_role("status")).not_to_have_text("connecting")
    return page


def find(page: Page, id: str) -> None:
    page.get_by_label("Id", exact=True).first.fill(id)
    page.get_by_label("Id", exact=True).first.press("Enter")


def test_a_stranger_finds_out_in_one_click_why_a_message_was_not_delivered(
    page: Page, service: Service
) -> None:
    opened(page, service)
    expect(page.get_by_role("status")).to_have_text("messages fail")
    expect(page.get_by_role("alert")).to_contain_text("forbidden-target for bills")
    letters = page.get_by_role("table", name="Dead letters")
    letters.get_by_role("button", name="order-17").click()
    card = page.locator("#found")
    expect(card).to_contain_text("dead")
    expect(card).to_contain_text("forbidden-target: targets.allow and targets.deny")


@pytest.mark.parametrize(
    "text", HOSTILE, ids=["script", "image", "direction", "address", "template", "path"]
)
def test_a_hostile_message_is_shown_as_text(page: Page, service: Service, text: str) -> None:
    opened(page, service)
    page.on("dialog", lambda dialog: pytest.fail(f"a dialog opened: {dialog.message}"))
    # It is due first, so that it is listed too.
    listed = page.locator("#list").get_by_role("button", name=text, exact=True)
    expect(listed).to_be_visible()
    listed.click()
    card = page.locator("#found")
    expect(card).to_contain_text(f"trace={text}")
    assert page.evaluate("window.hacked") is None
    assert page.locator("#found script, #found img, #list script, #list img").count() == 0


def test_a_message_of_a_megabyte_does_not_stop_the_page(page: Page, service: Service) -> None:
    opened(page, service)
    find(page, "large")
    expect(page.locator("#found")).to_contain_text("large")
    expect(page.locator("#found")).to_contain_text("1.0 MiB")


def test_the_figures_are_those_of_the_service(page: Page, service: Service) -> None:
    opened(page, service)
    shown = re.sub(r"\D", "", page.locator("#pending").inner_text())
    assert int(shown) == service.pending() > MANY


def test_a_message_is_cancelled_with_the_keyboard_alone(page: Page, service: Service) -> None:
    opened(page, service)

    def tab_to(what: str) -> None:
        for _ in range(60):
            if page.evaluate("what => document.activeElement.matches(what)", what):
                return
            page.keyboard.press("Tab")
        pytest.fail(f"{what} is not reached with the Tab key")

    tab_to("#find-id")
    page.keyboard.type("to-cancel")
    page.keyboard.press("Enter")
    expect(page.locator("#found")).to_contain_text("pending")
    tab_to("#found .danger")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("Cancel this message?")
    page.keyboard.press("Enter")
    expect(page.locator("#found")).to_contain_text("Cancelled. It will not be delivered.")
    assert service.get("/v1/messages/to-cancel")["state"] == "cancelled"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_has_no_serious_fault_of_accessibility(
    page: Page, service: Service, theme: str
) -> None:
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    opened(page, service)
    find(page, "order-17")
    expect(page.locator("#found")).to_contain_text("dead")
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    faults = [
        (fault["id"], fault["impact"], [node["html"][:200] for node in fault["nodes"]])
        for fault in Axe().run(page).response["violations"]
        if fault["impact"] in ("serious", "critical")
    ]
    assert faults == []


def test_the_first_view_is_timed(page: Page, service: Service) -> None:
    opened(page, service)
    painted_ms = page.evaluate(
        "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    )
    print(f"first view after {painted_ms:.0f} ms")
    assert painted_ms > 0


def test_the_page_tells_that_the_service_is_away_and_recovers(page: Page, service: Service) -> None:
    """The last of the module: the node has no recent dead letters afterwards."""
    opened(page, service)
    service.stop()
    expect(page.get_by_role("status")).to_have_text("no answer", timeout=15 * SECONDS)
    expect(page.get_by_role("alert")).to_contain_text("The service does not answer.")
    service.start()
    expect(page.get_by_role("status")).to_have_text("ready", timeout=15 * SECONDS)
    expect(page.get_by_role("alert")).to_be_hidden()
