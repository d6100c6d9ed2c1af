"""Messages that have ended, of a node on the embedded log: by key, header, id and time, over HTTP,
by the command line and the client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from chronos.client import Client
from tests.harness.command import run
from tests.harness.inside import Inside
from tests.harness.waiting import wait_until

KEPT = "2h"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """A node with three delivered messages of two customers, one that expired, one that was
    cancelled, one that is pending."""
    with Inside(
        tmp_path_factory.mktemp("settled"),
        shards=3,
        retention__delivered=KEPT,
        limits__max_past="0",
    ) as running:
        past = {"deliver_at": "2020-01-01T00:00:00Z"}
        bodies = [
            message("order-1", "anna", delay=0),
            message("order-2", "bert", delay=0),
            message("invoice-1", "anna", delay=0),
            message("order-3", "anna", expire_at="2020-01-01T00:00:01Z", **past),
            message("order-4", "anna", delay="1h"),
            message("order-5", "anna", delay="1h"),
        ]
        assert running.ask("POST", "/v1/messages", bodies).status == 202
        assert running.ask("DELETE", "/v1/messages/order-5").json()["result"] == "cancelled"
        wait_until(lambda: len(listed(running, "state=settled")) == 5)
        yield running


def message(message_id: str, customer: str, **more: Any) -> dict[str, Any]:
    target = {"topic": "mails", "key": customer, "headers": {"customer": customer}}
    return {"target": target, "id": message_id, "value": "please pay"} | more


def listed(service: Inside, query: str) -> list[str]:
    """The ids of one page."""
    answer = service.ask("GET", f"/v1/messages?{query}")
    assert answer.status == 200, answer
    return sorted(one["id"] for one in answer.json()["messages"])


def test_messages_that_have_ended_are_found_by_what_a_customer_knows(service: Inside) -> None:
    for query, ids in (
        ("state=delivered&key=anna", ["invoice-1", "order-1"]),
        ("state=settled&key=anna&id_prefix=order-", ["order-1", "order-3", "order-5"]),
        ("state=cancelled&header=customer=anna", ["order-5"]),
        ("state=settled&header=customer=bert", ["order-2"]),
        ("state=expired", ["order-3"]),
        ("state=dead", []),
        ("state=settled&due_to=2020-01-02T00:00:00Z", []),
        ("key=anna", ["order-4"]),
        ("key=nobody", []),
    ):
        assert listed(service, query) == ids, query
    (expired,) = service.ask("GET", "/v1/messages?state=expired").json()["messages"]
    assert (expired["state"], expired["reason"]) == ("expired", "expired")
    assert expired["settled_at"] is not None
    assert service.ask("GET", "/v1/messages?state=lost").status == 422


def test_pages_go_on_where_the_one_before_ended(service: Inside) -> None:
    found: list[str] = []
    after = ""
    while True:
        page = service.ask("GET", f"/v1/messages?state=settled&limit=1{after}").json()
        assert "kept_from" in page
        found += [one["id"] for one in page["messages"]]
        if page["after"] is None:
            break
        after = f"&after={page['after']}"
    assert sorted(found) == ["invoice-1", "order-1", "order-2", "order-3", "order-5"]


@pytest.mark.process
def test_the_command_line_says_how_to_ask_the_archive(service: Inside) -> None:
    """With the same conditions, and without its place where that is configured."""
    url = f"http://127.0.0.1:{service.port}"
    conditions = [
        "--target",
        "mail*",
        "--header",
        "customer=anna",
        "--from",
        "2020-01-02T00:00:00Z",
    ]
    done = run("list", "--state", "settled", *conditions, server=url, archive="/archive")
    assert (
        "chronos archive find --target 'mail*' --from 2020-01-02T00:00:00Z "
        "--header customer=anna" in " ".join(done.err.split())
    )
    done = run("list", "--state", "settled", "-o", "json", server=url)
    assert json.loads(done.out)["kept_from"] is not None
    assert "kept_from" not in json.loads(run("list", "-o", "json", server=url).out)


@pytest.mark.process
def test_find_shows_messages_in_any_state_and_says_where_older_ones_are(service: Inside) -> None:
    url = f"http://127.0.0.1:{service.port}"

    def found(*arguments: str) -> Any:
        done = run("find", *arguments, server=url)
        return done.code, done.out, " ".join(done.err.split())

    code, out, err = found("--header", "customer=anna", "--target", "mail*")
    assert code == 0, err
    assert sorted(line.split()[-1] for line in out.splitlines()) == sorted(
        ["STATE", "pending", "delivered", "delivered", "expired", "cancelled"]
    )
    where = "chronos archive find --location URI --target 'mail*' --header customer=anna"
    assert "is not kept; if there is an archive: " + where in err
    code, out, err = found("--key", "anna", "--id-prefix", "order-", "-o", "json")
    answer = json.loads(out)
    ids = {one["id"] for one in answer["messages"]}
    assert (code, ids, answer["archive"]) == (0, {"order-1", "order-3", "order-4", "order-5"}, None)
    assert "the archive has no condition --key" in err
    # All that was due later is still kept: nobody is sent to the archive.
    assert found("--header", "customer=anna", "--from", "-1h")[2] == ""
    code, out, err = found("order-4")
    assert (code, out.split()[-1], err) == (0, "pending", "")
    code, out, err = found("order-0")
    assert (code, out) == (4, "")
    assert "nothing is known of order-0" in err
    assert "chronos archive find order-0 --location URI" in err
    assert "there may be more" in found("--header", "customer=anna", "-n", "2")[2]
    assert found()[0] == found("order-1", "--key", "anna")[0] == 2


@pytest.mark.process
def test_the_command_line_and_the_client_list_them(service: Inside) -> None:
    url = f"http://127.0.0.1:{service.port}"
    done = run("list", "--state", "settled", "--key", "anna", "--id-prefix", "order-", server=url)
    assert done.code == 0, done.err
    heading, *rows = [line.split()[-1] for line in done.out.splitlines()]
    assert (heading, sorted(rows)) == ("STATE", ["cancelled", "delivered", "expired"])
    assert "is not kept" in done.err
    assert "chronos archive find --location URI --id-prefix order-" in done.err
    assert run("list", "--state", "settled", "--count", server=url).code == 2
    with Client(url) as client:
        assert {one.id for one in client.settled(key="anna")} == {
            "invoice-1",
            "order-1",
            "order-3",
            "order-5",
        }
        assert [one.state for one in client.settled("expired")] == ["expired"]
