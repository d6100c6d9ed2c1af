"""Records of `chronos.cluster` that no process of Chronos can have written, although they can be decoded.

Any client that may write to the topic can write such a record. A number that is accepted is never reduced again: a generation, a
position or an epoch far beyond the present one would exclude a node, or all later roles, for as long as the topic exists.
"""

from typing import Final

from chronos.core.cluster_records import ClusterRecord, Farewell, Heartbeat, RolesRecord
from chronos.core.roles import Roles

JUMP_MAX: Final = 2**40
"""Most by which an epoch, a version or a position of the roles grows from one record to the next one that a process reads. Those of
Chronos grow by one for each change, or with the heartbeats: a thousand members write so many in eight years."""

REPORT_JUMP_MAX: Final = JUMP_MAX // 2
"""Most by which an epoch in a heartbeat is ahead of the last roles: roles with the next greater one must count for everybody too."""


def heartbeat_problem(offset: int, record: ClusterRecord, *, epoch: int, roles: Roles | None) -> str | None:
    """Return why Chronos did not write this record of the heartbeats; None if it may have.

    `offset`: of the record. `epoch`: that of the last roles, not of heartbeats, which would raise it step by step. `roles`: the last
    ones; None without any.
    """
    if isinstance(record, Heartbeat | Farewell) and record.generation > offset + 1:
        # Each generation is greater by one than another that was written before, or than the first offset that is kept.
        return f"the generation {record.generation} is greater than the number of records before it"
    if not isinstance(record, Heartbeat):
        return None
    if record.heartbeats_read > offset:
        return f"it reports to have read up to {record.heartbeats_read}, beyond its own offset"
    if max(record.epoch, record.controls) > epoch + REPORT_JUMP_MAX:
        return f"it reports the controller epoch {max(record.epoch, record.controls)}, far beyond {epoch}"
    if roles is None:
        return None
    for shard, replica in record.member.replicas.items():
        given = roles.shards.get(shard)
        if given is not None and replica.role_epoch > given.epoch + REPORT_JUMP_MAX:
            return f"it reports the role epoch {replica.role_epoch} of shard {shard}, far beyond {given.epoch}"
    return None


def roles_problem(record: RolesRecord, last: RolesRecord | None) -> str | None:
    """Return why Chronos did not write this record of the roles after the last one; None if it may have, or if there is no last."""
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
    for name, (number, before) in numbers.items():
        if number > before + JUMP_MAX:
            return f"its {name}, {number}, is far beyond {before}"
    return None
