"""An index of the newest rejected records by id: a look-up of a message names its rejection.

Each node has its own index in memory, empty at its start. A look-up first reads what has come to
the rejected topic since the last reading: in the partition of the id, or in all partitions if the
id names a position in the delay topic; for READ_S at most, and of each partition only its last
records, IDS_MAX in all of them together or PARTITION_RECORDS_MIN in each. The index keeps the
IDS_MAX ids that were read last. A look-up never scans the topic: older records are found by the
requests under `/v1/rejected`."""

import threading
import time
from collections import OrderedDict
from contextlib import ExitStack

import structlog

from chronos.admin.letters.scan import LetterTopic, is_own
from chronos.core.keys import partition_of
from chronos.core.letters import Letter
from chronos.core.reach import Reach
from chronos.errors import LogMismatch, LogUnavailable
from chronos.ports import Log

log = structlog.get_logger("chronos.http")

IDS_MAX = 10_000
"""Ids in the index, at about 700 bytes each; so many records, shared by the partitions, are read
when it begins."""

PARTITION_RECORDS_MIN = 100
"""Records of one partition that are read when it begins, however many partitions there are."""

READ_S = 1.0
"""How long one look-up may read; the next one goes on from there."""


class RecentRejections:
    """The newest rejected records by id, as one node knows them. Any thread may call."""

    def __init__(self, log: Log, topic: LetterTopic) -> None:
        self._log = log
        self._topic = topic
        self._lock = threading.Lock()
        self._topic_id = ""
        self._next: dict[int, int] = {}
        """Partition -> offset of the next record to read."""
        self._letters: OrderedDict[bytes | str, Letter] = OrderedDict()
        """By id, or by source for a record without a key; the newest last."""

    def find(self, message_id: bytes, origin: str | None, *, reach: Reach) -> Letter | None:
        """Return the newest rejected record of an id, or without a key from the position `origin`;
        None if none is known.

        One that is out of reach is not known. While the topic cannot be read, only what was read
        before is known."""
        with self._lock:
            try:
                self._read_on(message_id, origin)
            except (LogUnavailable, LogMismatch) as error:
                log.info("rejected topic not read", topic=self._topic.topic, why=str(error))
            found = self._letters.get(message_id)
            if found is None and origin is not None:
                found = self._letters.get(origin)
        return found if found is not None and is_own(found, reach) else None

    def _read_on(self, message_id: bytes, origin: str | None) -> None:
        """Read the new records in the partition of the id; in all of them for a record without a
        key."""
        info = self._log.describe([self._topic.topic])[self._topic.topic]
        if info is None:
            return
        if info.id != self._topic_id:
            self._topic_id = info.id
            self._next.clear()
            self._letters.clear()
        ends_s = time.monotonic() + READ_S
        records_max = max(PARTITION_RECORDS_MIN, IDS_MAX // info.partitions)
        partitions = (
            [partition_of(message_id, info.partitions)]
            if origin is None
            else range(info.partitions)
        )
        for partition in partitions:
            if time.monotonic() >= ends_s:
                return
            self._read_partition(partition, records_max, ends_s)

    def _read_partition(self, partition: int, records_max: int, ends_s: float) -> None:
        watermarks = self._log.watermarks(self._topic.topic, partition)
        end = watermarks.stable
        first = max(self._next.get(partition, 0), watermarks.start, end - records_max)
        if first >= end:
            return
        with ExitStack() as readers:
            reader = self._topic.reader(readers, partition, first)
            for record in self._topic.records(reader, partition, (first, end)):
                self._next[partition] = record.offset + 1
                found = self._topic.read(partition, record, False)
                if isinstance(found, Letter):
                    self._add(found)
                if time.monotonic() >= ends_s:
                    return
        self._next[partition] = end

    def _add(self, letter: Letter) -> None:
        name = letter.id or letter.source
        self._letters[name] = letter
        self._letters.move_to_end(name)
        if len(self._letters) > IDS_MAX:
            self._letters.popitem(last=False)
