"""The registry of a node over HTTP: its own registration, those of other nodes, routes and
configuration."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chronos.admin.cluster import registry as own_registry
from chronos.admin.cluster.registry import (
    AHEAD_MS,
    monotonic_ms,
    read_registration,
    registration_body,
)
from chronos.admin.http.schemas import RegisteredShard, RegistrationBody
from chronos.cli.service.registry import ranges
from chronos.core.cluster.registry.values import Answer, Endpoint
from chronos.errors import Stop
from tests.harness.command import Done, run
from tests.harness.inside import Inside
from tests.harness.proxy import Network
from tests.harness.serving import serving
from tests.harness.tokens import TOKENS, limited_tokens_file
from tests.harness.waiting import wait_until

TOKEN = "everything"
"""A token that may do everything."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """A node that looks for expired nodes often."""
    folder = tmp_path_factory.mktemp("registry")
    settings = {
        "admin__tokens": limited_tokens_file(folder, TOKENS),
        "shards": 2,
        "node__id": "own",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_registry, "REGISTER_EVERY_MS", 6_000)
        with Inside(folder, **settings) as running:
            wait_until(
                lambda: running.ask("GET", "/v1/registry/routes", token="reader").status == 200
            )
            yield running


def ask(service: Inside, method: str, path: str, body: object = None, status: int = 200) -> Any:
    """The answer, which must have this status."""
    answer = service.ask(method, f"/v1/registry{path}", body, token=TOKEN)
    assert answer.status == status, answer.body
    return answer.json()


def register(service: Inside, name: str, body: dict[str, Any]) -> Answer:
    """Register another node, as its own request does, which no test can send: it needs the token
    that a member gave the coordinator."""
    given = read_registration(name, msgspec.convert(body, RegistrationBody))
    return service.registry.register(given, monotonic_ms())


def unregister(service: Inside, name: str, cluster: str = "far", version: int = 2**63 - 1) -> str:
    """Remove a node, as its own request does."""
    return service.registry.unregister(cluster, name, version)


def registration(
    *shards: tuple[int, str, int], state_version: int = 1, **fields: Any
) -> dict[str, Any]:
    """A registration with a master for cluster `far`."""
    return {
        "cluster": "far",
        "instance": "i",
        "address": "http://far:1",
        "version": "1",
        "state_version": state_version,
        "shards": [{"shard": shard, "role": role, "epoch": epoch} for shard, role, epoch in shards],
        "topics": [{"topic": "far.delay", "partitions": 8, "permissions": ["read", "write"]}],
    } | fields


def nodes(service: Inside, cluster: str = "far") -> list[str]:
    """The names of the registered nodes of a cluster."""
    return [each["node"] for each in ask(service, "GET", f"/nodes?cluster={cluster}")["nodes"]]


def test_a_node_is_registered_with_its_own_registry(service: Inside) -> None:
    """A standalone node is master of every shard, under the address at which it listens."""

    def is_master() -> bool:
        found = ask(service, "GET", "/routes")["routes"]
        return len(found) == 2 and all(each["master"] is not None for each in found)

    wait_until(is_master)
    found = ask(service, "GET", "/routes")
    own = {"node": "own", "address": f"http://127.0.0.1:{service.port}"}
    assert (found["cluster"], found["topic"], found["partitions"]) == (
        "chronos",
        "chronos.delay",
        2,
    )
    assert found["routes"] == [
        {"shard": shard, "permissions": ["read", "write"], "master": own, "followers": []}
        for shard in (0, 1)
    ]
    assert ask(service, "GET", "/routes?topic=chronos.progress&shard=1")["routes"][0][
        "permissions"
    ] == ["read"]
    (node,) = ask(service, "GET", "/nodes?cluster=chronos")["nodes"]
    assert (node["node"], node["address"], node["writable"]) == ("own", own["address"], True)
    assert {each["topic"] for each in ask(service, "GET", "/topics?cluster=chronos")["topics"]} == {
        "chronos.delay",
        "chronos.progress",
    }


def test_a_registered_node_is_routed_to_until_it_leaves(service: Inside) -> None:
    """Versions decide; a follower is told its master; the last node takes everything with it."""
    first = register(service, "a", registration((0, "master", 5), state_version=3))
    assert (first.accepted, first.state_version, first.masters) == (True, 3, {})
    second = register(service, "b", registration((0, "follower", 5), address="http://far:2"))
    a, b = ({"node": name, "address": f"http://far:{port}"} for name, port in (("a", 1), ("b", 2)))
    assert second.masters == {0: Endpoint(**a)}
    older = register(service, "a", registration((1, "master", 9), state_version=2))
    assert (older.accepted, older.state_version, older.node) == (False, 3, "a")
    found = ask(service, "GET", "/routes?cluster=far&topic=far.delay")
    assert (
        found["partitions"],
        [(each["shard"], each["master"], each["followers"]) for each in found["routes"]],
    ) == (
        8,
        [(0, a, [b])],
    )
    ask(service, "GET", "/routes?cluster=far&topic=far.delay&shard=1", status=404)
    assert {"cluster": "far", "nodes": ["a", "b"], "shards": [0]} in ask(
        service, "GET", "/clusters"
    )["clusters"]
    assert unregister(service, "a", version=2) == "ignored"
    assert unregister(service, "a", version=3) == "removed"
    assert unregister(service, "a") == "unknown"
    assert ask(service, "GET", "/routes?cluster=far&topic=far.delay")["routes"][0]["master"] is None
    unregister(service, "b")
    ask(service, "GET", "/routes?cluster=far&topic=far.delay", status=404)


def test_a_registration_has_bounds(service: Inside) -> None:
    """A state version far ahead of the clock would keep the node itself out until then."""
    now_ms = time.time_ns() // 1_000_000
    for ahead_ms in (2 * AHEAD_MS, 2**62):
        ask(service, "PUT", "/nodes/a", registration(state_version=now_ms + ahead_ms), status=422)
    ask(service, "PUT", f"/nodes/{'a' * 251}", registration(), status=422)
    ask(service, "DELETE", f"/nodes/{'a' * 251}", status=422)
    assert nodes(service) == []


def test_no_token_registers_or_removes_a_node(service: Inside) -> None:
    """Clients would be sent elsewhere, or the node would disappear."""
    body = registration((0, "master", 9), cluster="chronos")
    for name in ("own", "stranger"):
        for method, content in (("PUT", body), ("DELETE", None)):
            answer = service.ask(method, f"/v1/registry/nodes/{name}", content, token=TOKEN)
            assert (answer.status, answer.problem) == (403, "not-a-member")
    (node,) = ask(service, "GET", "/nodes?cluster=chronos")["nodes"]
    assert (node["node"], node["address"]) == ("own", f"http://127.0.0.1:{service.port}")


def test_a_node_that_registers_no_more_expires(service: Inside) -> None:
    """The scan removes it; the node itself renews its own registration."""
    register(service, "brief", registration((0, "master", 1), expire_after=50))
    wait_until(lambda: nodes(service) == [])
    assert nodes(service, "chronos") == ["own"]


def test_values_are_kept_across_a_restart(tmp_path: Path) -> None:
    """By a standalone node in its data directory; `tests/integration` restarts a cluster."""
    with Inside(tmp_path) as running:
        ask(running, "PUT", "/config/shop/currency", {"value": "EUR"})
        ask(running, "PUT", "/config/shop/other", {"value": "v"})
        ask(running, "DELETE", "/config/shop/other")
    with Inside(tmp_path) as running:
        assert ask(running, "GET", "/config/shop")["values"] == {"currency": "EUR"}
    (tmp_path / "data" / "registry-values.json").write_text("{")
    with pytest.raises(Stop, match="no configuration of the registry"), Inside(tmp_path):
        pass


def test_values_are_set_and_deleted_by_namespace_and_a_topic_is_removed(service: Inside) -> None:
    """Names and values are any text up to their bounds."""
    entry = {"registry": "own", "namespace": "n", "key": "a b", "value": "v"}
    assert ask(service, "PUT", "/config/n/a%20b", {"value": "v"}) == entry
    assert ask(service, "GET", "/config")["namespaces"] == ["n"]
    assert ask(service, "GET", "/config/n")["values"] == {"a b": "v"}
    assert ask(service, "GET", "/config/n/a%20b")["value"] == "v"
    assert ask(service, "DELETE", "/config/n/a%20b")["value"] == "v"
    ask(service, "GET", "/config/n/a%20b", status=404)
    ask(service, "DELETE", "/config/n/a%20b", status=404)
    ask(service, "PUT", f"/config/n/{'k' * 251}", {"value": "v"}, status=422)
    ask(service, "PUT", "/config/n/k", {"value": "v" * 16_385}, status=422)
    for number in range(3):
        ask(service, "PUT", f"/config/n/{number}", {"value": "v" * 16_384})
    ask(service, "PUT", "/config/n/3", {"value": "v" * 16_384}, status=409)
    for number in range(3):
        ask(service, "DELETE", f"/config/n/{number}")
    register(service, "a", registration((0, "master", 1)))
    assert ask(service, "DELETE", "/topics/far.delay?cluster=far")["result"] == "done"
    ask(service, "DELETE", "/topics/far.delay?cluster=far", status=404)
    unregister(service, "a")


def test_a_registration_is_the_same_after_its_request() -> None:
    """Between JSON and the values of the core."""
    body = RegistrationBody(
        cluster="c",
        instance="i",
        address="http://x",
        version="1",
        state_version=7,
        writable=False,
        expire_after=5,
        shards=[
            RegisteredShard(shard=1, role="master", epoch=3),
            RegisteredShard(shard=2, role="follower", epoch=1),
        ],
        topics=[],
    )
    assert registration_body(read_registration("n", body)) == body


def test_without_tokens_nobody_registers_a_node_of_a_standalone_service(tmp_path: Path) -> None:
    """Whoever can reach a service without tokens could otherwise lead its clients elsewhere."""
    with Inside(tmp_path) as running:
        for method, body in (("PUT", registration()), ("DELETE", None)):
            headers = {"Chronos-Node": "a", "Chronos-Token": "guessed"}
            answer = running.ask(method, "/v1/registry/nodes/a", body, headers)
            assert (answer.status, answer.problem) == (403, "not-a-member")


@pytest.mark.process
def test_the_command_shows_the_registry(service: Inside, tmp_path: Path) -> None:
    """Tables, JSON, and the exit code 4 for what is not there."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    url = f"http://127.0.0.1:{service.port}"

    def command(*words: str) -> Done:
        return run("registry", *words, "--token-file", str(token), server=url)

    wait_until(lambda: ask(service, "GET", "/nodes?cluster=chronos")["nodes"][0]["shards"] != [])
    assert re.search(rf"own +chronos +{url} +0-1 +- +yes +", command("nodes").out)
    assert re.search(rf"1 +own +{url} +- +read, write", command("routes").out)
    assert command("routes", "--shard", "1", "-o", "json").json["routes"][0]["shard"] == 1
    missing = command("routes", "--topic", "none")
    assert (
        missing.code,
        "no node of cluster chronos is registered for topic none" in missing.err,
    ) == (4, True)
    assert re.search(r"chronos.progress +chronos +2 +read", command("topics").out)
    assert re.search(r"chronos +own +0-1", command("clusters").out)
    assert re.search(r"own +done", command("config", "set", "shop", "currency", "EUR").out)
    assert (command("config", "get").out, command("config", "get", "shop", "currency").out) == (
        "shop\n",
        "EUR\n",
    )
    assert re.search(r"currency +EUR", command("config", "get", "shop").out)
    assert (
        command("config", "delete", "shop", "currency", "-o", "json").json["registries"][0][
            "result"
        ]
        == "done"
    )
    assert command("config", "delete", "shop", "currency").code == 4
    register(service, "a", registration((0, "master", 1)))
    assert command("remove-topic", "far.delay", "--cluster", "far").code == 0
    assert command("remove-topic", "far.delay", "--cluster", "far").code == 4
    unregister(service, "a")


@pytest.mark.process
def test_no_token_goes_in_clear_to_an_address_of_the_registry_that_the_user_did_not_give(
    service: Inside, tmp_path: Path
) -> None:
    """The address may be that of any machine; the error says why the node refused."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            seen.append(self.headers.get("Authorization", ""))
            body = b'{"detail": "a token is needed"}'
            self.send_response(200 if seen[-1] else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    token = tmp_path / "token"
    token.write_text(TOKEN)
    own = f"http://127.0.0.1:{service.port}"
    words = ("registry", "config", "set", "shop", "currency", "EUR", "--token-file", str(token))
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        body = registration((7, "follower", 1), cluster="chronos", address=url, topics=None)
        register(service, "stranger", body)
        try:
            refused, done = run(*words, server=own), run(*words, server=f"{own},{url}")
        finally:
            unregister(service, "stranger", "chronos")
            ask(service, "DELETE", "/config/shop/currency")
    assert seen == ["", f"Bearer {TOKEN}"]
    assert refused.code != 0
    assert (
        f"no token was sent to {url}, which has no TLS: name it with --server, or use TLS"
        in refused.out
    )
    assert done.code == 0


@pytest.mark.process
def test_a_value_that_another_node_took_is_named(service: Inside, tmp_path: Path) -> None:
    """Behind a load balancer one registry may be changed twice, and another one not at all: exit
    code 3."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    own = f"http://127.0.0.1:{service.port}"
    with Network() as network:
        balancer = f"http://{network.link(service.port).address}"
        body = registration((7, "follower", 1), cluster="chronos", address=balancer, topics=None)
        register(service, "other", body)
        server = f"{own},{balancer}"
        try:
            words = (
                "registry",
                "config",
                "set",
                "shop",
                "currency",
                "EUR",
                "--token-file",
                str(token),
            )
            done = run(*words, "-o", "json", server=server)
        finally:
            unregister(service, "other", "chronos")
            ask(service, "DELETE", "/config/shop/currency")
    assert done.code == 3
    assert [(each["node"], each["result"]) for each in done.json["registries"]] == [
        ("other", "own answered instead of it"),
        ("own", "done"),
    ]
    assert (
        f"{balancer} does not lead to node other, whose registry was not changed: own answered"
        in done.err
    )


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], "-"), ([3], "3"), ([0, 1], "0-1"), ([0, 1, 2, 5, 7, 8], "0-2, 5, 7-8")],
)
def test_shards_in_a_row_are_shown_as_a_range(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text
