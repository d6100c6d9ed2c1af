"""The look-ahead: parts of the next step, and the writes of this one, computed while it commits.

Four parts, in the order of a step. Each is kept with the inputs it was computed from and is used
only while it holds (the last column). Otherwise the part is computed again, so a step with a
look-ahead decides exactly as a step without one.

    part           computed from                                     holds while
    parsed         records of the delay partition                    the next batch begins with these records, or is their beginning
    selection      the cursor after this step, the wheel, limits     all three are the same, its end
                                                                     is due, nothing was removed, or
                                                                     placed before its end
    transaction    that selection, the time, and a basis: targets,   the basis is as it was, and the same messages have
                   dead-letter topic, poison record, penalties of    expired
                   slow brokers
    writes         what this step staged, selected and decided       the same step is applied

The master owns it. The look-ahead makes no decision of its own."""  # noqa: E501

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from chronos.core.message import Record
from chronos.core.shard.progress import Progress
from chronos.core.shard.shard import Shard
from chronos.core.shard.step import Changes, Parsed, Selection, Staged, Writes
from chronos.core.shard.wheel import Position

T = TypeVar("T")


class _NextSelection(Struct, frozen=True, kw_only=True):
    """The selection that follows one that is not committed yet."""

    selection: Selection
    after: Position
    """The cursor that it continues from."""
    edits: int
    """`Wheel.edits` when it was computed."""
    limits: tuple[int, int]
    """Messages and bytes."""

    def holds(self, shard: Shard, staged: Staged, until_ms: int, limits: tuple[int, int]) -> bool:
        end_ms = self.selection.cursor[0]
        return (
            self.after == shard.state.cursor
            and self.edits == shard.wheel.edits
            and self.limits == limits
            and end_ms <= until_ms
            and not staged.removed
            and not any(due_ms <= end_ms for due_ms, _ in staged.placed.values())
        )


class _NextTransaction(Struct, Generic[T], frozen=True, kw_only=True):
    """The transaction made of a selection."""

    selection: Selection
    basis: object
    """Everything else that it was made of, compared by value."""
    from_ms: int
    """With `until_ms`: the times of a step (epoch ms) at which the same messages of it have
    expired."""
    until_ms: int
    transaction: T

    def holds(self, selection: Selection, now_ms: int, basis: Callable[[T], object]) -> bool:
        return (
            self.selection is selection
            and self.from_ms <= now_ms <= self.until_ms
            and self.basis == basis(self.transaction)
        )


class _StepWrites(Struct, frozen=True, kw_only=True):
    """The writes of the step that is committing."""

    staged: Staged
    selection: Selection
    writes: Writes

    def holds(self, staged: Staged, selection: Selection) -> bool:
        return self.staged is staged and self.selection is selection


class LookAhead(Generic[T]):
    """Parts of one shard's next step. `T` is the transaction that the push worker makes of a
    selection."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._parsed: Parsed | None = None
        self._selection: _NextSelection | None = None
        self._transaction: _NextTransaction[T] | None = None
        self._writes: _StepWrites | None = None
        self._targets: tuple[Selection | None, Mapping[str, int]] = (None, {})
        """The last selection whose targets were asked for, and its messages by target."""

    # --- while a step commits

    def parse(self, records: Sequence[Record]) -> None:
        """Parse records that the next step will probably stage. Raises Retry if the store cannot be
        read."""
        self._parsed = self._shard.parse(records)

    def select(
        self, selection: Selection, until_ms: int, messages_max: int, bytes_max: int
    ) -> Selection | None:
        """Compute the selection that follows `selection` once that is committed; None if it would
        not be a full one."""
        following = self._shard.select_next(selection, until_ms, messages_max, bytes_max)
        self._selection = None
        if following is not None:
            self._selection = _NextSelection(
                selection=following,
                after=selection.cursor,
                edits=self._shard.wheel.edits,
                limits=(messages_max, bytes_max),
            )
        return following

    def keep_transaction(
        self, selection: Selection, transaction: T, *, basis: object, from_ms: int, until_ms: int
    ) -> None:
        """Keep the transaction that was made of a selection on this basis, for a step between these
        times (epoch ms)."""
        self._transaction = _NextTransaction(
            selection=selection,
            basis=basis,
            from_ms=from_ms,
            until_ms=until_ms,
            transaction=transaction,
        )

    def write(self, staged: Staged, selection: Selection, progress: Progress) -> None:
        """Compute the writes of the step that is committing. Raises Retry if the store cannot be
        read."""
        self._writes = _StepWrites(
            staged=staged,
            selection=selection,
            writes=self._shard.writes(staged, selection, progress),
        )

    # --- in the next step

    def parsed(self, records: Sequence[Record]) -> Parsed:
        """Return what `Shard.parse` returns; parse now only records that were not parsed early."""
        early, self._parsed = self._parsed, None
        count = 0 if early is None else min(len(early.records), len(records))
        if early is None or count == 0 or early.records[:count] != records[:count]:
            return self._shard.parse(records)
        rest = self._shard.parse(records[count:])
        return Parsed(
            records=records[: count + len(rest.records)],
            commands=early.commands[:count] + rest.commands,
            places=early.places[:count] + rest.places,
            known=rest.known | early.known,
            named_ids=rest.named_ids | early.named_ids,
            action_ids=rest.action_ids | early.action_ids,
        )

    def selection(
        self, staged: Staged, until_ms: int, messages_max: int, bytes_max: int
    ) -> Selection:
        """Return what `Shard.select` returns."""
        early, self._selection = self._selection, None
        if early is not None and early.holds(
            self._shard, staged, until_ms, (messages_max, bytes_max)
        ):
            return early.selection
        return self._shard.select(staged, until_ms, messages_max, bytes_max)

    def targets(self, selection: Selection) -> Mapping[str, int]:
        """Return the target topics of a selection, with the number of messages for each."""
        if self._targets[0] is not selection:
            self._targets = (selection, Counter([entry.target for entry in selection.entries]))
        return self._targets[1]

    def transaction(
        self, selection: Selection, now_ms: int, basis: Callable[[T], object]
    ) -> T | None:
        """Return the transaction that was made of the selection early; None if there is none that
        holds.

        `basis`: returns the current basis of the transaction that is passed to it.
        """
        early, self._transaction = self._transaction, None
        self._targets = (None, {})
        if early is not None and early.holds(selection, now_ms, basis):
            return early.transaction
        return None

    def writes(self, staged: Staged, selection: Selection) -> Writes | None:
        """Return the writes of this step if they were computed early; else None."""
        early, self._writes = self._writes, None
        return early.writes if early is not None and early.holds(staged, selection) else None

    def installed(self, changes: Changes) -> None:
        """Bring parsed records up to date: states of ids that they name were read before this
        write."""
        parsed = self._parsed
        if parsed is None:
            return
        changed = parsed.named_ids & changes.id_states.keys()
        if changed:
            newer = {message_id: changes.id_states[message_id] for message_id in changed}
            self._parsed = replace(parsed, known=parsed.known | newer)
