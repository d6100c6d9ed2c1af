"""The nodes that a client knows: which of them gets a request, when a request is tried again, and
the requests to the registry.

With one address, every request goes there: to a node, or to a load balancer. With a list, each
address is a registry of the cluster. The client then requests the routes of the shards from one of
them, or from a node of the last routes, and uses the routes for ROUTES_S. A request that has an
`id` goes to the master of its shard, and to the followers if the master does not answer; a write
goes to the followers first if the master takes no writes. A request about a job goes to the node
that answered its start, and to no other one. Other requests, also those about dead letters, go to
`Servers.home`. A node that fails is avoided for AVOID_S, and the routes are
requested anew. If no registry answers, the last routes stay in use. This module opens no
sockets."""

import json
import random
import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from chronos.client.connection import addresses, is_address
from chronos.client.models import ClientError
from chronos.client.requests import HttpRequest, ask, id_bytes
from chronos.core.keys import parse_generated_id, partition_of

BACK_OFF_S = 0.1
"""Wait before the first repetition; it doubles, and a random half of it is left out."""

ROUTES_S = 30.0
"""How long routes are used before they are asked for again (RocketMQ's interval)."""

REFRESH_PAUSE_S = 1.0
"""Least time between two requests for routes, whatever is missing."""

REGISTRY_S = 3.0
"""How long a registry may take to answer; then the next one is asked (RocketMQ's time-out)."""

AVOID_S = 30.0
"""How long a node that failed is asked last."""

ATTEMPT_S = 10.0
"""How long a node may take to answer a read, beyond the wait that the read has, while another node
could be asked."""

JOBS_MAX = 1_000
"""Jobs whose node a client remembers: ten times what a node keeps."""

CONNECT_S = 3.0
"""How long a connection to a node may take to open, while another node could be asked: nothing was
sent by then."""


def check_open(closed: bool) -> None:
    """RuntimeError if the client of the request was closed."""
    if closed:
        raise RuntimeError("this client is closed; make another one")


class Attempts:
    """The one deadline of a call, and when it may be tried again."""

    def __init__(self, request: HttpRequest, timeout_s: float, retries: int) -> None:
        self._ends_s = time.monotonic() + timeout_s + request.wait_s
        self._left = retries if request.repeatable else 0
        self._wait_s = BACK_OFF_S
        self._problem: ClientError | None = None

    @property
    def left_s(self) -> float:
        """Time until the deadline; never zero, so that it can be given to a socket."""
        return max(0.05, self._ends_s - time.monotonic())

    @property
    def is_in_time(self) -> bool:
        """True before the deadline."""
        return time.monotonic() < self._ends_s

    def next_in_s(self, failure: ClientError, *, answered: bool) -> float:
        """How long to wait before the next attempt; raises when there is none.

        What the service answered is raised rather than a later attempt's silence: it has the
        reason."""
        if answered:
            self._problem = failure
        if self._left <= 0 or self._wait_s >= self._ends_s - time.monotonic():
            raise self._problem or failure
        self._left -= 1
        wait_s, self._wait_s = self._wait_s, 2 * self._wait_s
        return wait_s * random.uniform(0.5, 1.0)


def routes(
    topic: str | None = None, shard: int | None = None, cluster: str | None = None
) -> HttpRequest:
    """The routes of a topic, by default of the delay topic of the node asked."""
    return ask("/v1/registry/routes", _given(topic=topic, shard=shard, cluster=cluster))


def nodes(cluster: str | None = None) -> HttpRequest:
    """The registered nodes, by default of all clusters."""
    return ask("/v1/registry/nodes", _given(cluster=cluster))


def topics(cluster: str | None = None) -> HttpRequest:
    """The registered topics, by default of all clusters."""
    return ask("/v1/registry/topics", _given(cluster=cluster))


def clusters() -> HttpRequest:
    """The clusters with registered nodes."""
    return ask("/v1/registry/clusters", {})


def remove_topic(topic: str, cluster: str | None = None) -> HttpRequest:
    """Remove a topic from the registry asked."""
    path, query = f"/v1/registry/topics/{quote(topic, safe='')}", _given(cluster=cluster)
    return HttpRequest(
        method="DELETE",
        path=path + (f"?{urlencode(query)}" if query else ""),
        decode=json.loads,
        repeatable=False,
    )


def config(namespace: str | None = None, key: str | None = None) -> HttpRequest:
    """The namespaces, the values of one, or one value."""
    return ask(_config_path(*[name for name in (namespace, key) if name is not None]), {})


def set_config(namespace: str, key: str, value: str) -> HttpRequest:
    """Set one value in the registry asked."""
    body = msgspec.json.encode({"value": value})
    return HttpRequest(
        method="PUT", path=_config_path(namespace, key), body=body, decode=json.loads
    )


def delete_config(namespace: str, key: str) -> HttpRequest:
    """Delete one value from the registry asked."""
    return HttpRequest(
        method="DELETE", path=_config_path(namespace, key), decode=json.loads, repeatable=False
    )


def _given(**query: Any) -> dict[str, Any]:
    return {name: value for name, value in query.items() if value is not None}


def _config_path(*names: str) -> str:
    return "/".join(["/v1/registry/config", *(quote(name, safe="") for name in names)])


class _Shard(NamedTuple):
    """The nodes of a shard."""

    masters: tuple[str, ...]
    """Its master, if that is known and can be used."""
    followers: tuple[str, ...]
    is_writable: bool
    """False: writes go to other nodes than the master."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """All, the master first."""
        return self.masters + self.followers


class Servers:
    """The addresses that were given, and those in the routes."""

    def __init__(self, server: str | Sequence[str] | None) -> None:
        """Raises Refused if an address is not one."""
        self.given, self.is_routed = addresses(server)
        self.home = self.given[0]
        """Where everything goes that concerns no shard and no job."""
        self._jobs: dict[str, str] = {}
        """Job -> the node that answered its start, or another request about it; the last
        JOBS_MAX."""
        self._partitions = 0
        self._shards: dict[int, _Shard] = {}
        self._known: tuple[str, ...] = ()
        """The nodes of the routes."""
        self._avoided: dict[str, float] = {}
        """Nodes that failed, and until when they are asked last."""
        self._expires_s = self._asked_s = float("-inf")

    # --- routes

    def needs_routes(self, request: HttpRequest, now_s: float) -> bool:
        """Return whether routes should be asked for before this request is sent."""
        if not self.is_routed or now_s - self._asked_s < REFRESH_PAUSE_S:
            return False
        shard = self._shard_of(request)
        return now_s >= self._expires_s or (shard is not None and shard not in self._shards)

    def registries(self, now_s: float) -> list[str]:
        """The registries to ask for routes, one after the other."""
        self._asked_s = now_s
        found = dict.fromkeys((self.home, *self._known, *self.given))
        return sorted(found, key=lambda address: self._is_avoided(address, now_s))

    @staticmethod
    def routes_request() -> HttpRequest:
        """The request for the routes, whose answer `learn` takes."""
        return routes()

    def learn(self, status: int, body: bytes, now_s: float) -> bool:
        """Take the answer of a registry; False: it has no routes."""
        if status != 200:
            return False
        try:
            found = json.loads(body)
            shards = {route["shard"]: self._read(route) for route in found["routes"]}
            partitions = int(found["partitions"])
        except (ValueError, KeyError, TypeError):
            return False
        self._partitions, self._shards = partitions, shards
        self._known = tuple(
            dict.fromkeys(node for shard in shards.values() for node in shard.nodes)
        )
        self._expires_s = now_s + ROUTES_S
        return True

    def _read(self, route: dict[str, Any]) -> _Shard:
        # A token is not sent to a node without TLS that was learned from one with it.
        scheme = (
            "https://" if all(address.startswith("https://") for address in self.given) else "http"
        )

        def usable(nodes: list[dict[str, Any]]) -> tuple[str, ...]:
            found = [str(node["address"]) for node in nodes]
            return tuple(each for each in found if each.startswith(scheme) and is_address(each))

        masters = [] if route["master"] is None else [route["master"]]
        return _Shard(
            usable(masters),
            usable(route["followers"]),
            bool(masters) and "write" in route["permissions"],
        )

    def _shard_of(self, request: HttpRequest) -> int | None:
        """The shard of the request's id; None without one, or if no service takes the id."""
        if request.id is None or self._partitions == 0:
            return None
        try:
            key = id_bytes(request.id)
        except ValueError:
            return None
        generated = parse_generated_id(key, self._partitions)
        return partition_of(key, self._partitions) if generated is None else generated[0]

    # --- the choice

    def choose(self, request: HttpRequest, tried: AbstractSet[str], now_s: float) -> str:
        """The node for this request: one not tried yet if there is any, and one that failed lately
        only if there is no other."""
        candidates = list(dict.fromkeys(self._candidates(request)))
        left = [address for address in candidates if address not in tried] or candidates
        return min(left, key=lambda address: self._is_avoided(address, now_s))

    def _candidates(self, request: HttpRequest) -> Iterator[str]:
        if (only := self._only(request)) is not None:
            yield only
            return
        number = self._shard_of(request)
        shard = None if number is None else self._shards.get(number)
        if shard is not None:
            yield from shard.nodes if _is_read(request) or shard.is_writable else shard.followers
        yield self.home
        yield from self._known
        yield from self.given

    def _only(self, request: HttpRequest) -> str | None:
        """The one node that can answer; None: any may."""
        return None if request.job is None else self._jobs.get(request.job)

    def has_others(self, request: HttpRequest, tried: AbstractSet[str]) -> bool:
        """Return whether there is a node that was not tried."""
        return any(address not in tried for address in self._candidates(request))

    def timeout_s(self, request: HttpRequest, left_s: float) -> float:
        """How long the next attempt may take.

        A write may take all the time that is left: a node that only stood still could execute it
        after another node has executed the same one and a later one, such as a schedule after its
        cancel."""
        return (
            min(left_s, ATTEMPT_S + request.wait_s)
            if self.is_routed and _is_read(request) and self._only(request) is None
            else left_s
        )

    def connect_s(self, timeout_s: float) -> float:
        """How long the connection of an attempt may take to open."""
        return min(timeout_s, CONNECT_S) if self.is_routed else timeout_s

    def failed(self, address: str, now_s: float) -> None:
        """A node did not answer: avoid it, and ask for routes soon."""
        if not self.is_routed:
            return
        self._avoided[address] = now_s + AVOID_S
        self._expires_s = now_s
        if address == self.home:
            others = dict.fromkeys((*self._known, *self.given))
            self.home = min(
                others, key=lambda other: (self._is_avoided(other, now_s), other == address)
            )

    def refused(self, now_s: float) -> None:
        """A node answered that another one must be asked, or that it cannot now: ask for routes
        soon."""
        self._expires_s = now_s

    def answered(self, address: str) -> None:
        """A node answered."""
        self._avoided.pop(address, None)

    def keep_job(self, address: str, request: HttpRequest, found: Any) -> None:
        """Keep the node of a job, if the request that it answered with this result concerns one."""
        job = _id_of(found) if request.starts_job else request.job
        if job is None:
            return
        self._jobs.pop(job, None)
        self._jobs[job] = address
        if len(self._jobs) > JOBS_MAX:
            del self._jobs[next(iter(self._jobs))]

    def _is_avoided(self, address: str, now_s: float) -> bool:
        return self._avoided.get(address, now_s) > now_s


def _id_of(job: Any) -> str | None:
    """The id of a job, decoded or as JSON."""
    found = job.get("id") if isinstance(job, dict) else getattr(job, "id", None)
    return found if isinstance(found, str) else None


def _is_read(request: HttpRequest) -> bool:
    return request.method == "GET"
