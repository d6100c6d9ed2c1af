"""The controllership on Kafka: the stages in which a member becomes the controller, how long the
controller has been silent, which record is to be committed next, and when this process steps down.

`participant` decides when to stand and when to publish: only while this process is seen, and has
read the roles as far as the others.

The controller is the master of the partition ROLES, and takes over as masters of shards do: read to
the end, fence, read to the end again, commit an epoch record, only then decide. A controller that
is called silent by mistake is replaced without need; the fencing of the log lets only one commit.
"""

from enum import StrEnum

from msgspec.structs import replace

from chronos.core.cluster.kafka.heartbeats import TimeSince
from chronos.core.cluster.kafka.records import Announcement, MemberHeartbeat, RolesRecord
from chronos.core.cluster.roles import Roles
from chronos.core.cluster.timing import Timing

REPUBLISH_MS = 30_000
"""Time after which the controller publishes the roles again although they are the same."""


class Stage(StrEnum):
    """How far a member is on the way to being the controller."""

    FOLLOWING = "following"
    """Another member is the controller, or no member is. A process that comes back to this stage
    discards its producer."""
    STANDING = "standing"
    """Its announcement has not come back yet."""
    READING = "reading"
    """The process reads the roles to their end. Next: `ended` with the last stable offset of the
    partition."""
    FENCING = "fencing"
    """The process fences all others with `init_transactions`, and goes on with its heartbeats
    meanwhile. Next: `fenced`."""
    READING_AGAIN = "reading again"
    """The process reads the records that others committed before they were fenced. Next: `ended`
    with the high watermark of the partition, once the last stable offset is equal to it."""
    OPENING = "opening"
    """The process commits its epoch record. Next: `committed`."""
    CONTROLLING = "controlling"
    """The process is the controller until it reads roles of another one, or is fenced."""


FENCED = frozenset({Stage.READING_AGAIN, Stage.OPENING, Stage.CONTROLLING})
"""The stages in which this process has a producer that may commit."""


class Controllership:
    """One member's view of the controller, and its own way to become it."""

    def __init__(self, node: str, incarnation: str, timing: Timing, epoch_seen: int) -> None:
        self._node = node
        self._incarnation = incarnation
        self._timing = timing
        self.stage = Stage.FOLLOWING
        self.epoch_seen = epoch_seen
        """The greatest controller epoch that this process has read, also through an earlier
        participant."""
        self.last: RolesRecord | None = None
        """The last roles."""
        self.roles_end = 0
        """Position after the last roles read."""
        self.position = 0
        """Position in the partition ROLES."""
        self._since_ms = 0
        self._announcements = 0
        self._end: int | None = None
        self.writing: RolesRecord | None = None
        """The record of the transaction that is open."""
        self._published_ms = 0
        self._announced_version = 0
        self._silence = TimeSince()
        """Since a heartbeat of the controller showed that it goes on reading."""
        self._lag = TimeSince()
        """Since the controller reported to have read the last roles, or some more of that
        partition."""
        self._unpublished = TimeSince()
        """Since a record appeared on the partition ROLES, while the controller says that it
        publishes one."""
        self._read_by_controller = 0
        self._behind = TimeSince()
        """Since this process had read as much of the roles as any other member."""

    # --- as any member

    @property
    def epoch(self) -> int:
        """The epoch of the last roles; 0 without any."""
        return 0 if self.last is None else self.last.epoch

    @property
    def version(self) -> int:
        """The version that this controller has published, or is about to publish."""
        record = self.writing or self.last
        return record.version if record is not None and self.stage in FENCED else 0

    @property
    def controls(self) -> int:
        """The epoch under which this process is the controller; 0: it is not."""
        return self.epoch if self.stage is Stage.CONTROLLING else 0

    @property
    def behind_ms(self) -> int:
        """Time for which other members had read more of the roles than this process."""
        return self._behind.ms

    def restart(self) -> None:
        """Follow, and count the silence of the controller from here."""
        self.stage, self.writing, self._end = Stage.FOLLOWING, None, None
        self._count_again()

    def _count_again(self, from_ms: int = 0) -> None:
        for quiet in (self._silence, self._lag, self._unpublished):
            quiet.restart(from_ms)

    def read(self, offset: int, record: RolesRecord) -> None:
        """Apply a record of the partition ROLES."""
        self.position = max(self.position, offset + 1)
        if self.last is not None and (record.epoch, record.version) < (
            self.last.epoch,
            self.last.version,
        ):
            return
        is_new = record.epoch > self.epoch
        self.last, self.roles_end = record, offset + 1
        self.epoch_seen = max(self.epoch_seen, record.epoch)
        self._unpublished.happened()
        if record.incarnation == self._incarnation or not is_new:
            return
        self._read_by_controller, self._announced_version = 0, 0
        # Once this process has fenced, only its own epoch is to come: another one was committed
        # before, or means that it is deposed.
        if self.stage in {Stage.FENCING, Stage.READING_AGAIN}:
            self._count_again()
        else:
            self.restart()
        self._silence.happened()

    def heartbeat(self, heartbeat: MemberHeartbeat, *, reads_on: bool) -> None:
        """Apply a heartbeat of an incarnation that counts. `reads_on`: it shows that the process
        goes on reading the heartbeats."""
        self.epoch_seen = max(self.epoch_seen, heartbeat.epoch, heartbeat.controls)
        if heartbeat.incarnation == self._incarnation:
            return
        # A controller whose epoch record this process has not read yet counts as well.
        is_later = heartbeat.controls > self.epoch
        if not is_later and (
            heartbeat.controls < self.epoch or not self._published_last(heartbeat.incarnation)
        ):
            return
        self._announced_version = heartbeat.version
        if heartbeat.roles_read > self._read_by_controller:
            self._lag.happened()
        self._read_by_controller = heartbeat.roles_read
        if reads_on:
            self._silence.happened()

    def _published_last(self, incarnation: str) -> bool:
        return self.last is not None and self.last.incarnation == incarnation

    def ended_incarnation(self, incarnation: str) -> None:
        """Note that an incarnation left or was replaced. If it was the controller, another member
        stands at once, without waiting for the timeout."""
        if self._published_last(incarnation):
            self._silence.ms = self._timing.timeout_ms

    def announced(self, announcement: Announcement) -> None:
        """Apply an announcement of an incarnation that counts: the first one since the last
        heartbeat of the controller may fence."""
        if announcement.incarnation != self._incarnation:
            if self.stage is Stage.STANDING:
                self.restart()
            elif self.stage is Stage.FOLLOWING:
                self._count_again()
        elif self.stage is Stage.STANDING and announcement.number == self._announcements:
            self.stage, self._end = Stage.READING, None

    def passed(self, ms: int | None, read_by_others: int) -> None:
        """Count the time between two own heartbeats; None: it does not count, and everything is
        counted from here.

        `read_by_others`: greatest position in the partition ROLES that another member reports.
        """
        is_behind = self.position < read_by_others
        if ms is None:
            self._count_again()
            return
        if is_behind:
            self._behind.passed(ms)
        else:
            self._behind.restart()
        self._silence.passed(ms)
        # What this process has not read itself cannot be asked of the controller.
        if is_behind or self._read_by_controller >= self.roles_end:
            self._lag.restart()
        else:
            self._lag.passed(ms)
        if is_behind or self.last is None or self._announced_version <= self.last.version:
            self._unpublished.restart()
        else:
            self._unpublished.passed(ms)

    # --- on the way to being the controller

    @property
    def is_silent(self) -> bool:
        """Return whether for one timeout the controller sent no heartbeat, did not read the roles,
        or did not publish them. Then a member that is seen, and has read as much of the roles as
        the others, stands as candidate."""
        return max(self._silence.ms, self._lag.ms, self._unpublished.ms) >= self._timing.timeout_ms

    def stand(self, now_ms: int) -> Announcement:
        """Stand as candidate; return the announcement to write."""
        self.stage, self._since_ms = Stage.STANDING, now_ms
        self._announcements += 1
        return Announcement(
            node=self._node, incarnation=self._incarnation, number=self._announcements
        )

    def step(self, now_ms: int, *, seen: bool) -> None:
        """Move to the next stage if it needs nothing else from outside, or back to the first if it
        takes too long."""
        if self.stage in {Stage.FOLLOWING, Stage.CONTROLLING}:
            return
        if now_ms - self._since_ms >= self._timing.timeout_ms:
            self.failed()
        elif self._end is not None and self.position >= self._end:
            if self.stage is Stage.READING_AGAIN:
                self._move(Stage.OPENING, now_ms)
            elif seen:
                self._move(Stage.FENCING, now_ms)
            else:
                self.restart()

    def _move(self, stage: Stage, now_ms: int) -> None:
        self.stage, self._since_ms, self._end = stage, now_ms, None
        if stage is Stage.OPENING:
            before = self.last
            roles = replace(
                Roles() if before is None else before.roles,
                controller=self._node,
                controller_epoch=max(self.epoch, self.epoch_seen) + 1,
            )
            self.writing = RolesRecord(
                incarnation=self._incarnation,
                version=1 if before is None else before.version + 1,
                answered=0 if before is None else before.answered,
                roles=roles,
            )

    def ended(self, stage: Stage, end: int) -> None:
        """Take the end of the partition ROLES, which was requested in this stage."""
        if stage is self.stage and stage in {Stage.READING, Stage.READING_AGAIN}:
            self._end = end

    def fenced(self, now_ms: int) -> None:
        """Note that all earlier controllers are fenced."""
        if self.stage is Stage.FENCING:
            self._move(Stage.READING_AGAIN, now_ms)

    def failed(self) -> None:
        """Follow again after a stage failed, this process was fenced, or the outcome of its
        transaction is unknown; the caller discards the producer.

        This process counts half a timeout longer than the others, so that a member that always
        fails is not always the first to stand."""
        self.restart()
        self._count_again(-self._timing.timeout_ms // 2)

    def committed(self, record: RolesRecord, now_ms: int) -> None:
        """Note that this process has committed the record."""
        if record is not self.writing:
            return
        self.writing = None
        self._published_ms = now_ms
        if self.stage is Stage.OPENING:
            self.stage = Stage.CONTROLLING
        if self.last is None or (record.epoch, record.version) > (
            self.last.epoch,
            self.last.version,
        ):
            self.last = record
            self.epoch_seen = max(self.epoch_seen, record.epoch)

    def publish(self, roles: Roles, answered: int, now_ms: int) -> RolesRecord | None:
        """Return the record to commit for these roles; None if there is nothing new, or if a
        transaction is open."""
        last = self.last
        if self.stage is not Stage.CONTROLLING or self.writing is not None or last is None:
            return None
        is_news = roles != last.roles or answered > last.answered
        if not is_news and now_ms - self._published_ms < REPUBLISH_MS:
            return None
        assert roles.controller_epoch == last.epoch, (
            "a controller publishes under its own epoch only"
        )
        self.writing = RolesRecord(
            incarnation=self._incarnation, version=last.version + 1, answered=answered, roles=roles
        )
        return self.writing
