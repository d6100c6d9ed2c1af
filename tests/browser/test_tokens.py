"""The console of a service with tokens: what it asks for, keeps and forgets, and what it says of a
token that does not permit a view."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.harness.service import Service
from tests.harness.tokens import tokens_file

pytestmark = pytest.mark.browser

ROLES = {"writer": ["write"], "owner": ["read", "payload", "write", "operate"]}
"""The roles of each token, whose name is the token."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A node with tokens."""
    folder = tmp_path_factory.mktemp("tokens")
    settings: dict[str, object] = {"shards": 1, "admin.tokens": tokens_file(folder, ROLES)}
    with Service(folder / "data", settings=settings) as running:
        running.token = "owner"
        yield running.start()


def enter(page: Page, token: str) -> None:
    page.get_by_label("Token", exact=True).fill(token)
    page.get_by_label("Token", exact=True).press("Enter")


def test_a_wrong_token_is_asked_for_again_and_a_right_one_kept_in_this_tab(
    page: Page, service: Service
) -> None:
    page.goto(service.url)
    enter(page, "nobody")
    dialog = page.get_by_role("dialog", name="This service needs a token")
    expect(dialog).to_contain_text("The token was not accepted.")
    expect(page.get_by_label("Token", exact=True)).to_have_value("")
    enter(page, "owner")
    expect(page.locator("#health")).to_have_text("ready")
    page.reload()
    expect(page.locator("#health")).to_have_text("ready")
    page.get_by_role("button", name="Forget the token").click()
    expect(dialog).to_be_visible()


def test_without_a_token_the_console_waits_until_it_is_asked_for_one(
    page: Page, service: Service
) -> None:
    page.goto(service.url)
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    banner = page.get_by_role("region", name="What needs attention")
    expect(banner).to_contain_text("This service needs a token")
    expect(page.locator("#health")).to_have_text("no token")
    banner.get_by_role("button", name="Enter a token").click()
    enter(page, "owner")
    expect(page.locator("#health")).to_have_text("ready")
    expect(banner).to_be_hidden()


def test_a_token_without_a_role_is_told_which_one(page: Page, service: Service) -> None:
    page.goto(service.url)
    enter(page, "writer")
    expect(page.locator("#health")).to_have_text("not permitted")
    banner = page.get_by_role("region", name="What needs attention")
    expect(banner).to_contain_text("writer does not have the role read")
