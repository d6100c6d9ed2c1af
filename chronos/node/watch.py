"""The shard watch: a thread that judges every second whether a shard stands still, and says so.

The judgement needs no request, because a request would wait for the very brokers that may have caused the stall. The
maintenance thread asks for the ends of the partitions, with `look`.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from chronos.errors import ChronosError, Retry
from chronos.node.driver import ShardDriver, run_guarded
from chronos.ports import Clock, TopicLog
from chronos.workers.replica_state import ReplicaState
from chronos.workers.stall import JUDGE_EVERY_MS, REPLAYING, StallJudge, facts_of

log = structlog.get_logger("chronos.shard")

LOG_EVERY_MS = 60_000
"""Time between two log lines about the same stall, and about shards that read slowly."""


class ShardWatch:
    """Judges all shards of a node, from `start` to `stop`."""

    def __init__(
        self,
        shards: Sequence[ShardDriver],
        log_port: TopicLog,
        *,
        delay_topic: str,
        progress_topic: str,
        clock: Clock,
        failed: Callable[[ChronosError], None],
    ) -> None:
        """`failed`: called with the error that ended the thread."""
        self._shards = shards
        self._to_look_at = deque(shards)
        self._log = log_port
        self._delay_topic = delay_topic
        self._progress_topic = progress_topic
        self._clock = clock
        self._judges = {shard.number: StallJudge() for shard in shards}
        self._logged_ms: dict[int, int] = {}
        self._delayed_ms: int | None = None
        """When shards that read slowly were last logged; None: there are none."""
        self._delay_ends: dict[int, int] = {}
        self._progress_ends: dict[int, int] = {}
        self._stopping = threading.Event()
        self.thread = threading.Thread(target=run_guarded, args=("watch", self._run, failed), name="watch", daemon=True)

    def look(self) -> None:
        """Ask for the end of the partition that each replica reads. For the maintenance thread: it may take seconds.

        After one that cannot be asked for, the next call goes on: one partition without a leader must not hide the others.
        """
        for _ in self._shards:
            shard = self._to_look_at[0]
            self._to_look_at.rotate(-1)
            role, number = shard.role, shard.number
            try:
                if role == ReplicaState.MASTER:
                    self._delay_ends[number] = self._log.stable_end(self._delay_topic, number)
                elif role in REPLAYING:
                    self._progress_ends[number] = self._log.stable_end(self._progress_topic, number)
            except Retry:
                return  # the shards pause for the same reason and report it; the ends known so far remain true

    def start(self) -> None:
        """Start the thread; which shards read in bounded memory is logged at once."""
        self.log_delayed(time.monotonic_ns() // 1_000_000)
        self.thread.start()

    def stop(self) -> None:
        """Ask the thread to end."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(JUDGE_EVERY_MS / 1_000):
            for shard in self._shards:
                self._judge(shard, time.monotonic_ns() // 1_000_000)
            self.log_delayed(time.monotonic_ns() // 1_000_000)

    def log_delayed(self, monotonic_ms: int) -> None:
        """Log once a minute which shards read slowly, or wait to read, in one line for all, and when none does any longer."""
        delayed = {shard.number: why for shard in self._shards if (why := shard.replica.delayed) is not None}
        if not delayed:
            if self._delayed_ms is not None:
                log.info("no longer reading in bounded memory")
            self._delayed_ms = None
        elif self._delayed_ms is None or monotonic_ms - self._delayed_ms >= LOG_EVERY_MS:
            self._delayed_ms = monotonic_ms
            # The texts differ in that those of readers that are open end with how many of them wait.
            log.warning("reading in bounded memory", shards=sorted(delayed), why=max(delayed.values(), key=len))

    def _judge(self, shard: ShardDriver, monotonic_ms: int) -> None:
        number, judge, now_ms = shard.number, self._judges[shard.number], self._clock.now_ms()
        facts = facts_of(
            shard.replica,
            now_ms=now_ms,
            delay_end=self._delay_ends.get(number),
            progress_end=self._progress_ends.get(number),
        )
        stalled = judge.step(monotonic_ms, facts)
        # A shard that reads slowly says so itself, and its step may wait for its turn.
        if not stalled or shard.replica.delayed is not None:
            if shard.stalled_ms:
                shard.stalled_ms, shard.stall = 0, None
                log.info("moves again", shard=number)
            return
        if not shard.stalled_ms:
            shard.stalls += 1
            self._logged_ms[number] = monotonic_ms - LOG_EVERY_MS
        shard.stalled_ms = judge.stalled_ms
        replica = shard.replica
        shard.stall = judge.reason(now_ms=now_ms, step_began_ms=shard.step_began_ms, trouble=replica.trouble)
        if monotonic_ms - self._logged_ms[number] >= LOG_EVERY_MS:
            self._logged_ms[number] = monotonic_ms
            log.error("stalled", shard=number, seconds=judge.stalled_ms // 1_000, why=shard.paused)
