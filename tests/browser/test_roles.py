"""The web page with tokens of different roles: what each of them sees, and what the service refuses
it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from chronos.admin.http.tokens import digest
from tests.harness.service import Service

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
    tokens = [
        {"name": name, "sha256": digest(name), "roles": roles} for name, roles in ROLES.items()
    ]
    (folder / "tokens.yaml").write_text(json.dumps({"format": 2, "tokens": tokens}))
    settings: dict[str, object] = {"shards": 1, "admin.tokens": folder / "tokens.yaml"}
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
    page.goto(service.url)
    page.get_by_label("Token", exact=True).fill(token)
    page.get_by_label("Token", exact=True).press("Enter")
    expect(page.get_by_role("status")).to_have_text("ready")
    page.locator("#find-id").fill("order-17")
    page.locator("#find-id").press("Enter")
    expect(page.locator("#found")).to_contain_text("pending")


@pytest.mark.parametrize("token", ["viewer", "reader"])
def test_a_token_that_may_only_read_cannot_cancel(page: Page, service: Service, token: str) -> None:
    found(page, service, token)
    page.locator("#found").get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the message").click()
    expect(page.locator("#found .notice.bad")).to_contain_text(token)
    assert service.get("/v1/messages/order-17")["state"] == "pending"


def test_headers_are_hidden_from_a_token_without_the_role_payload(
    page: Page, service: Service
) -> None:
    found(page, service, "viewer")
    expect(page.locator("#found")).to_contain_text("orders")
    expect(page.locator("#found")).not_to_contain_text("4711")


def test_headers_are_shown_to_a_token_with_the_role_payload(page: Page, service: Service) -> None:
    found(page, service, "reader")
    expect(page.locator("#found")).to_contain_text("card=4711")


def test_a_wrong_token_is_asked_for_again(page: Page, service: Service) -> None:
    page.goto(service.url)
    page.get_by_label("Token", exact=True).fill("nobody")
    page.get_by_label("Token", exact=True).press("Enter")
    expect(page.get_by_label("Token", exact=True)).to_have_value("")
    expect(page.get_by_label("Token", exact=True)).to_be_visible()
    page.get_by_label("Token", exact=True).fill("owner")
    page.get_by_label("Token", exact=True).press("Enter")
    expect(page.get_by_role("status")).to_have_text("ready")
