"""The parts that a replica keeps from one phase to the next: what it has open, its counts of
transactions, its pauses, and everything else that a phase works with.

Keeps its part of law 5: whatever is open is in one set, so that a replica that starts again has
closed its writer, wherever a phase broke off."""

from collections.abc import Collection
from contextlib import ExitStack
from typing import Protocol, TypeVar

from msgspec import Struct

from chronos.core.shard.codec import State
from chronos.ports import Watermarks
from chronos.workers.replica.context import ReplicaContext
from chronos.workers.replica.leadership import Claim
from chronos.workers.replica.state import ReplicaStatus
from chronos.workers.replica.stored import StoredShard
from chronos.workers.step.letter_topics import LetterTopics
from chronos.workers.step.poison import PoisonSearch

PAUSE_MS = 500
"""Pause after a failure that an immediate retry cannot fix."""

ABORT_PAUSE_MS = 50
"""Pause after an aborted transaction without a poison record, doubled each time up to
PAUSE_MS."""


class Backoff:
    """Pauses of growing length: from ABORT_PAUSE_MS on, doubled each time, up to PAUSE_MS."""

    def __init__(self) -> None:
        self._next_ms = ABORT_PAUSE_MS

    def take(self) -> int:
        """Return the length of the pause that begins now (ms)."""
        taken_ms, self._next_ms = self._next_ms, min(2 * self._next_ms, PAUSE_MS)
        return taken_ms

    def reset(self) -> None:
        """Begin again with the shortest pause."""
        self._next_ms = ABORT_PAUSE_MS


class TransactionCounts:
    """The counts of this process's transactions for one shard. Any thread may read them."""

    def __init__(self) -> None:
        self.commits = 0
        """Transactions committed, without those that have no `Stepped.report`, as heartbeats."""
        self.aborts = 0
        """Transactions that failed: aborted, lost, or not applied."""
        self.trouble: str | None = None
        """Why the last transaction failed; None once one was committed after it."""

    def committed(self) -> None:
        """Count a commit, which ends the trouble."""
        self.commits += 1
        self.trouble = None

    def failed(self, why: str) -> None:
        """Count a transaction that failed, with its reason for people."""
        self.aborts += 1
        self.trouble = why

    def refused(self) -> None:
        """Count a transaction that was aborted by this process itself: it is paused for the
        reason."""
        self.aborts += 1


class Closing(Protocol):
    """A part that is open until it is closed."""

    def close(self) -> None: ...


Part = TypeVar("Part", bound=Closing)


class OpenParts:
    """The parts that a replica has open: each is closed once, as soon as no phase uses it."""

    def __init__(self) -> None:
        self._parts: list[Closing] = []
        """In the order in which they were opened."""

    def add(self, part: Part) -> Part:
        """Return the part, which was just opened."""
        self._parts.append(part)
        return part

    def keep(self, used: Collection[Closing]) -> None:
        """Close all but these, the last opened one first; an error of one is raised once all are
        closed."""
        kept = [part for part in self._parts if any(part is each for each in used)]
        with ExitStack() as closing:
            for part in self._parts:
                if not any(part is each for each in kept):
                    closing.callback(part.close)
            self._parts = kept


class ReplicaParts(Struct, frozen=True, kw_only=True):
    """The parts of one replica that every phase works with."""

    context: ReplicaContext
    stored: StoredShard
    status: ReplicaStatus
    open: OpenParts
    claim: Claim
    counts: TransactionCounts
    backoff: Backoff
    poison_search: PoisonSearch
    letters: LetterTopics

    @classmethod
    def of(cls, context: ReplicaContext, stored: StoredShard) -> "ReplicaParts":
        """Return the parts of a replica that has not begun."""
        settings = context.settings
        return cls(
            context=context,
            stored=stored,
            status=ReplicaStatus(),
            open=OpenParts(),
            claim=Claim(shard=context.rules.shard, node=settings.node, instance=settings.instance),
            counts=TransactionCounts(),
            backoff=Backoff(),
            poison_search=PoisonSearch(messages_max=settings.limits.messages),
            letters=LetterTopics(),
        )

    @property
    def number(self) -> int:
        """The number of the shard."""
        return self.context.rules.shard

    @property
    def state(self) -> State:
        """The shard's state as of the last step."""
        return self.stored.state

    def progress_watermarks(self) -> Watermarks:
        """Return the watermarks of the progress partition."""
        return self.context.log.watermarks(self.context.settings.progress_topic, self.number)

    def watermarks(self) -> tuple[Watermarks, Watermarks]:
        """Return the watermarks of the progress and of the delay partition."""
        delay_topic = self.context.settings.delay_topic
        return self.progress_watermarks(), self.context.log.watermarks(delay_topic, self.number)
