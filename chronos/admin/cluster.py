"""The cluster: its nodes, who is master of what and why, and what an operator may ask of the controller."""

import asyncio
import re
from collections.abc import Callable, Mapping

from msgspec import UNSET

from chronos.admin.context import Call, Context
from chronos.admin.problems import ProblemError, no_shard
from chronos.admin.schemas import Asked, AwayNode, Fault, NodeInfo, Nodes, NodeShard, RoleChange, TransferQuery
from chronos.core.roles import UNREACHABLE, Change, Member, Request, Roles, ShardRoles
from chronos.core.timefmt import format_time
from chronos.node import IN_PLACE
from chronos.workers.membership import Membership

TRANSFER_S = 10.0
"""How long a hand-over may take before the answer is that it was asked for."""

LOOK_S = 0.02

PASSWORD = re.compile(r"//[^/@]*@")
"""What the other nodes need to get through a proxy is not for everybody."""


class Cluster:
    """The handlers of `/v1/nodes` and of hand-overs."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def nodes(self, _: Call) -> tuple[int, object]:
        """The nodes of the cluster, this one first; standalone, this one alone."""
        membership = self._context.node.membership
        snapshot = None if membership is None else membership.snapshot()
        roles = None if snapshot is None else snapshot.roles
        here = self._context.node.describe()
        others = [] if snapshot is None else [m for _, m in sorted(snapshot.members.items()) if m.node != here.node]
        drained = () if roles is None else roles.drained
        return 200, Nodes(
            nodes=[self._here(here, drained), *(self._there(member, drained) for member in others)],
            away=[] if roles is None else _away(roles),
            controller=None if roles is None else roles.controller or None,
            controller_epoch=None if roles is None else roles.controller_epoch,
            sure=snapshot is None or snapshot.confirmed,
            history=[] if roles is None else [_change(change) for change in reversed(roles.history)],
        )

    def _here(self, member: Member, drained: tuple[str, ...]) -> NodeInfo:
        node = self._context.node
        info = self._info(member, drained, self._context.reasons())
        info.now = format_time(self._context.now_ms())
        info.disk_free_bytes = node.disk_free_bytes()
        return info

    def _there(self, member: Member, drained: tuple[str, ...]) -> NodeInfo:
        """Another node, by what it said last."""
        reasons = [
            f"shard {number} is {replica.role}" + (f": {replica.reason}" if replica.reason else "")
            for number, replica in sorted(member.replicas.items())
            if replica.role not in IN_PLACE or replica.reason is not None
        ]
        if member.log == UNREACHABLE:
            reasons.append("the log does not answer it")
        return self._info(member, drained, reasons)

    def _info(self, member: Member, drained: tuple[str, ...], reasons: list[str]) -> NodeInfo:
        config = self._context.node.config
        return NodeInfo(
            node=member.node,
            cluster=config.cluster,
            instance=member.instance,
            address=PASSWORD.sub("//", member.address),
            version=member.version,
            coordinator=config.coordinator.kind,
            log=config.log.kind,
            delay_topic=config.topics.delay,
            ready=not reasons,
            reasons=reasons,
            leaving=member.leaving,
            drained=member.node in drained,
            started_at=format_time(member.started_ms),
            shards=[
                NodeShard(
                    shard=number, role=replica.role, applied=replica.applied, pull_offset=replica.pull_offset,
                    role_epoch=replica.role_epoch,
                )
                for number, replica in sorted(member.replicas.items())
            ],
        )  # fmt: skip

    # --- hand-overs

    async def transfer(self, call: Call) -> tuple[int, object]:
        """Planned hand-over of a shard to another node."""
        number = call.request.match_info["shard"]
        shards = len(self._context.shards)
        if not number.isdecimal() or not number.isascii() or int(number) >= shards:
            raise no_shard(shards)
        membership = self._membership()
        query: TransferQuery = call.query
        if query.to is UNSET:
            raise ProblemError(422, "invalid", "to: the node to hand the shard to is missing",
                               errors=[Fault(detail="missing", field="to")])  # fmt: skip
        node = self._member(membership, str(query.to))
        shard = int(number)
        await self._ask(membership, "transfer", node, shard)
        return await self._until(membership, lambda given: given.master == node, f"shard {shard} to {node}", [shard])

    async def drain(self, call: Call) -> tuple[int, object]:
        """Let a node be master of nothing, before maintenance."""
        membership = self._membership()
        node = self._member(membership, call.request.match_info["node"])
        await self._ask(membership, "drain", node)
        shards = list(range(len(self._context.shards)))
        return await self._until(membership, lambda given: given.master != node, f"drain of {node}", shards)

    async def undrain(self, call: Call) -> tuple[int, object]:
        """Let a node be master again."""
        membership = self._membership()
        node = self._member(membership, call.request.match_info["node"])
        await self._ask(membership, "undrain", node)
        return 202, Asked(result="accepted", what=f"undrain of {node}")

    def _membership(self) -> Membership:
        membership = self._context.node.membership
        if membership is None:
            raise ProblemError(
                501, "standalone", "this node is master of every shard and there is no other",
                hint="run several nodes with coordinator.kind: zookeeper",
            )  # fmt: skip
        return membership

    @staticmethod
    def _member(membership: Membership, node: str) -> str:
        members = membership.snapshot().members
        if node not in members:
            raise ProblemError(404, "no-node", f"no node {node[:100]!r} is there; those that are: {sorted(members)}")
        return node

    async def _ask(self, membership: Membership, kind: str, node: str, shard: int = -1) -> None:
        request = Request(kind=kind, node=node, shard=shard, at_ms=self._context.now_ms())
        await self._context.in_thread(membership.ask, request)

    async def _until(
        self, membership: Membership, done: Callable[[ShardRoles], bool], what: str, shards: list[int]
    ) -> tuple[int, object]:
        """Wait until the controller has given the roles out, and the new masters report that they are."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + TRANSFER_S
        while loop.time() < deadline_s and not self._context.stopping.is_set():
            snapshot = membership.snapshot()
            given = {} if snapshot.roles is None else snapshot.roles.shards
            if all(number in given and done(given[number]) for number in shards) and all(
                _reigns(snapshot.members, given[number], number) for number in shards
            ):
                return 200, Asked(result="done", what=what)
            await asyncio.sleep(LOOK_S)
        return 202, Asked(result="accepted", what=what)


def _reigns(members: Mapping[str, Member], given: ShardRoles, shard: int) -> bool:
    member = None if given.master is None else members.get(given.master)
    replica = None if member is None else member.replicas.get(shard)
    return replica is not None and replica.role == "master" and replica.role_epoch == given.epoch


def _away(roles: Roles) -> list[AwayNode]:
    return [
        AwayNode(
            node=node,
            since=format_time(since_ms),
            shards=[number for number, given in sorted(roles.shards.items()) if node in given.replicas],
        )
        for node, since_ms in sorted(roles.away.items())
    ]


def _change(change: Change) -> RoleChange:
    return RoleChange(
        at=format_time(change.at_ms), shard=change.shard, master=change.master, previous=change.previous,
        epoch=change.epoch, why=change.why,
    )  # fmt: skip
