"""Tokens, roles and TLS of the HTTP interface: every endpoint with every role, and who may see and
change which targets."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from msgspec import structs
from structlog.testing import capture_logs
from typer.testing import CliRunner

from chronos.adapters.checkpoints.node import fetch_checkpoint
from chronos.admin.cluster.peers import PeerClient
from chronos.admin.http.access import Access, is_token_of
from chronos.admin.http.connections import SparseLog
from chronos.admin.http.problems import ProblemError
from chronos.admin.http.routes import table
from chronos.admin.http.tokens import SenderLimits, TokenFile, digest, parse_tokens
from chronos.cli.app import app
from chronos.client import AsyncClient, Client, Refused
from chronos.config import load
from chronos.core.cluster.roles import Member
from chronos.core.reach import EVERYTHING
from chronos.errors import ConfigurationError, Retry
from chronos.node.tls import client_tls
from tests.harness import command
from tests.harness.certificates import Authority
from tests.harness.examples import EXAMPLES
from tests.harness.inside import Inside
from tests.harness.tokens import TOKENS, limited_tokens_file
from tests.harness.waiting import wait_until


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """One node for all tests, with a message, a dead letter and a rejected record of each of two
    targets."""
    folder = tmp_path_factory.mktemp("access")
    path = limited_tokens_file(folder, TOKENS)
    with Inside(
        folder,
        admin__tokens=path,
        admin__host="0.0.0.0",
        limits__max_past="0",
    ) as running:
        for target in ("mine", "theirs"):
            body = {
                "target": {"topic": target},
                "value": target,
                "delay": "1h",
                "id": f"{target}-1",
            }
            assert running.ask("POST", "/v1/messages", body, token="everything").status == 202
            late = {
                "target": {"topic": target},
                "value": target,
                "deliver_at": "2020-01-01T00:00:00Z",
                "expire_at": "2020-01-01T00:00:01Z",
                "id": f"{target}-dead",
            }
            assert running.ask("POST", "/v1/messages", late, token="everything").status == 202
            wait_until(partial(is_dead, running, target))
            delay, headers = (
                running.node.config.topics.delay,
                {"chronos-target-topic": target.encode()},
            )
            running.node.log.append(
                [(delay, f"{target}-rejected".encode(), b"v", headers, 0)], 10.0
            )
            wait_until(partial(is_rejected, running, target))
        yield running


def is_dead(service: Inside, target: str) -> bool:
    """Return whether the dead letter of the target is there."""
    return service.ask("GET", f"/v1/dead-letters/{target}-dead", token="reader").status == 200


def is_rejected(service: Inside, target: str) -> bool:
    """Return whether the rejected record of the target is there."""
    return service.ask("GET", f"/v1/rejected/{target}-rejected", token="reader").status == 200


ROUTES = {route.name: route for route in table(None)}


def send(service: Inside, name: str, token: str, target: str = "mine") -> Any:
    """The answer to the example of a route."""
    example = EXAMPLES[name]
    body = (
        None
        if example.body is None
        else json.loads(json.dumps(example.body).replace("{target}", target))
    )
    return service.ask(
        ROUTES[name].method, example.path.replace("{target}", target), body, token=token
    )


def test_every_route_has_an_example():
    """A new endpoint needs one, and is tried with every role."""
    assert EXAMPLES.keys() == ROUTES.keys()
    assert len(ROUTES) == len(table(None))


def test_a_token_opens_the_routes_of_its_roles(service):
    """Every route with its example. What a token without the role is answered, and one that is
    wrong, is tried with generated requests (tests/node/test_tenants.py)."""
    for name, route in ROUTES.items():
        if route.role == "open":
            assert send(service, name, "").status == 200, name
        elif route.role == "node":
            answer = send(service, name, "everything")
            assert (answer.status, answer.problem) == (403, "not-a-member"), name
        else:
            for token, (roles, *_) in TOKENS.items():
                if token != "limited" and route.role in ("any", *roles):
                    assert send(service, name, token).status not in (401, 403), (name, token)


@pytest.mark.parametrize("token", ["", "wrong"])
def test_a_request_without_a_token_is_told_the_scheme(service, token):
    answer = send(service, "shards", token)
    assert (answer.status, answer.problem) == (401, "no-token")
    assert answer.headers["www-authenticate"].startswith("Bearer")


SERVICE_CHANGES = [
    name
    for name, route in ROUTES.items()
    if route.scope == "service" and route.role in ("write", "operate")
]


def test_a_token_for_some_targets_changes_nothing_of_the_whole_service(service):
    """Hand-overs, drains, checkpoints, digests."""
    for name in SERVICE_CHANGES:
        answer = send(service, name, "limited")
        assert (answer.status, answer.problem) == (403, "forbidden"), name


def test_a_token_is_told_its_name_and_what_it_permits(service):
    """The changes are those that no role and no limit refuses."""
    found = {name: service.ask("GET", "/v1/whoami", token=name).json() for name in TOKENS}
    assert {name: answer["token"] for name, answer in found.items()} == {
        name: name for name in TOKENS
    }
    assert all(answer["tokens"] for answer in found.values())
    assert found["reader"]["actions"] == []
    assert found["reader"]["roles"] == ["read", "payload"]
    assert found["writer"]["actions"] == [
        "schedule",
        "cancel",
        "reschedule",
        "fire",
        "pause",
        "resume",
    ]
    assert {"replay", "start", "drain", "set-rate"} <= {*found["operator"]["actions"]}
    assert (found["limited"]["targets"], found["limited"]["ids"]) == (["mine", "mine.*"], ["*"])
    lost = {*found["everything"]["actions"]} - {*found["limited"]["actions"]}
    assert lost == {*SERVICE_CHANGES}
    assert found["limited"]["limits"] == {"polls": 100, "connections": 200, "jobs": 3}


def test_the_command_line_shows_the_token_that_is_sent(service):
    """Name, roles, targets, and the changes that it may ask for."""

    def whoami(token: str) -> Any:
        arguments = ["whoami", "--server", f"http://127.0.0.1:{service.port}"]
        return CliRunner().invoke(app, arguments, env={"CHRONOS_TOKEN": token})

    shown = whoami("limited")
    assert shown.exit_code == 0, shown.output
    for words in (
        "limited",
        "read, payload, write, operate",
        "mine, mine.*",
        "100 polls",
        "replay",
    ):
        assert words in shown.output
    assert whoami("nobody").exit_code == 1


def test_without_tokens_every_sender_may_do_everything(tmp_path):
    """No name, and no limits of its own."""
    with Inside(tmp_path) as running:
        found = running.ask("GET", "/v1/whoami").json()
        shown = CliRunner().invoke(app, ["whoami", "--server", running.server.url])
    assert (shown.exit_code, "may do everything" in shown.output) == (0, True)
    assert (found["tokens"], found["token"], found["limits"]) == (False, None, None)
    assert found["roles"] == ["read", "payload", "write", "operate"]
    assert {"cancel", "replay", "drain"} <= {*found["actions"]}


NAMED = {
    "schedule": 403,
    "get": 404,
    "outcome": 404,
    "cancel": 404,
    "reschedule": 404,
    "fire": 404,
    "pause": 404,
    "resume": 404,
    "dead_letter": 404,
    "rejected-record": 404,
    "start": 403,
    "set-rate": 403,
    "remove-rate": 403,
    "records": 403,
}
"""Routes whose example names one target, and the status for that of others."""

FILTERED = {
    "list",
    "dead_letters",
    "dead-letter-at",
    "dead-letter-counts",
    "rejected",
    "rejected-counts",
    "replay",
    "discard",
    "jobs",
    "job",
    "stop",
    "topics",
}
"""Routes whose answer leaves out other targets; `test_answers_leave_out_other_targets` tries
them."""


def test_every_route_that_concerns_targets_is_tried_with_those_of_others():
    """A new one needs a row above."""
    assert NAMED.keys() | FILTERED == {
        name for name, route in ROUTES.items() if route.scope == "targets"
    }


@pytest.mark.parametrize("name", NAMED)
def test_a_token_for_some_targets_is_refused_the_others(service, name):
    """The same request succeeds for its own target."""
    for target in ("mine", "theirs"):
        if "-2" in EXAMPLES[name].path:
            body = {
                "target": {"topic": target},
                "value": "v",
                "delay": "1h",
                "id": f"{target}-2",
                "on_conflict": "replace",
                "repeat": "every 1h",
            }
            assert service.ask("POST", "/v1/messages", body, token="everything").status == 202
        if name == "records":
            body = {"target": {"topic": target}, "value": "v", "delay": "0s"}
            assert service.ask("POST", "/v1/messages", body, token="everything").status == 202
            path = f"/v1/topics/{target}/records?wait=20s"
            assert service.ask("GET", path, token="everything").status == 200
    assert send(service, name, "limited", "theirs").status == NAMED[name]
    if name in ("dead_letter", "remove-rate"):
        send(service, "set-rate", "everything")
        assert send(service, name, "limited").status in (200, 404)
    else:
        assert send(service, name, "limited").status in (200, 202)


def test_one_message_of_another_target_refuses_a_batch(service):
    """Nothing of it is written."""
    batch = [
        {"target": {"topic": target}, "value": "v", "delay": "1h", "id": f"batch-{target}"}
        for target in ("mine.1", "theirs")
    ]
    answer = service.ask("POST", "/v1/messages", batch, token="limited")
    assert (answer.status, answer.problem) == (403, "forbidden")
    assert service.ask("GET", "/v1/messages/batch-mine.1", token="everything").status == 404


def test_answers_leave_out_other_targets(service):
    """Lists, dead letters, rejected records, jobs and topics."""

    def ask(path: str, token: str = "limited", method: str = "GET", body: Any = None) -> Any:
        return service.ask(method, path, body, token=token).json()

    assert {
        message["target"]["topic"] for message in ask("/v1/messages?limit=1000")["messages"]
    } == {"mine"}
    for token, expected in (("limited", {"mine"}), ("everything", {"mine", "theirs"})):
        assert {letter["topic"] for letter in ask("/v1/dead-letters", token)["letters"]} == expected
        for letter in ask("/v1/dead-letters", "everything")["letters"]:
            place = f"{letter['partition']}:{letter['offset']}"
            status = service.ask("GET", f"/v1/dead-letters/at/{place}", token=token).status
            assert status == (200 if letter["topic"] in expected else 404), place
            body = {"positions": [place], "dry_run": True}
            selected = ask("/v1/dead-letters/discard", token, "POST", body)
            assert selected["matched"] == (letter["topic"] in expected), place
        assert {row["topic"] for row in ask("/v1/dead-letter-counts", token)["counts"]} == expected
        assert {
            record["topic"] for record in ask("/v1/rejected?reason=no-time", token)["rejected"]
        } == expected
        assert {
            count["topic"] for count in ask("/v1/rejected-counts?reason=no-time", token)["counts"]
        } == expected
        for verb in ("replay", "discard"):
            found = ask(f"/v1/dead-letters/{verb}", token, "POST", {"all": True, "dry_run": True})
            assert {count["topic"] for count in found["counts"]} == expected
    job = ask("/v1/jobs", "everything", "POST", {"action": "count"})["id"]
    assert job not in [each["id"] for each in ask("/v1/jobs")["jobs"]]
    assert service.ask("GET", f"/v1/jobs/{job}", token="limited").status == 404
    assert service.ask("DELETE", f"/v1/jobs/{job}", token="limited").status == 404
    assert service.ask("POST", "/v1/jobs", {"action": "count"}, token="limited").status == 403
    assert {topic["topic"] for topic in ask("/v1/topics")["topics"]} <= {"mine"}
    assert service.ask("PUT", "/v1/rates/mine.*", {"rate": "5/s"}, token="limited").status == 403


def test_the_log_tells_who_did_what(service):
    """The name of the token, the verb, the id and the result; reads are not logged, refusals
    are."""
    body = {"target": {"topic": "mine"}, "value": "v", "delay": "1h", "id": "told"}
    with capture_logs() as logs:
        service.ask("POST", "/v1/messages", body, token="writer")
        service.ask("GET", "/v1/messages/told", token="reader")
        service.ask("DELETE", "/v1/messages/told", token="writer")
        service.ask("DELETE", "/v1/messages/told", token="reader")
    lines = [
        (line["event"], line["token"], line["verb"], line["ids"], line["outcome"])
        for line in logs
        if "token" in line
    ]
    assert lines == [
        ("request", "writer", "schedule", ["told"], "accepted"),
        ("request", "writer", "cancel", ["told"], "cancelled"),
        ("request refused", "reader", "cancel", ["told"], "forbidden"),
    ]


def test_requests_without_a_valid_token_do_not_fill_the_log(service):
    """At most one line a minute, and no token in it."""
    with capture_logs() as logs:
        for _ in range(20):
            service.ask("GET", "/v1/shards", token="secret-guess")
    assert len([line for line in logs if line["event"] == "request without a valid token"]) <= 1
    assert "secret-guess" not in str(logs)


# --- The file


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\xff", "is not YAML"),
        (b"tokens: [", "is not YAML"),
        (b"", "is empty; to have no tokens, write `tokens: []`"),
        (b"tokens:", "is not a list of tokens: Expected `array`, got `null`"),
        (
            b"tokens: [{name: a, sha256: abc, roles: [read]}]",
            ("is not a list of tokens: Expected `str` matching regex"),
        ),
        (b"tokens: [{name: a, sha256: '%064d', roles: [admin]}]" % 1, "Invalid enum value 'admin'"),
        (b"tokens: [{name: a, sha256: '%064d', roles: []}]" % 1, "length >= 1"),
        (b"tokens: [{name: a, token: x, roles: [read]}]", "unknown field `token`"),
        (
            (
                b"tokens: [{name: a, sha256: '%064d', roles: [read]}, {name: a, sha256: '%064d', "
                b"roles: [read]}]"
            )
            % (1, 2),
            "two tokens with the name a",
        ),
        (
            (
                b"tokens: [{name: a, sha256: '%064d', roles: [read]}, {name: b, sha256: '%064d', "
                b"roles: [read]}]"
            )
            % (1, 1),
            "two tokens with the sha256",
        ),
    ],
)
def test_a_file_that_holds_no_tokens_is_refused(tmp_path, content, text):
    """With the reason, and without what else is in the file."""
    path = tmp_path / "tokens.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError) as refused:
        TokenFile(str(path))
    (problem,) = refused.value.problems
    assert problem.startswith(f"admin.tokens: {path} ")
    assert text in problem


def test_a_token_is_found_by_its_hash_only():
    """The file holds no token."""
    data = (
        b"tokens: [{name: shop, sha256: "
        b"2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae, roles: [write]}]"
    )
    (found,) = parse_tokens(data).senders.items()
    assert found[0] == digest("foo")
    assert (found[1].name, found[1].roles, found[1].targets, found[1].is_limited) == (
        "shop",
        frozenset({"write"}),
        ("*",),
        False,
    )


def test_a_changed_file_counts_at_once(tmp_path):
    """A token is added and revoked without a restart; a file that cannot be read changes
    nothing."""
    path = limited_tokens_file(tmp_path, {"first": (["read"], ["*"])})
    tokens = TokenFile(str(path))
    assert tokens.sender("first") is not None
    assert tokens.sender("second") is None
    limited_tokens_file(tmp_path, {"second": (["read"], ["*"]), "third": (["read"], ["*"])})
    assert (tokens.sender("first"), tokens.sender("second") is None) == (None, False)
    with capture_logs() as logs:
        path.write_text("nonsense")
        assert tokens.sender("second") is not None
        path.unlink()
        assert tokens.sender("second") is not None
        assert tokens.sender("second") is not None
    assert [line["event"] for line in logs] == ["tokens not read", "tokens not read"]
    limited_tokens_file(tmp_path, {"fourth": (["read"], ["*"])})
    assert tokens.sender("second") is None


def test_a_token_has_the_limits_that_its_file_gives_and_the_defaults_for_others(tmp_path):
    path = tmp_path / "tokens.yaml"
    own = {"a": {"limits": {"polls": 7, "jobs": 2}}, "b": {}}
    tokens = [
        {"name": name, "sha256": digest(name), "roles": ["read"], **more}
        for name, more in own.items()
    ]
    path.write_text(json.dumps({"tokens": tokens}))
    senders = [TokenFile(str(path)).sender(name) for name in own]
    assert [sender and sender.limits for sender in senders] == [
        SenderLimits(polls=7, connections=200, jobs=2),
        SenderLimits(polls=100, connections=200, jobs=3),
    ]


ENTRIES = (
    b"tokens: [{name: shop, sha256: '%064d', roles: [read, write], targets: [mine]}, {name: bare, "
    b"sha256: '%064d', roles: [operate]}]"
)
"""Of which the first one lacks ids."""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"- {name: a, sha256: '%064d', roles: [read], targets: }", "Expected `array`, got `null`"),
        (b"- {name: a, sha256: '%064d', roles: [read], ids: }", "Expected `array`, got `null`"),
        (
            b"- {name: a, sha256: '%064d', roles: [read], targets: [a], targets: ['*']}",
            "targets a second time, on line 2",
        ),
        (b"- {name: a, sha256: '%064d', roles: [read]}\ntokens: []", "tokens a second time"),
    ],
)
def test_a_token_file_that_could_be_taken_for_another_is_refused(text, says):
    """A list without entries is not a token without limits; of a name that stands twice YAML keeps
    the last value."""
    with pytest.raises(ValueError, match=says):
        parse_tokens(b"tokens:\n" + text % 1)


def test_a_token_that_may_write_needs_ids_beside_targets(tmp_path):
    """A list of patterns that no header holds is refused. Payloads are shown only with their
    role."""
    path = tmp_path / "tokens.yaml"
    path.write_bytes(ENTRIES % (1, 2))
    with pytest.raises(
        ConfigurationError,
        match=r'limits the token shop to targets, and not to ids.*ids: \["shop-\*"\]',
    ):
        TokenFile(str(path))
    many = ",".join(f"target-{number}" for number in range(500)).encode()
    path.write_bytes(ENTRIES.replace(b"[mine]", b"[%s], ids: [mine-*]" % many) % (1, 2))
    with pytest.raises(ConfigurationError, match="more than 5000 bytes of targets and ids"):
        TokenFile(str(path))
    path.write_bytes(ENTRIES.replace(b"[mine]", b"[mine], ids: [mine-*]") % (1, 2))
    with capture_logs() as logs:
        TokenFile(str(path))
    assert logs == []
    assert not parse_tokens(path.read_bytes()).senders[f"{1:064d}"].sees_payloads


def test_a_file_of_another_format_is_refused():
    """One without a number has the first."""
    content = ENTRIES.replace(b"[mine]", b"[mine], ids: [mine-*]") % (1, 2)
    assert parse_tokens(b"format: 1\n" + content) == parse_tokens(content)
    for number in (0, 2):
        with pytest.raises(ValueError, match=f"has format {number}, and this version of Chronos"):
            parse_tokens(b"format: %d\n" % number + content)


def test_a_file_that_cannot_be_used_is_told_by_a_metric(tmp_path):
    """Until it can be read again; the tokens of before are in force meanwhile."""
    path = limited_tokens_file(tmp_path, {"first": (["read"], ["*"])})
    with Inside(tmp_path, admin__tokens=path) as service:

        def samples() -> list[str]:
            text = service.ask("GET", "/metrics", token="first").body.decode()
            return [line for line in text.splitlines() if line.startswith("chronos_tokens_")]

        assert samples() == ["chronos_tokens_stale 0.0"]
        path.write_text("nonsense")
        assert samples() == ["chronos_tokens_stale 1.0"]
        limited_tokens_file(tmp_path, {"first": (["read"], ["*"]), "second": (["read"], ["*"])})
        assert samples() == ["chronos_tokens_stale 0.0"]


def test_the_doctor_shows_what_each_token_may_do(tmp_path):
    """Exit code 2 for a file that cannot be used."""
    path = tmp_path / "tokens.yaml"

    def examine(content: bytes) -> tuple[int, str]:
        path.write_bytes(content)
        done = CliRunner().invoke(app, ["doctor", "--tokens", str(path)])
        return done.exit_code, done.output

    code, text = examine(ENTRIES.replace(b"[mine]", b"[mine], ids: ['*']") % (1, 2))
    assert code == 0
    assert "shop: read, write; targets mine; ids *" in text
    assert "shop may write every id" in text
    assert "bare: operate; targets *; ids *" in text
    assert "bare may write" not in text
    code, text = examine(ENTRIES % (1, 2))
    assert (code, "limits the token shop to targets" in text) == (2, True)
    code, text = examine(b"nonsense")
    assert (code, "is not a list of tokens" in text) == (2, True)
    path.unlink()
    assert CliRunner().invoke(app, ["doctor", "--tokens", str(path)]).exit_code == 2


def test_a_file_that_became_empty_or_that_everybody_may_write_leaves_the_tokens_as_they_are(
    tmp_path,
):
    """A metric says so until it can be used again; a service does not start with it."""
    path = limited_tokens_file(tmp_path, TOKENS)

    def stale(service: Inside) -> bool:
        return (
            "chronos_tokens_stale 1.0"
            in service.ask("GET", "/metrics", token="reader").body.decode()
        )

    with Inside(tmp_path, admin__tokens=path) as service:
        assert not stale(service)
        for spoil, why in (
            (lambda: path.write_text(""), "is empty"),
            (lambda: path.write_text(" \n"), "is empty"),
            (lambda: path.chmod(0o646), "may be written by every user"),
        ):
            with capture_logs() as logs:
                spoil()
                assert stale(service)
            assert [why in line["why"] for line in logs if line["event"] == "tokens not read"] == [
                True
            ]
            assert (
                "the file of admin.tokens cannot be used"
                in service.ask("GET", "/readyz").body.decode()
            )
            if why.startswith("may"):
                with pytest.raises(
                    ConfigurationError,
                    match="may be written by every user of this machine: chmod o-w",
                ):
                    TokenFile(str(path))
            path.chmod(0o644)
            limited_tokens_file(tmp_path, TOKENS)
            assert not stale(service)
        path.write_text("tokens: []")
        assert service.ask("GET", "/v1/shards", token="reader").status == 401


def test_a_node_of_the_cluster_is_known_by_the_token_of_the_coordinator(tmp_path):
    """A wrong token, that of another node, and an unknown node are worth nothing; a node without a
    token neither."""
    members = {
        name: Member(
            node=name, instance=name, address="http://a:1", version="1", started_ms=0, token=token
        )
        for name, token in (("a", "token-a"), ("b", "token-b"), ("c", ""))
    }
    access = Access(str(limited_tokens_file(tmp_path, TOKENS)), lambda: members, SparseLog())

    def admits(**headers: str) -> bool:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        with suppress(ProblemError):
            access.admit(
                make_mocked_request("DELETE", "/v1/messages/x", sent),
                "write",
                concerns_targets=True,
            )
            return True
        return False

    assert admits(Chronos_Node="a", Chronos_Token="token-a")
    assert not admits(Chronos_Node="a", Chronos_Token="token-b")
    assert not admits(Chronos_Node="d", Chronos_Token="token-a")
    assert not admits(Chronos_Node="c", Chronos_Token="")
    assert not admits(Chronos_Node="a")
    assert not admits(Chronos_Token="token-a")
    assert not admits(Chronos_Node="a", Chronos_Token="\u20ac")
    assert not is_token_of(
        members["a"], "token-\udce9"
    )  # a byte that is no UTF-8, as the server gives it
    assert admits(Authorization="Bearer writer")
    assert admits(Authorization="bearer  writer ")
    assert not admits(Authorization="Basic writer")
    assert not admits(Authorization="writer")


# --- Without tokens


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            ["admin.host=0.0.0.0"],
            (
                "--set: admin.host: 0.0.0.0 can be reached from other machines, and admin.tokens "
                "is not set"
            ),
        ),
        (["admin.host=::"], "--set: admin.host: :: can be reached"),
        (["admin.host=node-1"], "--set: admin.host: node-1 can be reached"),
        (
            ["admin.tls.certificate=c.pem"],
            "--set: admin.tls.key: is missing, and admin.tls.certificate is given",
        ),
        (
            ["admin.tls.client_ca=c.pem"],
            "--set: admin.tls.client_ca: is given without admin.tls.certificate",
        ),
    ],
)
def test_an_address_for_others_needs_tokens_or_the_word_that_it_is_open(settings, text):
    """And TLS needs both of its files."""
    with pytest.raises(ConfigurationError) as refused:
        load(None, {}, settings)
    assert [problem for problem in refused.value.problems if problem.startswith(text)]


@pytest.mark.parametrize(
    "settings",
    [
        ["admin.host=::1"],
        ["admin.host=127.9.9.9"],
        ["admin.host=localhost"],
        [("admin.host=0.0.0.0"), "admin.open=on"],
        ["admin.host=0.0.0.0", "admin.tokens=t.yaml"],
    ],
)
def test_these_addresses_are_served(settings):
    """This machine alone, or as it is meant."""
    load(None, {}, settings)


def test_the_variables_of_the_clients_are_no_settings():
    """They may be set where a service is started."""
    load(None, {f"CHRONOS_{name}": "x" for name in ("TOKEN", "CA", "CERT", "CERT_KEY")}, [])


# --- The clients


@pytest.mark.process
def test_the_clients_send_the_token(service, tmp_path, monkeypatch):
    """As an argument, from the environment, and on the command line from a file."""
    url = f"http://127.0.0.1:{service.port}"
    monkeypatch.delenv("CHRONOS_TOKEN", raising=False)
    with Client(url) as client, pytest.raises(Refused, match="--token-file or CHRONOS_TOKEN"):
        client.ask("/v1/shards")
    with Client(url, token="reader") as client:
        assert client.ask("/v1/shards")["shards"]

    async def ask() -> Any:
        async with AsyncClient(url, token="reader\n") as client:
            return await client.ask("/v1/shards")

    assert asyncio.run(ask())["shards"]
    with pytest.raises(Refused, match="a character that a token cannot have"):
        Client(url, token="a\nb")
    path = tmp_path / "token"
    path.write_text("reader\n")
    for options, variables, code in (
        ([], {}, 2),
        (["--token-file", str(path)], {}, 0),
        ([], {"CHRONOS_TOKEN": "reader"}, 0),
    ):
        done = command.run("list", *options, server=url, variables=variables)
        assert done.code == code, done.err


# --- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority `ca.pem`; `node.pem` and `node.key` of it for 127.0.0.1; `other.pem` of
    another authority."""
    folder = tmp_path_factory.mktemp("certificates")
    Authority(folder).issue("node")
    Authority(folder, "strangers").issue("other")
    return folder


def trusting(certificates: Path, *, certificate: str = "") -> ssl.SSLContext:
    """A client's context."""
    context = ssl.create_default_context(cafile=certificates / "ca.pem")
    if certificate:
        context.load_cert_chain(
            certificates / f"{certificate}.pem", certificates / f"{certificate}.key"
        )
    return context


def tls_settings(certificates: Path) -> dict[str, object]:
    return {
        "admin__tls__certificate": certificates / "node.pem",
        "admin__tls__key": certificates / "node.key",
    }


def test_the_interface_speaks_tls(tmp_path, certificates):
    """Both clients check the certificate; a request without TLS is answered by nothing."""
    with Inside(tmp_path, **tls_settings(certificates)) as service:
        assert service.server.url.startswith("https://")
        assert service.node.describe().address.startswith("https://")
        service.context = trusting(certificates)
        assert service.ask("GET", "/livez").status == 200
        with Client(service.server.url, tls=service.context) as client:
            accepted = client.schedule("t", "v", delay="1h", id="over-tls")
            assert client.get(accepted.id).state == "pending"

        async def get() -> str:
            async with AsyncClient(service.server.url, tls=trusting(certificates)) as client:
                return (await client.get("over-tls")).state

        assert asyncio.run(get()) == "pending"
        with (
            Client(service.server.url, retries=0) as stranger,
            pytest.raises(Exception, match="is not trusted"),
        ):
            stranger.ask("/v1/shards")


def test_connections_that_never_begin_tls_give_way(tmp_path, certificates, monkeypatch):
    """They are counted from the start, and the oldest is closed for a new one."""
    monkeypatch.setattr("chronos.admin.http.server.connections_max", lambda: 10)
    with Inside(tmp_path, **tls_settings(certificates)) as service, ExitStack() as stack:
        service.context = trusting(certificates)
        for _ in range(40):
            stack.enter_context(socket.create_connection(("127.0.0.1", service.port)))
            if service.ask("GET", "/livez").status != 200:
                break
        assert service.ask("GET", "/livez").status == 200
        listener = service.server._listener
        assert listener is not None
        stack.close()
        wait_until(lambda: listener._count == 0)


def test_clients_may_need_a_certificate(tmp_path, certificates):
    """One of the authority, and no other."""
    with Inside(
        tmp_path, **tls_settings(certificates), admin__tls__client_ca=certificates / "ca.pem"
    ) as service:
        service.context = trusting(certificates, certificate="node")
        assert service.ask("GET", "/livez").status == 200
        for certificate in ("", "other"):
            service.context = trusting(certificates, certificate=certificate)
            with pytest.raises(OSError, match=r"(?i)alert|reset|eof|broken|closed"):
                service.ask("GET", "/livez")


def test_nodes_reach_each_other_over_tls(tmp_path, certificates):
    """A request that is forwarded and the fetch of a checkpoint show the certificate of the node
    that sends them."""
    settings = {**tls_settings(certificates), "admin__tls__client_ca": certificates / "ca.pem"}
    with Inside(tmp_path, **settings) as service:
        other = service.node.describe()
        other = structs.replace(other, address=service.server.url)

        async def forward() -> int:
            peers = PeerClient(service.node)
            try:
                return (await peers.ask_member(other, "GET", "/v1/shards", {}, reach=EVERYTHING))[0]
            finally:
                await peers.close()

        assert asyncio.run(forward()) == 200
        # A standalone node has no members, but the request has arrived.
        tls = client_tls(service.node.config)
        with pytest.raises(Retry, match="checkpoints are sent only to other nodes"):
            next(fetch_checkpoint(other.address, 0, node="other", token="x", tls=tls))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"certificate": "none.pem", "key": "node.key"}, "none.pem with .*: No such file"),
        (
            {"certificate": "node.pem", "key": "other.key"},
            "cannot be used as a certificate and its key",
        ),
        (
            {"certificate": "node.pem", "key": "node.key", "client_ca": "node.key"},
            "admin.tls.client_ca: ",
        ),
    ],
)
def test_files_of_tls_that_cannot_be_used_are_named(tmp_path, certificates, settings, text):
    """The service does not start."""
    given = {f"admin__tls__{name}": certificates / file for name, file in settings.items()}
    with pytest.raises(ConfigurationError, match=text), Inside(tmp_path, **given):
        pass
