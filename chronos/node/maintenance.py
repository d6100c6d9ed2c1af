"""The work of a node beside its shards: the jobs of the maintenance thread, the compaction of its
stores, and the pings of its log. Each function here is the target of one thread.

A job of the maintenance thread that meets a Retry is logged, and runs again after its interval; the
other jobs run all the same. Any other error ends the thread."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence

import structlog

from chronos.adapters.rocksdb import RocksStore
from chronos.errors import NoSpace, Retry
from chronos.node.outcomes import Outcomes, is_over
from chronos.node.shards import ShardDriver
from chronos.ports import Clock, TopicLog
from chronos.workers.step.targets import due_targets
from chronos.workers.watch.reachability import LogReachability

log = structlog.get_logger("chronos.node")

MAINTENANCE_S = 1.0
"""How often the maintenance thread checks whether a job is due."""

REST_S, REST_TIMES = 30.0, 20
"""How long a store is not compacted again: at least REST_S, and at least REST_TIMES as long as the
compaction took."""

CAUSES_EVERY_S = 5.0
"""How often the targets of recent dead letters are looked at."""

CAUSES_MAX = 100
"""Most of these targets that are looked at each time."""


class Job:
    """One piece of work that is done again and again."""

    def __init__(
        self, run: Callable[[int], object], *, every_s: float = 0.0, waits: bool = False
    ) -> None:
        """`run`: called with the time (epoch ms). `every_s`: time between two runs; 0: each time
        that the thread looks. `waits`: the first run comes only after that time."""
        self._run = run
        self._every_s = every_s
        self._ran_s = time.monotonic() if waits else None

    def step(self, now_s: float, now_ms: int) -> None:
        """Run if it is due. `now_s`: monotonic time."""
        if self._ran_s is not None and now_s - self._ran_s < self._every_s:
            return
        self._ran_s = now_s
        try:
            self._run(now_ms)
        except Retry as error:
            log.warning("maintenance failed", why=str(error))


def maintain(jobs: Sequence[Job], clock: Clock, stopping: threading.Event) -> None:
    """The maintenance thread: runs the jobs, one after the other."""
    while not stopping.wait(MAINTENANCE_S):
        for job in jobs:
            job.step(time.monotonic(), clock.now_ms())


def compact(
    stores: Mapping[int, RocksStore],
    guard: Callable[[], str | None],
    stopping: threading.Event,
) -> None:
    """The compaction thread: compacts the stores in which many rows were deleted, one at a time
    and none while the disk is nearly full (`guard`)."""
    rested_s: dict[int, float] = {}
    while not stopping.wait(MAINTENANCE_S):
        for number, store in list(stores.items()):
            began_s = time.monotonic()
            if (
                began_s < rested_s.get(number, 0.0)
                or not store.is_open
                or guard() is not None
                or stopping.is_set()
            ):
                continue
            try:
                if not store.compact():
                    continue
            except (Retry, NoSpace) as error:
                log.warning("store not compacted", shard=number, why=str(error))
            now_s = time.monotonic()
            rested_s[number] = now_s + max(REST_S, REST_TIMES * (now_s - began_s))
            log.info("store compacted", shard=number, seconds=round(now_s - began_s, 1))


def ping(reachability: LogReachability, clock: Clock, stopping: threading.Event) -> None:
    """The reachability thread, which is one of its own because a ping of the log may take long."""
    while not stopping.is_set():
        wake_ms = reachability.step(clock.now_ms())
        stopping.wait(min((wake_ms - clock.now_ms()) / 1_000, MAINTENANCE_S))


class LedTargets:
    """The targets of the messages of the shards that this node leads."""

    def __init__(self, log_port: TopicLog, shards: Sequence[ShardDriver]) -> None:
        self._log = log_port
        self._shards = shards
        self._looked_at: set[int] = set()
        """Shards whose targets were described once, since this node leads them."""

    def step(self, led: set[int]) -> None:
        """Describe the targets as soon as this node leads a shard with messages for them: the log
        warns of those with one replica."""
        new = led - self._looked_at
        self._looked_at = set(led)
        topics = {
            topic
            for shard in self._shards
            if shard.number in new
            for topic in due_targets(shard.store)
        }
        if topics:
            self._log.describe(sorted(topics))


class DeadLetterCauses:
    """The causes of recent dead letters, each until it is over."""

    def __init__(
        self, log_port: TopicLog, outcomes: Outcomes, allows: Callable[[str], bool]
    ) -> None:
        """`allows`: returns whether the settings allow a target."""
        self._log = log_port
        self._outcomes = outcomes
        self._allows = allows
        self._bytes_max: dict[str, int] = {}
        """Limits of the targets, as of the last look."""

    def step(self, now_ms: int) -> None:
        """Look whether the targets of recent dead letters take such messages now: then these are no
        longer reported."""
        topics = sorted(self._outcomes.recent_targets(now_ms))[:CAUSES_MAX]
        if not topics:
            return
        infos, before = self._log.describe(topics), self._bytes_max
        self._outcomes.forget_recent(
            lambda reason, topic: (
                topic in infos
                and self._allows(topic)
                and is_over(reason, infos[topic], before.get(topic))
            )
        )
        self._bytes_max = {
            topic: info.bytes_max for topic, info in infos.items() if info is not None
        }
