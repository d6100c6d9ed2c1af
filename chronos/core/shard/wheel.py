"""The time wheel: the messages due next, in memory, a slot per millisecond.

It is a cache of the store and may be cleared at any moment. It holds every pending message after
the shard's cursor and at or before `through`, and no other. The design follows Varghese and Lauck,
"Hashed and Hierarchical Timing Wheels" (1987), with the slots in a dict and their order in a sorted
list: a millisecond in which no message was due takes no memory. A slot that was emptied stays until
the cursor passes it."""

from bisect import bisect_left, bisect_right, insort
from itertools import islice

from chronos.core.keys import OFFSET_MAX

Item = tuple[int, int, bytes]
"""`(due_ms, offset, packed entry)`: sorts in the order of delivery."""

Position = tuple[int, int]


class Wheel:
    """Packed entries by `(due_ms, offset)`. The caller bounds their number and bytes."""

    def __init__(self, through: Position) -> None:
        self._slots: dict[int, dict[int, Item]] = {}
        self._sizes: dict[int, int] = {}
        """Bytes held in each slot, so that a slot that the cursor has passed is dropped without
        reading its entries."""
        self._order: list[int] = []
        self.edits = 0
        """Incremented by every change that may alter the result of `peek` for messages held;
        `extend` does not."""
        self.clear(through)

    def clear(self, through: Position) -> None:
        """Drop every entry; the wheel is complete up to `through`, where nothing is pending."""
        self._slots.clear()
        self._sizes.clear()
        self._order.clear()
        self.through = through
        self.messages = 0
        self.bytes = 0
        self.edits += 1

    def add(self, due_ms: int, offset: int, data: bytes) -> None:
        """Add an entry at or before `through` that is not held yet."""
        assert (due_ms, offset) <= self.through
        slot = self._slots.get(due_ms)
        if slot is None:
            slot = self._slots[due_ms] = {}
            self._sizes[due_ms] = 0
            if self._order and due_ms < self._order[-1]:
                insort(self._order, due_ms)
            else:
                self._order.append(due_ms)
        assert offset not in slot
        slot[offset] = (due_ms, offset, data)
        self._sizes[due_ms] += len(data)
        self.messages += 1
        self.bytes += len(data)
        self.edits += 1

    def extend(self, items: list[Item], through: Position) -> None:
        """Add the entries that follow `self.through`, in order; the wheel is then complete up to
        `through`."""
        assert through >= self.through
        assert not items or (items[0][:2] > self.through and items[-1][:2] <= through)
        slots, sizes, order = self._slots, self._sizes, self._order
        slot_ms, size = -1, 0
        slot: dict[int, Item] = {}
        for item in items:
            due_ms, offset, data = item
            if due_ms != slot_ms:
                if size:
                    sizes[slot_ms] += size
                    self.bytes += size
                slot_ms, size = due_ms, 0
                if due_ms not in slots:
                    slots[due_ms] = {}
                    sizes[due_ms] = 0
                    order.append(due_ms)
                slot = slots[due_ms]
            slot[offset] = item
            size += len(data)
        if size:
            sizes[slot_ms] += size
            self.bytes += size
        self.messages += len(items)
        self.through = through

    def forget(self, due_ms: int, offset: int) -> None:
        """Drop an entry if it is held, in O(1)."""
        if offset in self._slots.get(due_ms, ()):
            self._take(due_ms, [offset])
            self.edits += 1
        # An empty slot stays until the cursor passes it: taking it out of the order would cost
        # O(n).

    def peek(self, until_ms: int, messages_max: int, after: Position = (-1, 0)) -> list[Item]:
        """Return the first entries after `after` that are due at or before `until_ms`, in order, at
        most `messages_max`."""
        items: list[Item] = []
        after_ms, after_offset = after
        for due_ms in islice(self._order, bisect_left(self._order, after_ms), None):
            if due_ms > until_ms or len(items) >= messages_max:
                break
            slot = self._slots[due_ms]
            offsets = sorted(slot)
            start = bisect_right(offsets, after_offset) if due_ms == after_ms else 0
            items += [slot[offset] for offset in offsets[start : start + messages_max - len(items)]]
        return items

    def advance(self, cursor: Position) -> None:
        """Drop every entry at or before the cursor."""
        cursor_due_ms, cursor_offset = cursor
        passed = bisect_left(self._order, cursor_due_ms)
        for due_ms in self._order[:passed]:
            self._drop(due_ms)
        del self._order[:passed]
        slot = self._slots.get(cursor_due_ms)
        if slot is not None:
            self._take(cursor_due_ms, [offset for offset in slot if offset <= cursor_offset])
            if not slot:
                self._drop(cursor_due_ms)
                del self._order[0]
        self.through = max(self.through, cursor)

    def shrink(self, messages_max: int) -> None:
        """Keep the first `messages_max` entries and drop the rest."""
        assert messages_max > 0
        if self.messages <= messages_max:
            return
        self.edits += 1
        kept = 0
        for at, due_ms in enumerate(self._order):  # noqa: B007 -- the loop stops at the slot that is cut
            slot = self._slots[due_ms]
            if kept + len(slot) > messages_max:
                break
            kept += len(slot)
        for later_ms in self._order[at + 1 :]:
            self._drop(later_ms)
        offsets = sorted(slot)
        keep = messages_max - kept
        self.through = (due_ms, offsets[keep - 1]) if keep else (due_ms - 1, OFFSET_MAX)
        self._take(due_ms, offsets[keep:])
        if not keep:
            self._drop(due_ms)
        del self._order[at + bool(keep) :]

    def next_due_ms(self) -> int | None:
        """Return the due time of the first entry held; None if none is held."""
        for due_ms in self._order:
            if self._slots[due_ms]:
                return due_ms
        return None

    def _drop(self, due_ms: int) -> None:
        """Drop a whole slot."""
        self.messages -= len(self._slots.pop(due_ms))
        self.bytes -= self._sizes.pop(due_ms)

    def _take(self, due_ms: int, offsets: list[int]) -> None:
        """Take entries out of their slot."""
        slot = self._slots[due_ms]
        size = sum(len(slot.pop(offset)[2]) for offset in offsets)
        self._sizes[due_ms] -= size
        self.messages -= len(offsets)
        self.bytes -= size
