"""The incarnation that counts for each node, and whether it is present.

An incarnation is one process of a node. Which one counts follows from the records alone: the
greatest generation, and of equal ones the first in the partition, so that all readers agree.

It is present from a heartbeat that lies behind the first one of the reading process itself: earlier
ones say nothing about the present. It is so until its leave record, or until its heartbeats have
not shown for too long that it goes on reading, the heartbeats as well as the roles; that is
measured by the time that counts for the reading process (`core.cluster.kafka.heartbeats`), so that
readers may disagree for a while."""

from msgspec import Struct
from msgspec.structs import replace

from chronos.core.cluster.kafka.heartbeats import TimeSince
from chronos.core.cluster.kafka.records import LeaveRecord, MemberHeartbeat
from chronos.core.cluster.roles import Member
from chronos.core.cluster.timing import Timing


class SeenIncarnation(Struct, kw_only=True):
    """The state of the incarnation that counts for a node."""

    incarnation: str
    generation: int
    member: Member | None
    """As reported last; None: only its leave record was read."""
    previous: str = ""
    """The incarnation that it replaced."""
    heartbeats_read: int = -1
    roles_read: int = 0
    present: bool = False
    """A heartbeat of it was read since this process began, and it is not gone."""
    gone: bool = False
    left: bool = False
    """Its leave record was read."""
    silence: TimeSince
    """Since one of its heartbeats showed that it goes on reading."""
    lag: TimeSince
    """Since it reported that it has read the last roles, or more of that partition than before."""


class SeenIncarnations:
    """The incarnation that counts for each node, by the records of the partition alone, and whether
    it is present, by the time that counts."""

    def __init__(self, timing: Timing, incarnation: str) -> None:
        self._timing = timing
        self._own = incarnation
        self._incarnations: dict[str, SeenIncarnation] = {}
        self._counted_ms = 0
        """The time that counts since this process was itself stopped, or cut off from the log."""

    def get(self, node: str) -> SeenIncarnation | None:
        """Return the incarnation that counts for the node, also when it is gone or left; None if
        none was ever read."""
        return self._incarnations.get(node)

    def counts(self, node: str, incarnation: str) -> bool:
        """Return whether this incarnation counts for the node."""
        known = self._incarnations.get(node)
        return known is not None and known.incarnation == incarnation and not known.left

    def present(self) -> dict[str, SeenIncarnation]:
        """Return the nodes that are members now."""
        return {node: known for node, known in self._incarnations.items() if known.present}

    def heard(self, heartbeat: MemberHeartbeat, *, backlog: bool) -> bool:
        """Apply a heartbeat; return whether it shows that an incarnation that counts goes on
        reading.

        `backlog`: it was written before this process began, so it says nothing about the
        present."""
        known = self._of(
            heartbeat.member.node, heartbeat.incarnation, heartbeat.generation, heartbeat.member
        )
        if known is None or known.left:
            return False
        reported = heartbeat.member if known.member is None or not heartbeat.brief else known.member
        known.member = replace(heartbeat.member, replicas=reported.replicas)
        if heartbeat.roles_read > known.roles_read:
            known.lag.happened()
        known.roles_read = heartbeat.roles_read
        if heartbeat.heartbeats_read <= known.heartbeats_read:
            return False
        known.heartbeats_read = heartbeat.heartbeats_read
        known.silence.happened()
        if not backlog and known.lag.ms < self._timing.timeout_ms:
            known.present, known.gone = True, False
        return True

    def leave_record(self, leave_record: LeaveRecord) -> bool:
        """Apply a leave record; return whether that incarnation counted."""
        known = self._of(leave_record.node, leave_record.incarnation, leave_record.generation, None)
        if known is None or known.left:
            return False
        known.left, known.present = True, False
        return True

    def _of(
        self, node: str, incarnation: str, generation: int, member: Member | None
    ) -> SeenIncarnation | None:
        """Return the entry of the incarnation if it counts: the greatest generation does, of equal
        ones the first in the partition."""
        known = self._incarnations.get(node)
        if generation > (0 if known is None else known.generation):
            previous = "" if known is None else known.incarnation
            self._incarnations[node] = known = SeenIncarnation(
                incarnation=incarnation,
                generation=generation,
                member=member,
                previous=previous,
                silence=TimeSince(),
                lag=TimeSince(),
            )
        return known if known is not None and known.incarnation == incarnation else None

    def passed(self, ms: int | None, roles_end: int) -> None:
        """Count the time between two own heartbeats; None: it does not count, and everything is
        counted from here.

        `roles_end`: position after the last roles that this process has read.
        """
        self._counted_ms = 0 if ms is None else self._counted_ms + ms
        for known in self._incarnations.values():
            if known.left or known.gone or known.incarnation == self._own:
                continue
            if ms is None:
                known.silence.restart()
                known.lag.restart()
                continue
            known.silence.passed(ms)
            if known.roles_read >= roles_end:
                known.lag.restart()
            else:
                known.lag.passed(ms)
            silence_ms = max(known.silence.ms, known.lag.ms)
            if silence_ms >= self._timing.timeout_ms and self._counted_ms >= self._timing.grace_ms:
                known.gone, known.present = True, False

    def heard_for_long(self, node: str) -> bool:
        """Return whether the incarnation of this node still sends heartbeats, after so long that it
        would be gone if it had stopped when this process began."""
        known = self._incarnations.get(node)
        is_heard = (
            known is not None and known.present and known.silence.ms <= self._timing.prompt_ms
        )
        return is_heard and self._counted_ms >= self._timing.grace_ms + self._timing.timeout_ms

    def gone(self) -> frozenset[str]:
        """Return the incarnations that count and are gone."""
        return frozenset(known.incarnation for known in self._incarnations.values() if known.gone)
