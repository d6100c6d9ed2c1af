"""Rejected records of a node on the embedded log: over HTTP, by the command line, and by the id
that was refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from chronos.admin.letters import recent
from chronos.admin.letters.recent import RecentRejections
from chronos.admin.letters.scan import LetterTopic
from chronos.client import Client
from chronos.core.letters import read_rejected
from chronos.core.reach import EVERYTHING, Reach
from chronos.ports import Outgoing
from tests.harness.command import Done, run
from tests.harness.inside import Inside
from tests.harness.waiting import wait_until

MANY = 300
DELAY = "chronos.delay"


def never(target: str, key: bytes | None, shard: int, *more: tuple[str, bytes]) -> Outgoing:
    """A record whose time is not one."""
    headers = [
        ("chronos-target-topic", target.encode()),
        ("chronos-delay", b"never"),
        ("app", b"shop"),
        *more,
    ]
    return DELAY, key, b"please pay", headers, shard


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """A node with rejected records: two of `orders`, one of them without a key, one that looks like
    a marker, and many of `bulk`."""
    with Inside(tmp_path_factory.mktemp("rejected"), shards=3) as running:
        records = [never("orders", b"order-7", 1), never("orders", None, 2)]
        records += [
            never(
                "odd",
                b"odd-1",
                0,
                ("chronos-resolution", b"discarded"),
                ("chronos-resolved", b"0-9999"),
            )
        ]
        records += [never("bulk", b"bulk-%d" % number, number % 3) for number in range(MANY)]
        running.node.log.append(records, 10.0)
        body = {"target": {"topic": "orders"}, "value": "x", "delay": "1h", "id": "taken"}
        for _ in range(2):
            assert running.ask("POST", "/v1/messages", body).status == 202
        wait_until(
            lambda: sum(driver.state.totals.rejected for driver in running.node.shards) == MANY + 4
        )
        yield running


def rejected(service: Inside, query: str = "") -> list[dict[str, Any]]:
    """All pages."""
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        page = service.ask("GET", f"/v1/rejected?limit=100{query}{after}").json()
        found += page["rejected"]
        if page["after"] is None:
            return found
        after = f"&after={page['after']}"


def chronos(service: Inside, *arguments: str) -> Done:
    return run(*arguments, server=f"http://127.0.0.1:{service.port}")


def source_without_key(service: Inside) -> str:
    (one,) = [each for each in rejected(service, "&target=orders") if not each["id"]]
    return str(one["source"])


def test_all_are_listed_the_newest_first_and_selected_by_every_condition(service: Inside) -> None:
    everything = rejected(service)
    times = [one["rejected_at"] for one in everything]
    assert (len(everything), times) == (MANY + 4, sorted(times, reverse=True))
    for query, ids in (
        ("&id=order-7", ["order-7"]),
        ("&target=odd", ["odd-1"]),
        ("&reason=conflict", ["taken"]),
        (f"&source={source_without_key(service)}", [""]),
        (f"&id={source_without_key(service)}", [""]),
        (f"&until={times[-1]}", []),
        ("&since=2100-01-01T00:00:00Z", []),
    ):
        assert [one["id"] for one in rejected(service, query)] == ids, query
    from_shard = rejected(service, f"&source={DELAY}/1")
    assert 0 < len(from_shard) < len(everything)
    assert all(one["source"].startswith(f"{DELAY}/1/") for one in from_shard)


def test_one_is_shown_as_it_was_sent(service: Inside) -> None:
    one = service.ask("GET", "/v1/rejected/order-7").json()
    assert one["headers"] == {
        "chronos-target-topic": "orders",
        "chronos-delay": "never",
        "app": "shop",
    }
    assert (one["value"], one["reason"], one["topic"]) == ("please pay", "bad-value", "orders")
    answer = service.ask("GET", "/v1/rejected/nobody")
    assert (answer.status, answer.problem) == (404, "no-rejection")


def test_the_counts_of_all_parts_are_those_of_the_list(service: Inside) -> None:
    counts: dict[tuple[str, str], int] = {}
    after, parts = "", 0
    while True:
        part = service.ask("GET", f"/v1/rejected-counts?limit=200{after}").json()
        parts += 1
        for one in part["counts"]:
            case = one["reason"], one["topic"]
            counts[case] = counts.get(case, 0) + one["records"]
        if part["after"] is None:
            break
        after = f"&after={part['after']}"
    assert parts > 1
    assert sum(counts.values()) == MANY + 4
    assert counts["bad-value", "bulk"] == MANY
    assert counts["conflict", "orders"] == 1


@pytest.mark.process
def test_the_command_line_lists_shows_and_counts(service: Inside) -> None:
    done = chronos(service, "rejected", "list", "--target", "orders", "--since", "-1h")
    assert done.code == 0, done.err
    assert {line.split()[-1] for line in done.out.splitlines()[1:]} >= {
        "taken"
    } or "taken" in done.out
    assert source_without_key(service) in done.out
    done = chronos(service, "rejected", "show", source_without_key(service))
    assert done.code == 0, done.err
    assert "chronos-delay=never" in done.out
    assert "please pay" in done.out
    assert chronos(service, "rejected", "show", "nobody").code == 4
    done = chronos(service, "rejected", "count", "--by", "target,reason")
    assert done.out.split()[:6] == ["TARGET", "REASON", "RECORDS", "bulk", "bad-value", str(MANY)]
    done = chronos(service, "rejected", "count", "--by", "source", "-o", "json")
    assert [one["source"].rpartition("/")[0] for one in done.json["counts"]] == [DELAY] * 3
    assert chronos(service, "rejected", "count", "--by", "client").code == 2


@pytest.mark.process
def test_records_are_selected_and_counted_by_a_header_of_their_producers(service: Inside) -> None:
    """Headers of Chronos on a rejected record are none of the producer's."""
    assert len(rejected(service, "&header=app%3Dshop&target=orders")) == 2
    assert rejected(service, "&header=app%3Dshop&header=app%3Dother") == []
    assert rejected(service, "&header=chronos-reason%3Dbad-value") == []
    assert service.ask("GET", "/v1/rejected?header=app").status == 422
    part = service.ask("GET", "/v1/rejected-counts?by_header=app").json()["counts"]
    counted = {
        (row["header"], row["reason"]): row["records"] for row in part if row["topic"] == "orders"
    }
    assert counted[("shop", "bad-value")] == 1
    assert counted[("", "conflict")] == 1
    assert all(
        "header" not in row for row in service.ask("GET", "/v1/rejected-counts").json()["counts"]
    )
    shown = chronos(service, "rejected", "count", "--by", "header:app", "-o", "json")
    assert shown.json["counts"] == [
        {"header:app": "shop", "records": MANY + 3},
        {"header:app": "", "records": 1},
    ]
    assert "header:app" in chronos(service, "rejected", "count", "--by", "header:app").out
    listed = chronos(service, "rejected", "list", "--header", "app=shop", "--target", "odd")
    assert "odd-1" in listed.out
    assert chronos(service, "rejected", "count", "--by", "header:").code == 2


@pytest.mark.process
def test_a_filter_that_can_match_no_rejected_record_is_an_error(service: Inside) -> None:
    for wrong, named in (
        (("--reason", "nonsense"), "reason: 'nonsense' is not a reason; these are: bad-id, "),
        (("--header", "foo"), "--header: 'foo' is not NAME=VALUE"),
    ):
        for verb in ("list", "count"):
            done = chronos(service, "rejected", verb, *wrong)
            assert done.code == 2, (verb, wrong, done.out)
            assert named in done.err
    for path in ("rejected", "rejected-counts"):
        assert service.ask("GET", f"/v1/{path}?reason=nonsense").status == 422


@pytest.mark.process
def test_a_target_that_is_no_topic_selects_the_records_that_were_refused_for_it(
    tmp_path: Path,
) -> None:
    with Inside(tmp_path, shards=1) as node:
        node.node.log.append(
            [
                (
                    DELAY,
                    b"odd",
                    b"",
                    [("chronos-target-topic", b"a b"), ("chronos-delay", b"1h")],
                    0,
                ),
                never("mail.in", b"mail", 0),
            ],
            10.0,
        )
        wait_until(lambda: len(rejected(node)) == 2)
        for pattern, ids in (("a b", "odd"), ("a*", "odd"), ("ma*", "mail")):
            done = chronos(node, "rejected", "list", "--target", pattern, "-o", "json")
            assert [one["id"] for one in done.json["rejected"]] == [ids], pattern


@pytest.mark.process
def test_an_id_that_was_rejected_is_answered_with_the_reason(service: Inside) -> None:
    answer = service.ask("GET", "/v1/messages/order-7")
    assert (answer.status, answer.problem) == (404, "not-found")
    problem = answer.json()
    assert "the record of order-7 was rejected at" in problem["detail"]
    assert [one["reason"] for one in problem["errors"]] == ["bad-value"]
    shard, offset = source_without_key(service).split("/")[1:]
    assert (
        "was rejected at"
        in service.ask("GET", f"/v1/messages/{shard}-1700000000000-{offset}").json()["detail"]
    )
    assert "nothing is known of" in service.ask("GET", "/v1/messages/nobody").json()["detail"]
    assert service.ask("GET", "/v1/messages/taken").json()["state"] == "pending", (
        "the first message with the id"
    )
    done = chronos(service, "get", "order-7")
    assert done.code == 4
    assert "bad-value" in done.err


@pytest.mark.process
def test_a_later_record_that_was_rejected_is_told_with_the_message(tmp_path: Path) -> None:
    """The id was taken: the message that it has is not the one that was sent last."""

    def send(id: str) -> str:
        body = {"target": {"topic": "orders"}, "value": "x", "delay": "1h", "id": id}
        return str(node.ask("POST", "/v1/messages?wait=5s", body).json()["result"])

    def get(id: str) -> Any:
        return node.ask("GET", f"/v1/messages/{id}?rejections=true").json().get("rejection")

    with Inside(tmp_path, shards=1) as node:
        assert (send("again"), get("again")) == ("scheduled", None)
        assert send("again") == "conflict"
        assert get("again")["reason"] == "conflict"
        assert "rejection" not in node.ask("GET", "/v1/messages/again").json()
        shown = chronos(node, "get", "again").out
        assert re.search("rejected +a later record, at .*: conflict: ", shown), shown
        with Client(f"http://127.0.0.1:{node.port}") as client:
            known = client.get("again", rejections=True).rejection
        assert known is not None
        assert known.reason == "conflict"
        # A record that was rejected before the message was accepted is no news of it.
        node.node.log.append([never("orders", b"corrected", 0)], 10.0)
        wait_until(lambda: node.ask("GET", "/v1/rejected/corrected").status == 200)
        assert (send("corrected"), get("corrected")) == ("scheduled", None)


def test_the_index_reads_on_and_keeps_the_newest_ids(
    service: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent, "IDS_MAX", 30)
    monkeypatch.setattr(recent, "PARTITION_RECORDS_MIN", 10)
    topic = LetterTopic(
        service.node.log, service.node.config.topics.rejected, read_rejected, has_markers=False
    )
    index = RecentRejections(service.node.log, topic)
    find = partial(index.find, origin=None, reach=EVERYTHING)
    assert find(b"order-7") is None, "too long ago for this bound"
    assert find(b"bulk-0") is None
    before = sum(driver.state.totals.rejected for driver in service.node.shards)
    service.node.log.append([never("late", b"late-1", 0)], 10.0)
    wait_until(lambda: sum(driver.state.totals.rejected for driver in service.node.shards) > before)
    found = find(b"late-1")
    assert found is not None
    assert found.reason == "bad-value"
    assert index.find(b"late-1", None, reach=Reach(targets=("orders",))) is None
