"""The views of dead letters, rejected records, targets and the audit trail, on a real node with the
embedded log, in a real browser."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect

from chronos.core.message import Reason
from tests.harness.audits import result
from tests.harness.service import Service
from tests.harness.tokens import tokens_file

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
HOSTILE = (
    "<script>window.hacked = 1</script>",
    '"><img src=x onerror="window.hacked = 1">',
    "\u202egnp.exe\u202c right to left",
    "javascript:window.hacked=1",
    "../../etc/passwd?a=b#c",
)
"""Texts that must be shown as they are."""

ROLES = {
    "viewer": ["read"],
    "owner": ["read", "payload", "write", "operate"],
}
"""The roles of each token, whose name is the token."""

OWNER = "owner"
JSON = '{"order": 17, "lines": [1, 2]}'
MANY = 12
REPORTS = 2


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A node with dead letters for `bills` and `reports`, which are still forbidden, and for
    `mails`, which expired; those for `reports` are two occurrences of one series. With rejected
    records, a rate limit that makes messages wait, and entries in the audit trail. Hostile texts
    are among the ids, payloads and headers."""
    folder = tmp_path_factory.mktemp("letters")
    settings: dict[str, object] = {
        "shards": 1,
        "workers.push": "off",
        "admin.tokens": tokens_file(folder, ROLES),
        "audit.path": folder / "audit.jsonl",
        "admin.archive_audits": audits(folder),
    }
    with Service(folder / "data", settings=settings) as running:
        running.token = OWNER
        running.start()
        bills = [message(text, "bills", text) for text in HOSTILE]
        now_ms = int(time.time() * 1_000)
        over = {"deliver_at": now_ms - 20_000, "expire_at": now_ms - 10_000}
        mails = [message(f"mail-{at}", "mails", JSON, **over) for at in range(MANY)]
        binary = {"id": "binary", "target": {"topic": "bills"}, "value_base64": "AAH/", "delay": 0}
        series = {"repeat": "every 100ms", "repeat_times": 2, "late_policy": "fire-all"}
        report = message("daily", "reports", "numbers") | series
        running.post("/v1/messages", [*bills, *mails, binary, report])
        accepted = len(bills) + len(mails) + 2
        running.wait_until(lambda: running.pending() == accepted, "accept the messages")
        running.stop()
        running.settings |= {"workers.push": "on", "targets.deny": "bills,reports"}
        running.start()
        running.wait_until(lambda: running.pending() == 0, "let all die")
        kept = [message(text, "orders", "v") | {"delay": "1h"} for text in (*HOSTILE, "taken")]
        running.post("/v1/messages?wait=5s", kept)
        running.post("/v1/messages?wait=5s", kept)
        running.ask("PUT", "/v1/rates/news", {"rate": "0/s"})
        running.post("/v1/messages", [message(f"news-{at}", "news", "v") for at in range(3)])
        running.wait_until(lambda: bool(running.get("/v1/rates")["lanes"]), "let messages wait")
        yield running


def audits(folder: Path) -> Path:
    """A folder with the results of two audits, one of which found a message missing, and with the
    file of one that is running."""
    made = folder / "audits"
    made.mkdir()
    for name, text in {
        "2030-01-31": result(HOSTILE[0]),
        "2030-02-01": result(HOSTILE[0], clean=True, counts={"delivered": 12}, samples=[]),
        HOSTILE[1]: "",
    }.items():
        (made / f"{name}.json").write_text(text)
    return made


def message(id: str, topic: str, value: str, **when: object) -> dict[str, Any]:
    """One that is due at once, unless `when` says otherwise."""
    target = {"topic": topic, "key": id, "headers": {"trace": id}}
    return {"id": id, "target": target, "value": value, **(when or {"delay": 0})}


def opened(page: Page, service: Service, path: str, token: str = OWNER) -> Page:
    """The page at an address, once it shows what the service answers to a token."""
    page.add_init_script(f"sessionStorage.setItem('chronos-token /', {json.dumps(token)})")
    page.goto(service.url + path)
    expect(page.locator("#health")).not_to_have_text("connecting")
    return page


def row(page: Page, table: str, text: str) -> Locator:
    """The row of a table with a cell of exactly this text."""
    cell = page.get_by_role("link", name=text, exact=True)
    return page.get_by_role("table", name=table).get_by_role("row").filter(has=cell)


def in_dialog(page: Page, title: str) -> Locator:
    found = page.get_by_role("dialog")
    expect(found).to_contain_text(title)
    return found


def test_a_facet_sets_the_filter_and_the_address_keeps_it(page: Page, service: Service) -> None:
    opened(page, service, "/ui/dead-letters")
    facet = page.get_by_role("navigation", name="By target")
    expect(facet.get_by_role("link", name=f"mails {MANY}")).to_be_visible()
    facet.get_by_role("link", name=f"mails {MANY}").click()
    expect(page).to_have_url(re.compile(r"target=mails"))
    rows = page.get_by_role("table", name="Dead letters").locator("tbody tr")
    expect(rows).to_have_count(MANY)
    page.reload()
    expect(rows).to_have_count(MANY)
    page.go_back()
    expect(rows).to_have_count(MANY + len(HOSTILE) + 1 + REPORTS)


def test_selected_dead_letters_are_replayed_and_discarded_after_a_count(
    page: Page, service: Service
) -> None:
    opened(page, service, "/ui/dead-letters?target=mails")
    for id in ("mail-0", "mail-1"):
        row(page, "Dead letters", id).get_by_role("checkbox").check()
    page.get_by_role("button", name="Replay 2 selected").click()
    asked = in_dialog(page, "2 dead letters: those selected.")
    asked.get_by_role("button", name="Replay 2 dead letters").click()
    expect(page.locator("#notices")).to_contain_text("2 dead letters were replayed.")
    expect(row(page, "Dead letters", "mail-0")).to_have_count(0)
    row(page, "Dead letters", "mail-2").get_by_role("checkbox").check()
    page.get_by_role("button", name="Discard 1 selected").click()
    in_dialog(page, "1 dead letter: the one selected.").get_by_role("button", name="Back").click()
    expect(row(page, "Dead letters", "mail-2")).to_have_count(1)
    page.get_by_role("button", name="Discard 1 selected").click()
    page.get_by_role("dialog").get_by_role("button", name="Discard 1 dead letter").click()
    expect(page.locator("#notices")).to_contain_text("1 dead letter was discarded.")
    states = [service.get(f"/v1/dead-letters/mail-{at}")["resolution"] for at in range(3)]
    assert states == ["replayed", "replayed", "discarded"]


def test_a_whole_filter_is_replayed_and_a_cause_that_is_still_there_is_named(
    page: Page, service: Service
) -> None:
    opened(page, service, "/ui/dead-letters?id=binary")
    expect(page.get_by_role("button", name="Replay all that match…")).to_have_count(0)
    opened(page, service, "/ui/dead-letters?target=bills")
    page.get_by_role("button", name="Replay all that match…").click()
    count = len(HOSTILE) + 1
    asked = in_dialog(page, f"{count} dead letters: all that are not resolved, for bills.")
    expect(asked).to_contain_text(f"{count} × forbidden-target: bills is not allowed by targets")
    expect(asked).to_contain_text(f"{count} of them cannot be replayed")
    expect(asked.get_by_role("button", name="Replay 0 dead letters")).to_be_disabled()
    expect(asked.get_by_role("checkbox")).to_have_count(0)
    asked.get_by_role("button", name="Back").click()
    opened(page, service, "/ui/dead-letters")
    page.get_by_role("button", name="Replay all that match…").click()
    asked = in_dialog(page, f"{count + REPORTS} of them cannot be replayed")
    asked.get_by_role("button", name=re.compile(r"^Replay \d+ dead letters$")).click()
    expect(page.locator("#notices")).to_contain_text(
        f"{count + REPORTS} dead letters stay as they are"
    )
    left = service.get("/v1/dead-letters")["letters"]
    assert {each["topic"] for each in left} == {"bills", "reports"}


@pytest.mark.parametrize("text", HOSTILE, ids=["script", "image", "direction", "address", "path"])
def test_a_hostile_dead_letter_is_shown_as_text(page: Page, service: Service, text: str) -> None:
    page.on("dialog", lambda dialog: pytest.fail(f"a dialog opened: {dialog.message}"))
    opened(page, service, "/ui/dead-letters?target=bills")
    row(page, "Dead letters", text).get_by_role("link", name=text, exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Dead letter {text}")
    expect(page.locator("pre.payload")).to_have_text(text)
    expect(page.get_by_role("main")).to_contain_text("The target is not permitted any more")
    opened(page, service, f"/ui/rejected/{quote(text, safe='')}")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Rejected record {text}")
    expect(page.get_by_role("main")).to_contain_text("The id is taken by another message.")
    expect(page.get_by_role("main").locator("dd", has_text=text).first).to_be_visible()
    assert page.evaluate("window.hacked") is None
    assert page.locator("main script, main img").count() == 0


def test_a_payload_is_edited_and_sent_as_a_new_message(page: Page, service: Service) -> None:
    opened(page, service, f"/ui/dead-letters/{quote(HOSTILE[0], safe='')}")
    page.get_by_role("link", name="Edit and send as a new message").click()
    page.get_by_role("textbox", name="Payload", exact=True).fill("mended")
    page.get_by_label("Headers, one name=value").fill("trace")
    page.get_by_label("Target topic").fill("mended")
    page.get_by_label("Id (").fill("mended-1")
    send = page.get_by_role("button", name="Schedule as a new message")
    send.click()
    expect(page.get_by_role("main")).to_contain_text("trace is not name=value; nothing was sent")
    page.get_by_label("Headers, one name=value").fill("trace=1=2\nsum=3")
    send.click()
    expect(page.get_by_role("main")).to_contain_text("Scheduled for ")
    expect(page.locator("#notices")).to_have_text(re.compile("The dead letter was discarded"))
    page.get_by_role("link", name="dead letter", exact=True).click()
    expect(page.get_by_role("main")).to_contain_text("Nothing: it was discarded.")
    service.wait_until(
        lambda: service.ask("GET", "/v1/topics/mended/records")[0] == 200, "deliver to mended"
    )
    (record,) = service.get("/v1/topics/mended/records", wait="20s")["records"]
    assert (record["key"], record["value"]) == (HOSTILE[0], "mended")
    assert (record["headers"]["trace"], record["headers"]["sum"]) == ("1=2", "3")


def test_bytes_are_shown_and_the_choice_of_their_form_is_in_the_address(
    page: Page, service: Service
) -> None:
    opened(page, service, "/ui/dead-letters/binary")
    expect(page.locator("pre.payload")).to_contain_text("00000000  00 01 ff")
    opened(page, service, "/ui/dead-letters/mail-3")
    expect(page.locator("pre.payload")).to_contain_text('"order": 17,\n')
    page.get_by_role("button", name="Hex").click()
    page.reload()
    expect(page.locator("pre.payload")).to_contain_text("7b 22 6f 72")


def test_rejected_records_are_counted_listed_and_shown(page: Page, service: Service) -> None:
    opened(page, service, "/ui/rejected")
    page.get_by_role("navigation", name="By reason").get_by_role(
        "link", name=f"conflict {len(HOSTILE) + 1}"
    ).click()
    expect(page).to_have_url(re.compile(r"reason=conflict"))
    expect(page.get_by_role("main")).to_contain_text("The id is taken by another message.")
    expect(page.get_by_role("navigation", name="By partition")).to_contain_text("chronos.delay/0")
    page.get_by_role("link", name="taken", exact=True).click()
    shown = page.get_by_role("main")
    expect(shown).to_contain_text("Otherwise use another id, or chronos-on-conflict.")
    expect(shown).to_contain_text("chronos-target-topic")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy the command").click()
    page.wait_for_function(
        "async () => await navigator.clipboard.readText() === 'chronos rejected show taken'"
    )


def test_rejected_records_are_counted_and_filtered_by_a_header_of_their_producers(
    page: Page, service: Service
) -> None:
    opened(page, service, "/ui/rejected")
    page.get_by_text("More conditions", exact=True).click()
    page.get_by_label("Count by the header").fill("trace")
    page.get_by_label("Count by the header").press("Enter")
    facet = page.get_by_role("navigation", name="By trace")
    facet.get_by_role("link", name="trace=taken 1").click()
    expect(page).to_have_url(re.compile(r"header=trace%3Dtaken"))
    rows = page.get_by_role("table", name="Rejected records").locator("tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("taken")


def test_a_rate_limit_is_set_and_removed_after_what_it_hits_is_shown(
    page: Page, service: Service
) -> None:
    opened(page, service, "/ui/targets?find=NEW")
    rows = page.get_by_role("table", name="Targets").locator("tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("waits for its rate")
    page.get_by_role("button", name="Set a limit…").click()
    page.get_by_label("Topic, or a pattern").fill("ne*")
    page.get_by_label("Rate", exact=True).fill("7/s")
    page.get_by_role("button", name="Go on").click()
    asked = in_dialog(page, "1 known target matches ne*, for which 3 messages wait now.")
    asked.get_by_role("button", name="Set 7/s").click()
    expect(page.locator("#notices")).to_contain_text("The limit of ne* is 7/s.")
    limit = page.get_by_role("table", name="Rate limits").get_by_role("row", name="ne*")
    limit.get_by_role("button", name="Remove…").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove 7/s").click()
    expect(page.locator("#notices")).to_contain_text("The limit of ne*, 7/s, was removed.")
    rows.get_by_role("link", name="news").click()
    detail = page.get_by_role("region", name="Target news")
    expect(detail).to_contain_text("3 messages")
    expect(detail).to_contain_text("0/s, from news (set at run time)")


def test_the_audit_trail_tells_who_did_what(page: Page, service: Service) -> None:
    status, _ = service.ask("DELETE", f"/v1/messages/{quote(HOSTILE[1], safe='')}")
    assert status == 200
    opened(page, service, "/ui/audit")
    page.get_by_label("Action").select_option("Cancel")
    expect(page).to_have_url(re.compile(r"action=cancel"))
    entry = row(page, "Audit trail", HOSTILE[1])
    expect(entry).to_contain_text(OWNER)
    expect(entry).to_contain_text("cancelled")
    page.get_by_label("Sender's token").fill("nobody")
    page.get_by_label("Sender's token").press("Enter")
    expect(page.get_by_role("main")).to_contain_text("No entries match.")


def test_audits_of_the_archive_are_read_with_their_verdict(page: Page, service: Service) -> None:
    opened(page, service, "/ui/audit")
    found = page.get_by_role("table", name="Audits of the archive").get_by_role("row")
    expect(found.filter(has_text="2030-02-01")).to_contain_text("all accounted for")
    expect(found.filter(has_text=HOSTILE[1])).to_contain_text("the audit is running")
    expect(row(page, "Audits of the archive", "2030-01-31")).to_contain_text("1 missing")
    page.get_by_role("link", name="2030-01-31", exact=True).click()
    expect(page).to_have_url(re.compile("/ui/audit/2030-01-31$"))
    shown = page.get_by_role("main")
    expect(shown).to_contain_text("--missing-only sends the missing messages again")
    expect(shown).to_contain_text("shard 0, offset 4,711")
    expect(page.get_by_role("table", name="Targets")).to_contain_text(HOSTILE[0])
    expect(page.get_by_role("table", name="Worst times").get_by_role("row")).to_have_count(2)
    opened(page, service, "/ui/audit/none")
    expect(page.get_by_role("alert")).to_contain_text("admin.archive_audits has no none.json")


def test_a_token_that_may_only_read_sees_no_payloads_and_changes_nothing(
    page: Page, service: Service
) -> None:
    opened(page, service, "/ui/dead-letters/binary", "viewer")
    shown = page.get_by_role("main")
    expect(shown).to_contain_text("The payload is hidden: it is shown to a token with the role")
    expect(shown).to_contain_text("The headers are hidden")
    for name in ("Replay…", "Discard…", "Edit and send as a new message"):
        expect(page.get_by_role("button", name=name)).to_be_disabled()
    opened(page, service, "/ui/messages?schedule=true&dead=binary", "viewer")
    expect(shown).to_contain_text("The payload and the headers are hidden")
    opened(page, service, "/ui/audit", "viewer")
    expect(page.get_by_role("alert")).to_have_text(
        "the token viewer does not have the role operate"
    )
    assert "resolution" not in service.get("/v1/dead-letters/binary")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/ui/dead-letters", "By target"),
        ("/ui/messages?schedule=true&dead=binary", "Discard the dead letter"),
        ("/ui/rejected/taken", "Copy as JSON"),
        ("/ui/targets?target=news", "set at run time"),
        ("/ui/audit?action=set-rate", "from 127.0.0.1"),
        ("/ui/audit/2030-01-31", "Worst times"),
    ],
    ids=["letters", "letter", "rejected", "targets", "audit", "audit-of-the-archive"],
)
def test_a_view_has_no_serious_fault_of_accessibility(
    page: Page, service: Service, path: str, text: str
) -> None:
    """In light, in dark, and on a narrow screen, which it does not exceed."""
    opened(page, service, path)
    expect(page.get_by_role("main")).to_contain_text(text)
    for theme, width in (("light", 1280), ("dark", 390)):
        page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        page.set_viewport_size({"width": width, "height": 900})
        expect(page.locator(f"html[data-theme={theme}]")).to_be_attached()
        faults = [
            (theme, fault["id"], fault["impact"], [node["html"][:200] for node in fault["nodes"]])
            for fault in Axe().run(page).response["violations"]
            if fault["impact"] in ("serious", "critical")
        ]
        assert faults == []
        too_wide = page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert too_wide <= 0


def test_the_dead_letter_that_was_chosen_is_the_one_acted_on(page: Page, service: Service) -> None:
    """Two have the same id: the address names the position of each, and a discard leaves the
    other."""
    found = service.get("/v1/dead-letters?id=daily")["letters"]
    newest, oldest = (f"{each['partition']}:{each['offset']}" for each in found)
    opened(page, service, "/ui/dead-letters?id=daily")
    rows = page.get_by_role("table", name="Dead letters").locator("tbody tr")
    expect(rows).to_have_count(REPORTS)
    rows.filter(has_text=oldest).get_by_role("link", name="daily").click()
    expect(page).to_have_url(re.compile(f"/ui/dead-letters/daily.at={quote(oldest, safe='')}"))
    expect(page.get_by_role("main")).to_contain_text("numbers")
    page.get_by_role("button", name="Discard…").click()
    asked = in_dialog(page, f"1 dead letter: that of daily, at {oldest}.")
    asked.get_by_role("button", name="Discard 1 dead letter").click()
    expect(page.get_by_role("main")).to_contain_text("Nothing: it was discarded.")
    left = service.get("/v1/dead-letters?id=daily")["letters"]
    assert [f"{each['partition']}:{each['offset']}" for each in left] == [newest]
    page.get_by_role("table", name="Dead letters of this id").get_by_role(
        "link", name=newest
    ).click()
    expect(page.get_by_role("main")).to_contain_text("not resolved")


def test_every_reason_is_explained() -> None:
    """In words of the console; those that no record and no dead letter has are left out."""
    text = (ROOT / "chronos/admin/static/lib/reasons.js").read_text()
    explained = set(re.findall(r'^  "([a-z-]+)": \[', text, re.MULTILINE))
    inner = {"forwarded", "held", "ignored", "no-leader", "rate-limited", "repeated"}
    assert explained == {reason.label for reason in Reason} - inner
