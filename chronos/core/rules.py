"""The rules of a shard: what the configuration allows a message to ask for.

Rules are consulted while a master decides, never on replay (law 9).
"""

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Literal

from chronos.core.message import TARGET_TOPIC, Reason, Rejection
from chronos.core.progress import RULES
from chronos.core.repetition import NextCron
from chronos.core.timefmt import EARLIEST_PLAUSIBLE_MS, MS_MAX

TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)
"""Kafka's rule for topic names (`org.apache.kafka.common.internals.Topic`); `.` and `..` are excluded too."""

HOP_SOURCE = re.compile(rb"([a-zA-Z0-9._-]{1,249})/(0|[1-9][0-9]{0,9})")
"""Topic and partition of a hop."""

ATTEMPTS_MAX = 1_000
"""Greatest value of `delivery.attempts_max`."""

TARGETS_SEEN_MAX = 10_000
"""Accepted target topics that are remembered: about 1 MB."""


class Rules:
    """The limits of one shard's master: targets, delays, ids and times that it accepts."""

    def __init__(
        self,
        *,
        shard: int,
        shards: int,
        own_topics: Iterable[str] = (),
        allow: Sequence[str] = ("*",),
        deny: Sequence[str] = (),
        max_delay_ms: int = 3_650 * 86_400_000,
        deduplication_ms: int = 6 * 3_600_000,
        misplaced: Literal["forward", "reject"] | None = None,
        delay_topic: str | None = None,
        min_time_ms: int = EARLIEST_PLAUSIBLE_MS,
        attempts_max: int = ATTEMPTS_MAX,
        next_cron: NextCron | None = None,
        number: int = RULES,
    ) -> None:
        """`number`: see `progress.RULES`; a master raises it once all nodes know the next ones. `misplaced`: the decision about an id that belongs to another shard; None: ids are not compared with the shard.

        `delay_topic`: the topic that the hop of a forwarded record must name; None: any. `next_cron`: checks cron expressions;
        None: they are not checked.
        """
        assert 0 <= shard < shards
        self.shard = shard
        self.shards = shards
        self.own_topics = frozenset(own_topics)
        self.allow = tuple(allow)
        self.deny = tuple(deny)
        self.max_delay_ms = max_delay_ms
        self.deduplication_ms = deduplication_ms
        self.misplaced = misplaced
        self.delay_topic = delay_topic
        self.min_time_ms = min_time_ms
        self.attempts_max = attempts_max
        self.next_cron = next_cron
        self.number = number
        self.topics_seen: dict[bytes, str] = {}
        """Raw header value -> topic, for targets that were accepted before; at most TARGETS_SEEN_MAX."""
        self._sources_seen: set[bytes] = set()
        """The other partitions of the delay topic, once a hop named them."""

    def for_replay(self, number: int = RULES) -> "Rules":
        """Return the rules of a replica that executes decisions made by rules `number`: they reject nothing that a setting could
        reject."""
        return Rules(shard=self.shard, shards=self.shards, max_delay_ms=2 * MS_MAX, min_time_ms=0, number=number)

    def may_forward(self, source: bytes) -> bool:
        """Return whether a hop may come from `<topic>/<partition>`: another partition of the delay topic."""
        if source in self._sources_seen:
            return True
        found = HOP_SOURCE.fullmatch(source)
        if found is None or self.delay_topic not in (None, found[1].decode()):
            return False
        if int(found[2]) >= self.shards or int(found[2]) == self.shard:
            return False
        if self.delay_topic is not None:
            self._sources_seen.add(source)
        return True

    def target(self, raw: bytes) -> str | Rejection:
        """Return the topic that a `chronos-target-topic` names, or the rejection."""
        known = self.topics_seen.get(raw)
        if known is not None:
            return known
        checked = self._check_target(raw)
        if isinstance(checked, str):
            if len(self.topics_seen) >= TARGETS_SEEN_MAX:
                self.topics_seen.clear()
            self.topics_seen[raw] = checked
        return checked

    def _check_target(self, raw: bytes) -> str | Rejection:
        name = raw.decode("utf-8", "replace")
        if TOPIC_NAME.fullmatch(name) is None or name in (".", ".."):
            return Rejection(Reason.BAD_VALUE, f"{TARGET_TOPIC}: {name[:80]!r} is not a topic name")
        if name in self.own_topics or name.startswith("__"):
            return Rejection(Reason.RESERVED_TARGET, f"{name} is a topic of Chronos or of Kafka itself")
        if not self.allows(name):
            return Rejection(Reason.FORBIDDEN_TARGET, f"{name} is not allowed by targets.allow and targets.deny")
        return name

    def allows(self, topic: str) -> bool:
        """Return whether `targets.allow` and `targets.deny` let messages go to the topic; deny wins."""
        return any(fnmatchcase(topic, pattern) for pattern in self.allow) and not any(
            fnmatchcase(topic, pattern) for pattern in self.deny
        )
