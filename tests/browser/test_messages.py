"""Messages in the console: the list, one message, the timeline and the series, on one service."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.conftest import faults, opened
from tests.harness.service import Service

pytestmark = pytest.mark.browser

MANY = 3_000
HOSTILE = (
    "<script>window.hacked = 1</script>",
    '"><img src=x onerror="window.hacked = 1">',
    "\u202egnp.exe\u202c right to left",
    "javascript:window.hacked=1",
    "../../etc/passwd?a=b#c",
    "..",
)
"""Ids, headers and payloads that must be shown as they are."""

TO_MOVE = "2030-01-31T09:00:00.123Z"
"""When the message `to-move` is due."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A node with thousands of pending messages, the dead letters `order-17` and `order-18`, whose
    target was not allowed and is now, and `slow-1`, which waits for the rate of its target."""
    settings: dict[str, object] = {
        "shards": 2,
        "workers.push": "off",
        "topics.message_bytes_max": "2MB",
    }
    with Service(tmp_path_factory.mktemp("messages") / "data", settings=settings) as running:
        running.start()
        bills = [message(f"order-{at}", topic="bills", delay=0) for at in (17, 18)]
        running.post("/v1/messages", bills)
        running.post("/v1/messages", message("slow-1", topic="slow", delay=0))
        # In the middle of a minute, so that all are in one interval.
        due_at = (
            (datetime.now(UTC) + timedelta(hours=2))
            .replace(second=30, microsecond=123_000)
            .isoformat()
        )
        many = [
            message(f"many-{at:04}", topic=f"orders-{at % 3}", deliver_at=due_at)
            for at in range(MANY)
        ]
        bulk = [message(f"bulk-{at}", topic="bulk") for at in range(250)]
        hostile = [message(text, text, value=text, delay="1h") for text in HOSTILE]
        large = message("large", value="<b>" * 350_000)
        single = [message(id) for id in ("to-cancel", "to-fire", "by-keys", "too-late")]
        single.append(message("to-move", deliver_at=TO_MOVE))
        picked = [message(f"picked-{at}", topic="picked") for at in range(5)]
        running.post("/v1/messages", [*many, *bulk, *hostile, large, *single, *picked, *SERIES])
        accepted = len([*bills, *many, *bulk, *hostile, *single, *picked, *SERIES]) + 2
        running.wait_until(lambda: running.pending() == accepted, "accept the messages")
        running.stop()
        running.settings |= {
            "workers.push": "on",
            "targets.deny": "bills",
            "delivery.rates": "{slow: 0/s}",
        }
        running.start()
        running.wait_until(lambda: running.pending() == accepted - 2, "dead-letter the bills")
        running.stop()
        del running.settings["targets.deny"]
        running.start()
        yield running


def message(
    id: str,
    header: str = "v",
    *,
    topic: str = "orders",
    value: str = "please pay",
    delay: object = "2h",
    deliver_at: str | None = None,
) -> dict[str, Any]:
    target = {"topic": topic, "key": id, "headers": {"trace": header}}
    when = {"delay": delay} if deliver_at is None else {"deliver_at": deliver_at}
    return {"id": id, "target": target, "value": value, **when}


# Some twelve hours ahead, in the zone of the series: none of its times comes while tests run.
SERIES_AT = datetime.now(ZoneInfo("Asia/Tokyo")).replace(minute=0, second=0) + timedelta(hours=12)
SERIES = [
    {
        "id": id,
        "target": {"topic": "reports"},
        "value": "report",
        "repeat": f"cron 0 {SERIES_AT.hour} * * 1-5",
        "time_zone": "Asia/Tokyo",
    }
    for id in ("daily-report", "daily-bill")
]


def of(id: str) -> str:
    """The address of a message."""
    return f"/ui/messages/{quote(id, safe='')}"


def rows(page: Page, name: str = "Messages in the order of their due times") -> Locator:
    return page.get_by_role("table", name=name).locator("tbody tr")


def search(page: Page, id: str) -> None:
    """Look an id up in the head."""
    page.get_by_label("Find a message by its id").fill(id)
    page.get_by_label("Find a message by its id").press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text(id)


def press(page: Page, button: str, confirmation: str) -> None:
    """An action and its confirmation."""
    page.get_by_role("button", name=button, exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name=confirmation, exact=True).click()


# --- one message


@pytest.mark.smoke
def test_who_has_only_an_id_finds_out_why_it_was_not_delivered_and_sends_it_again(
    page: Page, service: Service
) -> None:
    """From the overview in three steps: the look-up, Replay, and its confirmation."""
    opened(page, service)
    search(page, "order-17")
    expect(page.locator("main")).to_contain_text(
        "Not delivered, forbidden-target: targets.allow and targets.deny"
    )
    expect(page.get_by_role("link", name="Dead letter", exact=True)).to_have_attribute(
        "href", re.compile(r"^/ui/dead-letters/order-17\?at=[0-9]+%3A[0-9]+$")
    )
    press(page, "Replay", "Replay 1 dead letter")
    expect(page.locator("#notices")).to_contain_text("1 dead letter was replayed")
    expect(page.get_by_role("region", name="History")).to_contain_text("Delivered")


def test_an_overdue_message_says_what_it_waits_for(page: Page, service: Service) -> None:
    opened(page, service)
    search(page, "slow-1")
    expect(page.locator("main")).to_contain_text("Waits for: the rate of slow is limited to 0/s")
    history = page.get_by_role("region", name="History")
    expect(history.get_by_role("listitem").first).to_contain_text("Accepted")
    expect(history).to_contain_text("rate-limited")
    expect(history.get_by_role("listitem").last).to_contain_text("Overdue by")
    page.goto(service.url + "/ui/messages?state=overdue")
    expect(rows(page)).to_have_count(1)
    expect(rows(page)).to_contain_text("rate-limited")


def test_an_unknown_id_says_where_to_look_next(page: Page, service: Service) -> None:
    opened(page, service)
    search(page, "never-sent")
    expect(page.locator("main")).to_contain_text("No message with this id is known")
    card = page.get_by_role("region", name="Where to look next")
    expect(card).to_contain_text("hold no dead letter of never-sent")
    expect(card).to_contain_text("hold no rejected record of never-sent")
    expect(card).to_contain_text("chronos archive find never-sent")


def test_an_id_whose_record_was_rejected_leads_to_the_record(page: Page, service: Service) -> None:
    """A cancel of an id that does not exist is such a record."""
    assert service.ask("DELETE", "/v1/messages/refused")[1]["result"] == "unknown"
    opened(page, service)
    search(page, "refused")
    expect(page.locator("main")).to_contain_text("the record of refused was rejected")
    card = page.get_by_role("region", name="Where it is")
    expect(card).to_contain_text(re.compile("Rejected records: rejected at .* unknown"))
    card.get_by_role("link", name="Rejected records").click()
    expect(page).to_have_url(service.url + "/ui/rejected/refused")


@pytest.mark.parametrize(
    "text", HOSTILE, ids=["script", "image", "direction", "address", "path", "dots"]
)
def test_a_hostile_message_is_shown_as_text(page: Page, service: Service, text: str) -> None:
    """In the list, in its own view, and in the form that sends it again."""
    page.on("dialog", lambda dialog: pytest.fail(f"a dialog opened: {dialog.message}"))
    opened(page, service, f"/ui/messages?id-prefix={quote(text, safe='')}")
    rows(page).get_by_role("link", name=text, exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(text)
    expect(page.get_by_role("region", name="Headers")).to_contain_text(text)
    expect(page.locator("pre.payload")).to_have_text(text)
    page.get_by_role("link", name="Edit and send again").click()
    expect(page.get_by_role("textbox", name="Payload", exact=True)).to_have_value(text)
    assert page.evaluate("window.hacked") is None
    assert page.locator("main script, main img").count() == 0


def test_a_payload_of_a_megabyte_does_not_stop_the_page(page: Page, service: Service) -> None:
    opened(page, service, of("large"))
    expect(page.get_by_role("region", name="Payload")).to_contain_text(
        "The first 65,536 of 1,050,000 characters"
    )
    page.get_by_role("button", name="Hex").click()
    expect(page.locator("pre.payload")).to_contain_text("3c 62 3e")
    expect(page).to_have_url(re.compile(r"\?as=hex$"))


def test_a_cancel_says_that_it_was_in_time_or_too_late(page: Page, service: Service) -> None:
    opened(page, service, of("to-cancel"))
    press(page, "Cancel", "Cancel the message")
    expect(page.locator("main")).to_contain_text("Cancelled in time: it will not be delivered.")
    assert service.get("/v1/messages/to-cancel")["state"] == "cancelled"
    opened(page, service, of("too-late"))
    page.get_by_role("button", name="Cancel", exact=True).click()
    service.post("/v1/messages/too-late/fire", None)
    service.wait_until(
        lambda: service.get("/v1/messages/too-late")["state"] == "delivered", "deliver too-late"
    )
    page.get_by_role("dialog").get_by_role("button", name="Cancel the message").click()
    expect(page.locator("main")).to_contain_text("Too late: it was delivered at")


def test_a_message_is_delivered_now(page: Page, service: Service) -> None:
    opened(page, service, of("to-fire"))
    press(page, "Deliver now", "Deliver it now")
    history = page.get_by_role("region", name="History")
    expect(history).to_contain_text("Delivered")
    expect(history).to_contain_text("to orders, ")


def test_a_reschedule_opens_at_the_present_time_in_the_zone_that_is_shown(
    page: Page, service: Service
) -> None:
    opened(page, service, of("to-move"))
    page.get_by_role("button", name="Reschedule").click()
    field = page.get_by_role("dialog").get_by_label("Time (UTC)")
    expect(field).to_have_value(TO_MOVE.removesuffix("Z"))
    field.fill("2035-01-31T09:00:00")
    page.get_by_role("dialog").get_by_role("button", name="Reschedule the message").click()
    expect(page.locator("main")).to_contain_text("Rescheduled.")
    assert service.get("/v1/messages/to-move")["due_at"] == "2035-01-31T09:00:00.000Z"


def test_a_message_is_cancelled_with_the_keyboard_alone(page: Page, service: Service) -> None:
    opened(page, service)
    page.keyboard.press("/")
    page.keyboard.type("by-keys")
    page.keyboard.press("Enter")
    cancel = page.get_by_role("button", name="Cancel", exact=True)
    expect(cancel).to_be_visible()
    for _ in range(60):
        if cancel.evaluate("one => one === document.activeElement"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("Cancel this message?")
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_contain_text("Cancelled in time")


def test_a_message_is_edited_and_sent_again_as_a_new_one(page: Page, service: Service) -> None:
    opened(page, service, of("many-0001"))
    page.get_by_role("link", name="Edit and send again").click()
    expect(page.get_by_label("Target topic")).to_have_value("orders-1")
    expect(page.get_by_label("Headers")).to_have_value("trace=v")
    page.get_by_role("textbox", name="Payload", exact=True).fill('{"order": 17}')
    page.get_by_label("Id (").fill("edited")
    page.get_by_label("Delay", exact=True).fill("1h")
    page.get_by_role("button", name="Schedule as a new message").click()
    expect(page.locator("main")).to_contain_text("Scheduled for ")
    sent = service.get("/v1/messages/edited", payload="true")
    assert (sent["value"], sent["target"]["key"]) == ('{"order": 17}', "many-0001")
    page.get_by_role("textbox", name="Payload", exact=True).fill("again")
    page.get_by_role("button", name="Schedule as a new message").click()
    expect(page.locator("main")).to_contain_text("Not scheduled: the id is taken.")


def test_a_pending_message_is_replaced_by_an_edited_one(page: Page, service: Service) -> None:
    due_at = service.get("/v1/messages/many-0005")["due_at"]
    opened(page, service, of("many-0005"))
    page.get_by_role("link", name="Edit and replace").click()
    page.get_by_role("textbox", name="Payload", exact=True).fill("replaced")
    page.get_by_role("button", name="Replace the message").click()
    expect(page.locator("main")).to_contain_text("Scheduled for ")
    found = service.get("/v1/messages/many-0005", payload="true")
    assert (found["value"], found["due_at"]) == ("replaced", due_at)
    assert not due_at.endswith(".000Z"), "the milliseconds are kept"


def test_a_series_that_is_edited_keeps_its_next_time_and_what_is_left_of_its_occurrences(
    page: Page, service: Service
) -> None:
    rhythm = {"repeat": "every 1h", "repeat_times": 5, "delay": 0}
    service.post("/v1/messages?wait=5s", message("counted") | rhythm)
    service.wait_until(
        lambda: service.get("/v1/messages/counted")["occurrence"] == 2, "deliver the first one"
    )
    before = service.get("/v1/messages/counted")
    opened(page, service, of("counted"))
    page.get_by_role("link", name="Edit and replace").click()
    expect(page.get_by_label("Occurrences at most, 4 of 5 are left")).to_have_value("4")
    page.get_by_label("Kafka key").fill("other")
    page.get_by_role("button", name="Replace the message").click()
    expect(page.locator("main")).to_contain_text("Scheduled for ")
    found = service.get("/v1/messages/counted")
    assert (found["target"]["key"], found["repetition"]["times"]) == ("other", 4)
    assert (found["due_at"], found["occurrence"]) == (before["due_at"], 1)
    assert service.ask("DELETE", "/v1/messages/counted")[0] == 200


def test_a_cron_series_that_is_edited_keeps_its_first_time_and_its_expiry(
    page: Page, service: Service
) -> None:
    """Unless its rhythm is changed."""
    series = {"repeat": "cron 0 9 * * *", "time_zone": "Asia/Tokyo", "deliver_at": TO_MOVE}
    expiry = {"expire_at": "2030-01-31T09:10:00.123Z"}
    service.post(
        "/v1/messages?wait=5s", message("first-time", deliver_at=TO_MOVE) | series | expiry
    )
    opened(page, service, of("first-time"))
    page.get_by_role("link", name="Edit and replace").click()
    page.get_by_label("Kafka key").fill("other")
    page.get_by_role("button", name="Replace the message").click()
    expect(page.locator("main")).to_contain_text("Scheduled for ")
    found = service.get("/v1/messages/first-time")
    assert (found["target"]["key"], found["due_at"]) == ("other", TO_MOVE)
    assert found["expire_at"] == expiry["expire_at"]
    assert service.ask("DELETE", "/v1/messages/first-time")[0] == 200


def test_a_time_that_comes_twice_in_local_time_is_kept(browser: Browser, service: Service) -> None:
    """Berlin has 02:30 twice on 2030-10-27."""
    second = "2030-10-27T01:30:00.000Z"
    service.post("/v1/messages?wait=5s", message("twice", deliver_at=second))
    with browser.new_context(timezone_id="Europe/Berlin") as context:
        page = opened(context.new_page(), service, of("twice"))
        page.get_by_role("link", name="Edit and replace").click()
        expect(page.get_by_label("Time (UTC)", exact=True)).to_have_value("2030-10-27T01:30")
        page.get_by_role("button", name=re.compile("Times are in UTC")).click()
        local = page.get_by_label("Time (local time)", exact=True)
        expect(local).to_have_value("2030-10-27T02:30")
        page.get_by_label("Kafka key").fill("other")
        page.get_by_role("button", name="Replace the message").click()
        expect(page.locator("main")).to_contain_text("Scheduled for ")
    found = service.get("/v1/messages/twice")
    assert (found["target"]["key"], found["due_at"]) == ("other", second)
    assert service.ask("DELETE", "/v1/messages/twice")[0] == 200


def test_what_is_not_edited_stays_as_it_is(page: Page, service: Service) -> None:
    """Line ends, which a text field would change, and the expiry."""
    exact = message("exact", value="a\r\nb") | {"expire_at": "2099-01-31T09:00:00Z"}
    service.post("/v1/messages?wait=5s", exact)
    opened(page, service, of("exact"))
    page.get_by_role("link", name="Edit and replace").click()
    page.get_by_label("Kafka key").fill("other")
    page.get_by_role("button", name="Replace the message").click()
    expect(page.locator("main")).to_contain_text("Scheduled for ")
    found = service.get("/v1/messages/exact", payload="true")
    assert (found["value"], found["target"]["key"]) == ("a\r\nb", "other")
    assert found["expire_at"] == "2099-01-31T09:00:00.000Z"


# --- many


def test_overdue_messages_have_pages(page: Page, service: Service) -> None:
    assert service.ask("PUT", "/v1/rates/held", {"rate": "0/s"})[0] == 200
    held = [message(f"held-{at}", topic="held", delay=0) for at in range(120)]
    service.post("/v1/messages?wait=5s", held)
    opened(page, service, "/ui/messages?state=overdue&target=held")
    expect(rows(page)).to_have_count(100)
    page.get_by_role("link", name="Next page").click()
    expect(page.locator("main")).to_contain_text("Page 2: 20 messages, to the end")
    assert service.ask("DELETE", "/v1/rates/held")[0] == 200


def test_filters_and_pages_are_in_the_address(page: Page, service: Service) -> None:
    opened(page, service, "/ui/messages")
    page.get_by_label("Target").fill("orders-*")
    page.get_by_label("Target").press("Enter")
    expect(page).to_have_url(re.compile(r"/ui/messages\?target=orders-\*$"))
    expect(rows(page)).to_have_count(100)
    page.get_by_role("link", name="Next page").click()
    expect(page.locator("main")).to_contain_text("Page 2: 100 messages")
    second = rows(page).first.inner_text().split("\n")[2]
    page.reload()
    expect(page.locator("main")).to_contain_text("Page 2: 100 messages")
    expect(rows(page).first).to_contain_text(second.strip())
    page.go_back()
    expect(page.locator("main")).to_contain_text("100 messages, due up to")
    expect(rows(page).first).not_to_contain_text(second.strip())


def test_every_condition_of_the_service_can_be_entered(page: Page, service: Service) -> None:
    opened(page, service, "/ui/messages")
    page.get_by_label("Id begins with").fill("many-00")
    page.get_by_label("a header contains").fill("-0042")
    page.get_by_text("More conditions").click()
    page.get_by_label("Headers").fill("trace=v")
    page.get_by_label("Kafka key").fill("many-0042")
    page.get_by_label("Due before (UTC)").fill("2099-01-31T09:00:01")
    page.get_by_role("button", name="Apply").click()
    expect(page).to_have_url(re.compile("due-to=2099-01-31T09%3A00%3A01.000Z"))
    expect(rows(page)).to_have_count(1)
    expect(page.get_by_label("Due before (UTC)")).to_have_value("2099-01-31T09:00:01")
    page.get_by_role("link", name="Clear").click()
    expect(page).to_have_url(service.url + "/ui/messages")


def test_messages_that_ended_are_listed_by_their_state(page: Page, service: Service) -> None:
    opened(page, service, "/ui/messages?state=dead")
    expect(rows(page).filter(has_text="order-18")).to_contain_text("forbidden-target")
    expect(page.locator("main")).to_contain_text("chronos archive find")
    assert page.locator("tbody input[type=checkbox]").count() == 0


def test_selected_messages_are_cancelled_together(page: Page, service: Service) -> None:
    opened(page, service, "/ui/messages?target=picked")
    expect(rows(page)).to_have_count(5)
    page.get_by_label("Select picked-1").check()
    page.get_by_label("Select picked-3").check()
    press(page, "Cancel 2 selected", "Cancel 2 messages")
    expect(page.locator("#notices")).to_contain_text("2 messages cancelled")
    expect(rows(page)).to_have_count(3)
    assert service.get("/v1/messages/picked-2")["state"] == "pending"


def test_a_bulk_operation_shows_first_what_it_hits_and_then_what_it_did(
    page: Page, service: Service
) -> None:
    opened(page, service, "/ui/messages")
    expect(page.get_by_role("button", name="Cancel all that match")).to_be_disabled()
    opened(page, service, "/ui/messages?target=bulk")
    page.get_by_role("button", name="Cancel all that match").click()
    confirmation = page.get_by_role("dialog")
    expect(confirmation).to_contain_text("250 messages for bulk")
    assert service.get("/v1/messages/bulk-17")["state"] == "pending"
    confirmation.get_by_role("button", name="Cancel 250 messages").click()
    job = page.get_by_role("region", name="Bulk operation", exact=True)
    expect(job).to_contain_text("250 messages cancelled")
    expect(job).to_contain_text("done")
    expect(page).to_have_url(re.compile("job="))
    assert service.get("/v1/messages/bulk-17")["state"] == "cancelled"
    page.reload()
    expect(job).to_contain_text("250 messages cancelled")


def test_messages_are_counted_by_target(page: Page, service: Service) -> None:
    opened(page, service, "/ui/messages?target=orders-*")
    page.get_by_role("button", name="Count by target").click()
    counts = page.get_by_role("region", name="Messages by target")
    expect(counts).to_contain_text("orders-2 1,000")
    counts.get_by_role("link", name="orders-2").click()
    expect(page).to_have_url(re.compile(r"target=orders-2$"))


def test_a_message_is_scheduled(page: Page, service: Service) -> None:
    opened(page, service, "/ui/messages")
    page.get_by_role("link", name="Schedule a message").click()
    page.get_by_label("Target topic").fill("orders")
    page.get_by_label("Deliver", exact=True).select_option("at a time")
    page.get_by_label("Time (UTC)", exact=True).fill("2035-01-31T09:00:00")
    page.get_by_role("textbox", name="Payload", exact=True).fill("hello")
    # What was entered is not lost with the other zone, and means the same.
    page.get_by_role("button", name=re.compile("Times are in UTC")).click()
    expect(page.get_by_label("Time (local time)", exact=True)).to_be_visible()
    page.get_by_role("button", name=re.compile("Times are in local time")).click()
    expect(page.get_by_label("Time (UTC)", exact=True)).to_have_value(re.compile("^2035-01-31T09"))
    page.get_by_label("Headers").fill("no value")
    page.get_by_role("button", name="Schedule").click()
    expect(page.locator("main")).to_contain_text("no value is not name=value; nothing was sent")
    page.get_by_label("Headers").fill("a=1\na=2")
    page.get_by_role("button", name="Schedule").click()
    expect(page.locator("main")).to_contain_text("Scheduled for 2035-01-31 09:00:00 UTC.")
    page.locator(".notice").get_by_role("link").click()
    expect(page.get_by_role("region", name="Headers")).to_contain_text("2")


# --- timeline and series


def test_the_timeline_leads_from_a_bar_to_its_messages(page: Page, service: Service) -> None:
    opened(page, service, "/ui/timeline")
    page.get_by_role("link", name="Logarithmic").click()
    expect(page).to_have_url(re.compile("scale=log"))
    bars = page.get_by_role("img", name=re.compile("Pending messages by due time"))
    expect(bars).to_be_visible()
    for _ in range(3):
        before = page.url
        page.get_by_text("As a table").click()
        burst = page.get_by_role("table", name="Pending messages by due time").get_by_role("row")
        burst.filter(has_text=re.compile(r"3,\d\d\d")).get_by_role("link").click()
        expect(page).not_to_have_url(before)
        if "/ui/messages" in page.url:
            break
    expect(page).to_have_url(re.compile("/ui/messages.*due-from=.*due-to="))
    expect(rows(page)).to_have_count(100)


def test_a_series_has_its_next_times_in_its_own_zone(page: Page, service: Service) -> None:
    opened(page, service, "/ui/series")
    series = rows(page, "Series in the order of their next times")
    expect(series).to_have_count(2)
    series.get_by_role("link", name="daily-report").click()
    times = page.get_by_role("table", name="Next times of the series").locator("tbody tr")
    expect(times).to_have_count(10)
    expect(times.first).to_contain_text(
        re.compile(rf"(Mon|Tue|Wed|Thu|Fri) \S+ {SERIES_AT:%H:%M:%S}")
    )
    expect(times.first).to_contain_text(f"{SERIES_AT.astimezone(UTC):%H:%M:%S} UTC")
    press(page, "Run now", "Deliver it now")
    expect(page.locator("main")).to_contain_text("It is due now and will be delivered at once.")
    occurrence = series.filter(has_text="daily-report").locator("td[data-name=Occurrence]")
    expect(occurrence).to_have_text("2")


def test_a_series_is_paused_and_resumed(page: Page, service: Service) -> None:
    """Alone, and all that match; the list and the page of the message say so."""
    opened(page, service, "/ui/series?id=daily-bill")
    first = service.get("/v1/messages/daily-bill")["due_at"]
    press(page, "Pause the series", "Pause the series")
    expect(page.locator("main")).to_contain_text("Paused. It goes on once it is resumed")
    listed = rows(page, "Series in the order of their next times").filter(has_text="daily-bill")
    expect(listed.locator("td[data-name=Next]")).to_contain_text("paused")
    press(page, "Resume the series", "Resume the series")
    expect(page.locator("main")).to_contain_text("Resumed. Its next time is")
    expect(page.get_by_role("button", name="Pause the series")).to_be_visible()
    assert service.get("/v1/messages/daily-bill")["due_at"] == first

    opened(page, service, "/ui/series?id-prefix=daily-bill")
    page.get_by_role("button", name="Pause all that match").click()
    asked = page.get_by_role("dialog")
    asked.get_by_label("Pause", exact=True).select_option("at")
    asked.get_by_label("Time").fill("2031-07-10T00:00:00")
    asked.get_by_role("button", name="Pause 1 series").click()
    expect(page.get_by_role("region", name="Bulk operation", exact=True)).to_contain_text(
        "1 series paused"
    )
    found = service.get("/v1/messages/daily-bill")
    assert (found["paused"], found["due_at"][:11]) == (True, "2031-07-10T")
    opened(page, service, "/ui/messages/daily-bill")
    expect(page.locator("main")).to_contain_text("pending, paused")
    press(page, "Resume", "Resume the series")
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_visible()


def test_a_series_is_cancelled(page: Page, service: Service) -> None:
    opened(page, service, "/ui/series?id=daily-bill")
    press(page, "Cancel the series", "Cancel the message")
    expect(page.locator("main")).to_contain_text("Cancelled in time")
    expect(rows(page, "Series in the order of their next times")).to_have_count(1)
    assert service.get("/v1/messages/daily-bill")["state"] == "cancelled"


# --- all of them

VIEWS = (
    "/ui/messages?target=picked",
    "/ui/messages?state=dead",
    "/ui/messages/slow-1",
    "/ui/messages?schedule=true&from=many-0002",
    "/ui/timeline?scale=log",
    "/ui/series?id=daily-report",
)


@pytest.mark.parametrize("look", [pytest.param("light", marks=pytest.mark.smoke), "dark", "narrow"])
def test_the_views_have_no_serious_fault_of_accessibility(
    page: Page, service: Service, look: str
) -> None:
    """And on a narrow screen nothing has to be scrolled sideways."""
    page.emulate_media(color_scheme="dark" if look == "dark" else "light")
    if look == "narrow":
        page.set_viewport_size({"width": 390, "height": 800})
    for path in VIEWS[::2] if look == "dark" else VIEWS:
        opened(page, service, path)
        expect(page.locator("main :is(.table, .history, form.send, svg)").first).to_be_visible()
        expect(page.get_by_text("Searching.")).to_have_count(0)
        assert faults(page) == [], path
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
