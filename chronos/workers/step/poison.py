"""The search for a poison record, which is a message that makes its transaction fail: the selection
is halved until the message is alone.

Keeps its part of law 8: only that message is retried or dead-lettered, by the next plan; all others
are delivered. Messages of a target that is set aside share attempts, and are refused together where
it refuses every message (`workers.step.targets`). Letters that may have made a transaction fail are
found without halving (`workers.step.letter_topics`)."""

from functools import partial

import msgspec
import structlog
from msgspec import Struct

from chronos.core.keys import REJECTED
from chronos.core.shard.draft import Draft
from chronos.core.size import batch_bytes
from chronos.errors import ProducerLost, TransactionAborted
from chronos.workers.step.letter_topics import DEAD_LETTERS, LetterTopics
from chronos.workers.step.planned import PlannedTransaction
from chronos.workers.step.push import Pusher
from chronos.workers.step.targets import Attempt, AttemptStage, Refusals, attempt_of

log = structlog.get_logger("chronos.master")

POISON_FAILURES = 2
"""Failures in a row of a message alone in its transaction that make it the poison record: the first
one after an abort may be OUT_OF_ORDER_SEQUENCE_NUMBER, which no message causes (measured)."""


class StepFailure(Struct, frozen=True, kw_only=True):
    """A transaction that failed, and its contents."""

    error: TransactionAborted | ProducerLost
    draft: Draft
    plan: PlannedTransaction


class PoisonSearch(Struct, kw_only=True):
    """The search for a poison record, across failed transactions; outlives a leadership, because a
    failure may cost the producer."""

    messages_max: int
    """Most messages that the next step selects: halved by a failure, doubled by a success."""
    suspect: Attempt | None = None
    """The attempt that was alone in the last transaction that failed."""
    failures: int = 0
    """Consecutive failures of that attempt."""
    poison: Attempt | None = None
    """The attempt that made its message the poison record: the next plan retries or dead-letters
    it, unless it was moved."""
    wrote_letters: bool = False
    """The last step rejected or forwarded records, and delivered nothing: messages that are due
    come first now."""
    refusals: Refusals = msgspec.field(default_factory=Refusals)
    """The targets of the poison records found."""

    def failed(
        self, failure: StepFailure, *, letters: LetterTopics, pusher: Pusher, shard: int
    ) -> None:
        """Halve the next selection until a single message fails, then declare it the poison record.

        A failure that no message caused halves the selection too: a smaller one may finish within
        the time-out. An attempt for a target that is set aside is halved alone, unless that target
        refuses every message."""
        error, selection, now_ms = failure.error, failure.draft.selection, failure.draft.now_ms
        attempted, size = self.refusals.attempted(selection, now_ms), len(selection.items)
        letters.dead_letter.suspected_why = None  # without dead letters it failed too
        pusher.forwards.forget()
        if error.poison_likely:
            pusher.targets.forget_all()
            if self._may_be_letters(failure, letters, pusher):
                return
        if size and (attempted is None or not error.poison_likely):
            self.messages_max = max(1, size // 2)
        if not error.poison_likely or not size:
            return
        if size > 1 and (attempted is None or attempted.stage is not AttemptStage.SHARED):
            if attempted is not None:
                attempted.messages_max = size // 2
                attempted.end_turn(now_ms)
            return
        due_ms, offset, _ = selection.items[0]
        attempt = attempt_of(due_ms, offset, selection.entries[0])
        self.failures = self.failures + 1 if self.suspect == attempt else 1
        self.suspect = attempt
        if self.failures >= POISON_FAILURES:
            log.warning(
                "message refused by the broker",
                shard=shard,
                offset=offset,
                messages=size,
                why=str(error),
            )
            self.poison = attempt
            self.refusals.refuse(selection, now_ms, pusher.retries, str(error))

    def _may_be_letters(self, failure: StepFailure, letters: LetterTopics, pusher: Pusher) -> bool:
        """Note and return whether letters may have made the transaction fail.

        The next one does without them, or has nothing else: so they are found without halving, and
        hold up no message."""
        plan = failure.plan
        letters.failed(
            plan.letters_to,
            failure.draft.now_ms,
            str(failure.error),
            partial(_refused_bytes, failure, pusher),
            are_alone=bool(plan.refused_to) or plan.dead_letters == len(plan.messages),
        )
        return bool(plan.letters_to)


def _refused_bytes(failure: StepFailure, pusher: Pusher, destination: int) -> int:
    """Return the bytes of the transaction's letters for a destination; 0 if it was not refused for
    a size."""
    if not failure.error.too_large:
        return 0
    topic, partition = {
        REJECTED: (pusher.letters.rejected_topic, None),
        DEAD_LETTERS: (pusher.letters.dead_letter_topic, None),
    }.get(destination, (pusher.forwards.topic, destination))
    return sum(
        batch_bytes(key, value, headers)
        for name, key, value, headers, to in failure.plan.messages
        if name == topic and partition in (None, to)
    )
