"""The start of a replay: the state that it starts from, its cost, and the check that the two logs
still have everything that the store needs. The replay itself is `follow`.

Keeps its part of law 1: a store that is ahead of its logs, or older than their start where no
checkpoint can replace it, raises LogMismatch."""

import structlog
from msgspec import Struct
from msgspec.structs import replace

from chronos.core.shard.codec import State
from chronos.core.shard.progress import Progress, is_foreign, unpack_progress
from chronos.errors import LogMismatch, LogUnavailable
from chronos.ports import Log, Watermarks

log = structlog.get_logger("chronos.shard")

FLUSH_RECORDS = 200
"""A replay of this many progress records (tenths of a second) is flushed: a node killed again must
not repeat it."""

LOG_MS = 1_000
"""How often a long replay logs its position."""

FIRST_RECORDS, FIRST_BYTES = 100, 1_000_000
"""Records and bytes read at once in search of the first progress record."""

WAITS_MAX = 50
"""Most waits for that record."""

WAIT_S = 0.1
"""Length of one wait."""


class RecoveryCost(Struct, frozen=True, kw_only=True):
    """The cost of bringing a store to the end of its logs by replay."""

    store_empty: bool
    """The store holds nothing yet."""
    logs_complete: bool
    """Both logs reach back to the store's positions."""
    records: int
    """Records of both logs to be read."""
    applied_min: int
    """Start of the progress partition: a checkpoint with a smaller `applied` is of no use."""
    pull_offset_min: int
    """Start of the delay partition: a checkpoint with a smaller `pull_offset` is of no use."""

    @property
    def replaces_store(self) -> bool:
        """True if the contents of the store are of no use: it is empty, or behind the start of a
        log."""
        return self.store_empty or not self.logs_complete

    @classmethod
    def of(cls, state: State, progress: Watermarks, delay: Watermarks) -> "RecoveryCost":
        """Return the cost for a store with this state and logs with these watermarks."""
        return cls(
            store_empty=state.applied == 0,
            logs_complete=progress.start <= state.applied and delay.start <= state.pull_offset,
            records=progress.high - state.applied + delay.high - state.pull_offset,
            applied_min=progress.start,
            pull_offset_min=delay.start,
        )


class Replay:
    """The progress records that a replica has applied since it opened its logs."""

    def __init__(self, end: int) -> None:
        """`end`: of the progress log when it was opened; a store that has applied everything before
        it was rebuilt."""
        self.records = 0
        """Number of records applied."""
        self.end = end
        self._logged_ms = 0

    @property
    def needs_flush(self) -> bool:
        """True if the replay took so long that the next process must not repeat it."""
        return self.records >= FLUSH_RECORDS

    def log_position(self, shard: int, state: State, now_ms: int) -> None:
        """Log the position of a replay that takes long, once every LOG_MS and not at its first
        record."""
        if now_ms - self._logged_ms >= LOG_MS:
            if self._logged_ms:
                log.info("replaying", shard=shard, applied=state.applied, pull=state.pull_offset)
            self._logged_ms = now_ms


def check_position(topic: str, shard: int, position: int, watermarks: Watermarks) -> None:
    """Raise LogMismatch unless the partition holds everything from the store's position on."""
    if watermarks.start > position:
        raise LogMismatch(
            f"{topic}/{shard} begins at {watermarks.start}, but the store needs it from "
            f"{position} on: the topic was trimmed ahead of the store. Restore a checkpoint that "
            f"is newer, or, if what is missing may be lost, remove the store of shard {shard} and "
            "both topics' contents."
        )
    if watermarks.high < position:
        raise LogMismatch(
            f"{topic}/{shard} ends at {watermarks.high}, but the store has applied it up to "
            f"{position}: the topic was deleted and created again, or this is another cluster. "
            f"Point Chronos to the right one, or remove the store of shard {shard}."
        )


def begun(
    state: State,
    log_port: Log,
    shard: int,
    shards: int,
    progress_topic: str,
    progress: Watermarks,
    delay: Watermarks,
) -> State:
    """Return the state to start from: that of the store, or, if the store is empty and the delay
    partition begins above offset 0, one with another pull offset.

    That is the pull offset of the first progress record, or, before one is committed, the start of
    the delay partition: records that were deleted before Chronos first ran were never accepted.
    Raises LogUnavailable, LogMismatch."""
    if state.applied or progress.start or not delay.start:
        return state
    first = _first(log_port, progress_topic, shard, shards, progress) if progress.high else None
    return replace(state, pull_offset=delay.start if first is None else first.pull_offset)


def _first(
    log_port: Log, topic: str, shard: int, shards: int, watermarks: Watermarks
) -> Progress | None:
    """Return the first progress record of a shard; None if no transaction was committed. Raises
    LogUnavailable, LogMismatch."""
    reader = log_port.reader(topic, shard, watermarks.start)
    waits = 0
    try:
        while waits < WAITS_MAX:
            try:
                records = reader.read(FIRST_RECORDS, FIRST_BYTES)
            except LogMismatch as error:
                if log_port.watermarks(topic, shard).start == watermarks.start:
                    raise
                # The next start finds that the log begins later, and looks for a checkpoint.
                raise LogUnavailable(f"it was trimmed during the start: {error}") from error
            own = next((record for record in records if not is_foreign(record)), None)
            if own is not None:
                return unpack_progress(own.value, shards)
            if reader.position >= watermarks.stable:
                return None
            if not records:
                reader.wait(WAIT_S)
                waits += 1
    finally:
        reader.close()
    raise LogUnavailable(f"the first record of {topic}/{shard} cannot be read at the moment")


def check_positions(
    state: State,
    progress: Watermarks,
    delay: Watermarks,
    shard: int,
    progress_topic: str,
    delay_topic: str,
) -> None:
    """Raise LogMismatch unless both logs hold everything after this state."""
    check_position(progress_topic, shard, state.applied, progress)
    check_position(delay_topic, shard, state.pull_offset, delay)
