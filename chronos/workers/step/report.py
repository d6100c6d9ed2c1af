"""The report of one committed step, for the log, the metrics, and requests that wait.

Deliveries are counted by target from numbers that the step already has. Only a step that delivers
both late and punctual messages, or in which messages leave a lane, needs a pass over its messages.
The report says what happened; it decides nothing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Self

import structlog
from msgspec import Struct

from chronos.core.shard.draft import Draft
from chronos.core.shard.progress import Outcome
from chronos.core.shard.step import Selection
from chronos.workers.step.planned import LetterCounts, PlannedTransaction, count_rejected

log = structlog.get_logger("chronos.master")

LATE_MS = 1_000
"""A message that is delivered more than this after it was due is late."""


class StepReport(Struct, frozen=True, kw_only=True):
    """The records and messages of one committed step."""

    pulled: int
    due_ms: list[int]
    """Due time (epoch ms) of each delivered message, in order."""
    committed_ms: int
    """Time of the commit by this machine's clock (epoch ms)."""
    refused: list[tuple[int, int]]
    """`(offset, Reason)` of the refused delay records."""
    dead: LetterCounts
    rejected: LetterCounts
    delivered: Mapping[str, int]
    """Target -> messages delivered."""
    late: Mapping[str, int]
    """Target -> those of them that were late."""
    ahead: Sequence[tuple[int, int]] = ()
    """Partition and milliseconds of every hop whose first timestamp is too far ahead to be
    believed."""
    upserts: Mapping[int, str] = {}
    """As `Staged.upserts`."""

    @classmethod
    def of(cls, draft: Draft, plan: PlannedTransaction, *, shard: int, committed_ms: int) -> Self:
        """Return the report of a step that was committed."""
        staged, selection = draft.staged, draft.selection
        delivered = plan.targets
        if plan.decisions:
            delivered = {
                topic: count - plan.undelivered[topic] for topic, count in plan.targets.items()
            }
        return cls(
            pulled=draft.pulled,
            due_ms=sorted(plan.due_ms) if selection.leaving else plan.due_ms,
            committed_ms=committed_ms,
            refused=staged.letters.refused,
            dead=plan.dead,
            rejected=count_rejected(staged.letters.rejections, shard),
            delivered=delivered,
            late=_late(plan, selection, delivered, committed_ms - LATE_MS),
            ahead=staged.ahead,
            upserts=staged.upserts,
        )

    def write(self, shard: int) -> None:
        """Write a log line for the dead letters, one for the rejected records, and one for hops
        that are ahead, if there are any."""
        if self.dead.cases:
            self.dead.write("messages dead-lettered", shard)
        if self.rejected.cases:
            self.rejected.write("records rejected", shard)
        if self.ahead:
            source, most_ms = max(self.ahead, key=lambda hop: hop[1])
            log.warning(
                "clocks of two brokers disagree",
                shard=shard,
                records=len(self.ahead),
                source=source,
                ahead_ms=most_ms,
            )


def _late(
    plan: PlannedTransaction, selection: Selection, delivered: Mapping[str, int], until_ms: int
) -> Mapping[str, int]:
    """Return the messages by target that were due before `until_ms`, of those that were
    delivered."""
    times_ms = plan.due_ms
    if not times_ms:
        return {}
    if not selection.leaving:
        if times_ms[0] >= until_ms:
            return {}
        if times_ms[-1] < until_ms:
            return delivered
    decided = {
        decision.offset for decision in plan.decisions if decision.outcome is not Outcome.AGAIN
    }
    return Counter(
        entry.target
        for (due_ms, offset, _), entry in zip(selection.items, selection.entries, strict=True)
        if due_ms < until_ms and offset not in decided
    )
