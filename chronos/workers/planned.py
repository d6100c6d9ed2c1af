"""The contents of one transaction, as the push worker plans them."""

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct, field

from chronos.core.progress import Decision
from chronos.ports import Outgoing
from chronos.workers.letter_counts import LetterCounts
from chronos.workers.letters import UNBOUNDED, Refusal
from chronos.workers.partitions import Turn


class PlannedTransaction(Struct, kw_only=True):
    """The contents of a transaction. `Pusher.plan` fills it; afterwards it is read-only."""

    messages: list[Outgoing]
    decisions: list[Decision]
    due_ms: list[int]
    """Due time of each delivered message, in order."""
    details: list[str] = field(default_factory=list)
    """`Progress.details` of the decisions."""
    targets: Mapping[str, int] = field(default_factory=dict)
    """Target -> messages selected for it."""
    undelivered: Counter[str] = field(default_factory=Counter)
    """Target -> those of them with a decision."""
    next_ms: dict[int, int] = field(default_factory=dict)
    """Source offset -> due time (epoch ms) of the next occurrence, for messages of a series; 0: there is none."""
    dead_letters: int = 0
    """Number of dead letters among the messages."""
    dead: LetterCounts = field(default_factory=LetterCounts)
    """The same by reason and target."""
    defers_dead_letters: bool = False
    """The dead-letter topic takes no records: messages that would go there are deferred."""
    dead_letter_bytes_max: int = UNBOUNDED
    """Most bytes of dead letters; further messages that would become some are deferred."""
    dead_letter_bytes: int = 0
    """Bytes of the dead letters, where they are bounded."""
    turn: Turn
    """The partitions of the messages without a key."""
    refusal: Refusal | None = None
    """Why the dead-letter topic takes no records, by its description; None if it was not described, or takes them."""
    allowed: dict[str, int] = {}
    """Limited target -> number of messages that may be delivered to it in this step."""
    spent: dict[str, int] = {}
    """Limited target -> number of messages that take part of its rate."""
