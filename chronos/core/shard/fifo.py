"""Queues of one kind in the store, by name: the rows of each in the order of their positions, and
one more row with its state as long as it is not empty.

`core.shard.lanes` and `core.shard.queues` are two uses, with keys, states and meanings of their
own. Rows enter anywhere and leave from the beginning, or by an action from anywhere. All functions
are deterministic (law 9)."""

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from chronos.core.shard.step import KeyValue, StoreView, portions

SCAN_ROWS, SCAN_BYTES = 5_000, 8_000_000
"""Rows and bytes of one scan: one step's worth."""


class QueueLength(Protocol):
    """The part of a state that all kinds have."""

    @property
    def length(self) -> int:
        """Number of rows in the queue."""


N = TypeVar("N")
S = TypeVar("S", bound=QueueLength)


class Kind(Struct, Generic[N, S], frozen=True, kw_only=True):
    """How the states of one kind are stored."""

    prefix: bytes
    """First byte of the keys of states."""
    key: Callable[[N], bytes]
    """Returns the key of the state of a queue."""
    name: Callable[[bytes], N]
    """Returns the name of the queue that has a state at the key."""
    pack: Callable[[S], bytes]
    unpack: Callable[[bytes], S]


class FifoWrites(Struct, Generic[N, S], frozen=True, kw_only=True):
    """The rows that one step writes about the queues of one kind."""

    puts: list[KeyValue]
    deletes: list[bytes]
    states: dict[N, S | None]
    """Every queue that changed -> its new state; None: it is empty."""
    length: int
    """Change of the number of rows in all queues."""
    bytes: int
    """Change of the bytes of these rows, where they are counted."""


class Fifo(Generic[N, S]):
    """The queues of one kind of one shard that are not empty."""

    def __init__(self, view: StoreView, kind: Kind[N, S], length: int) -> None:
        """`length`: number of rows in all queues; with 0 nothing is ever read."""
        self._view = view
        self._kind = kind
        self._length = length
        self._states: dict[N, S] | None = None if length else {}

    @property
    def states(self) -> dict[N, S]:
        """The state of every queue that is not empty. Raises Retry if the store cannot be read."""
        if self._states is None:
            states = read_states(self._view, self._kind)
            assert sum(state.length for state in states.values()) == self._length, (
                "the rows of queues are counted wrongly"
            )
            self._states = states
        return self._states

    def portions(
        self, start: bytes, stop: bytes, rows_max: int = SCAN_ROWS, bytes_max: int = SCAN_BYTES
    ) -> Iterator[list[KeyValue]]:
        """Yield the rows from one key to before another, in parts within both limits; a part may
        have none."""
        return portions(self._view, start, stop, rows_max, bytes_max)

    def with_states(
        self,
        puts: list[KeyValue],
        deletes: list[bytes],
        states: dict[N, S | None],
        *,
        length: int,
        row_bytes: int = 0,
    ) -> FifoWrites[N, S]:
        """Return the writes of a step: its rows, and those of the new states."""
        kind = self._kind
        for name, state in states.items():
            if state is None:
                deletes.append(kind.key(name))
            else:
                puts.append((kind.key(name), kind.pack(state)))
        return FifoWrites(puts=puts, deletes=deletes, states=states, length=length, bytes=row_bytes)

    def install(self, states: Mapping[N, S | None]) -> None:
        """Install new states after they were written."""
        for name, state in states.items():
            if state is None:
                self.states.pop(name, None)
            else:
                self.states[name] = state


def read_states(view: StoreView, kind: Kind[N, S]) -> dict[N, S]:
    """Return the state of every queue of one kind that is not empty. Raises Retry if the store
    cannot be read."""
    states: dict[N, S] = {}
    stop = bytes([kind.prefix[0] + 1])
    for rows in portions(view, kind.prefix, stop, SCAN_ROWS, SCAN_BYTES):
        states |= {kind.name(key): kind.unpack(data) for key, data in rows}
    return states
