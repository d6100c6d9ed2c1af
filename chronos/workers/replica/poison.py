"""The search for a poison record, which is a message that makes its transaction fail: the selection
is halved until the message is alone.

Keeps its part of law 8: only that message is retried or dead-lettered, by the next plan; all others
are delivered. Messages of a target that is set aside share attempts, and are refused together where
it refuses every message (`workers.push.targets`). Records for the rejected or the dead-letter
topic, and forwarded ones, that may have failed a transaction are found without halving
(`workers.push.letter_topics`)."""

import msgspec
import structlog
from msgspec import Struct

from chronos.core.shard.draft import Draft
from chronos.core.size import batch_bytes
from chronos.errors import ProducerLost, TransactionAborted
from chronos.workers.push.letter_topics import LetterTopics
from chronos.workers.push.planned import PlannedTransaction
from chronos.workers.push.push import Pusher
from chronos.workers.push.targets import Attempt, AttemptStage, Refusals, attempt_of

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
    """Messages that the next step selects: halved by a failure, doubled by a success."""
    alone: Attempt | None = None
    """The attempt that was alone in the last transaction that failed."""
    failures: int = 0
    """Consecutive failures of that attempt."""
    poison: Attempt | None = None
    """The attempt that made its message the poison record: the next plan retries or dead-letters
    it, unless it was moved."""
    separate: bool = False
    """A message and rejected records failed together: from now on they take turns."""
    forwarded: bool = False
    """The last step forwarded records, and delivered nothing: messages that are due come first
    now."""
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
        letters.dead_letter.judge(now_ms, failed=True)
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
        self.failures = self.failures + 1 if self.alone == attempt else 1
        self.alone = attempt
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
        """Return whether records for the rejected or the dead-letter topic, or forwarded ones, may
        have failed the transaction.

        The next one does without them, or has nothing else: so they are found without halving, and
        hold up no message."""
        plan, why = failure.plan, str(failure.error)
        staged, now_ms = failure.draft.staged, failure.draft.now_ms
        letter_topic = (
            pusher.letters.rejected_topic if staged.rejections else pusher.letters.dead_letter_topic
        )
        refused_bytes = _bytes_for(letter_topic, plan) if failure.error.too_large else 0
        for home in {partition for _, partition in staged.forwards}:
            home_bytes = (
                _bytes_for(pusher.forwards.topic, plan, home) if failure.error.too_large else 0
            )
            letters.of(home).fail(now_ms, why, home_bytes)
        if staged.rejections:
            if failure.draft.selection.items:
                self.separate = True
            else:
                letters.rejected.fail(now_ms, why, refused_bytes)
        elif plan.dead_letters and plan.dead_letters == len(plan.messages):
            letters.dead_letter.fail(now_ms, why, refused_bytes)
        elif plan.dead_letters:
            letters.dead_letter.suspect(now_ms, why, refused_bytes)
        else:
            return bool(staged.forwards)
        return True


def _bytes_for(topic: str, plan: PlannedTransaction, partition: int | None = None) -> int:
    """Return the size of the transaction's records for a topic, or for one partition of it."""
    return sum(
        batch_bytes(key, value, headers)
        for name, key, value, headers, to in plan.messages
        if name == topic and partition in (None, to)
    )
