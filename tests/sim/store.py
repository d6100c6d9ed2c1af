"""The store of one shard on a simulated disk.

Flushed writes survive a crash. Writes fail while the disk is full or failing; reads fail while it
is damaged or no file can be opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path

from chronos.core.keys import (
    COUNT,
    ENTRY,
    ID_STATE,
    LANE,
    LANE_STATE,
    PARKED,
    STATE_KEY,
    entry_position,
)
from chronos.core.shard.codec import FRESH, State, unpack_id_state, unpack_state
from chronos.core.shard.order import is_forgotten
from chronos.errors import NoSpace, Retry, StoreCorrupt
from tests.harness.memory import MemoryStore
from tests.sim.world import World

NOWHERE = Path("simulated/0")
"""Path of a store without a folder; it never exists."""


SKIPPED_MAX = 2
"""Deleted rows that a scan passes over: so few that many scans end as a part."""


class Disk:
    """The current faults of a node's disk."""

    def __init__(self) -> None:
        self.full = False
        self.low = False
        """Free space is below the reserve: no step begins."""
        self.failing = False
        self.unread_chance = 0.0
        """Probability that a read finds no file descriptor."""
        self.fetched: dict[Path, dict[bytes, bytes]] = {}
        """Checkpoints that were fetched and not yet opened, by folder."""
        self.flush_chance = 0.1
        """Probability that the store flushes by itself after a write."""


class SimStore(MemoryStore):
    """See `ports.Store`. `wrote` is called after each write that moved the state."""

    def __init__(self, world: World, disk: Disk, wrote: Callable[[SimStore], None]) -> None:
        super().__init__(skipped_max=SKIPPED_MAX)
        self._world = world
        self._disk = disk
        self._wrote = wrote
        self._error: str | None = None
        self.damaged = False
        self.path = NOWHERE

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._check_sound()
        if STATE_KEY not in keys:  # read when the store is opened, and just after it was written
            self._check_readable()
        return super().get(keys)

    def scan(
        self, start: bytes, stop: bytes, count_max: int, bytes_max: int
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        self._check_sound()
        self._check_readable()
        return super().scan(start, stop, count_max, bytes_max)

    def _check_sound(self) -> None:
        if self.damaged:
            raise StoreCorrupt("a block's checksum is wrong")

    def _check_readable(self) -> None:
        if self._world.chance(self._disk.unread_chance):
            raise Retry("too many open files")

    def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> None:
        if self._disk.failing:
            self._error = "IO error: input/output error while flushing"
        if self._disk.full or self._error:
            raise NoSpace("no space left on device")
        super().write(puts, deletes)
        if puts and self.state is not None:
            self._wrote(self)
        if self._world.chance(self._disk.flush_chance):
            super().flush()

    def flush(self) -> None:
        if self._disk.full or self._disk.failing or self._error:
            raise NoSpace("no space left on device")
        super().flush()

    def background_error(self) -> str | None:
        return self._error

    def open(self) -> None:
        if self._disk.full or self._disk.failing:
            raise NoSpace("no space left on device")
        self._error = None
        super().open()

    def reopen(self) -> None:
        if self._disk.full or self._disk.failing:
            raise NoSpace("no space left on device")
        self._error = None
        self._restore(self._flushed)

    def copied(self) -> SimStore:
        """Another store with the same content."""
        copy = SimStore(self._world, self._disk, self._wrote)
        copy._restore(self._rows)
        copy._flushed = dict(self._flushed)
        copy.damaged, copy.path = self.damaged, self.path
        return copy

    def crash(self) -> SimStore:
        """The store as the disk holds it after the process was killed; this one is closed."""
        survivor = SimStore(self._world, self._disk, self._wrote)
        survivor._restore(self._flushed)
        survivor.damaged = self.damaged
        survivor.path = self.path
        self._closed = True
        return survivor

    def close(self) -> None:
        if not self._disk.full and not self._disk.failing and not self._error:
            super().close()
        self._closed = True

    def replace(self, path: Path) -> None:
        """Replace all rows by those of the checkpoint that was fetched into the folder."""
        if self._disk.full or self._disk.failing:
            raise NoSpace("no space left on device")
        self._error, self.damaged = None, False
        self._restore(self._disk.fetched.pop(path))
        if self.state is not None:
            self._wrote(self)

    def rows(self) -> dict[bytes, bytes]:
        """The rows of a checkpoint made now; flushes the store if it is open."""
        self._check_sound()
        if self.is_open:
            self.flush()
        return self._flushed

    def _restore(self, rows: dict[bytes, bytes]) -> None:
        self._rows = dict(rows)
        self._keys = sorted(rows)
        self._deleted = []
        self._flushed = dict(rows)

    # For the checker

    @property
    def state(self) -> State | None:
        data = self._rows.get(STATE_KEY)
        return None if data is None else unpack_state(data)

    @property
    def durable(self) -> State:
        """The state that a crash would leave."""
        data = self._flushed.get(STATE_KEY)
        return FRESH if data is None else unpack_state(data)

    def logical(self, *, settled_too: bool) -> dict[bytes, bytes]:
        """The rows that must be equal on all replicas: state, pending messages, counts, ids that
        are not forgotten, lanes; other settled rows on demand, because the delete worker of each
        replica removes them when it likes."""
        state = self.state
        horizon_ms = 0 if state is None else state.horizon_ms
        cursor = (0, -1) if state is None else state.cursor
        rows = {}
        for key, value in self._rows.items():
            space = key[:1]
            if (
                settled_too
                or (space == ENTRY and entry_position(key) > cursor)
                or (space == ID_STATE and not is_forgotten(unpack_id_state(value), horizon_ms))
                or space in (COUNT, LANE, PARKED, LANE_STATE)
                or key == STATE_KEY
            ):
                rows[key] = value
        return rows

    def digest(self, *, settled_too: bool) -> bytes:
        """Equal for equal logical content."""
        hashed = blake2b(digest_size=16)
        rows = self.logical(settled_too=settled_too)
        for key in sorted(rows):
            hashed.update(b"%d %d " % (len(key), len(rows[key])) + key + rows[key])
        return hashed.digest()
