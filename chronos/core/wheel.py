"""The time wheel: the messages due next, in memory, a slot per millisecond.

A cache of what the store holds, never the truth: it may be cleared at any moment. It promises to hold every
pending message at or before `through`, and nothing behind it. After Varghese and Lauck, "Hashed and Hierarchical
Timing Wheels" (1987), with the slots in a dict and their order in a sorted list: an empty millisecond costs nothing.
"""

from bisect import bisect_left, insort

from chronos.core.keys import OFFSET_MAX

Item = tuple[int, int, bytes]
"""`(due_ms, offset, packed entry)`: sorts in the order of delivery."""

Position = tuple[int, int]


class Wheel:
    """Packed entries by `(due_ms, offset)`, bounded in messages and bytes by whoever fills it."""

    def __init__(self, through: Position) -> None:
        self._slots: dict[int, dict[int, bytes]] = {}
        self._order: list[int] = []
        self.clear(through)

    def clear(self, through: Position) -> None:
        """Forget everything; from now on the wheel is complete up to `through` because nothing is pending there."""
        self._slots.clear()
        self._order.clear()
        self.through = through
        self.messages = 0
        self.bytes = 0

    def add(self, due_ms: int, offset: int, data: bytes) -> None:
        """Hold an entry that lies at or before `through`. It must not be there yet."""
        assert (due_ms, offset) <= self.through
        slot = self._slots.get(due_ms)
        if slot is None:
            slot = self._slots[due_ms] = {}
            if self._order and due_ms < self._order[-1]:
                insort(self._order, due_ms)
            else:
                self._order.append(due_ms)
        assert offset not in slot
        slot[offset] = data
        self.messages += 1
        self.bytes += len(data)

    def extend(self, items: list[Item], through: Position) -> None:
        """Hold the entries that follow `self.through`, in order, and be complete up to `through`."""
        assert through >= self.through
        assert not items or (items[0][:2] > self.through and items[-1][:2] <= through)
        slots, order = self._slots, self._order
        slot_ms = -1
        slot: dict[int, bytes] = {}
        size = 0
        for due_ms, offset, data in items:
            if due_ms != slot_ms:
                slot_ms = due_ms
                if due_ms not in slots:
                    slots[due_ms] = {}
                    order.append(due_ms)
                slot = slots[due_ms]
            slot[offset] = data
            size += len(data)
        self.messages += len(items)
        self.bytes += size
        self.through = through

    def forget(self, due_ms: int, offset: int) -> None:
        """Drop an entry, if it is held, in O(1)."""
        slot = self._slots.get(due_ms)
        if slot is None:
            return
        data = slot.pop(offset, None)
        if data is not None:
            self.messages -= 1
            self.bytes -= len(data)
        # An empty slot stays until the cursor passes it: taking it out of the order would cost O(n).

    def peek(self, until_ms: int, messages_max: int) -> list[Item]:
        """The first entries due at or before `until_ms`, in order, at most `messages_max`."""
        found: list[Item] = []
        for due_ms in self._order:
            if due_ms > until_ms or len(found) >= messages_max:
                break
            slot = self._slots[due_ms]
            found += [(due_ms, offset, slot[offset]) for offset in sorted(slot)[: messages_max - len(found)]]
        return found

    def advance(self, cursor: Position) -> None:
        """Drop everything at or before the cursor."""
        cursor_due_ms, cursor_offset = cursor
        passed = bisect_left(self._order, cursor_due_ms)
        if passed == len(self._order):
            self._slots.clear()
            self._order.clear()
            self.messages = self.bytes = 0
        else:
            for due_ms in self._order[:passed]:
                self._drop(self._slots.pop(due_ms))
            del self._order[:passed]
            slot = self._slots.get(cursor_due_ms)
            if slot is not None:
                self._drop({offset: slot.pop(offset) for offset in [at for at in slot if at <= cursor_offset]})
                if not slot:
                    del self._slots[cursor_due_ms]
                    del self._order[0]
        self.through = max(self.through, cursor)

    def shrink(self, messages_max: int) -> None:
        """Keep the first `messages_max`, give up the rest."""
        assert messages_max > 0
        if self.messages <= messages_max:
            return
        kept = 0
        for at, due_ms in enumerate(self._order):  # noqa: B007 -- where the loop stopped is where to cut
            slot = self._slots[due_ms]
            if kept + len(slot) > messages_max:
                break
            kept += len(slot)
        for later_ms in self._order[at + 1 :]:
            self._drop(self._slots.pop(later_ms))
        offsets = sorted(slot)[: messages_max - kept]
        self.through = (due_ms, offsets[-1]) if offsets else (due_ms - 1, OFFSET_MAX)
        self._drop({offset: slot.pop(offset) for offset in slot.keys() - set(offsets)})
        if not offsets:
            del self._slots[due_ms]
        del self._order[at + bool(offsets) :]

    def next_due_ms(self) -> int | None:
        """When the first entry held is due; None when none is held."""
        for due_ms in self._order:
            if self._slots[due_ms]:
                return due_ms
        return None

    def _drop(self, slot: dict[int, bytes]) -> None:
        self.messages -= len(slot)
        self.bytes -= sum(map(len, slot.values()))
