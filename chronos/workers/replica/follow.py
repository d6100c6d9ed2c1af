"""The follower: applies the progress records of masters to a shard's store, and decides nothing. A
replica that becomes the master, or restarts, catches up in the same way.

It reads the shard's two partitions. For each progress record it stages the delay records up to the
pull offset that the record names, executes all of them except those listed as refused, and applies
the outcomes and the cursor. It may read delay records ahead of the progress log, and never executes
them before (law 9)."""

from collections.abc import Callable
from contextlib import suppress

import structlog
from msgspec import Struct
from msgspec.structs import replace

from chronos.core.message import Record
from chronos.core.shard.progress import Progress, is_foreign, unpack_progress
from chronos.core.shard.shard import Shard
from chronos.core.shard.step import Staged
from chronos.errors import BatchUnreadable, LogMismatch
from chronos.ports import Log, Reader, Store
from chronos.workers.step.foreign import ForeignRecords

log = structlog.get_logger("chronos.shard")

PROGRESS_RECORDS = 100
"""Progress records read at once."""

PROGRESS_BYTES = 8_000_000
"""Bytes of progress records read at once."""

DELAY_RECORDS = 5_000
"""Delay records read at once."""

DELAY_BYTES = 8_000_000
"""Bytes of delay records read at once."""

TAIL_OFFSETS = 20
"""Offsets before the end that hold a progress record: it may be followed by its marker, and by
aborted transactions."""

TAIL_READS_MAX = 10
"""Most reads of them, with a wait between two."""

WAITS_MAX = 300
"""How often to wait for records of a batch that is read alone."""

WAIT_S = 0.1
"""How long to wait for delay records that a progress record names before the end of the partition
is checked."""


class Replayed(Struct, kw_only=True):
    """The result of one step of a follower."""

    records: int
    """Progress records read, those of other programs included."""
    refused: list[tuple[int, int]] = []
    """`(offset, Reason)` of the refused delay records in the progress records."""
    upserts: dict[int, str] = {}
    """As `Staged.upserts`, of the same progress records."""


class Follower:
    """Replays one shard into its store."""

    def __init__(
        self,
        log: Log,
        store: Store,
        shard: Shard,
        *,
        cluster: str,
        delay_topic: str,
        progress_topic: str,
        bounded: bool = False,
    ) -> None:
        """`cluster`: the only cluster whose progress records are applied. `bounded`: see
        `ports.ReaderMode`."""
        self._log = log
        self._store = store
        self._shard = shard
        self._cluster = cluster
        self._bounded = bounded
        self._progress_topic = progress_topic
        self._delay_topic = delay_topic
        self._foreign = ForeignRecords(progress_topic, shard.rules.shard)
        self._partition, self._shards = shard.rules.shard, shard.rules.shards
        self._progress = log.reader(progress_topic, self._partition, shard.state.applied)
        self._is_patient = False
        """The reader of the progress partition is a patient one."""
        self._delay: Reader | None = None
        self._records: list[Record] = []
        """Delay records read and not applied yet."""
        self.applying = False
        """Progress records were read and are being applied."""
        self.last: Progress | None = None
        """The last progress record applied by this follower."""
        self.written_ms = 0
        """Its timestamp."""

    @property
    def position(self) -> int:
        """Offset in the progress partition up to which everything is applied."""
        return self._progress.position

    @property
    def pulled(self) -> int:
        """Offset in the delay partition up to which everything is executed, transaction markers
        included."""
        return (
            self._shard.state.pull_offset
            if self._delay is None or self._records
            else self._delay.position
        )

    @property
    def delay_reader(self) -> Reader | None:
        """The reader of the delay partition; None before a progress record needs it."""
        return self._delay

    @property
    def read_ahead(self) -> tuple[Reader | None, list[Record]]:
        """The reader of the delay partition, and the records that it read beyond the last progress
        record."""
        return self._delay, self._records

    def step(self) -> Replayed:
        """Apply the progress records that can be read now."""
        records = self._progress.read(PROGRESS_RECORDS, PROGRESS_BYTES)
        applied = Replayed(records=len(records))
        self.applying = bool(records)
        own = [record for record in records if not is_foreign(record)]
        for record in own:
            progress, staged = self._apply(record)
            applied.refused += progress.refused
            applied.upserts |= staged.upserts
        if len(own) < len(records):
            first = next(filter(is_foreign, records))
            self._foreign.stepped_over(first, len(records) - len(own))
        self.applying = False
        if not records and not self._records and self._delay is not None:
            # Reading ahead also moves the position past the transaction markers after the last
            # record. A batch that cannot be read does not matter before a progress record needs it,
            # and that may step over it.
            with suppress(BatchUnreadable):
                self._records = self._delay.read(DELAY_RECORDS, DELAY_BYTES)
        return applied

    def last_ahead(self, stable: int) -> Progress | None:
        """Return the last progress record before the last stable offset, without applying any; None
        if there is none among the last offsets, or if they cannot be read at once. Nothing may have
        been read before. Raises LogMismatch."""
        reader, position = self._progress, self._progress.position
        tail: list[Record] = []
        reader.seek(max(position, stable - TAIL_OFFSETS))
        try:
            for _ in range(TAIL_READS_MAX):
                tail += reader.read(TAIL_OFFSETS, PROGRESS_BYTES)
                if reader.position >= stable:
                    break
                reader.wait(WAIT_S)
            is_whole = reader.position >= stable
        finally:
            reader.seek(position)
        own = [record for record in tail if not is_foreign(record)]
        return unpack_progress(own[-1].value, self._shards) if own and is_whole else None

    @property
    def waker(self) -> Callable[[], None] | None:
        """Ends a `wait`, see `ports.Reader`."""
        return self._progress.waker

    def wait(self, timeout_s: float) -> bool:
        """Wait until there may be more progress records, or for the time to pass; return which."""
        return self._progress.wait(timeout_s)

    def has_reached(self, end: int) -> bool:
        """Return whether every progress record before `end` is applied, a last stable offset.

        The marker of the last record's transaction may lie between: each transaction has one
        progress record, so that its marker follows at once. A patient reader passes it late."""
        position = self.position
        if position == self._shard.state.applied:
            position += self._log.marker_offsets
        return position >= end

    def set_patient(self, patient: bool) -> None:
        """Read the progress partition through a patient reader while a master goes on, and through
        another one to reach its end, which may be a marker of an aborted transaction."""
        if patient != self._is_patient:
            before = self._progress
            self._progress = self._log.reader(
                self._progress_topic,
                self._partition,
                before.position,
                mode="quiet" if patient else "plain",
            )
            self._is_patient = patient
            before.close()

    def _apply(self, record: Record) -> tuple[Progress, Staged]:
        try:
            progress = unpack_progress(record.value, self._shards)
        except LogMismatch as error:
            raise LogMismatch(
                f"{self._progress_topic}/{self._partition} has a record at offset {record.offset} "
                f"that cannot be applied: {error}"
            ) from error
        if progress.cluster != self._cluster:
            raise LogMismatch(
                f"{self._progress_topic}/{self._partition} has a progress record of the cluster "
                f"{progress.cluster!r} (node {progress.node}), but this node belongs to "
                f"{self._cluster!r}. Two clusters on the same topics would deliver every message "
                "twice: use the same cluster name on all nodes, or topics of its own for each "
                "cluster"
            )
        shard = self._shard
        if shard.state.applied == 0:
            # The epoch record of the first master pulls nothing: it names where the shard begins in
            # the delay partition.
            shard.state = replace(shard.state, pull_offset=progress.pull_offset)
        if progress.unreadable:
            staged = self._step_over(progress)
        else:
            staged = shard.replay_stage(self._delay_to(progress.pull_offset), progress)
        assert staged.pull_offset == progress.pull_offset
        selection = shard.replay_select(
            staged, (progress.cursor_due_ms, progress.cursor_offset), progress.lanes
        )
        changes = shard.apply(
            staged, selection, progress, offset=record.offset, timestamp_ms=record.timestamp_ms
        )
        self._store.write(changes.puts, changes.deletes)
        shard.install(changes)
        self.last, self.written_ms = progress, record.timestamp_ms
        return progress, staged

    def _delay_to(self, pull_offset: int) -> list[Record]:
        """Return the delay records from the applied pull offset to `pull_offset`, exclusive. Raises
        LogMismatch."""
        if pull_offset == self._shard.state.pull_offset:
            return []
        if self._delay is None:
            self._delay = self._log.reader(
                self._delay_topic,
                self._partition,
                self._shard.state.pull_offset,
                mode="bounded" if self._bounded else "patient",
            )
        records = self._records
        # The pull offset is the offset after a record that was staged, so the partition must hold
        # that record.
        while not records or records[-1].offset < pull_offset - 1:
            try:
                more = self._delay.read(DELAY_RECORDS, DELAY_BYTES)
            except BatchUnreadable as error:
                more = self._read_alone(self._delay, error)
            records += more
            # A reader that waits for its turn has not asked for records yet.
            if not more and not self._delay.wait(WAIT_S) and self._delay.delayed is None:
                self._check_end(pull_offset)
        upto = next(
            (at for at, record in enumerate(records) if record.offset >= pull_offset), len(records)
        )
        taken = records[:upto]
        # Not a copy of the rest: thousands of records may be read ahead, and a step takes one.
        del records[:upto]
        return taken

    def _read_alone(self, delay: Reader, error: BatchUnreadable) -> list[Record]:
        """Return the records of a batch that is larger than the reader may read, and move the
        reader behind it.

        A master has read it, or else had stepped over it, so that there is no other way.
        """
        _, last = self._log.batch_bounds(self._delay_topic, self._partition, error.offset)
        reader = self._log.reader(self._delay_topic, self._partition, delay.position, mode="alone")
        records: list[Record] = []
        waits = 0
        try:
            while reader.position <= last:
                more = reader.read(DELAY_RECORDS, DELAY_BYTES)
                records += more
                if not more and not reader.wait(WAIT_S):
                    waits += 1
                    if waits > WAITS_MAX:
                        raise error
        finally:
            reader.close()
        delay.seek(last + 1)
        return records

    def _step_over(self, progress: Progress) -> Staged:
        """Execute a step over ranges that the master could not read; nothing of them counts, should
        it be readable here."""
        staged = self._shard.stage_unreadable(progress.unreadable, progress)
        self._records = [record for record in self._records if record.offset >= staged.pull_offset]
        if self._delay is not None and self._delay.position < staged.pull_offset:
            self._delay.seek(staged.pull_offset)
        return staged

    def _check_end(self, pull_offset: int) -> None:
        end = self._log.watermarks(self._delay_topic, self._partition).stable
        if end < pull_offset:
            raise LogMismatch(
                f"{self._delay_topic}/{self._partition} ends at {end}, but a master had read it "
                f"up to {pull_offset}: the topic lost records, or was deleted and created again"
            )

    def leave_delay_reader(self) -> None:
        """Give up the reader of the delay partition to the one that has taken over `read_ahead`,
        and closes it."""
        self._delay, self._records = None, []

    def close(self) -> None:
        """Close the readers."""
        self._progress.close()
        if self._delay is not None:
            self._delay.close()
