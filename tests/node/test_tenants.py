"""One tenant is not another: every route with every parameter, query and body field, for every kind
of token.

The requests are made from the description of the interface, so that a new route or parameter is
tried by itself. Each is sent twice with a token that has limits: with names of a message, target or
job of others, and with names that nobody uses. The two answers must be the same except for the
names."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from chronos.admin.http import schemas
from chronos.admin.http.access import REACH_HEADER, reach_header
from chronos.admin.http.openapi import document
from chronos.admin.http.routes import table
from chronos.admin.http.server import shown
from chronos.admin.http.tokens import Sender, digest
from chronos.core.cluster.roles import Member
from chronos.core.reach import Reach
from tests.harness.described import Names, alternatives, requests, resolved
from tests.harness.examples import EXAMPLES
from tests.harness.inside import Answer, Inside
from tests.harness.waiting import check_deadline, wait_until

pytestmark = pytest.mark.slow

TOKENS: dict[str, dict[str, Any]] = {
    "reader": {"roles": ["read"]},
    "payloads": {"roles": ["payload"]},
    "writer": {"roles": ["write"]},
    "operator": {"roles": ["operate"]},
    "everything": {"roles": ["read", "payload", "write", "operate"]},
    "limited": {
        "roles": ["read", "payload", "write", "operate"],
        "targets": ["mine", "mine.*", "chronos.*"],
        "ids": ["mine-*"],
    },
    "limited-reader": {"roles": ["read"], "targets": ["mine", "chronos.*"], "ids": ["mine-*"]},
}
"""The entries of the file by the name of the token, which is also the token."""

SECRET = "s3cret-"
"""In every payload and header, before the name of the tenant."""

HIDDEN = "hidden"
"""In the names of a tenant that no request names."""

ROUTES = {route.name: route for route in table(None)}
MEMBER = {"Chronos-Node": "n9", "Chronos-Token": "of-another-cluster", REACH_HEADER: ""}
CHANGING = {
    "elapsed_ms",
    "rate",
    "started_at",
    "ended_at",
    "offset",
    "due_at",
    "planned_at",
    "accepted_at",
    "expected",
}
"""Fields that differ between two answers to the same request; `expected` counts the messages of
all."""


class World(NamedTuple):
    """One node with messages of several tenants."""

    service: Inside
    theirs: Names
    nobody: Names


def message(target: str, tenant: str = "", **more: Any) -> dict[str, Any]:
    """A message of the tenant that is due in an hour."""
    text = SECRET + (tenant or target)
    headers = {"x": text, "y": f"mark-{tenant or target}"}
    return {"target": {"topic": target, "headers": headers}, "value": text, "delay": "1h"} | more


def is_dead(service: Inside, tenant: str) -> bool:
    """Return whether the dead letter of the tenant is there."""
    return service.ask("GET", f"/v1/dead-letters/{tenant}-dead", token="everything").status == 200


def holds(service: Inside, topic: str, records: int) -> bool:
    """Return whether so many records were delivered to the topic."""
    answer = service.ask("GET", f"/v1/topics/{topic}/records", token="everything")
    return answer.status == 200 and len(answer.json()["records"]) >= records


def job(service: Inside, tenant: str) -> str:
    """Start a job and return its id: one that is no number, since a number is a time elsewhere."""
    order = {"action": "count", "filter": {"target": tenant}}
    while True:
        found: str = service.ask("POST", "/v1/jobs", order, token="everything").json()["id"]
        if not found.isdigit():
            return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Of each tenant: messages that are pending, delivered, dead and rejected, a rate limit and a
    job."""
    folder = tmp_path_factory.mktemp("tenants")
    path = folder / "tokens.yaml"
    entries = [{"name": name, "sha256": digest(name), **entry} for name, entry in TOKENS.items()]
    path.write_text(json.dumps({"tokens": entries}))
    with Inside(folder, admin__tokens=path, limits__max_past="0") as service:
        ask = partial(service.ask, token="everything")
        generated = {}
        jobs = {}
        for tenant in ("mine", "theirs", HIDDEN):
            late = {
                "deliver_at": "2020-01-01T00:00:00Z",
                "expire_at": "2020-01-01T00:00:01Z",
                "id": f"{tenant}-dead",
            }
            dead = {key: value for key, value in (message(tenant) | late).items() if key != "delay"}
            for body in (
                message(tenant, id=f"{tenant}-1"),
                message(tenant, id=f"{tenant}-2"),
                message(tenant, delay=0, id=f"{tenant}-3"),
                message("mine", tenant, delay=0, id=f"{tenant}-4"),
                dead,
            ):
                assert ask("POST", "/v1/messages", body).status == 202
            generated[tenant] = ask("POST", "/v1/messages", message(tenant)).json()["id"]
            jobs[tenant] = job(service, tenant)
            assert ask("PUT", f"/v1/rates/{tenant}.x", {"rate": "5/s"}).status == 200
        assert ask("POST", "/v1/messages", message("theirs", id="mine-t")).status == 202
        assert ask("POST", "/v1/messages", message(HIDDEN, id="mine-h")).status == 202
        delay = service.node.config.topics.delay
        service.node.log.append(
            [(delay, HIDDEN.encode(), SECRET.encode(), {"chronos-delay": b"never"}, 0)], 10.0
        )
        for tenant, key in (
            ("theirs", b"theirs-9"),
            ("theirs", b"mine-9"),
            ("theirs", None),
            (HIDDEN, None),
            ("mine", b"mine-8"),
        ):
            headers = {
                "chronos-target-topic": tenant.encode(),
                "chronos-delay": b"never",
                "x": SECRET.encode(),
            }
            service.node.log.append([(delay, key, (SECRET + tenant).encode(), headers, 0)], 10.0)
        wait_until(lambda: len(ask("GET", "/v1/rejected").json()["rejected"]) == 6)
        for tenant in ("mine", "theirs", HIDDEN):
            wait_until(partial(is_dead, service, tenant))
        rejected = f"/v1/topics/{service.node.config.topics.rejected}/records"
        wait_until(lambda: SECRET.encode() in ask("GET", f"{rejected}?wait=1s").body)
        for topic, records in (("mine", 4), ("theirs", 1)):
            wait_until(partial(holds, service, topic, records))
        after = ask("GET", "/v1/messages?limit=1").json()["after"]
        shard, due, offset = generated["theirs"].split("-")
        absent = f"{shard}-{int(due) + 1}-{offset}"
        yield World(
            service,
            Names("theirs", generated["theirs"], "mine-t", jobs["theirs"], after),
            # With the same minus signs, of which an error about a time or duration speaks.
            Names("nobody", absent, "mine-n", "cafe" * 3, re.sub("[^-]", "A", after)),
        )


def foreign_state(world: World) -> Any:
    """All that belongs to others, as a token without limits sees it."""
    ask = partial(world.service.ask, "GET", token="everything")
    ids = [f"{t}-{n}" for t in ("theirs", HIDDEN) for n in (1, 2, 3, 4)] + [
        "mine-t",
        "mine-h",
        world.theirs.generated,
    ]
    messages = [ask(f"/v1/messages/{each}?payload=true").json() for each in ids]
    rejected = [
        ask(f"/v1/rejected?target={each}").json()["rejected"] for each in ("theirs", HIDDEN)
    ]
    letters = [
        each
        for each in ask("/v1/dead-letters?resolved=true").json()["letters"]
        if each["topic"] != "mine"
    ]
    rates = [each for each in ask("/v1/rates").json()["rates"] if "mine" not in each["pattern"]]
    pending = [
        each["id"]
        for each in ask("/v1/messages?limit=1000").json()["messages"]
        if each["target"]["topic"] != "mine"
    ]
    return messages, letters, rejected, rates, pending, ask(f"/v1/jobs/{world.theirs.job}").json()


def normal(answer: Answer, names: Names, nobody: Names) -> Any:
    """Status and body, with the names of a request replaced and without what changes by itself."""
    text = answer.body.decode(errors="replace")
    for found, other in zip(names, nobody, strict=True):
        text = text.replace(found, other)
    try:
        body = json.loads(text)
    except ValueError:
        return answer.status, None
    return answer.status, without_times(body)


def without_times(value: Any) -> Any:
    """The value without the fields that change by themselves; new jobs and messages have an id of
    their own."""
    if isinstance(value, list):
        return [without_times(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: re.sub(r"^([0-9a-f]{12}|[0-9]+-[0-9]+-[0-9]+)$", "new", each)
        if name == "id"
        else without_times(each)
        for name, each in value.items()
        if name not in CHANGING
    }


STATIC = ("openapi", "page", "view", "file")
"""Routes whose answer is made from the code alone."""


def test_every_parameter_and_field_is_tried():
    """None is left out because its schema has a form that is not known here."""
    names = Names("theirs", "0-1-2", "mine-t", "cafe" * 3, "after")
    for route in ROUTES.values():
        described = document()["paths"][route.path][route.method.lower()]
        tried = {each.place for each in requests(route, names, EXAMPLES[route.name])}
        assert {each["name"] for each in described.get("parameters", [])} <= tried, route.name
        if route.body is not None:
            schema = described["requestBody"]["content"]["application/json"]["schema"]
            given = {
                name for one in alternatives(resolved(schema)) for name in one.get("properties", {})
            }
            assert given
            assert given <= {place.partition(".")[0] for place in tried}, route.name


def no_job_runs(service: Inside) -> bool:
    """Return whether all jobs have ended."""
    return all(
        job["state"] != "running"
        for job in service.ask("GET", "/v1/jobs", token="everything").json()["jobs"]
    )


@pytest.mark.parametrize(
    "name", sorted(ROUTES, key=lambda name: name == "schedule")
)  # which takes the unused names
def test_nothing_of_others_is_seen_or_changed(world, name):
    """Whatever a token with limits asks, the answer is the one for names that nobody uses, and
    others keep what they have."""
    service, route = world.service, ROUTES[name]
    before = foreign_state(world)
    for token in ("limited", "limited-reader"):
        pairs = zip(
            requests(route, world.theirs, EXAMPLES[name]),
            requests(route, world.nobody, EXAMPLES[name]),
            strict=True,
        )
        for theirs, nobody in pairs:
            service.ask(
                "GET", "/v1/messages/mine-1", token="limited"
            )  # the records of requests before are applied
            wait_until(lambda: no_job_runs(service))  # a token may have few at a time
            answers = [
                service.ask(route.method, each.path, each.body, token=token)
                for each in (theirs, nobody)
            ]
            assert answers[0].status < 500 or route.scope == "service", (token, theirs, answers[0])
            assert name in STATIC or HIDDEN.encode() not in answers[0].body, (
                token,
                theirs,
                answers[0],
            )
            assert f"{SECRET}theirs".encode() not in answers[0].body, (token, theirs, answers[0])
            assert token == "limited" or SECRET.encode() not in answers[0].body, (
                token,
                theirs,
                answers[0],
            )
            if theirs.place == "replaced" and theirs.body["id"] == "mine-t":
                assert answers[0].status == 403  # its own id, taken by a message of others
            elif theirs != nobody and route.scope == "targets":
                found = [normal(each, world.theirs, world.nobody) for each in answers]
                assert found[0] == found[1], (token, theirs, nobody)
            if "shards" in theirs.place:
                assert answers[0].status in (403, 422), (token, theirs, answers[0])
    assert foreign_state(world) == before


@pytest.mark.parametrize(
    "name", [name for name, route in ROUTES.items() if route.role not in ("open", "node")]
)
def test_no_parameter_opens_a_route_to_a_token_without_its_role(world, name):
    """No token, a wrong one, and a node of another cluster: 401. Without the role: 403, whatever is
    given."""
    service, route = world.service, ROUTES[name]
    strangers: list[dict[str, Any]] = [{}, {"token": "wrong"}, {"headers": MEMBER}]
    without = [
        token
        for token in ("reader", "payloads", "writer", "operator")
        if route.role not in ("any", *TOKENS[token]["roles"])
    ]
    for each in requests(route, world.theirs, EXAMPLES[name]):
        for stranger in strangers:
            assert service.ask(route.method, each.path, each.body, **stranger).status == 401, (
                each,
                stranger,
            )
        for token in without:
            assert service.ask(route.method, each.path, each.body, token=token).status == 403, (
                each,
                token,
            )


@pytest.mark.parametrize("name", [name for name, route in ROUTES.items() if route.role == "read"])
def test_a_token_without_the_role_payload_sees_no_payload(world, name):
    """Neither of messages, nor of dead letters, nor of records, rejected ones among them; nor can
    it select by a header."""
    service, route = world.service, ROUTES[name]
    for each in requests(route, world.theirs, EXAMPLES[name]):
        answer = service.ask(route.method, each.path, each.body, token="reader")
        assert SECRET.encode() not in answer.body, each
        if each.place == "header" and "mark" in each.path:
            assert answer.status == 403, each
    rejected = service.node.config.topics.rejected
    for topic in (rejected, service.node.config.topics.dead_letter, "theirs"):
        for token, is_shown in (("reader", False), ("everything", True)):
            answer = service.ask("GET", f"/v1/topics/{topic}/records", token=token)
            assert (SECRET.encode() in answer.body) == is_shown, (topic, token)
            assert answer.json()["records"], topic


def test_a_token_without_the_role_payload_does_not_see_what_others_look_for_in_headers(world):
    """In the filter of a job."""
    service = world.service
    found = {"target": "theirs", "headers": {"mark": SECRET}, "contains": SECRET}
    job = service.ask("POST", "/v1/jobs", {"action": "count", "filter": found}, token="everything")
    for path in ("/v1/jobs", f"/v1/jobs/{job.json()['id']}"):
        for token, is_shown in (("reader", False), ("everything", True)):
            answer = service.ask("GET", path, token=token)
            assert answer.status == 200
            assert (SECRET.encode() in answer.body) == is_shown, (path, token)
    assert service.ask("GET", "/v1/messages?contains=x", token="reader").status == 403


@pytest.mark.parametrize("topic", ["delay", "progress", "rejected", "dead_letter", "cluster"])
def test_chronos_own_topics_are_closed_to_limited_tokens(world, topic):
    """Although a pattern of the token matches them."""
    name = getattr(world.service.node.config.topics, topic)
    answer = world.service.ask("GET", f"/v1/topics/{name}/records", token="limited")
    assert (answer.status, answer.problem) == (403, "forbidden")
    listed = world.service.ask("GET", "/v1/topics", token="limited").json()["topics"]
    assert {each["topic"] for each in listed} == {"mine"}


def test_a_rejection_is_told_to_whom_its_record_belongs(world):
    """By the id that was rejected: its target is the sender's own as well, or nothing is known of
    it."""
    for message_id, token, text in (
        ("mine-8", "limited", "was rejected at"),
        ("mine-9", "limited", "nothing is known of"),
        ("mine-9", "everything", "was rejected at"),
    ):
        answer = world.service.ask("GET", f"/v1/messages/{message_id}", token=token)
        assert answer.status == 404
        assert text in answer.json()["detail"], (message_id, token)
    for message_id, status in (("mine-8", 200), ("mine-9", 404), ("theirs-9", 403)):
        assert (
            world.service.ask("GET", f"/v1/rejected/{message_id}", token="limited").status == status
        )
    listed = world.service.ask("GET", "/v1/rejected", token="limited").json()
    assert {one["topic"] for one in listed["rejected"]} == {"mine"}
    shown = world.service.ask("GET", "/v1/rejected/mine-8", token="limited-reader")
    assert "headers" not in shown.json()
    assert "value" not in shown.json()


def test_a_limited_token_gives_no_id_of_others(world):
    """Neither a new one, nor one that exists, nor one that Chronos would make; nothing of a batch
    is written."""
    service = world.service
    for message_id in ("theirs-new", "theirs-1", "0-1893456000000-1", "order"):
        for more in ({}, {"on_conflict": "replace"}, {"on_conflict": "ignore"}):
            batch = [message("mine", id="mine-batch"), message("mine", id=message_id, **more)]
            answer = service.ask("POST", "/v1/messages", batch, token="limited")
            assert answer.status == (422 if message_id.startswith("0-") else 403), (
                message_id,
                more,
            )
    assert service.ask("GET", "/v1/messages/mine-batch", token="everything").status == 404
    for body in (message("mine", id="mine-new"), message("mine")):
        made = service.ask("POST", "/v1/messages", body, token="limited")
        assert made.status == 202
        assert (
            service.ask("DELETE", f"/v1/messages/{made.json()['id']}", token="limited").json()[
                "result"
            ]
            == "cancelled"
        )


def own_messages(world: World, count: int) -> list[str]:
    """The ids of new messages that belong to the token with limits."""
    ids = [f"mine-own-{time.time_ns()}-{number}" for number in range(count)]
    for each in ids:
        assert (
            world.service.ask(
                "POST", "/v1/messages", message("mine", id=each), token="limited"
            ).status
            == 202
        )
        assert world.service.ask("GET", f"/v1/messages/{each}", token="limited").status == 200
    return ids


def test_page_keys_are_for_one_token_and_one_filter(world):
    """Anything else is refused, with the advice to begin again."""
    service = world.service
    own_messages(world, 3)
    first = service.ask("GET", "/v1/messages?limit=1&target=mine", token="limited").json()["after"]
    assert first is not None
    assert re.fullmatch(r"[A-Za-z0-9_-]+", first)

    def page(query: str, token: str = "limited") -> Answer:
        return service.ask("GET", f"/v1/messages?{query}", token=token)

    assert page(f"limit=5&target=mine&after={first}").status == 200
    forged = first[:-6] + ("A" if first[-6] != "A" else "B") + first[-5:]
    for query, token in (
        (f"limit=5&after={first}", "limited"),
        (f"limit=5&target=mine&due_from=0&after={first}", "limited"),
        (f"limit=5&target=mine&after={first}", "everything"),
        (f"limit=5&target=mine&after={forged}", "limited"),
        ("target=mine&after=1893456000000-0-17", "limited"),
        ("target=mine&after=%C3%A9", "limited"),
        ("target=mine&after=", "limited"),
    ):
        answer = page(query, token)
        assert (answer.status, answer.problem) == (400, "begin-again"), query
        assert "begin again" in answer.json()["detail"]


def test_pages_hold_own_messages_only_and_all_of_them(world):
    """One after the other, as the client reads them."""
    own = own_messages(world, 5)
    found: list[str] = []
    after = ""
    while True:
        page = world.service.ask("GET", f"/v1/messages?limit=2{after}", token="limited").json()
        found += [each["id"] for each in page["messages"]]
        if page["after"] is None:
            break
        after = f"&after={page['after']}"
    assert set(own) <= set(found)
    assert [
        each
        for each in found
        if each.startswith(("theirs", HIDDEN)) or each in ("mine-t", "mine-h")
    ] == []


def test_a_node_that_is_asked_for_another_applies_the_limits_of_the_sender(world, monkeypatch):
    """Look-ups, lists, actions and jobs with `shards`, as one node forwards them to another."""
    service = world.service
    node = Member(
        node="n2", instance="n2", address="http://a:1", version="1", started_ms=0, token="of-n2"
    )
    monkeypatch.setattr(service.server, "_members", lambda: {"n2": node})
    assert service.server._access is not None
    monkeypatch.setattr(service.server._access, "_members", lambda: {"n2": node})
    identity = {"Chronos-Node": "n2", "Chronos-Token": "of-n2"}
    limited = identity | reach_header(Reach(targets=("mine",), ids=("mine-*",)))

    def ask(method: str, path: str, headers: dict[str, str], body: Any = None) -> Answer:
        return service.ask(method, f"{path}?shards=0", body, headers=headers)

    own_messages(world, 1)
    before = foreign_state(world)
    for name in ("theirs-1", "mine-t"):
        for method, more, body in (
            ("GET", "", None),
            ("DELETE", "", None),
            ("PATCH", "", {"delay": "2h"}),
            ("POST", "/fire", None),
        ):
            assert ask(method, f"/v1/messages/{name}{more}", limited, body).status in (403, 404), (
                name,
                method,
            )
    listed = ask("GET", "/v1/messages", limited).json()["messages"]
    assert listed
    assert {each["target"]["topic"] for each in listed} == {"mine"}
    assert HIDDEN.encode() not in ask("GET", "/v1/rates", limited).body
    assert (
        ask(
            "POST", "/v1/jobs", limited, {"action": "cancel", "filter": {"target": "theirs"}}
        ).status
        == 403
    )
    assert ask("GET", "/v1/messages", identity | {REACH_HEADER: "?"}).status == 400
    assert foreign_state(world) == before
    assert ask("GET", "/v1/messages/theirs-1", identity).status == 200
    plain = service.ask("GET", "/v1/messages?shards=0&limit=1", headers=identity).json()["after"]
    assert re.fullmatch(r"[0-9]+-0-[0-9]+", plain)


def test_a_job_of_a_limited_token_touches_its_own_messages_only(world):
    """Of the messages for its target those whose ids are its own, and the count tells nothing of
    the others."""
    service = world.service
    assert (
        service.ask(
            "POST", "/v1/messages", message("mine", id="theirs-in-mine"), token="everything"
        ).status
        == 202
    )
    assert (
        service.ask(
            "POST", "/v1/messages", message("mine", id="mine-in-job"), token="everything"
        ).status
        == 202
    )
    body = {"action": "cancel", "filter": {"target": "mine", "id_prefix": "mine-in-job"}}
    for prefix, matched in (("theirs-in-mine", 0), ("mine-in-job", 1)):
        body["filter"] = {"target": "mine", "id_prefix": prefix}
        job = service.ask("POST", "/v1/jobs", body, token="limited").json()["id"]
        deadline_s = time.monotonic() + 20
        while (found := service.ask("GET", f"/v1/jobs/{job}", token="limited").json())[
            "state"
        ] == "running":
            check_deadline(deadline_s)
        assert (found["matched"], found["scanned"], found["done"]) == (matched, matched, matched)
    assert (
        service.ask("GET", "/v1/messages/theirs-in-mine", token="everything").json()["state"]
        == "pending"
    )


def test_a_replay_of_a_limited_token_is_of_its_own_letters(world):
    """By id it is refused, in sum they are left out."""
    service = world.service
    name = f"mine-dead-{time.time_ns()}"
    late = {"deliver_at": "2020-01-01T00:00:00Z", "expire_at": "2020-01-01T00:00:01Z", "id": name}
    body = {key: value for key, value in (message("mine") | late).items() if key != "delay"}
    assert service.ask("POST", "/v1/messages", body, token="limited").status == 202
    wait_until(
        lambda: service.ask("GET", f"/v1/dead-letters/{name}", token="limited").status == 200
    )
    for verb in ("replay", "discard"):
        path = f"/v1/dead-letters/{verb}"
        assert service.ask("POST", path, {"id": "theirs-dead"}, token="limited").status == 403
        assert service.ask("POST", path, {"target": "theirs"}, token="limited").status == 403
        found = service.ask("POST", path, {"all": True, "dry_run": True}, token="limited").json()
        assert {each["topic"] for each in found["counts"]} == {"mine"}
        assert (
            found["records"]
            == found["matched"]
            == sum(each["letters"] for each in found["counts"])
            > 0
        )
    found = service.ask("POST", "/v1/dead-letters/replay", {"all": True}, token="limited").json()
    assert found["resolved"] > 0
    assert (
        service.ask("GET", "/v1/dead-letters/theirs-dead", token="everything")
        .json()
        .get("resolution")
        is None
    )


def test_a_shard_names_own_targets_only(world):
    """Those of messages that died lately, and what a step waits for."""
    everything = Sender(name="everything", roles=frozenset({"read", "payload"}))
    limited = Sender(
        name="limited", roles=frozenset({"read", "payload"}), targets=("mine",), ids=("mine-*",)
    )

    def told(sender: Sender, *targets: str) -> Any:
        body = world.service.ask("GET", "/v1/shards", token="everything").body
        shards = msgspec.json.decode(body, type=schemas.Shards)
        cases = [
            schemas.DeadCase(reason="target-missing", target=target, messages=2)
            for target in targets
        ]
        shards.shards[0].dead_recently = schemas.DeadRecently(
            messages=2 * len(cases),
            last_at="2030-01-01T00:00:00.000Z",
            cases=cases,
            text=", ".join(targets),
        )
        shards.shards[
            0
        ].waits_for = f"no acknowledgement for 2 s from {targets[-1]}/0 (leader: broker 1)"
        return shown(shards, sender).shards[0]  # type: ignore[attr-defined]

    assert told(everything, "mine", HIDDEN).dead_recently.text == f"mine, {HIDDEN}"
    found = told(limited, "mine", HIDDEN)
    assert [(each.target, each.messages) for each in found.dead_recently.cases] == [("mine", 2)]
    assert found.dead_recently.messages == 2
    assert HIDDEN.encode() not in msgspec.json.encode(found)
    assert found.waits_for == "no acknowledgement for 2 s"
    assert told(limited, HIDDEN).dead_recently is None


def test_rates_name_own_targets_only(world):
    """In the list, for a topic, and in an error."""
    service = world.service
    found = service.ask("GET", "/v1/rates", token="limited").json()["rates"]
    assert [each["pattern"] for each in found] == ["mine.x"]
    answer = service.ask("DELETE", "/v1/rates/mine", token="limited")
    assert answer.status == 404
    assert answer.json()["detail"].endswith("those that were: mine.x")
    assert service.ask("GET", "/v1/rates?topic=theirs.x", token="limited").status == 403
    assert (
        service.ask("GET", "/v1/rates?topic=mine.x", token="limited").json()["rates"][0]["rate"]
        == "5/s"
    )


def test_the_entries_of_the_file_are_those_of_the_test(world: World) -> None:
    """The limits that this module relies on."""
    file = Path(str(world.service.node.config.admin.tokens))
    assert [each["name"] for each in json.loads(file.read_text())["tokens"]] == list(TOKENS)
