"""The other nodes: who is asked for shards that this one does not hold, and how.

With `coordinator.replication` below the number of nodes a node holds only some of the shards. What it is asked about the
others it asks of a node that holds them: the same request with `shards=`, which is answered by what that node holds
itself, or not at all. So a question goes one step and never round in a circle.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import aiohttp
import msgspec
import structlog

from chronos.admin.problems import ProblemError, invalid
from chronos.admin.schemas import Fault
from chronos.core.roles import Member
from chronos.node import Node

log = structlog.get_logger("chronos.http")

CONNECT_S = 2.0
"""How long a node may take to accept; then the next one is asked."""

ANSWER_S = 8.0
"""How long it may take to answer; an action waits 5 s there at most."""

ORDER = ("master", "follower")
"""Roles of replicas whose nodes are asked first; then those that are on their way from one to the other."""

EMPTY = ("none", "failed", "stopped")
"""Roles of replicas whose nodes are not asked."""

T = TypeVar("T")


class PeerClient:
    """Lives as long as the server, in its event loop."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._session: aiohttp.ClientSession | None = None

    def holds(self, shard: int) -> bool:
        """Whether this node can answer for the shard; a standalone node for all of them."""
        if self._node.membership is None:
            return True
        driver = self._node.shards[shard]
        return driver.role != "none" and driver.replica.known

    def asked(self, shards: object) -> list[int]:
        """The shards a request is about: those it names, all of which this node must hold, or all there are."""
        count = len(self._node.shards)
        if not isinstance(shards, str):
            return list(range(count))
        numbers = sorted({int(number) for number in shards.split(",")})
        if numbers[-1] >= count:
            raise invalid(f"shards: there are shards 0 to {count - 1}", [Fault(field="shards", detail="not there")])
        for number in numbers:
            if not self.holds(number):
                raise ProblemError(503, "not-held", f"this node holds nothing of shard {number}")
        return numbers

    def split(self, shards: Iterable[int]) -> tuple[list[int], list[int]]:
        """Those this node holds, and the others."""
        held: list[int] = []
        missing: list[int] = []
        for shard in shards:
            (held if self.holds(shard) else missing).append(shard)
        return held, missing

    def holders(self, shard: int) -> list[Member]:
        """Other nodes that hold the shard: its master first, then who has applied most."""
        membership = self._node.membership
        if membership is None:
            return []
        found = [
            (ORDER.index(replica.role) if replica.role in ORDER else len(ORDER), -replica.applied, member)
            for member in membership.snapshot().members.values()
            if member.node != self._node.config.node.id
            and (replica := member.replicas.get(shard)) is not None
            and replica.role not in EMPTY
            and replica.applied is not None
        ]
        return [member for *_, member in sorted(found, key=lambda each: each[:2])]

    def groups(self, shards: Iterable[int]) -> list[list[int]]:
        """The shards that the same node is asked for first."""
        found: dict[str, list[int]] = {}
        for shard in shards:
            first = next((member.node for member in self.holders(shard)), "")
            found.setdefault(first, []).append(shard)
        return list(found.values())

    async def gather(
        self, shards: Sequence[int], path: str, query: Mapping[str, object], kind: type[T]
    ) -> list[tuple[list[int], T]]:
        """What nodes that hold the shards answer: for which of them, and what. ProblemError when one has nobody."""
        groups = self.groups(shards)
        parts = await asyncio.gather(*(self.ask(numbers, "GET", path, query) for numbers in groups))
        found = []
        for numbers, (status, body) in zip(groups, parts, strict=True):
            if status >= 400:
                raise _passed_on(status, body)
            found.append((numbers, msgspec.json.decode(body, type=kind)))
        return found

    async def ask(
        self,
        shards: Sequence[int],
        method: str,
        path: str,
        query: Mapping[str, object],
        body: bytes | None = None,
    ) -> tuple[int, bytes]:
        """What a node that holds the shards answers, with its status. ProblemError when nobody does.

        Those that hold the first of them are asked one after the other, until one answers for all.
        """
        parameters = {name: str(value) for name, value in query.items() if value is not msgspec.UNSET}
        parameters["shards"] = ",".join(map(str, shards))
        for member in self.holders(shards[0]):
            try:
                status, answer = await self.ask_member(member, method, path, parameters, body)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                log.warning("another node does not answer", node=member.node, why=str(error) or type(error).__name__)
                if method != "GET" and not isinstance(error, aiohttp.ClientConnectorError):
                    # It may have been done.
                    break
                continue
            if status != 503:
                return status, answer
        raise self._nobody(shards[0])

    async def ask_member(
        self, member: Member, method: str, path: str, query: Mapping[str, str], body: bytes | None = None
    ) -> tuple[int, bytes]:
        """One request, to that node; raises what aiohttp raises, and OSError."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=ANSWER_S, sock_connect=CONNECT_S)
            self._session = aiohttp.ClientSession(timeout=timeout)
        url = member.address.rstrip("/") + path
        headers = {} if body is None else {"Content-Type": "application/json"}
        async with self._session.request(method, url, params=query, data=body, headers=headers) as answer:
            return answer.status, await answer.read()

    def _nobody(self, shard: int) -> ProblemError:
        membership = self._node.membership
        roles = None if membership is None else membership.snapshot().roles
        given = None if roles is None else roles.shards.get(shard)
        nodes = () if given is None else given.replicas
        return ProblemError(
            503, "no-holder",
            f"shard {shard} is held by {', '.join(nodes) or 'no node that is known'}, and nobody there answers",
            hint="try again; if it stays, look at `chronos status`",
        )  # fmt: skip

    async def close(self) -> None:
        """Give the connections back."""
        if self._session is not None:
            await self._session.close()


def _passed_on(status: int, body: bytes) -> ProblemError:
    """What another node says is wrong."""
    try:
        detail = str(msgspec.json.decode(body, type=dict[str, Any])["detail"])
    except (msgspec.MsgspecError, KeyError):
        detail = f"another node answered {status}"
    return ProblemError(503, "no-holder", detail)
