"""The choice of a node by the client: routes, their age, failures."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from chronos.client import Refused, requests
from chronos.client.requests import message
from chronos.client.servers import (
    ATTEMPT_S,
    AVOID_S,
    CONNECT_S,
    JOBS_MAX,
    REFRESH_PAUSE_S,
    ROUTES_S,
    Servers,
)
from chronos.core.keys import partition_of

GIVEN = ["http://r1", "http://r2"]
NOW_S = 1_000.0
NONE: frozenset[str] = frozenset()
LIST = requests.jobs()


def address(node: str | None) -> dict[str, Any]:
    return {"node": node, "address": f"http://{node}"}


def routes(*shards: tuple[str | None, ...], writable: bool = True) -> bytes:
    """The answer of a registry: of each shard the master and then the followers."""
    return json.dumps(
        {
            "partitions": len(shards),
            "routes": [
                {
                    "shard": number,
                    "permissions": ["read", "write"] if writable else ["read"],
                    "master": None if names[0] is None else address(names[0]),
                    "followers": [address(name) for name in names[1:]],
                }
                for number, names in enumerate(shards)
            ],
        }
    ).encode()


def routed(*shards: tuple[str | None, ...], **fields: Any) -> Servers:
    """A client's servers that have learned these routes at NOW_S."""
    found = Servers(GIVEN)
    found.registries(NOW_S)
    assert found.learn(200, routes(*shards, **fields), NOW_S)
    return found


def id_of(shard: int, shards: int) -> str:
    """An id that belongs to a shard."""
    return next(
        name for name in map(str, range(10_000)) if partition_of(name.encode(), shards) == shard
    )


@pytest.mark.parametrize("shard", [0, 1])
def test_a_request_about_an_id_goes_to_the_master_of_its_shard(shard: int) -> None:
    """Ids of users by their hash, generated ids by the shard that they name, ids that are no text
    in base64."""
    found = routed(("a", "b"), ("b", "a"))
    name = id_of(shard, 2)
    for request in (
        requests.get(name),
        requests.cancel(name.encode()),
        requests.fire(name),
        requests.reschedule(name, None, "1s"),
        requests.schedule(message("t", "v", id=name, delay="1s")),
        requests.get(f"{shard}-5-7"),
    ):
        assert found.choose(request, NONE, NOW_S) == f"http://{'ab'[shard]}"
    binary = next(
        bytes([0xFF, n]) for n in range(256) if partition_of(bytes([0xFF, n]), 2) == shard
    )
    assert found.choose(requests.get(binary), NONE, NOW_S) == f"http://{'ab'[shard]}"


def test_everything_else_stays_with_one_node_until_it_fails() -> None:
    """Jobs are known to the node that runs them only."""
    found = routed(("a", "b"))
    assert found.choose(LIST, NONE, NOW_S) == found.home == "http://r1"
    found.failed("http://r1", NOW_S)
    assert found.choose(LIST, NONE, NOW_S) == found.home == "http://a"
    found.failed("http://b", NOW_S)
    assert found.home == "http://a"


def test_a_job_stays_with_the_node_that_answered_its_start() -> None:
    """Also when that node fails. Beyond JOBS_MAX jobs the oldest are forgotten."""
    found, start = routed(("a", "b")), requests.start_job("count", {})
    found.keep_job("http://r2", start, {"id": "j"})
    for request in (requests.job("j"), requests.stop_job("j").as_json()):
        assert found.choose(request, NONE, NOW_S) == "http://r2"
        assert not found.has_others(request, {"http://r2"})
        found.failed("http://r2", NOW_S)
        assert found.choose(request, {"http://r2"}, NOW_S) == "http://r2"
        assert found.timeout_s(request, 60.0) == 60.0
    assert found.choose(requests.job("k"), NONE, NOW_S) == found.home == "http://r1"
    found.keep_job("http://a", requests.job("k"), {"id": "k"})
    assert found.choose(requests.job("k"), NONE, NOW_S) == "http://a"
    for number in range(JOBS_MAX):
        found.keep_job("http://b", start, {"id": str(number)})
    assert found.choose(requests.job("j"), NONE, NOW_S) == "http://r1"
    assert found.choose(requests.job("0"), NONE, NOW_S) == "http://b"


def test_a_write_avoids_a_master_without_the_permission() -> None:
    found = routed(("a", "b"), writable=False)
    assert found.choose(requests.cancel("x"), NONE, NOW_S) == "http://b"
    assert found.choose(requests.get("x"), NONE, NOW_S) == "http://a"
    assert routed((None, "b")).choose(requests.get("x"), NONE, NOW_S) == "http://b"


def test_a_write_skips_no_follower_when_the_master_is_not_known_or_cannot_be_used() -> None:
    """Also a master that was learned without TLS by a client with it."""
    assert routed((None, "b", "c")).choose(requests.cancel("x"), NONE, NOW_S) == "http://b"
    found = Servers(["https://r1", "https://r2"])
    body = routes(("a", "b", "c"), writable=False).replace(b"http://b", b"https://b")
    assert found.learn(200, body, NOW_S)
    assert found.choose(requests.cancel("x"), NONE, NOW_S) == "https://b"


def test_a_write_may_take_all_the_time_and_a_read_is_tried_elsewhere_before() -> None:
    """A node that stood still may execute a write later, so no other node executes it meanwhile."""
    writes = (
        requests.cancel("x"),
        requests.schedule(message("t", "v", id="x", delay="1s")),
        requests.reschedule("x", None, "1s"),
    )
    reads = (requests.get("x"), LIST)
    found = routed(("a", "b"))
    assert {found.timeout_s(request, 60.0) for request in writes} == {60.0}
    assert {found.timeout_s(request, 60.0) for request in reads} == {ATTEMPT_S}
    assert found.timeout_s(LIST, 1.0) == 1.0
    assert (found.connect_s(60.0), found.connect_s(1.0)) == (CONNECT_S, 1.0)
    single = Servers("http://r1")
    assert {single.timeout_s(request, 60.0) for request in (*writes, *reads)} == {60.0}
    assert single.connect_s(60.0) == 60.0


def test_an_id_that_no_service_takes_belongs_to_no_shard() -> None:
    """Any node is asked, and refuses it; the routes are not asked for because of it."""
    found = routed(("a", "b"))
    request = msgspec.structs.replace(requests.get("x"), id="base64:a")
    assert found.choose(request, NONE, NOW_S) == "http://r1"
    assert not found.needs_routes(request, NOW_S + ROUTES_S / 2)


def test_a_node_that_failed_is_asked_last_for_a_time() -> None:
    """And at once again when it has answered, or when there is no other one."""
    found, request = routed(("a", "b")), requests.get("x")
    found.failed("http://a", NOW_S)
    assert found.choose(request, NONE, NOW_S) == "http://b"
    assert found.choose(request, {"http://b", "http://r1", "http://r2"}, NOW_S) == "http://a"
    assert found.choose(request, NONE, NOW_S + AVOID_S) == "http://a"
    found.failed("http://a", NOW_S)
    found.answered("http://a")
    assert found.choose(request, NONE, NOW_S) == "http://a"
    everything = {"http://a", "http://b", *GIVEN}
    assert not found.has_others(request, everything)
    assert found.choose(request, everything, NOW_S) == "http://a"


def test_routes_are_asked_for_again_when_they_are_old_or_a_shard_is_missing() -> None:
    """At most once a second."""
    found = Servers(GIVEN)
    assert found.needs_routes(LIST, NOW_S)
    assert found.registries(NOW_S) == GIVEN
    assert found.learn(200, routes(("a", "b"), ("b", "a")), NOW_S)
    assert not found.needs_routes(LIST, NOW_S + ROUTES_S - 1)
    assert found.needs_routes(LIST, NOW_S + ROUTES_S)
    found.learn(
        200,
        json.dumps({"partitions": 2, "routes": json.loads(routes(("a",)))["routes"]}).encode(),
        NOW_S,
    )
    missing = requests.get(id_of(1, 2))
    assert not found.needs_routes(missing, NOW_S + REFRESH_PAUSE_S / 2)
    assert found.needs_routes(missing, NOW_S + REFRESH_PAUSE_S)
    assert not found.needs_routes(requests.get(id_of(0, 2)), NOW_S + REFRESH_PAUSE_S)
    for after in (lambda: found.failed("http://a", NOW_S), lambda: found.refused(NOW_S)):
        after()
        assert found.needs_routes(LIST, NOW_S + REFRESH_PAUSE_S)


def test_the_last_routes_are_used_when_no_registry_answers() -> None:
    """Each node that is known is a registry, the ones that failed last."""
    found = routed(("a", "b"))
    found.failed("http://r1", NOW_S)
    assert found.registries(NOW_S + 40) == ["http://a", "http://b", "http://r1", "http://r2"]
    found.failed("http://a", NOW_S + 40)
    assert found.registries(NOW_S + 40)[-1] == "http://a"
    for status, body in ((404, b"{}"), (200, b"no json"), (200, b"{}"), (200, b"[]")):
        assert not found.learn(status, body, NOW_S + 40)
    assert found.choose(requests.get("x"), NONE, NOW_S + 40) == "http://b"


def test_one_address_is_used_for_everything() -> None:
    """It may be a load balancer; a list or a text with commas makes its members registries."""
    single = Servers("http://r1")
    assert not single.needs_routes(requests.get("x"), NOW_S)
    single.failed("http://r1", NOW_S)
    assert single.home == single.choose(requests.get("x"), {"http://r1"}, NOW_S) == "http://r1"
    for given in (["r1"], "r1,r2", ("http://r1", "r2:7700")):
        assert Servers(given).needs_routes(LIST, NOW_S)
    assert Servers(" r1 , http://r2:1").given == ("http://r1", "http://r2:1")
    with pytest.raises(Refused, match="is not the address of a service"):
        Servers("r1,,r2")


def test_a_client_with_tls_learns_no_address_without_it() -> None:
    """Its token would be sent in the clear."""
    found = Servers(["https://r1", "https://r2"])
    assert found.learn(200, routes(("a", "b")).replace(b"http://b", b"https://b"), NOW_S)
    assert found.choose(requests.get("x"), NONE, NOW_S) == "https://b"
