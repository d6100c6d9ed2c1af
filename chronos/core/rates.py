"""Rate limits of target topics: their texts, and which of several limits a topic has.

A limit is for one topic and the whole service. A pattern gives each topic that it matches a limit
of its own. Nothing is counted here: the token buckets are in `workers.step.lanes`."""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

from msgspec import Struct

from chronos.core.shard.rules import TOPIC_NAME

PER_S_MAX = 1_000_000
"""Greatest rate: more than one service delivers."""

BURST_MAX = 1_000_000
"""Greatest burst, in messages."""

BURST_S = 0.5
"""Length in seconds of the burst that is not given: it keeps 10 s within 5 % of the rate."""

BURST_S_MIN = 0.1
"""Shortest burst, in seconds: several steps of a shard, so that the rate is reached."""

LIMITS_MAX = 1_000
"""Most limits that are changed at run time."""

TOPICS_KEPT = 10_000
"""Topics whose limit is remembered."""

NOT_LIMITED = "unlimited"
"""The text of a limit that lifts another one."""

PATTERN = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._*?\[\]!-]{1,249}", re.ASCII)
"""A topic's name, or a shell-style pattern of such names."""

_RATE = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,3})?)\s*/\s*s(?:\s+burst\s+([0-9]{1,7}))?", re.ASCII)


class Rate(Struct, frozen=True):
    """A rate limit."""

    per_s: float
    """Messages per second; 0: none at all."""
    burst: int
    """Most messages at once after a time without any."""


class InForce(Struct, frozen=True, kw_only=True):
    """The limit that a topic has, and where it comes from."""

    pattern: str
    rate: Rate | None
    """None: not limited."""
    changed: bool
    """It was set at run time; False: by the configuration."""


def parse_rate(text: str) -> Rate | None:
    """Return the rate of `200/s`, `0.5/s` or `50/s burst 100`; None for `unlimited`. Raises
    ValueError with a text for users."""
    if text.strip() == NOT_LIMITED:
        return None
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text[:80]!r} is not a rate; write 200/s, 0.5/s, 50/s burst 100, or {NOT_LIMITED}"
        )
    per_s = float(match[1])
    if per_s > PER_S_MAX:
        raise ValueError(f"{text[:80]!r} is more than the greatest rate, {PER_S_MAX}/s")
    if match[2] is None:
        return Rate(per_s, max(1, int(per_s * BURST_S)))
    burst, least = int(match[2]), max(1, int(per_s * BURST_S_MIN))
    if not least <= burst <= BURST_MAX:
        raise ValueError(
            f"{text[:80]!r} has a burst out of bounds: at this rate it is {least} to {BURST_MAX} "
            "messages"
        )
    return Rate(per_s, burst)


def rate_text(rate: Rate | None) -> str:
    """Return the text of a rate, as `parse_rate` reads it."""
    if rate is None:
        return NOT_LIMITED
    per_s = f"{rate.per_s:.3f}".rstrip("0").rstrip(".")
    plain = f"{per_s}/s"
    return plain if parse_rate(plain) == rate else f"{plain} burst {rate.burst}"


def check_pattern(pattern: str) -> str:
    """Return the pattern if it can match a topic. Raises ValueError with a text for users."""
    if PATTERN.fullmatch(pattern) is None:
        raise ValueError(
            f"{pattern[:80]!r} is not the name of a topic, nor a pattern like orders.*"
        )
    return pattern


class RateTable:
    """All limits, and the one that each topic has.

    A limit set at run time comes before the configuration. Of several patterns that match, the
    topic's own name comes first, then the pattern with the most characters besides wildcards, then
    the first in order of the alphabet."""

    def __init__(
        self, configured: Mapping[str, Rate | None], changed: Mapping[str, Rate | None]
    ) -> None:
        limits = [
            *(
                InForce(pattern=pattern, rate=rate, changed=True)
                for pattern, rate in changed.items()
            ),
            *(
                InForce(pattern=pattern, rate=rate, changed=False)
                for pattern, rate in configured.items()
            ),
        ]
        self.limits = sorted(limits, key=_rank)
        """All limits; the first whose pattern matches a topic is in force."""
        self._known: dict[str, InForce | None] = {}

    def of(self, topic: str) -> InForce | None:
        """Return the limit that the topic has; None if no pattern matches."""
        if not self.limits:
            return None
        if topic not in self._known:
            if len(self._known) >= TOPICS_KEPT:
                self._known.clear()
            self._known[topic] = next(
                (limit for limit in self.limits if fnmatchcase(topic, limit.pattern)), None
            )
        return self._known[topic]

    def rate(self, topic: str) -> Rate | None:
        """Return the rate of the topic; None if it is not limited."""
        limit = self.of(topic)
        return None if limit is None else limit.rate


def _rank(limit: InForce) -> tuple[bool, bool, int, str]:
    is_name = TOPIC_NAME.fullmatch(limit.pattern) is not None
    literal = len(re.sub(r"\[[^]]*\]|[*?]", "", limit.pattern))
    return not limit.changed, not is_name, -literal, limit.pattern
