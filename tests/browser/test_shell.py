"""What surrounds the views of the console: addresses, the banner, the switches, the keys, and a
service that goes away."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import faults, opened
from tests.harness.service import Service

pytestmark = pytest.mark.browser

VIEWS = (
    "/",
    "/ui/messages",
    "/ui/timeline",
    "/ui/series",
    "/ui/dead-letters",
    "/ui/rejected",
    "/ui/targets",
    "/ui/cluster",
    "/ui/audit",
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A node without messages."""
    with Service(tmp_path_factory.mktemp("shell") / "data", settings={"shards": 2}) as running:
        yield running.start()


def test_every_view_is_reached_by_its_link_and_by_its_address(page: Page, service: Service) -> None:
    """And back and forward lead where they came from."""
    opened(page, service)
    links = page.get_by_role("navigation", name="Views", exact=True).get_by_role("link")
    assert tuple(link.get_attribute("href") for link in links.all()) == VIEWS
    for at, path in enumerate(VIEWS):
        links.nth(at).click()
        expect(page).to_have_url(service.url + path)
        expect(links.nth(at)).to_have_attribute("aria-current", "page")
        expect(page.locator("main h1")).to_have_count(1)
    page.go_back()
    expect(page).to_have_url(service.url + VIEWS[-2])
    expect(links.nth(len(VIEWS) - 2)).to_have_attribute("aria-current", "page")
    page.reload()
    expect(links.nth(len(VIEWS) - 2)).to_have_attribute("aria-current", "page")
    page.go_forward()
    expect(page).to_have_url(service.url + VIEWS[-1])


def test_an_address_without_a_view_says_so(page: Page, service: Service) -> None:
    answer = page.goto(service.url + "/ui/nothing")
    assert answer is not None
    assert answer.status == 404
    expect(page.get_by_role("heading", name="There is no such view")).to_be_visible()
    page.get_by_role("main").get_by_role("link", name="Go to the overview").click()
    expect(page).to_have_url(service.url + "/")


def test_times_are_in_utc_or_local_and_always_name_their_zone(page: Page, service: Service) -> None:
    """The choice outlives the page."""
    opened(page, service)
    clock = page.locator("#clock")
    expect(clock).to_contain_text(re.compile(r"\d\d:\d\d:\d\d UTC"))
    page.get_by_role("button", name=re.compile("Times are in UTC")).click()
    expect(clock).to_contain_text(re.compile(r"\d\d:\d\d:\d\d [+−]\d\d:\d\d"))
    page.reload()
    expect(page.get_by_role("button", name=re.compile("Times are in local time"))).to_be_visible()
    expect(clock).to_contain_text(re.compile(r"\d\d:\d\d:\d\d [+−]\d\d:\d\d"))


def test_the_console_is_used_with_the_keyboard_alone(page: Page, service: Service) -> None:
    opened(page, service)
    page.keyboard.type("gc")
    expect(page).to_have_url(service.url + "/ui/cluster")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_contain_text("Dead letters")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    expect(page.get_by_label("Find a message by its id")).to_be_focused()
    # A text with every character that has a meaning in an address.
    page.keyboard.type("../../etc/passwd?a=b#c")
    page.keyboard.press("Enter")
    expect(page).to_have_url(service.url + "/ui/messages/..%2F..%2Fetc%2Fpasswd%3Fa%3Db%23c")
    page.goto(service.url)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()


@pytest.mark.parametrize(
    ("path", "look"), [("/ui/cluster", "light"), ("/ui/cluster", "dark"), ("/ui/nothing", "narrow")]
)
def test_the_console_has_no_serious_fault_of_accessibility(
    page: Page, service: Service, path: str, look: str
) -> None:
    """And a narrow screen does not scroll sideways."""
    page.emulate_media(color_scheme="dark" if look == "dark" else "light")
    width = 390 if look == "narrow" else 1280
    page.set_viewport_size({"width": width, "height": 844})
    opened(page, service, path)
    theme = "dark" if look == "dark" else "light"
    expect(page.locator("html")).to_have_attribute("data-theme", theme)
    assert faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_first_view_is_timed(page: Page, service: Service) -> None:
    opened(page, service)
    painted = page.wait_for_function(
        "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    )
    painted_ms = painted.json_value()
    print(f"first view after {painted_ms:.0f} ms")
    assert painted_ms > 0


def test_the_console_says_that_the_service_is_away_and_recovers(
    page: Page, service: Service
) -> None:
    """It says since when, and keeps what it showed. The last test of the module."""
    opened(page, service, "/ui/cluster")
    shard = page.get_by_role("table", name="Shards").get_by_role("row").nth(1)
    expect(shard).to_contain_text("master")
    service.stop()
    expect(page.locator("#health")).to_have_text("no answer")
    banner = page.get_by_role("region", name="What needs attention")
    expect(banner).to_contain_text(re.compile(r"has not answered since .* UTC"))
    expect(shard).to_contain_text("master")
    expect(page.get_by_role("main")).to_have_class("stale")
    # The files of a view that was not looked at yet cannot be fetched now.
    page.get_by_role("navigation", name="Views").get_by_role("link", name="Audit").click()
    expect(page.get_by_role("heading", name="This view cannot be loaded")).to_be_visible()
    service.start()
    expect(page.locator("#health")).to_have_text("ready")
    expect(banner).to_be_hidden()
    expect(page.get_by_role("heading", name="Audit", exact=True)).to_be_visible()
    expect(page.get_by_role("main")).not_to_have_class("stale")
