"""Handlers about the cluster: its nodes, the masters of its shards, transfers, drains and
failovers; checkpoints, those in `checkpoints.location` and those made to be sent to another node;
and digests of replicas.

A handler does not change roles itself: it asks the controller, and waits a bounded time until the
change is published and, of masters, reported by the new ones; an undrain is not waited for."""

import asyncio
import re
from collections.abc import Callable, Mapping
from contextlib import suppress

import structlog
from aiohttp import web

from chronos.admin.http.access import NODE_HEADER, TOKEN_HEADER, is_token_of
from chronos.admin.http.context import Call, Context, during, together
from chronos.admin.http.problems import ProblemError, shard_number
from chronos.admin.http.schemas import (
    AwayNode,
    BrokerInfo,
    CheckpointInfo,
    CheckpointsInfo,
    DigestInfo,
    FailoverShard,
    FailoverStatus,
    NodeInfo,
    Nodes,
    NodeShard,
    OperationResult,
    RoleChange,
    ShardCheckpoints,
    TransferQuery,
)
from chronos.admin.http.waiting import poll
from chronos.core.cluster.assignment import refused
from chronos.core.cluster.health import ARM_REFUSED, OBSERVERS_MIN, OFF, UNHEALTHY, quorum
from chronos.core.cluster.roles import (
    UNREACHABLE,
    Change,
    Member,
    Request,
    Roles,
    ShardRoles,
    verdicts,
)
from chronos.core.shard.codec import FRESH
from chronos.core.timefmt import format_time
from chronos.node import IN_PLACE
from chronos.node.checkpoints import CheckpointScheduler
from chronos.node.shards import ShardDriver
from chronos.ports import ClusterSnapshot
from chronos.workers.cluster.membership import Membership

log = structlog.get_logger("chronos.http")

STREAMS_MAX = 2
"""Checkpoints sent at a time: each reads a whole store."""

PUBLISHED_S = 2.0
"""How long to wait for a member that has just joined; the coordinator publishes it within
milliseconds."""

SEND_S = 60.0
"""How long the other node may take to accept a chunk of a megabyte; then the transfer ends."""

TRANSFER_S = 10.0
"""How long a request waits for its transfer or drain; then the answer is `accepted`."""

MEMBER_S = 3.0
"""How long a request waits for a node that this node does not see yet: a node that has just become
ready appears in the snapshots of other nodes a moment later."""

PASSWORD = re.compile(r"//[^/@]*@")
"""Credentials in a node's address, which are not shown."""


class CheckpointHandlers:
    """The handlers of `/v1/checkpoints`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def kept(self, _: Call) -> tuple[int, object]:
        """The checkpoints of every shard, as this node last read them."""
        return 200, self._info(self._scheduler())

    async def make(self, _: Call) -> tuple[int, object]:
        """Request a checkpoint of every shard of this node; they are made in the background."""
        scheduler = self._scheduler()
        for checkpointer in scheduler.checkpointers.values():
            checkpointer.ask()
        return 202, self._info(scheduler)

    def _scheduler(self) -> CheckpointScheduler:
        scheduler = self._context.node.checkpoints
        if scheduler is None:
            raise ProblemError(
                501,
                "no-checkpoints",
                "checkpoints.location is not set",
                hint="set it to a directory or to a URL of fsspec",
            )
        return scheduler

    @staticmethod
    def _info(scheduler: CheckpointScheduler) -> CheckpointsInfo:
        return CheckpointsInfo(
            shards=[
                ShardCheckpoints(
                    shard=number,
                    problem=checkpointer.problem,
                    checkpoints=[
                        CheckpointInfo(
                            name=found.name,
                            node=found.node,
                            made_at=format_time(found.made_at_ms),
                            applied=found.applied,
                            pull_offset=found.pull_offset,
                            pending=found.pending,
                            digest=found.digest,
                            bytes=found.size_bytes,
                        )
                        for found in checkpointer.kept
                    ],
                )
                for number, checkpointer in sorted(scheduler.checkpointers.items())
            ]
        )


class ReplicaTransfer:
    """The handlers of `/v1/shards/{shard}/checkpoint` and `/v1/shards/{shard}/digest`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._streams = 0
        self._digesting = asyncio.Lock()

    async def checkpoint(self, call: Call) -> web.StreamResponse:
        """A checkpoint of a shard, made now; only for members of the cluster, because it contains
        every payload."""
        await self._check_member(call.request)
        shard = self._shard(call)
        if self._streams >= STREAMS_MAX:
            raise ProblemError(
                503, "busy-copying", f"this node sends {STREAMS_MAX} checkpoints already"
            )
        self._streams += 1
        try:
            return await self._send(call.request, shard)
        finally:
            self._streams -= 1

    async def _send(self, request: web.Request, shard: ShardDriver) -> web.StreamResponse:
        context = self._context
        chunks = context.node.copier.stream(shard.number, shard.store, context.now_ms())
        response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
        try:
            # An error before the first byte is answered as a problem.
            chunk = await context.in_thread(next, chunks, None)
            await response.prepare(request)
            while chunk is not None:
                if context.stopping.is_set():
                    raise ConnectionAbortedError("this node is stopping")
                async with asyncio.timeout(SEND_S):
                    await response.write(chunk)
                chunk = await context.in_thread(next, chunks, None)
            await response.write_eof()
        except BaseException as error:
            if not response.prepared:
                raise
            # An incomplete checkpoint must not look complete: the connection is cut without the end
            # of the body.
            if request.transport is not None:
                request.transport.abort()
            log.warning("checkpoint not sent completely", shard=shard.number, why=repr(error))
            if not isinstance(error, Exception):
                raise
        finally:
            # A generator that still runs in its thread is closed when it is dropped.
            with suppress(ValueError):
                chunks.close()
        return response

    async def digest(self, call: Call) -> tuple[int, object]:
        """The digest of a replica, computed over a snapshot of its store."""
        shard = self._shard(call)
        context = self._context
        async with self._digesting:
            found = await context.in_thread(
                context.node.copier.digest, shard.number, shard.store, context.now_ms()
            )
        return 200, DigestInfo(
            shard=shard.number,
            node=context.node.config.node.id,
            applied=found.applied,
            pull_offset=found.pull_offset,
            cursor_at=format_time(found.cursor_due_ms),
            pending=found.pending,
            digest=found.digest,
            remembered_ms=found.remembered_ms,
        )

    def _shard(self, call: Call) -> ShardDriver:
        """The requested replica; ProblemError when this node holds none, or an empty one."""
        shards = self._context.shards
        shard = shards[shard_number(call.request.match_info["shard"], len(shards))]
        if shard.role == "none" or not shard.replica.known or shard.state == FRESH:
            raise ProblemError(
                503,
                "not-held",
                f"this node holds no data of shard {shard.number} (its replica is {shard.role})",
            )
        return shard

    async def _check_member(self, request: web.Request) -> None:
        """1. the request names a node, 2. the node is a member, 3. the token is the one that the
        node gave the coordinator."""
        node = request.headers.get(NODE_HEADER, "")
        token = request.headers.get(TOKEN_HEADER, "")
        membership = self._context.node.membership

        def is_member() -> bool | None:
            member = None if membership is None else membership.snapshot().members.get(node)
            return is_token_of(member, token) or None

        if (
            membership is not None
            and node
            and token
            and await poll(is_member, PUBLISHED_S, self._context.stopping)
        ):
            return
        raise ProblemError(
            403,
            "not-a-member",
            "checkpoints are sent only to other nodes of this cluster",
            hint="for backups of your own set checkpoints.location",
        )


class ClusterHandlers:
    """The handlers of `/v1/nodes`, `/v1/shards/{shard}/transfer`, `/v1/shards/{shard}/arm` and
    `/v1/failover`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def nodes(self, _: Call) -> tuple[int, object]:
        """The nodes of the cluster, this node first; standalone: this node alone."""
        membership = self._context.node.membership
        snapshot = None if membership is None else membership.snapshot()
        roles = None if snapshot is None else snapshot.roles
        own = self._context.node.describe()
        others = (
            []
            if snapshot is None
            else [m for _, m in sorted(snapshot.members.items()) if m.node != own.node]
        )
        drained = () if roles is None else roles.drained
        return 200, Nodes(
            nodes=[
                self._own_info(own, drained),
                *(self._other_info(member, drained) for member in others),
            ],
            away=[] if roles is None else _away(roles),
            controller=None if roles is None else roles.controller or None,
            controller_epoch=None if roles is None else roles.controller_epoch,
            sure=snapshot is None or snapshot.confirmed,
            history=[]
            if roles is None
            else [_change(change) for change in reversed(roles.history)],
        )

    def _own_info(self, member: Member, drained: tuple[str, ...]) -> NodeInfo:
        node = self._context.node
        info = self._info(member, drained, self._context.reasons())
        info.now = format_time(self._context.now_ms())
        info.disk_free_bytes = node.disk_free_bytes()
        info.switched_off = node.switched_off
        info.older_zone_data = node.older_zone_data
        now_ms = self._context.now_ms()
        info.brokers = [
            BrokerInfo(
                broker=broker,
                latency_ms=found.latency_ms,
                unavailable_until=None
                if found.is_available(now_ms)
                else format_time(found.available_ms),
            )
            for broker, found in sorted(node.selector.brokers().items())
        ]
        return info

    def _other_info(self, member: Member, drained: tuple[str, ...]) -> NodeInfo:
        """Another node, as it last reported itself."""
        troubles = {
            number: (replica.role, replica.reason)
            for number, replica in sorted(member.replicas.items())
            if replica.role not in IN_PLACE or replica.reason is not None
        }
        if member.log == UNREACHABLE:
            return self._info(member, drained, [during("no broker answers this node", troubles)])
        return self._info(member, drained, together(troubles))

    def _info(self, member: Member, drained: tuple[str, ...], reasons: list[str]) -> NodeInfo:
        config = self._context.node.config
        return NodeInfo(
            node=member.node,
            host=member.host or None,
            cluster=config.cluster,
            instance=member.instance,
            address=PASSWORD.sub("//", member.address),
            version=member.version,
            zone_data=f"IANA {member.zone_data}" if member.zone_data else None,
            coordinator=config.coordinator.kind,
            log=config.log.kind,
            delay_topic=config.topics.delay,
            ready=not reasons,
            reasons=reasons,
            leaving=member.leaving,
            retiring=member.retiring,
            drained=member.node in drained,
            started_at=format_time(member.started_ms),
            shards=[
                NodeShard(
                    shard=number,
                    role=replica.role,
                    applied=replica.applied,
                    pull_offset=replica.pull_offset,
                    role_epoch=replica.role_epoch,
                )
                for number, replica in sorted(member.replicas.items())
            ],
        )

    # --- transfers

    async def transfer(self, call: Call) -> tuple[int, object]:
        """Transfer a shard to another node: 1. wait for the node to be seen, 2. ask the controller,
        3. wait for the new master."""
        shard = shard_number(call.request.match_info["shard"], len(self._context.shards))
        membership = self._membership()
        query: TransferQuery = call.query
        node = await self._member(membership, query.to)
        known = _history(membership)
        request = await self._request(membership, "transfer", node, shard)
        return await self._result(
            membership,
            lambda roles: roles.master == node,
            f"transfer of shard {shard} to {node}",
            [shard],
            lambda: _recorded(membership, known, shard, refused(request)),
        )

    async def drain(self, call: Call) -> tuple[int, object]:
        """Drain a node before maintenance: it hands over its shards and gets none to lead."""
        membership = self._membership()
        node = await self._member(membership, call.request.match_info["node"])
        check_drain(membership.snapshot(), node)
        await self._request(membership, "drain", node)
        shards = list(range(len(self._context.shards)))
        return await self._result(
            membership, lambda roles: roles.master != node, f"drain of {node}", shards
        )

    async def undrain(self, call: Call) -> tuple[int, object]:
        """End a drain."""
        membership = self._membership()
        node = await self._member(membership, call.request.match_info["node"])
        await self._request(membership, "undrain", node)
        return 202, OperationResult(result="accepted", what=f"undrain of {node}")

    async def forget(self, call: Call) -> tuple[int, object]:
        """Forget a node that will not come back: its replicas are no longer listed, and the logs
        are not kept for it."""
        membership = self._membership()
        node = call.request.match_info["node"]
        snapshot = membership.snapshot()
        if node in snapshot.members:
            raise ProblemError(
                409,
                "node-present",
                f"node {node[:100]!r} is a member of the cluster",
                hint=(
                    "stop it first; `chronos transfer --drain` takes its shards from a node that "
                    "keeps running"
                ),
            )
        known = frozenset[str]() if snapshot.roles is None else snapshot.roles.nodes
        if node not in known:
            nodes = ", ".join(sorted(known - set(snapshot.members))) or "none"
            raise ProblemError(
                404,
                "no-node",
                f"there is no node {node[:100]!r} to forget; the nodes away are: {nodes}",
            )
        await self._request(membership, "forget", node)

        def is_forgotten() -> bool | None:
            roles = membership.snapshot().roles
            return (roles is not None and node not in roles.nodes) or None

        if await poll(is_forgotten, TRANSFER_S, self._context.stopping):
            return 200, OperationResult(result="done", what=f"forgetting {node}")
        return 202, OperationResult(result="accepted", what=f"forgetting {node}")

    # --- failover of unhealthy masters

    async def failover(self, _: Call) -> tuple[int, object]:
        """Return the findings of the nodes' probes of each shard's master, and the permitted
        failovers; empty if standalone."""
        membership = self._context.node.membership
        snapshot = None if membership is None else membership.snapshot()
        members = {} if snapshot is None else snapshot.members
        roles = Roles() if snapshot is None or snapshot.roles is None else snapshot.roles
        shards = range(len(self._context.shards))
        return 200, FailoverStatus(
            on_unhealthy=self._context.node.on_unhealthy,
            shards=[_health(members, roles, shard) for shard in shards],
        )

    async def arm(self, call: Call) -> tuple[int, object]:
        """Permit one failover of a shard, and wait until the controller has the permission or has
        used it."""
        shard = shard_number(call.request.match_info["shard"], len(self._context.shards))
        membership = self._membership()
        if self._context.node.on_unhealthy == OFF:
            raise ProblemError(
                409,
                "not-permitted",
                "failover.on_unhealthy is off: masters are not observed",
                hint=(
                    "`chronos transfer` moves a shard at once; set failover.on_unhealthy: armed "
                    "on all nodes"
                ),
            )
        known = _history(membership)
        await self._request(membership, "arm", "", shard)

        def is_known() -> Change | bool | None:
            roles = membership.snapshot().roles
            if roles is None:
                return None
            return (
                _recorded(membership, known, shard, UNHEALTHY, ARM_REFUSED)
                or shard in roles.armed
                or None
            )

        what = f"permission for one failover of shard {shard}"
        found = await poll(is_known, TRANSFER_S, self._context.stopping)
        if isinstance(found, Change) and found.why != UNHEALTHY:
            raise ProblemError(409, "not-permitted", found.why)
        if found:
            return 200, OperationResult(result="done", what=what)
        return 202, OperationResult(result="accepted", what=what)

    def _membership(self) -> Membership:
        membership = self._context.node.membership
        if membership is None:
            raise ProblemError(
                501,
                "standalone",
                "this node is standalone: it leads every shard, and there is no other node",
                hint="run several nodes with coordinator.kind: kafka, zookeeper or raft",
            )
        return membership

    async def _member(self, membership: Membership, node: str) -> str:
        """The node, once it is a member of the cluster; ProblemError with status 404 when it does
        not appear in time."""
        member = await wait_for_member(membership.snapshot, node, self._context.stopping)
        if member is None:
            nodes = ", ".join(sorted(membership.snapshot().members))
            raise ProblemError(
                404, "no-node", f"there is no node {node[:100]!r}; the nodes are: {nodes}"
            )
        return member.node

    async def _request(
        self, membership: Membership, kind: str, node: str, shard: int = -1
    ) -> Request:
        request = Request(kind=kind, node=node, shard=shard, at_ms=self._context.now_ms())
        await self._context.in_thread(membership.ask, request)
        return request

    async def _result(
        self,
        membership: Membership,
        done: Callable[[ShardRoles], bool],
        what: str,
        shards: list[int],
        refusal: Callable[[], Change | None] = lambda: None,
    ) -> tuple[int, object]:
        """`done` once the controller has published the roles and the new masters report them;
        `accepted` after the time.

        ProblemError with status 409 once the controller has recorded that it refuses the request.
        """

        def look() -> Change | bool | None:
            snapshot = membership.snapshot()
            published = {} if snapshot.roles is None else snapshot.roles.shards
            is_done = all(
                shard in published
                and done(published[shard])
                and _leads(snapshot.members, published[shard], shard)
                for shard in shards
            )
            return is_done or refusal()

        found = await poll(look, TRANSFER_S, self._context.stopping)
        if isinstance(found, Change):
            raise ProblemError(
                409,
                "transfer-refused",
                found.why,
                hint=(
                    "`chronos status` shows the nodes and their replicas; the shard keeps its "
                    "master"
                ),
            )
        if found:
            return 200, OperationResult(result="done", what=what)
        return 202, OperationResult(result="accepted", what=what)


def check_drain(snapshot: ClusterSnapshot, node: str) -> None:
    """ProblemError with status 409 if no other node could lead the shards of the node."""
    drained = () if snapshot.roles is None else snapshot.roles.drained
    others = []
    for member in snapshot.members.values():
        if member.node != node:
            is_able = member.eligible and member.stays and member.node not in drained
            if is_able:
                return
            why = (
                "drained"
                if member.node in drained
                else "stopping"
                if not member.stays
                else "never master (failover.candidate)"
            )
            others.append(f"{member.node} is {why}")
    if node not in drained:
        raise ProblemError(
            409,
            "drain-refused",
            f"no other node can lead the shards of {node}: {', '.join(others) or 'there is none'}",
            hint=(
                "`chronos transfer --undrain NODE` lets a drained node lead again; to stop the "
                "last node, just stop it"
            ),
        )


def _history(membership: Membership) -> tuple[Change, ...]:
    """Return the last changes of roles that this node knows."""
    roles = membership.snapshot().roles
    return () if roles is None else roles.history


def _recorded(
    membership: Membership, known: tuple[Change, ...], shard: int, *beginnings: str
) -> Change | None:
    """Return the first change of the shard that is not in `known` and whose reason begins like one
    of these."""
    new = (
        change for change in _history(membership) if change.shard == shard and change not in known
    )
    return next((change for change in new if change.why.startswith(beginnings)), None)


async def wait_for_member(
    snapshot: Callable[[], ClusterSnapshot],
    node: str,
    stopping: asyncio.Event,
    *,
    timeout_s: float = MEMBER_S,
) -> Member | None:
    """The member with this name, waited for at most `timeout_s` seconds; None: it is not there."""
    return await poll(lambda: snapshot().members.get(node), timeout_s, stopping)


def _leads(members: Mapping[str, Member], roles: ShardRoles, shard: int) -> bool:
    """True if the assigned master reports that it leads the shard with the assigned role epoch."""
    member = None if roles.master is None else members.get(roles.master)
    replica = None if member is None else member.replicas.get(shard)
    return replica is not None and replica.role == "master" and replica.role_epoch == roles.epoch


def _health(members: Mapping[str, Member], roles: Roles, shard: int) -> FailoverShard:
    given = roles.shards.get(shard, ShardRoles())
    found = verdicts(members, shard, given.epoch)
    armed_until_ms = roles.armed.get(shard)
    return FailoverShard(
        shard=shard,
        master=given.master,
        healthy=sorted(node for node, healthy in found.items() if healthy),
        unhealthy=sorted(node for node, healthy in found.items() if not healthy),
        needed=quorum(len(found)) if len(found) >= OBSERVERS_MIN else None,
        armed_until=None if armed_until_ms is None else format_time(armed_until_ms),
    )


def _away(roles: Roles) -> list[AwayNode]:
    return [
        AwayNode(
            node=node,
            since=format_time(since_ms),
            shards=[
                number for number, shard in sorted(roles.shards.items()) if node in shard.replicas
            ],
        )
        for node, since_ms in sorted(roles.away.items())
    ]


def _change(change: Change) -> RoleChange:
    return RoleChange(
        at=format_time(change.at_ms),
        shard=change.shard,
        master=change.master,
        previous=change.previous,
        epoch=change.epoch,
        why=change.why,
    )
