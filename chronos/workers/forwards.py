"""Forwarded records: those whose id belongs to another partition, to which they are written in the transaction of their step.

Keeps its part of law 8: records for a partition that takes none at the moment are held (`queues`), and a record that has become too
large for the delay topic is rejected.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from chronos.core.message import FORWARDED, Headers, Record
from chronos.core.placement import hop
from chronos.core.size import batch_bytes, batch_bytes_max
from chronos.ports import Log, Outgoing, TopicInfo
from chronos.workers.letters import UNBOUNDED, Refusal
from chronos.workers.targets import DESCRIBE_EVERY_MS

HOP_BYTES_MAX = 400
"""Most bytes of the header that names a hop: a topic has at most 249, its numbers and the header's name at most 80."""


class Forwards:
    """The forwarded records of one shard."""

    def __init__(self, log: Log, topic: str, shard: int) -> None:
        """`topic`: the delay topic."""
        self.topic = topic
        self._log = log
        self._source_prefix = f"{topic}/{shard}/".encode()
        self._info: TopicInfo | None = None
        self._described_ms = 0

    def records(self, forwards: Sequence[tuple[Record, int]]) -> Iterator[Outgoing]:
        """Return each record unchanged but for the header that names its hop, for the partition of its id."""
        topic, headers = self.topic, self._headers
        for record, partition in forwards:
            yield topic, record.key, record.value, headers(record), partition

    def _headers(self, record: Record) -> Headers:
        return [*(record.headers or ()), (FORWARDED, hop(self._source_prefix, record))]

    def refusals(
        self, partitions: Iterable[int], now_ms: int, *, age_ms_max: int = DESCRIBE_EVERY_MS
    ) -> dict[int, Refusal]:
        """Return those of the partitions that take no records, by the description of the topic, and why. Raises LogUnavailable.

        `age_ms_max`: that of the description.
        """
        info = self._describe(now_ms, age_ms_max)
        if info is None:
            missing = Refusal(why=f"{self.topic} does not exist", passing=False)
            return dict.fromkeys(partitions, missing)
        closed = sorted({*partitions} & info.closed)
        if closed:
            self.forget()
        return {
            partition: Refusal(why=f"{self.topic}/{partition} has no leader with enough in-sync replicas", passing=True)
            for partition in closed
        }

    def too_large(
        self, forwards: Iterable[tuple[Record, int]], bytes_max: Mapping[int, int], now_ms: int
    ) -> dict[int, str]:
        """Return the records that the delay topic would not take with their hop, or of more bytes than their partition takes:
        offset -> why. A topic that is missing has no limit. Raises LogUnavailable."""
        info = self._describe(now_ms)
        topic_max = UNBOUNDED if info is None else info.bytes_max
        found = {}
        for record, partition in forwards:
            limit = min(bytes_max[partition], topic_max)
            if batch_bytes_max(record.key, record.value, record.headers or ()) + HOP_BYTES_MAX > limit:
                size = batch_bytes(record.key, record.value, self._headers(record))
                if size > limit:
                    found[record.offset] = f"{size} bytes with its hop; {self.topic} takes {limit}"
        return found

    def forget(self) -> None:
        """Drop the description of the topic: after a failure it is not trusted."""
        self._info = None

    def _describe(self, now_ms: int, age_ms_max: int = DESCRIBE_EVERY_MS) -> TopicInfo | None:
        if self._info is None or not 0 <= now_ms - self._described_ms < age_ms_max:
            self._info, self._described_ms = self._log.describe([self.topic])[self.topic], now_ms
        return self._info
