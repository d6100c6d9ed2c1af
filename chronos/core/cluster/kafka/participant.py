"""One process of a cluster whose coordinator is Kafka: records of `chronos.cluster` in, decisions
and records to write out.

The caller reads both partitions in order, passes each record on, calls `step` after each read,
writes the records that it returns, and does what `stage` asks for. All times are milliseconds of a
monotonic clock. The process joins, reports, and becomes the controller here; what a controller
decides about shards is `core.cluster.assignment`."""

from enum import StrEnum

from msgspec.structs import replace

from chronos.core.cluster.kafka.controllership import Controllership, Stage
from chronos.core.cluster.kafka.heartbeats import OwnHeartbeats
from chronos.core.cluster.kafka.incarnations import SeenIncarnation, SeenIncarnations
from chronos.core.cluster.kafka.plausibility import heartbeat_problem, roles_problem
from chronos.core.cluster.kafka.records import (
    Announcement,
    ClusterRecord,
    LeaveRecord,
    MemberHeartbeat,
    RolesRecord,
    Submission,
)
from chronos.core.cluster.roles import Member, Request, Roles, same_directory
from chronos.core.cluster.timing import Timing


class Place(StrEnum):
    """The standing of a process in its cluster."""

    NEWCOMER = "newcomer"
    """The process reads, and waits until the name of its node is free."""
    CLAIMING = "claiming"
    """The process has claimed the name, and its claim has not come back."""
    MEMBER = "member"
    """The claim came back, and the incarnation counts for its node."""
    REFUSED = "refused"
    """Another data directory has the name: the process stops."""
    REPLACED = "replaced"
    """A later process of this node counts: this one stops."""


STOPPED = frozenset({Place.REFUSED, Place.REPLACED})


class Participant:
    """The knowledge and the decisions of one process. A caller that loses its position in the
    topic, or finds another topic under its name, begins with a new participant."""

    def __init__(
        self,
        member: Member,
        incarnation: str,
        *,
        timing: Timing | None = None,
        start: int = 0,
        epoch_seen: int = 0,
    ) -> None:
        """`start`: first offset of the heartbeats that is kept in the log. `epoch_seen`: from an
        earlier participant of this process."""
        self.member = member
        """The report of this process; the caller replaces it."""
        self.incarnation = incarnation
        self.timing = timing or Timing()
        self.place = Place.NEWCOMER
        self.incarnations = SeenIncarnations(self.timing, incarnation)
        self.control = Controllership(member.node, incarnation, self.timing, epoch_seen)
        self._own = OwnHeartbeats(self.timing)
        self._start = start
        self._heartbeats_read = start
        self._generation = 0
        self._requests: dict[int, Request] = {}
        self._told = (0, 0, 0)
        """Generation, epoch and version of the last heartbeat: the next one is due at once when
        they change, or the report does."""
        self._reported: Member | None = None
        """The report of the last heartbeat that had one."""
        self._reported_ms = 0

    # --- records and answers of the log

    def read_heartbeat(self, offset: int, record: ClusterRecord | None, now_ms: int) -> str | None:
        """Apply a record of the partition HEARTBEATS; None: it is unreadable, and is stepped over.

        Return why a record is ignored, because Chronos did not write it; None if it counts.
        """
        self._heartbeats_read = offset + 1
        if record is None:
            return None
        problem = heartbeat_problem(offset, record, epoch=self.control.epoch, roles=self.roles)
        if problem is None:
            self._read(offset, record, now_ms)
        return problem

    def _read(self, offset: int, record: ClusterRecord, now_ms: int) -> None:
        if isinstance(record, MemberHeartbeat):
            self._apply(record, now_ms)
        elif isinstance(record, Announcement):
            if self.incarnations.counts(record.node, record.incarnation):
                self.control.announced(record)
        elif isinstance(record, LeaveRecord):
            if self.incarnations.leave_record(record):
                self.control.ended_incarnation(record.incarnation)
        elif isinstance(record, Submission):
            self._requests[offset] = record.request

    def _apply(self, heartbeat: MemberHeartbeat, now_ms: int) -> None:
        node = heartbeat.member.node
        before = self.incarnations.get(node)
        reads_on = self.incarnations.heard(heartbeat, backlog=not self._own.returned)
        after = self.incarnations.get(node)
        if before is not None and before is not after:
            self.control.ended_incarnation(before.incarnation)
        if self.incarnations.counts(node, heartbeat.incarnation):
            self.control.heartbeat(heartbeat, reads_on=reads_on)
        if heartbeat.incarnation == self.incarnation:
            ms = self._own.came_back(heartbeat.number, now_ms)
            self.incarnations.passed(ms, self.control.roles_end)
            self.control.passed(ms, self._read_by_others())

    def _read_by_others(self) -> int:
        return max(
            (
                other.roles_read
                for other in self.incarnations.present().values()
                if other.incarnation != self.incarnation
            ),
            default=0,
        )

    def read_roles(self, offset: int, record: RolesRecord | None) -> str | None:
        """Apply a committed record of the partition ROLES; None: it is unreadable, and is stepped
        over.

        Return why a record is ignored, because Chronos did not write it; None if it counts.
        """
        problem = None if record is None else roles_problem(record, self.control.last)
        if record is not None and problem is None:
            self.control.read(offset, record)
            for answered in [at for at in self._requests if at < record.answered]:
                del self._requests[answered]
        self.roles_position(offset + 1)
        return problem

    def roles_position(self, position: int) -> None:
        """Note that the partition ROLES was read up to this position, for example past a
        transaction marker."""
        self.control.position = max(self.control.position, position)

    def settled(self, heartbeat: MemberHeartbeat) -> None:
        """Note that the log acknowledged this heartbeat, or refused it, or did not answer in
        time."""
        self._own.settled(heartbeat.number)

    # --- decisions

    def step(self, now_ms: int) -> list[ClusterRecord]:
        """Return the records to write to the partition HEARTBEATS now, each without waiting for the
        other."""
        self._find_place()
        if self.place in STOPPED:
            self.control.restart()
            return []
        announcement = None
        if self.control.stage is not Stage.FOLLOWING:
            self.control.step(now_ms, seen=self.seen(now_ms))
        elif (
            self.control.is_silent
            and self.confirmed(now_ms)
            and self.control.position >= self._read_by_others()
        ):
            announcement = self.control.stand(now_ms)
        records: list[ClusterRecord] = [] if announcement is None else [announcement]
        is_news = self._reported is not self.member or self._told != self._to_tell()
        if self._own.due(now_ms, at_once=is_news):
            # A heartbeat may be lost, and its report with it: the report is repeated after a
            # timeout.
            is_brief = not is_news and now_ms - self._reported_ms < self.timing.timeout_ms
            records.append(self._heartbeat(now_ms, is_brief=is_brief))
        return records

    def _to_tell(self) -> tuple[int, int, int]:
        return self._generation, self.control.controls, self.control.version

    def _heartbeat(self, now_ms: int, *, is_brief: bool = False) -> MemberHeartbeat:
        self._told = self._to_tell()
        if not is_brief:
            self._reported, self._reported_ms = self.member, now_ms
        return MemberHeartbeat(
            member=replace(self.member, replicas={}) if is_brief else self.member,
            incarnation=self.incarnation,
            number=self._own.write(now_ms),
            generation=self._generation,
            heartbeats_read=self._heartbeats_read,
            roles_read=self.control.position,
            epoch=self.control.epoch_seen,
            controls=self.control.controls,
            version=self.control.version,
            brief=is_brief,
        )

    def _find_place(self) -> None:
        """Claim the name of the node once it is free; stop when another incarnation has it."""
        if not self._own.returned or self.place in STOPPED:
            return
        known = self.incarnations.get(self.member.node)
        if self._generation:
            if known is not None and known.incarnation == self.incarnation:
                self.place = Place.MEMBER
            elif known is not None and known.generation >= self._generation:
                was_first = self.place is Place.MEMBER or self._same_directory(known)
                self.place = Place.REPLACED if was_first else Place.REFUSED
            return
        is_free = known is None or known.member is None or known.left or known.gone
        if is_free or self._same_directory(known):
            # The start of the log counts too, so that this is greater than any generation that was
            # trimmed.
            self._generation = max(0 if known is None else known.generation, self._start) + 1
            self.place = Place.CLAIMING
        elif self.incarnations.heard_for_long(self.member.node):
            self.place = Place.REFUSED

    def _same_directory(self, known: SeenIncarnation | None) -> bool:
        return known is not None and (
            known.member is None or same_directory(known.member, self.member)
        )

    def seen(self, now_ms: int) -> bool:
        """Return whether no other process can have called this one gone: a heartbeat that was
        written lately came back."""
        return self.place is Place.MEMBER and self._own.seen(now_ms)

    def confirmed(self, now_ms: int) -> bool:
        """Return whether the roles that this process has read are up to date: it is seen, and
        others have not read more for long."""
        return self.seen(now_ms) and self.control.behind_ms < self.timing.prompt_ms

    def may_decide(self, now_ms: int) -> bool:
        """Return whether this process is the controller and may publish now."""
        return self.control.stage is Stage.CONTROLLING and self.confirmed(now_ms)

    def publish(self, roles: Roles, answered: int, now_ms: int) -> RolesRecord | None:
        """Return the record to commit for these roles, which were computed from the current view;
        None: nothing is to be written.

        `answered`: position before which all requests are answered with these roles.
        """
        if not self.may_decide(now_ms):
            return None
        own = replace(roles, controller=self.member.node, controller_epoch=self.control.epoch)
        return self.control.publish(own, answered, now_ms)

    def leave(self) -> LeaveRecord | None:
        """Return the record to write on leaving in order; None if this process has no place to give
        up."""
        if not self._generation or self.place in STOPPED:
            return None
        self.control.restart()
        return LeaveRecord(
            node=self.member.node, incarnation=self.incarnation, generation=self._generation
        )

    # --- the view

    @property
    def returned(self) -> int:
        """Number of the heartbeat of this process that came back last; 0: none did."""
        return self._own.returned

    @property
    def is_forgotten(self) -> bool:
        """Return whether another client wrote a leave record in the name of this incarnation, which
        no longer counts."""
        known = self.incarnations.get(self.member.node)
        return known is not None and known.incarnation == self.incarnation and known.left

    @property
    def stage(self) -> Stage:
        """The stage on the way to being the controller, which says what the caller has to do."""
        return self.control.stage

    @property
    def roles(self) -> Roles | None:
        """The last roles; None without any."""
        return None if self.control.last is None else self.control.last.roles

    def members(self) -> dict[str, Member]:
        """Return the reports of the members that are present."""
        return {
            node: known.member
            for node, known in self.incarnations.present().items()
            if known.member is not None
        }

    def requests(self) -> list[tuple[int, Request]]:
        """Return the requests without an answer, with their offsets, oldest first."""
        answered = 0 if self.control.last is None else self.control.last.answered
        return [
            (offset, self._requests[offset])
            for offset in sorted(self._requests)
            if offset >= answered
        ]
