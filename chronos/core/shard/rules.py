"""The rules of the parser: what the configuration allows a message to ask for, and what is
remembered of the records that were parsed.

The master of a shard parses by them. The HTTP interface of every node, be it master or not, checks
messages, actions and replays by the same object before it writes them, in its event loop or in a
thread of its own, and what it checks is remembered too. It refuses a duration without a unit
before, so that `unitless` counts only records that this node read as master. A replay parses with
`for_replay`, which refuses nothing that a setting could refuse (law 9)."""

import re
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import Literal

from msgspec import Struct

from chronos.core.cron import ZONE_DATA, ZoneData
from chronos.core.message import TARGET_TOPIC, Reason, Rejection
from chronos.core.series import NextCron
from chronos.core.timefmt import EARLIEST_PLAUSIBLE_MS, MS_MAX

TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)
"""Kafka's rule for topic names (`org.apache.kafka.common.internals.Topic`); `.` and `..` are
excluded too."""

HOP_SOURCE = re.compile(rb"([a-zA-Z0-9._-]{1,249})/(0|[1-9][0-9]{0,9})")
"""Topic and partition of a hop."""

NO_LIMIT_MS = 2 * MS_MAX
"""More than any time or duration."""

ATTEMPTS_MAX = 1_000
"""Greatest value of `delivery.attempts_max`."""

TARGETS_SEEN_MAX = 10_000
"""Accepted target topics that are remembered: about 1 MB."""

NAMES_SEEN_MAX = 10_000
"""Names of producers' own headers that are remembered."""

UNITLESS_TARGETS_MAX = 100
"""Targets whose records with a delay or spread without a unit are counted."""

NAME_SEEN_CHARACTERS = 100
"""Longest name that is remembered: at most 5 MB for all, and usually a few kB."""


class Rules(Struct, kw_only=True, eq=False):
    """The limits of one shard's master: targets, delays, ids and times that it accepts."""

    shard: int
    shards: int
    own_topics: Collection[str] = ()
    allow: Sequence[str] = ("*",)
    deny: Sequence[str] = ()
    max_delay_ms: int = 3_650 * 86_400_000
    max_past_ms: int = NO_LIMIT_MS
    deduplication_ms: int = 6 * 3_600_000
    misplaced: Literal["forward", "reject"] | None = None
    """The decision about an id that belongs to another shard; None: ids are not compared with the
    shard."""
    delay_topic: str | None = None
    """The topic that the hop of a forwarded record must name; None: any."""
    min_time_ms: int = EARLIEST_PLAUSIBLE_MS
    attempts_max: int = ATTEMPTS_MAX
    next_cron: NextCron | None = None
    """Checks cron expressions; None: they are not checked."""
    zone_data: ZoneData = ZONE_DATA
    """The times of cron expressions are computed by these."""
    topics_seen: dict[bytes, str] = {}
    """Raw header value -> topic, for targets that were accepted before; at most
    TARGETS_SEEN_MAX."""
    names_seen: set[str] = set()
    """Names of headers that are the producers' own; at most NAMES_SEEN_MAX."""
    unitless: dict[str, int] = {}
    """Target -> records whose delay or spread lacks its unit, of at most UNITLESS_TARGETS_MAX
    targets; a record that is parsed again counts again."""
    sources_seen: set[bytes] = set()
    """The other partitions of the delay topic, once a hop named them."""

    def __post_init__(self) -> None:
        assert 0 <= self.shard < self.shards

    def for_replay(self) -> "Rules":
        """Return the rules of a replica that executes decisions: they reject nothing that a setting
        could reject."""
        return Rules(shard=self.shard, shards=self.shards, max_delay_ms=NO_LIMIT_MS, min_time_ms=0)

    def may_forward(self, source: bytes) -> bool:
        """Return whether a hop may come from `<topic>/<partition>`: another partition of the delay
        topic."""
        if source in self.sources_seen:
            return True
        found = HOP_SOURCE.fullmatch(source)
        if found is None or self.delay_topic not in (None, found[1].decode()):
            return False
        if int(found[2]) >= self.shards or int(found[2]) == self.shard:
            return False
        if self.delay_topic is not None:
            self.sources_seen.add(source)
        return True

    def remember_name(self, name: str) -> None:
        """Remember the name of a header that is the producer's own."""
        if len(name) > NAME_SEEN_CHARACTERS:
            return
        if len(self.names_seen) >= NAMES_SEEN_MAX:
            self.names_seen.clear()
        self.names_seen.add(name)

    def count_unitless(self, raw_target: bytes | None) -> None:
        """Count a record whose delay or spread lacks its unit; an action has no target."""
        target = "" if raw_target is None else raw_target[:249].decode("utf-8", "replace")
        if target in self.unitless or len(self.unitless) < UNITLESS_TARGETS_MAX:
            self.unitless[target] = self.unitless.get(target, 0) + 1

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
            return Rejection(
                Reason.RESERVED_TARGET, f"{name} is a topic of Chronos or of Kafka itself"
            )
        if not self.allows(name):
            return Rejection(
                Reason.FORBIDDEN_TARGET, f"{name} is not allowed by targets.allow and targets.deny"
            )
        return name

    def allows(self, topic: str) -> bool:
        """Return whether `targets.allow` and `targets.deny` let messages go to the topic; deny
        wins."""
        return any(fnmatchcase(topic, pattern) for pattern in self.allow) and not any(
            fnmatchcase(topic, pattern) for pattern in self.deny
        )
