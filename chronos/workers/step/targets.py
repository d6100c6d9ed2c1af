"""Target topics: their descriptions, requested from the brokers and kept for a short time, and
those that refuse messages, which are set aside.

A topic is described before the master produces to it, so that a topic known to be missing, or a
message known to be too large for its topic, never fails a transaction (law 8). On Kafka, a target
topic that is to be created on demand is created here and nowhere else; the embedded log creates
each with its first record.

Halving a step until a poison record is alone costs about a dozen aborted transactions. A target
with REFUSED_MAX poison records is therefore set aside. Its due messages are deferred together,
without being produced, and the first of them are attempted in a transaction of their own: one
message at first. A success doubles their number, until the target is no longer set aside; refusals
in a row lengthen the pause before the next attempt. So a message that is refused does not hold up
the others of its target.

A message is dead-lettered as refused only after an attempt of its own was refused. That attempt is
shared with other messages once the target has refused PROVEN_AT messages in a row, each alone, for
as long as the retries of one message take."""

from collections.abc import Callable, Iterable
from enum import Enum, auto
from itertools import takewhile

import structlog
from msgspec import Struct, field

from chronos.core.keys import STATE_KEY
from chronos.core.message import Entry
from chronos.core.query.filter import Filter
from chronos.core.query.pages import page
from chronos.core.shard.codec import FRESH, unpack_state
from chronos.core.shard.step import Selection, StoreView
from chronos.core.shard.wheel import Item
from chronos.errors import ConfigurationError, LogUnavailable
from chronos.ports import Log, TopicInfo, TopicSpec

log = structlog.get_logger("chronos.push")

DESCRIBE_EVERY_MS = 10_000
"""How long the description of an existing target topic is used."""

SECOND_LOOK_MS = 2_000
"""A topic counts as missing only if a second description, this much later, does not find it either:
a single broker may not know a new topic yet."""

NOT_YET = TopicInfo(id="", partitions=1, leaderless=frozenset({0}), bytes_max=0)
"""A topic that could not be created at the moment: its messages wait like those for a partition
without a leader."""

PING_TIMEOUT_S = 2.0
"""Time in which a broker must answer; otherwise the brokers count as unavailable."""

TOPICS_MAX = 10_000
"""Descriptions kept regardless of their age; one step names at most as many topics as it has
messages."""

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
    """Time of the first of the consecutive descriptions that did not find it; None if the last one
    found it."""

    @property
    def is_plain(self) -> bool:
        """True if the topic takes any message below its size limit: writable, not compacted, no
        partition closed."""
        info = self.info
        return info is not None and info.writable and not info.compacted and not info.closed

    @property
    def is_open(self) -> bool:
        """True if the topic takes records in some partition."""
        info = self.info
        return info is not None and info.writable and len(info.closed) < info.partitions

    @property
    def is_missing(self) -> bool:
        """True if two descriptions, far enough apart, did not find the topic."""
        return (
            self.missing_since_ms is not None
            and self.described_ms - self.missing_since_ms >= SECOND_LOOK_MS
        )


def due_targets(store: StoreView) -> set[str]:
    """Return the targets of the messages that are due next in a store."""
    (data,) = store.get([STATE_KEY])
    state = FRESH if data is None else unpack_state(data)
    rows, _ = page(store, state, 0, begin=None, matching=Filter(), limit=DUE_NEXT)
    return {row.entry.target for row in rows}


class Targets:
    """Target topics of one shard, described again when the last description is too old."""

    def __init__(self, log_port: Log, *, creates: Callable[[str], TopicSpec | None]) -> None:
        """`creates`: returns how a topic is to be created if it is missing; None: it is not
        created."""
        self._log = log_port
        self._creates = creates
        self._targets: dict[str, Target] = {}

    def describe(
        self, topics: Iterable[str], now_ms: int, *, age_ms_max: int = DESCRIBE_EVERY_MS
    ) -> dict[str, Target]:
        """Return the description of each topic, with a request for those that are too old. Raises
        LogUnavailable."""
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
        """Return the last descriptions of those topics that have one, regardless of age, without a
        request."""
        return {topic: self._targets[topic] for topic in topics if topic in self._targets}

    def forget(self, topic: str) -> None:
        """Drop the description of a topic, which is outdated."""
        self._targets.pop(topic, None)

    def forget_all(self) -> None:
        """Drop every description: after a failure none of them is trusted."""
        self._targets.clear()

    def _create(self, spec: TopicSpec) -> TopicInfo | None:
        """Create the topic; None if its creation is refused. Raises LogUnavailable when no broker
        answers."""
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
        )


REFUSED_MAX = 3
"""Poison records of one target after which it is set aside."""

PROVEN_AT = 20
"""Different messages refused alone, in a row, after which a target counts as refusing every
message: if it took one of ten, the chance of such a row would be 12 %; one of two, one in a
million."""

TURN_MS = 250
"""Time for which one target is attempted, one success after the other, until all other messages
that are due take their turn."""

COUNTED_MAX = 1_000
"""Targets whose poison records are counted."""

Attempt = tuple[int, int, int, int]
"""One attempt of a message: source offset, due time of its position (epoch ms), occurrence, number.
An action that moves the message ends the attempt, and so does a decision of another master: an
earlier refusal then says nothing about the message."""


def attempt_of(due_ms: int, offset: int, entry: Entry) -> Attempt:
    """Return the attempt that comes next for a message selected at this position."""
    return offset, due_ms, entry.occurrence, entry.attempt


class Retries(Struct, frozen=True, kw_only=True):
    """How often and after which pauses a refused message is attempted again."""

    attempts_max: int
    base_ms: int
    """Pause after the first attempt; it doubles with each further one."""
    cap_ms: int
    """Longest pause."""

    def pause_ms(self, attempt: int) -> int:
        """Return the pause after this attempt of a message."""
        return min(self.cap_ms, self.base_ms << min(attempt - 1, 32))

    def total_ms(self) -> int:
        """Return the sum of the pauses between the attempts of one message."""
        return sum(self.pause_ms(attempt) for attempt in range(1, self.attempts_max))

    def target_pause_ms(self, refused: int) -> int:
        """Return the pause after this many refusals in a row by one target: first below the base,
        in the end the longest."""
        if refused > PROVEN_AT:
            return self.pause_ms(refused - PROVEN_AT + 1)
        return max(1, self.base_ms >> max(0, 4 - refused))


class AttemptStage(Enum):
    """What the next attempt of a target that is set aside is made of, and why.

    success:  any -> DOUBLING                    refusal:  any but SHARED -> ALONE, or SHARED if it is proven
                                                           SHARED -> CHECKED
    """  # noqa: E501

    ALONE = auto()
    """One message."""
    DOUBLING = auto()
    """Up to twice as many messages as in the last attempt that succeeded."""
    SHARED = auto()
    """All due messages: the target is proven to refuse each one. It refused PROVEN_AT messages in a
    row, each alone, for as long as the retries of one message take."""
    CHECKED = auto()
    """One message after a shared attempt, because the target may take messages again."""


class SetAside(Struct, kw_only=True):
    """A target that is set aside."""

    stage: AttemptStage = AttemptStage.ALONE
    next_ms: int
    """Time of the next attempt (epoch ms)."""
    pause_ms: int = 0
    """The pause that ends at `next_ms`: a longer one was computed with another clock, and does not
    count."""
    messages_max: int = 1
    """Most messages of the next attempt, unless that is shared."""
    turn_ms: int
    """Since when it is attempted without a pause (epoch ms)."""
    refused: int = 0
    """Attempts refused in a row."""
    messages: set[int] = field(default_factory=set)
    """Source offsets of messages refused in a row, at their first attempt: PROVEN_AT at most."""
    since_ms: int = 0
    """Time of the first of them (epoch ms)."""
    why: str = ""
    """The error of the last attempt refused."""
    attempts: dict[int, Attempt] = field(default_factory=dict)
    """Source offset -> the attempt that was refused, of messages that are not decided yet."""

    @property
    def is_proven(self) -> bool:
        """It is proven to refuse every message: those of the last attempt are dead-lettered."""
        return self.stage in (AttemptStage.SHARED, AttemptStage.CHECKED)

    def refuse(self, now_ms: int, retries: Retries, *, offset: int, is_first: bool) -> None:
        """Go on after an attempt of the message at this source offset was refused. `is_first`: it
        was the first one of its message."""
        self.refused += 1
        if is_first and len(self.messages) < PROVEN_AT:
            self.messages.add(offset)  # an action begins the attempts of a message anew
        self.since_ms = now_ms if self.refused == 1 else min(self.since_ms, now_ms)
        self.messages_max = 1
        if self.stage is AttemptStage.SHARED:
            self.stage = AttemptStage.CHECKED
        elif len(self.messages) >= PROVEN_AT and now_ms - self.since_ms >= retries.total_ms():
            self.stage = AttemptStage.SHARED
        else:
            self.stage = AttemptStage.ALONE
        shared = self.stage is AttemptStage.SHARED
        self.pause(now_ms, 1 if shared else retries.target_pause_ms(self.refused))

    def take(self, now_ms: int) -> None:
        """Go on after an attempt succeeded."""
        self.stage = AttemptStage.DOUBLING
        self.refused = 0
        self.messages.clear()
        self.messages_max *= 2
        self.end_turn(now_ms)

    def has_refused(self, due_ms: int, offset: int, entry: Entry) -> bool:
        """Return whether it has refused this attempt of a message, which is not decided yet."""
        return offset in self.attempts and self.attempts[offset] == attempt_of(
            due_ms, offset, entry
        )

    def is_ready(self, now_ms: int) -> bool:
        """Return whether messages may be attempted now."""
        return not 0 < self.next_ms - now_ms <= self.pause_ms

    def pause(self, now_ms: int, pause_ms: int) -> None:
        """Attempt no message for this time."""
        self.pause_ms = pause_ms
        self.next_ms = self.turn_ms = now_ms + pause_ms

    def end_turn(self, now_ms: int) -> None:
        """Pause if messages were attempted for TURN_MS."""
        if not 0 <= now_ms - self.turn_ms < TURN_MS:
            self.pause(now_ms, TURN_MS)


class Refusals:
    """The targets of one shard that refused messages; outlives a leadership, because a refusal may
    cost the producer."""

    def __init__(self) -> None:
        self.set_aside: dict[str, SetAside] = {}
        self.why = ""
        """The error of the last transaction that a poison record failed."""
        self._counts: dict[str, int] = {}
        """Poison records of targets that are not set aside."""

    def attempted(self, selection: Selection, now_ms: int) -> SetAside | None:
        """Return the set aside target whose messages the step attempts; None for an ordinary step.

        A step with messages that leave a lane is an ordinary one: in a lane they are not attempted,
        but deferred."""
        if not self.set_aside or not selection.entries or selection.leaving:
            return None
        is_attempt = self._is_attempt(selection.items[0], selection.entries[0], now_ms)
        return self.set_aside[selection.entries[0].target] if is_attempt else None

    def within_step(self, selection: Selection, now_ms: int) -> int:
        """Return how many leading messages one step may select: those before the next attempt, or
        those of the attempt."""
        target = self.attempted(selection, now_ms)
        attempts = (
            entry.target if self._is_attempt(item, entry, now_ms) else None
            for entry, item in zip(selection.entries, selection.items, strict=True)
        )
        if target is None:
            return sum(1 for _ in takewhile(lambda topic: topic is None, attempts))
        first = selection.entries[0].target
        run = sum(1 for _ in takewhile(lambda topic: topic == first, attempts))
        return run if target.stage is AttemptStage.SHARED else min(run, target.messages_max)

    def _is_attempt(self, item: Item, entry: Entry, now_ms: int) -> bool:
        target = self.set_aside.get(entry.target)
        return (
            target is not None
            and target.is_ready(now_ms)
            and not target.has_refused(*item[:2], entry)
        )

    def refuse(self, selection: Selection, now_ms: int, retries: Retries, why: str = "") -> None:
        """Record that these messages of one target were refused, with this error, in a transaction
        without any other."""
        topic = selection.entries[0].target
        self.why = why
        attempts = {
            offset: attempt_of(due_ms, offset, entry)
            for (due_ms, offset, _), entry in zip(selection.items, selection.entries, strict=True)
        }
        target = self.set_aside.get(topic)
        if target is None:
            if len(self._counts) >= COUNTED_MAX:
                self._counts.clear()
            self._counts[topic] = self._counts.get(topic, 0) + 1
            if self._counts[topic] < REFUSED_MAX:
                return
            # The first attempt follows at once: three poison records in a long time say nothing
            # about the others.
            self.set_aside[topic] = SetAside(
                next_ms=now_ms, turn_ms=now_ms, why=why, attempts=attempts
            )
            log.warning("target set aside", topic=topic, refused=REFUSED_MAX)
            return
        target.why = why
        target.attempts |= attempts
        is_first, offset = selection.entries[0].attempt == 1, selection.items[0][1]
        target.refuse(now_ms, retries, offset=offset, is_first=is_first)

    def committed(
        self, selection: Selection, now_ms: int, messages_max: int, *, delivered: bool
    ) -> None:
        """Record that a step was committed; `messages_max`: most messages of a step."""
        if not self.set_aside:
            return
        target = self.attempted(selection, now_ms)
        for each in self.set_aside.values():
            for _, offset, _ in selection.items if each.attempts else ():
                each.attempts.pop(offset, None)
        if target is None:
            return
        if not delivered:
            # Parked, expired or too large: this says nothing about the target, but the other
            # messages take their turn.
            target.end_turn(now_ms)
            return
        target.take(now_ms)
        if target.messages_max > messages_max:
            topic = selection.entries[0].target
            del self.set_aside[topic]
            self._counts.pop(topic, None)
            log.info("target no longer set aside", topic=topic)
