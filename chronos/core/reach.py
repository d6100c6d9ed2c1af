"""The reach of a sender: which messages are its own, by patterns of their targets and ids.

The look-up of a message (`core.query.lookup.find`), the filter of letters (`Wanted`), the planner
of messages (`Planner.plan_body`) and requests to other nodes require the reach or the sender, so
that no caller forgets it. Others do not. A `core.query.filter.Filter` has EVERYTHING by default.
Handlers that show records of topics, or targets with their counts and limits, leave out themselves
what is not the sender's own. What reads a letter at its position (`LetterTopic.letter`), or makes
the records of an action or a replay (`plan_action`, `BulkRun._plan`, `core.letters.replay`), takes
no reach: its callers have found the messages within the reach before.

A sender without limits has EVERYTHING. Which reach a token has is decided in
`admin.http.tokens`."""

import re
from fnmatch import fnmatchcase

from msgspec import Struct

from chronos.core.keys import parse_generated_id

ALL = ("*",)
"""Patterns that match everything."""

_SHARDS_MAX = 10_000
"""Generated ids have at most four digits for the shard."""

_REPLAYED_ID = re.compile(rb"[A-Za-z0-9._-]{1,249}/[0-9]{1,4}/[0-9]{1,19}/[0-9]{1,19}")
"""The id of a replayed occurrence of a series: where its dead letter came from, and its number."""


class Reach(Struct, frozen=True, kw_only=True):
    """Patterns of the target topics and of the ids that are the sender's own; the default: all."""

    targets: tuple[str, ...] = ALL
    ids: tuple[str, ...] = ALL
    """Patterns of ids that clients give. They do not apply to an id that Chronos made: its message
    is the sender's own if the target is."""

    @property
    def is_limited(self) -> bool:
        """True if some messages are not the sender's own."""
        return "*" not in self.targets or "*" not in self.ids

    def admits_target(self, topic: str) -> bool:
        """Return whether the target topic is the sender's own."""
        return self.targets is ALL or any(fnmatchcase(topic, pattern) for pattern in self.targets)

    def admits_given_id(self, message_id: bytes) -> bool:
        """Return whether a client may give a message this id. Patterns are compared in UTF-8."""
        return self.ids is ALL or any(
            fnmatchcase(message_id, pattern.encode()) for pattern in self.ids
        )

    def admits_id(self, message_id: bytes) -> bool:
        """Return whether the sender may ask for the id; whether the message is its own depends on
        the target too."""
        return self.admits_given_id(message_id) or is_made(message_id)

    def admits(self, message_id: bytes, target: str) -> bool:
        """Return whether the message is the sender's own."""
        return self.admits_target(target) and self.admits_id(message_id)


EVERYTHING = Reach()
"""The reach of a sender that is not limited."""


def is_made(message_id: bytes) -> bool:
    """Return whether the id has the form of one that Chronos makes."""
    return (
        parse_generated_id(message_id, _SHARDS_MAX) is not None
        or _REPLAYED_ID.fullmatch(message_id) is not None
    )
