"""Dead letters of a real node on the embedded log: over HTTP, by the command line and by the
client."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from chronos.cli.messages.dead_letters import _tell_refused
from chronos.client import AsyncClient, Client, DeadLetterRefusal, DeadLetterTotals, NotFound
from chronos.core.message import Reason
from tests.harness.command import Done, run
from tests.harness.service import Service

TOPICS = ("http", "cli", "client", "paged", "barred", "placed")
MANY = 1_500


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A node with dead letters for every topic of TOPICS, each of which takes messages now, except
    `barred`.

    The messages were accepted while nothing was delivered, and died while their targets were
    denied."""
    settings: dict[str, object] = {"shards": 3, "workers.push": "off"}
    with Service(tmp_path_factory.mktemp("letters") / "data", settings=settings) as running:
        running.start()
        for topic in TOPICS:
            running.post(
                "/v1/messages", [message(topic, "a", id=f"{topic}-a"), message(topic, "b")]
            )
        running.post("/v1/messages", [message("bulk", str(at), **named(at)) for at in range(MANY)])
        series = {"repeat": "every 100ms", "repeat_times": 2, "late_policy": "fire-all"}
        running.post("/v1/messages", message("series", "s", id="series-a", **series))
        accepted = MANY + 2 * len(TOPICS) + 1
        running.wait_until(lambda: running.pending() == accepted, "accept the messages")
        running.stop()
        running.settings |= {
            "workers.push": "on",
            "targets.deny": ",".join([*TOPICS, "series", "bulk"]),
        }
        running.start()
        total = accepted + 1  # The series has two occurrences.
        running.wait_until(
            lambda: sum(shard["totals"]["dead"] for shard in running.shards()) == total,
            "let all die",
        )
        running.stop()
        running.settings["targets.deny"] = "barred"
        yield running.start()


def message(topic: str, value: str, **fields: Any) -> dict[str, Any]:
    return {
        "target": {"topic": topic, "key": f"key-{value}", "headers": {"trace": value}},
        "value": value,
        "delay": 0,
    } | fields


def named(at: int) -> dict[str, str]:
    """Every other message has an id of its own."""
    return {"id": f"bulk-{at}"} if at % 2 else {}


def letters(service: Service, **query: Any) -> list[dict[str, Any]]:
    """All pages."""
    found: list[dict[str, Any]] = []
    after: dict[str, str] = {}
    while True:
        page = service.get("/v1/dead-letters", **query, **after)
        found += page["letters"]
        if page["after"] is None:
            return found
        after = {"after": page["after"]}


def delivered(service: Service, topic: str, count: int) -> list[dict[str, Any]]:
    """The records of a target topic once there are so many."""
    service.wait_until(
        lambda: service.ask("GET", f"/v1/topics/{topic}/records")[0] == 200, f"deliver to {topic}"
    )
    found: list[dict[str, Any]] = []
    while len(found) < count:
        answer = service.get(
            f"/v1/topics/{topic}/records", offset=len(found), limit=1000, wait="20s"
        )
        assert answer["records"], f"only {len(found)} of {count} records came"
        found += answer["records"]
    return found


def chronos(service: Service, *arguments: str) -> Done:
    return run("dead-letters", *arguments, server=service.url)


def test_a_dead_letter_is_listed_shown_replayed_once_and_no_longer_listed(service: Service) -> None:
    found = letters(service, target="http")
    assert sorted(one["reason"] for one in found) == ["forbidden-target"] * 2
    (other,) = [one["id"] for one in found if one["id"] != "http-a"]
    whole = service.get("/v1/dead-letters/http-a")
    assert whole["target"] == {"topic": "http", "key": "key-a", "headers": {"trace": "a"}}
    assert (whole["value"], whole["attempt"], whole["source"].split("/")[0]) == (
        "a",
        1,
        "chronos.delay",
    )
    for message_id in ("http-a", other):
        status, result = service.ask("POST", "/v1/dead-letters/replay", {"id": message_id})
        assert (status, result["matched"], result["resolved"]) == (200, 1, 1)
        status, result = service.ask("POST", "/v1/dead-letters/replay", {"id": message_id})
        assert (status, result["matched"], result["resolved"]) == (200, 0, 0)
    records = {record["headers"]["chronos-id"]: record for record in delivered(service, "http", 2)}
    assert records.keys() == {"http-a", other}, (
        "a replayed message keeps its id, also a generated one"
    )
    assert (records["http-a"]["key"], records["http-a"]["value"]) == ("key-a", "a")
    assert records["http-a"]["headers"]["trace"] == "a"
    assert records["http-a"]["headers"]["chronos-replayed"] == whole["source"]
    assert service.get(f"/v1/messages/{other}")["state"] == "delivered"
    assert letters(service, target="http") == []
    assert [one["resolution"] for one in letters(service, target="http", resolved="true")] == [
        "replayed"
    ] * 2
    assert service.get("/v1/dead-letters/http-a")["resolution"] == "replayed"


def test_a_selection_is_an_id_or_a_filter_or_all(service: Service) -> None:
    bodies: tuple[dict[str, Any], ...] = (
        {},
        {"id": "a", "all": True},
        {"all": True, "target": "cli"},
        {"id": "a", "reason": "x"},
        {"all": False},
        {"id": "base64:"},
        {"id": "a", "positions": ["0:1"]},
        {"positions": []},
        {"positions": ["0"]},
        {"positions": ["0:1", "-1:1"]},
    )
    for body in bodies:
        status, problem = service.ask("POST", "/v1/dead-letters/discard", body)
        assert (status, problem["type"]) == (422, "urn:chronos:problem:invalid"), body
    assert service.ask("GET", "/v1/dead-letters/nobody")[0] == 404
    assert service.ask("GET", "/v1/dead-letters/at/nobody")[0] == 422
    for nowhere in ("0:999999", "17:0", "9999999999:9999999999999999999"):
        assert service.ask("GET", f"/v1/dead-letters/at/{nowhere}")[0] == 404, nowhere
        result = service.ask("POST", "/v1/dead-letters/replay", {"positions": [nowhere]})[1]
        assert (result["matched"], result["after"]) == (0, None), nowhere
    assert service.ask("GET", "/v1/dead-letters?after=1")[0] == 400
    assert service.ask("GET", "/v1/dead-letters?since=yesterday")[0] == 422


def test_pages_and_times_select_all_letters_once_the_newest_first(service: Service) -> None:
    found = letters(service, target="paged", limit=1)
    assert len(found) == len({one["id"] for one in found}) == 2
    everything = letters(service, limit=700, resolved="true")
    times = [one["dead_at"] for one in everything]
    assert (len(everything), times) == (MANY + 2 * len(TOPICS) + 2, sorted(times, reverse=True))
    last = times[0]
    assert all(one["dead_at"] >= last for one in letters(service, since=last))
    assert last not in {one["dead_at"] for one in letters(service, until=last)}


def test_the_counts_of_all_parts_are_those_of_the_list(service: Service) -> None:
    counted: Counter[tuple[str, str]] = Counter()
    after: dict[str, str] = {}
    while True:
        part = service.get("/v1/dead-letter-counts", limit=700, **after)
        for row in part["counts"]:
            counted[row["reason"], row["topic"]] += row["letters"]
        if part["after"] is None:
            break
        after = {"after": part["after"]}
    assert counted == Counter((one["reason"], one["topic"]) for one in letters(service))
    assert counted["forbidden-target", "bulk"] == MANY
    one = service.get("/v1/dead-letter-counts", target="bulk", reason="no-key")
    assert (one["counts"], one["after"]) == ([], None)


def test_a_letter_that_would_be_refused_stays_and_is_counted(service: Service) -> None:
    status, result = service.ask("POST", "/v1/dead-letters/replay", {"target": "barred"})
    assert (status, result["matched"], result["resolved"]) == (200, 2, 0)
    assert [(one["reason"], one["letters"]) for one in result["refused"]] == [
        ("forbidden-target", 2)
    ]
    done = chronos(service, "replay", "--target", "barred", "--yes")
    assert (done.code, done.out.splitlines()[-1]) == (1, "0 dead letters replayed")
    assert "2 dead letters cannot be replayed: forbidden-target" in done.err
    assert "--anyway" not in done.err
    assert len(letters(service, target="barred")) == 2


def test_a_letter_that_can_never_be_replayed_is_told_once_and_not_replayed_anyway(
    service: Service,
) -> None:
    for dry_run in (True, False):
        body = {"id": "barred-a", "anyway": True, "dry_run": dry_run}
        result = service.ask("POST", "/v1/dead-letters/replay", body)[1]
        refused = [(one["reason"], one["final"]) for one in result["refused"]]
        assert (result["matched"], result["resolved"], refused) == (
            1,
            0,
            [("forbidden-target", True)],
        )
    done = chronos(service, "replay", "barred-a", "--anyway", "--yes")
    assert (done.code, done.out) == (1, "0 dead letters replayed\n")
    assert done.err.count("dead letter") == 1
    assert "1 dead letter cannot be replayed: forbidden-target; the first is barred-a" in done.err
    assert "targets.deny" in done.err
    assert len(letters(service, target="barred")) == 2


def test_the_hint_at_anyway_is_for_those_that_it_replays(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The parts of a count are added up with the two kinds of one reason apart."""
    totals = DeadLetterTotals()
    for final in (False, True, False):
        refused = DeadLetterRefusal(
            reason="forbidden-target", letters=1, id="a", detail="why", final=final
        )
        totals = totals.plus(1, 0, 1, [], [refused])
    _tell_refused(totals.refused, anyway=False, done=False)
    first, second, hint = capsys.readouterr().err.splitlines()
    assert "1 dead letter cannot be replayed: forbidden-target" in first
    assert "2 dead letters would fail again: forbidden-target" in second
    assert "--anyway replays them all the same" in hint
    _tell_refused(totals.refused, anyway=True, done=False)
    first, second = capsys.readouterr().err.splitlines()
    assert "cannot be replayed" in first
    assert "2 dead letters will fail again" in second


def test_a_filter_that_can_match_no_dead_letter_is_an_error(service: Service) -> None:
    for wrong, named in (
        (("--reason", "nonsense"), "reason: 'nonsense' is not a reason; these are: bad-id, "),
        (("--target", "a b"), "target: is not the name of a topic, nor a pattern"),
    ):
        for verb in (("list",), ("replay", "--yes"), ("discard", "--dry-run")):
            done = chronos(service, *verb, *wrong)
            assert done.code == 2, (verb, wrong, done.out)
            assert named in done.err
    for path in ("dead-letters", "dead-letter-counts"):
        assert service.ask("GET", f"/v1/{path}?reason=nonsense")[0] == 422
    for reason in Reason:
        assert service.ask("GET", f"/v1/dead-letters?reason={reason.label}")[0] == 200


def test_the_occurrences_of_a_series_are_replayed_as_messages_of_their_own(
    service: Service,
) -> None:
    found = letters(service, target="series")
    assert {one["id"] for one in found} == {"series-a"}
    names = {f"{one['source']}/{one.get('occurrence', 1)}" for one in found}
    assert len(names) == 2
    status, result = service.ask("POST", "/v1/dead-letters/replay", {"target": "series"})
    assert (status, result["resolved"]) == (200, 2)
    assert {record["headers"]["chronos-id"] for record in delivered(service, "series", 2)} == names


def test_a_dead_letter_is_shown_and_resolved_by_its_position(service: Service) -> None:
    """Those of a series share an id: each is found, and only the one that is meant is resolved; a
    marker is at no position of a dead letter."""
    found = letters(service, id="series-a", resolved="true")
    places = [f"{one['partition']}:{one['offset']}" for one in found]
    shown = [service.get(f"/v1/dead-letters/at/{place}") for place in places]
    assert [one["offset"] for one in shown] == [one["offset"] for one in found]
    assert [one.get("occurrence", 1) for one in shown] == [2, 1]
    assert {one["value"] for one in shown} == {"s"}
    one, other = (
        f"{each['partition']}:{each['offset']}" for each in letters(service, target="placed")
    )
    status, result = service.ask("POST", "/v1/dead-letters/discard", {"positions": [other]})
    assert (status, result["matched"], result["resolved"]) == (200, 1, 1)
    both = {"positions": [one, other], "dry_run": True}
    assert service.ask("POST", "/v1/dead-letters/replay", both)[1]["matched"] == 1
    assert service.get(f"/v1/dead-letters/at/{other}")["resolution"] == "discarded"
    assert "resolution" not in service.get(f"/v1/dead-letters/at/{one}")
    partition = int(other.split(":")[0])
    everything = letters(service, resolved="true", limit=1000)
    last = max(each["offset"] for each in everything if each["partition"] == partition)
    assert service.ask("GET", f"/v1/dead-letters/at/{partition}:{last}")[0] == 200
    assert service.ask("GET", f"/v1/dead-letters/at/{partition}:{last + 1}")[0] == 404
    with Client(service.url) as client:
        partition, offset = map(int, one.split(":"))
        assert client.dead_letter_at(partition, offset).topic == "placed"
        assert client.replay_dead_letters(positions=[(partition, offset)]).resolved == 1


def test_the_command_line_counts_asks_replays_and_discards(service: Service) -> None:
    listed = chronos(service, "list", "--target", "cli")
    assert (listed.code, listed.out.count("forbidden-target")) == (0, 2)
    shown = chronos(service, "show", "cli-a")
    assert "forbidden-target" in shown.out
    assert "key-a" in shown.out
    counted = chronos(service, "replay", "--target", "cli", "--dry-run", "-o", "json")
    assert counted.json["counts"] == [{"reason": "forbidden-target", "topic": "cli", "letters": 2}]
    asked = chronos(service, "replay", "--target", "cli")
    assert (asked.code, "give --yes" in asked.err) == (2, True)
    place = listed.out.split()[listed.out.split().index("cli-a") + 1]
    assert "key-a" in chronos(service, "show", "--position", place).out
    assert chronos(service, "show", "--position", place, "cli-a").code == 2
    assert chronos(service, "show", "--position", "1").code == 2
    replayed = chronos(service, "replay", "--position", place)
    assert (replayed.code, replayed.out) == (0, "1 dead letter replayed\n")
    assert chronos(service, "discard", "--position", place).code == 4
    assert chronos(service, "replay", "cli-a").code == 4
    assert [record["value"] for record in delivered(service, "cli", 1)] == ["a"]
    discarded = chronos(
        service, "discard", "--target", "cli", "--reason", "forbidden-target", "--yes", "-o", "json"
    )
    assert discarded.json["resolved"] == 1
    left = chronos(service, "list", "--target", "cli", "--resolved", "-o", "json").json["letters"]
    assert sorted(one["resolution"] for one in left) == ["discarded", "replayed"]
    assert chronos(service, "list", "--target", "cli", "-o", "json").out.startswith(
        '{"letters": []'
    )
    assert chronos(service, "replay").code == 2
    assert chronos(service, "replay", "cli-a", "--all").code == 2
    assert chronos(service, "show", "nobody").code == 4


def test_the_clients_replay_many_in_parts_and_in_order_and_a_restart_forgets_nothing(
    service: Service,
) -> None:
    shown: list[DeadLetterTotals] = []
    with Client(service.url) as client:
        whole = client.dead_letter("client-a")
        assert (whole.topic, whole.value, whole.target.key) == ("client", "a", "key-a")
        count = client.replay_dead_letters(target="bulk", dry_run=True)
        assert (count.matched, count.resolved) == (MANY, 0)
        done = client.replay_dead_letters(target="bulk", progress=shown.append)
        assert (done.matched, done.resolved, len(shown) > 1) == (MANY, MANY, True)
        assert client.replay_dead_letters(target="bulk").matched == 0
        with pytest.raises(NotFound):
            client.dead_letter("nobody")

    async def live() -> None:
        async with AsyncClient(service.url) as other:
            assert {one.value_bytes async for one in other.dead_letters(target="client")} == {1}
            assert (await other.discard_dead_letters(target="client")).resolved == 2
            assert (await other.dead_letter("client-a")).resolution == "discarded"

    asyncio.run(live())
    service.kill()
    service.start()
    records = delivered(service, "bulk", MANY)
    assert len(records) == MANY
    assert {record["value"] for record in records} == {str(at) for at in range(MANY)}
    with Client(service.url) as client:
        assert list(client.dead_letters(target="bulk")) == []
        assert list(client.dead_letters(target="client")) == []
        assert client.replay_dead_letters(target="bulk").matched == 0
