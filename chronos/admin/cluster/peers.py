"""The client with which a node sends requests to other nodes of the cluster.

With `coordinator.replication` below the number of nodes, a node holds only some of the shards. It
sends a request for any other shard to a node that holds it (`ask`, `act`, `gather`), with the
parameter `shards`. A node answers a request with `shards` from its own replicas or with an error.
Law: a request with `shards` is not sent on again, and an action that a node may have executed is
sent to no other node.

Requests about nodes instead of shards go to all other nodes (`ask_all`) or to one (`ask_member`).
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import aiohttp
import msgspec
import structlog

from chronos.admin.http.access import (
    ASKER_HEADER,
    IDEMPOTENCY_KEY,
    NODE_HEADER,
    TOKEN_HEADER,
    reach_header,
)
from chronos.admin.http.problems import ProblemError, wrong_field
from chronos.admin.http.waiting import asker
from chronos.core import certificates
from chronos.core.cluster.roles import Member
from chronos.core.reach import Reach
from chronos.node import Node
from chronos.workers.cluster.membership import holders
from chronos.workers.replica.state import ReplicaState

log = structlog.get_logger("chronos.http")

CONNECT_S = 2.0
"""How long a node may take to accept a connection; then the next one is asked."""

ANSWER_S = 8.0
"""How long a node may take to answer; an action may take longer."""

NOT_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""Errors of a request that was not sent, because no connection was made."""

NOT_DONE = frozenset(f"urn:chronos:problem:{name}" for name in ("not-held", "stopping", "busy"))
"""Problems of a node that has not begun with an action: it does not hold the shard, or takes no
request now."""

PREFERRED = (ReplicaState.MASTER, ReplicaState.FOLLOWER)
"""States of replicas whose nodes are asked first; then those whose state is changing."""

T = TypeVar("T")


class PeerClient:
    """The client for the other nodes. It belongs to the server's event loop and is closed with the
    server."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._session: aiohttp.ClientSession | None = None

    def holds(self, shard: int) -> bool:
        """True if this node can answer for the shard; a standalone node can for every shard."""
        if self._node.membership is None:
            return True
        driver = self._node.shards[shard]
        return driver.role != ReplicaState.NONE and driver.replica.known

    def requested(self, shards: object) -> list[int]:
        """The shards of the parameter `shards`, all of which this node must hold; without the
        parameter all shards."""
        count = len(self._node.shards)
        if not isinstance(shards, str):
            return list(range(count))
        numbers = sorted({int(number) for number in shards.split(",")})
        if numbers[-1] >= count:
            raise wrong_field("shards", f"there are shards 0 to {count - 1}, not {numbers[-1]}")
        for number in numbers:
            if not self.holds(number):
                raise ProblemError(503, "not-held", f"this node holds nothing of shard {number}")
        return numbers

    def split(self, shards: Iterable[int]) -> tuple[list[int], list[int]]:
        """The shards this node holds, and the other ones."""
        held: list[int] = []
        missing: list[int] = []
        for shard in shards:
            (held if self.holds(shard) else missing).append(shard)
        return held, missing

    def holders(self, shard: int) -> list[Member]:
        """Other nodes that hold the shard: its master first, then the one that has applied most."""
        membership = self._node.membership
        if membership is None:
            return []
        found = holders(
            membership.snapshot(), shard, besides=self._node.config.node.id, order=PREFERRED
        )
        return [member for member, _ in found]

    def groups(self, shards: Iterable[int]) -> list[list[int]]:
        """The shards, grouped by the node that is asked for them first."""
        found: dict[str, list[int]] = {}
        for shard in shards:
            first = next((member.node for member in self.holders(shard)), "")
            found.setdefault(first, []).append(shard)
        return list(found.values())

    async def gather(
        self,
        shards: Sequence[int],
        path: str,
        query: Mapping[str, object],
        kind: type[T],
        *,
        reach: Reach,
    ) -> list[tuple[list[int], T]]:
        """The answers of nodes that hold the shards, each with its shards. ProblemError when no
        node answers for one."""
        groups = self.groups(shards)
        parts = await asyncio.gather(
            *(self.ask(numbers, path, query, reach=reach) for numbers in groups)
        )
        found = []
        for numbers, (status, body) in zip(groups, parts, strict=True):
            if status >= 400:
                raise _forwarded(status, body)
            found.append((numbers, msgspec.json.decode(body, type=kind)))
        return found

    async def ask(
        self, shards: Sequence[int], path: str, query: Mapping[str, object], *, reach: Reach
    ) -> tuple[int, bytes]:
        """Status and body of the answer to a read, of a node that holds the shards. ProblemError
        when no node answers.

        `reach`: of the sender for whom this node asks; the other node applies them. The nodes that
        hold the first of the shards are asked one after the other until one answers for all."""
        parameters = {
            name: value if isinstance(value, list) else str(value)
            for name, value in query.items()
            if value is not msgspec.UNSET
        }
        parameters["shards"] = ",".join(map(str, shards))
        for member in self.holders(shards[0]):
            try:
                status, answer = await self.ask_member(member, "GET", path, parameters, reach=reach)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                _warn(member, error)
                continue
            if status != 503:
                return status, answer
        raise self._no_holder(shards[0])

    async def act(
        self,
        shard: int,
        method: str,
        path: str,
        body: bytes | None,
        *,
        reach: Reach,
        key: str | None,
        answer_s: float,
        again: str,
    ) -> tuple[int, bytes]:
        """Status and body of the answer to an action, of a node that holds the shard. ProblemError
        when no node answers.

        Another holder is asked only if the one before it cannot have executed the action: it could
        not be connected to, or answers with one of NOT_DONE. `key`: names the call, see
        `IDEMPOTENCY_KEY`. `answer_s`: how long a node may take. `again`: the hint of the
        ProblemError if a node may have executed the action."""
        parameters = {"shards": str(shard)}
        for member in self.holders(shard):
            try:
                status, answer = await self.ask_member(
                    member, method, path, parameters, body, reach=reach, key=key, answer_s=answer_s
                )
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                _warn(member, error)
                if isinstance(error, NOT_CONNECTED):
                    continue
                raise ProblemError(503, "no-holder", silent(member, error), hint=again) from None
            if status != 503 or not _is_not_done(answer):
                return status, answer
        raise self._no_holder(shard)

    async def ask_all(
        self, path: str, query: Mapping[str, str], kind: type[T], *, reach: Reach
    ) -> tuple[list[T], list[str]]:
        """The answers of all other nodes, and the names of those that do not answer."""
        membership, own = self._node.membership, self._node.config.node.id
        members = {} if membership is None else membership.snapshot().members
        others = [member for node, member in sorted(members.items()) if node != own]

        async def ask(member: Member) -> T | None:
            try:
                status, body = await self.ask_member(member, "GET", path, query, reach=reach)
                return msgspec.json.decode(body, type=kind) if status == 200 else None
            except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError):
                return None

        answers = await asyncio.gather(*map(ask, others))
        silent = [
            member.node for member, answer in zip(others, answers, strict=True) if answer is None
        ]
        return [answer for answer in answers if answer is not None], silent

    async def ask_member(
        self,
        member: Member,
        method: str,
        path: str,
        query: Mapping[str, str | list[str]],
        body: bytes | None = None,
        *,
        reach: Reach,
        key: str | None = None,
        answer_s: float = ANSWER_S,
    ) -> tuple[int, bytes]:
        """One request to one node; raises the errors of aiohttp, and OSError."""
        if self._session is None:
            # Another node admits what this one has checked, by the token that only the coordinator
            # has besides.
            identity = {NODE_HEADER: self._node.config.node.id, TOKEN_HEADER: self._node.token}
            self._session = aiohttp.ClientSession(headers=identity)
        url = member.address.rstrip("/") + path
        headers = reach_header(reach) | (
            {} if body is None else {"Content-Type": "application/json"}
        )
        if key is not None:
            headers[IDEMPOTENCY_KEY] = key
        if (token := asker.get()) is not None:
            headers[ASKER_HEADER] = token
        tls = self._node.tls.client()
        timeout = aiohttp.ClientTimeout(total=answer_s, sock_connect=CONNECT_S)
        async with self._session.request(
            method, url, params=query, data=body, headers=headers, ssl=tls, timeout=timeout
        ) as answer:
            return answer.status, await answer.read()

    def _no_holder(self, shard: int) -> ProblemError:
        membership = self._node.membership
        roles = None if membership is None else membership.snapshot().roles
        assigned = None if roles is None else roles.shards.get(shard)
        nodes = () if assigned is None else assigned.replicas
        return ProblemError(
            503,
            "no-holder",
            (
                f"no node with a replica of shard {shard} answers (its replicas: "
                f"{', '.join(nodes) or 'not known'})"
            ),
            hint="try again; if it persists, run `chronos status`",
        )

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


def silent(member: Member, error: Exception) -> str:
    """Why there is no answer of a node, for people."""
    if isinstance(error, TimeoutError):
        return f"node {member.node} did not answer in time"
    return f"node {member.node} does not answer: {certificates.reason(error)}"


def _warn(member: Member, error: Exception) -> None:
    log.warning("another node does not answer", node=member.node, why=certificates.reason(error))


def _is_not_done(body: bytes) -> bool:
    """Return whether the problem is one of NOT_DONE."""
    try:
        kind = msgspec.json.decode(body, type=dict[str, Any])["type"]
    except (msgspec.MsgspecError, KeyError):
        return False
    return kind in NOT_DONE


def _forwarded(status: int, body: bytes) -> ProblemError:
    """The problem of another node, as one of this node."""
    try:
        detail = str(msgspec.json.decode(body, type=dict[str, Any])["detail"])
    except (msgspec.MsgspecError, KeyError):
        detail = f"another node answered {status}"
    return ProblemError(503, "no-holder", detail)
