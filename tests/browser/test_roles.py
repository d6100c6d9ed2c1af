"""Messages in the console with tokens of different roles: what each of them sees, and what the
service refuses it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.harness.service import Service
from tests.harness.tokens import tokens_file

ROLES = {
    "viewer": ["read"],
    "reader": ["read", "payload"],
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
def test_a_token_that_may_only_read_cannot_cancel(page: Page, service: Service, token: str) -> None:
    found(page, service, token)
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the message").click()
    expect(page.locator("main .notice.bad")).to_contain_text(
        f"the token {token} does not have the role write"
    )
    assert service.get("/v1/messages/order-17")["state"] == "pending"


def test_a_bulk_operation_is_refused_with_the_role_that_is_missing(
    page: Page, service: Service
) -> None:
    found(page, service, "reader")
    page.goto(service.url + "/ui/messages?target=orders")
    page.get_by_role("button", name="Cancel all that match").click()
    expect(page.locator("#notices")).to_contain_text("does not have the role operate")


def test_payload_and_headers_are_hidden_from_a_token_without_the_role_payload(
    page: Page, service: Service
) -> None:
    found(page, service, "viewer")
    expect(page.get_by_role("region", name="Payload")).to_contain_text(
        "The payload is hidden: it is shown to a token with the role payload."
    )
    expect(page.get_by_role("region", name="Headers")).to_contain_text("The headers are hidden")
    expect(page.locator("main")).not_to_contain_text("4711")
    page.get_by_role("link", name="Edit and send again").click()
    expect(page.locator("main")).to_contain_text("The payload and the headers are hidden")


def test_payload_and_headers_are_shown_to_a_token_with_the_role_payload(
    page: Page, service: Service
) -> None:
    found(page, service, "reader")
    expect(page.get_by_role("region", name="Payload")).to_contain_text("please pay")
    expect(page.get_by_role("region", name="Headers")).to_contain_text("4711")
