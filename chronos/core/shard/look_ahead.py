"""The look-ahead: parts of the next step, and the writes of this one, computed while it commits.

Five parts, in the order of a step. Each is kept with the inputs it was computed from and is used
only while it holds (the last column). Otherwise the part is computed again, so a step with a
look-ahead decides exactly as a step without one.

    part           computed from                                     holds while
    parsed         records of the delay partition                    the next batch begins with these records, or is their beginning
    selection      the cursor after this step, the wheel, limits     all three are the same, its end
                                                                     is due, nothing was removed, or
                                                                     placed up to its end
    fates          that selection, and the time                      the same messages of it have expired
    plan           those fates and a basis: targets, dead-letter     the basis is as it was
                   topic, poison record, penalties of slow brokers
    writes         what this step staged, selected and decided       the same step is applied

The master owns it. The look-ahead makes no decision of its own."""  # noqa: E501

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from chronos.core.message import Record
from chronos.core.series import repetition_of
from chronos.core.shard.fate import Fates
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


class _NextFates(Struct, frozen=True, kw_only=True):
    """The fates of a selection."""

    selection: Selection
    fates: Fates

    def holds(self, selection: Selection, now_ms: int) -> bool:
        return self.selection is selection and self.fates.hold(now_ms)


class _NextPlan(Struct, Generic[T], frozen=True, kw_only=True):
    """The plan made of a selection with its fates."""

    selection: Selection
    fates: Fates
    basis: object
    """Everything else that it was made of, compared by value."""
    plan: T

    def holds(self, selection: Selection, fates: Fates, basis: Callable[[T], object]) -> bool:
        return (
            self.selection is selection and self.fates is fates and self.basis == basis(self.plan)
        )


class _StepWrites(Struct, frozen=True, kw_only=True):
    """The writes of the step that is committing."""

    staged: Staged
    selection: Selection
    writes: Writes

    def holds(self, staged: Staged, selection: Selection) -> bool:
        return self.staged is staged and self.selection is selection


class LookAhead(Generic[T]):
    """Parts of one shard's next step. `T` is the plan that the push worker makes of a
    selection."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._parsed: Parsed | None = None
        self._selection: _NextSelection | None = None
        self._fates: _NextFates | None = None
        self._plan: _NextPlan[T] | None = None
        self._writes: _StepWrites | None = None

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
        self._selection = self._fates = None
        if following is not None:
            self._selection = _NextSelection(
                selection=following,
                after=selection.cursor,
                edits=self._shard.wheel.edits,
                limits=(messages_max, bytes_max),
            )
        return following

    def foretell(self, selection: Selection, now_ms: int) -> Fates | None:
        """Compute the fates of the selection that follows; None if it has a series: the times of
        its rhythm are computed once, in the step."""
        if any(repetition_of(selection.entries[at]) is not None for at in selection.with_terms):
            return None
        fates = self._shard.fates(selection, now_ms)
        self._fates = _NextFates(selection=selection, fates=fates)
        return fates

    def keep_plan(self, selection: Selection, fates: Fates, plan: T, basis: object) -> None:
        """Keep the plan that was made of a selection with these fates, on this basis."""
        self._plan = _NextPlan(selection=selection, fates=fates, basis=basis, plan=plan)

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

    def fates(self, selection: Selection, now_ms: int) -> Fates:
        """Return what `Shard.fates` returns."""
        early, self._fates = self._fates, None
        if early is not None and early.holds(selection, now_ms):
            return early.fates
        return self._shard.fates(selection, now_ms)

    def plan(self, selection: Selection, fates: Fates, basis: Callable[[T], object]) -> T | None:
        """Return the plan that was made early of the selection with these fates; None if there is
        none that holds.

        `basis`: returns the current basis of the plan that is passed to it.
        """
        early, self._plan = self._plan, None
        return early.plan if early is not None and early.holds(selection, fates, basis) else None

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
