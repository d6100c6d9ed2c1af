"""The check of the records of `chronos.cluster`: which of them no process of Chronos can have
written, so that `participant` ignores them.

Any client that may write to the topic can write such a record. A number that is accepted is never
reduced again: a generation, a position or an epoch far beyond the current one would exclude a node,
or all later roles, for good."""

from collections.abc import Mapping
from typing import Final

from chronos.core.cluster.kafka.records import (
    ClusterRecord,
    LeaveRecord,
    MemberHeartbeat,
    RolesRecord,
)
from chronos.core.cluster.roles import Roles

JUMP_MAX: Final = 2**40
"""Most by which an epoch, a version or a position may grow from one record of the roles to the next
one that a process reads. In Chronos's own records they grow by one for each change, or with the
heartbeats: a thousand members write this many in eight years."""

REPORT_JUMP_MAX: Final = JUMP_MAX // 2
"""Most by which an epoch in a heartbeat may be ahead of the last roles: roles with the next greater
epoch must still count for all readers."""


def heartbeat_problem(
    offset: int, record: ClusterRecord, *, epoch: int, roles: Roles | None
) -> str | None:
    """Return why Chronos did not write this record of the partition HEARTBEATS; None if it may
    have.

    `offset`: of the record. `epoch`: of the last roles, because heartbeats could raise it step by
    step. `roles`: the last ones; None without any."""
    if isinstance(record, MemberHeartbeat | LeaveRecord) and record.generation > offset + 1:
        # Each generation is greater by one than another that was written before, or than the first
        # offset that is kept.
        return f"the generation {record.generation} is greater than the number of records before it"
    if not isinstance(record, MemberHeartbeat):
        return None
    if record.heartbeats_read > offset:
        return f"it reports to have read up to {record.heartbeats_read}, beyond its own offset"
    numbers = {"controller epoch": (max(record.epoch, record.controls), epoch)}
    for shard, given in ({} if roles is None else roles.shards).items():
        if shard in record.member.replicas:
            reported = record.member.replicas[shard].role_epoch
            numbers[f"role epoch of shard {shard}"] = reported, given.epoch
    return _far_beyond(numbers, REPORT_JUMP_MAX)


def roles_problem(record: RolesRecord, last: RolesRecord | None) -> str | None:
    """Return why Chronos did not write this record of the roles after the last one; None if it may
    have, or if there is no last."""
    if last is None:
        return None
    numbers = {
        "controller epoch": (record.epoch, last.epoch),
        "version": (record.version, last.version),
        "answered position": (record.answered, last.answered),
    }
    for shard, given in last.roles.shards.items():
        if shard in record.roles.shards:
            numbers[f"role epoch of shard {shard}"] = record.roles.shards[shard].epoch, given.epoch
    return _far_beyond(numbers, JUMP_MAX)


def _far_beyond(numbers: Mapping[str, tuple[int, int]], jump_max: int) -> str | None:
    """Return which number has grown by more than `jump_max` over the last one that counted."""
    for name, (number, before) in numbers.items():
        if number > before + jump_max:
            return f"its {name}, {number}, is far beyond {before}"
    return None
