"""The thread of a member: it reads both partitions of the topic `chronos.cluster`, and does what
`core.cluster.kafka.participant` decides.

It waits for records, and for an answer only to step over a batch that cannot be read or to register
anew: an attempt to become controller has a thread of its own (`roles.RolesWriter`). A process whose
position is no longer in the log registers anew, and keeps meanwhile the roles that it had."""

import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

import structlog

from chronos.adapters.kafka.cluster.heartbeats import LINES_S, HeartbeatWriter, Settled
from chronos.adapters.kafka.cluster.reader import ClusterReader, Forgotten, TopicEntry
from chronos.adapters.kafka.cluster.roles import RolesWriter
from chronos.adapters.kafka.cluster.topic import ClusterTopic
from chronos.core.cluster.kafka.controllership import Controllership, Stage
from chronos.core.cluster.kafka.participant import STOPPED, Participant, Place
from chronos.core.cluster.kafka.records import (
    HEARTBEATS,
    ROLES,
    ClusterRecord,
    MemberHeartbeat,
    RecordUnreadable,
    unpack_record,
    unpack_roles,
)
from chronos.core.cluster.roles import (
    PROGRESS_EVERY_S,
    Member,
    Request,
    Roles,
)
from chronos.core.cluster.timing import Timing
from chronos.errors import ChronosError

log = structlog.get_logger("chronos.cluster")

POLL_S = 0.025
"""Longest wait of the loop for a record, and so for what this process writes."""

KNOWN_HEARTBEATS = 2
"""A newcomer knows the other members after so many intervals between heartbeats: each of them has
written one."""

CLOSE_S = 2.0
"""How long the brokers may take for a leave record, and the loop to end."""

AGAIN_S = 1.0
"""Pause before this process tries again to register anew, or looks again whether the topic is
there."""

WHY_CHARACTERS = 300
"""Longest text about an ignored record: the decoder quotes what it finds, which may be long."""

TRIM_MS = 60_000
"""How often the controller trims the topic. What was written since the time before stays, for
newcomers."""

Plan = Callable[[Participant, tuple[Request, ...]], Roles]
"""Returns the roles for what the participant knows, and the requests without an answer."""


class ClusterLoop:
    """A membership from one `join` to the next: its thread, and what it has read. Any thread may
    read; `control` is for one thread."""

    def __init__(
        self,
        topic: ClusterTopic,
        reader: ClusterReader,
        member: Member,
        timing: Timing,
        transaction_timeout_s: float,
        woken: threading.Event,
    ) -> None:
        """`topic`, which is open, and `reader` are closed by this loop. `woken` is set when a
        snapshot may have changed."""
        self.roles: Roles | None = None
        """The last roles; None before the first decision."""
        self.members: Mapping[str, Member] = {}
        self.since_ms: Mapping[str, int] = {}
        """Member -> when this process first read a heartbeat of its incarnation (epoch ms)."""
        self._topic = topic
        self._reader = reader
        self._timing = timing
        self._transaction_timeout_s = transaction_timeout_s
        self._woken = woken
        self._ahead_ms = time.time_ns() // 1_000_000 - _now_ms()
        self._lock = threading.Lock()
        """Guards the participant."""
        self._incarnations: set[str] = set()
        """The incarnations of this process, the current one included."""
        self._participant = self._register(member)
        self._heartbeats = HeartbeatWriter(topic.connection, topic.name, timing.timeout_ms)
        self._roles_writer: RolesWriter | None = None
        self._outbox: queue.SimpleQueue[tuple[ClusterRecord, Settled]] = queue.SimpleQueue()
        self._kept: Roles | None = None
        """The roles from before this process registered anew, until there are others."""
        self._seen: dict[str, tuple[str, int]] = {}
        """Member -> its incarnation, and when this process first read of it (epoch ms)."""
        self._returned_ms: int | None = None
        """When the first heartbeat came back."""
        self._published_s = -PROGRESS_EVERY_S
        self._checked_s = time.monotonic()
        self._is_same: Future[bool] | None = None
        """The answer of the last look whether the topic is there, which may not have come yet."""
        self._trimmed_ms = _now_ms()
        self._trim_to: tuple[int, int] | None = None
        self._forgotten = ""
        """Why this process has to register anew; empty if it need not."""
        self._ignored_records = 0
        """Records that were ignored since the last line about them."""
        self._ignored_s = -LINES_S
        self._unwritten = ""
        """Why the last heartbeat was not written; empty if it was."""
        self._told_last: tuple[bool, Stage, int] = (False, Stage.FOLLOWING, 0)
        self._leaving = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)
        self._thread.start()

    def _register(self, member: Member, epoch_seen: int = 0) -> Participant:
        incarnation = uuid.uuid4().hex
        self._incarnations.add(incarnation)
        return Participant(
            member,
            incarnation,
            timing=self._timing,
            start=self._reader.start,
            epoch_seen=epoch_seen,
        )

    # --- what is known; any thread

    @property
    def place(self) -> Place:
        """The place of this process in the cluster."""
        return self._participant.place

    @property
    def returned(self) -> int:
        """Grows with the heartbeats that came back."""
        return self._participant.returned

    @property
    def holder(self) -> Member | None:
        """The member that has the name of this node, as it reports."""
        known = self._participant.incarnations.get(self._participant.member.node)
        return None if known is None else known.member

    @property
    def _holder_incarnation(self) -> str:
        known = self._participant.incarnations.get(self._participant.member.node)
        return "" if known is None else known.incarnation

    @property
    def seen(self) -> bool:
        """True while the heartbeats of this process come back in time."""
        return self._participant.seen(_now_ms())

    @property
    def confirmed(self) -> bool:
        """True while `roles` are up to date."""
        is_read = self._reader.caught_up and self._kept is None
        return is_read and not self.lost and self._participant.confirmed(_now_ms())

    @property
    def settled(self) -> bool:
        """True once this process is a member that knows the roles and the other members."""
        known_ms = KNOWN_HEARTBEATS * self._timing.heartbeat_ms
        return (
            self.confirmed
            and self._returned_ms is not None
            and _now_ms() - self._returned_ms >= known_ms
        )

    @property
    def ended(self) -> bool:
        """True if the loop has ended, in order or by an error."""
        return not self._thread.is_alive()

    @property
    def lost(self) -> bool:
        """True if this process no longer has a place in the cluster."""
        return (
            self._participant.place in STOPPED
            or self._participant.is_forgotten
            or self._leaving
            or self.ended
        )

    @property
    def problem(self) -> str:
        """Why heartbeats do not come back, as far as it is known; may be empty."""
        return self._reader.problem or self._unwritten

    def wall_ms(self) -> int:
        """Return epoch milliseconds by the clock as it was at the start: setting it must not make a
        member look older."""
        return self._ahead_ms + _now_ms()

    # --- verbs

    def report(self, member: Member) -> None:
        """Report this with the next heartbeat."""
        with self._lock:
            self._participant.member = member

    def write(self, record: ClusterRecord, timeout_s: float) -> str | None:
        """Write a record and wait until it is durable; return why it is not known to be, or
        None."""
        outcome: Future[str | None] = Future()
        self._outbox.put(
            (record, lambda offset, why: outcome.set_result(None if offset is not None else why))
        )
        try:
            return outcome.result(timeout_s)
        except FutureTimeout:
            return f"a record was not acknowledged within {timeout_s:g} s"

    def control(self, plan: Plan, timeout_s: float) -> bool:
        """If this process may decide, publish the roles of the plan and wait so long for it; return
        whether it may."""
        with self._lock:
            participant, writer = self._participant, self._roles_writer
            last = participant.control.last
            if writer is None or last is None or not participant.may_decide(_now_ms()):
                return False
            requests = participant.requests()
        planned = plan(participant, tuple(request for _, request in requests))
        answered = max(last.answered, requests[-1][0] + 1 if requests else 0)
        is_progress = not requests and planned.decisions == last.roles.decisions
        if is_progress and time.monotonic() - self._published_s < PROGRESS_EVERY_S:
            planned = last.roles
        with self._lock:
            present = participant.control.last
            if (
                writer is not self._roles_writer
                or present is None
                or present.version != last.version
            ):
                return False
            record = participant.publish(planned, answered, _now_ms())
            if record is None:
                return participant.may_decide(_now_ms())
            self._published_s = time.monotonic()
            done = writer.commit(record)
        done.wait(timeout_s)
        with self._lock:
            return participant.may_decide(_now_ms())

    def leave_record(self) -> None:
        """Give up the place of this process, and wait until that is durable."""
        with self._lock:
            self._leaving = True
            leave_record = self._participant.leave()
            self._act()
        if leave_record is not None and not self.ended:
            self.write(leave_record, CLOSE_S)

    def end(self) -> None:
        """End the loop and release the clients."""
        self._ending.set()
        self._woken.set()
        self._thread.join(CLOSE_S)

    # --- the loop

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                try:
                    self._turn()
                except Forgotten as error:
                    self._register_anew(str(error))
        except Exception as error:
            # The node joins again: `lost`.
            log.exception("heartbeats ended", why=str(error))
        finally:
            self._ending.set()
            with self._lock:
                self._abandon()
            self._heartbeats.close()
            self._reader.close()
            self._topic.close()
            self._woken.set()

    def _turn(self) -> None:
        """1. Read, 2. decide, 3. write, 4. take over or step down."""
        # 1.
        entries = self._reader.poll(POLL_S)
        self._check()
        with self._lock:
            self._heartbeats.poll()
            if self._forgotten:
                raise Forgotten(self._forgotten)
            for entry in entries:
                self._apply(entry)
            self._participant.roles_position(self._reader.positions[ROLES])
            # 2.
            records = [] if self._leaving else self._participant.step(_now_ms())
            if self.place in STOPPED and self._holder_incarnation in self._incarnations:
                raise Forgotten("a record of an earlier incarnation of this process came late")
            # 3.
            for record in records:
                self._heartbeats.write(record, self._settling(record))
            while not self._outbox.empty():
                self._heartbeats.write(*self._outbox.get())
            # 4.
            self._act()
            self._look()

    def _check(self) -> None:
        """While heartbeats do not come back, look whether the topic is there: the client does not
        tell for 30 s (measured).

        A frozen broker holds the answer up for the time of a request, and the loop must not wait
        for it when the broker wakes."""
        if self.seen or self.place is not Place.MEMBER:
            return
        if self._is_same is not None:
            if self._is_same.done():
                is_same, self._is_same = self._is_same.result(), None
                if not is_same:
                    raise Forgotten("the topic was deleted")
        elif time.monotonic() - self._checked_s >= AGAIN_S:
            self._checked_s = time.monotonic()
            self._is_same = Future()
            threading.Thread(
                target=self._look_for_topic, args=(self._is_same,), name="topic", daemon=True
            ).start()

    def _look_for_topic(self, answer: "Future[bool]") -> None:
        try:
            answer.set_result(self._topic.is_same())
        except Exception as error:
            answer.set_exception(error)

    def _apply(self, entry: TopicEntry) -> None:
        participant = self._participant
        try:
            if entry.partition == HEARTBEATS:
                problem = participant.read_heartbeat(
                    entry.offset, unpack_record(entry.value), _now_ms()
                )
            else:
                problem = participant.read_roles(entry.offset, unpack_roles(entry.value))
        except RecordUnreadable as error:
            problem = str(error)
            if entry.partition == HEARTBEATS:
                participant.read_heartbeat(entry.offset, None, _now_ms())
            else:
                participant.read_roles(entry.offset, None)
        if problem is not None:
            self._ignored(entry, problem)

    def _ignored(self, entry: TopicEntry, why: str) -> None:
        """Log a record that is ignored: the first one at once, the next ones together after a
        pause."""
        self._ignored_records += 1
        now_s = time.monotonic()
        if now_s - self._ignored_s >= LINES_S:
            log.warning(
                "record of the cluster topic ignored",
                partition=entry.partition,
                offset=entry.offset,
                why=why[:WHY_CHARACTERS],
                records=self._ignored_records,
            )
            self._ignored_records, self._ignored_s = 0, now_s

    def _settling(self, record: ClusterRecord) -> Settled:
        """Return the callback for the outcome of a record, which is appended after what this
        process has read."""
        read = self._reader.positions[HEARTBEATS]
        participant = self._participant

        def settled(offset: int | None, why: str) -> None:
            if isinstance(record, MemberHeartbeat):
                participant.settled(record)
            self._unwritten = why
            if offset is not None and offset < read:
                self._forgotten = (
                    f"a record was appended at {offset}, and {read} were read: the topic is "
                    "another one"
                )

        return settled

    def _look(self) -> None:
        """Keep what other threads may ask for, and wake them when it changed."""
        participant = self._participant
        if self._returned_ms is None and participant.returned:
            self._returned_ms = _now_ms()
        roles = participant.roles
        if roles is not None and not roles.are_empty:
            self._kept = None
        else:
            roles = self._kept
        present = participant.incarnations.present()
        members = {
            node: incarnation.member
            for node, incarnation in present.items()
            if incarnation.member is not None
        }
        for node, incarnation in present.items():
            if self._seen.get(node, ("", 0))[0] != incarnation.incarnation:
                self._seen[node] = (incarnation.incarnation, self.wall_ms())
        for node in self._seen.keys() - present.keys():
            del self._seen[node]
        # The controller is woken for a request, and to publish its first roles.
        told = self.confirmed, participant.stage, len(participant.requests())
        if told != self._told_last or roles != self.roles or members != self.members:
            self.roles, self.members, self._told_last = roles, members, told
            self.since_ms = {node: since_ms for node, (_, since_ms) in self._seen.items()}
            self._woken.set()

    # --- taking over, controlling, stepping down

    def _act(self) -> None:
        participant = self._participant
        if participant.stage in {Stage.FOLLOWING, Stage.STANDING}:
            self._abandon()
            return
        writer = self._roles_writer
        if writer is None:
            writer = RolesWriter(
                self._topic, timeout_s=self._transaction_timeout_s, tell=self._told
            )
            self._roles_writer = writer
        writer.act(participant.stage, participant.control.writing)
        if participant.stage is Stage.CONTROLLING:
            self._trim(writer)

    def _abandon(self) -> None:
        if self._roles_writer is not None:
            self._roles_writer.abandon()
            self._roles_writer, self._trim_to = None, None

    def _told(self, writer: RolesWriter, apply: Callable[[Controllership, int], None]) -> None:
        """Apply a result of the attempt, in its thread; nothing if the attempt was abandoned."""
        with self._lock:
            if writer is self._roles_writer:
                apply(self._participant.control, _now_ms())
                self._look()

    def _trim(self, writer: RolesWriter) -> None:
        """Delete what was written before the last time, never the last roles nor a request without
        an answer."""
        now_ms = _now_ms()
        if now_ms - self._trimmed_ms < TRIM_MS:
            return
        self._trimmed_ms = now_ms
        if self._trim_to is not None:
            heartbeats, roles = self._trim_to
            requests = [offset for offset, _ in self._participant.requests()]
            writer.trim(min([heartbeats, *requests]), roles)
        self._trim_to = self._reader.positions[HEARTBEATS], self._participant.control.roles_end - 1

    def _register_anew(self, why: str) -> None:
        """Forget what was read, but neither the roles, with which masters go on, nor the epochs."""
        log.warning("registers anew", topic=self._topic.name, why=why)
        with self._lock:
            self._abandon()
            self._participant.control.restart()
        self._reader.close()
        self._heartbeats.close()
        while not self._ending.is_set():
            try:
                self._topic.open()
                self._reader = self._topic.reader()
            except ChronosError as error:
                self._unwritten = str(error)
                self._ending.wait(AGAIN_S)
                continue
            break
        with self._lock:
            self._forgotten, self._returned_ms, self._is_same = "", None, None
            self._kept = self.roles
            before = self._participant
            self._heartbeats = HeartbeatWriter(
                self._topic.connection, self._topic.name, self._timing.timeout_ms
            )
            self._participant = self._register(before.member, before.control.epoch_seen)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
