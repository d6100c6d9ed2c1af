"""What a node watches of its log: whether the brokers answer, the settings of its own topics, and
open transactions of producers.

A session with the coordinator is not enough: a node may reach the coordinator and not the brokers,
and a master that waits for its brokers in the middle of a step notices long after its messages were
due. Safety does not depend on it.

A client continues without an error in a topic that was deleted and created again, although the same
offset is another record there; and no shard reads a partition that was added. Keeps its part of law
1: two checks detect either change in the delay and the progress topic. The rejected and the
dead-letter topic hold nothing that Chronos reads: a missing one is created again.

A `read_committed` reader ends at the first open transaction, so the records after it, of every
producer, are not readable, and a cancel among them may be too late (law 6). The watch reports them;
it decides nothing."""

from collections.abc import Collection, Mapping, Sequence

import structlog
from msgspec import Struct

from chronos.core.cluster.roles import DEGRADED, OK, UNREACHABLE
from chronos.core.timefmt import format_time
from chronos.errors import ConfigurationError, LogMismatch, Retry
from chronos.ports import Clock, TopicInfo, TopicLog, TopicSpec, steady_ms

log = structlog.get_logger("chronos.cluster")
shard_log = structlog.get_logger("chronos.shard")

PINGS = 8
"""Pings within the time after which a node counts as cut off."""

LOG_EVERY_MS = 60_000
"""Time between two log lines about the same outage."""


class LogReachability:
    """Tracks whether the log's brokers answer this node. One thread calls `step`; any thread may
    read the rest."""

    def __init__(
        self, log_port: TopicLog, *, unreachable_ms: int, clock: Clock, brokers: str = ""
    ) -> None:
        """`unreachable_ms`: time without an answer until the verdict is UNREACHABLE; after half of
        it, it is DEGRADED.

        `brokers`: their addresses, for people. Before the first answer the verdict is DEGRADED.
        """
        self._log = log_port
        self._brokers = brokers
        self._unreachable_ms = unreachable_ms
        self._clock = clock
        self._answered_ms = steady_ms(self._clock)
        self._answered_at_ms = clock.now_ms()
        self._has_answered = False
        self._logged_ms: int | None = None
        """When the outage was last logged (steady ms); None: there is none."""
        self.outage: str | None = None
        """Since when no broker answers, for people; None unless the verdict of the last step is
        UNREACHABLE."""

    @property
    def verdict(self) -> str:
        """OK, DEGRADED or UNREACHABLE, as of now."""
        silent_ms = steady_ms(self._clock) - self._answered_ms
        if silent_ms >= self._unreachable_ms:
            return UNREACHABLE
        is_late = not self._has_answered or silent_ms >= self._unreachable_ms // 2
        return DEGRADED if is_late else OK

    def step(self, now_ms: int) -> int:
        """Ping once; return when to be called again, in epoch ms."""
        pinged_ms = steady_ms(self._clock)
        if self._log.ping(2 * self._unreachable_ms / PINGS / 1_000):
            self._answered_ms, self._answered_at_ms = steady_ms(self._clock), self._clock.now_ms()
            self._has_answered = True
        self._tell(steady_ms(self._clock))
        took_ms = steady_ms(self._clock) - pinged_ms
        return now_ms + max(0, self._unreachable_ms // PINGS - took_ms)

    def _tell(self, steady_now_ms: int) -> None:
        """Log an outage when it begins, once in LOG_EVERY_MS while it lasts, and when it ends."""
        silent_s = (steady_now_ms - self._answered_ms) // 1_000
        if self.verdict != UNREACHABLE:
            if self._logged_ms is not None:
                log.info("the log answers this node again")
            self._logged_ms = self.outage = None
            return
        at = f" at {self._brokers}" if self._brokers else ""
        since = format_time(self._answered_at_ms)
        self.outage = f"no broker{at} answers since {since}: nothing is delivered, nothing is lost"
        if self._logged_ms is None or steady_now_ms - self._logged_ms >= LOG_EVERY_MS:
            self._logged_ms = steady_now_ms
            log.warning("the log does not answer this node", seconds=silent_s, why=self.outage)


topics_log = structlog.get_logger("chronos.node")

CHECK_EVERY_MS = 1_000
"""Time between two checks: two requests to a broker."""

SETTINGS_EVERY_MS = 10_000
"""Time between two checks of the settings of topics."""

FAILED_CHECKS = 2
"""Checks in a row that must miss a topic, or find it changed: a broker that has just started may
know less than the others."""


class TopicWatch:
    """Checks the topics while the node runs."""

    def __init__(
        self,
        log_port: TopicLog,
        topics: Sequence[TopicSpec],
        found: Mapping[str, TopicInfo],
        *,
        letters: Sequence[TopicSpec] = (),
        others: Sequence[TopicSpec] = (),
        create: bool = False,
    ) -> None:
        """`topics`: must stay the same. `letters`: only have to be there; with `create` a missing
        one is created again. `others`: only have settings to check, as those of the coordinator and
        the audit."""
        self._log = log_port
        self._topics = topics
        self._letters = letters
        self._create = create
        self._ids = {spec.name: found[spec.name].id for spec in topics}
        self.leaders = found[topics[0].name].leaders
        """The broker that leads each partition of the first topic, as of the last check; empty: not
        known."""
        self._missed: set[str] = set()
        """Letter topics that the last check did not find."""
        self.problem: str | None = None
        """Which letter topic is missing, and why it was not created; None while both are there."""
        self._failed = 0
        """Failed checks in a row."""
        self._others = others
        self._settings_ms = 0
        """When the settings of topics are checked again (epoch ms)."""
        self._advice: dict[str, tuple[str, ...]] = {}
        for name, info in found.items():
            self._advise(name, info.advice)

    @property
    def advice(self) -> list[str]:
        """What is wrong or unwise in the settings of topics, although the node goes on."""
        return [text for texts in self._advice.values() for text in texts]

    def step(self, now_ms: int) -> int:
        """Check once; return when to be called again. Raises LogMismatch or ConfigurationError when
        the topics have changed."""
        try:
            infos = self._log.describe([spec.name for spec in (*self._topics, *self._letters)])
            self._check_letters(infos)
            missing = [spec.name for spec in self._topics if infos[spec.name] is None]
            if not missing:
                found = {name: info for name, info in infos.items() if info is not None}
                self.leaders = found[self._topics[0].name].leaders
                is_due = not 0 < self._settings_ms - now_ms <= SETTINGS_EVERY_MS
                if is_due or self._has_grown(found):
                    found = self._log.prepare(self._topics, create=False)
                    for name, info in found.items():
                        self._advise(name, info.advice)
                self._compare(found)
                self._failed = 0
                if is_due:
                    self._settings_ms = now_ms + SETTINGS_EVERY_MS
                    self._check_settings()
                return now_ms + CHECK_EVERY_MS
        except Retry:
            return now_ms + CHECK_EVERY_MS  # the shards pause for the same reason and report it
        except ConfigurationError:
            # `prepare` makes requests of its own, and the broker that answers them may know less.
            self._failed += 1
            if self._failed >= FAILED_CHECKS:
                raise
            return now_ms + CHECK_EVERY_MS
        self._failed += 1
        if self._failed >= FAILED_CHECKS:
            raise LogMismatch(
                f"{' and '.join(missing)} is not there any more: it was deleted while Chronos "
                "used it, and its pending messages are gone from the log. To start anew, remove "
                "the data directory and both the delay and the progress topic."
            )
        return now_ms + CHECK_EVERY_MS

    def _has_grown(self, infos: Mapping[str, TopicInfo]) -> bool:
        """Return whether a topic has another number of partitions than shards."""
        return any(
            spec.per_shard and infos[spec.name].partitions != spec.partitions
            for spec in self._topics
        )

    def _check_settings(self) -> None:
        """Check the settings of letters and others; that one is missing is said elsewhere."""
        specs = (*self._letters, *self._others)
        infos = self._log.describe([spec.name for spec in specs])
        for spec in specs:
            advice: tuple[str, ...] = ()
            if infos[spec.name] is not None:
                try:
                    advice = self._log.prepare([spec], create=False)[spec.name].advice
                except ConfigurationError as error:
                    advice = tuple(error.problems)
            self._advise(spec.name, advice)

    def _advise(self, name: str, advice: tuple[str, ...]) -> None:
        """Keep what is known of the settings of a topic, and log what is new."""
        for text in advice:
            if text not in self._advice.get(name, ()):
                topics_log.warning("topic setting", why=text)
        self._advice[name] = advice

    def _check_letters(self, infos: Mapping[str, TopicInfo | None]) -> None:
        """Create a letter topic again that two checks in a row did not find."""
        missing = [spec for spec in self._letters if infos[spec.name] is None]
        again = [spec for spec in missing if spec.name in self._missed]
        self._missed = {spec.name for spec in missing}
        problems = []
        for spec in again:
            why = "topics.create is off"
            if self._create:
                try:
                    self._log.prepare([spec], create=True)
                    topics_log.warning("topic created again", topic=spec.name)
                    continue
                except (ConfigurationError, Retry) as error:
                    why = str(error)
            problems.append(f"{spec.name} is missing, and Chronos cannot create it again: {why}")
        problem = "; ".join(problems) or None
        if problem is not None and problem != self.problem:
            topics_log.error("topic missing", why=problem)
        self.problem = problem

    def _compare(self, infos: Mapping[str, TopicInfo]) -> None:
        for name, known in self._ids.items():
            if infos[name].id != known:
                raise LogMismatch(
                    f"{name} was deleted and created again while Chronos used it (its id was "
                    f"{known}, now it is {infos[name].id}), and its pending messages are gone "
                    "from the log. To start anew, remove the data directory and both the delay "
                    "and the progress topic."
                )


HELD_BACK_MS = 1_000
"""Time after which an open transaction is reported: most transactions are shorter."""


class HeldBack(Struct, frozen=True, kw_only=True):
    """Records of one partition that cannot be read because of an open transaction."""

    stable: int
    """Last stable offset: that of the first record held back."""
    records: int
    """Offsets from there to the high watermark, transaction markers included."""
    since_ms: int
    """When the transaction was first found open (epoch ms)."""

    def text(self, topic: str, partition: int) -> str:
        """Return the finding as a sentence for people."""
        return (
            f"{topic}/{partition}: {self.records} records from offset {self.stable} on are held "
            f"back by a producer's open transaction since {format_time(self.since_ms)}"
        )


class OpenTransactions:
    """Watches the partitions of the delay topic. One thread calls `step`; any thread may call
    `held_back`."""

    def __init__(self, log_port: TopicLog, topic: str) -> None:
        self._log = log_port
        self._topic = topic
        self._open: dict[int, HeldBack] = {}
        self._reported: dict[int, HeldBack] = {}

    def held_back(self, partition: int) -> HeldBack | None:
        """Return what has been held back for more than HELD_BACK_MS; None if nothing has."""
        return self._reported.get(partition)

    def step(self, now_ms: int, partitions: Collection[int], stable: Mapping[int, int]) -> None:
        """Look at those of the partitions once. What does not answer stays as it was.

        `stable`: the last stable offsets of those that answered, asked for before this call: what a
        later answer has in addition is no transaction."""
        for partition in {*self._open, *self._reported}.difference(partitions):
            self._open.pop(partition, None)
            self._reported.pop(partition, None)
        high = self._log.high_watermarks(self._topic, partitions)
        for partition in sorted(stable.keys() & high.keys()):
            self._look(partition, stable[partition], high[partition], now_ms)

    def _look(self, partition: int, stable: int, high: int, now_ms: int) -> None:
        before = self._open.pop(partition, None)
        if stable < high:
            same = before is not None and before.stable == stable and before.since_ms <= now_ms
            found = self._open[partition] = HeldBack(
                stable=stable,
                records=high - stable,
                since_ms=before.since_ms if same and before is not None else now_ms,
            )
            if now_ms - found.since_ms > HELD_BACK_MS:
                if partition not in self._reported:
                    shard_log.warning(
                        "records held back", shard=partition, why=found.text(self._topic, partition)
                    )
                self._reported[partition] = found
                return
        if self._reported.pop(partition, None) is not None:
            shard_log.info("records no longer held back", shard=partition)
