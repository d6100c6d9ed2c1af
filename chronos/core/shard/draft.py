"""The draft: one step before its plan. It consists of the changes that the pulled records ask for,
the messages that the step settles, and the fates of these messages.

It is made in this order: `Shard.stage` reads the records; the master admits what they ask for, and
may hold or reject records that are to be written to another topic or partition
(`workers.step.held`); then messages are selected. The selection depends on what was admitted,
because rejected and forwarded records share no transaction with deliveries.

A draft changes no state. `workers.step.push` makes a plan of it; once the plan is committed,
`Shard.apply` returns the write to the store that the draft and the progress record ask for."""

from msgspec import Struct

from chronos.core.shard.fate import NO_FATES, Fates
from chronos.core.shard.step import Selection, Staged


class Draft(Struct, frozen=True, kw_only=True):
    """The changes, messages and fates of one step, before its plan."""

    staged: Staged
    selection: Selection
    fates: Fates = NO_FATES
    pulled: int = 0
    """Number of records that were pulled."""
    now_ms: int
    """Time of the step (epoch ms)."""
    until_ms: int
    """Latest due time (epoch ms) of a message that the step may select."""

    @property
    def has_work(self) -> bool:
        """True if a pulled record, a selected message or an unreadable range needs a commit now.
        Occurrences that newer zone data move, and held records that are written to their
        destination, need one too, and do not count here."""
        return bool(self.pulled or self.selection.items or self.staged.unreadable)
