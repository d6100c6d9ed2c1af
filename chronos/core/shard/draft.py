"""The draft: one step as the shard sees it, before any target is asked. It consists of the changes
that the pulled records ask for, the messages that the step settles, and the fates of these.

It is made in three moves: `Shard.stage` reads the records; the master admits what they ask for,
which may hold or reject records that go elsewhere (`workers.step.held`); then messages are
selected. Only the first move depends on the records alone: whether messages are selected depends on
what was admitted, because forwarded records share no transaction with deliveries.

A draft changes nothing. The push makes a plan of it, and once that is committed `Shard.apply` does
what draft and progress record say."""

from msgspec import Struct

from chronos.core.shard.fate import NO_FATES, Fates
from chronos.core.shard.step import Selection, Staged


class Draft(Struct, frozen=True, kw_only=True):
    """What one step asks of the push and of the store."""

    staged: Staged
    selection: Selection
    fates: Fates = NO_FATES
    pulled: int = 0
    """Number of records that were pulled."""
    now_ms: int
    """Time of the step (epoch ms)."""
    until_ms: int
    """The messages that were due by this time (epoch ms) were selected, within the bounds of a
    step."""

    @property
    def has_work(self) -> bool:
        """A record or a message needs a commit now. Occurrences that are planned again need one
        too, and are no work of the users."""
        return bool(self.pulled or self.selection.items or self.staged.unreadable)
