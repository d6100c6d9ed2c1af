"""Reads of the dead-letter topic and of the rejected topic in bounded parts, with a filter.

A dead letter is resolved if a marker behind it in its partition names it. The markers up to the end
of a partition are therefore read before any of its letters is shown. A node keeps the ranges of
resolved offsets in memory, so that it reads each record for its markers once; if it is more than
FAR_BEHIND records behind, it forgets the ranges and begins again from the end."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

from msgspec import Struct

from chronos.core.letters import RESOLUTIONS, Letter, Marker, Offsets, producer_headers
from chronos.core.message import Record
from chronos.core.query.filter import is_like
from chronos.core.reach import Reach
from chronos.core.size import memory_bytes
from chronos.errors import BatchUnreadable, LogMismatch, LogUnavailable
from chronos.ports import Log, Reader, TopicInfo

PART_S = 2.0
"""How long one part may take; at least one block of records is read."""

BLOCK_RECORDS = 20_000
"""Offsets that are read for their markers at once: every reading backwards makes a consumer fetch
anew."""

CHUNK_RECORDS_MIN = 100
CHUNK_RECORDS_MAX = 10_000
"""Records that are read for their letters at once, of one partition: its share of the letters that
are asked for, and twice as many after a chunk without any."""

READ_BYTES = 2_000_000
"""Bytes of one read of one partition; at least one record."""

SILENCE_S = 10.0
"""How long a read waits for the log."""

FAR_BEHIND = 100_000
"""Records behind which a node does not read the markers one after another, but from the end
again."""

Window = tuple[int, int]
"""Offsets of a partition that are still to be read: the first, and the one after the last."""


Read = Callable[[int, Record, bool], Letter | Marker | None]
"""What a record of the topic is: given its partition, the record, and whether the letter has the
record itself."""


class Wanted(Struct, frozen=True, kw_only=True):
    """The filter of a scan, for dead letters or rejected records. All conditions must be true."""

    id: bytes | None = None
    positions: frozenset[tuple[int, int]] | None = None
    """Partitions and offsets in their topic."""
    origin: str | None = None
    """With `id`: also records without an id from this position of the delay topic."""
    source: str | None = None
    """Position of their records in the delay topic: topic/partition/offset, or topic/partition."""
    target: str | None = None
    """Name of the target topic, or a pattern."""
    reason: str | None = None
    since_ms: int = 0
    """Written at or after this time (epoch ms)."""
    until_ms: int | None = None
    """Written before this time (epoch ms)."""
    resolved: bool = False
    """Also those that were replayed or discarded."""
    headers: tuple[tuple[str, bytes], ...] = ()
    """All of these headers of their producers; of rejected records only."""
    counted_header: str | None = None
    """The header whose value each `FoundLetter` has; of rejected records only."""
    reach: Reach
    """The targets and ids of the sender: only letters within it match."""

    def matches(self, letter: Letter) -> bool:
        """Return whether the letter fits the filter, whether resolved or not."""
        return (
            (self.id is None or self._names(letter))
            and (self.positions is None or (letter.partition, letter.offset) in self.positions)
            and (self.source is None or f"{letter.source}/".startswith(f"{self.source}/"))
            and (self.target is None or is_like(letter.target, self.target))
            and (self.reason is None or letter.reason == self.reason)
            and is_own(letter, self.reach)
            and self.since_ms <= letter.timestamp_ms
            and (self.until_ms is None or letter.timestamp_ms < self.until_ms)
        )

    def has_headers(self, record: Record) -> bool:
        """Return whether a record has the headers."""
        if not self.headers:
            return True
        sent = producer_headers(record)
        return all(wanted in sent for wanted in self.headers)

    def header_in(self, record: Record) -> str:
        """Return the value of the counted header as text; empty without it. Of a repeated one, the
        first."""
        if self.counted_header is None:
            return ""
        values = (value for name, value in producer_headers(record) if name == self.counted_header)
        return (next(values, None) or b"").decode("utf-8", "replace")

    def _names(self, letter: Letter) -> bool:
        return letter.id == self.id or (
            not letter.id and self.origin is not None and letter.source == self.origin
        )


def is_own(letter: Letter, reach: Reach) -> bool:
    """Return whether a letter is within the reach: its target is, and its id.

    One without a target belongs to no limited sender: its record names none, or several. One
    without an id, but with a target, is a rejected record without a key: had it been accepted,
    Chronos would have made its id."""
    if not reach.is_limited:
        return True
    return (
        bool(letter.target)
        and reach.admits_target(letter.target)
        and (not letter.id or reach.admits_id(letter.id))
    )


class FoundLetter(Struct, frozen=True, kw_only=True):
    """A letter of a part."""

    letter: Letter
    resolution: str | None
    """`replayed` or `discarded`; None if it is not resolved."""
    header: str = ""
    """The value of the counted header."""
    run: int
    """Letters of one partition in the same run follow each other with no other letter between
    them."""


class ScanPart(Struct, frozen=True, kw_only=True):
    """The answer of one scan."""

    found: list[FoundLetter]
    windows: list[Window] | None
    """The offsets of each partition that are still to be read; None: everything was read."""
    records: int
    """Records read."""


class _Folded:
    """The markers of one partition, in the offsets read so far."""

    def __init__(self, end: int) -> None:
        self.low = self.high = end
        self.resolved = {resolution: Offsets() for resolution in RESOLUTIONS}

    def resolution(self, offset: int) -> str | None:
        return next((name for name, offsets in self.resolved.items() if offset in offsets), None)

    def unresolved(self, window: Window) -> Window:
        """Return the window without the resolved letters at its two ends."""
        first, end = window
        sets = tuple(self.resolved.values())
        while first < end and (
            found := next(filter(None, (each.range_of(first) for each in sets)), None)
        ):
            first = found[1] + 1
        while first < end and (
            found := next(filter(None, (each.range_of(end - 1) for each in sets)), None)
        ):
            end = found[0]
        return first, max(first, end)


_NO_MARKERS = _Folded(0)


class _Budget:
    """The bound of one part."""

    def __init__(self, seconds: float) -> None:
        self._ends_s = time.monotonic() + seconds
        self.records = 0

    @property
    def is_spent(self) -> bool:
        return self.records > 0 and time.monotonic() >= self._ends_s


class LetterTopic:
    """The dead-letter or the rejected topic of a log. Any thread may call; one scan at a time."""

    def __init__(self, log: Log, topic: str, read: Read, *, has_markers: bool) -> None:
        """`has_markers`: its letters may be resolved."""
        self.topic = topic
        self.read = read
        self._has_markers = has_markers
        self._log = log
        self._lock = threading.Lock()
        self._topic_id = ""
        self._folded: dict[int, _Folded] = {}

    def windows(self, wanted: Wanted) -> list[Window]:
        """Return the offsets between which the letters are that are wanted, by their positions or
        by a period, for each partition. Raises LogUnavailable."""
        since_ms, until_ms = wanted.since_ms, wanted.until_ms
        found = []
        for partition in range(self._described().partitions):
            if wanted.positions is not None:
                offsets = [offset for where, offset in wanted.positions if where == partition]
                found.append((min(offsets), max(offsets) + 1) if offsets else (0, 0))
                continue
            watermarks = self._log.watermarks(self.topic, partition)
            first, end = watermarks.start, watermarks.stable
            if since_ms > 0:
                first = max(first, self._log.offset_at(self.topic, partition, since_ms))
            if until_ms is not None:
                end = min(end, self._log.offset_at(self.topic, partition, until_ms))
            found.append((min(first, end), end))
        return found

    def scan(
        self,
        windows: Sequence[Window],
        wanted: Wanted,
        *,
        newest_first: bool,
        limit: int,
        bytes_max: int | None = None,
        seconds: float = PART_S,
    ) -> ScanPart:
        """Return at most `limit` letters in the order of their times, and the windows that are
        still to be read.

        With `bytes_max` the letters are whole and have at most so many bytes of payload together,
        at least one letter. Raises LogUnavailable."""
        with self._lock, ExitStack() as readers:
            info = self._described()
            windows = [
                self._kept(partition, window)
                for partition, window in enumerate(windows[: info.partitions])
            ]
            budget = _Budget(seconds)
            terms = _Terms(
                wanted=wanted,
                newest_first=newest_first,
                whole=bytes_max is not None,
                budget=budget,
                chunk_records=min(
                    max(limit // max(1, len(windows)), CHUNK_RECORDS_MIN), CHUNK_RECORDS_MAX
                ),
            )
            scans = [
                _Scan(self, readers, partition, window, terms)
                for partition, window in enumerate(windows)
            ]
            try:
                found = _merged(
                    scans,
                    newest_first=newest_first,
                    limit=limit,
                    bytes_max=bytes_max,
                    budget=budget,
                )
            except LogMismatch as error:
                raise LogUnavailable(
                    f"{error}; records of {self.topic} were deleted just now: ask again"
                ) from None
            rest = [scan.window for scan in scans]
            is_all = all(first >= end for first, end in rest)
            return ScanPart(found=found, windows=None if is_all else rest, records=budget.records)

    def letter(self, partition: int, offset: int) -> Letter | None:
        """Return the whole letter at a position; None if there is none. Raises LogUnavailable."""
        with ExitStack() as readers:
            for record in self.records(
                self.reader(readers, partition, offset), partition, (offset, offset + 1)
            ):
                found = self.read(partition, record, True)
                return found if isinstance(found, Letter) else None
        return None

    def reader(self, readers: ExitStack, partition: int, offset: int) -> Reader:
        """Return a reader of a partition, which `readers` closes."""
        reader = self._log.reader(self.topic, partition, offset)
        readers.callback(reader.close)
        return reader

    def records(
        self, reader: Reader, partition: int, window: Window, most: int = BLOCK_RECORDS
    ) -> Iterator[Record]:
        """Return at most `most` records of a window of offsets; steps over what cannot be read.
        Raises LogUnavailable."""
        first, end = window
        if reader.position != first:
            reader.seek(first)
        silent_s = time.monotonic() + SILENCE_S
        while reader.position < end and most > 0:
            try:
                records = reader.read(min(most, end - reader.position), READ_BYTES)
            except BatchUnreadable as error:
                _, last = self._log.batch_bounds(self.topic, partition, error.offset)
                reader.seek(last + 1)
                continue
            for record in records:
                if record.offset >= end:
                    return
                yield record
            most -= len(records)
            if records:
                silent_s = time.monotonic() + SILENCE_S
            elif reader.position < end and not reader.wait(0.1) and time.monotonic() >= silent_s:
                raise LogUnavailable(
                    f"no record of {self.topic}/{partition} came within {SILENCE_S:g} s"
                )

    # --- markers

    def unresolved(self, partition: int, window: Window) -> Window:
        """Return the window without the letters at its two ends that are known to be resolved."""
        folded = self._folded.get(partition)
        return window if folded is None else folded.unresolved(window)

    def fold(
        self, reader: Reader, partition: int, window: Window, budget: _Budget, *, skips: bool
    ) -> _Folded | None:
        """Read the markers for the letters in a window, as far as they were not read; None if the
        time was over.

        `skips`: those before the first letter that is not resolved are not needed.
        """
        if not self._has_markers:
            return _NO_MARKERS
        first = window[0]
        end = self._log.watermarks(self.topic, partition).stable
        folded = self._folded.get(partition)
        if folded is None or not end - FAR_BEHIND <= folded.high <= end:
            folded = self._folded[partition] = _Folded(end)
        while folded.high < end or folded.low > first:
            if budget.is_spent:
                return None
            if folded.high < end:
                block = (folded.high, min(end, folded.high + BLOCK_RECORDS))
            else:
                block = (max(first, folded.low - BLOCK_RECORDS), folded.low)
            for record in self.records(reader, partition, block):
                budget.records += 1
                marker = self.read(partition, record, False)
                if isinstance(marker, Marker):
                    for resolved in marker.ranges:
                        folded.resolved[marker.resolution].add(*resolved)
            folded.low, folded.high = min(folded.low, block[0]), max(folded.high, block[1])
            if skips:
                first = folded.unresolved(window)[0]
        return folded

    def _described(self) -> TopicInfo:
        """Return the topic's description; forget the markers if it was deleted and created again.
        Raises LogUnavailable."""
        info = self._log.describe([self.topic])[self.topic]
        if info is None:
            raise LogUnavailable(f"the topic {self.topic} does not exist")
        if info.id != self._topic_id:
            self._topic_id = info.id
            self._folded.clear()
        return info

    def _kept(self, partition: int, window: Window) -> Window:
        """Return what the partition still holds of a window."""
        if window[0] >= window[1]:
            return window
        watermarks = self._log.watermarks(self.topic, partition)
        return max(window[0], watermarks.start), min(window[1], watermarks.stable)


class _Terms(Struct, frozen=True, kw_only=True):
    """The terms of one part, the same for each of its partitions."""

    wanted: Wanted
    newest_first: bool
    whole: bool
    budget: _Budget
    chunk_records: int


class _Scan:
    """One partition in one part."""

    def __init__(
        self,
        topic: LetterTopic,
        readers: ExitStack,
        partition: int,
        window: Window,
        terms: _Terms,
    ) -> None:
        self._topic = topic
        self._readers = readers
        self._partition = partition
        self._first, self._end = window
        self._terms = terms
        self._chunk_records = terms.chunk_records
        self._opened: Reader | None = None
        self._run = 0
        self.queue: deque[FoundLetter] = deque()

    @property
    def window(self) -> Window:
        """The offsets that are still to be read, those of the queue included."""
        if not self.queue:
            return self._first, max(self._first, self._end)
        offset = self.queue[0].letter.offset
        return (self._first, offset + 1) if self._terms.newest_first else (offset, self._end)

    def fill(self) -> None:
        """Read until a letter is in the queue, everything was read, or the time is over."""
        while not self.queue and self._first < self._end and not self._terms.budget.is_spent:
            if self._skip():
                continue
            first = (
                max(self._first, self._end - self._chunk_records)
                if self._terms.newest_first
                else self._first
            )
            if self._opened is None:
                self._opened = self._topic.reader(self._readers, self._partition, first)
            # Oldest first, the markers are read down to the first letter at once; newest first,
            # only as far as is shown.
            skips = not self._terms.wanted.resolved
            folded = self._topic.fold(
                self._opened, self._partition, (first, self._end), self._terms.budget, skips=skips
            )
            if folded is None:
                return
            if self._skip():
                continue
            self._read(self._opened, first, folded)
            if not self.queue:
                self._chunk_records = min(2 * self._chunk_records, CHUNK_RECORDS_MAX)

    def _skip(self) -> bool:
        """Leave out the letters at both ends that are known to be resolved; return whether there
        were any."""
        before = (self._first, self._end)
        if not self._terms.wanted.resolved:
            self._first, self._end = self._topic.unresolved(self._partition, before)
        is_moved = (self._first, self._end) != before
        self._run += is_moved
        return is_moved

    def _read(self, reader: Reader, first: int, folded: _Folded) -> None:
        """Read the records from `first` on: newest first, up to the end of the window; oldest
        first, a number of them."""
        size = count = 0
        last = first
        window = (first, self._end)
        for record in self._topic.records(reader, self._partition, window, self._chunk_records):
            self._terms.budget.records += 1
            count += 1
            last = record.offset
            letter = self._topic.read(self._partition, record, self._terms.whole)
            if not isinstance(letter, Letter):
                continue
            resolution = folded.resolution(letter.offset)
            wanted = self._terms.wanted
            if (
                (resolution is not None and not wanted.resolved)
                or not wanted.matches(letter)
                or not wanted.has_headers(record)
            ):
                self._run += 1
                continue
            found = FoundLetter(
                letter=letter,
                resolution=resolution,
                header=wanted.header_in(record),
                run=self._run,
            )
            if self._terms.newest_first:
                self.queue.appendleft(found)
                continue
            self.queue.append(found)
            if not self._terms.whole:
                continue
            size += memory_bytes(record.key, record.value, record.headers)
            if size >= READ_BYTES:
                break
        if self._terms.newest_first:
            self._end = first
        elif size >= READ_BYTES or count >= self._chunk_records:
            self._first = last + 1
        else:
            self._first = self._end


def _merged(
    scans: Sequence[_Scan],
    *,
    newest_first: bool,
    limit: int,
    bytes_max: int | None,
    budget: _Budget,
) -> list[FoundLetter]:
    """Return the letters of all partitions in the order of their times, as far as every partition
    was read."""
    found: list[FoundLetter] = []
    size = 0
    while len(found) < limit:
        for scan in scans:
            scan.fill()
        ready = [scan for scan in scans if scan.queue]
        # A partition whose next letter is not known yet may hold the next one of all.
        if not ready or any(scan.window[0] < scan.window[1] and not scan.queue for scan in scans):
            break
        chosen = (max if newest_first else min)(
            ready, key=lambda scan: _order(scan.queue[0].letter)
        )
        size += chosen.queue[0].letter.value_bytes or 0
        if bytes_max is not None and found and size > bytes_max:
            break
        found.append(chosen.queue.popleft())
    return found


def _order(letter: Letter) -> tuple[int, int, int, int]:
    """The order in which messages failed; those of one step by their due times."""
    return letter.timestamp_ms, letter.due_ms or 0, letter.partition, letter.offset
