"""Messages in the console with tokens of different roles: what each of them sees, and what is not
offered to it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import faults
from tests.harness.service import Service
from tests.harness.tokens import tokens_file

pytestmark = pytest.mark.browser

ROLES = {
    "viewer": ["read"],
    "reader": ["read", "payload"],
    "writer": ["read", "payload", "write"],
    "owner": ["read", "payload", "write", "operate"],
}
"""The roles of each token, whose name is the token."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A node with tokens and the pending message `order-17`."""
    folder = tmp_path_factory.mktemp("roles")
    settings: dict[str, object] = {"shards": 1, "admin.tokens": tokens_file(folder, ROLES)}
    with Service(folder / "data", settings=settings) as running:
        running.token = "owner"
        running.start()
        running.post("/v1/messages?wait=5s", message("order-17"))
        yield running


def message(id: str) -> dict[str, object]:
    target = {"topic": "orders", "headers": {"card": "4711"}}
    return {"id": id, "target": target, "value": "please pay", "delay": "1h"}


def found(page: Page, service: Service, token: str) -> None:
    """Enter the token, and look up the message."""
    page.goto(service.url + "/ui/messages/order-17")
    page.get_by_label("Token", exact=True).fill(token)
    page.get_by_label("Token", exact=True).press("Enter")
    expect(page.get_by_role("region", name="History")).to_contain_text("Accepted")


@pytest.mark.parametrize("token", ["viewer", "reader"])
def test_a_token_that_may_only_read_is_not_offered_to_cancel(
    page: Page, service: Service, token: str
) -> None:
    """The button says why, also to a screen reader, and asks nothing."""
    found(page, service, token)
    expect(page.locator("#caller")).to_contain_text(token)
    for name in ("Cancel", "Reschedule", "Deliver now", "Edit and replace", "Edit and send again"):
        button = page.get_by_role("button", name=name, exact=True)
        expect(button).to_be_disabled()
        expect(button).to_have_accessible_description(
            re.compile(f"Not permitted to the token {token}, whose roles? (is|are) read")
        )
    assert faults(page) == []
    page.get_by_role("button", name="Cancel", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.locator("#notices")).to_contain_text("Not permitted to the token")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_bulk_operation_is_not_offered_to_a_token_that_may_not_operate(
    page: Page, service: Service
) -> None:
    found(page, service, "writer")
    page.goto(service.url + "/ui/messages?target=orders")
    expect(page.get_by_role("button", name="Cancel all that match")).to_be_disabled()
    page.get_by_label("Select order-17").check()
    expect(page.get_by_role("button", name="Cancel 1 selected")).to_be_enabled()


def test_a_token_with_all_roles_is_offered_everything_and_named(
    page: Page, service: Service
) -> None:
    found(page, service, "owner")
    expect(page.locator("#caller")).to_have_attribute(
        "title", "Token owner: read, payload, write, operate"
    )
    for name in ("Cancel", "Reschedule", "Deliver now"):
        expect(page.get_by_role("button", name=name, exact=True)).to_be_enabled()


def test_another_token_in_the_same_tab_has_its_own_buttons(page: Page, service: Service) -> None:
    found(page, service, "viewer")
    expect(page.get_by_role("button", name="Cancel", exact=True)).to_be_disabled()
    page.get_by_role("button", name="Forget the token").click()
    page.get_by_label("Token", exact=True).fill("owner")
    page.get_by_label("Token", exact=True).press("Enter")
    expect(page.get_by_role("button", name="Cancel", exact=True)).to_be_enabled()


def test_payload_and_headers_are_hidden_from_a_token_without_the_role_payload(
    page: Page, service: Service
) -> None:
    found(page, service, "viewer")
    expect(page.get_by_role("region", name="Payload")).to_contain_text(
        "The payload is hidden: it is shown to a token with the role payload."
    )
    expect(page.get_by_role("region", name="Headers")).to_contain_text("The headers are hidden")
    expect(page.locator("main")).not_to_contain_text("4711")
    page.goto(service.url + "/ui/messages?schedule=true&from=order-17")
    expect(page.locator("main")).to_contain_text("The payload and the headers are hidden")
    expect(page.get_by_role("button", name="Schedule as a new message")).to_be_disabled()


def test_payload_and_headers_are_shown_to_a_token_with_the_role_payload(
    page: Page, service: Service
) -> None:
    found(page, service, "reader")
    expect(page.get_by_role("region", name="Payload")).to_contain_text("please pay")
    expect(page.get_by_role("region", name="Headers")).to_contain_text("4711")


@pytest.mark.parametrize(("token", "count"), [("writer", 0), ("owner", 1)])
def test_the_audit_trail_is_linked_for_a_token_that_may_read_it(
    page: Page, service: Service, token: str, count: int
) -> None:
    """Its address works for both: the service says that it is not permitted."""
    found(page, service, token)
    views = page.get_by_role("navigation", name="Views")
    expect(views.get_by_role("link", name="Cluster")).to_have_count(1)
    expect(views.get_by_role("link", name="Audit")).to_have_count(count)
    page.goto(service.url + "/ui/audit")
    expect(views.get_by_role("link", name="Audit")).to_have_count(1)
