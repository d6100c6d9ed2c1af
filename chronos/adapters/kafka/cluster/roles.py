"""The transactional producer of roles: one attempt of a process to become the controller and to
remain it, in a thread of its own."""

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import structlog

from chronos.adapters.kafka.cluster.topic import ClusterTopic
from chronos.adapters.kafka.writer import KafkaWriter, Throttling
from chronos.core.cluster.kafka.controllership import Controllership, Stage
from chronos.core.cluster.kafka.records import HEARTBEATS, ROLES, RolesRecord, pack_record
from chronos.errors import ChronosError, LogUnavailable

log = structlog.get_logger("chronos.cluster")

ASK_AGAIN_S = 0.05
"""Pause before the end of the partition ROLES is asked for again."""

Tell = Callable[["RolesWriter", Callable[[Controllership, int], None]], None]
"""Applies a result of a RolesWriter to the controllership, with the time of the monotonic clock in
ms; nothing if another RolesWriter has begun."""


class RolesWriter:
    """One attempt to become the controller and to remain it, in a thread of its own: every call may
    wait for the brokers.

    The transactional producer fences those of all earlier attempts, of every process. After any
    error, or an unclear outcome, the attempt has failed; the next one begins with a new producer.
    """

    def __init__(self, topic: ClusterTopic, *, timeout_s: float, tell: Tell) -> None:
        """`timeout_s`: longest transaction."""
        self._topic = topic
        self._timeout_s = timeout_s
        self._tell = tell
        self._writer: KafkaWriter | None = None
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._abandoned = threading.Event()
        self.stage: Stage | None = None
        """The last stage that it was asked to act on."""
        self._is_untrimmed = False
        """The last trim failed, and that is logged: an outage is one line."""
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)
        self._thread.start()

    # --- called by the loop; none of these waits

    def act(self, stage: Stage, opening: RolesRecord | None) -> None:
        """Do what a new stage asks for. `opening`: the epoch record, in the stage OPENING."""
        if stage is self.stage:
            return
        self.stage = stage
        if stage in {Stage.READING, Stage.READING_AGAIN}:
            self._jobs.put(lambda: self._ask_end(stage))
        elif stage is Stage.FENCING:
            self._jobs.put(self._fence)
        elif stage is Stage.OPENING and opening is not None:
            self.commit(opening)

    def commit(self, record: RolesRecord) -> threading.Event:
        """Commit a record in a transaction; the event is set once its outcome is applied."""
        done = threading.Event()
        self._jobs.put(lambda: self._commit(record, done))
        return done

    def trim(self, heartbeats: int, roles: int) -> None:
        """Delete the records before these offsets."""
        self._jobs.put(lambda: self._trim(heartbeats, roles))

    def abandon(self) -> None:
        """End the attempt: the thread ends after the call that it waits for, and nothing that it
        finds is applied."""
        if not self._abandoned.is_set() and self.stage is not Stage.CONTROLLING:
            # One that takes too long is repeated: if this line comes again and again, the brokers
            # are too slow for the timeout.
            log.info("controller: an attempt ended", stage=self.stage)
        self._abandoned.set()
        self._jobs.put(None)

    # --- in its thread

    def _run(self) -> None:
        try:
            while not self._abandoned.is_set() and (job := self._jobs.get()) is not None:
                job()
        finally:
            if self._writer is not None:
                self._writer.close()

    def _ask_end(self, stage: Stage) -> None:
        """Ask until there is an answer, or the attempt is abandoned because it took too long."""
        while not self._abandoned.is_set():
            with suppress(LogUnavailable):
                end = self._end(stage)
                if end is not None:
                    self._tell(self, partial(_ended, stage, end))
                    return
            self._abandoned.wait(ASK_AGAIN_S)

    def _end(self, stage: Stage) -> int | None:
        if stage is Stage.READING:
            return self._topic.stable_end(ROLES)
        ends = self._topic.watermarks(ROLES)
        return ends.high if ends.stable == ends.high else None

    def _fence(self) -> None:
        try:
            self._writer = KafkaWriter(
                self._topic.connection,
                transactional_id=f"chronos-{self._topic.id}-controller",
                progress_topic=self._topic.name,
                shard=ROLES,
                throttling=Throttling(self._timeout_s),
                small_batch_topics={},
                failure=(
                    "becoming controller: the last transaction of the controller before was not "
                    "resolved"
                ),
            )
        except ChronosError as error:
            self._failed(error)
        else:
            self._tell(self, lambda control, now_ms: control.fenced(now_ms))

    def _commit(self, record: RolesRecord, done: threading.Event) -> None:
        try:
            assert self._writer is not None
            self._writer.send([], pack_record(record))
            self._writer.commit(lambda timestamp_ms, others: None)
        except ChronosError as error:
            self._failed(error)
        else:
            self._tell(self, lambda control, now_ms: control.committed(record, now_ms))
        finally:
            done.set()

    def _failed(self, error: ChronosError) -> None:
        if not self._abandoned.is_set():
            log.info("controller: an attempt failed", stage=self.stage, why=str(error))
        self._tell(self, lambda control, _: control.failed())

    def _trim(self, heartbeats: int, roles: int) -> None:
        try:
            self._topic.trim(HEARTBEATS, heartbeats)
            self._topic.trim(ROLES, roles)
        except LogUnavailable as error:
            if not self._is_untrimmed:
                log.warning("cluster topic not trimmed", why=str(error))
            self._is_untrimmed = True
        else:
            self._is_untrimmed = False


def _ended(stage: Stage, end: int, control: Controllership, now_ms: int) -> None:
    control.ended(stage, end)
