"""The reason why an overdue message was not delivered yet, for the look-up of the message.

The answer is the first reason that holds: the shard delivers nothing, the message itself waits, the
shard's work is slow, or messages with earlier due times are still to be delivered."""

from chronos.admin.http.context import Context, without_names
from chronos.admin.http.schemas import MessageInfo
from chronos.core.cluster.roles import UNREACHABLE
from chronos.core.keys import LIMITED, lane_state_key
from chronos.core.query.lookup import FoundMessage
from chronos.core.rates import rate_text
from chronos.core.reach import Reach
from chronos.core.shard.codec import unpack_lane_state
from chronos.core.timefmt import format_time
from chronos.node.shards import ShardDriver
from chronos.workers.replica.state import ReplicaState
from chronos.workers.step.lanes import why_parked
from chronos.workers.watch.stall import STEP_MS_MAX

OVERDUE_MS = 1_000
"""A message that is late by less is being delivered."""


def tell_lateness(
    answer: MessageInfo, found: FoundMessage, context: Context, shard: ShardDriver, reach: Reach
) -> None:
    """Add by how much a pending message is overdue, and what it waits for. Reads the store."""
    now_ms = context.now_ms()
    overdue_ms = now_ms - _planned_ms(found, now_ms)
    if found.state != "pending" or overdue_ms < OVERDUE_MS:
        return
    answer.overdue_ms = overdue_ms
    answer.waits_for = (
        standstill(context, shard, now_ms)
        or _own_wait(context, shard, found, now_ms)
        or _slowness(context, shard, now_ms, reach)
        or (
            f"the messages due before it: shard {shard.number} is at those of "
            f"{format_time(shard.state.cursor_due_ms)}"
        )
    )


def _planned_ms(found: FoundMessage, now_ms: int) -> int:
    """The time from which it is late: that of its position, or, if it is to be tried again later,
    its due time."""
    is_retry = found.failure is not None and found.place_ms > now_ms and found.entry is not None
    return found.entry.due_ms if is_retry and found.entry is not None else found.place_ms


def standstill(context: Context, shard: ShardDriver, now_ms: int) -> str | None:
    """Return why a shard delivers nothing at the moment, as far as this node knows; None if it
    delivers."""
    number, membership = shard.number, context.node.membership
    snapshot = None if membership is None else membership.snapshot()
    roles = (
        None if snapshot is None or snapshot.roles is None else snapshot.roles.shards.get(number)
    )
    if snapshot is not None and roles is not None and roles.master != context.node.config.node.id:
        if roles.master is None:
            return f"no node leads shard {number} at the moment"
        master = snapshot.members.get(roles.master)
        if master is None:
            return f"node {roles.master}, which leads shard {number}, is not there"
        replica = master.replicas.get(number)
        if replica is not None and replica.reason is not None:
            return f"shard {number} is paused on node {roles.master}: {replica.reason}"
        if replica is not None and replica.role != ReplicaState.MASTER:
            return f"shard {number} is {replica.role} on node {roles.master}, which is to lead it"
        if master.log == UNREACHABLE:
            return f"the log does not answer node {roles.master}, which leads shard {number}"
        return None
    paused = shard.paused
    if shard.role != ReplicaState.MASTER:
        return f"shard {number} is {shard.role}" + ("" if paused is None else f": {paused}")
    if paused is not None:
        return f"shard {number} is paused: {paused}"
    if not shard.replica.limits.push:
        return "nothing is delivered: workers.push is off"
    began_ms = shard.step_began_ms
    if (
        began_ms is not None
        and now_ms - began_ms >= STEP_MS_MAX
        and shard.waits_for(now_ms) is None
    ):
        return f"a step of shard {number} has been running since {format_time(began_ms)}"
    return None


def _own_wait(context: Context, shard: ShardDriver, found: FoundMessage, now_ms: int) -> str | None:
    """Return what only this message, or those of its target, wait for; None if it is nothing of its
    own."""
    if found.lane is not None:
        topic, partition = found.lane
        (data,) = shard.store.get([lane_state_key(found.lane)])
        messages = (
            ""
            if data is None
            else (
                f"; {unpack_lane_state(data).length:,} messages of shard {shard.number} wait for it"
            )
        )
        limit = context.node.rates.limits.table.of(topic) if partition == LIMITED else None
        rate = "" if limit is None else f" to {rate_text(limit.rate)}"
        return f"{why_parked(topic, partition)}{rate}{messages}"
    if found.failure is not None and found.place_ms > now_ms:
        return f"its next attempt, at {format_time(found.place_ms)}"
    return None


def _slowness(context: Context, shard: ShardDriver, now_ms: int, reach: Reach) -> str | None:
    """Return what the shard waits for in its work; None if nothing is known, as on a node that does
    not lead it."""
    waits = shard.waits_for(now_ms)
    if waits is not None:
        return f"shard {shard.number}: {without_names(waits) if reach.is_limited else waits}"
    trouble = shard.replica.trouble
    return (
        None
        if trouble is None
        else f"shard {shard.number}: its transactions fail, the last one because: {trouble}"
    )
