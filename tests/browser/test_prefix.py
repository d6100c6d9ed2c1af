"""The console behind a proxy that serves it below a path of its host: docs/how-to/proxy.md."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import pytest
from playwright.sync_api import Page, Response, expect

from tests.browser.conftest import opened
from tests.harness.service import Service
from tests.harness.serving import serving

PREFIX = "/chronos"

HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}


class Behind(NamedTuple):
    """The address of a service behind the proxy."""

    url: str


def proxy(service: Service) -> ThreadingHTTPServer:
    """A proxy that takes the prefix off the path, passes the rest on as it is, with the Host
    header, and knows nothing outside the prefix."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def pass_on(self) -> None:
            if not self.path.startswith(f"{PREFIX}/"):
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            to = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
            to.request(self.command, self.path.removeprefix(PREFIX), body, dict(self.headers))
            answer = to.getresponse()
            found = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in HOP_BY_HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(found)))
            self.end_headers()
            self.wfile.write(found)
            to.close()

        do_GET = do_POST = do_DELETE = pass_on  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service on the embedded log."""
    with Service(tmp_path_factory.mktemp("prefix") / "data") as running:
        running.start()
        for id in ("plain", "with/slash", "with space"):
            message = {"id": id, "target": {"topic": "orders"}, "value": "v", "delay": "1h"}
            assert running.ask("POST", "/v1/messages?wait=5s", message)[0] == 200
        yield running


@pytest.fixture(scope="module")
def behind(service: Service) -> Iterator[Behind]:
    """The service behind the proxy."""
    with serving(proxy(service)) as address:
        yield Behind(address + PREFIX)


VIEWS = ("Messages", "Timeline", "Series", "Dead letters", "Rejected", "Targets", "Cluster")


def test_every_address_of_the_console_stays_below_the_path_of_a_proxy(page: Page, behind: Behind):
    """Documents, scripts, styles, requests and links, in every view, by links and by loading it
    again; nothing is asked for outside the path, and nothing is missing."""
    answers: list[Response] = []
    page.on("response", lambda answer: answers.append(answer))
    opened(page, behind, "/")
    for name in VIEWS:
        page.get_by_role("navigation").get_by_role("link", name=name, exact=True).click()
        expect(page.locator("main h1")).to_contain_text(name)
        for reload in (False, True):
            if reload:
                page.reload()
                expect(page.locator("main h1")).to_contain_text(name)
            hrefs = page.evaluate("[...document.querySelectorAll('a[href]')].map((a) => a.href)")
            assert [href for href in hrefs if not href.startswith(f"{behind.url}/")] == []
    for name in ("OpenAPI", "Metrics", "Readiness"):
        href = page.get_by_role("link", name=name, exact=True).get_attribute("href")
        assert href is not None
        assert page.request.get(href).status == 200
    page.locator("a.brand").click()
    expect(page).to_have_url(f"{behind.url}/")
    outside = [each.url for each in answers if not each.url.startswith(f"{behind.url}/")]
    assert outside == []
    assert [(each.url, each.status) for each in answers if each.status >= 400] == []


@pytest.mark.parametrize("id", ["plain", "with/slash", "with space"])
def test_a_message_is_opened_and_cancelled_behind_a_proxy(page: Page, behind: Behind, service, id):
    """Also one whose id has a slash; its view can be loaded again, and the way back works."""
    opened(page, behind, "/ui/messages")
    page.get_by_role("link", name=id, exact=True).click()
    expect(page.locator("main h1")).to_contain_text(id)
    page.reload()
    expect(page.locator("main h1")).to_contain_text(id)
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel", exact=False).last.click()
    expect(page.locator(".notice.good").first).to_be_visible()
    page.go_back()
    expect(page.locator("main h1")).to_have_text("Messages")
    quoted = id.replace("/", "%2F").replace(" ", "%20")
    assert service.get(f"/v1/messages/{quoted}")["state"] == "cancelled"


def test_a_token_is_kept_for_one_service_of_a_host(page: Page, behind: Behind, service):
    """Services at other paths of the host do not get it."""
    opened(page, behind, "/")
    page.evaluate(
        "import(document.querySelector('script').src.replace('app.js', 'lib/api.js'))"
        ".then((api) => api.setToken('secret'))"
    )
    assert page.evaluate("Object.keys(sessionStorage)") == ["chronos-token /chronos/"]


def test_the_first_page_asks_the_embedded_log_for_nothing_that_it_does_not_have(
    page: Page, service
):
    """No request of it is an error."""
    answers: list[Response] = []
    page.on("response", lambda answer: answers.append(answer))
    opened(page, service, "/")
    expect(page.locator("main")).to_contain_text("Dead-lettered")
    page.wait_for_load_state("networkidle")
    assert len(answers) > 10
    assert [(each.url, each.status) for each in answers if each.status >= 400] == []
