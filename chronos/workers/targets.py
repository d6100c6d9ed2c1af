"""Descriptions of target topics, requested from the brokers and kept for a short time.

The push worker describes a topic before it produces to it, so that a missing topic or a message too large for its topic
never fails a transaction (law 8). A topic that is to be created on demand is created here and nowhere else.
"""

from collections.abc import Callable, Iterable

import structlog
from msgspec import Struct

from chronos.core.codec import FRESH, unpack_state
from chronos.core.filter import Filter
from chronos.core.keys import STATE_KEY
from chronos.core.message import Record
from chronos.core.progress import unpack_progress
from chronos.core.query import page
from chronos.core.step import StoreView
from chronos.errors import ConfigurationError, LogMismatch, LogUnavailable, Retry
from chronos.ports import Log, TopicInfo, TopicSpec

log = structlog.get_logger("chronos.push")

DESCRIBE_EVERY_MS = 10_000
"""How long the description of an existing target topic is used."""

SECOND_LOOK_MS = 2_000
"""A topic counts as missing only if a second description, this much later, does not find it either: a single broker may
not know a new topic yet."""

NOT_YET = TopicInfo(id="", partitions=1, leaderless=frozenset({0}), bytes_max=0)
"""A topic that could not be created at the moment: its messages wait like those for a partition without a leader."""

PING_TIMEOUT_S = 2.0
"""Time in which a broker must answer; otherwise the brokers count as unavailable."""

FIRST_RECORD_WAITS = 10
"""Most waits for the first record of a topic that may be a progress topic."""

FIRST_RECORD_WAIT_S = 0.1
"""Length of one of these waits."""

PARTITIONS_LOOKED_INTO = 8
"""Partitions of which one must hold a record: a Chronos writes to each partition of its progress topic within a minute."""

FIRST_RECORD_BYTES = 1_000_000
"""Bytes read to find it."""

TOPICS_MAX = 10_000
"""Descriptions kept regardless of their age; one step names at most as many topics as it has messages."""

FORGET_AFTER_MS = 60_000
"""Age at which a description is dropped once there are more than TOPICS_MAX."""


DUE_NEXT = 1_000
"""Messages, those due next, whose targets are looked for."""


class Target(Struct, frozen=True, kw_only=True):
    """The last description of a target topic."""

    info: TopicInfo | None
    """None: the topic was not found."""
    described_ms: int
    """Time of the description (epoch ms)."""
    missing_since_ms: int | None
    """Time of the first of the consecutive descriptions that did not find it; None if the last one found it."""
    holds_progress: bool = False
    """It is the progress topic of a Chronos, which a message in it would end."""

    @property
    def is_plain(self) -> bool:
        """True if the topic takes any message below its size limit: writable, not compacted, no partition closed."""
        info = self.info
        return info is not None and info.writable and not info.compacted and not info.closed and not self.holds_progress

    @property
    def is_open(self) -> bool:
        """True if the topic takes records in some partition."""
        info = self.info
        return info is not None and info.writable and len(info.closed) < info.partitions

    @property
    def is_missing(self) -> bool:
        """True if two descriptions, far enough apart, did not find the topic."""
        return self.missing_since_ms is not None and self.described_ms - self.missing_since_ms >= SECOND_LOOK_MS


def due_targets(store: StoreView) -> set[str]:
    """Return the targets of the messages that are due next in a store."""
    (data,) = store.get([STATE_KEY])
    state = FRESH if data is None else unpack_state(data)
    rows, _ = page(store, state, 0, begin=None, matching=Filter(), limit=DUE_NEXT)
    return {row.entry.target for row in rows}


class Targets:
    """Target topics of one shard, described again when the last description is too old."""

    def __init__(self, log_port: Log, *, creates: Callable[[str], TopicSpec | None]) -> None:
        """`creates`: returns how a topic is to be created if it is missing; None: it is not created."""
        self._log = log_port
        self._creates = creates
        self._targets: dict[str, Target] = {}
        self._looked_into: dict[str, bool] = {}
        """By topic id: whether the topic's first record is a progress record."""

    def describe(self, topics: Iterable[str], now_ms: int, *, age_ms_max: int = DESCRIBE_EVERY_MS) -> dict[str, Target]:
        """Return the description of each topic, with a request for those that are too old. Raises LogUnavailable."""
        wanted = set(topics)
        stale = [topic for topic in wanted if self._is_stale(topic, now_ms, age_ms_max)]
        if stale:
            self._drop_old(now_ms)
            infos = self._log.describe(stale)
            for topic in stale:
                info = infos[topic]
                if info is None and (spec := self._creates(topic)) is not None:
                    info = self._create(spec)
                self._keep(topic, info, now_ms)
        return {topic: self._targets[topic] for topic in wanted}

    def known(self, topics: Iterable[str]) -> dict[str, Target]:
        """Return the last descriptions of those topics that have one, regardless of age, without a request."""
        return {topic: self._targets[topic] for topic in topics if topic in self._targets}

    def forget(self, topic: str) -> None:
        """Drop the description of a topic, which is outdated."""
        self._targets.pop(topic, None)

    def forget_all(self) -> None:
        """Drop every description: after a failure none of them is trusted."""
        self._targets.clear()

    def _create(self, spec: TopicSpec) -> TopicInfo | None:
        """Create the topic; None if its creation is refused. Raises LogUnavailable when no broker answers."""
        topic, info, why = spec.name, None, ""
        try:
            return self._log.prepare([spec], create=True)[topic]
        except ConfigurationError as error:
            why = str(error)
        except LogUnavailable as error:
            if not self._log.ping(PING_TIMEOUT_S):
                raise
            info, why = NOT_YET, str(error)
        before = self._targets.get(topic)
        if before is None or before.info not in (None, NOT_YET):
            log.warning("target topic not created", topic=topic, why=why)
        return info

    def _drop_old(self, now_ms: int) -> None:
        if len(self._targets) > TOPICS_MAX:
            self._targets = {
                topic: target
                for topic, target in self._targets.items()
                if 0 <= now_ms - target.described_ms < FORGET_AFTER_MS
            }

    def _is_stale(self, topic: str, now_ms: int, age_ms_max: int) -> bool:
        target = self._targets.get(topic)
        if target is None:
            return True
        good_for_ms = age_ms_max if target.is_plain else min(age_ms_max, SECOND_LOOK_MS)
        return not 0 <= now_ms - target.described_ms < good_for_ms

    def _keep(self, topic: str, info: TopicInfo | None, now_ms: int) -> None:
        before = self._targets.get(topic)
        since_ms = before.missing_since_ms if before is not None else None
        if info is None and since_ms is None:
            log.warning("target topic missing", topic=topic, again_in_ms=SECOND_LOOK_MS)
        self._targets[topic] = Target(
            info=info,
            described_ms=now_ms,
            missing_since_ms=None if info is not None else now_ms if since_ms is None else since_ms,
            holds_progress=info is not None and info.stamped and self._holds_progress(topic, info),
        )

    def _holds_progress(self, topic: str, info: TopicInfo) -> bool:
        """Return whether the first record of the topic is a progress record; looks until there is one, then never again.

        Only topics with the broker's timestamps are asked for it, which are few: a progress topic always has them.
        """
        known = self._looked_into.get(info.id)
        if known is not None:
            return known
        try:
            record = self._first_record(topic, info.partitions)
        except Retry as error:
            # Chronos needs no permission to read its targets, and does not insist.
            log.info("target topic not read", topic=topic, why=str(error))
            self._looked_into[info.id] = False
            return False
        if record is None:
            return False  # an empty topic may become a progress topic
        try:
            unpack_progress(record.value)
            found = record.key is None and not record.headers
        except LogMismatch:
            found = False
        self._looked_into[info.id] = found
        return found

    def _first_record(self, topic: str, partitions: int) -> Record | None:
        """Return the first record of the first partition that has one; None if all are empty."""
        for partition in range(min(partitions, PARTITIONS_LOOKED_INTO)):
            ends = self._log.watermarks(topic, partition)
            if ends.start == ends.stable:
                continue
            reader = self._log.reader(topic, partition, ends.start)
            try:
                for _ in range(FIRST_RECORD_WAITS):
                    if records := reader.read(1, FIRST_RECORD_BYTES):
                        return records[0]
                    if reader.position >= ends.stable:
                        break
                    reader.wait(FIRST_RECORD_WAIT_S)
            finally:
                reader.close()
        return None
